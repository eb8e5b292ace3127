"""Variables scattered with a halo, and `exchange`, against NumPy: windows of the padded whole."""

import os
import signal
import time
from itertools import pairwise

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_array_equal

import synknumba as synk
from synknumba._device import probe
from synknumba._variables import collective_plans
from tests.conformance.conftest import COLLECTIVE_ROWS, FOUR, LINKED, REPLAYED, REPLAYED_LINKED
from tests.conformance.variables.ranks import RECORD
from tests.quick import whole as left_out

pytestmark = pytest.mark.usefixtures("usable")

HALOS = [(1, False), (1, True), (2, False), (3, True), (3, False)]
with_halos = pytest.mark.parametrize(("width", "periodic"), HALOS, ids=str)


@pytest.fixture(params=[*COLLECTIVE_ROWS, FOUR, LINKED, REPLAYED, REPLAYED_LINKED])
def row(request):
    """The arguments of `fork()`: every way in which collectives travel."""
    needed = len(set(request.param.get("devices", ())))
    if needed > 2 and probe().count < needed:  # one GPU and two have markers
        pytest.skip(f"needs {needed} GPUs")
    return request.param


@pytest.fixture(params=["by the coordinator", "by the ranks"])
def who(request, monkeypatch):
    """Who makes the copies, where memory is shared."""
    if request.param == "by the ranks":
        monkeypatch.setattr(collective_plans, "DIRECT_BYTES", 0)


# ---- what NumPy says


def numbers(shape, dtype):
    """Numbers of which no two rows are alike."""
    dtype = np.dtype(dtype)
    if dtype.names is not None:
        made = np.empty(shape, dtype)
        for name in dtype.names:
            made[name] = numbers(shape, dtype[name])
        return made
    return (np.arange(int(np.prod(shape))).reshape(shape) % 251 + 1).astype(dtype)


