"""Values from outside that change between calls: numbers, texts, tuples and functions, wherever
a function reads them.
"""

import enum
import gc
import importlib
import sys
import warnings
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda

import synknumba as synk

X = np.arange(1.0, 9.0)
SCALE = 1.0


class Mode(enum.Enum):
    PLAIN = 1
    SQUARED = 2


@pytest.fixture(autouse=True)
def world():
    with synk.fork(2, device="cpu") as forked:
        yield forked


@cuda.jit(device=True)
def scaled_in_a_kernel(x):
    return SCALE * x


def scaled(x):
    return SCALE * x


@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def kernel(x, total):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(total, 0, SCALE * x[i])


@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def kernel_by_helper(x, total):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(total, 0, scaled_in_a_kernel(x[i]))


@synk.function(outputs="sum")
def function(x):
    return SCALE * x.sum()


@synk.function(outputs="sum")
def function_by_helper(x):
    return scaled(x).sum()


@synk.vectorize
def elementwise(x):
    return scaled_in_a_kernel(x)


@synk.expectation
def expectation(x):
    return SCALE * x


@synk.sequence
def sequence(x):
    return kernel(x)


@synk.sequence
def sequence_of_rows(x, v):
    elementwise(x, out=v)


def by_sequence_of_rows(x):
    variable = synk.variable(np.zeros(len(x)))
    synk.scatter(variable)
    sequence_of_rows(x, variable)
    return np.sum(synk.gather(variable, nd_up=0))


CALLS = {
    "kernel": kernel,
    "kernel_by_helper": kernel_by_helper,
    "configured": kernel[4, 32],
    "function": function,
    "function_by_helper": function_by_helper,
    "submitted": lambda x: function.submit(x).result(),
    "vectorize": lambda x: elementwise(x).sum(),
    "expectation": lambda x: expectation(x).mean * len(x),
    "sequence": sequence,
    "sequence of rows": by_sequence_of_rows,
}


@pytest.mark.parametrize("call", [*CALLS.values()], ids=[*CALLS])
def test_a_number(monkeypatch, call):
    data = synk.data(X)
    for scale in (2.0, 3.0, 3.0, 2.0, 4):
        monkeypatch.setitem(globals(), "SCALE", scale)
        assert call(data) == pytest.approx(scale * X.sum(), rel=1e-12)
        assert call(data) == pytest.approx(scale * X.sum(), rel=1e-12)


def test_the_gradient_of_a_training_step(monkeypatch):
    def gradient(x, w):
        return SCALE * x.sum(), np.zeros(1)

    step = synk.train.step(gradient, np.zeros(1), synk.optim.sgd(0.1))
    for scale in (2.0, 3.0, 2.0):
        monkeypatch.setitem(globals(), "SCALE", scale)
        assert step(X) == pytest.approx(scale * X.mean())
        assert step.submit(X).result() == pytest.approx(scale * X.mean())


def made(value):
    def read(default=value, *, by_keyword=value):
        return value, default, by_keyword

    def function(x):
        return "; ".join(map(repr, (value, *read())))

    def rebind(new):
        nonlocal value
        value = new
        read.__defaults__, read.__kwdefaults__["by_keyword"] = (new,), new

    return synk.function(function, outputs=None), rebind


@pytest.mark.parametrize(
    "values",
    [
        (1, 1.0, True),
        (0.0, -0.0, np.float64(0.0), np.float32(0.0)),
        ("a", b"a", None),
        ((1, ("a", 2.0)), (1, ("a", 3.0))),
        (Mode.PLAIN, Mode.SQUARED),
        (np.dtype("f4"), np.dtype("f8")),
        (1j, complex("nan"), 1j),
    ],
    ids=str,
)
def test_kinds_of_values_in_closures_and_defaults(values):
    function, rebind = made(values[0])
    for value in (*values, *values):
        rebind(value)
        assert [str(told) for told in function(X)] == ["; ".join([repr(value)] * 4)] * 2


WEIGHTS = np.ones(8)


@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def weighted_kernel(first, x, total):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(total, 0, WEIGHTS[first + i] * x[i])


