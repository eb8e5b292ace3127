"""Ctrl-C that the kernel gives to another thread of the script: Python runs the handler in the
main thread all the same.
"""

import pytest

# A second thread takes two interrupts at once, at a moment inside of us; the main thread would
# raise at its next instruction.
STRIKES = """
import threading, warnings

warnings.filterwarnings("ignore", message="fork")  # which says that there are threads
thread = threading.Thread(target=time.sleep, args=(1000,), daemon=True)
thread.start()

def strike():
    for _ in range(2):
        signal.pthread_kill(thread.ident, signal.SIGINT)
        time.sleep(0.02)

def struck(owner, name, after=False, times=1):
    real = getattr(owner, name)
    left = [None] * times

    def wrapper(*args):
        left.pop()
        if not left:
            setattr(owner, name, real)
        if not after:
            strike()
        result = real(*args)
        if after:
            strike()
        return result

    setattr(owner, name, wrapper)

def no_child():
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        say("no child")

from synknumba._host import segment as segment_module
from synknumba._world import processes, rounds
"""

FORKS = {
    "between two forks": "processes.Processes, '_fork_one', after=True",
    "right after a process was made": "processes, 'fork', after=True",
    "awaiting the ranks": "rounds.Rounds, 'await_ranks'",
}


@pytest.mark.parametrize("phase", FORKS)
def test_while_ranks_are_forked(start, phase):
    script = start(
        STRIKES
        + f"""
struck({FORKS[phase]})
try:
    synk.fork(3, device="cpu")
except KeyboardInterrupt:
    say("interrupted")
no_child()
check_world()
"""
    )
    script.expect("interrupted")
    script.expect("no child")
    script.finish()


@pytest.mark.parametrize("first", ["interrupt", "death"])
def test_while_the_ranks_are_ended(start, first):
    script = start(
        STRIKES
        + f"""
world = synk.fork(2, device="cpu")
total(ROWS)
kill = processes.Processes.kill
struck(processes.Processes, "kill", times=2)  # again where it is tried again
try:
    if {first == "interrupt"}:
        threading.Timer(0.3, strike).start()
        forever(ROWS)
    else:
        os.kill(world.pids[1], signal.SIGKILL)
        total(ROWS)
except KeyboardInterrupt:
    say("interrupted")
processes.Processes.kill = kill
assert world.closed
no_child()
check_world()
"""
    )
    script.expect("interrupted")
    script.expect("no child")
    script.finish()


@pytest.mark.parametrize("moment", ["made", "let go"])
def test_while_a_segment_is_made_or_let_go(start, moment):
    script = start(
        STRIKES
        + f"""
def open_files():
    return len(os.listdir("/proc/self/fd"))

before = open_files()
segment = None
if {moment == "made"}:
    struck(segment_module, "_open_posix", after=True)
    try:
        segment_module.Segment(4096)
    except KeyboardInterrupt:
        say("interrupted")
    synk.close()
else:
    segment = segment_module.Segment(4096)
    struck(segment_module.os, "close")
    try:
        segment.close()
    except KeyboardInterrupt:
        say("interrupted")
assert open_files() == before
assert not segment_module._descriptors
check_world()
"""
    )
    script.expect("interrupted")
    script.finish()
