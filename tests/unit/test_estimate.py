"""Estimates equal exact arithmetic and NumPy, however the rows are parted; and are written as
physicists write them.
"""

import math
import operator
import pickle
from fractions import Fraction
from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from synknumba._errors import ArgumentError, ReductionError
from synknumba._ops.notation import concise
from synknumba._rowwise.estimate import Estimate
from synknumba._rowwise.moments import Columns, Moments, merge

CLOSE = {"rtol": 1e-12, "atol": 0}


def exact(values):
    """Mean and unbiased variance, in fractions."""
    told = [Fraction(float(value)) for value in values]
    mean = sum(told) / len(told)
    return float(mean), float(sum((value - mean) ** 2 for value in told) / (len(told) - 1))


def rows(kind, n):
    noise = np.random.default_rng(n).normal(size=n)
    return {
        "noise": noise,
        "offset": 1e9 + noise,
        "constant": np.full(n, 0.1),
        "outlier": np.append(1e9, noise[1:]),
    }[kind]


def parts_of(values, sizes, **options):
    cuts = np.cumsum([min(size, len(values)) for size in sizes]) % len(values)
    return [
        Estimate.from_values(part, **options)
        for part in np.split(values, np.unique(cuts))
        if len(part)
    ]


@pytest.mark.parametrize("kind", ["noise", "offset", "constant", "outlier"])
@given(n=st.integers(2, 60), sizes=st.lists(st.integers(1, 20), max_size=5))
def test_parts_add_up_to_the_exact_mean_and_variance(kind, n, sizes):
    values = rows(kind, n)
    mean, variance = exact(values)
    whole = reduce(add, parts_of(values, sizes))
    assert_allclose(whole.mean, mean, **CLOSE)
    assert_allclose(whole.variance, variance, **CLOSE)
    assert_allclose(whole.stderr, math.sqrt(variance / n), **CLOSE)
    assert whole.count == n


def test_constant_rows_have_no_variance():
    whole = sum(Estimate.from_values([0.1] * n) for n in (3, 5, 7))
    assert (whole.mean, whole.variance, whole.stderr) == (0.1, 0.0, 0.0)


def test_one_row_has_no_error_bar():
    one = Estimate.from_values([2.5])
    assert one.mean == 2.5
    assert math.isnan(one.variance)
    assert math.isnan(one.stderr)
    assert (one + Estimate.from_values([3.5])).variance == 0.5


def test_covariance_is_numpys():
    values = np.random.default_rng(0).normal(size=(50, 3)) + np.array([0, 1e6, -5])
    whole = sum(parts_of(values, [7, 20], covariance=True))
    assert_allclose(whole.covariance, np.cov(values, rowvar=False), rtol=1e-9)
    assert_allclose(whole.variance, np.var(values, axis=0, ddof=1), **CLOSE)
    assert_allclose(whole.mean, values.mean(axis=0), **CLOSE)


def weighted_reference(values, weights):
    """Self-normalised mean, variance for reliability weights, standard error by the delta
    method, effective size.
    """
    v, w = [Fraction(float(x)) for x in values], [Fraction(float(x)) for x in weights]
    n, total, square = len(v), sum(w), sum(x * x for x in w)
    mean = sum(x * y for x, y in zip(w, v, strict=True)) / total
    variance = sum(x * (y - mean) ** 2 for x, y in zip(w, v, strict=True)) / (
        total - square / total
    )
    spread = sum(x * x * (y - mean) ** 2 for x, y in zip(w, v, strict=True)) * Fraction(n, n - 1)
    return (
        float(mean),
        float(variance),
        math.sqrt(spread) / float(total),
        float(total * total / square),
    )


