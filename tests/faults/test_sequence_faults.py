"""Deaths, time limits and interrupts while ranks run a sequence in compiled code."""

import os
import signal
import time

import numpy as np
import pytest
from numba import cuda

import synknumba as synk

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


def test_a_rank_dies_while_the_other_waits_for_it():
    with synk.fork(2, device="cpu"), pytest.raises(synk.RankDied, match="run_and_die"):
        run_and_die(synk.variable(np.zeros(3)), times=FOREVER)


@pytest.mark.parametrize("body", [run, run_alone], ids=lambda one: one.name)
def test_a_time_limit_ends_a_loop(body):
    with synk.fork(2, device="cpu", timeout=0.3), pytest.raises(synk.CallTimeout, match=body.name):
        body(synk.variable(np.zeros(3)), times=FOREVER)


@pytest.mark.parametrize("body", [run, run_alone], ids=lambda one: one.name)
def test_an_interrupt_ends_a_loop(body):
    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with synk.fork(2, device="cpu"):
            v = synk.variable(np.zeros(3))
            body(v)
            began = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt):
                body(v, times=FOREVER)
            assert time.monotonic() - began < 20
        with synk.fork(2, device="cpu"):
            v = synk.variable(np.zeros(3))
            body(v, times=4)
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
