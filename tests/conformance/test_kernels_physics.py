"""The kernel library: what algebra and physics say of the results."""

import math

import numpy as np
import pytest
import scipy.special
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from synknumba.kernels import ising, matmul, nbody, stencil


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (5, 16, 16), (33, 15, 17), (16, 32, 48), (7, 3, 1050)]
)
def test_matrices_of_any_shape(world, shape):
    n, k, m = shape
    a, b = np.arange(1.0, n * k + 1).reshape(n, k), np.arange(k * m) % 7 - 3.0
    # integers: no rounding
    assert_array_equal(matmul.matmul(a, b.reshape(k, m)), a @ b.reshape(k, m))


def test_heat_decays_as_its_modes_do(world):
    """The discrete eigenvalues: Morton and Mayers, section 2.7, in two dimensions."""
    n, m, ratio, steps = 31, 24, 0.2, 20
    mode = np.outer(np.sin(np.pi * np.arange(n) / (n - 1)), np.sin(np.pi * np.arange(m) / (m - 1)))
    mode[[0, -1]] = mode[:, [0, -1]] = 0.0
    old, new = synk.data(mode), synk.data(np.zeros_like(mode))
    for _ in range(steps):
        stencil.heat_step(old, new, synk.OFFSET, ratio)
        old, new = new, old
    factor = 1.0 - 4.0 * ratio * sum(math.sin(math.pi / (2 * (size - 1))) ** 2 for size in (n, m))
    assert_allclose(old.data, factor**steps * mode, rtol=1e-10, atol=1e-14)


def test_a_glider_glides(world):
    cells = np.zeros((11, 9), np.uint8)
    cells[[0, 1, 2, 2, 2], [1, 2, 0, 1, 2]] = 1
    old, new = synk.data(cells), synk.data(np.zeros_like(cells))
    for _ in range(4 * 11):  # around the rim and on
        stencil.life_step(old, new, synk.OFFSET)
        old, new = new, old
    assert_array_equal(old.data, np.roll(cells, (11, 11), axis=(0, 1)))


def test_bodies_keep_their_momentum_and_energy(world):
    rng = np.random.default_rng(0)
    x, v, masses = (
        rng.normal(size=(101, 3)),
        rng.normal(size=(101, 3)) / 10,
        rng.uniform(0.5, 1.5, 101) / 101,
    )
    assert_allclose(masses @ nbody.accelerations(x, x, masses, 0.1), 0.0, atol=1e-14)
    after = nbody.leapfrog(x, v, masses, 0.1, 0.01, 20)
    assert_allclose(masses @ after.velocities, masses @ v, atol=1e-14)
    assert nbody.energy(*after, masses, 0.1) == pytest.approx(
        nbody.energy(x, v, masses, 0.1), rel=1e-5
    )
    assert nbody.energy(x, 0 * v, masses, 0.1) == pytest.approx(
        _pair_energy(x, masses, 0.1), rel=1e-12
    )


def test_bodies_are_summed_in_float32_where_all_arrays_are(world):
    x = np.random.default_rng(1).normal(size=(203, 3)).astype(np.float32)
    masses = np.full(203, 0.1, np.float32)
    want = nbody.accelerations_reference(x, x, masses, 0.1)

    def error(*arrays):
        return np.abs(nbody.accelerations(*arrays, 0.1) - want).max() / np.abs(want).max()

    assert 1e-10 < error(x, x, masses) < 1e-6
    assert error(x, x, masses.astype(np.float64)) < 1e-14


def _pair_energy(x, masses, softening):
    i, j = np.triu_indices(len(x), 1)
    return -(masses[i] * masses[j] / np.sqrt(((x[i] - x[j]) ** 2).sum(axis=1) + softening**2)).sum()


def test_two_bodies_circle_each_other(world):
    masses, softening, radius = np.array([0.5, 0.5]), 0.05, 0.5
    pull = 0.5 * 2 * radius / ((2 * radius) ** 2 + softening**2) ** 1.5
    speed = math.sqrt(pull * radius)
    x, v = np.array([[radius, 0, 0], [-radius, 0, 0]]), np.array([[0, speed, 0], [0, -speed, 0]])
    steps = 200
    half = nbody.leapfrog(x, v, masses, softening, math.pi * radius / speed / steps, steps)
    assert_allclose(half.positions, -x, atol=1e-3)


def test_sweeps_go_on_where_they_ended(world):
    betas = np.linspace(0.3, 0.6, 4)
    once, twice = np.ones((4, 8, 8), np.int8), np.ones((4, 8, 8), np.int8)
    ising.sweep(once, betas, synk.OFFSET, 5, 0, 6)
    ising.sweep(twice, betas, synk.OFFSET, 5, 0, 2)
    ising.sweep(twice, betas, synk.OFFSET, 5, 2, 4)
    assert_array_equal(once, twice)
    assert (once == -1).any()


def test_a_lattice_that_is_no_checkerboard_is_refused():
    with pytest.raises(ValueError, match="side must be even and at least 2, got 5"):
        ising.simulate([2.0], 5, 1, 1, 1)


@pytest.mark.parametrize("temperature", [1.5, 1.9, 4.0])
def test_spins_are_as_onsager_says(world, temperature):
    lattices = 23
    magnetisation, energy = ising.simulate(np.full(lattices, temperature), 32, 7, 60, 10)
    m_error, e_error = (
        values.std(ddof=1) / math.sqrt(lattices) for values in (magnetisation, energy)
    )
    assert abs(energy.mean() - _onsager_energy(temperature)) < 4 * e_error
    if temperature < ising.CRITICAL_TEMPERATURE:
        assert abs(magnetisation.mean() - ising.onsager_magnetisation(temperature)) < 4 * m_error
    else:
        assert magnetisation.mean() < 0.15  # of order 1/L
        assert ising.onsager_magnetisation(temperature) == 0.0


def _onsager_energy(temperature):
    """Onsager 1944, equation 116; SciPy's ellipk takes the square of the modulus."""
    k = 2.0 / temperature
    kappa = 2.0 * math.sinh(k) / math.cosh(k) ** 2
    complete = scipy.special.ellipk(kappa**2)
    return -(1.0 + 2.0 / math.pi * (2.0 * math.tanh(k) ** 2 - 1.0) * complete) / math.tanh(k)
