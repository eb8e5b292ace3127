"""updates= with shards=K: the variable has the same bits on every rank, those that K parts have
when put together in order.
"""

import numpy as np
import pytest
from numba import cuda

import synknumba as synk
from tests.conformance import expected
from tests.conformance.conftest import PRIVATE, ROWS


@pytest.fixture(params=[*ROWS, PRIVATE])
def row(request):
    return request.param


UFUNC = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
IDENTITY = {"sum": 0.0, "prod": 1.0, "min": np.inf, "max": -np.inf}


def on_ranks(world, variable):
    return [variable.get_value(rank=rank) for rank in range(world.world_size)]


def folded(op, rows, start):
    out = np.float64(start)
    for row in rows:
        out = UFUNC[op](out, row)
    return out


def in_order(op, rows, shards, num_slices):
    """What parts of parts of the rows give, put together in order."""
    totals = []
    for shard in expected.shards(rows, shards):
        parts = [
            folded(op, part, IDENTITY[op])
            for part in expected.shards(shard, num_slices)
            if len(part)
        ]
        totals.append(parts[0] if num_slices == 1 and parts else folded(op, parts, IDENTITY[op]))
    return UFUNC[op].reduce(np.array(totals))


@pytest.mark.parametrize("num_slices", [1, 2])
def test_kernels_and_functions_assign_every_rank_the_same_bits(world, num_slices):
    total, low = synk.variable(5.0, name="total"), synk.variable(np.full(2, 7.0), name="low")

    @synk.parallel(updates={"to": (total, "sum"), "least": (low, "min")}, block=32, grid=1)
    @cuda.jit
    def by_kernel(x, to, least):
        if cuda.grid(1) == 0:
            for i in range(x.shape[0]):
                to[0] += x[i]
                least[1] = min(least[1], x[i])

    @synk.function(updates={"to": (total, "sum"), "least": (low, "min")})
    def by_function(x, to, least):
        for i in range(len(x)):
            to += x[i]
            least[1] = min(least[1], x[i])

    for n, k in ((1, 1), (3, 5), (64, 7), (101, 4)):
        x = expected.values(n)
        for call in (by_kernel, by_function):
            # not read: each call starts from the identity
            synk.set_value(world.world_size - 1, total, 99.0)
            assert call(x, shards=k, num_slices=num_slices) is None
            wanted = in_order("sum", x, k, num_slices)
            assert [value.tobytes() for value in on_ranks(world, total)] == [
                wanted.tobytes()
            ] * world.world_size
            for value in on_ranks(world, low):
                assert value.tolist() == [np.inf, x.min()]


@pytest.mark.parametrize("op", list(UFUNC))
def test_every_op(world, op):
    v = synk.variable(np.zeros(()), name="v")

    @synk.function(updates={"to": (v, op)})
    def update(x, to):
        for i in range(len(x)):
            to[...] = {
                "sum": to + x[i],
                "prod": to * x[i],
                "min": min(to, x[i]),
                "max": max(to, x[i]),
            }[op]

    x = 1.0 + 0.01 * expected.values(23)
    update(x, shards=5)
    for value in on_ranks(world, v):
        assert value == in_order(op, x, 5, 1)


def test_the_old_value_is_read_and_results_are_returned(world):
    s = synk.variable(np.array([2.0, 3.0]), name="s")

    @synk.function(outputs="sum", updates={"new": (s, "sum")}, givens={"s": s})
    def weigh(x, s, new):
        new += (x[:, None] * s).sum(axis=0)
        return s.sum()

    x = np.arange(10.0)
    for _ in range(3):
        s.set_value([2.0, 3.0])
        assert weigh(x, shards=4) == 4 * 5.0
        for value in on_ranks(world, s):
            assert value.tolist() == [90.0, 135.0]
    s.set_value([2.0, 3.0])
    weigh.as_serial(x, shards=4)
    assert [value.tolist() for value in on_ranks(world, s)] == [
        [90.0, 135.0],
        *[[2.0, 3.0]] * (world.world_size - 1),
    ]


def test_trees(world):
    model = synk.variable({"w": np.zeros(3), "b": np.zeros(())}, name="model")
    flat = synk.vector({"w": np.zeros(3), "b": np.zeros(())}, name="flat")

    @synk.function(updates={"one": (model, "sum"), "two": (flat, "sum")})
    def count(x, one, two):
        for tree in (one, two):
            tree["w"] += len(x)
            tree["b"] += x.sum()

    x = np.arange(9.0)
    count(x, shards=4, num_slices=2)
    for variable in (model, flat):
        for value in on_ranks(world, variable):
            assert value["w"].tolist() == [9.0] * 3
            assert value["b"] == 36.0


def test_a_failed_call_assigns_nothing(world):
    v = synk.variable(1.0, name="v")

    @synk.function(updates={"to": (v, "sum")})
    def fails(x, to):
        to += x.sum()
        if x[-1] == 9.0:
            raise ValueError("the last row")

    with pytest.raises(synk.RankError, match="the last row"):
        fails(np.arange(10.0), shards=4)
    assert on_ranks(world, v) == [1.0] * world.world_size


def test_variables_that_are_not_replicas_are_refused(world):
    rows = synk.scatter(synk.variable(np.zeros(1), name="rows"), np.arange(4.0 * world.world_size))

    @synk.function(updates={"to": (rows, "sum")})
    def update(x, to):
        to += len(x)

    with pytest.raises(
        synk.ArgumentError,
        match=r"updates\['to'\].*variable 'rows' are divided over the ranks; leave shards out",
    ):
        update(np.arange(8.0), shards=4)
    update(np.arange(8.0))
