"""Where the ranks of a world are: how many there are, and which device each of them has.

world_size, device, devices ──> this machine, or those of the job ──> Placement
"""

import warnings
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, final

from synknumba._device import DeviceReport, cuda_is_initialised, probed, usable_cores
from synknumba._errors import DeviceError, PartitionError, depth_of_script
from synknumba._host.casting import as_index
from synknumba._host.log import log
from synknumba._ops.rows import Partition
from synknumba._types import DeviceKind, count_text
from synknumba._world import machines as machines_module
from synknumba._world.machines import MachineDevices, OtherMachines, cores_of, firsts_of, shared_out
from synknumba.simt.internals import stands_in


@final
@dataclass(frozen=True, slots=True)
class Placement:
    """The ranks of a world, and their devices.

    Attributes:
        size: number of ranks.
        kind: kind of device.
        devices: GPU index of each rank; empty on the CPU.
        firsts: first rank of each machine, and the number of ranks; empty for one machine.
    """

    size: int
    kind: DeviceKind
    devices: tuple[int, ...] = ()
    firsts: tuple[int, ...] = ()

    @property
    def here(self) -> int:
        """Number of ranks on this machine."""
        return self.firsts[1] if self.firsts else self.size

    @property
    def shared_gpu(self) -> int | None:
        """The first GPU that several ranks have; None if there is none."""
        if self.firsts:  # each machine has its own
            return None
        shared = {gpu for gpu in self.devices if self.devices.count(gpu) > 1}
        return min(shared, default=None)


def place(
    world_size: int | None, device: str, devices: Sequence[int] | None, awake: ExitStack
) -> Placement:
    """Returns where the ranks of a world are to be; arguments and errors as for `fork()`.

    Args:
        world_size: number of ranks; None for one per device.
        device: kind of device.
        devices: GPU index of each rank; None for one rank per GPU.
        awake: keeps GPUs that were probed initialised.
    """
    device = _known_device(device)
    for machines in machines_module.current:
        if machines.is_mine:
            return _place_on_machines(machines, world_size, device, devices, awake)
    if world_size is None and devices is None and machines_module.ranks_alone:
        world_size = machines_module.ranks_alone[0]
    return _place_here(world_size, device, devices, awake)


def _known_device(device: str) -> str:
    """Returns "auto", "cuda" or "cpu"; raises `PartitionError` for anything else."""
    device = "cuda" if device == "gpu" else device
    if device not in {"auto", "cuda", "cpu"}:
        raise PartitionError(f'device must be "auto", "cuda" (or "gpu") or "cpu", got {device!r}')
    return device


# ---- one machine


def _place_here(
    world_size: int | None, device: str, devices: Sequence[int] | None, awake: ExitStack
) -> Placement:
    if world_size is not None:
        _check_size(world_size)
    if device == "cpu":
        if devices is not None:
            raise PartitionError(
                f"devices={devices!r} places ranks on GPUs, but device is "
                f'"cpu"; leave one of them out'
            )
        return _place_on_cores(world_size)
    _check_cuda()
    report = awake.enter_context(probed())
    if report.count > 0:
        return _place_on_gpus(world_size, devices, report.count)
    if devices is None and _cores_will_do(device, report):
        return _place_on_cores(world_size)
    raise DeviceError(
        report.problem or 'no NVIDIA GPU is visible here; use device="cpu" to run on the CPU cores'
    )


def _place_on_cores(world_size: int | None) -> Placement:
    return Placement(int(world_size or usable_cores()), "cpu")


def _cores_will_do(device: str, report: DeviceReport) -> bool:
    """Returns whether ranks may be on cores where there are no GPUs, and tells why they are."""
    if device == "auto":
        if report.problem:
            warnings.warn(
                f"running on CPU cores: {report.problem}",
                RuntimeWarning,
                stacklevel=depth_of_script(),
            )
        return True
    if stands_in():  # the script has asked numba.cuda whether there is a GPU
        log.info("the ranks are on CPU cores, which stand in for GPUs")
        return True
    return False


