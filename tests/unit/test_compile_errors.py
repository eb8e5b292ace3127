"""Errors of Numba in users' functions: the line with a caret, the reason and the way out, in few lines."""

import math
import re
import subprocess
import sys
import traceback
from itertools import pairwise

import numba
import numpy as np
import pytest
from numba import cuda

import synknumba as synk
from tests.environment import environment

X = np.arange(10.0)


@pytest.fixture(scope="module", autouse=True)
def world():
    with synk.fork(2, device="cpu") as world:
        yield world


def plain_helper(v):
    return v * 2


@cuda.jit(device=True)
def misspelt_on_a_device(v):
    return math.epx(v)


def misspelt(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = math.epx(x[i])


def misspelt_inside(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = misspelt_on_a_device(x[i])


def undecorated(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = 1.0 + plain_helper(x[i])


def wrong_dtype(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = 1.0 + (x[i] & 3)


def unknown_attribute(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = x.sizes[i]


def undefined(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = 2 * nowhere  # noqa: F821


CASES = [  # a kernel, the text under the caret, what the message says
    (misspelt, "math.epx", "'math' has no attribute 'epx'", "Did you mean math.exp?"),
    (misspelt_inside, "math.epx", "misspelt_on_a_device (", "Did you mean math.exp?"),
    (undecorated, "plain_helper", "plain_helper (", "@cuda.jit(device=True)"),
    (wrong_dtype, "x[i] & 3", "no operator & for float64 and 3", "Convert an operand"),
    (unknown_attribute, "x.sizes", "'sizes'", "subset of Python"),
    (undefined, "nowhere", "'nowhere'", "subset of Python"),
]


def marked(message: str) -> str:
    """The part of the source line that a message underlines."""
    above, marks = next((a, b) for a, b in pairwise(message.splitlines()) if re.fullmatch(r" +\^+", b))
    return above[marks.index("^") : len(marks)]


@pytest.mark.parametrize(("function", "under", "reason", "way_out"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_kernels(function, under, reason, way_out):
    kernel = synk.parallel(inout=("y",))(cuda.jit(function))
    with pytest.raises(synk.KernelError) as caught:
        kernel(X, np.zeros(10))
    message = str(caught.value)
    assert marked(message) == under
    assert reason in message
    assert way_out in message
    assert __file__ in message.splitlines()[0]
    assert "SYNKNUMBA_FULL_TRACEBACK=1" in message
    assert len(message.splitlines()) == 4
    assert len("".join(traceback.format_exception(caught.value)).splitlines()) < 40
    assert "raised on rank 0, 1" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    "made",
    [
        synk.vectorize,
        lambda f: synk.vectorize(f, signatures="float64(float64)"),
        synk.expectation,
    ],
    ids=["vectorize", "vectorize with a signature", "expectation"],
)
def test_functions_of_rows(made):
    def slope(v):
        return math.epx(v)

    def calls_plain(v):
        return plain_helper(v)

    def bits(v):
        return v & 3

    for function, under in ((slope, "math.epx"), (calls_plain, "plain_helper"), (bits, "v & 3")):
        with pytest.raises(synk.SynkError) as caught:
            made(function)(X)
        assert marked(str(caught.value)) == under
        assert len(str(caught.value).splitlines()) == 4
        assert len("".join(traceback.format_exception(caught.value)).splitlines()) < 45


def test_a_compiled_function_in_an_array_function():
    @numba.njit
    def bits(v):
        return v & 3

    @synk.function(outputs="sum")
    def total(x):
        return bits(x[0])

    with pytest.raises(synk.KernelError, match="no operator & for float64 and 3") as caught:
        total(X)
    assert marked(str(caught.value)) == "v & 3"


def test_an_attribute_that_python_does_not_find_stays_an_error_of_python():
    @synk.function(outputs="sum")
    def total(x):
        return math.epx(x[0])

    with pytest.raises(synk.RankError, match="AttributeError") as caught:
        total(X)
    assert isinstance(caught.value.__cause__, AttributeError)


def test_a_users_op():
    def worst(a, b):
        return math.epx(a) + b

    @synk.function(outputs=worst)
    def first(x):
        return x[0]

    with pytest.raises(synk.ReductionError, match="op worst cannot be compiled") as caught:
        first(X)
    assert marked(str(caught.value)) == "math.epx"
    assert len("".join(traceback.format_exception(caught.value)).splitlines()) < 40


SCRIPT = """
import math, numpy as np
from numba import cuda
import synknumba as synk

@synk.parallel(inout=("y",))
@cuda.jit
def bits(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = x[i] & 3

with synk.fork(1, device="cpu"):
    bits(np.zeros(3), np.zeros(3))
"""


@pytest.mark.parametrize("full", ["0", "1"])
def test_numbas_own_text_is_kept_on_request(tmp_path, full):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    env = environment(SYNKNUMBA_FULL_TRACEBACK=full)
    run = subprocess.run([sys.executable, path], env=env, capture_output=True, text=True, check=False, timeout=100)
    assert run.returncode == 1
    assert ("candidate implementations" in run.stderr) == (full == "1")
    assert (len(run.stderr.splitlines()) < 35) == (full == "0")
