"""Sequences: the ranks repeat calls by themselves, with the bits of single calls."""

import math
import random

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from synknumba._rank.function_routine import FunctionRoutine
from synknumba._sequence import plan
from synknumba._sequence.plan import SequencePlan
from tests.conformance.conftest import REPLAYED, ROWS
from tests.conformance.kernels import dot
from tests.quick import whole

# to make a round end at each kept result
pytestmark = pytest.mark.filterwarnings("ignore:.*until= does not look at the results")


@synk.parallel(grid=2, block=32)
@cuda.jit
def mix(a, b, k):
    for i in range(cuda.grid(1), a.shape[0], cuda.gridsize(1)):
        a[i] = 0.5 * a[i] + 0.25 * b[i] + 1e-3 * k


@synk.parallel(grid=1, block=32, outputs={"t": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def total(a, t):
    if cuda.grid(1) == 0:
        for i in range(a.shape[0]):
            t[0] += a[i]


@synk.parallel(grid=1, block=32)
@cuda.jit
def scale(a, by):
    for i in range(cuda.grid(1), a.shape[0], cuda.gridsize(1)):
        a[i] *= by


@synk.function(outputs=None)
def first(a):
    return a[0]


@synk.function
def dawdle(seed, rank):
    import time

    time.sleep(2e-4 * ((seed * 7 + rank * 3) % 5))


@synk.parallel(grid=1, block=32, outputs={"r": synk.output("sum", shape=(4,), dtype="float64")})
@cuda.jit
def quarters(a, r):
    if cuda.grid(1) == 0:
        for i in range(a.shape[0]):
            r[i % 4] += a[i]


@synk.parallel(grid=1, block=32, broadcast=("r",))
@cuda.jit
def damp(a, r):
    for i in range(cuda.grid(1), a.shape[0], cuda.gridsize(1)):
        a[i] = 0.5 * a[i] + 1e-2 * r[i % 4]


@synk.sequence
def apart(a, b, step):
    mix(a, b, step + synk.STEP)
    dawdle(step + synk.STEP, synk.RANK)


@synk.sequence
def nested(a, b, step):
    apart(a, b, step, times=2)
    mix(b, a, step)


@synk.sequence
def together(a, b, step):
    mix(a, b, step + synk.STEP)
    synk.all_reduce(a, "mean")


OPS = {
    "mix": mix,
    "apart": lambda a, b, step: apart(a, b, step, times=3),
    "nested": lambda a, b, step: nested(a, b, step, times=2),
    "together": lambda a, b, step: together(a, b, step, times=2),
    "array": lambda a, b, step: damp(a, quarters(b)),
    "total": lambda a, b, step: total(a),
    "reduce": lambda a, b, step: (synk.all_reduce(a, "mean"), None)[1],
    "broadcast": lambda a, b, step: (synk.broadcast(a), None)[1],
    "first": lambda a, b, step: first(b),
    "scale": lambda a, b, step: scale(a, total(b) / (1.0 + abs(total(b)))),
    "dawdle": lambda a, b, step: dawdle(step, synk.RANK),
}


@pytest.mark.parametrize("seed", [0, 1, *whole(*range(2, 12))])
def test_the_bits_of_single_calls(world, seed):
    rng = random.Random(seed)
    ops = [rng.choice([*OPS]) for _ in range(rng.randint(2, 6))]
    pairs = [rng.sample(range(3), 2) for _ in ops]
    start = np.random.default_rng(seed).random((world.world_size, 3, rng.choice([5, 40])))

    def calls(variables, step):
        found = [
            OPS[op](variables[a], variables[b], step) for op, (a, b) in zip(ops, pairs, strict=True)
        ]
        return tuple(one for one in found if one is not None)

    @synk.sequence
    def body(variables):
        return calls(variables, synk.STEP)

    def fresh():
        made = [synk.variable(np.zeros(start.shape[2])) for _ in range(3)]
        for rank in range(world.world_size):
            synk.set_value(rank, made, list(start[rank]))
        return made

    mine, theirs, times, every = fresh(), fresh(), rng.randint(1, 9), rng.randint(1, 3)
    returns = {"total", "first"}.intersection(ops)
    found = body(mine, times=times, every=min(every, times) if returns else None) or ()
    told = [calls(theirs, step) for step in range(times)][
        min(every, times) - 1 :: min(every, times)
    ]
    for a, b in zip(mine, theirs, strict=True):
        for rank in range(world.world_size):
            assert_array_equal(a.get_value(rank), b.get_value(rank))
    assert len(found) == len(told[0])
    for index, one in enumerate(found):
        assert_array_equal(one, np.stack([np.asarray(entry[index]) for entry in told]))


@synk.sequence
def shrink(v, by):
    scale(v, by)
    return total(v)


def test_results_are_kept_every_so_often(world):
    v, size, before = synk.variable(np.full(3, 1024.0)), world.world_size, shrink._traced
    assert_array_equal(
        shrink(v, 0.5, times=7, every=2), 3 * size * 1024 * 0.5 ** np.array([2, 4, 6])
    )
    assert v.get_value()[0] == 1024 * 0.5**7
    assert shrink(v, 2.0) == 3 * size * 1024 * 0.5**6
    assert shrink(v, 2.0, times=3) == 3 * size * 1024 * 0.5**3
    assert shrink._traced == before + 1
    shrink(v, 2)
    assert shrink._traced == before + 2  # an int is another type
    assert shrink(v, 1.0, times=0, every=5).shape == (0,)


def test_until_is_judged_in_the_script(world):
    v, seen = synk.variable(np.full(3, 1024.0)), []

    def small(now):
        seen.append(now)
        return now < 100 * world.world_size

    wanted = 3 * world.world_size * 1024 * 0.5 ** np.arange(1, 6)
    assert shrink(v, 0.5, times=50, until=small) == wanted[-1]
    assert_array_equal(seen, wanted)
    assert v.get_value()[0] == 1024 * 0.5**5
    v.set_value(np.full(3, 1024.0))
    assert_array_equal(shrink(v, 0.5, times=50, every=1, until=small), wanted)
    assert len(shrink(v, 1.0, times=7, every=2, until=lambda now: False)) == 3

    def stop(now):
        raise KeyError(now)

    with pytest.raises(KeyError):
        shrink(v, 0.5, times=5, until=stop)
    assert v.get_value()[0] == 1024 * 0.5**6


def test_until_returns_the_last_results_of_python_functions(world):
    """Results whose shape changes from iteration to iteration: those of the last one need not be
    stacked.
    """

    @synk.function(outputs={"head": "gather", "size": "sum"}, rows=("u",))
    def grown(u, step):
        return {"head": np.arange(int(step) + 1), "size": len(u)}

    @synk.sequence
    def grow(u):
        return u, grown(u, synk.STEP)

    u = synk.variable(np.zeros(2))
    one, found = grow(u, times=9, until=lambda now: len(now[1]["head"]) >= 4 * world.world_size)
    assert one is u
    assert_array_equal(found["head"], np.tile(np.arange(4), world.world_size))
    assert found["size"] == 2 * world.world_size


@pytest.mark.parametrize("measure", [total, first], ids=["one round", "a round for each result"])
@pytest.mark.parametrize(
    "options", [{"every": 1}, {"every": 1, "until": lambda now: False}], ids="-".join
)
def test_what_is_returned_besides_results(world, measure, options):
    constant, v = np.ones(2), synk.variable(np.ones(3))

    @synk.sequence
    def body(v):
        scale(v, 2.0)
        return {
            "v": v,
            "results": [measure(v), total(v)],
            "others": (2, "text", constant),
            "none": None,
        }

    for call in (body, lambda *args, **kwargs: body.submit(*args, **kwargs).result())[
        : 1 if "until" in options else 2
    ]:
        v.set_value(np.ones(3))
        found = call(v, times=3, **options)
        assert found["v"] is v
        assert [one.shape for one in found["results"]] == [
            (3, world.world_size) if measure is first else (3,),
            (3,),
        ]
        assert_array_equal(found["results"][1], world.world_size * np.array([6.0, 12.0, 24.0]))
        assert found["others"][:2] == (2, "text")
        assert_array_equal(found["others"][2], constant)
        assert found["none"] is None


def test_until_makes_no_calls(world):
    v = synk.variable(np.full(3, 1024.0))
    for judge in (
        lambda now: total(v) < 1,
        lambda now: shrink(v, 1.0) < 1,
        lambda now: v.get_value()[0] < 1,
        lambda now: synk.all_reduce(v, "mean") is None,
        lambda now: total.submit(v) is None,
    ):
        with pytest.raises(
            synk.WorldError,
            match=r"until= of shrink is judged between .*cannot make calls.*return .*times=",
        ):
            shrink(v, 1.0, times=3, until=judge)
        assert total(v) == 3 * 1024 * world.world_size
    with pytest.raises(KeyError):
        shrink(v, 1.0, times=3, until=lambda now: {}[now])


def test_steps_and_inner_sequences(world):
    @synk.parallel(grid=1, block=1)
    @cuda.jit
    def note(log, at, value):
        log[at] = value

    @synk.sequence
    def inner(log, outer_step, n):
        note(log, outer_step * 3 + synk.STEP, 10 * outer_step + synk.STEP)

    @synk.sequence
    def outer(log, n):
        inner(log, synk.STEP, 0, times=n)
        note(log, 20 + synk.STEP, n - synk.STEP)

    log = synk.variable(np.full(40, -1))
    outer(log, 3, times=4)
    told = np.full(40, -1)
    for step in range(4):
        told[3 * step : 3 * step + 3] = 10 * step + np.arange(3)
        told[20 + step] = 3 - step
    for rank in range(world.world_size):
        assert_array_equal(log.get_value(rank), told)
    outer(log, 1)
    assert outer._traced == 1


@synk.function
def await_file(path, rank):
    """Waits on rank 0 for a file."""
    import time
    from pathlib import Path

    end = time.monotonic() + 30
    while rank == 0 and not Path(path).exists():
        assert time.monotonic() < end, f"nobody has made {path}"
        time.sleep(1e-3)


@synk.function
def make_file(path, rank):
    """Makes the file on the other ranks."""
    from pathlib import Path

    if rank != 0:
        Path(path).touch()


@pytest.mark.one_machine
def test_ranks_do_not_meet_around_an_inner_sequence_of_their_own(world, tmp_path):
    """Rank 0 stays in it until others are behind theirs."""

    @synk.sequence
    def inner(v, path, rank):
        await_file(path, rank)
        scale(v, 2.0)

    @synk.sequence
    def outer(v, path, rank):
        inner(v, path, rank, times=3)
        make_file(path, rank)
        synk.all_reduce(v, "sum")

    v, path = synk.variable(np.ones(3)), tmp_path / "done"
    if world.world_size == 1:
        path.touch()
    outer(v, str(path), synk.RANK)
    assert v.get_value().tolist() == [8.0 * world.world_size] * 3


def test_steps_count_on_over_rounds(world):
    @synk.function
    def add(v, step):
        v += step

    @synk.sequence
    def count(v):
        add(v, synk.STEP)
        return first(v)

    v = synk.variable(np.zeros(1))
    found = count(v, times=6, every=2)
    assert_array_equal(found, np.tile([[1.0], [6.0], [15.0]], world.world_size))


def test_numbers_stay_on_the_ranks(world):
    @synk.sequence
    def normalise(v):
        scale(v, 1 / total(v))
        return total(v)

    v = synk.variable(np.zeros(2))
    for rank in range(world.world_size):
        v.set_value([1.0 + rank, 2.0], rank=rank)
    whole_sum = sum(3.0 + rank for rank in range(world.world_size))
    assert_allclose(normalise(v), 1.0, rtol=1e-15)
    assert_allclose(v.get_value(), [1 / whole_sum, 2 / whole_sum], rtol=1e-15)
    assert_allclose(normalise(v, times=3), 1.0, rtol=1e-15)


def test_numbers_are_ieee_numbers_and_ints_of_any_length(world):
    @synk.sequence
    def divide(v, k):
        scale(v, (1 / k) ** 0.5)

    for k, told in ((0.0, np.inf), (0, np.inf), (-1.0, np.nan), (4.0, 0.5)):
        v = synk.variable(np.ones(2))
        divide(v, k)
        assert_array_equal(v.get_value(), told)

    @synk.sequence
    def cube(v, k):
        scale(v, k * k * k)

    with pytest.raises(
        synk.RankError,
        match=r"computes for scale\(.*\) does not fit in 64 bits: 2\d+; compute with floats",
    ):
        cube(v, 3 * 10**6 * 10**3)


@synk.function(outputs=None)
def told(number):
    return f"{type(number).__name__} {number}"


def test_powers_of_ints_are_those_of_python(world):
    @synk.sequence
    def power(n, k):
        return told(n**k)

    @synk.sequence
    def others(n, k):
        return (
            told(3**synk.STEP),
            told(1.0 * n**k),
            told(n**-1),
            told(n**k % 7),
            told(np.maximum(n, 2) ** k),
        )

    @synk.sequence
    def repeated(v, k):
        synk.sequence(lambda v: scale(v, 2.0))(v, times=2**k)

    for n, k in ((3, 39), (2, 5), (-2, 63), (2, 62), (0, 0), (-7, 3), (1, 10**15), (10, 18)):
        assert power(n, k) == [f"int {n**k}"] * world.world_size
    wanted = 3**38, 1.0 * 5**3, 5**-1, 5**3 % 7, 5**3
    assert [one[0] for one in others(5, 3, times=39)] == [
        f"{type(one).__name__} {one}" for one in wanted
    ]
    for n, k, says in (
        (2, 63, "does not fit in 64 bits: 9223372036854775808; compute with floats"),
        (2, 2000, "does not fit in 64 bits: an int of 2001 bits"),
        (2, 10**9, "is no finite int: inf; compute with floats"),
        (2, -3, r"has a negative exponent, and is no int: 0\.125; compute with floats"),
    ):
        with pytest.raises(
            synk.RankError,
            match=rf"test_sequences\.py:\d+: a number that the sequence computes for "
            rf"told\(.*{says}",
        ):
            power(n, k)
    v = synk.variable(np.ones(1))
    repeated(v, 3)
    assert v.get_value()[0] == 2.0**8
    with pytest.raises(
        synk.RankError, match=r"for times= of an inner sequence has a negative exponent"
    ):
        repeated(v, -1)


def test_floats_of_ints_beyond_their_range(world):
    @synk.sequence
    def body(v, n, k):
        scale(v, 1.0 * n**k)
        scale(v, np.sqrt(n**k) - 1.0 + (-n) ** k)

    v = synk.variable(np.ones(1))
    for k, expected in ((2, 9.0 * (3 - 1.0 + 9)), (3, 27.0 * (27**0.5 - 1.0 - 27)), (1001, np.nan)):
        v.set_value([1.0])
        body(v, 3, k)
        assert_array_equal(v.get_value(world.world_size - 1), expected)


def test_a_variable_may_be_passed_twice_where_it_is_only_read(world):
    @synk.sequence
    def body(v, w):
        scale(v, 1 / np.sqrt(dot(v, v)))
        mix(w, v, dot(w, w))
        return dot(v, v), dot(v, w)

    def single(v, w):
        scale(v, 1 / np.sqrt(dot(v, v)))
        mix(w, v, dot(w, w))
        return dot(v, v), dot(v, w)

    starts = [np.random.default_rng(k).random(7) for k in range(2)]
    mine, theirs = ([synk.variable(one) for one in starts] for _ in range(2))
    found = body(*mine, times=5, every=1)
    assert_array_equal(found, np.transpose([single(*theirs) for _ in range(5)]))
    assert_allclose(found[0], 1.0, rtol=1e-14)
    assert_array_equal(mine[1].get_value(), theirs[1].get_value())
    with pytest.raises(
        synk.ArgumentError,
        match=r"mix \(.*test_sequences\.py:\d+\) writes to a, and b is the same variable",
    ):
        synk.sequence(lambda v: mix(v, v, 1.0))(mine[0])


def test_functions_of_numbers(world):
    """The oracle is NumPy's arithmetic in the script, on the results of single calls."""

    def values(found, n, x, step):
        yield from (
            np.sqrt(n),
            np.exp(-0.1 * step),
            np.log(found),
            np.sin(x) * np.cos(x) + np.tanh(step),
            np.abs(-x),
        )
        yield from (
            np.maximum(found, 2 * n),
            np.minimum(n, step),
            np.maximum(x, 1) ** 2,
            np.arctan2(x, step),
            -np.negative(n),
        )
        yield np.hypot(np.log1p(found), np.log(step))  # of −inf at first
        yield np.power(np.sqrt(np.float64(3.0)), x)

    @synk.sequence
    def body(v, log, n, x):
        for place, value in enumerate(values(total(v), n, x, synk.STEP)):
            store(log, synk.STEP, place, value)
        scale(v, 1.5)

    v, theirs, log = (
        synk.variable(array) for array in (np.full(3, 0.3), np.full(3, 0.3), np.zeros((4, 13)))
    )
    for n, x in ((2, 0.7), (3, -1.25)):
        body(v, log, n, x, times=4)
        for step in range(4):
            with np.errstate(all="ignore"):
                told = [float(one) for one in values(total(theirs), n, x, step)]
            scale(theirs, 1.5)
            for rank in range(world.world_size):
                assert_array_equal(log.get_value(rank)[step], [*told, 0.0])
    assert body._traced == 1
    for wrong, match in (
        (
            lambda v, n: scale(v, np.sqrt(highest(v) + np.int64(0)) + np.exp(single_total(v))),
            "compute this in float32",
        ),
        (
            lambda v, n: scale(v, np.maximum(n, np.ones(3))),
            "computes with ints and floats; got an ndarray",
        ),
        (lambda v, n: scale(v, np.maximum(True, n)), "computes with ints and floats; got a bool"),
        (lambda v, n: scale(v, np.maximum.reduce(n)), "is not known while"),
        (lambda v, n: scale(v, np.isnan(n)), "is not known while"),
        (lambda v, n: scale(v, np.sqrt(n, out=np.ones(1))), "is not known while"),
        (lambda v, n: scale(v, math.sqrt(n)), r"np\.sqrt\(n\) in place of math\.sqrt\(n\)"),
        (lambda v, n: scale(v, max(n, 2)), r"np\.maximum\(a, b\) in place of max\(a, b\)"),
        (lambda v, n: scale(v, float(n)), "is not known while"),
    ):
        with pytest.raises(synk.ArgumentError, match=rf"test_sequences\.py:\d+: .*{match}"):
            synk.sequence(wrong)(v, 3)


@synk.parallel(grid=1, block=1)
@cuda.jit
def store(log, line, at, value):
    log[line, at] = value


def test_data_and_arrays(world):
    @synk.parallel(
        inout=("x",), broadcast=("w",), outputs={"s": synk.output("sum", shape=(), dtype="float64")}
    )
    @cuda.jit
    def step(x, w, by, s):
        i = cuda.grid(1)
        if i < x.shape[0]:
            x[i] += by * (w[0] + w[2])
            cuda.atomic.add(s, 0, x[i])

    @synk.parallel(
        broadcast=("x",),
        outputs={"y": synk.output("max", shape=(), dtype="float64")},
        grid=1,
        block=1,
    )
    @cuda.jit
    def largest(x, y):
        for i in range(x.shape[0]):
            y[0] = max(y[0], x[i])

    @synk.parallel(outputs={"y": synk.output("mean", shape=(), dtype="float64")}, grid=1, block=1)
    @cuda.jit
    def middle(x, y):
        for i in range(x.shape[0]):
            y[0] += x[i] / x.shape[0]

    @synk.sequence
    def both(x, w, by):
        added = step(x, w, by)
        return {"sum": added, "max": largest(x), "mean": middle(x)}

    rows, w = np.arange(10.0), np.array([1.0, 2.0, 3.0])
    told, sums, tops = rows.copy(), [], []
    for _ in range(5):
        told += 0.5 * (w[0] + w[2])
        sums.append(told.sum())
        tops.append(told.max())
    data = synk.data(rows)
    found = both(data, w, 0.5, times=5, every=1)
    assert_allclose(found["sum"], sums, rtol=1e-15)
    assert_array_equal(found["max"], tops)
    assert_allclose(found["mean"], np.array(sums) / 10, rtol=1e-15)
    assert_array_equal(data, told)
    array = rows.copy()
    both(array, w, 0.5, times=5)
    assert_array_equal(array, told)
    assert_array_equal(w, [1.0, 2.0, 3.0])
    assert both._traced == 2
    both(array, w, 0.5)
    assert both._traced == 2


def test_a_name_of_its_own(world):
    @synk.sequence(name="relax")
    def body(v):
        synk.all_reduce(v, "sum")

    assert body.name == "relax"
    with pytest.raises(synk.ArgumentError, match=r"^relax"):
        body(synk.variable(np.zeros(3)), times=-1)


def exchange_memory(a, b):
    synk.swap(a, b)


@pytest.mark.parametrize("until", [None, lambda results: False])
def test_swapped_variables(world, until):
    @synk.parallel(grid=1, block=1)
    @cuda.jit
    def double(source, target):
        target[0] = 2 * source[0] + 1

    @synk.sequence
    def step(u, v):
        double(u, v)
        synk.swap(u, v)
        return total(u), first(v)

    @synk.sequence
    def around(a, b, c):
        double(a, b)
        synk.swap(a, b)
        synk.swap(b, c)
        return first(a)

    u, v, a, b, c = (synk.variable(np.array([float(k)])) for k in range(5))
    size = world.world_size
    for start, times in ((0, 5), (31, 4), (511, 1), (1023, 3), (8191, 1)):
        now = [(start + 1) * 2**k - 1 for k in range(times + 1)]
        assert u.get_value() == start
        sums, lasts = step(u, v, times=times, every=1, until=until)
        assert_array_equal(sums, size * np.array(now[1:], float))
        assert_array_equal(
            lasts, np.tile(np.array(now[:-1], float)[:, None, None], (1, size, 1))[..., 0]
        )
        assert u.get_value() == now[-1]
        assert v.get_value() == now[-2]
    assert step._traced == 2  # once for each arrangement

    values = [2.0, 3.0, 4.0]
    for _ in range(7):
        values[1] = 2 * values[0] + 1
        values = [values[1], values[2], values[0]]
    around(a, b, c, times=7)
    assert [one.get_value()[0] for one in (a, b, c)] == values
    synk.swap(a, c)
    assert [one.get_value()[0] for one in (c, b, a)] == values
    with pytest.raises(synk.DataError, match="dtype"):
        synk.swap(a, synk.variable(np.array([1])))
    with pytest.raises(
        synk.DataError,
        match=r"the variable is float64 \(1,\) and the variable is float64 \(2,\); swapped",
    ):
        synk.swap(a, synk.variable(np.zeros(2)))
    with pytest.raises(synk.DataError, match=r"float64 \(1,\) and the variable is int64 \(3,\)"):
        synk.sequence(exchange_memory)(a, synk.variable(np.zeros(3, int)))
    with pytest.raises(synk.ArgumentError, match="twice"):
        synk.swap(a, a)


def test_rows_by_the_step(world):
    @synk.parallel(outputs={"s": synk.output("sum", shape=(), dtype="float64")})
    @cuda.jit
    def add(x, s):
        i = cuda.grid(1)
        if i < x.shape[0]:
            cuda.atomic.add(s, 0, x[i])

    @synk.function(outputs="gather")
    def same(x):
        return x + 0.0

    @synk.sequence
    def epoch(x, order):
        return add(x, batch=order[synk.STEP]), same(x, batch=order[2 * synk.STEP + 1])

    rng = np.random.default_rng(0)
    x, order = synk.data(rng.random(50)), synk.data(rng.integers(0, 50, (11, 7)))
    for _ in range(2):
        sums, rows = epoch(x, order, times=5, every=1)
        assert_allclose(sums, x.data[order.data[:5]].sum(axis=1), rtol=1e-14)
        assert_array_equal(rows, x.data[order.data[1:11:2]])
        order[:] = rng.integers(0, 50, (11, 7))
    assert epoch._traced == 1
    with pytest.raises(
        synk.BatchError, match=r"order, batch= of add, .* has 11 lines for times=12; pass times=11"
    ):
        epoch(x, order, times=12)
    with pytest.raises(synk.RankError, match="takes line 11 of row numbers that have 11 lines"):
        epoch(x, order, times=6)  # of the second call
    order[3, 2] = 50
    with pytest.raises(
        synk.BatchError, match=r"order, .* of add, has row 50 in line 3, but its rows are 0 to 49$"
    ):
        epoch(x, order, times=3)  # also of lines behind the last one
    order[3, 2] = -1
    with pytest.raises(synk.BatchError, match=r"has row -1 in line 3.* write order % 50"):
        epoch(x, order, times=5)
    with pytest.raises(synk.ArgumentError, match=r"order must be 2-D and int64.*np\.int64\)"):
        epoch(x, synk.data(np.arange(6.0)))

    lines = np.zeros((3, 2), int)
    with pytest.raises(
        synk.ArgumentError,
        match=r"place of table\[synk.STEP\] pass table.* For batch=rows\[synk.STEP\], rows must be",
    ):
        synk.sequence(lambda x: same(x, batch=lines[synk.STEP]))(x)

    @synk.sequence
    def given(x):
        return add(x, order[synk.STEP])

    with pytest.raises(synk.ArgumentError, match="the value of a line of order .* pass order"):
        given(x)


def test_rows_that_are_written_are_listed_once_in_a_line(world):
    @synk.function(inout=("x",), outputs="sum")
    def add(x, y):
        x += y
        return float(x.sum())

    @synk.function(inout=("o",))
    def spoil(o, by):
        o += by

    @synk.sequence
    def steps(x, y, order):
        return add(x, y, batch=order[synk.STEP])

    @synk.sequence
    def halves(x, y, order):
        return add(x, y, batch=order[2 * synk.STEP])

    @synk.sequence
    def spoiled(order, by):
        spoil(order, by)

    @synk.sequence
    def mapped(x, y, order):
        add(x, y, batch=order[synk.STEP])
        succeeding(order, out=order)

    succeeding, rng = synk.vectorize(lambda o: o + 1), np.random.default_rng(0)
    lines = np.stack([rng.permutation(150)[:70] for _ in range(9)])
    x, y, order = synk.data(np.zeros(150)), synk.data(np.arange(150.0)), synk.data(lines)
    steps(x, y, order, times=9)
    assert_array_equal(x, np.arange(150) * np.bincount(lines.ravel(), minlength=150))
    halves(x, y, order, times=5)
    for line in (0, 2, 8):
        order[:] = lines
        order[line, 69] = order[line, 3]
        for body, times in (steps, 9), (halves, 5):
            with pytest.raises(
                synk.BatchError,
                match=f"order, batch= of add, lists row {lines[line, 3]} twice in line {line}, "
                "and x is in inout=.*once",
            ):
                body(x, y, order, times=times)
    steps(x, y, order, times=8)  # as far as line 7
    for spoil_all in spoil, spoiled:  # behind the sequence that has tested the table
        order[:] = lines
        spoil_all(order, 1000)
        for _ in range(2):
            with pytest.raises(synk.BatchError, match=f"has row {lines[0, 0] + 1000} in line 0"):
                steps(x, y, order, times=9)
    order[:] = lines
    with pytest.raises(synk.ArgumentError, match=r"o of <lambda> .* writes to order, by which"):
        mapped(x, y, order)
    order.freeze()
    assert steps(x, y, order) == np.asarray(x)[lines[0]].sum()


def test_results_of_all_kinds(world):
    @synk.parallel(
        outputs={
            "double": synk.output("gather", shape=(), dtype="float64"),
            "each": synk.output(None, shape=(), dtype="int64"),
            "big": synk.output("sum", shape=(20_000,), dtype="float64"),
            "top": synk.output("argmax", shape=(), dtype="float64"),
        }
    )
    @cuda.jit
    def kinds(x, k, double, each, big, top):
        i = cuda.grid(1)
        if i < x.shape[0]:
            double[i] = 2 * x[i] + k
            top[i] = x[i]
            cuda.atomic.add(big, i, x[i] + k)
            cuda.atomic.add(each, 0, 1)

    @synk.function(outputs={"mean": "mean", "rows": "gather"})
    def array_function(x, k):
        return {"mean": x.mean() + k, "rows": x[:1] + k}

    @synk.sequence
    def body(x):
        return kinds(x, synk.STEP), array_function(x, synk.STEP)

    x = np.arange(12.0)
    kernel, function = body(x, times=5, every=2)
    told = [(kinds(x, step), array_function(x, step)) for step in (1, 3)]
    for name in ("double", "each", "big"):
        assert_array_equal(
            getattr(kernel, name), np.stack([np.stack(getattr(one[0], name)) for one in told])
        )
    assert_array_equal(kernel.top.row, [11, 11])
    assert_array_equal(function["mean"], [one[1]["mean"] for one in told])
    assert_array_equal(function["rows"], np.stack([one[1]["rows"] for one in told]))
    last = body(x)
    assert_array_equal(last[0].double, 2 * x)
    assert last[0].top.row == 11
    assert body._traced == 1


@synk.function
def add_to(v, at, number):
    v[at] += number


@synk.function(outputs="sum")
def filled(v, at):
    return v[at : at + 1].repeat(at)  # as NumPy's and CuPy's arrays can


def test_bodies_of_many_calls(world):
    """Functions that return nothing leave room for the results of others, and of kernels."""

    @synk.sequence
    def body(v, n, count):
        for at in range(count):
            add_to(v, at, n + at)
        found = [filled(v, at) for at in range(0, 440, 10)]
        return found, dot(v, v)

    v = synk.variable(np.zeros(450))
    found, square = body(v, 1, synk.static(450), times=2)
    expected = 2.0 * np.arange(1, 451)
    assert_array_equal(v.get_value(world.world_size - 1), expected)
    for at, one in zip(range(0, 440, 10), found, strict=True):
        assert_array_equal(one, np.full(at, world.world_size * expected[at]))
    assert square == world.world_size * (expected @ expected)


@pytest.mark.whole
def test_a_body_of_too_many_calls(world):
    v = synk.variable(np.zeros(1))
    for call, most, says in (
        (lambda: filled(v, 0), 40, "two sequences$"),
        (lambda: add_to(v, 0, 1), 1000, "or fewer func"),
    ):

        @synk.sequence
        def body(count, call=call):
            for _ in range(count):
                call()

        body.plan(synk.static(most))
        with pytest.raises(
            synk.ArgumentError,
            match=rf"test_sequences.py:\d+: .*share 65,536 bytes for results, .*{says}",
        ):
            body(synk.static(1100))
    del world


def test_variables_of_the_closure_may_get_other_memory(world):
    v = synk.variable(np.ones(3))

    @synk.sequence
    def body(by):
        scale(v, by)
        return v

    assert body(2.0) is v
    v.set_value(np.ones(5))
    body(3.0)
    assert_array_equal(v.get_value(), np.full(5, 3.0))
    assert body._traced == 2


def test_an_error_tells_iteration_and_call(world):
    @synk.function
    def break_at(v, step, rank):
        if step == 5 and rank == 0:
            raise KeyError("broken")

    @synk.sequence
    def loop(v):
        synk.all_reduce(v, "mean")
        break_at(v, synk.STEP, synk.RANK)

    v = synk.variable(np.ones(3))
    for _ in range(2):
        with pytest.raises(
            synk.RankError, match=r"in iteration 5 of 100 of loop, call 2: break_at"
        ) as caught:
            loop(v, times=100)
        assert [one.rank for one in caught.value.failures] == [0]
        assert total(synk.broadcast(v, np.ones(3))) == 3 * world.world_size
    loop(v, times=5)


@pytest.mark.parametrize("row", ROWS[:2])
class TestRefused:
    """What cannot be repeated on the ranks is refused while the body is traced, with file and
    line.
    """

    def refused(self, match, body, *args, **options):
        made = synk.sequence(body)
        with pytest.raises(synk.ArgumentError, match=match):
            made(*args, **options)
        v = synk.variable(np.ones(3))
        assert shrink(v, 1.0) >= 3  # the world works on

    def test_values(self, world):
        v = synk.variable(np.ones(3))
        here = r"test_sequences\.py:\d+: the value of output t of total is not known while"
        self.refused(here, lambda v: float(total(v)), v)
        self.refused(here, lambda v: total(v) if total(v) > 1 else None, v)
        self.refused(here, lambda v: f"{total(v)}", v)
        self.refused(here, lambda v: np.floor(total(v)), v)
        self.refused("the value of n of ", lambda n: int(n) + 1, 3)
        self.refused(
            r"n of .* may change from call to call.*synk\.static", lambda n: list(range(n)), 3
        )
        self.refused("after the call, or pass until=$", lambda v: print(first(v)), v)
        self.refused("Print it, or compute it in a kernel", lambda v: print(synk.STEP), v)
        self.refused("the result of first is not known", lambda v: scale(v, first(v) + 1), v)

    def test_what_arrays_and_numpy_would_do(self, world):
        v = synk.variable(np.ones(3))
        here = r"^\S*test_sequences\.py:\d+: the value of "
        for body in (
            lambda v: np.round(total(v)),
            lambda v: np.mean(first(v)),
            lambda v: total(v).item(),
            lambda v: first(v).sum(),
            lambda v: scale(v, np.clip(synk.STEP, 0, 2)),
            lambda v: scale(v, synk.STEP & 1),
            lambda v: scale(v, 1 << synk.STEP),
            lambda v: scale(v, ~synk.STEP),
            lambda v: 2 % first(v),
            lambda v: quarters(v).__setitem__(0, 1.0),
        ):
            self.refused(here, body, v)
        assert not hasattr(synk.STEP, "itme")

    def test_methods_of_arrays(self, world):
        v, tree = synk.variable(np.ones(3)), synk.variable({"w": np.ones(3)})
        rows, shared = np.arange(3.0), synk.data(np.arange(3.0))
        for body in (
            lambda v, p: damp(v, p.astype(np.float64)),
            lambda v, p: damp(v, p.ravel()),
            lambda v, p: damp(v, p.reshape(-1)),
            lambda v, p: scale(v, p.item(0)),
            lambda v, p: [scale(v, one) for one in p.flat],
        ):
            for array in (rows, shared, v):
                self.refused(
                    r"test_sequences\.py:\d+: .* before the call, and pass .* kernel or function",
                    body,
                    v,
                    array,
                )
        self.refused(
            r"test_sequences\.py:\d+: the variable has no T in the body of",
            lambda v: scale(v.T, 1.0),
            v,
        )
        self.refused(
            r"test_sequences\.py:\d+: .*\['w'\] has no ravel in",
            lambda p: scale(p["w"].ravel(), 1.0),
            tree,
        )
        damp(v, shared)
        with pytest.raises(AttributeError, match="has no attribute 'ravel'"):
            shared.ravel()
        looked = synk.sequence(lambda v, p: damp(v, np.reshape(p, (4, 1))[:, 0]))
        looked(v, synk.data(np.arange(4.0)))

    def test_the_way_out_is_that_of_the_value(self, world):
        v, rates = synk.variable(np.ones(3)), synk.data(np.ones(3))
        self.refused(
            r"t of total .* pass until=.*Compute it in a kernel or function",
            lambda v: scale(v, np.cumsum(total(v))),
            v,
        )
        self.refused(
            r"computed from by of .* may change from call .*synk\.static",
            lambda v, by: scale(v, round(2 * by + 1)),
            v,
            2.0,
        )
        self.refused(
            "a number computed from synk.STEP is not known .* another in each iteration",
            lambda v: scale(v, max(0.1, 1 - 0.1 * synk.STEP)),
            v,
        )
        self.refused(
            "synk.STEP is not known .* with the array to look up",
            lambda v: scale(v, [1.0, 2.0][synk.STEP]),
            v,
        )
        self.refused(
            "a line of by .*in broadcast=, and the number",
            lambda v, by: scale(v, by[synk.STEP]),
            v,
            rates,
        )

    def test_a_line_of_rows_is_no_result(self, world):
        rows = synk.data(np.zeros((2, 2)))
        self.refused(
            r"returns a line of .*, which no call makes", lambda rows: rows[synk.STEP], rows
        )

    def test_what_would_run_once(self, world):
        v = synk.variable(np.ones(3))
        again = r"inside .* would run once"
        self.refused(again, lambda v: synk.data(np.ones(3)), v)
        self.refused(again, lambda v: synk.variable(np.ones(3)), v)
        self.refused(again, lambda v: v.get_value(), v)
        self.refused(again, lambda v: v.set_value(np.ones(3)), v)
        self.refused(again, lambda v: synk.scatter(v, np.ones(3)), v)
        self.refused(again, lambda v: synk.gather(v, nd_up=0), v)
        self.refused(again, lambda v: synk.fork(2, device="cpu"), v)
        self.refused(again, lambda v: synk.close(), v)

    def test_loops(self, world):
        v = synk.variable(np.ones(3))
        for times in (-1, True, 2.0, "3"):
            with pytest.raises(synk.ArgumentError, match="times must be an int of at least 0"):
                shrink(v, 1.0, times=times)
        with pytest.raises(synk.ArgumentError, match="every must be an int of at least 1"):
            shrink(v, 1.0, times=3, every=0)
        with pytest.raises(synk.ArgumentError, match="every=20 keeps nothing of times=10"):
            shrink(v, 1.0, times=10, every=20)
        with pytest.raises(synk.ArgumentError, match="times=0 has no last iteration"):
            shrink(v, 1.0, times=0)
        self.refused("returns nothing", lambda v: scale(v, 1.0), v, times=2, until=bool)
        self.refused("until= needs times=", lambda v: shrink(v, 1.0, until=bool), v)
        self.refused(
            "ranks judge until= of shrink, .* no plain function",
            lambda v: shrink(v, 1.0, times=2, until=bool),
            v,
        )
        holder = []

        def around(v):
            holder[0](v)

        holder.append(synk.sequence(around))
        with pytest.raises(synk.ArgumentError, match=r"calls itself \(around → around\)"):
            holder[0](v)

    def test_numbers(self, world):
        v = synk.variable(np.ones(3))
        plain = r"test_sequences\.py:\d+: .* computes with ints and floats; got a"
        self.refused(plain, lambda v: scale(v, synk.STEP * True), v)
        self.refused(plain, lambda v: scale(v, total(v) * np.ones(3)), v)
        self.refused("is not known while", lambda v: scale(v, round(total(v))), v)
        self.refused(
            r"times must be an int of at least 0, and below 2\*\*63",
            lambda v: scale(v, 1.0),
            v,
            times=2**70,
        )
        with pytest.raises(
            synk.ArgumentError, match=r"synk\.static takes a number.*got an ndarray"
        ):
            synk.static(np.arange(3))

        def one_by_one(v):
            yield scale(v, 1.0)

        with pytest.raises(synk.ArgumentError, match="one_by_one is a generator"):
            synk.sequence(one_by_one)

    def test_long_formulas(self, world):
        v = synk.variable(np.ones(3))
        long = (
            r"test_sequences\.py:\d+: a number computed from .*{}.*Pass the numbers as an "
            r"array, and compute in a kernel"
        )

        def doubled(n):
            for _ in range(40):
                n = 0.5 * (n + n)
            return n

        for count in (257, 600, 20_000):
            times = synk.static(count)
            self.refused(
                long.format("257 operations inside each other"),
                lambda v, n, k: scale(v, sum([n] * k)),
                v,
                3,
                times,
            )
        self.refused(
            long.format("more than 10,000 operations"), lambda v, n: scale(v, doubled(n)), v, 3.0
        )

    def test_step_outside(self, world):
        v = synk.variable(np.ones(3))
        with pytest.raises(
            synk.ArgumentError, match=r"use it inside a function decorated with @synk\.sequence"
        ):
            scale(v, synk.STEP)
        with pytest.raises(synk.ArgumentError, match=r"@synk\.sequence"):
            synk.STEP + 1


def test_sums_of_many_numbers(world):
    @synk.sequence
    def body(v, numbers):
        scale(v, sum(numbers) - sum(numbers[:-1]))
        synk.carry(numbers[0], sum(numbers[1:], numbers[0]))

    v = synk.variable(np.ones(2))
    body(v, [*map(float, range(1, 253)), 3.0], times=2)
    assert_array_equal(v.get_value(), 9.0)


def test_static_numbers_are_part_of_the_sequence(world):
    @synk.sequence
    def body(v, n):
        for _ in range(n):
            scale(v, 2.0)

    v = synk.variable(np.ones(2))
    body(v, synk.static(3))
    body(v, synk.static(2), times=2)
    assert v.get_value()[0] == 2.0 ** (3 + 4)
    assert body._traced == 2


def test_an_error_of_a_formula_tells_its_line(world):
    @synk.sequence
    def body(v, k):
        square = k * k
        cube = square * k
        scale(v, cube)

    line = body.py_func.__code__.co_firstlineno + 3
    with pytest.raises(
        synk.RankError,
        match=rf"test_sequences\.py:{line}: a number that the sequence computes for scale\(",
    ):
        body(synk.variable(np.ones(2)), 10**7)


@synk.parallel(grid=1, block=1, outputs={"t": synk.output("sum", shape=(), dtype="float32")})
@cuda.jit
def single_total(a, t):
    t[0] = a[0] + np.float32(0.1)


@synk.parallel(grid=1, block=1, outputs={"t": synk.output("max", shape=(), dtype="int32")})
@cuda.jit
def highest(a, t):
    t[0] = np.int32(a[0])


@synk.function(outputs=None)
def bits_of(number):
    return str(np.asarray(number).dtype), np.float64(number) / 3


def test_numbers_keep_the_dtypes_of_numpy(world):
    """The oracle is NumPy's arithmetic in the script, on the results of single calls."""

    @synk.sequence
    def body(v, given):
        one, two = single_total(v), highest(v)
        return (
            bits_of(one),
            bits_of(two),
            bits_of(given),
            bits_of(np.float64(2) * one / 3),
            bits_of(np.int64(5) * two),
        )

    v = synk.variable(np.ones(2))
    one, two, given = single_total(v), highest(v), np.float32(0.1)
    told = [bits_of(x) for x in (one, two, given, np.float64(2) * one / 3, np.int64(5) * two)]
    assert one.dtype == np.float32
    found = body(v, given)
    for mine, theirs in zip(found, told, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert_array_equal(a, b)

    wide = "a sequence computes numbers in 64 bits, and NumPy would compute this in {}"
    for formula, dtype in (
        (lambda v, x: single_total(v) * 2.0, "float32"),
        (lambda v, x: 1 / single_total(v), "float32"),
        (lambda v, x: highest(v) + 1, "int32"),
        (lambda v, x: synk.STEP * np.float32(0.1), "float32"),
        (lambda v, x: np.int16(3) - x, "int16"),
        (lambda v, x: -highest(v), "int32"),
    ):
        refused = synk.sequence(lambda v, x, formula=formula: scale(v, formula(v, x)))
        with pytest.raises(
            synk.ArgumentError, match=rf"test_sequences\.py:\d+: {wide.format(dtype)}"
        ):
            refused(v, 3)


def test_arrays_of_trees(world):
    @synk.function
    def descend(w, b, rate):
        w -= rate * b[:1]
        b *= 2

    @synk.function
    def double(layer):
        for one in layer.values():
            one[...] = 2 * one

    @synk.sequence
    def body(params, rate):
        descend(params["first"]["w"], params["b"], rate)
        mix(params["first"]["w"], params["first"]["z"], 3.0)
        double(params["first"])

    def same(w, z, b):
        w -= 0.5 * b[:1]
        b *= 2
        w[:] = 0.5 * w + 0.25 * z + 1e-3 * 3.0
        w *= 2
        z *= 2

    arrays = np.arange(3.0), np.arange(3.0) + 7, np.ones(2)
    w, z, b = arrays
    params = synk.variable({"first": {"w": w, "z": z}, "b": b})
    body(params, 0.5, times=3)
    for _ in range(3):
        same(w, z, b)
    for rank in range(world.world_size):
        found = params.get_value(rank)
        for mine, theirs in ((found["first"]["w"], w), (found["first"]["z"], z), (found["b"], b)):
            assert_array_equal(mine, theirs)
    for wrong, match in (
        (lambda p: scale(p["c"], 1.0), "has no array or subtree 'c'"),
        (lambda p: scale(p["b"]["w"], 1.0), "has no array or subtree 'w'"),
        (lambda p: mix(p["b"], p["b"], 1.0), "the same variable"),
        (lambda p: scale(p["first"], 1.0), "a tree, but a kernel takes single arrays"),
    ):
        with pytest.raises(synk.ArgumentError, match=match):
            synk.sequence(wrong)(params)
    with pytest.raises(synk.ArgumentError, match="only the body of a sequence can index it"):
        params["b"]

    @synk.sequence
    def layers(tree, pair):
        for k, one in enumerate(tree["layers"]):
            scale(one, k + 2.0)
        first, second = pair
        mix(first, second, 0.0)

    tree, pair = (
        synk.variable({"layers": [np.ones(2), np.ones(3)]}),
        synk.variable((np.ones(2), np.full(2, 4.0))),
    )
    layers(tree, pair)
    assert [one[0] for one in tree.get_value()["layers"]] == [2.0, 3.0]
    assert pair.get_value()[0][0] == 1.5


@pytest.mark.parametrize("row", [*ROWS[:2], ROWS[4], REPLAYED])
@pytest.mark.parametrize("options", [{}, {"num_slices": 2}, {"batch": True}])
def test_functions_get_the_numbers_of_the_iteration(fork_row, row, options, monkeypatch):
    """Also in dicts, with every dtype, and beside rows; they are bound once for all numbers."""

    def bound_once(self, *args):
        assert self not in bound
        bound.append(self)
        return make_binding(self, *args)

    bound, make_binding = [], FunctionRoutine._make_binding
    monkeypatch.setattr(FunctionRoutine, "_make_binding", bound_once)

    @synk.function(outputs="sum")
    def note(x, log, step, rate, settings):
        assert settings.pop("seen", None) is None
        for at, value in enumerate((step, rate, settings["rate"][0], settings["other"], len(x))):
            log[at] += value
        settings["seen"] = True
        return (x * rate).sum()

    @synk.sequence
    def body(x, order, log, beta, narrow):
        step = synk.STEP
        settings = {"rate": [beta * 0.5**step, narrow], "other": 3.0}
        chosen = {"batch": order[step]} if "batch" in options else options
        return note(x, log, step, np.cos(step / 7) + beta, settings, **chosen)

    @synk.function(record=True)
    def kinds(log, single, whole, z, settings):
        assert type(single) is np.float32
        assert type(whole) is int
        log[0] += single + whole + z.imag + settings["more"]

    rows, order = np.arange(12.0), np.arange(40).reshape(10, 4) % 12
    with fork_row() as world:
        size = world.world_size
        x, lines, log = synk.data(rows), synk.data(order), synk.variable(np.zeros(5))
        slices = options.get("num_slices", 1)
        for beta in (0.25, -3.0):
            before = sum(log.get_value(rank) for rank in range(size))
            kept = body(x, lines, log, beta, np.float32(0.1), times=10, every=3)
            told, sums = np.zeros(5), []
            for step in range(10):
                chosen = rows[order[step]] if "batch" in options else rows
                rate = np.cos(step / 7) + beta
                sums.append((chosen * rate).sum())
                line = np.array([step, rate, beta * 0.5**step, 3.0, 0.0])
                told += size * slices * line + [0, 0, 0, 0, len(chosen)]
            assert_allclose(kept, sums[2::3], rtol=1e-12)
            after = sum(log.get_value(rank) for rank in range(size))
            assert_allclose(after - before, told, rtol=1e-12)
        bound.clear()
        steps = [1, 2, 1, *range(3, 30), 1]  # more kinds than are recorded
        for step in steps:
            kinds(log, np.float32(step), step, complex(0, step), {"more": step})
        assert_allclose(log.get_value(0)[0] - after[0] / size, 4 * sum(steps))


@synk.parallel(grid="elements")
@cuda.jit
def edges(u, v, own):
    j, i = cuda.grid(2)
    if (i == own.start or i == own.stop - 1) and 0 < i < u.shape[0] - 1 and 0 < j < u.shape[1] - 1:
        v[i, j] = 0.25 * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1])


@synk.parallel(grid="elements")
@cuda.jit
def interior(u, v, own):
    j, i = cuda.grid(2)
    if own.start < i < own.stop - 1 and 0 < j < u.shape[1] - 1:
        v[i, j] = 0.25 * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1])


