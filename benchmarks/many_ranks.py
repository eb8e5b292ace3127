"""CPU ranks from 1 to as many as there are cores: calls, sums, expectations, collectives, minibatches
and starts, beside Numba's threads.

    python benchmarks/many_ranks.py
    python benchmarks/many_ranks.py --ranks 1 2 4 8 16 31 --json benchmarks/results/cores32-many_ranks.json

Rows: an empty call; a kernel and the sum of exp(−x²/2)·cos(x) over float64; `expectation` of the
same; all_reduce of float32; random rows of a float32 table, whose columns a kernel adds up; `fork()`
with the first call; and the memory that a rank shares with no other process after it, in MiB.

"numba: prange" is a process of its own with as many threads, measured when the ranks have ended, for
ranks that wait for a call spin. Its expectation is a sum and a sum of squares. "copy" is the limit of
a large all_reduce: as many threads copy that many elements each, so that each is read and written
once.

"ratio": the median over that of synknumba for the same ranks; below 1, the peer is faster.
"""  # noqa: E501

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path

import numpy as np
from _common import Timing, arguments, print_table, save, summarise, time_calls
from _prange import exact_sum, lists_of, table_of, waves
from numba import cuda, float64

import synknumba as synk

RANKS = (1, 2, 4, 8, 16, 31)
STARTS = 3
AT_LEAST = 5
BETA = 0.5
PEER = Path(__file__).with_name("_prange.py")


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured, and how long each row."""

    seconds: float
    samples: tuple[int, ...]
    rows: tuple[int, ...]
    elements: tuple[int, ...]
    table: int
    batch: int
    columns: int


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table; times in microseconds, or memory in MiB."""

    library: str
    what: str
    ranks: int
    timing: Timing | None = None
    mib: float | None = None
    ratio: float | None = None


@synk.parallel(grid=1)
@cuda.jit
def nothing():
    pass


