"""Tracked arrays for kernels that run in Python.

An `Array` is an ordinary `ndarray` on the same memory, so `p x` in a debugger, `.shape`, `.T` and
slices are NumPy's own. It notifies a `Watch` of each element access and of each out-of-bounds
index. Elements are identified by address, so views and slices need no bookkeeping.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from synknumba._errors import Finding, KernelCheckError
from synknumba.simt._maths import bfloat16
from synknumba.simt._python.arithmetic import convert


@dataclass(frozen=True, slots=True)
class StandIn:
    """What a launch has in the place of undefined values.

    Attributes:
        value: of a variable that is read unassigned.
        float_byte: fills new shared and local arrays of floats.
        byte: fills all other new shared and local memory.
    """

    value: int
    float_byte: int
    byte: int

    def fill_of(self, dtype: np.dtype[Any]) -> int:
        """Returns the byte that fills a new array."""
        if dtype.kind in "fc" or bfloat16.is_named(dtype.name):
            return self.float_byte
        return self.byte


STAND_IN: Final = StandIn(0, 0xFF, 0xCD)  # NaN in floats
# Stand-ins of launches that show whether undefined values matter: positive and negative floats,
# since a minimum or a maximum of one sign, as one with NaN, leaves the results as they are.
FURTHER_STAND_INS: Final = (StandIn(101, 0x42, 0x42), StandIn(-101, 0xC2, 0))


class Watch(ABC):
    """Observer of a launch, a `DebugLaunch`: its array accesses, early returns and end."""

    stand_in = STAND_IN

    def __init__(self, launch: Any) -> None:
        self.launch = launch
        self.memories: list[TrackedMemory] = []  # of the arguments

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings so far, in order of first occurrence."""
        return ()

    @abstractmethod
    def outside(self, array: "Array", index: Any, what: str) -> None:
        """Handles an out-of-bounds "read", "write" or "atomic": raises, or returns to have the
        access skipped.
        """

    def access(self, what: str, array: "Array", index: Any, value: Any = None) -> None:
        """Handles a "read", "write" (of `value`) or "atomic" of an element or part, within
        bounds and before memory changes.
        """

    def fail(self, finding: Finding) -> KernelCheckError:
        """Returns the error for a finding after which the launch cannot continue."""
        findings = (*self.findings, finding)
        return findings[0].error(self.launch.program.name, findings)

    def fault(self, finding: Finding) -> bool:
        """Handles an exception of a thread; returns whether the launch continues without the
        thread. False by default.
        """
        del finding
        return False

    def unassigned(self, name: str) -> Any:
        """Returns the value of a variable that is read unassigned."""
        raise UnboundLocalError(f"the variable {name} is not assigned")

    def undefined(self, thread: Any, source: int, answer: Any) -> Any:
        """Returns the answer of a shuffle from a lane that does not take part; by default the
        thread's own value.
        """
        del thread, source
        return answer

    def ended_early(self, finding: Finding) -> None:
        """Handles threads that ended before a barrier; ignored by default, as GPUs since Volta
        do not wait for them.
        """

    def finish(self) -> None:
        """Handles the end of the launch."""


class TrackedMemory:
    """The memory of an argument, constant, shared array or local array.

    Attributes:
        name: the array's name in user code.
        space: "global", "shared", "local" or "constant".
        array: the whole array.
        owner: the block of a shared array, the thread of a local one.
        written: addresses of the written bytes of a shared or local array, if the watch records
            them.
        cells: the watch's shadow of this memory, which arrays at the same memory share.
        low, high: the address of the first byte, and that after the last.
    """

    def __init__(
        self, name: str, space: str, array: np.ndarray[Any, Any], watch: Watch, owner: Any = None
    ) -> None:
        self.name, self.space, self.array, self.watch, self.owner = name, space, array, watch, owner
        self.written: set[int] = set()
        if space == "shared":
            self.written = owner.written
        self.cells: Any = None
        self.low, self.high = np.lib.array_utils.byte_bounds(array)

    def index_of(self, address: int) -> tuple[int, ...]:
        """Returns the index of the element at an address."""
        offset = address - self.array.__array_interface__["data"][0]
        index = [0] * self.array.ndim
        # In order of decreasing stride; an axis with a negative stride is counted from its other
        # end.
        steps = self.array.strides
        offset -= sum(
            min(step, 0) * (n - 1) for step, n in zip(steps, self.array.shape, strict=True)
        )
        for axis in sorted(range(self.array.ndim), key=lambda axis: -abs(steps[axis])):
            if steps[axis]:
                index[axis], offset = divmod(offset, abs(steps[axis]))
            if steps[axis] < 0:
                index[axis] = self.array.shape[axis] - 1 - index[axis]
        return tuple(index)