def edges(n, size):
    return [rank * n // size for rank in range(size + 1)]


def bounds(n, size, width, periodic):
    """First and last row, as numbers that may lie beyond the ends, that each rank holds."""
    cuts = edges(n, size)
    for start, stop in pairwise(cuts):
        low, high = start - width, stop + width
        yield (low, high) if periodic else (max(low, 0), min(high, n))


def windows(whole, size, width, periodic):
    """What each rank holds, by NumPy."""
    return [
        np.take(whole, range(low, high), axis=0, mode="wrap")
        for low, high in bounds(len(whole), size, width, periodic)
    ]


def owned(whole, size):
    cuts = edges(len(whole), size)
    return [whole[start:stop] for start, stop in pairwise(cuts)]


@synk.function(outputs=None)
def look(u):
    """The array that the function gets."""
    return u.copy()


def assert_windows(variable, whole, size, width, periodic):
    for rank, (got, wanted) in enumerate(
        zip(look(variable), windows(whole, size, width, periodic), strict=True)
    ):
        assert_array_equal(got, wanted, f"rank {rank}", strict=True)


@synk.function
def spoil(u, own):
    """Writes own rows anew, and leaves halos stale."""
    u[own.start : own.stop] += u[own.start : own.stop]


@synk.function
def blank(u, own):
    """Clears the halos."""
    u[: own.start] = 0
    u[own.stop :] = 0


# ---- scatter and exchange


@pytest.mark.usefixtures("who")
@with_halos
@pytest.mark.parametrize("row_shape", [(), (3,), (2, 3)], ids=str)
def test_exchange_gives_the_neighbours_rows(world, row_shape, width, periodic):
    size = world.world_size
    whole = numbers((4 * size + size // 2, *row_shape), "float64")
    u = synk.scatter(synk.variable(np.zeros((1, *row_shape))), whole, halo=width, periodic=periodic)
    assert_windows(u, whole, size, width, periodic)
    for k in (2, 4, 8):  # the first run of a plan, the second, and those that are repetitions
        spoil(u, synk.OWN)
        if size > 1 or periodic:
            stale = np.concatenate([one.ravel() for one in look(u)])
            fresh = np.concatenate(
                [one.ravel() for one in windows(k * whole, size, width, periodic)]
            )
            assert not np.array_equal(stale, fresh)
        assert synk.exchange(u) is u
        assert_windows(u, k * whole, size, width, periodic)


@pytest.mark.usefixtures("who")
@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "float32", "complex128", RECORD], ids=str
)
def test_exchange_of_any_dtype(world, dtype):
    size = world.world_size
    whole = numbers((3 * size + 1, 5), dtype)
    u = synk.scatter(synk.variable(whole), halo=2, periodic=True)
    for k in range(2):
        for rank, part in enumerate(owned(whole, size)):
            synk.set_value(rank, u, part[::-1] if k else part)
        synk.exchange(u)
        now = np.concatenate([part[::-1] if k else part for part in owned(whole, size)])
        if np.dtype(dtype).names is None or world.device == "cpu":  # CuPy has no records
            assert_windows(u, now, size, 2, True)
        assert_array_equal(synk.gather(u, nd_up=0), now)


@pytest.mark.usefixtures("who")
@pytest.mark.parametrize("make", [synk.variable, synk.vector])
@pytest.mark.parametrize("periodic", [False, True])
def test_exchange_of_trees_and_several(world, make, periodic):
    """Arrays of different lengths and shapes, some without elements, in one exchange."""
    size = world.world_size
    wholes = {
        "a": numbers((3 * size, 2), "float32"),
        "b": [numbers((5 * size + 1,), "float32"), numbers((2 * size, 0), "float32")],
    }
    tree = synk.scatter(make(wholes), halo=2, periodic=periodic)
    other = synk.scatter(
        synk.variable(numbers((4 * size, 3), "int16")), halo=1, periodic=not periodic
    )
    for k in (2, 4):
        double(tree, other)
        blank_all(tree, synk.RANK, synk.WORLD_SIZE, 2, periodic)
        blank_all([other], synk.RANK, synk.WORLD_SIZE, 1, not periodic)
        synk.exchange({"tree": tree, "other": (other,)})
        found = look(tree)
        for parts, whole in zip(
            [found["a"], *found["b"]], [wholes["a"], *wholes["b"]], strict=True
        ):
            for part, wanted in zip(parts, windows(k * whole, size, 2, periodic), strict=True):
                assert_array_equal(part, wanted, strict=True)
        assert_windows(other, k * numbers((4 * size, 3), "int16"), size, 1, not periodic)
    assert_array_equal(synk.gather(tree, nd_up=0)["b"][0], 4 * wholes["b"][0])


# ---- halos added to rows


@synk.function
def skew(u, own, rank):
    """Gives halos other numbers than the rows that they are copies of."""
    u[: own.start] = u[: own.start] * (rank + 2) + 1
    u[own.stop :] = u[own.stop :] * (rank + 3) - 5


def added(arrays, n, size, width, periodic):
    """The whole, with the halos of all ranks' arrays added to their rows, by NumPy."""
    rows, cuts = np.arange(-width, n + width) % n, edges(n, size)
    whole = np.zeros((n, *arrays[0].shape[1:]), arrays[0].dtype)
    for array, (low, high) in zip(arrays, bounds(n, size, width, periodic), strict=True):
        np.add.at(whole, rows[low + width : high + width], array)
    assert cuts[-1] == n
    return whole


def own_part(array, rank, n, size, width, periodic):
    low, _ = [*bounds(n, size, width, periodic)][rank]
    start, stop = edges(n, size)[rank : rank + 2]
    return array[start - low : stop - low]


@pytest.mark.usefixtures("who")
@with_halos
@pytest.mark.parametrize("rest", [(), (2, 3)], ids=str)
def test_halos_are_added_to_rows(world, rest, width, periodic):
    """Also to rows that both neighbours have in their halos, and in a ring of one rank or two."""
    size = world.world_size
    for n in (width * size, width * size + size - 1, 9 * size + 1):
        u = synk.scatter(
            synk.variable(numbers((n, *rest), "float64")), halo=width, periodic=periodic
        )
        for _ in range(4):
            skew(u, synk.OWN, synk.RANK)
            before = look(u)
            whole = added(before, n, size, width, periodic)
            assert synk.exchange(u, add=True) is u
            assert_array_equal(synk.gather(u), whole)
            for rank, (old, new) in enumerate(zip(before, look(u), strict=True)):
                own_part(old, rank, n, size, width, periodic)[:] = whole[
                    slice(*edges(n, size)[rank : rank + 2])
                ]
                assert_array_equal(new, old)  # halos stay
            synk.scatter(u, numbers((n, *rest), "float64"), halo=width, periodic=periodic)


@pytest.mark.usefixtures("who")
@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_the_sum_is_the_transpose_of_the_exchange(world, width, periodic):
    """<exchange(u), w> = <u, exchange(w, add=True)>, the latter over own rows."""
    size, rng = world.world_size, np.random.default_rng(width)
    n = 5 * size + 2
    shape = n, 3
    u, w = (
        synk.scatter(synk.variable(rng.standard_normal(shape)), halo=width, periodic=periodic)
        for _ in range(2)
    )
    skew(u, synk.OWN, synk.RANK)
    skew(w, synk.OWN, synk.RANK)
    others = look(w)
    right = np.vdot(synk.gather(u), synk.gather(synk.exchange(w, add=True)))
    left = sum(map(np.vdot, look(synk.exchange(u)), others))
    assert left == pytest.approx(right, rel=1e-13, abs=1e-12)


@pytest.mark.usefixtures("who")
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "float16", "float32", "complex64"])
def test_halos_of_any_dtype_are_added(world, dtype):
    size = world.world_size
    n = 3 * size + 1
    tree = {"a": numbers((n, 5), dtype), "b": numbers(n, dtype)[::-1]}
    u = synk.scatter(synk.variable(tree), halo=2, periodic=True)
    v = synk.scatter(synk.variable(tree["b"]), halo=1)
    for times in (1, 2):
        synk.exchange([u, v], add=True)
        found = synk.gather([u, v])
        for got, whole, width, periodic in (
            (found[0]["a"], tree["a"], 2, True),
            (found[0]["b"], tree["b"], 2, True),
            (found[1], tree["b"], 1, False),
        ):
            halos = added(windows(whole, size, width, periodic), n, size, width, periodic) - whole
            assert_array_equal(got, whole + halos.dtype.type(times) * halos, strict=True)


