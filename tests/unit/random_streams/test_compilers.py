"""The same text in all that runs kernels: Numba's simulator, simt's debugger and checker, and
the compilers for GPUs.
"""

import os
import re
import subprocess
import sys
from ast import literal_eval
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from numba import cuda, float32, float64, int64, uint32
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from synknumba import random, simt
from tests.quick import whole
from tests.unit.random_streams import reference

HOPPER = (9, 0)

# Both names of a function, in a process in which `numba.cuda` is the simulator.
SIMULATED = """
import numpy as np
import synknumba as synk
from numba import cuda
from synknumba import random

@cuda.jit
def draw(seed, out, whole):
    i = cuda.grid(1)
    if i < whole.size:
        out[i, 0] = synk.random.uniform(seed, i, 5)
        out[i, 1], out[i, 2] = random.normal2(seed, i, 5, rounds=7)
        whole[i] = random.randint(seed, i, 5, -3, 4)
        out[i, 3] = random.sobol(seed, i, 5)

assert type(draw).__name__ == "FakeCUDAKernel"
out, whole = np.zeros((20, 4)), np.zeros(20, np.int64)
draw[2, 16](-8, out, whole)
print(out.tolist(), whole.tolist(), sep="\\n")
"""


def test_the_simulator_draws_the_same() -> None:
    env = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SIMULATED], env=env, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    out, whole = map(literal_eval, done.stdout.splitlines())
    rows = range(20)
    expected = [
        (reference.sample("uniform", -8, i, 5), *reference.sample("normal2", -8, i, 5, 7))
        for i in rows
    ]
    assert [row[0] for row in out] == [row[0] for row in expected]
    assert_allclose([row[:3] for row in out], expected, **reference.tolerance("normal2"))
    assert [row[3] for row in out] == random.sobol(-8, np.arange(20), 5).tolist()
    assert whole == [reference.randint(-8, i, 5, -3, 4) for i in rows]


@cuda.jit(device=True)
def both(seed, index):
    """A device function that draws."""
    return synk.random.uniform(seed, index, 0, 7) + random.randint(seed, index, 1, 10, 20)


def through_a_device_function(seed, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = both(seed, i)


RUNS = {
    "jit": simt.jit,
    "debugged": simt.jit(debug=True),
    "fastmath": simt.jit(fastmath=True),
    "debugger": simt.debug,
    "checker": simt.check,
}


@pytest.mark.parametrize("name", ["jit", "debugger", *whole("debugged", "fastmath", "checker")])
def test_device_functions_draw_too(name: str) -> None:
    out = np.zeros(40)
    RUNS[name](through_a_device_function)[3, 16](6, out)
    expected = [
        reference.sample("uniform", 6, i, 0, 7) + reference.randint(6, i, 1, 10, 20)
        for i in range(40)
    ]
    assert_array_equal(out, expected)


# ---- for a GPU, without one


@pytest.fixture(scope="module")
def compile_for_gpu() -> Iterator[Callable[..., str]]:
    """The PTX of a kernel for some types, by whichever `numba.cuda` there is. Skips where
    NVIDIA's compilers are missing.
    """
    from numba.cuda import dispatcher

    def compile_it(kernel: Callable[..., None], kinds: tuple[Any, ...]) -> str:
        return cuda.compile_ptx(kernel, kinds, cc=HOPPER)[0]

    # A device function asks the driver what to compile for; there may be none.
    device = SimpleNamespace(compute_capability=HOPPER)
    with mock.patch.object(dispatcher, "get_current_device", return_value=device):
        try:
            compile_it(lambda x: None, (int64,))
        except Exception as error:
            pytest.skip(
                f"NVIDIA's compilers are not installed ({str(error).strip().splitlines()[0]})"
            )
        yield compile_it


def _writes(name: str, rounds: int) -> Callable[..., None]:
    function = getattr(random, name)
    if isinstance(function(0, 0, 0), tuple):

        def write(seed, out):
            for place, number in enumerate(function(seed, cuda.grid(1), 0, rounds)):
                out[place] = number
    else:

        def write(seed, out):
            out[0] = function(seed, cuda.grid(1), 0, rounds)

    return write


@pytest.mark.parametrize("name", reference.MEANINGS)
def test_compiles_for_a_gpu(name: str, compile_for_gpu: Callable[..., str]) -> None:
    kind = uint32 if name == "bits4" else float32 if name.endswith(("32", "4")) else float64
    code, fewer = (compile_for_gpu(_writes(name, rounds), (int64, kind[::1])) for rounds in (10, 7))
    assert ".entry" in code
    assert not re.search(r"\.func.*random", code)  # inlined: calls are slow there
    # two products a round, each by one instruction, but for what the last round leaves unused
    products = [text.count("mul.wide.u32") for text in (code, fewer)]
    assert 18 <= products[0] <= 20
    assert products[0] - products[1] == 6
    if name in reference.EXACT:
        assert "call" not in code
        assert kind is not float32 or "f64" not in code


def whole_numbers(seed, low, high, out):
    i = cuda.grid(1)
    x, y = synk.random.threefry2x64(i, 0, seed, 0)
    w0, w1, w2, w3 = synk.random.philox4x32(i, 0, 0, 0, seed, 0)
    out[i] = synk.random.randint(seed, i, 0, low, high) + int64(x ^ y) + int64(w0 ^ w1 ^ w2 ^ w3)


def test_whole_numbers_compile_for_a_gpu(compile_for_gpu: Callable[..., str]) -> None:
    assert ".entry" in compile_for_gpu(whole_numbers, (int64, int64, int64, int64[::1]))
    assert ".entry" in compile_for_gpu(through_a_device_function, (int64, float64[::1]))


def points(seed, count, out):
    i = cuda.grid(1)
    out[i] = synk.random.sobol(seed, i, 3) + synk.random.sobol(None, i, 3)
    for dimension in range(count):
        out[i] += synk.random.sobol(seed, i, dimension)


def test_sobol_points_compile_for_a_gpu(compile_for_gpu: Callable[..., str]) -> None:
    code = compile_for_gpu(points, (int64, int64, float64[::1]))
    assert "brev.b32" in code
    assert not re.search(r"\.func|call", code)  # inlined
    # of 128 KiB, and so not in constant memory
    assert re.search(r"\.global .*synknumba_sobol\[131072\]", code)
    assert ".const" not in code
