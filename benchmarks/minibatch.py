"""Random rows of a large table at every step: how long a step takes that gathers them, sends them,
and brings sums back.

    python benchmarks/minibatch.py --rows 20000
    python benchmarks/minibatch.py --device cuda --ranks 4 --json
    benchmarks/results/h200x4-minibatch.json python benchmarks/minibatch.py --rows 20000
    --peer-python ~/torch/bin/python

The table is float32 in the host's memory. Every step has another list of row numbers, drawn
beforehand; its rows are divided among the ranks, which add up the columns; the sums of all ranks
are added in the script. Peers do the same: NumPy gathers into pinned memory that CuPy copies, torch
likewise, each in a process per GPU, and JAX in one process. On a CPU there are NumPy's
x[indices].sum(axis=0) as well, and a loop of Numba's prange.

"table on the devices": the same where each GPU has the table, or a part of it, and gets the row
numbers only; here they are divided among the ranks, and the table is a broadcast argument. On cores
that is memory that all ranks read.

The limit is the time in which all ranks copy as many bytes as the rows have, read and written.
"GB/s" is of the rows that are read, "ratio" the step's median over that of the row here whose table
is in the same place. prange is beside the latter.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np
from _common import Timing, arguments, gpus, print_table, save
from _copies import copies, limit
from _gpu_moves import (
    LISTS,
    ON_DEVICES,
    Row,
    Settings,
    ask,
    fill,
    index_lists,
    make_memory,
    time_rounds,
)
from numba import cuda
from numpy.typing import NDArray

import synknumba as synk

BATCHES = (4096, 65_536)
# Blocks, and threads of each. On GPUs two blocks for each multiprocessor of an H200, for rows are
# few, and each block adds its sums to the others', with a thread for each column, so that all of a
# row are loaded at once; on cores a block for each rank.
LAUNCHES = {"cuda": (264, 784), "cpu": (1, 128)}
LONGEST = 60.0  # seconds that a call may take before the ranks are ended
PEERS = {"cuda": ("take", "torch", "jax"), "cpu": ("torch", "jax", "prange")}


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table; times in microseconds."""

    library: str
    what: str
    batch: int
    ranks: int
    timing: Timing
    gb_per_s: float
    ratio: float | None = None


def column_sums(columns, launch):
    """A kernel for so many columns: the shape of a result is part of its declaration."""

    @synk.parallel(
        grid=launch[0],
        block=launch[1],
        outputs={"total": synk.output("sum", shape=(columns,), dtype="float64")},
    )
    def add_columns(x, total):
        """Adds up the columns; x: float32, shape (n, columns)."""
        for column in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
            acc = 0.0
            for row in range(cuda.blockIdx.x, x.shape[0], cuda.gridDim.x):
                acc += x[row, column]
            cuda.atomic.add(total, column, acc)

    return add_columns


def numbered_sums(columns, launch):
    """The same of rows with these numbers."""

    @synk.parallel(
        grid=launch[0],
        block=launch[1],
        broadcast=("x",),
        outputs={"total": synk.output("sum", shape=(columns,), dtype="float64")},
    )
    def add_columns_of(numbers, x, total):
        """Adds up the columns; numbers: int64, shape (n,); x: float32, shape (m, columns)."""
        for column in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
            acc = 0.0
            for row in range(cuda.blockIdx.x, numbers.shape[0], cuda.gridDim.x):
                acc += x[numbers[row], column]
            cuda.atomic.add(total, column, acc)

    return add_columns_of


def expected(table: NDArray[np.float32], indices: NDArray[np.int64]) -> NDArray[np.float64]:
    return table[indices].sum(axis=0, dtype=np.float64)


def measure_here(settings: Settings) -> Iterator[Result]:
    """Calls from the script."""
    table = settings.table()
    launch = LAUNCHES[settings.device]
    kernel, numbered = (make(settings.columns, launch) for make in (column_sums, numbered_sums))
    with synk.fork(settings.ranks, device=settings.device, timeout=LONGEST):
        x = synk.data(shape=table.shape, dtype=table.dtype)
        fill(x.data.reshape(-1), table.reshape(-1))
        for batch in settings.sizes:
            lists = index_lists(len(table), batch)
            for indices in lists[:2]:
                np.testing.assert_array_equal(kernel(x, batch=indices), expected(table, indices))
            turns = cycle(lists)
            timing = time_rounds(lambda turns=turns: kernel(x, batch=next(turns)), settings.seconds)
            yield result(Row("synknumba", "Data, batch=indices", "sum", batch, timing), settings)
        x.freeze()
        _, bandwidth = copies(settings.device)
        for batch in settings.sizes:
            nbytes = 4 * settings.columns * batch / settings.ranks
            row = Row("limit", f"{ON_DEVICES}copies", "sum", batch, limit(nbytes, bandwidth))
            yield result(row, settings)
            lists = index_lists(len(table), batch)
            for indices in lists[:2]:
                np.testing.assert_array_equal(numbered(indices, x), expected(table, indices))
            turns = cycle(lists)
            timing = time_rounds(lambda turns=turns: numbered(next(turns), x), settings.seconds)
            what = f"{ON_DEVICES}frozen Data, row numbers divided"
            yield result(Row("synknumba", what, "sum", batch, timing), settings)


