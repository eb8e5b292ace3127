"""Bad input, case by case: refused in the coordinator, in words that say what to do, and the world
goes on.

What goes wrong on ranks is in tests/conformance/test_errors.py.
"""

import array
import copy
import os
import pickle
import re
import signal
import sys
import threading
import time
import warnings
from contextlib import nullcontext
from types import SimpleNamespace

import numba
import numpy as np
import pytest
from numba import cuda, njit
from scipy import sparse

import synknumba as synk
from synknumba._device import DeviceReport
from synknumba._world import fork as fork_module
from synknumba._world import placement


@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})
def axpy_sum(a, x, y, total):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(total, 0, a * x[i] + y[i])


@synk.function(outputs="sum")
def total_of(x):
    return x.sum()


@synk.function(outputs="gather")
def both(x, y):
    return x + y


@synk.function(outputs="mean")
def mean_of(x):
    return x.mean(0)


@synk.function(inout=("y",))
def add_one(y):
    y += 1


@pytest.fixture(scope="module")
def _world():
    with synk.fork(2, device="cpu") as world:
        yield world


@pytest.fixture
def world(_world):
    """Two ranks; after the test, a call that is right is right."""
    yield _world
    assert not _world.closed
    assert axpy_sum(2.0, np.arange(5.0), np.ones(5)) == 25
    assert total_of(np.arange(5)) == 10


def refused(error, *parts):
    """The error is raised, and its message has these parts, in this order."""
    return pytest.raises(error, match="(?s)" + ".*".join(map(re.escape, parts)))


X = np.arange(10.0)


# ---- arguments -----------------------------------------------------------------------------------


def test_unequal_rows(world):
    with refused(
        synk.PartitionError, "y has 7 rows but x has 10", "agree along axis 0", 'broadcast=("y",)'
    ):
        axpy_sum(1.0, X, X[:7])
    with refused(synk.PartitionError, "y has 10 rows but x has 0", 'broadcast=("y",)'):
        both(X[:0], X)
    with refused(synk.PartitionError, "x[1] has 3 rows but x[0] has 10", 'broadcast=("x",)'):
        total_of([X, X[:3]])
    with refused(synk.PartitionError, "y has 7 rows but x has 10"):
        both(synk.arange(10), X[:7])


def test_arguments_in_another_order(world):
    u, v = synk.variable(np.ones(10)), synk.variable(np.ones(10))
    with refused(synk.ArgumentError, "takes 1 positional", "one argument: exchange([u, v])"):
        synk.exchange(u, v)
    with refused(synk.ArgumentError, "call exchange in a function decorated with @synk.sequence"):
        synk.exchange(v, times=3)
    with refused(synk.ArgumentError, "rank is an ndarray; write set_value(vars, values, rank)"):
        synk.set_value(v, 1, X)
    with refused(synk.ArgumentError, "rank is a Variable; write set_value(vars, values, rank)"):
        synk.set_value(0, 1.0, v)
    with refused(synk.ArgumentError, "rank is an ndarray; write set_value(vars, values, rank)"):
        synk.set_value(X, v)

    @synk.sequence
    def step(a, b):
        synk.swap(a, b)

    with refused(synk.ArgumentError, "step(a, b): too many", "iterations is times=20"):
        step(u, v, 20)
    with refused(synk.ArgumentError, "swap needs a Variable", "got an array"):
        step(X, X)


def test_an_option_by_two_names():
    with refused(synk.ArgumentError, "rows= and sliceable= are the same option; pass rows= alone"):
        synk.function(rows=("x",), sliceable=("x",))


def test_options_of_a_sequence():
    with refused(synk.ArgumentError, "no option nme=", "Did you mean name=?"):
        synk.sequence(nme="x")
    with refused(synk.ArgumentError, "pass times=3 to the call"):
        synk.sequence(times=3)


def test_names_that_are_no_strings():
    decorators = (synk.sequence, synk.function, synk.parallel, synk.expectation, synk.vectorize)
    for decorator in decorators:
        with refused(synk.ArgumentError, "name must be a string, got 3"):
            decorator(name=3)(lambda x: None)
    for make in (synk.data, synk.variable):
        with refused(synk.ArgumentError, "name must be a string, got 3"):
            make(X, name=3)


@pytest.mark.parametrize("shape", [-1, 100.0, (3, -1), "x"])
def test_the_shape_of_an_output(shape):
    with refused(synk.ReductionError, "tuple of non-negative integers", f"got {shape!r}"):
        synk.output("sum", shape=shape)


def test_a_vector_of_two_dtypes():
    with refused(synk.DataError, "float32, int64; convert", 'pass dtype="float64"'):
        synk.vector({"a": np.ones(2, "i8"), "b": np.ones(2, "f4")})
    with refused(synk.DataError, "got <U1, float64; convert"):
        synk.vector([np.ones(2), np.array(["a"])])


def test_a_missing_argument(world):
    with refused(synk.ArgumentError, "axpy_sum is missing the argument y"):
        axpy_sum(1.0, X)
    with refused(synk.ArgumentError, "axpy_sum is missing the arguments x, y"):
        axpy_sum(1.0)


def test_too_many_arguments(world):
    with refused(
        synk.ArgumentError, "takes 3 arguments (a, x, y), got 4", "outputs (total) are allocated"
    ):
        axpy_sum(1.0, X, X, np.zeros(1))
    with refused(synk.ArgumentError, "total_of takes 1 argument", "got 2"):
        total_of(X, X)


def test_a_doubled_argument(world):
    with refused(synk.ArgumentError, "axpy_sum got the argument x twice"):
        axpy_sum(1.0, X, X, x=X)


def test_an_unknown_argument(world):
    with refused(synk.ArgumentError, "axpy_sum has no parameter 'z'", "a, x, y"):
        axpy_sum(1.0, X, X, z=1)
    with refused(
        synk.ArgumentError, "axpy_sum has no parameter 'num_slice'", "Did you mean num_slices?"
    ):
        axpy_sum(1.0, X, X, num_slice=2)
    with refused(
        synk.ArgumentError,
        "axpy_sum has no parameter 'block'",
        "a, x, y, and calls have the options batch, local_batch",
    ):
        axpy_sum(1.0, X, X, block=2)
    with refused(
        synk.ArgumentError,
        "total_of has no parameter 'batchsize'",
        "options batch, local",
        "Did you mean batch?",
    ):
        total_of(X, batchsize=2)
    with refused(synk.ArgumentError, "call total_of in a function", "@synk.sequence"):
        total_of(X, times=2)


def test_a_list_in_the_place_of_an_array(world):
    double = synk.function(lambda x, y: (x.sum(), y), outputs="sum")
    with pytest.raises(synk.RankError, match=r"no attribute 'sum'\nx is a list: .*np.asarray\(x\)"):
        double([1.0, 2.0], X)
    with pytest.raises(synk.RankError) as caught:
        double("x", [X])
    assert "is a list" not in str(caught.value)


