"""Right programs that look like wrong ones: their sources and arguments do not show which they
are, so each runs, unwarned.
"""

import threading
from itertools import pairwise

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_array_equal

import synknumba as synk
from synknumba import optim


@pytest.fixture(scope="module", autouse=True)
def world():
    with synk.fork(2, device="cpu") as world:
        yield world


def total(shape=(), op="sum"):
    return {"total": synk.output(op, shape=shape, dtype="float64")}


# ---- random numbers


def test_a_data_loader_that_draws_while_a_sequence_is_recorded():
    """From the generators that scripts share: NumPy's, Python's, and one that the body reaches."""
    ended, drawn = threading.Event(), threading.Event()

    def load():
        while not ended.wait(0.001):
            np.random.random(3)  # noqa: NPY002
            drawn.set()

    def body_of(x, v):
        drawn.clear()
        drawn.wait()  # one draw at least, at any speed
        add(x, v)

    add = synk.parallel(cuda.jit(lambda x, v: None))
    loader = threading.Thread(target=load)
    loader.start()
    try:
        synk.sequence(body_of)(np.ones(4), synk.variable(np.zeros(4)))
        step = synk.train.step(
            lambda x, w: (float((x @ w).sum()), x.sum(0)), synk.vector(np.ones(3)), optim.sgd(0.1)
        )
        assert step(np.ones((4, 3))) == pytest.approx(3.0)
    finally:
        ended.set()
        loader.join()


# ---- rows


def test_rows_by_their_number_on_the_rank():
    """Of a scratch variable that has as many rows as the whole by chance. With synk.OFFSET,
    ranks would read others' rows.
    """

    @synk.parallel
    @cuda.jit
    def fill(u, scratch):
        i = cuda.grid(1)
        if i < u.shape[0]:
            scratch[i] = 2 * u[i]

    @synk.parallel
    @cuda.jit
    def take(u, scratch):
        i = cuda.grid(1)
        if i < u.shape[0]:
            u[i] += scratch[i]

    u, scratch = synk.scatter(synk.variable(np.arange(12.0))), synk.variable(np.zeros(12))
    fill(u, scratch)
    take(u, scratch)
    assert_array_equal(synk.gather(u, nd_up=0), 3 * np.arange(12.0))


def test_indices_of_the_rows_of_a_rank():
    """Each rank sorts its own rows: the indices in `order` count these, and not those of all
    ranks.
    """
    x = np.random.default_rng(0).random(20)
    order = np.concatenate([np.argsort(x[start:stop]) for start, stop in pairwise([0, 10, 20])])

    @synk.parallel(outputs={"out": synk.output("gather", shape=(), dtype="float64")})
    @cuda.jit
    def sort(x, order, out):
        i = cuda.grid(1)
        if i < order.shape[0]:
            out[i] = x[order[i]]

    assert_array_equal(sort(x, order), np.concatenate([np.sort(x[:10]), np.sort(x[10:])]))


def test_a_stride_that_is_an_argument():
    """The threads of a rank take row 0 and 1 only, of which a has as many."""

    @synk.parallel(grid=1, block=2)
    @cuda.jit
    def first(u, a, stride):
        for i in range(cuda.grid(1), u.shape[0], stride):
            u[i] += a[i]

    u = synk.scatter(synk.variable(np.arange(12.0)))
    first(u, np.full(4, 100.0), 6)
    assert_array_equal(synk.gather(u, nd_up=0) - np.arange(12.0), [100, 100, 0, 0, 0, 0] * 2)


def test_pairs_of_own_rows_beside_an_exchange():
    """Of four own rows the first and the third, each with the next: no halo."""

    @synk.parallel(grid=1, block=1)
    @cuda.jit
    def pairs(u, v, own, stride):
        for i in range(own.start + cuda.grid(1), own.stop, stride):
            v[i] = u[i] + u[i + 1]

    u, v = (synk.scatter(synk.variable(np.arange(8.0)), halo=1, periodic=True) for _ in range(2))
    synk.exchange(u, during=lambda: pairs(u, v, synk.OWN, 2))
    assert_array_equal(synk.gather(v, nd_up=0)[::2], [1, 5, 9, 13])


# ---- launches


def test_one_row_and_one_thread_on_each_rank():
    @synk.parallel(block=1, outputs=total())
    @cuda.jit
    def added(x, total):
        for k in range(x.shape[1]):
            total[0] += x[0, k]

    assert added(np.arange(20.0).reshape(2, 10)) == 190


def test_an_array_of_one_column():
    @synk.parallel(outputs={"out": synk.output("gather", like="x")})
    @cuda.jit
    def doubled(x, out):
        i, j = cuda.grid(2)
        if i < x.shape[0] and j < x.shape[1]:
            out[i, j] = 2 * x[i, j]

    x = np.arange(10.0).reshape(10, 1)
    assert_array_equal(doubled(x), 2 * x)


def test_a_square_array_by_elements():
    @synk.parallel(grid="elements")
    @cuda.jit
    def double(u):
        i, j = cuda.grid(2)
        if i < u.shape[0] and j < u.shape[1]:
            u[i, j] *= 2

    u = synk.variable(np.arange(36.0).reshape(6, 6))
    double(u)
    assert_array_equal(u.get_value(0), 2 * np.arange(36.0).reshape(6, 6))


# ---- lists


def test_as_many_edges_of_a_histogram_as_rows():
    x, edges = np.array([0.05, 0.15, 0.25, 0.35, 0.95]), [0.0, 0.2, 0.4, 0.6, 1.0]
    counts = synk.function(lambda x, edges: np.histogram(x, edges)[0], outputs="sum")(x, edges)
    assert_array_equal(counts, np.histogram(x, edges)[0])
