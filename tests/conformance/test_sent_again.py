"""A function whose first call failed is sent again with its next call: the script may have
defined what was missing.
"""

import copy
import itertools
import linecache

import numpy as np
import pytest
from numba import cuda

import synknumba as synk
from synknumba._call import distribute
from synknumba._types import WeakTable
from tests.quick import whole

X = np.arange(1.0, 9.0)
CELLS = itertools.count()


@pytest.fixture(autouse=True)
def world():
    with synk.fork(2, device="cpu") as made:
        yield made


def define(text, **known):
    """The namespace of a script's cell, in which functions find their globals."""
    names = {"synk": synk, "cuda": cuda, "np": np, "__name__": "cell", **known}
    run_cell(text, names)
    return names


def run_cell(text, names):
    name = f"<cell {next(CELLS)}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    exec(compile(text, name, "exec"), names)


KINDS = {
    "kernel": """
@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def run(x, total):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(total, 0, SC * x[i])
""",
    "function": """
@synk.function(outputs="sum")
def run(x):
    return SC * x.sum()
""",
    "expectation": """
run = synk.expectation(lambda x: SC * x)
""",
}


def total(kind, result):
    return float(result.mean) * len(X) if kind == "expectation" else float(result)


@pytest.mark.parametrize("kind", ["kernel", "function", *whole("expectation")])
def test_what_was_undefined(kind):
    names = define(KINDS[kind])
    for _ in range(2):
        with pytest.raises(synk.SynkError, match="SC"):
            names["run"](X)
    names["SC"] = 3.0
    assert total(kind, names["run"](X)) == 3 * X.sum()
    names["SC"] = 4.0
    assert total(kind, names["run"](X)) == 4 * X.sum()
    # another program of the same function
    assert total(kind, names["run"](X[:6].astype(np.float32))) != 0


def test_a_helper_defined_anew():
    text = "def helper(x):\n    return x + None\n"
    names = define(
        text + '\n@synk.function(outputs="sum")\ndef run(x):\n    return helper(x).sum()\n'
    )
    with pytest.raises(synk.RankError):
        names["run"](X)
    run_cell("def helper(x):\n    return x + 1\n", names)
    assert names["run"](X) == (X + 1).sum()


def test_sent_by_distribute(monkeypatch):
    monkeypatch.setattr(distribute, "_alive", WeakTable())  # without the functions of other tests
    names = define(KINDS["function"])
    synk.distribute()
    with pytest.raises(synk.RankError):
        names["run"](X)
    names["SC"] = 2.0
    assert names["run"](X) == 2 * X.sum()


def test_a_failure_after_a_success():
    names = define(
        '@synk.function(outputs="sum")\ndef run(x):\n    assert x[0] >= '
        "0\n    return SC * x.sum()\n",
        SC=2.0,
    )
    assert names["run"](X) == 2 * X.sum()
    names["SC"] = 5.0
    with pytest.raises(synk.RankError):
        names["run"](-X)
    assert names["run"](X) == 5 * X.sum()
    names["SC"] = 2.0
    assert names["run"](X) == 2 * X.sum()


@synk.function
def scale(w, by):
    if by is None:
        raise ValueError("no factor")
    w *= by


@synk.sequence
def scale_often(w, by):
    scale(w, by)


def test_a_sequence_that_has_the_function():
    w = synk.variable(np.ones(3))
    scale_often(w, 2.0, times=2)
    with pytest.raises(synk.RankError, match="no factor"):
        scale(w, None)
    scale(w, 0.5)
    scale_often(w, 2.0, times=2)
    np.testing.assert_array_equal(w.get_value(), np.full(3, 8.0))


def test_copies_are_the_function_itself():
    """A copy that was collected would make the ranks drop what the original refers to."""

    @synk.expectation
    def squares(x):
        return x * x

    @synk.function(outputs="sum")
    def total(x):
        return x.sum()

    for f in (squares, total):
        assert copy.copy(f) is f
        assert copy.deepcopy([f])[0] is f
