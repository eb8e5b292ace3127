"""`synknumba check --ranks 1,2,3`: wrong programs are found, with line and cause, and right ones
are not accused.
"""

import re
import runpy
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numba import cuda

import synknumba as synk
from synknumba import ArgumentError, WorldError
from synknumba._call.compared_ranks import Comparison, Differs, Store, compared
from synknumba._commands.compare_ranks import CALLS
from synknumba._ops.agreement import Bound, difference, greatest
from synknumba._variables.variable import state_of
from synknumba._world import machines
from synknumba.simt import KernelCheckError
from tests.environment import environment
from tests.quick import whole

HEAD = """
import numpy as np
from numba import cuda
import synknumba as synk

"""

# Programs that are right on one rank only, with a part of the cause that is named. Each finding is
# at the line marked "here".
WRONG = {
    "a length as an argument": (
        """
@synk.parallel(inout=("y",))
@cuda.jit
def saxpy(n, a, x, y):
    i = cuda.grid(1)
    if i < n:
        y[i] += a * x[i]

x, y = np.arange(1000.0), np.zeros(1000)
with synk.fork(2, device="cpu"):
    saxpy(1000, 2.0, x, y)  # here
""",
        "synk.ROWS",
    ),
    "a write into memory that is not mapped": (
        """
@synk.parallel(inout=("y",))
@cuda.jit
def increased(n, y):
    i = cuda.grid(1)
    if i < n:
        y[i + 10**9 * (n - y.shape[0])] += 1.0

with synk.fork(device="cpu"):
    increased(600, np.zeros(600))  # here
""",
        "synk.ROWS",
    ),
    "an index error": (
        """
@synk.function(outputs="sum")
def last(x, n):
    return x[n - 1]

with synk.fork(device="cpu"):
    last(np.zeros(100), 100)  # here
""",
        "synk.ROWS",
    ),
    "an output by the block of the rank": (
        """
@synk.parallel(block=32, outputs={"sums": synk.output("sum", shape=(9,), dtype="float64")})
@cuda.jit
def sums(x, n, sums):
    i = cuda.grid(1)
    if i < n and i < x.shape[0]:
        cuda.atomic.add(sums, cuda.blockIdx.x, x[i])

with synk.fork(device="cpu"):
    sums(np.ones(90), 60)  # here
""",
        "",
    ),
    "a length by closure": (
        """
def make(n):
    @synk.parallel(inout=("y",), block=32)
    @cuda.jit
    def increased(y):
        i = cuda.grid(1)
        if i < n:
            y[i] += 1.0
    return increased

increased = make(100)
y = synk.data(np.zeros(100))
with synk.fork(2, device="cpu"):
    for _ in range(2):
        increased(y)  # here
""",
        "synk.ROWS",
    ),
    "a number of blocks": (
        """
@synk.parallel(inout=("y",), grid=4, block=32)
@cuda.jit
def increased(y):
    i = cuda.grid(1)
    if i < y.shape[0]:
        y[i] += 1.0

with synk.fork(device="cpu"):
    y = synk.data(np.zeros(300))
    increased(y)  # here
""",
        "cuda.gridsize(1)",
    ),
    "random numbers by the rank's row": (
        """
@synk.parallel(inout=("y",))
@cuda.jit
def drawn(y, seed):
    i = cuda.grid(1)
    if i < y.shape[0]:
        y[i] = synk.random.uniform(seed, i, 0)

with synk.fork():
    y = np.zeros(100)
    drawn(y, 7)  # here
""",
        "synk.OFFSET",
    ),
    "a sum over halo rows": (
        """
@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def summed(u, total):
    i = cuda.grid(1)
    if i < u.shape[0]:
        cuda.atomic.add(total, 0, u[i])

with synk.fork():
    u = synk.variable(np.arange(60.0))
    synk.scatter(u, halo=1)
    summed[2, 64](u)  # here
""",
        "synk.OWN",
    ),
    "a forgotten exchange": (
        """
@synk.parallel
@cuda.jit
def smoothed(own, u, v):
    i = cuda.grid(1)
    if own.start <= i < own.stop and 0 < i < u.shape[0] - 1:
        v[i] = (u[i - 1] + u[i] + u[i + 1]) / 3

with synk.fork():
    u, v = synk.variable(np.arange(60.0) ** 2), synk.variable(np.zeros(60))
    synk.scatter([u, v], halo=1)
    smoothed[2, 64](synk.OWN, u, v)
    smoothed[2, 64](synk.OWN, v, u)  # here
""",
        "synk.exchange",
    ),
    "a gather at the global row": (
        """
@synk.parallel(outputs={"y": synk.output("gather", shape=(), dtype="float64")})
@cuda.jit
def doubled(x, first, y):
    i = cuda.grid(1)
    if i < x.shape[0] and first + i < y.shape[0]:
        y[first + i] = 2 * x[i]

with synk.fork():
    doubled(np.arange(1.0, 101.0), synk.OFFSET)  # here
""",
        "an index in the whole",
    ),
    "a mean of atomics": (
        """
@synk.parallel(outputs={"m": synk.output("mean", shape=(), dtype="float64")})
@cuda.jit
def mean(x, n, m):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(m, 0, x[i] / n)

with synk.fork():
    mean.submit(np.ones(64), 64.0).result()  # here
""",
        'op "mean"',
    ),
    "a mean of sums of unequal parts": (
        """
@synk.parallel(outputs={"m": synk.output("mean", shape=(), dtype="float64")})
@cuda.jit
def mean(x, m):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(m, 0, x[i])

with synk.fork():
    mean(np.arange(64.0))  # here
""",
        'atomics that add into an output of op "mean"',
    ),
    "a maximum of sums": (
        """
@synk.parallel(outputs={"most": synk.output("max", shape=(2,), dtype="int64")})
@cuda.jit
def most(x, most):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(most, i % 2, x[i])

with synk.fork():
    most(np.arange(64))  # here
""",
        'atomics that add into an output of op "max"',
    ),
    "a missing neighbour where one block covers the rows": (
        """
@synk.parallel(inout=("v",), grid=1, block=128)
@cuda.jit
def smoothed(u, table, v):
    i = cuda.grid(1)
    if 0 < i < u.shape[0] - 1:
        for j in range(u.shape[1]):
            v[i, j] = (u[i - 1, j] + u[i, j] + u[i + 1, j]) / 3

with synk.fork():
    u, v = synk.data(np.arange(240.0).reshape(60, 4) ** 2), synk.data(np.zeros((60, 4)))
    smoothed(u, synk.variable(np.zeros(1000)), v)  # here
""",
        "rows at the borders between ranks",
    ),
    "a stencil over divided rows": (
        """
@synk.parallel(inout=("v",))
@cuda.jit
def smoothed(u, v):
    i = cuda.grid(1)
    if 0 < i < u.shape[0] - 1:
        v[i] = (u[i - 1] + u[i] + u[i + 1]) / 3

with synk.fork():
    u, v = synk.data(np.arange(60.0) ** 2), synk.data(np.zeros(60))
    smoothed(u, v)  # here
""",
        "halo=",
    ),
    "a whole replica by the rank's row": (
        """
@synk.parallel
@cuda.jit
def increased(u, a):
    i = cuda.grid(1)
    if i < u.shape[0]:
        u[i] += a[i]

with synk.fork():
    u, a = synk.variable(np.zeros(12)), synk.variable(np.arange(12.0))
    synk.scatter(u)
    increased[1, 32](u, a)  # here
""",
        "an index in the whole",
    ),
    "a list without rows": (
        """
with synk.fork():
    synk.function(np.sum, outputs="sum")([1.0, 2.0])  # here
""",
        "a factor of the number of ranks",
    ),
    "halos from before an exchange": (
        """
@synk.parallel
@cuda.jit
def smoothed(own, u, v):
    i = cuda.grid(1)
    if own.start <= i < own.stop and 0 < i < u.shape[0] - 1:
        v[i] = (u[i - 1] + u[i] + u[i + 1]) / 3

with synk.fork():
    u, v = synk.variable(np.arange(60.0) ** 2), synk.variable(np.zeros(60))
    synk.scatter([u, v], halo=1)
    smoothed[2, 64](synk.OWN, u, v)
    synk.exchange(v, during=lambda: smoothed[2, 64](synk.OWN, v, u))  # here
""",
        "synk.exchange",
    ),
    "all pairs of divided rows": (
        """
@synk.parallel(outputs={"f": synk.output("gather", shape=(), dtype="float64")})
@cuda.jit
def forces(x, y, f):
    i = cuda.grid(1)
    if i < x.shape[0]:
        for j in range(y.shape[0]):
            f[i] += x[i] - y[j]

with synk.fork():
    x = np.arange(60.0)
    forces(x, x)  # here
""",
        "",
    ),
    "pairs of rows": (
        """
@synk.parallel(inout=("y",), block=32, grid=2)
@cuda.jit
def swapped(y):
    p = 2 * cuda.grid(1)
    if p + 1 < y.shape[0]:
        y[p], y[p + 1] = y[p + 1], y[p]

with synk.fork():
    y = synk.data(np.arange(63.0))
    swapped(y)  # here
""",
        "",
    ),
    "a length by a constant": (
        """
N = 100

@synk.parallel(inout=("y",), block=32)
@cuda.jit
def increased(y):
    i = cuda.grid(1)
    if i < N:
        y[i] += 1.0

with synk.fork(device="cpu"):
    y = synk.data(np.zeros(100))
    increased(y)  # here
""",
        "synk.ROWS",
    ),
    "a table by the row of the whole": (
        """
@synk.parallel(outputs={"y": synk.output("gather", shape=(), dtype="float64")})
@cuda.jit
def looked_up(k, table, y):
    i = cuda.grid(1)
    if i < k.shape[0] and k[i] < table.shape[0]:
        y[i] = table[k[i]]

with synk.fork():
    looked_up(np.arange(60)[::-1].copy(), np.arange(60.0))  # here
""",
        "",
    ),
    "an array that every rank needs whole": (
        """
@synk.function
def scaled(v, rates):
    v *= rates

with synk.fork():
    scaled(synk.variable(np.ones(6)), np.arange(6.0))  # here
""",
        "broadcast= names it",
    ),
    "halo rows beside divided rows": (
        """
@synk.parallel(inout=("y",))
@cuda.jit
def added(u, y):
    i = cuda.grid(1)
    if i < y.shape[0]:
        y[i] += u[i]

with synk.fork():
    u, y = synk.variable(np.arange(60.0)), synk.data(np.zeros(60))
    synk.scatter(u, halo=1)
    added(u, y)  # here
""",
        "",
    ),
}

