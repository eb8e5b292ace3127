"""Bars of `progress=`, as a stand-in for tqdm has seen them: they only go on, end at the total,
and are closed once.
"""

import os
import signal
import sys
import threading
import time
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from numba import cuda

import synknumba as synk
from synknumba import _progress
from tests.conformance.conftest import REPLAYED, start

NAP = 0.03


class Tqdm:
    """What a bar of tqdm is told; `at` is called with each number that is shown."""

    made: ClassVar[list["Tqdm"]] = []
    at = staticmethod(lambda n: None)

    def __init__(self, desc, unit, total, leave, miniters, mininterval, dynamic_ncols):
        self.desc, self.unit, self.total = desc, unit, total
        self.n, self.seen, self.lags, self.closed, self.start_t = 0, [0], set(), 0, time.time()
        self.made.append(self)

    def set_postfix_str(self, text, refresh):
        self.lags.add(text)

    def update(self, k):
        assert k >= 0
        assert not self.closed
        self.n += k
        self.seen.append(self.n)
        self.at(self.n)

    def close(self):
        self.closed += 1

    @property
    def between(self):
        """What was shown of work that was neither not begun nor done."""
        return sorted({n for n in self.seen if 0 < n < self.total})


@pytest.fixture
def tqdm(monkeypatch):
    fake = type("Fake", (Tqdm,), {"made": []})
    monkeypatch.setitem(sys.modules, "tqdm.auto", SimpleNamespace(tqdm=fake))
    return fake


def make_terminal(monkeypatch):
    """Makes stderr a terminal; in the test, since pytest sets it after the fixtures."""
    monkeypatch.setattr(
        sys,
        "stderr",
        SimpleNamespace(isatty=lambda: True, write=lambda text: None, flush=lambda: None),
    )


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.whole), 3])
def ranks(request):
    with synk.fork(request.param, device="cpu"):
        yield request.param


@pytest.fixture
def two():
    with synk.fork(2, device="cpu") as world:
        yield world


def only(tqdm, total):
    """The one bar that was made, after it has shown that all is done."""
    (bar,) = tqdm.made
    assert bar.closed == 1
    assert bar.n == bar.total == total
    return bar


@synk.function(outputs="sum")
def slow_sum(x, rank, seconds=NAP):
    time.sleep(seconds * (1 + rank))
    return x.sum()


@synk.function(outputs="sum")
def last_of(x, which, seconds=NAP):
    time.sleep(seconds)
    if x[-1] >= which:
        raise ValueError("here")
    return x.sum()


@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def slow_kernel(x, n, total):
    i = cuda.grid(1)
    if i < x.shape[0]:
        v = x[i]
        for _ in range(n):
            v = v * 0.5 + 0.5
        cuda.atomic.add(total, 0, v)


@synk.function
def nap(v, rank, seconds):
    time.sleep(seconds * (1 + rank))
    v += 1.0


@synk.sequence
def naps(v, seconds=0.002):
    nap(v, synk.RANK, seconds)


@synk.parallel
@cuda.jit
def grow(v, n):
    i = cuda.grid(1)
    if i < v.shape[0]:
        for _ in range(n):
            v[i] = v[i] * 0.5 + 0.5


@synk.sequence
def grows(v, n):
    grow(v, n)


@synk.sequence
def sums(x, v):
    nap(v, 0, 0.01)
    return slow_sum(x, 0, 0.0)


# ---- slices


def test_slices_of_functions(ranks, tqdm):
    x = np.arange(100.0)
    for _ in range(2):
        tqdm.made.clear()
        assert slow_sum(x, synk.RANK, num_slices=6, progress=True) == x.sum()
        bar = only(tqdm, 6 * ranks)
        assert (bar.desc, bar.unit) == ("slow_sum", " slices")
        assert len(bar.between) > 1
        assert any("behind" in lag for lag in bar.lags) == (ranks > 1)
    assert slow_sum(x, synk.RANK, 0.0, num_slices=6) == x.sum()
    assert len(tqdm.made) == 1


