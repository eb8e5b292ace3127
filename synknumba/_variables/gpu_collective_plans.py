"""Transfers and collectives of variables on GPUs, whose memory the coordinator cannot access.

values                    page-locked staging segment ── each rank copies its own ──> variables
collectives, "nccl"       from GPU to GPU
all_reduce, machines      by the relays, in place where variables are in mirrors, which cores have
collectives, "host"       download to the staging segment, collective there as on cores, upload
copies, "host"            download of the rows that travel to the staging segment, upload
"""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias, final

import numpy as np

from synknumba._comm import DRIVERS, on_rank
from synknumba._host.casting import fill
from synknumba._host.segment import Segment
from synknumba._ops.variable_layout import LeafLayout, StorageLayout
from synknumba._types import Array, Shape
from synknumba._variables.allocation import Allocation
from synknumba._variables.collective_plans import (
    CollectiveSpec,
    Endpoints,
    Program,
    Row,
    Step,
    VariableTransfers,
    access_in_place,
    describe,
    pairs_of,
    program_in_place,
    program_of,
)
from synknumba._variables.kept_values import copies_of
from synknumba._wire.program import HostArray, Reduced, Transfer, Transferred, next_number
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

_SENDING, _FETCHING = CallInfo("sending values"), CallInfo("fetching values")

Hosts: TypeAlias = tuple[HostArray | None, ...]  # by rank


