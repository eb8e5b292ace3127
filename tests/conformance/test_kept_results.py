"""Large results that the caller gets where the ranks wrote them: whatever is kept stays,
whatever is dropped is used again.
"""

import gc
import os
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_array_equal

import synknumba as synk
from synknumba._errors import SharedMemoryError
from synknumba._host import lent_results
from synknumba._host.segment import Segment
from tests.conformance import kernels
from tests.conformance.conftest import PRIVATE, ROWS, start

N = 1001
LENT_FROM = 4096  # bytes


@pytest.fixture(params=[*ROWS, PRIVATE])
def row(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


@pytest.fixture(autouse=True)
def _small_results_are_lent(monkeypatch):
    monkeypatch.setattr(lent_results, "LENT_BYTES", LENT_FROM)


@synk.parallel(
    outputs={
        "wide": synk.output("gather", shape=(3,), dtype="float32"),
        "total": synk.output("sum", shape=(), dtype="float64"),
        "narrow": synk.output("gather", shape=(), dtype="int64"),
    }
)
@cuda.jit
def two_gathered(x, k, wide, total, narrow):
    i = cuda.grid(1)
    if i < x.shape[0]:
        for j in range(3):
            wide[i, j] = x[i] + k + j
        narrow[i] = x[i] * k
        cuda.atomic.add(total, 0, x[i])


@pytest.fixture
def x():
    return synk.data(np.arange(float(N)))


def scaled(x, k):
    return kernels.axpy(float(k), x, x)


def want(x, k):
    return x.data * (k + 1)


def test_a_repeated_call_copies_nothing(world, x):
    addresses = set()
    y = None
    for k in range(12):
        y = scaled(x, k)
        assert y.flags.owndata == (k == 0)
        assert y.flags.c_contiguous
        assert y.flags.writeable
        assert type(y) is np.ndarray
        addresses.add(y.ctypes.data)
        assert_array_equal(y, want(x, k))
    assert len(addresses) <= 1 + lent_results.MOST_PLACES
    seen = len(addresses)
    del y
    for k in range(5):  # nothing is kept
        addresses.add(scaled(x, k).ctypes.data)
    assert len(addresses) == seen


@pytest.mark.parametrize("num_slices", [1, 3])
def test_all_results_are_kept(world, x, num_slices):
    kept = []
    for k in range(10):
        kept.append(kernels.axpy(float(k), x, x, num_slices=num_slices))
        for j, one in enumerate(kept):
            assert_array_equal(one, want(x, j))
    assert sum(not one.flags.owndata for one in kept) == lent_results.MOST_PLACES - 1
    for j, one in enumerate(kept):  # each is memory of its own
        one[:] = -j
    fresh = scaled(x, 100)
    for j, one in enumerate(kept):
        assert_array_equal(one, np.full(N, -float(j)))
    assert_array_equal(fresh, want(x, 100))


VIEWS = {
    "part": lambda y: y[7:],
    "part of a part": lambda y: y[7:][1::3][::-1],
    "reshaped": lambda y: y[:1000].reshape(10, 100).T,
    "other dtype": lambda y: y.view(np.uint8),
    "of a buffer": lambda y: np.frombuffer(memoryview(y)[5:], np.float64),
    "subclass": lambda y: y.view(np.recarray)[3:],
    "strided": lambda y: np.lib.stride_tricks.as_strided(y[2:], (10, 3), (16, 8)),
    "dlpack": lambda y: np.from_dlpack(y)[1:],
    "broadcast": lambda y: np.broadcast_to(y[:5], (4, 5)),
    "one element": lambda y: y[3:4].reshape(()),
    "iterator": lambda y: y.flat,
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_kept_alone(world, x, view):
    take = VIEWS[view]
    scaled(x, 0)
    kept = [take(scaled(x, k)) for k in range(1, 4)]
    for k in range(4, 9):
        y = scaled(x, k)
    for k, one in enumerate(kept, 1):
        assert_array_equal(np.array(one), np.array(take(want(x, k))))
    assert_array_equal(y, want(x, 8))


@pytest.mark.parametrize("seed", range(4))
def test_results_are_dropped_at_random(world, x, seed):
    rng = np.random.default_rng(seed)
    kept: dict[int, Any] = {}
    for k in range(60):
        length = int(rng.choice([N, 700, 700, 20]))
        if rng.random() < 0.3:
            result = two_gathered(x, float(k), batch=length)
            parts = {"wide": result.wide, "narrow": result.narrow}
            assert result.total == x.data[:length].sum()
            kept[k] = (
                length,
                parts
                if rng.random() < 0.5
                else {name: parts[name] for name in rng.permutation([*parts])[:1]},
            )
            del result, parts
        else:
            batch = None if length == N else length
            kept[k] = (length, {"axpy": kernels.axpy(float(k), x, x, batch=batch)})
        while len(kept) > rng.integers(0, 6):
            del kept[rng.choice([*kept])]
        for j, (rows, arrays) in kept.items():
            for name, array in arrays.items():
                assert_array_equal(array, expected_part(name, x.data[:rows], j))


def expected_part(name, x, k):
    match name:
        case "wide":
            return (x[:, None] + k + np.arange(3)).astype("float32")
        case "narrow":
            return (x * k).astype("int64")
    return x * (k + 1)


def test_a_result_is_an_argument_of_the_next_call(world, x):
    y = scaled(x, 1)
    value = want(x, 1)
    for _ in range(6):
        y = kernels.axpy(2.0, y, y)
        value = 3 * value
        assert_array_equal(y, value)
        kernels.scale(y, 0.5)  # written in place
        value = value / 2
        assert_array_equal(y, value)


def test_a_result_that_a_finalizer_brings_back(world, x):
    """The garbage collector has taken weak references away by then, but not those to arrays."""
    found = []

    class Phoenix:
        def __init__(self, array):
            self.array = array
            self.cycle = self

        def __del__(self):
            found.append(self.array[1:])

    scaled(x, 0)
    for k in range(1, 3):
        Phoenix(scaled(x, k))
    gc.collect()
    for k in range(3, 8):
        scaled(x, k)
    assert len(found) == 2
    for k, one in enumerate(found, 1):
        assert_array_equal(one, want(x, k)[1:])


def test_as_serial_and_calls_in_turn(world, x):
    kept = []
    for k in range(8):
        call = kernels.axpy.as_serial if k % 2 else kernels.axpy
        kept.append(call(float(k), x, x))
    for k, one in enumerate(kept):
        assert_array_equal(one, want(x, k))


def test_where_there_is_no_room_results_are_copied(world, x, monkeypatch):
    monkeypatch.setattr(lent_results, "has_room", lambda nbytes: False)
    for k in range(4):
        y = scaled(x, k)
        assert y.flags.owndata
        assert_array_equal(y, want(x, k))
    monkeypatch.undo()
    monkeypatch.setattr(lent_results, "LENT_BYTES", LENT_FROM)

    def full(nbytes):
        raise SharedMemoryError

    monkeypatch.setattr(lent_results, "Segment", full)
    for k in range(4):
        assert scaled(x, k).flags.owndata
    monkeypatch.setattr(lent_results, "Segment", Segment)  # and when there is room again
    kept = [scaled(x, k) for k in range(6)]
    assert not kept[0].flags.owndata
    for k, one in enumerate(kept):
        assert_array_equal(one, want(x, k))


@contextmanager
def forked(work):
    """A child of the script's that works when the block has ended, and must succeed."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(theirs)
            os.read(ours, 1)  # returns when the script has closed its end
            code = 0 if work() else 2
        finally:
            os._exit(code)
    os.close(ours)
    try:
        yield
    finally:
        os.close(theirs)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_forked_child_has_a_copy(world, x):
    scaled(x, 0)
    first = scaled(x, 1)
    others = [scaled(x, 2)]

    def is_as_it_was():
        right = (first == want(x, 1)).all() and (others[0] == want(x, 2)).all()
        first[:] = -1
        return right

    with forked(is_as_it_was):
        others[0][:500] = -2
        kept = [scaled(x, k) for k in range(3, 8)]
        others.clear()  # the child still has it
        kept += [scaled(x, k) for k in range(8, 12)]
    assert_array_equal(first, want(x, 1))
    for k, one in enumerate(kept, 3):
        assert_array_equal(one, want(x, k))


def test_results_outlive_the_world(fork_row, row):
    x = synk.data(np.arange(float(N)))
    for _ in range(2):
        fork_row()
        scaled(x, 0)
        first = scaled(x, 1)
        part = scaled(x, 2)[5:]
        synk.close()
        gc.collect()
        assert not first.flags.owndata
        with start(row):  # forks, and is another world
            scaled(x, 0)
            third = scaled(x, 3)
            assert_array_equal(first, want(x, 1))
        first[:] = 4.0
        assert_array_equal(first, np.full(N, 4.0))
        assert_array_equal(part, want(x, 2)[5:])
        assert_array_equal(third, want(x, 3))


module_level: dict[str, np.ndarray] = {}


@pytest.mark.one_machine
def test_ranks_forked_later_may_read_results(fork_row, x):
    """As they read whatever the script has when it forks."""
    with fork_row():
        scaled(x, 0)
        module_level["y"] = scaled(x, 1)
    with fork_row():
        assert synk.function(_read_module_level, outputs="max")(np.ones(5)) == want(x, 1).sum()
    module_level.clear()


def _read_module_level(rows):
    from tests.conformance import test_kept_results

    return float(test_kept_results.module_level["y"].sum())
