"""`synk.ROWS`, the number of rows that a rank has in a launch: a kernel with a length as its
argument runs unchanged.
"""

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_array_equal

import synknumba as synk
from tests.conformance import expected
from tests.conformance.conftest import FOUR, PRIVATE, REPLAYED, ROWS

pytestmark = pytest.mark.parametrize("row", [*ROWS, FOUR, PRIVATE, REPLAYED])


def saxpy_as_published(n, a, x, y):
    """From "An Easy Introduction to CUDA C and C++", NVIDIA, 2012."""
    i = cuda.grid(1)
    if i < n:
        y[i] = a * x[i] + y[i]


saxpy = synk.parallel(inout=("y",))(cuda.jit(saxpy_as_published))
saxpy_of_rows = synk.parallel(rows=("x", "y"), inout=("y",))(cuda.jit(saxpy_as_published))
saxpy_of_variables = synk.parallel(cuda.jit(saxpy_as_published))


@synk.function(outputs="gather")
def lengths(x, n):
    assert len(x) == n
    return np.full(len(x), n)


def test_a_kernel_with_a_length(world):
    for n in expected.lengths(world.world_size):
        x, y = np.arange(float(n)), np.ones(n)
        for _ in range(3):  # the last is replayed
            saxpy(synk.ROWS, 2.0, x, y)
        assert_array_equal(y, 6 * x + 1)


@pytest.mark.parametrize("batch", [None, 6, slice(3, 17), [5, 0, -1, 7], range(19, 2, -3)], ids=str)
@pytest.mark.parametrize("num_slices", [1, 2, 30])
def test_rows_are_those_of_a_slice(world, batch, num_slices):
    x, y = np.arange(20.0), np.ones(20)
    saxpy(synk.ROWS, 2.0, x, y, batch=batch, num_slices=num_slices)
    want, chosen = np.ones(20), expected.selection(batch)
    want[chosen] += 2 * x[chosen]
    assert_array_equal(y, want)
    shares = expected.shard_sizes(len(x[chosen]), world.world_size)
    sizes = [size for share in shares for size in expected.shard_sizes(share, num_slices)]
    assert_array_equal(
        lengths(x, synk.ROWS, batch=batch, num_slices=num_slices), np.repeat(sizes, sizes)
    )


def test_rows_are_those_of_a_shard(world):
    x, y = np.arange(23.0), np.ones(23)
    for shards in (1, 4, 7):
        saxpy(synk.ROWS, 2.0, x, y, shards=shards, num_slices=2)
    assert_array_equal(y, 6 * x + 1)
    assert_array_equal(lengths(x, synk.ROWS, shards=4), np.repeat([5, 6, 6, 6], [5, 6, 6, 6]))
    z = np.ones(23)
    saxpy.as_serial(synk.ROWS, 2.0, x, z)
    saxpy.submit(synk.ROWS, 2.0, x, z).result()
    assert_array_equal(z, 4 * x + 1)


def test_rows_of_variables(world):
    """Of sliceable ones the selected rows; of scattered ones what the rank holds; of replicas
    all.
    """
    whole = np.arange(4.0 * world.world_size + 1)
    x, y = (synk.scatter(synk.variable(value)) for value in (whole, np.ones_like(whole)))
    saxpy_of_rows(synk.ROWS, 2.0, x, y)
    saxpy_of_rows(synk.ROWS, 2.0, x, y, num_slices=3)
    saxpy_of_variables(synk.ROWS, 2.0, x, y)
    saxpy_of_rows(synk.ROWS, 1.0, x, y, local_batch=[0])
    first = np.isin(whole, np.cumsum([0, *synk.get_lengths(y)])[:-1])
    assert_array_equal(synk.gather(y, nd_up=0), 6 * whole + 1 + np.where(first, whole, 0))
    x, y = synk.variable(whole), synk.variable(np.ones_like(whole))
    saxpy_of_variables(synk.ROWS, 2.0, x, y)
    for rank in range(world.world_size):
        assert_array_equal(y.get_value(rank=rank), 2 * whole + 1)


