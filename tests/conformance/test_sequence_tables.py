"""Sequences on cores: compiled code runs them from a table, with the bits and the errors of the
loop in Python.
"""

import numpy as np
import pytest
from numba import cuda, types
from numpy.testing import assert_array_equal

import synknumba as synk
from synknumba import simt
from synknumba._rank import sequence_lowering, sequence_routine
from tests.quick import whole


@synk.parallel(grid=1, block=1)
@cuda.jit
def note(log, at, value):
    log[at] = value


@synk.parallel(grid=1, block=1)
@simt.jit("void(float32[:], int64, float32)")
def note_single(log, at, value):
    log[at] = value


@synk.parallel(grid=1, block=1)
@simt.jit("void(float64[:], int8, int16)")
def note_short(log, at, value):
    log[at] = value


@synk.parallel(grid=2, block=8)
@cuda.jit
def mix(a, b, pair, flag, z):
    for i in range(cuda.grid(1), a.shape[0], cuda.gridsize(1)):
        a[i] = 0.5 * a[i] + pair[0] * b[i] + pair[1] * z.imag
        if flag:
            a[i] += 1.0


def number(op, dtype):
    @synk.parallel(grid=1, block=1, outputs={"t": synk.output(op, shape=(), dtype=dtype)})
    @cuda.jit
    def found(a, t):
        t[0] = a[0] + a[1] * a.shape[0]

    return found


NUMBERS = {
    (op, dtype): number(op, dtype)
    for op in ("sum", "prod", "min", "max")
    for dtype in ("f8", "f4", "i8", "i4", "u8")
}


@synk.parallel(grid=1, block=1)
@cuda.jit
def refuse(log, step, at):
    log[1] += 1
    if step == at:
        raise ValueError("refused")


@synk.function
def add(a, by):
    a += by


def sides(row_size, body, monkeypatch):
    """What a function finds in a world whose ranks use tables, and in one whose ranks do not."""
    found = []
    for uses in (True, False):
        if not uses:
            monkeypatch.setattr(sequence_routine, "runs_natively", lambda device: False)
        with synk.fork(row_size, device="cpu"):
            found.append(body())
    return found


