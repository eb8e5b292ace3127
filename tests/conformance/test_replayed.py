"""What is repeated is recorded on GPUs: results are right whatever has changed between the calls.

A call is made three times before anything changes: the first runs the steps, the second records
them, the third repeats them.
"""

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_array_equal

import synknumba as synk
from tests.conformance.conftest import REPLAYED, ROWS
from tests.conformance.kernels import add_up

N = 1001


@pytest.fixture(params=[*ROWS, REPLAYED])
def row(request):
    return request.param


@synk.parallel(outputs={"out": synk.output("gather", shape=(3,), dtype="float64")})
@cuda.jit
def combine(x, scale, shift, invert, out):
    i = cuda.grid(1)
    if i < x.shape[0]:
        out[i, 0] = x[i] * scale
        out[i, 1] = shift
        out[i, 2] = -1.0 if invert else 1.0


def combined(x, scale, shift, invert):
    sign = -1.0 if invert else 1.0
    return np.stack([x * float(scale), np.full(len(x), float(shift)), np.full(len(x), sign)], 1)


@pytest.mark.parametrize("num_slices", [1, 3])
def test_scalars_change(world, num_slices):
    x = synk.data(np.arange(N, dtype=np.float64))
    for scale, shift, invert in (
        (1.5, 3, False),
        (-0.25, -(2**40), True),
        (0.0, 0, False),
        (-0.0, 1, True),
        (float("inf"), 7, True),
    ):
        with np.errstate(invalid="ignore"):
            expected = combined(x.data, scale, shift, invert)
        for _ in range(3):
            assert_array_equal(combine(x, scale, shift, invert, num_slices=num_slices), expected)


TYPES = (
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float32",
    "float64",
    "bool",
)


@pytest.mark.parametrize("dtype", TYPES)
def test_scalars_of_numpy_change(world, dtype):
    x = synk.data(np.arange(10, dtype=np.float64))
    for value in (1, 0, 3, 100, 2, 1):
        scale = np.dtype(dtype).type(value)
        for _ in range(3):
            assert_array_equal(
                combine(x, scale, 1, False), combined(x.data, scale, 1, invert=False)
            )


def test_the_largest_integers(world):
    @synk.parallel(outputs={"out": synk.output("gather", shape=(), dtype="uint64")})
    @cuda.jit
    def keep(x, value, out):
        i = cuda.grid(1)
        if i < x.shape[0]:
            out[i] = value

    for value in (np.uint64(2**64 - 1), np.uint64(0), np.uint64(2**63), np.uint64(1)):
        for _ in range(3):
            assert_array_equal(keep(np.zeros(5), value), np.full(5, value))


@pytest.mark.parametrize("of", [complex, np.complex64, np.complex128])
def test_complex_scalars_change(world, of):
    @synk.parallel(outputs={"out": synk.output("gather", shape=(), dtype="complex128")})
    @cuda.jit
    def turn(x, z, out):
        i = cuda.grid(1)
        if i < x.shape[0]:
            out[i] = x[i] * z

    x = np.arange(5.0)
    for z in (1 + 2j, 3 - 4j, 0j, 1j, 2 + 0j):
        for _ in range(3):
            assert_array_equal(turn(x, of(z)), x * of(z))


@synk.parallel(
    inout=("y",),
    broadcast=("weights",),
    outputs={"total": synk.output("sum", shape=(2,)), "low": synk.output("min", shape=())},
)
@cuda.jit
def account(x, weights, y, total, low):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = x[i] * weights[0] + weights[1]
        cuda.atomic.add(total, 0, x[i])
        cuda.atomic.add(total, 1, 1.0)
        cuda.atomic.min(low, 0, x[i])


def check_account(x, weights, y, batch, num_slices):
    before = y.data.copy()
    rows = np.arange(len(x.data))[batch] if not isinstance(batch, int) else np.arange(batch)
    got = account(x, weights, y, batch=batch, num_slices=num_slices)
    chosen = x.data[rows]
    before[rows] = chosen * weights.data[0] + weights.data[1]
    assert_array_equal(y.data, before)
    assert_array_equal(got.total, [chosen.sum(), len(chosen)])
    assert got.low == chosen.min()


@pytest.mark.parametrize("num_slices", [1, 2, 5])
def test_contents_and_lists_of_rows_change(world, num_slices):
    rng = np.random.default_rng(1)
    x = synk.data(rng.integers(-1000, 1000, N).astype(np.float64))
    y = synk.data(np.zeros(N))
    weights = synk.data(np.array([2.0, 1.0]))

    def repeat(batch):
        for _ in range(3):
            check_account(x, weights, y, batch, num_slices)
            x.data[:] = rng.integers(-1000, 1000, N)
            weights.data[:] = rng.integers(1, 9, 2)
            y.data[:] = -1

    order = rng.permutation(N)
    for batch in (slice(None), slice(None, None, -3), slice(100, 900, 7), slice(5, 700), 17):
        repeat(batch)
    for count in (400, 400, 400, 399, 8, 400):
        repeat(rng.permutation(N)[:count])
        repeat(order[:count].tolist())


