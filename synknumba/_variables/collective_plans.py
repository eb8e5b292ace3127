"""Plans of transfers and collectives of variables: made once, numbered, repeated. The public
functions: `collectives`.

    deliver     values from the coordinator to the ranks' arrays
    fetch       copies of the ranks' arrays to the coordinator
    collective  among the ranks' arrays

A collective is a list of programs, each with what it reads and writes
(`VariableTransfers.steps`). A call runs them one after the other; a sequence embeds them, and lets
its ranks wait where they must.

Plans are cached by the memory that they refer to, so repeating a collective costs one round, or
less: if the arrays are small and in memory that the coordinator has mapped, it does the work
itself, since the ranks are idle between calls.

`VariableTransfers` is the interface. `CoreTransfers` implements it on cores, where all memory is
shared, so values are written, read and combined in place; `GpuTransfers` (in
`gpu_collective_plans`) implements it on GPUs.
"""

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard, final

import numpy as np

from synknumba._comm import Communicator, Exchange, host_communicator, make_step, prepare
from synknumba._host.casting import fill
from synknumba._host.segment import Segment
from synknumba._ops.blocks import block_copies, equal_counts
from synknumba._ops.halo import Copy
from synknumba._ops.variable_layout import LeafLayout, line_type
from synknumba._types import Array, Cache, CollectiveKind, CollectiveOp, Counts, Transport
from synknumba._variables.allocation import Allocation, not_in_use
from synknumba._variables.kept_values import copies_of
from synknumba._wire.control import align
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
# Read by each rank of an all_reduce in a sequence that is done with one wait instead of two, by
# every rank in full.
STAGED_BYTES = 16 << 10
# a few KiB each; a model of thousands of arrays needs one for each unless they are flattened
PLANS_KEPT = 4096

Run: TypeAlias = Callable[[], object]
Program: TypeAlias = Collective | Staged | Transfer
# new values of one array of a variable, by rank; None where the rank keeps its own
Row: TypeAlias = tuple[Array | None, ...]


@dataclass(frozen=True, slots=True)
class Endpoints:
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

    @property
    def layout(self) -> LeafLayout:
        """Layout of the source."""
        return self.source.layout.leaf(self.leaf)

    def operand(self, gives: Sequence[HostArray] = (), gets: Sequence[HostArray] = ()) -> Operand:
        """Returns the operand of a collective; `gives` and `gets` are locations of copies, as in
        `Allocation.end`.
        """
        dtype, source = self.source.end(self.leaf, gives)
        return Operand(dtype, source, self.target.end(self.leaf, gets)[1])

    def copies(self, spec: "CollectiveSpec") -> list[Copy]:
        """Returns the copies of an exchange or all_to_all between the ranks, in rows."""
        if spec.kind == "all_to_all":
            return block_copies(spec.counts or equal_counts([of[0] for of in self.layout.shapes]))
        copies = self.source.layout.copies(self.leaf)
        if spec.op is None:
            return copies
        return [copy.reversed() for copy in copies]

    def exchanged(self, spec: "CollectiveSpec") -> Operand:
        """Returns the operand of an exchange or all_to_all, with its copies."""
        row = math.prod(self.layout.shapes[0][1:])
        elements = line_type(self.layout.dtype, row)[1]  # of one row
        if not elements:
            return self.operand()
        copies = tuple(copy.scaled(elements) for copy in self.copies(spec))
        return self.operand()._replace(copies=copies)


# What the kind says: which take `dest=`, after which each rank has its own rows, and after which
# ranks have different values.
WITH_DEST: Final = frozenset({"all_gather", "reduce_scatter", "all_to_all"})
SHARDING: Final = frozenset({"reduce_scatter", "exchange", "all_to_all"})
DIFFERING: Final = frozenset({"reduce", *SHARDING})


class CollectiveSpec(NamedTuple):
    """A collective: its kind, the op of a reduction, the root of a broadcast or reduce, and the
    rows that each rank sends to each in an all_to_all of unequal blocks.

    A tuple, since one is made, hashed and compared in each repeated collective.
    """

    kind: CollectiveKind
    op: CollectiveOp | None = None
    root: int = 0
    counts: Counts = ()