def test_slices_of_kernels_that_compiled_code_repeats(two, tqdm):
    x = synk.data(np.ones(200))
    for n in (1000, 1000, 1000, 5_000_000):  # scalars change in compiled code
        tqdm.made.clear()
        assert slow_kernel(x, n, num_slices=8, progress=True) == 200
        only(tqdm, 16)
    assert tqdm.made[0].between


def test_shards_and_slices(tqdm):
    with synk.fork(3, device="cpu"):
        x = synk.data(np.arange(100.0))
        assert slow_sum(x, 0, 0.1, shards=4, num_slices=2, progress=True) == x.data.sum()
        assert only(tqdm, 8).between
        with synk.options(progress=True):  # found by the quick path of calls without options before
            assert slow_sum(x, 0, 0.0, shards=4) == x.data.sum()
            assert slow_sum(x, 0, 0.0, shards=4) == x.data.sum()
            assert slow_sum(x, 0, 0.0) == x.data.sum()  # one part of each rank
        assert [bar.total for bar in tqdm.made] == [8, 4, 4]
        assert slow_sum(x, 0, 0.0, shards=4) == x.data.sum()
        assert len(tqdm.made) == 3


@pytest.mark.parametrize("rows", [1, 3])
def test_slices_without_rows_count(two, tqdm, rows):
    assert slow_sum(np.ones(rows), 0, num_slices=4, progress=True) == rows
    only(tqdm, 8)
    assert slow_kernel(np.ones(rows), 10, num_slices=4, progress=True) == rows
    assert tqdm.made[1].n == 8


def test_a_call_in_one_part(two, tqdm):
    assert slow_sum(np.ones(10), 0, progress=True) == 10
    only(tqdm, 2)


def test_devices_with_memory_of_their_own_record_it(tqdm):
    with start(REPLAYED.values[0]):
        x = synk.data(np.ones(200))
        for n in (1000, 1000, 1000, 5_000_000):
            tqdm.made.clear()
            assert slow_kernel(x, n, num_slices=8, progress=True) == 200
            bar = only(tqdm, 8 * synk.world_size())
        assert bar.between


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(
            lambda **options: synk.vectorize(lambda x: 2 * x)(np.arange(8.0), **options).sum() / 2,
            marks=pytest.mark.whole,
        ),
        pytest.param(
            lambda **options: synk.expectation(lambda x: x)(np.arange(8.0), **options).mean * 8,
            marks=pytest.mark.whole,
        ),
        pytest.param(
            lambda **options: synk.vectorize(lambda x, y: x + y).reduce(np.arange(8.0), **options),
            marks=pytest.mark.whole,
        ),
    ],
    ids=["vectorize", "expectation", "reduce"],
)
def test_functions_of_rows(two, tqdm, call):
    assert call(num_slices=2, progress=True) == 28
    only(tqdm, 4)


# ---- sequences


def test_iterations(ranks, tqdm):
    v = synk.variable(np.zeros(3))
    naps(v, times=100, progress=True)
    bar = only(tqdm, 100)
    assert (bar.desc, bar.unit) == ("naps", "it")
    assert len(bar.between) > 1
    assert any(lag.startswith(f"rank {ranks - 1} is ") for lag in bar.lags) == (ranks > 1)
    np.testing.assert_array_equal(v.get_value(), 100)


def test_iterations_that_compiled_code_repeats(two, tqdm):
    v = synk.variable(np.zeros(8))
    for _ in range(3):
        tqdm.made.clear()
        grows(v, 3000, times=12_000, progress=True)
        bar = only(tqdm, 12_000)
    assert bar.between


