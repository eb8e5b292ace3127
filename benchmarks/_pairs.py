"""The part of expectation.py for arrays that stay on the ranks: the mean of y·exp(−x²) over float32
pairs.

Two loads and a dozen operations a pair: what limits it on a GPU is how fast it reads its memory.
That is measured beside it, as the bandwidth of a copy on every device at once, bytes read and
written. The kernel is written for GPUs; on CPUs it only shows that all of this works.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from _common import Timing
from _copies import COPY_BYTES, copies
from _gpu_call_peers import BLOCK, Row, Settings, pairs, sum_of_pairs, time_steps
from numba import cuda, float64

import synknumba as synk

ROWS = {"cuda": tuple(2**k for k in range(12, 31, 3)), "cpu": tuple(2**k for k in range(12, 22, 3))}
PAIR_BYTES = 8
# rows; larger variables take seconds to scatter, and their calls are those of frozen Data
MOST_SCATTERED = 1 << 24

THREADS = 256
APART = np.uint64(THREADS)
TILE = np.uint64(4 * THREADS)  # pairs that a block reads at once
FULL = (
    8 * 132
    # blocks that an H200 runs at once; 4 pairs of each thread make 64 KiB under way in each of its
    # multiprocessors
)


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table; times in microseconds."""

    library: str
    what: str
    rows: int
    ranks: int
    device: str
    timing: Timing
    gb_per_s: float  # of each rank
    of_copy: float | None = None  # that, over the bandwidth of copies on as many ranks
    scaling: float | None = None  # the time on the smallest world over this one, for the same rows
    ratio: float | None = None  # to the first row here of as many rows and ranks


