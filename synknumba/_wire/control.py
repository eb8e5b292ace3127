"""The control block: shared memory and semaphores through which the coordinator starts rounds and
the ranks answer.

    coordinator                         control block (shared memory)                 rank r
    -----------                         -----------------------------                 ------
    writes the call's values       →    values
    stores the command, rings      →    COMMAND, DOORBELL                        →    spins on DOORBELL, then sleeps
    wakes sleeping ranks           →    SLEEPS[r]                                →    (semaphore r)
                                                                                      works
                                        RESULT[r]                                ←    writes its small results
    spins on ARRIVED, then sleeps  ←    ARRIVED, NEWS, DONE[r]                   ←    arrives
    combines RESULT[0..W)          ←                                                  spins on DOORBELL again

The doorbell is the barrier before the work, and the arrival counter the barrier after it: no rank
starts before the values are complete, and the coordinator continues only after all ranks have
arrived. A non-negative command is the number of a program to run; MESSAGE means that the command is
a message on the rank's socket. NEWS is set if at least one rank sends a message on its socket, such
as an error or a new result structure.
"""  # noqa: E501

import ctypes
import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from synknumba._host.segment import Segment
from synknumba._types import Array
from synknumba._wire import doorbell

MESSAGE = -1  # the command is a message on the socket

VALUE_BYTES = 16 * 1024  # scalars and row selections of one call; room for 2,000 float64 scalars
MARGIN = (
    64 * 1024
    # unused, on both sides: a kernel that wrote past its rows into the semaphores would abort the
    # script
)
RESULT_BYTES = 64 * 1024  # small results of one rank; larger results get their own segment
# interval at which a sleeping coordinator checks the ranks; a death is reported well within a
# second
SLEEP_SECONDS = 0.05
SEMAPHORE_BYTES = 32  # sizeof(sem_t) on 64-bit Linux (glibc's and musl's bits/semaphore.h)
IDLE_SECONDS = 1.0  # interval at which a sleeping rank checks that the coordinator is alive


FAILED, LOST, LOST_LINE, MOVED = range(4)  # words of `ControlBlock.notes`

_libc = ctypes.CDLL(None, use_errno=True)

# In glibc since 2.30. Without it, waits follow the wall clock, and last longer when that is set
# back.
_clockwait: Any = getattr(_libc, "sem_clockwait", None)
_CLOCK = time.CLOCK_MONOTONIC if _clockwait else time.CLOCK_REALTIME


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


