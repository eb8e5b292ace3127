"""Slices side by side give what slices one after the other give, in whatever order the streams
get on.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.cuda import stand_in

ROWS = 4


class Sliced:
    """Slices that read rows, write others back changed, add to a total, and write results of their
    own.

    Args:
        stored: of each slice, whether it has something to bring out.
        seed: of the machine.
    """

    def __init__(self, stored, seed):
        self.machine = stand_in.start(seed)
        gpu = self.gpu = stand_in.load()
        self.streams = gpu.memory.Streams(stand_in.Stream(non_blocking=True))
        self.workspace = gpu.memory.CudaWorkspace(
            self.streams, gpu.memory.LockedMemory(lambda _: None), sliced=True
        )
        self.count = len(stored)
        # read, changed in place, made
        self.host = [self.pinned(ROWS * self.count) for _ in range(3)]
        self.host[0][:] = np.arange(1.0, 1 + len(self.host[0]))
        self.host[1][:] = 100 * self.host[0]
        self.host[2][:] = -1
        self.total = self.array("total", 1)
        self.earlier = self.array("earlier", ROWS)  # what work before has found in a buffer
        self.first = self.array(("a", 0), ROWS)
        self.first.now()[:] = 7
        self.slices = [self.slice(k, has_stores) for k, has_stores in enumerate(stored)]
        self.stored = stored

    def pinned(self, count):
        return np.frombuffer(stand_in.alloc_pinned_memory(8 * count), np.float64)

    def array(self, slot, count):
        return self.workspace.scratch(slot, "float64", (count,))

    def on(self, stream, work):
        return self.gpu.steps.OnStream(self.machine.put, stream.ptr, work)

    def slice(self, k, has_stores):
        copy_in, copy_out = self.gpu.steps.copy_in, self.gpu.steps.copy_out
        a, b, c = (self.array((name, k % self.workspace.turns), ROWS) for name in "abc")
        here = [host[k * ROWS : (k + 1) * ROWS].ctypes.data for host in self.host]

        def work():
            b.now()[:] += a.now()
            self.total.now()[:] += b.now().sum()

        def more():
            c.now()[:] = b.now() * 2

        return self.gpu.memory.SliceSteps(
            [copy_in(a, here[0], self.streams.load), copy_in(b, here[1], self.streams.load)],
            [self.on(self.streams.work, work), self.on(self.streams.work, more)],
            [
                copy_out(here[i], array, self.streams.store, reached=True)
                for i, array in ((1, b), (2, c))
            ]
            if has_stores
            else [],
        )

    def steps(self):
        """What a call runs: something before, the slices, and something behind them."""

        def before():
            self.earlier.now()[:] = self.first.now()
            self.total.now()[:] = 0

        behind = self.array("behind", ROWS * self.count)

        def after():
            behind.now()[:] = self.host[2]  # what comes behind comes behind the stores too

        self.behind = behind
        work = self.streams.work
        return [self.on(work, before), *self.workspace.in_order(self.slices), self.on(work, after)]

    def check(self):
        """Against NumPy, all rows at once."""
        rows = np.arange(1.0, 1 + ROWS * self.count)
        out = np.repeat(self.stored, ROWS)
        assert self.earlier.now().tolist() == [7] * ROWS
        np.testing.assert_array_equal(self.host[0], rows)
        np.testing.assert_array_equal(self.host[1], np.where(out, 101 * rows, 100 * rows))
        np.testing.assert_array_equal(self.host[2], np.where(out, 202 * rows, -1))
        np.testing.assert_array_equal(self.behind.now(), self.host[2])
        assert self.total.now()[0] == 101 * rows.sum()


def run_one_by_one(sliced, steps):
    for step in steps:
        step()
    sliced.machine.synchronize(sliced.streams.work.ptr)  # all others have been waited for by it


def run_as_a_graph(sliced, steps):
    runtime, stream = sliced.gpu.runtime, sliced.streams.work.ptr
    runtime.streamBeginCapture(stream, 2)
    for step in steps:
        step()
    graph = runtime.streamEndCapture(stream)
    runtime.graphLaunch(runtime.graphInstantiate(graph), stream)
    sliced.machine.synchronize(stream)


RUNS = pytest.mark.parametrize("run", [run_one_by_one, run_as_a_graph])


@RUNS
@settings(max_examples=100)
@given(stored=st.lists(st.booleans(), min_size=1, max_size=7), seed=st.integers(0, 10**6))
def test_in_any_order_of_the_streams(run, stored, seed):
    sliced = Sliced(stored, seed)
    run(sliced, sliced.steps())
    sliced.check()


@pytest.mark.parametrize(
    "stored", [[True] * 4, [False] * 4, [True, False] * 2], ids=["stores", "no stores", "some"]
)
@RUNS
def test_every_wait_is_needed(run, stored):
    """With any one wait left out, something goes wrong for some seed; so the test above can
    fail.
    """
    example = Sliced(stored, 0)
    waits = [
        i
        for i, step in enumerate(example.steps())
        if step.func is example.gpu.runtime.streamWaitEvent
    ]
    assert len(waits) >= 2 * len(stored)
    # the second slice's loads come behind those of the first, which have waited for the start
    del waits[1]
    for i in waits:
        assert any(goes_wrong(run, stored, seed, i) for seed in range(500)), (
            f"step {i} is not needed"
        )


def goes_wrong(run, stored, seed, left_out):
    sliced = Sliced(stored, seed)
    steps = sliced.steps()
    del steps[left_out]
    try:
        run(sliced, steps)
        sliced.check()
    except (AssertionError, stand_in.CUDARuntimeError):
        return True
    finally:
        sliced.machine.captures.clear()
    return False


def test_one_slice_has_one_buffer_and_no_other_streams(gpu):
    stand_in.start()
    streams = gpu.memory.Streams(stand_in.Stream(non_blocking=True))
    workspace = gpu.memory.CudaWorkspace(
        streams, gpu.memory.LockedMemory(lambda _: None), sliced=False
    )
    step = object()
    assert workspace.turns == 1
    assert workspace.in_order([gpu.memory.SliceSteps([step], [step], [step])] * 2) == [step] * 6
    assert not {"load", "store"} & vars(streams).keys()
