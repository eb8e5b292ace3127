"""Ways to a smaller error bar: their means, the variance of these, and error bars that cover.
Expected: closed forms.
"""

import math
from statistics import NormalDist

import numpy as np
import pytest
from numpy.testing import assert_allclose

import synknumba as synk

E = math.e
VARIANCE = (E**2 - 1) / 2 - (E - 1) ** 2  # of exp(x), for x uniform in (0, 1)
normal_cdf = NormalDist().cdf
RUNS = 1000


@synk.expectation
def plain(i, seed):
    return math.exp(synk.random.uniform(seed, i, 0))


@synk.expectation
def antithetic(i, seed):
    x = synk.random.uniform(seed, i, 0)
    return (math.exp(x) + math.exp(1.0 - x)) / 2


@synk.expectation(covariance=True)
def with_control(i, seed):
    x = synk.random.uniform(seed, i, 0)
    return math.exp(x), x


@synk.expectation
def stratified(i, seed, strata):
    return math.exp((i % strata + synk.random.uniform(seed, i, 0)) / strata)


@synk.expectation
def tail(i, seed):
    """A normal number above 3, drawn around 3."""
    x = 3.0 + synk.random.normal(seed, i, 0)
    if x < 3.0:
        return 0.0
    return math.exp(4.5 - 3.0 * x)


@synk.expectation(weights=True)
def square(i, seed):
    """Of a normal number of standard deviation 1/2, drawn with 1."""
    x = synk.random.normal(seed, i, 0)
    return x * x, math.exp(-1.5 * x * x)


@synk.expectation
def part(i, seed, first, width):
    return math.exp(first + width * synk.random.uniform(seed, i, 0))


def by_parts(rows, seed):
    """Strata of a fifth and four fifths of the rows, of a tenth and nine tenths of the space."""
    few = part(synk.arange(rows // 5), seed, 0.0, 0.1)
    many = part(synk.arange(rows - rows // 5), seed + RUNS, 0.1, 0.9)
    return few.propagate(lambda a, b: 0.1 * a + 0.9 * b, many)


def of_part(first, width):
    """Variance of exp(x) for x uniform in a part."""
    a, b = math.exp(first), math.exp(first + width)
    return (b * b - a * a) / (2 * width) - ((b - a) / width) ** 2


P = normal_cdf(-3)
CONTROLLED = VARIANCE - 12 * (1 - (E - 1) / 2) ** 2
# E[w² (x² − 1/4)²] / (E w)²: w² times the normal density is 1/√7 times that of variance 1/7
WEIGHTED = 4 / math.sqrt(7) * (3 / 49 - 2 / 7 / 4 + 1 / 16)

# name: (estimate of n rows, exact mean, n · variance of the mean)
CASES = {
    "plain": (lambda n, s: plain(synk.arange(n), s), E - 1, VARIANCE),
    "antithetic": (
        lambda n, s: antithetic(synk.arange(n // 2), s),
        E - 1,
        VARIANCE + E - (E - 1) ** 2,
    ),
    "control": (
        lambda n, s: with_control(synk.arange(n), s).control(0.5),
        E - 1,
        CONTROLLED,
    ),
    "strata": (
        lambda n, s: stratified(synk.arange(n), s, 8, block=8),
        E - 1,
        sum(of_part(k / 8, 1 / 8) for k in range(8)) / 8,
    ),
    "unequal strata": (
        by_parts,
        E - 1,
        0.1**2 * of_part(0.0, 0.1) / 0.2 + 0.9**2 * of_part(0.1, 0.9) / 0.8,
    ),
    "importance": (
        lambda n, s: tail(synk.arange(n), s),
        P,
        math.exp(9) * normal_cdf(-6) - P**2,
    ),
    "weights": (lambda n, s: square(synk.arange(n), s), 0.25, WEIGHTED),
}


@pytest.mark.parametrize("row", [{"world_size": 1, "device": "cpu"}], indirect=True)
@pytest.mark.parametrize("name", CASES)
def test_error_bars_are_small_and_cover(world, name):
    estimate, exact, variance = CASES[name]
    rows = 2000
    runs = [estimate(rows, seed) for seed in range(RUNS)]
    errors = np.array([run.mean - exact for run in runs])
    bars = np.array([run.stderr for run in runs])
    assert_allclose(np.mean(bars**2) * rows, variance, rtol=0.02)
    assert_allclose(np.mean(errors**2) * rows, variance, rtol=0.15)
    assert 0.93 < np.mean(np.abs(errors) < 1.96 * bars) < 0.97


def test_strata_without_blocks_have_too_large_an_error_bar(world):
    """That of independent rows; on any number of ranks, blocks have the right one."""
    rows = synk.arange(80_000)
    assert_allclose(stratified(rows, 1, 8).variance, VARIANCE, rtol=0.02)
    _, exact, variance = CASES["strata"]
    estimate = stratified(rows, 1, 8, block=8)
    assert_allclose(estimate.stderr**2 * 80_000, variance, rtol=0.05)
    assert abs(estimate.mean - exact) < 5 * estimate.stderr


@pytest.mark.parametrize("row", [{"world_size": 1, "device": "cpu"}], indirect=True)
def test_the_effective_size_of_weights(world):
    """(Σ w)² / Σ w² of weights of mean 1/2 and mean square 1/√7."""
    estimate = square(synk.arange(100_000), 5)
    assert_allclose(estimate.effective_size / 100_000, math.sqrt(7) / 4, rtol=0.01)
