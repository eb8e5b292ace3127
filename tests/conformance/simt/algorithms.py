"""Scans, sorts, counts and searches as CUDA programs have them."""

import numpy as np
from numba import cuda, float64, int32, int64, uint32
from numba.cuda.random import xoroshiro128p_uniform_float64

from tests.conformance.simt.cases import NO_WARPS, again, case, real, rows, values, whole
from tests.conformance.simt.threads import states

B = 16
COLUMNS = 3


# ---- reductions and scans


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


@case(2, B, lambda: (whole(32, low=0, high=9).astype(float), np.zeros(2), np.zeros(2, np.int64)), _largest)
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


@case(2, B, lambda: (whole(30), np.zeros(30, np.int64)), lambda x, out: {1: rows(x, B).cumsum(1).ravel()[:30]})
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


# ---- sorts and searches


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


@case(2, B, lambda: (real(27), np.zeros(27)), lambda x, out: {1: np.r_[np.sort(x[:B]), np.sort(x[B:])]})
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


@case(2, B, lambda: (whole(32, low=0, high=256), np.zeros(32, np.int64)), lambda x, out: {1: np.sort(rows(x, B), 1).ravel()})
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


# ---- counts


def _histogram(x, out):
    return {1: np.bincount(x, minlength=10)}


@case(3, B, lambda: (whole(45, low=0, high=10, dtype=np.uint8), np.zeros(10, np.int32)), _histogram)
def shared_histogram(x, out):
    counts = cuda.shared.array(10, int32)
    t = cuda.threadIdx.x
    if t < 10:
        counts[t] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.add(counts, x[i], 1)
    cuda.syncthreads()
    if t < 10:
        cuda.atomic.add(out, t, counts[t])


again(
    "shared_histogram_one_block",
    "shared_histogram",
    1,
    32,
    lambda: (whole(100, low=0, high=10, dtype=np.int64), np.zeros(10, np.int32)),
)


def _means(points, centres, sums, counts):
    nearest = ((points[:, None, :] - centres[None]) ** 2).sum(2).argmin(1)
    counted = np.bincount(nearest, minlength=len(centres))
    return {2: [points[nearest == k].sum(0) for k in range(len(centres))], 3: counted}


