"""Updates of variables: each slice fills an accumulator; their combination is assigned to the
variable at the end of the call.

    fill acc ── slice 1: fill part, run, acc ← acc op part ── slice 2: … ── variable ← acc

Every slice sees the variable's old value. A rank without rows assigns the op's identity, so a
reduction over the ranks gives the same as one rank with all rows. If no parameter reads the
variable and there is one slice, the function accumulates into the variable directly. With
`shards=`, each shard has an accumulator of its own, in shared memory, and the coordinator combines
them and assigns the variable on every rank (`_call/shared_updates.py`).
"""

from collections.abc import Iterator, Sequence
from typing import Any, final

import numpy as np

from synknumba._device import Step
from synknumba._ops import reduction as reduction_module
from synknumba._rank.routine import Moves, OutputSteps, Routine, SliceRows
from synknumba._wire.program import Held, HeldRows, HostArray, Param, Tree, Update


@final
class UpdateRun(OutputSteps):
    """Update of one variable in one program, for one selection of rows.

    Args:
        routine: routine of the program.
        slot: slot of the parameter.
        param: the parameter.
        slices: rows of each slice.
        lift: whether to pass a 0-d array with shape (1,), as kernels need.
    """

    def __init__(
        self,
        routine: Routine,
        slot: object,
        param: Update,
        slices: Sequence[SliceRows | None],
        *,
        lift: bool,
    ) -> None:
        self._device = routine.place.device
        self._workspace = routine.workspace
        self._slot = slot
        self._op = param.op
        self._dtype = np.dtype(param.dtype)
        shape = param.shapes[routine.place.rank]
        self._shape = (shape or (1,)) if lift else shape
        held = routine.place.holdings[param.variable].array(param.leaf)
        self._variable = held.reshape(self._shape) if lift else held
        self._identity = reduction_module.identity(param.op, self._dtype)
        reads = any(
            isinstance(leaf, Held | HeldRows) and leaf.variable == param.variable
            for leaf in routine.program.leaves()
        )
        self._several = len(slices) > 1
        self._direct = len(slices) == 1 and not reads
        self._acting = not (routine.program.solo and routine.place.rank != 0)
        self._total = self._variable if self._direct else self._scratch("total")
        self._part: Any = None

    def _scratch(self, which: str) -> Any:
        return self._workspace.scratch((self._slot, which), self._dtype, self._shape)

    def before(self) -> list[Step]:
        return (
            []
            if self._direct or not self._acting
            else [self._device.fill(self._total, self._identity)]
        )

    def array(self, rows: SliceRows | None, moves: Moves) -> Any:
        self._part = self._scratch("part") if self._several else self._total
        moves.before.append(self._device.fill(self._part, self._identity))
        return self._part

    def fold(self, rows: SliceRows | None) -> list[Step]:
        return [self._device.accumulate(self._op, self._total, self._part)] if self._several else []

    def after(self) -> list[Step]:
        return (
            []
            if self._direct or not self._acting
            else [self._device.copy(self._variable, self._total)]
        )


@final
class ShardUpdateRun(OutputSteps):
    """Update of one variable whose shards are kept apart: line s of an array is shard s of this
    rank.

    All lines start at the op's identity, which remains for a shard without rows. The coordinator
    combines all ranks' lines.

    Args:
        routine: routine of the program.
        slot: slot of the parameter.
        param: the parameter.
        parts: its memory for all shards.
        lift: as for `UpdateRun`.
    """

    def __init__(
        self, routine: Routine, slot: object, param: Update, parts: HostArray, *, lift: bool
    ) -> None:
        self._device = routine.place.device
        self._workspace = routine.workspace
        self._slot = slot
        self._op = param.op
        first, after = routine.program.own_shards(routine.place.rank)
        shape = parts.shape[1:]
        self._shape = (shape or (1,)) if lift else shape
        self._host = routine.place.host(parts)[first:after].reshape(after - first, *self._shape)
        buffer = self._workspace.output((slot, "shards"), self._host)
        self._lines = buffer.array
        self._on_host = buffer.store is None
        self._identity = reduction_module.identity(param.op, np.dtype(param.dtype))
        self._direct = routine.program.num_slices == 1
        self._part: Any = None

    def before(self) -> list[Step]:
        return [self._device.fill(self._lines, self._identity)] if len(self._host) else []

    def array(self, rows: SliceRows | None, moves: Moves) -> Any:
        assert rows is not None  # the coordinator refuses shards without rows
        if self._direct:
            return self._lines[rows.shard, ...]
        self._part = self._workspace.scratch(
            (self._slot, "part", moves.turn), self._lines.dtype, self._shape
        )
        moves.before.append(self._device.fill(self._part, self._identity))
        return self._part

    def fold(self, rows: SliceRows | None) -> list[Step]:
        assert rows is not None  # as above
        return (
            []
            if self._direct
            else [self._device.accumulate(self._op, self._lines[rows.shard, ...], self._part)]
        )

    def after(self) -> list[Step]:
        return (
            []
            if self._on_host or not len(self._host)
            else [self._device.download(self._host, self._lines)]
        )


def variable_updates(
    routine: Routine, slices: Sequence[SliceRows | None], *, lift: bool
) -> dict[object, OutputSteps]:
    """Returns the updates of all variables of one program by slot; arguments as for `UpdateRun`."""
    updates: dict[object, OutputSteps] = {}
    for name, top in routine.program.parameters:
        for slot, param in _slots(name, top):
            if not isinstance(param, Update):
                continue
            if param.parts is None:
                updates[slot] = UpdateRun(routine, slot, param, slices, lift=lift)
            else:
                updates[slot] = ShardUpdateRun(routine, slot, param, param.parts, lift=lift)
    return updates


def _slots(name: str, param: Param) -> Iterator[tuple[object, Param]]:
    """Yields (slot, param) of a parameter or of its leaves, with the slots of
    `Routine.argument`.
    """
    if isinstance(param, Tree):
        yield from (((name, i), leaf) for i, leaf in enumerate(param.leaves))
    else:
        yield name, param
