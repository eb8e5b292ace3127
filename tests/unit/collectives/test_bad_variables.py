"""Values that no variable can hold, and variables that cannot be made: refused, and nothing has
changed.
"""

import pickle

import numpy as np
import pytest

import synknumba as synk
from synknumba._host import this_process
from synknumba._variables.state import VariableState
from synknumba._world import open_world
from tests.unit.collectives.conftest import ROWS, refused

# ---- which values


GIVE = {
    "broadcast": synk.broadcast,
    "scatter": synk.scatter,
    "set_value": lambda v, value: synk.set_value(1, v, value),
    "method": lambda v, value: v.set_value(value),
}
with_all = pytest.mark.parametrize("give", GIVE.values(), ids=GIVE)


@with_all
@pytest.mark.parametrize(
    "value",
    [np.ones((4, 1)), 3.0, [[1.0]], np.ones((1, 1, 4))],
    ids=["column", "number", "list", "3-d"],
)
def test_a_value_of_another_number_of_dimensions(held, give, value):
    with refused(synk.DataError, "'v' has 1 dimensions", f"the value has {np.ndim(value)}"):
        give(held.v, value)


@pytest.mark.parametrize("make", [synk.variable, synk.vector])
@pytest.mark.parametrize("name", [np.float32, b"float32", 1, ("a", "b")], ids=str)
def test_a_name_that_is_no_text(held, make, name):
    """The dtype stands there in NumPy's functions."""
    with refused(synk.ArgumentError, "name must be a string", "dtype="):
        make([np.ones(3)], name)


@with_all
@pytest.mark.parametrize(
    "dtype", ["complex64", "longdouble", "M8[s]", "U3", [("a", "f4")]], ids=str
)
def test_a_value_whose_cast_is_not_safe(held, give, dtype):
    with refused(
        synk.DataError, "'v' holds float64", str(np.dtype(dtype)), "convert it first"
    ) as raised:
        give(held.v, np.zeros(4, dtype))
    assert "force_cast" not in str(raised.value)  # there is no such thing here


@with_all
@pytest.mark.parametrize(
    "value", [[1.5, 2.5, 3.5], np.ones(3), [2**70, 0, 0]], ids=["list", "array", "huge"]
)
def test_floats_for_integers(held, give, value):
    with refused(synk.DataError, "'ints'"):
        give(held.ints, value)


@with_all
@pytest.mark.parametrize(
    "value",
    [object(), [None], [[1.0], [2.0, 3.0]], {"a": 1.0}, np.array([1, None])],
    ids=["object", "list of None", "ragged list", "dict", "array of objects"],
)
def test_values_that_are_no_arrays(held, give, value):
    with refused(synk.DataError, "variable 'v'"):
        give(held.v, value)


@with_all
@pytest.mark.parametrize(
    "value",
    [3.0, [np.ones((2, 3))], {"w": np.ones((2, 3))}, {"w": np.ones((2, 3)), "x": np.zeros(3)}],
)
def test_a_value_of_another_tree(held, give, value):
    with refused(synk.DataError, "variable 'tree' is a tree {'w': value, 'b': value}"):
        give(held.tree, value)


@with_all
def test_one_wrong_array_of_a_tree(held, give):
    with refused(synk.DataError, "['b'] of variable 'tree' holds float32", "float64"):
        give(held.tree, {"w": np.zeros((2, 3)), "b": np.zeros(3)})


@pytest.mark.parametrize("name", ["broadcast", "scatter", "set_value"])
@pytest.mark.parametrize(
    "values",
    [ROWS, [ROWS], [ROWS, ROWS, ROWS], {"v": ROWS, "u": ROWS}],
    ids=["one", "1", "3", "dict"],
)
def test_values_that_are_not_one_for_each_variable(held, name, values):
    with refused(
        synk.DataError, f"{name} needs values in the structure of its variables, [value, value]"
    ):
        GIVE[name]([held.v, held.u], values)


@pytest.mark.parametrize("name", ["broadcast", "scatter", "set_value"])
def test_one_wrong_value_of_several(held, name):
    """None of the variables changes."""
    with refused(synk.DataError, "'u' holds float64", "complex128"):
        GIVE[name]([held.v, held.u], [ROWS, ROWS + 1j])


@pytest.mark.parametrize(
    "batch",
    [0, 6, -1, [5], [-6], [], slice(2, 2), [0.5], "x", True, [[0]], np.ones(3, bool)],
    ids=str,
)
def test_a_batch_of_rows_that_are_not_there(held, batch):
    for call in (
        lambda: synk.scatter(held.v, ROWS, batch=batch),
        lambda: synk.scatter([held.u, held.v], [ROWS, ROWS], batch=batch),
        lambda: synk.set_value(1, held.v, ROWS, batch=batch),
    ):
        with refused(synk.BatchError, "batch"):
            call()


# ---- what a variable is made of


