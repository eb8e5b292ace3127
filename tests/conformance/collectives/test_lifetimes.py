"""What a variable is before a world, between calls and after a world, and what is left when it
has gone.
"""

import gc
import os

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import synknumba as synk
from synknumba._ops.variable_layout import StorageLayout
from synknumba._variables import collective_plans
from tests.conformance.collectives.cases import assert_held, assert_same
from tests.conformance.conftest import COLLECTIVE_ROWS

GPU_ROWS = [row for row in COLLECTIVE_ROWS if row.values[0]["device"] == "cuda"]
CPU_ROWS = [row for row in COLLECTIVE_ROWS if row.values[0]["device"] == "cpu"]


@synk.function(outputs=None)
def memory_in_use():
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()
    return cupy.get_default_memory_pool().used_bytes()


@synk.function(outputs=None)
def held_by_rank():
    """How many programs, variables and segments."""
    import gc

    from synknumba._rank.loop import Rank

    # isinstance would ask weak proxies
    (rank,) = [one for one in gc.get_objects() if type(one) is Rank]
    return np.array([len(rank.routines), len(rank.holdings), len(rank.segments)])


def test_made_before_fork(fork_row):
    v = synk.variable(np.arange(4.0), "early")
    tree = synk.vector({"a": [1.0, 2.0]})
    assert repr(v) == "<Variable 'early' float64 (4,), not on any rank yet>"
    assert_array_equal(v.get_value(), np.arange(4.0))
    v.set_value(np.arange(5.0))
    with fork_row() as world:
        assert_held(v, world, [np.arange(5.0)] * world.world_size)
        synk.all_reduce(v, "sum")
        assert_held(v, world, [np.arange(5.0) * world.world_size] * world.world_size)
        synk.broadcast(tree, {"a": [3.0, 4.0]})
        assert_array_equal(tree.get_value(world.world_size - 1)["a"], [3.0, 4.0])


def test_after_its_world(fork_row):
    with fork_row() as world:
        v, other = synk.variable(np.arange(5.0), "w"), synk.variable({"a": np.ones(2)})
        synk.scatter(v, np.arange(7.0))
        size = world.world_size
        parts = [v.get_value(rank) for rank in range(size)]
    assert repr(v) == f"<Variable 'w' float64 {parts[0].shape}, of a world that is closed>"
    for k in range(2):
        for rank in range(size):
            assert_array_equal(v.get_value(rank), parts[rank])
        assert_array_equal(other.get_value()["a"], np.full(2, float(size) ** k))
        with pytest.raises(synk.WorldError, match="no world is open"):
            synk.all_reduce(v, "sum")
        with fork_row() as world:
            assert_array_equal(synk.gather(v, nd_up=0), np.arange(7.0))
            assert synk.get_shapes(v) == [part.shape for part in parts]
            synk.all_reduce(other, "sum")
            assert_held(v, world, parts)
            assert_array_equal(
                synk.all_reduce(synk.variable(np.ones(3)), "sum").get_value(),
                np.full(3, float(size)),
            )


@pytest.mark.one_machine
def test_a_process_that_the_script_forks_reads_what_it_shares(world):
    """It has no ranks: asking those of the script would leave them and the script waiting for
    each other.
    """
    v = synk.variable(np.arange(3.0), "w")
    synk.all_reduce(v, "sum")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if v.get_value(world.world_size - 1)[1] == world.world_size else 1
        except synk.WorldError as error:
            code = (
                2
                if "world of the process from which this one was forked: read it there"
                in str(error)
                else 1
            )
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == (0 if world.device == "cpu" else 2)
    assert_held(v, world, [np.arange(3.0) * world.world_size] * world.world_size)


