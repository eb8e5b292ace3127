"""The energy of the Ising model on small square lattices, by Monte Carlo.

    python ising.py

E = −Σ s_i s_j over neighbours, with periodic boundaries. Many independent lattices are divided over
the ranks, so the error bar is that of independent numbers.
"""

import math

import numpy as np
from numba import cuda

import synknumba as synk


@synk.parallel(grid=1024, block=64, inout=("spins",))  # 64 threads work on one lattice
@cuda.jit
def sweep(spins, beta, first, seed, sweeps):
    """Flips spins by Metropolis' rule. spins: int8, shape (lattices, side, side), even side."""
    side = spins.shape[1]
    for k in range(cuda.blockIdx.x, spins.shape[0], cuda.gridDim.x):
        for turn in range(2 * sweeps):
            for site in range(cuda.threadIdx.x, side * side, cuda.blockDim.x):
                i, j = site // side, site % side
                if (i + j + turn) % 2 == 0:  # one colour of a checkerboard: no two are neighbours
                    around = spins[k, i - 1, j] + spins[k, (i + 1) % side, j]
                    around += spins[k, i, j - 1] + spins[k, i, (j + 1) % side]
                    # first + k: the number among the lattices of all ranks
                    draw = synk.random.uniform(seed, first + k, turn * side * side + site)
                    if draw < math.exp(-2.0 * beta * spins[k, i, j] * around):
                        spins[k, i, j] = -spins[k, i, j]
            cuda.syncthreads()  # before the other colour


@synk.expectation
def energy_of(lattice):
    """Returns the energy a spin of one lattice, shape (side, side)."""
    side, bonds = lattice.shape[0], 0
    for i in range(side):
        for j in range(side):
            bonds += lattice[i, j] * (lattice[i - 1, j] + lattice[i, j - 1])
    return -bonds / (side * side)


def energy(side, beta, lattices, sweeps=100, seed=1):
    """Returns the energy a spin at the temperature 1/beta, as an estimate with its error bar."""
    spins = synk.data(np.ones((lattices, side, side), np.int8))  # in memory that all ranks share
    sweep(spins, beta, synk.OFFSET, seed, sweeps)
    return energy_of(spins)


def main():
    """Runs on every GPU or, without one, on every core."""
    with synk.fork():
        for temperature in (1.5, 2.0, 2.5, 3.0):
            print(temperature, energy(16, 1 / temperature, lattices=500))


if __name__ == "__main__":
    main()
