"""Routes: the bytes that a machine gets and gives back are those that its ranks read and write,
no more and no less.
"""

import struct
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from synknumba._machines.routes import Indices, Move, Route, SentCache
from synknumba._ops.rows import Partition
from synknumba._wire.program import (
    Broadcast,
    Dynamic,
    HeldRows,
    HostArray,
    OwnSource,
    Program,
    Result,
    RowSource,
    Sharded,
    Transfer,
    Transferred,
)

ROWS = 13
TABLE = HostArray(1, np.dtype("f8"), (ROWS, 3), 64)  # 24 bytes a row
INPUT = HostArray(2, np.dtype("i2"), (ROWS,), 2)
WHOLE = HostArray(3, np.dtype("f4"), (5,), 128, version=7)
LIST = HostArray(4, np.dtype("i8"), (ROWS,), 8)
OUT = HostArray(5, np.dtype("f8"), (ROWS, 2))


def program(rows: RowSource, world_size: int, **changes) -> Program:
    """A program of a divided array that it writes, a minibatch input, a whole array, a scalar
    and a gathered output.
    """
    values = "d" + rows.values
    told = Program(
        number=3,
        function=1,
        parameters=(
            ("c", Dynamic(0)),
            ("x", Sharded(TABLE, writable=True)),
            ("m", Sharded(INPUT, by_position=True)),
            ("w", Broadcast(WHOLE)),
            ("out", Result("out", "gather", np.dtype("f8"), (2,), OUT)),
        ),
        rows=rows,
        partition=Partition.even(world_size),
        values=values,
    )
    return replace(told, **changes)


def touched(moves, lists) -> set[tuple[int, int]]:
    """The bytes of moves, as (segment, byte); row numbers in segments are looked up in `lists`."""
    found = set()
    for move in moves:
        if move.rows is None:
            found |= {(move.segment, move.offset + i) for i in range(move.nbytes)}
            continue
        if isinstance(move.rows, Indices):
            numbers = lists[move.rows.start : move.rows.start + move.rows.count]
        else:
            numbers = move.rows.indices.tolist()
        assert move.nbytes == len(numbers) * move.table[1]
        for row in numbers:
            first = move.offset + row * move.table[1]
            found |= {(move.segment, first + i) for i in range(move.table[1])}
    return found


def bytes_of(array: HostArray, rows) -> set[tuple[int, int]]:
    """The bytes of some rows of an array."""
    width = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=int))
    return {(array.segment, array.offset + row * width + i) for row in rows for i in range(width)}


selections = st.one_of(
    st.just(("all", None)),
    st.tuples(
        st.just("range"),
        st.sampled_from([(0, 1, 13), (3, 1, 7), (12, -2, 5), (1, 4, 3), (5, 1, 1)]),
    ),
    st.tuples(st.just("list"), st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=ROWS)),
)


