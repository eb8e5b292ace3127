"""Control variates and the jackknife. Expected: least squares and leave-one-out by NumPy, closed
forms, repeated samples.
"""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

import synknumba as synk
from synknumba import Estimate

CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def least_squares(v, c, exact):
    """Intercepts of a regression on c − exact, and its residual variance."""
    design = np.column_stack([np.ones(len(c)), c - exact])
    solution, _, _, _ = np.linalg.lstsq(design, v, rcond=None)
    residual = v - design @ solution
    return solution[0], residual.T @ residual / (len(c) - design.shape[1])


def sample(values, controls, rows=200, seed=1):
    rng = np.random.default_rng(seed)
    c = rng.normal(size=(rows, controls)) @ rng.normal(size=(controls, controls))
    v = c @ rng.normal(size=(controls, values)) + rng.normal(size=(rows, values)) + 3.0
    return v, c


@pytest.mark.parametrize("controls", [1, 3])
@pytest.mark.parametrize("values", [1, 2])
def test_a_control_is_a_regression(values, controls):
    v, c = sample(values, controls)
    exact = np.linspace(-0.01, 0.01, controls)
    estimate = Estimate.from_values(np.column_stack([v, c]), covariance=True).control(exact)
    mean, covariance = least_squares(v, c, exact)
    assert_allclose(np.ravel(estimate.mean), mean, **CLOSE)
    assert_allclose(np.ravel(estimate.variance), np.diag(covariance), **CLOSE)
    assert estimate.count == len(v)
    if values == 1:
        assert isinstance(estimate.mean, float)
    else:
        assert_allclose(estimate.covariance, covariance, **CLOSE)


def test_means_of_blocks_are_rows():
    v, c = sample(1, 1, rows=640)
    rows = np.column_stack([v, c])
    blocks = rows.reshape(-1, 16, 2).mean(axis=1)
    estimate = Estimate.from_values(rows, covariance=True, block=16).control(0.0)
    expected = Estimate.from_values(blocks, covariance=True).control(0.0)
    assert_allclose(estimate.mean, expected.mean, **CLOSE)
    assert_allclose(estimate.stderr, expected.stderr, **CLOSE)
    assert estimate.count == 40


def test_large_values_keep_their_digits():
    """Near 10^9, where numbers have steps of 10^-7."""
    far = np.random.default_rng(2).normal(size=1000) + 1e9
    near = far - 1e9
    of_near = Estimate.from_values(np.column_stack([near, far]), covariance=True)
    assert abs(of_near.control(1e9).mean) < 1e-12
    of_far = Estimate.from_values(np.column_stack([far, near]), covariance=True)
    assert abs((of_far.control(0.0) - 1e9).mean) < 1e-12


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_left_of_a_linear_function(seed):
    c = np.random.default_rng(seed).normal(size=100)
    estimate = Estimate.from_values(np.column_stack([3.0 * c + 1.0, c]), covariance=True)
    assert_allclose(estimate.control(0.0).mean, 1.0, rtol=1e-14)
    assert 0.0 <= estimate.control(0.0).stderr < 1e-8


@pytest.mark.parametrize("scale", [1e-150, 1e150])
def test_controls_of_any_unit(scale):
    v, c = sample(1, 1)
    plain = Estimate.from_values(np.column_stack([v, c]), covariance=True).control(0.01)
    other = Estimate.from_values(np.column_stack([v, c * scale]), covariance=True)
    assert_allclose(other.control(0.01 * scale).mean, plain.mean, rtol=1e-12)
    assert_allclose(other.control(0.01 * scale).stderr, plain.stderr, rtol=1e-10)


def test_controls_that_tell_nothing_more_change_nothing():
    v, c = sample(1, 1)
    plain = Estimate.from_values(np.column_stack([v, c]), covariance=True).control(0.0)
    constant = np.full_like(c, 0.1 + 0.2)
    for more, exact in ((constant, 0.3), (3.0 * c, 0.0), (c, 0.0)):
        estimate = Estimate.from_values(np.column_stack([v, c, more]), covariance=True)
        assert_allclose(estimate.control([0.0, exact]).mean, plain.mean, rtol=1e-9)
        assert_allclose(estimate.control([0.0, exact]).stderr, plain.stderr, rtol=0.01)


