"""`fork()`: resolves the number of ranks and their devices, checks both, and starts the world."""

import logging
import warnings
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from numbers import Real
from typing import get_args

from synknumba._device import cuda_is_initialised, probed, usable_cores
from synknumba._errors import DeviceError, PartitionError, WorldError
from synknumba._host import this_process
from synknumba._host.inherited import tell_of_threads
from synknumba._types import DeviceKind, Transport
from synknumba._world.world import World, open_world

_log = logging.getLogger("synknumba")


def fork(
    world_size: int | None = None,
    *,
    device: str = "auto",
    devices: Sequence[int] | None = None,
    transport: str = "auto",
    profile: bool = False,
    timeout: float | None = None,
    prefix_output: bool = False,
) -> World:
    """Starts the ranks: one process per GPU, or per CPU core if there is no GPU.

    Args:
        world_size: number of ranks. Default: the number of visible GPUs, or of usable CPU cores (within affinity and cgroup
            quota).
        device: "cuda", "cpu" or "auto": "cuda" if there is a usable GPU, else "cpu".
        devices: GPU index of each rank. Ranks may share a GPU, as in [0, 0, 1].
        transport: transport of collectives on variables: "nccl" (between GPUs), "host" (shared memory), or "auto": "nccl" if
            each rank has its own GPU and NCCL can be set up, else "host". The choice and its reason are logged to the logger
            "synknumba".
        profile: whether each rank writes a cProfile to synknumba-rank<r>.prof in the working directory when the world closes.
            On GPUs, repeated calls run without Python on the ranks, so they do not appear in it.
        timeout: time limit of a call in seconds; a call that exceeds it raises `CallTimeout`, and all ranks are ended. Default:
            no limit. Compilation, at the first call of a function, counts.
        prefix_output: whether to put "[rank 2] " before each line that a rank writes to stdout or stderr. Lines are then
            forwarded whole, and appear slightly later.

    Returns:
        The world. Use it as a context manager, or call `close()`.

    Raises:
        WorldError: a world is open already, or this process is a rank.
        PartitionError: `world_size`, `device`, `devices`, `transport` or `timeout` is invalid, or there are fewer GPUs than
            ranks.
        DeviceError: no GPU can be used, or CUDA has been initialised in this process already.
    """
    if this_process.current_rank() is not None:
        raise WorldError(f"fork() called on rank {this_process.current_rank()}; only the coordinator forks")
    world = open_world()
    if world is not None:
        raise WorldError(f"fork() called while {world!r} is open; call close() first, or use `with synknumba.fork(): ...`")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, Real) or not float(timeout) > 0):
        raise PartitionError(f"timeout must be a positive number of seconds or None, got {timeout!r}")
    if transport not in ("auto", *get_args(Transport)):
        raise PartitionError(f'transport must be "auto", "nccl" or "host", got {transport!r}')
    try:
        with ExitStack() as awake:  # keeps the probed GPUs initialised until the ranks have opened theirs
            world_size, kind, indices = _resolve(world_size, device, devices, awake)
            tell_of_threads()
            carrier = _choose_transport(transport, kind, indices)
            return World(
                world_size,
                kind,
                indices,
                profile=bool(profile),
                timeout=timeout,
                transport=carrier,
                transport_is_free=transport == "auto",
                prefix_output=bool(prefix_output),
            )
    except BaseException:
        world = open_world()
        if world is not None:  # Ctrl-C came after the ranks had started: the caller will not get the world
            world.close()
        raise


def _choose_transport(wanted: str, kind: DeviceKind, devices: Sequence[int]) -> Transport:
    """Returns the transport of collectives, and logs the reason."""
    shared = sorted({device for device in devices if devices.count(device) > 1})
    if kind == "cpu":
        problem = "the ranks are on CPU cores"
    elif shared:
        problem = f"several ranks share GPU {shared[0]}, which NCCL refuses"
    else:
        problem = None
    if wanted == "nccl" and problem is not None:
        raise PartitionError(f'transport="nccl" needs a GPU for each rank, but {problem}; use transport="host" or "auto"')
    if wanted == "host" or problem is not None:
        _log.info("collectives go over the host: %s", problem or "the script requested it")
        return "host"
    _log.info("collectives go over NCCL")
    return "nccl"


def _resolve(
    world_size: int | None, device: str, devices: Sequence[int] | None, awake: ExitStack
) -> tuple[int, DeviceKind, tuple[int, ...]]:
    """Returns the number of ranks, the kind of device and each rank's GPU index; raises if they are invalid."""
    if device not in {"auto", "cuda", "cpu"}:
        raise PartitionError(f'device must be "auto", "cuda" or "cpu", got {device!r}')
    if world_size is not None and (isinstance(world_size, bool) or not hasattr(world_size, "__index__") or world_size < 1):
        raise PartitionError(f"world_size must be an integer of at least 1 (or None for every device), got {world_size!r}")
    if device == "cpu":
        if devices is not None:
            raise PartitionError(f'devices={devices!r} places ranks on GPUs, but device is "cpu"; leave one of them out')
        return int(world_size or usable_cores()), "cpu", ()
    if cuda_is_initialised():  # checked first: the child that counts GPUs could not use CUDA either
        raise DeviceError(
            "CUDA has been initialised in this process before fork(), and its children cannot use it. Move whatever touches "
            "the GPU (cuda.to_device, cupy arrays, torch.cuda, cuda.jit with explicit signatures) after fork(), into functions "
            'that run on the ranks, or use device="cpu".'
        )
    report = awake.enter_context(probed())
    if report.count == 0 and device == "auto" and devices is None:
        if report.problem:
            warnings.warn(f"running on CPU cores: {report.problem}", RuntimeWarning, stacklevel=3)
        return int(world_size or usable_cores()), "cpu", ()
    if report.count == 0:
        raise DeviceError(report.problem or 'no NVIDIA GPU is visible here; use device="cpu" to run on the CPU cores')
    return _place_on_gpus(world_size, devices, report.count)


def _place_on_gpus(
    world_size: int | None, devices: Sequence[int] | None, count: int
) -> tuple[int, DeviceKind, tuple[int, ...]]:
    if devices is None:
        size = int(world_size or count)
        if size > count:
            raise PartitionError(
                f"world_size={size} is more than the {count} visible GPU{'s' if count > 1 else ''}; several ranks share "
                f"a GPU only on request, as in devices={[r % count for r in range(size)]}"
            )
        return size, "cuda", tuple(range(size))
    if not isinstance(devices, Iterable):
        raise PartitionError(f"devices must list a GPU for each rank, got {devices!r}")
    indices = tuple(devices)
    bad = [i for i in indices if isinstance(i, bool) or not hasattr(i, "__index__") or not 0 <= i < count]
    if bad or not indices:
        raise PartitionError(f"devices must list a GPU between 0 and {count - 1} for each rank, got {list(indices)}")
    if world_size is not None and world_size != len(indices):
        raise PartitionError(
            f"world_size={world_size} but devices={list(indices)} places {len(indices)} ranks; leave one of them out"
        )
    return len(indices), "cuda", tuple(int(i) for i in indices)