@pytest.mark.parametrize("kind", ["noise", "offset", "outlier"])
@given(n=st.integers(3, 50), cut=st.integers(1, 49))
def test_weighted_parts_add_up(kind, n, cut):
    values, weights = rows(kind, n), np.random.default_rng(n).random(n)
    weights[n // 2] = 0.0
    cut = min(cut, n - 1)
    whole = Estimate.from_values(values[:cut], weights[:cut]) + Estimate.from_values(
        values[cut:], weights[cut:]
    )
    told = (whole.mean, whole.variance, whole.stderr, whole.effective_size)
    assert_allclose(told, weighted_reference(values, weights), rtol=1e-11)
    assert whole.count == n


def test_equal_weights_are_none():
    values = rows("noise", 20)
    plain, weighted = Estimate.from_values(values), Estimate.from_values(values, np.full(20, 0.3))
    for name in ("mean", "variance", "stderr", "effective_size"):
        assert_allclose(getattr(weighted, name), getattr(plain, name), **CLOSE)


def test_weights_of_one_row_only_say_nothing_of_the_error():
    lone = Estimate.from_values([1.0, 2.0, 3.0], [0.0, 0.1, 0.0])
    assert lone.mean == 2.0
    assert math.isnan(lone.variance)
    assert math.isnan(lone.stderr)
    assert math.isnan(Estimate.from_values([1.0, 2.0], [0.0, 0.0]).mean)
    assert (Estimate.from_values([7.0], [0.0]) + lone).mean == 2.0


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([1.0, math.inf, 2.0], math.inf),
        ([math.inf, math.inf], math.inf),
        ([-math.inf, 1.0], -math.inf),
        ([math.inf, 1.0, -math.inf], math.nan),
        ([1.0, math.nan, math.inf], math.nan),
    ],
)
def test_infinite_values_make_the_mean_that_a_sum_makes(values, mean):
    for whole in (
        Estimate.from_values(values),
        sum(Estimate.from_values([value]) for value in values),
    ):
        assert_array_equal(whole.mean, mean)
        assert math.isnan(whole.variance)


HUGE = {
    "signs": [1e308, -1e308] * 3,
    "alike": [1.5e308] * 7,
    "greatest": [np.finfo(float).max] * 5,
    "uneven": [1.5e308, -1.5e308, 1.5e308, -1.5e308, 1.5e308],
    "mixed": [5e307, -1e308, 1.7e308, 1.7e308, 1.0, -1e200],
    "squares": [1e155, -3e155, 2e154],
    "sums of squares": [1e153, -1e153] * 500,
}


@pytest.mark.parametrize("name", HUGE)
def test_means_of_huge_values_are_right_and_variances_overflow_only_if_they_must(name):
    values = np.array(HUGE[name])
    told = [Fraction(value) for value in HUGE[name]]
    mean = sum(told) / len(told)
    squares = sum((value - mean) ** 2 for value in told)
    wholes = [
        Estimate.from_values(values),
        sum(Estimate.from_values(values[j : j + 1]) for j in range(len(values))),
    ]
    wholes += [
        Estimate.from_values(values[:cut]) + Estimate.from_values(values[cut:]) for cut in (1, 2)
    ]
    weights = np.full(len(values), 0.25)
    wholes += [
        Estimate.from_values(values[:2], weights[:2])
        + Estimate.from_values(values[2:], weights[2:])
    ]
    for whole in wholes:
        assert abs(Fraction(whole.mean) - mean) <= Fraction(max(map(abs, told))) * Fraction(1e-14)
        assert whole.variance == (0.0 if squares == 0 else math.inf)
    both = np.stack([values, np.arange(len(values))], axis=1)
    for whole in (
        Estimate.from_values(both),
        Estimate.from_values(both[:2]) + Estimate.from_values(both[2:]),
    ):
        assert abs(Fraction(whole.mean[0]) - mean) <= Fraction(max(map(abs, told))) * Fraction(
            1e-14
        )
        assert_allclose(
            [whole.mean[1], whole.variance[1]], [both[:, 1].mean(), both[:, 1].var(ddof=1)], **CLOSE
        )


def test_covariance_with_huge_values():
    values = np.array([[1e300, 1.0], [-1e300, 3.0], [1e299, -5.0], [3e299, 0.5]])
    told = [[Fraction(value) for value in row] for row in values.tolist()]
    means = [sum(row[k] for row in told) / 4 for k in range(2)]
    mixed = float(sum((row[0] - means[0]) * (row[1] - means[1]) for row in told) / 3)
    for whole in (
        Estimate.from_values(values, covariance=True),
        sum(Estimate.from_values(values[j : j + 1], covariance=True) for j in range(4)),
    ):
        assert_allclose(
            whole.covariance, [[math.inf, mixed], [mixed, np.var(values[:, 1], ddof=1)]], **CLOSE
        )


