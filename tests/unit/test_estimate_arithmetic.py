"""Arithmetic and formats of estimates. Expected: NumPy on transformed rows, closed forms,
repeated samples.
"""

import math
import operator
import pickle
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from synknumba import Estimate, Measurement
from synknumba._ops.derivatives import DERIVATIVES

CLOSE = {"rtol": 1e-12, "atol": 0}
ROWS = np.random.default_rng(5).normal(3.0, 1.0, size=40)
MAPS = {
    "c * e": lambda e, c: c * e,
    "e * c": lambda e, c: e * c,
    "e / c": lambda e, c: e / c,
    "-e": lambda e, c: -e,
    "e + c": lambda e, c: e + c,
    "c + e": lambda e, c: c + e,
    "e - c": lambda e, c: e - c,
    "c - e": lambda e, c: c - e,
}


def statistics(one):
    return [one.mean, one.variance, one.stderr, one.effective_size, one.count]


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize(
    "constant", [2, -0.3, Fraction(1, 3), True, np.float32(1.5), np.int64(7), np.array(4.0)]
)
@pytest.mark.parametrize("weights", [None, np.linspace(0.1, 1.0, 40)])
def test_numbers_transform_the_rows(name, constant, weights):
    found = MAPS[name](Estimate.from_values(ROWS, weights), constant)
    assert isinstance(found, Estimate)
    assert type(found.mean) is float
    want = statistics(Estimate.from_values(MAPS[name](ROWS, float(constant)), weights))
    assert_allclose(statistics(found), want, rtol=1e-11)
    parts = [
        Estimate.from_values(ROWS[cut], None if weights is None else weights[cut])
        for cut in (slice(9), slice(9, None))
    ]
    assert_allclose(statistics(sum(MAPS[name](part, constant) for part in parts)), want, rtol=1e-11)


@pytest.mark.parametrize("name", MAPS)
def test_arrays_transform_each_value(name):
    values, constant = ROWS.reshape(20, 2), np.array([2.0, -7.0])
    found = MAPS[name](Estimate.from_values(values, covariance=True), constant)
    want = MAPS[name](values, constant)
    assert_allclose(found.mean, want.mean(axis=0), **CLOSE)
    assert_allclose(found.covariance, np.cov(want, rowvar=False), rtol=1e-11)


@given(
    factor=st.floats(0.1, 10).map(lambda x: x / 3),
    shift=st.sampled_from([-1e9, -0.1, 1e3, 1e9]),
    cut=st.integers(2, 38),
)
def test_transformed_estimates_add_up_as_exactly_as_rows(factor, shift, cut):
    offset = 1e9 + ROWS  # whose means are not float64 numbers
    rows = [Fraction(float(one)) for one in offset]
    for found, exact in (
        (lambda e: e * factor, lambda v: v * Fraction(factor)),
        (lambda e: e / factor, lambda v: v / Fraction(factor)),
        (lambda e: e + shift, lambda v: v + Fraction(shift)),
    ):
        whole = found(Estimate.from_values(offset[:cut])) + found(
            Estimate.from_values(offset[cut:])
        )
        told = [exact(v) for v in rows]
        mean = sum(told) / len(told)
        assert_allclose(whole.mean, float(mean), **CLOSE)
        assert_allclose(
            whole.variance, float(sum((v - mean) ** 2 for v in told) / (len(told) - 1)), **CLOSE
        )


def test_factors_neither_overflow_nor_vanish_unless_the_result_does():
    one = Estimate.from_values([1e-120, 3e-120])
    assert_allclose((1e200 * one).variance, 2e160, **CLOSE)
    assert_allclose((one / 1e-200).variance, 2e160, **CLOSE)
    assert_allclose((one / 1e-300).mean, 2e180, **CLOSE)
    assert (1e308 * Estimate.from_values([2.0, 2.0])).mean == math.inf
    assert (0 * one).variance == 0.0


def test_nan_and_infinity_stay_in_their_value():
    one = 2 * Estimate.from_values([[1.0, math.nan, math.inf], [3.0, 1.0, 1.0]]) - 1
    assert_array_equal(one.mean, [3.0, math.nan, math.inf])
    assert_array_equal(one.variance, [8.0, math.nan, math.nan])


def test_plus_of_estimates_joins_rows_and_sum_starts_from_0():
    a, b = Estimate.from_values(ROWS[:10]), Estimate.from_values(ROWS[10:])
    assert_allclose(sum([a, b]).mean, ROWS.mean(), **CLOSE)
    assert sum([a]) is a
    assert (a + b).count == 40


