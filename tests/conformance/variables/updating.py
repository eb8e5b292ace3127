"""Kernels and functions that update a variable, one for each op, with and without reading what
it was.
"""

from typing import Any

import numpy as np
from numba import cuda

import synknumba as synk

# ---- kernels: x is (n, d), acc and old are (d,) --------------------------------------------------


def sums(x, acc):
    for j in range(acc.shape[0]):
        for i in range(x.shape[0]):
            acc[j] += x[i, j]


def sums_with(x, old, acc):
    for j in range(acc.shape[0]):
        for i in range(x.shape[0]):
            acc[j] += x[i, j] * old[j]


def products(x, acc):
    for j in range(acc.shape[0]):
        for i in range(x.shape[0]):
            acc[j] *= x[i, j]


def products_with(x, old, acc):
    for j in range(acc.shape[0]):
        for i in range(x.shape[0]):
            acc[j] *= x[i, j] * old[j]


def minima(x, acc):
    for j in range(acc.shape[0]):
        for i in range(x.shape[0]):
            acc[j] = min(acc[j], x[i, j])


def minima_with(x, old, acc):
    for j in range(acc.shape[0]):
        for i in range(x.shape[0]):
            acc[j] = min(acc[j], x[i, j] * old[j])


def maxima(x, acc):
    for j in range(acc.shape[0]):
        for i in range(x.shape[0]):
            acc[j] = max(acc[j], x[i, j])


def maxima_with(x, old, acc):
    for j in range(acc.shape[0]):
        for i in range(x.shape[0]):
            acc[j] = max(acc[j], x[i, j] * old[j])


KERNELS = {
    "sum": (sums, sums_with),
    "prod": (products, products_with),
    "min": (minima, minima_with),
    "max": (maxima, maxima_with),
}


def make_kernel(variable: synk.Variable, op: str, *, reads: bool) -> Any:
    """A kernel that updates the variable."""
    givens = {"old": variable} if reads else {}
    kernel = cuda.jit(KERNELS[op][reads])
    return synk.parallel(updates={"acc": (variable, op)}, givens=givens, block=1, grid=1)(kernel)


# ---- Python functions ----------------------------------------------------------------------------


def put_together(op: str, acc: Any, rows: Any) -> None:
    """Accumulates rows of NumPy or of CuPy."""
    if op == "sum":
        acc += rows.sum(0, dtype=rows.dtype)
    elif op == "prod":
        acc *= rows.prod(0, dtype=rows.dtype)
    elif op == "min":
        np.minimum(acc, rows.min(0), out=acc)  # CuPy's, of arrays of CuPy
    else:
        np.maximum(acc, rows.max(0), out=acc)


def make_function(variable: synk.Variable, op: str, *, reads: bool) -> Any:
    """A Python function that updates the variable."""

    def with_old(x, old, acc):
        put_together(op, acc, x * old)

    def without(x, acc):
        put_together(op, acc, x)

    givens = {"old": variable} if reads else {}
    return synk.function(updates={"acc": (variable, op)}, givens=givens)(
        with_old if reads else without
    )
