"""Errors of failed calls: descriptions of the call and the ranks, of how a rank ended, and of
its last output.
"""

import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType

from synknumba._errors import RankDied, RankError, RankFailure, SynkError
from synknumba._wire import channel
from synknumba._wire.messages import Failed

_PACKAGE = __name__.partition(".")[0]

LINES_TOLD = 30  # lines of a rank's stderr quoted in an error

# Meaning of a signal that has ended a rank.
_SIGNALS = {
    signal.SIGABRT: (
        "abort: the interpreter or a C library gave up, usually after printing a reason"
    ),
    signal.SIGBUS: (
        "bus error: mapped memory could not be provided, as that of a file "
        "that was truncated meanwhile"
    ),
    signal.SIGFPE: "arithmetic error in compiled code, such as an integer divided by zero",
    signal.SIGILL: "illegal instruction: code compiled for another processor, or a jump into data",
    signal.SIGKILL: "possibly by the kernel, out of memory",
    signal.SIGSEGV: (
        "segmentation fault: access to invalid memory; simt.check finds indices "
        "out of bounds in a kernel"
    ),
    signal.SIGTERM: "another process asked it to end",
}


@dataclass(frozen=True, slots=True)
class CallInfo:
    """Description of a call for error messages."""

    function: str  # its name
    arguments: tuple[str, ...] = ()  # a short text for each
    is_call: bool = True  # false for an activity without arguments, such as "starting"
    # Tells where a rank is in a call of several parts; None for a call of one.
    where: Callable[[int], str] | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        """Shows the call in Python notation."""
        if not self.is_call:
            return self.function
        return f"{self.function}({', '.join(self.arguments)})"

    @property
    def when(self) -> str:
        """The time of the call, in words that follow an event."""
        return f"during {self}" if self.is_call else f"while {self}"

    def places(self, ranks: Iterable[int]) -> dict[int, str]:
        """Returns where ranks are in the call; nothing for a call of one part."""
        if self.where is None:
            return {}
        return {rank: self.where(rank) for rank in ranks}


def calling() -> CallInfo:
    """Returns the script's call: the outermost public function of the package on the stack."""
    name = "a call"
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # as the warnings module does
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        if frame.f_code.co_name == "__call__":
            name = str(getattr(frame.f_locals.get("self"), "name", name))
        elif not frame.f_code.co_name.startswith("_"):
            name = frame.f_code.co_name
        frame = frame.f_back
    return CallInfo(name)


JOB_IS_OVER = "MPI does not go on without a machine: save what is needed, and start the job again."


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a rank."""

    rank: int
    pid: int
    exitcode: (
        int | None
        # minus the signal number if a signal ended the rank; None if another part of the script
        # reaped it
    )
    host: str = ""  # name of its machine, if there are several
    with_machine: bool = False  # whether all of that is lost

    def __str__(self) -> str:
        """Describes the end in words."""
        where = f" on {self.host}" if self.host else ""
        return f"rank {self.rank} (pid {self.pid}{where}) {how_it_ended(self.exitcode)}"


def how_it_ended(exitcode: int | None) -> str:
    if exitcode is None:
        return "ended (exit status unknown: it was reaped elsewhere)"
    if exitcode < 0:
        try:
            number = signal.Signals(-exitcode)
        except ValueError:
            return f"was killed by signal {-exitcode} (a real-time signal)"
        return f"was killed by {number.name} ({_SIGNALS.get(number, signal.strsignal(number))})"
    return f"exited with code {exitcode} (something called os._exit, or a library called exit)"


def rank_died(
    reason: str,
    death: Death,
    info: CallInfo,
    stack: str,
    stderr: str,
    *,
    starts_again: bool = False,
) -> RankDied:
    """Returns the error to raise after the death of a rank or of its device, with the traces
    from `Processes.last_words`.
    """
    way_out = "The next call starts them again." if starts_again else "Call fork() to start again."
    if death.with_machine:
        way_out = JOB_IS_OVER
    lines = [f"{reason}. All ranks have been terminated; every Data keeps its contents. {way_out}"]
    if stack:
        lines += [f"--- stack of rank {death.rank}, innermost frame first ---", stack]
    stderr = "\n".join(stderr.rstrip().splitlines()[-LINES_TOLD:])
    if stderr:
        lines += [f"--- last stderr output of rank {death.rank} ---", stderr]
    return RankDied(
        "\n".join(lines),
        rank=death.rank,
        pid=death.pid,
        exitcode=death.exitcode,
        function=info.function,
        arguments=info.arguments,
        stack=stack,
        stderr=stderr,
    )


def whereabouts(stacks: Mapping[int, str], places: Mapping[int, str]) -> str:
    """Formats the stacks of ranks and their places in the call; groups ranks at the same place."""
    texts: dict[str, list[str]] = {}
    for rank, text in sorted(stacks.items()):
        located = f"  {places[rank]}\n{text}" if rank in places else text
        texts.setdefault(located, []).append(str(rank))
    return "\n".join(
        f"--- rank {', '.join(ranks)}, innermost frame first ---\n{text}"
        for text, ranks in texts.items()
    )


def cause_of(failed: Failed) -> BaseException | None:
    if failed.cause is None:
        return None
    try:
        error = channel.unpack_known(failed.cause)
    except (Exception, SystemExit):  # noqa: BLE001  # its class does not unpickle in this process
        return None
    return error if isinstance(error, BaseException) else None


def rank_error(info: CallInfo, failures: Sequence[tuple[int, Failed]]) -> SynkError:
    """Returns the error to raise: the `SynkError` that all failed ranks raised, or a `RankError`
    for other exceptions.
    """
    cause = cause_of(failures[0][1])
    if isinstance(cause, SynkError) and all(
        item.type_name == type(cause).__qualname__ for _, item in failures
    ):
        cause.add_note(f"raised on rank {', '.join(str(rank) for rank, _ in failures)} in {info}")
        return cause
    rank_failures = tuple(
        RankFailure(rank, item.type_name, item.message, item.traceback) for rank, item in failures
    )
    error = RankError(info.function, info.arguments, rank_failures)
    error.__cause__ = cause
    return error