def test_variables_that_get_other_lengths_where_they_are(world):
    """Plans of calls with ROWS do not outlive the lengths."""
    size = world.world_size
    x, y = synk.variable(np.ones(3)), synk.variable(np.zeros(3))
    for n in (size, 5 * size + 1, 2 * size):
        synk.scatter([x, y], [np.arange(float(n)), np.ones(n)])
        saxpy_of_variables(synk.ROWS, 2.0, x, y)
        assert_array_equal(synk.gather(y, nd_up=0), 2 * np.arange(n) + 1)


def test_sequences(world):
    whole = np.arange(4.0 * world.world_size + 1)
    x, y = (synk.scatter(synk.variable(value)) for value in (whole, np.ones_like(whole)))
    z = synk.data(np.ones_like(whole))

    @synk.sequence
    def body(x, y, z, data):
        saxpy_of_variables(synk.ROWS, 2.0, x, y)
        saxpy_of_rows(synk.ROWS, 1.0, x, y)
        saxpy(synk.ROWS, 1.0 + synk.STEP, data, z)

    for times in (1, 3):
        body(x, y, z, synk.data(whole), times=times)
    assert_array_equal(synk.gather(y, nd_up=0), 12 * whole + 1)
    assert_array_equal(z, 7 * whole + 1)


def test_plans_and_checks(world):
    x, y = np.arange(20.0), np.ones(20)
    assert "synk.ROWS" in str(saxpy.plan(synk.ROWS, 2.0, x, y))
    saxpy.check(synk.ROWS, 2.0, x, y)
    saxpy.check(synk.ROWS, 2.0, x, y, batch=slice(3, 9), world_size=3)
    for kernel in (saxpy_of_rows, saxpy_of_variables):
        v, w = (synk.scatter(synk.variable(np.zeros(4 * world.world_size + 1))) for _ in range(2))
        kernel.check(synk.ROWS, 2.0, v, w)


@pytest.mark.parametrize("periodic", [False, True])
def test_rows_of_a_halo_are_rows_of_the_array(world, periodic):
    """Local row i of 0 … ROWS − 1 is row OFFSET + i of the whole, modulo their number."""
    n = 3 * world.world_size + 1
    u, out = (synk.scatter(synk.variable(np.zeros(n)), halo=1, periodic=periodic) for _ in range(2))

    @synk.parallel
    @cuda.jit
    def number(u, first, rows):
        i = cuda.grid(1)
        if i < rows:
            u[i] = first + i

    @synk.parallel
    @cuda.jit
    def stencil(u, out, rows):
        i = cuda.grid(1)
        if 0 < i < rows - 1:
            out[i] = u[i - 1] + u[i + 1]

    number(u, synk.OFFSET, synk.ROWS)
    stencil(u, out, synk.ROWS)
    want, whole = np.zeros(n), np.arange(float(n))
    if periodic:  # as numbered: rows before the first are negative, and those behind the last go on
        want = 2 * whole
    else:
        want[1:-1] = 2 * whole[1:-1]
    assert_array_equal(synk.gather(out, nd_up=0), want)
    held, rows = synk.function(lambda u, rows: (len(u), rows), outputs=None)(u, synk.ROWS)
    assert held == rows == [shape[0] for shape in synk.get_shapes(u)]


def test_rows_of_functions_of_one_row(world):
    n = 4 * world.world_size + 1
    sizes = expected.shard_sizes(n, world.world_size)
    share = synk.vectorize(lambda x, n: x / n)
    x = np.arange(float(n))
    assert_array_equal(share(x, synk.ROWS), x / np.repeat(sizes, sizes))
    mean = synk.expectation(lambda x, n: x * n)
    assert mean(x, synk.ROWS).mean == pytest.approx((x * np.repeat(sizes, sizes)).mean())


def test_no_rows(world):
    table = synk.parallel(broadcast=("x", "y"), grid=1)(cuda.jit(lambda n, x, y: None))
    with pytest.raises(
        synk.ArgumentError, match=r"gets synk\.ROWS, .*no argument has rows.*Pass the number itself"
    ):
        table(synk.ROWS, np.ones(3), np.ones(3))
    halved, whole = (
        synk.scatter(synk.variable(np.zeros(9)), halo=1),
        synk.scatter(synk.variable(np.zeros(9))),
    )
    with pytest.raises(
        synk.ArgumentError,
        match=r"gets synk\.ROWS, but x has halo=1 and y has no halo.*scatter both alike",
    ):
        saxpy_of_variables(synk.ROWS, 2.0, halved, whole)
