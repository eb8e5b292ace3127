"""What do the device functions of `synknumba.kernels.block` cost? A sum, a scan, a sort and a
histogram of tiles of 2,048 elements, by blocks of 256 threads with 8 items each.

    python benchmarks/kernels.py
    python benchmarks/kernels.py --device cuda --json benchmarks/results/h200-kernels.json

On one core the simt kernel is called in turns with an @njit loop and NumPy; on a GPU with a kernel
of CUB's block algorithms, which CuPy compiles. "copy" moves as many bytes as a scan and a sort do,
and is the limit of both. All results are compared with NumPy's before, to the last bit: sums of
these elements are exact in float32. "ratio" is that row's median over the kernel's.
"""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from _common import Timing, arguments, print_table, save, time_in_turns
from numba import cuda, njit

from synknumba import simt
from synknumba.kernels import block

THREADS, ITEMS = 256, 8
TILE = THREADS * ITEMS
BINS = 256
TILES = {"cpu": 128, "cuda": 1 << 15}  # 1 MiB, which a core's cache holds; 256 MiB
LAUNCHES = 20  # on a GPU, before the script waits for them: one costs more than its kernel


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table; `timing` of a launch in microseconds, `ns` for each element."""

    library: str
    work: str
    elements: int
    timing: Timing
    ns: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Work:
    """What is computed, by whom.

    Attributes:
        kernel: makes the kernel.
        loop: of one core.
        numpy: the result.
        header: of CUB.
        cub: its class, with the template's arguments.
        body: what is done with `values` by a `Cub(shared)`, and with the result `out`.
        tiles: whether the values are neighbours, and are written to `out` again.
    """

    kernel: Callable[[], Callable[..., None]]
    loop: Callable[[Any, Any], None]
    numpy: Callable[[Any], Any]
    header: str
    cub: str
    body: str
    tiles: bool = False


def sum_kernel():
    """The sum of each tile."""
    block_sum = block.sum(np.float32, THREADS, ITEMS)

    def kernel(x, out):
        values = cuda.local.array(ITEMS, np.float32)
        for k in range(ITEMS):
            values[k] = x[cuda.blockIdx.x * TILE + k * THREADS + cuda.threadIdx.x]
        total = block_sum(values)
        if cuda.threadIdx.x == 0:
            out[cuda.blockIdx.x] = total

    return kernel


def kernel_of_tiles(function):
    """What a device function makes of each tile."""
    load, store = block.load(np.float32, THREADS, ITEMS), block.store(np.float32, THREADS, ITEMS)

    def kernel(x, out):
        values = cuda.local.array(ITEMS, np.float32)
        first = cuda.blockIdx.x * TILE
        load(x, first, values)
        function(values)
        store(out, first, values)

    return kernel


def histogram_kernel():
    """Counts of all elements, each of which is a bin."""
    histogram = block.histogram(THREADS, BINS, ITEMS)

    def kernel(x, out):
        values = cuda.local.array(ITEMS, np.int32)
        for k in range(ITEMS):
            values[k] = x[cuda.blockIdx.x * TILE + k * THREADS + cuda.threadIdx.x] % BINS
        histogram(values, out)

    return kernel


@njit
def sum_loop(x, out):
    for tile in range(out.size):
        total = np.float32(0)
        for i in range(tile * TILE, (tile + 1) * TILE):
            total += x[i]
        out[tile] = total


@njit
def scan_loop(x, out):
    for first in range(0, x.size, TILE):
        total = np.float32(0)
        for i in range(first, first + TILE):
            total += x[i]
            out[i] = total


@njit
def sort_loop(x, out):
    for first in range(0, x.size, TILE):
        out[first : first + TILE] = np.sort(x[first : first + TILE])


@njit
def histogram_loop(x, out):
    for i in range(x.size):
        out[np.int32(x[i]) % BINS] += 1


WORKS = {
    "sum": Work(
        sum_kernel,
        sum_loop,
        lambda x: x.reshape(-1, TILE).sum(axis=1),
        "reduce",
        f"BlockReduce<float, {THREADS}>",
        "float total = Cub(shared).Sum(values); if (t == 0) out[blockIdx.x] = total;",
    ),
    "scan": Work(
        lambda: kernel_of_tiles(block.inclusive_scan(np.float32, THREADS, items=ITEMS)),
        scan_loop,
        lambda x: x.reshape(-1, TILE).cumsum(axis=1).ravel(),
        "scan",
        f"BlockScan<float, {THREADS}>",
        "Cub(shared).InclusiveSum(values, values);",
        tiles=True,
    ),
    "sort": Work(
        lambda: kernel_of_tiles(block.sort(np.float32, THREADS, items=ITEMS)),
        sort_loop,
        lambda x: np.sort(x.reshape(-1, TILE), axis=1).ravel(),
        "radix_sort",
        f"BlockRadixSort<float, {THREADS}, {ITEMS}>",
        "Cub(shared).Sort(values);",
        tiles=True,
    ),
    "histogram": Work(
        histogram_kernel,
        histogram_loop,
        lambda x: np.bincount(x.astype(np.int32) % BINS, minlength=BINS),
        "histogram",
        f"BlockHistogram<int, {THREADS}, {ITEMS}, {BINS}, cub::BLOCK_HISTO_ATOMIC>",
        f"""
        __shared__ int counts[{BINS}];
        int bins[{ITEMS}];
        for (int k = 0; k < {ITEMS}; ++k) bins[k] = (int) values[k] % {BINS};
        Cub(shared).Histogram(bins, counts);
        __syncthreads();
        for (int b = t; b < {BINS}; b += {THREADS}) atomicAdd(out + b, (float) counts[b]);
        """,
    ),
}


def cub_source(work: Work) -> str:
    """A kernel in CUDA C++ that does the same with CUB's algorithm."""
    load = f"cub::LoadDirectStriped<{THREADS}>(t, x + first, values);"
    store = ""
    if work.tiles:
        load = "Load(moved.load).Load(x + first, values); __syncthreads();"
        store = "__syncthreads(); Store(moved.store).Store(out + first, values);"
    return f"""
#include <cub/block/block_load.cuh>
#include <cub/block/block_store.cuh>
#include <cub/block/block_{work.header}.cuh>
using Cub = cub::{work.cub};
using Load = cub::BlockLoad<float, {THREADS}, {ITEMS}, cub::BLOCK_LOAD_TRANSPOSE>;
using Store = cub::BlockStore<float, {THREADS}, {ITEMS}, cub::BLOCK_STORE_TRANSPOSE>;
extern "C" __global__ void __launch_bounds__({THREADS}) kernel(const float* x, float* out)
{{
    __shared__ union {{ Load::TempStorage load; Store::TempStorage store; }} moved;
    __shared__ Cub::TempStorage shared;
    int t = threadIdx.x, first = blockIdx.x * {TILE};
    float values[{ITEMS}];
    {load}
    {work.body}
    {store}
}}
"""