NO_ARRAYS = {
    "nothing": (None, "has no arrays"),
    "empty list": ([], "has no arrays"),
    "empty tree": ({"a": [], "b": None}, "has no arrays"),
    "object": (object(), "dtype object cannot be stored on the ranks"),
    "array of objects": (np.array([1, None]), "dtype object cannot be stored on the ranks"),
    "objects in records": (np.zeros(2, [("a", "O")]), "cannot be stored on the ranks"),
    "in a tree": (
        {"a": np.ones(2), "b": np.array([None])},
        "dtype object cannot be stored on the ranks",
    ),
    "huge integer": (2**70, "dtype object cannot be stored on the ranks"),
    "items of no size": (np.zeros(2, []), "cannot be stored on the ranks"),
    "ragged list": ([[1.0], [2.0, 3.0]], "a list cannot be read as an array"),
    "masked": (np.ma.masked_array([1, 2], [True, False]), "masked items"),
}


@pytest.mark.parametrize("make", [synk.variable, synk.vector], ids=["variable", "vector"])
@pytest.mark.parametrize("name", NO_ARRAYS)
def test_values_that_no_variable_can_hold(held, make, name):
    value, part = NO_ARRAYS[name]
    with refused(synk.DataError, "variable 'w'", part):
        make(value, "w")


def test_dtypes_that_no_variable_can_hold(held):
    with refused(synk.DataError, "'w' holds int32", "float64", "convert it first"):
        synk.variable(np.ones(3), "w", dtype="int32")
    with refused(synk.DataError, "'w'", "wrong"):
        synk.variable(np.ones(3), "w", dtype="wrong")
    with refused(synk.DataError, "'w'", "is a subarray dtype", "float64"):
        synk.variable(np.ones((3, 2)), "w", dtype=("f8", (2,)))
    with refused(synk.DataError, "'w': dtype object"):
        synk.variable(np.ones(3), "w", dtype=object)


def test_a_vector_of_different_dtypes(held):
    with refused(synk.DataError, "vector needs arrays of one dtype", "float32, float64", "dtype="):
        synk.vector([np.ones(2), np.ones(2, "float32")])
    with refused(synk.DataError, "float64"):
        synk.vector([np.ones(2), np.ones(2, "float32")], dtype="float32")


def test_variables_are_not_numbers_of_this_process(held):
    with refused(synk.DataError, "'v' cannot be pickled", "get_value()"):
        pickle.dumps(held.v)
    with refused(synk.ArgumentError, "'tree' is a tree", "get_value()"):
        np.asarray(held.tree)
    with refused(ValueError, "'v' lives on the ranks", "always a copy"):
        np.asarray(held.v, copy=False) if np.lib.NumpyVersion(
            np.__version__
        ) >= "2.0.0" else held.v.__array__(copy=False)
    with refused(synk.ArgumentError, "'number' has no length", "0-d"):
        len(held.number)
    with refused(synk.ArgumentError, "'tree' has no length", "tree"):
        len(held.tree)


# ---- where it is made


def test_made_on_a_rank(held, monkeypatch):
    monkeypatch.setattr(this_process._state, "rank", 1)
    for make in (synk.variable, synk.vector):
        with refused(
            synk.WorldError, "this is rank 1", "variables are created in the coordinator only"
        ):
            make(np.ones(3))


def test_used_on_a_rank(held):
    """A rank inherits what a module had at the fork, and must not take it for what it has."""
    early = synk.variable(np.ones(3), "early")
    uses = [
        lambda: synk.variable(np.ones(3)),
        lambda: held_here.get_value(0),
        lambda: np.asarray(held_here),
        lambda: held_here.set_value(np.zeros(3)),
        lambda: synk.all_reduce(held_here, "sum"),
        lambda: synk.gather(held_here),
        lambda: synk.get_value(0, held_here),
        lambda: synk.all_reduce(np.ones(3), "sum"),  # what a function gets of a variable
    ]

    def try_all():
        told = []
        for use in uses:
            try:
                told.append(f"did {use()}")
            except synk.WorldError as error:
                told.append(str(error))
        return told

    with pytest.MonkeyPatch.context() as patch:  # as it is on a rank that was forked just now
        patch.setattr(this_process._state, "rank", 1)
        patch.setattr(open_world.CURRENT, "world", None)
        held_here = synk.Variable(VariableState([np.ones(3)], ("leaf",), "inherited"))
        told = try_all()
    assert all(one.startswith("this is rank 1") for one in told), told
    assert "all_reduce is called by the script" in told[-1]
    assert 'outputs="sum"' in told[-1]
    assert early.get_value().tolist() == [1, 1, 1]


def test_made_by_a_function(held):
    @synk.function(outputs=None)
    def try_to(x):
        try:
            synk.variable(x)
        except synk.WorldError as error:
            return np.array(len(str(error)))
        return np.array(0)

    assert all(length > 20 for length in try_to(ROWS))
