"""Routes: which bytes of which segments a program moves between the coordinator's machine and
another one.

    Program ──Route.of──> Route, which has nothing of the user's ──at (values of a call)──> Moves of one machine: in, and out

Both machines work out the same moves from the same values, so nothing but the rows is sent. Frozen
rows are sent once: both note which were.
"""  # noqa: E501

import math
import struct
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np

from synknumba._ops.rows import Partition, Range, RowPlan, Rows
from synknumba._types import Array, Cache
from synknumba._wire import program as wire
from synknumba._wire.program import HostArray

CALLS_KEPT = 64  # moves of calls that a route remembers, by the values that select rows


@dataclass(frozen=True, slots=True)
class Move:
    """Consecutive bytes, or rows, of a segment.

    Attributes:
        segment: id.
        offset: of the first byte, or of row 0.
        nbytes: number of bytes to move.
        rows: rows to move one by one, in this order; None for consecutive bytes.
        table: rows in the segment: (number of rows, bytes of one).
        version: of frozen contents; 0 for others.
    """

    segment: int
    offset: int
    nbytes: int
    rows: "Rows | Indices | None" = None
    table: tuple[int, int] = (0, 0)
    version: int = 0

    @property
    def key(self) -> tuple[int, int, int, int]:
        """What identifies frozen bytes that were sent."""
        return self.segment, self.version, self.offset, self.nbytes


@dataclass(frozen=True, slots=True)
class Indices:
    """Row numbers that are in a segment, and are moved first."""

    array: HostArray
    start: int  # first row number, counted in elements from the start of the array
    count: int


Moves: TypeAlias = tuple[tuple[Move, ...], tuple[Move, ...]]  # in before ranks work, back after it
Values: TypeAlias = tuple[Any, ...]  # of a call


@dataclass(frozen=True, slots=True)
class TransferMoves:
    """Arrays that a transfer copies between the script's machine and ranks.

    Attributes:
        arrays: the arrays.
        up: whether they go to the ranks.
    """

    arrays: tuple[wire.Transferred, ...] = ()
    up: bool = True

    def at(self, values: Values, first: int, after: int) -> Moves:
        """Returns the moves of the ranks first … after − 1."""
        moves: dict[Move, None] = {}  # ranks may share an array
        for array in self.arrays:
            for host in array.hosts[first:after]:
                if host is not None:
                    moves[_whole(host)] = None
        filled = _filled(moves)
        if self.up:
            return filled, ()
        return (), filled


@dataclass(frozen=True, slots=True)
class ProgramMoves:
    """What a call of a program reads and writes in segments.

    Attributes:
        arrays: parameters that lie in segments.
    """

    rows: wire.RowSource
    own: wire.OwnSource | None
    partition: Partition
    shards: int | None
    lent: int
    arrays: tuple[Any, ...]

    def at(self, values: Values, first: int, after: int) -> Moves:
        """Returns the moves of the ranks first … after − 1 in a call with these values."""
        own_end = len(values) - self.lent
        own_start = own_end if self.own is None else own_end - len(self.own.values)
        selecting = values[own_start - len(self.rows.values) : own_start]
        own_counts = None if self.own is None else self.own.counts(values[own_start:own_end])
        plan = RowPlan(self.partition, self.shards, 1, self.rows.count(selecting), own_counts)
        low, high = plan.span(first, after)
        shards = _span(*plan.shard_span(first, after))
        rows = self._rows(selecting, low, high)
        ins: list[Move] = []
        outs: list[Move] = []
        if isinstance(rows, Indices):
            ins.append(_list_move(rows.array, rows.start, rows.count))
        if self.own is not None and self.own.indices is not None:
            own_low, own_high = plan.own_span(first, after)
            ins.append(_list_move(self.own.indices, own_low, own_high - own_low))
        for array in self.arrays:
            match array:
                case wire.Sharded(host, by_position, writable):
                    moves = _rows_of(host, _span(low, high) if by_position else rows)
                    ins += moves
                    if writable:
                        outs += moves
                case wire.Broadcast(host):
                    ins.append(_whole(host))
                case wire.Result():
                    written = _span(low, high) if array.op == "gather" else shards
                    outs += self._parts(array, values, written)
                case wire.Update(parts=HostArray() as parts):
                    outs += _rows_of(parts, shards)
        return _filled(ins), _filled(outs)

    def _rows(self, selecting: Values, low: int, high: int) -> "Rows | Indices | None":
        """Returns the rows at positions low … high − 1 among those of the call."""
        source = self.rows
        match source.kind:
            case "none":
                return None
            case "all":
                return _span(low, high)
            case "range":
                return Range(*selecting).between(low, high)
        assert source.indices is not None  # a "list" or "line" has indices
        start = low
        if source.kind == "line":
            start += selecting[0] * source.indices.shape[1]
        return Indices(source.indices, start, high - low)

    def _parts(self, result: wire.Result, values: Values, rows: Range) -> Iterator[Move]:
        """Returns the moves of a large output."""
        for array in (result.parts, result.rows):
            if array is None:
                continue
            segment = array.segment
            if result.lent is not None:
                segment = values[len(values) - self.lent + result.lent]
            yield from _rows_of(replace(array, segment=segment), rows)


