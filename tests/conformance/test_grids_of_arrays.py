"""Grids that follow from arrays and variables: a thread for each row or element that a rank
holds.
"""

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_array_equal

import synknumba as synk
from synknumba import simt
from tests.conformance import expected
from tests.conformance.conftest import REPLAYED, ROWS


@pytest.fixture(params=[*ROWS, REPLAYED])
def row(request):
    return request.param


@synk.parallel
@cuda.jit
def add_rows(v, k):
    i = cuda.grid(1)
    if i < v.shape[0]:
        v[i] += k


@synk.parallel(grid="elements")
@cuda.jit
def add_1d(v, k):
    i = cuda.grid(1)
    if i < v.shape[0]:
        v[i] += k + 10 * i


@synk.parallel(grid="elements")
@cuda.jit
def add_2d(v, k):
    j, i = cuda.grid(2)
    if i < v.shape[0] and j < v.shape[1]:
        v[i, j] += k + 10 * i + j


@synk.parallel(grid="elements")
@cuda.jit
def add_3d(v, k):
    j, i, h = cuda.grid(3)
    if h < v.shape[0] and i < v.shape[1] and j < v.shape[2]:
        v[h, i, j] += k + 10 * h + i - j


@synk.parallel(grid="elements", inout=("x",))
@cuda.jit
def scale_2d(x, k):
    j, i = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        x[i, j] *= k


@synk.parallel(outputs={"size": synk.output(None, shape=(6,), dtype="int64")}, grid="elements")
@cuda.jit
def size_of(v, size):
    if cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0 and cuda.threadIdx.z == 0:
        size[0] = cuda.gridDim.x
        size[1] = cuda.gridDim.y
        size[2] = cuda.gridDim.z
        size[3] = cuda.blockDim.x
        size[4] = cuda.blockDim.y
        size[5] = cuda.blockDim.z


def parts_of(variable, world):
    return [variable.get_value(rank=rank) for rank in range(world.world_size)]


@pytest.mark.parametrize("n", [1, 2, 7, 600])
def test_a_thread_for_each_row_that_a_rank_holds(world, n):
    """Also with fewer rows than ranks; again with other numbers, which is replayed, and other
    rows.
    """
    start = np.arange(float(n))
    v = synk.scatter(synk.variable(start))
    for k in (1, 2, 3):
        add_rows(v, k)
    assert_array_equal(synk.gather(v, nd_up=0), start + 6)
    v.set_value(np.zeros(n + 300), rank=world.world_size - 1)
    add_rows(v, 5)
    assert_array_equal(v.get_value(rank=world.world_size - 1), np.full(n + 300, 5))


def test_a_thread_for_each_row_of_a_replica(world):
    v = synk.variable(np.zeros(1000))
    add_rows(v, 2)
    for part in parts_of(v, world):
        assert_array_equal(part, np.full(1000, 2))
    add_rows.as_serial(v, 1)
    assert_array_equal(v.get_value(rank=0), np.full(1000, 3))


@pytest.mark.parametrize(
    "shape", [(1,), (5,), (1000,), (7, 3), (1, 1), (40, 70), (3, 4, 5), (9, 2, 33)]
)
def test_a_thread_for_each_element(world, shape):
    kernel = (add_1d, add_2d, add_3d)[len(shape) - 1]
    start = expected.values(int(np.prod(shape))).reshape(shape)
    scattered, replica = synk.scatter(synk.variable(start)), synk.variable(start)
    wholes = [part.copy() for part in parts_of(scattered, world)]
    for k in (1, 2, 3):
        kernel(scattered, k)
        kernel(replica, k)
    assert len(wholes) == world.world_size
    for before, part in zip(wholes, parts_of(scattered, world), strict=True):
        assert_array_equal(part, added(before))
    for part in parts_of(replica, world):
        assert_array_equal(part, added(start))


def added(array):
    """What the kernels above leave after calls with k = 1, 2, 3."""
    out, index = array.copy(), np.indices(array.shape)
    for k in (1, 2, 3):
        out += (
            k
            + 10 * index[0]
            + (index[1] if array.ndim > 1 else 0)
            - (index[2] if array.ndim > 2 else 0)
        )
    return out


