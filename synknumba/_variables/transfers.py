"""Transfers and collectives of variables: planned once, numbered, and repeated.

    deliver     values from the coordinator to the ranks' arrays
    fetch       copies of the ranks' arrays to the coordinator
    collective  among the ranks' arrays

Plans are cached by the memory that they refer to, so repeating a collective costs one round, or less: if the arrays are small
and in memory that the coordinator has mapped, it does the work itself, since the ranks are idle between calls.

`Traffic` is the interface. `CoreTraffic` implements it on cores, where all memory is shared, so values are written, read and
combined in place; `GpuTraffic` (in `gpu_transfers`) implements it on GPUs.
"""

import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, final

import numpy as np

from synknumba._comm import Communicator, Exchange, host_communicator, make_step, prepare
from synknumba._host.casting import fill
from synknumba._host.segment import Segment
from synknumba._types import Array, CollectiveKind, CollectiveOp
from synknumba._variables.allocation import Allocation, not_in_use
from synknumba._wire.messages import Install
from synknumba._wire.program import Collective, End, HostArray, Transfer, next_number
from synknumba._world.failure import CallInfo
from synknumba._world.world import World

DIRECT_BYTES = 2 << 20  # read and written in total: one core does this much in the time of a round
PLANS_KEPT = 4096  # a few KiB each; a model of thousands of arrays needs one for each unless they are flattened

Run: TypeAlias = Callable[[], object]
Ends: TypeAlias = tuple[Any, End, End]  # dtype, source, target