@pytest.mark.parametrize("power", [-1060, -1020, -570, -538, -300, -20, 300, 530, 1000, 1020])
@pytest.mark.parametrize("cut", [None, 1, 7])
def test_weights_may_be_of_any_size(power, cut):
    values, weights = (
        rows("offset", 20),
        np.ldexp(np.random.default_rng(3).integers(1, 9, 20), 0 if power > 0 else 1),
    )
    scaled = np.ldexp(weights / 16, power)
    # the same weights, but for a power of two
    assert (np.ldexp(scaled, -power) == weights / 16).all()
    whole = Estimate.from_values(values, scaled)
    if cut is not None:
        whole = Estimate.from_values(values[:cut], scaled[:cut]) + Estimate.from_values(
            values[cut:], scaled[cut:]
        )
    told = (whole.mean, whole.variance, whole.stderr, whole.effective_size)
    assert_allclose(told, weighted_reference(values, weights), rtol=1e-11)


def test_weights_of_very_different_sizes():
    values, weights = (
        rows("noise", 8),
        np.array([1e-300, 3e-300, 0.0, 1e120, 2e120, 1.0, 5e119, 1e-200]),
    )
    want = weighted_reference(values, weights)
    parts = [Estimate.from_values(values[j : j + 1], weights[j : j + 1]) for j in range(8)]
    for whole in (Estimate.from_values(values, weights), sum(parts), sum(parts[::-1])):
        assert_allclose(
            (whole.mean, whole.variance, whole.stderr, whole.effective_size), want, rtol=1e-11
        )


