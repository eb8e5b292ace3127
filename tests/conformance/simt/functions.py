"""Device functions with barriers and shared arrays in them."""

import math

import numpy as np
from numba import cuda, float64, int64, njit

from tests.conformance.simt.cases import again, case, real, rows, whole

B = 16


@cuda.jit(device=True)
def block_sum(s, v):
    """The sum of `v` over the block, for every thread."""
    t = cuda.threadIdx.x
    s[t] = v
    cuda.syncthreads()
    step = cuda.blockDim.x // 2
    while step > 0:
        if t < step:
            s[t] += s[t + step]
        cuda.syncthreads()
        step //= 2
    total = s[0]
    cuda.syncthreads()
    return total


def _sums(x):
    return np.repeat(rows(x, B).sum(1), B)[: x.size]


@case(3, B, lambda: (real(40), np.zeros(40)), lambda x, out: {1: _sums(x) + _sums(x * x) * x})
def function_with_barriers(x, out):
    s = cuda.shared.array(B, float64)
    i = cuda.grid(1)
    v = x[i] if i < x.size else 0.0
    first = block_sum(s, v)
    second = block_sum(s, v * v)
    if i < x.size:
        out[i] = first + second * v


def _normalised(x, rounds, out):
    made = rows(x, B)
    for _ in range(rounds):
        made = made - made.mean(1, keepdims=True)
        made = made / np.sqrt((made**2).mean(1, keepdims=True)) + 0.5
    return {2: made.ravel()}


@cuda.jit(device=True)
def block_mean(s, v):
    return block_sum(s, v) / cuda.blockDim.x


@cuda.jit(device=True)
def normalise(s, v):
    v = v - block_mean(s, v)
    return v / math.sqrt(block_mean(s, v * v))


@case(2, B, lambda: (real(32), 3, np.zeros(32)), _normalised, rtol=1e-10)
def nested_functions_in_loop(x, rounds, out):
    s = cuda.shared.array(B, float64)
    v = x[cuda.grid(1)]
    for _ in range(rounds):
        v = normalise(s, v) + 0.5
    out[cuda.grid(1)] = v


@cuda.jit(device=True)
def mirrored(v):
    """A shared array of its own."""
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    s[t] = v
    cuda.syncthreads()
    other = s[B - 1 - t]
    cuda.syncthreads()
    return other


@case(
    2,
    B,
    lambda: (real(32), np.zeros(32)),
    lambda x, out: {1: 2 * rows(x, B)[:, ::-1].ravel() + x * np.arange(32)},
)
def function_with_shared_array(x, out):
    i = cuda.grid(1)
    v = mirrored(x[i])
    out[i] = mirrored(x[i] * i + 0.0)
    out[i] = 2 * v + mirrored(out[i])


@cuda.jit(device=True)
def smoothed(s, v, kind):
    """Leaves at different places, the same in each thread."""
    t = cuda.threadIdx.x
    if kind == 0:
        return v
    s[t] = v
    cuda.syncthreads()
    if kind == 1:
        w = s[(t + 1) % B]
        cuda.syncthreads()
        return w
    for k in range(kind):
        w = s[(t + k) % B]
        cuda.syncthreads()
        if k == 2:
            return -w
        s[t] = w + s[t]
        cuda.syncthreads()
    return s[t]


def _smoothed(v, kind):
    if kind == 0:
        return v
    if kind == 1:
        return np.roll(v, -1, axis=1)
    s = v
    for k in range(kind):
        w = np.roll(s, -k, axis=1)
        if k == 2:
            return -w
        s = w + s
    return s


def _all_smoothed(x, out):
    made = rows(x, B)
    return {
        1: np.concatenate(
            [sum(_smoothed(made[b : b + 1], k) for k in range(b, b + 3)) for b in range(3)]
        ).ravel()
    }


@case(3, B, lambda: (real(48), np.zeros(48)), _all_smoothed)
def function_with_early_returns(x, out):
    s = cuda.shared.array(B, float64)
    i = cuda.grid(1)
    total = 0.0
    for kind in range(cuda.blockIdx.x, cuda.blockIdx.x + 3):
        total += smoothed(s, x[i], kind)
        cuda.syncthreads()
    out[i] = total