@synk.parallel(grid=64, outputs={"total": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def sum_of_waves(x, beta, total):
    """Σ exp(−β x²) cos x; x: float64, shape (n,)."""
    acc = 0.0
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        acc += math.exp(-beta * x[i] * x[i]) * math.cos(x[i])
    cuda.atomic.add(total, 0, acc)


@synk.expectation
def wave(x, beta):
    return math.exp(-beta * x * x) * math.cos(x)


def column_sums(columns):
    """A kernel for so many columns, with a block on each core."""

    @synk.parallel(grid=1, outputs={"total": synk.output("sum", shape=(columns,), dtype="float64")})
    @cuda.jit
    def add_columns(x, total):
        """Adds up the columns; x: float32, shape (n, columns)."""
        sums = cuda.shared.array(columns, float64)
        for column in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
            sums[column] = 0.0
        for row in range(x.shape[0]):
            for column in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
                sums[column] += x[row, column]
        for column in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
            total[column] += sums[column]

    return add_columns


@synk.function(outputs=None)
def private_mib():
    """Memory that only this process has mapped: clean and modified pages."""
    lines = open("/proc/self/smaps_rollup").read().splitlines()  # noqa: SIM115  # on a rank
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def measure_starts(ranks: int) -> Iterator[Result]:
    """`fork` and the first call, and the memory of a rank after it."""
    times = []
    memory = []
    for _ in range(STARTS):
        start = time.perf_counter_ns()
        with synk.fork(ranks, device="cpu"):
            nothing()
            times.append(time.perf_counter_ns() - start)
            memory.append(max(private_mib()))
    yield Result("synknumba", "fork and first call", ranks, summarise(times))
    yield Result("synknumba", "private memory of a rank", ranks, mib=min(memory))


def measure(ranks: int, settings: Settings, arrays: dict[str | int, synk.Data]) -> Iterator[Result]:
    """Calls in one world; arrays: those of the settings' lengths, and the table."""
    table, lists = arrays["table"], lists_of(settings.table, settings.batch)
    sums = column_sums(settings.columns)

    def row(what: str, call: Callable[[], object]) -> Result:
        timing = time_calls(call, settings.seconds, at_least=AT_LEAST)
        return Result("synknumba", what, ranks, timing)

    with synk.fork(ranks, device="cpu"):
        yield row("empty call", nothing)
        for count in settings.samples:
            x = arrays[count]
            np.testing.assert_allclose(sum_of_waves(x, BETA), exact_sum(count), rtol=1e-9)
            yield row(f"kernel and sum, {count}", lambda x=x: sum_of_waves(x, BETA))
        for count in settings.rows:
            x = arrays[count]
            yield row(f"expectation, {count}", lambda x=x: wave(x, BETA))
        for count in settings.elements:
            v = synk.variable(np.ones(count, np.float32))
            yield row(f"all_reduce, {count}", lambda v=v: synk.all_reduce(v, "mean"))
            assert (v.get_value() == 1.0).all()
        np.testing.assert_array_equal(
            sums(table, batch=lists[0]), table.data[lists[0]].sum(axis=0, dtype=np.float64)
        )
        turns = cycle(lists)
        yield row(f"random rows, {settings.batch}", lambda: sums(table, batch=next(turns)))


def measure_peers(ranks: int, settings: Settings) -> Iterator[Result]:
    """Numba's threads, and copies."""
    threads = min(ranks, len(os.sched_getaffinity(0)))
    lists = (",".join(map(str, sizes)) for sizes in (settings.samples, settings.rows))
    elements = ",".join(map(str, settings.elements))
    sizes = map(str, (settings.table, settings.batch, settings.columns))
    command = [sys.executable, str(PEER), str(threads), str(settings.seconds), *lists, elements]
    done = subprocess.run([*command, *sizes], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"prange left out: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return
    for what, timing in json.loads(done.stdout).items():
        library = "copy" if what.startswith("all_reduce") else "numba: prange"
        yield Result(library, what, ranks, Timing(**timing))


def with_ratios(results: list[Result]) -> list[Result]:
    """Peers beside synknumba."""
    own = {
        (row.what, row.ranks): row.timing.median
        for row in results
        if row.library == "synknumba" and row.timing is not None
    }
    return [
        replace(row, ratio=row.timing.median / own[row.what, row.ranks])
        if row.timing is not None
        else row
        for row in results
    ]


def cells(row: Result) -> list[str]:
    if row.timing is None:
        return [row.what, row.library, str(row.ranks), f"{row.mib:.1f} MiB", "", "", ""]
    times = [f"{time:,.1f}" for time in (row.timing.median, row.timing.p99, row.timing.minimum)]
    return [row.what, row.library, str(row.ranks), *times, f"{row.ratio:.2f}"]


def main() -> None:
    """Measures, prints, and saves where asked to."""
    parser = arguments(__doc__)
    parser.add_argument("--samples", type=int, nargs="+", default=[10**5, 10**8])
    parser.add_argument("--rows", type=int, nargs="+", default=[10**3, 10**5])
    parser.add_argument("--elements", type=int, nargs="+", default=[10**3, 10**5, 10**7])
    parser.add_argument("--table", type=int, default=200_000, help="rows of the table")
    parser.add_argument("--batch", type=int, default=4096, help="random rows of a step")
    parser.add_argument("--columns", type=int, default=784)
    parser.add_argument("--no-peers", action="store_true", help="measure this library only")
    args = parser.parse_args()
    if args.device != "cpu":
        parser.error("it is about cores")
    cores = len(os.sched_getaffinity(0))
    settings = Settings(
        args.seconds,
        tuple(args.samples),
        tuple(args.rows),
        tuple(args.elements),
        args.table,
        args.batch,
        args.columns,
    )
    arrays: dict[str | int, synk.Data] = {
        count: synk.data(waves(count)) for count in {*args.samples, *args.rows}
    }
    arrays["table"] = synk.data(table_of(args.table, args.columns))
    sizes = {"samples": args.samples, "rows": args.rows, "elements": args.elements}
    table = {"table": args.table, "batch": args.batch, "columns": args.columns}
    results: list[Result] = []
    for ranks in args.ranks or [ranks for ranks in RANKS if ranks <= cores]:
        results += measure_starts(ranks)
        results += measure(ranks, settings, arrays)
        if not args.no_peers:
            results += measure_peers(ranks, settings)
        results = with_ratios(results)
        # after each world, for a run of many may be ended
        save(args.json, "many_ranks", results, {"seconds": args.seconds, **sizes, **table})
    order = {what: place for place, what in enumerate(dict.fromkeys(row.what for row in results))}
    results = sorted(results, key=lambda row: (order[row.what], row.ranks))
    print(f"ranks on {cores} cores, microseconds; ratio: to synknumba with as many ranks")
    head = ("", "", "ranks", "median", "p99", "minimum", "ratio")
    print_table(head, [cells(row) for row in results])


if __name__ == "__main__":
    main()
