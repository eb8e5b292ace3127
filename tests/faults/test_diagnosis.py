"""What is told when a rank dies, hangs or is asked where it is, and what a world has counted."""

import ctypes
import io
import os
import pickle
import re
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from numba import cuda

import synknumba as synk
from synknumba._host import stacks
from synknumba._world.processes import Processes
from tests.faults.scripts import await_scribes, lives, poll
from tests.quick import whole

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


# How rank 1 ends; what the error says in words; its exit code; and what a C library said, or where
# in the code it was.
ENDS = {
    "fault": ("was killed by SIGSEGV (segmentation fault", -signal.SIGSEGV, "in end_badly"),
    "free": ("was killed by SIGABRT (abort", -signal.SIGABRT, "free(): invalid pointer"),
    "exit": ("exited with code 3", 3, "about to exit"),
    "kill": (
        "was killed by SIGKILL (possibly by the kernel, out of memory)",
        -signal.SIGKILL,
        "about to kill",
    ),
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
    assert f'during end_badly(x: float64 (1001,), how: "{how}"'.replace('"', "") in first.replace(
        '"', ""
    ).replace("'", "")
    assert "fork()" in first
    assert told in "\n".join(rest)
    assert (error.rank, error.pid, error.exitcode, error.function) == (
        1,
        pid,
        exitcode,
        "end_badly",
    )
    assert error.arguments[0] == "x: float64 (1001,)"
    assert error.stderr.startswith(f"rank 1 is about to {how}")
    if how in ("fault", "free"):
        assert f'File "{__file__}", line ' in error.stack
        assert "loop.py" not in error.stack
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
        assert [line for line in lines if line.startswith(f"{rank}:")] == [
            f"{rank}:{k}" for k in range(2000)
        ]


# What a script does with its stderr before it forks: a pipe that is read when the test says so.
OWN_PIPE = """
    import fcntl, struct, termios, threading

    reader, writer = os.pipe()
    os.set_blocking(writer, BLOCKING)
    os.dup2(writer, 2)
    os.close(writer)
    got = []

    def unread():
        return struct.unpack("i", fcntl.ioctl(reader, termios.FIONREAD, bytes(4)))[0]

    def read(pause):
        time.sleep(pause)
        while more := os.read(reader, 65536):
            got.append(more)

    @synk.function()
    def write_much(rank, lines):
        for k in range(lines):
            os.write(2, b"%d:%096d\\n" % (rank, k))

    def check(lines):
        os.close(2)  # the last that could write
        thread.join()
        told = b"".join(got).splitlines()
        for rank in range(2):
            assert [one for one in told if one.startswith(b"%d:" % rank)] == [b"%d:%096d" % (rank, k) for k in range(lines)]
        say("all there")
"""  # noqa: E501


@pytest.mark.parametrize("blocking", [True, *whole(False)])
def test_a_reader_that_pauses_gets_everything(start, blocking):
    """Longer than anything is given up, during a call: ranks wait as they would with any pipe."""
    script = start(
        OWN_PIPE.replace("BLOCKING", str(blocking))
        + """
    with synk.fork(2, device="cpu"):
        thread = threading.Thread(target=read, args=(2.5,))
        thread.start()
        write_much(synk.RANK, 5000)
    check(5000)
"""
    )
    script.expect("all there")
    script.finish()


@pytest.mark.parametrize("blocking", [True, *whole(False)])
def test_a_reader_that_pauses_while_the_world_ends_gets_everything(start, blocking):
    script = start(
        OWN_PIPE.replace("BLOCKING", str(blocking))
        + """
    world = synk.fork(2, device="cpu")
    write_much(synk.RANK, 500)
    thread = threading.Thread(target=read, args=(0.6,))
    thread.start()
    world.close()
    assert world.statistics().dropped_bytes == 0
    check(500)
"""
    )
    script.expect("all there")
    script.finish()


def test_what_nobody_takes_after_the_end_is_counted(start):
    """The last words of a rank are told all the same."""
    script = start(
        OWN_PIPE.replace("BLOCKING", "True")
        + """
    world = synk.fork(2, device="cpu")
    write_much(synk.RANK, 600)

    @synk.function()
    def die(rank):
        if rank == 1:
            os.write(2, b"the last of it\\n")
            os._exit(3)

    try:
        die(synk.RANK)
    except synk.RankDied as error:
        assert error.stderr.endswith("the last of it"), error
    taken, all_of_it = unread(), 2 * 600 * 99 + len("the last of it\\n")
    assert 0 < taken <= 65536
    assert world.statistics().dropped_bytes == all_of_it - taken, (world.statistics(), all_of_it, taken)
    assert "of the ranks' output were dropped" in str(world.statistics())
    say("counted")
    os.close(reader)
    check_world()
"""  # noqa: E501
    )
    script.expect("counted")
    script.finish()


def test_a_reader_that_has_closed_is_no_error_on_ranks(start):
    script = start(
        OWN_PIPE.replace("BLOCKING", "True")
        + """
    with synk.fork(2, device="cpu") as world:
        os.close(reader)
        write_much(synk.RANK, 2000)
        assert total(ROWS) == ROWS.sum()
    assert world.statistics().dropped_bytes == 2 * 2000 * 99
    say("counted")
"""
    )
    script.expect("counted")
    script.finish()


def test_a_script_that_is_killed_while_nobody_reads_leaves_nothing(start):
    script = start(
        OWN_PIPE.replace("BLOCKING", "True")
        + """
    import subprocess
    # Keeps the reader open.
    holder = subprocess.Popen(["sleep", "600"], stdin=reader, stdout=subprocess.DEVNULL, start_new_session=True)
    world = synk.fork(2, device="cpu")
    say("holder", holder.pid)
    write_much(synk.RANK, 5000)
"""  # noqa: E501
    )
    holder = int(script.expect(r"holder (\d+)")[1])
    try:
        await_scribes(script.pid)
        time.sleep(0.3)
        script.kill(signal.SIGKILL)
        script.process.wait()
        poll(lambda: not script.processes(), "all have ended", 4.0)
        script.finish(-signal.SIGKILL)
    finally:
        os.kill(holder, signal.SIGKILL)


# ---- the scribe is killed ------------------------------------------------------------------------


def kill_scribe():
    (pid,) = await_scribes(os.getpid())
    os.kill(pid, signal.SIGKILL)
    poll(lambda: not lives(pid), "it has ended")


@synk.function()
def complain(rank, lines):
    for k in range(lines):
        print(f"{k} of {rank}: {'.' * 50}", file=sys.stderr)


@pytest.mark.parametrize("prefix", [True, *whole(False)])
def test_a_scribe_that_is_killed_costs_nothing(prefix, capfd):
    marks = [f"[rank {rank}] " if prefix else "" for rank in range(2)]
    said = [[], []]
    with synk.fork(2, device="cpu", prefix_output=prefix) as world:
        for lines in (2000, 2000, 10):  # 2000 are more than a pipe holds
            kill_scribe()
            complain(synk.RANK, lines)
            for rank in range(2):
                said[rank] += [f"{marks[rank]}{k} of {rank}: {'.' * 50}" for k in range(lines)]
            if lines == 2000:  # all comes while the world goes on
                size = sum(len(line) + 1 for line in said[0] + said[1])
                poll(lambda size=size: os.fstat(2).st_size >= size, "all has come")
    assert world.statistics().dropped_bytes == 0
    told = capfd.readouterr().err.splitlines()
    for rank, expected in enumerate(said):
        assert [line for line in told if f" of {rank}: " in line] == expected


def test_a_scribe_that_is_killed_during_a_call_is_replaced(capfd):
    """What it had read and not written is counted: a line, if it was killed at that very moment."""
    with synk.fork(2, device="cpu") as world:
        threading.Timer(0.2, kill_scribe).start()

        @synk.function()
        def complain_slowly(rank):
            for k in range(60):
                print(f"{k} of {rank}", file=sys.stderr)
                time.sleep(0.01)

        complain_slowly(synk.RANK)
    told = capfd.readouterr().err.splitlines(keepends=True)
    lines = [f"{k} of {rank}\n" for rank in range(2) for k in range(60)]
    missing = [line for line in lines if line not in told]
    assert sum(map(len, missing)) == world.statistics().dropped_bytes <= len(lines[-1])
    assert sum(map(len, told)) + world.statistics().dropped_bytes == sum(map(len, lines))


def test_last_words_of_before_a_scribe_was_killed_are_told():
    with synk.fork(2, device="cpu"):
        complain(synk.RANK, 3)
        kill_scribe()
        with pytest.raises(synk.RankDied) as caught:
            end_badly(ROWS, "exit", synk.RANK)
    assert caught.value.stderr.splitlines()[:3] == [f"{k} of 1: {'.' * 50}" for k in range(3)]
    assert caught.value.stderr.endswith("rank 1 is about to exit")


@pytest.mark.whole
def test_a_scribe_that_is_stopped_holds_nothing_up():
    with synk.fork(2, device="cpu") as world:
        (pid,) = await_scribes(os.getpid())
        os.kill(pid, signal.SIGSTOP)
        complain(synk.RANK, 10)
    assert not lives(pid)
    assert world.statistics().dropped_bytes > 0


def test_a_scribe_is_killed_where_there_are_no_descriptors_for_another(start):
    """What ranks wrote last is counted as dropped; the world ends as ever."""
    script = start("""
        import resource

        @synk.function()
        def complain(rank):
            os.write(2, b"not to be had\\n")

        world = synk.fork(2, device="cpu")
        total(ROWS)
        scribe = int(hear())
        os.kill(scribe, signal.SIGSTOP)
        complain(synk.RANK)
        limit = max(map(int, os.listdir("/proc/self/fd"))) + 10
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        taken = []
        try:
            while True:
                taken.append(os.dup(1))
        except OSError:
            os.kill(scribe, signal.SIGKILL)
        world.close()
        for fd in taken:
            os.close(fd)
        say("dropped", world.statistics().dropped_bytes)
        check_world()
        say("right again")
    """)
    script.tell(str(*await_scribes(script.pid)))
    script.expect("dropped 28")
    script.expect("right again")
    script.finish()


# ---- where ranks are -----------------------------------------------------------------------------


def test_dump_tells_where_each_rank_is():
    told = io.StringIO()
    with synk.fork(3, device="cpu") as world:
        total(ROWS)
        # a rank has sent its result before it waits for the next call
        poll(lambda: "--- rank 0, 1, 2" in dumped(world), "all wait at one place")
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
    for _ in range(3):  # by the last of which all code is compiled
        burn(ROWS, 1)
    pids = world.pids

    def look() -> None:
        poll(
            lambda: "in burn(" in (shown := dumped(world)) and "--- rank 0, 1," in shown,
            "both run the kernel",
        )
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
    assert "kernel_routine.py" in working
    assert "no answer; process state: T (stopped)" in stopped


@synk.function(outputs="sum")
def pause(x, seconds):
    time.sleep(seconds)
    return x.sum()


def test_dumps_by_several_threads_each_tell_all(monkeypatch):
    # on a busy machine an answer takes longer than usual
    monkeypatch.setattr(stacks.ask, "__defaults__", (20.0,))
    told, problems = [], []

    def look():
        try:
            told.extend(dumped(world) for _ in range(20))
        except BaseException as error:
            problems.append(error)

    with synk.fork(2, device="cpu") as world:
        threads = [threading.Thread(target=look) for _ in range(3)]
        threads[0].start()
        threads[1].start()
        threads[2].start()
        pause(ROWS, 2.0)
        for thread in threads:
            thread.join()
        assert total(ROWS) == ROWS.sum()
    assert not problems
    assert len(told) == 60
    for one in told:
        headings = [line for line in one.splitlines() if line.startswith("--- ")]
        assert [
            int(word)
            for line in headings
            for word in re.findall(r"\d+", line.split(", innermost")[0])
        ] == [0, 1], one
        assert "no answer" not in one
        assert len(re.findall(r"first ---\n  \S", one)) == len(headings), one
    assert "in pause\n" in "".join(told)


@pytest.mark.whole
def test_dump_while_another_thread_closes_the_world():
    for _ in range(5):
        world, problems = synk.fork(2, device="cpu"), []

        def look(world=world, problems=problems):
            try:
                while True:
                    dumped(world)
                    world.statistics()
                    if world.closed:
                        return
            except synk.WorldError as error:
                if "closed" not in str(error):
                    problems.append(error)
            except BaseException as error:
                problems.append(error)

        threads = [threading.Thread(target=look) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(0.02)
        world.close()
        for thread in threads:
            thread.join()
        assert not problems


def test_dump_while_the_ranks_start_again(monkeypatch):
    """Another thread may ask when only some of the ranks have been forked."""
    told = []
    real = Processes._fork_one

    def dump_and_fork(processes, config):
        told.append(dumped(world))
        real(processes, config)

    with synk.fork(2, device="cpu", respawn=True) as world:
        assert total(ROWS) == ROWS.sum()
        os.kill(world.pids[1], signal.SIGKILL)
        with pytest.raises(synk.RankDied):
            total(ROWS)
        monkeypatch.setattr(Processes, "_fork_one", dump_and_fork)
        assert total(ROWS) == ROWS.sum()
    assert len(told) == 2
    assert all("rank" in one for one in told)


def test_dump_by_a_signal_handler_in_the_middle_of_a_call_and_of_a_dump():
    told = []
    with synk.fork(2, device="cpu") as world:
        usual = signal.signal(signal.SIGUSR1, lambda *_: told.append(dumped(world)))
        try:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            pause(ROWS, 0.8)
            assert len(told) == 1
            assert "in pause" in told[0]
            os.kill(world.pids[1], signal.SIGSTOP)  # so that an answer is waited for
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            outer = dumped(world)
            assert len(told) == 2
            for one in (outer, told[1]):
                assert "--- rank 0, innermost frame first ---\n  waits for a call\n" in one
                assert "process state: T (stopped)" in one
        finally:
            os.kill(world.pids[1], signal.SIGCONT)
            signal.signal(signal.SIGUSR1, usual)
        assert total(ROWS) == ROWS.sum()


@pytest.mark.whole
def test_dump_in_whose_middle_a_signal_handler_closes_the_world():
    world = synk.fork(2, device="cpu")
    usual = signal.signal(signal.SIGUSR1, lambda *_: world.close())
    try:
        os.kill(world.pids[1], signal.SIGSTOP)
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(synk.WorldError, match="closed"):
            dumped(world)
    finally:
        signal.signal(signal.SIGUSR1, usual)
        world.close()


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


# ---- statistics ----------------------------------------------------------------------------------


@synk.parallel(
    outputs={"found": synk.output("sum", shape=(), dtype="float64")}, broadcast=("table",)
)
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


@synk.function(outputs="sum")
def fail(x, seconds):
    time.sleep(seconds)
    raise ValueError(seconds)


def test_calls_that_fail_are_counted_with_their_time():
    with synk.fork(2, device="cpu") as world:
        total(ROWS)
        before = world.statistics()
        for _ in range(3):
            with pytest.raises(synk.RankError):
                fail(ROWS, 0.1)
        after = world.statistics()
    assert after.calls - before.calls == 3
    assert after.scattered_bytes - before.scattered_bytes == 3 * ROWS.nbytes
    assert after.seconds.working - before.seconds.working >= 0.3


@pytest.mark.parametrize("how", ["dies", "hangs"])
def test_the_call_that_ended_the_world_is_counted(how):
    world = synk.fork(2, device="cpu", timeout=0.3)
    pause(ROWS, 0.0)
    before = world.statistics()
    if how == "dies":
        threading.Timer(0.2, os.kill, (world.pids[0], signal.SIGKILL)).start()
    with pytest.raises((synk.RankDied, synk.CallTimeout)):
        pause(ROWS, 60.0)
    after = world.statistics()
    assert world.closed
    assert after.calls - before.calls == 1
    assert after.seconds.working - before.seconds.working >= (0.1 if how == "dies" else 0.3)
    assert (
        after.seconds.open
        >= after.seconds.starting + after.seconds.preparing + after.seconds.working - 0.05
    )


def test_of_a_closed_world_the_shared_memory_at_its_end_is_told():
    data = synk.data(np.ones(1 << 18))
    with synk.fork(2, device="cpu") as world:
        total(data)
        open_memory = world.statistics().memory
    first = world.statistics()
    assert first.memory.shared == open_memory.shared >= data.data.nbytes
    assert (first.memory.ranks, first.memory.devices, first.memory.devices_free) == ((), (), ())
    time.sleep(0.01)
    assert world.statistics() == first, "it has ended, and so has its time"
    assert "each rank's own: ended" in str(first)


# ---- in a process that the script forks ----------------------------------------------------------


@pytest.mark.parametrize("when", ["idle", "in a call"])
def test_a_forked_process_leaves_the_ranks_alone(start, when):
    """Its copy of the world is of no use to it, and says so; the script's own is as it was."""
    script = start(
        """
        import io, threading

        @synk.function(outputs="sum")
        def nap(x):
            time.sleep(1.0)
            return x.sum()

        values = synk.data(ROWS)

        def expect_refusal(*acts):
            for act in acts:
                try:
                    act()
                except synk.WorldError as error:
                    assert "fork" in str(error), error
                else:
                    say("not refused:", act)

        def child():
            before = world.pids
            expect_refusal(world.statistics, world.dump, lambda: total(values), lambda: synk.all_reduce(variable, "sum"))
            world.close()
            synk.close()
            with world:
                pass
            assert world.closed
            assert "closed" in repr(world)
            say("left alone")
            os._exit(7)

        def fork_and_wait():
            pid = os.fork()
            if pid == 0:
                try:
                    child()
                except BaseException as error:
                    say("went wrong:", repr(error))
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7

        with synk.fork(2, device="cpu") as world:
            variable = synk.variable(ROWS)
            total(values)
            if WHEN == "idle":
                fork_and_wait()
            else:
                thread = threading.Timer(0.3, fork_and_wait)
                thread.start()
                assert nap(values) == ROWS.sum()
                thread.join()
            assert total(values) == ROWS.sum()
            world.dump(io.StringIO())
            assert world.statistics().calls >= 2
        say("done")
    """.replace("WHEN", repr(when))  # noqa: E501
    )
    script.expect("left alone")
    script.expect("done")
    script.finish()
    assert not [line for line in script.printed if "refused" in line or "wrong" in line]


def test_a_rank_that_has_written_nothing_is_asked_again():
    memory = stacks.Stacks(0)
    ready, end = os.pipe()
    pid = os.fork()
    if pid == 0:
        asked = []

        def answer(*_):
            asked.append(None)
            if len(asked) == 2:
                os.write(
                    memory.fd, b'Stack (most recent call first):\n  File "a.py", line 3 in second\n'
                )

        signal.signal(stacks.ASK, answer)
        os.write(end, b"x")
        while True:
            time.sleep(1)
    try:
        os.read(ready, 1)
        assert stacks.ask({pid: memory}, 20.0) == {pid: '  File "a.py", line 3 in second'}
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        memory.close()
        os.close(ready)
        os.close(end)
