"""The CUDA device: one GPU, or a share of one. CuPy owns memory and streams; a compiler makes and
launches kernels.

    host rows (page-locked segment) ──copy──> CuPy array ──convert──> kernel ──> CuPy array ──copy──> host

All steps of a program without slices go to one stream in the order in which they are run, so a
buffer may be filled again while the previous launch is still running. Repeated steps are recorded
as a CUDA graph, and then launched as one.
"""  # noqa: E501

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, final

import cupy
import numpy as np
from cupy.cuda import nvtx, runtime

from synknumba._device.base import (
    Device,
    DeviceKernel,
    Recorder,
    Recording,
    ResultRing,
    Step,
    StrandedError,
    Workspace,
    unmasked,
)
from synknumba._device.compilers import Compilers
from synknumba._device.compilers.base import RecordArray
from synknumba._device.cuda_calls import RecordedFunction
from synknumba._device.cuda_code import ADD_WEIGHTED, BUSY, DIVIDE, CudaRing, Mailbox, launch_own
from synknumba._device.cuda_graph import record, record_queued
from synknumba._device.cuda_memory import (
    CudaWorkspace,
    LockedMemory,
    Streams,
    beside,
    is_done,
    typed,
)
from synknumba._device.cuda_steps import (
    CopyOut,
    CudaKernel,
    CudaLaunch,
    Fill,
    Meeting,
    OnStream,
    address_of,
    all_on_stream,
    copy_in,
    copy_out,
    copy_within,
    keeping,
    under,
)
from synknumba._device.cuda_torch import FunctionScope
from synknumba._device.gpu_probe import import_problem
from synknumba._errors import DeviceError
from synknumba._host.segment import Segment
from synknumba._types import Array, CompilerName, Op, Shape, UserOp

_UFUNCS: dict[Op, Any] = {
    None: cupy.add,
    "sum": cupy.add,
    "prod": cupy.multiply,
    "min": cupy.minimum,
    "max": cupy.maximum,
}


# numbers with which a GPU computes, and bytes that it copies: half a millisecond each on a H100
RATED = (
    1 << 22,
    1 << 28,
)
STRANDED_SECONDS = (
    10.0  # for which work that may wait for a rank goes on after that rank has failed
)


