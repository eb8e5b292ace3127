"""Waiting for children that have been killed: not for ever."""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

GIVE_UP_SECONDS = 60.0  # a driver lets go of hundreds of GB of page-locked memory, and of a GPU's, in seconds
TRACED_SECONDS = 3.0

_late: set[int] = set()  # killed, and not yet known to have ended


def end_child(pid: int, seconds: float = GIVE_UP_SECONDS) -> None:
    """Kills a child that has not ended, and waits for it as `reap` does."""
    if not has_ended(pid):
        with suppress(ProcessLookupError):  # it has just ended, where the script ignores SIGCHLD
            os.kill(pid, signal.SIGKILL)
        reap([pid], seconds)


def reap(pids: Iterable[int], seconds: float = GIVE_UP_SECONDS, traced_seconds: float = TRACED_SECONDS) -> None:
    """Waits for processes that have been sent SIGKILL, and looks for those that were given up before.

    The end of one can be held up by others. One that a debugger traces is the debugger's until that lets go of it, which may
    be never. Such a process is looked for again when the next ones are.

    Args:
        pids: of children.
        seconds: for all together.
        traced_seconds: for those that are traced.
    """
    mine = set(pids)
    _late.update(mine)
    began = time.monotonic()
    pause = 0.0001
    while True:
        for pid in tuple(_late):
            if has_ended(pid):
                _late.discard(pid)
        waited = time.monotonic() - began
        left = mine & _late
        if not left or waited >= seconds or (waited >= traced_seconds and all(map(_is_traced, left))):
            return
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)


def has_ended(pid: int) -> bool:
    """Whether a child has ended; it is waited for then."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:  # where the script ignores SIGCHLD, or waits for any child, nobody need wait for it
        return True


def _is_traced(pid: int) -> bool:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # it has just ended
        return False
    return any(line.startswith("TracerPid:") and line.split()[1] != "0" for line in lines)


os.register_at_fork(after_in_child=_late.clear)
