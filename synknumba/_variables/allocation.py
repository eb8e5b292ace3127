"""The memory of one variable on all ranks, as the coordinator knows it.

    on cores    one segment, a part for each rank: every rank, and the coordinator, can reach every part
    on GPUs     an allocation on each, known by its number alone

Its arrays have the dtypes and shapes of its layout for ever; a variable that gets other shapes gets other memory.
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

PART_ALIGNMENT = 4096  # a rank's part starts on a page of its own

_numbers = itertools.count()
_uses: dict[int, dict[Any, Callable[[], None]]] = {}  # what is to be forgotten with the memory of a number


@final
class Allocation:
    """Memory on all ranks of a world.

    Attributes:
        number: by which the ranks know it; never used again.
        layout: of its arrays.
        world: that it lives in.
        segment: that it lies in on cores; None on GPUs.
    """

    def __init__(self, world: World, layout: StorageLayout, carry: "Allocation | None" = None) -> None:
        """Makes it on all ranks; between the world's `begin` and `end`.

        Args:
            world: where.
            layout: of its arrays.
            carry: memory whose arrays are copied over where they have the same shape on a rank.
        """
        self.number = next(_numbers)
        self.layout = layout
        self.world = world
        self.segment: Segment | None = None
        self._starts: list[list[int]] = []  # of each rank's arrays in the segment; the last is that of `VECTOR`, which is −1
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
        """Has something called when the memory goes; it may be in a garbage collection, so it takes no lock.

        Args:
            key: of what is to be forgotten; of one key, the last callback is called.
            callback: forgets it.
        """
        _uses.setdefault(self.number, {})[key] = callback

    def host(self, leaf: int, rank: int) -> HostArray:
        """Where one rank's array lies; on cores."""
        assert self.segment is not None  # on GPUs nobody asks
        of = self.layout.leaf(leaf)
        return HostArray(self.segment.id, of.dtype, of.shapes[rank], self._starts[rank][leaf])

    def array(self, leaf: int, rank: int) -> Array:
        """One rank's array itself; on cores."""
        assert self.segment is not None  # on GPUs nobody asks
        host = self.host(leaf, rank)
        return self.segment.array(host.dtype, host.shape, host.offset)

    def end(self, leaf: int, places: Sequence[HostArray] = ()) -> tuple[Any, End]:
        """One array as a collective sees it: its dtype there, and where it is on each rank.

        Args:
            leaf: which array, or `VECTOR`.
            places: of each rank's copy in other memory that all have mapped, if it is about those.
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
    """Where each rank's part of a segment starts, and the bytes of all."""
    return list(itertools.accumulate((-(-size // PART_ALIGNMENT) * PART_ALIGNMENT for size in sizes), initial=0))


def not_in_use(numbers: Iterable[int], key: Any) -> None:
    """Notes that something is forgotten, whatever becomes of the memory that it was about."""
    for number in numbers:
        _uses.get(number, {}).pop(key, None)


def _release(world: "weakref.ref[World]", number: int) -> None:
    for callback in list(_uses.pop(number, {}).values()):
        callback()
    alive = world()
    if alive is not None:
        alive.forget("variable", number)
