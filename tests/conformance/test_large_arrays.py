"""Arrays that the coordinator copies by several threads: whole, cast, in any layout, and
untouched by later calls.
"""

import threading

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import synknumba as synk
from synknumba._host import copying
from tests.conformance import kernels

ROWS = 3 * copying.SHARE // 8 + 5  # of float64: three threads, where there are cores


@pytest.fixture(scope="module")
def x():
    return np.arange(float(ROWS))


def test_gathered_rows_are_all_there_and_stay(world, x):
    threads = threading.active_count()
    first = kernels.axpy(2.0, x, x)
    second = kernels.axpy(3.0, synk.data(x), synk.data(x))
    assert_array_equal(first, 3 * x)
    assert_array_equal(second, 4 * x)
    assert threading.active_count() == threads


def test_rows_are_written_back(world, x):
    for y in (x.copy(), np.repeat(x, 2)[::2], x.astype(">f8")):
        kernels.scale(y, 3.0)
        assert_array_equal(y, 3 * x)


def test_values_are_cast_on_their_way(world, x):
    d = synk.data(x.astype("i4"), dtype="f8")
    kernels.scale(d, 0.5)
    assert_array_equal(d, x / 2)
    d.set_value(np.arange(ROWS + 1, dtype="f4"), oversize=1.5)
    assert_array_equal(d, np.arange(ROWS + 1, dtype="f4"))
