"""Submitted sequences: the results of calls, while the script goes on; errors and effects on
variables at the end.
"""

import time
from pathlib import Path

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_array_equal

import synknumba as synk
from tests.conformance.kernels import add_rows

PATIENCE = 30.0  # seconds until a rank that waits for a file gives up


@synk.parallel(grid=1, block=32)
@cuda.jit
def scale(a, by):
    for i in range(cuda.grid(1), a.shape[0], cuda.gridsize(1)):
        a[i] *= by


@synk.parallel(grid=1, block=1)
@cuda.jit
def shift(a):
    a[0] += 1.0


@synk.parallel(grid=1, block=1, outputs={"t": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def total(a, t):
    for i in range(a.shape[0]):
        t[0] += a[i]


@synk.function(outputs=None)
def first(a):
    return a[0]


@synk.function
def await_file(path):
    until = time.monotonic() + PATIENCE
    while not Path(path).exists() and time.monotonic() < until:
        time.sleep(0.001)


@synk.function(outputs=None)
def await_step(v, folder, step):
    """Tells that the step has begun, waits until it may end, and returns a number; no kernel
    does, so a round ends.
    """
    (Path(folder) / f"begun {step}").touch()
    await_file.py_func(Path(folder) / f"end {step}")
    v += step + 1.0
    return v[0].item()


@synk.function
def break_at(v, step, at):
    if step == at:
        raise KeyError("broken")


@synk.sequence
def shrink(v, by):
    scale(v, by)
    return total(v)


@synk.sequence
def shrink_and_show(v, by):
    scale(v, by)
    return total(v), first(v)


@synk.sequence
def late(path, v, x):
    await_file(path)
    scale(v, 2.0)
    add_rows(x, 1.0)
    return total(v)


@synk.sequence
def stepwise(v, folder):
    return await_step(v, folder, synk.STEP)


@synk.sequence
def breaking_stepwise(v, at):
    break_at(v, synk.STEP, at)
    return first(v)


@synk.sequence
def turn(u, v):
    scale(u, 2.0)
    synk.swap(u, v)
    return total(u)


@synk.sequence
def breaking(v, at):
    scale(v, 2.0)
    break_at(v, synk.STEP, at)
    return total(v)


@pytest.mark.parametrize(
    "body", [shrink, shrink_and_show], ids=["one round", "a round for each result"]
)
@pytest.mark.parametrize(
    "options", [{}, {"times": 5}, {"times": 7, "every": 3}, {"times": 0, "every": 2}], ids=str
)
def test_results_are_those_of_calls(world, body, options):
    del world
    mine, theirs = (synk.variable(np.full(3, 1024.0)) for _ in range(2))
    for by in (0.5, 1.5):  # the second is known
        futures, told = body.submit(mine, by, **options), body(theirs, by, **options)
        found = futures.result()
        for a, b in zip(
            *((one if isinstance(one, tuple) else (one,)) for one in (found, told)), strict=True
        ):
            assert (a is None) == (b is None)
            assert_array_equal(a if a is not None else 0, b if b is not None else 0)
        assert_array_equal(mine.get_value(), theirs.get_value())
    assert body.submit(mine, by=2.0, times=3).result() is not None


@pytest.mark.one_machine
def test_the_script_goes_on_while_ranks_work(world, tmp_path):
    gate, v, x = tmp_path / "gate", synk.variable(np.ones(3)), np.arange(9.0)
    future = late.submit(str(gate), v, x, times=4, every=2)
    assert repr(future).startswith("<Future of late()")
    assert not future.done()
    with pytest.raises(TimeoutError, match="has not ended within"):
        future.result(timeout=0.01)
    gate.touch()
    assert_array_equal(v.get_value(), np.full(3, 16.0))  # waits for it
    assert future.done()
    assert_array_equal(x, np.arange(9.0) + 4)  # written back
    assert_array_equal(future.result(), 3 * world.world_size * np.array([4.0, 16.0]))


def until(is_so, meanwhile):
    """Waits until a condition holds, and does something over and over meanwhile."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        meanwhile()
        assert time.monotonic() < end


@pytest.mark.one_machine
def test_a_round_for_each_result_while_the_script_goes_on(world, tmp_path):
    def step(word, number):
        return tmp_path / f"{word} {number}"

    def ask_in_vain():
        with pytest.raises(TimeoutError, match="has not ended within"):
            future.result(timeout=0.001)

    v = synk.variable(np.zeros(3))
    future = stepwise.submit(v, str(tmp_path), times=4, every=1)
    until(step("begun", 0).exists, lambda: None)
    assert not future.done()
    step("end", 0).touch()
    until(step("begun", 1).exists, future.done)  # which starts the next round
    assert not future.done()
    step("end", 1).touch()
    until(step("begun", 2).exists, ask_in_vain)
    assert repr(future) == "<Future of stepwise(), in flight>"
    with pytest.raises(TimeoutError):
        future.exception(timeout=0)
    for number in (2, 3):
        step("end", number).touch()
    until(future.done, lambda: None)
    numbers = [1.0, 3.0, 6.0, 10.0]
    assert_array_equal(
        future.result(timeout=0), np.repeat(numbers, world.world_size).reshape(4, -1)
    )
    assert_array_equal(v.get_value(), np.full(3, 10.0))


def test_the_next_use_makes_all_rounds(world, tmp_path):
    for number in range(5):
        (tmp_path / f"end {number}").touch()
    v = synk.variable(np.zeros(3))
    future = stepwise.submit(v, str(tmp_path), times=5, every=2)
    assert_array_equal(v.get_value(), np.full(3, 15.0))
    assert future.done()
    assert_array_equal(future.result(), np.repeat([3.0, 10.0], world.world_size).reshape(2, -1))


def test_an_error_in_a_later_round(world):
    v = synk.variable(np.ones(3))
    future = breaking_stepwise.submit(v, 2, times=5, every=1)
    until(future.done, lambda: None)
    with pytest.raises(
        synk.RankError, match="in iteration 2 of 5 of breaking_stepwise, call 1: break_at"
    ):
        future.result(timeout=0)
    v.set_value(np.ones(3))
    assert_array_equal(
        breaking_stepwise.submit(v, -1, times=2, every=1).result(), np.ones((2, world.world_size))
    )


def test_swapped_variables_and_calls_in_order(world):
    u, v = (synk.variable(np.array([k])) for k in (1.0, 3.0))
    futures = [turn.submit(u, v), turn.submit(u, v, times=2, every=1)]
    assert turn(u, v) == 4.0 * world.world_size
    assert_array_equal(futures[0].result(), 3.0 * world.world_size)
    assert_array_equal(futures[1].result(), np.array([2.0, 6.0]) * world.world_size)
    assert (u.get_value(), v.get_value()) == (4.0, 12.0)


@pytest.mark.parametrize("every", [None, 1, 7])
@pytest.mark.parametrize("last", [1, 7, 1500, 3000])
def test_loops_that_end_by_themselves(world, every, last):
    """In the first round, or in a later one."""

    @synk.sequence
    def count(v):
        shift(v)
        return total(v)

    v, size = synk.variable(np.zeros(1)), world.world_size
    found = count.submit(v, times=2500, every=every, until=lambda t: t >= last * size).result()
    period = every or 1
    done = min(-(-last // period) * period, 2500)
    wanted = size * np.arange(period, done + 1, period, dtype=float)
    assert_array_equal(found, wanted if every else wanted[-1])
    assert v.get_value() == done


def test_errors_arrive_at_result(world):
    v = synk.variable(np.ones(3))
    future = breaking.submit(v, 2, times=9)
    with pytest.raises(synk.RankError, match=r"in iteration 2 of 9 of breaking, call 2: break_at"):
        future.result()
    v.set_value(np.ones(3))
    assert breaking.submit(v, -1, times=2).result() == 12.0 * world.world_size
    with pytest.raises(
        synk.ArgumentError,
        match=r"script judges this until=.* it uses isnan .*sequences\.py:\d+\); compare numbers",
    ):
        shrink.submit(v, 0.5, times=9, until=lambda t: np.isnan(t) | (t < 1))
    with pytest.raises(synk.ArgumentError, match="times must be an int"):
        shrink.submit(v, 0.5, times=-1)
    with pytest.raises(synk.ArgumentError, match="times=0 has no last iteration"):
        shrink.submit(v, 0.5, times=0)
    with pytest.raises(synk.ArgumentError, match=r"submit\(\) inside .* would run once"):
        synk.sequence(lambda v: shrink.submit(v, 0.5))(v)
    assert shrink.submit(v, 0.5).result() == 6.0 * world.world_size