@given(
    n=st.integers(2, 300),
    decades=st.integers(1, 20),
    cuts=st.lists(st.integers(1, 299), max_size=3),
    seed=st.integers(0, 10**6),
)
def test_light_rows_of_large_values_hide_no_heavy_ones(n, decades, cuts, seed):
    """Values about inverse to the weights, so that each row has a share in the mean."""
    rng = np.random.default_rng(seed)
    weights = 10.0 ** rng.uniform(-decades, decades, n)
    values = rng.normal(size=n) / weights
    mean, variance, stderr, effective = weighted_reference(values, weights)
    share = np.average(np.abs(values), weights=weights)
    cuts = sorted(cut for cut in cuts if cut < n)
    pieces = zip(np.split(values, cuts), np.split(weights, cuts), strict=True)
    parts = [Estimate.from_values(v, w) for v, w in pieces if len(v)]
    for whole in (Estimate.from_values(values, weights), reduce(add, parts)):
        assert abs(whole.mean - mean) <= 1e-13 * share
        assert_allclose(whole.effective_size, effective, rtol=1e-12)
        if effective > 1 + 1e-9:  # else the variance is over a difference of nearly equal numbers
            assert_allclose([whole.variance, whole.stderr], [variance, stderr], rtol=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rows_of_weight_0_are_not_left_out(bad):
    together = Estimate.from_values([bad, 1.0, 2.0], [0.0, 1.0, 1.0])
    one, others = Estimate.from_values([bad], [0.0]), Estimate.from_values([1.0, 2.0], [1.0, 1.0])
    for found in (
        together,
        one,
        one + others,
        others + one,
        one + Estimate.from_values([bad], [0.0]) + others,
    ):
        assert math.isnan(found.mean)
        assert math.isnan(found.variance)
    assert (others + Estimate.from_values([7.0], [0.0])).mean == 1.5


def test_nan_concerns_its_own_value_only():
    first, second = (
        Estimate.from_values([[1.0, math.nan], [3.0, 1.0]]),
        Estimate.from_values([[5.0, 1.0]]),
    )
    assert_array_equal((first + second).mean, [3.0, math.nan])
    assert_array_equal((first + second).variance, [4.0, math.nan])


@pytest.mark.parametrize(
    ("mean", "stderr", "text"),
    [
        (0.19877, 0.00012, "0.19877(12)"),
        (0.198768, 0.0000996, "0.19877(10)"),
        (-3.14159, 0.0264, "-3.142(26)"),
        (12.345, 1.26, "12.3(1.3)"),
        (12.345, 9.96, "12(10)"),
        (1234.5, 12.3, "1234(12)"),
        (123456.0, 234.0, "1.2346(23)e+05"),
        (99.0, 1234.0, "0.1(1.2)e+03"),
        (1.5e-9, 2.3e-11, "1.500(23)e-09"),
        (1e-9, 1e-3, "0.0000(10)"),
        (0.0, 0.5, "0.00(50)"),
        (2.0, 0.0, "2(0)"),
        (2.5, math.nan, "2.5(nan)"),
        (math.inf, math.nan, "inf(nan)"),
        (1e300, 1e290, "1.00000000000(10)e+300"),
    ],
)
def test_written_with_the_error_in_the_last_digits(mean, stderr, text):
    assert concise(mean, stderr) == text


def test_several_values_are_written_in_brackets():
    assert (
        str(Estimate.from_values([[1.0, 10.0], [2.0, 30.0], [4.0, 20.0]]))
        == "[2.33(88), 20.0(5.8)]"
    )


def test_pickles():
    once = Estimate.from_values([1.0, 2.0, 4.0], [1.0, 2.0, 1.0])
    assert repr(pickle.loads(pickle.dumps(once))) == repr(once)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Estimate.from_values([]), "at least one row"),
        (lambda: Estimate.from_values([1j]), "real numbers"),
        (lambda: Estimate.from_values([1.0, 2.0], [1.0]), "each of the 2 rows"),
        (lambda: Estimate.from_values([1.0], [-1.0]), "non-negative"),
        (lambda: Estimate.from_values([1.0], [1.0], covariance=True), "further values"),
        (lambda: Estimate.from_values([1.0]) + Estimate.from_values([1.0], [1.0]), "same kind"),
        (
            lambda: Estimate.from_values([1.0, 2.0]) + Estimate.from_values([1.0, 2.0], block=2),
            "of means of 2 rows to .* same kind",
        ),
        (lambda: Estimate.from_values([[1.0]]) + Estimate.from_values([1.0]), "of one value"),
        (lambda: Estimate.from_values([1.0]).covariance, "covariance=True"),
    ],
)
def test_refuses(make, words):
    with pytest.raises(ReductionError, match=words):
        make()


@pytest.mark.parametrize("other", ["1", None, 1j, [1.0], np.array(["1"])])
@pytest.mark.parametrize("op", [operator.add, operator.sub, operator.mul, operator.truediv])
def test_combines_with_numbers_and_estimates_only(op, other):
    with pytest.raises(TypeError):
        op(Estimate.from_values([1.0]), other)
    with pytest.raises(TypeError):
        op(other, Estimate.from_values([1.0]) / Estimate.from_values([2.0]))


@pytest.mark.parametrize("op", [operator.lt, operator.le, operator.gt, operator.ge])
@pytest.mark.parametrize("other", [1e-3, np.float64(2e-3), Estimate.from_values([3.0, 4.0])])
def test_has_no_order(op, other):
    estimate = Estimate.from_values([1.0, 2.0])
    for quantity in (estimate, estimate / Estimate.from_values([3.0, 4.0])):
        with pytest.raises(ArgumentError, match=r"has no order.* write e\.stderr < 1e-3"):
            op(quantity, other)
    with pytest.raises(ArgumentError, match="has no order"):
        op(1e-3, estimate)


@pytest.mark.parametrize("name", ["std", "error", "value", "var"])
def test_names_of_others_are_told_ours(name):
    estimate = Estimate.from_values([1.0, 2.0])
    for quantity in (estimate, estimate / Estimate.from_values([3.0, 4.0])):
        message = f"has no '{name}': mean is its value, and stderr the standard error"
        with pytest.raises(AttributeError, match=message):
            getattr(quantity, name)
        assert not hasattr(quantity, name)