@pytest.mark.parametrize(
    "options",
    [{}, {"num_slices": 3}, {"shards": 4}, {"batch": slice(1, None, 2)}, {"batch": [5, 0, 3]}],
)
def test_the_elements_of_sharded_arrays(world, options):
    for n in (1, 6, 23):
        batch = options.get("batch", slice(None))
        if isinstance(batch, list) and n < 6:
            continue  # no such rows
        if n == 1 and batch != slice(None):
            continue  # a batch without rows is refused
        x = expected.values(n * 40).reshape(n, 40)
        whole = x.copy()
        whole[batch] *= 3
        for data in (synk.data(x), x.copy()):
            scale_2d(data, 3.0, **options)
            assert_array_equal(np.asarray(data), whole)


def test_the_elements_of_sliceable_variables(world):
    @synk.parallel(grid="elements", rows=("v",), inout=("v",))
    @cuda.jit
    def scale(v, k):
        j, i = cuda.grid(2)
        if i < v.shape[0] and j < v.shape[1]:
            v[i, j] *= k

    start = expected.values(11 * 35).reshape(11, 35)
    v = synk.scatter(synk.variable(start))
    for num_slices in (1, 2):
        scale(v, 2.0, num_slices=num_slices)
    assert_array_equal(synk.gather(v, nd_up=0), 4 * start)


def test_grid_and_block_of_elements(world):
    cases = {
        (1000,): [4, 1, 1, 256, 1, 1],
        (40, 70): [3, 5, 1, 32, 8, 1],
        (3, 6, 40): [2, 2, 2, 32, 4, 2],
    }
    for shape, told in cases.items():
        for size in size_of(synk.variable(np.zeros(shape))):
            assert_array_equal(size, told)
    for size in size_of["elements", (4, 2)](synk.variable(np.zeros((9, 9)))):
        assert_array_equal(size, [3, 5, 1, 4, 2, 1])
    for size in size_of["elements", None](synk.variable(np.zeros((9, 9)))):
        assert_array_equal(size, [1, 2, 1, 32, 8, 1])


def test_a_block_of_the_users(world):
    start = expected.values(50 * 60).reshape(50, 60)
    for block in ((16, 16), (64, 1), (1, 32), (5, 7)):
        v = synk.scatter(synk.variable(start))
        wholes = [part.copy() for part in parts_of(v, world)]
        for k in (1, 2, 3):
            add_2d["elements", block](v, k)
        for before, part in zip(wholes, parts_of(v, world), strict=True):
            assert_array_equal(part, added(before))


def test_the_first_array_that_is_divided_comes_before_replicas(world):
    @synk.parallel(outputs={"size": synk.output(None, shape=(), dtype="int64")}, block=1)
    @cuda.jit
    def blocks(number, table, v, w, size):
        if cuda.grid(1) == 0:
            size[0] = cuda.gridDim.x

    number, table = synk.variable(1.0), synk.variable(np.zeros((5, 2)))
    v = synk.scatter(synk.variable(np.zeros(3 * world.world_size + 1)))
    w = synk.scatter(synk.variable(np.zeros(7 * world.world_size)))
    x = np.zeros(2 * world.world_size)
    assert blocks(number, table, v, w) == expected.shard_sizes(
        3 * world.world_size + 1, world.world_size
    )
    assert blocks(number, table, w, v) == [7] * world.world_size
    assert blocks(number, table, table.get_value()[0, 0], 1.0) == [5] * world.world_size
    assert blocks(number, table, v, x) == [2] * world.world_size


def test_a_rank_that_holds_no_rows_launches_nothing(world):
    @synk.parallel(outputs={"ran": synk.output(None, shape=(), dtype="int64")})
    @cuda.jit
    def ran(v, ran):
        if cuda.grid(1) == 0:
            ran[0] = 1

    for rows in (np.zeros(1), np.zeros((1, 2))):
        v = synk.scatter(synk.variable(rows))
        sizes = expected.shard_sizes(1, world.world_size)
        for kernel in (ran, ran[lambda rows: rows, 32], ran[lambda shapes: shapes["v"], 32]):
            for _ in range(3):
                assert kernel(v) == sizes
    assert ran["elements", None](synk.variable(np.zeros((4, 0)))) == [0] * world.world_size
    # a grid that is given is launched
    assert ran[1, 32](synk.variable(np.zeros(0))) == [1] * world.world_size


