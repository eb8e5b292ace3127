"""Kernels over everything that runs without synchronising threads, each with what NumPy says it computes."""

import math
from collections import namedtuple

import numpy as np
from numba import cuda, float32, float64, int32, njit
from numba.cuda.random import xoroshiro128p_dtype, xoroshiro128p_normal_float64, xoroshiro128p_uniform_float32

from tests.conformance.simt.cases import again, case, real

TERMS = 6
TWO = 2
SHAPE = (2, 3)
TABLE = np.array([1.5, -2.0, 0.25, 4.0])
WEIGHTS = np.array([3, 1, 2], np.int32)
Line = namedtuple("Line", ["slope", "shift", "count"])
PAIR = np.dtype([("a", np.float64), ("b", np.int32)], align=True)


def _ones(x, flag, out):
    return {2: np.ones(40)}


def states(n):
    """xoroshiro128+ states, made without numba.cuda: its own functions for that differ in the simulator."""
    seeds = np.random.default_rng(5).integers(1, 1 << 62, (n, 2), dtype=np.uint64)
    made = np.empty(n, xoroshiro128p_dtype)
    made["s0"], made["s1"] = seeds[:, 0], seeds[:, 1]
    return made


# ---- guards


@case(7, 16, lambda: (2.5, real(100), real(100, seed=2), np.zeros(100)), lambda a, x, y, out: {3: a * x + y})
def saxpy(a, x, y, out):
    i = cuda.grid(1)
    if i < x.shape[0]:
        out[i] = a * x[i] + y[i]


@case(7, 16, lambda: (real(100), np.zeros(100)), lambda x, out: {1: x * x})
def early_return(x, out):
    i = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x
    if i >= x.size:
        return
    out[i] = x[i] * x[i]


def _stencil(x, out):
    out = out.copy()
    out[1:-1] = 0.25 * x[:-2] + 0.5 * x[1:-1] + 0.25 * x[2:]
    return {1: out}


@case(7, 16, lambda: (real(100), np.zeros(100)), _stencil)
def stencil_and(x, out):
    i = cuda.grid(1)
    n = x.shape[0]
    if i > 0 and i < n - 1:
        out[i] = 0.25 * x[i - 1] + 0.5 * x[i] + 0.25 * x[i + 1]


@case(3, 64, lambda: (real(100), np.zeros(100)), _stencil)
def stencil_chain(x, out):
    i = cuda.grid(1)
    if 0 < i < x.shape[0] - 1:
        out[i] = 0.25 * x[i - 1] + 0.5 * x[i] + 0.25 * x[i + 1]


@case(9, 13, lambda: (real(100), np.zeros(100)), _stencil)
def stencil_return(x, out):
    i = cuda.grid(1)
    if i <= 0 or i >= x.shape[0] - 1:
        return
    out[i] = 0.25 * x[i - 1] + 0.5 * x[i] + 0.25 * x[i + 1]


@case(9, 13, lambda: (real(100), np.zeros(100)), _stencil)
def stencil_not(x, out):
    i = cuda.grid(1)
    if not (1 <= i and x.shape[0] - 1 > i):
        return
    left = x[i - 1]
    out[i] = 0.25 * left + 0.5 * x[i] + 0.25 * x[i + 1]


def _float_guard(x, limit, out):
    i = np.arange(x.size)
    return {2: np.where(i < limit, x, 0.0) + np.where(i < limit, 0, 10.0)}


@case(7, 16, lambda: (real(100), 41.5, np.zeros(100)), _float_guard)
def float_guard(x, limit, out):
    i = cuda.grid(1)
    if i >= x.size:
        return
    if i < limit:
        out[i] = x[i]
    else:
        out[i] = 10.0


@case(7, 16, lambda: (real(100), 41.5, np.zeros(100)), lambda x, limit, out: {2: np.where(np.arange(100) < limit, x, 0)})
def float_guard_alone(x, limit, out):
    i = cuda.grid(1)
    if i < limit and i < x.size:
        out[i] = x[i]


@case(7, 16, lambda: (real(100), 41.5, np.zeros(100)), lambda x, limit, out: {2: np.where(np.arange(100) >= limit, 0, x)})
def float_return(x, limit, out):
    i = cuda.grid(1)
    if i >= limit or i >= x.size:
        return
    out[i] = x[i]


