"""Reductions: slices accumulated on ranks and ranks combined give what NumPy gives on all rows
at once.
"""

import functools
import math
import pickle
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import synknumba as synk
from synknumba._device.fold_kernel import check, fold
from synknumba._errors import ReductionError
from synknumba._ops.reduction import accumulate, as_op, check_dtype, combine, identity, result_dtype
from synknumba._ops.rows import Partition

DTYPES = [
    "int8",
    "uint8",
    "int32",
    "uint32",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex128",
    "bool",
]
NUMPY = {
    "sum": np.add.reduce,
    "prod": np.multiply.reduce,
    "min": np.minimum.reduce,
    "max": np.maximum.reduce,
    "mean": np.mean,
}


def on_slice(op: str, rows: Any) -> Any:
    """What a kernel would write for its rows, in the dtype of the output; for "mean" the mean of
    its rows.
    """
    if op == "mean":
        return np.mean(rows, axis=0, dtype=result_dtype("mean", rows.dtype))
    return NUMPY[op](rows, axis=0, dtype=rows.dtype)


def in_parallel(op: str, values: Any, world_size: int, num_slices: int) -> Any:
    """Ranks and slices as the ranks do them: no rows, no launch."""
    final = result_dtype(op, values.dtype)
    parts, weights = [], []
    for rank in range(world_size):
        start, stop = Partition.even(world_size).part(len(values), rank)
        acc = np.full(values.shape[1:], 0 if op == "mean" else identity(op, final), dtype=final)
        for k in range(num_slices):
            low, high = Partition.even(num_slices).part(stop - start, k)
            if high > low:
                rows = values[start + low : start + high]
                accumulate(op, acc, np.asarray(on_slice(op, rows)), high - low)  # type: ignore[arg-type]
        if op == "mean" and stop > start:
            acc = np.asarray(acc / acc.dtype.type(stop - start))
        parts.append(acc)
        weights.append(stop - start)
    return combine(op, np.stack(parts), np.array(weights))  # type: ignore[arg-type]


def is_defined(op: str, dtype: str) -> bool:
    try:
        check_dtype(op, dtype, "out")  # type: ignore[arg-type]
    except ReductionError:
        return False
    return True


CASES = [(op, dtype) for op in NUMPY for dtype in DTYPES if is_defined(op, dtype)]


@given(
    data=st.data(),
    case=st.sampled_from(CASES),
    n=st.integers(0, 60),
    row_shape=st.sampled_from([(), (1,), (2, 3)]),
    world_size=st.integers(1, 7),
    num_slices=st.integers(1, 5),
)
def test_ranks_and_slices_give_what_numpy_gives(
    data: st.DataObject,
    case: tuple[str, str],
    n: int,
    row_shape: tuple[int, ...],
    world_size: int,
    num_slices: int,
) -> None:
    op, dtype = case
    rng = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    # Small integers and, for products, powers of two: sums and products are exact in every dtype
    # and every order.
    values = (
        rng.integers(0, 2, (n, *row_shape)) + 1
        if op == "prod"
        else rng.integers(0, 20, (n, *row_shape))
    )
    values = values.astype(dtype)
    if n == 0 and op == "mean":
        with pytest.raises(ReductionError, match="mean of no rows"):
            in_parallel(op, values, world_size, num_slices)
        return
    with np.errstate(over="ignore"):  # products of float16 reach infinity, here and there alike
        got = in_parallel(op, values, world_size, num_slices)
        if n == 0:
            expected = np.full(row_shape, identity(op, dtype), dtype)  # type: ignore[arg-type]
        elif op == "mean":
            expected = np.mean(values, axis=0, dtype=result_dtype(op, dtype))
        else:
            expected = NUMPY[op](values, axis=0, dtype=np.dtype(dtype))
    assert got.dtype == result_dtype(op, dtype)  # type: ignore[arg-type]
    assert got.shape == row_shape
    if row_shape == ():
        assert isinstance(got, np.generic)
    tolerance = 4 * np.finfo(got.dtype).eps if op == "mean" else 0
    np.testing.assert_allclose(got, expected, rtol=tolerance)


@pytest.mark.parametrize("num_slices", [1, 2, 3, 7])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 6])
def test_uneven_averages_of_the_manual(world_size: int, num_slices: int) -> None:
    values = np.arange(10.0).reshape(5, 2)
    np.testing.assert_allclose(
        in_parallel("mean", values, world_size, num_slices), [4.0, 5.0], rtol=1e-15
    )


