"""Transfers and collectives of variables on GPUs, whose memory the coordinator cannot access.

values                    page-locked staging segment ── each rank copies its own ──> variables
collectives, "nccl"       from GPU to GPU
all_reduce, machines      by the relays, in place where variables are in mirrors, which cores have
collectives, "host"       download to the staging segment, collective there as on cores, upload
exchanges, "host"         download of the rows that travel to the staging segment, upload
"""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from synknumba._comm import DRIVERS
from synknumba._host.casting import fill
from synknumba._host.segment import Segment
from synknumba._ops.variable_layout import LeafLayout, StorageLayout
from synknumba._types import Array
from synknumba._variables.allocation import Allocation
from synknumba._variables.collective_plans import (
    Pair,
    Row,
    Run,
    Traffic,
    Work,
    access_in_place,
    describe,
    direct,
    operands_of,
    pairs_of,
)
from synknumba._wire.program import (
    Collective,
    HostArray,
    Reduced,
    Transfer,
    Transferred,
    next_number,
)
from synknumba._wire.sequence import RECORDED, SUCCESS, Access, Key
from synknumba._world.engine import Engine
from synknumba._world.failure import CallInfo
from synknumba._world.transport_setup import join

ALIGNMENT = 256
# of an array from which on machines combine it, instead of the coordinator
BETWEEN_BYTES = 64 << 10
BYTES_KEPT = 256 << 20  # of staging memory; a larger segment is freed after the call

# Dtypes, by NumPy's letters, of the arrays that machines combine; float16 is summed in float32, in
# one place.
_KINDS = {
    "sum": "fdFDbhilqBHILQ",
    "prod": "fdFDbhilqBHILQ",
    "avg": "fdFD",
    "min": "?efdbhilqBHILQ",
    "max": "?efdbhilqBHILQ",
}

_Arrays = tuple[Transferred, ...]


class StagingLayout:
    """Layout of the arrays in a staging segment that has yet to be allocated."""

    def __init__(self) -> None:
        self.nbytes = 0

    def place(self, dtype: Any, shape: tuple[int, ...], segment: int) -> HostArray:
        """Reserves space for one array, and returns its location."""
        start = self.nbytes
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        self.nbytes += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return HostArray(segment, np.dtype(dtype), shape, start)


