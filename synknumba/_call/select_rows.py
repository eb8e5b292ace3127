"""The rows of one call: those that `batch` and `local_batch` select, and their encoding for the
ranks.
"""

from typing import Any, final

import numpy as np

from synknumba._call.call import Call, leaves_of
from synknumba._errors import ArgumentError, BatchError, PartitionError
from synknumba._host.segment import Segment
from synknumba._ops import rows as rows_module
from synknumba._ops.local_rows import OwnRows, select_own
from synknumba._ops.rows import Listed, Range, Rows
from synknumba._tracing import Line
from synknumba._types import Array, RankConstant
from synknumba._wire.program import (
    Filled,
    FunctionStyle,
    HostArray,
    OwnSource,
    Param,
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

    def select(self, call: Call) -> None:
        """Selects, checks and encodes the rows of a call whose arguments are bound."""
        local_batch = call.options.local_batch
        rows = call.rows = self._select_sharded(call)
        own = call.own = self._select_own(call, local_batch)
        if own is not None and rows is not None and self._style == "kernel":
            self._check_agreement(call, rows, own)
        if own is not None and rows is None and local_batch is not None and call.contiguous:
            raise BatchError(
                f"{self._name}: synk.OFFSET is a global row index, which rows of "
                f"a local_batch do not have"
            )
        if call.options.shards is not None:
            self._check_shards(call)
        _check_writable(call)
        self._encode(call)

    def _select_sharded(self, call: Call) -> Rows | None:
        lengths, batch = call.lengths or call.minibatches or call.empties, call.options.batch
        if not lengths:
            if batch is not None:
                other = (
                    "; local_batch selects rows of sliceable variables" if call.own_lengths else ""
                )
                raise BatchError(
                    f"{self._name} got batch={batch!r}, but none of its arguments is sharded, so "
                    f"there are no rows to select{other}"
                )
            return None
        agree = len({*lengths.values()}) == 1
        if isinstance(batch, Line):
            batch = batch.data.data[0]  # of the others, the number of rows is the same
        rows = rows_module.select(
            batch, rows_module.common_length(lengths, () if agree else call.written()[0])
        )
        for name, available in call.minibatches.items():
            rows_module.minibatch_rows(rows, available, name)
        in_one_piece = isinstance(rows, Range) and (rows.step == 1 or rows.count == 0)
        if call.contiguous and not in_one_piece:
            raise BatchError(
                "batch must select consecutive rows (an int, or a slice with step 1) because "
                f"{call.contiguous[0]} is an index range or synk.OFFSET; to select other rows, "
                f"pass the indices as an array"
            )
        return rows

    def _select_own(self, call: Call, local_batch: Any) -> OwnRows | None:
        if not call.own_lengths:
            if local_batch is not None:
                raise ArgumentError(
                    f"{self._name} got local_batch, which selects rows of sliceable variables, but "
                    "it has none; name them in sliceable=(…)"
                )
            return None
        first, lengths = next(iter(call.own_lengths.items()))
        for name, other in call.own_lengths.items():
            for rank, (mine, theirs) in enumerate(zip(lengths, other, strict=True)):
                if mine != theirs:
                    raise PartitionError(
                        f"{name} has {theirs} rows on rank {rank} but {first} has {mine}; "
                        f"sliceable variables must agree"
                    )
        return select_own(local_batch, lengths[:1] if call.options.solo else lengths)

    def _check_agreement(self, call: Call, rows: Rows, own: OwnRows) -> None:
        """Raises `PartitionError` if a rank has unequal numbers of sharded and sliceable rows: a
        launch has one number.
        """
        sliceable = next(iter(call.own_lengths))
        for rank, (count, expected) in enumerate(
            zip(own.counts, call.run_partition.counts(rows.count), strict=True)
        ):
            if expected != count:
                raise PartitionError(
                    f"{self._name}: rank {rank} gets {expected} rows of the sharded arguments but "
                    f"{count} of {sliceable}; a kernel needs equally many. Scatter them alike, or "
                    "select with batch and local_batch."
                )

    def _check_shards(self, call: Call) -> None:
        """Raises `ArgumentError` if there are no rows to cut into shards, or an argument depends
        on the world size.
        """
        if call.own is not None:
            what = (
                f"{next(iter(call.own_lengths))} is a sliceable variable, whose rows are "
                f"already divided over the ranks"
            )
        elif call.rows is None:
            what = "none of its arguments is sharded, so there are no rows to cut into shards"
        elif not (
            what := next(filter(None, (_varies(*param) for param in call.parameters.items())), "")
        ):
            return
        raise ArgumentError(
            f"{self._name} got shards=…, whose results do not depend on the number of ranks, but "
            f"{what}; leave shards out"
        )

    def _encode(self, call: Call) -> None:
        """Encodes the selection for the ranks."""
        rows, own = call.rows, call.own
        if isinstance(call.options.batch, Line):
            lines = call.options.batch.data
            segment = lines._segment  # noqa: SLF001  # shared with this package
            call.source = RowSource(
                "line",
                0,
                HostArray(segment.id, lines.dtype, lines.shape, lines._offset),  # noqa: SLF001
            )
            call.row_values = (call.options.batch.number,)
            call.segments.append(segment)
        elif isinstance(rows, Range):
            every = call.options.batch is None
            call.source = RowSource("all", rows.count) if every else RowSource("range")
            call.row_values = () if every else (rows.start, rows.step, rows.count)
        elif rows is not None:
            call.source = RowSource("list", 0, self._list(call, "sharded", rows.indices))
            call.row_values = (rows.count,)
        call.key.append(call.source.kind)
        if own is None:
            return
        lengths = own.counts
        if own.whole:
            call.own_source = OwnSource("all", lengths)
        elif own.ranges is not None:
            call.own_source = OwnSource("range", (0,) * len(lengths))
            call.row_values += tuple(
                value for one in own.ranges for value in (one.start, one.step, one.count)
            )
        else:
            call.own_source = OwnSource(
                "list", (0,) * len(lengths), self._list(call, "own", own.indices())
            )
            call.row_values += lengths
        call.key.append(call.own_source.kind)

    def _list(self, call: Call, kind: str, indices: Array) -> HostArray:
        """Writes row numbers to shared memory, which grows if necessary, and makes them part of
        the call; of one that is only planned, nothing is written.
        """
        if call.world is None:
            return HostArray(-1, np.dtype(np.int64), indices.shape)
        segment = self._indices.get(kind)
        if segment is None:
            segment = self._indices[kind] = Segment(indices.nbytes)
        elif segment.size < indices.nbytes:
            segment.grow(indices.nbytes)
        segment.array(np.int64, indices.shape)[:] = indices
        call.segments.append(segment)
        call.key += (segment.id, segment.generation)
        return HostArray(segment.id, np.dtype(np.int64), (segment.size // 8,))


def _check_writable(call: Call) -> None:
    """Raises `BatchError` if a written row is listed twice: which rank's or slice's value
    remains is undefined.
    """
    written, own_written = call.written()
    if (
        written
        and isinstance(call.rows, Listed)
        and len(np.unique(call.rows.indices)) != call.rows.count
    ):
        raise BatchError(
            f"batch lists a row twice, and {written[0]} is in inout=, so its rows are "
            f"written; list each row once"
        )
    for rank, rows in enumerate(call.own.rows if call.own is not None and own_written else ()):
        if isinstance(rows, Listed) and len(np.unique(rows.indices)) != rows.count:
            raise BatchError(
                f"local_batch lists a row twice on rank {rank}, and {own_written[0]} is in inout=, "
                "so its rows are written; list each row once"
            )


def _varies(name: str, param: Param) -> str | None:
    """Returns how a parameter depends on the number of ranks, for messages; None if it does not."""
    for leaf in leaves_of(param):
        match leaf:
            case Filled(RankConstant.RANK | RankConstant.WORLD_SIZE as constant):
                return f"{name} is {constant!r}"
            case PerRank():
                return f"{name} has one value per rank"
            case Update(shapes=shapes) if len(set(shapes)) > 1:
                return f"{name} updates a variable whose shape differs between ranks"
    return None
