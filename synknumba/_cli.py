"""The command line: `python -m synknumba info`, and `run`."""

import argparse
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from numba.core import config

from synknumba._device import (
    LIBRARIES,
    DeviceReport,
    GpuLibraries,
    cuda_version,
    driver_version,
    find_libraries,
    probe,
    usable_cores,
)
from synknumba._host.gpu_packages import install_extra, install_nccl, version_of
from synknumba._host.segment import describe as describe_segments
from synknumba._machines.launch import run
from synknumba.simt.internals import KernelStore, describe, directory

_REQUIRED = ("synknumba", "numpy", "numba", "llvmlite", "posix_ipc", "cloudpickle")  # posix_ipc: before Python 3.14
_CUPY = ("cupy", "cupy-cuda12x", "cupy-cuda13x")  # one name per CUDA
_OPTIONAL = ("numba-cuda", *_CUPY, "mpi4py", "threadpoolctl")
_SHM = Path("/dev/shm")  # where Linux keeps POSIX shared memory; only its size is read


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand, and returns the exit status; `argv` is without the program's name, None for the process's own."""
    parser = argparse.ArgumentParser(
        prog="python -m synknumba", description="Runs scripts on several machines, and inspects synknumba's installation."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("info", help="show versions, cores, shared memory and GPUs, for a bug report")
    runs = commands.add_parser("run", help="run a script, under mpiexec or srun on all machines of the job")
    runs.add_argument("--ranks-per-node", type=_count, metavar="K", help="ranks on each machine; default: one for each device")
    runs.add_argument("-m", action="store_true", dest="is_module", help="take SCRIPT as the name of a module")
    runs.add_argument("script", metavar="SCRIPT")
    runs.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT")
    told = parser.parse_args(argv)
    if told.command == "run":
        return run(told.script, told.arguments, told.ranks_per_node, is_module=told.is_module)
    try:
        for name, value in _info():
            print(f"{name:<14}{value}")
        sys.stdout.flush()
    except BrokenPipeError:  # as by `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more at exit
    return 0


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return number


def _info() -> Iterator[tuple[str, str]]:
    yield "python", f"{platform.python_version()} on {platform.system()} {platform.release()} {platform.machine()}"
    for name in _REQUIRED:
        yield name, version_of(name) or "not installed as a package"
    for name in _OPTIONAL:
        if (version := version_of(name)) is not None:
            yield name, version
    yield "cores", f"{usable_cores()} usable of {os.cpu_count()}"
    yield "/dev/shm", _shared_memory()
    yield "segments", describe_segments()
    yield "math", _vector_math()
    yield "cache", _cache()
    yield "numba.cuda", _numba_cuda()
    report = probe(thorough=True)
    yield "GPUs", str(report.count) if report.problem is None else f"cannot be used: {report.problem}"
    yield from _cuda(report)


def _cuda(report: DeviceReport) -> Iterator[tuple[str, str]]:
    """Describes the driver, CUDA's libraries, the transport that `fork()` would choose, and what to install."""
    driver = driver_version()
    has_cupy = any(version_of(name) is not None for name in _CUPY)
    found = find_libraries() if has_cupy else None
    yield "driver", "none: there is no libcuda.so.1" if driver is None else f"CUDA {cuda_version(driver)}"
    if found is not None:
        yield "runtime", f"CUDA {found.runtime}" if found.runtime else f"CuPy does not import: {found.problem}"
        yield "NCCL", found.nccl or "missing"
        for name, told in LIBRARIES.items():
            yield told, found.libraries.get(name, "missing")
    yield "transport", _transport(report.count, found)
    install = _to_install(driver, found)
    if install is not None:
        yield "install", install


def _transport(gpus: int, found: GpuLibraries | None) -> str:
    """Describes the transport of collectives that `fork()` would choose."""
    if gpus == 0:
        return "host: ranks would run on CPU cores"
    if gpus == 1:
        return "none is needed: there is one GPU, so one rank"
    if found is None or found.nccl is None:
        return "host, which is slower than NCCL: CuPy finds no NCCL"
    return f"nccl, between {gpus} GPUs"


def _to_install(driver: int | None, found: GpuLibraries | None) -> str | None:
    """Returns what to install where a part of CUDA lacks; None if nothing does, or there are no GPUs to use it for."""
    if found is None:
        return None if driver is None else f"for GPUs: {install_extra(driver // 1000)}"
    if driver is not None and found.runtime is not None and int(found.runtime.split(".")[0]) > driver // 1000:
        return (
            f"a driver of CUDA {found.runtime.split('.')[0]}, or in a new environment the packages for this one, of CUDA "
            f"{cuda_version(driver)}: pip install 'synknumba[cuda{driver // 1000}]'"
        )
    if found.missing == ["NCCL"]:
        return install_nccl()
    if found.missing or found.problem:
        return install_extra(None if driver is None else driver // 1000)
    return "an NVIDIA driver, which is the system's and not from pip, to use GPUs" if driver is None else None


def _shared_memory() -> str:
    try:
        usage = shutil.disk_usage(_SHM)
    except OSError as error:
        return f"cannot be used: {error}"
    return f"{_gib(usage.free)} free of {_gib(usage.total)}"


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB"


def _vector_math() -> str:
    """Describes the vector maths of kernels (exp, log, …), and of njit functions, which Numba compiles."""
    used = describe()
    kernels = f"vector versions by {' '.join(used)}" if used else "no vector versions of exp, log etc."
    return f"{kernels} in kernels; {'SVML' if config.USING_SVML else 'none'} in njit functions"


def _cache() -> str:
    """Describes the cache of compiled kernels."""
    path = directory()
    if path is None:
        return "off: kernels are compiled in every process"
    usage = KernelStore(path).usage()
    return f"{path}: {usage.kernels} kernels, {usage.nbytes / 2**20:.1f} MiB"


def _numba_cuda() -> str:
    """Describes whether numba.cuda imports; tried in a separate process, since it may load GPU libraries."""
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in {"", "0"}:
        return "replaced by Numba's simulator, because NUMBA_ENABLE_CUDASIM is set; unset it to use GPUs"
    tried = subprocess.run(
        [sys.executable, "-c", "from numba import cuda"], capture_output=True, text=True, check=False, timeout=120
    )
    if tried.returncode == 0:
        return "imports"
    reason = (tried.stderr.strip().splitlines() or ["no reason given"])[-1]
    return (
        f"does not import ({reason}): numba-cuda needs CUDA's libraries; pip install 'synknumba[cuda13]' for GPUs, "
        "or pip uninstall numba-cuda to run on CPU cores"
    )
