"""Reductions and scans as CUDA programs have them."""

import numpy as np
from numba import cuda, float64, int32, int64

from tests.conformance.simt.cases import case, real, rows, values, whole

B = 16


def make_block_reduce(kind):
    def block_reduce(x, out):
        s = cuda.shared.array(B, kind)
        t = cuda.threadIdx.x
        i = cuda.grid(1)
        if i < x.size:
            s[t] = x[i]
        else:
            s[t] = 0
        step = cuda.blockDim.x >> 1
        while step > 0:
            cuda.syncthreads()
            if t < step:
                s[t] += s[t + step]
            step >>= 1
        if t == 0:
            out[cuda.blockIdx.x] = s[0]

    return block_reduce


for _name, _kind in {"int32": int32, "int64": int64, "float64": float64}.items():
    case(
        3,
        B,
        lambda name=_name: (values(name, 41), np.zeros(3, name)),
        lambda x, out: {1: rows(x, B).sum(1)},
        name=f"block_reduce_{_name}",
    )(make_block_reduce(_kind))


@case(2, B, lambda: (real(75), np.zeros(1)), lambda x, out: {1: [x.sum()]})
def grid_stride_sum(x, out):
    """Each thread sums on its own, then the block, then one atomic operation a block."""
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    v = 0.0
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        v += x[i]
    s[t] = v
    cuda.syncthreads()
    step = B // 2
    while step:
        if t < step:
            s[t] += s[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        cuda.atomic.add(out, 0, s[0])


def _largest(x, out, place):
    made = rows(x, B)
    return {1: made.max(1), 2: made.argmax(1) + B * np.arange(len(made))}


@case(
    2,
    B,
    lambda: (whole(32, low=0, high=9).astype(float), np.zeros(2), np.zeros(2, np.int64)),
    _largest,
)
def argmax(x, out, place):
    """The first of equal values, from pairs in two shared arrays."""
    best = cuda.shared.array(B, float64)
    where = cuda.shared.array(B, int64)
    t = cuda.threadIdx.x
    best[t] = x[cuda.grid(1)]
    where[t] = cuda.grid(1)
    step = B // 2
    while step > 0:
        cuda.syncthreads()
        if t < step:
            other = best[t + step]
            if other > best[t] or (other == best[t] and where[t + step] < where[t]):
                best[t] = other
                where[t] = where[t + step]
        step //= 2
    if t == 0:
        out[cuda.blockIdx.x] = best[0]
        place[cuda.blockIdx.x] = where[0]


@case(
    2,
    B,
    lambda: (whole(30), np.zeros(30, np.int64)),
    lambda x, out: {1: rows(x, B).cumsum(1).ravel()[:30]},
)
def scan_hillis_steele(x, out):
    """In two buffers that change places."""
    s = cuda.shared.array((2, B), int64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    here = 0
    s[0, t] = x[i] if i < x.size else 0
    cuda.syncthreads()
    reach = 1
    while reach < B:
        there = 1 - here
        if t >= reach:
            s[there, t] = s[here, t] + s[here, t - reach]
        else:
            s[there, t] = s[here, t]
        here = there
        reach *= 2
        cuda.syncthreads()
    if i < x.size:
        out[i] = s[here, t]


@case(
    2,
    HALF := B // 2,
    lambda: (real(32), np.zeros(32), np.zeros(2)),
    lambda x, out, sums: {1: (rows(x, B).cumsum(1) - rows(x, B)).ravel(), 2: rows(x, B).sum(1)},
)
def scan_blelloch(x, out, sums):
    """Two elements a thread: up a tree of sums, and down again."""
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    start = cuda.blockIdx.x * B
    s[2 * t] = x[start + 2 * t]
    s[2 * t + 1] = x[start + 2 * t + 1]
    offset = 1
    d = B >> 1
    while d > 0:
        cuda.syncthreads()
        if t < d:
            s[offset * (2 * t + 2) - 1] += s[offset * (2 * t + 1) - 1]
        offset *= 2
        d >>= 1
    if t == 0:
        sums[cuda.blockIdx.x] = s[B - 1]
        s[B - 1] = 0.0
    d = 1
    while d < B:
        offset >>= 1
        cuda.syncthreads()
        if t < d:
            a = offset * (2 * t + 1) - 1
            b = offset * (2 * t + 2) - 1
            left = s[a]
            s[a] = s[b]
            s[b] += left
        d *= 2
    cuda.syncthreads()
    out[start + 2 * t] = s[2 * t]
    out[start + 2 * t + 1] = s[2 * t + 1]


def _segments(x, heads, out):
    result, total = np.zeros(x.size), 0.0
    for i, (value, head) in enumerate(zip(x, heads, strict=True)):
        total = value if head or i % B == 0 else total + value
        result[i] = total
    return {2: result}


@case(2, B, lambda: (real(32), values(bool, 32), np.zeros(32)), _segments)
def segmented_scan(x, heads, out):
    s = cuda.shared.array(B, float64)
    starts = cuda.shared.array(B, int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i]
    starts[t] = 1 if heads[i] else 0
    for k in range(4):
        reach = 1 << k
        cuda.syncthreads()
        v, head = s[t], starts[t]
        if t >= reach and not head:
            v += s[t - reach]
            head = starts[t - reach]
        cuda.syncthreads()
        s[t], starts[t] = v, head
    out[i] = s[t]


def _kept(x, out, count):
    kept = x[x > 0]
    return {1: np.r_[kept, np.zeros(x.size - kept.size)], 2: [kept.size]}


@case(3, B, lambda: (real(41), np.zeros(41), np.zeros(1, np.int32)), _kept, unordered=(1,))
def compaction_by_scan(x, out, count):
    """Places within the block by a scan, and a place for the block by one atomic operation."""
    s = cuda.shared.array(B, int32)
    first = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    flag = i < x.size and x[i] > 0
    s[t] = 1 if flag else 0
    cuda.syncthreads()
    reach = 1
    while reach < B:
        v = s[t - reach] if t >= reach else int32(0)
        cuda.syncthreads()
        s[t] += v
        cuda.syncthreads()
        reach *= 2
    if t == B - 1:
        first[0] = cuda.atomic.add(count, 0, s[t])
    cuda.syncthreads()
    if flag:
        out[first[0] + s[t] - 1] = x[i]
