"""shards=K in worlds of different sizes: the same bits. What cannot have them is refused."""

import functools
import math
import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda

import synknumba as synk
from synknumba import random
from synknumba._ops.rows import Partition
from synknumba._wire.program import Program, RowSource

SIZES = (1, 2, 3, 5)
X = np.random.default_rng(1).lognormal(0.0, 4.0, 10_007)  # a sum's last bits depend on the order


@synk.parallel(
    outputs={
        "total": synk.output("sum", shape=(), dtype="float32"),
        "mean": synk.output("mean", shape=(2,)),
    }
)
@cuda.jit
def sums(x, total, mean):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(total, 0, x[i])
        cuda.atomic.add(mean, i % 2, math.sqrt(x[i]) / x.shape[0])


@synk.function(outputs="sum")
def python_sum(x):
    return np.sum(np.exp(-x))


@synk.expectation
def drawn(i, seed):
    return math.exp(random.normal(seed, i, 0))


@synk.expectation(weights=True)
def tail(i, seed):
    x = 3.0 + random.normal(seed, i, 0)
    return x > 3.0, math.exp(4.5 - 3.0 * x)


@synk.expectation(covariance=True)
def logs(x):
    return math.log(x), math.sqrt(x)


@synk.vectorize
def product(x, y):
    return x * y


@synk.vectorize(["float32(float32, float32)"])
def add(x, y):
    return x + y


def bits(value):
    return (
        tuple(np.asarray(part).tobytes() for part in value)
        if isinstance(value, tuple)
        else np.asarray(value).tobytes()
    )


def of_estimate(estimate):
    return bits((estimate.mean, estimate.variance, estimate.stderr, estimate.count))


CALLS = {
    "kernel": lambda **how: bits(sums(X, **how)),
    "kernel of a batch": lambda **how: bits(sums(X, batch=slice(7, 5000, 3), **how)),
    "kernel of a list": lambda **how: bits(sums(X, batch=[4000, 3, 3, 17, 9000, 88, 1, 0], **how)),
    "function": lambda **how: bits(python_sum(X, **how)),
    "random numbers": lambda **how: of_estimate(drawn(synk.arange(20_001), 5, **how)),
    "covariance": lambda **how: of_estimate(logs(X, **how)),
    "weights": lambda **how: of_estimate(tail(synk.arange(5000), 5, **how)),
    "reduction": lambda **how: bits(product.reduce(1 + 1e-4 * np.sin(X), **how)),
    "reduction of columns": lambda **how: bits(
        add.reduce(X.astype("float32")[:10_000].reshape(500, 20), **how)
    ),
}


def in_worlds(calls):
    """Results by name, of each world."""
    found = {name: [] for name in calls}
    for size in SIZES:
        with synk.fork(size, device="cpu"):
            for name, call in calls.items():
                found[name].append(call())
    return found


@pytest.mark.whole  # 30 s; on rows: tests/conformance/test_shards.py
def test_the_same_bits_in_every_world():
    cases = [(4, 1), (7, 3)]
    calls = {
        (name, k, s): (lambda call=call, k=k, s=s: call(shards=k, num_slices=s))
        for name, call in CALLS.items()
        for k, s in cases
    }
    for name, found in in_worlds(calls).items():
        assert len(set(found)) == 1, name


@pytest.mark.whole
def test_without_shards_the_bits_differ():
    """Else the test above would say nothing."""
    found = in_worlds(CALLS)
    assert all(len(set(results)) > 1 for results in found.values())


@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})
def with_number(x, number, total):
    if cuda.grid(1) == 0:
        total[0] += x.shape[0] + number


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (synk.RANK, "synk.RANK"),
        (synk.WORLD_SIZE, "synk.WORLD_SIZE"),
        (synk.per_rank([1, 2]), "one value per rank"),
    ],
)
def test_what_differs_between_worlds_is_refused(number, told):
    with synk.fork(2, device="cpu"):
        with pytest.raises(
            synk.ArgumentError,
            match=f"(?s)with_number got shards=.*number .*{told}.*leave shards out",
        ):
            with_number(X, number, shards=4)
        with_number(X, number)


def test_variables_of_the_ranks_own_are_refused():
    rows = synk.variable(X[:10])

    @synk.parallel(rows=("own",), outputs={"count": synk.output("sum", shape=())})
    def of_own(own, count):
        if cuda.grid(1) == 0:
            count[0] += own.shape[0]

    with (
        synk.fork(2, device="cpu"),
        pytest.raises(synk.ArgumentError, match="own is a sliceable variable"),
    ):
        of_own(rows, shards=4)


