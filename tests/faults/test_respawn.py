"""Worlds that start again after a failure, in real scripts whose ranks are killed, stopped and
interrupted.
"""

import pytest

from tests.quick import whole

START = """
w = synk.variable(np.zeros(3), "w")

@synk.function(givens={"w": w})
def add(amount, how, w):
    w += amount
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    while how == "hang":
        pass

def check(expected):
    assert np.array_equal(w.get_value(), np.full(3, expected)), (w.get_value(), expected)
    assert total(ROWS) == ROWS.sum()
"""


@pytest.mark.whole
def test_a_function_that_kills_its_rank_at_each_call(start):
    """Each call raises; nothing is left of the worlds before, and nothing is run again."""
    script = start(
        START
        + """
def held():
    with open("/proc/self/maps") as lines:
        return sum("synk" in line for line in lines), len(os.listdir("/proc/self/fd"))

with synk.fork(2, device="cpu", respawn=True) as world:
    world.snapshot()
    for k in range(6):
        add(1.0, "")
        world.snapshot()
        add(1.0, "")
        try:
            add(1.0, "die")
        except synk.RankDied as error:
            assert error.rank in (0, 1) and "The next call starts them again" in str(error)
            assert world.closed and world.end_reason
        for _ in range(2):
            try:
                add(1.0, "die")
            except synk.RankDied:
                pass
            else:
                raise AssertionError
        check(k + 1.0)
        if k == 1:
            before = held()
    assert held() == before, (held(), before)
    pids = world.pids
    assert not world.closed and world.statistics().calls
assert world.closed and world.pids == ()
check_world()
say("done", *pids)
"""
    )
    script.expect("done .*")
    script.finish()


@pytest.mark.parametrize("call", ["add(1.0, 'hang')", *whole("synk.all_reduce(large, 'sum')")])
def test_a_call_past_its_timeout(start, call):
    script = start(
        START
        + f"""
with synk.fork(2, device="cpu", timeout=1.0, respawn=True) as world:
    large = synk.variable(np.ones(1 << 19))  # the script combines small ones without the ranks
    add(1.0, "")
    world.snapshot()
    add(1.0, "")
    os.kill(world.pids[1], signal.SIGSTOP)
    try:
        {call}
    except synk.CallTimeout as error:
        say("timeout", str(error).splitlines()[0])
    world.timeout = 30.0
    add(2.0, "")
    assert world.timeout == 30.0
    check(3.0)
"""
    )
    script.expect(
        "timeout .*The next call starts them again; set world.timeout to a larger "
        "one if the call needs it."
    )
    script.finish()


@pytest.mark.whole
def test_interrupted_closed_and_forked_again(start):
    script = start(
        START
        + """
import threading, warnings

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
with synk.fork(2, device="cpu", respawn=True) as world:
    add(1.0, "")
    world.snapshot()
    for _ in range(2):
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            add(1.0, "hang")
        except KeyboardInterrupt:
            say("interrupted")
        add(1.0, "")
        check(2.0)
    add(1.0, "")

    # A snapshot of a world that has ended starts it again.
    try:
        add(1.0, "die")
    except synk.RankDied:
        world.snapshot()
    check(1.0)

    # Another fork() takes the place of a world that has ended.
    try:
        add(1.0, "die")
    except synk.RankDied:
        pass
    with synk.fork(1, device="cpu") as other:
        add(4.0, "")
        check(5.0)
    assert world.closed and other.closed
try:
    add(1.0, "")
except synk.WorldError as error:
    say("closed:", error)

# A world that is closed is not started again: neither after a death, nor by another thread in the midst of a call.
world = synk.fork(2, device="cpu", respawn=True)
try:
    add(1.0, "die")
except synk.RankDied:
    world.close()
for close in (synk.close, lambda: world.close()):
    try:
        add(1.0, "")
    except synk.WorldError as error:
        assert not isinstance(error, synk.RankDied), error
        say("closed:", error)
    w.set_value(np.zeros(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        world = synk.fork(2, device="cpu", respawn=True)
    closer = threading.Timer(0.3, close)
    closer.start()
    try:
        add(1.0, "hang")
    except synk.WorldError as error:
        assert not isinstance(error, synk.RankDied), error
        say("by a thread:", error)
    closer.join()
check_world()
"""  # noqa: E501
    )
    for _ in range(2):
        script.expect("interrupted")
    script.expect("closed: .*fork.*")
    for _ in range(2):
        script.expect("closed: .*fork.*")
        script.expect("by a thread: .*closed.*")
    script.finish()


def test_ranks_that_cannot_be_started_again(start):
    """The call raises why, each time, until they can."""
    script = start(
        START
        + """

with synk.fork(2, device="cpu", respawn=True) as world:
    add(1.0, "")
    world.snapshot()
    try:
        add(1.0, "die")
    except synk.RankDied:
        pass
    usual = os.fork
    def none():
        raise BlockingIOError(11, "no process")
    os.fork = none
    for _ in range(2):
        try:
            add(1.0, "")
        except BlockingIOError as error:
            say("not started", error)
        assert world.closed and "SIGKILL" in world.end_reason
        world.statistics()
    os.fork = usual
    add(1.0, "")
    check(2.0)
"""
    )
    for _ in range(2):
        script.expect("not started .*no process.*")
    script.finish()


