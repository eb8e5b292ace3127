"""Barriers that not all threads of a block reach: masks, and the error for what a GPU would wait
for forever.
"""

import ast
from typing import Any

import numpy as np
import pytest

from synknumba._errors import KernelError
from synknumba.simt._emit.build import KernelProgram
from synknumba.simt._emit.options import Options
from tests.unit.simt.written import defined, launch, program_text, shape

HEAD = """
def kernel(x, n):
    s = cuda.shared.array(8, float64)
    t = cuda.threadIdx.x
    s[t] = t
"""


def kernel(text: str) -> Any:
    return defined(HEAD + "".join(f"    {line}\n" for line in text.strip().splitlines()))


def run(text: str, n: int = 3, grid: int = 2) -> np.ndarray:
    """What x holds after a launch with blocks of 8 threads; it is 0, 1, 2, … before."""
    found = []
    for reverse in (False, True):
        x = np.arange(8.0 * grid)
        launch(kernel(text), grid, 8, x, n, reverse=reverse)
        found.append(x)
    assert np.array_equal(*found)
    return found[0]


def condition_line(text: str) -> str:
    return f"<written .*>:{6 + list(map(str.strip, text.splitlines())).index('# here')}"


# What differs between the threads of a block, and what the error calls it. The line behind `# here`
# is the one it names.
DIVERGENT = {
    "work that follows": ("an if", "# here\nif x[t] > 3:\n    cuda.syncthreads()\nx[t] = 1"),
    "work that follows a loop": (
        "a loop condition",
        "# here\nfor k in range(int(x[t])):\n    cuda.syncthreads()\nx[t] = 1",
    ),
    "value": (
        "an if",
        "# here\nif x[t] > 3:\n    cuda.syncthreads()\ncuda.syncthreads()\nx[t] = 1",
    ),
    "first threads": (
        "an if",
        "# here\nif t < 3:\n    cuda.syncthreads()\ncuda.syncthreads()\nx[t] = 1",
    ),
    "last threads": (
        "an if",
        "# here\nif t >= n:\n    cuda.syncthreads()\ncuda.syncthreads()\nx[t] = 1",
    ),
    "one thread": (
        "an if",
        "# here\nif t == n:\n    cuda.syncthreads()\ncuda.syncthreads()\nx[t] = 1",
    ),
    "threads in the middle": (
        "an if",
        "# here\nif 2 < t < 5:\n    cuda.syncthreads()\ncuda.syncthreads()\nx[t] = 1",
    ),
    "place in the grid": (
        "an if",
        "# here\nif cuda.grid(1) < 11:\n    cuda.syncthreads()\ncuda.syncthreads()\nx[t] = 1",
    ),
    "else": (
        "an if",
        "# here\nif x[t] > 3:\n    x[t] = 0\nelse:\n    "
        "cuda.syncthreads()\ncuda.syncthreads()\nx[t] = 1",
    ),
    "trailing else": (
        "an if",
        "# here\nif t < 3:\n    x[t] = 0\nelse:\n    cuda.syncthreads()\n    x[t] = s[7 - "
        "t]\ncuda.syncthreads()\nx[t] += 1",
    ),
    "both branches": (
        "an if",
        "# here\nif x[t] > 3:\n    cuda.syncthreads()\nelse:\n    cuda.syncthreads()",
    ),
    "another barrier in the condition": (
        "an if",
        "if t < 5:\n    # here\n    if t < 3:\n        cuda.syncthreads()\n    "
        "cuda.syncthreads()\n    x[t] = 1",
    ),
    "a shuffle that follows": (
        "an if",
        "# here\nif t < 3:\n    cuda.syncthreads()\nx[t] = cuda.shfl_xor_sync(0xFF, s[t], 1)",
    ),
    "a warp's barrier in the other branch": (
        "an if",
        "# here\nif x[t] > 3:\n    cuda.syncthreads()\nelse:\n    cuda.syncwarp()\nx[t] = 1",
    ),
    "a loop around": (
        "a loop condition",
        "for j in range(n):\n    k = 0\n    # here\n    while k < t:\n        k += 1\n        "
        "cuda.syncthreads()\nx[t] = 1",
    ),
    "vote": (
        "an if",
        "# here\nif x[t] > 3:\n    s[t] = cuda.syncthreads_count(t)\ncuda.syncthreads()\nx[t] = 1",
    ),
    "inside a uniform if": (
        "an if",
        "if n > 1:\n    # here\n    if t < 3:\n        "
        "cuda.syncthreads()\ncuda.syncthreads()\nx[t] = 1",
    ),
    "inside a loop": (
        "an if",
        "for k in range(n):\n    # here\n    if t < k:\n        "
        "cuda.syncthreads()\ncuda.syncthreads()\nx[t] = 1",
    ),
    "while": (
        "a loop condition",
        "k = t\n# here\nwhile k < 8:\n    k += 1\n    "
        "cuda.syncthreads()\ncuda.syncthreads()\nx[t] = 1",
    ),
    "for": (
        "a loop condition",
        "# here\nfor k in range(t, 8):\n    cuda.syncthreads()\ncuda.syncthreads()\nx[t] = 1",
    ),
    "step of a for": (
        "a loop condition",
        "# here\nfor k in range(0, 8, t + 1):\n    cuda.syncthreads()\ncuda.syncthreads()\nx[t] = "
        "1",
    ),
    "backward": (
        "a loop condition",
        "# here\nfor k in range(8, t, -1):\n    cuda.syncthreads()\ncuda.syncthreads()\nx[t] = 1",
    ),
    "after a break": (
        "a break or continue",
        "k = 0\nwhile k < n:\n    k += 1\n    if x[t] > 3:\n        break\n    # "
        "here\n    cuda.syncthreads()\n"
        "cuda.syncthreads()\nx[t] = 1",
    ),
    "after a continue": (
        "a break or continue",
        "for k in range(n):\n    if t == k:\n        continue\n    # here\n    s[t] = "
        "cuda.syncthreads_or(t)\n"
        "cuda.syncthreads()\nx[t] = 1",
    ),
    "in the iteration after a break": (
        "a break or continue",
        "for k in range(n):\n    # here\n    cuda.syncthreads()\n    if x[t] > 3:\n        "
        "break\ncuda.syncthreads()\nx[t] = 1",
    ),
}


