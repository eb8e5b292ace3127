"""What is told when a rank dies, hangs or is asked where it is, and what a world has counted."""

import ctypes
import io
import os
import pickle
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from numba import cuda

import synknumba as synk
from tests.faults.scripts import await_work, poll

ROWS = np.arange(1001.0)


@synk.function(outputs="sum")
def total(x):
    return x.sum()


@synk.function(outputs="sum")
def end_badly(x, how, rank):
    if rank != 1:
        time.sleep(60)
    print(f"rank 1 is about to {how}", file=sys.stderr)
    match how:
        case "fault":
            ctypes.string_at(0)
        case "free":
            libc = ctypes.CDLL(None)
            libc.free(ctypes.c_void_p(ctypes.addressof(ctypes.create_string_buffer(64)) + 8))
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
    return x.sum()


@synk.function(outputs="sum")
def wait_here(x):
    while True:
        time.sleep(0.01)


@synk.parallel(outputs={"found": synk.output("sum", shape=(), dtype="int64")})
def burn(x, rounds, found):
    i = cuda.grid(1)
    if i < x.shape[0]:
        state = i + 1
        for _ in range(rounds):
            state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        cuda.atomic.add(found, 0, state)


# How rank 1 ends; what the error says in words; its exit code; and what a C library said, or where in the code it was.
ENDS = {
    "fault": ("was killed by SIGSEGV (segmentation fault", -signal.SIGSEGV, "in end_badly"),
    "free": ("was killed by SIGABRT (abort", -signal.SIGABRT, "free(): invalid pointer"),
    "exit": ("exited with code 3", 3, "about to exit"),
    "kill": ("was killed by SIGKILL (possibly by the kernel for want of memory)", -signal.SIGKILL, "about to kill"),
}


@pytest.mark.parametrize("how", ENDS)
def test_rank_died_says_how_in_which_call_and_what_it_wrote_last(how, capfd):
    words, exitcode, told = ENDS[how]
    with synk.fork(2, device="cpu") as world:
        pid = world.pids[1]
        began = time.monotonic()
        with pytest.raises(synk.RankDied) as caught:
            end_badly(ROWS, how, synk.RANK)
        assert time.monotonic() - began < 5
    error = caught.value
    first, *rest = str(error).splitlines()
    assert f"rank 1 (pid {pid}) {words}" in first
    assert f'during end_badly(x: float64 (1001,), how: "{how}"'.replace('"', "") in first.replace('"', "").replace("'", "")
    assert "fork()" in first
    assert told in "\n".join(rest)
    assert (error.rank, error.pid, error.exitcode, error.function) == (1, pid, exitcode, "end_badly")
    assert error.arguments[0] == "x: float64 (1001,)"
    assert error.stderr.startswith(f"rank 1 is about to {how}")
    if how in ("fault", "free"):
        assert f'File "{__file__}", line ' in error.stack
        assert "_rank.py" not in error.stack
        assert "<module>" not in error.stack, "the script's own call of fork() says nothing"
    else:
        assert error.stack == ""
    assert f"rank 1 is about to {how}\n" in capfd.readouterr().err, "the script's stderr has it too"
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.exitcode, again.stderr) == (str(error), exitcode, error.stderr)


def test_all_that_ranks_write_to_stderr_arrives_once_and_in_order(capfd):
    @synk.function()
    def write_much(rank):
        for k in range(2000):
            os.write(2, f"{rank}:{k}\n".encode())

    with synk.fork(2, device="cpu"):
        write_much(synk.RANK)
    lines = capfd.readouterr().err.splitlines()
    for rank in range(2):
        assert [line for line in lines if line.startswith(f"{rank}:")] == [f"{rank}:{k}" for k in range(2000)]


def test_dump_tells_where_each_rank_is():
    told = io.StringIO()
    with synk.fork(3, device="cpu") as world:
        total(ROWS)
        world.dump(told)
        assert "3 cpu ranks, open>, between calls" in told.getvalue()
        assert "rank 0, 1, 2" in told.getvalue()
        assert "waits for a call" in told.getvalue()
        assert total(ROWS) == ROWS.sum(), "nobody was disturbed"
    with pytest.raises(synk.WorldError, match="closed"):
        world.dump()


