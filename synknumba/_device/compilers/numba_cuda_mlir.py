"""numba-cuda-mlir: kernels that are decorated by the `cuda.jit` of
`from numba_cuda_mlir import cuda`.

    function ──argument types──> a dispatcher of its own ──grid, block, stream──> launcher

Its launcher finds a kernel by the kinds of the arguments (integer, float, complex; arrays by dtype
and rank), compiled for the types that came first: after an `np.float32`, the kernel for 32 bits
reads 0.0 from a Python float 1.5, and after a C-contiguous array, one with such strides as
constants gets any other (numba-cuda-mlir 0.6, `cext/launcher/kernel.cpp`). So each tuple of types
has a dispatcher here.

Functions are translated from Numba's dialect (`numba_cuda_mlir_dialect`). The types of annotated
parameters, which the package takes in place of those of the arguments without converting these, do
not count, as they do not for numba-cuda.
"""

import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from textwrap import shorten
from typing import Any, final

from numba.core.errors import NumbaError, UnsupportedError
from numba_cuda_mlir import __version__, cuda
from numba_cuda_mlir.errors import InternalCompilerError, UserFacingInternalCompilerError
from numba_cuda_mlir.numba_cuda.core import config
from numba_cuda_mlir.numba_cuda.typing.typeof import typeof

from synknumba._device.base import Three
from synknumba._device.compilers.base import CompiledKernel, Compiler, is_plain
from synknumba._device.compilers.numba_cuda_mlir_cache import attach
from synknumba._device.compilers.numba_cuda_mlir_code import complete
from synknumba._device.compilers.numba_cuda_mlir_dialect import in_dialect
from synknumba._types import Array

_DECLARED = re.compile(r"^\.extern \.func\s+(?:\([^)]*\)\s*)?(\w+)", re.MULTILINE)
_SILENT = ("cudaCG",)  # cooperative groups; mathematics and atomics are in the PTX itself


@final
class MlirKernel(CompiledKernel):
    """A function, compiled with these options for each tuple of argument types, launched on a
    stream of numba-cuda-mlir.
    """

    def __init__(
        self, function: Callable[..., Any], options: Mapping[str, Any], stream: Any
    ) -> None:
        self._function, self._options, self._stream = in_dialect(function), dict(options), stream
        self._dispatchers: dict[tuple[Any, ...], Any] = {}  # by the types of the arguments
        # by the identity of a compiled kernel, which its dispatcher keeps
        self._printing: dict[int, bool] = {}

    def launcher(self, grid: Three, block: Three, smem_bytes: int) -> Callable[..., object]:
        launchers: dict[tuple[Any, ...], Callable[..., object]] = {}

        def launch(*args: Any) -> None:
            kinds = tuple(map(typeof, args))
            launcher = launchers.get(kinds)
            if launcher is None:
                launcher = launchers[kinds] = self._dispatcher(kinds)[
                    grid, block, self._stream, smem_bytes
                ]
            try:
                launcher(*args)
            except (InternalCompilerError, UserFacingInternalCompilerError) as error:
                raise _refusal(error) from error

        return launch

    def is_capturable(self, args: Sequence[Any]) -> bool:
        return not self._options.get("debug") and all(map(is_plain, args))

    def convert(self, arg: Any) -> Any:
        return _as_device_array(arg)

    def prints(self) -> bool:
        compiled = [*chain.from_iterable(map(_compiled, self._dispatchers.values()))]
        for kernel in compiled:
            if id(kernel) not in self._printing:
                self._printing[id(kernel)] = may_print(kernel.metadata)
        return any(self._printing[id(kernel)] for kernel in compiled)

    def _dispatcher(self, kinds: tuple[Any, ...]) -> Any:
        dispatcher = self._dispatchers.get(kinds)
        if dispatcher is None:
            dispatcher = self._dispatchers[kinds] = cuda.jit(**self._options)(self._function)
            attach(dispatcher, kinds, self._options)
        return dispatcher


@final
class NumbaCudaMlir(Compiler):
    def __init__(self, index: int) -> None:
        # The size of a grid is the user's choice; a small one is not worth a warning on every rank.
        warnings.filterwarnings("ignore", message=".*Grid size.*", category=Warning)
        read_threads()
        complete()
        cuda.select_device(index)

    @staticmethod
    def problem() -> str | None:
        if cuda.is_available():
            return None
        return "numba-cuda-mlir does not find the CUDA libraries: pip install 'synknumba[mlir]'"

    def stream(self, address: int) -> Any:
        return cuda.external_stream(address)

    def kernel(
        self, function: Callable[..., Any], options: Mapping[str, Any], stream: Any
    ) -> CompiledKernel:
        remaining = dict(options)
        if "debug" in remaining:
            remaining["debug"] = bool(remaining["debug"])  # that of numba's `cuda.jit` may be 0
        return MlirKernel(function, remaining, stream)

    def to_host(self, array: Any) -> Array:
        return _as_device_array(array).copy_to_host()


def read_threads() -> None:
    """Takes the number of threads from the environment, where a rank has less than the script.

    Of another number than it knows the package imports a module that it does not have, at the next
    kernel that it compiles.
    """
    config.NUMBA_NUM_THREADS = int(os.environ.get("NUMBA_NUM_THREADS") or config.NUMBA_NUM_THREADS)


def _as_device_array(arg: Any) -> Any:
    """An array, or those in a tuple, in a form that the launcher takes without waiting for a
    stream, as it does for CuPy's.
    """
    if isinstance(arg, tuple):
        items = map(_as_device_array, arg)
        return type(arg)(*items) if hasattr(arg, "_fields") else tuple(items)
    if hasattr(arg, "__cuda_array_interface__"):  # of a record, the owner's dtype tells the fields
        return cuda.as_cuda_array(arg, sync=False).bind(0)
    return arg


def _refusal(error: BaseException) -> NumbaError:
    """Returns Numba's error, which has a place, for one of the package, which says that its
    compiler has a bug.
    """
    root, place = error, None
    while root.__context__ is not None:
        root = root.__context__
    trace = root.__traceback__
    while trace is not None:
        # of the statement that it has no code for
        place = getattr(trace.tb_frame.f_locals.get("inst"), "loc", place)
        trace = trace.tb_next
    reason = shorten(f"{type(root).__name__}: {root}", 200)
    return UnsupportedError(f"numba-cuda-mlir {__version__} cannot compile this: {reason}", place)


def _compiled(dispatcher: Any) -> list[Any]:
    return [*dispatcher.overloads.values(), *dispatcher.launch_config_overloads.values()]


def may_print(metadata: Mapping[str, Any]) -> bool:
    """Whether a compiled kernel or a function that it calls prints, or is linked with code that
    is not in its PTX.
    """
    code = metadata.get("ptx")
    if not code or metadata.get("linked_external_link_items"):
        return True
    return not all(name.startswith(_SILENT) for name in _DECLARED.findall(code))
