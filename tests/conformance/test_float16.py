"""float16 in kernels on ranks: rows, results, and what is written back, as on GPUs.

No sum here has a product as an operand: GPUs and some processors fuse the two.
"""

import math

import numpy as np
import pytest
from numba import cuda, types
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from tests.conformance import expected

H = np.float16


def output(op):
    return synk.output(op, shape=(), dtype="float16")


@synk.parallel(
    outputs={
        "total": output("sum"),
        "least": output("min"),
        "most": output("max"),
        "mean": output("mean"),
    }
)
def summary(x, total, least, most, mean):
    if cuda.grid(1) == 0:
        add, low, high = np.float16(0), x[0], x[0]
        for value in x:
            add += value
            low = min(low, value)
            high = max(high, value)
        total[()], least[()], most[()] = add, low, high
        mean[()] = add / np.float16(x.size)


@synk.parallel(
    broadcast=("scale",),
    outputs={"y": synk.output("gather", shape=(), dtype="float16")},
    inout=("z",),
)
def scaled(x, scale, z, y):
    shared = cuda.shared.array(256, types.float16)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if i < x.size:
        shared[t] = x[i] + scale
    cuda.syncthreads()
    if i < x.size:
        y[i] = shared[t] * np.float16(3)
        z[i] *= y[i]


@pytest.mark.parametrize("num_slices", [1, 3])
def test_a_kernel_of_float16(world, num_slices):
    for n in expected.lengths(world.world_size):
        x = (np.arange(n) % 7 - 3).astype(H)  # sums are exact
        if n < world.world_size * num_slices:
            continue  # a part without rows has no least
        found = summary(x, num_slices=num_slices)
        assert_array_equal([found.total, found.least, found.most], [x.sum(), x.min(), x.max()])
        assert found.total.dtype == H
        assert found.mean.dtype == np.float32
        assert_allclose(found.mean, x.astype(float).mean(), atol=2e-3 * 3)
        z, scale = np.linspace(-1, 1, n).astype(H), H(0.1)
        wanted = (x + scale) * H(3)
        after = z * wanted
        assert_array_equal(scaled(x, scale, z, num_slices=num_slices), wanted)
        assert_array_equal(z, after)


def test_calls_that_are_repeated_with_other_scalars(world):
    """Compiled code serves them after a while, and passes the scalars itself."""
    x = np.arange(6 * world.world_size).astype(H)
    for step in range(100):
        scale, z = H(0.1 * step), np.ones(x.size, H)
        wanted = (x + scale) * H(3)
        assert_array_equal(scaled(x, scale, z), wanted)
        assert_array_equal(z, wanted)


@synk.vectorize
def curve(x, y):
    return (x + y) * (x / y)


@synk.vectorize
def add(x, y):
    return x + y


@synk.expectation
def squares(x):
    return x * x


def test_functions_of_rows_of_float16(world):
    rng = np.random.default_rng(7)
    x, y = rng.standard_normal((2, 1003)).astype(H)
    got = curve(x, y)
    assert got.dtype == H
    assert_array_equal(got, (x + y) * (x / y))
    assert curve(x, 1.5).dtype == np.float64  # a Python number is a float64 in a kernel
    whole = rng.integers(-9, 9, 1003).astype(H)
    total = add.reduce(whole)
    assert total == whole.sum()
    assert total.dtype == H
    estimate = squares(x)
    exact = (x * x).astype(float)  # rounded by the function, summed in float64
    assert_allclose(
        [estimate.mean, estimate.variance], [exact.mean(), exact.var(ddof=1)], rtol=1e-12
    )
    assert math.isfinite(estimate.stderr)
