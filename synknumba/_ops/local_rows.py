"""Row selection of sliceable variables: the rows of its own array that `local_batch` selects on
each rank (pure).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from synknumba._errors import BatchError
from synknumba._ops.rows import Listed, Range, Rows, select
from synknumba._types import Array

_ACCEPTED = (
    "a local_batch is one selection for all ranks (an int, a slice, or a list of row numbers), or "
    "a list with one selection for each rank"
)

_SELECTIONS = (slice, range, list, tuple, np.ndarray, type(None))  # what selects rows of a rank


@final
@dataclass(frozen=True, slots=True)
class OwnRows:
    """The rows that each rank selects from its own arrays."""

    rows: tuple[Rows, ...]  # by rank
    whole: bool  # whether every rank selects all its rows

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of rows selected, by rank."""
        return tuple(rows.count for rows in self.rows)

    @property
    def ranges(self) -> "tuple[Range, ...] | None":
        """The selections, if all of them are ranges; None otherwise."""
        ranges = tuple(rows for rows in self.rows if isinstance(rows, Range))
        if len(ranges) < len(self.rows):
            return None
        return ranges

    def indices(self) -> Array:
        """Returns the row numbers of all ranks, concatenated in rank order; int64."""
        return np.concatenate([rows.indices for rows in self.rows])


def select_own(local_batch: Any, lengths: Sequence[int]) -> OwnRows:
    """Selects rows on each rank, given the number of rows of each.

    A local_batch is None for all rows; an int (the first rows), a slice or a list of row numbers,
    for all ranks; or a list or 2-D array with one such selection, or None, for each rank. Raises
    BatchError if a row does not exist on its rank, the list does not have one entry per rank, or no
    rank gets a row.

    >>> [rows.indices.tolist() for rows in select_own([slice(0, 2), slice(3, 6)], [6, 6]).rows]
    [[0, 1], [3, 4, 5]]
    """
    if local_batch is None:
        return OwnRows(tuple(Range(0, 1, length) for length in lengths), whole=True)
    if not _is_per_rank(local_batch):
        local_batch = [local_batch] * len(lengths)
    elif len(local_batch) != len(lengths):
        raise BatchError(
            f"local_batch lists {len(local_batch)} selections for {len(lengths)} ranks; {_ACCEPTED}"
        )
    rows = tuple(map(_select, range(len(lengths)), local_batch, lengths))
    if not any(selected.count for selected in rows):
        raise BatchError(
            f"empty local_batch: it selects no rows on any rank, which have "
            f"{', '.join(map(str, lengths))}"
        )
    return OwnRows(rows, whole=False)


def _is_per_rank(local_batch: Any) -> bool:
    """Returns whether `local_batch` is a list of selections rather than one selection."""
    if isinstance(local_batch, np.ndarray):
        return local_batch.ndim == 2
    if not isinstance(local_batch, list | tuple):
        return False
    return any(isinstance(selection, _SELECTIONS) for selection in local_batch)


def _select(rank: int, selection: Any, length: int) -> Rows:
    """Returns the rows of one rank; may be empty."""
    if isinstance(selection, slice):
        try:
            rows = range(*selection.indices(length))
        except (TypeError, ValueError) as error:
            raise BatchError(
                f"local_batch on rank {rank}: {selection!r} is not a slice of rows: {error}"
            ) from error
        if not rows:
            return Range(0, 1, 0)
        return Range(rows.start, rows.step, len(rows))
    is_list = isinstance(selection, list | tuple | range | np.ndarray)
    if is_list and np.size(np.asarray(selection)) == 0:
        return Listed(np.empty(0, np.int64))
    if length == 0:
        if selection is None:
            return Range(0, 1, 0)
        raise BatchError(
            f"local_batch on rank {rank}, which has no rows: {selection!r} selects some; give "
            f"[] or None for that rank"
        )
    try:
        return select(selection, length)
    except BatchError as error:
        raise BatchError(f"local_batch on rank {rank}, which has {length} rows: {error}") from None
