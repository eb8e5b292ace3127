"""A repeated call goes by its plan's number: nothing is pickled, sent or reserved."""

import gc
from contextlib import contextmanager

import numpy as np
import pytest
from numba import cuda

import synknumba as synk
from synknumba._call import distribute
from synknumba._host import segment
from synknumba._wire import channel


@synk.parallel(outputs={"total": synk.output("sum", shape=())})
@cuda.jit
def scaled(x, factor, total):
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        cuda.atomic.add(total, 0, factor * x[i])


@synk.parallel(outputs={"rows": synk.output("gather", like="x")})
@cuda.jit
def doubled(x, rows):
    i = cuda.grid(1)
    if i < x.shape[0]:
        rows[i] = 2 * x[i]


@synk.function(outputs={"low": "min", "rows": "gather"})
def two(x):
    return {"low": x.min(), "rows": x + 1}


@contextmanager
def without_collections():
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def nothing_is_sent(call):
    """Makes all that a repeated call must not do an error, after such a call."""

    def refuse(*args, **kwargs):
        pytest.fail("a repeated call pickled, sent or reserved something")

    gc.collect()  # memory that goes later is told to the ranks, so none is to go
    call()  # tells of what has gone now
    with pytest.MonkeyPatch.context() as patch, without_collections():
        patch.setattr(channel, "pack", refuse)
        patch.setattr(channel, "send", refuse)
        patch.setattr(segment.Segment, "__init__", refuse)
        patch.setattr(segment.Segment, "grow", refuse)
        patch.setattr(distribute, "make_spec", refuse)
        yield


def test_a_repeated_call_sends_nothing(world):
    values = np.arange(1, 1001, dtype=np.float64)
    x = synk.data(values)
    batches = (slice(0, 900), slice(100, 1000), [3, -1, 3], [5, 6, 7])
    first = (
        scaled(x, 2.0),
        doubled(x),
        two(x),
        *(scaled(x, 1.0, batch=batch) for batch in batches[::3]),
    )
    assert first[0] == 2 * values.sum()
    scaled(x, 1.0, batch=batches[0])
    scaled(values, 1.0)
    with nothing_is_sent(lambda: scaled(x, 1.0)):
        x[0] = 10.0
        values[0] = 10.0
        assert scaled(x, 3.0) == 3 * values.sum()
        assert scaled(x, 0.5) == values.sum() / 2
        np.testing.assert_array_equal(doubled(x), 2 * values)
        result = two(x)
        assert result["low"] == values.min()
        np.testing.assert_array_equal(result["rows"], values + 1)
        for batch in batches:
            assert scaled(x, 1.0, batch=batch) == values[batch].sum()
        assert scaled(values, 1.0) == values.sum()
