"""Functions with `record=True` on GPUs: Python runs no more, and what cannot be repeated is
refused with its line.
"""

import sys
from fractions import Fraction

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import synknumba as synk

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=[[0], [0, 0]], ids=["cuda1", "cuda2on1"])
def world(request):
    with synk.fork(devices=request.param) as world:
        yield world


@synk.function(record=True, outputs="sum")
def counted(x, v):
    sys.counted = getattr(sys, "counted", 0) + 1
    v += 1
    return (x * v).sum()


@synk.function(outputs=None)
def take_count(flag):
    count, sys.counted = sys.counted, 0
    return count


def test_python_runs_three_times(world):
    x, v = synk.data(np.arange(10.0)), synk.variable(np.zeros(1))
    for call in range(6):
        x[:] = np.arange(10.0) + call
        assert counted(x, v) == x.data.sum() * (call + 1)
    assert take_count(True) == [3] * world.world_size
    small = synk.data(np.arange(4.0))
    assert counted(small, v) == 6 * 7
    assert take_count(True) == [2] * world.world_size


def test_results_are_the_scripts(world):
    x, v = synk.data(np.ones(10)), synk.variable(np.zeros(10))
    double = synk.function(record=True, outputs="gather")(lambda x: x * 2)
    first = double(x)
    x[:] = 5
    assert_array_equal(double(x), np.full(10, 10.0))
    assert_array_equal(first, np.full(10, 2.0))
    same = synk.function(record=True, outputs=None)(lambda v: v)  # a view of its argument
    assert_array_equal(same(v)[0], np.zeros(10))
    v.set_value(np.ones(10))
    assert_array_equal(same(v)[0], np.ones(10))


def test_index_ranges_and_own_rows(world):
    def total(x, rows, u, own):
        return x.sum() + rows.start + len(rows), u[own.start : own.stop].sum()

    record = synk.function(record=True, outputs="sum")(total)
    u = synk.scatter(synk.variable(np.arange(12.0)), halo=1)
    for n in (10, 10, 10, 20):
        found = record(np.ones(n), synk.arange(n), u, synk.OWN)
        assert tuple(map(float, found)) == (
            2 * n + sum(k * n // world.world_size for k in range(world.world_size)),
            66,
        )


def looks(x, v):
    return x * float(x.sum())


def gets(x, v):
    return np.asarray(x.get()).sum()


def decides(x, v):
    return x + 1 if x.sum() > 3 else x


def chooses(x, v):
    return x[x > 3].sum()


def brings(x, v):
    import cupy

    return (x * cupy.asarray(np.ones(len(x)))).sum()


def copies(x, v):
    import cupy

    memory = cupy.cuda.alloc_pinned_memory(8)
    target, stream = cupy.empty(1), cupy.cuda.get_current_stream()
    cupy.cuda.runtime.memcpyAsync(
        target.data.ptr, memory.ptr, 8, cupy.cuda.runtime.memcpyHostToDevice, stream.ptr
    )
    return x.sum()


def draws(x, v):
    import cupy

    return (x + cupy.random.random(len(x))).sum()


def counts(x, v):
    sys.calls = getattr(sys, "calls", 0) + 1
    v += sys.calls
    return x.sum()


def multiplies(x, v):
    m = x[:4].reshape(2, 2)
    return (m @ m).sum()


REFUSED = {
    looks: r"test_recorded\.py:\d+: return x \* float\(x\.sum\(\)\)",
    gets: r"x\.get\(\)",
    decides: r"if x\.sum\(\) > 3",
    chooses: r"x\[x > 3\]",
    brings: (
        r"return \(x \* cupy.asarray.*H2D transfers are disallowed. Make NumPy "
        r"arrays CuPy arrays before"
    ),
    copies: "copies memory of the host to the GPU in each call",
    draws: "cannot be recorded: ",
    counts: "it gave other numbers",
    multiplies: r"Use synk\.matmul\(a, b\)",
}


@pytest.mark.parametrize("body", REFUSED, ids=lambda body: body.__name__)
def test_refused(world, body):
    """The error is the first call's; variables are then as after one call, and the world works
    on.
    """
    recorded = synk.function(record=True, outputs="sum")(body)
    plain = synk.function(outputs="sum")(lambda x: x.sum())
    x, v = synk.data(np.arange(8.0)), synk.variable(np.zeros(3))
    for _ in range(2):
        with pytest.raises(synk.SynkError, match=rf"{body.__name__} cannot be recorded") as caught:
            recorded(x, v)
        assert caught.match(REFUSED[body])
        assert plain(x) == 28


def test_objects_are_refused(world):
    recorded = synk.function(record=True, outputs="sum")(lambda x, how: x.sum())
    with pytest.raises(
        synk.SynkError, match="takes arrays, numbers, texts and trees of them; got a Fraction"
    ):
        recorded(np.ones(4), Fraction(1, 3))
