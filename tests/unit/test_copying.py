"""Copies by several threads: NumPy's result, no thread left, whatever happens."""

import contextlib
import signal
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from synknumba._host import copying
from synknumba._host.copying import copy_into, private_copy

KIB = 1 << 10


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said of MiB is seen with KiB, and with three threads whatever the machine has."""
    monkeypatch.setattr(copying, "SHARE", 4 * KIB)
    monkeypatch.setattr(copying, "PIECE", 8 * KIB)
    monkeypatch.setattr(copying, "NEW_PIECE", KIB)
    monkeypatch.setattr(copying, "allowed_cores", lambda: 3)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == before


def numbers(shape: tuple[int, ...], dtype: str = "f8") -> np.ndarray:
    return (np.random.default_rng(0).random(shape) * 100).astype(dtype)


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "C": lambda a: a,
    "F": np.asfortranarray,
    "reversed": lambda a: a[::-1],
    "strided": lambda a: np.repeat(a, 2, axis=0)[::2],
}


@pytest.mark.parametrize("cores", [1, 3, 100])
@pytest.mark.parametrize(
    "shape", [(20_000,), (5_000, 4), (2, 10_001), (1, 1, 30_000), (3, 7, 1_000), (10_007, 3, 1)]
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_shapes_and_layouts(
    layout: str, shape: tuple[int, ...], cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "allowed_cores", lambda: cores)
    value = numbers(shape)
    source = LAYOUTS[layout](value)
    expected = np.array(source)
    target = np.full(shape, -1.0)
    copy_into(target, source)
    assert_array_equal(target, expected)
    target = np.full(shape, -1.0, order="F")
    copy_into(target, source)
    assert_array_equal(target, expected)
    copied = private_copy(source)
    assert_array_equal(copied, expected)
    assert copied.flags.c_contiguous
    assert copied.flags.owndata


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (KIB - 1,)])
def test_what_is_small_is_copied_by_this_thread(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "Thread", None)
    source, target = np.full(shape, 7.0), np.zeros(shape)
    copy_into(target, source)
    assert_array_equal(target, source)
    copied = private_copy(source)
    source[...] = 8
    assert_array_equal(copied, target)


def test_several_threads_copy_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(3, timeout=60)
    copyto, met = np.copyto, set()

    def meeting(target: np.ndarray, source: np.ndarray, **options: Any) -> None:
        if threading.get_ident() not in met:
            together.wait()  # breaks unless three threads come
            met.add(threading.get_ident())
        copyto(target, source, **options)

    monkeypatch.setattr(np, "copyto", meeting)
    source, target = numbers((12 * KIB,)), np.zeros(12 * KIB)
    copy_into(target, source)
    assert_array_equal(target, source)
    assert len(met) == 3


def test_without_more_threads_this_one_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: threading.Thread) -> None:
        msg = "can't start new thread"
        raise RuntimeError(msg)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    source = numbers((12 * KIB,))
    assert_array_equal(private_copy(source), source)


@pytest.mark.parametrize("source", [2.5, np.arange(4.0), np.arange(5000.0)[:, None]])
def test_the_source_is_broadcast(source: Any) -> None:
    expected, target = np.zeros((5000, 4)), np.zeros((5000, 4))
    np.copyto(expected, source)
    copy_into(target, np.asarray(source))
    assert_array_equal(target, expected)


@pytest.mark.parametrize("step", [1, -1])
def test_overlapping_memory_is_copied_as_numpy_does(step: int) -> None:
    memory = numbers((20_001,))
    expected = memory.copy()
    np.copyto(expected[1:], expected[:-1][::step])
    copy_into(memory[1:], memory[:-1][::step])
    assert_array_equal(memory, expected)


@pytest.mark.parametrize(
    ("dtype", "target"),
    [("i2", "f4"), (">f8", "f8"), ("f8", "f4"), ("f4", "f8"), ("?", "c16"), ("i8", ">i4")],
)
def test_dtypes_are_cast_as_numpy_does(dtype: str, target: str) -> None:
    source = numbers((9000, 3), dtype)
    expected, got = np.zeros((9000, 3), target), np.zeros((9000, 3), target)
    np.copyto(expected, source)
    copy_into(got, source)
    assert_array_equal(got, expected)


def test_records_are_copied() -> None:
    source = np.zeros(9000, [("a", "i4"), ("b", "f8", (2,)), ("c", "U3")])
    source["a"], source["b"], source["c"] = np.arange(9000), numbers((9000, 2)), "xyz"
    target = np.zeros_like(source)
    copy_into(target, source)
    assert_array_equal(target, source)
    assert_array_equal(private_copy(source), source)


def test_casts_are_refused_as_numpy_does() -> None:
    source, target = numbers((9000,)), np.zeros(9000, "i8")
    with pytest.raises(TypeError, match="same_kind"):
        copy_into(target, source)
    assert not target.any()
    copy_into(target, source, "unsafe")
    assert_array_equal(target, source.astype("i8"))


@pytest.mark.parametrize("wrong", [0, 19_999])
def test_the_callers_errstate_holds_in_every_thread(wrong: int) -> None:
    source, target = numbers((20_000,)), np.zeros(20_000, "i4")
    source[wrong] = np.nan
    with np.errstate(invalid="raise"), pytest.raises(FloatingPointError):
        copy_into(target, source, "unsafe")
    with np.errstate(invalid="ignore"):  # else a warning, which the tests take for an error
        copy_into(target, source, "unsafe")
    expected = np.arange(20_000) != wrong
    assert_array_equal(target[expected], source[expected].astype("i4"))


def test_a_read_only_target_is_refused() -> None:
    target = np.zeros(20_000)
    target.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        copy_into(target, numbers((20_000,)))


def test_there_is_no_hidden_copy() -> None:
    source, target = numbers((1000, 1000), "f4"), np.zeros((1000, 1000))
    tracemalloc.start()
    try:
        copy_into(target, source.T)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert_array_equal(target, source.T)
    assert peak < source.nbytes / 4


# those that Python drops
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_ends_all_threads() -> None:
    """Wherever a signal comes, it is raised, and the threads end."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = set(threading.enumerate())
    source, target = numbers((500, 1000)), np.zeros((500, 1000))
    interrupted = 0
    previous = signal.signal(signal.SIGALRM, interrupt)
    timer = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        for i in range(100):
            with contextlib.suppress(KeyboardInterrupt):
                try:
                    # Again after a while, where Python drops what is raised in one of its own
                    # finalizers.
                    signal.setitimer(signal.ITIMER_REAL, 1e-5 * (i + 1), 0.5)
                    while True:
                        copy_into(target, source)
                except KeyboardInterrupt:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    interrupted += 1
                    raise
            for thread in set(threading.enumerate()) - before:
                thread.join(10)  # where the interrupt came while it was waited for
                assert not thread.is_alive()
    finally:
        signal.signal(signal.SIGALRM, previous)
        signal.setitimer(signal.ITIMER_REAL, *timer)
    assert interrupted == 100
    copy_into(target, source)
    assert_array_equal(target, source)
