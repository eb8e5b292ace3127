"""Arguments: scalars of all kinds, Data, arrays, index ranges, what ranks fill in, nested ones,
rows written back.
"""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from tests.conformance import expected, kernels

SCALARS = (
    (True, "bool"),
    (3, "int"),
    (-(2**63), "int"),
    (2**63 - 1, "int"),
    (2.5, "float"),
    (float("inf"), "float"),
    (1.5 - 2j, "complex"),
    (np.float32(0.1), "float32"),
    (np.float64(0.1), "float64"),
    (np.float16(0.1), "float16"),
    (np.int8(-100), "int8"),
    (np.int16(-100), "int16"),
    (np.uint8(200), "uint8"),
    (np.uint32(2**32 - 1), "uint32"),
    (np.int64(-(2**63)), "int64"),
    (np.uint64(2**64 - 1), "uint64"),
    (np.bool_(False), "bool"),
    (np.complex64(1 + 2j), "complex64"),
    (np.complex128(1 + 2j), "complex128"),
)


# ---- scalars -------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", range(len(SCALARS)))
def test_a_scalar_arrives_with_its_type_and_value(world, place):
    scalar, name = SCALARS[place]
    assert set(kernels.type_of(scalar)) == {name}
    assert kernels.value_of(scalar) == [scalar] * world.world_size


def test_a_large_python_int_arrives_as_one(world):
    for value in (2**63, 2**64 - 1):
        assert set(kernels.type_of(value)) == {"int"}
        assert kernels.value_of(value) == [value] * world.world_size


@pytest.mark.parametrize("first", [2**63, 1])
def test_ints_of_different_size_may_follow_each_other(world, first):
    for value in (first, -1, 2**64 - 1, 5, -(2**63), 2**63):
        assert kernels.value_of(value) == [value] * world.world_size


@pytest.mark.parametrize(
    ("number", "square"),
    [
        (3, 9),
        (2**32 - 1, (2**32 - 1) ** 2 - 2**64),  # int64, which wraps
        (2**63 + 3037000501, 3037000501**2),  # uint64, which wraps later
        (np.uint64(2**32 - 1), (2**32 - 1) ** 2),
        (0.1, 0.1 * 0.1),
        (np.float32(0.1), float(np.float32(0.1) * np.float32(0.1))),
        (np.int8(100), 10_000),  # Numba's integers are of 64 bits as soon as they are multiplied
        (True, 1),
        (1 + 2j, (1 + 2j) ** 2),
    ],
    ids=str,
)
def test_a_scalar_reaches_a_kernel_with_its_type(world, number, square):
    assert kernels.squared(number) == [complex(square)] * world.world_size


def test_scalars_change_from_call_to_call(world):
    x = expected.values(500)
    held = synk.data(x)
    for beta in (0.5, 0.25, 0.5, 2, 1, 0.125, np.float32(0.5), 3):
        for array in (x, held):
            assert_allclose(kernels.energy(array, beta), np.exp(-float(beta) * x * x).sum())
            assert_allclose(
                kernels.energy(array, beta, batch=100, num_slices=2),
                np.exp(-float(beta) * x[:100] ** 2).sum(),
            )


def test_signed_zeros_and_nans_are_different_values(world):
    @synk.parallel(outputs={"sign": synk.output(None, shape=(), dtype="float64")}, block=1, grid=1)
    def sign_of(number, sign):
        sign[0] = math.copysign(1.0, number)

    for value in (0.0, -0.0, math.nan, 0.0, -math.nan, -0.0, -1.0, 0.0):
        assert kernels.value_of(value)[0] == value or math.isnan(value)
        assert sign_of(value) == [math.copysign(1.0, value)] * world.world_size
        assert [math.copysign(1.0, one) for one in kernels.value_of(value)] == sign_of(value)


