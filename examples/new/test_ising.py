"""Compares ising.py with the exact energy: python -m pytest test_ising.py."""

import ising
import numpy as np
import pytest

import synknumba as synk


def exact_energy(side, beta):
    """Returns the energy a spin, summed over all states of a lattice."""
    states = np.arange(2 ** (side * side))[:, None]
    spins = (1 - 2 * (states >> np.arange(side * side) & 1)).reshape(-1, side, side)
    bonds = spins * (np.roll(spins, 1, axis=1) + np.roll(spins, 1, axis=2))
    energies = -bonds.sum(axis=(1, 2))
    weights = np.exp(-beta * (energies - energies.min()))
    return (weights * energies).sum() / weights.sum() / side**2


@pytest.mark.parametrize("beta", [0.2, 0.4, 0.6])
def test_the_energy_is_that_of_all_states(beta):
    """A lattice of 4 × 4 spins has 65,536 states."""
    with synk.fork(2, device="cpu"):
        result = ising.energy(4, beta, lattices=2000)
    assert abs(result.mean - exact_energy(4, beta)) < 5 * result.stderr
    assert result.stderr < 0.015
