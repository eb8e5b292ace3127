"""Reduced results that are large enough for the ranks to combine: the coordinator makes the same
bits of them.
"""

import gc
from typing import Any

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from synknumba._call import collect, plan_cache
from synknumba._call import outputs as outputs_module
from synknumba._host import lent_results
from tests.conformance import expected, kernels
from tests.conformance.conftest import LINKED, PRIVATE, REPLAYED_LINKED, ROWS
from tests.quick import whole

COLUMNS = 301  # of float32 1204 bytes; no world size divides it
LARGE = 1024  # bytes
RTOL = {"float32": 1e-5, "float64": 1e-13, "complex64": 1e-5, "complex128": 1e-13}
UFUNC = {"total": np.add, "product": np.multiply, "low": np.minimum, "high": np.maximum}


@pytest.fixture(params=[*ROWS, PRIVATE, LINKED, REPLAYED_LINKED])
def row(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """Makes results large that are not."""
    monkeypatch.setattr(outputs_module, "SMALL_RESULT_BYTES", LARGE - 1)
    monkeypatch.setattr(lent_results, "LENT_BYTES", LARGE)
    monkeypatch.setattr(collect, "CORES_BYTES", LARGE)
    monkeypatch.setattr(collect, "DEVICES_BYTES", LARGE)


def columns(given):
    return given["x"].shape[1]


def made(**ops):
    return {name: synk.output(op, shape=columns, like="x") for name, op in ops.items()}


def reduce_columns(x, total, product, low, high, mean, each, number):
    j = cuda.grid(1)
    if j < x.shape[1]:
        for i in range(x.shape[0]):
            total[j] += x[i, j]
            product[j] *= x[i, j]
            low[j] = x[i, j] if x[i, j] < low[j] or x[i, j] != x[i, j] else low[j]
            high[j] = x[i, j] if x[i, j] > high[j] or x[i, j] != x[i, j] else high[j]
            mean[j] += x[i, j] / x.shape[0]
            each[j] += x[i, j]
    if j == 0:
        number[0] += x.shape[0]


def reducer(kernel, **ops):
    """A function of its own, whose plans are made with the sizes that are patched then."""
    return synk.parallel(outputs=made(**ops), block=64, grid=32)(cuda.jit(kernel))


def every_op():
    outputs = made(total="sum", product="prod", low="min", high="max", each=None)
    outputs["mean"] = synk.output("mean", shape=columns)
    outputs["number"] = synk.output("sum", shape=(), dtype="int64")
    return synk.parallel(outputs=outputs, block=64, grid=32)(cuda.jit(reduce_columns))


def coordinators(call, monkeypatch, make=every_op):
    """What the coordinator makes of the same parts."""
    with monkeypatch.context() as patch:
        patch.setattr(outputs_module, "is_worthwhile", lambda world, nbytes: False)
        return call(make())


def check(got, x, world):
    for name, ufunc in UFUNC.items():
        value, wanted = getattr(got, name), ufunc.reduce(x, axis=0, dtype=x.dtype)
        assert value.dtype == x.dtype
        assert value.flags.c_contiguous
        assert value.flags.writeable
        if x.dtype.kind == "f" and name in {"total", "product"}:
            assert_allclose(value, wanted, rtol=RTOL[x.dtype.name])
        else:
            assert_array_equal(value, wanted)
    assert_allclose(got.mean, x.mean(axis=0, dtype="float64"), rtol=RTOL.get(x.dtype.name, 1e-13))
    assert got.number == len(x)
    for each, own in zip(got.each, expected.shards(x, world.world_size), strict=True):
        assert_allclose(each, own.sum(axis=0, dtype=x.dtype), rtol=RTOL.get(x.dtype.name, 1e-13))


@pytest.mark.parametrize("dtype", ["int32", *whole("int64", "uint64", "float32"), "float64"])
@pytest.mark.parametrize("num_slices", [1, 3])
def test_every_op(world, row, monkeypatch, dtype, num_slices):
    ranks = every_op()
    for n in (1, world.world_size, 7, 64):
        x = expected.values(n * COLUMNS, dtype).reshape(n, COLUMNS)
        usual = coordinators(lambda f, x=x: f(x, num_slices=num_slices), monkeypatch)
        for _ in range(4):
            got = ranks(x, num_slices=num_slices)
            check(got, x, world)
            if row["device"] != "cuda":  # NCCL adds in an order of its own
                for name in (*UFUNC, "mean"):
                    assert getattr(got, name).tobytes() == getattr(usual, name).tobytes(), name


@pytest.mark.parametrize("num_slices", [1, 2])
def test_complex_sums_products_and_means(world, num_slices):
    def reduce(x, total, product, mean):
        j = cuda.grid(1)
        if j < x.shape[1]:
            for i in range(x.shape[0]):
                total[j] += x[i, j]
                product[j] *= x[i, j]
                mean[j] += x[i, j] / x.shape[0]

    f = reducer(reduce, total="sum", product="prod", mean="mean")
    for dtype in ("complex64", "complex128"):
        for n in (1, 5, 20):
            x = expected.values(n * COLUMNS, dtype).reshape(n, COLUMNS)
            for _ in range(3):
                got = f(x, num_slices=num_slices)
                assert {one.dtype for one in got} == {np.dtype(dtype)}
                assert_allclose(got.total, x.sum(axis=0), rtol=RTOL[dtype])
                assert_allclose(got.product, x.prod(axis=0), rtol=RTOL[dtype])
                assert_allclose(got.mean, x.mean(axis=0), rtol=RTOL[dtype])


def test_bool_min_and_max(world):
    def reduce(x, low, high):
        j = cuda.grid(1)
        if j < x.shape[1]:
            for i in range(x.shape[0]):
                low[j] = low[j] and x[i, j]
                high[j] = high[j] or x[i, j]

    f = reducer(reduce, low="min", high="max")
    x = np.random.default_rng(0).random((7, 5 * COLUMNS)) < 0.3
    for _ in range(3):
        got = f(x)
        assert_array_equal(got.low, x.all(axis=0))
        assert_array_equal(got.high, x.any(axis=0))


def test_nan_and_infinities(world):
    x = np.ones((9, COLUMNS))
    x[0, :10], x[4, 10:20], x[8, 20:30] = np.nan, np.nan, np.nan
    x[1, 30:40], x[7, 35:45] = np.inf, -np.inf
    f = every_op()
    for _ in range(3):
        with np.errstate(all="ignore"):
            got = f(x)
            for name, ufunc in UFUNC.items():
                assert_array_equal(getattr(got, name), ufunc.reduce(x, axis=0))
            assert_array_equal(np.isnan(got.mean), np.isnan(x.mean(axis=0)))


def test_numbers_of_rows_change(world):
    """Of one plan: also ranks without rows, whose part of a mean weighs nothing, and one rank
    that has all.
    """
    f = every_op()
    x = expected.values(40 * COLUMNS).reshape(40, COLUMNS)
    data = synk.data(x)
    for stop in (40, 1, 2, 17, 1, 3, 40, 39, 1):
        check(f(data, batch=slice(0, stop)), x[:stop], world)
    one = f(data, batch=slice(5, 6))
    assert_array_equal(one.mean, x[5])
    for num_slices in (2, 50):
        check(f(data, batch=slice(3, 20), num_slices=num_slices), x[3:20], world)
    empty = np.empty((0, COLUMNS))
    with pytest.raises(synk.ReductionError, match='a "mean" of no rows; pass at least one row'):
        f(empty)
    none = f(empty, output_subset=("total", "product", "low"))
    assert_array_equal(none.total, np.zeros(COLUMNS))
    assert_array_equal(none.product, np.ones(COLUMNS))
    assert_array_equal(none.low, np.full(COLUMNS, np.inf))


def test_results_are_kept(world):
    f = every_op()
    kept = []
    rng = np.random.default_rng(3)
    for k in range(12):
        x = expected.values(6 * COLUMNS, seed=k).reshape(6, COLUMNS)
        kept.append((x, f(x)))
        for values, got in kept:
            check(got, values, world)
        while len(kept) > rng.integers(1, 6):
            del kept[rng.integers(len(kept))]
    for _, got in kept:
        got.total[:] = -1
    check(f(x), x, world)


def test_results_of_a_loop_are_kept(world):
    """As long as their places come in turns, calls are those of before but for where results go."""
    f = every_op()
    data, kept = synk.data(np.ones((6, COLUMNS))), []
    for k in range(60):
        data.data[:] = expected.values(6 * COLUMNS, seed=k).reshape(6, COLUMNS)
        kept.append((data.data.copy(), f(data)))
        for values, got in kept:
            check(got, values, world)
        del kept[: len(kept) - k // 20]


@pytest.mark.one_machine
def test_results_are_handed_out_without_a_copy(world):
    """Those that the ranks combine, or that one rank has alone."""
    f = every_op()
    x = np.ones((6, COLUMNS))
    f(x)
    kept = f(x)
    lent = world.device == "cpu" or world.transport == "nccl" or world.world_size == 1
    for name in (*UFUNC, "mean"):
        assert getattr(kept, name).flags.owndata == (not lent)


def test_some_outputs_and_several_sizes(world):
    def reduce(x, k, total, small, rows, tall):
        j = cuda.grid(1)
        if j < x.shape[1]:
            for i in range(x.shape[0]):
                total[j] += x[i, j]
                rows[i, j] = x[i, j] + k
                for t in range(4):
                    tall[t, j] = max(tall[t, j], x[i, j] + t)
                if j < 3:
                    small[j] += x[i, j]

    outputs = {
        "total": synk.output("sum", shape=columns),
        "small": synk.output("mean", shape=(3,)),
        "rows": synk.output("gather", shape=columns),
        "tall": synk.output("max", shape=lambda given: (4, given["x"].shape[1])),
    }
    f = synk.parallel(outputs=outputs, block=64, grid=32)(cuda.jit(reduce))
    x = expected.values(10 * COLUMNS).reshape(10, COLUMNS)
    for k in range(5):
        got = f(x, k)
        assert_allclose(got.total, x.sum(axis=0))
        assert_array_equal(got.rows, x + k)
        assert_array_equal(got.tall, x.max(axis=0) + np.arange(4)[:, None])
        assert_allclose(f(x, k, output_subset="total"), x.sum(axis=0))
        assert_array_equal(f(x, k, output_subset=("tall", "rows")).tall, got.tall)
        assert_allclose(f.as_serial(x, k).total, x.sum(axis=0))


def refuse_one_row(rows):
    if rows == 1:
        raise ValueError("one row")
    return 32


def test_numbers_beside_so_many_results_that_they_have_no_room(world, monkeypatch):
    """A rank's part of a number is then an element of an array, and not the number."""
    monkeypatch.setattr(outputs_module, "SMALL_RESULT_BYTES", 1 << 14)
    arrays = {name: synk.output("sum", shape=2048, dtype="float64") for name in "abcd"}  # 64 KiB
    numbers = {
        name: synk.output(op, shape=(), dtype="float64")
        for name, op in (("total", "sum"), ("mean", "mean"), ("each", None))
    }

    @synk.parallel(grid=1, block=1, outputs=arrays | numbers)
    @cuda.jit
    def kernel(x, a, b, c, d, total, mean, each):
        for one in (a, b, c, d):
            one[0] += x[0]
        total[0] += 2 * x[0]
        mean[0] += 3 * x[0]
        each[0] += 4 * x[0]

    body, x = synk.sequence(lambda x: tuple(kernel(x))), synk.variable(np.ones(1))
    for call in (kernel, kernel, body, body):
        *some, last, total, mean, each = call(x)
        assert [some[0][0], last[0], total] == [
            world.world_size,
            world.world_size,
            2 * world.world_size,
        ]
        assert mean == 3
        assert each == [4] * world.world_size


def test_a_rank_that_fails_keeps_nobody_waiting(world):
    def reduce(x, total):
        j = cuda.grid(1)
        if j < x.shape[1]:
            for i in range(x.shape[0]):
                total[j] += x[i, j]

    f = synk.parallel(outputs=made(total="sum"), block=64, grid=refuse_one_row)(cuda.jit(reduce))
    x = synk.data(np.ones((2 * world.world_size, COLUMNS)))
    rows = 2 * world.world_size - 1  # the first rank gets one of them, others two
    for _ in range(3):
        assert_array_equal(f(x), np.full(COLUMNS, 2.0 * world.world_size))
        with pytest.raises(synk.LaunchError, match="one row"):
            f(x, batch=rows)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_of_one_rank_alone(world, row, monkeypatch, dtype):
    """Their mean is that rank's own, to the last bit: w v / w may be something else."""
    size = world.world_size
    values = np.random.default_rng(1).random((5 * size, COLUMNS)).astype(dtype)
    v = synk.variable(values)
    synk.scatter(v, values)

    def reduce(x, total, mean):
        j = cuda.grid(1)
        if j < x.shape[1]:
            for i in range(x.shape[0]):
                total[j] += x[i, j]
                mean[j] += x[i, j] / x.shape[0]

    def averager():
        outputs = {
            name: synk.output(op, shape=COLUMNS, dtype=dtype)
            for name, op in (("total", "sum"), ("mean", "mean"))
        }
        return synk.parallel(outputs=outputs, rows=("x",), block=64, grid=32)(cuda.jit(reduce))

    for of in range(size):
        chosen = [[4, 1, 3] if rank == of else [] for rank in range(size)]
        own = values[5 * of :][[4, 1, 3]]
        usual = coordinators(
            lambda f, chosen=chosen: f(v, local_batch=chosen), monkeypatch, averager
        )
        ranks = averager()
        for _ in range(3):
            got = ranks(v, local_batch=chosen)
            assert_allclose(got.total, own.sum(axis=0), rtol=RTOL[dtype])
            assert_allclose(got.mean, own.mean(axis=0), rtol=RTOL[dtype])
            assert got.mean.tobytes() == usual.mean.tobytes()


@synk.function(outputs=None)
def held_by_rank():
    """How many programs and segments."""
    import gc

    from synknumba._rank.loop import Rank

    (rank,) = [one for one in gc.get_objects() if type(one) is Rank]
    return np.array([len(rank.routines), len(rank.segments)])


def test_nothing_is_left_of_plans_that_are_dropped(world, monkeypatch):
    monkeypatch.setattr(plan_cache, "PLANS_KEPT", 2)
    x = synk.data(np.ones((6, COLUMNS)))
    for outputs in (("total",), ("mean",), None):
        f = every_op()
        for num_slices in range(1, 4):
            f(x, num_slices=num_slices, output_subset=outputs)
        gc.collect()  # what earlier tests have left
        held_by_rank()
        before = held_by_rank()
        for num_slices in range(4, 8):
            f(x, num_slices=num_slices, output_subset=outputs)
        assert_array_equal(held_by_rank(), before)


def test_nothing_is_left_of_a_function(world):
    x = synk.data(np.ones((6, COLUMNS)))
    kernels.rows_of(x)  # which the ranks have from now on
    gc.collect()
    held_by_rank()
    before = held_by_rank()
    f = every_op()
    kept = [f(x) for _ in range(4)]
    f(x, num_slices=2)
    assert all((one > other).all() for one, other in zip(held_by_rank(), before, strict=True))
    del f, kept
    gc.collect()
    held_by_rank()
    assert_array_equal(held_by_rank(), before)


def test_gone_with_its_data(world):
    f = every_op()
    for k in range(3):
        x = synk.data(expected.values(6 * COLUMNS, seed=k).reshape(6, COLUMNS))
        for _ in range(2):
            got = f(x)
        values = x.data.copy()
        del x
        check(got, values, world)
