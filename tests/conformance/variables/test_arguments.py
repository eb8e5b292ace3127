"""Variables as arguments: each rank's own array, of every dtype and shape, read and written in
place.
"""

from typing import NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import synknumba as synk
from tests.conformance.kernels import dot
from tests.conformance.variables import functions
from tests.conformance.variables.ranks import (
    NUMBERS,
    RECORD,
    assert_held,
    held,
    put,
    shard_of,
    shards,
)

pytestmark = pytest.mark.usefixtures("usable")
ADD = {0: functions.add_1d, 1: functions.add_1d, 2: functions.add_2d, 3: functions.add_3d}
SHAPES = [(), (5,), (4, 3), (2, 3, 2), (0,), (3, 0)]


class Pair(NamedTuple):
    """A named tuple of the user's."""

    w: object
    b: object


# ---- in place ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", NUMBERS)
def test_kernels_write_in_place_on_each_rank(world, dtype):
    """A 0-d array is one of shape (1,) in a kernel."""
    for shape in SHAPES if dtype in {"int64", "float32"} else [(5,)]:
        first = np.ones(shape, dtype)
        v = synk.variable(first)
        for _ in range(2):
            ADD[len(shape)](v, synk.RANK)
        assert_held(
            v, world, lambda rank, first=first, dtype=dtype: first + np.asarray(2 * rank, dtype)
        )
        assert v.dtype == dtype


def test_a_variable_may_be_passed_twice_where_it_is_only_read(world):
    @synk.function(outputs="sum")
    def inner(a, b):
        return (
            sum(float(x @ y) for x, y in zip(a, b, strict=True))
            if isinstance(a, tuple | list)
            else float(a @ b)
        )

    @synk.function
    def subtract(w, a, b):
        w -= a * b

    @synk.function(outputs="sum", rows=("a",))
    def rows(a, b):
        return float(a.sum() * b.sum())

    size, numbers = world.world_size, np.arange(1.0, 4.0)
    v, w, pair = (
        synk.variable(numbers),
        synk.variable(numbers),
        synk.variable((numbers, 2 * numbers)),
    )
    dot(v, v)
    assert "replicas equal" in repr(v)  # nobody has written
    for _ in range(2):  # the second call is known
        assert dot(v, v) == inner(v, v) == inner([v], (v,)) == 14.0 * size
        assert dot(v, w) == 14.0 * size
        assert inner(pair, pair) == 5 * 14.0 * size
        assert rows(v, v) == 36.0 * size
    assert dot.submit(v, v).result() == 14.0 * size
    assert synk.function(outputs="sum", givens={"b": v})(inner.py_func)(v) == 14.0 * size
    subtract(w, v, v)
    assert_held(w, world, numbers - numbers**2)
    assert_held(v, world, numbers)


def test_arrays_of_a_tree_passed_twice(world):
    @synk.function
    def update(a, b, into):
        into += a * b

    @synk.sequence
    def body(tree):
        update(tree["x"], tree["x"], tree["y"])
        return dot(tree["x"], tree["x"])

    tree = synk.variable({"x": np.arange(3.0), "y": np.zeros(3)})
    assert_array_equal(body(tree, times=4, every=2), [5.0 * world.world_size] * 2)
    for rank in range(world.world_size):
        assert_array_equal(tree.get_value(rank)["y"], 4 * np.arange(3.0) ** 2)


@pytest.mark.parametrize("dtype", [*NUMBERS, "float16"])
def test_functions_write_in_place_on_each_rank(world, dtype):
    for shape in SHAPES:
        first = np.full(shape, 3, dtype)
        v = synk.variable(first)
        functions.add(v, 1)
        functions.add(v, 1)
        assert_held(v, world, first + np.asarray(2, dtype))
        assert functions.shape_of(v) == [shape[0] if shape else -1] * world.world_size


def test_booleans(world):
    @synk.function
    def switch(v):
        v[1:] = v[:1]

    v = synk.variable(np.array([True, False, False]))
    switch(v)
    assert_held(v, world, [True, True, True])


