"""What moves arrays and does not compute: broadcast, scatter, gather, all_gather, all_to_all,
values of single ranks, lengths, shapes.
"""

import subprocess
import sys

import numpy as np
import pytest

import synknumba as synk
from tests.conformance.collectives.cases import (
    DTYPES,
    LARGE,
    SHAPES,
    assert_held,
    assert_same,
    differing,
    numbers,
    put,
    rows_of,
)
from tests.environment import environment
from tests.machines import jobs

WITH_ROWS = [*(shape for shape in SHAPES if shape), LARGE]
BATCHES = {
    "first": 5,
    "slice": slice(2, 9),
    "stepped": slice(1, None, 3),
    "backwards": slice(None, None, -2),
    "from the end": slice(-3, None),
    "list": [3, 0, 3, -1],
    "indices": np.array([7, 7, 1], np.int16),
    "one": [4],
}
with_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.fixture
def rng():
    return np.random.default_rng(21)


def unequal(rng, world, dtype, rest=(), largest=11):
    """A variable of another length on each rank, the last one's 0 if there are several."""
    lengths = [(rank * 5 + 3) % largest for rank in range(world.world_size)]
    if world.world_size > 1:
        lengths[-1] = 0
    arrays = [numbers(rng, dtype, (length, *rest)) for length in lengths]
    v = synk.variable(arrays[0])
    put(v, arrays)
    return v, arrays


# ---- broadcast


@with_dtypes
def test_broadcast_what_the_root_has(world, dtype, rng):
    for k, shape in enumerate([*SHAPES, LARGE]):
        v, arrays = differing(rng, world, dtype, shape)
        root = k % world.world_size
        assert synk.broadcast(v, root=root) is v
        assert_held(v, world, [arrays[root]] * world.world_size)


@with_dtypes
def test_broadcast_values(world, dtype, rng):
    v = synk.variable(np.zeros(3, dtype))
    for length in (3, 5, 0, 1, LARGE[0] * 2):
        value = numbers(rng, dtype, (length,))
        assert synk.broadcast(v, value) is v
        assert_held(v, world, [value] * world.world_size)


@with_dtypes
def test_broadcast_the_shape_too(world, dtype, rng):
    for root in range(world.world_size):
        v, arrays = unequal(rng, world, dtype, (2,))
        synk.broadcast(v, root=root)
        assert_held(v, world, [arrays[root]] * world.world_size)


def test_broadcast_of_shards_makes_them_replicas(world):
    v = synk.variable(np.zeros(1))
    synk.scatter(v, np.arange(10.0))
    synk.broadcast(v)
    assert_held(v, world, [np.arange(10.0)[rows_of(10, world.world_size, 0)]] * world.world_size)
    assert "replicas equal" in repr(v)


@with_dtypes
def test_broadcast_some_from_values_and_others_from_the_root(world, dtype, rng):
    """In lists and dicts, of any shapes; a variable's own array may be another one's value; and
    repeated.
    """
    size = world.world_size
    for k, shape in enumerate([(3,), (7,), LARGE]):
        root = (k + 1) % size
        a, _ = differing(rng, world, dtype, (3, *shape[1:]))
        b, of_b = differing(rng, world, dtype, shape)
        c, of_c = unequal(rng, world, dtype)
        x = numbers(rng, dtype, shape)
        several = {"a": a, "b": b, "rest": [c]}
        for _ in range(2):
            assert (
                synk.broadcast(several, {"rest": [None], "a": x, "b": None}, root=root) is several
            )
            assert_held(a, world, [x] * size)
            assert_held(b, world, [of_b[root]] * size)
            assert_held(c, world, [of_c[root]] * size)
            assert all("replicas equal" in repr(one) for one in (a, b, c))
            put(b, of_b)
            put(c, of_c)
        synk.broadcast((a, b), (b, None), root=root)
        assert_held(a, world, [of_b[0]] * size)
        assert_held(b, world, [of_b[root]] * size)
        put(b, of_b)
        synk.broadcast([b, c], [None, None], root=root)
        assert_held(b, world, [of_b[root]] * size)
        assert_held(c, world, [of_c[root]] * size)