QUICK = [
    "a length as an argument",
    "a write into memory that is not mapped",
    "a forgotten exchange",
    "a mean of atomics",
    "a list without rows",
]

RIGHT = """
@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="f4"), "y": synk.output("gather", shape=(), dtype="f4")})
@cuda.jit
def scaled(x, a, total, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = a * x[i]
        cuda.atomic.add(total, 0, y[i])

@synk.parallel(grid=4, block=32, outputs={"low": synk.output("min", shape=(4,), dtype="f4")})
@cuda.jit
def lowest(x, low):
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        cuda.atomic.min(low, cuda.blockIdx.x, x[i])

@synk.function(outputs=None)
def sizes(x):
    return len(x)

@synk.function(outputs="sum")
def of_rank(x, rank):
    return rank * x.sum()

@synk.function(outputs="sum")
def drawn(x):
    return np.random.default_rng(synk.rank()).random(len(x)).sum()

@synk.parallel
@cuda.jit
def smoothed(own, u, v):
    i = cuda.grid(1)
    if own.start <= i < own.stop and 0 < i < u.shape[0] - 1:
        v[i] = (u[i - 1] + u[i] + u[i + 1]) / 3

@synk.sequence
def steps(u, v):
    synk.exchange(u)
    smoothed(synk.OWN, u, v)
    synk.exchange(v)
    smoothed(synk.OWN, v, u)

@synk.function(outputs=None)
def set_on(rank, v):
    v[...] = rank == 0

@synk.vectorize
def doubled(x):
    return 2 * x

with synk.fork() as world:
    x = np.random.default_rng(0).normal(size=1001).astype("float32")
    a = 1.0
    while a < 10:
        a += 1.0 + abs(scaled(x, a).total) / 1000
    lowest(x).min(), lowest(x[:100])
    sizes(x), of_rank(x, synk.RANK), doubled(x), doubled.submit(x).result()
    of_rank(x, world.world_size), drawn(x)
    u, v = synk.variable(np.arange(60.0)), synk.variable(np.zeros(60))
    synk.scatter([u, v], halo=1)
    steps(u, v, times=3)
    partial, replica = synk.variable(0.0), synk.variable(np.arange(3.0))
    set_on(synk.RANK, partial)
    synk.all_reduce(partial, "sum")
    synk.gather(replica), synk.gather(u), synk.all_reduce(replica, "max")
    synk.broadcast(replica, np.ones(3)), replica.set_value(np.zeros(3))
    synk.all_reduce(replica, "mean"), synk.all_reduce(replica, op="sum")
    if world.world_size == 1:
        doubled(x)
    for _ in range(world.world_size):
        doubled(x)
"""  # noqa: E501


