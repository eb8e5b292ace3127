"""Collectives that are asked for wrongly: refused before anything is sent, in words that say
what to do.
"""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import synknumba as synk
from tests.unit.collectives.conftest import ROWS, refused

OVER_OPS = [synk.all_reduce, synk.reduce, synk.reduce_scatter]
ALL = [
    *OVER_OPS,
    synk.broadcast,
    synk.scatter,
    synk.gather,
    synk.all_gather,
    synk.all_to_all,
    synk.get_lengths,
    synk.get_shapes,
]


# ---- which variables


@pytest.mark.parametrize("collective", ALL, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "wrong", [np.ones(3), 3, "v", object()], ids=lambda value: type(value).__name__
)
def test_not_a_variable(held, collective, wrong):
    for given in (wrong, [held.v, wrong], {"a": {"b": wrong}}):
        with refused(
            synk.ArgumentError,
            f"{collective.__name__} needs a Variable",
            "got a",
            type(wrong).__name__,
        ):
            collective(given)


def test_a_data_is_not_a_variable(held):
    with refused(synk.ArgumentError, "needs a Variable", "got a Data", "synk.variable(x)"):
        synk.all_reduce(synk.data(np.ones(3)))


@pytest.mark.parametrize("collective", ALL, ids=lambda f: f.__name__)
@pytest.mark.parametrize("nothing", [[], {}, None, {"a": None}], ids=str)
def test_no_variable_at_all(held, collective, nothing):
    with refused(synk.ArgumentError, collective.__name__, "got no variables"):
        collective(nothing)


@pytest.mark.parametrize("collective", ALL, ids=lambda f: f.__name__)
def test_the_same_variable_twice(held, collective):
    with refused(synk.ArgumentError, f"{collective.__name__} got variable 'v' twice"):
        collective([held.v, {"again": held.v}])
    with refused(synk.ArgumentError, "set_value got variable 'v' twice"):
        synk.set_value(0, [held.v, held.v], [ROWS[:4], ROWS[:4]])


# ---- which op


@pytest.mark.parametrize("collective", OVER_OPS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "op", ["average", "SUM", "", 3, ["sum"], np.array(["sum"]), np.add], ids=repr
)
def test_an_unknown_op(held, collective, op):
    for given in (held.v, [held.v]):  # which has been reduced before
        with refused(
            synk.ReductionError,
            "op must be one of 'sum', 'prod', 'min', 'max', 'mean', 'avg'",
            repr(op),
        ):
            collective(given, op)
    with refused(synk.ReductionError, "got 'maxx'. Did you mean 'max'?"):
        collective(held.v, "maxx")


@pytest.mark.parametrize("collective", OVER_OPS, ids=lambda f: f.__name__)
def test_no_op(held, collective):
    """There is no default: a sum is what torch and mpi4py do, an average what Synkhronos did."""
    name = collective.__name__
    for given in (held.v, [held.v]):
        for call in (
            lambda given=given: collective(given),
            lambda given=given: collective(given, None),
        ):
            with refused(
                synk.ReductionError,
                f"{name} needs an op",
                f'synk.{name}(v, "sum")',
                f'synk.{name}(v, "mean")',
            ):
                call()


UNDEFINED = [
    ("mean", "int64", "'sum' and divide"),
    ("avg", "int64", "'sum' and divide"),
    ("avg", "uint8", "'sum' and divide"),
    ("avg", "bool", "'sum' and divide"),
    ("sum", "bool", "'max' for any"),
    ("prod", "bool", "'min' for all"),
    ("min", "complex64", "no order"),
    ("max", "complex128", "no order"),
    ("sum", "M8[s]", "gather it"),
    ("max", "U3", "gather it"),
    ("sum", [("a", "f4"), ("b", "i8")], "gather it"),
    ("avg", [("a", "f4")], "gather it"),
]


