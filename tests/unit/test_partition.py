"""Rows: what a batch selects is what NumPy's indexing selects, and the parts put together are
the whole.
"""

import pickle
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synknumba._errors import BatchError, PartitionError, SynkError
from synknumba._ops.rows import (
    Listed,
    Partition,
    Range,
    RowPlan,
    Rows,
    SlicePlan,
    common_length,
    minibatch_rows,
    select,
)

INTEGER_DTYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", ">i4"]

counts = st.integers(0, 60)
world_sizes = st.integers(1, 9)
even = st.builds(Partition.even, world_sizes)
# Whatever the marks are: a part may weigh nothing, but not all of them.
weights = st.lists(st.integers(0, 1000), min_size=1, max_size=9).filter(any)
partitions = even | weights.map(lambda each: Partition((0, *accumulate(each))))
maybe_index = st.none() | st.integers(-70, 70)
steps = st.none() | st.integers(-9, 9).filter(bool)


def chosen(rows: Rows, n: int) -> list[int]:
    """The row numbers, found by indexing an array with what the rows offer for it."""
    array = np.arange(n)
    return list(array[rows.selector])


# ---- parts


@pytest.mark.parametrize(
    ("n", "parts", "sizes"),
    [
        (5, 2, [2, 3]),
        (5, 3, [1, 2, 2]),
        (10, 4, [2, 3, 2, 3]),
        (2, 3, [0, 1, 1]),
        (0, 3, [0, 0, 0]),
        (7, 1, [7]),
    ],
)
def test_parts_have_the_sizes_of_the_manual(n: int, parts: int, sizes: list[int]) -> None:
    assert list(Partition.even(parts).counts(n)) == sizes