A, SA, B, SB = 6.0, 0.3, -2.0, 0.1


def of(mean, stderr):
    """An estimate of two rows with these statistics."""
    return Estimate.from_values([mean - stderr, mean + stderr])


@pytest.mark.parametrize(
    ("found", "mean", "stderr"),
    [
        (lambda a, b: a - b, 8.0, math.hypot(SA, SB)),
        (lambda a, b: a * b, -12.0, 12 * math.hypot(SA / A, SB / B)),
        (lambda a, b: a / b, -3.0, 3 * math.hypot(SA / A, SB / B)),
        (lambda a, b: 1 / b, -0.5, SB / B**2),
        (lambda a, b: 2 * (a / b) + 1, -5.0, 6 * math.hypot(SA / A, SB / B)),
        (lambda a, b: 1 - (a - b) / 2, -3.0, math.hypot(SA, SB) / 2),
        (lambda a, b: 3 / (a * b), -0.25, 0.25 * math.hypot(SA / A, SB / B)),
        (lambda a, b: -(a / of(2.0, 0.2)) + b, -5.0, math.hypot(3 * math.hypot(SA / A, 0.1), SB)),
        (lambda a, b: b + a / of(2.0, 0.2), 1.0, math.hypot(3 * math.hypot(SA / A, 0.1), SB)),
        (lambda a, b: b - 1 / a, -2 - 1 / 6, math.hypot(SB, SA / 36)),
        (lambda a, b: b * (1 / a), -1 / 3, 1 / 3 * math.hypot(SA / A, SB / B)),
        (lambda a, b: b / (1 / a), -12, 12 * math.hypot(SA / A, SB / B)),
        (lambda a, b: a.propagate(lambda x, y: x + y, b), 4.0, math.hypot(SA, SB)),
        (
            lambda a, b: a.propagate(lambda x, y: x / (x + y), b),
            1.5,
            math.hypot(B * SA, A * SB) / 16,
        ),
        (lambda a, b: a.propagate(math.log), math.log(6), SA / A),
        (lambda a, b: a**2, 36.0, 2 * A * SA),
        (lambda a, b: b**3, -8.0, 3 * B**2 * SB),
        (lambda a, b: a**-0.5, A**-0.5, 0.5 * A**-1.5 * SA),
        (lambda a, b: b**0, 1.0, 0.0),
        (lambda a, b: 2**b, 0.25, math.log(2) / 4 * SB),
        (lambda a, b: np.float64(4.0) ** b, 1 / 16, math.log(4) / 16 * SB),
        (lambda a, b: a**b, 1 / 36, math.hypot(2 * SA / A, math.log(6) * SB) / 36),
        (lambda a, b: (a / b) ** 2, 9.0, 18 * math.hypot(SA / A, SB / B)),
        (lambda a, b: abs(b), 2.0, SB),
        (lambda a, b: abs(a / b) + 0, 3.0, 3 * math.hypot(SA / A, SB / B)),
        (
            lambda a, b: np.exp(-a / 2) * b,
            -2 * math.exp(-3),
            2 * math.exp(-3) * math.hypot(SA / 2, SB / B),
        ),
        (lambda a, b: np.sqrt(a / of(1.5, 0.0)), 2.0, SA / 6),
    ],
)
def test_errors_of_means_of_different_rows_are_propagated(found, mean, stderr):
    got = found(of(A, SA), of(B, SB))
    assert isinstance(got, Measurement)
    assert type(got.mean) is type(got.stderr) is float
    assert_allclose(got.mean, mean, **CLOSE)
    assert_allclose(got.stderr, stderr, rtol=1e-6)  # numerical derivatives


@pytest.mark.parametrize("ufunc", DERIVATIVES, ids=lambda one: one.__name__)
def test_errors_are_propagated_through_functions_of_numpy(ufunc):
    e = of(0.4, 1e-3)
    found, numerical = ufunc(e), e.propagate(ufunc)
    assert isinstance(found, Measurement)
    assert type(found.mean) is type(found.stderr) is float
    assert found.mean == numerical.mean == ufunc(e.mean)
    assert_allclose(found.stderr, numerical.stderr, rtol=1e-5)
    several = ufunc(Estimate.from_values([[0.399, 0.5], [0.401, 0.7]]))
    assert_allclose((several.mean[0], several.stderr[0]), (found.mean, found.stderr), rtol=1e-9)
    with pytest.raises(synk.ReductionError, match="same rows"):
        found * e


