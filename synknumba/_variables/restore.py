"""Restoring variables: whole values, as `VariableState.whole_arrays` returns them, back to the
ranks.
"""

from collections.abc import Sequence

from synknumba._types import Array
from synknumba._variables.collective_arguments import check_rows_for
from synknumba._variables.collective_call import collective_call
from synknumba._variables.kept_values import Kept, without_rows
from synknumba._variables.state import VariableState, write_all
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
    # of the variables before they are placed
    divisions = [(state.sharded, state.halo) for state in states]
    initial = []
    for state, arrays in zip(states, wholes, strict=True):
        if state.halo is not None:
            check_rows_for(state.halo, list(map(len, arrays)), state.label)
        initial.append(list(arrays))
        if state.sharded:
            initial[-1] = without_rows(arrays)  # the rows follow, by the same partition
    with collective_call(states, initial=initial) as world:
        assignments = []
        for state, arrays, (is_divided, halo) in zip(states, wholes, divisions, strict=True):
            parts: Sequence[list[Array]] = [list(arrays)] * world.world_size
            if is_divided:
                parts = Kept.divided(arrays, world.partition, halo).parts
            of_ranks = dict(enumerate(parts))
            assignments.append(state.assignment(world, of_ranks, halo, sharded=is_divided))
        write_all(world, assignments)
