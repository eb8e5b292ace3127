"""The control block: how the coordinator and the ranks tell each other that there is work, and that it is done.

    coordinator                         control block (shared memory)                 rank r
    -----------                         -----------------------------                 ------
    writes the call's values       →    values
    stores the command, rings      →    COMMAND, DOORBELL                        →    spins on DOORBELL, then sleeps
    posts who sleeps               →    SLEEPS[r]                                →    (semaphore r)
                                                                                      works
                                        RESULT[r]                                ←    writes its small results
    spins on ARRIVED, then sleeps  ←    ARRIVED, NEWS, DONE[r]                   ←    arrives
    combines RESULT[0..W)          ←                                                  spins on DOORBELL again

The doorbell is the barrier before the work and the arrival counter is the barrier after it: no rank starts before all have
been told, and the coordinator goes on only when all are done. A command that is not negative is the number of a program
to run again; MESSAGE says that the command itself is a message on the rank's socket. NEWS says that at least one rank
has put a message (an error, a new shape of result) on its socket.
"""

import os
from dataclasses import dataclass

from synknumba._host.segment import Segment
from synknumba._host.semaphore import Semaphore
from synknumba._types import Array
from synknumba._wire import doorbell as doorbell_module

MESSAGE = -1  # the command is a message on the socket

VALUE_BYTES = 16 * 1024  # scalars and row selections of one call: 2,000 float64 scalars
RESULT_BYTES = 64 * 1024  # small results of one rank; larger ones have a segment of their own
SLEEP_SECONDS = 0.05  # how often a sleeping coordinator looks after the ranks; a death is told well within a second
IDLE_SECONDS = 1.0  # how often a sleeping rank looks whether the coordinator still lives


@dataclass(frozen=True, slots=True)
class Patience:
    """How long is spun before somebody goes to sleep; a semaphore's wake-up costs about 10 µs.

    Attributes:
        pauses: spins of 20 to 50 ns that keep the core to themselves.
        rank: spins of a rank after that, which give way to others: system calls of some 0.5 µs.
        coordinator: such spins of the coordinator.
    """

    pauses: int
    rank: int
    coordinator: int


# Ranks spin longer than what a script does between two calls of a loop: about a millisecond, or, where there is a core for
# everybody, 20 ms, since to wake a core up takes 0.3 ms on some machines. Where there is none, a coordinator that spins while
# ranks work would take part of their core, so there it sleeps after 100 µs; else after some 10 ms. There, too, a rank may be
# woken on the coordinator's core, so nobody keeps one for longer than 100 µs.
CROWDED = Patience(pauses=0, rank=2000, coordinator=200)
ROOMY = Patience(pauses=2000, rank=40_000, coordinator=20_000)


def _align(nbytes: int, to: int = 64) -> int:
    return -(-nbytes // to) * to


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are in the control block, in bytes."""

    world_size: int

    @property
    def values(self) -> int:
        """The first byte of the call's values."""
        return _align((doorbell_module.RANK_LINES + self.world_size * doorbell_module.WORDS_PER_RANK) * 8)

    @property
    def results(self) -> int:
        """The first byte of rank 0's results; rank r's are r × RESULT_BYTES further."""
        return _align(self.values + VALUE_BYTES, 4096)

    @property
    def size(self) -> int:
        """Bytes in all."""
        return self.results + self.world_size * RESULT_BYTES


class ControlBlock:
    """The shared memory and the semaphores of one world, made before the fork and inherited by every rank."""

    def __init__(self, world_size: int, patience: Patience = CROWDED) -> None:
        self.world_size = world_size
        self.patience = patience
        self.layout = Layout(world_size)
        self.segment = Segment(self.layout.size)
        memory = self.segment.array("u1", (self.layout.size,))
        memory[:] = 0  # touches every page, so that no call pays for it
        self.memory: Array = memory
        self.base: int = memory.ctypes.data
        self.values: Array = memory[self.layout.values : self.layout.values + VALUE_BYTES]
        self.results: Array = memory[self.layout.results :].reshape(world_size, RESULT_BYTES)
        self.done = Semaphore(self.base + doorbell_module.COORDINATOR_SEMAPHORE * 8)
        self.doorbells = tuple(
            Semaphore(
                self.base + (doorbell_module.RANK_LINES + rank * doorbell_module.WORDS_PER_RANK + doorbell_module.SEMAPHORE) * 8
            )
            for rank in range(world_size)
        )

    def wake_ranks(self) -> None:
        """Posts the semaphore of every rank that sleeps."""
        for rank, doorbell in enumerate(self.doorbells):
            if doorbell_module.wake(self.base, rank):
                doorbell.post()

    def sleep_coordinator(self) -> bool:
        """Sleeps until the last rank arrives or SLEEP_SECONDS have passed; true if all have arrived."""
        posted = False
        try:
            if doorbell_module.coordinator_sleeps(self.base, self.world_size) == 0:
                posted = self.done.wait(SLEEP_SECONDS)
        finally:
            # Also on Ctrl-C. Where a rank took the flag down its post is under way. Should it come too late to be taken
            # here, it only wakes a later round too early, which then finds ARRIVED short and sleeps again.
            if doorbell_module.coordinator_wakes(self.base) == 0 and not posted:
                self.done.wait(SLEEP_SECONDS)
        return bool(doorbell_module.read(self.base, doorbell_module.ARRIVED) == self.world_size)

    def sleep_rank(self, rank: int, sequence: int, coordinator: int) -> bool:
        """Sleeps until the doorbell may have rung; false if the coordinator has died instead."""
        doorbell = self.doorbells[rank]
        if doorbell_module.rank_sleeps(self.base, rank, sequence) == 0:
            while not doorbell.wait(IDLE_SECONDS):
                if os.getppid() != coordinator:
                    return False
            return True
        if doorbell_module.wake(self.base, rank) == 0:
            doorbell.wait(IDLE_SECONDS)  # the coordinator took the flag down, so its post is under way
        return True

    @property
    def began(self) -> int:
        """When the last round began, by `time.monotonic_ns`."""
        return int(doorbell_module.read(self.base, doorbell_module.BEGAN))

    @property
    def worked(self) -> int:
        """Nanoseconds of all rounds together that were over at once."""
        return int(doorbell_module.read(self.base, doorbell_module.WORKED))

    def missing(self, sequence: int) -> list[int]:
        """The ranks that have not answered this round."""
        return [rank for rank in range(self.world_size) if self._word(rank, doorbell_module.DONE) != sequence]

    def with_news(self) -> list[int]:
        """The ranks whose answer comes with a message."""
        return [rank for rank in range(self.world_size) if self._word(rank, doorbell_module.HAS_NEWS)]

    def _word(self, rank: int, word: int) -> int:
        value: int = doorbell_module.read(self.base, doorbell_module.RANK_LINES + rank * doorbell_module.WORDS_PER_RANK + word)
        return value

    def close(self) -> None:
        """Frees the shared memory, with the semaphores in it; idempotent."""
        self.segment.close()
