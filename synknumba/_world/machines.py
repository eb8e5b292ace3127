"""What worlds of several machines are to the coordinator; `_machines` serves them."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Protocol, Self

from synknumba._device import DeviceReport, usable_cores
from synknumba._host.log import log
from synknumba._ops.rows import Partition
from synknumba._types import CompilerName, DeviceKind
from synknumba._wire.control import ControlBlock
from synknumba._wire.messages import Command, Parcel, Warned
from synknumba._world.failure import Death

# Number of processes and of this one, of a launcher: Open MPI's; MPICH's, Intel's and Slurm's by
# PMI; MVAPICH's; Slurm's step.
LAUNCHERS = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)


@dataclass(frozen=True, slots=True)
class MachineDevices:
    """What a machine has."""

    cores: int
    gpus: tuple[int, ...] = ()  # the indices of its GPUs there
    ids: tuple[str, ...] = ()  # of these GPUs
    problem: str = ""  # why GPUs cannot be used
    affinity: frozenset[int] = frozenset()  # the cores that its processes may use

    @classmethod
    def of(cls, cores: int, report: DeviceReport) -> Self:
        """Returns what a machine has whose GPUs were counted."""
        affinity = frozenset(os.sched_getaffinity(0))
        return cls(cores, tuple(range(report.count)), report.ids, report.problem or "", affinity)


@dataclass(frozen=True, slots=True)
class Lost:
    """A rank, or a machine, that has died: everything that `RankDied` tells of it."""

    reason: str
    death: Death
    stack: str = ""
    stderr: str = ""


class OtherMachines(Protocol):
    """The machines of a job other than the script's, and the ranks of a world on them.

    Attributes:
        hosts: name of each machine, this one first.
        ranks_each: number of ranks that each machine is to have; None for one for each device.
    """

    hosts: tuple[str, ...]
    ranks_each: int | None

    @property
    def line(self) -> int:
        """Line of the control block with which the ranks of other machines answer rounds."""
        ...

    @property
    def is_mine(self) -> bool:
        """Whether they are this process's, and not those of the process that has forked it."""
        ...

    @property
    def relay(self) -> str:
        """The process that serves them, in words, as the subject of a sentence."""
        ...

    @property
    def is_dead(self) -> bool:
        """Whether the process that serves them has ended."""
        ...

    def whereabouts(self, ranks: Iterable[int]) -> str:
        """Tells on which machines ranks of the world are."""
        ...

    def devices(self) -> list[MachineDevices]:
        """Returns what each machine has, this one first."""
        ...

    def start(
        self,
        control: ControlBlock,
        firsts: tuple[int, ...],
        device: DeviceKind,
        devices: tuple[int, ...],
        *,
        compiler: CompilerName | None,
        profile: bool,
        prefix_output: bool,
    ) -> None:
        """Starts the ranks of a world.

        Args:
            control: control block of this machine.
            firsts: first rank of each machine, and the number of ranks.
            device: kind of their devices.
            devices: index of each rank's GPU on its machine; empty on the CPU.
            compiler: as for `fork()`.
            profile: as for `fork()`.
            prefix_output: as for `fork()`.
        """

    def await_start(self, watch: Callable[[], None]) -> Sequence[Warned]:
        """Waits until the ranks have started; returns their warnings, and raises the error of
        those that could not.
        """
        ...

    def send(
        self,
        command: Command,
        payload: bytes,
        descriptors: Sequence[int],
        watch: Callable[[], None],
    ) -> None:
        """Sends a command, also pickled, as part of a round."""

    def read(
        self, watch: Callable[[], None]
    ) -> tuple[list[tuple[int, Parcel, list[int]]], Sequence[Warned], Lost | None]:
        """Receives the news of a round: of ranks, with descriptors; warnings; and what has died."""
        ...

    def where(self) -> dict[int, str]:
        """Returns the stacks of the ranks."""
        ...

    def end(self) -> None:
        """Ends the ranks at once, if they have not been ended, and waits until they have."""


