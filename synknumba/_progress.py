"""Bars that show how far the ranks are: `progress=` of calls, sequences and batches, and `options`.

    ranks ──words in shared memory──> the coordinator looks every 50 ms, while it waits ──> Bar ──> tqdm

tqdm is imported when the first bar is drawn.
"""  # noqa: E501

import importlib
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Literal, Self, TypeAlias, final

import numpy as np

from synknumba._errors import ArgumentError
from synknumba._types import known_options, shown

Progress: TypeAlias = bool | Literal["auto"]

AUTO_SECONDS = 0.5  # with "auto", what is over earlier shows nothing
LOG_SECONDS = (
    10.0  # between two lines in a file, which keeps them all; a terminal shows ten in a second
)

_default: ContextVar[Progress] = ContextVar("progress", default=False)
default = _default.get


@known_options
def options(*, progress: Progress) -> AbstractContextManager[None]:
    """Sets defaults of the calls inside a `with` block, in this thread.

    Args:
        progress: as for a call, for calls with `num_slices=` or `shards=`, sequences with `times=`,
            epochs of training and `batches`. "auto" draws bars on a terminal and in a notebook
            only, and only for what takes more than half a second.

    Returns:
        A context manager.

    Raises:
        ArgumentError: `progress` is not True, False or "auto"; or tqdm is not installed, for True.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> @synk.function(outputs="sum")
        ... def total(x):
        ...     return x.sum()
        >>> with synk.fork(2, device="cpu"), synk.options(progress="auto"):
        ...     float(total(np.ones(1000), num_slices=10))
        1000.0
    """
    checked = _checked(progress, "synk.options")
    if checked is True:
        _bar_class("synk.options")
    return _with_default(checked)


@contextmanager
def _with_default(progress: Progress) -> Iterator[None]:
    token = _default.set(progress)
    try:
        yield
    finally:
        _default.reset(token)


def wanted(progress: Any, what: str) -> Progress:
    """Returns which bar a call draws: with True, one that is drawn at once; with "auto", one that
    may be drawn later.

    Args:
        progress: the option of the call; None for the default.
        what: the call, for messages.

    Raises:
        ArgumentError: the option is not True, False, "auto" or None; or tqdm is not installed, for
            True.
    """
    if progress is None:
        progress = _default.get()
        if progress is False:
            return False
    checked = _checked(progress, what)
    if checked is True:
        _bar_class(what)
    if checked == "auto" and not _is_watched():
        return False
    return checked


def _checked(progress: Any, what: str) -> Progress:
    if isinstance(progress, bool | np.bool_):
        return bool(progress)
    if isinstance(progress, str) and progress == "auto":
        return "auto"
    raise ArgumentError(f'{what}: progress must be True, False or "auto", got {shown(progress)}')


def refusal(what: str) -> str:
    """Returns why something that does not wait for the ranks takes no `progress=`."""
    return (
        f"{what} takes progress= in calls only, which wait for the ranks and look at them "
        "meanwhile; leave it out of submit(), plan(), as_serial() and check()"
    )


def refuse_inside(progress: Any, where: str, what: str) -> None:
    """Raises `ArgumentError` for a bar of a call in the body of a sequence."""
    if progress:
        raise ArgumentError(
            f"{where}: {what} is called in the body of a sequence, which the ranks repeat; pass "
            "progress= to the call of the sequence, which draws a bar over its iterations"
        )


def _bar_class(what: str) -> Any:
    """Returns tqdm's class for this terminal or notebook; raises `ArgumentError` if it is not
    installed.
    """
    try:
        tqdm = importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        raise ArgumentError(
            f"{what}: progress=True draws bars with tqdm, which is not installed; run `pip install "
            f"'synknumba[progress]'`, or "
            'pass progress="auto", which draws none without it'
        ) from None
    # tqdm's monitor, a thread that redraws bars that wait long, is not needed, and a process with
    # threads should not fork.
    return type("Tqdm", (tqdm,), {"monitor_interval": 0})


def _is_watched() -> bool:
    """Returns whether somebody sees a bar at once: stderr is a terminal, or this is a notebook."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = None if get_ipython is None else get_ipython()
    if shell is not None and "IPKernelApp" in getattr(shell, "config", ()):
        return True
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except ValueError:  # it is closed
        return False


@final
class Bar:
    """One bar: a context manager, at whose end it is closed.

    Args:
        mode: True to draw it at once, "auto" to draw it if it is still needed after AUTO_SECONDS,
            False for no bar.
        name: what is done.
        unit: what is counted.
        total: of these; None if that is not known.
    """

    def __init__(self, mode: Progress, name: str, unit: str, total: int | None) -> None:
        self._told = {"desc": name, "unit": unit, "total": total}
        self._began = time.monotonic()
        self._bar: Any = None
        self._is_off = sys.stderr is None or mode is False
        if mode is True and not self._is_off:
            self._draw()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def show(self, done: int, lag: str = "") -> None:
        """Shows how much is done, and which rank is behind. A terminal that is gone ends the
        bar, and not the call.
        """
        if self._is_off or (self._bar is None and time.monotonic() - self._began < AUTO_SECONDS):
            return
        try:
            if self._bar is None:
                self._draw()
            self._bar.set_postfix_str(lag, refresh=False)
            self._bar.update(max(done - self._bar.n, 0))  # also by 0, for the clock goes on
        except Exception:  # noqa: BLE001  # of tqdm, of a stream or of a notebook
            self._is_off = True

    def finish(self) -> None:
        """Notes that there is no more to do, also where a condition has ended a loop earlier."""
        if self._bar is not None and not self._is_off:
            with suppress(Exception):  # as in `show`
                self._bar.total = self._bar.n

    def close(self) -> None:
        """Draws the bar for the last time, and ends its line; idempotent."""
        bar, self._bar, self._is_off = self._bar, None, True
        if bar is not None:
            with suppress(Exception):  # as in `show`
                bar.close()

    def _draw(self) -> None:
        # With `leave=None` a bar inside another one, as over the slices of a minibatch, disappears
        # at its end.
        interval = 0.1 if _is_watched() else LOG_SECONDS
        bar = _bar_class("a bar")(
            **self._told, leave=None, miniters=0, mininterval=interval, dynamic_ncols=True
        )
        bar.start_t -= time.monotonic() - self._began
        self._bar = bar


def lag_told(done: Sequence[int], goals: Sequence[int]) -> str:
    """Returns how far the slowest rank at work is behind the fastest one; "" if all have done the
    same.

    >>> lag_told([5, 3, 2], [8, 8, 2])
    'rank 1 is 2 behind'
    """
    at_work = [rank for rank, goal in enumerate(goals) if done[rank] < goal]
    if not at_work:
        return ""
    slowest = min(at_work, key=done.__getitem__)
    lag = max(done) - done[slowest]
    if lag == 0:
        return ""
    return f"rank {slowest} is {lag} behind"
