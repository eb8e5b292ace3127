"""Faults while a submitted call is in flight: each ends with an error at `result()` or the next
use, and leaves nothing.
"""

import os
import signal

import pytest

from tests.faults.scripts import await_work
from tests.quick import whole


def test_a_rank_killed_in_flight(start):
    script = start("""
        world = synk.fork(2, device="cpu")
        future = forever.submit(ROWS)
        say("ranks", *world.pids)
        hear()
        while not future.done():
            time.sleep(0.001)
        for _ in range(2):
            try:
                future.result()
            except synk.RankDied as error:
                say("died", error.rank, error.function)
        assert world.closed
        check_world()
    """)
    victim = script.ranks()[1]
    os.kill(victim, signal.SIGKILL)
    script.tell("killed")
    for _ in range(2):
        script.expect("died 1 forever")
    script.finish()


def test_a_rank_killed_while_an_event_loop_waits(start):
    """The loop does not use the world; nor does it at Ctrl-C, which the end of the block must
    not wait for.
    """
    script = start("""
        import asyncio

        async def serve(future):
            say("ranks", *world.pids)
            return await asyncio.wrap_future(future)

        for ending in (synk.RankDied, KeyboardInterrupt):
            try:
                with synk.fork(2, device="cpu") as world:
                    future = forever.submit(ROWS)
                    asyncio.run(serve(future))
            except ending as error:
                say("ended", type(error).__name__, type(future.exception()).__name__)
        check_world()
    """)
    os.kill(script.ranks()[1], signal.SIGKILL)
    script.expect("ended RankDied RankDied")
    script.ranks()
    os.kill(script.process.pid, signal.SIGINT)
    script.expect("ended KeyboardInterrupt WorldError")
    script.finish()


@pytest.mark.parametrize("ask", ["future.done()", *whole("wait()")])
def test_a_rank_killed_in_a_later_round(start, ask):
    script = start(f"""
        @synk.function(outputs=None)
        def stuck(step):
            say("step", step)
            while step == 2:
                pass

        @synk.sequence
        def steps(v):
            return stuck(synk.STEP)

        def wait():
            try:
                future.result(timeout=0)
            except synk.RankDied:
                return True
            except TimeoutError:
                return False

        world = synk.fork(2, device="cpu")
        future = steps.submit(synk.variable(np.zeros(2)), times=4, every=1)
        say("ranks", *world.pids)
        while not {ask}:
            time.sleep(0.001)
        try:
            future.result()
        except synk.RankDied as error:
            say("died", error.rank)
        check_world()
    """)
    victim = script.ranks()[1]
    for _ in range(2):
        script.expect("step 2")
    os.kill(victim, signal.SIGKILL)
    script.expect("died 1")
    script.finish()


@pytest.mark.parametrize(
    "use", ["total(ROWS)", *whole("total.submit(ROWS)", "synk.variable(np.zeros(2)).get_value(0)")]
)
def test_a_rank_killed_in_flight_is_told_by_the_next_use(start, use):
    script = start(f"""
        world = synk.fork(2, device="cpu")
        future = forever.submit(ROWS)
        os.kill(world.pids[0], signal.SIGKILL)
        try:
            {use}
        except synk.RankDied as error:
            say("told", error.function)
        try:
            future.result()
        except synk.RankDied as error:
            say("kept", error.function)
        check_world()
    """)
    script.expect("told forever")
    script.expect("kept forever")
    script.finish()


def test_a_world_that_starts_again_does_so_after_it(start):
    script = start("""
        world = synk.fork(2, device="cpu", respawn=True)
        future = forever.submit(ROWS)
        os.kill(world.pids[0], signal.SIGKILL)
        try:
            total(ROWS)
        except synk.RankDied as error:
            say("told", error.function)
        assert total.submit(ROWS).result() == ROWS.sum()
        assert isinstance(future.exception(), synk.RankDied)
        synk.close()
    """)
    script.expect("told forever")
    script.finish()