def test_what_it_says_of_itself(world):
    """Where it lives, and whether replicas may differ, after everything that changes it."""
    several = world.world_size > 1
    ranks = f"{world.world_size} {world.device} rank{'s' if several else ''}"
    differ = "may differ" if several else "equal"
    v = synk.variable(np.zeros((6, 2), "float32"), "w")
    assert repr(v) == f"<Variable 'w' float32 (6, 2), on {ranks}, replicas equal>"
    v.set_value(np.ones((6, 2), "float32"))
    assert repr(v) == f"<Variable 'w' float32 (6, 2), on {ranks}, replicas equal>"
    v.set_value(np.ones((6, 2), "float32"), rank=0)
    assert repr(v) == f"<Variable 'w' float32 (6, 2), on {ranks}, replicas {differ}>"
    for _ in range(2):  # the second time is a shorter way
        synk.all_reduce(v, "mean")
        assert repr(v).endswith("replicas equal>")
        synk.reduce(v, "mean")
        assert repr(v).endswith(f"replicas {differ}>")
        synk.broadcast(v)
        assert repr(v).endswith("replicas equal>")
    synk.broadcast(v, root=world.world_size - 1)
    synk.reduce(v, "mean", in_place=False)
    synk.gather(v)
    assert repr(v).endswith("replicas equal>")
    synk.scatter(v)
    assert "shards ((" in repr(v)
    synk.all_gather(v)
    assert repr(v).endswith("replicas equal>")
    synk.reduce_scatter(v, "sum")
    assert "shards ((" in repr(v)
    dest = synk.variable(np.zeros((1, 2), "float32"))
    for _ in range(2):
        synk.all_gather(v, dest=dest)
        assert repr(dest).endswith("replicas equal>")
        synk.set_value(0, dest, np.ones((6, 2), "float32"))
    again = synk.variable(np.zeros((6, 2), "float32"))
    for _ in range(2):
        synk.reduce_scatter(again, "sum", dest=dest)
        assert "shards ((" in repr(dest)
        assert repr(again).endswith("replicas equal>")
    synk.broadcast(v, np.zeros((1, 2), "float32"))
    assert repr(v) == f"<Variable 'w' float32 (1, 2), on {ranks}, replicas equal>"


def test_shards_of_equal_length_are_replicas_after_an_all_reduce(world):
    """Also where the same was done before, and nothing but that is known of the shards."""
    v = synk.variable(np.zeros(3), "w")
    synk.all_reduce(v, "sum")
    x = np.arange(3.0 * world.world_size)
    synk.scatter(v, x)
    assert "shards" in repr(v)
    synk.all_reduce(v, "sum")
    assert repr(v).endswith("replicas equal>")
    assert_held(v, world, [x.reshape(-1, 3).sum(0)] * world.world_size)


def test_what_is_known_without_asking_ranks(world):
    v = synk.variable(np.zeros((6, 2), "float32"))
    assert (v.dtype, v.shape, v.ndim, v.size, v.nbytes, len(v)) == (
        np.dtype("float32"),
        (6, 2),
        2,
        12,
        48,
        6,
    )
    tree = synk.variable({"w": np.zeros((2, 3)), "b": np.int8(1)})
    assert tree.dtype == {"w": np.dtype("float64"), "b": np.dtype("int8")}
    assert (tree.shape, tree.ndim, tree.size, tree.nbytes) == (
        {"w": (2, 3), "b": ()},
        {"w": 2, "b": 0},
        7,
        49,
    )
    assert "{'w': value, 'b': value}" in repr(tree)
    assert "one vector" in repr(synk.vector({"w": np.zeros(3)}))


def test_numbers(world):
    """As NumPy's arrays of one item, whether they have dimensions or not; others are neither
    true nor false.
    """
    loss = synk.all_reduce(synk.variable(1.5), "sum")
    assert (float(loss), int(loss), bool(loss)) == (
        1.5 * world.world_size,
        int(1.5 * world.world_size),
        True,
    )
    assert not synk.variable(0)
    with pytest.raises(ValueError, match="more than one element"):
        bool(synk.variable(np.ones(2)))
    with pytest.raises(synk.ArgumentError, match="is a tree"):
        bool(synk.variable({"a": 1.0}))


def test_results_do_not_change_with_the_variable(world):
    v = synk.variable(np.ones(3))
    one, all_of_them, array = v.get_value(), synk.gather(v), np.asarray(v)
    synk.broadcast(v, np.zeros(3))
    assert_same(one, np.ones(3))
    assert_same(all_of_them, np.ones((world.world_size, 3)))
    assert_same(array, np.ones(3))


