"""Leaves out the tests that this machine cannot run, and says so."""

import os
import shutil
import signal
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from synknumba._device import DeviceReport, probe

GPUS = pytest.StashKey[DeviceReport]()
CACHE = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts what it runs in the background that way
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[GPUS] = probe()
    # Many worlds compile the same kernels: once is enough. Nothing is taken from an earlier run, or left in the user's cache.
    config.stash[CACHE] = tempfile.TemporaryDirectory(prefix="synknumba-tests-", ignore_cleanup_errors=True)
    os.environ["SYNKNUMBA_CACHE_DIR"] = config.stash[CACHE].name


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[CACHE].cleanup()


def missing(config: pytest.Config) -> dict[str, str]:
    """The markers whose tests cannot run here, and why."""
    gpus = config.stash[GPUS]
    found = gpus.problem or {0: "no GPU found", 1: "one GPU found"}.get(gpus.count, "")
    reasons = {marker: found for marker, needed in (("gpu", 1), ("multi_gpu", 2)) if gpus.count < needed}
    mpiexec = shutil.which("mpiexec") or (Path(sys.prefix) / "bin" / "mpiexec").exists()
    if find_spec("mpi4py") is None or not mpiexec:
        reasons["mpi"] = "mpi4py or mpiexec not found"
    if "slow" not in config.option.markexpr:
        reasons["slow"] = "ask for them by -m slow"
    return reasons


def pytest_report_header(config: pytest.Config) -> list[str]:
    gpus = config.stash[GPUS]
    left_out = [f"left out: tests marked {marker} ({reason})" for marker, reason in missing(config).items()]
    return [f"GPUs: {gpus.count}", *left_out]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    reasons = missing(config)
    left_out = [item for item in items if any(item.get_closest_marker(marker) for marker in reasons)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
