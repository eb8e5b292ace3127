"""Loops that end by `until=`: those that the ranks judge make the iterations, and return the
results, of the same loops judged in the script, and of NumPy.
"""

# ruff: noqa: B007, B023, PLR0124, PLW0603, SIM300  # what conditions read, and how, is tested

import random

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_array_equal

import synknumba as synk
from tests.conformance.conftest import LINKED, PRIVATE, REPLAYED, REPLAYED_LINKED, ROWS

RANKS = "the ranks"  # judge, as plan() says


@pytest.fixture(params=[*ROWS, PRIVATE, LINKED, REPLAYED, REPLAYED_LINKED])
def row(request):
    return request.param


class Asked:
    """A condition that the script judges, as it is no plain function, with its arguments."""

    def __init__(self, holds):
        self.holds, self.results = holds, []

    def __call__(self, results):
        self.results.append(results)
        return self.holds(results)


def looking(dtype, op="sum", identity=None):
    """A kernel whose result in an iteration is in a column of each rank's table."""
    options = {} if identity is None else {"identity": identity}

    @synk.parallel(
        grid=1, block=1, outputs={"t": synk.output(op, shape=(), dtype=dtype, **options)}
    )
    @cuda.jit
    def look(table, step, t):
        t[0] = table[step]

    return look


look64, look32, look_int = looking("float64"), looking("float32", "max"), looking("int64", "max")


@synk.parallel(grid=1, block=1)
@cuda.jit
def advance(n):
    n[0] += 1


@synk.sequence
def plain(n, table):
    advance(n)
    return look64(table, synk.STEP)


@synk.sequence
def single(n, table):
    advance(n)
    return look32(table, synk.STEP)


@synk.sequence
def several(n, a, b, c):
    advance(n)
    found = look64(a, synk.STEP)
    return {"a": found, "rest": [(look_int(b, synk.STEP), None), look32(c, synk.STEP)], "n": n}


def tables(world, rows):
    """A variable with a row of numbers on each rank."""
    variable = synk.variable(np.zeros_like(rows[0]))
    for rank in range(world.world_size):
        variable.set_value(np.asarray(rows[rank]), rank=rank)
    return variable


def counter():
    return synk.variable(np.zeros(1, np.int64))


def run(body, args, until, **options):
    """How many iterations a loop makes, and its results."""
    n = counter()
    results = body(n, *args, until=until, **options)
    return int(n.get_value()[0]), results


def agree(body, args, holds, **options):
    """How many iterations the ranks make, which are those of the script, with its results."""
    count, results = run(body, args, holds, **options)
    expected_count, expected = run(body, args, Asked(holds), **options)
    assert body.plan(counter(), *args, until=holds, **options).judged_by == RANKS
    assert count == expected_count
    assert type(results) is type(expected)
    assert_array_equal(results, expected)
    return count, results


def expected_count(values, holds, times, every=1):
    """How many iterations a loop makes whose results are `values`."""
    for done in range(every, times + 1, every):
        if holds(values[done - 1]):
            return done
    return times


@pytest.mark.parametrize("every", [None, 1, 2, 3, 7])
@pytest.mark.parametrize("last", [1, 6, 7, 12, 13, 99])
def test_the_iteration_that_ends_it(world, every, last):
    """The first, one that is judged or not, the last, one behind it, none."""
    times, size = 13, world.world_size
    rows = np.arange(100.0, 100.0 - times, -1)[None] * (1 + np.arange(size)[:, None])
    sums, args = rows.sum(0), [tables(world, rows)]
    tol = (100.5 - last) * size * (size + 1) / 2

    count, found = agree(plain, args, lambda r: r < tol, times=times, every=every)
    assert count == expected_count(sums, lambda r: r < tol, times, every or 1)
    wanted = sums[count - 1] if every is None else sums[every - 1 : count : every]
    assert_array_equal(found, wanted)


@pytest.mark.parametrize(("every", "kept"), [(1, 1024), (3, 1023), (2000, 2000)])
def test_more_than_a_round_keeps(world, every, kept):
    times = 2 * kept + 7
    rows = np.arange(0.0, times)[None].repeat(world.world_size, 0) / world.world_size
    args = [tables(world, rows)]
    for last in (kept - every, kept, kept + every, 2 * kept, times + 1):
        count, found = run(plain, args, lambda r, n=last: r >= n - 1.5, times=times, every=every)
        assert count == min(last or every, times)
        assert_array_equal(found, np.round(rows.sum(0))[every - 1 : count : every])


