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
few = settings(quick, max_examples=3)
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


@pytest.mark.parametrize(
    ("dtype", "threads"), [(np.uint32, 1), (np.int64, 96), (np.float32, 7), (np.float32, 96)]
)
def test_extrema(dtype, threads, run):
    argmin, argmax = block.argmin(dtype, threads), block.argmax(dtype, threads)

    @run
    def kernel(x, values, places):
        i = cuda.grid(1)
        values[0, i], places[0, i] = argmin(x[i], i)
        values[1, i], places[1, i] = argmax(x[i], i)

    @few
    @given(seeds)
    def agrees(seed):
        x = drawn(seed, (2, threads), dtype) % dtype(3)  # equal ones, too
        if np.dtype(dtype).kind == "f":
            x[0, seed % threads :: 5] = np.nan
        values, places = np.zeros((2, x.size), dtype), np.zeros((2, x.size), np.int64)
        kernel[2, threads](x.ravel(), values, places)
        for got, place, numpy in zip(values, places, (np.argmin, np.argmax), strict=True):
            wanted = (numpy(x, axis=1) + np.array([0, threads])).repeat(threads)
            assert_array_equal(place, wanted)
            assert_array_equal(got, x.ravel()[wanted])

    agrees()


@pytest.mark.parametrize(("threads", "bins", "items"), [(1, 3, None), (7, 40, None), (32, 9, 4)])
def test_histogram(threads, bins, items, run):
    block_histogram = block.histogram(threads, bins, items)

    def count_value(x, counts):
        block_histogram(x[cuda.grid(1), 0], counts)

    def count_items(x, counts):
        block_histogram(x[cuda.grid(1)], counts)

    kernel = run(count_value if items is None else count_items)

    @few
    @given(seeds)
    def agrees(seed):
        shape = (3 * threads, items or 1)
        x = np.random.default_rng(seed).integers(-2, bins + 2, shape, np.int32)
        counts = np.arange(bins)
        kernel[3, threads](x, counts)
        wanted = np.bincount(x[(x >= 0) & (x < bins)], minlength=bins)
        assert_array_equal(counts, np.arange(bins) + wanted)

    agrees()


@pytest.mark.parametrize(
    ("dtype", "threads", "items"), [(np.float64, 1, 1), (np.float64, 7, 5), (np.uint32, 64, 4)]
)
def test_load_exchange_and_store(dtype, threads, items, run):
    load, store = block.load(dtype, threads, items, fill=3), block.store(dtype, threads, items)
    to_striped = block.exchange(dtype, threads, items, "striped")
    to_blocked = block.exchange(dtype, threads, items, "blocked")
    tile = threads * items

    @run
    def kernel(x, copy, blocked, striped):
        values = cuda.local.array(items, dtype)
        t, first = cuda.grid(1), cuda.blockIdx.x * tile
        load(x, first, values)
        for k in range(items):
            blocked[t, k] = values[k]
        to_striped(values)
        for k in range(items):
            striped[t, k] = values[k]
        to_blocked(values)
        store(copy, first, values)

    @few
    @given(seeds, st.integers(1, 2 * tile))
    def agrees(seed, n):
        x = drawn(seed, n, dtype)
        copy, (blocked, striped) = np.zeros(n, dtype), np.zeros((2, 2 * threads, items), dtype)
        kernel[2, threads](x, copy, blocked, striped)
        assert_array_equal(copy, x)
        tiles = np.full(2 * tile, 3, dtype)
        tiles[:n] = x
        assert_array_equal(blocked.ravel(), tiles)
        wanted = tiles.reshape(2, items, threads).transpose(0, 2, 1)
        assert_array_equal(striped, wanted.reshape(-1, items))

    agrees()


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
    with pytest.raises(ValueError, match="bins must be at least 1, got 0"):
        block.histogram(32, 0)
    block.histogram(32, 12288)
    with pytest.raises(ValueError, match=r"bins=12289 .* 49152 bytes .* 49156 .* cuda.atomic.add"):
        block.histogram(32, 12289)
    with pytest.raises(ValueError, match="items=8 of threads=1024 must fit the 49152 bytes"):
        block.load(np.int64, 1024, 8)
    with pytest.raises(ValueError, match="items must be at least 1, got 0"):
        block.store(np.int64, 32, 0)
    with pytest.raises(ValueError, match="to must be .blocked. or .striped., got 'stripes'"):
        block.exchange(np.int64, 32, 2, "stripes")
    with pytest.raises(TypeError, match="dtype must be"):
        block.argmin(np.int8, 32)
