"""The rows of one call: those that `batch` and `local_batch` select, and their encoding for the
ranks.
"""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from synknumba._call.call import Arguments, SelectedRows
from synknumba._call.options import CallOptions
from synknumba._call.row_numbers import first_wrong
from synknumba._errors import ArgumentError, BatchError, PartitionError
from synknumba._host.data import segment_of
from synknumba._host.segment import Segment
from synknumba._ops import rows as rows_module
from synknumba._ops.local_rows import OwnRows, select_own
from synknumba._ops.rows import Listed, Partition, Range, Rows
from synknumba._tracing import Line
from synknumba._types import Array, CallValues, RankConstant
from synknumba._wire.program import (
    Filled,
    FunctionStyle,
    HostArray,
    OwnSource,
    PerRank,
    RowSource,
    Update,
)


@final
class RowSelector:
    """Selects the rows of one function's calls. Owns the shared memory for lists of row numbers."""

    def __init__(self, name: str, style: FunctionStyle) -> None:
        self._name = name
        self._style = style
        self._indices: dict[str, Segment] = {}

    def select(
        self, arguments: Arguments, options: CallOptions, partition: Partition, *, places: bool
    ) -> SelectedRows:
        """Selects, checks and encodes the rows of a call; `places` if row numbers are written to
        shared memory.
        """
        rows = self._select_sharded(arguments, options.batch)
        local = self._select_local(arguments, options)
        if local is not None and rows is not None and self._style == "kernel":
            self._check_agreement(arguments, rows, local, options.run_partition(partition))
        if rows is None and options.local_batch is not None and arguments.lengths.contiguous:
            raise BatchError(
                f"{self._name}: synk.OFFSET is a global row index, which rows of "
                f"a local_batch do not have"
            )
        if options.shards is not None:
            self._check_shards(arguments, rows, local)
        _check_writable(arguments, rows, local)
        encoder = _Encoder(self._indices if places else None)
        local_source = None
        source = encoder.sharded(rows, options.batch)
        if local is not None:
            local_source = encoder.local(local)
        return SelectedRows(
            rows,
            local,
            source,
            local_source,
            encoder.values,
            tuple(encoder.segments),
            tuple(encoder.key),
        )

    def _select_sharded(self, arguments: Arguments, batch: Any) -> Rows | None:
        lengths = arguments.lengths
        if not lengths.divided:
            if batch is None:
                return None
            hint = ""
            if lengths.sliceable:
                hint = "; local_batch selects rows of sliceable variables"
            raise BatchError(
                f"{self._name} got batch={batch!r}, but none of its arguments is sharded, so "
                f"there are no rows to select{hint}"
            )
        if isinstance(batch, Line):
            batch = batch.data.data[0]  # of the others, the number of rows is the same
        written: Sequence[str] = ()
        if len(set(lengths.divided.values())) > 1:
            written, _ = arguments.written()
        rows = rows_module.select(batch, rows_module.common_length(lengths.divided, written))
        for name, available in lengths.minibatches.items():
            rows_module.minibatch_rows(rows, available, name)
        if lengths.contiguous and not _are_consecutive(rows):
            raise BatchError(
                "batch must select consecutive rows (an int, or a slice with step 1) because "
                f"{lengths.contiguous[0]} is an index range or synk.OFFSET; to select other rows, "
                f"pass the indices as an array"
            )
        return rows

    def _select_local(self, arguments: Arguments, options: CallOptions) -> OwnRows | None:
        sliceable = arguments.lengths.sliceable
        if not sliceable:
            if options.local_batch is not None:
                raise ArgumentError(
                    f"{self._name} got local_batch, which selects rows of sliceable variables, but "
                    "it has none; name them in rows=(…)"
                )
            return None
        first, lengths = next(iter(sliceable.items()))
        for name, counts in sliceable.items():
            for rank, (expected, count) in enumerate(zip(lengths, counts, strict=True)):
                if count != expected:
                    raise PartitionError(
                        f"{name} has {count} rows on rank {rank} but {first} has {expected}; "
                        f"sliceable variables must agree"
                    )
        if options.solo:
            lengths = lengths[:1]
        return select_own(options.local_batch, lengths)

    def _check_agreement(
        self, arguments: Arguments, rows: Rows, local: OwnRows, partition: Partition
    ) -> None:
        """Raises `PartitionError` if a rank has unequal numbers of sharded and sliceable rows: a
        launch has one number.
        """
        sliceable = next(iter(arguments.lengths.sliceable))
        divided = partition.counts(rows.count)
        for rank, (count, expected) in enumerate(zip(local.counts, divided, strict=True)):
            if expected != count:
                raise PartitionError(
                    f"{self._name}: rank {rank} gets {expected} rows of the sharded arguments but "
                    f"{count} of {sliceable}; a kernel needs equally many. Scatter them alike, or "
                    "select with batch and local_batch."
                )

    def _check_shards(self, arguments: Arguments, rows: Rows | None, local: OwnRows | None) -> None:
        """Raises `ArgumentError` if there are no rows to cut into shards, or an argument depends
        on the world size.
        """
        problem: str | None
        if local is not None:
            problem = (
                f"{next(iter(arguments.lengths.sliceable))} is a sliceable variable, whose rows "
                "are already divided over the ranks"
            )
        elif rows is None:
            problem = "none of its arguments is sharded, so there are no rows to cut into shards"
        else:
            problem = _varying(arguments)
        if problem is not None:
            raise ArgumentError(
                f"{self._name} got shards=…, whose results do not depend on the number of ranks, "
                f"but {problem}; leave shards out"
            )


