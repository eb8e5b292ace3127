"""Kernels that were once run wrongly, against the engine of `simt.debug`, which shares no code with the compiler."""

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
