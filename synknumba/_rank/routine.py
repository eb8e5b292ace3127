"""Routines, the executable form of programs on a rank.

    program ──prepare──> Routine ──bind (values)──> steps ──run──> results in control block and segments

A routine is prepared once per program. Binding determines the slices and their buffers for one
selection of rows and one set of scalars, and creates a flat list of steps; it is repeated only if
these change. Running executes the steps.
"""  # noqa: E501

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from synknumba._device import Buffer, Device, LineRows, SliceSteps, Step
from synknumba._host.segment import Segment
from synknumba._host.stored import Source, opened
from synknumba._ops.rows import InLine, Listed, Range, RowPlan, Rows, Selection, line_number
from synknumba._ops.tree import unflatten
from synknumba._rank import spans
from synknumba._rank.variable_memory import Holding
from synknumba._types import Array, CallValues, RankConstant, Span
from synknumba._wire import program as wire
from synknumba._wire.control import ControlBlock
from synknumba._wire.messages import News
from synknumba._wire.relaunch import Again


@dataclass(frozen=True, slots=True)
class Place:
    """State of a rank that its routines share."""

    rank: int
    line: int  # of the control block
    world_size: int
    control: ControlBlock
    device: Device
    segments: Mapping[int, Segment]  # mapped, by id; changes as segments are attached and dropped
    # memory of variables by number; changes as variables are created and dropped
    holdings: Mapping[int, Holding]

    def host(self, array: wire.HostArray) -> Array:
        """Returns a view of an array in a segment."""
        return self.segments[array.segment].array(array.dtype, array.shape, array.offset)


@dataclass(frozen=True, slots=True)
class SliceRows:
    """The rows of one slice."""

    data: Selection | None  # of the sharded arguments, if any
    start: int  # position of the first row among the rows of the call
    stop: int  # position after the last row
    own_rows: Rows | None = None  # of the rank's sliceable variables, if any
    # all rows of the sharded arguments that the rank receives, in all slices
    among: Selection | None = None
    shard: int = 0  # index of the slice's shard among the rank's shards
    number: int = 0  # index of the slice among the slices of its shard that have rows

    @property
    def count(self) -> int:
        """Number of rows, of the call or of variables."""
        return self.stop - self.start


Slices: TypeAlias = Sequence[SliceRows | None]


class Repeated(ABC):
    """Anything that the coordinator runs by number: a program, collective, combination or transfer.

    It is dropped with any of the segments, variables and the function that it uses.
    """

    # ids of further segments that its steps refer to, which may be dropped before it
    written: Collection[int] = ()
    segments: frozenset[int]  # ids
    variables: frozenset[int]  # numbers of their memory
    function: int | None  # id

    @abstractmethod
    def __call__(self) -> News | None:
        """Runs one call; returns news for the coordinator, if any."""

    @abstractmethod
    def forget_buffers(self) -> None:
        """Makes the next call look up its memory again, after a segment has been mapped or
        page-locked anew.
        """

    @property
    def again(self) -> Again | None:
        """The `Again` by which compiled code repeats the last call; None if that is not
        possible, or not yet.
        """
        return None

    def descriptors(self, news: News) -> list[int]:
        """Returns the descriptors to send with the news."""
        return []

    def close(self) -> None:
        """Frees its device memory and recordings."""
        self.forget_buffers()