@pytest.mark.parametrize("size", [2, *whole(1, 3, 9)])
class TestBothWays:
    """The table and the loop give the same."""

    def test_formulas(self, size, monkeypatch):
        @synk.sequence
        def inner(log, at, k):
            note(log, at + synk.STEP, 0.5 * synk.STEP - k)

        @synk.sequence
        def body(log, short, v, x, k):
            step = synk.STEP
            values = (
                k,
                x,
                k * step,
                x * step + 1,
                step / 3,
                (step + 7) // -2,
                (k - 3) % 5,
                -x,
                abs(-k),
                step**2,
                x**0.5,
            )
            values += (k * 2**40 // 2**41, 2**70 * 1.0 + k, x // 0.3, x % 0.3, 2 - x, 1 / (x + 1))
            values += (
                np.sqrt(k),
                np.maximum(step, 2),
                np.minimum(x, step),
                np.exp(-x) * np.tanh(step),
                np.log(step),
            )
            for place, value in enumerate(values):
                note(log, place, value)
            inner(log, 30, k + step, times=step % 3 + 1)
            inner(log, 34, k, times=2)
            note_single(short, step, x / 3)
            note_single(short, 9, step)
            note_short(log, 38, k)

        def run():
            log, short, v = (
                synk.variable(np.zeros(40)),
                synk.variable(np.zeros(10, "f4")),
                synk.variable(np.ones(2)),
            )
            seen = []
            for times, x, k in ((1, 0.1, 3), (4, -0.7, -(2**40)), (9, 1e300, 7)):
                body(log, short, v, abs(x), k % 1000, times=times)
                seen += [log.get_value(size - 1), short.get_value(0).astype(float)]
            return np.concatenate(seen)

        assert_array_equal(*sides(size, run, monkeypatch))

    def test_results(self, size, monkeypatch):
        @synk.sequence
        def body(log, v):
            for place, found in enumerate(NUMBERS.values()):
                note(log, place, found(v))
                note(log, 20 + place, np.float64(1) * found(v) / 3 - synk.STEP)
            add(v, 0.25)
            return tuple(found(v) for found in NUMBERS.values())

        def run():
            log, v = synk.variable(np.zeros(40)), synk.variable(np.zeros(2))
            for rank in range(size):
                v.set_value([1.1 + rank, 0.3], rank=rank)
            kept = body(log, v, times=6, every=2)
            return np.concatenate(
                [
                    log.get_value(0),
                    log.get_value(size - 1),
                    *(np.asarray(one, float) for one in kept),
                ]
            )

        assert_array_equal(*sides(size, run, monkeypatch))

    def test_arguments_and_collectives(self, size, monkeypatch):
        @synk.parallel(
            inout=("x",),
            broadcast=("w",),
            outputs={"s": synk.output("sum", shape=(3,), dtype="float64")},
        )
        @cuda.jit
        def step(x, w, k, s):
            i = cuda.grid(1)
            if i < x.shape[0]:
                x[i] += w[0] * k
                cuda.atomic.add(s, i % 3, x[i])

        @synk.sequence
        def body(a, b, x, w):
            mix(a, b, (0.25, 2), True, 2j)
            synk.all_reduce(a, "mean")
            synk.all_reduce([a, b], "max")
            sums = step(x, w, synk.STEP, num_slices=2)
            some = step(x, w, 1, batch=[5, 1, 3])
            synk.broadcast(b, root=size - 1)
            add(b, synk.STEP)
            synk.reduce(a, "sum")
            return sums, some

        def run():
            a, b = (synk.variable(np.arange(n, n + 40.0)) for n in (0, 3))
            for rank in range(size):
                b.set_value(np.random.default_rng(rank).random(40), rank=rank)
            x, w = np.arange(20.0), np.array([0.5])
            kept = body(a, b, x, w, times=7, every=3)
            return np.concatenate(
                [a.get_value(size - 1), b.get_value(0), x, np.ravel(kept[0]), np.ravel(kept[1])]
            )

        assert_array_equal(*sides(size, run, monkeypatch))

    def test_swaps(self, size, monkeypatch):
        found = NUMBERS["sum", "f8"]

        @synk.sequence
        def body(a, b, c):
            add(a, 1 + synk.STEP)
            synk.all_reduce(a, "sum")
            mix(b, a, (0.25, 2), False, 2j)
            synk.swap(a, b)
            synk.swap(b, c)
            return found(a)

        def run():
            a, b, c = (synk.variable(np.arange(n, n + 3.0)) for n in (0, 3, 7))
            kept = [body(a, b, c, times=times, every=1) for times in (1, 4, 2, 6)]
            last = body(a, b, c, times=2, until=lambda s: s > 1e300)
            return np.concatenate(
                [*kept, np.ravel(last), *(one.get_value(size - 1) for one in (a, b, c))]
            )

        assert_array_equal(*sides(size, run, monkeypatch))

    def test_errors(self, size, monkeypatch):
        @synk.sequence
        def loop(log, at):
            synk.all_reduce(log, "max")
            refuse(log, synk.STEP, at)

        @synk.sequence
        def cube(log, x):
            n = x + synk.STEP
            note(log, 0, n * n * n)

        def run():
            log, told = synk.variable(np.zeros(2)), []
            for call in (lambda: loop(log, 3, times=9), lambda: cube(log, 2**21 - 2, times=5)):
                with pytest.raises(synk.RankError) as caught:
                    call()
                # A rank that sees another's failure first has none to tell of.
                told.append({(one.type_name, one.message) for one in caught.value.failures})
                told.append(
                    {
                        line.strip()
                        for line in str(caught.value).splitlines()
                        if "in iteration" in line
                    }
                )
                log.set_value(np.zeros(2))
            loop(log, -1, times=3)
            return [*told, log.get_value().tolist()]

        table, python = sides(size, run, monkeypatch)
        assert table == python
        assert "ValueError" in str(table[0])
        assert "in iteration 3 of 9 of loop, call 2: refuse" in str(table[1])
        assert "OverflowError" in str(table[2])
        assert "in iteration 2 of 5 of cube" in str(table[3])


def test_nothing_is_left_to_python(monkeypatch):
    def refused(*_):
        raise AssertionError("a row of Python")

    monkeypatch.setattr(sequence_lowering.Lowering, "_in_python", refused)
    found = NUMBERS["sum", "f8"]

    @synk.sequence
    def inner(log, k):
        note(log, synk.STEP, k)

    @synk.sequence
    def body(log, v, x):
        synk.all_reduce(v, "mean")
        note(log, synk.STEP % 3, (np.maximum(found(v), -np.exp(synk.STEP)) + np.sqrt(x)) / 2)
        inner(log, 1.0, times=2)
        return found(v)

    with synk.fork(2, device="cpu"):
        log, v = synk.variable(np.zeros(3)), synk.variable(np.full(2, 0.5))
        assert_array_equal(body(log, v, 1.0, times=6, every=2), [3.0] * 3)
        assert_array_equal(log.get_value(1), [1.0, 1.0, 2.0])


def test_a_rank_that_fails_ends_a_loop_without_waits():
    @synk.function
    def fail(rank):
        if rank == 1:
            raise KeyError("one")

    @synk.sequence
    def body(log):
        note(log, 0, synk.STEP)
        fail(synk.RANK)

    with synk.fork(2, device="cpu", timeout=20):
        log = synk.variable(np.zeros(1))
        with pytest.raises(synk.RankError, match="call"):
            body(log, times=10**9)
        assert log.get_value(0) < 10**8


def test_types_are_those_of_numba():
    from synknumba._wire.native import words_of

    assert words_of(types.UniTuple(types.float32, 2), (1.5, 2)) == [
        np.float32(1.5).tobytes() + bytes(4),
        np.float32(2).tobytes() + bytes(4),
    ]
    assert words_of(types.int32, -1) == [b"\xff" * 4 + bytes(4)]
    with pytest.raises(TypeError):
        words_of(types.unicode_type, "x")
