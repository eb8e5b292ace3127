"""Rules that predecessors published, each with its numbers: those about variables. The others
are in ../test_manual.py.
"""

import gc
import weakref

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from tests.conformance.variables.ranks import assert_held, held, put, shard_of, shards

pytestmark = pytest.mark.usefixtures("usable")
CHAPTER_3 = np.array([[1.0, 1], [2, 2], [3, 3], [4, 4]])


def chapter_3():
    """The manual's function: s ← Σ x·s over rows."""
    s = synk.variable(np.ones(2), name="s")

    @synk.function(updates={"new": (s, "sum")}, givens={"s": s})
    def f(x, s, new):
        new += (x * s).sum(0)

    return s, f


# ---- updates -------------------------------------------------------------------------------------


def test_chapter_3_to_the_digit(world):
    """Two ranks: root [3, 3], gathered [[3, 3], [7, 7]]; reduced [[10, 10], [7, 7]]; all-reduced
    [[10, 10], [10, 10]].
    """
    s, f = chapter_3()
    f.as_serial(CHAPTER_3)
    assert_array_equal(s.get_value(), [10, 10])

    synk.broadcast(s, np.ones(2))
    f(CHAPTER_3)
    own = [part.sum(0) for part in shards(CHAPTER_3, world)]
    assert_array_equal(synk.gather(s, nd_up=1), own)
    if world.world_size == 2:
        assert_array_equal(s.get_value(), [3, 3])
        assert_array_equal(synk.gather(s, nd_up=1), [[3, 3], [7, 7]])
    synk.reduce(s, "sum")
    assert_array_equal(s.get_value(), [10, 10])
    assert_array_equal(synk.gather(s, nd_up=1), [[10, 10], *own[1:]])

    synk.broadcast(s, np.ones(2))
    f(CHAPTER_3)
    synk.all_reduce(s, "sum")
    assert_array_equal(synk.gather(s, nd_up=1), np.full((world.world_size, 2), 10))


def test_updates_with_slices_accumulate_with_the_old_value(world):
    """From s = 1, s ← s·Σ x in two slices: there the update ran twice, one after the other."""
    s = synk.variable(1.0)

    @synk.function(updates={"new": (s, "sum")}, givens={"s": s})
    def f(x, s, new):
        new += s * x.sum()

    for x in (np.array([1.0, 2, 3, 4]), np.arange(21.0)):
        for num_slices in (1, 2, 3):
            synk.broadcast(s, 1.0)
            f(x, num_slices=num_slices)
            assert_held(s, world, lambda rank, x=x: shard_of(x, world, rank).sum())
            synk.all_reduce(s, "sum")
            assert s.get_value() == x.sum()


# ---- local_batch ---------------------------------------------------------------------------------


def test_local_batch_of_0_to_5_and_6_to_11(fork_row, row):
    """Two ranks, 12 rows. The world is of two whatever the row, and of the row's devices."""
    devices = row.get("devices", [])
    two = {"devices": (devices * 2)[:2]} if devices else {"world_size": 2}

    @synk.function(outputs="gather", rows=("v",))
    def rows(v):
        return v

    with fork_row(**two):
        v = synk.scatter(synk.variable(np.zeros(1)), np.arange(12.0))
        for local_batch, chosen in (
            ([0, 1, 5], [0, 1, 5, 6, 7, 11]),
            (slice(2, 4), [2, 3, 8, 9]),
            ([slice(0, 2), slice(3, 6)], [0, 1, 9, 10, 11]),
            ([[0, 1], [4, 5]], [0, 1, 10, 11]),
        ):
            for num_slices in (1, 2):
                assert_array_equal(rows(v, local_batch=local_batch, num_slices=num_slices), chosen)


def test_scattered_inputs_together_with_sliceable_variables(world):
    """There they could not be used in one call."""
    x, value = np.arange(13.0), np.arange(13.0) * 100
    v = synk.scatter(synk.variable(value[:1]), value)

    @synk.function(outputs="gather", rows=("v",))
    def together(x, v):
        return x + v

    for num_slices in (1, 2, 4):
        assert_array_equal(together(x, v, num_slices=num_slices), x + value)


