"""Sequences on GPUs: parts that need no host between them are recorded together, with the bits
of single calls.
"""

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
        v[i, j] = (
            weight * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1]) + step % 5
        ) % PRIME


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
    """How many recordings of a rank have launches that are queued."""
    from tests.conformance.replayed_device import CalledRecording

    return CalledRecording.queued


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
    new[1:-1, 1:-1] = (
        weight * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]) + step % 5
    ) % PRIME
    return new


def fields(count=2):
    """Two variables with the same numbers, and these."""
    start = np.random.default_rng(0).integers(0, PRIME, (12, 7))
    return *(synk.scatter(synk.variable(start), halo=1) for _ in range(count)), *(
        start for _ in range(count)
    )


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


def regression(world, record):
    """A step of a linear regression over all ranks' rows, whose functions are recorded or not."""
    slope = synk.variable(np.zeros(3, np.int64))

    @synk.function(
        record=record, outputs={"loss": "sum", "most": "max"}, updates={"new": (slope, "sum")}
    )
    def differ(x, y, w, new):
        apart = (x * w).sum(1) - y
        new += (x * apart[:, None]).sum(0)
        return {"loss": (apart * apart).sum(), "most": apart.max()}

    @synk.function(record=record)
    def descend(w, slope, rate):
        w -= slope // rate

    @synk.sequence
    def learn(x, y, w, slope):
        found = differ(x, y, w)
        synk.all_reduce(slope, "sum")
        descend(w, slope, 2000)
        return found

    return learn, slope


def learned(x, y, w, times):
    """What `regression` does; returns losses and largest differences."""
    told = []
    for _ in range(times):
        apart = (x * w).sum(1) - y
        told.append(((apart * apart).sum(), apart.max()))
        w -= (x * apart[:, None]).sum(0) // 2000
    return [*zip(*told, strict=True)]


@pytest.mark.parametrize("record", [True, False])
def test_functions(world, record):
    """Rounds of one iteration and of many, with other numbers in the same memory, other rows,
    and another memory.
    """
    rng = np.random.default_rng(0)
    learn, slope = regression(world, record)
    for rows in (40, 23):
        x, y = (synk.data(rng.integers(-9, 9, shape)) for shape in ((rows, 3), rows))
        w, mine = synk.variable(np.zeros(3, np.int64)), np.zeros(3, np.int64)
        for times, every in (
            (1, None),
            (1, None),
            (4, 1),
            (200, None),
            (150, 50),
            (1, None),
            (1, None),
            (1, None),
            (7, 2),
            (150, 1),
        ):
            found = learn(x, y, w, slope, times=times, every=every)
            losses, most = learned(x.data, y.data, mine, times)
            kept = slice(-1, None) if every is None else slice(every - 1, None, every)
            assert_array_equal(np.ravel(found["loss"]), losses[kept])
            assert_array_equal(np.ravel(found["most"]), most[kept])
            assert_array_equal(w.get_value(), mine)
            x[:] = -x.data


def test_a_function_that_is_to_be_recorded_fails_on_one_rank(world):
    """The others are not left in the collective behind it."""

    @synk.function(record=True)
    def fail(v, rank):
        if rank == 0:
            raise KeyError("broken")

    @synk.sequence
    def loop(v):
        fail(v, synk.RANK)
        synk.all_reduce(v, "sum")

    v = synk.variable(np.ones(3))
    for _ in range(2):
        with pytest.raises(synk.RankError, match=r"in iteration 0 of 10 of loop, call 1: fail"):
            loop(v, times=10)
    assert_array_equal(synk.broadcast(v, np.ones(3)).get_value(), np.ones(3))


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


@synk.parallel(outputs={"t": synk.output("sum", shape=(), dtype="int64")})
@cuda.jit
def weigh(x, by, t):
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        cuda.atomic.add(t, 0, by * x[i, 0] + x[i, 1])


def squares(x):
    return (x * x).sum()


summed, recorded_sum = (
    synk.function(squares, outputs="sum"),
    synk.function(squares, outputs="sum", record=True),
)


@synk.parallel(inout=("x",))
@cuda.jit
def age(x, by):
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        x[i, 1] += by