def test_what_cannot_be_added(world):
    size = world.world_size
    for dtype, what in (("bool", "make it an integer variable"), (RECORD, "gather it")):
        u = synk.scatter(synk.variable(numbers((3 * size,), dtype), "u"), halo=1)
        with pytest.raises(synk.ReductionError, match=f"variable 'u': op 'sum' .*{what}"):
            synk.exchange(u, add=True)
    u = synk.scatter(synk.variable(np.zeros(3 * size), "u"), halo=1)
    with pytest.raises(synk.ArgumentError, match="exchange: add must be True or False, got 1"):
        synk.exchange(u, add=1)
    with pytest.raises(synk.ArgumentError, match="add=True changes own rows.*leave out during="):
        synk.exchange(u, add=True, during=lambda: None)
    with pytest.raises(synk.PartitionError, match="exchange: variable 'v' is a replica"):
        synk.exchange(synk.variable(np.zeros(3), "v"), add=True)


@synk.function
def dawdle(step, rank):
    time.sleep(0.001 * ((5 * step + 3 * rank) % 4))


@synk.function
def spread_by_function(u, own):
    u[: own.start] = u[own.start] + 1
    u[own.stop :] = 3 * u[own.stop - 1]


@synk.parallel(grid=1, block=32)
@cuda.jit
def spread_by_kernel(u, own):
    first, last = u[own.start, 0], u[own.stop - 1, 0]
    cuda.syncthreads()
    for i in range(cuda.threadIdx.x, u.shape[0], cuda.blockDim.x):
        for j in range(u.shape[1]):
            if i < own.start:
                u[i, j] = first + j
            elif i >= own.stop:
                u[i, j] = 3 * last


@pytest.mark.usefixtures("who")
@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize(
    "spread", [spread_by_function, spread_by_kernel], ids=["function", "kernel"]
)
def test_halos_are_added_in_a_sequence(world, spread, periodic):
    """Each rank waits for what its neighbours write, and until they have read what it writes."""

    @synk.sequence
    def steps(u, v, rank):
        spread(u, synk.OWN)
        synk.exchange(u, add=True)
        dawdle(synk.STEP, rank)
        synk.exchange(u)
        synk.exchange([u, v], add=True)
        synk.exchange(v)
        synk.swap(u, v)

    size = world.world_size
    start = numbers((4 * size + 1, 2), "int64")
    u, v, a, b = (synk.scatter(synk.variable(start), halo=2, periodic=periodic) for _ in range(4))
    for _ in range(6):
        spread(a, synk.OWN)
        for first, rest in (([a], {"add": True}), ([a], {}), ([a, b], {"add": True}), ([b], {})):
            synk.exchange(first, **rest)
        a, b = b, a
    steps(u, v, synk.RANK, times=6)
    for got, wanted in ((u, a), (v, b)):
        for mine, other in zip(look(got), look(wanted), strict=True):
            assert_array_equal(mine, other)


