"""Kernels that compare an index with the rows of one array, and use it for another that has fewer rows on a rank.

    if i < u.shape[0]:
        u[i] += a[i]           # past the end of a, if a rank has 6 rows of u and 2 of a

Refused before anything is sent, where the kernel's source shows it with certainty: the index is a position in the grid, or runs
over the rows in a loop; nothing else is compared with it; the element is read or written whenever the comparison holds; and
the size of the smaller array is not asked for. Other reads past the end are found by `check`.
"""

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, final

from synknumba._call.definition import Definition, atomic_operation, read_code
from synknumba._errors import ArgumentError, KernelError
from synknumba._types import Shape
from synknumba.simt.internals import CudaPath, Scope, read_definition

_PLACES = {"threadIdx", "blockIdx", "blockDim"}  # whose `x` make the position of a thread


@dataclass(frozen=True, slots=True)
class Guarded:
    """An element whose first index is below the length of another array."""

    index: str
    guard: str  # the parameter whose length the index is compared with
    is_size: bool  # whether it is compared with `size`, which is the length of arrays with one axis only
    used: str  # the parameter of the element
    place: str  # file and line
    by_position: bool  # whether the index is a position in the grid
    is_written: bool  # whether the kernel stores to elements of `used`

    def check(self, name: str, rank: int, shapes: Mapping[str, Shape], threads: int) -> None:
        """Raises `ArgumentError` if the element's array has fewer rows than those that its index is compared with.

        Args:
            name: the kernel's.
            rank: the rank of a launch.
            shapes: those of the arrays in the launch, as far as they are known.
            threads: those of the launch along x.
        """
        guard, used = shapes.get(self.guard), shapes.get(self.used)
        if not guard or not used or (self.is_size and len(guard) > 1):
            return
        if used[0] >= (min(guard[0], threads) if self.by_position else guard[0]):
            return
        size = "size" if self.is_size else "shape[0]"
        raise ArgumentError(
            f"{name} ({self.place}) uses {self.index} as an index of {self.used}, but compares it with rows of {self.guard} "
            f"only: rank {rank} has {_rows(guard[0])} of {self.guard} and {_rows(used[0])} of {self.used}, so that "
            f"{self.used}[{self.index}] would lie past its end. Pass {self.used} with the rows of {self.guard}; name it in "
            f'broadcast=("{self.used}",) if every rank needs all of it, and index it by rows of the whole, synk.OFFSET + '
            f"{self.index}; or write `if {self.index} < min({self.guard}.{size}, {self.used}.shape[0])` to leave out the other "
            "rows of each rank."
        )


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class RowUses:
    """How a kernel uses rows.

    Attributes:
        guarded: elements that it certainly uses for every value of an index below the length of another array.
        looked_up: arrays of which each element that it uses has a first index that is the value of another array.
    """

    guarded: tuple[Guarded, ...] = ()
    looked_up: frozenset[str] = frozenset()


NO_USES = RowUses()


def row_uses(function: Callable[..., Any]) -> RowUses:
    """Returns how a kernel uses rows, as far as its source shows it."""
    definition = read_code(function.__code__) if isinstance(function, FunctionType) else None
    if definition is None or not isinstance(function, FunctionType) or "numba.cuda" not in sys.modules:
        return NO_USES
    try:
        found = _Guards(definition, Scope(read_definition(function)), function.__code__.co_filename)
    except KernelError:  # raised again by the first call, where it matters
        return NO_USES
    return RowUses(tuple(found.elements()), frozenset(found.looked_up()))


