"""Which functions a kernel may hold several times, for several rows at once."""

import math
from math import exp

import numpy as np
import pytest
from numba import cuda, float32

from synknumba._rowwise.generate import is_light

SCALE, TABLE, PAIR = 2.0, np.arange(3.0), (1.0, 2.0)
fabs = object()  # of the same name as a function of `math` that is used


@cuda.jit(device=True)
def another(x):
    return x


def loops(x):
    total = 0.0
    for k in range(3):
        total += x * k
    return total


def has_a_loop_inside(x):
    def inside(y):
        for _ in range(1000):
            y *= x
        return y

    return inside(x)


def halves(x):
    while x > 1.0:
        x /= 2.0
    return x


LIGHT = [
    lambda x: x,
    lambda x, y: y * math.exp(-x * x),
    lambda x: (SCALE * x, TABLE[1] * x * x),
    lambda x: exp(x) if x < 0.0 else np.sqrt(x),
    lambda x, low: max(float(x), abs(low)),
    lambda x: math.pow(x, 2.0) + np.round(x),  # named as builtins are
    lambda x: math.fabs(x) + PAIR[0],
    lambda x: float32(x) * x,
]

HEAVY = [
    loops,
    halves,
    has_a_loop_inside,
    lambda x: [x * one for one in PAIR][0],  # noqa: RUF015
    lambda x: another(x) + 1.0,
    lambda x: sum(x) + 1.0,
    lambda x: math.exp(x) * math.sin(x) + math.cos(x) * math.log(x),
    eval("lambda x: " + " * ".join("x" * 60)),
]


@pytest.mark.parametrize("function", LIGHT, ids=range(len(LIGHT)))
def test_a_few_operations_are_light(function):
    assert is_light(function)


@pytest.mark.parametrize("function", HEAVY, ids=range(len(HEAVY)))
def test_loops_and_calls_are_not(function):
    assert not is_light(function)


def test_a_function_of_a_variable_around_it_is_as_heavy_as_that():
    def around(scale):
        return lambda x: scale * x if isinstance(scale, float) else scale(x)

    assert not is_light(around(2.0))  # isinstance() is no function of numbers

    def by(scale):
        return lambda x: scale * x

    def before_it_has_a_value():
        found = is_light(lambda x: scale * x)
        scale = 2.0
        return found, scale

    assert is_light(by(2.0))
    assert not is_light(by(another))
    assert not before_it_has_a_value()[0]
