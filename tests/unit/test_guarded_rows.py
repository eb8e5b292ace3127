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
    assert not [one for one in row_uses(function).guarded if any(bound.name == "u" for bound in one.index.uppers)]
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


# ---- halos


def plain(u, f):
    i = cuda.grid(1)
    if i < u.shape[0]:
        u[i] += f[i]


def between(u, f, own):
    i = cuda.grid(1)
    if own.start <= i < own.stop:
        u[i] += f[i]


def in_own_rows(u, f, own):
    for i in range(own.start + cuda.grid(1), own.stop, cuda.gridsize(1)):
        u[i] += f[i]


def from_the_first(u, f, own):
    i = own.start + cuda.grid(1)
    if i < own.stop:
        x = 2 * f[i]
        u[i] += x


def left_early(u, f, own):
    i = cuda.grid(1)
    if i < own.start or i >= own.stop:
        return
    u[i] = u[i] + f[i]


BESIDE_HALOS = [between, in_own_rows, from_the_first, left_early]


def in_two_axes(u, f, own):
    j, i = cuda.grid(2)
    if own.start <= i < own.stop and 0 < j < u.shape[1]:
        u[i, j] += f[i, j]


def by_own_rows(u, f, own):
    i = cuda.grid(1)
    if own.start <= i < own.stop:
        u[i] += f[i - own.start]


def in_the_whole(u, f, own, first):
    i = cuda.grid(1)
    if own.start <= i < own.stop:
        u[i] += f[(first + i) % f.shape[0]]


def stencil(u, v, f):
    i = cuda.grid(1)
    if 0 < i < u.shape[0] - 1:
        v[i] = u[i - 1] + u[i] + u[i + 1] + f[i]


def second_difference(u, f):
    i = cuda.grid(1)
    if i < f.shape[0]:
        f[i] = u[i] - 2 * u[i + 1] + u[i + 2]


def with_halo(n=12, **options):
    return synk.scatter(synk.variable(np.zeros(1)), np.arange(float(n)), **{"halo": 1, **options})


def parallel(function, **options):
    return synk.parallel(**options)(cuda.jit(function))


def test_rows_of_halos():
    with pytest.warns(RuntimeWarning, match=r"row 0 of a is one of its halo.*index u by i - own\.start with own=synk\.OWN"):
        synk.parallel(**ADD)(cuda.jit(added))(np.arange(12.0), with_halo())


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("function", BESIDE_HALOS, ids=lambda one: one.__name__)
def test_arrays_beside_a_halo_are_indexed_by_own_rows(function, periodic):
    """By rows of the rank's array of the variable they would be those of the next rows, partly past the end."""
    kernel, f, rank = parallel(function), np.arange(12.0), 0 if periodic else 1
    says = rf"uses i as an index of f, but own has a rank's own rows.*: rank {rank} has 1 to 6 there, and 6 rows of f"
    for given in (f, synk.data(f)):
        with pytest.raises(synk.ArgumentError, match=rf"{says}.*Index f by i - own\.start"):
            kernel(with_halo(periodic=periodic), given, synk.OWN)
    sequence = synk.sequence(lambda u, f: kernel(u, f, synk.OWN))
    with pytest.raises(synk.ArgumentError, match=says):
        sequence(with_halo(periodic=periodic), f)
    whole = r"all 12 of f; index f by rows of the whole, as in f\[offset \+ i\] with offset=synk"
    for call in (lambda u, f: kernel(u, f, synk.OWN), sequence, parallel(plain)):
        with pytest.warns(RuntimeWarning, match=whole + r"\.OFFSET" + (", modulo 12" if periodic else "$")):
            call(with_halo(periodic=periodic), synk.variable(f))
    for right in (by_own_rows, in_the_whole):
        u, first = with_halo(periodic=periodic), (synk.OFFSET,) * (right is in_the_whole)
        parallel(right)(u, f if right is by_own_rows else synk.variable(f), synk.OWN, *first)
        np.testing.assert_array_equal(synk.gather(u, nd_up=0), 2 * np.arange(12.0))
    kernel(with_halo(periodic=periodic), with_halo(periodic=periodic), synk.OWN)
    kernel(with_halo(periodic=periodic), np.zeros(16 if periodic else 14), synk.OWN)  # as many rows as the ranks' arrays


def test_rows_of_halos_in_further_axes_and_stencils():
    rows = np.zeros((12, 3))
    kernel = parallel(in_two_axes, grid="elements")
    with pytest.raises(synk.ArgumentError, match="rank 1 has 1 to 6 there, and 6 rows of f"):
        kernel(synk.scatter(synk.variable(rows), halo=1), rows, synk.OWN)
    with pytest.warns(RuntimeWarning, match=r"all 12 of f; .*f\[offset \+ i\]"):
        kernel(synk.scatter(synk.variable(rows), halo=1), synk.variable(rows), synk.OWN)
    with pytest.warns(RuntimeWarning, match=r"row 0 of v is one of its halo.*index f by i - own\.start"):
        parallel(stencil)(with_halo(), with_halo(), np.zeros(12))
    f = np.zeros(12)
    parallel(second_difference, inout=("f",))(with_halo(periodic=True), f)
    np.testing.assert_array_equal(f, np.roll(np.arange(12.0), 1) - 2 * np.arange(12.0) + np.roll(np.arange(12.0), -1))
    with pytest.warns(RuntimeWarning, match="f has halo=2, and|u has halo=1 and f has halo=2; scatter both alike"):
        parallel(plain)(with_halo(), with_halo(halo=2))


