"""Which elements a thread takes: grid-stride loops and indices, where no thread waits for
another.
"""

import math

import numpy as np
from numba import cuda

from tests.conformance.simt.cases import again, case, real

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


@case(
    2,
    16,
    lambda: (real(101), 0.5, np.zeros(1)),
    lambda x, beta, total: {2: [np.exp(-beta * x * x).sum()]},
)
def energy(x, beta, total):
    acc = 0.0
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        acc += math.exp(-beta * x[i] * x[i])
    cuda.atomic.add(total, 0, acc)


again("energy_row_per_thread", "energy", 7, 16, lambda: (real(101), 0.5, np.zeros(1)))
again("energy_one_thread", "energy", 1, 1, lambda: (real(31), 0.5, np.zeros(1)))
again(
    "energy_empty",
    "energy",
    2,
    16,
    lambda: (real(0), 0.5, np.ones(1)),
    lambda x, beta, total: {2: [1.0]},
)


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
        for j in range(
            cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x, a.shape[1], cuda.gridsize(2)[0]
        ):
            acc += a[i, j]
    cuda.atomic.add(total, 0, acc)


def _smooth(a, first, out):
    made = a.copy()
    made[1:-1, 1:-1] = a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:]
    return {2: made[first:]}


@case(3, 16, lambda: (real(19, 37), 2, np.zeros((17, 37))), _smooth)
def stride_in_rows(a, first, out):
    last, right = a.shape[0] - 1, a.shape[1] - 1
    for row in range(cuda.blockIdx.x, out.shape[0], cuda.gridDim.x):
        i = first + row
        for j in range(cuda.threadIdx.x, a.shape[1], cuda.blockDim.x):
            u = a[i, j]
            if 0 < i < last and 0 < j < right:
                u = a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1]
            out[row, j] = u


again(
    "stride_in_rows_narrow", "stride_in_rows", 3, 5, lambda: (real(19, 37), 2, np.zeros((17, 37)))
)


@case(
    3,
    16,
    lambda: (real(20, 37), np.zeros(20), np.zeros(1)),
    lambda a, *_: {1: np.tril(a).sum(1), 2: [np.tril(a).sum()]},
)
def stride_in_triangle(a, out, total):
    """Sums that live across the inner loop, of one row and of all rows; the inner range depends
    on the row.
    """
    whole = 0.0
    for row in range(cuda.blockIdx.x, a.shape[0], cuda.gridDim.x):
        acc = 0.0
        for j in range(cuda.threadIdx.x, row + 1, cuda.blockDim.x):
            acc += a[row, j]
        whole += acc
        cuda.atomic.add(out, row, acc)
    cuda.atomic.add(total, 0, whole)


@case((1, 2), (16, 2), lambda: (real(6, 37), np.zeros((6, 37))), lambda a, out: {1: 8 * a + 3})
def stride_in_steps(a, out):
    """Each iteration of the outer loop reads what the same thread has written in the one before."""
    t = cuda.threadIdx.x
    for step in range(3):
        for j in range(t, a.shape[1], cuda.blockDim.x):
            for i in range(cuda.grid(2)[1], a.shape[0], cuda.gridsize(2)[1]):
                before = a[i, j] if step == 0 else out[i, j]
                out[i, j] = before * 2
    for j in range(t, a.shape[1], cuda.blockDim.x):
        for i in range(cuda.grid(2)[1], a.shape[0], cuda.gridsize(2)[1]):
            out[i, j] += 3


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


@case(
    2,
    16,
    lambda: (real(60), np.zeros(60)),
    lambda x, out: {1: np.where(np.arange(60) < 50, x * 3, 0)},
)
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
    linear = cuda.threadIdx.x + cuda.blockDim.x * (
        cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z
    )
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