def test_a_grid_function_of_shapes(world):
    @synk.parallel(
        outputs={"size": synk.output(None, shape=(3,), dtype="int64")},
        broadcast=("b",),
        block=(16, 16),
        grid=lambda rows, shapes: (
            -(-shapes["u"][1] // 16),
            -(-shapes["u"][0] // 16),
            rows + shapes["b"][0] + shapes["x"][0],
        ),
    )
    @cuda.jit
    def size_of_three(u, b, x, size):
        if cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0:
            size[0] = cuda.gridDim.x
            size[1] = cuda.gridDim.y
            size[2] = cuda.gridDim.z

    n = 4 * world.world_size
    u, x = synk.variable(np.zeros((50, 100))), np.zeros((n, 3))
    for size in size_of_three(u, np.zeros(9), x):
        assert_array_equal(size, [7, 4, 9 + 4 + 4])
    size = size_of_three(u, np.zeros(9), x, num_slices=2)
    for one in size:  # added up over slices
        assert_array_equal(one, [14, 8, 2 * (9 + 2 + 2)])

    @synk.parallel(
        outputs={"size": synk.output(None, shape=(), dtype="int64")},
        broadcast=("b",),
        grid=lambda shapes: shapes["b"][0],
    )
    @cuda.jit
    def of_shapes(b, size):
        if cuda.grid(1) == 0:
            size[0] = cuda.gridDim.x

    assert of_shapes(np.zeros(6)) == [6] * world.world_size


def test_plans_tell_grids(world):
    v = synk.scatter(synk.variable(np.zeros((40 * world.world_size, 70))))
    report = add_2d.plan(v, 1)
    assert [rank.launches for rank in report.ranks] == [
        (((3, 5, 1), (32, 8, 1)),)
    ] * world.world_size
    assert "launches grid (3, 5) of blocks (32, 8)" in str(report)
    x = np.zeros((601, 2))
    told = str(add_rows.plan(v, 1, world_size=1))
    assert f"launches grid {-(-40 * world.world_size // 256)} of blocks 256" in told
    report = synk.parallel(inout=("x",), name="set")(lambda x: None).plan(
        x, world_size=2, num_slices=2
    )
    assert [rank.launches for rank in report.ranks] == [(((1, 1, 1), (256, 1, 1)),) * 2] * 2
    assert "launches nothing" in str(
        add_rows.plan(synk.scatter(synk.variable(np.zeros(1))), 1, world_size=2)
    )
    assert "launches" not in str(synk.function(lambda x: None, name="f").plan(x))


@pytest.mark.parametrize(
    ("grid", "block", "shape", "says"),
    [
        (
            "elements",
            None,
            (1, 2, 3, 4),
            r"kernel: grid=.elements. is for arrays of 1 to 3 axes.*v has 4.*shapes\[.v.\]",
        ),
        ("elements", 64, (3, 4), r"kernel: block=64 has 1 axis, but v has 2 axes.*block=\(32, 8\)"),
        (
            "elements",
            (32, 8),
            (),
            "kernel: no argument is sharded, and none is a variable with rows.*pass grid=",
        ),
        (
            None,
            None,
            (),
            "kernel: no argument is sharded, and none is a variable with rows.*pass grid=",
        ),
        (lambda shapes: shapes["w"], None, (3,), "kernel: grid.shapes=.*raised KeyError: 'w'"),
    ],
)
def test_errors_before_anything_is_sent(world, grid, block, shape, says):
    def kernel(v):
        v[0] = 1

    v = synk.variable(np.zeros(shape))
    function = synk.parallel(kernel, grid=grid, block=block)
    rounds = world.statistics().rounds
    for call in (function, function.as_serial, function.plan, function.check):
        with pytest.raises(synk.LaunchError, match=says):
            call(v)
    assert world.statistics().rounds <= rounds + 1  # the variable may be placed
    assert not v.get_value().any()


def test_elements_under_the_checker(world):
    @synk.parallel(grid="elements")
    def beyond(v):
        j, i = cuda.grid(2)
        v[i, j] = 1

    v = synk.variable(np.zeros((8, 32)))
    assert beyond.check(v) is None
    with pytest.raises(simt.BoundsError, match="outside of the array v"):
        beyond.check(synk.variable(np.zeros((8, 31))))
    assert beyond.check(synk.variable(np.zeros((0, 31)))) is None
