"""Shapes and dtypes of `cuda.shared.array` and `cuda.local.array`, evaluated and checked at
translation.
"""

import ast
import math
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
from numba.core import types
from numba.core.errors import NumbaNotImplementedError
from numba.np.numpy_support import as_dtype

from synknumba._errors import KernelError
from synknumba.simt._library.slots import itemsize
from synknumba.simt._maths import bfloat16
from synknumba.simt._source.numba_cuda import MISSING
from synknumba.simt._source.reads import functions_called
from synknumba.simt._source.scope import Scope
from synknumba.simt._source.source import read_definition
from synknumba.simt._source.syntax import nodes_of, read_names
from synknumba.simt._source.written import IN_KERNELS

ARRAY_PATHS = frozenset({"shared.array", "local.array"})

# CUDA's limits (CUDA C++ Programming Guide, table of technical specifications); on the CPU they
# keep arrays on the stack.
LOCAL_BYTES = 512 << 10  # local memory per thread
STATIC_SHARED_BYTES = 48 << 10  # static shared memory per block


@dataclass(frozen=True, slots=True)
class SharedArray:
    """An array in the shared memory of a block."""

    shape: tuple[int, ...]  # (0,) for dynamic shared memory, whose length the launch sets
    dtype: ast.expr  # of the generated code
    at: ast.AST  # the call that makes the array, for error messages

    @property
    def is_dynamic(self) -> bool:
        """Whether the array is dynamic shared memory, sized by the launch."""
        return self.shape == (0,)


def array_arguments(path: str, call: ast.Call, scope: Scope) -> tuple[ast.expr, ast.expr]:
    """Returns the shape and dtype expressions of a call of `cuda.shared.array` or
    `cuda.local.array`.
    """
    names = ("shape", "dtype", "alignment")
    args = dict(zip(names, call.args, strict=False))
    args |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    match args:
        case {"shape": shape, "dtype": dtype}:
            return shape, dtype
    raise scope.source.refusal(call, f"cuda.{path}() without a shape and a dtype", "pass both")


def is_shape(value: Any) -> bool:
    """Returns whether a value is an integer or a tuple of integers."""
    dims = value if isinstance(value, tuple) else (value,)
    return all(isinstance(dim, (int, np.integer)) and not isinstance(dim, bool) for dim in dims)


def shape_of(node: ast.expr, scope: Scope, *, dynamic: bool) -> tuple[int, ...]:
    """Returns the dimensions of a shape expression: positive integer constants, or with
    `dynamic` 0, dynamic shared memory.
    """
    value = constant(node, scope)
    if is_shape(value):
        dims = tuple(map(int, np.atleast_1d(value)))
        if min(dims, default=0) > 0:
            return dims
        if dynamic and dims == (0,):
            return dims
    construct = "an array shape not made of positive integer constants"
    way_out = "pass an array with one row per thread"
    if dynamic:
        way_out = "a dynamic shared array, of shape 0"
    raise scope.source.refusal(node, construct, f"use constants, or {way_out}", IN_KERNELS)


def check_size(path: str, shape: tuple[int, ...], dtype: Any, call: ast.AST, scope: Scope) -> None:
    """Rejects an array larger than CUDA allows; assumes 1 byte per element if only Numba can
    infer the dtype, here None.
    """
    nbytes = math.prod(shape) * _itemsize(dtype)
    match path:
        case "local.array" if nbytes > LOCAL_BYTES:
            construct = f"a local array of {nbytes} bytes (CUDA allows {LOCAL_BYTES} per thread)"
            way_out = "pass an array with one row per thread"
        case "shared.array" if nbytes > STATIC_SHARED_BYTES:
            limit = f"(CUDA allows {STATIC_SHARED_BYTES})"
            construct = f"a static shared array of {nbytes} bytes {limit}"
            way_out = "use a dynamic shared array, of shape 0, and pass its size at the launch"
        case _:
            return
    raise scope.source.refusal(call, construct, way_out)


def _itemsize(dtype: Any) -> int:
    if dtype is None:
        return 1
    if isinstance(dtype, np.dtype):
        return dtype.itemsize
    if dtype == bfloat16.kind():
        return int(dtype.bitwidth) // 8
    try:
        return int(as_dtype(dtype).itemsize)
    except NumbaNotImplementedError:  # a type of the program's own
        return itemsize(dtype)


def known_dtype(node: ast.expr, scope: Scope) -> types.Type | np.dtype[Any] | None:
    """Returns the dtype that an expression evaluates to; None if only Numba can infer it, as for
    `x.dtype`.
    """
    value = constant(node, scope)
    if value is MISSING:
        return None
    if isinstance(value, types.Record):
        return np.dtype(as_dtype(value))
    if isinstance(value, types.Type):
        return value
    try:
        return np.dtype(value)
    except TypeError as error:
        raise scope.source.refusal(
            node, f"this dtype ({error})", "use a type of numba or NumPy"
        ) from error


def constant(node: ast.expr, scope: Scope) -> Any:
    """Returns the value of an expression of constants, global names and local variables bound to
    such; else `MISSING`.
    """
    source, local = scope.source, read_names(node) & scope.locals
    if not local <= set(scope.constants):
        return MISSING
    values = {name: constant(scope.constants[name], scope) for name in local}
    if any(value is MISSING for value in values.values()):
        return MISSING
    try:
        code = compile(ast.fix_missing_locations(ast.Expression(node)), source.filename, "eval")
        return eval(code, {**source.scope, **values})  # noqa: S307  # an expression from the user's own source
    except Exception as error:
        raise source.refusal(
            node, f"this constant ({type(error).__name__}: {error})", "use a plain number"
        ) from error


def dynamic_shared(function: FunctionType) -> str | None:
    """Returns where a kernel, or a function that it calls, makes a dynamic shared array; None if
    its source shows none.
    """
    for called in functions_called(function):
        names = (*called.__code__.co_names, *called.__code__.co_freevars)
        if not {"array", "shared"} & {*names}:
            continue  # most functions; to find the source takes milliseconds
        try:
            scope = Scope(read_definition(called))
            for node in nodes_of(ast.Call, scope.source.tree):
                if scope.path_of(node.func) == "shared.array":
                    shape = constant(array_arguments("shared.array", node, scope)[0], scope)
                    if is_shape(shape) and shape in {0, (0,)}:
                        return f"{scope.source.filename}:{node.lineno}"
        except KernelError:  # raised again by the compiler, where it matters
            continue
    return None
