"""Elementwise functions and reductions of rows are NumPy's, whatever the types, the shapes, and
the way the rows lie.
"""

import functools
import math
from enum import IntEnum, IntFlag

import numba
import numpy as np
import pytest
from numba import cuda, njit
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from synknumba._rowwise import base
from synknumba._rowwise import map as map_module
from synknumba._rowwise import reduce as reduce_module
from tests.quick import whole


class Level(IntEnum):
    LOW = 1


class Option(IntFlag):
    DOUBLE = 2


@synk.vectorize
def add(x, y):
    return x + y


@synk.vectorize(broadcast=("table",))
def mixed(x, y, table, a=2):
    return a * x - y * table


@synk.vectorize
def damped(x, i, rate):
    return math.exp(-rate * x) + i


@synk.vectorize
def noisy(x, i, seed):
    return x + synk.random.uniform(seed, i, 0)


@synk.vectorize(
    ["float32(float32, float32)", "float64(float64, float64)", "complex128(complex128, complex128)"]
)
def product(x, y):
    return x * y


@synk.vectorize
def fused(x, a, y, z):
    return x * a + y * z


@synk.vectorize
def largest(x, y):
    return max(x, y)


@synk.vectorize
def smallest(x, y):
    return min(x, y)


@synk.vectorize
def times(x, y):
    return x * y


@synk.vectorize
def latest(x, y):  # associative, not commutative
    return y if y != 0 else x


@synk.vectorize
def after(x, y):  # so is one linear function after the other: real t + imag
    return complex(x.real * y.real, x.imag * y.real + y.imag)


@njit
def cube(x):
    return x**3


@synk.vectorize
@cuda.jit(device=True)
def cubes(x):
    return cube(x)


@synk.vectorize
def positive(x):
    return x > 0


@synk.vectorize(rows=("x", "y"))
def own(x, y):
    return x + y


DTYPES = (
    "bool",
    "int8",
    "uint8",
    "int32",
    "int64",
    "uint64",
    "float32",
    "float64",
    "complex64",
    "complex128",
)


def values_of(dtype, shape, seed=0):
    rng = np.random.default_rng(seed)
    if dtype.startswith("complex"):
        return (rng.integers(-9, 9, shape) + 1j * rng.integers(-9, 9, shape)).astype(dtype)
    return rng.integers(0, 2 if dtype == "bool" else 50, shape).astype(dtype)


def numbas(function, *arrays):
    """What Numba's own ufunc of a function gives."""
    return numba.vectorize(function.py_func)(*arrays)


# ---- maps


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "float32",
        "complex128",
        *whole("int64", "int8", "uint8", "int32", "uint64", "float64", "complex64"),
    ],
)
def test_types_are_those_of_numbas_ufuncs(world, dtype):
    x = values_of(dtype, 23)
    for other in (dtype, "int32"):
        y = values_of(other, 23, seed=1)
        want = numbas(add, x, y)
        got = add(x, y, num_slices=2)
        assert got.dtype == want.dtype
        assert_array_equal(got, want)


def test_results_of_other_types(world):
    x = np.arange(-5.0, 6.0)
    assert positive(x).dtype == np.bool_
    assert_array_equal(positive(x), x > 0)
    assert_array_equal(positive(np.arange(9, dtype=np.uint8)), np.arange(9) > 0)


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 300])
@pytest.mark.parametrize(
    "inner", [(), (300,), (0,), (3, 2, 2, 2), *whole((1,), (3,), (4, 3), (2, 1, 5))]
)
def test_every_number_of_dimensions(world, rows, inner):
    x, y = (values_of("float64", (rows, *inner), seed) for seed in (1, 2))
    for num_slices in (1, 3) if rows == 7 else (1,):
        got = add(x, y, num_slices=num_slices)
        assert got.shape == (rows, *inner)
        assert_array_equal(got, x + y)


