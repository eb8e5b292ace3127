"""Data whose contents stay as they are: ranks are not sent them again, and nothing else differs."""

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_array_equal

import synknumba as synk

ROWS = np.arange(101.0)
BATCHES = (None, 7, slice(10, 60), slice(90, None, -3), [5, 3, 5, 100])


@synk.parallel(outputs={"total": synk.output("sum", shape=()), "copy": synk.output("gather")})
def scaled(x, factor, total, copy):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(total, 0, factor * x[i])
        copy[i] = factor * x[i]


@synk.function(outputs="gather")
def plus(x, number):
    return x + number


@synk.function(outputs="sum", broadcast=("x",))
def of_whole(x):
    return x.sum()


@synk.function(inout=("x",))
def double(x):
    x *= 2


@pytest.mark.parametrize("num_slices", [1, 3])
def test_calls_give_what_they_give_otherwise(world, num_slices):
    x = synk.data(ROWS)
    x.freeze()
    for _ in range(2):
        for batch in BATCHES:
            rows = (
                ROWS if batch is None else ROWS[:batch] if isinstance(batch, int) else ROWS[batch]
            )
            for factor in (2.0, -1.0):
                result = scaled(x, factor, batch=batch, num_slices=num_slices)
                assert result.total == (factor * rows).sum()
                assert_array_equal(result.copy, factor * rows)
                assert_array_equal(
                    plus(x, factor, batch=batch, num_slices=num_slices), rows + factor
                )
        assert of_whole(x) == world.world_size * ROWS.sum()


def test_changes_between_are_seen(world):
    x = synk.data(ROWS)
    for k in range(4):
        x.freeze()
        assert_array_equal(plus(x, 1.0, batch=slice(None, None, 2)), ROWS[::2] + 1 + k)
        assert_array_equal(plus(x, 1.0, batch=slice(None, None, 2)), ROWS[::2] + 1 + k)
        assert scaled(x, 1.0).total == (ROWS + k).sum()
        x.thaw()
        assert_array_equal(plus(x, 1.0, batch=slice(None, None, 2)), ROWS[::2] + 1 + k)
        x[...] += 1
        assert_array_equal(plus(x, 1.0, batch=slice(None, None, 2)), ROWS[::2] + 2 + k)
        assert scaled(x, 1.0).total == (ROWS + k + 1).sum()
    x.set_value(np.ones(3))
    assert_array_equal(plus(x, 1.0), [2, 2, 2])


def test_it_is_not_sent_again(world):
    """A forbidden operation shows it: writing through a view that was made before. Rows in one
    piece are not sent on a CPU.
    """
    x = synk.data(ROWS)
    view = np.asarray(x)[:]
    x.freeze()
    assert_array_equal(plus(x, 0.0, batch=slice(None, None, 2)), ROWS[::2])
    view[...] = -1
    assert_array_equal(plus(x, 0.0, batch=slice(None, None, 2)), ROWS[::2])
    # another number, the same rows
    assert_array_equal(plus(x, 3.0, batch=slice(None, None, 2)), ROWS[::2] + 3)
    assert_array_equal(plus(x, 0.0, batch=slice(0, 11, 2)), np.full(6, -1.0))  # other rows
    x.thaw()
    x.freeze()
    assert_array_equal(plus(x, 0.0, batch=slice(None, None, 2)), np.full(51, -1.0))


def test_two_of_them_in_one_call(world):
    x, y = synk.data(ROWS), synk.data(ROWS * 10)
    add = synk.function(lambda a, b: a + b, outputs="gather")
    x.freeze()
    for _ in range(3):
        assert_array_equal(add(x, y, batch=slice(None, None, 2)), ROWS[::2] * 11)
        assert_array_equal(add(y, x, batch=slice(None, None, 2)), ROWS[::2] * 11)
    y[...] = 0
    assert_array_equal(add(x, y, batch=slice(None, None, 2)), ROWS[::2])


def test_writing_is_refused_meanwhile(world):
    x = synk.data(ROWS, name="x")
    assert not x.frozen
    x.freeze()
    assert x.frozen
    refused = (
        lambda: x.set_value(ROWS),
        lambda: x.set_length(3),
        lambda: x.set_shape((3,)),
        lambda: x.__setitem__(0, 1.0),
        x.free_memory,
    )
    for write in refused:
        with pytest.raises(synk.DataError, match=r"'x' is frozen.*thaw\(\)"):
            write()
    with pytest.raises(ValueError, match="read-only"):
        x.data[0] = 1
    with pytest.raises(synk.ArgumentError, match=r"x of double is in inout=.*frozen.*thaw\(\)"):
        double(x)
    assert_array_equal(x, ROWS)
    x.thaw()
    x[0] = 5
    double(x)
    assert_array_equal(x, [10, *ROWS[1:] * 2])