def test_variables_written_in_flight_are_lost_with_it(start):
    script = start("""
        v = synk.variable(np.zeros(2))

        @synk.function
        def write(v):
            v += 1.0
            while True:
                pass

        world = synk.fork(2, device="cpu")
        total(ROWS)
        assert v.get_value(0)[0] == 0.0
        future = write.submit(v)
        os.kill(world.pids[0], signal.SIGKILL)
        try:
            future.result()
        except synk.RankDied:
            say("died")
        try:
            v.get_value()
        except synk.VariableLost:
            say("lost")
        check_world()
    """)
    script.expect("died")
    script.expect("lost")
    script.finish()


@pytest.mark.parametrize("where", ["result", "call"])
def test_ctrl_c_while_waiting(start, where):
    script = start(f"""
        world = synk.fork(2, device="cpu")
        future = forever.submit(ROWS)
        say("ranks", *world.pids)
        try:
            {"future.result()" if where == "result" else "total(ROWS)"}
        except KeyboardInterrupt:
            say("interrupted", world.closed)
        try:
            future.result()
        except synk.WorldError as error:
            say(error)
        check_world()
    """)
    await_work(script.ranks()[0])
    script.press_ctrl_c()
    script.expect("interrupted True")
    script.expect(r"forever\(.*was interrupted while it was in flight.*")
    script.finish()


@pytest.mark.parametrize(
    "opened",
    [
        "with synk.fork(2, device='cpu') as world",
        "world = synk.fork(2, device='cpu')\n        if True",
    ],
)
def test_ctrl_c_while_the_script_computes(start, opened):
    """The script ends without waiting for the call."""
    script = start(f"""
        {opened}:
            future = forever.submit(ROWS)
            say("ranks", *world.pids)
            while True:
                pass
    """)
    await_work(script.ranks()[0])
    script.press_ctrl_c()
    script.finish(-signal.SIGINT)


def test_ctrl_c_that_the_script_handles_leaves_the_call_in_flight(start):
    script = start("""
        @synk.function(outputs="sum")
        def late(x):
            say("working")
            until = time.monotonic() + 30
            while not os.path.exists(GATE) and time.monotonic() < until:
                time.sleep(0.001)
            return x.sum()

        GATE = __file__ + ".gate"
        with synk.fork(2, device="cpu") as world:
            future = late.submit(ROWS)
            try:
                say("submitted")
                while True:
                    pass
            except KeyboardInterrupt:
                say("handled", world.closed)
            open(GATE, "w").close()
            assert future.result() == ROWS.sum()
            assert total(ROWS) == ROWS.sum()
    """)
    said = {script.expect("working|submitted")[0] for _ in range(3)}
    assert said == {"working", "submitted"}
    script.press_ctrl_c()
    script.expect("handled False")
    script.finish()


def test_the_timeout_counts_from_submit(start):
    script = start("""
        world = synk.fork(2, device="cpu", timeout=60)
        total(ROWS)
        world.timeout = 0.5
        future = forever.submit(ROWS)
        began = time.monotonic()
        while not future.done():
            time.sleep(0.001)
        assert 0.4 < time.monotonic() - began < 10.0
        began = time.monotonic()
        try:
            future.result()
        except synk.CallTimeout as error:
            say("timeout", time.monotonic() - began, str(error).splitlines()[0])
        assert world.closed
        check_world()
    """)
    told = script.expect(r"timeout (\S+) (.*)")
    assert float(told[1]) < 0.5
    assert "forever(" in told[2]
    assert "timeout=0.5" in told[2]
    script.finish()


def test_the_script_ends_with_a_call_in_flight(start):
    """It waits for the call, and warns of its error."""
    script = start("""
        @synk.function
        def late(x):
            time.sleep(0.1)
            if synk.rank() == 0:
                say("ended")

        @synk.function
        def fail(x):
            raise ValueError("on purpose")

        import warnings
        warnings.simplefilter("always")
        synk.fork(2, device="cpu")
        late(ROWS[:0])
        late.submit(ROWS)
        future = fail.submit(ROWS)
    """)
    script.expect("ended")
    script.finish()
    assert "nobody asked for its result()" in script.errors
    assert "on purpose" in script.errors


