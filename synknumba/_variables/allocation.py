"""The memory of one variable on all ranks, as the coordinator refers to it.

    cores    one shared-memory segment with a part for each rank: every rank and the coordinator can access every part
    GPUs     one allocation per GPU, which the coordinator knows by its number only

An allocation never changes its layout: a variable that gets other shapes gets a new allocation.
"""

import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import numpy as np

from synknumba._host.segment import Segment
from synknumba._ops.variable_layout import StorageLayout, line_type
from synknumba._types import Array
from synknumba._wire.messages import Hold
from synknumba._wire.program import End, HostArray
from synknumba._world.world import World

PART_ALIGNMENT = 4096  # bytes; each rank's part starts on a page of its own

_numbers = itertools.count()
_uses: dict[int, dict[Any, Callable[[], None]]] = {}  # callbacks by key, for each allocation number


@final
class Allocation:
    """Memory on all ranks of a world.

    Attributes:
        number: unique id, by which the ranks identify the memory; never reused.
        layout: layout of its arrays.
        world: world whose ranks hold the memory.
        segment: shared-memory segment that contains all parts, on cores; None on GPUs.
    """

    def __init__(self, world: World, layout: StorageLayout, carry: "Allocation | None" = None) -> None:
        """Allocates memory on all ranks; called between the world's `begin` and `end`.

        Args:
            world: world whose ranks allocate.
            layout: layout of the arrays.
            carry: earlier memory; each rank copies those of its arrays whose shape on that rank is unchanged.
        """
        self.number = next(_numbers)
        self.layout = layout
        self.world = world
        self.segment: Segment | None = None
        self._starts: list[list[int]] = []  # by rank: offset of each array; the last is that of `VECTOR`, −1
        hosts: tuple[HostArray, ...] = ()
        if world.traits.shares_memory:
            places = [layout.place(rank) for rank in range(world.world_size)]
            *parts, size = _parts([nbytes for _, nbytes in places])
            self.segment = Segment(size)
            world.attach([self.segment])
            self._starts = [[*(part + at for at in offsets), part] for part, (offsets, _) in zip(parts, places, strict=True)]
            hosts = tuple(
                HostArray(self.segment.id, np.dtype(np.uint8), (nbytes,), part)
                for part, (_, nbytes) in zip(parts, places, strict=True)
            )
        weakref.finalize(self, _release, weakref.ref(world), self.number).atexit = False
        world.command(Hold(self.number, layout, hosts, -1 if carry is None else carry.number))

    def when_gone(self, key: Any, callback: Callable[[], None]) -> None:
        """Registers a callback that runs when the memory is freed.

        It may run inside a garbage collection, so it must not take a lock.

        Args:
            key: identifies the callback; registering another one under the same key replaces it.
            callback: removes a cache entry that refers to the memory.
        """
        _uses.setdefault(self.number, {})[key] = callback

    def host(self, leaf: int, rank: int) -> HostArray:
        """Returns the location of one rank's array in the segment; on cores only."""
        assert self.segment is not None  # called on cores only
        of = self.layout.leaf(leaf)
        return HostArray(self.segment.id, of.dtype, of.shapes[rank], self._starts[rank][leaf])

    def array(self, leaf: int, rank: int) -> Array:
        """Returns a view of one rank's array; on cores only."""
        assert self.segment is not None  # called on cores only
        host = self.host(leaf, rank)
        return self.segment.array(host.dtype, host.shape, host.offset)

    def end(self, leaf: int, places: Sequence[HostArray] = ()) -> tuple[Any, End]:
        """Returns one array as an operand of a collective: its transfer dtype, and its location on every rank.

        Args:
            leaf: index of the array, or `VECTOR`.
            places: location of each rank's copy in a segment that all processes have mapped, if the collective works on copies;
                ignored on cores.
        """
        of, ranks = self.layout.leaf(leaf), range(self.world.world_size)
        dtype = line_type(of.dtype, 0)[0]
        counts = tuple(line_type(of.dtype, of.size(rank))[1] for rank in ranks)
        if self.segment is not None:
            places = [self.host(leaf, rank) for rank in ranks]
        elif not places:
            return dtype, End(self.number, leaf, counts)
        hosts = tuple(HostArray(p.segment, dtype, (n,), p.offset) for p, n in zip(places, counts, strict=True))
        return dtype, End(self.number, leaf, counts, hosts)


def _parts(sizes: Sequence[int]) -> list[int]:
    """Returns the offset of each rank's part in a segment, followed by the total size in bytes."""
    return list(itertools.accumulate((-(-size // PART_ALIGNMENT) * PART_ALIGNMENT for size in sizes), initial=0))


def not_in_use(numbers: Iterable[int], key: Any) -> None:
    """Removes callbacks registered with `Allocation.when_gone`, without running them.

    Args:
        numbers: numbers of the allocations, which may have been freed already.
        key: key of the callbacks.
    """
    for number in numbers:
        _uses.get(number, {}).pop(key, None)


def _release(world: "weakref.ref[World]", number: int) -> None:
    for callback in list(_uses.pop(number, {}).values()):
        callback()
    alive = world()
    if alive is not None:
        alive.forget("variable", number)
