"""Error bars of correlated rows: blocks of consecutive rows, wherever slices, shards and ranks
cut them, are NumPy's.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from synknumba._rowwise import expectation
from tests.conformance.conftest import FOUR, ROWS
from tests.quick import examples, whole

RHO = 0.95
any_calls = settings(
    max_examples=examples(150, quick=40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)


@synk.expectation
def plain(x):
    return x


@synk.expectation(covariance=True)
def powers(i, x):
    return x, x * x, float(i)


@synk.expectation(weights="w")
def weighted(x, w):
    return x


@pytest.fixture(params=[None, *whole((5, 8))], ids=["grid", "blocks"])
def grids(request, monkeypatch):
    """A core's grid of one block, and one of several, as on GPUs."""
    if request.param:
        most, together = request.param
        monkeypatch.setattr(expectation, "_BLOCKS", {"cpu": most, "cuda": most})
        monkeypatch.setattr(expectation, "_TOGETHER", together)
        for one in (plain, powers, weighted):  # whose kernels may be there
            monkeypatch.setattr(one, "_kernels", {})
            monkeypatch.setattr(one, "_known", {})


INFINITE = [pytest.param(value, value, marks=pytest.mark.whole) for value in (math.inf, -math.inf)]


def means(values, block):
    """Means of whole blocks, shape (blocks, …)."""
    count = len(values) // block
    return values[: count * block].reshape(count, block, *values.shape[1:]).mean(axis=1)


def check(estimate, values, block, offset=0.0):
    """The estimate of values, `offset` larger in the call: all rows are in the mean, and whole
    blocks in the error bar.
    """
    of_blocks = means(values, block)
    assert estimate.count == len(of_blocks)
    scale = np.abs(values).max()
    assert_allclose(estimate.mean, offset + values.mean(), rtol=1e-12, atol=1e-14 * scale)
    if len(of_blocks) == 1:
        assert math.isnan(estimate.stderr)
        return
    variance = of_blocks.var(ddof=1)
    # Each mean is rounded, by some 1e-14 of the largest value, before means that may be close to
    # each other are subtracted.
    assert_allclose(
        estimate.variance,
        variance,
        rtol=1e-11,
        atol=1e-13 * scale * math.sqrt(variance) + 1e-26 * scale**2,
    )
    assert_allclose(
        estimate.stderr,
        math.sqrt(of_blocks.var(ddof=1) / len(of_blocks)),
        rtol=1e-11,
        atol=1e-13 * scale,
    )


@pytest.mark.parametrize("row", [*ROWS, FOUR])
@pytest.mark.parametrize("offset", [1e9, *whole(0.0)])
def test_blocks_are_those_of_numpy(world, grids, offset):
    for n, block in itertools.product((1, 5, 64, 257, 1000, 4099), (1, 2, 3, 7, 64, 500, 2000)):
        if block <= n:
            noise = np.random.default_rng(n).normal(size=n)
            noise = (noise + offset) - offset  # what is left of it near 1e9
            for num_slices in (1, 2, 7):
                check(
                    plain(noise + offset, block=block, num_slices=num_slices), noise, block, offset
                )
                check(
                    plain.as_serial(noise + offset, block=block, num_slices=num_slices),
                    noise,
                    block,
                    offset,
                )


@pytest.mark.parametrize("row", ROWS[:3])
@any_calls
@given(data=st.data())
def test_any_rows_blocks_and_slices(world, data):
    n = data.draw(st.integers(1, 3000))
    block = data.draw(st.integers(1, n))
    shards, num_slices = data.draw(st.sampled_from([None, 1, 4, 7])), data.draw(st.integers(1, 5))
    values = np.random.default_rng(n).normal(size=n + 10)
    start = data.draw(st.integers(0, 9))
    batch = data.draw(st.sampled_from([None, slice(start, start + n), slice(n, None, -1)]))
    chosen = values if batch is None else values[batch]
    found = plain(values, block=block, batch=batch, shards=shards, num_slices=num_slices)
    check(found, chosen, block)


