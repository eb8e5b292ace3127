"""Killed children are waited for, however long that takes where no process holds them; never for
ever.
"""

import os
import signal
import time

import pytest

from synknumba._host import children as children_module
from synknumba._host.children import reap


def child(seconds: float) -> int:
    """A process that ends after so long: as one that is killed, but whose driver takes its time."""
    pid = os.fork()
    if pid == 0:
        time.sleep(seconds)
        os._exit(0)
    return pid


def is_waited_for(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_one_that_is_not_traced_is_waited_for_beyond_the_time_of_traced_ones():
    pid = child(0.3)
    reap([pid], traced_seconds=0.0)
    assert is_waited_for(pid)


@pytest.mark.parametrize("others", [0, 2])
def test_one_that_was_given_up_is_looked_for_with_the_next(others):
    late = child(3600.0)
    reap([late], seconds=0.05)
    assert not is_waited_for(late)
    assert late in children_module._late
    os.kill(late, signal.SIGKILL)
    deadline = time.monotonic() + 30.0
    while not is_waited_for(late) and time.monotonic() < deadline:
        reap([child(0.0) for _ in range(others)])
    assert is_waited_for(late)
    assert late not in children_module._late


def test_traced_ones_are_given_up_after_their_time(monkeypatch):
    pid = child(3600.0)
    monkeypatch.setattr(children_module, "_is_traced", lambda _: True)
    began = time.monotonic()
    reap([pid], seconds=30.0, traced_seconds=0.1)
    assert time.monotonic() - began >= 0.1
    assert pid in children_module._late
    os.kill(pid, signal.SIGKILL)
    reap([pid])
    assert is_waited_for(pid)


def test_what_is_traced_is_told_by_the_kernel():
    assert not children_module._is_traced(os.getpid())
    assert not children_module._is_traced(1 << 22)  # of no process
