"""A world that cannot start says so at once, and names the limit, the setting or the rank."""

import contextlib
import gc
import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import synknumba as synk
from synknumba._host import this_process
from synknumba._rank import loop
from synknumba._world import limits
from tests.environment import environment
from tests.quick import whole

IMPORTS = """
import importlib, sys, threading
barrier, errors = threading.Barrier(8), []
def load():
    barrier.wait()
    try:
        importlib.import_module(sys.argv[1])
    except BaseException as error:
        errors.append(repr(error))
threads = [threading.Thread(target=load) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(errors)
"""

UNCOMPILED = """
import numpy as np
from numba import cuda
import synknumba as synk
from synknumba import simt

def double(x):
    x[cuda.grid(1)] *= 2

for call in (lambda: synk.fork(1, device="cpu"), lambda: simt.jit(double)[1, 4](np.ones(4)), lambda: simt.jit(double).check()):
    try:
        call()
    except synk.SynkError as error:
        print(type(error).__name__, error)
print(synk.Estimate.from_values([1.0, 3.0]).mean, simt.debug(double)[1, 4](np.ones(4)))
"""  # noqa: E501


def run(text, *arguments, **settings):
    command = [sys.executable, "-c", text, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment(**settings), timeout=60
    )
    return done.stdout


@pytest.mark.parametrize("module", ["synknumba.simt", *whole("synknumba")])
@pytest.mark.whole
def test_eight_threads_import_a_module_at_once(module):
    assert run(IMPORTS, module).strip() == "[]"


def test_without_numbas_compiler(tmp_path):
    script = tmp_path / "script.py"  # kernels need a file
    script.write_text(UNCOMPILED)
    told = run(
        "import runpy, sys; runpy.run_path(sys.argv[1])", str(script), NUMBA_DISABLE_JIT="1"
    ).splitlines()
    assert [line.partition(" ")[0] for line in told] == [
        "DeviceError",
        "KernelError",
        "KernelError",
        "2.0",
    ]
    assert all("NUMBA_DISABLE_JIT is set" in line and "unset it" in line for line in told[:3])


@synk.function(outputs="sum")
def total(x):
    return x.sum()


def in_a_block():
    with synk.fork(1, device="cpu") as world:
        pass
    return world


def in_a_stack():
    with contextlib.ExitStack() as stack:
        return stack.enter_context(synk.fork(1, device="cpu"))


def by_its_close():
    world = synk.fork(1, device="cpu")
    world.close()
    return world


def by_close():
    world = synk.fork(1, device="cpu")
    synk.close()
    return world


@pytest.mark.parametrize(
    ("ends", "line", "how"),
    [
        (in_a_block, 1, "at the end of the with block that begins"),
        (in_a_stack, 1, "at the end of the with block that begins"),
        (by_its_close, 2, r"by close\(\)"),
        (by_close, 2, r"by close\(\)"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_calls_after_the_end_tell_where_it_was(no_world, ends, line, how):
    world = ends()
    place = f"{ends.__code__.co_filename}:{ends.__code__.co_firstlineno + line}"
    for call in (
        lambda: total(np.ones(3)),
        lambda: synk.all_reduce(synk.variable(np.ones(3)), "sum"),
    ):
        with pytest.raises(
            synk.WorldError,
            match=rf"no world is open: the world was closed {how} at {place}\. Make .*fork\(\)",
        ):
            call()
    with pytest.raises(
        synk.WorldError, match=f"this world is closed: it was closed {how} at {place}"
    ):
        world.snapshot()


def test_more_ranks_than_the_machine_has_room_for(no_world):
    began = time.monotonic()
    with pytest.raises(
        synk.PartitionError,
        match=r"world_size=10000000 is more than .*by open files .*by processes.*at most \d+",
    ):
        synk.fork(10_000_000, device="cpu")
    assert time.monotonic() - began < 2.0


def test_the_tightest_limit_comes_first(no_world, monkeypatch):
    # whatever other tests have left open
    files = [(resource.RLIM_INFINITY, len(os.listdir("/proc/self/fd")) + 900)]
    monkeypatch.setattr(
        limits.resource,
        "getrlimit",
        lambda what: files[0] if what == resource.RLIMIT_NOFILE else (-1, -1),
    )
    with pytest.raises(
        synk.PartitionError,
        match=r"room for: (\d+) by open files \(\d+, `ulimit -Hn`.*Pass at most \1",
    ):
        synk.fork(200, device="cpu")
    monkeypatch.setattr(limits, "_memory_limits", lambda: iter([100 << 20]))
    with pytest.raises(
        synk.PartitionError,
        match=r"room for: 16 by free memory \(100 MiB; a rank needs 6\).*Pass at most 16",
    ):
        synk.fork(100, device="cpu")
    monkeypatch.setattr(
        limits, "_process_limits", lambda: iter([("pids.max", 30, 28), ("pid_max", 99, 0)])
    )
    with pytest.raises(
        synk.PartitionError, match=r"room for: 2 by processes, pids.max \(30\); 16 by free memory"
    ):
        synk.fork(100, device="cpu")


def test_the_limits_of_this_machine_are_read():
    told = dict(limits._room())
    assert {name.split()[0].rstrip(",") for name in told} >= {"open", "processes", "free"}
    assert all(count > 0 for count in told.values())


def test_a_rank_that_is_stopped_while_it_starts(no_world, monkeypatch):
    opened = loop.open_device

    def stopped(kind, index, compiler):
        if this_process.current_rank() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return opened(kind, index, compiler)

    monkeypatch.setattr(loop, "open_device", stopped)
    began = time.monotonic()
    with pytest.raises(
        synk.CallTimeout,
        match=r"did not start within timeout=1.0 s: rank 1 \(pid \d+\) stopped by SIGSTOP",
    ):
        synk.fork(2, device="cpu", timeout=1.0)
    assert 1.0 <= time.monotonic() - began < 5.0
    monkeypatch.undo()
    with synk.fork(2, device="cpu", timeout=30.0):
        pass


def test_free_threaded_python_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    with pytest.raises(synk.DeviceError, match=r"free-threaded Python; .* PYTHON_GIL=1"):
        synk.fork(1, device="cpu")


def test_a_fork_copies_few_pages_of_the_script(no_world):
    """After a fork each page that the script touches is copied, in itself and in the next rank."""

    def faults(ranks):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        with synk.fork(ranks, device="cpu"):
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    gc.collect()
    gc.disable()  # it touches all pages
    try:
        faults(1)  # imports the driver
        per_rank = (faults(8) - faults(2)) / 6
    finally:
        gc.enable()
    assert per_rank < 700  # 380 on two cores; a walk over the modules touches 1,000 more
