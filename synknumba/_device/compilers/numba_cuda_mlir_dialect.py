"""Functions written for `numba.cuda`, among them all that synknumba generates, as numba-cuda-mlir
takes them.

    from numba import cuda, float64                       from numba_cuda_mlir import cuda, types
    cuda.jit(device=True)(f), numba.njit(f)    ──────>    cuda.jit(device=True)(f, in the dialect)
    numba.extending.overload(f)(…)                        overload(f)(…, in the dialect)

Both packages have the same members, but each knows its own modules, types, device functions and
overloads only. The code of a function stays; the values of the global and closure names that it
reads are replaced. The other direction, for kernels on cores, is `counterpart` of simt.
"""

import functools
import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from operator import attrgetter
from types import CellType, FunctionType, ModuleType
from typing import Any, Final

from numba.core import types
from numba.core.errors import NumbaError
from numba.np.numpy_support import as_dtype
from numba_cuda_mlir import cuda, extending
from numba_cuda_mlir import types as mlir_types
from numba_cuda_mlir.numba_cuda.core import errors
from numba_cuda_mlir.numba_cuda.np.numpy_support import from_dtype
from numba_cuda_mlir.numba_cuda.types import unliteral
from numba_cuda_mlir.numba_cuda.typing import signature

from synknumba._types import WeakTable
from synknumba.simt.internals import counterpart, declared_signatures, mlir, names_in, overloads_of

_CUDA: Final = "numba.cuda"
_TYPES: Final = {"numba.types", "numba.core.types", "numba.cuda.types"}
_LIBRARIES: Final = "numba.", f"{mlir.PACKAGE}."  # modules whose functions are not copied
# Decorated functions that kernels may call, by the types of what `cuda.jit` and `njit` return.
_DISPATCHERS: Final = {"CUDADispatcher", "CPUDispatcher"}

_overloaded: "WeakTable[FunctionType, None]" = WeakTable()


