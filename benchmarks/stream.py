"""More rows than fit into the ranks' device memory, in slices: how much of the copying happens
while a kernel computes.

    python benchmarks/stream.py
    python benchmarks/stream.py --device cuda --ranks 4 --json benchmarks/results/h200x4-stream.json
    python benchmarks/stream.py --device cuda --gib 24 --limit-gib 8 --slices 24 --compute 0.25 1 4

CuPy's memory pool is limited on every rank, and it is asserted that the rows do not fit there all
at once. "copy": a call that sends all rows, slice by slice, to a kernel that returns at once.
"compute": the kernel on rows that are on the ranks already, as many as a slice has, times the
slices, without what the calls cost by themselves. "total": both, as a script would call it. The
arithmetic for each element is chosen so that "compute" is the wanted multiple of "copy". Efficiency
is max(copy, compute) / total: 1 would be that one hides all of the other, but for K slices as dear
to copy as to compute it is at most K / (K + 1), since nothing is there to compute while the first
is copied. "ratio" is the total's GB/s over those of plain concurrent page-locked copies of the same
rows, a process per GPU; scatter.py has more about them.

On a CPU nothing is copied or limited: there this shows that the results are right, and what slices
cost.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from _common import Timing, arguments, gpus, print_table, save
from _gpu_moves import HIGHEST, Settings, ask, fill, make_memory, mapped, time_rounds
from numba import cuda
from numpy.typing import NDArray

import synknumba as synk

TOP = np.float32(HIGHEST)
# four for each multiprocessor of an H200: enough threads to hide what one addition waits for the
# other
BLOCKS = 528
NOTHING = -1  # the cost at which the kernel returns at once
MOST = 1 << 20  # cost that is tried, at most
LONGEST = 60.0  # seconds that a call may take before the ranks are ended


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table; times in microseconds.

    Attributes:
        library, ranks: who.
        wanted: compute as a multiple of copy.
        cost: subtractions for each element that were to give it.
        copy, compute, total: see above; `compute` is of one slice.
        slices: of the call.
        size: bytes of all rows.
        efficiency: max(copy, compute · slices) / total.
        gb_per_s: of the total.
        ratio: of it to plain copies.
    """

    library: str
    ranks: int
    wanted: float
    cost: int
    copy: Timing
    compute: Timing
    idle: Timing
    total: Timing
    slices: int
    size: int
    efficiency: float
    gb_per_s: float
    ratio: float | None = None

    @property
    def computing(self) -> float:
        """Microseconds on all slices."""
        return max(0.0, self.compute.median - self.idle.median) * self.slices


@synk.parallel(grid=BLOCKS, outputs={"total": synk.output("sum", shape=(), dtype="float64")})
def work(x, cost, total):
    """Adds up what is left of each element when it has been subtracted from 15, `cost` times; x:
    float32, shape (n,).
    """
    if cost < 0:
        return
    acc = 0.0
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        value = x[i]
        for _ in range(cost):
            value = TOP - value
        acc += value
    cuda.atomic.add(total, 0, acc)


def expected(values: NDArray[np.float32], cost: int) -> float:
    """Twice subtracted is as it was; whole numbers, so exact."""
    if cost < 0:
        return 0.0
    total = float(values.sum(dtype=np.float64))
    return HIGHEST * len(values) - total if cost % 2 else total


@synk.function(outputs=None)
def limit_memory(nbytes):
    """Lets CuPy's pool have so many bytes on each rank; returns what it may have."""
    import cupy

    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    pool.set_limit(size=int(nbytes))
    return pool.get_limit()


