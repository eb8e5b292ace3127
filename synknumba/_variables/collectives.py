"""The collectives over variables, and what is read from and written to single ranks.

    vars, values ──checked──> world.begin ── traffic ── world.end ──> the variables, or arrays

`vars` is one `Variable`, or a nested dict, list or tuple of them, which are sent together; values come and go in the same
shape. Everything that can be wrong is found before anything is sent.

What collectives are given, judged before anything is sent: variables, values, ops, shapes.

How a collective is carried out: variables put on the ranks, their arrays paired, the plan found or made, run, and noted.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast, final

import numpy as np

from synknumba._errors import ArgumentError, DataError, PartitionError, ReductionError
from synknumba._ops import rows as rows_module
from synknumba._ops.rows import Partition, Rows
from synknumba._ops.tree import describe, flatten, parts_like, shape_told, unflatten
from synknumba._types import Array, Batch, CollectiveKind, CollectiveOp, Shape
from synknumba._variables.allocation import Allocation
from synknumba._variables.transfers import Pair, Traffic, Work
from synknumba._variables.variable import Values, Variable, check_rank, traffic_of
from synknumba._world.world import World, current_world, holds_world, open_world, raise_untold


@final
class placed:  # noqa: N801  # used as a function
    """The open world, begun, with the variables in it. Used in functions that `holds_world` marks.

    Not a generator: one that Ctrl-C has broken off would give the world back when it is collected, in the middle of another
    call.
    """

    def __init__(self, several: Sequence[Variable]) -> None:
        self._several = several

    def __enter__(self) -> World:
        """Takes the world."""
        raise_untold()
        for one in self._several:
            one.check_open()
        self._world = world = current_world()
        world.begin()
        try:
            for one in self._several:
                one.place(world)
        except BaseException:
            world.end()
            raise
        return world

    def __exit__(self, *exc: object) -> None:
        """Gives it back."""
        self._world.end()


def give_values(world: World, several: Sequence[Variable], values: Sequence[Values], *, sharded: bool | None = None) -> None:
    """Gives variables new values: all of them, or, where there is no memory for all, none."""
    rooms = [one.room_for(world, new) for one, new in zip(several, values, strict=True)]
    for one, new, room in zip(several, values, rooms, strict=True):
        one.assign(world, new, room, sharded=sharded)


def pairs_of(one: Variable, source: Allocation, target: Allocation) -> list[Pair]:
    """The arrays of a variable; one vector where it is flat."""
    return [Pair(source, target, leaf) for leaf in source.layout.pieces()]


def run_in_place(world: World, work: Work, several: Sequence[Variable], *, differs: bool) -> None:
    """A collective whose result is where what is given was; `differs` says whether replicas may differ then."""
    traffic = traffic_of(world)
    pairs = [pair for one in several for pair in pairs_of(one, one.storage(), one.storage())]
    run = traffic.collective(work, pairs)
    run()
    for one in several:
        one.mark(differs=differs, sharded=False)
    if len(several) == 1:
        layout = several[0]._layout  # noqa: SLF001  # a key, and no more
        traffic.remember((work, layout, layout), run, [several[0].storage()])


def run_known(vars: Any, kind: CollectiveKind, op: object, root: int = 0, dest: Any = None) -> Any:
    """Repeats a collective over one variable, in place or to one other, that was made before; None where there is none."""
    changing = kind in ("all_gather", "reduce_scatter")
    target = dest if changing else vars
    if type(vars) is not Variable or type(target) is not Variable:
        return None
    if type(root) is not int or not (op is None or type(op) is str):
        return None  # what is not checked yet may not be hashable, or be True, which equals 1
    work = Work(kind, cast("CollectiveOp | None", op), root)
    world = open_world()
    if world is None:
        return None  # and the longer way says why there is none
    world.begin()
    try:
        traffic: Traffic = traffic_of(world)
        run = traffic.remembered((work, vars._layout, target._layout))  # noqa: SLF001  # a key, and no more
        if run is None:
            return None
        run()
        sharded = kind == "reduce_scatter"
        target.mark(differs=(sharded or kind == "reduce") and world.world_size > 1, sharded=sharded)
        return target
    finally:
        world.end()


def run_into(
    world: World,
    work: Work,
    several: Sequence[Variable],
    targets: Sequence[Variable],
    shape: Callable[[tuple[Shape, ...], int], Shape],
    *,
    sharded: bool,
) -> None:
    """A collective whose result has other shapes than what is given."""
    pairs, storages = [], []
    for one, target in zip(several, targets, strict=True):
        shapes = [tuple(shape(given, rank) for rank in range(world.world_size)) for given in one.shapes()]
        storage = target.storage()
        # What is given to be combined or joined must not be written over before it is read.
        if any(target is other for other in several) or target.shapes() != shapes:
            storage = Allocation(world, target.layout_with(shapes))
        storages.append(storage)
        pairs += [Pair(one.storage(), storage, leaf) for leaf in one.leaves()]
    traffic = traffic_of(world)
    run = traffic.collective(work, pairs)
    run()
    for target, storage in zip(targets, storages, strict=True):
        target.replace(storage, sharded=sharded)
    if len(several) == 1 and targets[0] is not several[0]:
        key = (work, several[0]._layout, targets[0]._layout)  # noqa: SLF001  # as in `run_in_place`
        traffic.remember(key, run, [several[0].storage(), targets[0].storage()])


_OPS: tuple[CollectiveOp, ...] = ("sum", "prod", "min", "max", "avg")
_ORDER = "complex numbers have no order: reduce the real part or the absolute value"
_REFUSED = {  # op: {dtype kind: way out}
    "sum": {"b": "make it an integer variable to count, or use 'max' for any"},
    "prod": {"b": "make it an integer variable, or use 'min' for all"},
    "min": {"c": _ORDER},
    "max": {"c": _ORDER},
    "avg": dict.fromkeys("biu", "an average of integers is seldom one: use 'sum' and divide, or make it a float variable"),
}


def several_of(vars: Any, what: str) -> list[Variable]:
    """The variables, each once."""
    if isinstance(vars, Variable):
        return [vars]
    found, _ = flatten(vars)
    for one in found:
        if not isinstance(one, Variable):
            raise ArgumentError(f"{what} needs a Variable, or a dict, list or tuple of them; got a {type(one).__name__}")
    if not found:
        raise ArgumentError(f"{what} got no variable at all")
    seen: set[int] = set()
    for one in found:
        if id(one) in seen:
            raise ArgumentError(f"{what} got {one.label} twice; give each variable once")
        seen.add(id(one))
    return found


def like(vars: Any, results: Sequence[Any]) -> Any:
    """Results, one for each variable, in the shape of `vars`."""
    return results[0] if isinstance(vars, Variable) else unflatten(flatten(vars)[1], results)


def matched(vars: Any, several: Sequence[Variable], values: Any, what: str) -> list[list[Array]]:
    """The arrays of each variable, from values in the shape of `vars`."""
    if isinstance(vars, Variable):
        return [vars.accept(values)]
    structure = flatten(vars)[1]
    found = parts_like(structure, values)
    if found is None:
        raise DataError(
            f"{what} needs values in the shape of its variables, {describe(structure)}, but got {shape_told(values)}"
        )
    return [one.accept(value) for one, value in zip(several, found, strict=True)]


def destinations(vars: Any, several: Sequence[Variable], dest: Any, what: str) -> Sequence[Variable]:
    """The variables that get the result, checked against those that give it."""
    if dest is None:
        return several
    targets = several_of(dest, what)
    if not isinstance(vars, Variable) and flatten(vars)[1] != flatten(dest)[1]:
        raise ArgumentError(f"{what} needs dest= in the shape of its variables, {describe(flatten(vars)[1])}")
    if len(targets) != len(several):
        raise ArgumentError(f"{what} needs one variable in dest= for each that it is given: {len(several)}, got {len(targets)}")
    for one, target in zip(several, targets, strict=True):
        _check_destination(one, target, what)
    return targets


def _check_destination(one: Variable, target: Variable, what: str) -> None:
    if one.structure() != target.structure():
        raise ArgumentError(f"{what}: {target.label} in dest= is not a tree of the same shape as {one.label}")
    shapes = zip(one.root_shapes(), target.root_shapes(), strict=True)
    for (mine, theirs), gives, gets in zip(shapes, one.dtypes(), target.dtypes(), strict=True):
        if gives != gets or len(mine) != len(theirs):
            raise DataError(
                f"{what}: {target.label} in dest= holds {gets} of {len(theirs)} dimensions, but {one.label} gives {gives} of "
                f"{len(mine)}; make it of the same dtype and number of dimensions"
            )


def check_op(several: Sequence[Variable], op: object) -> None:
    """Refuses an op that there is not, or not for a dtype."""
    if not isinstance(op, str) or op not in _OPS:
        raise ReductionError(f"op must be one of {', '.join(map(repr, _OPS))}; got {op!r}")
    for one in several:
        for dtype in one.dtypes():
            way_out = _REFUSED[str(op)].get(dtype.kind)
            if dtype.kind not in "biufc":
                way_out = "gather it and combine it yourself, or use a variable for each numeric field"
            if way_out is not None:
                raise ReductionError(f"{one.label}: op {op!r} is not defined for dtype {dtype}; {way_out}")


def check_rows(one: Variable, what: str) -> None:
    """Refuses numbers, which have no rows."""
    if any(not shape for shape in one.root_shapes()):
        raise PartitionError(f"{what} divides or joins rows, but {one.label} is 0-d; give it at least one dimension")


def check_all_uniform(several: Sequence[Variable], what: str) -> None:
    """Refuses shapes that differ between ranks where elements are combined."""
    for one in several:
        check_uniform(one, what, "all_gather or gather take arrays of different lengths")


def check_uniform(one: Variable, what: str, way_out: str) -> None:
    """Refuses shapes that differ between ranks."""
    for shapes in one.shapes():
        if len(set(shapes)) > 1:
            raise PartitionError(f"{what} needs one shape on all ranks, but {one.label} has {_told(shapes)}; {way_out}")


def check_row_shapes(one: Variable, what: str) -> None:
    """Refuses rows that do not fit after one another."""
    for shapes in one.shapes():
        if len({shape[1:] for shape in shapes}) > 1:
            raise PartitionError(
                f"{what} puts rows after one another, but those of {one.label} differ in shape: {_told(shapes)}"
            )


def _told(shapes: Sequence[Shape]) -> str:
    return ", ".join(f"{shape} on rank {rank}" for rank, shape in enumerate(shapes))


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
        ranks, partition = range(world.world_size), world.partition
        parts = [{rank: [array.part(partition, rank) for array in arrays] for rank in ranks} for arrays in chosen]
        give_values(world, several, parts, sharded=True)
    return vars


class _Chosen:
    """The rows of one array that a batch selects."""

    def __init__(self, array: Array, batch: Batch) -> None:
        self._array = array
        self._rows: Rows = rows_module.select(batch, len(array))

    def part(self, partition: Partition, index: int) -> Array:
        """One part of them."""
        rows = partition.of(self._rows, index)
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
        raise PartitionError(f"nd_up must be 1 (a new axis, one entry a rank) or 0 (rows after one another), got {nd_up!r}")
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
            start, stop = world.partition.part(shapes[0][0], rank)
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
        accepted = [[_Chosen(array, batch).part(Partition.even(1), 0) for array in arrays] for arrays in accepted]
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
