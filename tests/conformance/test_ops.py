"""Outputs: every op on every dtype, slices, lengths, shapes and sizes, one output and several."""

import copy
import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from tests.conformance import expected, kernels

DTYPES = ("int32", "int64", "float32", "float64")
UFUNC = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
RTOL = {"float32": 1e-4, "float64": 1e-11, "complex64": 1e-4, "complex128": 1e-11}


def close(got, want):
    assert got.dtype == want.dtype
    if want.dtype.kind in "fc":
        assert_allclose(got, want, rtol=RTOL[want.dtype.name])
    else:
        assert_array_equal(got, want)


def reduced(op, x):
    """NumPy's result, in the dtype of x."""
    return UFUNC[op].reduce(x, axis=0, dtype=x.dtype)


# ---- kernels -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_slices", [1, 2, 3, 4, 50])
def test_every_op_of_a_kernel(world, dtype, num_slices):
    for n in expected.lengths(world.world_size):
        x = expected.values(n, dtype)
        result = kernels.reductions(x, num_slices=num_slices)
        assert result._fields == ("total", "product", "low", "high", "mean", "rows", "each")
        close(result.total, reduced("sum", x))
        with np.errstate(over="ignore"):
            close(result.product, reduced("prod", x))
        close(result.low, reduced("min", x))
        close(result.high, reduced("max", x))
        assert_allclose(result.mean, x.mean(dtype="float64"), rtol=RTOL.get(dtype, 1e-11))
        assert result.mean.dtype == np.float64
        assert_array_equal(result.rows, x)
        assert result.rows.dtype == dtype
        assert len(result.each) == world.world_size
        for each, own in zip(result.each, expected.shards(x, world.world_size), strict=True):
            close(each, reduced("sum", own))


def test_avg_is_mean(world):
    @synk.parallel(outputs={"m": synk.output("avg", shape=(), dtype="float64")}, block=1, grid=1)
    def of_kernel(x, m):
        total = 0.0
        for i in range(x.shape[0]):
            total += x[i]
        m[0] = total / x.shape[0]

    one = synk.function(outputs="avg")(lambda x: x.mean())
    tree = synk.function(outputs={"a": "avg", "b": ["mean"]})(
        lambda x: {"a": x.mean(), "b": [-x.mean()]}
    )
    for n in (world.world_size + 1, 11):
        x = np.arange(1.0 * n) ** 2
        for found in (of_kernel(x), one(x), one(x, num_slices=2), tree(x)["a"], -tree(x)["b"][0]):
            assert_allclose(found, x.mean(), rtol=1e-14)


@pytest.mark.parametrize("num_slices", [1, 3])
def test_bool_min_and_max_are_all_and_any(world, num_slices):
    for n in expected.lengths(world.world_size):
        for x in (np.ones(n), np.zeros(n), (np.arange(n) == n - 1) * 1.0, (np.arange(n) > 0) * 1.0):
            result = kernels.all_any(x, num_slices=num_slices)
            assert result == ((x > 0).all(), (x > 0).any())
            assert isinstance(result.every, np.bool_)


@pytest.mark.parametrize("num_slices", [1, 3])
def test_complex_outputs_of_a_kernel(world, num_slices):
    unit = synk.data(1j)
    for n in expected.lengths(world.world_size):
        x = expected.values(n, "complex128")
        result = kernels.complex_sums(x, unit, num_slices=num_slices)
        close(result.total, x.sum())
        close(result.product, x.prod())
        close(result.mean, x.mean())
        close(result.rows, x * 1j)


def test_several_results_pickle_and_copy(world):
    result = kernels.complex_sums(np.array([1j, 2.0]), synk.data(1j))
    for again in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result)):
        assert type(again) is type(result)
        assert again._fields == ("total", "product", "mean", "rows")
        assert again[:3] == (2 + 1j, 2j, 1 + 0.5j)
        assert_array_equal(again.rows, [-1, 2j])
        assert again["total"] == 2 + 1j
        assert_array_equal(again["rows"], [-1, 2j])


def test_several_results_are_a_tuple_with_names(world):
    result = kernels.all_any(np.array([0.0, 1.0]))
    every, any_of = result
    assert (every, any_of) == result == (False, True)
    assert (result[0], result[-1], result[1:], result[np.int64(1)]) == (False, True, (True,), True)
    assert [result[name] for name in result._fields] == [every, any_of]
    with pytest.raises(
        synk.ArgumentError,
        match=f"all_any has no output 'none'; its results are {', '.join(result._fields)}",
    ):
        result["none"]
    with pytest.raises(
        AttributeError, match=f"all_any has no output 'none'; .*{result._fields[0]}"
    ):
        result.none  # noqa: B018
    with pytest.raises(IndexError):
        result[2]


