"""Kernels that use an index past the end of an array on a rank are refused where the source shows it, and only there."""

import re

import numpy as np
import pytest
from numba import cuda

import synknumba as synk
from synknumba._call.guarded_rows import row_uses

pytestmark = pytest.mark.usefixtures("world")


@pytest.fixture(scope="module")
def world():
    with synk.fork(2, device="cpu") as world:
        yield world


@pytest.fixture(scope="module")
def u(world):
    return synk.scatter(synk.variable(np.zeros(1)), np.arange(12.0))  # 6 rows on each rank


def by_size(u, a):
    i = cuda.grid(1)
    if i < u.size:
        u[i] += a[i]


def by_shape(u, a):
    i = cuda.grid(1)
    if i < u.shape[0]:
        u[i] += 2 * a[i]


def by_length(u, a):
    n = len(u)
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < n:
        u[i] += a[i] if a[i] > 0 else 1.0


def leaves_early(u, a):
    i = cuda.threadIdx.x + cuda.blockDim.x * cuda.blockIdx.x
    if i >= u.size:
        return
    u[i] += a[i]


def in_a_loop(u, a):
    for i in range(cuda.grid(1), u.size, cuda.gridsize(1)):
        u[i] += a[i]


def of_one_block(u, a):
    for i in range(cuda.threadIdx.x, len(u), cuda.blockDim.x):
        u[i] += a[i]


def by_each_thread(u, a):
    s = 0.0
    for k in range(u.shape[0]):
        s += a[k]
    u[0] = s


PAST = [by_size, by_shape, by_length, leaves_early, in_a_loop, of_one_block, by_each_thread]


def compares_both(u, a):
    i = cuda.grid(1)
    if i < u.size and i < a.size:
        u[i] += a[i]


def compares_the_smaller(u, a):
    i = cuda.grid(1)
    if i < a.size:
        u[i] += a[i]


def takes_the_smaller(u, a):
    n = min(u.size, len(a))
    i = cuda.grid(1)
    if i < n:
        u[i] += a[i]


def compares_again(u, a):
    i = cuda.grid(1)
    if i < u.size:
        v = 0.0 if i >= 2 else a[0]
        u[i] += v + a[i]


def repeats(u, a):
    i = cuda.grid(1)
    if i < u.size:
        u[i] += a[i % len(a)]


def has_a_flag(u, a):
    i = cuda.grid(1)
    if i < u.size:
        u[i] += a[i] if u[0] < 0 else 0.0


def loops_to_the_end_it_knows(u, a):
    for i in range(u.size):
        if i == 2:
            break
        u[i] = a[i]


def compares_in_a_chain(u, a):
    i = cuda.grid(1)
    if i < u.size:
        u[i] = 1 if u[i] < -1 < a[i] else u[i]


def is_passed_on(u, a):
    i = cuda.grid(1)
    if i < u.size:
        u[i] += first(a) * a[i - i]


@cuda.jit(device=True)
def first(a):
    return a[0]


MAYBE = [
    compares_both,
    compares_the_smaller,
    takes_the_smaller,
    compares_again,
    repeats,
    has_a_flag,
    loops_to_the_end_it_knows,
    compares_in_a_chain,
    is_passed_on,
]


def define(function, **launch):
    return synk.parallel(**{"inout": ("a",), **launch})(cuda.jit(function)) if launch else synk.parallel(cuda.jit(function))


@pytest.mark.parametrize("function", PAST, ids=lambda one: one.__name__)
def test_refused(function, u):
    with pytest.raises(synk.ArgumentError, match="rank 0 has 6 rows of u and 2 rows of a") as caught:
        synk.parallel(cuda.jit(function))(u, np.ones(4))
    assert re.match(rf"{function.__name__} \({re.escape(__file__)}:\d+\) uses [ik] as an index of a, but", str(caught.value))
    synk.parallel(cuda.jit(function))(u, np.ones(12))


@pytest.mark.filterwarnings("ignore:.*uses i as an index of both:RuntimeWarning")
@pytest.mark.parametrize("function", MAYBE, ids=lambda one: one.__name__)
def test_allowed(function, u):
    assert not [one for one in row_uses(function).guarded if one.guard == "u"]
    synk.parallel(cuda.jit(function))(u, np.ones(4))


def test_the_advice_is_right(u):
    @synk.parallel
    @cuda.jit
    def advised(u, a):
        i = cuda.grid(1)
        if i < min(u.size, a.shape[0]):
            u[i] = a[i]

    advised(u, np.full(4, -1.0))
    np.testing.assert_array_equal(synk.gather(u) == -1, [[True, True, False, False, False, False]] * 2)
    synk.scatter(u, np.arange(12.0))


def test_whole_arrays_and_outputs():
    def looked_up(x, table, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = x[i] * table[i]

    lookup = synk.parallel(outputs={"out": synk.output("gather", shape=())}, broadcast=("table",))(cuda.jit(looked_up))
    with pytest.raises(synk.ArgumentError, match="5 rows of x and 3 rows of table"):
        lookup(np.ones(10), np.ones(3))
    np.testing.assert_array_equal(lookup(np.ones(10), np.arange(5.0)), [*range(5)] * 2)

    def added(x, total):
        i = cuda.grid(1)
        if i < len(x):
            cuda.atomic.add(total, i, x[i])

    total = synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})(cuda.jit(added))
    with pytest.raises(synk.ArgumentError, match="rank 0 has 5 rows of x and 1 row of total"):
        total(np.ones(10))


