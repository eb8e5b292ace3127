"""Restoring variables: whole values, as `VariableState.whole_arrays` returns them, back to the
ranks.
"""

from collections.abc import Sequence

from synknumba._types import Array
from synknumba._variables.collectives import check_rows_for, placed
from synknumba._variables.kept_values import Kept
from synknumba._variables.state import VariableState
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
    # before they are placed
    are_divided = [state.sharded for state in states]
    halos = [state.halo for state in states]
    for state, arrays, halo in zip(states, wholes, halos, strict=True):
        lengths = list(map(len, arrays)) if halo else []
        check_rows_for(halo, lengths, state.label)
    # The rows of divided ones follow, by the same partition.
    initial = [
        [array[:0] for array in arrays] if is_divided else list(arrays)
        for arrays, is_divided in zip(wholes, are_divided, strict=True)
    ]
    with placed(states, initial=initial) as world:
        ranks = range(world.world_size)
        values = [
            dict(enumerate(Kept.divided(arrays, world.partition, halo).parts))
            if is_divided
            else {rank: list(arrays) for rank in ranks}
            for arrays, is_divided, halo in zip(wholes, are_divided, halos, strict=True)
        ]
        rooms = [
            state.room_for(world, new, halo)
            for state, new, halo in zip(states, values, halos, strict=True)
        ]
        for state, new, room, is_divided in zip(states, values, rooms, are_divided, strict=True):
            state.assign(world, new, room, sharded=is_divided)