@pytest.mark.parametrize("name", DIVERGENT)
def test_a_barrier_that_some_threads_do_not_reach(name: str) -> None:
    what, text = DIVERGENT[name]
    with pytest.raises(
        KernelError,
        match=rf"^kernel \({condition_line(text)}\): a barrier under {what} "
        rf"that some threads of a block",
    ):
        run(text)


@pytest.mark.parametrize("n", [0, 8, 9])
def test_none_or_all_of_the_threads_may_reach_it(n: int) -> None:
    found = run("if t < n:\n    cuda.syncthreads()\n    x[t] = s[7 - t]\nx[t] += 10", n, grid=1)
    assert np.array_equal(found, np.arange(8.0) + 10 if n == 0 else 17 - np.arange(8.0))


def test_a_trailing_guard_is_not_divergence() -> None:
    """No barrier follows: threads that have ended count as arrived."""
    text = (
        "if cuda.grid(1) < 13:\n    s[t] *= 2\n    cuda.syncthreads()\n    "
        "x[cuda.grid(1)] = s[t // 2]"
    )
    i = np.arange(16)
    assert np.array_equal(run(text), np.where(i < 13, i % 8 // 2 * 2, i))
    text = (
        "if x[t] > 2:\n    s[t] *= 2\n    cuda.syncthreads()\n    x[cuda.grid(1)] = "
        "s[7]\ncuda.syncthreads()"
    )
    assert np.array_equal(run(text, grid=1), [0, 1, 2, 14, 14, 14, 14, 14])


def test_threads_that_have_returned_are_not_waited_for() -> None:
    text = (
        "if x[t] > 5:\n    return\ncuda.syncthreads()\ns[t] += "
        "1\ncuda.syncthreads()\nx[t] = s[5 - t]"
    )
    assert np.array_equal(run(text, grid=1), [6, 5, 4, 3, 2, 1, 6, 7])


def test_loops_that_run_equally_often_from_different_starts() -> None:
    text = (
        "for k in range(t, t + n):\n    cuda.syncthreads()\n    s[(t + k) % 8] += 1\n    "
        "cuda.syncthreads()\nx[t] = s[t] + k"
    )
    t = np.arange(8)
    expected = t.astype(float)
    for step in range(3):
        np.add.at(expected, (2 * t + step) % 8, 1)
    # Two threads add to one element, which is a race on a GPU, and none here.
    assert np.array_equal(run(text, grid=1), expected + t + 2)


def test_warps_may_go_apart() -> None:
    text = """
    def kernel(x):
        t = cuda.threadIdx.x
        if t < 32:
            x[t] = cuda.shfl_down_sync(-1, x[t], 1)
            cuda.syncwarp()
        k = t // 32
        while k < 2:
            k += 1
            x[t] += cuda.ballot_sync(-1, t % 2)
        cuda.syncthreads()
        x[t] += 0.5
    """
    x = np.arange(64.0)
    launch(defined(text), 1, 64, x)
    odd = float(np.uint32(0xAAAAAAAA).astype(np.int32))
    first = np.append(np.arange(1.0, 32), 31)
    assert np.array_equal(x, np.concatenate([first + 2 * odd, np.arange(32.0, 64) + odd]) + 0.5)


def test_only_the_barrier_of_the_grid_counts_where_there_is_one() -> None:
    text = """
    def kernel(x, n):
        g = cuda.cg.this_grid()
        i = cuda.grid(1)
        if cuda.blockIdx.x == 0:
            cuda.syncthreads()
            x[i] += 100
        {}
        x[i] += 10
        g.sync()
    """
    x = np.arange(8.0)
    launch(defined(text.format("g.sync()")), 2, 4, x, 2)
    assert np.array_equal(x, np.arange(8) + 10.0 + 100 * (np.arange(8) < 4))
    with pytest.raises(KernelError, match=r"^kernel \(<written .*>:7\): a barrier under an if"):
        launch(defined(text.format("if i > n:\n            g.sync()")), 2, 4, x, 2)


# ---- what is generated


def block_shape(text: str) -> tuple[Any, ...]:
    """What a block does once all masks are set."""
    return shape(program_text(kernel(text)))[-1][2:]


def test_a_masked_if() -> None:
    text = "if x[t] > 3:\n    cuda.syncthreads()\n    x[t] = 1\nelse:\n    x[t] = 2\nx[t] = 3"
    masked = ("if", ("threads", ("if", "t", "x[]")))
    assert block_shape(text) == (
        ("threads", "t", "s[]"),
        ("threads", "t"),  # who goes in
        ("if", "raise"),
        masked,
        ("threads",),  # the others
        masked,
        ("threads",),  # all again
        ("threads", "t", "x[]"),
    )


def test_a_masked_loop() -> None:
    text = (
        "k = t\nwhile k < 8:\n    k += 1\n    if k == 3:\n        continue\n    "
        "cuda.syncwarp()\n    if k > 5:\n        break"
    )
    assert block_shape(text) == (
        ("threads", "t", "s[]", "k"),
        (
            "while",
            ("threads", ("if", "k")),  # who goes on
            ("if", "break"),
            ("threads", ("if", "k", "k")),
            ("threads", ("if", "k")),
            ("threads",),  # those that have continued run again
        ),
        ("threads",),  # all do
    )


@pytest.mark.parametrize(
    "text",
    [
        "if x[t] > 3:\n    cuda.syncthreads()\n    x[t] = s[0]",
        "while s[t] > 3:\n    cuda.syncthreads()\n    s[t] -= 1",
        "for k in range(n):\n    cuda.syncthreads()\n    if x[t] > 3:\n        break",
    ],
)
def test_only_what_is_followed_by_work_is_checked(text: str) -> None:
    """Threads that skip the last statement end; those that have work to do may wait for their
    warp, which is at the barrier.
    """
    assert "k_DivergenceError" not in program_text(kernel(text))
    assert "k_DivergenceError" in program_text(kernel(f"{text}\nx[t] = 1"))
    assert "k_DivergenceError" in program_text(kernel(f"{text}\ncuda.syncthreads()\nx[t] = 1"))


def test_threads_that_leave_the_last_loop_have_ended() -> None:
    t = np.arange(8)
    text = "for k in range(t):\n    s[t] = k\n    cuda.syncthreads()\n    x[t] += s[7] * 0 + s[t]"
    assert np.array_equal(run(text, grid=1), t + t * (t - 1) // 2)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("if t < 5:\n    cuda.syncwarp()\nx[t] = 1", False),
        ("if n < 5:\n    cuda.syncthreads()\nx[t] = 1", False),
        ("if x[t] > 5:\n    cuda.syncwarp()\nx[t] = 1", True),
        ("if t < 5:\n    cuda.syncwarp()\nelse:\n    x[t] = 1", True),
        ("if t < 5 and n > 2:\n    cuda.syncwarp()\nx[t] = 1", True),
        ("if x[t] > 5:\n    return\ncuda.syncthreads()\nx[t] = 1", True),
        ("if t > 5:\n    return\ncuda.syncthreads()\nx[t] = 1", False),
        (
            "for k in range(n):\n    if n > 3:\n        break\n    cuda.syncthreads()\nx[t] = 1",
            False,
        ),
        ("for k in range(n):\n    if t > 3:\n        break\n    cuda.syncwarp()\nx[t] = 1", True),
        (
            "for k in range(n):\n    for j in range(t):\n        if x[j] > 2:\n            "
            "break\n    cuda.syncthreads()",
            False,
        ),
    ],
)
def test_masks_are_only_made_where_they_are_needed(text: str, masked: bool) -> None:
    assert ("_k_mask" in program_text(kernel(text))) == masked


def test_lines_of_the_error_are_those_of_the_file() -> None:
    body = KernelProgram(
        kernel("if x[t] > 3:\n    cuda.syncthreads()\ncuda.syncthreads()\nx[t] = 1"), Options()
    ).launch_body({})
    raised = [node for node in ast.walk(ast.Module(body, [])) if isinstance(node, ast.Raise)]
    assert [node.lineno for node in raised] == [5]
