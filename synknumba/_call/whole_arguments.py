"""Warnings about rows: what is passed whole to every rank, divided variables in means, and rows that do not pair."""

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from synknumba._call.call import Call, leaves_of
from synknumba._call.guarded_rows import RowUses
from synknumba._call.launches import planned_launches
from synknumba._call.options import FunctionOptions
from synknumba._call.row_elements import Element
from synknumba._call.variable_rows import own_by_rank, rows_shapes
from synknumba._errors import depth_of_script
from synknumba._ops.halo import Halo, first_rows
from synknumba._ops.launch import ELEMENTS, LaunchConfig
from synknumba._ops.reduction import BY_ROWS
from synknumba._ops.tree import flatten
from synknumba._types import RankConstant
from synknumba._wire.program import Broadcast, Constant, Dynamic, Param, Result, Sharded

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


def warn_of_pairs(name: str, uses: RowUses, call: Call, results: Mapping[str, Result]) -> None:
    """Warns if a kernel uses the same index for arrays whose rows with this index are not the same row of the whole.

    Also if it looks up elements of a divided array by the values of another, where each rank has its own rows only.

    Args:
        name: the kernel's.
        uses: what its source shows.
        call: bound, with its rows, on several ranks or with halos.
        results: those of the call.
    """
    rows = {one.array: _rows_on_ranks(one.array, call, results) for one in uses.elements}
    for element, array, other in _paired(uses, call):
        first, second = rows[array], rows.get(other) or _rows_on_ranks(other, call, results)
        problem = "" if first is None or second is None else _told_apart(first, second, uses.written, element.index.name)
        if problem:
            message = f"{name} ({element.place}) uses {element.index.name} as an index of both: {problem}"
            warnings.warn(message, RuntimeWarning, stacklevel=depth_of_script())
            return
    for parameter in uses.looked_up if call.run_partition.parts > 1 else ():
        if isinstance(call.parameters.get(parameter), Sharded):
            warnings.warn(
                f"{name} looks up elements of {parameter} by values of another array, but {parameter} is divided among the "
                f'ranks, which have their own rows only; name it in broadcast=("{parameter}",) to have all of it on every rank',
                RuntimeWarning,
                stacklevel=depth_of_script(),
            )
            return


