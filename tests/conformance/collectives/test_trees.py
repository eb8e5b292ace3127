"""Several variables at once, variables of several arrays, and flattened ones; and what functions
on the ranks see of them.
"""

from typing import NamedTuple

import numpy as np
import pytest

import synknumba as synk
from tests.conformance.collectives.cases import (
    LARGE,
    RECORD,
    assert_held,
    assert_same,
    combined,
    numbers,
    rows_of,
)


class Layer(NamedTuple):
    w: object
    b: object


@synk.function()
def add_rank(tree, rank):
    """Into every array, in place."""
    for leaf in (tree["w"], tree["inner"][0], tree["inner"][1]):
        leaf[...] += leaf.dtype.type(rank + 1)


@synk.function(outputs="sum")
def total_of(x):
    return x.sum()


@synk.function(outputs=None)
def doubled(x):
    return 2 * x


@pytest.fixture
def rng():
    return np.random.default_rng(22)


def tree_of(rng, dtype="float64", rows=3):
    """Leaves of 2, 1 and 0 dimensions, and one with nothing in it."""
    return {
        "w": numbers(rng, dtype, (rows, 2)),
        "inner": (numbers(rng, dtype, (5,)), numbers(rng, dtype, ()), numbers(rng, dtype, (0, 4))),
        "none": None,
    }


def leaves(tree):
    return [tree["w"], *tree["inner"]]


def assert_trees(found, expected):
    assert list(found) == ["w", "inner", "none"]
    assert isinstance(found["inner"], tuple)
    assert found["none"] is None
    for mine, wanted in zip(leaves(found), leaves(expected), strict=True):
        assert_same(mine, wanted)


def combined_trees(op, trees):
    w, *inner = (combined(op, arrays) for arrays in zip(*map(leaves, trees), strict=True))
    return {"w": w, "inner": tuple(inner), "none": None}


# ---- several variables


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_lists_of_variables_of_different_dtypes(world, large, rng):
    """Go together, whatever each of them is."""
    shapes = [(3, 2), (), LARGE if large else (5,), (0,)]
    dtypes = ["float32", "int64", "complex64", "float32"]
    ranks = range(world.world_size)
    by_rank = [[numbers(rng, *one) for one in zip(dtypes, shapes, strict=True)] for _ in ranks]
    several = [synk.variable(value) for value in by_rank[0]]

    def put():
        for rank in ranks:
            assert synk.set_value(rank, several, by_rank[rank]) is several

    whole = [combined("sum", arrays) for arrays in zip(*by_rank, strict=True)]
    put()
    assert synk.all_reduce(several, "sum") is several
    for v, expected in zip(several, whole, strict=True):
        assert_held(v, world, [expected] * len(ranks))
    put()
    for found, expected in zip(synk.reduce(several, "sum", in_place=False), whole, strict=True):
        assert_same(found, expected)
    for found, arrays in zip(synk.gather(several), zip(*by_rank, strict=True), strict=True):
        assert_same(found, np.stack(arrays))
    synk.reduce(several, "sum", root=len(ranks) - 1)
    for v, expected, mine in zip(several, whole, by_rank[0], strict=True):
        assert_same(v.get_value(len(ranks) - 1), expected)
        if len(ranks) > 1:
            assert_same(v.get_value(0), mine)
    synk.broadcast(several, root=len(ranks) - 1)
    for v, expected in zip(several, whole, strict=True):
        assert_held(v, world, [expected] * len(ranks))
        assert "equal" in repr(v)
    assert synk.get_shapes(several) == [[shape] * len(ranks) for shape in shapes]


def test_dicts_and_tuples_of_variables(world, rng):
    size = world.world_size
    a, b, c = (
        numbers(rng, "float32", (7, 2)),
        numbers(rng, RECORD, (11,)),
        numbers(rng, "bool", (5, 1)),
    )
    variables = {
        "a": synk.variable(a[:1]),
        "layer": Layer(synk.variable(b[:1]), [synk.variable(c[:1])]),
    }
    # in any order of the keys
    assert synk.scatter(variables, {"layer": (b, [c]), "a": a}) is variables
    lengths = synk.get_lengths(variables)
    assert isinstance(lengths["layer"], Layer)
    assert lengths["layer"].b[0] == [len(c[rows_of(5, size, rank)]) for rank in range(size)]
    whole = synk.gather(variables, nd_up=0)
    assert_same(whole["a"], a)
    assert_same(whole["layer"].w, b)
    assert_same(whole["layer"].b[0], c)
    synk.all_gather(variables)
    assert_held(variables["a"], world, [a] * size)
    assert_held(variables["layer"].w, world, [b] * size)
    for rank in range(size):
        assert_same(synk.get_value(rank, variables)["layer"].b[0], c)