def test_several_scalars_keep_their_order(world):
    @synk.function(outputs=None)
    def digits(a, b, c, d, e):
        return a * 10000.0 + b * 1000.0 + c * 100.0 + d * 10.0 + e

    assert digits(1, 2.0, np.int16(3), np.uint64(4), 5) == [12345.0] * world.world_size
    assert digits(e=1, d=2.0, c=np.int16(3), b=True, a=5) == [51321.0] * world.world_size


def test_other_values_are_passed_as_they_are(world):
    @synk.function(outputs=None)
    def is_what(value, mode, flags):
        return [value is None, mode == "fast", flags == (1, "b", None)]

    assert is_what(None, "fast", (1, "b", None)) == [[True] * world.world_size] * 3


def test_defaults_of_parameters(world):
    @synk.function(outputs="sum")
    def powers(x, power=2, scale=1.0):
        return scale * (x**power).sum()

    x = np.arange(5.0)
    assert powers(x) == (x**2).sum()
    assert powers(x, 3) == (x**3).sum()
    assert powers(x, scale=2.0) == 2 * (x**2).sum()
    assert powers(synk.data(x)) == (x**2).sum()
    assert powers(synk.data(x), 3) == (x**3).sum()


def test_arguments_by_position_and_by_name(world):
    x, y = np.arange(9.0), np.arange(9.0) ** 2
    for args, kwargs in (((2.0, x, y), {}), ((2.0, x), {"y": y}), ((), {"y": y, "a": 2.0, "x": x})):
        assert_array_equal(kernels.axpy(*args, **kwargs), 2 * x + y)


def test_givens_are_bound_by_the_decorator(world):
    x = np.arange(20.0)
    assert_array_equal(kernels.tripled(x), 3 * x)

    @synk.function(outputs="sum", givens={"w": np.array([1.0, 10.0])}, broadcast=("w",))
    def weighted(x, w):
        return (x * w).sum(0)

    assert_array_equal(weighted(np.ones((7, 2))), [7.0, 70.0])


# ---- Data and arrays -----------------------------------------------------------------------------


def test_contents_of_data_change_between_calls(world):
    x = synk.data(np.arange(50.0))
    for factor in (2.0, -1.0, 0.5):
        before = x.data.copy()
        x[:] = before * factor
        assert_allclose(kernels.total_of(x), (before * factor).sum())
        assert_array_equal(kernels.axpy(1.0, x, x), 2 * before * factor)
        x.set_value(before)


def test_data_grows_shrinks_and_is_reshaped_between_calls(world):
    x = synk.data(np.arange(12.0).reshape(6, 2), oversize=2.0)
    for shape in ((6, 2), (4, 3), (100, 2), (3, 1), (50_000, 3), (1, 1), (6, 2)):
        value = np.random.default_rng(0).random(shape)
        x.set_value(value)
        assert_array_equal(kernels.plane(x), value + 10 * np.arange(shape[1]))
        assert_allclose(kernels.total_of(x), value.sum(0))
    for length in (60_000, 10, 200_000):
        x.set_length(length)
        x[:] = 1.0
        assert_array_equal(kernels.total_of(x), [length, length])


def test_data_that_was_freed_is_filled_anew(world):
    x = synk.data(np.arange(30.0))
    assert kernels.total_of(x) == 435
    x.free_memory()
    x.set_value(np.ones(40))
    assert kernels.total_of(x) == 40
    assert_array_equal(kernels.axpy(1.0, x, x), np.full(40, 2.0))


def test_the_same_data_as_two_arguments(world):
    x = synk.data(np.arange(10.0))
    assert_array_equal(kernels.axpy(3.0, x, x, batch=[2, 2, 9]), 4 * x.data[[2, 2, 9]])


def test_arrays_of_any_layout(world):
    base = np.arange(48.0).reshape(8, 6)
    readonly = base.copy()
    readonly.flags.writeable = False
    for x in (base, np.asfortranarray(base), base[::-1, ::2], base.T, base.astype(">f8"), readonly):
        assert_array_equal(kernels.plane(x), x + 10.0 * np.arange(x.shape[1]))
        assert_allclose(kernels.total_of(x), x.sum(0))


