"""The mean of exp(−x²)·cos(3x) on one core: a simt kernel, beside NumPy, a plain @njit loop and
torch's eager operators.

    python benchmarks/expcos.py
    python benchmarks/expcos.py --json benchmarks/results/cpu-2core-expcos.json

What vector math is worth: the kernel's exp and cos take many elements at once, those of the njit
loop one. torch and NumPy have vector versions too, but write every intermediate array to memory.
Everything is timed in turns on one thread, so that whatever else the machine does is in all of
them. "ratio" is that row's median over the kernel's. torch is left out where it is not installed.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from _common import Timing, arguments, print_table, save, summarise
from numba import cuda, njit

from synknumba import simt
from synknumba.simt._machine.vector_math import describe

ROWS = (10_000, 100_000, 1_000_000, 10_000_000)
DTYPES = ("float64", "float32")
CALLS = (11, 3000)  # at least and at most for each row of the table
GRID, BLOCK = 4, 256


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table; times in microseconds."""

    library: str
    dtype: str
    rows: int
    timing: Timing
    ratio: float


@simt.jit
def expcos_kernel(x, total):
    """Adds up exp(−x²)·cos(3x): one atomic addition for each thread."""
    acc = x.dtype.type(0)
    three = x.dtype.type(3)
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        acc += math.exp(-x[i] * x[i]) * math.cos(three * x[i])
    cuda.atomic.add(total, 0, acc)


@njit
def expcos_loop(x):
    """The same, as one would write it for one core."""
    acc = x.dtype.type(0)
    three = x.dtype.type(3)
    for i in range(x.shape[0]):
        acc += math.exp(-x[i] * x[i]) * math.cos(three * x[i])
    return acc


def kernel_mean(x, total):
    """A launch, the sum set to zero before it."""
    total[0] = 0
    expcos_kernel[GRID, BLOCK](x, total)
    return total[0] / x.shape[0]


def numpy_mean(x):
    """Whole arrays at a time."""
    return (np.exp(-x * x) * np.cos(3 * x)).mean()


def candidates(x) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What is timed, for one array."""
    total = np.zeros(1, x.dtype)
    yield "synknumba: simt kernel", lambda: kernel_mean(x, total)
    yield "numba: njit loop", lambda: expcos_loop(x) / x.shape[0]
    yield "numpy", lambda: numpy_mean(x)
    if find_spec("torch"):
        import torch

        torch.set_num_threads(1)
        tensor = torch.from_numpy(x)
        yield (
            "torch, eager",
            lambda: (torch.exp(-tensor * tensor) * torch.cos(3 * tensor)).mean().item(),
        )


def measure(dtype: str, rows: int, seconds: float) -> list[Result]:
    """All candidates in turns, after the results have been compared."""
    x = np.random.default_rng(1).standard_normal(rows).astype(dtype)
    exact = numpy_mean(x.astype(np.float64))
    calls = dict(candidates(x))
    times: dict[str, list[int]] = {name: [] for name in calls}
    for name, call in calls.items():
        # A float32 sum of n terms, one after the other, errs by up to n units in the last place of
        # the sum.
        assert abs(call() - exact) < np.finfo(dtype).eps * max(64, rows / 64), name
    end = time.monotonic() + seconds * len(calls)
    while len(times["numpy"]) < CALLS[0] or (
        time.monotonic() < end and len(times["numpy"]) < CALLS[1]
    ):
        for name, call in calls.items():
            start = time.perf_counter_ns()
            call()
            times[name].append(time.perf_counter_ns() - start)
    timings = {name: summarise(taken) for name, taken in times.items()}
    own = next(iter(timings.values())).median
    return [
        Result(name, dtype, rows, timing, timing.median / own) for name, timing in timings.items()
    ]


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    return parser.parse_args()


def main() -> None:
    """Measures, prints, and saves where asked to."""
    args = parsed()
    results = [
        result
        for dtype in DTYPES
        for rows in args.rows
        for result in measure(dtype, rows, args.seconds)
    ]

    def cells(result: Result) -> list[str]:
        ns = result.timing.median * 1e3 / result.rows
        return [
            result.library,
            result.dtype,
            f"{result.rows:,}",
            f"{result.timing.median:,.1f}",
            f"{ns:.2f}",
            f"{result.ratio:.2f}",
        ]

    print(f"mean of exp(-x²)·cos(3x) on one core; vector math: {', '.join(describe()) or 'none'}")
    print_table(
        ["", "dtype", "rows", "median, µs", "ns a row", "ratio"],
        [cells(result) for result in results],
    )
    save(
        args.json,
        "expcos",
        results,
        {"seconds": args.seconds, "grid": GRID, "block": BLOCK, "vector_math": describe()},
    )


if __name__ == "__main__":
    main()
