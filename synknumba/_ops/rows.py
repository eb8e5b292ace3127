"""Selection of rows by a `batch`, and their partition into shards and slices (pure).

One rule cuts rows into shards, and shards into slices, in calls and in `scatter`: of n rows in W
parts, part r is the rows from r·n // W up to (r+1)·n // W. Only `Partition` implements it. A world
has a partition of rows into ranks, which its programs carry; shards and slices have partitions of
their own. `RowPlan` applies them to a call: for the script, which plans launches and reports on
them, for ranks, which run them, and for the relays between machines, which move the rows.
"""

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Never, TypeAlias, cast, final

import numpy as np
from numpy.typing import NDArray

from synknumba._errors import BatchError, PartitionError
from synknumba._types import Array, Batch, shown

_ACCEPTED = (
    "a batch is an int k (the first k rows), a slice, a 1-D list or array of "
    "integers, or a boolean mask"
)


@final
@dataclass(frozen=True, slots=True)
class Range:
    """The `count` rows start, start + step, …; all of them exist."""

    start: int
    step: int
    count: int

    def between(self, low: int, high: int) -> "Range":
        """Returns the rows at positions low … high − 1.

        >>> Range(10, -2, 5).between(1, 3)
        Range(start=8, step=-2, count=2)
        """
        return Range(self.start + low * self.step, self.step, high - low)

    @property
    def selector(self) -> slice:
        """The slice that selects these rows from an array.

        >>> Range(4, -2, 3).selector
        slice(4, None, -2)
        """
        if self.count == 0:
            return slice(0, 0)
        stop = self.start + self.count * self.step
        if stop < 0:  # −1 would mean the last row
            return slice(self.start, None, self.step)
        return slice(self.start, stop, self.step)

    @property
    def indices(self) -> NDArray[np.int64]:
        """Row numbers, shape (count,)."""
        return self.start + self.step * np.arange(self.count, dtype=np.int64)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """Rows in any order, possibly repeated."""

    # row numbers: shape (count,), C-contiguous; all rows exist, none is negative
    indices: NDArray[np.int64]

    @property
    def count(self) -> int:
        """Number of rows, including repetitions."""
        return len(self.indices)

    @property
    def selector(self) -> NDArray[np.int64]:
        """The row numbers, which select these rows from an array."""
        return self.indices

    def between(self, low: int, high: int) -> "Listed":
        """Returns the rows at positions low … high − 1; their indices are a view."""
        return Listed(self.indices[low:high])


@final
@dataclass(frozen=True, slots=True, eq=False)
class InLine:
    """Rows that one line of a table lists, where another line may follow without the host:
    `count` of them from `start` on.
    """

    table: NDArray[np.int64]  # row numbers as in `Listed`, a line for each selection; C-contiguous
    line: int
    start: int
    count: int

    @property
    def listed(self) -> Listed:
        """The rows that the line lists now; their indices are a view."""
        return Listed(self.table[self.line, self.start : self.start + self.count])

    def between(self, low: int, high: int) -> "InLine":
        """Returns the rows at positions low … high − 1."""
        return InLine(self.table, self.line, self.start + low, high - low)


Rows: TypeAlias = Range | Listed
Selection: TypeAlias = Rows | InLine


def line_number(line: int, lines: int) -> int:
    """Returns the number of a line of row numbers, where −1 is the last.

    Raises:
        IndexError: there is no such line.
    """
    if not -lines <= line < lines:
        raise IndexError(
            f"batch= takes line {line} of row numbers that have {lines} lines; pass more lines, or "
            "make fewer iterations"
        )
    return line % lines


