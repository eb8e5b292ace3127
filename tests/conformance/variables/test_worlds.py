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
        v = synk.variable(np.ones(3), name="gone")
        functions.add(v, 1.0)
    given = synk.function(givens={"v": v})(lambda v: None)
    updated = synk.function(updates={"v": (v, "sum")})(lambda v: None)
    with fork_row() as world:
        new = synk.variable(np.zeros(3), name="new")
        for call in (
            lambda: functions.add(v, 1.0),
            lambda: functions.add_1d(v, 1.0),
            lambda: functions.of_own_rows(v),
            lambda: functions.total_of_own([v]),
            given,
            updated,
        ):
            with pytest.raises(
                synk.WorldError,
                match=r"'gone' belongs to a world that is closed.*create a new (one|variable from its last value)",
            ):
                call()
            functions.add(new, 1.0)
        assert_held(new, world, np.full(3, 6.0))
        assert functions.total_of_own(new) == [18.0] * world.world_size


def test_the_same_function_in_world_after_world(fork_row):
    for _ in range(2):
        with fork_row() as world:
            v = synk.variable(np.ones(2))
            for k in range(1, 4):
                functions.add(v, 1.0)
                assert_array_equal(synk.gather(v), np.full((world.world_size, 2), 1.0 + k))
