"""Binding in finer detail: plans that reserve nothing, views that overlap, writes that are none,
odd worlds that are fine.
"""

import itertools
import os
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import pytest

import synknumba as synk
from synknumba._source.access import written_parameters


@synk.function(outputs="sum")
def total_of(x):
    return x.sum()


@synk.function(inout=("y",))
def add_one(y):
    y += 1


@synk.parallel(outputs={"out": synk.output("gather", like="x")})
def copied(x, w, out):
    out[0] = x[0] * w


def segments():
    """Shared memory that this process has: mappings and descriptors."""
    mapped = sum("/synk-" in line for line in Path("/proc/self/maps").read_text().splitlines())
    held = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that listdir had open
            held += "/synk-" in os.readlink(f"/proc/self/fd/{name}")
    return mapped, held


# ---- plan() --------------------------------------------------------------------------------------


def test_plan_reserves_no_memory(no_world):
    before = segments()
    for n in (10, 1_000_000, 10):
        x = np.zeros((n, 2))
        assert total_of.plan(x, world_size=3).rows == n
        assert add_one.plan(x, world_size=3, batch=slice(0, n, 2)).rows == n // 2
        assert copied.plan(x, np.float32(2), world_size=3, num_slices=2).rows == n
        assert total_of.plan({"a": [x]}, world_size=3).rows == n
    assert segments() == before


def test_plan_of_more_than_there_is_memory(no_world):
    """As big as a machine one may have yet to rent: nothing of it is touched."""
    huge = np.broadcast_to(np.float64(1.0), (10**13,))
    report = total_of.plan(huge, world_size=8)
    assert report.rows == 10**13
    assert report.ranks[0].input_bytes == 10**13


def test_plan_of_an_array_is_that_of_its_data(no_world):
    for shape in ((101,), (7, 3), (0, 2), (5, 0)):
        array = np.zeros(shape, "float32")
        held = synk.data(array)
        for batch in (None, slice(0, 3), [0, 0, 2]):
            if batch is not None and len(array) < 3:
                continue
            for num_slices in (1, 2):
                plans = [
                    total_of.plan(x, world_size=3, batch=batch, num_slices=num_slices)
                    for x in (array, held)
                ]
                assert str(plans[0]) == str(plans[1])
                assert [rank.rows for rank in plans[0].ranks] == [
                    rank.rows for rank in plans[1].ranks
                ]


def test_plan_refuses_what_the_call_would_refuse(no_world):
    readonly = np.zeros(4)
    readonly.flags.writeable = False
    with pytest.raises(synk.ArgumentError, match="y is in inout=.*read-only"):
        add_one.plan(readonly, world_size=2)
    with pytest.raises(synk.PartitionError, match="rows"):
        total_of.plan([np.zeros(3), np.zeros(4)], world_size=2)
    with pytest.raises(synk.BatchError):
        total_of.plan(np.zeros(3), batch=[3], world_size=2)
    with pytest.raises(synk.ArgumentError, match="is missing the argument w"):
        copied.plan(np.zeros(3), world_size=2)


# ---- views that overlap --------------------------------------------------------------------------


def test_every_pair_of_arrays_that_overlap_is_refused(no_world):
    @synk.function(inout=("x", "y"))
    def both(x, y):
        x += 1
        y += 10

    with synk.fork(2, device="cpu"):
        a = np.zeros(12)
        views = {
            "first": a[:4],
            "middle": a[2:6],
            "last": a[8:],
            "even": a[:8:2],
            "odd": a[1:8:2],
            "back": a[3::-1],
        }
        for (one, x), (other, y) in itertools.product(views.items(), repeat=2):
            a[:] = 0
            if np.shares_memory(x, y):
                with pytest.raises(synk.ArgumentError, match=r"(y and x|x and y) .*overlap.*copy"):
                    both(x, y)
                assert not a.any(), (one, other)
            else:
                both(x, y)
                assert x.tolist() == [1.0] * 4, (one, other)
                assert y.tolist() == [10.0] * 4, (one, other)
                assert a.sum() == 44


def test_an_input_may_overlap_what_is_written(no_world):
    """It is copied before the ranks begin."""

    @synk.function(inout=("y",))
    def add(x, y):
        y += x

    with synk.fork(2, device="cpu"):
        a = np.arange(6.0)
        add(a[:5], a[1:])
        assert a.tolist() == [0.0, 1.0, 3.0, 5.0, 7.0, 9.0]


# ---- writes that are none ------------------------------------------------------------------------


def test_functions_inside_a_function_have_parameters_of_their_own():
    def outer(x, y):
        def inner(x):
            x[0] = 1

        class Inside:
            def method(self, x):
                x[0] += 1

        inner(y)
        return Inside, [lambda x: x.atomic.add(x, 0, 1)]

    assert written_parameters(outer) == {}


def test_writes_of_the_function_itself_are_found():
    def plain(x, y):
        if y[0]:
            for _ in range(3):
                x[0] += 1

        def inner(y):
            y[0] = 1

        inner(x)

    assert list(written_parameters(plain)) == ["x"]

    def rebinds(x):
        x = x.copy()
        x[0] = 1
        return x

    assert written_parameters(rebinds) == {}


def test_an_array_that_is_added_to_is_written():
    def adds(x, y, z):
        x += 1
        y = y + 1
        y += 1
        z.total += 1
        return y

    assert list(written_parameters(adds)) == ["x"]

    @synk.function(outputs="sum")
    def doubled(x, k):
        k += 1  # a number is the function's own
        x *= k
        return x.sum()

    x = synk.data(np.ones(4))
    with (
        synk.fork(1, device="cpu"),
        pytest.raises(synk.ArgumentError, match=r"writes to x, which is an input.*inout="),
    ):
        doubled(x, 1)
    assert x.data.sum() == 4


def test_a_name_that_an_inner_function_rebinds_is_still_written():
    def outer(x):
        def inner():
            x = [0]
            return len(x)

        x[0] = inner()

    assert list(written_parameters(outer)) == ["x"]


# ---- worlds --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "timeout",
    [np.int64(30), np.float32(30), np.uint8(30), 30, 30.0],
    ids=lambda t: type(t).__name__,
)
def test_a_timeout_of_any_real_type(no_world, timeout):
    with synk.fork(1, device="cpu", timeout=timeout):
        assert total_of(np.arange(5.0)) == 10


@pytest.mark.parametrize("timeout", [1j, np.bool_(True), "30", np.nan, np.int64(0), [30]], ids=repr)
def test_a_timeout_that_is_no_number_of_seconds(no_world, timeout):
    with pytest.raises(synk.PartitionError, match="timeout must be a positive number of seconds"):
        synk.fork(1, device="cpu", timeout=timeout)


@pytest.mark.parametrize("devices", [5, 0, 1.5], ids=repr)
def test_devices_that_are_no_list(no_world, devices, monkeypatch):
    from synknumba._device import DeviceReport
    from synknumba._world import placement

    with pytest.raises(synk.PartitionError, match="devices="):
        synk.fork(device="cpu", devices=devices)
    monkeypatch.setattr(placement, "probed", lambda: nullcontext(DeviceReport(2)))
    monkeypatch.setattr(placement, "cuda_is_initialised", lambda: False)
    with pytest.raises(synk.PartitionError, match="devices must list a GPU for each rank"):
        synk.fork(devices=devices)
