"""What expressions of a kernel mean: members of `numba.cuda`, and positions of threads."""

import ast
from collections.abc import Callable
from types import FunctionType
from typing import Any, final

from synknumba._errors import SynkError
from synknumba.simt.internals import CudaPath, Scope, read_definition

_AXES = {"x": 0, "y": 1, "z": 2}


@final
class GridNames:
    """Finds members of `numba.cuda` by the names that a kernel has for them."""

    def __init__(self, scope: Scope) -> None:
        self.resolve: Callable[[ast.expr], Any] = scope.resolve

    def path(self, node: ast.expr) -> str | None:
        """Returns the path below `numba.cuda` of what an expression names; None for others."""
        member = self.resolve(node)
        return member.path if isinstance(member, CudaPath) else None

    def axis(self, node: ast.expr) -> int | None:
        """Returns the axis along which an expression is a position in the grid; None for others."""
        match node:
            case ast.Call(func=function, args=[ast.Constant(value=1)]):
                return 0 if self.path(function) == "grid" else None
            case ast.Subscript(value=ast.Call(func=function), slice=ast.Constant(value=int(axis))):
                return axis if self.path(function) == "grid" else None
            case ast.BinOp(ast.BinOp(first, ast.Mult(), second), ast.Add(), third) | ast.BinOp(
                third, ast.Add(), ast.BinOp(first, ast.Mult(), second)
            ):
                return self._axis_of_product([first, second, third])
        return None

    def _axis_of_product(self, factors: list[ast.expr]) -> int | None:
        """Returns the axis of `blockIdx.x * blockDim.x + threadIdx.x`."""
        members = [factor for factor in factors if isinstance(factor, ast.Attribute)]
        paths = sorted(str(self.path(member.value)) for member in members)
        letters = {member.attr for member in members}
        if paths != ["blockDim", "blockIdx", "threadIdx"] or len(letters) != 1:
            return None
        return _AXES.get(letters.pop())


def grid_names(function: FunctionType) -> GridNames | None:
    """Returns the names of a kernel; None of what does not compile."""
    try:
        return GridNames(Scope(read_definition(function)))
    except SynkError:  # raised again by the first call, where it matters
        return None