@cuda.jit(device=True)
def clamped(v, low, high):
    """Leaves early in some threads only; there is no barrier in it."""
    if v < low:
        return low
    if v > high:
        return high
    return v


@case(
    2,
    B,
    lambda: (real(32), np.zeros(32)),
    lambda x, out: {1: _sums(np.clip(x, -1, 0.5)) * np.clip(x, -1, 0.5)},
)
def early_returns_without_barriers(x, out):
    s = cuda.shared.array(B, float64)
    v = clamped(x[cuda.grid(1)], -1.0, 0.5)
    out[cuda.grid(1)] = block_sum(s, v) * v


@cuda.jit(device=True)
def exclusive_scan(s, v, t):
    """The sum of the threads before, and of all."""
    s[t] = v
    cuda.syncthreads()
    reach = 1
    while reach < B:
        w = s[t - reach] if t >= reach else 0
        cuda.syncthreads()
        s[t] += w
        cuda.syncthreads()
        reach *= 2
    before, total = s[t] - v, s[B - 1]
    cuda.syncthreads()
    return before, total


def _scanned(x, out):
    made = rows(x, B)
    return {1: ((made.cumsum(1) - made) * 1000 + made.sum(1, keepdims=True)).ravel()}


@case(2, B, lambda: (whole(32), np.zeros(32, np.int64)), _scanned)
def function_returns_tuple(x, out):
    s = cuda.shared.array(B, int64)
    i = cuda.grid(1)
    before, total = exclusive_scan(s, x[i], cuda.threadIdx.x)
    out[i] = before * 1000 + total


@cuda.jit(device=True)
def fill(s, v):
    """Returns nothing."""
    s[cuda.threadIdx.x] = v
    cuda.syncthreads()


@cuda.jit(device=True)
def fill_twice(s, v):
    fill(s, v)
    other = s[(cuda.threadIdx.x + 1) % B]
    cuda.syncthreads()
    fill(s, other * 2)


@case(
    2,
    B,
    lambda: (real(32), 1, np.zeros(32)),
    lambda x, flag, out: {2: np.roll(rows(x, B), -2, axis=1).ravel() * (2 if flag else 0.5)},
)
def procedures_in_branches(x, flag, out):
    s = cuda.shared.array(B, float64)
    i = cuda.grid(1)
    if flag:
        fill_twice(s, x[i])
    else:
        fill(s, x[i] * 0.5)
        v = s[(cuda.threadIdx.x + 1) % B]
        cuda.syncthreads()
        fill(s, v)
    out[i] = s[(cuda.threadIdx.x + 1) % B]


again("procedures_in_else", "procedures_in_branches", 2, B, lambda: (real(32), 0, np.zeros(32)))


@cuda.jit(device=True)
def shifted(s, v, by=1, scale=1.0):
    """Defaults and keywords."""
    t = cuda.threadIdx.x
    s[t] = v * scale
    cuda.syncthreads()
    w = s[(t + by) % B]
    cuda.syncthreads()
    return w


def _shifts(x, out):
    made = rows(x, B)
    return {
        1: (
            np.roll(made, -1, 1)
            + np.roll(made, -3, 1) * 10
            + np.roll(made, -1, 1) * 50
            + np.roll(made, 2, 1) * 7
        ).ravel()
    }


@case(
    2, B, lambda: (real(32), np.zeros(32)), _shifts, differs="its device functions take no keywords"
)
def defaults_and_keywords(x, out):
    s = cuda.shared.array(B, float64)
    v = x[cuda.grid(1)]
    near = shifted(s, v) + shifted(s, v, 3, 10.0)
    out[cuda.grid(1)] = near + shifted(s, v, scale=50.0) + shifted(s, v, scale=7.0, by=-2)


@cuda.jit(device=True)
def gcd(a, b):
    if b == 0:
        return a
    return gcd(b, a % b)


@cuda.jit(device=True)
def fibonacci(n):
    if n < 2:
        return n
    return fibonacci(n - 1) + fibonacci(n - 2)


