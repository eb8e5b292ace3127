"""Sorts of blocks against NumPy's stable ones, compiled for a core and checked for races."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda
from numpy.testing import assert_array_equal

from synknumba import simt
from synknumba.kernels import block
from tests.kernels.test_block import drawn

quick = settings(max_examples=8, derandomize=True, deadline=None)
seeds = st.integers(0, 2**32 - 1)


def sorting(dtype, value_dtype, threads, items):
    """A kernel that sorts blocks of x alone, and pairs of x and y."""
    sort = block.sort(dtype, threads, items)
    sort_pairs = block.sort_pairs(dtype, value_dtype, threads, items)

    @cuda.jit
    def kernel(x, y, alone, keys, values):
        own_alone = cuda.local.array(items, dtype)
        own_keys = cuda.local.array(items, dtype)
        own_values = cuda.local.array(items, value_dtype)
        start = cuda.grid(1) * items
        for k in range(items):
            own_alone[k] = own_keys[k] = x[start + k]
            own_values[k] = y[start + k]
        sort(own_alone)
        sort_pairs(own_keys, own_values)
        for k in range(items):
            alone[start + k] = own_alone[k]
            keys[start + k] = own_keys[k]
            values[start + k] = own_values[k]

    return kernel


def keys_of(seed, shape, dtype, distinct):
    """Values of the dtype with repeats, and of floats all kinds that there are."""
    rng = np.random.default_rng(seed)
    kinds = drawn(seed, distinct, dtype)
    if np.dtype(dtype).kind == "f":
        special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, 1e-45], dtype)
        kinds = np.concatenate([kinds, special])
    return rng.choice(kinds, shape)


def same_bits(got, want):
    assert_array_equal(got.view(f"u{got.itemsize}"), want.view(f"u{want.itemsize}"))


def compare(run, dtype, value_dtype, threads, items, seed, distinct):
    count = threads * items
    x = keys_of(seed, (2, count), dtype, distinct)
    y = np.arange(x.size, dtype=value_dtype).reshape(x.shape)
    alone, keys, values = np.zeros_like(x), np.zeros_like(x), np.zeros_like(y)
    run[2, threads](*(array.ravel() for array in (x, y, alone, keys, values)))
    order = x.argsort(1, kind="stable")
    expected = np.take_along_axis(x, order, 1)
    same_bits(alone, expected)
    same_bits(keys, expected)
    assert_array_equal(values, np.take_along_axis(y, order, 1))


@pytest.mark.parametrize(
    ("dtype", "value_dtype", "threads", "items"),
    [
        (np.uint32, np.float64, 1, 2),
        (np.float32, np.uint32, 256, 2),
        (np.int64, np.int32, 33, 1),
        (np.float64, np.float32, 50, 4),
    ],
)
def test_sorts(dtype, value_dtype, threads, items):
    run = simt.jit(sorting(dtype, value_dtype, threads, items))

    @quick
    @given(seeds, st.sampled_from([1, 5, 1000]))
    def agrees(seed, distinct):
        compare(run, dtype, value_dtype, threads, items, seed, distinct)

    agrees()


def test_no_races():
    run = simt.check(sorting(np.float32, np.int32, 9, 2))
    compare(run, np.float32, np.int32, 9, 2, 0, 5)


def test_refusals():
    with pytest.raises(ValueError, match="threads must be 1 to 1024, got 0"):
        block.sort(np.float32, 0)
    with pytest.raises(ValueError, match="items must be at least 1, got 0"):
        block.sort(np.float32, 32, items=0)
    with pytest.raises(TypeError, match="dtype must be an int or a float of 32 or 64 bits, got bo"):
        block.sort(np.bool_, 32)
    with pytest.raises(TypeError, match="dtype must be .* got complex64"):
        block.sort_pairs(np.float32, np.complex64, 32)
    for sort in (
        lambda items: block.sort(np.float32, 256, items),
        lambda items: block.sort_pairs(np.float32, np.float64, 256, items),
    ):
        sort(8)
        with pytest.raises(
            ValueError, match=r"256 threads with 40 items must fit .* got \d+ bytes"
        ):
            sort(40)
