"""Moments, frequencies, tails and correlations of the samples. Seeds are fixed, so a test either
passes or fails for good.

Limits are 4.5 standard errors, or a p-value of 1e-5: some hundred comparisons of good numbers stay
within them.
"""

import math
from itertools import combinations

import numpy as np
import pytest
import scipy  # its parts load at first use

from synknumba import random

N = 200_000
ROWS = np.arange(N)
SIGMAS, P = 4.5, 1e-5


def _columns(name, seed=1, rows=ROWS, draw=0, rounds=10):
    """The samples of a function, a row for each number that it returns, in float64."""
    return np.atleast_2d(np.asarray(getattr(random, name)(seed, rows, draw, rounds), np.float64))


def _is_near(mean, expected, deviation, n):
    return abs(mean - expected) < SIGMAS * deviation / math.sqrt(n)


DISTRIBUTIONS = {
    "uniform": "uniform",
    "uniform32": "uniform",
    "uniform2": "uniform",
    "uniform4": "uniform",
    "normal": "norm",
    "normal32": "norm",
    "normal2": "norm",
    "normal4": "norm",
    "exponential": "expon",
}


@pytest.mark.parametrize("rounds", [10, 7])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_moments_and_distribution(name, rounds):
    distribution = getattr(scipy.stats, DISTRIBUTIONS[name])
    for samples in _columns(name, rounds=rounds):
        for power in (1, 2, 3, 4):
            moment, of_squares = distribution.moment(power), distribution.moment(2 * power)
            assert _is_near((samples**power).mean(), moment, math.sqrt(of_squares - moment**2), N)
        assert scipy.stats.kstest(samples, distribution.cdf).pvalue > P


@pytest.mark.parametrize("rounds", [10, 7])
def test_chi_square_of_a_million_uniform_numbers(rounds):
    for seed, name in ((3, "uniform"), (4, "uniform32")):
        samples = _columns(name, seed, np.arange(1_000_000), rounds=rounds)[0]
        counts = np.bincount((samples * 1000).astype(int), minlength=1000)
        assert P < scipy.stats.chisquare(counts).pvalue < 1 - P


@pytest.mark.parametrize("rounds", [10, 7])
def test_pairs_and_triples_fill_space(rounds):
    for samples in (
        np.array([_columns("uniform", 5, ROWS, draw, rounds)[0] for draw in range(3)]),
        _columns("uniform4", rounds=rounds)[:3],
    ):
        cells = (samples * 16).astype(int)
        counts = np.bincount(cells[0] * 256 + cells[1] * 16 + cells[2], minlength=4096)
        assert P < scipy.stats.chisquare(counts).pvalue < 1 - P


@pytest.mark.parametrize("rounds", [10, 7])
@pytest.mark.parametrize("shift", [0, 1, 2, 8, 11, 21, 31])
def test_each_bit_is_set_half_of_the_time(shift, rounds):
    for word in random.bits4(9, ROWS, 0, rounds):
        assert _is_near((word >> np.uint32(shift) & np.uint32(1)).mean(), 0.5, 0.5, N)


def test_uniform_numbers_use_all_bits_and_leave_out_one():
    for name, bits in (("uniform", 53), ("uniform32", 24)):
        samples = _columns(name, 2)[0]
        scaled = samples * 2.0**bits
        assert np.all((scaled == np.floor(scaled)) & (samples >= 0) & (samples < 1))
        assert _is_near((scaled % 2).mean(), 0.5, 0.5, N)  # the last bit


@pytest.mark.parametrize("rounds", [10, 7])
@pytest.mark.parametrize("name", ["normal", "normal32"])
def test_tails_of_normal_numbers(name, rounds):
    samples = _columns(name, 8, np.arange(1_000_000), rounds=rounds)[0]
    for limit in (2.0, 3.0, 4.0):
        for beyond in (samples > limit, samples < -limit):
            assert (
                scipy.stats.binomtest(
                    int(beyond.sum()), len(samples), scipy.stats.norm.sf(limit)
                ).pvalue
                > P
            )


# ---- independence


def _neighbours():
    """Samples that differ in the function, the place in a block, the row, the draw, the seed or
    the rounds.
    """
    found = {name: _columns(name)[0] for name in DISTRIBUTIONS}
    found |= {f"{name}, 7 rounds": _columns(name, rounds=7)[0] for name in DISTRIBUTIONS}
    found |= {
        f"uniform4 {place}": column for place, column in enumerate(_columns("uniform4")) if place
    }
    found |= {
        f"normal4 {place}": column for place, column in enumerate(_columns("normal4")) if place
    }
    found |= {
        f"normal2 {place}": column for place, column in enumerate(_columns("normal2")) if place
    }
    found["integers"] = random.randint(1, ROWS, 0, 0, 1000).astype(float)
    found["bits"] = random.bits4(1, ROWS, 0)[0].astype(float)
    for step in (1, 2, 64, 2**20, 2**32, 2**63):
        found[f"row + {step}"] = _columns("uniform", 1, ROWS.astype(np.uint64) + np.uint64(step))[0]
        found[f"seed + {step}"] = _columns("uniform", 1 + step)[0]
    for step in (1, 2, 64, 2**20, 2**32, 2**55):
        found[f"draw + {step}"] = _columns("uniform", 1, ROWS, step)[0]
    found["seed and row exchanged"] = _columns("uniform", ROWS, np.array([1]), 0)[0]
    found["row and draw exchanged"] = _columns("uniform", 1, np.array([0]), ROWS)[0]
    return found


@pytest.mark.whole
def test_streams_are_not_correlated():
    samples = _neighbours()
    normed = np.array([(column - column.mean()) / column.std() for column in samples.values()])
    correlations = normed @ normed.T * math.sqrt(N) / N
    names = list(samples)
    close = [
        (names[i], names[j], correlations[i, j])
        for i, j in combinations(range(len(names)), 2)
        if abs(correlations[i, j]) > SIGMAS
    ]
    assert not close


def test_no_stream_runs_into_another():
    """A million blocks of 64 bits of them: two equal ones would come once in 40,000,000 such
    tests.
    """
    seeds, rows, draws = np.ix_(
        np.array([0, 1, 2**32, 2**63], np.uint64),
        np.r_[0:250, 2**32 : 2**32 + 250],
        np.r_[0:250, 2**32 : 2**32 + 250],
    )
    w0, w1, _, _ = random.bits4(seeds, rows, draws)
    together = w0.astype(np.uint64) << np.uint64(32) | w1
    assert np.unique(together).size == together.size == 1_000_000


# ---- integers


@pytest.mark.parametrize(("low", "high"), [(0, 2), (-3, 4), (10, 1010)])
def test_integers_of_a_range_are_equally_likely(low, high):
    samples = random.randint(6, ROWS, 0, low, high)
    assert (samples.min(), samples.max()) == (low, high - 1)
    assert scipy.stats.chisquare(np.bincount(samples - low, minlength=high - low)).pvalue > P


def test_integers_of_long_ranges_are_not_biased():
    """In three quarters of a range of 2^64 numbers, 64 random bits alone would give some values
    twice as often as others.
    """
    low, high = -(2**63), 2**62
    thirds = (random.randint(6, ROWS, 0, low, high).astype(float) - low) / (float(high) - low) * 3
    assert scipy.stats.chisquare(np.bincount(thirds.astype(int), minlength=3)).pvalue > P
    odd = random.randint(7, ROWS, 0, low, high) & 1
    assert _is_near(odd.mean(), 0.5, 0.5, N)
