"""Values that functions of rows read from global names, on which the types of their results
depend.
"""

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_array_equal

import synknumba as synk
from synknumba._call import distribute
from synknumba._types import WeakTable
from tests.quick import whole

X = np.arange(4)
FACTOR = 2


@cuda.jit(device=True)
def scaled(x):
    return FACTOR * x


@cuda.jit(device=True)
def scaled_twice(x):
    return scaled(x) + scaled(x)


@synk.vectorize
def direct(x):
    return FACTOR * x


@synk.vectorize
def inside(x):
    return scaled_twice(x) - scaled(x)


@synk.vectorize
def plus(x, y):
    return x + y + FACTOR


@synk.expectation
def mean(x):
    return FACTOR * x


def made(factor):
    def function(x):
        return factor * x

    def rebind(value):
        nonlocal factor
        factor = value

    return synk.vectorize(function), rebind


def fork():
    return synk.fork(2, device="cpu")


def same(found, expected):
    assert found.dtype == expected.dtype
    assert_array_equal(found, expected)


@pytest.mark.parametrize("function", [inside, *whole(direct)])
def test_the_type_of_the_result_is_that_of_the_values_in_each_world(monkeypatch, function):
    for factor in (2, 2.5, 3, 1j):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        with fork():
            same(function(X), factor * X)
            if factor == 2.5:
                same(np.asarray(function(X, out=synk.data(np.zeros(4)))), factor * X)


def test_values_of_closures():
    function, rebind = made(2)
    for factor in (2, 2.5):
        rebind(factor)
        with fork():
            same(function(X), factor * X)


def test_a_plan_settles_no_types(monkeypatch):
    direct.plan(X, world_size=2)
    with fork():
        for factor in (4, 5.5):
            monkeypatch.setitem(globals(), "FACTOR", factor)
            direct.plan(X)
        same(direct(X), 5.5 * X)


@pytest.mark.whole
def test_types_of_functions_that_were_distributed(monkeypatch):
    with fork():
        same(direct(X), FACTOR * X)
    monkeypatch.setitem(globals(), "FACTOR", 2.5)
    mine = WeakTable()  # and none of other tests, some of which cannot be sent
    mine[direct._inner] = None
    monkeypatch.setattr(distribute, "_alive", mine)
    with fork():
        synk.distribute()
        monkeypatch.setitem(globals(), "FACTOR", 3)
        same(direct(X), 3 * X)


@pytest.mark.parametrize("function", [inside, *whole(direct)])
def test_other_values_in_the_same_world(monkeypatch, function):
    with fork():
        for factor in (2, 2.5, 2.5, 3, 1j, 2):
            monkeypatch.setitem(globals(), "FACTOR", factor)
            same(function(X), factor * X)


@pytest.mark.whole
def test_reductions_and_expectations(monkeypatch):
    for factor in (2, 2.5):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        with fork():
            for value in (factor, factor + 1):
                monkeypatch.setitem(globals(), "FACTOR", value)
                total = plus.reduce(X)
                assert (total, type(total)) == (X.sum() + 3 * value, type(X.sum() + 3 * value))
                assert mean(X).mean == value * X.mean()


def test_a_name_that_had_no_value_may_get_one(monkeypatch):
    monkeypatch.setitem(globals(), "FACTOR", None)
    with fork(), pytest.raises(synk.SynkError, match="none"):
        direct(X)
    monkeypatch.delitem(globals(), "FACTOR")
    with fork():
        with pytest.raises(synk.SynkError, match="FACTOR"):
            direct(X)
        monkeypatch.setitem(globals(), "FACTOR", 2.0)
        same(direct(X), 2.0 * X)
    with fork():
        same(direct(X), 2.0 * X)


# ---- errors of such functions


@synk.expectation
def misspelt_mean(seed, i):
    return synk.random.unifrom(seed, i, 0)


@synk.vectorize
def misspelt(seed, i):
    return synk.random.unifrom(seed, i, 0)


@synk.vectorize
def too_few(x):
    return 1 + cuda.atomic.add(x)


@pytest.mark.parametrize(
    ("call", "line", "words"),
    [
        (
            lambda: misspelt_mean(1, synk.arange(4)),
            "synk.random.unifrom(seed, i, 0)",
            "Did you mean synk.random.uniform?",
        ),
        (
            lambda: misspelt(1, X),
            "synk.random.unifrom(seed, i, 0)",
            "Did you mean synk.random.uniform?",
        ),
        (
            lambda: too_few(X),
            "return 1 + cuda.atomic.add(x)\n               ^^^^",
            "takes array, index, value",
        ),
    ],
    ids=["expectation", "member", "arguments"],
)
def test_errors_of_the_compiler_name_the_line(call, line, words):
    with fork(), pytest.raises(synk.SynkError) as caught:
        call()
    assert line in str(caught.value)
    assert words in str(caught.value)
    assert "^^^^" in str(caught.value)


def test_functions_that_make_rows_need_until():
    with fork():
        with pytest.raises(synk.ArgumentError, match=r"x of mean is a function.*until=.*max_rows="):
            mean(np.ones)
        with pytest.raises(synk.ArgumentError, match=r"returned a list; return an array"):
            mean(lambda n: [1.0] * n, until=lambda e: e.stderr < 1, max_rows=100)
