"""The collectives over variables, and access to the arrays of single ranks.

    vars, values ──checked──> world.begin ── variables placed, plan found or made, run ── world.end ──> vars, or NumPy arrays

`vars` is one `Variable`, or a nested dict, list or tuple of variables, which are processed
together; values and results have the same structure. All arguments are checked before anything is
sent.

Only the coordinator calls these functions, once for all ranks; on a rank they raise `WorldError`.
All ranks take part, and a function returns when every rank is done.
"""  # noqa: E501

import operator
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, cast, final

import numpy as np

from synknumba import _tracing as tracing
from synknumba._errors import ArgumentError, DataError, PartitionError, ReductionError
from synknumba._ops import rows as rows_module
from synknumba._ops.halo import Halo
from synknumba._ops.rows import Rows
from synknumba._ops.tree import describe, flatten, parts_like, shape_told, unflatten
from synknumba._types import (
    Array,
    Batch,
    CollectiveKind,
    CollectiveOp,
    Shape,
    as_flag,
    known_options,
)
from synknumba._variables.allocation import Allocation
from synknumba._variables.collective_plans import Pair, Traffic, Work, leaf_pairs, pairs_of
from synknumba._variables.kept_values import held_rows
from synknumba._variables.state import ByRank, VariableState, check_rank, note_failure, traffic_of
from synknumba._variables.variable import Branch, Variable, accepted, state_of
from synknumba._world.engine import Engine
from synknumba._world.open_world import current_world, open_world, raise_pending_error


@final
class placed:  # noqa: N801  # used as a function
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


def give_rows(
    world: Engine, states: Sequence[VariableState], values: Sequence[ByRank], halo: Halo | None
) -> None:
    """Writes each rank's rows to several variables; if memory does not suffice for all, none of
    them changes.
    """
    rooms = [state.room_for(world, new, halo) for state, new in zip(states, values, strict=True)]
    for state, new, room in zip(states, values, rooms, strict=True):
        state.assign(world, new, room, sharded=True)


def run_in_place(
    world: Engine,
    work: Work,
    states: Sequence[VariableState],
    *,
    differs: bool,
    sharded: bool = False,
) -> None:
    """Runs a collective in place; `differs` is whether replicas may differ afterwards."""
    traffic = traffic_of(world)
    run = traffic.collective(work, pairs_in_place(work, states))
    run()
    for state in states:
        state.mark(differs=differs, sharded=sharded)
    if len(states) == 1:
        layout = states[0]._layout  # noqa: SLF001  # only as a key
        traffic.remember((work, layout, layout), run, [states[0].storage()])


def pairs_in_place(work: Work, states: Sequence[VariableState]) -> list[Pair]:
    """Returns the arrays of a collective in place; an exchange, with halos, has no vectors."""
    storages = [state.storage() for state in states]
    return [
        pair
        for storage in storages
        for pair in (leaf_pairs(storage) if work.kind == "exchange" else pairs_of(storage, storage))
    ]


def run_known(vars: Any, kind: CollectiveKind, op: object, root: int = 0, dest: Any = None) -> Any:
    """Repeats an earlier collective over one variable, in place or into one other variable: the
    fast path.

    Returns the variable that has the result; None if the collective is not cached, for the caller
    to take the general path.
    """
    if tracing.current is not None and tracing.current.is_here:
        return tracing.current.collective(kind, vars, op, root, dest)
    changing = kind in ("all_gather", "reduce_scatter")
    target = dest if changing else vars
    if type(vars) is not Variable or type(target) is not Variable:
        return None
    if type(root) is not int or not (op is None or type(op) is str):
        return None  # arguments not checked yet may be unhashable, or be True, which equals 1
    work = Work(kind, cast("CollectiveOp | None", _SAME_OPS.get(op, op)), root)
    world = open_world()
    if world is None:
        return None  # the general path raises the reason
    world.begin()
    try:
        traffic: Traffic = traffic_of(world)
        source, goal = vars._state, target._state  # noqa: SLF001  # hot path: no call
        run = traffic.quick.get((work, source._layout, goal._layout))  # noqa: SLF001  # only as a key
        if run is None:
            return None
        try:
            run()
        except BaseException as error:
            note_failure(world, [goal], error)
            raise
        sharded = kind in ("reduce_scatter", "exchange")
        goal.mark(differs=(sharded or kind == "reduce") and world.world_size > 1, sharded=sharded)
        return target
    finally:
        world.end()


