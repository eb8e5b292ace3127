"""Submitted sequences: the results of calls, while the script goes on; errors and effects on variables at the end."""

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
def turn(u, v):
    scale(u, 2.0)
    synk.swap(u, v)
    return total(u)


@synk.sequence
def breaking(v, at):
    scale(v, 2.0)
    break_at(v, synk.STEP, at)
    return total(v)


@pytest.mark.parametrize("body", [shrink, shrink_and_show], ids=["one round", "a round for each result"])
@pytest.mark.parametrize("options", [{}, {"times": 5}, {"times": 7, "every": 3}, {"times": 0, "every": 2}], ids=str)
def test_results_are_those_of_calls(world, body, options):
    del world
    mine, theirs = (synk.variable(np.full(3, 1024.0)) for _ in range(2))
    for by in (0.5, 1.5):  # the second is known
        futures, told = body.submit(mine, by, **options), body(theirs, by, **options)
        found = futures.result()
        for a, b in zip(*((one if isinstance(one, tuple) else (one,)) for one in (found, told)), strict=True):
            assert (a is None) == (b is None)
            assert_array_equal(a if a is not None else 0, b if b is not None else 0)
        assert_array_equal(mine.get_value(), theirs.get_value())
    assert body.submit(mine, by=2.0, times=3).result() is not None


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


def test_swapped_variables_and_calls_in_order(world):
    u, v = (synk.variable(np.array([k])) for k in (1.0, 3.0))
    futures = [turn.submit(u, v), turn.submit(u, v, times=2, every=1)]
    assert turn(u, v) == 4.0 * world.world_size
    assert_array_equal(futures[0].result(), 3.0 * world.world_size)
    assert_array_equal(futures[1].result(), np.array([2.0, 6.0]) * world.world_size)
    assert (u.get_value(), v.get_value()) == (4.0, 12.0)


def test_errors_arrive_at_result(world):
    v = synk.variable(np.ones(3))
    future = breaking.submit(v, 2, times=9)
    with pytest.raises(synk.RankError, match=r"in iteration 2 of 9 of breaking, call 2: break_at"):
        future.result()
    v.set_value(np.ones(3))
    assert breaking.submit(v, -1, times=2).result() == 12.0 * world.world_size
    with pytest.raises(synk.ArgumentError, match="until= is judged in the script .* submit it with times= and every="):
        shrink.submit(v, 0.5, times=9, until=lambda t: t < 1)
    with pytest.raises(synk.ArgumentError, match="times must be an int"):
        shrink.submit(v, 0.5, times=-1)
    with pytest.raises(synk.ArgumentError, match="times=0 has no last iteration"):
        shrink.submit(v, 0.5, times=0)
    with pytest.raises(synk.ArgumentError, match=r"submit\(\) inside .* would run once"):
        synk.sequence(lambda v: shrink.submit(v, 0.5))(v)
    assert shrink.submit(v, 0.5).result() == 6.0 * world.world_size
