"""Sums, inner products and extremes by tree reduction in shared memory.

Each thread accumulates its rows in a grid-stride loop. The threads of a block then combine their
values in log2(256) steps:

    v[t] ← v[t] + v[t + s],  t < s,  s = 128, 64, … 1

Source: M. Harris, "Optimizing parallel reduction in CUDA" (NVIDIA, 2007), with sequential
addressing and the first addition during load. Each block writes its partial result to its own slot,
and the at most 512 slots are combined at the end. Without atomics the order of addition is fixed,
so a sum is bitwise reproducible within one world. NaN also propagates: the extremes of rows that
contain NaN are NaN, as in NumPy.

float32 is summed in float64. Integers are converted to float64, exactly up to 2^53.
"""

import numpy as np
from numba import cuda, float64

import synknumba as synk

_BLOCK = 256
_PARTS = 512  # at most; one partial result per block


def _grid(rows):
    """Returns the number of 256-thread blocks: one thread per row, up to 512 blocks; beyond
    that, threads stride over rows.
    """
    return max(1, min(_PARTS, -(-rows // _BLOCK)))


@cuda.jit(device=True)
def _add_up(shared, t):
    """Reduces the block's values to their sum in shared[0]."""
    cuda.syncthreads()
    s = _BLOCK // 2
    while s > 0:
        if t < s:
            shared[t] += shared[t + s]
        cuda.syncthreads()
        s //= 2


@cuda.jit(device=True)
def _least(a, b):
    """Returns the smaller value; NaN if either is NaN."""
    return a if a < b or a != a else b  # noqa: PLR0124  # only NaN differs from itself


@cuda.jit(device=True)
def _greatest(a, b):
    """Returns the larger value; NaN if either is NaN."""
    return a if a > b or a != a else b  # noqa: PLR0124  # only NaN differs from itself


@synk.parallel(
    block=_BLOCK, grid=_grid, outputs={"sums": synk.output("sum", shape=_PARTS, dtype="float64")}
)
@cuda.jit
def block_sums(x, sums):
    """Computes partial sums of x, one per block.

    Args:
        x: real, shape (n,), any unit; sharded.
        sums: partial sums, float64, shape (512,), in the unit of x; Σ x is their sum.
    """
    shared = cuda.shared.array(_BLOCK, float64)
    t = cuda.threadIdx.x
    acc = 0.0
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        acc += x[i]
    shared[t] = acc
    _add_up(shared, t)
    if t == 0:
        sums[cuda.blockIdx.x] = shared[0]


def block_sums_reference(x):
    """NumPy reference for the sum of the partial results."""
    return x.sum(dtype=np.float64)


@synk.parallel(
    block=_BLOCK, grid=_grid, outputs={"sums": synk.output("sum", shape=_PARTS, dtype="float64")}
)
@cuda.jit
def block_products(x, y, sums):
    """Computes partial sums of x y, one per block.

    Args:
        x: real, shape (n,); sharded.
        y: real, shape (n,); sharded.
        sums: partial sums, float64, shape (512,), in the unit of x y; Σ x y is their sum.
    """
    shared = cuda.shared.array(_BLOCK, float64)
    t = cuda.threadIdx.x
    acc = 0.0
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        acc += float64(x[i]) * float64(y[i])
    shared[t] = acc
    _add_up(shared, t)
    if t == 0:
        sums[cuda.blockIdx.x] = shared[0]


def block_products_reference(x, y):
    """NumPy reference for the sum of the partial results."""
    return np.dot(x.astype(np.float64), y.astype(np.float64))


@synk.parallel(
    block=_BLOCK,
    grid=_grid,
    outputs={
        "low": synk.output("min", shape=_PARTS, dtype="float64"),
        "high": synk.output("max", shape=_PARTS, dtype="float64"),
    },
)
@cuda.jit
def block_extremes(x, low, high):
    """Computes the minimum and maximum of x per block.

    Args:
        x: real, shape (n,); sharded.
        low: block minima, float64, shape (512,), in the unit of x; ∞ without rows.
        high: block maxima, float64, shape (512,), in the unit of x; −∞ without rows.
    """
    lows = cuda.shared.array(_BLOCK, float64)
    highs = cuda.shared.array(_BLOCK, float64)
    t = cuda.threadIdx.x
    least = np.inf
    greatest = -np.inf
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        value = float64(x[i])
        least = _least(value, least)
        greatest = _greatest(value, greatest)
    lows[t] = least
    highs[t] = greatest
    cuda.syncthreads()
    s = _BLOCK // 2
    while s > 0:
        if t < s:
            lows[t] = _least(lows[t], lows[t + s])
            highs[t] = _greatest(highs[t], highs[t + s])
        cuda.syncthreads()
        s //= 2
    if t == 0:
        low[cuda.blockIdx.x] = lows[0]
        high[cuda.blockIdx.x] = highs[0]


def block_extremes_reference(x):
    """NumPy reference; returns (minimum, maximum) over all blocks."""
    return float(x.min()), float(x.max())


@synk.parallel(
    block=(32, 8),
    grid=256,
    outputs={"sums": synk.output("sum", shape=lambda args: args["x"].shape[1:], dtype="float64")},
)
@cuda.jit
def column_sums(x, sums):
    """Computes the column sums of a matrix.

    Adjacent threads take adjacent columns, so that reads coalesce.

    Args:
        x: real, shape (n, d), C-contiguous; sharded.
        sums: float64, shape (d,).
    """
    first = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    for j in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
        acc = 0.0
        for i in range(first, x.shape[0], cuda.gridDim.x * cuda.blockDim.y):
            acc += x[i, j]
        cuda.atomic.add(sums, j, acc)


def column_sums_reference(x):
    """NumPy reference."""
    return x.sum(axis=0, dtype=np.float64)


def total(x):
    """Returns Σ x, a float, for an array or `Data` of shape (n,)."""
    return float(block_sums(x).sum())


def dot(x, y):
    """Returns Σ x y, a float, for arrays or `Data` of shape (n,)."""
    return float(block_products(x, y).sum())


def extremes(x):
    """Returns the minimum and maximum, floats, of an array or `Data` of shape (n,) with n ≥ 1."""
    result = block_extremes(x)
    return float(result.low.min()), float(result.high.max())
