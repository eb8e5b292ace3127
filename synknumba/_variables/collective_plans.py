"""Plans of transfers and collectives of variables: made once, numbered, repeated. The public
functions: `collectives`.

    deliver     values from the coordinator to the ranks' arrays
    fetch       copies of the ranks' arrays to the coordinator
    collective  among the ranks' arrays

Plans are cached by the memory that they refer to, so repeating a collective costs one round, or
less: if the arrays are small and in memory that the coordinator has mapped, it does the work
itself, since the ranks are idle between calls.

`Traffic` is the interface. `CoreTraffic` implements it on cores, where all memory is shared, so
values are written, read and combined in place; `GpuTraffic` (in `gpu_transfers`) implements it on
GPUs.
"""

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias, final

import numpy as np

from synknumba._comm import Communicator, Exchange, host_communicator, make_step, prepare
from synknumba._host.casting import fill
from synknumba._host.segment import Segment
from synknumba._ops.variable_layout import line_type
from synknumba._types import Array, Cache, CollectiveKind, CollectiveOp
from synknumba._variables.allocation import Allocation, not_in_use
from synknumba._wire.messages import Install
from synknumba._wire.program import (
    Collective,
    End,
    HostArray,
    Operand,
    Staged,
    Transfer,
    next_number,
)
from synknumba._wire.sequence import Access, Key
from synknumba._world.engine import Engine
from synknumba._world.failure import CallInfo

# read and written in total: two cores are faster by half of this, which takes as long as a round
DIRECT_BYTES = 1 << 20
LINE_BYTES = 64  # of a cache line; no two ranks write to one of a stage
# Read by each rank of an all_reduce in a sequence that is done with one wait instead of two, by
# every rank in full.
STAGED_BYTES = 16 << 10
# a few KiB each; a model of thousands of arrays needs one for each unless they are flattened
PLANS_KEPT = 4096

