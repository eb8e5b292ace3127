"""What the logger "synknumba" records, in the script's process, and that it is silent by
default.
"""

import logging
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import synknumba as synk

SCRIPT = """
import numpy as np, synknumba as synk

@synk.function(outputs="sum")
def total(x):
    return x.sum()

with synk.fork(1, device="cpu"):
    total(np.ones(3))
"""


@synk.function(outputs="sum")
def total(x):
    return x.sum()


@synk.function(outputs=None)
def end(x):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def told(caplog):
    caplog.set_level(logging.DEBUG, "synknumba")
    return lambda: [
        (one.levelname, one.getMessage()) for one in caplog.records if one.name == "synknumba"
    ]


def messages(told, level, text):
    return [message for found, message in told() if found == level and text in message]


def test_start_and_end_of_worlds(told):
    with synk.fork(2, device="cpu") as world:
        pids = world.pids
    assert [str(list(pids)) in message for message in messages(told, "INFO", "has started in")] == [
        True
    ]
    assert len(messages(told, "INFO", "has ended: the script has closed it")) == 1
    assert len(messages(told, "INFO", "collectives go over")) == 1


def test_deaths_and_new_starts(told):
    with synk.fork(1, device="cpu", respawn=True):
        with pytest.raises(synk.RankDied):
            end(np.ones(2))
        assert total(np.ones(2)) == 2.0
    # as the reason of the end, and of the new start
    assert len(messages(told, "INFO", "was killed by SIGKILL")) == 2
    assert len(messages(told, "INFO", "has started in")) == 2


def test_calls_that_are_planned(told):
    with synk.fork(1, device="cpu"):
        for rows in (3, 3, 4):
            total(np.ones(rows))
    assert len(messages(told, "DEBUG", "total(x: float64 (3,)) is planned")) == 1
    assert len(messages(told, "DEBUG", "total(x: float64 (4,)) is planned")) == 1
    assert len(messages(told, "DEBUG", "total has been sent to the ranks")) == 1


def test_shared_memory_that_does_not_fit(told, monkeypatch):
    monkeypatch.setattr("synknumba._host.segment._fits_shm", lambda nbytes, leaving: False)
    x = synk.data(np.ones(2))
    assert len(messages(told, "DEBUG", "16 bytes of shared memory are a memory file")) == 1
    x.free_memory()


def test_nothing_is_printed_where_logging_is_not_configured():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("", "")
