"""Double buffering of shared arrays: an update of all elements writes to a second array, and the two are swapped.

    v = s[t] + s[t - 1]         each thread reads any elements
    cuda.syncthreads()
    s[t] = v                    and then writes its own

Stored across the barrier, `v` would need a slot for each thread, and a copy. Writing to a second array needs no slot:

    for t in ...:
        v = s[t] + s[t - 1]
        s__o[t] = v
    s, s__o = s__o, s

Both parts then run as one region, so a thread may write before another reads. The result is the same if

- the first part writes no memory;
- the second part writes only to elements of shared arrays, and accesses only the thread's own element of these arrays;
- every element belongs to a thread of the block, and all threads run, so no stale element remains in the second array;
- the array has no alias in the kernel, not even as an argument, through which the old elements would be read.
"""

import ast
import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from numba.core import types

from synknumba.simt._analysis.bounds import Guards
from synknumba.simt._analysis.uniformity import ARRAY_ATTRIBUTES, Analysis
from synknumba.simt._frontend.arrays import SharedArray
from synknumba.simt._frontend.syntax import assigned_names, count_names, place, read_names, statements, walk
from synknumba.simt._library.operations import AXES
from synknumba.simt._library.slots import is_number

# Statements that threads may run in any order: they neither wait for other threads nor exit.
_PLAIN = (ast.Assign, ast.AugAssign, ast.If, ast.For, ast.While, ast.Pass)


@dataclass(frozen=True, slots=True)
class SwapUpdate:
    """An update of shared arrays around a barrier, as one region.

    Attributes:
        body: the statements of a thread.
        arrays: the shared arrays updated.
        count: number of statements taken from after the barrier.
    """

    body: list[ast.stmt]
    arrays: tuple[str, ...]
    count: int

    def swap(self, at: ast.AST) -> list[ast.stmt]:
        """Returns the statements that swap the arrays after the region."""
        return [line for name in self.arrays for line in statements(f"{name}, {other(name)} = {other(name)}, {name}", at)]


def other(name: str) -> str:
    """Returns the name of the second array."""
    return f"{name}__o"


class SwapFinder:
    """Finds updates of shared arrays that can be double-buffered.

    Args:
        analysis: analysis of the kernel.
        shared: the kernel's shared arrays.
        block: the only block size that the code will be launched with; None for any.
    """

    def __init__(self, analysis: Analysis, shared: Mapping[str, SharedArray], block: Sequence[int] | None) -> None:
        self._known = analysis
        self._guards = Guards(analysis, ast.unparse)
        self._block = dict(zip(AXES, block, strict=True)) if block else {}
        self._shapes = {
            name: array.shape
            for name, array in shared.items()
            if self._block and not array.is_dynamic and self._holds_numbers(name) and self._has_one_name(name, len(array.shape))
        }

    def find(self, before: Sequence[ast.stmt], behind: Sequence[ast.stmt]) -> SwapUpdate | None:
        """Returns the update made by the statements before a barrier and a prefix of those after it; None if there is none."""
        if not self._shapes or not before or not self._only_computes(before):
            return None
        if any(isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.ctx, ast.Store) for node in walk(before)):
            return None
        count = 0
        while count < len(behind) and self._writes_own(behind[count]):
            count += 1
        second = copy.deepcopy(list(behind[:count]))
        arrays = tuple(sorted(_written(second)))
        if not arrays or not all(self._touches_own(name, second) for name in arrays):
            return None
        index = {name: _first_index(name, second) for name in arrays}
        body = _joined(copy.deepcopy(list(before)), [_Renamed(arrays).visit(statement) for statement in second])
        for name in arrays:
            body = _with_old(name, body, index[name], body[0])
        return SwapUpdate(body, arrays, count)

    # ---- what the parts do

    def _only_computes(self, body: Iterable[ast.stmt]) -> bool:
        """Returns whether the statements only assign variables and elements."""
        return all(
            (not isinstance(node, ast.stmt) or isinstance(node, _PLAIN))
            and (not isinstance(node, ast.Call) or self._known.is_pure_function(node.func))
            for node in walk(body)
        )

    def _writes_own(self, statement: ast.stmt) -> bool:
        """Returns whether the statement writes only the thread's own variables and its own elements of shared arrays."""
        if isinstance(statement, (ast.For, ast.While)) or not self._only_computes([statement]):
            return False
        if not assigned_names(statement) <= self._known.varying:  # uniform variables are assigned at the block level
            return False
        stores = [node for node in ast.walk(statement) if isinstance(getattr(node, "ctx", None), ast.Store)]
        return all(isinstance(node, (ast.Name, ast.Tuple)) or self._is_own(node) for node in stores)

    def _touches_own(self, name: str, body: list[ast.stmt]) -> bool:
        """Returns whether the statements access only the thread's own element of the array."""
        own = sum(self._is_own(node) and node.value.id == name for node in walk(body))  # type: ignore[attr-defined]
        return own == count_names(body, name)

    def _is_own(self, node: ast.AST) -> bool:
        """Returns whether the node is an element `s[t]` of a shared array with one element per thread."""
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
            return False
        shape = self._shapes.get(node.value.id)
        index = _parts(node.slice)
        axes = [axis for part in index for axis in AXES if self._guards.offset(part, axis) == "0"]
        if shape is None or len(axes) != len(index) or len(set(axes)) != len(axes):
            return False
        return shape == tuple(self._block[axis] for axis in axes) and all(
            size == 1 for axis, size in self._block.items() if axis not in axes
        )

    def _holds_numbers(self, name: str) -> bool:
        """Returns whether reading an element copies it; a record that is read still refers to the array."""
        kind = self._known.types.params.get(name)
        return isinstance(kind, types.Array) and is_number(kind.dtype)

    def _has_one_name(self, name: str, ndim: int) -> bool:
        """Returns whether the kernel uses only elements and sizes of the array, so that no variable is an alias or a view."""
        nodes = [*self._known.body, *self._known.recomputed.values()]
        used = sum(self._is_element(node, name, ndim) or _is_size(node, name) for node in walk(nodes))
        return used == count_names(nodes, name)

    def _is_element(self, node: ast.AST, name: str, ndim: int) -> bool:
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name) or node.value.id != name:
            return False
        index = _parts(node.slice)
        return len(index) == ndim and all(map(self._is_integer, index))

    def _is_integer(self, node: ast.expr) -> bool:
        """Returns whether the expression is an integer, so that indexing with it gives an element."""
        match node:
            case ast.BinOp(left=left, op=op, right=right) if not isinstance(op, (ast.Div, ast.Pow, ast.MatMult)):
                return self._is_integer(left) and self._is_integer(right)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Invert(), operand=operand):
                return self._is_integer(operand)
            case ast.IfExp(body=one, orelse=two):
                return self._is_integer(one) and self._is_integer(two)
        return self._known.is_integral(node)


