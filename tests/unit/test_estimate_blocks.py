"""Standard errors of correlated rows, compared with the closed form of an AR(1) chain, and over
many seeds.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from synknumba import Estimate

RHO = 0.95
CLOSE = {"rtol": 1e-12, "atol": 0}


def chains(seed, number, n, rho=RHO):
    """Stationary AR(1) chains of variance 1, shape (n, number): x_i = ρ x_{i−1} + √(1 − ρ²) ε_i."""
    rng = np.random.default_rng(seed)
    x = np.empty((n, number))
    x[0] = rng.normal(size=number)
    noise = math.sqrt(1 - rho * rho) * rng.normal(size=(n, number))
    for i in range(1, n):
        x[i] = rho * x[i - 1] + noise[i]
    return x


def error_of_mean(n, rho=RHO):
    """√Var(mean of n), with Var = (1 + 2 Σ_{k<n} (1 − k/n) ρ^k) / n, which for large n is (1 +
    ρ) / (1 − ρ) / n.
    """
    k = np.arange(1, n)
    return math.sqrt((1 + 2 * ((1 - k / n) * rho**k).sum()) / n)


@given(blocks=st.integers(2, 12), block=st.integers(1, 9), offset=st.sampled_from([0.0, 1e9]))
def test_estimate_is_that_of_block_means(blocks, block, offset):
    values = offset + np.random.default_rng(blocks).normal(size=blocks * block)
    means = (values - offset).reshape(blocks, block).mean(axis=1)
    found = Estimate.from_values(values, block=block)
    assert_allclose(found.mean, offset + means.mean(), rtol=1e-12, atol=1e-14)
    assert_allclose(found.variance, means.var(ddof=1), rtol=1e-6 if offset else 1e-11, atol=1e-13)
    assert found.count == blocks


@given(n=st.integers(1, 60), block=st.integers(1, 60))
def test_no_row_is_left_out(n, block):
    values = np.random.default_rng(n).normal(size=n)
    block = min(block, n)
    found = Estimate.from_values(values, block=block)
    assert_allclose(found.mean, values.mean(), rtol=1e-12, atol=1e-15)
    assert found.count == n // block


def test_rows_after_the_last_block_are_in_the_mean_only():
    values = np.random.default_rng(4).normal(7.0, 1.0, size=11)
    found = Estimate.from_values(values, block=3)
    assert_allclose(found.mean, values.mean(), **CLOSE)
    assert_allclose(found.variance, values[:9].reshape(3, 3).mean(axis=1).var(ddof=1), rtol=1e-11)
    both, one = np.stack([values, values**2], axis=1), np.arange(11.0)
    pair = Estimate.from_values(both, block=3, covariance=True)
    assert_allclose(pair.mean, both.mean(axis=0), **CLOSE)
    assert_allclose(
        pair.covariance, np.cov(both[:9].reshape(3, 3, 2).mean(axis=1), rowvar=False), rtol=1e-10
    )
    weighted = Estimate.from_values(values, one, block=3)
    assert_allclose(weighted.mean, np.average(values, weights=one), **CLOSE)
    assert_allclose(
        weighted.stderr, Estimate.from_values(values[:9], one[:9], block=3).stderr, rtol=1e-11
    )


def test_weights_are_summed_over_blocks():
    rng = np.random.default_rng(3)
    values, weights = rng.normal(size=(8, 5)), rng.random((8, 5))
    weights[2] = 0.0
    sums = np.where(weights.sum(axis=1) != 0, weights.sum(axis=1), 1.0)
    want = Estimate.from_values((values * weights).sum(axis=1) / sums, weights.sum(axis=1))
    found = Estimate.from_values(values.reshape(-1), weights.reshape(-1), block=5)
    for name in ("mean", "variance", "stderr", "effective_size", "count"):
        assert_allclose(getattr(found, name), getattr(want, name), rtol=1e-11)


def test_covariance_is_that_of_block_means():
    values = chains(1, 3, 1000)
    want = np.cov(values.reshape(100, 10, 3).mean(axis=1), rowvar=False)
    assert_allclose(
        Estimate.from_values(values, covariance=True, block=10).covariance, want, rtol=1e-11
    )


def test_huge_values_and_nan():
    huge = Estimate.from_values([1e308, 1e308, -1e308, -1e308], block=2)
    assert (huge.mean, huge.variance) == (0.0, math.inf)
    assert_array_equal(Estimate.from_values([[math.nan, 1.0]] * 4, block=2).mean, [math.nan, 1.0])
    assert Estimate.from_values([math.inf, 1.0, 1.0, 1.0], block=2).mean == math.inf


def test_blocked_estimates_add_up():
    values = chains(2, 1, 400)[:, 0]
    both = Estimate.from_values(values[:200], block=20) + Estimate.from_values(
        values[200:], block=20
    )
    assert_allclose(both.stderr, Estimate.from_values(values, block=20).stderr, **CLOSE)


@pytest.mark.parametrize("block", [0, -1, 5, 1.0, "2", None, True])
def test_invalid_blocks_are_refused(block):
    with pytest.raises(synk.ReductionError, match="from 1 to the number of rows, 4"):
        Estimate.from_values([1.0, 2.0, 3.0, 4.0], block=block)


N, CHAINS = 2**14, 120


def test_error_bars_of_a_markov_chain_are_right_over_many_seeds():
    rows = chains(11, CHAINS, N)
    found = [Estimate.blocked(chain) for chain in np.ascontiguousarray(rows.T)]
    means, errors = np.array([one.mean for one in found]), np.array([one.stderr for one in found])
    exact = error_of_mean(N)
    # the closed form is that of these chains
    assert abs(means.std(ddof=1) / exact - 1) < 4 / math.sqrt(2 * CHAINS)
    # The mean of CHAINS error bars, each uncertain by stderr_error; blocks are still a little
    # correlated, 2 % here.
    uncertainty = np.mean([one.stderr_error for one in found])
    assert_allclose(uncertainty, errors.mean() / math.sqrt(2 * (found[0].count - 1)), rtol=0.2)
    assert abs(errors.mean() - exact) < 4 * uncertainty / math.sqrt(CHAINS) + 0.05 * exact
    assert 0.6 < errors.std(ddof=1) / uncertainty < 1.6
    assert 0.90 < (np.abs(means) < 1.96 * errors).mean() < 0.99
    plain = Estimate.from_values(rows).stderr
    # 6.2: what the plain error bar misses
    assert_allclose(exact / plain.mean(), math.sqrt((1 + RHO) / (1 - RHO)), rtol=0.05)


def test_independent_rows_have_the_plain_standard_error():
    values = np.random.default_rng(12).normal(size=(CHAINS, N))
    ratios = [
        (one := Estimate.blocked(row)).stderr / Estimate.from_values(row).stderr for row in values
    ]
    assert abs(np.mean(ratios) - 1) < 4 / math.sqrt(2 * (one.count - 1) * CHAINS) + 1e-3


def test_a_chain_too_short_for_a_plateau_has_no_error_bar():
    walk = np.cumsum(np.random.default_rng(13).normal(size=1000))
    found = Estimate.blocked(walk)
    assert math.isnan(found.stderr)
    assert_allclose(found.mean, walk.mean(), **CLOSE)
    assert math.isnan(Estimate.blocked([1.0]).stderr)


def test_constant_and_undefined_values_do_not_decide():
    values = np.stack(
        [chains(14, 1, 4096)[:, 0], np.full(4096, 0.5), np.full(4096, math.nan)], axis=1
    )
    found, alone = Estimate.blocked(values), Estimate.blocked(values[:, 0])
    assert found.count == alone.count
    assert_allclose(found.stderr, [alone.stderr, 0.0, math.nan], rtol=1e-12)
    assert Estimate.blocked([2.0, 2.0]).stderr == 0.0


def test_ratio_of_two_values_of_a_chain():
    x = chains(15, 2, N) * [0.1, 0.1] + [2.0, 4.0]
    ratio = Estimate.blocked(x, covariance=True).propagate(lambda mean: mean[0] / mean[1])
    exact = 0.5 * math.hypot(0.05, 0.025) * error_of_mean(N)
    assert 0.5 < ratio.stderr / exact < 1.7
