"""DataParallelTable's cases: nested tables in and out, empty arrays inside, ranks without rows."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import synknumba as synk
from tests.conformance.variables.ranks import shards

pytestmark = pytest.mark.usefixtures("usable")


class Layer(NamedTuple):
    """A table of the user's."""

    weight: Any
    rest: Any


def table(n):
    """Nested tables of n rows, with arrays without rows inside."""
    x = np.arange(6.0 * n).reshape(n, 3, 2) + 1
    return {
        "image": x,
        "empty": np.zeros((0, 4)),
        "list": [x[:, 0] * 2, (x[:, 1, 0].astype(np.int32),), [], {}],
        "layer": Layer(x[:, :, 1], [np.zeros((0, 2, 2), np.float32), None, x[:, 2]]),
    }


def forward(net):
    """Elementwise, so that the bits do not depend on how rows are divided."""
    image, (first, (second,), *_), layer = net["image"], net["list"], net["layer"]
    return {
        "out": [image * 0.1 + first[:, None, :], (second * 3,)],
        "empty": net["empty"] + 1,
        "layer": Layer(
            layer.weight / 3,
            {"deep": [layer.rest[2] - layer.rest[2] / 7, layer.rest[0]], "none": layer.rest[1]},
        ),
    }


def same(a, b):
    """Equal in structure, types of containers, dtypes, shapes and bits."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            same(one, other)
    elif a is not None:
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


@pytest.mark.parametrize("n", [1, 2, 3, 9, 15])
def test_tables_in_and_out(world, n):
    """One or two rows on any number of ranks work, and give the same bits as one device."""
    call = synk.function(outputs="gather")(forward)
    wanted = forward(table(n))
    for num_slices in (1, 2, 3):
        for _ in range(2):
            same(call(table(n), num_slices=num_slices), wanted)
    same(call.as_serial(table(n)), wanted)


def test_tables_of_data(world):
    """Kept in shared memory; a known call sees new rows."""

    @synk.function(outputs={"a": "gather", "b": "sum"})
    def call(net):
        return {"a": net[0]["x"] + net[1], "b": (net[0]["x"].sum(), [net[1].sum(0)])}

    x, y = synk.data(np.arange(7.0)), synk.data(np.ones(7))
    for k in range(4):
        got = call([{"x": x}, y])
        same(got["a"], x.data + y.data)
        assert got["b"] == (x.data.sum(), [7.0])
        x.set_value(np.arange(7.0) + k)


def test_ranks_without_rows_are_skipped(world):
    @synk.function(outputs={"calls": "sum", "rows": "gather", "each": None})
    def call(net):
        assert net["x"].shape[0], "a rank without rows was called"
        return {"calls": 1, "rows": [net["x"], net["e"]], "each": net["x"].shape[0]}

    for n in (1, 2, world.world_size):
        x = np.arange(1.0 * n)
        got = call({"x": x, "e": np.zeros((0, 5), np.int16)})
        assert got["calls"] == min(n, world.world_size)
        assert_array_equal(got["rows"][0], x)
        assert got["rows"][1].shape == (0, 5)
        assert got["rows"][1].dtype == np.int16
        assert got["each"] == [len(one) or None for one in shards(x, world)]


def test_variables_with_empty_arrays_inside(world):
    """A model's parameters as one table, some of them empty."""
    model = synk.variable({"w": np.ones((2, 2)), "none": np.zeros((0, 3)), "b": [np.zeros(2)]})

    @synk.function(outputs="gather")
    def call(model, x):
        return x @ model["w"] + model["b"][0], model["none"]

    x = np.arange(6.0).reshape(3, 2)
    rows, none = call(model, x)
    assert_array_equal(rows, x @ np.ones((2, 2)))
    assert none.shape == (0, 3)
    synk.all_reduce(model, "sum")
    assert_array_equal(model.get_value()["w"], np.full((2, 2), world.world_size))


def test_broadcast_tables(world):
    @synk.function(outputs="gather", broadcast=("model",))
    def call(x, model):
        return x * model["scale"][0] + model["shift"]

    x = np.arange(5.0)
    for k in (1.0, 2.0):
        assert_array_equal(call(x, {"scale": [np.full(1, k)], "shift": np.array(k)}), x * k + k)


def test_written_tables(world):
    """Rows of all arrays of a table go back."""

    @synk.function(inout=("net",))
    def call(net):
        net["a"] += 1
        net["b"][0][...] *= 2

    a, b = synk.data(np.arange(7.0)), np.ones((7, 2))
    for k in range(1, 4):
        call({"a": a, "b": [b]}, num_slices=k)
        assert_array_equal(a.data, np.arange(7.0) + k)
        assert_array_equal(b, np.full((7, 2), 2.0**k))
