"""The rows of one call: those that `batch` and `local_batch` select, and their encoding for the ranks."""

from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from synknumba._call.bound_arguments import Bound, leaves_of
from synknumba._call.collect import Count, total_rows
from synknumba._errors import ArgumentError, BatchError, PartitionError
from synknumba._host.segment import Segment
from synknumba._ops.local_rows import OwnRows, select_own
from synknumba._ops.rows import Listed, Range, Rows
from synknumba._types import Array, Batch, RankConstant
from synknumba._wire.program import Filled, FunctionStyle, HostArray, OwnSource, Param, PerRank, RowSource, Update


@dataclass(slots=True)
class CallRows:
    """The rows of one call.

    Attributes:
        rows: rows of the sharded arguments that `batch` selects; None if nothing is sharded.
        own: rows of the sliceable variables that `local_batch` selects; None if there are none.
        source: encoding of `rows` for the ranks.
        own_source: encoding of `own` for the ranks.
        values: those parts of the encodings that are sent with each call.
        key: part of the plan key.
        segments: segments with row numbers, which the ranks must have mapped.
    """

    rows: Rows | None
    own: OwnRows | None
    source: RowSource = field(default_factory=lambda: RowSource("none"))
    own_source: OwnSource | None = None
    values: tuple[int, ...] = ()
    key: tuple[Any, ...] = ()
    segments: list[Segment] = field(default_factory=list)

    @property
    def count(self) -> Count:
        """Number of rows; by rank if they are the ranks' own; None if the call has no rows."""
        if self.rows is not None:
            return self.rows.count
        return None if self.own is None else self.own.counts

    @property
    def total(self) -> int | None:
        """Number of rows on all ranks; None if the call has no rows."""
        return total_rows(self.count)

    @property
    def exact(self) -> bool:
        """Whether the number of rows is part of the plan, rather than sent with each call."""
        return self.source.kind in ("all", "none") and (self.own_source is None or self.own_source.kind == "all")


@final
class RowSelector:
    """Selects the rows of one function's calls. Owns the shared memory for lists of row numbers."""

    def __init__(self, name: str, style: FunctionStyle) -> None:
        self._name = name
        self._style = style
        self._indices: Segment | None = None
        self._own_indices: Segment | None = None

    def select(self, bound: Bound, batch: Batch, local_batch: Any) -> CallRows:
        """Returns the rows of a call, checked but not yet encoded.

        Args:
            bound: arguments of the call.
            batch: batch of the call.
            local_batch: local batch of the call.

        Raises:
            BatchError: a selection is invalid, or selects rows that have no index although an argument needs it.
            PartitionError: numbers of rows disagree.
            ArgumentError: `local_batch` is given without sliceable variables.
        """
        rows = bound.select(self._name, batch)
        own = self._select_own(bound, local_batch)
        if own is not None and rows is not None and self._style == "kernel":
            self._check_agreement(bound, rows, own)
        if own is not None and rows is None and local_batch is not None and bound.contiguous:
            raise BatchError(f"{self._name}: synk.OFFSET is a global row index, which rows of a local_batch do not have")
        return CallRows(rows, own)

    def _select_own(self, bound: Bound, local_batch: Any) -> OwnRows | None:
        if not bound.own_lengths:
            if local_batch is not None:
                raise ArgumentError(
                    f"{self._name} got local_batch, which selects rows of sliceable variables, but it has none; name them in "
                    f"sliceable=(…)"
                )
            return None
        first, lengths = next(iter(bound.own_lengths.items()))
        for name, other in bound.own_lengths.items():
            for rank, (mine, theirs) in enumerate(zip(lengths, other, strict=True)):
                if mine != theirs:
                    raise PartitionError(
                        f"{name} has {theirs} rows on rank {rank} but {first} has {mine}; sliceable variables must agree"
                    )
        return select_own(local_batch, lengths[:1] if bound.solo else lengths)

    def _check_agreement(self, bound: Bound, rows: Rows, own: OwnRows) -> None:
        """Raises `PartitionError` if a rank has unequal numbers of sharded and sliceable rows: a launch has one number."""
        sliceable = next(iter(bound.own_lengths))
        for rank, (count, expected) in enumerate(zip(own.counts, bound.run_partition.counts(rows.count), strict=True)):
            if expected != count:
                raise PartitionError(
                    f"{self._name}: rank {rank} gets {expected} rows of the sharded arguments but {count} of {sliceable}; "
                    "a kernel needs equally many. Scatter them alike, or select with batch and local_batch."
                )

    def tell(self, call: CallRows, batch: Batch) -> None:
        """Encodes the selection for the ranks, in place."""
        self._tell_rows(call, batch)
        self._tell_own(call)

    def _tell_rows(self, call: CallRows, batch: Batch) -> None:
        rows = call.rows
        if rows is None:
            call.key = ("none",)
        elif isinstance(rows, Range):
            call.source = RowSource("all", rows.count) if batch is None else RowSource("range")
            call.values = () if batch is None else (rows.start, rows.step, rows.count)
            call.key = (call.source.kind,)
        else:
            self._indices = _filled(self._indices, rows.indices)
            call.segments.append(self._indices)
            call.source = RowSource("list", 0, _numbers(self._indices))
            call.values = (rows.count,)
            call.key = ("list", self._indices.id, self._indices.generation)

    def _tell_own(self, call: CallRows) -> None:
        own = call.own
        if own is None:
            return
        lengths = own.counts
        if own.whole:
            call.own_source = OwnSource("all", lengths)
            call.key += ("all",)
        elif own.ranges is not None:
            call.own_source = OwnSource("range", (0,) * len(lengths))
            call.values += tuple(value for one in own.ranges for value in (one.start, one.step, one.count))
            call.key += ("range",)
        else:
            self._own_indices = _filled(self._own_indices, own.indices())
            call.segments.append(self._own_indices)
            call.own_source = OwnSource("list", (0,) * len(lengths), _numbers(self._own_indices))
            call.values += lengths
            call.key += ("list", self._own_indices.id, self._own_indices.generation)


