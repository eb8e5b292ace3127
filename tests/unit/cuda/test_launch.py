"""Launches that can be recorded, and those of which Numba would make copies for one launch only."""

from collections import namedtuple
from enum import Enum

import numpy as np
import pytest

from synknumba._device.compilers import base
from tests.unit.cuda import stand_in
from tests.unit.cuda.numba_kernels import Dispatcher

GRID, BLOCK = (2, 1, 1), (32, 1, 1)
Pair = namedtuple("Pair", "first second")
RECORD = np.dtype([("a", "f8"), ("b", "i8")])


class Color(Enum):
    RED = 1


def device_array():
    return stand_in.ndarray((2,), np.float64, stand_in.alloc(16))


def device_records(gpu):
    return gpu.memory.typed(stand_in.alloc(64), RECORD, (2,))


PLAIN = [
    1,
    1.5,
    True,
    1j,
    np.float32(1),
    np.bool_(True),
    np.int8(1),
    Color.RED,
    (),
    (1, 2.0),
    Pair(1, (2, 3)),
]
COPIED = [
    np.zeros(2),
    np.zeros(()),
    np.zeros(2, RECORD),
    np.zeros((), RECORD)[()],
    (1, np.zeros(2)),
    Pair(1, (2, np.zeros((), RECORD)[()])),
    None,
    "text",
]


@pytest.mark.parametrize(
    "arg", PLAIN, ids=lambda arg: f"{type(arg).__module__}.{type(arg).__name__} {arg}"
)
def test_numbers_and_tuples_of_them_are_recorded(arg):
    assert base.is_plain(arg)


def test_arrays_of_the_device_are_recorded(gpu):
    assert base.is_plain(device_array())
    assert base.is_plain(device_records(gpu))
    assert base.is_plain((1, device_array()))


@pytest.mark.parametrize(
    "arg", COPIED, ids=lambda arg: f"{type(arg).__name__} {arg} {getattr(arg, 'dtype', '')}"
)
def test_what_numba_copies_for_each_launch_is_not_recorded(bench, arg):
    assert not base.is_plain(arg)
    dispatcher = Dispatcher(bench.machine, lambda *_: None)
    kernel = bench.kernel(dispatcher)
    assert bench.record([kernel.bind(GRID, BLOCK, 0, [1, arg], ())]) is None
    assert bench.record([kernel.bind(GRID, BLOCK, 0, [1, 2], ())]) is not None


@pytest.mark.parametrize("recordable", [True, False])
def test_launches_read_their_arguments_when_they_are_run(bench, recordable):
    seen = []
    dispatcher = Dispatcher(bench.machine, lambda *args: seen.append(args[0]))
    kernel = bench.kernel(dispatcher)
    args = [1.0, device_array() if recordable else np.zeros(1)]
    step = kernel.bind(GRID, BLOCK, 64, args, (0,))
    for args[0] in (1.0, 2.0):
        step()
    bench.stream.synchronize()
    assert seen == [1, 2]
    assert dispatcher.launches == [(GRID, BLOCK, bench.stream, 64)] * 2


def test_debugged_kernels_wait_and_are_not_recorded(bench):
    ran = []
    dispatcher = Dispatcher(bench.machine, lambda _: ran.append("kernel"))
    kernel = bench.kernel(dispatcher, debug=True)
    step = kernel.bind(GRID, BLOCK, 64, [1], ())
    bench.machine.put(bench.stream.ptr, lambda: ran.append("before"))
    step()
    bench.machine.synchronize(0)
    assert ran == ["before", "kernel"]
    assert dispatcher.launches == [(GRID, BLOCK, 0, 64)]
    assert bench.record([step]) is None


def test_records_tell_their_fields(gpu):
    records = device_records(gpu)
    told = records.__cuda_array_interface__
    assert told["descr"] == RECORD.descr
    assert told["data"] == (records.data.ptr, False)
    assert records.nbytes == 32
    assert records.reshape(2, 1).shape == (2, 1)
    assert records.reshape(2, 1).data is records.data