def test_arrays_of_changing_size_and_dtype(world):
    for n in (10, 3, 1000, 10, 100_000, 1):
        for dtype in ("float32", "float64"):
            x = np.arange(n, dtype=dtype)
            assert_array_equal(kernels.rows_of(x), x)
            assert_array_equal(kernels.axpy(1.0, x, x), 2 * x)


def test_zero_dimensional_arrays_are_numbers_and_data_broadcast(world):
    assert set(kernels.type_of(np.array(2, "int16"))) == {"int16"}
    assert kernels.value_of(np.array(2.5)) == [2.5] * world.world_size
    assert kernels.value_of(synk.data(2.5)) == [2.5] * world.world_size


def test_broadcast_arrays_are_whole_on_every_rank(world):
    x, w = expected.values(40).reshape(20, 2), np.array([1.0, -3.0])

    @synk.function(outputs=None, broadcast=("w",))
    def length_of(x, w):
        return len(w)

    assert length_of(x, np.zeros(17), batch=slice(0, 20)) == [17] * min(20, world.world_size)
    for held in (w, synk.data(w)):
        for num_slices in (1, 2, 30):
            got = kernels.weighted_mean(x, held, num_slices=num_slices)
            assert_allclose(got, (x * np.asarray(held)).mean(0))
        held[1] = 0.5
        assert_allclose(kernels.weighted_mean(x, held), (x * np.asarray(held)).mean(0))


# ---- rows written back ---------------------------------------------------------------------------


@pytest.mark.parametrize("num_slices", [1, 2, 30])
@pytest.mark.parametrize(
    "batch",
    [None, 4, slice(2, 15), slice(None, None, -3), slice(1, 20, 2), [5, 0, -1, 7], range(3, 9)],
    ids=str,
)
def test_inout_writes_the_selected_rows_back(world, batch, num_slices):
    chosen = expected.selection(batch)
    for make in (synk.data, np.array):
        y = make(np.arange(20.0))
        want = np.arange(20.0)
        want[chosen] *= 3.0
        assert kernels.scale(y, 3.0, batch=batch, num_slices=num_slices) is None
        assert_array_equal(np.asarray(y), want)
        x = np.ones(20)
        want[chosen] += 1
        kernels.add_to(y, x, batch=batch, num_slices=num_slices)
        assert_array_equal(np.asarray(y), want)


def test_inout_of_every_length(world):
    for n in (0, *expected.lengths(world.world_size)):
        y = np.arange(float(n)).reshape(n)
        kernels.scale(y, 2.0)
        assert_array_equal(y, 2.0 * np.arange(n))


def test_inout_into_a_view_of_an_array(world):
    base = np.zeros((6, 4))
    kernels.add_to(base[::2, 1], np.ones(3))
    want = np.zeros((6, 4))
    want[::2, 1] = 1
    assert_array_equal(base, want)


def test_inout_again_and_again(world):
    y = synk.data(np.ones(100))
    for _ in range(10):
        kernels.scale(y, 2.0)
    assert_array_equal(y.data, np.full(100, 1024.0))
    y.set_value(np.ones(30_000))
    kernels.scale(y, 2.0)
    assert_array_equal(y.data, np.full(30_000, 2.0))


# ---- what ranks fill in --------------------------------------------------------------------------


def test_an_index_range_is_sharded_like_rows(world):
    n, own = 1001, list(range(world.world_size))
    got = kernels.indices(
        synk.arange(n), synk.RANK, synk.WORLD_SIZE, synk.OFFSET, synk.per_rank([r / 2 for r in own])
    )
    sizes = expected.shard_sizes(n, world.world_size)
    starts = np.cumsum([0, *sizes])[:-1]
    assert got.squares == sum(i * i for i in range(n))
    assert_array_equal(np.array(got.spans), np.stack([starts, starts + sizes], 1))
    assert_array_equal(
        np.array(got.filled), np.stack([own, [world.world_size] * world.world_size, starts], 1)
    )
    assert_allclose(got.weights, np.array(own) / 2)


