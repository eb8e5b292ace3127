"""The command line: `python -m synknumba info`."""

import argparse
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from numba.core import config

from synknumba._device import probe, usable_cores
from synknumba._host.segment import describe as describe_segments
from synknumba.simt.internals import KernelStore, describe, directory

_REQUIRED = ("synknumba", "numpy", "numba", "llvmlite", "posix_ipc", "cloudpickle")  # posix_ipc: before Python 3.14
_OPTIONAL = ("numba-cuda", "cupy", "cupy-cuda12x", "cupy-cuda13x", "mpi4py", "threadpoolctl")  # CuPy: one name per CUDA
_SHM = Path("/dev/shm")  # where Linux keeps POSIX shared memory; only its size is read


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand, and returns the exit status; `argv` is without the program's name, None for the process's own."""
    parser = argparse.ArgumentParser(
        prog="python -m synknumba", description="Inspects synknumba's installation on this machine."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("info", help="show versions, cores, shared memory and GPUs, for a bug report")
    parser.parse_args(argv)
    try:
        for name, value in _info():
            print(f"{name:<14}{value}")
        sys.stdout.flush()
    except BrokenPipeError:  # as by `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more at exit
    return 0


def _info() -> Iterator[tuple[str, str]]:
    yield "python", f"{platform.python_version()} on {platform.system()} {platform.release()} {platform.machine()}"
    for name in _REQUIRED:
        yield name, _version(name) or "not installed as a package"
    for name in _OPTIONAL:
        if (version := _version(name)) is not None:
            yield name, version
    yield "cores", f"{usable_cores()} usable of {os.cpu_count()}"
    yield "/dev/shm", _shared_memory()
    yield "segments", describe_segments()
    yield "math", _vector_math()
    yield "cache", _cache()
    yield "numba.cuda", _numba_cuda()
    report = probe(thorough=True)
    yield "GPUs", str(report.count) if report.problem is None else f"cannot be used: {report.problem}"


def _version(distribution: str) -> str | None:
    """Returns the installed version from package metadata, without an import; None if not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


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