def pairs_of(spec: CollectiveSpec, source: Allocation, target: Allocation) -> list[Endpoints]:
    """Returns the arrays of a collective; flat ones as a single vector, unless their rows move."""
    leaves: Iterable[int] = range(len(source.layout.leaves))
    if spec.kind in {"broadcast", "reduce", "all_reduce"}:
        leaves = source.layout.pieces()
    return [Endpoints(source, target, leaf) for leaf in leaves]


def storages_of(pairs: Iterable[Endpoints]) -> set[Allocation]:
    """Returns the memory of a collective's arrays."""
    storages: set[Allocation] = set()
    for pair in pairs:
        storages.update((pair.source, pair.target))
    return storages


def program_in_place(
    spec: CollectiveSpec, pairs: Sequence[Endpoints], transport: Transport
) -> Collective:
    """Returns the program of a collective that works on the arrays themselves."""
    if spec.kind not in {"exchange", "all_to_all"}:
        return program_of(spec, map(Endpoints.operand, pairs), transport)
    operands = [pair.exchanged(spec) for pair in pairs]
    return program_of(spec._replace(kind="exchange"), operands, transport)


def program_of(
    spec: CollectiveSpec, operands: Iterable[Operand], transport: Transport
) -> Collective:
    """Returns the program of a collective by the ranks."""
    return Collective(next_number(), spec.kind, tuple(operands), spec.op, spec.root, transport)


class Step(NamedTuple):
    """A program of a collective, and what it reads and writes."""

    program: Program
    access: Access


@dataclass(frozen=True, slots=True)
class _Plan:
    """A cached plan: what runs it, its programs' numbers, and those of the memory it refers to."""

    key: Any
    run: Run
    programs: tuple[int, ...]
    memory: list[int]


class VariableTransfers(ABC):
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
    def fetch(self, storage: Allocation, ranks: Sequence[int]) -> list[list[Array]]:
        """Returns copies of all arrays of each of some ranks."""

    @abstractmethod
    def reduced(self, spec: CollectiveSpec, storage: Allocation) -> list[Array]:
        """Returns the result that `reduce` gives the root, one array per leaf, in the coordinator's
        own memory.

        The ranks' arrays do not change.
        """

    @abstractmethod
    def steps(
        self,
        spec: CollectiveSpec,
        pairs: Sequence[Endpoints],
        keys: frozenset[Key],
        *,
        in_sequence: bool,
    ) -> tuple[list[Step], list[Segment]]:
        """Returns the programs of a collective, in order, and the staging memory that they use.

        Args:
            spec: the collective; in place if it is in a sequence.
            pairs: its arrays.
            keys: the arrays, for their accesses.
            in_sequence: whether steps are repeated with waits between them, on staging memory of
                their own.
        """

    def plan(self, spec: CollectiveSpec, pairs: Sequence[Endpoints]) -> tuple[Run, tuple[int, ...]]:
        """Plans a collective. Returns a callable that runs it, and its programs' numbers."""
        steps, segments = self.steps(spec, pairs, frozenset(), in_sequence=False)
        for storage in storages_of(pairs):
            if storage.segment is not None:
                segments.append(storage.segment)
        info = describe(spec, pairs)
        runs: list[Run] = []
        numbers: list[int] = []
        for program, _ in steps:
            if self._is_direct(program):
                runs.append(direct(program, segments, self.alone))
            else:
                runs.append(self.install(program, info))
                numbers.append(program.number)
        run: Run = partial(_run_all, runs)
        if len(runs) == 1:
            (run,) = runs
        return run, tuple(numbers)

    def programs(
        self, spec: CollectiveSpec, pairs: Sequence[Endpoints], keys: frozenset[Key]
    ) -> list[tuple[int, list[Segment], Access]]:
        """Installs the programs of a collective in place, in a sequence.

        Args:
            spec: the collective.
            pairs: its arrays.
            keys: the arrays, for their accesses.

        Returns:
            The number of each program, the segments that only the collective uses, and what the
            program reads and writes.
        """
        steps, segments = self.steps(spec, pairs, keys, in_sequence=True)
        info = describe(spec, pairs)
        for program, _ in steps:
            if self.world.spans_machines and _is_over_host(program):
                run = direct(program, segments, self.alone)
                self.world.life.own_programs[program.number] = run
            else:
                self.install(program, info)
        return [(program.number, segments, access) for program, access in steps]

    def collective(self, spec: CollectiveSpec, pairs: Sequence[Endpoints]) -> Run:
        """Returns a callable that runs a collective; the plan is reused if it is cached."""
        key = (spec, *((pair.source.number, pair.target.number, pair.leaf) for pair in pairs))
        run = self.known(key)
        if run is not None:
            return run
        return self.keep(key, *self.plan(spec, pairs), storages_of(pairs))

    def known(self, key: Any) -> Run | None:
        """Returns the callable of a cached plan, now the most recently used; None without one."""
        plan = self._plans.use(key)
        if plan is None:
            return None
        return plan.run

    def keep(
        self, key: Any, run: Run, programs: tuple[int, ...], about: Iterable[Allocation]
    ) -> Run:
        """Caches a plan, and returns its callable."""
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

    def _is_direct(self, program: Program) -> TypeGuard[Collective]:
        """Whether the coordinator carries out a program of a call itself: a small one over shared
        memory, or one that no rank of several machines could.
        """
        if not _is_over_host(program):
            return False
        if self.world.world_size == 1 or self.world.spans_machines:
            return True
        count_bytes = _bytes_moved if program.kind == "exchange" else _bytes_of_all
        return sum(map(count_bytes, program.arrays)) <= DIRECT_BYTES

    @cached_property
    def alone(self) -> Communicator:
        """The communicator with which the coordinator carries out collectives by itself."""
        return host_communicator(0, 1)

    def install(self, program: Program, info: CallInfo) -> Run:
        """Installs a program on the ranks. Returns a callable that runs it."""
        if isinstance(program, Staged) or _is_over_host(program):
            # once, here, instead of on all ranks at the same time
            for dtype in {array[0] for array in program.arrays}:
                prepare(program.op, dtype)
        self.world.command(Install(None, program), info=info)
        return partial(self.world.run, program.number, info, _nothing_to_learn)

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