@pytest.mark.parametrize("launch", [{"grid": 1, "block": 2}, {"grid": lambda rows: 1, "block": 2}], ids=["number", "rule"])
@pytest.mark.filterwarnings("ignore:by_size .*uses i as an index of both:RuntimeWarning")
def test_launches_of_fewer_threads(launch, u):
    synk.parallel(**launch)(cuda.jit(by_size))(u, np.ones(4))  # index 0 and 1 only
    with pytest.raises(synk.ArgumentError, match="rank 0 has 6 rows of u"):
        synk.parallel(**launch)(cuda.jit(in_a_loop))(u, np.ones(4))


@pytest.mark.filterwarnings("ignore:.*uses i as an index of both:RuntimeWarning")
def test_rows_of_each_call(u):
    kernel = synk.parallel(cuda.jit(by_size))
    for count in (12, 14, 24):
        kernel(u, np.ones(count))
    with pytest.raises(synk.ArgumentError, match="rank 0 has 6 rows of u and 5 rows of a"):
        kernel(u, np.ones(11))
    kernel(u, np.ones(16), batch=12)
    with pytest.raises(synk.ArgumentError, match="rank 0 has 6 rows of u and 3 rows of a"):
        kernel(u, np.ones(12), num_slices=2)


def added(u, a, y):
    i = cuda.grid(1)
    if i < u.shape[0]:
        y[i] = u[i] + a[i]


ADD = {"outputs": {"y": synk.output("gather", shape=(), dtype="float64")}}


def test_rows_of_slices_and_of_variables(u):
    """Row i of an array in a call is not row i of a variable if the call selects rows, or cuts them in another way."""
    kernel, x = synk.parallel(**ADD)(cuda.jit(added)), np.arange(12.0)
    np.testing.assert_array_equal(kernel(x, u), x + np.concatenate(synk.gather(u)))
    for options in ({"num_slices": 2}, {"shards": 4}, {"batch": slice(6, 12)}):
        with pytest.warns(RuntimeWarning, match=r'uses i as an index of both: the call selects.*sliceable=\("a",\)'):
            kernel(x, u, **options)
    with pytest.warns(RuntimeWarning, match=r"have \(6, 6\) rows of the variable a and \(5, 6\) of u.*pass u with 12 rows"):
        kernel(x[:11], u)
    sliced = synk.parallel(**ADD, sliceable=("a",))(cuda.jit(added))
    values = np.concatenate(synk.gather(u))
    np.testing.assert_array_equal(sliced(x, u, num_slices=2), x + values)


def test_rows_of_the_whole():
    def offset_added(u, a, offset, y):
        i = cuda.grid(1)
        if i < u.shape[0]:
            y[i] = u[i] + a[offset + i]

    x, table = np.arange(12.0), 10 * np.arange(12.0)
    for whole, broadcast in ((table, ("a",)), (synk.variable(table), ())):
        kernel = synk.parallel(**ADD, broadcast=broadcast)(cuda.jit(added))
        with pytest.warns(
            RuntimeWarning, match=r"own rows of u, and all 12 of a; .*in a\[offset \+ i\] with offset=synk.OFFSET"
        ):
            kernel(x, whole)
        right = synk.parallel(**ADD, broadcast=broadcast)(cuda.jit(offset_added))
        np.testing.assert_array_equal(right(x, whole, synk.OFFSET), x + table)
    kernel(x[:10], synk.variable(table))  # tables of other lengths have their own meaning


def test_tables_that_are_divided(u):
    def looked_up(x, v, table):
        i = cuda.grid(1)
        if i < x.shape[0]:
            j = int(x[i])
            v[i] = table[j]

    x, v = (synk.scatter(synk.variable(np.zeros(1)), np.arange(8.0)) for _ in range(2))
    with pytest.warns(RuntimeWarning, match=r'looks up elements of table .*broadcast=\("table",\)'):
        synk.parallel(cuda.jit(looked_up))(x, v, 10 * np.arange(8.0))
    synk.parallel(broadcast=("table",))(cuda.jit(looked_up))(x, v, 10 * np.arange(8.0))
    np.testing.assert_array_equal(np.concatenate(synk.gather(v)), 10 * np.arange(8.0))


def test_rows_of_halos():
    halo = synk.scatter(synk.variable(np.zeros(1)), np.arange(12.0), halo=1)
    with pytest.warns(RuntimeWarning, match=r"row 0 of a is one of its halo.*OWN\.start"):
        synk.parallel(**ADD)(cuda.jit(added))(np.arange(12.0), halo)


def test_a_launch_with_fewer_threads_than_rows():
    """Two threads on each rank: the grid is that of the first array."""

    def first_rows(a, u):
        i = cuda.grid(1)
        if i < u.shape[0]:
            u[i] += a[i]

    a, u = (synk.scatter(synk.variable(np.zeros(1)), np.ones(n)) for n in (4, 12))
    synk.parallel(block=1)(cuda.jit(first_rows))(a, u)
    assert np.concatenate(synk.gather(u)).sum() == 16
