"""`rows=`: rows of variables, those that `local_batch` selects on each rank, in slices,
against NumPy.
"""

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from tests.conformance.variables import functions, model
from tests.conformance.variables.ranks import RECORD, assert_held, held, shard_of, shards

pytestmark = pytest.mark.usefixtures("usable")
ROWS_EACH = 4  # at least, on each rank

FOR_ALL = {  # one selection for all ranks
    "all": None,
    "int": 2,
    "NumPy int": np.int16(3),
    "slice": slice(1, 3),
    "open slice": slice(-2, None),
    "stepped": slice(0, None, 2),
    "backwards": slice(None, None, -1),
    "list": [0, 2, 1],
    "negative": [-1, 0, -4],
    "duplicates": [1, 1, 3, 1],
    "tuple": (3, 0),
    "range": range(1, 4),
    "array": np.array([2, 0], np.int8),
    "unsigned": np.array([3], np.uint64),
}
FOR_EACH = {  # one for each rank; the first has rows in all of them
    "slices": lambda rank, n: slice(rank % 2, 3),
    "lists": lambda rank, n: [rank % n, 0, -1],
    "lists and None": lambda rank, n: None if rank % 2 else [n - 1, 1],
    "None": lambda rank, n: None,
    "slices of which some are empty": lambda rank, n: slice(2, 0) if rank % 2 else slice(0, 3),
    "lists of which some are empty": lambda rank, n: [] if rank % 2 else [3, 3],
    "arrays of different lengths": lambda rank, n: np.arange(rank % 3 + 1),
    "ints and slices": lambda rank, n: 2 if rank else slice(None),
    "masks": lambda rank, n: np.arange(n) % 2 == 0,
    "ranges": lambda rank, n: range(n - 1, -1, -2),
    "a mixture": lambda rank, n: [slice(1, None, 2), [0, 0], None, (1,), np.array([-2])][rank % 5],
}
SELECTIONS = [*FOR_ALL, *FOR_EACH, "2-D array"]


def selection(name, lengths):
    """A `local_batch`, and what it selects on each rank."""
    if name in FOR_ALL:
        return FOR_ALL[name], [FOR_ALL[name]] * len(lengths)
    if name == "2-D array":
        array = np.array([[rank % 3, 1, -1] for rank in range(len(lengths))])
        return array, list(array)
    chosen = [FOR_EACH[name](rank, n) for rank, n in enumerate(lengths)]
    return chosen, chosen


def scattered(world, columns=None):
    """A variable of different numbers of rows on the ranks."""
    n = ROWS_EACH * world.world_size + world.world_size // 2
    value = np.arange(1.0 * n * (columns or 1)).reshape((n, columns) if columns else n)
    return synk.scatter(synk.variable(np.zeros_like(value[:1])), value)


def check_ops(got, parts, ran):
    """Sum, mean by rows, gathered rows, and one value a rank."""
    total, mean, rows, each = got
    whole = np.concatenate(parts)
    assert_allclose(total, whole.sum(0))
    assert_allclose(mean, whole.mean(0))
    assert_array_equal(rows, whole)
    for one, part in zip(each, parts, strict=True):
        assert (one is None) == (ran and not len(part))
        if one is not None:
            assert_allclose(one, part.sum(0))


# ---- alone ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SELECTIONS)
def test_selected_rows(world, name):
    v = scattered(world)
    whole = held(v, world)
    local_batch, chosen = selection(name, synk.get_lengths(v))
    parts = [model.select(one, mine) for one, mine in zip(chosen, whole, strict=True)]
    for num_slices in (1, 2, 3):
        for _ in range(2):
            got = functions.of_own_rows(v, local_batch=local_batch, num_slices=num_slices)
            check_ops(got[:4], parts, ran=False)
            assert got.count == sum(map(len, parts))
            got = functions.python_of_own_rows(v, local_batch=local_batch, num_slices=num_slices)
            check_ops(got.values(), parts, ran=True)
    assert_held(v, world, lambda rank: whole[rank])


