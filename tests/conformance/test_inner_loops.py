"""`carry` and `swap` in inner sequences, alone and with `until=`: the same loops in NumPy."""

import warnings

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from tests.conformance.conftest import LINKED, PRIVATE, REPLAYED, REPLAYED_LINKED, ROWS


@pytest.fixture(params=[*ROWS, PRIVATE, LINKED, REPLAYED, REPLAYED_LINKED])
def row(request):
    return request.param


N = 14  # cells of a bar, with one at each end


def sums(*names):
    return {name: synk.output("sum", shape=(), dtype="float64") for name in names}


@synk.parallel(grid="elements")
@cuda.jit
def smooth(u, w, source):
    """A sweep of Jacobi for 2 u − (left + right) = source."""
    i = cuda.grid(1)
    if 0 < i < u.shape[0] - 1:
        w[i] = 0.5 * (u[i - 1] + u[i + 1] + source[i])
    elif i < u.shape[0]:
        w[i] = u[i]


@synk.parallel(grid="elements", outputs=sums("s"))
@cuda.jit
def change(u, w, own, s):
    i = cuda.grid(1)
    if own.start <= i < own.stop:
        cuda.atomic.add(s, 0, (u[i] - w[i]) ** 2)


@synk.parallel(grid="elements")
@cuda.jit
def combine(x, a, y, b):
    i = cuda.grid(1)
    if i < x.shape[0]:
        x[i] = a * x[i] + b * y[i]


@synk.parallel(grid=1, block=1)
@cuda.jit
def note(log, at, value):
    if at < log.shape[0]:
        log[at] = value


@synk.sequence
def sweep(u, w, source):
    synk.exchange(u)
    smooth(u, w, source)
    synk.swap(u, w)
    return change(u, w, synk.OWN)


def jacobi(u, source):
    w = u.copy()
    w[1:-1] = 0.5 * (u[:-2] + u[2:] + source[1:-1])
    return w


def bars(count):
    start = np.zeros(N)
    start[4:9] = np.arange(1.0, 6.0)
    bars = [start, *(np.full(N, 7.0) for _ in range(count - 1))]
    return start, [synk.scatter(synk.variable(bar), halo=1) for bar in bars]


def heat(u, steps, sweeps):
    """The steps in NumPy, and what each of them returns; `sweeps` of the steps."""
    rest = []
    for step in range(steps):
        source = 0.5 * u
        before = source.copy()
        for _ in range(sweeps[step]):
            u, w = jacobi(u, source), u
        rest.append(((u - w) ** 2).sum())
        u = 0.9 * u + 0.1 * before
    return u, rest


@synk.sequence
def fixed(u, w, source, before):
    return advance_by(u, w, source, before, 3)


def advance_by(u, w, source, before, times, **options):
    combine(source, 0.0, u, 0.5)
    combine(before, 0.0, source, 1.0)
    rest = sweep(u, w, source, times=times, **options)
    combine(u, 0.9, before, 0.1)
    synk.exchange(u)
    return rest


@synk.sequence
def passed(u, w, source, before, n):
    return advance_by(u, w, source, before, n)


@synk.sequence
def growing(u, w, source, before):
    return advance_by(u, w, source, before, synk.STEP % 4 + 1)


@synk.sequence
def converging(u, w, source, before, tol):
    return advance_by(u, w, source, before, 50, until=lambda rest: rest < tol)


def sweeps_until(u, steps, tol):
    counts = []
    for _ in range(steps):
        source = 0.5 * u
        before, count, rest = source.copy(), 0, np.inf
        while count < 50 and not rest < tol:
            u, w = jacobi(u, source), u
            count, rest = count + 1, ((u - w) ** 2).sum()
        counts.append(count)
        u = 0.9 * u + 0.1 * before
    return counts


def run(body, *numbers, **options):
    start, variables = bars(4)
    return start, body(*variables, *numbers, **options), synk.gather(variables[0])


@pytest.mark.parametrize("every", [None, 1])
def test_sweeps_that_swap(world, every):
    """Of odd and even counts, which are known, passed, computed, or end by a condition."""
    cases = [(fixed, (), [3] * 5), (growing, (), [1, 2, 3, 4, 1])]
    cases += [(passed, (n,), [n] * 5) for n in (1, 2, 3, 4)]
    for body, numbers, sweeps in cases:
        start, found, u = run(body, *numbers, times=5, every=every)
        wanted, rest = heat(start, 5, sweeps)
        assert_allclose(u, wanted, rtol=1e-13)
        assert_allclose(found, rest if every else rest[-1], rtol=1e-13)
    counts = set()
    for tol in (2.0, 10.0):
        start, _, u = run(converging, tol, times=5, every=every)
        sweeps = sweeps_until(start, 5, tol)
        counts |= {*sweeps}
        assert_allclose(u, heat(start, 5, sweeps)[0], rtol=1e-13)
    assert {count % 2 for count in counts} == {0, 1}
    assert len(counts) > 2


# ---- numbers