@dataclass(slots=True)
class Route:
    """What a program reads and writes in segments, without anything of the user's.

    Attributes:
        number: of the program.
        values: `struct` format of the values of a call.
        moves: what they are worked out from.
        small_bytes: bytes of a rank's small results that a round may write, from the first; −1 for
            a Python function, whose results say how many they are.
        small_start: first byte of a Python function's small results.
        scalar_bytes: bytes of the scalars, the first of the values, which select nothing.
        reduced: arrays that the machines combine.
    """

    number: int
    values: str = ""
    moves: ProgramMoves | TransferMoves = TransferMoves()
    small_bytes: int = 0
    small_start: int = 0
    scalar_bytes: int = 0
    reduced: tuple[wire.Reduced, ...] = ()
    _calls: Cache[bytes, dict[tuple[int, int], Moves]] = field(
        default_factory=partial(Cache, CALLS_KEPT), repr=False
    )

    @classmethod
    def of(cls, program: wire.Program | wire.Transfer, *, is_kernel: bool) -> "Route":
        """Returns the route of a program; `is_kernel` if its function is a kernel."""
        if isinstance(program, wire.Transfer):
            arrays = () if program.stays else program.arrays
            moves = TransferMoves(arrays, program.up)
            return cls(program.number, moves=moves, reduced=program.reduced)
        return cls(
            number=program.number,
            values=program.values,
            moves=ProgramMoves(
                rows=program.rows,
                own=program.own,
                partition=program.partition,
                shards=program.shards,
                lent=program.lent,
                arrays=tuple(_arrays(program)),
            ),
            small_bytes=_small_bytes(program) if is_kernel else -1,
            small_start=program.returns.small[0] if program.returns.small else 0,
            scalar_bytes=struct.calcsize("<" + program.scalars),
        )

    @property
    def size(self) -> int:
        """Bytes of the values of a call."""
        return struct.calcsize("<" + self.values)

    def at(self, packed: bytes, first: int, after: int) -> Moves:
        """Returns the moves of the ranks first … after − 1 in a call with these values."""
        selecting = packed[self.scalar_bytes :]
        by_ranks = self._calls.get(selecting)
        if by_ranks is None:
            by_ranks = self._calls[selecting] = {}
        moves = by_ranks.get((first, after))
        if moves is None:
            moves = (), ()
            if first < after:  # not a machine without ranks
                moves = self.moves.at(struct.unpack("<" + self.values, packed), first, after)
            by_ranks[first, after] = moves
        return moves


def _arrays(program: wire.Program) -> Iterator[Any]:
    """Returns the parameters that lie in segments, without anything of the user's."""
    for leaf in program.leaves():
        match leaf:
            case wire.Sharded() | wire.Broadcast():
                if leaf.array.source is None:  # else a file, which each rank opens itself
                    yield leaf
            case wire.Result():
                if leaf.parts is None or leaf.is_small or leaf.stays:
                    continue
                if leaf.op is None or isinstance(leaf.op, str):
                    yield leaf
                else:
                    yield replace(leaf, op="sum")  # any that is not "gather"
            case wire.Update():
                if leaf.parts is not None:
                    yield replace(leaf, op="sum")


