"""Any grid, block and length: every element is computed once, or left alone."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda

from synknumba import simt
from tests.quick import examples


@simt.jit
def saxpy(a, x, y, out):
    i = cuda.grid(1)
    if i < x.shape[0]:
        out[i] += a * x[i] + y[i]


@simt.jit
def stencil(x, out):
    i = cuda.grid(1)
    if 0 < i < x.shape[0] - 1:
        out[i] += x[i - 1] + x[i + 1]


@simt.jit
def grid_stride(x, out, total):
    acc = 0.0
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        out[i] += math.sqrt(x[i])
        acc += x[i]
    cuda.atomic.add(total, 0, acc)


@simt.jit
def grid_stride_alone(x, out):
    start = cuda.grid(1)
    step = cuda.gridsize(1)
    for i in range(start, x.shape[0], step):
        v = x[i] * 2
        out[i] += v


@simt.jit
def plane(a, out):
    x, y = cuda.grid(2)
    for i in range(y, a.shape[0], cuda.gridsize(2)[1]):
        if x >= a.shape[1]:
            return
        out[i, x] += a[i, x] * 2


lengths = st.integers(0, 70)
grids = st.integers(1, 9)
blocks = st.integers(1, 33)
axes = st.tuples(st.integers(1, 3), st.integers(1, 4))


@settings(max_examples=examples(150, quick=30), derandomize=True, database=None)
@given(lengths, grids, blocks)
def test_rows(n: int, grid: int, block: int) -> None:
    x, y, threads = np.arange(1.0, n + 1), np.ones(n), grid * block
    reached = np.arange(n) < threads
    out = np.zeros(n)
    saxpy[grid, block](2.0, x, y, out)
    np.testing.assert_array_equal(out, np.where(reached, 2 * x + 1, 0))
    out, expected = np.zeros(n), np.zeros(n)
    stencil[grid, block](x, out)
    expected[1:-1] = 2 * x[1:-1]
    np.testing.assert_array_equal(out, np.where(reached, expected, 0))


@settings(max_examples=examples(150, quick=12), derandomize=True, database=None)
@given(lengths, st.tuples(grids, st.integers(1, 2)), st.tuples(blocks, st.integers(1, 1)))
def test_grid_stride(n: int, grid: tuple[int, int], block: tuple[int, int]) -> None:
    x, out, total = np.arange(1.0, n + 1), np.zeros(n), np.zeros(1)
    grid_stride[grid, block](x, out, total)
    np.testing.assert_allclose(out, grid[1] * np.sqrt(x), rtol=1e-12)
    assert total[0] == grid[1] * x.sum()
    out = np.zeros(n)
    grid_stride_alone[grid, block](x, out)
    np.testing.assert_array_equal(out, grid[1] * x * 2)


@settings(max_examples=examples(150, quick=30), derandomize=True, database=None)
@given(st.tuples(st.integers(0, 13), st.integers(0, 13)), axes, axes)
def test_planes(shape: tuple[int, int], grid: tuple[int, int], block: tuple[int, int]) -> None:
    a = np.arange(1.0, shape[0] * shape[1] + 1).reshape(shape)
    out = np.zeros(shape)
    plane[grid, block](a, out)
    columns = grid[0] * block[0]
    np.testing.assert_array_equal(out, np.where(np.arange(shape[1]) < columns, a * 2, 0))
