"""Location of errors raised in a kernel compiled with `simt.jit(debug=True)`.

Each loop over threads or blocks records its current index in `_k_where`. Each statement records its
line, which is missing from Numba's traceback of an index out of bounds, and its first index that is
out of bounds, which is missing from Numba's message. An error in block-level code, which runs once
for all threads of the block, is reported for thread 0.
"""

import ast
import traceback
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final, cast

import numpy as np
from numba.core import types

from synknumba._errors import at_line
from synknumba.simt._library.words import BLOCK, THREAD
from synknumba.simt._source.syntax import parts_of, statements

# Last parameter of the launch function, and its type: shape (10,), the thread index, the block
# index, the line; and of an index that is out of bounds the axis + 1, the index and the size.
WHERE: Final = "_k_where"
WHERE_TYPE: Final = types.Array(types.int64, 1, "C")

_PLACES: Final = {name: place for place, name in enumerate((*THREAD.values(), *BLOCK.values()))}
_LINE: Final = len(_PLACES)
_INDEX: Final = _LINE + 1
_SIZE: Final = _INDEX + 3
_OUT_OF_BOUNDS: Final = "index is out of bounds"  # all that Numba says
_ATOMIC: Final = "_k_atomic_"


def note_places(body: list[ast.stmt]) -> list[ast.stmt]:
    """Returns the body of a launch function, instrumented to record the running thread, block
    and line in `_k_where`.
    """
    return cast(ast.Module, _Noter().visit(ast.Module(_with_lines(body), []))).body


def _with_lines(body: list[ast.stmt]) -> list[ast.stmt]:
    """Returns statements, each after one that records its line if it indexes an array itself."""
    out: list[ast.stmt] = []
    for node in body:
        for inner in ("body", "orelse"):
            if getattr(node, inner, None):
                setattr(node, inner, _with_lines(getattr(node, inner)))
        if isinstance(
            node, ast.Assign | ast.AugAssign | ast.Expr | ast.If | ast.While | ast.Return
        ):
            out += statements(f"{WHERE}[{_LINE}] = {node.lineno}\n{WHERE}[{_INDEX}] = 0", node)
            for array, indices in _accesses(node):
                for axis, index in enumerate(indices):
                    access = f"{ast.unparse(array)}, {ast.unparse(index)}, {axis}"
                    out += statements(f"_k_note_index({WHERE}[{_INDEX}:], {access})", node)
        out.append(node)
    return out


def _accesses(statement: ast.stmt) -> list[tuple[ast.expr, list[ast.expr]]]:
    """Returns arrays and indices that a statement certainly uses and that can be evaluated
    before it, in any order.
    """
    match statement:
        case ast.Assign(targets=[ast.Tuple()], value=value):
            roots: list[ast.AST] = [value]  # the targets' indices may be assigned first
        case ast.If(test=test):
            roots = [test]
        case ast.While():
            return []  # its test runs again
        case _:
            roots = [statement]
    nodes = [node for root in roots for node in _certain(root)]
    if any(isinstance(node, ast.NamedExpr) for node in nodes):
        return []
    accesses: list[tuple[ast.expr, list[ast.expr]]] = []
    for node in nodes:
        match node:
            case ast.Subscript(value=array, slice=index) if not _is_generated(array):
                pass
            case ast.Call(func=ast.Name(id=name), args=[array, index, *_]) if name.startswith(
                _ATOMIC
            ):
                pass
            case _:
                continue
        indices = parts_of(index)
        if all(map(_is_plain, (array, *indices))):
            # inner ones first: they are part of the outer ones
            accesses.insert(0, (array, indices))
    return accesses


def _certain(node: ast.AST) -> list[ast.AST]:
    """Returns the nodes that run whenever the given one runs, outer ones first."""
    children = list(ast.iter_child_nodes(node))
    match node:
        case ast.BoolOp(values=[first, *_]):
            children = [first]
        case ast.IfExp(test=test):
            children = [test]
        case ast.Compare(left=left, comparators=[second, *_]):
            children = [left, second]
        case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            children = []
    return [node, *(inner for child in children for inner in _certain(child))]


def _is_plain(node: ast.expr) -> bool:
    """Returns whether evaluating an expression once more changes nothing, and raises nothing but
    for an index in it.
    """
    match node:
        case ast.Name() | ast.Constant(value=int()):
            return True
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return _is_plain(operand)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult(), right=right):
            return all(map(_is_plain, (left, right)))
        case ast.BinOp(left, ast.FloorDiv() | ast.Mod(), ast.Constant(int(divisor))) if divisor:
            return _is_plain(left)
        case ast.Call(func=ast.Name(id="_k_nonneg"), args=[argument]):
            return _is_plain(argument)
        case ast.Attribute(value=ast.Name(), attr="size"):
            return True
        case ast.Subscript(
            value=ast.Attribute(value=ast.Name(), attr="shape"), slice=ast.Constant()
        ):
            return True
        case ast.Subscript(array, index):
            return all(map(_is_plain, (array, *parts_of(index))))
    return False


def _is_generated(node: ast.expr) -> bool:
    """Returns whether an array is one of the generated code: a mask, a slot array."""
    return isinstance(node, ast.Name) and node.id.startswith("_k_")


class _Noter(ast.NodeTransformer):
    def visit_For(self, node: ast.For) -> ast.stmt | list[ast.stmt]:
        self.generic_visit(node)
        index = ast.unparse(node.target)
        place = _PLACES.get(index)
        if place is None:
            return node
        node.body[:0] = statements(f"{WHERE}[{place}] = {index}", node)
        return [node, *statements(f"{WHERE}[{place}] = 0", node)]


def located(entry: Callable[..., None], function: FunctionType) -> Callable[..., None]:
    """Wraps a launch function so that its error messages begin with the location, in
    numba-cuda's format.
    """

    def launch(*args: Any) -> None:
        where = np.zeros(_SIZE, np.int64)
        try:
            entry(*args, where)
        except Exception as error:
            code, number = function.__code__, int(where[_LINE])
            if number and not _line(error):
                at_line(error, code.co_filename, number, function.__name__)
            line = _line(error)
            place = f"{line}tid={where[:3].tolist()} ctaid={where[3:_LINE].tolist()}"
            first, rest = error.args[:1], error.args[1:]
            axis, index, size = where[_INDEX:].tolist()
            if axis and isinstance(error, IndexError) and first == (_OUT_OF_BOUNDS,):
                first = (f"index {index} is out of bounds for axis {axis - 1} with size {size}",)
            error.args = (": ".join(map(str, (place, *first))), *rest)
            raise

    return launch


def _line(error: BaseException) -> str:
    """Returns the function, file and line of the statement that raised; "" if Numba's traceback
    lacks them.
    """
    match [*traceback.walk_tb(error.__traceback__)]:
        case [*_, (frame, line)] if frame.f_code.co_filename != __file__:
            code = frame.f_code
            return f"In function {code.co_name!r}, file {code.co_filename}, line {line}, "
    return ""
