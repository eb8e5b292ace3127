"""`synknumba info`: versions, cores, shared memory and GPUs, for a bug report."""

import argparse
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numba.core import config

from synknumba._commands.terminal import SUCCESS, Subparsers, add_command, gib, mib, print_json
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
from synknumba.simt.internals import KernelStore, describe, directory

SCHEMA = 1  # of the JSON; raised when a key changes its meaning or goes
# posix_ipc: before Python 3.14
REQUIRED = (
    "synknumba",
    "numpy",
    "numba",
    "llvmlite",
    "posix_ipc",
    "cloudpickle",
)
CUPY = ("cupy", "cupy-cuda12x", "cupy-cuda13x")  # one name per CUDA
# what `collect_cuda` tells, in the order of the JSON
_CUDA_FACTS = (
    "driver",
    "runtime",
    "cupy_problem",
    "nccl",
    "nccl_bindings",
    "libraries",
    "transport",
    "install",
)
OPTIONAL = ("numba-cuda", "numba-cuda-mlir", *CUPY, "nccl4py", "mpi4py", "threadpoolctl")
SHM = Path("/dev/shm")  # where Linux keeps POSIX shared memory; only its size is read

DESCRIPTION = """\
Shows the versions, the cores, the shared memory, the cache and the GPUs of this
machine: what a bug report needs. `doctor` says whether they are as they should be."""


def add(commands: Subparsers) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "info",
        _run,
        "show versions, cores, shared memory and GPUs, for a bug report",
        DESCRIPTION,
        ("info", "info --json > machine.json"),
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object, whose keys stay"
    )


def _run(args: argparse.Namespace) -> int:
    facts = collect()
    if args.json:
        print_json(facts)
    else:
        for name, value in lines(facts):
            print(f"{name:<14}{value}")
    return SUCCESS


def collect() -> dict[str, Any]:
    """Returns what `info` tells, by keys that docs/command-line.md describes."""
    packages = {name: version_of(name) for name in (*REQUIRED, *OPTIONAL)}
    njit = "SVML" if config.USING_SVML else None
    gpus = probe(thorough=True)
    return {
        "schema": SCHEMA,
        "python": platform.python_version(),
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
        "packages": packages,
        "cores": {"usable": usable_cores(), "present": os.cpu_count()},
        "shared_memory": _shared_memory(),
        "segments": describe_segments(),
        "vector_math": {"kernels": list(describe()), "njit": njit},
        "cache": _cache(),
        "numba_cuda": numba_cuda(),
        "gpus": {"count": gpus.count, "problem": gpus.problem},
        **collect_cuda(gpus),
    }


def _cache() -> dict[str, Any] | None:
    path = directory()
    if path is None:
        return None
    usage = KernelStore(path).usage()
    return {"path": str(path), "kernels": usage.kernels, "bytes": usage.nbytes}


def installed_libraries() -> GpuLibraries | None:
    """Returns the libraries of CUDA that CuPy finds; None without CuPy."""
    if all(version_of(name) is None for name in CUPY):
        return None
    return find_libraries()


def collect_cuda(gpus: DeviceReport) -> dict[str, Any]:
    """Returns the versions of the driver and of CUDA's libraries, the transport of `fork()`, and
    what to install.
    """
    facts: dict[str, Any] = dict.fromkeys(_CUDA_FACTS)
    driver, libraries = driver_version(), installed_libraries()
    if driver is not None:
        facts["driver"] = cuda_version(driver)
    if libraries is not None:
        versions = libraries.libraries
        facts |= {
            "runtime": libraries.runtime,
            "cupy_problem": libraries.problem,
            "nccl": libraries.nccl,
            "nccl_bindings": libraries.bindings,
            "libraries": {title: versions.get(name) for name, title in LIBRARIES.items()},
        }
    facts["transport"] = _transport(gpus.count, libraries)
    facts["install"] = to_install(driver, libraries)
    return facts