def _parts(index: ast.expr) -> list[ast.expr]:
    return index.elts if isinstance(index, ast.Tuple) else [index]


def _is_size(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in ARRAY_ATTRIBUTES and ast.unparse(node.value) == name


def _written(body: Iterable[ast.stmt]) -> set[str]:
    """Returns the arrays whose elements are written."""
    return {
        node.value.id
        for node in walk(body)
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name)
    }


def _first_index(name: str, body: Iterable[ast.stmt]) -> str:
    """Returns the text of the first index of the array."""
    return next(
        ast.unparse(node.slice)
        for node in walk(body)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == name
    )


def _joined(first: list[ast.stmt], second: list[ast.stmt]) -> list[ast.stmt]:
    """Joins both parts, merging an `if` at the end of the first with one of the same condition at the start of the second."""
    match first[-1], second[0]:
        case ast.If(orelse=[]) as one, ast.If(orelse=[]) as two if ast.dump(one.test) == ast.dump(two.test):
            if not read_names(one.test) & assigned_names(one.body):
                return [*first[:-1], place(ast.If(one.test, one.body + two.body, []), one), *second[1:]]
    return first + second


def _with_old(name: str, body: list[ast.stmt], index: str, at: ast.AST) -> list[ast.stmt]:
    """Copies the old element to the second array on every path that does not write a new one, or reads it before.

    Args:
        name: the array.
        body: the statements, which write to the second array; changed in place.
        index: the index of the thread's own element.
        at: node that gives new statements their line.
    """
    new = other(name)
    position = next((position for position, statement in enumerate(body) if count_names(statement, new)), len(body))
    match body[position : position + 1]:
        case [ast.Assign(targets=[ast.Subscript()], value=value)] if not count_names(value, new):
            return body
        case [ast.If(test=test) as statement] if not count_names(test, new):
            statement.body = _with_old(name, statement.body, index, at)
            statement.orelse = _with_old(name, statement.orelse, index, at)
            return body
    return [*body[:position], *statements(f"{new}[{index}] = {name}[{index}]", at), *body[position:]]


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: Iterable[str]) -> None:
        self._names = set(names)

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.copy_location(ast.Name(other(node.id), node.ctx), node) if node.id in self._names else node
