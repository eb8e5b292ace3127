"""Exceptions that synknumba raises.

Each derives from `SynkError` and from the matching built-in exception, so both
`except synk.SynkError` and `except ValueError` work. A message names the argument, the requirement,
the value received and the fix. All of them pickle: some are raised on a rank and re-raised in the
coordinator.
"""

import ast
import functools
import importlib
import linecache
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, TypeVar

SANDBOX = (
    "A sandbox refuses this system call: allow it in its profile, as by docker run "
    "--security-opt seccomp=<profile>."
)


FULL_TRACEBACK: Final = "SYNKNUMBA_FULL_TRACEBACK"  # environment variable

_F = TypeVar("_F", bound=Callable[..., Any])
_E = TypeVar("_E", bound=type[Exception])
_Error = TypeVar("_Error", bound=Exception)

# Packages whose lines are no lines of a script; contextlib's ExitStack ends blocks.
NOT_OF_SCRIPTS: Final = frozenset({__name__.partition(".")[0], "numpy", "contextlib"})
GENERATED: Final = (
    "<synknumba "  # how names of files begin that have the source of functions made here
)
_PACKAGE = str(Path(__file__).parent) + os.sep
_LIBRARY, _INSTALLED = str(Path(os.__file__).parent) + os.sep, f"{os.sep}site-packages{os.sep}"


def where() -> str:
    """Returns file and line of the innermost frame outside this package and NumPy, which calls
    methods of what it is given.
    """
    frame = sys._getframe(1)  # noqa: SLF001  # as the warnings module does
    while (
        frame.f_back is not None
        and frame.f_globals.get("__name__", "").partition(".")[0] in NOT_OF_SCRIPTS
    ):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def full_traceback() -> bool:
    """Returns whether the package's own frames, and Numba's messages and tracebacks, are asked
    for.
    """
    return os.environ.get(FULL_TRACEBACK, "") not in {"", "0"}