def test_broadcast_of_trees_some_from_values(world, rng):
    size = world.world_size
    tree, v = (
        synk.vector({"w": np.zeros(2), "b": np.zeros(1)}),
        synk.scatter(synk.variable(np.zeros(1)), np.arange(11.0)),
    )
    new = {"w": np.ones(2), "b": np.full(1, 3.0)}
    synk.broadcast([tree, v], [new, None])
    first = np.arange(11.0)[rows_of(11, size, 0)]
    assert_held(v, world, [first] * size)
    for rank in range(size):
        assert_same(tree.get_value(rank)["w"], new["w"])
        synk.set_value(rank, tree, {"w": np.full(2, rank), "b": [7.0 + rank]})
    synk.broadcast([tree, v], [None, np.arange(4.0)], root=size - 1)
    assert_held(v, world, [np.arange(4.0)] * size)
    for rank in range(size):
        assert_same(tree.get_value(rank)["w"], np.full(2, size - 1.0))
        assert_same(tree.get_value(rank)["b"], np.array([6.0 + size]))


# ---- scatter


@with_dtypes
def test_scatter(world, dtype, rng):
    size = world.world_size
    for rest in [(), (2,), (3, 2)]:
        v = synk.variable(np.zeros((1, *rest), dtype))
        for length in (0, 1, 2, 5, 10, 11):  # fewer rows than ranks, too
            value = numbers(rng, dtype, (length, *rest))
            assert synk.scatter(v, value) is v
            assert_held(v, world, [value[rows_of(length, size, rank)] for rank in range(size)])


def test_scatter_some_from_values_and_others_from_the_root(world, rng):
    a, _ = differing(rng, world, "float32", (4,))
    b, of_b = differing(rng, world, "int64", (9, 2))
    x = numbers(rng, "float32", (7,))
    synk.scatter([a, b], [x, None])
    assert_held(
        a, world, [x[rows_of(7, world.world_size, rank)] for rank in range(world.world_size)]
    )
    assert_held(
        b, world, [of_b[0][rows_of(9, world.world_size, rank)] for rank in range(world.world_size)]
    )


def test_scatter_much(world, rng):
    for dtype in ("uint8", "float64"):
        value = numbers(rng, dtype, LARGE)
        v = synk.scatter(synk.variable(value[:1]), value)
        assert_held(
            v,
            world,
            [
                value[rows_of(len(value), world.world_size, rank)]
                for rank in range(world.world_size)
            ],
        )


def test_scatter_what_the_root_has(world, rng):
    v, arrays = differing(rng, world, "int32", (11, 2))
    synk.scatter(v)
    assert_held(
        v,
        world,
        [arrays[0][rows_of(11, world.world_size, rank)] for rank in range(world.world_size)],
    )


def test_rows_of_scatter_are_those_of_calls(world):
    """5 rows on 2 ranks: 2, 3; on 3: 1, 2, 2; 10 on 4: 2, 3, 2, 3."""
    v = synk.scatter(synk.variable(np.zeros(1)), np.arange(5.0))
    assert (
        synk.get_lengths(v) == {1: [5], 2: [2, 3], 3: [1, 2, 2], 4: [1, 1, 1, 2]}[world.world_size]
    )
    synk.scatter(v, np.arange(10.0))
    assert (
        synk.get_lengths(v) == {1: [10], 2: [5, 5], 3: [3, 3, 4], 4: [2, 3, 2, 3]}[world.world_size]
    )


@pytest.mark.parametrize("name", BATCHES)
def test_scatter_a_batch(world, name, rng):
    batch, size = BATCHES[name], world.world_size
    value = numbers(rng, "float32", (11, 2))
    chosen = value[:batch] if isinstance(batch, int) else value[batch]
    parts = [chosen[rows_of(len(chosen), size, rank)] for rank in range(size)]
    v = synk.variable(value[:1])
    synk.scatter(v, value, batch=batch)
    assert_held(v, world, parts)
    synk.broadcast(v, value)
    synk.scatter(v, batch=batch)  # of what the root has
    assert_held(v, world, parts)


# ---- gather


@with_dtypes
def test_gather(world, dtype, rng):
    for shape in [*SHAPES, LARGE]:
        v, arrays = differing(rng, world, dtype, shape)
        assert_same(synk.gather(v), np.stack(arrays))
        assert_same(synk.gather(v, nd_up=1), np.stack(arrays))
        if shape:
            assert_same(synk.gather(v, nd_up=0), np.concatenate(arrays))
        assert_held(v, world, arrays)