def test_scatter_a_batch_of_several(world, rng):
    x, y = numbers(rng, "float64", (9, 2)), numbers(rng, "int32", (9,))
    variables = [synk.variable(x[:1]), synk.variable(y[:1])]
    synk.scatter(variables, [x, synk.data(y)], batch=[8, 1, 1, -9])
    assert_same(synk.gather(variables[0], nd_up=0), x[[8, 1, 1, 0]])
    assert_same(synk.gather(variables[1], nd_up=0), y[[8, 1, 1, 0]])


def test_dest_may_be_given_too(world, rng):
    """What is still to be read is not written over, whatever shapes there are."""
    size = world.world_size
    for collective, many in ((synk.all_gather, size), (synk.reduce_scatter, 1)):
        a, b = numbers(rng, "float64", (2,)), numbers(rng, "float64", (2 * many,))
        u, v = synk.variable(a), synk.variable(b)
        args = ("sum",) if collective is synk.reduce_scatter else ()
        found = collective([u, v], *args, dest=[v, u])
        assert found[0] is v
        assert found[1] is u
        for made, given in ((v, a), (u, b)):
            if collective is synk.all_gather:
                assert_held(made, world, [np.tile(given, size)] * size)
            else:
                assert_held(
                    made,
                    world,
                    [(size * given)[rows_of(len(given), size, rank)] for rank in range(size)],
                )


# ---- variables of several arrays


@pytest.mark.parametrize("make", [synk.variable, synk.vector])
@pytest.mark.parametrize("op", ["sum", "avg", "max"])
def test_trees_of_arrays(world, make, op, rng):
    trees = [tree_of(rng) for _ in range(world.world_size)]
    v = make(trees[0])
    for rank, tree in enumerate(trees):
        v.set_value(tree, rank)
        assert_trees(synk.get_value(rank, v), tree)
    assert_trees(synk.reduce(v, op, in_place=False), combined_trees(op, trees))
    synk.all_reduce(v, op)
    for rank in range(world.world_size):
        assert_trees(v.get_value(rank), combined_trees(op, trees))
    synk.broadcast(v, tree_of(rng, rows=7))
    assert v.shape == {"w": (7, 2), "inner": ((5,), (), (0, 4)), "none": None}


@pytest.mark.parametrize("make", [synk.variable, synk.vector])
def test_rows_of_trees(world, make, rng):
    size = world.world_size
    x, y = numbers(rng, "float32", (8, 2)), numbers(rng, "float32", (5,))
    v = synk.scatter(make({"x": x[:1], "y": y[:1]}), {"y": y, "x": x})
    for rank in range(size):
        assert_same(v.get_value(rank)["x"], x[rows_of(8, size, rank)])
        assert_same(v.get_value(rank)["y"], y[rows_of(5, size, rank)])
    assert_same(synk.gather(v, nd_up=0)["x"], x)
    synk.all_gather(v)
    synk.reduce_scatter(v, "sum")
    for rank in range(size):
        assert_same(v.get_value(rank)["y"], size * y[rows_of(5, size, rank)])


@pytest.mark.parametrize("make", [synk.variable, synk.vector])
def test_a_new_shape_on_one_rank_leaves_the_others_alone(world, make, rng):
    trees = [tree_of(rng) for _ in range(world.world_size)]
    v = make(trees[0])
    for rank, tree in enumerate(trees):
        v.set_value(tree, rank)
    trees[-1] = tree_of(rng, rows=40)
    v.set_value(trees[-1], world.world_size - 1)
    for rank, tree in enumerate(trees):
        assert_trees(v.get_value(rank), tree)


# ---- flatten


@pytest.mark.parametrize("rows", [3, 30_001], ids=["small", "large"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "int32"])
def test_flattened_arrays_changed_by_ranks_are_reduced_as_one(world, dtype, rows, rng):
    size = world.world_size
    tree = tree_of(rng, dtype, rows)
    v = synk.vector(tree, "model")
    for _ in range(2):
        add_rank(v, synk.RANK)
        assert "may differ" in repr(v) or size == 1
        ranks = []
        for rank in range(size):
            changed = {**tree, "inner": (*tree["inner"][:2], tree["inner"][2])}
            changed["w"] = tree["w"] + np.dtype(dtype).type(rank + 1)
            changed["inner"] = (
                *(np.asarray(x + np.dtype(dtype).type(rank + 1)) for x in tree["inner"][:2]),
                tree["inner"][2],
            )
            ranks.append(changed)
            assert_trees(v.get_value(rank), changed)
        synk.all_reduce(v, "sum")
        assert "equal" in repr(v)
        tree = combined_trees("sum", ranks)
        for rank in range(size):
            assert_trees(v.get_value(rank), tree)


