"""Kernels as Numba compiles and launches them."""

from collections.abc import Sequence
from enum import Enum
from functools import partial
from typing import Any, final

import numpy as np
from numba import cuda

from synknumba._device.base import DeviceKernel, Step, Three
from synknumba._device.cuda_llvm import may_print
from synknumba._device.cuda_memory import RecordArray
from synknumba._device.cuda_steps import OnStream


class CudaLaunch(OnStream):
    """Launches with what is in a list of arguments when it is run.

    Attributes:
        arguments: the list.
        changing: positions of scalars that may be replaced.
        kernel: what is launched, where it is known.
    """

    arguments: list[Any]
    changing: Sequence[int]
    kernel: "CudaKernel | None" = None


def make_launch(launcher: Any, arguments: list[Any], changing: Sequence[int]) -> CudaLaunch:
    """A step that calls the launcher with the arguments in the list."""
    step = CudaLaunch(_launch, launcher, arguments)
    step.arguments, step.changing = arguments, changing
    return step


def _launch(launcher: Any, arguments: list[Any]) -> None:
    launcher(*arguments)


@final
class CudaKernel(DeviceKernel):
    """A kernel of `cuda.jit`.

    Args:
        dispatcher: what `cuda.jit` made.
        stream: Numba's, for launches.
        debug: whether the kernel was compiled with debug=True.
    """

    def __init__(self, dispatcher: Any, stream: Any, *, debug: bool) -> None:
        self._dispatcher = dispatcher
        self._stream = stream
        self._debug = debug
        self._printing: dict[Any, bool] = {}  # by signature

    def bind(self, grid: Three, block: Three, smem_bytes: int, args: list[Any], changing: Sequence[int]) -> Step:
        if not self._debug:
            launcher = self._dispatcher[grid, block, self._stream, smem_bytes]
            recordable = all(map(_is_plain, args))
            if not recordable:
                return partial(_launch, launcher, args)
            step = make_launch(launcher, args, changing)
            step.kernel = self
            return step
        # Numba reads a debugged kernel's exception in the default stream, which does not wait for ours.
        debugged = self._dispatcher[grid, block, 0, smem_bytes]

        def launch() -> None:
            self._stream.synchronize()
            debugged(*args)

        return launch

    def convert(self, arg: Any) -> Any:
        return as_numba(arg)

    @property
    def prints(self) -> bool:
        """Whether it or a function that it calls may print: CUDA shows that when somebody waits for the stream, not before."""
        for signature, code in self._dispatcher.inspect_llvm().items():
            if signature not in self._printing:
                self._printing[signature] = may_print(code)
        return any(self._printing.values())


def _is_plain(arg: Any) -> bool:
    """Whether Numba passes the argument as it is; of an array on the host, or a record, it makes a copy for one launch."""
    if isinstance(arg, tuple):
        return all(map(_is_plain, arg))
    if isinstance(arg, np.void | np.ndarray):
        return False
    return hasattr(arg, "__cuda_array_interface__") or isinstance(arg, int | float | complex | np.generic | Enum)


def as_numba(arg: Any) -> Any:
    """A device array as Numba launches it fastest; 12 µs a launch instead of 49 µs with CuPy arrays."""
    if isinstance(arg, RecordArray):  # Numba reads the size of a record from the interface, but not its fields
        return cuda.as_cuda_array(arg, sync=False).view(arg.dtype)
    if hasattr(arg, "__cuda_array_interface__"):
        return cuda.as_cuda_array(arg, sync=False)  # our steps are on one stream already
    return arg
