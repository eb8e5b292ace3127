"""Exceptions, deaths, time limits and interrupts while ranks run a sequence."""

import io
import os
import re
import signal
import threading
import time
from functools import partial

import numpy as np
import pytest
from numba import cuda

import synknumba as synk
from synknumba._rank import sequence_routine
from synknumba._sequence.plan_cache import KeptSequencePlans
from tests.quick import whole

FOREVER = 10**12  # iterations


@synk.parallel(grid=1, block=1)
@cuda.jit
def count(v):
    v[0] += 1


@synk.function
def die_at(step, rank):
    if step == 50 and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@synk.sequence
def run(v):
    count(v)
    synk.all_reduce(v, "max")


@synk.sequence
def run_alone(v):
    count(v)


@synk.sequence
def run_and_die(v):
    count(v)
    synk.all_reduce(v, "max")
    die_at(synk.STEP, synk.RANK)


@synk.parallel(grid=1, block=1)
@cuda.jit
def put(v, rank, step):
    for i in range(v.shape[0]):
        v[i] = 10 * rank + step + i


@synk.parallel(grid=1, block=1, outputs={"s": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def measure(v, s):
    for i in range(v.shape[0]):
        cuda.atomic.add(s, 0, v[i])


@synk.parallel(grid=1, block=1)
@cuda.jit
def add(w, a):
    w[0] += a


@synk.function
def fail_at(rank, step, who, when):
    if rank == who and step == when:
        raise ValueError("on purpose")


@synk.sequence
def totals(v, w, who, when, after):
    """Of rank `who`, step `when` fails before the all_reduce, and step `after` after it."""
    put(v, synk.RANK, synk.STEP)
    total = measure(v)
    add(w, total)
    fail_at(synk.RANK, synk.STEP, who, when)
    synk.all_reduce(v, "sum")
    fail_at(synk.RANK, synk.STEP, who, after)
    add(w, total)
    return total


@synk.sequence
def judged(v):
    """Ranks wait for each other in the condition alone."""
    count(v)
    return measure(v)


@synk.sequence
def judge_and_die(v):
    count(v)
    total = measure(v)
    die_at(synk.STEP, synk.RANK)
    return total


@synk.sequence
def judged_and_broken(v, who, when):
    count(v)
    fail_at(synk.RANK, synk.STEP, who, when)
    return measure(v)


def never(t):
    return t < 0


LOOPS = {"run": run, "run_alone": run_alone, "judged": partial(judged, until=never)}


def totals_of(world_size, times):
    """What `totals` makes of v and w, and returns."""
    v = 10 * np.arange(world_size)[:, None, None] + np.arange(times)[:, None] + np.arange(3.0)
    return v.sum(0)[-1], 2 * v.sum(), v.sum((0, 2))[-1]


@pytest.mark.parametrize("dropped", [False, *whole(True)], ids=["interrupted", ""])
@pytest.mark.parametrize("tables", [True, *whole(False)])
@pytest.mark.parametrize("world_size", [2, *whole(3)])
def test_right_after_a_rank_has_failed_anywhere(monkeypatch, world_size, tables, dropped):
    """Ranks stop at different places on the stages where they exchange numbers, and all begin
    anew there.
    """
    synk.close()
    if not tables:
        monkeypatch.setattr(sequence_routine, "runs_natively", lambda device: False)
    if not dropped:  # as where Ctrl-C comes while the script handles the failure
        monkeypatch.setattr(KeptSequencePlans, "drop", lambda self, plan: None)
    rng = np.random.default_rng(1)
    with synk.fork(world_size, device="cpu"):
        v, w = synk.variable(np.zeros(3)), synk.variable(np.zeros(1))
        totals(v, w, -1, 0, 0, times=2)
        for _ in range(12):
            with pytest.raises(synk.RankError, match="on purpose"):
                totals(
                    v, w, rng.integers(world_size), *rng.permutation((rng.integers(7), -1)), times=7
                )
            w.set_value(np.zeros(1))
            times = int(rng.integers(1, 5))
            found = totals(v, w, -1, 0, 0, times=times)
            for rank in range(world_size):
                np.testing.assert_array_equal(v.get_value(rank), totals_of(world_size, times)[0])
                assert w.get_value(rank)[0] == totals_of(world_size, times)[1]
            assert found == totals_of(world_size, times)[2]


@pytest.mark.parametrize("body", [run_and_die, judge_and_die], ids=lambda body: body.name)
def test_a_rank_dies_while_the_other_waits_for_it(body):
    place = (
        rf"during {body.name}\(\), in iteration 50 of {FOREVER} of {body.name}, call 3: "
        rf"die_at\(step: int, rank: synk.RANK\) "
        rf"\({re.escape(__file__)}:\d+\)\."
    )
    until = never if body is judge_and_die else None
    with synk.fork(2, device="cpu"), pytest.raises(synk.RankDied, match=place):
        body(synk.variable(np.zeros(3)), times=FOREVER, until=until)


def test_right_after_a_rank_has_failed_in_a_judged_loop():
    """Another waits for it in the condition, and both judge the next call from its begin."""
    with synk.fork(2, device="cpu"):
        v = synk.variable(np.zeros(3))
        for when in (0, 7, 8):
            with pytest.raises(synk.RankError, match=f"in iteration {when} of {FOREVER} of judged"):
                judged_and_broken(v, 1, when, times=FOREVER, until=never)
            v.set_value(np.zeros(3))
            assert judged_and_broken(v, -1, 0, times=20, until=lambda t: t >= 10) == 10
            assert v.get_value()[0] == 5


@pytest.mark.parametrize("body", LOOPS)
def test_a_rank_is_killed_in_a_loop(body):
    loop = LOOPS[body]
    with synk.fork(2, device="cpu") as world:
        v = synk.variable(np.zeros(3))
        loop(v, times=1)
        killer = threading.Timer(0.2, os.kill, (world.pids[1], signal.SIGKILL))
        killer.start()
        with pytest.raises(synk.RankDied, match=rf"in iteration [1-9]\d* of {FOREVER} of {body}\b"):
            loop(v, times=FOREVER)
        killer.join()


@pytest.mark.parametrize("body", LOOPS)
def test_a_time_limit_ends_a_loop(body):
    loop = LOOPS[body]
    with synk.fork(2, device="cpu"):
        loop(synk.variable(np.zeros(3)), times=1)  # compiles kernels, which may take longer
    with (
        synk.fork(2, device="cpu", timeout=0.3),
        pytest.raises(synk.CallTimeout, match=body) as caught,
    ):
        loop(synk.variable(np.zeros(3)), times=FOREVER)
    places = re.findall(
        r"innermost frame first ---\n"
        rf"  in iteration (\d+) of {FOREVER} of {body}(, call [123]: |$)",
        str(caught.value),
        re.MULTILINE,
    )
    assert len(places) == 2


@pytest.mark.parametrize("body", LOOPS)
def test_an_interrupt_ends_a_loop(body):
    loop = LOOPS[body]

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with synk.fork(2, device="cpu"):
            v = synk.variable(np.zeros(3))
            loop(v, times=1)
            began = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt) as caught:
                loop(v, times=FOREVER)
            for rank, note in enumerate(caught.value.__notes__):
                assert re.match(
                    rf"rank {rank} was in iteration \d+ of {FOREVER} of {body}(, call [123]: |$)",
                    note,
                )
            assert time.monotonic() - began < 20
        with synk.fork(2, device="cpu"):
            v = synk.variable(np.zeros(3))
            loop(v, times=4)
            assert v.get_value()[0] == 4
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_signal_reaches_a_rank_that_waits_for_no_other():
    """Compiled code returns to Python now and then, which runs the handlers of signals."""

    @synk.function
    def prepare(rank):
        if rank == 0:

            def stop(*_):
                raise InterruptedError("by a timer")

            signal.signal(signal.SIGALRM, stop)
            signal.setitimer(signal.ITIMER_REAL, 0.3)

    with synk.fork(2, device="cpu", timeout=60):
        v = synk.variable(np.zeros(3))
        run_alone(v)
        prepare(synk.RANK)
        with pytest.raises(synk.RankError, match=r"InterruptedError: by a timer") as caught:
            run_alone(v, times=FOREVER)
        assert [one.rank for one in caught.value.failures] == [0]
        assert "of run_alone" in str(caught.value)


@synk.function
def wait_at(outer, inner, rank):
    while (outer, inner, rank) == (2, 3, 1):
        time.sleep(0.01)


@synk.sequence
def inside(v, outer):
    synk.all_reduce(v, "max")
    wait_at(outer, synk.STEP, synk.RANK)


@synk.sequence
def around(v):
    count(v)
    inside(v, synk.STEP, times=5)
    count(v)


def test_places_in_inner_sequences():
    place = r"  in iteration 2 of 7 of around, iteration {} of 5 of inside, call {}: {}"
    line = rf"\({re.escape(__file__)}:\d+\)\n"
    stuck = place.format(3, 3, rf"wait_at\(outer: int, inner: int, rank: synk.RANK\) {line}  File")
    waiting = place.format(
        4, 2, rf"all_reduce {line}  (runs compiled code, or )?waits for other ranks\n"
    )
    told = io.StringIO()
    with synk.fork(2, device="cpu", timeout=1.5) as world:
        v = synk.variable(np.zeros(3))
        around(v, times=1)

        def look() -> None:
            while (
                not all(re.search(text, told.getvalue()) for text in (stuck, waiting))
                and not world.closed
            ):
                told.seek(0)
                told.truncate()
                world.dump(told)

        looking = threading.Thread(target=look)
        looking.start()
        with pytest.raises(synk.CallTimeout) as caught:
            around(v, times=7)
        looking.join(20)
    for text in (told.getvalue(), str(caught.value)):
        assert re.search("--- rank 1, innermost frame first ---\n" + stuck, text)
        assert re.search("--- rank 0, innermost frame first ---\n" + waiting, text)
    assert all("iteration" not in stack for stack in caught.value.stacks.values())


@synk.function
def break_inside(outer, inner):
    if (outer, inner) == (2, 3):
        raise KeyError("broken")


@synk.function(outputs="sum")
def one():
    return 1.0


@synk.sequence
def inside_broken(outer):
    break_inside(outer, synk.STEP)


@synk.sequence
def around_broken():
    inside_broken(synk.STEP, times=5)
    return one()


@pytest.mark.parametrize("options", [{}, {"every": 1}], ids=["one-round", "rounds"])
def test_an_error_in_an_inner_sequence(options):
    with synk.fork(2, device="cpu"):
        with pytest.raises(synk.RankError) as caught:
            around_broken(times=7, **options)
        assert (
            "in iteration 2 of 7 of around_broken, iteration 3 of 5 of "
            "inside_broken, call 1: break_inside(" in str(caught.value)
        )
