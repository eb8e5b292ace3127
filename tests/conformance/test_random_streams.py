"""`synk.random` in kernels: the same numbers for every world, every number of slices and on
every device.
"""

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from synknumba import random
from tests.conformance import expected
from tests.unit.random_streams import reference

SEED = 2**40 + 17
# Rows that begin beyond 32 bits, and drawn numbers that do.
FIRST, DRAW = 2**33 - 500, 2**34 + 1


@synk.parallel(
    outputs={
        "bits": synk.output("gather", shape=(4,), dtype="uint32"),
        "uniform": synk.output("gather", shape=(3,), dtype="float64"),
        "uniform32": synk.output("gather", shape=(5,), dtype="float32"),
        "whole": synk.output("gather", dtype="int64"),
        "normal": synk.output("gather", shape=(4,), dtype="float64"),
        "normal32": synk.output("gather", shape=(5,), dtype="float32"),
    },
    block=64,
)
@cuda.jit
def draws(rows, seed, first, draw, bits, uniform, uniform32, whole, normal, normal32):
    """All functions, for the global row."""
    k = cuda.grid(1)
    i = rows.start + k
    if i >= rows.stop:
        return
    i += first
    bits[k, 0], bits[k, 1], bits[k, 2], bits[k, 3] = synk.random.bits4(seed, i, draw)
    uniform[k, 0] = synk.random.uniform(seed, i, draw)
    uniform[k, 1], uniform[k, 2] = random.uniform2(seed, i, draw)
    uniform32[k, 0] = random.uniform32(seed, i, draw)
    uniform32[k, 1], uniform32[k, 2], uniform32[k, 3], uniform32[k, 4] = random.uniform4(
        seed, i, draw
    )
    whole[k] = synk.random.randint(seed, i, draw, -5, 1000)
    normal[k, 0] = random.normal(seed, i, draw)
    normal[k, 1], normal[k, 2] = random.normal2(seed, i, draw)
    normal[k, 3] = random.exponential(seed, i, draw)
    normal32[k, 0] = random.normal32(seed, i, draw)
    normal32[k, 1], normal32[k, 2], normal32[k, 3], normal32[k, 4] = random.normal4(seed, i, draw)


def _expected(n):
    """What the rows hold, from Python's integers and mathematics."""

    def of(*names):
        return np.array(
            [
                np.hstack([reference.sample(name, SEED, FIRST + i, DRAW) for name in names])
                for i in range(n)
            ]
        )

    return {
        "bits": of("bits4"),
        "uniform": of("uniform", "uniform2"),
        "uniform32": of("uniform32", "uniform4"),
        "whole": np.array([reference.randint(SEED, FIRST + i, DRAW, -5, 1000) for i in range(n)]),
        "normal": of("normal", "normal2", "exponential"),
        "normal32": of("normal32", "normal4"),
    }


@pytest.fixture(scope="module")
def rows():
    return _expected(1001)


@pytest.mark.parametrize("num_slices", [1, 2, 3])
def test_the_same_numbers_in_every_world(world, num_slices, rows):
    for n in expected.lengths(world.world_size):
        got = draws(synk.arange(n), SEED, FIRST, DRAW, num_slices=min(num_slices, n))
        for name in ("bits", "uniform", "uniform32", "whole"):
            assert_array_equal(getattr(got, name), rows[name][:n])
        assert_allclose(got.normal, rows["normal"][:n], **reference.tolerance("normal"))
        assert_allclose(got.normal32, rows["normal32"][:n], **reference.tolerance("normal32"))


@synk.parallel(outputs={"inside": synk.output("sum", shape=(), dtype="int64")})
@cuda.jit
def count(rows, seed, inside):
    """How many of the points lie in the quarter of a circle."""
    n = 0
    for i in range(rows.start + cuda.grid(1), rows.stop, cuda.gridsize(1)):
        x, y = random.uniform2(seed, i, 0)
        if x * x + y * y < 1.0:
            n += 1
    cuda.atomic.add(inside, 0, n)


@pytest.mark.parametrize("num_slices", [1, 4])
def test_a_count_does_not_depend_on_the_world(world, num_slices):
    x, y = random.uniform2(5, np.arange(100_000), 0)
    assert count(synk.arange(100_000), 5, num_slices=num_slices) == np.count_nonzero(
        x * x + y * y < 1
    )


@synk.parallel(outputs={"points": synk.output("gather", shape=(4,), dtype="float64")}, block=64)
@cuda.jit
def points_of_rows(rows, seed, first, count, points):
    """Sobol points in a constant dimension and in others."""
    k = cuda.grid(1)
    i = rows.start + k
    if i < rows.stop:
        points[k, 0] = synk.random.sobol(seed, first + i, 1000)
        points[k, 1] = synk.random.sobol(None, first + i, 1000)
        for dimension in range(count):
            points[k, 2] += random.sobol(seed, first + i, 7 * dimension)
            points[k, 3] += random.sobol(None, first + i, 7 * dimension)


@pytest.mark.parametrize("num_slices", [1, 3])
def test_the_same_sobol_points_in_every_world(world, num_slices):
    for n in expected.lengths(world.world_size):
        rows, dimensions = 2**32 - 1001 + np.arange(n), 7 * np.arange(100)[:, None]
        columns = [random.sobol(seed, rows, 1000) for seed in (SEED, None)]
        # added one after the other, as the kernel does
        columns += [
            np.cumsum(random.sobol(seed, rows, dimensions), axis=0)[-1] for seed in (SEED, None)
        ]
        points = points_of_rows(
            synk.arange(n), SEED, 2**32 - 1001, 100, num_slices=min(num_slices, n)
        )
        assert_array_equal(points, np.transpose(columns))
