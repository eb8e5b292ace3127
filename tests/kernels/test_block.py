"""Device functions of blocks against NumPy, compiled for a core and checked for races."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda
from numpy.testing import assert_allclose, assert_array_equal

from synknumba import simt
from synknumba.kernels import block

DTYPES = (np.uint32, np.int64, np.float32, np.float64)
quick = settings(max_examples=5, derandomize=True, deadline=None)
seeds = st.integers(0, 2**32 - 1)


@cuda.jit(device=True)
def larger(a, b):
    return max(a, b)


def applied(function):
    """A kernel that writes what each thread gets."""

    @cuda.jit
    def kernel(x, out):
        i = cuda.grid(1)
        out[i] = function(x[i])

    return kernel


def applied_to_items(function, items, dtype):
    @cuda.jit
    def kernel(x, out):
        values = cuda.local.array(items, dtype)
        i = cuda.grid(1)
        for k in range(items):
            values[k] = x[i, k]
        out[i] = function(values)

    return kernel


def drawn(seed, shape, dtype):
    """Random values; integers of all bits, so that sums wrap."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return rng.normal(size=shape).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def close(got, want):
    if got.dtype.kind == "f":
        eps = np.finfo(got.dtype).eps
        assert_allclose(got, want, rtol=0, atol=64 * eps * max(1.0, np.abs(want).max()))
    else:
        assert_array_equal(got, want)


@pytest.mark.parametrize("threads", [1, 7, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sum_and_reduce(dtype, threads):
    sums = simt.jit(applied(block.sum(dtype, threads)))
    maxima = simt.jit(applied(block.reduce(dtype, threads, larger)))

    @quick
    @given(seeds)
    def agrees(seed):
        x = drawn(seed, (3, threads), dtype)
        out = np.zeros(x.size, dtype)
        sums[3, threads](x.ravel(), out)
        close(out, x.sum(1, dtype=dtype).repeat(threads))
        maxima[3, threads](x.ravel(), out)
        assert_array_equal(out, x.max(1).repeat(threads))

    agrees()


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_sum_of_items(dtype):
    x = drawn(1, (128, 8), dtype)
    out = np.zeros(128, dtype)
    simt.jit(applied_to_items(block.sum(dtype, 64, items=8), 8, dtype))[2, 64](x, out)
    close(out, x.reshape(2, -1).sum(1, dtype=dtype).repeat(64))


@pytest.mark.parametrize("threads", [7, 64])
def test_no_races(threads):
    block_sum = block.sum(np.float32, threads)

    @cuda.jit
    def twice(x, out):  # the second call must wait for the first one's readers
        i = cuda.grid(1)
        out[i] = block_sum(x[i]) + block_sum(x[i])

    x = np.ones(threads, np.float32)
    out = np.zeros_like(x)
    simt.check(twice)[1, threads](x, out)
    assert_array_equal(out, 2 * threads)


def test_refusals():
    for threads in (0, 1025):
        with pytest.raises(ValueError, match=f"threads must be 1 to 1024, got {threads}"):
            block.sum(np.float32, threads)
    for dtype in (np.complex64, np.bool_, "S3", np.int8):
        with pytest.raises(TypeError, match="dtype must be"):
            block.sum(dtype, 32)
    with pytest.raises(ValueError, match="items must be at least 1, got 0"):
        block.sum(np.float32, 32, items=0)
    with pytest.raises(TypeError, match="op must be a device function"):
        block.reduce(np.float32, 32, 3)
