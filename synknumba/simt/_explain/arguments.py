"""What is wrong with an argument of a launch, and what to pass instead."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numba.core import types

from synknumba._errors import ArgumentError

ARGUMENTS: Final = (
    "pass arrays of NumPy, or with DLPack or __array_interface__, numbers, and tuples of them"
)


def wrong_count(
    function: Callable[..., Any], params: Sequence[str], args: tuple[Any, ...]
) -> ArgumentError:
    """Returns the error for a launch with more or fewer arguments than a kernel has parameters."""
    count = "1 argument" if len(params) == 1 else f"{len(params)} arguments"
    way_out = ""
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
        found = next(filter(None, map(problem, kind)), None)
        return found and f"a tuple with {found}"
    if isinstance(kind, types.Array):
        return "an array of Python objects" if isinstance(kind.dtype, types.PyObject) else None
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
        narrower = "float64" if dtype.kind == "f" else "complex128"
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
        return arg._make(parts) if hasattr(arg, "_make") else tuple(parts)
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