@final
class _Encoder:
    """Encodes the rows of one call for the ranks.

    Args:
        memory: memory of row numbers, by use; None for a call that is only planned.

    Attributes:
        values: what of the encodings is sent with each call.
        segments: memory of row numbers that the ranks read.
        key: kinds of the encodings, and what identifies this memory.
    """

    def __init__(self, memory: dict[str, Segment] | None) -> None:
        self._memory = memory
        self.values: CallValues = ()
        self.segments: list[Segment] = []
        self.key: list[Any] = []

    def sharded(self, rows: Rows | None, batch: Any) -> RowSource:
        source = RowSource("none")
        if isinstance(batch, Line):
            lines = batch.data
            segment = segment_of(lines)
            array = HostArray(segment.id, lines.dtype, lines.shape, lines._offset)  # noqa: SLF001
            source = RowSource("line", 0, array)
            self.values = (batch.number,)
            self.segments.append(segment)
        elif isinstance(rows, Range):
            if batch is None:
                source = RowSource("all", rows.count)
            else:
                source = RowSource("range")
                self.values = (rows.start, rows.step, rows.count)
        elif rows is not None:
            source = RowSource("list", 0, self._list("sharded", rows.indices))
            self.values = (rows.count,)
        self.key.append(source.kind)
        return source

    def local(self, local: OwnRows) -> OwnSource:
        lengths, ranges = local.counts, local.ranges
        unknown = (0,) * len(lengths)
        if local.whole:
            source = OwnSource("all", lengths)
        elif ranges is not None:
            source = OwnSource("range", unknown)
            for rows in ranges:
                self.values += (rows.start, rows.step, rows.count)
        else:
            source = OwnSource("list", unknown, self._list("local", local.indices()))
            self.values += lengths
        self.key.append(source.kind)
        return source

    def _list(self, use: str, indices: Array) -> HostArray:
        """Writes row numbers to shared memory, which grows if necessary."""
        dtype = np.dtype(np.int64)
        if self._memory is None:
            return HostArray(-1, dtype, indices.shape)
        segment = self._memory.get(use)
        if segment is None:
            segment = self._memory[use] = Segment(indices.nbytes)
        elif segment.size < indices.nbytes:
            segment.grow(indices.nbytes)
        segment.array(dtype, indices.shape)[:] = indices
        self.segments.append(segment)
        self.key += (segment.id, segment.generation)
        return HostArray(segment.id, dtype, (segment.size // dtype.itemsize,))


def _check_writable(arguments: Arguments, rows: Rows | None, local: OwnRows | None) -> None:
    """Raises `BatchError` if a written row is listed twice: which rank's or slice's value
    remains is undefined.
    """
    by_rank: Sequence[Rows] = ()
    if local is not None:
        by_rank = local.rows
    if not any(isinstance(selected, Listed) for selected in (rows, *by_rank)):
        return
    sharded, sliceable = arguments.written()
    if sharded and _repeats(rows):
        raise BatchError(
            f"batch lists a row twice, and {sharded[0]} is in inout=, so its rows are "
            f"written; list each row once"
        )
    for rank, selected in enumerate(by_rank):
        if sliceable and _repeats(selected):
            raise BatchError(
                f"local_batch lists a row twice on rank {rank}, and {sliceable[0]} is in inout=, "
                "so its rows are written; list each row once"
            )


def _are_consecutive(rows: Rows) -> bool:
    return isinstance(rows, Range) and (rows.step == 1 or rows.count == 0)


def _repeats(rows: Rows | None) -> bool:
    if not isinstance(rows, Listed):
        return False
    after_last = rows.indices.max(initial=-1) + 1
    return first_wrong(rows.indices[np.newaxis], after_last, once=True) >= 0


def _varying(arguments: Arguments) -> str | None:
    """Returns how an argument depends on the number of ranks, for messages; None if none does."""
    for name, leaf in arguments.leaves():
        match leaf:
            case Filled(RankConstant.RANK | RankConstant.WORLD_SIZE as constant):
                return f"{name} is {constant!r}"
            case PerRank():
                return f"{name} has one value per rank"
            case Update(shapes=shapes) if len(set(shapes)) > 1:
                return f"{name} updates a variable whose shape differs between ranks"
    return None