@final
class Semaphore:
    """An unnamed POSIX semaphore in shared memory, with an initial count of 0.

    It is initialised with `sem_init(3)` as shared between processes, in memory that they inherit.
    Named semaphores, which other packages offer, appear in `/dev/shm` for a moment, and stay there
    if their creator is killed in that moment.

    Its address is that of SEMAPHORE_BYTES bytes of shared memory, zeroed unless the semaphore
    exists, and aligned to 8 bytes, which must outlive the semaphore.
    """

    def __init__(self, address: int, *, exists: bool = False) -> None:
        self._pointer = ctypes.c_void_p(address)
        if not exists and _libc.sem_init(self._pointer, 1, 0) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def post(self) -> None:
        """Increments the semaphore and wakes a waiting process."""
        _libc.sem_post(self._pointer)

    def wait(self, seconds: float) -> bool:
        """Waits to decrement the semaphore; false on timeout or after a signal, whose Python
        handlers run next.
        """
        until = time.clock_gettime_ns(_CLOCK) + int(seconds * 1e9)
        when = ctypes.byref(_Timespec(until // 10**9, until % 10**9))
        if _clockwait:
            failed = _clockwait(self._pointer, _CLOCK, when)
        else:
            failed = _libc.sem_timedwait(self._pointer, when)
        if not failed:
            return True
        code = ctypes.get_errno()
        if code in {errno.ETIMEDOUT, errno.EINTR}:
            return False
        raise OSError(code, os.strerror(code))


@dataclass(frozen=True, slots=True)
class Patience:
    """Number of spins before a process sleeps; a wake-up by semaphore costs about 10 µs."""

    pauses: int  # spins with a pause instruction, 20 to 50 ns each, which keep the core
    rank: int  # further spins of a rank, which yield the core: system calls of about 0.5 µs each
    coordinator: int  # the same of the coordinator


# Ranks spin longer than a script takes between two calls of a loop: 20 ms if every process has a
# core (ROOMY), since waking a core takes 0.3 ms on some machines, else about 1 ms (CROWDED). When
# crowded, a coordinator that spins while ranks work would take part of a rank's core, so it sleeps
# after 100 µs; with room, after about 10 ms. Even with room, a rank may be woken on the
# coordinator's core, if others are busy, and stay there: then each call waits until both processes
# have paused in turn, so no process keeps a core for longer than 10 µs. Quick calls end before.
CROWDED = Patience(pauses=0, rank=2000, coordinator=200)
ROOMY = Patience(pauses=200, rank=40_000, coordinator=20_000)


def align(nbytes: int, to: int = 64) -> int:
    """Rounds up to a multiple, by default to cache lines, of which two ranks write to none."""
    return -(-nbytes // to) * to


def _line_word(line: int, word: int) -> int:
    return doorbell.RANK_LINES + line * doorbell.WORDS_PER_RANK + word


class ControlBlock:
    """Shared memory and semaphores of one machine's part of a world, created before the fork and
    inherited by every rank.

    Who answers rounds has a line in it: the ranks of this machine and, in a world of several
    machines, on the first one the process that brings rounds to the others. With one machine, lines
    and ranks are the same.

    Args:
        world_size: number of ranks, on all machines.
        patience: number of spins before a process sleeps.
        lines: number of processes that answer; default: the ranks.
        segment: memory of a block that another process has created; default: a new one.

    Attributes:
        world_size: number of ranks, on all machines.
        lines: number of processes that answer.
        patience: number of spins before a process sleeps.
        segment: segment that holds the block.
        base: address of the block.
        values: values of a call: uint8, shape (VALUE_BYTES,).
        results: small results: uint8, shape (W, RESULT_BYTES).
        notes: number of the last round in which a rank has failed, of the last one in which a
            rank's device has become useless, that rank's line, and bytes of rows that other
            machines were sent, and have sent back: int64, shape (4,).
        slices: slices that each line has done of a call that shows them: int64, shape (lines,).
        done: semaphore on which the coordinator sleeps.
        doorbells: semaphore of each line.
    """

    def __init__(
        self,
        world_size: int,
        patience: Patience = CROWDED,
        *,
        lines: int | None = None,
        segment: Segment | None = None,
    ) -> None:
        self.world_size = world_size
        self.lines = lines = world_size if lines is None else lines
        self.patience = patience
        values = align((doorbell.RANK_LINES + lines * doorbell.WORDS_PER_RANK) * 8)
        results = align(values + VALUE_BYTES, 4096)
        notes = results + world_size * RESULT_BYTES
        size = notes + 64
        exists = segment is not None
        self.segment = segment or Segment(MARGIN + size + MARGIN)
        memory = self.segment.array("u1", (size,), offset=MARGIN)
        if not exists:
            memory[:] = 0  # touches every page, so that no call pays for a page fault
        self.base: int = memory.ctypes.data
        self.values: Array = memory[values : values + VALUE_BYTES]
        self.results: Array = memory[results:notes].reshape(world_size, RESULT_BYTES)
        self.notes: Array = memory[notes : notes + 32].view(np.int64)
        words: Array = memory[:values].view(np.int64)
        self.slices: Array = words[_line_word(0, doorbell.SLICES) :: doorbell.WORDS_PER_RANK][
            :lines
        ]
        self.done = Semaphore(self.base + doorbell.COORDINATOR_SEMAPHORE * 8, exists=exists)
        semaphores = (_line_word(line, doorbell.SEMAPHORE) for line in range(lines))
        self.doorbells = tuple(
            Semaphore(self.base + word * 8, exists=exists) for word in semaphores
        )

    def wake_ranks(self) -> None:
        """Posts the semaphore of every rank that sleeps."""
        for line, semaphore in enumerate(self.doorbells):
            if doorbell.wake(self.base, line):
                semaphore.post()

    def sleep_coordinator(self, seconds: float = SLEEP_SECONDS) -> bool:
        """Sleeps for up to `seconds` until the last rank arrives; returns whether all have."""
        posted = False
        try:
            if doorbell.coordinator_sleeps(self.base, self.lines) == 0:
                posted = self.done.wait(seconds)
        finally:
            # Also on Ctrl-C. If a rank has cleared the flag, it is about to post the semaphore. A
            # post too late for this wait only ends a later sleep early; that round then finds
            # ARRIVED too small, and sleeps again.
            if doorbell.coordinator_wakes(self.base) == 0 and not posted:
                self.done.wait(SLEEP_SECONDS)
        return self.all_arrived

    @property
    def all_arrived(self) -> bool:
        """Whether every line has answered the last round."""
        return bool(doorbell.read(self.base, doorbell.ARRIVED) == self.lines)

    def sleep_line(self, line: int, sequence: int, lives: Callable[[], bool]) -> bool:
        """Sleeps until the doorbell may have rung. Returns False if the coordinator has died,
        which `lives` tells.
        """
        semaphore = self.doorbells[line]
        if doorbell.rank_sleeps(self.base, line, sequence) == 0:
            while not semaphore.wait(IDLE_SECONDS):
                if not lives():
                    return False
            return True
        if doorbell.wake(self.base, line) == 0:
            # the coordinator has cleared the flag, so it is about to post
            semaphore.wait(IDLE_SECONDS)
        return True

    @property
    def began(self) -> int:
        """Start of the last round, by `time.monotonic_ns`."""
        return int(doorbell.read(self.base, doorbell.BEGAN))

    @property
    def worked(self) -> int:
        """Total nanoseconds of the rounds that ended within the compiled wait."""
        return int(doorbell.read(self.base, doorbell.WORKED))

    def missing(self, sequence: int) -> list[int]:
        """Returns the lines that have not answered this round."""
        return [
            line
            for line in range(self.lines)
            if doorbell.read(self.base, _line_word(line, doorbell.DONE)) != sequence
        ]

    def set_ring(self, line: int, address: int) -> None:
        """Sets, on a rank, where compiled code records its rounds; 0 for nowhere."""
        doorbell.write(self.base, _line_word(line, doorbell.RING), address)

    def set_ring_of_rounds(self, address: int) -> None:
        """Sets, in the coordinator, where compiled code records the rounds; 0 for nowhere."""
        doorbell.write(self.base, doorbell.RING_OF_ROUNDS, address)

    def note_failure(self, sequence: int) -> None:
        """Notes, on a rank, that it has failed in this round."""
        self.notes[FAILED] = sequence

    def note_loss(self, sequence: int, line: int) -> None:
        """Notes, on a rank, that its device is useless from this round on."""
        self.notes[LOST_LINE] = line
        self.notes[LOST] = sequence

    def has_failed(self, sequence: int) -> bool:
        """Whether a rank has failed in this round."""
        return bool(self.notes[FAILED] == sequence)

    def is_lost(self, sequence: int) -> bool:
        """Whether a rank's device has become useless in this round, and that rank has answered."""
        if self.notes[LOST] != sequence:
            return False
        return int(self.notes[LOST_LINE]) in self.with_news(sequence)

    def note_moved(self, nbytes: int) -> None:
        """Notes how many bytes of rows have gone to other machines and back."""
        self.notes[MOVED] = nbytes

    @property
    def moved_bytes(self) -> int:
        """Bytes of rows that have gone to other machines and back."""
        return int(self.notes[MOVED])

    def with_news(self, sequence: int) -> list[int]:
        """Returns the lines that have answered this round with a message."""
        answered = set(range(self.lines)).difference(self.missing(sequence))
        return [
            line
            for line in sorted(answered)
            if doorbell.read(self.base, _line_word(line, doorbell.HAS_NEWS))
        ]

    def close(self) -> None:
        """Frees the shared memory and the semaphores in it; idempotent."""
        self.segment.close()