def test_the_script_ends_with_a_world_that_has_ended(start):
    script = start(
        START
        + """
world = synk.fork(2, device="cpu", respawn=True)
try:
    add(1.0, "die")
except synk.RankDied:
    say("died")
"""
    )
    script.expect("died")
    script.finish()


def test_lost_in_the_call_that_broke_off(start):
    """A variable that the call may have written to is lost without a snapshot; others, and Data,
    are not.
    """
    script = start(
        START
        + """
other, data = synk.variable(np.arange(4.0), "other"), synk.data(np.arange(5.0))

@synk.function
def twice(v):
    v *= 2

with synk.fork(2, device="cpu", respawn=True) as world:
    add(1.0, "")
    twice(other)
    try:
        add(1.0, "die")
    except synk.RankDied:
        pass
    twice(other)
    assert np.array_equal(other.get_value(), 4 * np.arange(4.0))
    for use in (w.get_value, lambda: add(1.0, ""), lambda: synk.all_reduce(w, "sum")):
        try:
            use()
        except synk.VariableLost as error:
            say("lost:", error)
    synk.broadcast(w, np.ones(3))
    add(1.0, "")
    check(2.0)
    assert total(data) == 10
"""
    )
    for _ in range(3):
        script.expect(
            r"lost: the values of variable 'w' ended with the ranks \(rank . "
            r".*SIGKILL.*no snapshot.*set_value.*"
        )
    script.finish()


def test_other_threads_when_the_ranks_start_again(start):
    """The restart warns of no threads, and a call that finds the world ended says that the next
    one starts it.
    """
    script = start(
        START
        + """
import threading, warnings

warnings.simplefilter("error")
with synk.fork(2, device="cpu", respawn=True) as world:
    world.snapshot()
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    for _ in range(2):
        try:
            add(1.0, "die")
        except synk.RankDied:
            pass
        try:
            world._engine.begin()  # as a thread does that had the world before the failure
        except synk.WorldError as error:
            say("ended:", error)
        add(1.0, "")
        world.snapshot()
    check(2.0)
    done.set()
    other.join()
try:
    world._engine.begin()
except synk.WorldError as error:
    say("closed:", error)
"""
    )
    for _ in range(2):
        script.expect(
            "ended: the ranks of this world have ended: .*SIGKILL.*Call again: the "
            "next call starts them again."
        )
    script.expect("closed: this world is closed.*at the end of the with block.*Call fork.*")
    script.finish()


def test_the_ranks_start_again_after_the_call_that_broke_off(start):
    """Another thread's call waits until the broken one has noted, in its thread, what it may
    have written.
    """
    script = start(
        START
        + """
import threading, time
from synknumba._variables import failed_writes

usual, entered = failed_writes.note_failure, threading.Event()

def slow(*args):
    entered.set()
    time.sleep(0.5)
    usual(*args)

failed_writes.note_failure = slow

def breaks():
    try:
        add(1.0, "die")
    except synk.RankDied:
        say("died")

with synk.fork(2, device="cpu", respawn=True):
    add(1.0, "")
    thread = threading.Thread(target=breaks)
    thread.start()
    assert entered.wait(20)
    try:
        add(1.0, "")
    except synk.VariableLost:
        say("lost")
    thread.join()
"""
    )
    script.expect("died")
    script.expect("lost")
    script.finish()


def test_close_and_fork_while_another_thread_starts_the_ranks_again(start):
    """There is one world at a time: fork() is refused, and close() waits, and ends what that
    thread has started.
    """
    script = start(
        START
        + """
import threading
from synknumba._world import fork

usual, entered, go_on = fork._check_again, threading.Event(), threading.Event()

def slow(kind):
    entered.set()
    assert go_on.wait(20)
    usual(kind)

fork._check_again = slow

def again():
    try:
        add(1.0, "")
    except synk.WorldError:
        pass  # closed, or of the variable's lost values

world = synk.fork(2, device="cpu", respawn=True)
try:
    add(1.0, "die")
except synk.RankDied:
    pass
thread = threading.Thread(target=again)
thread.start()
assert entered.wait(20)
try:
    synk.fork(2, device="cpu")
except synk.WorldError as error:
    say(error)
threading.Timer(0.2, go_on.set).start()
synk.close()
assert world.closed
thread.join()
w.set_value(np.zeros(3))
with synk.fork(2, device="cpu"):
    add(1.0, "")
    check(1.0)
"""
    )
    script.expect(
        "a world is being started, by another thread or by the call around this one; call "
        "again when it has started"
    )
    script.finish()
