"""How a rank carries out a program: which rows, in which buffers, launched how, results to where.

    program ──prepare──> Routine ──bind (rows)──> steps ──run──> control block / segments

A routine is prepared once for a program. Binding works out the slices and their buffers for one selection of rows and one set
of scalars and makes a flat list of steps; it is repeated only when these change. Running executes the steps.

The memory of one variable on one rank.
"""

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, final

import numpy as np

from synknumba._device import Buffer, Device, SliceSteps, Step
from synknumba._host.segment import Segment
from synknumba._ops.rows import Listed, Partition, Range, Rows
from synknumba._ops.tree import unflatten
from synknumba._ops.variable_layout import StorageLayout, line_type
from synknumba._types import Array, RankConstant, Span
from synknumba._wire.control import ControlBlock
from synknumba._wire.messages import News
from synknumba._wire.program import (
    Broadcast,
    Constant,
    Dynamic,
    Filled,
    Held,
    HeldRows,
    HostArray,
    IndexSpan,
    PerRank,
    Program,
    Sharded,
    Tree,
    Update,
)
from synknumba._wire.relaunch import Again


@final
class Holding:
    """The arrays of a variable as this rank holds them.

    Attributes:
        layout: of the arrays, on all ranks.
    """

    def __init__(self, layout: StorageLayout, rank: int, memory: Any, device: Device) -> None:
        self.layout = layout
        self._offsets = [*layout.place(rank)[0], 0]  # the last is that of `VECTOR`, which is −1
        self._rank = rank
        self._memory = memory
        self._device = device

    def array(self, leaf: int) -> Any:
        """One array, writable, as kernels and Python functions take it; of a flat variable also `VECTOR`."""
        of = self.layout.leaf(leaf)
        return self._device.view(self._memory, self._offsets[leaf], of.dtype, of.shapes[self._rank])

    def line(self, leaf: int) -> Any:
        """One array as a one-dimensional one of numbers; of bytes where its dtype is not a number's."""
        of = self.layout.leaf(leaf)
        dtype, count = line_type(of.dtype, of.size(self._rank))
        return self._device.view(self._memory, self._offsets[leaf], dtype, (count,))

    def carry_over(self, old: "Holding") -> list[Step]:
        """Steps that copy the arrays of older memory which have the same shape here."""
        pairs = list(enumerate(zip(self.layout.leaves, old.layout.leaves, strict=True)))
        same = [i for i, (new, was) in pairs if new.shapes[self._rank] == was.shapes[self._rank]]
        return [self._device.copy(self.array(i), old.array(i)) for i in same]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank is, and what it works with.

    Attributes:
        rank: of this process.
        world_size: number of ranks.
        control: the world's control block.
        device: of this rank.
        segments: by id; changes as segments are attached and dropped.
        holdings: memory of variables, by number; changes likewise.
    """

    rank: int
    world_size: int
    control: ControlBlock
    device: Device
    segments: Mapping[int, Segment]
    holdings: Mapping[int, Holding]

    def host(self, array: HostArray) -> Array:
        """The array in its segment."""
        return self.segments[array.segment].array(array.dtype, array.shape, array.offset)


@dataclass(frozen=True, slots=True)
class SliceRows:
    """The rows of one slice.

    Attributes:
        data: which rows of the sharded arguments; None where there are none.
        start: position of the first among the rows of the call.
        stop: position after the last.
        own: which of the rank's own rows of sliceable variables; None where there are none.
        among: the rows of the sharded arguments that the rank gets in all.
        shard: of which of the rank's shards this is a slice, counted from 0.
        number: of the slice, among those of its shard that have rows.
    """

    data: Rows | None
    start: int
    stop: int
    own: Rows | None = None
    among: Rows | None = None
    shard: int = 0
    number: int = 0

    @property
    def count(self) -> int:
        """How many."""
        return self.stop - self.start


class Repeated(ABC):
    """What a rank does when the coordinator asks for a number: a program, a collective, a transfer.

    Attributes:
        segments: ids of the segments that it is about.
        variables: numbers of the variables' memory that it is about.
        function: id of the function that it calls, if any.
        written: ids of the segments beside these whose places it knows, and which may go while it stays.
        again: how compiled code repeats the last call; None where it cannot, or not yet.
    """

    written: Collection[int] = ()
    segments: frozenset[int]
    variables: frozenset[int]
    function: int | None

    @abstractmethod
    def __call__(self) -> News | None:
        """One call; returns what the coordinator does not know yet."""

    @abstractmethod
    def forget_buffers(self) -> None:
        """Makes the next call find its memory again: a segment was mapped anew, or a variable's memory made."""

    @property
    def again(self) -> Again | None:
        return None

    def descriptors(self, news: News) -> list[int]:
        """What must be sent along with the news."""
        return []

    def close(self) -> None:
        """Frees its memory."""
        self.forget_buffers()


