"""Where the microseconds of one call go: from the script to the ranks, on the device, and back.

    python benchmarks/call_profile.py
    python benchmarks/call_profile.py --device cuda --ranks 1 2 4

A call of a kernel with a scalar sum, rows resident, is timed at eight points by the system's clock,
which all processes share. Of several ranks the slowest counts at each point. The ranks' points are
those of the compiled loop that serves repeated calls, 25 ns each.
"""

import mmap
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from _common import arguments, print_table, save
from call_overhead import kernel_sum

import synknumba as synk
from synknumba._wire import doorbell
from synknumba._world import rounds

CALLS = 20_000
POINTS = 4  # of a rank, and of the coordinator
WIDTH = POINTS + 2  # words of each: the points, and where the system writes the time

clock = time.perf_counter_ns

BEFORE = ("script: finds the plan", "doorbell: until the last rank has it", "rank: finds the call")
AFTER = ("arrival: until the script has it", "script: adds up")
STEPS = {
    "cpu": (*BEFORE, "device: work", "rank: sees no mail to wait for", *AFTER),
    "cuda": (*BEFORE, "rank: launches", "device: work, until the results are on the host", *AFTER),
}


@dataclass(frozen=True, slots=True)
class Step:
    """One part of a call, in microseconds; the ratio is that of the medians to the whole call's."""

    device: str
    ranks: int
    step: str
    median: float
    p99: float
    ratio: float


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Something else under a name."""
    usual = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, usual)


@contextmanager
def noting(points: Any) -> Iterator[None]:
    """Has coordinator and ranks that are forked meanwhile note the time."""
    run_round = rounds.Rounds.run

    def timed_round(self: Any, *args: Any) -> None:
        points[-1, 0] = clock()
        run_round(self, *args)
        points[-1, 1] = clock()

    with ExitStack() as stack:
        stack.enter_context(replaced(rounds.Rounds, "run", timed_round))
        stack.enter_context(replaced(doorbell, "serve", timed_serve(points)))
        yield


def timed_serve(points: Any) -> Any:
    """`doorbell.serve`, recording the time at each of its points."""
    start = points.ctypes.data

    @numba.njit
    def note(rank, point):
        line = start + 8 * WIDTH * rank
        scratch = line + 8 * POINTS
        doorbell.clock_gettime(doorbell.MONOTONIC, scratch)
        now = doorbell.load_acquire(scratch, 0) * 1_000_000_000 + doorbell.load_acquire(scratch, 1)
        doorbell.store_release(line, point, now)

    @numba.njit(["int64(int64, int64, int64)"], nogil=True)
    def repeat(table, number, rank):
        note(rank, 0)
        again = doorbell.find(table, number)
        if again == 0:
            return 0
        if doorbell.other_scalars(again) != 0:
            doorbell.store_release(table, doorbell.REWRITTEN, 1)
            if doorbell.rewrite(again) != 0:
                return 0
        note(rank, 1)
        relaunch = doorbell.load_acquire(again, doorbell.RELAUNCH)
        code = doorbell.launch(relaunch)
        if code == doorbell.UNDER_WAY:
            doorbell.store_release(table, doorbell.LATE, again)
            return doorbell.UNDER_WAY
        if code != 0:
            return 0
        note(rank, 2)
        if doorbell.take(relaunch) == 0:
            doorbell.store_release(table, doorbell.LATE, again)
            return doorbell.UNDER_WAY
        note(rank, 3)
        return 1

    @numba.njit(["int64(int64, int64, int64, int64, int64, int64, int64)"], nogil=True)
    def serve(base, world_size, rank, sequence, pauses, yields, table):
        served, began = 0, doorbell.clock()
        number = doorbell.arrive(base, world_size, rank, sequence, 0, pauses, yields)
        while doorbell.clock() - began < doorbell.SERVE_MS:
            done = repeat(table, number, rank)
            if done != 1:
                number = doorbell.UNDER_WAY if done == doorbell.UNDER_WAY else number
                break
            served += 1
            number = doorbell.arrive(base, world_size, rank, sequence + served, 0, pauses, yields)
        doorbell.store_release(table, doorbell.SERVED, served)
        return number

    return serve


def measure(ranks: int, device: str) -> list[Step]:
    """The steps of a call on so many ranks."""
    memory = mmap.mmap(-1, (ranks + 1) * WIDTH * 8)  # shared with the ranks
    points = np.frombuffer(memory, np.int64).reshape(ranks + 1, WIDTH)[:, :POINTS]
    taken = np.empty((CALLS, POINTS + 4), np.int64)
    with noting(points), synk.fork(ranks, device=device):
        x = synk.data(np.arange(100.0))
        x.freeze()
        for _ in range(1000):
            assert kernel_sum(x) == 4950
        for call in taken:
            start = clock()
            kernel_sum(x)
            end = clock()
            call[:] = start, points[-1, 0], *points[:-1].max(axis=0), points[-1, 1], end
    # now and then a rank goes back to Python, and its points are those of an earlier call
    follow = np.diff(taken, axis=1) >= 0
    taken = taken[follow.all(axis=1)]
    assert len(taken) > 0.95 * CALLS
    parts = np.diff(taken, axis=1).T / 1e3
    whole = (taken[:, -1] - taken[:, 0]) / 1e3
    median = np.median(whole)
    return [
        Step(
            device,
            ranks,
            step,
            float(np.median(part)),
            float(np.percentile(part, 99)),
            float(np.median(part) / median),
        )
        for step, part in (*zip(STEPS[device], parts, strict=True), ("all", whole))
    ]


def main() -> None:
    """Measures, prints, and saves where asked to."""
    args = arguments(__doc__).parse_args()
    results = [step for ranks in args.ranks or [1] for step in measure(ranks, args.device)]
    print(f"one call with a sum, {args.device}, microseconds")
    cells = [
        [r.step, str(r.ranks), f"{r.median:.2f}", f"{r.p99:.2f}", f"{r.ratio:.2f}"] for r in results
    ]
    print_table(["", "ranks", "median", "p99", "ratio"], cells)
    save(args.json, "call_profile", results, {"device": args.device, "calls": CALLS})


if __name__ == "__main__":
    main()
