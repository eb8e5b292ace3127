"""What a device is: the contract between the executor, which knows programs, and a driver, which knows memory and launches.

A rank has one device. The executor asks it for buffers, prepares steps (callables without arguments) once, and runs the
steps at every call. A driver

- *must* give every kernel argument an array that it can launch with, and bring results back to host memory by `store`;
- *should* do nothing at all in `load` where the kernel can work on the host rows directly;
- *may* keep the storage of a slot between calls and between slices: buffers of one slot are never in use at the same time.

Drivers are final, override the abstract methods only, and document nothing that the contract says already.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from synknumba._device.argmin_kernel import THREADS as LOCATING_THREADS
from synknumba._device.argmin_kernel import locating_kernels, search_grid
from synknumba._device.fold_kernel import THREADS, blocks_for, fold_kernel
from synknumba._host.segment import Segment
from synknumba._ops.rows import Rows
from synknumba._types import Array, DeviceKind, Op, Shape, UserOp
from synknumba._wire.relaunch import Scalars

Step: TypeAlias = Callable[[], object]
Three: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class DeviceTraits:
    """What a kind of device is like, for whoever must not import its driver.

    Attributes:
        shares_memory: whether arrays on the device are in memory of the host, so that kernels work on rows, variables and
            results in segments directly, and the coordinator reaches all of them. Otherwise each rank's are its own.
        queues_work: whether steps return before their work is done, so that `synchronize` must come before results are read.
        compiled_by_simt: whether kernels are compiled by `synknumba.simt`, which can refuse one before it is sent.
        has_float16: whether kernels compute with float16.
        has_long_double: whether kernels compute with long double, and complex numbers of it.
    """

    shares_memory: bool
    queues_work: bool
    compiled_by_simt: bool
    has_float16: bool
    has_long_double: bool


TRAITS: Mapping[DeviceKind, DeviceTraits] = {
    "cpu": DeviceTraits(shares_memory=True, queues_work=False, compiled_by_simt=True, has_float16=False, has_long_double=True),
    "cuda": DeviceTraits(
        shares_memory=False, queues_work=True, compiled_by_simt=False, has_float16=True, has_long_double=False
    ),
}


@dataclass(frozen=True, slots=True)
class Buffer:
    """An array that kernels take, and what moves it.

    Attributes:
        array: on the device; on the CPU it may be the host rows themselves.
        load: brings the host's rows in; None where there is nothing to do.
        store: brings the array back to the host; None where there is nothing to do.
    """

    array: Any
    load: Step | None = None
    store: Step | None = None


@dataclass(slots=True)
class SliceSteps:
    """What one slice takes, in three parts that a device may run beside those of other slices.

    Attributes:
        loads: bring in what the work reads.
        work: on this device alone.
        stores: bring out what the work has written.
    """

    loads: list[Step] = field(default_factory=list)
    work: list[Step] = field(default_factory=list)
    stores: list[Step] = field(default_factory=list)


class Workspace(ABC):
    """The device memory of one program, by slot.

    Attributes:
        turns: how many buffers an argument should have whose slices follow one another: slice k uses that of k % turns.
        replaced: how often a slot's memory was replaced by more; arrays made before hold the old one.
    """

    turns: int = 1
    replaced: int = 0

    def in_order(self, slices: Sequence[SliceSteps]) -> list[Step]:
        """The steps of all slices as they are to be run. By default one slice after the other."""
        return [step for one in slices for step in (*one.loads, *one.work, *one.stores)]

    @abstractmethod
    def rows(self, slot: object, host: Array, rows: Rows, *, writable: bool) -> Buffer:
        """Rows of a host array, in order and C-contiguous.

        Args:
            slot: who asks; storage of the same slot is shared.
            host: array in a segment; `rows` select along axis 0.
            rows: at least one; a `Listed` selection is read again at each load.
            writable: whether the kernel may write; then `store` puts the rows back. Otherwise the array must refuse writes
                where it is the host's own memory.
        """

    @abstractmethod
    def held_rows(self, slot: object, array: Any, rows: Rows, *, writable: bool) -> Buffer:
        """Rows of an array that lives on the device, in order and C-contiguous; otherwise as `rows`."""

    def expect(self, host: Array, rows: Rows) -> None:
        """Tells that `rows` will be asked for, perhaps in several parts. By default nothing is done."""

    @abstractmethod
    def whole(self, slot: object, host: Array) -> Buffer:
        """All of a host array, read-only where it is the host's own memory."""

    @abstractmethod
    def output(self, slot: object, host: Array) -> Buffer:
        """An array to be written by a kernel, of the shape and dtype of `host`, where `store` puts it.

        Where the slot is None its memory is shared with nobody, and lives as long as the array.
        """

    @abstractmethod
    def scratch(self, slot: object, dtype: Any, shape: Shape) -> Any:
        """An array with no counterpart on the host, uninitialised."""

    @abstractmethod
    def storage(self, slot: object) -> object:
        """What is behind the arrays of a slot now, to be told from what was there before; None if there is nothing."""

    @abstractmethod
    def close(self) -> None:
        """Frees the storage."""


