"""Kernels written for numba-cuda-mlir, whose modules, types and functions are its own: their
counterparts in Numba.

`from numba_cuda_mlir import cuda` gives a module with the members of `numba.cuda`, and types that
Numba does not know. Values of a kernel's global names are translated when they are read, so that
the rest of the compiler sees Numba's objects only.
"""

import importlib
import sys
from contextlib import suppress
from functools import cache
from operator import attrgetter
from types import ModuleType
from typing import Any, Final

from numba.core import types
from numba.core.typing import signature
from numba.np.numpy_support import from_dtype

from synknumba.simt._source.numba_cuda import CudaPath, cuda_module, is_of_module

PACKAGE: Final = "numba_cuda_mlir"

# Modules with the members of `numba.cuda`: the second defines most of what the first exports.
_CUDA: Final = (f"{PACKAGE}.cuda", f"{PACKAGE}.numba_cuda")
_TYPES: Final = (f"{PACKAGE}.types", f"{PACKAGE}.numba_cuda.types")


def counterpart(value: Any) -> Any:
    """Returns Numba's counterpart of an object of numba-cuda-mlir; a member of `cuda` that Numba
    does not have by its path.

    Other values, and functions of the program that numba-cuda-mlir has decorated, are returned as
    they are.
    """
    if not is_loaded():
        return value
    if isinstance(value, ModuleType):
        return _module(value)
    if not _is_of_mlir(value):
        return value
    if is_type(value):
        kind = _as_numba(value)
        if kind is not None:
            return kind
    if type(value).__name__ == "Signature":
        return signature(_as_numba(value.return_type), *map(_as_numba, value.args))
    if hasattr(value, "py_func"):  # decorated
        return value
    name = _members().get(id(value)) or _in_submodule(value)
    if name is None:
        return value
    return _member(name)


def is_loaded() -> bool:
    """Returns whether the program uses numba-cuda-mlir; a package whose import has failed is
    only in part there.
    """
    return sys.modules.keys() >= {*_CUDA}


def has(path: str) -> bool:
    """Returns whether numba-cuda-mlir is loaded and its module `cuda` has this member."""
    try:
        attrgetter(path)(sys.modules[_CUDA[0]])
    except (KeyError, AttributeError):
        return False
    return True


def is_type(value: Any) -> bool:
    """Returns whether this is a type of numba-cuda-mlir."""
    bases = [base for base in type(value).__mro__ if base.__name__ == "Type"]
    return any(is_of_package(base.__module__) for base in bases)


def is_of_package(name: Any) -> bool:
    """Returns whether a module with this name is of numba-cuda-mlir."""
    return isinstance(name, str) and name.partition(".")[0] == PACKAGE


def _is_of_mlir(value: Any) -> bool:
    home = getattr(value, "__module__", None)
    return is_of_package(home) or is_of_package(type(value).__module__)


def _module(module: ModuleType) -> Any:
    name = module.__name__
    if name == PACKAGE:
        return importlib.import_module("numba")
    if name in _TYPES:
        return types
    for cuda in _CUDA:
        if name == cuda:
            _import("random")  # a member of numba-cuda-mlir's module without an import
            return cuda_module()
        if name.startswith(f"{cuda}."):
            return _member(name.removeprefix(f"{cuda}."))
    return module


def _member(name: str) -> Any:
    _import(name.partition(".")[0])
    try:
        return attrgetter(name)(cuda_module())
    except AttributeError:
        return CudaPath(name)


def _import(name: str) -> None:
    """Imports a submodule of `numba.cuda`, if there is one of this name."""
    with suppress(ImportError):
        importlib.import_module(f"numba.cuda.{name}")


@cache
def _members() -> dict[int, str]:
    """Returns the names of the members of both modules, by id, since programs may import them
    under other names.
    """
    names = {}
    for module in _CUDA:
        for name, value in vars(sys.modules[module]).items():
            if _is_of_mlir(value):
                names[id(value)] = name
    return names


def _in_submodule(value: Any) -> str | None:
    """Returns the path of a function of a module such as `cuda.libdevice` or `cuda.random`."""
    home = str(getattr(value, "__module__", ""))
    if not is_of_module(value, home):
        return None
    for cuda in _CUDA:
        if home.startswith(f"{cuda}."):
            return f"{home.removeprefix(f'{cuda}.')}.{value.__name__}"
    return None


def _as_numba(kind: Any) -> types.Type | None:
    """Returns Numba's type; None if it has none."""
    match type(kind).__name__:
        case "Array":
            dtype, readonly = _as_numba(kind.dtype), not kind.mutable
            return types.Array(dtype, kind.ndim, kind.layout, readonly, aligned=kind.aligned)
        case "UniTuple" | "Tuple":
            return types.Tuple(list(map(_as_numba, kind.types)))
        case "Boolean":
            return types.boolean
    named = getattr(types, str(kind), None)
    if isinstance(named, types.Type):
        return named
    try:
        support = importlib.import_module(f"{PACKAGE}.numba_cuda.np.numpy_support")
        return from_dtype(support.as_dtype(kind))  # records, dates, texts
    except Exception:  # noqa: BLE001  # either package has errors of its own for types that NumPy does not have
        return None
