"""What a relay has of one world: segments, routes, results of functions, rows under way."""

import mmap
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, final

import numpy as np

from synknumba._host.segment import Segment, is_writable
from synknumba._machines.combine import combine
from synknumba._machines.machine_comm import BACK, ROWS, MachineComm, Watch
from synknumba._machines.messages import Forward, WorldSpec
from synknumba._machines.routes import Move, Route, SentCache, row_numbers, table_of
from synknumba._ops.reduction import UFUNCS
from synknumba._types import Array
from synknumba._wire.control import ControlBlock, Patience
from synknumba._wire.messages import Parcel
from synknumba._wire.program import HostArray, Reduced
from synknumba._wire.results import FIRST_LEAF

RESERVE_STEP = 1 << 30  # takes 0.1 s
RESERVED_KEPT = 1024  # ranges of a segment; taking memory again costs 0.1 ms for a MB


@dataclass(frozen=True, slots=True)
class Peer:
    """A machine that rows are exchanged with, for the ranks first … after − 1.

    Attributes:
        machine: its number.
        first, after: on machine 0 the ranks of the other machine, elsewhere those of this one.
        cache: what the ranks' machine has got of frozen contents.
    """

    machine: int
    first: int
    after: int
    cache: SentCache = field(default_factory=SentCache)


@final
class Segments:
    """Segments that a relay has mapped, by id, or by what identifies them elsewhere."""

    def __init__(self) -> None:
        self.maps: dict[Any, tuple[int, mmap.mmap]] = {}  # descriptor, mapping
        self._reserved: dict[Any, set[tuple[int, int]]] = {}  # (offset, bytes) of mirrors

    def add(self, segment: Any, fd: int, nbytes: int) -> None:
        """Maps a segment, again after it has grown; keeps the descriptor."""
        previous = self.maps.get(segment)
        access = mmap.PROT_READ
        if is_writable(fd):
            access |= mmap.PROT_WRITE
        self.maps[segment] = fd, mmap.mmap(fd, nbytes, prot=access)
        if previous is not None and previous[0] != fd:
            os.close(previous[0])

    def mirror(self, segment: Any, nbytes: int) -> int:
        """Makes or grows the mirror of a segment; returns its descriptor.

        A mirror is a file in memory whose pages come with the rows. It stays the same file.
        """
        fd, _ = self.maps.get(segment, (-1, None))
        if fd < 0:
            fd = os.memfd_create(f"synk-mirror-{segment}", os.MFD_CLOEXEC)
        os.ftruncate(fd, nbytes)
        self.add(segment, fd, nbytes)
        return fd

    def reserve(self, move: Move, watch: Watch) -> None:
        """Takes memory for bytes that are about to come: a lack of it is then an error.

        Without that, it would be the end of the process that writes.
        """
        reserved = self._reserved.setdefault(move.segment, set())
        if (move.offset, move.nbytes) in reserved:
            return
        fd = self.maps[move.segment][0]
        for start in range(0, move.nbytes, RESERVE_STEP):
            nbytes = min(RESERVE_STEP, move.nbytes - start)
            os.posix_fallocate(fd, move.offset + start, nbytes)
            watch()
        if len(reserved) < RESERVED_KEPT:
            reserved.add((move.offset, move.nbytes))

    def __call__(self, segment: Any, dtype: Any, shape: tuple[int, ...], offset: int) -> Array:
        """Returns a view of an array in a segment."""
        return np.ndarray(shape, dtype, self.maps[segment][1], offset)

    def drop(self, segments: Iterable[Any]) -> None:
        """Frees segments."""
        for segment in segments:
            self._reserved.pop(segment, None)
            if segment in self.maps:
                os.close(self.maps.pop(segment)[0])

    def close(self) -> None:
        """Frees all segments."""
        self.drop(tuple(self.maps))


@final
class FunctionResults:
    """Results of Python functions: how long they are, and segments of those that are large.

    A spec is the number that a rank leaves in its results for their types and shapes.
    """

    def __init__(self) -> None:
        self.segments = Segments()  # by program and rank
        # Bytes by program, rank and spec.
        self._small: dict[tuple[int, int, int], int] = {}
        self._large: dict[tuple[int, int, int], int] = {}

    def learn(self, number: int, rank: int, parcel: Parcel) -> int:
        """Notes how long a result is; returns the bytes of its segment, 0 if it is in none."""
        key = number, rank, parcel.spec
        if parcel.segment is None:
            self._small[key] = parcel.nbytes
            return 0
        self._large[key] = parcel.nbytes
        return parcel.segment[1]

    def small_bytes(self, number: int, specs: dict[int, int]) -> int:
        """Returns the bytes of small results, of the longest, for the specs of ranks."""
        lengths = (self._small.get((number, rank, spec), 0) for rank, spec in specs.items())
        return FIRST_LEAF + max(lengths, default=0)

    def large(self, number: int, specs: dict[int, int]) -> Iterator[Array]:
        """Returns views of the large results of a round, by rank, for the specs of ranks."""
        for rank, spec in specs.items():
            nbytes = self._large.get((number, rank, spec), 0)
            if nbytes:
                yield self.segments((number, rank), np.uint8, (nbytes,), 0)

    def forget(self, programs: Collection[int]) -> None:
        """Drops what is known of programs."""
        for table in (self._small, self._large):
            for key in [key for key in table if key[0] in programs]:
                del table[key]
        self.segments.drop([key for key in self.segments.maps if key[0] in programs])