@final
class CudaDevice(Device):
    kind = "cuda"

    def __init__(self, index: int, compiler: CompilerName | None = None) -> None:
        index = _only(index)
        context = threading.Thread(target=_make_context, args=(index,))
        context.start()  # takes as long as the imports, and needs no Python
        problem = import_problem(compiler)
        context.join()
        if problem is not None:
            raise DeviceError(problem)
        self._cupy_device = cupy.cuda.Device(index)
        self._cupy_device.use()
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self._scope = FunctionScope(self.stream)
        self._streams = Streams(self.stream)
        self._compilers = Compilers(index, self.stream.ptr, compiler)
        self._locked = LockedMemory(self._before_relocking)
        self._box = Mailbox()
        self._meets = False  # whether work on the stream has met other ranks
        self._stranded = False

    def workspace(self, *, sliced: bool = False) -> Workspace:
        return CudaWorkspace(self._streams, self._locked, sliced=sliced)

    def on_stream(self, step: Step) -> Step:
        return Meeting(self._meet, step)

    def record(self, steps: Sequence[Step], *, alone: bool = True) -> Recording | None:
        return record(steps, self.stream, self._box, self._await, alone=alone)

    def record_queued(self, steps: Iterable[Step]) -> Recording | None:
        return record_queued(steps, self.stream)

    def can_queue(self, steps: Sequence[Step]) -> bool:
        return all_on_stream(steps)

    def only_copies_to(self, host: Array, step: Step) -> bool:
        first = host.ctypes.data
        return isinstance(step, CopyOut) and first <= step.args[0] < first + host.nbytes

    def result_ring(self, line: Array) -> ResultRing:
        return CudaRing(line, self.stream)

    def beside(self) -> tuple[list[Step], list[Step]]:
        return beside(self._streams)

    def marker(self) -> Callable[[], bool]:
        event = cupy.cuda.Event(disable_timing=True)
        event.record(self.stream)
        return lambda: is_done(runtime.eventQuery, event)

    def told(self, step: Step) -> tuple[str, int]:
        if isinstance(step, CudaLaunch):
            return "kernel", 0
        if isinstance(step, Meeting):
            return "collective", 0
        if isinstance(step, OnStream) and step.func is runtime.memcpyAsync:
            kinds = {
                runtime.memcpyHostToDevice: "copy to the GPU",
                runtime.memcpyDeviceToHost: "copy to the host",
            }
            return kinds.get(step.args[3], "copy"), int(step.args[2])
        if isinstance(step, OnStream) and step.keeps and step.func is launch_own:
            name = str(step.args[1].name)
            if name.startswith("rows"):
                name = "gather rows"
            return name, int(step.keeps[0].nbytes)
        return super().told(step)

    def timeline(self, step: Step | None = None) -> int | None:
        if step == self.synchronize:
            return None
        if isinstance(step, OnStream):
            if step.func in {runtime.eventRecord, runtime.streamWaitEvent}:
                return None
            if step.func is runtime.memcpyAsync:
                return int(step.args[4])
            if step.func is launch_own:
                return int(step.args[0].ptr)
        return int(self.stream.ptr)

    def mark(self, timeline: int, mark: int | None = None) -> int:
        event = runtime.eventCreateWithFlags(runtime.eventDefault) if mark is None else mark
        runtime.eventRecord(event, timeline)
        return int(event)

    def since(self, first: int, second: int) -> int:
        return round(runtime.eventElapsedTime(first, second) * 1e6)

    def drop_mark(self, mark: int) -> None:
        runtime.eventDestroy(mark)

    def enter(self, name: str) -> None:
        if nvtx.available:
            nvtx.RangePush(name)

    def leave(self) -> None:
        if nvtx.available:
            nvtx.RangePop()

    def recorder(self, name: str) -> Recorder:
        return RecordedFunction(name, self.stream, self._scope)

    def kernel(self, function: Callable[..., Any], options: Mapping[str, Any]) -> DeviceKernel:
        return CudaKernel(self._compilers.kernel(function, options))

    def fill(self, array: Any, value: Any, *, private: bool = False) -> Step:
        if not any(np.asarray(value).tobytes()) or isinstance(array, RecordArray):
            step = Fill(runtime.memsetAsync, address_of(array), 0, array.nbytes, self.stream.ptr)
        else:
            step = Fill(under(self.stream, array.fill, value))
        step.private = private
        return keeping(step, array)

    def memory(self, nbytes: int) -> Any:
        return cupy.cuda.alloc(max(nbytes, 1))

    def view(self, memory: Any, offset: int, dtype: Any, shape: Shape) -> Any:
        return typed(memory + offset, dtype, shape)

    def copy(self, target: Any, source: Any) -> Step:
        return copy_within(target, source, self.stream)

    def upload(self, target: Any, host: Array) -> Step:
        self._locked.reaches(host)
        return copy_in(target, host.ctypes.data, self.stream)

    def download(self, host: Array, source: Any) -> Step:
        return copy_out(host.ctypes.data, source, self.stream, reached=self._locked.reaches(host))

    def accumulate(self, op: Op, target: Any, source: Any, weight: int = 1) -> Step:
        if isinstance(op, UserOp):
            return self.fold(op, target, source)
        if op == "mean":
            return under(self.stream, ADD_WEIGHTED, source, target.dtype.type(weight), target)
        return under(self.stream, _UFUNCS[op], target, source, out=target)

    def divide(self, target: Any, divisor: int) -> Step:
        return under(self.stream, DIVIDE, target.dtype.type(divisor), target)

    def to_host(self, value: Any) -> Array:
        self.stream.synchronize()
        if isinstance(value, cupy.ndarray):
            return value.get()
        if hasattr(value, "__cuda_array_interface__"):
            return self._compilers.to_host(value)
        return unmasked(value)

    def leaf(self, value: Any) -> Any:
        return value if isinstance(value, cupy.ndarray) else self.to_host(value)

    def put(self, host: Array, leaf: Any) -> None:
        if isinstance(leaf, np.ndarray):
            host[...] = leaf
        elif leaf.nbytes:
            # freed memory is reused only later on the same stream
            packed = cupy.ascontiguousarray(leaf)
            kind = runtime.memcpyDeviceToHost
            runtime.memcpyAsync(
                host.ctypes.data, address_of(packed), packed.nbytes, kind, self.stream.ptr
            )

    def scope(self) -> AbstractContextManager[object]:
        return self._scope

    def synchronize(self) -> None:
        if self._meets:
            self._await(self._streams.are_done)
        else:
            self._streams.synchronize()

    def _meet(self, step: Step) -> None:
        self._meets = True
        step()

    def _await(self, is_done: Callable[[], bool]) -> None:
        """Waits for work that may wait for other ranks."""
        noticed = None
        while not is_done():
            if self.others_failed():
                noticed = noticed or time.monotonic()
                if time.monotonic() - noticed > STRANDED_SECONDS:
                    self._stranded = True
                    raise StrandedError("the GPU waits for a rank that has failed")

    def memory_use(self) -> tuple[int | None, int | None]:
        return cupy.get_default_memory_pool().total_bytes(), runtime.memGetInfo()[0]

    def rate(self, seconds: float) -> float:
        with self.stream:
            numbers, array = cupy.ones(RATED[0], np.float32), cupy.ones(RATED[1], np.uint8)
            target = cupy.empty_like(array)

            def rate_of(units: int) -> float:
                began = time.perf_counter()
                for _ in range(units):
                    BUSY(numbers, numbers)
                    cupy.copyto(target, array)
                self.stream.synchronize()
                return units / (time.perf_counter() - began)

            rate_of(1)  # compiles
            rate, until = 0.0, time.perf_counter() + seconds / 2
            # a GPU that was idle is slow at first
            while rate == 0.0 or time.perf_counter() < until:
                rate = rate_of(8)
            # At once, since work of other processes has its turn at each gap, longer than beside a
            # kernel that takes longer.
            return rate_of(max(1, round(rate * seconds)))

    def recover(self) -> bool:
        # After a sticky error, such as an illegal address, both fail: the context is lost, and the
        # process with it.
        for wait in (self.synchronize, runtime.deviceSynchronize):
            if self._stranded:
                return False
            with contextlib.suppress(runtime.CUDARuntimeError, StrandedError):
                wait()
                return True
        return False

    def explain(self, error: BaseException) -> str:
        if not isinstance(error, cupy.cuda.memory.OutOfMemoryError):
            return ""
        free, total = runtime.memGetInfo()
        pooled = cupy.get_default_memory_pool().free_bytes()
        return (
            f"The GPU has {free:,} of {total:,} bytes free, and this rank's pool {pooled:,} more. "
            "Use num_slices=, a smaller batch or more GPUs, or drop variables."
        )

    def attach(self, segment: Segment, *, whole: bool = False) -> None:
        if not segment.is_file:  # locking would read all of the file, and keep it in memory
            self._locked.add(segment.id, segment.array(np.uint8, (segment.size,)), whole=whole)

    def detach(self, segment: Segment) -> None:
        # a kernel may have destroyed the context
        with contextlib.suppress(runtime.CUDARuntimeError):
            self._streams.synchronize()
            self._locked.remove(segment.array(np.uint8, (segment.size,)))

    def _before_relocking(self, segment_id: int) -> None:
        self._streams.synchronize()
        if self.when_moved is not None:
            self.when_moved(segment_id)

    def close(self) -> None:
        with contextlib.suppress(runtime.CUDARuntimeError):
            self._streams.synchronize()
            self._locked.clear()


def _only(index: int) -> int:
    """Hides all other GPUs, so that the driver does not set them up. Returns the index of the
    remaining one.
    """
    name, visible = str(index), os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = visible.split(",")
        if index >= len(names):  # the driver reports it
            return index
        name = names[index].strip()
    os.environ["CUDA_VISIBLE_DEVICES"] = name
    return 0


def _make_context(index: int) -> None:
    """Creates the primary context, which CuPy and the compiler then share; errors are left for
    them to report.
    """
    with contextlib.suppress(OSError):
        driver = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), index) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