@pytest.mark.parametrize(
    "shapes",
    [
        ((7,), (7,), ()),
        ((7, 3), (7, 1), (3,)),
        ((7, 1, 1), (7, 1, 1), (4, 3)),
        ((7, 4, 3), (7, 4, 1), (1, 1, 3)),
        ((7, 0), (7, 1), (1,)),
        *whole(
            ((7,), (7,), (1,)),
            ((7, 1), (7, 3), (1,)),
            ((7, 1), (7, 1), (5,)),
            ((7, 3), (7, 3), (1, 3)),
            ((7, 4, 1), (7, 1, 3), (4, 1)),
            ((7, 4, 3), (7, 1, 1), (3,)),
            ((7, 2, 4, 3), (7, 1, 4, 1), (2, 1, 1)),
        ),
    ],
)
def test_arrays_broadcast_as_in_numpy(world, shapes):
    x, y, table = (values_of("float64", shape, seed) for seed, shape in enumerate(shapes))
    want = 2 * x - y * table
    for num_slices in (1, 2):
        assert_array_equal(mixed(x, y, table, num_slices=num_slices), want)
        assert_array_equal(
            mixed(synk.data(x), synk.data(y), synk.data(table), num_slices=num_slices), want
        )


@pytest.mark.whole
def test_scalars_of_all_kinds(world):
    x = np.arange(10.0)
    assert_array_equal(add(x, 3), x + 3)
    assert_array_equal(add(x, True), x + 1)
    assert_array_equal(add(y=2.5, x=x), x + 2.5)
    assert_array_equal(add(x, 1 + 2j), x + (1 + 2j))
    assert_array_equal(add(x, np.array(4.0)), x + 4)
    assert_array_equal(add(x, synk.data(np.array(5.0))), x + 5)
    assert add(x.astype(np.float32), np.float32(0.5)).dtype == np.float32
    ranks = add(x, synk.RANK) - x
    assert_array_equal(ranks, np.sort(ranks))
    assert ranks[-1] == world.world_size - 1
    assert_array_equal(add(x, synk.per_rank([7.0] * world.world_size)), x + 7)


def test_changing_scalars(world):
    x = synk.data(np.arange(100.0))
    for a in (1.0, 2.0, 2, -3.5, 2.0):
        assert_array_equal(add(x, a), x.data + a)


def test_defaults_givens_and_names(world):
    x, table = np.arange(6.0), np.array(3.0)
    assert_array_equal(mixed(x, x, table), 2 * x - x * 3)
    assert_array_equal(mixed(x, x, table, 5), 5 * x - x * 3)
    half = synk.vectorize(lambda x, a: x * a, givens={"a": 0.5}, name="half")
    assert_array_equal(half(x), x / 2)
    assert half.name == "half"


def test_the_index_of_a_row(world):
    x = np.arange(24.0).reshape(8, 3)
    index = np.arange(8).reshape(8, 1)
    for num_slices in (1, 3):
        assert_allclose(
            damped(x, synk.arange(8), 0.5, num_slices=num_slices),
            np.exp(-0.5 * x) + index,
            rtol=1e-14,
        )
    assert_array_equal(add(synk.arange(50), 3), np.arange(50) + 3)


def test_random_numbers_do_not_depend_on_the_ranks(world):
    x = np.zeros(1000)
    assert_array_equal(
        noisy(x, synk.arange(1000), 7, num_slices=3), synk.random.uniform(7, np.arange(1000), 0)
    )


def test_device_functions_and_what_they_call(world):
    assert_array_equal(cubes(np.arange(20)), np.arange(20) ** 3)


def test_batches_and_positions(world):
    x = values_of("float64", (50, 3))
    data = synk.data(x)
    for batch in (17, slice(None, None, -3), slice(10, 40), [5, 5, 2, 49], np.arange(30), []):
        chosen = x[:batch] if isinstance(batch, int) else x[batch]
        if not len(chosen):
            with pytest.raises(synk.BatchError):
                add(data, 1, batch=batch)
            continue
        assert_array_equal(add(data, 1, batch=batch, num_slices=2), chosen + 1)
    places = synk.data(np.arange(4.0).reshape(4, 1), minibatch=True)
    assert_array_equal(
        add(data, places, batch=[9, 0, 9, 4]), x[[9, 0, 9, 4]] + np.arange(4.0).reshape(4, 1)
    )


