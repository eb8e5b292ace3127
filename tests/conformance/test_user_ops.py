"""Outputs whose op is a function of the user's: what NumPy, or Python one result after the
other, makes of the parts.
"""

import functools
import math

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from tests.conformance import expected
from tests.conformance.conftest import PRIVATE, ROWS


@pytest.fixture(params=[*ROWS, PRIVATE])
def row(request):
    return request.param


def xor(a, b):
    return a ^ b


@cuda.jit(device=True)
def log_add(a, b):
    """log(exp a + exp b)."""
    high, low = max(a, b), min(a, b)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


def last(a, b):
    """Associative, but not commutative: the last that there is."""
    return a if b == -1 else b


@cuda.jit(device=True)
def times(a, b):
    return a * b


def through_a_device_function(a, b):
    return times(a, b)


@synk.parallel(
    outputs={
        "parity": synk.output(xor, identity=0, shape=(), dtype="int64"),
        "logs": synk.output(log_add, identity=-math.inf, shape=(), dtype="float64"),
        "end": synk.output(last, identity=-1, shape=(2,), dtype="int32"),
        "product": synk.output(through_a_device_function, identity=1, shape=(), dtype="complex128"),
        "either": synk.output(lambda a, b: a or b, identity=False, shape=(), dtype="bool"),
    },
    block=1,
    grid=1,
)
def several(x, parity, logs, end, product, either):
    for i in range(x.shape[0]):
        parity[0] ^= int(x[i] * 1000)
        logs[0] = log_add(logs[0], x[i])
        end[0] = int(x[i] * 1000)
        end[1] = 7
        product[0] *= x[i]
        either[0] = either[0] or x[i] > 1.09


@pytest.mark.parametrize(
    "how", [{}, {"num_slices": 3}, {"shards": 4}, {"shards": 7, "num_slices": 2}], ids=str
)
def test_several_ops(world, how):
    for n in expected.lengths(world.world_size):
        x = expected.values(n)
        for _ in range(3):
            got = several(x, **how)
            whole = (x * 1000).astype("int64")
            assert got.parity == np.bitwise_xor.reduce(whole)
            assert isinstance(got.parity, np.int64)
            assert_allclose(got.logs, np.logaddexp.reduce(x), rtol=1e-13)
            assert_array_equal(got.end, np.array([whole[-1], 7], "int32"))
            assert got.end.dtype == np.int32
            assert_allclose(got.product, x.prod(), rtol=1e-12)
            assert got.either == (x > 1.09).any()
            assert isinstance(got.either, np.bool_)


def test_a_function_is_an_op_as_the_named_one(world):
    @synk.parallel(
        outputs={
            "own": synk.output(lambda a, b: a + b, identity=0, shape=(), dtype="float64"),
            "named": synk.output("sum", shape=(), dtype="float64"),
        },
        block=1,
        grid=1,
    )
    def both(x, own, named):
        for i in range(x.shape[0]):
            own[0] += x[i]
            named[0] += x[i]

    for n in (1, 7, 1001):
        result = both(expected.values(n), num_slices=3)
        if world.world_size < 8:  # NumPy adds fewer than 8 one after the other
            assert result.own.tobytes() == result.named.tobytes()


@pytest.mark.parametrize("n", [3, 5000, 300_000])
def test_arrays_of_every_size(world, n):
    @synk.parallel(outputs={"bits": synk.output(xor, identity=0, shape=n, dtype="int64")}, grid=4)
    def mixed(x, bits):
        for j in range(cuda.grid(1), bits.shape[0], cuda.gridsize(1)):
            for i in range(x.shape[0]):
                bits[j] ^= x[i] * j

    x = np.arange(11, 20)
    wanted = np.bitwise_xor.reduce(x[:, None] * np.arange(n), axis=0)
    for how in ({}, {"num_slices": 2}, {"shards": 3}, {}):
        assert_array_equal(mixed(x, **how), wanted)


@synk.function(outputs={"logs": synk.output(log_add, shape=(), identity=-math.inf), "words": xor})
def of_arrays(x):
    return {
        "logs": np.logaddexp.reduce(x, axis=0),
        "words": np.bitwise_xor.reduce((x * 1000).astype("int64"), axis=None),
    }


@pytest.mark.parametrize("how", [{}, {"num_slices": 3}, {"shards": 4}], ids=str)
def test_python_functions(world, how):
    if world.device == "cuda":
        pytest.skip("NumPy's function of NumPy arrays")
    for n in (1, 5, 64):
        x = expected.values(n * 3).reshape(n, 3)
        got = of_arrays(x, **how)
        assert_allclose(got["logs"], np.logaddexp.reduce(x, axis=0), rtol=1e-13)
        assert got["words"] == np.bitwise_xor.reduce((x * 1000).astype("int64").ravel())


def test_results_are_folded_in_order(world):
    """Seen with a function that is not associative: a digit for each shard."""

    @synk.parallel(
        outputs={
            "digits": synk.output(lambda a, b: a * 10 + b, identity=0, shape=(), dtype="int64")
        },
        block=1,
        grid=1,
    )
    def first_digits(x, digits):
        digits[0] = x[0]

    x = np.arange(1, 9)
    wanted = functools.reduce(
        lambda a, b: a * 10 + b, [int(part[0]) for part in expected.shards(x, 4)]
    )
    assert first_digits(x, shards=4) == wanted


@synk.vectorize
def less(a, b):
    return min(a, b)


@pytest.mark.whole
def test_a_vectorized_function_is_an_op(world):
    @synk.parallel(
        outputs={"least": synk.output(less, identity=math.inf, shape=(), dtype="float64")},
        block=1,
        grid=1,
    )
    def least_of(x, least):
        for i in range(x.shape[0]):
            least[0] = min(least[0], x[i])

    x = expected.values(101)
    for how in ({}, {"num_slices": 3}, {"shards": 4}):
        assert least_of(x, **how) == x.min() == less.reduce(x, **how)


def test_rank_without_rows(world):
    got = several(expected.values(1))
    assert got.end[1] == 7


def test_no_rows_at_all(world):
    got = several(np.zeros(0))
    assert (got.parity, got.logs, got.product, got.either) == (0, -math.inf, 1, False)