def _forget(transfers: "weakref.ref[VariableTransfers]", key: Any, about: Sequence[int]) -> None:
    not_in_use(about, key)
    alive = transfers()
    if alive is not None:
        alive.forget(key)


def _run_all(runs: Sequence[Run]) -> None:
    for run in runs:
        run()


def _is_over_host(program: Program) -> TypeGuard[Collective]:
    """Whether a program is a collective over shared memory."""
    return isinstance(program, Collective) and program.transport == "host"


def _nothing_to_learn(_: object) -> None:
    """Ignores news: collectives and transfers send none."""


def describe(spec: CollectiveSpec, pairs: Sequence[Endpoints]) -> CallInfo:
    """Returns a description of a collective for error messages."""
    texts = []
    for pair in pairs:
        of = pair.layout
        shapes: Any = list(of.shapes)
        if of.uniform:
            shapes = shapes[0]
        texts.append(f"{np.dtype(of.dtype)} {shapes}")
    return CallInfo(spec.kind, tuple(texts))


def _bytes_of_all(operand: Operand) -> int:
    """Returns the bytes that a collective reads and writes, on all ranks together."""
    return int(np.dtype(operand.dtype).itemsize) * sum(
        (*operand.source.counts, *operand.target.counts)
    )


def _bytes_of_longest(operand: Operand) -> int:
    """Returns the bytes of the source of the rank that has most."""
    return int(np.dtype(operand.dtype).itemsize) * max(operand.source.counts)


def _bytes_moved(operand: Operand) -> int:
    """Returns the bytes that an exchange reads and writes, on all ranks together."""
    return 2 * int(np.dtype(operand.dtype).itemsize) * sum(copy.count for copy in operand.copies)


def direct(program: Collective, segments: Iterable[Segment], transport: Communicator) -> Run:
    """Returns a callable with which a single participant carries out a whole collective on arrays
    in `segments`.
    """
    by_id = {segment.id: segment for segment in segments}

    def lines(end: End) -> tuple[Array, ...]:
        return tuple(
            by_id[host.segment].array(host.dtype, host.shape, host.offset) for host in end.hosts
        )

    exchanges = [
        Exchange(dtype, lines(source), lines(target), source.counts, target.counts, copies)
        for dtype, source, target, copies in program.arrays
    ]
    return make_step(transport, program.kind, program.op, program.root, exchanges)


def stage_bytes(kind: CollectiveKind, world_size: int, sizes: Iterable[int]) -> int:
    """Returns the bytes of a rank on the stage of a small all_reduce of arrays of these sizes; 0
    for what works in place.
    """
    if kind != "all_reduce" or world_size == 1:
        return 0
    nbytes = sum(map(align, sizes))
    if nbytes * world_size > STAGED_BYTES:
        return 0
    return nbytes


