"""Bad input about variables: refused before anything is sent, in words that say what to do, and
nothing has changed.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from numba import cuda

import synknumba as synk
from synknumba._wire.messages import Drop
from synknumba._world.rounds import Rounds
from tests.conformance.variables import functions
from tests.conformance.variables.ranks import RECORD, assert_held

pytestmark = pytest.mark.usefixtures("usable")


@contextmanager
def refused(error: type[Exception], *parts: str) -> Iterator[None]:
    """The error is raised, and its message has these parts, in this order; nothing is sent to
    the ranks.
    """
    send = Rounds.command

    def refuse(rounds, command, *args, **kwargs):
        if isinstance(command, Drop):  # of what is let go, at whatever moment
            return send(rounds, command, *args, **kwargs)
        pytest.fail("something was sent to the ranks")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rounds, "run", refuse)
        patch.setattr(Rounds, "command", refuse)
        with pytest.raises(error, match="(?s)" + ".*".join(map(re.escape, parts))):
            yield


@pytest.fixture
def s(world):
    """A variable, which must be what it was at the end."""
    made = synk.variable(np.arange(3.0), name="s")
    yield made
    assert_held(made, world, np.arange(3.0))


@pytest.fixture
def rows(world):
    """Three rows and one more on each rank, likewise."""
    value = np.arange(4.0 * world.world_size)
    made = synk.scatter(synk.variable(value[:1], name="rows"), value)
    yield made
    assert np.array_equal(synk.gather(made, nd_up=0), value)


def adds_rows(variable, **options):
    """A function that updates a variable by rows of x."""

    @synk.function(updates={"acc": (variable, "sum")}, **options)
    def accumulate(x, old, acc):
        acc += x.sum()

    return accumulate


# ---- updates -------------------------------------------------------------------------------------


def test_an_updated_variable_that_is_an_argument_too(s):
    accumulate = adds_rows(s)
    for old in (s, [s], {"s": (1.0, s)}):
        with refused(
            synk.ArgumentError, "old", "variable 's'", "also assigns (updates=)", "givens="
        ):
            accumulate(np.ones(3), old)
    with refused(synk.ArgumentError, "x", "variable 's'", "updates="):
        accumulate(s, 1.0)
    right = adds_rows(synk.variable(0.0), givens={"old": s})
    right(np.ones(3))


def test_the_same_variable_twice(s, world):
    @synk.function(outputs=None)
    def two(a, b):
        a += 1.0
        return a.sum()

    with refused(
        synk.ArgumentError, "two (", ") writes to a, and b is the same variable", "a copy of it"
    ):
        two(s, s)
    with refused(synk.ArgumentError, "writes to a, and b[1] is the same variable"):
        two(s, [1.0, s])
    given = synk.function(givens={"b": s}, outputs=None)(two.py_func)
    with refused(synk.ArgumentError, "writes to a, and b is the same variable"):
        given(s)
    sliced = synk.function(rows=("b",), inout=("b",))(lambda a, b: None)
    with refused(
        synk.ArgumentError,
        "b and a",
        "same variable 's'",
        "rows of b, which is in inout=",
        "a copy of it",
    ):
        sliced(s, s)
    with refused(
        synk.ArgumentError,
        "b and a",
        "same variable 's'",
        "rows of a, which is in inout=",
        "a copy of it",
    ):
        synk.function(rows=("a",), inout=("a",))(lambda a, b: None)(s, s)
    if world.device == "cpu":  # writes that the source does not show
        for hidden in (fill_elsewhere, synk.function(lambda a, b: a.fill(3.0))):
            with pytest.raises(
                (synk.RankError, synk.ArgumentError), match="read-only|passed twice is an input"
            ):
                hidden(s, s)
            assert_held(s, world, np.arange(3.0))
    assert two(synk.variable(np.arange(3.0)), s)[0] == 6.0
    with pytest.raises(
        synk.ArgumentError, match=r"updates= of both names variable 's' for both 'a' and 'b'"
    ):
        synk.function(updates={"a": (s, "sum"), "b": (s, "max")}, name="both")(two.py_func)


@cuda.jit(device=True)
def fill(a):
    a[0] = 3.0


@synk.parallel(grid=1, block=1)
@cuda.jit
def fill_elsewhere(a, b):
    fill(a)


def test_an_updated_parameter_that_the_caller_passes(s):
    accumulate = adds_rows(s, givens={"old": 0.0})
    with refused(synk.ArgumentError, "acc of accumulate is bound by updates=", "Leave it out"):
        accumulate(np.ones(3), acc=np.zeros(3))
    with refused(synk.ArgumentError, "takes 1 argument (x), got 2", "updates (acc)"):
        accumulate(np.ones(3), np.zeros(3))


@pytest.mark.parametrize("op", ["mean", "avg", "gather", None, "add", 1, ("sum",)], ids=str)
def test_updates_by_an_unknown_op(s, op):
    with refused(
        synk.ReductionError,
        "updates['acc'] of accumulate",
        '"sum", "prod", "min", "max"',
        f"got {op!r}",
    ):
        synk.function(updates={"acc": (s, op)}, name="accumulate")(lambda x, acc: None)


@pytest.mark.parametrize(
    ("op", "first", "way_out"),
    [
        ("sum", np.zeros(2, bool), "integer"),
        ("prod", np.zeros(2, bool), "integer"),
        ("min", np.zeros(2, complex), "no order"),
        ("max", np.zeros(2, np.complex64), "no order"),
        ("sum", np.zeros(2, RECORD), "field"),
        ("max", [np.zeros(2), np.zeros(2, complex)], "no order"),
    ],
    ids=str,
)
def test_updates_of_a_dtype_that_cannot_hold_them(world, op, first, way_out):
    variable = synk.variable(first)
    with refused(synk.ReductionError, "updates['acc'] of accumulate", repr(op), way_out):
        synk.function(updates={"acc": (variable, op)}, name="accumulate")(lambda x, acc: None)


def test_updates_that_are_not_a_variable_and_an_op(s):
    for wrong in (s, (np.zeros(3), "sum"), (s,), (s, "sum", 1), {s: "sum"}, "sum", None):
        with refused(synk.ArgumentError, "updates['acc'] of accumulate needs (variable, op)"):
            synk.function(updates={"acc": wrong}, name="accumulate")(lambda x, acc: None)


def test_parameters_of_two_roles(s):
    def f(x, acc):
        pass

    update = {"acc": (s, "sum")}
    for options in (
        {"updates": update, "givens": {"acc": s}},
        {"updates": update, "broadcast": ("acc",)},
        {"updates": update, "inout": ("acc",)},
        {"updates": update, "sliceable": ("acc",)},
        {"inout": ("acc",), "givens": {"acc": s}},
        {"broadcast": ("acc",), "sliceable": ("acc",)},
        {"broadcast": ("acc",), "givens": {"acc": s}, "sliceable": ("acc",)},
    ):
        with refused(synk.ArgumentError, "'acc' of f is in both", "one of them"):
            synk.function(**options)(f)
    for options in ({"updates": {"z": (s, "sum")}}, {"sliceable": ("z",)}, {"givens": {"z": s}}):
        with refused(synk.ArgumentError, "names 'z', which is not a parameter of f; it has x, acc"):
            synk.function(**options)(f)


def test_a_kernel_that_writes_to_the_old_value(s):
    @synk.parallel(updates={"acc": (s, "sum")}, givens={"old": s}, block=1, grid=1)
    def writes(x, old, acc):
        old[0] = x[0]

    with refused(
        synk.ArgumentError, "writes", "old", "old value of a variable that is updated", "Accumulate"
    ):
        writes(np.ones(3))

    @synk.function(updates={"acc": (s, "sum")}, givens={"old": s})
    def writes_too(x, old, acc):
        old[...] = 0

    with refused(synk.ArgumentError, "writes_too", "old value of a variable that is updated"):
        writes_too(np.ones(3))


def test_as_serial_of_rows_of_each_rank(rows):
    for call, args in (
        (functions.total_of_own, (rows,)),
        (functions.of_own_rows, (rows,)),
        (adds_rows(rows), (np.ones(3), 1.0)),
    ):
        with refused(synk.ArgumentError, "'rows'", "divided over the ranks", "as_serial"):
            call.as_serial(*args)


# ---- sliceable -----------------------------------------------------------------------------------


def test_sliceable_without_a_variable(world):
    for value in (np.ones(3), synk.data(np.ones(3)), 1.0, None, "text", synk.arange(3)):
        for call in (functions.of_own_rows, functions.python_of_own_rows):
            with refused(synk.ArgumentError, "v of", "in rows=, which takes variables"):
                call(value)
    with refused(synk.ArgumentError, "rows=, which takes variables"):
        functions.python_of_own_rows([np.ones(3)])
    with refused(synk.ArgumentError, "rows=, which takes variables; got a tuple"):
        functions.of_own_rows((1.0, 2.0))


def test_sliceable_numbers(world):
    number, tree = (
        synk.variable(1.0, name="number"),
        synk.variable([np.ones(3), np.array(2.0)], name="tree"),
    )
    for call in (functions.of_own_rows, functions.python_of_own_rows):
        with refused(synk.ArgumentError, "v of", "rows=", "'number' is 0-d and has no rows"):
            call(number)
    with refused(synk.ArgumentError, "'tree' is 0-d"):
        functions.python_of_own_rows(tree)


def test_sliceable_variables_of_different_lengths(rows, world):
    other = synk.variable(np.zeros(3))

    @synk.function(rows=("a", "b"))
    def two(a, b):
        pass

    with refused(synk.PartitionError, "b has 3 rows on rank 0 but a has 4", "must agree"):
        two(rows, other)
    with refused(synk.PartitionError, "b has 4 rows on rank 0 but a has 3"):
        two(other, rows)


def test_a_local_batch_of_another_number_of_ranks(rows, world):
    size = world.world_size
    for wrong in (
        [slice(1)] * (size + 1),
        [[0, 1]] * (size + 1),
        [None] * (size - 1) + [[0]] * 3,
        np.zeros((size + 2, 1), int),
    ):
        with refused(
            synk.BatchError,
            f"local_batch lists {len(wrong)} selections for {size} ranks",
            "one selection for each",
        ):
            functions.of_own_rows(rows, local_batch=wrong)


def test_a_local_batch_out_of_a_ranks_range(rows, world):
    last = world.world_size - 1
    fine = [[0]] * last
    for wrong, what in (([4], "4"), ([0, -5], "-5"), (5, "5"), (np.array([9]), "9")):
        with refused(synk.BatchError, "local_batch on rank 0, which has 4 rows", what):
            functions.of_own_rows(rows, local_batch=wrong)
        with refused(synk.BatchError, f"local_batch on rank {last}, which has 4 rows", what):
            functions.python_of_own_rows(
                rows, local_batch=[*fine, wrong if isinstance(wrong, int) else list(wrong), *[]]
            )


def test_a_local_batch_of_a_rank_without_rows(world):
    one = synk.scatter(synk.variable(np.zeros(1)), np.ones(1))  # the last rank has it
    if world.world_size > 1:
        for wrong in ([0], 1, [-1]):
            with refused(
                synk.BatchError,
                "local_batch on rank 0, which has no rows",
                "give [] or None for that rank",
            ):
                functions.of_own_rows(one, local_batch=wrong)
    right: list[object] = [[]] * (world.world_size - 1)
    assert functions.of_own_rows(one, local_batch=[*right, [0]]).total == 1
    assert functions.of_own_rows(one, local_batch=slice(1)).total == 1


def test_a_local_batch_that_is_none(rows, world):
    for wrong in ("text", 1.5, {"a": 1}, True, [0.5], slice("a", None), slice(0, 2, 0), object()):
        with refused(synk.BatchError, "local_batch on rank 0"):
            functions.of_own_rows(rows, local_batch=wrong)
    for empty in ([], slice(2, 2), [[]] * world.world_size):
        with refused(synk.BatchError, "empty local_batch", "no rows on any rank"):
            functions.of_own_rows(rows, local_batch=empty)


def test_a_local_batch_without_sliceable_variables(s, world):
    with refused(
        synk.ArgumentError,
        "total_of_own got local_batch",
        "sliceable variables, but it has none",
        "rows=(…)",
    ):
        functions.total_of_own(s, local_batch=[0])


def test_a_batch_where_only_variables_have_rows(rows):
    with refused(synk.BatchError, "batch=3", "none of its arguments is sharded", "local_batch"):
        functions.of_own_rows(rows, batch=3)


def test_rows_of_a_local_batch_have_no_offset(rows):
    @synk.function(rows=("v",))
    def places(v, offset):
        pass

    with refused(synk.BatchError, "synk.OFFSET", "local_batch"):
        places(rows, synk.OFFSET, local_batch=[0])


def test_a_kernel_with_different_numbers_of_rows(rows, world):
    """It is launched for one number of rows; the message names the rank."""
    size = world.world_size
    minibatch = synk.data(np.ones(5 * size), minibatch=True)

    def call(n, **options):
        return functions.of_rows_and_own_rows(np.zeros(n), minibatch, np.ones(1), rows, **options)

    with refused(
        synk.PartitionError,
        "rank 0 gets 5 rows of the sharded arguments but 4 of v",
        "equally many",
    ):
        call(5 * size)
    with refused(synk.PartitionError, f"rank {size - 1} gets", "but 4 of v"):
        call(4 * size + 1)
    with refused(synk.PartitionError, "rank 0 gets 4 rows of the sharded arguments but 2 of v"):
        call(4 * size, local_batch=2)
    with refused(synk.PartitionError, "rank 0 gets 3 rows of the sharded arguments but 4 of v"):
        call(4 * size, batch=3 * size)
    assert call(4 * size).mean == np.arange(4.0 * size).mean()


def test_a_kernel_that_writes_to_rows_that_are_not_written_back(rows):
    @synk.parallel(rows=("v",))
    def writes(v):
        v[0] = 1.0

    with refused(synk.ArgumentError, "writes", "v, which is an input", 'inout=("v",)'):
        writes(rows)


def test_rows_written_twice(rows, world):
    last = world.world_size - 1
    with refused(
        synk.BatchError, f"local_batch lists a row twice on rank {last}", "v is in inout="
    ):
        functions.double_rows(rows, local_batch=[[0, 1]] * last + [[1, -3]])


# ---- kinds of arguments --------------------------------------------------------------------------


def test_a_tree_for_a_kernel(world):
    tree = synk.variable({"w": np.zeros(3)}, name="tree")
    with refused(synk.ArgumentError, "v of add_1d is a tree", "one variable per array"):
        functions.add_1d(tree, 1.0)

    @synk.parallel(updates={"acc": (tree, "sum")}, block=1, grid=1)
    def accumulate(x, acc):
        pass

    with refused(
        synk.ArgumentError,
        "updates['acc'] of accumulate is a tree, but a kernel takes single arrays",
    ):
        accumulate(np.zeros(3))


def test_a_kernel_of_variables_alone_has_no_rows(s):
    @synk.parallel
    def no_grid(v):
        v[0] = 1.0

    @synk.parallel(outputs={"rows": synk.output("gather", like="v")}, grid=1)
    def gathers(v, rows):
        pass

    number = synk.variable(1.0)
    with refused(synk.LaunchError, "grid"):
        no_grid(number)
    with refused(synk.ReductionError, "rows of gathers", "no argument is sharded"):
        gathers(s)


def test_frames_of_a_variable_are_gathered_as_the_refusal_says(world):
    """A kernel has no rows to gather; the function in the message gathers own rows, in a
    sequence for each kept iteration.
    """
    whole = np.arange(4.0 * world.world_size)
    u = synk.scatter(synk.variable(whole), halo=1, periodic=True)

    @synk.parallel(outputs={"rows": synk.output("gather", like="u")}, grid=1)
    def gathers(u, rows):
        pass

    with pytest.raises(
        synk.ReductionError, match=r"name u in rows=.* by frame\(u, synk\.OWN\)"
    ) as refusal:
        gathers(u)
    names = {}
    exec(re.search("def frame.*(?= by )", str(refusal.value)).group(), names)
    frame = synk.function(outputs="gather")(names["frame"])

    @synk.sequence
    def frames(u):
        functions.add_1d(u, 1.0)
        return frame(u, synk.OWN)

    np.testing.assert_array_equal(frames(u, times=4, every=2), [whole + 2, whole + 4])


def test_a_variable_in_a_closure(s):
    @synk.function(outputs="sum")
    def captures(x):
        return s.get_value().sum()

    with pytest.raises(synk.SynkError, match="argument instead of capturing"):
        captures(np.ones(3))