def run_into(
    world: Engine,
    work: Work,
    states: Sequence[VariableState],
    targets: Sequence[VariableState],
    shape: Callable[[tuple[Shape, ...], int], Shape],
    *,
    sharded: bool,
) -> None:
    """Runs a collective whose results, in `targets`, have other shapes than its sources.

    `shape` returns the shape of a result on a rank; it gets the shapes of the source by rank, and
    the rank. `sharded` is whether each rank has its own rows of the result.
    """
    pairs, storages = [], []
    for state, target in zip(states, targets, strict=True):
        shapes = [
            tuple(shape(by_rank, rank) for rank in range(world.world_size))
            for by_rank in state.shapes()
        ]
        storage = target.storage()
        # A source must not be overwritten before every rank has read it.
        is_source = any(target is source for source in states)
        if is_source or target.shapes() != shapes or target.halo is not None:
            storage = Allocation(world, target.layout_with(shapes))
        storages.append(storage)
        pairs += [Pair(state.storage(), storage, leaf) for leaf in state.leaves()]
    traffic = traffic_of(world)
    run = traffic.collective(work, pairs)
    run()
    for target, storage in zip(targets, storages, strict=True):
        target.replace(storage, sharded=sharded)
    if len(states) == 1 and targets[0] is not states[0]:
        key = (work, states[0]._layout, targets[0]._layout)  # noqa: SLF001  # as in `run_in_place`
        traffic.remember(key, run, [states[0].storage(), targets[0].storage()])


_OPS = ("sum", "prod", "min", "max", "mean", "avg")
_SAME_OPS: dict[Any, Any] = {"mean": "avg"}  # NCCL's name
_ORDER = "complex numbers have no order: reduce the real part or the absolute value"
_REFUSED = {  # op: {dtype kind: way out}
    "sum": {"b": "make it an integer variable to count, or use 'max' for any"},
    "prod": {"b": "make it an integer variable, or use 'min' for all"},
    "min": {"c": _ORDER},
    "max": {"c": _ORDER},
    "avg": dict.fromkeys(
        "biu", "an average is rarely an integer: use 'sum' and divide, or make it a float variable"
    ),
}


def several_of(vars: Any, what: str) -> list[VariableState]:
    """Returns the variables of a tree, which must be different ones, and no other leaves."""
    if isinstance(vars, Variable):
        return [state_of(vars)]
    states = []
    for leaf in flatten(vars)[0]:
        if isinstance(leaf, Branch):
            raise ArgumentError(
                f"{what} takes whole variables, and {leaf.label} is a part of one; pass the tree, "
                f"or make one variable per array"
            )
        if not isinstance(leaf, Variable):
            raise ArgumentError(
                f"{what} needs a Variable, or a dict, list or tuple of them; "
                f"got a {type(leaf).__name__}"
            )
        states.append(state_of(leaf))
    if not states:
        raise ArgumentError(f"{what} got no variables")
    ids: set[int] = set()
    for state in states:
        if id(state) in ids:
            raise ArgumentError(f"{what} got {state.label} twice; give each variable once")
        ids.add(id(state))
    return states


def like(vars: Any, results: Sequence[Any]) -> Any:
    """Returns results, one for each variable, in the structure of `vars`."""
    return results[0] if isinstance(vars, Variable) else unflatten(flatten(vars)[1], results)


def matched(
    vars: Any, states: Sequence[VariableState], values: Any, what: str
) -> list[list[Array]]:
    """Returns the arrays of each variable, checked, from values in the structure of `vars`."""
    return [
        accepted(state, value)
        for state, value in zip(states, values_of(vars, values, what), strict=True)
    ]


def matched_or_none(
    vars: Any, states: Sequence[VariableState], values: Any, what: str
) -> list[list[Array] | None]:
    """Returns the arrays of each variable, as `matched` does; None for a variable whose value is
    None, or if all values are.
    """
    parts = [None] * len(states) if values is None else values_of(vars, values, what)
    return [
        None if value is None else accepted(state, value)
        for state, value in zip(states, parts, strict=True)
    ]


def values_of(vars: Any, values: Any, what: str) -> list[Any]:
    """Returns the value for each variable, unchecked, from values in the structure of `vars`."""
    if isinstance(vars, Variable):
        return [values]
    structure = flatten(vars)[1]
    parts = parts_like(structure, values)
    if parts is None:
        raise DataError(
            f"{what} needs values in the structure of its variables, {describe(structure)}, but "
            f"got {shape_told(values)}"
        )
    return parts


def destinations(
    vars: Any, sources: Sequence[VariableState], dest: Any, what: str
) -> Sequence[VariableState]:
    """Returns the target variables, checked against the sources, which they are without `dest`."""
    if dest is None:
        return sources
    targets = several_of(dest, what)
    if not isinstance(vars, Variable) and flatten(vars)[1] != flatten(dest)[1]:
        raise ArgumentError(
            f"{what} needs dest= in the structure of its variables, {describe(flatten(vars)[1])}"
        )
    if len(targets) != len(sources):
        raise ArgumentError(
            f"{what} needs {len(sources)} variables in dest=, one per source, got {len(targets)}"
        )
    for source, target in zip(sources, targets, strict=True):
        if source.structure() != target.structure():
            raise ArgumentError(
                f"{what}: {target.label} in dest= is not a tree of the same "
                f"structure as {source.label}"
            )
        shapes = zip(source.root_shapes(), target.root_shapes(), strict=True)
        for (mine, theirs), gives, gets in zip(
            shapes, source.dtypes(), target.dtypes(), strict=True
        ):
            if gives != gets or len(mine) != len(theirs):
                raise DataError(
                    f"{what}: {target.label} in dest= is {len(theirs)}-D {gets}, but "
                    f"{source.label} is {len(mine)}-D {gives}; use the same dtype and number of "
                    f"dimensions"
                )
    return targets