def relax(u, v, rank):
    edges(u, v, synk.OWN)
    synk.exchange(v, during=lambda: (dawdle(synk.STEP, rank), interior(u, v, synk.OWN)))


def test_calls_beside_an_exchange(world):
    @synk.sequence
    def step(u, v, rank):
        relax(u, v, rank)
        synk.swap(u, v)

    start = np.random.default_rng(3).random((17, 9))
    want = start.copy()
    for _ in range(7):
        inner = 0.25 * (want[:-2, 1:-1] + want[2:, 1:-1] + want[1:-1, :-2] + want[1:-1, 2:])
        want = want.copy()
        want[1:-1, 1:-1] = inner
    u, v = (synk.scatter(synk.variable(start), halo=1) for _ in range(2))
    step(u, v, synk.RANK, times=7)
    assert_array_equal(synk.gather(u, nd_up=0), want)
    halos = synk.scatter(synk.variable(want), halo=1)
    for rank in range(world.world_size):  # rows of neighbours, too
        assert_array_equal(first_row(u)[rank], first_row(halos)[rank])
    u, v = (synk.scatter(synk.variable(start), halo=1) for _ in range(2))
    for _ in range(7):
        edges(u, v, synk.OWN)
        assert synk.exchange(v, during=lambda u=u, v=v: interior(u, v, synk.OWN)) is v
        u, v = v, u
    assert_array_equal(synk.gather(u, nd_up=0), want)
    with pytest.raises(
        synk.ArgumentError, match="during takes a function without arguments.*; got 3"
    ):
        synk.exchange(u, during=3)