class TestLinesOfRowNumbers:
    """Rows of another line of a table in each iteration: gathered without the host, and ahead
    where nothing writes them.
    """

    def told(self, x, order, times, line=lambda step: step):
        return [
            ((3 + step) * x[rows, 0].sum() + x[rows, 1].sum(), (x[rows] ** 2).sum())
            for step, rows in ((step, order[line(step)]) for step in range(times))
        ]

    @pytest.mark.parametrize("width", [12, 1])
    @pytest.mark.parametrize("function", [recorded_sum, summed], ids=["recorded", "python"])
    def test_the_numbers_are_those_of_numpy(self, world, function, width):
        rng = np.random.default_rng(width)
        x = synk.data(rng.integers(0, 100, (50, 3)))

        @synk.sequence
        def epoch(x, order, by):
            return weigh(x, by + synk.STEP, batch=order[synk.STEP]), function(
                x, batch=order[synk.STEP]
            )

        for times, every in ((1, 1), (1, 1), (1, 1), (5, 1), (200, 1), (200, 50), (30, 7)):
            order = synk.data(rng.integers(0, 50, (200, width)))
            found = epoch(x, order, 3, times=times, every=every)
            told = self.told(x[:], order[:], times)[every - 1 :: every]
            assert_array_equal(np.transpose(found), told)
            x[:] = rng.integers(0, 100, (50, 3))

    def test_lines_by_a_formula(self, world):
        rng = np.random.default_rng(1)
        x, order = (
            synk.data(rng.integers(0, 100, (50, 3))),
            synk.data(rng.integers(0, 50, (31, 12))),
        )

        @synk.sequence
        def odd(x, order, by, last):
            return (
                weigh(x, by + synk.STEP, batch=order[synk.STEP % 7 + 1]),
                recorded_sum(x, batch=order[last - 2 * synk.STEP]),
            )

        found = odd(x, order, 3, 20, times=20, every=1)
        assert_array_equal(
            found[0], [one for one, _ in self.told(x[:], order[:], 20, lambda step: step % 7 + 1)]
        )
        assert_array_equal(
            found[1], [one for _, one in self.told(x[:], order[:], 20, lambda step: 20 - 2 * step)]
        )
        with pytest.raises(
            synk.RankError,
            match=r"(?s)that have 31 lines.*in iteration 26 of 30 of odd, call 2: squares",
        ):
            odd(x, order, 3, 20, times=30)
        assert_array_equal(odd(x, order, 3, 20, times=20, every=1), found)

    def test_a_function_twice_and_an_inner_sequence(self, world):
        rng = np.random.default_rng(2)
        x, order = (
            synk.data(rng.integers(0, 100, (50, 3))),
            synk.data(rng.integers(0, 50, (40, 12))),
        )
        u = synk.variable(np.zeros(1, np.int64))

        @synk.function(record=True)
        def gain(x, u, by):
            u += (x[:, 0] * by).sum()

        @synk.sequence
        def within(x, order, u):
            gain(x, u, 1, batch=order[2 * synk.STEP])
            gain(x, u, 1, batch=order[2 * synk.STEP + 1])

        @synk.sequence
        def outer(x, order, u):
            within(x, order, u, times=20)
            synk.all_reduce(u, "sum")

        outer(x, order, u, times=3)
        mine, total = np.zeros(world.world_size, np.int64), 0
        parts = np.array(
            [
                x[:][
                    order[:].reshape(40, -1)[:, 12 * r // len(mine) : 12 * (r + 1) // len(mine)], 0
                ].sum()
                for r in range(len(mine))
            ]
        )
        for _ in range(3):
            total = (mine + parts).sum()
            mine[:] = total
        assert u.get_value() == total

    def test_rows_that_the_sequence_writes(self, world):
        rng = np.random.default_rng(3)
        start = rng.integers(0, 100, (40, 3))
        x, order = (
            synk.data(start),
            synk.data(np.array([rng.permutation(40)[:12] for _ in range(60)])),
        )

        @synk.sequence
        def live(x, order):
            found = weigh(x, 3 + synk.STEP, batch=order[synk.STEP])
            age(x, synk.STEP)
            return found

        found, told = live(x, order, times=60, every=1), []
        for step in range(60):
            told += self.told(start, order[:], step + 1)[step][:1]
            start[:, 1] += step
        assert_array_equal(found, told)
        assert_array_equal(x[:], start)


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

    with pytest.raises(
        synk.RankError,
        match=r"(?s)not fit in 64 bits.*in iteration 32 of 100 of grow, call 2: relax",
    ):
        grow(u, v, 2**58, times=100)
    steps(u, v, synk.data(np.arange(7)), 3, times=9)  # the world works on


@pytest.mark.parametrize("row", [REPLAYED_LINKED], indirect=True)
class TestRecordings:
    def test_recorded_functions_are_part_of_it(self, world):
        rng = np.random.default_rng(1)
        learn, slope = regression(world, record=True)
        x, y = (synk.data(rng.integers(-9, 9, shape)) for shape in ((40, 3), 40))
        w, mine = synk.variable(np.zeros(3, np.int64)), np.zeros(3, np.int64)
        before = recorded()[0]
        learn(x, y, w, slope, times=2000)
        learned(x.data, y.data, mine, 2000)
        assert_array_equal(w.get_value(), mine)
        assert recorded()[0] > before
        learn(x, y, w, slope)
        count_served()
        for _ in range(20):
            found = learn(x, y, w, slope)
        losses, _ = learned(x.data, y.data, mine, 21)
        assert found["loss"] == losses[-1]
        assert min(count_served()[0]) >= 4  # some are late

    @pytest.mark.parametrize("record", [True, False])  # without, as it does nothing but compute
    def test_recorded_functions_are_served_without_python(self, world, record):
        x, v = synk.data(np.arange(12.0).reshape(4, 3)), synk.variable(np.ones(3))

        @synk.function(record=record, outputs="sum")
        def total(x, v):
            return (x * v).sum()

        count_served()
        for _ in range(20):
            assert total(x, v) == 66
        assert min(count_served()[0]) >= 4  # some are late

    def test_a_body_without_the_host_is_one(self, world):
        x, before = synk.data(np.arange(7)), recorded()[0]
        u, v, *_ = fields()
        steps(u, v, x, 3, times=2000)
        steps(u, v, x, 4, times=2000)
        # of 128 iterations, since memory is swapped, 16, and 1, from either turn on
        assert 1 <= recorded()[0] - before <= 6

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

    def test_lines_of_row_numbers_are_part_of_it(self, world):
        rng = np.random.default_rng(5)
        x, order = (
            synk.data(rng.integers(0, 100, (50, 3))),
            synk.data(rng.integers(0, 50, (500, 12))),
        )

        @synk.sequence
        def epoch(x, order):
            return weigh(x, 1 + synk.STEP, batch=order[synk.STEP]), recorded_sum(
                x, batch=order[synk.STEP]
            )

        assert "all calls of many iterations are one recording" in str(epoch.plan(x, order))
        before = recorded()[0]
        found = epoch(x, order, times=500)
        assert 1 <= recorded()[0] - before <= 3
        rows = order[499]
        assert found == (500 * x[:][rows, 0].sum() + x[:][rows, 1].sum(), (x[:][rows] ** 2).sum())
        count_served()
        for _ in range(20):
            order[:] = rng.integers(0, 50, (500, 12))
            found = epoch(x, order)
            assert found[1] == (x[:][order[0]] ** 2).sum()
        assert min(count_served()[0]) >= 4  # some are late

    def test_one_that_cannot_be_changed_is_not_used(self, world):
        @synk.function
        def refuse(count):
            from tests.conformance.replayed_device import CalledRecording

            CalledRecording.refuses_in[True] = count

        x = synk.data(np.arange(7))
        u, v, *_ = fields()
        other_u, other_v, *_ = fields()
        refuse(150)
        steps(u, v, x, 3, times=500)
        refuse(0)
        mixed(other_u, other_v, x, 3, times=500)
        assert_array_equal(synk.gather(u, nd_up=0), synk.gather(other_u, nd_up=0))
