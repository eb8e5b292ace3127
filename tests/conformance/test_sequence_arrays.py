"""Results that are arrays go from call to call of a sequence without the script, with the bits
of single calls.
"""

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_array_equal

import synknumba as synk
from tests.conformance.conftest import FOUR, LINKED, PRIVATE, REPLAYED, ROWS
from tests.quick import whole

SMALL, MIDDLE, LARGE = 5, 3000, 140_000  # in the small results; in a segment; combined by the ranks

pytestmark = pytest.mark.parametrize("row", [*ROWS, FOUR, PRIVATE, LINKED, REPLAYED])


def each(op, size, dtype, **options):
    """Every rank writes all elements; in "mean", ranks count by their rows."""

    @synk.parallel(
        grid=2, block=32, outputs={"r": synk.output(op, shape=(size,), dtype=dtype, **options)}
    )
    @cuda.jit
    def found(x, k, first, r):
        for j in range(cuda.grid(1), r.shape[0], cuda.gridsize(1)):
            r[j] = (x[0] + k) / (j + 3) + first

    return found


KERNELS = {
    (op, size): each(op, size, "float32" if op == "mean" else "float64")
    for op in ("sum", "mean", "max", "prod")
    for size in (SMALL, MIDDLE, LARGE)
}
KERNELS["user", SMALL] = each(lambda a, b: a + 2 * b, SMALL, "float64", identity=0)
KERNELS["user", MIDDLE] = each(lambda a, b: a + 2 * b, MIDDLE, "float64", identity=0)
KERNELS["sum", 1] = each("sum", 1, "float64")


@synk.parallel(grid=1, block=32, broadcast=("r",))
@cuda.jit
def keep(v, r, by):
    for j in range(cuda.grid(1), v.shape[0], cuda.gridsize(1)):
        v[j] = 0.5 * v[j] + r[j % r.shape[0]] * by


@synk.function(outputs={"rows": "gather", "count": "sum"})
def by_rows(r):
    return {"rows": 2 * r, "count": len(r)}


QUICK = [
    ("sum", SMALL),
    ("mean", SMALL),
    ("mean", MIDDLE),
    ("sum", LARGE),
    ("mean", LARGE),
    ("user", SMALL),
    ("sum", 1),
]
CASES = [*QUICK, *whole(*(case for case in KERNELS if case not in QUICK))]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_the_bits_of_single_calls(world, case):
    kernel, rng = KERNELS[case], np.random.default_rng(0)
    x = rng.random(11)

    if (
        world.transport == "nccl"
        and world.world_size > 1
        and case[1] == LARGE
        and case[0] != "user"
    ):
        with pytest.raises(
            synk.ArgumentError,
            match="r of found cannot be an .*: it is so large that the GPUs combine it",
        ):
            synk.sequence(lambda x, v: keep(v, kernel(x, 0.0, synk.OFFSET), 0.7))(
                x, synk.variable(np.arange(9.0))
            )
        return

    def calls(x, v, k):
        r = kernel(x, 0.1 * k, synk.OFFSET)
        keep(v, r, 0.7)
        return by_rows(r), r

    @synk.sequence
    def body(x, v):
        return calls(x, v, synk.STEP)

    mine, theirs = (synk.variable(np.arange(9.0)) for _ in range(2))
    rows, r = body(x, mine, times=3, every=1)
    told = [calls(x, theirs, step) for step in range(3)]
    for rank in range(world.world_size):
        assert_array_equal(mine.get_value(rank), theirs.get_value(rank))
    assert_array_equal(r, np.stack([one for _, one in told]))
    assert r.dtype == told[0][1].dtype
    assert_array_equal(rows["rows"], np.stack([one["rows"] for one, _ in told]))
    assert_array_equal(rows["count"], np.stack([one["count"] for one, _ in told]))
    last = body(x, mine, times=2)
    again = [calls(x, theirs, step) for step in range(2)][-1]
    assert_array_equal(last[1], again[1])


