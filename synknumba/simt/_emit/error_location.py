"""Location of errors raised in a kernel compiled with `simt.jit(debug=True)`.

Each loop over threads or blocks records its current index in `_k_where`, and each statement its line, which Numba's traceback
lacks for an index out of bounds. An error in block-level code, which runs once for all threads of the block, is reported for
thread 0.
"""

import ast
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final, cast

import numpy as np
from numba.core import types

from synknumba.simt._frontend.syntax import statements
from synknumba.simt._library.operations import BLOCK, THREAD

# Last parameter of the launch function, and its type: shape (7,), the thread index, the block index and the line.
WHERE: Final = "_k_where"
WHERE_TYPE: Final = types.Array(types.int64, 1, "C")

_PLACES: Final = {name: place for place, name in enumerate((*THREAD.values(), *BLOCK.values()))}
_LINE: Final = len(_PLACES)


def note_places(body: list[ast.stmt]) -> list[ast.stmt]:
    """Returns the body of a launch function, instrumented to record the running thread, block and line in `_k_where`."""
    return cast(ast.Module, _Noter().visit(ast.Module(_with_lines(body), []))).body


def _with_lines(body: list[ast.stmt]) -> list[ast.stmt]:
    """Returns statements, each after one that records its line if it indexes an array itself."""
    out: list[ast.stmt] = []
    for node in body:
        for inner in ("body", "orelse"):
            if getattr(node, inner, None):
                setattr(node, inner, _with_lines(getattr(node, inner)))
        if isinstance(node, ast.Assign | ast.AugAssign | ast.Expr | ast.If | ast.While | ast.Return):
            out += statements(f"{WHERE}[{_LINE}] = {node.lineno}", node)
        out.append(node)
    return out


class _Noter(ast.NodeTransformer):
    def visit_For(self, node: ast.For) -> ast.stmt | list[ast.stmt]:
        self.generic_visit(node)
        place = _PLACES.get(node.target.id) if isinstance(node.target, ast.Name) else None
        if place is None:
            return node
        node.body[:0] = statements(f"{WHERE}[{place}] = {ast.unparse(node.target)}", node)
        return [node, *statements(f"{WHERE}[{place}] = 0", node)]


def located(entry: Callable[..., None], function: FunctionType) -> Callable[..., None]:
    """Wraps a launch function so that its error messages begin with the location, in numba-cuda's format."""

    def launch(*args: Any) -> None:
        where = np.zeros(_LINE + 1, np.int64)
        try:
            entry(*args, where)
        except Exception as error:
            line = _line(error)
            if not line and where[_LINE]:
                line = f"In function {function.__name__!r}, file {function.__code__.co_filename}, line {where[_LINE]}, "
            place = f"{line}tid={where[:3].tolist()} ctaid={where[3:_LINE].tolist()}"
            first, rest = error.args[:1], error.args[1:]
            error.args = (f"{place}: {first[0]}" if first else place, *rest)
            raise

    return launch


def _line(error: BaseException) -> str:
    """Returns the function, file and line of the statement that raised; "" if Numba's traceback lacks them."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_code.co_filename == __file__:
        return ""
    return f"In function {trace.tb_frame.f_code.co_name!r}, file {trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno}, "
