"""Statistics of a world: counters kept while it runs, and the report built from them on request.

A call updates two counters here; its time is measured in the compiled wait. Everything else is
counted with messages, which are slow anyway, or read from `/proc` on request.
"""

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from synknumba import _html
from synknumba._types import size_text


@dataclass(slots=True)
class Tally:
    """Counters of a running world. Times are in nanoseconds, by `time.monotonic_ns`."""

    calls: int = 0
    scattered_bytes: int = 0
    plans: int = 0
    opened: int = 0
    closed: int = 0  # time; 0 while the world is open
    starting: int = 0
    preparing: int = 0
    working: int = 0
    rounds: int = 0  # by ranks that have ended and were started again, as for the next
    dropped_bytes: int = 0
    network_bytes: int = 0

    def go_on(self, rounds: int, worked: int, dropped_bytes: int, network_bytes: int) -> None:
        """Adds what `told` gets for ranks that have ended, so that the counters go on."""
        self.rounds += rounds
        self.working += worked
        self.dropped_bytes += dropped_bytes
        self.network_bytes += network_bytes
        self.closed = 0

    def told(
        self, rounds: int, worked: int, memory: "Memory", dropped_bytes: int, network_bytes: int = 0
    ) -> "Statistics":
        """Builds the report.

        Args:
            rounds: number of rounds of the present ranks.
            worked: total nanoseconds of those that ended within the compiled wait.
            memory: memory in use.
            dropped_bytes: bytes of their output that were dropped.
            network_bytes: bytes of rows between their machines.
        """
        end = self.closed or time.monotonic_ns()
        times = (self.starting, self.preparing, self.working + worked, end - self.opened)
        phases = Phases(*(nanoseconds / 1e9 for nanoseconds in times))
        rounds, dropped = self.rounds + rounds, self.dropped_bytes + dropped_bytes
        network = self.network_bytes + network_bytes
        return Statistics(
            self.calls, rounds, self.plans, self.scattered_bytes, phases, memory, dropped, network
        )


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds that a world has spent in each phase.

    Attributes:
        starting: from `fork()` until every rank has opened its device.
        preparing: messages to the ranks: sending and compiling functions; mapping, allocating and
            freeing memory.
        working: calls and collectives, from the ring of the doorbell until the last rank has
            answered or the call has failed; of submitted calls, until the script has noticed that.
        open: total time since `fork()`, until the end if the world is closed, with the time between
            the death of a rank and the call that starts the ranks again. Time in none of the other
            phases was spent in the script, including the preparation of arguments and the
            combination of results.
    """

    starting: float
    preparing: float
    working: float
    open: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory in use, in bytes. For a closed world: `shared` at its end, and empty tuples.

    Attributes:
        shared: all segments created by the script: `Data`, results, and those of the world.
        ranks: private host memory of each rank, excluding memory shared with the script; None if
            unknown.
        devices: GPU memory allocated by each rank: variables, buffers and CuPy's memory pool; None
            on the CPU.
        devices_free: free memory of each rank's GPU; None on the CPU.
    """

    shared: int
    ranks: tuple[int | None, ...]
    devices: tuple[int | None, ...]
    devices_free: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of a world since `fork()`.

    Attributes:
        calls: number of calls of functions and kernels, including `as_serial` and calls that failed
            on the ranks.
        rounds: number of rounds: calls, collectives, messages.
        plans: number of distinct calls, collectives and transfers planned and sent to the ranks. If
            it grows with the number of calls, calls are not repeated: arguments have ever new
            shapes, or functions are defined anew.
        scattered_bytes: bytes passed to the ranks by calls: each rank's rows of sharded arrays, and
            broadcast arrays once per rank. On the CPU none of them are copied; on GPUs, rows of
            frozen data already there are not copied.
        seconds: time spent, by phase.
        memory: memory in use; for a closed world, the shared memory at its end.
        dropped_bytes: bytes that ranks wrote to stderr, and with `prefix_output` to stdout, and
            that could not be passed on: the reader had closed, or read nothing for a second after
            the world's end, or the output process was killed.
        network_bytes: bytes of rows, values and large results that went to other machines, or came
            from there.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> @synk.function(outputs="sum")
        ... def total(x):
        ...     return x.sum()
        >>> with synk.fork(2, device="cpu") as world:
        ...     totals = [total(np.ones(10)) for _ in range(5)]
        ...     statistics = world.statistics()
        >>> statistics.calls, statistics.plans
        (5, 1)
    """

    calls: int
    rounds: int
    plans: int
    scattered_bytes: int
    seconds: Phases
    memory: Memory
    dropped_bytes: int = 0
    network_bytes: int = 0

    def __str__(self) -> str:
        """Formats the statistics in a few lines."""
        seconds, memory = self.seconds, self.memory
        per_rank = ", ".join(map(size_text, memory.ranks))
        lines = [
            f"{self.calls:,} calls in {self.rounds:,} rounds, by {self.plans:,} plans",
            f"{size_text(self.scattered_bytes)} scattered",
            f"{seconds.open:.3f} s open: {seconds.starting:.3f} s starting, "
            f"{seconds.preparing:.3f} s preparing, {seconds.working:.3f} s working",
            f"{size_text(memory.shared)} of shared memory; each rank's own: {per_rank or 'ended'}",
        ]
        if any(held is not None for held in memory.devices):
            pairs = zip(memory.devices, memory.devices_free, strict=True)
            texts = [f"{size_text(held)} ({size_text(free)} free)" for held, free in pairs]
            lines.append(f"on GPUs: {', '.join(texts)}")
        if self.network_bytes:
            lines.append(f"{size_text(self.network_bytes)} to other machines and back")
        if self.dropped_bytes:
            lines.append(
                f"{size_text(self.dropped_bytes)} of the ranks' output were "
                f"dropped, as nothing read them"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str | None:
        """Shows the statistics in a notebook, with bars for time and memory."""
        return _html.of_statistics(self)


def own_memory(pids: Sequence[int]) -> tuple[int | None, ...]:
    """Returns the private memory of each process, in bytes; None if unknown."""
    return tuple(map(_own_memory, pids))


def _own_memory(pid: int) -> int | None:
    with suppress(OSError):
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        return 1024 * sum(
            map(int, re.findall(r"^Private_(?:Clean|Dirty):\s+(\d+) kB", text, re.MULTILINE))
        )
    return None
