"""What a rank repeats: one by one until it has succeeded once, then recorded, and one by one
again where that ends.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from synknumba._device import TRAITS
from synknumba._rank.replay import Repetition
from tests.unit.cuda.numba_kernels import Dispatcher, Driver


def device_of(bench):
    return SimpleNamespace(
        traits=TRAITS["cuda"], synchronize=bench.stream.synchronize, record=bench.record
    )


@pytest.fixture
def launches(monkeypatch, bench):
    """How many graphs were launched."""
    seen = []
    launch = bench.gpu.runtime.graphLaunch
    monkeypatch.setattr(
        bench.gpu.runtime, "graphLaunch", lambda *args: (seen.append(args), launch(*args))
    )
    return seen


def test_the_first_run_is_one_by_one_and_the_second_is_recorded(bench, launches):
    host, out, x = bench.host([1.0]), bench.host([0.0]), bench.array(1)
    called, checked = [], []

    def put():
        called.append(1)
        bench.machine.put(bench.stream.ptr, lambda: np.add(x.now(), 1, out=x.now()))

    steps = [bench.bring(x, host), bench.gpu.steps.OnStream(put), bench.out(out, x)]
    repeated = Repetition(device_of(bench), steps, [lambda: checked.append(host[0])])
    for k in range(1, 6):
        host[0] = 10 * k
        repeated()
        assert out[0] == 10 * k + 1
        assert len(launches) == max(k - 1, 0)
        assert len(called) == min(k, 2)  # the second time into the graph
        assert checked[-1] == 10 * k
    repeated.close()
    repeated.close()
    assert not bench.machine.graphs
    repeated()
    assert out[0] == 51
    assert len(launches) == 4
    assert len(checked) == 6


def test_a_first_run_that_fails_is_not_recorded(bench, launches):
    failing, out, x = [True], bench.host([0.0]), bench.array(1)

    def step():
        if failing[0]:
            raise MemoryError("no memory")
        bench.machine.put(bench.stream.ptr, lambda: x.now().fill(4))

    repeated = Repetition(device_of(bench), [bench.gpu.steps.OnStream(step), bench.out(out, x)])
    for _ in range(3):
        with pytest.raises(MemoryError):
            repeated()
    failing[0] = False
    for runs in range(4):
        out[0] = 0
        repeated()
        assert out[0] == 4
        assert len(launches) == max(runs, 0)


def test_steps_that_cannot_be_recorded_are_tried_once(bench):
    ran, tried = [], []
    device = device_of(bench)
    device.record = lambda steps, *, alone: tried.append((steps, alone))
    repeated = Repetition(device, [lambda: ran.append(1)])
    for _ in range(4):
        repeated()
    assert len(ran) == 4
    assert len(tried) == 1


def test_kernels_between_those_with_scalars(bench, monkeypatch, launches):
    """As where an op is a function: launches of its kernel, which have no scalars that change,
    are left as they are.
    """
    driver = Driver(bench.machine)
    monkeypatch.setattr(bench.gpu.nodes, "_driver", lambda: driver)
    total, out = bench.array(1), bench.host([0.0])
    parts = [bench.array(1) for _ in range(3)]

    def write(part, scale, number):
        part.now()[:] = scale * number

    def fold(into, part, one):
        into.now()[:] = 10 * into.now() + one * part.now()

    def kernel(function):
        return bench.kernel(Dispatcher(bench.machine, function))

    writing, folding, size = kernel(write), kernel(fold), ((1, 1, 1), (1, 1, 1), 0)
    scales = [[part, 1, k + 1] for k, part in enumerate(parts)]
    steps = [bench.fill(total, private=True)]
    for args, part in zip(scales, parts, strict=True):
        steps += [writing.bind(*size, args, (1,)), folding.bind(*size, [total, part, 1], ())]
    repeated = Repetition(device_of(bench), [*steps, bench.out(out, total)])
    for scale in (1, 1, 1, 2, 3, 3):
        for args in scales:
            args[1] = scale
        repeated.renew(b"")
        repeated()
        assert out[0] == scale * 123
    assert len(launches) == 5
    assert len(bench.machine.graphs) == 1


@pytest.mark.parametrize("refuses", [False, True])
def test_scalars(bench, monkeypatch, launches, refuses):
    driver = Driver(bench.machine)
    driver.refuses = refuses
    monkeypatch.setattr(bench.gpu.nodes, "_driver", lambda: driver)
    seen, args = [], [1]
    kernel = bench.kernel(Dispatcher(bench.machine, seen.append))
    repeated = Repetition(device_of(bench), [kernel.bind((1, 1, 1), (1, 1, 1), 0, args, (0,))])
    for args[0] in (1, 1, 1, 5, 5, 6):
        repeated.renew(b"")
        repeated()
    assert seen == [1, 1, 1, 5, 5, 6]
    assert len(launches) == (1 if refuses else 5)  # the scalar is renewed before the second replay