@synk.function(outputs="sum")
def weighted(first, x):
    return (WEIGHTS[first : first + len(x)] * x).sum()


@synk.sequence
def weighted_sequence(x):
    return weighted_kernel(synk.OFFSET, x)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: weighted_kernel(synk.OFFSET, x),
        lambda x: weighted(synk.OFFSET, x),
        weighted_sequence,
    ],
    ids=["kernel", "function", "sequence"],
)
def test_another_array(monkeypatch, call):
    for weights in (WEIGHTS, np.arange(8.0), WEIGHTS, np.full(8, 3.0)):
        monkeypatch.setitem(globals(), "WEIGHTS", weights)
        assert call(X) == pytest.approx((weights * X).sum())
        assert call(X) == pytest.approx((weights * X).sum())


def test_an_array_in_place_of_a_number_and_back(monkeypatch):
    for scale in (2.0, np.full(4, 3.0), 2.0, np.full(4, 5.0)):
        monkeypatch.setitem(globals(), "SCALE", scale)
        assert function(X) == pytest.approx((scale * X.reshape(2, 4)).sum())


def test_a_function_of_a_library(monkeypatch):
    monkeypatch.setitem(globals(), "transform", np.sin)

    @synk.function(outputs="sum")
    def transformed(x):
        return transform(x).sum()  # noqa: F821  # set in the globals

    for of_library in (np.sin, np.cos, np.sin, np.sqrt):
        monkeypatch.setitem(globals(), "transform", of_library)
        assert transformed(X) == pytest.approx(of_library(X).sum())


def test_another_object(monkeypatch):
    model = SimpleNamespace(scale=1.0)

    @synk.function(outputs="sum")
    def scaled_by_model(x):
        return model.scale * x.sum()

    for scale in (1.0, 2.0, 3.0):
        model = SimpleNamespace(scale=scale)
        assert scaled_by_model(X) == scale * X.sum()


def test_another_module():
    doubling = SimpleNamespace(sqrt=lambda x: 2 * x)
    backend = np

    @synk.function(outputs="sum")
    def by_backend(x):
        return backend.sqrt(x).sum()

    for backend in (np, doubling, np, np.emath):
        assert by_backend(X) == pytest.approx(backend.sqrt(X).sum())


def test_a_function_keeps_no_array_alive():
    weights = np.full(8, 2.0)

    @synk.function(outputs="sum")
    def weighted_here(first, x):
        return (weights[first : first + len(x)] * x).sum()

    assert weighted_here(synk.OFFSET, X) == 2 * X.sum()
    reference = weakref.ref(weights)
    weights = np.ones(8)
    gc.collect()
    assert reference() is None
    assert weighted_here(synk.OFFSET, X) == X.sum()


def test_a_helper_that_is_defined_anew(monkeypatch):
    assert function_by_helper(X) == SCALE * X.sum()
    monkeypatch.setitem(globals(), "scaled", lambda x: 7 * x)
    assert function_by_helper(X) == 7 * X.sum()
    monkeypatch.undo()
    assert function_by_helper(X) == SCALE * X.sum()


def test_values_that_came_again_are_not_sent_again(monkeypatch, world):
    data, sent = synk.data(X), []
    for scale in (2.0, 3.0, 2.0, 3.0, 2.0):
        monkeypatch.setitem(globals(), "SCALE", scale)
        assert function(data) == scale * X.sum()
        sent.append(len(world._engine.holdings.shipped))
    assert sent[1:] == sent[1:2] * 4


def test_equal_values_in_other_objects_are_not_sent_again(monkeypatch, world):
    monkeypatch.setitem(globals(), "SCALE", 2.5)
    function(X)
    sent = len(world._engine.holdings.shipped)
    monkeypatch.setitem(globals(), "SCALE", float("2.5"))
    assert function(X) == 2.5 * X.sum()
    assert len(world._engine.holdings.shipped) == sent


def test_a_value_for_each_call_is_warned_of_once(monkeypatch):
    offset = 0.0

    @synk.function(outputs="sum")
    def shifted(x):
        return (x + offset).sum()

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for number in range(20):
            offset = float(number)
            assert shifted(X) == (X + number).sum()
    assert [(warning.category, warning.filename) for warning in seen] == [
        (RuntimeWarning, __file__)
    ]
    assert "shifted reads offset" in str(seen[0].message)
    assert "as an argument" in str(seen[0].message)


