"""However a script ends, and whatever is under way: no process and no name in /dev/shm is left."""

import os
import signal

import pytest

from tests.faults.scripts import await_scribes, await_work
from tests.quick import whole

# How a script ends by itself with the world open, and its exit status.
ENDINGS = {
    "last line": ("pass", 0),
    "close": ("synk.close()", 0),
    "exception": ("raise ValueError('on purpose')", 1),
    "sys.exit": ("sys.exit(3)", 3),
    "os._exit": ("os._exit(4)", 4),
    "exception on a rank": ("total('text')", 1),
    "abort": ("signal.signal(signal.SIGABRT, signal.SIG_DFL); os.abort()", -signal.SIGABRT),
}


@pytest.mark.parametrize("block", ["with", "without"])
@pytest.mark.parametrize("how", ENDINGS)
def test_script_ends_with_an_open_world(start, how, block):
    statement, status = ENDINGS[how]
    if block == "with":
        text = f"with synk.fork(2, device='cpu') as world:\n    total(ROWS)\n    {statement}\n"
    else:
        text = f"world = synk.fork(2, device='cpu')\ntotal(ROWS)\n{statement}\n"
    start(text).finish(status)


def test_script_ends_before_any_call(start):
    start("synk.fork(2, device='cpu')").finish()


def test_rank_function_that_calls_sys_exit_does_not_end_anything(start):
    script = start("""
        @synk.function(outputs="sum")
        def leave(x):
            sys.exit(5)

        with synk.fork(2, device="cpu"):
            try:
                leave(ROWS)
            except synk.RankError as error:
                say(error.failures[0].type_name, len(error.failures))
            assert total(ROWS) == ROWS.sum()
    """)
    script.expect("SystemExit 2")
    script.finish()


# What is under way when a signal comes. "python": ranks are in Python code. "kernel": in a compiled
# loop of hours, which no handler of Python's can interrupt. "fork": a rank's device never gets
# ready, so that fork() waits.
PHASES = {
    "idle": """
        world = synk.fork(2, device="cpu")
        total(ROWS)
        say("ranks", *world.pids)
        hear()
    """,
    "python": """
        world = synk.fork(2, device="cpu")
        say("ranks", *world.pids)
        forever(ROWS)
    """,
    "kernel": """
        world = synk.fork(2, device="cpu")
        burn(ROWS, 1)
        say("ranks", *world.pids)
        burn(ROWS, HOURS)
    """,
    "fork": """
        from synknumba._rank import loop

        def never_ready(device, index, compiler):
            say("ranks", os.getpid())
            while True:
                pass

        loop.open_device = never_ready
        synk.fork(2, device="cpu")
    """,
}

# The script's exit status. Nothing is sent to the ranks.
SIGNALS = {
    signal.SIGTERM: -signal.SIGTERM,
    signal.SIGINT: -signal.SIGINT,
    signal.SIGKILL: -signal.SIGKILL,
}


def start_phase(start, phase):
    """The script in that phase, and its ranks as far as they are known."""
    script = start(PHASES[phase])
    ranks = script.ranks()
    if phase == "python":
        script.expect("working .*")
    if phase != "idle":
        await_work(ranks[0])
    return script, ranks


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("sig", SIGNALS)
def test_script_ended_by_a_signal(start, sig, phase):
    script, _ = start_phase(start, phase)
    script.kill(sig)
    script.finish(SIGNALS[sig])


@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_in_a_terminal(start, phase):
    script, _ = start_phase(start, phase)
    script.press_ctrl_c()
    script.finish(-signal.SIGINT)
    assert script.errors.count("KeyboardInterrupt") == 1, "ranks leave the interrupt to the script"


def test_sigterm_handler_that_exits_during_a_call(start):
    script = start("""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        with synk.fork(2, device="cpu") as world:
            burn(ROWS, 1)
            say("ranks", *world.pids)
            burn(ROWS, HOURS)
    """)
    await_work(script.ranks()[0])
    script.kill(signal.SIGTERM)
    script.finish(7)


# What a scheduler sends to every process of a job before its time is up.
WARNINGS = signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM


@pytest.mark.parametrize("when", ["before", *whole("after")])
def test_a_job_that_is_warned_saves(start, when):
    """The script's handlers run, set before or after fork(), and nothing else ends: ranks, what
    they run, their output.
    """
    script = start(f"""
        came = []

        def set_handlers():
            for number in {tuple(map(int, WARNINGS))}:
                signal.signal(number, lambda number, _: came.append(number))

        if {when!r} == "before":
            set_handlers()
        world = synk.fork(2, device="cpu", prefix_output=True)
        if {when!r} == "after":
            set_handlers()
        say("ranks", *world.pids)
        while len({{*came}}) < {len(WARNINGS)}:
            assert burn(ROWS, 1000) == burn(ROWS, 1000)
        assert total(ROWS) == ROWS.sum()
        say("saved", *world.pids)
    """)
    ranks = script.ranks()
    carriers = await_scribes(script.pid)
    for sig in WARNINGS:
        for pid in (*ranks, *carriers, script.pid):
            os.kill(pid, sig)
    script.expect(f"saved {ranks[0]} {ranks[1]}")
    script.finish()