def staged_accesses(keys: frozenset[Key], stage: Key) -> tuple[Access, Access]:
    """Returns what the two steps of a small all_reduce, with a wait between, read and write."""
    key = frozenset({stage})
    return Access(reads=keys, writes=key), Access(writes=keys, remote_reads=key)


def access_in_place(spec: CollectiveSpec, keys: frozenset[Key]) -> Access:
    """Returns what a collective on the ranks' arrays in shared memory reads and writes."""
    if spec.kind == "exchange":
        # Each rank writes its own halos, which others read only to add them to own rows. These are
        # what each exchange reads, so the two never overtake each other.
        if spec.op is None:
            return Access(remote_reads=keys, nearby=True)
        return Access(writes=keys, remote_reads=keys, nearby=True)
    return Access(keys, keys, keys, keys)  # each works on a part of all ranks' arrays


def _is_large_replica(row: Row) -> bool:
    """Whether all of several ranks get one array, which is large."""
    first, *rest = row
    if first is None or not rest or first.nbytes * len(row) <= DIRECT_BYTES:
        return False
    return all(value is first for value in rest)


@final
class CoreTransfers(VariableTransfers):
    def deliver(
        self, storage: Allocation, values: Sequence[Row], *, without_halos: bool = False
    ) -> None:
        array_of = storage.own if without_halos else storage.array
        spread = []
        for leaf, row in enumerate(values):
            written = row
            if not without_halos and _is_large_replica(row):  # the ranks copy it themselves
                spread.append(Endpoints(storage, storage, leaf))
                written = row[:1]
            for rank, value in enumerate(written):
                if value is not None:
                    fill(array_of(leaf, rank), value)
        if spread:
            self.collective(CollectiveSpec("broadcast"), spread)()

    def fetch(self, storage: Allocation, ranks: Sequence[int]) -> list[list[Array]]:
        return [copies_of(storage.arrays(rank)) for rank in ranks]

    def reduced(self, spec: CollectiveSpec, storage: Allocation) -> list[Array]:
        # By the coordinator alone: for the ranks to take part, the result would first need new
        # shared memory.
        assert spec.op is not None  # a reduction has an op
        ranks = range(self.world.world_size)
        results, exchanges = [], []
        for leaf, of in enumerate(storage.layout.leaves):
            result = np.empty(of.shapes[0], of.dtype)
            results.append(result)
            sources = tuple(storage.array(leaf, rank).reshape(-1) for rank in ranks)
            counts = tuple(map(len, sources))
            targets = (result.reshape(-1),)
            exchanges.append(Exchange(result.dtype, sources, targets, counts, counts[:1]))
        self.alone.reduce(exchanges, spec.op, 0)()
        return results

    def steps(
        self,
        spec: CollectiveSpec,
        pairs: Sequence[Endpoints],
        keys: frozenset[Key],
        *,
        in_sequence: bool,
    ) -> tuple[list[Step], list[Segment]]:
        program = program_in_place(spec, pairs, "host")
        if in_sequence:
            sizes = map(_bytes_of_longest, program.arrays)
            nbytes = stage_bytes(spec.kind, self.world.world_size, sizes)
            if nbytes:
                return self._staged(program, nbytes, keys, describe(spec, pairs))
        return [Step(program, access_in_place(spec, keys))], []

    def _staged(
        self, program: Collective, nbytes: int, keys: frozenset[Key], info: CallInfo
    ) -> tuple[list[Step], list[Segment]]:
        """Returns a small all_reduce as two steps with one wait between them."""
        assert program.op is not None  # a reduction has an op
        shape = 2, self.world.world_size, nbytes
        segment = Segment(math.prod(shape))
        self.world.attach([segment], info)
        stage = HostArray(segment.id, np.dtype(np.uint8), shape)
        arrays = tuple((operand.dtype, operand.source) for operand in program.arrays)
        copies, combines = staged_accesses(keys, ("stage", ("segment", segment.id)))
        return [
            Step(Staged(next_number(), arrays, program.op, stage, combines=False), copies),
            Step(Staged(next_number(), arrays, program.op, stage, combines=True), combines),
        ], [segment]