def test_an_op_that_reads_a_value_is_refused_when_it_has_changed(monkeypatch):
    def larger(a, b):
        return max(a, b) + 0 * SCALE

    @synk.function(outputs=larger)
    def largest(x):
        return x.max()

    assert largest(X) == 8
    monkeypatch.setitem(globals(), "SCALE", 12.0)
    with pytest.raises(synk.ArgumentError, match=r"op of largest reads SCALE.*another op"):
        largest(X)


MODULE = """
from synknumba_test_settings import RATE
import synknumba_test_settings as settings
import synknumba as synk
from numba import cuda

def helper(x):
    return RATE * x

@synk.function(outputs="sum")
def by_name(x):
    return RATE * x.sum()

@synk.function(outputs="sum")
def by_helper(x):
    return helper(x).sum()

@synk.function(outputs="sum")
def by_module(x):
    return settings.RATE * x.sum() + settings.more(x)

@synk.function(outputs="sum")
def by_two_modules(x):
    return settings.constants.RATE * x.sum()

@cuda.jit(device=True)
def device_helper(x):
    return RATE * x

@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def by_device_function(x, total):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(total, 0, device_helper(x[i]) + settings.on_device(x[i]))

@synk.function(outputs="sum")
def by_table(x):
    return settings.TABLE[0] * x.sum()
"""
CONSTANTS = "RATE = 1.0"
SETTINGS = """
import numpy as np
import synknumba_test_constants as constants
from numba import cuda
RATE, MORE = 1.0, 0.0
TABLE = np.ones(1)
def more(x):
    return MORE
@cuda.jit(device=True)
def on_device(x):
    return MORE * x
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "synknumba_test_settings.py").write_text(SETTINGS)
    (tmp_path / "synknumba_test_functions.py").write_text(MODULE)
    (tmp_path / "synknumba_test_constants.py").write_text(CONSTANTS)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("synknumba_test_functions")
    for name in ("synknumba_test_settings", "synknumba_test_functions", "synknumba_test_constants"):
        del sys.modules[name]


def test_values_in_modules(module):
    synk.close()
    synk.fork(2, device="cpu")  # as functions of modules go by reference
    settings = module.settings
    for rate in (2.0, 3.0, 2.0, 2.0):
        module.RATE = settings.RATE = settings.constants.RATE = rate
        assert module.by_name(X) == rate * X.sum()
        assert module.by_helper(X) == rate * X.sum()
        assert module.by_two_modules(X) == rate * X.sum()
        assert module.by_module(X) == rate * X.sum() + 2 * settings.MORE
    settings.MORE = 10.0
    assert module.by_module(X) == 2.0 * X.sum() + 20.0
    module.RATE = 5.0
    assert module.by_helper(X) == 5 * X.sum()
    module.RATE = 2.0
    assert module.by_name(X) == 2 * X.sum()
    assert module.by_helper(X) == 2 * X.sum()


def test_functions_and_objects_that_are_replaced_in_modules(module):
    synk.close()
    synk.fork(2, device="cpu")
    settings, helper, total = module.settings, module.helper, X.sum()
    assert module.by_helper(X) == total
    assert module.by_table(X) == total
    for factor in (2.0, 3.0):
        module.helper = lambda x, factor=factor: factor * x
        settings.TABLE = np.full(1, factor)
        settings.more = lambda x, factor=factor: factor
        assert module.by_helper(X) == factor * total
        assert module.by_table(X) == factor * total
        assert module.by_module(X) == total + 2 * factor
    module.helper = helper
    assert module.by_helper(X) == total


def test_what_device_functions_of_modules_read(module):
    synk.close()
    synk.fork(2, device="cpu")
    for rate in (1.0, 2.0, 3.0, 1.0):
        module.RATE, module.settings.MORE = rate, 10 * rate
        assert module.by_device_function(X) == pytest.approx(11 * rate * X.sum())
