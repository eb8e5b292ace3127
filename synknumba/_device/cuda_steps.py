"""What the steps of the CUDA device are made of: calls that put work on a stream and return at once."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar, final

from cupy.cuda import runtime

from synknumba._device.base import DeviceKernel, Step, Three
from synknumba._device.compilers.base import CompiledKernel

HOST_TO_DEVICE = runtime.memcpyHostToDevice
DEVICE_TO_HOST = runtime.memcpyDeviceToHost
DEVICE_TO_DEVICE = runtime.memcpyDeviceToDevice


class OnStream(partial[Any]):
    """A step that puts work on a stream and does nothing else: no look at the host's memory, no wait.

    Only such steps can be recorded: of any other the graph would repeat nothing.
    """

    keeps: tuple[Any, ...] = ()  # whose addresses it has


_Kind = TypeVar("_Kind", bound=OnStream)


class StoreToHost(OnStream):
    """One that writes to the host's memory."""


class CopyOut(StoreToHost):
    """One that copies bytes to page-locked memory: its arguments are target, source, bytes, direction, stream."""


class Fill(OnStream):
    """One that sets all elements of an array.

    Attributes:
        private: nobody writes the array but the steps that it comes with, so these may leave it filled for their next run.
    """

    private: bool = False


class CudaLaunch(OnStream):
    """One that launches a kernel with what is in a list of arguments when it is run.

    Attributes:
        arguments: the list.
        changing: positions of scalars that may be replaced.
        kernel: the kernel, where it is known.
    """

    arguments: list[Any]
    changing: Sequence[int]
    kernel: CompiledKernel | None = None


def make_launch(launcher: Callable[..., object], arguments: list[Any], changing: Sequence[int]) -> CudaLaunch:
    """A step that calls the launcher with the arguments in the list."""
    step = CudaLaunch(_launch, launcher, arguments)
    step.arguments, step.changing = arguments, changing
    return step


def _launch(launcher: Callable[..., object], arguments: list[Any]) -> None:
    launcher(*arguments)


@final
class CudaKernel(DeviceKernel):
    def __init__(self, kernel: CompiledKernel) -> None:
        self._kernel = kernel

    def bind(self, grid: Three, block: Three, smem_bytes: int, args: list[Any], changing: Sequence[int]) -> Step:
        launcher = self._kernel.launcher(grid, block, smem_bytes)
        if not self._kernel.is_capturable(args):
            return partial(_launch, launcher, args)
        step = make_launch(launcher, args, changing)
        step.kernel = self._kernel
        return step

    def convert(self, arg: Any) -> Any:
        return self._kernel.convert(arg)


def keeping(step: _Kind, *arrays: Any) -> _Kind:
    """The step; the arrays live as long as it."""
    step.keeps = arrays
    return step


def address_of(array: Any) -> int:
    """Where a device array starts."""
    address: int = array.data.ptr
    return address


def copy_in(array: Any, host: int, stream: Any) -> OnStream:
    """Copies to an array from an address of the host's memory."""
    step = OnStream(runtime.memcpyAsync, address_of(array), host, array.nbytes, HOST_TO_DEVICE, stream.ptr)
    return keeping(step, array)


def copy_out(host: int, array: Any, stream: Any, *, reached: bool) -> StoreToHost:
    """Copies an array to an address of the host's memory; `reached` if the device can write there by itself."""
    kind = CopyOut if reached else StoreToHost
    return keeping(kind(runtime.memcpyAsync, host, address_of(array), array.nbytes, DEVICE_TO_HOST, stream.ptr), array)


def under(stream: Any, function: Any, *args: Any, **kwargs: Any) -> OnStream:
    """Calls a function of CuPy with the stream as the current one."""
    return OnStream(_under, stream, function, *args, **kwargs)


def _under(stream: Any, function: Any, *args: Any, **kwargs: Any) -> None:
    with stream:
        function(*args, **kwargs)


def all_on_stream(steps: Iterable[object]) -> bool:
    """Whether all of them can be recorded."""
    return all(isinstance(step, OnStream) for step in steps)
