"""Versions of the driver and of CUDA's libraries, for `synknumba doctor`.

The libraries are loaded in a process of their own, and none needs a GPU for that.
"""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from synknumba._host import nccl_bindings

_SECONDS = 120  # to import CuPy and load the libraries from a slow disk takes seconds

LIBRARIES = {
    "cublas": "cuBLAS",
    "cufft": "cuFFT",
    "curand": "cuRAND",
    "cusolver": "cuSOLVER",
    "cusparse": "cuSPARSE",
    "nvrtc": "NVRTC",
    "nvJitLink": "nvJitLink",
}
"""Libraries that CuPy loads when they are needed, besides NCCL: cuda-pathfinder's name and the
one to print.
"""

# Prints what is found, as JSON. A library says its version by its function libraryGetProperty(0, 1
# or 2: major, minor, patch).
_PROGRAM = """
import ctypes, json, sys
told = {"runtime": None, "nccl": None, "bindings": None, "libraries": {}, "problem": None}
try:
    from cupy.cuda import runtime
    told["runtime"] = runtime.runtimeGetVersion()
    for name in sys.argv[1].split():
        try:
            if name == "nccl4py":
                from nccl.bindings import nccl
            else:
                from cupy.cuda import nccl
            told["nccl"], told["bindings"] = nccl.get_version(), name
            break
        except Exception:  # of the import; CuPy's module is empty without the library
            continue
    from cuda import pathfinder
    for name in sys.argv[2:]:
        try:
            path = pathfinder.load_nvidia_dynamic_lib(name).abs_path
        except Exception:
            continue
        told["libraries"][name] = "found"
        ask = getattr(ctypes.CDLL(path), name + "GetProperty", None)
        numbers = [ctypes.c_int(-1) for _ in range(3)]
        if ask is not None and not any(ask(which, ctypes.byref(number)) for which, number in enumerate(numbers)):
            told["libraries"][name] = ".".join(str(number.value) for number in numbers)
except Exception as error:
    told["problem"] = (str(error).strip().splitlines() or [type(error).__name__])[0]
print("\\n" + json.dumps(told))
"""  # noqa: E501


@dataclass(frozen=True, slots=True)
class GpuLibraries:
    """What CuPy finds of CUDA's libraries.

    Attributes:
        runtime: version of the CUDA runtime; None if CuPy does not import.
        nccl: version of NCCL; None if none is found.
        libraries: version, or "found", by cuda-pathfinder's name, of those of `LIBRARIES` that can
            be loaded.
        problem: why CuPy or cuda-pathfinder does not import, in one line; None if both do.
        bindings: package by which NCCL is called, "nccl4py" or "cupy"; None without NCCL.
        no_nccl4py: why it is not by nccl4py, in one line, though that is installed or asked for;
            else None.
    """

    runtime: str | None
    nccl: str | None
    libraries: dict[str, str]
    problem: str | None
    bindings: str | None = None
    no_nccl4py: str | None = None

    @property
    def missing(self) -> list[str]:
        """Names of the libraries that cannot be loaded, NCCL first."""
        titles = []
        if not self.nccl:
            titles.append("NCCL")
        titles += [title for name, title in LIBRARIES.items() if name not in self.libraries]
        return titles


def find_libraries() -> GpuLibraries:
    """Loads CUDA's libraries in another process, as CuPy does, and returns their versions; CuPy
    must be installed.
    """
    names, no_nccl4py = nccl_bindings.candidates()
    command = [sys.executable, "-c", _PROGRAM, " ".join(names), *LIBRARIES]
    try:
        done = subprocess.run(  # noqa: S603  # the program is this module's
            command, capture_output=True, text=True, check=False, timeout=_SECONDS
        )
        answer = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError):
        return GpuLibraries(None, None, {}, "the process that imports CuPy ended without an answer")
    bindings = answer["bindings"]
    if "nccl4py" in names and bindings != "nccl4py" and answer["problem"] is None:
        no_nccl4py = "nccl4py does not import, or finds no NCCL"
    return GpuLibraries(
        _if_any(cuda_version, answer["runtime"]),
        _if_any(_nccl_version, answer["nccl"]),
        answer["libraries"],
        answer["problem"],
        bindings,
        no_nccl4py,
    )


def _if_any(text: Callable[[int], str], number: int | None) -> str | None:
    return None if number is None else text(number)


def driver_version() -> int | None:
    """Returns the CUDA version that the NVIDIA driver supports, as in 13000; None without one.
    Does not initialise CUDA.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOW)
    except OSError:
        return None
    version = ctypes.c_int(0)
    if driver.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return None
    return version.value or None


def cuda_version(number: int) -> str:
    """Returns CUDA's number of a version as text.

    >>> cuda_version(12090)
    '12.9'
    """
    return f"{number // 1000}.{number % 1000 // 10}"


def _nccl_version(number: int) -> str:
    """Returns NCCL's number of a version, since 2.9, as text.

    >>> _nccl_version(22809)
    '2.28.9'
    """
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"
