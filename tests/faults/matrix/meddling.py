"""What comes in the way of calls: other calls, threads, handlers, the end of the process that
carries output, and time.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

from numba import cuda

import synknumba as synk
from synknumba._world.open_world import open_world
from tests.faults.matrix.acting import act, here, mask
from tests.faults.matrix.phases import BOARD, ROWS, total
from tests.faults.scripts import await_scribes

# ---- calls within calls --------------------------------------------------------------------------


@synk.function(outputs="sum")
def call_within(x):
    return total(x)


@act("a call within a call")
def _(calls, ranks):
    call_within(calls.numbers)


@synk.function(outputs="sum")
def fork_within(x):
    synk.fork(2, device="cpu")


@act("a fork within a call")
def _(calls, ranks):
    fork_within(calls.numbers)


# ---- other threads, handlers, and the process that carries what ranks print ----------------------


@contextlib.contextmanager
def in_thread(function: Callable[[], object]) -> Iterator[None]:
    """Calls a function in a thread, in the middle of a call of 0.3 s; what it raises is raised
    here.
    """
    raised = []

    def late() -> None:
        time.sleep(0.1)
        try:
            function()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=late)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    for error in raised:
        raise error


@act("another thread makes a call")
def _(calls, ranks):
    with in_thread(calls.total):
        calls.slow()


@synk.function(outputs="sum")
def endless(on, rank):
    while here(on, rank):
        pass
    return 1.0


@act("another thread closes the world")
def _(calls, ranks):
    with in_thread(synk.close):  # which gives a call two seconds
        endless(mask(range(calls.world_size)), synk.RANK)


@act("a handler closes the world")
def _(calls, ranks):
    before = signal.signal(signal.SIGALRM, lambda *_: synk.close())
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        calls.slow()
    finally:
        signal.signal(signal.SIGALRM, before)


@synk.function(outputs="sum")
def complain(x):
    print("as they do", file=sys.stderr)
    return x.sum()


@act("the scribe is killed")
def _(calls, ranks):
    (scribe,) = await_scribes(os.getpid())
    os.kill(scribe, signal.SIGKILL)
    for _ in range(20):
        assert complain(calls.numbers) == ROWS.sum()
    calls.slow()
    assert len(await_scribes(os.getpid())) == 1


# ---- time ----------------------------------------------------------------------------------------


@act("a function without end")
def _(calls, ranks):
    BOARD.strike()
    endless(mask(ranks), synk.RANK)


@synk.parallel(outputs={"found": synk.output("sum", shape=(), dtype="int64")}, grid=1, block=1)
def endless_kernel(x, on, rank, rounds, found):
    state = 1
    if on >> rank & 1:
        for _ in range(rounds):
            state = (state * 1103515245 + 12345) & 0x7FFFFFFF
    cuda.atomic.add(found, 0, state)


@act("a kernel without end")
def _(calls, ranks):
    world = open_world()
    seconds, world.timeout = world.timeout, None
    # compiled, for longer than that on a busy machine
    endless_kernel(calls.numbers, 0, synk.RANK, 1)
    world.timeout = seconds
    BOARD.strike()
    endless_kernel(calls.numbers, mask(ranks), synk.RANK, 10**15)
