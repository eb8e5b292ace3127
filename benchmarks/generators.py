"""What a random number costs on one core: each function of `synk.random` in a simt kernel and in an
@njit loop, beside NumPy's Philox.

    python benchmarks/generators.py
    python benchmarks/generators.py --json benchmarks/results/cpu-2core-generators.json

2^18 rows of an array for each number are filled, in turns. "ratio" is that row's median over the
kernel's. NumPy's Generator(Philox) is Philox-4x64-10, with states: its numbers do not depend on row
and draw.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from _common import Timing, arguments, print_table, save, time_in_turns
from numba import cuda, njit

from synknumba import random, simt

ROWS = 2**18
GRID, BLOCK = 4, 256
SEED = 7
NUMPY = np.random.Generator(np.random.Philox(SEED))


@njit
def randint(seed, index, draw):
    """A bounded integer, by the arguments that the others have."""
    return random.randint(seed, index, draw, -1000, 1000)


def integers(low, high):
    """NumPy's integers, which cannot be written into an array that is there."""
    return lambda dtype, out: NUMPY.integers(low, high, out.shape, dtype)


# For each function: how many numbers it returns, their type, and how NumPy fills an array.
FUNCTIONS: dict[str, tuple[Callable[..., Any], int, str, Callable[..., Any]]] = {
    "uniform": (random.uniform, 1, "float64", NUMPY.random),
    "uniform2": (random.uniform2, 2, "float64", NUMPY.random),
    "uniform32": (random.uniform32, 1, "float32", NUMPY.random),
    "uniform4": (random.uniform4, 4, "float32", NUMPY.random),
    "normal": (random.normal, 1, "float64", NUMPY.standard_normal),
    "normal2": (random.normal2, 2, "float64", NUMPY.standard_normal),
    "normal32": (random.normal32, 1, "float32", NUMPY.standard_normal),
    "normal4": (random.normal4, 4, "float32", NUMPY.standard_normal),
    "exponential": (random.exponential, 1, "float64", NUMPY.standard_exponential),
    "randint": (randint, 1, "int64", integers(-1000, 1000)),
    "bits4": (random.bits4, 4, "uint32", integers(0, 2**32)),
}


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table; `timing` in microseconds, `ns` for each number."""

    library: str
    function: str
    numbers: int
    timing: Timing
    ns: float
    ratio: float


def kernel_of(function, numbers):
    """A kernel that fills an array for each number of a row."""

    def single(seed, a):
        for i in range(cuda.grid(1), a.shape[0], cuda.gridsize(1)):
            a[i] = function(seed, i, 0)

    def pair(seed, a, b):
        for i in range(cuda.grid(1), a.shape[0], cuda.gridsize(1)):
            a[i], b[i] = function(seed, i, 0)

    def four(seed, a, b, c, d):
        for i in range(cuda.grid(1), a.shape[0], cuda.gridsize(1)):
            a[i], b[i], c[i], d[i] = function(seed, i, 0)

    return simt.jit({1: single, 2: pair, 4: four}[numbers])[GRID, BLOCK]


def loop_of(function, numbers):
    """The same as a serial loop."""

    def single(seed, a):
        for i in range(a.shape[0]):
            a[i] = function(seed, i, 0)

    def pair(seed, a, b):
        for i in range(a.shape[0]):
            a[i], b[i] = function(seed, i, 0)

    def four(seed, a, b, c, d):
        for i in range(a.shape[0]):
            a[i], b[i], c[i], d[i] = function(seed, i, 0)

    return njit({1: single, 2: pair, 4: four}[numbers])


def measure(name: str, seconds: float) -> list[Result]:
    """A function in a kernel and in a loop, and NumPy's, in turns."""
    function, numbers, dtype, numpy_fill = FUNCTIONS[name]
    kernel, loop = kernel_of(function, numbers), loop_of(function, numbers)
    ours, theirs, numpys = np.zeros((3, numbers, ROWS), dtype)
    calls = {
        "synknumba: simt kernel": lambda: kernel(SEED, *ours),
        "numba: njit loop": lambda: loop(SEED, *theirs),
        "numpy": lambda: numpy_fill(dtype=dtype, out=numpys),
    }
    timings = time_in_turns([*calls.values()], seconds, at_most=400)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    count = ROWS * numbers
    own = timings[0].median
    return [
        Result(library, name, count, timing, 1e3 * timing.median / count, timing.median / own)
        for library, timing in zip(calls, timings, strict=True)
    ]


def main() -> None:
    """Measures, prints, and saves where asked to."""
    args = arguments(__doc__).parse_args()
    results = [result for name in FUNCTIONS for result in measure(name, args.seconds)]
    print_table(
        ["", "function", "ns a number", "ratio"],
        [
            [result.library, result.function, f"{result.ns:.2f}", f"{result.ratio:.2f}"]
            for result in results
        ],
    )
    save(args.json, "generators", results, {"seconds": args.seconds, "rows": ROWS})


if __name__ == "__main__":
    main()
