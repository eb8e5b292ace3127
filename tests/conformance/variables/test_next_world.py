"""Variables in world after world: values go on after `close`, on other numbers of ranks too, and
after deaths if known.

The oracle replays the same updates in NumPy.
"""

import os
import signal
from collections.abc import Callable

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import synknumba as synk
from synknumba._ops.rows import Partition
from tests.conformance import kernels
from tests.conformance.collectives.cases import assert_held
from tests.conformance.conftest import PRIVATE, ROWS, spans_machines
from tests.conformance.variables import functions
from tests.quick import whole

pytestmark = pytest.mark.parametrize("row", [*ROWS, PRIVATE])

DTYPES = [
    "float64",
    "float32",
    "int16",
    "bool",
    "complex64",
    "longdouble",
    np.dtype([("a", "i2"), ("b", "f8")]),
]


def kill(world: synk.World, rank: int = -1) -> None:
    os.kill(world.pids[rank], signal.SIGKILL)


def is_shared(row) -> bool:
    return row["device"] == "cpu" and not spans_machines()


@synk.function
def decay(w, g, rate):
    w -= rate * g
    g *= 0.5


def test_functions_go_on_in_the_next_world(fork_row):
    """With givens= and updates=, through three worlds, of which nothing was kept by the script."""
    w, s = synk.variable(np.linspace(-1.0, 1.0, 5), "w"), synk.variable(np.zeros(5), "s")

    @synk.function(givens={"w": w})
    def shift(amount, w):
        w += amount

    @synk.function(givens={"old": s, "w": w}, updates={"new": (s, "sum")})
    def add_up(x, old, w, new):
        new += x.sum() * w + old

    x = synk.data(np.arange(7.0))
    expected_w, expected = np.linspace(-1.0, 1.0, 5), np.zeros(5)
    for k in range(3):
        with fork_row() as world:
            own = [
                x.data[slice(*Partition.even(world.world_size).part(7, rank))]
                for rank in range(world.world_size)
            ]
            expected = np.broadcast_to(expected, (world.world_size, 5))
            for _ in range(2):
                shift(0.1 * k)
                add_up(x)
                expected_w = expected_w + 0.1 * k
                expected = np.array(
                    [
                        rows.sum() * expected_w + before if len(rows) else np.zeros(5)
                        for rows, before in zip(own, expected, strict=True)
                    ]
                )
            assert_held(w, world, [expected_w] * world.world_size)
            assert_held(s, world, list(expected))


@pytest.mark.parametrize("dtype", [DTYPES[0], *whole(*DTYPES[1:])], ids=str)
def test_every_dtype(fork_row, row, dtype):
    if np.dtype(dtype) == np.longdouble and not is_shared(row):
        pytest.skip("no device has it")
    value = np.frombuffer(
        np.random.default_rng(3).integers(0, 2, 6 * np.dtype(dtype).itemsize, np.uint8).tobytes(),
        dtype,
    )
    with fork_row():
        v, tree = (
            synk.variable(value),
            synk.variable({"a": value[:1].reshape(()), "b": [value.reshape(2, 3), value[:0]]}),
        )
        synk.broadcast(v)
        synk.broadcast(tree)
    with fork_row() as world:
        assert_held(v, world, [value] * world.world_size)
        got = tree.get_value(world.world_size - 1)
        assert got["a"].tobytes() == value[:1].tobytes()
        assert got["b"][0].tobytes() == value.tobytes()
        assert got["b"][1].shape == (0,)


@pytest.mark.parametrize("flat", [True, *whole(False)])
def test_rows_of_each_rank(fork_row, flat):
    """Divided variables, and replicas that differ, stay on their ranks."""
    make = synk.vector if flat else synk.variable
    rows, wide = np.arange(11.0), np.arange(22.0).reshape(11, 2)
    with fork_row() as world:
        v = synk.scatter(make([np.zeros(1), np.zeros((1, 2))]), [rows, wide])
        own = synk.variable(np.zeros(2))
        for rank in range(world.world_size):
            synk.set_value(rank, own, np.full(2, float(rank)))
    for _ in range(2):
        with fork_row() as world:
            got = synk.gather(v, nd_up=0)
            assert_array_equal(got[0], rows)
            assert_array_equal(got[1], wide)
            assert synk.get_lengths(v)[0] == list(Partition.even(world.world_size).counts(11))
            assert_held(own, world, [np.full(2, float(rank)) for rank in range(world.world_size)])