@pytest.mark.parametrize("n", [1, 2, 7, 10**6])
def test_an_index_range_of_any_length_and_slices(world, n):
    for num_slices in (1, 4):
        got = kernels.indices(
            synk.arange(n), 0, 0, 0, 0.0, num_slices=num_slices, output_subset="squares"
        )
        assert got == (n - 1) * n * (2 * n - 1) // 6


def test_a_batch_of_an_index_range_keeps_the_indices(world):
    for batch, chosen in ((slice(40, 60), range(40, 60)), (30, range(30)), (None, range(100))):
        got, *_ = kernels.constants(synk.arange(100), 0, 0, 0, 0, batch=batch)
        assert_array_equal(got, list(chosen))
        got = kernels.indices(synk.arange(100), 0, 0, 0, 0.0, batch=batch, output_subset="squares")
        assert got == sum(i * i for i in chosen)


@synk.function(outputs="sum")
def squares_of(rows):
    assert type(rows[0]) is range
    return (
        len(rows[0]),
        sum(i * i for i in rows[0]),
        (np.asarray(rows[0]) ** 2).sum(),
        rows[0].stop - rows[0].start,
    )


@synk.function(outputs="sum")
def own_rows(u, own):
    assert type(own) is range
    return len(own), float(u[own.start : own.stop].sum()), float(u[list(own)].sum())


def test_an_index_range_is_a_range_in_a_function(world):
    n, wanted = 101, sum(i * i for i in range(101))
    for call in (squares_of, squares_of.as_serial):
        for num_slices in (1, 3):
            assert call([synk.arange(n)], num_slices=num_slices) == (n, wanted, wanted, n)
    assert squares_of([synk.arange(n)], batch=slice(2, 4)) == (2, 13, 13, 2)
    v = synk.scatter(synk.variable(np.arange(12.0)), halo=1)

    @synk.sequence
    def body(v):
        return own_rows(v, synk.OWN)

    for found in (own_rows(v, synk.OWN), body(v)):
        assert tuple(map(float, found)) == (12, 66, 66)


def test_constants_of_a_rank_in_a_function(world):
    size = world.world_size
    own = [np.float32(r + 0.5) for r in range(size)]
    span, rank, world_size, offset, given = kernels.constants(
        synk.arange(3 * size), synk.RANK, synk.WORLD_SIZE, synk.OFFSET, synk.per_rank(own)
    )
    assert_array_equal(span, np.arange(3 * size))
    assert rank == list(range(size))
    assert world_size == [size] * size
    assert offset == [3 * r for r in range(size)]
    assert given == own
    assert all(type(one) is np.float32 for one in given)


def test_a_function_cannot_look_at_what_is_no_argument(world):
    @synk.function(outputs=None)
    def where(x):
        return 1 if synk.RANK == 0 else 2

    with pytest.raises(
        synk.ArgumentError, match=r"test_arguments\.py:\d+: synk\.RANK is no number.*synk\.rank\(\)"
    ):
        where(np.ones(8))

    @synk.function(outputs=None)
    def asked(x):
        return synk.rank() == 0, synk.world_size()

    assert asked(np.ones(8)) == (
        [rank == 0 for rank in range(world.world_size)],
        [world.world_size] * world.world_size,
    )


def test_offset_is_the_index_in_the_data(world):
    @synk.function(outputs="gather")
    def index(x, offset):
        assert len(x)
        return x * 0 + offset

    x = np.zeros(20)
    for num_slices in (1, 2):
        sizes = [
            size
            for shard in expected.shard_sizes(10, world.world_size)
            for size in expected.shard_sizes(shard, num_slices)
        ]
        starts = 5 + np.cumsum([0, *sizes])[:-1]
        got = index(x, synk.OFFSET, batch=slice(5, 15), num_slices=num_slices)
        assert_array_equal(got, np.repeat(starts, sizes))


