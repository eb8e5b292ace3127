"""Device functions pasted into a kernel: their variables, and their `return` statements."""

import ast

import numpy as np
import pytest

from synknumba.simt._lower.exits import RUNNING, lower_exits, lower_returns, needs_flag
from synknumba.simt._lower.inlining import last_return, renamed
from synknumba.simt._source.syntax import has_return, unparse
from tests.unit.simt.written import Statements, defined, launch, parsed, thread_code, thread_lines

SEEDS = [range(start, start + 100) for start in range(0, 400, 100)]


def run(lines: str, seed: int, result: str) -> tuple[list[int], object]:
    """What the statements note, and a variable behind them."""
    scope: dict[str, object] = {"trace": [], "seed": seed, result: None}
    exec(lines, scope)
    return scope["trace"], scope[result]  # type: ignore[return-value]


def called(text: str, seed: int) -> tuple[list[int], object]:
    """What a function of these statements notes, and its value."""
    body = "\n".join("    " + line for line in text.splitlines())
    return run(f"def function():\n{body}\nresult = function()", seed, "result")


# ---- returns of pasted functions


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_assigned_returns_do_what_the_function_does(seeds: range) -> None:
    for seed in seeds:
        text = Statements(seed, value=True).text()
        lowered = lower_returns(parsed(text), "going", "result")
        assert not has_return(lowered)
        assert run(unparse(lowered), seed, "result") == called(text, seed), text


def test_a_return_in_a_branch_makes_an_else() -> None:
    lowered = lower_returns(parsed("if a:\n    return 1\nb = 2\nreturn b"), "going", "result")
    assert unparse(lowered).splitlines() == [
        "if a:",
        "    result = 1",
        "else:",
        "    b = 2",
        "    result = b",
    ]


def test_a_return_in_a_loop_sets_a_flag() -> None:
    lowered = lower_returns(
        parsed("for i in x:\n    for j in y:\n        return 1\n    b = 2\nreturn b"),
        "going",
        "result",
    )
    assert unparse(lowered).splitlines() == [
        "going = True",
        "for i in x:",
        "    for j in y:",
        "        result = 1",
        "        going = False",
        "        break",
        "    if not going:",
        "        break",
        "    b = 2",
        "if going:",
        "    result = b",
        "    going = False",
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a = 1\nreturn a", "a"),
        ("return", None),
        ("a = 1", ...),
        ("if a:\n    return 1\nreturn 2", ...),
        ("", ...),
    ],
)
def test_last_return(text: str, value: object) -> None:
    found = last_return(parsed(text))
    if value is ...:
        assert found is None
    else:
        assert found is not None
        assert (ast.unparse(found[1]) if found[1] else None) == value


# ---- names


def test_variables_get_other_names() -> None:
    before = parsed("a = b + c\nfor a in d(a):\n    e[a] += f")
    after = renamed(
        before,
        {"a": "a2", "e": "e2"},
        {"c": ast.parse("x + 1", mode="eval").body, "f": ast.Constant(3)},
    )
    assert unparse(after) == "a2 = b + (x + 1)\nfor a2 in d(a2):\n    e2[a2] += 3"
    assert unparse(before) == "a = b + c\nfor a in d(a):\n    e[a] += f"


SUM = """
@cuda.jit(device=True)
def total(s, v, width):
    t = cuda.threadIdx.x
    s[t] = v
    cuda.syncthreads()
    while width > 1:
        width //= 2
        if t < width:
            s[t] += s[t + width]
        cuda.syncthreads()
    v = s[0]
    cuda.syncthreads()
    return v
"""
TWICE = (
    SUM
    + """
def kernel(x, y):
    s = cuda.shared.array(8, float64)
    t, v, width = cuda.grid(1), 3.0, 8
    y[t] = total(s, x[t], width) + total(s, v * t, width) + v + width
"""
)


def test_each_call_has_variables_of_its_own() -> None:
    found = thread_lines(defined(TWICE))
    for name in (
        "t_total = _k_tx",
        "t_total2 = _k_tx",
        "v_total = x[t]",
        "v_total3 = v * t",
        "width_total3 = width",
    ):
        assert name in found
    x, y = np.arange(8.0), np.zeros(8)
    launch(defined(TWICE), 1, 8, x, y)
    assert np.array_equal(y, np.full(8, 28 + 3 * 28 + 3 + 8.0))


def test_names_of_the_caller_are_left_alone() -> None:
    text = SUM + "\ndef kernel(x):\n    t_total = 5\n    x[0] = total(x, 1.0, 2) + t_total\n"
    assert "t_total2 = _k_tx" in thread_lines(defined(text))


def test_what_is_only_read_is_not_copied() -> None:
    text = """
    @cuda.jit(device=True)
    def shifted(s, k):
        cuda.syncthreads()
        return s[k]

    def kernel(x, y):
        y[0] = shifted(x, 3)
    """
    assert thread_lines(defined(text)) == ["_k_barrier_block()", "y[0] = x[3]"]


