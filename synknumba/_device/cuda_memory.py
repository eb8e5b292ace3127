"""Device memory of one program, the copies that fill and read it, and page-locked host memory.

    contiguous host rows          ──copy──────────> array ──kernel──> array ──copy──────────> host rows
    scattered rows                ──rows kernel──>                         ──rows kernel──>
    scattered, not page-locked    ──NumPy──> staging memory ──copy──>      …and back

In a sliced program copies have streams of their own, and arguments have two buffers each:

    load    copy 0 │ copy 1 │ copy 2 │ copy 3 …        copy k waits until slice k − 2 has finished with its buffers
    work           │ work 0 │ work 1 │ work 2 …        work k waits for copy k
    store                   │ out 0  │ out 1  …        out k waits for work k
"""  # noqa: E501

import math
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import cupy
import numpy as np
from cupy.cuda import runtime

from synknumba._device.base import Buffer, Gather, LineRows, SliceSteps, Step, Workspace, read_rows
from synknumba._device.compilers.base import RecordArray
from synknumba._device.cuda_code import gather_line, move_rows
from synknumba._device.cuda_steps import (
    NOT_READY,
    Join,
    OnStream,
    StoreToHost,
    copy_in,
    copy_out,
    copy_within,
    keeping,
)
from synknumba._host.stored import Reader
from synknumba._ops.rows import InLine, Listed, Range, Rows, Selection
from synknumba._types import Array, Shape

# Sizes in bytes that a kernel reads from page-locked memory faster than the copy engine copies
# them: 16 against 21 µs for 8 KB in a graph on an H200, 54 against 58 for 512 KB, 86 against 84 for
# 2 MB.
SMALLEST_MOVED, LARGEST_MOVED = 2 << 10, 1 << 20

# segments of at most so many bytes are locked when mapped, which takes 2 ms
LOCKED_WHOLE = 16 << 20
PAGE = mmap.PAGESIZE


def typed(memory: Any, dtype: Any, shape: Shape) -> Any:
    """Returns an array at a pointer to device memory."""
    dtype = np.dtype(dtype)
    if dtype.names is not None or dtype.kind not in "biufc":
        return RecordArray(memory, dtype, shape)
    return cupy.ndarray(shape, dtype, memory)


