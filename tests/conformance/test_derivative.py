"""Derivatives of expectations are those of their functions, row by row."""

import math

import numpy as np
import pytest
from numba import cuda, float32, njit
from numpy.testing import assert_allclose

import synknumba as synk

ROWS_OF_CASES = np.linspace(0.15, 1.45, 11)
P, Q = 0.7, 1.3
STEPS = np.arange(1, 5)
WEIGHTS = np.array([4 / 5, -1 / 5, 4 / 105, -1 / 280])  # central differences of eighth order
STEP = 3e-3
SCALE = 0.75  # a global


@njit
def scaled(x, by=2.0):
    return by * x * SCALE


@njit
def pair(x, y):
    if x > y:
        return x * y, 1.0
    return x, y**2


@cuda.jit(device=True)
def nested(x, y):
    a, b = pair(x, y)
    return a * scaled(b, y) + scaled(x)


@njit
def polynomial(x, p, q):
    return p**3 - 2 * p * x + x**2 / q - 1.0


@njit
def power_of_all(x, p, q):
    return p**q + x**p - q ** (-1.5) + pow(x, q) + math.pow(p, 3) + q**p + p**0.5


@njit
def exponentials(x, p, q):
    return math.exp(-p * x * x) + math.expm1(q * x) - 2.0 * math.exp2(p) + math.exp(p * q)


@njit
def logarithms(x, p, q):
    return math.log(p + x) * math.log1p(q) + math.log2(q * x) - np.log10(p) / math.sqrt(x * q)


@njit
def circular(x, p, q):
    turn = math.degrees(p * x) * math.radians(q)
    return math.sin(p * x) * math.cos(q) + math.tan(p * q) - np.sin(x / q) + turn


@njit
def arcs(x, p, q):
    return math.asin(0.6 * p * x) + math.acos(0.3 * q) + math.atan(x / p) + math.atan2(p, q * x)


@njit
def hyperbolic(x, p, q):
    return math.sinh(p * x) - math.cosh(q) + math.tanh(p + q) * math.hypot(p, x * q)


@njit
def areas(x, p, q):
    return math.asinh(p * x) + math.acosh(1.1 + q) - math.atanh(0.4 * p * q * x)


@njit
def errors(x, p, q):
    return math.erf(p * x) * math.erfc(q - x) + abs(p - q) * math.fabs(q * x)


@njit
def extremes(x, p, q):
    return max(p * x - 0.5, 0.0) + min(q, 2 * x, p + 3) - max(p, q) * max(x, q * q)


@njit
def ternaries(x, p, q):
    y = p * x if x > q else (q - x if x > 0.7 else 3.0)
    return -y * (p if y > 0 else 1.0) + (q if p > x > 0 else +p)


@njit
def branches(x, p, q):
    if x < 0.5:
        y = 2.0
    elif x < p:
        y = q * x
        y *= y
    else:
        y: float = p / x
    if y > 2.0 and not x > 1.0:
        return y
    return y - q


@njit
def loop_with_break(x, p, q):
    total = other = 0.0
    term = 1.0
    for k in range(1, 40):
        if k == 3:
            continue
        term *= p * x / k
        total += term
        if term < 1e-13:
            break
    else:
        total = q
    return total * q + other


@njit
def newton(x, p, q):
    y = 1.0
    while abs(y * y * y - p * x) > 1e-14:
        y -= (y * y * y - p * x) / (3.0 * y * y)
        if y > 50.0:
            return q
    return y * q


@njit
def tuples(x, p, q):
    a, (b, c) = p, (q, x)
    a, b = b * a, a
    pairs = (a, b, c)
    u, v = pair(pairs[0], pairs[1])
    return u * v + pairs[2] * pairs[0]


@njit
def device_functions(x, p, q):
    return nested(p * x, q) * scaled(p, q) + nested(x, 2.0)


@njit
def exchanged(x, p, q):
    a, b = p, q * x
    for k in range(int(4 * x)):
        a, b = b, a - 0.1 * k * b
    return a


def made_around(factor):
    @njit
    def closure(x, p, q):
        return factor * p * math.exp(x / q) + SCALE * q

    return closure


@njit
def simpson(x, p, q):
    n, total = 6, 0.0
    for j in range(n + 1):
        t = x * j / n
        weight = 1 if j in (0, n) else 2 + 2 * (j % 2)
        total += weight * math.exp(-p * t) * math.cos(q * t)
    return total * x / (3 * n)