OPS = {
    "sum": ("float64", "sum", None),
    "prod": ("float64", "prod", None),
    "min": ("float64", "min", None),
    "max": ("float32", "max", None),
    "mean": ("float64", "mean", None),
    "mean of ints": ("int64", "mean", None),
    "user": ("float64", lambda a, b: a + 2 * b, 0.0),
    "int16": ("int16", "max", None),
    "uint8": ("uint8", "min", None),
    "int32": ("int32", "sum", None),
    "uint32": ("uint32", "max", None),
    "uint64": ("uint64", "max", None),
}


@pytest.mark.parametrize("kind", OPS)
def test_ops_and_dtypes(world, kind):
    """The parts are other numbers on each rank."""
    dtype, op, identity = OPS[kind]
    look = looking(dtype, op, identity)

    @synk.sequence
    def body(n, table):
        advance(n)
        return look(table, synk.STEP)

    rows = np.array([[24, 12, 6, 4, 3, 2, 1, 5]] * world.world_size, dtype)
    rows += np.arange(world.world_size, dtype=dtype)[:, None]
    args = [tables(world, rows)]
    _, values = run(body, args, Asked(lambda r: False), times=8, every=1)
    assert len(set(values.tolist())) > 4
    for value in values:
        limit, less = value.item(), value.item() - 0.5
        count, _ = agree(body, args, lambda r: r <= limit, times=8)
        assert count == 1 + int(np.argmax(values <= limit))
        count, _ = agree(body, args, lambda r: r == limit, times=8, every=2)
        count, found = agree(body, args, lambda r: r > less, times=8, every=1)
        assert len(found) == count


def test_a_mean_over_uneven_rows(world):
    x = synk.data(np.arange(7.0))

    @synk.parallel(grid=1, block=1, outputs={"t": synk.output("mean", shape=(), dtype="float64")})
    @cuda.jit
    def middle(x, step, t):
        for i in range(x.shape[0]):
            t[0] += x[i]
        t[0] *= (8 - step) / x.shape[0]

    @synk.sequence
    def body(n, x):
        advance(n)
        return middle(x, synk.STEP)

    for limit in (24.0, 15.0, 14.9, 12.0, 2.0):
        count, found = agree(body, [x], lambda r: r <= limit, times=7)
        assert count == expected_count(3.0 * np.arange(8, 0, -1), lambda r: r <= limit, 7)
        assert found == 3.0 * (9 - count)


@pytest.mark.parametrize("value", [0.1, 1 / 3, 16777217.0, 1e-46, 3.4028235e38])
@np.errstate(over="ignore")
def test_numpy_compares_float32_with_a_rounded_tolerance(world, value):
    numbers = np.array([np.inf, 2 * np.float64(value), value, -value, 0], np.float32)
    args = [tables(world, numbers[None].repeat(world.world_size, 0))]
    wide, names = np.float64(value), {}
    for holds in (
        lambda r: r <= value,
        lambda r: r < value,
        lambda r: r == value,
        lambda r: value >= r,
        lambda r: r <= wide,
        lambda r: wide == r,
        lambda r: r < 16777217,
        lambda r: r < 1e300,
        lambda r: r >= -1e300,
    ):
        count, _ = agree(single, args, holds, times=5)
        names[holds] = count
        assert count == expected_count(numbers, holds, 5)
    assert len(set(names.values())) > 1


INTS = np.array([2**63 - 1, 2**53 + 1, 2**53, 7, 0, -1, -(2**53) - 1, -(2**63)])
WORDS = np.array([2**64 - 1, 2**63 + 5, 2**63, 2**53 + 1, 2**53, 7, 1, 0], np.uint64)


