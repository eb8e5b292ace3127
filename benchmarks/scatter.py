"""A large host array to all ranks, and back: how long one call takes whose kernel does next to
nothing with the rows.

    python benchmarks/scatter.py
    python benchmarks/scatter.py --device cuda --ranks 4 --json
    benchmarks/results/h200x4-scatter.json python benchmarks/scatter.py --gib 0.5 --peer-python
    ~/torch/bin/python

The array is float32. "up": its rows go to the ranks; "down": as many come back; "both": up and
down, the rows of an argument in inout=. On GPUs the peer "concurrent page-locked copies" is what
the links give: a process per GPU that page-locks its part and copies it, all at the same time, with
nothing around it. "ratio" is GB/s over that peer's. On a CPU ranks work where the rows lie, and
peers that need a GPU are left out.
"""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Literal

import numpy as np
from _common import Timing, arguments, gpus, print_table, save, summarise
from _gpu_moves import Kind, Row, Settings, ask, fill, make_memory, mapped, time_rounds
from numba import cuda
from numpy.typing import NDArray

import synknumba as synk

CEILING = "cupy"
BLOCKS = 64
LONGEST = 120.0  # seconds that a call may take before the ranks are ended
PEERS = {"cuda": ("copies", "torch", "jax"), "cpu": ("jax",)}
ON_GPUS_ALONE = ("copies", "torch")


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table; times in microseconds. No bandwidth where nothing is sent."""

    library: str
    what: str
    kind: Kind | Literal["kept"]
    size: int
    ranks: int
    timing: Timing
    gb_per_s: float | None
    ratio: float | None = None  # of the bandwidth to that of plain copies of the same kind and size


@synk.parallel(
    grid=BLOCKS, block=1, outputs={"total": synk.output("sum", shape=(), dtype="float64")}
)
def touch(x, total):
    """Adds up one element for each block; x: float32, shape (n,)."""
    cuda.atomic.add(total, 0, x[cuda.blockIdx.x * x.shape[0] // cuda.gridDim.x])


@synk.parallel(grid=BLOCKS, block=1, inout=("x",))
def mark(x):
    """Changes one element for each block."""
    x[cuda.blockIdx.x * x.shape[0] // cuda.gridDim.x] = -1.0


@synk.parallel(
    grid=BLOCKS, block=1, outputs={"out": synk.output("gather", shape=(), dtype="float32")}
)
def write(rows, out):
    """Writes one element for each block: its place in the whole, modulo 1000; rows: a Span."""
    i = cuda.blockIdx.x * out.shape[0] // cuda.gridDim.x
    out[i] = (rows.start + i) % 1000


@synk.parallel(grid=4 * BLOCKS, outputs={"total": synk.output("sum", shape=(), dtype="float64")})
def add_up(x, total):
    """Adds up all."""
    acc = 0.0
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        acc += x[i]
    cuda.atomic.add(total, 0, acc)


def touched(count: int, ranks: int) -> NDArray[np.int64]:
    """The elements that blocks touch on all ranks."""
    starts = [rank * count // ranks for rank in range(ranks + 1)]
    blocks = np.arange(BLOCKS)
    return np.concatenate(
        [start + blocks * (stop - start) // BLOCKS for start, stop in pairwise(starts)]
    )


def measure_here(
    device: str, ranks: int, values: NDArray[np.float32], sizes: list[int], seconds: float
) -> Iterator[Result]:
    """Calls from the script, from one world."""
    with synk.fork(ranks, device=device, timeout=LONGEST):
        compile_all()
        for size in sizes:
            source = values[: size // 4]
            for kind, what, timing in calls(source, touched(len(source), ranks), seconds):
                factor = {"kept": 0, "both": 2}.get(kind, 1)
                gb_per_s = factor * size / (timing.median * 1e3) or None
                yield Result("synknumba", what, kind, size, ranks, timing, gb_per_s)


def compile_all() -> None:
    """So that a first call with large data is not about that."""
    small = synk.data(np.zeros(1000, np.float32))
    for function in (touch, mark, add_up):
        function(small)
    write(synk.arange(1000))


def calls(
    source: NDArray[np.float32], places: NDArray[np.int64], seconds: float
) -> Iterator[tuple[str, str, Timing]]:
    """Every way to hand the rows over, checked and timed: (kind, what, timing)."""
    expected, whole = source[places].sum(dtype=np.float64), source.sum(dtype=np.float64)
    x = synk.data(shape=source.shape, dtype=source.dtype)
    fill(x.data, source)
    start = time.perf_counter_ns()
    total = touch(x)
    yield "up", "Data, first call", summarise([time.perf_counter_ns() - start])
    assert total == expected
    assert add_up(x) == whole
    yield "up", "Data", time_rounds(partial(touch, x), seconds)

    x.freeze()
    assert touch(x) == expected
    yield "kept", "Data, frozen", time_rounds(partial(touch, x), seconds)
    yield from or_left_out(
        "down", 'output "gather"', partial(time_gather, len(source), places, seconds)
    )
    x.thaw()

    mark(x)
    marked = np.unique(places)
    assert (x[marked] == -1).all()
    assert add_up(x) == whole - source[marked].sum(dtype=np.float64) - len(marked)
    yield "both", "Data, inout", time_rounds(partial(mark, x), seconds)
    x.free_memory()

    def from_numpy() -> Timing:
        assert touch(source) == expected
        return time_rounds(partial(touch, source), seconds)

    yield from or_left_out("up", "NumPy array, copied at each call", from_numpy)


def time_gather(count: int, places: NDArray[np.int64], seconds: float) -> Timing:
    rows = synk.arange(count)
    result = write(rows)
    assert len(result) == count
    assert (result[places] == places % 1000).all()
    del result  # or there would be two
    return time_rounds(partial(write, rows), seconds)


def or_left_out(
    kind: str, what: str, measure: Callable[[], Timing]
) -> Iterator[tuple[str, str, Timing]]:
    """A row that needs more shared memory than there may be."""
    try:
        yield kind, what, measure()
    except synk.SharedMemoryError as error:
        print(f"{what} left out: {error}", file=sys.stderr)


def peer_results(rows: list[Row], ranks: int) -> Iterator[Result]:
    for row in rows:
        moved = 2 * row.size if row.kind == "both" else row.size
        yield Result(
            row.library,
            row.what,
            row.kind,
            row.size,
            ranks,
            row.timing,
            moved / (row.timing.median * 1e3),
        )


def with_ratios(results: list[Result]) -> list[Result]:
    """Every row beside the plain copies of the same kind, size and number of devices."""
    ceilings = {
        (row.kind, row.size, row.ranks): row.gb_per_s for row in results if row.library == CEILING
    }

    def ratio(row: Result) -> float | None:
        ceiling = ceilings.get((row.kind, row.size, row.ranks))
        return row.gb_per_s / ceiling if row.gb_per_s and ceiling else None

    return [replace(row, ratio=ratio(row)) for row in results]


def report(results: list[Result], device: str) -> None:
    def cells(row: Result) -> list[str]:
        numbers = [
            f"{row.timing.median / 1e3:.3f}",
            f"{row.timing.minimum / 1e3:.3f}",
            str(row.timing.calls),
        ]
        rates = ["" if rate is None else f"{rate:.2f}" for rate in (row.gb_per_s, row.ratio)]
        return [
            f"{row.library}: {row.what}",
            row.kind,
            f"{row.size / 2**30:.4g}",
            str(row.ranks),
            *numbers,
            *rates,
        ]

    print(
        f"float32 host array to the ranks, {device}, milliseconds; ratio: of GB/s to "
        f"plain page-locked copies"
    )
    print_table(
        ["", "kind", "GiB", "ranks", "median", "minimum", "calls", "GB/s", "ratio"],
        [cells(row) for row in results],
    )


def main() -> None:
    """Measures, prints, and saves where asked to."""
    parser = arguments(__doc__)
    parser.add_argument(
        "--gib", type=float, nargs="+", help="sizes (default: 1 and 8; on a CPU 0.125)"
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
    wanted = args.gib or ((0.125,) if args.device == "cpu" else (1, 8))

    items = int(max(wanted) * 2**28) + max(worlds)
    memory = make_memory(items)
    results: list[Result] = []
    try:
        for ranks in worlds:
            sizes = [4 * ranks * max(1, int(gib * 2**28) // ranks) for gib in wanted]
            results.extend(
                measure_here(args.device, ranks, mapped(memory, items), sizes, args.seconds)
            )
            settings = Settings(args.device, ranks, args.seconds, memory, items, tuple(sizes))
            for who in () if args.no_peers else PEERS[args.device]:
                results += peer_results(
                    ask("scatter", who, settings, args.peer_python, args.peer_timeout), ranks
                )
        if args.device == "cpu" and not args.no_peers:
            print(f"{', '.join(ON_GPUS_ALONE)} left out: they need GPUs", file=sys.stderr)
    finally:  # what there is, also after an error
        results = with_ratios(results)
        report(results, args.device)
        save(
            args.json,
            "scatter",
            results,
            {"device": args.device, "seconds": args.seconds, "dtype": "float32"},
        )


if __name__ == "__main__":
    main()