@pytest.mark.parametrize(
    ("options", "done"),
    [
        ({"times": 12, "every": 3}, 12),
        ({"times": 11, "every": 4}, 11),
        ({"times": 12, "until": 13}, 12),
        ({"times": 12, "until": 5}, 5),
        ({"times": 1}, 1),
        ({}, 1),
    ],
)
def test_rounds_are_one_bar(two, tqdm, options, done):
    v = synk.variable(np.zeros(3))
    if "until" in options:
        judged = iter(range(1, 99))
        options = options | {"until": lambda total, end=options["until"]: next(judged) == end}
    sums(np.ones(10), v, **options, progress=True)
    bar = only(tqdm, done)
    np.testing.assert_array_equal(v.get_value(), done)
    if "until" in options:
        assert bar.seen[1:] == sorted(bar.seen[1:])
        assert set(range(1, done + 1)) <= set(bar.seen)


@synk.expectation
def number(x):
    return x


@pytest.mark.parametrize("options", [{}, {"shards": 4}])
def test_rows_until_a_condition_are_one_bar(two, tqdm, options):
    values = np.arange(1000.0)
    call = {"until": lambda e: e.count > 120, "min_rows": 100, "progress": True, **options}
    estimate = number(values, **call)
    (bar,) = tqdm.made
    assert (bar.desc, bar.seen, bar.total, bar.closed) == ("number", [0, 100, 125], 125, 1)
    assert str(estimate) in bar.lags
    assert estimate.count == 125
    with pytest.raises(synk.ArgumentError, match="as_serial"):
        number.as_serial(values, **call)
    with pytest.raises(ZeroDivisionError):
        number(values, **{**call, "until": lambda e: 1 / 0})
    assert [bar.closed for bar in tqdm.made] == [1, 1]


def test_no_iterations(two, tqdm):
    naps(synk.variable(np.zeros(3)), times=0, progress=True)
    assert tqdm.made == []


@pytest.mark.whole
def test_an_epoch(two, tqdm):
    def gradient(x, y, w):
        error = x @ w - y
        return (error**2).sum(), 2 * x.T @ error

    x = np.random.default_rng(0).normal(size=(64, 2))
    step = synk.train.step(gradient, np.zeros(2), synk.optim.sgd(0.1))
    step.epoch(x, x @ [1.0, 2.0], order=synk.batches(64, 16, seed=0).order(0), progress=True)
    only(tqdm, 4)


# ---- the end


def test_an_error_closes_the_bar(two, tqdm):
    x = np.arange(40.0)
    with pytest.raises(synk.RankError, match="here"):
        # rank 0 in its last slice, rank 1 in its first
        last_of(x, 19.0, num_slices=4, progress=True)
    (bar,) = tqdm.made
    assert bar.closed == 1
    assert bar.n < bar.total
    assert last_of(x, 99.0, num_slices=4, progress=True) == x.sum()
    assert tqdm.made[1].n == 8


def test_an_error_in_an_iteration_closes_the_bar(two, tqdm):
    @synk.function
    def fails(v, step):
        time.sleep(NAP)
        if step == 8:
            raise ValueError("here")

    @synk.sequence
    def loop(v):
        fails(v, synk.STEP)

    with pytest.raises(synk.RankError, match="here"):
        loop(synk.variable(np.zeros(3)), times=20, progress=True)
    (bar,) = tqdm.made
    assert bar.closed == 1
    assert 0 < bar.n <= 8


@pytest.mark.parametrize("kind", ["slices", "iterations"])
def test_interrupts_close_the_bar(tqdm, kind):
    tqdm.at = staticmethod(lambda n: n >= 2 and signal.raise_signal(signal.SIGINT))
    calls = {
        "slices": lambda: slow_sum(np.ones(100), 0, num_slices=100, progress=True),
        "iterations": lambda: naps(synk.variable(np.zeros(3)), 0.01, times=1000, progress=True),
    }
    with synk.fork(2, device="cpu") as world, pytest.raises(KeyboardInterrupt):
        calls[kind]()
    assert world.closed
    (bar,) = tqdm.made
    assert bar.closed == 1
    assert 0 < bar.n < bar.total


