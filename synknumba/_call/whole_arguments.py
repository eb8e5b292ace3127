"""Warnings about arguments that look like rows: what is passed whole to every rank, and divided variables in means."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from synknumba._call.call import Call, leaves_of
from synknumba._call.guarded_rows import RowUses
from synknumba._call.options import FunctionOptions
from synknumba._call.variable_rows import rows_shapes
from synknumba._errors import depth_of_script
from synknumba._ops.tree import flatten
from synknumba._types import RankConstant
from synknumba._wire.program import Broadcast, Constant, Dynamic, Param, Sharded

_ADDING = ("sum", "prod")  # ops to which the same result from every rank is not the result from one


def warn_of_whole(name: str, defaults: Mapping[str, Any], options: FunctionOptions, call: Call) -> None:
    """Warns if an argument is probably meant to be divided among the ranks, and the results are added up.

    That is a list of numbers or objects, a range, another sequence or a sparse matrix in a call of which nothing differs
    between ranks, or one that is as long as the rows beside it. If these are no more than ranks, the lengths may agree by
    chance.

    Args:
        name: the function's.
        defaults: values of the parameters that the caller may leave out.
        options: of the function.
        call: its first call on several ranks, bound.
    """
    ops = [op for op in flatten(options.ops)[0] if isinstance(op, str) and op in _ADDING]
    leaves = [leaf for param in call.parameters.values() for leaf in leaves_of(param)]
    lengths = {length for length in call.lengths.values() if length > call.partition.parts}
    if not ops or not (lengths or all(isinstance(leaf, Dynamic | Constant) for leaf in leaves)):
        return
    for parameter, value in call.whole.items():
        if parameter in options.broadcast or parameter in options.givens or value is defaults[parameter]:
            continue
        length = _rows_of(value, call.parameters[parameter])
        if length > 1 and (not lengths or length in lengths):
            warnings.warn(
                f"{parameter} of {name} is a {type(value).__name__}, which every rank receives whole, so the op {ops[0]!r} "
                f"counts it once per rank; pass a NumPy array to have its rows divided, or name it in "
                f'broadcast=("{parameter}",) if every rank needs all of it',
                RuntimeWarning,
                stacklevel=depth_of_script(),
            )
            return


def warn_of_means(name: str, options: FunctionOptions, call: Call) -> None:
    """Warns if means are asked of a call without rows, whose divided variables have different numbers of rows on the ranks.

    Ranks then count equally. Arguments are as for `warn_of_whole`.
    """
    ops = [*flatten(options.ops)[0], *(output.op for output in options.outputs.values())]
    if "mean" not in ops or call.lengths or call.own_lengths:
        return
    for parameter, variable in call.variables.items():
        if not variable.sharded or variable.halo is not None:
            continue
        rows = tuple(shape[0] if shape else 0 for shape in variable.shapes()[call.leaf_of(parameter)])
        if len(set(rows)) > 1:
            warnings.warn(
                f"the op 'mean' of {name} counts each rank equally, since the call has no rows, and {parameter} has "
                f'{rows} rows on the ranks; name it in sliceable=("{parameter}",) to weight ranks by them, or gather sums',
                RuntimeWarning,
                stacklevel=depth_of_script(),
            )
            return


def warn_of_pairs(name: str, uses: RowUses, call: Call) -> None:
    """Warns if a kernel uses the same index for arrays whose rows with this index are not the same row of the whole.

    Also if it looks up elements of a divided array by the values of another, where each rank has its own rows only.

    Args:
        name: the kernel's.
        uses: what its source shows.
        call: bound, with its rows, on several ranks.
    """
    for one in uses.guarded:
        problem = _told_apart(one.used, one.guard, call, is_written=one.is_written)
        if problem:
            message = f"{name} ({one.place}) uses {one.index} as an index of both: {problem}"
            warnings.warn(message, RuntimeWarning, stacklevel=depth_of_script())
            return
    for parameter in uses.looked_up:
        if isinstance(call.parameters.get(parameter), Sharded):
            warnings.warn(
                f"{name} looks up elements of {parameter} by values of another array, but {parameter} is divided among the "
                f'ranks, which have their own rows only; name it in broadcast=("{parameter}",) to have all of it on every rank',
                RuntimeWarning,
                stacklevel=depth_of_script(),
            )
            return


def _told_apart(used: str, guard: str, call: Call, *, is_written: bool) -> str:
    """Returns how rows of two arrays with the same index differ, and what to do; "" if they are the same, or not known."""
    variables = [one for one in (used, guard) if one in call.intact and call.intact[one].sharded]
    arrays = [one for one in (used, guard) if isinstance(call.parameters.get(one), Sharded)]
    if len(variables) == 1 and len(arrays) == 1:
        (scattered,), (array,) = variables, arrays
        variable, length = call.intact[scattered], call.lengths.get(array)
        if variable.halo is not None:
            if RankConstant.OWN in call.filled or RankConstant.OFFSET in call.filled:
                return ""
            return f"row 0 of {scattered} is one of its halo, and that of {array} is a rank's own; add OWN.start, of synk.OWN"
        if length is None:
            return ""
        if call.source.kind != "all" or call.options.num_slices != 1 or call.options.shards is not None:
            return (
                f"the call selects or slices rows of {array}, and the ranks get all their rows of the variable {scattered}; "
                f'name it in sliceable=("{scattered}",) for num_slices, or gather it and pass an array'
            )
        owned, counts = tuple(shape[0] for shape in rows_shapes(call, scattered)), call.run_partition.counts(length)
        if counts == owned:
            return ""
        return (
            f"the ranks have {owned} rows of the variable {scattered} and {counts} of {array}, so that these are other rows of "
            f"the whole; pass {array} with {sum(owned)} rows"
        )
    if used in variables or used in arrays or is_written or not (variables or arrays):
        return ""
    total = call.lengths.get(guard) if arrays else sum(shape[0] for shape in rows_shapes(call, guard))
    if total is None or _rows_of_whole(used, call) != total:
        return ""
    return (
        f"each rank has its own rows of {guard}, and all {total} of {used}; index {used} by rows of the whole, as in "
        f"{used}[offset + i] with offset=synk.OFFSET"
    )


def _rows_of_whole(parameter: str, call: Call) -> int | None:
    """Returns the rows of an array that each rank has whole; None for others."""
    param = call.parameters.get(parameter)
    shape = param.array.shape if isinstance(param, Broadcast) else ()
    if parameter in call.intact and not call.intact[parameter].sharded:
        shape = call.intact[parameter].root_shapes()[call.leaf_of(parameter)]
    return shape[0] if shape else None


def _rows_of(value: object, param: Param) -> int:
    """Returns the length of an argument that may be taken for rows, and is passed whole; else 0."""
    if isinstance(value, list):
        return len(value) if all(isinstance(leaf, Dynamic | Constant) for leaf in leaves_of(param)) else 0
    if isinstance(value, Sequence) and not isinstance(value, tuple | str | bytes | bytearray | memoryview):
        return len(value)
    shape = getattr(value, "shape", None) if isinstance(param, Constant) else None
    return shape[0] if isinstance(shape, tuple) and len(shape) == 2 and isinstance(shape[0], int) else 0
