"""Outputs of kernels, and updates of variables, on a rank: where the results of slices go.

    target ← identity ── slice 1: write, fold ── slice 2: write, fold ── … ── divide a mean, store the target

A target is one of three:

    the rank's part     of the result, for the coordinator, or on the device for a `Combination`
    a line per shard    of an array in which shards are kept apart until the coordinator combines them
    a variable          or memory that is copied to it at the end: every slice sees the old value

A slice writes the target itself if nothing else does; otherwise it writes memory that starts at the op's
identity, and is then folded into the target. Without rows, the target keeps the identity, so a reduction
over the ranks gives the same as one rank with all rows.
"""  # noqa: E501

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from synknumba._device import Step, Workspace
from synknumba._ops import reduction
from synknumba._rank.routine import Moves, OutputSteps, Place, Routine, SliceRows, Slices
from synknumba._types import Array, Op, Shape
from synknumba._wire.program import Held, HeldRows, HostArray, Param, Result, Tree, Update


@dataclass(frozen=True, slots=True)
class Written:
    """What a slice writes.

    Attributes:
        filled: whether it starts at the op's identity. If not, slices write different elements.
    """

    slot: object
    op: Op
    dtype: np.dtype[Any]
    shape: Shape
    filled: bool = True

    def memory(self, routine: Routine, shape: Shape, moves: Moves) -> Any:
        """Returns memory for one slice; adds its fill to the moves."""
        array = routine.workspace.scratch((self.slot, "slice"), self.dtype, shape)
        self.fill(routine, array, moves)
        return array

    def fill(self, routine: Routine, array: Any, moves: Moves) -> None:
        """Adds the fill of an array to the moves, if the output is filled."""
        if self.filled:
            identity = reduction.identity(self.op, self.dtype)
            moves.before.append(routine.place.device.fill(array, identity))


@dataclass(frozen=True, slots=True)
class Target:
    """Where the slices of an output are combined.

    Attributes:
        array: its memory on the device, in the dtype of the result.
        is_direct: whether slices write it themselves.
        stores: steps that bring it to where it is read.
        by_shard: whether it has a line for each shard, which stays the identity without rows.
        is_private: whether nothing else writes it, as for `Device.fill`.
    """

    array: Any
    is_direct: bool
    stores: Sequence[Step] = ()
    by_shard: bool = False
    is_private: bool = False

    def line(self, shard: int) -> Any:
        """Returns the array that the slices of a shard are combined in."""
        return self.array[shard, ...] if self.by_shard else self.array


def total(workspace: Workspace, name: str, dtype: Any, shape: Shape) -> Any:
    """Returns the array of an output that stays on the device; always the same memory."""
    return workspace.scratch((name, "total"), dtype, shape)


def result_output(routine: Routine, param: Result, slices: Slices) -> OutputSteps:
    """Returns the steps of one output of a kernel."""
    dtype = np.dtype(param.dtype)
    written = Written(param.name, param.op, dtype, param.shape, param.filled)
    if param.op == "gather":
        host = None if param.parts is None else routine.place.host(param.parts)
        return _Gathered(routine, written, host)
    if param.op in reduction.LOCATING:
        return _Located(routine, written, param)
    # a number has shape (1,), which a kernel can index
    written = Written(param.name, param.op, dtype, param.shape or (1,), param.filled)
    return _Folded(routine, written, _result_target(routine, written, param, slices), slices)


def variable_updates(routine: Routine, slices: Slices) -> dict[object, OutputSteps]:
    """Returns the steps of all updates of variables in a program, by slot."""
    updates: dict[object, OutputSteps] = {}
    for name, top in routine.program.parameters:
        for slot, param in _slots(name, top):
            if isinstance(param, Update):
                variable = routine.held(param.variable, param.leaf)
                written = Written(slot, param.op, np.dtype(param.dtype), variable.shape)
                target = _update_target(routine, written, param, variable, slices)
                updates[slot] = _Folded(routine, written, target, slices)
    return updates


def _slots(name: str, param: Param) -> Iterator[tuple[object, Param]]:
    """Yields a parameter or its leaves, with the slots of `Routine.argument`."""
    if isinstance(param, Tree):
        yield from (((name, i), leaf) for i, leaf in enumerate(param.leaves))
    else:
        yield name, param


def _result_target(
    routine: Routine, written: Written, param: Result, slices: Slices
) -> Target | None:
    """Returns where an output is combined; None if it was not requested."""
    if param.parts is None:
        return None
    if routine.program.shards is not None:
        return _shard_target(routine, written, param.parts)
    dtype, shape = reduction.result_dtype(param.op, written.dtype), written.shape
    is_direct = not written.filled or (len(slices) == 1 and dtype == written.dtype)
    if param.stays:
        return Target(total(routine.workspace, param.name, dtype, shape), is_direct)
    part = _part(routine.place, param, param.parts).reshape(shape)
    slot = None if param.is_small else (param.name, "total")
    array, stores = _host_output(routine, slot, part)
    return Target(array, is_direct, stores, is_private=param.is_small)


def _part(place: Place, param: Result, parts: HostArray) -> Array:
    """Returns the rank's part of a result, in memory that the coordinator reads."""
    if param.is_small:
        return parts.in_lines(place.control.results)[place.rank, ...]  # a view, also of a number
    return place.host(parts)[place.rank, ...]


def _shard_target(routine: Routine, written: Written, parts: HostArray) -> Target | None:
    """Returns a line for each of the rank's shards; None if it has none."""
    first, after = routine.program.own_shards(routine.place.rank)
    if first == after:
        return None
    host = routine.place.host(parts)[first:after].reshape(after - first, *written.shape)
    has_one_slice = routine.program.num_slices == 1
    is_direct = not written.filled or (has_one_slice and parts.dtype == written.dtype)
    array, stores = _host_output(routine, (written.slot, "shards"), host)
    return Target(array, is_direct, stores, by_shard=True)


