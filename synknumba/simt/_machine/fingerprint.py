"""Digest of everything a compiled kernel depends on: the key of the on-disk cache.

Two kernels with the same digest compile to the same machine code. The digest is computed without
translating the kernel:

    kernel ── source text, code object, defaults
      ├── every global and closure variable it names ── numbers, arrays (by their bytes), dtypes, enums, tuples ...
      ├── every module or class attribute it reads ── the same
      └── every device function and njit function it names ── hashed recursively
    + Numba types of the arguments, options, package versions, processor

Objects of Python, NumPy and Numba are hashed by name, since the versions of these packages are part
of the digest. A kernel that reads a value with no cross-process identity (a plain Python object, a
pointer) is not cached on disk.

Two changes go undetected: the body of an `@overload` that a user registers for a NumPy or `math`
function, and a global changed after the script itself had called, and so compiled for the CPU, an
njit function that reads it.
"""  # noqa: E501

import builtins
import dataclasses
import enum
import hashlib
import inspect
import os
import platform
import struct
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tokenize import TokenError
from types import CodeType, FunctionType, ModuleType
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core import config, types
from numba.core.registry import cpu_target

from synknumba._types import WeakTable, with_article
from synknumba.simt._lower.cuda_overloads import overloaded_for_cuda
from synknumba.simt._lower.signatures import declared_signatures
from synknumba.simt._source import mlir
from synknumba.simt._source.reads import (
    chains_in,
    closure_values,
    is_jitted,
)

# Objects of these packages are hashed by name. Not all of synknumba: its kernels and device
# functions are hashed by source.
NAMED_PACKAGES: tuple[str, ...] = (
    "builtins",
    "math",
    "cmath",
    "operator",
    "numpy",
    "numba",
    "numba_cuda",
    "numba_cuda_mlir",
    "llvmlite",
)
NAMED_PACKAGES += ("synknumba.random", "synknumba.simt")

# bytes; hashing takes about 1 s per GB, so a kernel with a larger table is not cached.
LARGEST_ARRAY = 64 << 20

# Numba settings that affect generated code.
_NUMBA_SETTINGS: tuple[str, ...] = (
    "OPT",
    "LOOP_VECTORIZE",
    "SLP_VECTORIZE",
    "BOUNDSCHECK",
    "DEBUGINFO_DEFAULT",
)
_NUMBA_SETTINGS += ("LLVM_REFPRUNE_PASS", "LLVM_REFPRUNE_FLAGS", "ENABLE_PROFILING", "USING_SVML")

_SCALAR_TYPES: tuple[Any, ...] = (types.Boolean, types.Number, types.NPDatetime, types.NPTimedelta)
_SCALAR_TYPES += (types.CharSeq, types.UnicodeCharSeq, types.UnicodeType, types.NoneType)

# Name, size and mtime of the source files of this compiler and of the functions hashed by name:
# during development they may change the generated code while the version number stays the same.
# Read at import, as the files may be edited later.
_COMPILER_FILES = tuple(
    (path.name, path.stat().st_size, path.stat().st_mtime_ns)
    for path in (
        *sorted(Path(__file__).parents[1].rglob("*.py")),
        Path(__file__).parents[2] / "random.py",
        Path(__file__).parents[2] / "_sobol.py",
    )
)


# Digest of each function called by kernels, at its first appearance.
_first_digests: WeakTable[FunctionType, str] = WeakTable()


class NotComparableError(Exception):
    """A value read by a kernel has no cross-process identity; the message names it."""


