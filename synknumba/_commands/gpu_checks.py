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

from synknumba._commands.cuda_packages import (
    installed_libraries,
    is_too_new,
    numba_cuda,
    to_install,
    toolkit_major,
)
from synknumba._commands.findings import Check, Finding, ok, problem, skipped, warning
from synknumba._device import GpuLibraries, cuda_version, driver_version, probe
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
    return installed_libraries()


@cache
def visible_gpus() -> list[dict[str, Any]]:
    """Returns what the driver tells of each visible GPU; empty if it tells nothing."""
    if _driver() is None:
        return []
    try:
        done = subprocess.run(  # noqa: S603  # the program is this module's
            [sys.executable, "-P", "-c", _PROGRAM],
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
        yield ok(f"for CUDA {cuda_version(driver)}")
    elif files:
        yield problem(
            f"there are GPUs ({', '.join(files)}) but no libcuda.so.1",
            "install the NVIDIA driver's libraries; in a container: docker run --gpus all",
        )
    else:
        yield skipped("there is no NVIDIA driver here; ranks run on CPU cores")


def _check_visible() -> Iterator[Finding]:
    visible, files = os.environ.get("CUDA_VISIBLE_DEVICES"), _files()
    if visible is None:
        if _driver() is not None:
            yield ok("CUDA_VISIBLE_DEVICES is not set: all of them")
        return
    count, setting = len(visible_gpus()), f"CUDA_VISIBLE_DEVICES={visible!r}"
    listed = sum(bool(number.strip()) for number in visible.split(","))
    if files and not count:
        yield warning(
            f"{setting} hides all {len(files)} GPUs",
            "unset it, or list GPUs that exist, as in CUDA_VISIBLE_DEVICES=0,1",
        )
    elif not listed:
        yield ok(f"{setting}, and there is no GPU")
    elif files and count < listed:
        yield warning(
            f"{setting} lists {listed}, and {count} are found",
            "list GPUs that exist: an unknown number hides those after it",
        )
    else:
        yield ok(f"{setting}: {count} of {len(files)}")


def _check_gpus() -> Iterator[Finding]:
    driver = _driver()
    if driver is None:
        yield skipped("not checked without a driver")
        return
    gpus, report = visible_gpus(), probe(thorough=True)
    if report.problem:
        yield problem(
            report.problem,
            to_install(driver, _libraries()) or "see what `nvidia-smi` says",
        )
    elif not report.count:
        yield skipped("the driver shows no GPU; ranks run on CPU cores")
    else:
        text = str(report.count)
        if gpus:
            sizes = (f"{gpu['name']}, {gpu['bytes'] / 2**30:.0f} GiB" for gpu in gpus)
            text += f" ({', '.join(f'{i}: {size}' for i, size in enumerate(sizes))})"
        yield ok(text)
    oldest = _oldest_capability(driver)
    for i, gpu in enumerate(gpus):
        if gpu["mode"] == _PROHIBITED:
            yield problem(
                f"GPU {i} is in the compute mode Prohibited",
                f"nvidia-smi -i {i} -c DEFAULT, as root",
            )
        if tuple(gpu["capability"]) < oldest:
            capability = ".".join(map(str, gpu["capability"]))
            yield problem(
                f"GPU {i} ({gpu['name']}) has compute capability {capability}, for which "
                f"this CUDA does not compile",
                "the extra cuda12, for 5.0 to 7.2; older GPUs are not supported",
            )


def _oldest_capability(driver: int) -> tuple[int, int]:
    """Returns the compute capability that the CUDA of CuPy, or without CuPy of the driver, needs at
    least.
    """
    libraries, major = _libraries(), driver // 1000
    if libraries is not None:
        major = toolkit_major(libraries) or major
    return _OLDEST_13 if major >= 13 else _OLDEST


def _check_cupy() -> Iterator[Finding]:
    driver, libraries = _driver(), _libraries()
    if libraries is None:
        yield _without_cupy(driver)
    elif libraries.problem or libraries.runtime is None:
        yield problem(
            f"does not import: {libraries.problem}",
            to_install(driver, libraries) or install_extra(),
        )
    elif driver is None:
        yield ok(f"for CUDA {libraries.runtime}")
    elif is_too_new(libraries, driver):
        yield problem(
            f"is for CUDA {libraries.runtime}, and the driver supports CUDA {cuda_version(driver)}",
            to_install(driver, libraries) or "",
        )
    else:
        yield ok(f"for CUDA {libraries.runtime}, which the driver ({cuda_version(driver)}) runs")


def _without_cupy(driver: int | None) -> Finding:
    if driver is None:
        return skipped("not installed, and not needed on CPU cores")
    return problem("not installed; GPUs need it", install_extra(driver // 1000))


def _check_libraries() -> Iterator[Finding]:
    libraries = _libraries()
    if libraries is None or libraries.problem:
        yield skipped("not checked without CuPy, which loads them")
        return
    missing = [name for name in libraries.missing if name != "NCCL"]
    if missing:
        yield warning(
            f"missing: {', '.join(missing)}",
            to_install(_driver(), libraries) or install_extra(),
        )
    else:
        versions = libraries.libraries.items()
        yield ok(", ".join(f"{name} {version}" for name, version in versions))


def _check_numba_cuda() -> Iterator[Finding]:
    version = version_of("numba-cuda")
    name = "Numba's own numba.cuda"
    if version is not None:
        name = f"numba-cuda {version}"
    state = numba_cuda()
    if state.startswith("cannot be tried"):
        yield skipped(f"{name} {state}")
        return
    if "cannot import name 'cuda' from 'numba'" in state:
        instead = "kernels on cores name synknumba.simt.cuda in its place"
        yield skipped(f"this Numba has none; {instead}")
        return
    if state != "imports":
        yield problem(
            f"{name} {state}",
            "see there; kernels of `from numba import cuda` need it, on cores too",
        )
        return
    if version is None:
        yield _without_numba_cuda(name)
    elif version.startswith("0.30.") and _numpy() >= (2, 5):
        find = warning if _driver() is None else problem
        yield find(
            f"{name} fails to compile with NumPy {version_of('numpy')}",
            "pip install 'numpy<2.5'",
        )
    else:
        yield ok(f"{name} imports")


def _without_numba_cuda(name: str) -> Finding:
    driver, mlir = _driver(), version_of("numba-cuda-mlir")
    if mlir is not None:
        return ok(f"{name} imports; numba-cuda-mlir {mlir} compiles for GPUs")
    if driver is None:
        return ok(f"{name} imports")
    return problem("numba-cuda is not installed; GPUs need it", install_extra(driver // 1000))


def _numpy() -> tuple[int, ...]:
    """Returns the version of NumPy, as (2, 4)."""
    version = version_of("numpy") or "0.0"
    return tuple(map(int, filter(str.isdigit, version.split(".")[:2])))


def _check_nccl() -> Iterator[Finding]:
    libraries, count, reason = _libraries(), len(visible_gpus()), ""
    if libraries is not None:
        if libraries.no_nccl4py is not None:
            reason = f" ({libraries.no_nccl4py})"
        if libraries.nccl is not None:
            yield ok(f"{libraries.nccl}, by {libraries.bindings}{reason}")
            return
    if count > 1:
        yield warning(
            f"not found{reason}: collectives between GPUs go over the host, which is slower",
            install_nccl(),
        )
    elif count == 1:
        yield skipped("not found, and not needed for one GPU")
    else:
        yield skipped("not found, and not needed without GPUs")


def _check_peers() -> Iterator[Finding]:
    gpus = visible_gpus()
    if len(gpus) < 2:
        count = "is one" if gpus else "are none"
        yield skipped(f"needs two GPUs, and there {count}")
        return
    lacking: list[str] = []
    for i, gpu in enumerate(gpus):
        unread = {*range(len(gpus))}.difference(gpu["peers"], [i])
        lacking += [f"{i} of {j}" for j in sorted(unread)]
    if not lacking:
        yield ok(f"each of {len(gpus)} GPUs reads the memory of the others")
        return
    pairs = ", ".join(lacking[:6])
    if len(lacking) > 6:
        pairs += ", …"
    yield warning(
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
