"""Submitted calls: the results of plain calls, while the script goes on; one in flight; errors
that stay in the future.
"""

import asyncio
import concurrent.futures
import copy
import gc
import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import cuda

import synknumba as synk
from synknumba._errors import ArgumentError, BatchError, RankError, ReductionError, WorldError
from tests.quick import whole

PATIENCE = 30.0  # seconds until a rank that waits for a file gives up
ROWS = np.arange(1003.0)


@synk.function(outputs="sum")
def total(x):
    return x.sum()


@synk.function(outputs=None)
def await_file(path):
    """Returns whether the file was there in time, on each rank."""
    until = time.monotonic() + PATIENCE
    while not Path(path).exists() and time.monotonic() < until:
        time.sleep(0.001)
    return Path(path).exists()


@synk.function(outputs="sum")
def fail(x):
    raise ValueError("on purpose")


@synk.parallel(
    outputs={
        "total": synk.output("sum", shape=(), dtype="float64"),
        "most": synk.output("max", shape=(), dtype="float64"),
    }
)
def sums(x, factor, total, most):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(total, 0, factor * x[i])
        cuda.atomic.max(most, 0, factor * x[i])


@synk.parallel(outputs={"y": synk.output("gather", shape=(), dtype="float64")})
def twice(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = 2 * x[i]


@synk.parallel(outputs={"best": synk.output("argmax", shape=(), dtype="float64")})
def peak(x, best):
    i = cuda.grid(1)
    if i < x.shape[0]:
        best[i] = -abs(x[i] - 700.5)


@synk.parallel(inout=("x",))
def add_one(x):
    i = cuda.grid(1)
    if i < x.shape[0]:
        x[i] += 1.0


@synk.function(outputs="sum", broadcast=("shape",))
def large(x, shape):
    return np.full(shape.tolist(), float(len(x)))


@synk.expectation
def square(x, factor):
    return factor * x * x


@synk.vectorize
def product(x, y):
    return x * y


def hold(tmp_path: Path) -> tuple[synk.Future[Any], Path]:
    """Submits a call that ends when the file is made."""
    gate = tmp_path / "gate"
    return await_file.submit(str(gate)), gate


# ---- results


CALLS: dict[str, Callable[[Any], Any]] = {
    "function": lambda f: f(total, ROWS),
    "kernel": lambda f: f(sums, ROWS, 0.5),
    "data": lambda f: f(sums, synk.data(ROWS), 2.0),
    "gather": lambda f: f(twice, ROWS),
    "batch": lambda f: f(twice, ROWS, batch=[5, 900, 7]),
    "slices": lambda f: f(twice, ROWS, num_slices=3),
    "subset": lambda f: f(sums, ROWS, 3.0, output_subset="most"),
    "shards": lambda f: f(total, ROWS, shards=4),
    "argmax": lambda f: f(peak, ROWS, batch=slice(100, None)),
    "large": lambda f: f(large, ROWS, np.array([300, 500])),
    "keyword": lambda f: f(sums, x=ROWS, factor=0.25),
    "grid": lambda f: f(twice[64, 32], ROWS),
    "expectation": lambda f: f(square, ROWS, 2.0),
    "blocks": lambda f: f(square, ROWS, 2.0, block=10),
    "overflow": lambda f: f(square, ROWS, 1e200),
    "vectorize": lambda f: f(product, ROWS.reshape(-1, 1), np.ones((len(ROWS), 3))),
}
EXPECTED: dict[str, Any] = {
    "function": ROWS.sum(),
    "kernel": (0.5 * ROWS.sum(), 0.5 * ROWS.max()),
    "data": (2 * ROWS.sum(), 2 * ROWS.max()),
    "gather": 2 * ROWS,
    "batch": 2 * ROWS[[5, 900, 7]],
    "slices": 2 * ROWS,
    "subset": 3 * ROWS.max(),
    "shards": ROWS.sum(),
    "argmax": (-0.5, 700),
    "large": np.full((300, 500), float(len(ROWS))),
    "keyword": (0.25 * ROWS.sum(), 0.25 * ROWS.max()),
    "grid": 2 * ROWS,
}


def submitted(function: Any, *args: Any, **options: Any) -> Any:
    return function.submit(*args, **options).result()


COSTLY = "blocks", "overflow", "vectorize"  # to compile


@pytest.mark.parametrize("what", [*(what for what in CALLS if what not in COSTLY), *whole(*COSTLY)])
def test_results_are_those_of_plain_calls(world, what):
    del world
    plain = CALLS[what](lambda function, *args, **options: function(*args, **options))
    for _ in range(3):  # planned, repeated, lent
        got = CALLS[what](submitted)
        assert type(got) is type(plain)
        if isinstance(got, synk.Estimate):
            assert (got.mean, got.stderr, got.count) == (plain.mean, plain.stderr, plain.count)
        else:
            np.testing.assert_array_equal(got, plain)
        if what in EXPECTED:
            np.testing.assert_array_equal(got, EXPECTED[what])


def test_known_calls_are_submitted_with_new_numbers(world):
    del world
    x = synk.data(ROWS)
    assert [sums.submit(x, float(i)).result().total for i in range(5)] == [
        i * ROWS.sum() for i in range(5)
    ]


def test_rows_are_written_back(world):
    del world
    x, y = ROWS.copy(), synk.data(ROWS)
    add_one.submit(x).result()
    add_one.submit(y).result()
    np.testing.assert_array_equal(x, ROWS + 1)
    np.testing.assert_array_equal(y.data, ROWS + 1)
    out = synk.data(np.zeros(len(ROWS)))
    assert product.submit(ROWS, 2.0, out=out).result() is out
    np.testing.assert_array_equal(out.data, 2 * ROWS)


@pytest.mark.parametrize("shards", [None, 4])
def test_variables_are_updated(world, shards):
    del world
    v = synk.variable(np.zeros(2))

    @synk.function(updates={"v": (v, "sum")}, outputs="sum")
    def step(x, v):
        v += x.sum()
        return x.sum()

    step(ROWS, shards=shards)
    plain = v.get_value()
    assert shards is None or plain[0] == ROWS.sum()
    v.set_value(np.zeros(2))
    future = step.submit(ROWS, shards=shards)
    np.testing.assert_array_equal(v.get_value(), plain)  # waits for the call
    assert repr(future).endswith("done>")
    assert future.result() == ROWS.sum()


def test_large_results_are_kept(world):
    del world
    shape = np.array([300, 500])
    futures = [large.submit(ROWS[:n], shape) for n in (100, 200, 300, 400)]
    assert [float(one.result()[0, 0]) for one in futures] == [100.0, 200.0, 300.0, 400.0]


# ---- the script goes on


def test_the_script_goes_on_while_ranks_work(world, tmp_path):
    future, gate = hold(tmp_path)
    assert not future.done()
    assert repr(future).startswith("<Future of await_file(")
    assert repr(future).endswith("in flight>")
    with pytest.raises(TimeoutError, match="has not ended within 0.01 s"):
        future.result(timeout=0.01)
    with pytest.raises(TimeoutError):
        future.exception(timeout=0)
    gate.touch()  # what the ranks wait for
    assert future.result(timeout=PATIENCE) == [True] * world.world_size
    assert future.done()
    assert future.exception() is None


def test_done_sees_the_end_without_waiting(world, tmp_path):
    future, gate = hold(tmp_path)
    gate.touch()
    until = time.monotonic() + PATIENCE
    while not future.done():
        assert time.monotonic() < until
        time.sleep(0.001)
    assert repr(future).endswith("in flight>")  # nobody has collected the result
    assert all(future.result(timeout=0))
    del world


def test_arrays_are_copied_before_submit_returns(world, tmp_path):
    @synk.function(outputs="sum")
    def late(path, x):
        until = time.monotonic() + PATIENCE
        while not Path(path).exists() and time.monotonic() < until:
            time.sleep(0.001)
        return x.sum()

    x, gate = ROWS.copy(), tmp_path / "gate"
    future = late.submit(str(gate), x)
    x[:] = -1.0
    gate.touch()
    assert future.result() == ROWS.sum()
    del world


USES: dict[str, Callable[[synk.Variable], Any]] = {
    "call": lambda _: total(ROWS),
    "submit": lambda _: total.submit(ROWS).result(),
    "serial": lambda _: total.as_serial(ROWS),
    "expectation": lambda _: square(ROWS, 1.0),
    "collective": lambda v: synk.all_reduce(v, "sum"),
    "value": lambda v: v.get_value(),
}


@pytest.mark.parametrize("use", USES)
def test_other_uses_wait_for_the_call(world, tmp_path, use):
    v = synk.variable(np.zeros(3))
    v.get_value()
    synk.all_reduce(v, "sum")
    future, gate = hold(tmp_path)
    opener = threading.Timer(0.05, gate.touch)
    opener.start()
    USES[use](v)
    opener.join()
    assert gate.exists()
    assert repr(future).endswith("done>")
    assert future.result(timeout=0) == [True] * world.world_size


def test_several_submits_end_in_order(world):
    del world
    x = synk.data(ROWS)
    futures = [sums.submit(x, float(i)) for i in range(20)]
    assert [repr(one).endswith("done>") for one in futures] == [True] * 19 + [False]
    assert [one.result().total for one in reversed(futures)] == [
        i * ROWS.sum() for i in reversed(range(20))
    ]


def test_freeing_memory_waits_for_the_call(world, tmp_path):
    x = synk.data(ROWS)
    total(x)
    future, gate = hold(tmp_path)
    del x
    gc.collect()
    synk.data(ROWS)  # makes a segment, before which others would be freed
    assert world.statistics().calls > 0
    assert not future.done()
    gate.touch()
    assert all(future.result())
    assert total(ROWS) == ROWS.sum()


# ---- errors


def test_errors_arrive_at_result(world):
    future = fail.submit(ROWS)
    error = future.exception()
    assert isinstance(error, RankError)
    assert "on purpose" in str(error)
    for _ in range(2):
        with pytest.raises(RankError, match="on purpose"):
            future.result()
    assert repr(future).endswith("failed with RankError>")
    assert future.done()
    assert not world.closed
    assert total(ROWS) == ROWS.sum()


def test_an_error_stays_in_its_future(world):
    del world
    future = fail.submit(ROWS)
    assert total(ROWS) == ROWS.sum()
    with pytest.raises(RankError, match="on purpose"):
        future.result()


def test_errors_of_collecting_arrive_at_result(world):
    @synk.function(outputs="sum", broadcast=("n",))
    def ragged(x, n):
        return np.ones(int(synk.rank()) + 1)

    future = ragged.submit(ROWS, 1)
    if world.world_size == 1:
        assert future.result() == np.ones(1)
    else:
        with pytest.raises(ReductionError, match="different shapes"):
            future.result()


def test_what_is_wrong_with_arguments_is_raised_at_once(world):
    del world
    with pytest.raises(ArgumentError, match="has no parameter"):
        total.submit(y=ROWS)
    with pytest.raises(BatchError):
        total.submit(ROWS, batch=len(ROWS) + 1)
    with pytest.raises(ArgumentError, match="submit takes no until=.* add the estimates"):
        square.submit(ROWS, 1.0, until=lambda e: e.stderr < 1.0)
    with pytest.raises(ArgumentError, match="submit takes no max_rows="):
        square.submit(ROWS, 1.0, max_rows=10)
    for timeout in ("1", True, float("nan")):
        with pytest.raises(
            ArgumentError, match=r"timeout of result\(\) must be a number of seconds"
        ):
            total.submit(ROWS).result(timeout)
    assert total.submit(ROWS).result(timeout=float("inf")) == ROWS.sum()


def test_a_failed_function_is_sent_again(world):
    del world
    values = {"a": None}

    @synk.function(outputs="sum")
    def reads(x):
        return x.sum() * values["a"]

    assert isinstance(reads.submit(ROWS).exception(), RankError)
    values["a"] = 2.0
    assert reads.submit(ROWS).result() == 2 * ROWS.sum()


def test_a_dropped_future_is_no_error(world):
    del world
    total.submit(ROWS)
    assert total(ROWS) == ROWS.sum()


def test_the_error_of_a_dropped_future_is_warned_of(world):
    del world
    fail.submit(ROWS)
    with pytest.warns(
        RuntimeWarning, match=r"(?s)submitted call of fail\(.* nobody asked .*RankError.*on purpose"
    ) as seen:
        assert total(ROWS) == ROWS.sum()
    assert [one.filename for one in seen] == [__file__]
    future = fail.submit(ROWS)
    assert total(ROWS) == ROWS.sum()
    del future
    with pytest.warns(RuntimeWarning, match="nobody asked"):
        assert total(ROWS) == ROWS.sum()


def test_a_warning_that_is_an_error_leaves_the_world_usable(world):
    del world
    fail.submit(ROWS)
    with pytest.raises(RuntimeWarning, match="nobody asked"):
        total(ROWS)
    assert total(ROWS) == ROWS.sum()


def test_a_future_is_of_this_process_only(world):
    del world
    future = total.submit(ROWS)
    for refused in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(
            ArgumentError, match=r"cannot be pickled or copied.* pass its result\(\)"
        ):
            refused(future)
    assert future.result() == ROWS.sum()


# ---- futures of Python


def test_an_event_loop_goes_on_while_a_call_is_in_flight(world, tmp_path):
    async def serve():
        future = await_file.submit(str(tmp_path / "there"))
        found = asyncio.wrap_future(future)
        await asyncio.sleep(0.05)  # ends before the call, for which it opens the way
        assert not found.done()
        assert future.running()
        (tmp_path / "there").touch()
        assert await found == [True] * world.world_size
        with pytest.raises(RankError, match="on purpose"):
            await asyncio.wrap_future(fail.submit(ROWS))
        futures = [asyncio.wrap_future(total.submit(factor * ROWS)) for factor in range(3)]
        return await asyncio.gather(*futures)

    assert asyncio.run(serve()) == [factor * ROWS.sum() for factor in range(3)]


def test_an_event_loop_that_gives_up_leaves_the_call_in_flight(world, tmp_path):
    async def give_up():
        future = await_file.submit(str(tmp_path / "there"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(future), 0.05)
        return future

    future = asyncio.run(give_up())
    assert not future.cancel()
    assert not future.cancelled()
    (tmp_path / "there").touch()
    assert future.result(PATIENCE) == [True] * world.world_size
    assert total(ROWS) == ROWS.sum()


def test_several_rounds_go_on_for_an_event_loop(world):
    @synk.sequence
    def rounds(v):
        return each(v)

    async def serve():
        return await asyncio.wrap_future(rounds.submit(synk.variable(np.ones(2)), times=5, every=1))

    assert asyncio.run(serve()).shape == (5, world.world_size)


@synk.function(outputs=None)
def each(v):
    return v.sum()


def test_futures_as_completed(world):
    del world
    submitted = [total.submit(factor * ROWS) for factor in range(4)]
    assert {future.result() for future in concurrent.futures.as_completed(submitted)} == {
        k * ROWS.sum() for k in range(4)
    }
    # has ended before
    assert [future.result() for future in concurrent.futures.as_completed(submitted[:1])] == [0.0]
    for failing, when in (
        (fail, concurrent.futures.FIRST_EXCEPTION),
        (total, concurrent.futures.ALL_COMPLETED),
    ):
        future = failing.submit(ROWS)
        done, rest = concurrent.futures.wait([future], timeout=PATIENCE, return_when=when)
        assert (done, rest) == ({future}, set())
        assert (future.exception() is None) is (failing is total)


def test_callbacks(world, tmp_path):
    called = []

    def call_back(future):
        called.append((future, threading.current_thread()))

    future = await_file.submit(str(tmp_path / "there"))
    future.add_done_callback(call_back)
    assert not called
    (tmp_path / "there").touch()
    assert total(ROWS) == ROWS.sum()  # ends the call in flight; the thread calls back soon
    concurrent.futures.wait([future], timeout=PATIENCE)
    until = time.monotonic() + PATIENCE
    while not called and time.monotonic() < until:
        time.sleep(0.001)
    assert called[0][0] is future
    assert called[0][1] is not threading.current_thread()
    future.add_done_callback(call_back)
    assert called[1] == (future, threading.current_thread())
    assert future.result() == [True] * world.world_size


# ---- threads and the end


def test_another_thread_waits_for_the_result(world, tmp_path):
    future, gate = hold(tmp_path)
    got: list[Any] = []
    threads = [threading.Thread(target=lambda: got.append(future.result())) for _ in range(3)]
    for thread in threads:
        thread.start()
    with pytest.raises(TimeoutError):
        future.result(timeout=0.05)
    gate.touch()
    for thread in threads:
        thread.join()
    assert got == [[True] * world.world_size] * 3
    assert total(ROWS) == ROWS.sum()


def test_another_threads_call_waits(world, tmp_path):
    future, gate = hold(tmp_path)
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(total(ROWS)))
    thread.start()
    gate.touch()
    thread.join()
    assert got == [ROWS.sum()]
    assert all(future.result(timeout=0))
    del world


def test_closing_waits_for_the_call(fork_row, tmp_path):
    world = fork_row()
    await_file(str(tmp_path))
    future, gate = hold(tmp_path)
    opener = threading.Timer(0.05, gate.touch)
    opener.start()
    world.close()
    opener.join()
    assert world.end_reason is None
    assert future.result() == [True] * world.world_size
    with pytest.raises(WorldError):
        total.submit(ROWS)