@njit
def path(x, p, q):
    price, total = 100.0, 0.0
    for step in range(12):
        z = synk.random.normal(7, int(1000 * x), step)
        price *= math.exp((p - 0.5 * q * q) / 12 + q * z / math.sqrt(12.0))
        total += price
        if price < 10.0:
            return 0.0
    return max(total / 12 - 90.0, 0.0)


@njit
def casts(x, p, q):
    return float(p * x) * np.float64(q)


@njit
def shadowed(x, p, q):
    x = x * p
    x += 1.0
    return x**4 * q


closure = made_around(1.7)


@synk.expectation
def of_case(x, p, q, case):
    value = 0.0
    if case == 0:
        value = polynomial(x, p, q)
    if case == 1:
        value = power_of_all(x, p, q)
    if case == 2:
        value = exponentials(x, p, q)
    if case == 3:
        value = logarithms(x, p, q)
    if case == 4:
        value = circular(x, p, q)
    if case == 5:
        value = arcs(x, p, q)
    if case == 6:
        value = hyperbolic(x, p, q)
    if case == 7:
        value = areas(x, p, q)
    if case == 8:
        value = errors(x, p, q)
    if case == 9:
        value = extremes(x, p, q)
    if case == 10:
        value = ternaries(x, p, q)
    if case == 11:
        value = branches(x, p, q)
    if case == 12:
        value = loop_with_break(x, p, q)
    if case == 13:
        value = newton(x, p, q)
    if case == 14:
        value = tuples(x, p, q)
    if case == 15:
        value = device_functions(x, p, q)
    if case == 16:
        value = exchanged(x, p, q)
    if case == 17:
        value = simpson(x, p, q)
    if case == 18:
        value = path(x, p, q)
    if case == 19:
        value = casts(x, p, q)
    if case == 20:
        value = shadowed(x, p, q)
    if case == 21:
        value = closure(x, p, q)
    return value


CASES = (
    polynomial,
    power_of_all,
    exponentials,
    logarithms,
    circular,
    arcs,
    hyperbolic,
    areas,
    errors,
    extremes,
    ternaries,
    branches,
    loop_with_break,
    newton,
    tuples,
    device_functions,
    exchanged,
    simpson,
    path,
    casts,
    shadowed,
    closure,
)


def differences(function, x):
    """The derivatives by p and q, by differences."""

    def along(dp, dq):
        ends = [
            function(x, P + k * STEP * dp, Q + k * STEP * dq)
            - function(x, P - k * STEP * dp, Q - k * STEP * dq)
            for k in STEPS
        ]
        return WEIGHTS @ ends / STEP

    return along(1, 0), along(0, 1)


# what calls a device function is not called from Python
@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case is not device_functions],
    ids=lambda case: case.py_func.__name__,
)
def test_a_row_in_python(case):
    gradient = synk.expectation(case).gradient("p", "q").py_func
    for x in ROWS_OF_CASES.tolist():
        value, *slopes = gradient(x, P, Q)
        assert value == pytest.approx(case.py_func(x, P, Q), rel=1e-14)
        expected = differences(case.py_func, x)
        assert_allclose(slopes, expected, rtol=1e-9, atol=1e-11, err_msg=str(x))


def of_numpy(x, p, q):
    """What GPUs have not, too."""
    large = np.maximum(np.exp(p * x), np.square(q)) - np.arctan2(p, q) * np.expm1(q)
    return large + np.power(p, q) * np.arcsin(p * 0.5) - np.log1p(x * q) / np.abs(-p)


def test_functions_of_numpy_and_derivatives_of_derivatives():
    gradient = synk.expectation(of_numpy).gradient("p", "q")
    second = gradient.derivative("q").py_func
    for x in ROWS_OF_CASES.tolist():
        assert_allclose(gradient.py_func(x, P, Q)[1:], differences(of_numpy, x), rtol=1e-9)
        mixed = differences(lambda x, p, q: gradient.py_func(x, p, q)[1], x)[1]
        assert second(x, P, Q)[1] == pytest.approx(mixed, rel=1e-9)


def test_means_of_all_cases(world):
    gradient = of_case.gradient("p", "q")
    for number, case in enumerate(CASES):
        estimate = gradient(ROWS_OF_CASES, P, Q, number)

        def mean(x, p, q, number=number):
            return of_case(x, p, q, number).mean

        expected = differences(mean, ROWS_OF_CASES)
        name = case.py_func.__name__
        assert_allclose(estimate.mean[1:], expected, rtol=1e-9, atol=1e-11, err_msg=name)