class Routine(Repeated):
    """One program on one rank."""

    def __init__(self, program: Program, place: Place) -> None:
        self.program = program
        self.function = program.function
        self.place = place
        self.workspace = place.device.workspace(sliced=program.is_cut)
        self.segments = program.segments()
        self.variables = program.variables()
        layout = struct.Struct("<" + program.values)
        self._refuses_writes = place.device.traits.shares_memory  # to inputs, which are the host's own
        self._slicing = Partition.even(program.num_slices)  # of each shard
        self._unpack = layout.unpack
        self._packed_values = place.control.values.data[: layout.size]
        self._loaded: dict[object, tuple[Any, object]] = {}  # slot → what its memory holds, where that is known, and the memory
        self._packed: bytes | None = None  # not the values: 0.0 equals −0.0, and NaN not itself
        # Scalars come first in the values, then what selects rows, then where results go.
        fields = len(program.rows.values) + (0 if program.own is None else len(program.own.values)) + program.lent
        self._row_values = len(program.values) - fields  # every value is one letter of the format
        self._scalar_bytes = layout.size - 8 * fields

    @abstractmethod
    def bind(self, values: tuple[Any, ...], scalars: bytes) -> None:
        """Makes the steps for these values; `scalars` are those of them that do not select rows, as they were packed."""

    @abstractmethod
    def run(self) -> News | None:
        """Executes the steps; returns what the coordinator does not know yet."""

    def __call__(self) -> News | None:
        """One call."""
        packed = bytes(self._packed_values)
        if packed != self._packed:
            self._packed = None  # what is bound is undefined until it has succeeded
            self.bind(self._unpack(packed), packed[: self._scalar_bytes])
            self._packed = packed
        return self.run()

    def forget_buffers(self) -> None:
        self._packed = None
        self._loaded.clear()

    def close(self) -> None:
        super().close()
        self.workspace.close()

    # ---- rows

    def selected(self, values: tuple[Any, ...]) -> Rows | None:
        """All rows of the call."""
        source = self.program.rows
        if source.kind == "none":
            return None
        if source.kind == "all":
            return Range(0, 1, source.length)
        if source.kind == "range":
            return Range(*values[:3])
        assert source.indices is not None  # a "list" has indices
        return Listed(self.place.host(source.indices)[: values[0]])

    def own_rows(self, values: tuple[Any, ...]) -> tuple[Rows | None, int]:
        """This rank's rows of sliceable variables, and how many rows the ranks before it have."""
        source, rank = self.program.own, self.place.rank
        if source is None:
            return None, 0
        if source.kind == "all":
            return Range(0, 1, source.lengths[rank]), sum(source.lengths[:rank])
        if source.kind == "range":
            return Range(*values[3 * rank : 3 * rank + 3]), sum(values[2 : 3 * rank : 3])
        assert source.indices is not None  # a "list" has indices
        before = sum(values[:rank])
        return Listed(self.place.host(source.indices)[before : before + values[rank]]), before

    def slices(self, values: tuple[Any, ...]) -> list[SliceRows | None]:
        """The slices of this rank's shards, those that have rows; [None] where the call is not about rows."""
        if self.program.solo and self.place.rank != 0:
            return []
        selecting = values[self._row_values :]
        fields = len(self.program.rows.values)
        rows = self.selected(selecting[:fields])
        own, before = self.own_rows(selecting[fields:])
        if rows is None:
            return [None] if own is None else self._own_slices(own, before)
        cuts = self.program.partition.shard_edges(rows.count, self.program.shards, self.place.rank)
        among = rows.between(cuts[0], cuts[-1])
        return [one for shard in range(len(cuts) - 1) for one in self._shard_slices(rows, cuts, shard, own, among)]

    def _shard_slices(self, rows: Rows, cuts: Sequence[int], shard: int, own: Rows | None, among: Rows) -> list[SliceRows]:
        """The slices of one of this rank's shards; `cuts` is where these start, and where the last one stops."""
        start, stop = cuts[shard : shard + 2]
        mine, slicing = rows.between(start, stop), self._slicing
        out: list[SliceRows] = []
        for k in range(slicing.parts):
            low, high = slicing.part(stop - start, k)
            of_own = None if own is None else _between(own, *slicing.part(own.count, k))
            if high > low or (of_own is not None and of_own.count):
                out.append(SliceRows(_between(mine, low, high), start + low, start + high, of_own, among, shard, len(out)))
        return out

    def _own_slices(self, own: Rows, before: int) -> list[SliceRows | None]:
        out: list[SliceRows | None] = []
        for k in range(self._slicing.parts):
            low, high = self._slicing.part(own.count, k)
            if high > low:
                out.append(SliceRows(None, before + low, before + high, own.between(low, high), number=len(out)))
        return out

    # ---- arguments

    def argument(self, slot: object, param: Any, rows: SliceRows | None, values: tuple[Any, ...], moves: "Moves") -> Any:
        """What the function gets for one parameter, and the moves that go with it."""
        match param:
            case Sharded(array, by_position, writable):
                assert rows is not None  # sharded arguments make rows
                assert rows.data is not None
                selection = Range(rows.start, 1, rows.count) if by_position else rows.data
                if moves.number == 0 and not by_position and rows.among is not None:
                    self.workspace.expect(self.place.host(array), rows.among)
                make = partial(self.workspace.rows, host=self.place.host(array), rows=selection, writable=writable)
                return self._bring((slot, moves.turn), array, selection, make, moves)
            case Broadcast(array):
                make = partial(self.workspace.whole, host=self.place.host(array))
                if moves.number:  # the first slice has brought it
                    return make(slot).array
                return self._bring(slot, array, None, make, moves)
            case Held(number, leaf, read_only):
                array = self.held(number, leaf)
                return self.place.device.read_only(array) if read_only else array
            case Update():
                assert moves.updates is not None  # made with the binding
                return moves.updates.array(slot, moves)
            case HeldRows(number, leaf, writable):
                assert rows is not None  # sliceable arguments make rows
                assert rows.own is not None
                array = self.place.holdings[number].array(leaf)
                buffer = self.workspace.held_rows(slot, array, rows.own, writable=writable)
                moves.before += [] if buffer.load is None else [buffer.load]
                moves.after += [] if buffer.store is None else [buffer.store]
                return buffer.array
            case Dynamic():
                return scalar_value(param, values)
            case Constant(value):
                return value
            case IndexSpan(first):
                start, stop = _index_bounds(rows)
                return Span(first + start, first + stop)
            case Filled(constant):
                return self._filled(constant, rows)
            case PerRank(per_rank):
                return per_rank[self.place.rank]
            case Tree(structure, leaves):
                parts = [self.argument((slot, i), leaf, rows, values, moves) for i, leaf in enumerate(leaves)]
                return unflatten(structure, parts)
        raise AssertionError(param)

    def _bring(
        self, slot: object, array: HostArray, rows: Rows | None, make: Callable[[object], Buffer], moves: "Moves"
    ) -> Any:
        """An input; its load and store are added to the moves.

        Frozen contents are loaded once. What the function may write to, as far as one can see, is a copy of them, made anew on
        the device at each call.
        """
        # A list of rows may change, and slices replace each other's.
        stays = array.version and not isinstance(rows, Listed) and not self.program.is_cut
        is_read = self._refuses_writes or _name_of(slot) in self.program.only_read
        kept = slot if is_read or not stays else ("kept", slot)
        buffer = make(kept)
        if buffer.store is not None:
            moves.stores.append(buffer.store)
        if buffer.load is None:
            return buffer.array
        if not stays:
            moves.loads.append(buffer.load)
            return buffer.array
        moves.checks.append(partial(self._load_once, kept, (array.version, rows), self.workspace.storage(kept), buffer.load))
        if is_read:
            return buffer.array
        own = self.workspace.scratch(slot, buffer.array.dtype, buffer.array.shape)
        moves.before.append(self.place.device.copy(own, buffer.array))
        return own

    def _load_once(self, slot: object, contents: object, memory: object, load: Step) -> None:
        """Loads, unless the slot's memory has these very rows of frozen contents."""
        found = self._loaded.get(slot)
        if found is None or found[0] != contents or found[1] is not memory:
            self._loaded.pop(slot, None)  # until it has succeeded
            self.contents_change()
            load()
            self._loaded[slot] = (contents, memory)

    def contents_change(self) -> None:
        """Other rows than before are loaded where calls find frozen ones."""

    def held(self, number: int, leaf: int) -> Any:
        """The rank's array of a variable, as the function gets it."""
        return self.place.holdings[number].array(leaf)

    def _filled(self, constant: RankConstant, rows: SliceRows | None) -> int:
        match constant:
            case RankConstant.RANK:
                return self.place.rank
            case RankConstant.WORLD_SIZE:
                return 1 if self.program.solo else self.place.world_size
            case RankConstant.OFFSET:
                return _index_bounds(rows)[0]
            case RankConstant.SLICE:
                return 0 if rows is None else rows.number