def test_scattered_variables_and_inputs_align(world):
    """There, scatter and calls divided rows by different rules."""
    for n in (1, 5, 10, 11, 100):
        value = np.arange(1.0 * n)
        v = synk.scatter(synk.variable(value), value)

        @synk.function(outputs=None)
        def differ(x, v):
            return abs(x - v).sum()

        assert not any(differ(value, v))


# ---- collectives ---------------------------------------------------------------------------------


def test_avg_of_integers_is_never_zero(world):
    """There 1/n was cast to the integer type."""
    v = synk.variable(np.full(3, 7))
    for collective in (synk.reduce, synk.all_reduce, synk.reduce_scatter):
        with pytest.raises(synk.ReductionError, match=r"avg.*int64.*use 'sum' and divide"):
            collective(v, "avg")
    assert_held(v, world, np.full(3, 7))
    assert_array_equal(synk.all_reduce(v, "sum").get_value() / world.world_size, np.full(3, 7.0))


def test_gather_and_all_gather_of_unequal_lengths_give_the_true_rows(world):
    """There NCCL lost rows, or invented some."""
    arrays = [
        np.arange(10.0 * rank, 10 * rank + (3 * rank + 2) % 5) for rank in range(world.world_size)
    ]
    v = put(synk.variable(np.zeros(1)), arrays)
    assert_array_equal(synk.gather(v, nd_up=0), np.concatenate(arrays))
    synk.all_gather(v)
    assert_held(v, world, np.concatenate(arrays))


# ---- broken there, must work here ----------------------------------------------------------------


def test_broadcast_and_set_value_with_data(world):
    v, data = synk.variable(np.zeros(3)), synk.data(np.arange(3.0))
    synk.broadcast(v, data)
    assert_held(v, world, np.arange(3.0))
    data.set_value(np.arange(5.0) + 1)
    for rank in range(world.world_size):
        synk.set_value(rank, v, data)
    assert_held(v, world, np.arange(5.0) + 1)
    synk.scatter(v, data)
    assert_held(v, world, lambda rank: shard_of(data.data, world, rank))


def test_set_and_get_value_on_any_rank_and_the_root(world):
    v = synk.variable(np.zeros((2, 2)))
    for rank in range(world.world_size):
        synk.set_value(rank, v, np.full((2, 2), rank + 1.0))
    for rank in range(world.world_size):
        assert_array_equal(synk.get_value(rank, v), np.full((2, 2), rank + 1.0))
        assert_array_equal(v.get_value(rank), np.full((2, 2), rank + 1.0))
    v.set_value(np.zeros((2, 2)))
    assert_array_equal(v.get_value(), np.zeros((2, 2)))
    assert_held(v, world, np.zeros((2, 2)))


def test_the_variables_first_or_the_rank(world):
    v, u = synk.variable(np.zeros(2)), synk.variable(np.zeros(3))
    last = world.world_size - 1
    synk.set_value([v, u], [np.full(2, 4.0), np.full(3, 5.0)])
    assert_held(v, world, np.full(2, 4.0))
    synk.set_value(v, [1.0, 2.0], rank=last)
    synk.set_value(last, u, [1.0, 2.0, 3.0])
    for values in (synk.get_value([v, u], rank=last), synk.get_value(last, [v, u])):
        assert_array_equal(values[0], [1.0, 2.0])
        assert_array_equal(values[1], [1.0, 2.0, 3.0])
    synk.scatter(v, np.arange(8.0))
    if last:
        with pytest.raises(synk.PartitionError, match="divided among the ranks"):
            synk.get_value(v)
        with pytest.raises(synk.PartitionError, match="divided among the ranks"):
            synk.set_value([u, v], [np.zeros(3), np.zeros(2)])
    assert_array_equal(synk.get_value(u, 0), np.full(3, 5.0) if last else [1.0, 2.0, 3.0])


def test_older_names(world):
    v = synk.scatter(synk.variable(np.zeros(1)), np.arange(6.0))
    total = synk.function(lambda v: v.sum(), outputs="sum", sliceable=("v",))
    assert total(v) == 15.0
    with pytest.raises(synk.ArgumentError, match="sliceable="):
        synk.function(lambda v: v.sum(), outputs="sum", sliceable=("v",), rows=("v",))
    with pytest.warns(DeprecationWarning, match=r"synk\.vector"):
        flat = synk.flatten([np.zeros(2), np.ones(2)])
    assert_array_equal(synk.reduce(flat, "mean", in_place=False)[1], np.ones(2))


