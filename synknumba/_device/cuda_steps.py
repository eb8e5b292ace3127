"""Steps of the CUDA device: copies, fills and launches that put work on a stream and return at
once.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar, final

from cupy.cuda import runtime

from synknumba._device.base import DeviceKernel, Step, Three
from synknumba._device.compilers.base import CompiledKernel

NOT_READY = 600  # cudaErrorNotReady: work is pending, without an error


class OnStream(partial[Any]):
    """A step that only puts work on a stream: it reads no host memory and waits for nothing.

    Only such steps can be recorded: a graph would not repeat anything else.
    """

    keeps: tuple[Any, ...] = ()  # objects whose addresses the step uses


_Kind = TypeVar("_Kind", bound=OnStream)


class Meeting(OnStream):
    """A step whose work on the stream waits for other ranks."""


class StoreToHost(OnStream):
    """A step that writes to host memory."""


class Join(OnStream):
    """A step after which the stream's work waits for work beside it, for which results need not
    wait.
    """


class CopyOut(StoreToHost):
    """A copy to page-locked host memory; its arguments are target, source, bytes, direction,
    stream.
    """


class Fill(OnStream):
    """A step that sets all elements of an array.

    If `private`, only the steps recorded with it write the array, so it may be filled at the end of
    a run for the next one.
    """

    private: bool = False


class CudaLaunch(OnStream):
    """A step that launches a kernel with the arguments in a list at the time it is run."""

    arguments: list[Any]
    changing: Sequence[int]  # positions of scalars that may be replaced
    kernel: CompiledKernel | None = (
        None  # None for the device's own, and launches captured only to read their parameters
    )
    stream: Any = None  # on which it launches; None for that of most steps

    @property
    def layout(self) -> Any:
        """A key that launches share whose parameters have one layout."""
        return id(self.kernel), *(_kind(argument) for argument in self.arguments)


def make_launch(
    launcher: Callable[..., object], arguments: list[Any], changing: Sequence[int]
) -> CudaLaunch:
    """Returns a step that calls the launcher with the arguments in the list."""
    step = CudaLaunch(_launch, launcher, arguments)
    step.arguments, step.changing = arguments, changing
    return step


def _kind(argument: Any) -> Any:
    return type(argument), *(getattr(argument, name, None) for name in ("dtype", "ndim"))


def _launch(launcher: Callable[..., object], arguments: list[Any]) -> None:
    launcher(*arguments)


@final
class CudaKernel(DeviceKernel):
    def __init__(self, kernel: CompiledKernel) -> None:
        self._kernel = kernel

    def bind(
        self, grid: Three, block: Three, smem_bytes: int, args: list[Any], changing: Sequence[int]
    ) -> Step:
        launcher = self._kernel.launcher(grid, block, smem_bytes)
        if not self._kernel.is_capturable(args):
            return partial(_launch, launcher, args)
        step = make_launch(launcher, args, changing)
        step.kernel = self._kernel
        return step

    def convert(self, arg: Any) -> Any:
        return self._kernel.convert(arg)


def keeping(step: _Kind, *arrays: Any) -> _Kind:
    """Keeps arrays alive as long as a step. Returns the step."""
    step.keeps = arrays
    return step


def address_of(array: Any) -> int:
    """Returns the address of a device array."""
    return array.data.ptr


def copy_in(array: Any, host: int, stream: Any) -> OnStream:
    """Returns a step that copies from a host address to a device array."""
    kind = runtime.memcpyHostToDevice
    return keeping(
        OnStream(runtime.memcpyAsync, address_of(array), host, array.nbytes, kind, stream.ptr),
        array,
    )


def copy_within(target: Any, source: Any, stream: Any) -> OnStream:
    """Returns a step that copies a device array to another."""
    places, kind = (address_of(target), address_of(source)), runtime.memcpyDeviceToDevice
    return keeping(
        OnStream(runtime.memcpyAsync, *places, source.nbytes, kind, stream.ptr), target, source
    )


def copy_out(host: int, array: Any, stream: Any, *, reached: bool) -> StoreToHost:
    """Returns a step that copies a device array to a host address; `reached` if the memory there
    is page-locked.
    """
    make, kind = CopyOut if reached else StoreToHost, runtime.memcpyDeviceToHost
    return keeping(
        make(runtime.memcpyAsync, host, address_of(array), array.nbytes, kind, stream.ptr), array
    )


def under(stream: Any, function: Any, *args: Any, **kwargs: Any) -> OnStream:
    """Returns a step that calls a CuPy function with the stream as the current one."""
    return OnStream(_under, stream, function, *args, **kwargs)


def _under(stream: Any, function: Any, *args: Any, **kwargs: Any) -> None:
    with stream:
        function(*args, **kwargs)


def all_on_stream(steps: Iterable[object]) -> bool:
    """Whether all steps can be recorded."""
    return all(isinstance(step, OnStream) for step in steps)
