"""What collectives are given, judged before anything is sent: variables, values, ops, shapes."""

from collections.abc import Sequence
from typing import Any

from synknumba._errors import ArgumentError, DataError, PartitionError, ReductionError
from synknumba._ops.tree import describe, flatten, parts_like, shape_told, unflatten
from synknumba._types import Array, CollectiveOp, Shape
from synknumba._variables.variable import Variable

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
            message = f"{what} needs a Variable, or a dict, list or tuple of them; got a {type(one).__name__}"
            raise ArgumentError(message)
    if not found:
        message = f"{what} got no variable at all"
        raise ArgumentError(message)
    seen: set[int] = set()
    for one in found:
        if id(one) in seen:
            message = f"{what} got {one.label} twice; give each variable once"
            raise ArgumentError(message)
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
        message = f"{what} needs values in the shape of its variables, {describe(structure)}, but got {shape_told(values)}"
        raise DataError(message)
    return [one.accept(value) for one, value in zip(several, found, strict=True)]


def destinations(vars: Any, several: Sequence[Variable], dest: Any, what: str) -> Sequence[Variable]:
    """The variables that get the result, checked against those that give it."""
    if dest is None:
        return several
    targets = several_of(dest, what)
    if not isinstance(vars, Variable) and flatten(vars)[1] != flatten(dest)[1]:
        message = f"{what} needs dest= in the shape of its variables, {describe(flatten(vars)[1])}"
        raise ArgumentError(message)
    if len(targets) != len(several):
        message = f"{what} needs one variable in dest= for each that it is given: {len(several)}, got {len(targets)}"
        raise ArgumentError(message)
    for one, target in zip(several, targets, strict=True):
        _check_destination(one, target, what)
    return targets


def _check_destination(one: Variable, target: Variable, what: str) -> None:
    if one.structure() != target.structure():
        message = f"{what}: {target.label} in dest= is not a tree of the same shape as {one.label}"
        raise ArgumentError(message)
    shapes = zip(one.root_shapes(), target.root_shapes(), strict=True)
    for (mine, theirs), gives, gets in zip(shapes, one.dtypes(), target.dtypes(), strict=True):
        if gives != gets or len(mine) != len(theirs):
            message = (
                f"{what}: {target.label} in dest= holds {gets} of {len(theirs)} dimensions, but {one.label} gives {gives} of "
                f"{len(mine)}; make it of the same dtype and number of dimensions"
            )
            raise DataError(message)


def check_op(several: Sequence[Variable], op: object) -> None:
    """Refuses an op that there is not, or not for a dtype."""
    if not isinstance(op, str) or op not in _OPS:
        message = f"op must be one of {', '.join(map(repr, _OPS))}; got {op!r}"
        raise ReductionError(message)
    for one in several:
        for dtype in one.dtypes():
            way_out = _REFUSED[str(op)].get(dtype.kind)
            if dtype.kind not in "biufc":
                way_out = "gather it and combine it yourself, or use a variable for each numeric field"
            if way_out is not None:
                message = f"{one.label}: op {op!r} is not defined for dtype {dtype}; {way_out}"
                raise ReductionError(message)


def check_rows(one: Variable, what: str) -> None:
    """Refuses numbers, which have no rows."""
    if any(not shape for shape in one.root_shapes()):
        message = f"{what} divides or joins rows, but {one.label} is 0-d; give it at least one dimension"
        raise PartitionError(message)


def check_all_uniform(several: Sequence[Variable], what: str) -> None:
    """Refuses shapes that differ between ranks where elements are combined."""
    for one in several:
        check_uniform(one, what, "all_gather or gather take arrays of different lengths")


def check_uniform(one: Variable, what: str, way_out: str) -> None:
    """Refuses shapes that differ between ranks."""
    for shapes in one.shapes():
        if len(set(shapes)) > 1:
            message = f"{what} needs one shape on all ranks, but {one.label} has {_told(shapes)}; {way_out}"
            raise PartitionError(message)


def check_row_shapes(one: Variable, what: str) -> None:
    """Refuses rows that do not fit after one another."""
    for shapes in one.shapes():
        if len({shape[1:] for shape in shapes}) > 1:
            message = f"{what} puts rows after one another, but those of {one.label} differ in shape: {_told(shapes)}"
            raise PartitionError(message)


def _told(shapes: Sequence[Shape]) -> str:
    return ", ".join(f"{shape} on rank {rank}" for rank, shape in enumerate(shapes))