@pytest.mark.parametrize("shape", [(), (4,)])
def test_structured(world, shape):
    first = np.zeros(shape, RECORD)
    first["a"] = np.arange(first.size).reshape(shape) + 1
    first["b"] = 0.5
    v = synk.variable(first)
    wanted = first.copy()
    for _ in range(3):
        functions.negate_records(v)
        wanted["a"], wanted["b"] = -wanted["a"], -wanted["b"]
        assert_held(v, world, wanted)


def test_one_object_across_functions(world):
    v = synk.variable(np.zeros(6))
    for _ in range(2):
        functions.add(v, 1.0)
        functions.add_1d(v, synk.RANK)
        functions.add(v=v, amount=2.0)
    assert_held(v, world, lambda rank: np.full(6, 6.0 + 2 * rank))
    totals = functions.total_of_own(v)
    assert totals == [36.0 + 12 * rank for rank in range(world.world_size)]


def test_shards_are_each_ranks_own_rows(world):
    value = np.arange(11.0)
    v = synk.scatter(synk.variable(np.zeros(1)), value)
    functions.add(v, 1.0)
    functions.add_1d(v, synk.RANK)
    assert_held(v, world, lambda rank: shard_of(value, world, rank) + 1 + rank)
    assert synk.get_lengths(v) == [len(one) for one in shards(value, world)]


def test_beside_rows_of_an_input(world):
    """A variable that is not sliceable does not count as rows."""
    x = np.arange(7.0)
    w = put(synk.variable(np.zeros(2)), [[rank + 1.0, 0.0] for rank in range(world.world_size)])
    wanted = np.concatenate([one * (rank + 1) for rank, one in enumerate(shards(x, world))])
    for num_slices in (1, 3):
        assert_array_equal(functions.scaled(x, w, num_slices=num_slices), wanted)
    assert_array_equal(functions.scaled.as_serial(x, w), x)
    assert_array_equal(
        functions.scaled(w=w, x=x, batch=[3, 0]),
        np.concatenate([one * (rank + 1) for rank, one in enumerate(shards(x[[3, 0]], world))]),
    )


# ---- trees ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [synk.variable, synk.vector])
def test_trees(world, make):
    tree = {"w": np.ones((2, 3)), "rest": [np.array(2.0), np.zeros(0), (np.full(2, 3.0),)]}
    tree["rest"] = [tree["rest"][0], tree["rest"][1]]
    v = make(tree)
    for _ in range(2):
        functions.add_to_tree(v, 3.0)
    got = v.get_value(world.world_size - 1)
    assert_array_equal(got["w"], np.full((2, 3), 7.0))
    assert got["rest"][0] == 18.0
    assert got["rest"][1].shape == (0,)


def test_flattened_arrays_are_of_one_vector(world):
    """One all_reduce serves all that functions wrote into the single arrays."""
    v = synk.vector({"w": np.zeros((2, 2)), "b": np.zeros(3)})

    @synk.function
    def write(tree, rank):
        tree["w"][...] = rank
        tree["b"][...] = 10 * rank

    write(v, synk.RANK)
    synk.all_reduce(v, "sum")
    total = sum(range(world.world_size))
    for rank in range(world.world_size):
        got = synk.get_value(rank, v)
        assert_array_equal(got["w"], np.full((2, 2), total))
        assert_array_equal(got["b"], np.full(3, 10 * total))


def test_inside_nested_arguments(world):
    """Variables, trees of them, arrays and numbers beside each other in one argument."""
    one = synk.variable(np.zeros(3))
    tree = synk.variable(Pair(np.ones(2), [np.full(2, 5.0)]))
    x = np.arange(8.0)

    @synk.function(outputs=(None, "sum"))
    def mixed(parts, scale):
        parts["own"][0][...] += parts["x"].sum() * scale
        pair = parts["own"][1]
        pair.w[...] += 1
        pair.b[0][...] *= 2
        return type(pair).__name__, parts["x"].sum()

    for k in (1, 2):
        names, total = mixed({"own": (one, tree), "x": x, "none": None}, 2.0)
        assert list(names) == ["Pair"] * world.world_size
        assert total == x.sum()
        assert_held(
            one, world, lambda rank, k=k: np.full(3, 2 * k * shard_of(x, world, rank).sum())
        )
        for rank in range(world.world_size):
            got = synk.get_value(rank, tree)
            assert_array_equal(got.w, np.full(2, 1.0 + k))
            assert_array_equal(got.b[0], np.full(2, 5.0 * 2**k))