@synk.function
def double(tree, other):
    for one in [tree["a"], *tree["b"], other]:
        one[...] = 2 * one


@synk.function
def blank_all(arrays, rank, size, width, periodic):
    for one in [arrays["a"], *arrays["b"]] if isinstance(arrays, dict) else arrays:
        one[: width if rank or periodic else 0] = 0
        one[len(one) - (width if rank < size - 1 or periodic else 0) :] = 0


def test_rows_that_a_batch_selects(world):
    """Neighbours are neighbours in the selection."""
    size = world.world_size
    whole = numbers((5 * size, 2), "int64")
    for batch in (
        slice(None, None, -1),
        np.arange(5 * size)[::2][::-1],
        3 * size,
        np.arange(5 * size) % 3 > 0,
    ):
        chosen = whole[:batch] if isinstance(batch, int) else whole[batch]
        for periodic in (False, True):
            u = synk.scatter(synk.variable(whole[:1]), whole, batch, halo=1, periodic=periodic)
            assert_windows(u, chosen, size, 1, periodic)
            assert_array_equal(synk.gather(u, nd_up=0), chosen)


@pytest.mark.usefixtures("who")
def test_a_large_variable(world):
    size = world.world_size
    whole = numbers((40 * size + 1, 5_000), "float64")
    u = synk.scatter(synk.variable(whole[:1]), whole, halo=16, periodic=True)
    spoil(u, synk.OWN)
    synk.exchange(u)
    assert_windows(u, 2 * whole, size, 16, True)


# ---- own rows


@pytest.mark.parametrize("periodic", [False, True])
def test_values_and_lengths_are_those_of_own_rows(world, periodic):
    size = world.world_size
    whole = numbers((3 * size + 1, 2), "float64")
    u = synk.scatter(synk.variable(whole, "u"), halo=2, periodic=periodic)
    parts, held = owned(whole, size), windows(whole, size, 2, periodic)
    assert synk.get_shapes(u) == [one.shape for one in held]
    assert u.shape == held[0].shape
    assert (u.size, u.nbytes) == (held[0].size, held[0].nbytes)
    assert synk.get_lengths(u) == [len(part) for part in parts]
    for rank, part in enumerate(parts):
        assert_array_equal(synk.get_value(rank, u), part, strict=True)
        assert_array_equal(u.get_value(rank), part, strict=True)
    assert_array_equal(synk.gather(u), whole, strict=True)
    assert_array_equal(synk.snapshot(u), whole, strict=True)
    assert f"with halo=2{', periodic' if periodic else ''}>" in repr(u)
    if size == 1:
        assert len(u) == len(whole)
        assert_array_equal(np.asarray(u), whole)
    even = synk.scatter(u, numbers((2 * size, 2), "float64"), halo=2)
    assert synk.gather(even, nd_up=1).shape == (size, 2, 2)  # on the ends there is one halo less


def test_set_value_sets_own_rows_and_leaves_halos_stale(world):
    size = world.world_size
    whole = numbers((3 * size + 1, 2), "float64")
    u = synk.scatter(synk.variable(whole, "u"), halo=1, periodic=True)
    last = size - 1
    synk.set_value(last, u, -owned(whole, size)[last])
    now = np.concatenate([*owned(whole, size)[:last], -owned(whole, size)[last]])
    assert_array_equal(synk.gather(u, nd_up=0), now)
    for got, old, new in zip(look(u), windows(whole, size, 1, True), owned(now, size), strict=True):
        assert_array_equal(got, np.concatenate([old[:1], new, old[-1:]]))
    u.set_value(owned(now, size)[last] + 1, rank=last)
    now = np.concatenate([*owned(now, size)[:last], owned(now, size)[last] + 1])
    synk.exchange(u)
    assert_windows(u, now, size, 1, True)
    if size == 1:
        u.set_value(2 * whole)
        synk.exchange(u)
        assert_windows(u, 2 * whole, 1, 1, True)
    with pytest.raises(
        synk.PartitionError,
        match=r"own rows on rank 0 keep their shape \(3, 2\)|keep their shape \(4, 2\)",
    ):
        synk.set_value(0, u, whole[:2])