def test_the_value_that_was_given_is_not_the_variable(world):
    given = np.ones(3)
    v = synk.variable(given)
    given[:] = 2
    assert_held(v, world, [np.ones(3)] * world.world_size)
    synk.all_reduce(v, "prod")
    assert_array_equal(given, np.full(3, 2.0))


@pytest.mark.parametrize("length", [3, 30_000], ids=["small", "large"])
def test_ranks_do_not_pile_up_what_collectives_need(world, length):
    u = synk.variable(np.ones(length))

    def use(k):
        v = synk.variable(np.ones(length + k))
        w = synk.scatter(
            synk.vector([np.ones(3), np.ones(2)]), [np.arange(5.0), np.arange(4.0 + k)]
        )
        synk.all_gather(v, dest=synk.variable(np.ones(1)))
        synk.all_reduce(v, "max")
        synk.all_reduce([v, u], "max")
        synk.reduce(u, "max", in_place=False)
        synk.all_gather(w)
        synk.broadcast(u, np.ones(length + k % 3))
        assert synk.reduce_scatter(v, "sum").get_value(world.world_size - 1)[0] == world.world_size

    for k in range(3):
        use(k)
    gc.collect()
    before = held_by_rank()
    for k in range(3, 9):
        use(k)
    gc.collect()
    after = held_by_rank()
    assert_array_equal(after, before)


@pytest.mark.parametrize("row", GPU_ROWS, indirect=True)
def test_dropped_variables_free_the_memory_of_the_device(world):
    size = 8 << 20
    synk.all_reduce(synk.variable(np.ones(size // 8)), "sum")
    gc.collect()
    before = memory_in_use()
    v = synk.variable(np.ones(size // 8))
    synk.all_reduce(v, "sum")
    synk.reduce(v, "sum", in_place=False)
    held = memory_in_use()
    assert all(now >= then + size for now, then in zip(held, before, strict=True))
    synk.broadcast(v, np.ones(3))  # of another shape: the old memory goes
    assert all(now < then + size for now, then in zip(memory_in_use(), before, strict=True))
    synk.broadcast(v, np.ones(size // 8))
    del v
    assert all(now < then + size for now, then in zip(memory_in_use(), before, strict=True))


@pytest.mark.parametrize("row", CPU_ROWS[:1], indirect=True)
def test_collectives_leave_no_notes_behind(world):
    """What is noted about a variable is bounded, however many results it gives."""
    from synknumba._variables import allocation

    v = synk.variable(np.ones(3))
    for _ in range(3):
        synk.all_gather(v, dest=synk.variable(np.ones(1)))
    before = len(allocation._uses[v._state.storage().number])
    for _ in range(20):
        synk.all_gather(v, dest=synk.variable(np.ones(1)))
    assert len(allocation._uses[v._state.storage().number]) == before


@pytest.mark.parametrize("row", CPU_ROWS[1:2], indirect=True)
def test_the_places_of_many_arrays_are_worked_out_once(world, monkeypatch):
    """Not for each of them, which would take the square of their number."""
    asked = []

    def place(layout, rank, place=StorageLayout.place):
        asked.append(rank)
        return place(layout, rank)

    monkeypatch.setattr(StorageLayout, "place", place)
    v = synk.variable([np.full(2, k) for k in range(50)])
    synk.all_reduce(v, "sum")
    assert_array_equal(v.get_value(1), [np.full(2, k * world.world_size) for k in range(50)])
    assert len(asked) <= world.world_size


@pytest.mark.parametrize("row", CPU_ROWS[1:2], indirect=True)
def test_collectives_over_each_of_many_variables_are_worked_out_once(world, monkeypatch):
    made = [synk.variable(np.full(2, k)) for k in range(300)]
    for v in made:
        synk.all_reduce(v, "max")
    monkeypatch.setattr(collective_plans.CoreTransfers, "plan", None)
    for k, v in enumerate(made):
        assert synk.all_reduce(v, "max") is v
        assert_array_equal(v.get_value(1), np.full(2, k))