def _paired(uses: RowUses, call: Call) -> Iterator[tuple[Element, str, str]]:
    """Yields elements whose index is one of two arrays, as far as the source shows it, with these.

    Differences of rows of a variable with a halo, as in `f[i] = u[i + 1] - u[i]`, may be those of another row than i. A kernel
    that may know both lengths, as of `i < min(u.shape[0], a.shape[0])`, may mean rows of each rank.
    """
    halos = {name for name, variable in call.intact.items() if variable.halo is not None}
    at = uses.plain | {(one.array, one.index.name) for one in uses.elements if one.is_stored and not one.offset}

    def is_at(array: str, index: str) -> bool:
        return array not in halos or (array, index) in at

    for one, other in uses.pairs:
        index = one.index.name
        if is_at(one.array, index) and is_at(other.array, index) and not uses.known >= {one.array, other.array}:
            yield one, one.array, other.array
    for element in uses.guarded:
        for bound in element.index.uppers:
            is_length = bound.kind in {"length", "size"} and not bound.axis
            if is_length and is_at(element.array, element.index.name) and is_at(bound.name, element.index.name):
                yield element, element.array, bound.name
    if call.whose is None:
        return
    for element in uses.elements:
        owns = {bound.name for bound in (*element.index.lowers, *element.index.uppers) if bound.kind in {"start", "stop"}}
        if (
            not element.offset
            and element.array not in uses.known
            and any(call.whole.get(one) is RankConstant.OWN for one in owns)
        ):
            yield element, element.array, call.whose


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of an array on the ranks.

    Attributes:
        name: the parameter.
        kind: rows of the call, also as the call selects or slices them; rows of a divided variable; or all on every rank.
        counts: their number on each rank.
        firsts: row of the whole that is row 0 on each rank.
        total: rows of the whole.
        halo: that of a variable.
    """

    name: str
    kind: Literal["sharded", "selected", "scattered", "whole"]
    counts: tuple[int, ...]
    firsts: tuple[int, ...]
    total: int
    halo: Halo | None = None


def _rows_on_ranks(name: str, call: Call, results: Mapping[str, Result]) -> _Rows | None:
    """Returns the rows of a parameter; None for what has none, or where they are not known."""
    param, variable, ranks = call.parameters.get(name), call.intact.get(name), call.run_partition.parts
    if variable is not None and variable.sharded:
        shapes = rows_shapes(call, name)
        own = tuple(one.stop - one.start for one in own_by_rank(variable, shapes))
        counts = tuple(shape[0] for shape in shapes)
        return _Rows(name, "scattered", counts, first_rows(variable.halo, own), sum(own), variable.halo)
    if variable is not None or isinstance(param, Broadcast):
        shapes = rows_shapes(call, name) if variable is not None else (param.array.shape,)  # type: ignore[union-attr]
        if not shapes[0] or len(set(shapes)) > 1:
            return None
        length = shapes[0][0]
        return _Rows(name, "whole", (length,) * ranks, (0,) * ranks, length)
    total = call.lengths.get(name) if isinstance(param, Sharded) else None
    if name in results and results[name].op in BY_ROWS and isinstance(call.count, int):
        total = call.count
    if total is None:
        return None
    is_cut = call.source.kind != "all" or call.options.num_slices != 1 or call.options.shards is not None
    counts = call.run_partition.counts(total)
    return _Rows(name, "selected" if is_cut else "sharded", counts, first_rows(None, counts), total)


def _told_apart(one: _Rows, other: _Rows, written: Collection[str], index: str) -> str:
    """Returns how rows of two arrays with the same index differ, and what to do; "" if they are the same, or may be meant."""
    divided = [rows for rows in (one, other) if rows.kind != "whole"]
    scattered = [rows for rows in divided if rows.kind == "scattered"]
    if len(divided) == 1:
        (whole,) = (rows for rows in (one, other) if rows.kind == "whole")
        (part,) = divided
        if whole.name in written or whole.total != part.total or part.firsts == whole.firsts:
            return ""
        beside = " beside its halo" if part.halo is not None else ""
        modulo = f", modulo {part.total}" if part.halo is not None and part.halo.periodic else ""
        return (
            f"each rank has its own rows of {part.name}{beside}, and all {part.total} of {whole.name}; index {whole.name} by "
            f"rows of the whole, as in {whole.name}[offset + {index}] with offset=synk.OFFSET{modulo}"
        )
    if len(divided) < 2 or not scattered:
        return ""
    cut = next((rows for rows in divided if rows.kind == "selected"), None)
    if cut is not None:
        return (
            f"the call selects or slices rows of {cut.name}, and the ranks get all their rows of the variable "
            f'{scattered[0].name}; name it in sliceable=("{scattered[0].name}",) for num_slices, or gather it and pass an array'
        )
    if one.counts == other.counts or one.firsts == other.firsts:
        return ""
    first, second = scattered[0], next(rows for rows in divided if rows is not scattered[0])
    if first.halo != second.halo:
        with_halo, without = (first, second) if first.halo is not None else (second, first)
        if without.kind == "scattered":
            return (
                f"{first.name} has {first.halo or 'no halo'}, and {second.name} {second.halo or 'no halo'}; scatter both alike"
            )
        return (
            f"row 0 of {with_halo.name} is one of its halo, and that of {without.name} is a rank's own; index {without.name} "
            f"by {index} - own.start with own=synk.OWN, or keep it in a variable scattered with the same halo"
        )
    way_out = f"pass {second.name} with {first.total} rows"
    if second.kind == "scattered":
        way_out = "scatter both with as many rows"
    return (
        f"the ranks have {first.counts} rows of the variable {first.name} and {second.counts} of {second.name}, so that these "
        f"are other rows of the whole; {way_out}"
    )


def warn_of_threads(
    name: str, launch: LaunchConfig, uses: RowUses, call: Call, results: Mapping[str, Result], source: str | None
) -> None:
    """Warns if a kernel compares a position in the grid with a length, and has fewer threads, by the rows of another array.

    If an array that it uses there has no more rows than threads, these may be meant. Arguments are as for `check_rows`.
    """
    if launch.grid is not None and launch.grid != ELEMENTS:
        return
    for rank, shapes, threads in planned_launches(launch, call, results, source) if uses.limits else ():
        for axis, bound in uses.limits:
            length = bound.value(shapes, {})
            if length is None or length <= threads[axis]:
                continue
            at = [one for one in uses.elements if one.index.position is not None and one.index.position[0] == axis]
            if all(shapes.get(one.array, (0,))[0] >= length for one in at):
                warnings.warn(
                    f"{name} compares a position along {'xyz'[axis]} with {bound}, which is {length} on rank {rank}, but has "
                    f"{threads[axis]} threads there, by the rows of {source or 'the call'}, and the others are left out; loop "
                    "over them with a stride of cuda.gridsize(1), or pass grid= as a function of shapes",
                    RuntimeWarning,
                    stacklevel=depth_of_script(),
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