def test_gather_joins_what_is_divided(world):
    """Rows of divided variables, and one entry per rank of replicas, also of one tree."""
    rows, size = np.arange(6.0 * world.world_size + 1).reshape(-1, 1), world.world_size
    divided, replica = (
        synk.scatter(synk.variable(rows)),
        synk.variable({"a": np.arange(2), "b": np.array(3.0)}),
    )
    found = synk.gather({"divided": divided, "replica": [replica]})
    assert_same(found["divided"], rows)
    assert_same(found["replica"][0]["a"], np.tile(np.arange(2), (size, 1)))
    assert_same(found["replica"][0]["b"], np.full(size, 3.0))
    synk.broadcast(divided, rows)
    assert_same(synk.gather(divided), np.stack([rows] * size))
    summed = synk.reduce_scatter(synk.variable(np.ones((2 * size, 3))), "sum")
    assert_same(synk.gather(summed), np.full((2 * size, 3), float(size)))


@with_dtypes
def test_gather_unequal_lengths(world, dtype, rng):
    for rest in [(), (2,), (2, 3)]:
        v, arrays = unequal(rng, world, dtype, rest)
        assert_same(synk.gather(v, nd_up=0), np.concatenate(arrays))


def test_gather_gives_copies(world):
    v = synk.variable(np.ones(3))
    for copied in (
        synk.gather(v),
        synk.gather(v, nd_up=0),
        synk.get_value(0, v),
        v.get_value(),
        np.asarray(v),
    ):
        copied[...] = 7
        assert_held(v, world, [np.ones(3)] * world.world_size)


@with_dtypes
def test_scattered_and_gathered_is_what_was(world, dtype, rng):
    v = synk.variable(np.zeros((1, 2), dtype))
    for length in (0, 1, 7, LARGE[0]):
        value = numbers(rng, dtype, (length, 2))
        assert_same(synk.gather(synk.scatter(v, value), nd_up=0), value)


# ---- all_gather


@with_dtypes
def test_all_gather(world, dtype, rng):
    for shape in WITH_ROWS:
        v, arrays = differing(rng, world, dtype, shape)
        dest = synk.variable(np.zeros((1,) * len(shape), dtype))
        whole = [np.concatenate(arrays)] * world.world_size
        for _ in range(2):  # the second time dest has the shapes already
            assert synk.all_gather(v, dest=dest) is dest
            assert_held(dest, world, whole)
            assert_held(v, world, arrays)
        assert synk.all_gather(v) is v
        assert_held(v, world, whole)


@with_dtypes
def test_all_gather_unequal_lengths(world, dtype, rng):
    for rest in [(), (2,), (2, 3)]:
        v, arrays = unequal(rng, world, dtype, rest)
        dest = synk.variable(np.zeros((1, *rest), dtype))
        whole = [np.concatenate(arrays)] * world.world_size
        synk.all_gather(v, dest=dest)
        assert_held(dest, world, whole)
        synk.all_gather(v)
        assert_held(v, world, whole)


def test_all_gather_much_of_unequal_lengths(world, rng):
    v, arrays = unequal(rng, world, "float32", (7001,), largest=9)
    synk.all_gather(v)
    assert_held(v, world, [np.concatenate(arrays)] * world.world_size)


# ---- all_to_all


def divided(rng, dtype, lengths, rest=()):
    """A variable divided by rows, of such a number on each rank."""
    arrays = [numbers(rng, dtype, (length, *rest)) for length in lengths]
    v = synk.scatter(synk.variable(np.zeros((1, *rest), dtype)))
    put(v, arrays)
    return v, arrays


def sent(arrays, counts):
    """What each rank gets, by NumPy."""
    blocks = [
        np.split(array, np.cumsum(row)[:-1]) for array, row in zip(arrays, counts, strict=True)
    ]
    return list(map(np.concatenate, zip(*blocks, strict=True)))


def some_counts(rng, size, most=6):
    """Rows by sending and receiving rank: many are 0, and with several ranks, all that the last one
    sends, and all that the first one gets.
    """
    counts = rng.integers(0, most, (size, size)) * (rng.random((size, size)) < 0.7)
    if size > 1:
        counts[-1] = counts[:, 0] = 0
    return counts


