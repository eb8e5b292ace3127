"""Gravitation between n bodies, each with each.

    a_i = G Σ_j m_j (x_j − x_i) / (|x_j − x_i|² + ε²)^(3/2)

with a softening length ε above 0, which keeps bodies that meet from being thrown out, and makes the term j = i zero without a
condition. Source: S. Aarseth, "Gravitational N-Body Simulations" (Cambridge, 2003), section 1.4; the tiles are those of L.
Nyland, M. Harris and J. Prins, "Fast N-body simulation with CUDA", GPU Gems 3 (2007), chapter 31: a block loads 256 bodies into
shared memory, where each of its 256 threads uses them for the body that is its own.

The bodies that are pulled (targets) are sharded, those that pull (sources) go to every rank whole. Usually they are the same
array, passed twice.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import cuda, float64

import synknumba as synk

_BLOCK = 256


@synk.parallel(
    block=_BLOCK,
    broadcast=("sources", "masses"),
    outputs={"out": synk.output("gather", shape=(3,), dtype="float64")},
)
@cuda.jit
def accelerations(targets, sources, masses, softening, out):
    """The acceleration of each target, for G = 1.

    Args:
        targets: float, shape (n, 3), length; sharded.
        sources: float, shape (s, 3), length; broadcast.
        masses: float, shape (s,), mass, of the sources; broadcast.
        softening: float, length, above 0; ε.
        out: float64, shape (n, 3), mass/length²; times G, accelerations. Gathered.
    """
    tile = cuda.shared.array((_BLOCK, 4), float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    own = min(i, targets.shape[0] - 1)  # a thread without a body helps to load the tiles
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
    """The same with NumPy."""
    d = sources[None, :, :].astype(np.float64) - targets[:, None, :]
    square = (d * d).sum(axis=2) + softening**2
    return (masses[None, :, None] * d / square[:, :, None] ** 1.5).sum(axis=1)


@synk.parallel(
    block=_BLOCK,
    broadcast=("sources", "masses"),
    outputs={"out": synk.output("gather", dtype="float64")},
)
@cuda.jit
def potentials(targets, sources, masses, softening, out):
    """−Σ_j m_j / √(|x_j − x_i|² + ε²) at each target, for G = 1; a body's own term, −m_i/ε, is among them.

    Args:
        targets: float, shape (n, 3), length; sharded.
        sources: float, shape (s, 3), length; broadcast.
        masses: float, shape (s,), mass, of the sources; broadcast.
        softening: float, length, above 0; ε.
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
    """The same with NumPy."""
    d = sources[None, :, :].astype(np.float64) - targets[:, None, :]
    return -(masses / np.sqrt((d * d).sum(axis=2) + softening**2)).sum(axis=1)


class Bodies(NamedTuple):
    """Arrays of shape (n, 3), float64."""

    positions: np.ndarray
    velocities: np.ndarray


def leapfrog(positions, velocities, masses, softening, step, steps):
    """Moves bodies for `steps` steps of time, for G = 1.

    Half a kick, a drift, half a kick: a symplectic rule of second order, which keeps the energy to an error that does not grow.
    Source: L. Verlet, Physical Review 159 (1967); in this form, W. Swope et al., Journal of Chemical Physics 76 (1982).

    Args:
        positions: array, shape (n, 3); not changed.
        velocities: array, shape (n, 3); not changed.
        masses: array, shape (n,).
        softening: ε.
        step: time of a step.
        steps: number of steps.
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
    """Kinetic and potential energy together, for G = 1: a float; every pair counts once, and no body with itself."""
    kinetic = 0.5 * (masses * (velocities * velocities).sum(axis=1)).sum()
    own = masses / softening
    return float(kinetic + 0.5 * (masses * (potentials(positions, positions, masses, softening) + own)).sum())
