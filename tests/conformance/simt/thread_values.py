"""What a thread computes with: arrays, functions, types and random numbers, where no thread
waits for another.
"""

import math
from collections import namedtuple

import numba.cuda.random
import numpy as np
from numba import cuda, float32, float64, int32, njit
from numba.cuda import random as generator
from numba.cuda.random import xoroshiro128p_normal_float64, xoroshiro128p_uniform_float32

from tests.conformance.simt.cases import case, real, states

TERMS = 6
TWO = 2
SHAPE = (2, 3)
TABLE = np.array([1.5, -2.0, 0.25, 4.0])
WEIGHTS = np.array([3, 1, 2], np.int32)
Line = namedtuple("Line", ["slope", "shift", "count"])
PAIR = np.dtype([("a", np.float64), ("b", np.int32)], align=True)


# ---- arrays and functions


@case(
    3,
    16,
    lambda: (real(40), np.zeros(40)),
    lambda x, out: {1: sum(x**k / math.factorial(k) for k in range(TERMS))},
)
def local_array(x, out):
    i = cuda.grid(1)
    if i >= x.size:
        return
    c = cuda.local.array(TERMS, float64)
    c[0] = 1.0
    for k in range(1, TERMS):
        c[k] = c[k - 1] * x[i] / k
    s = 0.0
    for k in range(TERMS):
        s += c[k]
    out[i] = s


@case(3, 16, lambda: (real(40), np.zeros(40)), lambda x, out: {1: np.float32(x) * 15.0}, rtol=1e-6)
def local_array_2d(x, out):
    i = cuda.grid(1)
    if i >= x.size:
        return
    c = cuda.local.array(shape=SHAPE, dtype=float32)
    d = cuda.local.array(TWO, dtype=np.int32)
    for j in range(2):
        d[j] = j
        for k in range(3):
            c[j, k] = x[i] * (d[j] * 3 + k)
    s = 0.0
    for j in range(2):
        for k in range(3):
            s += c[j, k]
    out[i] = s


@case(3, 16, lambda: (real(40), np.zeros(40)), lambda x, out: {1: x * TABLE[np.arange(40) % 4]})
def constant_array(x, out):
    i = cuda.grid(1)
    table = cuda.const.array_like(TABLE)
    if i < x.size:
        out[i] = x[i] * table[i % 4]


@case(3, 16, lambda: (real(40), np.zeros(40)), lambda x, out: {1: x * WEIGHTS[np.arange(40) % 3]})
def global_array(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] * WEIGHTS[i % WEIGHTS.size]


@cuda.jit(device=True)
def cnd(d):
    k = 1.0 / (1.0 + 0.2316419 * math.fabs(d))
    terms = 0.31938153 + k * (
        -0.356563782 + k * (1.781477937 + k * (-1.821255978 + k * 1.330274429))
    )
    value = 0.39894228040143267793994605993438 * math.exp(-0.5 * d * d) * (k * terms)
    if d > 0:
        return 1.0 - value
    return value


@case(
    3,
    16,
    lambda: (
        np.zeros(40),
        np.abs(real(40)) + 5,
        np.abs(real(40, seed=3)) + 5,
        np.abs(real(40)) + 1,
        0.02,
        0.3,
    ),
)
def black_scholes(call, s, x, t, r, v):
    i = cuda.grid(1)
    if i >= s.shape[0]:
        return
    root = math.sqrt(t[i])
    d1 = (math.log(s[i] / x[i]) + (r + 0.5 * v * v) * t[i]) / (v * root)
    d2 = d1 - v * root
    call[i] = s[i] * cnd(d1) - x[i] * math.exp((-1.0 * r) * t[i]) * cnd(d2)


@cuda.jit(device=True)
def place(v):
    return v + cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x


@cuda.jit(device=True)
def both(a, b):
    lane = cuda.laneid
    return a * b + lane * 0, place(a)


@case(3, 16, lambda: (real(40), np.zeros(40)), lambda x, out: {1: x * 3 + np.arange(40)})
def device_functions(x, out):
    i = cuda.grid(1)
    if i < x.size:
        p, q = both(x[i], 2.0)
        out[i] = p + q


