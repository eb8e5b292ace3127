"""Sorts and searches as CUDA programs have them."""

import numpy as np
from numba import cuda, float64, int32, int64, uint32

from tests.conformance.simt.cases import case, real, rows, values, whole

B = 16


def make_bitonic(kind):
    def bitonic(x, out):
        """Sorts each block of numbers in shared memory."""
        s = cuda.shared.array(B, kind)
        t = cuda.threadIdx.x
        s[t] = x[cuda.grid(1)]
        cuda.syncthreads()
        size = 2
        while size <= B:
            step = size >> 1
            while step > 0:
                other = t ^ step
                if other > t:
                    upward = (t & size) == 0
                    if (s[t] > s[other]) == upward:
                        s[t], s[other] = s[other], s[t]
                cuda.syncthreads()
                step >>= 1
            size <<= 1
        out[cuda.grid(1)] = s[t]

    return bitonic


for _name, _kind in {"int64": int64, "float64": float64, "uint32": uint32}.items():
    case(
        3,
        B,
        lambda name=_name: (values(name, 48), np.zeros(48, name)),
        lambda x, out: {1: np.sort(rows(x, B), 1).ravel()},
        name=f"bitonic_{_name}",
    )(make_bitonic(_kind))


@case(
    2,
    B,
    lambda: (real(27), np.zeros(27)),
    lambda x, out: {1: np.r_[np.sort(x[:B]), np.sort(x[B:])]},
)
def odd_even_sort(x, out):
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    first = cuda.blockIdx.x * B
    n = min(B, x.size - first)
    if t < n:
        s[t] = x[first + t]
    for k in range(n):
        cuda.syncthreads()
        a = 2 * t + k % 2
        if a + 1 < n and s[a] > s[a + 1]:
            s[a], s[a + 1] = s[a + 1], s[a]
    cuda.syncthreads()
    if t < n:
        out[first + t] = s[t]


@case(
    2,
    B,
    lambda: (whole(32, low=0, high=256), np.zeros(32, np.int64)),
    lambda x, out: {1: np.sort(rows(x, B), 1).ravel()},
)
def radix_sort(x, out):
    """One bit a round: zeros keep their order in front, ones behind."""
    keys = cuda.shared.array(B, int64)
    zeros = cuda.shared.array(B, int64)
    t = cuda.threadIdx.x
    keys[t] = x[cuda.grid(1)]
    for bit in range(8):
        key = keys[t]
        zero = 1 - ((key >> bit) & 1)
        zeros[t] = zero
        cuda.syncthreads()
        reach = 1
        while reach < B:
            v = zeros[t - reach] if t >= reach else 0
            cuda.syncthreads()
            zeros[t] += v
            cuda.syncthreads()
            reach *= 2
        place = zeros[t] - 1 if zero else zeros[B - 1] + t - zeros[t]
        keys[place] = key
        cuda.syncthreads()
    out[cuda.grid(1)] = keys[t]


@case(
    3,
    B,
    lambda: (np.sort(whole(40)), whole(48, seed=3), np.zeros(48, np.int64)),
    lambda x, wanted, out: {2: np.searchsorted(x, wanted)},
)
def binary_search(x, wanted, out):
    """In a copy of the table in shared memory that the block loads together."""
    table = cuda.shared.array(64, int64)
    for k in range(cuda.threadIdx.x, x.size, cuda.blockDim.x):
        table[k] = x[k]
    cuda.syncthreads()
    i = cuda.grid(1)
    low, high = 0, x.size
    while low < high:
        middle = (low + high) // 2
        if table[middle] < wanted[i]:
            low = middle + 1
        else:
            high = middle
    out[i] = low


@case(
    3,
    B,
    lambda: (whole(48, low=-500, high=500), np.array([0, 7, 15]), np.zeros(3, np.int64)),
    lambda x, ranks, out: {2: np.sort(rows(x, B), 1)[np.arange(3), ranks]},
)
def quickselect(x, ranks, out):
    """The value of a rank: elements below and above a pivot are counted, and one side is left."""
    s = cuda.shared.array(B, int64)
    pivot = cuda.shared.array(1, int64)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    left = True
    rank = ranks[cuda.blockIdx.x]
    while True:
        cuda.syncthreads()
        if t == 0:
            pivot[0] = -1
        cuda.syncthreads()
        if left:
            cuda.atomic.max(pivot, 0, t)
        cuda.syncthreads()
        v = s[pivot[0]]
        below = cuda.syncthreads_count(int32(left and s[t] < v))
        equal = cuda.syncthreads_count(int32(left and s[t] == v))
        if rank < below:
            left = left and s[t] < v
        elif rank < below + equal:
            break
        else:
            left = left and s[t] > v
            rank -= below + equal
    if t == 0:
        out[cuda.blockIdx.x] = v