@pytest.mark.parametrize("size", [1, *whole(2), 4])
def test_worlds_of_another_size(fork_row, row, size):
    """Replicas go to every rank, rows are divided anew by the rule of calls, and arrays of
    single ranks are refused.
    """
    with fork_row() as world:
        first = world.world_size
        w, rows = (
            synk.variable(np.arange(3.0), "w"),
            synk.scatter(synk.variable(np.zeros((1, 2))), np.arange(22.0).reshape(11, 2)),
        )
        own = synk.variable(np.zeros(2), "own")
        # may differ, as far as the coordinator knows, and does not
        decay(w, synk.variable(np.ones(3)), 0.5)
        for rank in range(first):
            synk.set_value(rank, own, np.full(2, float(rank)))
    with synk.fork(size, device="cpu") as world:
        assert_held(w, world, [np.arange(3.0) - 0.5] * size)
        assert_array_equal(synk.gather(rows, nd_up=0), np.arange(22.0).reshape(11, 2))
        assert [shape[0] for shape in synk.get_shapes(rows)] == list(
            Partition.even(world.world_size).counts(11)
        )
        if first in {1, size}:
            assert_held(
                own, world, [np.full(2, float(min(rank, first - 1))) for rank in range(size)]
            )
            return
        with pytest.raises(
            synk.PartitionError,
            match=rf"'own' has an array of its own on each of {first} ranks.*fork\({first}\)",
        ):
            synk.get_shapes(own)
        synk.broadcast(own, np.ones(2))
        assert_held(own, world, [np.ones(2)] * size)
    assert_array_equal(own.get_value(), np.ones(2))


def counting(g):
    """Functions that assign the number of rows to a variable, and that add its old value to
    itself.
    """

    @synk.function(updates={"new": (g, "sum")})
    def count(x, new):
        new += len(x)

    @synk.function(givens={"old": g}, updates={"new": (g, "sum")})
    def double(x, old, new):
        new += 2 * old

    return count, double


def test_what_a_call_assigns_needs_no_old_value(fork_row):
    """An accumulator of `updates=` that has died with its ranks."""
    g = synk.variable(np.zeros(2), "g")
    count, double = counting(g)
    with fork_row(), pytest.raises(synk.RankDied):
        break_off(g, 2)
    with fork_row() as world:
        with pytest.raises(synk.VariableLost, match="'g' ended with the ranks"):
            double(np.ones(7))
        count(np.ones(7))
        assert_held(
            g,
            world,
            [np.full(2, float(rows)) for rows in Partition.even(world.world_size).counts(7)],
        )


def test_what_a_call_assigns_in_a_world_of_another_size(row):
    """An accumulator of which each rank had its own, so that the values have no place there."""
    if row is not ROWS[0]:
        pytest.skip("it forks worlds of its own")
    g = synk.variable(np.zeros(2), "g")
    count, double = counting(g)
    with synk.fork(4, device="cpu"):
        count(np.ones(7))
    with synk.fork(3, device="cpu") as world:
        with pytest.raises(
            synk.PartitionError, match="'g' has an array of its own on each of 4 ranks"
        ):
            double(np.ones(7))
        count(np.ones(7))
        assert_held(g, world, [np.full(2, float(rows)) for rows in Partition.even(3).counts(7)])


def after_death(world: synk.World) -> None:
    """A rank dies between two calls, and the next call finds it."""
    kill(world)
    with pytest.raises(synk.RankDied):
        synk.variable(0.0)


def test_snapshots(fork_row):
    """What was written to goes back to the last snapshot, of all variables; what the script has
    set since does not.
    """
    with fork_row() as world:
        w, g = synk.variable(np.ones(3), "w"), synk.variable(np.full(3, 8.0), "g")
        rows, rate = (
            synk.scatter(synk.variable(np.zeros(1)), np.arange(7.0)),
            synk.variable(0.5, "rate"),
        )
        decay(w, g, 0.5)
        world.snapshot()
        decay(w, g, 0.25)
        world.snapshot()
        expected_w, expected_g = np.ones(3) - 0.5 * 8 - 0.25 * 4, np.full(3, 2.0)
        for _ in range(3):
            decay(w, g, 1.0)
        synk.all_reduce(g, "sum")
        rate.set_value(0.75)
        after_death(world)
        assert_array_equal(w.get_value(), expected_w)
        assert_array_equal(synk.snapshot({"rows": rows})["rows"], np.arange(7.0))
    for _ in range(2):
        with fork_row() as world:
            assert_held(w, world, [expected_w] * world.world_size)
            assert_held(g, world, [expected_g] * world.world_size)
            assert_array_equal(synk.gather(rows, nd_up=0), np.arange(7.0))
            assert float(rate) == 0.75
            world.snapshot()
            decay(w, g, 1.0)
            synk.all_reduce(rows if world.world_size == 1 else w, "sum")
            after_death(world)


