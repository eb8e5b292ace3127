"""Numbers with which a kernel compares its positions in the grid, as its source shows them.

    j, i = cuda.grid(2)                                    i: along y, below the length of u along axis 0
    if i < u.shape[0] and j < n:                           j: along x, below n
        u[i, j] = …

A limit holds where a position is used: by an `if` around it, an `and` or `or` before it, or an
early `return`. Launches are sized by lengths (`launches.sized_by`), and numbers are compared with
that of all rows (`row_warnings.py`).
"""  # noqa: E501

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType

from synknumba._errors import KernelError
from synknumba._source.definition import Definition, read_code
from synknumba.simt.internals import CudaPath, Scope, has_cuda_module, read_definition

_AXES = {"x": 0, "y": 1, "z": 2}
# of `position op number`, if it holds
_UPPER = {
    (ast.Lt, True),
    (ast.LtE, True),
    (ast.Gt, False),
    (ast.GtE, False),
}
_FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
    ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
}


@dataclass(frozen=True, slots=True)
class Limit:
    """A number that bounds positions from above, but for an int that is added.

    Attributes:
        axis: of the grid, along which they are positions.
        parameter: an array, or the number itself; "" for any other bound, such as an int or the end
            of own rows.
        length: the axis of the array whose length it is; None for a number.
    """

    axis: int
    parameter: str = ""
    length: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a kernel.

    Attributes:
        numbers: those that are parameters.
        lengths: those that are lengths of arrays, if every use of a position has a limit, and none
            of them is a number.
    """

    numbers: tuple[Limit, ...] = ()
    lengths: tuple[Limit, ...] = ()


def grid_limits(function: Callable[..., object]) -> Limits:
    """Returns the limits of positions in a kernel; none without source, or of what does not
    compile.
    """
    definition = read_code(function.__code__) if isinstance(function, FunctionType) else None
    if definition is None or not isinstance(function, FunctionType) or not has_cuda_module():
        return Limits()
    try:
        source = _Positions(definition, Scope(read_definition(function)))
    except KernelError:  # raised again by the first call, where it matters
        return Limits()
    uses = [source.limits_of(use) for use in source.uses()]
    limits = dict.fromkeys(limit for use in uses for limit in use)
    numbers = tuple(limit for limit in limits if limit.parameter and limit.length is None)
    lengths = tuple(limit for limit in limits if limit.length is not None)
    return Limits(numbers, lengths if all(uses) and not numbers else ())


class _Positions:
    """A kernel's source, with the names that are positions in the grid."""

    def __init__(self, definition: Definition, scope: Scope) -> None:
        self._definition, self._scope = definition, scope
        self._parameters = {*definition.parameters} - {*definition.stored}
        self._values: dict[str, ast.expr] = {}  # of the names that are bound once
        for node in definition.nodes:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._values[name] = value
                case ast.Assign(targets=[ast.Tuple(elts=targets)], value=value):
                    items = [
                        ast.Subscript(value, ast.Constant(axis), ast.Load())
                        for axis in range(len(targets))
                    ]
                    parts = value.elts if isinstance(value, ast.Tuple) else items
                    self._values |= {
                        one.id: part
                        for one, part in zip(targets, parts, strict=False)
                        if isinstance(one, ast.Name)
                    }
        once = {
            name
            for name in self._values
            if definition.stored.count(name) == 1 and name not in definition.parameters
        }
        self._values = {name: value for name, value in self._values.items() if name in once}
        axes = {name: self._axis(value) for name, value in self._values.items()}
        self._axes = {name: axis for name, axis in axes.items() if axis is not None}

    def uses(self) -> Iterator[ast.Name]:
        """Yields where positions are used, other than in comparisons."""
        for name in self._definition.names:
            if (
                name.id in self._axes
                and isinstance(name.ctx, ast.Load)
                and not self._is_compared(name)
            ):
                yield name

    def limits_of(self, use: ast.Name) -> list[Limit]:
        """Returns the limits of a position where it is used."""
        limits = []
        for test, holds in self._conditions(use):
            for left, op, right in _comparisons(test, holds):
                is_upper = (op, holds) in _UPPER  # else flipped: `n > i`
                small, large = (left, right) if is_upper else (right, left)
                is_limit = is_upper or (_FLIPPED.get(op), holds) in _UPPER
                if (
                    is_limit
                    and isinstance(name := _without_int(small), ast.Name)
                    and name.id == use.id
                ):
                    limit = self._limit(self._axes[use.id], large)
                    limits += [] if limit is None else [limit]
        return limits

    def _is_compared(self, node: ast.AST) -> bool:
        parent = self._definition.parents.get(id(node))
        while isinstance(parent, ast.BinOp | ast.UnaryOp):
            parent = self._definition.parents.get(id(parent))
        return isinstance(parent, ast.Compare)

    def _conditions(self, node: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
        """Yields the conditions that are known where a node is evaluated, each with whether it
        holds.
        """
        while (parent := self._definition.parents.get(id(node))) is not None:
            match parent:
                case ast.BoolOp(op=op, values=values):
                    earlier = values[: values.index(node)]  # type: ignore[arg-type]
                    yield from ((value, isinstance(op, ast.And)) for value in earlier)
                case ast.If(test=test, orelse=orelse) if node is not test:
                    yield test, node not in orelse
                case ast.IfExp(test=test, orelse=otherwise) if node is not test:
                    yield test, node is not otherwise
            node = parent
        body = self._definition.tree.body
        for statement in body[: body.index(node)] if node in body else ():
            match statement:
                case ast.If(test=test, body=[ast.Return()], orelse=[]):
                    yield test, False

    def _axis(self, node: ast.expr) -> int | None:
        """Returns the axis along which an expression is a position in the grid."""
        match node:
            case ast.Call(args=[ast.Constant(value=1)]) if self._path(node.func) == "grid":
                return 0
            case ast.Subscript(value=ast.Call(func=function), slice=ast.Constant(value=int(axis))):
                return axis if self._path(function) == "grid" else None
            case ast.BinOp(
                left=ast.BinOp(left=one, op=ast.Mult(), right=other), op=ast.Add(), right=third
            ):
                pass
            case ast.BinOp(
                left=third, op=ast.Add(), right=ast.BinOp(left=one, op=ast.Mult(), right=other)
            ):
                pass
            case _:
                return None
        members = [
            (self._path(part.value), part.attr)
            for part in (one, other, third)
            if isinstance(part, ast.Attribute)
        ]
        axes = {_AXES.get(letter) for _, letter in members}
        is_position = sorted(str(path) for path, _ in members) == [
            "blockDim",
            "blockIdx",
            "threadIdx",
        ]
        return axes.pop() if is_position and len(axes) == 1 else None

    def _path(self, node: ast.expr) -> str | None:
        value = self._scope.resolve(node)
        return value.path if isinstance(value, CudaPath) else None

    def _limit(self, axis: int, node: ast.expr, depth: int = 4) -> Limit | None:
        """Returns the limit that an expression is; None if it is not understood."""
        node = _without_int(node)
        match node:
            case ast.Constant(value=int()):
                return Limit(axis)
            case ast.Name(id=name) if name in self._parameters:
                return Limit(axis, name)
            case ast.Name(id=name) if depth and name in self._values:
                return self._limit(axis, self._values[name], depth - 1)
            case ast.Subscript(
                value=ast.Attribute(value=ast.Name(id=name), attr="shape"),
                slice=ast.Constant(value=int(length)),
            ):
                return (
                    Limit(axis, name, length) if name in self._parameters and length >= 0 else None
                )
            case (
                ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=name)])
                | ast.Attribute(value=ast.Name(id=name), attr="size")
            ):
                return Limit(axis, name, 0) if name in self._parameters else None
            case ast.Attribute(value=ast.Name(id=name), attr="stop"):
                return Limit(axis) if name in self._parameters else None
        return None


def _comparisons(
    test: ast.expr, holds: bool
) -> Iterator[tuple[ast.expr, type[ast.cmpop], ast.expr]]:
    """Yields the comparisons that all hold, or all do not hold, if a condition does, or does
    not.
    """
    match test:
        case ast.BoolOp(op=op, values=values) if isinstance(op, ast.And) == holds:
            for value in values:
                yield from _comparisons(value, holds)
        case ast.Compare(left=left, ops=ops, comparators=comparators) if holds or len(ops) == 1:
            operands = [left, *comparators]
            yield from ((operands[at], type(op), operands[at + 1]) for at, op in enumerate(ops))


def _without_int(node: ast.expr) -> ast.expr:
    """Returns an expression without an int that is added to it, or subtracted."""
    match node:
        case ast.BinOp(left=rest, op=ast.Add() | ast.Sub(), right=ast.Constant(value=int())):
            return _without_int(rest)
        case ast.BinOp(left=ast.Constant(value=int()), op=ast.Add(), right=rest):
            return _without_int(rest)
    return node