def _filled(segment: Segment | None, indices: Array) -> Segment:
    """Returns shared memory that contains row numbers; the segment grows if necessary."""
    if segment is None:
        segment = Segment(indices.nbytes)
    elif segment.size < indices.nbytes:
        segment.grow(indices.nbytes)
    segment.array(np.int64, indices.shape)[:] = indices
    return segment


def _numbers(segment: Segment) -> HostArray:
    return HostArray(segment.id, np.dtype(np.int64), (segment.size // 8,))


def check_writable_rows(call: CallRows, written: list[str], own_written: list[str]) -> None:
    """Raises `BatchError` if a written row is listed twice: which rank's or slice's value remains is undefined."""
    if written and isinstance(call.rows, Listed) and len(np.unique(call.rows.indices)) != call.rows.count:
        raise BatchError(f"batch lists a row twice, and {written[0]} is in inout=, so its rows are written; list each row once")
    for rank, rows in enumerate(call.own.rows if call.own is not None and own_written else ()):
        if isinstance(rows, Listed) and len(np.unique(rows.indices)) != rows.count:
            raise BatchError(
                f"local_batch lists a row twice on rank {rank}, and {own_written[0]} is in inout=, so its rows are written; "
                f"list each row once"
            )


def check_shards(name: str, bound: Bound, call: CallRows) -> None:
    """Raises `ArgumentError` if `shards` is given and there are no rows, or an argument depends on the world size."""
    if call.own is not None:
        what = f"{next(iter(bound.own_lengths))} is a sliceable variable, whose rows are already divided over the ranks"
    elif call.rows is None:
        what = "none of its arguments is sharded, so there are no rows to cut into shards"
    else:
        found = [text for param in bound.parameters.items() for text in [_varies(*param)] if text is not None]
        if not found:
            return
        what = found[0]
    raise ArgumentError(
        f"{name} got shards=…, whose results do not depend on the number of ranks, but {what}; leave shards out"
    )


def _varies(name: str, param: Param) -> str | None:
    """Returns how a parameter depends on the number of ranks, for messages; None if it does not."""
    for leaf in leaves_of(param):
        match leaf:
            case Filled(RankConstant.RANK | RankConstant.WORLD_SIZE as constant):
                return f"{name} is {constant!r}"
            case PerRank():
                return f"{name} has one value per rank"
            case Update():
                return f"{name} updates each rank's own variable"
    return None
