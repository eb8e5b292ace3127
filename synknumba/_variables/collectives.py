"""The collectives over variables, and access to the arrays of single ranks.

    vars, values ──checked──> world.begin ── variables placed, plan found or made, run ── world.end ──> vars, or NumPy arrays

`vars` is one `Variable`, or a nested dict, list or tuple of variables, which are processed
together; values and results have the same structure. All arguments are checked before anything is
sent.

Only the coordinator calls these functions, once for all ranks; on a rank they raise `WorldError`.
All ranks take part, and a function returns when every rank is done.
"""  # noqa: E501

from collections.abc import Callable, Sequence
from itertools import filterfalse
from typing import Any, Literal, NamedTuple

import numpy as np

from synknumba import _tracing as tracing
from synknumba._errors import ArgumentError, PartitionError
from synknumba._ops import rows as rows_module
from synknumba._ops.blocks import equal_counts
from synknumba._ops.halo import Halo
from synknumba._ops.rows import Partition, Rows
from synknumba._types import Array, Batch, CollectiveOp, Shape, as_flag, class_text, known_options
from synknumba._variables.collective_arguments import (
    VariableGroup,
    check_alike,
    check_rows_for,
    halo_of,
)
from synknumba._variables.collective_call import collective_call, run, run_known
from synknumba._variables.collective_plans import CollectiveSpec
from synknumba._variables.kept_values import held_rows, without_rows
from synknumba._variables.state import (
    VariableState,
    check_rank,
    joined_shape,
    transfers_of,
    write_all,
)
from synknumba._variables.variable import Variable
from synknumba._world.open_world import open_world


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

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> with synk.fork(2, device="cpu"):
        ...     v = synk.variable(np.zeros(2))
        ...     synk.gather(synk.broadcast(v, [1.0, 2.0]))
        array([[1., 2.],
               [1., 2.]])
    """
    if values is None and (result := run_known(vars, "broadcast", None, root)) is not None:
        return result
    group = VariableGroup.of(vars, "broadcast")
    new_arrays = group.matched_or_none(values)
    with collective_call(group.states, initial=new_arrays) as world:
        root = check_rank(root, world.world_size)
        copied, assignments = [], []
        for state, arrays in zip(group.states, new_arrays, strict=True):
            if arrays is None:
                copied.append(state)
            else:
                # before anything changes: there may be no memory
                of_ranks = dict.fromkeys(range(world.world_size), arrays)
                assignments.append(state.assignment(world, of_ranks, sharded=False))
        if copied:
            VariableGroup("broadcast", copied).check_no_halo()
            spec = CollectiveSpec("broadcast", None, root)
            is_uniform = all(state.storage().is_uniform for state in copied)
            shape_of = None if is_uniform else lambda shapes, _: shapes[root]
            run(world, spec, copied, shape_of=shape_of)
        write_all(world, assignments)
    return vars


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
    lengths and `rows=` are those of own rows. `synk.OWN` passes the `Span`, to functions the
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

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> with synk.fork(2, device="cpu"):
        ...     v = synk.scatter(synk.variable(np.zeros(5)), np.arange(5.0))
        ...     synk.get_lengths(v)
        ...     v = synk.scatter(v, np.arange(5.0), halo=1)
        ...     synk.get_shapes(v)
        [2, 3]
        [(3,), (4,)]
    """
    group, ring = VariableGroup.of(vars, "scatter"), halo_of(halo, periodic)
    group.check_rows()
    new_arrays = group.matched_or_none(values)
    chosen: list[list[_Selection]] = []
    initial: list[list[Array] | None] = []
    for state, arrays in zip(group.states, new_arrays, strict=True):
        if arrays is None:
            (wholes,) = state.fetch([0])
            initial.append(None)
        else:
            wholes = arrays
            initial.append(without_rows(arrays))  # the rows follow
        selections = [_Selection.of(whole, batch) for whole in wholes]
        check_rows_for(ring, [selection.rows.count for selection in selections], state.label)
        chosen.append(selections)
    with collective_call(group.states, initial=initial) as world:
        assignments = []
        for state, selections in zip(group.states, chosen, strict=True):
            of_ranks: dict[int, list[Array]] = {}
            for rank in range(world.world_size):
                of_ranks[rank] = [item.held_by(rank, world.partition, ring) for item in selections]
            assignments.append(state.assignment(world, of_ranks, ring, sharded=True))
        write_all(world, assignments)
    return vars