def test_flatten_takes_what_variables_have(world, rng):
    a, tree = numbers(rng, "float32", (4,)), {"x": numbers(rng, "float32", (2, 2))}
    u, t = synk.variable(a), synk.variable(tree)
    v = synk.vector([u, {"t": t}, 1.5], dtype="float32")
    assert_same(v.get_value()[0], a)
    assert_same(v.get_value()[1]["t"]["x"], tree["x"])
    assert_same(v.get_value()[2], np.asarray(1.5, "float32"))
    synk.all_reduce(v, "sum")
    assert_held(u, world, [a] * world.world_size)  # a copy
    one = synk.vector(u)
    assert_held(one, world, [a] * world.world_size)


def test_flatten_arrays_of_different_dtypes_to_one(world):
    v = synk.vector([np.ones(3, "float32"), np.arange(2, dtype="int16")], dtype="float64")
    assert v.dtype == [np.dtype("float64")] * 2
    assert_same(v.get_value()[1], np.array([0.0, 1.0]))


def test_flatten_records_and_what_is_empty(world, rng):
    records = [numbers(rng, RECORD, (3,)), numbers(rng, RECORD, ()), numbers(rng, RECORD, (0, 2))]
    v = synk.vector(records)
    changed = [numbers(rng, RECORD, array.shape) for array in records]
    v.set_value(changed, world.world_size - 1)
    synk.broadcast(v, root=world.world_size - 1)
    for rank in range(world.world_size):
        for found, wanted in zip(v.get_value(rank), changed, strict=True):
            assert_same(found, wanted)
    nothing = synk.vector([np.zeros((0, 3)), np.zeros(0)])
    synk.all_reduce(nothing, "sum")
    synk.broadcast(nothing)
    assert_same(nothing.get_value()[0], np.zeros((0, 3)))


# ---- lists and numbers


def test_lists_of_numbers_are_arrays(world):
    """They take the dtype that is asked for, as numbers do; lists of arrays are trees."""
    assert_same(synk.variable([1, 2, 3]).get_value(), np.array([1, 2, 3]))
    assert_same(
        synk.variable([[1, 2], [3, 4]], dtype="float32").get_value(),
        np.array([[1, 2], [3, 4]], "float32"),
    )
    assert_same(synk.variable(2, dtype="float16").get_value(), np.array(2, "float16"))
    assert synk.variable((1.5, 2, 7), dtype=RECORD).get_value().item() == (1.5, 2, 7)
    v = synk.variable(
        {"w": [1.0, 2.0], "b": 3.0, "layers": [np.ones(2, "f4"), [4, 5]]}, dtype="float32"
    )
    assert v.dtype == {"w": np.dtype("f4"), "b": np.dtype("f4"), "layers": [np.dtype("f4")] * 2}
    synk.broadcast(v, {"layers": ([5, 6], [7.5, 8]), "b": 1, "w": [9, 10.5]})
    for rank in range(world.world_size):
        found = v.get_value(rank)
        assert_same(found["w"], np.array([9, 10.5], "f4"))
        assert_same(found["b"], np.array(1, "f4"))
        assert_same(found["layers"][1], np.array([7.5, 8], "f4"))


# ---- what ranks see


def test_ranks_see_what_collectives_leave(world, rng):
    """Each rank's own array, in its own process, after every collective and every new shape."""
    size = world.world_size
    x = rng.integers(0, 100, 11).astype("float64")
    v = synk.variable(x)
    assert total_of(v) == size * x.sum()
    synk.scatter(v, x)
    assert total_of(v) == x.sum()
    for rank, part in enumerate(doubled(v)):
        assert_same(part, 2 * x[rows_of(11, size, rank)])
    synk.all_gather(v)
    assert total_of(v) == size * x.sum()
    v.set_value(np.ones(3), size - 1)
    assert total_of(v) == (size - 1) * x.sum() + 3
    synk.broadcast(v, root=size - 1)
    synk.all_reduce(v, "sum")
    assert total_of(v) == 3 * size**2
    synk.reduce_scatter(v, "max")
    assert total_of(v) == 3 * size
