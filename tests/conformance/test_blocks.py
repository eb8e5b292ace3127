"""Kernels whose threads work together: barriers, shared memory static and dynamic, warps."""

import numpy as np
import pytest
from numba import cuda, float64, int32
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from tests.conformance import expected

BLOCK = 128
BINS = 16


@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")}, block=BLOCK)
@cuda.jit
def block_sum(x, total):
    shared = cuda.shared.array(BLOCK, float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = x[i] if i < x.shape[0] else 0.0
    cuda.syncthreads()
    step = BLOCK // 2
    while step > 0:
        if t < step:
            shared[t] += shared[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        cuda.atomic.add(total, 0, shared[0])


@cuda.jit(device=True)
def warp_max(value):
    step = 16
    while step > 0:
        value = max(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, step))
        step //= 2
    return value


@synk.parallel(outputs={"largest": synk.output("max", shape=(), dtype="float64")}, block=96)
@cuda.jit
def largest_by_warps(x, largest):
    i = cuda.grid(1)
    value = warp_max(x[i] if i < x.shape[0] else -np.inf)
    if cuda.laneid == 0:
        cuda.atomic.max(largest, 0, value)


@synk.parallel(
    outputs={"counts": synk.output("sum", shape=(BINS,), dtype="int32")},
    block=64,
    grid=4,
    smem_bytes=4 * BINS,
)
@cuda.jit
def histogram(x, counts):
    shared = cuda.shared.array(0, int32)
    t = cuda.threadIdx.x
    if t < BINS:
        shared[t] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        cuda.atomic.add(shared, min(int(x[i] * BINS), BINS - 1), 1)
    cuda.syncthreads()
    if t < BINS:
        cuda.atomic.add(counts, t, shared[t])


def lengths(world_size):
    return [*expected.lengths(world_size), 10_007]


@pytest.mark.parametrize("num_slices", [1, 3])
def test_a_sum_in_shared_memory(world, num_slices):
    for n in lengths(world.world_size):
        x = expected.values(n)
        assert_allclose(block_sum(x, num_slices=num_slices), x.sum(), rtol=1e-12)


def test_a_maximum_by_shuffles(world):
    for n in lengths(world.world_size):
        x = expected.values(n)
        assert largest_by_warps(x) == x.max()


def test_dynamic_shared_memory(world):
    for n in lengths(world.world_size):
        x = np.random.default_rng(n).random(n)
        assert_array_equal(histogram(x), np.histogram(x, BINS, (0, 1))[0])
        assert_array_equal(
            histogram(x, batch=slice(None, None, 2)), np.histogram(x[::2], BINS, (0, 1))[0]
        )