def test_gathered_lists_of_numbers(world):
    pair = synk.function(lambda x: [float(x[0]), 2.0], outputs="gather")
    with refused(synk.ReductionError, 'a number has no rows to "gather"', "return np.array([...])"):
        pair(X)


@synk.vectorize
def sum_of_two(x, y):
    return x + y


@pytest.mark.parametrize(
    "call", [lambda x: axpy_sum(1.0, x, X), lambda x: sum_of_two(x, X)], ids=["kernel", "vectorize"]
)
def test_sequences_that_are_no_arrays(world, call):
    with refused(
        synk.ArgumentError, "x of ", "is a range", "pass synk.arange(n)", "or np.asarray(...) of it"
    ):
        call(range(10))
    for wrong in (array.array("d", X), list(X), bytearray(10), memoryview(b"0123456789")):
        with refused(
            synk.ArgumentError,
            "x of ",
            "is a",
            type(wrong).__name__,
            "pass np.asarray(...) of it",
        ):
            call(wrong)
    with refused(
        synk.ArgumentError, "x of ", "is a dict", "pass an array, Data, a Variable, or a number"
    ):
        call({1: 2})


@pytest.mark.parametrize("wrong", [3, "sum", int])
def test_what_is_no_function(wrong):
    with refused(synk.ArgumentError, "must be a Python function", repr(wrong)):
        synk.function(wrong)


def plain_double(x):
    return 2 * x


@njit
def through_another(x):
    return plain_double(x) + 1


class Coloured:
    """How Numba writes where colorama is installed."""

    def __getattr__(self, kind):
        return lambda text: f"{text}\x1b[0m"


@pytest.mark.parametrize("of", [plain_double, through_another])
@pytest.mark.parametrize("colours", [None, Coloured()], ids=["plain", "colours"])
def test_a_plain_helper(world, of, colours, monkeypatch):
    monkeypatch.setattr(numba.core.errors, "_termcolor_inst", colours)
    calls = world.statistics().calls
    for made in (synk.expectation(lambda x: 1 - of(x)), synk.vectorize(lambda x: 1 - of(x))):
        with refused(
            synk.ArgumentError,
            "plain_double",
            __file__,
            "plain Python function",
            "@numba.njit",
            "device=True",
        ):
            made(X)
    assert world.statistics().calls == calls  # nothing was sent
    njit_double = njit(plain_double)
    assert np.array_equal(synk.vectorize(lambda x: 1 - njit_double(x))(X), 1 - 2 * X)


def test_an_output_passed_by_the_caller(world):
    with refused(synk.ArgumentError, "total is an output of axpy_sum", "returned", "Leave it out"):
        axpy_sum(1.0, X, X, total=np.zeros(1))


def test_a_given_passed_by_the_caller(world):
    f = synk.function(outputs="sum", givens={"w": 2.0})(lambda x, w: (x * w).sum())
    with refused(synk.ArgumentError, "w", "givens=", "leave it out"):
        f(X, w=3.0)


def test_objects(world):
    for bad in (np.array([None, 1], object), np.array([{}, {}])):
        with refused(synk.DataError, "x", "object", "fixed-size dtype"):
            total_of(bad)
    with refused(synk.DataError, "object"):
        synk.data([object()])


@synk.function(outputs=None)
def told(value):
    return f"{type(value).__name__} {value} {float(-value)}"


def test_arrays_that_are_not_of_numpy(world):
    """Every rank would get all of them, and of a memoryview bytes, without shape and type."""
    through = synk.sequence(lambda value: told(value) and None)
    for view in (
        memoryview(np.ones(3)),
        memoryview(np.ones((2, 2)))[:1],
        array.array("d", [1.0, 2.0]),
        bytearray(b"abc"),
    ):
        for call in (
            told,
            through,
            lambda view: told([1.0, view]),
            lambda view: told.submit({"a": view}),
        ):
            what = f"{type(view).__name__}, whose rows are not divided"
            with refused(
                synk.ArgumentError, "value", "of told is a", what, "pass np.asarray(...) of"
            ):
                call(view)


@pytest.mark.parametrize("kind", ["csr_matrix", "csr_array", "coo_matrix", "dok_matrix"])
def test_sparse_matrices_of_kernels(world, kind):
    matrix = getattr(sparse, kind)(np.eye(4))
    with refused(synk.ArgumentError, "m.data, m.indices and m.indptr", "tocsr()"):
        axpy_sum(1.0, matrix, X[:4])


def test_ints_of_64_bits_without_sign(world):
    for number in (2**63 - 1, 2**63, 2**64 - 1, 7, 2**63 + 5):
        for _ in range(3):
            assert told(number) == [f"int {number} {float(-number)}"] * 2
    with refused(synk.ArgumentError, "does not fit in 64 bits"):
        told(2**64)
    assert axpy_sum(2**63, np.ones(4), np.zeros(4)) == 2.0**65


def test_what_a_kernel_cannot_take(world):
    with refused(synk.ArgumentError, "x of axpy_sum is a list", "np.asarray(...)"):
        axpy_sum(1.0, [1.0, 2.0], X)
    for bad in ("text", {"x": X}, object(), lambda: 0):
        with refused(
            synk.ArgumentError,
            "a of axpy_sum is a",
            type(bad).__name__,
            "pass an array, Data, a Variable, or",
        ):
            axpy_sum(bad, X, X)
    with refused(synk.ArgumentError, "a", "does not fit in 64 bits", "float"):
        axpy_sum(2**64, X, X)


def test_a_wrong_number_of_dimensions(world):
    with pytest.raises(synk.SynkError, match=r"(?s)axpy_sum.*x"):
        axpy_sum(1.0, X.reshape(5, 2), X.reshape(5, 2))
    d = synk.data(X, name="rows")
    with refused(synk.DataError, "'rows' has 1 dimensions", "2 (shape (5, 2))"):
        d.set_value(X.reshape(5, 2))
    assert total_of(d) == 45


def test_a_wrong_dtype(world):
    d = synk.data(np.zeros(3, "float32"), name="single")
    with refused(synk.DataError, "'single' holds float32", "float64", "force_cast=True"):
        d.set_value(X)
    assert d.shape == (3,)
    with pytest.raises(synk.SynkError, match=r"(?s)axpy_sum.*x"):
        axpy_sum(1.0, np.array(["a", "b"]), np.ones(2))


def test_a_read_only_array_that_is_to_be_written(world):
    y = np.zeros(4)
    y.flags.writeable = False
    with refused(synk.ArgumentError, "y is in inout=", "read-only"):
        add_one(y)


@pytest.mark.parametrize("value", [3.0, [1.0, 2.0], (1, 2), {"a": 1.0}, range(4), "text"], ids=repr)
def test_what_has_no_rows_to_write_back(world, value):
    told = f"it is of type {type(value).__name__}, without any; pass an array with rows, or Data"
    with refused(
        synk.ArgumentError, "y of add_one is in inout=, so its rows are written back, but", told
    ):
        add_one(value)
    for number in (np.array(3.0), synk.data(np.array(3.0))):
        with refused(
            synk.ArgumentError,
            "y of add_one is in inout=",
            "it is 0-d, and ranks get it as a number",
        ):
            add_one(number)


