"""Numbers that sequences carry from iteration to iteration: those of a loop in Python over
single calls.
"""

import random

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from synknumba._rank import sequence_lowering, sequence_routine

# to make a round end at each kept result
pytestmark = pytest.mark.filterwarnings("ignore:.*until= does not look at the results")


@synk.parallel(grid=1, block=1)
@cuda.jit
def store(log, at, value):
    log[at] = value


@synk.parallel(grid=1, block=32)
@cuda.jit
def add(x, y, factor):
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        x[i] += factor * y[i]


@synk.parallel(grid=1, block=1, outputs={"d": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def dot(a, b, d):
    for i in range(a.shape[0]):
        d[0] += a[i] * b[i]


@synk.parallel(grid=1, block=1, outputs={"t": synk.output("max", shape=(), dtype="float32")})
@cuda.jit
def single(a, t):
    t[0] = a[0]


@synk.function(outputs=None)
def dtype_of(number):
    return str(np.asarray(number).dtype)


@synk.sequence
def fibonacci(log, a, b):
    store(log, synk.STEP, a)
    synk.carry(a, b)
    synk.carry(b, a + b)
    store(log, synk.STEP + 40, b)  # still the old one


def test_several_are_replaced_at_once(world):
    log, before = synk.variable(np.zeros(80, int)), fibonacci._traced
    told = [0, 1]
    for _ in range(40):
        told.append(told[-1] + told[-2])
    for times in (40, 3):
        fibonacci(log, 0, 1, times=times)  # begins anew
        for rank in range(world.world_size):
            assert_array_equal(log.get_value(rank)[:times], told[:times])
            assert_array_equal(log.get_value(rank)[40 : 40 + times], told[1 : times + 1])
    assert fibonacci._traced == before + 1
    with pytest.raises(
        synk.RankError, match=r"test_carried_numbers\.py:\d+: a number that "
    ) as caught:
        fibonacci(synk.variable(np.zeros(300, int)), 0, 1, times=200)
    assert (
        "a number that the sequence computes for the next iteration does not fit in 64 bits"
        in str(caught.value)
    )
    assert "in iteration 91 of 200 of fibonacci" in str(caught.value)


def conjugate(x, r, p, old):
    alpha = old / dot(p, p)
    add(x, p, alpha)
    add(r, p, -0.5 * alpha)
    new = dot(r, r)
    add(p, r, new / old)
    return new


@pytest.mark.parametrize(
    "options",
    [{"every": 1}, {"every": 3}, {"every": 2, "until": lambda _: False}],
    ids=["1", "3", "until"],
)
def test_results_of_the_iteration_before(world, options):
    @synk.sequence
    def iterate(x, r, p, old):
        new = conjugate(x, r, p, old)
        synk.carry(old, new)
        return new, first(x)

    starts = [np.random.default_rng(k).random(9) for k in range(3)]
    mine, theirs = ([synk.variable(one) for one in starts] for _ in range(2))
    start = dot(theirs[1], theirs[1])
    found, _ = iterate(*mine, start, times=7, **options)
    told, old = [], start
    for _ in range(7):
        old = conjugate(*theirs, old)
        told.append(old)
    every = options["every"]
    assert_array_equal(found, told[every - 1 :: every])
    for a, b in zip(mine, theirs, strict=True):
        assert_array_equal(a.get_value(world.world_size - 1), b.get_value(world.world_size - 1))


@synk.function(outputs=None)
def first(x):
    return x[0]


def test_swapped_variables(world):
    @synk.sequence
    def body(u, v, n):
        add(u, v, n)
        synk.carry(n, 0.5 * n + synk.STEP)
        synk.swap(u, v)
        return dot(u, u)

    u, v = (synk.variable(np.array([float(k)])) for k in (1, 2))
    found = body(u, v, 1.0, times=5, every=1)
    a, b, n, told = 1.0, 2.0, 1.0, []
    for step in range(5):
        a, b, n = b, a + n * b, 0.5 * n + step
        told.append(world.world_size * a * a)
    assert_allclose(found, told, rtol=1e-15)
    assert (u.get_value(), v.get_value()) == (a, b)


def test_kinds_of_numbers(world):
    v, log = synk.variable(np.full(1, 0.1)), synk.variable(np.zeros((4, 3)))

    @synk.parallel(grid=1, block=1)
    @cuda.jit
    def note(log, at, narrow, n, x):
        log[at, 0], log[at, 1], log[at, 2] = narrow, n, x

    @synk.sequence
    def kinds(v, log, narrow, n, x):
        note(log, synk.STEP, narrow, n, x)
        synk.carry(narrow, single(v))
        synk.carry(n, np.maximum(n // 2, 3))
        synk.carry(x, n)  # a float from an int
        return dtype_of(narrow), dtype_of(n), dtype_of(x)

    kinds(v, log, np.float32(7.0), 17, 0.25, times=4)
    tenth = float(np.float32(0.1))
    for rank in range(world.world_size):
        assert_array_equal(
            log.get_value(rank), [[7, 17, 0.25], [tenth, 8, 17], [tenth, 4, 8], [tenth, 3, 4]]
        )
    for row in dtype_of(np.float32(1.0)), kinds(v, log, np.float32(7.0), 17, 0.25, times=3)[0]:
        assert row == ["float32"] * world.world_size


@synk.function(outputs=None)
def note(log, at, x):
    log[at] = x
    return x


@synk.function
def note_silently(log, at, x):
    log[at] = x


@synk.sequence
def add_steps(log, at, x):
    add_at(log, at, x + synk.STEP)


@synk.parallel(grid=1, block=1)
@cuda.jit
def add_at(log, at, x):
    log[at] += x


def loop(result, log, k, x, y, times, every, limit):
    """What `body_of(result)` gives, in Python: the log, and the kept results."""
    kept = []
    for step in range(times):
        log[step % 4] = x
        log[4] += sum(y + i for i in range(k % 3 + 1))
        log[5 + step % 2] = k
        if (step + 1) % every == 0:
            kept.append({"kernel": log[4], "function": x, "both": (log[4], x)}[result])
            if len(kept) > limit:
                break
        k, x, y = (3 * k + 1) % 7 + step % 2, y - 0.5 * x, 0.25 * log[4] + k
    return log, kept


def body_of(result):
    def body(log, k, x, y):
        told = None
        if result == "kernel":
            store(log, synk.STEP % 4, x)
        else:
            told = note(log, synk.STEP % 4, x)
        add_steps(log, 4, y, times=k % 3 + 1)
        (note_silently if result == "both" else store)(log, 5 + synk.STEP % 2, k)
        high = fifth(log)
        synk.carry(k, (3 * k + 1) % 7 + synk.STEP % 2)
        synk.carry(x, y - 0.5 * x)
        synk.carry(y, 0.25 * high + k)
        return {"kernel": high, "function": told, "both": (high, told)}[result]

    return synk.sequence(body)


@synk.parallel(grid=1, block=1, outputs={"high": synk.output("max", shape=(), dtype="float64")})
@cuda.jit
def fifth(log, high):
    high[0] = log[4]


@pytest.mark.parametrize("result", ["kernel", "function", "both"])
def test_equal_calls_of_several_rounds(world, result):
    """Each call begins with its arguments, and each round of it with the numbers of the round
    before.
    """
    rng, body, log = random.Random(result), body_of(result), synk.variable(np.zeros(7))
    kinds = [
        (1, 0.5, 2.0, 8, 3, 99),
        (2, 0.5, 2.0, 8, 3, 99),
        (1, 0.5, 2.0, 8, 2, 1),
        (4, 1.25, 0.5, 5, 1, 99),
    ]
    for call in range(40):
        if call % 4 == 0 or rng.random() < 0.3:  # else the same call again
            *start, times, every, limit = rng.choice(kinds)
        log.set_value(np.zeros(7))
        expected, kept = loop(result, np.zeros(7), *start, times, every, limit)
        if limit < 99 or rng.random() < 0.4:
            seen = []
            found = body(
                log,
                *start,
                times=times,
                every=every,
                until=lambda r, n=limit, s=seen: s.append(r) or len(s) > n,
            )
        elif rng.random() < 0.3:
            found = body.submit(log, *start, times=times, every=every).result()
        else:
            found = body(log, *start, times=times, every=every)
        for rank in range(world.world_size):
            assert_array_equal(log.get_value(rank), expected)
        results = found if result == "both" else (found,)
        for one, told in zip(
            results, zip(*kept, strict=True) if result == "both" else (kept,), strict=True
        ):
            assert_array_equal(
                one, np.array(told) if one.ndim == 1 else np.transpose([told] * world.world_size)
            )


def test_python_and_tables_give_the_same(monkeypatch):
    @synk.sequence
    def body(log, v, x, k):
        store(log, synk.STEP, x)
        store(log, 20 + synk.STEP, k)
        synk.carry(x, np.exp(-x) * dot(v, v) / 3 + k)
        synk.carry(k, 1 - k**2)
        return dot(v, v)

    found = []
    for uses in (True, False):
        if not uses:
            monkeypatch.setattr(sequence_routine, "runs_natively", lambda device: False)
        with synk.fork(2, device="cpu"):
            log, v = synk.variable(np.zeros(40)), synk.variable(np.array([0.1, 0.7]))
            body(log, v, 0.3, 2, times=4)
            body(log, v, 0.7, 2, times=5, until=lambda _: False)
            found.append(log.get_value(1))
    assert_array_equal(*found)
    assert len(set(found[0])) > 8


def test_nothing_is_left_to_python(monkeypatch):
    def refused(*_):
        raise AssertionError("a row of Python")

    monkeypatch.setattr(sequence_lowering.Lowering, "_in_python", refused)
    with synk.fork(2, device="cpu"):
        log = synk.variable(np.zeros(80, int))
        fibonacci(log, 0, 1, times=9)
        assert log.get_value(1)[8] == 21


def test_what_is_refused(world):
    v = synk.variable(np.ones(3))
    assert synk.sequence(lambda v, n: synk.carry(n, 2)).plan(v, 1).parts == ()

    here = r"test_carried_numbers\.py:\d+: .*"
    for body, match, args in (
        (
            lambda v, n: synk.carry(n, dot(v, v)),
            here + "n of <lambda> is an int, .* d of dot, a float; pass a float",
            (3,),
        ),
        (
            lambda v, n: synk.carry(n, single(v)),
            here + "n of <lambda> is float64, .*, float32; pass a number of the",
            (3.0,),
        ),
        (
            lambda v, n: (synk.carry(n, 1), synk.carry(n, 2)),
            here + "has its next value already; carry it once",
            (3,),
        ),
        (
            lambda v, n: synk.carry(2 * n, n),
            here + "carry takes a number that is passed to .*computed from n of",
            (3,),
        ),
        (
            lambda v, n: synk.carry(dot(v, v), n),
            here + "carry takes a number that is passed to .*got output d of dot",
            (3,),
        ),
        (
            lambda v, n: synk.carry(synk.STEP, n),
            here + "carry takes a number that is passed to .*got synk.STEP",
            (3,),
        ),
        (
            lambda v, n: synk.carry(n, 2),
            here + "carry takes a number that is passed to .*got 3",
            (synk.static(3),),
        ),
        (
            lambda v, n: synk.carry(v, n + 1),
            here + "carry takes a number that is passed to .*got <Variable",
            (3,),
        ),
        (lambda v, n: synk.carry(n, first(v)), here + "the result of first is not known", (3,)),
        (
            lambda v, n: synk.carry(n, v),
            here + "carry takes a number as the next value; got a Variable",
            (3,),
        ),
        (
            lambda v, n: synk.carry(n, True),
            here + "carry takes a number as the next value; got a bool",
            (3,),
        ),
    ):
        with pytest.raises(synk.ArgumentError, match=match):
            synk.sequence(body)(v, *args)
    with pytest.raises(
        synk.ArgumentError, match="use it inside a function decorated with @synk.sequence"
    ):
        synk.carry(1, 2)
    assert dot(v, v) == 3.0 * world.world_size


@pytest.mark.parametrize("every", [None, 1, 3])
def test_numbers_that_a_body_returns(world, every):
    """Carried, computed, passed, the step: with their kinds, and until= looks at them."""

    @synk.sequence
    def body(v, a, x, s):
        d = dot(v, v)
        synk.carry(a, 2 * a)
        return {"a": a, "rest": (d / 4 + x, synk.STEP, [s])}

    v, size = synk.variable(np.ones(3)), world.world_size
    for until, count in ((None, 6), (lambda found: found["a"] > 6, 3)):
        found = body(v, 3, 0.5, np.float32(0.1), times=6, every=every, until=until)
        kept = np.arange(count)[(every or 1) - 1 :: every or 1]
        if every is None:
            kept = kept[-1]
        quarter, single = np.full_like(kept, 1.0, float), np.full_like(kept, 0.1, np.float32)
        wanted = [3 * 2**kept, quarter * (3 * size / 4 + 0.5), kept, single]
        values = [found["a"], *found["rest"][:2], *found["rest"][2]]
        for value, expected in zip(values, wanted, strict=True):
            assert value.dtype == expected.dtype
            assert_array_equal(value, expected)
