"""Kernels with barriers as loops over threads: what is cut where, what is kept, and what runs
once for the block.
"""

import ast
from typing import Any

import numpy as np
import pytest
from numba.core import types

from synknumba.simt._library.synchronisation import BARRIER_KINDS
from synknumba.simt._lower.sync import (
    barrier,
    barrier_kind,
    collective_of,
    collective_statement,
    synchronises,
    waits_for,
)
from tests.unit.simt.written import defined, launch, parsed, program_text, shape

F8 = types.Array(types.float64, 1, "C")


# ---- the words for synchronisation


def test_barriers_are_found_again() -> None:
    for kind in BARRIER_KINDS:
        made = barrier(kind, ast.Pass(lineno=7))
        assert barrier_kind(made) == kind
        assert made.lineno == 7
        assert synchronises([parsed("if a:\n    b = 1")[0], ast.If(ast.Name("a"), [made], [])])
        assert [waits_for(made, other) for other in BARRIER_KINDS] == [
            other == kind for other in BARRIER_KINDS
        ]
    assert not synchronises(parsed("x[0] = f()\ng()\nwhile a:\n    b = c"))


@pytest.mark.parametrize(
    ("path", "results", "operands", "waits"),
    [
        ("syncthreads_count", ["n"], ["p"], True),
        ("shfl_down_sync", ["r"], ["m", "v", "3"], False),
        ("match_all_sync", ["r", "same"], ["m", "v"], False),
        ("activemask", ["r"], [], False),
    ],
)
def test_collectives_are_found_again(
    path: str, results: list[str], operands: list[str], waits: bool
) -> None:
    made = collective_statement(
        path, results, [ast.parse(text, mode="eval").body for text in operands], ast.Pass(lineno=7)
    )
    found = collective_of(made)
    assert found is not None
    assert (found.path, found.results, [ast.unparse(node) for node in found.operands.values()]) == (
        path,
        tuple(results),
        operands,
    )
    assert synchronises(made)
    assert waits_for(made, "block") == waits
    assert barrier_kind(made) is None
    assert collective_of(parsed("r = f(v)")[0]) is None


# ---- regions


def block_shape(text: str) -> tuple[Any, ...]:
    """What a block does; `t` is the thread index, `s` a shared array."""
    lines = ["s = cuda.shared.array(64, float64)", "t = cuda.threadIdx.x", *text.splitlines()]
    body = "".join(f"    {line}\n" for line in lines)
    whole = shape(program_text(defined(f"def kernel(x, n):\n{body}"), F8, types.int64))
    return _without_index(whole[-1][1:])


