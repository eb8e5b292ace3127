"""Every launch of a script under the checker, before it is made as usual; for `synknumba check`.

    f(x, 0.5)                     f.check(x, 0.5), then the call
    s(u, 0.5, times=1000)         the body is planned, and the calls of its first iteration are checked; then the call
    kernel[8, 128](x)             simt.check(kernel)[8, 128] on a copy of x, then the launch; kernels of `simt.jit`, and of
                                  `cuda.jit` with the stand-ins of `simt.as_cuda`

The methods are replaced while a script is checked, so that calls of other scripts pay nothing.
"""  # noqa: E501

import copy
import re
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from synknumba import _tracing as tracing
from synknumba import simt
from synknumba._call.function import Function
from synknumba._errors import (
    Finding,
    KernelCheckError,
    KernelCheckWarning,
    SynkError,
    shortened,
    where,
)
from synknumba._host import this_process
from synknumba._sequence.call_checks import known_value
from synknumba._sequence.sequence import Sequence
from synknumba._tracing import Line, Number, Unknown
from synknumba._types import Args, Kwargs
from synknumba._variables.variable import Variable, state_of
from synknumba.simt.internals import Launcher

# in the note of an error that a thread of the kernel has raised
_OF_THREAD = re.compile(r"threadIdx=")
SLOW_SECONDS = 10.0  # of all checks of a kernel; a million accesses to elements
_ROWS = ("batch", "local_batch")  # options of a call that `check` takes, too
_OPTIONS = (*_ROWS, "num_slices", "output_subset", "shards")

Report: TypeAlias = Callable[[str, str, "Finding | str", int], None]
"""Gets the kernel's name, file and line of its call, a finding or the text of another error of a
thread, and how often.
"""


class _UnknownError(Exception):
    """A call of a sequence takes what only the ranks compute."""