def test_deaths_close_the_bar(tqdm):
    @synk.function
    def dies(x, rank):
        time.sleep(NAP)
        if rank == 1 and x[0] > 30:
            os.kill(os.getpid(), signal.SIGKILL)

    with synk.fork(2, device="cpu"), pytest.raises(synk.RankDied):
        dies(np.arange(40.0), synk.RANK, num_slices=8, progress=True)
    (bar,) = tqdm.made
    assert bar.closed == 1


def test_a_terminal_that_is_gone_ends_no_call(two, tqdm):
    def gone(n):
        raise OSError("gone")

    tqdm.at = staticmethod(gone)
    assert slow_sum(np.ones(100), 0, num_slices=5, progress=True) == 100
    naps(synk.variable(np.zeros(3)), 0.01, times=20, progress=True)
    assert [bar.closed for bar in tqdm.made] == [1, 1]


# ---- options


def test_off_and_auto_print_nothing(two, tqdm, capfd):
    x, v = np.ones(100), synk.variable(np.zeros(3))
    capfd.readouterr()
    for progress in (False, "auto", None):
        assert slow_sum(x, 0, 0.0, num_slices=3, progress=progress) == 100
        naps(v, 0.0, times=10, progress=progress)
        assert len(list(synk.batches(10, 5, seed=0, progress=progress))) == 2
    with synk.options(progress="auto"):
        assert slow_sum(x, 0, 0.2, num_slices=3) == 100
    assert tqdm.made == []
    assert capfd.readouterr() == ("", "")


def test_auto_on_a_terminal(two, tqdm, monkeypatch):
    make_terminal(monkeypatch)
    x, v = np.ones(100), synk.variable(np.zeros(3))
    with synk.options(progress="auto"):
        assert slow_sum(x, 0, 0.0, num_slices=3) == 100
        naps(v, 0.0, times=10)
        assert tqdm.made == []  # over at once
        began = time.time()
        naps(v, 0.01, times=50)  # a second, on rank 1
        bar = only(tqdm, 50)
        # the clock counts from the beginning
        assert bar.start_t < began + _progress.AUTO_SECONDS / 2
        assert slow_sum(x, 0, 0.08, num_slices=8) == 100
        assert slow_sum(x, 0, 0.6) == 100  # one part
        with synk.options(progress=False):
            assert slow_sum(x, 0, 0.08, num_slices=8) == 100
    assert slow_sum(x, 0, 0.08, num_slices=8) == 100
    assert [bar.total for bar in tqdm.made] == [50, 16]


def test_auto_without_tqdm(two, monkeypatch):
    make_terminal(monkeypatch)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    assert slow_sum(np.ones(100), 0, 0.08, num_slices=8, progress="auto") == 100


