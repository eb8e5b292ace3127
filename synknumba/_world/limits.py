"""Limits: how many ranks this machine has room for; the time limit of a call; system calls that
a sandbox refuses.
"""

import errno
import os
import resource
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from numbers import Real
from operator import itemgetter
from pathlib import Path
from typing import cast

from synknumba._errors import SANDBOX, PartitionError, WorldError
from synknumba._types import shown

LONGEST = 10**9  # seconds, 31 years: no limit, as what waits takes floats
ALWAYS = 64  # so few ranks are started without a look at the limits; what fails then says so itself

# What a rank needs at least: descriptors of the coordinator's while it starts (a socket, a
# lifeline, a file for stacks, pipes for stdout and stderr), and bytes of its own on a CPU core
# before its first call (7.4 MB, by smaps_rollup).
DESCRIPTORS = 6
_MEMORY = 6 << 20


def as_timeout(value: object) -> float | None:
    """Returns a time limit in seconds, or None; raises `PartitionError` if the value is neither."""
    if value is None:
        return None
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    seconds = cast("float", value)
    if not is_number or not seconds > 0:
        raise PartitionError(
            f"timeout must be a positive number of seconds or None, got {shown(value)}"
        )
    if isinstance(seconds, int) and seconds >= LONGEST:
        return None
    return seconds


def check_room(world_size: int) -> None:
    """Raises `PartitionError` if so many ranks certainly cannot be started."""
    if world_size <= ALWAYS:
        return
    room = dict(_room())
    most = min(room.values(), default=world_size)
    if world_size > most:
        by_room = sorted(room.items(), key=itemgetter(1))
        limits = "; ".join(f"{count} by {what}" for what, count in by_room)
        raise PartitionError(
            f"world_size={shown(world_size)} is more than this machine has room for: {limits}. "
            f"Pass at most {max(most, 1)}; a rank per core, the default, is the fastest on CPU "
            "cores"
        )


def check_system_calls() -> None:
    """Raises `WorldError` if a sandbox refuses a system call without which no world can be."""
    for call, make in _NEEDED.items():
        try:
            make()
        except OSError as error:
            if error.errno in REFUSED:
                raise WorldError(
                    f"fork() needs {call}, which failed: {type(error).__name__}: {error}. {SANDBOX}"
                ) from error


def _open_pipe() -> None:
    for end in os.pipe():
        os.close(end)


def _send_descriptor() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(ours, [b"-"], [theirs.fileno()])


REFUSED = {errno.EPERM, errno.EACCES, errno.ENOSYS}  # what filters of sandboxes answer

_NEEDED: dict[str, Callable[[], object]] = {
    "os.pipe() (pipe2)": _open_pipe,
    "socket.socketpair() and sendmsg": _send_descriptor,
    "select.poll()": lambda: select.poll().poll(0),
    # ECHILD where it works
    "os.waitid()": lambda: os.waitid(os.P_PID, os.getpid(), os.WEXITED | os.WNOHANG | os.WNOWAIT),
}


def _room() -> Iterator[tuple[str, int]]:
    """Yields the number of ranks that each limit has room for, with what the limit is called."""
    hard = _hard_limit(resource.RLIMIT_NOFILE)
    if hard is not None:
        free = hard - _entries("/proc/self/fd")
        yield (
            f"open files ({hard}, `ulimit -Hn`; a rank needs {DESCRIPTORS})",
            max(0, free) // DESCRIPTORS,
        )
    processes = [(count - used, f"{name} ({count})") for name, count, used in _process_limits()]
    if processes:
        free, what = min(processes, key=itemgetter(0))
        yield f"processes, {what}", max(0, free)
    memory = min(_memory_limits(), default=None)
    if memory is not None:
        yield (
            f"free memory ({memory >> 20} MiB; a rank needs {_MEMORY >> 20})",
            max(0, memory) // _MEMORY,
        )


def _process_limits() -> Iterator[tuple[str, int, int]]:
    """Yields name, limit and present use of each limit on processes."""
    running = _entries("/proc")
    for name in ("pid_max", "threads-max"):
        count = _number(f"/proc/sys/kernel/{name}")
        if count is not None:
            yield f"/proc/sys/kernel/{name}", count, running
    hard = _hard_limit(resource.RLIMIT_NPROC)
    if hard is not None and os.geteuid() != 0:  # root has no such limit
        yield "`ulimit -Hu`", hard, 0
    for folder in _cgroup("pids"):
        count, used = _number(f"{folder}/pids.max"), _number(f"{folder}/pids.current")
        if count is not None:
            yield f"{folder}/pids.max", count, used or 0


def _hard_limit(which: int) -> int | None:
    """Returns a hard limit of this process; None if there is none, or a sandbox refuses prlimit."""
    with suppress(OSError):
        hard = resource.getrlimit(which)[1]
        return None if hard == resource.RLIM_INFINITY else hard
    return None


def _entries(folder: str) -> int:
    """Returns the number of numeric entries of a folder of /proc; 0 where /proc is not mounted."""
    with suppress(OSError):
        return sum(name.isdigit() for name in os.listdir(folder))
    return 0


def _memory_limits() -> Iterator[int]:
    """Yields free bytes: of the machine, and of this process's cgroup."""
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) << 10
    for folder in _cgroup("memory"):
        for limit, used in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            most, now = _number(f"{folder}/{limit}"), _number(f"{folder}/{used}")
            if most is not None and now is not None:
                cached = _field(f"{folder}/memory.stat", "inactive_file")  # freed when it is needed
                yield most - now + cached


def _cgroup(controller: str) -> Iterator[str]:
    """Yields the folders that may have this process's limits: a container's, and where version 2
    or 1 puts the process.
    """
    yield "/sys/fs/cgroup"
    yield f"/sys/fs/cgroup/{controller}"
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if path != "/" and {"", controller}.intersection(controllers.split(",")):
                yield os.path.join("/sys/fs/cgroup", controllers, path.lstrip("/"))


def _number(path: str) -> int | None:
    """Returns the number in a file; None without one, as for "max"."""
    with suppress(OSError, ValueError):
        return int(Path(path).read_text())
    return None


def _field(path: str, name: str) -> int:
    with suppress(OSError, ValueError):
        for line in Path(path).read_text().splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    return 0
