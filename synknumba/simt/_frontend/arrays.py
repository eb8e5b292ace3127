"""`cuda.shared.array` and `cuda.local.array`: their shapes and dtypes, which are known before the kernel runs."""

import ast
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba.core import types
from numba.np.numpy_support import as_dtype

from synknumba.simt._frontend.scope import MISSING, Scope
from synknumba.simt._frontend.syntax import read_names

ARRAY_PATHS = frozenset({"shared.array", "local.array"})

# CUDA's own limits, in the CUDA C++ Programming Guide's table of technical specifications; here they keep arrays on the stack.
LOCAL_BYTES = 512 << 10  # local memory of a thread
STATIC_SHARED_BYTES = 48 << 10  # shared memory of a block whose size the kernel states


@dataclass(frozen=True, slots=True)
class SharedArray:
    """An array in the shared memory of a block.

    Attributes:
        shape: its dimensions; `(0,)` where it lies in the dynamic shared memory, and is as long as that.
        dtype: an expression of the generated code.
        at: where it is made.
    """

    shape: tuple[int, ...]
    dtype: ast.expr
    at: ast.AST

    @property
    def is_dynamic(self) -> bool:
        """Whether the launch says how large it is."""
        return self.shape == (0,)


def array_arguments(path: str, made: ast.Call, scope: Scope) -> tuple[ast.expr, ast.expr]:
    """The expressions of shape and dtype in a call.

    Raises:
        KernelError: one is missing.
    """
    names = ("shape", "dtype", "alignment")
    args = dict(zip(names, made.args, strict=False)) | {keyword.arg: keyword.value for keyword in made.keywords if keyword.arg}
    if "shape" not in args or "dtype" not in args:
        raise scope.source.refusal(made, f"cuda.{path}() without a shape and a dtype", "give it both")
    return args["shape"], args["dtype"]


def shape_of(node: ast.expr, scope: Scope, *, dynamic: bool) -> tuple[int, ...]:
    """The dimensions that an expression stands for.

    Raises:
        KernelError: they are not positive constants.
    """
    value = constant(node, scope)
    dims = value if isinstance(value, tuple) else (value,)
    whole = all(isinstance(dim, (int, np.integer)) and not isinstance(dim, bool) for dim in dims)
    if dims and whole and (all(dim > 0 for dim in dims) or (dynamic and dims == (0,))):
        return tuple(int(dim) for dim in dims)
    construct = "an array shape that is not made of positive integer constants"
    raise scope.source.refusal(node, construct, "use constants, or a dynamic shared array, of shape 0")


def check_size(path: str, shape: tuple[int, ...], dtype: Any, made: ast.AST, scope: Scope) -> None:
    """Refuses an array that is larger than CUDA allows.

    Args:
        path: "shared.array" or "local.array".
        shape: its dimensions.
        dtype: its dtype; None where Numba alone knows it, and then its elements are taken for bytes.
        made: where it is made.
        scope: of the kernel.

    Raises:
        KernelError: it is too large.
    """
    itemsize = 1 if dtype is None else dtype.itemsize if isinstance(dtype, np.dtype) else as_dtype(dtype).itemsize
    nbytes = math.prod(shape) * itemsize
    if path == "local.array" and nbytes > LOCAL_BYTES:
        construct = f"a local array of {nbytes} bytes, where CUDA gives a thread {LOCAL_BYTES}"
        raise scope.source.refusal(made, construct, "pass an array with a row for each thread")
    if path == "shared.array" and nbytes > STATIC_SHARED_BYTES:
        construct = f"a static shared array of {nbytes} bytes, where CUDA allows {STATIC_SHARED_BYTES}"
        raise scope.source.refusal(made, construct, "use a dynamic shared array, of shape 0, and launch with as many bytes")


def known_dtype(node: ast.expr, scope: Scope) -> types.Type | np.dtype[Any] | None:
    """The dtype that an expression stands for; None for one that Numba alone knows, such as `x.dtype`.

    Raises:
        KernelError: it stands for something else.
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
        raise scope.source.refusal(node, f"this dtype ({error})", "use a type of numba or NumPy") from error


def constant(node: ast.expr, scope: Scope) -> Any:
    """The value of an expression of constants, global names and variables that are only names for such; else `MISSING`."""
    local = {name: scope.constants[name] for name in read_names(node) & scope.locals if name in scope.constants}
    if read_names(node) & scope.locals - set(local):
        return MISSING
    values: dict[str, Any] = {}
    for name, definition in local.items():
        values[name] = constant(definition, scope)
        if values[name] is MISSING:
            return MISSING
    source = scope.source
    try:
        code = compile(ast.fix_missing_locations(ast.Expression(node)), source.filename, "eval")
        return eval(code, {**source.scope, **values})  # noqa: S307  # an expression of the user's own source
    except Exception as error:
        raise source.refusal(node, f"this constant ({type(error).__name__}: {error})", "use a plain number") from error
