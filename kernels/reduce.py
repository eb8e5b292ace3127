"""Sums, inner products and extremes by the classic tree in a block's shared memory.

A thread adds up its rows, in strides over the grid. The threads of a block then put their values together in log2(256) steps:

    v[t] ← v[t] + v[t + s],  t < s,  s = 128, 64, … 1

Source: M. Harris, "Optimizing parallel reduction in CUDA" (NVIDIA, 2007), with sequential addressing and a first addition at
the load. Each block writes its result to a place of its own, and the few hundred places are put together at the end. No atomic
operation means one order of addition: in one world, a sum has the same bits every time. It also means that NaN is kept: an
extreme of rows with a NaN among them is NaN, as in NumPy.

float32 is summed in float64. Rows that are integers are converted, exactly up to 2^53.
"""

import numpy as np
from numba import cuda, float64

import synknumba as synk

_BLOCK = 256
_PARTS = 512  # blocks at most, each with a result of its own


def _grid(rows):
    """At least a row for each thread; beyond 512 blocks, threads walk over the rows in strides."""
    return max(1, min(_PARTS, -(-rows // _BLOCK)))


@cuda.jit(device=True)
def _add_up(shared, t):
    """Leaves the sum of the block's values in shared[0]."""
    cuda.syncthreads()
    s = _BLOCK // 2
    while s > 0:
        if t < s:
            shared[t] += shared[t + s]
        cuda.syncthreads()
        s //= 2


@cuda.jit(device=True)
def _least(a, b):
    """The smaller one; NaN where one is NaN."""
    return a if a < b or a != a else b  # noqa: PLR0124  # only NaN differs from itself


@cuda.jit(device=True)
def _greatest(a, b):
    """The larger one; NaN where one is NaN."""
    return a if a > b or a != a else b  # noqa: PLR0124  # only NaN differs from itself


@synk.parallel(block=_BLOCK, grid=_grid, outputs={"sums": synk.output("sum", shape=_PARTS, dtype="float64")})
@cuda.jit
def block_sums(x, sums):
    """Σ x, in parts, one a block.

    Args:
        x: real, shape (n,), any unit; sharded.
        sums: float64, shape (512,), in the unit of x; their sum is the result.
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
    """Their sum, with NumPy."""
    return x.sum(dtype=np.float64)


@synk.parallel(block=_BLOCK, grid=_grid, outputs={"sums": synk.output("sum", shape=_PARTS, dtype="float64")})
@cuda.jit
def block_products(x, y, sums):
    """Σ x y, in parts, one a block.

    Args:
        x: real, shape (n,); sharded.
        y: real, shape (n,); sharded.
        sums: float64, shape (512,), in the unit of x y; their sum is the result.
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
    """Their sum, with NumPy."""
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
    """The least and the greatest x, in parts, one a block.

    Args:
        x: real, shape (n,); sharded.
        low: float64, shape (512,), in the unit of x; their minimum is the result, ∞ where there are no rows.
        high: float64, shape (512,); their maximum is the result, −∞ where there are no rows.
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
    """Their extremes, with NumPy."""
    return float(x.min()), float(x.max())


@synk.parallel(
    block=(32, 8),
    grid=256,
    outputs={"sums": synk.output("sum", shape=lambda args: args["x"].shape[1:], dtype="float64")},
)
@cuda.jit
def column_sums(x, sums):
    """Σ over the rows of a matrix, for each column.

    Neighbouring threads take neighbouring columns, so that they read neighbouring elements.

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
    """The same with NumPy."""
    return x.sum(axis=0, dtype=np.float64)


def total(x):
    """Σ x, a float; x: array or `Data` of shape (n,)."""
    return float(block_sums(x).sum())


def dot(x, y):
    """Σ x y, a float; x, y: arrays or `Data` of shape (n,)."""
    return float(block_products(x, y).sum())


def extremes(x):
    """The least and the greatest x, floats; x: array or `Data` of shape (n,) with n ≥ 1."""
    result = block_extremes(x)
    return float(result.low.min()), float(result.high.max())