def _update_target(
    routine: Routine,
    written: Written,
    param: Update,
    variable: Any,
    slices: Slices,
) -> Target | None:
    """Returns where an update is combined; None on a rank that does not run."""
    program, place = routine.program, routine.place
    if param.parts is not None:  # the coordinator assigns the variable (`_call/shared_updates.py`)
        return _shard_target(routine, written, param.parts)
    if program.solo and place.rank != 0:
        return None
    reads = any(
        isinstance(leaf, Held | HeldRows) and leaf.variable == param.variable
        for leaf in program.leaves()
    )
    is_direct = len(slices) == 1
    if is_direct and not reads:
        return Target(variable, is_direct)
    array = routine.workspace.scratch((written.slot, "total"), written.dtype, written.shape)
    return Target(array, is_direct, [place.device.copy(variable, array)])


def _host_output(routine: Routine, slot: object, host: Array) -> tuple[Any, list[Step]]:
    """Returns an array for `host`, and the steps that copy it there after the last slice."""
    buffer = routine.workspace.output(slot, host)
    if buffer.store is None:
        return buffer.array, []
    # not the buffer's own store, which may be queued beside the slices
    return buffer.array, [routine.place.device.download(host, buffer.array)]


@final
class _Folded(OutputSteps):
    """An output whose slices are combined in a target; None if they are written to no end."""

    def __init__(
        self,
        routine: Routine,
        written: Written,
        target: Target | None,
        slices: Slices,
    ) -> None:
        self._routine, self._written, self._target = routine, written, target
        self._memory: Any = None  # of the slice
        if target is None:
            return
        if written.filled or target.by_shard:
            identity = reduction.identity(written.op, target.array.dtype)
            fill = routine.place.device.fill
            self.before = [fill(target.array, identity, private=target.is_private)]
        self.after = list(target.stores)
        if written.op == "mean" and not target.is_direct:
            self.after = [*self._divisions(target, slices), *target.stores]

    def _divisions(self, target: Target, slices: Slices) -> list[Step]:
        counts: Counter[int] = Counter()
        for rows in slices:
            counts[_shard(rows)] += _weight(rows)
        divide = self._routine.place.device.divide
        return [divide(target.line(shard), count) for shard, count in counts.items() if count]

    def array(self, rows: SliceRows | None, moves: Moves) -> Any:
        if self._target is not None and self._target.is_direct:
            return self._target.line(_shard(rows))
        self._memory = self._written.memory(self._routine, self._written.shape, moves)
        return self._memory

    def fold(self, rows: SliceRows | None) -> list[Step]:
        target = self._target
        if target is None or target.is_direct:
            return []
        accumulate = self._routine.place.device.accumulate
        return [
            accumulate(self._written.op, target.line(_shard(rows)), self._memory, _weight(rows))
        ]


def _shard(rows: SliceRows | None) -> int:
    return 0 if rows is None else rows.shard


def _weight(rows: SliceRows | None) -> int:
    return 1 if rows is None else rows.count


@final
class _Gathered(OutputSteps):
    """An output of which each slice has rows of its own; `host` has those of all ranks."""

    def __init__(self, routine: Routine, written: Written, host: Array | None) -> None:
        self._routine, self._written, self._host = routine, written, host

    def array(self, rows: SliceRows | None, moves: Moves) -> Any:
        assert rows is not None  # the coordinator refuses "gather" without rows
        written = self._written
        if self._host is None:
            return written.memory(self._routine, (rows.count, *written.shape), moves)
        buffer = self._routine.workspace.output(
            (written.slot, moves.turn), self._host[rows.start : rows.stop]
        )
        if buffer.store is not None:
            moves.stores.append(buffer.store)
        written.fill(self._routine, buffer.array, moves)
        return buffer.array

    def fold(self, rows: SliceRows | None) -> list[Step]:
        return []


@final
class _Located(OutputSteps):
    """An output with op "argmin" or "argmax": line s of two arrays, values and rows, is the best of
    shard s of this rank.

    The kernel writes one or more values for each row of a slice; the best so far is kept from slice
    to slice.
    """

    def __init__(self, routine: Routine, written: Written, param: Result) -> None:
        self._routine, self._written = routine, written
        self._scores: Any = None
        self._best: tuple[Any, Any] | None = None  # None if there is nothing to locate
        first, after = routine.program.own_shards(routine.place.rank)
        columns = math.prod(param.shape)
        if param.parts is None or param.rows is None or first == after or not columns:
            return
        arrays, fill = [], routine.place.device.fill
        for which, parts in (("values", param.parts), ("rows", param.rows)):
            host = routine.place.host(parts)[first:after].reshape(after - first, columns)
            array, stores = _host_output(routine, (param.name, which), host)
            arrays.append(array)
            self.after = [*self.after, *stores]
        values, rows = arrays
        self._best = values, rows
        identity = reduction.identity(param.op, values.dtype)
        self.before = [fill(values, identity), fill(rows, np.int64(-1))]

    def array(self, rows: SliceRows | None, moves: Moves) -> Any:
        assert rows is not None  # the coordinator refuses "argmin" and "argmax" without rows
        shape = (rows.count, *self._written.shape)
        self._scores = self._written.memory(self._routine, shape, moves)
        return self._scores

    def fold(self, rows: SliceRows | None) -> list[Step]:
        if self._best is None or rows is None:
            return []
        values, best_rows = (array[rows.shard] for array in self._best)
        scores = self._scores.reshape(rows.count, len(values))
        locate = self._routine.place.device.locate
        return list(locate(self._written.op, values, best_rows, scores, rows.start))