def test_nan_wins_min_and_max_as_in_numpy(world):
    x = np.arange(40.0).reshape(20, 2)
    for place in (0, 10, 19):
        x[place, 0] = np.nan
        for num_slices in (1, 4):
            result = kernels.column_sums(x, num_slices=num_slices)
            assert np.isnan(result.low)
            assert np.isnan(result.high)
            assert_array_equal(result.many, x.sum(0))
            assert_array_equal(kernels.low_of(x, num_slices=num_slices), x.min(0))
            assert_array_equal(kernels.high_of(x, num_slices=num_slices), x.max(0))
        x[place, 0] = 0


def test_no_rows_at_all(world):
    """What the ops are for nothing: their identities; only a mean has none, and is refused
    (test_bad_input).
    """
    x = np.empty(0)
    result = kernels.reductions(
        x, output_subset=("total", "product", "low", "high", "rows", "each")
    )
    assert result[:4] == (0.0, 1.0, np.inf, -np.inf)
    assert result.rows.shape == (0,)
    assert result.each == [0.0] * world.world_size
    assert kernels.energy(x, 1.0) == 0
    assert kernels.reductions(np.empty(0, "int32"), output_subset="low") == np.iinfo("int32").max
    assert kernels.indices(synk.arange(0), 0, 0, 0, 0.0, output_subset="squares") == 0


def test_structured_rows_are_gathered(world):
    for n in expected.lengths(world.world_size):
        x = np.zeros(n, kernels.RECORD)
        x["a"], x["b"] = np.arange(n), np.arange(n) / 2
        for num_slices in (1, 3):
            out = kernels.swap_signs(x, num_slices=num_slices)
            assert out.dtype == x.dtype
            assert_array_equal(out["a"], -x["a"])
            assert_array_equal(out["b"], -x["b"])


def test_a_number_is_a_numpy_scalar(world):
    x = expected.values(100)
    assert type(kernels.energy(x, 1.0)) is np.float64
    assert type(kernels.total_of(x.astype("float32"))) is np.float32
    assert all(
        type(one) is np.int64 for one in kernels.reductions(x.astype("int64"), output_subset="each")
    )


def test_several_outputs_of_different_ops_and_shapes(world):
    x, y = expected.values(1001), expected.values(1001, seed=1)
    for num_slices in (1, 2, 7):
        result = kernels.mixed(x, y, num_slices=num_slices)
        assert result._fields == ("low", "sums", "out", "means")
        assert result.low == x.min()
        assert_allclose(result.sums, [x.sum(), y.sum()])
        assert_array_equal(result.out, x * y)
        assert_allclose(result.means, [x.mean(), y.mean()])


@pytest.mark.parametrize("columns", [1, 8192, 8193, 300_000])
def test_a_reduced_output_of_any_size(world, columns):
    """Below, at and above what goes through the control block, and some megabytes."""
    x = np.random.default_rng(1).integers(0, 100, (5, columns)).astype("float64")
    for num_slices in (1, 2):
        assert_array_equal(
            kernels.column_sums(x, num_slices=num_slices, output_subset="many"), x.sum(0)
        )
    assert_array_equal(kernels.total_of(x), x.sum(0))


@pytest.mark.parametrize("n", [8191, 8192, 8193, 1_000_003])
def test_a_gathered_output_of_any_size(world, n):
    x = np.arange(float(n))
    for num_slices in (1, 3):
        assert_array_equal(kernels.axpy(2.0, x, x, num_slices=num_slices), 3 * x)
        assert_array_equal(kernels.rows_of(x, num_slices=num_slices), x)


def test_results_stay_as_they_were_after_the_next_call(world):
    """What is returned is the caller's memory, not what ranks write into."""
    kept = []
    for k in range(4):
        x = np.full((6, 3), float(k))
        kept.append(
            (
                k,
                kernels.column_sums(x),
                kernels.plane(x),
                kernels.rows_of(x),
                kernels.three(x),
                kernels.value_of(x),
            )
        )
    for k, columns, plane, rows, three, values in kept:
        assert_array_equal(columns.many, np.full(3, 6.0 * k))
        assert_array_equal(plane, np.full((6, 3), float(k)) + 10 * np.arange(3))
        assert_array_equal(rows, np.full((6, 3), float(k)))
        assert_array_equal(three[0], np.full(3, 6.0 * k))
        for value in values:
            assert (value == k).all()
        plane[:] = -1  # writable
        three[0][:] = -1


def test_a_shape_that_is_a_function_of_the_arguments(world):
    x = np.arange(1.0, 12.0)
    for k in (1, 3, 2):
        for length in (11, 4):
            table = kernels.multiples(x[:length], k, synk.OFFSET)
            assert_array_equal(table, np.outer(np.arange(1, k + 1), x[:length]))


