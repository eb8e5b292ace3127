"""Rules that predecessors published, each with its numbers. What needs Variables is tested with
them.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from tests.conformance import expected, kernels


@pytest.mark.parametrize(("n", "parts", "sizes"), expected.SIZES)
def test_rows_are_divided_by_trunc_of_linspace(world, n, parts, sizes):
    if world.world_size == parts:
        assert kernels.count_of(np.zeros(n)) == sizes
    assert_array_equal(np.diff(np.trunc(np.linspace(0, n, parts + 1)).astype(int)), sizes)


def test_chapter_2_scattered_x_broadcast_y(world):
    """Mean over axis 0 of x·y equals the serial result."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(100, 10)), rng.normal(size=10)
    want = (x * y).mean(axis=0)

    @synk.function(outputs="mean", broadcast=("y",))
    def chapter_2(x, y):
        return (x * y).mean(0)

    for num_slices in (1, 2, 7):
        assert_allclose(chapter_2(x, y, num_slices=num_slices), want)
        assert_allclose(kernels.weighted_mean(x, y, num_slices=num_slices), want)
    assert_allclose(chapter_2.as_serial(x, y), want)
    assert_allclose(kernels.weighted_mean.as_serial(x, y), want)


def test_means_of_uneven_shards_and_slices_are_exact(world):
    """2 ranks gave [3.5, 4.5], and NaN as soon as a slice was empty."""
    x = np.arange(10.0).reshape(5, 2)
    for num_slices in range(1, 8):
        assert_array_equal(kernels.mean_of(x, num_slices=num_slices), [4.0, 5.0])
        assert_allclose(
            kernels.weighted_mean(x, np.ones(2), num_slices=num_slices), [4.0, 5.0], rtol=1e-15
        )


def test_mean_of_integers_is_never_zero(world):
    """1/n was cast to the integer type."""
    x = np.arange(11)
    assert kernels.mean_of(x) == 5.0
    assert kernels.reductions(x, output_subset="mean") == pytest.approx(5.0)

    @synk.function(outputs="mean")
    def integer_mean(x):
        return x.sum(0) // len(x)

    x = np.repeat([3, 4], 2 * world.world_size)
    got = integer_mean(x)
    assert got.dtype == np.float64
    parts = [part.sum() // len(part) for part in expected.shards(x, world.world_size)]
    assert got == np.average(parts, weights=expected.shard_sizes(len(x), world.world_size))


def test_none_gives_every_ranks_accumulated_value(world):
    """There: the root's local value, last slice only."""
    x = np.arange(20.0)
    sums = [part.sum() for part in expected.shards(x, world.world_size)]

    @synk.function(outputs=None)
    def own_sum(x):
        return x.sum()

    for num_slices in (1, 2, 30):
        assert_allclose(own_sum(x, num_slices=num_slices), sums)
        assert_allclose(kernels.reductions(x, num_slices=num_slices, output_subset="each"), sums)


def test_output_subset_returns_in_its_order_and_goes_back_to_all(world):
    """Both broken there."""
    x = np.arange(6.0)
    high, total = kernels.three(x, output_subset=(1, 0))
    assert (high, total) == (5.0, 15.0)
    total, high, rows = kernels.three(x, output_subset=None)
    assert (high, total) == (5.0, 15.0)
    assert_array_equal(rows, 2 * x)


def test_minibatch_inputs_are_indexed_by_position(world):
    """A slice: row i with data row a + i; an int: row i with row i; a list: row i with the i-th
    entry.
    """
    x = synk.data(np.arange(10.0))
    for batch, chosen in ((slice(4, 7), [4, 5, 6]), (3, [0, 1, 2]), ([9, 0, 4], [9, 0, 4])):
        m = synk.data(np.array([0.1, 0.2, 0.3]), minibatch=True)
        assert_allclose(kernels.paired(x, m, batch=batch), 1000.0 * np.array(chosen) + m.data)


def test_plain_arrays_are_passed_per_call(world):
    """Users of the predecessor asked for it, for gathering, and for unequal lengths."""
    for n in (7, 3, 100):
        x = np.arange(float(n))
        assert kernels.total_of(x) == x.sum()
        assert_array_equal(kernels.positives(x - 2), x[x > 2] - 2)


@pytest.mark.usefixtures("no_others")
def test_functions_may_be_made_after_other_calls_and_distributed_again(world):
    kernels.total_of(np.zeros(3))
    late = synk.function(outputs="sum")(lambda x: (2 * x).sum())
    synk.distribute()
    synk.distribute()
    assert late(np.ones(5)) == 10
    assert kernels.total_of(np.ones(5)) == 5


def test_data_parallel_sgd_equals_its_serial_twin(world):
    """DataParallelTable's test: 10 steps with Nesterov momentum on 2n, 9 and 15 rows, to 1e-5,
    gradients summed.
    """

    @synk.function(outputs="sum", broadcast=("w",))
    def gradient(x, y, w):
        return x.T @ (x @ w - y)

    for n in (2 * world.world_size, 9, 15):
        rng = np.random.default_rng(n)
        x, y = rng.normal(size=(n, 4)), rng.normal(size=n)
        ours, twin = np.zeros(4), np.zeros(4)
        v_ours, v_twin = np.zeros(4), np.zeros(4)
        for _ in range(10):
            g = gradient(x, y, ours) / n
            v_ours = 0.9 * v_ours - 0.1 * g
            ours = ours + 0.9 * v_ours - 0.1 * g
            g = x.T @ (x @ twin - y) / n
            v_twin = 0.9 * v_twin - 0.1 * g
            twin = twin + 0.9 * v_twin - 0.1 * g
            assert_allclose(ours, twin, atol=1e-5)
