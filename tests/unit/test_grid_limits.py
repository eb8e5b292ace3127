"""What kernels compare their positions with: it sizes launches, and shows the number of all rows
where a rank's is meant.
"""

import warnings

import numpy as np
import pytest
from numba import cuda

import synknumba as synk
from synknumba import simt
from synknumba._source.grid_limits import Limit, Limits, grid_limits


@pytest.fixture(scope="module", autouse=True)
def world():
    with synk.fork(2, device="cpu") as world:
        yield world


def parallel(function, **options):
    return synk.parallel(**options)(cuda.jit(function))


# ---- the source


def by_shape(x, n):
    i = cuda.grid(1)
    if i < x.shape[0]:
        x[i] = n


def by_size_in_a_chain(x, n):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if 0 < i <= x.size - 1 and x[i] > n:
        x[i] = n


def by_length_early(x, n):
    rows = len(x)
    i = cuda.threadIdx.x + cuda.blockDim.x * cuda.blockIdx.x
    if rows - 1 < i:
        return
    x[i] = n


OF_X = Limits((), (Limit(0, "x", 0),))


def by_two_lengths(x, n):
    j, i = cuda.grid(2)
    rows, columns = x.shape[0], x.shape[1]
    if i >= rows or j >= columns:
        return
    x[i, j] = n


def by_a_number(x, n):
    i = cuda.grid(1)
    if i < n:
        x[i] = 1


def by_a_number_less_one(x, n):
    last = n - 1
    i = cuda.grid(1)
    if last > i > 0:
        x[i] = 1


def by_both(x, n):
    i = cuda.grid(1)
    if i < x.shape[0]:
        x[i] = 1
    if i < n:
        x[i] = 2


def by_either(x, n):
    i = cuda.grid(1)
    if i < x.shape[0] or i < n:
        x[i] = 1


def somewhere_only(x, n):
    i = cuda.grid(1)
    if i < x.shape[0]:
        x[i] = n
    x[i + n] = n


def otherwise(x, n):
    i = cuda.grid(1)
    if i < n:
        return
    x[i] = 1


def by_a_stride(x, n):
    for i in range(cuda.grid(1), x.shape[0], n):
        x[i] = 1


def while_below(x, n):
    i = cuda.grid(1)
    while i < n:
        x[i] = 1
        i += cuda.gridsize(1)


def in_the_whole(x, n, first=0):
    i = first + cuda.grid(1)
    if i < n:
        x[i - first] = 1


def of_a_block(x, n):
    i = cuda.threadIdx.x
    if i < n:
        x[i] = 1


def rebound(x, n):
    n = n // 2
    i = cuda.grid(1)
    if i < n:
        x[i] = 1


SOURCES = {
    by_shape: OF_X,
    by_size_in_a_chain: OF_X,
    by_length_early: OF_X,
    by_two_lengths: Limits((), (Limit(1, "x", 0), Limit(0, "x", 1))),
    by_a_number: Limits((Limit(0, "n"),), ()),
    by_a_number_less_one: Limits((Limit(0, "n"),), ()),
    by_both: Limits((Limit(0, "n"),), ()),
    **dict.fromkeys(
        (
            by_either,
            somewhere_only,
            otherwise,
            by_a_stride,
            while_below,
            in_the_whole,
            of_a_block,
            rebound,
        ),
        Limits(),
    ),
}


