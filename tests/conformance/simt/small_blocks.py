"""Blocks of a few threads, which are gathered in larger ones: what tells a thread's block, and what
belongs to it, stays that of the launch.
"""

import math

import numpy as np
from numba import cuda, float64, int64

from tests.conformance.simt.cases import again, case, real, whole


def place(j, size):
    """Indices within a block and of the block, for indices in the grid."""
    return j % size, j // size


# ---- one thread


@case(300, 1, lambda: (real(300), np.zeros(300)), lambda x, out: {1: np.exp(x)})
def block_index_alone(x, out):
    i = cuda.blockIdx.x
    out[i] = math.exp(x[i])


@case(
    70,
    1,
    lambda: (real(1000), np.zeros(1000), np.zeros(1)),
    lambda x, out, total: {1: np.cos(x), 2: [np.cos(x).sum()]},
)
def strides_of_blocks(x, out, total):
    acc = 0.0
    for i in range(cuda.blockIdx.x, x.size, cuda.gridDim.x):
        out[i] = math.cos(x[i])
        acc += out[i]
    cuda.atomic.add(total, 0, acc)


again(
    "strides_of_three_blocks",
    "strides_of_blocks",
    3,
    1,
    lambda: (real(1000), np.zeros(1000), np.zeros(1)),
)


@case(
    (19, 40),
    1,
    lambda: (whole(40, 19), np.zeros((40, 19), np.int64), np.zeros(2, np.int64)),
    lambda x, out, total: {
        1: np.where(x > 30, -1, x + np.arange(19) + 100 * np.arange(40)[:, None]),
        2: [x.sum(), (x <= 30).sum()],
    },
)
def two_axes_of_blocks(x, out, total):
    j, i = cuda.blockIdx.x, cuda.blockIdx.y
    cuda.atomic.add(total, 0, x[i, j])
    if x[i, j] > 30:
        out[i, j] = -1
        return
    cuda.atomic.add(total, 1, 1)
    out[i, j] = x[i, j] + cuda.grid(2)[0] + 100 * i + cuda.threadIdx.y


@case(
    (3, 20, 2),
    (1, 1, 1),
    lambda: (np.zeros((2, 20, 3), np.int64), np.zeros(1, np.int64)),
    lambda out, most: {
        0: np.arange(120).reshape(2, 20, 3) * 1000 + 320 + 2,
        1: [119],
    },
)
def three_axes_of_blocks(out, most):
    b = cuda.blockIdx
    n = b.x + cuda.gridDim.x * (b.y + cuda.gridDim.y * b.z)
    cuda.atomic.max(most, 0, n)
    x, y, z = cuda.grid(3)
    sizes = cuda.gridDim.x * 100 + cuda.gridDim.y * cuda.blockDim.x + cuda.gridDim.z
    out[z, y, x] = n * 1000 + sizes


@case(
    50,
    1,
    lambda: (real(50), np.zeros(50)),
    lambda x, out: {1: (x[:, None] * np.arange(8) * np.arange(8)[::-1]).sum(1)},
)
def local_array_of_a_block(x, out):
    i = cuda.blockIdx.x
    mine = cuda.local.array(8, float64)
    for k in range(8):
        mine[k] = x[i] * k
    acc = 0.0
    for k in range(8):
        acc += mine[k] * (7 - k)
    out[i] = acc


@case(
    60,
    1,
    lambda: (whole(60), np.zeros(60, np.int64)),
    lambda x, out: {1: np.where(np.arange(60) % 3 == 0, 2 * x, x)},
)
def barrier_of_some_blocks(x, out):
    """Where blocks have one thread, a barrier does nothing."""
    i = cuda.blockIdx.x
    v = x[i]
    if i % 3 == 0:
        cuda.syncthreads()
        v += x[i]
    out[i] = v


@case(40, 1, lambda: (whole(40), np.zeros(40, np.int64)), lambda x, out: {1: x + np.arange(40)})
def shared_array_of_a_block(x, out):
    mine = cuda.shared.array(2, int64)
    i = cuda.blockIdx.x
    mine[cuda.threadIdx.x] = x[i]
    mine[1] = i
    cuda.syncthreads()
    out[i] = mine[0] + mine[1]


@case(
    100,
    1,
    lambda: (np.zeros(1, np.int32), real(100), np.zeros(100), np.zeros(2)),
    lambda lock, x, out, sums: {0: [0], 2: x, 3: [x.sum(), 200 * x.sum()]},
    rtol=1e-9,
)
def lock_of_blocks(lock, x, out, sums):
    """A block holds the lock in a loop that might be interchanged with that over blocks."""
    i = cuda.blockIdx.x
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    cuda.threadfence()
    for k in range(200):
        cuda.atomic.add(sums, 1, x[i] * (k + 1) / (k + 1))
    cuda.atomic.add(sums, 0, x[i])
    cuda.threadfence()
    cuda.atomic.exch(lock, 0, 0)
    out[i] = x[i]


@cuda.jit(device=True)
def own_place(scale):
    return cuda.blockIdx.x * scale + cuda.threadIdx.x + cuda.blockDim.x


@case(33, 1, lambda: (np.zeros(33, np.int64),), lambda out: {0: np.arange(33) * 5 + 1})
def place_in_a_function(out):
    for k in range(cuda.blockIdx.x, out.size, cuda.gridDim.x):
        out[k] = own_place(5)


# ---- a few threads


def _few(size):
    def expect(x, out, total):
        t, b = place(np.arange(out.size), size)
        values = np.array([np.exp(x[i :: out.size]).sum() for i in range(out.size)])
        return {1: values + 10 * t + 1000 * b, 2: [out.size * size]}

    return expect


@case(41, 2, lambda: (real(500), np.zeros(82), np.zeros(1, np.int64)), _few(2))
def few_threads(x, out, total):
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    acc = 0.0
    for i in range(b * cuda.blockDim.x + t, x.size, cuda.gridsize(1)):
        acc += math.exp(x[i])
    cuda.atomic.add(total, 0, cuda.blockDim.x)
    out[cuda.grid(1)] = acc + 10 * t + 1000 * b


again(
    "blocks_of_three",
    "few_threads",
    27,
    3,
    lambda: (real(500), np.zeros(81), np.zeros(1, np.int64)),
    _few(3),
)
again(
    "blocks_of_one",
    "few_threads",
    82,
    1,
    lambda: (real(500), np.zeros(82), np.zeros(1, np.int64)),
    _few(1),
)
again(
    "blocks_of_fifteen",
    "few_threads",
    5,
    15,
    lambda: (real(500), np.zeros(75), np.zeros(1, np.int64)),
    _few(15),
)


@case(
    (7, 9),
    (3, 2),
    lambda: (real(18, 21), np.zeros((18, 21))),
    lambda x, out: {
        1: x * 200
        + 1000 * (np.arange(21) // 3)
        + 100 * (np.arange(21) % 3)
        + 10 * (np.arange(18) // 2)[:, None]
        + (np.arange(18) % 2)[:, None]
    },
    rtol=1e-9,
)
def small_tiles(x, out):
    j, i = cuda.grid(2)
    acc = 0.0
    for k in range(200):
        acc += x[i, j] * (k + 1) / (k + 1)
    places = 1000 * cuda.blockIdx.x + 100 * cuda.threadIdx.x + 10 * cuda.blockIdx.y
    out[i, j] = acc + places + cuda.threadIdx.y