@final
@dataclass(frozen=True, slots=True)
class Partition:
    """Rule that cuts any number of rows into consecutive parts, which may be empty.

    Of n rows, part r of W is the rows from m[r]·n // m[W] up to m[r+1]·n // m[W], where m are the
    marks.
    """

    marks: tuple[int, ...]  # W + 1 integers that increase from 0; 0, 1, …, W for even parts

    @classmethod
    def even(cls, parts: int) -> "Partition":
        """Returns the partition into parts whose sizes differ by at most one row."""
        return cls(tuple(range(parts + 1)))

    @classmethod
    def weighted(cls, weights: Sequence[float]) -> "Partition":
        """Returns the partition in proportion to positive weights; even parts for equal weights.

        Weights in the ratio of integers up to 1,000 times the least are kept exactly, others to six
        digits of it.

        >>> Partition.weighted([0.5, 1.5]), Partition.weighted([3, 3])
        (Partition(marks=(0, 1, 4)), Partition(marks=(0, 1, 2)))
        """
        ratios = [weight / min(weights) for weight in weights]
        for scale in (*range(1, 1001), 1_000_000):
            sizes = [scale * ratio for ratio in ratios]
            if all(map(_is_integer, sizes)):
                break
        return cls(tuple(accumulate(map(round, sizes), initial=0)))

    @property
    def parts(self) -> int:
        """Number of parts."""
        return len(self.marks) - 1

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of each part in all rows."""
        return tuple(weight / self.marks[-1] for weight in self.counts(self.marks[-1]))

    def part(self, n: int, index: int) -> tuple[int, int]:
        """Returns start and stop of one part of n rows.

        >>> thirds = Partition.even(3)
        >>> thirds.part(5, 0), thirds.part(5, 1), thirds.part(5, 2)
        ((0, 1), (1, 3), (3, 5))
        """
        marks = self.marks
        return marks[index] * n // marks[-1], marks[index + 1] * n // marks[-1]

    def edges(self, n: int) -> tuple[int, ...]:
        """Returns the start of each part of n rows, and the stop of the last part.

        >>> Partition.even(4).edges(10)
        (0, 2, 5, 7, 10)
        """
        total = self.marks[-1]
        # a list takes half the time of a generator
        return tuple([mark * n // total for mark in self.marks])

    def counts(self, n: int) -> tuple[int, ...]:
        """Returns the number of rows in each part of n rows.

        >>> Partition.even(4).counts(10)
        (2, 3, 2, 3)
        """
        total = self.marks[-1]
        edges = [mark * n // total for mark in self.marks]
        return tuple(map(operator.sub, edges[1:], edges))

    def of(self, rows: Rows, index: int) -> Rows:
        """Returns one part of a selection; for `Listed`, a view of its indices.

        >>> Partition.even(2).of(Range(10, -2, 5), 1)
        Range(start=6, step=-2, count=3)
        """
        return rows.between(*self.part(rows.count, index))

    def shard_edges(self, n: int, shards: int | None, index: int) -> tuple[int, ...]:
        """Returns the start of each shard in one part of the shards, and the last one's stop.

        The n rows are cut into `shards` even shards, and this partition cuts the shards into parts.
        With None, each part is one shard.

        >>> Partition.even(2).shard_edges(10, 4, 1), Partition.even(2).shard_edges(10, None, 1)
        ((5, 7, 10), (5, 10))
        """
        if shards is None:
            return self.part(n, index)
        first, after = self.part(shards, index)
        return tuple([shard * n // shards for shard in range(first, after + 1)])


@final
@dataclass(frozen=True, slots=True)
class SlicePlan:
    """The rows of one launch.

    Attributes:
        start: position of the first row among the rows of the call.
        stop: position after the last one.
        own: positions of the first row, and after the last, among the rank's rows of sliceable
            variables.
        shard: index among the rank's shards.
        number: index among the slices of its shard that have rows.
    """

    start: int
    stop: int
    own: tuple[int, int] = (0, 0)
    shard: int = 0
    number: int = 0


@final
@dataclass(frozen=True, slots=True)
class RowPlan:
    """Division of the rows of a call among ranks, shards and slices.

    Attributes:
        partition: of rows, or of shards, into ranks. Ranks beyond its parts run nothing.
        shards: number of shards into which the rows are cut; None for one on each rank.
        num_slices: number of slices into which each shard is cut.
        count: number of rows that are divided; None if there are none, as in a call of nothing
            but sliceable variables.
        own: number of rows of sliceable variables by rank; None if there are none. Without `count`,
            these are the rows of the call.
    """

    partition: Partition
    shards: int | None
    num_slices: int
    count: int | None
    own: tuple[int, ...] | None = None

    def edges(self, rank: int) -> tuple[int, ...]:
        """Returns the start of each of a rank's shards among the rows of the call, and the stop of
        the last; nothing for a rank that does not run.

        >>> RowPlan(Partition.even(2), 4, 1, 10).edges(1)
        (5, 7, 10)
        """
        if rank >= self.partition.parts:
            return ()
        if self.count is None:
            return self.own_span(rank, rank + 1)
        return self.partition.shard_edges(self.count, self.shards, rank)

    def span(self, first: int, after: int) -> tuple[int, int]:
        """Returns start and stop of the rows of the ranks first … after − 1."""
        after = min(after, self.partition.parts)
        if first >= after:
            return 0, 0
        return self.edges(first)[0], self.edges(after - 1)[-1]

    def own_span(self, first: int, after: int) -> tuple[int, int]:
        """Returns start and stop of the ranks' rows of sliceable variables, counted through."""
        if self.own is None:
            return 0, 0
        return sum(self.own[:first]), sum(self.own[:after])

    def shard_span(self, first: int, after: int) -> tuple[int, int]:
        """Returns the first of the shards that the ranks run, and the one after the last."""
        after = min(after, self.partition.parts)
        if first >= after:
            return 0, 0
        if self.shards is None:
            return first, after
        part = self.partition.part
        return part(self.shards, first)[0], part(self.shards, after - 1)[1]

    def slices(self, rank: int) -> Iterator[SlicePlan]:
        """Yields the slices that a rank runs: those with rows, or with rows of its own.

        >>> [(each.start, each.stop) for each in RowPlan(Partition.even(2), None, 2, 5).slices(1)]
        [(2, 3), (3, 5)]
        """
        slicing = Partition.even(self.num_slices)
        low, high = self.own_span(rank, rank + 1)
        own_cuts = list(pairwise(slicing.edges(high - low)))
        for shard, (start, stop) in enumerate(pairwise(self.edges(rank))):
            number = 0
            cuts = pairwise(slicing.edges(stop - start))
            for (low, high), (own_low, own_high) in zip(cuts, own_cuts, strict=True):
                if high > low or own_high > own_low:
                    yield SlicePlan(start + low, start + high, (own_low, own_high), shard, number)
                    number += 1


