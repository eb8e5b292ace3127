"""What is wrong with an argument of a launch, and what to pass instead."""

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numba.core import types

from synknumba._errors import ArgumentError
from synknumba._types import with_article
from synknumba.simt._maths import bfloat16
from synknumba.simt._source.syntax import walk
from synknumba.simt._source.written import Source

ARGUMENTS: Final = (
    "pass arrays of NumPy, or with DLPack or __array_interface__, numbers, and tuples of them"
)


def wrong_count(
    function: Callable[..., Any], params: Sequence[str], args: tuple[Any, ...]
) -> ArgumentError:
    """Returns the error for a launch with more or fewer arguments than a kernel has parameters."""
    count, way_out = "1 argument", ""
    if len(params) != 1:
        count = f"{len(params)} arguments"
    if params and params[0].removesuffix("__arg") == "self":
        way_out = (
            "; a kernel cannot be a method: write @staticmethod above its decorator, and pass what "
            "it needs of self"
        )
    return ArgumentError(f"{function.__qualname__}() takes {count}, got {len(args)}{way_out}")


def problem(kind: types.Type) -> str | None:
    """Returns what an argument of this type is, if Numba knows the type and kernels on GPUs do not
    take it.
    """
    if isinstance(kind, types.BaseTuple):
        part = next(filter(None, map(problem, kind)), None)
        return part and f"a tuple with {part}"
    if isinstance(kind, types.Array):
        if isinstance(kind.dtype, types.PyObject):
            return "an array of Python objects"
        return None
    if isinstance(kind, types.List | types.ListType):
        return "a list"
    if isinstance(kind, types.Buffer | types.Set | types.DictType):
        return _OF_PYTHON.get(type(kind), kind.name)
    return None


_OF_PYTHON: Final = {
    types.Bytes: "a bytes object",
    types.ByteArray: "a bytearray",
    types.MemoryView: "a memoryview",
    types.PyArray: "an array.array",
    types.Set: "a set",
    types.DictType: "a typed dict",
}


def without_type(function: Callable[..., Any], parameter: str, arg: Any) -> ArgumentError:
    """Returns the error for an argument for which Numba has no type."""
    what = f"{function.__qualname__}(): {parameter} is {with_article(type(arg).__qualname__)}"
    if bfloat16.is_dtype(arg):
        return ArgumentError(
            f"{what} of bfloat16, for which kernels need numba-cuda; install it, or "
            f"pass .astype(np.float32)"
        )
    if isinstance(arg, np.ndarray):
        return ArgumentError(f"{what} {_of_dtype(arg, parameter)}")
    way_out = ARGUMENTS
    if hasattr(arg, "to_numpy"):
        way_out = f"pass {parameter}.to_numpy()"
    return ArgumentError(f"{what}, which Numba cannot pass to a kernel; {way_out}")


def _of_dtype(array: np.ndarray[Any, Any], name: str) -> str:
    """Returns why Numba takes no array of this class or dtype, and what to pass."""
    dtype = array.dtype
    if isinstance(array, np.ma.MaskedArray):
        return (
            f"(masked), whose mask no kernel sees; pass {name}.filled(...), or {name}.data and "
            f"{name}.mask"
        )
    if not dtype.isnative:
        return (
            f"of dtype {dtype.str!r}, whose byte order is not the machine's; pass "
            f'{name}.astype({name}.dtype.newbyteorder("="))'
        )
    if dtype.char in "gG":  # longdouble
        narrower = {"f": "float64", "c": "complex128"}[dtype.kind]
        return f"of dtype {dtype}, which no kernel computes with; pass {name}.astype(np.{narrower})"
    if dtype.name.startswith("float"):  # of ml_dtypes, below 16 bits
        return f"of dtype {dtype}, which no kernel computes with; pass {name}.astype(np.float32)"
    return (
        f"of dtype {dtype}, which Numba cannot pass to a kernel; pass an array of numbers, dates "
        "or records"
    )


