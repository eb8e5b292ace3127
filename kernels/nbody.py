"""Gravity between n bodies, by direct summation over all pairs.

    a_i = G Σ_j m_j (x_j − x_i) / (|x_j − x_i|² + ε²)^(3/2)

The softening length ε > 0 bounds the force in close encounters and makes the term j = i zero
without a branch. Source: S. Aarseth, "Gravitational N-Body Simulations" (Cambridge, 2003), section
1.4. Tiling follows L. Nyland, M. Harris and J. Prins, "Fast N-body simulation with CUDA", GPU Gems
3 (2007), chapter 31: a block loads 256 bodies into shared memory, or 512 in float32, and each of
its threads sums their pull on its own body, or on four of them in float32.

Targets, the bodies that feel the force, are sharded; sources, the bodies that exert it, are
broadcast. Usually both are the same array, passed twice.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import cuda, float32, float64
from numba.cuda import libdevice

import synknumba as synk

_BLOCK = 256
_BLOCK_32, _EACH = 128, 4  # threads, and targets of each: a source read is used four times
_TILE_32 = 512  # sources; cores sum as many in vectors, 1.15 times as fast as 128


def accelerations(targets, sources, masses, softening, **options):
    """Computes the acceleration of each target, for G = 1.

    Where all three arrays are float32, everything is in float32, with the device's approximate
    reciprocal square root, and sums are made of 512 terms first: errors of 1e-7 to 1e-6 of the
    largest acceleration. Otherwise everything is in float64.

    Args:
        targets: float, shape (n, 3), length; sharded.
        sources: float, shape (s, 3), length; broadcast.
        masses: float, shape (s,), mass, of the sources; broadcast.
        softening: ε > 0; float, length. In float32, ε² must not underflow: ε > 1e-19.
        options: of the call, as `num_slices`. `submit` and `plan` are those of the kernels,
            `accelerations_float32` and `accelerations_float64`.

    Returns:
        float64, shape (n, 3), mass/length², to be multiplied by G.
    """
    dtypes = [getattr(array, "dtype", None) for array in (targets, sources, masses)]
    kernel = accelerations_float64
    if all(dtype == np.float32 for dtype in dtypes):
        kernel = accelerations_float32
    return kernel(targets, sources, masses, softening, **options)


def _grid_32(rows):
    """Returns the number of blocks for that many targets."""
    return max(1, -(-rows // (_BLOCK_32 * _EACH)))


@synk.parallel(
    block=_BLOCK_32,
    grid=_grid_32,
    broadcast=("sources", "masses"),
    outputs={"out": synk.output("gather", shape=(3,), dtype="float64")},
)
@cuda.jit(fastmath=True)  # rsqrt without the steps for subnormal numbers
def accelerations_float32(targets, sources, masses, softening, out):
    """Computes `accelerations` of float32 arrays.

    Loops over the targets of a thread have constant bounds, so that GPUs keep the local arrays in
    registers. The last tile is filled up with bodies without mass, since a loop of constant length
    is unrolled.
    """
    tile = cuda.shared.array((4, _TILE_32), float32)  # cores read each line as vectors
    place = cuda.local.array((_EACH, 3), float32)
    pull = cuda.local.array((_EACH, 3), float32)  # of a tile
    total = cuda.local.array((_EACH, 3), float32)  # of whole tiles, for smaller errors
    t = cuda.threadIdx.x
    begin = cuda.blockIdx.x * (_BLOCK_32 * _EACH) + t
    last = targets.shape[0] - 1
    soft = float32(softening * softening)
    for e in range(_EACH):
        for axis in range(3):
            # a thread without a body still loads tiles
            place[e, axis] = targets[min(begin + e * _BLOCK_32, last), axis]
            total[e, axis] = float32(0)
    for first in range(0, sources.shape[0], _TILE_32):
        for k in range(t, _TILE_32, _BLOCK_32):
            j = min(first + k, sources.shape[0] - 1)
            for axis in range(3):
                tile[axis, k] = sources[j, axis]
            tile[3, k] = masses[j] if first + k < sources.shape[0] else float32(0)
        cuda.syncthreads()
        for e in range(_EACH):
            for axis in range(3):
                pull[e, axis] = float32(0)
        for k in range(_TILE_32):
            x, y, z, mass = tile[0, k], tile[1, k], tile[2, k], tile[3, k]
            for e in range(_EACH):
                dx = x - place[e, 0]
                dy = y - place[e, 1]
                dz = z - place[e, 2]
                root = libdevice.rsqrtf(dx * dx + (dy * dy + (dz * dz + soft)))
                factor = mass * root * (root * root)
                pull[e, 0] += factor * dx
                pull[e, 1] += factor * dy
                pull[e, 2] += factor * dz
        for e in range(_EACH):
            for axis in range(3):
                total[e, axis] += pull[e, axis]
        cuda.syncthreads()
    for e in range(_EACH):
        if begin + e * _BLOCK_32 <= last:
            for axis in range(3):
                out[begin + e * _BLOCK_32, axis] = total[e, axis]


@synk.parallel(
    block=_BLOCK,
    broadcast=("sources", "masses"),
    outputs={"out": synk.output("gather", shape=(3,), dtype="float64")},
)
@cuda.jit
def accelerations_float64(targets, sources, masses, softening, out):
    """Computes `accelerations` in float64, with a division and a square root for each pair."""
    tile = cuda.shared.array((_BLOCK, 4), float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    own = min(i, targets.shape[0] - 1)  # a thread without a body still loads tiles
    x, y, z = float64(targets[own, 0]), float64(targets[own, 1]), float64(targets[own, 2])
    ax = 0.0
    ay = 0.0
    az = 0.0
    for first in range(0, sources.shape[0], _BLOCK):
        j = first + t
        if j < sources.shape[0]:
            tile[t, 0] = sources[j, 0]
            tile[t, 1] = sources[j, 1]
            tile[t, 2] = sources[j, 2]
            tile[t, 3] = masses[j]
        cuda.syncthreads()
        for k in range(min(_BLOCK, sources.shape[0] - first)):
            dx = tile[k, 0] - x
            dy = tile[k, 1] - y
            dz = tile[k, 2] - z
            square = dx * dx + dy * dy + dz * dz + softening * softening
            pull = tile[k, 3] / (square * math.sqrt(square))
            ax += pull * dx
            ay += pull * dy
            az += pull * dz
        cuda.syncthreads()
    if i < targets.shape[0]:
        out[i, 0] = ax
        out[i, 1] = ay
        out[i, 2] = az


def accelerations_reference(targets, sources, masses, softening):
    """NumPy reference."""
    d = sources[None, :, :].astype(np.float64) - targets[:, None, :]
    square = (d * d).sum(axis=2) + softening**2
    return (masses[None, :, None] * d / square[:, :, None] ** 1.5).sum(axis=1)


accelerations_float32_reference = accelerations_float64_reference = accelerations_reference


@synk.parallel(
    block=_BLOCK,
    broadcast=("sources", "masses"),
    outputs={"out": synk.output("gather", dtype="float64")},
)
@cuda.jit
def potentials(targets, sources, masses, softening, out):
    """Computes −Σ_j m_j / √(|x_j − x_i|² + ε²) at each target, for G = 1, including a body's own
    term −m_i/ε.

    Args:
        targets: float, shape (n, 3), length; sharded.
        sources: float, shape (s, 3), length; broadcast.
        masses: float, shape (s,), mass, of the sources; broadcast.
        softening: ε > 0; float, length.
        out: float64, shape (n,), mass/length; gathered.
    """
    i = cuda.grid(1)
    if i < targets.shape[0]:
        total = 0.0
        for j in range(sources.shape[0]):
            dx = float64(sources[j, 0]) - targets[i, 0]
            dy = float64(sources[j, 1]) - targets[i, 1]
            dz = float64(sources[j, 2]) - targets[i, 2]
            total -= masses[j] / math.sqrt(dx * dx + dy * dy + dz * dz + softening * softening)
        out[i] = total


def potentials_reference(targets, sources, masses, softening):
    """NumPy reference."""
    d = sources[None, :, :].astype(np.float64) - targets[:, None, :]
    return -(masses / np.sqrt((d * d).sum(axis=2) + softening**2)).sum(axis=1)


class Bodies(NamedTuple):
    """Positions and velocities: float64 arrays of shape (n, 3)."""

    positions: np.ndarray
    velocities: np.ndarray


def leapfrog(positions, velocities, masses, softening, step, steps):
    """Integrates the motion of bodies over `steps` time steps, for G = 1.

    Kick-drift-kick leapfrog: symplectic and of second order, with an energy error that does not
    grow.
    Source: L. Verlet, Physical Review 159 (1967); in this form, W. Swope et al., Journal of
    Chemical Physics 76 (1982).

    Args:
        positions: array, shape (n, 3), length; not modified.
        velocities: array, shape (n, 3), length/time; not modified.
        masses: array, shape (n,).
        softening: ε > 0, length.
        step: length of a time step.
        steps: number of time steps.
    """
    x, v = np.array(positions, np.float64), np.array(velocities, np.float64)
    pull = accelerations(x, x, masses, softening)
    for _ in range(steps):
        v += 0.5 * step * pull
        x += step * v
        pull = accelerations(x, x, masses, softening)
        v += 0.5 * step * pull
    return Bodies(x, v)


def energy(positions, velocities, masses, softening):
    """Returns kinetic plus potential energy, a float, for G = 1; each pair counts once, and
    self-interaction is excluded.
    """
    kinetic = 0.5 * (masses * (velocities * velocities).sum(axis=1)).sum()
    own = masses / softening
    return float(
        kinetic + 0.5 * (masses * (potentials(positions, positions, masses, softening) + own)).sum()
    )
