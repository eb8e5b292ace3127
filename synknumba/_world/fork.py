"""`fork()`: resolves the number of ranks and their devices, checks both, and starts the world."""

import importlib.util
import os
import re
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, cast, get_args

import numpy as np

from synknumba import _tracing as tracing
from synknumba._device import cuda_is_initialised, probed, usable_cores
from synknumba._errors import (
    ArgumentError,
    DeviceError,
    PartitionError,
    WorldError,
    depth_of_script,
)
from synknumba._host import this_process
from synknumba._host.casting import as_index
from synknumba._host.inherited import tell_of_threads
from synknumba._host.log import log
from synknumba._ops.rows import Partition
from synknumba._types import CompilerName, DeviceKind, Transport, as_flag, known_options, shown
from synknumba._world import machines as machines_module
from synknumba._world.engine import Engine
from synknumba._world.life import Setup
from synknumba._world.limits import as_timeout, check_room, check_system_calls
from synknumba._world.machines import MachineDevices, OtherMachines, cores_of, firsts_of, shared_out
from synknumba._world.open_world import current_world, open_world, starting, world_to_start_again
from synknumba._world.world import World, world_of
from synknumba.simt.internals import jit_problem, stands_in

MOST_UNEQUAL = 1000  # weights
_told_of_launcher: list[bool] = []  # not empty once the warning was given
_PROFILE = re.compile(r"synknumba-rank(\d+)\.prof")  # name of what a rank writes


