"""The memory of one variable on all ranks, as the coordinator refers to it.

    cores              one shared-memory segment with a part for each rank: every rank and the coordinator can access every part
    cores, machines    one on each machine, with parts for its own ranks, which they and the machine's relay can access
    GPUs               one allocation per GPU, which the coordinator knows by its number only

An allocation never changes its layout: a variable that gets other shapes gets a new allocation.
"""  # noqa: E501

import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, final

import numpy as np

from synknumba._host.deaths import when_gone
from synknumba._host.segment import Segment
from synknumba._ops.variable_layout import StorageLayout, line_type
from synknumba._types import Array
from synknumba._wire.messages import Hold
from synknumba._wire.program import End, HostArray
from synknumba._world.engine import Engine
from synknumba._world.failure import calling

PART_ALIGNMENT = 4096  # bytes; each rank's part starts on a page of its own

_numbers = itertools.count()
_uses: dict[int, dict[Any, Callable[[], None]]] = {}  # callbacks by key, for each allocation number


@final
class Allocation:
    """Memory on all ranks of a world."""

    def __init__(
        self, world: Engine, layout: StorageLayout, carry: "Allocation | None" = None
    ) -> None:
        """Allocates memory on all ranks; called between the world's `begin` and `end`.

        From the memory `carry`, each rank copies those of its arrays whose shape on that rank is
        unchanged.
        """
        self.number = next(_numbers)  # by which the ranks identify the memory; never reused
        self.layout = layout
        self.world = world
        self.life = world.life  # a world that starts its ranks again begins another one
        # contains all parts; None on GPUs, and on several machines
        self.segment: Segment | None = None
        # on cores of several machines: contains the parts of this machine's ranks
        self.mirrored: Segment | None = None
        # by rank: offset of each array; the last is that of `VECTOR`, −1
        self._starts: list[list[int]] = []
        hosts: tuple[HostArray, ...] = ()
        if world.traits.shares_memory:
            hosts, self.segment = self._placed([(0, world.world_size)])
        elif world.mirrors_variables:
            spans = [(first, after) for _, first, after in world.machines]
            hosts, self.mirrored = self._placed(spans)
        when_gone(self, partial(_release, weakref.ref(world), self.number))
        carried = -1
        if carry is not None:
            carried = carry.number
        world.command(Hold(self.number, layout, hosts, carried), info=calling())

    def _placed(self, machines: Sequence[tuple[int, int]]) -> tuple[tuple[HostArray, ...], Segment]:
        """Makes the segment, and returns with it each rank's part, at the same place in the segment
        of the rank's machine.

        Args:
            machines: the ranks that share a segment, as (first, one after the last).
        """
        parts: list[tuple[int, int]] = []  # first byte, bytes
        size = 0
        for first, after in machines:
            at = 0
            for rank in range(first, after):
                offsets, nbytes = self.layout.place(rank)
                parts.append((at, nbytes))
                self._starts.append([at + offset for offset in (*offsets, 0)])
                at += -(-nbytes // PART_ALIGNMENT) * PART_ALIGNMENT
            size = max(size, at)
        segment = Segment(size)
        self.world.attach([segment])
        uint8 = np.dtype(np.uint8)
        hosts = tuple(HostArray(segment.id, uint8, (nbytes,), at) for at, nbytes in parts)
        return hosts, segment

    @property
    def is_uniform(self) -> bool:
        """Whether each array has one shape on all ranks."""
        return all(leaf.uniform for leaf in self.layout.leaves)

    def lives_in(self, world: Engine | None) -> bool:
        """Returns whether the ranks of a world, as last started, have the memory."""
        return self.world is world and self.life is world.life

    def when_gone(self, key: Any, callback: Callable[[], None]) -> None:
        """Registers a callback, in place of an earlier one with the same key, that runs when the
        memory is freed.

        It may run in any thread, so it must not take a lock.
        """
        _uses.setdefault(self.number, {})[key] = callback

    def host(self, leaf: int, rank: int) -> HostArray:
        """Returns the location of one rank's array in the segment, that of the rank's machine;
        on cores only.
        """
        segment = self.segment or self.mirrored
        assert segment is not None  # called on cores only
        of = self.layout.leaf(leaf)
        return HostArray(segment.id, of.dtype, of.shapes[rank], self._starts[rank][leaf])

    def hosts(self, leaf: int) -> tuple[HostArray, ...]:
        """Returns the location of each rank's array, as `host`."""
        return tuple(self.host(leaf, rank) for rank in range(self.world.world_size))

    def array(self, leaf: int, rank: int) -> Array:
        """Returns a view of one rank's array; on cores of one machine only."""
        assert self.segment is not None
        host = self.host(leaf, rank)
        return self.segment.array(host.dtype, host.shape, host.offset)

    def arrays(self, rank: int) -> list[Array]:
        """Returns views of all arrays of one rank; on cores of one machine only."""
        return [self.array(leaf, rank) for leaf in range(len(self.layout.leaves))]

    def own(self, leaf: int, rank: int) -> Array:
        """Returns a view of one rank's own rows of an array, of at least one dimension; on cores
        of one machine only.
        """
        return self.array(leaf, rank)[slice(*self.layout.own(leaf, rank))]

    def end(self, leaf: int, places: Sequence[HostArray] = ()) -> tuple[Any, End]:
        """Returns one array, or `VECTOR`, as an operand of a collective: its transfer dtype, and
        its location on every rank.

        If the collective works on copies, `places` are their locations in a segment that all
        processes have mapped; ignored on cores of one machine.
        """
        of, ranks = self.layout.leaf(leaf), range(self.world.world_size)
        dtype = line_type(of.dtype, 0)[0]
        counts = tuple(line_type(of.dtype, of.size(rank))[1] for rank in ranks)
        if self.segment is not None:
            places = self.hosts(leaf)
        elif not places:
            return dtype, End(self.number, leaf, counts)
        hosts = tuple(
            HostArray(place.segment, dtype, (count,), place.offset)
            for place, count in zip(places, counts, strict=True)
        )
        return dtype, End(self.number, leaf, counts, hosts)


def not_in_use(numbers: Iterable[int], key: Any) -> None:
    """Removes callbacks of `Allocation.when_gone`, without running them, from allocations that
    may have been freed already.
    """
    for number in numbers:
        _uses.get(number, {}).pop(key, None)


def _release(world: "weakref.ref[Engine]", number: int) -> None:
    for callback in list(_uses.pop(number, {}).values()):
        callback()
    alive = world()
    if alive is not None:
        alive.forget("variable", number)
