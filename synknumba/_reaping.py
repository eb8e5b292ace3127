"""Waiting for children that have been killed: not for ever."""

import os
import time
from collections.abc import Iterable

GIVE_UP_SECONDS = 3.0  # freeing the memory of a large process takes part of a second

_late: set[int] = set()  # killed, and not yet known to have ended


def reap(pids: Iterable[int], seconds: float = GIVE_UP_SECONDS) -> None:
    """Waits for processes that have been sent SIGKILL, and for those that were given up before; for all together so long.

    The end of one can be held up by others: by a debugger, whose process it is until that lets go of it, or by a driver that
    the kernel waits for. Such a process is waited for when the next ones are.
    """
    mine = set(pids)
    _late.update(mine)
    deadline = time.monotonic() + seconds
    pause = 0.0001
    while True:
        for pid in tuple(_late):
            if has_ended(pid):
                _late.discard(pid)
        if mine.isdisjoint(_late) or time.monotonic() >= deadline:
            return
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)


def has_ended(pid: int) -> bool:
    """Whether a child has ended; it is waited for then."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:  # where the script ignores SIGCHLD, or waits for any child, nobody need wait for it
        return True


os.register_at_fork(after_in_child=_late.clear)