def checked_op(states: Sequence[VariableState], op: object, what: str) -> CollectiveOp:
    """Returns the op, "avg" for "mean"; raises `ReductionError` if it is unknown, or not defined
    for a variable's dtype.
    """
    if op is None:
        raise ReductionError(
            f"{what} needs an op; there is no default, as torch and mpi4py sum and "
            f"Synkhronos averaged: write "
            f'synk.{what}(v, "sum") for the sum over the ranks, or synk.{what}(v, '
            f'"mean") for their average'
        )
    if not isinstance(op, str) or op not in _OPS:
        raise ReductionError(f"op must be one of {', '.join(map(repr, _OPS))}; got {op!r}")
    op_name = cast("CollectiveOp", _SAME_OPS.get(op, op))
    for state in states:
        for leaf, dtype in enumerate(state.dtypes()):
            way_out = _REFUSED[op_name].get(dtype.kind)
            if dtype.kind not in "biufc":
                way_out = (
                    "gather it and combine it yourself, or use a variable for each numeric field"
                )
            if way_out is not None:
                raise ReductionError(
                    f"{state.label_of(leaf)}: op {op!r} is not defined for dtype {dtype}; {way_out}"
                )
    return op_name


def check_rows(states: Sequence[VariableState], what: str) -> None:
    """Raises `PartitionError` if an array is 0-d and so has no rows."""
    for state in states:
        for leaf, shape in enumerate(state.root_shapes()):
            if not shape:
                problem = f"{state.label_of(leaf)} is 0-d; give it at least one dimension"
                raise PartitionError(f"{what} divides or joins rows, but {problem}")


def check_no_halo(states: Sequence[VariableState], what: str) -> None:
    """Raises `PartitionError` if ranks hold neighbours' rows; the variables have been placed."""
    for state in states:
        if state.halo is not None:
            raise PartitionError(
                f"{what}: {state.label} is scattered with a halo: rows of different ranks are not "
                f"the same rows; gather it"
            )


def check_halos(states: Sequence[VariableState]) -> None:
    """Raises `PartitionError` if a variable has no halo."""
    for state in states:
        if state.halo is None:
            what = "divided without a halo" if state.sharded else "a replica"
            raise PartitionError(f"exchange: {state.label} is {what}; scatter it with halo=1 first")


def check_uniform(
    states: Sequence[VariableState],
    what: str,
    way_out: str = "use all_gather or gather for arrays of different lengths",
) -> None:
    """Raises `PartitionError` if the shapes of own rows differ between ranks."""
    for state in states:
        for leaf, shapes in enumerate(map(state.storage().layout.own_shapes, state.leaves())):
            if len(set(shapes)) > 1:
                raise PartitionError(
                    f"{what} needs one shape on all ranks, but {state.label_of(leaf)} has "
                    f"{_told(shapes)}; {way_out}"
                )


def check_row_shapes(states: Sequence[VariableState], what: str) -> None:
    """Raises `PartitionError` if the ranks' rows differ in shape and cannot be concatenated."""
    for state in states:
        for leaf, shapes in enumerate(state.shapes()):
            if len({shape[1:] for shape in shapes}) > 1:
                raise PartitionError(
                    f"{what} concatenates rows, but those of {state.label_of(leaf)} differ "
                    f"in shape: {_told(shapes)}"
                )


def _told(shapes: Sequence[Shape]) -> str:
    return ", ".join(f"{shape} on rank {rank}" for rank, shape in enumerate(shapes))


# ---- collectives ---------------------------------------------------------------------------------


