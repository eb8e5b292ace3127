"""Calls that compiled code on the ranks repeats: results are right, and whatever is not the same
again is noticed.
"""

import os
import signal
import time

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from synknumba._host.this_process import current_rank
from synknumba._rank.replay import Repetition
from tests.conformance import replayed_device
from tests.conformance.conftest import REPLAYED
from tests.conformance.replayed_device import CalledRecording, count_served, fork_replayed
from tests.quick import whole

N = 1001


@pytest.fixture(params=[REPLAYED])
def row(request):
    return request.param


@synk.parallel(
    outputs={
        "total": synk.output("sum", shape=(), dtype="float64"),
        "high": synk.output("max", shape=(), dtype="float64"),
    }
)
@cuda.jit
def scaled(x, factor, total, high):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(total, 0, factor * x[i])
        cuda.atomic.max(high, 0, factor * x[i])


@synk.parallel(inout=("x",))
@cuda.jit
def advance(x):
    i = cuda.grid(1)
    if i < x.shape[0]:
        x[i] += 1.0


@synk.function(outputs=None)
def own_pid():
    return os.getpid()


def repeat(x, times):
    """The same call again and again, of ones."""
    for _ in range(times):
        assert scaled(x, 1.0).total == N


def served():
    """Rounds of each rank that compiled code has served, and begun."""
    return np.transpose(count_served())


def test_most_of_a_loop_is_served(world):
    x = synk.data(np.ones(N))
    served()
    for k in range(300):
        x.data[:] = k
        assert scaled(x, 2.0) == (2 * k * N, 2 * k)
    done, begun = served()
    assert (
        done.sum() > 10
        # where there is no core for everybody, ranks sleep between some calls, and go back to
        # Python for it
    )
    assert begun.sum() > 0  # the late ones


def test_calls_without_results_are_served(world):
    x = synk.data(np.zeros(N))
    served()
    for _ in range(100):
        advance(x)
    assert np.all(x.data == 100)
    assert served()[0].sum() > 5


