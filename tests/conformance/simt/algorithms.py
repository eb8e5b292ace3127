"""Counts, sparse matrices and random numbers as CUDA programs have them."""

import numpy as np
from numba import cuda, float64, int32, int64
from numba.cuda.random import xoroshiro128p_uniform_float64

from tests.conformance.simt.cases import NO_WARPS, again, case, real, rows, states, whole

B = 16
COLUMNS = 3


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


@case(
    3,
    B,
    lambda: (
        real(45, 2),
        real(COLUMNS, 2, seed=7),
        np.zeros((COLUMNS, 2)),
        np.zeros(COLUMNS, np.int64),
    ),
    _means,
)
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

    return sparse(
        *shape,
        density=0.3,
        format="csr",
        random_state=np.random.default_rng(seed),
        dtype=np.float64,
    )


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
