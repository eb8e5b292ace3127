"""Kernels that ask for no position, launched with many threads: refused if each thread certainly adds all of the sum."""

import math

import numpy as np
import pytest
from numba import cuda

import synknumba as synk

OUT = {"t": synk.output("sum", shape=(), dtype="float64")}


def by_every_thread(x, t):
    for i in range(len(x)):
        t[0] += x[i]


def with_an_atomic(x, t):
    for i in range(x.shape[0]):
        cuda.atomic.add(t, 0, math.exp(x[i]))


def spelled_out(x, t):
    for i in range(x.shape[0]):
        t[0] = t[0] + np.float64(x[i])


def in_place(x, t):
    for i in range(x.shape[0]):
        x[i] *= 2
    t[0] = 1


def of_a_thread(x, t):
    i = cuda.grid(1)
    if i < len(x):
        cuda.atomic.add(t, 0, x[i])


def of_one_thread(x, t):
    if cuda.threadIdx.x == 0 and cuda.blockIdx.x == 0:
        t[0] += x[0]


def of_a_lane(x, t):
    cuda.atomic.add(t, 0, x[cuda.laneid])


def assigned(x, t):
    s = 0.0
    for i in range(len(x)):
        s += x[i]
    t[0] = s


def threads(x, t):
    cuda.atomic.add(t, 0, 1)


def once(x, t):
    if cuda.atomic.cas(t, 0, 0.0, 1.0) == 0:
        t[0] += x[0]


@cuda.jit(device=True)
def position():
    return cuda.grid(1)


def by_a_function(x, t):
    i = position()
    t[0] += x[i]


def define(function, **launch):
    return synk.parallel(outputs=OUT, inout=("x",), **launch)(cuda.jit(function))


@pytest.mark.parametrize("function", [by_every_thread, with_an_atomic, spelled_out, in_place], ids=lambda one: one.__name__)
@pytest.mark.parametrize("launch", [{}, {"block": 64}, {"block": 1}])
def test_refused(function, launch):
    with pytest.raises(synk.LaunchError, match=r"each thread .*Use i = cuda\.grid\(1\).*grid=1, block=1") as caught:
        define(function, **launch)
    assert str(caught.value).startswith(f"{function.__name__} ({__file__}:{function.__code__.co_firstlineno + 2})")


@pytest.mark.parametrize(
    "function", [of_a_thread, of_one_thread, of_a_lane, assigned, threads, once, by_a_function], ids=lambda one: one.__name__
)
def test_allowed(function):
    assert define(function).py_func is function


@pytest.mark.parametrize("launch", [{"grid": 1, "block": 1}, {"grid": 2}])
def test_sizes_that_are_given(launch):
    assert define(by_every_thread, **launch).py_func is by_every_thread


def test_the_advice_is_right():
    with synk.fork(2, device="cpu"):
        assert define(by_every_thread, grid=1, block=1)(np.arange(100.0)) == 4950
