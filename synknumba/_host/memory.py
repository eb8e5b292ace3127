"""How much memory this process may still take: what the machine has available, and what its control
groups allow.

A file system such as `/dev/shm` has a limit, and says "no space" beyond it. Memory files
(`memfd_create`) have none: whoever reserves more than there is meets the kernel's out-of-memory
killer. So free memory is looked up before.

A container's limit is that of a control group, version 1 or 2. Which directories hold it depends on
the version, on what is mounted, and on whether the container sees the groups above its own:

    /proc/self/cgroup          directories, from the process's group up to the mount; missing ones are skipped
    0::/a/b                    /sys/fs/cgroup[/unified]/a/b, …/a, …       memory.max, memory.current
    4:memory:/docker/1f2e      /sys/fs/cgroup/memory/docker/1f2e, …       memory.limit_in_bytes, memory.usage_in_bytes
"""  # noqa: E501

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_UNKNOWN = 1 << 62  # bytes: no limit


class Available(NamedTuple):
    """Bytes of memory that this process may still take, and what limits them."""

    nbytes: int
    limit: str  # as the subject of a sentence
    remedy: str


_NO_LIMIT = Available(_UNKNOWN, "the machine", "run where more memory is free")


def available(*, machine: bool = True) -> Available:
    """Returns the least of what the control groups of this process, and the machine unless it is
    left out, have left.
    """
    limits = [_of_machine()] if machine else []
    limits += _of_groups()
    return min(limits, default=_NO_LIMIT)


def _of_machine() -> Available:
    fields = _fields(_PROC / "meminfo")
    kib = fields.get("MemAvailable:")
    if kib is None:
        return _NO_LIMIT
    # shared memory can be swapped out
    return _NO_LIMIT._replace(nbytes=(kib + fields.get("SwapFree:", 0)) << 10)


def _of_groups() -> Iterator[Available]:
    with suppress(OSError):
        for line in (_PROC / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                for mount in (_GROUPS, _GROUPS / "unified"):
                    yield from _of_group(mount, path, "memory.max", "memory.current", "")
            elif "memory" in controllers.split(","):
                yield from _of_group(
                    _GROUPS / "memory",
                    path,
                    "memory.limit_in_bytes",
                    "memory.usage_in_bytes",
                    "total_",
                )


def _of_group(mount: Path, path: str, limit: str, usage: str, prefix: str) -> Iterator[Available]:
    inside = PurePosixPath(path).relative_to("/")
    for group in (mount / inside, *(mount / above for above in inside.parents)):
        # no such group in this mount, no limit file in the root, or "max"
        with suppress(OSError, ValueError):
            most = int((group / limit).read_text())
            if most >= _UNKNOWN:  # version 1 has no "max"
                continue
            stat = _fields(group / "memory.stat")
            # Usage includes pages of files that were read, which the kernel drops when it needs
            # them; not so shared memory.
            files = stat.get(f"{prefix}active_file", 0) + stat.get(f"{prefix}inactive_file", 0)
            free = max(most - int((group / usage).read_text()) + files, 0)
            yield Available(
                free,
                "the memory limit of this container (control group)",
                "raise it, as by docker run --memory=<bytes>",
            )


def _fields(path: Path) -> dict[str, int]:
    """Returns the numbers of a file with lines such as "name 123"; empty if it cannot be read."""
    with suppress(OSError, ValueError, IndexError):
        return {words[0]: int(words[1]) for words in map(str.split, path.read_text().splitlines())}
    return {}
