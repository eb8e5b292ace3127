"""What is told of a call that failed: which call, which ranks, how a process ended."""

import io
import os
import pickle
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from synknumba._errors import RankError, RankFailure, SynkError
from synknumba._messages import Failed


@dataclass(frozen=True, slots=True)
class CallInfo:
    """What is told about a call when it fails."""

    function: str
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        """As it would be written."""
        return f"{self.function}({', '.join(self.arguments)})"


def how_it_ended(status: int | None) -> str:
    if status is None:
        return "ended (somebody else waited for it, so how is not known)"
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        name = signal.Signals(-code).name
        hint = ", possibly by the kernel for want of memory" if name == "SIGKILL" else ""
        return f"was killed by {name}{hint}"
    return f"exited with code {code}"


# Their errors ask the driver for a text when they are made; with CUDA initialised the coordinator could not fork again.
_GPU_LIBRARIES = {"cupy", "cupy_backends", "cuda"}


class _CauseReader(pickle.Unpickler):
    """Knows the classes of what is imported already: a script that names another class has not imported it either."""

    def find_class(self, module: str, name: str) -> Any:
        if module not in sys.modules or module.partition(".")[0] in _GPU_LIBRARIES:
            message = f"{module}.{name} stays on the rank"
            raise pickle.UnpicklingError(message)
        return super().find_class(module, name)


def cause_of(failed: Failed) -> BaseException | None:
    if failed.cause is None:
        return None
    try:
        error = _CauseReader(io.BytesIO(failed.cause)).load()
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


def device_lost(rank: int, failed: Failed, info: CallInfo) -> str:
    """What is told of a rank whose device is of no use any more."""
    reason = failed.message.strip().splitlines() or [""]
    return f"the GPU of rank {rank} was lost by {failed.type_name}: {reason[0]}, during {info}"


def unreadable(error: Exception) -> Failed:
    """News that was read whole but does not unpickle in this process."""
    message = f"what it returned does not unpickle in the script: {error}"
    return Failed(type(error).__qualname__, message, message, None)
