"""Numerical kernels: particles, dynamic programming, finance, functions of many terms."""

import math

import numpy as np
from numba import cuda, float32, float64, int64
from numba.cuda import libdevice

from tests.conformance.simt.cases import again, case, real, rows, whole

B = 16
FILTER = np.array([0.1, -0.5, 2.0, 0.75, 0.25])


def _forces(p, out):
    d = p[None, :, :2] - p[:, None, :2]
    inv = 1 / np.sqrt((d * d).sum(-1) + 0.01)
    return {1: (d * (p[None, :, 2] * inv**3)[..., None]).sum(1)}


@case(3, 8, lambda: (real(21, 3), np.zeros((21, 2))), _forces)
def nbody_in_tiles(p, out):
    tile = cuda.shared.array((8, 3), float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    x, y = (p[i, 0], p[i, 1]) if i < p.shape[0] else (0.0, 0.0)
    ax = ay = 0.0
    for start in range(0, p.shape[0], 8):
        if start + t < p.shape[0]:
            for k in range(3):
                tile[t, k] = p[start + t, k]
        cuda.syncthreads()
        for j in range(min(8, p.shape[0] - start)):
            dx = tile[j, 0] - x
            dy = tile[j, 1] - y
            inv = 1.0 / math.sqrt(dx * dx + dy * dy + 0.01)
            ax += dx * tile[j, 2] * inv * inv * inv
            ay += dy * tile[j, 2] * inv * inv * inv
        cuda.syncthreads()
    if i < p.shape[0]:
        out[i, 0] = ax
        out[i, 1] = ay


def _aligned(a, b, out):
    score = np.zeros((a.size + 1, b.size + 1), np.int64)
    score[0], score[:, 0] = -np.arange(b.size + 1), -np.arange(a.size + 1)
    for i in range(a.size):
        for j in range(b.size):
            match = score[i, j] + (1 if a[i] == b[j] else -1)
            score[i + 1, j + 1] = max(match, score[i, j + 1] - 1, score[i + 1, j] - 1)
    return {2: score}


@case(
    1,
    12,
    lambda: (
        whole(12, low=0, high=4),
        whole(9, low=0, high=4, seed=2),
        np.zeros((13, 10), np.int64),
    ),
    _aligned,
)
def needleman_wunsch(a, b, out):
    """A thread a row; the front moves along the antidiagonals."""
    score = cuda.shared.array((13, 10), int64)
    t = cuda.threadIdx.x
    score[t + 1, 0] = -(t + 1)
    if t < 10:
        score[0, t] = -t
    for d in range(a.size + b.size - 1):
        cuda.syncthreads()
        j = d - t
        if 0 <= j < b.size:
            match = score[t, j] + (1 if a[t] == b[j] else -1)
            score[t + 1, j + 1] = max(match, score[t, j + 1] - 1, score[t + 1, j] - 1)
    cuda.syncthreads()
    for j in range(10):
        out[t + 1, j] = score[t + 1, j]
        if t == 0:
            out[0, j] = score[0, j]


def _mandelbrot(width, height, out, total):
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    c = x * 3 / width - 2 + 1j * (y * 2 / height - 1)
    z, counts = np.zeros_like(c), np.zeros(c.shape, np.int64)
    for _ in range(20):
        inside = np.abs(z) <= 2
        counts += inside
        z = np.where(inside, z * z + c, z)
    return {2: counts, 3: [counts.sum()]}


@case(
    (2, 2), (8, 4), lambda: (13, 7, np.zeros((7, 13), np.int64), np.zeros(1, np.int64)), _mandelbrot
)
def mandelbrot_with_total(width, height, out, total):
    counts = cuda.shared.array(1, int64)
    x, y = cuda.grid(2)
    first = cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0
    if first:
        counts[0] = 0
    cuda.syncthreads()
    if x < width and y < height:
        c = complex(x * 3 / width - 2, y * 2 / height - 1)
        z = 0j
        n = 0
        while n < 20 and abs(z) <= 2:
            z = z * z + c
            n += 1
        out[y, x] = n
        cuda.atomic.add(counts, 0, n)
    cuda.syncthreads()
    if first:
        cuda.atomic.add(total, 0, counts[0])


def _normal(x):
    from scipy.special import ndtr

    return ndtr(x)


def _prices(s, strike, years, rate, sigma, calls, mean):
    d1 = (np.log(s / strike) + (rate + sigma**2 / 2) * years) / (sigma * np.sqrt(years))
    d2 = d1 - sigma * np.sqrt(years)
    value = s * _normal(d1) - strike * np.exp(-rate * years) * _normal(d2)
    return {5: value, 6: [value.sum()]}


@cuda.jit(device=True)
def normal(x):
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


@case(
    3,
    B,
    lambda: (
        np.abs(real(40)) + 5,
        np.abs(real(40, seed=3)) + 5,
        np.abs(real(40)) + 1,
        0.02,
        0.3,
        np.zeros(40),
        np.zeros(1),
    ),
    _prices,
    rtol=1e-10,
)
def black_scholes_with_sum(s, strike, years, rate, sigma, calls, total):
    values = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    v = 0.0
    if i < s.size:
        root = sigma * math.sqrt(years[i])
        d1 = (math.log(s[i] / strike[i]) + (rate + 0.5 * sigma**2) * years[i]) / root
        v = s[i] * normal(d1) - strike[i] * math.exp(-rate * years[i]) * normal(d1 - root)
        calls[i] = v
    values[t] = v
    cuda.syncthreads()
    if t == 0:
        v = 0.0
        for k in range(B):
            v += values[k]
        cuda.atomic.add(total, 0, v)


def _polynomial(x, out):
    return {1: rows(sum(c * x**k for k, c in enumerate(FILTER)), B).sum(1)}


@case(3, B, lambda: (real(40), np.zeros(3)), _polynomial)
def horner_and_block_sum(x, out):
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    v = 0.0
    if i < x.size:
        for k in range(FILTER.size - 1, -1, -1):
            v = cuda.fma(v, x[i], FILTER[k])
    s[t] = v
    cuda.syncthreads()
    if t < 8:
        s[t] += s[t + 8]
    cuda.syncthreads()
    if t < 4:
        s[t] += s[t + 4]
    cuda.syncthreads()
    if t == 0:
        out[cuda.blockIdx.x] = s[0] + s[1] + s[2] + s[3]


def _libdevice(x, out):
    made = rows(np.sin(x) * np.exp(-x * x) + np.cbrt(x) + np.hypot(x, 2.0), B)
    return {1: np.sqrt(made[:, ::-1] ** 2 + 1).ravel()}


@case(
    2,
    B,
    lambda: (real(32), np.zeros(32)),
    _libdevice,
    rtol=1e-10,
    differs="the simulator has no libdevice",
)
def libdevice_calls(x, out):
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = (
        libdevice.sin(x[i]) * libdevice.exp(-x[i] * x[i])
        + libdevice.cbrt(x[i])
        + libdevice.hypot(x[i], 2.0)
    )
    cuda.syncthreads()
    v = s[B - 1 - t]
    out[i] = libdevice.sqrt(libdevice.fma(v, v, 1.0))


def _softmax(x, out):
    made = rows(x, B)
    made = np.exp(made - made.max(1, keepdims=True))
    return {1: (made / made.sum(1, keepdims=True)).ravel()}


@case(2, B, lambda: (real(32, dtype=np.float32), np.zeros(32, np.float32)), _softmax, rtol=1e-5)
def softmax(x, out):
    s = cuda.shared.array(B, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i]
    for step in (8, 4, 2, 1):
        cuda.syncthreads()
        if t < step:
            s[t] = max(s[t], s[t + step])
    cuda.syncthreads()
    v = math.exp(x[i] - s[0])
    cuda.syncthreads()
    s[t] = v
    for step in (8, 4, 2, 1):
        cuda.syncthreads()
        if t < step:
            s[t] += s[t + step]
    cuda.syncthreads()
    out[i] = v / s[0]


again(
    "softmax_shifted",
    "softmax",
    3,
    B,
    lambda: (real(48, dtype=np.float32) + np.float32(80), np.zeros(48, np.float32)),
)


def _halves(dtype, *shape):
    return whole(*shape, low=-7, high=8).astype(dtype)  # sums of squares are exact


def _half_norms(x, out):
    return {1: (rows(x, B).astype(float) ** 2).sum(1).astype(x.dtype)}


@case(3, B, lambda: (_halves(np.float16, 45), np.zeros(3, np.float16)), _half_norms)
def half_norms(x, out):
    s = cuda.shared.array(B, np.float16)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i] * x[i] if i < x.size else np.float16(0)
    for step in (8, 4, 2, 1):
        cuda.syncthreads()
        if t < step:
            s[t] += s[t + step]
    if t == 0:
        out[cuda.blockIdx.x] = s[0]


def _half_steps(x, scale, out):
    decay = x * np.float16(scale)
    return {2: np.where(decay > x, decay, abs(x) / np.float16(3))}


@case(
    2,
    B,
    lambda: (real(30, dtype=np.float16), np.float16(0.3), np.zeros(30, np.float16)),
    _half_steps,
)
def half_arithmetic(x, scale, out):
    i = cuda.grid(1)
    if i < x.size:
        decay = x[i] * scale
        out[i] = decay if decay > x[i] else abs(x[i]) / np.float16(3)
