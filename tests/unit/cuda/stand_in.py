"""As much of CuPy as the CUDA device uses, on a model of a GPU; and the device's modules, loaded
with it.

`cuda_*.py` import CuPy. They are loaded here with the stand-in in its place, and then forgotten, so
no other code in the process gets them, or finds that there is a CuPy.
"""

import ctypes
import importlib
import sys
from collections.abc import Callable
from functools import cache
from itertools import count
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np

import synknumba._device
from tests.unit.cuda.machine import (
    ILLEGAL_ADDRESS,
    INVALID_VALUE,
    MISALIGNED,
    CUDARuntimeError,
    FaultError,
    Machine,
)

TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3
MODULES = ("cuda_steps", "cuda_code", "cuda_memory", "cuda_nodes", "cuda_graph")


class _Now:
    """The machine of the test that runs."""

    machine: ClassVar[Machine] = Machine()
    streams: ClassVar[list["Stream"]] = []
    blocks: ClassVar[WeakValueDictionary[int, "Block"]] = WeakValueDictionary()


def start(seed: int = 0) -> Machine:
    """A new machine, on which everything that is called later works."""
    _Now.machine = Machine(seed)
    _Now.streams = [Stream()]
    return _Now.machine


# ---- memory --------------------------------------------------------------------------------------


def bytes_at(address: int, nbytes: int) -> np.ndarray:
    """Memory as an array."""
    return (
        np.frombuffer((ctypes.c_char * nbytes).from_address(address), np.uint8)
        if nbytes
        else np.empty(0, np.uint8)
    )


class Block:
    """Memory of the device, full of garbage, at a multiple of 512 as CuPy's pool gives it."""

    def __init__(self, size: int) -> None:
        self.size = -(-size // 512) * 512
        self._memory = np.full(self.size + 512, 0xA5, np.uint8)
        self.ptr = -(-self._memory.ctypes.data // 512) * 512
        _Now.blocks[self.ptr] = self


class MemoryPointer:
    def __init__(self, mem: Block, offset: int) -> None:
        self.mem, self.ptr = mem, mem.ptr + offset

    def __add__(self, offset: int) -> "MemoryPointer":
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)


def alloc(size: int) -> MemoryPointer:
    return MemoryPointer(Block(size), 0)


def alloc_pinned_memory(size: int) -> Any:
    memory = (ctypes.c_char * size)()
    _Now.machine.pinned[ctypes.addressof(memory)] = memory
    return memory


class ndarray:  # noqa: N801
    def __init__(self, shape: tuple[int, ...], dtype: Any, memptr: MemoryPointer) -> None:
        self.shape, self.dtype, self.data = tuple(shape), np.dtype(dtype), memptr
        self.nbytes = int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.data.ptr, False),
            "version": 3,
        }

    def now(self) -> np.ndarray:
        """What is there, whether or not it should be there already."""
        return bytes_at(self.data.ptr, self.nbytes).view(self.dtype).reshape(self.shape)

    def fill(self, value: Any) -> None:
        _put(lambda: self.now().fill(value))


def asarray(host: np.ndarray) -> ndarray:
    """A copy, which is there when the current stream has come to it."""
    made, copied = ndarray(host.shape, host.dtype, alloc(host.nbytes)), host.copy()
    _put(lambda: np.copyto(made.now(), copied))
    return made


# ---- streams and kernels -------------------------------------------------------------------------


class Stream:
    _numbers = count(1)

    def __init__(self, *, non_blocking: bool = False) -> None:
        self.ptr = next(self._numbers)

    def __enter__(self) -> "Stream":
        _Now.streams.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert _Now.streams.pop() is self

    def synchronize(self) -> None:
        _Now.machine.synchronize(self.ptr)


class Event:
    _numbers = count(1)

    def __init__(self, *, disable_timing: bool = False) -> None:
        self.ptr = next(self._numbers)