class Staging:
    """Copies of arrays to a staging segment, which grows to hold them all, and back from it."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.nbytes = 0
        self._down: list[Transferred] = []
        self._up: list[Transferred] = []

    def place(self, dtype: Any, shape: Shape) -> HostArray:
        """Reserves space for one array, and returns its location."""
        start = self.nbytes
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        self.nbytes += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return HostArray(self.segment.id, np.dtype(dtype), shape, start)

    def place_all(self, of: LeafLayout) -> tuple[HostArray, ...]:
        """Reserves space for an array of each rank, and returns their locations."""
        return tuple(self.place(of.dtype, shape) for shape in of.shapes)

    def add(
        self, pair: Endpoints, sent: Hosts, received: Hosts, rows: tuple[int, int] | None = None
    ) -> None:
        """Adds copies of an array: of its source to places, and of places to its target.

        Args:
            pair: the array.
            sent: places by rank, to which ranks copy their sources; None where one copies nothing.
            received: places by rank, from which ranks copy to their targets.
            rows: first row of the copy in the source, and in the target; None for whole arrays.
        """
        starts: list[tuple[int, ...]] = [(), ()]
        if rows is not None:
            starts = [(row,) * len(sent) for row in rows]
        self._down.append(Transferred(pair.source.number, pair.leaf, sent, starts[0]))
        self._up.append(Transferred(pair.target.number, pair.leaf, received, starts[1]))

    def programs(self, *middle: Program, stays: bool = False, adds: bool = False) -> list[Program]:
        """Returns the programs of all copies to the segment, others on what is there, and all
        copies from it, which may be additions; none without copies.
        """
        if not self._down:
            return []
        return [
            Transfer(next_number(), up=False, arrays=tuple(self._down), stays=stays),
            *middle,
            Transfer(next_number(), up=True, arrays=tuple(self._up), stays=stays, adds=adds),
        ]

    def reserve(self, world: Engine, info: CallInfo | None = None) -> None:
        """Allocates the memory, and maps it on the ranks."""
        if self.nbytes > self.segment.size:
            self.segment.grow(self.nbytes)
        world.attach([self.segment], info)


@final
class GpuTransfers(VariableTransfers):
    def __init__(self, world: Engine) -> None:
        super().__init__(world)
        self._staging = Segment(1)  # grows on demand and keeps its id

    # ---- values

    def deliver(
        self, storage: Allocation, values: Sequence[Row], *, without_halos: bool = False
    ) -> None:
        staging = Staging(self._staging)
        placed: list[tuple[HostArray, Array]] = []
        arrays = []
        for leaf, row in enumerate(values):
            dtype = storage.layout.leaf(leaf).dtype
            hosts: dict[int, HostArray | None] = {id(None): None}
            for value in row:
                if value is not None and id(value) not in hosts:
                    host = hosts[id(value)] = staging.place(dtype, value.shape)
                    placed.append((host, value))
            firsts: tuple[int, ...] = ()
            if without_halos:
                firsts = tuple(storage.layout.own(leaf, rank).start for rank in range(len(row)))
            by_rank = tuple(hosts[id(value)] for value in row)
            arrays.append(Transferred(storage.number, leaf, by_rank, firsts))
        staging.reserve(self.world)
        for host, value in placed:
            fill(self._view(host), value)
        self._transfer(tuple(arrays), storage, up=True)
        self._let_go(staging)

    def fetch(self, storage: Allocation, ranks: Sequence[int]) -> list[list[Array]]:
        staging = Staging(self._staging)
        hosts, arrays = [], []
        for rank in ranks:
            hosts.append([staging.place(of.dtype, of.shapes[rank]) for of in storage.layout.leaves])
            for leaf, host in enumerate(hosts[-1]):
                by_rank = on_rank(rank, host, self.world.world_size)
                arrays.append(Transferred(storage.number, leaf, by_rank))
        staging.reserve(self.world)
        self._transfer(tuple(arrays), storage, up=False)
        copies = [copies_of(list(map(self._view, of_rank))) for of_rank in hosts]
        self._let_go(staging)
        return copies

    def _transfer(self, arrays: tuple[Transferred, ...], storage: Allocation, *, up: bool) -> None:
        key = ("transfer", up, arrays)
        run = self.known(key)
        if run is None:
            program = Transfer(next_number(), up, arrays)
            run = self.install(program, _SENDING if up else _FETCHING)
            self.keep(key, run, (program.number,), [storage])
        run()

    def _view(self, host: HostArray) -> Array:
        return self._staging.array(host.dtype, host.shape, host.offset)

    def _let_go(self, staging: Staging) -> None:
        """Frees a large staging segment, and drops all plans; the ranks drop their programs with
        the segment.
        """
        if staging.nbytes > BYTES_KEPT:
            self._staging.close()
            self._staging = Segment(1)
            self.forget_all()

    # ---- collectives

    def reduced(self, spec: CollectiveSpec, storage: Allocation) -> list[Array]:
        on_root = tuple(_layout_on_root(leaf, spec.root) for leaf in storage.layout.leaves)
        target = Allocation(self.world, StorageLayout(on_root, storage.layout.flat))
        self.collective(spec, pairs_of(spec, storage, target))()
        (arrays,) = self.fetch(target, [spec.root])
        return arrays

    def steps(
        self,
        spec: CollectiveSpec,
        pairs: Sequence[Endpoints],
        keys: frozenset[Key],
        *,
        in_sequence: bool,
    ) -> tuple[list[Step], list[Segment]]:
        join(self.world)
        transport = self.world.life.transport
        if not DRIVERS[transport].in_shared_memory:
            # the stream waits for other ranks
            access = Access(keys, keys, SUCCESS | RECORDED)
            return [Step(program_in_place(spec, pairs, transport), access)], []
        by_machines = self._is_between_machines(spec, pairs)
        if by_machines and _are_mirrored(pairs):
            access = access_in_place(spec, keys)
            return [Step(program, access) for program in self._in_mirrors(spec, pairs)], []
        # of its own in a sequence: that of calls is freed after large transfers
        segment = Segment(1) if in_sequence else self._staging
        staging = Staging(segment)
        if spec.kind in {"exchange", "all_to_all"}:
            programs = _copied(spec, staging, pairs, self.world.world_size)
        elif by_machines:
            programs = self._between_machines(spec, staging, pairs)
        else:
            programs = _staged(spec, staging, pairs)
        if not programs:
            return [], []
        staging.reserve(self.world, describe(spec, pairs))
        staged = frozenset({("staging", segment.id)})
        first, *middle, last = programs
        between = Access(staged, staged, staged, staged)
        return [
            Step(first, Access(reads=keys, writes=staged)),
            *(Step(program, between) for program in middle),
            Step(last, Access(writes=keys, remote_reads=staged)),
        ], [segment]

    def _is_between_machines(self, spec: CollectiveSpec, pairs: Sequence[Endpoints]) -> bool:
        """Whether machines combine arrays, each those of its ranks and then with each other,
        instead of the coordinator.

        Small arrays are combined in the coordinator, in the order of ranks.
        """
        if not self.world.spans_machines or spec.kind != "all_reduce" or spec.op not in _KINDS:
            return False
        nbytes = 0
        for pair in pairs:
            leaf = pair.layout
            is_combined = leaf.dtype.char in _KINDS[spec.op] and leaf.dtype.isnative
            if not is_combined or not leaf.uniform:
                return False
            nbytes += leaf.nbytes(0)
        return nbytes >= BETWEEN_BYTES

    def _between_machines(
        self, spec: CollectiveSpec, staging: Staging, pairs: Sequence[Endpoints]
    ) -> list[Program]:
        """Returns the programs of such an all_reduce; ranks read the result where the first of
        their machine has written.
        """
        first_of = self._firsts()
        hosts = [staging.place_all(pair.layout) for pair in pairs]
        for pair, places in zip(pairs, hosts, strict=True):
            staging.add(pair, places, tuple(places[first] for first in first_of))
        return staging.programs(_combined(spec, pairs, hosts), stays=True)

    def _in_mirrors(self, spec: CollectiveSpec, pairs: Sequence[Endpoints]) -> list[Transfer]:
        """Returns the programs of such an all_reduce of variables that relays reach, in place.

        The first rank of each machine has the result then; others, if there are any, copy it.
        """
        first_of = self._firsts()
        hosts = [pair.source.hosts(pair.leaf) for pair in pairs]
        combined = _combined(spec, pairs, hosts)
        if len(set(first_of)) == len(first_of):
            return [combined]
        arrays = []
        for pair, places in zip(pairs, hosts, strict=True):
            results: list[HostArray | None] = [places[first] for first in first_of]
            for first in first_of:  # has the result already
                results[first] = None
            arrays.append(Transferred(pair.target.number, pair.leaf, tuple(results)))
        return [combined, Transfer(next_number(), up=True, arrays=tuple(arrays), stays=True)]

    def _firsts(self) -> list[int]:
        """Returns the first rank of each rank's machine."""
        firsts: list[int] = []
        for _, first, after in self.world.machines:
            firsts += [first] * (after - first)
        return firsts


