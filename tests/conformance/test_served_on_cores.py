"""Ranks on cores repeat known calls, and rounds of sequences, without Python; they tell errors
as Python would.
"""

from unittest import mock

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_array_equal

import synknumba as synk
from synknumba._rank import loop
from synknumba._wire.control import CROWDED, ROOMY
from synknumba._world import life
from tests.conformance.replayed_device import CountedDoorbell, count_served

# to make a round end at each kept result
pytestmark = pytest.mark.filterwarnings("ignore:.*until= does not look at the results")


@pytest.fixture
def world():
    with (
        mock.patch.object(loop, "doorbell_module", CountedDoorbell()),
        # awake from call to call, also in workers of pytest-xdist
        mock.patch.multiple(life, CROWDED=CROWDED, ROOMY=ROOMY),
        synk.fork(2, device="cpu") as world,
    ):
        yield world


@pytest.fixture
def served(world):
    """How many rounds were served, on the rank that has served fewer."""
    count_served()
    return lambda: min(count_served()[0])


def repeat_until_served(served, least, calls):
    """Repeats calls until compiled code has served so many of their rounds.

    On busy cores a rank falls asleep between two calls, or has its turn so late that it goes back
    to Python meanwhile, and Python runs the next one.
    """
    most = 0
    for _ in range(100):
        calls()
        most = max(most, served())
        if most >= least:
            return
    pytest.fail(f"at most {most} rounds were served, and not {least}")


@synk.parallel(
    outputs={
        "t": synk.output("sum", shape=(), dtype="float64"),
        "rows": synk.output("gather", dtype="complex128"),
    }
)
@cuda.jit
def weigh(x, real, single, whole, flag, turn, t, rows):
    i = cuda.grid(1)
    if i < x.shape[0]:
        rows[i] = turn * x[i]
        if flag:
            cuda.atomic.add(t, 0, real * x[i] + single + whole)


def test_other_numbers(served):
    x = np.arange(20.0)
    data = synk.data(x)

    def calls():
        for k in range(30):
            given = 0.5 * k, np.float32(k / 3), 7 - k, k % 3 > 0, complex(k, 1 - k)
            real, single, whole, flag, turn = given
            t, rows = weigh(data, *given)
            assert t == (sum(real * one + float(single) + whole for one in x) if flag else 0.0)
            assert_array_equal(rows, turn * x)

    repeat_until_served(served, 5, calls)


@synk.parallel(inout=("x",))
@cuda.jit
def divide(x, by):
    i = cuda.grid(1)
    if i < x.shape[0]:
        if by == 0:
            raise ValueError("by nothing")
        x[i] = x[i] // by


def test_an_error_of_a_kernel(served):
    x = synk.data(np.arange(0, 4000, 100))

    def calls():
        for _ in range(6):
            divide(x, 1)

    repeat_until_served(served, 2, calls)
    with pytest.raises(synk.RankError, match="by nothing"):
        divide(x, 0)
    divide(x, 10)
    assert_array_equal(x.data, np.arange(0, 400, 10))


@synk.parallel(grid=1, block=1)
@cuda.jit
def step(v, by):
    v[0] += by


@synk.parallel(grid=1, block=1, outputs={"t": synk.output("sum", shape=(), dtype="int64")})
@cuda.jit
def tell(v, t):
    t[0] += v[0]


@synk.sequence
def steps(v, by):
    step(v, by * synk.STEP)
    synk.all_reduce(v, "max")
    return tell(v)


@pytest.mark.parametrize("times", [1, 7])
def test_rounds_of_sequences(served, times):
    v = synk.variable(np.zeros(1, np.int64))

    def calls():
        v.set_value(np.zeros(1, np.int64))
        mine = 0
        for call in range(30):
            # other numbers go through Python, and then the same ones again
            by = 3 if call < 20 else call
            by = 3 if call > 25 else by
            found = steps(v, by, times=times)
            mine += by * sum(range(times))
            assert found == 2 * mine
        assert v.get_value()[0] == mine

    repeat_until_served(served, 5, calls)


@synk.sequence
def numbered(v):
    step(v, synk.STEP)
    return tell(v)


@pytest.mark.parametrize("every", [1, 3])
def test_rounds_that_are_judged(served, every):
    """Each begins with another iteration."""
    v, seen = synk.variable(np.zeros(1, np.int64)), []
    wanted = np.array([2 * sum(range(k)) for k in range(every, 61, every)])

    def calls():
        for most in (10**9, 700, 10**9):
            v.set_value(np.zeros(1, np.int64))
            seen.clear()
            found = numbered(
                v,
                times=60,
                every=every,
                until=lambda t, most=most: seen.append(int(t)) or t >= most,
            )
            stop = int(np.argmax(wanted >= most)) + 1 if most < wanted[-1] else len(wanted)
            assert_array_equal(found, wanted[:stop])
            assert_array_equal(seen, wanted[:stop])

    repeat_until_served(served, 60 // every, calls)


@synk.sequence
def carried(v, n):
    step(v, n)
    synk.carry(n, n + 1)
    return tell(v)


def test_carried_numbers_go_on_in_the_next_round(served):
    """Compiled code repeats the first round of a call; Python runs the others, with the numbers
    that it has left.
    """
    v = synk.variable(np.zeros(1, np.int64))

    def calls():
        for n in [2] * 12 + [1, 1, 2, 2, 1, 2]:
            v.set_value(np.zeros(1, np.int64))
            found = carried(v, n, times=8, every=3, until=lambda t: False)
            assert_array_equal(found, [2 * sum(range(n, n + k)) for k in (3, 6)])
            assert v.get_value()[0] == sum(range(n, n + 8))

    repeat_until_served(served, 6, calls)


@synk.sequence
def long(v):
    step(v, synk.STEP)


def test_a_round_longer_than_compiled_code_stays(served):
    v, times = synk.variable(np.zeros(1, np.int64)), 10_000_000
    for call in range(1, 5):
        long(v, times=times)
        assert v.get_value()[0] == call * (times * (times - 1) // 2)


@synk.parallel(grid=1, block=1)
@cuda.jit
def count_down(v, step):
    if v[0] == 5:
        raise ValueError("five")
    v[0] -= 1


@synk.sequence
def falling(v):
    count_down(v, synk.STEP)


def test_an_error_in_a_sequence(served):
    """In the fourth call, which compiled code repeats, and in the first after that."""
    v = synk.variable(np.array([35]))
    for _ in range(3):
        falling(v, times=8)
    with pytest.raises(
        synk.RankError, match=r"(?s)five.*in iteration 6 of 8 of falling, call 1: count_down"
    ):
        falling(v, times=8)
    v.set_value(np.array([100]))
    falling(v, times=8)
    assert v.get_value()[0] == 92