def on_a_core(work: Work, x: Any, out: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Launches, by library."""
    kernel = simt.jit(work.kernel())[x.size // TILE, THREADS]
    target = np.empty_like(x)
    yield "synknumba: simt kernel", lambda: kernel(x, out)
    yield "numba: njit loop", lambda: work.loop(x, out)
    yield "numpy", lambda: np.copyto(out, work.numpy(x))
    yield "copy", lambda: np.copyto(target, x)


def on_a_gpu(work: Work, x: Any, out: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Launches, by library, of arrays of CuPy."""
    import cupy

    tiles = x.size // TILE
    kernel = cuda.jit(work.kernel())[tiles, THREADS]
    own = cuda.as_cuda_array(x), cuda.as_cuda_array(out)
    cub = cupy.RawModule(code=cub_source(work), options=("-std=c++17",)).get_function("kernel")
    target = cupy.empty_like(x)
    yield "synknumba: numba-cuda", lambda: kernel(*own)
    yield "CUB, by CuPy", lambda: cub((tiles,), (THREADS,), (x, out))
    yield "copy", lambda: cupy.copyto(target, x)


def repeated(launch: Callable[[], Any]) -> None:
    """Launches on a GPU, and waits."""
    for _ in range(LAUNCHES):
        launch()
    cuda.synchronize()


def measure(name: str, device: str, tiles: int, seconds: float) -> list[Result]:
    """All candidates in turns, after the results have been compared."""
    work = WORKS[name]
    library = importlib.import_module("numpy" if device == "cpu" else "cupy")
    host = np.random.default_rng(1).integers(0, 1 << 13, tiles * TILE).astype(np.float32)
    exact = work.numpy(host)
    x, out = library.asarray(host), library.zeros(exact.size, np.float32)
    candidates = on_a_core if device == "cpu" else on_a_gpu
    launches = dict(candidates(work, x, out))
    for who, launch in launches.items():
        out.fill(0)  # a histogram adds to it
        launch()
        if who != "copy":
            library.testing.assert_array_equal(out, library.asarray(exact, np.float32), who)
    if device == "cpu":
        timings = time_in_turns([*launches.values()], seconds)
    else:
        steps = [partial(repeated, launch) for launch in launches.values()]
        timings = [each(timing) for timing in time_in_turns(steps, seconds)]
    own = timings[0].median
    return [
        Result(who, name, host.size, timing, 1e3 * timing.median / host.size, timing.median / own)
        for who, timing in zip(launches, timings, strict=True)
    ]


def each(timing: Timing) -> Timing:
    """The time of one of LAUNCHES launches."""
    times = (timing.median, timing.p99, timing.minimum)
    return Timing(*(time / LAUNCHES for time in times), timing.calls)


def main() -> None:
    """Measures, prints, and saves where asked to."""
    parser = arguments(__doc__)
    parser.add_argument("--works", nargs="+", choices=WORKS, default=[*WORKS])
    parser.add_argument("--tiles", type=int, help="default: 128; on a GPU 2^15")
    args = parser.parse_args()
    tiles = args.tiles or TILES[args.device]
    results = [
        result for name in args.works for result in measure(name, args.device, tiles, args.seconds)
    ]
    print_table(
        ["", "work", "µs", "ns an element", "ratio"],
        [
            [row.library, row.work, f"{row.timing.median:.1f}", f"{row.ns:.4f}", f"{row.ratio:.2f}"]
            for row in results
        ],
    )
    save(args.json, "kernels", results, {"seconds": args.seconds, "tiles": tiles})


if __name__ == "__main__":
    main()
