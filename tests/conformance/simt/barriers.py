"""Barriers in straight code and in branches, barriers that count, and blocks of more dimensions."""

import numpy as np
from numba import cuda, float64, int32, int64

from tests.conformance.simt.cases import again, case, flat, real, rows, whole

B = 16  # threads of most blocks


def _given(x, width=B):
    """Rows of what a block sees, and how many of each row are there."""
    made = rows(x, width)
    return made, [min(width, x.size - width * k) for k in range(len(made))]


# ---- straight code and early exits


@case(3, B, lambda: (real(40), np.zeros(40)), lambda x, out: {1: flat(rows(x, B)[:, ::-1], x)})
def reverse_each_block(x, out):
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i] if i < x.size else 0.0
    cuda.syncthreads()
    if i < x.size:
        out[i] = s[B - 1 - t]


@case(
    3,
    B,
    lambda: (real(40), np.zeros(40)),
    lambda x, out: {1: flat([np.roll(r[:n], -1) for r, n in zip(*_given(x), strict=True)], x)},
)
def return_before_barrier(x, out):
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    if i >= x.size:
        return
    s[t] = x[i]
    cuda.syncthreads()
    live = min(B, x.size - cuda.blockIdx.x * B)
    out[i] = s[(t + 1) % live]


again(
    "return_before_barrier_one_thread",
    "return_before_barrier",
    1,
    B,
    lambda: (real(1), np.zeros(1)),
)
again("return_before_barrier_full", "return_before_barrier", 2, B, lambda: (real(32), np.zeros(32)))
again(
    "return_before_barrier_empty",
    "return_before_barrier",
    1,
    B,
    lambda: (real(0), np.full(3, 5.0)),
    lambda x, out: {1: [5, 5, 5]},
)


@case(3, B, lambda: (real(40), np.zeros(40)), lambda x, out: {1: x + flat(rows(x, B)[:, ::-1], x)})
def guard_around_barrier(x, out):
    """The last statement is a guard with a barrier in it: the threads outside have ended."""
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = 0.0
    cuda.syncthreads()
    if i < x.size:
        s[t] = x[i]
        cuda.syncthreads()
        out[i] = x[i] + s[B - 1 - t]


def _two_returns(x, low, out):
    out = out.copy()
    kept = rows(np.where(x < low, 0.0, x), B)
    out[x >= low] = np.repeat(kept.sum(1), B)[: x.size][x >= low]
    out[x >= 1.5] = -1.0
    return {2: out}


@case(3, B, lambda: (whole(40, low=0, high=3).astype(float), 1.0, np.zeros(40)), _two_returns)
def returns_between_barriers(x, low, out):
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = 0.0
    cuda.syncthreads()
    if i >= x.size or x[i] < low:
        return
    s[t] = x[i]
    cuda.syncthreads()
    if x[i] >= 1.5:
        out[i] = -1.0
        return
    cuda.syncthreads()
    total = 0.0
    for k in range(B):
        total += s[k]
    out[i] = total


@case(2, B, lambda: (np.zeros(32),), lambda out: {0: np.arange(32.0)})
def barriers_alone(out):
    cuda.syncthreads()
    cuda.syncthreads()
    out[cuda.grid(1)] = cuda.grid(1)
    cuda.syncthreads()


# ---- if and else


def _branches(x, flag, out):
    made = rows(x, B)
    return {
        2: (
            made[:, ::-1] if flag > 2 else np.roll(made, -1, axis=1) * 2 if flag else made + 1
        ).ravel()
    }


@case(2, B, lambda: (real(32), 3, np.zeros(32)), _branches)
def uniform_if_elif_else(x, flag, out):
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i]
    if flag > 2:
        cuda.syncthreads()
        v = s[B - 1 - t]
    elif flag:
        cuda.syncthreads()
        v = s[(t + 1) % B]
        cuda.syncthreads()
        s[t] = v
        cuda.syncthreads()
        v = 2 * s[t]
    else:
        v = s[t] + 1
    out[i] = v


again("uniform_elif", "uniform_if_elif_else", 2, B, lambda: (real(32), 1, np.zeros(32)))
again(
    "uniform_else_without_barrier",
    "uniform_if_elif_else",
    2,
    B,
    lambda: (real(32), 0, np.zeros(32)),
)


def _by_block(x, kinds, out):
    made = rows(x, B)
    return {2: np.where(kinds[:, None] > 0, made[:, ::-1], made.cumsum(1)).ravel()}


@case(3, B, lambda: (real(48), np.array([1, 0, 1]), np.zeros(48)), _by_block)
def branch_read_from_memory(x, kinds, out):
    """The condition is an element, the same for all threads of a block."""
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i]
    cuda.syncthreads()
    if kinds[cuda.blockIdx.x] > 0:
        v = s[B - 1 - t]
        cuda.syncthreads()
        s[t] = v
    else:
        for reach in (1, 2, 4, 8):
            v = s[t - reach] if t >= reach else 0.0
            cuda.syncthreads()
            s[t] += v
            cuda.syncthreads()
    out[i] = s[t]


def _three_deep(x, n, out):
    made = rows(x, B).copy()
    for k in range(n):
        if k % 2 == 0:
            for _ in range(k):
                made = np.roll(made, -1, axis=1)
        else:
            made = made[:, ::-1] * 0.5
    return {2: made.ravel()}


