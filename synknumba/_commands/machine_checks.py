"""Checks of `synknumba doctor` that need no GPU: shared memory, limits, cores, the cache, what
dead scripts have left.
"""

import os
import platform
import re
import resource
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from numba.core import config

from synknumba._commands.cuda_packages import CUPY
from synknumba._commands.findings import Check, Finding, ok, problem, skipped, warning
from synknumba._commands.terminal import gib, mib, reason_of
from synknumba._device import usable_cores
from synknumba._errors import SynkError
from synknumba._host import memory
from synknumba._host.copying import allowed_cores
from synknumba._host.gpu_packages import version_of
from synknumba._host.segment import SWITCH as SEGMENTS
from synknumba._host.segment import Segment, left_names
from synknumba._host.segment import describe as describe_segments
from synknumba._machines.launch import launched
from synknumba._types import count_text
from synknumba._world.limits import check_room, check_system_calls
from synknumba.simt.internals import KernelStore, describe, directory, is_ours, jit_problem

# What the package reads from the environment; tests/unit/test_doctor.py compares with the source.
VARIABLES = {
    "SYNKNUMBA_CACHE",
    "SYNKNUMBA_CACHE_DIR",
    "SYNKNUMBA_FULL_TRACEBACK",
    "SYNKNUMBA_NCCL",
    "SYNKNUMBA_SEGMENTS",
    "SYNKNUMBA_SIMT",
    "SYNKNUMBA_TRACE",
    "SYNKNUMBA_TRACE_OWNER",
    "SYNKNUMBA_VECTOR_MATH",
}
SHM, PROC, SYS = Path("/dev/shm"), Path("/proc"), Path("/sys")
SMALL_SHM = 1 << 30  # bytes; segments leave as much of it to others, see `_host/segment.py`
FEW_FILES = (
    1024  # descriptors: 64 ranks take 400 while they start, and every Data and Variable one or two
)
LITTLE_DISK = 1 << 30  # bytes; the cache keeps 512 MiB
LAUNCHERS = ("mpiexec", "mpirun", "srun")
# posix_ipc: before Python 3.14
REQUIRED = ("synknumba", "numpy", "numba", "llvmlite", "posix_ipc", "cloudpickle")
OPTIONAL = ("numba-cuda", "numba-cuda-mlir", *CUPY, "nccl4py", "mpi4py", "threadpoolctl")

_SEGMENT = re.compile(r"/synk-[0-9a-f]{24}(?: \(deleted\))?$")


def versions() -> dict[str, str | None]:
    """Returns the versions of Python, the system and the packages by name; None for what is not
    installed.
    """
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    packages = {name: version_of(name) for name in (*REQUIRED, *OPTIONAL)}
    return {"Python": platform.python_version(), "system": system, **packages}


def _versions() -> Iterator[Finding]:
    texts = []
    for name, version in versions().items():
        if version is not None:
            texts.append(f"{name} {version}")
        elif name in REQUIRED:
            texts.append(f"{name} without metadata")
    yield ok(", ".join(texts))


def _python() -> Iterator[Finding]:
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        yield problem(
            "this Python runs without the GIL",
            "use a Python with the GIL, or set PYTHON_GIL=1",
        )
    elif reason := jit_problem():
        yield problem(
            f"Numba's compiler is off: {reason}",
            "unset that; fork() needs it, also on GPUs",
        )
    else:
        yield ok("runs with the GIL, and Numba's compiler is on")


def _variables() -> Iterator[Finding]:
    settings = []
    for name, value in sorted(os.environ.items()):
        if name in VARIABLES:
            settings.append(f"{name}={value}")
        elif name.startswith("SYNKNUMBA_"):
            yield warning(
                f"{name} is set, which synknumba does not know",
                f"it reads {', '.join(sorted(VARIABLES))}",
            )
    yield ok(", ".join(settings) or "no SYNKNUMBA_ variable is set")


def _system_calls() -> Iterator[Finding]:
    try:
        check_system_calls()
    except SynkError as error:
        yield problem(str(error), "let the sandbox (seccomp) allow it")
    else:
        yield ok("those that a world needs are allowed")


def _shared_memory() -> Iterator[Finding]:
    """Makes a segment, and says of which kind it is."""
    try:
        segment = Segment(1 << 20)
    except SynkError as error:
        yield problem(str(error), "see the message; without shared memory there are no ranks")
        return
    segment.close()
    try:
        usage = shutil.disk_usage(SHM)
    except OSError as error:
        yield ok(f"{describe_segments()}; {SHM} cannot be used: {error.strerror}")
        return
    size = f"{SHM} has {gib(usage.free)} free of {gib(usage.total)}"
    method = os.environ.get(SEGMENTS, "")
    if method == "posix" and usage.free < SMALL_SHM:
        yield warning(
            f"{size}, and {SEGMENTS}=posix allows nothing else",
            f"unset {SEGMENTS}, or enlarge it: mount -o remount,size=<bytes> {SHM} as root, "
            f"docker run --shm-size=<bytes>",
        )
    else:
        yield ok(f"{describe_segments()}; {size}")