def test_what_is_not_finite_is_kept_to_its_value():
    v, c = sample(2, 1)
    v[3, 0] = np.nan
    estimate = Estimate.from_values(np.column_stack([v, c]), covariance=True).control(0.0)
    assert np.isnan([estimate.mean[0], estimate.stderr[0]]).all()
    assert np.isfinite([estimate.mean[1], estimate.stderr[1]]).all()
    v, c = sample(2, 3)
    c[5] = np.inf
    estimate = Estimate.from_values(np.column_stack([v, c]), covariance=True).control(np.zeros(3))
    assert np.isnan([estimate.mean, estimate.stderr]).all()


def test_means_of_few_rows_may_be_far_from_the_exact_ones():
    rows = [[1.0, 1.0], [2.0, 2.5], [3.0, 3.0], [4.0, 4.0]]
    assert Estimate.from_values(rows, covariance=True).control(100.0).mean > 90.0


def test_too_few_rows_have_no_error():
    v, c = sample(1, 2, rows=3)
    estimate = Estimate.from_values(np.column_stack([v, c]), covariance=True).control([0.0, 0.0])
    assert math.isnan(estimate.stderr)


def test_the_factor_is_that_of_the_closed_form():
    """∫ exp(x) dx by the control x: 1 / (1 − ρ²), with ρ² = 12 (1 − (e − 1) / 2)² / ((e² − 1) / 2 −
    (e − 1)²).
    """
    x = np.random.default_rng(3).random(100_000)
    rows = Estimate.from_values(np.column_stack([np.exp(x), x]), covariance=True)
    estimate, e = rows.control(0.5), math.e
    variance = (e**2 - 1) / 2 - (e - 1) ** 2
    covariance = 1 - (e - 1) / 2
    assert_allclose(estimate.variance, variance - 12 * covariance**2, rtol=0.02)
    assert abs(estimate.mean - (e - 1)) < 4 * estimate.stderr


def test_the_error_bar_covers():
    rng, misses = np.random.default_rng(4), 0
    for _ in range(1000):
        x = rng.random(64)
        rows = Estimate.from_values(np.column_stack([np.exp(x), x]), covariance=True)
        estimate = rows.control(0.5)
        misses += abs(estimate.mean - (math.e - 1)) > 1.999 * estimate.stderr  # t of 62
    assert 0.03 < misses / 1000 < 0.07


def test_results_are_estimates_of_the_same_rows():
    a = Estimate.from_values(np.column_stack(sample(1, 1, seed=5)), covariance=True)
    b = Estimate.from_values(np.column_stack(sample(1, 1, seed=6)), covariance=True)
    both = a.control(0.0) + b.control(0.0)
    assert_allclose(both.mean, (a.control(0.0).mean + b.control(0.0).mean) / 2, rtol=1e-12)
    with pytest.raises(synk.ReductionError, match="same rows"):
        a.control(0.0) / a.control(0.1)


PAIR = Estimate.from_values(np.column_stack(sample(1, 1)), covariance=True)


@pytest.mark.parametrize(
    ("estimate", "exact", "words"),
    [
        (Estimate.from_values(np.ones((3, 2))), 1.0, "covariance=True"),
        (PAIR, [0.0, 0.0], "fewer than the 2 values"),
        (PAIR, [], "fewer than the 2 values"),
        (PAIR, [[0.0]], "fewer than the 2 values"),
        (PAIR, math.nan, "finite numbers"),
        (PAIR, "0", "exact must be real numbers"),
        (PAIR, 1j, "exact must be real numbers"),
        (PAIR, None, "exact must be real numbers"),
        (PAIR, 2.0, "control got 2 as an exact mean, but that of the rows is"),
    ],
)
def test_controls_that_are_refused(estimate, exact, words):
    with pytest.raises(synk.ReductionError, match=words):
        estimate.control(exact)