@known_options
def fork(
    world_size: int | None = None,
    *,
    device: str = "auto",
    devices: Sequence[int] | None = None,
    transport: str = "auto",
    compiler: str | None = None,
    profile: bool = False,
    timeout: float | None = None,
    prefix_output: bool = False,
    respawn: bool = False,
    weights: Sequence[float] | str | None = None,
) -> World:
    """Starts the ranks: one process per GPU, or per CPU core if there is no GPU.

    Args:
        world_size: number of ranks. Default: the number of visible GPUs, or of usable CPU cores
            (within affinity and cgroup quota).
        device: "cuda" (or "gpu"), "cpu" or "auto": "cuda" if there is a usable GPU, else "cpu".
        devices: GPU index of each rank. Ranks may share a GPU, as in [0, 0, 1].
        transport: transport of collectives on variables: "nccl" (between GPUs), "host" (shared
            memory), or "auto": "nccl" if each rank has its own GPU and NCCL can be set up, else
            "host". The choice and its reason are logged to the logger "synknumba"; if NCCL cannot
            be set up, the first collective warns of it.
        compiler: what compiles for GPUs where no `cuda.jit` decides, as for plain functions,
            `vectorize`, `expectation`, ops written in Python, and optimisers: "numba.cuda" or
            "numba-cuda-mlir". Default: numba.cuda, or numba-cuda-mlir where only that can be used.
            On cores it has no effect.
        profile: whether each rank writes a cProfile to synknumba-rank<r>.prof in the working
            directory when the world closes. Those of ranks that a larger world has had are removed,
            with a warning. On GPUs, repeated calls run without Python on the ranks, so they do not
            appear in it.
        timeout: time limit of a call in seconds; a call that exceeds it raises `CallTimeout`, and
            all ranks are ended. Default: no limit. Compilation, at the first call of a function,
            counts.
        prefix_output: whether to put "[rank 2] " before each line that a rank writes to stdout or
            stderr. Lines are then forwarded whole, and appear slightly later.
        respawn: whether the call after one that raised `RankDied` or `CallTimeout`, or was
            interrupted, starts the ranks again, in the same world. `Data`, functions and variables
            are as they were, and variables that may have been written to go back to the last
            `World.snapshot`. No call is repeated.
        weights: for ranks of unequal speed, a positive number for each: rows are divided in
            proportion to them, in calls and by `scatter`. "measured" has all ranks work for 0.2 s
            at the same time, and takes their rates. Default: equal shares.

    Returns:
        The world. Use it as a context manager, or call `close()`. At a prompt or in a notebook,
        where a cell may be run again, the same call returns the world that it has opened.

    Raises:
        WorldError: a world is open already, this process is a rank, MPI has been initialised in it,
            or a sandbox refuses a system call that is needed.
        PartitionError: `world_size`, `device`, `devices`, `transport` or `timeout` is invalid,
            there are fewer GPUs than ranks, or the machine has no room for so many ranks.
        ArgumentError: `profile` or `prefix_output` is not True or False, there is no such
            `compiler`, or `weights` are not one positive number for each rank.
        DeviceError: no GPU can be used, `compiler` is not installed, CUDA has been initialised in
            this process already, Numba's compiler is off, or Python runs without the GIL.
        CallTimeout: a rank was stopped, as by SIGSTOP, while it started, and `timeout` is over.
    """
    tracing.refuse("synk.fork()")
    if this_process.current_rank() is not None:
        raise WorldError(
            f"fork() called on rank {this_process.current_rank()}; only the coordinator forks"
        )
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise DeviceError(
            "fork() does not support free-threaded Python; use a Python with the "
            "GIL, or set PYTHON_GIL=1"
        )
    problem = jit_problem()
    if problem:
        raise DeviceError(f"fork() needs Numba's compiler, also on GPUs: {problem}")
    engine = open_world()
    arguments = [
        *map(
            shown,
            (
                world_size,
                device,
                devices,
                transport,
                compiler,
                profile,
                timeout,
                prefix_output,
                respawn,
                weights,
            ),
        )
    ]
    if engine is not None:
        if hasattr(sys, "ps1") and engine.setup.asked == repr(arguments):
            return world_of(engine)
        raise WorldError(
            f"fork() called while {engine!r} is open; call close() first, or use "
            f"`with synknumba.fork(): ...`"
        )
    ended = world_to_start_again()
    if ended is not None and hasattr(sys, "ps1") and ended.setup.asked == repr(arguments):
        return world_of(current_world())
    if machines_module.ranks_compared:
        world_size, device = machines_module.ranks_compared[0]
        devices, weights, transport = None, None, "auto"
    timeout, shares = as_timeout(timeout), _as_weights(weights)
    profile, prefix_output = as_flag(profile, "profile"), as_flag(prefix_output, "prefix_output")
    if transport not in ("auto", *get_args(Transport)):
        raise PartitionError(f'transport must be "auto", "nccl" or "host", got {transport!r}')
    named = _known_compiler(compiler)
    with starting():
        if open_world() is not None:
            raise WorldError(
                "fork() called while another thread has opened a world; call close() first"
            )
        try:
            # keeps the probed GPUs initialised until the ranks have opened theirs
            with ExitStack() as awake:
                device = _known_device(device)
                firsts: tuple[int, ...] = ()
                if machines_module.current and machines_module.current[0].is_mine:
                    kind, indices, firsts = _resolve_machines(
                        machines_module.current[0], world_size, device, devices, awake
                    )
                    size = firsts[-1]
                else:
                    size, kind, indices = _resolve(
                        _asked_for(world_size, devices), device, devices, awake
                    )
                _check_weights(shares, size)
                if kind == "cuda":
                    _check_compiler(named)
                # ranks on this machine, and the GPUs that they may share
                here, shared = (firsts[1], ()) if firsts else (size, indices)
                check_room(here)
                check_system_calls()
                _check_mpi()
                if profile:
                    _make_way_for_profiles(size)
                tell_of_threads()
                carrier = _choose_transport(transport, kind, shared)
                setup = Setup(
                    world_size=size,
                    device=kind,
                    devices=indices,
                    firsts=firsts,
                    transport=carrier,
                    transport_is_free=transport == "auto",
                    compiler=named,
                    profile=profile,
                    prefix_output=prefix_output,
                    asked=repr(arguments),
                )
                engine = Engine(setup, timeout=timeout)
                if shares is not None:
                    engine.weigh(shares)
                if respawn:
                    engine.respawn_after(partial(_check_again, kind))
                return world_of(engine)
        except BaseException:
            engine = open_world()
            # Ctrl-C came after the ranks had started: the caller will not get the world
            if engine is not None:
                engine.close()
            raise


_NO_NUMBERS = (str, bytes, bool, np.bool_)  # which float() would take


def _as_weights(weights: Any) -> tuple[float, ...] | None:
    """Returns weights as numbers, of which there are none if they are to be measured; None if
    there are no weights.
    """
    if weights is None:
        return None
    if isinstance(weights, str) and weights == "measured":
        return ()
    numbers = _as_numbers(weights)
    if not numbers or not all(0 < number < float("inf") for number in numbers):
        raise ArgumentError(
            f"weights must be a positive number for each rank, as in weights=[2, 1, 1], or "
            f'"measured", got {shown(weights)}'
        )
    if max(numbers) > MOST_UNEQUAL * min(numbers):
        raise ArgumentError(
            f"weights differ by more than a factor of {MOST_UNEQUAL:,}; leave out such slow ranks"
        )
    return numbers


def _as_numbers(values: Any) -> tuple[float, ...]:
    """Returns numbers that are listed; none for anything else."""
    if isinstance(values, str | bytes | Mapping):
        return ()
    try:
        listed = list(values)
        if any(isinstance(value, _NO_NUMBERS) for value in listed):
            return ()
        return tuple(map(float, listed))
    except (TypeError, ValueError, OverflowError):
        return ()