def blocks(rows):
    """A wave of blocks, or as many as have 4 tiles to read: a GPU reads faster where blocks come
    and go.
    """
    tiles = -(-rows // int(TILE))
    return min(tiles, max(FULL, tiles // 4))


def weighted_sum(x, y, total):
    """Adds up y·exp(−x²); x, y: float32, shape (n,). Loads eight numbers before it uses them; sums
    of four in float32.

    Indices are unsigned, which spares every load the question whether its index counts from the
    end.
    """
    sums = cuda.shared.array(THREADS, float64)
    rows = np.uint64(x.shape[0])
    first = np.uint64(cuda.blockIdx.x) * TILE + np.uint64(cuda.threadIdx.x)
    own = 0.0
    while first + APART + APART + APART < rows:
        second = first + APART
        third = second + APART
        fourth = third + APART
        x0, x1, x2, x3 = x[first], x[second], x[third], x[fourth]
        y0, y1, y2, y3 = y[first], y[second], y[third], y[fourth]
        own += (
            y0 * math.exp(-x0 * x0)
            + y1 * math.exp(-x1 * x1)
            + y2 * math.exp(-x2 * x2)
            + y3 * math.exp(-x3 * x3)
        )
        first += np.uint64(cuda.gridDim.x) * TILE
    while first < rows:  # the tile that is not full
        own += y[first] * math.exp(-x[first] * x[first])
        first += APART
    sums[cuda.threadIdx.x] = own
    half = THREADS // 2
    while half > 0:
        cuda.syncthreads()
        if cuda.threadIdx.x < half:
            sums[cuda.threadIdx.x] += sums[cuda.threadIdx.x + half]
        half //= 2
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(total, 0, sums[0])


_OUTPUTS = {"total": synk.output("sum", shape=(), dtype="float64")}
of_data = synk.parallel(grid=blocks, block=THREADS, outputs=_OUTPUTS)(weighted_sum)
of_variables = synk.parallel(grid=blocks, block=THREADS, outputs=_OUTPUTS, rows=("x", "y"))(
    weighted_sum
)


def measure(
    device: str, worlds: Sequence[int], all_rows: Sequence[int], seconds: float
) -> Iterator[Result]:
    """This library's: frozen Data that all worlds use, and scattered variables."""
    inputs = make_inputs(all_rows)
    for ranks in worlds:
        with synk.fork(ranks, device=device):
            yield measure_copies(device, ranks)
            for rows, (x, y) in inputs.items():
                settings = Settings("pairs", device, (ranks,), (rows,), seconds)
                yield measure_call("frozen Data", partial(of_data, x, y), settings)
                if rows <= MOST_SCATTERED:
                    held = [synk.variable(np.empty(0, np.float32)) for _ in "xy"]
                    synk.scatter(held, [x, y])
                    yield measure_call(
                        "scattered variables", partial(of_variables, *held), settings
                    )


def make_inputs(all_rows: Sequence[int]) -> dict[int, list[synk.Data]]:
    """Both arrays of every length, the same numbers again and again, that may be kept by whoever
    has been sent them.
    """
    inputs = {}
    for rows in sorted(all_rows):
        try:
            inputs[rows] = [synk.data(dtype="float32", shape=(rows,)) for _ in "xy"]
        except synk.SharedMemoryError as error:
            print(f"{rows} rows left out: {error}")
            break
        for array, block in zip(inputs[rows], pairs(), strict=True):
            for start in range(0, rows, BLOCK):
                array.data[start : start + BLOCK] = block[: rows - start]
            array.freeze()
    return inputs


def measure_call(what: str, call: Callable[[], float], settings: Settings) -> Result:
    """Times a call whose result is right."""
    (ranks,), (rows,) = settings.ranks, settings.rows
    for _ in range(2):  # the second may be another path than the first: recorded, without copies
        np.testing.assert_allclose(call(), sum_of_pairs(rows), rtol=1e-5)
    return of_row(Row("synknumba", what, ranks, rows, time_steps(call, settings)), settings.device)


def measure_copies(device: str, ranks: int) -> Result:
    """Of all ranks at the same time."""
    timing, bandwidth = copies(device)
    rows = COPY_BYTES[device] // PAIR_BYTES
    return Result("device memory", "copy", rows, ranks, device, timing, bandwidth)


def of_row(row: Row, device: str) -> Result:
    """With the bytes that each rank reads in a second."""
    bandwidth = PAIR_BYTES * row.rows / row.ranks / (row.timing.median * 1e3)
    return Result(row.library, row.what, row.rows, row.ranks, device, row.timing, bandwidth)


def compared(results: Sequence[Result]) -> list[Result]:
    """Every row beside the copy, beside itself on the smallest world, and beside this library's."""
    smallest = min(result.ranks for result in results)
    copies = {result.ranks: result.gb_per_s for result in results if result.what == "copy"}
    own = {
        (r.rows, r.ranks): r.timing.median
        for r in results
        if (r.library, r.what) == ("synknumba", "frozen Data")
    }
    alone = {(r.library, r.what, r.rows): r.timing.median for r in results if r.ranks == smallest}

    def compare(result: Result) -> Result:
        if result.what == "copy":
            return result
        median = result.timing.median
        base = alone.get((result.library, result.what, result.rows))
        return replace(
            result,
            of_copy=result.gb_per_s / copies[result.ranks],
            scaling=None if base is None else base / median,
            ratio=median / own[result.rows, result.ranks]
            if (result.rows, result.ranks) in own
            else None,
        )

    return [compare(result) for result in results]


def cells(result: Result) -> list[str]:
    """A row of the table."""
    shares = [result.of_copy, result.scaling, result.ratio]
    return [
        f"{result.library}: {result.what}",
        f"{result.rows:,}",
        str(result.ranks),
        *(f"{time:,.1f}" for time in (result.timing.median, result.timing.p99)),
        f"{result.gb_per_s:,.1f}",
        *("" if share is None else f"{share:.2f}" for share in shares),
    ]


HEAD = ("", "rows", "ranks", "median, µs", "p99", "GB/s each", "of copy", "scaling", "ratio")
