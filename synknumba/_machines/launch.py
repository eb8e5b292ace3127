"""`python -m synknumba run`: the script on one machine, or on all machines of a job that mpiexec
or srun has started.
"""

import atexit
import importlib.util
import os
import runpy
import signal
import socket
import sys
import time
import traceback
import types
import zipimport
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from synknumba._host import this_process
from synknumba._host.segment import allow_descriptors
from synknumba._host.signals import held_signals, leave_to_script
from synknumba._machines.agent import Agent
from synknumba._machines.coordinator import Coordinator
from synknumba._machines.machine_comm import WHICH_MPI, MachineComm, import_mpi
from synknumba._machines.messages import Quit, Ready
from synknumba._machines.relay import Ended
from synknumba._wire import channel
from synknumba._world import machines as machines_module
from synknumba._world import open_world
from synknumba._world.machines import LAUNCHERS

# for the first machine to say what is wrong: launchers end all processes when one has failed
TELL_SECONDS = 5.0

# Beginnings of their variables. Of Slurm's only the one that tells a step of several processes: the
# others tell of the job, in which the script may start steps.
_OF_LAUNCHERS = (
    *(
        "PMI_",
        "PMI2_",
        "PMIX_",
        "PRTE_",
        "OMPI_COMM_",
        "OMPI_UNIVERSE_",
        "MPI_LOCAL",
        "HYDI_",
        "MPIR_",
        "MV2_COMM_",
    ),
    "SLURM_STEP_NUM_TASKS",
)


def launched() -> tuple[int, str]:
    """Returns how many processes a launcher has started, and the variable that says so; 1 and ""
    if none has.
    """
    size, _ = _variables()
    return (int(os.environ[size]), size) if size else (1, "")


def index() -> int:
    """Returns the number of this process among those that a launcher has started; 0 if none has."""
    _, number = _variables()
    return int(os.environ[number]) if number else 0


def _variables() -> tuple[str, str]:
    """Returns the names of the variables with the number of processes and that of this one; ""
    if no launcher has set any.
    """
    for names in LAUNCHERS:
        if all(os.environ.get(name, "").isdigit() for name in names):
            return names
    return "", ""


