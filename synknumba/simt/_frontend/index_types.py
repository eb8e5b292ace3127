"""Where it matters that indices are int32 in CUDA.

`cuda.threadIdx.x` and its like are int32 there, `cuda.grid(1)` is int64. Here all are int64, as the loops over threads are, and
that shows in few places: operations on bits, and the choice between signatures of a device function.
"""

import ast
from collections.abc import Callable
from typing import Final

from synknumba.simt._frontend.scope import CudaPath, Scope
from synknumba.simt._library.operations import INDICES

# Operations below `numba.cuda` whose result depends on how many bits an integer has.
OF_THE_WIDTH: Final = frozenset({"brev", "clz", "ffs", "popc"})


def is_index(node: ast.expr, scope: Scope) -> bool:
    """Whether an expression is an index, a size or a lane, or a variable that is never anything else."""
    followed: set[str] = set()
    while isinstance(node, ast.Name) and node.id in scope.constants and node.id not in followed:
        followed.add(node.id)
        node = scope.constants[node.id]
    found = scope.resolve(node)
    return isinstance(found, CudaPath) and (found.path in INDICES or found.path in {"laneid", "warpsize"})


def as_in_cuda(nodes: list[ast.expr], scope: Scope, int32: Callable[[ast.expr], ast.expr]) -> list[ast.expr]:
    """The arguments of a call, indices among them as int32.

    Args:
        nodes: the expressions.
        scope: what their names stand for.
        int32: makes the expression that converts one.
    """
    return [int32(node) if is_index(node, scope) else node for node in nodes]