# ---- jackknife


def test_the_jackknife_of_single_rows():
    """That of the variance with n in the denominator is the unbiased one."""
    x = np.random.default_rng(7).exponential(size=30)
    parts = [Estimate.from_values([value]) for value in x]
    of_mean = Estimate.jackknife(lambda e: e.mean, iter(parts))
    assert_allclose([of_mean.mean, of_mean.stderr], [x.mean(), x.std(ddof=1) / 30**0.5], **CLOSE)
    plug_in = Estimate.jackknife(lambda e: e.variance * (e.count - 1) / e.count, parts)
    assert_allclose(plug_in.mean, x.var(ddof=1), **CLOSE)
    ratio = Estimate.jackknife(lambda e: 1 / e.mean, parts)
    left_out = 29 / (x.sum() - x)
    assert_allclose(ratio.mean, 30 / x.mean() - 29 * left_out.mean(), **CLOSE)
    assert_allclose(ratio.stderr, math.sqrt(29) * left_out.std(), **CLOSE)


def test_the_jackknife_takes_the_bias_of_a_control():
    """For c of an exponential distribution and v = c², the bias is −E[ε (c − 1)²] / n = −4 / n,
    with ε = v − 2 − 4 (c − 1) of variance 4.
    """
    rng, biased, unbiased = np.random.default_rng(8), [], []
    for _ in range(400):
        c = rng.exponential(size=(10, 4))
        parts = [
            Estimate.from_values(np.column_stack([part**2, part]), covariance=True) for part in c
        ]
        biased.append(sum(parts).control(1.0).mean - 2)
        unbiased.append(Estimate.jackknife(lambda e: e.control(1.0).mean, parts).mean - 2)
    error = 2 / math.sqrt(40 * 400)
    assert abs(np.mean(biased) + 4 / 40) < 3 * error
    assert abs(np.mean(biased)) > 4 * error
    assert abs(np.mean(unbiased)) < 3 * error


def test_the_jackknife_of_weighted_means():
    values, weights = np.random.default_rng(9).exponential(size=(2, 8, 25))
    parts = [*map(Estimate.from_values, values, weights)]
    rests = [np.delete(np.arange(8), g) for g in range(8)]
    left_out = [np.average(values[rest], weights=weights[rest]) for rest in rests]
    measured = Estimate.jackknife(lambda e: e.mean, parts)
    expected = 8 * np.average(values, weights=weights) - 7 * np.mean(left_out)
    assert_allclose(
        [measured.mean, measured.stderr], [expected, 7**0.5 * np.std(left_out)], **CLOSE
    )


def test_the_jackknife_of_several_numbers():
    parts = [Estimate.from_values(np.random.default_rng(i).normal(size=(9, 2))) for i in range(5)]
    measured = Estimate.jackknife(lambda e: e.mean, parts)
    assert_allclose(measured.mean, sum(parts).mean, **CLOSE)
    assert measured.stderr.shape == (2,)
    with pytest.raises(synk.ReductionError, match="same rows"):
        measured * parts[0]


@pytest.mark.parametrize(
    ("function", "parts", "words"),
    [
        (lambda e: e.mean, [PAIR], "two or more estimates"),
        (lambda e: e.mean, [], "two or more estimates"),
        (lambda e: e.mean, [PAIR, 3.0], "two or more estimates"),
        (lambda e: e.mean, [PAIR, Estimate.from_values([1.0])], "equally many rows"),
        (lambda e: e.mean, [PAIR, PAIR], "same rows occur in both"),
        (lambda e: e, [*map(Estimate.from_values, ([1.0], [2.0]))], "must return real numbers"),
    ],
)
def test_jackknives_that_are_refused(function, parts, words):
    with pytest.raises(synk.ReductionError, match=words):
        Estimate.jackknife(function, parts)
