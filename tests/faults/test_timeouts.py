"""A call that takes longer than `timeout=`: `CallTimeout` within a second of it, and fork()
works again.
"""

import os
import signal
import time

import pytest

from tests.quick import whole

CALLS = {
    "python": "forever(numbers)",
    "kernel": "burn(numbers, HOURS)",
    "stopped": "total(numbers)",
}


@pytest.mark.parametrize("what", [*whole("python", "stopped"), "kernel"])
def test_call_past_its_timeout(start, what):
    script = start(f"""
        numbers = synk.data(ROWS)
        world = synk.fork(2, device="cpu", timeout=60)
        burn(numbers, 1)  # compiled, which takes seconds on a busy machine
        total(numbers)
        world.timeout = 2.0
        if {what == "stopped"}:
            os.kill(world.pids[1], signal.SIGSTOP)
        began = time.monotonic()
        try:
            {CALLS[what]}
        except synk.CallTimeout as error:
            assert isinstance(error, TimeoutError)
            say("timeout", time.monotonic() - began, error)
        assert world.closed
        assert np.array_equal(numbers, ROWS)
        check_world()
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            say("no child")
    """)
    told = script.expect(r"timeout (\S+) (.*)")
    assert 2.0 <= float(told[1]) < 3.0
    name = CALLS[what].partition("(")[0]
    assert f"{name}(" in told[2]
    assert "timeout=2.0" in told[2]
    assert ("rank 1." if what == "stopped" else "rank 0, 1.") in told[2]
    script.expect("no child")
    script.finish()


def test_calls_within_the_timeout(start):
    script = start("""
        with synk.fork(2, device="cpu", timeout=30) as world:
            for _ in range(100):
                assert total(ROWS) == ROWS.sum()
            assert not world.closed
    """)
    script.finish()


WAYS = {  # to make a call, during which the machine sleeps
    "call": "found = slow(ROWS)",
    "done": (
        "future = slow.submit(ROWS)\nwhile not future.done(): "
        "time.sleep(0.01)\nfound = future.result()"
    ),
}


@pytest.mark.parametrize("way", ["call", *whole("done")])
def test_time_in_which_the_machine_slept_does_not_count(start, way):
    script = start(f"""
        @synk.function(outputs="sum")
        def slow(x):
            say("slow", os.getpid())
            time.sleep(0.4)
            return x.sum()

        with synk.fork(2, device="cpu", timeout=2.0):
            exec({WAYS[way]!r})
            assert found == ROWS.sum()
            say("right")
    """)
    ranks = [int(script.expect(r"slow (\d+)")[1]) for _ in range(2)]
    stopped = [script.pid, *ranks]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(3.0)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.1)  # the script looks before the ranks go on
    script.expect("right")
    script.finish()


def test_close_does_not_wait_for_a_rank_that_does_not_answer(start):
    script = start("""
        world = synk.fork(2, device="cpu")
        total(ROWS)
        os.kill(world.pids[0], signal.SIGSTOP)
        began = time.monotonic()
        world.close()
        say("closed", time.monotonic() - began)
    """)
    assert float(script.expect(r"closed (\S+)")[1]) < 4.0
    script.finish()


def test_timeout_where_others_want_the_cores(start):
    """A coordinator that gives way while it waits may not come back for some milliseconds, each
    time.
    """
    script = start("""
        script = os.getpid()
        world = synk.fork(1, device="cpu", timeout=0.5)
        total(ROWS)
        others = []
        for _ in range(4 * os.cpu_count()):
            others.append(os.fork())
            if not others[-1]:
                while os.getppid() == script:
                    pass
                os._exit(0)
        began = time.monotonic()
        try:
            forever(ROWS)
        except synk.CallTimeout:
            say("timeout", time.monotonic() - began)
        for pid in others:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    """)
    assert float(script.expect(r"timeout (\S+)")[1]) < 10.0, (
        "spins that are counted alone took minutes"
    )
    script.finish()
