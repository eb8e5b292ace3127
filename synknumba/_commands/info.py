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
    path = directory()
    usage = KernelStore(path).usage() if path is not None else None
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
        "vector_math": {"kernels": list(describe()), "njit": "SVML" if config.USING_SVML else None},
        "cache": None
        if path is None or usage is None
        else {"path": str(path), "kernels": usage.kernels, "bytes": usage.nbytes},
        "numba_cuda": numba_cuda(),
        "gpus": {"count": gpus.count, "problem": gpus.problem},
        **collect_cuda(gpus),
    }


def collect_cuda(gpus: DeviceReport) -> dict[str, Any]:
    """Returns the versions of the driver and of CUDA's libraries, the transport of `fork()`, and
    what to install.
    """
    driver = driver_version()
    has_cupy = any(version_of(name) is not None for name in CUPY)
    libraries = find_libraries() if has_cupy else None
    return {
        "driver": None if driver is None else cuda_version(driver),
        "runtime": None if libraries is None else libraries.runtime,
        "cupy_problem": None if libraries is None else libraries.problem,
        "nccl": None if libraries is None else libraries.nccl,
        "nccl_bindings": None if libraries is None else libraries.bindings,
        "libraries": None
        if libraries is None
        else {title: libraries.libraries.get(name) for name, title in LIBRARIES.items()},
        "transport": _transport(gpus.count, libraries),
        "install": to_install(driver, libraries),
    }


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
    kernels = (
        f"vector versions by {' '.join(used)}" if used else "no vector versions of exp, log etc."
    )
    yield "math", f"{kernels} in kernels; {njit or 'none'} in njit functions"
    cache = facts["cache"]
    yield (
        "cache",
        (
            "off: kernels are compiled in every process"
            if cache is None
            else f"{cache['path']}: {cache['kernels']} kernels, {mib(cache['bytes'])}"
        ),
    )
    yield "numba.cuda", facts["numba_cuda"]
    gpus = facts["gpus"]
    yield (
        "GPUs",
        str(gpus["count"]) if gpus["problem"] is None else f"cannot be used: {gpus['problem']}",
    )
    yield from cuda_lines(facts)


def cuda_lines(cuda: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the lines on CUDA."""
    yield (
        "driver",
        "none: there is no libcuda.so.1" if cuda["driver"] is None else f"CUDA {cuda['driver']}",
    )
    if cuda["libraries"] is not None:
        yield (
            "runtime",
            f"CUDA {cuda['runtime']}"
            if cuda["runtime"]
            else f"CuPy does not import: {cuda['cupy_problem']}",
        )
        yield (
            "NCCL",
            f"{cuda['nccl']}, by {cuda['nccl_bindings']}" if cuda["nccl"] else "missing",
        )
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
    if libraries is None:
        return None if driver is None else f"for GPUs: {install_extra(driver // 1000)}"
    if (
        driver is not None
        and libraries.runtime is not None
        and int(libraries.runtime.split(".")[0]) > driver // 1000
    ):
        return (
            f"a driver of CUDA {libraries.runtime.split('.')[0]}, or in a new environment the "
            f"packages for this one, of CUDA {cuda_version(driver)}: pip install "
            f"'synknumba[cuda{driver // 1000}]'"
        )
    if libraries.missing == ["NCCL"]:
        return install_nccl()
    if libraries.missing or libraries.problem:
        return install_extra(None if driver is None else driver // 1000)
    return (
        "an NVIDIA driver, which is the system's and not from pip, to use GPUs"
        if driver is None
        else None
    )


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