for _name, _limit in {"nan": np.nan, "inf": np.inf, "minus_inf": -np.inf, "negative": -3.25, "exact": 41.0}.items():
    for _of in ("float_guard", "float_guard_alone", "float_return"):
        again(f"{_of}_{_name}", _of, 7, 16, lambda limit=_limit: (real(100), limit, np.zeros(100)))


@case(5, 16, lambda: (np.uint64(50), np.int32(7), np.zeros(80)), lambda n, low, out: {2: np.r_[[0] * 7, [1] * 43, [0] * 30]})
def typed_limits(n, low, out):
    i = cuda.grid(1)
    if i < n and i >= low:
        out[i] = 1.0


@case(5, 16, lambda: (30, np.zeros(80)), lambda k, out: {1: np.where(np.arange(80) == 30, 7.0, 0.0)})
def one_thread(k, out):
    i = cuda.grid(1)
    if i == k:
        out[i] = 7.0


@case(5, 16, lambda: (np.zeros(80), real(80) > 0), lambda out, mask: {0: np.where(mask, np.arange(80.0), 0.0)})
def guard_with_rest(out, mask):
    i = cuda.grid(1)
    if i < out.size and mask[i]:
        out[i] = i


@case(5, 16, lambda: (np.zeros(72), real(72)), lambda out, x: {0: np.where(x > 0, np.cumsum(np.ones(72)) * 2, -1.0)})
def code_before_guard(out, x):
    i = cuda.grid(1)
    n = x.size
    twice = (i + 1) * 2.0
    if i >= n:
        return
    if x[i] <= 0:
        out[i] = -1.0
        return
    out[i] = twice


@case(4, 16, lambda: (np.zeros(60), np.zeros(64)), lambda out, seen: {0: np.arange(60.0), 1: np.ones(64)})
def effect_before_guard(out, seen):
    i = cuda.grid(1)
    seen[i] += 1.0
    if i >= out.size:
        return
    out[i] = i


@case(4, 16, lambda: (np.zeros(60),), lambda out: {0: np.where(np.arange(60) < 40, 40.0, 0.0)})
def limit_changes(out):
    i = cuda.grid(1)
    n = 40
    if i >= n:
        return
    m = n
    n = 5
    out[i] = m + n - 5


# ---- grid-stride loops


def _double(x, out):
    return {1: 2 * x}


@case(2, 16, lambda: (real(101), np.zeros(101)), _double)
def stride_for(x, out):
    start = cuda.grid(1)
    stride = cuda.gridsize(1)
    for i in range(start, x.shape[0], stride):
        out[i] = x[i] * 2


@case(2, 16, lambda: (real(101), np.zeros(101)), _double)
def stride_while(x, out):
    i = cuda.grid(1)
    while i < x.size:
        out[i] = x[i] * 2
        i += cuda.gridsize(1)


@case(2, 16, lambda: (real(101), np.zeros(101)))
def stride_while_used_behind(x, out):
    i = cuda.grid(1)
    while i < x.size:
        out[i] = x[i] * 2
        i += cuda.gridsize(1)
    out[cuda.grid(1)] += i


@case(1, 4, lambda: (real(40), np.zeros(40)))
def stride_while_break(x, out):
    i = cuda.grid(1)
    while i < x.size:
        if x[i] > 1.5:
            break
        out[i] = x[i]
        i += cuda.gridsize(1)


@case(2, 16, lambda: (real(101), 0.5, np.zeros(1)), lambda x, beta, total: {2: [np.exp(-beta * x * x).sum()]})
def energy(x, beta, total):
    acc = 0.0
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        acc += math.exp(-beta * x[i] * x[i])
    cuda.atomic.add(total, 0, acc)


again("energy_row_per_thread", "energy", 7, 16, lambda: (real(101), 0.5, np.zeros(1)))
again("energy_one_thread", "energy", 1, 1, lambda: (real(31), 0.5, np.zeros(1)))
again("energy_empty", "energy", 2, 16, lambda: (real(0), 0.5, np.ones(1)), lambda x, beta, total: {2: [1.0]})


@case(2, 16, lambda: (real(101), np.zeros(32)))
def stride_per_thread(x, out):
    acc = 0
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        if x[i] > 0:
            acc += x[i] * i
        else:
            acc -= 1
    out[cuda.grid(1)] = acc


