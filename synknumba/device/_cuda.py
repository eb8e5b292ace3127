"""The CUDA device: one GPU, or a share of one. CuPy owns the memory and the stream, Numba compiles and launches.

    host rows (page-locked segment) ──copy──> CuPy array ──as Numba array──> kernel ──> CuPy array ──copy──> host

All steps of a rank go to one stream in the order in which they are run, so a buffer may be filled again while the launch before
is still under way. Host memory is different: a staging buffer is written only when the stream has read it.
"""

import contextlib
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, final

import cupy
import numpy as np
from cupy.cuda import runtime
from numba import cuda

from synknumba._errors import DeviceError
from synknumba._partition import Range, Rows
from synknumba._shm import Segment
from synknumba._types import Array, Op, Shape
from synknumba.device._base import Buffer, Device, DeviceKernel, Step, Three, Workspace
from synknumba.device._probe import import_problem

_TO_DEVICE = runtime.memcpyHostToDevice
_TO_HOST = runtime.memcpyDeviceToHost
_UFUNCS: dict[Op, Any] = {"sum": cupy.add, "prod": cupy.multiply, "min": cupy.minimum, "max": cupy.maximum}


class RecordArray:
    """Device memory with a structured dtype, which CuPy does not have; Numba takes it by its interface."""

    def __init__(self, memory: Any, dtype: "np.dtype[Any]", shape: Shape) -> None:
        self.data = memory
        self.dtype = dtype
        self.shape = shape
        self.nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize

    def reshape(self, *shape: int) -> "RecordArray":
        """The same memory in another shape."""
        return RecordArray(self.data, self.dtype, shape)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """CUDA Array Interface, version 3."""
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "descr": self.dtype.descr,
            "data": (self.data.ptr, False),
            "version": 3,
            "strides": None,
        }


def _typed(memory: Any, dtype: Any, shape: Shape) -> Any:
    """An array at a pointer to device memory."""
    dtype = np.dtype(dtype)
    if dtype.names is not None or dtype.kind not in "biufc":
        return RecordArray(memory, dtype, shape)
    return cupy.ndarray(shape, dtype, memory)


def _address(array: Any) -> int:
    address: int = array.data.ptr
    return address


