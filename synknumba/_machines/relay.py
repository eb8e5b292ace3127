"""What the relays of all machines have in common: segments, moves, and the results of Python
functions.
"""

import errno
import mmap
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from synknumba._host.segment import is_writable
from synknumba._machines.between import Between
from synknumba._machines.combine import combine
from synknumba._machines.routes import Move, Present, Route, row_numbers, table_of
from synknumba._ops.reduction import UFUNCS
from synknumba._types import Array
from synknumba._wire import channel
from synknumba._wire.messages import Parcel
from synknumba._wire.program import HostArray, Reduced
from synknumba._wire.results import FIRST_LEAF
from synknumba._world.failure import Death
from synknumba._world.machines import Lost

RESERVE_STEP = 1 << 30  # takes 0.1 s
RESERVED_KEPT = 1024  # ranges of a segment; taking memory again costs 0.1 ms for a MB

START, COMMAND, RUN, END, QUIT = range(5)  # kinds of orders


class Ended(Exception):  # noqa: N818  # nothing is wrong
    """Raised while a relay or an agent waits, when the world is ended."""


def failure(process: str, error: Exception, rank: int, host: str) -> Lost:
    """Returns the loss of a machine of which a process cannot go on.

    Args:
        process: in words, with the machine.
        error: what has been raised there.
        rank: the first of the machine.
        host: its name.
    """
    is_crowded = isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}
    why = channel.NO_DESCRIPTOR if is_crowded else f"{type(error).__name__}: {error}"
    return Lost(f"{process} failed: {why}", Death(rank, 0, None, host))


class Mapped:
    """Segments that a relay has mapped, by id."""

    def __init__(self) -> None:
        self._maps: dict[int, tuple[int, mmap.mmap]] = {}  # descriptor, mapping
        # (offset, bytes) that mirrors have memory for
        self._reserved: dict[int, set[tuple[int, int]]] = {}

    def add(self, segment: int, fd: int, nbytes: int) -> None:
        """Maps a segment, or maps all of it again after it has grown; keeps the descriptor."""
        old = self._maps.get(segment)
        self._maps[segment] = (
            fd,
            mmap.mmap(
                fd, nbytes, prot=mmap.PROT_READ | (mmap.PROT_WRITE if is_writable(fd) else 0)
            ),
        )
        if old is not None and old[0] != fd:
            os.close(old[0])

    def mirror(self, segment: int, nbytes: int) -> int:
        """Makes or grows the mirror of a segment: a file in memory whose pages come with the
        rows. Returns its descriptor.
        """
        known = self._maps.get(segment)
        fd = (
            os.memfd_create(f"synk-mirror-{segment}", os.MFD_CLOEXEC) if known is None else known[0]
        )
        os.ftruncate(fd, nbytes)
        self.add(segment, fd, nbytes)
        return fd

    def reserve(self, move: Move, watch: Callable[[], None]) -> None:
        """Takes memory for bytes that are about to come, so that a lack of it is an error, and
        not the end of a process.
        """
        reserved = self._reserved.setdefault(move.segment, set())
        if move.rows is None and (move.offset, move.nbytes) not in reserved:
            for start in range(0, move.nbytes, RESERVE_STEP):
                os.posix_fallocate(
                    self._maps[move.segment][0],
                    move.offset + start,
                    min(RESERVE_STEP, move.nbytes - start),
                )
                watch()
            if len(reserved) < RESERVED_KEPT:
                reserved.add((move.offset, move.nbytes))

    def __call__(self, segment: int, dtype: Any, shape: tuple[int, ...], offset: int) -> Array:
        """Returns a view of an array in a segment."""
        return np.ndarray(shape, dtype, self._maps[segment][1], offset)

    def drop(self, segments: Iterable[int]) -> None:
        """Frees segments."""
        for segment in segments:
            found = self._maps.pop(segment, None)
            self._reserved.pop(segment, None)
            if found is not None:
                os.close(found[0])

    def close(self) -> None:
        """Frees all segments."""
        self.drop(tuple(self._maps))