@synk.parallel(grid="elements", outputs=sums("d"))
@cuda.jit
def dot(a, b, own, d):
    i = cuda.grid(1)
    if own.start <= i < own.stop and i < a.shape[0]:
        cuda.atomic.add(d, 0, a[i] * b[i])


@synk.parallel(grid="elements")
@cuda.jit
def residual(r, p, d, u, reaction):
    i = cuda.grid(1)
    if 0 < i < u.shape[0] - 1:
        r[i] = reaction * np.exp(u[i]) + u[i - 1] + u[i + 1] - 2 * u[i]
        p[i] = r[i]
        d[i] = 0.0


@synk.parallel(grid="elements")
@cuda.jit
def apply(q, p, u, reaction):
    i = cuda.grid(1)
    if 0 < i < u.shape[0] - 1:
        q[i] = (2 - reaction * np.exp(u[i])) * p[i] - p[i - 1] - p[i + 1]


@synk.sequence
def gradients(d, r, p, q, u, reaction, rr):
    synk.exchange(p)
    apply(q, p, u, reaction)
    step = rr / dot(p, q, synk.OWN)
    combine(d, 1.0, p, step)
    combine(r, 1.0, q, -step)
    rest = dot(r, r, synk.OWN)
    combine(p, rest / rr, r, 1.0)
    synk.carry(rr, rest)
    return rest, synk.STEP + 1, rr


@synk.sequence
def newton(u, d, r, p, q, reaction, count):
    synk.exchange(u)
    residual(r, p, d, u, reaction)
    norm = dot(r, r, synk.OWN)
    goal = norm * np.minimum(0.01, norm)
    rest, done, before = gradients(
        d, r, p, q, u, reaction, norm, times=99, until=lambda found: found[0] < goal
    )
    combine(u, 1.0, d, 1.0)
    synk.carry(count, count + done)
    return norm, rest, before, count + done


def newton_in_numpy(u, reaction, steps):
    rows, count = [], 0
    for _ in range(steps):
        r, d = np.zeros_like(u), np.zeros_like(u)
        r[1:-1] = reaction * np.exp(u[1:-1]) + u[:-2] + u[2:] - 2 * u[1:-1]
        p, rr = r.copy(), r @ r
        norm, goal = rr, rr * min(0.01, rr)
        for _ in range(99):
            count += 1
            q = np.zeros_like(u)
            q[1:-1] = (2 - reaction * np.exp(u[1:-1])) * p[1:-1] - p[:-2] - p[2:]
            step = rr / (p @ q)
            d, r = d + step * p, r - step * q
            rest = r @ r
            p, before, rr = rest / rr * p + r, rr, rest
            if rest < goal:
                break
        u = u + d
        rows.append((norm, rest, before, count))
    return u, np.array(rows)


@pytest.mark.parametrize("every", [None, 1])
def test_newton_around_conjugate_gradients(world, every):
    """Whose r·r is carried; and it returns that, and how many iterations it has made."""
    wanted, rows = newton_in_numpy(np.zeros(N), 0.01, 4)
    variables = [synk.scatter(synk.variable(np.zeros(N)), halo=1) for _ in range(5)]
    found = newton(*variables, 0.01, 0, times=4, every=every)
    rows = rows.T if every else rows[-1]
    assert_array_equal(found[-1], rows[-1])
    for values, expected in zip(found[:-1], rows[:-1], strict=True):
        assert_allclose(values, expected, rtol=1e-5, atol=1e-25)
    assert_allclose(synk.gather(variables[0]), wanted, rtol=1e-12)


@synk.sequence
def fibonacci(log, a, b, at):
    note(log, at, a)
    synk.carry(a, b)
    synk.carry(b, a + b)
    synk.carry(at, at + 1)
    return a, at


def test_numbers_of_several_loops(world):
    """Each call of an inner loop begins with what it is passed: plain numbers, numbers of the
    outer loop, results of another inner loop.
    """

    @synk.sequence
    def body(log, n):
        last, at = fibonacci(log, 0, 1, 0, times=3)
        last, _ = fibonacci(log, last, n, at + 1, times=synk.STEP + n)
        synk.carry(n, n + 1)
        return last

    def series(a, b, count):
        values = []
        for _ in range(count):
            values, a, b = [*values, a], b, a + b
        return values

    log, wanted, n = synk.variable(np.zeros(40, np.int64)), [], 2
    found = body(log, n, times=4, every=1)
    for step in range(4):
        values = series(1, n, step + n)
        wanted, n = [*wanted, values[-1]], n + 1
    assert_array_equal(found, wanted)
    assert_array_equal(log.get_value(world.world_size - 1)[: 3 + len(values)], [0, 1, 1, *values])


@synk.function(outputs="sum")
def content(u):
    return u["a"].sum()


@synk.parallel(grid="elements", outputs=sums("s"))
@cuda.jit
def shift(u, v, by, s):
    i = cuda.grid(1)
    if i < u.shape[0]:
        v[i] = u[i] + by
    if i == 0:
        s[0] = u[0]


