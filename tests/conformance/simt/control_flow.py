"""Loops, branches and exits, where no thread waits for another."""

import math

import numpy as np
from numba import cuda, float64

from tests.conformance.simt.cases import again, case, real


def _ones(x, flag, out):
    return {2: np.ones(40)}


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


@case(
    (3, 2),
    (4, 8),
    lambda: (real(11, 7), real(7, 13), np.zeros((11, 13))),
    lambda a, b, c: {2: a @ b},
)
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


@case(
    3,
    16,
    lambda: (np.zeros(48, np.int64),),
    lambda out: {0: np.arange(48) * (np.arange(48) - 1) // 2},
)
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


@case(
    3, 16, lambda: (real(40), np.zeros(40)), lambda x, out: {1: np.where(x > 0.5, 1 + 2 * x, 1.0)}
)
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


again(
    "uniform_variable_never_set",
    "uniform_variable_set_in_one_branch",
    3,
    16,
    lambda: (real(40), 0, np.zeros(40)),
    _ones,
)


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
