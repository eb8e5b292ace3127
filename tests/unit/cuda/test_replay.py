"""A recorded run ends when its results are there, or raises what has gone wrong."""

import weakref

import pytest

from synknumba._errors import DeviceError
from tests.unit.cuda import stand_in
from tests.unit.cuda.machine import FaultError


def recorded(bench, work, *, published):
    """A recording of work and of a copy of what it makes; and what is written."""
    x, out = bench.array(1), bench.host([0.0])
    steps = [bench.work(lambda: work(x)), bench.out(out, x, reached=published)]
    recording = bench.record(steps)
    assert recording is not None
    return recording, out


@pytest.fixture(params=[True, False], ids=["by mail", "by the stream"])
def published(request):
    return request.param


def test_results_are_there_at_the_end(bench, published):
    counter = [0]

    def work(x):
        counter[0] += 1
        x.now()[:] = counter[0]

    recording, out = recorded(bench, work, published=published)
    for k in range(1, 6):
        for _ in range(20):  # the stream is late
            bench.machine.put(bench.stream.ptr, lambda: None)
        recording.launch()
        assert out[0] == k == counter[0]


def fault(_):
    raise FaultError(700)


def test_a_fault_is_raised_and_not_waited_for(bench, published):
    recording, _ = recorded(bench, fault, published=published)
    with pytest.raises(stand_in.CUDARuntimeError, match="700"):
        recording.launch()
    with pytest.raises(stand_in.CUDARuntimeError, match="700"):
        recording.launch()
    recording.close()  # which must not raise, since a rank goes through it on its way out


def test_a_fault_of_somebody_else_is_raised(bench, published):
    recording, _ = recorded(bench, lambda x: x.now().fill(1), published=published)
    bench.machine.put(bench.stream.ptr, lambda: fault(None))
    with pytest.raises(stand_in.CUDARuntimeError, match="700"):
        recording.launch()


def test_mail_that_never_comes_is_told_when_the_stream_ends(bench):
    recording, _ = recorded(bench, lambda x: x.now().fill(1), published=True)
    (nodes,) = bench.machine.executables.values()
    nodes.pop()  # the one that mails
    with pytest.raises(DeviceError, match="ended without results"):
        recording.launch()


def test_close_frees_everything_once(bench, published):
    class Keepsake:
        pass

    kept = Keepsake()
    gone = weakref.ref(kept)
    step = bench.work(lambda: None)
    step.keeps = (kept,)
    x, out = bench.array(1), bench.host([0.0])
    recording = bench.record([step, bench.out(out, x, reached=published)])
    del step, kept
    recording.launch()
    assert gone() is not None
    recording.close()
    assert gone() is None
    assert not bench.machine.graphs
    assert not bench.machine.executables
    recording.close()


def test_close_waits_for_what_is_under_way(bench):
    recording, out = recorded(bench, lambda x: x.now().fill(5), published=False)
    (executable,) = bench.machine.executables
    bench.gpu.runtime.graphLaunch(executable, bench.stream.ptr)
    recording.close()
    assert out[0] == 5