# ---- nested --------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_slices", [1, 2, 40])
@pytest.mark.parametrize("held", [False, True])
def test_nested_arguments_and_results(world, held, num_slices):
    make = synk.data if held else np.array
    for n in expected.lengths(world.world_size):
        a, b, w = expected.values(2 * n).reshape(n, 2), np.arange(float(n)), np.array([2.0, -1.0])
        got = kernels.nested({"a": make(a), "b": [make(b)]}, w, power=2, num_slices=num_slices)
        aw = a * w
        assert list(got) == ["sum", "rows", "pair", "count", "moments", "nothing"]
        assert_allclose(got["sum"], (aw**2).sum(0))
        assert isinstance(got["rows"], list)
        assert_array_equal(got["rows"][0], b * 2)
        assert_array_equal(got["rows"][1][0], b + 1)
        assert got["pair"] == (aw.min(), aw.max())
        assert got["count"] == [len(part) or None for part in expected.shards(b, world.world_size)]
        assert type(got["moments"]).__name__ == "Moments"
        assert_allclose(got["moments"].total, aw.sum())
        assert_allclose(got["moments"].square, (aw * aw).sum())
        assert got["nothing"] is None


def test_nested_arguments_with_a_batch(world):
    a, b = expected.values(40).reshape(20, 2), np.arange(20.0)
    for batch in ([3, -1, 3], slice(None, None, -2), 7):
        got = kernels.nested({"a": a, "b": [b]}, 1.0, batch=batch)
        chosen = expected.selection(batch)
        assert_allclose(got["sum"], a[chosen].sum(0))
        assert_array_equal(got["rows"][0], 2 * b[chosen])


def test_nested_scalars_none_and_numbers_that_change(world):
    @synk.function(outputs=None)
    def describe(tree):
        assert tree["none"] is None
        assert tree["deep"][1] == ()
        return [tree["scalar"], tree["deep"][0]]

    for scalar in (1, 2, 2.5, np.float32(3)):
        got = describe({"scalar": scalar, "none": None, "deep": ((scalar + 1), ())})
        assert got == [[scalar] * world.world_size, [scalar + 1] * world.world_size]


def test_nested_lists_of_arrays_of_changing_structure(world):
    @synk.function(outputs="sum")
    def totals(arrays):
        return [one.sum() for one in arrays]

    for k in (1, 3, 2, 1):
        arrays = [np.full(10, float(i)) for i in range(k)]
        assert totals(arrays) == [10.0 * i for i in range(k)]
        assert totals(tuple(arrays)) == [10.0 * i for i in range(k)]


def test_empty_arrays_inside_a_nested_argument_are_passed_on(world):
    """As in torch's DataParallelTable: allowed as long as another has rows."""

    @synk.function(outputs={"rows": "gather", "empty": None})
    def keep(tree):
        return {"rows": tree["x"] * 2, "empty": tree["none"].shape}

    x = np.arange(4.0 * world.world_size)
    for num_slices in (1, 2):
        got = keep({"x": x, "none": np.empty((0, 3))}, num_slices=num_slices)
        assert_array_equal(got["rows"], 2 * x)
        assert len(got["empty"][0]) == world.world_size
    got = keep({"none": np.empty((0, 3)), "x": x})
    assert_array_equal(got["rows"], 2 * x)


def test_results_with_empty_arrays(world):
    @synk.function(outputs=("gather", "sum", None))
    def empties(x):
        return x[:0], x[:0].sum(), x[:0]

    rows, total, each = empties(np.ones((10, 3)))
    assert rows.shape == (0, 3)
    assert total == 0
    assert all(one.shape == (0, 3) for one in each)


