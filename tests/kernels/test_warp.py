"""Device functions of warps against NumPy, compiled for a core and checked for races."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies
from numba import cuda
from numpy.testing import assert_allclose, assert_array_equal

from synknumba.kernels import warp


@cuda.jit(device=True)
def second(a, b):
    """Associative, and not commutative: the last value that is not 0."""
    return a if b == 0 else b


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64, np.float32])
def test_sum_and_scan(dtype, run):
    warp_sum, warp_scan, last = warp.sum(dtype), warp.scan(dtype), warp.scan(dtype, second)

    @cuda.jit
    def kernel(x, sums, scans, lasts):
        i = cuda.grid(1)
        sums[i], scans[i], lasts[i] = warp_sum(x[i]), warp_scan(x[i]), last(x[i])

    rng = np.random.default_rng(0)
    if np.dtype(dtype).kind == "f":
        x = rng.normal(size=(4, 32)).astype(dtype)
    else:
        x = rng.integers(0, np.iinfo(dtype).max, (4, 32), dtype)
    x[rng.random(x.shape) < 0.5] = 0
    sums, scans, lasts = np.zeros((3, 128), dtype)
    run(kernel)[2, 64](x.ravel(), sums, scans, lasts)
    compare = assert_array_equal
    if np.dtype(dtype).kind == "f":

        def compare(got, want):
            assert_allclose(got, want, rtol=0, atol=1e-5)

    compare(sums, x.sum(1, dtype=dtype).repeat(32))
    compare(scans, x.cumsum(1, dtype=dtype).ravel())
    places = np.maximum.accumulate(np.where(x != 0, np.arange(32), 0), axis=1)
    assert_array_equal(lasts, np.take_along_axis(x, places, 1).ravel())


@pytest.mark.parametrize("dtype", [np.uint32, np.int64, np.uint64, np.float32, np.float64])
def test_broadcast_and_sort(dtype, run):
    warp_broadcast, warp_sort = warp.broadcast_from(dtype), warp.sort(dtype)

    @run
    def kernel(x, lane, copies, ascending):
        i = cuda.grid(1)
        copies[i] = warp_broadcast(x[i], lane)
        ascending[i] = warp_sort(x[i])

    @settings(max_examples=5, derandomize=True, deadline=None)
    @given(st.integers(0, 31), numpy_strategies.arrays(dtype, (2, 32)))
    def agrees(lane, x):
        if np.dtype(dtype).kind == "f":
            x[0, lane::5] = np.nan
        copies, ascending = np.zeros((2, 64), dtype)
        kernel[1, 64](x.ravel(), lane, copies, ascending)
        assert_array_equal(copies, x[:, lane].repeat(32))
        assert_array_equal(ascending, np.sort(x, axis=1).ravel())

    agrees()


def test_refusals():
    with pytest.raises(TypeError, match="dtype must be an int or a float"):
        warp.broadcast_from(np.int8)
    with pytest.raises(TypeError, match="op must be a device function"):
        warp.scan(np.int32, 3)