def test_like_takes_the_dtype_of_the_argument(world):
    for dtype in ("float32", "float64"):
        x = expected.values(20, dtype).reshape(5, 4)
        assert kernels.plane(x).dtype == dtype


# ---- Python functions ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*DTYPES, "int8", "uint64", "complex64", "complex128"])
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_sums_and_products_of_a_function(world, op, dtype):
    for n in expected.lengths(world.world_size):
        x = expected.values(2 * n, dtype).reshape(n, 2)
        own = x.sum(0).dtype  # NumPy sums small integers in int64
        for num_slices in (1, 2, 3, 4, 50):
            close(
                kernels.BY_OP[op](x, num_slices=num_slices), UFUNC[op].reduce(x, axis=0, dtype=own)
            )


@synk.function(outputs={"sum": "sum", "prod": "prod", "max": "max", "rows": "gather"})
def of_small_integers(x):
    low = x.max(0)
    return {"sum": low, "prod": (low, low[:1].reshape(())), "max": low, "rows": x}


@pytest.mark.parametrize(
    "how", [{}, {"num_slices": 3}, {"shards": 4}, {"shards": 4, "num_slices": 2}], ids=str
)
@pytest.mark.parametrize(
    "dtype", ["int8", "int16", "int32", "uint8", "uint16", "uint32", "int64", "uint64"]
)
def test_sums_of_small_integers_are_as_wide_as_those_of_numpy(world, dtype, how):
    large = np.iinfo(dtype).max if dtype[-2:] != "64" else 3
    for n in (1, 2, 3, 7, 1):
        x = np.full((n, 2), large, dtype)
        parts = expected.shards(x, how.get("shards", world.world_size))
        slices = sum(min(len(part), how.get("num_slices", 1)) for part in parts)
        values = np.full((slices, 2), large, dtype)
        got = of_small_integers(x, **how)
        for one, wanted in (
            (got["sum"], values.sum(0)),
            (got["prod"][0], values.prod(0)),
            (got["prod"][1], values.prod(0)[0]),
        ):
            assert one.dtype == wanted.dtype
            assert_array_equal(one, wanted)
        assert got["max"].dtype == got["rows"].dtype == x.dtype
        assert got["max"].tolist() == [large, large]


@pytest.mark.parametrize("dtype", [*DTYPES, "int8", "uint64", "bool"])
@pytest.mark.parametrize("op", ["min", "max"])
def test_extremes_of_a_function(world, op, dtype):
    for n in expected.lengths(world.world_size):
        x = expected.values(2 * n, dtype).reshape(n, 2)
        for num_slices in (1, 2, 3, 4, 50):
            close(kernels.BY_OP[op](x, num_slices=num_slices), reduced(op, x))


@pytest.mark.parametrize("dtype", [*DTYPES, "complex64", "complex128"])
def test_means_of_a_function_are_weighted_by_rows(world, dtype):
    for n in expected.lengths(world.world_size):
        x = expected.values(2 * n, dtype).reshape(n, 2)
        for num_slices in (1, 2, 3, 4, 50):
            close(kernels.mean_of(x, num_slices=num_slices), x.mean(0))


@pytest.mark.parametrize("dtype", [*DTYPES, "bool", "complex64", "float16", "uint8"])
def test_gathered_rows_keep_their_dtype(world, dtype):
    for n in expected.lengths(world.world_size):
        x = expected.values(n, dtype)
        for num_slices in (1, 2, 4, 50):
            got = kernels.rows_of(x, num_slices=num_slices)
            assert got.dtype == dtype
            assert_array_equal(got, x)


@pytest.mark.parametrize("num_slices", [1, 2, 3, 9])
def test_rows_chosen_by_a_list_are_gathered_from_every_slice(world, num_slices):
    """A function may return its argument itself, whose memory the next slice uses again."""
    x = np.arange(30.0).reshape(15, 2)
    for batch in (
        [14, 0, 3, 3, 7, 1, 12, 5, 9, 2, 11],
        slice(None, None, -1),
        slice(0, 15, 2),
        slice(2, 14),
    ):
        assert_array_equal(kernels.rows_of(x, batch=batch, num_slices=num_slices), x[batch])


def test_gathered_lengths_may_differ_from_what_went_in(world):
    rng = np.random.default_rng(5)
    for n in (1, 10, 1000, 30_000, 7):
        for shift in (0.5, 0.0, 0.9):
            x = rng.random(n) - shift
            if not (x > 0).any():
                x[0] = 1.0
            for num_slices in (1, 3):
                assert_array_equal(kernels.positives(x, num_slices=num_slices), x[x > 0])


def test_gathering_nothing_gives_no_rows(world):
    got = kernels.positives(-np.ones(10))
    assert got.shape == (0,)
    assert got.dtype == np.float64