@pytest.mark.parametrize("function", SOURCES, ids=lambda one: one.__name__)
def test_limits(function):
    found = grid_limits(function)
    assert {*found.numbers} == {*SOURCES[function].numbers}
    assert {*found.lengths} == {*SOURCES[function].lengths}


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
        for found in [synk.gather(x)] if divided else [x.get_value(rank=rank) for rank in range(2)]:
            np.testing.assert_array_equal(found, np.ones(shape))
        assert parallel(first_to_all).plan(p, x).ranks[1].launches[0][0] == (
            -(-x.shape[0] // 256),
            1,
            1,
        )


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


# ---- checks: elements that a launch leaves out


def doubled(x, out):
    i, j = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        out[i, j] = 2 * x[i, j]


OUT = {"outputs": {"out": synk.output("gather", like="x")}}


def test_elements_that_no_thread_is_for():
    says = (
        r"along y is compared with x\.shape\[1\], which is 40, but the launch has 1 thread "
        r"there.*\n.*j, i = cuda\.grid\(2\)"
    )
    with pytest.warns(simt.KernelCheckWarning, match=says):
        parallel(doubled, **OUT).check(np.ones((10, 40)))
    with pytest.warns(simt.KernelCheckWarning, match=says.replace("1 thread", "8 threads")):
        parallel(doubled, grid="elements", **OUT).check(np.ones((10, 40)))
    with pytest.warns(
        simt.KernelCheckWarning,
        match=r"along x .*x\.shape\[0\], which is 1000, but the launch has 256 threads",
    ):
        parallel(first_to_all).check(np.ones(6), synk.variable(np.zeros(1000)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel(doubled, **OUT).check(np.ones((10, 1)))
        parallel(doubled, grid="elements", **OUT).check(np.ones((10, 5)))
        parallel(doubled, grid=lambda rows: (rows, 2), **OUT).check(np.ones((10, 3)), batch=4)
        parallel(to_each_in_a_loop).check(np.ones(6), synk.variable(np.zeros(1000)))


# ---- the number of all rows


WARNING = (
    r"compares a position in the grid with n, which is 12, the number of all rows, and a "
    r"rank has at most 6.*synk\.ROWS"
)


def of_elements(x, n):
    j, i = cuda.grid(2)
    if i < n and j < x.shape[1]:
        x[i, j] = 1


def of_columns(x, rows, n):
    j, i = cuda.grid(2)
    if i < rows and j < n:
        x[i, j] += 1


@pytest.mark.parametrize(
    "function", [by_a_number, by_a_number_less_one], ids=lambda one: one.__name__
)
def test_the_number_of_all_rows(function):
    kernel, x = parallel(function, inout=("x",)), np.zeros(12)
    with pytest.warns(RuntimeWarning, match=rf"^{function.__name__} {WARNING}") as caught:
        kernel(x, 12)
    assert [one.filename for one in caught] == [__file__]
    held, of_variables = synk.scatter(synk.variable(np.zeros(12))), parallel(function)
    for call in (lambda v: of_variables(v, 12), synk.sequence(lambda v: of_variables(v, 12))):
        with pytest.warns(RuntimeWarning, match=WARNING):
            call(held)
    with pytest.warns(RuntimeWarning, match=WARNING.replace("6", "2")):
        kernel(x, 12, num_slices=3)
    rows = np.zeros((12, 5))
    with pytest.warns(RuntimeWarning, match=WARNING):
        parallel(of_elements, grid="elements", inout=("x",))(rows, 12)


def test_what_is_no_number_of_all_rows():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel, x = parallel(by_a_number, inout=("x",)), np.zeros(12)
        kernel(x, synk.ROWS)
        kernel(x, 6)
        kernel(x, 5)
        kernel.as_serial(x, 12)
        kernel(np.zeros(24), 12)
        kernel(np.zeros(24), 12, batch=14)
        parallel(by_a_number)(synk.variable(np.zeros(12)), 12)
        for stride in (by_a_stride, of_a_block):
            parallel(stride, inout=("x",), grid=1, block=2)(x, 12)
        square = np.zeros((12, 12))
        parallel(of_columns, grid="elements", inout=("x",))(square, synk.ROWS, 12)
        tiles = {"grid": lambda rows: (1, -(-rows // 8)), "block": (16, 8)}
        parallel(of_columns, inout=("x",), **tiles)(square, synk.ROWS, 12)
        np.testing.assert_array_equal(square, np.full((12, 12), 2.0))


def test_one_rank():
    synk.close()
    with synk.fork(1, device="cpu"), warnings.catch_warnings():
        warnings.simplefilter("error")
        x = np.zeros(12)
        parallel(by_a_number, inout=("x",))(x, 12)
        np.testing.assert_array_equal(x, np.ones(12))
