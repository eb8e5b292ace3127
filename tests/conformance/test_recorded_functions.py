"""Functions with `record=True` give what they give without; what GPUs refuse is in
tests/gpu/test_recorded.py.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from tests.conformance.conftest import spans_machines


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def loss_and_gradient(x, labels, w):
    """Of softmax regression, summed over rows."""
    p = softmax(np.asarray(x) @ w)
    rows = np.arange(len(x))
    loss = -np.log(p[rows, labels]).sum()
    p[rows, labels] -= 1
    return loss, x.T @ p


@synk.function(record=True, outputs=("sum", "sum"), broadcast=("w",))
def regression(x, onehot, w):
    z = synk.matmul(x, w)
    e = np.exp(z - z.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    loss = -np.log((p * onehot).sum(1)).sum()
    return loss, synk.matmul(x.T, p - onehot)


def test_regression(world):
    rng = np.random.default_rng(0)
    for n in (96, 50, 96):
        x, labels = synk.data(rng.normal(size=(n, 7))), rng.integers(0, 3, n)
        onehot, w = synk.data(np.eye(3)[labels]), rng.normal(size=(7, 3))
        for _ in range(3):
            loss, gradient = regression(x, onehot, w)
            wanted = loss_and_gradient(x.data, labels, w)
            assert_allclose(loss, wanted[0], rtol=1e-10)
            assert_allclose(gradient, wanted[1], rtol=1e-9, atol=1e-9)
            w = w - 0.01 * gradient
            x[:] = x.data * 1.1  # the same memory, other numbers


@synk.function(record=True)
def update(w, g, rate):
    w -= rate * g


def test_variables_and_numbers(world):
    start = np.arange(6.0).reshape(2, 3)
    w, g = synk.variable(start), synk.variable(np.ones((2, 3)))
    for rate in (0.5, 0.25, 0.5, 0.5):
        update(w, g, rate)
    assert_array_equal(w.get_value(), start - 1.75)


def test_other_memory(world):
    v, w, g = (synk.variable(np.full(4, value)) for value in (1.0, 2.0, 3.0))
    for _ in range(3):
        update(v, g, 1.0)
        update(w, g, 1.0)
    assert_array_equal(v.get_value(), np.full(4, -8.0))
    v.set_value(np.ones(9))
    g.set_value(np.ones(9))
    update(v, g, 1.0)
    assert_array_equal(v.get_value(), np.zeros(9))


def test_inout_updates_and_slices(world):
    total = synk.variable(np.zeros(3))

    @synk.function(
        record=True,
        inout=("x",),
        updates={"t": (total, "sum")},
        outputs={"most": "max", "rows": "gather"},
    )
    def double(x, t):
        x *= 2
        t += x.sum(0)
        return {"most": x.max(), "rows": x[:, 0] + 1}

    data = synk.data(np.arange(60.0).reshape(20, 3))
    wanted = data.data.copy()
    for slices in (1, 1, 3, 3):
        found = double(data, num_slices=slices)
        wanted = 2 * wanted
        assert_array_equal(data.data, wanted)
        assert found["most"] == wanted.max()
        assert_array_equal(found["rows"], wanted[:, 0] + 1)
        assert_array_equal(synk.reduce(total, "sum"), wanted.sum(0))


def test_in_a_sequence(world):
    w, g = synk.variable(np.zeros((7, 3))), synk.variable(np.zeros((7, 3)))

    @synk.function(record=True, outputs="sum", updates={"new": (g, "sum")})
    def gradient(x, onehot, w, new):
        z = synk.matmul(x, w)
        e = np.exp(z - z.max(1, keepdims=True))
        p = e / e.sum(1, keepdims=True)
        new += synk.matmul(x.T, p - onehot)
        return -np.log((p * onehot).sum(1)).sum()

    @synk.sequence
    def train(x, onehot, w, g):
        loss = gradient(x, onehot, w)
        synk.all_reduce(g, "sum")
        update(w, g, 0.001)
        return loss

    rng = np.random.default_rng(1)
    x, labels = rng.normal(size=(64, 7)), rng.integers(0, 3, 64)
    losses = train(x, np.eye(3)[labels], w, g, times=6, every=1)
    mine, wanted = np.zeros((7, 3)), []
    for _ in range(6):
        loss, slope = loss_and_gradient(x, labels, mine)
        wanted.append(loss)
        mine -= 0.001 * slope
    assert_allclose(losses, wanted, rtol=1e-10)
    assert_allclose(w.get_value(), mine, rtol=1e-9, atol=1e-12)


def describe(x, v):
    return {"total": (v * x).sum(), "mean": x.mean(0) + v, "most": (x + v).max(0)}


DESCRIBED = {"total": "sum", "mean": "mean", "most": "max"}
described = synk.function(record=True, outputs=DESCRIBED)(describe)


@pytest.mark.parametrize("record", [True, False])  # recorded unasked
def test_repeated_calls(world, record):
    """From the third on they take no Python; other contents, rows, numbers and memory do."""
    described = synk.function(record=record, outputs=DESCRIBED)(describe)
    rows = np.arange(30.0).reshape(10, 3)
    x, v, numbers = synk.data(rows), synk.variable(np.zeros(3)), np.zeros(3)
    for batch in (None, slice(2, 9), slice(0, 2), None):
        chosen = slice(None) if batch is None else batch
        for turn in range(6):
            update(v, -1.0, 1.0)
            numbers += 1
            got = described(x, v, batch=batch)
            wanted = x.data[chosen]
            assert_allclose(got["total"], (wanted * numbers).sum(), rtol=1e-12)
            assert_allclose(got["mean"], wanted.mean(0) + numbers, rtol=1e-12)
            assert_allclose(got["most"], wanted.max(0) + numbers, rtol=1e-12)
            if turn == 3:
                x[:] = x.data * 1.5
        if batch is None:
            x.freeze()
            described(x, v)
            x.thaw()
            v.set_value(numbers + 1)
            numbers += 1


@synk.sequence
def growing(x, v):
    update(v, 1, -0.5)
    return described(x, v)


@pytest.mark.parametrize("rows", [1, 64])
def test_results_of_all_iterations_in_one_round(world, rows):
    """Once their shapes are known; ranks may be without rows."""
    x, v = synk.data(np.arange(3.0 * rows).reshape(rows, 3)), synk.variable(np.zeros(3))
    for first in (0, 40, 80):
        before = world.statistics().rounds
        kept = growing(x, v, times=40, every=1)
        if not spans_machines():
            assert world.statistics().rounds - before < 20  # with those that install it
        values = np.arange(first + 1, first + 41)[:, None] / 2
        assert_allclose(kept["total"], (values * x.data.sum(0)).sum(1), rtol=1e-12)
        assert_allclose(kept["mean"], x.data.mean(0) + values, rtol=1e-12)
        assert_allclose(kept["most"], x.data.max(0) + values, rtol=1e-12)


@synk.function(outputs=None)
def products(a, b, at, bt, x):
    """Of matrices as they lie, turned, cut out, and with vectors."""
    made = (
        (a, b),
        (at.T, b),
        (a, bt.T),
        (at.T, bt.T),
        (a[:, 1:4], b[1:4]),
        (a[::2], b),
        (a, x),
        (x, b),
        (x, x),
    )
    return [synk.matmul(*pair) for pair in made]


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "complex64", "complex128", "int32"]
)
def test_matmul(world, dtype):
    rng = np.random.default_rng(2)

    def numbers(*shape):
        found = rng.integers(-4, 5, shape).astype(dtype)
        return (
            (found + 1j * rng.integers(-4, 5, shape)).astype(dtype)
            if found.dtype.kind == "c"
            else found
        )

    a, b, x = numbers(6, 5), numbers(5, 3), numbers(5)
    found = products(*map(synk.variable, (a, b, a.T.copy(), b.T.copy(), x)))
    pairs = (a, b), (a, b), (a, b), (a, b), (a[:, 1:4], b[1:4]), (a[::2], b), (a, x), (x, b), (x, x)
    for of_ranks, (one, two) in zip(found, pairs, strict=True):
        for result in of_ranks:
            assert_array_equal(result, one @ two)
            assert np.asarray(result).dtype == (one @ two).dtype


def test_record_is_a_flag():
    with pytest.raises(synk.ArgumentError, match="record must be True or False, got 'yes'"):
        synk.function(record="yes")(lambda x: None)
