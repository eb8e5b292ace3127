"""The kernel library: every kernel against its reference, and what finance and statistics say of
the results.
"""

import importlib
import math
import pkgutil

import numpy as np
import pytest
import scipy  # its parts load at first use: half a second for scipy.stats
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from synknumba import kernels
from synknumba.kernels import elementwise, montecarlo, reduce, statistics
from tests.conformance import expected
from tests.conformance.kernel_cases import CASES, OPTION
from tests.quick import whole

quick = settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


# Kernels, or dtypes, whose constructs others have.
FURTHER = (
    "asian_payoffs",
    "block_products",
    "block_sums_float32",
    "block_sums_int16",
    "matmul_float32",
    "centered_products",
)

# Modules without kernels; tests/kernels has their tests.
DEVICE_FUNCTIONS = ("_sizes", "block", "grid", "warp")


@pytest.mark.parametrize("num_slices", [1, 3])
@pytest.mark.parametrize(
    "name", [*whole(*FURTHER), *(name for name in CASES if name not in FURTHER)]
)
def test_a_kernel_gives_what_its_reference_gives(world, name, num_slices):
    _, make, rtol = CASES[name]
    for n in expected.lengths(world.world_size):
        got, want = make(n, np.random.default_rng(n), {"num_slices": num_slices})
        assert np.shape(got) == np.shape(want)
        assert_allclose(got, want, rtol=rtol, atol=rtol * np.abs(want).max())


def test_every_kernel_has_a_reference_and_a_case():
    found = set()
    for module in pkgutil.iter_modules(kernels.__path__, "synknumba.kernels."):
        if module.name.rpartition(".")[2] in DEVICE_FUNCTIONS:
            continue
        members = vars(importlib.import_module(module.name))
        own = {
            key
            for key, value in members.items()
            if isinstance(value, synk.Function) and key in _defined(members, value)
        }
        assert own, f"{module.name} has no kernels"
        assert {f"{key}_reference" for key in own} <= set(members)
        found |= own
    assert found == {kernel.name for kernel, _, _ in CASES.values()}


def _defined(members, function):
    """The name of a function, if it is defined in this module and not imported."""
    return {function.name} if function.py_func.__module__ == members["__name__"] else set()


# ---- Monte Carlo ---------------------------------------------------------------------------------


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


# ---- reductions and statistics -------------------------------------------------------------------


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


# 1e9 has steps of 1.2e-7
@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (1e9, 1.0), (1e9, 1e-6)])
@pytest.mark.parametrize("n", [2, 3, 7, 1001, 20_011])
def test_moments_are_scipys(world, n, shift, scale):
    x = np.random.default_rng(n).gamma(2.0, scale, n) + shift
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
@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (1e9, 1e-5)])
def test_covariances_are_numpys(world, columns, shift, scale):
    x = scale * np.random.default_rng(columns).normal(size=(503, columns)) @ np.tri(columns) + shift
    # np.cov itself loses digits at 1e9
    wide = x.astype(np.longdouble) - x.astype(np.longdouble).mean(axis=0)
    want = (wide.T @ wide / 502).astype(np.float64)
    assert_allclose(statistics.covariance(x), want, rtol=1e-10, atol=1e-12 * want.max())


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
    near = [
        edges,
        np.nextafter(edges, -np.inf),
        np.nextafter(edges, np.inf),
        rng.uniform(low - width, low + 2 * width, 500),
    ]
    x = np.concatenate([*near, [np.inf, -np.inf]]).astype(dtype)
    rng.shuffle(x)
    want = np.histogram(x.astype(np.float64), edges)[0]
    assert_array_equal(statistics.histogram(x, edges), want)
    x[::7] = np.nan
    assert_array_equal(
        statistics.histogram(x, edges, num_slices=2),
        np.histogram(x[~np.isnan(x)].astype(float), edges)[0],
    )
