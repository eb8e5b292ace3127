"""Double buffering of shared arrays: an update of all elements writes to a second array, and the
two are swapped.

    v = s[t] + s[t - 1]         each thread reads any elements
    cuda.syncthreads()
    s[t] = v                    and then writes its own

Stored across the barrier, `v` would need a slot for each thread, and a copy. Writing to a second
array needs no slot:

    for t in ...:
        v = s[t] + s[t - 1]
        s__o[t] = v
    s, s__o = s__o, s

Both parts then run as one region, so a thread may write before another reads. The result is the
same if

- the first part writes no memory;
- the second part writes only to elements of shared arrays, and accesses only the thread's own
  element of these arrays;
- every element belongs to a thread of the block, and all threads run, so no stale element remains
  in the second array;
- the array has no alias in the kernel, not even as an argument, through which the old elements
  would be read.
"""

import ast
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from numba.core import types

from synknumba.simt._analysis.bounds import Guards
from synknumba.simt._analysis.namespace import ARRAY_ATTRIBUTES
from synknumba.simt._analysis.uniformity import Analysis
from synknumba.simt._library.slots import is_number
from synknumba.simt._library.words import AXES
from synknumba.simt._lower.arrays import SharedArray
from synknumba.simt._source.syntax import (
    all_copied,
    assigned_names,
    count_names,
    nodes_of,
    parts_of,
    place,
    read_names,
    rename,
    statements,
    walk,
)


@dataclass(frozen=True, slots=True)
class SwapUpdate:
    """An update of shared arrays around a barrier, as one region."""

    body: list[ast.stmt]  # of a thread
    arrays: tuple[str, ...]  # the shared arrays updated
    count: int  # of statements taken from after the barrier

    def swap(self, at: ast.AST) -> list[ast.stmt]:
        """Returns the statements that swap the arrays after the region."""
        pairs = ((name, other(name)) for name in self.arrays)
        lines = [f"{first}, {second} = {second}, {first}" for first, second in pairs]
        return statements("\n".join(lines), at)


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

    def __init__(
        self, analysis: Analysis, shared: Mapping[str, SharedArray], block: Sequence[int] | None
    ) -> None:
        self._analysis = analysis
        self._guards = Guards(analysis, ast.unparse)
        self._block: dict[str, int] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        if block is None:
            return
        self._block = dict(zip(AXES, block, strict=True))
        for name, array in shared.items():
            if array.is_dynamic or not self._holds_numbers(name):
                continue
            if self._has_one_name(name, len(array.shape)):
                self._shapes[name] = array.shape

    def find(self, before: Sequence[ast.stmt], behind: Sequence[ast.stmt]) -> SwapUpdate | None:
        """Returns the update made by the statements before a barrier and a prefix of those after
        it; None if there is none.
        """
        if not self._shapes or not before:
            return None
        if not self._only_computes(before) or any(map(_writes_memory, walk(before))):
            return None
        second = all_copied(takewhile(self._writes_own, behind))
        nodes = list(nodes_of(ast.Subscript, second))
        arrays = sorted({ast.unparse(node.value) for node in nodes if _writes_memory(node)})
        if not arrays or not all(self._touches_own(name, second) for name in arrays):
            return None
        # the first index of each array
        indices = {ast.unparse(node.value): ast.unparse(node.slice) for node in reversed(nodes)}
        rename(second, {name: other(name) for name in arrays})
        body = _joined(all_copied(before), second)
        for name in arrays:
            body = _with_old(name, body, indices[name], body[0])
        return SwapUpdate(body, tuple(arrays), len(second))

    # ---- what the parts do

    def _only_computes(self, body: Iterable[ast.stmt]) -> bool:
        """Returns whether the statements only assign variables and elements: threads may run them
        in any order, as they neither wait for other threads nor exit.
        """
        for node in walk(body):
            match node:
                case ast.Assign() | ast.AugAssign() | ast.If() | ast.For() | ast.While():
                    pass
                case ast.stmt() if not isinstance(node, ast.Pass):
                    return False
                case ast.Call(function) if not self._analysis.is_pure_function(function):
                    return False
        return True

    def _writes_own(self, statement: ast.stmt) -> bool:
        """Returns whether the statement writes only the thread's own variables and its own
        elements of shared arrays.
        """
        if isinstance(statement, (ast.For, ast.While)) or not self._only_computes([statement]):
            return False
        # uniform variables are assigned at the block level
        if not assigned_names(statement) <= self._analysis.varying:
            return False
        return all(map(self._is_own, filter(_writes_memory, walk(statement))))

    def _touches_own(self, name: str, body: list[ast.stmt]) -> bool:
        """Returns whether the statements access only the thread's own element of the array."""
        elements = filter(self._is_own, nodes_of(ast.Subscript, body))
        count = sum(ast.unparse(node.value) == name for node in elements)
        return count == count_names(body, name)

    def _is_own(self, node: ast.AST) -> bool:
        """Returns whether the node is an element `s[t]` of a shared array with one element per
        thread.
        """
        match node:
            case ast.Subscript(ast.Name(name), index):
                axes = [self._axis_of(part) for part in parts_of(index)]
            case _:
                return False
        if len(set(axes) - {""}) != len(axes):
            return False
        sizes = tuple(map(self._block.__getitem__, axes))
        if math.prod(sizes) != math.prod(self._block.values()):
            return False
        return self._shapes.get(name) == sizes

    def _axis_of(self, index: ast.expr) -> str:
        """Returns the axis of a thread index, or "" for any other expression."""
        return next((axis for axis in AXES if self._guards.offset(index, axis) == "0"), "")

    def _holds_numbers(self, name: str) -> bool:
        """Returns whether reading an element copies it; a record that is read still refers to
        the array.
        """
        match self._analysis.types.params.get(name):
            case types.Array(dtype=dtype):
                return is_number(dtype)
        return False

    def _has_one_name(self, name: str, ndim: int) -> bool:
        """Returns whether the kernel uses only elements and sizes of the array, so that no
        variable is an alias or a view.
        """
        nodes = [*self._analysis.body, *self._analysis.recomputed.values()]
        count = sum(self._is_element_or_size(node, name, ndim) for node in walk(nodes))
        return count == count_names(nodes, name)

    def _is_element_or_size(self, node: ast.AST, name: str, ndim: int) -> bool:
        match node:
            case ast.Subscript(ast.Name(read), index) if read == name:
                return len(parts_of(index)) == ndim and all(map(self._is_integer, parts_of(index)))
            case ast.Attribute(ast.Name(read), attr):
                return read == name and attr in ARRAY_ATTRIBUTES
        return False

    def _is_integer(self, node: ast.expr) -> bool:
        """Returns whether the expression is an integer, so that indexing with it gives an
        element.
        """
        match node:
            case ast.BinOp(_, ast.Div() | ast.Pow() | ast.MatMult()):
                pass
            case ast.BinOp(left, _, right) | ast.IfExp(_, left, right):
                return all(map(self._is_integer, (left, right)))
            case ast.UnaryOp(ast.USub() | ast.UAdd() | ast.Invert(), operand):
                return self._is_integer(operand)
        return self._analysis.is_integral(node)


