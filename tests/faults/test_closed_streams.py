"""Scripts whose standard streams are closed: what is opened next would get their numbers, and
what ranks print.
"""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from tests.environment import ROOT
from tests.faults.scripts import HEADER
from tests.quick import whole

SCRIPT = """
    @synk.function(outputs="sum")
    def printing(x):
        print("printed", x.sum(), flush=True)
        print("complained", x.sum(), file=sys.stderr, flush=True)
        return x.sum()

    before = synk.data(ROWS)
    with synk.fork(2, device="cpu", prefix_output=PREFIX) as world:
        after = synk.data(ROWS)
        for _ in range(2):
            assert printing(before) == printing(after) == ROWS.sum()
        world.dump()
    assert (before[:] == ROWS).all() and (after[:] == ROWS).all()
    open(sys.argv[1], "w").write("all is well")
"""


@pytest.mark.parametrize("prefix", [False, True])
@pytest.mark.parametrize("closed", [*whole((0,), (1,), (2,)), (0, 1, 2)], ids=str)
def test_a_script_whose_standard_streams_are_closed(closed, prefix, tmp_path):
    if 2 in closed and np.lib.NumpyVersion(np.__version__) < "2.1.0":
        pytest.skip("NumPy 2.0 cannot import numpy.f2py, which Numba loads, without sys.stderr")
    path, verdict = tmp_path / "script.py", tmp_path / "verdict"
    path.write_text(HEADER + textwrap.dedent(SCRIPT.replace("PREFIX", str(prefix))))
    command = 'exec "$0" "$1" "$2" ' + " ".join(f"{fd}>&-" for fd in closed)
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, str(path), str(verdict)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert verdict.read_text() == "all is well"
    assert done.stdout.count(b"printed") == (0 if 1 in closed else 8)
    assert done.stderr.count(b"complained") == (0 if 2 in closed else 8)


LATER = """
    @synk.function(outputs="sum")
    def total(x):
        return x.sum()

    for fd in CLOSED:
        os.close(fd)
    before = synk.data(ROWS)  # the next descriptor, which ranks get by number
    for _ in range(2):
        with synk.fork(2, device="cpu") as world:
            after = synk.data(ROWS)
            assert total(before) == total(after) == ROWS.sum()
    open(sys.argv[1], "w").write("all is well")
"""


@pytest.mark.parametrize("closed", [*whole((0,)), (0, 1, 2)], ids=str)
def test_streams_that_the_script_closes_itself(closed, maker, tmp_path):
    path, verdict = tmp_path / "script.py", tmp_path / "verdict"
    path.write_text(HEADER + textwrap.dedent(LATER.replace("CLOSED", str(closed))))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, path, verdict],
        env=environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert verdict.exists(), done.stderr.decode()
