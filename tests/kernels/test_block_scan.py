"""Scans of blocks against NumPy and itertools, compiled for a core and checked for races."""

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda
from numpy.testing import assert_array_equal

from synknumba import simt
from synknumba.kernels import block
from tests.kernels.test_block import close, drawn

quick = settings(max_examples=5, derandomize=True, deadline=None)
seeds = st.integers(0, 2**32 - 1)


@cuda.jit(device=True)
def composed(a, b):
    """Associative, not commutative: the affine maps 2^16·slope + offset over integers mod 2^16."""
    slope = (a >> 16) * (b >> 16)
    offset = (a & 0xFFFF) * (b >> 16) + (b & 0xFFFF)
    return ((slope & 0xFFFF) << 16) | (offset & 0xFFFF)


def all_scans(dtype, threads, op):
    """A kernel that writes what each scan of values gives."""
    inclusive = block.inclusive_scan(dtype, threads, op)
    exclusive = block.exclusive_scan(dtype, threads)
    with_total = block.exclusive_scan_total(dtype, threads)

    @cuda.jit
    def kernel(x, out):
        i = cuda.grid(1)
        out[0, i] = inclusive(x[i])
        out[1, i] = exclusive(x[i])
        out[2, i], out[3, i] = with_total(x[i])

    return kernel


def all_scans_of_items(dtype, threads, op, items):
    """The same with arrays of `items` elements."""
    inclusive = block.inclusive_scan(dtype, threads, op, items)
    exclusive = block.exclusive_scan(dtype, threads, items)
    with_total = block.exclusive_scan_total(dtype, threads, items)

    @cuda.jit
    def kernel(x, out):
        values = cuda.local.array((3, items), dtype)
        start = cuda.grid(1) * items
        for k in range(items):
            for scan in range(3):
                values[scan, k] = x[start + k]
        inclusive(values[0])
        exclusive(values[1])
        total = with_total(values[2])
        for k in range(items):
            for scan in range(3):
                out[scan, start + k] = values[scan, k]
            out[3, start + k] = total

    return kernel


def kernel_of(dtype, threads, items):
    """Inclusive scans of int64 are of maps, the others sums."""
    op = composed if dtype == np.int64 else block.add
    if items is None:
        return all_scans(dtype, threads, op)
    return all_scans_of_items(dtype, threads, op, items)


def compare(run, dtype, threads, items, seed):
    """Compares all scans of two blocks."""
    count = threads * (items or 1)
    x = drawn(seed, (2, count), dtype)
    if dtype == np.int64:
        x &= 0xFFFFFFFF
    out = np.zeros((4, 2, count), dtype)
    run[2, threads](x.ravel(), out.reshape(4, -1))
    sums = x.cumsum(1, dtype=dtype)
    if dtype == np.int64:
        maps = [list(accumulate(map(int, row), composed.py_func)) for row in x]
        assert_array_equal(out[0], maps)
    else:
        close(out[0], sums)
    before = np.zeros_like(x)
    before[:, 1:] = sums[:, :-1]
    close(out[1], before)
    assert_array_equal(out[2], out[1])
    close(out[3], sums[:, -1:].repeat(count, 1))


@pytest.mark.parametrize(
    ("dtype", "threads", "items"),
    [
        (np.uint32, 1, None),
        (np.int64, 77, None),
        (np.float32, 256, None),
        (np.uint32, 7, 3),
        (np.int64, 19, 1),
        (np.float64, 64, 4),
    ],
)
def test_scans(dtype, threads, items):
    run = simt.jit(kernel_of(dtype, threads, items))

    @quick
    @given(seeds)
    def agrees(seed):
        compare(run, dtype, threads, items, seed)

    agrees()


@pytest.mark.parametrize(("threads", "items"), [(13, None), (20, 2)])
def test_no_races(threads, items):
    run = simt.check(kernel_of(np.int64, threads, items))
    compare(run, np.int64, threads, items, 0)


def test_refusals():
    for scan in (block.inclusive_scan, block.exclusive_scan, block.exclusive_scan_total):
        with pytest.raises(ValueError, match="threads must be 1 to 1024, got 1025"):
            scan(np.float32, 1025)
        with pytest.raises(TypeError, match="dtype must be an int or a float"):
            scan(np.complex64, 32)
        with pytest.raises(ValueError, match="items must be at least 1, got 0"):
            scan(np.float32, 32, items=0)
    with pytest.raises(TypeError, match="op must be a device function"):
        block.inclusive_scan(np.float32, 32, 3)
