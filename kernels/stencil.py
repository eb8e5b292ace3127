"""Stencils on a 2-D grid: heat diffusion and the game of life.

The rows of the new grid are sharded. A rank also needs the rows next to its own, so the old grid is
broadcast: CPU ranks read it in shared memory without a copy; each GPU receives all of it.
`synk.OFFSET` gives the row of the old grid at which a rank's part of the new grid starts:

    heat_step(old, new, synk.OFFSET, ratio);  old, new = new, old

Heat. ∂u/∂t = κ (∂²u/∂x² + ∂²u/∂y²) by explicit finite differences on squares of side h, with μ = κ
Δt/h²:

    u'_ij = u_ij + μ (u_{i−1,j} + u_{i+1,j} + u_{i,j−1} + u_{i,j+1} − 4 u_ij)

Boundary values stay fixed. Stable for μ ≤ 1/4; with μ = 1/4 it is Jacobi's iteration for Laplace's
equation. Source: R. Courant, K. Friedrichs and H. Lewy, Mathematische Annalen 100 (1928); K. Morton
and D. Mayers, "Numerical Solution of Partial Differential Equations" (Cambridge, 2005), chapter 3.

Life. A cell survives with two or three living neighbours of eight, and is born with three.
Boundaries are periodic. Source: M. Gardner, "Mathematical games", Scientific American, October
1970.
"""

import numpy as np
from numba import cuda

import synknumba as synk


def _grid(rows):
    """Returns one block per row, at most 65,536; beyond that, blocks stride over the rows."""
    return max(1, min(65_536, rows))


@synk.parallel(block=128, grid=_grid, broadcast=("old",), inout=("new",))
@cuda.jit
def heat_step(old, new, first, ratio):
    """Advances the temperature by one time step.

    Args:
        old: float, shape (n, m), temperature, C-contiguous; broadcast.
        new: shape and dtype of `old`; sharded, written. Must not be the same array as `old`.
        first: `synk.OFFSET`, the row of `old` that corresponds to `new[0]`.
        ratio: μ; float, dimensionless, in (0, 1/4].
    """
    last, right = old.shape[0] - 1, old.shape[1] - 1
    for row in range(cuda.blockIdx.x, new.shape[0], cuda.gridDim.x):
        i = first + row
        for j in range(cuda.threadIdx.x, old.shape[1], cuda.blockDim.x):
            u = old[i, j]
            if 0 < i < last and 0 < j < right:
                u += ratio * (old[i - 1, j] + old[i + 1, j] + old[i, j - 1] + old[i, j + 1] - 4 * u)
            new[row, j] = u


def heat_step_reference(old, ratio):
    """NumPy reference; returns the new grid."""
    new = old.copy()
    inner = old[1:-1, 1:-1]
    new[1:-1, 1:-1] += ratio * (
        old[:-2, 1:-1] + old[2:, 1:-1] + old[1:-1, :-2] + old[1:-1, 2:] - 4 * inner
    )
    return new


@synk.parallel(block=128, grid=_grid, broadcast=("old",), inout=("new",))
@cuda.jit
def life_step(old, new, first):
    """Advances the cells by one generation.

    Args:
        old: integer, shape (n, m), 1 where a cell lives and 0 elsewhere, C-contiguous; broadcast.
        new: shape and dtype of `old`; sharded, written. Must not be the same array as `old`.
        first: `synk.OFFSET`, the row of `old` that corresponds to `new[0]`.
    """
    n, m = old.shape
    for row in range(cuda.blockIdx.x, new.shape[0], cuda.gridDim.x):
        i = first + row
        above = i - 1 if i > 0 else n - 1
        below = i + 1 if i < n - 1 else 0
        for j in range(cuda.threadIdx.x, m, cuda.blockDim.x):
            left = j - 1 if j > 0 else m - 1
            right = j + 1 if j < m - 1 else 0
            living = old[above, left] + old[above, j] + old[above, right] + old[i, left]
            living += old[i, right] + old[below, left] + old[below, j] + old[below, right]
            new[row, j] = 1 if living == 3 or (living == 2 and old[i, j] == 1) else 0


def life_step_reference(old):
    """NumPy reference; returns the new grid."""
    shifts = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]
    living = sum(np.roll(old, shift, axis=(0, 1)) for shift in shifts)
    return ((living == 3) | ((living == 2) & (old == 1))).astype(old.dtype)
