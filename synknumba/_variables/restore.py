"""Restoring variables: whole values, as `VariableState.whole_arrays` returns them, back to the
ranks.
"""

from collections.abc import Sequence

from synknumba._types import Array
from synknumba._variables.collectives import check_rows_for, placed
from synknumba._variables.kept_values import Kept
from synknumba._variables.state import VariableState
from synknumba._world.engine import open_world


def restore(several: Sequence[VariableState], wholes: Sequence[Sequence[Array]]) -> None:
    """Sets variables to whole values of their dtypes and shapes, on however many ranks there are.

    A replica gets its value on every rank. The rows of a divided variable are divided among the
    ranks by the rule of `scatter`, with the halo that it has. Without an open world, the values are
    those that the next one starts from. Values that are lost are not needed.

    Args:
        several: different variables.
        wholes: the arrays of each, in the shapes of `VariableState.whole_shapes`.

    Raises:
        PartitionError: a rank would have fewer rows than a halo; nothing has changed.
        WorldError, SharedMemoryError, RankError, RankDied, CallTimeout: as for `scatter`.
    """
    for one in several:
        one.check_process()
    if open_world() is None:
        for one, arrays in zip(several, wholes, strict=True):
            one.restart(list(arrays))
        return
    # before they are placed
    are_divided, halos = (
        [one.sharded for one in several],
        [one.halo for one in several],
    )
    for one, arrays, halo in zip(several, wholes, halos, strict=True):
        check_rows_for(halo, list(map(len, arrays)) if halo else [], one.label)
    # The rows of divided ones follow, by the same partition.
    initial = [
        [array[:0] for array in arrays] if is_divided else list(arrays)
        for arrays, is_divided in zip(wholes, are_divided, strict=True)
    ]
    with placed(several, initial=initial) as world:
        ranks = range(world.world_size)
        values = [
            dict(enumerate(Kept.divided(arrays, world.partition, halo).parts))
            if is_divided
            else {rank: list(arrays) for rank in ranks}
            for arrays, is_divided, halo in zip(wholes, are_divided, halos, strict=True)
        ]
        rooms = [
            one.room_for(world, new, halo)
            for one, new, halo in zip(several, values, halos, strict=True)
        ]
        for one, new, room, is_divided in zip(several, values, rooms, are_divided, strict=True):
            one.assign(world, new, room, sharded=is_divided)
