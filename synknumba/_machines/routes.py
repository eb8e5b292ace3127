"""Routes: which bytes of which segments a program moves between the coordinator's machine and
another one.

    Program ──Route.of──> Route, which has nothing of the user's ──at (values of a call)──> Moves of one machine: in, and out

Both machines work out the same moves from the same values, so nothing but the rows is sent. Frozen
rows are sent once: both note which were.
"""  # noqa: E501

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import numpy as np

from synknumba._ops.rows import Partition, Range, Rows
from synknumba._types import Array
from synknumba._wire import program as wire
from synknumba._wire.program import HostArray

CALLS_KEPT = 64  # moves of calls that a route remembers, by the values that select rows

SPEC_BYTES = 8  # of the number before the results of a Python function


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


# to the machine before its ranks work, and back after it
Moves: TypeAlias = tuple[tuple[Move, ...], tuple[Move, ...]]


@dataclass(slots=True)
class Route:
    """What a program reads and writes in segments, without anything of the user's.

    Attributes:
        number: of the program.
        values: `struct` format of the values of a call.
        arrays: parameters that lie in segments.
        small_bytes: bytes of a rank's small results that a round may write, from the first; −1 for
            a Python function, whose results say how many they are.
        small_start: first byte of a Python function's small results.
        scalar_bytes: bytes of the scalars, the first of the values, which select nothing.
        reduced: arrays that the machines combine.
    """

    number: int
    values: str
    rows: wire.RowSource
    own: wire.OwnSource | None
    partition: Partition
    shards: int | None
    solo: bool
    lent: int
    arrays: tuple[Any, ...]
    transfers: tuple[wire.Transferred, ...] = ()
    up: bool = False
    small_bytes: int = 0
    small_start: int = 0
    scalar_bytes: int = 0
    reduced: tuple[wire.Reduced, ...] = ()
    _known: dict[bytes, dict[tuple[int, int], Moves]] = field(default_factory=dict, repr=False)

    @classmethod
    def nothing(cls, number: int) -> "Route":
        """Returns the route of a program that moves nothing, as between GPUs."""
        return cls(number, "", wire.RowSource("none"), None, Partition.even(1), None, False, 0, ())

    @classmethod
    def of(cls, program: wire.Program | wire.Transfer, *, is_kernel: bool) -> "Route":
        """Returns the route of a program; `is_kernel` if its function is a kernel."""
        if isinstance(program, wire.Transfer):
            moved = () if program.stays else program.arrays
            return replace(
                cls.nothing(program.number), transfers=moved, up=program.up, reduced=program.reduced
            )
        kinds = wire.Sharded | wire.Broadcast | wire.Result | wire.Update
        leaves = [
            _plain(leaf)
            for leaf in program.leaves()
            if isinstance(leaf, kinds) and not _is_stored(leaf)
        ]
        first = program.small[0] if program.small else 0
        return cls(
            number=program.number,
            values=program.values,
            rows=program.rows,
            own=program.own,
            partition=program.partition,
            shards=program.shards,
            solo=program.solo,
            lent=program.lent,
            arrays=tuple(leaf for leaf in leaves if leaf is not None),
            small_bytes=_small_bytes(program) if is_kernel else -1,
            small_start=first,
            scalar_bytes=struct.calcsize("<" + program.scalars),
        )

    @property
    def size(self) -> int:
        """Bytes of the values of a call."""
        return struct.calcsize("<" + self.values)

    def at(self, packed: bytes, first: int, after: int) -> Moves:
        """Returns the moves of the ranks first … after − 1 in a call with these values."""
        selecting = packed[self.scalar_bytes :]
        by_ranks = self._known.get(selecting)
        if by_ranks is None:
            if len(self._known) >= CALLS_KEPT:
                self._known.clear()
            by_ranks = self._known[selecting] = {}
        known = by_ranks.get((first, after))
        if known is None:
            known = by_ranks[first, after] = self._worked_out(
                struct.unpack("<" + self.values, packed), first, after
            )
        return known

    def _worked_out(self, values: tuple[Any, ...], first: int, after: int) -> Moves:
        if first == after:  # a machine without ranks
            return (), ()
        if self.transfers:
            hosts = (
                host
                for one in self.transfers
                for host in one.hosts[first:after]
                if host is not None
            )
            # ranks may share an array
            moves = tuple(dict.fromkeys(move for move in map(_whole, hosts) if move.nbytes))
            return (moves, ()) if self.up else ((), moves)
        fields = len(self.rows.values)
        own_fields = 0 if self.own is None else len(self.own.values)
        selecting = values[len(values) - self.lent - own_fields - fields :]
        low, high, rows = self._rows(selecting[:fields], first, after)
        ins: list[Move] = list(
            self._lists(rows, selecting[fields : fields + own_fields], first, after)
        )
        outs: list[Move] = []
        if self.rows.kind == "none" and self.own is not None:
            low, high = self._own_edges(selecting[fields : fields + own_fields], first, after)
        for one in self.arrays:
            match one:
                case wire.Sharded(array, by_position, writable):
                    move = _rows_of(array, Range(low, 1, high - low) if by_position else rows)
                    ins += move
                    outs += move if writable else []
                case wire.Broadcast(array):
                    ins += [_whole(array)]
                case wire.Result():
                    outs += self._parts(one, values, low, high, first, after)
                case wire.Update(parts=HostArray() as parts):
                    outs += _rows_of(parts, _span(*self._shards(first, after)))
        return tuple(move for move in ins if move.nbytes), tuple(
            move for move in outs if move.nbytes
        )

    def _rows(
        self, selecting: tuple[Any, ...], first: int, after: int
    ) -> "tuple[int, int, Rows | Indices | None]":
        """Returns the positions of the ranks' rows among those of the call, and the rows."""
        source = self.rows
        if source.kind == "none":
            return 0, 0, None
        if source.kind == "line":
            assert source.indices is not None  # of lines
            number: int = source.indices.shape[1]
        else:
            number = {"range": lambda: selecting[2], "list": lambda: selecting[0]}.get(
                source.kind, lambda: source.length
            )()
        low, high = self._edges(number, first, after)
        if source.kind == "all":
            return low, high, Range(low, 1, high - low)
        if source.kind == "range":
            return low, high, Range(*selecting[:3]).between(low, high)
        assert source.indices is not None  # of a list
        skipped = selecting[0] * number if source.kind == "line" else 0
        return low, high, Indices(source.indices, skipped + low, high - low)

    def _edges(self, count: int, first: int, after: int) -> tuple[int, int]:
        if self.solo:
            return (0, count) if first == 0 else (0, 0)
        return (
            self.partition.shard_edges(count, self.shards, first)[0],
            self.partition.shard_edges(count, self.shards, after - 1)[-1],
        )

    def _shards(self, first: int, after: int) -> tuple[int, int]:
        """Returns the shards that the ranks run, as (first, one after the last)."""
        if self.solo:
            return (0, self.shards or 1) if first == 0 else (0, 0)
        if self.shards is None:
            return first, after
        return self.partition.part(self.shards, first)[0], self.partition.part(
            self.shards, after - 1
        )[1]

    def _own_edges(self, selecting: tuple[Any, ...], first: int, after: int) -> tuple[int, int]:
        """Returns how many own rows of variables lower ranks have, and lower ones with these."""
        assert self.own is not None  # asked for a program with own rows only
        counts = {"all": self.own.lengths, "range": selecting[2::3]}.get(self.own.kind, selecting)
        return sum(counts[:first]), sum(counts[:after])

    def _lists(
        self, rows: "Rows | Indices | None", selecting: tuple[Any, ...], first: int, after: int
    ) -> Iterator[Move]:
        """Returns the moves of lists of row numbers."""
        if isinstance(rows, Indices):
            array = rows.array
            yield Move(array.segment, array.offset + 8 * rows.start, 8 * rows.count)
        if self.own is not None and self.own.indices is not None:
            low, high = self._own_edges(selecting, first, after)
            array = self.own.indices
            yield Move(array.segment, array.offset + 8 * low, 8 * (high - low))

    def _parts(
        self,
        result: wire.Result,
        values: tuple[Any, ...],
        low: int,
        high: int,
        first: int,
        after: int,
    ) -> Iterator[Move]:
        """Returns the moves of a large output."""
        if result.parts is None:
            return
        segment = None if result.lent is None else values[len(values) - self.lent + result.lent]
        rows = _span(low, high) if result.op == "gather" else _span(*self._shards(first, after))
        for place in (result.parts, result.rows):
            if place is not None:
                yield from _rows_of(
                    place if segment is None else replace(place, segment=segment), rows
                )