def _is_integer(number: float) -> bool:
    return abs(number - round(number)) <= 1e-9 * number


def select(batch: Batch, n: int) -> Rows:
    """Returns the rows that a batch selects from n, in its order, like NumPy indexing (but an int k
    selects the first k rows).

    A batch is None for all rows; k for the first k; a slice; a 1-D list or array of integers, where
    negative ones count from the end; or a boolean mask of length n. An int64 array without negative
    indices is not copied. Raises BatchError if it selects no rows or a row that does not exist, or
    is of another type.

    >>> select(slice(None, None, -3), 8)
    Range(start=7, step=-3, count=3)
    >>> select([0, -1, 0], 8).indices
    array([0, 7, 0])
    """
    if batch is None:
        return Range(0, 1, n)
    if isinstance(batch, slice):
        return _from_slice(batch, n)
    if isinstance(batch, range):
        return _from_range(batch, n)
    try:
        array = np.asarray(batch)
    except (ValueError, TypeError, OverflowError) as error:
        raise BatchError(f"batch cannot be read as an array ({error}); {_ACCEPTED}") from error
    if np.ma.is_masked(batch):
        raise BatchError("batch has masked items; pass batch.compressed(), or the rows themselves")
    if array.ndim == 0:
        return _first(array, batch, n)
    if array.ndim > 1:
        raise BatchError(f"batch must be 1-D, got an array of shape {array.shape}; {_ACCEPTED}")
    if array.dtype == np.bool_:
        return _from_mask(array, n)
    return _from_list(array, batch, n)


def minibatch_rows(rows: Rows, length: int, name: str) -> Range:
    """Returns the rows of a minibatch input, which is indexed by position: its row i belongs to the
    i-th selected row.

    Raises PartitionError if the input, of this length and name, has fewer rows than the batch
    selects from the data.
    """
    if length < rows.count:
        raise PartitionError(
            f"{name} has {length} rows but the batch selects {rows.count}; a minibatch input needs "
            f"one row per row of the batch. Give {name} at least {rows.count} rows, or select "
            "fewer."
        )
    return Range(0, 1, rows.count)


