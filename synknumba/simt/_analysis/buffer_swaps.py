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
    parts_of,
    place,
    read_names,
    rename,
    statements,
    walk,
)

# Statements that threads may run in any order: they neither wait for other threads nor exit.
_PLAIN = (ast.Assign, ast.AugAssign, ast.If, ast.For, ast.While, ast.Pass)


@dataclass(frozen=True, slots=True)
class SwapUpdate:
    """An update of shared arrays around a barrier, as one region."""

    body: list[ast.stmt]  # of a thread
    arrays: tuple[str, ...]  # the shared arrays updated
    count: int  # of statements taken from after the barrier

    def swap(self, at: ast.AST) -> list[ast.stmt]:
        """Returns the statements that swap the arrays after the region."""
        return [
            line
            for name in self.arrays
            for line in statements(f"{name}, {other(name)} = {other(name)}, {name}", at)
        ]


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
        self._block = dict(zip(AXES, block, strict=True)) if block else {}
        self._shapes = {
            name: array.shape
            for name, array in shared.items()
            if self._block
            and not array.is_dynamic
            and self._holds_numbers(name)
            and self._has_one_name(name, len(array.shape))
        }

    def find(self, before: Sequence[ast.stmt], behind: Sequence[ast.stmt]) -> SwapUpdate | None:
        """Returns the update made by the statements before a barrier and a prefix of those after
        it; None if there is none.
        """
        if not self._shapes or not before or not self._only_computes(before):
            return None
        if any(map(_writes_memory, walk(before))):
            return None
        second = all_copied(takewhile(self._writes_own, behind))
        nodes = [node for node in walk(second) if isinstance(node, ast.Subscript)]
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
        """Returns whether the statements only assign variables and elements."""
        for node in walk(body):
            if isinstance(node, ast.stmt) and not isinstance(node, _PLAIN):
                return False
            if isinstance(node, ast.Call) and not self._analysis.is_pure_function(node.func):
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
        stores = [
            node for node in walk(statement) if isinstance(getattr(node, "ctx", None), ast.Store)
        ]
        return all(isinstance(node, (ast.Name, ast.Tuple)) or self._is_own(node) for node in stores)

    def _touches_own(self, name: str, body: list[ast.stmt]) -> bool:
        """Returns whether the statements access only the thread's own element of the array."""
        count = sum(self._is_own(node) and node.value.id == name for node in walk(body))  # type: ignore[attr-defined]
        return count == count_names(body, name)

    def _is_own(self, node: ast.AST) -> bool:
        """Returns whether the node is an element `s[t]` of a shared array with one element per
        thread.
        """
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
            return False
        index = parts_of(node.slice)
        axes = [axis for part in index for axis in AXES if self._guards.offset(part, axis) == "0"]
        if len(axes) != len(index) or len(set(axes)) != len(axes):
            return False
        sizes = tuple(self._block[axis] for axis in axes)
        covers_block = math.prod(sizes) == math.prod(self._block.values())
        return covers_block and self._shapes.get(node.value.id) == sizes

    def _holds_numbers(self, name: str) -> bool:
        """Returns whether reading an element copies it; a record that is read still refers to
        the array.
        """
        kind = self._analysis.types.params.get(name)
        return isinstance(kind, types.Array) and is_number(kind.dtype)

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
            case ast.BinOp(left=left, op=op, right=right) if not isinstance(
                op, (ast.Div, ast.Pow, ast.MatMult)
            ):
                return self._is_integer(left) and self._is_integer(right)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Invert(), operand=operand):
                return self._is_integer(operand)
            case ast.IfExp(body=one, orelse=two):
                return self._is_integer(one) and self._is_integer(two)
        return self._analysis.is_integral(node)


def _writes_memory(node: ast.AST) -> bool:
    return isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.ctx, ast.Store)


def _joined(first: list[ast.stmt], second: list[ast.stmt]) -> list[ast.stmt]:
    """Joins both parts, merging an `if` at the end of the first with one of the same condition
    at the start of the second.
    """
    match first[-1], second[0]:
        case ast.If(orelse=[]) as one, ast.If(orelse=[]) as two if ast.dump(one.test) == ast.dump(
            two.test
        ):
            if not read_names(one.test) & assigned_names(one.body):
                return [
                    *first[:-1],
                    place(ast.If(one.test, one.body + two.body, []), one),
                    *second[1:],
                ]
    return first + second


def _with_old(name: str, body: list[ast.stmt], index: str, at: ast.AST) -> list[ast.stmt]:
    """Copies the old element to the second array on every path that does not write a new one, or
    reads it before.

    `index` is that of the thread's own element; `body`, which writes to the second array, is
    changed in place.
    """
    new = other(name)
    position = next(
        (position for position, statement in enumerate(body) if count_names(statement, new)),
        len(body),
    )
    match body[position : position + 1]:
        case [ast.Assign(targets=[ast.Subscript()], value=value)] if not count_names(value, new):
            return body
        case [ast.If(test=test) as statement] if not count_names(test, new):
            statement.body = _with_old(name, statement.body, index, at)
            statement.orelse = _with_old(name, statement.orelse, index, at)
            return body
    return [
        *body[:position],
        *statements(f"{new}[{index}] = {name}[{index}]", at),
        *body[position:],
    ]
