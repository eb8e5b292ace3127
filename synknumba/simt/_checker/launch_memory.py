"""Memory of a launch in compiled code: threads and their stacks, shared and local arrays, shadow
cells, findings; and which array an address is in.
"""

import ast
import ctypes
import math
import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from synknumba._errors import KernelError
from synknumba.simt._checker import layout
from synknumba.simt._checker.instrument import Lowered, Memory, NotInstrumentedError, Site
from synknumba.simt._python.arrays import (
    StandIn,
    TrackedMemory,
    Watch,
    overlapping,
    part_names,
    record_memory,
)
from synknumba.simt._python.cuda import as_numpy
from synknumba.simt._python.run import Launch

# Bytes of a thread's stack. Local arrays are elsewhere, and pages that are not used take no memory.
STACK: Final = 256 << 10
# Bytes of `ucontext_t`: 968 on x86-64 and 4560 on AArch64, in glibc.
CONTEXT: Final = 5120
# Bytes of the buffer for elements before an assignment to a part of an array.
_KEPT: Final = 1 << 20
_MAP_NORESERVE: Final = 0x4000  # Linux; `mmap` has the name from Python 3.13 on
_PAGE: Final = 4096


@dataclass(frozen=True, slots=True)
class _SharedArray:
    """A shared array: its place in the block's shared memory."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    is_dynamic: bool

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class _Shared:
    """Shared memory of all resident blocks.

    Attributes:
        low: address of the first block's.
        written: address of its map of written bytes.
        nbytes: bytes of a block.
        arrays: the arrays in it.
        shift: log2 of the bytes of a cell.
    """

    low: int
    written: int
    nbytes: int
    arrays: tuple[_SharedArray, ...]
    shift: int


@dataclass(frozen=True, slots=True)
class _Region:
    """A stretch of memory: its addresses, log2 of the bytes of a cell, space, address of its map
    of written bytes.
    """

    low: int
    high: int
    shift: int
    space: int
    written: int = 0
    is_read_only: bool = False


class _Regions:
    """The regions in the words of the runtime, with their cells."""

    def __init__(self, regions: Sequence[_Region]) -> None:
        self.words = np.zeros((max(1, len(regions)), layout.REGION_WORDS), np.int64)
        self._cells: list[np.ndarray[Any, Any]] = []
        for row, region in zip(self.words, regions, strict=False):
            end = region.high
            if region.space == layout.LOCAL_SPACE:
                end = region.low  # no other thread accesses it
            cells = _cells(region.low, end, region.shift)
            self._cells.append(cells)
            row[layout.LOW], row[layout.HIGH] = region.low, region.high
            row[layout.CELLS], row[layout.SHIFT] = cells.ctypes.data, region.shift
            row[layout.SPACE], row[layout.WRITTEN] = region.space, region.written
            row[layout.READ_ONLY] = region.is_read_only

    def divide_cells(self) -> None:
        """Divides the cells of regions with an access to a part of a cell, each into copies."""
        for number, row in enumerate(self.words):
            if not row[layout.FINER]:
                continue
            shift = _log2(int(row[layout.FINER]))
            parts, old = 1 << (int(row[layout.SHIFT]) - shift), self._cells[number]
            new = self._cells[number] = _cells(int(row[layout.LOW]), int(row[layout.HIGH]), shift)
            if row[layout.USED]:
                used = np.flatnonzero(old.any(axis=1))
                for part in range(parts):
                    new[used * parts + part] = old[used]
            row[layout.CELLS], row[layout.SHIFT], row[layout.FINER] = new.ctypes.data, shift, 0

    def space_of(self, address: int) -> int:
        """Returns the space of an address; the end of the shared memory is of it, too."""
        for row in self.words:
            space, low, high = int(row[layout.SPACE]), int(row[layout.LOW]), int(row[layout.HIGH])
            if space == layout.SHARED_SPACE and address == high:
                return space
            if low <= address < high:
                return space
        return layout.GLOBAL_SPACE


class LaunchMemory:
    """Memory of a launch.

    Args:
        lowered: the kernel's shared and local arrays.
        args: its arguments, by parameter.
        launch: the launch, whose watch collects the findings.
        resident: number of blocks that exist at the same time.
        stand_in: first contents of shared arrays.
        state: words of the runtime, which get the addresses.

    Attributes:
        threads: the words of each thread.
        findings: the table of findings.
        regions: the memory that threads share, and the local arrays.
    """

    def __init__(
        self,
        lowered: Lowered,
        args: Mapping[str, Any],
        launch: Launch,
        resident: int,
        stand_in: StandIn,
        state: np.ndarray[Any, Any],
    ) -> None:
        self._lowered, self._args, self._watch = lowered, args, launch.watch
        self._owned: list[Any] = []
        count = math.prod(launch.block)
        self.threads = self._words(resident * count, layout.THREAD_WORDS)
        local = self._make_threads(state, launch, count)
        self.findings = self._words(layout.MOST_FOUND + 1, layout.FOUND_WORDS)
        state[layout.FOUND] = self.findings.ctypes.data
        state[layout.HINTS] = self._words(len(lowered.sites.all)).ctypes.data
        state[layout.SCRATCH] = self._zeros(layout.SCRATCH_BYTES).ctypes.data
        state[layout.KEPT], state[layout.KEPT_BYTES] = self._zeros(_KEPT).ctypes.data, _KEPT
        shared = self._shared = self._make_shared(state, launch.smem, resident, stand_in)
        self._arrays = list(_memories([*args], [*args.values()], self._watch))
        self._local_low = local.low
        regions = [_region_of(group) for group in overlapping(self._arrays)]
        if shared.nbytes:
            high = shared.low + resident * shared.nbytes
            regions.append(
                _Region(shared.low, high, shared.shift, layout.SHARED_SPACE, shared.written)
            )
        if lowered.local_bytes:
            regions.append(local)
        self.regions = _Regions(regions)
        state[layout.REGIONS] = self.regions.words.ctypes.data
        state[layout.REGION_COUNT] = len(regions)

    def _zeros(self, nbytes: int) -> np.ndarray[Any, Any]:
        """Returns bytes that take no memory until they are used."""
        zeros = _mapped(nbytes)
        self._owned.append(zeros)
        return zeros

    def _words(self, *shape: int) -> np.ndarray[Any, Any]:
        words = np.zeros(shape, np.int64)
        self._owned.append(words)
        return words

    # ---- threads

    def _make_threads(self, state: np.ndarray[Any, Any], launch: Launch, count: int) -> _Region:
        """Sets the words of the threads; returns their local memory."""
        table, nbytes = self.threads, self._lowered.local_bytes
        total = len(table)
        stacks, contexts = self._zeros(total * STACK), self._zeros((total + 1) * CONTEXT)
        local, written = self._zeros(total * nbytes), self._zeros(total * nbytes)
        _guard(stacks, total)
        numbers = np.arange(total)
        inside = numbers % count
        sizes = launch.block
        table[:, layout.STACK] = stacks.ctypes.data + numbers * STACK
        table[:, layout.CONTEXT] = contexts.ctypes.data + (numbers + 1) * CONTEXT
        table[:, layout.INDEX] = inside % sizes.x
        table[:, layout.INDEX + 1] = inside // sizes.x % sizes.y
        table[:, layout.INDEX + 2] = inside // (sizes.x * sizes.y)
        table[:, layout.LOCALS] = local.ctypes.data + numbers * nbytes
        table[:, layout.LOCALS_WRITTEN] = written.ctypes.data + numbers * nbytes
        state[layout.THREADS], state[layout.SCHEDULER] = table.ctypes.data, contexts.ctypes.data
        state[layout.STACK_BYTES] = STACK
        low = local.ctypes.data
        return _Region(low, low + local.size, 0, layout.LOCAL_SPACE, written.ctypes.data)

    # ---- shared memory

    def _make_shared(
        self, state: np.ndarray[Any, Any], smem: int, resident: int, stand_in: StandIn
    ) -> _Shared:
        arrays = self._place_shared(smem)
        static = sum(_rounded(array.nbytes) for array in arrays if not array.is_dynamic)
        nbytes = _rounded(static + smem)
        fill = np.full(max(1, nbytes), stand_in.byte, np.uint8)
        steps = [8]
        for array in arrays:
            steps += _steps(array.dtype)
            if not array.is_dynamic:
                end = array.offset + array.nbytes
                fill[array.offset : end] = stand_in.fill_of(array.dtype)
        self._owned.append(fill)
        offsets = self._words(max(1, len(arrays)))
        offsets[: len(arrays)] = [array.offset for array in arrays]
        low = self._zeros(resident * nbytes).ctypes.data
        written = self._zeros(resident * nbytes).ctypes.data
        state[layout.SHARED], state[layout.SHARED_WRITTEN] = low, written
        state[layout.SHARED_OFFSETS] = offsets.ctypes.data
        state[layout.SHARED_FILL] = fill.ctypes.data
        state[layout.SHARED_BYTES], state[layout.DYNAMIC_BYTES] = nbytes, smem
        return _Shared(low, written, nbytes, arrays, _log2(math.gcd(*steps)))

    def _place_shared(self, smem: int) -> tuple[_SharedArray, ...]:
        """Returns the shared arrays, one after another; dynamic ones share what follows."""
        arrays, dynamic, offset = list[_SharedArray](), list[int](), 0
        for number, array in enumerate(self._lowered.shared_arrays):
            dtype, shape = self._dtype(array), array.shape
            if array.is_dynamic:
                shape = (smem // dtype.itemsize,)
                dynamic.append(number)
            arrays.append(_SharedArray(array.name, shape, dtype, offset, array.is_dynamic))
            if not array.is_dynamic:
                offset += _rounded(arrays[-1].nbytes)
        for number in dynamic:
            arrays[number] = replace(arrays[number], offset=offset)
        return tuple(arrays)

    def _dtype(self, array: Memory) -> np.dtype[Any]:
        """Returns the dtype of a shared or local array."""
        text = ast.unparse(array.dtype)
        try:
            return as_numpy(eval(text, {**array.code.namespace, **self._args}))  # noqa: S307  # a name, or `x.dtype`
        except Exception as error:
            raise NotInstrumentedError(f"a shared array of the dtype {text}") from error

    def select(self, state: np.ndarray[Any, Any], number: int, count: int) -> None:
        """Makes the threads and the shared memory of a resident block the current ones."""
        state[layout.THREADS] = self.threads_of(number, count).ctypes.data
        state[layout.SHARED] = self._shared.low + number * self._shared.nbytes
        state[layout.SHARED_WRITTEN] = self._shared.written + number * self._shared.nbytes

    def threads_of(self, number: int, count: int) -> np.ndarray[Any, Any]:
        """Returns the words of the threads of a resident block, each of `count` threads."""
        return self.threads[number * count : (number + 1) * count]

    # ---- the array at an address

    def at(
        self, address: int, site: Site, shape: tuple[int, ...] | None = None
    ) -> tuple[TrackedMemory, int]:
        """Returns the array at an address, and the address in it; of several, the one that the
        site names. With a shape, also an array that is empty.
        """
        if site.constant is not None:
            return TrackedMemory(site.array, "constant", site.constant, self._watch), address
        word = _variable(site.array)
        match self.regions.space_of(address):
            case layout.SHARED_SPACE:
                return self._shared_at(address, word)
            case layout.LOCAL_SPACE:
                nbytes = self._lowered.local_bytes
                return self._local_at((address - self._local_low) % nbytes)
        least = int(shape is not None)
        arrays = [
            array
            for array in self._arrays
            if array.low <= address < max(array.high, array.low + least)
        ]
        if not arrays:
            unknown = np.zeros(shape or (1,), np.uint8)
            return TrackedMemory(word, "global", unknown, self._watch), unknown.ctypes.data
        named = (array for array in arrays if _variable(array.name) == word)
        return next(named, arrays[0]), address

    def _shared_at(self, address: int, word: str) -> tuple[TrackedMemory, int]:
        low = self._shared.low
        place = (address - low) % self._shared.nbytes
        arrays = [
            array
            for array in self._shared.arrays
            if array.offset <= place < array.offset + max(1, array.nbytes)
        ]
        array = next((array for array in arrays if array.name == word), arrays[0])
        start = low + array.offset
        return self._tracked(array.name, "shared", array.shape, array.dtype, start), low + place

    def _local_at(self, offset: int) -> tuple[TrackedMemory, int]:
        arrays = [array for array in self._lowered.local_arrays if array.offset <= offset]
        array = arrays[-1]
        try:
            dtype = self._dtype(array)
        except NotInstrumentedError:
            dtype = np.dtype(np.uint8)
        low = self._local_low
        memory = self._tracked(array.name, "local", array.shape, dtype, low + array.offset)
        return memory, low + offset

    def _tracked(
        self, name: str, space: str, shape: Any, dtype: np.dtype[Any], address: int
    ) -> TrackedMemory:
        owner = SimpleNamespace(written=set(), cells={})
        interface = {
            "data": (address, False),
            "shape": (math.prod(shape) * dtype.itemsize,),
            "typestr": "|u1",
            "version": 3,
        }
        flat = np.asarray(SimpleNamespace(__array_interface__=interface))
        return TrackedMemory(name, space, flat.view(dtype).reshape(shape), self._watch, owner)


def _variable(expression: str) -> str:
    """Returns the variable of an expression such as `x.a[0]`."""
    return expression.partition("[")[0].partition(".")[0]


def _rounded(nbytes: int) -> int:
    """Returns bytes rounded up to cache lines."""
    return -(-nbytes // 64) * 64


def _mapped(nbytes: int) -> np.ndarray[Any, Any]:
    """Returns zeros that take no memory until they are used."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    return np.frombuffer(mmap.mmap(-1, max(nbytes, _PAGE), flags=flags), np.uint8)


