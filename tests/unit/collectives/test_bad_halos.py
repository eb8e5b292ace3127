"""Halos that are asked for wrongly: refused before anything is sent, in words that say what to
do.
"""

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_array_equal

import synknumba as synk
from tests.unit.collectives.conftest import ROWS, refused


@pytest.mark.parametrize(
    "halo", [-1, True, False, np.True_, 1.0, np.float32(1), "1", None, [1], -(2**70)], ids=repr
)
def test_a_width_that_is_none(held, halo):
    with refused(
        synk.ArgumentError,
        "scatter: halo must be an int of at least 1, or 0 for no halo",
        f"got {halo!r}",
    ):
        synk.scatter(held.u, ROWS, halo=halo)


@pytest.mark.parametrize("halo", [1, np.int8(1), np.uint64(1), np.array(1)], ids=repr)
def test_widths_may_be_any_integers(held, halo):
    u = synk.scatter(synk.variable(ROWS), halo=halo, periodic=np.True_)
    assert synk.get_shapes(u) == [(4,), (5,)]


def test_periodic_is_yes_or_no_and_needs_a_halo(held):
    for wrong in (1, "yes", None, [True]):
        with refused(synk.ArgumentError, "scatter: periodic must be True or False", repr(wrong)):
            synk.scatter(held.u, ROWS, halo=1, periodic=wrong)
    with refused(synk.ArgumentError, "scatter: periodic=True needs halo=", "halo=1"):
        synk.scatter(held.u, ROWS, periodic=True)
    with refused(synk.ArgumentError, "scatter has no option period=", "Did you mean periodic=?"):
        synk.scatter(held.u, ROWS, halo=1, period=True)
    with refused(synk.ArgumentError, "scatter"):
        synk.scatter(held.u, ROWS, None, 1)  # by name only


@pytest.mark.parametrize("periodic", [False, True])
def test_ranks_with_fewer_rows_than_the_halo(held, periodic):
    wanted = (
        "halo=3 needs 3 rows on every rank, and 5 rows of variable 'u' on 2 ranks "
        "leave 2; use a narrower halo"
    )
    with refused(synk.PartitionError, f"scatter: {wanted}"):
        synk.scatter([held.v, held.u], [np.zeros(8), ROWS], halo=3, periodic=periodic)
    with refused(
        synk.PartitionError,
        "halo=1 needs 1 row on every rank, and 1 row of variable 'u' on 2 ranks leaves 0",
    ):
        synk.scatter(held.u, ROWS, 1, halo=1, periodic=periodic)
    tree = {"w": np.ones((9, 3)), "b": np.zeros(3, "float32")}
    with refused(
        synk.PartitionError,
        "halo=2 needs 2 rows on every rank, and 3 rows of variable 'tree' on 2 ranks leave 1",
    ):
        synk.scatter(held.tree, tree, halo=2, periodic=periodic)


def test_a_number_has_no_rows_for_a_halo(held):
    with refused(synk.PartitionError, "scatter", "'number' is 0-d"):
        synk.scatter(held.number, 3.0, halo=1)


def test_exchanges_of_variables_without_a_halo(held):
    with refused(
        synk.PartitionError, "exchange: variable 'v' is a replica; scatter it with halo=1 first"
    ):
        synk.exchange(held.v)
    with refused(
        synk.PartitionError,
        "exchange: variable 'shards' is divided without a halo; scatter it with halo=1 first",
    ):
        synk.exchange({"a": held.shards})
    for wrong in (ROWS, 3, "v"):
        with refused(
            synk.ArgumentError, "exchange needs a Variable", "got a", type(wrong).__name__
        ):
            synk.exchange([held.v, wrong])
    with refused(synk.ArgumentError, "exchange got no variables"):
        synk.exchange([])
    with refused(synk.ArgumentError, "exchange got variable 'v' twice"):
        synk.exchange([held.v, held.v])


def test_a_refused_exchange_runs_nothing_first(held):
    ran = []

    @synk.sequence
    def exchanging(v):
        synk.exchange(v, during=lambda: ran.append(1))

    for wrong, told in (
        (held.v, "exchange: variable 'v' is a replica"),
        (held.shards, "exchange: variable 'shards' is divided without a halo"),
    ):
        with refused(synk.PartitionError, told):
            synk.exchange(wrong, during=lambda: ran.append(1))
        with refused(synk.PartitionError, told):
            exchanging(wrong, times=2)
    assert not ran


@synk.parallel
@cuda.jit
def all_own_rows(u, v, own):
    i = cuda.grid(1)
    if own.start <= i < own.stop and 0 < i < u.shape[0] - 1:
        v[i] = u[i - 1] + u[i + 1]


@synk.parallel
@cuda.jit
def ends(u, v, own):
    i = cuda.grid(1)
    if (i == own.start or i == own.stop - 1) and 0 < i < u.shape[0] - 1:
        v[i] = u[i - 1] + u[i + 1]


@synk.parallel
@cuda.jit
def inner_rows(u, v, own):
    i = cuda.grid(1)
    if own.start < i < own.stop - 1:
        v[i] = u[i - 1] + u[i + 1]


@synk.parallel
@cuda.jit
def of_a_part(u, v, own):  # other rows may be meant
    i = cuda.grid(1)
    if own.start <= i < own.stop and own.stop < 0:
        v[i] = u[i - 1]