@dataclass(slots=True)
class Checks:
    """What was checked.

    Attributes:
        rows: rows of a call, or of variables on each rank, that are checked, the first ones; None
            for all.
        most: calls of each kernel that are checked, the first ones; None for all.
        report: called once for each kind of finding, when it is found first.
        slow: called once for each kernel whose checks take long, in another thread, while one is
            under way; with the kernel's name, the place of the call that is being checked, and the
            number of calls that were checked before.
        calls: number of calls that were checked, by kernel.
        left_out: number of calls that were not checked, by kernel and reason.
        times: number of occurrences of each kind of finding.
        seconds_of: time that the checks took, by kernel.
        has_halos: whether a variable that a kernel got has a halo.
    """

    report: Report
    slow: Callable[[str, str, int], None]
    rows: int | None = None
    most: int | None = None
    calls: Counter[str] = field(default_factory=Counter)
    left_out: Counter[tuple[str, str]] = field(default_factory=Counter)
    times: Counter[Any] = field(default_factory=Counter)
    seconds_of: dict[str, float] = field(default_factory=dict)
    has_halos: bool = False
    _told_slow: set[str] = field(default_factory=set)
    _planned: list[tuple[Function[..., Any], tuple[Any, ...], dict[str, Any], str]] | None = None
    _is_checking: bool = False  # a check is under way, and launches of its own are not checked

    @property
    def seconds(self) -> float:
        """Time that all checks took."""
        return sum(self.seconds_of.values())

    def function(
        self,
        function: Function[..., Any],
        args: Args,
        kwargs: Kwargs,
        ranks: int | None = None,
    ) -> None:
        """Checks a call of a decorated function, if that is a kernel; or notes it while the body
        of a sequence is planned.
        """
        is_ours = function.py_func.__module__.startswith("synknumba._")  # such as those of `train`
        if self._is_checking or is_ours or not function._is_checkable:  # noqa: SLF001  # shared with this package
            return
        if self._planned is not None:
            self._planned.append((function, args, dict(kwargs), where()))
        elif tracing.current is None:
            self._check_call(function, args, kwargs, where(), ranks)

    def sequence(self, sequence: Sequence[..., Any], args: Args, kwargs: Kwargs) -> None:
        """Checks the calls of a sequence's first iteration, with the variables as they are
        before it.
        """
        if self._is_checking or tracing.current is not None:
            return
        planned = self._planned = []
        try:
            with suppress(Exception):  # the call, which follows, raises it
                sequence.plan(*args, **kwargs)
        finally:
            self._planned = None
        if planned:
            arguments = {name: value for name, value in kwargs.items() if name not in _LOOP}
            scalars = sequence._scalars(args, arguments)  # noqa: SLF001  # shared with this package
            for function, positional, named, place in planned:
                try:
                    first = tuple(_first(value, scalars) for value in positional)
                    keywords = {name: _first(value, scalars) for name, value in named.items()}
                except _UnknownError:
                    self.left_out[
                        function.name, "takes the result of another call of a sequence"
                    ] += 1
                    continue
                self._check_call(function, first, keywords, place, None)

    def launch(self, launcher: Launcher, args: Args, kwargs: Kwargs) -> None:
        """Checks a launch of a kernel of `simt.jit`, on copies of its arrays."""
        if self._is_checking or this_process.current_rank() is not None:
            return
        if kwargs:  # the launch refuses them
            return
        kernel, place = launcher.kernel, where()
        checked = simt.check(kernel)[launcher.griddim, launcher.blockdim, 0, launcher.smem_bytes]
        # All of them at once: an array that is passed twice is one array in the check, too.
        self._check(kernel.py_func.__name__, place, lambda: checked(*copy.deepcopy(args)))

    def _check_call(
        self,
        function: Function[..., Any],
        args: Args,
        kwargs: Kwargs,
        place: str,
        ranks: int | None,
    ) -> None:
        kwargs = {
            name: value for name, value in kwargs.items() if name in _ROWS or name not in _OPTIONS
        }
        variables = [value for value in args if isinstance(value, Variable)]
        self.has_halos |= any(state_of(variable).halo is not None for variable in variables)

        def check() -> None:
            for option in _ROWS if self.rows is not None and not kwargs.keys() & {*_ROWS} else ():
                rows: dict[str, Any] = {option: slice(0, self.rows)}
                try:
                    return function.check(*args, **kwargs, **rows, world_size=ranks)
                except KernelCheckError:
                    raise
                except SynkError:  # it takes no such option, as one without rows
                    continue
            return function.check(*args, **kwargs, world_size=ranks)

        self._check(function.name, place, check)

    def _check(self, name: str, place: str, check: Callable[[], object]) -> None:
        if self.most is not None and self.calls[name] >= self.most:
            self.left_out[name, f"after the first {self.most}"] += 1
            return
        began, self._is_checking = time.perf_counter(), True
        # Many calls, each of them short, make a script as slow as a long one.
        patience = threading.Timer(
            max(0.0, SLOW_SECONDS - self.seconds_of.get(name, 0.0)), self._tell_slow, (name, place)
        )
        patience.daemon = True
        is_timed = name not in self._told_slow
        if is_timed:
            patience.start()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", KernelCheckWarning)
                check()
        except (KernelCheckError, KernelCheckWarning) as error:
            for finding in error.findings:
                lines = tuple((at.what, at.filename, at.line) for at in finding.accesses)
                self._note(
                    (name, finding.error, finding.array, lines), name, place, finding, finding.times
                )
        except SynkError as error:
            self.left_out[name, str(error)] += 1  # the call follows, and raises it, too
            return
        except Exception as error:  # noqa: BLE001  # of the kernel, such as an assertion, or of the checker
            text = f"{type(error).__name__}: {error}".rstrip(": ")
            notes = [note for note in getattr(error, "__notes__", ()) if _OF_THREAD.search(note)]
            if not notes:
                self.left_out[name, f"the checker fails: {text}"] += 1
                return
            self._note((name, text), name, place, "\n    ".join([text, *notes]), 1)
        finally:
            patience.cancel()
            if is_timed:
                patience.join()  # `fork()` warns of threads
            self._is_checking = False
            self.seconds_of[name] = self.seconds_of.get(name, 0.0) + time.perf_counter() - began
        self.calls[name] += 1

    def _tell_slow(self, name: str, place: str) -> None:
        self._told_slow.add(name)
        self.slow(name, place, self.calls[name])

    def _note(self, key: Any, name: str, place: str, finding: Finding | str, times: int) -> None:
        is_new = key not in self.times
        self.times[key] += times
        if is_new:
            self.report(name, place, finding, times)


_LOOP = ("times", "every", "until")  # options of a call of a sequence


def _first(value: Any, scalars: list[Any]) -> Any:
    """Returns an argument of a call of a sequence as it is in the first iteration; _UnknownError
    if only ranks know it.
    """
    if value is tracing.STEP:
        return 0
    if isinstance(value, Number):
        number = known_value(value.formula, scalars, step=0)
        if number is None:
            raise _UnknownError
        return np.dtype(value.dtype).type(number) if value.dtype else number
    if isinstance(value, Line):
        return np.array(value.data[_first(value.number, scalars)])
    if isinstance(value, Unknown):
        raise _UnknownError
    return value


def _checked(method: Callable[..., Any], check: Callable[..., None]) -> Callable[..., Any]:
    """Returns a method before which each call is checked."""

    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        check(self, args, kwargs)
        return method(self, *args, **kwargs)

    return shortened(checked)


@contextmanager
def checking(checks: Checks) -> Iterator[None]:
    """Context in which each call of a kernel is checked before it is made."""
    checked: tuple[tuple[type, str, Callable[..., None]], ...] = (
        (Function, "__call__", checks.function),
        (Function, "submit", checks.function),
        (Function, "as_serial", partial(checks.function, ranks=1)),
        (Sequence, "__call__", checks.sequence),
        (Sequence, "submit", checks.sequence),
        (Launcher, "__call__", checks.launch),
    )
    plain = [getattr(owner, name) for owner, name, _ in checked]
    for method, (owner, name, check) in zip(plain, checked, strict=True):
        setattr(owner, name, _checked(method, check))
    try:
        yield
    finally:
        for method, (owner, name, _) in zip(plain, checked, strict=True):
            setattr(owner, name, method)