def _writes_memory(node: ast.AST) -> bool:
    match node:
        case ast.Subscript(ctx=ast.Store()) | ast.Attribute(ctx=ast.Store()):
            return True
    return False


def _joined(first: list[ast.stmt], second: list[ast.stmt]) -> list[ast.stmt]:
    """Joins both parts, merging an `if` at the end of the first with one of the same condition
    at the start of the second.
    """
    match first[-1], second[0]:
        case ast.If(test, reading, []) as last, ast.If(again, writing, []):
            is_settled = not read_names(test) & assigned_names(reading)
            if is_settled and ast.dump(test) == ast.dump(again):
                joined = place(ast.If(test, reading + writing, []), last)
                return [*first[:-1], joined, *second[1:]]
    return first + second


def _with_old(name: str, body: list[ast.stmt], index: str, at: ast.AST) -> list[ast.stmt]:
    """Copies the old element to the second array on every path that does not write a new one, or
    reads it before.

    `index` is that of the thread's own element; `body`, which writes to the second array, is
    changed in place.
    """
    new = other(name)
    before = list(takewhile(lambda statement: not count_names(statement, new), body))
    rest = body[len(before) :]
    match rest:
        case [ast.Assign([ast.Subscript()], value), *_] if not count_names(value, new):
            return body
        case [ast.If(test) as statement, *_] if not count_names(test, new):
            statement.body = _with_old(name, statement.body, index, at)
            statement.orelse = _with_old(name, statement.orelse, index, at)
            return body
    return [*before, *statements(f"{new}[{index}] = {name}[{index}]", at), *rest]