def overlapping(memories: Iterable[TrackedMemory]) -> list[list[TrackedMemory]]:
    """Returns the memories by address, those between the same first and last bytes together;
    empty ones are left out.
    """
    groups: list[list[TrackedMemory]] = []
    high = 0
    for memory in sorted(memories, key=lambda memory: memory.low):
        if memory.low == memory.high:
            continue
        if not groups or memory.low >= high:
            groups.append([])
        groups[-1].append(memory)
        high = max(high, memory.high)
    return groups


class Array(np.ndarray):
    """A tracked array or view in a kernel that runs in Python."""

    memory: TrackedMemory
    _address: int | None

    def __array_finalize__(self, source: Any) -> None:
        self._address = None
        if isinstance(source, Array):
            self.memory = source.memory

    @property
    def address(self) -> int:
        """Address of the first element."""
        if self._address is None:
            self._address = self.__array_interface__["data"][0]
        return self._address  # type: ignore[return-value]

    def __repr__(self) -> str:
        # The default reads the elements one by one, which a watch would count as accesses of the
        # kernel.
        return repr(np.asarray(self)).replace("array", "Array", 1)

    def __str__(self) -> str:
        return str(np.asarray(self))

    def __iter__(self) -> Iterator[Any]:
        # The default iterator calls __getitem__ until an index is out of bounds, which a watch
        # would report.
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        try:
            value = super().__getitem__(index)
        except IndexError:
            if not is_outside(self, index):
                raise
            self.memory.watch.outside(self, index, "read")
            return _absent(self, index)
        if isinstance(value, np.void):
            return Record(super().__getitem__((*index_parts(index), ...)))  # type: ignore[arg-type]
        if not isinstance(value, np.ndarray):
            self.memory.watch.access("read", self, index)
        return value

    def __getattr__(self, name: str) -> Any:
        # Numba has the fields of an array of records as attributes.
        if name in (self.dtype.names or ()):
            return self[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setitem__(self, index: Any, value: Any) -> None:
        value = plain(value, self.dtype)
        if is_outside(self, index):
            self.memory.watch.outside(self, index, "write")
            return
        must_be_writeable(self)
        self.memory.watch.access("write", self, index, value)
        super().__setitem__(index, value)


def must_be_writeable(array: Array) -> None:
    """Raises ValueError, as NumPy does, before the write that would fail is recorded."""
    if not array.flags.writeable:
        raise ValueError("assignment destination is read-only")


class Record:
    """An element of a record array, with its fields as attributes and items."""

    __slots__ = ("_cell",)
    _cell: Array

    def __init__(self, cell: Array) -> None:
        object.__setattr__(self, "_cell", cell)

    def __getitem__(self, name: Any) -> Any:
        part = _part(self._cell, name)
        if part.ndim == 0:
            return part[()]
        return part

    def __setitem__(self, name: Any, value: Any) -> None:
        _part(self._cell, name)[...] = value

    def __getattr__(self, name: str) -> Any:
        return self[_field(self._cell, name)]

    def __setattr__(self, name: str, value: Any) -> None:
        self[_field(self._cell, name)] = value

    def __repr__(self) -> str:
        return repr(np.asarray(self._cell)[()])

    def value(self) -> Any:
        """Returns a copy of the record."""
        self._cell.memory.watch.access("read", self._cell, ())
        return np.asarray(self._cell).copy()[()]


# Not methods of `Record`: the names of fields are the user's.
def _part(cell: Array, name: Any) -> Any:
    if isinstance(name, int):
        name = cell.dtype.names[name]  # type: ignore[index]
    return np.ndarray.__getitem__(cell, name)


def _field(cell: Array, name: str) -> str:
    if name not in (cell.dtype.names or ()):
        raise AttributeError(
            f"a record of {cell.memory.name} has no field {name!r}; it has {cell.dtype.names}"
        )
    return name


def plain(value: Any, dtype: np.dtype[Any]) -> Any:
    """Returns the value to store into an array of this dtype; integers wrap around, as in C."""
    if isinstance(value, Record):
        return value.value()
    if isinstance(value, Array):
        value.memory.watch.access("read", value, ...)
        return value
    wraps_around = type(value) is int and dtype.kind in "iu"
    if wraps_around or (dtype.kind == "V" and bfloat16.is_named(dtype.name)):
        return convert(value, dtype.type)
    return value


def index_parts(index: Any) -> tuple[Any, ...]:
    """Returns an index as a tuple."""
    if isinstance(index, tuple):
        return index
    return (index,)


def is_outside(array: np.ndarray[Any, Any], index: Any) -> bool:
    """Returns whether an integer index is out of bounds. Indices from -n to -1 count from the
    end, as in Numba.
    """
    parts = index_parts(index)
    axis = 0
    for place, part in enumerate(parts):
        if part is Ellipsis:
            axis = array.ndim - sum(later is not None for later in parts[place + 1 :])
        elif part is not None and axis < array.ndim:
            size = array.shape[axis]
            if isinstance(part, (int, np.integer)) and not -size <= part < size:
                return True
            axis += 1
    return False


def nothing(dtype: np.dtype[Any]) -> Any:
    """Returns a zero, the result of an out-of-bounds read if the run continues; of records, one
    with fields as attributes.
    """
    if dtype.names:
        dtype = np.dtype((np.record, dtype))
    return np.zeros(1, dtype)[0]


def _absent(array: np.ndarray[Any, Any], index: Any) -> Any:
    """Returns zeros of the shape that the index selects, were it within bounds."""
    zeros = np.broadcast_to(nothing(array.dtype), [max(1, size) for size in array.shape])
    parts = list(index_parts(index))
    for place, part in enumerate(parts):
        if isinstance(part, (int, np.integer)):
            parts[place] = 0
    return copy(zeros[tuple(parts)])


def wrap(value: Any, name: str, space: str, watch: Watch) -> Any:
    """Returns an argument or constant with its arrays and records tracked."""
    value = getattr(value, "_ary", value)  # unwraps an array of Numba's CUDA simulator
    if isinstance(value, np.ndarray):
        return _tracked(np.asarray(value), name, space, watch)
    if isinstance(value, np.void):
        return Record(_tracked(record_memory(value), name, space, watch))
    if isinstance(value, tuple):
        names = part_names(name, value)
        parts = [wrap(part, key, space, watch) for key, part in zip(names, value, strict=True)]
        return getattr(value, "_make", tuple)(parts)
    return value


def _tracked(array: np.ndarray[Any, Any], name: str, space: str, watch: Watch) -> Array:
    memory = TrackedMemory(name, space, array, watch)
    if space == "global":
        watch.memories.append(memory)
    return _on_memory(array, memory)


def part_names(name: str, value: tuple[Any, ...]) -> list[str]:
    """Returns the names of the parts of a tuple with this name, as they are written in Python."""
    if hasattr(value, "_fields"):
        return [f"{name}.{field}" for field in value._fields]
    return [f"{name}[{place}]" for place in range(len(value))]


def record_memory(value: np.void) -> np.ndarray[Any, Any]:
    """Returns the memory of a record as an array; kernels may write to it, although NumPy marks
    scalars read-only.
    """
    interface = value.__array_interface__
    interface["data"] = (interface["data"][0], False)
    return np.asarray(SimpleNamespace(__array_interface__=interface, owner=value))


def allocate(
    name: str, space: str, shape: Any, dtype: np.dtype[Any], watch: Watch, owner: Any
) -> Array:
    """Allocates a shared or local array, filled by the stand-in of undefined values."""
    array: np.ndarray[Any, Any] = np.empty(shape, dtype)
    if array.size:
        array.reshape(-1).view(np.uint8)[...] = watch.stand_in.fill_of(dtype)
    return _on_memory(array, TrackedMemory(name, space, array, watch, owner))


def carve(
    buffer: np.ndarray[Any, Any], name: str, dtype: np.dtype[Any], watch: Watch, owner: Any
) -> Array:
    """Returns a block's dynamic shared memory as an array of a dtype."""
    array = buffer[: buffer.size // dtype.itemsize * dtype.itemsize].view(dtype)
    return _on_memory(array, TrackedMemory(name, "shared", array, watch, owner))


def _on_memory(array: np.ndarray[Any, Any], memory: TrackedMemory) -> Array:
    view = array.view(Array)
    view.memory = memory
    if memory.space == "constant":
        view.flags.writeable = False
    return view


@functools.cache
def leaves(dtype: np.dtype[Any]) -> tuple[tuple[int, int], ...]:
    """Returns the offsets and bytes of the numbers in an element."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        count = int(np.prod(shape))
        parts = [(base, k * base.itemsize) for k in range(count)]
    elif dtype.fields is not None:
        parts = [(kind, start) for kind, start, *_ in dtype.fields.values()]
    else:
        return ((0, dtype.itemsize),)
    return tuple(
        (start + offset, nbytes) for kind, start in parts for offset, nbytes in leaves(kind)
    )
