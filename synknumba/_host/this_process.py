"""The rank of this process, if it is one; to refuse calls on ranks, and to end their children."""

import ctypes
import os
import signal
import traceback
from dataclasses import dataclass

from synknumba._host.inherited import flush

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15  # prctl.h


@dataclass(slots=True)
class RankState:
    """Rank of this process, and the number of ranks; None in the coordinator."""

    rank: int | None = None
    world_size: int | None = None
    ranks_here: int | None = None  # on this machine
    forked: bool = False  # whether code on the rank has made this process by os.fork()


_state = RankState()


def enter(rank: int, world_size: int, ranks_here: int | None = None) -> None:
    """Marks this process as a rank of so many; `ranks_here`, default all, are on this machine."""
    _state.rank, _state.world_size = rank, world_size
    _state.ranks_here = world_size if ranks_here is None else ranks_here
    os.register_at_fork(after_in_child=_note_fork)


def _note_fork() -> None:
    _state.forked = True


def current_rank() -> int | None:
    """Returns the rank of this process; None in the coordinator."""
    return _state.rank


def ranks_known() -> int | None:
    """Returns the number of ranks of this process's world; None in the coordinator."""
    return _state.world_size


def spans_machines() -> bool:
    """Whether other ranks of this process's world are on other machines."""
    return _state.ranks_here != _state.world_size


def end_with_parent(*, wanted: bool = True) -> None:
    """Lets the kernel kill this process when the thread that forked it ends, or no longer."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL if wanted else 0, 0, 0, 0)


def set_name(name: bytes) -> None:
    """Sets the name of this process, of up to 15 bytes, that `ps` shows."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name, 0, 0, 0)


def end_child(error: BaseException | None = None) -> None:
    """Ends the process if it is a child that comes back from the function that forked it: only
    the rank itself answers.
    """
    if not _state.forked:
        return
    if error is not None:
        traceback.print_exception(error)
    flush()
    os._exit(int(error is not None))