# Modules of the classes `cuda.In`, `cuda.Out` and `cuda.InOut`.
TRANSFERS = (
    "numba.cuda.args",
    "numba_cuda_mlir.numba_cuda.args",
    "synknumba.simt.cuda",
)


def in_host_memory(arg: Any) -> Any:
    """Returns the NumPy array of a stand-in for an array in a GPU's memory, also in a tuple; other
    arguments as they are.
    """
    if isinstance(arg, tuple):
        parts = [in_host_memory(part) for part in arg]
        if all(part is old for part, old in zip(parts, arg, strict=True)):
            return arg
        return getattr(arg, "_make", tuple)(parts)
    if hasattr(arg, "simt_values"):
        return arg.simt_values
    if isinstance(arg, np.ndarray):
        return arg
    return getattr(getattr(arg, "__cuda_array_interface__", None), "simt_values", arg)


# What to do about a read-only argument.
WRITABLE = (
    "pass a copy, or an array that may be written, and to a function of synk.parallel also "
    "inout=({name},)"
)


def is_readonly(kind: types.Type) -> bool:
    """Returns whether an argument of this type, or a part of it, is an array or record that may
    only be read.
    """
    if isinstance(kind, types.BaseTuple):
        return any(map(is_readonly, kind.types))
    return isinstance(kind, (types.Array, types.Record)) and not kind.mutable


def write_to_readonly(
    source: Source, body: Sequence[ast.stmt], argtypes: Mapping[str, types.Type], text: str
) -> ArgumentError:
    """Returns the error for a write to a read-only array, naming the parameter if the source or
    its type shows it.

    Args:
        source: of the kernel.
        body: the code of one thread.
        argtypes: the types of the arguments.
        text: Numba's message, which names the type that is written.
    """
    readonly = {
        name.removesuffix("__arg"): name for name, kind in argtypes.items() if is_readonly(kind)
    }
    for node in walk(body):
        target = _written_array(node)
        for parameter, name in sorted(readonly.items()):
            if name == target:
                return _readonly_error(source, node, parameter)
    if not readonly:
        return ArgumentError(
            f"{source.at(source.tree)} writes to a global array or a constant, which are "
            "read-only; pass the array to it"
        )
    named = [param for param, name in readonly.items() if _is_named(argtypes[name], text)]
    suspects = named or list(readonly)
    if len(suspects) == 1:
        return _readonly_error(source, source.tree, suspects[0])
    return ArgumentError(
        f"{source.at(source.tree)} writes to an array that is read-only, one of "
        f"{', '.join(suspects)}; {WRITABLE.format(name='...')}. A "
        "variable that is passed twice is read-only, too; pass a copy of it as another variable"
    )


def _readonly_error(source: Source, node: ast.AST, parameter: str) -> ArgumentError:
    return ArgumentError(
        f"{source.at(node)}: {parameter} is read-only; {WRITABLE.format(name=repr(parameter))}"
    )


def _is_named(kind: types.Type, text: str) -> bool:
    """Returns whether Numba's message names the type, or that of an array's records: of a write
    to a field.
    """
    return str(kind) in text or f"record of type {getattr(kind, 'dtype', None)}" in text


def _written_array(node: ast.AST) -> str | None:
    """Returns the variable whose elements or fields the node assigns or updates atomically."""
    match node:
        case (
            ast.Subscript(value=value, ctx=ast.Store())
            | ast.Attribute(value=value, ctx=ast.Store())
        ):
            return _root(value)
        case ast.Call(func=ast.Name(id=function), args=[value, *_]) if function.startswith(
            "_k_atomic"
        ):
            return _root(value)
    return None


def _root(node: ast.expr) -> str | None:
    """Returns the variable of which an expression takes elements and fields, if it is one."""
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        node = node.value
    return getattr(node, "id", None)