def lines(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the lines of `info`: what a line is about, and what is found."""
    yield "python", f"{facts['python']} on {facts['system']} {facts['release']} {facts['machine']}"
    for name, version in facts["packages"].items():
        if version is not None or name in REQUIRED:
            yield name, version or "not installed as a package"
    yield "cores", f"{facts['cores']['usable']} usable of {facts['cores']['present']}"
    shared = facts["shared_memory"]
    free = shared["problem"] or f"{gib(shared['free'])} free of {gib(shared['total'])}"
    yield "/dev/shm", free
    yield "segments", facts["segments"]
    used, njit = facts["vector_math"]["kernels"], facts["vector_math"]["njit"]
    kernels = "no vector versions of exp, log etc."
    if used:
        kernels = f"vector versions by {' '.join(used)}"
    yield "math", f"{kernels} in kernels; {njit or 'none'} in njit functions"
    match facts["cache"]:
        case None:
            yield "cache", "off: kernels are compiled in every process"
        case {"path": path, "kernels": count, "bytes": nbytes}:
            yield "cache", f"{path}: {count} kernels, {mib(nbytes)}"
    yield "numba.cuda", facts["numba_cuda"]
    gpus = str(facts["gpus"]["count"])
    if facts["gpus"]["problem"] is not None:
        gpus = f"cannot be used: {facts['gpus']['problem']}"
    yield "GPUs", gpus
    yield from cuda_lines(facts)


def cuda_lines(cuda: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the lines on CUDA."""
    driver = "none: there is no libcuda.so.1"
    if cuda["driver"] is not None:
        driver = f"CUDA {cuda['driver']}"
    yield "driver", driver
    if cuda["libraries"] is not None:
        runtime, nccl = f"CuPy does not import: {cuda['cupy_problem']}", "missing"
        if cuda["runtime"]:
            runtime = f"CUDA {cuda['runtime']}"
        if cuda["nccl"]:
            nccl = f"{cuda['nccl']}, by {cuda['nccl_bindings']}"
        yield "runtime", runtime
        yield "NCCL", nccl
        for name, version in cuda["libraries"].items():
            yield name, version or "missing"
    yield "transport", cuda["transport"]
    if cuda["install"] is not None:
        yield "install", cuda["install"]


def _transport(gpus: int, libraries: GpuLibraries | None) -> str:
    """Describes the transport of collectives that `fork()` would choose."""
    if gpus == 0:
        return "host: ranks would run on CPU cores"
    if gpus == 1:
        return "none is needed: there is one GPU, so one rank"
    if libraries is None or libraries.nccl is None:
        return "host, which is slower than NCCL: none is found"
    return f"nccl, between {gpus} GPUs"


def to_install(driver: int | None, libraries: GpuLibraries | None) -> str | None:
    """Returns what to install where a part of CUDA lacks; None if nothing does, or there are no
    GPUs to use it for.
    """
    # of the CUDA that the driver supports
    major = None if driver is None else driver // 1000
    if libraries is None:
        return None if major is None else f"for GPUs: {install_extra(major)}"
    if driver is not None and is_too_new(libraries, driver):
        return (
            f"a driver of CUDA {toolkit_major(libraries)}, or in a new environment the "
            f"packages for this one, of CUDA {cuda_version(driver)}: pip install "
            f"'synknumba[cuda{major}]'"
        )
    if libraries.missing == ["NCCL"]:
        return install_nccl()
    if libraries.missing or libraries.problem:
        return install_extra(major)
    if driver is None:
        return "an NVIDIA driver, which is the system's and not from pip, to use GPUs"
    return None


def toolkit_major(libraries: GpuLibraries) -> int | None:
    """Returns the major version of the CUDA that CuPy brings; None if that is not known."""
    if not libraries.runtime:
        return None
    return int(libraries.runtime.split(".")[0])


def is_too_new(libraries: GpuLibraries, driver: int) -> bool:
    """Returns whether CuPy's CUDA is newer than what the driver supports."""
    major = toolkit_major(libraries)
    return major is not None and major > driver // 1000


def _shared_memory() -> dict[str, Any]:
    """Returns size and free bytes of /dev/shm, or why it cannot be used."""
    try:
        usage = shutil.disk_usage(SHM)
    except OSError as error:
        return {
            "path": str(SHM),
            "total": None,
            "free": None,
            "problem": f"cannot be used: {error}",
        }
    return {"path": str(SHM), "total": usage.total, "free": usage.free, "problem": None}


def numba_cuda() -> str:
    """Describes whether numba.cuda imports; tried in a separate process, since it may load GPU
    libraries.
    """
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in {"", "0"}:
        return (
            "replaced by Numba's simulator, because NUMBA_ENABLE_CUDASIM is "
            "set; unset it to use GPUs"
        )
    try:
        tried = subprocess.run(
            [sys.executable, "-c", "from numba import cuda"],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    except subprocess.TimeoutExpired:
        return "does not import within two minutes"
    except OSError as error:  # as where this Python has no path
        return f"cannot be tried: {error}"
    if tried.returncode == 0:
        return "imports"
    reason = (tried.stderr.strip().splitlines() or ["no reason given"])[-1]
    return (
        f"does not import ({reason}): numba-cuda needs CUDA's libraries; pip install "
        "'synknumba[cuda13]' for GPUs, or pip uninstall numba-cuda to run on CPU cores"
    )
