"""Typical use under `python -X dev -W error`: no warning, as of files or sockets left open, in
the script or on ranks.
"""

import subprocess
import sys

import pytest

from tests.environment import environment
from tests.quick import whole

SCRIPT = '''
import gc, os, sys, threading, warnings
import numpy as np
from numba import cuda
import synknumba as synk

ROWS = np.arange(1001.0)

@synk.function(outputs="sum")
def total(x):
    return x.sum()

@synk.function(outputs="gather")
def doubled(x):
    return 2 * x

@synk.function(outputs=None)
def opened(x):
    with open(os.devnull) as file:
        return file.read()

@synk.parallel(outputs={"sum_of_squares": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def squares(x, sum_of_squares):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(sum_of_squares, 0, x[i] * x[i])

@synk.function(inout=("v",))
def scale(v, by):
    v *= by

@synk.sequence
def halve(v):
    scale(v, 0.5)
    return total(v)

def use(**options):
    rows, weights = synk.data(ROWS), synk.variable(np.ones(3))
    with synk.fork(2, device="cpu", **options) as world:
        assert total(rows) == ROWS.sum()
        assert squares(rows) == (ROWS * ROWS).sum()
        assert (doubled(np.arange(300_000.0)) == 2 * np.arange(300_000.0)).all()
        synk.all_reduce(weights, "sum")
        synk.broadcast(weights)
        assert (weights.get_value() == 2).all()
        future = total.submit(rows)
        assert future.result() == ROWS.sum()
        assert halve(weights, times=2) == 3.0
        weights.set_value(np.full(3, 2.0))
        opened(ROWS)
        try:
            total(np.array([None]))
        except synk.SynkError:
            pass
        world.statistics()
    assert (weights.get_value() == 2).all()

def in_threads(count):
    """Other threads make Data and files while worlds start and end."""
    warnings.filterwarnings("ignore", r"fork\\(\\) called while", RuntimeWarning)
    going = threading.Event()

    def work():
        while not going.is_set():
            synk.data(ROWS)
            reader, writer = os.pipe()
            with os.fdopen(reader), os.fdopen(writer, "w"):
                pass

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for options in ({}, {"prefix_output": True}):
        use(**options)
    forking = threading.Thread(target=use)
    forking.start()
    forking.join()
    going.set()
    for thread in threads:
        thread.join()

in_threads(int(sys.argv[1])) if sys.argv[1] != "0" else use()
gc.collect()
print("right")
'''


@pytest.mark.parametrize("threads", ["0", *whole("3")])
def test_typical_use(threads, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, "-X", "dev", "-W", "error", str(script), threads]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.stderr, done.stdout, done.returncode) == ("", "right\n", 0)
