"""`simt.jit(debug=True)`: what a kernel raises, and where it says that it did."""

import inspect
import re

import numpy as np
import pytest
from numba import cuda, float64, njit

from synknumba import simt


class SomethingWrongError(Exception):
    """Raised by kernels."""


def place(thread: tuple[int, ...], block: tuple[int, ...]) -> str:
    """How numba-cuda writes it."""
    return f"tid={list(thread)} ctaid={list(block)}"


def line_of(function, text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line)


def raises_where_told(bad, kind):
    i, j = cuda.grid(2)
    if bad[i, j] == kind:
        if kind == 1:
            raise SomethingWrongError
        if kind == 2:
            raise ValueError("a message")
        assert kind != 3, "an assertion"


@pytest.mark.parametrize(
    ("kind", "error", "ending"),
    [
        (1, SomethingWrongError, ""),
        (2, ValueError, ": a message"),
        (3, AssertionError, ": an assertion"),
    ],
)
@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_errors_name_thread_and_line(kind, error, ending, order):
    kernel = simt.jit(raises_where_told, debug=True, opt=False, thread_order=order)
    bad = np.zeros((8, 6), np.int64)
    kernel[(2, 3), (4, 2)](bad, kind)  # nothing is wrong
    bad[6, 5] = kind
    with pytest.raises(error) as caught:
        kernel[(2, 3), (4, 2)](bad, kind)
    line = line_of(
        raises_where_told, {1: "SomethingWrong", 2: "a message", 3: "an assertion"}[kind]
    )
    where = (
        f"In function 'raises_where_told', file {__file__}, line {line}, "
        f"{place((2, 1, 0), (1, 2, 0))}{ending}"
    )
    assert str(caught.value) == where


def test_the_first_error_counts():
    bad = np.ones((8, 6), np.int64)
    with pytest.raises(SomethingWrongError, match=re.escape(place((0, 0, 0), (0, 0, 0)))):
        simt.jit(raises_where_told, debug=True)[(2, 3), (4, 2)](bad, 1)


def sums_of_blocks(x, out):
    tile = cuda.shared.array(8, float64)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    s = 4
    while s > 0:
        if t < s:
            if tile[t] < 0:
                raise ValueError("negative")
            tile[t] += tile[t + s]
        cuda.syncthreads()
        s //= 2
    if t == 0:
        out[cuda.blockIdx.x] = tile[0]


def test_errors_between_barriers():
    kernel = simt.jit(sums_of_blocks, debug=True)
    x, out = np.arange(32.0), np.zeros(4)
    kernel[4, 8](x, out)
    np.testing.assert_array_equal(out, x.reshape(4, 8).sum(axis=1))
    x[19] = -1
    with pytest.raises(ValueError, match=re.escape(f"{place((3, 0, 0), (2, 0, 0))}: negative")):
        kernel[4, 8](x, out)


@njit
def checked_root(v):
    if v < 0:
        raise ValueError("no root")
    return v**0.5


def calls(x, out):
    i = cuda.grid(1)
    out[i] = checked_root(x[i])


def test_errors_in_functions_that_a_kernel_calls():
    x = np.arange(8.0)
    x[5] = -1
    with pytest.raises(ValueError, match="no root") as caught:
        simt.jit(calls, debug=True)[2, 4](x, np.zeros(8))
    assert place((1, 0, 0), (1, 0, 0)) in str(caught.value)


def divides(x, out, m):
    i = cuda.grid(1)
    out[i] = x[i] / m
    out[i] += i // m


