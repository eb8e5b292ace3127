"""Processes that the script makes for itself, beside the ranks: neither gets in the way of the
other.
"""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from synknumba._host.children import status
from tests.environment import environment
from tests.faults.scripts import poll
from tests.quick import whole


def test_forked_child_has_no_world(start):
    script = start("""
        with synk.fork(2, device="cpu") as world:
            total(ROWS)
            pid = os.fork()
            if pid == 0:
                try:
                    total(ROWS)
                except synk.WorldError as error:
                    say("refused:", error)
                world.close()
                sys.exit(6)
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == 6
            assert total(ROWS) == ROWS.sum()
    """)
    script.expect(
        "refused: .*no world is open in this process: .* in the parent process, "
        "or call synknumba.fork.*"
    )
    script.finish()


@pytest.mark.parametrize("method", ["fork", *whole("spawn")])
def test_a_child_of_multiprocessing_is_told_whose_the_world_is(method, tmp_path):
    program = f"""
        import multiprocessing
        import numpy as np
        import synknumba as synk

        @synk.function(outputs="sum")
        def total(x):
            return x.sum()

        def child():
            try:
                total(np.ones(4))
            except synk.WorldError as error:
                print(error, flush=True)

        if __name__ == "__main__":
            with synk.fork(1, device="cpu"):
                process = multiprocessing.get_context("{method}").Process(target=child)
                process.start()
                process.join()
                total(np.ones(4))
    """
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(program))
    told = subprocess.run(
        [sys.executable, path],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        check=True,
    )
    assert (
        "no world is open in this process: a world belongs to the process that has called"
        in told.stdout
    ), told


def test_forked_child_can_have_a_world_of_its_own(start):
    script = start("""
        numbers = synk.data(ROWS)
        with synk.fork(2, device="cpu"):
            total(numbers)
            pid = os.fork()
            if pid == 0:
                check_world()
                os._exit(0)
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            assert total(numbers) == ROWS.sum()
    """)
    script.finish()


def test_a_child_that_a_function_forks_does_not_answer_for_its_rank(start):
    """It comes back from the function, or raises in it, and ends there; what it prints is
    printed once.
    """
    script = start("""
        @synk.function(outputs="sum")
        def forking(x, slow):
            if os.fork() == 0:
                if slow:
                    time.sleep(0.2)
                    raise ValueError("in the child")
                print("child", flush=False)
                return np.float64(-1000.0)
            os.wait()
            return x.sum()

        with synk.fork(2, device="cpu", timeout=20):
            for k in range(3):
                assert forking(ROWS, False) == ROWS.sum()
                assert forking(ROWS, False, num_slices=2) == ROWS.sum()
            assert forking(ROWS, True) == ROWS.sum()
            assert total(ROWS) == ROWS.sum()
    """)
    for _ in range(2 * 3 + 4 * 3):
        script.expect("child")
    script.finish()


def test_multiprocessing_beside_the_world(start):
    script = start("""
        import multiprocessing

        with synk.fork(2, device="cpu"):
            total(ROWS)
            with multiprocessing.get_context("fork").Pool(2) as pool:
                assert pool.map(abs, range(-5, 0)) == [5, 4, 3, 2, 1]
                assert total(ROWS) == ROWS.sum()
                pool.close()
                pool.join()
            assert total(ROWS) == ROWS.sum()
    """)
    script.finish()


def test_script_that_waits_for_any_child(start):
    """Whoever collects the exit status of a rank with os.wait() does not make the world hang."""
    script = start("""
        world = synk.fork(2, device="cpu")
        total(ROWS)
        os.kill(world.pids[1], signal.SIGKILL)
        os.wait()
        try:
            total(ROWS)
        except synk.RankDied as error:
            say("told:", error)
        check_world()
    """)
    script.expect("told: rank 1 .*")
    script.finish()


def test_children_of_the_script_are_left_to_it(start):
    script = start("""
        import subprocess

        child = subprocess.Popen(["sh", "-c", "exit 7"])
        with synk.fork(2, device="cpu", timeout=0.3) as world:
            total(ROWS)
            os.kill(world.pids[0], signal.SIGSTOP)
            try:
                total("a new argument, so a message")
            except synk.CallTimeout:
                say("timeout")
        assert child.wait() == 7
        say("mine")
    """)
    script.expect("timeout")
    script.expect("mine")
    script.finish()


@pytest.mark.parametrize("then", ["sys.exit(0)", *whole("return")])
def test_a_handler_forks_in_the_middle_of_a_call(start, then):
    """The call ends in the new process, at once; the script's goes on."""
    script = start(f"""
        @synk.function(outputs="sum")
        def nap(x):
            time.sleep(2.0)
            return x.sum()

        def handle(*_):
            made.append(os.fork())
            if not made[0]:
                {then}

        made = []
        signal.signal(signal.SIGALRM, handle)
        with synk.fork(2, device="cpu"):
            total(ROWS)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            try:
                assert nap(ROWS) == ROWS.sum()
            except synk.WorldError as error:
                assert not made[0], error
                say("refused:", error)
                sys.exit(0)
            say("ended" if os.waitpid(made[0], os.WNOHANG)[0] else "not ended")
            assert total(ROWS) == ROWS.sum()
        say("the script is right")
    """)
    if then == "return":
        script.expect("refused: the world was closed during nap.*")
    script.expect("ended")
    script.expect("the script is right")
    script.finish()