def test_three_loops_of_three_variables(world):
    """Whose iterations repeat after three, in a loop whose own repeat after two."""

    @synk.sequence
    def innermost(a, b, c, by):
        found = shift(a, b, by)
        synk.swap(a, b)
        synk.swap(b, c)
        synk.carry(by, 2.0 * by)
        return found

    @synk.sequence
    def middle(a, b, c, n):
        found = innermost(a, b, c, 1.0, times=n)
        shift(c, b, found)
        synk.swap(a, c)
        synk.carry(n, n % 3 + 1)

    @synk.sequence
    def body(a, b, c):
        middle(a, b, c, synk.STEP % 3 + 1, times=2 * synk.STEP + 1)
        synk.swap(a, b)

    size = world.world_size
    variables = [synk.variable(np.full(2, value)) for value in (1.0, 10.0, 100.0)]
    a, b, c = 1.0, 10.0, 100.0
    body(*variables, times=5)
    for step in range(5):
        n = step % 3 + 1
        for _ in range(2 * step + 1):
            by = 1.0
            for _ in range(n):
                found, b, by = size * a, a + by, 2.0 * by
                a, b = b, a
                b, c = c, b
            b, n = c + found, n % 3 + 1
            a, c = c, a
        a, b = b, a
    assert_array_equal([variable.get_value()[1] for variable in variables], [a, b, c])


def test_what_is_refused(world):
    u, w = synk.variable({"a": np.ones(2)}), synk.variable({"a": np.zeros(2)})

    @synk.sequence
    def inner(u, w):
        synk.swap(u, w)
        return content(u)

    with pytest.raises(
        synk.ArgumentError,
        match=r"loops\.py:\d+: inner swaps variables and returns the result of content, .* numbers",
    ):
        synk.sequence(lambda u, w: inner(u, w, times=3))(u, w)
    silent = synk.sequence(synk.swap)
    synk.sequence(lambda u, w, n: silent(u, w, times=n))(u, w, 3)
    assert (content(u), content(w)) == (0.0, 2.0 * world.world_size)

    @synk.sequence
    def other(n):
        synk.carry(2 * n, n)

    with pytest.raises(synk.ArgumentError, match="carry takes a number that is passed to other"):
        synk.sequence(lambda n: other(n, times=2))(3)

    @synk.sequence
    def counted(v, n):
        for _ in range(n):
            note(v, 0, 1.0)
        synk.carry(n, n + 1)

    v = synk.variable(np.zeros(1))
    with pytest.raises(synk.ArgumentError, match=r"n of counted may change .* synk\.static\(n\)"):
        synk.sequence(lambda v: counted(v, 3, times=2))(v)

    rows = synk.variable(np.arange(2.0 * world.world_size))
    synk.scatter(rows)
    replica, other_replica = synk.variable(np.ones(2)), synk.variable(np.ones(2))
    with pytest.raises(synk.ArgumentError, match="divided in different ways .*, and a replica"):
        synk.sequence(lambda u, w: silent(u, w, times=3))(rows, replica)
    pair = np.zeros(2), np.zeros(2)
    ending = synk.sequence(lambda u, w: silent(u, w, times=3, until=lambda _: pair[0] < 1))
    with pytest.raises(
        synk.ArgumentError, match=r"until= of swap, .* pass a number, as by .* a = pair\[0\]"
    ):
        ending(replica, other_replica)
    ending = synk.sequence(lambda u, w: silent(u, w, times=3, until=lambda _: True))
    with (
        warnings.catch_warnings(action="error"),
        pytest.raises(synk.ArgumentError, match="until= of swap, .* no comparison"),
    ):
        ending(replica, other_replica)


def test_static_numbers_stay_so_where_others_are_carried(world):
    @synk.sequence
    def counted(v, n, step):
        for i in range(n):
            note(v, step + i, 1.0)
        synk.carry(step, step + n)

    v = synk.variable(np.zeros(9))
    synk.sequence(lambda v, n: counted(v, synk.static(n), 1, times=3))(v, synk.static(2))
    assert_array_equal(v.get_value(), [0, 1, 1, 1, 1, 1, 1, 0, 0])
    synk.sequence(lambda v: counted(v, synk.static(1), 7, times=1))(v)
    assert_array_equal(v.get_value(), [0, 1, 1, 1, 1, 1, 1, 1, 0])


@synk.function
def fail_at(u, step, at):
    if step == at:
        raise KeyError("broken")


def test_an_error_in_the_second_turn(world):
    @synk.sequence
    def inner(u, w, n):
        fail_at(u, synk.STEP, n)
        synk.swap(u, w)

    u, w = synk.variable(np.zeros(1)), synk.variable(np.zeros(1))
    with pytest.raises(
        synk.RankError,
        match=r"iteration 0 of 3 of <lambda>, iteration 1 of 5 of inner, call 2: fail_at\(.*py:\d",
    ):
        synk.sequence(lambda u, w: inner(u, w, synk.STEP + 1, times=5))(u, w, times=3)
