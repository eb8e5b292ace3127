"""How a collective runs: the open world is taken, variables are placed on its ranks, and a plan is
found or made.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast, final

from synknumba import _tracing as tracing
from synknumba._types import Array, CollectiveKind, CollectiveOp, Shape
from synknumba._variables.allocation import Allocation
from synknumba._variables.collective_arguments import SAME_OPS
from synknumba._variables.collective_plans import (
    DIFFERING,
    SHARDING,
    WITH_DEST,
    CollectiveSpec,
    Endpoints,
    VariableTransfers,
    pairs_of,
)
from synknumba._variables.failed_writes import note_failure
from synknumba._variables.state import VariableState, transfers_of
from synknumba._variables.variable import Variable
from synknumba._world.engine import Engine
from synknumba._world.open_world import current_world, open_world, raise_pending_error


@final
class collective_call:  # noqa: N801  # used as a function
    """Context of a collective: takes the open world, and places the variables on its ranks.

    Args:
        states: the variables.
        written: those of them that the collective writes to; None for all.
        initial: new values of all ranks, which a variable without a value in this world starts
            from; None where there are none.

    Not a generator: one interrupted by Ctrl-C would release the world when it is
    garbage-collected, in the middle of another call.
    """

    def __init__(
        self,
        states: Sequence[VariableState],
        written: Sequence[VariableState] | None = None,
        initial: Sequence[list[Array] | None] = (),
    ) -> None:
        self._states = states
        self._written = states if written is None else written
        self._initial = initial or [None] * len(states)

    def __enter__(self) -> Engine:
        """Takes the world."""
        raise_pending_error()
        self._world = world = current_world()
        world.begin(sys._getframe(1))  # noqa: SLF001
        try:
            for state, initial in zip(self._states, self._initial, strict=True):
                state.place(world, initial)
        except BaseException:
            world.end()
            raise
        return world

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        """Releases the world."""
        try:
            if error is not None:
                note_failure(self._world, self._written, error)
        finally:
            self._world.end()


def run(
    world: Engine,
    spec: CollectiveSpec,
    states: Sequence[VariableState],
    targets: Sequence[VariableState] = (),
    shape_of: Callable[[tuple[Shape, ...], int], Shape] | None = None,
) -> None:
    """Runs a collective, in place or into targets, which get new memory where theirs does not fit.

    Args:
        world: the world, between its `begin` and `end`.
        spec: the collective.
        states: its variables, which have been placed.
        targets: the variables that have the results; empty: the same.
        shape_of: returns the shape of a result on a rank, given the shapes of the source by rank,
            and the rank; None if shapes stay.
    """
    targets = targets or states
    pairs: list[Endpoints] = []
    storages = []
    for state, target in zip(states, targets, strict=True):
        source = state.storage()
        storage = target.storage()
        if shape_of is not None:
            shapes = [
                tuple(map(partial(shape_of, by_rank), range(world.world_size)))
                for by_rank in state.shapes()
            ]
            # Unless it is the root's, a source is not overwritten before every rank has read it.
            is_kept = target in states and spec.kind != "broadcast"
            if is_kept or target.shapes() != shapes or target.halo is not None:
                storage = Allocation(world, target.layout_with(shapes))
        storages.append(storage)
        pairs += pairs_of(spec, source, storage)
    transfers = transfers_of(world)
    run_plan = transfers.collective(spec, pairs)
    run_plan()
    differs = spec.kind in DIFFERING and world.world_size > 1
    for target, storage in zip(targets, storages, strict=True):
        target.replace(storage, differs=differs, sharded=spec.kind in SHARDING)
    if len(states) == 1 and states[0].storage() is pairs[0].source:  # it can be repeated
        key = (spec, states[0]._layout, targets[0]._layout)  # noqa: SLF001  # only as a key
        transfers.remember(key, run_plan, {pairs[0].source, pairs[0].target})


def pairs_in_place(spec: CollectiveSpec, states: Sequence[VariableState]) -> list[Endpoints]:
    """Returns the arrays of a collective in place."""
    pairs: list[Endpoints] = []
    for state in states:
        pairs += pairs_of(spec, state.storage(), state.storage())
    return pairs


def run_known(vars: Any, kind: CollectiveKind, op: object, root: int = 0, dest: Any = None) -> Any:
    """Repeats an earlier collective over one variable, in place or into one other variable: the
    fast path.

    Returns the variable that has the result; None if the collective is not cached, for the caller
    to take the general path.
    """
    if tracing.current is not None and tracing.current.is_here:
        return tracing.current.collective(kind, vars, op, root, dest)
    target = dest if kind in WITH_DEST else vars
    if type(vars) is not Variable or type(target) is not Variable:
        return None
    if type(root) is not int or not (op is None or type(op) is str):
        return None  # arguments not checked yet may be unhashable, or be True, which equals 1
    spec = CollectiveSpec(kind, cast("CollectiveOp | None", SAME_OPS.get(op, op)), root)
    world = open_world()
    if world is None:
        return None  # the general path raises the reason
    world.begin()
    try:
        transfers: VariableTransfers = transfers_of(world)
        source, goal = vars._state, target._state  # noqa: SLF001  # hot path: no call
        run = transfers.quick.get((spec, source._layout, goal._layout))  # noqa: SLF001  # only as a key
        if run is None:
            return None
        try:
            run()
        except BaseException as error:
            note_failure(world, [goal], error)
            raise
        differs = kind in DIFFERING and world.world_size > 1
        goal.mark(differs=differs, sharded=kind in SHARDING)
        return target
    finally:
        world.end()