@pytest.mark.whole
def test_a_thread_that_compiles_during_the_fork(start):
    """Ranks do not inherit the compiler's locks from a thread that they do not have."""
    script = start("""
        import itertools, numba, threading, warnings
        warnings.simplefilter("ignore")
        os.environ["SYNKNUMBA_CACHE"] = "0"
        going = threading.Event()

        def compile_all_the_time():
            for n in itertools.count():
                if going.is_set():
                    break
                scope = {}
                exec(f"def f(x):\\n    return x + {n}", scope)
                numba.njit("int64(int64)")(scope["f"])

        thread = threading.Thread(target=compile_all_the_time)
        thread.start()

        @synk.function(outputs="sum")
        def compiled(x):
            return numba.njit(lambda v: v + 1)(0) * x.sum()

        for _ in range(4):
            with synk.fork(2, device="cpu", timeout=15):
                assert compiled(ROWS) == ROWS.sum()
        going.set()
        thread.join()
    """)
    script.finish()


# Starts, on each rank, a program, a process of multiprocessing and one that ignores the signals by
# which one asks for an end.
STARTING = """
    import multiprocessing, subprocess

    @synk.function(outputs=None)
    def starting(x):
        program = subprocess.Popen(["sleep", "1000"])
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
        child.start()
        stubborn = subprocess.Popen(["sh", "-c", "trap '' TERM INT HUP; sleep 1000"])
        return program.pid, child.pid, stubborn.pid

    def start():
        pids = [pid for pids in starting(ROWS) for pid in pids]
        assert len(pids) == 6
        return pids
"""

ENDS = {
    "closed": "world.close()",
    "a rank killed": """
        os.kill(world.pids[1], signal.SIGKILL)
        try:
            total(ROWS)
        except synk.RankDied:
            pass
    """,
    "timeout": """
        world.timeout = 0.5
        try:
            forever(ROWS)
        except synk.CallTimeout:
            pass
    """,
    "script killed": "os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.parametrize("end", [*whole("closed", "timeout", "a rank killed"), "script killed"])
def test_processes_that_functions_start_end_with_their_rank(start, end):
    script = start(
        STARTING
        + f"""
    world = synk.fork(2, device="cpu")
    say("pids", *start())
{textwrap.indent(textwrap.dedent(ENDS[end]), "    ")}
    say("ended")
    hear()
    """
    )
    pids = [int(pid) for pid in script.expect("pids (.*)")[1].split()]
    if end != "script killed":
        script.expect("ended")
    poll(
        lambda: (
            not any(
                Path(f"/proc/{pid}").exists() and status(pid)["State"][0] != "Z" for pid in pids
            )
        ),
        "all ended",
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_script_that_becomes_another_user_still_ends_its_ranks(start):
    script = start("""
        world = synk.fork(2, device="cpu", timeout=1.0)
        total(ROWS)
        os.setuid(65534)
        try:
            forever(ROWS)
        except synk.CallTimeout as error:
            say("told")
        assert world.closed
    """)
    script.expect("told")
    script.finish()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("end", ["closed", *whole("a rank that exits", "the only rank")])
def test_processes_of_ranks_end_though_the_script_has_become_another_user(start, end):
    ranks = 1 if end == "the only rank" else 2
    script = start(f"""
        import subprocess

        @synk.function(outputs=None)
        def starting(x):
            return subprocess.Popen(["sleep", "1000"]).pid  # has none of the rank's descriptors

        @synk.function(outputs=None)
        def leaving(x, rank):
            if rank == 0:
                os._exit(3)

        world = synk.fork({ranks}, device="cpu")
        say("pids", *starting(ROWS))
        os.setuid(65534)
        if {end != "closed"}:
            try:
                leaving(ROWS, synk.RANK)
            except synk.RankDied:
                pass
        world.close()
        say("ended")
        hear()
    """)
    pids = [int(pid) for pid in script.expect("pids (.*)")[1].split()]
    assert len(pids) == ranks
    script.expect("ended")
    try:
        poll(
            lambda: (
                not any(
                    Path(f"/proc/{pid}").exists() and status(pid)["State"][0] != "Z" for pid in pids
                )
            ),
            "all ended",
            5.0,
        )
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_data_that_other_threads_make_during_a_fork(start):
    script = start("""
        import collections, threading, warnings
        warnings.simplefilter("ignore")
        made, errors, going = collections.deque(maxlen=100), [], threading.Event()

        def make():
            try:
                while not going.is_set():
                    made.append(synk.data(ROWS))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=make) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(5):
            with synk.fork(2, device="cpu") as world:
                for one in list(made)[-10:]:
                    assert total(one) == ROWS.sum()
                world.statistics()
        going.set()
        for thread in threads:
            thread.join()
        assert not errors, errors
    """)
    script.finish()
