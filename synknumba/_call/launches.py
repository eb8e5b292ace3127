"""The launches of a call, as the coordinator plans them: each rank's slices, and the grid of
each.
"""

import math

import numpy as np

from synknumba._call.call import Call
from synknumba._call.variable_rows import shapes_by_rank
from synknumba._errors import LaunchError
from synknumba._ops.launch import ELEMENTS, Dim3, Extent, LaunchConfig
from synknumba._ops.rows import RowPlan
from synknumba._ops.variable_layout import VECTOR
from synknumba._source.grid_limits import Limits
from synknumba._types import Shape
from synknumba._wire.program import Broadcast, Held, HeldRows, Param, Sharded, Update


def row_plan(call: Call) -> RowPlan:
    """Returns the division of the rows of a call."""
    rows, options = call.rows, call.options
    count = local = None
    if rows.sharded is not None:
        count = rows.sharded.count
    if rows.local is not None:
        local = rows.local.counts
    return RowPlan(call.run_partition, options.shards, options.num_slices, count, local)


def sized_by(call: Call, launch: LaunchConfig, limits: Limits) -> str | None:
    """Returns the array argument whose rows, or elements, get threads; None if none has rows.

    It is a sharded array; without one, a sliceable variable, or a variable with an axis. Of
    several, it is the largest of those with whose lengths the kernel compares positions wherever it
    uses them; without any, the first, of variables the first scattered one.
    """
    for kind in (Sharded, HeldRows):
        names = [name for name, param in call.parameters.items() if isinstance(param, kind)]
        if names:
            return _largest(names, call, launch, limits)
    names = []
    for name, param in call.parameters.items():
        if isinstance(param, Held) and call.variables[name].root_shape(param.leaf):
            names.append(name)
    names.sort(key=lambda name: not call.variables[name].sharded)
    return _largest(names, call, launch, limits)


def _largest(names: list[str], call: Call, launch: LaunchConfig, limits: Limits) -> str | None:
    """Returns the largest of the arguments with which positions are compared, or the first."""
    by_elements = launch.grid == ELEMENTS

    def size(name: str) -> tuple[int, ...]:
        match call.parameters[name]:
            case Sharded(array):
                shape = array.shape
            case Held(leaf=leaf) | HeldRows(leaf=leaf):
                shape = call.variables[name].root_shape(leaf)
        if by_elements:
            return len(shape), math.prod(shape)
        return shape[:1]

    compared = {limit.parameter for limit in limits.lengths if by_elements or not limit.length}
    among = [name for name in names if name in compared] or names[:1]
    return max(among, key=size, default=None)


def check_launches(name: str, launch: LaunchConfig, call: Call, source: str | None) -> None:
    """Raises `LaunchError` if the grid of a rank's launch cannot be derived, or CUDA would
    refuse it.
    """
    if not launch.is_derived:
        return
    try:
        for rank in range(call.run_partition.parts):
            launches(launch, call, rank, source)
    except LaunchError as error:
        raise LaunchError(f"{name}: {error}{_without_rows(call)}") from error.__cause__


def _without_rows(call: Call) -> str:
    """Returns the arguments that may be meant to have rows, and have none, where no argument has
    any; else "".
    """
    if call.count is not None or call.variables:
        return ""
    values = ", ".join(
        f"{name} is {value!r}"
        for name, value in call.arguments.passed.items()
        if value is None or np.ndim(value) == 0
    )
    if not values:
        return ""
    return f". {values}: pass an array for rows"


def launches(
    launch: LaunchConfig, call: Call, rank: int, source: str | None
) -> tuple[tuple[Dim3, Dim3], ...]:
    """Returns grid and block of each of a rank's launches, in order; `source` is
    `sized_by(call)`.
    """
    counts: list[int | None] = [None]
    if call.count is not None:
        counts = [part.stop - part.start for part in row_plan(call).slices(rank)]
    sizes: dict[int | None, tuple[Dim3, Dim3]] = {}
    for count in dict.fromkeys(counts):  # slices of the same number of rows have the same launch
        extent = Extent.of(count, _shapes(call, rank, count), source)
        if not launch.launches_nothing(extent):
            sizes[count] = launch.resolve(*extent)
    return tuple(sizes[count] for count in counts if count in sizes)


def kernel_shape(shape: Shape) -> Shape:
    """Returns the shape of an array as kernels get it: a 0-d one has one element."""
    return shape or (1,)


def held_shapes(call: Call, rank: int) -> dict[str, Shape]:
    """Returns the shapes of a rank's own arrays of variables, in a call without rows."""
    shapes = _shapes(call, rank, None)
    return {
        name: shape
        for name, shape in shapes.items()
        if isinstance(call.parameters[name], Held | Update)
    }


def _shapes(call: Call, rank: int, rows: int | None) -> dict[str, Shape]:
    """Returns the shapes of the arrays of one launch on a rank, with so many rows."""
    shapes = {}
    for name, param in call.parameters.items():
        shape = _shape(call, name, param, rank, rows)
        if shape is not None:
            shapes[name] = shape
    return shapes


def _shape(call: Call, name: str, param: Param, rank: int, rows: int | None) -> Shape | None:
    """Returns the shape of an argument in one launch; None for what is no array."""
    match param:
        case Sharded(array):
            assert rows is not None  # a call with sharded arguments has rows
            return (rows, *array.shape[1:])
        case Broadcast(array):
            return array.shape
        case Held(leaf=leaf):
            by_leaf = shapes_by_rank(call.variables[name], call.partition)
            if leaf == VECTOR:
                return (sum(math.prod(by_rank[rank]) for by_rank in by_leaf),)
            return kernel_shape(by_leaf[leaf][rank])
        case HeldRows():
            assert rows is not None  # as above
            return (rows, *shapes_by_rank(call.variables[name], call.partition)[0][rank][1:])
        case Update(shapes=shapes):
            return kernel_shape(shapes[rank])
    return None
