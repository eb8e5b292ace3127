"""What is recorded, and how: the graph does what the steps do, or there is none and nothing is
left behind.
"""

import numpy as np
import pytest

from tests.unit.cuda import stand_in
from tests.unit.cuda.numba_kernels import Dispatcher


def doubling(bench, host, out, *, private=True, reached=True):
    """Steps that fill a total, add the doubled rows to it, and bring both out."""
    x, total = bench.array(len(host)), bench.array(1)

    def work():
        x.now()[:] *= 2
        total.now()[:] += x.now().sum()

    steps = [
        bench.bring(x, host),
        bench.fill(total, private=private),
        bench.work(work),
        bench.out(out, total, reached=reached),
    ]
    return steps, total


def repeat(bench, recording, host, out):
    for k in range(4):
        host[:] = np.arange(5.0) + k
        recording.launch()
        assert out[0] == 2 * host.sum()
        out[:] = -1


def test_small_results_are_published_and_private_fills_come_last(bench):
    host, out = bench.host(np.arange(5.0)), bench.host([-1.0])
    steps, total = doubling(bench, host, out)
    bench.run(steps)
    assert out[0] == 20
    recording = bench.record(steps)
    assert len(bench.recorded()) == 4  # bring, work, publish, fill
    repeat(bench, recording, host, out)
    bench.stream.synchronize()
    assert total.now()[0] == 0  # filled for the next run, by the run before


def test_fills_that_others_may_undo_stay_where_they_are(bench):
    host, out = bench.host(np.arange(5.0)), bench.host([-1.0])
    steps, total = doubling(bench, host, out, private=False)
    bench.run(steps)
    recording = bench.record(steps)
    total.now()[0] = 99
    repeat(bench, recording, host, out)
    bench.stream.synchronize()
    assert total.now()[0] != 0


def test_many_small_results_in_one_go(bench):
    hosts = [bench.host([0.0] * count) for count in (1, 3, 0, 7)]
    arrays = [bench.array(len(host)) for host in hosts]
    counter = [0]

    def work():
        counter[0] += 1
        for i, array in enumerate(arrays):
            array.now()[:] = 10 * i + counter[0]

    steps = [
        bench.work(work),
        *(bench.out(host, array) for host, array in zip(hosts, arrays, strict=True)),
    ]
    bench.run(steps)
    recording = bench.record(steps)
    assert len(bench.recorded()) == 2
    for k in (2, 3):
        recording.launch()
        assert [set(host) for host in hosts] == [{k}, {10 + k}, set(), {30 + k}]


SMALL = {
    "one byte": [("bool", 1, 0)],
    "fewer than a word": [("int16", 1, 0), ("int16", 2, 0)],
    "not a multiple of a word": [("int8", 7, 0)],
    "what the mailbox holds": [("float64", 64, 0)],
    "a word more": [("float64", 64, 0), ("int32", 1, 0)],
    "as much as is published": [("float64", 8192, 0)],
    "half a word off": [("int16", 4, 2)],
    "a word off": [("int32", 3, 4)],
    "of many types": [
        ("float32", 3, 0),
        ("int64", 1, 0),
        ("bool", 5, 0),
        ("float64", 0, 0),
        ("complex128", 2, 0),
    ],
}
MAILED = {"what the mailbox holds", "a word off"}


@pytest.mark.parametrize("size", SMALL)
def test_small_results_of_every_size_and_place(bench, monkeypatch, size):
    ends = []
    for name in ("mail", "publish"):
        end = getattr(bench.gpu.graph, name)
        monkeypatch.setattr(
            bench.gpu.graph,
            name,
            lambda *args, name=name, end=end: (ends.append(name), end(*args))[1],
        )
    hosts, arrays, steps = [], [], []
    for name, count, offset in SMALL[size]:
        dtype = np.dtype(name)
        memory = np.frombuffer(stand_in.alloc_pinned_memory(count * dtype.itemsize + 64), np.uint8)
        memory[:] = 0xEE
        hosts.append((memory, memory[offset : offset + count * dtype.itemsize]))
        arrays.append(
            bench.gpu.memory.typed(
                stand_in.alloc(count * dtype.itemsize + 8) + offset, dtype, (count,)
            )
        )
        steps.append(bench.out(hosts[-1][1], arrays[-1]))
    value = [0]

    def work():
        for array in arrays:
            array.now().view(np.uint8)[:] = value[0]

    steps.insert(0, bench.work(work))
    bench.run(steps)
    recording = bench.record(steps)
    assert ends == (["mail"] if size in MAILED else ["publish"])
    for value[0] in (1, 0, 255):
        recording.launch()
        for memory, target in hosts:
            assert np.all(target == value[0])
            # and nothing else is written
            assert np.count_nonzero(memory == 0xEE) == len(memory) - len(target)


def test_runs_without_results_are_over_when_they_end(bench):
    done = [0]

    def work():
        done[0] += 1

    steps = [bench.work(work) for _ in range(5)]
    bench.run(steps)
    recording = bench.record(steps)
    assert recording.relaunch
    for runs in range(2, 6):
        recording.launch()
        assert done[0] == 5 * runs


