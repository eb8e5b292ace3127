"""The kernels of `_folding` and `_locating` under Numba's CUDA simulator, against NumPy; run by test_locating.py."""

import inspect
import textwrap
from typing import Any

import numpy as np
from numba import cuda

from synknumba._folding import THREADS, fold_kernel
from synknumba._locating import locating_kernels, search_grid
from synknumba._types import UserOp


def simulated(kernel):
    """The kernel with its closure as globals, since there alone the simulator puts itself in the place of `cuda`."""
    names = inspect.getclosurevars(kernel)
    scope = {**names.globals, **names.nonlocals, "Any": Any}  # of the annotations
    exec(textwrap.dedent(inspect.getsource(kernel)), scope)
    return cuda.jit(scope[kernel.__name__])


def main():
    rng = np.random.default_rng(0)
    for op, dtype in (("argmin", "float64"), ("argmax", "int32")):
        search, settle = map(simulated, locating_kernels(op, np.dtype(dtype)))
        n = 300
        scores = rng.integers(0, 50, (n, 2)).astype(dtype)
        if dtype == "float64":
            scores[[7, 290], 1] = np.nan
        grid = search_grid(n, 2)
        found = np.empty((grid[0], 2), dtype), np.empty((grid[0], 2), np.int64)
        values, rows = np.zeros(2, dtype), np.full(2, -1)
        search[grid, THREADS](scores, 100, *found)
        settle[(1, *grid[1:]), THREADS](*found, values, rows)
        wanted = getattr(scores, op)(axis=0)
        np.testing.assert_array_equal(rows, wanted + 100)
        np.testing.assert_array_equal(values, np.take_along_axis(scores, wanted[None], 0)[0])
    fold = simulated(fold_kernel(UserOp(lambda a, b: a * 3 - b, 0, 0)))
    parts = rng.integers(0, 9, (4, 300))
    total = parts[0].copy()
    fold[2, THREADS](total, parts[1:])
    np.testing.assert_array_equal(total, ((parts[0] * 3 - parts[1]) * 3 - parts[2]) * 3 - parts[3])


if __name__ == "__main__":
    main()
    print("as NumPy")