class DeviceKernel(ABC):
    """A kernel made ready for a device; compiled for each new signature at `bind`."""

    @abstractmethod
    def bind(self, grid: Three, block: Three, smem_bytes: int, args: list[Any], changing: Sequence[int]) -> Step:
        """A step that launches; it need not wait for the launch to end.

        Args:
            grid: blocks along each axis.
            block: threads of a block along each axis.
            smem_bytes: dynamic smem of a block.
            args: `convert`ed arguments. The step launches with what is in the list when it is run.
            changing: positions of scalars that may be replaced by others of the same types.
        """

    def convert(self, arg: Any) -> Any:
        """An argument as the launch takes it fastest. By default the argument itself."""
        return arg


class Replay(ABC):
    """Steps that were recorded, to be repeated as one.

    Attributes:
        relaunch: address of the `_serving.Relaunch` that compiled code repeats them by; 0 where there is none.
        scalars: where they are to be written by whoever launches; None where that is not known, or not before `renew`.
    """

    relaunch: int = 0
    scalars: Scalars | None = None

    @abstractmethod
    def __call__(self) -> None:
        """Repeats the steps and waits for their end."""

    @abstractmethod
    def wait(self) -> None:
        """Waits for the end of what was launched."""

    @abstractmethod
    def renew(self) -> bool:
        """Has launches use the scalars that are in their argument lists now; whether that can be done."""

    @abstractmethod
    def close(self) -> None:
        """Frees what was recorded; idempotent."""


