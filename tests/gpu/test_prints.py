"""What kernels print is shown, all of it, however often they are called."""

import subprocess
import sys
from collections import Counter

import pytest

pytestmark = pytest.mark.gpu

CALLS = 50_000  # megabytes of lines, where CUDA keeps one until it shows them

SCRIPT = f"""
import numpy as np
from numba import cuda
import synknumba as synk


@cuda.jit(device=True)
def tell(i):
    print("told of", i)


@synk.parallel(grid=1, block=1, outputs={{"total": synk.output("sum", shape=())}})
@cuda.jit
def with_result(x, total):
    tell(x.shape[0])
    cuda.atomic.add(total, 0, x[0])


@synk.parallel(grid=1, block=1)
@cuda.jit
def without(x):
    print("alone", x.shape[0])


if __name__ == "__main__":
    with synk.fork(devices=[0]):  # lines of several ranks may be cut by one another, as those of any processes
        x = synk.data(np.ones(10))
        for _ in range({CALLS}):
            assert with_result(x) == 1
        for _ in range({CALLS}):
            without(x)
"""


def test_nothing_that_kernels_print_is_lost(tmp_path):
    script = tmp_path / "prints.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert Counter(done.stdout.splitlines()) == {"told of 10": CALLS, "alone 10": CALLS}