def test_trees_that_have_rows_to_write_back_beside_numbers(world):
    @synk.function(inout=("tree", "other"))
    def raised(tree, other=None):
        tree["a"] += tree["by"]

    a = np.zeros(4)
    raised({"a": a, "by": 2.0})
    raised({"a": a, "by": 3.0}, None)
    assert np.array_equal(a, np.full(4, 5.0))


def test_data_that_is_written_and_read_in_one_call(world):
    @synk.function(inout=("y",))
    def shift(x, y):
        y += x

    d = synk.data(X)
    with refused(synk.ArgumentError, "are the same Data", "inout=", "Pass a copy"):
        shift(d, d)
    np.testing.assert_array_equal(d.data, X)


def test_data_and_a_view_of_it_that_are_both_written(world):
    @synk.function(inout=("x", "y"))
    def add(x, y):
        x += 1
        y += 10

    d = synk.data(X)
    for first, second in ((d, d.data), (d.data[2:], d[2:]), (d.data, d)):
        with refused(synk.ArgumentError, "both in inout=", "Pass a copy"):
            add(first, second)
    np.testing.assert_array_equal(d.data, X)
    add(d, d.data.copy())
    np.testing.assert_array_equal(d.data, X + 1)


def test_data_and_a_view_of_it_that_are_both_written_in_one_argument(world):
    @synk.function(inout=("pair",))
    def add(pair):
        pair[0] += 1
        pair[1] += 10

    d, array = synk.data(X), X.copy()
    for pair in ((d, d.data), (d.data, d), (array, array[:])):
        with refused(synk.ArgumentError, r"pair[1]", "both in inout=", "Pass a copy"):
            add(pair)
    np.testing.assert_array_equal(d.data, X)
    np.testing.assert_array_equal(array, X)


def test_memory_that_a_sequence_writes_twice(world):
    @synk.function(inout=("x",))
    def add(x, by):
        x += by

    @synk.sequence
    def both(x, y):
        add(x, 1)
        add(y, 10)

    d, array = synk.data(X), X.copy()
    for first, second in ((d, d.data), (d[2:], d), (array, array), (array[1:], array[:-1])):
        with refused(synk.ArgumentError, "of both are arrays over the same memory", "Pass a copy"):
            both(first, second)
    both(d, d.data.copy())
    np.testing.assert_array_equal(d.data, X + 1)
    array = np.zeros(8)
    both(array[:4], array[4:])
    np.testing.assert_array_equal(array, [1, 1, 1, 1, 10, 10, 10, 10])


def test_memory_that_a_sequence_writes_and_reads(world):
    """Refused, as ranks read a copy of the array from before the call."""

    @synk.function(inout=("y",))
    def add(x, y):
        y += x

    @synk.sequence
    def body(x, y):
        add(x, y)

    @synk.sequence
    def of_tree(pair):
        add(pair["x"], pair["y"])

    d, array = synk.data(np.ones(8)), np.ones(8)
    body(array, np.ones(8), times=2)  # the plan serves later calls, whose arrays are compared too
    for x, y in (
        (array, array),
        (array, array[:]),
        (array[:6], array[2:]),
        (d.data, d),
        (d, d.data),
        (array[::-1], array),
    ):
        with refused(synk.ArgumentError, "are arrays over the same memory", "Pass a copy"):
            body(x, y, times=3)
        with refused(synk.ArgumentError, "are arrays over the same memory", "Pass a copy"):
            of_tree({"x": x, "y": y}, times=3)
    np.testing.assert_array_equal(array, np.ones(8))
    np.testing.assert_array_equal(d.data, np.ones(8))
    body(array[:4], array[4:], times=3)
    np.testing.assert_array_equal(array, [1, 1, 1, 1, 4, 4, 4, 4])

    @synk.sequence
    def reads(x, y, z):
        add(x, z)
        add(y, z)

    total = np.zeros(8)
    reads(array, array, total, times=2)  # nothing writes to it
    np.testing.assert_array_equal(total, 4 * array)


def test_writing_a_row_twice(world):
    y = np.zeros(4)
    with refused(synk.BatchError, "lists a row twice", "y is in inout=", "list each row once"):
        add_one(y, batch=[1, 2, -3])
    add_one(y, batch=[1, 2])
    np.testing.assert_array_equal(y, [0, 1, 1, 0])


def test_per_rank_of_another_number_of_ranks(world):
    with refused(synk.ArgumentError, "a=per_rank(...) has 3 values for 2 ranks", "one per rank"):
        axpy_sum(synk.per_rank([1.0, 2.0, 3.0]), X, X)
    with refused(synk.ArgumentError, "per_rank takes one scalar per rank", "entry 1 is a list"):
        synk.per_rank([1, [2]])


def test_a_bad_arange(world):
    for bad in (-1, 2.0, "3", True, None):
        with refused(synk.ArgumentError, "arange needs a non-negative integer", repr(bad)):
            synk.arange(bad)
    with refused(synk.ArgumentError, "at most 2**62", str(2**63)):
        synk.arange(2**63)


def test_more_numbers_than_a_call_takes(world):
    @synk.function(outputs=None)
    def add_up(numbers):
        return sum(numbers)

    assert add_up(list(range(2000))) == [1999000] * 2
    with refused(synk.ArgumentError, "add_up got 5000 numbers", "pass them as an array"):
        add_up(list(range(5000)))


def test_local_batch_without_sliceable_variables(world):
    with refused(synk.ArgumentError, "local_batch", "sliceable"):
        total_of(X, local_batch=[0])


# ---- batch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "parts"),
    [
        (11, ("batch=11", "there are 10", "1 to 10")),
        (-1, ("batch=-1", "1 to 10", "slice(-1, None)")),
        (0, ("empty batch", "batch=0", "at least one")),
        ([10], ("index 10 at position 0", "out of range for 10 rows", "-10 to 9")),
        ([0, -11], ("index -11 at position 1", "out of range for 10 rows", "-10 to 9")),
        (np.array([2**63], np.uint64), ("index 9223372036854775808", "out of range")),
        ([2**70], ("out of range for 10 rows",)),
        (range(5, 12), ("index 10 at position 5", "out of range")),
        ([], ("empty batch",)),
        (np.array([], int), ("empty batch",)),
        (slice(5, 5), ("empty batch", "at least one")),
        (slice(20, None), ("empty batch",)),
        (slice(0, 5, 0), ("slice",)),
        (slice(0.5, 2), ("not a slice of rows",)),
        (2.0, ("batch is 2.0", "float", "a batch is an int")),
        ([0.0, 1.0], ("float64 array", "a batch is an int", "np.asarray(rows).astype(int)")),
        ("abc", ("batch", "str", "a batch is an int")),
        (True, ("batch is True", "None, for all rows")),
        ([[1, 2]], ("1-D", "(1, 2)")),
        (np.ones(9, bool), ("mask of length 9", "10 rows", "one entry per row")),
        (np.zeros(10, bool), ("empty batch", "without a True")),
        ([True, False], ("mask of length 2", "10 rows")),
        ({1, 2}, ("batch", "set", "a batch is an int")),
        ([1, [2]], ("batch",)),
    ],
    ids=lambda value: "" if isinstance(value, tuple) else repr(value),
)
def test_a_bad_batch(world, batch, parts):
    x = synk.data(X)
    for function in (total_of, both, axpy_sum):
        args = {total_of: (x,), both: (x, X), axpy_sum: (1.0, x, x)}[function]
        with refused(synk.BatchError, *parts):
            function(*args, batch=batch)
        with refused(synk.BatchError, *parts):
            function.as_serial(*args, batch=batch)