class Fingerprint:
    """Incremental digest of Python values.

    Args:
        parts: the first values to add.
        inside: the chain of calling functions, the kernel first; detects recursion.

    Raises:
        NotComparableError: a value has no cross-process identity.
    """

    def __init__(self, *parts: Any, inside: tuple[FunctionType, ...] = ()) -> None:
        self._hash = hashlib.sha256()
        self._inside = inside
        for part in parts:
            self.value(part, "an option")

    def hexdigest(self) -> str:
        """Returns the digest of all values added so far."""
        return self._hash.hexdigest()

    def _add(self, tag: str, data: bytes = b"") -> None:
        """Adds a piece with its tag and length, so that distinct sequences of pieces give
        distinct bytes.
        """
        self._hash.update(f"{tag} {len(data)}:".encode())
        self._hash.update(data)

    def _text(self, tag: str, text: object) -> None:
        self._add(tag, str(text).encode("utf-8", "surrogatepass"))

    # ---- functions

    def function(self, function: FunctionType) -> None:
        """Adds a function, the values it reads, and the functions it calls."""
        if function in self._inside:  # a change after compilation would go undetected
            raise NotComparableError(f"{function.__qualname__} is recursive")
        within = Fingerprint(inside=(*self._inside, function))
        within._read(function)
        digest = within.hexdigest()
        # A callee is compiled once per process, which freezes the globals it reads.
        if self._inside and _first_digests.setdefault(function, digest) != digest:
            raise NotComparableError(
                f"{function.__qualname__} reads a value that has changed since it was compiled"
            )
        self._text("function", digest)

    def _read(self, function: FunctionType) -> None:
        self._text("name", f"{function.__module__} {function.__qualname__}")
        self._text("source", _source(function))
        self._code(function.__code__)
        closure = closure_values(function)
        problems = []
        for chain in sorted(set(chains_in(function.__code__, closure))):
            try:
                self._name(chain, closure, function.__globals__)
            # raised after all callees have been recorded, since they are compiled anyway
            except NotComparableError as error:
                problems.append(error)
        if problems:
            raise problems[0]
        self.value(function.__defaults__, f"the defaults of {function.__qualname__}")
        self.value(function.__kwdefaults__, f"the defaults of {function.__qualname__}")

    def _code(self, code: CodeType) -> None:
        for field in (
            "co_name",
            "co_qualname",
            "co_names",
            "co_varnames",
            "co_freevars",
            "co_cellvars",
            "co_flags",
        ):
            self._text(field, getattr(code, field))
        # Compiled error messages contain file and line. The directory of notebook cells differs
        # from session to session.
        where = Path(code.co_filename)
        self._text(
            "place", f"{where if os.path.exists(where) else where.name}:{code.co_firstlineno}"
        )
        self._text("arguments", (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount))
        self._add("co_code", code.co_code)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._code(constant)
            else:
                self.value(constant, "a constant")

    def _name(
        self, chain: tuple[str, ...], closure: Mapping[str, Any], namespace: Mapping[str, Any]
    ) -> None:
        """Adds the value of a name, or of an attribute chain such as `module.table.shape`."""
        self._text("name", ".".join(chain))
        head, *attributes = chain
        scopes: tuple[Mapping[str, Any], ...] = (closure, namespace, vars(builtins))
        scope = next((scope for scope in scopes if head in scope), None)
        if scope is None:
            self._add("missing")  # the compiler reports it
            return
        value, text = scope[head], head
        if mlir.PACKAGE in sys.modules:
            value = mlir.counterpart(value)
        for attribute in attributes:
            if not isinstance(value, (ModuleType, type)):
                break  # hash the whole value, whichever attribute is read
            if _is_named(value):
                self._text("named", f"{_full_name(value)} {attributes}")
                return
            try:
                value = getattr(value, attribute)
            except AttributeError:
                self._add("missing")
                return
            text = f"{text}.{attribute}"
        self.value(value, text)

    # ---- values

    def value(self, value: Any, name: str) -> None:
        """Adds any value that a kernel may name; `name` is for error messages."""
        kind = type(value)
        if value is None or value is Ellipsis or kind in {bool, int, str, range, slice}:
            self._text(kind.__name__, repr(value))
        elif kind in {float, complex}:  # by bits: 0.0 == -0.0, and NaN != NaN
            self._add(kind.__name__, struct.pack("<dd", complex(value).real, complex(value).imag))
        elif kind is bytes:
            self._add("bytes", value)
        elif isinstance(value, enum.Enum):
            self._text("enum", f"{kind.__module__} {kind.__qualname__} {value.name}")
            self.value(value.value, name)
        elif isinstance(value, (tuple, list)):
            self._text(
                "sequence",
                f"{kind.__module__} {kind.__qualname__} {getattr(value, '_fields', '')} "
                f"{len(value)}",
            )
            for item in value:
                self.value(item, name)
        elif isinstance(value, (set, frozenset)):
            self.value(sorted(Fingerprint(item).hexdigest() for item in value), name)
        elif kind is dict:
            self.value([*value.items()], name)
        elif isinstance(value, np.dtype):
            self._text("dtype", f"{value!r} {value.itemsize} {value.isalignedstruct}")
        elif isinstance(value, (np.ndarray, np.generic)):
            self._array(value, name)
        elif isinstance(value, types.Type):
            self._text("type", type_text(value))
        elif dataclasses.is_dataclass(value) and not isinstance(value, type) and _is_named(kind):
            self.value(
                [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)],
                name,
            )
        else:
            self._object(value, name)

    def _array(self, value: Any, name: str) -> None:
        if type(value) is not np.ndarray and not isinstance(value, np.generic):
            raise NotComparableError(
                f"{name} is {with_article(type(value).__qualname__)}, which cannot be compared "
                "across processes"
            )
        if value.dtype.hasobject or value.nbytes > LARGEST_ARRAY:
            raise NotComparableError(
                f"{name} is an array of Python objects, or larger than {LARGEST_ARRAY >> 20} MiB"
            )
        self.value(value.dtype, name)
        self._text("array", (type(value).__name__, value.shape, value.strides, value.flags.num))
        self._add("elements", value.tobytes())

    def _object(self, value: Any, name: str) -> None:
        """Adds a function, class, module or member of `numba.cuda`."""
        member = _cuda_members().get(id(value))
        if member is not None:
            self._text("numba.cuda", member)
        elif isinstance(value, FunctionType) and overloaded_for_cuda(value) is not None:
            raise NotComparableError(
                f"{name} has overloads for GPUs, which cannot be compared across processes"
            )
        elif _is_named(value):
            self._text("named", _full_name(value))
        elif is_jitted(value):
            if _compiled_unseen(value):
                raise NotComparableError(
                    f"{name} was compiled before it was inspected, perhaps with other values"
                )
            self._text("compiled", type(value).__name__)
            self.value(getattr(value, "targetoptions", None), name)
            self.value([(one.args, one.result) for one in declared_signatures(value)], name)
            self.function(value.py_func)
        elif isinstance(value, type) and issubclass(value, enum.Enum):
            self.value([*value], name)
            self._text("enum class", _full_name(value))
        elif isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
            self._text("named tuple", f"{_full_name(value)} {value._fields}")
        else:
            raise NotComparableError(
                f"{name} is {with_article(type(value).__qualname__)}, which cannot be compared "
                "across processes"
            )


