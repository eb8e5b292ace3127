"""Rows of variables in a call, and the values of `synk.OFFSET`, `synk.ROWS` and `synk.OWN`.

                 lower halo | own rows            | upper halo
    local row    0 …        | OWN.start …         | OWN.stop …         of the array that the function gets
    global row   OFFSET …   | OFFSET+OWN.start …  |                    modulo the number of rows, if the halo is periodic

`ROWS` is the length of the array, halos included, so local row i of 0 … ROWS − 1 is global row
OFFSET + i.

All belong to the first scattered variable that the ranks get whole, not in rows; of a tree, to the
first array that the call gets of it. If there is none, all rows of the first variable are a rank's
own, and begin at row 0. Where the call has rows, `synk.OFFSET` and `synk.ROWS` are those of these
rows instead.
"""  # noqa: E501

import math
from collections.abc import Collection

from synknumba._call.call import Arguments
from synknumba._errors import ArgumentError, PartitionError
from synknumba._ops.halo import first_rows
from synknumba._ops.rows import Partition
from synknumba._ops.variable_layout import VECTOR
from synknumba._types import RankConstant, Shape, Span
from synknumba._variables.state import VariableState
from synknumba._wire.program import Filled, Param, PerRank, Tree


def shapes_by_rank(variable: VariableState, partition: Partition) -> list[tuple[Shape, ...]]:
    """Returns the shapes of each array by rank, for the number of ranks of a call, which may
    be planned for other worlds.
    """
    size = partition.parts
    is_placed = variable._layout[1] >= 0  # noqa: SLF001  # as for Data
    if is_placed and len(variable.shapes()[0]) == size:
        return variable.shapes()
    if not variable.sharded:
        return [(shape,) * size for shape in variable.root_shapes()]
    # As if all rows were scattered over that many ranks.
    return [_scattered(variable, leaf, partition) for leaf in variable.leaves()]


def _scattered(variable: VariableState, leaf: int, partition: Partition) -> tuple[Shape, ...]:
    layout, halo = variable.storage().layout, variable.halo
    counts = partition.counts(sum(layout.own_counts(leaf)))
    lengths = list(counts)
    if halo is not None:
        problem = halo.problem(counts, variable.label)
        if problem is not None:
            raise PartitionError(f"{problem}; plan for fewer ranks")
        lengths = [halo.length(count, rank, len(counts)) for rank, count in enumerate(counts)]
    row = layout.leaves[leaf].shapes[0][1:]
    return tuple((length, *row) for length in lengths)


def planned_shape(partition: Partition, variable: VariableState, leaf: int) -> Shape:
    """Returns the shape of an array on the root, for the number of ranks of a call; for
    `VECTOR`, of all as one vector.
    """
    by_leaf = shapes_by_rank(variable, partition)
    if leaf == VECTOR:
        return (sum(math.prod(by_rank[0]) for by_rank in by_leaf),)
    return by_leaf[leaf][0]


def rows_shapes(arguments: Arguments, path: str, partition: Partition) -> tuple[Shape, ...]:
    """Returns the shapes by rank of the first array that an argument gets of its variable, whose
    rows are those of the call.
    """
    shapes = shapes_by_rank(arguments.intact[path], partition)
    return shapes[arguments.first_array(path)]


def own_by_rank(variable: VariableState, shapes: tuple[Shape, ...]) -> tuple[Span, ...]:
    """Returns the indices of each rank's own rows in an array of a variable, given its shapes by
    rank.
    """
    halo, spans = variable.halo, []
    for rank, shape in enumerate(shapes):
        span = Span(0, shape[0])
        if halo is not None:
            span = halo.own(shape[0], rank, len(shapes))
        spans.append(span)
    return tuple(spans)


def fill_in(
    name: str, arguments: Arguments, partition: Partition, constants: Collection[RankConstant]
) -> None:
    """Replaces `synk.OWN`, and `OFFSET` and `ROWS` in a call without rows, by a value for each
    rank; all arguments are bound, and `constants` are among them.

    Raises:
        ArgumentError: it is not clear whose rows are meant.
    """
    has_rows = arguments.lengths.divided or arguments.lengths.sliceable
    of_rows = {RankConstant.OWN}
    if not has_rows:
        of_rows |= {RankConstant.OFFSET, RankConstant.ROWS}
    of_rows &= set(constants)
    if not of_rows:
        return
    path = _whose(name, arguments, " and ".join(sorted(map(repr, of_rows))))
    if path is None:
        if RankConstant.OWN in of_rows:
            raise ArgumentError(
                f"{name} gets synk.OWN, the indices of own rows in the array of a variable, but no "
                "variable with rows that is not in rows=; pass one, or synk.arange(n) for the "
                "rows of the call"
            )
        if RankConstant.ROWS in of_rows:
            raise ArgumentError(
                f"{name} gets synk.ROWS, the number of rows that a rank has, but no argument has "
                "rows: none is divided among the ranks, and none is a variable with an axis. Pass "
                "the number itself"
            )
        return
    variable, shapes = arguments.intact[path], rows_shapes(arguments, path, partition)
    spans = own_by_rank(variable, shapes)
    firsts = first_rows(variable.halo, [span.stop - span.start for span in spans])
    values: dict[RankConstant, PerRank] = {RankConstant.OWN: PerRank(spans)}
    if not has_rows:
        offsets = firsts if variable.sharded else (0,) * len(firsts)
        values[RankConstant.OFFSET] = PerRank(offsets)
        values[RankConstant.ROWS] = PerRank(tuple(shape[0] for shape in shapes))
    arguments.key.append((spans, firsts, shapes))
    for parameter, param in arguments.parameters.items():
        arguments.parameters[parameter] = _replaced(param, values)


def _whose(name: str, arguments: Arguments, constants: str) -> str | None:
    """Returns the argument with the variable whose rows are meant; None if there is none with
    rows.
    """
    first: str | None = None
    for path, variable in arguments.intact.items():
        if not variable.root_shapes()[arguments.first_array(path)]:
            continue
        if first is None or (variable.sharded and not arguments.intact[first].sharded):
            first = path
        halo = arguments.intact[first].halo
        if variable.sharded and variable.halo != halo:
            raise ArgumentError(
                f"{name} gets {constants}, but {first} has {halo or 'no halo'} and {path} has "
                f"{variable.halo or 'no halo'}, so a row has other indices in one than in the "
                "other; scatter both alike, or pass numbers by synk.per_rank([...])"
            )
    return first


def _replaced(param: Param, values: dict[RankConstant, PerRank]) -> Param:
    """Returns a parameter with constants replaced by values."""
    match param:
        case Tree(structure, leaves):
            return Tree(structure, tuple(_replaced(leaf, values) for leaf in leaves))
        case Filled(constant):
            return values.get(constant, param)
    return param