class Relay:
    """State of a relay in one world.

    Args:
        job: the machines.
        rounds: communicator of this world's rounds: what an earlier world has left in flight
            arrives nowhere.
    """

    def __init__(self, job: Between, rounds: Any) -> None:
        self.job, self.rounds = job, rounds
        self.memory = Mapped()
        self.under_way: Any = None  # the last receive
        self.moved = 0  # bytes of rows that were sent or received
        self.routes: dict[int, Route] = {}
        # by program, rank and spec: bytes, whether large
        self._lengths: dict[tuple[int, int, int], tuple[int, bool]] = {}
        self.large: dict[tuple[int, int], tuple[int, mmap.mmap]] = {}  # by program and rank

    def learn(self, number: int, rank: int, news: Parcel) -> None:
        """Notes how long the results of a Python function are."""
        if news.spec >= 0:
            self._lengths[number, rank, news.spec] = news.nbytes, news.segment is not None

    def small_bytes(self, number: int, specs: "dict[int, int]") -> int:
        """Returns the bytes of small results that a round has written, for the numbers that
        ranks have left there.
        """
        known = (self._lengths.get((number, rank, spec), (0, True)) for rank, spec in specs.items())
        return FIRST_LEAF + max((nbytes for nbytes, is_large in known if not is_large), default=0)

    def large_results(self, number: int, specs: "dict[int, int]") -> list[tuple[int, int]]:
        """Returns the ranks whose results are in segments of their own, and how many bytes these
        are.
        """
        known = (
            (rank, self._lengths.get((number, rank, spec), (0, False)))
            for rank, spec in sorted(specs.items())
        )
        return [(rank, nbytes) for rank, (nbytes, is_large) in known if is_large and nbytes]

    def forget(self, programs: Iterable[int]) -> None:
        """Drops what is known of programs."""
        gone = set(programs)
        for number in gone:
            self.routes.pop(number, None)
        self._lengths = {key: told for key, told in self._lengths.items() if key[0] not in gone}
        for key in [key for key in self.large if key[0] in gone]:
            os.close(self.large.pop(key)[0])

    def keep_large(self, number: int, rank: int, fd: int, nbytes: int) -> None:
        """Maps the segment of a rank's large results."""
        old = self.large.pop((number, rank), None)
        if old is not None:
            os.close(old[0])
        self.large[number, rank] = fd, mmap.mmap(fd, nbytes)

    def large_bytes(self, number: int, rank: int, nbytes: int) -> Array:
        """Returns a view of a rank's large results."""
        return np.frombuffer(self.large[number, rank][1], np.uint8, nbytes)

    # ---- rows

    def sent(self, move: Move, machine: int, tag: int, present: Present) -> list[Any]:
        """Starts to send the bytes of a move that are not `present` there; returns the request,
        if there are any.
        """
        if move.rows is None:
            view = self.memory(move.segment, np.uint8, (move.nbytes,), move.offset)
        else:
            rows = present.missing(move, row_numbers(move, self.memory))
            view = np.take(table_of(move, self.memory), rows).view(np.uint8)
        self.moved += view.nbytes
        return [self.rounds.Isend(view, machine, tag)] if view.nbytes else []

    def received(
        self, move: Move, machine: int, tag: int, watch: Callable[[], None], present: Present
    ) -> None:
        """Receives the bytes of a move that are not `present`."""
        if move.rows is None:
            view = self.memory(move.segment, np.uint8, (move.nbytes,), move.offset)
            self._receive(view, machine, tag, watch)
            return
        rows = present.missing(move, row_numbers(move, self.memory))
        packed = np.empty(len(rows), np.dtype((np.void, move.table[1])))
        if len(rows):
            self._receive(packed.view(np.uint8), machine, tag, watch)
            table_of(move, self.memory)[rows] = packed

    def _receive(self, view: Array, machine: int, tag: int, watch: Callable[[], None]) -> None:
        # kept, with the buffer, if the wait is left
        self.under_way = (
            self.rounds.Irecv(view, machine, tag),
            view,
        )
        self.job.wait(self.under_way[0], watch)
        self.moved += view.nbytes

    # ---- combinations

    def reduce(self, reduced: Reduced, firsts: Sequence[int], watch: Callable[[], None]) -> None:
        """Combines the arrays of all ranks, first of those of this machine, and then of all
        machines, into that of its first.

        The relays of all machines do.

        Args:
            reduced: the arrays.
            firsts: first rank of each machine, and the number of ranks.
            watch: called while this relay waits; may raise.
        """
        first, after = firsts[self.job.index : self.job.index + 2]
        if first == after:  # a machine without ranks
            return
        total, *others = [self._array(host) for host in reduced.hosts[first:after]]
        ufunc = UFUNCS.get(reduced.op, np.add)  # "avg" is divided at the end
        for other in others:
            ufunc(total, other, out=total)
            watch()
        members = [
            machine for machine in range(self.job.count) if firsts[machine] < firsts[machine + 1]
        ]
        self.under_way = []
        combine(self.job, self.rounds, members, total.reshape(-1), ufunc, watch, self.under_way)
        if reduced.op == "avg":
            np.divide(total, len(reduced.hosts), out=total)
        self.moved += 2 * total.nbytes * (len(members) - 1) // len(members)

    def _array(self, host: HostArray) -> Array:
        return self.memory(host.segment, host.dtype, host.shape, host.offset)

    def close(self) -> None:
        """Frees all memory."""
        self.memory.close()
        self.forget({number for number, _ in self.large})
