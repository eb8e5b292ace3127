"""Restoring variables: whole values, as `VariableState.whole_arrays` returns them, back to the
ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from synknumba._ops.halo import Halo
from synknumba._types import Array
from synknumba._variables.collective_arguments import check_rows_for
from synknumba._variables.collective_call import collective_call
from synknumba._variables.kept_values import Kept, without_rows
from synknumba._variables.state import Assignment, VariableState, write_all
from synknumba._world.engine import Engine
from synknumba._world.open_world import open_world


def restore(states: Sequence[VariableState], wholes: Sequence[Sequence[Array]]) -> None:
    """Sets variables to whole values of their dtypes and shapes, on however many ranks there are.

    A replica gets its value on every rank. The rows of a divided variable are divided among the
    ranks by the rule of `scatter`, with the halo that it has. Without an open world, the values are
    those that the next one starts from. Values that are lost are not needed.

    Args:
        states: different variables.
        wholes: the arrays of each, in the shapes of `VariableState.whole_shapes`.

    Raises:
        PartitionError: a rank would have fewer rows than a halo; nothing has changed.
        WorldError, SharedMemoryError, RankError, RankDied, CallTimeout: as for `scatter`.
    """
    for state in states:
        state.check_process()
    if open_world() is None:
        for state, arrays in zip(states, wholes, strict=True):
            state.restart(list(arrays))
        return
    restored = []
    for state, arrays in zip(states, wholes, strict=True):
        # of the variables before they are placed
        whole = _Whole(state, list(arrays), state.sharded, state.halo)
        if whole.halo is not None:
            check_rows_for(whole.halo, list(map(len, arrays)), state.label)
        restored.append(whole)
    initial = [whole.initial() for whole in restored]
    with collective_call(states, initial=initial) as world:
        write_all(world, [whole.assignment(world) for whole in restored])


@final
@dataclass(frozen=True, slots=True)
class _Whole:
    """The whole value of a variable, which is divided among the ranks or a replica."""

    state: VariableState
    arrays: list[Array]
    is_divided: bool
    halo: Halo | None

    def initial(self) -> list[Array]:
        """Returns the values with which the variable is placed."""
        if self.is_divided:
            return without_rows(self.arrays)  # the rows follow, by the same partition
        return self.arrays

    def assignment(self, world: Engine) -> Assignment:
        """Returns the assignment of each rank's part."""
        parts: Sequence[list[Array]] = [self.arrays] * world.world_size
        if self.is_divided:
            parts = Kept.divided(self.arrays, world.partition, self.halo).parts
        of_ranks = dict(enumerate(parts))
        return self.state.assignment(world, of_ranks, self.halo, sharded=self.is_divided)
