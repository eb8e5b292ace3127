"""numba-cuda, and the `numba.cuda` that comes with Numba."""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from numba import cuda

from synknumba._device.base import Three
from synknumba._device.compilers.base import CompiledKernel, Compiler, RecordArray, is_plain
from synknumba._device.compilers.numba_cuda_cache import attach
from synknumba._types import Array

_DECLARED = re.compile(r'^declare [^@]*@"?([^"(]+)"?\(', re.MULTILINE)
_DEFINED = re.compile(r'^define [^@]*@"?([^"(]+)"?\(', re.MULTILINE)

# LLVM's intrinsics, CUDA's mathematics and cooperative groups, Numba's own atomics: none of these
# prints.
_SILENT = ("llvm.", "__nv_", "cudaCG", "___numba_atomic_")


@final
class NumbaKernel(CompiledKernel):
    """A dispatcher of `cuda.jit`, launched on Numba's stream; `debug` if it is compiled with
    debug=True.
    """

    def __init__(self, dispatcher: Any, stream: Any, *, debug: bool) -> None:
        self._dispatcher, self._stream, self._debug = dispatcher, stream, debug
        self._printing: dict[Any, bool] = {}  # by signature

    def launcher(self, grid: Three, block: Three, smem_bytes: int) -> Callable[..., object]:
        if not self._debug:
            return self._dispatcher[grid, block, self._stream, smem_bytes]
        # Numba reads a debugged kernel's exception in the default stream, which does not wait for
        # ours.
        debugged = self._dispatcher[grid, block, 0, smem_bytes]

        def launch(*args: Any) -> None:
            self._stream.synchronize()
            debugged(*args)

        return launch

    def is_capturable(self, args: Sequence[Any]) -> bool:
        return not self._debug and all(map(is_plain, args))

    def convert(self, arg: Any) -> Any:
        return _as_numba(arg)

    def prints(self) -> bool:
        for signature, code in self._dispatcher.inspect_llvm().items():
            if signature not in self._printing:
                self._printing[signature] = may_print(code)
        return any(self._printing.values())


@final
class NumbaCuda(Compiler):
    def __init__(self, index: int) -> None:
        # The size of a grid is the user's choice; a small one is not worth a warning on every rank.
        warnings.filterwarnings("ignore", message=".*Grid size.*", category=Warning)
        cuda.select_device(index)

    @staticmethod
    def problem() -> str | None:
        if cuda.is_available():
            return None
        return (
            "numba.cuda does not find the CUDA libraries: pip install "
            "'synknumba[cuda13]' (or [cuda12])"
        )

    def stream(self, address: int) -> Any:
        return cuda.external_stream(address)

    def kernel(
        self, function: Callable[..., Any], options: Mapping[str, Any], stream: Any
    ) -> CompiledKernel:
        dispatcher = cuda.jit(**options)(function)
        attach(dispatcher)
        return NumbaKernel(dispatcher, stream, debug=bool(options.get("debug")))

    def to_host(self, array: Any) -> Array:
        return _as_numba(array).copy_to_host()


def _as_numba(arg: Any) -> Any:
    """A device array in the form that Numba launches fastest: 12 µs a launch, against 49 µs with
    CuPy arrays.
    """
    # Numba reads the size of a record from the interface, but not its fields
    if isinstance(arg, RecordArray):
        return cuda.as_cuda_array(arg, sync=False).view(arg.dtype)
    if hasattr(arg, "__cuda_array_interface__"):
        return cuda.as_cuda_array(arg, sync=False)  # all steps are on one stream already
    return arg


def may_print(code: str) -> bool:
    """Whether a kernel or a function that it calls, in LLVM text, prints, or calls what is not
    defined there (linked files).
    """
    foreign = set(_DECLARED.findall(code)).difference(_DEFINED.findall(code))
    return not all(name.startswith(_SILENT) for name in foreign)
