"""`fork()`: checks its arguments and this process, and starts the world."""

import importlib.util
import os
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast, get_args

import numpy as np

from synknumba import _tracing as tracing
from synknumba._device import cuda_is_initialised
from synknumba._errors import (
    ArgumentError,
    DeviceError,
    PartitionError,
    WorldError,
    depth_of_script,
)
from synknumba._host import this_process
from synknumba._host.inherited import tell_of_threads
from synknumba._host.log import log
from synknumba._types import CompilerName, DeviceKind, Transport, as_flag, known_options, shown
from synknumba._world import machines as machines_module
from synknumba._world.engine import Engine
from synknumba._world.life import Setup
from synknumba._world.limits import as_timeout, check_room, check_system_calls
from synknumba._world.open_world import current_world, open_world, starting, world_to_start_again
from synknumba._world.placement import Placement, place
from synknumba._world.world import World, world_of
from synknumba.simt.internals import jit_problem

MOST_UNEQUAL = 1000  # weights
_told_of_launcher: list[bool] = []  # not empty once the warning was given
_PROFILE = re.compile(r"synknumba-rank(\d+)\.prof")  # name of what a rank writes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """Checked arguments of `fork()` beside those that place the ranks.

    Attributes:
        weights: weights of the ranks; () to measure them, None for equal shares.
        compiler: None for the default.
        arguments: text of all arguments.
    """

    timeout: float | None
    weights: tuple[float, ...] | None
    profile: bool
    prefix_output: bool
    transport: str
    compiler: CompilerName | None
    respawn: bool
    arguments: str


@known_options
def fork(
    world_size: int | None = None,
    *,
    device: DeviceKind | Literal["auto", "gpu"] | str = "auto",
    devices: Sequence[int] | None = None,
    transport: Transport | Literal["auto"] | str = "auto",
    compiler: CompilerName | str | None = None,
    profile: bool = False,
    timeout: float | None = None,
    prefix_output: bool = False,
    respawn: bool = False,
    weights: Sequence[float] | Literal["measured"] | str | None = None,
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

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> @synk.function(outputs="sum")
        ... def total(x):
        ...     return x.sum()
        >>> with synk.fork(2, device="cpu") as world:
        ...     total(np.ones(10))
        np.float64(10.0)
        >>> world.closed
        True
    """
    tracing.refuse("synk.fork()")
    _check_interpreter()
    arguments = (
        *(world_size, device, devices, transport, compiler),
        *(profile, timeout, prefix_output, respawn, weights),
    )
    text = repr(list(map(shown, arguments)))
    opened = _opened_by_same_call(text)
    if opened is not None:
        return world_of(opened)
    if machines_module.ranks_compared:
        world_size, device = machines_module.ranks_compared[0]
        devices, weights, transport = None, None, "auto"
    options = _Options(
        timeout=as_timeout(timeout),
        weights=_as_weights(weights),
        profile=as_flag(profile, "profile"),
        prefix_output=as_flag(prefix_output, "prefix_output"),
        transport=_known_transport(transport),
        compiler=_known_compiler(compiler),
        respawn=respawn,
        arguments=text,
    )
    with starting():
        if open_world() is not None:
            raise WorldError(
                "fork() called while another thread has opened a world; call close() first"
            )
        try:
            # keeps the probed GPUs initialised until the ranks have opened theirs
            with ExitStack() as awake:
                placement = place(world_size, device, devices, awake)
                return world_of(_start(placement, options))
        except BaseException:
            engine = open_world()
            # Ctrl-C came after the ranks had started: the caller will not get the world
            if engine is not None:
                engine.close()
            raise


def _check_interpreter() -> None:
    """Raises an error if this process is a rank, or no rank could compile."""
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