class Device(ABC):
    """One GPU, or one core, and its memory. Made in a rank, after the fork."""

    kind: DeviceKind
    stream: Any = None  # what steps are put on, where there is such a thing
    when_moved: Callable[[int], None] | None = None  # called with a segment's id: what is recorded with it is void

    @property
    def traits(self) -> DeviceTraits:
        """What devices of this kind are like."""
        return TRAITS[self.kind]

    @abstractmethod
    def workspace(self, *, sliced: bool = False) -> Workspace:
        """Memory for one program; `sliced` where its slices may run beside each other."""

    def on_stream(self, step: Step) -> Step:
        """A step of somebody else's that does nothing but put work on the device's stream, as one that can be recorded."""
        return step

    def record(self, steps: Sequence[Step]) -> Replay | None:
        """Steps that were run before, recorded without being run; None where that is not possible, or of no use."""
        return None

    @abstractmethod
    def kernel(self, function: Callable[..., Any], options: Mapping[str, Any]) -> DeviceKernel:
        """A Numba CUDA kernel, given as a plain Python function and the options of `cuda.jit`."""

    @abstractmethod
    def fill(self, array: Any, value: Any, *, private: bool = False) -> Step:
        """A step that sets every element.

        Args:
            array: of the device.
            value: a NumPy scalar of its dtype.
            private: only the steps that this one is recorded with write the array.
        """

    @abstractmethod
    def memory(self, nbytes: int) -> Any:
        """Memory of its own on the device, for `view`; freed with its last reference."""

    @abstractmethod
    def view(self, memory: Any, offset: int, dtype: Any, shape: Shape) -> Any:
        """An array at `offset` bytes of `memory`, writable, as kernels and Python functions take it."""

    def read_only(self, array: Any) -> Any:
        """The array, refusing writes where the device can; by default the array itself."""
        return array

    @abstractmethod
    def copy(self, target: Any, source: Any) -> Step:
        """A step that copies one array of the device to another of the same shape and dtype; both C-contiguous."""

    @abstractmethod
    def upload(self, target: Any, host: Array) -> Step:
        """A step that copies an array of the host to one of the device, both C-contiguous."""

    @abstractmethod
    def download(self, host: Array, source: Any) -> Step:
        """A step that copies an array of the device to one of the host, both C-contiguous; `synchronize` waits for it."""

    @abstractmethod
    def accumulate(self, op: Op, target: Any, source: Any, weight: int = 1) -> Step:
        """A step that puts one array of the device into another: target ← target op source.

        As `_reduction.accumulate`, so a None accumulates as "sum", and "mean" as target + weight · source.
        """

    def fold(self, op: UserOp, target: Any, source: Any) -> Step:
        """As `accumulate`, with an op of the user's, by a kernel of the device."""
        kernel = self._folds.get(op)
        if kernel is None:
            kernel = self._folds[op] = self.kernel(fold_kernel(op), {})
        arrays = [target.reshape(-1), source.reshape(1, -1)]
        size = (blocks_for(arrays[0].size), 1, 1), (THREADS, 1, 1)
        return kernel.bind(*size, 0, [kernel.convert(array) for array in arrays], ())

    def locate(self, op: Op, values: Any, rows: Any, scores: Any, first: int) -> Sequence[Step]:
        """Steps that put the best of some rows into the best so far, as `_reduction.locate`.

        By default by two kernels of the device.

        Args:
            op: "argmin" or "argmax".
            values: of the device, shape (m,).
            rows: of the device, int64, shape (m,).
            scores: of the device, shape (n, m), at least one row.
            first: the row that scores[0] is of.
        """
        dtype, (count, columns) = values.dtype, scores.shape
        if not columns:
            return []
        search, settle = map(self._locating.get, [(op, dtype, 0), (op, dtype, 1)])
        if search is None or settle is None:
            search, settle = (self.kernel(one, {}) for one in locating_kernels(str(op), dtype))
            self._locating.update({(op, dtype, 0): search, (op, dtype, 1): settle})
        grid = search_grid(count, columns)
        shape = grid[0], columns
        found = self.view(self.memory(grid[0] * columns * dtype.itemsize), 0, dtype, shape)
        found_rows = self.view(self.memory(grid[0] * columns * 8), 0, np.dtype(np.int64), shape)
        searching = [search.convert(one) for one in (scores, first, found, found_rows)]
        settling = [settle.convert(one) for one in (found, found_rows, values, rows)]
        block = LOCATING_THREADS, 1, 1
        return [search.bind(grid, block, 0, searching, ()), settle.bind((1, *grid[1:]), block, 0, settling, ())]

    @property
    def _locating(self) -> dict[tuple[Any, ...], DeviceKernel]:
        """The kernels of `locate` that were used before, by op, dtype and which of the two."""
        kept: dict[tuple[Any, ...], DeviceKernel] = self.__dict__.setdefault("_kept_locating", {})
        return kept

    @property
    def _folds(self) -> "WeakKeyDictionary[UserOp, DeviceKernel]":
        """The kernels of ops that were used before."""
        kept: WeakKeyDictionary[UserOp, DeviceKernel] = self.__dict__.setdefault("_kept_folds", WeakKeyDictionary())
        return kept

    @abstractmethod
    def divide(self, target: Any, divisor: int) -> Step:
        """A step that divides an array of floating-point or complex numbers."""

    @abstractmethod
    def to_host(self, value: Any) -> Array:
        """A NumPy array or scalar array of what a kernel or a function made; waits for it."""

    def leaf(self, value: Any) -> Any:
        """What a function returned as an array that tells its dtype and shape; for `put`. By default as `to_host`."""
        return self.to_host(value)

    def put(self, host: Array, leaf: Any) -> None:
        """Copies a leaf to an array of the host, which has it when the device has been waited for."""
        host[...] = leaf

    @abstractmethod
    def scope(self) -> AbstractContextManager[object]:
        """What Python functions run in, so that their work goes to the device's stream."""

    @abstractmethod
    def synchronize(self) -> None:
        """Waits for all steps so far."""

    def memory_use(self) -> tuple[int | None, int | None]:
        """Bytes of the device that this rank has taken, and that are free; by default None, as it is the host's memory."""
        return None, None

    def recover(self) -> bool:
        """After an exception: waits for what is under way, and says whether the device can still be used."""
        self.synchronize()
        return True

    def explain(self, error: BaseException) -> str:
        """What else is to be told of an exception, as how much memory is free; empty by default."""
        return ""

    def attach(self, segment: Segment, *, whole: bool = False) -> None:
        """Called when a segment is mapped; a driver may page-lock it: now, if the `whole` is going to be used."""

    def detach(self, segment: Segment) -> None:
        """Called before a segment is let go. By default nothing is done."""

    @abstractmethod
    def close(self) -> None:
        """Frees everything; idempotent."""