def _cells(low: int, high: int, shift: int) -> np.ndarray[Any, Any]:
    """Returns the cells of a region."""
    count = ((high - low) >> shift) + 1
    return (
        _mapped(8 * layout.CELL_WORDS * count)[: 8 * layout.CELL_WORDS * count]
        .view(np.int64)
        .reshape(count, layout.CELL_WORDS)
    )


def _guard(stacks: np.ndarray[Any, Any], count: int) -> None:
    """Makes the lowest page of each stack inaccessible, so that a stack overflow ends the
    process at once.
    """
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for number in range(count):
        protect(stacks.ctypes.data + number * STACK, _PAGE, 0)


def _memories(names: Sequence[str], args: Sequence[Any], watch: Watch) -> Iterator[TrackedMemory]:
    """Yields the arrays and records among the arguments, also in tuples, under their names."""
    for name, arg in zip(names, args, strict=True):
        if isinstance(arg, np.ndarray):
            yield TrackedMemory(name, "global", arg, watch)
        elif isinstance(arg, np.void):
            yield TrackedMemory(name, "global", record_memory(arg), watch)
        elif isinstance(arg, tuple):
            yield from _memories(part_names(name, arg), arg, watch)


def _steps(dtype: np.dtype[Any]) -> Iterator[int]:
    """Yields the distances that separate the numbers in elements of a dtype."""
    yield dtype.itemsize
    if dtype.subdtype is not None:
        yield from _steps(dtype.subdtype[0])
    for kind, offset, *_ in (dtype.fields or {}).values():
        if offset:
            yield offset
        yield from _steps(kind)


