"""What is repeated is replayed from the third call on, whatever it is; that results are right is
in tests/conformance.
"""

import ctypes
from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_array_equal

import synknumba as synk
from synknumba._rank.replay import Repetition
from synknumba._wire import doorbell
from synknumba._wire.control import CROWDED, ROOMY
from synknumba._world import life
from tests.conformance.kernels import add_up

pytestmark = pytest.mark.gpu

run, serve = Repetition.__call__, doorbell.serve


def counted(self):
    run(self)
    Repetition.counted["one by one" if self._recording is None else "replayed"] += 1


def counted_serve(*args):
    number = serve(*args)
    served = ctypes.c_int64.from_address(args[-1] + 8 * doorbell.SERVED).value
    Repetition.counted["replayed"] += served + (number == doorbell.UNDER_WAY)
    Repetition.counted["served"] += served
    return number


@contextmanager
def counting():
    """Ranks that are forked meanwhile count what they repeat, and wait as long as those of users:
    what is served while they do is not what a rank finds that gives way (see tests/conftest.py).
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(life, "CROWDED", CROWDED)
        patch.setattr(life, "ROOMY", ROOMY)
        patch.setattr(Repetition, "__call__", counted)
        patch.setattr(doorbell, "serve", counted_serve)
        patch.setattr(Repetition, "counted", Counter(), raising=False)
        yield


@pytest.fixture(scope="module")
def world():
    with counting(), synk.fork(devices=[0, 0]) as world:
        yield world


@synk.function(outputs=None)
def take_counts(flag):
    counted = Repetition.counted
    told = np.array([counted["one by one"], counted["replayed"], counted["served"]])
    counted.clear()
    return told


def assert_replayed(call, times=5, one_by_one=1):
    """Of several calls only the first is run one by one, on every rank."""
    take_counts(0)
    results = [call() for _ in range(times)]
    for told in take_counts(0):
        assert told[:2].tolist() == [one_by_one, times - one_by_one]
    for result in results[1:]:
        assert_array_equal(result, results[0])


@synk.parallel(
    inout=("y",),
    outputs={"total": synk.output("sum", shape=(2,)), "low": synk.output("min", shape=())},
)
@cuda.jit
def account(x, scale, y, total, low):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = x[i] * scale
        cuda.atomic.add(total, 0, x[i])
        cuda.atomic.add(total, 1, 1.0)
        cuda.atomic.min(low, 0, x[i])


BATCHES = {
    "all": None,
    "range": slice(10, 500),
    "stride": slice(None, None, -2),
    "list": [5, 900, 3, 77, 2, 1],
}


@pytest.mark.parametrize("num_slices", [1, 3])
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_kernels(world, batch, num_slices):
    x, y = synk.data(np.arange(1000.0)), synk.data(np.zeros(1000))
    assert_replayed(lambda: np.append(*account(x, 2.0, y, batch=batch, num_slices=num_slices)))


@pytest.mark.parametrize("contents", ["sent", "frozen"])
def test_most_of_a_loop_is_served_without_python(world, contents):
    x = synk.data(np.arange(1000.0))
    if contents == "frozen":
        x.freeze()
    take_counts(0)
    for _ in range(1000):
        assert add_up(x) == 499_500
    for one_by_one, replayed, served in take_counts(0):
        assert one_by_one == 1
        assert replayed == 999
        # ranks that share a GPU may have to wait for each other, and then some go on in Python
        assert served > 500


def test_scalars_that_change(world):
    x, y = synk.data(np.arange(1000.0)), synk.data(np.zeros(1000))
    factors = iter(range(100))

    def call():
        factor = float(next(factors))
        result = account(x, factor, y)
        assert_array_equal(y.data, x.data * factor)
        return result.total

    assert_replayed(call)


def test_calls_in_turns_with_other_scalars_are_served_without_python(world):
    x, y = synk.data(np.arange(1000.0)), synk.data(np.zeros(1000))
    x.freeze()
    take_counts(0)
    for k in range(1000):
        assert add_up(x) == 499_500
        assert account(x, float(k), y).total[1] == 1000
        if k % 100 == 0:
            assert_array_equal(y.data, x.data * k)
    for one_by_one, replayed, served in take_counts(0):
        assert one_by_one == 2
        assert replayed == 1998
        assert served > 1000


@pytest.mark.parametrize(
    "of",
    [
        bool,
        int,
        float,
        complex,
        np.int8,
        np.uint16,
        np.float16,
        np.float32,
        np.uint64,
        np.complex64,
    ],
)
def test_scalars_of_all_types_in_a_loop(world, of):
    @synk.parallel(outputs={"out": synk.output("max", shape=(), dtype="float64")}, grid=1, block=1)
    @cuda.jit
    def tell(before, value, after, out):
        cuda.atomic.max(out, 0, before * 1000.0 + (value * value).real + after)

    take_counts(0)
    for k in range(60):
        value = of(k % 11)
        assert tell(k % 3, value, 0.5) == k % 3 * 1000.0 + float((value * value).real) + 0.5
    for _, _, served in take_counts(0):
        assert (served > 10) == (of is not np.float16)


def test_gathered_rows_records_and_broadcast_arrays(world):
    point = np.dtype([("a", "f8"), ("b", "i8")])

    @synk.parallel(
        broadcast=("table",), outputs={"rows": synk.output("gather", shape=(2,), dtype="float64")}
    )
    @cuda.jit
    def look_up(points, table, rows):
        i = cuda.grid(1)
        if i < points.shape[0]:
            rows[i, 0] = points[i].a
            rows[i, 1] = table[points[i].b]

    points = np.zeros(5000, point)
    points["a"], points["b"] = np.arange(5000), np.arange(5000) % 7
    points, table = synk.data(points), synk.data(np.arange(7.0) ** 2)
    assert_replayed(lambda: look_up(points, table))
    assert_replayed(lambda: look_up(points, table, num_slices=4))
    assert_replayed(lambda: look_up(points, table, batch=list(range(0, 5000, 3))))
    points.freeze()
    assert_replayed(lambda: look_up(points, table))


def test_variables(world):
    counts = synk.variable(np.zeros(3))

    @synk.parallel(rows=("rows",), updates={"acc": (counts, "sum")})
    @cuda.jit
    def count(rows, weights, acc):
        i = cuda.grid(1)
        if i < rows.shape[0]:
            cuda.atomic.add(acc, int(rows[i]) % 3, weights[0])

    values = np.arange(1000.0)
    rows, weights = synk.variable(np.zeros(0)), synk.variable(np.ones(1))
    synk.scatter(rows, values)

    picked = [k % 499 for k in range(0, 3000, 7)]
    for options in (
        {},
        {"num_slices": 3},
        {"local_batch": slice(None, None, 3)},
        {"local_batch": picked},
    ):
        assert_replayed(lambda options=options: count(rows, weights, **options) or 0)
        chosen = options.get("local_batch", slice(None))
        expected = [
            np.bincount(part[chosen].astype(int) % 3, minlength=3) for part in np.split(values, 2)
        ]
        for rank in range(2):
            assert_array_equal(synk.get_value(rank, counts), expected[rank])


def test_a_debugged_kernel_is_not(world):
    @synk.parallel(outputs={"total": synk.output("sum", shape=())})
    @cuda.jit(debug=True, opt=False)
    def careful(x, total):
        i = cuda.grid(1)
        if i < x.shape[0]:
            if x[i] < 0:
                raise ValueError("negative")
            cuda.atomic.add(total, 0, x[i])

    x = synk.data(np.ones(100))
    assert_replayed(lambda: careful(x), one_by_one=5)
    x[3] = -1
    with pytest.raises(synk.RankError, match="negative"):
        careful(x)


@pytest.mark.multi_gpu
def test_collectives():
    synk.close()
    with counting(), synk.fork(devices=[0, 1]):
        for dtype, op in (
            ("float64", "sum"),
            ("float32", "max"),
            ("int32", "prod"),
            ("float64", "avg"),
        ):
            v = synk.variable(np.ones(5000, dtype))
            assert_replayed(lambda v=v, op=op: (synk.all_reduce(v, op), 0)[1])
            w = synk.variable(np.ones(10, dtype))
            assert_replayed(lambda w=w: (synk.broadcast(w), 0)[1])
