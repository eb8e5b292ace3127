"""Where one flag is needed, True or False is required: a list would count as True, and so would
"no".
"""

import numpy as np
import pytest

import synknumba as synk
from synknumba import Estimate, simt


def square(x):
    return x * x


@synk.vectorize
def vectorized(x, y):
    return x + y


def kept():
    return synk.data(np.zeros(3))


def set_minibatch(value):
    kept().minibatch = value


TAKERS = {
    "data minibatch": lambda flag: synk.data(np.zeros(3), minibatch=flag),
    "data force_cast": lambda flag: synk.data(np.zeros(3), force_cast=flag),
    "declared force_cast": lambda flag: synk.data(dtype=float, shape=3, force_cast=flag),
    "set minibatch": set_minibatch,
    "set_value force_cast": lambda flag: kept().set_value(np.ones(3), force_cast=flag),
    "fork profile": lambda flag: synk.fork(1, device="cpu", profile=flag),
    "fork prefix_output": lambda flag: synk.fork(1, device="cpu", prefix_output=flag),
    "expectation covariance": lambda flag: synk.expectation(square, covariance=flag),
    "from_values covariance": lambda flag: Estimate.from_values([1.0, 2.0], covariance=flag),
    "blocked covariance": lambda flag: Estimate.blocked([1.0, 2.0], covariance=flag),
    "reduce keepdims": lambda flag: vectorized.reduce(np.zeros(3), keepdims=flag),
    "jit debug": lambda flag: simt.jit(square, debug=flag),
    "jit cache": lambda flag: simt.jit(square, cache=flag),
}


@pytest.mark.parametrize("taker", TAKERS)
def test_what_is_no_flag_is_refused(taker):
    name = taker.split()[1]
    for value in ([False], (True, False), "no", 2, np.array([True])):
        with pytest.raises(synk.ArgumentError, match=f"{name}.* must be True or False, got"):
            TAKERS[taker](value)


@pytest.mark.parametrize("value", [False, np.False_])
def test_flags_of_numpy_are_flags(value):
    for name, take in TAKERS.items():
        if not name.startswith(("fork", "reduce")):  # which need no world, or one
            take(value)


def test_weights_are_named_once():
    for weights in (["x"], ("x",), 1, [True]):
        with pytest.raises(
            synk.ArgumentError,
            match="weights= of square must be the name of a parameter, True or None",
        ):
            synk.expectation(square, weights=weights)