@given(n=counts | st.integers(0, 2**40), parts=world_sizes)
def test_even_parts_are_by_the_rule(n: int, parts: int) -> None:
    partition = Partition.even(parts)
    assert partition.edges(n) == tuple(r * n // parts for r in range(parts + 1))
    assert max(partition.counts(n)) - min(partition.counts(n)) <= 1


@given(n=counts | st.integers(0, 2**40), partition=partitions)
def test_parts_cover_all_rows_in_order(n: int, partition: Partition) -> None:
    edges = partition.edges(n)
    assert (edges[0], edges[-1], len(edges)) == (0, n, partition.parts + 1)
    assert all(start <= stop for start, stop in pairwise(edges))
    assert [partition.part(n, r) for r in range(partition.parts)] == list(pairwise(edges))
    assert partition.counts(n) == tuple(stop - start for start, stop in pairwise(edges))


@given(n=counts, partition=partitions, shards=st.none() | st.integers(1, 40))
def test_shards_of_all_parts_cover_all_rows_in_order(
    n: int, partition: Partition, shards: int | None
) -> None:
    of_parts = [partition.shard_edges(n, shards, r) for r in range(partition.parts)]
    found = [shard for edges in of_parts for shard in pairwise(edges)]
    expected = partition if shards is None else Partition.even(shards)
    assert found == [expected.part(n, shard) for shard in range(expected.parts)]


@given(partition=partitions)
def test_a_partition_is_a_value(partition: Partition) -> None:
    same = pickle.loads(pickle.dumps(partition))
    assert (same, hash(same)) == (partition, hash(partition))


@given(
    n=counts, batch=st.builds(slice, maybe_index, maybe_index, steps), parts=partitions, slices=even
)
def test_parts_of_parts_of_a_slice_are_its_rows_in_order(
    n: int, batch: slice, parts: Partition, slices: Partition
) -> None:
    expected = list(np.arange(n)[batch])
    if not expected:
        with pytest.raises(BatchError, match="empty batch"):
            select(batch, n)
        return
    rows = select(batch, n)
    assert isinstance(rows, Range)
    assert chosen(rows, n) == list(rows.indices) == expected
    pieces = [
        slices.of(parts.of(rows, r), k) for r in range(parts.parts) for k in range(slices.parts)
    ]
    assert [row for piece in pieces for row in chosen(piece, n)] == expected
    assert sum(piece.count for piece in pieces) == rows.count


@given(
    data=st.data(), n=st.integers(1, 60), dtype=st.sampled_from(INTEGER_DTYPES), parts=partitions
)
def test_a_list_selects_as_numpy_does(
    data: st.DataObject, n: int, dtype: str, parts: Partition
) -> None:
    low = 0 if np.dtype(dtype).kind == "u" else -n
    batch = np.array(
        data.draw(st.lists(st.integers(low, n - 1), min_size=1, max_size=40)), dtype=dtype
    )
    expected = list(np.arange(n)[batch])
    for same in (batch, batch.tolist(), tuple(batch.tolist()), np.repeat(batch, 2)[::2]):
        rows = select(same, n)
        assert isinstance(rows, Listed)
        assert rows.indices.dtype == np.int64
        assert rows.indices.flags.c_contiguous
        assert list(rows.indices) == expected
        assert rows.count == len(expected)
        assert [row for r in range(parts.parts) for row in chosen(parts.of(rows, r), n)] == expected


@given(
    n=st.integers(1, 60),
    start=st.integers(-70, 70),
    stop=st.integers(-70, 70),
    step=st.integers(-9, 9).filter(bool),
)
def test_a_range_is_a_list_of_indices(n: int, start: int, stop: int, step: int) -> None:
    batch = range(start, stop, step)
    try:
        expected = list(np.arange(n)[list(batch)]) if batch else []
    except IndexError:
        position = next(i for i, index in enumerate(batch) if not -n <= index < n)
        with pytest.raises(BatchError, match=f"index {batch[position]} at position {position}"):
            select(batch, n)
        return
    if expected:
        assert chosen(select(batch, n), n) == expected
    else:
        with pytest.raises(BatchError, match="empty batch"):
            select(batch, n)


@given(mask=st.lists(st.booleans(), min_size=1, max_size=60).filter(any))
def test_a_mask_selects_as_numpy_does(mask: list[bool]) -> None:
    n = len(mask)
    for same in (mask, np.array(mask)):
        assert chosen(select(same, n), n) == list(np.arange(n)[np.array(mask)])


@given(n=st.integers(1, 60), k=st.integers(1, 60))
def test_an_int_is_the_first_rows(n: int, k: int) -> None:
    for same in (k, np.int32(k), np.uint64(k), np.array(k)):
        if k <= n:
            assert select(same, n) == Range(0, 1, k)
        else:
            with pytest.raises(BatchError, match=f"there are {n}"):
                select(same, n)


def test_no_batch_is_all_rows_even_none() -> None:
    assert select(None, 7) == Range(0, 1, 7)
    assert select(None, 0) == Range(0, 1, 0)
    assert chosen(select(None, 0), 0) == []


def test_parts_of_a_list_are_views() -> None:
    indices = np.array([3, 1, 2, 0, 3])
    rows = select(indices, 4)
    assert isinstance(rows, Listed)
    second = Partition.even(2).of(rows, 1)
    assert isinstance(second, Listed)
    assert np.shares_memory(second.indices, indices)


def test_a_wrapped_list_leaves_the_callers_array_alone() -> None:
    indices = np.array([-1, 0])
    assert list(select(indices, 5).indices) == [4, 0]  # type: ignore[union-attr]  # a list, as above
    assert list(indices) == [-1, 0]


class ArrayLike:
    """Has __array__ and nothing else, as a `Data` might."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array([2, 0])


def test_anything_with_an_array_is_a_list() -> None:
    assert list(select(ArrayLike(), 3).indices) == [2, 0]  # type: ignore[arg-type, union-attr]


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (0, "empty batch"),
        (-1, r"slice\(-1, None\) for the last 1"),
        (11, "asks for the first 11 rows, but there are 10"),
        (True, "batch is True"),
        (np.False_, "batch is"),
        (2.0, "of type float"),
        ("3", "of type str"),
        ({1, 2}, "of type set"),
        (slice(3, 3), "empty batch"),
        (slice(20, 30), "empty batch"),
        (slice(0, 5, 0), "step cannot be zero"),
        (slice(0.0, 5), "not a slice of rows"),
        ([], "empty batch"),
        (np.empty(0, np.int64), "empty batch"),
        ([0, 10, 11], "index 10 at position 1, which is out of range for 10 rows; use -10 to 9"),
        ([0, -10, -11], "index -11 at position 2"),
        ([0, 2**70], f"index {2**70} at position 1"),
        ([2**63, -1], f"index {2**63} at position 0"),
        (np.array([0, 2**63], np.uint64), f"index {2**63} at position 1"),
        (np.array([5, 200], np.uint8), "index 200 at position 1"),
        (range(10**30, 10**30 + 5), f"index {10**30} at position 0"),
        (range(0, 10**15, 3), "index 12 at position 4"),
        ([0.0, 1.0], "float64 array; a batch is an int"),
        (np.array([1, 2], dtype=object), "object array"),
        (["a"], "a batch is an int"),
        ([[1, 2], [3, 4]], r"must be 1-D, got an array of shape \(2, 2\)"),
        ([[1], [2, 3]], "cannot be read as an array"),
        (np.ones(9, bool), "boolean mask of length 9, but there are 10 rows"),
        ([True, False], "boolean mask of length 2"),
        (np.zeros(10, bool), "empty batch"),
        (np.ma.masked_array([1, 2], [False, True]), "batch has masked items"),
    ],
)
def test_a_bad_batch_is_refused(batch: Any, says: str) -> None:
    with pytest.raises(BatchError, match=says) as caught:
        select(batch, 10)
    assert isinstance(caught.value, (SynkError, IndexError))


def test_any_index_of_no_rows_is_refused() -> None:
    for batch in (1, [0], range(1), slice(None), np.empty(0, bool)):
        with pytest.raises(BatchError):
            select(batch, 0)


# ---- agreement of arguments


@given(n=st.integers(1, 40), k=st.integers(1, 40), extra=st.integers(0, 5))
def test_a_minibatch_input_is_indexed_by_position(n: int, k: int, extra: int) -> None:
    rows = select([i % n for i in range(k)], n)
    assert minibatch_rows(rows, k + extra, "y") == Range(0, 1, k)
    with pytest.raises(PartitionError, match=f"y has {k - 1} rows but the batch selects {k}"):
        minibatch_rows(rows, k - 1, "y")


def test_lengths_that_agree() -> None:
    assert common_length({"x": 5}) == 5
    assert common_length({"x": 5, "y": 5, "z": 5}) == 5


def test_lengths_that_disagree_are_refused_with_the_way_out() -> None:
    with pytest.raises(PartitionError) as caught:
        common_length({"x": 96, "y": 100})
    assert str(caught.value) == (
        "y has 100 rows but x has 96; sharded arguments must agree along axis 0. "
        'Pass y in broadcast=("y",) if every rank needs all of it.'
    )


def test_of_lengths_that_disagree_the_one_that_may_be_broadcast_is_named() -> None:
    with pytest.raises(PartitionError, match=r'broadcast=\("starts",\)'):
        common_length({"starts": 101, "y": 100}, written={"y"})
    with pytest.raises(PartitionError, match=r"axis 0\.$"):
        common_length({"x": 101, "y": 100}, written={"x", "y"})


# ---- the rows of a call


@given(
    partition=partitions,
    shards=st.none() | st.integers(1, 12),
    num_slices=st.integers(1, 5),
    n=counts,
)
def test_the_slices_of_all_ranks_are_the_rows_in_order(partition, shards, num_slices, n):
    plan = RowPlan(partition, shards, num_slices, n)
    rows = []
    for rank in range(partition.parts):
        slices = list(plan.slices(rank))
        own = [row for part in slices for row in range(part.start, part.stop)]
        assert own == list(range(*plan.span(rank, rank + 1)))
        first, after = plan.shard_span(rank, rank + 1)
        assert {part.shard for part in slices} <= set(range(after - first))
        rows += own
    assert rows == list(range(n))


@given(partition=partitions, shards=st.none() | st.integers(1, 12), n=counts, data=st.data())
def test_a_span_of_ranks_is_the_spans_of_each(partition, shards, n, data):
    plan = RowPlan(partition, shards, 1, n)
    first = data.draw(st.integers(0, partition.parts))
    after = data.draw(st.integers(first, partition.parts))
    for span in (plan.span, plan.shard_span):
        each = [range(*span(rank, rank + 1)) for rank in range(first, after)]
        assert list(range(*span(first, after))) == [at for part in each for at in part]


@given(own=st.lists(counts, min_size=1, max_size=6), num_slices=st.integers(1, 5))
def test_without_other_rows_a_call_has_the_rows_of_the_ranks(own, num_slices):
    plan = RowPlan(Partition.even(len(own)), None, num_slices, None, tuple(own))
    for rank, count in enumerate(own):
        slices = list(plan.slices(rank))
        before = sum(own[:rank])
        assert plan.span(rank, rank + 1) == (before, before + count)
        assert [part.own for part in slices] == [
            (part.start - before, part.stop - before) for part in slices
        ]
        assert sum(part.stop - part.start for part in slices) == count
        assert [part.number for part in slices] == list(range(len(slices)))


def test_a_slice_runs_that_has_rows_of_its_own_alone():
    plan = RowPlan(Partition.even(2), None, 2, 1, (3, 0))
    assert list(plan.slices(0)) == [SlicePlan(0, 0, (0, 1)), SlicePlan(0, 0, (1, 3), 0, 1)]
    assert list(plan.slices(1)) == [SlicePlan(0, 1)]


@pytest.mark.parametrize("shards", [None, 4])
def test_ranks_beyond_the_partition_run_nothing(shards):
    plan = RowPlan(Partition.even(1), shards, 1, 8)
    assert list(plan.slices(1)) == []
    assert plan.span(1, 3) == plan.shard_span(1, 3) == (0, 0)
    assert plan.span(0, 3) == (0, 8)
    assert plan.shard_span(0, 3) == (0, shards or 1)
