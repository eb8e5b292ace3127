"""What goes wrong on a rank, or in what ranks return: told in the coordinator, and the world
goes on.
"""

import math
import sys

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_array_equal

import synknumba as synk
from tests.conformance import kernels


@pytest.fixture(autouse=True)
def _still_usable(world):
    """After each test, a call that is right is right."""
    yield
    assert not world.closed
    x = np.arange(30.0)
    assert_array_equal(kernels.axpy(2.0, x, x), 3 * x)
    assert kernels.total_of(x) == x.sum()


def test_a_function_that_raises_on_every_rank(world):
    text = ("told by the user",)

    @synk.function(outputs="sum")
    def wrong(x, k):
        raise ValueError(*text)

    with pytest.raises(synk.RankError, match="ValueError: told by the user") as caught:
        wrong(np.zeros(10), 3)
    error = caught.value
    assert error.function == "wrong"
    assert [failure.rank for failure in error.failures] == list(range(world.world_size))
    assert all(
        failure.type_name == "ValueError" and "in wrong" in failure.traceback
        for failure in error.failures
    )
    assert error.arguments[0] == "x: float64 (10,)"
    assert isinstance(error.__cause__, ValueError)
    assert "test_errors.py" in str(error)


def test_a_function_that_raises_on_one_rank_and_not_at_the_next_call(world):
    """The other ranks' results are of a shape that is told once."""

    @synk.function(outputs="sum")
    def fails_at_first(x, rank, bad):
        if rank == bad:
            raise KeyError
        return x.sum(0)

    last = world.world_size - 1
    for shape in ((20,), (20, 3)):
        x = np.ones(shape)
        with pytest.raises(synk.RankError) as caught:
            fails_at_first(x, synk.RANK, last)
        assert [failure.rank for failure in caught.value.failures] == [last]
        assert_array_equal(fails_at_first(x, synk.RANK, -1), x.sum(0))
        assert_array_equal(fails_at_first(x, synk.RANK, -1), x.sum(0))


def test_the_arguments_told_are_those_of_the_call(world):
    @synk.function(outputs="sum")
    def picky(x, k):
        if k > 2:
            raise ValueError
        return x.sum()

    x = synk.data(np.ones(8))
    assert picky(x, 1) == 8
    assert picky(x, 2) == 8
    for k in (3, 4):
        with pytest.raises(synk.RankError) as caught:
            picky(x, k)
        assert caught.value.arguments[0] == "x: float64 (8,)"
        assert caught.value.arguments[1] in {f"k: {k}", "k: int"}


def test_exits_and_interrupts_inside_a_function_are_errors(world):
    for kind in (SystemExit, KeyboardInterrupt, GeneratorExit, AssertionError):

        @synk.function(outputs="sum")
        def leaves(x, kind=kind):
            raise kind

        with pytest.raises(synk.RankError, match=kind.__name__):
            leaves(np.zeros(10))


def test_an_exception_that_does_not_pickle(world):
    @synk.function(outputs="sum")
    def odd(x):
        class OddError(Exception):
            def __init__(self, a, b):
                super().__init__(a)

        raise OddError("text", lambda: 0)

    with pytest.raises(synk.RankError, match="OddError: text"):
        odd(np.zeros(10))


def test_a_class_that_the_script_has_not_imported_stays_on_the_rank(world):
    """To import a library for it may do anything: CuPy's errors initialise CUDA, after which
    nothing can be forked.
    """

    @synk.function
    def wrong(x):
        import wave

        raise wave.Error("not a wave")

    sys.modules.pop("wave", None)
    with pytest.raises(synk.RankError, match="not a wave") as caught:
        wrong(np.zeros(10))
    assert caught.value.__cause__ is None
    assert "wave" not in sys.modules


def test_a_kernel_that_raises(world):
    """A GPU tells of it where the kernel is compiled for debugging; the CPU always."""
    x = np.arange(50.0)
    assert kernels.refuses_negative(x) == x.sum()
    for place in (0, 49):
        x[place] = -1
        with pytest.raises(synk.RankError, match="negative"):
            kernels.refuses_negative(x)
        x[place] = place
    assert kernels.refuses_negative(x) == x.sum()


def test_a_kernel_that_does_not_compile(world):
    @synk.parallel(outputs={"out": synk.output("gather", like="x")})
    def wrong(x, out):
        i = cuda.grid(1)
        if i < x.shape[0]:
            out[i] = x[i].no_such_thing

    for _ in range(2):
        with pytest.raises(synk.SynkError, match="no_such_thing"):
            wrong(np.zeros(10))


