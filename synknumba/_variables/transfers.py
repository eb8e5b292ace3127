"""What moves between the coordinator and the variables, and between the ranks: worked out once, numbered, and repeated.

    deliver     values from the coordinator to the ranks' arrays
    fetch       copies of the ranks' arrays
    collective  between the ranks' arrays

A plan is found again by the memory that it is about, so a repeated collective costs a round, or less: where the arrays lie in
memory that the coordinator can reach, and are small, it does the work itself, since the ranks are idle between calls.

Values and collectives on cores: all memory is shared, so values are written, read and combined in place.
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

DIRECT_BYTES = 2 << 20  # read and written: what one core does in the time of a round
PLANS_KEPT = 4096  # a few KiB each; a model of some thousand arrays that are not flattened has one for each

Run: TypeAlias = Callable[[], object]
Ends: TypeAlias = tuple[Any, End, End]  # dtype, what is given, what is got


@dataclass(frozen=True, slots=True)
class Delivery:
    """Values for one array of a variable: by rank, None where the rank keeps what it has."""

    storage: Allocation
    leaf: int
    values: tuple[Array | None, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """One array of a collective: what is given, and what gets it; often the same memory."""

    source: Allocation
    target: Allocation
    leaf: int

    @property
    def in_place(self) -> bool:
        """Whether ranks get it where they gave it."""
        return self.source is self.target

    def ends(self, given: Sequence[HostArray] = (), got: Sequence[HostArray] = ()) -> Ends:
        """As a collective sees it; `given` and `got` are places of copies, as in `Allocation.end`."""
        return (*self.source.end(self.leaf, given), self.target.end(self.leaf, got)[1])


@dataclass(frozen=True, slots=True)
class Work:
    """A collective."""

    kind: CollectiveKind
    op: CollectiveOp | None = None
    root: int = 0


@dataclass(frozen=True, slots=True)
class _Plan:
    """What runs a collective or a transfer, the numbers of its programs on the ranks, and of the memory that it is about."""

    run: Run
    programs: tuple[int, ...]
    about: frozenset[int]


class Traffic(ABC):
    """Carries values and collectives in one world. All methods are for between the world's `begin` and `end`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._plans: OrderedDict[Any, _Plan] = OrderedDict()
        self._quick: dict[Any, Run] = {}
        self._alone: Communicator | None = None

    @abstractmethod
    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Gives variables their values, of the shapes that they have."""

    @abstractmethod
    def fetch(self, storage: Allocation, places: Sequence[tuple[int, int]]) -> list[Array]:
        """Copies of arrays: of each (leaf, rank)."""

    @abstractmethod
    def reduced(self, work: Work, storage: Allocation) -> list[Array]:
        """What a `reduce` would give the root: an array for each, of the coordinator's own. Nothing that ranks have changes."""

    @abstractmethod
    def plan(self, work: Work, pairs: Sequence[Pair]) -> tuple[Run, tuple[int, ...]]:
        """Works a collective out, for as often as it is wanted; with the numbers of its programs."""

    def collective(self, work: Work, pairs: Sequence[Pair]) -> Run:
        """A collective, ready to be run; the plan of the last time if it was wanted before."""
        key = (work, *((pair.source.number, pair.target.number, pair.leaf) for pair in pairs))
        known = self._known(key)
        if known is not None:
            return known
        run, numbers = self.plan(work, pairs)
        self._keep(key, run, numbers, [storage for pair in pairs for storage in (pair.source, pair.target)])
        return run

    def remember(self, key: Any, run: Run, about: Sequence[Allocation]) -> None:
        """Notes what the plainest repeat of a call runs."""
        if key not in self._quick:
            self._quick[key] = run
            callback = partial(_forget_quick, weakref.ref(self), key, [storage.number for storage in about])
            for storage in about:
                storage.when_gone(key, callback)

    def remembered(self, key: Any) -> Run | None:
        """What was noted; None where nothing was, or where it is not kept any more."""
        return self._quick.get(key)

    def over_host(
        self, work: Work, arrays: Sequence[Ends], segments: Sequence[Segment], info: CallInfo
    ) -> tuple[Run, int | None]:
        """A collective over memory that all have mapped: the coordinator's own work where it is little, else a round.

        Args:
            work: which collective.
            arrays: with the places of all ranks' arrays.
            segments: that they lie in.
            info: for messages.

        Returns:
            What runs it, and the number of its program, if any.
        """
        if _bytes(arrays) <= DIRECT_BYTES or self.world.world_size == 1:
            return _direct(work, arrays, segments, self.alone()), None
        for dtype in {dtype for dtype, _, _ in arrays}:
            prepare(work.op, dtype)  # here, once, rather than on all ranks at the same time
        program = Collective(next_number(), work.kind, tuple(arrays), work.op, work.root, "host")
        return self.install(program, info), program.number

    def alone(self) -> Communicator:
        """What the coordinator does collectives with by itself."""
        self._alone = self._alone or host_communicator(0, 1)
        return self._alone

    def install(self, program: Collective | Transfer, info: CallInfo) -> Run:
        """Has the ranks prepare something; what runs it."""
        self.world.command(Install(None, program), info=info)
        return partial(self.world.run, program.number, info, _nothing_to_learn)

    def forget_all(self) -> None:
        """Lets go of every plan."""
        while self._plans:
            self._drop(next(iter(self._plans)))

    def _known(self, key: Any) -> Run | None:
        """What runs a plan that is kept, which is then the last to be dropped."""
        known = self._plans.get(key)
        if known is None:
            return None
        self._plans.move_to_end(key)
        return known.run

    def _keep(self, key: Any, run: Run, numbers: tuple[int, ...], about: Sequence[Allocation]) -> None:
        self._plans[key] = _Plan(run, numbers, frozenset(storage.number for storage in about))
        for storage in about:
            # A plan must go with its memory, at whatever moment that is, and must not keep it.
            storage.when_gone(key, partial(_forget, weakref.ref(self), key))
        while len(self._plans) > PLANS_KEPT:
            self._drop(next(iter(self._plans)))

    def _drop(self, key: Any) -> None:
        self._quick.clear()  # one of them may be what goes
        known = self.forget(key)
        for number in known.programs if known else ():
            self.world.forget("program", number)

    def forget(self, key: Any) -> "_Plan | None":
        """Lets go of a plan here; the ranks drop its programs with the memory that they are about."""
        known = self._plans.pop(key, None)
        if known is not None:
            not_in_use(known.about, key)
        return known

    def forget_quick(self, key: Any) -> None:
        """Lets go of what `remember` noted."""
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
    """Collectives and transfers send no news."""