def _small_bytes(program: wire.Program) -> int:
    ends = [
        leaf.parts.offset + math.prod(leaf.shape) * np.dtype(leaf.parts.dtype).itemsize
        for leaf in program.leaves()
        if isinstance(leaf, wire.Result) and leaf.is_small and leaf.parts is not None
    ]
    return max(ends, default=0)


def _filled(moves: Iterable[Move]) -> tuple[Move, ...]:
    """Returns the moves that have bytes."""
    return tuple(move for move in moves if move.nbytes)


def _list_move(array: HostArray, start: int, count: int) -> Move:
    """Returns the move of a part of a list of row numbers."""
    return Move(array.segment, array.offset + 8 * start, 8 * count)


def _span(first: int, after: int) -> Range:
    return Range(first, 1, after - first)


def _row_bytes(array: HostArray) -> int:
    return np.dtype(array.dtype).itemsize * math.prod(array.shape[1:])


def _whole(array: HostArray) -> Move:
    nbytes = np.dtype(array.dtype).itemsize * math.prod(array.shape)
    return Move(array.segment, array.offset, nbytes, version=array.version)


def _rows_of(array: HostArray, rows: "Rows | Indices | None") -> list[Move]:
    """Returns the move of some rows of an array; none if there are none."""
    width = _row_bytes(array)
    if rows is None or rows.count == 0 or width == 0:
        return []
    if isinstance(rows, Range) and rows.step == 1:
        return [
            Move(
                array.segment,
                array.offset + rows.start * width,
                rows.count * width,
                version=array.version,
            )
        ]
    return [
        Move(
            array.segment,
            array.offset,
            rows.count * width,
            rows,
            (array.shape[0], width),
            array.version,
        )
    ]


class MemoryOf(Protocol):
    """Views of segments by id."""

    def __call__(self, segment: int, dtype: Any, shape: tuple[int, ...], offset: int) -> Array:
        """Returns a view of an array in a segment."""
        ...


class SentCache:
    """Frozen contents that a machine has got from machine 0; both keep the same record."""

    def __init__(self) -> None:
        self._moves: set[tuple[int, int, int, int]] = set()  # keys of consecutive bytes
        # By segment, version and offset of a table: whether a row is there.
        self._rows: dict[tuple[int, int, int], Array] = {}

    def unsent(self, moves: Iterable[Move]) -> list[Move]:
        """Returns the moves whose bytes are not there yet, and notes frozen ones as sent.

        Of moves of rows, returns all: see `missing`.
        """
        unsent = []
        for move in moves:
            if move.version and move.rows is None:
                if move.key in self._moves:
                    continue
                self._moves.add(move.key)
            unsent.append(move)
        return unsent

    def missing(self, move: Move, numbers: Array) -> Array:
        """Returns the rows of a move that have to be sent, and notes them.

        Of frozen contents, these are the rows that are not there.
        """
        if not move.version:
            return numbers
        key = move.segment, move.version, move.offset
        if key not in self._rows:
            self._rows[key] = np.zeros(move.table[0], np.bool_)
        present = self._rows[key]
        missing: Array = np.unique(numbers[~present[numbers]])
        present[missing] = True
        return missing

    def drop(self, segments: Collection[int]) -> None:
        """Forgets segments that are gone."""
        self._moves = {key for key in self._moves if key[0] not in segments}
        for key in [key for key in self._rows if key[0] in segments]:
            del self._rows[key]


def row_numbers(move: Move, memory: MemoryOf) -> Array:
    """Returns the numbers of the rows of a move, int64."""
    rows = move.rows
    if isinstance(rows, Indices):
        array = rows.array
        return memory(
            array.segment, np.dtype(np.int64), (rows.count,), array.offset + 8 * rows.start
        )
    assert rows is not None  # of a move of rows
    return rows.indices


def table_of(move: Move, memory: MemoryOf) -> Array:
    """Returns the rows of the segment that a move's numbers count, as one item each."""
    return memory(move.segment, np.dtype((np.void, move.table[1])), move.table[:1], move.offset)
