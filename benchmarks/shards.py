"""What fixed shards cost, and reductions that are not NumPy's: whole calls beside the usual one.

    python benchmarks/shards.py
    python benchmarks/shards.py --device cuda --ranks 1 2 4 --rows 1000 100000000

One kernel, the sum of exp(−x²/2) over float64 rows: with one result a rank, in K shards whatever
the number of ranks, and with a Python function as the op. Then the same values by "argmin", which
writes each and finds the least, and by "gather" with NumPy's argmin after it. The calls of all
kinds take turns, so that what else the machine does falls on all of them.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from _common import Timing, arguments, print_table, save, summarise
from numba import cuda

import synknumba as synk

SHARDS = (8, 64)


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table; times in microseconds."""

    library: str
    what: str
    rows: int
    ranks: int
    device: str
    timing: Timing
    ratio: float  # of the median to that of the usual call


def total_of(x, total):
    """Σ exp(−x²/2); x: float64, shape (n,)."""
    acc = 0.0
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        acc += math.exp(-0.5 * x[i] * x[i])
    cuda.atomic.add(total, 0, acc)


def each_of(x, value):
    """exp(−x²/2) of each row; x: float64, shape (n,)."""
    i = cuda.grid(1)
    if i < x.shape[0]:
        value[i] = math.exp(-0.5 * x[i] * x[i])


def functions() -> dict[str, Callable[..., object]]:
    """The calls that are timed, the usual one first."""
    own = synk.output(lambda a, b: a + b, identity=0, shape=(), dtype="float64")
    usual = synk.parallel(
        total_of, outputs={"total": synk.output("sum", shape=(), dtype="float64")}
    )
    located = synk.parallel(
        each_of, outputs={"value": synk.output("argmin", shape=(), dtype="float64")}
    )
    gathered = synk.parallel(
        each_of, outputs={"value": synk.output("gather", shape=(), dtype="float64")}
    )
    return {
        "usual": usual,
        **{f"{k} shards": lambda x, k=k: usual(x, shards=k) for k in SHARDS},
        "own op": synk.parallel(total_of, outputs={"total": own}),
        "argmin": located,
        "gather, argmin": lambda x: gathered(x).argmin(),
    }


def in_turn(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, Timing]:
    """Times of the calls, each of which is made once in a turn."""
    times: dict[str, list[int]] = {name: [] for name in calls}
    for _ in range(3):
        for call in calls.values():
            call()
    end = time.monotonic() + seconds * len(calls)
    while time.monotonic() < end or len(times["usual"]) < 10:
        for name, call in calls.items():
            start = time.perf_counter_ns()
            call()
            times[name].append(time.perf_counter_ns() - start)
    return {name: summarise(found) for name, found in times.items()}


def main() -> None:
    """Runs all, prints a table, and saves the results."""
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 100_000, 4_000_000])
    given = parser.parse_args()
    results = []
    for ranks in given.ranks or (1, 2):
        with synk.fork(ranks, device=given.device):
            calls = functions()
            for rows in given.rows:
                x = synk.data(np.random.default_rng(0).normal(size=rows))
                x.freeze()
                times = in_turn({name: partial(f, x) for name, f in calls.items()}, given.seconds)
                results += [
                    Result(
                        "synknumba",
                        name,
                        rows,
                        ranks,
                        given.device,
                        one,
                        one.median / times["usual"].median,
                    )
                    for name, one in times.items()
                ]
    table = [
        (str(one.ranks), f"{one.rows:,}", one.what, f"{one.timing.median:,.1f}", f"{one.ratio:.2f}")
        for one in results
    ]
    print_table(("ranks", "rows", "call", "µs", "ratio"), table)
    save(given.json, "shards", results, {"device": given.device})


if __name__ == "__main__":
    main()