def test_other_selections_of_one_plan(world):
    """Lists of ever other lengths and rows, in one piece of shared memory that grows; and known
    calls between them.
    """
    v = scattered(world)
    whole = held(v, world)
    rng = np.random.default_rng(8)
    for length in (1, 3, 2, 700, 2, 5000, 4):
        chosen = [rng.integers(0, len(mine), length) for mine in whole]
        parts = [mine[one] for one, mine in zip(chosen, whole, strict=True)]
        assert (
            functions.of_own_rows(v, local_batch=chosen, output_subset="total")
            == np.concatenate(parts).sum()
        )
        low = [slice(length % 3, None)] * world.world_size
        got = functions.python_of_own_rows(v, local_batch=low)
        assert_array_equal(got["rows"], np.concatenate([mine[length % 3 :] for mine in whole]))
        assert functions.of_own_rows(v).total == np.concatenate(whole).sum()


def test_other_values_between_known_calls(world):
    v = scattered(world)
    for n in (3, 20, 3, 1):
        for _ in range(2):
            parts = held(v, world)
            assert_array_equal(functions.of_own_rows(v).rows, np.concatenate(parts))
            assert_array_equal(functions.python_of_own_rows(v)["rows"], np.concatenate(parts))
        synk.scatter(v, np.arange(1.0 * n))
        synk.set_value(0, v, np.arange(n + 2.0))


def test_ranks_without_rows(world):
    """As scattered: fewer rows than ranks."""
    v = synk.scatter(synk.variable(np.zeros(1)), np.array([5.0]))
    for num_slices in (1, 2):
        check_ops(functions.of_own_rows(v, num_slices=num_slices)[:4], held(v, world), ran=False)
        check_ops(
            functions.python_of_own_rows(v, num_slices=num_slices).values(),
            held(v, world),
            ran=True,
        )
    last = [None] * (world.world_size - 1) + [[-1, -1]]
    assert functions.of_own_rows(v, local_batch=last).total == 10


def test_replicas_are_rows_of_each_rank(world):
    v = synk.variable(np.arange(5.0))
    got = functions.of_own_rows(v, local_batch=[1, 4])
    assert got.total == 5 * world.world_size
    assert_array_equal(got.rows, np.tile([1.0, 4.0], world.world_size))
    serial = functions.of_own_rows.as_serial(v, local_batch=[1, 4], num_slices=2)
    assert (serial.total, serial.mean, serial.count) == (5, 2.5, 2)
    assert_array_equal(serial.rows, [1.0, 4.0])
    assert_array_equal(
        functions.python_of_own_rows.as_serial(v, local_batch=[slice(3)])["rows"], [0.0, 1.0, 2.0]
    )


def test_rows_of_records(world):
    value = np.zeros(3 * world.world_size + 1, RECORD)
    value["a"], value["b"] = np.arange(len(value)), np.arange(len(value)) / 2
    v = synk.scatter(synk.variable(value[:1]), value)

    @synk.parallel(outputs={"rows": synk.output("gather", like="v")}, rows=("v",))
    def copied(v, rows):
        i = cuda.grid(1)
        if i < v.shape[0]:
            rows[i]["a"] = v[i]["a"]
            rows[i]["b"] = v[i]["b"]

    for chosen in ([2, 0], slice(None, None, -1), slice(1, 3)):
        for num_slices in (1, 2):
            wanted = np.concatenate([model.select(chosen, mine) for mine in shards(value, world)])
            assert_array_equal(copied(v, local_batch=chosen, num_slices=num_slices), wanted)


def test_trees_and_several_variables(world):
    """All arrays of a tree, and all variables of a nested argument, are cut alike."""
    n = 3 * world.world_size + 1
    a, b, c = np.arange(2.0 * n).reshape(n, 2), np.arange(n), np.arange(1.0 * n) * 10
    tree = synk.scatter(synk.variable({"a": a[:1], "b": [b[:1]]}), {"a": a, "b": [b]})
    other = synk.scatter(synk.variable(c[:1]), c)

    @synk.function(outputs="gather", rows=("parts",))
    def rows(parts):
        one, two = parts
        return one["a"], one["b"][0], two

    for chosen in (None, [1, 0], slice(-1, None), [[rank % 3] for rank in range(world.world_size)]):
        per_rank = (
            chosen
            if isinstance(chosen, list) and isinstance(chosen[0], list)
            else [chosen] * world.world_size
        )
        for num_slices in (1, 2):
            got = rows((tree, other), local_batch=chosen, num_slices=num_slices)
            for array, mine in zip((a, b, c), got, strict=True):
                parts = [
                    model.select(one, s)
                    for one, s in zip(per_rank, shards(array, world), strict=True)
                ]
                assert_array_equal(mine, np.concatenate(parts))
                assert mine.dtype == array.dtype