@pytest.mark.parametrize("first_use", ["set_value", "broadcast", *whole("scatter")])
def test_snapshots_of_variables_that_are_not_on_the_ranks(fork_row, first_use):
    """A snapshot covers what the next use of such a variable would have found."""
    with fork_row() as world:
        v = synk.variable(np.zeros(3), "v")
        functions.add(v, 1.0)
        world.snapshot()
        functions.add(v, 1.0)
    fresh, older = synk.variable(np.full(3, 4.0), "fresh"), synk.variable(np.full(3, 6.0), "older")
    with fork_row() as world:
        world.snapshot()
        late = synk.variable(np.full(3, 5.0), "late")
        for one in (v, fresh, late):
            GIVE[first_use](one)
            assert_array_equal(synk.snapshot(one), np.ones(3))
        with pytest.raises(synk.RankDied):
            break_off_all([v, fresh, late], 2)
    for one, value in ((v, 2.0), (fresh, 4.0), (late, 5.0)):
        assert_array_equal(synk.snapshot(one), np.full(3, value))
    # no snapshot here, but one since `older` was created
    with (
        fork_row() as world,
        pytest.raises(synk.RankDied),
    ):
        break_off(older, 2)
    assert_array_equal(synk.snapshot(older), np.full(3, 6.0))


def test_without_a_snapshot_in_this_world(fork_row, row):
    """Variables keep what they have, where the script can read it, and else what the world began
    with, if that is kept.
    """
    with fork_row() as world:
        v, torn = synk.variable(np.zeros(3), "v"), synk.variable(np.zeros(3), "torn")
        world.snapshot()
        functions.add(v, 1.0)
        functions.add(torn, 1.0)
    with fork_row() as world:
        functions.add(v, 1.0)
        functions.add(torn, 1.0)
        with pytest.raises(synk.RankDied):
            break_off(torn, 2)
    assert_array_equal(v.get_value(), np.full(3, 2.0 if is_shared(row) else 1.0))
    assert_array_equal(torn.get_value(), np.ones(3))


@pytest.mark.parametrize("size", [1, 3])
def test_a_snapshot_from_a_world_of_another_size(row, size):
    if row is not ROWS[0]:
        pytest.skip("it forks worlds of its own")
    with synk.fork(size, device="cpu") as world:
        v = synk.variable(np.full(2, 7.0), "v")
        synk.broadcast(v)
        world.snapshot()
    with synk.fork(2, device="cpu") as world:
        v.set_value(np.zeros(2))
        with pytest.raises(synk.RankDied):
            break_off(v, 2)
    for rank in range(2):
        assert_array_equal(v.get_value(rank), np.full(2, 7.0))


def test_values_that_are_known_without_a_snapshot(fork_row, row):
    with fork_row() as world:
        constant, fixed = (
            synk.variable(np.arange(3.0), "constant"),
            synk.variable(np.zeros(3), "fixed"),
        )
        changed, rows = synk.variable(np.zeros(3), "changed"), synk.variable(np.zeros(1), "rows")
        decay(fixed, changed, 1.0)
        fixed.set_value(np.full(4, 3.0))
        synk.scatter(rows, np.arange(5.0))
        functions.add(changed, 1.0)
        synk.gather(changed)
        after_death(world)
    with fork_row() as world:
        assert_held(constant, world, [np.arange(3.0)] * world.world_size)
        assert_held(fixed, world, [np.full(4, 3.0)] * world.world_size)
        assert_array_equal(synk.gather(rows, nd_up=0), np.arange(5.0))
        if is_shared(row):  # the coordinator reads the ranks' memory, to which no call was writing
            assert_held(changed, world, [np.ones(3)] * world.world_size)
            return
        for use in (
            changed.get_value,
            lambda: np.asarray(changed),
            lambda: functions.add(changed, 1.0),
            lambda: functions.add_1d(changed, 1.0),
            lambda: synk.all_reduce(changed, "sum"),
            lambda: synk.snapshot([constant, changed]),
            lambda: changed.set_value(np.ones(3), rank=0),
            lambda: synk.all_gather(constant, dest=changed),
        ):
            with pytest.raises(
                synk.VariableLost,
                match=r"'changed' ended with the ranks \(rank .*SIGKILL.*set_value.*snapshot",
            ):
                use()
        assert changed.shape == (3,)
        changed.set_value(np.full(3, 7.0))
        functions.add(changed, 1.0)
        assert_held(changed, world, [np.full(3, 8.0)] * world.world_size)


