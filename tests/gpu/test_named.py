"""What ranks do while they are traced, under its name for NVIDIA's profilers (NVTX)."""

import numpy as np
import pytest
from numba import cuda

import synknumba as synk

pytestmark = pytest.mark.gpu


@synk.function(outputs=None)
def note_ranges():
    """Keeps the names of the ranges that begin, and a stroke for each that ends."""
    from cupy.cuda import nvtx

    assert nvtx.available
    nvtx.told = told = []
    push, pop = nvtx.RangePush, nvtx.RangePop
    nvtx.RangePush = lambda name: (told.append(name), push(name))
    nvtx.RangePop = lambda: (told.append("/"), pop())


@synk.function(outputs="gather")
def noted():
    """Returns what was kept."""
    from cupy.cuda import nvtx

    return np.array(["|".join(nvtx.told)], "S4000")


@synk.parallel(inout=("y",))
@cuda.jit
def scale(x, y, factor):
    """Stores factor · x in y."""
    i = cuda.grid(1)
    if i < x.size:
        y[i] = factor * x[i]


def test_rounds_and_their_steps_have_ranges():
    x, y, longer = (
        synk.data(np.arange(1000.0)),
        synk.data(np.zeros(1000)),
        synk.data(np.zeros(2000)),
    )
    with synk.fork(1, device="cuda"):
        scale(x, y, 2.0)
        note_ranges()
        scale(x, y, 3.0)  # not traced
        with synk.trace():
            scale(synk.data(np.arange(2000.0)), longer, 4.0)  # other arrays, so Python runs it
        (text,) = noted().tolist()
    np.testing.assert_array_equal(longer.data, 4.0 * np.arange(2000.0))
    names = text.decode().split("|")
    assert names[0] == "scale"
    assert "kernel" in names
    assert names.count("/") * 2 == len(names)
