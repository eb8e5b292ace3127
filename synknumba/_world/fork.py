"""`fork()`: how many ranks on which devices, checked before the first process is made."""

import logging
import warnings
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from numbers import Real

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
    """Starts the ranks: one process per GPU, or per CPU core where there is no GPU.

    Args:
        world_size: number of ranks. Default: every visible GPU, or every usable CPU core (affinity and cgroup quota counted).
        device: "cuda", "cpu", or "auto": "cuda" where there is a usable GPU, else "cpu".
        devices: the GPU of each rank, by index; several ranks may share one, as in [0, 0, 1].
        transport: what carries collectives over variables: "nccl", between GPUs; "host", shared memory; "auto": "nccl" where
            each rank has a GPU of its own and NCCL can be set up, else "host". The logger "synknumba" says which, and why.
        profile: write a cProfile of each rank to synknumba-rank<r>.prof in the working directory when the world closes. On
            GPUs, what a rank has repeated before takes no Python there, and is not in it.
        timeout: seconds a call may take before all ranks are ended and `CallTimeout` is raised. Default: no limit. Compiling,
            at the first call of a function, counts.
        prefix_output: put "[rank 2] " before each line that a rank writes to stdout or stderr. Lines are whole then, and come a
            moment later.

    Returns:
        The world; use it as a context manager, or call `close()`.

    Raises:
        WorldError: there is an open world already, or this process is a rank.
        PartitionError: `world_size`, `devices`, `transport` or `timeout` makes no sense, or there are fewer GPUs than ranks.
        DeviceError: no GPU can be used, or CUDA was initialised in this process before.
    """
    if this_process.current_rank() is not None:
        raise WorldError(f"fork() called on rank {this_process.current_rank()}; only the coordinator forks")
    world = open_world()
    if world is not None:
        raise WorldError(f"fork() called while {world!r} is open; call close() first, or use `with synknumba.fork(): ...`")
    _check_timeout(timeout)
    _check_transport(transport)
    try:
        with ExitStack() as awake:  # GPUs, until the ranks have opened theirs
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
        if world is not None:  # Ctrl-C came when the ranks were there: nobody has the world
            world.close()
        raise


def _check_transport(transport: str) -> None:
    if transport not in ("auto", "nccl", "host"):
        raise PartitionError(f'transport must be "auto", "nccl" or "host", got {transport!r}')


def _choose_transport(wanted: str, kind: DeviceKind, devices: Sequence[int]) -> Transport:
    """What carries collectives, with a line of log that says why."""
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
        _log.info("collectives go over the host: %s", problem or "it was asked for")
        return "host"
    _log.info("collectives go over NCCL")
    return "nccl"


def _check_timeout(timeout: object) -> None:
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, Real) or not float(timeout) > 0):
        raise PartitionError(f"timeout must be a positive number of seconds or None, got {timeout!r}")


def _resolve(
    world_size: int | None, device: str, devices: Sequence[int] | None, awake: ExitStack
) -> tuple[int, DeviceKind, tuple[int, ...]]:
    """How many ranks on what, checked."""
    if device not in {"auto", "cuda", "cpu"}:
        raise PartitionError(f'device must be "auto", "cuda" or "cpu", got {device!r}')
    if world_size is not None and (isinstance(world_size, bool) or not hasattr(world_size, "__index__") or world_size < 1):
        raise PartitionError(f"world_size must be an integer of at least 1 (or None for every device), got {world_size!r}")
    if device == "cpu":
        if devices is not None:
            raise PartitionError(f'devices={devices!r} places ranks on GPUs, but device is "cpu"; leave one of them out')
        return int(world_size or usable_cores()), "cpu", ()
    if cuda_is_initialised():  # first: the child that counts GPUs could not use it either
        raise DeviceError(
            "CUDA has been initialised in this process before fork(), and its children cannot use it. Move "
            "whatever touches the GPU "
            "(cuda.to_device, cupy arrays, torch.cuda, cuda.jit with explicit signatures) behind fork(), into "
            "functions that run on the "
            'ranks, or use device="cpu".'
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
                f"world_size={size} is more than the {count} visible GPU{'s' if count > 1 else ''}; several "
                f"ranks share a GPU only where "
                f"it is asked for, as in devices={[r % count for r in range(size)]}"
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
