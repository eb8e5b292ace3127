"""shards=K: the bits that K parts of the rows have when they are put together in order, in every
world.
"""

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_array_equal

import synknumba as synk
from tests.conformance import expected, kernels
from tests.conformance.conftest import PRIVATE, ROWS

UFUNC = {"total": np.add, "product": np.multiply, "low": np.minimum, "high": np.maximum}
CASES = [(n, k) for n in (1, 4, 7, 64, 1001) for k in (1, 2, 3, 5, 8, 13)]


@pytest.fixture(params=[*ROWS, PRIVATE])
def row(request):
    return request.param


def one_by_one(ufunc, rows):
    """As a loop does it, each result rounded."""
    out = rows[:1].copy()
    for row in rows[1:]:
        out = ufunc(out, row)
    return out[0]


def identity(name, dtype):
    """What a shard without rows has."""
    limits = np.iinfo(dtype) if np.dtype(dtype).kind == "i" else None
    low, high = (-np.inf, np.inf) if limits is None else (limits.min, limits.max)
    return np.dtype(dtype).type({"total": 0, "product": 1, "low": high, "high": low}[name])


def combined(name, parts):
    return UFUNC[name].reduce(np.stack(parts), axis=0, dtype=parts[0].dtype)


def same_bits(got, wanted):
    assert got.dtype == wanted.dtype
    assert got.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_every_op_has_the_bits_of_its_shards(world, dtype):
    for n, k in CASES:
        x = expected.values(n, dtype)
        got = kernels.reductions(x, shards=k)
        for name, ufunc in UFUNC.items():
            nothing = identity(name, dtype)
            values = [
                one_by_one(ufunc, part) if len(part) else nothing for part in expected.shards(x, k)
            ]
            same_bits(getattr(got, name), combined(name, values))
        parts = [part.astype("float64") for part in expected.shards(x, k) if len(part)]
        means = np.array([one_by_one(np.add, part / len(part)) for part in parts])
        weights = np.array([len(part) for part in parts], "float64")
        same_bits(
            got.mean, means[0] if len(parts) == 1 else (means * weights).sum() / weights.sum()
        )
        assert_array_equal(got.rows, x)
        assert len(got.each) == k
        for each, part in zip(got.each, expected.shards(x, k), strict=True):
            same_bits(each, one_by_one(np.add, part) if len(part) else np.zeros((), dtype)[()])


@pytest.mark.parametrize("num_slices", [2, 3])
def test_slices_of_shards_are_put_together_in_order(world, num_slices):
    for n, k in CASES:
        x = expected.values(n)
        got = kernels.reductions(x, shards=k, num_slices=num_slices)
        for name, ufunc in UFUNC.items():
            parts = []
            for shard in expected.shards(x, k):
                acc = identity(name, "float64")
                for part in expected.shards(shard, num_slices):
                    acc = ufunc(acc, one_by_one(ufunc, part)) if len(part) else acc
                parts.append(np.float64(acc))
            same_bits(getattr(got, name), combined(name, parts))
        assert got.mean == pytest.approx(x.mean(), rel=1e-12, abs=1e-12)
        assert_array_equal(got.rows, x)


def test_one_rank_alone_has_the_same_bits(world):
    x = expected.values(1001)
    for k in (1, 3, 8):
        together, alone = kernels.reductions(x, shards=k), kernels.reductions.as_serial(x, shards=k)
        for name in (*UFUNC, "mean", "rows", "each"):
            same_bits(np.array(getattr(together, name)), np.array(getattr(alone, name)))


@pytest.mark.parametrize("batch", [slice(3, 90), [5, 1, 99, 1, 7, 30], 40])
def test_selected_rows(world, batch):
    x = expected.values(100)
    got = kernels.reductions(x, batch=batch, shards=4)
    parts = expected.shards(x[expected.selection(batch)], 4)
    same_bits(got.total, np.add.reduce([one_by_one(np.add, part) for part in parts]))
    assert_array_equal(got.rows, x[expected.selection(batch)])


