"""Kernels that ask for no position, in a launch of one thread per row: `for i in range(len(x)): t[0] += x[i]`.

Each thread does all the work, so such a sum is 256 times too large, or anything else where threads race. Refused when the
kernel is decorated, where its source shows that threads add to the same elements: `t[…] += …`, `t[…] = t[…] + …` or an atomic
addition of more than a constant, which counts threads. Allowed are kernels that call anything that may know the thread, and
those that only assign, since every thread assigns the same.
"""

import ast
import builtins
import math
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from synknumba._call.definition import atomic_operation, read_code
from synknumba._errors import KernelError, LaunchError
from synknumba._ops.launch import LaunchConfig
from synknumba.simt.internals import CudaPath, Scope, read_definition

_ADDING = {"add", "sub"}


def check_positions(name: str, function: Callable[..., Any], launch: LaunchConfig) -> None:
    """Raises `LaunchError` if each thread of a launch by rows certainly does all the work, and adds to the same elements."""
    if launch.grid is not None or not isinstance(function, FunctionType):
        return
    definition = read_code(function.__code__) if "numba.cuda" in sys.modules else None
    if definition is None:
        return
    parameters = {*definition.parameters} - {*definition.stored}
    added = next((node for node in definition.nodes if _adds(node, parameters)), None)
    if added is None:
        return
    try:
        scope = Scope(read_definition(function))
    except KernelError:  # raised again by the first call, where it matters
        return
    if not all(_knows_no_thread(node, scope) for node in definition.nodes):
        return
    raise LaunchError(
        f"{name} ({function.__code__.co_filename}:{added.lineno}): each thread of a launch, "  # type: ignore[attr-defined]
        f"by default one per row in blocks of {launch.threads}, runs all of this kernel, and adds to the same elements in "
        f"{ast.unparse(added)}. Use i = cuda.grid(1), and let each thread work on row i; or pass grid=1, block=1 for one "
        "thread on each rank."
    )


def _adds(node: ast.AST, parameters: set[str]) -> bool:
    """Returns whether a statement or a call adds to elements of a parameter."""
    match node:
        case ast.AugAssign(target=ast.Subscript(value=ast.Name(id=name))):
            return name in parameters
        case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name)) as target], value=value):
            element = ast.unparse(target)
            return name in parameters and any(
                isinstance(part, ast.Subscript) and ast.unparse(part) == element for part in ast.walk(value)
            )
        case ast.Call(args=[ast.Name(id=name), _, value]) if atomic_operation(node) in _ADDING:
            return name in parameters and not isinstance(value, ast.Constant)
    return False


def _knows_no_thread(node: ast.AST, scope: Scope) -> bool:
    """Returns whether a node certainly gives nothing that differs between threads."""
    match node:
        case ast.Call(func=function):
            return atomic_operation(node) in _ADDING or _is_plain(scope.resolve(function))
        case ast.FunctionDef() | ast.Lambda():
            return False
        case ast.Name() | ast.Attribute():
            found = scope.resolve(node)
            return not isinstance(found, CudaPath) or found.path in {"", "atomic", *(f"atomic.{one}" for one in _ADDING)}
    return True


def _is_plain(function: object) -> bool:
    """Returns whether a function is one of Python, `math` or NumPy, of which none knows the thread."""
    name = getattr(function, "__name__", None)
    return isinstance(name, str) and any(getattr(module, name, None) is function for module in (builtins, math, np))