def _log2(number: int) -> int:
    """Returns the exponent of the largest power of two that divides a number."""
    return (number & -number).bit_length() - 1


def _is_read_only(memories: Sequence[TrackedMemory]) -> bool:
    """Returns whether arrays that overlap are read-only.

    Raises:
        KernelError: only some are, and one of these has records, whose types do not tell it.
    """
    read_only = [memory for memory in memories if not memory.array.flags.writeable]
    if len(read_only) == len(memories):
        return True
    if any(memory.array.dtype.names for memory in read_only):
        names = ", ".join(memory.name for memory in memories)
        raise KernelError(
            f"read-only records that overlap writeable arrays ({names}) cannot be "
            f"checked in compiled code"
        )
    return False


def _region_of(memories: Sequence[TrackedMemory]) -> _Region:
    """Returns the region of arrays that overlap, with cells that tell the numbers in them apart."""
    low, steps = memories[0].low, list[int]()
    for memory in memories:
        start = memory.array.__array_interface__["data"][0]
        steps += [*_steps(memory.array.dtype), *memory.array.strides, start - low]
    high, shift = max(memory.high for memory in memories), _log2(math.gcd(*steps))
    return _Region(low, high, shift, layout.GLOBAL_SPACE, is_read_only=_is_read_only(memories))