def _plain(leaf: Any) -> Any:
    """Returns a parameter without anything of the user's; None if it is not in a segment."""
    if isinstance(leaf, wire.Result):
        if leaf.parts is None or leaf.is_small or leaf.stays:
            return None
        # any that is not "gather"
        return leaf if isinstance(leaf.op, str) or leaf.op is None else replace(leaf, op="sum")
    if isinstance(leaf, wire.Update):
        return None if leaf.parts is None else replace(leaf, op="sum")
    return leaf


def _is_stored(leaf: Any) -> bool:
    """Returns whether a parameter is in a file that each rank opens itself, also on another
    machine.
    """
    return isinstance(leaf, wire.Sharded | wire.Broadcast) and leaf.array.source is not None


def _small_bytes(program: wire.Program) -> int:
    ends = [
        leaf.parts.offset
        + int(np.prod(leaf.shape, dtype=np.int64)) * np.dtype(leaf.parts.dtype).itemsize
        for leaf in program.leaves()
        if isinstance(leaf, wire.Result) and leaf.is_small and leaf.parts is not None
    ]
    return max(ends, default=0)


def _span(first: int, after: int) -> Range:
    return Range(first, 1, after - first)


def _row_bytes(array: HostArray) -> int:
    return int(np.dtype(array.dtype).itemsize) * int(np.prod(array.shape[1:], dtype=np.int64))