def test_results_of_ever_new_shapes(world):
    """Small and large ones in turn: a result's shape is told once, and its memory grows."""
    x = np.arange(6.0)
    for times in (1, 2, 20_000, 3, 20_001, 1, 20_000, 40_000, 2):
        got = kernels.repeated(x, times)
        assert got.shape == (6, times)
        assert_array_equal(got, np.repeat(x[:, None], times, 1))


def test_python_numbers_of_ranks_are_combined(world):
    @synk.function(
        outputs={"i": "sum", "f": "max", "b": "max", "c": "sum", "t": None}, broadcast=("k",)
    )
    def numbers(x, k):
        return {"i": len(x), "f": float(k), "b": k > 1, "c": complex(1, k), "t": 3}

    for k in (1, 2.5):
        got = numbers(np.zeros(50), k)
        assert got["i"] == 50
        assert got["f"] == k
        assert got["b"] == (k > 1)
        assert got["c"] == world.world_size * complex(1, k)
        assert got["t"] == [3] * world.world_size


def test_a_number_whose_type_changes_from_call_to_call(world):
    @synk.function(outputs="sum")
    def as_is(x, value):
        return value

    for value in (1, 2.5, True + 1, 2**40, -3, 1e300, 7, np.float32(1), 5):
        got = as_is(np.zeros(world.world_size), value)
        assert got == value * world.world_size
        assert got.dtype == np.asarray(value).dtype


def test_ints_that_need_another_dtype_than_those_before(world):
    @synk.function(outputs=None)
    def shifted(x, bits):
        return 2**bits - 1

    for bits in (1, 64, 3, 63, 64):
        assert shifted(np.zeros(world.world_size), bits) == [2**bits - 1] * world.world_size


def test_ranks_that_return_different_dtypes_lose_nothing(world):
    @synk.function(outputs="sum")
    def halves(rank):
        return 1 if rank == 0 else 0.5

    assert halves(synk.RANK) == 1 + 0.5 * (world.world_size - 1)


def test_a_function_without_results(world):
    @synk.function
    def nothing(x):
        assert len(x)

    assert nothing(np.zeros(10)) is None
    assert nothing(np.zeros(10), num_slices=3) is None
    assert nothing(np.zeros(1)) is None


# ---- output_subset -------------------------------------------------------------------------------


@pytest.mark.parametrize("num_slices", [1, 2])
def test_output_subset_of_a_kernel_in_any_order_and_back(world, num_slices):
    x, y = expected.values(101), expected.values(101, seed=1)
    want = {"low": x.min(), "sums": [x.sum(), y.sum()], "out": x * y, "means": [x.mean(), y.mean()]}
    names = list(want)
    for subset in (
        ("means", "low"),
        ("out",),
        (2, 0),
        ("low", -1),
        names[::-1],
        names,
        None,
        ("sums", "out", "low"),
    ):
        got = kernels.mixed(x, y, num_slices=num_slices, output_subset=subset)
        told = [
            name if isinstance(name, str) else names[name]
            for name in (names if subset is None else subset)
        ]
        if len(told) == 1:
            got = (got,)
        else:
            assert got._fields == tuple(told)
        for name, value in zip(told, got, strict=True):
            assert_allclose(value, want[name])


def test_output_subset_of_one_is_the_value(world):
    x = expected.values(101)
    for subset in ("low", 0, ["low"], ("low",)):
        assert kernels.mixed(x, x, output_subset=subset) == x.min()


def test_output_subset_of_a_function(world):
    x = expected.values(20).reshape(10, 2)
    want = (x.sum(0), x.max(0), x * 2)
    for num_slices in (1, 3):
        for subset in ((2, 0), (1, 2), (0, 1, 2), (-1, 1)):
            got = kernels.three(x, output_subset=subset, num_slices=num_slices)
            assert len(got) == len(subset)
            for place, value in zip(subset, got, strict=True):
                assert_allclose(value, want[place])
        assert len(kernels.three(x, num_slices=num_slices)) == 3
        total, rows = kernels.three_named(x, output_subset=("total", "rows"), num_slices=num_slices)
        assert_allclose(total, want[0])
        assert_array_equal(rows, want[2])
        rows, total = kernels.three_named(x, output_subset=("rows", "total"), num_slices=num_slices)
        assert_allclose(total, want[0])
        assert_array_equal(rows, want[2])


def test_output_subset_of_one_of_a_function_is_the_value(world):
    x = expected.values(20)
    for subset in (0, (0,)):
        assert_allclose(kernels.three(x, output_subset=subset), x.sum())
    for subset in ("total", ["total"]):
        assert_allclose(kernels.three_named(x, output_subset=subset), x.sum())