def test_a_batch_of_nothing(world):
    with refused(synk.BatchError, "total_of got batch=3", "none of its arguments is sharded"):
        total_of(np.float64(2.0), batch=3)


def test_a_minibatch_that_is_too_short(world):
    m = synk.data(np.ones(3), minibatch=True)
    for batch in (4, slice(2, 6), [1, 2, 3, 4]):
        with refused(synk.PartitionError, "y has 3 rows but the batch selects 4", "at least 4"):
            both(X, m, batch=batch)
    with refused(synk.PartitionError, "y has 3 rows but the batch selects 10"):
        both(X, m)


@pytest.mark.parametrize("option", ["minibatch", "force_cast"])
@pytest.mark.parametrize(
    "flags", [[True], [False, True, True], (), [1, 0], "no", None, 1, [[True, False]]], ids=str
)
def test_flags_of_inputs_that_do_not_match_them(option, flags):
    with refused(
        synk.ArgumentError, f"{option} of both.build_inputs", "each of x, y", f"got {flags!r}"
    ):
        both.build_inputs(X, X, **{option: flags})
    assert [one.minibatch for one in both.build_inputs(X, X, minibatch=(False, True))] == [
        False,
        True,
    ]


def test_index_ranges_need_rows_in_one_piece(world):
    @synk.function(outputs=None)
    def span_of(span, offset):
        return offset

    for batch in ([1, 2], slice(None, None, 2), slice(None, None, -1)):
        with refused(
            synk.BatchError,
            "consecutive rows",
            "span is an index range",
            "pass the indices as an array",
        ):
            span_of(synk.arange(10), 0, batch=batch)
    with refused(synk.BatchError, "consecutive rows"):
        both(X, synk.OFFSET, batch=[3, 1])


# ---- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_slices", [0, -1, 2.0, "2", None, True, [1]], ids=str)
def test_bad_num_slices(world, num_slices):
    with refused(
        synk.PartitionError, "num_slices must be an integer of at least 1", repr(num_slices)
    ):
        total_of(X, num_slices=num_slices)


def test_more_slices_than_rows_are_allowed(world):
    assert total_of(X, num_slices=1000) == 45
    assert axpy_sum(1.0, X, X, num_slices=np.int64(11)) == 90


def test_integers_that_python_does_not_convert_to_text(world):
    """More than 4,300 digits: the message gives the number of bits."""
    huge = 10**5000
    told = "an int of 16610 bits"
    for make in (
        lambda: synk.arange(huge),
        lambda: synk.arange(-huge),
        lambda: both.plan(X, huge, world_size=2),
        lambda: total_of.plan(X, batch=huge, world_size=2),
        lambda: total_of.plan(X, batch=-huge, world_size=2),
        lambda: total_of.plan(X, world_size=huge),
    ):
        with pytest.raises(synk.SynkError, match=told):
            make()
    with pytest.raises(synk.PartitionError, match="num_slices must be at most"):
        total_of.plan(X, num_slices=huge, world_size=2)
    world.timeout = huge
    assert world.timeout is None
    with pytest.raises(synk.PartitionError, match=told):
        world.timeout = -huge


def test_an_unknown_output_subset(world):
    @synk.parallel(outputs={"a": synk.output("sum", shape=()), "b": synk.output("max", shape=())})
    def two(x, a, b):
        i = cuda.grid(1)
        if i < x.shape[0]:
            cuda.atomic.add(a, 0, x[i])
            cuda.atomic.max(b, 0, x[i])

    for bad in (("c",), "c", 2, (0, -3), (1.5,)):
        with refused(synk.ReductionError, "output_subset names", "not an output of two", "a, b"):
            two(X, output_subset=bad)
    with refused(synk.ReductionError, "'a' twice"):
        two(X, output_subset=("a", 0))
    with refused(synk.ReductionError, "output_subset must list outputs of two", "1.5"):
        two(X, output_subset=1.5)

    @synk.function(outputs=("sum", "max"))
    def pair(x):
        return x.sum(), x.max()

    with refused(synk.ReductionError, "output_subset=[2]", "('sum', 'max')", "pair"):
        pair(X, output_subset=(2,))


def test_a_mean_of_no_rows(world):
    @synk.parallel(outputs={"m": synk.output("mean", shape=())}, block=1, grid=1)
    def mean_kernel(x, m):
        m[0] = 1.0

    for empty in (X[:0], synk.data(X[:0])):
        with refused(
            synk.ReductionError, 'm of mean_kernel is a "mean" of no rows', "at least one row"
        ):
            mean_kernel(empty)
        with refused(synk.ReductionError, "mean_of", "got no rows", "at least one row"):
            mean_of(empty)
    assert mean_kernel(X) == 1


def test_a_forgotten_return(world):
    def forgetful(x):
        x.sum()

    for ops in ("sum", "gather", lambda a, b: a + b, ("sum", "max"), {"a": "sum", "b": None}):
        function = synk.function(forgetful, outputs=ops)
        for how in ({}, {"num_slices": 2}, {"shards": 3}, {"shards": 3, "num_slices": 2}):
            for call in (function, function.as_serial):
                for _ in range(2):
                    with refused(
                        synk.ReductionError,
                        "forgetful",
                        "returned None; add `return`, or leave outputs= out",
                    ):
                        call(X, **how)
    assert synk.function(forgetful)(X) is None
    assert synk.function(forgetful, outputs=None)(X) is None
    assert synk.function(lambda x: (None, x.sum()), outputs=("sum", "sum"))(X) == (None, 45)
    with refused(synk.ReductionError, "None on rank", "same structure"):
        synk.function(lambda x: x.sum() if x[0] else None, outputs="sum")(X)


# ---- which of several arrays is meant ------------------------------------------------------------


def frozen(array):
    data = synk.data(array)
    data.freeze()
    return data