def test_powers_and_functions_at_the_edge_of_where_they_are_defined():
    zero, constant = of(0.0, 0.1), of(-2.0, 0.0)
    assert ((zero**2).mean, (zero**2).stderr) == (0.0, 0.0)
    assert np.sqrt(zero).stderr == math.inf
    assert math.isnan(abs(zero).stderr)
    assert math.isnan(np.log(-(of(2.0, 0.1) / 1)).mean)
    assert ((constant**3).mean, (constant**3).stderr) == (-8.0, 0.0)
    assert_array_equal(
        (Estimate.from_values([[1.0, 3.0], [3.0, 3.0]]) ** np.array([2.0, 1.0])).mean, [4.0, 3.0]
    )


def test_signs_and_numpy_operators_keep_the_rows():
    e = Estimate.from_values(ROWS)
    for found, rows in (
        (+e, ROWS),
        (np.negative(e), -ROWS),
        (np.add(1, e), 1 + ROWS),
        (np.subtract(e, 1), ROWS - 1),
        (np.float32(2) - e, 2 - ROWS),
        (np.array(3.0) * e, 3 * ROWS),
        (np.divide(e, 3), ROWS / 3),
    ):
        assert_allclose(statistics(found), statistics(Estimate.from_values(rows)), rtol=1e-11)
    assert_array_equal(
        [np.float64(e.mean) == e, np.equal(e, e), e != np.float64(1.0), np.ones(2) == e],
        [False, True, True, False],
    )


@pytest.mark.parametrize(
    ("misuse", "words"),
    [
        (
            lambda e, k: np.gcd(e, 2),
            "np.gcd takes no Estimate: write a.propagate(lambda mean: np.gcd(mean, x)), which",
        ),
        (
            lambda e, k: np.hypot(e, of(1.0, 0.1)),
            "np.hypot takes no Estimate: write a.propagate(np.hypot, b), which",
        ),
        (lambda e, k: np.rint(e), "np.rint takes no Estimate: write a.propagate(np.rint), which"),
        (
            lambda e, k: np.maximum(0, k),
            "np.maximum takes no Estimate: write a.propagate(lambda mean: np.maximum(x, mean[0])), ",  # noqa: E501
        ),
        (
            lambda e, k: np.arctan2(1 / e, 1.0),
            "np.arctan2 takes no Measurement: write one function of the means of estimates",
        ),
        (
            lambda e, k: np.isfinite(e),
            "np.isfinite takes no Estimate: pass its mean, as in np.isfinite(a.mean)",
        ),
        (
            lambda e, k: np.float64(2.0) < e,
            "np.less takes no Estimate: pass its mean, as in np.less(a.mean, x)",
        ),
        (
            lambda e, k: np.exp(e, out=np.zeros(())),
            "np.exp takes no Estimate: pass its mean, as in np.exp(a.mean)",
        ),
        (lambda e, k: np.add.reduce(e), "np.add.reduce is for arrays, and this is one Estimate"),
        (lambda e, k: np.ones(2).__imul__(k), "np.multiply takes no Estimate: pass its mean"),
    ],
    ids=map(str, range(10)),
)
def test_other_functions_of_numpy_name_propagate(misuse, words):
    with pytest.raises(synk.ArgumentError, match=f"^{re.escape(words)}"):
        misuse(Estimate.from_values([1.0, 2.0]), Estimate.from_values([[1.0, 2.0], [2.0, 3.0]]))


@pytest.mark.parametrize(
    "misuse",
    [
        lambda a, b: a / a,
        lambda a, b: a * a,
        lambda a, b: a - 2 * a,
        lambda a, b: (a / b) * b,
        lambda a, b: (a - b) / (1 / a),
        lambda a, b: a / (a + b),
        lambda a, b: b / (a + b),
        lambda a, b: pickle.loads(pickle.dumps(a)) / a,
        lambda a, b: a.propagate(lambda x, y: x + y, -a),
    ],
    ids=map(str, range(9)),
)
def test_the_same_rows_twice_are_refused(misuse):
    with pytest.raises(synk.ReductionError, match="same rows"):
        misuse(of(A, SA), of(B, SB))


@pytest.mark.parametrize(
    "misuse",
    [
        lambda a, b: a + a,
        lambda a, b: sum([a] * 100),
        lambda a, b: a + 2 * a,
        lambda a, b: (a + b) + b,
        lambda a, b: a + pickle.loads(pickle.dumps(a)),
    ],
    ids=map(str, range(5)),
)
def test_rows_are_not_counted_twice(misuse):
    with pytest.raises(synk.ReductionError, match="same rows occur in both"):
        misuse(Estimate.from_values(ROWS[:10]), Estimate.from_values(ROWS[10:]))