@pytest.mark.parametrize("delayed", [False, True])
def test_arrays_in_inner_sequences_and_turns(world, delayed):
    kernel = KERNELS["sum", SMALL]

    @synk.function
    def dawdle(step, rank):
        import time

        time.sleep(3e-4 * ((step * 7 + rank * 3) % 5))

    def late(step):
        if delayed:
            dawdle(step, synk.RANK)

    @synk.sequence
    def inner(x, v, outer):
        r = kernel(x, 0.5 * synk.STEP, synk.OFFSET)
        keep(v, r, 1.0)
        keep(v, outer, 0.25)
        late(synk.STEP)
        return r

    @synk.sequence
    def body(x, u, v):
        outer = kernel(x, 1.0 * synk.STEP, synk.OFFSET)
        late(synk.STEP)
        r = inner(x, u, outer, times=3)
        keep(v, r, 1e-3)
        keep(v, outer, 0.5)
        synk.swap(u, v)

    x = np.linspace(1, 2, 12)
    mine = [synk.variable(np.arange(9.0) + k) for k in range(2)]
    theirs = [synk.variable(np.arange(9.0) + k) for k in range(2)]
    body(x, *mine, times=5)
    u, v = theirs
    for step in range(5):
        outer = kernel(x, 1.0 * step, synk.OFFSET)
        for inside in range(3):
            r = kernel(x, 0.5 * inside, synk.OFFSET)
            keep(u, r, 1.0)
            keep(u, outer, 0.25)
        keep(v, r, 1e-3)
        keep(v, outer, 0.5)
        u, v = v, u
    for rank in range(world.world_size):
        for a, b in zip(mine, (u, v), strict=True):
            assert_array_equal(a.get_value(rank), b.get_value(rank))


def test_a_power_iteration(world):
    """The largest eigenvalue of the matrix of −u″, whose rows are divided: 2 + 2 cos(π / (n +
    1)).
    """
    n = 20
    matrix = 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)

    @synk.parallel(
        grid=1,
        block=1,
        broadcast=("v",),
        outputs={"s": synk.output("max", shape=(), dtype="float64")},
    )
    @cuda.jit
    def normalise(u, v, s):
        square = 0.0
        for j in range(v.shape[0]):
            square += v[j] * v[j]
        s[0] = square**0.5
        for j in range(v.shape[0]):
            u[j] = v[j] / s[0]

    u = synk.variable(np.ones(n) / n**0.5)

    @synk.parallel(outputs={"v": synk.output("sum", shape=(n,), dtype="float64")})
    @cuda.jit
    def product(rows, at, u, v):
        i = cuda.grid(1)
        if i < rows.shape[0]:
            for j in range(rows.shape[1]):
                v[at[i]] += rows[i, j] * u[j]

    @synk.sequence
    def power(rows, at, u):
        return normalise(u, product(rows, at, u))

    start = np.random.default_rng(0).random(n)
    synk.broadcast(u, start)
    norms = power(matrix, np.arange(n), u, times=2000, every=500)
    assert abs(norms[-1] - (2 + 2 * np.cos(np.pi / (n + 1)))) < 1e-9


def test_what_cannot_be_an_array(world):
    @synk.parallel(
        outputs={
            "listed": synk.output(None, shape=(3,), dtype="float64"),
            "rows": synk.output("gather", shape=(), dtype="float64"),
            "top": synk.output("argmax", shape=(3,), dtype="float64"),
            "flag": synk.output("max", shape=(), dtype="bool"),
            "total": synk.output("sum", shape=(3,), dtype="float64"),
        }
    )
    @cuda.jit
    def kinds(x, listed, rows, top, flag, total):
        i = cuda.grid(1)
        if i < x.shape[0]:
            listed[0] = top[i, 0] = flag[0] = rows[i] = x[i]
            cuda.atomic.add(total, 0, x[i])

    @synk.parallel(inout=("r",))
    @cuda.jit
    def change(r):
        i = cuda.grid(1)
        if i < r.shape[0]:
            r[i] += 1

    v, x = synk.variable(np.zeros(3)), np.arange(6.0)
    for name, match in (
        ("listed", "is a list of the ranks' values. Write to a variable"),
        ("rows", "has the rows of all ranks. Write them to a scattered variable"),
        ("top", "argmax finds values and rows"),
        ("flag", "is one bool. Return it"),
    ):
        body = synk.sequence(lambda x, name=name: keep(v, getattr(kinds(x), name), 1.0))
        with pytest.raises(
            synk.ArgumentError,
            match=rf"arrays\.py:\d+: output {name} of kinds cannot be an argument.*: .*{match}",
        ):
            body(x)
    with pytest.raises(
        synk.ArgumentError,
        match="the result of by_rows cannot be an argument of a later call: its shape is",
    ):
        synk.sequence(lambda x: keep(v, by_rows(x), 1.0))(x)
    with pytest.raises(
        synk.ArgumentError,
        match="total of kinds would be changed for all calls that take it; write to a",
    ):
        synk.sequence(lambda x: change(kinds(x).total))(x)
    with pytest.raises(
        synk.ArgumentError, match=r"the value of output total of kinds is not known"
    ):
        synk.sequence(lambda x: keep(v, 2 * kinds(x).total, 1.0))(x)
