"""`synknumba.simt.cuda` in place of `numba.cuda`, where Numba has none and beside it."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest

from synknumba import simt
from synknumba._errors import DeviceError, KernelError

MISSING = """
import sys

class Missing:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.startswith(("numba.cuda", "numba_cuda")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing)
"""

PROGRAM = """
import numpy as np
import synknumba as synk
from numba import float64
from synknumba import simt
from synknumba.simt import cuda
from synknumba.simt.cuda import libdevice, grid as position

@cuda.jit(device=True)
def twice(x):
    return 2 * x

@cuda.jit
def roots(x, y):
    part = cuda.shared.array(32, float64)
    i, t = position(1), cuda.threadIdx.x
    part[t] = twice(x[i]) if i < x.size else 0
    cuda.syncthreads()
    if i < x.size:
        y[i] = libdevice.sqrt(part[t])
        cuda.atomic.add(y, x.size, cuda.popc(7))

@simt.jit
def outside(x):
    x[cuda.threadIdx.x + 1] = 0

@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def total(x, total):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(total, 0, twice(x[i]))

@synk.expectation
def second_moment(x):
    return x * x

@synk.vectorize
def successor(x):
    return x + 1

x = np.arange(10.0)
expected = [*np.sqrt(2 * x), 3 * 10]
for launcher in roots, simt.debug(roots), simt.check(roots):
    y = np.zeros(11)
    launcher[1, 32](cuda.to_device(x), cuda.Out(y))
    np.testing.assert_allclose(y, expected)
try:
    simt.check(outside)[1, 3](np.zeros(3))
except simt.BoundsError as error:
    print("found", "index [3] is outside of the array x" in str(error))
with simt.as_cuda():
    from numba import cuda as numbas
    print("device", numbas.current_context().device.id)
with synk.fork(2):
    print("total", total(x))
    print("moment", second_moment(x).mean)
    print("vectorized", successor(x).sum())
print("absent" if "numba.cuda" not in sys.modules else "present")
"""


@pytest.mark.parametrize("absent", [True, pytest.param(False, marks=pytest.mark.whole)])
def test_a_program_runs_on_two_ranks(absent, tmp_path):
    script = tmp_path / "script.py"
    script.write_text((MISSING if absent else "import sys\n") + PROGRAM)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == [
        "found True",
        "device 0",
        "total 90.0",
        "moment 28.5",
        "vectorized 55.0",
        "absent" if absent else "present",
    ]


def test_what_needs_numba_cuda_says_so_where_there_is_none(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        MISSING
        + textwrap.dedent(
            """
            from synknumba import DeviceError, simt
            from synknumba.simt import cuda

            for use in (
                lambda: simt.random_states(3, 0),
                lambda: simt.vectorize(["float64(float64)"])(lambda x: x),
            ):
                try:
                    use()
                except DeviceError as error:
                    print(error)
            try:
                cuda.grid(1)
            except Exception as error:
                print(type(error).__name__, error)
            """
        )
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    states, ufunc, outside = done.stdout.splitlines()
    assert states.startswith("simt.random_states needs numba.cuda.random")
    assert ufunc.startswith("simt.vectorize or guvectorize needs numba.cuda.deviceufunc")
    assert outside == "KernelError cuda.grid() works in kernels only"


def test_both_modules_have_the_same_members_for_kernels():
    from numba import cuda

    assert simt.cuda.grid is cuda.grid
    assert simt.cuda.atomic is cuda.atomic
    assert simt.cuda.jit is not cuda.jit

    @simt.jit
    def mixed(x):
        x[simt.cuda.threadIdx.x] = cuda.blockDim.x

    x = np.zeros(4)
    mixed[1, 4](x)
    assert x.tolist() == [4.0] * 4


def test_members_that_are_missing():
    with pytest.raises(AttributeError, match="no gird"):
        _ = simt.cuda.gird
    with pytest.raises(DeviceError, match="compiles to PTX"):
        simt.cuda.compile_ptx(lambda: None, ())

    @simt.jit
    def misspelt(x):
        x[0] = simt.cuda.gird(1)

    with pytest.raises(KernelError, match=r"cuda has no gird; did you mean cuda.grid\?"):
        misspelt.check()