@case(2, 16, lambda: (real(101), np.zeros(101)), lambda x, out: {1: np.r_[0, 0, 0, x[3:99], 0, 0]})
def stride_offset(x, out):
    for i in range(cuda.grid(1) + 3, x.shape[0] - 2, cuda.gridsize(1)):
        out[i] = x[i]


@case(2, 16, lambda: (real(40), np.zeros(40)), lambda x, out: {1: np.r_[x[:35], x[35:] * 2]})
def stride_from_negative(x, out):
    for i in range(cuda.grid(1) - 5, x.shape[0] - 5, cuda.gridsize(1)):
        if i < 0:
            out[i] = x[i] * 2  # Python's wraparound
        else:
            out[i] = x[i]


@case((2, 2), (4, 8), lambda: (real(19, 23), np.zeros((19, 23))), lambda a, out: {1: a + 1})
def stride_2d(a, out):
    x, y = cuda.grid(2)
    nx, ny = cuda.gridsize(2)
    for i in range(x, a.shape[0], nx):
        for j in range(y, a.shape[1], ny):
            out[i, j] = a[i, j] + 1


@case((2, 2), (4, 8), lambda: (real(19, 23), np.zeros(1)), lambda a, out: {1: [a.sum()]})
def stride_2d_sum(a, total):
    acc = 0.0
    for i in range(cuda.grid(2)[1], a.shape[0], cuda.blockDim.y * cuda.gridDim.y):
        for j in range(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x, a.shape[1], cuda.gridsize(2)[0]):
            acc += a[i, j]
    cuda.atomic.add(total, 0, acc)


@case(2, 16, lambda: (real(33, 5), np.zeros(33)), lambda a, out: {1: a.sum(1) * 2})
def stride_with_inner_loop(a, out):
    for i in range(cuda.grid(1), a.shape[0], cuda.gridsize(1)):
        s = 0.0
        for j in range(a.shape[1]):
            s += a[i, j]
        for j in range(a.shape[1]):
            s += a[i, j]
        out[i] = s


@case(2, 16, lambda: (real(50), np.zeros(50)))
def two_strides(x, out):
    acc = 0.0
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        acc += x[i]
    mean = acc / 2
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        out[i] = x[i] - mean


@case(2, 16, lambda: (real(60), np.zeros(60)), lambda x, out: {1: np.where(np.arange(60) < 50, x * 3, 0)})
def return_before_stride(x, out):
    n = 50
    if cuda.threadIdx.x >= 16:
        return
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        out[i] = x[i] * 3


@case(2, 16, lambda: (real(60), np.zeros(60)))
def varying_return_before_stride(x, out):
    if x[cuda.grid(1)] > 0:
        return
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        out[i] = x[i] * 3


# ---- loops that all threads run


@case(3, 16, lambda: (real(40, 9), real(9), np.zeros(40)), lambda a, v, out: {2: a @ v})
def matvec(a, v, out):
    i = cuda.grid(1)
    if i < a.shape[0]:
        s = 0.0
        for j in range(a.shape[1]):
            s += a[i, j] * v[j]
        out[i] = s


@case(3, 16, lambda: (real(9, 40), np.zeros(40)), lambda a, out: {1: a.sum(0)})
def column_sums(a, out):
    i = cuda.grid(1)
    if i >= a.shape[1]:
        return
    s = 0.0
    for j in range(a.shape[0]):
        s += a[j, i]
    out[i] = s


def _nbody(pos, acc, eps2):
    d = pos[None, :, :3] - pos[:, None, :3]
    inv = 1 / np.sqrt((d * d).sum(-1) + eps2)
    return {1: (d * (pos[None, :, 3] * inv**3)[..., None]).sum(1)}


@case(3, 16, lambda: (real(40, 4), np.zeros((40, 3)), 0.01), _nbody)
def nbody(pos, acc, eps2):
    i = cuda.grid(1)
    n = pos.shape[0]
    if i >= n:
        return
    px = pos[i, 0]
    py = pos[i, 1]
    pz = pos[i, 2]
    ax = float64(0.0)
    ay = float64(0.0)
    az = float64(0.0)
    for j in range(n):
        dx = pos[j, 0] - px
        dy = pos[j, 1] - py
        dz = pos[j, 2] - pz
        d2 = dx * dx + dy * dy + dz * dz + eps2
        inv = float64(1.0) / math.sqrt(d2)
        inv3 = pos[j, 3] * inv * inv * inv
        ax += dx * inv3
        ay += dy * inv3
        az += dz * inv3
    acc[i, 0] = ax
    acc[i, 1] = ay
    acc[i, 2] = az