@final
class RelayWorld:
    """One world, as a relay takes part in it.

    Args:
        comm: the machines.
        rounds: communicator of this world: late messages of an earlier one are never matched.
        spec: the world.

    Attributes:
        peers: machines that rows are exchanged with.
        routes: of programs, by number.
        sends: requests of what is being sent.
        under_way: what MPI may write to after a wait was left: requests, with their buffers.
        moved: bytes of rows that were sent or received.
    """

    def __init__(self, comm: MachineComm, rounds: Any, spec: WorldSpec) -> None:
        self.rounds, self.spec = rounds, spec
        self._control: ControlBlock | None = None
        self.segments, self.results = Segments(), FunctionResults()
        self.routes: dict[int, Route] = {}
        self.moved = 0
        self.sends: list[Any] = []
        self._comm = comm
        self.under_way: list[Any] = []
        firsts, index = spec.firsts, comm.index
        self.peers = [Peer(0, firsts[index], firsts[index + 1])]
        if index == 0:
            ranks = enumerate(pairwise(firsts))
            self.peers = [Peer(machine, *edges) for machine, edges in ranks if machine > 0]

    @property
    def control(self) -> ControlBlock:
        """Control block of this machine."""
        assert self._control is not None  # the ranks have started
        return self._control

    def attach(self, segment: Segment, patience: Patience, lines: int) -> None:
        """Maps the control block, with lines of those who answer its rounds."""
        self._control = ControlBlock(self.spec.world_size, patience, lines=lines, segment=segment)

    def forget(self, forward: Forward) -> None:
        """Drops what a command drops."""
        self.segments.drop(forward.dropped_segments)
        self.results.forget(forward.dropped_programs)
        for number in forward.dropped_programs:
            self.routes.pop(number, None)
        if forward.dropped_segments:
            for peer in self.peers:
                peer.cache.drop(forward.dropped_segments)

    def specs(self, peer: Peer, start: int) -> dict[int, int]:
        """Returns the specs that ranks have left at a byte of their small results, by rank."""
        words = self.control.results[peer.first : peer.after, start : start + 8].copy()
        return dict(enumerate(words.view(np.int64)[:, 0].tolist(), peer.first))

    # ---- rows: ROWS go from machine 0, and BACK to it

    def carry(self, move: Move, peer: Peer, tag: int, watch: Watch) -> None:
        """Sends or receives the bytes of a move; of frozen rows those that are not there yet."""
        comes = self._comes(tag)
        if move.rows is None:
            if comes and tag == ROWS:
                self.segments.reserve(move, watch)
            view = self.segments(move.segment, np.uint8, (move.nbytes,), move.offset)
            self.carry_bytes(view, peer, tag, watch)
            return
        rows, table = row_numbers(move, self.segments), table_of(move, self.segments)
        if tag == ROWS:
            rows = peer.cache.missing(move, rows)
        if not comes:
            self.carry_bytes(np.take(table, rows).view(np.uint8), peer, tag, watch)
            return
        packed = np.empty(len(rows), table.dtype)
        self.carry_bytes(packed.view(np.uint8), peer, tag, watch)
        table[rows] = packed

    def carry_bytes(self, view: Array, peer: Peer, tag: int, watch: Watch) -> None:
        """Starts to send bytes, or receives them."""
        if not view.nbytes:
            return
        self.moved += view.nbytes
        if not self._comes(tag):
            self.sends.append(self.rounds.Isend(view, peer.machine, tag))
            return
        request = self.rounds.Irecv(view, peer.machine, tag)
        self.under_way.append(request)
        self._comm.wait(request, watch)
        self.under_way.pop()

    def _comes(self, tag: int) -> bool:
        """Whether bytes with a tag come to this machine."""
        return tag == (ROWS if self._comm.index else BACK)

    def await_sends(self, watch: Watch) -> None:
        """Waits until all that was sent has left."""
        self._comm.wait_all(self.sends, watch)
        self.sends.clear()

    def reduce(self, reduced: Reduced, watch: Watch) -> None:
        """Combines the arrays of all ranks into that of the first rank of each machine.

        The relays of all machines take part.
        """
        firsts, index = self.spec.firsts, self._comm.index
        first, after = firsts[index : index + 2]
        if first == after:  # a machine without ranks
            return
        total, *arrays = [self._array(host) for host in reduced.hosts[first:after]]
        ufunc = UFUNCS.get(reduced.op, np.add)  # "avg" is divided at the end
        for array in arrays:
            ufunc(total, array, out=total)
            watch()
        machines = range(len(firsts) - 1)
        members = [machine for machine in machines if firsts[machine] < firsts[machine + 1]]
        keep: list[Any] = []
        self.under_way.append(keep)
        combine(self._comm, self.rounds, members, total.reshape(-1), ufunc, watch, keep)
        self.under_way.pop()
        if reduced.op == "avg":
            np.divide(total, len(reduced.hosts), out=total)
        self.moved += 2 * total.nbytes * (len(members) - 1) // len(members)

    def _array(self, host: HostArray) -> Array:
        return self.segments(host.segment, host.dtype, host.shape, host.offset)

    def close(self) -> None:
        """Frees all memory."""
        self.segments.close()
        self.results.segments.close()
        if self._control is not None:
            self._control.close()