def test_what_a_function_puts_into_a_nested_argument_is_not_there_at_its_next_call(world):
    v = synk.variable(np.ones(2))

    @synk.function(outputs="sum")
    def replaces(tree, parts):
        tree["v"] = tree["v"] * 2
        parts[0].append(tree["v"].sum())
        return sum(parts[0])

    for _ in range(3):
        assert replaces({"v": v}, ([],)) == 4 * world.world_size
    assert_held(v, world, np.ones(2))


# ---- values that change between calls ------------------------------------------------------------


def test_known_calls_after_other_values_and_shapes(world):
    """A known call takes the shortest way; it must see that the variable has other memory."""
    v = synk.variable(np.ones(4))
    factor = 2.0
    x = synk.data(np.ones(5))

    def check():
        wanted = [one + factor for one in held(v, world)]
        functions.add(v, factor)
        functions.add_1d(v, 0.0)
        assert_held(v, world, lambda rank: wanted[rank])
        assert_array_equal(
            functions.scaled(x, v),
            np.repeat([w[0] for w in wanted], [len(s) for s in shards(x.data, world)]),
        )

    for _ in range(3):
        check()
    for length in (9, 30, 9, 4):
        synk.broadcast(v, np.arange(1.0 * length))
        check()
        check()
        synk.scatter(v, np.arange(world.world_size * length + 1.0))
        check()
        check()
        synk.set_value(world.world_size - 1, v, np.arange(length + 3.0))
        check()
        check()


def test_known_calls_of_givens_after_other_values_and_shapes(world):
    v, s = synk.variable(np.ones(4)), synk.variable(np.zeros(2))

    @synk.function(givens={"parts": {"v": v}}, updates={"acc": (s, "sum")}, outputs=None)
    def call(x, parts, acc):
        acc += parts["v"].sum() + x.sum()
        parts["v"] += 1
        return parts["v"].shape[0]

    x = synk.data(np.ones(11))  # no rank is without rows
    for shape in ((4,), (7,), (2,), (4,)):
        synk.broadcast(v, np.ones(shape))
        synk.broadcast(s, np.zeros(shape))
        for k in (1, 2, 3):
            lengths = call(x)
            had = k * shape[0]
            assert lengths == [shape[0]] * world.world_size
            for rank in range(world.world_size):
                assert_array_equal(
                    synk.get_value(rank, s),
                    np.full(shape, had + shard_of(x.data, world, rank).sum()),
                )
        synk.scatter(v, np.zeros(11))
        synk.set_value(0, s, np.zeros((9,)))
        call(x)
        assert synk.get_shapes(s) == [(9,)] + [shape] * (world.world_size - 1)


def test_data_and_arrays_that_are_given_are_read_at_each_call(world):
    data, array = synk.data(np.ones(4)), np.ones(4)

    @synk.function(outputs="sum", givens={"x": data})
    def of_data(x):
        return x.sum()

    @synk.function(outputs="sum", givens={"x": array})
    def of_array(x):
        return x.sum()

    @synk.function(inout=("y",))
    def count(y=array):
        y += 1

    for k in range(1, 4):
        assert of_data() == data.data.sum() == 4 * k
        assert of_array() == 4 * k
        data.set_value(np.ones(4 * k + 4))
        count()  # a default whose rows are written back
        assert_array_equal(array, np.full(4, k + 1.0))


def test_data_and_a_variable_of_equal_numbers_are_not_mistaken(world):
    v, d = synk.variable(np.arange(6.0)), synk.data(np.arange(6.0))
    for argument, wanted in (
        (v, [15.0] * world.world_size),
        (d, [s.sum() for s in shards(d.data, world)]),
    ) * 3:
        assert functions.total_of_own(argument) == wanted


# ---- results, options, descriptions --------------------------------------------------------------


