"""A rank that dies: the call says which and how within a second, data is intact, and fork()
works again at once.
"""

import signal
import time

import numpy as np
import pytest

import synknumba as synk
from synknumba._host import this_process
from synknumba._rank import loop
from tests.faults.scripts import KILLER, await_work

AFTERWARDS = """
assert world.closed
assert np.array_equal(numbers, ROWS)
try:
    total(numbers)
except synk.WorldError as error:
    say("closed:", error)
with synk.fork(3, device="cpu"):
    assert total(numbers) == ROWS.sum()
    assert burn(ROWS[:3], 1) == 3 * (1103515245 + 12345)
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    say("no child")
"""


def finish(script):
    script.expect("closed: .*rank . .*fork.*")
    script.expect("no child")
    script.finish()


@pytest.mark.whole  # as some others here: a row of the fault matrix
@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSEGV])
def test_rank_killed_while_idle(start, sig):
    script = start(
        f"""
numbers = synk.data(ROWS)
world = synk.fork(2, device="cpu")
total(numbers)
pid = world.pids[1]
os.kill(pid, {int(sig)})
while open(f"/proc/{{pid}}/stat").read().split()[2] != "Z":
    pass
began = time.monotonic()
try:
    total(numbers)
except synk.RankDied as error:
    say("died", time.monotonic() - began, pid, error)
"""
        + AFTERWARDS
    )
    told = script.expect(r"died (\S+) (\d+) (.*)")
    assert float(told[1]) < 1.0
    assert f"rank 1 (pid {told[2]}) was killed by {sig.name}" in told[3]
    finish(script)


@pytest.mark.parametrize("call", ["forever(numbers)", "burn(numbers, HOURS)"])
@pytest.mark.parametrize("rank", [0, 1])
def test_rank_killed_at_work(start, call, rank):
    script = start(
        KILLER
        + f"""
numbers = synk.data(ROWS)
world = synk.fork(2, device="cpu")
burn(numbers, 1)
say("ranks", *world.pids)
killer = Killer(world.pids[{rank}])
pid = world.pids[{rank}]
try:
    {call}
except synk.RankDied as error:
    say("died", time.monotonic() - killer.at, pid, error)
killer.join()
"""
        + AFTERWARDS
    )
    await_work(script.ranks()[rank])
    script.tell("kill")
    told = script.expect(r"died (\S+) (\d+) (.*)")
    assert float(told[1]) < 1.0
    assert f"rank {rank} (pid {told[2]}) was killed by SIGKILL" in told[3]
    assert call.partition("(")[0] in told[3]
    finish(script)


def test_all_ranks_killed(start):
    script = start(
        """
numbers = synk.data(ROWS)
world = synk.fork(3, device="cpu")
total(numbers)
for pid in world.pids:
    os.kill(pid, signal.SIGKILL)
try:
    total(numbers)
except synk.RankDied as error:
    say("died", error)
"""
        + AFTERWARDS
    )
    script.expect("died rank . .*SIGKILL.*")
    finish(script)


@pytest.mark.whole
def test_rank_that_exits(start):
    script = start(
        """
@synk.function(outputs="sum")
def leave(x):
    os._exit(3)

numbers = synk.data(ROWS)
world = synk.fork(2, device="cpu")
began = time.monotonic()
try:
    leave(numbers)
except synk.RankDied as error:
    say("died", time.monotonic() - began, error)
"""
        + AFTERWARDS
    )
    told = script.expect(r"died (\S+) (.*)")
    assert float(told[1]) < 1.0
    assert "exited with code 3" in told[2]
    assert "leave" in told[2]
    finish(script)


def test_one_rank_exits_while_another_works(start):
    script = start(
        """
@synk.function(outputs="sum")
def leave(x, rank):
    if rank == 1:
        os._exit(3)
    while True:
        pass

numbers = synk.data(ROWS)
world = synk.fork(2, device="cpu")
try:
    leave(numbers, synk.RANK)
except synk.RankDied as error:
    say("died", error)
"""
        + AFTERWARDS
    )
    script.expect("died rank 1 .*exited with code 3.*")
    finish(script)


def test_fault_in_compiled_code(start):
    script = start(
        """
import ctypes

@synk.function(outputs="sum")
def fault(x):
    return ctypes.string_at(0)

numbers = synk.data(ROWS)
world = synk.fork(2, device="cpu")
try:
    fault(numbers)
except synk.RankDied as error:
    say("died", error)
"""
        + AFTERWARDS
    )
    script.expect("died rank . .*SIGSEGV.*")
    finish(script)