@synk.function(outputs=None)
def first_row(u):
    return u[0]


class TestKeptResultsOfFunctions:
    """Ranks keep small results of functions; each is the one that a single call returns."""

    @pytest.mark.parametrize("row", [*ROWS[:2], ROWS[4], REPLAYED])
    def test_rounds_are_few_once_results_were_small(self, world):
        @synk.function(outputs={"s": "sum", "each": None, "m": ["mean", "max"]})
        def measure(a, step, rank):
            a += step
            whole = {0: 3, 1: step, 2: 0.5 * step}[step % 3]  # ints and floats
            return {"s": whole, "each": a[:2] * rank, "m": [a.mean(), a.astype("f4") + rank]}

        @synk.function(outputs={"m": ["mean", "max"], "s": "sum"})
        def level(a, x, rank):
            return {"m": [a.sum() / 3 + rank, a > rank], "s": a.astype("f4") / 7}

        @synk.sequence
        def body(a):
            return measure(a, synk.STEP, synk.RANK), total(a)

        @synk.sequence
        def levels(a, x):
            measure(a, synk.STEP, synk.RANK)
            return level(a, x, synk.RANK), total(a), "constant"

        @synk.function(record=True, outputs="mean")
        def shrunk(a, x, rank):
            a *= 0.99
            return a.sum() + rank

        @synk.sequence
        def recorded(a, x):
            return shrunk(a, x, synk.RANK), total(a)

        def singly(a, times, every):
            kept = []
            for step in range(times):
                one = measure(a, step, synk.RANK), total(a), level(a, x, synk.RANK)
                if step % every == every - 1:
                    kept.append(one)
            return kept

        rounds, run = [], SequencePlan.run
        x, even = synk.data(np.zeros(5)), synk.data(np.zeros(6))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SequencePlan, "run", lambda *args: rounds.append(1) or run(*args))
            patch.setattr(plan, "SPECS_KEPT", 20)  # iterations in a round
            for times, every in ((7, 1), (50, 1), (11, 3)):
                a, b, c, d = (synk.variable(np.arange(3.0)) for _ in range(4))
                found = recorded(d, even, times=times, every=every)
                sums = 3.0 * 0.99 ** np.arange(1.0, times + 1)[every - 1 :: every]
                assert_allclose(found[0], sums + (world.world_size - 1) / 2, rtol=1e-12)
                assert_allclose(found[1], sums * world.world_size, rtol=1e-12)
                rounds.clear()
                found, told = body(a, times=times, every=every), singly(b, times, every)
                assert len(rounds) <= 8  # of two calls
                assert_array_equal(found[1], [one[1] for one in told])
                for place, key in (("s", "s"), ("each", "each")):
                    assert_array_equal(found[0][place], [one[0][key] for one in told])
                for k in range(2):
                    assert_array_equal(found[0]["m"][k], [one[0]["m"][k] for one in told])
                assert_array_equal(a.get_value(), b.get_value())
                found = levels(c, x, times=times, every=every)
                assert found[2] == "constant"
                assert_array_equal(found[1], [one[1] for one in told])
                assert_array_equal(found[0]["s"], [one[2]["s"] for one in told])
                assert found[0]["s"].dtype == told[0][2]["s"].dtype
                for k in range(2):
                    assert_array_equal(found[0]["m"][k], [one[2]["m"][k] for one in told])

    @pytest.mark.parametrize("row", [*ROWS[:2], ROWS[4], REPLAYED])
    def test_results_may_become_large(self, world):
        """Large ones after small ones come with the ranks' messages, in later calls in rounds."""

        @synk.function(outputs="sum")
        def many(a, n, step):
            return a[:n] * step

        @synk.sequence
        def body(a, n):
            return many(a, n, synk.STEP)

        @synk.function(outputs="gather")
        def first_few(a, n, rank):
            return a[: n + rank]

        @synk.sequence
        def gathered(a):
            return first_few(a, 4 - synk.STEP // 2, synk.RANK)

        a = synk.variable(np.arange(9000.0))
        for n, times in ((3, 5), (3, 5), (9000, 6), (9000, 4), (2, 3)):
            steps = np.arange(times)[:, None] * world.world_size
            assert_array_equal(body(a, n, times=times, every=1), np.arange(n) * steps)
        with pytest.raises(synk.ReductionError, match="the same shapes to be stacked"):
            synk.sequence(lambda a: many(a, 5 - synk.STEP, 1))(a, times=3, every=1)
        for every in (1, 2):
            rows = np.concatenate([np.arange(4.0 + rank) for rank in range(world.world_size)])
            assert_array_equal(gathered(a, times=2, every=every), [rows] * (2 // every))
        with pytest.raises(synk.ReductionError, match="the same shapes to be stacked"):
            gathered(a, times=4, every=2)
