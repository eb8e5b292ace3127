"""Kills child processes and waits for them, with a time limit."""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

GIVE_UP_SECONDS = (
    60.0  # the driver takes seconds to free hundreds of GB of page-locked memory and a GPU's memory
)
TRACED_SECONDS = 3.0

_late: set[int] = set()  # killed, but not yet seen to have ended


def end_child(pid: int, seconds: float = GIVE_UP_SECONDS) -> None:
    """Kills a child that is still running, and waits for it as `reap` does."""
    if not has_ended(pid):
        kill(pid)
        reap([pid], seconds)


def kill(pid: int) -> bool:
    """Sends SIGKILL to a child and the processes of its group. Returns false if the script has
    changed its user and may not.
    """
    try:
        _end_group(pid)
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:  # the child has just ended, and the script ignores SIGCHLD
        return True
    except PermissionError:
        return False
    return True


def _end_group(pid: int) -> None:
    """Kills the processes that a rank has started. Their group has its number, which stays its
    own until it is reaped.
    """
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def reap(
    pids: Iterable[int], seconds: float = GIVE_UP_SECONDS, traced_seconds: float = TRACED_SECONDS
) -> None:
    """Waits for children that were sent SIGKILL, and polls those that earlier calls gave up on.

    The end of a killed process can be delayed. A process traced by a debugger is not reported to
    its parent until the debugger detaches, which may be never, so `traced_seconds` is the time
    limit once only traced children remain; `seconds` is that for all children together. Children
    that have not ended in time are polled again by the next call.
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
        remaining = mine & _late
        if not remaining or waited >= seconds:
            return
        if waited >= traced_seconds and all(map(_is_traced, remaining)):
            return
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)


def has_ended(pid: int) -> bool:
    """Returns whether a child has ended. If so, ends the processes of its group, and reaps it."""
    return exit_status(pid) is not None


def lives(pid: int) -> bool:
    """Returns whether a child still runs, and reaps nothing."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


def exit_status(pid: int) -> tuple[int | None] | None:
    """Returns None for a child that still runs. Else ends the processes of its group, reaps it, and
    returns its exit code.

    The code, as of `os.waitstatus_to_exitcode`, is None if the child was reaped elsewhere: the
    script ignores SIGCHLD, or waits for any child.
    """
    try:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        with suppress(PermissionError):
            _end_group(pid)
        return (os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]),)
    except ChildProcessError:
        return (None,)


def has_stopped(pid: int) -> bool:
    """Returns whether a signal has stopped a child."""
    try:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def was_stopped(pid: int) -> bool:
    """Returns whether a signal has stopped a child or let it go on; tells each once."""
    try:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG) is not None
    except ChildProcessError:
        return False


def _is_traced(pid: int) -> bool:
    return status(pid).get("TracerPid", "0") != "0"


def status(pid: int) -> dict[str, str]:
    """Returns the fields of /proc/PID/status; none if the process has ended. Without /proc, the
    state of a child in words.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        if os.path.exists("/proc/self") or not lives(pid):
            return {}
        return {"State": "unknown, since /proc is not mounted"}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


os.register_at_fork(after_in_child=_late.clear)