@pytest.mark.parametrize("shards", [1, 4, *whole(9)])
@pytest.mark.whole
def test_shards_have_the_same_bits_on_one_rank(world, shards):
    values = np.random.default_rng(1).normal(size=1003)
    for num_slices in (1, 3):
        options = {"shards": shards, "num_slices": num_slices, "block": 17}
        together, alone = (
            call(synk.arange(1003), values, **options) for call in (powers, powers.as_serial)
        )
        assert_array_equal(together.mean, alone.mean)
        assert_array_equal(together.covariance, alone.covariance)


def test_covariance_of_several_values(world, grids):
    values = np.random.default_rng(2).normal(size=1003)
    told = np.stack([values, values**2, np.arange(1003.0)], axis=1)
    found = powers(synk.arange(1003), values, block=20, num_slices=2)
    assert_allclose(found.mean, told.mean(axis=0), rtol=1e-12)
    assert_allclose(found.covariance, np.cov(means(told, 20), rowvar=False), rtol=1e-11, atol=1e-13)
    assert found.count == 50


@pytest.mark.whole
def test_weights_are_summed_over_blocks(world, grids):
    rng = np.random.default_rng(3)
    values, weights = 1e9 + rng.normal(size=1000), rng.random(1000)
    weights[40:60] = 0.0  # a block of weight 0, and parts of blocks
    by_block, own = values.reshape(-1, 20) - 1e9, weights.reshape(-1, 20)
    total, square = own.sum(), (own.sum(axis=1) ** 2).sum()
    mean = (own * by_block).sum() / total
    spread = ((own * (by_block - mean)).sum(axis=1) ** 2).sum() * 50 / 49
    for num_slices in (1, 3):
        found = weighted(values, weights, block=20, num_slices=num_slices)
        assert_allclose(found.mean, 1e9 + mean, rtol=1e-15)
        assert_allclose(found.stderr, math.sqrt(spread) / total, rtol=1e-11)
        assert_allclose(found.effective_size, total**2 / square, rtol=1e-12)
        assert found.count == 50
    # rows after the last block too
    assert_allclose(weighted(values, weights, block=130).mean, 1e9 + mean, rtol=1e-15)


@pytest.mark.whole
def test_blocks_of_rows_of_arrays_and_float32(world):
    values = np.random.default_rng(4).normal(size=(1000, 3))
    first = synk.expectation(lambda row, scale: scale * row[0] + row[2])
    check(first(values, 2.0, block=30), 2.0 * values[:, 0] + values[:, 2], 30)
    single = synk.expectation(lambda x: x, dtype="float32")
    counts = np.arange(1024.0) % 64  # sums are exact in float32
    check(single(counts, block=16), counts, 16)


@pytest.mark.whole
def test_huge_values(world):
    huge = np.array([1.7e308, -1.7e308] * 30 + [1.7e308])
    for block in (2, 3, 7):
        found = plain(huge, block=block)
        assert_allclose(found.mean, 1.7e308 / 61, rtol=1e-12)
        assert found.variance == (0.0 if block == 2 else math.inf)
    light = weighted(np.arange(100.0), np.full(100, 1e-300), block=9)
    assert_allclose(light.mean, 49.5, rtol=1e-12)
    assert_allclose(light.stderr, plain(np.arange(99.0), block=9).stderr, rtol=1e-11)


@pytest.mark.parametrize("value", [1e300, *whole(1e100, 1e308)])
def test_large_values_that_cancel_within_blocks(world, grids, value):
    values = np.array([value, -value] * 700)
    weights = 2.0 ** np.repeat(np.arange(700) % 9, 2)  # products are exact
    for found in (
        plain(values, block=2),
        plain(values, block=2, num_slices=3),
        weighted(values, weights, block=2),
    ):
        assert (found.mean, found.stderr) == (0.0, 0.0)


def test_light_blocks_of_large_values_hide_no_heavy_ones(world, grids):
    weights = np.exp(6.0 * np.random.default_rng(2).normal(size=3000))
    for order in (np.arange(3000), np.argsort(weights)):
        w = weights[order]
        found = weighted(1.0 / w, w, block=3)
        want = synk.Estimate.from_values(1.0 / w, w, block=3)
        exact = 3000 / w.astype(np.longdouble).sum()
        assert_allclose(found.mean, float(exact), rtol=1e-12)
        assert_allclose(found.stderr, want.stderr, rtol=1e-11)