def test_a_job_that_ends_by_sigterm(start):
    """Without a handler: the script's exit status is that of the signal, and all end with it."""
    script, ranks = start_phase(start, "kernel")
    for pid in (*await_scribes(script.pid), *ranks, script.pid):
        os.kill(pid, signal.SIGTERM)
    script.finish(-signal.SIGTERM)


def test_processes_of_ranks_end_by_signals(start):
    """Those that functions start are not the ranks: what ends a process as ever ends them."""
    start("""
        @synk.function(outputs="sum")
        def ends(x):
            import subprocess
            program = subprocess.Popen(["sleep", "600"])
            program.terminate()
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                os.write(writer, b"x")
                time.sleep(600)
            os.read(reader, 1)
            os.kill(child, signal.SIGHUP)
            handled = []
            signal.signal(signal.SIGUSR1, lambda *_: handled.append(1))
            os.kill(os.getpid(), signal.SIGUSR1)
            ended = program.wait() == -signal.SIGTERM and os.waitpid(child, 0)[1] == signal.SIGHUP
            return float(ended and handled == [1])

        with synk.fork(2, device="cpu"):
            assert ends(ROWS) == 2.0
    """).finish()


def test_coordinator_killed_before_a_rank_asked_to_die_with_it(start, tmp_path):
    gate = tmp_path / "gate"
    script = start(f"""
        real_fork = os.fork

        def fork():
            pid = real_fork()
            if pid == 0:
                say("ranks", os.getpid())
                while not os.path.exists({str(gate)!r}):
                    time.sleep(0.001)
            return pid

        os.fork = fork
        synk.fork(2, device="cpu")
    """)
    script.ranks()
    script.kill(signal.SIGKILL)
    script.process.wait()
    gate.touch()
    script.finish(-signal.SIGKILL)


@pytest.mark.parametrize("phase", ["idle", "kernel"])
def test_world_forked_by_a_thread(start, phase):
    call = "burn(ROWS, HOURS)" if phase == "kernel" else "hear()"
    script = start(f"""
        import threading

        def work():
            world = synk.fork(2, device="cpu")
            burn(ROWS, 1)
            say("ranks", *world.pids)
            {call}

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    """)
    ranks = script.ranks()
    if phase == "kernel":
        await_work(ranks[0])
    script.kill(signal.SIGKILL)
    script.finish(-signal.SIGKILL)


def test_coordinator_that_becomes_another_program(start):
    script = start("""
        world = synk.fork(2, device="cpu")
        total(ROWS)
        say("ready")
        os.execv("/bin/cat", ["cat"])  # the same process, so the kernel tells its children nothing
    """)
    script.expect("ready")
    script.check_alone()
    script.process.stdin.close()
    script.finish()


PTRACE_SEIZE = 0x4206  # sys/ptrace.h


@pytest.mark.whole
@pytest.mark.parametrize("end", ["close", *whole("death", "exit")])
def test_rank_that_a_debugger_holds(start, end):
    """It has ended when it is killed, but only the debugger is told: nothing waits for that."""
    script = start(f"""
        import ctypes

        world = synk.fork(2, device="cpu")
        total(ROWS)
        reader, writer = os.pipe()
        rank = world.pids[0]  # a forked child has no world
        debugger = os.fork()
        if debugger == 0:
            libc = ctypes.CDLL(None, use_errno=True)
            refused = libc.ptrace({PTRACE_SEIZE}, rank, None, None)
            os.write(writer, b"0" if refused else b"1")
            signal.pause()
            os._exit(0)
        say("traced", os.read(reader, 1).decode())
        if {end == "death"}:
            os.kill(world.pids[1], signal.SIGKILL)
            try:
                total(ROWS)
            except synk.RankDied as error:
                assert "rank 1" in str(error)
        elif {end == "close"}:
            world.close()
        if {end != "exit"}:
            assert world.closed
            check_world()
            say("right")
            os.kill(debugger, signal.SIGKILL)
            os.waitpid(debugger, 0)
            check_world()  # which waits for the one that was left as well
            try:
                os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                say("no child")
        else:
            say("leaves", debugger)
    """)
    if script.expect("traced (.)").group(1) == "0":
        pytest.skip("processes may not trace others here")
    if end == "exit":
        debugger = int(script.expect(r"leaves (\d+)").group(1))
        script.process.wait(20)
        os.kill(debugger, signal.SIGKILL)
    else:
        script.expect("right", 20)
        script.expect("no child", 20)
    script.finish()