@synk.function(rows=("u",), inout=("u",), outputs="gather")
def negate(u):
    u *= -1
    return u.copy()


def test_sliceable_rows_are_own_rows(world):
    size = world.world_size
    whole = numbers((4 * size, 2), "float64")
    u = synk.scatter(synk.variable(whole), halo=1, periodic=True)
    assert_array_equal(negate(u, num_slices=2), -whole)
    assert_array_equal(
        negate(u, local_batch=[0, -1]), whole.reshape(size, 4, 2)[:, [0, -1]].reshape(-1, 2)
    )
    now = -whole.reshape(size, 4, 2)
    now[:, [0, -1]] *= -1
    assert_array_equal(synk.gather(u, nd_up=0), now.reshape(-1, 2))
    synk.exchange(u)
    assert_windows(u, now.reshape(-1, 2), size, 1, True)


@pytest.mark.parametrize("num_slices", [1, 3])
def test_an_update_has_the_shape_of_the_local_array(world, num_slices):
    size = world.world_size
    u = synk.scatter(synk.variable(np.ones((2 * size, 2))), halo=1, periodic=True)

    @synk.function(updates={"new": (u, "sum")})
    def count(x, new):
        new += len(x)

    count(np.zeros(6 * size), num_slices=num_slices)
    assert_array_equal(look(u), np.full((size, 4, 2), 6.0))
    assert synk.get_lengths(u) == [2] * size


# ---- OFFSET and OWN


@synk.function(outputs=None)
def where(u, first, own):
    return np.array([first, own.start, own.stop])


@synk.parallel(grid=1, block=1, outputs={"told": synk.output(None, shape=(3,), dtype="int64")})
@cuda.jit
def kernel_where(u, first, own, told):
    if cuda.grid(1) == 0:
        told[0] = first
        told[1] = own.start
        told[2] = own.stop