@known_options
def broadcast(vars: Any, values: Any = None, *, root: int = 0) -> Any:
    """Copies the root's arrays, or new values, to every rank.

    Without `values`, the ranks copy the root's arrays, in place if all ranks have the root's
    shapes. With `values`, the coordinator writes them to all ranks; a variable with a halo, which
    needs `values`, becomes a replica. Either way, arrays of other shapes are replaced, and all
    replicas are equal afterwards. Every rank waits for the root; the call returns when all ranks
    have their arrays.

    Args:
        vars: a `Variable`, or a tree of variables.
        values: new values for all ranks, in the structure of `vars`: arrays, `Data`, numbers or
            trees of these; None for the root's arrays, of all variables or in the place of one.
        root: rank whose arrays are copied; of no effect on variables that get values.

    Returns:
        `vars`.

    Raises:
        ArgumentError: `vars` contains something other than variables, or one variable twice.
        DataError: a value has another structure or number of dimensions, or its dtype does not cast
            safely.
        PartitionError: there is no such rank, or a variable has a halo and gets no values.
        WorldError: there is no world, or it is busy, or a variable belongs to another one, or this
            process is a rank.
        SharedMemoryError, RankError: there is no memory for the arrays; nothing has changed.
        DeviceError: the transport requested from `fork()` cannot be set up.
        RankDied, CallTimeout: a rank has died or takes too long; the world is closed, and `fork()`
            works again.
    """
    if values is None and (quick := run_known(vars, "broadcast", None, root)) is not None:
        return quick
    states = several_of(vars, "broadcast")
    accepted = matched_or_none(vars, states, values, "broadcast")
    with placed(states, initial=accepted) as world:
        root = check_rank(root, world.world_size)
        unchanged, assigned = [], []
        for state, arrays in zip(states, accepted, strict=True):
            if arrays is None:
                unchanged.append(state)
            else:
                of_ranks = dict.fromkeys(range(world.world_size), arrays)
                # before anything changes: there may be none
                assigned.append((state, of_ranks, state.room_for(world, of_ranks)))
        if unchanged:
            check_no_halo(unchanged, "broadcast")
            _broadcast_from(world, unchanged, root)
        for state, of_ranks, room in assigned:
            state.assign(world, of_ranks, room, sharded=False)
    return vars


def _broadcast_from(world: Engine, states: Sequence[VariableState], root: int) -> None:
    """Copies the root's arrays to all ranks, in place or to new memory with the root's shapes."""
    work = Work("broadcast", None, root)
    if all(leaf.uniform for state in states for leaf in state.storage().layout.leaves):
        run_in_place(world, work, states, differs=False)
        return
    pairs, targets = [], []
    for state in states:
        shapes = [(shapes[root],) * world.world_size for shapes in state.shapes()]
        targets.append(Allocation(world, state.layout_with(shapes)))
        pairs += pairs_of(state.storage(), targets[-1])
    traffic_of(world).collective(work, pairs)()
    for state, target in zip(states, targets, strict=True):
        state.replace(target, sharded=False)


@known_options
def scatter(
    vars: Any, values: Any = None, batch: Batch = None, *, halo: int = 0, periodic: bool = False
) -> Any:
    """Divides rows among the ranks: of n rows, rank r of W gets rows r·n // W up to (r+1)·n // W,
    as in calls.

    The rows pass through the coordinator: it writes each rank's part of `values`, or of the array
    that it first fetches from the root, rank 0: of a variable that is divided already, the root's
    own rows. Each rank holds only its own rows afterwards, possibly none; where the shape changes,
    in new memory. The call returns when all ranks have their rows.

    With `halo=h`, a rank's array also has copies of h rows of each neighbour, before and after its
    own rows. Kernels and functions get the array with these halos, which `exchange` renews; values,
    lengths and `sliceable=` are those of own rows. `synk.OWN` passes the `Span`, to functions the
    `range`, of own rows in the array, and `synk.OFFSET` the row of the whole at which the array
    begins; `synk.ROWS` is the length of the array, halos included.

    Args:
        vars: a `Variable`, or a tree of variables, of at least one dimension.
        values: rows to divide, in the structure of `vars`: arrays, `Data` or trees of these; None
            for the root's arrays, of all variables or in the place of one.
        batch: rows to select before dividing: an int (the first rows), a slice, a list of row
            numbers, or a boolean mask; None for all.
        halo: number of rows of each neighbour that a rank holds beside its own; 0 for none, also
            where there was a halo.
        periodic: whether the first and the last rank are neighbours too, so that the rows form a
            ring.

    Returns:
        `vars`.

    Raises:
        BatchError: the batch selects rows that do not exist, or none.
        PartitionError: an array is 0-d, or a rank would have fewer rows than the halo.
        ArgumentError: `halo` is no int of at least 0, or `periodic` is given without it; or as for
            `broadcast`.
        DataError, WorldError, SharedMemoryError, RankError, RankDied, CallTimeout: as for
            `broadcast`.
    """
    states, ring = several_of(vars, "scatter"), _halo_of(halo, periodic)
    check_rows(states, "scatter")
    new_arrays = matched_or_none(vars, states, values, "scatter")
    accepted = [
        state.fetch([0])[0] if arrays is None else arrays
        for state, arrays in zip(states, new_arrays, strict=True)
    ]
    chosen = [
        [(array, rows_module.select(batch, len(array))) for array in arrays] for arrays in accepted
    ]
    # the rows follow
    empty = [None if arrays is None else [array[:0] for array in arrays] for arrays in new_arrays]
    for state, arrays in zip(states, chosen, strict=True):
        check_rows_for(ring, [rows.count for _, rows in arrays], state.label)
    with placed(states, initial=empty) as world:
        ranks, partition = range(world.world_size), world.partition
        parts = [
            {
                rank: [
                    held_rows(partial(_taken_between, *pair), pair[1].count, partition, rank, ring)
                    for pair in pairs
                ]
                for rank in ranks
            }
            for pairs in chosen
        ]
        give_rows(world, states, parts, ring)
    return vars


