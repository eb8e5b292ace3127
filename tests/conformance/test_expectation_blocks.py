"""Expectation values of kernels with several blocks, of which the last puts the others' lines
together.
"""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from synknumba._rowwise import expectation
from tests.quick import whole

CLOSE = {"rtol": 1e-12, "atol": 0}
# Fewer and more than a block has threads; rows that a thread reads together.
BLOCKS = [(5, 8), *whole((300, 1))]


@pytest.fixture(params=BLOCKS, ids=str, autouse=True)
def blocks(request, monkeypatch):
    most, together = request.param
    monkeypatch.setattr(expectation, "_BLOCKS", {"cpu": most, "cuda": most})
    monkeypatch.setattr(expectation, "_TOGETHER", together)


def rows(n):
    return 1e9 + np.random.default_rng(n).normal(size=n)


def one(x):
    return x


def two(x):
    return x, 2.0 - x * 1e-9


@pytest.mark.parametrize("n", [100_003, *whole(1)])
def test_mean_and_variance_are_numpys(world, n):
    values = rows(n)
    found = synk.expectation(one)(values, num_slices=3)
    assert found.count == n
    assert_allclose(found.mean, math.fsum(values) / n, **CLOSE)
    exact = values.astype(np.longdouble)
    assert_allclose(found.variance, np.nan if n == 1 else float(exact.var(ddof=1)), **CLOSE)


@pytest.mark.whole
def test_weights(world):
    values, weights = rows(20_000), np.random.default_rng(1).random((2, 20_000))
    weights[0, :300] = 0.0  # the whole first block, and its mean is none
    weights[1, np.arange(20_000) // 256 % 5 == 0] = 0.0  # the same, where 5 blocks step on
    mean = synk.expectation(lambda x, w: x, weights="w")
    for own in weights:
        found = mean(values, own)
        want = synk.Estimate.from_values(values, own)
        for name in ("mean", "variance", "stderr", "effective_size"):
            assert_allclose(getattr(found, name), getattr(want, name), rtol=1e-11)
        assert found.count == want.count


def test_light_rows_of_large_values_hide_no_heavy_ones(world):
    drawn = np.exp(6.0 * np.random.default_rng(2).normal(size=5000))
    mean = synk.expectation(lambda x, w: (x, 2.0 - x), weights="w")
    for weights in (drawn, np.sort(drawn)):
        found = mean(1.0 / weights, weights)
        w = weights.astype(np.longdouble)
        away = 1 / w - 5000 / w.sum()
        stderr = np.sqrt((w**2 * away**2).sum() * 5000 / 4999) / w.sum()
        assert_allclose(found.mean, [5000 / w.sum(), 2.0 - 5000 / w.sum()], **CLOSE)
        assert_allclose(found.stderr, [stderr, stderr], rtol=1e-11)


@pytest.mark.whole
def test_sums_that_overflow_are_taken_again(world):
    mean = synk.expectation(lambda x, w: x, weights="w")
    signs = np.where(np.arange(2000) % 2, -1.0, 1.0)
    for power in (-1060, -540, 0, 1000):
        weights = np.ldexp(1.0 + np.arange(2000) % 5, power)
        want = synk.Estimate.from_values(signs, np.ldexp(weights, -power))
        found = mean(np.ldexp(signs, 1023), weights)
        assert_allclose(np.ldexp(found.mean, -1023), want.mean, atol=1e-15)
        assert (found.variance, found.effective_size) == (
            math.inf,
            pytest.approx(want.effective_size, rel=1e-12),
        )
        found = mean(1.0 + signs, weights)
        assert_allclose(
            [found.mean, found.variance, found.stderr],
            [1.0 + want.mean, want.variance, want.stderr],
            rtol=1e-11,
        )


@pytest.mark.whole
def test_covariance(world):
    values = rows(20_000)
    found = synk.expectation(two, covariance=True)(values)
    exact = np.array([values - 1e9, 1.0 - (values - 1e9) * 1e-9])
    assert_allclose(found.covariance, np.cov(exact), rtol=1e-6)  # the second value has lost digits
    assert_allclose(found.variance[0], exact[0].var(ddof=1), rtol=1e-11)


@pytest.mark.whole
def test_what_is_not_finite_is_told(world):
    mean = synk.expectation(one)
    for value, place in ((np.inf, 0), (-np.inf, 7_777), (np.nan, 7_777)):
        values = np.ones(10_000)
        values[place] = value
        found = mean(values)
        assert_array_equal(found.mean, value)
        assert math.isnan(found.variance)


def test_constant_rows_have_no_variance_and_results_repeat(world):
    constant = synk.expectation(one)(np.full(10_000, 0.1))
    assert (constant.mean, constant.variance) == (0.1, 0.0)
    again = synk.expectation(one)
    values = rows(50_000)
    first = again(values)
    assert all(
        (other.mean, other.variance) == (first.mean, first.variance)
        for other in (again(values) for _ in range(20))
    )


@pytest.mark.whole
@pytest.mark.parametrize("shards", [1, 4, 9])
def test_shards_have_the_same_bits_on_one_rank(world, shards):
    values = rows(10_007)
    several = synk.expectation(two, covariance=True)
    for num_slices in (1, 2):
        together, alone = (
            call(values, shards=shards, num_slices=num_slices)
            for call in (several, several.as_serial)
        )
        assert_allclose(together.mean[0], math.fsum(values) / len(values), **CLOSE)
        assert_array_equal(together.mean, alone.mean)
        assert_array_equal(together.covariance, alone.covariance)
