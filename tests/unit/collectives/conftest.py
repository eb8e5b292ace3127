"""Variables that are asked for wrongly, and what is checked after every test: the same
variables, used rightly, are right.
"""

import re

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import synknumba as synk

ROWS = np.arange(5.0)


@pytest.fixture(scope="module")
def world():
    with synk.fork(2, device="cpu") as world:
        yield world


class Held:
    """Some variables, and what is on the ranks."""

    def __init__(self) -> None:
        self.v = synk.variable(np.arange(4.0), "v")
        self.u = synk.variable(np.ones(4), "u")
        self.ints = synk.variable(np.arange(3), "ints")
        self.shards = synk.scatter(synk.variable(ROWS, "shards"), ROWS)
        self.number = synk.variable(2.5, "number")
        self.tree = synk.variable({"w": np.ones((2, 3)), "b": np.zeros(3, "float32")}, "tree")

    def everything(self):
        return [self.v, self.u, self.ints, self.shards, self.number, self.tree]

    def values(self):
        return [str(synk.get_value(rank, self.everything())) for rank in range(2)]


@pytest.fixture(scope="module")
def _held(world):
    held = Held()
    synk.all_reduce(held.v, "max")  # so that it has been made before
    synk.reduce(held.u, "max", root=1)
    return held


@pytest.fixture
def held(_held, world):
    """After the test all is as it was, and right calls are right."""
    before, told = _held.values(), [repr(one) for one in _held.everything()]
    yield _held
    assert not world.closed
    assert _held.values() == before
    assert [repr(one) for one in _held.everything()] == told
    synk.all_reduce([_held.v, _held.number], "max")
    assert_array_equal(synk.gather(_held.v), [np.arange(4.0)] * 2)
    assert_array_equal(synk.gather(_held.number), [2.5, 2.5])
    assert_array_equal(synk.gather(_held.shards, nd_up=0), ROWS)


def refused(error, *parts):
    """The error is raised, and its message has these parts, in this order."""
    return pytest.raises(error, match="(?s)" + ".*".join(map(re.escape, parts)))
