"""Every kernel of the corpus is CUDA: Numba compiles it for a GPU. No GPU is needed, only
NVIDIA's compilers: `make ptx`.
"""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from numba import cuda, typeof
from numba.cuda import dispatcher

import synknumba as synk
from synknumba.kernels import block, grid, warp
from tests.conformance import test_block_functions, test_derivative
from tests.conformance.simt.corpus import CASES
from tests.conformance.simt.test_corpus import cases

HOPPER = (9, 0)


def nothing(x: Any) -> None:
    """The smallest kernel."""


@pytest.fixture(scope="module")
def compile_for_gpu() -> Iterator[Callable[..., str]]:
    """The PTX of a kernel for some arguments. Skips where numba-cuda or NVIDIA's compilers are
    not installed.
    """
    # Numba's own target cannot even type min and max since 0.68
    if cuda.implementation != "NVIDIA":
        pytest.skip("numba-cuda is not installed; make ptx installs it beside the other packages")

    def compile_it(kernel: Any, args: tuple[Any, ...]) -> str:
        return cuda.compile_ptx(kernel, tuple(typeof(arg) for arg in args), cc=HOPPER)[0]

    device = SimpleNamespace(compute_capability=HOPPER)
    # A device function asks the driver what to compile for; there may be none.
    with mock.patch.object(dispatcher, "get_current_device", return_value=device):
        try:
            compile_it(nothing, (1,))
        except Exception as error:
            reason = str(error).strip().splitlines()[0]
            pytest.skip(f"NVIDIA's compilers are not installed ({reason}); make ptx installs them")
        yield compile_it


@pytest.mark.parametrize("name", cases(CASES))
def test_compiles(name: str, compile_for_gpu: Callable[..., str]) -> None:
    case = CASES[name]
    assert ".entry" in compile_for_gpu(case.kernel, case.make())


def test_device_functions_of_blocks_compile(compile_for_gpu: Callable[..., str]) -> None:
    floats, ints = np.zeros((1, 96), np.float32), np.zeros((1, 96), np.int32)
    kernel = test_block_functions.sort_and_scan
    assert ".entry" in compile_for_gpu(kernel, (floats, floats, ints, ints, ints))


@pytest.mark.parametrize("dtype", [np.uint32, np.int64, np.uint64, np.float32, np.float64])
def test_device_functions_compile(dtype: Any, compile_for_gpu: Callable[..., str]) -> None:
    block_sum, block_histogram = block.sum(dtype, 64), block.histogram(64, 10)
    block_argmin, block_argmax = block.argmin(dtype, 64), block.argmax(dtype, 64)
    block_load, block_store = block.load(dtype, 64, 4, fill=1), block.store(dtype, 64, 4)
    warp_scan, warp_broadcast, warp_sort = (
        function(dtype) for function in (warp.scan, warp.broadcast_from, warp.sort)
    )
    grid_sum = grid.sum(dtype, 64)

    def kernel(x: Any, indices: Any, partials: Any, counter: Any) -> None:
        i = cuda.grid(1)
        values = cuda.local.array(4, dtype)
        block_load(x, i, values)
        values[0], indices[i] = block_argmin(values[0], i)
        values[1], indices[i] = block_argmax(values[1], i)
        values[2] = block_sum(warp_scan(warp_broadcast(warp_sort(values[2]), 3)))
        block_store(x, i, values)
        block_histogram(i, indices)
        grid_sum(x[i], partials, counter, x)

    x, indices, counter = np.zeros(9, dtype), np.zeros(9, np.int64), np.zeros(1, np.uint32)
    assert ".entry" in compile_for_gpu(kernel, (x, indices, x, counter))


def test_a_derivative_compiles(compile_for_gpu: Callable[..., str]) -> None:
    of_case, float32s = test_derivative.of_case, test_derivative.float32s
    cases = len(test_derivative.CASES)
    slopes = cuda.jit(device=True)(of_case.gradient("p", "q").py_func)

    def kernel(x: Any, out: Any) -> None:
        i = cuda.grid(1)
        if i < x.size:
            out[i, 0], out[i, 1], out[i, 2] = slopes(x[i], 0.7, 1.3, i % cases)

    text = compile_for_gpu(kernel, (np.ones(5), np.ones((5, 3))))
    assert ".entry" in text
    narrow = cuda.jit(device=True)(synk.expectation(float32s).gradient("p").py_func)

    def narrow_kernel(x: Any, out: Any) -> None:
        out[0], out[1] = narrow(x[0], x[1])

    assert ".f64" not in compile_for_gpu(narrow_kernel, (np.ones(2, "f4"), np.ones(2, "f4")))
