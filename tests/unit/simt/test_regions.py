"""Kernels with barriers as loops over threads: what is cut where, what is kept, and what runs
once for the block.
"""

import ast

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
from tests.unit.simt.written import defined, launch, parsed, program_text

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


def block_code(text: str, *, declarations: str = "s = cuda.shared.array(64, float64)") -> list[str]:
    """The code of a block, without the loops over y and z, the numbers of threads and
    assumptions; `t` is the thread index.
    """
    body = "".join(
        f"    {line}\n" for line in [declarations, "t = cuda.threadIdx.x", *text.splitlines()]
    )
    lines = program_text(defined(f"def kernel(x, n):\n{body}"), F8, types.int64).splitlines()
    start = next(at for at, line in enumerate(lines) if "for _k_bx" in line)
    dropped = ("for _k_tz ", "for _k_ty ", "_k_lin = ", "_k_assume(", "t = _k_tx")
    return [line.strip() for line in lines[start + 1 :] if not line.strip().startswith(dropped)]


LOOP = "for _k_tx in range(_k_Bx):"


def test_a_barrier_ends_the_loop_over_the_threads() -> None:
    assert block_code("s[t] = x[t]\ncuda.syncthreads()\nx[t] = s[n - t]") == [
        LOOP,
        "s[t] = x[t]",
        LOOP,
        "x[t] = s[n - t]",
    ]


def test_what_lives_across_a_barrier_has_a_slot() -> None:
    assert block_code(
        "v = x[t]\nw = v * 2\ni = t + 1\nm = n * 2\ncuda.syncthreads()\nx[i] = v + m"
    ) == [
        "m__u = n * 2",
        LOOP,
        "v = x[t]",
        "w = v * 2",
        "_k_slot_set(v__s, _k_lin, v)",
        LOOP,
        "i = _k_nonneg(t + 1)",
        "m = m__u",
        "v = _k_slot_get(v__s, _k_lin)",
        "x[i] = v + m",
    ]


def test_uniform_conditions_and_loops_around_barriers_run_once_for_the_block() -> None:
    text = """
if n > 3:
    for k in range(n):
        s[t] = k
        cuda.syncthreads()
        if k > 5:
            break
        x[t] += s[0]"""
    assert block_code(text) == [
        "if n > 3:",
        "for k__u in range(n):",
        LOOP,
        "k = k__u",
        "s[t] = k",
        "if k__u > 5:",
        "break",
        LOOP,
        "x[t] += s[0]",
    ]


def test_all_threads_return_together() -> None:
    assert block_code("s[t] = 1\ncuda.syncthreads()\nif n > 3:\n    return\nx[t] = s[0]") == [
        LOOP,
        "s[t] = 1",
        "if n > 3:",
        "continue",
        LOOP,
        "x[t] = s[0]",
    ]


def test_a_uniform_value_waits_for_those_who_read_the_old_one() -> None:
    assert block_code(
        "m = n\nfor k in range(n):\n    s[t] += m\n    m = m + 1\n    cuda.syncthreads()"
    ) == [
        "m__u = n",
        "for k__u in range(n):",
        LOOP,
        "m = m__u",
        "s[t] += m",
        "m__u = m__u + 1",
    ]


def test_a_condition_on_thread_indices_around_a_barrier_is_a_bound() -> None:
    lines = block_code(
        "if 2 < t < n:\n    s[t] = 1\n    cuda.syncwarp()\n    x[t] = s[3]\nx[0] = 1"
    )
    assert lines == [
        "_k_high_x1 = min(_k_Bx, _k_ceil_bound(n, -1))",
        "_k_low_x1 = max(0, 2 + 1)",
        "if not _k_high_x1 <= _k_low_x1:",
        "for _k_tx in range(max(0, _k_low_x1), _k_high_x1):",
        "s[t] = 1",
        "for _k_tx in range(max(0, _k_low_x1), _k_high_x1):",
        "x[t] = s[3]",
        LOOP,
        "x[0] = 1",
    ]


def test_a_leaving_guard_makes_the_block_shorter() -> None:
    lines = block_code(
        "v = x[t]\nif t >= n:\n    return\ns[t] = v\ncuda.syncthreads()\nx[t] = s[0]"
    )
    assert lines == [
        "_k_high_x = min(_k_Bx, _k_ceil_bound(n, 1))",
        "if _k_high_x <= 0:",
        "continue",
        "for _k_tx in range(_k_high_x):",
        "v = x[t]",
        "s[t] = v",
        "for _k_tx in range(_k_high_x):",
        "x[t] = s[0]",
    ]


def test_loops_of_varying_length_count_for_each_thread() -> None:
    lines = block_code("for k in range(t, n, 2):\n    s[t] += k\n    cuda.syncwarp()")
    assert "_k_stop_k4__u = n" in lines
    assert "_k_step_k4__u = 2" in lines
    assert "if _k_at_k4 < _k_stop_k4:" in lines
    assert "k = _k_at_k4" in lines
    assert "_k_at_k4 += _k_step_k4" in lines


def test_votes_and_shuffles_run_between_the_loops() -> None:
    lines = block_code(
        "v = x[t]\nx[t] = cuda.shfl_down_sync(-1, v, 2) + cuda.syncthreads_count(v > n)"
    )
    assert lines == [
        LOOP,
        "v = x[t]",
        "_k_slot_set(v__s, _k_lin, v)",
        "_k_all_shfl_down_sync_padded(_k_got2__s, -1, v__s, 2, None, _k_threads, 1)",
        LOOP,
        "v = _k_slot_get(v__s, _k_lin)",
        "_k_given3 = v > n",
        "_k_slot_set(_k_given3__s, _k_lin, _k_given3)",
        "_k_vote5__u = _k_all_syncthreads_count(_k_given3__s, None, _k_threads, 1)",
        "_k_got4__u = _k_vote5__u",
        LOOP,
        "_k_got2 = _k_slot_get(_k_got2__s, _k_lin)",
        "_k_got4 = _k_got4__u",
        "x[t] = _k_got2 + _k_got4",
    ]


def test_who_takes_part_in_a_vote() -> None:
    lines = block_code("if t < n:\n    s[t] = cuda.ballot_sync(-1, x[t] > 0)")
    clear = lines.index("for _k_t in range(_k_threads):")
    assert lines[clear + 1 : clear + 4] == [
        "_k_active[_k_t] = False",
        "for _k_tx in range(_k_high_x):",
        "_k_active[_k_lin] = True",
    ]
    assert "_k_all_ballot_sync(_k_got2__s, -1, _k_given1__s, _k_active, _k_threads, 1)" in lines


def test_the_threads_of_a_whole_grid() -> None:
    kernel = defined(
        "def kernel(x):\n    i = cuda.grid(1)\n    v = x[i]\n    "
        "cuda.cg.this_grid().sync()\n    x[-i] = v"
    )
    text = program_text(kernel, F8)
    lines = [line.strip() for line in text.splitlines()]
    assert "v__s__h = _k_empty(_k_threads * _k_blocks, _k_dtype_v)" in lines
    assert lines.count("for _k_bx in range(_k_Gx):") == 2
    assert "_k_slot_set(v__s, _k_number, v)" in lines
    assert lines[-1] == "_k_keep(v__s__h)"


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
