"""An exception from outside at every moment when a call takes the world and gives it back: the next
call finds it free.

And at every moment when a world has just started, so that nobody has it yet: it ends.
"""

import pytest

from tests.quick import whole

# Strikes at every event of begin() and end(), and of what holds the world around them, one after
# the other: a function is entered, a line begins, a C function is called or has returned, the
# function returns.
STRIKES = """
import concurrent.futures
import threading
from pathlib import Path
from synknumba._world.engine import Engine
from synknumba._world.life import Life
from synknumba._world.open_world import WorldLock

class Struck(Exception):
    pass

WATCHED = {Engine.begin.__code__, Engine.end.__code__, WorldLock.take.__code__, WorldLock.take_late.__code__, WorldLock.give_back.__code__}
left = 0

def strike(frame, event):
    global left
    if frame.f_code in WATCHED:
        left -= 1
        if left < 0:
            left = 10**9
            raise Struck

def trace(frame, event, _):
    strike(frame, event)
    return trace

def profile(frame, event, _):
    strike(frame, event)

def struck(moment, by, call):
    # Whether it was struck.
    global left
    left = moment
    getattr(sys, by)(trace if by == "settrace" else profile)
    try:
        call()
    except Struck:
        pass
    getattr(sys, by)(None)
    return left > 10**8

def hit_everywhere(call):
    # How often; the calls that are struck, and those after them, are right.
    world = synk.fork(2, device="cpu")
    call()
    moments = 0
    for by in ("settrace", "setprofile"):
        moment = 0
        while struck(moment, by, call):
            try:
                call()
            except synk.WorldError as error:
                assert "closed" in str(error) or "no world" in str(error), error
            if world.closed:
                world = synk.fork(2, device="cpu")
            call()
            moment += 1
        moments += moment
    return moments

def check_alone():
    # No process of the script's is left.
    assert not Path(f"/proc/self/task/{os.getpid()}/children").read_text()

numbers = synk.data(ROWS)
"""  # noqa: E501

CALLS = {
    "function": "assert total(numbers) == ROWS.sum()",
    "as_serial": "assert total.as_serial(numbers) == ROWS.sum()",
    "distribute": "synk.distribute()",
    "variable": "assert synk.variable(np.ones(3)).get_value(1)[0] == 1.0",
    "known collective": "assert synk.all_reduce(VARIABLE, 'sum').get_value(0)[0] >= 0.0",
    "collective": "assert synk.all_reduce([VARIABLE], 'max')[0].get_value(0)[0] >= 0.0",
    "values": "VARIABLE.set_value(np.zeros(3)); assert VARIABLE.get_value(0)[0] == 0.0",
}


@pytest.mark.parametrize(
    "call",
    [
        "function",
        "distribute",
        "variable",
        "known collective",
        *whole("as_serial", "collective", "values"),
    ],
)
def test_struck_while_the_world_is_taken_or_given_back(start, call):
    script = start(
        STRIKES
        + f"""
VARIABLE = synk.variable(np.zeros(3))

def call():
    {CALLS[call]}

say("struck", hit_everywhere(call))
synk.close()
check_world()
"""
    )
    assert int(script.expect(r"struck (\d+)").group(1)) > 20
    script.finish()


def test_struck_when_the_ranks_have_started(start):
    """The world ends with the `fork()` that is struck, or by `close()`."""
    script = start(
        STRIKES
        + """
import inspect
from synknumba._world.rounds import Rounds

STARTS = (Life.start, Engine._start, Engine.__init__, inspect.unwrap(synk.fork))
AFTER = {function.__code__ for function in STARTS}

def profile(frame, event, _):
    if frame.f_code is Rounds.await_ranks.__code__ and event == "return":
        WATCHED.update(AFTER)
    strike(frame, event)

moment = 0
WATCHED.clear()
while struck(moment, "setprofile", lambda: synk.fork(1, device="cpu")):
    WATCHED.clear()
    synk.close()
    check_alone()
    moment += 1
synk.close()
say("struck", moment)
"""
    )
    assert int(script.expect(r"struck (\d+)").group(1)) > 5
    script.finish()


def test_closes_in_order_after_it(start):
    script = start(
        STRIKES
        + """
world = synk.fork(2, device="cpu")
total(numbers)
WATCHED.remove(Engine.begin.__code__)
assert struck(0, "settrace", lambda: total(numbers))
world.close()
assert world.closed
assert world.end_reason is None
check_world()
"""
    )
    script.finish()


def test_a_handler_that_calls_while_the_world_is_taken_or_given_back(start):
    """Either call is right or refused, and the world is free afterwards, also for other threads."""
    script = start(
        STRIKES
        + """
def nested(frame, event, argument):
    global left
    if frame.f_code in WATCHED:
        left -= 1
        if left < 0:
            left = 10**9
            sys.settrace(None)
            sys.setprofile(None)
            try:
                assert total(numbers) == ROWS.sum()
                answers.append("ran")
            except synk.WorldError as error:
                answers.append("refused")
            threading.Thread(target=from_a_thread).start()  # it must not get in between
    return nested

def from_a_thread():
    try:
        assert total(numbers) == ROWS.sum()
    except synk.WorldError:
        pass

world = synk.fork(2, device="cpu")
total(numbers)
answers = []
for by in ("settrace", "setprofile"):
    moment = 0
    while True:
        before, left = len(answers), moment
        getattr(sys, by)(nested)
        try:
            assert total(numbers) == ROWS.sum()
        except synk.WorldError as error:
            assert "another call" in str(error), error
        finally:
            getattr(sys, by)(None)
        if len(answers) == before:
            break
        for thread in threading.enumerate():
            if thread is not threading.current_thread():
                thread.join()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            assert pool.submit(total, numbers).result() == ROWS.sum()
        moment += 1
say("answers", answers.count("ran"), answers.count("refused"))
synk.close()
check_world()
"""
    )
    found = script.expect(r"answers (\d+) (\d+)")
    assert int(found.group(1)) > 5
    assert int(found.group(2)) > 5
    script.finish()


def test_call_inside_a_call_is_still_refused(start):
    script = start("""
        def on_alarm(*_):
            try:
                total(ROWS)
            except synk.WorldError as error:
                say("refused:", str(error).partition(",")[0])

        with synk.fork(2, device="cpu"):
            total(ROWS)
            signal.signal(signal.SIGALRM, on_alarm)

            @synk.function(outputs=None)
            def slow():
                time.sleep(0.5)
                return 0

            signal.setitimer(signal.ITIMER_REAL, 0.2)
            slow()
            assert total(ROWS) == ROWS.sum()
    """)
    script.expect("refused: another call is in progress")
    script.finish()
