"""Which rows whose: what a `batch` selects, and how rows are cut into shards and slices.

There is one rule for cutting, used for shards and for the slices inside a shard, in calls and in `scatter` alike: of n rows in
W parts, part r is the rows from r·n // W up to (r+1)·n // W. Only a `Partition` knows it. A world has one into its ranks, which
its programs carry; shards and slices are cut by partitions of their own.
"""

import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Never, TypeAlias, cast, final

import numpy as np
from numpy.typing import NDArray

from synknumba._errors import BatchError, PartitionError
from synknumba._types import Array, Batch

_ACCEPTED = "a batch is an int (that many first rows), a slice, a 1-D list or array of integers, or a boolean mask"


@final
@dataclass(frozen=True, slots=True)
class Range:
    """The rows start, start + step, …: count of them, each a row that exists."""

    start: int
    step: int
    count: int

    def between(self, low: int, high: int) -> "Range":
        """Those from one position to another.

        >>> Range(10, -2, 5).between(1, 3)
        Range(start=8, step=-2, count=2)
        """
        return Range(self.start + low * self.step, self.step, high - low)

    def as_slice(self) -> slice:
        """The slice that selects these rows from an array.

        >>> Range(4, -2, 3).as_slice()
        slice(4, None, -2)
        """
        if self.count == 0:
            return slice(0, 0)
        stop = self.start + self.count * self.step
        return slice(self.start, stop if stop >= 0 else None, self.step)  # a stop of -1 would mean the last row

    def indices(self) -> NDArray[np.int64]:
        """The row numbers: int64, shape (count,)."""
        return self.start + self.step * np.arange(self.count, dtype=np.int64)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """Rows in any order, possibly several times.

    Attributes:
        indices: int64, shape (count,), C-contiguous, each a row that exists (none negative).
    """

    indices: NDArray[np.int64]

    @property
    def count(self) -> int:
        """How many rows, repeated ones counted each time."""
        return len(self.indices)

    def between(self, low: int, high: int) -> "Listed":
        """Those from one position to another: a view of the indices."""
        return Listed(self.indices[low:high])


Rows: TypeAlias = Range | Listed