def dumped(world):
    told = io.StringIO()
    world.dump(told)
    return told.getvalue()


def test_dump_of_ranks_at_work_in_compiled_code_and_stopped(capsys):
    world = synk.fork(2, device="cpu")
    burn(ROWS, 1)
    pids = world.pids

    def look() -> None:
        poll(lambda: "in burn(" in dumped(world), "the coordinator has gone to sleep")
        await_work(pids[0])
        world.dump()
        os.kill(pids[1], signal.SIGSTOP)
        poll(lambda: ") T " in Path(f"/proc/{pids[1]}/stat").read_text(), "rank 1 has stopped")
        world.dump()
        os.kill(pids[0], signal.SIGKILL)

    thread = threading.Thread(target=look)
    thread.start()
    with pytest.raises(synk.RankDied, match=r"rank 0 .* during burn\("):
        burn(ROWS, 10**15)
    thread.join()
    working, stopped = capsys.readouterr().err.split("<World of 2 cpu ranks, open>, in burn(")[1:]
    assert "--- rank 0, 1," in working
    assert "_run_kernel.py" in working
    assert "does not answer; the kernel says it is T (stopped)" in stopped


def test_call_past_its_timeout_tells_where_ranks_are():
    with synk.fork(2, device="cpu", timeout=1.0) as world:
        total(ROWS)
        with pytest.raises(synk.CallTimeout) as caught:
            wait_here(ROWS)
        assert world.closed
    assert set(caught.value.stacks) == {0, 1}
    for text in (*caught.value.stacks.values(), str(caught.value)):
        assert f'File "{__file__}"' in text
        assert "in wait_here" in text
    assert pickle.loads(pickle.dumps(caught.value)).stacks == caught.value.stacks


# ---- statistics ----------------------------------------------------------------------------------------------------------


@synk.parallel(outputs={"found": synk.output("sum", shape=(), dtype="float64")}, broadcast=("table",))
def weighted(x, table, found):
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        cuda.atomic.add(found, 0, x[i] * table[0])


def test_statistics_count_what_was_done():
    with synk.fork(2, device="cpu") as world:
        fresh = world.statistics()
        assert (fresh.calls, fresh.plans, fresh.scattered_bytes) == (0, 0, 0)
        assert fresh.seconds.starting > 0
        x, table = synk.data(np.ones(1000)), synk.data(np.ones(10))
        for _ in range(7):
            assert weighted(x, table) == 1000
        assert weighted(x, table, batch=100) == 100
        assert weighted(x, table, batch=50) == 50
        assert weighted(x, table) == 1000
        assert weighted.as_serial(x, table) == 1000
        after = world.statistics()
        assert after.calls == 11
        assert after.plans == 3, "whole, with a batch of any length, serial"
        # Rows of 8 bytes, and the table of 80 for each rank that has a part.
        assert after.scattered_bytes == 8 * (8 * 1000 + 100 + 50 + 1000) + 80 * (2 * 10 + 1)
        assert after.rounds > after.calls
        seconds = after.seconds
        assert seconds.open >= seconds.starting + seconds.preparing + seconds.working > 0
        assert seconds.working > 0
        assert after.memory.shared >= 1000 * 8 + 10 * 8
        assert len(after.memory.ranks) == 2
        assert all(used > 1 << 20 for used in after.memory.ranks)
        assert after.memory.devices == (None, None)
        big = synk.data(np.ones(1 << 20))
        assert world.statistics().memory.shared >= after.memory.shared + big.data.nbytes
        with pytest.raises(AttributeError):
            after.calls = 0
    last = world.statistics()
    assert last.calls == 11
    assert last.memory.ranks == ()
    assert "11 calls in " in str(last)


def test_time_of_calls_is_working_time():
    @synk.function()
    def sleep(seconds):
        time.sleep(seconds)

    with synk.fork(2, device="cpu") as world:
        sleep(0.0)
        before = world.statistics().seconds.working
        began = time.monotonic()
        sleep(0.2)
        took = time.monotonic() - began
        assert 0.2 <= world.statistics().seconds.working - before <= took
