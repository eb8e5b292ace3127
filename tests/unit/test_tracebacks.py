"""Errors end in the line of the script: the package's own frames are left out, unless the
environment asks for them.
"""

import traceback
import warnings
from pathlib import Path

import numpy as np
import pytest
from numba import cuda

import synknumba as synk
from synknumba import simt
from synknumba._world import open_world

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


def of_a_body():
    @synk.sequence
    def grown(x):
        LOG.append(1)
        summed(x, 1.0)


def of_times():
    twice(np.ones(4), times=1e3)


def of_every():
    twice(np.ones(4), times=10, every=11)


def of_until():
    twice(np.ones(4), times=10, until=True)


def of_an_array():
    np.asarray(synk.scatter(synk.variable(np.ones(4))))


def of_a_length():
    len(synk.scatter(synk.variable(np.ones(4))))


def of_a_number():
    float(synk.scatter(synk.variable(np.ones(4))))


def of_an_item():
    synk.variable({"h": np.ones(4)})["h"]


def of_arithmetic():
    synk.variable(np.ones(4)) + 1


def of_as_serial():
    summed.as_serial(np.ones(4))


def of_inputs():
    summed.build_inputs(1, 2, 3)


def of_a_static():
    synk.static([1])


def of_a_snapshot():
    synk.snapshot(1)


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
    of_a_body,
    of_times,
    of_every,
    of_until,
    of_an_array,
    of_a_length,
    of_a_number,
    of_an_item,
    of_arithmetic,
    of_as_serial,
    of_inputs,
    of_a_static,
    of_a_snapshot,
]
# frames of the script, and of whoever raises
BETWEEN = {
    of_a_sequence: ["outer", "twice"],
    of_an_option: ["_checked"],
}
LOG = []


def of_a_world():
    twice(np.ones(4))


def of_a_function():
    summed(np.ones(4), 1.0)


@synk.sequence
def missing(x):
    summed(x, LOG[7])


def of_the_script_in_a_body():
    missing(np.ones(4))


def of_the_script_in_an_inner_body():
    synk.sequence(lambda x: missing(x, times=2))(np.ones(4))


def of_the_script_in_a_submitted_body():
    missing.submit(np.ones(4))


def of_the_script_in_until():
    synk.sequence(lambda x: summed(x, 1.0))(np.ones(4), times=5, until=lambda total: LOG[7])


def of_the_script_in_the_condition_of_an_expectation():
    mean_of(synk.arange(100), until=lambda estimate: LOG[7], min_rows=10)


def of_the_script_beside_an_exchange():
    synk.exchange(synk.scatter(synk.variable(np.ones(4)), halo=1), during=lambda: LOG[7])


OF_THE_SCRIPT = {  # errors of the script's own functions, with the frames of these
    of_the_script_in_a_body: ["missing"],
    of_the_script_in_an_inner_body: ["<lambda>", "missing"],
    of_the_script_in_a_submitted_body: ["missing"],
    of_the_script_in_until: ["<lambda>"],
    of_the_script_in_the_condition_of_an_expectation: ["<lambda>"],
    of_the_script_beside_an_exchange: ["<lambda>"],
}


@pytest.fixture(scope="module", autouse=True)
def world():
    with synk.fork(2, device="cpu") as world:
        yield world


@pytest.mark.parametrize("case", CASES, ids=lambda one: one.__name__)
def test_frames(case, monkeypatch):
    monkeypatch.delenv("SYNKNUMBA_FULL_TRACEBACK", raising=False)
    with pytest.raises(synk.SynkError) as caught:
        case()
    assert [one.name for one in traceback.extract_tb(caught.tb)] == [
        "test_frames",
        case.__name__,
        *BETWEEN.get(case, []),
    ]
    monkeypatch.setenv("SYNKNUMBA_FULL_TRACEBACK", "1")
    with pytest.raises(synk.SynkError) as caught:
        case()
    assert any(one.filename.startswith(PACKAGE) for one in traceback.extract_tb(caught.tb))


@pytest.mark.parametrize("case", [of_a_world, of_a_function], ids=lambda one: one.__name__)
def test_frames_without_a_world(case, monkeypatch):
    monkeypatch.setattr(open_world.CURRENT, "world", None)
    with pytest.raises(synk.WorldError, match="no world is open") as caught:
        case()
    assert [one.name for one in traceback.extract_tb(caught.tb)] == [
        "test_frames_without_a_world",
        case.__name__,
    ]


@pytest.mark.parametrize("case", OF_THE_SCRIPT, ids=lambda one: one.__name__)
def test_frames_of_the_scripts_own_errors(case):
    with pytest.raises(IndexError) as caught:
        case()
    names = [one.name for one in traceback.extract_tb(caught.tb)]
    assert names == ["test_frames_of_the_scripts_own_errors", case.__name__, *OF_THE_SCRIPT[case]]


@simt.jit(debug=True)
def outside(x):
    x[cuda.grid(1) + 4] = 1.0


@synk.sequence
def beyond(x, n):
    return summed(x, n * 10**18)


def test_frames_of_compiled_code():
    with pytest.raises(IndexError) as caught:
        outside[1, 1](np.ones(4))
    assert [one.line for one in traceback.extract_tb(caught.tb)][1:] == [
        "x[cuda.grid(1) + 4] = 1.0"
    ]
    with pytest.raises(synk.RankError, match="does not fit in 64 bits") as told:
        beyond(np.ones(4), 10)
    assert "return summed(x, n * 10**18)" in told.value.failures[0].traceback
    assert PACKAGE not in str(told.value)


def test_an_error_of_python_in_the_package_keeps_its_frames(monkeypatch):
    monkeypatch.setattr(synk.Function, "_call", None)
    with pytest.raises(TypeError) as caught:
        summed(np.ones(4), 1.0, num_slices=2)
    assert traceback.extract_tb(caught.tb)[-1].filename.startswith(PACKAGE)


@synk.function(outputs="mean")
def mean_on_a_rank(x):
    return x.mean()


@synk.sequence
def means(x):
    return mean_on_a_rank(x)


@synk.sequence
def more_means(x):
    return means(x, times=2)


@pytest.mark.parametrize(
    "call", [mean_on_a_rank, means, more_means, mean_on_a_rank.submit], ids=str
)
def test_warnings_name_the_line_of_the_call(call, monkeypatch):
    monkeypatch.setattr(mean_on_a_rank, "_is_new", True)
    mean_on_a_rank._plans.forget_all()
    x = synk.scatter(synk.variable(np.ones(5)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = call(x)
    if isinstance(made, synk.Future):
        made.result()
    (one,) = caught
    body = means.py_func if call in (means, more_means) else test_warnings_name_the_line_of_the_call
    first = body.__code__.co_firstlineno
    assert one.filename == __file__
    assert first < one.lineno < first + 12