def run(path, ranks):
    """Runs a program in this process on each number of ranks, as the command does in processes;
    returns the last summary.
    """
    store = Store(path.parent)
    try:
        for size in ranks:
            machines.ranks_compared[:] = [(size, "cpu")]
            comparison = Comparison(
                store, (ranks[0], size), "first" if size == ranks[0] else "compare"
            )
            with compared(comparison, CALLS):
                runpy.run_path(str(path), run_name="__main__")
    except Differs:
        pass
    finally:
        machines.ranks_compared.clear()
    return comparison.summary


@pytest.mark.filterwarnings("ignore:.*pass synk.ROWS:RuntimeWarning")  # which names the same fault
@pytest.mark.parametrize("name", [*QUICK, *whole(*(name for name in WRONG if name not in QUICK))])
def test_a_wrong_program_is_found(name, tmp_path):
    text, cause = WRONG[name]
    path = tmp_path / "script.py"
    path.write_text(HEAD + text)
    found = run(path, (1, 3)).finding
    line = next(
        number for number, row in enumerate((HEAD + text).splitlines(), 1) if "# here" in row
    )
    assert re.match(rf"\w+, called at {path}:{line}\n", found), found
    assert cause in found.partition("usual cause: ")[2], found
    assert "Traceback" not in found
    assert "crash" not in found


