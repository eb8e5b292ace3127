"""What a world has done so far: counted while it runs, and put together when somebody asks.

A call adds two numbers here; its time is taken in the compiled wait. Everything else is noted with messages, which are slow
anyway, or looked up in what the kernel says of each process.
"""

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class Tally:
    """What is counted while a world runs. Times in nanoseconds of `time.monotonic_ns`."""

    calls: int = 0
    scattered_bytes: int = 0
    plans: int = 0
    opened: int = 0
    closed: int = 0  # 0 while it is open
    starting: int = 0
    preparing: int = 0
    working: int = 0

    def told(self, rounds: int, worked: int, memory: "Memory", dropped_bytes: int) -> "Statistics":
        """All of it together.

        Args:
            rounds: so far.
            worked: nanoseconds of the rounds that were over at once.
            memory: in use.
            dropped_bytes: of what ranks have printed.
        """
        end = self.closed or time.monotonic_ns()
        times = (self.starting, self.preparing, self.working + worked, end - self.opened)
        phases = Phases(*(nanoseconds / 1e9 for nanoseconds in times))
        return Statistics(self.calls, rounds, self.plans, self.scattered_bytes, phases, memory, dropped_bytes)


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds that a world has spent.

    Attributes:
        starting: from `fork()` until every rank had its device.
        preparing: with messages to the ranks: functions sent and compiled, memory mapped, made and dropped.
        working: in calls and collectives, from the ranks' being told until the last has answered, or the call has failed.
        open: since `fork()`, in all, until the end of a world that is closed. What is in none of the others was the script's
            own, with the making of arguments and the putting together of results.
    """

    starting: float
    preparing: float
    working: float
    open: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that are in use now. Of a world that is closed only `shared` is known, from its end; the others are empty.

    Attributes:
        shared: of all segments that the script has made: `Data`, results, and the world's own.
        ranks: that each rank alone uses of the host's memory, beside what it shares with the script; None if it is not known.
        devices: that each rank has taken of its GPU, for variables, buffers and what CuPy keeps; None on the CPU.
        devices_free: that the GPU of each rank has left; likewise.
    """

    shared: int
    ranks: tuple[int | None, ...]
    devices: tuple[int | None, ...]
    devices_free: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a world has done since `fork()`.

    Attributes:
        calls: of functions and kernels, `as_serial` too, that the ranks were told to carry out, also those that failed there.
        rounds: how often the ranks were told to do something: calls, collectives, messages.
        plans: how many different calls, collectives and transfers were worked out and sent to the ranks. A number that grows
            with that of the calls says that nothing is repeated: arguments of ever new shapes, or functions made anew.
        scattered_bytes: handed to the ranks by calls: each rank's rows of what is sharded, and what is broadcast once for each.
            On the CPU nothing of it is copied, and on GPUs no rows of frozen data that are there.
        seconds: by phase.
        memory: in use now; of a closed world the shared memory at its end.
        dropped_bytes: of what ranks have written to stderr, and with `prefix_output` to stdout, that nobody took: the reader
            had closed, or took nothing for a second after the world's end.
    """

    calls: int
    rounds: int
    plans: int
    scattered_bytes: int
    seconds: Phases
    memory: Memory
    dropped_bytes: int = 0

    def __str__(self) -> str:
        """As a table."""
        seconds, memory = self.seconds, self.memory
        lines = [
            f"{self.calls:,} calls in {self.rounds:,} rounds, by {self.plans:,} plans",
            f"{_bytes(self.scattered_bytes)} scattered",
            f"{seconds.open:.3f} s open: {seconds.starting:.3f} s starting, {seconds.preparing:.3f} s preparing, "
            f"{seconds.working:.3f} s working",
            f"{_bytes(memory.shared)} of shared memory; each rank's own: {', '.join(map(_bytes, memory.ranks)) or 'ended'}",
        ]
        if any(held is not None for held in memory.devices):
            pairs = zip(memory.devices, memory.devices_free, strict=True)
            lines.append(f"on GPUs: {', '.join(f'{_bytes(held)} ({_bytes(free)} free)' for held, free in pairs)}")
        if self.dropped_bytes:
            lines.append(f"{_bytes(self.dropped_bytes)} that ranks wrote were not taken by anybody")
        return "\n".join(lines)


def _bytes(count: int | None) -> str:
    if count is None:
        return "?"
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"


def own_memory(pids: Sequence[int]) -> tuple[int | None, ...]:
    """Bytes that each process alone has in memory."""
    return tuple(map(_own_memory, pids))


def _own_memory(pid: int) -> int | None:
    with suppress(OSError):
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        return 1024 * sum(map(int, re.findall(r"^Private_(?:Clean|Dirty):\s+(\d+) kB", text, re.MULTILINE)))
    return None