def test_equal_values_of_different_rows_are_pooled():
    both = Estimate.from_values(ROWS) + Estimate.from_values(ROWS)
    assert_allclose(
        (both.mean, both.variance, both.count),
        (ROWS.mean(), np.var([ROWS, ROWS], ddof=1), 80),
        **CLOSE,
    )


def test_long_sums_keep_few_identities():
    assert len(sum(of(1.0, 0.1) for _ in range(100))._rows) <= 16


def test_several_values_are_combined_elementwise():
    one, other = (
        Estimate.from_values([[1.0, 10.0], [3.0, 30.0]]),
        Estimate.from_values([[4.0, 0.0], [6.0, 0.0]]),
    )
    ratio = one / other
    assert_array_equal(ratio.mean, [0.4, math.inf])
    assert_allclose(ratio.stderr[0], 0.4 * math.hypot(1 / 2, 1 / 5), **CLOSE)
    assert_allclose(
        (one / of(2.0, 0.2)).stderr, [math.hypot(0.5, 0.1), 10 * math.hypot(0.5, 0.1)], **CLOSE
    )
    assert_allclose((np.array([1.0, 2.0]) * (one - other)).mean, [-3.0, 40.0], **CLOSE)
    with pytest.raises(synk.ReductionError, match=r"\(2,\) and \(3,\)"):
        one - Estimate.from_values([[1.0, 2.0, 3.0]])
    with pytest.raises(synk.ReductionError, match=r"\(2, 1\)"):
        np.ones((2, 1)) * (1 / of(2.0, 0.2))


def correlated(seed, n=2000):
    draws = np.random.default_rng(seed).normal(size=(n, 2))
    return np.stack(
        [5 + draws[:, 0], 2 + 0.5 * (0.9 * draws[:, 0] + math.sqrt(1 - 0.81) * draws[:, 1])], axis=1
    )


def test_ratio_of_correlated_values_has_the_error_that_repeated_samples_have():
    ratios = [
        Estimate.from_values(correlated(seed), covariance=True).propagate(lambda m: m[0] / m[1])
        for seed in range(400)
    ]
    spread = np.std([one.mean for one in ratios], ddof=1)
    assert abs(spread / np.mean([one.stderr for one in ratios]) - 1) < 4 / math.sqrt(2 * 399)
    values = correlated(0)
    # W. Cochran, Sampling Techniques, chapter 6
    linear = (values[:, 0] - ratios[0].mean * values[:, 1]) / values[:, 1].mean()
    assert_allclose(ratios[0].stderr, linear.std(ddof=1) / math.sqrt(2000), rtol=1e-6)


def test_a_given_gradient_is_used_and_equals_the_numerical_one():
    e, other = Estimate.from_values(correlated(1), covariance=True), of(3.0, 0.01)
    by_hand = e.propagate(
        lambda m, x: m[0] / m[1] * x,
        other,
        gradient=lambda m, x: (np.array([x / m[1], -x * m[0] / m[1] ** 2]), m[0] / m[1]),
    )
    mean, cov = correlated(1).mean(axis=0), np.cov(correlated(1), rowvar=False) / 2000
    g = np.array([3 / mean[1], -3 * mean[0] / mean[1] ** 2])
    assert_allclose(
        by_hand.stderr, math.sqrt(g @ cov @ g + (0.01 * mean[0] / mean[1]) ** 2), **CLOSE
    )
    assert_allclose(
        e.propagate(lambda m, x: m[0] / m[1] * x, other).stderr, by_hand.stderr, rtol=1e-6
    )


@given(mean=st.floats(0.1, 1e6), relative=st.floats(1e-8, 1e-2))
def test_numerical_derivatives_are_accurate_for_small_and_large_errors(mean, relative):
    stderr = relative * mean
    one = of(mean, stderr)
    assert_allclose(one.propagate(lambda x: x**3).stderr, 3 * one.mean**2 * one.stderr, rtol=1e-4)


def test_propagation_of_undefined_errors_is_undefined():
    assert math.isnan(Estimate.from_values([2.0]).propagate(lambda x: x * x).stderr)
    assert Estimate.from_values([2.0, 2.0]).propagate(lambda x: x * x).stderr == 0.0
    assert math.isnan((Estimate.from_values([2.0]) / of(1.0, 0.1)).stderr)
    assert math.isnan(
        Estimate.from_values([[2.0, 1.0]], covariance=True).propagate(lambda m: m[0]).stderr
    )
    infinite = Estimate.from_values([[math.inf, 1.0], [1.0, 2.0]], covariance=True)
    assert math.isnan(
        infinite.propagate(lambda m: m[0] + m[1], gradient=lambda m: [1.0, 1.0]).stderr
    )