@with_dtypes
def test_all_to_all(world, dtype, rng):
    size = world.world_size
    for rest in [(), (3,), (2, 0), (2, 3, 2)]:
        for lengths in ([size * 2] * size, [size * rank for rank in range(size)], [0] * size):
            v, arrays = divided(rng, dtype, lengths, rest)
            dest = synk.variable(np.zeros((1, *rest), dtype))
            expected = sent(arrays, [[length // size] * size for length in lengths])
            for _ in range(3):  # dest has the shapes then, and the plan is known
                assert synk.all_to_all(v, dest) is dest
                assert_held(dest, world, expected)
                assert_held(v, world, arrays)
                put(v, arrays := [array[::-1].copy() for array in arrays])
                expected = sent(arrays, [[length // size] * size for length in lengths])
            assert synk.all_to_all(v) is v
            assert_held(v, world, expected)
            assert_same(synk.gather(v), np.concatenate(expected))  # it is divided


@with_dtypes
def test_all_to_all_of_unequal_blocks(world, dtype, rng):
    for rest in [(), (3,), (2, 2)]:
        for _ in range(3):
            counts = some_counts(rng, world.world_size)
            v, arrays = divided(rng, dtype, counts.sum(1), rest)
            dest = synk.scatter(synk.variable(np.zeros((4, *rest), dtype)))
            expected = sent(arrays, counts)
            assert synk.all_to_all(v, dest, counts) is dest
            assert_held(dest, world, expected)
            assert_held(v, world, arrays)
            assert synk.all_to_all(v, counts=counts.tolist()) is v
            assert_held(v, world, expected)
            synk.all_to_all(v, counts=np.diag(list(map(len, expected))).astype("u1"))  # all stays
            assert_held(v, world, expected)


@synk.function
def count_targets(keys, counts, size):
    """Sorts a rank's keys, and counts those that go to each rank, which is their remainder."""
    keys[:] = keys[(keys % size).argsort(kind="stable")]
    for rank in range(size):
        counts[rank] = (keys % size == rank).sum()


@pytest.mark.parametrize("shape", ["replicas", "rows"])
def test_all_to_all_by_counts_of_the_ranks(world, shape, rng):
    """Keys go where they belong, and back."""
    size = world.world_size
    whole = rng.integers(0, 1000, 7 * size + 3)
    keys, back = (synk.scatter(synk.variable(whole)) for _ in range(2))
    counts = synk.variable(np.zeros(size, "int32"))
    count_targets(keys, counts, size)
    table = np.stack([counts.get_value(rank) for rank in range(size)])
    assert table.sum() == len(whole)
    if shape == "rows":
        counts = synk.scatter(synk.variable(table))
    before = synk.gather(keys)
    synk.all_to_all(keys, counts=counts)
    for rank in range(size):
        found = keys.get_value(rank)
        assert (found % size == rank).all()
    assert_same(np.sort(synk.gather(keys)), np.sort(whole))
    synk.all_to_all(keys, back, counts=table.T)
    assert_same(synk.gather(back), before)


def test_all_to_all_of_several_and_of_trees(world, rng):
    """Position, charge and number of particles go together."""
    counts = some_counts(rng, world.world_size)
    lengths = counts.sum(1)
    x, of_x = divided(rng, "float32", lengths, (3,))
    number, of_number = divided(rng, "int64", lengths)
    dest = {"x": synk.variable(np.zeros((1, 3), "f4")), "n": [synk.variable(np.zeros(1, "i8"))]}
    assert synk.all_to_all({"x": x, "n": [number]}, dest, counts) is dest
    assert_held(dest["x"], world, sent(of_x, counts))
    assert_held(dest["n"][0], world, sent(of_number, counts))
    rows = {"a": numbers(rng, "float64", (2 * world.world_size**2, 2)), "b": np.zeros(0)}
    parts = np.split(rows["a"], world.world_size)
    wanted = np.concatenate(sent(parts, np.full((world.world_size,) * 2, 2)))
    for make in (synk.variable, synk.vector):
        found = synk.gather(synk.all_to_all(synk.scatter(make(rows))))
        assert_same(found["a"], wanted)
        assert_same(found["b"], rows["b"])


def test_all_to_all_between_two_that_trade(world, rng):
    """What is overwritten is read by all first."""
    size = world.world_size
    v, of_v = divided(rng, "int32", [2 * size] * size)
    w, of_w = divided(rng, "int32", [2 * size] * size)
    counts = np.full((size, size), 2)
    synk.all_to_all([v, w], [w, v])
    assert_held(w, world, sent(of_v, counts))
    assert_held(v, world, sent(of_w, counts))


def test_all_to_all_much(world, rng):
    size = world.world_size
    counts = rng.integers(0, 9000, (size, size))
    v, arrays = divided(rng, "uint8", counts.sum(1), (100,))
    synk.all_to_all(v, counts=counts)
    assert_held(v, world, sent(arrays, counts))


ALLTOALLV = """
import sys
import numpy as np
from mpi4py import MPI
rank, counts = MPI.COMM_WORLD.rank, np.load("counts.npy")
source, target = np.load("rows.npy", allow_pickle=True)[rank], np.empty(counts[:, rank].sum())
MPI.COMM_WORLD.Alltoallv([source, counts[rank]], [target, counts[:, rank]])
np.save(f"{rank}.npy", target)
"""


@pytest.mark.mpi
@pytest.mark.parametrize("row", [{"world_size": 3, "device": "cpu"}], indirect=True, ids=["cpu3"])
def test_all_to_all_is_that_of_mpi(world, rng, tmp_path):
    counts = some_counts(rng, 3, most=50)
    v, arrays = divided(rng, "float64", counts.sum(1))
    rows = np.empty(3, object)
    rows[:] = arrays
    np.save(tmp_path / "counts.npy", counts)
    np.save(tmp_path / "rows.npy", rows)
    command = [*jobs.launcher(), "-n", "3", sys.executable, "-c", ALLTOALLV]
    subprocess.run(command, check=True, cwd=tmp_path, env=environment(), timeout=60)
    synk.all_to_all(v, counts=counts)
    assert_held(v, world, [np.load(tmp_path / f"{rank}.npy") for rank in range(3)])


# ---- single ranks


@with_dtypes
def test_set_value_and_get_value(world, dtype, rng):
    for shape in [*SHAPES, LARGE]:
        v, arrays = differing(rng, world, dtype, shape)
        for rank in range(world.world_size):
            arrays[rank] = numbers(rng, dtype, shape)
            assert synk.set_value(rank, v, arrays[rank]) is v
            assert_held(v, world, arrays)
            assert_same(v.get_value(rank), arrays[rank])
        assert_same(v.get_value(), arrays[0])
        v.set_value(arrays[-1])
        assert_held(v, world, [arrays[-1]] * world.world_size)
        assert "replicas equal" in repr(v)


@with_dtypes
def test_set_value_of_another_shape(world, dtype, rng):
    v, arrays = differing(rng, world, dtype, (4, 2))
    for shape in [(7, 2), (0, 2), (1, 0), LARGE, (3, 3)]:
        rank = world.world_size - 1
        arrays[rank] = numbers(rng, dtype, shape)
        synk.set_value(rank, v, arrays[rank])
        assert_held(v, world, arrays)
    v.set_value(arrays[-1], rank=0)
    assert_held(v, world, [arrays[-1], *arrays[1:]])


@pytest.mark.parametrize("name", BATCHES)
def test_set_value_of_a_batch(world, name, rng):
    batch = BATCHES[name]
    value = numbers(rng, "int64", (11, 2))
    v = synk.variable(value[:1])
    synk.set_value(world.world_size - 1, v, value, batch=batch)
    expected = [value[:1]] * world.world_size
    expected[-1] = value[:batch] if isinstance(batch, int) else value[batch]
    assert_held(v, world, expected)


@with_dtypes
def test_set_value_without_a_rank_sets_all(world, dtype, rng):
    """Of another shape too; the variable's dtype stays, and trees are set whole."""
    v = synk.variable(numbers(rng, dtype, (3, 2)))
    for shape in [(3, 2), (5, 1), (0, 2), LARGE]:
        value = numbers(rng, dtype, shape)
        v.set_value(value)
        assert_held(v, world, [value] * world.world_size)
        assert_same(v.get_value(), value)
        assert_same(np.asarray(v), value)
        assert len(v) == shape[0]
        synk.set_value(world.world_size - 1, v, numbers(rng, dtype, shape))
    tree = synk.vector({"a": numbers(rng, dtype, (2,)), "b": [numbers(rng, dtype, ())]})
    a, b = numbers(rng, dtype, (2,)), numbers(rng, dtype, ())
    tree.set_value({"a": a, "b": [b]})
    for rank in range(world.world_size):
        assert_same(tree.get_value(rank)["a"], a)
        assert_same(tree.get_value(rank)["b"][0], b)


DIVIDED = {
    "scattered": lambda: synk.scatter(synk.variable(np.zeros(1)), np.arange(11.0)),
    "scattered evenly": lambda: synk.scatter(synk.variable(np.zeros(1)), np.zeros(60)),
    "reduced": lambda: synk.reduce_scatter(synk.variable(np.arange(11.0)), "sum"),
    "tree": lambda: synk.scatter(
        synk.variable({"a": np.zeros(1), "b": np.zeros(1)}), {"a": np.zeros(60), "b": np.ones(7)}
    ),
}


@pytest.mark.parametrize("name", DIVIDED)
def test_a_divided_variable_has_no_value_without_a_rank(world, name):
    """On one rank there is nothing to tell apart."""
    v = DIVIDED[name]()
    before = str([synk.get_value(rank, v) for rank in range(world.world_size)])
    value = {"a": np.ones(2), "b": np.ones(2)} if isinstance(v.dtype, dict) else np.ones(2)
    reads = [v.get_value, lambda: synk.variable(v), lambda: v.set_value(value)]
    if not isinstance(v.dtype, dict):
        reads += [
            lambda: np.asarray(v),
            lambda: np.mean(v),
            lambda: len(v),
            lambda: synk.variable(np.zeros(1)).set_value(v),
        ]
    for read in reads:
        if world.world_size == 1:
            read()
        else:
            with pytest.raises(
                synk.PartitionError,
                match=r"divided among the ranks \(shapes .*rank=….*synk\.(gather|scatter)",
            ):
                read()
    if world.world_size > 1:
        assert str([synk.get_value(rank, v) for rank in range(world.world_size)]) == before
    v.set_value(value, rank=world.world_size - 1)
    synk.broadcast(v, value)
    v.set_value(value)
    assert str(v.get_value()) == str(value)


def test_shapes_that_differ_between_ranks_are_divided(world, rng):
    v, arrays = unequal(rng, world, "float64")
    if world.world_size > 1:
        for read in (v.get_value, lambda: len(v), lambda: bool(v), lambda: v.set_value(np.ones(2))):
            with pytest.raises(synk.PartitionError, match="divided among the ranks"):
                read()
        assert_held(v, world, arrays)
    synk.broadcast(v)
    assert_same(np.asarray(v), arrays[0])


# ---- what there is


def test_lengths_and_shapes(world, rng):
    v, arrays = unequal(rng, world, "float32", (2,))
    assert synk.get_lengths(v) == [len(array) for array in arrays]
    assert synk.get_shapes(v) == [array.shape for array in arrays]
    assert synk.get_shapes(synk.variable(3.0)) == [()] * world.world_size
    assert v.shape == arrays[0].shape
    assert len(synk.broadcast(v)) == len(arrays[0])


def test_values_of_every_kind(world):
    """Arrays, `Data`, variables, Python and NumPy numbers, nested lists, arrays in any order and
    byte order; casts are safe.
    """
    v = synk.variable(np.zeros((2, 3)))
    plain = np.arange(6.0).reshape(2, 3)
    stepped = np.zeros((4, 6))
    stepped[::2, ::-2] = plain
    values = [
        synk.data(plain),
        synk.variable(plain),
        plain.tolist(),
        np.asfortranarray(plain),
        stepped[::2, ::-2],
        plain.astype(">f8"),
        plain.astype("int32"),
    ]
    for value in values:
        for give in (synk.broadcast, synk.scatter):
            synk.broadcast(v, np.zeros((2, 3)))
            give(v, value)
            assert_same(synk.gather(v, nd_up=0)[: len(plain)], plain)
    number = synk.variable(np.float32(0))
    for value in (
        2,
        2.0,
        np.float32(2),
        np.int16(2),
        np.array(2, "u1"),
        synk.data(np.float32(2)),
        True + True,
    ):
        synk.broadcast(number, 0)
        synk.broadcast(number, value)
        assert_held(number, world, [np.array(2, "f4")] * world.world_size)