@case((3, 2), (4, 8), lambda: (real(11, 7), real(7, 13), np.zeros((11, 13))), lambda a, b, c: {2: a @ b})
def matmul(a, b, c):
    row, column = cuda.grid(2)
    if row < c.shape[0] and column < c.shape[1]:
        s = 0.0
        for k in range(a.shape[1]):
            s += a[row, k] * b[k, column]
        c[row, column] = s


@case(3, 16, lambda: (real(40), 7, np.zeros(40)))
def loops_in_a_row(x, n, out):
    i = cuda.grid(1)
    if i < x.size:
        v = x[i]
        for k in range(n):
            v = v * 0.5 + x[k]
        flag = v > 0
        for k in range(n, 2 * n):
            if flag:
                v += x[k]
        for k in range(2 * n, 0, -2):
            v -= x[k] * k
        out[i] = v


@case(3, 16, lambda: (real(40), 7, np.zeros(40)))
def uniform_variables(x, n, out):
    i = cuda.grid(1)
    m = n
    v = 0
    if i < x.size:
        for k in range(m):
            v += x[i] * m
            m = m - 1
        w = m + n
        for k in range(w):
            v += w
            w = 3
        out[i] = v + w


@case(3, 16, lambda: (real(40, 3), 70, np.zeros(40)))
def view_across_loop(a, n, out):
    i = cuda.grid(1)
    if i < a.shape[0]:
        row = a[i]
        t = (row[0], row[1])
        s = 0.0
        for k in range(n):
            s += row[k % 3] * t[k % 2]
        out[i] = s


@case(3, 16, lambda: (real(40), 70, np.zeros(40)))
def local_array_across_loop(x, n, out):
    i = cuda.grid(1)
    c = cuda.local.array(4, float64)
    if i < x.size:
        for k in range(4):
            c[k] = x[i] * k
        s = 0.0
        for k in range(n):
            s += x[k % 40]
        for k in range(n):
            s += c[k % 4]
        out[i] = s


# ---- control flow


@case(3, 16, lambda: (np.abs(real(40)), np.zeros(40)))
def return_in_loop(x, out):
    i = cuda.grid(1)
    if i < x.size:
        for k in range(1, 100):
            if x[i] * k > 1:
                out[i] = k
                return
        out[i] = -1


@case(3, 16, lambda: (np.abs(real(48)), np.zeros(48)))
def return_in_nested_loops(x, out):
    i = cuda.grid(1)
    for k in range(5):
        j = 0
        while j < 5:
            if x[i] * (k * j) > 2:
                out[i] = k * 10 + j
                return
            j += 1
        out[i] -= 1
    for k in range(3):
        if x[i] < 0.1:
            return
    out[i] += 0.5


@case(3, 16, lambda: (real(48), np.zeros(48)))
def break_and_continue(x, out):
    i = cuda.grid(1)
    s = 0.0
    for k in range(48):
        if x[k] < 0:
            continue
        if k > i:
            break
        s += x[k]
    while True:
        s *= 0.5
        if s < 0.01:
            break
    out[i] = s