def tree_of(**arrays):
    return synk.variable({"a": np.zeros(3), "b": [np.zeros((2, 2))], **arrays}, name="tree")


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda f, inout: f({"a": X, "b": [np.array([object()])]}),
            "t['b'][0]: Data: dtype object",
        ),
        (lambda f, inout: f({"a": np.ma.masked}), "t['a'] of f is masked"),
        (lambda f, inout: f({"a": X, "b": 1 << 70}), "t['b']=1180591620717411303424 does not fit"),
        (
            lambda f, inout: f({"a": X, "b": threading.Lock()}),
            "t['b'] of f is a lock, which cannot be sent",
        ),
        (
            lambda f, inout: inout([X[:0], np.broadcast_to(1.0, 3)]),
            "t[1] is in inout=, so its rows are written back",
        ),
        (lambda f, inout: inout([X, X[1:]]), "t[1] and t[0] are both in inout="),
        (
            lambda f, inout: inout([synk.data(X), frozen(X)]),
            "t[1] of inout is in inout=, so its rows are written",
        ),
        (
            lambda f, inout: inout((d := synk.data(X), d)),
            "t[1] and t[0] are the same Data, and t[1] is in inout=",
        ),
        (
            lambda f, inout: tree_of().set_value({"a": X, "b": [X]}),
            "['b'][0] of variable 'tree' has 2 dimensions",
        ),
        (
            lambda f, inout: synk.all_reduce(tree_of(c=np.zeros(2, bool)), "sum"),
            "['c'] of variable 'tree': op 'sum'",
        ),
        (
            lambda f, inout: synk.scatter(tree_of(c=1.0)),
            "scatter divides or joins rows, but ['c'] of variable 'tree' is 0-d",
        ),
        (
            lambda f, inout: synk.gather(
                synk.set_value(1, tree_of(), {"a": np.zeros(4), "b": [np.zeros((2, 2))]})
            ),
            "gather with nd_up=1 needs one shape on all ranks, but ['a'] of variable 'tree' has "
            "(3,) on rank 0, (4,) on rank 1",
        ),
        (
            lambda f, inout: synk.gather(
                synk.set_value(1, tree_of(), {"a": np.zeros(3), "b": [np.zeros((2, 1))]}), nd_up=0
            ),
            "gather concatenates rows, but those of ['b'][0] of variable 'tree' differ",
        ),
        (
            lambda f, inout: synk.function(lambda v: None, name="g", rows=("v",))(tree_of(c=1.0)),
            "v of g is in rows=, but ['c'] of variable 'tree' is 0-d",
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_messages_name_the_leaf_of_a_tree(world, call, told):
    f = synk.function(lambda t: None, name="f")
    inout = synk.function(lambda t: None, name="inout", inout=("t",))
    with pytest.raises(synk.SynkError) as caught:
        call(f, inout)
    assert told in str(caught.value)


@pytest.mark.parametrize("count", [10**6 + 1, 2**62, 10**5000], ids=["million", "large", "huge"])
@pytest.mark.parametrize("option", ["num_slices", "shards"])
def test_more_parts_than_there_can_be(world, option, count):
    with refused(synk.PartitionError, f"{option} must be at most 1,000,000"):
        synk.function(lambda x: x.sum(), outputs="sum")(X, **{option: count})


def test_a_mean_over_ranks_that_have_different_numbers_of_rows(world):
    def middle(v):
        return v.mean()

    mean, weighted = (
        synk.function(middle, outputs="mean"),
        synk.function(middle, outputs="mean", rows=("v",)),
    )
    uneven = synk.scatter(synk.variable(np.zeros(1)), np.arange(3.0 * world.world_size - 1))
    with pytest.warns(
        RuntimeWarning,
        match=r"'mean' of middle counts each rank equally.* name it in rows=\(\"v\",\)",
    ):
        mean(uneven)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        even = synk.scatter(synk.variable(np.zeros(1)), np.arange(3.0 * world.world_size))
        assert (
            synk.function(middle, outputs="mean")(even) == even.get_value(0).mean()
            or world.world_size > 1
        )
        assert weighted(uneven) == np.arange(3.0 * world.world_size - 1).mean()


# ---- decorators ----------------------------------------------------------------------------------


def test_an_unknown_op():
    for bad in ("average", "SUM", 3, np.add, ["sum"]):
        with refused(synk.ReductionError, "op", "'sum'", "'gather'", "None", repr(bad)):
            synk.output(bad, shape=())
    for bad in ("average", 3, np.add, ("sum", "average"), {"a": "total"}):
        with refused(synk.ReductionError, "outputs", "'sum'", "'gather'", "None"):
            synk.function(outputs=bad)(lambda x: x)


def test_an_output_that_is_not_declared_fully():
    with refused(synk.ArgumentError, "output needs shape=", "()", "like="):
        synk.output("sum")
    with refused(
        synk.ReductionError, "outputs['t'] of a kernel needs", "synk.output('sum', shape=()"
    ):
        synk.parallel(outputs={"t": "sum"})(lambda x, t: None)
    for dtype in ("nonsense", object):
        with pytest.raises(synk.ReductionError, match="dtype"):
            synk.output("sum", shape=(), dtype=dtype)
    with refused(synk.ReductionError, "'sum'", "bool", "integer dtype"):
        synk.output("sum", shape=(), dtype="bool")
    with refused(synk.ReductionError, "'min'", "complex128", "no order"):
        synk.output("min", shape=(), dtype=complex)


def test_names_that_are_not_parameters():
    for role in ("broadcast", "inout"):
        with refused(synk.ArgumentError, f"{role}= names 'z'", "not a parameter of f", "x, y"):

            @synk.function(outputs="sum", **{role: ("z",)})
            def f(x, y):
                return x

        with refused(synk.ArgumentError, f"{role} takes a tuple of names", "'x'", f'{role}=("x",)'):

            @synk.function(outputs="sum", **{role: "x"})
            def g(x, y):
                return x

    with refused(synk.ArgumentError, "outputs= names 'z'", "not a parameter"):
        synk.parallel(outputs={"z": synk.output("sum", shape=())})(lambda x: None)
    with refused(synk.ArgumentError, "'x'", "both", "broadcast=", "inout="):
        synk.function(outputs="sum", broadcast=("x",), inout=("x",))(lambda x: x)
    with refused(synk.ArgumentError, "'_t'", "named tuple", "cannot start with an underscore"):
        synk.parallel(outputs={"_t": synk.output("sum", shape=())})(lambda x, _t: None)


def test_parameters_that_calls_cannot_name():
    with refused(synk.ArgumentError, "*args"):
        synk.function(outputs="sum")(lambda *args: 0)
    with refused(synk.ArgumentError, "**kwargs"):
        synk.function(outputs="sum")(lambda x, **kwargs: 0)
    with refused(synk.ArgumentError, "'batch'", "option of every call", "rename"):
        synk.function(outputs="sum")(lambda x, batch: 0)


def test_what_is_not_a_function():
    for bad in (3, "kernel", np.add, len):
        with refused(synk.ArgumentError, "parallel needs a Numba CUDA kernel, or a plain function"):
            synk.parallel()(bad)


def test_launches_that_cuda_does_not_accept(world):
    for options, text in (
        ({"block": 0}, "block"),
        ({"block": 1025}, "1024"),
        ({"block": (64, 64)}, "1024"),
        ({"block": 2.5}, "int or a tuple"),
        ({"block": (8, 8)}, "grid= is required"),
        ({"grid": 0}, "grid"),
        ({"grid": (1, 2, 3, 4)}, "1 to 3"),
        ({"smem_bytes": -1}, "smem_bytes"),
    ):
        with refused(synk.LaunchError, text):
            synk.parallel(**options)(lambda x: None)

    @synk.parallel(outputs={"n": synk.output("sum", shape=())})
    def no_rows(n):
        n[0] = 1

    with refused(synk.LaunchError, "no argument is sharded", "no rows to derive the grid from"):
        no_rows()

    # a rank has 5
    @synk.parallel(outputs={"n": synk.output("sum", shape=())}, grid=lambda rows: rows - 10)
    def bad_rule(x, n):
        n[0] = 1

    with refused(synk.LaunchError, "grid(5)", "1 to"):
        bad_rule(X)


def test_gathering_where_there_are_no_rows(world):
    @synk.parallel(outputs={"out": synk.output("gather", shape=())}, grid=1)
    def alone(a, out):
        out[0] = a

    with refused(synk.ReductionError, "out of alone", "no argument is sharded", "None"):
        alone(1.0)


def test_like_something_that_is_not_an_array(world):
    @synk.parallel(outputs={"out": synk.output("sum", like="a")})
    def f(x, a, out):
        out[0] = 1

    with refused(synk.ArgumentError, "like='a'", "not an array argument"):
        f(X, 1.0)
    with refused(synk.ReductionError, "like='a'", "sharded", "shape=", '"gather"'):
        f(X, X)


def test_like_an_index_range(world):
    for op in ("gather", "sum"):
        for known, advice in (
            ({}, 'shape=(), dtype="int64"'),
            ({"dtype": "int8"}, 'shape=(), dtype="int8"'),
        ):

            @synk.parallel(outputs={"out": synk.output(op, like="rows", **known)})
            def f(rows, out):
                for i in range(rows.start + cuda.grid(1), rows.stop, cuda.gridsize(1)):
                    out[0] += i

            with refused(
                synk.ArgumentError,
                "out of f is like='rows', which is synknumba.arange",
                f"write {advice} in place",
            ):
                f(synk.arange(5))

    @synk.parallel(outputs={"out": synk.output("sum", shape=(), dtype="int64")})
    @cuda.jit
    def total(rows, out):
        if cuda.grid(1) == 0:
            for i in range(rows.start, rows.stop):
                out[0] += i

    assert total(synk.arange(5)) == 10


def test_shapes_that_are_none(world):
    for bad in ((-1,), (2.5,), "ab", None):
        f = synk.parallel(outputs={"out": synk.output("sum", shape=lambda given, bad=bad: bad)})(
            lambda x, out: None
        )
        with refused(synk.ReductionError, "shape of out", "non-negative integers"):
            f(X)


# ---- memory --------------------------------------------------------------------------------------


def test_more_shared_memory_than_there_is(world):
    for size in (10**13, 10**15):
        with refused(synk.SharedMemoryError, f"{8 * size:,} bytes", "bytes left", "free_memory()"):
            synk.data(shape=(size,), dtype="float64")


def test_shared_memory_that_is_full(world, monkeypatch):
    from synknumba._host import segment

    d = synk.data(np.ones(10), name="d")
    total_of(X)
    monkeypatch.setattr(segment, "_free_bytes", lambda fd: 100_000)
    with refused(
        synk.SharedMemoryError,
        "8,000,000 bytes",
        "/dev/shm has 100,000 bytes free",
        "free_memory()",
    ):
        total_of(np.ones(1_000_000))
    with refused(synk.SharedMemoryError, "bytes free"):
        d.set_length(1_000_000)
    with refused(synk.SharedMemoryError, "bytes free"):
        total_of(d, batch=[0] * 100_000)  # the list itself
    assert total_of(d) == 10
    assert d.shape == (10,)


# ---- worlds --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, -1, 2.0, "2", True, [2]], ids=str)
def test_a_bad_world_size(no_world, size):
    with refused(synk.PartitionError, "world_size must be an integer of at least 1", repr(size)):
        synk.fork(size, device="cpu")


def test_fork_twice(no_world):
    with synk.fork(1, device="cpu") as world:
        with refused(synk.WorldError, "fork() called while", "open", "close() first"):
            synk.fork(1, device="cpu")
        assert not world.closed
        assert total_of(X) == 45


def test_a_call_before_fork_and_after_close(no_world):
    for function in (total_of, total_of.as_serial):
        with refused(synk.WorldError, "no world", "fork()"):
            function(X)
    with refused(synk.WorldError, "fork()"):
        synk.distribute()
    with refused(synk.WorldError, "world_size="):
        total_of.plan(X)
    with synk.fork(1, device="cpu"):
        assert total_of(X) == 45
    with refused(synk.WorldError, "no world", "fork()"):
        total_of(X)


def test_bad_devices(no_world, monkeypatch):
    monkeypatch.setattr(placement, "probed", lambda: nullcontext(DeviceReport(2)))
    monkeypatch.setattr(placement, "cuda_is_initialised", lambda: False)
    with refused(synk.PartitionError, "world_size=3", "2 visible GPUs", "devices=[0, 1, 0]"):
        synk.fork(3)
    for bad in ([0, 2], [-1], [], [0.5], [True]):
        with refused(
            synk.PartitionError, "devices must list a GPU between 0 and 1 for each rank", repr(bad)
        ):
            synk.fork(devices=bad)
    with refused(synk.PartitionError, "world_size=3 but devices=[0, 1] places 2 ranks"):
        synk.fork(3, devices=[0, 1])
    with refused(synk.PartitionError, 'device must be "auto", "cuda" (or "gpu") or "cpu"', "'tpu'"):
        synk.fork(device="tpu")
    with refused(synk.PartitionError, "devices=[0]", 'device is "cpu"'):
        synk.fork(device="cpu", devices=[0])
    for bad in (0, -1.0, "3", True, float("nan")):
        with refused(
            synk.PartitionError, "timeout must be a positive number of seconds", repr(bad)
        ):
            synk.fork(1, device="cpu", timeout=bad)


def test_a_gpu_where_there_is_none(no_world, monkeypatch):
    monkeypatch.setattr(placement, "probed", lambda: nullcontext(DeviceReport(0)))
    for arguments in ({"device": "cuda"}, {"device": "gpu"}, {"devices": [0]}):
        with refused(synk.DeviceError, "no NVIDIA GPU is visible", 'device="cpu"'):
            synk.fork(**arguments)
    monkeypatch.setattr(
        placement, "probed", lambda: nullcontext(DeviceReport(0, "the driver is broken"))
    )
    with refused(synk.DeviceError, "the driver is broken"):
        synk.fork(device="cuda")
    with pytest.warns(RuntimeWarning, match="running on CPU cores: the driver is broken"):
        synk.fork(1)
    assert total_of(X) == 45


def test_cuda_initialised_before_a_gpu_fork(no_world, monkeypatch):
    monkeypatch.setattr(placement, "probed", lambda: nullcontext(DeviceReport(1)))
    monkeypatch.setattr(placement, "cuda_is_initialised", lambda: True)
    for arguments in ({}, {"device": "cuda"}, {"devices": [0, 0]}):
        with refused(
            synk.DeviceError,
            "CUDA has been initialised",
            "before fork()",
            "Move",
            "after fork()",
            'device="cpu"',
        ):
            synk.fork(**arguments)
    with synk.fork(1, device="cpu"):
        assert total_of(X) == 45


def test_mpi_initialised_before_the_fork(no_world, monkeypatch):
    state = {"initialised": True, "finalised": False}
    mpi = SimpleNamespace(
        Is_initialized=lambda: state["initialised"], Is_finalized=lambda: state["finalised"]
    )
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=mpi))
    with refused(
        synk.WorldError,
        "MPI has been initialised",
        "before fork()",
        "after fork()",
        "mpi4py.rc.initialize = False",
    ):
        synk.fork(1, device="cpu")
    for state["initialised"], state["finalised"] in ((False, False), (True, True)):
        with synk.fork(1, device="cpu"):
            assert total_of(X) == 45


