"""Counts GPUs and cores, without a CUDA context or a GPU library in this process."""

import ctypes
import importlib.util
import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from synknumba._device import compilers
from synknumba._host.children import end_child
from synknumba._host.copying import allowed_cores
from synknumba._host.inherited import fork, take_standard_descriptors
from synknumba._host.signals import held_signals
from synknumba._types import CompilerName

_END_SECONDS = 2.0  # the driver takes 0.1 s to release four GPUs
_CUDA_ERROR_NOT_INITIALIZED = 3  # cuda.h, CUresult
_CUDA_ERROR_NO_DEVICE = 100


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """The GPUs that this process could use."""

    count: int  # usable visible GPUs; 0 with a `problem`, or on a machine without GPUs
    problem: str | None = (
        None  # what is wrong with the CUDA installation, in one line; None if nothing is
    )
    # of the GPUs, which no others in the world have; empty where they were not asked for
    ids: tuple[str, ...] = ()


def _driver(mode: int = ctypes.DEFAULT_MODE) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1", mode=mode)
    except OSError:
        return None


def cuda_is_initialised() -> bool:
    """Whether CUDA is initialised in this process; its children could then not use it."""
    driver = _driver(os.RTLD_NOLOAD | os.RTLD_NOW)
    if driver is None:
        return False
    count = ctypes.c_int(0)
    return bool(driver.cuDeviceGetCount(ctypes.byref(count)) != _CUDA_ERROR_NOT_INITIALIZED)


def _count_gpus(*, thorough: bool) -> DeviceReport:
    """Counts GPUs, which initialises CUDA; called in a child that ends afterwards."""
    driver = _driver()
    if driver is None:
        return DeviceReport(0)
    code = driver.cuInit(0)
    if code == _CUDA_ERROR_NO_DEVICE:
        return DeviceReport(0)
    if code != 0:
        return DeviceReport(
            0,
            f"the NVIDIA driver is installed but cuInit fails with error {code}; "
            f"see what `nvidia-smi` says",
        )
    count = ctypes.c_int(0)
    driver.cuDeviceGetCount(ctypes.byref(count))
    if count.value == 0:
        return DeviceReport(0)
    ids = tuple(_id_of(driver, index) for index in range(count.value))
    return DeviceReport(count.value, _missing_packages(thorough=thorough), ids)


def _id_of(driver: ctypes.CDLL, index: int) -> str:
    """Returns the UUID of a GPU, or of an instance of one (MIG)."""
    device, uuid = ctypes.c_int(0), (ctypes.c_ubyte * 16)()
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetUuid_v2(uuid, device)
    return bytes(uuid).hex()


def _missing_packages(*, thorough: bool) -> str | None:
    """Why the installed Python packages cannot use the GPUs; None if they can."""
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0"):
        return (
            "NUMBA_ENABLE_CUDASIM is set, which replaces numba.cuda by a simulator; "
            "unset it to use the GPUs"
        )
    if os.environ.get("SYNKNUMBA_SIMT", "0").lower() not in ("", "0", "off"):
        return (
            "SYNKNUMBA_SIMT is set, which runs the kernels of numba.cuda on cores; "
            "unset it to use the GPUs"
        )
    if importlib.util.find_spec("cupy") is None:
        return (
            "GPUs need CuPy, which is not installed: pip install 'synknumba[cuda13]' (or [cuda12])"
        )
    return import_problem() if thorough else None


def import_problem(compiler: CompilerName | None = None) -> str | None:
    """Why the CUDA packages cannot be used, with the compiler that `fork()` was given; None if they
    can.

    Imports them, so it is not called in the coordinator.
    """
    try:
        import cupy  # noqa: F401

        return compilers.problem(compiler)
    except Exception as error:  # noqa: BLE001  # numba-cuda without its libraries raises RuntimeErrors of other packages
        reason = str(error).strip().splitlines() or [type(error).__name__]
        return (
            f"the CUDA packages do not import ({reason[0]}): pip install "
            f"'synknumba[cuda13]' (or [cuda12])"
        )