# ---- two variables


def test_scattered_variables_of_other_lengths():
    """Row 0 of rank 1 is row 6 of one, and row 7 of the other."""
    u, w = with_halo(halo=0), with_halo(14, halo=0)
    kernel = parallel(plain)
    says = r"\(7, 7\) rows of the variable f and \(6, 6\) of u, so that these are other rows .*scatter both with as many"
    for call in (kernel, synk.sequence(lambda u, w: [kernel(u, w)])):
        with pytest.warns(RuntimeWarning, match=says):
            call(u, w)
    parallel(plain)(u, with_halo(halo=0))

    def faces(u, w):  # each difference beside its cell
        i = cuda.grid(1)
        if i < u.shape[0] and i + 1 < w.shape[0]:
            u[i] = w[i + 1] - w[i]

    parallel(faces)(u, w)
    np.testing.assert_array_equal(synk.gather(u, nd_up=0), np.ones(12))


# ---- conditions


def test_an_element_in_the_condition_that_guards_it():
    def where_positive(c, s):
        k = cuda.grid(1)
        if k < c.shape[0] and s[k] > 0:
            c[k] = s[k]

    kernel = parallel(where_positive)
    with pytest.raises(synk.ArgumentError, match="uses k as an index of s, .* rank 0 has 8 rows of c and 2 rows of s"):
        kernel(synk.variable(np.zeros(8)), np.ones(4))
    kernel(synk.variable(np.zeros(8)), synk.variable(np.ones(8)))

    def where_wanted(c, s, n):
        k = cuda.grid(1)
        if k < c.shape[0] and n > 0:
            c[k] = s[k]

    parallel(where_wanted)(synk.variable(np.zeros(8)), np.ones(16)[:4], 0)


# ---- launches


def first_to_all(p, x):
    i = cuda.grid(1)
    if i < x.shape[0]:
        x[i] = p[0]


def first_to_all_elements(p, x):
    j, i = cuda.grid(2)
    if i >= x.shape[0] or j >= x.shape[1]:
        return
    x[i, j] = p[0]


def to_each_in_a_loop(p, x):
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        x[i] = p[0]


@pytest.mark.parametrize("divided", [False, True])
def test_a_launch_has_threads_for_the_array_that_positions_are_compared_with(divided):
    p = synk.variable(np.array([1.0, 2.0, 3.0]))
    for function, shape, options in (
        (first_to_all, (1000,), {}),
        (first_to_all, (1000,), {"grid": lambda rows: -(-rows // 64), "block": 64}),
        (first_to_all, (1000,), {"grid": "elements"}),
        (first_to_all_elements, (100, 80), {"grid": "elements"}),
        (to_each_in_a_loop, (1000,), {}),
    ):
        x = synk.variable(np.zeros(shape))
        x = synk.scatter(x) if divided else x
        parallel(function, **options)(p, x)
        np.testing.assert_array_equal(np.concatenate(synk.gather(x)), np.ones((shape[0] * (1 if divided else 2), *shape[1:])))
        assert parallel(first_to_all).plan(p, x).ranks[1].launches[0][0] == (-(-x.shape[0] // 256), 1, 1)


def test_a_launch_by_rows_that_has_too_few_threads():
    """The grid is that of the call's rows, and the position is compared with the rows of a replica."""
    x = synk.variable(np.zeros(1000))
    with pytest.warns(
        RuntimeWarning, match=r"position along x with x\.shape\[0\], which is 1000 on rank 0, but has 256 threads"
    ):
        parallel(first_to_all)(np.ones(6), x)
    parallel(to_each_in_a_loop)(np.ones(6), x)

    def own_rows(x, table, y):
        i = cuda.grid(1)
        if i < table.shape[0]:
            y[i] = x[i] + table[i]

    made = parallel(own_rows, broadcast=("table",), outputs={"y": synk.output("gather", shape=(), dtype="float64")})
    made(np.ones(512), np.zeros(1000))  # 256 rows on each rank, and as many threads


def test_unknown_comparisons_change_no_launch():
    def several(p, x, n):
        i = cuda.grid(1)
        if i < x.shape[0]:
            x[i] = 1.0
        if i < n:
            p[i] = 2.0

    p, x = synk.variable(np.zeros(3)), synk.variable(np.zeros(5))
    parallel(several)(p, x, 3)
    assert parallel(several, block=1).plan(p, x, 3).ranks[0].launches[0][0] == (3, 1, 1)
    assert p.get_value().tolist() == [2.0] * 3
    assert x.get_value().tolist() == [1.0] * 5
