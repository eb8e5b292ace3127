"""What has no derivative is refused by name, with its place and what to write, before anything is
compiled.
"""

import math
import re
from functools import partial

import numpy as np
import pytest
from numba import cuda, njit

import synknumba as synk

Error = synk.SynkError


def plain(x):
    return x * x


@njit
def of_itself(x, n):
    return x if n == 0 else x * of_itself(x, n - 1)


@cuda.jit(device=True)
def jumping(x):
    return x - math.floor(x)


def floor(x, p):
    return math.floor(p * x) + p


def whole(x, p):
    return int(p) * p


def narrow(x, p):
    return p * np.int32(p)


def quotient(x, p):
    return x * (p // 2.0)


def remainder(x, p):
    return (p * x) % 1.0


def index(x, p, table):
    return p * table[int(p)]


def through_a_variable(x, p, table):
    i = p * 3.0
    return table[i]


def element(x, p):
    scratch = cuda.local.array(4, np.float64)
    scratch[0] = p * x
    return scratch[0] * p


def added_element(x, p):
    scratch = cuda.local.array(4, np.float64)
    scratch[0] = 0.0
    scratch[0] += p * x
    return scratch[0] * p


def writing(x, p, out):
    out[0] = x
    return p * x


def adding(x, p, out):
    cuda.atomic.add(out, 0, p)
    return p * x


def seeded(x, p):
    return p * synk.random.uniform(int(x), p, 0)


def of_plain(x, p):
    return plain(p) * x


def gamma(x, p):
    return math.gamma(p) * x


def recursive(x, p):
    return of_itself(p, 3)


def device_function(x, p):
    return jumping(p) * x


def inner(x, p):
    def add(y):
        return y + p

    return add(x)


def walrus(x, p):
    return (y := p * x) + y


def over_a_tuple(x, p):
    total = 0.0
    for y in (p, x):
        total += y
    return total


def as_often(x, p):
    total = 0.0
    for _ in range(int(p)):
        total += p
    return total


def either(x, p):
    return p or x


def starred(x, p):
    a, *b = p, x, x
    return a + b[0]


def by_keyword(x, p):
    return max(p, x, key=abs)


REFUSED = (
    (floor, "math.floor of a value that depends on a parameter jumps"),
    (whole, "int of a value"),
    (narrow, "np.int32 of a value"),
    (quotient, "jumps, and is constant"),
    (remainder, "jumps"),
    (index, "an index depends on a parameter"),
    (through_a_variable, "an index depends on a parameter"),
    (element, "keep it in a variable"),
    (added_element, "keep it in a variable"),
    (writing, "it writes to out"),
    (adding, "it writes to out"),
    (seeded, "seeds, rows and draws are integers"),
    (of_plain, r"plain has no derivative here; .* decorated with @numba.njit"),
    (gamma, r"math.gamma has no derivative here; write it by functions of math"),
    (recursive, "of_itself calls itself.* write a loop"),
    (device_function, r"jumping \(.*math.floor of a value"),
    (inner, "write a device function"),
    (walrus, "the assignment as a statement"),
    (over_a_tuple, r"\(p, x\) depends on a parameter; loop over what"),
    (as_often, r"range\(int\(p\)\) depends on a parameter"),
    (either, "p or x has no derivative; write it by arithmetic and if"),
    (starred, "assign to names"),
    (by_keyword, "max is called with keywords"),
)


@pytest.mark.parametrize(("function", "reason"), REFUSED)
def test_what_has_no_derivative(function, reason):
    expectation = synk.expectation(function)
    with pytest.raises(Error, match=reason) as caught:
        expectation.derivative("p")
    message = str(caught.value)
    assert f"{function.__name__}.derivative('p')" in message
    if function is not recursive:
        assert re.search(rf"{re.escape(__file__)}:\d+", message)


def square(x, i, seed, p, q=1.0):
    return p * p * x * q


def above(x, p):
    return 1.0 if x > p else 0.0


def log_density(x, p):
    return -p * x


def test_names_that_are_no_parameters():
    expectation = synk.expectation(square)
    with pytest.raises(
        Error, match="'beta' is not a parameter of square, .*; it has x, i, seed, p, q"
    ):
        expectation.derivative("beta")
    with pytest.raises(Error, match="'p' is .* not a new one"):
        expectation.gradient("p", "p")


def test_a_derivative_that_is_0_everywhere():
    with pytest.raises(Error, match=r"depends on p by comparisons only.* pass score="):
        synk.expectation(above).derivative("p")
    with pytest.raises(Error, match="depends on seed by comparisons only, or not at all"):
        synk.expectation(square).gradient("p", "seed")
    synk.expectation(above).derivative("p", score=log_density)


def test_densities_of_other_parameters():
    derivative = synk.expectation(above).derivative
    with pytest.raises(Error, match="takes x, spot; it must be a function of parameters"):
        derivative("p", score=lambda x, spot: x * spot)
    with pytest.raises(Error, match="takes x; it must be"):
        derivative("p", score=lambda x: -x)
    with pytest.raises(Error, match="a function of numbers is required, got 3"):
        derivative("p", score=3)


def test_arguments_that_are_no_floats():
    plan = partial(synk.expectation(square).gradient("p", "q").plan, world_size=2)
    x, i = np.ones(10), synk.arange(10)
    plan(x, i, 1, np.float32(2.0), q=np.array(3.0))
    for p in (2, np.int32(2), True, np.array(2)):
        with pytest.raises(Error, match=r"p is an integer; pass a float, as in p=2\.0"):
            plan(x, i, 1, p)
    with pytest.raises(Error, match="p has rows; differentiate by a parameter that is one number"):
        plan(x, i, 1, x)
    table = partial(synk.expectation(square, broadcast=("p",)).derivative("p").plan, world_size=2)
    with pytest.raises(Error, match="p is an array; make the number a parameter of its own"):
        table(x, i, 1, x)


def test_weights_that_may_depend_on_the_parameter():
    with pytest.raises(Error, match="propagate the quotient"):
        synk.expectation(lambda x, p: (p * x, p), weights=True).derivative("p")
    with pytest.raises(Error, match="propagate the quotient"):
        synk.expectation(square, weights="p").derivative("p")


def test_functions_without_source():
    namespace = {}
    exec("def f(x, p):\n    return p * x", namespace)
    with pytest.raises(Error, match="the Python source of the kernel cannot be found"):
        synk.expectation(namespace["f"], size=0).derivative("p")


def test_derivatives_are_made_once():
    expectation = synk.expectation(square)
    assert expectation.derivative("p") is expectation.derivative("p")
    assert expectation.derivative("p") is not expectation.derivative("q")
    assert repr(expectation.derivative("p")) == (
        "<synknumba expectation square.derivative('p')(x, i, seed, p, q)>"
    )


def test_conditions_take_the_branch_of_the_value():
    """What is compared may jump."""

    def steps(x, p):
        return p * x if math.floor(p) % 2 == 0 and int(p) // 2 < 3 else -p

    slope = partial(synk.expectation(steps).derivative("p").py_func, 3.0)
    assert (slope(2.5), slope(3.5)) == (3.0, -1.0)
