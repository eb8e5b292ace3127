"""Stencils: each step reads the neighbours of the step before."""

import numpy as np
from numba import cuda, float64, int32

from tests.conformance.simt.cases import case, real, whole


def _jacobi(u, steps, out):
    made = u.copy()
    for _ in range(steps):
        made[1:-1, 1:-1] = (made[:-2, 1:-1] + made[2:, 1:-1] + made[1:-1, :-2] + made[1:-1, 2:]) / 4
    return {2: made}


@case(1, (8, 6), lambda: (real(6, 8), 5, np.zeros((6, 8))), _jacobi)
def jacobi_in_a_block(u, steps, out):
    s = cuda.shared.array((6, 8), float64)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    s[y, x] = u[y, x]
    inner = 0 < x < 7 and 0 < y < 5
    for _ in range(steps):
        cuda.syncthreads()
        v = s[y, x]
        if inner:
            v = (s[y - 1, x] + s[y + 1, x] + s[y, x - 1] + s[y, x + 1]) / 4
        cuda.syncthreads()
        s[y, x] = v
    out[y, x] = s[y, x]


def _laplace(u, out, error):
    made = np.zeros_like(u)
    made[1:-1, 1:-1] = (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]) / 4
    return {1: made, 2: [np.abs(made - u)[1:-1, 1:-1].max()]}


@case((3, 2), (4, 4), lambda: (real(7, 10), np.zeros((7, 10)), np.zeros(1)), _laplace)
def laplace_with_largest_change(u, out, error):
    """A sweep over tiles with a halo, and the largest change by a reduction over the block."""
    tile = cuda.shared.array((6, 6), float64)
    change = cuda.shared.array((4, 4), float64)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    x, y = cuda.grid(2)
    height, width = u.shape
    for j in range(ty, 6, 4):
        for i in range(tx, 6, 4):
            column = cuda.blockIdx.x * 4 + i - 1
            row = cuda.blockIdx.y * 4 + j - 1
            if 0 <= row < height and 0 <= column < width:
                tile[j, i] = u[row, column]
    cuda.syncthreads()
    change[ty, tx] = 0.0
    if 0 < x < width - 1 and 0 < y < height - 1:
        v = (tile[ty, tx + 1] + tile[ty + 2, tx + 1] + tile[ty + 1, tx] + tile[ty + 1, tx + 2]) / 4
        change[ty, tx] = abs(v - tile[ty + 1, tx + 1])
        out[y, x] = v
    t = ty * 4 + tx
    step = 8
    while step > 0:
        cuda.syncthreads()
        if t < step:
            other = t + step
            change[t // 4, t % 4] = max(change[t // 4, t % 4], change[other // 4, other % 4])
        step //= 2
    if t == 0:
        cuda.atomic.max(error, 0, change[0, 0])


def _life(cells, steps, out):
    for _ in range(steps):
        around = sum(
            np.roll(cells, (j, i), (0, 1))
            for j in (-1, 0, 1)
            for i in (-1, 0, 1)
            if (j, i) != (0, 0)
        )
        cells = ((around == 3) | ((cells == 1) & (around == 2))).astype(np.uint8)
    return {2: cells}


@case(
    1,
    (9, 7),
    lambda: (whole(7, 9, low=0, high=2, dtype=np.uint8), 4, np.zeros((7, 9), np.uint8)),
    _life,
    differs="NumPy scalars of 8 bits have no negative differences",
)
def game_of_life(cells, steps, out):
    """On a torus, in two boards that change places."""
    boards = cuda.shared.array((2, 7, 9), int32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    here = 0
    boards[0, y, x] = cells[y, x]
    for _ in range(steps):
        cuda.syncthreads()
        around = 0
        for j in range(-1, 2):
            for i in range(-1, 2):
                if j != 0 or i != 0:
                    around += boards[here, (y + j) % 7, (x + i) % 9]
        alive = around == 3 or (around == 2 and boards[here, y, x] == 1)
        boards[1 - here, y, x] = 1 if alive else 0
        here = 1 - here
    out[y, x] = boards[here, y, x]


def _heat(u, k, out):
    made = u.copy()
    for _ in range(6):
        made[1:-1] += k * (made[:-2] - 2 * made[1:-1] + made[2:])
    return {2: made}


@case(1, 23, lambda: (real(23), 0.2, np.zeros(23)), _heat)
def heat_with_two_buffers(u, k, out):
    """Two names for two rows of shared memory, exchanged in each step."""
    s = cuda.shared.array((2, 23), float64)
    i = cuda.threadIdx.x
    old, new = s[0], s[1]
    old[i] = u[i]
    cuda.syncthreads()
    for _ in range(6):
        if 0 < i < 22:
            new[i] = old[i] + k * (old[i - 1] - 2 * old[i] + old[i + 1])
        else:
            new[i] = old[i]
        cuda.syncthreads()
        old, new = new, old
    out[i] = old[i]
