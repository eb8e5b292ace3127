"""Updates of variables: each slice fills an accumulator; their combination is assigned to the variable at the end of the call.

    fill acc ── slice 1: fill part, run, acc ← acc op part ── slice 2: … ── variable ← acc

Every slice sees the variable's old value. A rank without rows assigns the op's identity, so a reduction over the ranks gives
the same as one rank with all rows. If no parameter reads the variable and there is one slice, the function accumulates into
the variable directly.
"""

from collections.abc import Iterator, Sequence
from typing import Any, final

import numpy as np

from synknumba._device import Step
from synknumba._ops import reduction as reduction_module
from synknumba._rank.routine import Moves, OutputSteps, Routine, SliceRows
from synknumba._wire.program import Held, HeldRows, Param, Tree, Update


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
        self, routine: Routine, slot: object, param: Update, slices: Sequence[SliceRows | None], *, lift: bool
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
        reads = any(isinstance(leaf, Held | HeldRows) and leaf.variable == param.variable for leaf in routine.program.leaves())
        self._several = len(slices) > 1
        self._direct = len(slices) == 1 and not reads
        self._acting = not (routine.program.solo and routine.place.rank != 0)
        self._total = self._variable if self._direct else self._scratch("total")
        self._part: Any = None

    def _scratch(self, which: str) -> Any:
        return self._workspace.scratch((self._slot, which), self._dtype, self._shape)

    def before(self) -> list[Step]:
        return [] if self._direct or not self._acting else [self._device.fill(self._total, self._identity)]

    def array(self, rows: SliceRows | None, moves: Moves) -> Any:
        self._part = self._scratch("part") if self._several else self._total
        moves.before.append(self._device.fill(self._part, self._identity))
        return self._part

    def fold(self, rows: SliceRows | None) -> list[Step]:
        return [self._device.accumulate(self._op, self._total, self._part)] if self._several else []

    def after(self) -> list[Step]:
        return [] if self._direct or not self._acting else [self._device.copy(self._variable, self._total)]


def variable_updates(routine: Routine, slices: Sequence[SliceRows | None], *, lift: bool) -> dict[object, OutputSteps]:
    """Returns the updates of all variables of one program by slot; arguments as for `UpdateRun`."""
    return {
        slot: UpdateRun(routine, slot, param, slices, lift=lift)
        for name, top in routine.program.parameters
        for slot, param in _slots(name, top)
        if isinstance(param, Update)
    }


def _slots(name: str, param: Param) -> Iterator[tuple[object, Param]]:
    """Yields (slot, param) of a parameter or of its leaves, with the slots of `Routine.argument`."""
    if isinstance(param, Tree):
        yield from (((name, i), leaf) for i, leaf in enumerate(param.leaves))
    else:
        yield name, param
