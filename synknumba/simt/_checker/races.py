"""Race detection with shadow memory: the recent accesses to the bytes of shared and global memory.

For kernels in Python; `runtime.record` is the same rule in compiled code, and changes with it.

Two accesses by different threads race if at least one writes and neither happens before the other.
They are ordered if

- both threads belong to one block and a block barrier lies between: the block's epoch has
  increased;
- both belong to one warp and a `syncwarp` lies between, directly or through other lanes: see
  `Thread.seen`;
- a grid barrier lies between: the launch's epoch has increased;
- the first thread called `threadfence` after its access and the second has used an atomic: threads
  pass data through a lock or
  counter this way. Which atomic pairs with which fence is not tracked.

Between blocks the last rule is weaker still: if the kernel calls `threadfence` anywhere, blocks may
synchronise in ways that cannot be tracked, and races between blocks are not reported. Atomic
operations do not race with each other. Writes of equal values do not race either, as their order
does not affect the result.

For each piece of memory the shadow keeps the last write and the last atomic operation, of two
threads each, and up to 8 readers since the last write. A piece is an element, or less where
accesses of other types or arrays that overlap divide the elements.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Final, NamedTuple, TypeAlias

from synknumba.simt._python.findings import user_frame
from synknumba.simt._python.run import DebugLaunch, Thread

# Bytes of the largest number, complex128.
LARGEST_NUMBER: Final = 16
# Readers kept per piece; the first ones suffice to find a write that races with all readers.
MOST_READERS: Final = 8


class Past(NamedTuple):
    """A recorded access, and how far the thread, its block and the launch were."""

    thread: Thread
    what: str  # "read", "write" or "atomic"
    epoch: int  # of the block
    grid_epoch: int  # of the launch
    clock: int  # of the thread
    fences: int  # `threadfence` calls of the thread before the access
    code: CodeType  # of the accessing function
    line: int


@dataclass(slots=True)
class Cell:
    """Shadow state of one piece of memory."""

    write: Past | None = None  # the last plain write
    other_write: Past | None = (
        None  # an unordered write of the same value by another thread before `write`, if any
    )
    atomic: Past | None = None  # the last atomic operation
    other_atomic: Past | None = (
        None  # the last atomic operation by another thread than that of `atomic`
    )
    reads: list[Past] = field(default_factory=list)  # since the last write

    def copy(self) -> "Cell":
        """Returns the state of a part of the piece."""
        return replace(self, reads=[*self.reads])


class Cells:
    """Shadow of memory in which accesses may overlap: a cell for each piece that has been accessed.

    All pieces have the largest size, a power of two, that divides addresses and sizes of all
    accesses so far. An access that needs smaller ones splits them all, as a view of another dtype
    does.
    """

    __slots__ = ("_cells", "_size")

    def __init__(self) -> None:
        self._cells: dict[int, Cell] = {}
        self._size = LARGEST_NUMBER

    def at(self, address: int, nbytes: int) -> list[Cell]:
        """Returns the cells of the pieces at an address, of this many bytes."""
        if (address | nbytes) & (self._size - 1):
            self._split((address | nbytes) & -(address | nbytes))
        cells, size = self._cells, self._size
        if nbytes == size:
            return [cells.get(address) or cells.setdefault(address, Cell())]
        pieces = range(address, address + nbytes, size)
        return [cells.get(piece) or cells.setdefault(piece, Cell()) for piece in pieces]

    def _split(self, size: int) -> None:
        parts = range(0, self._size, size)
        self._cells = {
            piece + part: cell.copy() for piece, cell in self._cells.items() for part in parts
        }
        self._size = size


Report: TypeAlias = Callable[[int, Past, Past], None]
"""Callback for a pair of racing accesses: address of the present one, earlier and present
access.
"""


def present(launch: DebugLaunch, what: str) -> Past:
    """Returns the record of an access by the running thread at its current line."""
    thread, frame = launch.current, user_frame()
    return Past(
        thread,
        what,
        thread.block.epoch,
        launch.epoch,
        thread.clock,
        thread.fences,
        frame.f_code,
        frame.f_lineno,
    )


class Shadow:
    """Finds races among the accesses of a launch.

    Args:
        blocks_order_themselves: whether the kernel calls `threadfence`.
    """

    def __init__(self, *, blocks_order_themselves: bool) -> None:
        self._blocks_order_themselves = blocks_order_themselves

    def races(self, before: Past, now: Past) -> bool:
        """Returns whether an earlier access is unordered with the present one."""
        first, second = before.thread, now.thread
        if first is second:
            return False
        if first.block is not second.block:
            return before.grid_epoch == now.grid_epoch and not self._blocks_order_themselves
        if before.epoch != now.epoch:
            return False
        same_warp = first.number // len(first.seen) == second.number // len(second.seen)
        if same_warp and second.seen[first.lane] >= before.clock:
            return False
        return not (first.fences > before.fences and second.atomics)

    def access(
        self,
        cells: Cells,
        numbers: Iterable[tuple[int, int]],
        now: Past,
        report: Report,
        same: Callable[[], bool],
    ) -> None:
        """Records an access by the running thread, and reports at most one race for each number.

        Args:
            cells: the shadow of the memory.
            numbers: the address and bytes of each number.
            now: the access.
            report: called for a race.
            same: returns whether a write would change nothing.
        """
        for address, nbytes in numbers:
            rival = None
            for cell in cells.at(address, nbytes):
                rival = self._record(cell, now, same) or rival
            if rival is not None:
                report(address, rival, now)

    def _record(self, cell: Cell, now: Past, same: Callable[[], bool]) -> Past | None:
        """Records an access to a piece, and returns an earlier one that it races with, if any."""
        if now.what == "read":
            rival = self._first((cell.write, cell.other_write, cell.atomic, cell.other_atomic), now)
            self._read(cell.reads, now)
            return rival
        if now.what == "write":
            return self._write(cell, now, same)
        rival = self._first((cell.write, cell.other_write, *cell.reads), now)
        if cell.atomic is not None and cell.atomic.thread is not now.thread:
            cell.other_atomic = cell.atomic
        cell.atomic = now
        return rival

    def _read(self, reads: list[Past], now: Past) -> None:
        for place, before in enumerate(reads):
            if before.thread is now.thread:
                reads[place] = now
                return
        if len(reads) >= MOST_READERS:
            oldest = reads[0]
            is_same_block = oldest.thread.block is now.thread.block
            if (is_same_block and oldest.epoch == now.epoch) or not (
                is_same_block or self._blocks_order_themselves
            ):
                return
            del reads[0]
        reads.append(now)

    def _write(self, cell: Cell, now: Past, same: Callable[[], bool]) -> Past | None:
        equal, rival = self._first((cell.write, cell.other_write), now), None
        if equal is not None and not same():
            rival, equal = equal, None
        else:
            rival = self._first((cell.atomic, cell.other_atomic, *cell.reads), now)
        cell.write, cell.other_write = now, equal
        cell.reads.clear()
        return rival

    def _first(self, candidates: Iterable[Past | None], now: Past) -> Past | None:
        for before in candidates:
            if before is not None and self.races(before, now):
                return before
        return None