@pytest.mark.parametrize("size", [1e-120, 1e-75, 1e75, 1e115, 1e120, 1e150])
@pytest.mark.parametrize("weight", [1e-85, 1e-74, 1e-50, 1e50, 1e70])
def test_products_of_weights_and_values_neither_overflow_nor_vanish(size, weight):
    values, weights = rows("noise", 20), np.random.default_rng(3).integers(1, 9, 20).astype(float)
    mean, variance, stderr, effective = weighted_reference(values, weights)
    v, w = size * values, weight * weights
    for whole in (
        Estimate.from_values(v, w),
        Estimate.from_values(v[:7], w[:7]) + Estimate.from_values(v[7:], w[7:]),
    ):
        told = (
            whole.mean / size,
            whole.variance / size**2,
            whole.stderr / size,
            whole.effective_size,
        )
        assert_allclose(told, (mean, variance, stderr, effective), rtol=1e-11)


@pytest.mark.parametrize("weights", [[1.0, 2.0], [2.0, 1.0]])
def test_squares_that_are_infinite_stay_so_in_sums(weights):
    both = Estimate.from_values([1e200, 3e200], weights) + Estimate.from_values(
        [-1e200, 2e200], [1.0, 1.0]
    )
    assert (both.variance, both.stderr) == (math.inf, math.inf)


def lines_of(values, weights, cuts, *, covariance):
    """The lines of parts of rows, by NumPy in twice the precision."""
    lines = []
    for part in np.split(np.arange(len(values)), cuts):
        v, w = values[part].astype(np.longdouble), np.ones(len(part), np.longdouble)
        if weights is not None:
            w = weights[part].astype(np.longdouble)
        mean = np.zeros(v.shape[1], np.longdouble)
        if w.sum() != 0:
            mean = (w[:, None] * v).sum(axis=0) / w.sum()
        rounded = mean.astype(float)
        away = v - mean
        products = (w[:, None] * away * away).sum(axis=0)
        if covariance:
            products = (away.T @ away)[np.triu_indices(v.shape[1])]
        fields = [[len(part)], [w.sum()], rounded, mean - rounded, products]
        if weights is not None:
            fields += [(w[:, None] ** 2 * away**j).sum(axis=0) for j in range(3)]
            fields[5] = fields[5][:1]
        lines.append(np.concatenate(fields).astype(float))
    return np.array(lines)


@pytest.mark.parametrize("kind", ["plain", "covariance", "weighted"])
@given(st.integers(1, 4), st.integers(1, 31), st.integers(0, 10**6))
def test_lines_merge_to_the_moments_of_all_rows(kind, values, parts, seed):
    """As many lines as ranks, of any number of rows, 0 too, and lines beside other numbers."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(3 * parts, values)) + rng.choice([0.0, 1e5, -7.0], values)
    weights = None
    if kind == "weighted":
        weights = rng.choice([0.0, 0.25, 1.0, 3.0], len(rows))
        weights[0] = 2.0
    cuts = np.sort(rng.integers(0, len(rows) + 1, parts - 1))
    columns = Columns(values, kind == "covariance", weights is not None)
    lines = lines_of(rows, weights, cuts, covariance=columns.covariance)
    (whole,) = lines_of(rows, weights, [], covariance=columns.covariance)
    assert lines.shape == (parts, columns.count)
    wide = np.pad(lines, [(0, 0), (0, 3)], constant_values=np.nan)
    merged = merge(Moments(wide, columns)).lines[0]
    assert_array_equal(merged[:2], whole[:2])
    centres = merged[columns.centres].reshape(2, values)
    assert_allclose(centres.sum(axis=0), whole[columns.means], rtol=4e-16, atol=1e-14)
    late = slice(columns.products.start, None)
    assert_allclose(merged[late], whole[late], rtol=1e-11, atol=1e-11 * len(rows))
    groups = merge(Moments(lines, columns), np.array([0, parts // 2, parts])[parts < 2 :])
    assert_allclose(merge(groups).lines[0], merged, rtol=1e-11, atol=1e-11 * len(rows))
