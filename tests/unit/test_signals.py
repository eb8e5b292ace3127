"""Signals that are held back: none is lost, none comes in the middle, whichever thread the
kernel gives it to.
"""

# ruff: noqa: PT012  # what is raised comes when the block ends

import _thread
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import partial

import pytest

from synknumba._host.signals import held_signals

FIRST, SECOND = signal.SIGUSR1, signal.SIGUSR2


class Came(Exception):  # noqa: N818  # nothing is wrong
    """What the handlers here raise."""


@pytest.fixture
def came():
    """The numbers of signals that were dealt with; each raises."""
    numbers = []

    def handler(number, _frame):
        numbers.append(number)
        raise Came(number)

    before = {number: signal.signal(number, handler) for number in (FIRST, SECOND)}
    yield numbers
    assert [signal.getsignal(number) for number in before] == [handler] * 2, (
        "the handlers are in place again"
    )
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def other():
    """A thread beside, which takes signals."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    yield thread.ident
    done.set()
    thread.join()


def send(thread, number):
    """A signal to another thread, which has it when this returns."""
    signal.pthread_kill(thread, number)
    time.sleep(0.02)  # it wakes up for it


@pytest.mark.parametrize("thread", ["this one", "another"])
def test_comes_right_after_the_block(came, other, thread):
    ran = False
    with pytest.raises(Came), held_signals():
        send(threading.get_ident() if thread == "this one" else other, FIRST)
        assert came == []
        ran = True
    assert ran
    assert came == [FIRST]


def test_comes_after_the_outermost_block(came, other):
    ran = False
    with pytest.raises(Came), held_signals():
        with held_signals():
            send(other, FIRST)
        assert came == []
        ran = True
    assert ran
    assert came == [FIRST]


def test_two_signals_are_both_dealt_with(came, other):
    with pytest.raises(Came) as caught, held_signals():
        send(other, FIRST)
        send(threading.get_ident(), SECOND)
        send(other, FIRST)
    assert sorted(came) == [FIRST, SECOND], (
        "a signal that comes twice before it is dealt with counts once"
    )
    assert isinstance(caught.value.__context__, Came)


@pytest.mark.usefixtures("came")
def test_an_event_loop_reads_each_signal_once(other):
    """The handlers of asyncio run for what is read from a descriptor, into which Python writes
    each signal that comes.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer)
    try:
        with pytest.raises(Came), held_signals():
            send(other, signal.SIGUSR1)
        assert os.read(reader, 100) == bytes([signal.SIGUSR1])
        assert signal.set_wakeup_fd(before) == writer
    finally:
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)


def test_what_the_block_raises_comes_out(came):
    with pytest.raises(ValueError, match="own"), held_signals():
        raise ValueError("own")
    assert came == []


def test_signal_that_the_script_has_blocked(came, other):
    """Python runs handlers of what other threads get in spite of the main thread's mask."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [FIRST])
    try:
        with pytest.raises(Came), held_signals():
            send(other, FIRST)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == {FIRST}
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [FIRST])
    assert came == [FIRST]


def test_in_another_thread_the_signals_go_elsewhere():
    masks = []

    def work():
        with held_signals():
            masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert signal.SIGINT in masks[0]
    assert masks[1] == set()


def test_child_has_the_handlers_and_none_of_the_signals(came, other):
    handlers = signal.getsignal(FIRST), signal.getsignal(signal.SIGINT)
    with pytest.raises(Came), held_signals():
        send(other, FIRST)
        pid = os.fork()
        if pid == 0:
            here = signal.getsignal(FIRST), signal.getsignal(signal.SIGINT)
            os._exit(0 if here == handlers else 1)
        assert os.waitpid(pid, 0)[1] == 0
        pid = os.fork()
        if pid == 0:
            code = 2
            try:
                with held_signals():
                    pass
                code = len(came)
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
    assert came == [FIRST]


# ---- at every moment -----------------------------------------------------------------------------


def strike(moment, numbers, run):
    """Has signals come at one of the moments when Python runs handlers: where functions begin, and
    C functions have returned.

    It is as if another thread had got them. Tells whether there was such a moment.
    """
    left, struck = moment, False

    def profile(_frame, event, _arg):
        nonlocal left, struck
        if event in ("call", "c_return", "c_exception") and not struck:
            left -= 1
            struck = left < 0
            if struck:
                list(map(_thread.interrupt_main, numbers))  # at once: no handler runs in between

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return struck


def hold(steps):
    with held_signals():
        steps.append("began")
        steps.append("ended")


@pytest.mark.parametrize("numbers", [(FIRST,), (FIRST, SECOND)])
def test_struck_at_every_moment(came, numbers):
    handler = signal.getsignal(FIRST)
    for moment in range(1000):
        steps = []
        came.clear()
        try:
            struck = strike(moment, numbers, partial(hold, steps))
        except Came:
            struck = True
        for _ in range(10 if struck else 0):
            with suppress(Came):  # of the handler that has not run yet
                time.sleep(0)
        if not struck:
            break
        assert sorted(came) == sorted(numbers), f"moment {moment}"
        assert steps in ([], ["began", "ended"]), f"moment {moment}"
        assert [signal.getsignal(number) for number in (FIRST, SECOND)] == [handler] * 2, (
            f"moment {moment}"
        )
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set(), f"moment {moment}"
    assert moment > 20


def test_a_thread_that_python_does_not_know_stays_unknown():
    """`threading.current_thread()` would note it for ever, and `fork` warn of it: finalizers run
    in any thread.
    """
    before, done = threading.active_count(), threading.Event()

    def work():
        with held_signals():
            pass
        done.set()

    _thread.start_new_thread(work, ())
    assert done.wait(10)
    assert threading.active_count() == before
