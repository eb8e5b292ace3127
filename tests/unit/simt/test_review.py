"""Kernels that were once run wrongly, against the engine of `simt.debug`, which shares no code
with the compiler.
"""

from typing import Any

import numpy as np
import pytest

from synknumba import simt
from tests.unit.simt.written import defined, launch

HEAD = """
def kernel(x, n):
    s = cuda.shared.array(8, float64)
    t = cuda.threadIdx.x
    g = cuda.grid(1)
    s[t] = x[g]
"""

KERNELS = {
    "a thread leaves before the others assign a uniform variable": """
u = 1
if n > 2:
    if t > 3:
        return
    u = 5
cuda.syncthreads()
x[g] = u
""",
    "a thread leaves in a loop before the others change a uniform variable": """
u = 1
for i in range(3):
    if n > 2:
        if t + i > 8:
            return
        u += i
    cuda.syncthreads()
    x[g] += u
""",
    "a local array made under a condition lives across a barrier": """
if n > 2:
    a = cuda.local.array(2, float64)
    a[0] = t
cuda.syncthreads()
if n > 2:
    x[g] = a[0] + s[7 - t]
""",
    "a local array made in a loop lives across a barrier": """
for i in range(3):
    a = cuda.local.array(2, float64)
    a[0] = t + i
cuda.syncthreads()
x[g] = a[0] + s[7 - t]
""",
    "a choice on a thread index behind one that is cut": """
w = x[g]
cuda.syncthreads()
v = s[t] if t < n else 2.0
x[g] = w + s[7 - t]
w = s[t] if t < n + 2 else 4.0
x[g] += v * w
""",
}

RECORD = np.dtype([("a", "f4"), ("b", "i4")])

# Only compiled code shows these: what a thread's own view of its own array, or of a record, holds
# behind a barrier.
VIEWS = """
l = cuda.local.array((2, 2), float64)
m = cuda.local.array(4, float64)
k = cuda.local.array(2, x.dtype)
row, part, turned, own = l[1], m[1:3], l.T, k[1]
row[0] = t
part[1] = t + 1
l[0, 1] = t + 2
own.a = t + 3
e = x[g]
e.a = t + 0.5
cuda.syncthreads()
e.b = row[0] + 10 * part[1] + 100 * turned[1, 0] + 1000 * own.a + 10000 * e.a
"""


def test_views_and_records_live_across_a_barrier() -> None:
    lines = ["t = cuda.threadIdx.x", "g = cuda.grid(1)", *VIEWS.strip().splitlines()]
    kernel: Any = defined("def kernel(x):\n" + "".join(f"    {line}\n" for line in lines))
    expected, x = np.zeros(16, RECORD), np.zeros(16, RECORD)
    simt.debug(kernel)[2, 8](expected)
    simt.jit(kernel)[2, 8](x)
    assert x.tolist() == expected.tolist()


def test_uniform_tuples_and_arrays_may_be_without_a_value() -> None:
    kernel: Any = defined("""
        def kernel(x, y, n):
            t = cuda.threadIdx.x
            if n > 3:
                shape, pair, array = x.shape, (n, n * 2.5), y if n > 4 else x
            cuda.syncthreads()
            if n > 3:
                x[t] += shape[0] + pair[1] + array[t]
                pair = (pair[0] + 1, pair[1])
            cuda.syncthreads()
            if n > 3:
                x[t] += pair[0]
    """)
    compiled = simt.jit(kernel)
    for n in (3, 4, 5):
        expected, interpreted, x = (np.arange(8.0) for _ in range(3))
        simt.debug(kernel)[1, 8](expected, np.ones(8), n)
        launch(kernel, 1, 8, interpreted, np.ones(8), n)
        compiled[1, 8](x, np.ones(8), n)
        assert np.array_equal(interpreted, expected)
        assert np.array_equal(x, expected)


@pytest.mark.parametrize("text", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("n", [0, 3, 5])
def test_agrees_with_the_other_engine(text: str, n: int) -> None:
    kernel: Any = defined(HEAD + "".join(f"    {line}\n" for line in text.strip().splitlines()))
    expected = np.arange(16.0)
    simt.debug(kernel)[2, 8](expected, n)
    for reverse in (False, True):
        x = np.arange(16.0)
        launch(kernel, 2, 8, x, n, reverse=reverse)
        assert np.array_equal(x, expected), reverse
