"""Deaths of objects: no code in Python runs there, as Python loses what a signal handler raises
in it.
"""

import gc
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import synknumba as synk
from synknumba._host import deaths
from synknumba._types import WeakTable

X = np.arange(12.0)


class CameError(Exception):
    """Raised by the test's signal handler."""


def a_data(_):
    data = synk.data(X)
    data.set_value(np.arange(100.0))  # grows
    return data


def a_mapped_file(path):
    np.save(path / "x.npy", X)
    return synk.data(np.load(path / "x.npy", mmap_mode="r"), copy=False)


def a_view_of_a_variable(_):
    variable = synk.variable(X)
    double(variable)
    return variable


def a_function(_):
    function = synk.function(lambda x: x.sum(), outputs="sum")
    function(X)
    return function


def a_kernel(_):
    def fill(x):
        for i in range(x.shape[0]):
            x[i] = 1

    kernel = synk.parallel(fill, inout=("x",), grid=1, block=1)
    kernel(synk.data(X))
    return kernel


def an_elementwise_function(_):
    function = synk.vectorize(lambda x: 2 * x)
    function(X)
    return function


def an_expectation(_):
    function = synk.expectation(lambda x: 2 * x)
    function(X)
    return function


def a_sequence(_):
    variable = synk.variable(X)

    @synk.sequence
    def body(v):
        double(v)

    body(variable)
    return body


def a_future(_):
    future = total.submit(X)
    future.result()
    return future


@synk.function
def double(x):
    x *= 2


@synk.function(outputs="sum")
def total(x):
    return x.sum()


KINDS = [
    a_data,
    a_mapped_file,
    a_view_of_a_variable,
    a_function,
    a_kernel,
    an_elementwise_function,
    an_expectation,
    a_sequence,
    a_future,
]


def entered_by(act: Callable[[], object]) -> list[str]:
    """Returns the functions in Python that run in a call of `act`."""
    entered: list[str] = []

    def note(frame: Any, event: str, _: object) -> None:
        if event == "call":
            entered.append(f"{frame.f_code.co_qualname} ({frame.f_code.co_filename})")

    gc.collect()
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return entered


class TestNothingRuns:
    def test_the_profile_sees_finalizers(self):
        class Finalized:
            def __del__(self):
                pass

        box = [Finalized()]
        assert len(entered_by(box.clear)) == 1

    @pytest.mark.parametrize("make", KINDS)
    def test_when_it_dies(self, make, tmp_path):
        with synk.fork(2):
            box = [make(tmp_path)]

            def drop():
                box.clear()
                gc.collect()

            entered = entered_by(drop)
            assert [
                name
                for name in entered
                if "synknumba" in name or "Set." in name or "KeyDictionary" in name
            ] == []
            assert total(X) == X.sum()


@pytest.mark.parametrize("trials", [100, pytest.param(1000, marks=pytest.mark.whole)])
def test_no_signal_is_lost_where_data_are_dropped(trials):
    def handler(*_):
        raise CameError

    def drop_until(seconds):
        signal.setitimer(signal.ITIMER_REAL, seconds)
        for _ in range(2_000):  # 0.2 s and more
            synk.data(X)

    synk.data(X)  # an import that a signal breaks off leaves files open
    before = signal.signal(signal.SIGALRM, handler)
    rng = np.random.default_rng(1)
    try:
        for _ in range(trials):
            with pytest.raises(CameError):
                drop_until(rng.uniform(0.0005, 0.003))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_settled_once():
    done: list[int] = []
    objects = [threading.Event() for _ in range(5)]
    for number, watched in enumerate(objects):
        deaths.when_gone(watched, lambda number=number: done.append(number))
    del watched
    deaths.settle()
    assert done == []
    del objects[1::2]
    assert done == []
    deaths.settle()
    deaths.settle()
    assert sorted(done) == [1, 3]


class TestWeakTable:
    def test_ends_with_its_keys(self):
        table: WeakTable[threading.Event, int] = WeakTable()
        first, second = threading.Event(), threading.Event()
        table[first] = 1
        assert table.setdefault(first, 3) == 1
        assert table.setdefault(second, 2) == 2
        assert list(table) == [first, second]
        assert table.items() == [(first, 1), (second, 2)]
        del first
        assert table.items() == [(second, 2)]
        assert second in table
        table.pop(second)
        table.pop(second)
        assert table.get(second) is None
        assert list(table) == []

    def test_keys_that_are_equal_are_not_the_same(self):
        class Equal:
            def __eq__(self, other):
                return True

            __hash__ = None

        table, pair = WeakTable(), (Equal(), Equal())
        table[pair[0]] = 1
        assert table.get(pair[1]) is None
