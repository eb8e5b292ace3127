"""Worlds one after the other, and what lives longer than they do."""

import gc
import os
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import synknumba as synk
from tests.conformance import kernels
from tests.quick import whole


def make(factor):
    @synk.function(outputs="sum")
    def times(x):
        return (factor * x).sum()

    return times


def open_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def mapped(pid="self"):
    """How many segments a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text().count("/synk-")


@pytest.mark.one_machine
def test_a_world_tells_what_it_is(world, row):
    assert world.world_size == row.get("world_size", len(row.get("devices", ())))
    assert world.device == row["device"]
    assert list(world.devices) == row.get("devices", [])
    assert not world.closed
    assert len(set(world.pids)) == world.world_size
    assert os.getpid() not in world.pids
    assert "open" in repr(world)


def test_functions_made_before_fork_after_fork_and_after_other_calls(fork_row):
    before = make(1)
    x = synk.data(np.ones(10))
    with fork_row():
        early = make(2)
        assert before(x) == 10
        late = make(3)
        assert (early(x), late(x), before(x)) == (20, 30, 10)


@pytest.mark.usefixtures("no_others")
def test_distribute_before_the_first_call_and_after(fork_row):
    first = make(1)
    with fork_row():
        synk.distribute()
        assert first(np.ones(4)) == 4
        second = make(2)
        synk.distribute()
        assert second(np.ones(4)) == 8
        third = make(3)  # not distributed
        assert third(np.ones(4)) == 12


def scaled():
    """A function of a number, and one that changes what it scales by: an array, which goes with
    the function once.
    """
    factor = np.array([2.0])

    def by_factor(x):
        return factor[0] * x

    def change(value):
        factor[0] = value

    return by_factor, change


@pytest.mark.usefixtures("no_others")
@pytest.mark.parametrize("decorator", [*whole(synk.expectation), synk.vectorize])
def test_distribute_sends_what_kernels_are_generated_around(fork_row, decorator):
    """What was sent is what is run, as a change that comes after it shows; kernels for other
    arguments are made later.
    """
    for is_sent in (True, False):
        function, change = scaled()
        made = decorator(function)
        with fork_row():
            if is_sent:
                synk.distribute()
            change(5.0)
            factor = 2.0 if is_sent else 5.0
            for x in (np.arange(4.0), np.arange(4, dtype=np.int32), synk.arange(4)):
                result = made(x)
                wanted = factor * np.arange(4)
                if decorator is synk.expectation:
                    assert result.mean == wanted.mean()
                else:
                    assert_array_equal(result, wanted)


@pytest.mark.usefixtures("no_others")
@pytest.mark.parametrize("decorator", [synk.expectation, synk.vectorize])
def test_what_cannot_be_sent_is_told_by_distribute(fork_row, decorator):
    lock = threading.Lock()

    @decorator
    def locking(x):
        return x if lock.locked() else -x

    with fork_row():
        with pytest.raises(synk.ArgumentError, match="locking cannot be sent to the ranks"):
            synk.distribute()
        del locking
        synk.distribute()


def test_functions_and_data_in_two_successive_worlds(fork_row):
    x, y = synk.data(np.arange(10.0)), synk.data(np.ones(10))
    for k in range(2):
        with fork_row() as world:
            assert_array_equal(kernels.axpy(2.0, x, y), 2 * np.arange(10.0) + 2**k)
            kernels.scale(y, 2.0)
            assert kernels.total_of(x) == 45
        assert world.closed
        assert "closed" in repr(world)
        assert_array_equal(y.data, np.full(10, 2.0 ** (k + 1)))
    x.set_value(np.ones(20))
    with fork_row():
        assert kernels.total_of(x) == 20


def test_close_is_idempotent_and_ends_every_rank(fork_row):
    world = fork_row()
    pids = world.pids
    world.close()
    world.close()
    synk.close()
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(synk.WorldError):
        kernels.total_of(np.ones(3))


def test_worlds_leave_no_descriptor(fork_row):
    with fork_row():
        kernels.total_of(np.ones(3))
    gc.collect()
    before = open_descriptors()
    for _ in range(2):
        with fork_row():
            kernels.total_of(np.ones(3))
            kernels.rows_of(np.ones(50_000))
    gc.collect()
    assert open_descriptors() <= before + 2  # what rows_of keeps for its argument


def test_dropped_data_is_dropped_on_the_ranks(fork_row):
    # what earlier tests have left in cycles, which ranks would inherit, and free at any moment
    gc.collect()
    with fork_row() as world:

        def on_ranks():
            kernels.total_of(np.ones(3))
            return np.array([mapped(pid) for pid in world.pids])

        on_ranks()
        before = on_ranks()
        x = synk.data(np.ones(100_000))
        kernels.total_of(x)
        kernels.energy(x, 1.0)
        kernels.energy(x, 1.0, batch=[5, 3, 1])
        kernels.scale(x, 2.0, num_slices=2)
        assert (on_ranks() > before).all()
        watch = weakref.ref(x)
        del x
        assert watch() is None
        assert set(on_ranks() - before) <= {0, 1}, "what may stay is the list of rows of energy"


def test_ever_new_data_take_no_more_memory(world):
    """Nor do the results of calls with data that are gone."""
    gc.collect()  # what earlier tests have left in cycles
    held = []
    for n in range(20_000, 20_020):
        x = synk.data(np.ones(n))
        assert_array_equal(kernels.axpy(1.0, x, x), np.full(n, 2.0))
        assert kernels.rows_of(x).shape == (n,)
        del x
        held.append((mapped(), *(mapped(pid) for pid in world.pids)))
    # what others held may go
    assert all(last <= early for last, early in zip(held[-1], held[2], strict=True)), held


def test_a_closed_world_lets_go_of_the_memory_of_results(fork_row):
    before = mapped()
    x = synk.data(np.ones(50_000))
    with fork_row():
        kernels.rows_of(x)
        kernels.axpy(1.0, x, x)
        assert mapped() > before + 1
    gc.collect()
    assert mapped() <= before + 1


def test_data_freed_on_purpose_is_freed_on_the_ranks(world):
    x = synk.data(np.ones(10))
    kernels.total_of(x)
    x.free_memory()
    assert kernels.total_of(np.ones(3)) == 3
    x.set_value(np.ones(7))
    assert kernels.total_of(x) == 7


def test_a_function_that_is_dropped_goes_with_its_plans(world):
    function = make(7)
    assert function(np.ones(3)) == 21
    watch = weakref.ref(function)
    del function
    gc.collect()
    assert watch() is None
    assert kernels.total_of(np.ones(3)) == 3


def test_many_shapes_are_more_plans_than_are_kept(world):
    x = synk.data(np.ones(400))
    for n in range(1, 400, 2):
        x.set_length(n)
        x[:] = 1
        assert kernels.total_of(x) == n
    x.set_length(1)
    assert kernels.total_of(x) == 1


def test_large_results_of_many_shapes_take_few_descriptors(world):
    before = open_descriptors()
    x = np.arange(2.0)
    for times in range(5000, 5000 + 60 * 50, 50):
        got = kernels.repeated(x, times)
        assert got.shape == (2, times)
    assert open_descriptors() - before <= 12 * world.world_size


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_idle_ranks_leave_their_cores_alone(world):
    """They wait for the next call by spinning for some milliseconds, and then sleep."""
    for _ in range(100):
        kernels.total_of(np.ones(10))
    time.sleep(0.2)
    before = [cpu_seconds(pid) for pid in world.pids]
    time.sleep(1.0)
    used = [cpu_seconds(pid) - then for pid, then in zip(world.pids, before, strict=True)]
    assert max(used) <= 0.03  # of one second; a rank that spins uses all of it
