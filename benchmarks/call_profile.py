"""Where the microseconds of one call go: from the script to the ranks, on the device, and back.

    python benchmarks/call_profile.py
    python benchmarks/call_profile.py --device cuda --ranks 1 2 4

A call of a kernel with a scalar sum, rows resident, is timed at eight points by the system's clock, which all processes share.
Each point costs about 0.1 µs itself. Of several ranks the slowest counts at each point.
"""

import mmap
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from _common import arguments, print_table, save
from call_overhead import kernel_sum

import synknumba as synk
from synknumba import _rank_state, _repetition, _rounds, _routine

CALLS = 20_000
POINTS = 4  # of a rank, and of the coordinator

clock = time.perf_counter_ns


@dataclass(frozen=True, slots=True)
class Step:
    """One part of a call, in microseconds; the ratio is that of the medians to the whole call's."""

    device: str
    ranks: int
    step: str
    median: float
    p99: float
    ratio: float


def install(points: Any) -> tuple[Any, ...]:
    """Has ranks and coordinator note the time: before the fork. Returns what was there."""
    run_round, call_routine, repeat = _rounds.Rounds.run, _routine.Routine.__call__, _repetition.Repetition.__call__

    def timed_round(self: Any, *args: Any) -> None:
        points[-1, 0] = clock()
        run_round(self, *args)
        points[-1, 1] = clock()

    def timed_routine(self: Any) -> Any:
        mine = points[self.place.rank]
        mine[0] = clock()
        news = call_routine(self)
        mine[3] = clock()
        return news

    def timed_repetition(self: Any) -> None:
        mine = points[_rank_state.current_rank()]
        mine[1] = clock()
        repeat(self)
        mine[2] = clock()

    _rounds.Rounds.run = timed_round
    _routine.Routine.__call__ = timed_routine
    _repetition.Repetition.__call__ = timed_repetition
    return run_round, call_routine, repeat


STEPS = (
    "script: finds the plan",
    "doorbell: until the last rank has it",
    "rank: compares the values",
    "device: launch, work, result on the host",
    "rank: returns",
    "arrival: until the script has it",
    "script: adds up",
)


def measure(ranks: int, device: str) -> list[Step]:
    """The steps of a call on so many ranks."""
    memory = mmap.mmap(-1, (ranks + 1) * POINTS * 8)  # shared with the ranks
    points = np.frombuffer(memory, np.int64).reshape(ranks + 1, POINTS)
    originals = install(points)
    taken = np.empty((CALLS, len(STEPS) + 1))
    with synk.fork(ranks, device=device):
        x = synk.data(np.arange(100.0))
        x.freeze()
        for _ in range(1000):
            assert kernel_sum(x) == 4950
        for call in taken:
            start = clock()
            kernel_sum(x)
            end = clock()
            last = points[:-1].max(axis=0)
            call[:] = start, points[-1, 0], *last, points[-1, 1], end
    _rounds.Rounds.run, _routine.Routine.__call__, _repetition.Repetition.__call__ = originals
    parts = np.diff(taken, axis=1).T / 1e3
    whole = (taken[:, -1] - taken[:, 0]) / 1e3
    median = np.median(whole)
    return [
        Step(device, ranks, step, float(np.median(part)), float(np.percentile(part, 99)), float(np.median(part) / median))
        for step, part in (*zip(STEPS, parts, strict=True), ("all", whole))
    ]


def main() -> None:
    """Measures, prints, and saves where asked to."""
    args = arguments(__doc__).parse_args()
    results = [step for ranks in args.ranks or [1] for step in measure(ranks, args.device)]
    print(f"one call with a sum, {args.device}, microseconds")
    cells = [[r.step, str(r.ranks), f"{r.median:.2f}", f"{r.p99:.2f}", f"{r.ratio:.2f}"] for r in results]
    print_table(["", "ranks", "median", "p99", "ratio"], cells)
    save(args.json, "call_profile", results, {"device": args.device, "calls": CALLS})


if __name__ == "__main__":
    main()
