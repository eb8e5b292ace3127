"""Combines the arrays of machines: each machine combines a part of all, and sends it to the others.

That moves 2 (M − 1) / M of an array into and out of each of M machines, which is the least there is
(Rabenseifner 2004, "Optimization of collective reduction operations"), in two steps for any M, and
combines in the order of machines. MPI's own reductions took two to six times as long
(docs/design/2026-11-26-sums-over-machines.md).
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from synknumba._machines import machine_comm
from synknumba._machines.machine_comm import MachineComm
from synknumba._ops.rows import Partition
from synknumba._types import Array

PIECE_BYTES = 1 << 20  # of a message
ROOM_BYTES = 32 << 20  # for pieces that others send; they are shorter where there are many machines

Piece = tuple[int, int]  # of a flat array: start, stop


def pieces_of(nbytes: int, itemsize: int, machines: int) -> list[list[Piece]]:
    """Returns the pieces of a flat array that each machine combines.

    >>> pieces_of(80, 8, 3)
    [[(0, 3)], [(3, 6)], [(6, 10)]]
    """
    edges = Partition.even(machines).edges(nbytes // itemsize)
    step = max(1, min(PIECE_BYTES, ROOM_BYTES // (2 * machines)) // itemsize)
    return [
        [(at, min(at + step, stop)) for at in range(start, stop, step)]
        for start, stop in pairwise(edges)
    ]


def combine(
    comm: MachineComm,
    rounds: Any,
    members: Sequence[int],
    array: Array,
    ufunc: np.ufunc,
    watch: Callable[[], None],
    keep: list[Any],
) -> None:
    """Replaces the arrays of some machines by their combination. All of them do at the same time.

    Args:
        comm: the machines.
        rounds: communicator of the rounds.
        members: the machines, in the order of combination; this one is among them.
        array: that of this machine, flat.
        ufunc: what combines two arrays.
        watch: called while this machine waits; may raise.
        keep: gets requests and buffers, of which MPI may make use for as long as the wait is left.
    """
    me = members.index(comm.index)
    places = range(len(members))
    pieces = pieces_of(array.nbytes, array.itemsize, len(members))
    mine, peers = pieces[me], [(me + step) % len(members) for step in places[1:]]
    longest = max((stop - start for start, stop in mine), default=0)
    room = np.empty((2, len(members), longest), array.dtype)
    keep += [array, room]

    def receive(number: int) -> list[Any]:
        start, stop = mine[number]
        into = room[number & 1]
        return [
            rounds.Irecv(into[place, : stop - start], members[place], machine_comm.PART)
            for place in peers
        ]

    coming = receive(0) if mine else []
    sent = [
        (rounds.Isend(array[a:b], members[place], machine_comm.PART), place, (a, b))
        for place in peers
        for a, b in pieces[place]
    ]
    keep += [coming, sent]
    results: list[Any] = []
    keep.append(results)
    for number, (start, stop) in enumerate(mine):
        comm.wait_all(coming, watch)
        coming = receive(number + 1) if number + 1 < len(mine) else []
        keep.append(coming)
        parts = list(room[number & 1, :, : stop - start])
        parts[me] = array[start:stop]
        _fold(ufunc, parts, array[start:stop])
        results += [
            rounds.Isend(array[start:stop], members[place], machine_comm.WHOLE) for place in peers
        ]
    for request, place, (start, stop) in sent:  # until then their bytes must stay
        comm.wait(request, watch)
        results.append(rounds.Irecv(array[start:stop], members[place], machine_comm.WHOLE))
    comm.wait_all(results, watch)
    keep.clear()


def _fold(ufunc: np.ufunc, parts: Sequence[Array], out: Array) -> None:
    """Combines arrays in order, into one of them."""
    total = parts[0]
    for part in parts[1:]:
        ufunc(total, part, out=total)
    if total is not out:
        out[...] = total
