"""ops "argmin" and "argmax": NumPy's, of what "gather" gives."""

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_array_equal

import synknumba as synk
from tests.conformance import expected
from tests.conformance.conftest import PRIVATE, ROWS
from tests.quick import whole

HOW = ({}, {"num_slices": 3}, {"shards": 4}, {"shards": 7, "num_slices": 2})


@pytest.fixture(params=[*ROWS, PRIVATE])
def row(request):
    return request.param


@synk.parallel(
    outputs={
        "low": synk.output("argmin", like="x"),
        "high": synk.output("argmax", like="x"),
        "rows": synk.output("gather", like="x"),
    }
)
@cuda.jit
def ends(x, low, high, rows):
    i = cuda.grid(1)
    if i < x.shape[0]:
        low[i] = high[i] = rows[i] = x[i]


@synk.parallel(
    outputs={
        "low": synk.output("argmin", like="x"),
        "high": synk.output("argmax", shape=lambda given: given["x"].shape[1:]),
    }
)
@cuda.jit
def column_ends(x, low, high):
    i = cuda.grid(1)
    if i < x.shape[0]:
        for j in range(x.shape[1]):
            low[i, j] = x[i, j]
            high[i, j] = -x[i, j]


def check(got, wanted_row, value):
    assert_array_equal(got.row, wanted_row)
    assert np.asarray(got.row).dtype == np.int64
    assert_array_equal(got.value, value)
    assert np.asarray(got.value).dtype == value.dtype


def data(n, dtype):
    """Rows among which the best is there several times."""
    return np.random.default_rng(n).integers(0, 2 if dtype == "bool" else 9, n).astype(dtype)


@pytest.mark.parametrize("dtype", [*whole("int8"), "uint64", "float32", *whole("float64", "bool")])
@pytest.mark.parametrize("how", HOW, ids=str)
def test_the_first_of_equals(world, dtype, how):
    for n in expected.lengths(world.world_size):
        x = data(n, dtype)
        for _ in range(3):
            got = ends(x, **how)
            check(got.low, x.argmin(), x.min())
            check(got.high, x.argmax(), x.max())
            assert isinstance(got.low, synk.Extremum)
            assert isinstance(got.low.row, np.int64)
            assert_array_equal(got.rows, x)


@pytest.mark.parametrize("how", HOW, ids=str)
def test_nan_is_the_best(world, how):
    for places in ([5], [40, 3, 63], [0], [63]):
        x = np.random.default_rng(0).normal(size=64)
        x[places] = np.nan
        got = ends(x, **how)
        assert got.low.row == got.high.row == x.argmin() == min(places)
        assert np.isnan(got.low.value)


@pytest.mark.parametrize("value", [np.inf, -np.inf, 0.0])
def test_values_that_are_all_the_same(world, value):
    got = ends(np.full(33, value))
    check(got.low, 0, np.float64(value))
    check(got.high, 0, np.float64(value))


@pytest.mark.parametrize("columns", [0, 1, 3, 300])
@pytest.mark.parametrize("how", HOW, ids=str)
def test_several_values_a_row(world, columns, how):
    for n in (1, 4, 101):
        x = np.random.default_rng(n).integers(0, 30, (n, columns)).astype("float64")
        got = column_ends(x, **how)
        check(got.low, x.argmin(axis=0), x.min(axis=0))
        check(got.high, x.argmin(axis=0), -x.min(axis=0))


@pytest.mark.parametrize("how", [{}, {"num_slices": 2}, {"shards": 3}], ids=str)
def test_the_row_is_that_of_the_data(world, how):
    x = synk.data(np.random.default_rng(3).normal(size=60))
    for batch in expected.batches(60):
        chosen = np.arange(60)[expected.selection(batch)]
        for _ in range(2):
            got = ends(x, batch=batch, **how)
            assert got.low.row == chosen[np.asarray(x)[chosen].argmin()]
            assert x[int(got.high.row)] == got.high.value == np.asarray(x)[chosen].max()


def test_a_loop_over_minibatches(world):
    x = synk.data(np.random.default_rng(4).normal(size=200))
    for start in (0, 50, 150, 0):
        assert (
            ends(x, batch=slice(start, start + 50)).low.row
            == start + np.asarray(x)[start : start + 50].argmin()
        )
    for seed in range(3):
        rows = np.random.default_rng(seed).permutation(200)[:30]
        assert ends(x, batch=rows).low.row == rows[np.asarray(x)[rows].argmin()]


def test_alone(world):
    x = data(77, "float64")
    check(ends.as_serial(x).low, x.argmin(), x.min())
    check(ends.as_serial(x, shards=5).high, x.argmax(), x.max())


def test_what_is_not_asked_for(world):
    x = data(77, "float64")
    check(ends(x, output_subset="high"), x.argmax(), x.max())
    assert_array_equal(ends(x, output_subset="rows"), x)


@synk.parallel(outputs={"best": synk.output("argmin", shape=(), dtype="float32")})
@cuda.jit
def positive(x, best):
    """Leaves rows out."""
    i = cuda.grid(1)
    if i < x.shape[0] and x[i] > 0:
        best[i] = x[i]


def test_rows_that_are_left_out(world):
    x = np.random.default_rng(5).normal(size=50).astype("float32")
    check(positive(x), np.where(x > 0, x, np.inf).argmin(), x[x > 0].min())
    check(positive(-np.abs(x)), 0, np.float32(np.inf))


@synk.parallel(outputs={"best": synk.output("argmax", shape=(), dtype="float64")})
@cuda.jit
def of_indices(span, best):
    i = cuda.grid(1)
    if i < span.stop - span.start:
        best[i] = -abs(span.start + i - 31)


def test_an_index_range(world):
    for how in HOW:
        check(of_indices(synk.arange(100), **how), 31, np.float64(0))


def test_rows_of_variables(world):
    x = np.random.default_rng(6).normal(size=40)

    @synk.parallel(outputs={"best": synk.output("argmin", like="own")}, rows=("own",))
    def of_own(own, best):
        i = cuda.grid(1)
        if i < own.shape[0]:
            best[i] = own[i]

    rows = synk.variable(x)
    synk.scatter(rows)
    check(of_own(rows, num_slices=2), x.argmin(), x.min())
    with pytest.raises(
        synk.BatchError, match="best of of_own has op 'argmin'.* rows of a local_batch have none"
    ):
        of_own(rows, local_batch=slice(0, 3))


def test_no_rows(world):
    with pytest.raises(synk.ReductionError, match='low of ends is a "argmin" of no rows'):
        ends(np.zeros(0))


def test_no_rows_to_be_by(world):
    @synk.parallel(outputs={"best": synk.output("argmin", shape=())}, grid=1)
    def nothing(number, best):
        best[0] = number

    with pytest.raises(
        synk.ReductionError, match="op 'argmin', which works on rows, but no argument is sharded"
    ):
        nothing(1.0)


def test_what_cannot_be_located():
    with pytest.raises(
        synk.ReductionError, match="complex numbers have no order: locate the real part"
    ):
        synk.output("argmin", shape=(), dtype="complex64")
    with pytest.raises(synk.ReductionError, match="op 'argmax' is for kernel outputs only"):
        synk.function(outputs={"a": "argmax"})(lambda x: {"a": x})