def _whole(array: HostArray) -> Move:
    nbytes = int(np.dtype(array.dtype).itemsize) * int(np.prod(array.shape, dtype=np.int64))
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


class Present:
    """Frozen contents that a machine has got from the first one; both keep one, with the same
    contents.
    """

    def __init__(self) -> None:
        self._sent: set[tuple[int, int, int, int]] = set()  # keys of consecutive bytes
        # by segment, version and offset of a table: whether a row is there
        self._rows: dict[tuple[int, int, int], Array] = {}

    def unsent(self, moves: Iterable[Move]) -> list[Move]:
        """Returns the moves whose bytes are not there yet, and notes frozen ones as sent; of
        rows, all: see `missing`.
        """
        left = [
            move
            for move in moves
            if not move.version or move.rows is not None or move.key not in self._sent
        ]
        self._sent.update(move.key for move in left if move.version and move.rows is None)
        return left

    def missing(self, move: Move, numbers: Array) -> Array:
        """Returns the rows of a move that have to be sent, and notes them; of frozen contents
        those that are not there.
        """
        if not move.version:
            return numbers
        key = move.segment, move.version, move.offset
        there = self._rows.get(key)
        if there is None:
            there = self._rows[key] = np.zeros(move.table[0], np.bool_)
        left: Array = np.unique(numbers[~there[numbers]])
        there[left] = True
        return left

    def drop(self, segments: Iterable[int]) -> None:
        """Forgets segments that are gone."""
        gone = set(segments)
        self._sent = {key for key in self._sent if key[0] not in gone}
        self._rows = {key: there for key, there in self._rows.items() if key[0] not in gone}


def row_numbers(move: Move, memory: MemoryOf) -> Array:
    """Returns the numbers of the rows of a move, int64."""
    rows = move.rows
    if isinstance(rows, Indices):
        array = rows.array
        return memory(
            array.segment, np.dtype(np.int64), (rows.count,), array.offset + 8 * rows.start
        )
    assert rows is not None  # of a move of rows
    return rows.indices() if isinstance(rows, Range) else rows.indices


def table_of(move: Move, memory: MemoryOf) -> Array:
    """Returns the rows of the segment that a move's numbers count, as one item each."""
    return memory(move.segment, np.dtype((np.void, move.table[1])), move.table[:1], move.offset)