def test_division_by_zero_is_an_error_in_debug_mode_only():
    x, out = np.arange(8.0) + 1, np.zeros(8)
    with pytest.raises(ZeroDivisionError, match=re.escape(place((0, 0, 0), (0, 0, 0)))):
        simt.jit(divides, debug=True)[2, 4](x, out, 0)
    assert not out.any()
    simt.jit(divides, debug=True)[2, 4](x, out, 2)
    np.testing.assert_array_equal(out, x / 2 + np.arange(8) // 2)
    simt.jit(divides)[2, 4](x, out, 0)
    assert np.isinf(out).all()


def guarded(x, n, m, shape):
    i = cuda.grid(1)
    if m == 0:
        return
    part = i // m
    if m > 1 and i < n // (m - 1):
        x[i] += part
    cuda.syncthreads()
    x[i] += 1
    if m < 3 and i < 4:
        x[i] += shape[m % (m + 1)]


@pytest.mark.parametrize("m", [0, 1, 2, 3])
def test_nothing_is_divided_that_the_kernel_does_not_divide(m):
    x = np.zeros(8)
    simt.jit(guarded, debug=True)[2, 4](x, 8, m, (10, 20, 30))
    expected = np.zeros(8)
    for i in range(8 if m else 0):
        if m > 1 and i < 8 // (m - 1):
            expected[i] += i // m
        expected[i] += 1
        if m < 3 and i < 4:
            expected[i] += (10, 20, 30)[m]
    np.testing.assert_array_equal(x, expected)


def shifts(x, by, out):
    i = cuda.grid(1)
    out[i] = x[i + by]


def adds(x, by, out):
    i = cuda.grid(1)
    cuda.atomic.add(out, i + by, x[i])


def local(x, by, out):
    i = cuda.grid(1)
    mine = cuda.local.array(4, float64)
    mine[by] = x[i]
    out[i] = mine[by]


@pytest.mark.parametrize(
    ("function", "by", "thread"),
    [(shifts, 1, 3), (shifts, -9, 0), (adds, 2, 2), (local, 4, 0), (local, -5, 0)],
)
def test_indices_are_checked(function, by, thread):
    kernel = simt.jit(function, debug=True)
    kernel[2, 4](np.zeros(8), 0, np.zeros(8))
    kernel[2, 4](np.zeros(8), -1, np.zeros(8))  # from the end, as on a GPU
    block = 0 if thread == 0 else 1
    with pytest.raises(IndexError, match=re.escape(place((thread, 0, 0), (block, 0, 0)))):
        kernel[2, 4](np.zeros(8), by, np.zeros(8))


def gathers(x, at, out):
    i = cuda.threadIdx.x
    if i < 3 and at[i] >= 0:
        out[1, i] += x[at[i]] + 1.0


def one_of_two(x, at, out):
    i = cuda.threadIdx.x
    if i < at.size:
        out[0, i] = x[i] if at[i] >= 0 else x[i - 100]


def counts(x, at, out):
    i = cuda.threadIdx.x
    if i < at.size:
        cuda.atomic.add(out, (0, at[i]), 1.0)


def beyond(x, at, out):
    i = cuda.threadIdx.x
    out[i + 1, 0] = x[0]


@pytest.mark.parametrize(
    ("function", "at", "told"),
    [
        (gathers, [0, 1, 7], "index 7 is out of bounds for axis 0 with size 5"),
        (gathers, [0, 1], "index 2 is out of bounds for axis 0 with size 2"),
        (one_of_two, [0, -1], "index is out of bounds"),  # which of the two is not known before
        (counts, [0, 4], "index 4 is out of bounds for axis 1 with size 4"),
        (counts, [0, -5], "index -5 is out of bounds for axis 1 with size 4"),
        (beyond, [0], "index 2 is out of bounds for axis 0 with size 2"),
    ],
)
def test_an_error_names_the_index(function, at, told):
    kernel = simt.jit(function, debug=True)
    with pytest.raises(IndexError, match=f": {told}$"):
        kernel[1, 4](np.zeros(5), np.array(at), np.zeros((2, 4)))


def of_a_shape(x):
    i = cuda.threadIdx.x
    if i == 2:
        x[0] = x.shape[-i]


def test_an_index_of_a_tuple():
    with pytest.raises(IndexError, match="tuple index out of range"):
        simt.jit(of_a_shape, debug=True)[1, 3](np.zeros(2))


def test_a_kernel_from_the_cache_says_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("SYNKNUMBA_CACHE_DIR", str(tmp_path))
    bad = np.zeros((8, 6), np.int64)
    bad[6, 5] = 2
    for kernel in (
        simt.jit(raises_where_told, debug=True),
        simt.jit(raises_where_told, debug=True),
    ):
        with pytest.raises(
            ValueError, match=re.escape(f"{place((2, 1, 0), (1, 2, 0))}: a message")
        ):
            kernel[(2, 3), (4, 2)](bad, 2)
    simt.jit(raises_where_told)[(2, 3), (4, 2)](bad, 1)  # without it is another kernel
