"""Ranks of unequal speed: rows are divided by weights, and everything else is as before."""

import itertools

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_array_equal

import synknumba as synk

N = 1003


@synk.function(outputs=("gather", "sum", "mean"))
def told(x, offset):
    return np.array([[len(x), offset]]), x.sum(), x.mean()


@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")}, inout=("y",))
@cuda.jit
def weigh(x, y, total):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = 2.0 * x[i]
        cuda.atomic.add(total, 0, x[i])


def edges(weights, n=N):
    """The rule: rank r has the rows from ⌊n · w₀ + … + w(r − 1)⌋ on, of weights that add up to
    1.
    """
    marks = np.cumsum([0, *weights])
    return [int(mark * n) // int(marks[-1]) for mark in marks]


@pytest.fixture
def weights(row):
    return [2 * rank + 1 for rank in range(len(row.get("devices", ())) or row["world_size"])]


def test_rows_are_divided_by_weights(fork_row, weights):
    x, y, cuts = synk.data(np.arange(float(N))), synk.data(np.zeros(N)), edges(weights)
    sizes = np.diff(cuts)
    with fork_row(weights=weights) as world:
        assert world.weights == pytest.approx(np.array(weights) / sum(weights))
        for _ in range(3):
            parts, total, mean = told(x, synk.OFFSET)
            assert_array_equal(np.asarray(parts), np.stack([sizes, cuts[:-1]], axis=1))
            assert total == x.data.sum()
            assert mean == x.data.mean()
            assert weigh(x, y) == x.data.sum()
            assert_array_equal(y.data, 2.0 * x.data)
        assert [one.rows for one in told.plan(x, synk.OFFSET).ranks] == list(
            itertools.pairwise(cuts)
        )
        chosen = np.arange(N)[::-3]
        parts, total, _ = told(x, 0, batch=chosen)
        assert_array_equal(np.asarray(parts)[:, 0], np.diff(edges(weights, len(chosen))))
        assert total == x.data[chosen].sum()
        rows = synk.scatter(synk.variable(np.zeros(1)), x.data)
        assert synk.get_lengths(rows) == sizes.tolist()
        assert_array_equal(synk.gather(rows, nd_up=0), x.data)


def test_shards_give_the_same_bits(fork_row, row, weights):
    x = np.random.default_rng(0).normal(size=N).astype(np.float32)
    found = []
    for more in ({}, {"weights": weights}):
        with fork_row(**more):
            found.append(told(x, 0, shards=7)[1].tobytes())
    assert found[0] == found[1]


def test_rows_on_ranks_are_divided_anew_for_other_weights(fork_row, weights):
    rows, own = synk.variable(np.zeros(1)), synk.variable(np.zeros(1))
    with fork_row():
        synk.scatter(rows, np.arange(float(N)))
        size = synk.world_size()
        for rank in range(size):
            own.set_value(np.full(rank + 1, float(rank)), rank=rank)
    with fork_row(weights=weights):
        assert synk.get_lengths(rows) == np.diff(edges(weights)).tolist()
        assert_array_equal(synk.gather(rows, nd_up=0), np.arange(float(N)))
        # by the script, so they stay
        assert synk.get_lengths(own) == [rank + 1 for rank in range(size)]
    with fork_row():
        assert synk.get_lengths(rows) == np.diff(edges([1] * size)).tolist()


def slopes(x, params):
    """Of the sum of w · x."""
    return (x * params["w"]).sum(), {"w": x.sum(keepdims=True)}


def test_ranks_without_rows_in_a_training_step(fork_row, weights):
    x = np.arange(1.0, 1.0 + 2 * len(weights))
    with fork_row(weights=weights):
        step = synk.train.step(slopes, {"w": np.ones(1)}, synk.optim.sgd(1.0))
        wanted = 1.0
        for n in range(1, len(x) + 1):
            assert step(x[:n]) == pytest.approx(wanted * x[:n].mean())
            wanted -= x[:n].mean()
            assert step.params.get_value()["w"] == pytest.approx(wanted)


def test_measured(fork_row):
    x = np.arange(float(N))
    with fork_row(weights="measured") as world:
        assert sum(world.weights) == pytest.approx(1.0)
        assert min(world.weights) > 0.0
        parts, total, _ = told(x, synk.OFFSET)
        assert np.asarray(parts)[:, 0].sum() == N
        assert total == x.sum()


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([1, 2, 3], "weights has 3 numbers for 2 ranks; give one for each"),
        ([1, 0], "weights must be a positive number for each rank"),
        ([1, float("nan")], "weights must be a positive number for each rank"),
        ([10**400, 1], "weights must be a positive number for each rank"),
        (["1", "2"], "weights must be a positive number for each rank"),
        ([True, True], "weights must be a positive number for each rank"),
        ([np.True_, 1], "weights must be a positive number for each rank"),
        ([1, float("inf")], "weights must be a positive number for each rank"),
        ("fast", "or \"measured\", got 'fast'"),
        (3, "weights must be a positive number for each rank"),
        ({0: 1, 1: 2}, "weights must be a positive number for each rank"),
        ([], "weights must be a positive number for each rank"),
        ([1, 1e4], "differ by more than a factor of 1,000"),
    ],
)
def test_what_is_refused(weights, words):
    with pytest.raises(synk.ArgumentError, match=words):
        synk.fork(2, device="cpu", weights=weights)