@pytest.mark.parametrize("collective", OVER_OPS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(("op", "dtype", "way_out"), UNDEFINED, ids=str)
def test_a_dtype_that_the_op_is_not_defined_for(held, collective, op, dtype, way_out):
    wrong = synk.variable(np.zeros(2, dtype), "wrong")
    for given in (wrong, [held.v, wrong]):
        with refused(
            synk.ReductionError, f"variable 'wrong': op '{op}'", str(np.dtype(dtype)), way_out
        ):
            collective(given, op)


# ---- which rank


WRONG_RANKS = [2, -1, 1.0, True, np.True_, None, "0", [0], np.array([0, 1]), 2**70]


@pytest.mark.parametrize("rank", WRONG_RANKS, ids=repr)
def test_a_rank_that_does_not_exist(held, rank):
    calls = [
        lambda: synk.broadcast(held.v, root=rank),
        lambda: synk.broadcast(held.v, ROWS, root=rank),
        lambda: synk.reduce(held.u, "max", root=rank),
        lambda: synk.reduce(held.v, "sum", False, root=rank),
        lambda: synk.get_value(held.v, rank),
        lambda: synk.get_value([held.v, held.tree], rank),
        lambda: synk.get_value(rank, held.v),
        lambda: synk.set_value(held.v, np.ones(4), rank),
        lambda: synk.set_value(rank, held.v, np.ones(4)),
        lambda: held.v.get_value(rank),
        lambda: held.v.set_value(np.ones(4), rank=rank),
    ]
    if isinstance(rank, list):  # as the first argument a tree of variables
        calls = [*calls[:6], *calls[-2:]]
    for call in calls if rank is not None else calls[:4]:  # None is the default of the others
        with refused(synk.PartitionError, f"rank must be an integer from 0 to 1, got {rank!r}"):
            call()


def test_ranks_may_be_any_integers(held):
    for rank in (1, np.int64(1), np.uint8(1), np.array(1)):
        assert_array_equal(synk.get_value(rank, held.v), np.arange(4.0))
        assert synk.broadcast(held.tree, root=rank) is held.tree


# ---- which shapes


@pytest.mark.parametrize("collective", OVER_OPS, ids=lambda f: f.__name__)
def test_shapes_that_differ_between_ranks(held, collective):
    for given in (held.shards, [held.v, held.shards]):
        with refused(
            synk.PartitionError,
            collective.__name__,
            "'shards'",
            "(2,) on rank 0, (3,) on rank 1",
            "all_gather",
        ):
            collective(given, "sum")
    with refused(synk.PartitionError, "'shards'", "(2,) on rank 0, (3,) on rank 1"):
        synk.reduce(held.shards, "sum", in_place=False)


def test_a_new_axis_over_shapes_that_differ(held):
    with refused(
        synk.PartitionError, "nd_up=1", "'shards' has (2,) on rank 0, (3,) on rank 1", "nd_up=0"
    ):
        synk.gather(held.shards, nd_up=1)


@pytest.mark.parametrize("nd_up", [2, -1, True, 1.0, "1", [1], np.array([0, 1])], ids=repr)
def test_nd_up_that_is_neither(held, nd_up):
    with refused(synk.PartitionError, "nd_up must be 1", "or 0", repr(nd_up)):
        synk.gather(held.v, nd_up=nd_up)


@pytest.mark.parametrize(
    "collective",
    [
        synk.all_gather,
        lambda v: synk.gather(v, nd_up=0),
        lambda v: synk.all_to_all(
            synk.set_value(1, synk.scatter(v, np.ones((4, 3))), np.ones((2, 4)))
        ),
    ],
    ids=["all_gather", "gather", "all_to_all"],
)
def test_rows_of_different_shapes(held, collective):
    wide = synk.variable(np.ones((2, 3)), "wide")
    synk.set_value(1, wide, np.ones((2, 4)))
    with refused(synk.PartitionError, "'wide'", "(2, 3) on rank 0, (2, 4) on rank 1"):
        collective(wide)


BY_ROWS = {
    "scatter": synk.scatter,
    "scatter a value": lambda v: synk.scatter(v, 3.0),
    "all_gather": synk.all_gather,
    "reduce_scatter": lambda v: synk.reduce_scatter(v, "sum"),
    "all_to_all": synk.all_to_all,
    "gather": lambda v: synk.gather(v, nd_up=0),
    "get_lengths": synk.get_lengths,
    "set_value": lambda v: synk.set_value(0, v, 3.0, batch=1),
}


@pytest.mark.parametrize("name", BY_ROWS)
def test_rows_of_a_number(held, name):
    with refused(synk.PartitionError, name.split()[0], "'number' is 0-d"):
        BY_ROWS[name](held.number)


def test_rows_of_a_tree_with_a_number(held):
    tree = synk.variable({"a": np.ones(2), "b": 1.0}, "with a number")
    with refused(synk.PartitionError, "'with a number' is 0-d"):
        synk.scatter([held.v, tree], [ROWS, {"a": ROWS, "b": 1.0}])


# ---- which blocks


def test_blocks_of_a_replica(held):
    with refused(synk.PartitionError, "all_to_all: variable 'v' is a replica; scatter it first"):
        synk.all_to_all([held.shards, held.v], counts=[[1, 1], [1, 2]])


def test_rows_that_are_no_equal_blocks(held):
    with refused(
        synk.PartitionError,
        "all_to_all: variable 'shards' has 3 rows on rank 1, which are no 2 equal blocks; say in "
        "counts= how many go to each rank",
    ):
        synk.all_to_all(held.shards)


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ([2, 3], "int64 (2,)"),
        ([[1, 1, 0], [1, 1, 1]], "int64 (2, 3)"),
        ([[1.0, 1.0], [1.0, 2.0]], "float64 (2, 2)"),
        ([[True, True], [False, True]], "bool (2, 2)"),
        (5, "int64 ()"),
        ("counts", "<U6 ()"),
    ],
    ids=str,
)
def test_counts_of_another_kind(held, counts, told):
    with refused(
        synk.PartitionError,
        "all_to_all: counts must be integers of shape (2, 2), where rank r sends counts[r, j] rows "
        f"to rank j, or a variable with 2 integers on each rank; got {told}",
    ):
        synk.all_to_all(held.shards, counts=counts)


