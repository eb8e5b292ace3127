"""The kernels of `fold_kernel` and `argmin_kernel` under Numba's CUDA simulator, against NumPy;
run by test_locating.py.
"""

import inspect
import textwrap
from typing import Any

import numpy as np
from numba import cuda

from synknumba._device.argmin_kernel import THREADS, locating_kernels, search_grid
from synknumba._device.fold_kernel import fold_kernel
from synknumba._types import UserOp


def simulated(kernel):
    """The kernel with its closure as globals, since there alone the simulator puts itself in the
    place of `cuda`.
    """
    names = inspect.getclosurevars(kernel)
    scope = {**names.globals, **names.nonlocals, "Any": Any}  # of the annotations
    exec(textwrap.dedent(inspect.getsource(kernel)), scope)
    return cuda.jit(scope[kernel.__name__])


def main():
    rng = np.random.default_rng(0)
    for op, dtype, n, columns in (("argmax", "float64", 300, 2), ("argmin", "int64", 200, 1)):
        search, settle = map(simulated, locating_kernels(op, np.dtype(dtype)))
        scores = rng.integers(-50, 50, (n, columns)).astype(dtype)
        if dtype == "float64":
            scores[[7, 290], 1] = np.nan
        grid = search_grid(n, columns)
        found = np.empty((grid[0], columns), dtype), np.empty((grid[0], columns), np.int64)
        values, rows = np.zeros(columns, dtype), np.full(columns, -1)
        search[grid, THREADS](scores, 100, *found)
        settle[(1, *grid[1:]), THREADS](*found, values, rows)
        wanted = getattr(scores, op)(axis=0)
        np.testing.assert_array_equal(rows, wanted + 100)
        np.testing.assert_array_equal(values, np.take_along_axis(scores, wanted[None], 0)[0])
    fold = simulated(fold_kernel(UserOp(lambda a, b: a * 3 - b, 0, 0)))
    parts = rng.integers(0, 9, (4, 300))
    total = parts[0].copy()
    fold[2, 40](total, parts[1:])
    np.testing.assert_array_equal(total, ((parts[0] * 3 - parts[1]) * 3 - parts[2]) * 3 - parts[3])


if __name__ == "__main__":
    main()
    print("as NumPy")
