"""`updates=`: every slice sees the old variable, slices accumulate by the op, each rank's
variable is assigned once.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from tests.conformance.variables import model
from tests.conformance.variables.ranks import NUMBERS, assert_held, put, shard_of, shards
from tests.conformance.variables.updating import make_function, make_kernel, put_together

pytestmark = pytest.mark.usefixtures("usable")
MAKERS = {"kernel": make_kernel, "function": make_function}
OPS = ["sum", "prod", "min", "max"]
DTYPES = [
    (op, d)
    for op in OPS
    for d in ["bool", "float16", *NUMBERS]
    if np.dtype(d).kind not in model.REFUSED[op]
]


def numbers(rng, shape, dtype):
    """Small whole numbers, none 0, so that everything is exact, and products do not vanish, or
    pass float16's range.
    """
    if np.dtype(dtype).kind == "b":
        return rng.random(shape) < 0.5
    return np.asarray(rng.choice([1, 2], shape), dtype)


def terms(reads):
    return (lambda x, old: x * old) if reads else (lambda x, old: x)


def check_update(world, call, s, x, op, reads, num_slices):
    """One call, against NumPy on each rank; and what all ranks have together against one rank
    with all rows.
    """
    old = synk.get_value(0, s)
    call(x, num_slices=num_slices)
    assert_held(
        s,
        world,
        lambda rank: model.updated(op, old, shard_of(x, world, rank), num_slices, terms(reads)),
    )
    synk.all_reduce(s, op)
    assert_held(s, world, model.updated(op, old, x, 1, terms(reads)))


# ---- ops, slices, ranks without rows -------------------------------------------------------------


@pytest.mark.parametrize("reads", [False, True], ids=["new", "old"])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("style", MAKERS)
def test_updates(world, style, op, reads):
    """With fewer rows than ranks, the others' variables are the op's identity."""
    rng = np.random.default_rng(3)
    s = synk.variable(numbers(rng, 2, "float64"))
    call = MAKERS[style](s, op, reads=reads)
    assert call.update_modes == {"acc": op}
    for n in (0, 1, 2, 11):
        for num_slices in (1, 2, 3):
            synk.broadcast(s, numbers(rng, 2, "float64"))
            check_update(world, call, s, numbers(rng, (n, 2), "float64"), op, reads, num_slices)


@pytest.mark.parametrize(("op", "dtype"), DTYPES)
def test_updates_of_every_dtype(world, op, dtype):
    rng = np.random.default_rng(4)
    s = synk.variable(numbers(rng, (2, 1), dtype))
    for reads in (False, True):
        call = make_function(s, op, reads=reads)
        for num_slices in (1, 2):
            synk.broadcast(s, numbers(rng, (2, 1), dtype))
            check_update(world, call, s, numbers(rng, (5, 2, 1), dtype), op, reads, num_slices)


@pytest.mark.parametrize(
    ("op", "dtype"), [("sum", "int32"), ("prod", "complex64"), ("min", "uint8"), ("max", "int64")]
)
def test_kernels_update_other_dtypes(world, op, dtype):
    rng = np.random.default_rng(5)
    s = synk.variable(numbers(rng, 3, dtype))
    call = make_kernel(s, op, reads=False)
    for num_slices in (1, 3):
        check_update(world, call, s, numbers(rng, (7, 3), dtype), op, False, num_slices)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("style", MAKERS)
def test_updates_of_a_number(world, style, op):
    """A 0-d accumulator; kernels see shape (1,)."""
    rng = np.random.default_rng(6)
    s = synk.variable(2.0)
    for reads in (False, True):
        call = MAKERS[style](s, op, reads=reads)
        for num_slices in (1, 2):
            synk.broadcast(s, 2.0)
            x = numbers(rng, (7, 1), "float64")
            call(x if style == "kernel" else x[:, 0], num_slices=num_slices)
            assert s.shape == ()
            term = terms(reads)
            wanted = [
                model.updated(op, np.float64(2.0), one[:, 0], num_slices, term)
                for one in shards(x, world)
            ]
            assert_held(s, world, lambda rank, wanted=wanted: wanted[rank])


@pytest.mark.parametrize("op", OPS)
def test_updates_of_a_tree(world, op):
    rng = np.random.default_rng(7)
    first = {
        "w": numbers(rng, (2, 2), "float64"),
        "rest": (numbers(rng, (), "int32"), np.zeros((0, 2))),
    }
    s = synk.variable(first)

    @synk.function(updates={"acc": (s, op)}, givens={"old": s}, outputs=None)
    def call(x, k, old, acc):
        put_together(op, acc["w"], x * old["w"])
        put_together(op, acc["rest"][0], k * old["rest"][0])
        return acc["rest"][1].shape[0]

    for n in (1, 9):
        x, k = numbers(rng, (n, 2, 2), "float64"), numbers(rng, n, "int32")
        for num_slices in (1, 2, 3):
            synk.broadcast(s, first)
            assert call(x, k, num_slices=num_slices) == [
                0 if len(part) else None for part in shards(x, world)
            ]
            for rank in range(world.world_size):
                got = synk.get_value(rank, s)
                mine, my_k = shard_of(x, world, rank), shard_of(k, world, rank)
                assert_array_equal(
                    got["w"], model.updated(op, first["w"], mine, num_slices, terms(True))
                )
                assert_array_equal(
                    got["rest"][0],
                    model.updated(op, first["rest"][0], my_k, num_slices, terms(True)),
                )
                assert got["rest"][0].dtype == np.int32


def test_updates_of_one_vector_of_a_tree(world):
    s = synk.vector([np.ones(2), np.ones((2, 2))])

    @synk.function(updates={"acc": (s, "sum")}, givens={"old": s})
    def call(x, old, acc):
        acc[0] += x.sum() * old[0]
        acc[1] += x.sum() * old[1]

    x = np.arange(9.0)
    call(x, num_slices=2)
    synk.all_reduce(s, "sum")
    for rank in range(world.world_size):
        for got in synk.get_value(rank, s):
            assert_array_equal(got, np.full(got.shape, x.sum()))


# ---- several, and beside other things ------------------------------------------------------------


def test_two_variables_and_outputs_of_one_call(world):
    total, high = synk.variable(np.zeros(2)), synk.variable(-1.0)

    @synk.parallel(
        outputs={"count": synk.output("sum", shape=(), dtype="int64")},
        updates={"acc": (total, "sum"), "top": (high, "max")},
        givens={"last": high},
        block=1,
        grid=1,
    )
    def call(x, factor, last, acc, top, count):
        for i in range(x.shape[0]):
            acc[0] += factor * x[i]
            acc[1] += last[0]
            top[0] = max(top[0], x[i])
            count[0] += 1

    x = np.arange(10.0)
    for num_slices in (1, 2, 3):
        synk.broadcast([total, high], [np.zeros(2), -1.0])
        assert call(x, 2.0, num_slices=num_slices) == 10
        parts = shards(x, world)
        assert_held(
            total, world, lambda rank, parts=parts: [2 * parts[rank].sum(), -1.0 * len(parts[rank])]
        )
        assert_held(high, world, lambda rank, parts=parts: parts[rank].max(initial=-np.inf))


def test_known_calls_go_on_from_the_last_value(world):
    """The same arguments again and again: each call sees what the call before has assigned."""
    for reads in (False, True):
        for make in MAKERS.values():
            s = synk.variable(np.ones(2))
            call = make(s, "sum", reads=reads)
            x = synk.data(np.full((2 * world.world_size, 2), 2.0))
            for k in range(1, 5):
                call(x)
                assert_held(s, world, np.full(2, 4.0**k if reads else 4.0))


def test_an_accumulator_that_is_returned(world):
    """Results are read before a later slice, or the end of the call, uses their memory again."""
    s = synk.variable(np.zeros(2))

    @synk.function(updates={"acc": (s, "sum")}, outputs=("sum", None))
    def call(x, acc):
        acc += x.sum(0)
        return acc, acc[:1]

    x = np.arange(22.0).reshape(11, 2)
    for num_slices in (1, 2, 4):
        total, each = call(x, num_slices=num_slices)
        assert_allclose(total, x.sum(0))
        assert_held(s, world, lambda rank: shard_of(x, world, rank).sum(0))
        assert_allclose(np.concatenate(each), [one[:, 0].sum() for one in shards(x, world)])


def test_the_old_value_that_is_returned(world):
    s = synk.variable(np.ones(2))

    @synk.function(updates={"acc": (s, "sum")}, givens={"old": s}, outputs=None)
    def call(x, old, acc):
        acc += x.sum(0)
        return old

    x = np.ones((world.world_size, 2))
    for k in range(1, 4):
        assert_array_equal(call(k * x), np.full((world.world_size, 2), max(k - 1, 1)))
        assert_held(s, world, np.full(2, k))


def test_shapes_that_differ_between_ranks(world):
    """Each rank's accumulator is of its own variable's shape."""
    s = put(
        synk.variable(np.zeros(1)), [np.full(rank + 1, 2.0) for rank in range(world.world_size)]
    )
    x = np.arange(2.0 * world.world_size)
    for reads in (False, True):
        call = make_function(s, "sum", reads=reads)
        put(s, [np.full(rank + 1, 2.0) for rank in range(world.world_size)])
        call(x[:, None], num_slices=2)
        assert synk.get_lengths(s) == [rank + 1 for rank in range(world.world_size)]
        factor = 2.0 if reads else 1.0
        assert_held(
            s,
            world,
            lambda rank, factor=factor: np.full(rank + 1, factor * shard_of(x, world, rank).sum()),
        )


def test_without_rows_each_rank_runs_once(world):
    s = synk.variable(np.ones(3))

    @synk.function(updates={"acc": (s, "sum")}, givens={"old": s})
    def call(rank, old, acc):
        acc += old + rank

    for _ in range(2):
        call(synk.RANK, num_slices=3)
    assert_held(s, world, lambda rank: np.full(3, 1.0 + 2 * rank))


def test_serial_updates_change_the_root_alone(world):
    for make in MAKERS.values():
        for reads in (False, True):
            s = synk.variable(np.full(2, 2.0))
            x = np.arange(14.0).reshape(7, 2)
            make(s, "sum", reads=reads).as_serial(x, num_slices=2)
            wanted = x.sum(0) * (2 if reads else 1)
            assert_held(
                s, world, lambda rank, wanted=wanted: wanted if rank == 0 else np.full(2, 2.0)
            )


def test_updates_of_selected_rows(world):
    s = synk.variable(np.zeros(2))
    call = make_kernel(s, "sum", reads=False)
    x = synk.data(np.arange(40.0).reshape(20, 2))
    for batch in (7, slice(3, 18, 2), [5, 5, 1, -1, 9]):
        for num_slices in (1, 2):
            call(x, batch=batch, num_slices=num_slices)
            chosen = model.select(batch, x.data)
            assert_held(s, world, lambda rank, chosen=chosen: shard_of(chosen, world, rank).sum(0))