class LockedMemory:
    """The host memory that this process has page-locked, as far as the device needed it.

    Locking takes 0.1 s per GiB, so of a large segment only the rank's own rows are locked. If
    others are needed later, the whole segment is locked instead, since a copy must not cross from
    one locked range to the next. Where memory cannot be locked (a container's limit), copies still
    work from pageable memory, five times slower. `before_relocking` is called with the id of a
    segment before it is unlocked to be locked as a whole.
    """

    def __init__(self, before_relocking: Callable[[int], None]) -> None:
        self._before_relocking = before_relocking
        self._known: dict[int, tuple[int, int]] = {}  # by segment address: bytes and id
        # by segment address: first locked byte, and the one after the last
        self._locked: dict[int, tuple[int, int]] = {}

    def add(self, segment_id: int, memory: Array, *, whole: bool) -> None:
        """Registers a segment, and locks it if it is small or will be used as a whole."""
        address = memory.ctypes.data
        self._known[address] = (memory.nbytes, segment_id)
        if whole or memory.nbytes <= LOCKED_WHOLE:
            self._lock(address, address, address + memory.nbytes)

    def remove(self, memory: Array) -> None:
        """Unlocks and forgets a segment that is no longer in use."""
        if self._known.pop(memory.ctypes.data, None) is not None:
            self._unlock(memory.ctypes.data)

    def reaches(self, array: Array) -> bool:
        """Locks an array's memory if possible. Returns whether the device can read and write the
        array in place.
        """
        low, high = np.lib.array_utils.byte_bounds(array)
        segment = next(
            (start for start, (size, _) in self._known.items() if start <= low < start + size), None
        )
        if segment is None:
            return False
        held = self._locked.get(segment)
        if held is None:
            return self._lock(segment, low & -PAGE, -(-high // PAGE) * PAGE)
        return (held[0] <= low and high <= held[1]) or self._lock_whole(segment, held)

    def _lock_whole(self, segment: int, held: tuple[int, int]) -> bool:
        size, segment_id = self._known[segment]
        self._before_relocking(segment_id)
        self._unlock(segment)
        if self._lock(segment, segment, segment + size):
            return True
        self._lock(segment, *held)  # as before
        return False

    def _lock(self, segment: int, low: int, high: int) -> bool:
        try:
            runtime.hostRegister(low, high - low, 0)
        except runtime.CUDARuntimeError:
            return False
        self._locked[segment] = (low, high)
        return True

    def _unlock(self, segment: int) -> None:
        held = self._locked.pop(segment, None)
        if held is not None:
            runtime.hostUnregister(held[0])

    def clear(self) -> None:
        """Unlocks and forgets all segments."""
        for segment in tuple(self._known):
            self._unlock(segment)
        self._known.clear()


def is_done(query: Callable[[int], int], of: Any) -> bool:
    """Whether a stream or an event is done; raises the error if its work has failed, after which
    CuPy's `done` stays false.
    """
    if query(of.ptr) == NOT_READY:
        return False
    of.synchronize()
    return True


@dataclass(frozen=True)
class Streams:
    """The streams of one device: for work and, created on first use, for copies that overlap it."""

    work: Any

    @cached_property
    def load(self) -> Any:
        """Stream of copies to the device."""
        return cupy.cuda.Stream(non_blocking=True)

    @cached_property
    def store(self) -> Any:
        """Stream of copies from the device."""
        return cupy.cuda.Stream(non_blocking=True)

    def synchronize(self) -> None:
        """Waits for all streams created so far."""
        for stream in self._created():
            stream.synchronize()

    def are_done(self) -> bool:
        """Whether no stream has work left."""
        return all(is_done(runtime.streamQuery, stream) for stream in self._created())

    def _created(self) -> list[Any]:
        return [self.__dict__[name] for name in ("load", "work", "store") if name in self.__dict__]


@final
class CudaWorkspace(Workspace):
    def __init__(self, streams: Streams, locked: LockedMemory, *, sliced: bool) -> None:
        self._streams = streams
        self.turns, self._load, self._store = 1, streams.work, streams.work
        if sliced:
            self.turns, self._load, self._store = 2, streams.load, streams.store
        self._locked = locked
        self._storage: dict[object, Any] = {}
        self._staging: dict[object, Array] = {}

    def in_order(self, slices: Sequence[SliceSteps]) -> list[Step]:
        if self.turns > 1 and slices:
            return _side_by_side(slices, self._streams)
        return super().in_order(slices)

    def expect(self, host: Array, rows: Selection) -> None:
        if isinstance(rows, Range) and rows.step == 1:
            host = host[rows.selector]
        self._locked.reaches(host)

    def rows(self, slot: object, host: Array, rows: Rows, *, writable: bool) -> Buffer:
        array = self.scratch(slot, host.dtype, (rows.count, *host.shape[1:]))
        if isinstance(rows, Range) and rows.step == 1:
            return self._straight(array, host[rows.selector], writable=writable)
        if not self._locked.reaches(host) or not (
            isinstance(rows, Range) or self._locked.reaches(rows.indices)
        ):
            return self._staged(slot, array, host, rows, writable=writable)
        return self._apart(
            array, host.ctypes.data, rows, host, (self._load, self._store), writable=writable
        )

    def stored(self, slot: object, reader: Reader, dtype: Any, shape: Shape, rows: Rows) -> Buffer:
        array = self.scratch(slot, dtype, shape)
        staging = self._staging_buffer(slot, np.dtype(dtype), shape)
        up = copy_in(array, staging.ctypes.data, self._load)

        def load() -> None:
            self._load.synchronize()  # as in `_staged`
            read_rows(reader, staging, rows)
            up()

        return Buffer(array, load)

    def line_rows(self, slot: object, host: Array, rows: InLine) -> LineRows | None:
        if not self._locked.reaches(host) or not self._locked.reaches(rows.table):
            return None
        array = self.scratch(slot, host.dtype, (rows.count, *host.shape[1:]))
        work, load = self._streams.work, self._streams.load

        def ahead() -> tuple[Gather, Step]:
            spare = self.scratch(None, array.dtype, array.shape)
            return gather_line(host, rows, spare, load), copy_within(array, spare, work)

        return LineRows(array, gather_line(host, rows, array, work), ahead)

    def held_rows(self, slot: object, array: Any, rows: Rows, *, writable: bool) -> Buffer:
        shape = (rows.count, *array.shape[1:])
        if isinstance(rows, Range) and rows.step == 1:
            row_bytes = array.nbytes // max(array.shape[0], 1)
            return Buffer(typed(array.data + rows.start * row_bytes, array.dtype, shape))
        buffer = self.scratch(slot, array.dtype, shape)
        if isinstance(rows, Range) or self._locked.reaches(rows.indices):
            return self._apart(
                buffer, array.data.ptr, rows, array, (self._streams.work,) * 2, writable=writable
            )
        # A page-locked copy of the row list, which the device can read.
        staging = self._staging_buffer(slot, rows.indices.dtype, rows.indices.shape)
        moved = self._apart(
            buffer,
            array.data.ptr,
            Listed(staging),
            array,
            (self._streams.work,) * 2,
            writable=writable,
        )

        def load() -> None:
            self._streams.work.synchronize()  # earlier kernels may still read the staging buffer
            staging[...] = rows.indices
            assert moved.load is not None  # scattered rows always have a load
            moved.load()

        return Buffer(buffer, load, moved.store)

    def whole(self, slot: object, host: Array) -> Buffer:
        return self._straight(self.scratch(slot, host.dtype, host.shape), host, writable=False)

    def output(self, slot: object, host: Array) -> Buffer:
        array = self.scratch(slot, host.dtype, host.shape)
        return Buffer(array, None, self._copy_out(host, array))

    def scratch(self, slot: object, dtype: Any, shape: Shape) -> Any:
        dtype = np.dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        if slot is None:
            return typed(cupy.cuda.alloc(max(nbytes, 1)), dtype, shape)
        memory = self._storage.get(slot)
        if memory is None or memory.mem.size < nbytes:
            self.replaced += memory is not None
            memory = self._storage[slot] = cupy.cuda.alloc(max(nbytes, 1))
        return typed(memory, dtype, shape)

    def storage(self, slot: object) -> object:
        return self._storage.get(slot)

    def close(self) -> None:
        self._storage.clear()
        self._staging.clear()

    def _straight(self, array: Any, view: Array, *, writable: bool) -> Buffer:
        """Buffer of contiguous rows: one copy each way."""
        reached = self._locked.reaches(view)
        if reached and SMALLEST_MOVED <= array.nbytes <= LARGEST_MOVED:
            load = move_rows(
                view.ctypes.data,
                array.nbytes,
                Range(0, 1, 1),
                array,
                self._load,
                back=False,
                keeps=view,
            )
        else:
            load = copy_in(array, view.ctypes.data, self._load)
        return Buffer(array, load, self._copy_out(view, array) if writable else None)

    def _copy_out(self, host: Array, array: Any) -> StoreToHost:
        return copy_out(host.ctypes.data, array, self._store, reached=self._locked.reaches(host))

    def _apart(
        self,
        buffer: Any,
        table: int,
        rows: Rows,
        source: Any,
        streams: tuple[Any, Any],
        *,
        writable: bool,
    ) -> Buffer:
        """Buffer of scattered rows of a table that the device can reach; `streams` are those of
        load and store.
        """
        row_bytes = buffer.nbytes // rows.count
        load = move_rows(table, row_bytes, rows, buffer, streams[0], back=False, keeps=source)
        if not writable:
            return Buffer(buffer, load)
        return Buffer(
            buffer,
            load,
            move_rows(table, row_bytes, rows, buffer, streams[1], back=True, keeps=source),
        )

    def _staged(
        self, slot: object, array: Any, host: Array, rows: Rows, *, writable: bool
    ) -> Buffer:
        """Buffer of scattered rows out of the device's reach: gathered into page-locked memory,
        and copied from there.
        """
        staging = self._staging_buffer(slot, host.dtype, array.shape)
        up = copy_in(array, staging.ctypes.data, self._load)
        down = copy_out(staging.ctypes.data, array, self._store, reached=True)
        where: Any = rows.selector

        def load() -> None:
            self._load.synchronize()  # the previous copy may still read the staging buffer
            staging[...] = host[where]
            up()

        def store() -> None:
            down()
            self._store.synchronize()
            host[where] = staging

        return Buffer(array, load, store if writable else None)

    def _staging_buffer(self, slot: object, dtype: "np.dtype[Any]", shape: Shape) -> Array:
        nbytes = math.prod(shape) * dtype.itemsize
        storage = self._staging.get(slot)
        if storage is None or storage.nbytes < nbytes:
            memory = cupy.cuda.alloc_pinned_memory(max(nbytes, 1))
            storage = self._staging[slot] = np.frombuffer(memory, np.uint8)
        return storage[:nbytes].view(dtype).reshape(shape)


class _Mark:
    """A point in one stream that another waits for; set again by every slice that uses the same
    buffers.
    """

    def __init__(self) -> None:
        self._event = cupy.cuda.Event(disable_timing=True)

    def set(self, stream: Any) -> Step:
        return keeping(OnStream(runtime.eventRecord, self._event.ptr, stream.ptr), self._event)

    def awaited_by(self, stream: Any) -> Step:
        return keeping(
            OnStream(runtime.streamWaitEvent, stream.ptr, self._event.ptr, 0), self._event
        )


def beside(streams: Streams) -> tuple[list[Step], list[Step]]:
    """Returns steps that begin and end work on the stream of loads, as `Device.beside`."""
    begun, ended = _Mark(), _Mark()
    join = ended.awaited_by(streams.work)
    return [begun.set(streams.work), begun.awaited_by(streams.load)], [
        ended.set(streams.load),
        keeping(Join(join), join),
    ]


def _side_by_side(slices: Sequence[SliceSteps], streams: Streams) -> list[Step]:
    """Orders the steps of all slices, with marks; loads of slice k + 1 precede work k, which may
    be Python code that blocks.
    """
    work, load, store = streams.work, streams.load, streams.store
    turns = min(2, len(slices))
    start = _Mark()
    loaded, worked, stored = ([_Mark() for _ in range(turns)] for _ in range(3))
    free = [start] * turns
    steps = [start.set(work)]

    def bring(k: int) -> None:
        steps.extend(
            (free[k % turns].awaited_by(load), *slices[k].loads, loaded[k % turns].set(load))
        )

    for k in range(turns):
        bring(k)
    for k, slice_steps in enumerate(slices):
        turn = k % turns
        steps.extend((loaded[turn].awaited_by(work), *slice_steps.work, worked[turn].set(work)))
        free[turn] = worked[turn]
        if slice_steps.stores:
            steps.extend(
                (worked[turn].awaited_by(store), *slice_steps.stores, stored[turn].set(store))
            )
            free[turn] = stored[turn]
        if k + turns < len(slices):
            bring(k + turns)
    last = max((k for k, slice_steps in enumerate(slices) if slice_steps.stores), default=None)
    return steps if last is None else [*steps, stored[last % turns].awaited_by(work)]