def in_dialect(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a plain function whose names have the values that numba-cuda-mlir knows.

    It has no annotations: the package would take those of parameters for the types of arguments.
    """
    return _Translation().copied(function)


class _Translation:
    """What one kernel reads. Each function is made once, since functions may call each other."""

    def __init__(self) -> None:
        self._copies: dict[int, FunctionType] = {}  # by the identity of the function
        self._compiled: dict[int, Any] = {}  # by that of the dispatcher
        self._modules: dict[ModuleType, ModuleType] = {}

    def copied(
        self, function: Any, then: Callable[[FunctionType], object] | None = None
    ) -> FunctionType:
        """Returns a copy of a plain function; `then` is called with it before its names have
        values.
        """
        copy = self._copies.get(id(function))
        if copy is not None:
            return copy
        names: dict[str, Any] = {"__name__": function.__module__}
        cells = tuple(CellType() for _ in function.__closure__ or ())
        copy = FunctionType(
            function.__code__, names, function.__name__, function.__defaults__, cells or None
        )
        copy.__kwdefaults__, copy.__qualname__, copy.__module__ = (
            function.__kwdefaults__,
            function.__qualname__,
            function.__module__,
        )
        self._copies[id(function)] = copy
        if then is not None:
            then(copy)
        read = frozenset(names_in(function.__code__))
        for name in read & {*function.__globals__}:
            names[name] = self.value(function.__globals__[name], read)
        for cell, old in zip(cells, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # not assigned
                cell.cell_contents = self.value(old.cell_contents, read)
        return copy

    def value(self, value: Any, read: frozenset[str]) -> Any:
        """Returns what the package has in the place of a value; the value itself if there is
        nothing else.

        `read` are the names of globals and attributes that the function reads.
        """
        if isinstance(value, ModuleType):
            return self._module(value, read)
        if isinstance(value, types.Type):
            return _type(value)
        if type(value) is tuple:
            return tuple(self.value(item, read) for item in value)
        if isinstance(value, FunctionType):
            _overload(value)
        if hasattr(value, "formula"):  # an intrinsic of synknumba, which is LLVM code for Numba
            return cuda.jit(device=True)(value.formula)
        function = getattr(value, "py_func", None)
        if isinstance(function, FunctionType) and not function.__module__.startswith(_LIBRARIES):
            return self._function(value, function)
        return _member_like(value)

    def _module(self, module: ModuleType, read: frozenset[str]) -> ModuleType:
        """Returns the package's module, or a copy of another with the attributes that are read,
        if some are replaced.
        """
        name = module.__name__
        if name in _TYPES:
            return mlir_types
        if name == _CUDA:
            return cuda  # type: ignore[no-any-return]
        if mlir.is_of_package(name):
            return module
        if name.startswith(f"{_CUDA}."):
            return _member(name.removeprefix(f"{_CUDA}."), module)  # type: ignore[no-any-return]
        if module in self._modules:
            return self._modules[module]
        namespace = self._modules[module] = ModuleType(name)
        originals = {name: value for name, value in vars(module).items() if name in read}
        values = {name: self.value(value, read) for name, value in originals.items()}
        vars(namespace).update(values)
        if all(values[name] is originals[name] for name in originals):
            self._modules[module] = module
        return self._modules[module]

    def _function(self, value: Any, function: FunctionType) -> Any:
        """Returns the device function of a decorated one."""
        if type(value).__name__ not in _DISPATCHERS:
            self.copied(function)  # the package's own stays, but what it calls may be overloaded
            return value
        if id(value) not in self._compiled:
            # before its names have values, since it may call itself
            def jit(
                copied: FunctionType,
            ) -> None:
                self._compiled[id(value)] = cuda.jit(device=True)(copied)

            copied = self.copied(function, jit)
            declared = [
                (declaration.result, *declaration.args)
                for declaration in declared_signatures(value)
            ]
            if declared:
                signatures = [
                    signature(*(_type(kind or types.none) for kind in kinds)) for kinds in declared
                ]
                self._compiled[id(value)] = cuda.jit(signatures, device=True)(copied)
        return self._compiled[id(value)]


def _type(kind: types.Type) -> Any:
    dialect_type = getattr(mlir_types, str(kind), None)
    if isinstance(dialect_type, mlir_types.Type):
        return dialect_type
    if isinstance(kind, types.Array):
        return mlir_types.Array(
            _type(kind.dtype),
            kind.ndim,
            kind.layout,
            readonly=not kind.mutable,
            aligned=kind.aligned,
        )
    if isinstance(kind, types.BaseTuple):
        return mlir_types.Tuple([_type(item) for item in kind])
    return from_dtype(as_dtype(kind))


def _member_like(value: Any) -> Any:
    """Returns the member of the package's `cuda` that has the name of a value in `numba.cuda`;
    otherwise the value.
    """
    module = sys.modules.get(_CUDA)
    if module is None:
        return value
    name = _members(module).get(id(value))
    home = str(getattr(value, "__module__", ""))
    if name is None and home.startswith(f"{_CUDA}."):  # of a module such as `cuda.random`
        short_name = getattr(value, "__name__", "")
        if getattr(sys.modules.get(home), short_name, None) is value:
            name = f"{home.removeprefix(f'{_CUDA}.')}.{short_name}"
    return value if name is None else _member(name, value)


@cache
def _members(module: ModuleType) -> dict[int, str]:
    """Returns the names of the members of `numba.cuda`, by id, since programs may import them
    under other names.
    """
    return {
        id(value): name
        for name, value in vars(module).items()
        if str(getattr(value, "__module__", type(value).__module__)).startswith("numba")
    }


def _member(name: str, default: Any) -> Any:
    with suppress(ImportError):
        importlib.import_module(f"{cuda.__name__}.{name.partition('.')[0]}")
    try:
        return attrgetter(name)(cuda)
    except AttributeError:
        return default


def _overload(function: FunctionType) -> None:
    """Registers the overloads of a function, as of `synknumba.random`, with numba-cuda-mlir."""
    if function in _overloaded:
        return
    _overloaded[function] = None
    for _, _, (typer, options, strict, inline, prefers_literals), _ in overloads_of(function):
        register = extending.overload(
            function,
            options,
            strict,
            inline,
            prefers_literals,
            typing_registry=extending.typing_registry,
        )
        register(_typer(typer))


def _typer(typer: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a typer for the package's types of one that takes Numba's and returns a Python
    function.
    """

    @functools.wraps(typer)
    def translated(*args: Any, **named: Any) -> Any:
        try:
            result = typer(
                *map(_as_numba, args),
                **{name: _as_numba(argument) for name, argument in named.items()},
            )
        except NumbaError as error:
            raise errors.NumbaTypeError(str(error)) from None
        return result if result is None else in_dialect(result)

    return translated


def _as_numba(kind: Any) -> Any:
    """Returns Numba's type of one of the package's; of a constant integer, with its value."""
    if not isinstance(kind, mlir_types.Type):
        return kind
    if isinstance(kind, mlir_types.IntegerLiteral):
        return types.literal(kind.literal_value)
    return counterpart(unliteral(kind))