@final
class CudaWorkspace(Workspace):
    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._storage: dict[object, Any] = {}
        self._staging: dict[object, Array] = {}

    def rows(self, slot: object, host: Array, rows: Rows, *, writable: bool) -> Buffer:
        shape = (rows.count, *host.shape[1:])
        array = self.scratch(slot, host.dtype, shape)
        if isinstance(rows, Range) and rows.step == 1:
            return self._straight(array, host[rows.as_slice()], writable=writable)
        return self._staged(slot, array, host, rows, writable=writable)

    def held_rows(self, slot: object, array: Any, rows: Rows, *, writable: bool) -> Buffer:
        row_bytes = array.nbytes // max(array.shape[0], 1)
        if isinstance(rows, Range) and rows.step == 1:
            shape = (rows.count, *array.shape[1:])
            return Buffer(_typed(array.data + rows.start * row_bytes, array.dtype, shape))
        buffer = self.scratch(slot, array.dtype, (rows.count, *array.shape[1:]))
        # Rows as rows of bytes: records have no gather of their own.
        shape = (row_bytes,)
        source = cupy.ndarray((array.shape[0], *shape), np.uint8, array.data)
        target = cupy.ndarray((rows.count, *shape), np.uint8, buffer.data)
        load = partial(self._gather, source, rows, target)
        return Buffer(buffer, load, partial(self._put_back, source, rows, target) if writable else None)

    def _gather(self, source: Any, rows: Rows, target: Any) -> None:
        with self._stream:
            if isinstance(rows, Range):
                target[...] = source[rows.as_slice()]
            else:
                cupy.take(source, cupy.asarray(rows.indices), axis=0, out=target)

    def _put_back(self, source: Any, rows: Rows, target: Any) -> None:
        with self._stream:
            if isinstance(rows, Range):
                source[rows.as_slice()] = target
            else:
                source[cupy.asarray(rows.indices)] = target

    def whole(self, slot: object, host: Array) -> Buffer:
        return self._straight(self.scratch(slot, host.dtype, host.shape), host, writable=False)

    def output(self, slot: object, host: Array) -> Buffer:
        array = self.scratch(slot, host.dtype, host.shape)
        return Buffer(array, None, self._copy(host.ctypes.data, _address(array), array.nbytes, _TO_HOST))

    def scratch(self, slot: object, dtype: Any, shape: Shape) -> Any:
        dtype = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        memory = self._storage.get(slot)
        if memory is None or memory.mem.size < nbytes:
            memory = self._storage[slot] = cupy.cuda.alloc(max(nbytes, 1))
        return _typed(memory, dtype, shape)

    def storage(self, slot: object) -> object:
        return self._storage.get(slot)

    def close(self) -> None:
        self._storage.clear()
        self._staging.clear()

    def _copy(self, target: int, source: int, nbytes: int, direction: int) -> Step:
        return partial(runtime.memcpyAsync, target, source, nbytes, direction, self._stream.ptr)

    def _straight(self, array: Any, view: Array, *, writable: bool) -> Buffer:
        """Rows that lie together: one copy each way."""
        load = self._copy(_address(array), view.ctypes.data, array.nbytes, _TO_DEVICE)
        store = self._copy(view.ctypes.data, _address(array), array.nbytes, _TO_HOST)
        return Buffer(array, load, store if writable else None)

    def _staged(self, slot: object, array: Any, host: Array, rows: Rows, *, writable: bool) -> Buffer:
        """Rows that lie apart: gathered into a page-locked staging buffer, and copied from there."""
        staging = self._staging_buffer(slot, host.dtype, array.shape)
        stream = self._stream
        up = self._copy(_address(array), staging.ctypes.data, array.nbytes, _TO_DEVICE)
        down = self._copy(staging.ctypes.data, _address(array), array.nbytes, _TO_HOST)
        where: Any = rows.as_slice() if isinstance(rows, Range) else rows.indices

        def load() -> None:
            stream.synchronize()  # the copy before may still read the staging buffer
            staging[...] = host[where]
            up()

        def store() -> None:
            down()
            stream.synchronize()
            host[where] = staging

        return Buffer(array, load, store if writable else None)

    def _staging_buffer(self, slot: object, dtype: "np.dtype[Any]", shape: Shape) -> Array:
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        storage = self._staging.get(slot)
        if storage is None or storage.nbytes < nbytes:
            memory = cupy.cuda.alloc_pinned_memory(max(nbytes, 1))
            storage = self._staging[slot] = np.frombuffer(memory, np.uint8)
        return storage[:nbytes].view(dtype).reshape(shape)


@final
class CudaKernel(DeviceKernel):
    def __init__(self, dispatcher: Any, stream: Any, *, debug: bool) -> None:
        self._dispatcher = dispatcher
        self._stream = stream
        self._debug = debug

    def bind(self, grid: Three, block: Three, smem_bytes: int, args: tuple[Any, ...]) -> Callable[..., object]:
        if not self._debug:
            launcher: Callable[..., object] = self._dispatcher[grid, block, self._stream, smem_bytes]
            return launcher
        # Numba reads a debugged kernel's exception in the default stream, which does not wait for ours.
        debugged = self._dispatcher[grid, block, 0, smem_bytes]

        def launch(*args: Any) -> None:
            self._stream.synchronize()
            debugged(*args)

        return launch

    def convert(self, arg: Any) -> Any:
        return _as_numba(arg)