def test_outputs_like_a_variable(world):
    v = synk.variable(np.zeros((3, 2), np.float32))

    @synk.parallel(
        outputs={"all": synk.output(None, like="v"), "top": synk.output("max", like="v")},
        block=1,
        grid=1,
    )
    def copies(v, rank, all, top):  # noqa: A002  # as somebody may name it
        for i in range(v.shape[0]):
            for j in range(v.shape[1]):
                all[i, j] = v[i, j] + rank
                top[i, j] = v[i, j] + rank

    for _ in range(2):
        got = copies(v, synk.RANK)
        assert type(got)._fields == ("all", "top")
        assert got.top.dtype == np.float32
        assert_array_equal(got.all, [np.full((3, 2), rank) for rank in range(world.world_size)])
        assert_array_equal(got.top, np.full((3, 2), world.world_size - 1))
    synk.broadcast(v, np.ones((1, 2), np.float32))
    assert_array_equal(copies(v, synk.RANK, output_subset="top"), np.full((1, 2), world.world_size))


def test_outputs_like_a_variable_of_different_shapes(world):
    """They cannot be combined, and are refused before anything is sent; rows of a variable can
    be gathered.
    """
    v = synk.scatter(synk.variable(np.zeros((1, 2))), np.ones((world.world_size + 1, 2)))

    @synk.parallel(outputs={"top": synk.output("max", like="v")}, block=1, grid=1)
    def top(v, top):
        top[0, 0] = v[0, 0]

    @synk.parallel(outputs={"rows": synk.output("gather", like="v")}, rows=("v",), block=1, grid=1)
    def rows(v, rows):
        for i in range(v.shape[0]):
            rows[i, 0] = v[i, 0] + v[i, 1]

    assert_array_equal(rows(v), np.tile([2.0, 0.0], (world.world_size + 1, 1)))
    if world.world_size > 1:
        with pytest.raises(synk.ReductionError, match="shape differs between ranks"):
            top(v)


def test_as_serial_is_the_root_alone(world):
    v = put(
        synk.variable(np.zeros(3)), [np.full(3, rank + 1.0) for rank in range(world.world_size)]
    )
    x = np.arange(6.0)
    assert functions.total_of_own.as_serial(v) == [3.0]
    assert_array_equal(functions.scaled.as_serial(x, v), x)
    functions.add.as_serial(v, 10.0)
    functions.add_1d.as_serial(v, 10.0)
    assert_held(v, world, lambda rank: np.full(3, rank + 1.0 + 20.0 * (rank == 0)))


def test_repr_tells_whether_replicas_may_differ(world):
    v, rows = synk.variable(np.zeros(4)), synk.scatter(synk.variable(np.zeros(4)))
    differ = "may differ" if world.world_size > 1 else "equal"
    for _ in range(3):  # the last times as a known call
        functions.add(v, 1.0)
        assert f"replicas {differ}" in repr(v)
        synk.broadcast(v, np.zeros(4))
        assert "replicas equal" in repr(v)
        functions.of_own_rows(v)
        assert "replicas equal" in repr(v), "rows that are only read"
        functions.add(rows, 1.0)
        assert "shards" in repr(rows)


def test_plan_and_update_modes(world):
    s = synk.variable(np.zeros(3))

    @synk.function(updates={"acc": (s, "max")}, givens={"old": s}, outputs="sum", rows=("v",))
    def call(x, v, old, acc):
        return x.sum()

    @synk.function
    def plain(x):
        pass

    assert call.update_modes == {"acc": "max"}
    assert plain.update_modes == {}
    v = synk.scatter(synk.variable(np.zeros(1)), np.arange(2 * world.world_size + 1.0))
    x = np.ones((5, 2))
    report = call.plan(x, v, num_slices=2)
    sizes = [
        len(one)
        for one in shards(v.get_value(0) if world.world_size == 1 else synk.gather(v, 0), world)
    ]
    assert [rank.own_rows for rank in report.ranks] == sizes
    assert [rank.rows[1] - rank.rows[0] for rank in report.ranks] == [
        len(one) for one in shards(x, world)
    ]
    assert [rank.input_bytes for rank in report.ranks] == [
        16 * len(one) for one in shards(x, world)
    ]
    assert report.updates == (("acc", "max"),)
    assert "max" in str(report)
    other = call.plan(x, v, world_size=2).ranks
    assert [rank.own_rows for rank in other] == [world.world_size, world.world_size + 1]
    assert_held(s, world, np.zeros(3))