def test_writes_to_an_input_are_refused(world):
    """On the CPU it would be the caller's own memory, and on a GPU the write would be lost."""

    @synk.parallel
    def writes(x):
        i = cuda.grid(1)
        if i < x.shape[0]:
            x[i] = 1.0

    x = synk.data(np.zeros(10))
    with pytest.raises(synk.ArgumentError, match=r"(?s)x.*inout=\('x',\)|x.*inout=\(\"x\",\)"):
        writes(x)
    assert_array_equal(x.data, np.zeros(10))


def test_writes_to_an_input_that_the_source_does_not_show(world):
    if world.device == "cuda":
        pytest.skip("copies of the rows, which may be written")

    @synk.function(inout=("z",), broadcast=("w",))
    def doubled(x, tree, z, w):
        z += w[0]
        np.multiply(tree[0], 2, out=tree[0])

    x = np.ones(3 * world.world_size)
    for how in ({}, {"num_slices": 2}):
        with pytest.raises(synk.RankError, match="read-only") as caught:
            doubled(x, [x.copy()], x.copy(), np.ones(1), **how)
        assert (
            'Name one in inout=("x",) or inout=("tree",) to have its rows written '
            "back, or write to a copy" in str(caught.value)
        )

    @synk.function(broadcast=("w",))
    def alone(x, w):
        np.multiply(x, 2, out=x)

    with pytest.raises(synk.RankError, match=r'Name one in inout=\("x",\) to'):
        alone(synk.data(x), x)


def test_trees_that_differ_between_ranks(world):
    @synk.function(outputs="sum")
    def differs(rank):
        return (1, 2) if rank == 0 else [1, 2]

    if world.world_size == 1:
        assert differs(synk.RANK) == (1, 2)
        return
    with pytest.raises(
        synk.ReductionError,
        match=r"differs.*returned \(value, value\) on rank 0 but \[value, value\] "
        r"on rank 1.*same structure",
    ):
        differs(synk.RANK)


def test_keys_that_differ_between_ranks(world):
    @synk.function(outputs=None)
    def differs(rank):
        return {"a": 1} if rank == 0 else {"b": 1}

    if world.world_size > 1:
        with pytest.raises(synk.ReductionError, match=r"'a': value.*rank 0.*'b': value.*rank 1"):
            differs(synk.RANK)


def test_trees_that_differ_between_slices(world):
    @synk.function(outputs="sum")
    def differs(x, offset):
        return (1,) if offset == 0 else [1]

    with pytest.raises(synk.SynkError, match="different structure"):
        differs(np.zeros(4 * world.world_size), synk.OFFSET, num_slices=2)


def test_shapes_that_differ_between_ranks(world):
    @synk.function(outputs="sum")
    def differs(x):
        return x

    n = 2 * world.world_size + 1
    if world.world_size == 1:
        assert_array_equal(differs(np.ones(n)), np.ones(n))
        return
    with pytest.raises(
        synk.ReductionError, match=r'different shapes.*"sum".*\(2,\) on rank 0.*"gather"'
    ):
        differs(np.ones(n))


def test_ops_that_do_not_fit_what_is_returned(world):
    @synk.function(outputs=("sum", "max"))
    def three(x):
        return x.sum(), x.max(), x.min()

    for num_slices in (1, 2):
        with pytest.raises(
            synk.ReductionError, match=r"\(value, value, value\).*\('sum', 'max'\).*fit"
        ):
            three(np.ones(10), num_slices=num_slices)


@pytest.mark.parametrize(
    ("outputs", "returned", "reason"),
    [
        (
            {"a": "sum", "b": "max"},
            {"a": 1, "c": 2},
            "structure: no op for 'c', nothing returned for 'b'$",
        ),
        (
            {"a": {"b": "max", 1: "sum"}},
            {"a": {"b": 1, "c": 2}},
            r"no op for \['a'\]\['c'\], nothing .* \['a'\]\[1\]$",
        ),
        (("sum", "max"), (1, 2, 3), "structure: no op for 2$"),
        ({"a": "sum"}, (1, 2), r"structure: write outputs=\('sum', 'sum'\), with an op for each$"),
    ],
    ids=["keys", "nested", "positions", "kinds"],
)
def test_what_does_not_fit_is_named(world, outputs, returned, reason):
    with pytest.raises(synk.ReductionError, match=reason):
        synk.function(lambda x: returned, outputs=outputs)(np.ones(10))


def test_a_subset_that_is_not_returned(world):
    part = synk.function(lambda x: {"a": x.sum()}, outputs={"a": "sum", "b": "max"}, name="part")
    for subset in (["b"], ["a", "b"]):
        with pytest.raises(
            synk.ReductionError,
            match=r"returned \{'a': value\}, which lacks some of output_subset=\['",
        ):
            part(np.ones(10), output_subset=subset)