def _place_on_gpus(world_size: int | None, devices: Sequence[int] | None, count: int) -> Placement:
    if devices is None:
        size = int(world_size or count)
        gpus = tuple(rank % count for rank in range(size))
        if size > count and not machines_module.ranks_compared:
            raise PartitionError(
                f"world_size={size} is more than the {count_text(count, 'visible GPU')}; several "
                f"ranks share a GPU only on request, as in devices={list(gpus)}"
            )
        return Placement(size, "cuda", gpus)
    if not isinstance(devices, Iterable):
        raise PartitionError(f"devices must list a GPU for each rank, got {devices!r}")
    indices = tuple(devices)
    are_valid = all(0 <= as_index(index) < count for index in indices)
    if not are_valid or not indices:
        raise PartitionError(
            f"devices must list a GPU between 0 and {count - 1} for each rank, got {list(indices)}"
        )
    if world_size is not None and world_size != len(indices):
        raise PartitionError(
            f"world_size={world_size} but devices={list(indices)} places {len(indices)} "
            f"ranks; leave one of them out"
        )
    return Placement(len(indices), "cuda", tuple(map(int, indices)))


def _check_cuda() -> None:
    """Refuses CUDA in this process; called first, since the child that counts GPUs could not use
    it either.
    """
    if cuda_is_initialised():
        raise DeviceError(
            "CUDA has been initialised in this process before fork(), and its children cannot use "
            "it. Move whatever touches "
            "the GPU (cuda.to_device, cupy arrays, torch.cuda, cuda.jit with explicit signatures) "
            "after fork(), into functions "
            'that run on the ranks, or use device="cpu".'
        )


def _check_size(world_size: Any) -> None:
    if as_index(world_size) < 1:
        raise PartitionError(
            f"world_size must be an integer of at least 1 (or None for every "
            f"device), got {world_size!r}"
        )


# ---- the machines of a job


def _place_on_machines(
    machines: OtherMachines,
    world_size: int | None,
    device: str,
    devices: Sequence[int] | None,
    awake: ExitStack,
) -> Placement:
    count = len(machines.hosts)
    if devices is not None:
        raise PartitionError(
            f"devices={list(devices)!r} places ranks on GPUs of one machine, but this job has "
            f"{count}; leave it out, and start synknumba with --ranks-per-node"
        )
    kind, available = _devices_of(machines, device, awake)
    counts = _default_counts(machines, kind, available)
    if world_size is not None and world_size != sum(counts):
        counts = _counts_for(world_size, count)
    firsts = firsts_of(counts)
    if kind == "cpu":
        return Placement(firsts[-1], kind, (), firsts)
    short = _first_short_of_gpus(available, counts)
    if short is not None:
        problem = (
            f"{counts[short]} ranks on machine {short} ({machines.hosts[short]}) are more than its "
            f"{len(available[short].gpus)} GPUs. {available[short].problem}"
        )
        raise PartitionError(problem.rstrip())
    gpus: list[int] = []
    for machine, number in zip(available, counts, strict=True):
        gpus += machine.gpus[:number]
    return Placement(firsts[-1], kind, tuple(gpus), firsts)


def _devices_of(
    machines: OtherMachines, device: str, awake: ExitStack
) -> tuple[DeviceKind, list[MachineDevices]]:
    """Returns the kind of device that all machines have, and what each machine has."""
    available = machines.devices()
    if device == "cpu":
        return "cpu", available
    _check_cuda()
    report = awake.enter_context(probed())
    available[0] = MachineDevices.of(available[0].cores, report)
    available = shared_out(available)
    short = _first_short_of_gpus(available, [machines.ranks_each or 1] * len(available))
    if short is None:
        return "cuda", available
    if device == "cuda":
        problem = (
            f"machine {short} ({machines.hosts[short]}) has {len(available[short].gpus)} usable "
            f'GPUs; use device="cpu" to run on cores. {available[short].problem}'
        )
        raise DeviceError(problem.rstrip())
    return "cpu", available


def _default_counts(
    machines: OtherMachines, kind: DeviceKind, available: Sequence[MachineDevices]
) -> list[int]:
    """Returns the number of ranks of each machine if the script does not give their sum."""
    if machines.ranks_each is not None:
        return [machines.ranks_each] * len(available)
    if kind == "cuda":
        return [len(machine.gpus) for machine in available]
    return cores_of(available, machines.hosts)


def _counts_for(world_size: int, count: int) -> list[int]:
    """Returns the number of ranks of each of `count` machines, for this many ranks."""
    _check_size(world_size)
    if int(world_size) < count:  # the first machines have one each
        return [int(i < world_size) for i in range(count)]
    return list(Partition.even(count).counts(int(world_size)))


def _first_short_of_gpus(available: Sequence[MachineDevices], counts: Sequence[int]) -> int | None:
    """Returns the first machine that has fewer GPUs than ranks; None if all have enough."""
    for i, (machine, count) in enumerate(zip(available, counts, strict=True)):
        if count > len(machine.gpus):
            return i
    return None