def type_text(kind: types.Type) -> str:
    """Returns the full text of a Numba type; `str` omits, for example, the fields of a named tuple.

    Raises:
        NotComparableError: the type is not one of Numba's own value types.
    """
    if isinstance(kind, types.BaseNamedTuple):
        made = kind.instance_class
        return f"{_full_name(made)}{made._fields}({', '.join(map(type_text, kind.types))})"
    if isinstance(kind, types.BaseTuple):
        return f"tuple({', '.join(map(type_text, kind.types))})"
    if isinstance(kind, types.Record):
        fields = ", ".join(
            f"{name}: {type_text(field.type)} at {field.offset}"
            for name, field in kind.fields.items()
        )
        return f"{'' if kind.mutable else 'readonly '}record({fields}; {kind.size}, {kind.aligned})"
    if isinstance(kind, types.NestedArray):
        return f"{'' if kind.mutable else 'readonly '}nested({type_text(kind.dtype)}, {kind.shape})"
    if type(kind) is types.Array:
        return (
            f"array({type_text(kind.dtype)}, {kind.ndim}, {kind.layout}, "
            f"{kind.mutable}, {kind.aligned})"
        )
    if isinstance(kind, types.EnumMember):
        return (
            f"enum({_full_name(kind.instance_class)}, "
            f"{Fingerprint([*kind.instance_class]).hexdigest()})"
        )
    if isinstance(kind, _SCALAR_TYPES) and type(kind).__module__.startswith("numba."):
        return f"{type(kind).__name__}({kind})"
    raise NotComparableError(f"an argument is of the type {kind}, which is not one of Numba's own")


