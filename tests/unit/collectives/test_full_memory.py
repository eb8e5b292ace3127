"""No memory for a variable, or for what a collective makes: an error, nothing has changed, and
nothing is left behind.
"""

import gc
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import synknumba as synk
from synknumba._host import segment
from tests.conformance.private_memory import PrivateDevice, fork_private
from tests.unit.collectives.conftest import refused

LARGE = np.ones(100_000)
CALLS = {
    "variable": lambda v, u: synk.variable(LARGE),
    "vector": lambda v, u: synk.vector([LARGE, LARGE]),
    "broadcast": lambda v, u: synk.broadcast(v, LARGE),
    "broadcast two": lambda v, u: synk.broadcast([u, v], [np.zeros(2), LARGE]),
    "broadcast one of two": lambda v, u: synk.broadcast([u, v], [None, LARGE]),
    "scatter": lambda v, u: synk.scatter(v, LARGE),
    "scatter with a halo": lambda v, u: synk.scatter(
        [u, v], [np.zeros(9), LARGE], halo=2, periodic=True
    ),
    "scatter two": lambda v, u: synk.scatter([u, v], [np.zeros(9), LARGE]),
    "set_value": lambda v, u: synk.set_value(1, v, LARGE),
    "method": lambda v, u: v.set_value(LARGE),
    "set_value two": lambda v, u: synk.set_value(1, [u, v], [np.zeros(7), LARGE]),
    "all_gather": lambda v, u: synk.all_gather([u, v]),
    "reduce_scatter": lambda v, u: synk.reduce_scatter([u, v], "sum"),
}
QUICK = {"variable", "broadcast one of two", "scatter", "all_gather"}
NEED_LARGE = {"all_gather", "reduce_scatter"}


def mapped(pid):
    return Path(f"/proc/{pid}/maps").read_text().count("/synk-")


@synk.function(outputs=None)
def holdings():
    from synknumba._rank.loop import Rank

    # isinstance would ask weak proxies
    (rank,) = [one for one in gc.get_objects() if type(one) is Rank]
    return np.array(len(rank.holdings))


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.whole) for name in CALLS],
)
def test_no_room(world, monkeypatch, name):
    value = LARGE if name in NEED_LARGE else np.arange(4.0)
    v, u = synk.variable(value, "v"), synk.variable(np.arange(3.0), "u")
    synk.set_value(1, v, value + 1)
    synk.reduce([v, u], "sum", in_place=False)
    gc.collect()
    everybody = ("self", *world.pids)
    before = [mapped(pid) for pid in everybody]
    with monkeypatch.context() as patch:
        patch.setattr(segment, "_free_bytes", lambda fd: 50_000)
        with refused(synk.SharedMemoryError, "/dev/shm has 50,000 bytes free"):
            CALLS[name](v, u)
    gc.collect()
    synk.get_shapes(v)
    assert [mapped(pid) for pid in everybody] == before
    assert_array_equal(synk.gather(v), [value, value + 1])
    assert_array_equal(synk.gather(u), [np.arange(3.0)] * 2)
    CALLS[name](v, u)
    assert_array_equal(synk.all_reduce(synk.variable(np.ones(2)), "sum").get_value(), [2.0, 2.0])


def test_what_is_reduced_to_an_array_takes_no_shared_memory(world, monkeypatch):
    v, u = synk.variable(LARGE), synk.vector([LARGE.reshape(-1, 2), np.float64(3.0)])
    monkeypatch.setattr(segment, "_free_bytes", lambda fd: 0)
    found, (matrix, number) = synk.reduce([v, u], "sum", in_place=False, root=1)
    assert_array_equal(found, 2 * LARGE)
    assert_array_equal(matrix, 2 * LARGE.reshape(-1, 2))
    assert_array_equal(number, 6.0)
    found[:] = 0
    assert_array_equal(synk.gather(v), [LARGE, LARGE])


@pytest.mark.whole
@pytest.mark.parametrize("name", [name for name in CALLS if name != "reduce_scatter"])
def test_no_room_on_a_device(no_world, monkeypatch, name):
    """The rank whose GPU is full says so; the others give back what they have taken."""
    value = np.ones(60_000) if name == "all_gather" else np.arange(4.0)
    monkeypatch.setattr(PrivateDevice, "most", 490_000 if name == "all_gather" else 390_000)
    with fork_private(2) as world:
        v, u = synk.variable(value, "v"), synk.variable(np.arange(3.0), "u")
        synk.set_value(1, v, value + 1)
        before = holdings()
        with pytest.raises(synk.RankError, match="out of memory"):
            CALLS[name](v, u)
        gc.collect()
        assert holdings() == before
        assert not world.closed
        assert_array_equal(synk.gather(v), [value, value + 1])
        assert_array_equal(synk.gather(u), [np.arange(3.0)] * 2)
        assert_array_equal(synk.all_reduce(u, "sum").get_value(), 2 * np.arange(3.0))