def _halo_of(width: Any, periodic: Any) -> Halo | None:
    """Returns the halo that the options of `scatter` mean; None for a width of 0."""
    is_ring = as_flag(periodic, "scatter: periodic")
    try:
        number = -1 if isinstance(width, bool | np.bool) else operator.index(width)
    except TypeError:
        number = -1
    if number < 0:
        raise ArgumentError(
            f"scatter: halo must be an int of at least 1, or 0 for no halo, got {width!r}"
        )
    if is_ring and not number:
        raise ArgumentError(
            "scatter: periodic=True needs halo=…, the number of rows of each "
            "neighbour, such as halo=1"
        )
    return Halo(number, is_ring) if number else None


def check_rows_for(halo: Halo | None, lengths: Sequence[int], label: str) -> None:
    """Raises `PartitionError` if arrays of these lengths have too few rows for a halo on the
    ranks of the open world.
    """
    if halo is None:
        return
    partition = current_world().partition
    for problem in filter(
        None, (halo.problem(partition.counts(length), label) for length in lengths)
    ):
        raise PartitionError(f"scatter: {problem}; use a narrower halo, or fewer ranks")


def _taken_between(array: Array, rows: Rows, start: int, stop: int) -> Array:
    return _taken(array, rows.between(start, stop))


def _taken(array: Array, rows: Rows) -> Array:
    """Returns rows of an array: a view for a range of rows, a copy for a list."""
    return (
        array[rows.as_slice()]
        if isinstance(rows, rows_module.Range)
        else np.take(array, rows.indices, axis=0)
    )


@known_options
def gather(vars: Any, nd_up: Literal[0, 1] | None = None) -> Any:
    """Returns the arrays of all ranks, joined in rank order, without halos. The variables do not
    change.

    Args:
        vars: a `Variable`, or a tree of variables.
        nd_up: 0 to concatenate rows, whose number may differ between ranks; 1 to stack along a new
            first axis, one entry per rank, which needs one shape on all ranks. None for the rows of
            a divided variable, as after `scatter`, and one entry per rank of replicas.

    Returns:
        NumPy arrays in the coordinator's own memory, in the structure of `vars`. With W ranks and
        arrays of shape (n, …), their shape is (sum of all n, …) for `nd_up=0`, and (W, n, …) for
        `nd_up=1`.

    Raises:
        PartitionError: the shapes on the ranks do not allow it, or `nd_up` is none of these.
        ArgumentError, WorldError, SharedMemoryError, RankDied, CallTimeout: as for `broadcast`.
    """
    states = several_of(vars, "gather")
    if nd_up is not None and (type(nd_up) is not int or nd_up not in {0, 1}):
        raise PartitionError(
            f"nd_up must be 1 (a new axis, one entry per rank) or 0 (rows "
            f"concatenated), got {nd_up!r}"
        )
    with placed(states, written=()) as world:
        stacked = [not state.sharded if nd_up is None else nd_up == 1 for state in states]
        check_uniform(
            [state for state, stacks in zip(states, stacked, strict=True) if stacks],
            "gather with nd_up=1",
            "use nd_up=0 to concatenate rows",
        )
        joined = [state for state, stacks in zip(states, stacked, strict=True) if not stacks]
        check_rows(joined, "gather with nd_up=0")
        check_row_shapes(joined, "gather")
        copies = [state.own_copies(world, range(world.world_size)) for state in states]
    results = []
    for state, by_rank, stacks in zip(states, copies, stacked, strict=True):
        join: Callable[[Sequence[Array]], Array] = np.stack if stacks else np.concatenate
        leaves = [join([arrays[leaf] for arrays in by_rank]) for leaf in state.leaves()]
        results.append(unflatten(state.structure(), leaves))
    return like(vars, results)