def _source(function: FunctionType) -> str:
    try:
        return inspect.getsource(function.__code__)
    except (OSError, TypeError, IndexError, TokenError):
        return ""  # njit functions need no source, and kernels without source are rejected


def _is_named(value: Any) -> bool:
    """Returns whether the value is hashed by name: it belongs to one of `NAMED_PACKAGES`."""
    if isinstance(value, ModuleType):
        module: Any = value.__name__
    elif isinstance(value, (type, FunctionType, np.ufunc)) or inspect.isbuiltin(value):
        module = getattr(value, "__module__", None)
    elif is_jitted(value):
        module = value.py_func.__module__
    else:
        return False
    return isinstance(module, str) and any(
        module == name or module.startswith(f"{name}.") for name in NAMED_PACKAGES
    )


def _compiled_unseen(value: Any) -> bool:
    """Returns whether a device or njit function was compiled for a GPU before it was
    fingerprinted, e.g. by rank code.
    """
    # numba-cuda stores its own dispatcher for an njit function in this attribute.
    on_gpu = getattr(value, "_CUDATypingContext__dispatcher", None)
    if type(value).__name__ in {"CUDADispatcher", "MLIRDispatcher"}:
        on_gpu = value
    return bool(getattr(on_gpu, "overloads", None)) and value.py_func not in _first_digests


def _full_name(value: Any) -> str:
    if isinstance(value, ModuleType):
        return value.__name__
    name = getattr(value, "__qualname__", None) or value.__name__
    return f"{value.__module__}.{name}"


def _cuda_members() -> dict[int, str]:
    """Returns the names of Numba's objects in `numba.cuda`, keyed by id, since users may import
    them under any name.
    """
    module = sys.modules.get("numba.cuda")
    # a function cannot refer to a module that is not imported
    return {} if module is None else _members_of(module)


@cache
def _members_of(cuda: ModuleType) -> dict[int, str]:
    return {
        id(value): name
        # instances of Numba's classes; no modules, which may not be Numba's
        for name, value in vars(cuda).items()
        if type(value).__module__.startswith(("numba.", "numba_cuda."))
        and not isinstance(value, (int, float, str, tuple))
    }


# ---- shared by all kernels of a process


def environment() -> tuple[object, ...]:
    """Returns the dependencies common to all kernels: those of compiled code, and what
    `numba.cuda` is.
    """
    return (*host(), os.environ.get("NUMBA_ENABLE_CUDASIM", "0"))


def host() -> tuple[object, ...]:
    """Returns versions, processor and Numba settings: the dependencies common to all code
    compiled for this machine.
    """
    settings = [(name, str(getattr(config, name, None))) for name in _NUMBA_SETTINGS]
    return (*versions(), *_processor(), *settings)


@cache
def _processor() -> tuple[object, ...]:
    """Returns what code is generated for, which stays the same in a process; to ask for it takes
    LLVM's lock.
    """
    return tuple(cpu_target.target_context.codegen().magic_tuple())


@cache
def versions() -> tuple[object, ...]:
    """Returns the versions of Python and the packages, and the state of this compiler's source
    files.
    """
    cuda = sys.modules.get("numba_cuda")
    packages = (
        numba.__version__,
        llvmlite.__version__,
        np.__version__,
        getattr(cuda, "__version__", None),
    )
    return (
        sys.version,
        sys.implementation.cache_tag,
        platform.machine(),
        *packages,
        *_COMPILER_FILES,
    )