def test_serial_and_plan(world):
    x = values_of("float32", (40, 3))
    assert_array_equal(add.as_serial(x, 1), x + 1)
    report = add.plan(x, 1, num_slices=2)
    assert (report.rows, len(report.ranks), report.outputs) == (
        40,
        world.world_size,
        (("out", "gather"),),
    )
    assert len(add.plan(x, 1, world_size=7).ranks) == 7


# ---- signatures


def test_the_first_signature_that_fits_is_taken(world):
    for dtype, want in (
        ("float32", "float32"),
        ("int16", "float32"),
        ("int32", "float64"),
        ("complex64", "complex128"),
    ):
        x = values_of(dtype, 12)
        got = product(x, x)
        assert got.dtype == want == np.result_type(got)
        assert_array_equal(got, x.astype(want) * x.astype(want))
    x = np.linspace(0, 1, 12, dtype=np.float32)
    assert product(x, 0.1).dtype == np.float32  # a Python number has no width
    assert_array_equal(product(x, 0.1), x * 0.1)
    assert_array_equal(product(x, Option.DOUBLE), x * 2)  # of a class that is an int


@pytest.mark.parametrize("dtype", ["int8", *whole("uint8", "int16", "uint32", "int64"), "uint64"])
def test_python_integers_do_not_wrap(world, dtype):
    summed = synk.vectorize([f"{dtype}({dtype}, {dtype})"])(add.py_func)
    x, info = np.zeros(3, dtype), np.iinfo(dtype)
    for _ in range(2):  # the second time it is known
        for value in (int(info.min), 0, 1, int(info.max)):
            for found in (summed(x, value), summed(y=value, x=x)):
                assert_array_equal(found, np.add(x, value))
                assert found.dtype == dtype
        for value in (info.min - 1, info.max + 1, 2**65, -(2**65)):
            with pytest.raises(OverflowError):
                np.add(x, value)
            for call in (
                lambda value=value: summed(x, value),
                lambda value=value: summed(x=x, y=value),
            ):
                with pytest.raises(synk.ArgumentError, match="y of add"):
                    call()
    if dtype != "uint64":
        with pytest.raises(
            synk.ArgumentError,
            match=rf"y of add is {info.max + 1}, .* {info.min} to {info.max} there",
        ):
            summed(x, int(info.max) + 1)
    given = synk.vectorize([f"{dtype}({dtype}, {dtype})"], givens={"y": int(info.max) + 1})(
        add.py_func
    )
    with pytest.raises(synk.ArgumentError, match="y of add"):
        given(x)


def test_ufuncs_of_numba(world):
    x = np.arange(9, dtype=np.int32)
    assert_array_equal(synk.vectorize(numba.vectorize(lambda x: x + 1))(x), x + 1)
    declared = numba.vectorize(["float32(float32)", "float64(float64)"])(lambda x: x / 2)
    got = synk.vectorize(declared)(x.astype(np.float32))
    assert got.dtype == np.float32
    assert_array_equal(got, x / 2)


# ---- out


@pytest.mark.parametrize("inner", [(), (2, 3), *whole((3,))])
@pytest.mark.parametrize("num_slices", [1, 3])
def test_out_is_written_in_place(world, inner, num_slices):
    x, y = values_of("float64", (20, *inner), 1), values_of("float64", (20, *inner), 2)
    data = synk.data(np.full((20, *inner), -1.0))
    assert add(x, y, out=data, num_slices=num_slices) is data
    assert_array_equal(data.data, x + y)
    array = np.full((20, *inner), -1.0, np.float32)
    assert add(x, y, out=array, num_slices=num_slices) is array
    assert_array_equal(array, x + y)
    variable = own_rows(np.zeros((20, *inner)))
    assert add(x, y, out=variable, num_slices=num_slices) is variable
    for rank, rows in enumerate(rows_of(world, 20)):
        assert_array_equal(variable.get_value(rank), (x + y)[rows])


