"""Outputs that a kernel never stores to are refused when it is decorated; those that it may
store to are not.
"""

import re

import numpy as np
import pytest
from numba import cuda

import synknumba as synk

NEVER, MAYBE = [], []


def never(op, line):
    def note(function):
        NEVER.append(pytest.param(function, op, line, id=f"{function.__name__}-{op}"))
        return function

    return note


def maybe(function):
    MAYBE.append(pytest.param(function, id=function.__name__))
    return function


@never("sum", "an atomic operation, as cuda.atomic.add(t, 0, …), or t[0] = …")
@never("max", "an atomic operation, as cuda.atomic.max(t, 0, …), or t[0] = …")
@never("prod", "t[0] = …")
@never("gather", "t[i] = …, with i = cuda.grid(1)")
@never(None, "t[0] = …")
def unused(x, t):
    s = 0.0
    for i in range(cuda.grid(1), len(x), cuda.gridsize(1)):
        s += x[i]


@never("sum", "an atomic operation, as cuda.atomic.add(t, 0, …), or t[0] = …")
def only_read(x, t):
    i = cuda.grid(1)
    if i < len(t) and t.shape[0] > 0 and t[i] < 1:
        x[i] = 2 * t[i] + t.size


@maybe
def stored(x, t):
    t[0] = x[0]


@maybe
def added(x, t):
    if cuda.grid(1) == 0:
        t[0] += x[0]


@maybe
def by_an_atomic(x, t):
    cuda.atomic.add(t, 0, x[cuda.grid(1)])


@maybe
def in_a_tuple(x, t):
    t[0], _ = x[0], 1


@maybe
def a_row(x, t):
    t[0][1] = x[0]


@maybe
def a_field(x, t):
    t[0].a = x[0]


@maybe
def renamed(x, t):
    to = t
    to[0] = x[0]


@maybe
def a_view(x, t):
    row = t[0]
    row[1] = x[0]


@maybe
def views(x, t):
    for row in t:
        row[1] = x[0]


@cuda.jit(device=True)
def put(to, x):
    to[0] = x


@maybe
def by_a_function(x, t):
    put(t, x[0])


@maybe
def row_by_a_function(x, t):
    put(t[1], x[0])


@maybe
def either(x, t):
    to = x if len(x) else t
    to[0] = 1


@maybe
def by_a_function_of_its_own(x, t):
    def inner():
        t[0] = x[0]

    inner()


@maybe
def not_written_yet(x, t):
    """Is to be written."""


@maybe
def checks(x, t):
    if x[cuda.grid(1)] < 0:
        raise ValueError("negative")


def define(function, op):
    return synk.parallel(outputs={"t": synk.output(op, shape=(), dtype="float64")}, inout=("x",))(
        cuda.jit(function)
    )


@pytest.mark.parametrize(("function", "op", "line"), NEVER)
def test_refused(function, op, line):
    with pytest.raises(
        synk.ArgumentError, match="never stores to its output t, which would be"
    ) as caught:
        define(function, op)
    text = str(caught.value)
    assert text.startswith(f"{function.__name__} ({__file__}:")
    assert f"Write {line}; or leave t out" in text
    assert re.search(rf":{function.__code__.co_firstlineno + text_lines(function)}\)", text)


def text_lines(function):
    return sum(case.values[0] is function for case in NEVER)  # decorators above the definition


@pytest.mark.parametrize("function", MAYBE)
def test_allowed(function):
    assert define(function, "sum").py_func is function


def test_without_source():
    namespace = {"cuda": cuda}
    exec("def f(x, t):\n    i = cuda.grid(1)", namespace)
    assert define(namespace["f"], "sum").name == "f"


def test_the_advice_is_right():
    @synk.parallel(outputs={"t": synk.output("sum", shape=(), dtype="float64")})
    @cuda.jit
    def total(x, t):
        i = cuda.grid(1)
        if i < x.shape[0]:
            cuda.atomic.add(t, 0, x[i])

    with synk.fork(2, device="cpu"):
        assert total(np.arange(100.0)) == 4950
