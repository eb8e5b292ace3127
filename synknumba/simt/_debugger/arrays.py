"""The arrays that a kernel running in Python sees.

An `Array` is an ordinary `ndarray` on the same memory, so that `p x` in a debugger, `.shape`, `.T` and slices are NumPy's own.
It only tells a `Watch` of each access to elements, and of an index outside of the array. What a view shows is found by its
address, so views and slices need no bookkeeping.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from synknumba.simt._debugger.arithmetic import convert

# Fills new shared and local memory, as it holds anything at all on a GPU: NaN in floats, and this byte elsewhere.
POISON: Final = 0xCD


class Watch(ABC):
    """What is told of the accesses to arrays."""

    @abstractmethod
    def outside(self, array: "Array", index: Any, what: str) -> None:
        """An index is outside of the array; `what` is "read" or "write". It raises, or the access is left out."""

    def read(self, array: "Array", index: Any) -> None:
        """An element, or a part of the array, is read."""

    def write(self, array: "Array", index: Any, value: Any) -> None:
        """An element, or a part of the array, is about to be written; the index is within the array."""

    def atomic(self, array: "Array", index: Any) -> None:
        """An element is about to be changed by an atomic operation."""


class TrackedMemory:
    """One piece of memory: an argument's, a shared array's or a local array's.

    Attributes:
        name: what the user calls it.
        space: "global", "shared", "local" or "constant".
        array: the whole array.
        watch: what is told of accesses.
        owner: the block of a shared array, the thread of a local one.
        written: the addresses of a local array that have been written to, if someone watches.
        leaf_size: how many bytes an access to one of its numbers touches.
        low: the address of its first byte.
        high: the address behind its last byte.
    """

    def __init__(self, name: str, space: str, array: np.ndarray[Any, Any], watch: Watch, owner: Any = None) -> None:
        self.name, self.space, self.array, self.watch, self.owner = name, space, array, watch, owner
        self.written: set[int] = set()
        # Of an array of records the parts may be of any size; their first bytes are enough.
        self.leaf_size = 1 if array.dtype.names else array.dtype.itemsize
        self.low, self.high = np.lib.array_utils.byte_bounds(array)

    def index_of(self, address: int) -> tuple[int, ...]:
        """The index of the element at an address."""
        offset = address - self.array.__array_interface__["data"][0]
        index = [0] * self.array.ndim
        # From the axis of the largest step down; a negative step counts from the axis' other end.
        steps = self.array.strides
        offset -= sum(step * (size - 1) for step, size in zip(steps, self.array.shape, strict=True) if step < 0)
        for axis in sorted(range(self.array.ndim), key=lambda axis: -abs(steps[axis])):
            if steps[axis]:
                index[axis], offset = divmod(offset, abs(steps[axis]))
            if steps[axis] < 0:
                index[axis] = self.array.shape[axis] - 1 - index[axis]
        return tuple(index)


class Array(np.ndarray):
    """An array, or a view of one, in a kernel that runs in Python."""

    memory: TrackedMemory
    _address: int | None

    def __array_finalize__(self, source: Any) -> None:
        self._address = None
        if isinstance(source, Array):
            self.memory = source.memory

    @property
    def address(self) -> int:
        """The address of the first element."""
        if self._address is None:
            self._address = self.__array_interface__["data"][0]
        return self._address  # type: ignore[return-value]

    def __iter__(self) -> Iterator[Any]:
        # Python's own asks for ever higher indices until one is an error.
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        try:
            value = super().__getitem__(index)
        except IndexError:
            if not is_outside(self, index):
                raise
            self.memory.watch.outside(self, index, "read")
            return nothing(self.dtype)
        if isinstance(value, np.void):
            whole = index if isinstance(index, tuple) else (index,)
            return Record(super().__getitem__((*whole, ...)))  # type: ignore[arg-type]
        if not isinstance(value, np.ndarray):
            self.memory.watch.read(self, index)
        return value

    def __setitem__(self, index: Any, value: Any) -> None:
        value = plain(value, self.dtype)
        if is_outside(self, index):
            self.memory.watch.outside(self, index, "write")
            return
        self.memory.watch.write(self, index, value)
        super().__setitem__(index, value)


class Record:
    """One element of an array of records, its fields as attributes and as items."""

    __slots__ = ("_cell",)
    _cell: Array

    def __init__(self, cell: Array) -> None:
        object.__setattr__(self, "_cell", cell)

    def __getitem__(self, name: Any) -> Any:
        cell = self._cell
        part = np.ndarray.__getitem__(cell, cell.dtype.names[name] if isinstance(name, int) else name)  # type: ignore[index]
        return part if part.ndim else part[()]

    def __setitem__(self, name: Any, value: Any) -> None:
        cell = self._cell
        part = np.ndarray.__getitem__(cell, cell.dtype.names[name] if isinstance(name, int) else name)  # type: ignore[index]
        part[...] = value

    def __getattr__(self, name: str) -> Any:
        if name not in (self._cell.dtype.names or ()):
            raise AttributeError(f"a record of {self._cell.memory.name} has no field {name!r}; it has {self._cell.dtype.names}")
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in (self._cell.dtype.names or ()):
            raise AttributeError(f"a record of {self._cell.memory.name} has no field {name!r}; it has {self._cell.dtype.names}")
        self[name] = value

    def __repr__(self) -> str:
        return repr(np.asarray(self._cell)[()])

    def value(self) -> Any:
        """A copy of the record."""
        self._cell.memory.watch.read(self._cell, ())
        return np.asarray(self._cell).copy()[()]


def plain(value: Any, dtype: np.dtype[Any]) -> Any:
    """A value as it is stored into an array of a dtype; integers wrap around, as in C."""
    if isinstance(value, Record):
        return value.value()
    if isinstance(value, Array):
        value.memory.watch.read(value, ...)
    elif type(value) is int and dtype.kind in "iu":
        return convert(value, dtype.type)
    return value


def is_outside(array: np.ndarray[Any, Any], index: Any) -> bool:
    """Whether an integer of the index is outside of its axis. Indices from -n to -1 count from the end, as Numba has it."""
    parts = index if isinstance(index, tuple) else (index,)
    axis = 0
    for place, part in enumerate(parts):
        if part is Ellipsis:
            axis = array.ndim - sum(later is not None for later in parts[place + 1 :])
        elif part is not None and axis < array.ndim:
            if isinstance(part, (int, np.integer)) and not -array.shape[axis] <= part < array.shape[axis]:
                return True
            axis += 1
    return False


def nothing(dtype: np.dtype[Any]) -> Any:
    """What an access outside of an array reads, if the run goes on."""
    return np.zeros(1, dtype)[0]


def wrap(value: Any, name: str, space: str, watch: Watch) -> Any:
    """An argument, or a constant, as the kernel sees it."""
    value = getattr(value, "_ary", value)  # an array of Numba's CUDA simulator
    if isinstance(value, np.ndarray):
        return _on_memory(value, TrackedMemory(name, space, np.asarray(value), watch))
    if isinstance(value, np.void):
        # The same memory, which the kernel may write to, whatever NumPy says of scalars.
        interface = value.__array_interface__
        interface["data"] = (interface["data"][0], False)
        cell = np.asarray(SimpleNamespace(__array_interface__=interface, owner=value))
        return Record(_on_memory(cell, TrackedMemory(name, space, cell, watch)))
    if isinstance(value, tuple):
        names = getattr(value, "_fields", range(len(value)))
        parts = [
            wrap(part, f"{name}.{key}" if isinstance(key, str) else f"{name}[{key}]", space, watch)
            for key, part in zip(names, value, strict=True)
        ]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def allocate(name: str, space: str, shape: Any, dtype: np.dtype[Any], watch: Watch, owner: Any) -> Array:
    """A new shared or local array."""
    array: np.ndarray[Any, Any] = np.empty(shape, dtype)
    if dtype.kind in "fc":
        array.fill(np.nan)
    elif array.size:
        np.ndarray(array.nbytes, np.uint8, array.data)[...] = POISON
    return _on_memory(array, TrackedMemory(name, space, array, watch, owner))


def carve(buffer: np.ndarray[Any, Any], name: str, dtype: np.dtype[Any], watch: Watch, owner: Any) -> Array:
    """The dynamic shared memory of a block, as an array of a dtype."""
    array = buffer[: buffer.size // dtype.itemsize * dtype.itemsize].view(dtype)
    return _on_memory(array, TrackedMemory(name, "shared", array, watch, owner))


def _on_memory(array: np.ndarray[Any, Any], memory: TrackedMemory) -> Array:
    made = array.view(Array)
    made.memory = memory
    if memory.space == "constant":
        made.flags.writeable = False
    return made
