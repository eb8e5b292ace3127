"""Compilers of kernels for GPUs, imported on request: importing one may load GPU libraries."""

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, Final, final

from synknumba._device.compilers.base import KERNEL_DECORATORS as KERNEL_DECORATORS
from synknumba._device.compilers.base import CompiledKernel as CompiledKernel
from synknumba._device.compilers.base import Compiler as Compiler
from synknumba._device.compilers.base import plain_kernel as plain_kernel
from synknumba._device.compilers.base import refuse_kernel as refuse_kernel
from synknumba._errors import DeviceError
from synknumba._types import Array

_NUMBA: Final = "numba.cuda"  # of plain functions, and of what synknumba itself has compiled
_MLIR: Final = "numba-cuda-mlir"


def find_compiler(name: str = _NUMBA) -> type[Compiler]:
    """Returns a compiler of this process; called in a rank or a probing child, not in the coordinator."""
    if name == _MLIR:
        from synknumba._device.compilers.numba_cuda_mlir import NumbaCudaMlir

        return NumbaCudaMlir
    from synknumba._device.compilers.numba_cuda import NumbaCuda

    return NumbaCuda


def problem() -> str | None:
    """Why no compiler can be used here, in one line; None if one can. Called where `find_compiler` may be."""
    why = _problem_of(_NUMBA)
    if why is None or (importlib.util.find_spec("numba_cuda_mlir") is not None and _problem_of(_MLIR) is None):
        return None
    return why


def _problem_of(name: str) -> str | None:
    try:
        return find_compiler(name).problem()
    except Exception as error:  # noqa: BLE001  # compilers without their libraries raise errors of other packages
        reason = str(error).strip().splitlines() or [type(error).__name__]
        return f"{name} does not import ({reason[0]}): pip install 'synknumba[cuda13]' (or [cuda12]; of numba-cuda-mlir [mlir])"


@final
class Compilers:
    """The compilers of a rank, for one GPU and one stream; each is made for the first kernel that needs it.

    Args:
        index: of the GPU.
        stream: handle of the CUDA stream to which launches go.
    """

    def __init__(self, index: int, stream: int) -> None:
        self._index, self._stream = index, stream
        self._made: dict[str, tuple[Compiler, Any]] = {}

    def kernel(self, function: Callable[..., Any], options: Mapping[str, Any]) -> CompiledKernel:
        """Returns the kernel of a plain function, by the compiler that the options name; compiles nothing yet."""
        left = dict(options)
        name = left.pop("compiler", _NUMBA)
        try:
            compiler, stream = self._compiler(name)
        except DeviceError as error:
            raise DeviceError(f"{function.__name__} is a kernel of {name}, which cannot be used here: {error}") from None
        return compiler.kernel(function, left, stream)

    def to_host(self, array: Any) -> Array:
        """Copies an array with `__cuda_array_interface__` to the host; waits for it."""
        made = next(iter(self._made), None)  # whichever is there already
        return self._compiler(made or (_NUMBA if _problem_of(_NUMBA) is None else _MLIR))[0].to_host(array)

    def _compiler(self, name: str) -> tuple[Compiler, Any]:
        made = self._made.get(name)
        if made is None:
            why = _problem_of(name)
            if why is not None:
                raise DeviceError(why)
            compiler = find_compiler(name)(self._index)
            made = self._made[name] = compiler, compiler.stream(self._stream)
        return made