@case(3, B, lambda: (real(45, 2), real(COLUMNS, 2, seed=7), np.zeros((COLUMNS, 2)), np.zeros(COLUMNS, np.int64)), _means)
def kmeans_step(points, centres, sums, counts):
    totals = cuda.shared.array((COLUMNS, 2), float64)
    numbers = cuda.shared.array(COLUMNS, int64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    if t < COLUMNS:
        numbers[t] = 0
        totals[t, 0] = 0.0
        totals[t, 1] = 0.0
    cuda.syncthreads()
    if i < points.shape[0]:
        nearest, best = -1, np.inf
        for k in range(COLUMNS):
            d = 0.0
            for j in range(2):
                d += (points[i, j] - centres[k, j]) ** 2
            if d < best:
                nearest, best = k, d
        for j in range(2):
            cuda.atomic.add(totals, (nearest, j), points[i, j])
        cuda.atomic.add(numbers, nearest, 1)
    cuda.syncthreads()
    if t < COLUMNS:
        cuda.atomic.add(counts, t, numbers[t])
        for j in range(2):
            cuda.atomic.add(sums, (t, j), totals[t, j])


# ---- sparse matrices


def _csr(shape=(19, 23), seed=3):
    from scipy.sparse import random as sparse

    return sparse(*shape, density=0.3, format="csr", random_state=np.random.default_rng(seed), dtype=np.float64)


def _csr_arguments():
    a = _csr()
    return a.indptr, a.indices, a.data, real(23), np.zeros(19)


def _csr_product(starts, columns, data, x, out):
    return {4: _csr() @ x}


@case(5, (8, 4), _csr_arguments, _csr_product)
def csr_product_by_rows_of_threads(starts, columns, data, x, out):
    """Eight threads sum a row of the matrix."""
    s = cuda.shared.array((4, 8), float64)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row = cuda.blockIdx.x * 4 + ty
    v = 0.0
    if row < out.size:
        for k in range(starts[row] + tx, starts[row + 1], 8):
            v += data[k] * x[columns[k]]
    s[ty, tx] = v
    for step in (4, 2, 1):
        cuda.syncthreads()
        if tx < step:
            s[ty, tx] += s[ty, tx + step]
    if tx == 0 and row < out.size:
        out[row] = s[ty, 0]


@case(10, 64, _csr_arguments, _csr_product, differs=NO_WARPS)
def csr_product_by_warps(starts, columns, data, x, out):
    row = cuda.grid(1) // 32
    lane = cuda.laneid
    if row >= out.size:
        return
    v = 0.0
    for k in range(starts[row] + lane, starts[row + 1], 32):
        v += data[k] * x[columns[k]]
    for k in range(5):
        v += cuda.shfl_down_sync(0xFFFFFFFF, v, 16 >> k)
    if lane == 0:
        out[row] = v


def _coo_arguments():
    a = _csr().tocoo()
    return a.row, a.col, a.data, real(23), np.zeros(19)


@case(3, B, _coo_arguments, _csr_product)
def coo_product(where, columns, data, x, out):
    """The block sums into shared memory, and adds that to the result."""
    s = cuda.shared.array(19, float64)
    for k in range(cuda.threadIdx.x, out.size, cuda.blockDim.x):
        s[k] = 0.0
    cuda.syncthreads()
    for k in range(cuda.grid(1), data.size, cuda.gridsize(1)):
        cuda.atomic.add(s, where[k], data[k] * x[columns[k]])
    cuda.syncthreads()
    for k in range(cuda.threadIdx.x, out.size, cuda.blockDim.x):
        cuda.atomic.add(out, k, s[k])


# ---- random numbers


def _rotate(x, k):
    return (x << np.uint64(k)) | (x >> np.uint64(64 - k))


def _uniform(rng):
    """xoroshiro128+ of Blackman and Vigna, as in numba.cuda.random."""
    s0, s1 = rng["s0"], rng["s1"]
    result = s0 + s1
    s1 = s1 ^ s0
    rng["s0"] = _rotate(s0, 55) ^ s1 ^ (s1 << np.uint64(14))
    rng["s1"] = _rotate(s1, 36)
    return (result >> np.uint64(11)) * 2.0**-53


def _inside(rng, n, out):
    rng, hits = rng.copy(), np.zeros(32, np.int64)
    for _ in range(n):
        x, y = _uniform(rng), _uniform(rng)
        hits += x * x + y * y <= 1
    return {0: rng, 2: hits.reshape(2, B).sum(1)}


@case(2, B, lambda: (states(32), 9, np.zeros(2, np.int64)), _inside)
def monte_carlo_pi(rng, n, out):
    s = cuda.shared.array(B, int64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    inside = 0
    for _ in range(n):
        x = xoroshiro128p_uniform_float64(rng, i)
        y = xoroshiro128p_uniform_float64(rng, i)
        if x * x + y * y <= 1.0:
            inside += 1
    s[t] = inside
    step = B // 2
    while step > 0:
        cuda.syncthreads()
        if t < step:
            s[t] += s[t + step]
        step //= 2
    if t == 0:
        out[cuda.blockIdx.x] = s[0]


@cuda.jit(device=True)
def philox(counter, key):
    """Philox-2x32 with ten rounds (Salmon et al., SC 2011)."""
    left, right = counter & 0xFFFFFFFF, counter >> 32
    for _ in range(10):
        product = 0xD256D193 * left
        left, right = ((product >> 32) ^ key ^ right) & 0xFFFFFFFF, product & 0xFFFFFFFF
        key = (key + 0x9E3779B9) & 0xFFFFFFFF
    return left, right


def _philox(key, out):
    result = []
    for i in range(40):
        left, right, k = i, 0, key
        for _ in range(10):
            product = 0xD256D193 * left
            left, right = ((product >> 32) ^ k ^ right) & 0xFFFFFFFF, product & 0xFFFFFFFF
            k = (k + 0x9E3779B9) & 0xFFFFFFFF
        result.append((left ^ right) % 1000)
    made = rows(np.array(result), B)
    return {1: made.max(1)}


@case(
    3,
    B,
    lambda: (0x1234567, np.zeros(3, np.int64)),
    _philox,
    differs="the product of two numbers of 32 bits is a Python integer there",
)
def philox_block_maximum(key, out):
    s = cuda.shared.array(1, int64)
    i = cuda.grid(1)
    if cuda.threadIdx.x == 0:
        s[0] = 0
    cuda.syncthreads()
    if i < 40:
        left, right = philox(int64(i), int64(key))
        cuda.atomic.max(s, 0, (left ^ right) % 1000)
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = s[0]