@case(2, B, lambda: (real(32), 5, np.zeros(32)), _three_deep)
def loops_and_branches_nested(x, n, out):
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    for k in range(n):
        if k % 2 == 0:
            j = 0
            while j < k:
                cuda.syncthreads()
                v = s[(t + 1) % B]
                cuda.syncthreads()
                s[t] = v
                j += 1
        else:
            cuda.syncthreads()
            v = s[B - 1 - t] * 0.5
            cuda.syncthreads()
            s[t] = v
    out[cuda.grid(1)] = s[t]


# ---- barriers that count


def _votes(x, out):
    made = rows(x, B)
    counts = (made > 0).sum(1)
    return {1: np.repeat(counts * 100 + (counts == B) * 10 + (counts > 0), B)}


@case(
    4,
    B,
    lambda: (
        np.repeat([1, -1, 0, 0], B) + real(64) * np.repeat([0, 0, 1, 2], B),
        np.zeros(64, np.int64),
    ),
    _votes,
)
def count_and_or(x, out):
    i = cuda.grid(1)
    flag = int32(1 if x[i] > 0 else 0)
    n = cuda.syncthreads_count(flag)
    both = cuda.syncthreads_and(flag) * 10 + cuda.syncthreads_or(flag)
    out[i] = n * 100 + both


def _collatz(x, out):
    result = []
    for row in rows(x, B).copy():
        rounds = 0
        while (row != 1).any():
            row[:] = np.where(row == 1, 1, np.where(row % 2 == 0, row // 2, 3 * row + 1))
            rounds += 1
        result.append(rounds)
    return {1: np.repeat(result, B)}


@case(3, B, lambda: (whole(48, low=1, high=30), np.zeros(48, np.int64)), _collatz)
def loop_until_all_are_done(x, out):
    """A counting barrier in the test of a loop."""
    i = cuda.grid(1)
    v = x[i]
    rounds = 0
    while cuda.syncthreads_or(int32(v != 1)):
        if v != 1:
            v = v // 2 if v % 2 == 0 else 3 * v + 1
        rounds += 1
    out[i] = rounds


def _majority(x, out):
    made = rows(x, B)
    many = (made > 0).sum(1, keepdims=True) > 8
    return {1: np.where(many, made[:, ::-1], -made).ravel()}


@case(3, B, lambda: (real(48) + np.repeat([1.0, -1.0, 0.6], B), np.zeros(48)), _majority)
def count_decides_branch(x, out):
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i]
    if cuda.syncthreads_count(int32(x[i] > 0)) > 8:
        v = s[B - 1 - t]
        cuda.syncthreads()
        s[t] = v
    else:
        s[t] = -s[t]
    cuda.syncthreads()
    out[i] = s[t]


def _count_of_live(x, out):
    return {
        1: flat(
            [
                np.full(n, 100 * (r[:n] > 0).sum() + (r[:n] > -9).all())
                for r, n in zip(*_given(x), strict=True)
            ],
            x,
        )
    }


@case(
    3,
    B,
    lambda: (real(40), np.zeros(40, np.int64)),
    _count_of_live,
    differs="its counts keep what ended threads said before",
)
def count_of_threads_left(x, out):
    """Threads that have returned do not count."""
    i = cuda.grid(1)
    if i >= x.size:
        return
    n = cuda.syncthreads_count(int32(x[i] > 0))
    out[i] = n * 100 + cuda.syncthreads_and(int32(x[i] > -9))


# ---- blocks and grids of more dimensions


def _transposed_tiles(a, out):
    result = np.zeros_like(out)
    for r in range(0, a.shape[0], 4):
        for c in range(0, a.shape[1], 4):
            tile = np.zeros((4, 4), a.dtype)
            part = a[r : r + 4, c : c + 4]
            tile[: part.shape[0], : part.shape[1]] = part
            target = result[r : r + 4, c : c + 4]
            target[...] = tile.T[: target.shape[0], : target.shape[1]]
    return {1: result}


@case((3, 2), (4, 4), lambda: (real(7, 10), np.zeros((7, 10))), _transposed_tiles)
def block_2d(a, out):
    s = cuda.shared.array((4, 4), float64)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    s[ty, tx] = 0.0
    if y < a.shape[0] and x < a.shape[1]:
        s[ty, tx] = a[y, x]
    cuda.syncthreads()
    if y < a.shape[0] and x < a.shape[1]:
        out[y, x] = s[tx, ty]


@case(
    (2, 2, 2),
    (4, 3, 2),
    lambda: (whole(8, 24), np.zeros((8, 24), np.int64)),
    lambda a, out: {1: np.roll(a[:, ::-1], 1, 0)},
)
def block_3d(a, out):
    s = cuda.shared.array(24, int64)
    t = cuda.threadIdx.x + cuda.blockDim.x * (cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z)
    b = cuda.blockIdx.x + cuda.gridDim.x * (cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z)
    s[t] = a[b, t]
    cuda.syncthreads()
    out[(b + 1) % 8, t] = s[23 - t]


@case(
    2,
    (8, 3),
    lambda: (real(48), np.zeros(48)),
    lambda x, out: {1: np.repeat(rows(x, 24).reshape(2, 3, 8).sum(2).ravel(), 8)},
)
def rows_of_a_block(x, out):
    """A halving loop along one axis of a block, for each of its rows."""
    s = cuda.shared.array((3, 8), float64)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    i = cuda.blockIdx.x * 24 + ty * 8 + tx
    s[ty, tx] = x[i]
    step = 4
    while step:
        cuda.syncthreads()
        if tx < step:
            s[ty, tx] += s[ty, tx + step]
        step //= 2
    cuda.syncthreads()
    out[i] = s[ty, 0]
