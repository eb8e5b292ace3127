"""The condition of `synk.tolerance`: of which estimates it holds."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

import synknumba as synk
from synknumba import Estimate


def with_error(mean, stderr, rows=100):
    """Estimate of rows with this mean and standard error."""
    half = rows // 2
    deviation = stderr * math.sqrt(rows - 1)
    return Estimate.from_values(mean + deviation * np.repeat([-1.0, 1.0], half))


@pytest.mark.parametrize("mean", [4.0, -4.0])
@pytest.mark.parametrize(
    ("limits", "largest"),
    [
        ({"relative": 0.1}, 0.4),
        ({"absolute": 0.3}, 0.3),
        ({"relative": 0.1, "absolute": 0.3}, 0.4),
        ({"relative": 0.1, "absolute": 0.5}, 0.5),
        ({"absolute": np.float32(0.25)}, 0.25),
    ],
)
def test_the_error_must_be_smaller(mean, limits, largest):
    enough = synk.tolerance(**limits)
    assert enough(with_error(mean, 0.99 * largest)) is True
    assert enough(with_error(mean, 1.01 * largest)) is False


def test_a_mean_of_0_has_no_relative_error():
    """Also where the error bar is 0, as of a rare event that has not happened."""
    nothing = Estimate.from_values(np.zeros(1000))
    assert not synk.tolerance(relative=0.5)(nothing)
    assert synk.tolerance(relative=0.5, absolute=1e-3)(nothing)
    assert synk.tolerance(relative=1e-9)(Estimate.from_values(np.ones(1000)))


def test_error_bars_of_few_rows_are_not_believed():
    enough, rows = synk.tolerance(absolute=1.0), np.random.default_rng(0).normal(size=1000)
    assert not enough(Estimate.from_values(rows[:99]))
    assert enough(Estimate.from_values(rows[:100]))
    assert not enough(Estimate.from_values(rows, block=11))  # 90 blocks
    assert enough(Estimate.from_values(rows, block=10))
    weights = np.ones(1000)
    assert enough(Estimate.from_values(rows, weights))
    weights[0] = 300.0  # of an effective size of 18
    assert not enough(Estimate.from_values(rows, weights))
    assert not enough(Estimate.from_values(rows, np.zeros(1000)))


def test_more_rows_would_not_help():
    enough = synk.tolerance(relative=1e-9)
    for value in (math.nan, math.inf, -math.inf):
        assert enough(Estimate.from_values([value, *np.arange(200.0)]))


def test_every_value_is_good_enough():
    rng, enough = np.random.default_rng(1), synk.tolerance(relative=0.1)
    good, bad = rng.normal(1.0, 0.1, 200), rng.normal(1.0, 9.0, 200)
    assert enough(Estimate.from_values(np.column_stack([good, good])))
    assert not enough(Estimate.from_values(np.column_stack([good, bad])))
    assert enough(Estimate.from_values(np.column_stack([good, np.full(200, np.nan)])))


def test_functions_of_means():
    rows = Estimate.from_values(np.random.default_rng(2).normal(4.0, 1.0, size=400))  # 4.00(5)
    assert synk.tolerance(relative=0.0256)(rows**2)
    assert not synk.tolerance(relative=0.0128)(rows**2)


@pytest.mark.parametrize("kind", [Fraction, Decimal])
def test_limits_of_other_number_types(kind):
    estimate = synk.Estimate.from_values(np.linspace(0.9, 1.1, 1000))
    largest = estimate.stderr * 1.01
    assert synk.tolerance(absolute=kind(largest))(estimate)
    assert not synk.tolerance(absolute=kind(largest / 1.02))(estimate)
    assert synk.tolerance(relative=kind(largest))(estimate)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({}, "tolerance takes relative= or absolute="),
        ({"relative": 0.0}, "relative of tolerance must be a positive, finite number, got 0.0"),
        ({"absolute": -1}, "absolute of tolerance must be"),
        ({"relative": math.nan}, "must be a positive, finite number, got nan"),
        ({"absolute": math.inf}, "got inf"),
        ({"relative": "1e-3"}, "got '1e-3'"),
        ({"relative": np.full(2, 0.1)}, "relative of tolerance must be"),
        ({"relative": True}, "got True"),
        ({"absolute": Decimal("nan")}, "got Decimal"),
        ({"rel": 0.1}, "rel"),
    ],
)
def test_tolerances_that_are_refused(limits, words):
    with pytest.raises(synk.ArgumentError, match=words):
        synk.tolerance(**limits)
    with pytest.raises(synk.ArgumentError, match="tolerance"):
        synk.tolerance(1e-3)