@final
class _Guards:
    """Finds guarded elements in a kernel's source."""

    def __init__(self, definition: Definition, scope: Scope, file: str) -> None:
        self._definition, self._scope, self._file = definition, scope, file
        self._parameters = {*definition.parameters} - {*definition.stored}
        self._values: dict[str, ast.expr] = {}  # of variables that are bound once
        for node in definition.nodes:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if definition.stored.count(name) == 1:
                    self._values[name] = value

    def elements(self) -> Iterator[Guarded]:
        """Yields the elements."""
        for index, size, statements, by_position in self._guards():
            length = self._length(size)
            if (
                length is None
                or self._definition.stored.count(index) != 1
                or self._is_bounded_again(index, 1 if by_position else 0)
            ):
                continue
            for node in _always(statements):
                used = _array_at(node, index)
                if used in self._parameters and used != length[0] and not self._may_know_size(used):
                    place = f"{self._file}:{node.lineno}"  # type: ignore[attr-defined]  # of an expression
                    yield Guarded(index, *length, used, place, by_position, self._is_written(used))

    def looked_up(self) -> Iterator[str]:
        """Yields the parameters of which each element has a first index that is the value of another array."""
        found: dict[str, bool] = {}
        for node in self._definition.nodes:
            match node:
                case ast.Subscript(value=ast.Name(id=name), slice=index) if name in self._parameters:
                    first = index.elts[0] if isinstance(index, ast.Tuple) and index.elts else index
                    found[name] = found.get(name, True) and self._is_value(first, name)
        yield from (name for name, always in found.items() if always)

    def _is_value(self, node: ast.expr, name: str, depth: int = 4) -> bool:
        """Returns whether an expression contains an element of another parameter than `name`."""
        for part in ast.walk(node):
            match part:
                case ast.Subscript(value=ast.Name(id=array)) if array in self._parameters and array != name:
                    return True
                case ast.Name(id=variable) if depth and (value := self._values.get(variable)) is not None:
                    if self._is_value(value, name, depth - 1):
                        return True
        return False

    def _is_written(self, name: str) -> bool:
        parents = [self._definition.parents.get(id(use)) for use in self._definition.uses(name)]
        return any(
            (isinstance(one, ast.Subscript) and not isinstance(one.ctx, ast.Load))
            or (one is not None and atomic_operation(one) is not None)
            for one in parents
        )

    def _guards(self) -> Iterator[tuple[str, ast.expr, list[ast.stmt], bool]]:
        """Yields an index, what it is below, the statements in which it is, and whether it is a position.

        Every thread reaches these statements, for all of the index's values together.
        """
        body = self._definition.tree.body
        for number, statement in enumerate(body):
            match statement:
                case ast.If(test=ast.Compare(left=ast.Name(id=index), ops=[ast.Lt()], comparators=[size]), body=inner):
                    if self._is_position(self._values.get(index)):
                        yield index, size, inner, True
                case ast.If(
                    test=ast.Compare(left=ast.Name(id=index), ops=[ast.GtE()], comparators=[size]), body=[ast.Return()]
                ):
                    if self._is_position(self._values.get(index)):
                        yield index, size, body[number + 1 :], True
                    continue  # all threads whose index is below reach what follows
                case ast.For(target=ast.Name(id=index), iter=ast.Call(func=ast.Name(id="range"), args=[*bounds]), body=inner):
                    if (stop := self._stop(bounds)) is not None:
                        yield index, stop, inner, False
            if _leaves(statement):
                return

    def _stop(self, bounds: list[ast.expr]) -> ast.expr | None:
        """Returns the end of a range, if all threads together have every index below; else None."""
        match bounds:
            case [stop] | [ast.Constant(value=0), stop]:
                return stop
            case [start, stop, step] if not isinstance(step, ast.Constant | ast.UnaryOp):
                starts = self._values.get(start.id) if isinstance(start, ast.Name) else start
                return (
                    stop if self._is_position(starts) or (starts is not None and self._place(starts) == "threadIdx") else None
                )
        return None

    def _is_position(self, value: ast.expr | None) -> bool:
        """Returns whether a value is the position of the thread in the grid along x."""
        match value:
            case ast.Call(func=function, args=[ast.Constant(value=1)], keywords=[]):
                return self._path(function) == "grid"
            case ast.BinOp():
                return {*map(self._place, _operands(value))} == _PLACES
        return False

    def _place(self, node: ast.expr) -> str | None:
        return self._path(node.value) if isinstance(node, ast.Attribute) and node.attr == "x" else None

    def _path(self, node: ast.expr) -> str | None:
        found = self._scope.resolve(node)
        return found.path if isinstance(found, CudaPath) else None

    def _length(self, node: ast.expr) -> tuple[str, bool] | None:
        """Returns the parameter of which an expression is the length, and whether it is its `size`; None if it is none."""
        match node:
            case ast.Name(id=name) if name in self._values:
                return self._length(self._values[name])
            case ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="shape"), slice=ast.Constant(value=0)):
                return (name, False) if name in self._parameters else None
            case ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=name)]) if name in self._parameters:
                return name, False
            case ast.Attribute(value=ast.Name(id=name), attr="size") if name in self._parameters:
                return name, True
        return None

    def _is_bounded_again(self, name: str, comparisons: int) -> bool:
        """Returns whether a variable is in more comparisons than these, or has another name, which may be."""
        compared = [node for node in self._definition.nodes if isinstance(node, ast.Compare) and _is_part(node, name)]
        renamed = any(isinstance(value, ast.Name) and value.id == name for value in self._values.values())
        return len(compared) > comparisons or renamed

    def _may_know_size(self, name: str) -> bool:
        """Returns whether a parameter is used in another way than by its elements, so that its size may be known."""
        parents = (self._definition.parents.get(id(use)) for use in self._definition.uses(name))
        return any(not isinstance(one, ast.Subscript) and (one is None or atomic_operation(one) is None) for one in parents)


