"""The collectives over variables, and what is read from and written to single ranks.

    vars, values ──checked──> world.begin ── traffic ── world.end ──> the variables, or arrays

`vars` is one `Variable`, or a nested dict, list or tuple of them, which are sent together; values come and go in the same
shape. Everything that can be wrong is found before anything is sent.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from synknumba._errors import PartitionError
from synknumba._ops import rows as rows_module
from synknumba._ops.rows import Rows
from synknumba._ops.tree import unflatten
from synknumba._types import Array, Batch, CollectiveOp, Shape
from synknumba._variables.allocation import Allocation
from synknumba._variables.collective_checks import (
    check_all_uniform,
    check_op,
    check_row_shapes,
    check_rows,
    check_uniform,
    destinations,
    like,
    matched,
    several_of,
)
from synknumba._variables.collective_runs import give_values, pairs_of, placed, run_in_place, run_into, run_known
from synknumba._variables.transfers import Work
from synknumba._variables.variable import Variable, check_rank, traffic_of
from synknumba._world.world import World, holds_world

# ---- collectives ---------------------------------------------------------------------------------------------------------


@holds_world
def broadcast(vars: Any, values: Any = None, *, root: int = 0) -> Any:
    """Gives every rank the root's array, or a new value.

    Args:
        vars: a `Variable`, or a tree of them.
        values: what all ranks get, of the shape of `vars`: arrays, `Data`, numbers or trees of them; None for what the root
            has.
        root: whose array.

    Returns:
        `vars`.

    Raises:
        ArgumentError: `vars` are not variables, or one is there twice.
        DataError: a value of another number of dimensions, or of a dtype that does not cast safely.
        PartitionError: there is no such rank.
        WorldError: there is no world, or a variable belongs to another.
    """
    if values is None:
        quick = run_known(vars, "broadcast", None, root)
        if quick is not None:
            return quick
    several = several_of(vars, "broadcast")
    accepted = None if values is None else matched(vars, several, values, "broadcast")
    with placed(several) as world:
        root = check_rank(root, world.world_size)
        if accepted is None:
            _broadcast_from(world, several, root)
        else:
            ranks = range(world.world_size)
            give_values(world, several, [dict.fromkeys(ranks, arrays) for arrays in accepted], sharded=False)
    return vars


def _broadcast_from(world: World, several: Sequence[Variable], root: int) -> None:
    """Sends the root's arrays, to memory of the root's shapes."""
    work = Work("broadcast", None, root)
    if all(leaf.uniform for one in several for leaf in one.storage().layout.leaves):
        run_in_place(world, work, several, differs=False)
        return
    pairs, targets = [], []
    for one in several:
        shapes = [(shapes[root],) * world.world_size for shapes in one.shapes()]
        targets.append(Allocation(world, one.layout_with(shapes)))
        pairs += pairs_of(one, one.storage(), targets[-1])
    traffic_of(world).collective(work, pairs)()
    for one, target in zip(several, targets, strict=True):
        one.replace(target, sharded=False)


@holds_world
def scatter(vars: Any, values: Any = None, batch: Batch = None) -> Any:
    """Gives every rank its rows: rank r of W gets rows r·n // W up to (r+1)·n // W of each array, as in calls.

    Args:
        vars: a `Variable`, or a tree of them, of at least one dimension.
        values: what is divided, of the shape of `vars`: arrays or `Data`, or trees of them; None for what the root has.
        batch: which rows to divide: an int (the first rows), a slice, or a list of row numbers; None for all.

    Returns:
        `vars`.

    Raises:
        BatchError: the batch selects rows that do not exist, or none.
        ArgumentError, DataError, WorldError: as in `broadcast`.
    """
    several = several_of(vars, "scatter")
    for one in several:
        check_rows(one, "scatter")
    accepted = [one.fetch([0])[0] for one in several] if values is None else matched(vars, several, values, "scatter")
    chosen = [[_Chosen(array, batch) for array in arrays] for arrays in accepted]
    with placed(several) as world:
        size = world.world_size
        parts = [{rank: [array.part(size, rank) for array in arrays] for rank in range(size)} for arrays in chosen]
        give_values(world, several, parts, sharded=True)
    return vars


class _Chosen:
    """The rows of one array that a batch selects."""

    def __init__(self, array: Array, batch: Batch) -> None:
        self._array = array
        self._rows: Rows = rows_module.select(batch, len(array))

    def part(self, parts: int, index: int) -> Array:
        """One part of them."""
        rows = self._rows.part(parts, index)
        if isinstance(rows, rows_module.Range):
            return self._array[rows.as_slice()]
        return np.take(self._array, rows.indices, axis=0)


@holds_world
def gather(vars: Any, nd_up: int = 1) -> Any:
    """The arrays of all ranks in one, in rank order.

    Args:
        vars: a `Variable`, or a tree of them.
        nd_up: 1 for a new first axis, one entry a rank, which needs one shape on all ranks; 0 for rows after one another, of
            any lengths.

    Returns:
        NumPy arrays, in the shape of `vars`.

    Raises:
        PartitionError: the ranks' shapes do not allow it, or `nd_up` is neither 0 nor 1.
        ArgumentError, WorldError: as in `broadcast`.
    """
    several = several_of(vars, "gather")
    if type(nd_up) is not int or nd_up not in {0, 1}:
        message = f"nd_up must be 1 (a new axis, one entry a rank) or 0 (rows after one another), got {nd_up!r}"
        raise PartitionError(message)
    with placed(several) as world:
        for one in several:
            if nd_up:
                check_uniform(one, "gather with nd_up=1", "use nd_up=0 to put rows after one another")
            else:
                check_rows(one, "gather with nd_up=0")
                check_row_shapes(one, "gather")
        found = [_fetch_all(world, one) for one in several]
    join: Callable[[Sequence[Array]], Array] = np.stack if nd_up else np.concatenate
    results = [
        unflatten(one.structure(), [join([arrays[leaf] for arrays in by_rank]) for leaf in one.leaves()])
        for one, by_rank in zip(several, found, strict=True)
    ]
    return like(vars, results)


def _fetch_all(world: World, one: Variable) -> list[list[Array]]:
    """The arrays of each rank."""
    ranks, count = range(world.world_size), len(one.leaves())
    flat = traffic_of(world).fetch(one.storage(), [(leaf, rank) for rank in ranks for leaf in one.leaves()])
    return [flat[rank * count : (rank + 1) * count] for rank in ranks]


@holds_world
def all_gather(vars: Any, dest: Any = None) -> Any:
    """Gives every rank the rows of all ranks, in rank order; lengths may differ.

    Args:
        vars: a `Variable`, or a tree of them, of at least one dimension.
        dest: variables that get the rows, in the shape of `vars` and of the same dtypes; None for `vars` themselves.

    Returns:
        The variables that have the rows.

    Raises:
        PartitionError: the ranks' row shapes differ.
        ArgumentError, DataError, WorldError: as in `broadcast`.
    """
    quick = run_known(vars, "all_gather", None, dest=dest)
    if quick is not None:
        return quick
    several = several_of(vars, "all_gather")
    for one in several:
        check_rows(one, "all_gather")
    targets = destinations(vars, several, dest, "all_gather")
    with placed([*several, *targets]) as world:
        for one in several:
            check_row_shapes(one, "all_gather")

        def shape(shapes: tuple[Shape, ...], _: int) -> Shape:
            return (sum(one[0] for one in shapes), *shapes[0][1:])

        run_into(world, Work("all_gather"), several, targets, shape, sharded=False)
    return vars if dest is None else dest


@holds_world
def reduce(vars: Any, op: CollectiveOp = "avg", in_place: bool = True, *, root: int = 0) -> Any:
    """Combines the arrays of all ranks on the root.

    Args:
        vars: a `Variable`, or a tree of them, of one shape on all ranks.
        op: "sum", "prod", "min", "max", or "avg": the sum divided by the number of ranks, in the variable's dtype.
        in_place: whether the root's array becomes the result; the others keep theirs.
        root: where.

    Returns:
        `vars`; where it is not in place, NumPy arrays in the shape of `vars`, and nothing has changed.

    Raises:
        ReductionError: the op is unknown, or not defined for the dtype: avg needs floats or complex numbers, min and max an
            order.
        PartitionError: the shapes differ between ranks, or there is no such rank.
        ArgumentError, WorldError: as in `broadcast`.
    """
    if in_place:
        quick = run_known(vars, "reduce", op, root)
        if quick is not None:
            return quick
    several = several_of(vars, "reduce")
    check_op(several, op)
    with placed(several) as world:
        root = check_rank(root, world.world_size)
        check_all_uniform(several, "reduce")
        if in_place:
            run_in_place(world, Work("reduce", op, root), several, differs=world.world_size > 1)
            return vars
        traffic = traffic_of(world)
        results = [unflatten(one.structure(), traffic.reduced(Work("reduce", op, root), one.storage())) for one in several]
    return like(vars, results)


@holds_world
def all_reduce(vars: Any, op: CollectiveOp = "avg") -> Any:
    """Combines the arrays of all ranks, and gives every rank the result.

    Args:
        vars: a `Variable`, or a tree of them, of one shape on all ranks.
        op: as in `reduce`.

    Returns:
        `vars`.

    Raises:
        ReductionError, PartitionError, ArgumentError, WorldError: as in `reduce`.
    """
    quick = run_known(vars, "all_reduce", op)
    if quick is not None:
        return quick
    several = several_of(vars, "all_reduce")
    check_op(several, op)
    with placed(several) as world:
        check_all_uniform(several, "all_reduce")
        run_in_place(world, Work("all_reduce", op), several, differs=False)
    return vars


@holds_world
def reduce_scatter(vars: Any, op: CollectiveOp = "avg", dest: Any = None) -> Any:
    """Combines the arrays of all ranks, and gives each rank its rows of the result: those that `scatter` would give it.

    Args:
        vars: a `Variable`, or a tree of them, of one shape on all ranks and at least one dimension.
        op: as in `reduce`.
        dest: variables that get the rows, in the shape of `vars` and of the same dtypes; None for `vars` themselves.

    Returns:
        The variables that have the rows.

    Raises:
        ReductionError, PartitionError, ArgumentError, DataError, WorldError: as in `reduce`.
    """
    quick = run_known(vars, "reduce_scatter", op, dest=dest)
    if quick is not None:
        return quick
    several = several_of(vars, "reduce_scatter")
    check_op(several, op)
    for one in several:
        check_rows(one, "reduce_scatter")
    targets = destinations(vars, several, dest, "reduce_scatter")
    with placed([*several, *targets]) as world:
        check_all_uniform(several, "reduce_scatter")

        def shape(shapes: tuple[Shape, ...], rank: int) -> Shape:
            start, stop = rows_module.part(shapes[0][0], world.world_size, rank)
            return (stop - start, *shapes[0][1:])

        run_into(world, Work("reduce_scatter", op), several, targets, shape, sharded=True)
    return vars if dest is None else dest


# ---- single ranks --------------------------------------------------------------------------------------------------------


@holds_world
def set_value(rank: int, vars: Any, values: Any, batch: Batch = None) -> Any:
    """Gives one rank's arrays new values; the others keep theirs.

    Args:
        rank: whose.
        vars: a `Variable`, or a tree of them.
        values: of the shape of `vars`: arrays, `Data`, numbers or trees of them.
        batch: which rows of them; None for all.

    Returns:
        `vars`.

    Raises:
        ArgumentError, DataError, BatchError, PartitionError, WorldError: as in `scatter`.
    """
    several = several_of(vars, "set_value")
    accepted = matched(vars, several, values, "set_value")
    if batch is not None:
        for one in several:
            check_rows(one, "set_value with batch=")
        accepted = [[_Chosen(array, batch).part(1, 0) for array in arrays] for arrays in accepted]
    with placed(several) as world:
        rank = check_rank(rank, world.world_size)
        give_values(world, several, [{rank: arrays} for arrays in accepted])
    return vars


def get_value(rank: int, vars: Any) -> Any:
    """Copies of one rank's arrays, as NumPy's, in the shape of `vars`.

    Raises:
        ArgumentError, PartitionError, WorldError: as in `broadcast`.
    """
    return like(vars, [one.get_value(rank) for one in several_of(vars, "get_value")])


def get_lengths(vars: Any) -> Any:
    """The number of rows on each rank: a list with an int for each, in the shape of `vars`.

    Raises:
        ArgumentError, WorldError: as in `broadcast`.
    """
    several = several_of(vars, "get_lengths")
    for one in several:
        check_rows(one, "get_lengths")
    return _of_ranks(vars, several, lambda shape: shape[0])


def get_shapes(vars: Any) -> Any:
    """The shape on each rank: a list with a tuple for each, in the shape of `vars`.

    Raises:
        ArgumentError, WorldError: as in `broadcast`.
    """
    return _of_ranks(vars, several_of(vars, "get_shapes"), lambda shape: shape)


@holds_world
def _of_ranks(vars: Any, several: Sequence[Variable], told: Callable[[Shape], Any]) -> Any:
    with placed(several):
        results = [
            unflatten(one.structure(), [[told(shape) for shape in shapes] for shapes in one.shapes()]) for one in several
        ]
    return like(vars, results)
