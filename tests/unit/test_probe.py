"""The process that counts the GPUs: what it tells, and that it is there for as long as its
answer is used, and no longer.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import synknumba as synk
from synknumba._device import DeviceReport, gpu_probe
from synknumba._world import fork
from synknumba._world.engine import Engine
from synknumba._world.open_world import open_world
from tests.faults.scripts import lives

CRASHED = "the NVIDIA driver crashed"

SCRIPT = """
import os, signal, time
from synknumba._device import DeviceReport, gpu_probe

gpu_probe._driver_is_absent = lambda: False
gpu_probe._count_gpus = lambda *, thorough: DeviceReport(2)
with gpu_probe.probed():
    pid, = map(int, open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read().split())
    print(pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def children():
    task = Path("/proc/self/task") / str(os.getpid()) / "children"
    return set(map(int, task.read_text().split()))


def sockets():
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # listdir's own
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sorted(link for link in links if link.startswith("socket"))


@pytest.fixture
def counting(monkeypatch):
    """Puts something else in the place of what counts the GPUs."""

    def replace(count):
        monkeypatch.setattr(gpu_probe, "_driver_is_absent", lambda: False)
        monkeypatch.setattr(gpu_probe, "_count_gpus", count)

    return replace


@pytest.mark.parametrize(
    "report", [DeviceReport(2), DeviceReport(0), DeviceReport(0, "no CuPy")], ids=repr
)
def test_the_child_stays_as_long_as_the_block(counting, report):
    before = children()
    counting(lambda **_: report)
    with gpu_probe.probed() as told:
        assert told == report
        (pid,) = children() - before
        end = os.pidfd_open(pid)
        # it lives on, so the driver keeps the GPUs set up
        assert select.select([end], [], [], 0.1) == (
            [],
            [],
            [],
        )
        os.close(end)
    assert children() == before
    assert gpu_probe.probe() == report
    assert children() == before


def test_packages_are_missing_where_there_are_gpus(counting):
    counting(lambda **_: DeviceReport(3, "no CuPy"))
    assert gpu_probe.probe() == DeviceReport(0, "no CuPy")


@pytest.mark.parametrize(
    ("end", "problem"),
    [
        (lambda: ctypes.string_at(0), f"{CRASHED}, by signal 11, when it was initialised"),
        (
            lambda: os.kill(os.getpid(), signal.SIGKILL),
            "the process that asks the NVIDIA driver for GPUs was ended by SIGKILL",
        ),
    ],
    ids=["crash", "kill"],
)
def test_a_driver_that_crashes(counting, end, problem):
    before = children()
    counting(lambda **_: end())
    with gpu_probe.probed() as told:
        assert told.count == 0
        assert told.problem.startswith(problem)
    assert children() == before


def test_an_exception_in_the_block(counting):
    before = children()
    counting(lambda **_: DeviceReport(1))
    with pytest.raises(RuntimeError, match="a rank"), gpu_probe.probed():
        raise RuntimeError("a rank")
    assert children() == before


@pytest.mark.parametrize("moment", ["while it counts", "in the block"])
def test_ctrl_c(counting, moment):
    before = children()

    def interrupted():
        with gpu_probe.probed():
            time.sleep(60)

    def count(**_):
        if moment == "while it counts":
            os.kill(os.getppid(), signal.SIGINT)
            time.sleep(60)
        return DeviceReport(1)

    counting(count)
    old = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        if moment == "in the block":
            signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            interrupted()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert children() == before


def test_the_child_ends_with_a_script_that_is_killed():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    deadline = time.monotonic() + 5
    while lives(int(done.stdout)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not lives(int(done.stdout))


def test_it_works_where_the_script_ignores_the_end_of_children(counting):
    before = children()
    counting(lambda **_: DeviceReport(2))
    old = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert gpu_probe.probe() == DeviceReport(2)
        counting(lambda **_: os.kill(os.getpid(), signal.SIGKILL))
        assert gpu_probe.probe().problem.startswith(CRASHED)  # how the child has ended is not known
    finally:
        signal.signal(signal.SIGCHLD, old)
    assert children() == before


def test_the_child_stays_until_the_ranks_have_their_devices(counting, no_world, monkeypatch):
    before, seen = children(), []
    counting(lambda **_: DeviceReport(0))

    class Watched(Engine):
        def __init__(self, *args, **kwargs):
            seen.append(len(children() - before))
            super().__init__(*args, **kwargs)
            seen.append(len(children() - before) - len(self.pids))

    monkeypatch.setattr(fork, "Engine", Watched)
    with synk.fork(2) as world:
        seen.append(len(children() - before) - len(world.pids))
    assert seen == [1, 2, 1]  # the other one passes on what ranks print
    assert children() == before


@pytest.mark.parametrize("moment", ["before", "in the middle"])
def test_ctrl_c_while_the_child_is_ended_leaves_no_world(counting, no_world, monkeypatch, moment):
    before, open_before = children(), sockets()
    counting(lambda **_: DeviceReport(0))
    name = "_end" if moment == "before" else "end_child"
    real, came = getattr(gpu_probe, name), []

    def interrupted(*args):
        if not came:
            came.append(True)
            signal.raise_signal(signal.SIGINT)
        real(*args)

    monkeypatch.setattr(gpu_probe, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        synk.fork(2)
    assert open_world() is None
    assert children() == before
    with synk.fork(2) as world:
        assert world.world_size == 2
    assert children() == before
    assert sockets() == open_before


def test_a_fork_that_fails_leaves_no_child(counting, no_world, monkeypatch):
    before = children()
    counting(lambda **_: DeviceReport(1))
    monkeypatch.setattr(fork, "cuda_is_initialised", lambda: False)
    with pytest.raises(synk.PartitionError, match="world_size=3"):
        synk.fork(3)
    assert children() == before


def test_nothing_is_loaded_or_forked_without_a_driver(monkeypatch):
    before = children()
    monkeypatch.setattr(gpu_probe, "_driver_is_absent", lambda: True)
    with gpu_probe.probed() as told:
        assert told == DeviceReport(0)
        assert children() == before
