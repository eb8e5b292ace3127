"""One name for each life of a variable."""

import ast
import textwrap

import numpy as np
from numba import cuda, float32

from synknumba import simt
from synknumba.simt._analysis.variables import with_own_names


def renamed(text: str, *kept: str) -> list[str]:
    return ast.unparse(with_own_names(ast.parse(textwrap.dedent(text)).body, kept)).splitlines()


def test_a_variable_assigned_anew_has_a_new_name() -> None:
    assert renamed("""
        v = a
        x[0] = v
        v = v + b
        if v > 0:
            v += 1
        w = v
        v = w
        x[1] = v
    """) == [
        "v = a",
        "x[0] = v",
        "v_2 = v + b",
        "if v_2 > 0:",
        "    v_2 += 1",
        "w = v_2",
        "v_3 = w",
        "x[1] = v_3",
    ]


def test_names_that_are_taken_or_kept_stay() -> None:
    assert renamed("v_2 = 1\nv = v_2\nv = 2\nx[0] = v") == [
        "v_2 = 1",
        "v = v_2",
        "v_3 = 2",
        "x[0] = v_3",
    ]
    assert renamed("v = 1\nv = 2", "v") == ["v = 1", "v = 2"]
    assert renamed("if c:\n    v = 1\nelse:\n    v = 2\nx[0] = v") == [
        "if c:",
        "    v = 1",
        "else:",
        "    v = 2",
        "x[0] = v",
    ]


def test_what_is_assigned_in_a_loop_before_is_another_variable() -> None:
    assert renamed("for i in range(3):\n    v = i\nv = 0.5\nv = v * 2") == [
        "for i in range(3):",
        "    v = i",
        "v_2 = 0.5",
        "v_3 = v_2 * 2",
    ]


def test_types_across_barriers_do_not_mix() -> None:
    """One rounding in float32, as NumPy computes it, and integers above 2**53."""

    def kernel(x, y, n, out, whole):
        t = cuda.threadIdx.x
        v = x[t]
        cuda.syncthreads()
        out[t] = float32(v)
        v = y[t]
        cuda.syncthreads()
        out[t] += v * v
        v = n[t]
        cuda.syncthreads()
        whole[t] = v + 1

    rng = np.random.default_rng(2)
    x, y = rng.random(32), rng.random(32).astype(np.float32)
    n = rng.integers(1 << 60, 1 << 62, 32)
    out, whole = np.zeros(32, np.float32), np.zeros(32, np.int64)
    simt.jit(kernel)[1, 32](x, y, n, out, whole)
    np.testing.assert_allclose(out, x.astype(np.float32) + y * y, rtol=1e-6)
    np.testing.assert_array_equal(whole, n + 1)