@cuda.jit(device=True)
def put(out, i, v):
    if v < 0:
        return
    out[i] = v


@case(3, 16, lambda: (real(40), np.zeros(40)), lambda x, out: {1: np.maximum(x, 0)})
def device_procedure(x, out):
    i = cuda.grid(1)
    if i < x.size:
        put(out, i, x[i])


@njit
def curve(a):
    return math.sin(a) * 2


@case(3, 16, lambda: (real(40), np.zeros(40)), lambda x, out: {1: np.sin(x) * 2})
def njit_function(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = curve(x[i])


def make_closure(scale, shift):
    def closure(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = x[i] * scale + shift

    return closure


closure = case(3, 16, lambda: (real(40), np.zeros(40)), lambda x, out: {1: x * 3 + 2})(
    make_closure(3.0, 2)
)


# ---- types


@case(
    3,
    16,
    lambda: (Line(2.0, 0.5, 40), real(40), np.zeros(40)),
    lambda p, x, out: {2: p.slope * x + p.shift},
)
def named_tuple(p, x, out):
    i = cuda.grid(1)
    if i < p.count:
        out[i] = p.slope * x[i] + p.shift


@case(3, 16, lambda: ((2.0, 40), real(40), np.zeros(40)), lambda p, x, out: {2: 2 * x + 40})
def plain_tuple(p, x, out):
    i = cuda.grid(1)
    if i < p[1]:
        out[i] = p[0] * x[i] + p[1]


def _pairs():
    made = np.zeros(40, PAIR)
    made["a"], made["b"] = real(40), np.arange(40)[::-1]
    return made, np.zeros(40)


@case(3, 16, _pairs, lambda r, out: {1: r["a"] * r["b"]})
def records(r, out):
    i = cuda.grid(1)
    if i < r.size:
        out[i] = r[i]["a"] * r[i].b
        r[i].b = i


@case(3, 16, lambda: (real(40) + 1j * real(40, seed=2), np.zeros(40, np.int32)))
def complex_numbers(z, out):
    i = cuda.grid(1)
    if i < z.size:
        c = z[i]
        v = 0j
        n = 0
        while n < 30 and abs(v) < 2.0:
            v = v * v + c
            n += 1
        out[i] = n


def _integers(a, b, out):
    a, b = a.astype(np.int64), b.astype(np.int64)
    return {2: (((a * 200 + b // 3) ^ (b << 2)) % 1000) + 4}


@case(
    3,
    16,
    lambda: (np.arange(40, dtype=np.uint8), np.arange(40, dtype=np.int16), np.zeros(40, np.int32)),
    _integers,
    differs="NumPy scalars of 8 bits wrap around; Numba computes in int64, on GPUs too",
)
def integers(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = int32((a[i] * 200 + b[i] // 3) ^ (b[i] << 2)) % 1000 - (-7) // 2


@case(
    3,
    16,
    lambda: (real(40).astype(np.float32), np.float32(1.5), np.zeros(40, np.float32)),
    lambda x, a, out: {2: x * a},
)
def single_precision(x, a, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = float32(a) * x[i]


def _math_functions(x, out):
    v = np.floor(x) + np.ceil(x) + np.arctan2(x, 2.0) + np.tanh(x) + np.abs(x) ** 1.5
    v += np.maximum(x, 0.25) - np.minimum(x, -0.5) + np.round(x) + np.log1p(np.abs(x)) + np.pi
    v += [math.erf(element) for element in x]
    return {1: v + np.where(x > 0, 1.0, 2.0) + x * 2.0 + 1.0 + np.cbrt(x)}


@case(
    3,
    16,
    lambda: (real(40), np.zeros(40)),
    _math_functions,
    differs="its cbrt is not defined below zero",
)
def math_functions(x, out):
    i = cuda.grid(1)
    if i < x.size:
        v = (
            math.floor(x[i])
            + math.ceil(x[i])
            + math.atan2(x[i], 2.0)
            + math.tanh(x[i])
            + math.pow(abs(x[i]), 1.5)
        )
        v += (
            max(x[i], 0.25)
            - min(x[i], 0.5, -0.5)
            + round(x[i])
            + math.log1p(abs(x[i]))
            + math.erf(x[i])
            + math.pi
        )
        out[i] = v + cuda.selp(x[i] > 0, 1.0, 2.0) + cuda.fma(x[i], 2.0, 1.0) + cuda.cbrt(x[i])


@case(3, 16, lambda: (np.arange(1, 49, dtype=np.uint32) * 2654435, np.zeros((48, 4), np.int64)))
def bits(x, out):
    i = cuda.grid(1)
    out[i, 0] = cuda.popc(x[i])
    out[i, 1] = cuda.brev(x[i])
    out[i, 2] = cuda.clz(x[i])
    out[i, 3] = cuda.ffs(x[i])


# ---- random numbers


@case(3, 16, lambda: (states(48), 7, np.zeros((48, 2))), rtol=1e-6)
def random_numbers(rng, n, out):
    i = cuda.grid(1)
    inside = 0
    for _ in range(n):
        x = xoroshiro128p_uniform_float32(rng, i)
        y = xoroshiro128p_uniform_float32(rng, i)
        if x * x + y * y <= 1.0:
            inside += 1
    out[i, 0] = inside
    out[i, 1] = xoroshiro128p_normal_float64(rng, i)


@case(3, 16, lambda: (states(48), np.zeros((48, 3))), rtol=1e-6)
def random_numbers_by_attribute(rng, out):
    i = cuda.grid(1)
    out[i, 0] = generator.xoroshiro128p_uniform_float32(rng, i)
    out[i, 1] = numba.cuda.random.xoroshiro128p_uniform_float64(rng, i)
    draw = generator.xoroshiro128p_normal_float32
    out[i, 2] = draw(rng, i)


def _uniform(rng, out):
    return {1: ((rng["s0"] + rng["s1"]) >> np.uint64(11)) * 2.0**-53}


@case(
    3, 16, lambda: (states(48), np.zeros(48)), _uniform, differs="the simulator has no cuda.random"
)
def random_numbers_of_the_module(rng, out):
    i = cuda.grid(1)
    out[i] = cuda.random.xoroshiro128p_uniform_float64(rng, i)


# ---- names for members of numba.cuda


@cuda.jit(device=True)
def place_in_block(position):
    return position.y * 4 + position.x


def _places(out):
    y, x = np.indices((4, 8))
    return {
        0: np.stack(
            [x, y, x % 4, y % 2, y % 2 * 4 + x % 4, x + 10 * (x // 4), x * 0 + 8, y * 0 + 2], -1
        )
    }


@case((2, 2), (4, 2), lambda: (np.zeros((4, 8, 8), np.int64),), _places)
def names_for_indices(out):
    tid, (bid, size) = cuda.threadIdx, (cuda.blockIdx, cuda.blockDim)
    grid: tuple = cuda.gridDim
    again = position = tid
    x, y = bid.x * size.x + tid.x, bid.y * size.y + tid.y
    out[y, x, 0] = x
    out[y, x, 1] = y
    out[y, x, 2] = again.x
    out[y, x, 3] = position.y
    out[y, x, 4] = place_in_block(position)
    out[y, x, 5] = cuda.grid(2)[0] + 10 * bid.x
    out[y, x, 6] = size.x * grid.x
    out[y, x, 7] = grid.y


@case(
    2,
    16,
    lambda: (np.zeros((32, 3)),),
    lambda out: {0: np.c_[np.arange(32), 32 - np.r_[0:16, 0:16], np.full(32, 3)]},
)
def names_for_modules_and_functions(out):
    c = cuda
    index, atomic = c.grid, c.atomic
    i, (t, n) = index(1), (c.threadIdx, 3)
    atomic.add(out, (i, 0), i)
    out[i, 1] = 32 - t.x
    out[i, 2] = n