@pytest.mark.parametrize("values", [INTS, WORDS], ids=["int64", "uint64"])
@pytest.mark.parametrize(
    "limit",
    [2**63 + 5, 2**63 - 1, 2**53 + 1, 2**53, 2.0**53, 2.0**63, 1.8446744073709552e19, 0, -1],
)
def test_large_ints(world, values, limit):
    """Of ints exactly, of an int and a float as float64."""
    look = looking(values.dtype, "max")

    @synk.sequence
    def body(n, table):
        advance(n)
        return look(table, synk.STEP)

    args = [tables(world, values[None].repeat(world.world_size, 0))]
    if isinstance(limit, int) and limit >= 2**63:  # from outside, numbers have 64 bits
        conditions = [lambda r: r <= 9223372036854775813, lambda r: r == 9223372036854775813]
    else:
        conditions = [lambda r: r <= limit, lambda r: r < limit, lambda r: limit == r]
    for holds in conditions:
        count, _ = agree(body, args, holds, times=8)
        assert count == expected_count(values, holds, 8)


def test_what_is_not_a_number_goes_on(world):
    values = np.array([3.0, np.nan, -np.inf, np.nan, 0.0, np.inf])
    args, tol = [tables(world, values[None].repeat(world.world_size, 0) / world.world_size)], 1e-3
    conditions = {
        lambda r: abs(r) < tol: 5,
        lambda r: r < tol: 3,
        lambda r: r != r: 2,
        lambda r: ~(r >= 1): 2,
        lambda r: np.maximum(r, 0.0) < 1: 3,
        lambda r: np.sqrt(r) == 0: 5,
        lambda r: (r > 10) | ~(r == r): 2,
        lambda r: np.log(r) / r < -1: 5,
    }
    with np.errstate(all="ignore"):
        for holds, count in conditions.items():
            assert agree(plain, args, holds, times=6)[0] == count


