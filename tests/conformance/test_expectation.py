"""Expectation values and their error bars are NumPy's, however the rows lie."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from numba import cuda, njit
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from synknumba._rowwise import base, expectation
from tests.conformance.conftest import FOUR, ROWS
from tests.quick import whole

CLOSE = {"rtol": 1e-12, "atol": 0}


@synk.expectation
def plain(x):
    return x


@synk.expectation
def wave(x, beta=0.5):
    return math.exp(-beta * x * x)


@synk.expectation
def of_row(x, scale):
    total = 0.0
    for k in range(x.shape[0]):
        total += scale * x[k]
    return total


@synk.expectation(broadcast=("table",), covariance=True)
def several(x, i, table):
    return x * table[i % 3], x + 1e9, float(i)


@synk.expectation(weights="w")
def weighted(x, w):
    return x


@synk.expectation(weights=True)
def ratio(x, y):
    return x, x * y, y


@synk.expectation
def circle(i, seed):
    x = synk.random.uniform(seed, i, 0)
    y = synk.random.uniform(seed, i, 1)
    return 4.0 if x * x + y * y < 1.0 else 0.0


@njit
def cube(x):
    return x**3


@synk.expectation
@cuda.jit(device=True)
def cubes(x):
    return cube(x)


@synk.expectation(dtype="float32", size=2)
def pair(x):
    both = (x, -x)
    return both  # noqa: RET504  # its length is not to be seen here


@synk.expectation(size=0)
def perhaps(x):
    if x > 0:
        return x
    return None


@synk.expectation(size=2)
def pair_of_three(x):
    both = (x, -x, x)
    return both  # noqa: RET504


def check(estimate, values):
    """Mean and variance of values that are exact in float64."""
    assert estimate.count == len(values)
    # In units of the spread, since a mean may lie near 0, and 1e9 plus noise differs by little.
    scale = np.abs(values).max()
    assert_allclose(estimate.mean, values.mean(), rtol=1e-12, atol=1e-15 * scale)
    if len(values) > 1:
        assert_allclose(estimate.variance, values.var(ddof=1), rtol=1e-12, atol=1e-30 * scale**2)
        assert_allclose(
            estimate.stderr,
            values.std(ddof=1) / math.sqrt(len(values)),
            rtol=1e-12,
            atol=1e-15 * scale,
        )
    else:
        assert math.isnan(estimate.variance)


@pytest.mark.parametrize("row", [*ROWS, FOUR])
@pytest.mark.parametrize("kind", ["noise", "offset", "constant", "outlier"])
def test_mean_and_variance_are_numpys(world, kind):
    rng = np.random.default_rng(3)
    for n in (1, 2, 3, 4, 6, 7, 255, 256, 257, 1000, 4999, 10_000):
        noise = rng.normal(size=n)
        values = {"noise": noise, "offset": 1e9 + noise, "constant": np.full(n, 0.1)}.get(
            kind, noise.copy()
        )
        if kind == "outlier":
            values[0] = 1e9
        for num_slices in range(1, 8) if n in {1, 3, 7, 257, 10_000} else (1, 3):
            check(plain(values, num_slices=num_slices), values)


def test_constant_rows_have_no_variance_at_all(world):
    estimate = plain(np.full(5000, 0.1), num_slices=2)
    assert (estimate.mean, estimate.variance) == (0.1, 0.0)


def test_batches_and_positions(world):
    values = np.random.default_rng(4).normal(size=500)
    data = synk.data(values)
    for batch in (17, slice(None, None, -3), slice(100, 400), [5, 5, 2, 499], np.arange(300)):
        chosen = values[:batch] if isinstance(batch, int) else values[batch]
        check(plain(data, batch=batch), chosen)
        check(plain(data, batch=batch, num_slices=3), chosen)
    again = [plain(data, batch=batch).mean for batch in (10, 20, 10)]
    assert again[0] == again[2] != again[1]


def test_scalars_defaults_and_names(world):
    values = np.random.default_rng(5).normal(size=300)
    check(wave(values), np.exp(-0.5 * values * values))
    check(wave(values, 2.0), np.exp(-2.0 * values * values))
    check(wave(beta=np.float32(0.25), x=values), np.exp(-0.25 * values * values))
    check(wave(synk.data(values), synk.data(np.array(2.0))), np.exp(-2.0 * values * values))


@pytest.mark.whole
def test_rows_of_arrays_of_more_dimensions(world):
    values = np.arange(60.0).reshape(12, 5)
    check(of_row(values, 2.0), 2.0 * values.sum(axis=1))


@pytest.mark.parametrize("dtype", ["float32", *whole("int32", "uint8", "bool")])
def test_narrow_rows_are_summed_in_float64(world, dtype):
    values = (np.random.default_rng(6).random(1000) * 200).astype(dtype)
    check(plain(values), values.astype(np.float64))


def test_several_values_with_covariance(world):
    # several rows for a thread
    values, table = (
        np.random.default_rng(7).normal(size=4000),
        np.array([1.0, 2.0, -3.0]),
    )
    index = np.arange(4000)
    told = np.stack([values * table[index % 3], values + 1e9, index], axis=1)
    estimate = several(values, synk.arange(4000), table, num_slices=2)
    assert_allclose(estimate.mean, told.mean(axis=0), **CLOSE)
    assert_allclose(estimate.variance, told.var(axis=0, ddof=1), **CLOSE)
    centred = np.stack([told[:, 0], told[:, 1] - 1e9, told[:, 2]], axis=1)
    assert_allclose(estimate.covariance, np.cov(centred, rowvar=False), rtol=1e-12)


def exact(values, weights=None):
    """Mean, and where rows have weights variance, standard error and effective size, in
    fractions.
    """
    v = [Fraction(value) for value in values.tolist()]
    if weights is None:
        return sum(v) / len(v)
    w, n = [Fraction(weight) for weight in weights.tolist()], len(v)
    total, square = sum(w), sum(x * x for x in w)
    mean = sum(x * y for x, y in zip(w, v, strict=True)) / total
    variance = sum(x * (y - mean) ** 2 for x, y in zip(w, v, strict=True)) / (
        total - square / total
    )
    spread = (
        sum((x * (y - mean)) ** 2 for x, y in zip(w, v, strict=True))
        * Fraction(n, n - 1)
        / total**2
    )
    return float(mean), float(variance), math.sqrt(spread), float(total**2 / square)


HUGE = {
    "signs": [1e308, -1e308] * 300,
    "alike": [1.5e308] * 7,
    "uneven": [1.5e308, -1.5e308] * 20 + [1.5e308],
    "mixed": [5e307, -1e308, 1.7e308, 1.7e308, 1.0, -1e200],
    "between ranks": [1.7e308] * 10 + [-1.7e308] * 11,
    "squares": [1e155, -3e155, 2e154],
    "outlier": [0.5] * 1000 + [1.7e308] + [0.25] * 1000,
}


@pytest.mark.whole
def test_sums_of_huge_values_do_not_overflow(world):
    for values in map(np.array, HUGE.values()):
        close = {"rtol": 0, "atol": 1e-14 * np.abs(values).max()}
        for how in ({}, {"num_slices": 3}, {"shards": 4}):
            found = plain(values, **how)
            assert_allclose(found.mean, float(exact(values)), **close)
            assert (found.variance, found.count) == (
                0.0 if (values == values[0]).all() else math.inf,
                len(values),
            )
        assert_allclose(plain.as_serial(values).mean, float(exact(values)), **close)


@pytest.mark.whole
def test_huge_values_do_no_harm_to_others(world):
    both = synk.expectation(lambda x, y: (y, x), covariance=True)
    values, noise = np.array(HUGE["uneven"]), np.random.default_rng(1).normal(size=41)
    found = both(values, noise)
    assert_allclose(found.mean, [noise.mean(), float(exact(values))], rtol=1e-13)
    assert_allclose(found.variance, [noise.var(ddof=1), math.inf], rtol=1e-12)
    assert_allclose(
        np.ldexp(found.covariance[0, 1], -900),
        np.cov(noise, np.ldexp(values, -900))[0, 1],
        rtol=1e-11,
    )


def check_weighted(estimate, values, weights, rtol=1e-11):
    assert_allclose(
        (estimate.mean, estimate.variance, estimate.stderr, estimate.effective_size),
        exact(values, weights),
        rtol,
    )


@pytest.mark.whole
def test_squares_of_weights_neither_overflow_nor_vanish(world):
    rng = np.random.default_rng(8)
    values = 1e9 + rng.normal(size=300)
    for power in (-1060, -540, -300, -20, 20, 530, 1020):
        # exact, in the range of subnormal numbers too
        weights = np.ldexp(rng.integers(1, 9, 300).astype(float), power)
        for found in (
            weighted(values, weights, num_slices=2),
            weighted.as_serial(values, weights, shards=3),
        ):
            check_weighted(found, values, weights)
    huge, weights = (
        np.array([1.5e308, -1e308, 1.7e308, 1e307] * 5),
        np.ldexp(1.0 + np.arange(20), 900),
    )
    want = exact(np.ldexp(huge, -600), np.ldexp(weights, -900))
    assert_allclose(np.ldexp(weighted(huge, weights).mean, -600), want[0], rtol=1e-14)
    some = weighted(values[:200], np.full(200, 1e-200)) + weighted(
        values[200:], np.full(100, 1e-200)
    )
    assert_allclose([some.mean, some.variance], [values.mean(), values.var(ddof=1)], rtol=1e-12)


@pytest.mark.whole
def test_products_of_light_weights_and_small_values_do_not_vanish(world):
    rng = np.random.default_rng(8)
    values, weights = rng.normal(size=600), rng.integers(1, 9, 600).astype(float)
    for size, weight in ((-400, -280), (-250, -280), (-480, -1000), (-400, -100)):
        check_weighted(
            weighted(np.ldexp(values, size), np.ldexp(weights, weight)),
            np.ldexp(values, size),
            weights,
        )
    single = synk.expectation(lambda x, w: x, weights="w", dtype="float32")
    check_weighted(
        single(np.ldexp(values, -50), np.ldexp(weights, -31)),
        np.ldexp(values, -50),
        weights,
        rtol=1e-4,
    )
    alike = weighted(np.full(9, 0.1), np.full(9, 1e-20))  # nothing has vanished
    assert_allclose((alike.mean, alike.stderr), (0.1, 0.0), rtol=1e-15)


@pytest.mark.whole
def test_squares_of_weights_in_float32(world):
    single = synk.expectation(lambda x, w: x, weights="w", dtype="float32")
    values = np.arange(300.0)
    for power in (-100, -40, 1, 70, 118):
        weights = np.full(300, 2.0**power)
        check_weighted(single(values, weights), values, weights, rtol=1e-5)


def test_infinite_values_of_light_weights(world):
    """As `np.average` in extended precision, where no weight vanishes beside another."""
    values, weights = np.arange(40.0), np.full(40, 1e-20)
    for place, light, heavy in ((0, 1e-300, 1e250), (39, 1e-300, 1e300), (7, 1e-320, 1e200)):
        values[place] = math.inf
        weights[place], weights[20] = light, heavy
        wide = np.average(values.astype(np.longdouble), weights=weights.astype(np.longdouble))
        assert weighted(values, weights).mean == wide == math.inf
        weights[place] = 0.0
        assert math.isnan(weighted(values, weights).mean)
        values[place], weights[place] = 1.0, 1.0


@pytest.mark.parametrize("spread", [6.0, *whole(2.0, 8.0)])
def test_light_rows_of_large_values_hide_no_heavy_ones(world, spread):
    rng = np.random.default_rng(15)
    drawn = np.exp(spread * rng.normal(size=2000))
    for weights in (drawn, np.sort(drawn), np.sort(drawn)[::-1].copy()):
        values = (1.0 + rng.random(2000)) / weights
        for options in ({}, {"num_slices": 3}, {"shards": 5}):
            check_weighted(weighted(values, weights, **options), values, weights)
    values, weights = np.array([1e20, 1.0]), np.array([1e-20, 1.0])
    assert weighted(values, weights).mean == weighted(values[::-1], weights[::-1]).mean == 2.0


@pytest.mark.parametrize("num_slices", [1, 4])
def test_weights(world, num_slices):
    rng = np.random.default_rng(8)
    values, weights = 1e9 + rng.normal(size=600), rng.random(600)
    weights[::7] = 0.0
    estimate = weighted(values, weights, num_slices=num_slices)
    offsets = values - 1e9
    mean = np.average(offsets, weights=weights)
    total, square = weights.sum(), (weights**2).sum()
    spread = (weights**2 * (offsets - mean) ** 2).sum() * 600 / 599
    assert_allclose(estimate.mean, 1e9 + mean, **CLOSE)
    assert_allclose(
        estimate.variance,
        (weights * (offsets - mean) ** 2).sum() / (total - square / total),
        rtol=1e-11,
    )
    assert_allclose(estimate.stderr, math.sqrt(spread) / total, rtol=1e-11)
    assert_allclose(estimate.effective_size, total**2 / square, **CLOSE)
    assert estimate.count == 600


@pytest.mark.parametrize("num_slices", [4, *whole(1, 2)])
@pytest.mark.parametrize("blocks", [*whole(1), 7])
@pytest.mark.whole
def test_rows_of_weight_0_are_not_left_out(world, monkeypatch, blocks, num_slices):
    monkeypatch.setattr(expectation, "_BLOCKS", {"cpu": blocks, "cuda": blocks})
    mean = synk.expectation(lambda x, y, w: (x, y), weights="w")
    for n, bad, place in itertools.product((4, 3000), (np.nan, np.inf), (0, -1)):
        values, weights = np.arange(float(n)), np.ones(n)
        values[place], weights[place] = bad, 0.0
        finite = np.arange(float(n))
        for call in (mean, mean.as_serial):
            found = call(values, finite, weights, num_slices=num_slices)
            assert_array_equal(
                np.isnan([found.mean, found.variance, found.stderr]), [[True, False]] * 3
            )
            assert_allclose(found.mean[1], np.average(finite, weights=weights), rtol=1e-14)
            assert_allclose(found.effective_size, n - 1)
    # Whole blocks, slices and ranks without weight move no mean.
    finite = 1e9 + np.arange(3000.0)
    weights = np.where(np.arange(3000) >= 2900, 1.0, 0.0)
    assert_allclose(
        mean(finite, finite, weights, num_slices=num_slices).mean, finite[2900:].mean(), **CLOSE
    )


@pytest.mark.whole
@pytest.mark.parametrize("together", [3, *whole(1, 8)])
def test_rows_that_are_read_together_are_added_in_their_order(world, monkeypatch, together):
    """Whatever of a row is read: numbers, its index, an array; and whatever is left where not
    all threads have so many.
    """
    monkeypatch.setattr(expectation, "_BLOCKS", {"cpu": 2, "cuda": 2})
    monkeypatch.setattr(expectation, "_TOGETHER", together)
    mean = synk.expectation(lambda i, x, pair, w: (x + pair[1], i - x * pair[0]), weights="w")
    for n in (1, 600, 4_095, 4_097, 30_011):
        rng = np.random.default_rng(n)
        x, pairs, weights = rng.normal(size=n), rng.normal(size=(n, 2)), rng.random(n)
        found = mean(synk.arange(n), x, pairs, weights)
        want = synk.Estimate.from_values(
            np.stack([x + pairs[:, 1], np.arange(n) - x * pairs[:, 0]], axis=1), weights
        )
        assert_allclose(found.mean, want.mean, rtol=1e-11)
        assert_allclose(found.variance, want.variance, rtol=1e-11)
        assert found.count == n


@pytest.mark.whole
def test_the_weight_may_be_returned(world):
    rng = np.random.default_rng(9)
    values, weights = rng.normal(size=300), rng.random(300)
    estimate = ratio(values, weights)
    assert_allclose(
        estimate.mean,
        [np.average(values, weights=weights), np.average(values * weights, weights=weights)],
    )


def test_a_negative_weight_gives_no_number(world):
    weights = np.ones(300)
    weights[123] = -1.0
    assert math.isnan(weighted(np.ones(300), weights).mean)


def test_pi_within_four_standard_errors_and_the_same_in_slices(world):
    once = circle(synk.arange(100_000), 7)
    assert abs(once.mean - math.pi) < 4 * once.stderr
    inside = (
        synk.random.uniform(7, np.arange(100_000), 0) ** 2
        + synk.random.uniform(7, np.arange(100_000), 1) ** 2
    ) < 1
    check(once, 4.0 * inside)
    check(circle(synk.arange(100_000), 7, num_slices=3), 4.0 * inside)


def test_error_bars_cover_the_truth(world):
    inside = 0
    for seed in range(1000):
        estimate = circle(synk.arange(1000), seed)
        inside += abs(estimate.mean - math.pi) < 1.96 * estimate.stderr
    assert 930 <= inside <= 970


@pytest.mark.whole
def test_importance_sampling_of_a_tail(world):
    @synk.expectation(weights=True)
    def tail(i, seed):
        x = 3.0 + synk.random.normal(seed, i, 0)  # drawn around 3, meant to be drawn around 0
        return x > 3.0, math.exp(4.5 - 3.0 * x)

    estimate = tail(synk.arange(200_000), 1)
    truth = 0.5 * math.erfc(3.0 / math.sqrt(2.0))
    assert abs(estimate.mean - truth) < 4 * estimate.stderr < truth
    assert 1 < estimate.effective_size < 20_000


def test_a_run_is_continued_by_adding(world):
    values = np.random.default_rng(10).normal(size=1000)
    check(plain(values[:300]) + plain(values[300:]), values)


def test_device_functions_and_what_they_call(world):
    values = np.random.default_rng(11).normal(size=200)
    check(cubes(values), values**3)


def test_float32_sums_where_asked(world):
    values = np.arange(1000, dtype=np.float32)  # sums of integers below 2^24 are exact
    estimate = pair(values)
    assert_allclose(estimate.mean, [499.5, -499.5], rtol=1e-6)
    assert_allclose(estimate.variance, [values.astype(np.float64).var(ddof=1)] * 2, rtol=1e-5)


@pytest.mark.parametrize(
    ("place", "value", "mean"),
    [(0, math.inf, math.inf), (299, -math.inf, -math.inf), (7, math.nan, math.nan)],
)
def test_what_is_not_finite_is_told(world, place, value, mean):
    values = np.zeros(300)
    values[place] = value
    estimate = plain(values)
    assert_array_equal(estimate.mean, mean)
    assert math.isnan(estimate.variance)


def test_serial_is_the_same(world):
    values = np.random.default_rng(12).normal(size=700)
    check(plain.as_serial(values), values)


def test_variables(world):
    values = np.random.default_rng(13).normal(size=(world.world_size * 40, 3))
    shared = synk.variable(np.array(3.0).reshape(1))
    scaled = synk.expectation(lambda x, a: x[0] * a[0])
    check(scaled(values, shared), values[:, 0] * 3.0)
    own = synk.variable(values[:, 1].copy())
    synk.scatter(own)
    check(synk.expectation(lambda x: x + 1.0, rows=("x",))(own, num_slices=2), values[:, 1] + 1.0)


def test_refuses(world):
    with pytest.raises(synk.ArgumentError, match="none of its arguments has any"):
        plain(1.0)
    with pytest.raises(synk.ReductionError, match="at least one row"):
        plain(np.zeros(0))
    with pytest.raises(synk.ArgumentError, match="number for each row"):
        weighted(np.zeros(3), 1.0)
    with pytest.raises(synk.ArgumentError, match="several is missing the arguments i, table"):
        several(np.zeros(3))
    with pytest.raises(synk.ArgumentError, match="wave is missing the argument x$"):
        wave(beta=2.0)
    with pytest.raises(synk.ArgumentError, match=r"wave takes 2 arguments \(x, beta\), got 3$"):
        wave(np.zeros(3), 1.0, 2.0)
    for unknown in ("gamma", "synk_slice", "synk_partials", "output_subset"):
        with pytest.raises(
            synk.ArgumentError,
            match=f"wave has no parameter '{unknown}'; it has x, beta, and calls have the",
        ):
            wave(np.zeros(3), **{unknown: 1})
    with pytest.raises(synk.PartitionError, match="shards must be an integer"):
        plain(np.zeros(3), shards=0)
    with pytest.raises(synk.PartitionError, match="num_slices"):
        plain(np.zeros(3), num_slices=0)
    with pytest.raises(synk.PartitionError, match="num_slices"):
        plain(np.zeros(3), num_slices=1.5)
    with pytest.raises(synk.PartitionError, match="num_slices"):
        plain(np.zeros(3), num_slices=[2])


def test_refuses_what_is_no_real_number(world):
    x, square = np.ones(5), np.ones((5, 3))
    for call, words in (
        (
            lambda: plain(x + 0j),
            r"plain\(x: complex128\) returns complex128.*a real number.*the imaginary part",
        ),
        (
            lambda: synk.expectation(lambda x: x * 1j)(x),
            r"<lambda>\(x: float64\) returns complex128",
        ),
        (
            lambda: synk.expectation(lambda x: (x, x * 1j))(x),
            "a tuple of 2 real numbers.*the imaginary part",
        ),
        (
            lambda: synk.expectation(lambda x: (x, x * 1j), weights=True)(x),
            "a tuple of 2 real numbers",
        ),
        (
            lambda: plain(square),
            r"plain\(x: array\(float64, 1d, C\)\) returns array.*elements as a tuple",
        ),
        (lambda: plain(square[:, :, None]), "2d, C.*elements as a tuple"),
        (lambda: plain(synk.data(square)), "elements as a tuple"),
        (
            lambda: plain(np.array(["a", "b"])),
            r"plain\(x: \[unichr x 1\]\) returns .*Return numbers",
        ),
        (lambda: plain(np.array(["a", None], object)), "x of plain has dtype object.*convert it"),
        (lambda: plain(np.zeros(3, "M8[s]")), r"datetime64\[s\].*a real number"),
        (lambda: plain(np.zeros(3, [("a", float)])), "Record.*a real number"),
        (
            lambda: plain(x.astype(np.longdouble)),
            "x of plain has dtype (longdouble|float128).*convert it",
        ),
        (lambda: synk.expectation(lambda x: "a")(x), "Return numbers"),
        (lambda: synk.expectation(lambda x: None)(x), "returns none"),
        (lambda: perhaps(x), r"perhaps\(x: float64\) returns OptionalType.*on every path"),
        (
            lambda: synk.expectation(lambda x, t: x + t[0], broadcast=("t",))(x, [1.0]),
            "t of <lambda> is a list.*np.asarray",
        ),
        (lambda: synk.expectation(lambda x: (x, "a"))(x), "Return numbers"),
        (lambda: pair_of_three(x), "a tuple of 2 real numbers.*Pass size="),
        (lambda: weighted(x, x + 0j), "weights='w' of weighted.*got complex128"),
        (lambda: weighted(x, square), "weights='w' of weighted.*got array"),
        (lambda: weighted(x, np.array(["a"] * 5)), "weights='w' of weighted"),
    ):
        for one in (call, call):  # the second time too
            with pytest.raises(synk.ArgumentError, match=words) as told:
                one()
            assert "synk_" not in str(told.value)
    assert plain(x.astype(np.float16)).mean == 1.0
    assert plain(x).mean == 1.0  # the world is as it was


@pytest.mark.whole
@pytest.mark.parametrize("row", [ROWS[0], ROWS[2]])
def test_numbers_of_all_kinds(world):
    large = np.array([2**63 + 2048, 2**64 - 2048, 2**63], np.uint64)
    check(plain(large), large.astype(np.float64))
    check(plain(synk.arange(9)), np.arange(9.0))
    found = synk.expectation(lambda i, x: (i > 3, 3, int(x)))(
        synk.arange(9), np.linspace(-2.5, 2.5, 9).astype(">f8")
    )
    told = np.stack([np.arange(9) > 3, np.full(9, 3), np.trunc(np.linspace(-2.5, 2.5, 9))], axis=1)
    assert_allclose(
        [found.mean, found.variance],
        [told.mean(axis=0), told.var(axis=0, ddof=1)],
        rtol=1e-12,
        atol=1e-15,
    )
    assert_array_equal(plain(np.array([7.0])).variance, math.nan)


@pytest.mark.whole
def test_the_kernels_own_names_are_told_nowhere(world):
    @synk.expectation
    def wrong(x, scale):
        return x + "a" * scale

    with pytest.raises(synk.KernelError) as caught:
        wrong(np.zeros(5), 2)
    assert "synk.SLICE" not in str(caught.value)
    report = wave.plan(np.zeros(5), shards=2, world_size=4)
    assert report.outputs == (("estimate", "mean"),)
    assert report.arguments == ("x: float64 (5,)", "beta: 0.5")
    assert len(report.ranks) == 4
    assert "synk" not in str(report)


def test_keeps_few_functions(monkeypatch):
    monkeypatch.setattr(base, "MAX_KERNELS", 4)
    mean = synk.expectation(lambda x: x)
    # each plan would drop the kernels of the last one
    monkeypatch.setattr(mean._inner, "renew", lambda: None)
    for num_slices in range(1, 8):
        mean.plan(np.zeros(5), num_slices=num_slices, world_size=1)
    assert len(mean._kernels) == base.MAX_KERNELS


@pytest.mark.parametrize("shards", [1, 3, 8])
def test_shards(world, shards):
    rng = np.random.default_rng(14)
    for n in (1, 2, 7, 1000):
        values, weights = 1e9 + rng.normal(size=n), rng.random(n)
        for num_slices in (1, 3):
            check(plain(values, shards=shards, num_slices=num_slices), values)
        ours = [
            weighted(values, weights, shards=shards),
            weighted.as_serial(values, weights, shards=shards),
        ]
        assert_allclose(ours[0].mean, 1e9 + np.average(values - 1e9, weights=weights), rtol=1e-15)
        assert [one.mean for one in ours] == [ours[0].mean] * 2
        assert_array_equal(ours[0].variance, ours[1].variance)
    heavy = np.exp(6.0 * rng.normal(size=1000))
    ours, serial = (
        call(1 / heavy, heavy, shards=shards) for call in (weighted, weighted.as_serial)
    )
    assert (ours.mean, ours.variance, ours.stderr) == (serial.mean, serial.variance, serial.stderr)


@pytest.mark.whole
@pytest.mark.parametrize("weighted", [False, True])
def test_sums_that_smem_does_not_hold_at_once(world, weighted):
    rng = np.random.default_rng(21)
    x, y, w = rng.normal(size=3000), rng.normal(size=3000), rng.random(3000)
    if weighted:  # 25 sums about the means
        mean = synk.expectation(
            lambda x, y, w: (x, y, x * y, x * x, y * y, x + y, x - y, 2.0 * x), weights="w"
        )
    else:  # 28
        mean = synk.expectation(
            lambda x, y, w: (x, y, x * y, x * x, y * y, x + w, y - w), covariance=True
        )
    found, told = mean(x, y, w), np.stack(mean.py_func(x, y, w), axis=1)
    want = synk.Estimate.from_values(told, w if weighted else None, covariance=not weighted)
    assert_allclose(found.mean, want.mean, rtol=1e-11, atol=1e-14)
    assert_allclose(found.stderr, want.stderr, rtol=1e-11)
    assert_allclose(found.variance, want.variance, rtol=1e-11)
    if not weighted:
        assert_allclose(found.covariance, np.cov(told, rowvar=False), rtol=1e-11, atol=1e-13)


def test_refuses_more_values_than_smem_holds(world):
    many = synk.expectation(lambda x: (x,) * 22, size=22)
    with pytest.raises(synk.ArgumentError, match="returns 22 values, .* 21"):
        many(np.zeros(3))


def test_refuses_what_no_call_can_have():
    for options, words in (
        ({"weights": "v"}, "not a parameter"),
        ({"weights": True}, "last value"),
        ({"weights": "x", "covariance": True}, "further values"),
        ({"dtype": "int32"}, "float64 or float32"),
        *(({"size": size}, "length of the returned tuple") for size in (True, -1, 1.0, "2")),
        ({"broadcast": "x"}, "tuple of names"),
        ({"broadcast": ("v",)}, "not a parameter of <lambda>; it has x$"),
        ({"givens": {"v": 1}}, "not a parameter of <lambda>; it has x$"),
    ):
        with pytest.raises(synk.SynkError, match=words):
            synk.expectation(lambda x: x, **options)
    with pytest.raises(synk.ArgumentError, match="rename it"):
        synk.expectation(lambda synk_x: synk_x)
    with pytest.raises(synk.ArgumentError, match="pass size="):

        @synk.expectation
        def unclear(x):
            if x > 0:
                return x, x
            return x

    for size in (0, 1, 3):
        with pytest.raises(
            synk.ArgumentError, match=f"size={size} of <lambda>, but line .* a tuple of 2"
        ):
            synk.expectation(lambda x: (x, x), size=size)
    with pytest.raises(synk.ArgumentError, match="wraps a function"):
        synk.expectation(3)
