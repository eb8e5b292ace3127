"""Sums of grids against NumPy, compiled for a core, checked, on a GPU, and on ranks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from synknumba.kernels import grid


@pytest.mark.parametrize(("dtype", "threads"), [(np.uint32, 1), (np.int64, 7), (np.float32, 64)])
def test_sum(dtype, threads, run):
    grid_sum = grid.sum(dtype, threads)

    @run
    def kernel(x, partials, counter, out):
        i = cuda.grid(1)
        grid_sum(x[i] if i < x.shape[0] else dtype(0), partials, counter, out)

    @settings(max_examples=3, derandomize=True, deadline=None)
    @given(st.integers(0, 2**32 - 1), st.integers(1, 3 * threads))
    def agrees(seed, n):
        x = (np.random.default_rng(seed).normal(size=n) * 1e3).astype(np.int64).astype(dtype)
        blocks = -(-n // threads)
        partials, counter = np.full(blocks, 7, dtype), np.zeros(1, np.uint32)
        for _ in range(2):  # launched again, with the counter that the first launch leaves
            out = np.zeros(1, dtype)
            kernel[blocks, threads](x, partials, counter, out)
            assert_array_equal(out, x.sum(dtype=dtype))
            assert counter[0] == 0

    agrees()


def test_more_blocks_than_threads_in_a_fixed_order(run):
    grid_sum = grid.sum(np.float32, 8)

    @run
    def kernel(x, partials, counter, out):
        grid_sum(x[cuda.grid(1)], partials, counter, out)

    x = np.random.default_rng(0).normal(size=37 * 8).astype(np.float32)
    partials, counter = np.zeros(37, np.float32), np.zeros(1, np.uint32)
    sums = np.zeros((3, 1), np.float32)
    for out in sums:
        kernel[37, 8](x, partials, counter, out)
    assert_allclose(sums[0], x.sum(dtype=np.float64), atol=1e-4)
    assert_array_equal(sums.view(np.uint32), sums.view(np.uint32)[0, 0])


@pytest.mark.parametrize("num_slices", [1, 3])
def test_on_ranks(num_slices):
    """Each rank has partial sums and a counter of its own, and the ranks' sums are added."""
    grid_sum = grid.sum(np.float64, 64)

    @synk.parallel(
        outputs={"total": synk.output("sum", shape=1, dtype="float64")}, grid=5, block=64
    )
    @cuda.jit
    def mean_square(x, partials, counter, total):
        value = 0.0
        for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
            value += x[i] * x[i]
        grid_sum(value, partials, counter, total)

    with synk.fork(2, device="cpu"):
        x = np.random.default_rng(0).normal(size=1001)
        partials = synk.variable(np.zeros(5))
        counter = synk.variable(np.zeros(1, np.uint32))
        for _ in range(2):
            got = mean_square(x, partials, counter, num_slices=num_slices)
            assert_allclose(got, [(x * x).sum()], rtol=1e-13)
        assert_array_equal(counter.get_value(), 0)


def test_refusals():
    with pytest.raises(ValueError, match="threads must be 1 to 1024, got 2048"):
        grid.sum(np.float32, 2048)
    with pytest.raises(TypeError, match="dtype must be an int or a float"):
        grid.sum(np.complex64, 32)
