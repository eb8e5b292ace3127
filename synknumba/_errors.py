"""Every error that synknumba raises on purpose.

Each is a `SynkError` and also the built-in it is, so that both `except synk.SynkError` and `except ValueError` work.
A message gives the argument, what was required, what was got and what to do. All of them pickle, since some are raised on
a rank and re-raised in the coordinator.
"""

import linecache
from collections.abc import Mapping
from dataclasses import dataclass


class SynkError(Exception):
    """The base of all errors of synknumba."""


class ArgumentError(SynkError, TypeError):
    """A call's arguments do not fit the function: one is missing, given twice, unknown, or of a type that cannot be passed."""


class PartitionError(SynkError, ValueError):
    """The rows cannot be divided as asked: lengths that disagree, or a number of slices or ranks that makes no sense."""


class BatchError(SynkError, IndexError):
    """A `batch` selects rows that do not exist, or none at all, or is not a selection of rows."""


class DataError(SynkError, ValueError):
    """A value does not fit a `Data`: its dtype, its number of dimensions or its size."""


class ReductionError(SynkError, ValueError):
    """An output's op is unknown, does not suit the dtype, or has nothing to work on."""


class LaunchError(SynkError, ValueError):
    """A grid, block or dynamic smem size that CUDA does not accept, or a grid that cannot be derived."""


class KernelError(SynkError, NotImplementedError):
    """A kernel uses what this device cannot run; the message names the kernel, the file, the line and the way out."""


class DeviceError(SynkError, RuntimeError):
    """The device asked for cannot be used: no GPU, a broken CUDA installation, or CUDA initialised before the fork."""


class SharedMemoryError(SynkError, MemoryError):
    """POSIX shared memory of the size asked for cannot be had."""


class WorldError(SynkError, RuntimeError):
    """The call does not fit the state of the world: there is none, there is one already, it is busy, or this is a rank."""


class RankDied(WorldError):  # noqa: N818  # the name says what happened; "Error" would add nothing
    """A rank's process ended while the world was open. All ranks have been ended; every `Data` keeps its contents.

    Attributes:
        rank: that died first; None if that is not known, as are the others then.
        pid: of its process.
        exitcode: as `subprocess` gives it: the exit code, or minus the number of a signal; None where the process had not ended
            by itself, as when its GPU was lost.
        function: the name of the function called.
        arguments: what was passed, one short text an argument (name, dtype and shape).
        stack: where the rank was, the innermost frame first, if it crashed and could still tell.
        stderr: the last lines that the rank wrote there.
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
        self.rank = rank
        self.pid = pid
        self.exitcode = exitcode
        self.function = function
        self.arguments = arguments
        self.stack = stack
        self.stderr = stderr


class CallTimeout(WorldError, TimeoutError):  # noqa: N818  # as the built-in it is, plus which call
    """A call took longer than the `timeout` given to `fork()`. All ranks have been ended; every `Data` keeps its contents.

    Attributes:
        stacks: where each rank was that had not answered, by rank: the frames of its code, the innermost first.
    """

    def __init__(self, message: str, *, stacks: Mapping[int, str] | None = None) -> None:
        super().__init__(message)
        self.stacks = dict(stacks or {})


@dataclass(frozen=True, slots=True)
class RankFailure:
    """One rank's exception, as text that survives pickling whatever the exception was.

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
    """A Python exception on one or more ranks. The world stays usable.

    The first rank's original exception is the `__cause__` where it could be pickled.

    Attributes:
        failures: every rank that raised, in rank order.
        function: the name of the function called.
        arguments: what was passed, one short text an argument (name, dtype and shape).
    """

    def __init__(self, function: str, arguments: tuple[str, ...], failures: tuple[RankFailure, ...]) -> None:
        self.function = function
        self.arguments = arguments
        self.failures = failures
        super().__init__(function, arguments, failures)

    def __str__(self) -> str:
        """Lists the call and every rank's traceback."""
        ranks = ", ".join(str(failure.rank) for failure in self.failures)
        first = self.failures[0]
        lines = [f"{self.function}({', '.join(self.arguments)}) raised on rank {ranks}: {first.type_name}: {first.message}"]
        texts: dict[str, list[str]] = {}
        for failure in self.failures:
            texts.setdefault(failure.traceback.rstrip(), []).append(str(failure.rank))
        for text, same in texts.items():
            lines += [f"--- rank {', '.join(same)} ---", text]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Access:
    """What one thread of a kernel did, and where.

    Attributes:
        what: "read", "write", "atomic", "waits" or "ended".
        thread: the thread's index in its block, x first.
        block: the block's index in the grid, x first.
        function: the name of the kernel or device function.
        filename: the file it is defined in.
        line: the line in that file; 0 for a thread that has ended.
    """

    what: str
    thread: tuple[int, int, int]
    block: tuple[int, int, int]
    function: str
    filename: str
    line: int

    def __str__(self) -> str:
        """The access in one line, and the source line below it."""
        place = f"threadIdx={self.thread} blockIdx={self.block}"
        if not self.line:
            return f"{self.what:<6} {place}"
        text = linecache.getline(self.filename, self.line).strip()
        return f"{self.what:<6} {place} in {self.function} ({self.filename}:{self.line})\n           {text}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake that was seen while a kernel ran.

    Attributes:
        error: the class of the error that reports it when it stands alone.
        summary: what is wrong.
        accesses: the threads that took part; the one that ran first comes first.
        advice: what to do.
        array: the name of the array; empty if there is none.
        index: the element's index in that array.
        times: how often it was seen, at other elements and in other threads too.
    """

    error: type["KernelCheckError"]
    summary: str
    accesses: tuple[Access, ...]
    advice: str
    array: str = ""
    index: tuple[int, ...] = ()
    times: int = 1

    def __str__(self) -> str:
        """All of it, over several lines."""
        more = f" ({self.times} times)" if self.times > 1 else ""
        return "\n".join([self.summary + more, *(f"    {access}" for access in self.accesses), f"    {self.advice}"])


class KernelCheckError(SynkError, RuntimeError):
    """`simt.debug` or `simt.check` has found mistakes in a kernel; the class is that of the first.

    Attributes:
        kernel: the kernel's name.
        findings: every mistake, in the order in which they were first seen.
    """

    def __init__(self, kernel: str, findings: tuple[Finding, ...]) -> None:
        self.kernel = kernel
        self.findings = findings
        super().__init__(kernel, findings)

    def __str__(self) -> str:
        """Lists the findings."""
        if len(self.findings) == 1:
            return f"{self.kernel}: {self.findings[0]}"
        numbered = (f"{number}. {finding}" for number, finding in enumerate(self.findings, 1))
        return "\n".join([f"{self.kernel}: {len(self.findings)} findings", *numbered])


class BoundsError(KernelCheckError, IndexError):
    """A thread of a kernel used an index outside of an array."""


class RaceError(KernelCheckError):
    """Two threads of a kernel used the same element, one of them wrote it, and nothing orders the two."""


class DivergenceError(KernelCheckError):
    """Threads of a kernel that must meet at one barrier, or in one warp operation, did not."""


class UninitializedError(KernelCheckError):
    """A thread of a kernel read an element of a shared or local array that nothing had been written to."""
