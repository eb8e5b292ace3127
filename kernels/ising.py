"""Ising model on a square lattice: Metropolis updates on the two colours of a checkerboard.

Spins s = ±1 on an L × L lattice with periodic boundaries, each coupled to its four neighbours with
strength J = 1:

    E = −Σ_<ij> s_i s_j

An update flips a spin with probability min(1, exp(−β ΔE)), ΔE = 2 s_i Σ_j s_j over its neighbours
(N. Metropolis et al., Journal of Chemical Physics 21 (1953)). Spins of one colour of a checkerboard
are not neighbours of each other, so all of them are updated at once; a sweep updates all black
spins and then all white spins (T. Preis, P. Virnau, W. Paul and J. Schneider, "GPU accelerated
Monte Carlo simulation of the 2D and 3D Ising model", Journal of Computational Physics 228 (2009)).

Independent lattices are sharded, each with its own temperature: one thread block per lattice.
Random numbers are keyed by (seed, lattice, sweep, site), so the spins are the same for any number
of ranks.

Below the critical temperature T_c = 2/ln(1 + √2) ≈ 2.269, the magnetisation per site of an infinite
lattice is

    m = (1 − sinh(2β)^−4)^(1/8)

Source: L. Onsager, Physical Review 65 (1944); proved by C. Yang, Physical Review 85 (1952).
"""

import math

import numpy as np
from numba import cuda, int32

import synknumba as synk

CRITICAL_TEMPERATURE = 2.0 / math.log(1.0 + math.sqrt(2.0))


def _grid(rows):
    """Returns one block per lattice, at most 65,536; beyond that, blocks stride over the
    lattices.
    """
    return max(1, min(65_536, rows))


@synk.parallel(block=(32, 8), grid=_grid, inout=("spins",))
@cuda.jit
def sweep(spins, betas, first, seed, start, sweeps):
    """Performs Metropolis sweeps over each lattice.

    Args:
        spins: int8, shape (n, L, L) with even L ≥ 2, values ±1, C-contiguous; sharded, written.
        betas: β = 1/T of each lattice; float64, shape (n,), 1/energy; sharded.
        first: `synk.OFFSET`, the global index of the first lattice.
        seed: int; the random stream.
        start: int; the number of sweeps already performed with this seed.
        sweeps: int; the number of sweeps to perform.
    """
    side = spins.shape[1]
    sites = side * side
    for lattice in range(cuda.blockIdx.x, spins.shape[0], cuda.gridDim.x):
        beta = betas[lattice]
        for made in range(sweeps):
            for colour in range(2):
                for i in range(cuda.threadIdx.y, side, cuda.blockDim.y):
                    up = i - 1 if i > 0 else side - 1
                    down = i + 1 if i < side - 1 else 0
                    for j in range(
                        2 * cuda.threadIdx.x + (i + colour) % 2, side, 2 * cuda.blockDim.x
                    ):
                        left = j - 1 if j > 0 else side - 1
                        right = j + 1 if j < side - 1 else 0
                        spin = spins[lattice, i, j]
                        around = spins[lattice, up, j] + spins[lattice, down, j]
                        around += spins[lattice, i, left] + spins[lattice, i, right]
                        draw = synk.random.uniform(
                            seed, first + lattice, (start + made) * sites + i * side + j
                        )
                        if draw < math.exp(-2.0 * beta * spin * around):
                            spins[lattice, i, j] = -spin
                cuda.syncthreads()


def sweep_reference(spins, betas, seed, start, sweeps):
    """NumPy reference; updates `spins` in place."""
    n, side, _ = spins.shape
    i, j = np.indices((side, side))
    for made in range(sweeps):
        draw = (start + made) * side * side + i * side + j
        u = synk.random.uniform(seed, np.arange(n)[:, None, None], draw)
        for colour in (0, 1):
            around = sum(np.roll(spins, shift, axis) for axis in (1, 2) for shift in (-1, 1))
            turns = u < np.exp(-2.0 * betas[:, None, None] * spins * around)
            spins[turns & ((i + j) % 2 == colour)] *= -1


@synk.parallel(
    block=128,
    grid=_grid,
    outputs={
        "magnetisation": synk.output("gather", dtype="float64"),
        "energy": synk.output("gather", dtype="float64"),
    },
)
@cuda.jit
def observe(spins, magnetisation, energy):
    """Computes the magnetisation and energy per site of each lattice.

    Args:
        spins: int8, shape (n, L, L), values ±1, C-contiguous; sharded.
        magnetisation: float64, shape (n,), in [−1, 1]; gathered.
        energy: float64, shape (n,), in [−2, 2]; gathered.
    """
    sums = cuda.shared.array(2, int32)
    side = spins.shape[1]
    sites = side * side
    for lattice in range(cuda.blockIdx.x, spins.shape[0], cuda.gridDim.x):
        if cuda.threadIdx.x < 2:
            sums[cuda.threadIdx.x] = 0
        cuda.syncthreads()
        up = 0
        bonds = 0
        for k in range(cuda.threadIdx.x, sites, cuda.blockDim.x):
            i = k // side
            j = k % side
            below = spins[lattice, i + 1 if i < side - 1 else 0, j]
            right = spins[lattice, i, j + 1 if j < side - 1 else 0]
            up += spins[lattice, i, j]
            bonds += spins[lattice, i, j] * (below + right)
        cuda.atomic.add(sums, 0, up)
        cuda.atomic.add(sums, 1, bonds)
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            magnetisation[lattice] = sums[0] / sites
            energy[lattice] = -sums[1] / sites
        cuda.syncthreads()


def observe_reference(spins):
    """NumPy reference; returns (magnetisation, energy)."""
    wide = spins.astype(np.int64)
    bonds = wide * (np.roll(wide, -1, axis=1) + np.roll(wide, -1, axis=2))
    return wide.mean(axis=(1, 2)), -bonds.mean(axis=(1, 2))


def onsager_magnetisation(temperature):
    """Returns |m| per site of an infinite lattice, a float; 0 at and above the critical
    temperature.
    """
    if temperature >= CRITICAL_TEMPERATURE:
        return 0.0
    return (1.0 - math.sinh(2.0 / temperature) ** -4) ** 0.125


def simulate(temperatures, side, seed, warm_up, measurements, sweeps_between=2):
    """Simulates lattices from an all-up start and returns their mean |magnetisation| and energy.

    Args:
        temperatures: array, shape (n,), above 0; one lattice each.
        side: lattice side L, even.
        seed: int; the random stream.
        warm_up: number of sweeps before the first measurement.
        measurements: number of measurements.
        sweeps_between: number of sweeps before each measurement.

    Returns:
        Two arrays of shape (n,): |m| and E per site, averaged over the measurements.

    Raises:
        ValueError: `side` is odd or less than 2, so that some neighbours have the same colour.
    """
    if side % 2 or side < 2:
        raise ValueError(
            f"side must be even and at least 2, got {side}: on an odd lattice, "
            f"neighbours have the same colour"
        )
    betas = synk.data(1.0 / np.asarray(temperatures, np.float64))
    spins = synk.data(np.ones((len(betas), side, side), np.int8))
    sweep(spins, betas, synk.OFFSET, seed, 0, warm_up)
    magnetisation, energy = np.zeros(len(betas)), np.zeros(len(betas))
    for k in range(measurements):
        sweep(spins, betas, synk.OFFSET, seed, warm_up + k * sweeps_between, sweeps_between)
        seen = observe(spins)
        magnetisation += abs(seen.magnetisation)
        energy += seen.energy
    return magnetisation / measurements, energy / measurements
