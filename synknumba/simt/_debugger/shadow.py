"""Which accesses to an element nothing orders: a shadow of every element that more than one thread can reach.

Two accesses by different threads race if one of them writes and nothing puts the one before the other. They are in order if

- both threads are of one block and a block barrier lies between: the block's epoch has grown;
- both are of one warp and a `syncwarp` lies between, directly or through other lanes: see `Thread.seen`;
- a grid barrier lies between: the launch's epoch has grown;
- the first thread called `threadfence` after its access and the second has used an atomic: so threads hand on data through a
  lock or a counter, and which atomic belongs to which fence is not followed.

The last rule is wider for threads of different blocks: if the kernel calls `threadfence` at all, blocks order themselves in
ways that cannot be followed, and nothing is said of them. Atomic operations do not race with each other. Writes of the same
value do not either: whichever comes last, the element holds that value.

For each element the shadow keeps the last write and the last atomic operation of two threads, and a few readers since the
write.
"""

import sys
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any, Final, NamedTuple, Protocol

from synknumba.simt._debugger.run import DebugLaunch, Thread
from synknumba.simt._debugger.source import MARK

# More readers than this of one element are forgotten; the first ones are enough to find a write that races with all of them.
MOST_READERS: Final = 8


class Past(NamedTuple):
    """An access that has been made.

    Attributes:
        thread: by which thread.
        what: "read", "write" or "atomic".
        epoch: the block's epoch then.
        grid_epoch: the launch's epoch then.
        clock: the thread's clock then.
        fences: how often the thread had called `threadfence` then.
        code: the function it was made in.
        line: the line.
    """

    thread: Thread
    what: str
    epoch: int
    grid_epoch: int
    clock: int
    fences: int
    code: CodeType
    line: int


class Cell:
    """What is known of one element.

    Attributes:
        write: the last plain write.
        other_write: the last one by another thread than that of `write`, of the same value.
        atomic: the last atomic operation.
        other_atomic: the last atomic operation by another thread than that of `atomic`.
        reads: reads since the last write.
    """

    __slots__ = ("atomic", "other_atomic", "other_write", "reads", "write")

    def __init__(self) -> None:
        self.write: Past | None = None
        self.other_write: Past | None = None
        self.atomic: Past | None = None
        self.other_atomic: Past | None = None
        self.reads: list[Past] = []


class Report(Protocol):
    """Is told of two accesses that race."""

    def __call__(self, address: int, before: Past, now: Past) -> None: ...


def present(launch: DebugLaunch, what: str) -> Past:
    """The access that the running thread makes now."""
    thread = launch.current
    frame: Any = sys._getframe(2)  # noqa: SLF001  # Python has no public name for it
    while MARK not in frame.f_globals:
        frame = frame.f_back
    return Past(thread, what, thread.block.epoch, launch.epoch, thread.clock, thread.fences, frame.f_code, frame.f_lineno)


class Shadow:
    """Finds races among the accesses of a launch.

    Args:
        blocks_order_themselves: whether the kernel calls `threadfence`.
    """

    def __init__(self, *, blocks_order_themselves: bool) -> None:
        self._blocks_order_themselves = blocks_order_themselves

    def races(self, before: Past, now: Past) -> bool:
        """Whether nothing orders an earlier access before the present one."""
        if before.thread is now.thread:
            return False
        first, second = before.thread, now.thread
        if first.block is not second.block:
            return before.grid_epoch == now.grid_epoch and not self._blocks_order_themselves
        if before.epoch != now.epoch:
            return False
        same_warp = first.number // len(first.seen) == second.number // len(second.seen)
        if same_warp and second.seen[first.lane] >= before.clock:
            return False
        return not (first.fences > before.fences and second.atomics)

    def read(self, cells: dict[int, Cell], address: int, now: Past, report: Report) -> None:
        """The running thread reads an element."""
        cell = _cell(cells, address)
        self._first(address, (cell.write, cell.other_write, cell.atomic, cell.other_atomic), now, report)
        reads = cell.reads
        for place, before in enumerate(reads):
            if before.thread is now.thread:
                reads[place] = now
                return
        if len(reads) >= MOST_READERS:
            oldest = reads[0]
            if oldest.thread.block is now.thread.block and oldest.epoch == now.epoch:
                return
            if oldest.thread.block is not now.thread.block and not self._blocks_order_themselves:
                return
            del reads[0]
        reads.append(now)

    def write(
        self, cells: dict[int, Cell], addresses: Iterable[int], now: Past, report: Report, same: Callable[[], bool]
    ) -> None:
        """The running thread writes elements; `same` tells whether they hold the new values already."""
        for address in addresses:
            cell = _cell(cells, address)
            rival = next((past for past in (cell.write, cell.other_write) if past and self.races(past, now)), None)
            if rival is not None and not same():
                report(address, rival, now)
                rival = None
            else:
                self._first(address, (cell.atomic, cell.other_atomic, *cell.reads), now, report)
            cell.write, cell.other_write = now, rival
            cell.reads.clear()

    def atomic(self, cells: dict[int, Cell], address: int, now: Past, report: Report) -> None:
        """The running thread changes an element by an atomic operation."""
        cell = _cell(cells, address)
        self._first(address, (cell.write, cell.other_write, *cell.reads), now, report)
        if cell.atomic is not None and cell.atomic.thread is not now.thread:
            cell.other_atomic = cell.atomic
        cell.atomic = now

    def _first(self, address: int, candidates: Iterable[Past | None], now: Past, report: Report) -> None:
        for before in candidates:
            if before is not None and self.races(before, now):
                report(address, before, now)
                return


def _cell(cells: dict[int, Cell], address: int) -> Cell:
    cell = cells.get(address)
    if cell is None:
        cell = cells[address] = Cell()
    return cell