@given(
    n=st.integers(1, 30),
    where=st.integers(0, 29),
    world_size=st.integers(1, 7),
    op=st.sampled_from(["min", "max", "mean", "sum"]),
)
def test_nan_propagates(n: int, where: int, world_size: int, op: str) -> None:
    values = np.arange(n, dtype=np.float64)
    values[where % n] = np.nan
    assert np.isnan(in_parallel(op, values, world_size, 2))


def test_ranks_without_rows_do_not_count_in_a_mean_whatever_they_hold() -> None:
    parts = np.array([np.nan, 2.0, np.inf, 4.0])
    assert combine("mean", parts, np.array([0, 3, 0, 1])) == 2.5


def test_the_mean_of_one_rank_is_its_own_bits() -> None:
    value = np.float32(1) / np.float32(3)
    assert combine("mean", np.array([0, value], np.float32), np.array([0, 49])) == value


def test_a_mean_of_integers_is_a_float_and_not_zero() -> None:
    got = combine("mean", np.array([1, 2]), np.array([1, 1]))
    assert got == 1.5
    assert got.dtype == np.float64


def test_a_mean_of_many_float16_rows_does_not_overflow() -> None:
    acc = np.zeros(1, result_dtype("mean", "float16"))
    for _ in range(2):
        accumulate("mean", acc, np.array([3.0], np.float16), 10**6)
    assert acc / np.float32(2 * 10**6) == 3.0


def test_a_mean_of_narrow_integers_takes_any_weight() -> None:
    acc = np.zeros(1, result_dtype("mean", "int8"))
    accumulate("mean", acc, np.array([100], np.int8), 10**9)
    assert acc == 1e11


@pytest.mark.parametrize("op", ["sum", None])
def test_none_accumulates_as_a_sum(op: Any) -> None:
    acc = np.array([1, 2])
    accumulate(op, acc, np.array([10, 20]), 5)
    assert list(acc) == [11, 22]


def test_small_integers_wrap_as_in_their_dtype() -> None:
    got = combine("sum", np.array([200, 100], np.uint8), np.array([1, 1]))
    assert got == 44
    assert got.dtype == np.uint8


@pytest.mark.parametrize(("op", "dtype"), [case for case in CASES if case[0] != "mean"])
def test_the_identity_changes_nothing(op: Any, dtype: str) -> None:
    values = np.array([0, 1, 100], dtype=dtype)
    start = identity(op, dtype)
    assert start.dtype == np.dtype(dtype)
    acc = np.full(3, start)
    accumulate(op, acc, values, 1)
    np.testing.assert_array_equal(acc, values)


@pytest.mark.parametrize("op", ["mean", "gather", None])
def test_other_identities_are_zero(op: Any) -> None:
    assert identity(op, "float32") == 0.0
    record = np.dtype([("a", "i4"), ("b", "f8")])
    assert identity(op, record) == np.zeros((), record)[()]


@pytest.mark.parametrize(
    ("op", "dtype", "least"),
    [
        ("min", "float32", np.inf),
        ("max", "float16", -np.inf),
        ("min", "int16", 32767),
        ("max", "uint64", 0),
        ("min", "uint8", 255),
    ],
)
def test_identities_of_extremes(op: Any, dtype: str, least: float) -> None:
    assert identity(op, dtype) == least


def test_gather_and_none_are_not_combined() -> None:
    for op in ("gather", None):
        with pytest.raises(ReductionError, match="nothing to combine"):
            combine(op, np.zeros(2), np.ones(2))  # type: ignore[arg-type]


def test_avg_is_mean() -> None:
    assert as_op("avg", "total") == "mean"


@pytest.mark.parametrize("op", ["average", "SUM", 1, np.add, ("sum",), ["sum"]])
def test_an_unknown_op_is_refused_with_the_known_ones(op: object) -> None:
    with pytest.raises(
        ReductionError,
        match="total: op must be one of 'sum', .*, 'gather', 'argmin', 'argmax', None, or "
        "a Python function of two",
    ):
        as_op(op, "total")
    with pytest.raises(ReductionError, match=r"got 'summ'\. Did you mean 'sum'\?"):
        as_op("summ", "total")


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "mean", "gather", None])
def test_known_ops(op: Any) -> None:
    as_op(op, "total")
    check_dtype(op, np.float32, "total")