def test_repeated_calls_keep_nothing_of_the_ones_before(world):
    for seed in range(4):
        x = expected.values(101, seed=seed)
        same_bits(
            kernels.reductions(x, shards=6).total,
            np.add.reduce([one_by_one(np.add, part) for part in expected.shards(x, 6)]),
        )


@synk.parallel(
    outputs={
        "total": synk.output("sum", shape=lambda given: given["x"].shape[1]),
        "mean": synk.output("mean", shape=lambda given: given["x"].shape[1], dtype="int32"),
        "first": synk.output(None, shape=(), dtype="int64"),
    },
    block=64,
    grid=8,
)
@cuda.jit
def columns(x, offset, total, mean, first):
    """Large results, means whose dtype is another than what the kernel writes, and the index of
    the first row.
    """
    j = cuda.grid(1)
    if j == 0:
        first[0] += offset
    if j < x.shape[1]:
        for i in range(x.shape[0]):
            total[j] += x[i, j]
            mean[j] += 10 * x.shape[0]


def test_large_results(world):
    x = expected.values(50 * 500).reshape(50, 500)
    for k, num_slices in ((1, 1), (4, 1), (7, 2)):
        got = columns(x, synk.OFFSET, shards=k, num_slices=num_slices)
        parts = []
        for shard in expected.shards(x, k):
            acc = np.zeros(500)
            for part in expected.shards(shard, num_slices):
                acc = acc + np.add.reduce(part, axis=0)
            parts.append(acc)
        same_bits(got.total, np.add.reduce(parts))
        if num_slices == 1:
            assert [int(first) for first in got.first] == [s * 50 // k for s in range(k)]
            wanted = sum(10.0 * len(part) ** 3 for part in expected.shards(x, k)) / 50
            assert got.mean == pytest.approx(np.full(500, wanted), rel=1e-15)


@synk.function(outputs={"total": "sum", "mean": "mean", "rows": "gather", "each": None})
def summed(x):
    return {"total": x.sum(axis=0), "mean": x.mean(axis=0), "rows": 2 * x, "each": len(x)}


@pytest.mark.parametrize("shape", [(), (3,)])
def test_python_functions(world, shape):
    for n, k in CASES:
        x = expected.values(n * int(np.prod(shape))).reshape(n, *shape)
        got = summed(x, shards=k)
        parts = [part for part in expected.shards(x, k) if len(part)]
        weights = np.array([len(part) for part in parts], "float64").reshape(-1, *[1] * len(shape))
        means = np.stack([part.mean(axis=0) for part in parts])
        assert_array_equal(got["rows"], 2 * x)
        assert got["each"] == [len(part) or None for part in expected.shards(x, k)]
        if world.device != "cuda":  # CuPy adds in an order of its own
            same_bits(
                got["total"], np.add.reduce(np.stack([part.sum(axis=0) for part in parts]), axis=0)
            )
            same_bits(
                got["mean"],
                means[0] if len(parts) == 1 else (means * weights).sum(axis=0) / weights.sum(),
            )


def test_python_functions_in_slices(world):
    x = expected.values(101)
    got = summed(x, shards=4, num_slices=3)
    assert_array_equal(got["rows"], 2 * x)
    assert got["total"] == pytest.approx(x.sum(), rel=1e-13)
    assert got["mean"] == pytest.approx(x.mean(), rel=1e-13)


def test_rows_that_are_written(world):
    for k, num_slices in ((1, 1), (4, 1), (9, 3)):
        x = expected.values(23)
        wanted = 3 * x
        tripled(x, shards=k, num_slices=num_slices)
        assert_array_equal(x, wanted)


@synk.parallel(inout=("x",))
@cuda.jit
def tripled(x):
    i = cuda.grid(1)
    if i < x.shape[0]:
        x[i] *= 3