def _copied(
    spec: CollectiveSpec, staging: Staging, pairs: Sequence[Endpoints], world_size: int
) -> list[Program]:
    """Returns the programs of an exchange or all_to_all: the rows that travel go to a staging
    segment, and from there to their targets. None where no rows travel.
    """
    for pair in pairs:
        for copy in pair.copies(spec):
            row = pair.layout.shapes[copy.source][1:]
            host = staging.place(pair.layout.dtype, (copy.count, *row))
            sent = on_rank(copy.source, host, world_size)
            received = on_rank(copy.target, host, world_size)
            staging.add(pair, sent, received, (copy.source_start, copy.target_start))
    return staging.programs(adds=spec.op is not None)


def _staged(spec: CollectiveSpec, staging: Staging, pairs: Sequence[Endpoints]) -> list[Program]:
    """Returns the programs of a collective on copies in a staging segment."""
    operands = []
    for pair in pairs:
        gives = gets = staging.place_all(pair.layout)
        if not pair.in_place:
            gets = staging.place_all(pair.target.layout.leaf(pair.leaf))
        operands.append(pair.operand(gives, gets))
        sent: Hosts = gives
        received: Hosts = gets
        if spec.kind == "broadcast":
            sent = on_rank(spec.root, gives[spec.root], len(gives))
        if spec.kind == "reduce":
            received = on_rank(spec.root, gets[spec.root], len(gets))
        staging.add(pair, sent, received)
    return staging.programs(program_of(spec, operands, "host"))


def _combined(
    spec: CollectiveSpec, pairs: Sequence[Endpoints], hosts: Sequence[tuple[HostArray, ...]]
) -> Transfer:
    """Returns the program by which machines combine arrays."""
    assert spec.op is not None  # of a reduction
    reduced = tuple(Reduced(spec.op, places) for places in hosts)
    about = frozenset(pair.source.number for pair in pairs)
    return Transfer(next_number(), up=False, arrays=(), reduced=reduced, about=about)


def _layout_on_root(leaf: LeafLayout, root: int) -> LeafLayout:
    """Returns the layout of an array on the root alone, empty on other ranks; 0-d arrays, which
    are small, stay.
    """
    shapes: list[Shape] = [(0,) * len(shape) for shape in leaf.shapes]
    shapes[root] = leaf.shapes[root]
    return LeafLayout(leaf.dtype, tuple(shapes))


def _are_mirrored(pairs: Sequence[Endpoints]) -> bool:
    """Whether a collective in place has its arrays in memory that machines' relays reach."""
    return all(pair.in_place and pair.source.mirrored is not None for pair in pairs)