def measure_here(
    device: str,
    ranks: int,
    values: NDArray[np.float32],
    limit: int,
    slices: int,
    multiples: list[float],
    seconds: float,
) -> Iterator[Result]:
    """Calls from the script."""
    with synk.fork(ranks, device=device, timeout=LONGEST):
        rows, one = (
            synk.data(shape=values.shape, dtype=values.dtype),
            synk.data(values[: len(values) // slices]),
        )
        fill(rows.data, values)
        one.freeze()  # so that it is sent once
        if device == "cuda":
            check_limit(rows, limit // ranks)
        for cost in (0, 3, NOTHING):
            assert work(rows, cost, num_slices=slices) == expected(values, cost)
            assert work(one, cost) == expected(one.data, cost)

        def timed(call: Callable[[], object]) -> Timing:
            return time_rounds(call, seconds)

        copy = timed(partial(work, rows, NOTHING, num_slices=slices))
        idle = timed(partial(work, one, NOTHING))
        for wanted in multiples:
            cost = find_cost(one, idle.median, wanted * copy.median / slices, seconds)
            compute = timed(partial(work, one, cost))
            assert work(rows, cost, num_slices=slices) == expected(values, cost)
            total = timed(partial(work, rows, cost, num_slices=slices))
            found = Result(
                "synknumba",
                ranks,
                wanted,
                cost,
                copy,
                compute,
                idle,
                total,
                slices,
                values.nbytes,
                0.0,
                rate(values, total),
            )
            yield replace(found, efficiency=max(copy.median, found.computing) / total.median)


def check_limit(rows: synk.Data, limit: int) -> None:
    """Sets the limit, and sees that it holds."""
    assert set(limit_memory(limit)) == {limit}
    try:
        work(rows, 0)
    except synk.RankError as error:
        if "OutOfMemory" in str(error):
            return
        raise
    raise AssertionError(
        f"all {rows.nbytes:,} bytes fitted at once, where each rank may have {limit:,}"
    )


def find_cost(one: synk.Data, idle: float, wanted: float, seconds: float) -> int:
    """The cost that takes so many microseconds: tried ever higher until it takes a good part of
    that, then in proportion.
    """

    def taken(cost: int) -> float:
        return time_rounds(partial(work, one, cost), seconds / 20).minimum - idle

    base, cost = taken(0), 16
    while (found := taken(cost)) < wanted / 2 and cost < MOST:
        cost *= 2
    if found <= base:
        return 0
    return max(0, min(MOST, round(cost * (wanted - base) / (found - base))))


def rate(values: NDArray[np.float32], timing: Timing) -> float:
    return values.nbytes / (timing.median * 1e3)


def report(results: list[Result], device: str) -> None:
    def cells(row: Result) -> list[str]:
        times = [f"{time / 1e3:.3f}" for time in (row.copy.median, row.computing, row.total.median)]
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        numbers = [
            str(row.ranks),
            str(row.cost),
            *times,
            f"{row.efficiency:.3f}",
            f"{row.gb_per_s:.2f}",
            ratio,
        ]
        return [
            f"{row.library}: compute {row.wanted:g} × copy",
            f"{row.size / 2**30:.4g}",
            *numbers,
        ]

    print(
        f"rows in slices, {device}, milliseconds, medians; ratio: of GB/s to plain "
        f"page-locked copies of all rows"
    )
    head = ["", "GiB", "ranks", "cost", "copy", "compute", "total", "efficiency", "GB/s", "ratio"]
    print_table(head, [cells(row) for row in results])


def main() -> None:
    """Measures, prints, and saves where asked to."""
    parser = arguments(__doc__)
    parser.add_argument("--gib", type=float, help="of all rows (default: 6; on a CPU 0.0625)")
    parser.add_argument(
        "--limit-gib",
        type=float,
        help="that all ranks' pools may have together (default: a third of --gib)",
    )
    parser.add_argument("--slices", type=int, default=24, help="num_slices (default: 24)")
    parser.add_argument(
        "--compute",
        type=float,
        nargs="+",
        default=[0.5, 1.0, 2.0],
        help="multiples of copy (0.5 1 2)",
    )
    parser.add_argument(
        "--peer-python", default=sys.executable, metavar="PATH", help="a Python that has CuPy"
    )
    parser.add_argument(
        "--peer-timeout",
        type=float,
        default=60.0,
        help="seconds until the peer is ended (default: 60)",
    )
    parser.add_argument("--no-peers", action="store_true", help="measure this library only")
    args = parser.parse_args()
    worlds = args.ranks or [2 if args.device == "cpu" else max(1, len(gpus()))]
    gib = args.gib or (0.0625 if args.device == "cpu" else 6)
    limit = int((args.limit_gib or gib / 3) * 2**30)

    items = int(gib * 2**28) + args.slices * max(worlds)
    memory = make_memory(items)
    results: list[Result] = []
    try:
        for ranks in worlds:
            count = items // (args.slices * ranks) * args.slices * ranks  # all slices as large
            values = mapped(memory, items)[:count]
            here = measure_here(
                args.device, ranks, values, limit, args.slices, args.compute, args.seconds
            )
            before = len(results)
            results.extend(here)
            if args.device == "cuda" and not args.no_peers:
                settings = Settings(args.device, ranks, args.seconds, memory, items, (4 * count,))
                copies = ask("scatter", "copies", settings, args.peer_python, args.peer_timeout)
                up = [rate(values, row.timing) for row in copies if row.kind == "up"]
                results[before:] = [
                    replace(row, ratio=row.gb_per_s / up[0] if up else None)
                    for row in results[before:]
                ]
        if args.device == "cpu" and not args.no_peers:
            print("copies left out: they need GPUs", file=sys.stderr)
    finally:  # what there is, also after an error
        report(results, args.device)
        settings = {
            "device": args.device,
            "seconds": args.seconds,
            "limit_gib": limit / 2**30,
            "dtype": "float32",
        }
        save(args.json, "stream", results, settings)


if __name__ == "__main__":
    main()