@pytest.mark.parametrize("results", [False, True], ids=["nothing", "a result"])
@pytest.mark.parametrize("calls", ["vprintf", "foreign"])
def test_kernels_that_may_print_are_waited_for_by_the_stream(bench, monkeypatch, calls, results):
    x, out = bench.array(1), bench.host([0.0])
    dispatcher = Dispatcher(bench.machine, lambda x: x.now().fill(3), calls=calls)
    kernel = bench.kernel(dispatcher)
    steps = [
        kernel.bind((1, 1, 1), (1, 1, 1), 0, [x], ()),
        *([bench.out(out, x)] if results else []),
    ]
    bench.run(steps)
    recording = bench.record(steps)
    waits, wait = [], bench.gpu.runtime.streamSynchronize
    monkeypatch.setattr(
        bench.gpu.runtime, "streamSynchronize", lambda *args: (waits.append(args), wait(*args))
    )
    for runs in (1, 2, 3):
        out[0] = 0
        recording.launch()
        assert len(waits) == runs
        assert out[0] == 3 * results
        assert not recording.relaunch


@pytest.mark.parametrize("why", ["pageable", "large", "other stores", "stores between"])
def test_results_that_are_copied(bench, why):
    count = 8193 if why == "large" else 2  # of 8 bytes
    out = np.zeros(count) if why == "pageable" else bench.host([0.0] * count)
    x, rows = bench.array(count), bench.host([0.0] * 2)
    value = [1.0]
    steps = [
        bench.work(lambda: x.now().fill(value[0])),
        bench.out(out, x, reached=why != "pageable"),
    ]
    back = bench.gpu.code.move_rows(
        rows.ctypes.data, 8, bench.gpu.memory.Range(0, 1, 2), x, bench.stream, back=True, keeps=rows
    )
    if why == "other stores":
        steps.insert(1, back)
    if why == "stores between":
        steps.append(back)
    bench.run(steps)
    recording = bench.record(steps)
    assert len(bench.recorded()) == len(steps)
    for value[0] in (2.0, 3.0):
        recording.launch()
        assert set(out) == {value[0]}
        assert not bench.box.words.any()  # nobody has mailed
        assert why in {"pageable", "large"} or set(rows) == {value[0]}


def test_copies_before_the_last_work_are_not_published(bench):
    out = bench.host([0.0])
    x = bench.array(1)
    steps = [
        bench.work(lambda: x.now().fill(1)),
        bench.out(out, x),
        bench.work(lambda: x.now().fill(2)),
    ]
    bench.run(steps)
    recording = bench.record(steps)
    recording.launch()
    assert out[0] == 1
    assert len(bench.recorded()) == 3


def test_what_is_not_recorded(bench):
    ran = []
    on_stream = bench.work(lambda: ran.append(1))
    assert bench.record([]) is None
    assert bench.record([on_stream, lambda: None]) is None
    assert bench.record([on_stream, bench.stream.synchronize]) is None
    assert bench.record([on_stream] * (bench.gpu.graph.MOST_STEPS + 1)) is None
    assert not bench.machine.graphs
    assert not ran
    assert bench.record([on_stream] * bench.gpu.graph.MOST_STEPS) is not None


# ---- what goes wrong -----------------------------------------------------------------------------


def raises(error):
    def step():
        raise error

    return step


FAILURES = [
    ValueError("of a step"),
    stand_in.CUDARuntimeError(2),
    MemoryError(),
    SystemError("of a compiled library"),
    AssertionError(),
]


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("when", ["capturing", "publishing", "instantiating", "beginning"])
def test_any_failure_means_one_by_one(bench, monkeypatch, when, error):
    host, out = bench.host(np.arange(5.0)), bench.host([-1.0])
    steps, _ = doubling(bench, host, out)
    bench.run(steps)
    with monkeypatch.context() as patch:
        if when == "publishing":
            patch.setattr(bench.gpu.graph, "mail", lambda *_: raises(error)())
        if when == "instantiating":
            patch.setattr(bench.gpu.runtime, "graphInstantiate", lambda _: raises(error)())
        if when == "beginning":
            patch.setattr(bench.gpu.runtime, "streamBeginCapture", lambda *_: raises(error)())
        failing = (
            [*steps[:3], bench.gpu.steps.OnStream(raises(error)), steps[3]]
            if when == "capturing"
            else steps
        )
        assert bench.record(failing) is None
    nothing_is_left(bench)
    host[:] = 3
    bench.run(steps)
    assert out[0] == 30
    assert bench.record(steps) is not None


def nothing_is_left(bench):
    assert not bench.machine.captures
    assert not bench.machine.graphs
    assert not bench.machine.executables


@pytest.mark.parametrize("what", ["waits", "forks", "comes from outside"])
def test_steps_that_do_more_than_they_say(bench, what):
    runtime, other, event = bench.gpu.runtime, stand_in.Stream(), stand_in.Event()

    def step():
        if what == "waits":
            bench.stream.synchronize()
        elif what == "forks":  # and does not come back
            runtime.eventRecord(event.ptr, bench.stream.ptr)
            runtime.streamWaitEvent(other.ptr, event.ptr, 0)
            bench.machine.put(other.ptr, lambda: None)
        else:
            runtime.eventRecord(event.ptr, other.ptr)
            runtime.streamWaitEvent(bench.stream.ptr, event.ptr, 0)

    assert bench.record([bench.gpu.steps.OnStream(step)]) is None
    nothing_is_left(bench)


def test_the_user_stops_it(bench):
    with pytest.raises(KeyboardInterrupt):
        bench.record([bench.gpu.steps.OnStream(raises(KeyboardInterrupt()))])
    nothing_is_left(bench)