Run: TypeAlias = Callable[[], object]
# new values of one array of a variable, by rank; None where the rank keeps its own
Row: TypeAlias = tuple[Array | None, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """One array of a collective: the source and target memory, which are often the same, and the
    index of the array.
    """

    source: Allocation
    target: Allocation
    leaf: int

    @property
    def in_place(self) -> bool:
        """Whether each rank's target is its source."""
        return self.source is self.target

    def operand(self, gives: Sequence[HostArray] = (), gets: Sequence[HostArray] = ()) -> Operand:
        """Returns the operand of a collective; `given` and `got` are locations of copies, as in
        `Allocation.end`.
        """
        return Operand(*self.source.end(self.leaf, gives), self.target.end(self.leaf, gets)[1])

    def exchanged(self) -> Operand:
        """Returns the operand of an exchange, with the copies between the ranks."""
        of = self.source.layout.leaf(self.leaf)
        elements = line_type(of.dtype, math.prod(of.shapes[0][1:]))[1]  # of one row
        copies = [
            copy.scaled(elements) for copy in self.source.layout.copies(self.leaf) if elements
        ]
        return self.operand()._replace(copies=tuple(copies))


def pairs_of(source: Allocation, target: Allocation) -> list[Pair]:
    """Returns the arrays of two allocations as pairs; a single vector if they are flat."""
    return [Pair(source, target, leaf) for leaf in source.layout.pieces()]


def leaf_pairs(storage: Allocation) -> list[Pair]:
    """Returns each array of an allocation as a pair with itself."""
    return [Pair(storage, storage, leaf) for leaf in range(len(storage.layout.leaves))]


@dataclass(frozen=True, slots=True)
class Work:
    """A collective: its kind, the op of a reduction, and the root of a broadcast or reduce."""

    kind: CollectiveKind
    op: CollectiveOp | None = None
    root: int = 0


def operands_of(work: Work, pairs: Sequence[Pair]) -> list[Operand]:
    """Returns the operands of a collective that works on the arrays themselves."""
    return [pair.exchanged() if work.kind == "exchange" else pair.operand() for pair in pairs]


@dataclass(frozen=True, slots=True)
class _Plan:
    """A cached plan: what runs it, its programs' numbers, and those of the memory it refers to."""

    key: Any
    run: Run
    programs: tuple[int, ...]
    memory: list[int]


class Traffic(ABC):
    """Transfers and collectives of one world.

    All methods are called between the world's `begin` and `end`, except `forget`, which may run at
    any time in a garbage collection.
    """

    def __init__(self, world: Engine) -> None:
        self.world = world
        # fast path of `run_known`: key of the call → what runs the collective
        self.quick: dict[Any, Run] = {}
        self._plans: Cache[Any, _Plan] = Cache(PLANS_KEPT, partial(_drop, world, self.quick))

    @abstractmethod
    def deliver(
        self, storage: Allocation, values: Sequence[Row], *, without_halos: bool = False
    ) -> None:
        """Writes values to the ranks' arrays: one row for each array of the variable.

        The arrays have the shapes of the values; with `without_halos`, the ranks' own rows
        of them do.
        """

    @abstractmethod
    def fetch(self, storage: Allocation, places: Sequence[tuple[int, int]]) -> list[Array]:
        """Returns a copy of each array listed in `places` as (leaf, rank)."""

    @abstractmethod
    def reduced(self, work: Work, storage: Allocation) -> list[Array]:
        """Returns the result that `reduce` gives the root, one array per leaf, in the coordinator's
        own memory.

        The ranks' arrays do not change.
        """

    @abstractmethod
    def plan(self, work: Work, pairs: Sequence[Pair]) -> tuple[Run, tuple[int, ...]]:
        """Plans a collective. Returns a callable that runs it, and its programs' numbers."""

    @abstractmethod
    def programs(
        self, work: Work, pairs: Sequence[Pair], keys: frozenset[Key]
    ) -> list[tuple[int, list[Segment], Access]]:
        """Installs programs by which the ranks carry out a collective in place, in a sequence.

        Args:
            work: the collective.
            pairs: its arrays.
            keys: the arrays, for their accesses.

        Returns:
            The number of each program, the segments that only it uses, and what it reads and
            writes.
        """

    def collective(self, work: Work, pairs: Sequence[Pair]) -> Run:
        """Returns a callable that runs a collective; the plan is reused if it is cached."""
        key = (work, *((pair.source.number, pair.target.number, pair.leaf) for pair in pairs))
        return self.known(key) or self.keep(
            key,
            self.plan(work, pairs),
            (storage for pair in pairs for storage in (pair.source, pair.target)),
        )

    def known(self, key: Any) -> Run | None:
        """Returns the callable of a cached plan, now the most recently used; None without one."""
        plan = self._plans.use(key)
        return None if plan is None else plan.run

    def keep(self, key: Any, plan: tuple[Run, tuple[int, ...]], about: Iterable[Allocation]) -> Run:
        """Caches a plan, and returns its callable."""
        run, programs = plan
        self._plans[key] = _Plan(key, run, programs, self._watch(key, about))
        return run

    def remember(self, key: Any, run: Run, about: Iterable[Allocation]) -> None:
        """Adds the callable of a collective to `quick`."""
        if key not in self.quick:
            self.quick[key] = run
            self._watch(key, about)

    def _watch(self, key: Any, about: Iterable[Allocation]) -> list[int]:
        """Drops an entry as soon as any memory that it refers to is freed; it does not keep the
        memory alive.
        """
        storages = set(about)
        numbers = [storage.number for storage in storages]
        for storage in storages:
            storage.when_gone(key, partial(_forget, weakref.ref(self), key, numbers))
        return numbers

    def over_host(
        self, work: Work, arrays: Sequence[Operand], segments: Sequence[Segment], info: CallInfo
    ) -> tuple[Run, tuple[int, ...]]:
        """Plans a collective over shared memory: the coordinator does a small one itself, the ranks
        a large one.

        The operands give the locations of all ranks' arrays, which are in `segments`. Returns what
        `plan` does.
        """
        nbytes = (
            sum(map(_bytes_moved, arrays))
            if work.kind == "exchange"
            else sum(map(_bytes_of_all, arrays))
        )
        if nbytes <= DIRECT_BYTES or self.world.world_size == 1 or self.world.spans_machines:
            return direct(work, arrays, segments, self.alone), ()
        return self.install(self.host_program(work, arrays), info)

    @staticmethod
    def host_program(work: Work, arrays: Sequence[Operand]) -> Collective:
        """Returns the program of a collective by the ranks over shared memory."""
        for dtype in {operand.dtype for operand in arrays}:
            prepare(work.op, dtype)  # compiles once, here, instead of on all ranks at the same time
        return Collective(next_number(), work.kind, tuple(arrays), work.op, work.root, "host")

    @cached_property
    def alone(self) -> Communicator:
        """The communicator with which the coordinator carries out collectives by itself."""
        return host_communicator(0, 1)

    def install(
        self, program: Collective | Staged | Transfer, info: CallInfo
    ) -> tuple[Run, tuple[int]]:
        """Installs a program on the ranks. Returns a callable that runs it, and its number."""
        self.world.command(Install(None, program), info=info)
        return partial(self.world.run, program.number, info, _nothing_to_learn), (program.number,)

    def forget_all(self) -> None:
        """Drops all plans, here and on the ranks."""
        self._plans.drop_all()

    def forget(self, key: Any) -> None:
        """Drops an entry in the coordinator; the ranks drop its programs together with the
        memory that they refer to.
        """
        self._plans.pop(key, None)
        self.quick.pop(key, None)


def _drop(world: Engine, quick: dict[Any, Run], plan: _Plan) -> None:
    """Drops a plan on the ranks; entries of the fast path may belong to it."""
    quick.clear()
    not_in_use(plan.memory, plan.key)
    for number in plan.programs:
        world.forget("program", number)


def _forget(traffic: "weakref.ref[Traffic]", key: Any, about: Sequence[int]) -> None:
    not_in_use(about, key)
    alive = traffic()
    if alive is not None:
        alive.forget(key)


def _nothing_to_learn(_: object) -> None:
    """Ignores news: collectives and transfers send none."""


def describe(work: Work, pairs: Sequence[Pair]) -> CallInfo:
    """Returns a description of a collective for error messages."""
    texts = []
    for pair in pairs:
        of = pair.source.layout.leaf(pair.leaf)
        shapes = of.shapes[0] if of.uniform else list(of.shapes)
        texts.append(f"{np.dtype(of.dtype)} {shapes}")
    return CallInfo(work.kind, tuple(texts))


def _bytes_of_all(operand: Operand) -> int:
    """Returns the bytes that a collective reads and writes, on all ranks together."""
    return int(np.dtype(operand.dtype).itemsize) * sum(
        (*operand.source.counts, *operand.target.counts)
    )


def _bytes_moved(operand: Operand) -> int:
    """Returns the bytes that an exchange reads and writes, on all ranks together."""
    return 2 * int(np.dtype(operand.dtype).itemsize) * sum(copy.count for copy in operand.copies)


def direct(
    work: Work, arrays: Sequence[Operand], segments: Sequence[Segment], transport: Communicator
) -> Run:
    """Returns a callable with which a single participant carries out a whole collective."""
    by_id = {segment.id: segment for segment in segments}

    def lines(end: End) -> tuple[Array, ...]:
        return tuple(
            by_id[host.segment].array(host.dtype, host.shape, host.offset) for host in end.hosts
        )

    exchanges = [
        Exchange(dtype, lines(source), lines(target), source.counts, target.counts, copies)
        for dtype, source, target, copies in arrays
    ]
    return make_step(transport, work.kind, work.op, work.root, exchanges)


def stage_bytes(kind: CollectiveKind, world_size: int, sizes: Sequence[int]) -> int:
    """Returns the bytes of a rank on the stage of a small all_reduce of arrays of these sizes; 0
    for what works in place.
    """
    nbytes = sum(-(-size // LINE_BYTES) * LINE_BYTES for size in sizes)
    return (
        nbytes
        if kind == "all_reduce" and world_size > 1 and nbytes * world_size <= STAGED_BYTES
        else 0
    )


def staged_accesses(keys: frozenset[Key], stage: Key) -> tuple[Access, Access]:
    """Returns what the two steps of a small all_reduce, with a wait between, read and write."""
    key = frozenset({stage})
    return Access(reads=keys, writes=key), Access(writes=keys, remote_reads=key)


def access_in_place(kind: CollectiveKind, keys: frozenset[Key]) -> Access:
    """Returns what a collective on the ranks' arrays in shared memory reads and writes."""
    if kind == "exchange":  # each rank writes its own halos, which no other reads
        return Access(remote_reads=keys, nearby=True)
    return Access(keys, keys, keys, keys)  # each works on a part of all ranks' arrays


def _is_large_replica(row: Row) -> bool:
    """Whether all of several ranks get one array, which is large."""
    first, *rest = row
    if first is None or not rest or first.nbytes * len(row) <= DIRECT_BYTES:
        return False
    return all(value is first for value in rest)


@final
class CoreTraffic(Traffic):
    def deliver(
        self, storage: Allocation, values: Sequence[Row], *, without_halos: bool = False
    ) -> None:
        spread = []
        array_of = storage.own if without_halos else storage.array
        for leaf, row in enumerate(values):
            is_spread = not without_halos and _is_large_replica(row)
            if is_spread:  # the ranks should copy it themselves
                spread.append(Pair(storage, storage, leaf))
            written = row[:1] if is_spread else row
            for rank, value in enumerate(written):
                if value is not None:
                    fill(array_of(leaf, rank), value)
        if spread:
            self.collective(Work("broadcast"), spread)()

    def fetch(self, storage: Allocation, places: Sequence[tuple[int, int]]) -> list[Array]:
        return [storage.array(leaf, rank).copy() for leaf, rank in places]

    def reduced(self, work: Work, storage: Allocation) -> list[Array]:
        # By the coordinator alone: for the ranks to take part, the result would first need new
        # shared memory.
        assert work.op is not None  # a reduction has an op
        results, exchanges = [], []
        for leaf, of in enumerate(storage.layout.leaves):
            results.append(np.empty(of.shapes[0], of.dtype))
            sources = tuple(
                storage.array(leaf, rank).reshape(-1) for rank in range(self.world.world_size)
            )
            counts = tuple(map(len, sources))
            exchanges.append(
                Exchange(results[-1].dtype, sources, (results[-1].reshape(-1),), counts, counts[:1])
            )
        self.alone.reduce(exchanges, work.op, 0)()
        return results

    def plan(self, work: Work, pairs: Sequence[Pair]) -> tuple[Run, tuple[int, ...]]:
        storages = [storage for pair in pairs for storage in (pair.source, pair.target)]
        segments = [storage.segment for storage in storages if storage.segment]
        return self.over_host(work, operands_of(work, pairs), segments, describe(work, pairs))

    def _staged(
        self,
        program: Collective,
        arrays: tuple[tuple[Any, End], ...],
        nbytes: int,
        keys: frozenset[Key],
        info: CallInfo,
    ) -> list[tuple[int, list[Segment], Access]]:
        """Installs a small all_reduce as two steps with one wait between them."""
        shape = 2, self.world.world_size, nbytes
        segment = Segment(2 * self.world.world_size * nbytes)
        self.world.attach([segment], info)
        stage = HostArray(segment.id, np.dtype(np.uint8), shape)
        steps = []
        for combines, access in enumerate(
            staged_accesses(keys, ("stage", ("segment", segment.id)))
        ):
            assert program.op is not None  # a reduction has an op
            step = Staged(next_number(), arrays, program.op, stage, bool(combines))
            self.install(step, info)
            steps.append((step.number, [segment], access))
        return steps

    def programs(
        self, work: Work, pairs: Sequence[Pair], keys: frozenset[Key]
    ) -> list[tuple[int, list[Segment], Access]]:
        program = self.host_program(work, operands_of(work, pairs))
        arrays = tuple((operand.dtype, operand.source) for operand in program.arrays)
        nbytes = stage_bytes(
            work.kind,
            self.world.world_size,
            [max(end.counts) * np.dtype(dtype).itemsize for dtype, end in arrays],
        )
        if nbytes:
            return self._staged(program, arrays, nbytes, keys, describe(work, pairs))
        self.install(program, describe(work, pairs))
        return [(program.number, [], access_in_place(work.kind, keys))]
