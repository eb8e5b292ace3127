"""Compilers of kernels for GPUs, imported on request: importing one may load GPU libraries.

kernel of numba's cuda.jit ──────────────> numba.cuda
plain function, generated kernel ──fork(compiler=)──> numba.cuda or numba-cuda-mlir
what refers to numba_cuda_mlir, or is decorated by its cuda.jit ──────> numba-cuda-mlir
"""

import importlib.util
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType, ModuleType
from typing import Any, Final, final

from synknumba._device.compilers.base import KERNEL_DECORATORS as KERNEL_DECORATORS
from synknumba._device.compilers.base import CompiledKernel as CompiledKernel
from synknumba._device.compilers.base import Compiler as Compiler
from synknumba._device.compilers.base import plain_kernel as plain_kernel
from synknumba._device.compilers.base import refuse_kernel as refuse_kernel
from synknumba._errors import DeviceError
from synknumba._types import Array, CompilerName
from synknumba.simt.internals import mlir, names_in, values_read

_NUMBA: Final = "numba.cuda"
_MLIR: Final = "numba-cuda-mlir"


def find_compiler(name: CompilerName) -> type[Compiler]:
    """Returns a compiler of this process, which is a rank or a probing child."""
    if name == _MLIR:
        from synknumba._device.compilers.numba_cuda_mlir import NumbaCudaMlir

        return NumbaCudaMlir
    from synknumba._device.compilers.numba_cuda import NumbaCuda

    return NumbaCuda


def problem(name: CompilerName | None = None) -> str | None:
    """Why a compiler, by default any, cannot be used here, in one line; None if it can. Called
    where `find_compiler` may be.
    """
    if name is not None:
        return _problem_of(name)
    why = _problem_of(_NUMBA)
    if why is not None and _problem_of(_MLIR) is None:
        return None
    return why


def _problem_of(name: CompilerName) -> str | None:
    if name == _MLIR and importlib.util.find_spec(mlir.PACKAGE) is None:
        return "numba-cuda-mlir is not installed: pip install 'synknumba[mlir]'"
    try:
        return find_compiler(name).problem()
    except Exception as error:  # noqa: BLE001  # compilers without their libraries raise errors of other packages
        reason = str(error).strip().splitlines() or [type(error).__name__]
        return (
            f"{name} does not import ({reason[0]}): pip install 'synknumba[cuda13]' (or "
            f"[cuda12]; of numba-cuda-mlir [mlir])"
        )


def refers_to_mlir(function: Callable[..., Any]) -> bool:
    """Whether a plain function, or one that it calls, reads something of numba-cuda-mlir, which
    no other compiler knows.
    """
    return mlir.is_loaded() and _refers(function, frozenset(), set())


def _refers(value: Any, read: frozenset[str], visited: set[int]) -> bool:
    """Whether a value is of numba-cuda-mlir, or leads to it; `read` are the names in the
    function that has the value.
    """
    if isinstance(value, ModuleType):
        if mlir.is_of_package(value.__name__):
            return True
        inner: Iterable[Any] = [child for name, child in vars(value).items() if name in read]
    else:
        if mlir.is_of_package(type(value).__module__) or mlir.is_of_package(
            getattr(value, "__module__", None)
        ):
            return True
        function = getattr(value, "py_func", value)
        if not isinstance(function, FunctionType):
            return False
        inner, read = values_read(function), frozenset(names_in(function.__code__))
        value = function
    if id(value) in visited:
        return False
    visited.add(id(value))
    return any(_refers(child, read, visited) for child in inner)


@final
class Compilers:
    """The compilers of a rank, for one GPU and one stream; each is made for the first kernel that
    needs it.

    Args:
        index: of the GPU.
        stream: handle of the CUDA stream to which launches go.
        default: the compiler of plain functions; None for numba.cuda if it can be used, else
            numba-cuda-mlir.
    """

    def __init__(self, index: int, stream: int, default: CompilerName | None = None) -> None:
        self._index, self._stream, self._default = index, stream, default
        self._made: dict[str, tuple[Compiler, Any]] = {}
        self._found: CompilerName | None = None

    def kernel(self, function: Callable[..., Any], options: Mapping[str, Any]) -> CompiledKernel:
        """Returns the kernel of a plain function, by the compiler that the options name;
        compiles nothing yet.
        """
        remaining = dict(options)
        signatures, name = (
            remaining.pop("signatures", None),
            self._name(remaining.pop("compiler", None), function),
        )
        try:
            compiler, stream = self._compiler(name)
        except DeviceError as error:
            raise DeviceError(
                f"{function.__name__} is a kernel of {name}, which cannot be used here: {error}"
            ) from None
        kernel = compiler.kernel(function, remaining, stream)
        if signatures is None:
            return kernel
        from synknumba._device.compilers.declared import DeclaredKernel

        return DeclaredKernel(kernel, function, signatures)

    def to_host(self, array: Any) -> Array:
        """Copies an array with `__cuda_array_interface__` to the host; waits for it."""
        compiler = next(iter(self._made.values()), None)  # whichever is there already
        return (compiler or self._compiler(self._usual()))[0].to_host(array)

    def _name(self, decorated: CompilerName | None, function: Callable[..., Any]) -> CompilerName:
        """Returns what compiles a function, which the `cuda.jit` of this compiler has decorated,
        or none.
        """
        if decorated == _MLIR or (decorated is None and refers_to_mlir(function)):
            return _MLIR
        if decorated is None or self._default == _NUMBA:
            return self._usual()
        return self._usable()

    def _usual(self) -> CompilerName:
        return self._default or self._usable()

    def _usable(self) -> CompilerName:
        """Returns numba.cuda, which a Numba without numba-cuda has too, or what can be used in
        its place.
        """
        if self._found is None:
            self._found = _NUMBA
            if _problem_of(_NUMBA) is not None and _problem_of(_MLIR) is None:
                self._found = _MLIR
        return self._found

    def _compiler(self, name: CompilerName) -> tuple[Compiler, Any]:
        compiler_and_stream = self._made.get(name)
        if compiler_and_stream is None:
            why = _problem_of(name)
            if why is not None:
                raise DeviceError(why)
            compiler = find_compiler(name)(self._index)
            compiler_and_stream = self._made[name] = compiler, compiler.stream(self._stream)
        return compiler_and_stream