class Device:
    attributes: ClassVar[dict[str, int]] = {"MultiProcessorCount": 2}

    def synchronize(self) -> None:
        _Now.machine.synchronize_all()


def _put(work: Any) -> None:
    _Now.machine.put(_Now.streams[-1].ptr, work)


def _reach(address: int, nbytes: int) -> None:
    """As a kernel's loads and stores: a fault where it is neither the device's memory nor
    page-locked.
    """
    if not nbytes or any(
        block.ptr <= address and address + nbytes <= block.ptr + block.size
        for block in _Now.blocks.values()
    ):
        return
    try:
        reached = _Now.machine.is_locked(address, nbytes)
    except CUDARuntimeError:
        reached = False
    if not reached:
        raise FaultError(ILLEGAL_ADDRESS)


def _rows(
    size: int,
    table: int,
    together: int,
    indices: int,
    start: int,
    step: int,
    rows: int,
    words: int,
    back: bool,
) -> None:
    if table % size or together % size:
        raise FaultError(MISALIGNED)
    for k in range(rows):
        row = int(bytes_at(indices + 8 * k, 8).view(np.int64)[0]) if indices else start + k * step
        apart, packed = table + row * words * size, together + k * words * size
        _reach(apart, words * size)
        _reach(packed, words * size)
        ctypes.memmove(*((apart, packed) if back else (packed, apart)), words * size)


def _publish(table: ndarray, arrays: int, box: int) -> None:
    for target, source, nbytes in table.now()[:arrays].tolist():
        _reach(target, nbytes)
        ctypes.memmove(target, source, nbytes)
    _mark(box, 0)


def _mail(table: ndarray, words: int, box: int) -> None:
    for i, source in enumerate(table.now()[:words].tolist()):
        _reach(source, 4)
        if source % 4:
            raise FaultError(MISALIGNED)
        _mark(box + 8 * i, int(bytes_at(source, 4).view(np.uint32)[0]))


def _mark(word: int, data: int) -> None:
    _reach(word, 8)
    bytes_at(word, 8).view(np.int64)[0] = 1 << 32 | data


class RawModule:
    """The device's kernels, by name, as they should work."""

    def __init__(self, code: str) -> None:
        self._code = code

    def get_function(self, name: str) -> Any:
        assert f"void {name}(" in self._code

        def kernel(grid: tuple[int], block: tuple[int], args: tuple[Any, ...]) -> None:
            assert grid[0] > 0 < block[0]
            assert not any(type(arg) is bool for arg in args)
            if name in {"publish", "mail"}:
                tell = _publish if name == "publish" else _mail
                assert name == "publish" or args[1] <= block[0]
                _put(lambda: tell(args[0], int(args[1]), int(args[2])))
            else:
                _put(lambda: _rows(int(name.removeprefix("rows_")), *map(int, args)))

        return kernel


# ---- the runtime ---------------------------------------------------------------------------------