def test_what_is_not_the_same_again_is_noticed(world):
    x, y = synk.data(np.arange(float(N))), synk.data(np.full(N, 3.0))
    seen = 0
    for k in range(400):
        factor = float(k // 10 % 3)
        which = (x, y)[k // 25 % 2]
        batch = (None, 500, slice(3, 900))[k // 40 % 3]
        rows = which.data[batch if isinstance(batch, slice) else slice(batch)]
        total, high = scaled(which, factor, batch=batch)
        assert total == factor * rows.sum()
        assert high == factor * rows.max()
        seen += 1
    assert seen == 400
    assert served()[0].sum() > 10


def test_programs_in_turns_are_served(world):
    x, y = synk.data(np.arange(float(N))), synk.data(np.zeros(N))
    served()
    for k in range(150):
        assert scaled(x, 1.0).high == N - 1
        advance(y)
        assert y.data[k] == k + 1
    done, _ = served()
    assert done.sum() > 10


def test_scalars_that_change_are_served(world):
    x = synk.data(np.arange(float(N)))
    served()
    for k in range(300):
        assert scaled(x, float(k)) == (k * x.data.sum(), k * (N - 1))
    for factor in (1.0, 1.0, 2.0, 1.0):  # in Python's eyes the last it knows of may be this one
        assert scaled(x, factor).high == factor * (N - 1)
    done, begun = served()
    assert done.sum() > 10
    assert begun.sum() > 0


def test_python_goes_on_with_the_scalars_that_compiled_code_had(world):
    """Ranks go back to Python in between: by a function, by a late result, by falling asleep."""
    x = synk.data(np.arange(float(N)))
    rng = np.random.default_rng(3)
    for factor in (0.0, 1.0, 2.0):
        scaled(x, factor)
    served()
    for k in range(400):
        factor = float(rng.integers(3))
        assert scaled(x, factor).high == factor * (N - 1)
        if k % 37 == 0:
            own_pid()
        if k % 101 == 0:
            time.sleep(0.2)
    assert served()[0].sum() > 10


def test_scalars_that_the_driver_refuses(world):
    @synk.function(outputs=None)
    def refuse_in(times):
        replayed_device.CalledRecording.refuses_in[False] = times

    x = synk.data(np.arange(float(N)))
    for times in (1, 2, 7):
        for k in range(4):
            scaled(x, float(k))
        refuse_in(times)
        for k in range(40):
            assert scaled(x, float(k % 5)).high == k % 5 * (N - 1)
    refuse_in(0)


@synk.parallel(outputs={"out": synk.output("gather", shape=(2,), dtype="float64")})
@cuda.jit
def listed(x, scale, shift, out):
    i = cuda.grid(1)
    if i < x.shape[0]:
        out[i, 0] = x[i] * scale
        out[i, 1] = x[i] + shift


@pytest.mark.whole
def test_loops_of_many_calls(world):
    """More than are known at once, in any order: programs, rows, scalars, results that are kept,
    contents that change.
    """
    rng = np.random.default_rng(11)
    x, y = synk.data(np.arange(float(N))), synk.data(np.ones(N))
    y.freeze()
    batches = [slice(int(low), int(low) + 100) for low in rng.integers(0, N - 100, 90)]
    kept = []
    served()
    for k in range(900):
        which = (x, y)[int(rng.integers(2))]
        batch = batches[int(rng.integers(90 if k % 300 > 200 else 3))]
        scale, shift = float(rng.integers(5)), int(rng.integers(3))
        if k % 50 == 0:
            x.data[:] = rng.random(N)
        rows = which.data[batch]
        if rng.random() < 0.5:
            assert_allclose(
                scaled(which, scale, batch=batch), (scale * rows.sum(), scale * rows.max())
            )
        else:
            kept.append(
                (
                    listed(which, scale, shift, batch=batch),
                    np.stack([rows * scale, rows + shift], 1),
                )
            )
        if len(kept) > k // 100 % 4:
            assert_array_equal(*kept.pop(0))
        if k % 97 == 0:
            y.thaw()
            y.data[:] = rng.random(N)
            y.freeze()
        if k % 131 == 0:
            own_pid()
    done, _ = served()
    assert done.sum() > 10


def test_collectives_among_calls_are_served(world):
    held = synk.variable(np.zeros(3))

    @synk.parallel(outputs={"seen": synk.output("max", shape=(), dtype="float64")}, grid=1, block=1)
    @cuda.jit
    def step(held, rank, amount, seen):
        held[0] += rank * amount
        cuda.atomic.max(seen, 0, held[0])

    expected = 0.0
    served()
    for k in range(150):
        amount = float(k % 3)
        assert step(held, synk.RANK, amount) == expected + amount
        synk.all_reduce(held, "avg")
        expected += amount / 2
    done, _ = served()
    assert_array_equal(synk.get_value(1, held), [expected, 0, 0])
    assert done.sum() > 10


def test_memory_that_moves_between_the_same_calls(world):
    x = synk.data(np.ones(10))
    for n in (10, 10_000, 20, 400_000, 10):
        x.set_value(np.ones(n))
        for _ in range(6):
            assert scaled(x, 1.0).total == n
    v = synk.variable(np.array([5.0]))

    @synk.parallel(outputs={"total": synk.output("sum", shape=())}, grid=1, block=1)
    @cuda.jit
    def look(v, total):
        if cuda.grid(1) == 0:
            cuda.atomic.add(total, 0, v[0])

    for value in (1.0, 2.0, 7.0):
        synk.broadcast(v, np.array([value]))
        for _ in range(6):
            assert look(v) == 2 * value
    del x, v


def test_frozen_rows_in_turns(world):
    """Two selections have their rows in the same place."""
    x = synk.data(np.arange(float(N)))
    x.freeze()
    for _ in range(30):
        for batch in (slice(10), slice(500, 510), slice(500, 510)):
            assert scaled(x, 1.0, batch=batch) == (x.data[batch].sum(), x.data[batch].max())


def test_frozen_rows_are_those_of_their_version(world):
    x = synk.data(np.ones(N))
    for value in (1.0, 4.0, 2.0):
        x.thaw()
        x.data[:] = value
        x.freeze()
        for _ in range(8):
            assert scaled(x, 1.0).high == value


def test_after_a_sleep(world):
    x = synk.data(np.ones(N))
    for _ in range(4):
        for _ in range(10):
            assert scaled(x, 3.0).total == 3 * N
        time.sleep(0.2)


def test_a_launch_that_fails_is_told_and_the_next_one_works(world):
    @synk.function(outputs=None)
    def fail_in(launches):
        replayed_device.CalledRecording.fails_in = launches if current_rank() == 0 else 0

    x = synk.data(np.ones(N))
    for _ in range(3):
        fail_in(20)
        with pytest.raises(synk.RankError, match="no launch"):
            repeat(x, 3000)  # beside other programs compiled code serves few of them
        for _ in range(5):
            assert scaled(x, 1.0).total == N


@synk.parallel(
    inout=("y",),
    outputs={
        "total": synk.output("sum", shape=(), dtype="float64"),
        "rows": synk.output("gather", shape=(), dtype="float64"),
    },
)
@cuda.jit
def moved(x, shift, y, total, rows):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = rows[i] = x[i] + shift
        cuda.atomic.add(total, 0, x[i] + shift)


@synk.parallel(rows=("v",), outputs={"total": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def held_total(v, factor, total):
    i = cuda.grid(1)
    if i < v.shape[0]:
        cuda.atomic.add(total, 0, factor * v[i])


@pytest.mark.whole
def test_slices_and_rows_of_variables_while_launches_fail(world):
    @synk.function(outputs=None)
    def fail_in(launches, rank):
        replayed_device.CalledRecording.fails_in = launches if current_rank() == rank else 0

    rng = np.random.default_rng(5)
    x, y, values = synk.data(np.arange(float(N))), synk.data(np.zeros(N)), rng.random(N)
    v = synk.variable(np.zeros(0))
    synk.scatter(v, values)
    halves = [v.get_value(rank) for rank in range(2)]
    assert_array_equal(np.concatenate(halves), values)
    batches = (slice(50), slice(3, 900, 7), [5, 900, 3], None)
    failed = []
    served()
    for k in range(900):
        which, num_slices, factor = (
            int(rng.integers(4 if k % 300 > 200 else 2)),
            1 + 2 * (k // 60 % 2),
            float(rng.integers(3)),
        )
        if k % 100 == 0:
            fail_in(int(rng.integers(1, 30)), k // 100 % 2)
        try:
            if k % 2:
                local = (None, slice(20), slice(None, None, 3), [0, 7, 400])[which]
                chosen = [half if local is None else half[local] for half in halves]
                got = held_total(v, factor, local_batch=local, num_slices=num_slices)
                assert_allclose(got, factor * np.concatenate(chosen).sum())
            else:
                rows = x.data if batches[which] is None else x.data[batches[which]]
                got = moved(x, factor, y, batch=batches[which], num_slices=num_slices)
                assert_allclose(got.total, (rows + factor).sum())
                assert_array_equal(got.rows, rows + factor)
                assert_array_equal(
                    y.data if batches[which] is None else y.data[batches[which]], rows + factor
                )
        except synk.RankError as error:
            failed.append(str(error))
    fail_in(0, 0)
    assert failed
    assert all("no launch" in told for told in failed)
    assert served()[0].sum() > 10


@pytest.mark.parametrize("good", [*whole(0), 1, *whole(2)])
def test_a_loop_is_served_after_a_run_that_failed(world, good):
    @synk.function(outputs=None)
    def fail_next_run():
        usual = Repetition.__call__

        def fail(self):
            Repetition.__call__ = usual
            raise MemoryError

        Repetition.__call__ = fail

    x = synk.data(np.ones(N))
    repeat(x, good)
    fail_next_run()
    with pytest.raises(synk.RankError, match="MemoryError"):
        scaled(x, 1.0)
    served()
    repeat(x, 300)
    assert served()[0].sum() > 10


# Calls; a rank that sleeps on a busy machine runs the next one in Python, which is never late.
ENOUGH = 100_000


def die_late(recording):
    """In place of a late launch, once compiled code has stopped waiting for it."""
    time.sleep(replayed_device.LATE_SECONDS)
    if current_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    recording._run()


@pytest.mark.parametrize("late", [False, True], ids=["served", "late"])
def test_a_rank_that_dies_in_a_served_round(fork_row, monkeypatch, late):
    if late:
        monkeypatch.setattr(replayed_device, "LATE_EVERY", 40)
        monkeypatch.setattr(CalledRecording, "_run_late", die_late)
    fork_row()
    pids = own_pid()
    x = synk.data(np.ones(N))
    for _ in range(30):
        scaled(x, 1.0)
    if not late:
        os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(synk.RankDied, match="rank 1 .*SIGKILL"):
        repeat(x, ENOUGH)


def test_a_served_round_that_takes_too_long(fork_row, monkeypatch):
    monkeypatch.setattr(replayed_device, "LATE_SECONDS", 60.0)
    monkeypatch.setattr(replayed_device, "LATE_EVERY", 30)
    with fork_replayed(2) as world:
        x = synk.data(np.ones(N))
        repeat(x, 3)
        world.timeout = 0.5
        with pytest.raises(synk.CallTimeout, match=r"still working: rank \d"):
            repeat(x, ENOUGH)
