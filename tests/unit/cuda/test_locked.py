"""Which memory of the host is page-locked, and when; the model refuses ranges that overlap, and
copies across a range's end.
"""

import mmap

import numpy as np
import pytest

from synknumba._ops.rows import Listed, Partition, Range
from tests.unit.cuda import stand_in
from tests.unit.cuda.machine import PAGE

SIZE = 1 << 20
ROW = 1000  # bytes, so shards share pages


@pytest.fixture
def moved():
    """The segments of which was told that they are going to be locked anew."""
    return []


@pytest.fixture
def locked(gpu, machine, moved, monkeypatch):
    monkeypatch.setattr(gpu.memory, "LOCKED_WHOLE", 4 * PAGE)
    return gpu.memory.LockedMemory(moved.append)


def segment(size=SIZE):
    return np.frombuffer(mmap.mmap(-1, size), np.uint8)


def rows(memory):
    return memory[: len(memory) // ROW * ROW].reshape(-1, ROW)


def ranges(machine, memory):
    """What is locked of a segment: first byte, and the one after the last."""
    start = memory.ctypes.data
    return sorted(
        (low - start, low - start + size)
        for low, size in machine.locked.items()
        if 0 <= low - start < len(memory)
    )


def test_what_is_in_no_segment_is_not_reached(locked, machine):
    assert not locked.reaches(np.zeros(10))
    memory = segment()
    locked.add(1, memory, whole=False)
    locked.remove(memory)
    assert not locked.reaches(memory[:10])
    locked.remove(memory)
    assert not machine.locked


@pytest.mark.parametrize(("size", "whole"), [(4 * PAGE, False), (100, False), (SIZE, True)])
def test_small_segments_and_those_used_whole_are_locked_at_once(
    locked, machine, moved, size, whole
):
    memory = segment(size)
    locked.add(1, memory, whole=whole)
    assert ranges(machine, memory) == [(0, size)]
    assert locked.reaches(memory)
    assert locked.reaches(memory[size // 2 :])
    assert not moved
    locked.remove(memory)
    assert not machine.locked


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_each_rank_locks_its_rows(gpu, moved, world_size, monkeypatch):
    """Pages that two ranks share are locked by both; each is a process with a driver of its own."""
    monkeypatch.setattr(gpu.memory, "LOCKED_WHOLE", 0)
    memory = segment()
    n = len(rows(memory))
    covered = np.zeros(SIZE, bool)
    for rank in range(world_size):
        machine = stand_in.start(rank)
        mine = gpu.memory.LockedMemory(moved.append)
        mine.add(1, memory, whole=False)
        shard = rows(memory)[rank * n // world_size : (rank + 1) * n // world_size]
        for part in (shard, shard[:3], shard[-3:]):
            assert mine.reaches(part)
        ((low, high),) = ranges(machine, memory)
        assert low % PAGE == 0
        assert high % PAGE == 0
        assert high - low <= shard.nbytes + 2 * PAGE
        first = shard.ctypes.data - memory.ctypes.data
        assert low <= first < first + shard.nbytes <= high
        covered[low:high] = True
        mine.clear()
        assert not machine.locked
    assert not moved
    assert covered[: n * ROW].all()


def test_other_rows_have_all_of_it_locked(locked, machine, moved):
    memory, other = segment(), segment()
    locked.add(5, memory, whole=False)
    locked.add(6, other, whole=False)
    part = rows(memory)
    assert locked.reaches(part[:300])
    assert locked.reaches(rows(other)[10:20])
    held = ranges(machine, other)
    assert not moved
    assert locked.reaches(part[200:400])
    assert moved == [5]  # before anything is unlocked, so that steps that use it can be let go
    assert ranges(machine, memory) == [(0, SIZE)]
    assert ranges(machine, other) == held
    assert locked.reaches(part[900:])
    assert moved == [5]


def test_who_is_told_still_finds_the_memory_locked(gpu, machine, monkeypatch):
    monkeypatch.setattr(gpu.memory, "LOCKED_WHOLE", 0)
    memory, found = segment(), []
    locked = gpu.memory.LockedMemory(lambda _: found.append(ranges(machine, memory)))
    locked.add(5, memory, whole=False)
    locked.reaches(memory[:10])
    locked.reaches(memory[-10:])
    assert found == [[(0, PAGE)]]


def test_memory_that_cannot_be_locked(locked, machine, moved):
    memory = segment()
    locked.add(5, memory, whole=False)
    machine.may_lock = False
    assert not locked.reaches(memory[:10])
    assert not machine.locked
    locked.add(6, segment(PAGE), whole=True)
    machine.may_lock = True
    assert locked.reaches(memory[:10])
    assert not moved


def test_where_the_rest_cannot_be_locked_the_part_stays(locked, machine, monkeypatch, gpu):
    memory = segment()
    locked.add(5, memory, whole=False)
    assert locked.reaches(memory[:10])
    register = gpu.runtime.hostRegister

    def only_little(address, nbytes, flags):
        if nbytes > PAGE:
            raise stand_in.CUDARuntimeError(2)
        register(address, nbytes, flags)

    monkeypatch.setattr(gpu.runtime, "hostRegister", only_little)
    assert not locked.reaches(memory[-10:])
    assert ranges(machine, memory) == [(0, PAGE)]
    assert locked.reaches(memory[:10])


def test_neither_the_whole_nor_the_part_again(locked, machine):
    memory = segment()
    locked.add(5, memory, whole=False)
    assert locked.reaches(memory[:10])
    machine.may_lock = False
    assert not locked.reaches(memory[-10:])
    assert not machine.locked
    assert not locked.reaches(memory[:10])
    machine.may_lock = True
    assert locked.reaches(memory[:10])
    locked.clear()
    assert not machine.locked


@pytest.mark.parametrize("step", [1, -1, 3, -2])
def test_slices_of_a_shard_that_was_told_of_before(gpu, machine, locked, moved, step):
    """Without `expect` the second slice would have all of the segment locked."""
    host = rows(segment())
    memory = host.base if host.base.ndim == 1 else host.base.base
    memory = np.frombuffer(memory, np.uint8)
    locked.add(5, memory, whole=False)
    streams = gpu.memory.Streams(stand_in.Stream())
    workspace = gpu.memory.CudaWorkspace(streams, locked, sliced=True)
    shard = (
        Range(200, 1, 300)
        if step == 1
        else Range(*slice(None, None, step).indices(900)[::2], 900 // abs(step))
    )
    workspace.expect(host, shard)
    for k in range(3):
        workspace.rows(("x", k % 2), host, Partition.even(3).of(shard, k), writable=False)
    assert not moved
    ((low, high),) = ranges(machine, memory)
    assert high - low <= (300 * ROW + 2 * PAGE if step == 1 else len(host) * ROW + PAGE)


def test_lists_have_the_table_locked(gpu, machine, locked, moved):
    memory = segment()
    locked.add(5, memory, whole=False)
    workspace = gpu.memory.CudaWorkspace(
        gpu.memory.Streams(stand_in.Stream()), locked, sliced=False
    )
    workspace.expect(rows(memory), Listed(np.array([3, 1])))
    assert ranges(machine, memory) == [(0, -(-len(rows(memory)) * ROW // PAGE) * PAGE)]
    assert not moved


def test_a_part_that_ends_with_the_segment(locked, machine, gpu):
    """Segments are whole pages only if their makers say so: what is locked may reach to the end
    of the last page.
    """
    memory = np.frombuffer(mmap.mmap(-1, 5 * PAGE + 100), np.uint8)
    locked.add(5, memory, whole=False)
    assert locked.reaches(memory[4 * PAGE + 7 :])
    assert ranges(machine, memory) == [(4 * PAGE, 6 * PAGE)]
    assert locked.reaches(memory[:5])
    assert locked.reaches(memory)