@final
class GpuTraffic(Traffic):
    def __init__(self, world: Engine) -> None:
        super().__init__(world)
        self._staging = Segment(1)  # grows on demand and keeps its id

    # ---- values

    def deliver(
        self, storage: Allocation, values: Sequence[Row], *, without_halos: bool = False
    ) -> None:
        packing, places = StagingLayout(), {}
        for leaf, row in enumerate(values):
            dtype = storage.layout.leaf(leaf).dtype
            for value in row:
                if value is not None and (leaf, id(value)) not in places:
                    places[leaf, id(value)] = (
                        packing.place(dtype, value.shape, self._staging.id),
                        value,
                    )
        self._stage(packing)
        for host, value in places.values():
            fill(self._host(host), value)
        arrays = []
        for leaf, row in enumerate(values):
            hosts = tuple(None if value is None else places[leaf, id(value)][0] for value in row)
            firsts = (
                tuple(storage.layout.own(leaf, rank).start for rank in range(len(row)))
                if without_halos
                else ()
            )
            arrays.append(Transferred(storage.number, leaf, hosts, firsts))
        self._transfer(tuple(arrays), storage, up=True)
        self._let_go(packing)

    def fetch(self, storage: Allocation, places: Sequence[tuple[int, int]]) -> list[Array]:
        packing, hosts = StagingLayout(), []
        for leaf, rank in places:
            of = storage.layout.leaf(leaf)
            hosts.append(packing.place(of.dtype, of.shapes[rank], self._staging.id))
        self._stage(packing)
        ranks = range(self.world.world_size)
        arrays = tuple(
            Transferred(
                storage.number, leaf, tuple(host if holder == rank else None for holder in ranks)
            )
            for (leaf, rank), host in zip(places, hosts, strict=True)
        )
        self._transfer(arrays, storage, up=False)
        copies = [self._host(host).copy() for host in hosts]
        self._let_go(packing)
        return copies

    def _transfer(self, arrays: _Arrays, storage: Allocation, *, up: bool) -> None:
        key = ("transfer", up, arrays)
        run = self.known(key) or self.keep(key, self._install_transfer(arrays, up=up), [storage])
        run()

    def _install_transfer(self, arrays: _Arrays, *, up: bool) -> tuple[Run, tuple[int]]:
        label = "sending values" if up else "fetching values"
        return self.install(Transfer(next_number(), up, arrays), CallInfo(label))

    # ---- staging memory

    def _stage(self, packing: StagingLayout) -> None:
        if packing.nbytes > self._staging.size:
            self._staging.grow(packing.nbytes)
        self.world.attach([self._staging])

    def _host(self, host: HostArray) -> Array:
        return self._staging.array(host.dtype, host.shape, host.offset)

    def _let_go(self, packing: StagingLayout) -> None:
        """Frees a large staging segment, and drops all plans; the ranks drop their programs with
        the segment.
        """
        if packing.nbytes > BYTES_KEPT:
            self._staging.close()
            self._staging = Segment(1)
            self.forget_all()

    # ---- collectives

    def reduced(self, work: Work, storage: Allocation) -> list[Array]:
        layout = storage.layout
        target = Allocation(
            self.world,
            StorageLayout(tuple(_on_root(leaf, work.root) for leaf in layout.leaves), layout.flat),
        )
        self.collective(work, pairs_of(storage, target))()
        return self.fetch(target, [(leaf, work.root) for leaf in range(len(layout.leaves))])

    def plan(self, work: Work, pairs: Sequence[Pair]) -> tuple[Run, tuple[int, ...]]:
        join(self.world)
        if not DRIVERS[self.world.life.transport].in_shared_memory:
            return self.install(self._on_stream(work, pairs), describe(work, pairs))
        return self._staged_copies(pairs) if work.kind == "exchange" else self._staged(work, pairs)

    def _on_stream(self, work: Work, pairs: Sequence[Pair]) -> Collective:
        return Collective(
            next_number(),
            work.kind,
            tuple(operands_of(work, pairs)),
            work.op,
            work.root,
            self.world.life.transport,
        )

    def _staged_copies(self, pairs: Sequence[Pair]) -> tuple[Run, tuple[int, ...]]:
        """Plans an exchange in which the rows that travel go to the staging segment, and from
        there to their targets.
        """
        packing = StagingLayout()
        down, up = self._travelling(packing, pairs, self._staging.id)
        if not down:
            return _do_nothing, ()
        self._stage(packing)
        give, first = self._install_transfer(down, up=False)
        take, second = self._install_transfer(up, up=True)

        def run() -> None:
            give()
            take()

        return run, (*first, *second)

    def _travelling(
        self, packing: StagingLayout, pairs: Sequence[Pair], segment: int
    ) -> tuple[_Arrays, _Arrays]:
        """Returns the copies of an exchange to a staging segment, and from there to targets."""
        down: list[Transferred] = []
        up: list[Transferred] = []
        size = self.world.world_size
        for pair in pairs:
            of = pair.source.layout.leaf(pair.leaf)
            for copy in pair.source.layout.copies(pair.leaf):
                host = packing.place(of.dtype, (copy.count, *of.shapes[copy.source][1:]), segment)
                down.append(
                    Transferred(
                        pair.source.number,
                        pair.leaf,
                        _on(copy.source, host, size),
                        (copy.source_start,) * size,
                    )
                )
                up.append(
                    Transferred(
                        pair.target.number,
                        pair.leaf,
                        _on(copy.target, host, size),
                        (copy.target_start,) * size,
                    )
                )
        return tuple(down), tuple(up)

    def _staged(self, work: Work, pairs: Sequence[Pair]) -> tuple[Run, tuple[int, ...]]:
        if self._is_between_machines(work, pairs) and _are_mirrored(pairs):
            return self._one_after_the_other(self._in_mirrors(work, pairs), describe(work, pairs))
        packing = StagingLayout()
        gives = [self._places(packing, pair.source.layout.leaf(pair.leaf)) for pair in pairs]
        gets = [
            sources if pair.in_place else self._places(packing, pair.target.layout.leaf(pair.leaf))
            for pair, sources in zip(pairs, gives, strict=True)
        ]
        self._stage(packing)
        arrays = [
            pair.operand(sources, targets)
            for pair, sources, targets in zip(pairs, gives, gets, strict=True)
        ]
        root_gives = {work.root} if work.kind == "broadcast" else None
        root_gets = {work.root} if work.kind == "reduce" else None
        given_arrays = tuple(
            Transferred(pair.source.number, pair.leaf, _for_ranks(hosts, root_gives))
            for pair, hosts in zip(pairs, gives, strict=True)
        )
        got_arrays = tuple(
            Transferred(pair.target.number, pair.leaf, _for_ranks(hosts, root_gets))
            for pair, hosts in zip(pairs, gets, strict=True)
        )
        if self._is_between_machines(work, pairs):
            got_arrays = tuple(
                Transferred(pair.target.number, pair.leaf, hosts)
                for pair, hosts in zip(pairs, gives, strict=True)
            )
            programs = self._between_machines(work, given_arrays, got_arrays, gives)
            return self._one_after_the_other(programs, describe(work, pairs))
        down, first = self._install_transfer(given_arrays, up=False)
        middle, second = self.over_host(work, arrays, [self._staging], describe(work, pairs))
        up, third = self._install_transfer(got_arrays, up=True)

        def run() -> None:
            down()
            middle()
            up()

        return run, (*first, *second, *third)

    def _one_after_the_other(
        self, programs: Sequence[Transfer], info: CallInfo
    ) -> tuple[Run, tuple[int, ...]]:
        """Plans some programs; returns what `plan` does."""
        runs = [self.install(program, info)[0] for program in programs]

        def run() -> None:
            for run_part in runs:
                run_part()

        return run, tuple(program.number for program in programs)

    def _is_between_machines(self, work: Work, pairs: Sequence[Pair]) -> bool:
        """Whether machines combine arrays, each those of its ranks and then with each other,
        instead of the coordinator.

        Small arrays are combined in the coordinator, in the order of ranks.
        """
        if not self.world.spans_machines or work.kind != "all_reduce" or work.op not in _KINDS:
            return False
        leaves = [pair.source.layout.leaf(pair.leaf) for pair in pairs]
        plain = all(
            leaf.dtype.char in _KINDS[work.op] and leaf.dtype.isnative and leaf.uniform
            for leaf in leaves
        )
        return plain and sum(leaf.size(0) * leaf.dtype.itemsize for leaf in leaves) >= BETWEEN_BYTES

    def _between_machines(
        self, work: Work, down: _Arrays, up: _Arrays, hosts: Sequence[tuple[HostArray, ...]]
    ) -> list[Transfer]:
        """Returns the programs of such an all_reduce; ranks read the result where the first of
        their machine has written.
        """
        about = frozenset(array.variable for array in (*down, *up))
        first_of = self._firsts()
        up = tuple(
            array._replace(hosts=tuple(machine_hosts[first] for first in first_of))
            for array, machine_hosts in zip(up, hosts, strict=True)
        )
        return [
            Transfer(next_number(), up=False, arrays=down, stays=True),
            self._combined(work, hosts, about),
            Transfer(next_number(), up=True, arrays=up, stays=True),
        ]

    def _in_mirrors(self, work: Work, pairs: Sequence[Pair]) -> list[Transfer]:
        """Returns the programs of such an all_reduce of variables that relays reach, in place.

        The first rank of each machine has the result then; others, if there are any, copy it.
        """
        first_of = self._firsts()
        hosts = [
            tuple(pair.source.host(pair.leaf, rank) for rank in range(self.world.world_size))
            for pair in pairs
        ]
        combined = self._combined(work, hosts, frozenset(pair.source.number for pair in pairs))
        if len(set(first_of)) == len(first_of):
            return [combined]
        copies = (
            tuple(None if rank == first else places[first] for rank, first in enumerate(first_of))
            for places in hosts
        )
        up = tuple(
            Transferred(pair.target.number, pair.leaf, host_copies)
            for pair, host_copies in zip(pairs, copies, strict=True)
        )
        return [combined, Transfer(next_number(), up=True, arrays=up, stays=True)]

    def _firsts(self) -> list[int]:
        """Returns the first rank of each rank's machine."""
        return [first for _, first, after in self.world.machines for _ in range(first, after)]

    @staticmethod
    def _combined(
        work: Work, hosts: Sequence[tuple[HostArray, ...]], about: frozenset[int]
    ) -> Transfer:
        assert work.op is not None  # of a reduction
        reduced = tuple(Reduced(work.op, parts) for parts in hosts)
        return Transfer(next_number(), up=False, arrays=(), reduced=reduced, about=about)

    def programs(
        self, work: Work, pairs: Sequence[Pair], keys: frozenset[Key]
    ) -> list[tuple[int, list[Segment], Access]]:
        join(self.world)
        info = describe(work, pairs)
        if not DRIVERS[self.world.life.transport].in_shared_memory:
            program = self._on_stream(work, pairs)
            self.install(program, info)
            # the stream waits for other ranks
            return [(program.number, [], Access(keys, keys, SUCCESS | RECORDED))]
        if self._is_between_machines(work, pairs) and _are_mirrored(pairs):
            transfers = self._in_mirrors(work, pairs)
            for transfer in transfers:
                self.install(transfer, info)
            return [
                (transfer.number, [], access_in_place(work.kind, keys)) for transfer in transfers
            ]
        # of its own: the staging segment is freed after large transfers
        packing, segment = (
            StagingLayout(),
            Segment(1),
        )
        middle: list[Collective] = []
        places: list[tuple[HostArray, ...]] = []
        if work.kind == "exchange":
            down, up = self._travelling(packing, pairs, segment.id)
        else:
            layouts = [pair.source.layout.leaf(pair.leaf) for pair in pairs]
            places = [
                tuple(packing.place(of.dtype, shape, segment.id) for shape in of.shapes)
                for of in layouts
            ]
            down = up = tuple(
                Transferred(pair.source.number, pair.leaf, hosts)
                for pair, hosts in zip(pairs, places, strict=True)
            )
            middle = [
                self.host_program(
                    work, [p.operand(hosts, hosts) for p, hosts in zip(pairs, places, strict=True)]
                )
            ]
        if not down:
            return []
        segment.grow(max(packing.nbytes, 1))
        self.world.attach([segment], info)
        staged = frozenset({("staging", segment.id)})
        programs: list[Collective | Transfer] = [
            Transfer(next_number(), up=False, arrays=down),
            *middle,
            Transfer(next_number(), up=True, arrays=up),
        ]
        if middle and self._is_between_machines(work, pairs):
            programs = [*self._between_machines(work, down, up, places)]
        accesses = [Access(reads=keys, writes=staged), Access(writes=keys, remote_reads=staged)]
        accesses[1:1] = [Access(staged, staged, staged, staged)] * len(middle)
        installed = list(zip(programs, accesses, strict=True))
        for program_of, _ in installed:
            if isinstance(program_of, Collective) and self.world.spans_machines:
                self.world.life.own_programs[program_of.number] = direct(
                    work, program_of.arrays, [segment], self.alone
                )
            else:
                self.install(program_of, info)
        return [(program_of.number, [segment], access) for program_of, access in installed]

    def _places(self, packing: StagingLayout, of: LeafLayout) -> tuple[HostArray, ...]:
        return tuple(packing.place(of.dtype, shape, self._staging.id) for shape in of.shapes)


def _on_root(leaf: LeafLayout, root: int) -> LeafLayout:
    """Returns the layout of an array on the root alone, empty on other ranks; 0-d arrays, which
    are small, stay.
    """
    return LeafLayout(
        leaf.dtype,
        tuple(s if rank == root else (0,) * len(s) for rank, s in enumerate(leaf.shapes)),
    )


def _on(rank: int, host: HostArray, world_size: int) -> tuple[HostArray | None, ...]:
    return tuple(host if holder == rank else None for holder in range(world_size))


def _are_mirrored(pairs: Sequence[Pair]) -> bool:
    """Whether a collective in place has its arrays in memory that machines' relays reach."""
    return all(pair.in_place and pair.source.mirrored is not None for pair in pairs)


def _do_nothing() -> None:
    """Runs an exchange without copies: of a single rank that is not its own neighbour."""


def _for_ranks(hosts: Sequence[HostArray], ranks: set[int] | None) -> tuple[HostArray | None, ...]:
    return tuple(
        host if ranks is None or rank in ranks else None for rank, host in enumerate(hosts)
    )