# ---- written back --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in SELECTIONS if name != "duplicates"])
def test_rows_are_written_back(world, name):
    v = scattered(world)
    local_batch, chosen = selection(name, synk.get_lengths(v))
    wanted = held(v, world)
    positions = [
        model.select(one, np.arange(len(mine))) for one, mine in zip(chosen, wanted, strict=True)
    ]
    if any(len(set(one.tolist())) < len(one) for one in positions):
        with pytest.raises(synk.BatchError, match=r"lists a row twice on rank \d.*inout"):
            functions.double_rows(v, local_batch=local_batch)
        assert_held(v, world, lambda rank: wanted[rank])
        return
    for num_slices in (1, 2, 3):
        functions.double_rows(v, local_batch=local_batch, num_slices=num_slices)
        functions.square_rows(v, local_batch=local_batch, num_slices=num_slices)
        for mine, one in zip(wanted, positions, strict=True):
            mine[one] = (2 * mine[one]) ** 2
        assert_held(v, world, lambda rank: wanted[rank])


# ---- beside inputs -------------------------------------------------------------------------------


def of_lengths(name, sizes):
    """A `local_batch` that selects so many rows on each rank, or None where all are as many."""
    rng = np.random.default_rng(9)
    return {
        "all": None,
        "slices": [slice(-size, None) if size else slice(0, 0) for size in sizes],
        "lists": [rng.integers(0, ROWS_EACH, size) if size else [] for size in sizes],
    }[name]


@pytest.mark.parametrize("make", [np.asarray, synk.data], ids=["array", "Data"])
@pytest.mark.parametrize("own", ["all", "slices", "lists"])
@pytest.mark.parametrize("batch", [None, 7, slice(1, 10, 2), [9, 0, 0, -1, 4]], ids=str)
def test_beside_inputs_of_every_kind(world, batch, own, make):
    """Rows of an input, of a minibatch input and of a variable, beside a broadcast array; and a
    variable that is updated.
    """
    x = np.arange(1.0, 12.0)
    chosen = model.select(batch, x)
    m, c = np.arange(20.0) + 0.5, np.array([3.0])
    minibatch = synk.data(m, minibatch=True)
    mine = [len(one) for one in shards(chosen, world)]
    value = (
        np.arange(10.0, 10 + len(chosen))
        if own == "all"
        else np.arange(1.0 * world.world_size * (max(mine) + ROWS_EACH))
    )
    v = synk.scatter(synk.variable(value[:1]), value)
    local_batch = of_lengths(own, mine)
    parts = []
    for rank in range(world.world_size):
        own_rows = model.select(
            None if local_batch is None else local_batch[rank], shard_of(value, world, rank)
        )
        parts.append(
            shard_of(chosen, world, rank) * shard_of(m[: len(chosen)], world, rank) + 3 * own_rows
        )
    s = synk.variable(np.array(2.0))

    @synk.function(updates={"acc": (s, "sum")}, givens={"old": s, "c": 3.0}, rows=("v",))
    def update(x, m, v, c, old, acc):
        acc += old * (x * m + c * v).sum()

    for num_slices in (1, 2, 3):
        options = {"batch": batch, "local_batch": local_batch, "num_slices": num_slices}
        got = functions.of_rows_and_own_rows(make(x), minibatch, c, v, **options)
        check_ops(got, parts, ran=False)
        got = functions.python_of_rows_and_own_rows(make(x), minibatch, make(c), v, **options)
        check_ops(got.values(), parts, ran=True)
        synk.broadcast(s, 2.0)
        update(make(x), minibatch, v, **options)
        for rank, part in enumerate(parts):
            assert_allclose(synk.get_value(rank, s), 2 * part.sum())


