"""Launches: grids of one to three dimensions, given or worked out; device functions, closures,
plain functions.
"""

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from tests.conformance import expected, kernels


def test_a_grid_that_no_array_gives(world):
    """Every rank launches the whole grid: 12·4·2 threads."""
    for _ in range(3):
        assert kernels.count_threads() == 96 * world.world_size
    assert kernels.count_threads.as_serial() == 96


@pytest.mark.parametrize("num_slices", [1, 2])
def test_grids_of_two_and_three_dimensions(world, num_slices):
    for n in expected.lengths(world.world_size):
        x = expected.values(6 * n).reshape(n, 3, 2)
        assert_array_equal(kernels.volume(x, num_slices=num_slices), 2 * x)
        flat = x.reshape(n, 6)
        assert_array_equal(kernels.plane(flat, num_slices=num_slices), flat + 10 * np.arange(6))


@pytest.mark.parametrize("n", [1, 255, 256, 257, 100_003])
def test_grid_stride_and_one_thread_a_row(world, n):
    x = expected.values(n)
    assert_allclose(kernels.energy(x, 0.5), np.exp(-0.5 * x * x).sum())
    assert_array_equal(kernels.axpy(1.0, x, x), 2 * x)


def test_device_functions_and_closures(world):
    x = np.arange(20.0)
    first, second = kernels.make_polynomial(3.0), kernels.make_polynomial(-0.5)
    assert_array_equal(first(x), 3 * x + 1)
    assert_array_equal(second(x), -0.5 * x + 1)
    assert_array_equal(first(x, num_slices=2), 3 * x + 1)


@pytest.mark.parametrize(
    "decorate",
    [lambda kernel: kernel, cuda.jit, cuda.jit(fastmath=True)],
    ids=["plain", "jit", "fastmath"],
)
def test_a_kernel_may_be_plain_or_jitted(world, decorate):
    def halves(x, out):
        i = cuda.grid(1)
        if i < x.shape[0]:
            out[i] = x[i] / 2

    function = synk.parallel(outputs={"out": synk.output("gather", like="x")}, block=64)(
        decorate(halves)
    )
    x = np.arange(100.0)
    assert_array_equal(function(x), x / 2)
    assert function.name == "halves"


def test_grid_and_block_are_as_told(world):
    @synk.parallel(
        outputs={"shape": synk.output(None, shape=(6,), dtype="int64")},
        block=(8, 2, 2),
        grid=(5, 4, 3),
    )
    def launched(shape):
        if cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0 and cuda.threadIdx.z == 0:
            shape[0] = cuda.blockDim.x
            shape[1] = cuda.blockDim.y
            shape[2] = cuda.blockDim.z
            shape[3] = cuda.gridDim.x
            shape[4] = cuda.gridDim.y
            shape[5] = cuda.gridDim.z

    for shape in launched():
        assert_array_equal(shape, [8, 2, 2, 5, 4, 3])


def test_a_grid_function_gets_the_rows_of_the_launch(world):
    @synk.parallel(
        outputs={"blocks": synk.output(None, shape=(), dtype="int64")},
        block=32,
        grid=lambda rows: rows,
    )
    def blocks_of(x, blocks):
        if cuda.grid(1) == 0:
            blocks[0] = cuda.gridDim.x

    n = 4 * world.world_size + 1
    assert blocks_of(np.zeros(n)) == expected.shard_sizes(n, world.world_size)
    # added up over slices
    assert blocks_of(np.zeros(n), num_slices=2) == expected.shard_sizes(n, world.world_size)