def shorten(error: BaseException) -> None:
    """Removes the frames of this package from the traceback of an error, so that it ends in the
    caller's line.

    So are those of Python's own library that the package has called. Frames of other files stay,
    such as those of a function that the script has passed. The `except` clause that calls this then
    re-raises by `raise` alone, which adds no frame.

    An error in such a function is shortened, too. One of Python's or NumPy's that this package has
    caused keeps all frames, which tell where.
    """
    if full_traceback():
        return
    frames, rest, of_package = [], error.__traceback__, False
    while rest is not None:
        of_package = _is_of_package(rest, of_package)
        if not of_package:
            frames.append(rest)
        rest = rest.tb_next
    # those that this package raises
    if of_package and not isinstance(error, SynkError | Warning | TimeoutError):
        return
    following: TracebackType | None = None
    for frame in reversed(frames):
        following = TracebackType(following, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    error.__traceback__ = following


def _is_of_package(entry: TracebackType, after_package: bool) -> bool:
    """Returns whether a frame is one of this package, or of Python's library below one."""
    file = entry.tb_frame.f_code.co_filename
    return file.startswith((_PACKAGE, GENERATED)) or (
        after_package and file.startswith(_LIBRARY) and _INSTALLED not in file
    )


def at_line(error: _Error, file: str, line: int, function: str) -> _Error:
    """Gives an error a traceback of one line of a script, which has no frame: its code is compiled,
    or recorded.
    """
    # columns of −1: tracebacks underline nothing
    place: dict[str, Any] = dict.fromkeys(("lineno", "end_lineno"), line)
    place |= dict.fromkeys(("col_offset", "end_col_offset"), -1)
    tree = ast.Module([ast.Raise(ast.Name("error", ast.Load(), **place), **place)], [])
    code = compile(tree, file, "exec").replace(co_name=function, co_qualname=function)
    names = {"error": error.with_traceback(None)}
    try:
        exec(code, names)  # noqa: S102  # to have a frame
    except type(error):
        names.clear()  # else a cycle: the traceback has the frame, and that its names
        assert error.__traceback__ is not None
        error.__traceback__ = error.__traceback__.tb_next
    return error


def shortened(function: _F) -> _F:
    """Makes a function raise errors without this package's own frames; see `shorten`."""

    @functools.wraps(function)
    def _called(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            shorten(error)
            raise

    return _called  # type: ignore[return-value]  # the same signature


def depth_of_script() -> int:
    """Returns the `stacklevel` at which the function that calls this one warns about the
    script's line.
    """
    depth, frame = 1, sys._getframe(1)  # noqa: SLF001  # as the warnings module does
    above: FrameType | None = frame
    while above is not None and above.f_code.co_filename.startswith((_PACKAGE, GENERATED)):
        depth, above = depth + 1, above.f_back
    return depth


class SynkError(Exception):
    """Base class of all exceptions of synknumba."""


def named_by_base(kind: _E) -> _E:
    """Gives an exception class the name of its first base: the public class, which tracebacks then
    show.

    For private classes, as those of two kinds: `hasattr` needs an AttributeError, and programs for
    Numba catch its errors.
    """
    home, public = (kind.__module__, kind.__name__), kind.__bases__[0]
    kind.__module__, kind.__name__, kind.__qualname__ = (
        public.__module__,
        public.__name__,
        public.__qualname__,
    )

    def reduced(self: Exception) -> tuple[Any, ...]:
        return _unpickled, (home, self.args), self.__dict__ or None

    kind.__reduce__ = reduced  # type: ignore[assignment]  # pickle would look the class up by its new name
    return kind


def _unpickled(home: tuple[str, str], args: tuple[Any, ...]) -> Exception:
    error: Exception = getattr(importlib.import_module(home[0]), home[1])(*args)
    return error


class ArgumentError(SynkError, TypeError):
    """The arguments of a call do not match the function: missing, given twice, unknown, or of an
    unsupported type.
    """


@named_by_base
class MemberError(ArgumentError, AttributeError):
    """A stand-in has no such member, as an array while a sequence is recorded, nor an estimate;
    `hasattr` and NumPy's functions see that.
    """


class PartitionError(SynkError, ValueError):
    """The rows cannot be partitioned: lengths disagree, or the number of slices or ranks is
    invalid.
    """


class BatchError(SynkError, IndexError):
    """A `batch` selects nonexistent rows or no rows, or is not a row selection."""


class DataError(SynkError, ValueError):
    """A value does not match a `Data` in dtype, number of dimensions or size."""


class ReductionError(SynkError, ValueError):
    """The op of an output is unknown, does not support the dtype, or has no values to reduce."""


class LaunchError(SynkError, ValueError):
    """A grid, block or dynamic shared memory size is invalid in CUDA or unfit for the kernel, or
    the grid cannot be derived.
    """


class KernelError(SynkError, NotImplementedError):
    """A kernel does not compile, or uses what this device does not support; the message has
    place, reason and way out.
    """


class DeviceError(SynkError, RuntimeError):
    """The requested device is unavailable: no GPU, a broken CUDA installation, or CUDA
    initialised before the fork.
    """


@named_by_base
class DeviceMemberError(DeviceError, AttributeError):
    """A member that only a GPU, or a kernel on one, has; `hasattr` says that it is missing."""


class SharedMemoryError(SynkError, MemoryError):
    """Shared memory of the requested size cannot be allocated."""


class WorldError(SynkError, RuntimeError):
    """The call is invalid in the world's present state: no world, a second world, a busy world,
    or a call made on a rank.
    """


class RankDied(WorldError):  # noqa: N818  # the name states the event; "Error" would add nothing
    """A rank's process ended while the world was open. All ranks have been terminated; every `Data`
    keeps its contents.

    Attributes:
        rank: the rank that died first; None if unknown, as `pid` and `exitcode` are then.
        pid: the process id of that rank.
        exitcode: the exit code, or the negated signal number, as in `subprocess`; None if the
            process did not end by itself, as when its GPU was lost.
        function: the name of the called function.
        arguments: a short text per argument (name, dtype and shape).
        stack: the rank's stack at the crash, innermost frame first; empty if it did not crash or
            could not report it.
        stderr: the last lines that the rank wrote to stderr.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        pid: int | None = None,
        exitcode: int | None = None,
        function: str = "",
        arguments: tuple[str, ...] = (),
        stack: str = "",
        stderr: str = "",
    ) -> None:
        super().__init__(message)
        self.rank, self.pid, self.exitcode = rank, pid, exitcode
        self.function, self.arguments = function, arguments
        self.stack, self.stderr = stack, stderr


class CallTimeout(WorldError, TimeoutError):  # noqa: N818  # named as the built-in TimeoutError, plus what timed out
    """A call exceeded the `timeout` of `fork()`. All ranks have been terminated; every `Data` keeps
    its contents.

    Attributes:
        stacks: for each rank that had not answered, the stack of its code, innermost frame first.
    """

    def __init__(self, message: str, *, stacks: Mapping[int, str] | None = None) -> None:
        super().__init__(message)
        self.stacks = dict(stacks or {})


class RecordError(SynkError, RuntimeError):
    """A function with `record=True` does what a recording cannot repeat."""


class NonFiniteError(SynkError, FloatingPointError):
    """The gradient of a training step has a NaN or an infinity, or its weights add up to 0. The
    step was not made.
    """


class VariableLost(WorldError):  # noqa: N818  # named as `RankDied`
    """The values of a `Variable` ended with the ranks of its world, and no snapshot has them. It
    can be given a value.
    """


@dataclass(frozen=True, slots=True)
class RankFailure:
    """One rank's exception as text, which pickles even if the exception does not.

    Attributes:
        rank: the rank that raised.
        type_name: the exception's qualified type name.
        message: `str(exception)`.
        traceback: the formatted traceback on the rank.
    """

    rank: int
    type_name: str
    message: str
    traceback: str


class RankError(SynkError, RuntimeError):
    """A Python exception on one or more ranks. The world remains usable.

    `__cause__` is the first rank's original exception if that could be pickled.

    Attributes:
        failures: the failure of each rank that raised, in rank order.
        function: the name of the called function.
        arguments: a short text per argument (name, dtype and shape).
    """

    def __init__(
        self, function: str, arguments: tuple[str, ...], failures: tuple[RankFailure, ...]
    ) -> None:
        self.function = function
        self.arguments = arguments
        self.failures = failures
        super().__init__(function, arguments, failures)

    def __str__(self) -> str:
        """Returns the call and the traceback of every rank."""
        ranks = ", ".join(str(failure.rank) for failure in self.failures)
        first = self.failures[0]
        lines = [
            (
                f"{self.function}({', '.join(self.arguments)}) raised on rank {ranks}: "
                f"{first.type_name}: {first.message}"
            )
        ]
        texts: dict[str, list[str]] = {}
        for failure in self.failures:
            texts.setdefault(failure.traceback.rstrip(), []).append(str(failure.rank))
        for text, same in texts.items():
            lines += [f"--- rank {', '.join(same)} ---", text]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Access:
    """An access or a wait by one kernel thread, with its source location.

    Attributes:
        what: "read", "write", "atomic", "waits", "raises" or "ended".
        thread: `threadIdx` as (x, y, z).
        block: `blockIdx` as (x, y, z).
        function: the name of the kernel or device function.
        filename: the file that defines the function.
        line: the line in that file; 0 for a thread that has ended.
    """

    what: str
    thread: tuple[int, int, int]
    block: tuple[int, int, int]
    function: str
    filename: str
    line: int

    def __str__(self) -> str:
        """Returns the access on one line and the source line below it."""
        place = f"threadIdx={self.thread} blockIdx={self.block}"
        if not self.line:
            return f"{self.what:<6} {place}"
        text = linecache.getline(self.filename, self.line).strip()
        return (
            f"{self.what:<6} {place} in {self.function} ({self.filename}:{self.line})\n           "
            f"{text}"
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """An error detected while a kernel ran.

    Attributes:
        error: the exception class for this kind of finding.
        summary: the description of the error.
        accesses: the accesses involved, in execution order.
        advice: the suggested fix.
        array: the name of the array; empty if no array is involved.
        index: the element's index in that array.
        times: the number of occurrences, including other elements and threads.
        is_warning: whether it has no effect on what the kernel writes, in this execution, or may be
            meant.
    """

    error: type["KernelCheckError"]
    summary: str
    accesses: tuple[Access, ...]
    advice: str
    array: str = ""
    index: tuple[int, ...] = ()
    times: int = 1
    is_warning: bool = False

    def __str__(self) -> str:
        """Returns the finding as several lines of text."""
        head = self.summary
        if self.is_warning:
            head = f"warning: {head}"
        if self.times > 1:
            head += f" ({self.times} times)"
        details = [f"    {detail}" for detail in (*self.accesses, self.advice) if detail]
        return "\n".join([head, *details])


class KernelCheckError(SynkError, RuntimeError):
    """`simt.debug`, `simt.check` or `f.check` found errors. The class raised is that of the first
    finding.

    A finding of this class itself is an exception that Python raised in a thread, or a call that
    differs between numbers of ranks.

    Attributes:
        kernel: the kernel's name.
        findings: all findings, in order of first occurrence.
    """

    def __init__(self, kernel: str, findings: tuple[Finding, ...]) -> None:
        self.kernel = kernel
        self.findings = findings
        super().__init__(kernel, findings)

    def __str__(self) -> str:
        """Returns the findings as a numbered list."""
        if len(self.findings) == 1:
            return f"{self.kernel}: {self.findings[0]}"
        numbered = (f"{number}. {finding}" for number, finding in enumerate(self.findings, 1))
        return "\n".join([f"{self.kernel}: {len(self.findings)} findings", *numbered])


class KernelCheckWarning(UserWarning):
    """`simt.check` found only what has no effect on the results, such as a variable that is read
    unassigned and not used.

    Attributes:
        kernel: the kernel's name.
        findings: the findings, in order of first occurrence.
    """

    def __init__(self, kernel: str, findings: tuple[Finding, ...]) -> None:
        self.kernel = kernel
        self.findings = findings
        super().__init__(kernel, findings)

    def __str__(self) -> str:
        """Returns the findings, one below the other."""
        return "\n".join(f"{self.kernel}: {finding}" for finding in self.findings)


class BoundsError(KernelCheckError, IndexError):
    """A kernel thread used an out-of-bounds index."""


class RaceError(KernelCheckError):
    """Two kernel threads accessed the same element without synchronisation, and at least one of
    them wrote it.
    """


class DivergenceError(KernelCheckError):
    """Kernel threads did not all reach the same barrier or warp operation."""


class UninitializedError(KernelCheckError):
    """A kernel thread read an element of a shared or local array before any write to it."""