def test_calls_beside_an_exchange(held):
    numbers = np.random.default_rng(0).random(10)

    @synk.sequence
    def step(u, v):
        ends(u, v, synk.OWN)
        synk.exchange(v, during=lambda: (inner_rows(u, v, synk.OWN), of_a_part(u, v, synk.OWN)))
        synk.swap(u, v)

    u, v = (synk.scatter(synk.variable(numbers), halo=1) for _ in range(2))
    step(u, v, times=4)
    for _ in range(4):
        numbers = np.concatenate([numbers[:1], numbers[:-2] + numbers[2:], numbers[-1:]])
    assert_array_equal(synk.gather(u, nd_up=0), numbers)
    # the call ends before the exchange
    synk.exchange(v, during=lambda: all_own_rows(u, v, synk.OWN))
    numbers = np.concatenate(
        [synk.gather(v, nd_up=0)[:1], numbers[:-2] + numbers[2:], synk.gather(v, nd_up=0)[-1:]]
    )
    assert_array_equal(synk.gather(v, nd_up=0), numbers)
    assert_array_equal(synk.get_value(0, v)[-1], numbers[4])


def test_a_call_in_place_of_a_function_that_makes_it(held):
    u, v = (synk.scatter(synk.variable(np.ones(10)), halo=1) for _ in range(2))

    @synk.sequence
    def step(u, v):
        synk.exchange(v, during=inner_rows(u, v, synk.OWN))

    for call in (step, lambda u, v: synk.exchange(v, during=inner_rows(u, v, synk.OWN))):
        with refused(
            synk.ArgumentError,
            "during takes a function without arguments",
            "got None. Write during=lambda: f(u, v)",
        ):
            call(u, v)


def test_own_rows_of_another_number(held):
    u = synk.scatter(synk.variable(ROWS, "haloed"), halo=1)
    told = [
        "set_value: variable 'haloed' is scattered with halo=1",
        "own rows on rank 0 keep their shape (2,); got (3,)",
    ]
    for call in (lambda: synk.set_value(0, u, ROWS[:3]), lambda: u.set_value(ROWS[:3], rank=0)):
        with refused(synk.PartitionError, *told, "synk.scatter(v, value, halo=1)"):
            call()
    with refused(
        synk.PartitionError, "'haloed' is divided among the ranks", "use set_value(value, rank=…)"
    ):
        u.set_value(ROWS)
    with refused(synk.PartitionError, "'haloed' is divided among the ranks"):
        u.get_value()
    with refused(synk.PartitionError, "'haloed' is divided among the ranks"):
        len(u)
    with refused(synk.PartitionError, "nd_up=1", "'haloed' has (2,) on rank 0, (3,) on rank 1"):
        synk.gather(u, nd_up=1)
    assert_array_equal(synk.gather(u), ROWS)


@synk.function(outputs=None)
def where(u, v, first, own):
    return np.array([first, *own])


@synk.function(rows=("v",), outputs=None)
def in_rows(v, own):
    return np.array(own)


@synk.function(outputs=None)
def of_data(x, own):
    return np.array(own)


@synk.parallel(grid=1)
@cuda.jit
def by_kernel(u, v, first, own):
    if cuda.grid(1) == 0:
        u[0] = v[0] + first + own.start


def test_whose_own_rows(held):
    narrow, wide = (synk.scatter(synk.variable(np.zeros(8), f"halo {k}"), halo=k) for k in (1, 2))
    for function in (where, by_kernel):
        told = f"{function.name} gets synk.OFFSET and synk.OWN, but u has halo=1 and v has "
        with refused(synk.ArgumentError, f"{told}halo=2", "scatter both alike"):
            function(narrow, wide, synk.OFFSET, synk.OWN)
        with refused(synk.ArgumentError, f"{told}no halo"):
            function(narrow, held.shards, synk.OFFSET, synk.OWN)
        with refused(synk.ArgumentError, "gets synk.OFFSET, but"):
            function(narrow, wide, synk.OFFSET, 3)
    # which asks for neither
    assert_array_equal(where(narrow, wide, 5, 7 * (1,)), [[5] + 7 * [1]] * 2)


def test_own_rows_of_nothing(held):
    for call in (
        lambda: in_rows(held.v, synk.OWN),
        lambda: of_data(ROWS, synk.OWN),
        lambda: of_data(held.number, synk.OWN),
    ):
        with refused(
            synk.ArgumentError,
            "gets synk.OWN",
            "no variable with rows that is not in rows=",
            "synk.arange(n)",
        ):
            call()


def test_own_rows_are_no_number(held):
    mapped = synk.vectorize(lambda x, own: x)
    mean = synk.expectation(lambda x, own: x)
    for function in (mapped, mean):
        with refused(synk.ArgumentError, "is synk.OWN", "kernels and functions of arrays"):
            function(ROWS, synk.OWN)


def test_shards_do_not_know_own_rows(held):
    u = synk.scatter(synk.variable(ROWS), halo=1)
    summed = synk.function(lambda x, u, own: x.sum(), outputs="sum")
    with refused(synk.ArgumentError, "got shards=…", "own has one value per rank"):
        summed(ROWS, u, synk.OWN, shards=2)


def test_a_next_world_with_too_few_rows_for_a_rank():
    """The last test of the file: it ends the world of the others."""
    synk.close()
    with synk.fork(1, device="cpu"):
        u = synk.scatter(synk.variable(np.arange(5.0), "u"), halo=2)
    with synk.fork(3, device="cpu"):
        told = (
            "halo=2 needs 2 rows on every rank, and 5 rows of variable 'u' on 3 "
            "ranks leave 1; call fork(1)"
        )
        with refused(synk.PartitionError, told, "synk.scatter(v, value, halo=…)"):
            synk.exchange(u)
    with synk.fork(2, device="cpu"):
        assert synk.get_shapes(synk.exchange(u)) == [(4,), (5,)]
        assert_array_equal(synk.snapshot(u), np.arange(5.0))