def test_functions_take_inputs_and_variables_of_different_lengths(world):
    """Each is cut by the one rule; a slice runs where either has rows."""
    for n, own in ((1, 9), (9, 1), (2, 3), (20, 7)):
        x, value = np.arange(1.0 * n), np.arange(1.0 * own)
        v = synk.scatter(synk.variable(value[:1]), value)
        for num_slices in (1, 2, 3):
            for _ in range(2):
                lengths, own_lengths, rows = functions.lengths_of(x, v, num_slices=num_slices)
                pairs = [
                    (len(a), len(b))
                    for a, b in zip(shards(x, world), shards(value, world), strict=True)
                ]
                assert list(zip(lengths, own_lengths, strict=True)) == [
                    pair if any(pair) else (None, None) for pair in pairs
                ]
                assert_array_equal(rows, value)


def test_selected_rows_of_inputs_and_variables_of_different_lengths(world):
    x, value = np.arange(9.0), np.arange(3.0 * world.world_size)
    v = synk.scatter(synk.variable(value[:1]), value)
    own = [[0, 0]] + [[]] * (world.world_size - 1)
    for num_slices in (1, 2):
        lengths, own_lengths, rows = functions.lengths_of(
            x, v, batch=[8, 8], local_batch=own, num_slices=num_slices
        )
        pairs = [(len(part), 2 * (rank == 0)) for rank, part in enumerate(shards(x[[8, 8]], world))]
        assert list(zip(lengths, own_lengths, strict=True)) == [
            pair if any(pair) else (None, None) for pair in pairs
        ]
        assert_array_equal(rows, [0.0, 0.0])


def test_slices_of_inputs_and_variables_of_different_lengths(world):
    @synk.function(outputs=None, rows=("v",))
    def slices(x, v):
        return np.array([[x.shape[0], v.shape[0]]])

    pairs = slices(np.zeros(7 * world.world_size), synk.variable(np.zeros(2)), num_slices=3)
    assert_array_equal(pairs, np.tile([[[7, 2]]], (world.world_size, 1, 1)))

    @synk.function(outputs="gather", rows=("v",))
    def each_slice(x, v):
        return np.array([[x.shape[0], v.shape[0]]])

    got = each_slice(np.zeros(7 * world.world_size), synk.variable(np.zeros(2)), num_slices=3)
    assert_array_equal(got, np.tile([[2, 0], [2, 1], [3, 1]], (world.world_size, 1)))


def test_means_are_weighted_by_the_rows_of_inputs_where_there_are_any(world):
    @synk.function(outputs="mean", rows=("v",))
    def own_sum(x, v):
        return v.sum()

    value = np.arange(5.0 * world.world_size)
    v = synk.scatter(synk.variable(value[:1]), value)
    for n in (1, 2, 13):
        x = np.zeros(n)
        for num_slices in (1, 2, 3):
            weighted, weights = [], []
            for mine, own in zip(shards(x, world), shards(value, world), strict=True):
                cuts = zip(model.cut(mine, num_slices), model.cut(own, num_slices), strict=True)
                sums = [(part.sum(), len(rows)) for rows, part in cuts]
                weighted += [total for total, _ in sums]
                weights += [length for _, length in sums]
            assert_allclose(own_sum(x, v, num_slices=num_slices), model.mean(weighted, weights))


def test_offsets_of_own_rows_are_positions_in_the_whole(world):
    v = scattered(world)

    @synk.function(outputs="gather", rows=("v",))
    def places(v, offset):
        return offset + np.arange(v.shape[0])

    n = sum(synk.get_lengths(v))
    for num_slices in (1, 3):
        assert_array_equal(places(v, synk.OFFSET, num_slices=num_slices), np.arange(n))


def test_index_ranges_beside_own_rows(world):
    v = scattered(world)
    n = sum(synk.get_lengths(v))

    @synk.parallel(outputs={"out": synk.output("gather", shape=(), dtype="float64")}, rows=("v",))
    def minus_place(span, v, out):
        i = cuda.grid(1)
        if i < v.shape[0]:
            out[i] = v[i] - (span.start + i)

    for num_slices in (1, 2):
        assert_array_equal(minus_place(synk.arange(n), v, num_slices=num_slices), np.zeros(n))