def _opened_by_same_call(text: str) -> Engine | None:
    """Returns the world that the same call has opened, at a prompt; raises `WorldError` if another
    one is open.
    """
    engine, at_prompt = open_world(), hasattr(sys, "ps1")
    if engine is not None:
        if at_prompt and engine.setup.arguments == text:
            return engine
        raise WorldError(
            f"fork() called while {engine!r} is open; call close() first, or use "
            f"`with synknumba.fork(): ...`"
        )
    if at_prompt:
        ended = world_to_start_again()
        if ended is not None and ended.setup.arguments == text:
            return current_world()
    return None


def _start(placement: Placement, options: _Options) -> Engine:
    """Checks whether ranks can be started here, and starts them."""
    kind = placement.kind
    _check_weights(options.weights, placement.size)
    if kind == "cuda":
        _check_compiler(options.compiler)
    check_room(placement.here)
    check_system_calls()
    _check_mpi()
    if options.profile:
        _make_way_for_profiles(placement.size)
    tell_of_threads()
    setup = Setup(
        world_size=placement.size,
        device=kind,
        devices=placement.devices,
        firsts=placement.firsts,
        transport=_choose_transport(options.transport, kind, placement.shared_gpu),
        transport_is_free=options.transport == "auto",
        compiler=options.compiler,
        profile=options.profile,
        prefix_output=options.prefix_output,
        arguments=options.arguments,
    )
    engine = Engine(setup, timeout=options.timeout)
    if options.weights is not None:
        engine.weigh(options.weights)
    if options.respawn:
        engine.respawn_after(partial(_check_again, kind))
    return engine


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
    are_valid = all(0 < number < float("inf") for number in numbers)
    if not numbers or not are_valid:
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
    profiles = filter(None, map(_PROFILE.fullmatch, os.listdir()))
    by_rank = sorted((int(profile[1]), profile[0]) for profile in profiles)
    removed = [name for rank, name in by_rank if rank >= size]
    for name in removed:
        os.unlink(name)
    if removed:
        message = f"fork(profile=True) has removed {', '.join(removed)}, of a larger world before"
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
    counts = ((name, os.environ.get(name, "")) for name, _ in machines_module.LAUNCHERS)
    launchers = {name: int(count) for name, count in counts if count.isdigit()}
    if machines_module.current or _told_of_launcher or not launchers:
        return
    name = max(launchers, key=launchers.__getitem__)
    count = launchers[name]
    if count > 1:
        _told_of_launcher.append(True)
        warnings.warn(
            f"fork() in one of {count} processes that a launcher has started ({name}={count}): "
            "each opens a world of its own, on the same devices unless `devices` says otherwise. "
            "For one world on all machines, start it as `python -m synknumba run script.py`; else "
            "start it once, without mpiexec or srun.",
            RuntimeWarning,
            stacklevel=depth_of_script(),
        )


def _known_transport(transport: Any) -> str:
    """Returns "auto" or the name of a transport; raises `PartitionError` for anything else."""
    if transport not in ("auto", *get_args(Transport)):
        raise PartitionError(f'transport must be "auto", "nccl" or "host", got {transport!r}')
    return cast("str", transport)


def _choose_transport(choice: str, kind: DeviceKind, shared_gpu: int | None) -> Transport:
    """Returns the transport of collectives, and logs the reason."""
    problem = None
    if kind == "cpu":
        problem = "the ranks are on CPU cores"
    elif shared_gpu is not None:
        problem = f"several ranks share GPU {shared_gpu}, which NCCL refuses"
    if choice != "host" and problem is None:
        log.info("collectives go over NCCL")
        return "nccl"
    if choice == "nccl":
        raise PartitionError(
            f'transport="nccl" needs a GPU for each rank, but {problem}; use '
            f'transport="host" or "auto"'
        )
    log.info("collectives go over the host: %s", problem or "the script requested it")
    return "host"


def _known_compiler(compiler: Any) -> CompilerName | None:
    """Returns the name of a compiler, or None for the default; raises ArgumentError otherwise."""
    if not isinstance(compiler, str | None) or compiler not in (None, *get_args(CompilerName)):
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
