"""Warnings of calls whose results depend on how rows are divided among the ranks, by the shapes
of the call.
"""

import warnings

from synknumba._call.call import Call
from synknumba._call.launches import row_plan
from synknumba._call.variable_rows import own_by_rank, rows_shapes
from synknumba._call.work_out import WorkedCall
from synknumba._errors import depth_of_script
from synknumba._ops.launch import ELEMENTS
from synknumba._wire.program import Sharded


def warn_of_means(worked: WorkedCall) -> None:
    """Warns if means are asked of a call without rows, whose divided variables have different
    numbers of rows on the ranks: ranks then count equally.

    `worked` is the first call of a function on several ranks.
    """
    options, call = worked.options, worked.call
    lengths = call.arguments.lengths
    if "mean" not in options.all_ops() or lengths.sharded or lengths.sliceable:
        return
    for parameter, variable in call.variables.items():
        if not variable.sharded or variable.halo is not None:
            continue
        shapes = variable.shapes()[call.arguments.first_array(parameter)]
        rows = tuple(sum(shape[:1]) for shape in shapes)  # 0 of a 0-d array
        if len(set(rows)) > 1:
            warnings.warn(
                f"the op 'mean' of {worked.planner.name} counts each rank equally, since the call "
                f"has no rows, and {parameter} has "
                f'{rows} rows on the ranks; name it in rows=("{parameter}",) to weight '
                f"ranks by them, or gather sums",
                RuntimeWarning,
                stacklevel=depth_of_script(),
            )
            return


def warn_of_all_rows(worked: WorkedCall) -> None:
    """Warns if a kernel compares a position with an argument that is the number of all rows, where
    ranks have fewer; `worked` is a call on several ranks.
    """
    launch, limits, call = worked.options.launch, worked.planner.text.limits, worked.call
    if launch is None:
        return
    passed = call.arguments.passed
    numbers = [limit for limit in limits.numbers if type(passed.get(limit.parameter)) is int]
    if not numbers:
        return
    total, most, axes = _rows(call, worked.source)
    if launch.grid == ELEMENTS:
        numbers = [limit for limit in numbers if limit.axis == axes - 1]  # along which the rows are
    elif any(limit.axis for limit in (*limits.numbers, *limits.lengths)):
        return  # the grid does not show which axis has the rows
    for limit in numbers:
        if most < passed[limit.parameter] == total:
            warnings.warn(
                f"{worked.planner.name} compares a position in the grid with {limit.parameter}, "
                f"which is {total}, the number of all rows, and a rank has at most {most} of them; "
                f"pass synk.ROWS for {limit.parameter}, the number that each rank has",
                RuntimeWarning,
                stacklevel=depth_of_script(),
            )
            return


def _rows(call: Call, source: str | None) -> tuple[int, int, int]:
    """Returns the number of all rows, the largest of those on a rank or in a slice, and the axes
    of the array; or zeros.
    """
    if call.total is not None:
        plan, most = row_plan(call), 0
        for rank in range(plan.partition.parts):
            for part in plan.slices(rank):
                most = max(most, part.stop - part.start)
        return call.total, most, _axes(call, source)
    variable = call.arguments.intact.get(source or "")
    if source is None or variable is None or not variable.sharded:
        return 0, 0, 0
    shapes = rows_shapes(call.arguments, source, call.partition)
    total = sum(span.stop - span.start for span in own_by_rank(variable, shapes))
    return total, max(shape[0] for shape in shapes), len(shapes[0])


def _axes(call: Call, source: str | None) -> int:
    """Returns the number of axes of the array that gives the launch its size."""
    if source is None:
        return 1
    param = call.parameters[source]
    if isinstance(param, Sharded):
        return len(param.array.shape)
    return len(call.variables[source].root_shapes()[0])
