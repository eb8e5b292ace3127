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
from typing import Any, Final, cast

import numpy as np
from numba.core import types

from synknumba._errors import KernelError
from synknumba.simt._checker import layout
from synknumba.simt._checker.instrument import Lowered, NotInstrumentedError, Site, Sites
from synknumba.simt._lower.thread_code import ThreadCode
from synknumba.simt._maths.bfloat16 import as_dtype
from synknumba.simt._python.arrays import (
    StandIn,
    TrackedMemory,
    Watch,
    overlapping,
    record_memory,
)
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
    """

    low: int
    written: int
    nbytes: int
    arrays: tuple[_SharedArray, ...]


class LaunchMemory:
    """Memory of a launch.

    Args:
        code: the kernel's code.
        lowered: its local arrays.
        sites: its places in the user's source.
        args: its arguments, by parameter.
        launch: the launch, whose watch collects the findings.
        resident: number of blocks that exist at the same time.
        stand_in: first contents of shared arrays.
        state: words of the runtime, which get the addresses.

    Attributes:
        threads: the words of each thread.
        findings: the table of findings.
    """

    def __init__(
        self,
        code: ThreadCode,
        lowered: Lowered,
        sites: Sites,
        args: Mapping[str, Any],
        launch: Launch,
        resident: int,
        stand_in: StandIn,
        state: np.ndarray[Any, Any],
    ) -> None:
        self._code, self._lowered, self._sites, self._args = code, lowered, sites, args
        self._watch = launch.watch
        self._owned: list[Any] = []
        count = math.prod(launch.block)
        self.threads = self._words(resident * count, layout.THREAD_WORDS)
        local, local_written = self._make_threads(state, launch, count)
        self.findings = self._words(layout.MOST_FOUND + 1, layout.FOUND_WORDS)
        state[layout.FOUND] = self.findings.ctypes.data
        state[layout.HINTS] = self._words(len(sites.all)).ctypes.data
        state[layout.SCRATCH] = self._zeros(layout.SCRATCH_BYTES).ctypes.data
        state[layout.KEPT], state[layout.KEPT_BYTES] = self._zeros(_KEPT).ctypes.data, _KEPT
        self._shared, shift = self._make_shared(state, launch.smem, resident, stand_in)
        self._arrays = list(_memories([*args], [*args.values()], self._watch))
        self._local_low = local.ctypes.data
        self._make_regions(state, resident, shift, local.size, local_written)

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

    def _make_threads(
        self, state: np.ndarray[Any, Any], launch: Launch, count: int
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Sets the words of the threads; returns their local memory and its map of written
        bytes.
        """
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
        return local, written

    # ---- shared memory

    def _make_shared(
        self, state: np.ndarray[Any, Any], smem: int, resident: int, stand_in: StandIn
    ) -> tuple[_Shared, int]:
        """Returns the shared memory, and log2 of the bytes of a cell."""
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
        return _Shared(low, written, nbytes, arrays), _log2(math.gcd(*steps))

    def _place_shared(self, smem: int) -> tuple[_SharedArray, ...]:
        """Returns the shared arrays, one after another; dynamic ones share what follows."""
        arrays, offset = [], 0
        for name, array in self._code.shared_arrays.items():
            dtype = self._dtype(self._code, array.dtype)
            line = cast(ast.Call, array.at).lineno
            display_name = self._sites.names.get((self._code.source.filename, line), name)
            shape = (smem // dtype.itemsize,) if array.is_dynamic else array.shape
            arrays.append(_SharedArray(display_name, shape, dtype, offset, array.is_dynamic))
            if not array.is_dynamic:
                offset += _rounded(arrays[-1].nbytes)
        return tuple(
            replace(array, offset=offset) if array.is_dynamic else array for array in arrays
        )

    def _dtype(self, code: ThreadCode, node: ast.expr) -> np.dtype[Any]:
        """Returns the dtype of a shared or local array, an expression of the generated code."""
        try:
            value = eval(ast.unparse(node), {**code.namespace, **self._args})  # noqa: S307  # a name, or `x.dtype`
        except Exception as error:
            raise NotInstrumentedError(
                f"a shared array of the dtype {ast.unparse(node)}"
            ) from error
        return as_dtype(value) if isinstance(value, types.Type) else np.dtype(value)

    def select(self, state: np.ndarray[Any, Any], number: int, count: int) -> None:
        """Makes the threads and the shared memory of a resident block the current ones."""
        state[layout.THREADS] = self.threads_of(number, count).ctypes.data
        state[layout.SHARED] = self._shared.low + number * self._shared.nbytes
        state[layout.SHARED_WRITTEN] = self._shared.written + number * self._shared.nbytes

    def threads_of(self, number: int, count: int) -> np.ndarray[Any, Any]:
        """Returns the words of the threads of a resident block, each of `count` threads."""
        return self.threads[number * count : (number + 1) * count]

    # ---- regions and their cells

    def _make_regions(
        self,
        state: np.ndarray[Any, Any],
        resident: int,
        shared_shift: int,
        local_size: int,
        local_written: np.ndarray[Any, Any],
    ) -> None:
        """Makes the regions, with cells; `shared_shift` is log2 of the bytes of a shared cell."""
        regions = [
            (low, high, shift, layout.GLOBAL_SPACE, 0) for low, high, shift in _spans(self._arrays)
        ]
        read_only = [_is_read_only(group) for group in overlapping(self._arrays)]
        shared = self._shared
        if shared.nbytes:
            high = shared.low + resident * shared.nbytes
            regions.append((shared.low, high, shared_shift, layout.SHARED_SPACE, shared.written))
        if self._lowered.local_bytes:
            low = self._local_low
            written = local_written.ctypes.data
            regions.append((low, low + local_size, 0, layout.LOCAL_SPACE, written))
        self._regions = self._words(max(1, len(regions)), layout.REGION_WORDS)
        self._cells: list[np.ndarray[Any, Any]] = []
        self._regions[: len(read_only), layout.READ_ONLY] = read_only
        for row, (low, high, shift, space, written) in zip(self._regions, regions, strict=False):
            cells = _cells(low, low if space == layout.LOCAL_SPACE else high, shift)
            self._cells.append(cells)
            row[: layout.WRITTEN + 1] = low, high, cells.ctypes.data, shift, space, written
        state[layout.REGIONS], state[layout.REGION_COUNT] = self._regions.ctypes.data, len(regions)

    def divide_cells(self) -> None:
        """Divides the cells of regions with an access to a part of a cell, each into copies."""
        for number, row in enumerate(self._regions):
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

    # ---- the array at an address

    def at(
        self, address: int, site: Site, shape: tuple[int, ...] | None = None
    ) -> tuple[TrackedMemory, int]:
        """Returns the array at an address, and the address in it; of several, the one that the
        site names. With a shape, also an array that is empty.
        """
        if site.constant is not None:
            return TrackedMemory(site.array, "constant", site.constant, self._watch), address
        word = site.array.partition("[")[0].partition(".")[0]
        match self._space(address):
            case layout.SHARED_SPACE:
                return self._shared_at(address, word)
            case layout.LOCAL_SPACE:
                nbytes = self._lowered.local_bytes
                return self._local_at((address - self._local_low) % nbytes)
        arrays = [
            array
            for array in self._arrays
            if array.low <= address < array.high or (array.low == address and shape is not None)
        ]
        if not arrays:
            unknown = np.zeros(shape or (1,), np.uint8)
            return TrackedMemory(word, "global", unknown, self._watch), unknown.ctypes.data
        named = (
            array for array in arrays if array.name.partition(".")[0].partition("[")[0] == word
        )
        return next(named, arrays[0]), address

    def _space(self, address: int) -> int:
        """Returns the space of an address; the end of the shared memory is of it, too."""
        for row in self._regions:
            space, low, high = int(row[layout.SPACE]), int(row[layout.LOW]), int(row[layout.HIGH])
            if space == layout.SHARED_SPACE and address == high:
                return space
            if low <= address < high:
                return space
        return layout.GLOBAL_SPACE

    def _shared_at(self, address: int, word: str) -> tuple[TrackedMemory, int]:
        low = self._shared.low
        place = (address - low) % self._shared.nbytes
        arrays = [
            array
            for array in self._shared.arrays
            if array.offset == place or array.offset <= place < array.offset + array.nbytes
        ]
        array = next((array for array in arrays if array.name == word), arrays[0])
        start = low + array.offset
        return self._tracked(array.name, "shared", array.shape, array.dtype, start), low + place

    def _local_at(self, offset: int) -> tuple[TrackedMemory, int]:
        arrays = [array for array in self._lowered.local_arrays if array.offset <= offset]
        array = arrays[-1]
        try:
            dtype = self._dtype(array.code, array.dtype)
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


def _memories(
    names: Sequence[str], args: Sequence[Any], watch: Watch, prefix: str = ""
) -> Iterator[TrackedMemory]:
    """Yields the arrays and records among the arguments, also in tuples, under their names."""
    for name, arg in zip(names, args, strict=True):
        if isinstance(arg, np.ndarray):
            yield TrackedMemory(f"{prefix}{name}", "global", arg, watch)
        elif isinstance(arg, np.void):
            yield TrackedMemory(f"{prefix}{name}", "global", record_memory(arg), watch)
        elif isinstance(arg, tuple):
            fields = getattr(arg, "_fields", None)
            keys = (
                [f".{key}" for key in fields] if fields else [f"[{key}]" for key in range(len(arg))]
            )
            yield from _memories([f"{name}{key}" for key in keys], arg, watch, prefix)


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
    writeable = {memory.array.flags.writeable for memory in memories}
    if len(writeable) > 1 and any(
        memory.array.dtype.names and not memory.array.flags.writeable for memory in memories
    ):
        names = ", ".join(memory.name for memory in memories)
        raise KernelError(
            f"read-only records that overlap writeable arrays ({names}) cannot be "
            f"checked in compiled code"
        )
    return writeable == {False}


def _spans(memories: Sequence[TrackedMemory]) -> Iterator[tuple[int, int, int]]:
    """Yields the stretches of memory of arrays, and log2 of a size of cells that tells the
    numbers in them apart.
    """
    for group in overlapping(memories):
        low, steps = group[0].low, list[int]()
        for memory in group:
            start = memory.array.__array_interface__["data"][0]
            steps += [*_steps(memory.array.dtype), *memory.array.strides, start - low]
        yield low, max(memory.high for memory in group), _log2(math.gcd(*steps))