@given(
    selection=selections,
    world_size=st.integers(1, 6),
    shards=st.sampled_from([None, 1, 4, 20]),
    data=st.data(),
)
def test_rows(selection, world_size, shards, data):
    """By the documented rule: of n rows in W parts, part r is the rows from r·n // W up to
    (r+1)·n // W.
    """
    kind, what = selection
    first = data.draw(st.integers(0, world_size))
    after = data.draw(st.integers(first, world_size))
    source = RowSource(kind, ROWS, LIST if kind == "list" else None)
    told = program(source, world_size, shards=shards)
    picked = {"all": list(range(ROWS)), "range": None, "list": what}[kind]
    values = [0.5]
    if kind == "range":
        start, step, count = what
        picked, values = [start + step * i for i in range(count)], [0.5, start, step, count]
    elif kind == "list":
        values = [0.5, len(what)]
    n = len(picked)
    if shards is None:
        low, high = first * n // world_size, after * n // world_size
    else:
        low, high = (
            (first * shards // world_size) * n // shards,
            (after * shards // world_size) * n // shards,
        )
    ins, outs = Route.of(told, is_kernel=True).at(
        struct.pack("<" + told.values, *values), first, after
    )
    wanted = (
        bytes_of(TABLE, picked[low:high])
        | bytes_of(INPUT, range(low, high))
        | bytes_of(WHOLE, range(5))
    )
    if kind == "list":
        wanted |= bytes_of(LIST, range(low, high))
    if first == after:
        assert (ins, outs) == ((), ())
        return
    assert touched(ins, what) == wanted
    assert touched(outs, what) == bytes_of(TABLE, picked[low:high]) | bytes_of(
        OUT, range(low, high)
    )


def test_alone():
    """A call on one rank has all its rows on the machine of rank 0."""
    told = program(RowSource("all", ROWS), 1, solo=True)
    route, packed = Route.of(told, is_kernel=True), struct.pack("<d", 1.0)
    assert touched(route.at(packed, 0, 2)[1], None) == bytes_of(TABLE, range(ROWS)) | bytes_of(
        OUT, range(ROWS)
    )
    assert route.at(packed, 2, 4)[1] == ()


def test_calls_that_differ_in_scalars_share_their_moves():
    """Moves are worked out once for all scalars, and anew for other rows."""
    route = Route.of(program(RowSource("range", ROWS), 2), is_kernel=True)
    moves = [
        route.at(struct.pack("<dqqq", scalar, *rows), 0, 1)
        for scalar in (0.5, 2.5)
        for rows in ((0, 1, 13), (3, 1, 7))
    ]
    assert moves[0] is moves[2]
    assert moves[1] is moves[3]
    assert moves[0] != moves[1]


def test_own_rows():
    """Lists of a variable's own rows are those of the machine's ranks; gathered results lie
    behind those of lower ranks.
    """
    own = OwnSource("list", (6, 6, 6), HostArray(9, np.dtype("i8"), (18,)))
    told = program(
        RowSource("none"),
        3,
        own=own,
        values="dqqq",
        parameters=(
            ("v", HeldRows(1, 0)),
            ("out", program(RowSource("all", 1), 1).parameters[4][1]),
        ),
    )
    ins, outs = Route.of(told, is_kernel=True).at(struct.pack("<dqqq", 0.0, 2, 3, 1), 1, 3)
    assert touched(ins, None) == bytes_of(own.indices, range(2, 6))
    assert touched(outs, None) == bytes_of(OUT, range(2, 6))


def test_transfers():
    """The staged arrays of the machine's ranks."""
    hosts = tuple(HostArray(6, np.dtype("f8"), (rank,), 100 * rank) for rank in range(4))
    for up in (True, False):
        route = Route.of(
            Transfer(
                1, up, (Transferred(0, 0, hosts), Transferred(0, 1, (None, hosts[1], None, None)))
            ),
            is_kernel=True,
        )
        moves = route.at(b"", 1, 3)[0 if up else 1]
        assert [(move.offset, move.nbytes) for move in moves] == [(100, 8), (200, 16)]  # each once
        assert route.at(b"", 1, 3)[1 if up else 0] == ()


def test_frozen_bytes_are_sent_once():
    present = SentCache()
    frozen, other = Move(1, 0, 8, version=2), Move(1, 0, 8)
    assert present.unsent([frozen, other]) == [frozen, other]
    assert present.unsent([frozen, other, replace(frozen, version=3)]) == [
        other,
        replace(frozen, version=3),
    ]
    present.drop([1])
    assert present.unsent([frozen]) == [frozen]


def test_frozen_rows_of_lists_are_sent_once():
    present, rows = SentCache(), np.array([5, 2, 5, 0])
    frozen, other = (
        Move(1, 0, 32, rows=Indices(LIST, 0, 4), table=(6, 8), version=2),
        Move(1, 0, 32, table=(6, 8)),
    )
    assert present.unsent([frozen]) == present.unsent([frozen]) == [frozen]
    assert present.missing(other, rows).tolist() == [5, 2, 5, 0]
    assert present.missing(frozen, rows).tolist() == [0, 2, 5]
    assert present.missing(frozen, np.array([1, 2, 5])).tolist() == [1]
    assert present.missing(replace(frozen, version=3), np.array([1])).tolist() == [1]
    present.drop([1])
    assert present.missing(frozen, np.array([1, 2])).tolist() == [1, 2]