def two(x, p, q):
    return p * x, math.exp(q * x) + p


def jump(x, mean):
    return 1.0 if x > 1.0 else 0.0


def shifted_jump(x, mean):
    return mean * x if x > 1.0 else 0.0


def log_density(x, mean):
    return -0.5 * (x - mean) ** 2 - 0.5 * math.log(2 * math.pi)


def float32s(x, p):
    y = np.float32(0.0)
    for _ in range(3):
        y += math.exp(-p * x) / (x + p) + math.tanh(p) ** 2
    return max(y * scaled32(x, p), np.float32(0.0)) - abs(p) ** np.float32(1.5)


@njit
def scaled32(x, p):
    return np.float32(2.0) * math.sqrt(x) * (p if x > p else np.float32(0.5))


class TestWhatItReturns:
    x = np.linspace(0.0, 2.0, 101)

    def test_one_number_or_values_and_slopes(self, world):
        one, slopes = synk.expectation(two), np.array([self.x, np.ones(101)])
        by_p = one.derivative("p")(self.x, 2.0, 0.5)
        assert_allclose(by_p.mean, slopes.mean(axis=1))
        assert_allclose(by_p.variance, slopes.var(axis=1, ddof=1), atol=1e-15)
        both = one.gradient("q")(self.x, 2.0, q=0.5)
        rows = [2 * self.x, np.exp(self.x / 2) + 2, 0 * self.x, self.x * np.exp(self.x / 2)]
        assert_allclose(both.mean, np.mean(rows, axis=1), rtol=1e-12)
        assert_allclose(both.covariance, np.cov(rows), rtol=1e-9, atol=1e-14)
        single = synk.expectation(lambda x, p: p * p * x).derivative("p")
        assert single(self.x, 3.0).mean == pytest.approx(6.0)

    def test_weights_and_givens(self, world):
        weighted = synk.expectation(lambda x, w, p: p**3 * x, weights="w", givens={"p": 2.0})
        estimate = weighted.derivative("p")(self.x, self.x)
        assert estimate.mean == pytest.approx(12 * (self.x**2).sum() / self.x.sum())

        with pytest.raises(synk.ArgumentError, match="p is an array; make the number"):
            synk.expectation(of_global).derivative("p")(self.x, synk.variable(np.array(2.0)))

    def test_the_score_of_a_jump(self, world):
        """E[f] over N(mean, 1) by its quantiles."""
        mean = 0.3
        quantiles = (np.arange(200_000) + 0.5) / 200_000
        from scipy.special import ndtr, ndtri

        x = mean + ndtri(quantiles)
        density = math.exp(-0.5 * (1.0 - mean) ** 2) / math.sqrt(2 * math.pi)
        scored = synk.expectation(jump).derivative("mean", score=log_density)
        assert scored(x, mean).mean == pytest.approx(density, rel=1e-3)
        both = synk.expectation(shifted_jump).gradient("mean", score=log_density)(x, mean)
        tail = ndtr(mean - 1.0)
        value = mean * (mean * tail + density)
        slope = value / mean + mean * (tail + density * (mean + (1.0 - mean)))
        assert_allclose(both.mean, [value, slope], rtol=2e-3)

    def test_values_from_outside_may_change(self, world, monkeypatch):
        slope = synk.expectation(of_global).derivative("p")
        assert slope(self.x, 1.0).mean == pytest.approx(2 * SCALE)
        monkeypatch.setitem(globals(), "SCALE", 5.0)
        assert slope(self.x, 1.0).mean == pytest.approx(10.0)


def of_global(x, p):
    return scaled_by_global(p) * p


@cuda.jit(device=True)
def scaled_by_global(x):
    return x * SCALE


def test_float32_stays_float32():
    from synknumba._rowwise.types import infer_result

    gradient = synk.expectation(float32s).gradient("p")
    kind = infer_result(gradient._inner, (float32, float32))
    assert [*kind] == [float32, float32]
    x, p = np.float32(0.8), np.float32(0.6)
    values = gradient.py_func(x, p)
    assert {type(value) for value in values} == {np.float32}
    x, p, h = np.float64(x), np.float64(p), 1e-6
    slope = (float32s(x, p + h) - float32s(x, p - h)) / (2 * h)
    assert values[1] == pytest.approx(slope, rel=1e-5)