@case(3, 16, lambda: (np.zeros(48, np.int64),), lambda out: {0: np.arange(48) * (np.arange(48) - 1) // 2})
def triangle(out):
    i = cuda.grid(1)
    s = 0
    for k in range(i):
        s += k
    out[i] = s


@case(3, 16, lambda: (np.zeros(48, np.int64),))
def collatz(out):
    i = cuda.grid(1)
    n, steps = i + 1, 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    out[i] = steps


@case(3, 16, lambda: (real(40), np.zeros(40)), lambda x, out: {1: np.where(x > 0.5, 1 + 2 * x, 1.0)})
def set_in_one_branch(x, out):
    i = cuda.grid(1)
    if i < x.size:
        if x[i] > 0.5:
            v = x[i] * 2
        w = 1.0
        if x[i] > 0.5:
            w += v
        out[i] = w


@case(3, 16, lambda: (real(40), 1, np.zeros(40)), lambda x, flag, out: {2: x * 2 if flag else -x})
def uniform_if(x, flag, out):
    i = cuda.grid(1)
    if flag > 0:
        scale = 2.0
    else:
        scale = -1.0
    if i < x.size:
        out[i] = x[i] * scale


again("uniform_else", "uniform_if", 3, 16, lambda: (real(40), 0, np.zeros(40)))


@case(3, 16, lambda: (real(40), 3, np.zeros(40)), lambda x, flag, out: {2: x * 2.5 + 1})
def uniform_variable_set_in_one_branch(x, flag, out):
    if flag > 0:
        scale = 2.5
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        out[i] = 1.0
        if flag > 0:
            out[i] += x[i] * scale


again("uniform_variable_never_set", "uniform_variable_set_in_one_branch", 3, 16, lambda: (real(40), 0, np.zeros(40)), _ones)


@case(3, 16, lambda: (12, np.zeros(48)), lambda n, out: {1: np.arange(48) + 24.0})
def reassigned_parameter(n, out):
    i = cuda.grid(1)
    n = n * 2
    out[i] = i + n


@case(3, 16, lambda: (np.zeros(48),))
def swapped(out):
    i = cuda.grid(1)
    a, b = i, 1
    for _ in range(5):
        a, b = b, a + b
    out[i] = a * 1000 + b


@case(3, 16, lambda: (real(40), np.zeros(40)), lambda x, out: {1: x[(np.arange(40) - 1)]})
def wraparound(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i - 1]


@case(3, 16, lambda: (real(40), np.ones(40)), lambda x, out: {1: 1 + 3 * x})
def augmented_elements(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] += x[i]
        out[i] += x[i] * 2


@case(3, 16, lambda: (real(40), np.zeros(40)), lambda x, out: {1: x + 1})
def fences(x, out):
    i = cuda.grid(1)
    if i < x.size:
        v: float = x[i]
        cuda.threadfence()
        cuda.threadfence_block()
        cuda.threadfence_system()
        out[i] = v + 1


# ---- grids and indices


@case((2, 2, 2), (4, 4, 2), lambda: (np.zeros((7, 6, 3)),))
def grid3d(a):
    x, y, z = cuda.grid(3)
    nx, ny, nz = cuda.gridsize(3)
    if x < a.shape[0] and y < a.shape[1] and z < a.shape[2]:
        a[x, y, z] = x * 10000 + y * 100 + z + cuda.threadIdx.z * 0.5 + nx * ny * nz


@case((3, 2), (4, 5), lambda: (real(9, 11), np.zeros((9, 11))), lambda a, out: {1: a * 2})
def grid2d_rows(a, out):
    column, row = cuda.grid(2)
    if row >= a.shape[0] or column >= a.shape[1]:
        return
    out[row, column] = a[row, column] * 2


@case((3, 2), (4, 5), lambda: (real(9, 11), np.zeros((9, 11))), lambda a, out: {1: a * 2})
def unpacked_shape(a, out):
    column, row = cuda.grid(2)
    height, width = a.shape
    if row < height and column < width:
        out[row, column] = a[row, column] * 2


@case(2, 16, lambda: (real(9, 11), np.zeros((9, 11))), lambda a, out: {1: a * 2})
def flat_stride(a, out):
    height, width = a.shape
    for k in range(cuda.grid(1), height * width, cuda.gridsize(1)):
        out[k // width, k % width] = a[k // width, k % width] * 2


@case((3, 2, 2), (4, 3, 2), lambda: (np.zeros((288, 14), np.int64),))
def raw_indices(out):
    linear = cuda.threadIdx.x + cuda.blockDim.x * (cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z)
    block = cuda.blockIdx.x + cuda.gridDim.x * (cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z)
    k = linear + block * cuda.blockDim.x * cuda.blockDim.y * cuda.blockDim.z
    out[k, 0] = cuda.threadIdx.x
    out[k, 1] = cuda.threadIdx.y
    out[k, 2] = cuda.threadIdx.z
    out[k, 3] = cuda.blockIdx.x
    out[k, 4] = cuda.blockIdx.y
    out[k, 5] = cuda.blockIdx.z
    out[k, 6] = cuda.blockDim.x
    out[k, 7] = cuda.blockDim.y
    out[k, 8] = cuda.blockDim.z
    out[k, 9] = cuda.gridDim.x
    out[k, 10] = cuda.gridDim.y
    out[k, 11] = cuda.gridDim.z
    out[k, 12] = cuda.warpsize
    out[k, 13] = k


@case(2, 70, lambda: (np.zeros(140, np.int64),), lambda out: {0: np.tile(np.arange(70) % 32, 2)})
def lanes(out):
    out[cuda.grid(1)] = cuda.laneid


# ---- arrays and functions


@case(3, 16, lambda: (real(40), np.zeros(40)), lambda x, out: {1: sum(x**k / math.factorial(k) for k in range(TERMS))})
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
    terms = 0.31938153 + k * (-0.356563782 + k * (1.781477937 + k * (-1.821255978 + k * 1.330274429)))
    value = 0.39894228040143267793994605993438 * math.exp(-0.5 * d * d) * (k * terms)
    if d > 0:
        return 1.0 - value
    return value


@case(3, 16, lambda: (np.zeros(40), np.abs(real(40)) + 5, np.abs(real(40, seed=3)) + 5, np.abs(real(40)) + 1, 0.02, 0.3))
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


closure = case(3, 16, lambda: (real(40), np.zeros(40)), lambda x, out: {1: x * 3 + 2})(make_closure(3.0, 2))


# ---- types


@case(3, 16, lambda: (Line(2.0, 0.5, 40), real(40), np.zeros(40)), lambda p, x, out: {2: p.slope * x + p.shift})
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


@case(3, 16, lambda: (real(40).astype(np.float32), np.float32(1.5), np.zeros(40, np.float32)), lambda x, a, out: {2: x * a})
def single_precision(x, a, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = float32(a) * x[i]


def _math_functions(x, out):
    v = np.floor(x) + np.ceil(x) + np.arctan2(x, 2.0) + np.tanh(x) + np.abs(x) ** 1.5
    v += np.maximum(x, 0.25) - np.minimum(x, -0.5) + np.round(x) + np.log1p(np.abs(x)) + np.pi
    v += [math.erf(element) for element in x]
    return {1: v + np.where(x > 0, 1.0, 2.0) + x * 2.0 + 1.0 + np.cbrt(x)}


@case(3, 16, lambda: (real(40), np.zeros(40)), _math_functions, differs="its cbrt is not defined below zero")
def math_functions(x, out):
    i = cuda.grid(1)
    if i < x.size:
        v = math.floor(x[i]) + math.ceil(x[i]) + math.atan2(x[i], 2.0) + math.tanh(x[i]) + math.pow(abs(x[i]), 1.5)
        v += max(x[i], 0.25) - min(x[i], 0.5, -0.5) + round(x[i]) + math.log1p(abs(x[i])) + math.erf(x[i]) + math.pi
        out[i] = v + cuda.selp(x[i] > 0, 1.0, 2.0) + cuda.fma(x[i], 2.0, 1.0) + cuda.cbrt(x[i])


@case(3, 16, lambda: (np.arange(1, 49, dtype=np.uint32) * 2654435, np.zeros((48, 4), np.int64)))
def bits(x, out):
    i = cuda.grid(1)
    out[i, 0] = cuda.popc(x[i])
    out[i, 1] = cuda.brev(x[i])
    out[i, 2] = cuda.clz(x[i])
    out[i, 3] = cuda.ffs(x[i])


# ---- atomics


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


@case(3, 16, lambda: (np.arange(48, dtype=np.int32) * 37, np.full(4, 0xFFF, np.int32), np.zeros(3, np.uint32)))
def atomic_bits(x, out, more):
    i = cuda.grid(1)
    cuda.atomic.and_(out, 0, x[i] | 0xF0)
    cuda.atomic.or_(out, 1, x[i])
    cuda.atomic.xor(out, 2, x[i])
    cuda.atomic.exch(out, 3, 5)
    cuda.atomic.inc(more, 0, 9)
    cuda.atomic.dec(more, 1, 6)


@case(3, 16, lambda: (np.zeros(3, np.int32), np.zeros(1, np.int64)), lambda a, b: {0: [5, 0, 0], 1: [1]})
def atomic_compare(a, b):
    old = cuda.atomic.cas(a, 0, 0, 5)
    cuda.atomic.compare_and_swap(a[1:], 3, 4)
    if old == 0:
        cuda.atomic.add(b, 0, 1)


@case(3, 16, lambda: (np.abs(real(40)), np.zeros(8, np.int32)), lambda x, h: {1: np.bincount((x * 4).astype(int), minlength=8)})
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


@case(3, 16, lambda: (real(40), np.zeros(2, np.int64)), lambda x, n: {1: [(x > 0).sum(), (x <= 0).sum()]})
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
