"""The kernel library: every kernel against its reference, and what physics, finance and statistics say of the results."""

import importlib
import math
import pkgutil

import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from synknumba import kernels
from synknumba.kernels import elementwise, ising, matmul, montecarlo, nbody, reduce, statistics, stencil
from tests.conformance import expected
from tests.conformance.kernel_cases import CASES, OPTION

quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)


@pytest.mark.parametrize("num_slices", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_a_kernel_gives_what_its_reference_gives(world, name, num_slices):
    _, make, rtol = CASES[name]
    for n in expected.lengths(world.world_size):
        got, want = make(n, np.random.default_rng(n), {"num_slices": num_slices})
        assert np.shape(got) == np.shape(want)
        assert_allclose(got, want, rtol=rtol, atol=rtol * np.abs(want).max())


def test_every_kernel_has_a_reference_and_a_case():
    found = set()
    for module in pkgutil.iter_modules(kernels.__path__, "synknumba.kernels."):
        members = vars(importlib.import_module(module.name))
        own = {key for key, value in members.items() if isinstance(value, synk.Function) and key in _defined(members, value)}
        assert own, f"{module.name} has no kernels"
        assert {f"{key}_reference" for key in own} <= set(members)
        found |= own
    assert found == {kernel.name for kernel, _, _ in CASES.values()}


def _defined(members, function):
    """The name of a function, if it is defined in this module and not imported."""
    return {function.name} if function.py_func.__module__ == members["__name__"] else set()


# ---- Monte Carlo ---------------------------------------------------------------------------------------------------------


def test_pi(world):
    value, error = montecarlo.pi(200_003, 1)
    assert error == pytest.approx(math.sqrt(math.pi * (4.0 - math.pi) / 200_003), rel=0.01)
    assert abs(value - math.pi) < 4 * error


def test_a_european_call_costs_what_black_and_scholes_say(world):
    value, error = montecarlo.european_call(100_003, 1, *OPTION)
    assert 0.0 < error < 0.1
    assert abs(value - montecarlo.european_price(*OPTION)) < 4 * error


def test_the_closed_form_is_that_of_a_textbook():
    """J. Hull, Options, Futures, and Other Derivatives, example 15.6: 4.76 and 0.81."""
    assert round(montecarlo.european_price(42.0, 40.0, 0.1, 0.2, 0.5), 2) == 4.76
    call, put = elementwise.black_scholes_reference(*np.array([[42.0], [40.0], [0.5]]), 0.1, 0.2)
    assert_array_equal(np.round([call, put], 2), [[4.76], [0.81]])
    assert_allclose(call - put, 42.0 - 40.0 * math.exp(-0.05), rtol=1e-14)


def test_an_asian_call(world):
    n, steps = 20_011, 12
    sums = montecarlo.asian_payoffs(synk.arange(n), 1, *OPTION, steps)
    a, g = sums[:2] / n
    a_error, g_error = np.sqrt((sums[2:4] / n - sums[:2] ** 2 / n**2) / n)
    assert abs(g - montecarlo.geometric_asian_price(*OPTION, steps)) < 4 * g_error
    value, error = montecarlo.asian_call(n, 1, *OPTION, steps)
    assert error < a_error / 10
    assert abs(value - a) < 4 * a_error
    again, again_error = montecarlo.asian_call(n, 2, *OPTION, steps)
    assert abs(value - again) < 4 * math.hypot(error, again_error)


def test_an_asian_call_over_one_price_is_a_european_one(world):
    value, error = montecarlo.asian_call(1009, 1, *OPTION, 1)
    assert value == pytest.approx(montecarlo.european_price(*OPTION), rel=1e-9)
    assert error < 1e-6


# ---- reductions and statistics -------------------------------------------------------------------------------------------


def test_totals_are_repeatable_and_accurate(world):
    x = np.full(300_007, 0.1, np.float32)
    assert reduce.total(x) == pytest.approx(300_007 * float(np.float32(0.1)), rel=1e-14)
    y = np.random.default_rng(0).normal(size=100_003)
    assert len({reduce.total(y) for _ in range(5)}) == 1
    assert reduce.dot(y, y) == pytest.approx(float(y @ y), rel=1e-12)


@pytest.mark.parametrize("n", [1, 2, 7, 1001])
def test_extremes_keep_nan_as_numpy_does(world, n):
    x = np.random.default_rng(n).normal(size=n)
    assert reduce.extremes(x) == (x.min(), x.max())
    for place in {0, n // 2, n - 1}:
        y = x.copy()
        y[place] = np.nan
        assert np.isnan(reduce.extremes(y)).all()


@pytest.mark.parametrize("shift", [0.0, 1e9])
@pytest.mark.parametrize("n", [2, 3, 7, 1001, 20_011])
def test_moments_are_scipys(world, n, shift):
    x = np.random.default_rng(n).gamma(2.0, 1.0, n) + shift
    wide = x.astype(np.longdouble)
    got = statistics.moments(x)
    assert got.rows == n
    assert got.mean == pytest.approx(float(wide.mean()), rel=1e-15)
    assert got.variance == pytest.approx(float(wide.var(ddof=1)), rel=1e-12)
    centered = (wide - wide.mean()).astype(np.float64)  # SciPy's own loses digits at 1e9
    assert got.skewness == pytest.approx(scipy.stats.skew(centered), rel=1e-6, abs=1e-6)
    assert got.kurtosis == pytest.approx(scipy.stats.kurtosis(centered), rel=1e-6, abs=1e-6)


def test_moments_of_equal_rows(world):
    for n in (1, 100):
        got = statistics.moments(np.full(n, 0.1))
        assert got[:2] == (n, 0.1)
        assert_array_equal(got.variance, 0.0 if n > 1 else np.nan)
        assert_array_equal(got[3:], [np.nan, np.nan])


@pytest.mark.parametrize("columns", [1, 2, 16, 17, 40])
def test_covariances_are_numpys(world, columns):
    x = np.random.default_rng(columns).normal(size=(503, columns)) @ np.tri(columns) + 1e6
    assert_allclose(statistics.covariance(x), np.cov(x.T).reshape(columns, columns), rtol=1e-8, atol=1e-9)


@quick
@given(
    st.sampled_from([1, 2, 10, 2048, 2049]),
    st.floats(-1e3, 1e3),
    st.floats(1e-6, 1e6),
    st.booleans(),
    st.sampled_from(["float32", "float64"]),
)
def test_histograms_are_numpys_at_the_edges_too(world, bins, low, width, even, dtype):
    rng = np.random.default_rng(bins)
    edges = np.linspace(low, low + width, bins + 1)
    if not even:
        edges = np.unique(np.concatenate([edges[[0, -1]], low + width * rng.random(bins - 1) ** 4]))
    near = [edges, np.nextafter(edges, -np.inf), np.nextafter(edges, np.inf), rng.uniform(low - width, low + 2 * width, 500)]
    x = np.concatenate([*near, [np.inf, -np.inf]]).astype(dtype)
    rng.shuffle(x)
    want = np.histogram(x.astype(np.float64), edges)[0]
    assert_array_equal(statistics.histogram(x, edges), want)
    x[::7] = np.nan
    assert_array_equal(statistics.histogram(x, edges, num_slices=2), np.histogram(x[~np.isnan(x)].astype(float), edges)[0])


# ---- matrices and stencils -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 16, 16), (33, 15, 17), (16, 32, 48), (7, 3, 1050)])
def test_matrices_of_any_shape(world, shape):
    n, k, m = shape
    a, b = np.arange(1.0, n * k + 1).reshape(n, k), np.arange(k * m) % 7 - 3.0
    assert_array_equal(matmul.matmul(a, b.reshape(k, m)), a @ b.reshape(k, m))  # integers: no rounding


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


# ---- physics -------------------------------------------------------------------------------------------------------------


def test_bodies_keep_their_momentum_and_energy(world):
    rng = np.random.default_rng(0)
    x, v, masses = rng.normal(size=(101, 3)), rng.normal(size=(101, 3)) / 10, rng.uniform(0.5, 1.5, 101) / 101
    assert_allclose(masses @ nbody.accelerations(x, x, masses, 0.1), 0.0, atol=1e-14)
    after = nbody.leapfrog(x, v, masses, 0.1, 0.01, 20)
    assert_allclose(masses @ after.velocities, masses @ v, atol=1e-14)
    assert nbody.energy(*after, masses, 0.1) == pytest.approx(nbody.energy(x, v, masses, 0.1), rel=1e-5)
    assert nbody.energy(x, 0 * v, masses, 0.1) == pytest.approx(_pair_energy(x, masses, 0.1), rel=1e-12)


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
    m_error, e_error = (values.std(ddof=1) / math.sqrt(lattices) for values in (magnetisation, energy))
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