def _without_index(entries: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same without `t`, which every loop computes that needs it."""
    return tuple(
        _without_index(entry) if isinstance(entry, tuple) else entry
        for entry in entries
        if entry != "t"
    )


BARRIER = "\ncuda.syncthreads()\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            f"s[t] = x[t]{BARRIER}x[t] = s[n - t]",
            (("threads", "s[]"), ("threads", "x[]")),
            id="a barrier ends the loop over the threads",
        ),
        pytest.param(
            f"v = x[t]\nw = v * 2\ni = t + 1\nm = n * 2{BARRIER}x[i] = v + m",
            ("m", ("threads", "v", "w"), ("threads", "i", "m", "v", "x[]")),
            id="what lives across a barrier is loaded, computed again, or one for the block",
        ),
        pytest.param(
            "if n > 3:\n    for k in range(n):\n        s[t] = k\n        cuda.syncthreads()\n"
            "        if k > 5:\n            break\n        x[t] += s[0]",
            (("if", ("for", ("threads", "k", "s[]"), ("if", "break"), ("threads", "x[]"))),),
            id="uniform conditions and loops around barriers run once for the block",
        ),
        pytest.param(
            f"s[t] = 1{BARRIER}if n > 3:\n    return\nx[t] = s[0]",
            (("threads", "s[]"), ("if", "continue"), ("threads", "x[]")),
            id="all threads return together",
        ),
        pytest.param(
            "m = n\nfor k in range(n):\n    s[t] += m\n    m = m + 1\n    cuda.syncthreads()",
            ("m", ("for", ("threads", "m", "s[]"), "m")),
            id="a uniform value waits for those who read the old one",
        ),
        pytest.param(
            "if 2 < t < n:\n    s[t] = 1\n    cuda.syncwarp()\n    x[t] = s[3]\nx[0] = 1",
            (("if", ("threads", "s[]"), ("threads", "x[]")), ("threads", "x[]")),
            id="a condition on thread indices around a barrier is a bound",
        ),
        pytest.param(
            f"v = x[t]\nif t >= n:\n    return\ns[t] = v{BARRIER}x[t] = s[0]",
            (("if", "continue"), ("threads", "v", "s[]"), ("threads", "x[]")),
            id="a leaving guard makes the block shorter",
        ),
        pytest.param(
            "v = x[t]\nx[t] = cuda.shfl_down_sync(-1, v, 2) + cuda.syncthreads_count(v > n)",
            (("threads", "v"), ("threads", "v"), ("threads", "x[]")),
            id="votes and shuffles run between the loops",
        ),
    ],
)
def test_loops_over_threads(text: str, expected: tuple[Any, ...]) -> None:
    assert block_shape(text) == expected


def test_the_threads_of_a_whole_grid() -> None:
    kernel = defined(
        "def kernel(x):\n    i = cuda.grid(1)\n    v = x[i]\n    "
        "cuda.cg.this_grid().sync()\n    x[-i] = v"
    )
    assert shape(program_text(kernel, F8))[2:] == (  # behind the memory of `v`
        ("blocks", ("threads", "i", "v")),
        ("blocks", ("threads", "i", "v", "x[]")),
    )


def test_only_threads_within_the_bounds_vote() -> None:
    vote = "    if t < n:\n        x[t] = cuda.ballot_sync(-1, x[t] > 0)"
    x = np.ones(8)
    launch(defined(f"def kernel(x, n):\n    t = cuda.threadIdx.x\n{vote}"), 1, 8, x, 3)
    assert x.tolist() == [7, 7, 7, 1, 1, 1, 1, 1]


# ---- the interpreter of the tests checks what LLVM is told


@pytest.mark.parametrize(("n", "fits"), [(8, True), (-1, False)])
def test_assumptions_are_checked_when_interpreted(
    n: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from synknumba.simt._analysis.uniformity import Analysis

    monkeypatch.setattr(Analysis, "is_nonneg", lambda *_: True)
    kernel = defined("def kernel(x, n):\n    i = cuda.threadIdx.x + n\n    x[i] = n")
    x = np.zeros(9)
    if fits:
        launch(kernel, 1, 1, x, n)
        assert x.tolist() == [0] * 8 + [8]
    else:
        with pytest.raises(AssertionError, match="cannot be negative"):
            launch(kernel, 1, 1, x, n)


EVERYTHING = """
@cuda.jit(device=True)
def clipped(v, low=0.0):
    return max(low, min(v, float32(9.5)))

@njit
def plus(a, b):
    return a + b

def kernel(x, k, total):
    s = cuda.shared.array((2, 4), float64)
    d = cuda.shared.array(0, int32)
    c = cuda.local.array(2, float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    c[0], c[1] = x[i], t
    s[t // 4, t % 4] = clipped(x[i], low=1.0)
    d[t] = t
    cuda.syncthreads()
    old = cuda.atomic.add(total, t % 2, int64(c[0]))
    cuda.atomic.max(k, 0, old)
    cuda.atomic.cas(k, 1, 0, i)
    x[i] = plus(s[1 - t // 4, 3 - t % 4], d[7 - t]) + c[1]
"""


@pytest.mark.parametrize("reverse", [False, True])
def test_all_that_the_interpreter_knows(reverse: bool) -> None:
    x, k, total = np.arange(16.0), np.zeros(2, np.int64), np.zeros(2, np.int64)
    launch(defined(EVERYTHING), 2, 8, x, k, total, reverse=reverse, smem=34)
    i, t = np.arange(16), np.arange(16) % 8
    assert np.array_equal(x, np.clip(i - t + 7 - t, 1, 9.5) + 7 - t + t)
    assert total.tolist() == [56, 64]
    assert k.tolist() == ([49, 1] if not reverse else [55, 7])