@pytest.mark.parametrize(
    ("op", "dtype", "says"),
    [
        ("sum", object, "holds Python objects"),
        ("gather", [("a", object)], "holds Python objects"),
        ("sum", bool, "declare an integer dtype to count"),
        ("prod", bool, "declare an integer dtype"),
        ("min", complex, "no order"),
        ("max", np.complex64, "no order"),
        ("max", "datetime64[s]", "use 'gather'"),
        ("mean", [("a", "f8")], "use 'gather'"),
        (None, "U3", "use 'gather'"),
    ],
)
def test_a_dtype_without_the_op_is_refused(op: Any, dtype: Any, says: str) -> None:
    with pytest.raises(ReductionError, match=f"total: .*{says}"):
        check_dtype(op, dtype, "total")


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        ("gather", [("a", "f8")]),
        ("gather", "datetime64[s]"),
        ("mean", bool),
        ("mean", complex),
        ("min", bool),
        (None, bool),
    ],
)
def test_a_dtype_with_the_op(op: Any, dtype: Any) -> None:
    check_dtype(op, dtype, "total")


# ---- ops of the user's ---------------------------------------------------------------------------


def plus(a: Any, b: Any) -> Any:
    return a + b


@pytest.mark.parametrize(
    "op", [lambda a: a, lambda a, b, c: a, lambda *a: a, lambda a, *, b: a], ids=range(4)
)
def test_an_op_takes_two_numbers(op: Any) -> None:
    with pytest.raises(
        ReductionError, match="total: op <lambda>.* must be a function of two numbers"
    ):
        as_op(op, "total", 0)


def test_a_function_needs_an_identity_and_a_name_has_one() -> None:
    with pytest.raises(ReductionError, match="op plus is a function and needs identity="):
        synk.output(plus, shape=())
    with pytest.raises(
        ReductionError, match="op 'sum' has a built-in identity; pass identity= with functions only"
    ):
        synk.output("sum", shape=(), identity=0)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (0.5, "int32"),
        (-1, "uint8"),
        (256, "uint8"),
        (2**53 + 1, "float64"),
        (10**30, "int64"),
        (math.inf, "int32"),
        (math.nan, "int64"),
        (1j, "float64"),
        (0.1, "float32"),
        ("0", "int32"),
        ([0], "int32"),
        (2, "bool"),
    ],
)
def test_an_identity_that_the_dtype_does_not_hold_is_refused(value: Any, dtype: str) -> None:
    with pytest.raises(ReductionError, match="op plus is not exactly representable in dtype"):
        synk.output(plus, shape=(), dtype=dtype, identity=value)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (0, "int8"),
        (255, "uint8"),
        (-math.inf, "float32"),
        (math.nan, "float64"),
        (1.0, "int32"),
        (1j, "complex64"),
        (True, "bool"),
    ],
)
def test_an_identity_is_what_an_output_starts_from(value: Any, dtype: str) -> None:
    declared = synk.output(plus, shape=(), dtype=dtype, identity=value)
    start = identity(declared.op, dtype)
    assert start.dtype == dtype
    assert np.array_equal(start, value, equal_nan=dtype == "float64")
    assert result_dtype(declared.op, dtype) == dtype


def test_no_op_of_objects_or_records() -> None:
    for dtype in ("O", [("a", "i4")], "U3", "M8[s]"):
        with pytest.raises(ReductionError, match=r"Python objects|op plus is not defined"):
            synk.output(plus, shape=(), dtype=dtype, identity=0)


def test_an_op_that_is_sent_twice_is_one_op() -> None:
    op = as_op(plus, "total", 0)
    sent = cloudpickle.dumps(op)
    first, second = pickle.loads(sent), pickle.loads(sent)
    assert first is second
    assert first.function(2, 3) == 5


@settings(deadline=None)  # compiles
@given(st.data())
def test_folds_are_those_of_python(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(), (1,), (3,), (2, 2), (0,)]))
    parts = data.draw(
        arrays(
            "int64", (data.draw(st.integers(1, 9)), *shape), elements=st.integers(-(2**40), 2**40)
        )
    )
    got = fold(_AFTER, parts)
    wanted = functools.reduce(lambda a, b: a * 3 - b, parts)  # in order: it is not associative
    assert np.array_equal(got, wanted)
    assert not np.shares_memory(got, parts)
    assert isinstance(got, np.ndarray) == bool(shape)


def test_what_no_kernel_can_call_is_refused_by_line() -> None:
    def bad(a: Any, b: Any) -> Any:
        with open(a) as file:
            return file.read(b)

    with pytest.raises(synk.ReductionError, match="op .* cannot be compiled: .*test_reduction.py"):
        check(as_op(bad, "total", 0))  # type: ignore[arg-type]


_AFTER: Any = as_op(lambda a, b: a * 3 - b, "total", 0)