def test_rank_killed_during_fork(start):
    script = start("""
        real_fork = os.fork

        def fork():
            pid = real_fork()
            if pid:
                os.kill(pid, signal.SIGKILL)
            return pid

        check_world()  # a busy machine takes as long to start ranks that live
        began = time.monotonic()
        with synk.fork(2, device="cpu"):
            usual = time.monotonic() - began
        os.fork = fork
        began = time.monotonic()
        try:
            synk.fork(2, device="cpu")
        except synk.RankDied as error:
            say("died", time.monotonic() - began - usual, error)
        os.fork = real_fork
        check_world()
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            say("no child")
    """)
    told = script.expect(r"died (\S+) (.*)")
    assert float(told[1]) < 1.0
    assert "rank 0" in told[2]
    assert "SIGKILL" in told[2]
    script.expect("no child")
    script.finish()


@pytest.mark.whole
def test_rank_killed_while_it_gets_a_message(start):
    """A function too large for the socket's buffer: the coordinator is in the middle of sending
    when the rank dies.
    """
    script = start(
        """
import threading
ballast = os.urandom(20_000_000)

@synk.function(outputs="sum")
def heavy(x):
    return x.sum() + len(ballast)

numbers = synk.data(ROWS)
world = synk.fork(2, device="cpu")
total(numbers)
pid = world.pids[1]
os.kill(pid, signal.SIGSTOP)
thread = threading.Timer(0.3, os.kill, (pid, signal.SIGKILL))
thread.start()
try:
    heavy(numbers)
except synk.RankDied as error:
    say("died", error)
thread.join()
"""
        + AFTERWARDS
    )
    script.expect("died rank 1 .*SIGKILL.*heavy.*")
    finish(script)


def test_death_while_data_is_dropped(start):
    """Dropping data tells the ranks; a dead one must not make `del` raise or hang."""
    script = start(
        """
numbers = synk.data(ROWS)
other = synk.data(ROWS)
world = synk.fork(2, device="cpu")
total(numbers)
total(other)
say("drops")
os.kill(world.pids[0], signal.SIGKILL)
del other
say("dropped")
try:
    total(numbers)
except synk.WorldError as error:
    say("told:", error)
"""
        + AFTERWARDS
    )
    script.expect("drops")
    script.expect("dropped", 5.0)
    script.expect("told: .*rank 0 .*SIGKILL.*")
    finish(script)


def test_death_with_the_world_open_at_the_end(start):
    script = start("""
        world = synk.fork(2, device="cpu")
        total(ROWS)
        os.kill(world.pids[0], signal.SIGKILL)
    """)
    script.finish()


def test_errors_on_ranks_leave_the_world_usable(start):
    script = start("""
        @synk.function(outputs="sum")
        def fail(x, rank):
            if rank != 1:
                raise ValueError(f"on purpose {rank}")
            return x.sum()

        with synk.fork(3, device="cpu") as world:
            pids = world.pids
            for _ in range(5):
                try:
                    fail(ROWS, synk.RANK)
                except synk.RankError as error:
                    assert [failure.rank for failure in error.failures] == [0, 2]
                    assert total(ROWS) == ROWS.sum()
            assert world.pids == pids
            say("usable")
    """)
    script.expect("usable")
    script.finish()


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_why_a_rank_has_no_device_is_told_while_another_is_awaited(slow, monkeypatch):
    """It has ended when it is looked after, and has said before why."""
    opened, bad = loop.open_device, (slow + 1) % 3

    def open_device(kind, index, compiler):
        if this_process.current_rank() == bad:
            raise ValueError("this one is broken")
        if this_process.current_rank() == slow:
            time.sleep(0.5)
        return opened(kind, index, compiler)

    with monkeypatch.context() as patched:
        patched.setattr(loop, "open_device", open_device)
        with pytest.raises(synk.DeviceError) as caught:
            synk.fork(3, device="cpu")
    assert f"rank {bad} could not open its cpu device: ValueError: this one is broken" in str(
        caught.value
    )
    with synk.fork(3, device="cpu"):
        assert synk.function(outputs="sum")(lambda x: x.sum())(np.arange(10.0)) == 45
