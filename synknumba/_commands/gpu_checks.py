"""Checks of `synknumba doctor` on GPUs: driver, packages, NCCL, access of GPUs to each other.
Nothing here initialises CUDA.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from synknumba._commands.findings import Check, Finding, ok, problem, skipped, warning
from synknumba._commands.info import CUPY, numba_cuda, to_install
from synknumba._device import GpuLibraries, cuda_version, driver_version, find_libraries, probe
from synknumba._host.gpu_packages import install_extra, install_nccl, version_of

DEVICES = Path("/dev")
_SECONDS = 60  # the driver sets up 8 GPUs in 2 s

# Prints what the driver tells of each GPU, as JSON; in a process of its own, since it initialises
# CUDA. Attributes have the numbers of CUdevice_attribute in cuda.h.
_PROGRAM = """
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
code, count = cuda.cuInit(0), ctypes.c_int(0)
cuda.cuDeviceGetCount(ctypes.byref(count))
def attribute(number, device):
    found = ctypes.c_int(-1)
    cuda.cuDeviceGetAttribute(ctypes.byref(found), number, device)
    return found.value
gpus = []
for i in range(count.value):
    name, size = ctypes.create_string_buffer(100), ctypes.c_size_t(0)
    cuda.cuDeviceGetName(name, 100, i)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(size), i)
    peers = []
    for j in range(count.value):
        can = ctypes.c_int(0)
        if i != j and cuda.cuDeviceCanAccessPeer(ctypes.byref(can), i, j) == 0 and can.value:
            peers.append(j)
    mode, major, minor = attribute(20, i), attribute(75, i), attribute(76, i)
    gpus.append({"name": name.value.decode(), "bytes": size.value, "capability": [major, minor], "mode": mode, "peers": peers})
print(json.dumps({"code": code, "gpus": gpus}))
"""  # noqa: E501
_PROHIBITED = 2  # CU_COMPUTEMODE_PROHIBITED
_OLDEST = (5, 0)  # CUDA 12 compiles for no older GPU; CUDA 13 needs 7.5
_OLDEST_13 = (7, 5)


@cache
def _driver() -> int | None:
    return driver_version()


@cache
def _libraries() -> GpuLibraries | None:
    return find_libraries() if any(version_of(name) is not None for name in CUPY) else None


@cache
def visible_gpus() -> list[dict[str, Any]]:
    """Returns what the driver tells of each visible GPU; empty if it tells nothing."""
    if _driver() is None:
        return []
    try:
        done = subprocess.run(  # noqa: S603  # the program is this module's
            [sys.executable, "-c", _PROGRAM],
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
        answer = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return []
    return list(answer["gpus"])


def _files() -> list[str]:
    """Returns the device files of GPUs, which do not depend on what is visible."""
    return sorted(path.name for path in DEVICES.glob("nvidia[0-9]*"))


def _check_driver() -> Iterator[Finding]:
    driver, files = _driver(), _files()
    if driver is not None:
        yield ok("driver", f"for CUDA {cuda_version(driver)}")
    elif files:
        yield problem(
            "driver",
            f"there are GPUs ({', '.join(files)}) but no libcuda.so.1",
            "install the NVIDIA driver's libraries; in a container: docker run --gpus all",
        )
    else:
        yield skipped("driver", "there is no NVIDIA driver here; ranks run on CPU cores")


def _check_visible() -> Iterator[Finding]:
    visible, files = os.environ.get("CUDA_VISIBLE_DEVICES"), _files()
    if visible is None:
        if _driver() is not None:
            yield ok("visible GPUs", "CUDA_VISIBLE_DEVICES is not set: all of them")
        return
    count = len(visible_gpus())
    if files and not count:
        yield warning(
            "visible GPUs",
            f"CUDA_VISIBLE_DEVICES={visible!r} hides all {len(files)} GPUs",
            "unset it, or list GPUs that exist, as in CUDA_VISIBLE_DEVICES=0,1",
        )
    elif listed := [number for number in visible.split(",") if number.strip()]:
        if count < len(listed) and files:
            yield warning(
                "visible GPUs",
                f"CUDA_VISIBLE_DEVICES={visible!r} lists {len(listed)}, and {count} are found",
                "list GPUs that exist: an unknown number hides those after it",
            )
        else:
            yield ok("visible GPUs", f"CUDA_VISIBLE_DEVICES={visible!r}: {count} of {len(files)}")
    else:
        yield ok("visible GPUs", f"CUDA_VISIBLE_DEVICES={visible!r}, and there is no GPU")


def _check_gpus() -> Iterator[Finding]:
    if _driver() is None:
        yield skipped("GPUs", "not checked without a driver")
        return
    gpus, report = visible_gpus(), probe(thorough=True)
    names = ", ".join(
        f"{i}: {gpu['name']}, {gpu['bytes'] / 2**30:.0f} GiB" for i, gpu in enumerate(gpus)
    )
    if report.problem:
        yield problem(
            "GPUs",
            report.problem,
            to_install(_driver(), _libraries()) or "see what `nvidia-smi` says",
        )
    elif not report.count:
        yield skipped("GPUs", "the driver shows no GPU; ranks run on CPU cores")
    else:
        yield ok("GPUs", f"{report.count} ({names})" if names else str(report.count))
    for i, gpu in enumerate(gpus):
        major = (_driver() or 0) // 1000
        if gpu["mode"] == _PROHIBITED:
            yield problem(
                "GPUs",
                f"GPU {i} is in the compute mode Prohibited",
                f"nvidia-smi -i {i} -c DEFAULT, as root",
            )
        if tuple(gpu["capability"]) < (_OLDEST_13 if _toolkit_major(major) >= 13 else _OLDEST):
            capability = ".".join(map(str, gpu["capability"]))
            yield problem(
                "GPUs",
                f"GPU {i} ({gpu['name']}) has compute capability {capability}, for which "
                f"this CUDA does not compile",
                "the extra cuda12, for 5.0 to 7.2; older GPUs are not supported",
            )


def _toolkit_major(default: int) -> int:
    """Returns the major version of the CUDA that CuPy brings; the driver's without CuPy."""
    libraries = _libraries()
    return (
        int(libraries.runtime.split(".")[0])
        if libraries is not None and libraries.runtime
        else default
    )


