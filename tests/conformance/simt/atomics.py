"""Atomic operations, where no thread waits for another."""

import numpy as np
from numba import cuda

from tests.conformance.simt.cases import case, real


@case(3, 16, lambda: (real(40), np.full(1, -9.0), np.full(1, 9.0), np.zeros((2, 3), np.int32)))
def atomic_extremes(x, top, low, counts):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.max(top, 0, x[i])
        cuda.atomic.min(low, 0, x[i])
        cuda.atomic.nanmax(top, 0, x[i])
        cuda.atomic.nanmin(low, 0, x[i])
        cuda.atomic.add(counts, (0, i % 3), 1)
        cuda.atomic.sub(counts, (1, 0), 2)
        cuda.atomic.add(counts, (1, 2), 3)


@case(
    3,
    16,
    lambda: (
        np.arange(48, dtype=np.int32) * 37,
        np.full(4, 0xFFF, np.int32),
        np.zeros(3, np.uint32),
    ),
)
def atomic_bits(x, out, more):
    i = cuda.grid(1)
    cuda.atomic.and_(out, 0, x[i] | 0xF0)
    cuda.atomic.or_(out, 1, x[i])
    cuda.atomic.xor(out, 2, x[i])
    cuda.atomic.exch(out, 3, 5)
    cuda.atomic.inc(more, 0, 9)
    cuda.atomic.dec(more, 1, 6)


@case(
    3,
    16,
    lambda: (np.zeros(3, np.int32), np.zeros(1, np.int64)),
    lambda a, b: {0: [5, 0, 0], 1: [1]},
)
def atomic_compare(a, b):
    old = cuda.atomic.cas(a, 0, 0, 5)
    cuda.atomic.compare_and_swap(a[1:], 3, 4)
    if old == 0:
        cuda.atomic.add(b, 0, 1)


@case(
    3,
    16,
    lambda: (np.abs(real(40)), np.zeros(8, np.int32)),
    lambda x, h: {1: np.bincount((x * 4).astype(int), minlength=8)},
)
def histogram(x, h):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(h, int(x[i] * 4), 1)


@case(3, 16, lambda: (real(40), np.zeros(40), np.zeros(1, np.int32)), unordered=(1,))
def compaction(x, out, count):
    i = cuda.grid(1)
    if i < x.size and x[i] > 0:
        k = cuda.atomic.add(count, 0, 1)
        out[k] = x[i]


@case(
    3,
    16,
    lambda: (real(40), np.zeros(2, np.int64)),
    lambda x, n: {1: [(x > 0).sum(), (x <= 0).sum()]},
)
def conditional_count(x, n):
    i = cuda.grid(1)
    if i < x.size:
        if x[i] > 0:
            cuda.atomic.add(n, 0, 1)
        else:
            cuda.atomic.add(n, 1, 1)


@case(2, 16, lambda: (real(100), np.zeros(1, np.int64)), lambda x, n: {1: [(x > 0).sum()]})
def count_in_stride(x, n):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        if x[i] > 0:
            cuda.atomic.add(n, 0, 1)


@case(
    3,
    16,
    lambda: (real(48), np.zeros(1, np.int32)),
    lambda x, n: {1: [np.trunc(x).astype(int).sum()]},
    differs="it adds before it converts; CUDA converts first",
)
def atomic_converts(x, n):
    cuda.atomic.add(n, 0, x[cuda.grid(1)])


@case(
    3,
    16,
    lambda: (np.zeros(3), np.zeros(1, np.int32), np.zeros(1)),
    lambda p, n, out: {0: [16, 16, 16], 1: [3], 2: [48]},
    cpu_only="its last thread takes the others of its block to be done, as it must not on a GPU",
)
def last_block(partial, done, out):
    cuda.atomic.add(partial, cuda.blockIdx.x, 1.0)
    if cuda.threadIdx.x == cuda.blockDim.x - 1:
        cuda.threadfence()
        if cuda.atomic.add(done, 0, 1) == cuda.gridDim.x - 1:
            s = 0.0
            for k in range(partial.size):
                s += partial[k]
            out[0] = s


@case(1, 1, lambda: (np.zeros(2),), lambda a: {0: [3.0, 3.0]})
def atomic_then_read(a):
    cuda.atomic.add(a, 0, 3.0)
    a[1] = a[0]


@case(3, 16, lambda: (-1, np.zeros(1)), lambda k, a: {1: [0.0]})
def atomic_not_run(k, a):
    if k >= 0:
        cuda.atomic.add(a, k, 1.0)