def trained(size, *, shards):
    """Bits of the weights on every rank after 20 steps of a logistic regression."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(503, 4)), rng.integers(0, 2, 503).astype(float)
    w, g = synk.variable(np.zeros(4), name="w"), synk.variable(np.zeros(4), name="g")

    @synk.parallel(givens={"w": w}, updates={"to": (g, "sum")})
    @cuda.jit
    def gradient(x, y, w, to):
        i = cuda.grid(1)
        if i < x.shape[0]:
            z = 0.0
            for j in range(x.shape[1]):
                z += x[i, j] * w[j]
            for j in range(x.shape[1]):
                cuda.atomic.add(to, j, x[i, j] * (1.0 / (1.0 + math.exp(-z)) - y[i]))

    @synk.function
    def step(w, g, rate):
        w -= rate * g

    with synk.fork(size, device="cpu") as world:
        data, target = synk.data(x), synk.data(y)
        for at in range(20):
            gradient(data, target, batch=slice(7 * at, 7 * at + 307), shards=shards)
            if shards is None:
                synk.all_reduce(g, "sum")
            step(w, g, 0.3 / len(x))
        return {w.get_value(rank=rank).tobytes() for rank in range(world.world_size)}


@pytest.mark.whole
def test_twenty_steps_of_training_have_the_same_bits_on_any_number_of_ranks():
    found = [trained(size, shards=6) for size in (1, 2, 3)]
    assert len(set.union(*found)) == 1
    # else the line above says nothing
    assert len(set.union(*[trained(size, shards=None) for size in (1, 2, 3)])) > 1


def test_shards_of_nothing_are_refused():
    with (
        synk.fork(2, device="cpu"),
        pytest.raises(synk.ArgumentError, match="no rows to cut into shards"),
    ):
        with_number(synk.variable(X), 1, shards=4)


@pytest.mark.parametrize("shards", [0, -1, 2.0, "2", True, [1]], ids=str)
def test_bad_shards(shards):
    with (
        synk.fork(1, device="cpu"),
        pytest.raises(synk.PartitionError, match="shards must be an integer of at least 1"),
    ):
        with_number(X, 1, shards=shards)


def test_a_parameter_cannot_be_called_shards():
    with pytest.raises(synk.ArgumentError, match="'shards', which is an option of every call"):

        @synk.parallel
        def kernel(shards):
            pass


@given(shards=st.integers(1, 40), world_size=st.integers(1, 12), solo=st.booleans())
def test_each_shard_is_run_once_and_in_order(shards, world_size, solo):
    program = Program(
        0,
        0,
        (),
        RowSource("all", 5),
        Partition.even(1 if solo else world_size),
        shards=shards,
        solo=solo,
    )
    owned = [list(range(*program.own_shards(rank))) for rank in range(world_size)]
    assert [shard for ours in owned for shard in ours] == list(range(shards))
    assert max(map(len, owned)) == (shards if solo else -(-shards // world_size))


@settings(max_examples=40)
@given(
    n=st.integers(1, 60),
    k=st.integers(1, 20),
    num_slices=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def has_the_bits_of_its_shards(n, k, num_slices, seed):
    x = np.random.default_rng(seed).normal(size=n)
    got = in_order(x, shards=k, num_slices=num_slices)
    assert got.tobytes() == in_order.as_serial(x, shards=k, num_slices=num_slices).tobytes()
    parts = [np.float64(0)] * k
    for shard in range(k):
        rows = x[shard * n // k : (shard + 1) * n // k]
        for cut in range(num_slices):
            part = rows[cut * len(rows) // num_slices : (cut + 1) * len(rows) // num_slices]
            parts[shard] += functools.reduce(operator.add, part, np.float64(0))
    assert got.tobytes() == np.add.reduce(parts).tobytes()


@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")}, grid=1, block=1)
def in_order(x, total):
    for i in range(x.shape[0]):
        total[0] += x[i]


def test_any_number_of_shards_and_slices():
    with synk.fork(3, device="cpu"):
        has_the_bits_of_its_shards()


def test_no_rows_at_all():
    with synk.fork(2, device="cpu"):
        assert with_number(X[:0], 1, shards=3) == 0


def test_the_plan_says_it():
    report = sums.plan(X[:10], shards=4, num_slices=2, world_size=3)
    assert report.shards == 4
    assert "10 rows in 4 shards" in str(report)
    assert [rank.rows for rank in report.ranks] == [(0, 2), (2, 5), (5, 10)]
    assert [rank.slices for rank in report.ranks] == [
        ((0, 1), (1, 2)),
        ((2, 3), (3, 5)),
        ((5, 6), (6, 7), (7, 8), (8, 10)),
    ]