def describe(work: Work, pairs: Sequence[Pair]) -> CallInfo:
    """A collective, for messages."""
    texts = []
    for pair in pairs:
        of = pair.source.layout.leaf(pair.leaf)
        texts.append(f"{np.dtype(of.dtype)} {of.shapes[0] if of.uniform else list(of.shapes)}")
    return CallInfo(work.kind, tuple(texts))


def _bytes(arrays: Sequence[Ends]) -> int:
    """Bytes that a collective reads and writes, on all ranks."""
    return sum(np.dtype(dtype).itemsize * (sum(source.counts) + sum(target.counts)) for dtype, source, target in arrays)


def _direct(work: Work, arrays: Sequence[Ends], segments: Sequence[Segment], transport: Communicator) -> Run:
    """What one participant alone does."""
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
        """Whether all ranks get the same, and so much that they had better copy it themselves."""
        first = values[0]
        same = first is not None and all(value is first for value in values)
        return same and first is not None and first.nbytes * len(values) > DIRECT_BYTES and len(values) > 1

    def fetch(self, storage: Allocation, places: Sequence[tuple[int, int]]) -> list[Array]:
        return [storage.array(leaf, rank).copy() for leaf, rank in places]

    def reduced(self, work: Work, storage: Allocation) -> list[Array]:
        # The coordinator alone: for the ranks to help it, the result would have to be in new shared memory first.
        assert work.op is not None  # it reduces
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
