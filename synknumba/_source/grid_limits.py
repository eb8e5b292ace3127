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
from itertools import chain, pairwise
from types import FunctionType

from synknumba._source.grid_names import GridNames, grid_names
from synknumba._source.kernel_facts import KernelFacts, facts_of_code
from synknumba.simt.internals import has_cuda_module

_LESS: tuple[type[ast.cmpop], ...] = (ast.Lt, ast.LtE)
_GREATER: tuple[type[ast.cmpop], ...] = (ast.Gt, ast.GtE)


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
    if not isinstance(function, FunctionType) or not has_cuda_module():
        return Limits()
    facts, names = facts_of_code(function.__code__), grid_names(function)
    if facts is None or names is None:
        return Limits()
    source = _Positions(facts, names)
    uses = list(map(source.limits_of, source.uses()))
    numbers, lengths = list[Limit](), list[Limit]()
    for limit in dict.fromkeys(chain.from_iterable(uses)):
        if limit.length is not None:
            lengths.append(limit)
        elif limit.parameter:
            numbers.append(limit)
    if numbers or not all(uses):
        lengths = []
    return Limits(tuple(numbers), tuple(lengths))


class _Positions:
    """A kernel's source, with the names that are positions in the grid."""

    def __init__(self, facts: KernelFacts, names: GridNames) -> None:
        self._facts = facts
        parameters = {*facts.definition.parameters}
        self._parameters = parameters - facts.values.keys()
        self._values: dict[str, ast.expr] = {}  # of the names that are bound once
        self._axes: dict[str, int] = {}
        for name, values in facts.values.items():
            match values:
                case [ast.expr() as value] if name not in parameters:
                    self._values[name] = value
                    axis = names.axis(value)
                    if axis is not None:
                        self._axes[name] = axis

    def uses(self) -> Iterator[ast.Name]:
        """Yields where positions are used, other than in comparisons."""
        for name in self._facts.definition.names:
            if name.id not in self._axes or self._is_compared(name):
                continue
            if isinstance(name.ctx, ast.Load):
                yield name

    def limits_of(self, use: ast.Name) -> list[Limit]:
        """Returns the limits of a position where it is used."""
        axis, limits = self._axes[use.id], []
        for test, holds in self._conditions(use):
            for small, large in _inequalities(test, holds):
                match _without_int(small):
                    case ast.Name(id=use.id):
                        limit = self._limit(axis, large)
                        if limit is not None:
                            limits.append(limit)
        return limits

    def _is_compared(self, node: ast.AST) -> bool:
        for parent in self._facts.definition.ancestors(node):
            if not isinstance(parent, ast.BinOp | ast.UnaryOp):
                return isinstance(parent, ast.Compare)
        return False

    def _conditions(self, node: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
        """Yields the conditions that are known where a node is evaluated, each with whether it
        holds.
        """
        definition = self._facts.definition
        for parent in definition.ancestors(node):
            match parent:
                case ast.BoolOp(op=op, values=values):
                    for value in values[: values.index(node)]:  # type: ignore[arg-type]
                        yield value, isinstance(op, ast.And)
                case ast.If(test=test, orelse=orelse) if node is not test:
                    yield test, node not in orelse
                case ast.IfExp(test=test, orelse=otherwise) if node is not test:
                    yield test, node is not otherwise
            node = parent
        body = definition.tree.body
        if node not in body:
            return
        for statement in body[: body.index(node)]:
            match statement:
                case ast.If(test=test, body=[ast.Return()], orelse=[]):
                    yield test, False

    def _limit(self, axis: int, node: ast.expr, depth: int = 4) -> Limit | None:
        """Returns the limit that an expression is; None if it is not understood."""
        match _without_int(node):
            case ast.Constant(value=int()):
                return Limit(axis)
            case ast.Name(id=name) if depth and name in self._values:
                return self._limit(axis, self._values[name], depth - 1)
            case ast.Name(id=name):
                return self._by_parameter(name, Limit(axis, name))
            case ast.Subscript(
                value=ast.Attribute(value=ast.Name(id=name), attr="shape"),
                slice=ast.Constant(value=int(length)),
            ):
                return self._by_parameter(name, Limit(axis, name, length))
            case (
                ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=name)])
                | ast.Attribute(value=ast.Name(id=name), attr="size")
            ):
                return self._by_parameter(name, Limit(axis, name, 0))
            case ast.Attribute(value=ast.Name(id=name), attr="stop"):
                return self._by_parameter(name, Limit(axis))
        return None

    def _by_parameter(self, name: str, limit: Limit) -> Limit | None:
        """Returns a limit that a parameter sets; None for any other name."""
        if name in self._parameters:
            return limit
        return None


def _inequalities(test: ast.expr, holds: bool) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yields pairs of which the first is at most the second, if a condition holds, or does not."""
    match test:
        case ast.BoolOp(op=op, values=values) if isinstance(op, ast.And) == holds:
            for value in values:
                yield from _inequalities(value, holds)
        case ast.Compare(left=left, ops=ops, comparators=comparators) if holds or len(ops) == 1:
            less, greater = _LESS, _GREATER
            if not holds:
                less, greater = _GREATER, _LESS
            for order, (first, second) in zip(ops, pairwise([left, *comparators]), strict=True):
                if isinstance(order, less):
                    yield first, second
                elif isinstance(order, greater):
                    yield second, first


def _without_int(node: ast.expr) -> ast.expr:
    """Returns an expression without an int that is added to it, or subtracted."""
    match node:
        case ast.BinOp(left=rest, op=ast.Add() | ast.Sub(), right=ast.Constant(value=int())):
            return _without_int(rest)
        case ast.BinOp(left=ast.Constant(value=int()), op=ast.Add(), right=rest):
            return _without_int(rest)
    return node