@pytest.mark.parametrize(("value", "weight"), [(1e-150, 1e-300), (1e155, 1e-300), (1e308, 1e300)])
def test_extreme_weights_of_a_block_that_ranks_share(world, value, weight):
    values = value * np.tile([1.0, -1.0, -1.0, -1.0], 10)
    found = weighted(values, np.full(40, weight), block=40)
    assert_allclose(found.mean, -value / 2, rtol=1e-12)


@pytest.mark.parametrize(("value", "mean"), [(math.nan, math.nan), *INFINITE])
def test_what_is_not_finite_is_told(world, value, mean):
    for place in (0, 149, 299):  # of 300 rows; the last one is in no block
        values = np.zeros(300)
        values[place] = value
        found = plain(values, block=23)
        assert_array_equal(found.mean, mean)
        assert math.isnan(found.variance)
        assert math.isnan(synk.Estimate.from_values(values, block=23).variance)


@pytest.mark.whole
def test_rows_of_variables_are_in_the_order_of_the_ranks(world):
    own = [np.random.default_rng(rank).normal(size=50 + rank) for rank in range(world.world_size)]
    chain = synk.variable(np.zeros(50))
    for rank, values in enumerate(own):
        chain.set_value(values, rank=rank)
    found = synk.expectation(lambda x: x, rows=("x",))(chain, block=8, num_slices=2)
    check(found, np.concatenate(own), 8)


def chains(seed, number, n):
    """Stationary AR(1) chains of variance 1, shape (number, n): x_i = ρ x_{i−1} + √(1 − ρ²) ε_i."""
    rng = np.random.default_rng(seed)
    x = np.sqrt(1 - RHO**2) * rng.normal(size=(n, number))
    x[0] /= np.sqrt(1 - RHO**2)
    for i in range(1, n):
        x[i] += RHO * x[i - 1]
    return np.ascontiguousarray(x.T)


def test_error_bars_of_a_markov_chain_cover_the_truth(world):
    """The mean is 0. With 64 blocks, 95 % are within 2.0 standard errors, by Student's t;
    without, one in four is.
    """
    number, n = 400, 2**14
    inside, plainly = 0, 0
    for chain in chains(5, number, n):
        blocked, alone = plain(chain, block=256), plain(chain)
        inside += abs(blocked.mean) < 2.0 * blocked.stderr
        plainly += abs(alone.mean) < 2.0 * alone.stderr
    assert 0.91 < inside / number < 0.98
    assert plainly / number < 0.4


@pytest.mark.parametrize("block", [0, -1, 1.0, "2", None, True, 2**63, 2**70])
def test_what_is_no_block_is_refused_before_anything_is_sent(block):
    for call in (plain, plain.as_serial, plain.plan):  # there is no world
        with pytest.raises(
            synk.ReductionError, match="block must be an integer from 1 to the number of rows, got"
        ):
            call(np.zeros(4), block=block)


def test_blocks_longer_than_the_rows_are_refused(world):
    for call in (plain, plain.as_serial):
        with pytest.raises(synk.ReductionError, match="from 1 to the number of rows, 4, got 5"):
            call(np.zeros(4), block=5)


@pytest.mark.parametrize("name", ["block", "until", "min_rows", "max_rows"])
def test_options_of_calls_are_no_parameters(name):
    scope = {}
    exec(f"def mine({name}): return {name}", scope)
    with pytest.raises(
        synk.ArgumentError, match=f"parameter named '{name}', which is an option of every call"
    ):
        synk.expectation(scope["mine"], size=0)
    assert synk.vectorize(scope["mine"]).name == "mine"


def test_a_plan_of_blocks_tells_the_rows_own_arguments():
    report = plain.plan(np.zeros(100), block=10, world_size=2)
    assert report.arguments == ("x: float64 (100,)",)