@known_options
def all_gather(vars: Any, dest: Any = None) -> Any:
    """Concatenates the rows of all ranks in rank order, on every rank. Numbers of rows may differ
    between ranks.

    Every rank waits for all others; the call returns when all have the result. Replicas of the
    result are equal. Not in place: the result of `vars` themselves gets new memory, and so does
    that of a `dest` whose shapes do not fit or that is in `vars` too.

    Args:
        vars: a `Variable`, or a tree of variables, of at least one dimension.
        dest: variables for the result, in the structure of `vars`, of the same dtypes and numbers
            of dimensions; None for `vars` themselves.

    Returns:
        The variables that have the result: `dest`, or `vars`.

    Raises:
        PartitionError: an array is 0-d, or the shapes of rows differ between ranks.
        ArgumentError, DataError: as for `broadcast`, or `dest` does not match `vars`.
        WorldError, SharedMemoryError, RankError, DeviceError, RankDied, CallTimeout: as for
            `broadcast`.
    """
    if (quick := run_known(vars, "all_gather", None, dest=dest)) is not None:
        return quick
    states = several_of(vars, "all_gather")
    check_rows(states, "all_gather")
    targets = destinations(vars, states, dest, "all_gather")
    with placed([*states, *targets], written=targets) as world:
        check_no_halo(states, "all_gather")
        check_row_shapes(states, "all_gather")

        def shape(shapes: tuple[Shape, ...], _: int) -> Shape:
            return (sum(shape_of_rank[0] for shape_of_rank in shapes), *shapes[0][1:])

        run_into(world, Work("all_gather"), states, targets, shape, sharded=False)
    return vars if dest is None else dest


@known_options
def reduce(
    vars: Any,
    op: CollectiveOp | Literal["mean"] | None = None,
    in_place: bool = True,
    *,
    root: int = 0,
) -> Any:
    """Combines the arrays of all ranks, element by element, on the root.

    In place, the root's array becomes the result and other ranks keep theirs, so replicas may
    differ afterwards. Not in place, the result is returned, and no rank's array changes. The root
    waits for all ranks; the call returns when all are done.

    Args:
        vars: a `Variable`, or a tree of variables, of the same shape on all ranks.
        op: "sum", "prod": in the variable's dtype, so integers wrap; "min", "max": a NaN on any
            rank gives NaN; "mean" or "avg": the sum divided by the number of ranks, in the
            variable's dtype. Required.
        in_place: whether the root's array becomes the result.
        root: rank that gets the result.

    Returns:
        `vars`; not in place, NumPy arrays in the structure of `vars`.

    Raises:
        ReductionError: the op is missing, unknown, or not defined for the dtype: "mean" needs
            floats or complex numbers, "min" and "max" ordered values, and no op but "min" and "max"
            takes booleans.
        PartitionError: the shapes differ between ranks, or there is no such rank.
        ArgumentError, WorldError, SharedMemoryError: as for `broadcast`.
        RankError, DeviceError, RankDied, CallTimeout: as for `broadcast`.
    """
    if in_place and (quick := run_known(vars, "reduce", op, root)) is not None:
        return quick
    states = several_of(vars, "reduce")
    op_name = checked_op(states, op, "reduce")
    written = states if in_place else ()
    with placed(states, written=written) as world:
        root = check_rank(root, world.world_size)
        check_no_halo(states, "reduce")
        check_uniform(states, "reduce")
        if in_place:
            run_in_place(world, Work("reduce", op_name, root), states, differs=world.world_size > 1)
            return vars
        traffic = traffic_of(world)
        results = [
            unflatten(
                state.structure(), traffic.reduced(Work("reduce", op_name, root), state.storage())
            )
            for state in states
        ]
    return like(vars, results)


@known_options
def all_reduce(vars: Any, op: CollectiveOp | Literal["mean"] | None = None) -> Any:
    """Combines the arrays of all ranks, element by element, and gives every rank the result, in
    place.

    Every rank waits for all others; the call returns when all have the result. All replicas are
    equal afterwards.

    Args:
        vars: a `Variable`, or a tree of variables, of the same shape on all ranks.
        op: op, as for `reduce`.

    Returns:
        `vars`.

    Raises:
        ReductionError, PartitionError: as for `reduce`.
        ArgumentError, WorldError, SharedMemoryError: as for `broadcast`.
        RankError, DeviceError, RankDied, CallTimeout: as for `broadcast`.
    """
    if (quick := run_known(vars, "all_reduce", op)) is not None:
        return quick
    states = several_of(vars, "all_reduce")
    op_name = checked_op(states, op, "all_reduce")
    with placed(states) as world:
        check_no_halo(states, "all_reduce")
        check_uniform(states, "all_reduce")
        run_in_place(world, Work("all_reduce", op_name), states, differs=False)
    return vars


