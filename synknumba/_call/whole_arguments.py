"""Warnings about arguments that look like rows: what is passed whole to every rank, and divided variables in means."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from synknumba._call.call import Call, leaves_of
from synknumba._call.options import FunctionOptions
from synknumba._ops.tree import flatten
from synknumba._wire.program import Constant, Dynamic, Param

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
                stacklevel=6,  # the script's call
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
        rows = tuple(shape[0] if shape else 0 for shape in variable.shapes()[0])
        if len(set(rows)) > 1:
            warnings.warn(
                f"the op 'mean' of {name} counts each rank equally, since the call has no rows, and {parameter} has "
                f'{rows} rows on the ranks; name it in sliceable=("{parameter}",) to weight ranks by them, or gather sums',
                RuntimeWarning,
                stacklevel=6,  # the script's call
            )
            return


def _rows_of(value: object, param: Param) -> int:
    """Returns the length of an argument that may be taken for rows, and is passed whole; else 0."""
    if isinstance(value, list):
        return len(value) if all(isinstance(leaf, Dynamic | Constant) for leaf in leaves_of(param)) else 0
    if isinstance(value, Sequence) and not isinstance(value, tuple | str | bytes | bytearray | memoryview):
        return len(value)
    shape = getattr(value, "shape", None) if isinstance(param, Constant) else None
    return shape[0] if isinstance(shape, tuple) and len(shape) == 2 and isinstance(shape[0], int) else 0