def test_a_right_program_is_not_accused(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(HEAD + RIGHT)
    summary = run(path, (1, 3, 2))
    assert not summary.finding
    assert (
        summary.skipped == 7
        # of_rank, twice, drawn, set_on, the sum of different replicas, that of equal ones, and a
        # last call
    )
    assert "of_rank" in summary.reason
    assert summary.counted == summary.calls.total() - 7


@pytest.mark.parametrize("op", ["sum", "prod"])
@pytest.mark.parametrize("name", ["reduce", "all_reduce", "reduce_scatter"])
def test_a_sum_of_replicas_is_left_out(name, op, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(
        f"{HEAD}v = synk.variable(np.ones(6))\nwith synk.fork():\n    synk.{name}(v, {op!r})\n"
    )
    summary = run(path, (1, 3))
    assert (summary.finding, summary.counted, summary.skipped) == ("", 0, 1)
    assert f"the variable is the same on all ranks, so its {op}" in summary.reason


@pytest.mark.whole
def test_the_command(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(HEAD + WRONG["a mean of atomics"][0])
    command = [sys.executable, "-m", "synknumba", "check", "--ranks", "1,2", str(path)]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("synknumba check: 1 rank and 2 ranks differ: mean, called at ")
    assert "the result: 1.0 on 1 rank, 0.5 on 2 ranks\n" in done.stderr


@synk.parallel(inout=("y",))
@cuda.jit
def saxpy(n, a, x, y):
    i = cuda.grid(1)
    if i < n:
        y[i] += a * x[i]


@pytest.mark.filterwarnings("ignore:.*pass synk.ROWS:RuntimeWarning")
def test_a_call_is_compared():
    x, y = np.arange(100.0), synk.data(np.ones(100))
    saxpy.check(synk.ROWS, 2.0, x=x, y=y, ranks=(1, 2, 3))
    with pytest.raises(
        KernelCheckError,
        match=r"saxpy: 1 rank and 3 ranks differ: y: (?s:.*)usual cause: .*synk.ROWS",
    ):
        saxpy.check(100, 2.0, x, y, ranks=[1, 3])
    np.testing.assert_array_equal(y, np.ones(100))


def test_arguments_and_variables_are_what_they_were():
    total = synk.variable(0.0)

    @synk.parallel(inout=("x",), updates={"total": (total, "sum")}, block=64, grid=1)
    @cuda.jit
    def added(own, u, v, x, total):
        i = cuda.grid(1)
        if own.start <= i < own.stop:
            u[i] += 1
        if i < x.shape[0]:
            x[i] += 1
            cuda.atomic.add(total, 0, x[i])
        if i < v.shape[0]:
            v[i] += own.stop - own.start  # which depends on the number of ranks

    with synk.fork(2, device="cpu"):
        u, v = synk.variable(np.arange(60.0)), synk.variable(np.arange(4.0))
        synk.scatter(u, halo=1)
        synk.broadcast(v)
    x = np.arange(60.0)

    def values():
        held = [state_of(variable).fetch([0, 1], own=False) for variable in (u, v)]
        return [held, float(total), x.copy()]

    before = values()
    with pytest.raises(KernelCheckError, match="2 ranks and 3 ranks differ: v: 4 of 4 rows differ"):
        added.check(synk.OWN, u, v, x, ranks=(2, 3))
    np.testing.assert_equal(values(), before)


def test_refusals_of_a_comparison():
    y = np.zeros(9)
    for ranks in ((1,), (1, 1), (0, 2), 3, (1, True), ("1", "2")):
        with pytest.raises(ArgumentError, match="two or more different numbers of ranks"):
            saxpy.check(synk.ROWS, 2.0, y, y.copy(), ranks=ranks)
    with pytest.raises(
        ArgumentError, match="cannot compare saxpy, .*: a has a value for each rank"
    ):
        saxpy.check(synk.ROWS, synk.RANK, y, y.copy(), ranks=(1, 2))
    with pytest.raises(ArgumentError, match="world_size= for one number of ranks"):
        saxpy.check(synk.ROWS, 2.0, y, y.copy(), ranks=(1, 2), world_size=2)
    drawn = synk.function(lambda x: x.sum() * np.random.default_rng().random(), outputs="sum")
    with pytest.raises(
        ArgumentError, match="cannot compare the result of .*: seed its random numbers"
    ):
        drawn.check(y + 1, ranks=(1, 2))
    with synk.fork(1, device="cpu"), pytest.raises(WorldError, match="call it before fork"):
        saxpy.check(synk.ROWS, 2.0, y, y.copy(), ranks=(1, 2))


TESTS = """
import numpy as np
import synknumba as synk

def test_sizes(synk_ranks):
    with synk.fork(device="cpu") as world:
        assert world.world_size == synk_ranks

def test_without():
    pass
"""


def test_the_plugin(tmp_path):
    path = tmp_path / "test_program.py"
    path.write_text(TESTS)
    options = ["-p", "synknumba.pytest", "--synknumba-ranks", "1,2", "-p", "no:cacheprovider", "-q"]
    command = [sys.executable, "-m", "pytest", *options, str(path)]
    done = subprocess.run(
        command,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=tmp_path,
    )
    assert "3 passed" in done.stdout


floats = arrays(np.float64, st.integers(1, 50), elements=st.floats(-1e6, 1e6))


@given(floats, st.randoms())
def test_another_order_of_a_sum_agrees(values, random):
    order = list(range(len(values)))
    random.shuffle(order)
    sums = [np.asarray(sum(map(float, one))) for one in (values, values[order])]
    bound = Bound(elements=len(values), magnitude=greatest(values))
    assert difference(*sums, bound, is_result=True) is None


def test_terms_of_unknown_magnitude():
    """The standard error of the tail in docs/expectation.md, drawn by index, on 1 rank and on 3."""
    errors = np.asarray(0.0002869034861620205), np.asarray(0.0002869034861653249)
    assert difference(*errors, Bound(elements=10_000), is_result=True) is None
    assert difference(*errors, Bound(elements=100), is_result=True) is not None


@given(floats, st.data())
def test_a_row_that_is_counted_twice_differs(values, data):
    row = data.draw(st.integers(0, len(values) - 1))
    values[row] = max(1.0, greatest(values))
    twice = values.copy()
    twice[row] *= 2
    found = difference(values, twice, Bound(elements=len(values), magnitude=greatest(values)))
    assert found is not None
    assert found.rows == (row,)


def test_values_that_are_no_numbers():
    special = np.array([np.nan, np.inf, -np.inf, 0.0])
    assert difference(special, special.copy(), Bound()) is None
    assert difference(special, np.array([np.nan, np.inf, np.inf, 0.0]), Bound()).rows == (2,)
    assert difference(np.array([1, 2]), np.array([1, 3]), Bound(magnitude=1e9)).values == (2, 3)
    assert (
        difference(np.float64([1.0]), np.float64([1.0 + 2e-16 * 2]), Bound(exact=True)) is not None
    )
