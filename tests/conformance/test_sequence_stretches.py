"""Sequences on GPUs: parts that need no host between them are recorded together, with the bits of single calls."""

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_array_equal

import synknumba as synk
from tests.conformance.conftest import REPLAYED, REPLAYED_LINKED, ROWS
from tests.conformance.replayed_device import count_served

ON_GPUS = [row for row in ROWS if row.id.startswith("cuda")]


@pytest.fixture(params=[REPLAYED, REPLAYED_LINKED, *ON_GPUS])
def row(request):
    return request.param


PRIME = 1009  # numbers are ints modulo it, so that NumPy has the same


@synk.parallel(grid="elements")
@cuda.jit
def relax(u, v, weight, step):
    j, i = cuda.grid(2)
    if 0 < i < u.shape[0] - 1 and 0 < j < u.shape[1] - 1:
        v[i, j] = (weight * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1]) + step % 5) % PRIME


@synk.parallel(grid="elements", broadcast=("x",))
@cuda.jit
def add(u, x, by):
    j, i = cuda.grid(2)
    if i < u.shape[0] and j < u.shape[1]:
        u[i, j] = (u[i, j] + by * x[j]) % PRIME


@synk.parallel(grid=1, block=1, outputs={"t": synk.output("sum", shape=(), dtype="int64")})
@cuda.jit
def corner(u, first, t):
    if first == 0:
        t[0] += u[1, 1]


@synk.function
def look(u):
    return None


@synk.function(outputs=None)
def recorded():
    """How many chains a rank has recorded."""
    from tests.conformance.replayed_device import CalledChain

    return CalledChain.recorded


@synk.sequence
def steps(u, v, x, weight):
    synk.exchange(u)
    relax(u, v, weight, synk.STEP)
    add(v, x, 3 * synk.STEP)
    found = corner(v, synk.OFFSET)
    synk.swap(u, v)
    return found


@synk.sequence
def mixed(u, v, x, weight):
    synk.exchange(u)
    relax(u, v, weight, synk.STEP)
    add(v, x, 3 * synk.STEP)
    found = corner(v, synk.OFFSET)
    look(u)
    synk.swap(u, v)
    return found


@synk.sequence
def inner(u, v, x, weight, outer):
    add(u, x, outer + 2 * synk.STEP)
    synk.exchange(u)
    relax(u, v, weight, synk.STEP)


@synk.sequence
def nested(u, v, x, weight):
    inner(u, v, x, weight, synk.STEP, times=40)
    return corner(v, synk.OFFSET)


def relaxed(u, v, weight, step):
    """What `relax` does."""
    new = v.copy()
    new[1:-1, 1:-1] = (weight * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]) + step % 5) % PRIME
    return new


def fields(count=2):
    """Two variables with the same numbers, and these."""
    start = np.random.default_rng(0).integers(0, PRIME, (12, 7))
    return *(synk.scatter(synk.variable(start), halo=1) for _ in range(count)), *(start for _ in range(count))


@pytest.mark.parametrize("body", [steps, mixed], ids=["whole", "mixed"])
def test_the_numbers_are_those_of_numpy(world, body):
    x = np.arange(7)
    u, v, a, b = fields()
    for times, every, weight in ((1, None, 3), (2, 1, 3), (300, 60, 4), (150, None, 5), (81, 2, 5)):
        found = body(u, v, synk.data(x), weight, times=times, every=every)
        told = []
        for step in range(times):
            a, b = (relaxed(a, b, weight, step) + 3 * step * x) % PRIME, a
            told.append(a[1, 1])
        assert_array_equal(found, told[-1] if every is None else told[every - 1 :: every])
        assert_array_equal(synk.gather(u, nd_up=0), a)
        assert_array_equal(synk.gather(v, nd_up=0), b)


def test_inner_sequences(world):
    x = np.arange(7)
    u, v, a, b = fields()
    for times in (1, 12):
        found = nested(u, v, synk.data(x), 3, times=times, every=1)
        told = []
        for step in range(times):
            for k in range(40):
                a = (a + (step + 2 * k) * x) % PRIME
                b = relaxed(a, b, 3, k)
            told.append(b[1, 1])
        assert_array_equal(found, told)
        assert_array_equal(synk.gather(v, nd_up=0), b)


def test_data_may_change_between_calls(world):
    x = synk.data(np.arange(7))
    u, a = fields(1)

    @synk.sequence
    def sums(u):
        add(u, x, 2)

    for times in (3, 200, 1):
        sums(u, times=times)
        a = (a + 2 * times * x[:]) % PRIME
        x[:] += 1
    assert_array_equal(synk.gather(u, nd_up=0), a)


def test_a_number_that_does_not_fit_is_told_with_its_place(world):
    u, v, *_ = fields()

    @synk.sequence
    def grow(u, v, by):
        relax(u, v, 1, 1)
        relax(v, u, 1, by * synk.STEP)

    with pytest.raises(synk.RankError, match=r"(?s)not fit in 64 bits.*in iteration 32 of 100 of grow, call 2: relax"):
        grow(u, v, 2**58, times=100)
    steps(u, v, synk.data(np.arange(7)), 3, times=9)  # the world works on


@pytest.mark.parametrize("row", [REPLAYED_LINKED], indirect=True)
class TestRecordings:
    def test_a_body_without_the_host_is_one(self, world):
        x, before = synk.data(np.arange(7)), recorded()[0]
        u, v, *_ = fields()
        steps(u, v, x, 3, times=2000)
        steps(u, v, x, 4, times=2000)
        assert 1 <= recorded()[0] - before <= 6  # of 128 iterations, since memory is swapped, 16, and 1, from either turn on

    def test_rounds_of_one_iteration_are_served_without_python(self, world):
        """Also of other scalars and other swaps, whose rounds go back to Python first."""
        x = np.arange(7)
        data = synk.data(x)
        u, v, a, b = fields()
        count_served()
        for weight in (3, 3, 3, 3, 4, 4, 4, 4, 3, 3, 4):
            assert steps(u, v, data, weight) == relaxed(a, b, weight, 0)[1, 1]
            a, b = relaxed(a, b, weight, 0), a
        assert_array_equal(synk.gather(u, nd_up=0), a)

        @synk.sequence
        def plain(u, v, weight):
            relax(u, v, weight, 1)
            return corner(v, synk.OFFSET)

        count_served()
        for weight in (3,) * 20 + (4,) * 20:
            assert plain(u, v, weight) == relaxed(a, b, weight, 1)[1, 1]
        served, _ = count_served()
        assert min(served) >= 20

    def test_one_that_cannot_be_changed_is_not_used(self, world):
        @synk.function
        def refuse(count):
            from tests.conformance.replayed_device import CalledChain

            CalledChain.refuses_in = count

        x = synk.data(np.arange(7))
        u, v, *_ = fields()
        other_u, other_v, *_ = fields()
        refuse(150)
        steps(u, v, x, 3, times=500)
        refuse(0)
        mixed(other_u, other_v, x, 3, times=500)
        assert_array_equal(synk.gather(u, nd_up=0), synk.gather(other_u, nd_up=0))
