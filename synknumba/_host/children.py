"""Kills child processes and waits for them, with a time limit."""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

GIVE_UP_SECONDS = 60.0  # the driver takes seconds to free hundreds of GB of page-locked memory and a GPU's memory
TRACED_SECONDS = 3.0

_late: set[int] = set()  # killed, but not yet seen to have ended


def end_child(pid: int, seconds: float = GIVE_UP_SECONDS) -> None:
    """Kills a child that is still running, and waits for it as `reap` does."""
    if not has_ended(pid):
        with suppress(ProcessLookupError):  # the child has just ended, and the script ignores SIGCHLD
            os.kill(pid, signal.SIGKILL)
        reap([pid], seconds)


def reap(pids: Iterable[int], seconds: float = GIVE_UP_SECONDS, traced_seconds: float = TRACED_SECONDS) -> None:
    """Waits for children that were sent SIGKILL, and polls those that earlier calls gave up on.

    The end of a killed process can be delayed. A process traced by a debugger is not reported to its parent until the debugger
    detaches, which may be never, so `traced_seconds` is the time limit once only traced children remain; `seconds` is that for
    all children together. Children that have not ended in time are polled again by the next call.
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
    """Returns whether a child has ended, and reaps it if so."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:  # already reaped: the script ignores SIGCHLD, or waits for any child
        return True


def _is_traced(pid: int) -> bool:
    return status(pid).get("TracerPid", "0") != "0"


def status(pid: int) -> dict[str, str]:
    """Returns the fields of /proc/PID/status; none if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


os.register_at_fork(after_in_child=_late.clear)