def _check_weights(weights: tuple[float, ...] | None, size: int) -> None:
    if weights and len(weights) != size:
        raise ArgumentError(
            f"weights has {len(weights)} numbers for {size} ranks; give one for each"
        )


def _asked_for(world_size: int | None, devices: Sequence[int] | None) -> int | None:
    """Returns the number of ranks that the script, or else `synknumba run`, asks for."""
    if world_size is None and devices is None and machines_module.ranks_alone:
        return machines_module.ranks_alone[0]
    return world_size


def _resolve_machines(
    machines: OtherMachines,
    world_size: int | None,
    device: str,
    devices: Sequence[int] | None,
    awake: ExitStack,
) -> tuple[DeviceKind, tuple[int, ...], tuple[int, ...]]:
    """Returns the kind of device, each rank's GPU index, and the first rank of each machine with
    the number of ranks.
    """
    count = len(machines.hosts)
    if devices is not None:
        raise PartitionError(
            f"devices={list(devices)!r} places ranks on GPUs of one machine, but this job has "
            f"{count}; leave it out, and start synknumba with --ranks-per-node"
        )
    available = machines.devices()
    kind: DeviceKind = "cpu"
    if device != "cpu":
        _check_cuda()
        report = awake.enter_context(probed())
        available[0] = MachineDevices.of(available[0].cores, report)
        available = shared_out(available)
        lacking = [
            i
            for i, machine in enumerate(available)
            if len(machine.gpus) < (machines.ranks_each or 1)
        ]
        if not lacking:
            kind = "cuda"
        elif device == "cuda":
            first = available[lacking[0]]
            where = f"machine {lacking[0]} ({machines.hosts[lacking[0]]})"
            problem = (
                f'{where} has {len(first.gpus)} usable GPUs; use device="cpu" to run '
                f"on cores. {first.problem}"
            )
            raise DeviceError(problem.rstrip())
    if machines.ranks_each is not None:
        counts = [machines.ranks_each] * count
    elif kind == "cuda":
        counts = [len(machine.gpus) for machine in available]
    else:
        counts = cores_of(available, machines.hosts)
    if world_size is not None and world_size != sum(counts):
        _check_size(world_size)
        if int(world_size) < count:  # the first machines have one each
            counts = [int(i < world_size) for i in range(count)]
        else:
            counts = list(Partition.even(count).counts(int(world_size)))
    if kind == "cuda":
        short = next(
            (i for i, machine in enumerate(available) if counts[i] > len(machine.gpus)), None
        )
        if short is not None:
            where, number = f"machine {short} ({machines.hosts[short]})", len(available[short].gpus)
            problem = (
                f"{counts[short]} ranks on {where} are more than its {number} "
                f"GPUs. {available[short].problem}"
            )
            raise PartitionError(problem.rstrip())
    gpus = tuple(
        gpu
        for machine, number in zip(available, counts, strict=True)
        for gpu in machine.gpus[:number]
    )
    return kind, gpus if kind == "cuda" else (), firsts_of(counts)


def _check_again(kind: DeviceKind) -> None:
    _check_mpi()
    if kind == "cuda" and cuda_is_initialised():
        raise DeviceError(
            "the ranks cannot be started again: CUDA has been initialised in this process "
            "meanwhile, and its children cannot use it. Move whatever touches the GPU into "
            "functions that run on the ranks, and start the script again."
        )


def _make_way_for_profiles(size: int) -> None:
    """Removes the profiles of ranks that this world does not have, which would count as its own.

    Raises:
        ArgumentError: ranks cannot write their profiles.
    """
    if not os.access(".", os.W_OK | os.X_OK):
        raise ArgumentError(
            f"profile=True writes files into {os.getcwd()}, where this process may not; change "
            f"the folder before fork()"
        )
    profiles = [
        (int(match[1]), match[0])
        for match in map(_PROFILE.fullmatch, os.listdir())
        if match is not None
    ]
    stale = [name for rank, name in sorted(profiles) if rank >= size]
    for name in stale:
        os.unlink(name)
    if stale:
        message = f"fork(profile=True) has removed {', '.join(stale)}, of a larger world before"
        warnings.warn(message, RuntimeWarning, stacklevel=depth_of_script())


def _check_mpi() -> None:
    """Refuses to fork once MPI is initialised; warns of several processes that would each fork."""
    mpi = getattr(sys.modules.get("mpi4py"), "MPI", None)
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        raise WorldError(
            "MPI has been initialised in this process before fork(), and its children cannot use "
            "it. Import mpi4py.MPI after fork(), or set mpi4py.rc.initialize = False before the "
            "import and call MPI.Init() after fork()."
        )
    launchers = {
        name: os.environ[name]
        for name, _ in machines_module.LAUNCHERS
        if os.environ.get(name, "").isdigit()
    }
    name, count = max(launchers.items(), key=lambda item: int(item[1]), default=("", "0"))
    if int(count) > 1 and not machines_module.current and not _told_of_launcher:
        _told_of_launcher.append(True)
        warnings.warn(
            f"fork() in one of {count} processes that a launcher has started ({name}={count}): "
            "each opens a world of its own, on the same devices unless `devices` says otherwise. "
            "For one world on all machines, start it as `python -m synknumba run script.py`; else "
            "start it once, without mpiexec or srun.",
            RuntimeWarning,
            stacklevel=depth_of_script(),
        )


