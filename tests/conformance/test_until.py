"""Calls that end when their estimate is good enough: which rows they take, and that their
estimate is that of these rows.
"""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

import synknumba as synk
from tests.quick import whole

CLOSE = {"rtol": 1e-11, "atol": 1e-13}


@synk.expectation
def plain(x):
    return x


@synk.expectation
def circle(i, seed):
    x, y = synk.random.uniform2(seed, i, 0)
    return 4.0 if x * x + y * y < 1.0 else 0.0


@synk.expectation(broadcast=("table",))
def two(x, y, table):
    return x * table[0], y + table[1]


class Asked:
    """A condition that notes the rows at which it was asked."""

    def __init__(self, condition):
        self.condition = condition
        self.counts = []

    def __call__(self, e):
        self.counts.append(e.count)
        return self.condition(e)


def check(estimate, values):
    assert estimate.count == len(values)
    assert_allclose(estimate.mean, values.mean(), **CLOSE)
    assert_allclose(estimate.variance, values.var(ddof=1), **CLOSE)


@pytest.mark.parametrize("given", [synk.data, *whole(np.asarray)])
def test_rows_are_taken_in_order_until_the_condition_holds(world, given):
    values = np.random.default_rng(1).normal(size=100_000)
    until = Asked(lambda e: e.stderr < 0.006)  # 27,778 rows
    found = plain(given(values), until=until)
    assert 26_000 < found.count < 36_000
    assert found.stderr < 0.006
    check(found, values[: found.count])
    assert until.counts[0] == 10_000
    assert all(
        after <= 1.25 * before + 1
        for before, after in zip(until.counts, until.counts[1:], strict=False)
    )
    assert until.counts[-1] == found.count


def test_all_rows_are_taken_if_the_condition_never_holds(world):
    values = np.random.default_rng(2).normal(size=20_011)
    check(plain(values, until=lambda e: False, shards=5, num_slices=2), values)
    check(plain(values, until=lambda e: False, min_rows=1, max_rows=1_234), values[:1_234])
    check(plain(values[:7], until=lambda e: np.bool_(False)), values[:7])


def test_the_root_alone_takes_the_same_rows(world):
    values = np.random.default_rng(6).normal(size=50_000)
    asked, alone = Asked(lambda e: e.count > 12_000), Asked(lambda e: e.count > 12_000)
    plain(values, until=asked, max_rows=40_000)
    check(plain.as_serial(values, until=alone, max_rows=40_000), values[:12_500])
    assert alone.counts == asked.counts == [10_000, 12_500]
    check(
        plain.as_serial(lambda n: values[:n], until=lambda e: True, min_rows=100, max_rows=1000),
        values[:100],
    )
    with pytest.raises(synk.ArgumentError, match="min_rows= or max_rows= without until="):
        plain.as_serial(values, max_rows=100)


@pytest.mark.parametrize(
    "option",
    [{"until": lambda e: True}, {"min_rows": 5}, {"max_rows": 5}],
    ids=lambda one: next(iter(one)),
)
def test_a_plan_has_one_part(option):
    values = np.zeros(20_000)
    with pytest.raises(
        synk.ArgumentError,
        match=rf"plan\(\) of plain got {next(iter(option))}=.*batch=slice\(0, 10000\)",
    ):
        plain.plan(values, world_size=2, **option)
    assert plain.plan(values, world_size=2, batch=slice(0, 10_000)).rows == 10_000


def test_samples_of_an_index(world):
    until = Asked(lambda e: e.stderr < 0.01)
    found = circle(synk.arange(10**12), 7, until=until, max_rows=10**8)
    assert found.count == until.counts[-1] < 40_000
    index = np.arange(found.count)
    inside = synk.random.uniform2(7, index, 0)
    check(found, 4.0 * (inside[0] ** 2 + inside[1] ** 2 < 1))
    assert abs(found.mean - math.pi) < 5 * found.stderr
    before = world.statistics().rounds
    circle(synk.arange(10**12), 7, until=lambda e: e.stderr < 0.01, max_rows=10**8)
    assert world.statistics().rounds - before == len(until.counts)


