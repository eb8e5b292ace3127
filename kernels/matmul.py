"""Matrix product with 16 × 16 tiles in shared memory.

    C_ij = Σ_k A_ik B_kj

The rows of A are sharded, B is broadcast, and each rank computes its rows of C, which are gathered;
ranks do not communicate. A block loads one tile of A and one of B, so that each loaded element is
used 16 times, adds their product to its tile of C, and advances along k. Source: CUDA C++
Programming Guide, "Shared memory": matrix multiplication.

The kernel demonstrates tiling. For large matrices on a GPU, a `synk.function` that returns `a @ b`
calls cuBLAS and is faster.
"""

import numpy as np
from numba import cuda

import synknumba as synk

_TILE = 16
_COLUMN_BLOCKS = 64  # blocks along the columns of C; beyond 64 · 16 columns they stride


def _grid(rows):
    """Returns the grid: one row of blocks per 16 rows of A, counted along x, the axis with the
    largest grid limit.
    """
    return max(1, -(-rows // _TILE)), _COLUMN_BLOCKS


@synk.parallel(
    block=(_TILE, _TILE),
    grid=_grid,
    broadcast=("b",),
    outputs={"c": synk.output("gather", shape=lambda args: (args["b"].shape[1],), like="a")},
)
@cuda.jit
def matmul(a, b, c):
    """Computes A B, accumulated in the dtype of A.

    Args:
        a: float32 or float64, shape (n, k), C-contiguous; sharded.
        b: same dtype, shape (k, m), C-contiguous; broadcast.
        c: same dtype, shape (n, m); gathered.
    """
    a_tile = cuda.shared.array((_TILE, _TILE), a.dtype)
    b_tile = cuda.shared.array((_TILE, _TILE), a.dtype)
    zero = a.dtype.type(0)  # of this dtype, since a wider accumulator would be slower
    # neighbours in x take adjacent columns: coalesced access
    tx, ty = (
        cuda.threadIdx.x,
        cuda.threadIdx.y,
    )
    i = cuda.blockIdx.x * _TILE + ty
    for first in range(cuda.blockIdx.y * _TILE, b.shape[1], _COLUMN_BLOCKS * _TILE):
        j = first + tx
        acc = zero
        for k in range(0, a.shape[1], _TILE):
            a_tile[ty, tx] = a[i, k + tx] if i < a.shape[0] and k + tx < a.shape[1] else zero
            b_tile[ty, tx] = b[k + ty, j] if k + ty < b.shape[0] and j < b.shape[1] else zero
            cuda.syncthreads()
            for t in range(_TILE):
                acc += a_tile[ty, t] * b_tile[t, tx]
            cuda.syncthreads()
        if i < a.shape[0] and j < b.shape[1]:
            c[i, j] = acc


def matmul_reference(a, b):
    """NumPy reference."""
    return np.matmul(a, b)