def _choose_transport(choice: str, kind: DeviceKind, devices: Sequence[int]) -> Transport:
    """Returns the transport of collectives, and logs the reason."""
    shared = sorted({device for device in devices if devices.count(device) > 1})
    if kind == "cpu":
        problem = "the ranks are on CPU cores"
    elif shared:
        problem = f"several ranks share GPU {shared[0]}, which NCCL refuses"
    else:
        problem = None
    if choice == "nccl" and problem is not None:
        raise PartitionError(
            f'transport="nccl" needs a GPU for each rank, but {problem}; use '
            f'transport="host" or "auto"'
        )
    if choice == "host" or problem is not None:
        log.info("collectives go over the host: %s", problem or "the script requested it")
        return "host"
    log.info("collectives go over NCCL")
    return "nccl"


def _resolve(
    world_size: int | None, device: str, devices: Sequence[int] | None, awake: ExitStack
) -> tuple[int, DeviceKind, tuple[int, ...]]:
    """Returns number of ranks, kind of device and each rank's GPU index; raises if invalid."""
    if world_size is not None:
        _check_size(world_size)

    def on_cores() -> tuple[int, DeviceKind, tuple[int, ...]]:
        return int(world_size or usable_cores()), "cpu", ()

    if device == "cpu":
        if devices is not None:
            raise PartitionError(
                f"devices={devices!r} places ranks on GPUs, but device is "
                f'"cpu"; leave one of them out'
            )
        return on_cores()
    _check_cuda()
    report = awake.enter_context(probed())
    if report.count > 0:
        return _place_on_gpus(world_size, devices, report.count)
    if devices is None and device == "auto":
        if report.problem:
            warnings.warn(
                f"running on CPU cores: {report.problem}",
                RuntimeWarning,
                stacklevel=depth_of_script(),
            )
        return on_cores()
    # the script has asked numba.cuda whether there is a GPU
    if devices is None and stands_in():
        log.info("the ranks are on CPU cores, which stand in for GPUs")
        return on_cores()
    problem = report.problem
    raise DeviceError(
        problem or 'no NVIDIA GPU is visible here; use device="cpu" to run on the CPU cores'
    )


def _known_device(device: str) -> str:
    """Returns "auto", "cuda" or "cpu"; raises `PartitionError` for anything else."""
    device = "cuda" if device == "gpu" else device
    if device not in {"auto", "cuda", "cpu"}:
        raise PartitionError(f'device must be "auto", "cuda" (or "gpu") or "cpu", got {device!r}')
    return device


def _known_compiler(compiler: Any) -> CompilerName | None:
    """Returns the name of a compiler, or None for the default; raises ArgumentError otherwise."""
    if compiler is not None and not (
        isinstance(compiler, str) and compiler in get_args(CompilerName)
    ):
        raise ArgumentError(
            f'compiler must be "numba.cuda" or "numba-cuda-mlir", or None for the one that can be '
            f"used, got {shown(compiler)}"
        )
    return cast(CompilerName | None, compiler)


def _check_compiler(name: CompilerName | None) -> None:
    """Refuses a compiler that is not installed; ranks see whether it finds CUDA's libraries."""
    if name == "numba-cuda-mlir" and importlib.util.find_spec("numba_cuda_mlir") is None:
        raise DeviceError(
            'compiler="numba-cuda-mlir" needs that package, which is not installed: pip install '
            "'synknumba[mlir]', or leave "
            "compiler= out for numba.cuda"
        )


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


def _place_on_gpus(
    world_size: int | None, devices: Sequence[int] | None, count: int
) -> tuple[int, DeviceKind, tuple[int, ...]]:
    if devices is None:
        size = int(world_size or count)
        if size > count and machines_module.ranks_compared:
            return size, "cuda", tuple(rank % count for rank in range(size))
        if size > count:
            raise PartitionError(
                f"world_size={size} is more than the {count} visible "
                f"GPU{'s' if count > 1 else ''}; several ranks share "
                f"a GPU only on request, as in devices={[r % count for r in range(size)]}"
            )
        return size, "cuda", tuple(range(size))
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
    return len(indices), "cuda", tuple(int(i) for i in indices)