def test_rows_made_by_functions(world):
    rng, made = np.random.default_rng(3), []

    def noise(count):
        made.append(rng.normal(size=count))
        return made[-1]

    found = plain(noise, until=lambda e: e.stderr < 0.008, max_rows=10**7)
    check(found, np.concatenate(made))
    assert found.stderr < 0.008
    x, y = np.random.default_rng(4).normal(size=(2, 3_000))
    rows = {"x": iter(np.split(x, 30)), "y": iter(np.split(y, 30))}
    told = two(
        lambda n: next(rows["x"]),
        lambda n: next(rows["y"]),
        (2.0, 3.0),
        until=lambda e: False,
        min_rows=100,
        max_rows=100,
    )
    assert_allclose(told.mean, [2.0 * x[:100].mean(), 3.0 + y[:100].mean()], **CLOSE)


def test_blocks_of_a_chain_go_on_from_part_to_part(world):
    rng = np.random.default_rng(5)
    values = np.cumsum(rng.normal(size=30_011)) / 50
    for given in (values, synk.data(values)):
        found = plain(given, until=lambda e: False, min_rows=1_000, block=64)
        of_blocks = values[: 30_011 // 64 * 64].reshape(-1, 64).mean(axis=1)
        assert found.count == len(of_blocks)
        assert_allclose(
            [found.mean, found.variance], [of_blocks.mean(), of_blocks.var(ddof=1)], rtol=1e-11
        )
    until = Asked(lambda e: e.count > 40)
    assert plain(values, until=until, min_rows=1, block=64).count == until.counts[-1] > 40
    with pytest.raises(synk.ReductionError, match="number of rows, 30011, got 40000"):
        plain(values, until=lambda e: False, block=40_000)


def test_the_same_rows_on_any_number_of_ranks(world):
    values = np.random.default_rng(6).normal(size=50_000)
    found = plain(values, until=lambda e: e.stderr < 0.006, shards=8)
    assert (found.count, found.mean) == WANTED.setdefault("bits", (found.count, found.mean))


WANTED = {}  # by the first world


@pytest.mark.parametrize("limits", [{"relative": 0.004}, {"absolute": 0.013}])
def test_until_a_tolerance(world, limits):
    estimate = circle(synk.arange(10**9), 3, until=synk.tolerance(**limits), max_rows=10**6)
    limit = limits.get("absolute", 0.004 * estimate.mean)
    assert 0.8 * limit < estimate.stderr < limit
    assert abs(estimate.mean - math.pi) < 5 * estimate.stderr
    assert_allclose(estimate.mean, circle(synk.arange(estimate.count), 3).mean, **CLOSE)


def test_a_relative_tolerance_of_a_mean_of_0_takes_all_rows(world):
    enough = synk.tolerance(relative=0.1)
    values = np.tile([-1.0, 1.0], 20_000)
    assert plain(values, until=enough).count == 40_000
    assert plain(values, until=enough, max_rows=30_000).count == 30_000
    values[7] = np.nan
    assert plain(values, until=enough).count == 10_000


def test_a_tolerance_of_a_controlled_mean(world):
    """The rows of ∫ exp(x) dx that are needed are a 61st where x is a control."""
    enough = synk.tolerance(absolute=0.002)
    plain = growth(synk.arange(10**7), 1, until=lambda e: enough(e.control(0.5)), min_rows=100)
    assert plain.count < 1_500
    controlled = plain.control(0.5)
    assert controlled.stderr < 0.002
    assert abs(controlled.mean - (math.e - 1)) < 5 * controlled.stderr


@synk.expectation(covariance=True)
def growth(i, seed):
    x = synk.random.uniform(seed, i, 0)
    return math.exp(x), x


@synk.expectation
def lifetime(i, seed):
    return -math.log(1.0 - synk.random.uniform(seed, i, 0))


@synk.expectation
def rare(i, seed):
    return synk.random.uniform(seed, i, 0) < 0.01


INTEGRANDS = {
    "lifetime": (lifetime, 1.0, 0.05),
    "circle": (circle, math.pi, 0.03),
    "rare": (rare, 0.01, 0.1),
}


@pytest.mark.parametrize("row", [{"world_size": 1, "device": "cpu"}], indirect=True)
@pytest.mark.parametrize("name", ["lifetime", *whole("circle", "rare")])
def test_error_bars_cover_after_stopping(world, name):
    """The bias of the mean is of the order of relative · stderr."""
    function, exact, relative = INTEGRANDS[name]
    enough, errors = synk.tolerance(relative=relative), []
    for seed in range(1000):
        estimate = function(synk.arange(10**6), seed, until=enough, min_rows=100)
        errors.append((estimate.mean - exact) / estimate.stderr)
    assert 0.93 < np.mean(np.abs(errors) < 1.96) < 0.97
    assert abs(np.mean(errors)) < 4 * relative + 3 / math.sqrt(1000)


@pytest.mark.whole
@pytest.mark.parametrize("row", [{"world_size": 1, "device": "cpu"}], indirect=True)
def test_error_bars_of_a_chain_cover_with_blocks(world):
    """Neighbours have a correlation of 0.8, so that √9 of the error bar are missing without."""
    steps = np.random.default_rng(9).normal(size=(8_000, 200))
    steps[0] /= 0.6
    for i in range(1, len(steps)):
        steps[i] += 0.8 * steps[i - 1]
    enough, covered = synk.tolerance(absolute=0.08), np.zeros(2)
    for chain in np.ascontiguousarray(steps.T) + 1.0:
        for kind, block in enumerate((1, 64)):
            estimate = plain(chain, until=enough, min_rows=100, block=block)
            covered[kind] += abs(estimate.mean - 1.0) < 1.96 * estimate.stderr
            assert estimate.count >= 100
    assert covered[0] / 200 < 0.6
    assert covered[1] / 200 > 0.9


REFUSED = {
    "no condition": (lambda: plain(np.zeros(4), until=0.001), "until of plain takes a condition"),
    "no limit": (
        lambda: plain(np.zeros, until=never),
        "x of plain is a function that makes rows, without end; pass max_rows=",
    ),
    "limit alone": (
        lambda: plain(np.zeros(4), max_rows=3),
        "got min_rows= or max_rows= without until=",
    ),
    "first alone": (
        lambda: plain(np.zeros(4), min_rows=3),
        "got min_rows= or max_rows= without until=",
    ),
    "batch": (lambda: plain(np.zeros(4), until=never, batch=2), "got batch= and until="),
    "max_rows": (
        lambda: plain(np.zeros(4), until=never, max_rows=0),
        "max_rows of plain must be a positive integer, got 0",
    ),
    "min_rows": (
        lambda: plain(np.zeros(4), until=never, min_rows=1.5),
        "min_rows of plain must be a positive integer, got 1.5",
    ),
    "both": (
        lambda: two(np.zeros, np.zeros(9), (1.0, 1.0), until=never),
        "rows of x of two are made by a function, but y is an array",
    ),
    "too few": (
        lambda: plain(lambda n: np.zeros(n - 1), until=never, max_rows=9),
        "asked for 9, and returned shape .8,.",
    ),
    "one": (
        lambda: plain(lambda n: 1.0, until=never, max_rows=9),
        "asked for 9, and returned float",
    ),
    "minibatch": (
        lambda: plain(synk.data(np.zeros(9), minibatch=True), until=never),
        "x is a minibatch input",
    ),
    "several": (
        lambda: two(np.zeros(9), np.ones(9), np.ones(2), until=lambda e: e.stderr < 1),
        r"e.stderr < 1e-3\).all",
    ),
    "answer": (
        lambda: plain(np.zeros(9), until=lambda e: None),
        "until of plain must return True or False, as .*, got None",
    ),
    "the estimate": (
        lambda: plain(np.zeros(9), until=lambda e: e),
        "until of plain must return True or False, as e.stderr < 1e-3 does, got Estimate",
    ),
    "no argument": (
        lambda: plain(np.zeros(9), until=lambda: True),
        "until of plain takes .* one argument.*too many positional",
    ),
    "two arguments": (
        lambda: plain(np.zeros(9), until=lambda a, b: True),
        "until of plain takes .* one argument.*missing .*'b'",
    ),
    "strings": (lambda: plain(np.array(["a", None], object), until=never), "x of plain"),
    "none": (lambda: plain(1.0, until=never), "none of its arguments has any"),
    "none, limited": (lambda: plain(1.0, until=never, max_rows=3), "none of its arguments has any"),
    "no rows": (lambda: plain(np.zeros(0), until=never), "no rows"),
}


def never(e):
    return False


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.whole
def test_refusals(world, case):
    call, words = REFUSED[case]
    with pytest.raises(synk.SynkError, match=words):
        call()


def test_variables_are_refused(world):
    own = synk.expectation(lambda x: x, rows=("x",))
    with pytest.raises(synk.ArgumentError, match="takes parts of its rows, but x is"):
        own(synk.variable(np.zeros(9)), until=never)