def _check_cupy() -> Iterator[Finding]:
    driver, libraries = _driver(), _libraries()
    if libraries is None:
        if driver is None:
            yield skipped("CuPy", "not installed, and not needed on CPU cores")
        else:
            yield problem("CuPy", "not installed; GPUs need it", install_extra(driver // 1000))
        return
    if libraries.problem or libraries.runtime is None:
        yield problem(
            "CuPy",
            f"does not import: {libraries.problem}",
            to_install(driver, libraries) or install_extra(),
        )
        return
    major = int(libraries.runtime.split(".")[0])
    if driver is not None and major > driver // 1000:
        yield problem(
            "CuPy",
            f"is for CUDA {libraries.runtime}, and the driver supports CUDA {cuda_version(driver)}",
            to_install(driver, libraries) or "",
        )
    else:
        yield ok(
            "CuPy",
            f"for CUDA {libraries.runtime}"
            + ("" if driver is None else f", which the driver ({cuda_version(driver)}) runs"),
        )


def _check_libraries() -> Iterator[Finding]:
    libraries = _libraries()
    if libraries is None or libraries.problem:
        yield skipped("CUDA libraries", "not checked without CuPy, which loads them")
        return
    missing = [name for name in libraries.missing if name != "NCCL"]
    if missing:
        yield warning(
            "CUDA libraries",
            f"missing: {', '.join(missing)}",
            to_install(_driver(), libraries) or install_extra(),
        )
    else:
        yield ok(
            "CUDA libraries",
            ", ".join(f"{name} {version}" for name, version in libraries.libraries.items()),
        )


def _check_numba_cuda() -> Iterator[Finding]:
    version = version_of("numba-cuda")
    name = "Numba's own numba.cuda" if version is None else f"numba-cuda {version}"
    state = numba_cuda()
    if state.startswith("cannot be tried"):
        yield skipped("numba.cuda", f"{name} {state}")
        return
    if "cannot import name 'cuda' from 'numba'" in state:
        instead = "kernels on cores name synknumba.simt.cuda in its place"
        yield skipped("numba.cuda", f"this Numba has none; {instead}")
        return
    if state != "imports":
        yield problem(
            "numba.cuda",
            f"{name} {state}",
            "see there; kernels of `from numba import cuda` need it, on cores too",
        )
        return
    if version is None and version_of("numba-cuda-mlir") is not None:
        yield ok(
            "numba.cuda",
            f"{name} imports; numba-cuda-mlir {version_of('numba-cuda-mlir')} compiles for GPUs",
        )
        return
    if version is None and _driver() is not None:
        yield problem(
            "numba.cuda",
            "numba-cuda is not installed; GPUs need it",
            install_extra((_driver() or 0) // 1000),
        )
        return
    if version is not None and version.startswith("0.30.") and _numpy() >= (2, 5):
        yield (problem if _driver() is not None else warning)(
            "numba.cuda",
            f"{name} fails to compile with NumPy {version_of('numpy')}",
            "pip install 'numpy<2.5'",
        )
        return
    yield ok("numba.cuda", f"{name} imports")


def _numpy() -> tuple[int, ...]:
    return tuple(
        int(part) for part in (version_of("numpy") or "0.0").split(".")[:2] if part.isdigit()
    )


def _check_nccl() -> Iterator[Finding]:
    libraries, count = _libraries(), len(visible_gpus())
    reason = (
        "" if libraries is None or libraries.no_nccl4py is None else f" ({libraries.no_nccl4py})"
    )
    if libraries is not None and libraries.nccl is not None:
        yield ok("NCCL", f"{libraries.nccl}, by {libraries.bindings}{reason}")
    elif count > 1:
        yield warning(
            "NCCL",
            f"not found{reason}: collectives between GPUs go over the host, which is slower",
            install_nccl(),
        )
    else:
        yield skipped(
            "NCCL", "not found, and not needed " + ("for one GPU" if count else "without GPUs")
        )


def _check_peers() -> Iterator[Finding]:
    gpus = visible_gpus()
    if len(gpus) < 2:
        yield skipped(
            "peer access", f"needs two GPUs, and there {'is one' if gpus else 'are none'}"
        )
        return
    lacking = [
        (i, j)
        for i, gpu in enumerate(gpus)
        for j in range(len(gpus))
        if i != j and j not in gpu["peers"]
    ]
    if not lacking:
        yield ok("peer access", f"each of {len(gpus)} GPUs reads the memory of the others")
        return
    pairs = ", ".join(f"{i} of {j}" for i, j in lacking[:6]) + (", …" if len(lacking) > 6 else "")
    yield warning(
        "peer access",
        f"GPUs cannot read each other's memory (GPU {pairs}): collectives go "
        f"through the host's memory",
        "`nvidia-smi topo -p2p r` shows why; in virtual machines the IOMMU or "
        "ACS of the host prevents it",
    )


CHECKS: tuple[tuple[str, Check], ...] = (
    ("driver", _check_driver),
    ("visible GPUs", _check_visible),
    ("GPUs", _check_gpus),
    ("CuPy", _check_cupy),
    ("CUDA libraries", _check_libraries),
    ("numba.cuda", _check_numba_cuda),
    ("NCCL", _check_nccl),
    ("peer access", _check_peers),
)