class Routine(Repeated):
    """One program on one rank."""

    def __init__(self, program: wire.Program, place: Place) -> None:
        self.program = program
        self.function = program.function
        self.place = place
        # device memory of the program
        self.workspace = place.device.workspace(sliced=program.is_cut)
        self.segments = program.segments()
        self.variables = program.variables()
        layout = struct.Struct("<" + program.values)
        self._unpack = layout.unpack
        self._packed_values = place.control.values.data[: layout.size]
        self._loaded: dict[object, tuple[Any, object]] = {}  # slot → contents, if known, and memory
        # bytes, not values: 0.0 equals −0.0, and NaN differs from itself
        self._packed: bytes | None = None
        # Order of the values: scalars, row selections, ids of segments for results.
        self._row_values = len(program.scalars)  # one letter of the format per value
        # bytes of the scalars among the packed values
        self.scalar_bytes = struct.calcsize("<" + program.scalars)

    @abstractmethod
    def bind(self, values: CallValues, scalars: bytes) -> None:
        """Creates the steps for a call with these values; `scalars` are the bytes of those among
        them that are scalars.
        """

    @abstractmethod
    def run(self) -> News | None:
        """Runs the steps; returns news for the coordinator, if any."""

    def __call__(self) -> News | None:
        """Binds the values of the control block if they have changed, and runs the steps."""
        return self.call(bytes(self._packed_values))

    def call(self, packed: bytes) -> News | None:
        """Binds packed values if they have changed, and runs the steps."""
        if packed != self._packed:
            if spans.active is None:
                self.bind_packed(packed)
            else:
                spans.active.run_one(partial(self.bind_packed, packed), "bind")
        return self.run()

    def bind_packed(self, packed: bytes) -> None:
        """Binds packed values."""
        self._packed = None  # the binding is undefined until `bind` has succeeded
        self.bind(self._unpack(packed), packed[: self.scalar_bytes])
        self._packed = packed

    def forget_buffers(self) -> None:
        self._packed = None
        self._loaded.clear()

    def close(self) -> None:
        super().close()
        self.workspace.close()

    # ---- rows

    def selected(self, values: CallValues, *, in_line: bool = False) -> Selection | None:
        """Returns all rows of the call; None if it has no sharded arguments. `values` are those
        that select rows.
        """
        source = self.program.rows
        if source.kind == "none":
            return None
        if source.kind == "all":
            return Range(0, 1, source.length)
        if source.kind == "range":
            return Range(*values[:3])
        assert source.indices is not None  # a "list" or "line" has indices
        host = self.place.host(source.indices)
        if in_line:
            return InLine(host, values[0], 0, host.shape[1])
        if source.kind == "line":
            return Listed(host[line_number(values[0], len(host))])
        return Listed(host[: values[0]])

    def own_rows(self, values: CallValues, plan: RowPlan) -> Rows | None:
        """Returns this rank's rows of sliceable variables."""
        source, rank = self.program.own, self.place.rank
        if source is None:
            return None
        if source.kind == "all":
            return Range(0, 1, source.lengths[rank])
        if source.kind == "range":
            return Range(*values[3 * rank : 3 * rank + 3])
        assert source.indices is not None  # a "list" has indices
        return Listed(self.place.host(source.indices)[slice(*plan.own_span(rank, rank + 1))])

    def slices(self, values: CallValues, *, in_line: bool = False) -> list[SliceRows | None]:
        """Returns the slices of this rank's shards that have rows; [None] if the call has no rows.

        With `in_line`, the rows are those of a line, which may change.
        """
        program, rank = self.program, self.place.rank
        if program.solo and rank != 0:
            return []
        selecting = values[self._row_values :]
        fields = len(program.rows.values)
        rows = self.selected(selecting[:fields], in_line=in_line)
        if rows is None and program.own is None:
            return [None]
        count, own_counts = None, None
        own_values = selecting[fields : len(selecting) - program.lent]
        if rows is not None:
            count = rows.count
        if program.own is not None:
            own_counts = program.own.counts(own_values)
        plan = program.row_plan(count, own_counts)
        own_rows = self.own_rows(own_values, plan)
        among = _between(rows, *plan.span(rank, rank + 1))
        slices: list[SliceRows | None] = []
        for part in plan.slices(rank):
            data = _between(rows, part.start, part.stop)
            own = _between(own_rows, *part.own)
            slices.append(
                SliceRows(data, part.start, part.stop, own, among, part.shard, part.number)
            )
        return slices

    def done_after(self, slices: Sequence[object]) -> list[int]:
        """Returns what the rank shows after each slice: how many are done, those without rows
        among them.
        """
        first, after = self.program.own_shards(self.place.rank)
        most = self.program.num_slices * (after - first)
        return [most * (number + 1) // len(slices) for number in range(len(slices))]

    # ---- arguments

    def argument(
        self,
        slot: object,
        param: Any,
        rows: SliceRows | None,
        values: CallValues,
        moves: "Moves",
    ) -> Any:
        """Returns the argument of one slice for one parameter; adds the steps that it needs to the
        moves.

        The slot is the key of the argument's memory: the name of the parameter, or (slot, index)
        inside a nested argument.
        """
        match param:
            case wire.Sharded():
                assert rows is not None  # a call with sharded arguments has rows
                return self._sharded((slot, moves.turn), param, rows, moves)
            case wire.Broadcast(array):
                return self._broadcast(slot, array, moves)
            case wire.Held(number, leaf, read_only):
                array = self.held(number, leaf)
                return self.place.device.read_only(array) if read_only else array
            case wire.Result() | wire.Update():
                return moves.outputs.by_slot[slot].array(rows, moves)
            case wire.HeldRows():
                assert rows is not None  # a call with sliceable arguments has rows
                return self._held_rows(slot, param, rows, moves)
            case wire.Dynamic():
                return scalar_value(param, values)
            case wire.Constant(value):
                return value
            case wire.IndexSpan(first):
                start, stop = _index_bounds(rows)
                return Span(first + start, first + stop)
            case wire.Filled(constant):
                return self._filled(constant, rows)
            case wire.PerRank(per_rank):
                return per_rank[self.place.rank]
            case wire.Tree(structure, leaves):
                parts = []
                for index, child in enumerate(leaves):
                    parts.append(self.argument((slot, index), child, rows, values, moves))
                return unflatten(structure, parts)
        raise AssertionError(param)

    def _sharded(self, slot: object, param: wire.Sharded, rows: SliceRows, moves: "Moves") -> Any:
        """Returns the rows of an array of the script that a slice has."""
        array, selection = param.array, rows.data
        assert selection is not None  # the call has sharded arguments
        if param.by_position:
            selection = Range(rows.start, 1, rows.count)
        if array.source is not None:
            return self._bring_stored(slot, array, array.source, selection, moves)
        if isinstance(selection, InLine):
            return self._bring_line(slot, array, selection, moves)
        host = self.place.host(array)
        if moves.number == 0 and not param.by_position and rows.among is not None:
            self.workspace.expect(host, rows.among)
        make = partial(self.workspace.rows, host=host, rows=selection, writable=param.writable)
        return self._bring(slot, array, selection, make, moves)

    def _broadcast(self, slot: object, array: wire.HostArray, moves: "Moves") -> Any:
        """Returns an array of the script, which the first slice loads."""
        if array.source is None:
            make = partial(self.workspace.whole, host=self.place.host(array))
            if moves.number:
                return make(slot).array
            return self._bring(slot, array, None, make, moves)
        all_rows = Range(0, 1, array.shape[0])
        if not moves.number:
            return self._bring_stored(slot, array, array.source, all_rows, moves)
        file = opened(array.source)
        return self.workspace.stored(slot, file, array.dtype, array.shape, all_rows).array

    def _held_rows(
        self, slot: object, param: wire.HeldRows, rows: SliceRows, moves: "Moves"
    ) -> Any:
        """Returns the rows of a variable that a slice has."""
        assert rows.own_rows is not None  # the call has sliceable arguments
        array = self.place.holdings[param.variable].own(param.leaf)
        buffer = self.workspace.held_rows(slot, array, rows.own_rows, writable=param.writable)
        if buffer.load is not None:
            moves.before.append(buffer.load)
        if buffer.store is not None:
            moves.after.append(buffer.store)
        return buffer.array

    def _bring(
        self,
        slot: object,
        array: wire.HostArray,
        rows: Rows | None,
        make: Callable[[object], Buffer],
        moves: "Moves",
    ) -> Any:
        """Returns an input; adds its load and store to the moves.

        Frozen contents are loaded once. If the kernel may write to them, it receives a device copy,
        made anew at each call.
        """
        # The rows of a list may change, and slices overwrite each other's buffers.
        stays = array.version and not isinstance(rows, Listed) and not self.program.is_cut
        # where inputs are the host's memory, their arrays are read-only
        refuses_writes = self.place.device.traits.shares_memory
        is_read = refuses_writes or _name_of(slot) in self.program.kernel.only_read
        needs_copy, memory_slot = stays and not is_read, slot
        if needs_copy:
            memory_slot = "kept", slot
        buffer = make(memory_slot)
        if buffer.store is not None:
            moves.stores.append(buffer.store)
        if buffer.load is None:
            return buffer.array
        if not stays:
            moves.loads.append(buffer.load)
            return buffer.array
        memory = self.workspace.storage(memory_slot)
        check = partial(
            self._load_once,
            memory_slot,
            (array.version, rows),
            memory,
            buffer.load,
        )
        moves.checks.append(check)
        if not needs_copy:
            return buffer.array
        copy = self.workspace.scratch(slot, buffer.array.dtype, buffer.array.shape)
        moves.before.append(self.place.device.copy(copy, buffer.array))
        return copy

    def _bring_stored(
        self,
        slot: object,
        array: wire.HostArray,
        source: Source,
        selection: Selection,
        moves: "Moves",
    ) -> Any:
        """Returns an input that is read from a file that this rank opens; adds the steps that
        read it to the moves.
        """
        if isinstance(selection, InLine):
            moves.has_fixed_line = True
            selection = selection.listed
        rows: Rows = selection
        shape = (rows.count, *array.shape[1:])

        def make(memory_slot: object) -> Buffer:
            return self.workspace.stored(memory_slot, opened(source), array.dtype, shape, rows)

        return self._bring(slot, array, rows, make, moves)

    def _bring_line(self, slot: object, array: wire.HostArray, rows: InLine, moves: "Moves") -> Any:
        """Returns an input that has the rows of a line; adds the steps that gather them to the
        moves.
        """
        host = self.place.host(array)
        gathered = self.workspace.line_rows(slot, host, rows)
        if gathered is None:
            moves.has_fixed_line = True
            make = partial(self.workspace.rows, host=host, rows=rows.listed, writable=False)
            return self._bring(slot, array, rows.listed, make, moves)
        gathered.gather.take(rows.line)
        moves.in_line.append(gathered)
        return gathered.array

    def _load_once(self, slot: object, contents: object, memory: object, load: Step) -> None:
        """Loads rows of frozen contents, unless the slot's memory already has them."""
        loaded = self._loaded.get(slot)
        if loaded is None or loaded[0] != contents or loaded[1] is not memory:
            self._loaded.pop(slot, None)  # contents are unknown until the load has succeeded
            self.contents_change()
            load()
            self._loaded[slot] = (contents, memory)

    def contents_change(self) -> None:
        """Called before frozen rows are replaced by others in memory that earlier calls use."""

    def held(self, number: int, leaf: int) -> Any:
        """Returns the rank's array of a variable."""
        return self.place.holdings[number].array(leaf)

    def _filled(self, constant: RankConstant, rows: SliceRows | None) -> int:
        match constant:
            case RankConstant.RANK:
                return self.place.rank
            case RankConstant.WORLD_SIZE:
                return 1 if self.program.solo else self.place.world_size
            case RankConstant.OWN:
                raise AssertionError(constant)  # the coordinator fills it in
        if rows is None:
            return 0
        match constant:
            case RankConstant.OFFSET:
                return _index_bounds(rows)[0]
            case RankConstant.ROWS:
                return rows.count
            case RankConstant.SLICE:
                return rows.number
            case RankConstant.POSITION:
                return rows.start


def _name_of(slot: object) -> object:
    """Returns the name of the parameter that a slot belongs to."""
    while isinstance(slot, tuple):
        slot = slot[0]
    return slot


def _between(rows: Any, low: int, high: int) -> Any:
    """Returns the rows at positions low … high − 1, None without any rows; for an empty part a
    `Range`, which needs no gather.
    """
    if rows is None:
        return None
    return rows.between(low, high) if high > low else Range(0, 1, 0)


def scalar_value(param: wire.Dynamic, values: Sequence[Any]) -> Any:
    """Returns the value of a scalar parameter in this call."""
    value = values[param.index]
    if param.is_complex:
        value = complex(value, values[param.index + 1])
    return value if param.dtype is None else np.dtype(param.dtype).type(value)


def scalar_reader(param: wire.Dynamic) -> Callable[[Sequence[Any]], Any]:
    """Returns what gets the value of a scalar parameter from the values of a call."""
    if param.is_complex or param.dtype is not None:
        return partial(scalar_value, param)
    return itemgetter(param.index)


def _index_bounds(rows: SliceRows | None) -> tuple[int, int]:
    """Returns the first index of contiguous rows and the one after the last; the coordinator has
    refused other selections.
    """
    if rows is None:
        return 0, 0
    # rows of variables: the index is the position among the rows of all ranks
    if rows.data is None:
        return rows.start, rows.stop
    assert isinstance(rows.data, Range)  # checked in the coordinator
    return rows.data.start, rows.data.start + rows.count


class Moves:
    """Steps around the launch or call of one slice.

    Args:
        number: index of the slice.
        turns: number of buffers of each argument, which the slices use in turn.
        outputs: outputs of the program, and updated variables.
    """

    def __init__(self, number: int, turns: int, outputs: "Outputs") -> None:
        self.number = number
        self.turn = number % turns
        self.outputs = outputs
        # loads that are skipped if nothing has changed; run before all other steps of the call
        self.checks: list[Step] = []
        self.loads: list[Step] = []  # copies from the host
        self.in_line: list[LineRows] = []  # rows of a line, whose gathers are in none of the others
        # whether other rows of a line are among the loads, and the line cannot be changed
        self.has_fixed_line = False
        self.before: list[Step] = []  # on the device, before the launch or call
        self.after: list[Step] = []  # on the device, after it
        self.stores: list[Step] = []  # copies to the host

    @property
    def is_empty(self) -> bool:
        """Whether no steps are needed around the launch or call."""
        return not (self.checks or self.loads or self.before or self.after or self.stores)

    def around(self, *work: Step) -> SliceSteps:
        """Returns the slice's steps around `work`, without the checks."""
        return SliceSteps(self.loads, [*self.before, *work, *self.after], self.stores)


class OutputSteps(ABC):
    """One output of a kernel, or updated variable, on one rank: the arrays that slices write, and
    the steps around that.

    Attributes:
        before: steps before the first slice.
        after: steps after the last one, such as those that store the total.
    """

    before: Sequence[Step] = ()
    after: Sequence[Step] = ()

    @abstractmethod
    def array(self, rows: SliceRows | None, moves: Moves) -> Any:
        """Returns the array to write for one slice; adds the steps that prepare and store it to
        the moves.
        """

    @abstractmethod
    def fold(self, rows: SliceRows | None) -> list[Step]:
        """Returns the steps after a slice, which has written the last `array`."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """All outputs of a call on one rank, and updated variables, by slot."""

    by_slot: Mapping[object, OutputSteps]

    @property
    def before(self) -> list[Step]:
        """The steps before the first slice."""
        return [step for output in self.by_slot.values() for step in output.before]

    @property
    def after(self) -> list[Step]:
        """The steps after the last slice."""
        return [step for output in self.by_slot.values() for step in output.after]

    def fold(self, rows: SliceRows | None) -> list[Step]:
        """Returns the steps after a slice, whose arrays were the last to be requested."""
        return [step for output in self.by_slot.values() for step in output.fold(rows)]
