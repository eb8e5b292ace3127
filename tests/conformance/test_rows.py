"""Which rows a rank gets, and which rows a batch selects."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from tests.conformance import expected, kernels

SLICES = (1, 2, 3, 4)


def ids(value):
    return str(value)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 6, 7, 10, 100, 101])
def test_a_rank_gets_rows_by_the_one_rule(world, n):
    counts = kernels.count_of(np.zeros(n))
    assert counts == [size or None for size in expected.shard_sizes(n, world.world_size)]


@pytest.mark.parametrize(("n", "parts", "sizes"), expected.SIZES)
def test_a_plan_divides_rows_as_the_manual_says(n, parts, sizes):
    report = kernels.total_of.plan(np.zeros(n), world_size=parts)
    assert [stop - start for start, stop in (rank.rows for rank in report.ranks)] == sizes


@pytest.mark.parametrize(("n", "parts", "sizes"), expected.SIZES)
def test_slices_divide_a_shard_by_the_same_rule(n, parts, sizes):
    (rank,) = kernels.total_of.plan(np.zeros(n), world_size=1, num_slices=parts).ranks
    assert [stop - start for start, stop in rank.slices] == sizes


def test_empty_slices_are_skipped(world):
    @synk.function(outputs="sum")
    def calls(x):
        assert len(x)
        return 1

    for n in (1, world.world_size, 3 * world.world_size + 1):
        sizes = expected.shard_sizes(n, world.world_size)
        for slices in (1, 3, 100):
            assert calls(np.zeros(n), num_slices=slices) == sum(min(size, slices) for size in sizes)


@synk.function(outputs=(None, {"arrays": None}))
def each_of(x):
    return len(x), {"arrays": x.sum(0, keepdims=True)}


@pytest.mark.parametrize(
    "how", [{}, {"num_slices": 3}, {"shards": 4}, {"shards": 4, "num_slices": 2}], ids=str
)
def test_op_none_has_an_entry_for_every_rank_or_shard(world, how):
    """None for those without rows, also between calls in which all have some."""
    for n in (0, 1, 2, 3, 10, 101, 1, 0):
        x = expected.values(2 * n).reshape(n, 2)
        parts = expected.shards(x, how.get("shards", world.world_size))
        lengths, tree = each_of(x, **how)
        assert lengths == [len(part) or None for part in parts]
        for got, part in zip(tree["arrays"], parts, strict=True):
            if len(part):
                assert_allclose(got, part.sum(0, keepdims=True), rtol=1e-14)
            else:
                assert got is None
    assert kernels.count_of.as_serial(np.zeros(2)) == [2]
    assert kernels.count_of.as_serial(np.zeros(0)) == [None]


@pytest.mark.parametrize("num_slices", SLICES)
def test_gathered_rows_come_in_order(world, num_slices):
    for n in expected.lengths(world.world_size):
        x = expected.values(n)
        assert_array_equal(kernels.rows_of(x, num_slices=num_slices), x)
        assert_array_equal(kernels.axpy(2.0, x, x + 1, num_slices=num_slices), 2.0 * x + (x + 1))


@pytest.mark.parametrize("num_slices", [1, 3])
@pytest.mark.parametrize("place", range(len(expected.batches(10))))
def test_batch_selects_as_numpy_indexing_does(world, place, num_slices):
    for n in (9, 100):
        batch = expected.batches(n)[place]
        x, y = expected.values(n), expected.values(n, seed=1)
        chosen = expected.selection(batch)
        for a, b in ((x, y), (synk.data(x), synk.data(y))):
            assert_array_equal(
                kernels.axpy(0.5, a, b, batch=batch, num_slices=num_slices),
                0.5 * x[chosen] + y[chosen],
            )
            assert_array_equal(kernels.rows_of(a, batch=batch, num_slices=num_slices), x[chosen])
            assert_allclose(
                kernels.energy(a, 0.5, batch=batch, num_slices=num_slices),
                np.exp(-0.5 * x[chosen] ** 2).sum(),
            )


def test_batch_changes_from_call_to_call(world):
    x = synk.data(expected.values(1000))
    rng = np.random.default_rng(3)
    for start in range(0, 1000, 70):
        assert_array_equal(
            kernels.axpy(1.0, x, x, batch=slice(start, start + 70)), 2 * x.data[start : start + 70]
        )
    for size in (1, 10, 500, 3, 5000):
        rows = rng.integers(-1000, 1000, size)
        assert_array_equal(kernels.axpy(1.0, x, x, batch=rows), 2 * x.data[rows])
        assert_array_equal(kernels.rows_of(x, batch=rows, num_slices=2), x.data[rows])
    assert_array_equal(kernels.rows_of(x), x.data)


def test_row_numbers_of_repeated_calls(world):
    """As many as before, or more, which need larger memory; also of another `Data` and dtype, and
    ones that are refused.
    """
    x, y = synk.data(expected.values(100)), synk.data(expected.values(50, seed=1))
    rng = np.random.default_rng(4)
    for size, dtype in ((6, "i8"), (6, "i4"), (6, "u2"), (2000, "i8"), (6, "i8"), (90, "i8")):
        for data, count in ((x, size), (x, size), (y, 6), (x, size)):
            rows = rng.integers(0, len(data), count).astype(dtype)
            assert_array_equal(kernels.rows_of(data, batch=rows), data.data[rows])
            pending = kernels.axpy.submit(2.0, data, data, batch=rows)
            assert_array_equal(pending.result(), 3.0 * data.data[rows])
            with pytest.raises(synk.BatchError, match=f"100 at position 2.* {len(data)} rows"):
                kernels.rows_of(data, batch=np.r_[rows[:2], np.array([100], dtype), rows[3:]])
    mask = rng.random(100) < 0.3
    for batch in (np.arange(100)[::-1], mask, ~mask, np.array(7), np.arange(7) - 7):
        chosen = expected.selection(batch if batch.ndim else int(batch))
        assert_array_equal(kernels.rows_of(x, batch=batch), x.data[chosen])


def test_rows_that_are_written_are_listed_once_in_each_call(world):
    x, rows = synk.data(np.zeros(10)), np.array([3, 1, 4])
    for _ in range(3):
        kernels.add_rows(x, 1.0, batch=rows)
    with pytest.raises(synk.BatchError, match="twice"):
        kernels.add_rows(x, 1.0, batch=np.array([3, 1, 3]))
    assert_array_equal(x.data, np.isin(np.arange(10), rows) * 3.0)


def test_bytes_of_listed_rows_are_counted(world):
    x = synk.data(np.zeros(100))
    for size in (10, 30, 10, 10, 30):
        before = world.statistics().scattered_bytes
        kernels.rows_of(x, batch=np.arange(size))
        assert world.statistics().scattered_bytes - before == 8 * size


def test_the_batch_may_be_changed_after_the_call(world):
    x, rows = synk.data(np.arange(50.0)), np.arange(20)
    first = kernels.rows_of(x, batch=rows)
    rows[:] = rows[::-1].copy()
    assert_array_equal(first, np.arange(20.0))
    assert_array_equal(kernels.rows_of(x, batch=rows), np.arange(20.0)[::-1])


def test_batch_of_rows_with_several_axes(world):
    x = expected.values(60).reshape(10, 3, 2)
    for batch in ([1, -1, 1], slice(None, None, -2), slice(3, 8), 4):
        assert_array_equal(
            kernels.rows_of(x, batch=batch, num_slices=2), x[expected.selection(batch)]
        )


# ---- minibatch inputs: indexed by position in the batch ------------------------------------------


@pytest.mark.parametrize("num_slices", [1, 2])
@pytest.mark.parametrize(
    "batch",
    [None, 6, slice(3, 9), slice(8, 2, -2), [5, 0, 5, -1], np.array([2, 7], np.int16), range(1, 7)],
    ids=ids,
)
def test_row_i_of_a_minibatch_goes_with_the_ith_row_selected(world, batch, num_slices):
    x = np.arange(10.0)
    chosen = x[expected.selection(batch)]
    for extra in (0, 3):  # it may have more rows than are used
        m = synk.data(np.arange(len(chosen) + extra) / 10.0, minibatch=True)
        result = kernels.paired(synk.data(x), m, batch=batch, num_slices=num_slices)
        assert_array_equal(result, chosen * 1000 + np.arange(len(chosen)) / 10.0)


def test_minibatch_inputs_of_a_kernel(world):
    x, m = synk.data(np.arange(40.0)), synk.data(np.arange(8.0), minibatch=True)
    for start in (0, 10, 32):
        assert_array_equal(
            kernels.axpy(10.0, x, m, batch=slice(start, start + 8)),
            10 * x.data[start : start + 8] + m.data,
        )
    assert_array_equal(kernels.axpy(10.0, x, m, batch=[7, 3]), [70.0, 31.0])


def test_a_data_becomes_a_minibatch_by_its_flag(world):
    x, m = synk.data(np.arange(20.0)), synk.data(np.arange(20.0))
    assert_array_equal(kernels.paired(x, m, batch=slice(5, 8)), [5005.0, 6006.0, 7007.0])
    m.minibatch = True
    assert_array_equal(kernels.paired(x, m, batch=slice(5, 8)), [5000.0, 6001.0, 7002.0])
    m.minibatch = False
    assert_array_equal(kernels.paired(x, m, batch=slice(5, 8)), [5005.0, 6006.0, 7007.0])
