"""Errors end in the line of the script: the package's own frames are left out, unless the environment asks for them."""

import traceback
from pathlib import Path

import numpy as np
import pytest
from numba import cuda

import synknumba as synk

PACKAGE = str(Path(synk.__file__).parent)


@synk.function(outputs="sum")
def summed(x, scale):
    if scale < 0:
        raise ValueError("negative")
    return scale * x.sum()


@synk.sequence
def twice(x):
    return summed(x, 1.0), summed(x, "two", 3)


@synk.sequence
def outer(x):
    return twice(x)


@synk.sequence
def drawn(x):
    return summed(x, np.random.random())  # noqa: NPY002


@synk.expectation
def mean_of(i):
    return i + 1.0


def rows_of(arguments):
    raise synk.PartitionError("told by the script")


@synk.parallel(outputs={"out": synk.output(None, shape=rows_of)})
@cuda.jit
def shaped(x, out):
    out[0] = x[0]


def of_a_call():
    summed(np.ones(4))


def on_ranks():
    summed(np.ones(4), -1.0)


def of_a_future():
    summed.submit(np.ones(4), -1.0).result()


def of_submit():
    summed.submit(np.ones(4))


def of_a_plan():
    summed.plan(np.ones(4))


def of_a_check():
    summed.check(np.ones(4))


def of_a_sequence():
    outer(np.ones(4))


def of_a_collective():
    synk.all_reduce(synk.variable(np.ones(3)), "summ")


def of_a_decorator():
    synk.function(outputs="summ")(lambda x: x)


def of_an_option():
    synk.function(output="sum")


def of_a_shape():
    shaped(np.ones(4))


def of_a_draw():
    drawn(np.ones(4))


def of_a_launch():
    shaped[-1, 2](np.ones(4))


def of_an_expectation():
    mean_of()


def of_a_value():
    synk.variable(np.zeros(2)).set_value("text")


def of_fork():
    synk.fork(-1)


CASES = [
    of_a_call,
    on_ranks,
    of_a_future,
    of_submit,
    of_a_plan,
    of_a_check,
    of_a_sequence,
    of_a_collective,
    of_a_decorator,
    of_an_option,
    of_a_shape,
    of_a_draw,
    of_a_launch,
    of_an_expectation,
    of_a_value,
    of_fork,
]
BETWEEN = {of_a_sequence: ["outer", "twice"], of_an_option: ["_checked"]}  # frames of the script, and of whoever raises


@pytest.fixture(scope="module", autouse=True)
def world():
    with synk.fork(2, device="cpu") as world:
        yield world


@pytest.mark.parametrize("case", CASES, ids=lambda one: one.__name__)
def test_frames(case, monkeypatch):
    monkeypatch.delenv("SYNKNUMBA_FULL_TRACEBACK", raising=False)
    with pytest.raises(synk.SynkError) as caught:
        case()
    assert [one.name for one in traceback.extract_tb(caught.tb)] == ["test_frames", case.__name__, *BETWEEN.get(case, [])]
    monkeypatch.setenv("SYNKNUMBA_FULL_TRACEBACK", "1")
    with pytest.raises(synk.SynkError) as caught:
        case()
    assert any(one.filename.startswith(PACKAGE) for one in traceback.extract_tb(caught.tb))
