"""`replicated`: the estimate over calls with other seeds, and what is refused."""

import math

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_allclose
from scipy import stats

import synknumba as synk
from synknumba import random
from synknumba._errors import ArgumentError

CLOSE = {"rtol": 1e-11}


@synk.expectation
def product(i, seed, power):
    return (synk.random.sobol(seed, i, 0) * synk.random.sobol(seed, i, 1)) ** power


@synk.expectation
def pair(i, seed):
    x, y = synk.random.sobol(seed, i, 0), synk.random.sobol(seed, i, 1)
    return x * y, x


@synk.expectation
def circle(i, seed):
    x, y = synk.random.sobol(seed, i, 0), synk.random.sobol(seed, i, 1)
    return 4.0 if x * x + y * y < 1.0 else 0.0


@synk.expectation
def seedless(i):
    return synk.random.sobol(1, i, 0)


def seeds(seed, repeats):
    return random.randint(seed, np.arange(repeats), 0, -(2**63), 2**63 - 1)


def test_is_the_estimate_of_the_means_of_the_seeds(world):
    x, y = (random.sobol(seeds(5, 16)[:, None], np.arange(256), d) for d in (0, 1))
    means = ((x * y) ** 2).mean(axis=1)
    for e in (
        product.replicated(synk.arange(256), 5, 2),
        product.replicated(synk.arange(256), power=2, seed=5),
    ):
        assert e.count == 16
        assert_allclose(e.mean, means.mean(), **CLOSE)
        assert_allclose(e.stderr, means.std(ddof=1) / 4, rtol=1e-9)
    with pytest.raises(synk.ReductionError, match="of means of 256 rows .* same kind"):
        product(synk.arange(256), 6, 2) + e
    e = pair.replicated(synk.arange(256), seed=5, repeats=5, num_slices=2)
    means = np.array([(x * y).mean(axis=1), x.mean(axis=1)])[:, :5]
    assert e.count == 5
    assert_allclose(e.mean, means.mean(axis=1), **CLOSE)
    assert_allclose(e.covariance, np.cov(means), rtol=1e-8)


def test_bits_are_those_of_any_number_of_ranks(world):
    e = product.replicated(synk.arange(1024), seed=np.int64(-3), power=1, shards=64)
    alone = [
        product.as_serial(synk.arange(1024), int(seed), 1, shards=64).mean for seed in seeds(-3, 16)
    ]
    if world.device == "cpu":
        assert e.mean == synk.Estimate.from_values(alone).mean
    assert_allclose(e.mean, np.mean(alone), **CLOSE)


def test_a_number_of_rows_that_is_no_power_of_two_is_warned_of(world):
    with pytest.warns(RuntimeWarning, match=r"got 100 rows.* 1 / n .*Take 64 or 128 rows"):
        product.replicated(synk.arange(100), seed=1, power=1)


@pytest.mark.parametrize(
    ("function", "args", "options", "message"),
    [
        (circle, (synk.arange(16), 1), {"repeats": 3}, "at least 4, got 3"),
        (circle, (synk.arange(16), 1), {"repeats": 16.0}, "at least 4, got 16.0"),
        (circle, (synk.arange(16), 1.0), {}, "seed of circle.replicated must be an integer"),
        (circle, (synk.arange(16), True), {}, "seed of circle.replicated must be an integer"),
        (circle, (synk.arange(16),), {}, "is missing the argument seed"),
        (circle, (np.arange(16), 1), {}, "rows of synknumba.arange"),
        (circle, (synk.arange(16), 1), {"block": 4}, "takes no block="),
        (circle, (synk.arange(16), 1), {"batch": slice(0, 8)}, "takes no batch="),
        (circle, (synk.arange(16), 1), {"until": lambda e: True}, "takes no until="),
        (seedless, (synk.arange(16),), {}, "no parameter 'seed'; it has i"),
    ],
)
def test_refused(function, args, options, message):
    with pytest.raises(ArgumentError, match=message):
        function.replicated(*args, **options)


# ---- whether the error bars are true

RUNS = 1000
# a smooth function, one with a kink and one that jumps, of 64 points
MEANS = {"exp(x + y)": (math.e - 1) ** 2, "max(x - y, 0)": 1 / 6, "4 [x x + y y < 1]": math.pi}


@synk.expectation
def three(i, seed):
    x, y = synk.random.sobol(seed, i, 0), synk.random.sobol(seed, i, 1)
    return math.exp(x + y), max(x - y, 0.0), 4.0 * (x * x + y * y < 1.0)


def test_intervals_cover():
    """Of 1,000 intervals of 95 %, 950 ± 7 contain the mean; of those of 50 %, 500 ± 16."""
    with synk.fork(1, device="cpu"):
        runs = [three.replicated(synk.arange(64), seed=run) for run in range(RUNS)]
    means = np.array([run.mean for run in runs])
    distances = abs(means - list(MEANS.values())) / np.array([run.stderr for run in runs])
    for level in (0.5, 0.95):
        covered = (distances < stats.t.ppf((1 + level) / 2, df=15)).sum(axis=0)
        spread = math.sqrt(RUNS * level * (1 - level))
        assert (abs(covered - RUNS * level) < 3.5 * spread).all(), covered
    # unbiased: the mean of all runs, in its standard errors
    bias = (means.mean(axis=0) - list(MEANS.values())) / means.std(axis=0, ddof=1)
    assert (abs(bias) * math.sqrt(RUNS) < 4).all()


# a call on the geometric mean of a price at 8 dates, from A. Kemna and A. Vorst (1990)
PRICE, STRIKE, RATE, VOLATILITY, DATES = 100.0, 100.0, 0.05, 0.2, 8


@synk.expectation
def option(i, seed, quasi):
    step, level, total = 1.0 / DATES, math.log(PRICE), 0.0
    for date in range(DATES):
        u = synk.random.sobol(seed, i, date) if quasi else synk.random.uniform(seed, i, date)
        z = cuda.libdevice.normcdfinv(u)
        level += (RATE - 0.5 * VOLATILITY**2) * step + VOLATILITY * math.sqrt(step) * z
        total += level
    return math.exp(-RATE) * max(math.exp(total / DATES) - STRIKE, 0.0)


def closed_form():
    step, dates = 1 / DATES, np.arange(1, DATES + 1)
    mean = math.log(PRICE) + (RATE - VOLATILITY**2 / 2) * step * dates.mean()
    deviation = VOLATILITY * math.sqrt(step * (dates**2).sum()) / DATES
    d = (mean - math.log(STRIKE)) / deviation + deviation
    forward = math.exp(mean + deviation**2 / 2)
    cdf = stats.norm.cdf
    return math.exp(-RATE) * (forward * cdf(d) - STRIKE * cdf(d - deviation))


def test_an_option_has_a_tenth_of_the_error():
    with synk.fork(1, device="cpu"):
        quasi = option.replicated(synk.arange(2**14), seed=1, quasi=True)
        pseudo = option(synk.arange(2**14), seed=1, quasi=False)
    assert abs(quasi.mean - closed_form()) < 4 * quasi.stderr
    assert math.sqrt(quasi.variance) < pseudo.stderr / 10