def _recursive(x, out):
    made = rows(x, B)
    f = np.array([0, 1, 1, 2, 3, 5, 8, 13])
    return {1: (np.gcd(made, made[:, ::-1]) * 100 + f[made % 8]).ravel()}


@case(2, B, lambda: (whole(32, low=1, high=90), np.zeros(32, np.int64)), _recursive)
def recursion(x, out):
    s = cuda.shared.array(B, int64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i]
    cuda.syncthreads()
    out[i] = gcd(x[i], s[B - 1 - t]) * 100 + fibonacci(x[i] % 8)


@njit
def hypotenuse(a, b):
    return math.sqrt(a * a + b * b)


@case(
    2,
    B,
    lambda: (real(32), np.zeros(32)),
    lambda x, out: {1: np.hypot(x, rows(x, B)[:, ::-1].ravel())},
)
def njit_function_beside_barriers(x, out):
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i]
    cuda.syncthreads()
    out[i] = hypotenuse(s[B - 1 - t], x[i])


@cuda.jit(device=True)
def add(a, b):
    return a + b


@cuda.jit(device=True)
def larger(a, b):
    return max(a, b)


def make_fold(combine, start):
    def fold(x, out):
        """A reduction by a function that the kernel closes over."""
        s = cuda.shared.array(B, float64)
        t = cuda.threadIdx.x
        i = cuda.grid(1)
        s[t] = x[i] if i < x.size else start
        cuda.syncthreads()
        for k in range(4):
            step = B >> (k + 1)
            if t < step:
                s[t] = combine(s[t], s[t + step])
            cuda.syncthreads()
        if t == 0:
            out[cuda.blockIdx.x] = s[0]

    return fold


case(3, B, lambda: (real(40), np.zeros(3)), lambda x, out: {1: rows(x, B).sum(1)}, name="fold_sum")(
    make_fold(add, 0.0)
)
case(
    3,
    B,
    lambda: (np.abs(real(40)), np.zeros(3)),
    lambda x, out: {1: rows(x, B).max(1)},
    name="fold_largest",
)(make_fold(larger, -9.0))


@cuda.jit(device=True)
def load_tile(tile, a, row, column):
    """A tile of a matrix, zeros outside of it; all threads of the block call it."""
    y, x = cuda.threadIdx.y, cuda.threadIdx.x
    inside = row + y < a.shape[0] and column + x < a.shape[1]
    tile[y, x] = a[row + y, column + x] if inside else 0.0
    cuda.syncthreads()


@cuda.jit(device=True)
def tile_product(left, right, v):
    for k in range(4):
        v += left[cuda.threadIdx.y, k] * right[k, cuda.threadIdx.x]
    cuda.syncthreads()
    return v


@case(
    (3, 2), (4, 4), lambda: (real(7, 9), real(9, 10), np.zeros((7, 10))), lambda a, b, c: {2: a @ b}
)
def tiled_matmul_of_functions(a, b, c):
    left = cuda.shared.array((4, 4), float64)
    right = cuda.shared.array((4, 4), float64)
    x, y = cuda.grid(2)
    v = 0.0
    for k in range(0, a.shape[1], 4):
        load_tile(left, a, cuda.blockIdx.y * 4, k)
        load_tile(right, b, k, cuda.blockIdx.x * 4)
        v = tile_product(left, right, v)
    if y < c.shape[0] and x < c.shape[1]:
        c[y, x] = v


@cuda.jit(device=True)
def turned_round(v):
    t, s = cuda.threadIdx, cuda.shared.array(B, float64)
    s[t.x] = v
    cuda.syncthreads()
    return s[cuda.blockDim.x - 1 - t.x]


@case(
    3,
    B,
    lambda: (real(48), np.zeros(48)),
    lambda x, out: {1: x.reshape(-1, B)[:, ::-1].ravel() + np.repeat(range(3), B)},
)
def function_with_names_for_members(x, out):
    bid, i = cuda.blockIdx, cuda.grid(1)
    out[i] = turned_round(x[i]) + bid.x
