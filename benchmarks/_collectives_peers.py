"""What collectives.py measures in processes of their own: one loop over collectives and sizes, and
who carries them.

    python _collectives_peers.py mpi SETTINGS        one of the processes of mpiexec
    python _collectives_peers.py gloo SETTINGS       one of torch's, which find each other by RANK, WORLD_SIZE and MEETING_FILE
    python _collectives_peers.py nccl SETTINGS       the same, each on a GPU of its own

SETTINGS are JSON; the root prints rows of JSON. Neither synknumba nor Numba is imported: torch may
be in another environment.
"""  # noqa: E501

import gc
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, final

import numpy as np
from _common import Timing, summarise

Collective: TypeAlias = Literal["all_reduce", "all_gather", "broadcast"]
How: TypeAlias = Literal["waited", "queued"]
Call: TypeAlias = Callable[[], object]

AT_LEAST = 5  # rounds of whatever takes longer than it may
QUEUE = 20  # collectives put on a stream at once


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured: float32, in place wherever the library can."""

    collectives: tuple[Collective, ...]
    sizes: tuple[int, ...]  # bytes of the array that a rank has in the end
    seconds: float


@dataclass(frozen=True, slots=True)
class Row:
    """How long one collective took; "queued": one of many that were put on a stream before the
    wait.
    """

    collective: Collective
    size: int
    how: How
    timing: Timing


class Prepared(NamedTuple):
    """A collective on this rank: the call, what it gives and what it gets, which may be the same
    memory.
    """

    call: Call
    source: Any
    target: Any


class Group(ABC):
    """The processes that take part, seen from one of them."""

    rank: int
    ranks: int
    queues: bool = False  # whether a call returns before the collective has happened

    @abstractmethod
    def prepare(self, collective: Collective, count: int) -> Prepared:
        """Arrays of `count` float32 in the end; count is a multiple of the ranks."""

    @abstractmethod
    def agree(self, number: int) -> int:
        """The root's number."""

    def wait(self) -> None:
        """Until what was called has happened on this rank."""

    def meet(self) -> None:
        """Until everybody is here; where a broadcast may be over on the root before the others
        have it.
        """

    def to_host(self, array: Any) -> Any:
        return np.asarray(array)


def measure(group: Group, settings: Settings) -> Iterator[Row]:
    """Everybody runs this at the same time; rows are the root's."""
    for collective in settings.collectives:
        for size in settings.sizes:
            prepared = group.prepare(collective, elements(size, group.ranks))
            check(group, collective, prepared)

            def waited(
                call: Call = prepared.call, everywhere: bool = collective == "broadcast"
            ) -> None:
                call()
                group.wait()
                if everywhere:
                    group.meet()

            yield Row(collective, size, "waited", time_rounds(group, waited, settings.seconds))
            if group.queues:

                def queued(call: Call = prepared.call) -> None:
                    for _ in range(QUEUE):
                        call()
                    group.wait()

                timing = time_rounds(group, queued, settings.seconds)
                one = Timing(
                    timing.median / QUEUE,
                    timing.p99 / QUEUE,
                    timing.minimum / QUEUE,
                    timing.calls * QUEUE,
                )
                yield Row(collective, size, "queued", one)
            del prepared
            gc.collect()


