"""The CPU device: one core, which works on views of the host's segments without copies."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, final

import numpy as np

from synknumba._device.base import (
    Buffer,
    Device,
    DeviceKernel,
    Gather,
    LineRows,
    Recording,
    Step,
    Three,
    Workspace,
    read_rows,
    unmasked,
)
from synknumba._device.cpu_recording import record
from synknumba._device.row_copies import LINE, CopyRows
from synknumba._host.stored import Reader
from synknumba._ops.reduction import accumulate, locate
from synknumba._ops.rows import InLine, Range, Rows
from synknumba._types import Array, Op, Shape, UserOp
from synknumba._wire.native import Native, NativeCall, NativeStep, copy_of
from synknumba.simt import jit

# numbers of which square roots are taken, and that are copied: both stay about a millisecond
RATED = (
    4096,
    1 << 20,
)
ROOTS = 256

# a fill by compiled code copies as much; writing alone is faster for arrays larger than a cache
FILL_BYTES = 1 << 20


def _read_only(view: Array) -> Array:
    view = view.view()
    view.flags.writeable = False
    return view


# Steps are partials, which are called without a Python frame, and which show what they call.


@final
class Copy(partial[None], Native):
    """A copy of one array to another, as `Copy(np.copyto, target, source)`."""

    def native(self) -> Sequence[NativeStep] | None:
        target, source = self.args
        if target.dtype != source.dtype or target.shape != source.shape:
            return None
        if not (target.flags.c_contiguous and source.flags.c_contiguous):
            return None
        return [copy_of(target, source)]


@final
class Fill(partial[None], Native):
    """An array filled with one value, as `Fill(array.fill, value)`."""

    def native(self) -> Sequence[NativeStep] | None:
        array: Array = self.func.__self__  # type: ignore[attr-defined]
        if array.nbytes > FILL_BYTES or not array.flags.c_contiguous:
            return None
        return Copy(np.copyto, array, np.full_like(array, self.args[0])).native()


@final
class Launch(partial[object], Native):
    """A launch of a kernel with a list of arguments, as `Launch(launch, *args)`, or
    `Launch(_launch, launch, args)`.

    Attributes:
        entry: function that returns the launch as compiled code makes it, for these arguments.
    """

    entry: Callable[[], NativeCall | None]

    def native(self) -> Sequence[NativeStep] | None:
        call = self.entry()
        return None if call is None else [call]


def _launch(launch: Callable[..., object], args: list[Any]) -> None:
    launch(*args)


@final
class CpuWorkspace(Workspace):
    def __init__(self) -> None:
        self._storage: dict[object, Array] = {}

    def rows(self, slot: object, host: Array, rows: Rows, *, writable: bool) -> Buffer:
        if isinstance(rows, Range):
            view = host[rows.selector]
            if rows.step == 1:  # a view of the segment
                return Buffer(view if writable else _read_only(view))
            buffer = self.scratch(slot, host.dtype, view.shape)
            load: Step = Copy(np.copyto, buffer, view)
            store: Step = Copy(np.copyto, view, buffer)
        else:
            buffer = self.scratch(slot, host.dtype, (rows.count, *host.shape[1:]))
            lists = rows.indices.reshape(1, rows.count)
            load = CopyRows.of(buffer, host, lists)
            store = CopyRows.of(buffer, host, lists, back=True)
        return Buffer(buffer, load, store) if writable else Buffer(_read_only(buffer), load)

    def stored(self, slot: object, reader: Reader, dtype: Any, shape: Shape, rows: Rows) -> Buffer:
        buffer = self.scratch(slot, dtype, shape)
        return Buffer(_read_only(buffer), partial(read_rows, reader, buffer, rows))

    def line_rows(self, slot: object, host: Array, rows: InLine) -> LineRows:
        buffer = self.scratch(slot, host.dtype, (rows.count, *host.shape[1:]))
        lists = rows.table[:, rows.start : rows.start + rows.count]
        copy = CopyRows.of(buffer, host, lists, rows.line)
        return LineRows(_read_only(buffer), Gather(copy, copy.args[0], LINE, len(lists)))

    def held_rows(self, slot: object, array: Array, rows: Rows, *, writable: bool) -> Buffer:
        return self.rows(slot, array, rows, writable=writable)

    def whole(self, slot: object, host: Array) -> Buffer:
        return Buffer(_read_only(host))

    def output(self, slot: object, host: Array) -> Buffer:
        return Buffer(host)

    def scratch(self, slot: object, dtype: Any, shape: Shape) -> Array:
        dtype = np.dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        storage = self._storage.get(slot)
        if storage is None or storage.nbytes < nbytes:
            storage = self._storage[slot] = np.empty(max(nbytes, 1), np.uint8)
        return storage[:nbytes].view(dtype).reshape(shape)

    def storage(self, slot: object) -> object:
        return self._storage.get(slot)

    def close(self) -> None:
        self._storage.clear()


@final
class CpuKernel(DeviceKernel):
    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def bind(
        self, grid: Three, block: Three, smem_bytes: int, args: list[Any], changing: Sequence[int]
    ) -> Step:
        launch: Callable[..., object] = self._kernel.bind(grid, block, tuple(args), smem_bytes)
        step = Launch(_launch, launch, args) if changing else Launch(launch, *args)
        step.entry = partial(self._native, grid, block, smem_bytes, args, changing)
        return step

    def _native(
        self, grid: Three, block: Three, smem_bytes: int, args: list[Any], changing: Sequence[int]
    ) -> NativeCall | None:
        call = self._kernel.native(grid, block, tuple(args), smem_bytes)
        if call is None:
            return None
        address, kinds, sizes, values, code = call
        try:
            return NativeCall(
                address, kinds, (*sizes, *values), code, {at: len(sizes) + at for at in changing}
            )
        except TypeError:  # an argument that has no form in words
            return None


@final
class CpuDevice(Device):
    kind = "cpu"

    def workspace(self, *, sliced: bool = False) -> Workspace:
        return CpuWorkspace()

    def kernel(self, function: Callable[..., Any], options: Mapping[str, Any]) -> DeviceKernel:
        return CpuKernel(
            jit(
                options.get("signatures"),
                fastmath=options.get("fastmath"),
                debug=options.get("debug"),
            )(function)
        )

    def record(self, steps: Sequence[Step], *, alone: bool = True) -> Recording | None:
        return record(steps)

    def told(self, step: Step) -> tuple[str, int]:
        match step:
            case Launch():
                return "kernel", 0
            case CopyRows():
                return "gather rows", step.nbytes
        return super().told(step)

    def rate(self, seconds: float) -> float:
        few, many = (np.ones(count) for count in RATED)
        target = np.zeros_like(many)
        units, began = 0, time.perf_counter()
        while (took := time.perf_counter() - began) < seconds or units == 0:
            for _ in range(ROOTS):
                np.sqrt(few, out=few)
            np.copyto(target, many)
            units += 1
        return units / took

    def fill(self, array: Any, value: Any, *, private: bool = False) -> Step:
        return Fill(array.fill, value)

    def memory(self, nbytes: int) -> Array:
        return np.empty(max(nbytes, 1), np.uint8)

    def view(self, memory: Array, offset: int, dtype: Any, shape: Shape) -> Array:
        return np.ndarray(shape, dtype, memory.data, offset)

    def read_only(self, array: Array) -> Array:
        return _read_only(array)

    def copy(self, target: Array, source: Array) -> Step:
        return Copy(np.copyto, target, source)

    def upload(self, target: Array, host: Array) -> Step:
        return Copy(np.copyto, target, host)

    def download(self, host: Array, source: Array) -> Step:
        return Copy(np.copyto, host, source)

    def accumulate(self, op: Op, target: Array, source: Array, weight: int = 1) -> Step:
        if isinstance(op, UserOp):
            return self.fold(op, target, source)
        return partial(accumulate, op, target, source, weight)

    def locate(
        self, op: Op, values: Array, rows: Array, scores: Array, first: int
    ) -> Sequence[Step]:
        return [partial(locate, op, values, rows, scores, first)]

    def divide(self, target: Array, divisor: int) -> Step:
        return partial(np.divide, target, divisor, out=target)

    def to_host(self, value: Any) -> Array:
        return unmasked(value)

    def scope(self) -> AbstractContextManager[object]:
        return nullcontext()

    def synchronize(self) -> None:
        pass

    def close(self) -> None:
        pass