current: list[OtherMachines] = []  # the other machines, if the script was started on several
ranks_alone: list[int] = []  # the number of ranks that the launcher asked for on one machine
# of each world, whatever the script asks for, and their device
ranks_compared: list[tuple[int, DeviceKind]] = []


def cores_each(hosts: Sequence[str], host: str) -> int:
    """Returns how many cores each machine of a job has if several are one host, as in tests."""
    return usable_cores() // max(1, hosts.count(host))


def cores_of(devices: Sequence[MachineDevices], hosts: Sequence[str]) -> list[int]:
    """Returns how many ranks each machine has cores for: those of one host that may use the same
    cores share them out.

    >>> half, other = MachineDevices(2, affinity=frozenset({0, 1})), MachineDevices(2, affinity=frozenset({2, 3}))
    >>> cores_of([half, half, half, other, half], ["a", "a", "a", "a", "b"])
    [1, 1, 1, 2, 2]
    """  # noqa: E501
    sharers: dict[tuple[str, frozenset[int]], list[int]] = {}
    for index, (machine, host) in enumerate(zip(devices, hosts, strict=True)):
        sharers.setdefault((host, machine.affinity), []).append(index)
    cores = [machine.cores for machine in devices]
    for (host, _), indices in sharers.items():
        if len(indices) > 1:
            total = cores[indices[0]]
            shares = Partition.even(len(indices)).counts(total)
            for index, count in zip(indices, shares, strict=True):
                cores[index] = max(1, int(count))
            log.info(
                "%d processes of the job are on %s, and share out its %d cores; for one process a "
                "machine, start it by mpiexec --map-by ppr:1:node (Open MPI), mpiexec -ppn 1 "
                "(MPICH, Intel MPI), or srun --ntasks-per-node=1",
                len(indices),
                host,
                total,
            )
    return cores


def shared_out(devices: Sequence[MachineDevices]) -> list[MachineDevices]:
    """Returns the machines with GPUs that no other one has: those that several see, as agents of
    one host do, are shared out.

    >>> both = MachineDevices(8, (0, 1), ("a", "b"))
    >>> [machine.gpus for machine in shared_out([both, both, MachineDevices(8, (0, 1), ("c", "d"))])]
    [(0,), (1,), (0, 1)]
    """  # noqa: E501
    seen_by: dict[str, list[int]] = {}
    for index, machine in enumerate(devices):
        for gpu in machine.ids:
            seen_by.setdefault(gpu, []).append(index)
    alike: dict[tuple[int, ...], list[str]] = {}  # GPUs, by the machines that see them
    for gpu, machines in seen_by.items():
        alike.setdefault(tuple(machines), []).append(gpu)
    owner: dict[str, int] = {}
    for seers, gpus in alike.items():
        edges = Partition.even(len(seers)).edges(len(gpus))
        for index, (start, stop) in zip(seers, pairwise(edges), strict=True):
            owner.update(dict.fromkeys(gpus[start:stop], index))
    shares = []
    for index, machine in enumerate(devices):
        mine = [place for place, gpu in enumerate(machine.ids) if owner[gpu] == index]
        share = replace(
            machine,
            gpus=tuple(machine.gpus[i] for i in mine),
            ids=tuple(machine.ids[i] for i in mine),
        )
        if len(mine) < len(machine.ids):
            count = len({seer for gpu in machine.ids for seer in seen_by[gpu]} - {index})
            problem = (
                f"{len(machine.ids)} GPUs are shared out among it and {count} other "
                f"machines of the job that see them"
            )
            share = replace(share, problem=machine.problem or problem)
        shares.append(share if machine.ids else machine)
    return shares


def firsts_of(counts: Sequence[int]) -> tuple[int, ...]:
    """Returns the first rank of each machine, and the number of ranks.

    >>> firsts_of([2, 3])
    (0, 2, 5)
    """
    return tuple(accumulate(counts, initial=0))
