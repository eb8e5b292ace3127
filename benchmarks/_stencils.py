"""The explicit solvers of headline.py, whose throughput ParallelStencil's programs print.

Heat, of `examples/diffusion3D_multigpucpu_hidecomm.jl` of ParallelStencil.jl: float64, with a heat
capacity that varies,

    T'_i = T_i + Δt λ C_i (∇²T)_i,   C = 1 / heat capacity

A_eff counts T twice, read and written, and C once. Sound, of its `miniapps/acoustic3D.jl`: pressure
P in the cells and velocities on their faces, in units of the cells and of the speed of sound,

    V' = V − r ∇P,   P' = P − r ∇·V'

A_eff counts these four twice. ParallelStencil updates V and P by one kernel each, which read V
and P again; here one kernel makes the step, from a set of arrays to another, and computes the
velocities on the far faces of its cell, too. Walls are rigid: faces at the boundary have V = 0.

As in ParallelStencil's programs, neighbours get the outer rows while inner ones are computed.
"""

from typing import Any

import numpy as np
from numba import cuda

import synknumba as synk

THREADS = 128  # of a block, along z
by_cells = synk.parallel(
    block=THREADS, grid=lambda shapes: (-(-shapes["u"][2] // THREADS), *shapes["u"][1::-1])
)


@by_cells
@cuda.jit
def diffuse(u, capacity, new, own, is_outer, rate):
    """Advances the temperature, one thread per cell; those at the boundary stay.

    Args:
        u: float64, shape (rows, n, n), temperature, with halos.
        capacity: the same, C.
        new: temperature of the next time step.
        own: `synk.OWN`.
        is_outer: whether the first and the last row are meant, or those between.
        rate: Δt λ over the square of a cell's edge.
    """
    z = np.uint32(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x)
    y, x = np.uint32(cuda.blockIdx.y), np.uint32(cuda.blockIdx.z)
    rows, n, last = np.uint32(u.shape[0] - 1), np.uint32(u.shape[1] - 1), np.uint32(u.shape[2] - 1)
    if is_outer:
        x = np.uint32(own.stop - 1 if x else own.start)
    elif x <= own.start or x >= own.stop - 1:
        return
    if 0 < x < rows and 0 < y < n and 0 < z < last:
        here = u[x, y, z]
        around = u[x - 1, y, z] + u[x + 1, y, z] + u[x, y - 1, z] + u[x, y + 1, z]
        around += u[x, y, z - 1] + u[x, y, z + 1]
        new[x, y, z] = here + rate * capacity[x, y, z] * (around - 6.0 * here)


def outer(u: synk.Variable) -> tuple[int, int, int]:
    """The grid for two rows."""
    return -(-u.shape[2] // THREADS), u.shape[1], 2


@synk.sequence
def heat(u, capacity, new, rate):
    """Advances the temperature by one time step."""
    diffuse[outer(u), THREADS](u, capacity, new, synk.OWN, True, rate)
    synk.exchange(new, during=lambda: diffuse(u, capacity, new, synk.OWN, False, rate))
    synk.swap(u, new)


def heat_by_numpy(u: np.ndarray, capacity: np.ndarray, rate: float, steps: int) -> np.ndarray:
    """The temperature after so many steps."""
    for _ in range(steps):
        around = sum(np.roll(u, shift, axis) for axis in range(3) for shift in (-1, 1))
        inner = (slice(1, -1),) * 3
        u = u.copy()
        u[inner] += (rate * capacity * (around - 6 * u))[inner]
    return u


@by_cells
@cuda.jit
def propagate(u, vx, vy, vz, new, new_vx, new_vy, new_vz, own, is_outer, ratio):
    """Advances pressure and velocities, one thread per cell.

    Args:
        u: float64, shape (rows, n, n), pressure, with halos.
        vx: the same, velocity along x on the near faces of the cells.
        vy: likewise along y.
        vz: likewise along z.
        new: pressure of the next time step; own rows are written, here and below.
        new_vx: its velocity along x.
        new_vy: along y.
        new_vz: along z.
        own: `synk.OWN`.
        is_outer: as of `diffuse`.
        ratio: r, of the time step to that in which sound crosses a cell.
    """
    z = np.uint32(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x)
    y, x = np.uint32(cuda.blockIdx.y), np.uint32(cuda.blockIdx.z)
    rows, n, last = np.uint32(u.shape[0] - 1), np.uint32(u.shape[1] - 1), np.uint32(u.shape[2] - 1)
    if is_outer:
        x = np.uint32(own.stop - 1 if x else own.start)
    elif x <= own.start or x >= own.stop - 1:
        return
    if z > last:
        return
    p = u[x, y, z]
    left = right = front = back = low = high = 0.0
    if x > 0:
        left = vx[x, y, z] - ratio * (p - u[x - 1, y, z])
    if x < rows:
        right = vx[x + 1, y, z] - ratio * (u[x + 1, y, z] - p)
    if y > 0:
        front = vy[x, y, z] - ratio * (p - u[x, y - 1, z])
    if y < n:
        back = vy[x, y + 1, z] - ratio * (u[x, y + 1, z] - p)
    if z > 0:
        low = vz[x, y, z] - ratio * (p - u[x, y, z - 1])
    if z < last:
        high = vz[x, y, z + 1] - ratio * (u[x, y, z + 1] - p)
    new_vx[x, y, z], new_vy[x, y, z], new_vz[x, y, z] = left, front, low
    new[x, y, z] = p - ratio * (right - left + back - front + high - low)


@synk.sequence
def sound(u, vx, vy, vz, new, new_vx, new_vy, new_vz, ratio):
    """Advances pressure and velocities by one time step."""
    fields = (u, vx, vy, vz, new, new_vx, new_vy, new_vz, synk.OWN)
    propagate[outer(u), THREADS](*fields, True, ratio)
    synk.exchange([new, new_vx], during=lambda: propagate(*fields, False, ratio))
    synk.swap(u, new)
    synk.swap(vx, new_vx)
    synk.swap(vy, new_vy)
    synk.swap(vz, new_vz)


def sound_by_numpy(u: np.ndarray, ratio: float, steps: int) -> np.ndarray:
    """The pressure after so many steps from rest."""
    faces: list[Any] = [np.zeros(np.add(u.shape, np.eye(3, dtype=int)[axis])) for axis in range(3)]
    for _ in range(steps):
        for axis, v in enumerate(faces):
            inner = [slice(None)] * 3
            inner[axis] = slice(1, -1)
            v[tuple(inner)] -= ratio * np.diff(u, axis=axis)
        u = u - ratio * sum(np.diff(v, axis=axis) for axis, v in enumerate(faces))
    return u


def divided(values: np.ndarray, count: int) -> list[synk.Variable]:
    """Variables of the same values, with halos of one row."""
    return [synk.scatter(synk.variable(values), halo=1) for _ in range(count)]


def check() -> None:
    """Compares steps on a small grid with NumPy's."""
    rng = np.random.default_rng(0)
    start, capacity = rng.random((14, 9, 11)), rng.random((14, 9, 11))
    u, new = divided(start, 2)
    (c,) = divided(capacity, 1)
    heat(u, c, new, 0.12, times=7)
    result = synk.gather(u, nd_up=0)
    np.testing.assert_allclose(result, heat_by_numpy(start, capacity, 0.12, 7), rtol=1e-13)
    u, new = divided(start, 2)
    v = divided(np.zeros_like(start), 6)
    sound(u, *v[:3], new, *v[3:], 0.16, times=7)
    result = synk.gather(u, nd_up=0)
    np.testing.assert_allclose(result, sound_by_numpy(start, 0.16, 7), rtol=1e-12, atol=1e-14)