def test_ranks_without_rows_are_skipped(world):
    """1 and 2 rows on any number of ranks: bit-equal to serial."""
    for n in (1, 2):
        x = expected.values(3 * n).reshape(n, 3)
        for function in (kernels.total_of, kernels.mean_of, kernels.low_of, kernels.rows_of):
            got, serial = function(x), function.as_serial(x)
            assert_array_equal(got, serial)
            assert got.dtype == serial.dtype


# ---- the other ways to call ----------------------------------------------------------------------


def test_as_serial_equals_the_call(world):
    x, y = expected.values(101), expected.values(101, seed=1)
    for batch in (None, 10, [5, -1, 5], slice(90, 3, -4)):
        chosen = expected.selection(batch)
        assert_array_equal(
            kernels.axpy.as_serial(2.0, x, y, batch=batch), 2 * x[chosen] + y[chosen]
        )
        serial = kernels.mixed.as_serial(x, y, batch=batch)
        result = kernels.mixed(x, y, batch=batch, num_slices=2)
        assert serial.low == result.low == x[chosen].min()
        assert_allclose(serial.sums, result.sums)
        assert_allclose(serial.means, [x[chosen].mean(), y[chosen].mean()])
        assert_array_equal(serial.out, result.out)
    y = np.arange(10.0)
    kernels.scale.as_serial(y, 2.0)
    assert_array_equal(y, 2 * np.arange(10.0))
    got = kernels.indices.as_serial(
        synk.arange(50),
        synk.RANK,
        synk.WORLD_SIZE,
        synk.OFFSET,
        synk.per_rank([7.0] * world.world_size),
    )
    assert got.squares == sum(i * i for i in range(50))
    assert [list(one) for one in (got.spans[0], got.filled[0])] == [[0, 50], [0, 1, 0]]
    assert got.weights == [7.0]
    assert len(kernels.reductions.as_serial(x).each) == 1
    assert kernels.three.as_serial(x, output_subset=(1, 0)) == (x.max(), x.sum())


def test_build_inputs_makes_data_for_a_function(world):
    x = kernels.total_of.build_inputs(np.arange(5.0))
    assert isinstance(x, synk.Data)
    assert x.name == "x"
    assert kernels.total_of(x) == 10
    a, b, c = kernels.axpy.build_inputs(2.0, np.arange(5.0), y=np.ones(5))
    assert [one.name for one in (a, b, c)] == ["a", "x", "y"]
    assert_array_equal(kernels.axpy(2.0, b, c), 2 * np.arange(5.0) + 1)
    m = kernels.total_of.build_inputs(np.arange(5.0), minibatch=True, oversize=2.0)
    assert m.minibatch
    assert m.alloc_size == 10
    a, b, c = kernels.axpy.build_inputs(
        2.0, np.arange(5.0), np.ones(5), minibatch=[False, True, np.False_]
    )
    assert [one.minibatch for one in (a, b, c)] == [False, True, False]


def test_plan_tells_who_gets_what_and_calls_nothing(world):
    x, y = np.zeros((101, 3)), np.zeros(3)
    report = kernels.weighted_mean.plan(x, y, batch=slice(0, 100), num_slices=2)
    assert report.rows == 100
    assert len(report.ranks) == world.world_size
    sizes = [stop - start for start, stop in (rank.rows for rank in report.ranks)]
    assert sizes == expected.shard_sizes(100, world.world_size)
    for rank, size in zip(report.ranks, sizes, strict=True):
        assert rank.input_bytes == size * 24 + 24
        assert sum(stop - start for start, stop in rank.slices) == size
    assert report.outputs == (("mean", "mean"),)
    assert "100 rows" in str(report)
    other = kernels.weighted_mean.plan(x, y, world_size=8)
    assert [
        stop - start for start, stop in (rank.rows for rank in other.ranks)
    ] == expected.shard_sizes(101, 8)


def test_modes_name_and_repr_of_a_function(world):
    assert kernels.mixed.name == "mixed"
    assert kernels.three.update_modes == {}
    assert "mixed" in repr(kernels.mixed)
    assert kernels.energy.__doc__.startswith("Σ")
