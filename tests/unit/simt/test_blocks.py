"""Kernels whose threads work together are compiled for each block, up to a number of blocks."""

from typing import Any

import numpy as np
import pytest
from numba import cuda, float64, njit

from synknumba import simt
from synknumba._errors import ArgumentError
from synknumba.simt._entries import MAX_BLOCKS
from synknumba.simt._source.scope import splits_block

wait = cuda.syncthreads


@cuda.jit(device=True)
def waits(s):
    wait()
    return s[0]


@njit
def calls_waits(s):
    return waits(s)


def reverses(x, factor=2.0, plus=0):
    s = cuda.shared.array(64, float64)
    t = cuda.threadIdx.x + cuda.blockDim.x * cuda.threadIdx.y
    n = cuda.blockDim.x * cuda.blockDim.y
    i = t + n * cuda.blockIdx.x
    s[t] = x[i] * factor
    cuda.syncthreads()
    x[i] = s[n - 1 - t] + plus


def through_functions(x):
    x[cuda.grid(1)] = calls_waits(x)


def plain(x):
    x[cuda.grid(1)] = 1


def warps(x):
    x[0] = cuda.any_sync(-1, 1)


@pytest.mark.parametrize(
    ("function", "splits"),
    [(reverses, True), (through_functions, True), (warps, True), (plain, False)],
)
def test_which_kernels_work_together(function: Any, splits: bool) -> None:
    assert splits_block(function) == splits


def strides(x, out):
    acc = 0.0
    for i in range(cuda.blockIdx.x, x.size, cuda.gridDim.x):
        acc += x[i]
    out[cuda.blockIdx.x] = acc


def by_block(x, out):
    out[cuda.blockIdx.x] = x[cuda.blockIdx.x]


@pytest.mark.parametrize(
    ("function", "grid", "block", "own"),
    [
        (strides, (16, 1, 1), (1, 1, 1), (1, 1, 1, 0)),
        (strides, (15, 1, 1), (1, 1, 1), (1, 1, 1)),
        (strides, (3, 40, 20), (1, 1, 1), (1, 1, 1, 1, 2)),
        (strides, (8, 1, 1), (2, 1, 1), (2, 1, 1, 0)),
        (strides, (100, 1, 1), (16, 1, 1), (16, 1, 1)),
        (by_block, (100, 1, 1), (1, 1, 1), (1, 1, 1, 0)),
        (by_block, (100, 1, 1), (2, 1, 1), None),
        (plain, (100, 1, 1), (1, 1, 1), None),  # flat, so any code will do
        (reverses, (100, 1, 1), (1, 1, 1), (1, 1, 1)),  # shares an array
    ],
)
def test_which_blocks_have_code_of_their_own(
    function: Any, grid: Any, block: Any, own: Any
) -> None:
    assert simt.jit(function).own_block(grid, block) == own
    if own is not None:
        assert simt.jit(function, debug=True).own_block(grid, block) in {block, None}


def test_threads_of_small_blocks_are_gathered() -> None:
    kernel = simt.jit(strides, cache=False)
    x, out = np.arange(1000.0), np.zeros(300)
    kernel[300, 1](x, out)
    assert out.tolist() == [x[i::300].sum() for i in range(300)]
    gathered = "range(min(_k_Bx, _k_Gx - _k_bx * _k_Bx))"
    assert gathered in kernel.source
    kernel[3, 1](x, out)
    assert out[:3].tolist() == [x[i::3].sum() for i in range(3)]
    assert gathered not in kernel.source
    kernel = simt.jit(by_block, cache=False)
    kernel[300, 1](x, out)
    assert out.tolist() == x[:300].tolist()
    assert "for _k_tx in range(_k_Gx)" in kernel.source


def blocks_of(kernel: simt.Kernel) -> list[Any]:
    return [block for _, block in kernel._entries._by_block]


@pytest.mark.whole
def test_the_fifth_block_gets_code_for_any() -> None:
    kernel = simt.jit(reverses)
    blocks = [(8, 1, 1), (4, 2, 1), (16, 1, 1), (5, 3, 1), (7, 1, 1), (3, 2, 1), (8, 1, 1)]
    for block in blocks:
        n = block[0] * block[1]
        x = np.arange(2.0 * n)
        kernel[2, block](x, 2.0, 1)
        assert np.array_equal(x, np.arange(2.0 * n).reshape(2, n)[:, ::-1].ravel() * 2 + 1)
    assert blocks_of(kernel) == [*blocks[:MAX_BLOCKS], None]
    x = np.arange(8.0)
    kernel[1, 8](x, np.float32(2), 1)  # other types are counted apart
    assert blocks_of(kernel)[-1] == (8, 1, 1)
    assert kernel.signatures == list(dict.fromkeys(kinds for kinds, _ in kernel._entries._by_block))
    assert len(kernel.signatures) == 2


def test_other_kernels_are_compiled_once() -> None:
    kernel = simt.jit(plain)
    for block in (4, 8, 2):
        x = np.zeros(8)
        kernel[8 // block, block](x)
        assert x.all()
    assert blocks_of(kernel) == [None]


def test_arguments_that_are_left_out_have_their_default_values() -> None:
    kernel = simt.jit(reverses)
    for args, expected in (
        ((), [6.0, 4, 2, 0]),
        ((3.0,), [9.0, 6, 3, 0]),
        ((1.0, 5), [8.0, 7, 6, 5]),
    ):
        for run in (
            lambda x, args: kernel[1, 4](x, *args),
            lambda x, args: kernel.prepare((1, 1, 1), (4, 1, 1), (x, *args))(),
        ):
            x = np.arange(4.0)
            run(x, args)
            assert x.tolist() == expected
    with pytest.raises(ArgumentError, match=r"reverses\(\) takes 3 arguments, got 0"):
        kernel[1, 4]()
    with pytest.raises(ArgumentError, match=r"reverses\(\) takes 3 arguments, got 4"):
        kernel[1, 4](np.zeros(4), 1.0, 2, 3)


def test_the_order_of_threads_shows_a_missing_barrier() -> None:
    def misses(x):
        s = cuda.shared.array(4, float64)
        t = cuda.threadIdx.x
        s[t] = 0
        cuda.syncthreads()
        s[t] = x[t]
        x[t] = s[3 - t]

    for order, expected in (("forward", [0, 0, 2, 1]), ("reverse", [4, 3, 0, 0])):
        x = np.arange(1.0, 5)
        simt.jit(thread_order=order)(misses)[1, 4](x)
        assert x.tolist() == expected
    x = np.arange(4.0)
    simt.jit(reverses, thread_order="reverse")[1, 4](x)
    assert x.tolist() == [6, 4, 2, 0]


def test_dynamic_shared_memory_is_as_long_as_the_launch_says() -> None:
    def sizes(out):
        wide, narrow = cuda.shared.array(0, float64), cuda.shared.array(shape=0, dtype=np.int16)
        out[0], out[1] = wide.size, narrow.size
        wide[0] = -2.0
        cuda.syncthreads()
        out[2] = narrow[3]

    for smem, expected in ((8, [1, 4, -16384]), (np.int32(27), [3, 13, -16384])):
        out = np.zeros(3, np.int64)
        simt.jit(sizes)[1, 1, 0, smem](out)
        assert out.tolist() == expected