def measure_numpy(settings: Settings) -> Iterator[Result]:
    """One core, no other process."""
    table = settings.table()
    for batch in settings.sizes:
        turns = cycle(index_lists(len(table), batch))
        timing = time_rounds(lambda turns=turns: expected(table, next(turns)), settings.seconds)
        yield replace(
            result(Row("numpy", "x[indices].sum(axis=0)", "sum", batch, timing), settings), ranks=1
        )


def measure_peers(settings: Settings, python: str, timeout: float) -> Iterator[Result]:
    """Those of the device; what is missing is left out."""
    for who in PEERS[settings.device]:
        yield from (
            result(row, settings) for row in ask("minibatch", who, settings, python, timeout)
        )


def result(row: Row, settings: Settings) -> Result:
    rate = 4 * settings.columns * row.size / (row.timing.median * 1e3)
    return Result(row.library, row.what, row.size, settings.ranks, row.timing, rate)


def with_ratios(results: list[Result], worlds: list[int]) -> list[Result]:
    """Every row beside the one here of the same batch, ranks and place of the table; NumPy's, on
    one core, beside the first world's.
    """

    def key(row: Result) -> tuple[int, int, bool]:
        ranks = worlds[0] if row.library == "numpy" else row.ranks
        return row.batch, ranks, row.library == "numba" or row.what.startswith(ON_DEVICES)

    own = {key(row): row.timing.median for row in results if row.library == "synknumba"}
    return [
        replace(row, ratio=row.timing.median / own[key(row)]) if key(row) in own else row
        for row in results
    ]


def report(results: list[Result], settings: Settings) -> None:
    def cells(row: Result) -> list[str]:
        timing = row.timing
        numbers = [
            f"{timing.median:.1f}",
            f"{timing.p99:.1f}",
            f"{timing.minimum:.1f}",
            f"{row.gb_per_s:.2f}",
        ]
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        return [f"{row.library}: {row.what}", f"{row.batch:,}", str(row.ranks), *numbers, ratio]

    shape = f"{settings.items // settings.columns:,} × {settings.columns}"
    print(
        f"random rows of {shape} float32, {settings.device}, microseconds a step; "
        f"ratio: to the same batch here"
    )
    print_table(
        ["", "rows", "ranks", "median", "p99", "minimum", "GB/s", "ratio"],
        [cells(row) for row in results],
    )


def main() -> None:
    """Measures, prints, and saves where asked to."""
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=600_000, help="of the table (default: 600,000)")
    parser.add_argument("--columns", type=int, default=784, help="of the table (default: 784)")
    parser.add_argument(
        "--batches",
        type=int,
        nargs="+",
        default=BATCHES,
        help="rows of a step (default: 4,096 and 65,536)",
    )
    parser.add_argument(
        "--peer-python",
        default=sys.executable,
        metavar="PATH",
        help="a Python that has the peers' packages",
    )
    parser.add_argument(
        "--peer-timeout",
        type=float,
        default=60.0,
        help="seconds until a peer is ended (default: 60)",
    )
    parser.add_argument("--no-peers", action="store_true", help="measure this library only")
    args = parser.parse_args()
    worlds = args.ranks or [2 if args.device == "cpu" else max(1, len(gpus()))]

    items = args.rows * args.columns
    memory = make_memory(items)
    settings = Settings(
        args.device, worlds[0], args.seconds, memory, items, tuple(args.batches), args.columns
    )
    results: list[Result] = []
    try:
        for ranks in worlds:
            settings = replace(settings, ranks=ranks)
            results.extend(measure_here(settings))
            if not args.no_peers:
                results.extend(measure_peers(settings, args.peer_python, args.peer_timeout))
        if args.device == "cpu" and not args.no_peers:
            results.extend(measure_numpy(settings))
            print("take left out: it needs GPUs", file=sys.stderr)
    finally:  # what there is, also after an error
        results = with_ratios(results, worlds)
        report(results, settings)
        table = {"rows": args.rows, "columns": args.columns, "lists": LISTS}
        save(
            args.json,
            "minibatch",
            results,
            {"device": args.device, "seconds": args.seconds, **table},
        )


if __name__ == "__main__":
    main()