def common_length(lengths: Mapping[str, int], written: Collection[str] = ()) -> int:
    """Returns the number of rows that all sharded arguments have, given that of each by name.

    Raises PartitionError if they differ. Arguments in `written`, whose rows are written back,
    cannot be broadcast instead.
    """
    first, length = next(iter(lengths.items()))
    for name, count in lengths.items():
        if count != length:
            message = (
                f"{name} has {count} rows but {first} has {length}; sharded arguments "
                f"must agree along axis 0."
            )
            for label in (name, first):
                if label not in written:
                    argument, _, _ = label.partition("[")  # of an array inside a nested argument
                    message += (
                        f' Pass {argument} in broadcast=("{argument}",) if every rank needs all of '
                        "it."
                    )
                    break
            raise PartitionError(message)
    return length


def _refuse_empty(what: str) -> Never:
    raise BatchError(f"empty batch: {what} selects no rows; a batch needs at least one")


def _refuse_index(index: int, position: int, n: int) -> Never:
    raise BatchError(
        f"batch has index {index} at position {position}, which is out of range for {n} "
        f"rows; use -{n} to {n - 1}"
    )


def _first(array: Array, batch: object, n: int) -> Range:
    """Returns the first k rows."""
    if array.dtype == np.bool_:
        raise BatchError(
            f"batch is {batch!r}; {_ACCEPTED}. Leave batch out, or pass None, for all rows."
        )
    try:
        k = operator.index(cast("Any", batch))
    except TypeError as error:
        raise BatchError(
            f"batch is {batch!r}, of type {type(batch).__name__}; {_ACCEPTED}"
        ) from error
    if k == 0:
        _refuse_empty("batch=0")
    if k < 0:
        raise BatchError(
            f"batch={shown(k)} asks for a negative number; use 1 to {n}, or slice({shown(k)}, "
            f"None) for the last {shown(-k)}"
        )
    if k > n:
        raise BatchError(
            f"batch={shown(k)} asks for the first {shown(k)} rows, but there are {n}; use 1 to {n}"
        )
    return Range(0, 1, k)


def _from_slice(batch: slice, n: int) -> Range:
    try:
        selected = range(n)[batch]
    except (TypeError, ValueError) as error:
        raise BatchError(f"batch={batch!r} is not a slice of rows: {error}") from error
    if not selected:
        _refuse_empty(f"{batch!r} of {n} rows")
    return Range(selected.start, selected.step, len(selected))


def _from_range(batch: range, n: int) -> Rows:
    """Returns the rows of a Python range of indices; `Listed` only if it crosses zero."""
    if not batch:
        _refuse_empty(repr(batch))
    exists = range(-n, n)
    if batch[0] not in exists:
        _refuse_index(batch[0], 0, n)
    if batch[-1] not in exists:
        end = n
        if batch.step < 0:
            end = -n - 1
        position = len(range(batch.start, end, batch.step))
        _refuse_index(batch[position], position, n)
    if (batch[0] < 0) != (batch[-1] < 0):
        return _from_list(np.array(batch, dtype=np.int64), batch, n)
    return Range(batch[0] % n, batch.step, len(batch))


def _from_mask(mask: Array, n: int) -> Listed:
    if len(mask) != n:
        raise BatchError(
            f"batch is a boolean mask of length {len(mask)}, but there are {n} rows; a "
            f"mask needs one entry per row"
        )
    indices = np.flatnonzero(mask).astype(np.int64, copy=False)
    if not len(indices):
        _refuse_empty("a boolean mask without a True")
    return Listed(indices)


def _from_list(array: Array, batch: object, n: int) -> Listed:
    if not len(array):
        _refuse_empty("an empty list")
    if array.dtype.kind not in "iu":
        if isinstance(batch, list | tuple) and all(isinstance(index, int) for index in batch):
            # Python integers beyond 64 bits, which are out of range, have made an array of another
            # dtype.
            for position, index in enumerate(batch):
                if not -n <= index < n:
                    _refuse_index(index, position, n)
        raise BatchError(
            f"batch is a {array.dtype} array; {_ACCEPTED}. Convert row numbers, as by "
            "np.asarray(rows).astype(int)"
        )
    low, high = int(array.min()), int(array.max())
    if low < -n or high >= n:
        position = int(np.argmax((array < -n) | (array >= n)))
        _refuse_index(int(array[position]), position, n)
    indices = np.ascontiguousarray(array, dtype=np.int64)
    if low < 0:
        indices = np.where(indices < 0, indices + n, indices)
    return Listed(indices)