def run(
    script: str, arguments: Sequence[str], ranks_per_node: int | None, *, is_module: bool = False
) -> int:
    """Runs a script, on every machine of the job.

    Args:
        script: path of the script, or name of a module.
        arguments: those of the script.
        ranks_per_node: number of ranks on each machine; None for one for each device.
        is_module: whether `script` is the name of a module.

    Returns:
        The exit code.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return _refused("torchrun starts no MPI; use mpiexec or srun")
    size, variable = launched()
    is_first = index() == 0
    if size == 1:
        _warn_of_other_nodes()
        if ranks_per_node is not None:
            machines_module.ranks_alone[:] = [ranks_per_node]
        return _run_script(script, arguments, is_module=is_module)
    # all machines have to order sets of strings alike
    if os.environ.get("PYTHONHASHSEED", "random") == "random":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606  # this program again
    if not is_first:
        leave_to_script()
    pid, sock = _start_relay()
    _forget_launcher()
    try:
        ready, _ = channel.receive(sock)
        assert isinstance(ready, Ready)
    except EOFError:
        advice = f". {_for_srun('')}" if variable.startswith("SLURM") else ""
        return _refused(
            f"MPI could not be initialised on {socket.gethostname()}; see above{advice}"
        )
    problem = _problem_of(ready, size, variable)
    if problem:
        return _refused(problem, is_told=is_first)
    if ready.index > 0:
        try:
            Agent(sock, ready.index, ready.hosts).serve()
        except EOFError:
            return _refused(
                f"the relay of machine {ready.index} ({ready.hosts[ready.index]}) has ended"
            )
        # at once: the launcher may end the job as soon as the script's process has failed
        os._exit(0)
    coordinator = Coordinator(sock, pid, ready, ranks_per_node)
    machines_module.current[:] = [coordinator]
    atexit.register(_end_job, coordinator)
    coordinator.exit_code = _run_script(script, arguments, is_module=is_module)
    return coordinator.exit_code


def _problem_of(ready: Ready, size: int, variable: str) -> str:
    """Returns why a job cannot be served, of which a variable says how many processes it has."""
    if ready.problem or len(ready.hosts) == size:
        return ready.problem
    remedy = _for_srun if variable.startswith("SLURM") else _for_mpiexec
    return (
        f"the launcher has started {size} processes ({variable}={size}), but MPI "
        f"knows {len(ready.hosts)}: {remedy(ready.vendor)}"
    )


def _for_srun(vendor: str) -> str:
    """Returns what to do where srun has not told MPI of its processes, as by default; a vendor
    is "" if it is not known.
    """
    kinds = {"Open MPI": "--mpi=pmix", "MPICH": "--mpi=pmi2", "Intel MPI": "--mpi=pmi2"}
    option = kinds.get(vendor, "--mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH, Intel MPI)")
    which = f", which is {vendor}," if vendor else ""
    return (
        f"srun has to start them for the MPI of mpi4py{which} by `srun {option}`, or "
        "SLURM_MPI_TYPE in the environment; `srun --mpi=list` shows what there is. For another "
        f"MPI, `module load` it {WHICH_MPI}"
    )


def _for_mpiexec(vendor: str) -> str:
    return (
        f"mpi4py uses another MPI than the launcher's, {vendor}. Start the script with the mpiexec "
        f"of that MPI; or `module load` the launcher's {WHICH_MPI}; or install an mpi4py for it"
    )


def _warn_of_other_nodes() -> None:
    """Says that the other nodes of a job are idle: in the job script, outside steps."""
    nodes = os.environ.get("SLURM_JOB_NUM_NODES", "")
    if nodes.isdigit() and int(nodes) > 1 and "SLURM_STEP_NUM_NODES" not in os.environ:
        sys.stderr.write(
            f"synknumba run: this job has {nodes} nodes, and the script runs on one of them: start "
            "it by `srun --ntasks-per-node=1 python -m synknumba run …` for all\n"
        )


def _forget_launcher() -> None:
    """Removes variables of the launcher, which the relay has.

    MPI in the script, or in ranks, is then one of its own, and what they start with `synknumba run`
    runs alone.
    """
    for name in [name for name in os.environ if name.startswith(_OF_LAUNCHERS)]:
        del os.environ[name]


def _refused(problem: str, code: int = 1, *, is_told: bool = True) -> int:
    """Returns the exit code for what cannot be run; says why, or gives another machine the time
    to.
    """
    if is_told:
        sys.stderr.write(f"synknumba run: {problem}\n")
    else:
        time.sleep(TELL_SECONDS)
    return code


def _end_job(coordinator: Coordinator) -> None:
    open_world.close_at_exit()
    coordinator.close()


def _run_script(script: str, arguments: Sequence[str], *, is_module: bool) -> int:
    """Runs a script as `python` does, in `__main__`; returns its exit code."""
    sys.argv[:] = [script, *arguments]
    try:
        if is_module:
            problem = problem_of_module(script)
            if problem:
                return _refused(problem, 2)
            runpy.run_module(script, run_name="__main__", alter_sys=True)
            return 0
        path = Path(script)
        main = types.ModuleType("__main__")
        archive = _archive(path)
        if archive is not None:
            # by which linecache finds the source of kernels
            main.__spec__ = archive.find_spec("__main__")
            if main.__spec__ is None:
                return _refused(f"there is no __main__.py in {path}", 2)
            code = archive.get_code("__main__")
            sys.path[0] = archive.archive
            path = Path(archive.get_filename("__main__"))
            main.__loader__ = archive
        else:
            if path.is_dir():
                path /= "__main__.py"
            try:
                text = path.read_bytes()
            except OSError as error:
                return _refused(f"cannot read {path}: {error.strerror}", 2)
            path = path.absolute()  # as Python tells the script, which may change its directory
            code = compile(text, str(path), "exec")
            sys.path[0] = str(path.resolve().parent)
        main.__file__ = str(path)
        main.__builtins__ = __builtins__  # type: ignore[attr-defined]
        sys.modules["__main__"] = main
        exec(code, vars(main))  # noqa: S102  # that is what the command is for
    except SystemExit as end:
        return _code(end)
    except BaseException as error:  # noqa: BLE001  # shown as Python does
        return _shown(error)
    return 0


def problem_of_module(name: str) -> str:
    """Returns why a module cannot be run, "" if it is there; imports nothing, so of a package only
    that it is there. Modules are found in the working directory first, as by `python -m`.
    """
    sys.path[0] = os.getcwd()
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        return f"there is no module {name}"
    return ""


def _archive(path: Path) -> zipimport.zipimporter | None:
    """Returns what imports from a zip file, such as those of zipapp; None if this is another
    file.
    """
    try:
        return zipimport.zipimporter(str(path.resolve()))
    except zipimport.ZipImportError:
        return None


def _code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    sys.stderr.write(f"{end.code}\n")
    return 1


def _shown(error: BaseException) -> int:
    """Shows an error that ends the script, from its own frames on; returns the exit code."""
    trace = error.__traceback__
    # "<frozen …": runpy and the importers, in which a script that does not compile raises
    while trace and trace.tb_frame.f_code.co_filename.startswith((__file__, "<frozen ")):
        trace = trace.tb_next
    error = error.with_traceback(trace)
    sys.last_value = error  # as the interpreter notes it
    sys.excepthook(type(error), error, error.__traceback__)
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def _start_relay() -> tuple[int, socket.socket]:
    """Forks the relay, before anything else is done in this process."""
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    with held_signals():
        pid = os.fork()
        if pid == 0:
            ours.close()
            _relay_main(theirs, parent)
    theirs.close()
    return pid, ours


def _relay_main(sock: socket.socket, parent: int) -> NoReturn:
    """Runs the relay, in the child right after the fork."""
    code = 1
    try:
        this_process.end_with_parent()
        this_process.set_name(b"synk-relay")
        leave_to_script()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # all signals were blocked during the fork
        allow_descriptors()  # each segment takes two
        if os.getppid() == parent:
            _relay(sock, parent)
            code = 0
    except (Ended, EOFError, ConnectionError):  # the script or the agent has ended
        pass
    except BaseException:  # noqa: BLE001  # nothing may propagate into the copy of the launcher
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _relay(sock: socket.socket, parent: int) -> None:
    from synknumba._machines.relay_first import FirstRelay
    from synknumba._machines.relay_other import OtherRelay

    problem = import_mpi()
    if problem:
        channel.send(sock, channel.pack(Ready(0, (), problem)))
        return
    comm = MachineComm()
    leave_to_script()  # again: UCX takes SIGHUP for itself
    channel.send(
        sock,
        channel.pack(Ready(comm.index, comm.hosts, comm.problem, comm.mpi.get_vendor()[0])),
    )
    try:
        if not comm.problem:
            (FirstRelay if comm.index == 0 else OtherRelay)(comm, sock, parent).serve()
    finally:
        if comm.is_lost:
            with suppress(OSError):
                channel.send(sock, channel.pack(Quit()))
            comm.abort()
    # Hydra, the mpiexec of MPICH and Intel MPI, takes the end of MPI in a relay for that of its
    # machine, and ends the others. Open MPI's takes the end of a process before that of its MPI for
    # a failure.
    is_hydra = "PMI_FD" in os.environ and "SLURM_STEP_ID" not in os.environ
    if not is_hydra:
        comm.mpi.Finalize()
    # before its parent may end: without the end of this MPI, others wait for it
    this_process.end_with_parent(wanted=False)
    with suppress(OSError):  # the script or the agent was ended meanwhile
        channel.send(sock, channel.pack(Quit()))
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):  # launchers wait until all processes have closed them
        os.dup2(null, stream)
    while os.getppid() == parent:
        time.sleep(0.01)
    if is_hydra:
        comm.mpi.Finalize()
