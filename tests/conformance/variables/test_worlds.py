"""Variables made before there is a world, and worlds that end."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import synknumba as synk
from tests.conformance.variables import functions
from tests.conformance.variables.ranks import assert_held


def test_made_before_fork(fork_row):
    v = synk.variable(np.arange(3.0), name="early")
    other = synk.variable(np.arange(3.0) * 10)
    s = synk.variable(np.zeros(()), name="sum")

    @synk.function(updates={"acc": (s, "sum")}, givens={"w": v}, outputs=None)
    def weighted(x, w, acc):
        acc += (x * w[1]).sum()
        return w.sum()

    report = weighted.plan(np.ones(4), world_size=3)
    assert [rank.rows for rank in report.ranks] == [(0, 1), (1, 2), (2, 4)]
    assert functions.lengths_of.plan(np.ones(4), v, world_size=2).ranks[1].own_rows == 3
    with pytest.raises(synk.WorldError, match="fork"):
        functions.add(v, 1.0)
    v.set_value(np.arange(4.0))

    with fork_row() as world:
        for one in (v, other, v, other):  # two that have no memory yet are not one
            functions.add(one, 1.0)
        assert_held(v, world, np.arange(4.0) + 2)
        assert_held(other, world, np.arange(3.0) * 10 + 2)
        assert weighted(np.ones(world.world_size)) == [14.0] * world.world_size
        assert_held(s, world, 3.0)


def test_variables_of_a_world_that_is_closed(fork_row):
    with fork_row():
        v = synk.variable(np.ones(3), name="kept")
        functions.add(v, 1.0)
    given = synk.function(givens={"v": v})(lambda v: None)
    updated = synk.function(updates={"v": (v, "sum")})(lambda v: None)
    with fork_row() as world:
        new = synk.variable(np.zeros(3), name="new")
        functions.add(v, 1.0)
        functions.add_1d(v, 1.0)
        given()
        assert_held(v, world, np.full(3, 4.0))
        assert functions.total_of_own(v) == [12.0] * world.world_size
        updated()
        assert_held(v, world, np.zeros(3))
        functions.add(new, 1.0)
        assert_held(new, world, np.ones(3))


def test_the_same_function_in_world_after_world(fork_row):
    for _ in range(2):
        with fork_row() as world:
            v = synk.variable(np.ones(2))
            for k in range(1, 4):
                functions.add(v, 1.0)
                assert_array_equal(synk.gather(v), np.full((world.world_size, 2), 1.0 + k))