def memcpy(target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
    """Copies; memory that is not page-locked is read, or written, before the call returns."""
    machine = _Now.machine
    host = {TO_DEVICE: source, TO_HOST: target}.get(kind)
    locked = host is None or machine.is_locked(host, nbytes)
    if stream in machine.captures or locked:
        machine.put(stream, lambda: ctypes.memmove(target, source, nbytes))
    elif kind == TO_DEVICE:
        copied = bytes_at(source, nbytes).copy()
        machine.put(stream, lambda: ctypes.memmove(target, copied.ctypes.data, nbytes))
    else:
        machine.put(stream, lambda: ctypes.memmove(target, source, nbytes))
        machine.synchronize(stream)


def memset(target: int, value: int, nbytes: int, stream: int) -> None:
    _Now.machine.put(stream, lambda: ctypes.memset(target, value, nbytes))


def _asked(method: str) -> Any:
    def ask(*args: int) -> Any:
        return getattr(_Now.machine, method)(*args)

    return ask


def _begin(stream: int, mode: int) -> None:
    assert mode == 2
    _Now.machine.begin_capture(stream)


def _wait(stream: int, event: int, flags: int) -> None:
    assert flags == 0
    _Now.machine.wait_event(stream, event)


def _register(address: int, nbytes: int, flags: int) -> None:
    if flags:
        raise CUDARuntimeError(INVALID_VALUE)
    _Now.machine.lock(address, nbytes)


def _runtime() -> ModuleType:
    module = ModuleType("cupy.cuda.runtime")
    vars(module).update(
        CUDARuntimeError=CUDARuntimeError,
        memcpyHostToDevice=TO_DEVICE,
        memcpyDeviceToHost=TO_HOST,
        memcpyDeviceToDevice=ON_DEVICE,
        memcpyAsync=memcpy,
        memsetAsync=memset,
        eventRecord=_asked("record_event"),
        streamWaitEvent=_wait,
        streamBeginCapture=_begin,
        streamEndCapture=_asked("end_capture"),
        streamQuery=_asked("query"),  # the status, not raised, as CuPy does
        streamSynchronize=_asked("synchronize"),
        graphInstantiate=_asked("instantiate"),
        graphLaunch=_asked("launch"),
        graphDestroy=_asked("destroy_graph"),
        graphExecDestroy=_asked("destroy_executable"),
        hostRegister=_register,
        hostUnregister=_asked("unlock"),
    )
    return module


def _modules() -> dict[str, ModuleType]:
    cupy, cuda, runtime = ModuleType("cupy"), ModuleType("cupy.cuda"), _runtime()
    vars(cuda).update(
        runtime=runtime,
        alloc=alloc,
        alloc_pinned_memory=alloc_pinned_memory,
        Stream=Stream,
        Event=Event,
        Device=Device,
    )
    vars(cupy).update(
        cuda=cuda,
        ndarray=ndarray,
        asarray=asarray,
        RawModule=RawModule,
        ElementwiseKernel=lambda *_, **__: None,
    )
    return {"cupy": cupy, "cupy.cuda": cuda, "cupy.cuda.runtime": runtime}


@cache
def load() -> SimpleNamespace:
    """The device's modules: steps, code, memory, nodes, graph; and the stand-in for CuPy's
    runtime.
    """
    stand_in = _modules()
    names = [f"synknumba._device.{name}" for name in MODULES]
    package = vars(synknumba._device)
    before = {name: sys.modules.pop(name, None) for name in (*names, *stand_in)}
    attributes = {name: package.pop(name, None) for name in MODULES}
    try:
        sys.modules.update(stand_in)
        loaded = {
            name.removeprefix("cuda_"): importlib.import_module(f"synknumba._device.{name}")
            for name in MODULES
        }
    finally:
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module
        for name, module in attributes.items():
            package.pop(name, None)
            if module is not None:
                package[name] = module
    runtime = stand_in["cupy.cuda.runtime"]
    loaded["graph"].launcher = _launcher(runtime)
    loaded["graph"].rewriter = _rewriter(loaded["nodes"])
    return SimpleNamespace(**loaded, runtime=runtime)


def _launcher(runtime: ModuleType) -> Any:
    """The driver's function that launches a graph, for compiled code: the runtime's, whatever
    that is when it is called.
    """

    def launch(executable: int, stream: int) -> int:
        try:
            runtime.graphLaunch(executable, stream)
        except CUDARuntimeError as error:
            return error.status
        return 0

    return _for_compiled_code(launch, 2)


def _rewriter(nodes: ModuleType) -> Any:
    """That which gives a node other parameters, likewise."""

    def rewrite(executable: int, node: int, parameters: int) -> int:
        return int(nodes._driver().cuGraphExecKernelNodeSetParams_v2(executable, node, parameters))

    return _for_compiled_code(rewrite, 3)


def _for_compiled_code(function: Callable[..., int], arguments: int) -> Callable[[], int | None]:
    """What says where a C function of so many integers is that calls this one."""
    made = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * arguments)(function)
    return lambda: ctypes.cast(made, ctypes.c_void_p).value