@final
@dataclass(frozen=True, slots=True)
class Partition:
    """Any number of rows in consecutive parts, which together are all rows in order; parts may be empty.

    Of n rows, part r of W is the rows from m[r]·n // m[W] up to m[r+1]·n // m[W], where m are the marks.

    Attributes:
        marks: integers that increase from 0, one more than there are parts; 0, 1, …, W for even parts.
    """

    marks: tuple[int, ...]

    @classmethod
    def even(cls, parts: int) -> "Partition":
        """Parts whose sizes differ by at most one row."""
        return cls(tuple(range(parts + 1)))

    @property
    def parts(self) -> int:
        """Number of parts."""
        return len(self.marks) - 1

    def part(self, n: int, index: int) -> tuple[int, int]:
        """Start and stop of one part of n rows.

        >>> thirds = Partition.even(3)
        >>> thirds.part(5, 0), thirds.part(5, 1), thirds.part(5, 2)
        ((0, 1), (1, 3), (3, 5))
        """
        marks = self.marks
        return marks[index] * n // marks[-1], marks[index + 1] * n // marks[-1]

    def edges(self, n: int) -> tuple[int, ...]:
        """Where each part of n rows starts, and where the last one stops.

        >>> Partition.even(4).edges(10)
        (0, 2, 5, 7, 10)
        """
        total = self.marks[-1]
        return tuple([mark * n // total for mark in self.marks])  # a list takes half the time of a generator

    def counts(self, n: int) -> tuple[int, ...]:
        """Rows of each part of n rows.

        >>> Partition.even(4).counts(10)
        (2, 3, 2, 3)
        """
        total = self.marks[-1]
        edges = [mark * n // total for mark in self.marks]
        return tuple(map(operator.sub, edges[1:], edges))

    def of(self, rows: Rows, index: int) -> Rows:
        """One part of some rows; of a list a view of the indices.

        >>> Partition.even(2).of(Range(10, -2, 5), 1)
        Range(start=6, step=-2, count=3)
        """
        return rows.between(*self.part(rows.count, index))

    def shard_edges(self, n: int, shards: int | None, index: int) -> tuple[int, ...]:
        """Where the shards of one part start, and where the last one stops, of n rows in `shards` even shards.

        The shards themselves are divided by this partition; None for one shard a part.

        >>> Partition.even(2).shard_edges(10, 4, 1), Partition.even(2).shard_edges(10, None, 1)
        ((5, 7, 10), (5, 10))
        """
        if shards is None:
            return self.part(n, index)
        first, after = self.part(shards, index)
        return tuple([shard * n // shards for shard in range(first, after + 1)])


def select(batch: Batch, n: int) -> Rows:
    """The rows that a batch selects from n, in its order, as NumPy's indexing would (but an int k is the first k rows).

    Args:
        batch: None for all rows, k for the first k, a slice, a 1-D list or array of integers (negative ones count from the
            end), or a boolean mask of length n. An int64 array without negative indices is not copied.
        n: rows there are.

    Raises:
        BatchError: no rows are selected, or one that does not exist, or the batch is nothing of the above.

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
    array = _as_array(batch)
    if array.ndim == 0:
        return _first(array, batch, n)
    if array.ndim > 1:
        _refuse(f"batch must be 1-D, got an array of shape {array.shape}; {_ACCEPTED}")
    if array.dtype == np.bool_:
        return _from_mask(array, n)
    return _from_list(array, batch, n)


def minibatch_rows(rows: Rows, length: int, name: str) -> Range:
    """The rows of a minibatch input, which is indexed by position in the batch: row i goes with the i-th row selected.

    Args:
        rows: what the batch selects from the data.
        length: rows that the minibatch input has.
        name: of the argument.

    Raises:
        PartitionError: the input is too short.
    """
    if length < rows.count:
        raise PartitionError(
            f"{name} has {length} rows but the batch selects {rows.count}; a minibatch input needs a row for each row of the "
            f"batch. Give {name} at least {rows.count} rows, or select fewer."
        )
    return Range(0, 1, rows.count)


def common_length(lengths: Mapping[str, int], written: Collection[str] = ()) -> int:
    """The number of rows that all sharded arguments have.

    Args:
        lengths: rows of each sharded argument, by name; at least one.
        written: those whose rows are written back, so that they must be sharded.

    Raises:
        PartitionError: they disagree.
    """
    first, length = next(iter(lengths.items()))
    for name, other in lengths.items():
        if other != length:
            whole = name.partition("[")[0]  # of an array inside a nested argument
            message = f"{name} has {other} rows but {first} has {length}; sharded arguments must agree along axis 0."
            if name not in written:
                message += f' Pass {whole} in broadcast=("{whole}",) if every rank needs all of it.'
            raise PartitionError(message)
    return length


def _refuse(message: str) -> Never:
    raise BatchError(message)


def _refuse_empty(what: str) -> Never:
    _refuse(f"empty batch: {what} selects no rows; a batch needs at least one")


def _refuse_index(index: int, position: int, n: int) -> Never:
    _refuse(f"batch has index {index} at position {position}, which is out of range for {n} rows; use -{n} to {n - 1}")


def _as_array(batch: object) -> Array:
    try:
        return np.asarray(batch)
    except (ValueError, TypeError, OverflowError) as error:
        raise BatchError(f"batch cannot be read as an array ({error}); {_ACCEPTED}") from error


def _first(array: Array, batch: object, n: int) -> Range:
    """The first k rows."""
    if array.dtype == np.bool_:
        _refuse(f"batch is {batch!r}; {_ACCEPTED}. Leave batch out, or pass None, for all rows.")
    try:
        k = operator.index(cast("Any", batch))
    except TypeError:
        _refuse(f"batch is {batch!r}, of type {type(batch).__name__}; {_ACCEPTED}")
    if k == 0:
        _refuse_empty("batch=0")
    if k < 0:
        _refuse(f"batch={k} asks for the first {k} rows; use 1 to {n}, or slice({k}, None) for the last {-k}")
    if k > n:
        _refuse(f"batch={k} asks for the first {k} rows, but there are {n}; use 1 to {n}")
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
    """A range is a list of indices, but needs no memory unless it passes from negative to positive ones."""
    if not batch:
        _refuse_empty(repr(batch))
    exists = range(-n, n)
    if batch[0] not in exists:
        _refuse_index(batch[0], 0, n)
    if batch[-1] not in exists:
        position = len(range(batch.start, n if batch.step > 0 else -n - 1, batch.step))
        _refuse_index(batch[position], position, n)
    if (batch[0] < 0) != (batch[-1] < 0):
        return _from_list(np.array(batch, dtype=np.int64), batch, n)
    return Range(batch[0] % n, batch.step, len(batch))


def _from_mask(mask: Array, n: int) -> Listed:
    if len(mask) != n:
        _refuse(f"batch is a boolean mask of length {len(mask)}, but there are {n} rows; a mask needs one entry a row")
    indices = np.flatnonzero(mask).astype(np.int64, copy=False)
    if not len(indices):
        _refuse_empty("a boolean mask without a True")
    return Listed(indices)


def _from_list(array: Array, batch: object, n: int) -> Listed:
    if not len(array):
        _refuse_empty("an empty list")
    if array.dtype.kind not in "iu":
        _refuse_huge(batch, n)
        _refuse(f"batch is a {array.dtype} array; {_ACCEPTED}")
    low, high = int(array.min()), int(array.max())
    if low < -n or high >= n:
        position = int(np.argmax((array < -n) | (array >= n)))
        _refuse_index(int(array[position]), position, n)
    indices = np.ascontiguousarray(array, dtype=np.int64)
    return Listed(indices if low >= 0 else np.where(indices < 0, indices + n, indices))


def _refuse_huge(batch: object, n: int) -> None:
    """Python integers beyond 64 bits do not make an integer array, but the index is what is wrong with them."""
    if isinstance(batch, (list, tuple)) and all(isinstance(index, int) for index in batch):
        for position, index in enumerate(batch):
            if not -n <= index < n:
                _refuse_index(index, position, n)
