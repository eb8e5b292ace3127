"""What kernels print is shown, all of it, however often they are called."""

import subprocess
import sys
from collections import Counter

import pytest

pytestmark = pytest.mark.gpu

CALLS = 50_000  # megabytes of lines, where CUDA keeps one until it shows them

SCRIPT = rf'''
import numpy as np
from numba import cuda
import synknumba as synk


@cuda.jit(device=True)
def tell(i):
    print("told of", i)


SOURCE = r"""
extern "C" __device__ int foreign(int *returned, int i) {{
    printf("in C %d\n", i);
    *returned = i;
    return 0;
}}
"""
foreign = cuda.declare_device("foreign", "int32(int32)", link=cuda.CUSource(SOURCE))


@synk.parallel(grid=1, block=1, outputs={{"total": synk.output("sum", shape=())}})
@cuda.jit
def with_result(x, total):
    tell(x.shape[0])
    cuda.atomic.add(total, 0, x[0])


@synk.parallel(grid=1, block=1)
@cuda.jit
def without(x):
    print("alone", x.shape[0])


@synk.parallel(grid=1, block=1)
@cuda.jit
def by_linked_code(x):
    foreign(x.shape[0])


if __name__ == "__main__":
    with synk.fork(devices=[0]):  # lines of several ranks may be cut by one another, as those of any processes
        x = synk.data(np.ones(10))
        for _ in range({CALLS}):
            assert with_result(x) == 1
        for _ in range({CALLS}):
            without(x)
        for _ in range({CALLS}):
            by_linked_code(x)
'''  # noqa: E501


def test_nothing_that_kernels_print_is_lost(tmp_path):
    script = tmp_path / "prints.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert Counter(done.stdout.splitlines()) == dict.fromkeys(
        ("told of 10", "alone 10", "in C 10"), CALLS
    )