def _as_numba(arg: Any) -> Any:
    """A device array as Numba launches it fastest; 12 µs a launch instead of 49 µs with CuPy arrays."""
    if isinstance(arg, RecordArray):  # Numba reads the size of a record from the interface, but not its fields
        return cuda.as_cuda_array(arg, sync=False).view(arg.dtype)
    if hasattr(arg, "__cuda_array_interface__"):
        return cuda.as_cuda_array(arg, sync=False)  # our steps are on one stream already
    return arg


@final
class CudaDevice(Device):
    kind = "cuda"

    def __init__(self, index: int) -> None:
        problem = import_problem()
        if problem is not None:
            raise DeviceError(problem)
        _quieten_numba()
        self._cupy_device = cupy.cuda.Device(index)
        self._cupy_device.use()
        cuda.select_device(index)
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self._numba_stream = cuda.external_stream(self.stream.ptr)
        self._locked: dict[int, int] = {}  # segment id → address

    def workspace(self) -> Workspace:
        return CudaWorkspace(self.stream)

    def kernel(self, function: Callable[..., Any], options: Mapping[str, Any]) -> DeviceKernel:
        return CudaKernel(cuda.jit(**options)(function), self._numba_stream, debug=bool(options.get("debug")))

    def fill(self, array: Any, value: Any) -> Step:
        if not any(np.asarray(value).tobytes()) or isinstance(array, RecordArray):
            return partial(runtime.memsetAsync, _address(array), 0, array.nbytes, self.stream.ptr)

        def step() -> None:
            with self.stream:
                array.fill(value)

        return step

    def memory(self, nbytes: int) -> Any:
        return cupy.cuda.alloc(max(nbytes, 1))

    def view(self, memory: Any, offset: int, dtype: Any, shape: Shape) -> Any:
        return _typed(memory + offset, dtype, shape)

    def copy(self, target: Any, source: Any) -> Step:
        return self._move(_address(target), _address(source), source.nbytes, runtime.memcpyDeviceToDevice)

    def upload(self, target: Any, host: Array) -> Step:
        return self._move(_address(target), host.ctypes.data, host.nbytes, _TO_DEVICE)

    def download(self, host: Array, source: Any) -> Step:
        return self._move(host.ctypes.data, _address(source), host.nbytes, _TO_HOST)

    def _move(self, target: int, source: int, nbytes: int, direction: int) -> Step:
        return partial(runtime.memcpyAsync, target, source, nbytes, direction, self.stream.ptr)

    def accumulate(self, op: Op, target: Any, source: Any) -> Step:
        ufunc = _UFUNCS[op]

        def step() -> None:
            with self.stream:
                ufunc(target, source, out=target)

        return step

    def to_host(self, value: Any) -> Array:
        self.stream.synchronize()
        if isinstance(value, cupy.ndarray):
            host: Array = value.get()
            return host
        if hasattr(value, "__cuda_array_interface__"):
            copied: Array = _as_numba(value).copy_to_host()
            return copied
        return np.asarray(value)

    def scope(self) -> AbstractContextManager[object]:
        stream: AbstractContextManager[object] = self.stream
        return stream

    def synchronize(self) -> None:
        self.stream.synchronize()

    def attach(self, segment: Segment) -> None:
        memory = segment.array(np.uint8, (segment.size,))
        # Where memory may not be locked (a container's limit), copies still work from pageable memory, five times slower.
        with contextlib.suppress(runtime.CUDARuntimeError):
            runtime.hostRegister(memory.ctypes.data, segment.size, 0)
            self._locked[segment.id] = memory.ctypes.data

    def detach(self, segment: Segment) -> None:
        address = self._locked.pop(segment.id, None)
        if address is not None:
            self.stream.synchronize()
            runtime.hostUnregister(address)

    def close(self) -> None:
        with contextlib.suppress(runtime.CUDARuntimeError):
            self.stream.synchronize()
            for address in self._locked.values():
                runtime.hostUnregister(address)
        self._locked.clear()


def _quieten_numba() -> None:
    """Grids are the user's business, and small ones are not worth a warning on every rank."""
    warnings.filterwarnings("ignore", message=".*Grid size.*", category=Warning)