def _memory() -> Iterator[Finding]:
    room = memory.available()
    if room.nbytes < SMALL_SHM:
        yield warning(f"{room.limit} has {mib(room.nbytes)} left", room.remedy)
    else:
        yield ok(f"{gib(room.nbytes)} left for arrays and ranks, limited by {room.limit}")


def _locked_memory() -> Iterator[Finding]:
    """Looks at `ulimit -l`, which InfiniBand adapters need; the NVIDIA driver locks pages
    outside of it.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        yield ok("unlimited")
    elif any((SYS / "class/infiniband").glob("*")):
        yield warning(
            f"{mib(soft)} (`ulimit -l`), and there is an InfiniBand adapter, for which MPI "
            f"and NCCL lock their buffers",
            "`ulimit -l unlimited` where the job starts; memlock in /etc/security/limits.conf, "
            "--ulimit memlock=-1 in docker",
        )
    else:
        yield ok(
            f"{mib(soft)} (`ulimit -l`); only InfiniBand would need more, and there is none",
        )


def _open_files() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        yield ok(f"{soft:,}, raised to unlimited when they are needed")
    elif hard < FEW_FILES:
        yield warning(
            f"at most {hard:,} (`ulimit -Hn`); a rank takes 6 while it starts, each "
            f"Data and Variable one or two",
            "raise the hard limit where the shell or the job starts, as by nofile in "
            "/etc/security/limits.conf",
        )
    else:
        yield ok(f"{soft:,}, raised to {hard:,} when they are needed")


def room(ranks: int | None = None) -> Iterator[Finding]:
    """Compares a number of ranks, by default one for each core, with the limits and the cores."""
    cores = usable_cores()
    number = ranks or cores
    try:
        check_room(number)
    except SynkError as error:
        yield problem(
            str(error),
            f"pass a number of ranks, or raise the limit; the default is {cores}",
        )
        return
    text = f"limits of processes, files and memory allow {count_text(number, 'rank')}"
    shared = count_text(cores, "usable core")
    if number > cores:
        yield warning(
            f"{text}, but they share {shared}: they take turns, also to start, and each call "
            f"waits for all of them",
            f"{count_text(cores, 'rank')} or fewer, unless many are meant, as to try a program",
        )
    else:
        yield ok(f"{text}; there are {shared}")


def _cores() -> Iterator[Finding]:
    """Compares the cores that there are with those that the affinity and the quota allow."""
    present, allowed, usable = os.cpu_count() or 1, allowed_cores(), usable_cores()
    text = f"{usable} usable of {present}"
    size, launcher = launched()
    if allowed < present and (launcher or allowed == 1):
        by = f" started by a launcher ({launcher}={size})" if launcher else ""
        yield warning(
            f"{text}: the affinity of this process{by} allows {allowed}, "
            f"which all ranks would share",
            "taskset -cp shows it; mpiexec --bind-to none (Open MPI), -bind-to none "
            "(MPICH), srun --cpus-per-task",
        )
    elif quota := _fraction_of_quota():
        yield warning(
            f"{text}: the control group allows {quota:g} cores, and {usable} ranks are "
            f"stopped for a part of the time",
            f"fork({max(1, int(quota))}), or a quota of whole cores, as by "
            f"docker run --cpus={usable}",
        )
    else:
        if usable < allowed:
            text += f"; the control group's quota allows {usable}"
        elif allowed < present:
            text += f"; the affinity allows {allowed}"
        yield ok(text)


def _load() -> Iterator[Finding]:
    load, usable = os.getloadavg()[0], usable_cores()
    if load > usable:
        yield warning(
            f"the load is {load:.1f} on {usable} usable cores: ranks share them with "
            f"others, and calls take longer",
            "see what runs there (top); use fewer ranks",
        )
    else:
        yield ok(f"{load:.1f} on {usable} usable cores")


def _fraction_of_quota() -> float | None:
    """Returns the cores that the control group's quota allows, if they are not a whole number
    and less than the affinity's.
    """
    # of cgroups, version 2 and 1
    for names in (
        ("cpu.max",),
        ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"),
    ):
        with suppress(OSError, ValueError):
            texts = [(SYS / "fs/cgroup" / name).read_text() for name in names]
            quota, period = map(int, " ".join(texts).split())
            if quota <= 0:
                continue
            is_less = quota < period * allowed_cores()
            return quota / period if is_less and quota % period else None
    return None


def _hyperthreads() -> Iterator[Finding]:
    try:
        cpus = os.sched_getaffinity(0)
        paths = [SYS / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list" for cpu in cpus]
        groups = {path.read_text().strip() for path in paths}
    except OSError:
        yield skipped("the kernel does not tell which cores share a physical one")
        return
    if len(groups) < len(cpus):
        yield ok(
            f"{len(cpus)} of {len(groups)} physical cores, and fork() starts a rank on each",
            f"fork({len(groups)}) may be as fast; `synknumba bench` measures both",
        )
    else:
        yield ok("each usable core is a physical one, or the machine shows it as such")


def _cache() -> Iterator[Finding]:
    """Writes a file into the directory of the cache, or would."""
    path = directory()
    if path is None:
        why, remedy = (
            "off: there is no home directory",
            "set SYNKNUMBA_CACHE_DIR to a directory of yours",
        )
        if "SYNKNUMBA_CACHE" in os.environ:
            why, remedy = (
                "off by SYNKNUMBA_CACHE: every process compiles its kernels",
                "unset SYNKNUMBA_CACHE",
            )
        yield warning(why, remedy)
        return
    remedy = (
        "set SYNKNUMBA_CACHE_DIR to a directory of yours; until then every "
        "process compiles its kernels"
    )
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        with tempfile.NamedTemporaryFile(dir=path, prefix=".new-"):
            pass
        free = shutil.disk_usage(path).free
    except OSError as error:
        yield warning(f"{path} cannot be written to: {reason_of(error)}", remedy)
        return
    if not is_ours(status):
        how = "belongs to another user"
        if status.st_uid == os.geteuid():
            how = f"has mode {stat.S_IMODE(status.st_mode):o}"
        yield warning(
            f"{path} is not used: it {how}, and others could put code there",
            f"chmod go-w it, or {remedy}",
        )
    elif free < LITTLE_DISK:
        yield warning(f"the disk of {path} has {mib(free)} left", f"make room there, or {remedy}")
    else:
        usage = KernelStore(path).usage()
        yield ok(f"{path}: {usage.kernels} kernels, {mib(usage.nbytes)}; writable")


def _vector_math() -> Iterator[Finding]:
    used = describe()
    njit = "SVML" if config.USING_SVML else "none"
    if used:
        yield ok(
            f"{' '.join(used)} for exp, log, sin and others in kernels; {njit} in njit functions",
        )
    elif os.environ.get("SYNKNUMBA_VECTOR_MATH", "").lower() in {"0", "off"}:
        yield ok("off, by SYNKNUMBA_VECTOR_MATH")
    else:
        yield warning(
            "no library of vector versions of exp, log, sin and others: such kernels are 3 "
            "to 6 times slower on cores",
            "pip install 'synknumba[svml]' (x86-64), or a system with glibc 2.35 or newer",
        )


def _leftovers() -> Iterator[Finding]:
    """Looks for names of segments in /dev/shm, and for processes without a parent that still map
    some.
    """
    names = sorted(name for name, _ in left_names(str(SHM)))
    if names:
        yield warning(
            f"{len(names)} names of segments in {SHM}, of scripts that were "
            f"killed: {', '.join(names[:3])}",
            "the next fork() removes yours",
        )
    held, orphans = _holders()
    if orphans:
        pids = " ".join(map(str, orphans))
        yield warning(
            f"processes that have lost their script hold shared memory: {pids}",
            f"see what they are: ps {pids}",
        )
    if names or orphans:
        return
    text = "none"
    if held:
        text += f"; {len(held)} processes of yours use shared memory of synknumba"
    yield ok(text)


def _holders() -> tuple[list[int], list[int]]:
    """Returns the processes of this user that map segments, and those of them that init has adopted
    and that own none.

    A script keeps descriptors of its segments; ranks close theirs once the memory is mapped.
    """
    held, orphans = [], []
    for entry in PROC.glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            pid = int(entry.name)
            if entry.stat().st_uid != os.geteuid() or pid == os.getpid():
                continue
            if not any(map(_SEGMENT.search, (entry / "maps").read_text().splitlines())):
                continue
            held.append(pid)
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            files = map(os.readlink, (entry / "fd").iterdir())
            if parent == 1 and not any(map(_SEGMENT.search, files)):
                orphans.append(pid)
    return sorted(held), sorted(orphans)


def _launcher() -> Iterator[Finding]:
    """Looks for what starts a job on several machines."""
    # wheels such as mpich
    folders = os.pathsep.join(
        [os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)]
    )
    launchers = [path for name in LAUNCHERS if (path := shutil.which(name, path=folders))]
    version = version_of("mpi4py")
    if not launchers:
        yield skipped("no mpiexec, mpirun or srun here; only scripts on several machines need one")
    elif version is None:
        yield ok(
            f"{', '.join(launchers)}; mpi4py is not installed",
            "for several machines: pip install 'synknumba[mpi]'",
        )
    else:
        yield ok(f"{', '.join(launchers)}, and mpi4py {version}")


CHECKS: tuple[tuple[str, Check], ...] = (
    ("versions", _versions),
    ("python", _python),
    ("variables", _variables),
    ("system calls", _system_calls),
    ("shared memory", _shared_memory),
    ("memory", _memory),
    ("locked memory", _locked_memory),
    ("open files", _open_files),
    ("room for ranks", room),
    ("cores", _cores),
    ("load", _load),
    ("hyperthreads", _hyperthreads),
    ("cache", _cache),
    ("vector math", _vector_math),
    ("leftovers", _leftovers),
    ("launcher", _launcher),
)