def test_results_by_name(world):
    rng, size = np.random.default_rng(0), world.world_size
    numbers = rng.integers(-5, 6, 9).astype(float)
    counts, floats = rng.integers(-5, 6, 9), rng.integers(-5, 6, 9).astype(np.float32)
    args = [
        tables(world, numbers[None].repeat(size, 0)),
        tables(world, counts[None].repeat(size, 0)),
        tables(world, floats[None].repeat(size, 0)),
    ]
    ones = np.ones(9)
    cases = [
        (
            lambda r: abs(r["a"] - r["rest"][0][0]) <= 0.5 * r["a"],
            lambda a, b, c: abs(a - b) <= 0.5 * a,
        ),
        (lambda r: (r["rest"][0][0] == 0) | (r["a"] > 4 * 1.0), lambda a, b, c: (b == 0) | (a > 4)),
        (
            lambda r: (r["rest"][1] < 0) & ~(r["rest"][0][0] > r["a"]),
            lambda a, b, c: (c < 0) & ~(b > a),
        ),
        (lambda r: np.minimum(r["a"], 2.0) == r["a"] * 1, lambda a, b, c: np.minimum(a, 2.0) == a),
        (lambda r: r["rest"][0][0] % 3 == 1, lambda a, b, c: b % 3 == 1),
        (lambda r: r["rest"][0][0] // 2 < -2, lambda a, b, c: b // 2 < -2),
    ]
    for holds, of_numbers in cases:
        truth = of_numbers(size * numbers, counts, floats)
        wanted = int(np.argmax(truth)) + 1 if truth.any() else len(ones)
        n = counter()
        found = several(n, *args, times=9, until=holds)
        assert several.plan(n, *args, times=9, until=holds).judged_by == RANKS
        assert n.get_value() == wanted
        assert found["a"] == size * numbers[wanted - 1]
        assert found["rest"][0] == (counts[wanted - 1], None)
        assert found["rest"][1] == floats[wanted - 1]
        assert found["n"] is n
        n.set_value(np.zeros(1, np.int64))
        found = several(n, *args, times=9, every=1, until=holds)
        assert n.get_value() == wanted
        assert_array_equal(found["a"], size * numbers[:wanted])
        assert_array_equal(found["rest"][0][0], counts[:wanted])


def test_the_number_of_the_iteration(world):
    args = [tables(world, np.arange(40.0)[None].repeat(world.world_size, 0))]
    limit = 5
    for _ in range(2):
        assert run(plain, args, lambda r: synk.STEP > 5, times=40)[0] == 7
        assert run(plain, args, lambda r: (r < 0) | (synk.STEP >= limit), times=40)[0] == limit + 1
        assert run(plain, args, lambda r: 2 * synk.STEP + 0.5 >= 9, times=40)[0] == 6
        assert run(plain, args, lambda r: synk.STEP == -1, times=40)[0] == 40
        limit = 11


@pytest.mark.parametrize(("every", "times"), [(1, 8), (3, 3), (2000, 4001)])
def test_the_number_of_the_iteration_at_the_end_of_a_round(every, times):
    with synk.fork(2, device="cpu") as world:
        args = [tables(world, np.arange(float(times))[None].repeat(2, 0))]
        count, found = run(plain, args, lambda r: synk.STEP < 0, times=times, every=every)
        assert (count, len(found)) == (times, times // every)


# ---- what else loops have


@synk.parallel(grid=1, block=1)
@cuda.jit
def store(log, at, value):
    log[at] = value


@synk.parallel(grid=1, block=1, outputs={"t": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def total(v, t):
    for i in range(v.shape[0]):
        t[0] += v[i]


@synk.parallel(grid=1, block=1)
@cuda.jit
def scale(v, by):
    for i in range(v.shape[0]):
        v[i] *= by


@synk.parallel(grid=1, block=1)
@cuda.jit
def double(source, target):
    target[0] = 2 * source[0] + 1


@pytest.mark.parametrize("every", [None, 1, 2, 3])
@pytest.mark.parametrize("last", [1, 2, 3, 6, 7, 9])
def test_swapped_variables(world, every, last):
    """Two turns, of which each has a condition of its own."""

    @synk.sequence
    def step(n, u, v):
        advance(n)
        double(u, v)
        synk.swap(u, v)
        return total(u)

    size, times = world.world_size, 7
    found = []
    for holds in (lambda r: r >= size * (2**last - 1), Asked(lambda r: r >= size * (2**last - 1))):
        u, v = synk.variable(np.zeros(1)), synk.variable(np.zeros(1))
        for _ in range(2):  # with the variables as the call before has left them
            u.set_value(np.zeros(1))
            count, results = run(step, [u, v], holds, times=times, every=every)
            found.append((count, np.atleast_1d(results).tolist(), u.get_value()[0]))
            assert v.get_value() == 2.0 ** (count - 1) - 1
    assert found[0] == found[1] == found[2] == found[3]
    count = expected_count(np.arange(1, times + 1), lambda k: k >= last, times, every or 1)
    assert (found[0][0], found[0][2]) == (count, 2.0**count - 1)


@pytest.mark.parametrize("every", [None, 2])
@pytest.mark.parametrize("uses_it", [True, False])
def test_carried_numbers(world, uses_it, every):
    """The condition sees the result that a later call has, too, and none of the numbers of the
    next iteration.
    """

    @synk.sequence
    def body(n, log, v, x):
        advance(n)
        scale(v, 0.5)
        found = total(v)
        if uses_it:
            store(log, synk.STEP, found + x)
        synk.carry(x, 3 * x + found)
        return found

    size = world.world_size
    for limit in (0.9, 0.1, 1e-9):
        logs = []
        for holds in (lambda r: r < limit * size, Asked(lambda r: r < limit * size)):
            v, log = synk.variable(np.ones(1)), synk.variable(np.zeros(9))
            count, _ = run(body, [log, v, 1.0], holds, times=9, every=every)
            logs.append((count, log.get_value(size - 1).tolist(), v.get_value()[0]))
        assert logs[0] == logs[1]
        values = 0.5 ** np.arange(1, 10)
        assert logs[0][0] == expected_count(values, lambda r: r < limit, 9, every or 1)


def test_a_result_is_combined_once(world):
    """Of one that a later call takes, the ranks have the number already."""

    @synk.sequence
    def body(n, log, v):
        advance(n)
        found = total(v)
        store(log, synk.STEP, found)
        return found, look_int(log_int, 0)

    log_int, v, log = synk.variable(np.ones(1, int)), synk.variable(np.ones(1)), counter()
    body(counter(), log, v, times=1, until=lambda r: (r[0] < 0) & (r[1] < 0) & (r[0] < -1))
    [plan] = body._plans._plans.values()
    [ending] = plan.program.ends
    assert len(ending.shares) == 1  # that of the int


def test_inner_sequences(world):
    @synk.sequence
    def halvings(v):
        scale(v, 0.5)
        return total(v)

    @synk.sequence
    def body(n, v):
        advance(n)
        return halvings(v, times=3), total(v)

    size = world.world_size
    for limit in (0.9, 1e-3, 1e-30):
        v = synk.variable(np.ones(1))
        count, found = run(body, [v], lambda r: r[0] < limit * size, times=6)
        assert count == expected_count(0.125 ** np.arange(1, 7), lambda r: r < limit, 6)
        assert found == (size * 0.125**count,) * 2
        assert v.get_value() == 0.125**count


@pytest.mark.parametrize("every", [None, 1, 2])
@pytest.mark.parametrize("last", [1, 2, 3, 5])
def test_functions_that_are_recorded(world, last, every):
    """Also where the loop ends in the iterations that are tried out before."""

    @synk.function(record=True)
    def halve(v):
        v *= 0.5

    @synk.sequence
    def body(n, v):
        advance(n)
        halve(v)
        synk.all_reduce(v, "max")
        return total(v)

    size = world.world_size
    limit = size * 0.5**last
    for _ in range(2):
        v = synk.variable(np.ones(1))
        count, found = run(body, [v], lambda r: r <= limit, times=6, every=every)
        assert count == expected_count(
            0.5 ** np.arange(1, 7), lambda r: r <= 0.5**last, 6, every or 1
        )
        assert v.get_value() == 0.5**count
        assert np.atleast_1d(found)[-1] == size * 0.5**count


TOLERANCE = 0.5


def test_an_inner_sequence_that_ends_by_itself(world):
    """A global that its condition reads is one that the body reads."""
    global TOLERANCE

    @synk.sequence
    def halvings(k, v):
        advance(k)
        scale(v, 0.5)
        return total(v)

    @synk.sequence
    def body(n, k, v, tol):
        advance(n)
        scale(v, 100.0)
        halvings(k, v, times=50, until=lambda r: (r < tol) | (r < TOLERANCE))
        return total(v)

    def loop(value, tol, limit):
        inner = 0
        for outer in range(1, 10):
            value *= 100.0
            for _ in range(50):
                value, inner = 0.5 * value, inner + 1
                if value < tol or value < TOLERANCE:
                    break
            if value < limit:
                break
        return outer, inner, value

    for tol in (1.0, 0.75, 1.0):
        for TOLERANCE in (0.5, 8.0):
            for limit in (0.6, 0.5, 0.0):
                k, v, size = counter(), synk.variable(np.ones(1)), world.world_size
                count, found = run(body, [k, v, tol * size], lambda r: r < limit * size, times=9)
                # the condition compares sums, of which those by a power of two are exact
                outer, inner, value = loop(size * 1.0, tol * size, limit * size)
                assert (count, int(k.get_value()[0]), found) == (outer, inner, value)
    TOLERANCE = 0.5


@pytest.mark.parametrize("until", [None, lambda r: r < 0])
def test_results_of_an_inner_sequence_without_iterations(world, until):
    """Its memory would have those of the iteration before."""

    @synk.sequence
    def halvings(v):
        scale(v, 0.5)
        return total(v)

    @synk.sequence
    def passed(v, n):
        return halvings(v, times=n, until=until)

    @synk.sequence
    def computed(v, n):
        return halvings(v, times=n - synk.STEP, until=until)

    v = synk.variable(np.ones(1))
    for body in (passed, computed):
        match = r"until\.py:\d+: times of halvings must .* at least 1, .* is 0 .* np.maximum"
        with pytest.raises(synk.ArgumentError, match=match):
            body(v, 0, times=2)
    assert passed(v, 1) == 0.5 * world.world_size
    match = r"until\.py:\d+: times= of halvings must be at least 1, and is 0: .* np.maximum\(n, 1\)"
    with pytest.raises(synk.RankError, match=match):
        computed(v, 2, times=3)
    v.set_value(np.ones(1))
    assert computed(v, 2, times=2) == 0.125 * world.world_size


def test_progress(world, capfd):
    args = [tables(world, np.arange(2000.0)[None].repeat(world.world_size, 0))]
    limit = 1500 * world.world_size
    count, found = run(plain, args, lambda r: r >= limit, times=2000, progress=True)
    assert (count, found) == (1501, limit)
    count, found = run(plain, args, lambda r: r >= limit, times=2000, every=4, progress=True)
    assert (count, len(found)) == (1504, 376)
    assert "1501" in capfd.readouterr().err


# ---- what a condition reads from outside

LIMIT = 3.0


def test_a_tolerance_that_changes(world):
    """From call to call, without another recording."""
    global LIMIT
    values = np.arange(20.0, 0.0, -1)
    args = [tables(world, values[None].repeat(world.world_size, 0) / world.world_size)]
    limit, before, n = 3.0, plain._traced, counter()

    def by_closure(r):
        return r < limit

    def by_global(r):
        return r < LIMIT

    def by_default(r, most=3.0):
        return r < most

    def by_keyword(r, *, most=3.0):
        return r < most

    for limit in (3.5, 15.5, -1.0, 0.5 + 1e-12, 7.0):
        LIMIT, by_default.__defaults__, by_keyword.__kwdefaults__ = limit, (limit,), {"most": limit}
        for holds in (by_closure, by_global, by_default, by_keyword):
            n.set_value(np.zeros(1, np.int64))
            plain(n, *args, times=20, until=holds)
            assert n.get_value() == expected_count(values, lambda r: r < limit, 20)
    assert plain._traced == before + 4
    limit = LIMIT = 5  # an int is another kind
    for holds in (by_closure, by_global):
        assert run(plain, args, holds, times=20)[0] == 17
    assert plain._traced == before + 6
    limit = np.float64(9.0)
    assert run(plain, args, by_closure, times=20)[0] == 13
    assert plain._traced == before + 7


def test_a_function_that_changes(world):
    """What is found again is not the recording with another function of NumPy, or none."""
    values = np.array([100.0, 50.0, 20.0, 10.0, 4.0, 2.0])
    args = [tables(world, values[None].repeat(world.world_size, 0) / world.world_size)]

    def of(function):
        return lambda r: function(r) < 3.0

    for function in (np.sqrt, np.log, abs, np.abs, lambda r: r - 50, np.sqrt):
        count, _ = run(plain, args, of(function), times=6)
        assert count == expected_count(values, of(function), 6)


def test_one_condition_after_another(world):
    values = np.arange(20.0, 0.0, -1)
    args = [tables(world, values[None].repeat(world.world_size, 0) / world.world_size)]
    conditions = {
        "small": lambda r: r < 5,
        "even": lambda r: r % 2 == 0,
        "script": lambda r: bool(r < 5),
        "none": None,
    }
    rng = random.Random(0)
    for _ in range(12):
        name, every = rng.choice([*conditions]), rng.choice([None, 1, 3])
        holds = conditions[name]
        count, found = run(plain, args, holds, times=20, every=every)
        wanted = 20
        if holds is not None:
            wanted = expected_count(values, holds, 20, every or 1)
        assert count == wanted
        assert_array_equal(
            found, values[count - 1] if every is None else values[every - 1 : count : every]
        )


def test_the_step_of_an_outer_body(world):
    """A name of the step could mean that of either loop."""

    @synk.sequence
    def halvings(v):
        scale(v, 0.5)
        return total(v)

    @synk.sequence
    def outer(v):
        k = synk.STEP
        halvings(v, times=9, until=lambda r: r < 1 / (1 + k))
        return total(v)

    @synk.sequence
    def other(v):
        k = synk.STEP + 0
        halvings(v, times=99, until=lambda r: r < 1 / (1 + k))
        return total(v)

    v = synk.variable(np.full(1, 64.0))
    with pytest.raises(synk.ArgumentError, match=r"k is synk.STEP; .* k = synk.STEP \+ 0"):
        outer(v, times=4)
    size, want, now = world.world_size, [], 64.0
    for step in range(4):
        now *= 0.5
        while size * now >= 1 / (1 + step):
            now *= 0.5
        want.append(size * now)
    assert_array_equal(other(v, times=4, every=1), want)
