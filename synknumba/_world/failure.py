"""What is told of a call that failed: which call, which ranks, how a process ended, and what it left behind."""

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from synknumba._errors import RankDied, RankError, RankFailure, SynkError
from synknumba._wire import channel
from synknumba._wire.messages import Failed

LINES_TOLD = 30  # of what a rank wrote to stderr

# What a signal means where it ends a rank.
_SIGNALS = {
    signal.SIGABRT: "abort: the interpreter or a C library gave up, mostly after saying why",
    signal.SIGBUS: "bus error: memory that it had mapped could not be had",
    signal.SIGFPE: "arithmetic error in compiled code, such as an integer divided by zero",
    signal.SIGILL: "illegal instruction: code compiled for another processor, or jumped into",
    signal.SIGKILL: "possibly by the kernel for want of memory",
    signal.SIGSEGV: "segmentation fault: it used memory that is not there, or not its own",
    signal.SIGTERM: "somebody asked it to end",
}


@dataclass(frozen=True, slots=True)
class CallInfo:
    """What is told about a call when it fails.

    Attributes:
        function: its name.
        arguments: a short text for each.
        is_call: false of what only has a name, such as "starting".
    """

    function: str
    arguments: tuple[str, ...] = ()
    is_call: bool = True

    def __str__(self) -> str:
        """As it would be written."""
        if not self.is_call:
            return self.function
        return f"{self.function}({', '.join(self.arguments)})"


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a rank.

    Attributes:
        rank: that ended.
        pid: of its process.
        status: as `waitpid` tells it; None if somebody else waited for it.
    """

    rank: int
    pid: int
    status: int | None

    @property
    def exitcode(self) -> int | None:
        """The exit code; of a signal minus its number; None if it is not known."""
        return None if self.status is None else os.waitstatus_to_exitcode(self.status)

    def __str__(self) -> str:
        """In words."""
        return f"rank {self.rank} (pid {self.pid}) {how_it_ended(self.exitcode)}"


@dataclass(frozen=True, slots=True)
class LastWords:
    """What a rank has left behind.

    Attributes:
        stack: where it was when it crashed, innermost frame first; empty if it did not, or could not tell.
        stderr: what it wrote there last.
    """

    stack: str = ""
    stderr: str = ""


def how_it_ended(exitcode: int | None) -> str:
    if exitcode is None:
        return "ended (somebody else waited for it, so how is not known)"
    if exitcode < 0:
        number = -exitcode
        meaning = _SIGNALS.get(signal.Signals(number), signal.strsignal(number)) if number in _KNOWN else "a real-time signal"
        name = signal.Signals(number).name if number in _KNOWN else f"signal {number}"
        return f"was killed by {name} ({meaning})"
    return f"exited with code {exitcode} (something on it called os._exit, or a library's exit)"


_KNOWN = {int(number) for number in signal.Signals}


def rank_died(reason: str, death: Death, info: CallInfo, words: LastWords) -> RankDied:
    """What to raise when a rank has died, or its device."""
    lines = [f"{reason}. All ranks have been ended; Data keep their contents. Call fork() to start again."]
    if words.stack:
        lines += [f"--- where rank {death.rank} was, the innermost frame first ---", words.stack]
    stderr = "\n".join(words.stderr.rstrip().splitlines()[-LINES_TOLD:])
    if stderr:
        lines += [f"--- what rank {death.rank} wrote to stderr last ---", stderr]
    return RankDied(
        "\n".join(lines),
        rank=death.rank,
        pid=death.pid,
        exitcode=death.exitcode,
        function=info.function,
        arguments=info.arguments,
        stack=words.stack,
        stderr=stderr,
    )


def whereabouts(stacks: Mapping[int, str]) -> str:
    """Where ranks are, those at the same place together."""
    texts: dict[str, list[str]] = {}
    for rank, text in sorted(stacks.items()):
        texts.setdefault(text, []).append(str(rank))
    return "\n".join(f"--- rank {', '.join(ranks)}, the innermost frame first ---\n{text}" for text, ranks in texts.items())


def cause_of(failed: Failed) -> BaseException | None:
    if failed.cause is None:
        return None
    try:
        error = channel.unpack_known(failed.cause)
    except Exception:  # noqa: BLE001  # an exception class that does not unpickle here
        return None
    return error if isinstance(error, BaseException) else None


def rank_error(info: CallInfo, failures: Sequence[tuple[int, Failed]]) -> SynkError:
    """What to raise: `RankError` for the user's exceptions; our own refusals, which are about the call, as they are."""
    cause = cause_of(failures[0][1])
    if isinstance(cause, SynkError) and all(item.type_name == type(cause).__qualname__ for _, item in failures):
        cause.add_note(f"refused on rank {', '.join(str(rank) for rank, _ in failures)} in {info}")
        return cause
    told = tuple(RankFailure(rank, item.type_name, item.message, item.traceback) for rank, item in failures)
    error = RankError(info.function, info.arguments, told)
    error.__cause__ = cause
    return error


def device_lost(rank: int, failed: Failed) -> str:
    """What is told of a rank whose device is of no use any more."""
    reason = failed.message.strip().splitlines() or [""]
    return f"the GPU of rank {rank} was lost by {failed.type_name}: {reason[0]},"


def unreadable(error: Exception) -> Failed:
    """News that was read whole but does not unpickle in this process."""
    message = f"what it returned does not unpickle in the script: {error}"
    return Failed(type(error).__qualname__, message, message, None)
