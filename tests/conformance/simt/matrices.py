"""Products and factors of matrices, transforms and convolutions."""

import math

import numpy as np
from numba import complex128, cuda, float32, float64, int64

from tests.conformance.simt.cases import case, real, rows, whole

B = 16
TILE = 4
PADDED = TILE, TILE + 1  # rows that start in different banks
FILTER = np.array([0.1, -0.5, 2.0, 0.75, 0.25])
WITH_HALO = B + 4


# ---- matrices


def make_tiled_matmul(kind):
    def tiled_matmul(a, b, c):
        left = cuda.shared.array((TILE, TILE), kind)
        right = cuda.shared.array((TILE, TILE), kind)
        x, y = cuda.grid(2)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        v = kind(0)
        for k in range((a.shape[1] + TILE - 1) // TILE):
            left[ty, tx] = 0
            right[ty, tx] = 0
            if y < a.shape[0] and k * TILE + tx < a.shape[1]:
                left[ty, tx] = a[y, k * TILE + tx]
            if k * TILE + ty < b.shape[0] and x < b.shape[1]:
                right[ty, tx] = b[k * TILE + ty, x]
            cuda.syncthreads()
            for j in range(TILE):
                v += left[ty, j] * right[j, tx]
            cuda.syncthreads()
        if y < c.shape[0] and x < c.shape[1]:
            c[y, x] = v

    return tiled_matmul


for _name, _kind, _make in (
    ("int64", int64, whole),
    ("float32", float32, lambda *shape, seed=1: real(*shape, seed=seed, dtype=np.float32)),
    ("float64", float64, real),
):
    case(
        (3, 2),
        (TILE, TILE),
        lambda name=_name, make=_make: (make(7, 9), make(9, 10, seed=2), np.zeros((7, 10), name)),
        lambda a, b, c: {2: a @ b},
        name=f"tiled_matmul_{_name}",
        rtol=1e-5 if _name == "float32" else 1e-12,
        atol=1e-5 if _name == "float32" else 1e-12,
    )(make_tiled_matmul(_kind))


@case((3, 2), (TILE, TILE), lambda: (real(7, 10), np.zeros((10, 7))), lambda a, out: {1: a.T})
def transposition_with_padding(a, out):
    tile = cuda.shared.array(PADDED, float64)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    x, y = cuda.grid(2)
    if y < a.shape[0] and x < a.shape[1]:
        tile[ty, tx] = a[y, x]
    cuda.syncthreads()
    x = cuda.blockIdx.y * TILE + tx
    y = cuda.blockIdx.x * TILE + ty
    if y < out.shape[0] and x < out.shape[1]:
        out[y, x] = tile[tx, ty]


def _well_conditioned(n, count=2):
    a = real(count, n, n)
    return a + 8 * np.eye(n)


def _lu(a, out):
    result = a.copy()
    for m in result:
        for k in range(len(m)):
            m[k + 1 :, k] /= m[k, k]
            m[k + 1 :, k + 1 :] -= np.outer(m[k + 1 :, k], m[k, k + 1 :])
    return {1: result}


@case(2, (5, 5), lambda: (_well_conditioned(5), np.zeros((2, 5, 5))), _lu, rtol=1e-9)
def lu_in_a_block(a, out):
    s = cuda.shared.array((5, 5), float64)
    r, c = cuda.threadIdx.y, cuda.threadIdx.x
    s[r, c] = a[cuda.blockIdx.x, r, c]
    cuda.syncthreads()
    for k in range(5):
        if r > k and c == k:
            s[r, c] /= s[k, k]
        cuda.syncthreads()
        if r > k and c > k:
            s[r, c] -= s[r, k] * s[k, c]
        cuda.syncthreads()
    out[cuda.blockIdx.x, r, c] = s[r, c]


def _symmetric():
    a = _well_conditioned(6)
    return a @ a.transpose(0, 2, 1), np.zeros((2, 6, 6))


@case(2, 6, _symmetric, lambda a, out: {1: np.linalg.cholesky(a)}, rtol=1e-9)
def cholesky_by_rows(a, out):
    """A thread a row; a column is ready when its diagonal is."""
    s = cuda.shared.array((6, 6), float64)
    r = cuda.threadIdx.x
    for c in range(6):
        s[r, c] = a[cuda.blockIdx.x, r, c] if c <= r else 0.0
    for k in range(6):
        cuda.syncthreads()
        if r == k:
            s[k, k] = math.sqrt(s[k, k])
        cuda.syncthreads()
        if r > k:
            s[r, k] /= s[k, k]
        cuda.syncthreads()
        for c in range(k + 1, r + 1):
            s[r, c] -= s[r, k] * s[c, k]
    for c in range(6):
        out[cuda.blockIdx.x, r, c] = s[r, c]


# ---- transforms


@case(
    2,
    8,
    lambda: (real(32) + 1j * real(32, seed=2), np.zeros(32, complex)),
    lambda x, out: {1: np.fft.fft(rows(x, 16)).ravel()},
    rtol=1e-10,
    atol=1e-10,
)
def fft_radix_2(x, out):
    """A butterfly a thread; four rounds for 16 numbers, after they have been put in bit-reversed
    order.
    """
    s = cuda.shared.array(16, complex128)
    t = cuda.threadIdx.x
    start = cuda.blockIdx.x * 16
    for k in range(t, 16, 8):
        s[k] = x[start + (cuda.brev(np.uint32(k)) >> 28)]
    half = 1
    while half < 16:
        cuda.syncthreads()
        place = t // half * 2 * half + t % half
        angle = -math.pi * (t % half) / half
        w = complex(math.cos(angle), math.sin(angle)) * s[place + half]
        v = s[place]
        s[place] = v + w
        s[place + half] = v - w
        half *= 2
    cuda.syncthreads()
    out[start + t] = s[t]
    out[start + t + 8] = s[t + 8]


def _convolved(x, out):
    return {1: np.convolve(x, FILTER[::-1], mode="same")}


@case(3, B, lambda: (real(41), np.zeros(41)), _convolved)
def convolution_with_halo(x, out):
    weights = cuda.const.array_like(FILTER)
    s = cuda.shared.array(WITH_HALO, float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    first = cuda.blockIdx.x * cuda.blockDim.x - 2
    for k in range(t, WITH_HALO, B):
        s[k] = x[first + k] if 0 <= first + k < x.size else 0.0
    cuda.syncthreads()
    if i >= x.size:
        return
    v = 0.0
    for k in range(5):
        v += s[t + k] * weights[k]
    out[i] = v