def _name_of(slot: object) -> object:
    """The parameter that a slot belongs to."""
    while isinstance(slot, tuple):
        slot = slot[0]
    return slot


def _between(rows: Rows, low: int, high: int) -> Rows:
    """Rows from one position to another; nothing is gathered where there are none."""
    return rows.between(low, high) if high > low else Range(0, 1, 0)


def scalar_value(param: Dynamic, values: tuple[Any, ...]) -> Any:
    """The scalar of this call."""
    value = complex(values[param.index], values[param.index + 1]) if param.is_complex else values[param.index]
    return value if param.dtype is None else np.dtype(param.dtype).type(value)


def _index_bounds(rows: SliceRows | None) -> tuple[int, int]:
    """The indices of a contiguous selection; the coordinator has refused any other."""
    if rows is None:
        return 0, 0
    if rows.data is None:  # rows of variables: their index is their position in the whole
        return rows.start, rows.stop
    assert isinstance(rows.data, Range)  # checked in the coordinator
    return rows.data.start, rows.data.start + rows.count


class UpdateArrays(Protocol):
    """Where a slice accumulates what variables are updated with."""

    def array(self, slot: object, moves: "Moves") -> Any:
        """The accumulator of one parameter; what prepares it is added to the moves."""

    def fold(self) -> list[Step]:
        """Steps after a slice."""


class Moves:
    """What goes on around one slice's work.

    Attributes:
        number: of the slice.
        turn: which of its arguments' buffers it uses.
        updates: of the variables that the program updates, if any.
        checks: loads that are left out where nothing has changed; they come before everything else of the call.
        loads: from the host.
        before: on the device, before the work.
        after: on the device, after it.
        stores: to the host.
    """

    def __init__(self, number: int, turns: int, updates: "UpdateArrays | None" = None) -> None:
        self.number = number
        self.turn = number % turns
        self.updates = updates
        self.checks: list[Step] = []
        self.loads: list[Step] = []
        self.before: list[Step] = []
        self.after: list[Step] = []
        self.stores: list[Step] = []

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing but the work."""
        return not (self.checks or self.loads or self.before or self.after or self.stores)

    def around(self, *work: Step) -> SliceSteps:
        """The slice's steps but for the checks."""
        return SliceSteps(self.loads, [*self.before, *work, *self.after], self.stores)