def test_without_tqdm(two, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    v = synk.variable(np.zeros(3))
    rounds = two.statistics().rounds
    for call in (
        lambda: slow_sum(np.ones(100), 0, num_slices=3, progress=True),
        lambda: naps(v, times=3, progress=True),
        lambda: synk.batches(10, 5, seed=0, progress=True),
        lambda: synk.options(progress=True),
    ):
        with pytest.raises(synk.ArgumentError, match=r"pip install 'synknumba\[progress\]'"):
            call()
    assert two.statistics().rounds == rounds


@pytest.mark.parametrize("progress", ["yes", 1, np.ones(2)])
def test_bad_values(two, tqdm, progress):
    v = synk.variable(np.zeros(3))
    rounds = two.statistics().rounds
    for call in (
        lambda: slow_sum(np.ones(100), 0, progress=progress),
        lambda: naps(v, times=3, progress=progress),
        lambda: synk.batches(10, 5, seed=0, progress=progress),
        lambda: synk.options(progress=progress),
    ):
        with pytest.raises(synk.ArgumentError, match='progress must be True, False or "auto", got'):
            call()
    assert two.statistics().rounds == rounds
    with pytest.raises(
        synk.ArgumentError, match="no option progres=; it has progress. Did you mean progress="
    ):
        synk.options(progres=True)


def test_flags_of_numpy(two, tqdm):
    assert slow_sum(np.ones(100), 0, 0.0, num_slices=3, progress=np.True_) == 100
    only(tqdm, 6)


def test_what_takes_no_bar(two, tqdm):
    x, v = np.ones(100), synk.variable(np.zeros(3))
    for call in (
        lambda: slow_sum.submit(x, 0, progress=True),
        lambda: slow_sum.plan(x, 0, progress=True),
        lambda: slow_sum.as_serial(x, 0, progress=True),
        lambda: slow_kernel.check(x, 3, progress=True),
        lambda: naps.submit(v, times=3, progress=True),
        lambda: naps.plan(v, times=3, progress=True),
    ):
        with pytest.raises(synk.ArgumentError, match="progress= in calls only"):
            call()
    with synk.options(progress=True):
        assert slow_sum.submit(x, 0, 0.0, num_slices=3).result() == 100
        assert slow_sum.as_serial(x, 0, 0.0, num_slices=3) == 100
        naps.submit(v, 0.0, times=3).result()

    @synk.sequence
    def inside(x):
        slow_sum(x, 0, num_slices=2, progress=True)

    @synk.sequence
    def nested(v):
        naps(v, times=3, progress=True)

    for call in (lambda: inside(x), lambda: nested(v)):
        with pytest.raises(synk.ArgumentError, match="pass progress= to the call of the sequence"):
            call()
    assert tqdm.made == []


def test_parameters_have_other_names():
    for decorate in (synk.function, synk.vectorize, synk.expectation, synk.sequence):
        with pytest.raises(
            synk.ArgumentError, match="'progress', which is an option of every call"
        ):

            @decorate
            def one(progress):
                pass


def test_defaults_are_those_of_a_thread(tqdm):
    found = []
    with synk.options(progress=True):
        thread = threading.Thread(target=lambda: found.append(_progress.wanted(None, "f")))
        thread.start()
        thread.join()
        assert _progress.wanted(None, "f") is True
    assert found == [False]
    assert _progress.wanted(None, "f") is False


# ---- batches


def test_batches(tqdm):
    for _ in synk.batches(10, 3, seed=0, epochs=2, progress=True):
        assert tqdm.made[0].n == len(tqdm.made[0].seen) - 2  # those with which the loop is done
    bar = only(tqdm, 8)
    assert bar.seen == [0, *range(9)]
    for _ in synk.batches(10, 3, seed=0, epochs=2, progress=True).start_at(5):
        pass
    assert tqdm.made[1].total == tqdm.made[1].n == 3
    plain = [rows.tolist() for rows in synk.batches(10, 3, seed=0)]
    with synk.options(progress=True):
        assert [rows.tolist() for rows in synk.batches(10, 3, seed=0)] == plain


def test_batches_that_are_left(tqdm):
    for _ in synk.batches(10, 3, seed=0, epochs=None, progress=True):
        if tqdm.made[0].n == 20:
            break

    def fail():
        for rows in synk.batches(10, 3, seed=0, progress=True):
            rows.size // 0

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [(bar.n, bar.total, bar.closed) for bar in tqdm.made] == [(20, None, 1), (0, 4, 1)]


# ---- tqdm itself


def test_with_tqdm(two, capfd):
    pytest.importorskip("tqdm")
    threads = threading.active_count()
    assert slow_sum(np.ones(100), 0, num_slices=5, progress=True) == 100
    naps(synk.variable(np.zeros(3)), 0.005, times=20, progress=True)
    assert threading.active_count() == threads  # a process with more should not fork
    out, err = capfd.readouterr()
    assert out == ""
    assert "slow_sum: 100%" in err
    assert "10/10" in err
    assert "naps: 100%" in err
    assert err.endswith("\n")
