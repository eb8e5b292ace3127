"""Packages and libraries of CUDA: which are installed, whether they fit the driver, and what to
install.
"""

import os
import subprocess
import sys

from synknumba._device import GpuLibraries, cuda_version, find_libraries
from synknumba._host.gpu_packages import install_extra, install_nccl, version_of

CUPY = ("cupy", "cupy-cuda12x", "cupy-cuda13x")  # one name per CUDA


def installed_libraries() -> GpuLibraries | None:
    """Returns the libraries of CUDA that CuPy finds; None without CuPy."""
    if all(version_of(name) is None for name in CUPY):
        return None
    return find_libraries()


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
            [sys.executable, "-P", "-c", "from numba import cuda"],
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