def test_propagated_errors_may_be_huge():
    assert_allclose(of(1.0, 0.5).propagate(lambda x: 1e200 * x).stderr, 5e199, rtol=1e-6)


@pytest.mark.parametrize(
    ("misuse", "error", "words"),
    [
        (lambda e, v: e / 0, synk.ReductionError, "by 0"),
        (lambda e, v: v / np.array([1.0, 0.0]), synk.ReductionError, "by 0"),
        (lambda e, v: e * math.inf, synk.ReductionError, "finite"),
        (lambda e, v: e * np.ones(2), synk.ReductionError, r"shape \(\), got"),
        (lambda e, v: v * np.ones(3), synk.ReductionError, r"\(\) or \(2,\)"),
        (lambda e, v: float(v), synk.ArgumentError, "2 values"),
        (lambda e, v: v.propagate(lambda m: m[0]), synk.ReductionError, "covariance=True"),
        (
            lambda e, v: Estimate.from_values([[1.0, 2.0]] * 3, [1, 2, 3]).propagate(
                lambda m: m[0]
            ),
            synk.ReductionError,
            "not implemented for weights",
        ),
        (lambda e, v: e.propagate(lambda x: [x, x]), synk.ReductionError, "one real number"),
        (lambda e, v: e.propagate(lambda x: 1j), synk.ReductionError, "one real number"),
        (lambda e, v: e.propagate(lambda x, y: x, 2.0), synk.ArgumentError, "float"),
        (
            lambda e, v: e.propagate(lambda x: x, gradient=lambda x: [1.0]),
            synk.ReductionError,
            "shape",
        ),
        (
            lambda e, v: e.propagate(lambda x, y: x, of(1, 1), gradient=lambda x, y: 1.0),
            synk.ReductionError,
            "tuple of 2",
        ),
    ],
    ids=map(str, range(13)),
)
def test_refuses(misuse, error, words):
    with pytest.raises(error, match=words):
        misuse(Estimate.from_values([1.0, 2.0]), Estimate.from_values([[1.0, 2.0], [2.0, 3.0]]))


def test_formats():
    one, several = (
        Estimate.from_values([1.0, 2.0, 4.0]),
        Estimate.from_values([[1.0, 10.0], [2.0, 30.0], [4.0, 20.0]]),
    )
    assert f"{one}" == str(one) == "2.33(88)"
    assert f"{one:>10}" == "  2.33(88)"
    assert f"{one:.3f}" == "2.333 ± 0.882"
    assert f"{one:9.2e}" == " 2.33e+00 ±  8.82e-01"
    assert f"{several:.1f}" == "[2.3 ± 0.9, 20.0 ± 5.8]"
    assert f"{several}" == "[2.33(88), 20.0(5.8)]"
    half = 1 / one
    assert (f"{half}", f"{half:.3f}", float(half)) == ("0.43(16)", "0.429 ± 0.162", half.mean)
    assert repr(half).startswith("Measurement(mean=0.428571428571428")
    assert float(one) == one.mean
    with pytest.raises(ValueError, match="format"):
        f"{one:d}"


def test_measurements_pickle_and_know_their_rows():
    a, b = of(A, SA), of(B, SB)
    copy = pickle.loads(pickle.dumps(a / b))
    assert (copy.mean, copy.stderr) == ((a / b).mean, (a / b).stderr)
    with pytest.raises(synk.ReductionError, match="same rows"):
        copy * b


@pytest.mark.parametrize("op", [operator.mul, operator.sub])
def test_numpy_scalars_and_arrays_leave_operations_to_the_estimate(op):
    e = Estimate.from_values([1.0, 2.0])
    assert isinstance(op(np.float64(2.0), e), Estimate)
    assert isinstance(op(np.float64(2.0), 1 / e), Measurement)


@pytest.mark.parametrize(
    "function", [np.sum, np.max, np.mean, np.std, np.round, np.median, np.cumsum, np.sort]
)
def test_functions_of_arrays(function):
    with pytest.raises(
        synk.ArgumentError, match=r"is for arrays, and this is one Estimate.*a\.mean, a\.stderr"
    ):
        function(synk.Estimate.from_values([1.0, 2.0]))