@pytest.mark.parametrize("ndim", range(6))
def test_collectives_on_any_number_of_dimensions(world, ndim):
    shape = (2, 3, 1, 2, 2)[:ndim]
    arrays = [
        np.arange(1.0, 1 + np.prod(shape, dtype=int)).reshape(shape) * (rank + 1)
        for rank in range(world.world_size)
    ]
    v = put(synk.variable(np.zeros(shape)), arrays)
    assert_array_equal(synk.gather(v), arrays)
    assert_array_equal(synk.reduce(v, "sum", in_place=False), sum(arrays))
    synk.all_reduce(v, "max")
    assert_held(v, world, arrays[-1])
    if ndim:
        synk.all_gather(v)
        assert_held(v, world, np.concatenate([arrays[-1]] * world.world_size))


def test_reduce_not_in_place_leaves_the_variable_alone(world):
    arrays = [np.array([rank, 2.0]) for rank in range(world.world_size)]
    v = put(synk.variable(np.zeros(2)), arrays)
    assert_array_equal(synk.reduce(v, "sum", in_place=False), sum(arrays))
    assert_allclose(synk.reduce(v, "avg", in_place=False), np.mean(arrays, axis=0))
    assert_held(v, world, lambda rank: arrays[rank])


def test_the_first_scatter_may_take_an_index_list(world):
    value = np.arange(9.0)
    v = synk.variable(np.zeros(1))
    synk.scatter(v, value, batch=[8, 0, 0, 3, -1])
    assert_held(v, world, lambda rank: shard_of(value[[8, 0, 0, 3, -1]], world, rank))


def test_modes_of_outputs_and_updates(world):
    """Both broken there."""
    s = synk.variable(np.zeros(2))

    @synk.function(outputs=("sum", "max"), updates={"acc": (s, "prod")})
    def f(x, acc):
        return x.sum(), x.max()

    assert f.plan(np.ones(9)).outputs == (("result", ("sum", "max")),)
    assert f.update_modes == {"acc": "prod"}


def test_dropping_a_variable_frees_its_memory(world):
    """Also where functions and collectives have used it. There it never did."""
    v = synk.variable(np.zeros(1000))
    doubled = synk.function(outputs="sum", name="doubled")(lambda v: (2 * v).sum())
    for _ in range(2):
        doubled(v)
        synk.all_reduce(v, "mean")
    gone = weakref.ref(v._state.storage())
    del v
    gc.collect()
    assert gone() is None
    assert doubled(synk.variable(np.ones(3))) == 6 * world.world_size


def test_variables_keep_their_identity_when_functions_are_distributed(world):
    """There functions were pickled together, once; here any number of times, before and after
    calls.
    """
    v = synk.variable(np.ones(2))
    first = synk.function(lambda v: v.__iadd__(1) is None, outputs=None)
    first(v)
    second = synk.function(outputs=None)(lambda v: v.sum())
    synk.distribute()
    assert second(v) == [4.0] * world.world_size
    first(v)
    synk.distribute()
    assert second(v) == [6.0] * world.world_size


def test_a_variable_is_updated_by_the_mean_gradient_as_its_serial_twin(world):
    """One step: gradients summed over rows on the ranks, all-reduced, divided by the rows;
    uneven parts are exact.
    """
    rng = np.random.default_rng(1)
    for n in (1, 2, 9, 15):
        x, y = rng.normal(size=(n, 4)), rng.normal(size=n)
        w, g, v = (synk.variable(np.zeros(4)) for _ in range(3))

        @synk.function(updates={"new": (g, "sum")}, givens={"w": w})
        def gradient(x, y, w, new):
            new += x.T @ (x @ w - y)

        @synk.function
        def step(w, v, g, n):
            v *= 0.9
            v -= 0.1 * g / n
            w += 0.9 * v - 0.1 * g / n

        twin, velocity = np.zeros(4), np.zeros(4)
        for k in range(10):
            gradient(x, y, num_slices=1 + k % 3)
            synk.all_reduce(g, "sum")
            step(w, v, g, n)
            slope = x.T @ (x @ twin - y) / n
            velocity = 0.9 * velocity - 0.1 * slope
            twin = twin + 0.9 * velocity - 0.1 * slope
            for one in held(w, world):
                assert_allclose(one, twin, atol=1e-5)