def elements(size: int, ranks: int) -> int:
    """Of float32, as many as fit and every rank has a part of."""
    return max(size // 4 // ranks, 1) * ranks


def check(group: Group, collective: Collective, prepared: Prepared) -> None:
    """One round, whose result is known. Leaves zeros, which stay what they are however often
    they are added up.
    """
    prepared.source[...] = group.rank + 1
    group.wait()
    group.agree(0)
    prepared.call()
    group.wait()
    assert (
        group.to_host(prepared.target) == expected(collective, group.ranks, len(prepared.target))
    ).all()
    group.agree(0)
    prepared.target[...] = 0
    prepared.source[...] = 0
    group.wait()


def expected(collective: Collective, ranks: int, count: int) -> Any:
    """Where rank r gave numbers r + 1."""
    match collective:
        case "all_reduce":
            return ranks * (ranks + 1) / 2
        case "all_gather":
            return np.repeat(np.arange(1, ranks + 1, dtype=np.float32), count // ranks)
        case "broadcast":
            return 1


def time_rounds(group: Group, call: Call, seconds: float) -> Timing:
    """As `_common.time_calls`, but everybody must make the same number of rounds."""
    probe = time_fixed(group, call, AT_LEAST)
    return time_fixed(group, call, group.agree(max(AT_LEAST, int(seconds * 1e6 / probe.median))))


def time_fixed(group: Group, call: Call, rounds: int) -> Timing:
    clock = time.perf_counter_ns
    times = []
    group.agree(0)
    call()
    for _ in range(rounds):
        start = clock()
        call()
        times.append(clock() - start)
    return summarise(times)


def part(array: Any, rank: int, ranks: int) -> Any:
    """One rank's, where all have as much."""
    count = len(array) // ranks
    return array[rank * count : (rank + 1) * count]


@final
class MpiGroup(Group):
    """mpi4py, with arrays; reductions in place, gathers from memory of their own."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._in_place = MPI.IN_PLACE
        self._world = MPI.COMM_WORLD
        self.rank, self.ranks = self._world.rank, self._world.size

    def prepare(self, collective: Collective, count: int) -> Prepared:
        array = np.ones(count, np.float32)
        match collective:
            case "all_reduce":
                return Prepared(lambda: self._world.Allreduce(self._in_place, array), array, array)
            case "all_gather":
                own = part(array, self.rank, self.ranks).copy()
                return Prepared(lambda: self._world.Allgather(own, array), own, array)
            case "broadcast":
                return Prepared(lambda: self._world.Bcast(array, 0), array, array)

    def agree(self, number: int) -> int:
        return self._world.bcast(number, 0)


@final
class TorchGroup(Group):
    """torch.distributed: gloo on a CPU, nccl on GPUs."""

    def __init__(self, backend: Literal["gloo", "nccl"]) -> None:
        import torch
        import torch.distributed

        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.queues = backend == "nccl"
        self._torch = torch
        self._distributed = torch.distributed
        self._device = torch.device("cuda", self.rank) if self.queues else torch.device("cpu")
        options = {}
        if self.queues:
            torch.cuda.set_device(self._device)
            options["device_id"] = self._device
        else:
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // self.ranks))
        # a cache line each
        self._places = np.memmap(os.environ["MEETING_PAGE"], np.int64, "r+", shape=(self.ranks, 8))
        self._met = 0
        meeting = "file://" + os.environ["MEETING_FILE"]
        torch.distributed.init_process_group(
            backend, meeting, rank=self.rank, world_size=self.ranks, **options
        )

    def prepare(self, collective: Collective, count: int) -> Prepared:
        array = self._torch.ones(count, dtype=self._torch.float32, device=self._device)
        match collective:
            case "all_reduce":
                return Prepared(lambda: self._distributed.all_reduce(array), array, array)
            case "all_gather":
                own = part(array, self.rank, self.ranks).clone()
                if self.queues:
                    return Prepared(
                        lambda: self._distributed.all_gather_into_tensor(array, own), own, array
                    )
                parts = list(array.chunk(self.ranks))
                return Prepared(lambda: self._distributed.all_gather(parts, own), own, array)
            case "broadcast":
                return Prepared(lambda: self._distributed.broadcast(array, 0), array, array)

    def agree(self, number: int) -> int:
        told = self._torch.tensor([number], device=self._device)
        self._distributed.broadcast(told, 0)
        return int(told.item())

    def wait(self) -> None:
        if self.queues:
            self._torch.cuda.synchronize()

    def meet(self) -> None:
        self._met += 1
        self._places[self.rank, 0] = self._met
        while self._places[:, 0].min() < self._met:
            pass

    def to_host(self, array: Any) -> Any:
        return array.cpu().numpy()

    def close(self) -> None:
        self._distributed.destroy_process_group()


def main() -> None:
    """One of the processes."""
    who, settings = sys.argv[1], Settings(**json.loads(sys.argv[2]))
    group = MpiGroup() if who == "mpi" else TorchGroup(who)
    rows = [asdict(row) for row in measure(group, settings)]
    if group.rank == 0:
        print(json.dumps(rows))
    if isinstance(group, TorchGroup):
        group.close()


if __name__ == "__main__":
    main()