ROWS_AS_NUMBERS = {
    "math": lambda x: 2 * math.exp(x),
    "if": lambda x: 1.0 if x > 0 else 0.0,
    "index": lambda x: [0.0, 1.0][x.astype(int)],
    "range": lambda x: sum(range(x.astype(int))),
}


@pytest.mark.parametrize("kind", ROWS_AS_NUMBERS)
def test_rows_are_no_numbers(world, kind):
    rows = np.ones(8 * world.world_size)
    by_rows = synk.function(ROWS_AS_NUMBERS[kind], outputs="sum")
    with pytest.raises(
        synk.RankError, match=r"x is an array of the rank's rows, .*np.exp\(x\).*synk.vectorize"
    ):
        by_rows(rows)
    with pytest.raises(synk.RankError, match="x is an array of the rank's elements of a variable"):
        by_rows(synk.variable(rows))


def test_a_result_without_ops(world):
    @synk.function
    def silent(x):
        return x.sum()

    for num_slices in (1, 2):
        with pytest.raises(synk.ReductionError, match=r'outputs= does not say.*outputs="sum"'):
            silent(np.ones(10), num_slices=num_slices)


def test_a_number_cannot_be_gathered(world):
    @synk.function(outputs="gather")
    def number(x):
        return x.sum()

    for num_slices in (1, 2):
        with pytest.raises(synk.ReductionError, match=r'number.*no rows to "gather".*None'):
            number(np.ones(10), num_slices=num_slices)


def test_gathered_rows_of_different_width(world):
    @synk.function(outputs="gather")
    def widths(x):
        return x[:, :1] if x[0, 0] == 0 else x

    x = np.ones((2 * world.world_size, 3))
    x[0] = 0
    if world.world_size > 1:
        with pytest.raises(synk.ReductionError, match="agree in all axes but the first"):
            widths(x)


def test_ops_that_a_dtype_does_not_have(world):
    with pytest.raises(synk.ReductionError, match=r"complex.*no order"):
        kernels.low_of(np.ones(10, complex))

    @synk.function(outputs="sum")
    def booleans(x):
        return x > 0

    with pytest.raises(synk.ReductionError, match=r"'sum'.*bool.*integer"):
        booleans(np.ones(1))


def test_objects_are_not_results(world):
    @synk.function(outputs=None)
    def an_object(x):
        return object()

    with pytest.raises(synk.SynkError, match=r"object.*Return arrays, numbers"):
        an_object(np.ones(10))


def test_errors_of_nested_classes(world):
    """Have the qualified names of their classes."""

    class OwnError(synk.SynkError):
        pass

    class OtherError(ValueError):
        pass

    @synk.function(outputs=None)
    def fails(x, kind):
        raise kind("a reason")

    with pytest.raises(OwnError, match="a reason"):
        fails(np.ones(10), OwnError)
    with pytest.raises(synk.RankError) as caught:
        fails(np.ones(10), OtherError)
    assert {failure.type_name for failure in caught.value.failures} == {OtherError.__qualname__}


def test_a_call_from_inside_a_rank(world):
    inner = synk.function(outputs="sum")(lambda x: x.sum())

    @synk.function(outputs="sum")
    def outer(x):
        return inner(x)

    with pytest.raises(synk.SynkError, match=r"this is rank 0.*only the coordinator.*py_func"):
        outer(np.ones(10))

    @synk.function(outputs="sum")
    def plain(x):
        return inner.py_func(x)

    assert plain(np.ones(10)) == 10


def test_a_fork_from_inside_a_rank(world):
    @synk.function(outputs="sum")
    def forks(x):
        import synknumba

        synknumba.fork(1)

    with pytest.raises(synk.SynkError, match=r"fork\(\) called on rank 0.*coordinator"):
        forks(np.ones(10))


def test_data_captured_by_a_function(world):
    held = synk.data(np.ones(3))

    @synk.function(outputs="sum")
    def captures(x):
        return held.data.sum()

    with pytest.raises(synk.SynkError, match="argument instead of capturing"):
        captures(np.ones(3))


def test_what_cannot_be_pickled_is_told_before_anything_is_sent(world):
    import threading

    lock = threading.Lock()

    @synk.function(outputs="sum")
    def locks(x):
        with lock:
            return x.sum()

    with pytest.raises(
        synk.ArgumentError,
        match=r"locks cannot be sent to the ranks.*Pass what it needs as arguments",
    ):
        locks(np.ones(3))