def test_shared_and_local_arrays_of_a_function_become_those_of_the_kernel() -> None:
    text = """
    @cuda.jit(device=True)
    def reversed_(v):
        s = cuda.shared.array(4, float64)
        c = cuda.local.array(2, float64)
        c[0] = v
        s[cuda.threadIdx.x] = c[0]
        cuda.syncthreads()
        r = s[3 - cuda.threadIdx.x]
        cuda.syncthreads()  # every call has the same shared array
        return r

    def kernel(x):
        i = cuda.threadIdx.x
        x[i] = reversed_(x[i]) * 10 + reversed_(-x[i])
    """
    code = thread_code(defined(text))
    assert sorted(code.shared_arrays) == ["s_reversed_"]
    assert code.local_arrays == {"c_reversed_", "c_reversed_2"}
    x = np.arange(4.0)
    launch(defined(text), 1, 4, x)
    assert np.array_equal(x, [27.0, 18.0, 9.0, 0.0])


def test_functions_pasted_into_pasted_functions() -> None:
    text = """
    @cuda.jit(device=True)
    def first(s, k):
        cuda.syncthreads()
        for j in range(4):
            if s[j] > k:
                return j
        return -1

    @cuda.jit(device=True)
    def second(s, k=2, *, unused=0) -> int:
        a = first(s, k)
        if a < 0:
            return 100
        return a + first(s, k + 2) * 10

    def kernel(x, y):
        y[cuda.grid(1)] = second(x) + second(k=0, s=x) * 1000
    """.replace(", *, unused=0", "")
    x, y = np.array([1.0, 2, 3, 5]), np.zeros(4)
    launch(defined(text), 1, 4, x, y)
    assert np.array_equal(y, np.full(4, 32 + 20_000.0))


# ---- exits of a thread's turn


def around(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_a_return_goes_on_with_the_next_thread(seeds: range) -> None:
    for seed in seeds:
        text = Statements(seed).text()
        lowered = unparse(lower_returns(parsed(text), "going")) or "pass"
        threads = f"for thread in range(4):\n{around(lowered)}"
        expected = f"def turn():\n{around(text)}\nfor thread in range(4):\n    turn()"
        assert run(threads, seed, "thread") == run(expected, seed, "thread"), text


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("if not c:\n    return\na = 1", "if c:\n    a = 1"),
        (
            "b = 1\nif c:\n    return\nif d:\n    return\na = 1",
            "b = 1\nif not c:\n    if not d:\n        a = 1",
        ),
        ("if c:\n    return", "if not c:\n    pass"),
        ("if c:\n    return\nelse:\n    a = 1", "if not c:\n    a = 1"),
        ("if c:\n    a = 1\n    return\nb = 1", "if c:\n    a = 1\nelse:\n    b = 1"),
        ("if c:\n    a = 1", "if c:\n    a = 1"),
        ("if c:\n    return\nfor i in x:\n    if d:\n        return", None),
        ("if c:\n    if d:\n        return\nb = 1", None),
    ],
)
def test_returns_as_conditions(text: str, written: str | None) -> None:
    assert needs_flag(parsed(text)) == (written is None)
    if written is not None:
        assert unparse(lower_returns(parsed(text), "going")) == written


LEFT, ENDED = 5, 6


@pytest.mark.parametrize("loop", [None, (LEFT, ENDED)], ids=["outside", "in a loop"])
@pytest.mark.parametrize("seeds", SEEDS[:3], ids=str)
def test_an_exit_says_what_a_thread_leaves(seeds: range, loop: tuple[int, int] | None) -> None:
    for seed in seeds:
        text = Statements(
            seed, exits=("return",) if loop is None else ("return", "break", "continue")
        ).text()
        lowered = f"_k_exit = {RUNNING}\n" + unparse(lower_exits(parsed(text), "_k_exit", loop))
        # A loop of which only the first iteration does anything.
        iterations = (
            f"for again in range(2):\n    if again:\n        return "
            f"{ENDED}\n{around(text)}\n    return {RUNNING}"
        )
        turn = f"{iterations}\nreturn {LEFT}"
        turn = turn.replace("return\n", "return 0\n")
        assert run(lowered, seed, "_k_exit") == called(turn, seed), text


def test_exits_as_text() -> None:
    lowered = lower_exits(
        parsed("if a:\n    break\nb = 1\nfor i in x:\n    if c:\n        return\n    break\nd = 2"),
        "_k_exit",
        (LEFT, ENDED),
    )
    assert unparse(lowered).splitlines() == [
        "if a:",
        "    _k_exit = 5",
        "else:",
        "    b = 1",
        "    for i in x:",
        "        if c:",
        "            _k_exit = 0",
        "            break",
        "        break",
        "    if _k_exit == 127:",
        "        d = 2",
    ]
