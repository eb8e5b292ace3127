"""An expectation value over more and more rows: here on 1, 2, … ranks, and in a plain @njit loop in the script.

    python benchmarks/expectation.py
    python benchmarks/expectation.py --ranks 1 2 4 8 --rows 1000000 100000000
    python benchmarks/expectation.py --json benchmarks/results/cpu-2core-expectation.json

The mean of exp(−0.5·x²) over float64 rows that lie in memory already, and on the CPU are read where they lie. The call and the
loop are timed in turns, so that whatever else the machine does is in both. "ratio" is the loop's median over the call's.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from _common import Timing, arguments, print_table, save, summarise
from numba import cuda, njit

import synknumba as synk

ROWS = (10_000, 100_000, 1_000_000, 10_000_000, 50_000_000)
BETA = 0.5
CALLS = (7, 2000)  # at least and at most for each row of the table


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table; times in microseconds."""

    rows: int
    ranks: int
    device: str
    call: Timing
    njit: Timing
    ratio: float


def blocks(rows):
    """Blocks of 256 threads: one thread a row as long as there are few, then strides, to spare a GPU atomic additions."""
    return min(1024, -(-rows // 256))


@synk.parallel(grid=blocks, outputs={"total": synk.output("sum", shape=(), dtype="float64")})
def energy(x, beta, total):
    """Adds up exp(−beta·x²); x: float64, shape (n,)."""
    acc = 0.0
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        acc += math.exp(-beta * x[i] * x[i])
    cuda.atomic.add(total, 0, acc)


@njit
def energy_loop(x, beta):
    """The same, as one would write it for one core."""
    acc = 0.0
    for i in range(x.shape[0]):
        acc += math.exp(-beta * x[i] * x[i])
    return acc


def time_in_turns(first: Callable[[], object], second: Callable[[], object], seconds: float) -> tuple[Timing, Timing]:
    """Times two calls alternately for about that many seconds."""
    clock = time.perf_counter_ns
    times: tuple[list[int], list[int]] = ([], [])
    first(), second()
    end = time.monotonic() + seconds
    while len(times[0]) < CALLS[0] or (time.monotonic() < end and len(times[0]) < CALLS[1]):
        for call, taken in ((first, times[0]), (second, times[1])):
            call()  # so that both find their own state warm: awake ranks, caches
            start = clock()
            call()
            taken.append(clock() - start)
    return summarise(times[0]), summarise(times[1])


def measure(args: argparse.Namespace) -> Iterator[Result]:
    """Every number of ranks with every number of rows."""
    for ranks in args.ranks or [1, 2]:
        with synk.fork(ranks, device=args.device):
            for rows in args.rows:
                values = np.random.default_rng(0).random(rows)
                x = synk.data(values)
                np.testing.assert_allclose(energy(x, BETA), energy_loop(values, BETA), rtol=1e-9)
                call, loop = time_in_turns(lambda x=x: energy(x, BETA), lambda v=values: energy_loop(v, BETA), args.seconds)
                yield Result(rows, ranks, args.device, call, loop, loop.median / call.median)


def main() -> None:
    """Measures, prints, and saves where asked to."""
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="default: 10⁴ … 5·10⁷")
    args = parser.parse_args()
    results = list(measure(args))

    def cells(result: Result) -> list[str]:
        times = [f"{timing.median / 1e3:.3f}" for timing in (result.call, result.njit)]
        return [f"{result.rows:,}", str(result.ranks), *times, f"{result.ratio:.2f}"]

    print(f"mean of exp(-{BETA} x²), {args.device}, milliseconds, medians; ratio: njit loop / call")
    print_table(["rows", "ranks", "call", "njit loop", "ratio"], [cells(result) for result in results])
    save(args.json, "expectation", results, {"device": args.device, "seconds": args.seconds, "beta": BETA})


if __name__ == "__main__":
    main()