def _is_part(node: ast.AST, name: str) -> bool:
    """Returns whether a variable is part of an expression, other than as an index."""
    if isinstance(node, ast.Name):
        return node.id == name
    return not isinstance(node, ast.Subscript) and any(_is_part(child, name) for child in ast.iter_child_nodes(node))


def _operands(node: ast.expr) -> list[ast.expr]:
    """Returns the operands of sums and products."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
        return _operands(node.left) + _operands(node.right)
    return [node]


def _array_at(node: ast.AST, index: str) -> str | None:
    """Returns the array of which a node is an element with this first index, also in an atomic operation; None for others."""
    match node:
        case ast.Subscript(value=ast.Name(id=array), slice=ast.Name(id=first) | ast.Tuple(elts=[ast.Name(id=first), *_])):
            return array if first == index else None
        case ast.Call(args=[ast.Name(id=array), ast.Name(id=first) | ast.Tuple(elts=[ast.Name(id=first), *_]), *_]):
            return array if first == index and atomic_operation(node) is not None else None
    return None


def _leaves(node: ast.AST) -> bool:
    """Returns whether a statement may end what it is part of."""
    return any(isinstance(one, ast.Return | ast.Raise | ast.Break | ast.Continue | ast.Assert) for one in ast.walk(node))


def _always(statements: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yields the nodes that are evaluated whenever the first of some statements is reached."""
    for statement in statements:
        yield from _evaluated(statement)
        if _leaves(statement):
            return


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the parts of a node that are evaluated whenever it is."""
    match node:
        case ast.If(test=first) | ast.IfExp(test=first) | ast.While(test=first) | ast.For(iter=first):
            yield from _evaluated(first)
        case ast.BoolOp(values=[first, *_]):
            yield from _evaluated(first)
        case ast.Compare(left=left, comparators=[first, *_]):  # a < b < c may end after b
            yield from _evaluated(left)
            yield from _evaluated(first)
        case ast.Try() | ast.FunctionDef() | ast.Lambda() | ast.ListComp() | ast.GeneratorExp():
            return
        case _:
            yield node
            for child in ast.iter_child_nodes(node):
                yield from _evaluated(child)