@with_halos
def test_offset_and_own(world, width, periodic):
    size = world.world_size
    whole = numbers((4 * size + size // 2, 2), "float64")
    u = synk.scatter(synk.variable(whole), halo=width, periodic=periodic)
    limits, lengths = (
        list(bounds(len(whole), size, width, periodic)),
        [len(one) for one in owned(whole, size)],
    )
    wanted = [
        [low, start - low, start - low + n]
        for (low, _), start, n in zip(limits, edges(len(whole), size), lengths, strict=False)
    ]
    for function in (where, kernel_where):
        for _ in range(2):
            assert_array_equal(np.array(function(u, synk.OFFSET, synk.OWN)), wanted)
    assert periodic == (wanted[0][0] == -width)


def test_offset_and_own_without_a_halo(world):
    """Of a scattered variable its rows; of a replica all rows; and of the first scattered one,
    where there are several.
    """
    size = world.world_size
    whole = numbers((3 * size + 1, 2), "float64")
    lengths = [len(one) for one in owned(whole, size)]
    replica = synk.variable(whole)
    assert_array_equal(where(replica, synk.OFFSET, synk.OWN), [[0, 0, len(whole)]] * size)
    shards = synk.scatter(synk.variable(whole))
    wanted = [[start, 0, n] for start, n in zip(edges(len(whole), size)[:-1], lengths, strict=True)]
    assert_array_equal(where(shards, synk.OFFSET, synk.OWN), wanted)
    assert_array_equal(where([replica, shards], synk.OFFSET, synk.OWN), wanted)
    assert_array_equal(where([replica, {"v": shards}], synk.OFFSET, synk.OWN), wanted)
    long = synk.scatter(synk.variable(np.zeros(5 * size)), halo=1)
    longer = synk.scatter(synk.variable(np.zeros(6 * size)), halo=1)
    assert_array_equal(
        np.array(where([replica, long, longer], synk.OFFSET, synk.OWN))[:, 2] > 5,
        [False] + [True] * (size - 1),
    )


@synk.parallel(grid=2, block=8)
@cuda.jit
def put_rows(h, first, own):
    for i in range(own.start + cuda.grid(1), own.stop, cuda.gridsize(1)):
        h[i] = first + i


@synk.parallel(grid=2, block=8)
@cuda.jit
def add_differences(h, q, own):
    for i in range(own.start + cuda.grid(1), own.stop, cuda.gridsize(1)):
        q[i] += h[i + 1] - h[i - 1]


def test_offset_and_own_of_arrays_of_a_tree(world):
    size = world.world_size
    h, q = (np.random.default_rng(seed).random(4 * size + 1) for seed in range(2))

    @synk.sequence
    def advance(s):
        synk.exchange(s)
        add_differences(s["h"], s["q"], synk.OWN)
        synk.exchange(s)
        add_differences(s["q"], s["h"], synk.OWN)

    s = synk.scatter(synk.variable({"h": h, "q": q}), halo=1, periodic=True)
    advance(s, times=3)
    for _ in range(3):
        q = q + (np.roll(h, -1) - np.roll(h, 1))
        h = h + (np.roll(q, -1) - np.roll(q, 1))
    found = synk.gather(s, nd_up=0)
    assert_array_equal(found["h"], h)
    assert_array_equal(found["q"], q)

    @synk.sequence
    def look(s):
        return where({"all": s["b"]}, synk.OFFSET, synk.OWN), kernel_where(
            s["b"]["y"], synk.OFFSET, synk.OWN
        )

    for halo in (0, 1):
        short, long = np.zeros(2 * size), np.zeros(3 * size + 1)
        # rows are those of the array that is passed
        s = synk.scatter(synk.variable({"a": short, "b": {"y": long}}), halo=halo)
        limits = [
            (start - (halo if start > 0 else 0), start, stop)
            for start, stop in pairwise(edges(len(long), size))
        ]
        wanted = [[low, start - low, stop - low] for low, start, stop in limits]
        for one in look(s):
            assert_array_equal(one, wanted)
        put = synk.sequence(lambda s: put_rows(s["b"]["y"], synk.OFFSET, synk.OWN))
        put(s)
        assert_array_equal(synk.gather(s, nd_up=0)["b"]["y"], np.arange(len(long)))
    with pytest.raises(synk.ArgumentError, match=r"u\[0\] has halo=1 and u\[1\] has no halo"):
        synk.sequence(lambda s, v: where([s["b"], v], synk.OFFSET, synk.OWN))(
            s, synk.scatter(synk.variable(long))
        )


def test_a_variable_that_becomes_divided_where_it_is(world):
    """The plans of calls with OFFSET do not outlive that."""
    size = world.world_size
    v, part = synk.variable(np.arange(3.0)), synk.variable(np.ones(3 * size))
    assert_array_equal(np.array(where(v, synk.OFFSET, synk.OWN))[:, 0], [0] * size)
    for _ in range(2):
        synk.reduce_scatter(part, "sum", dest=v)
        assert_array_equal(np.array(where(v, synk.OFFSET, synk.OWN))[:, 0], 3 * np.arange(size))
        synk.broadcast(v, np.arange(3.0))
        assert_array_equal(np.array(where(v, synk.OFFSET, synk.OWN))[:, 0], [0] * size)


@synk.function(outputs=None)
def with_data(x, u, first, own):
    return np.array([first, len(x), own.start, own.stop])


def test_offset_is_that_of_the_rows_of_a_call_that_has_some(world):
    size = world.world_size
    u = synk.scatter(synk.variable(np.zeros(3 * size)), halo=1, periodic=True)
    assert_array_equal(
        with_data(np.zeros(2 * size), u, synk.OFFSET, synk.OWN),
        [[2 * rank, 2, 1, 4] for rank in range(size)],
    )


def test_plan_and_check_know_halos(world):
    size = world.world_size
    u = synk.scatter(synk.variable(np.arange(6.0 * size)), halo=1, periodic=True)
    assert f"rank {size - 1}" in str(where.plan(u, synk.OFFSET, synk.OWN))
    assert where.plan(u, synk.OFFSET, synk.OWN, world_size=2 * size).rows is None
    assert negate.plan(u, world_size=2 * size).rows == 6 * size
    kernel_where.check(u, synk.OFFSET, synk.OWN)
    smooth.check(u, u_copy(u), synk.OWN)
    with pytest.raises(
        synk.PartitionError,
        match=r"halo=1 needs 1 row on every rank, and \d+ rows of the variable on",
    ):
        where.plan(u, synk.OFFSET, synk.OWN, world_size=7 * size)


def u_copy(u):
    return synk.scatter(synk.variable(synk.gather(u, nd_up=0)), halo=1, periodic=True)


@synk.parallel(grid=1, block=32)
@cuda.jit
def smooth(u, v, own):
    for i in range(own.start + cuda.grid(1), own.stop, cuda.gridsize(1)):
        v[i] = u[i - 1] + u[i] + u[i + 1]


# ---- methods


@synk.parallel(grid=(8, 8), block=(8, 8))
@cuda.jit
def jacobi(u, v, first, own, rows):
    """The mean of four neighbours; the boundary of the whole stays."""
    j, i = cuda.grid(2)
    while i < u.shape[0]:
        k = j
        while k < u.shape[1]:
            if own.start <= i < own.stop and 0 < first + i < rows - 1 and 0 < k < u.shape[1] - 1:
                v[i, k] = ((u[i - 1, k] + u[i + 1, k]) + (u[i, k - 1] + u[i, k + 1])) * 0.25
            k += cuda.gridDim.x * cuda.blockDim.x
        i += cuda.gridDim.y * cuda.blockDim.y


def test_jacobi_has_the_bits_of_numpy(world):
    size, steps = world.world_size, 7
    rng = np.random.default_rng(0)
    whole = rng.random((7 * size + 3, 21))
    u, v = (synk.scatter(synk.variable(whole), halo=1) for _ in range(2))
    wanted = whole.copy()
    for _ in range(steps):
        jacobi(u, v, synk.OFFSET, synk.OWN, len(whole))
        synk.exchange(v)
        u, v = v, u
        new = wanted.copy()
        new[1:-1, 1:-1] = (
            (wanted[:-2, 1:-1] + wanted[2:, 1:-1]) + (wanted[1:-1, :-2] + wanted[1:-1, 2:])
        ) * 0.25
        wanted = new
    assert_array_equal(synk.gather(u, nd_up=0), wanted)


@synk.parallel(grid=4, block=16)
@cuda.jit
def add_neighbours(u, v, width):
    for i in range(width + cuda.grid(1), u.shape[0] - width, cuda.gridsize(1)):
        total = u[i]
        for k in range(1, width + 1):
            total += u[i - k] + u[i + k]
        v[i] = total


@pytest.mark.parametrize("width", [1, 3])
def test_a_ring(world, width):
    size = world.world_size
    whole = np.arange(5 * size + 2, dtype=np.int64)
    u, v = (synk.scatter(synk.variable(whole), halo=width, periodic=True) for _ in range(2))
    for _ in range(5):
        add_neighbours(u, v, width)
        synk.exchange(v)
        u, v = v, u
        whole = sum(np.roll(whole, k) for k in range(-width, width + 1))
    assert_array_equal(synk.gather(u, nd_up=0), whole)


# ---- with or without a halo


def test_a_halo_comes_changes_and_goes(world):
    size = world.world_size
    whole = numbers((4 * size, 2), "float64")
    u = synk.scatter(synk.variable(whole, "u"), halo=1)
    synk.scatter(u, whole, halo=3, periodic=True)
    synk.exchange(u)
    assert_windows(u, whole, size, 3, True)
    synk.scatter(u, whole, halo=3)  # on one rank of the same shape as without
    synk.exchange(u)
    assert_windows(u, whole, size, 3, False)
    synk.scatter(u, whole)
    assert synk.get_shapes(u) == [one.shape for one in owned(whole, size)]
    with pytest.raises(
        synk.PartitionError,
        match="exchange: variable 'u' is divided without a halo; scatter it with halo=1",
    ):
        synk.exchange(u)
    synk.scatter(u, whole, halo=1)
    synk.scatter(u, halo=0)  # as without values: the root's own rows
    assert_array_equal(synk.gather(u, nd_up=0), owned(whole, size)[0])
    synk.scatter(u, whole, halo=1)
    synk.broadcast(u, whole[:2])
    assert repr(u).endswith("replicas equal>")
    assert_array_equal(u.get_value(), whole[:2])
    synk.scatter(u, whole, halo=1)
    synk.reduce_scatter(synk.variable(whole), "sum", dest=u)
    assert synk.get_shapes(u) == [(4, 2)] * size
    assert_array_equal(synk.gather(u, nd_up=0), size * whole)


def test_what_has_no_sense_with_a_halo(world):
    size = world.world_size
    whole = numbers((2 * size, 2), "float64")
    u = synk.scatter(synk.variable(whole, "u"), halo=1)
    refused = (
        "variable 'u' is scattered with a halo: rows of different ranks are not "
        "the same rows; gather it"
    )
    calls = {
        "broadcast": lambda: synk.broadcast(u),
        "reduce": lambda: synk.reduce(u, "sum"),
        "all_reduce": lambda: synk.all_reduce([synk.variable(np.ones(1)), u], "sum"),
        "all_gather": lambda: synk.all_gather(u),
        "reduce_scatter": lambda: synk.reduce_scatter(u, "sum"),
        "all_to_all": lambda: synk.all_to_all(u),
    }
    for name, call in calls.items():
        with pytest.raises(synk.PartitionError, match=f"{name}: {refused}"):
            call()
    with pytest.raises(
        synk.PartitionError,
        match="exchange: variable 'v' is a replica; scatter it with halo=1 first",
    ):
        synk.exchange([u, synk.variable(whole, "v")])
    assert_windows(u, whole, size, 1, False)


# ---- another world


@pytest.mark.parametrize("periodic", [False, *left_out(True)])
def test_another_world_keeps_halos(fork_row, periodic):
    with fork_row() as world:
        size = world.world_size
        whole = numbers((5 * size + 1, 2), "float64")
        u = synk.scatter(synk.variable(whole, "u"), halo=2, periodic=periodic)
        spoil(u, synk.OWN)
    assert_array_equal(u.get_value(0), 2 * owned(whole, size)[0])
    with fork_row():
        spans = where(u, synk.OFFSET, synk.OWN)
        for got, wanted, (_, start, stop) in zip(
            look(u), windows(whole, size, 2, periodic), spans, strict=True
        ):
            wanted[start:stop] *= 2
            assert_array_equal(got, wanted)  # halos as stale as they were
        synk.exchange(u)
        assert_windows(u, 2 * whole, size, 2, periodic)
        spoil(u, synk.OWN)
    for other in (size + 1, 1):
        with synk.fork(other, device="cpu"):
            assert_windows(u, 4 * whole, other, 2, periodic)  # divided anew, with fresh halos
            synk.exchange(u)
            assert_windows(u, 4 * whole, other, 2, periodic)
            assert_array_equal(synk.snapshot(u), 4 * whole)


def test_a_snapshot_keeps_halos(world):
    size = world.world_size
    whole = numbers((4 * size, 2), "float64")
    u = synk.scatter(synk.variable(whole), halo=1, periodic=True)
    world.snapshot()
    spoil(u, synk.OWN)
    copy = synk.snapshot(u)
    assert_array_equal(copy, 2 * whole)
    synk.scatter(u, copy, halo=1, periodic=True)
    assert_windows(u, 2 * whole, size, 1, True)


def die(world):
    """A rank dies between two calls, and the next call finds it."""
    os.kill(world.pids[-1], signal.SIGKILL)
    with pytest.raises(synk.RankDied):
        synk.variable(0.0)


def test_values_that_are_known_after_a_death(fork_row):
    """Own rows and halos as at the last snapshot, or as the script has set them since."""
    with fork_row() as world:
        size = world.world_size
        whole = numbers((4 * size, 2), "float64")
        u, v = (synk.scatter(synk.variable(whole), halo=1, periodic=True) for _ in range(2))
        spoil(u, synk.OWN)
        world.snapshot()
        spoil(u, synk.OWN)
        last = owned(whole, size)[-1]
        synk.set_value(size - 1, v, -last)
        die(world)
        assert_array_equal(synk.snapshot(u), 2 * whole)
    with fork_row():
        halos = [one[[0, -1]] for one in windows(whole, size, 1, True)]
        for got, rows, stale in zip(look(u), owned(2 * whole, size), halos, strict=True):
            assert_array_equal(got, np.concatenate([stale[:1], rows, stale[1:]]))
        synk.exchange(u)
        assert_windows(u, 2 * whole, size, 1, True)
        now = np.concatenate([whole[: -len(last)], -last])
        for got, rows, stale in zip(look(v), owned(now, size), halos, strict=True):
            assert_array_equal(got, np.concatenate([stale[:1], rows, stale[1:]]))


def test_repeated_calls_are_not_bound_again(world, monkeypatch):
    """Nor those that pass OFFSET and OWN."""
    u = synk.scatter(synk.variable(np.zeros(3 * world.world_size)), halo=1)
    wanted = where(u, synk.OFFSET, synk.OWN)
    monkeypatch.setattr(type(where._planner.binder), "bind", None)
    assert_array_equal(where(u, synk.OFFSET, synk.OWN), wanted)
