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
        if not isinstance(member, CudaPath):
            return None
        return member.path

    def axis(self, node: ast.expr) -> int | None:
        """Returns the axis along which an expression is a position in the grid; None for others."""
        match node:
            case ast.Call(func=function, args=[ast.Constant(value=1)]):
                if self.path(function) == "grid":
                    return 0
            case ast.Subscript(value=ast.Call(func=function), slice=ast.Constant(value=int(axis))):
                if self.path(function) == "grid":
                    return axis
            case ast.BinOp(ast.BinOp(first, ast.Mult(), second), ast.Add(), third) | ast.BinOp(
                third, ast.Add(), ast.BinOp(first, ast.Mult(), second)
            ):
                return self._axis_of_product([first, second, third])
        return None

    def _axis_of_product(self, factors: list[ast.expr]) -> int | None:
        """Returns the axis of `blockIdx.x * blockDim.x + threadIdx.x`."""
        paths, letters = list[str](), set[str]()
        for factor in factors:
            if isinstance(factor, ast.Attribute):
                paths.append(str(self.path(factor.value)))
                letters.add(factor.attr)
        paths.sort()
        if paths != ["blockDim", "blockIdx", "threadIdx"] or len(letters) != 1:
            return None
        return _AXES.get(letters.pop())


def grid_names(function: FunctionType) -> GridNames | None:
    """Returns the names of a kernel; None of what does not compile."""
    try:
        return GridNames(Scope(read_definition(function)))
    except SynkError:  # raised again by the first call, where it matters
        return None