@pytest.mark.parametrize(
    ("counts", "rank"),
    [([[1, 1], [1, 1]], 1), ([[3, -1], [1, 2]], 0), ([[3, 0], [1, 2]], 0), ([[2, 0], [4, -1]], 1)],
    ids=str,
)
def test_counts_that_are_not_the_rows_of_a_rank(held, counts, rank):
    for given in (counts, np.array(counts, "i2"), synk.scatter(synk.variable(counts))):
        with refused(
            synk.PartitionError,
            "all_to_all: the counts of a rank must be at least 0 and add up to its rows; variable "
            f"'shards' has {2 + rank} rows on rank {rank}, whose counts are {counts[rank]}",
        ):
            synk.all_to_all(held.shards, counts=given)


def test_counts_of_different_numbers_on_ranks(held):
    of_shards = synk.scatter(synk.variable([2, 0, 0, 3, 0]))
    for counts, told in ((of_shards, "int64 (5,)"), (synk.variable(1.0), "float64 (2, 1)")):
        with refused(synk.PartitionError, "counts must be integers of shape (2, 2)", told):
            synk.all_to_all(held.shards, counts=counts)


# ---- where results go


INTO = {
    "all_gather": synk.all_gather,
    "reduce_scatter": lambda v, d: synk.reduce_scatter(v, "sum", d),
    "all_to_all": synk.all_to_all,
}
with_into = pytest.mark.parametrize("name", INTO)


@with_into
def test_a_dest_that_cannot_hold_the_result(held, name):
    for dest in (
        held.ints,
        held.number,
        synk.variable(np.ones((1, 1))),
        synk.variable(np.ones(1, "float32")),
    ):
        with refused(synk.DataError, name, "in dest= is", "'v' is 1-D float64"):
            INTO[name](held.v, dest)
    with refused(
        synk.ArgumentError,
        name,
        "'tree' in dest= is not a tree of the same structure as variable 'v'",
    ):
        INTO[name](held.v, held.tree)


@with_into
def test_a_dest_that_is_none_or_too_many(held, name):
    with refused(synk.ArgumentError, f"{name} needs a Variable", "ndarray"):
        INTO[name](held.v, np.ones(4))
    for several, dest in (
        ([held.v], held.u),
        (held.v, [held.u, held.ints]),
        ([held.v], [held.u, held.ints]),
    ):
        with refused(synk.ArgumentError, name, "dest="):
            INTO[name](several, dest)
    with refused(synk.ArgumentError, "'u' twice"):
        INTO[name]([held.v, held.ints], [held.u, held.u])


def test_a_variable_of_a_closed_world():
    """The last test of the file: it ends the world of the others."""
    synk.close()
    with synk.fork(1, device="cpu"):
        old = synk.variable(np.ones(4), "old")
    calls = {
        "gather": lambda: synk.gather(old),
        "all_gather": lambda: synk.all_gather(old),
        "all_reduce": lambda: synk.all_reduce(old, "sum"),
        "reduce": lambda: synk.reduce(old, "sum"),
        "broadcast": lambda: synk.broadcast(old),
        "scatter": lambda: synk.scatter(old),
        "set_value": lambda: synk.set_value(0, old, np.ones(4)),
        "method": lambda: old.set_value(np.ones(4), rank=0),
        "get_shapes": lambda: synk.get_shapes(old),
    }
    for call in calls.values():
        with refused(synk.WorldError, "no world is open", "fork()"):
            call()
    assert_array_equal(old.get_value(), np.ones(4))
    with synk.fork(1, device="cpu"):
        new = synk.variable(np.ones(4), "new")
        for call in (
            *calls.values(),
            lambda: synk.all_reduce([new, old], "sum"),
            lambda: synk.all_gather(new, dest=old),
        ):
            call()
        assert_array_equal(old.get_value(), np.ones(4))
        assert_array_equal(synk.all_reduce(new, "sum").get_value(), np.ones(4))