def test_a_world_in_each_process_of_a_launcher(no_world, monkeypatch):
    monkeypatch.setattr(fork_module, "_told_of_launcher", [])
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    with synk.fork(1, device="cpu"):
        pass
    monkeypatch.setenv("PMI_SIZE", "4")
    with (
        pytest.warns(
            RuntimeWarning,
            match=r"one of 4 processes.*PMI_SIZE=4.*`python -m synknumba run "
            r"script.py`; else start it once",
        ),
        synk.fork(1, device="cpu"),
    ):
        assert total_of(X) == 45
    with synk.fork(1, device="cpu"):  # said once
        pass


def test_the_same_fork_again_at_a_prompt(no_world, monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    with synk.fork(1, device="cpu") as world:
        assert synk.fork(1, device="cpu") is world
        for other in ({"world_size": 2}, {"world_size": 1, "timeout": 3.0}):
            with refused(synk.WorldError, "fork() called while", "open", "close() first"):
                synk.fork(**other, device="cpu")
    with synk.fork(1, device="cpu") as later:
        assert later is not world
    with synk.fork(1, device="cpu", respawn=True) as world:
        os.kill(world.pids[0], signal.SIGKILL)
        with refused(synk.RankDied, "was killed", "The next call starts them again"):
            synk.variable(0.0)
        assert synk.fork(1, device="cpu", respawn=True) is world
        assert not world.closed


def test_a_call_from_a_second_thread_while_one_runs(no_world):
    @synk.function(outputs="sum")
    def slow(x, started):
        started[0] = 1
        time.sleep(0.5)
        return x.sum()

    slow = synk.function(outputs="sum", inout=("started",))(slow.py_func)
    with synk.fork(2, device="cpu"):
        started = synk.data(np.zeros(2))
        results = []
        thread = threading.Thread(target=lambda: results.append(slow(np.ones(2), started)))
        thread.start()
        deadline = time.monotonic() + 20
        while not started.data.any() and time.monotonic() < deadline:
            time.sleep(0.001)
        with refused(
            synk.WorldError,
            "another call is in progress, in another thread",
            "one call at a time",
            "lock",
        ):
            total_of(X)
        thread.join()
        assert results == [2]
        assert total_of(X) == 45


def test_attributes_of_a_world(no_world):
    with synk.fork(1, device="cpu", timeout=3.0) as world:
        for bad in (0, -1, "5", True, float("nan")):
            with refused(
                synk.PartitionError, "timeout must be a positive number of seconds", repr(bad)
            ):
                world.timeout = bad
        for name in ("timeot", "respawn"):
            with pytest.raises(AttributeError, match=name):
                setattr(world, name, 3)
        assert world.timeout == 3.0
        world.timeout = np.float32(2.5)
        assert world.timeout == 2.5
        assert total_of(X) == 45
        world.timeout = None
        assert world.timeout is None


def test_no_process_ids_of_ranks_that_have_ended(no_world):
    with synk.fork(2, device="cpu") as world:
        assert len(world.pids) == 2
        os.kill(world.pids[0], signal.SIGKILL)
        with refused(synk.RankDied, "rank 0"):
            total_of(X)
        assert world.pids == ()
    with synk.fork(2, device="cpu") as world:
        assert len(world.pids) == 2
    assert world.pids == ()


CALLS_OF_THE_SCRIPT = {
    "all_reduce": ("all_reduce(", lambda w: synk.all_reduce(w, "sum")),
    "set_value, a method": ("set_value(", lambda w: w.set_value(np.ones(3))),
    "set_value": ("set_value(", lambda w: synk.set_value(0, w, np.ones(3))),
    "variable": ("variable(", lambda _: synk.variable(np.ones(3))),
    "of data": ("total_of(", lambda _: total_of(X)),
    "of a variable": ("total_of(", total_of),
    "as_serial": ("total_of(", lambda _: total_of.as_serial(synk.data(np.ones(3)))),
}


@pytest.mark.parametrize("case", CALLS_OF_THE_SCRIPT)
def test_a_death_names_the_call_of_the_script(no_world, case):
    """Also where the ranks were to map or allocate memory for it."""
    name, call = CALLS_OF_THE_SCRIPT[case]
    w = synk.variable(np.zeros(3), "w")
    with synk.fork(2, device="cpu") as world:
        os.kill(world.pids[1], signal.SIGKILL)
        with refused(synk.RankDied, f"during {name}"):
            call(w)


def test_statistics_go_on_when_ranks_are_started_again(no_world):
    with synk.fork(2, device="cpu", respawn=True) as world:
        for _ in range(5):
            total_of(X)
        before = world.statistics()
        assert before.calls == 5
        os.kill(world.pids[1], signal.SIGKILL)
        with refused(synk.RankDied, "rank 1"):
            total_of(X)
        ended = world.statistics()
        assert ended.calls == 6
        assert total_of(X) == 45
        after = world.statistics()
    assert after.calls == 7
    assert after.rounds > ended.rounds > before.rounds
    assert after.plans > before.plans
    assert after.scattered_bytes == 7 * before.scattered_bytes / 5
    for phase in ("starting", "preparing", "working", "open"):
        assert (
            getattr(after.seconds, phase)
            >= getattr(ended.seconds, phase)
            >= getattr(before.seconds, phase)
        ), phase
    assert after.seconds.starting > before.seconds.starting


def test_arguments_that_functions_do_not_have(no_world):
    w = synk.variable(np.zeros(3), "w")
    with refused(synk.ArgumentError, "fork has no option n=; it has world_size, device"):
        synk.fork(n=2)
    for name in ("ranks", "n", "nprocs", "num_ranks", "workers", "gpus"):
        with refused(synk.ArgumentError, f"option {name}=", "Did you mean world_size=?"):
            synk.fork(**{name: 2})
    with refused(synk.ArgumentError, "data has no option n=; it has value, dtype"):
        synk.data(n=2)
    with refused(synk.ArgumentError, "fork has no option time_out=", "Did you mean timeout=?"):
        synk.fork(2, time_out=2)
    with refused(
        synk.ArgumentError,
        "positional arguments but 2 were given",
        "write fork(world_size=None, *, device='auto', devices=None",
    ):
        synk.fork(2, "cpu")
    with refused(synk.ArgumentError, "data has no option dtyp=", "Did you mean dtype=?"):
        synk.data(np.ones(3), dtyp="float32")
    with refused(synk.ArgumentError, "variable has no option nam=", "Did you mean name=?"):
        synk.variable(np.ones(3), nam="w")
    with refused(
        synk.ArgumentError,
        "takes from 1 to 2 positional arguments",
        "write all_reduce(vars, op=None)",
    ):
        synk.all_reduce(w, w, "sum")
    with refused(
        synk.ArgumentError,
        "missing 1 required positional argument: 'vars'",
        "write get_value(vars, rank=None)",
    ):
        synk.get_value()
    with refused(synk.ArgumentError, "multiple values for argument 'op'"):
        synk.all_reduce(w, "sum", op="sum")


def test_arithmetic_with_a_variable_in_the_script(no_world):
    w = synk.variable(np.arange(3.0), "w")
    for compute in (
        lambda: w + 1,
        lambda: 1 - w,
        lambda: w @ w,
        lambda: -w,
        lambda: w < 1,
        lambda: w[0],
        lambda: list(w),
        lambda: 1.0 in w,
    ):
        with refused(synk.ArgumentError, "variable 'w' lives on the ranks", "use get_value()"):
            compute()
    with refused(synk.ArgumentError, "variable 'w' lives on the ranks", "use set_value()"):
        w[0] = 1.0
    np.testing.assert_array_equal(np.ones(3) + w, [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(np.asarray([w, w]), [[0.0, 1.0, 2.0]] * 2)
    assert len({w, w}) == 1


CONSTANTS = {
    "times": (lambda: synk.RANK * 2, "RANK"),
    "of a number": (lambda: 2 - synk.OFFSET, "OFFSET"),
    "division": (lambda: synk.WORLD_SIZE // 2, "WORLD_SIZE"),
    "a sign": (lambda: -synk.RANK, "RANK"),
    "the larger": (lambda: max(synk.RANK, 1), "RANK"),
    "a comparison": (lambda: synk.OFFSET >= 3, "OFFSET"),
    "a length": (lambda: synk.ROWS - 1, "ROWS"),
    "a range": (lambda: range(synk.WORLD_SIZE), "WORLD_SIZE"),
    "an index": (lambda: [1, 2][synk.RANK], "RANK"),
    "an int": (lambda: int(synk.RANK), "RANK"),
    "a float": (lambda: float(synk.RANK), "RANK"),
    "a scalar of NumPy": (lambda: np.int64(2) * synk.RANK, "RANK"),
    "an array": (lambda: np.arange(3) + synk.RANK, "RANK"),
    "a function of NumPy": (lambda: np.sqrt(synk.RANK), "RANK"),
    "own rows": (lambda: synk.OWN.start, "OWN"),
}


@pytest.mark.parametrize("case", CONSTANTS)
def test_nothing_is_computed_with_what_ranks_fill_in(case):
    compute, name = CONSTANTS[case]
    way_out = r"synk\.world_size\(\)" if name == "WORLD_SIZE" else r"synk\.per_rank\(\[\.\.\.\]\)"
    with pytest.raises(
        synk.ArgumentError,
        match=rf"synk\.{name} is no number.* Pass it, as in f\(x, synk\.{name}\).*{way_out}",
    ):
        compute()


def test_constants_are_values_like_others():
    constants = [synk.RANK, synk.WORLD_SIZE, synk.OFFSET, synk.ROWS, synk.OWN]
    assert copy.deepcopy(constants) == pickle.loads(pickle.dumps(constants)) == constants
    assert len({*constants}) == 5
    assert not hasattr(synk.RANK, "start")
    assert str(np.array(synk.OWN, dtype=object)[()]) == str(synk.OWN)


def test_variables_in_functions_of_one_row_and_by_parts():
    with synk.fork(2, device="cpu"):
        rows = synk.scatter(synk.variable(np.arange(6.0)))
        for function, options in (
            (synk.expectation, {}),
            (synk.vectorize, {}),
            (synk.vectorize, {"out": synk.scatter(synk.variable(np.ones(6)))}),
        ):
            with refused(synk.SynkError, "for the rows of x", 'write rows=("x",) in the decorator'):
                function(lambda x: 2 * x)(rows, **options)
        assert synk.expectation(lambda x: 2 * x, rows=("x",))(rows).mean == 5.0
        with pytest.raises(
            synk.ArgumentError, match="none of its arguments has any(?!.*sliceable)"
        ):
            synk.expectation(lambda x: 2 * x)(1.0)
        with refused(synk.ArgumentError, "x is a list: pass np.asarray(...) of it"):
            synk.expectation(lambda x: 2 * x)([1.0])
        with refused(synk.ArgumentError, "v.get_value()['h'], or pass the whole tree"):
            synk.variable({"h": np.zeros(3)})["h"]


@synk.parallel(outputs={"best": synk.output("argmin", shape=(), dtype="float64")}, rows=("v",))
def best_of(v, best):
    i = cuda.grid(1)
    if i < v.shape[0]:
        best[i] = v[i]


def test_a_plan_refuses_what_a_call_refuses(no_world):
    """In the same words, though it copies and places nothing."""
    x, rows = np.arange(10.0), synk.variable(np.arange(4.0))
    refusals = [
        lambda of: of(total_of)(synk.per_rank([1, 2, 3])),
        lambda of: of(total_of)([float(i) for i in range(3000)]),
        lambda of: of(axpy_sum)(1.0, x, x, output_subset="sum"),
        lambda of: of(add_one)(x, batch=[1, 2, 1]),
        lambda of: of(best_of)(rows, local_batch=[0]),
    ]
    with synk.fork(2, device="cpu"):
        for refusal in refusals:
            with pytest.raises(synk.SynkError) as of_call:
                refusal(lambda function: function)
            with pytest.raises(type(of_call.value), match=re.escape(str(of_call.value))):
                refusal(lambda function: function.plan)