@dataclass(frozen=True, slots=True)
class Delivery:
    """New values for one array of a variable: an array for each rank, or None where the rank keeps its own."""

    storage: Allocation
    leaf: int
    values: tuple[Array | None, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """One array of a collective: the source and target memory, which are often the same, and the index of the array."""

    source: Allocation
    target: Allocation
    leaf: int

    @property
    def in_place(self) -> bool:
        """Whether each rank's target is its source."""
        return self.source is self.target

    def ends(self, given: Sequence[HostArray] = (), got: Sequence[HostArray] = ()) -> Ends:
        """Returns the operands of a collective; `given` and `got` are locations of copies, as in `Allocation.end`."""
        return (*self.source.end(self.leaf, given), self.target.end(self.leaf, got)[1])


@dataclass(frozen=True, slots=True)
class Work:
    """A collective: its kind, the op of a reduction, and the root of a broadcast or reduce."""

    kind: CollectiveKind
    op: CollectiveOp | None = None
    root: int = 0


@dataclass(frozen=True, slots=True)
class _Plan:
    """A cached plan: a callable that runs it, and the numbers of its programs and of the memory that it refers to."""

    run: Run
    programs: tuple[int, ...]
    about: frozenset[int]


class Traffic(ABC):
    """Transfers and collectives of one world.

    All methods are called between the world's `begin` and `end`, except `forget` and `forget_quick`, which may run at any time
    in a garbage collection.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self._plans: OrderedDict[Any, _Plan] = OrderedDict()
        self._quick: dict[Any, Run] = {}
        self._alone: Communicator | None = None

    @abstractmethod
    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Writes values to the ranks' arrays, which have the shapes of the values."""

    @abstractmethod
    def fetch(self, storage: Allocation, places: Sequence[tuple[int, int]]) -> list[Array]:
        """Returns a copy of each array listed in `places` as (leaf, rank)."""

    @abstractmethod
    def reduced(self, work: Work, storage: Allocation) -> list[Array]:
        """Returns the result that `reduce` gives the root, one array per leaf, in the coordinator's own memory.

        The ranks' arrays do not change.
        """

    @abstractmethod
    def plan(self, work: Work, pairs: Sequence[Pair]) -> tuple[Run, tuple[int, ...]]:
        """Plans a collective for repeated use. Returns a callable that runs it, and the numbers of its programs."""

    def collective(self, work: Work, pairs: Sequence[Pair]) -> Run:
        """Returns a callable that runs a collective; the plan is reused if it is cached."""
        key = (work, *((pair.source.number, pair.target.number, pair.leaf) for pair in pairs))
        known = self._known(key)
        if known is not None:
            return known
        run, numbers = self.plan(work, pairs)
        self._keep(key, run, numbers, [storage for pair in pairs for storage in (pair.source, pair.target)])
        return run

    def remember(self, key: Any, run: Run, about: Sequence[Allocation]) -> None:
        """Caches the callable of a collective for `run_known`, the fast path of a repeated call.

        Args:
            key: key of the call.
            run: callable that runs the collective.
            about: memory that it refers to; the entry is dropped when any of it is freed.
        """
        if key not in self._quick:
            self._quick[key] = run
            callback = partial(_forget_quick, weakref.ref(self), key, [storage.number for storage in about])
            for storage in about:
                storage.when_gone(key, callback)

    def remembered(self, key: Any) -> Run | None:
        """Returns the callable cached under a key; None if there is none, or it has been dropped."""
        return self._quick.get(key)

    def over_host(
        self, work: Work, arrays: Sequence[Ends], segments: Sequence[Segment], info: CallInfo
    ) -> tuple[Run, int | None]:
        """Plans a collective over shared memory: the coordinator does a small one itself, the ranks a large one.

        Args:
            work: the collective.
            arrays: operands, with the locations of all ranks' arrays.
            segments: segments that contain the arrays.
            info: description for error messages.

        Returns:
            A callable that runs the collective, and the number of its program; None if the coordinator does the work.
        """
        if _bytes(arrays) <= DIRECT_BYTES or self.world.world_size == 1:
            return _direct(work, arrays, segments, self.alone()), None
        for dtype in {dtype for dtype, _, _ in arrays}:
            prepare(work.op, dtype)  # compiles once, here, instead of on all ranks at the same time
        program = Collective(next_number(), work.kind, tuple(arrays), work.op, work.root, "host")
        return self.install(program, info), program.number

    def alone(self) -> Communicator:
        """Returns the communicator with which the coordinator carries out collectives by itself."""
        self._alone = self._alone or host_communicator(0, 1)
        return self._alone

    def install(self, program: Collective | Transfer, info: CallInfo) -> Run:
        """Installs a program on the ranks. Returns a callable that runs it."""
        self.world.command(Install(None, program), info=info)
        return partial(self.world.run, program.number, info, _nothing_to_learn)

    def forget_all(self) -> None:
        """Drops all plans, here and on the ranks."""
        while self._plans:
            self._drop(next(iter(self._plans)))

    def _known(self, key: Any) -> Run | None:
        """Returns the callable of a cached plan, which becomes the most recently used; None if it is not cached."""
        known = self._plans.get(key)
        if known is None:
            return None
        self._plans.move_to_end(key)
        return known.run

    def _keep(self, key: Any, run: Run, numbers: tuple[int, ...], about: Sequence[Allocation]) -> None:
        self._plans[key] = _Plan(run, numbers, frozenset(storage.number for storage in about))
        for storage in about:
            # Freeing the memory drops the plan, at whatever moment that is; the plan must not keep the memory alive.
            storage.when_gone(key, partial(_forget, weakref.ref(self), key))
        while len(self._plans) > PLANS_KEPT:
            self._drop(next(iter(self._plans)))

    def _drop(self, key: Any) -> None:
        self._quick.clear()  # one of them may belong to the dropped plan
        known = self.forget(key)
        for number in known.programs if known else ():
            self.world.forget("program", number)

    def forget(self, key: Any) -> "_Plan | None":
        """Drops a plan in the coordinator; the ranks drop its programs together with the memory that they refer to."""
        known = self._plans.pop(key, None)
        if known is not None:
            not_in_use(known.about, key)
        return known

    def forget_quick(self, key: Any) -> None:
        """Drops an entry made by `remember`."""
        self._quick.pop(key, None)


def _forget(traffic: "weakref.ref[Traffic]", key: Any) -> None:
    alive = traffic()
    if alive is not None:
        alive.forget(key)


def _forget_quick(traffic: "weakref.ref[Traffic]", key: Any, about: Sequence[int]) -> None:
    not_in_use(about, key)
    alive = traffic()
    if alive is not None:
        alive.forget_quick(key)


def _nothing_to_learn(_: object) -> None:
    """Ignores news: collectives and transfers send none."""


def describe(work: Work, pairs: Sequence[Pair]) -> CallInfo:
    """Returns a description of a collective for error messages."""
    texts = []
    for pair in pairs:
        of = pair.source.layout.leaf(pair.leaf)
        texts.append(f"{np.dtype(of.dtype)} {of.shapes[0] if of.uniform else list(of.shapes)}")
    return CallInfo(work.kind, tuple(texts))


def _bytes(arrays: Sequence[Ends]) -> int:
    """Returns the bytes that a collective reads and writes, on all ranks together."""
    return sum(np.dtype(dtype).itemsize * (sum(source.counts) + sum(target.counts)) for dtype, source, target in arrays)


def _direct(work: Work, arrays: Sequence[Ends], segments: Sequence[Segment], transport: Communicator) -> Run:
    """Returns a callable with which a single participant carries out a whole collective."""
    by_id = {segment.id: segment for segment in segments}

    def lines(end: End) -> tuple[Array, ...]:
        return tuple(by_id[host.segment].array(host.dtype, host.shape, host.offset) for host in end.hosts)

    exchanges = [
        Exchange(dtype, lines(source), lines(target), source.counts, target.counts) for dtype, source, target in arrays
    ]
    return make_step(transport, work.kind, work.op, work.root, exchanges)


@final
class CoreTraffic(Traffic):
    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        spread = []
        for one in deliveries:
            values = one.values
            if self._is_worth_spreading(values):
                values = (values[0], *(None for _ in values[1:]))
                spread.append(Pair(one.storage, one.storage, one.leaf))
            for rank, value in enumerate(values):
                if value is not None:
                    fill(one.storage.array(one.leaf, rank), value)
        if spread:
            self.collective(Work("broadcast"), spread)()

    def _is_worth_spreading(self, values: Sequence[Array | None]) -> bool:
        """Returns whether all ranks get the same value, and one so large that the ranks should copy it themselves."""
        first = values[0]
        same = first is not None and all(value is first for value in values)
        return same and first is not None and first.nbytes * len(values) > DIRECT_BYTES and len(values) > 1

    def fetch(self, storage: Allocation, places: Sequence[tuple[int, int]]) -> list[Array]:
        return [storage.array(leaf, rank).copy() for leaf, rank in places]

    def reduced(self, work: Work, storage: Allocation) -> list[Array]:
        # By the coordinator alone: for the ranks to take part, the result would first need new shared memory.
        assert work.op is not None  # a reduction has an op
        leaves = range(len(storage.layout.leaves))
        results = [np.empty(storage.layout.leaf(leaf).shapes[0], storage.layout.leaf(leaf).dtype) for leaf in leaves]
        exchanges = []
        for leaf, result in zip(leaves, results, strict=True):
            sources = tuple(storage.array(leaf, rank).reshape(-1) for rank in range(self.world.world_size))
            counts = tuple(map(len, sources))
            exchanges.append(Exchange(result.dtype, sources, (result.reshape(-1),), counts, counts[:1]))
        self.alone().reduce(exchanges, work.op, 0)()
        return results

    def plan(self, work: Work, pairs: Sequence[Pair]) -> tuple[Run, tuple[int, ...]]:
        arrays = [pair.ends() for pair in pairs]
        segments = [storage.segment for pair in pairs for storage in (pair.source, pair.target) if storage.segment]
        run, number = self.over_host(work, arrays, segments, describe(work, pairs))
        return run, () if number is None else (number,)