def probe(*, thorough: bool = False) -> DeviceReport:
    """Counts the GPUs in a child process, so that this one never creates a CUDA context.

    With `thorough`, the CUDA packages are imported there too, which takes seconds; ranks check them
    anyway.
    """
    with probed(thorough=thorough) as report:
        return report


@contextmanager
def probed(*, thorough: bool = False) -> Iterator[DeviceReport]:
    """Like `probe`, but the child lives until the block ends: a process that opens GPUs meanwhile
    finds them set up.

    The driver sets up a GPU for the first process that opens it, which takes 0.2 s, one GPU after
    another, and takes it down after the last one. Ranks started after the child's end would wait
    for each other to repeat that.
    """
    if _driver_is_absent():
        yield DeviceReport(0)
        return
    take_standard_descriptors()  # ranks, forked meanwhile, replace what has such a number
    with ExitStack() as stack:
        with held_signals():
            ours, theirs = map(stack.enter_context, socket.socketpair())
            pid = fork(partial(_answer, ours, theirs, thorough=thorough))
            for _ in range(2):  # twice, since Ctrl-C may interrupt before the first call has begun
                stack.callback(_end, pid)
        theirs.close()
        with ours.makefile("rb") as stream:
            answer = stream.read()
        yield _report(answer, pid)


def _report(answer: bytes, pid: int) -> DeviceReport:
    """Returns what a child has answered, or why it has not."""
    if not answer:
        return DeviceReport(0, _silence(pid))
    count, problem, ids = json.loads(answer)
    if problem:
        return DeviceReport(0, problem)
    return DeviceReport(count, None, tuple(ids))


def _answer(ours: socket.socket, theirs: socket.socket, *, thorough: bool) -> NoReturn:
    """Runs the child: sends the report, then waits until the parent ends or kills it."""
    try:
        ours.close()
        report = _count_gpus(thorough=thorough)
        theirs.sendall(json.dumps([report.count, report.problem, report.ids]).encode())
        theirs.shutdown(socket.SHUT_WR)
        theirs.recv(1)
    finally:
        os._exit(0)


def _silence(pid: int) -> str:
    """Returns why a child has ended without an answer."""
    by = ""
    with suppress(ChildProcessError):  # the script ignores SIGCHLD, or waits for any child
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        if end is not None and end.si_code in {os.CLD_KILLED, os.CLD_DUMPED}:
            if end.si_status in {signal.SIGKILL, signal.SIGTERM}:
                return (
                    "the process that asks the NVIDIA driver for GPUs was ended by "
                    f"{signal.Signals(end.si_status).name}, by somebody or where memory is short; "
                    "call fork() again"
                )
            by = f", by signal {end.si_status},"
    return f"the NVIDIA driver crashed{by} when it was initialised; see what `nvidia-smi` says"


def _end(pid: int) -> None:
    with held_signals():
        end_child(pid, _END_SECONDS)


def _driver_is_absent() -> bool:
    """Whether there is no device file of a GPU, so that nothing need be loaded or forked."""
    files = "/dev/nvidiactl", "/dev/dxg", "/dev/nvidia0", "/dev/nvhost-ctrl"
    return not any(map(os.path.exists, files))


def usable_cores() -> int:
    """Returns how many cores this process may use, by its affinity and its cgroup's quota,
    rounded up.
    """
    cores = allowed_cores()
    # of cgroups, version 2 and 1
    for names in (
        ("cpu.max",),
        ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"),
    ):
        # without a quota, version 2 has the word "max", and version 1 has −1
        with suppress(OSError, ValueError):
            texts = [Path("/sys/fs/cgroup", name).read_text() for name in names]
            quota, period = map(int, " ".join(texts).split())
            if quota > 0:
                return max(1, min(cores, -(-quota // period)))
    return cores
