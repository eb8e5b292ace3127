"""reduce, all_reduce and reduce_scatter: every op, every dtype that has it, every number of
dimensions, small and large.
"""

import numpy as np
import pytest

import synknumba as synk
from tests.conformance.collectives.cases import (
    LARGE,
    OPS_AND_DTYPES,
    SHAPES,
    assert_held,
    assert_same,
    combined,
    differing,
    numbers,
    put,
    rows_of,
)

ALL_SHAPES = [*SHAPES, LARGE]
with_ops = pytest.mark.parametrize(("op", "dtype"), OPS_AND_DTYPES)


@pytest.fixture
def rng():
    return np.random.default_rng(20)


@with_ops
def test_all_reduce(world, op, dtype, rng):
    for shape in ALL_SHAPES:
        v, arrays = differing(rng, world, dtype, shape)
        assert synk.all_reduce(v, op) is v
        assert_held(v, world, [combined(op, arrays)] * world.world_size)


@with_ops
def test_reduce_in_place(world, op, dtype, rng):
    for k, shape in enumerate(ALL_SHAPES):
        v, arrays = differing(rng, world, dtype, shape)
        root = k % world.world_size
        assert synk.reduce(v, op, root=root) is v
        assert_held(
            v,
            world,
            [combined(op, arrays) if rank == root else mine for rank, mine in enumerate(arrays)],
        )


@with_ops
def test_reduce_not_in_place_leaves_the_variable_alone(world, op, dtype, rng):
    for k, shape in enumerate(ALL_SHAPES):
        v, arrays = differing(rng, world, dtype, shape)
        assert_same(
            synk.reduce(v, op, in_place=False, root=k % world.world_size), combined(op, arrays)
        )
        assert_held(v, world, arrays)


@with_ops
def test_reduce_scatter(world, op, dtype, rng):
    size = world.world_size
    for shape in ALL_SHAPES:
        if not shape:
            continue
        v, arrays = differing(rng, world, dtype, shape)
        dest = synk.variable(np.zeros((1,) * len(shape), dtype))
        whole = combined(op, arrays)
        parts = [whole[rows_of(len(whole), size, rank)] for rank in range(size)]
        for _ in range(2):  # the second time dest has the shapes already
            assert synk.reduce_scatter(v, op, dest=dest) is dest
            assert_held(dest, world, parts)
            assert_held(v, world, arrays)
        assert synk.reduce_scatter(v, op) is v
        assert_held(v, world, parts)


@pytest.mark.parametrize("collective", [synk.all_reduce, synk.reduce, synk.reduce_scatter])
def test_mean_is_avg(world, collective, rng):
    """Both words, in turn and repeated: the second time is a shorter way."""
    whole_of = (
        (lambda whole: whole[rows_of(6, world.world_size, 0)])
        if collective is synk.reduce_scatter
        else np.asarray
    )
    for op in ("mean", "avg", "mean"):
        v, arrays = differing(rng, world, "float64", (6,))
        for _ in range(2):
            collective(v, op)
            assert_same(synk.get_value(0, v), whole_of(combined("avg", arrays)))
            synk.broadcast(v, arrays[0])
            put(v, arrays)
    assert_same(synk.reduce(v, "mean", in_place=False), combined("avg", arrays))
    dest = synk.variable(np.zeros(1))
    for op in ("mean", "mean", "avg"):
        synk.reduce_scatter(v, op, dest=dest)
        assert_same(
            synk.get_value(0, dest), combined("avg", arrays)[rows_of(6, world.world_size, 0)]
        )


@pytest.mark.parametrize("shape", [(5,), LARGE], ids=["small", "large"])
def test_repeated_collectives_use_what_is_there_now(world, shape, rng):
    """A repeated call is a short way; between the calls everything changes."""
    v, arrays = differing(rng, world, "int64", shape)
    for _ in range(3):
        synk.all_reduce(v, "sum")
        arrays = [combined("sum", arrays)] * world.world_size
        arrays = [array + rank for rank, array in enumerate(arrays)]
        for rank, array in enumerate(arrays):
            synk.set_value(rank, v, array)
        synk.reduce(v, "max")
        arrays[0] = combined("max", arrays)
        assert_held(v, world, arrays)
    longer = numbers(rng, "int64", (shape[0] + 1, *shape[1:]))
    synk.broadcast(v, longer)
    synk.all_reduce(v, "sum")
    assert_held(v, world, [combined("sum", [longer] * world.world_size)] * world.world_size)


def test_a_second_op_is_not_the_first(world, rng):
    v, arrays = differing(rng, world, "float64", (4,))
    for op in ("sum", "max", "prod", "min", "avg", "sum"):
        for rank, array in enumerate(arrays):
            synk.set_value(rank, v, array)
        synk.all_reduce(v, op)
        assert_held(v, world, [combined(op, arrays)] * world.world_size)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("op", ["min", "max"])
def test_a_nan_anywhere_is_the_result(world, op, dtype):
    arrays = [
        np.array([1, 2, 3, -np.inf, 0, np.inf], dtype) * (rank + 1)
        for rank in range(world.world_size)
    ]
    arrays[-1][1] = np.nan
    arrays[0][4] = np.nan
    v = synk.variable(arrays[0])
    for rank, array in enumerate(arrays):
        synk.set_value(rank, v, array)
    synk.all_reduce(v, op)
    with np.errstate(invalid="ignore"):
        assert_held(v, world, [combined(op, arrays)] * world.world_size)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("count", [1000, 70_001], ids=["small", "large"])
def test_sums_of_any_numbers(world, dtype, count, rng):
    """To rounding against NumPy in double precision, and the same bits on every rank."""
    real = np.dtype(dtype).type(0).real.dtype
    width = 2 if np.dtype(dtype).kind == "c" else 1
    arrays = [
        rng.standard_normal(width * count).astype(real).view(dtype) for _ in range(world.world_size)
    ]
    v = synk.variable(arrays[0])
    for rank, array in enumerate(arrays):
        synk.set_value(rank, v, array)
    synk.all_reduce(v, "sum")
    first = synk.get_value(0, v)
    size = sum(np.abs(array) for array in arrays)
    assert (
        np.abs(first - np.sum(arrays, axis=0, dtype="complex128")) <= 2 * np.finfo(real).eps * size
    ).all()
    for rank in range(1, world.world_size):
        assert synk.get_value(rank, v).tobytes() == first.tobytes()


def test_avg_is_the_sum_divided_by_the_number_of_ranks(world):
    """One third is not exact: divided, it is the nearest number; multiplied by 1/3 it need not
    be.
    """
    for dtype in ("float32", "float64", "complex64"):
        values = np.arange(1, 50).astype(dtype)
        v = synk.variable(values)
        synk.set_value(0, v, values * 5)
        synk.all_reduce(v, "avg")
        total = (world.world_size + 4) * values
        parts = total.view(total.real.dtype) / total.real.dtype.type(world.world_size)
        assert_held(v, world, [parts.view(dtype)] * world.world_size)