def rows_of(world, n):
    size = world.world_size
    return [slice(rank * n // size, (rank + 1) * n // size) for rank in range(size)]


def own_rows(values):
    variable = synk.variable(np.zeros((1, *values.shape[1:]), values.dtype))
    synk.scatter(variable, values)
    return variable


def test_out_may_be_an_argument(world):
    x = values_of("float64", (20, 3))
    data = synk.data(x)
    assert add(data, 1.0, out=data) is data
    assert_array_equal(data.data, x + 1)
    assert add(1.0, data, out=data, num_slices=2) is data
    assert_array_equal(data.data, x + 2)
    array = x.copy()
    add(array, array, out=array)
    assert_array_equal(array, 2 * x)


@pytest.mark.parametrize("inner", [*whole((), (2, 3)), (3,)])
def test_out_may_be_several_arguments(world, inner):
    x = values_of("float64", (20, *inner))
    for how in (
        {},
        {"num_slices": 3},
        {"shards": 4},
        {"batch": [3, 17, 4]},
        {"batch": slice(15, 2, -4)},
    ):
        data, want = synk.data(x), x.copy()
        chosen = how.get("batch", slice(None))
        for _ in range(2):  # the second time it is known
            assert add(data, data, out=data, **how) is data
            want[chosen] *= 2
            assert_array_equal(data.data, want)
        assert add(y=data, x=data, out=data, **how) is data
        want[chosen] *= 2
        assert_array_equal(data.data, want)
    data = synk.data(x)
    assert fused(data, 2.0, data, data, out=data) is data
    assert_array_equal(data.data, x * 2.0 + x * x)
    replica = synk.variable(x)
    own(replica, replica, out=replica)
    for rank in range(world.world_size):
        assert_array_equal(replica.get_value(rank), 2 * x)
    assert_array_equal(add.as_serial(data, data, out=data).data, 2 * (x * 2.0 + x * x))


def test_out_gets_the_rows_of_the_batch(world):
    x = np.arange(20.0)
    for batch in ([3, 17, 4], slice(5, 15, 3), 6):
        out = synk.data(np.full(20, -1.0))
        add(x, 100, out=out, batch=batch)
        want = np.full(20, -1.0)
        chosen = slice(batch) if isinstance(batch, int) else batch
        want[chosen] = x[chosen] + 100
        assert_array_equal(out.data, want)
    places = synk.data(np.zeros(3), minibatch=True)
    assert_array_equal(add(x, 100, out=places, batch=[3, 17, 3]).data, [103, 117, 103])


def test_repeated_calls_with_other_kinds_of_arguments(world):
    x = np.arange(6.0)
    data, out = synk.data(x), synk.data(np.zeros(6))
    for _ in range(3):
        assert_array_equal(add(data, 1), x + 1)
        assert_array_equal(add(data, 1.5), x + 1.5)
        assert_array_equal(add(data, data), 2 * x)
        assert_array_equal(add(data, np.float32(2)), x + 2)
        assert_array_equal(add(data, 1, out=out).data, x + 1)
        assert_array_equal(add(synk.data(x.reshape(6, 1)), 1), x.reshape(6, 1) + 1)
        assert_array_equal(mixed(data, data, np.array([2.0])), 2 * x - 2 * x)
        with pytest.raises(synk.DataError):
            mixed(data, data, np.ones(6))


def test_more_shapes_than_are_kept(world, monkeypatch):
    monkeypatch.setattr(base, "MAX_KERNELS", 2)
    function = synk.vectorize(positive.py_func)
    for d in (5, 6, 7, 8, 5, 6):
        x = np.ones((2, d))
        assert_array_equal(function(x), x > 0)
    assert len(function._kernels) == 2


def test_inputs_broadcast_to_out(world):
    out = synk.data(np.zeros((6, 4)))
    x = np.arange(6.0).reshape(6, 1)
    assert_array_equal(add(x, 1.0, out=out).data, np.broadcast_to(x + 1, (6, 4)))
    assert_array_equal(add(2, 3, out=out).data, np.full((6, 4), 5.0))


def test_variables_of_rows_and_replicas(world):
    values = values_of("float64", (world.world_size * 5, 3))
    rows = own_rows(values)
    assert_array_equal(own(rows, values), 2 * values)
    own(rows, 1.0, out=rows)
    assert_array_equal(own(rows, 0.0, num_slices=2), values + 1)
    weights = synk.variable(np.arange(3.0))
    assert_array_equal(add(values, weights), values + np.arange(3.0))
    step = synk.variable(np.full(3, 0.5))
    own(weights, step, out=weights)  # of replicas each rank updates its own
    for rank in range(world.world_size):
        assert_array_equal(weights.get_value(rank), np.arange(3.0) + 0.5)


# ---- reductions


@pytest.mark.whole
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float32", "complex64"])
def test_sums_of_all_types(world, dtype):
    x = values_of(dtype, (37, 2))
    want = functools.reduce(lambda a, b: numbas(add, a, b), x)
    for num_slices in (1, 4):
        got = add.reduce(x, num_slices=num_slices)
        assert got.dtype == want.dtype
        assert_array_equal(got, want)


@pytest.mark.parametrize("rows", [1, 3, 1000, *whole(2, 7)])
@pytest.mark.parametrize("inner", [(), (300,), (0,), *whole((1,), (3,), (4, 3), (2, 1, 5))])
def test_reductions_of_every_shape(world, rows, inner):
    x = np.random.default_rng(rows).integers(-1000, 1000, (rows, *inner))
    for num_slices in (1, 3) if rows in {2, 7} else (1,):
        for function, ufunc in ((add, np.add), (largest, np.maximum)):
            got = function.reduce(x, num_slices=num_slices)
            assert_array_equal(got, ufunc.reduce(x))
            assert got.shape == inner


def test_rows_are_put_together_in_their_order(world):
    rng = np.random.default_rng(0)
    for n in (1, 2, 9, 1000):
        x = rng.integers(1, 10**6, n) * (rng.random(n) < 0.5)
        want = functools.reduce(lambda a, b: b if b != 0 else a, x)
        for how in ({}, {"num_slices": 3}, {"shards": 4}, {"shards": 7, "num_slices": 2}):
            assert latest.reduce(synk.data(x), **how) == want


def test_each_row_is_put_where_it_belongs(world):
    rng = np.random.default_rng(3)
    for n in (*range(1, 41), 1000, 5003):  # some of a few groups, of a tile, of several
        x = rng.choice([-1.0, 1.0], n) + 1j * rng.integers(-9, 10, n)
        found = after.reduce(x, num_slices=1 + n % 2)
        assert found == functools.reduce(after.py_func, x.tolist())


def in_groups(rows):
    """The sum as a core takes it of numbers: eight groups of neighbours, these, and what is
    left.
    """
    size = len(rows) // 8 if rows.ndim == 1 else 0
    if size < 2:
        return functools.reduce(np.add, rows)
    groups = [functools.reduce(np.add, rows[k * size : (k + 1) * size]) for k in range(8)]
    return functools.reduce(np.add, [*groups, *rows[8 * size :]])


@pytest.mark.parametrize("shards", [1, 5, *whole(2, 13)])
@pytest.mark.parametrize("inner", [(), (2, 4), *whole((3,))])
def test_shards_of_reductions_have_the_bits_of_their_rows_in_order(world, shards, inner):
    for n in (1, 4, 1001):
        x = np.random.default_rng(n).normal(size=(n, *inner))
        parts = [x[s * n // shards : (s + 1) * n // shards] for s in range(shards)]
        want = in_groups(np.stack([in_groups(part) for part in parts if len(part)]))
        found = add.reduce(x, shards=shards)
        if world.device == "cpu":
            assert found.tobytes() == want.tobytes()
        else:  # a GPU cuts shards further; tests/gpu/test_fixed_shards.py compares worlds
            assert_allclose(found, want, rtol=1e-13, atol=1e-13)


def test_shards_change_nothing_in_what_is_elementwise(world):
    x = np.random.default_rng(0).normal(size=(101, 3))
    assert_array_equal(add(x, 1.0, shards=7), x + 1.0)
    assert_array_equal(
        damped(x[:, 0], synk.arange(101), 0.0, shards=7, num_slices=2), 1.0 + np.arange(101)
    )
    assert_array_equal(add.as_serial(x, 1.0, shards=7), x + 1.0)
    assert add.plan(x, 1.0, shards=7).shards == 7
    out = synk.data(x)
    add(out, 1.0, out=out, shards=3)
    assert_array_equal(out, x + 1.0)


@pytest.mark.whole
def test_options_of_reductions(world):
    x = values_of("int32", (30, 3))
    data = synk.data(x)
    assert add.reduce(data).dtype == np.int64
    assert add.reduce(data, dtype=np.float64).dtype == np.float64
    assert_array_equal(add.reduce(data, 0, np.float32), x.sum(axis=0))
    assert_array_equal(add.reduce(data, initial=100), x.sum(axis=0) + 100)
    assert_array_equal(add.reduce(data, keepdims=True), x.sum(axis=0, keepdims=True))
    assert_array_equal(add.reduce(data, batch=[1, 1, 5]), x[[1, 1, 5]].sum(axis=0))
    assert_array_equal(
        largest.reduce(data, batch=slice(None, None, -2), num_slices=2), x[::-2].max(axis=0)
    )
    assert add.reduce(synk.arange(101)) == 5050
    assert isinstance(add.reduce(x[:, 0]), np.int64)
    assert_array_equal(add.reduce(np.zeros((0, 2)), initial=1.5), [1.5, 1.5])


@pytest.mark.whole
def test_signatures_of_reductions(world):
    x = np.arange(1, 9, dtype=np.int32)
    assert product.reduce(x).dtype == np.float64
    assert product.reduce(x) == math.factorial(8)
    assert product.reduce(x.astype(np.float32)).dtype == np.float32


def test_reductions_of_variables(world):
    values = values_of("float64", (world.world_size * 4, 2))
    assert_array_equal(own.reduce(own_rows(values), num_slices=2), values.sum(axis=0))


@pytest.fixture
def chunks_of_20(world, monkeypatch):
    monkeypatch.setitem(reduce_module._CHUNKS, world.device, 20)


@pytest.mark.whole
@pytest.mark.usefixtures("chunks_of_20")
def test_chunks_of_rows_as_on_gpus(world):
    last, total = synk.vectorize(latest.py_func), synk.vectorize(add.py_func)
    rng = np.random.default_rng(5)
    for n in (1, 2, 30, 1000, 100_003):  # of the last, blocks have several tiles
        x = rng.integers(1, 10**6, n) * (rng.random(n) < 0.5)
        for num_slices in (1, 3):
            assert last.reduce(x, num_slices=num_slices) == functools.reduce(
                lambda a, b: b if b != 0 else a, x
            )
            columns = x[:, None] * np.arange(3)
            assert_array_equal(total.reduce(columns, num_slices=num_slices), columns.sum(axis=0))
    assert total.reduce(synk.arange(101)) == 5050


@pytest.mark.usefixtures("chunks_of_20")
@pytest.mark.parametrize("dtype", whole("int8", "uint64", "float32", "complex128"))
def test_chunks_of_rows_of_other_types(world, dtype):
    numbers = np.arange(5000).astype(dtype)
    assert_array_equal(
        synk.vectorize(add.py_func).reduce(numbers),
        numbers.sum(dtype=np.result_type(numbers.sum(), dtype)),
    )


@pytest.mark.whole
@pytest.mark.usefixtures("chunks_of_20")
def test_chunks_of_rows_that_are_few_or_ranks_own(world):
    total = synk.vectorize(add.py_func)
    times = synk.vectorize(product.py_func)
    # blocks, and warps, without rows: what they would give is no result of the function
    for n in (
        1,
        5,
        7,
        300,
    ):
        assert times.reduce(np.full(n, -2.0)) == (-2.0) ** n
    named = synk.vectorize(lambda min, max: min + max)  # noqa: A006  # names that kernels may call
    assert named.reduce(np.arange(5001.0)) == 5001 * 2500
    rows = own_rows(np.arange(world.world_size * 12.0).reshape(-1, 2, 2))
    assert_array_equal(
        total.reduce(rows), np.arange(world.world_size * 12.0).reshape(-1, 2, 2).sum(axis=0)
    )


def test_threads_step_on_as_on_gpus(world, monkeypatch):
    monkeypatch.setitem(map_module._BLOCKS, world.device, 6)
    total = synk.vectorize(add.py_func)
    for shape in ((10_007,), (1000, 3), (50, 3, 700)):
        x = np.arange(math.prod(shape), dtype=float).reshape(shape)
        assert_array_equal(total(x, 0.5), x + 0.5)
    assert_array_equal(total(synk.arange(10_007), -20_000), np.arange(10_007) - 20_000)


def test_nan_and_negative_zero(world):
    assert math.isnan(add.reduce(np.array([1.0, math.nan, 2.0])))
    assert math.copysign(1.0, add.reduce(np.full(9, -0.0))) == -1.0


# By comparisons: max() and min() of numba-cuda are the GPU's, for which −0.0 is less than 0.0.
larger = synk.vectorize(lambda x, y: x if x >= y else y, name="larger")
smaller = synk.vectorize(lambda x, y: x if x <= y else y, name="smaller")


@pytest.mark.whole
@pytest.mark.parametrize(
    "function", [*whole(add, times), larger, *whole(smaller)], ids=lambda function: function.name
)
def test_zeros_keep_their_signs(world, function):
    def same(found, rows, *first):
        # Python's arithmetic, as no ufunc has an identity
        want = functools.reduce(function.py_func, [*first, *rows.tolist()])
        return (found == 0).all() and (np.signbit(found) == np.signbit(want)).all()

    for n in (1, 2, 3, 5):
        for rows in (np.full(n, -0.0), np.where(np.arange(n) % 2, 0.0, -0.0)):
            for how in (
                {},
                {"num_slices": 2},
                {"num_slices": 4},
                {"shards": 4},
                {"shards": 4, "num_slices": 2},
            ):
                assert same(function.reduce(rows, **how), rows)
                assert same(function.reduce(np.stack([rows, rows], axis=1), **how), rows)
            for first in (0.0, -0.0):
                assert same(function.reduce(rows, initial=first, num_slices=3), rows, first)


# ---- what is refused


def test_refuses_shapes(world):
    x = np.zeros((6, 3))
    for call, words in (
        (lambda: add(x, np.zeros((6, 2))), "do not broadcast"),
        (lambda: add(x, np.zeros(6)), "2"),
        (lambda: add(x, np.zeros((5, 3))), "5 rows but x has 6"),
        (lambda: mixed(x, x, np.zeros(6)), "do not broadcast"),
        (lambda: mixed(x, x, np.zeros((6, 3))), "do not broadcast"),
        (lambda: mixed(x[:, 0], x[:, 0], np.zeros(3)), "do not broadcast"),
        (lambda: add(x, 1, out=np.zeros((6, 1))), "do not broadcast"),
        (lambda: add(x, 1, out=np.zeros(6)), "dimensions"),
        (
            lambda: add(np.zeros((1,) * 40), 1),
            r"x of add has 40 dimensions; at most 33 .* x\.reshape\(len\(x\)",
        ),
        (
            lambda: add(x, 1, out=synk.data(np.zeros((7, 3)))),
            r"7 rows but x has 6; .* along axis 0\. Pass x in broadcast",
        ),
    ):
        with pytest.raises(ValueError, match=words) as told:
            call()
        assert isinstance(told.value, synk.SynkError)


def test_refuses_arguments(world):
    x = np.zeros(6)
    frozen = synk.data(x)
    frozen.freeze()
    read_only = np.zeros(6)
    read_only.flags.writeable = False
    for call, words in (
        (lambda: add(1.0, 2.0), "none of its arguments has rows"),
        (lambda: add(x), "is missing the argument y"),
        (lambda: add(x, x, x), "takes 2 arguments"),
        (lambda: add(x, z=x), "no parameter 'z'"),
        (lambda: add(x, [1.0] * 6), r"list; pass np.asarray\(...\) of it"),
        (lambda: add(x, None), "NoneType"),
        (
            lambda: add(x, Level.LOW),
            r"^y of add is <Level.LOW: 1>, a member of an IntEnum.*int\(y\)",
        ),
        (lambda: add(x, np.array(["a"] * 6)), "dtype"),
        (lambda: add(x, np.zeros(6, "M8[s]")), "which Numba cannot compute with"),
        (lambda: add(x, x, out=[0.0] * 6), "must be Data"),
        (lambda: add(x, x, out=np.array(0.0)), "array with rows"),
        (lambda: add(x, x, out=np.zeros(6, int)), "same_kind"),
        (lambda: add(x, 1j, out=x), "same_kind"),
        (lambda: add(x, x, out=frozen), r"^out of add is frozen.*thaw\(\)"),
        (lambda: add(frozen, x, out=frozen), r"^out of add is frozen.*thaw\(\)"),
        (lambda: add(x, x, out=read_only), "^out of add is a read-only array"),
        (lambda: product(np.zeros(6, "longdouble"), 1), "longdouble|float128"),
        (lambda: synk.vectorize(["float32(float32)"])(lambda x: x)(x), "casts to safely"),
        (lambda: synk.vectorize(lambda x: (x, x))(x), "returns one number"),
        (lambda: synk.vectorize(lambda x: x.nothing)(x), "cannot be compiled"),
        (lambda: synk.vectorize(lambda x: None)(x), "returns one number"),
        (lambda: add.reduce(x, axis=1), "axis 0"),
        (lambda: add.reduce(1.0), "reduces rows"),
        (lambda: add.reduce(x, initial=1j), "initial"),
        (lambda: cubes.reduce(x), "two numbers"),
        (
            lambda: synk.vectorize(lambda x, y: x > y).reduce(x, dtype=float),
            "cannot be reduced further",
        ),
    ):
        with pytest.raises(TypeError, match=words) as told:
            call()
        assert isinstance(told.value, synk.ArgumentError)
    assert_array_equal(add(x, 1), x + 1)  # the world is as it was


def test_refuses_aliases_that_are_not_elementwise(world):
    table = synk.data(np.zeros((3, 3)))
    with pytest.raises(synk.ArgumentError, match="same Data"):
        mixed(np.zeros((3, 3)), 1.0, table, out=table)
    replica = synk.variable(np.zeros(3))
    with pytest.raises(synk.ArgumentError, match="rows="):
        add(np.zeros(3), replica, out=replica)


def test_refuses_reductions_of_nothing(world):
    with pytest.raises(synk.ReductionError, match="no rows"):
        add.reduce(np.zeros((0, 3)))
    with pytest.raises(synk.ReductionError, match="no rows"):
        add.reduce(synk.arange(0))


def test_accumulate_is_refused_with_a_reason(world):
    with pytest.raises(synk.ReductionError, match="not work in parallel"):
        add.accumulate(np.zeros(3))


def test_refuses_what_no_call_can_have():
    for function, options, words in (
        (lambda x: x, {"broadcast": "x"}, "tuple of names"),
        (lambda x: x, {"broadcast": ("z",)}, "not a parameter"),
        (lambda x: x, {"signatures": ["float32"]}, "signature"),
        (lambda x: x, {"signatures": ["float32(float32, float32)"]}, "1 number"),
        (lambda x: x, {"signatures": "nonsense("}, "not one that Numba knows"),
        (lambda out: out, {}, "rename it"),
        (lambda synk_x: synk_x, {}, "rename it"),
        (lambda batch: batch, {}, "rename it"),
        (lambda *x: x, {}, "use named parameters only"),
        (3, {}, "wraps a function"),
        (np.add, {}, "pass that"),
    ):
        with pytest.raises(synk.ArgumentError, match=words):
            synk.vectorize(function, **options)