def test_closed_by_a_thread_while_result_waits(start):
    script = start("""
        import threading
        world = synk.fork(2, device="cpu")
        future = forever.submit(ROWS)
        threading.Timer(0.2, lambda: (signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM))).start()
        signal.signal(signal.SIGALRM, lambda *_: synk.close())
        try:
            future.result()
        except synk.WorldError as error:
            say(error)
        assert world.closed
        check_world()
    """)  # noqa: E501
    script.expect("the world was closed during forever.*")
    script.finish()


@pytest.mark.parametrize(
    "use", ["late.submit(ROWS).result()", *whole("total(ROWS)", "v.get_value(0)")]
)
def test_another_thread_waits_for_the_call_for_which_result_waits(start, use):
    script = start(f"""
        import threading

        @synk.function(outputs="sum")
        def late(x):
            time.sleep(0.2)
            return x.sum()

        def is_waiting():  # in the main thread, which then has the world
            frame = sys._current_frames()[threading.main_thread().ident]
            while frame is not None and frame.f_code.co_name != "land":
                frame = frame.f_back
            return frame is not None

        def use_then():
            while not is_waiting() and not told:
                time.sleep(0.001)
            found.append({use})

        v = synk.variable(np.zeros(2))
        with synk.fork(2, device="cpu"):
            for limit in (None, 0.05):
                found, told, future = [], [], late.submit(ROWS)
                thread = threading.Thread(target=use_then)
                thread.start()
                try:
                    assert future.result(limit) == ROWS.sum()
                except TimeoutError:
                    assert limit
                told.append("ended")
                thread.join()
                assert len(found) == 1
                assert future.result() == ROWS.sum()
        say("ended")
    """)
    script.expect("ended")
    script.finish()


def test_a_child_does_not_touch_the_call(start):
    script = start("""
        with synk.fork(2, device="cpu") as world:
            future = total.submit(ROWS)
            child = os.fork()
            if child == 0:
                try:
                    future.result()
                except synk.WorldError as error:
                    say(error)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            assert future.result() == ROWS.sum()
            assert total(ROWS) == ROWS.sum()
    """)
    script.expect(
        r"total\(.*was in flight, and it belongs to the process from which this one was forked"
    )
    script.finish()


def test_struck_at_every_moment_of_submit_and_result(start):
    """An exception from outside: afterwards the world is closed, or calls are right."""
    script = start(
        """
from synknumba._world.call_in_flight import Flight
from synknumba._world.call_in_flight import Flights
from synknumba._world.engine import Engine

class Struck(Exception):
    pass

WATCHED = {one.__code__ for one in (Engine.launch, Flights.launch, Flights.land, Flights._land_round, Engine.await_flight, Engine._land_first, Flight.wait)}
left = 0

def trace(frame, event, _):
    global left
    if frame.f_code in WATCHED:
        left -= 1
        if left < 0:
            left = 10**9
            raise Struck
    return trace

import warnings
warnings.simplefilter("ignore")
numbers = synk.data(ROWS)

def call(last):
    first = total.submit(numbers)
    assert last().result() == ROWS.sum()
    return first.result()

world = synk.fork(2, device="cpu")
call(lambda: total.submit(numbers))
moment = 0
while True:
    left = moment
    sys.settrace(trace)
    try:
        call(lambda: total.submit(numbers))
    except (Struck, synk.WorldError):
        pass
    sys.settrace(None)
    if left < 10**8:
        break
    try:
        assert total(numbers) == ROWS.sum()
    except synk.WorldError as error:
        assert "closed" in str(error) or "no world" in str(error) or "interrupted" in str(error), error
    if world.closed:
        world = synk.fork(2, device="cpu")
    assert total.submit(numbers).result() == ROWS.sum()
    moment += 1
say("struck", moment)
synk.close()
check_world()
"""  # noqa: E501
    )
    assert int(script.expect(r"struck (\d+)").group(1)) > 20
    script.finish()