@known_options
def reduce_scatter(
    vars: Any, op: CollectiveOp | Literal["mean"] | None = None, dest: Any = None
) -> Any:
    """Combines the arrays of all ranks, element by element, and gives each rank its rows of the
    result.

    Rows are divided as by `scatter`. Every rank waits for all others; the call returns when all
    have their rows. Not in place: the result of `vars` themselves gets new memory, and so does that
    of a `dest` whose shapes do not fit or that is in `vars` too.

    Args:
        vars: a `Variable`, or a tree of variables, of the same shape on all ranks and at least one
            dimension.
        op: op, as for `reduce`.
        dest: variables for the result, in the structure of `vars`, of the same dtypes and numbers
            of dimensions; None for `vars` themselves.

    Returns:
        The variables that have the result: `dest`, or `vars`.

    Raises:
        PartitionError: an array is 0-d, or the shapes differ between ranks.
        ArgumentError, DataError: as for `broadcast`, or `dest` does not match `vars`.
        ReductionError: as for `reduce`.
        WorldError, SharedMemoryError, RankError, DeviceError, RankDied, CallTimeout: as for
            `broadcast`.
    """
    if (quick := run_known(vars, "reduce_scatter", op, dest=dest)) is not None:
        return quick
    states = several_of(vars, "reduce_scatter")
    op_name = checked_op(states, op, "reduce_scatter")
    check_rows(states, "reduce_scatter")
    targets = destinations(vars, states, dest, "reduce_scatter")
    with placed([*states, *targets], written=targets) as world:
        check_no_halo(states, "reduce_scatter")
        check_uniform(states, "reduce_scatter")

        def shape(shapes: tuple[Shape, ...], rank: int) -> Shape:
            start, stop = world.partition.part(shapes[0][0], rank)
            return (stop - start, *shapes[0][1:])

        run_into(world, Work("reduce_scatter", op_name), states, targets, shape, sharded=True)
    return vars if dest is None else dest


_NOTHING: Any = object()


@known_options
def exchange(vars: Any, *, during: Callable[[], object] = _NOTHING) -> Any:
    """Copies rows of neighbours to the halos of variables that are scattered with a halo.

    Every rank waits for its neighbours; the call returns when all have their rows. Own rows do not
    change. The halos of several variables are exchanged together.

    Args:
        vars: a `Variable`, or a tree of variables, each divided by `scatter` with `halo=`.
        during: function that makes calls, for which neighbours need not be waited, as in
            `edges(u, v); synk.exchange(v, during=lambda: interior(u, v))`. It runs first, unless
            the exchange is refused. Its calls must neither read the halos of `vars`, which are old,
            nor write the rows that neighbours get: in a sequence they may run while neighbours read
            those.

    Returns:
        `vars`.

    Raises:
        PartitionError: a variable has no halo.
        ArgumentError, WorldError, SharedMemoryError: as for `broadcast`.
        RankError, DeviceError, RankDied, CallTimeout: as for `broadcast`.
    """
    if during is not _NOTHING:
        if not callable(during):
            called = (
                ". Write during=lambda: f(u, v): the call during=f(u, v) is "
                "made before the exchange"
                if during is None
                else ""
            )
            raise ArgumentError(
                f"exchange: during takes a function without arguments, that makes "
                f"calls; got {during!r}{called}"
            )
        states = several_of(vars, "exchange")
        if tracing.current is not None and tracing.current.is_here:
            return tracing.current.beside(during, vars)
        with placed(states, written=()):
            check_halos(states)  # before anything has run
        during()
    if (quick := run_known(vars, "exchange", None)) is not None:
        return quick
    states = several_of(vars, "exchange")
    with placed(states) as world:
        check_halos(states)
        run_in_place(world, Work("exchange"), states, differs=world.world_size > 1, sharded=True)
    return vars


@known_options
def swap(first: Variable, second: Variable) -> None:
    """Exchanges the memory of two variables: each has the other's values, rows and halo afterwards.
    Nothing is copied.

    In a sequence the calls after it use the memory of the other; the ranks run the body alternately
    in both ways.

    Args:
        first: a `Variable`.
        second: another, of the same structure and dtypes, and of the same shapes on every rank.

    Raises:
        ArgumentError, DataError: they are not two variables that fit each other.
        WorldError, SharedMemoryError, VariableLost: as for `broadcast`.
    """
    states = several_of([first, second], "swap")
    if not isinstance(first, Variable) or not isinstance(second, Variable):
        raise ArgumentError("swap takes two variables, as in synk.swap(u, v)")
    left, right = states
    if left.structure() != right.structure():
        raise ArgumentError(f"swap: {left.label} and {right.label} are trees of other structures")
    if tracing.current is not None and tracing.current.is_here:
        tracing.current.swap(left, right)
        return
    if open_world() is None:
        check_alike(left, right, [[(shape,) for shape in state.root_shapes()] for state in states])
        left.trade(right)
        return
    with placed(states):
        check_alike(left, right, [state.shapes() for state in states])
        left.trade(right)


