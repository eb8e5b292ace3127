"""An exception from outside at every moment when a call takes the world and gives it back: the next call finds it free."""

import ast
from pathlib import Path

import pytest

import synknumba

# Strikes at every event of begin() and end(), and of what holds the world around them, one after the other: a function is
# entered, a line begins, a C function is called or has returned, the function returns.
STRIKES = """
from synknumba._world.world import World

class Struck(Exception):
    pass

WATCHED = {World.begin.__code__, World.end.__code__}
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

numbers = synk.data(ROWS)
"""

CALLS = {
    "function": "assert total(numbers) == ROWS.sum()",
    "as_serial": "assert total.as_serial(numbers) == ROWS.sum()",
    "distribute": "synk.distribute()",
    "variable": "assert synk.variable(np.ones(3)).get_value(1)[0] == 1.0",
    "known collective": "assert synk.all_reduce(VARIABLE, 'sum').get_value(0)[0] >= 0.0",
    "collective": "assert synk.all_reduce([VARIABLE], 'max')[0].get_value(0)[0] >= 0.0",
    "values": "VARIABLE.set_value(np.zeros(3)); assert VARIABLE.get_value(0)[0] == 0.0",
}


@pytest.mark.parametrize("call", CALLS)
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


def test_closes_in_order_after_it(start):
    script = start(
        STRIKES
        + """
world = synk.fork(2, device="cpu")
total(numbers)
WATCHED.remove(World.begin.__code__)
assert struck(0, "settrace", lambda: total(numbers))
world.close()
assert world.closed
assert world.end_reason is None
check_world()
"""
    )
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


# ---- the mark ------------------------------------------------------------------------------------------------------------

TAKES = {"begin", "_take", "placed", "run_known"}  # the last is called by functions that have the mark
WITHOUT = {"run_known", "__enter__", "begin"}


def test_whatever_takes_the_world_is_marked():
    """Else a call that is under way could be taken for one that was broken off."""
    found = 0
    for path in Path(synknumba.__file__).parent.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef) or function.name in WITHOUT:
                continue
            calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
            names = {getattr(one, "attr", getattr(one, "id", None)) for one in calls}
            if names & TAKES:
                found += 1
                marks = [getattr(one, "id", None) for one in function.decorator_list]
                assert "holds_world" in marks, f"{path.name}: {function.name}"
    assert found > 15