@synk.function
def break_off(w, how):
    w += 1
    if how == 2:
        os.kill(os.getpid(), signal.SIGKILL)


@synk.function
def break_off_all(several, how):
    for one in several:
        break_off.py_func(one, how)


GIVE: dict[str, Callable[[synk.Variable], object]] = {
    "set_value": lambda v: v.set_value(np.ones(3)),
    "broadcast": lambda v: synk.broadcast(v, np.ones(3)),
    "scatter": lambda v: synk.scatter(v, np.ones(3)),
}


@pytest.mark.parametrize("give", GIVE)
@pytest.mark.parametrize("when", ["before the next world", "in the next world"])
def test_a_lost_variable_is_usable_again(fork_row, give, when):
    with fork_row() as world:
        w, read = synk.variable(np.zeros(3), "w"), synk.variable(np.arange(3.0), "read")
        break_off(w, 0)
        with pytest.raises(synk.RankDied):
            break_off(w, 2)
    with pytest.raises(synk.VariableLost, match="the values of variable 'w' ended with the ranks"):
        w.get_value()
    if when == "before the next world":
        w.set_value(np.ones(3))
        assert_array_equal(w.get_value(), np.ones(3))
    with fork_row() as world:
        if when != "before the next world":
            with pytest.raises(synk.VariableLost):
                break_off(w, 0)
            GIVE[give](w)
        assert_array_equal(synk.snapshot(w), np.ones(3))
        break_off(w, 0)
        assert_array_equal(synk.snapshot(w), np.full(3, 2.0))
        assert_held(read, world, [np.arange(3.0)] * world.world_size)


def test_snapshots_as_copies(world):
    v, tree = (
        synk.variable(np.arange(3.0)),
        synk.variable({"a": np.zeros(1), "b": [np.ones((1, 2))]}),
    )
    rows = {"a": np.arange(5.0), "b": [np.arange(10.0).reshape(5, 2)]}
    synk.scatter(tree, rows)
    got = synk.snapshot({"v": v, "more": (tree,)})
    assert list(got) == ["v", "more"]
    assert type(got["more"]) is tuple
    assert_array_equal(got["more"][0]["a"], rows["a"])
    assert_array_equal(got["more"][0]["b"][0], rows["b"][0])
    got["v"][:] = 9.0
    assert_array_equal(v.get_value(), np.arange(3.0))
    with pytest.raises(synk.ArgumentError, match="snapshot needs a Variable"):
        synk.snapshot([v, 1.0])


def test_starting_again(row, fork_row):
    """The same world, functions and variables; one RankDied for each death; another snapshot
    after it.
    """
    if row["device"] == "private":
        pytest.skip("its ranks are patched at the fork")
    with synk.fork(**row, respawn=True) as world:
        w, g, data = (
            synk.variable(np.ones(3), "w"),
            synk.variable(np.full(3, 8.0), "g"),
            synk.data(np.arange(7.0)),
        )

        @synk.function(givens={"w": w})
        def bound(a, w):
            w += a

        world.snapshot()
        for k in range(3):
            before = world.pids
            bound(1.0)
            world.snapshot()
            bound(1.0)
            decay(g, w, 0.0)
            kill(world)
            with pytest.raises(
                synk.RankDied,
                match=r"every Data keeps its contents\. The next call starts them again\.",
            ):
                bound(1.0)
            assert world.closed
            bound(0.5)
            assert not world.closed
            assert set(world.pids).isdisjoint(before)
            assert kernels.total_of(data) == 21.0
            assert_held(w, world, [np.full(3, 2.5 + 1.5 * k)] * world.world_size)
    assert world.closed
    with pytest.raises(synk.WorldError, match="no world is open"):
        bound(1.0)
    with fork_row() as other:
        bound(1.0)
        assert_held(w, other, [np.full(3, 6.5)] * other.world_size)


def test_private_memory_is_fetched_at_close(fork_row, row, monkeypatch):
    """A variable of more than is fetched is lost, and says so; one that nothing refers to is not
    fetched.
    """
    if row["device"] != "private":
        pytest.skip("the script reads the memory of cores")
    monkeypatch.setattr("synknumba._variables.state.CLOSE_BYTES", 1 << 10)
    with fork_row():
        small, large = synk.variable(np.zeros(10), "small"), synk.variable(np.zeros(1000), "large")
        for one in (small, large):
            functions.add(one, 1.0)
    assert_array_equal(small.get_value(), np.ones(10))
    with pytest.raises(
        synk.VariableLost, match="'large' were not fetched when its world was closed"
    ):
        large.get_value()