def check_alike(
    first: VariableState, second: VariableState, shapes: Sequence[Sequence[tuple[Shape, ...]]]
) -> None:
    """Raises `DataError` if two variables cannot take each other's place; `shapes` are those of
    their arrays, by rank.
    """
    for index, (mine, theirs) in enumerate(zip(*shapes, strict=True)):
        my_dtype, their_dtype = first.dtypes()[index], second.dtypes()[index]
        if (my_dtype, mine) != (their_dtype, theirs):
            raise DataError(
                f"swap: {_described(first, my_dtype, mine)} and "
                f"{_described(second, their_dtype, theirs)}; swapped variables must have the same "
                f"dtype, and the same shape on every rank"
            )


def _described(state: VariableState, dtype: np.dtype[Any], shapes: Sequence[Shape]) -> str:
    shape = shapes[0] if len(set(shapes)) == 1 else list(shapes)
    return f"{state.label} is {dtype} {shape}"


@known_options
def snapshot(vars: Any) -> Any:
    """Returns copies of the values of variables: a replica's array, and of divided variables the
    rows of all ranks, joined.

    To keep the values of all variables for the case that a rank dies, call `World.snapshot`.

    Args:
        vars: a `Variable`, or a tree of variables.

    Returns:
        NumPy arrays in the structure of `vars`. `broadcast(v, value)` puts that of a replica back,
        and `scatter(v, value)` that of a divided variable, in this world or another.

    Raises:
        PartitionError: each rank has an array of its own that is not a part of a whole, such as a
            scalar.
        VariableLost: the values ended with the ranks of their world.
        ArgumentError, WorldError, SharedMemoryError, RankDied, CallTimeout: as for `broadcast`.
    """
    return like(vars, [state.whole_value() for state in several_of(vars, "snapshot")])


# ---- single ranks --------------------------------------------------------------------------------


@known_options
def set_value(rank: int, vars: Any, values: Any, batch: Batch = None) -> Any:
    """Sets one rank's arrays to new values; other ranks keep theirs, so replicas may differ
    afterwards.

    Args:
        rank: rank to write to.
        vars: a `Variable`, or a tree of variables.
        values: new values, in the structure of `vars`: arrays, `Data`, numbers or trees of these.
            Shapes may differ from the old ones; those of a variable with a halo are its own rows on
            that rank, as many as before, and halos stay as they are until `exchange`.
        batch: rows of `values` to write, as for `scatter`; None for all.

    Returns:
        `vars`.

    Raises:
        PartitionError: there is no such rank, or an array is 0-d and `batch` is given, or a
            variable has a halo and own rows of another shape.
        ArgumentError, DataError, BatchError, WorldError, SharedMemoryError: as for `scatter`.
        RankError, RankDied, CallTimeout: as for `scatter`.
    """
    states = several_of(vars, "set_value")
    accepted = matched(vars, states, values, "set_value")
    if batch is not None:
        check_rows(states, "set_value with batch=")
        accepted = [
            [_taken(array, rows_module.select(batch, len(array))) for array in arrays]
            for arrays in accepted
        ]
    with placed(states) as world:
        rank = check_rank(rank, world.world_size)
        rooms = [
            state.room_to_set(world, {rank: arrays})
            for state, arrays in zip(states, accepted, strict=True)
        ]
        for state, arrays, (room, without_halos) in zip(states, accepted, rooms, strict=True):
            state.assign(world, {rank: arrays}, room, without_halos=without_halos)
    return vars


@known_options
def get_value(rank: int, vars: Any) -> Any:
    """Returns copies of one rank's arrays, without halos, as NumPy arrays in the structure of
    `vars`.

    Raises:
        ArgumentError, PartitionError, WorldError, SharedMemoryError, RankDied, CallTimeout: as for
            `broadcast`.
    """
    return like(vars, [state.value_on(rank) for state in several_of(vars, "get_value")])


@known_options
def get_lengths(vars: Any) -> Any:
    """Returns the number of own rows of each rank: for each array a list with one int per rank, in
    the structure of `vars`.

    Raises:
        PartitionError: an array is 0-d.
        ArgumentError, WorldError: as for `broadcast`.
    """
    states = several_of(vars, "get_lengths")
    check_rows(states, "get_lengths")
    return _of_ranks(
        vars, states, lambda state, leaf: list(state.storage().layout.own_counts(leaf))
    )


@known_options
def get_shapes(vars: Any) -> Any:
    """Returns the shape on each rank, with halos: for each array a list with one tuple per rank, in
    the structure of `vars`.

    Raises:
        ArgumentError, WorldError: as for `broadcast`.
    """
    return _of_ranks(
        vars, several_of(vars, "get_shapes"), lambda state, leaf: list(state.shapes()[leaf])
    )


def _of_ranks(
    vars: Any,
    states: Sequence[VariableState],
    describe_leaf: Callable[[VariableState, int], list[Any]],
) -> Any:
    with placed(states, written=()):
        results = [
            unflatten(state.structure(), [describe_leaf(state, leaf) for leaf in state.leaves()])
            for state in states
        ]
    return like(vars, results)