def test_segments_change(world):
    x = synk.data(np.arange(10.0))
    for n in (10, 10, 10, 5000, 5000, 5000, 10, 200_000, 200_000, 200_000, 3):
        x.set_value(np.arange(float(n)))
        assert_array_equal(combine(x, 2.0, n, True), combined(x.data, 2.0, n, invert=True))
    x.free_memory()
    x.set_value(np.arange(77.0))
    for _ in range(3):
        assert_array_equal(combine(x, 2.0, 1, False), combined(x.data, 2.0, 1, invert=False))


def test_private_arrays_of_many_lengths(world):
    for n in (5, 5, 5, 100_000, 5, 100_000, 100_000, 5):
        x = np.random.default_rng(n).random(n)
        assert_array_equal(combine(x, 0.5, 1, False), combined(x, 0.5, 1, invert=False))


OPS = {"total": "sum", "product": "prod", "low": "min", "high": "max"}


@synk.parallel(
    outputs={name: synk.output(op, shape=(3,), dtype="float32") for name, op in OPS.items()}
    | {
        "mean": synk.output("mean", shape=(), dtype="float32"),
        "rows": synk.output("sum", shape=(), dtype="int32"),
    },
    grid=1,
    block=1,
)
@cuda.jit
def fold(x, total, product, low, high, mean, rows):
    for i in range(x.shape[0]):
        for k in range(3):
            value = x[i] + k
            total[k] += value
            product[k] *= value
            low[k] = value if value < low[k] else low[k]
            high[k] = value if value > high[k] else high[k]
        mean[0] += x[i] / x.shape[0]
        rows[0] += 1


@pytest.mark.parametrize("num_slices", [1, 4, 20])
def test_every_op_over_slices(world, num_slices):
    x = synk.data(np.ones(17, np.float32))
    for seed in range(4):
        x.data[:] = np.random.default_rng(seed).integers(1, 3, 17)
        got = fold(x, num_slices=num_slices)
        wide = x.data[:, None] + np.arange(3, dtype=np.float32)
        for name, function in zip(OPS, (np.add, np.multiply, np.minimum, np.maximum), strict=True):
            assert_array_equal(getattr(got, name), function.reduce(wide, 0))
        np.testing.assert_allclose(got.mean, x.data.mean(), rtol=1e-6)
        assert got.rows == 17


def test_variables_change_between_calls(world):
    @synk.parallel(outputs={"out": synk.output("gather", shape=(), dtype="float64")})
    @cuda.jit
    def shifted(x, v, out):
        i = cuda.grid(1)
        if i < x.shape[0]:
            out[i] = x[i] + v[0]

    x = synk.data(np.arange(10.0))
    v = synk.variable(np.array([1.0]))
    for value in (1.0, 5.0, -2.0):
        synk.broadcast(v, np.array([value]))
        for _ in range(3):
            assert_array_equal(shifted(x, v), x.data + value)
    longer = synk.variable(np.array([7.0, 8.0]))
    for _ in range(3):
        assert_array_equal(shifted(x, longer), x.data + 7)
        assert_array_equal(shifted(x, v), x.data - 2)


def test_after_an_exception_the_call_is_recorded_all_the_same(world):
    @synk.function(outputs="sum")
    def fail(x):
        raise ValueError

    x = synk.data(np.ones(N))
    for _ in range(4):
        assert add_up(x) == N
        with pytest.raises(synk.RankError, match="ValueError"):
            fail(x)


class Counted:
    """Its sum counts on the rank how often it was asked for."""

    asked = 0

    def sum(self):
        Counted.asked += 1
        return float(Counted.asked)


@synk.function(outputs=None)
def with_an_object(x, other):
    return x.sum() * 0 + other.sum()


def test_functions_of_objects_are_not_recorded_unasked(world):
    x, other = synk.data(np.arange(N)), Counted()
    counts = [with_an_object(x, other)[0] for _ in range(5)]
    assert_array_equal(np.diff(counts), 1)


def test_a_record_as_an_argument(world):
    point = np.dtype([("a", "f8"), ("b", "i8")], align=True)

    @synk.parallel(outputs={"out": synk.output("gather", shape=(), dtype="float64")})
    @cuda.jit
    def affine(x, p, out):
        i = cuda.grid(1)
        if i < x.shape[0]:
            out[i] = x[i] * p.a + p.b

    x = np.arange(100.0)
    for a, b in ((2.0, 3), (4.0, 5), (2.0, 3)):
        p = np.array((a, b), point)[()]
        for _ in range(4):
            assert_array_equal(affine(x, p), x * a + b)
            np.full(1000, a)  # memory that a stale address would show


@pytest.mark.whole
def test_more_selections_than_are_kept(world):
    x = synk.data(np.arange(float(N)))
    for _ in range(2):
        for start in range(N - 400):
            low = start % 7 + 1
            got = combine(x, 2.0, 1, False, batch=slice(start, start + 3 * low))
            assert got[-1, 0] == 2 * (start + 3 * low - 1)


def test_nothing_arrives_after_an_error(world):
    @synk.function(inout=("y",))
    def fail_late(x, y):
        y += x
        if x[0] > 0:
            raise ValueError

    x, y = synk.data(np.arange(float(1 << 20))), synk.data(np.zeros(1 << 20))
    for _ in range(3):
        with pytest.raises(synk.RankError):
            fail_late(x, y, num_slices=4)
        y.data[:] = -1
        assert combine(x, 1.0, 1, False, batch=3)[2, 0] == 2
        assert np.all(y.data == -1)
