"""`f.check(...)`: a call's rows on each rank under the checker."""

import math

import numpy as np
import pytest
from numba import cuda

import synknumba as synk
from synknumba import simt

X = np.arange(10.0)


@pytest.fixture(scope="module", autouse=True)
def world():
    with synk.fork(2, device="cpu") as world:
        yield world


@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")}, block=4)
@cuda.jit
def energy(x, beta, total):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(total, 0, math.exp(-beta * x[i] * x[i]))


@synk.parallel(inout=("y",))
@cuda.jit
def shifted(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = x[i + 1]


@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")}, block=4)
@cuda.jit
def racing(x, total):
    i = cuda.grid(1)
    if i < x.shape[0]:
        total[0] += x[i]


@synk.parallel(inout=("x",), block=4)
@cuda.jit
def normalised(x, total):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(total, 0, x[i])
    cuda.cg.this_grid().sync()
    if i < x.shape[0]:
        x[i] /= total[0]


def line_of(function, offset):
    return f"test_checked_calls.py:{function.py_func.__code__.co_firstlineno + offset}"


def test_a_kernel_without_errors():
    assert energy.check(X, 0.5) is None
    assert energy.check(X, beta=0.5, batch=[1, 5, 7]) is None
    assert energy[3, 2].check(synk.data(X), np.float32(0.5), world_size=3) is None


def test_a_barrier_of_the_grid_on_several_ranks():
    total = synk.variable(np.zeros(1))
    with pytest.warns(
        simt.KernelCheckWarning,
        match="on rank 0, 1: the barrier of the grid waits for the threads of one rank",
    ):
        normalised.check(X.copy(), total)
    normalised.check(X.copy(), total, world_size=1)
    normalised(X.copy(), total)  # a kernel whose ranks are independent is right


def test_an_index_past_a_ranks_rows():
    y = np.zeros(10)
    with pytest.raises(simt.BoundsError) as caught:
        shifted.check(X, y)
    message = str(caught.value)
    assert message.startswith("shifted: on rank 0, 1: ")
    assert "index [5] is outside of the array x (shape (5,), float64)" in message
    assert line_of(shifted, 5) in message
    assert len(caught.value.findings) == 1
    assert caught.value.findings[0].times == 2
    assert not y.any()  # the arguments are not changed


@synk.parallel(
    outputs={"y": synk.output("gather", shape=(), dtype="float64")}, broadcast=("table",)
)
@cuda.jit
def placed(x, table, first, shift, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[first + i] = table[i + shift]


@synk.parallel
@cuda.jit
def moved(u, shift, v):
    i = cuda.grid(1)
    if i < u.shape[0]:
        v[i] = u[i + shift]


def test_the_advice_on_rows_of_other_ranks():
    def advice(kernel, *args, **options):
        with pytest.raises(simt.BoundsError) as caught:
            kernel.check(*args, **options)
        return caught.value.findings[0].advice

    assert advice(shifted, X, np.zeros(10)) == (
        "x has the rank's rows, from 0: guard by x.shape[0] or synk.ROWS; "
        "for other ranks' rows pass "
        'broadcast=("x",), or for neighbours a variable with halo='
    )
    own = "y has the rank's rows, from 0: guard by y.shape[0] or synk.ROWS"
    assert advice(placed, X, X, synk.OFFSET, 0) == own
    u, v = synk.variable(X), synk.variable(X)
    synk.scatter([u, v])
    assert advice(moved[1, 32], u, 1, v).endswith(
        "; for neighbours synk.scatter the variable with halo="
    )
    beyond = "guard the access by a condition, or make the array larger"
    assert advice(shifted, X, np.zeros(10), world_size=1) == beyond
    assert advice(placed, X, X, 0, 8) == beyond
    assert advice(moved[1, 32], u, 100, v) == beyond


def test_a_race():
    with pytest.raises(simt.RaceError, match="on rank 0, 1: race at index .0. of.*total"):
        racing.check(X)
    with pytest.raises(simt.RaceError, match="on rank 0, 1, 2, 3: "):
        racing.check(X, world_size=4)


@synk.parallel(
    outputs={"seen": synk.output("gather", shape=(7,), dtype="float64")},
    broadcast=("table",),
    inout=("y",),
    block=8,
)
@cuda.jit
def everything(x, y, table, span, rank, size, offset, each, held, seen):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = x[i]
        seen[i, 0] = table[x.shape[0] - x.shape[0]]
        seen[i, 1] = span.start + i
        seen[i, 2] = rank
        seen[i, 3] = size
        seen[i, 4] = offset
        seen[i, 5] = each
        seen[i, 6] = held[0]
        if (
            seen[i, 1] != x[i]
            or offset != span.start
            or span.stop - span.start != x.shape[0]
            or each != 10 * rank
        ):
            raise ValueError("an argument is not that of the rank")
        if held[0] != rank + 1 or size != 2 or table.shape[0] != 3:
            raise ValueError("an argument is not that of the rank")


@pytest.mark.parametrize("batch", [None, 7, slice(3, 8)])
def test_arguments_are_those_of_each_rank(batch):
    held = synk.variable(np.zeros(1))
    for rank in (0, 1):
        held.set_value(np.array([rank + 1.0]), rank=rank)
    table = np.arange(3.0)
    args = (
        X,
        X.copy(),
        table,
        synk.arange(10),
        synk.RANK,
        synk.WORLD_SIZE,
        synk.OFFSET,
        synk.per_rank([0, 10]),
        held,
    )
    everything(*args, batch=batch)  # as the call sees them
    everything.check(*args, batch=batch)
    with pytest.raises(ValueError, match="not that of the rank") as caught:
        everything.check(*args[:-2], synk.per_rank([0, 11]), held, batch=batch)
    assert "on rank 1 of everything.check(...)" in caught.value.__notes__


def test_variables():
    total, rows = synk.variable(np.zeros(2)), synk.variable(np.arange(6.0))

    @synk.parallel(updates={"sums": (total, "sum")}, rows=("x",))
    def add(x, sums):
        i = cuda.grid(1)
        if i < x.shape[0]:
            cuda.atomic.add(sums, 1, x[i + 1])

    with pytest.raises(simt.BoundsError, match="on rank 0, 1: "):
        add.check(rows)
    with pytest.raises(simt.BoundsError, match=r"index \[2\] is outside of the array x"):
        add.check(rows, local_batch=2)


def test_what_is_refused(no_world):
    with pytest.raises(synk.ArgumentError, match=r"check\(\) is for kernels, and total is none"):
        synk.function(lambda x: x.sum(), outputs="sum", name="total").check(X)
    with pytest.raises(synk.WorldError, match=r"check\(\) needs world_size="):
        energy.check(X, 0.5)
    assert energy.check(X, 0.5, world_size=2) is None
    with pytest.raises(synk.ArgumentError, match="missing the argument beta"):
        energy.check(X, world_size=2)
    with pytest.raises(synk.ArgumentError, match="3 values for 2 ranks"):
        everything.check(
            X,
            X.copy(),
            X,
            synk.arange(10),
            0,
            0,
            0,
            synk.per_rank([1, 2, 3]),
            np.zeros(10),
            world_size=2,
        )