class _Selection(NamedTuple):
    """Rows of an array."""

    array: Array
    rows: Rows

    @classmethod
    def of(cls, array: Array, batch: Batch) -> "_Selection":
        """Returns the rows of an array that a batch selects."""
        return cls(array, rows_module.select(batch, len(array)))

    def held_by(self, rank: int, partition: Partition, halo: Halo | None) -> Array:
        """Returns the rows that a rank holds."""
        return held_rows(self._between, self.rows.count, partition, rank, halo)

    def _between(self, start: int, stop: int) -> Array:
        return _taken(self.array, self.rows.between(start, stop))


def _taken(array: Array, rows: Rows) -> Array:
    """Returns rows of an array: a view for a range of rows, a copy for a list."""
    if isinstance(rows, rows_module.Range):
        return array[rows.selector]
    return np.take(array, rows.indices, axis=0)


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

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> with synk.fork(2, device="cpu"):
        ...     v = synk.scatter(synk.variable(np.zeros(3)), [1.0, 2.0, 3.0])
        ...     synk.gather(v)
        array([1., 2., 3.])
    """
    group = VariableGroup.of(vars, "gather")
    if nd_up is not None and (type(nd_up) is not int or nd_up not in {0, 1}):
        raise PartitionError(
            f"nd_up must be 1 (a new axis, one entry per rank) or 0 (rows "
            f"concatenated), got {nd_up!r}"
        )

    def is_stacked(state: VariableState) -> bool:
        if nd_up is None:
            return not state.sharded
        return nd_up == 1

    with collective_call(group.states, written=()) as world:
        stacked = VariableGroup("gather with nd_up=1", list(filter(is_stacked, group.states)))
        stacked.check_uniform("use nd_up=0 to concatenate rows")
        joined = list(filterfalse(is_stacked, group.states))
        VariableGroup("gather with nd_up=0", joined).check_rows()
        VariableGroup("gather", joined).check_row_shapes()

        def gathered(state: VariableState) -> Any:
            join: Callable[[Sequence[Array]], Array] = np.concatenate
            if is_stacked(state):
                join = np.stack
            by_rank = state.own_copies(world, range(world.world_size))
            return state.as_tree(list(map(join, zip(*by_rank, strict=True))))

        return group.each(gathered)


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

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> with synk.fork(2, device="cpu"):
        ...     v = synk.scatter(synk.variable(np.zeros(3)), [1.0, 2.0, 3.0])
        ...     synk.gather(synk.all_gather(v))
        array([[1., 2., 3.],
               [1., 2., 3.]])
    """
    if (result := run_known(vars, "all_gather", None, dest=dest)) is not None:
        return result
    group = VariableGroup.of(vars, "all_gather")
    group.check_rows()
    targets = group.destinations(dest).states
    with collective_call([*group.states, *targets], written=targets) as world:
        group.check_no_halo()
        group.check_row_shapes()
        spec = CollectiveSpec("all_gather")
        run(world, spec, group.states, targets, lambda shapes, _: joined_shape(shapes))
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

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> with synk.fork(2, device="cpu"):
        ...     v = synk.scatter(synk.variable(np.zeros(2)), [1.0, 2.0])
        ...     synk.reduce(v, "max", in_place=False)
        array([2.])
    """
    if in_place and (result := run_known(vars, "reduce", op, root)) is not None:
        return result
    group = VariableGroup.of(vars, "reduce")
    op_name = group.checked_op(op)
    with collective_call(group.states, written=group.states if in_place else ()) as world:
        spec = CollectiveSpec("reduce", op_name, check_rank(root, world.world_size))
        group.check_no_halo()
        group.check_uniform()
        if in_place:
            run(world, spec, group.states)
            return vars
        transfers = transfers_of(world)
        return group.each(lambda state: state.as_tree(transfers.reduced(spec, state.storage())))


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

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> with synk.fork(2, device="cpu"):
        ...     v = synk.scatter(synk.variable(np.zeros(2)), [1.0, 2.0])
        ...     synk.gather(synk.all_reduce(v, "sum"))
        array([[3.],
               [3.]])
    """
    if (result := run_known(vars, "all_reduce", op)) is not None:
        return result
    group = VariableGroup.of(vars, "all_reduce")
    op_name = group.checked_op(op)
    with collective_call(group.states) as world:
        group.check_no_halo()
        group.check_uniform()
        run(world, CollectiveSpec("all_reduce", op_name), group.states)
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

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> with synk.fork(2, device="cpu"):
        ...     v = synk.variable([1.0, 2.0, 3.0])  # on each of the ranks
        ...     v = synk.reduce_scatter(v, "sum")
        ...     synk.get_lengths(v), synk.gather(v)
        ([1, 2], array([2., 4., 6.]))
    """
    if (result := run_known(vars, "reduce_scatter", op, dest=dest)) is not None:
        return result
    group = VariableGroup.of(vars, "reduce_scatter")
    op_name = group.checked_op(op)
    group.check_rows()
    targets = group.destinations(dest).states
    with collective_call([*group.states, *targets], written=targets) as world:
        group.check_no_halo()
        group.check_uniform()

        def shape_of(shapes: tuple[Shape, ...], rank: int) -> Shape:
            start, stop = world.partition.part(shapes[0][0], rank)
            return (stop - start, *shapes[0][1:])

        spec = CollectiveSpec("reduce_scatter", op_name)
        run(world, spec, group.states, targets, shape_of)
    return vars if dest is None else dest


@known_options
def all_to_all(vars: Any, dest: Any = None, counts: Any = None) -> Any:
    """Sends block j of each rank's rows to rank j, which gets the blocks of all ranks in rank
    order.

    Numbers of rows may differ between ranks, before and after. Every rank waits for all others; the
    call returns when all have their rows. Not in place: the result of `vars` themselves gets new
    memory, and so does that of a `dest` whose shapes do not fit or that is in `vars` too. Without
    `counts`, repeated calls are fastest.

    Args:
        vars: a `Variable`, or a tree of variables, each divided by rows, as after `scatter`,
            without a halo.
        dest: variables for the result, in the structure of `vars`, of the same dtypes and numbers
            of dimensions; None for `vars` themselves.
        counts: numbers of rows, the same for all arrays: integers of shape (W, W), where rank r
            sends its next `counts[r, j]` rows to rank j; or a `Variable` that has row r of these on
            rank r, where a kernel may have counted. None for W blocks of equal length on each rank.

    Returns:
        The variables that have the result: `dest`, or `vars`.

    Raises:
        PartitionError: a variable is a replica or has a halo, or an array is 0-d, or the shapes of
            rows differ between ranks; counts are negative, or do not add up to a rank's rows, or
            without them, a rank's rows are no W blocks.
        ArgumentError, DataError: as for `broadcast`, or `dest` does not match `vars`, or this is in
            a sequence, where no memory is made.
        WorldError, SharedMemoryError, RankError, DeviceError, RankDied, CallTimeout: as for
            `broadcast`.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> with synk.fork(2, device="cpu"):
        ...     v = synk.scatter(synk.variable(np.arange(8)))
        ...     synk.gather(synk.all_to_all(v))
        ...     v = synk.all_to_all(v, counts=[[1, 3], [0, 4]])
        ...     synk.get_lengths(v), synk.gather(v)
        array([0, 1, 4, 5, 2, 3, 6, 7])
        ([1, 7], array([0, 1, 4, 5, 2, 3, 6, 7]))
    """
    if counts is None and (result := run_known(vars, "all_to_all", None, dest=dest)) is not None:
        return result
    group = VariableGroup.of(vars, "all_to_all")
    group.check_rows()
    targets = group.destinations(dest).states
    tables: Sequence[VariableState] = ()
    if isinstance(counts, Variable):
        tables = VariableGroup.of(counts, "all_to_all").states
    with collective_call([*group.states, *targets, *tables], written=targets) as world:
        group.check_divided()
        group.check_no_halo()
        group.check_row_shapes()
        for table in tables:
            counts = _counts_in(table.own_copies(world, range(world.world_size)))
        spec = CollectiveSpec("all_to_all", counts=group.checked_counts(counts))

        def shape_of(shapes: tuple[Shape, ...], rank: int) -> Shape:
            sent = spec.counts or equal_counts([length for length, *_ in shapes])
            return (sum(by_target[rank] for by_target in sent), *shapes[rank][1:])

        run(world, spec, group.states, targets, shape_of)
    return vars if dest is None else dest


def _counts_in(by_rank: Sequence[Sequence[Array]]) -> Array:
    """Returns the counts that the ranks have, a row for each; in one row if the ranks have
    different numbers of them.
    """
    rows = [np.concatenate(list(map(np.ravel, arrays))) for arrays in by_rank]
    if len(set(map(len, rows))) > 1:
        return np.concatenate(rows)
    return np.stack(rows)


_NOTHING: Any = Ellipsis  # as signatures in messages show it


@known_options
def exchange(vars: Any, *, add: bool = False, during: Callable[[], object] = _NOTHING) -> Any:
    """Copies rows of neighbours to the halos of variables that are scattered with a halo, or adds
    halos to the rows of neighbours that they are copies of.

    Every rank waits for its neighbours; the call returns when all have their rows. The halos of
    several variables are exchanged together.

    Without `add`, own rows do not change. With `add=True` halos do not: kernels have added to them
    what belongs to rows of neighbours, such as charges of particles near the edge, and each rank
    adds that to its own rows, always in one order. That is the transpose of the exchange as a
    matrix, so it also takes derivatives back through one. Before more is added to halos, set them
    to 0; else they are added again.

    Args:
        vars: a `Variable`, or a tree of variables, each divided by `scatter` with `halo=`.
        add: whether halos are added to the rows that they are copies of, in the variable's dtype.
        during: function that makes calls, for which neighbours need not be waited, as in
            `edges(u, v); synk.exchange(v, during=lambda: interior(u, v))`. It runs first, unless
            the exchange is refused. Its calls must neither read the halos of `vars`, which are old,
            nor write the rows that neighbours get: in a sequence they may run while neighbours read
            those. Not with `add`.

    Returns:
        `vars`.

    Raises:
        PartitionError: a variable has no halo.
        ReductionError: a variable to add is of booleans, or of no numbers.
        ArgumentError, WorldError, SharedMemoryError: as for `broadcast`, or `add` is no bool, or
            given with `during`.
        RankError, DeviceError, RankDied, CallTimeout: as for `broadcast`.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> @synk.function
        ... def average(u, v, own):
        ...     for i in own:
        ...         v[i] = (u[i - 1] + u[i + 1]) / 2
        >>> with synk.fork(2, device="cpu"):
        ...     u, v = synk.variable(np.zeros(4)), synk.variable(np.zeros(4))
        ...     u = synk.scatter(u, [0.0, 4.0, 0.0, 0.0], halo=1, periodic=True)
        ...     v = synk.scatter(v, np.zeros(4), halo=1, periodic=True)
        ...     for _ in range(2):
        ...         u = synk.exchange(u)
        ...         average(u, v, synk.OWN)
        ...         synk.swap(u, v)
        ...     synk.gather(u)
        array([0., 2., 0., 2.])
        >>> @synk.function
        ... def deposit(u):
        ...     u[:] = 1  # halos, too
        >>> with synk.fork(2, device="cpu"):
        ...     u = synk.scatter(synk.variable(np.zeros(4)), halo=1, periodic=True)
        ...     deposit(u)
        ...     synk.gather(synk.exchange(u, add=True))
        array([2., 2., 2., 2.])
    """
    adds = as_flag(add, "exchange: add")
    op: CollectiveOp | None = "sum" if adds else None
    if during is not _NOTHING:
        _check_during(during)
        if adds:
            raise ArgumentError(
                "exchange: add=True changes own rows, so nothing runs beside it; leave out during= "
                "and make its calls before"
            )
        group = VariableGroup.of(vars, "exchange")
        if tracing.current is not None and tracing.current.is_here:
            return tracing.current.beside(during, vars)
        with collective_call(group.states, written=()):
            group.check_halos()  # before anything has run
        during()
    if (result := run_known(vars, "exchange", op)) is not None:
        return result
    group = VariableGroup.of(vars, "exchange")
    if adds:
        group.checked_op(op)
    with collective_call(group.states) as world:
        group.check_halos()
        run(world, CollectiveSpec("exchange", op), group.states)
    return vars


def _check_during(during: object) -> None:
    if callable(during):
        return
    advice = ""
    if during is None:
        advice = (
            ". Write during=lambda: f(u, v): the call during=f(u, v) is made before the exchange"
        )
    raise ArgumentError(
        f"exchange: during takes a function without arguments, that makes calls; "
        f"got {during!r}{advice}"
    )


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

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> with synk.fork(2, device="cpu"):
        ...     u, v = synk.variable(np.zeros(2)), synk.variable(np.ones(2))
        ...     synk.swap(u, v)
        ...     u.get_value(), v.get_value()
        (array([1., 1.]), array([0., 0.]))
    """
    states = VariableGroup.of([first, second], "swap").states
    if not isinstance(first, Variable) or not isinstance(second, Variable):
        raise ArgumentError("swap takes two variables, as in synk.swap(u, v)")
    u, v = states
    if u.structure() != v.structure():
        raise ArgumentError(f"swap: {u.label} and {v.label} are trees of other structures")
    if tracing.current is not None and tracing.current.is_here:
        tracing.current.swap(first, second)
        return
    if open_world() is None:
        # of one rank
        check_alike(u, v, [list(zip(state.root_shapes())) for state in states])
        u.trade(v)
        return
    with collective_call(states):
        check_alike(u, v, [state.shapes() for state in states])
        u.trade(v)


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

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> with synk.fork(2, device="cpu"):
        ...     v = synk.scatter(synk.variable(np.zeros(3)), [1.0, 2.0, 3.0])
        ...     kept = synk.snapshot({"v": v})
        ...     kept
        {'v': array([1., 2., 3.])}
    """
    return VariableGroup.of(vars, "snapshot").each(VariableState.whole_value)


# ---- single ranks

_VARIABLES = (Variable, dict, list, tuple)


@known_options
def set_value(vars: Any, values: Any, rank: Any = None, batch: Batch = None) -> Any:
    """Sets the arrays of all ranks, or of one, to new values; if of one, the others keep theirs, so
    replicas may differ afterwards.

    Args:
        vars: a `Variable`, or a tree of variables. Synkhronos' order, `set_value(rank, vars,
            values)`, is understood, too.
        values: new values, in the structure of `vars`: arrays, `Data`, numbers or trees of these.
            Shapes may differ from the old ones; those of a variable with a halo are its own rows on
            that rank, as many as before, and halos stay as they are until `exchange`.
        rank: rank to write to; None for all.
        batch: rows of `values` to write, as for `scatter`; None for all.

    Returns:
        `vars`.

    Raises:
        PartitionError: there is no such rank, or `rank` is None and a variable is divided, or an
            array is 0-d and `batch` is given, or a variable has a halo and own rows of another
            shape.
        ArgumentError, DataError, BatchError, WorldError, SharedMemoryError: as for `scatter`.
        RankError, RankDied, CallTimeout: as for `scatter`.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> with synk.fork(2, device="cpu"):
        ...     v = synk.variable(np.zeros(2))
        ...     v = synk.set_value(v, [5.0, 6.0], rank=1)
        ...     synk.gather(v)
        array([[0., 0.],
               [5., 6.]])
    """
    target = vars
    if _is_behind(vars, values):
        target, values, rank = values, rank, vars
    has_scalar = values is None or isinstance(values, int | float)
    if has_scalar and (isinstance(rank, Variable) or np.ndim(rank)):
        raise ArgumentError(
            f"set_value: rank is {class_text(rank)}; write set_value(vars, values, rank)"
        )
    group = VariableGroup.of(target, "set_value")
    new_arrays = group.matched(values)
    if batch is not None:
        VariableGroup("set_value with batch=", group.states).check_rows()
        for arrays in new_arrays:
            arrays[:] = [_taken(*_Selection.of(array, batch)) for array in arrays]
    if rank is None:
        for state in group.states:
            state.check_settable()
        for state, arrays in zip(group.states, new_arrays, strict=True):
            state.set_value(arrays, None)
        return target
    with collective_call(group.states) as world:
        rank = check_rank(rank, world.world_size)
        assignments = [
            state.assignment_of_own(world, {rank: arrays})
            for state, arrays in zip(group.states, new_arrays, strict=True)
        ]
        write_all(world, assignments)
    return target


@known_options
def get_value(vars: Any, rank: Any = None) -> Any:
    """Returns copies of one rank's arrays, without halos, as NumPy arrays in the structure of
    `vars`.

    Args:
        vars: a `Variable`, or a tree of variables. Synkhronos' order, `get_value(rank, vars)`, is
            understood, too.
        rank: rank to read; None for rank 0, whose replica stands for all.

    Raises:
        PartitionError: there is no such rank, or `rank` is None and a variable is divided.
        ArgumentError, WorldError, SharedMemoryError, RankDied, CallTimeout: as for `broadcast`.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> with synk.fork(2, device="cpu"):
        ...     v = synk.scatter(synk.variable(np.zeros(3)), [1.0, 2.0, 3.0])
        ...     synk.get_value(v, rank=1)
        array([2., 3.])
    """
    target = vars
    if _is_behind(vars, rank):
        target, rank = rank, vars
    return VariableGroup.of(target, "get_value").each(lambda state: state.value(rank))


def _is_behind(first: Any, second: Any) -> bool:
    """Whether the second of two arguments is the variables, after a rank."""
    return isinstance(second, _VARIABLES) and not isinstance(first, _VARIABLES)


@known_options
def get_lengths(vars: Any) -> Any:
    """Returns the number of own rows of each rank: for each array a list with one int per rank, in
    the structure of `vars`.

    Args:
        vars: a `Variable`, or a tree of variables, of at least one dimension.

    Raises:
        PartitionError: an array is 0-d.
        ArgumentError, WorldError: as for `broadcast`.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> with synk.fork(2, device="cpu"):
        ...     v = synk.scatter(synk.variable(np.zeros(5)), np.arange(5.0))
        ...     synk.get_lengths(v)
        [2, 3]
    """
    group = VariableGroup.of(vars, "get_lengths")
    group.check_rows()
    return _of_arrays(group, lambda state, leaf: state.storage().layout.own_counts(leaf))


@known_options
def get_shapes(vars: Any) -> Any:
    """Returns the shape on each rank, with halos: for each array a list with one tuple per rank, in
    the structure of `vars`.

    Args:
        vars: a `Variable`, or a tree of variables.

    Raises:
        ArgumentError, WorldError: as for `broadcast`.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> with synk.fork(2, device="cpu"):
        ...     v = synk.scatter(synk.variable(np.zeros((5, 2))), np.ones((5, 2)))
        ...     synk.get_shapes(v)
        [(2, 2), (3, 2)]
    """
    group = VariableGroup.of(vars, "get_shapes")
    return _of_arrays(group, lambda state, leaf: state.shapes()[leaf])


def _of_arrays(group: VariableGroup, by_rank: Callable[[VariableState, int], Sequence[Any]]) -> Any:
    """Returns what a function returns for each array, as lists, in the structure of the
    variables.
    """
    with collective_call(group.states, written=()):
        return group.each(
            lambda state: state.as_tree([list(by_rank(state, leaf)) for leaf in state.leaves()])
        )
