"""Each pass of the compiler by itself: source in, text out."""

import ast
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, typeof, types
from numba.cuda import grid as where

from synknumba._types import Span
from synknumba.simt._analysis.bounds import Bounds, Guards, inner_axis
from synknumba.simt._analysis.flat_grid import flatten, may_wait, regroup
from synknumba.simt._analysis.loops import LoopInversion, count_up, return_early
from synknumba.simt._analysis.types import VariableTypes, infer_types, is_integer_type, unified_type
from synknumba.simt._analysis.uniformity import Analysis
from synknumba.simt._emit.build import KernelProgram
from synknumba.simt._emit.emit import Style, emit_blocks
from synknumba.simt._emit.masks import Divergence
from synknumba.simt._emit.options import Options
from synknumba.simt._lower.lowering import DeviceFunctions, translate_names
from synknumba.simt._source.reads import exposed
from synknumba.simt._source.source import read_source
from synknumba.simt._source.syntax import (
    assigned_names,
    copied,
    range_arguments,
    read_names,
    unparse,
    walk,
)
from tests.unit.simt.written import shape

F8 = types.Array(types.float64, 1, "C")
F8_2 = types.Array(types.float64, 2, "C")
GRID = "_k_bx * _k_Bx + _k_tx"
COUNT = 7
ANY_BLOCK = Style()


def body(text: str) -> list[ast.stmt]:
    return ast.parse(textwrap.dedent(text)).body


def expr(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def analysis(text: str, **params: types.Type) -> Analysis:
    """Of a body in plain names; x and y are arrays, n is an integer, a is a float unless given."""
    kinds = {"x": F8, "y": F8, "n": types.int64, "a": types.float64, **params}
    return Analysis(
        body(text),
        kinds,
        {"math": __import__("math"), "COUNT": COUNT, "float32": float32},
        VariableTypes(kinds),
    )


def launch(known: Analysis, style: Style = ANY_BLOCK) -> list[ast.stmt]:
    """The loops over the grid."""
    return emit_blocks(known, set(), Divergence(read_source(body)), style).body


def emitted(text: str, threads: int | None = None, **params: types.Type) -> tuple[Any, ...]:
    """The shape of a block, for blocks of some threads or of any."""
    style = Style(block=(threads, 1, 1)) if threads else ANY_BLOCK
    (blocks,) = shape(launch(analysis(text, **params), style))
    return blocks[1:]


# ---- names


def names_of(function: Any) -> list[str]:
    code = translate_names(function, DeviceFunctions())
    return unparse(code.body).splitlines()


def test_indices_become_variables() -> None:
    def kernel(x):
        i = cuda.threadIdx.x + cuda.blockIdx.y * cuda.blockDim.z - cuda.gridDim.x
        j, k = cuda.grid(2)
        x[i] = where(1) + cuda.gridsize(1) + cuda.laneid + cuda.warpsize + j + k

    assert names_of(kernel) == [
        "i = _k_tx + _k_by * _k_Bz - _k_Gx",
        "j = _k_bx * _k_Bx + _k_tx",
        "k = _k_by * _k_By + _k_ty",
        "x[i] = _k_bx * _k_Bx + _k_tx + _k_Bx * _k_Gx + (_k_lin & 31) + 32 + j + k",
    ]


def test_operations_become_functions() -> None:
    def kernel(x, y):
        cuda.atomic.add(x, 0, cuda.fma(y[0], 2.0, 1.0))
        c = cuda.local.array(COUNT + 1, float32)
        cuda.threadfence()
        c[0] = cuda.const.array_like(y)[0]

    assert names_of(kernel) == [
        "_k_atomic_add(x, 0, _k_fma(y[0], 2.0, 1.0))",
        "c = _k_stack_array(8, _k_dtype)",
        "pass",
        "c[0] = y[0]",
    ]


def test_lines_are_those_of_the_file() -> None:
    def kernel(x):
        """Docstring."""
        # a comment
        x[cuda.grid(1)] = 1

    code = translate_names(kernel, DeviceFunctions())
    assert code.body[0].lineno == kernel.__code__.co_firstlineno + 3


# ---- analysis


def test_uniform_and_varying() -> None:
    known = analysis("""
        i = _k_bx * _k_Bx + _k_tx
        m = x.shape[0] // n
        v = x[0]
        w = m
        if i < m:
            w = 3
        for k in range(m):
            p = k
        for k2 in range(i):
            q = m
        for e in x:
            r = m
        z = math.sqrt(a)
        later = x[0]
        u = m
        while u > 0:
            if later > 0:
                break
            u -= 1
        """)
    assert known.varying - {"_k_tx", "_k_ty", "_k_tz", "_k_lin"} == {
        "i",
        "w",
        "k2",
        "q",
        "e",
        "u",
        "later",
    }
    assert list(known.recomputed) == ["i"]
    assert unparse([known.recomputed["i"]]) == f"i = _k_nonneg({GRID})"


def test_recomputed_only_if_cheap_and_settled() -> None:
    known = analysis("""
        i = _k_tx
        j = i * 2 + 1
        k = math.exp(i)
        l = x[i]
        m = i
        m = 3
        b = i < n
        """)
    assert list(known.recomputed) == ["i", "j", "b"]
    assert unparse([known.recomputed["j"]]) == "j = _k_nonneg(i * 2 + 1)"


@pytest.mark.parametrize(
    ("text", "nonneg", "positive", "integral"),
    [
        ("3", True, True, True),
        ("-3", False, False, True),
        ("2.0", False, False, False),
        ("_k_Bx * _k_Gx", True, True, True),
        ("_k_tx", True, False, True),
        ("_k_tx + 1", True, True, True),
        ("_k_tx - 1", False, False, True),
        ("x.shape[0]", True, False, True),
        ("x.size // 2", True, False, True),
        ("n", False, False, True),
        ("a", False, False, False),
        ("n / 2", False, False, False),
        ("COUNT", True, True, True),
        ("min(x.size, 4)", True, False, True),
        ("big", False, False, False),
        ("once", True, True, True),
        ("counter", False, False, False),
    ],
)
def test_numbers(text: str, nonneg: bool, positive: bool, integral: bool) -> None:
    known = analysis("once = _k_Bx * 2\ncounter = counter + 1\ncounter = 1", big=types.uint64)
    node = expr(text)
    assert (known.is_nonneg(node), known.is_positive(node), known.is_integral(node)) == (
        nonneg,
        positive,
        integral,
    )


def test_exposed() -> None:
    tracked = {"a", "b", "c", "d", "e"}
    live, sure = exposed(
        body("b = a\nif b:\n    c = 1\n    d = 1\nelse:\n    d = e\nfor a in range(3):\n    e = c"),
        tracked,
    )
    assert live == {"a", "e", "c"}
    assert sure == {"b", "d"}


def test_small_words() -> None:
    assert read_names(body("a[i] += b\nc += 1")) == {"a", "i", "b", "c"}
    assert assigned_names(body("a[i] += b\nc += 1\n(d, e) = f")) == {"c", "d", "e"}
    assert [ast.unparse(part) for part in range_arguments(body("for i in range(4): pass")[0])] == [
        "0",
        "4",
        "1",
    ]
    assert range_arguments(body("for i in x: pass")[0]) is None


def test_types() -> None:
    def function(x, n):
        v = 0
        for i in range(n):
            v += x[i]
        w = n > 2
        return (v, w)

    found = infer_types(function, (F8, types.int64))
    assert unified_type(found, "v") == types.float64
    assert unified_type(found, "w") == types.boolean
    assert unified_type(found, "nothing") is None
    assert unified_type({"v": types.int64, "v.1": F8}, "v") is types.unknown
    assert is_integer_type(types.int8)
    assert not is_integer_type(types.uint64)


# ---- guards


@pytest.mark.parametrize(
    ("test", "negate", "span", "left"),
    [
        ("i < x.shape[0]", False, "min(_k_Bx, x.shape[0] - _k_bx * _k_Bx)", None),
        ("i >= x.shape[0]", True, "min(_k_Bx, x.shape[0] - _k_bx * _k_Bx)", None),
        ("x.size > i", False, "min(_k_Bx, x.size - _k_bx * _k_Bx)", None),
        (
            "0 < i < x.size",
            False,
            "max(0, 0 + 1 - _k_bx * _k_Bx), min(_k_Bx, x.size - _k_bx * _k_Bx)",
            None,
        ),
        ("_k_tx == 0", False, "max(0, 0), min(_k_Bx, 0 + 1)", None),
        ("_k_tx < n", False, "min(_k_Bx, _k_ceil_bound(n, -1))", None),
        ("_k_tx <= a", False, "min(_k_Bx, _k_floor_bound(a, -1) + 1)", None),
        ("_k_tx > a", True, "min(_k_Bx, _k_floor_bound(a, 1) + 1)", None),
        (
            "i < n and x[i] > 0",
            False,
            "min(_k_Bx, _k_ceil_bound(n, -1) - _k_bx * _k_Bx)",
            "x[i] > 0",
        ),
        ("i >= x.size or y[i] > 0", True, "min(_k_Bx, x.size - _k_bx * _k_Bx)", "y[i] > 0"),
        (
            "not (i >= x.size or y[i] > 0)",
            False,
            "min(_k_Bx, x.size - _k_bx * _k_Bx)",
            "not y[i] > 0",
        ),
        ("i < x.size or y[i] > 0", False, "_k_Bx", "i < x.size or y[i] > 0"),
        ("i != n", False, "_k_Bx", "i != n"),
        ("i == n", True, "_k_Bx", "i == n"),
        ("i < x[0]", False, "_k_Bx", "i < x[0]"),
        ("i * 2 < n", False, "_k_Bx", "i * 2 < n"),
        ("i + a < n", False, "_k_Bx", "i + a < n"),
        ("n - i < 3", False, "_k_Bx", "n - i < 3"),
        ("i < changed", False, "_k_Bx", "i < changed"),
    ],
)
def test_guards_become_bounds(test: str, negate: bool, span: str, left: str | None) -> None:
    known = analysis(f"i = {GRID}\nchanged = n")
    bounds = Bounds()
    bounds.high["x"].append("_k_Bx")
    rest = Guards(known, ast.unparse).absorb(expr(test), bounds, {"changed"}, negate=negate)
    assert (None if rest is None else ast.unparse(rest)) == left
    assert bounds.range_text("x").replace("(_k_bx * _k_Bx)", "_k_bx * _k_Bx") == span


def test_float_limits_give_no_facts() -> None:
    bounds = Bounds()
    guards = Guards(analysis(f"i = {GRID}"), ast.unparse)
    guards.absorb(expr("i < n and i < a"), bounds, set())
    assert [ast.unparse(fact) for fact in bounds.facts] == ["i < n"]


# ---- loops


def loops_of(text: str, **params: types.Type) -> tuple[LoopInversion, ast.stmt]:
    known = analysis(text, **params)
    return LoopInversion(known, Guards(known, ast.unparse), {"local"}), known.body[-1]


@pytest.mark.parametrize(
    ("loop", "strided"),
    [
        (f"for i in range({GRID}, n, _k_Bx * _k_Gx):\n    y[i] = 1", True),
        (f"for i in range({GRID} - 3, n, 4):\n    y[i] = 1", True),
        (f"for i in range({GRID}, n, n):\n    y[i] = 1", False),
        (f"for i in range({GRID}, a, 4):\n    y[i] = 1", False),
        (f"for i in range({GRID} * 2, n, 4):\n    y[i] = 1", False),
        (f"for i in range({GRID}, n, 4):\n    i += 1", False),
        (f"for i in range({GRID}, n, 4):\n    if i > 3:\n        break", False),
        (f"for i in range({GRID}, n, 4):\n    return", False),
        (f"for i in range({GRID}, n, 4):\n    local[i] = 1", False),
        ("for i in range(n):\n    y[i] = 1", False),
    ],
)
def test_strided_loops(loop: str, strided: bool) -> None:
    loops, statement = loops_of(loop)
    assert (loops.strided(statement) is not None) == strided


@pytest.mark.parametrize(
    ("loop", "turned"),
    [
        ("for j in range(n):\n    y[_k_tx] += x[j]", True),
        ("for j in range(n):\n    y[_k_tx] += z[j, _k_tx]", True),
        ("for j in range(n):\n    y[_k_tx] += z[_k_tx, j]", False),
        ("for j in range(n):\n    y[_k_tx] += x[_k_tx * n + j]", False),
        ("for j in range(64):\n    y[_k_tx] += x[j]", False),
        ("for j in range(_k_tx):\n    y[_k_tx] += x[j]", False),
        ("for j in range(n):\n    for k in range(n):\n        y[_k_tx] += x[j]", False),
        ("for j in range(n):\n    if x[j] > 0:\n        continue\n    y[_k_tx] += 1", False),
    ],
)
def test_uniform_loops(loop: str, turned: bool) -> None:
    loops, statement = loops_of(loop, z=F8_2)
    assert loops.is_uniform_loop(statement) == turned


ROWS = "for j in range(_k_bx, n, _k_Gx):\n    "


@pytest.mark.parametrize(
    ("loop", "turned"),
    [
        (ROWS + "for i in range(_k_tx, n, _k_Bx):\n        y[i] += z[j, i]", True),
        (
            ROWS + "a = 0.0\n    for i in range(_k_tx, n + 1, _k_Bx):\n        a "
            "+= z[j, i]\n    y[j] += a",
            True,
        ),
        ("for j in range(3):\n    for i in range(_k_tx, n, _k_Bx):\n        y[i] += z[j, i]", True),
        (ROWS + "for i in range(_k_ty, n, _k_By):\n        y[i] += z[j, i]", False),
        (ROWS + "for i in range(n):\n        y[i] += z[j, i]", False),
        (ROWS + "for i in range(_k_tx, n, _k_Bx):\n        local[i] += z[j, i]", False),
        (ROWS + "j += 1\n    for i in range(_k_tx, n, _k_Bx):\n        y[i] += z[j, i]", False),
        (
            ROWS + "if x[j] > 0:\n        break\n    for i in range(_k_tx, n, "
            "_k_Bx):\n        y[i] += z[j, i]",
            False,
        ),
        (
            "for j in range(_k_tx, n, n):\n    for i in range(_k_tx, n, "
            "_k_Bx):\n        y[i] += z[j, i]",
            False,
        ),
    ],
)
def test_loops_around_strided_loops(loop: str, turned: bool) -> None:
    loops, statement = loops_of(loop, z=F8_2)
    assert loops.is_around_strided(statement, {"x"}) == turned


def test_a_loop_variable_used_behind_stays() -> None:
    loops, _ = loops_of("for j in range(n):\n    y[j] = 1\ny[0] = j")
    assert not loops.is_uniform_loop(loops._analysis.body[0])


@pytest.mark.parametrize(
    ("loop", "counted"),
    [
        ("while i < n:\n    y[i] = 1\n    i += _k_Bx", True),
        ("while i < n:\n    y[i] = 1\n    i += n", False),
        ("while i < a:\n    y[i] = 1\n    i += 1", False),
        ("while i < n:\n    n = n - 1\n    i += 1", False),
        ("while i < n:\n    if x[i] > 0:\n        continue\n    i += 1", False),
        ("while i < n:\n    if x[i] > 0:\n        i += 1\n    i += 1", False),
        ("while i < n:\n    y[i] = 1\n    i += 1\ny[0] = i", False),
        ("while i <= n:\n    y[i] = 1\n    i += 1", False),
    ],
)
def test_counting_while_becomes_for(loop: str, counted: bool) -> None:
    kinds = {"x": F8, "y": F8, "n": types.int64, "a": types.float64}
    text = f"i = {GRID}\n{loop}"
    known = Analysis(body(text), kinds, {}, VariableTypes(kinds, lambda: {"i": types.int64}))
    done = count_up(body(text), known)
    assert isinstance(done[1], ast.For if counted else ast.While)
    if counted:
        assert unparse(done).splitlines()[1:] == [
            "for _k_i in range(i, n, _k_Bx):",
            "    y[_k_i] = 1",
        ]


# ---- flat


@pytest.mark.parametrize(
    ("text", "done", "axes"),
    [
        (f"i = {GRID}\ny[i] = 1", "i = _k_tx\ny[i] = 1", "xyz"),
        ("y[_k_tx + _k_Bx * _k_bx] = _k_Gx", "y[_k_tx] = _k_Gx", "xyz"),
        ("t = _k_tx\nb = _k_bx\nd = _k_Bx\ny[t + b * d] = d", "y[_k_tx] = _k_Bx", "xyz"),
        (f"i = {GRID}\ny[i] = _k_tx", f"i = {GRID}\ny[i] = _k_tx", "yz"),
        (f"i = {GRID}\ny[i] = _k_bx", f"i = {GRID}\ny[i] = _k_bx", "yz"),
        (f"i = {GRID} + _k_ty\ny[i] = 1", "i = _k_tx + _k_ty\ny[i] = 1", "xz"),
        (f"i = {GRID}\ny[i] = _k_lin", f"i = {GRID}\ny[i] = _k_lin", ""),
        ("t = _k_tx\nif n:\n    t = 0\ny[t + _k_bx * _k_Bx] = 1", None, "yz"),
    ],
)
def test_flat_axes(text: str, done: str | None, axes: str) -> None:
    before = body(text)
    after, flat = flatten(before)
    assert unparse(before) == text
    assert flat == set(axes)
    assert unparse(after) == (done or text)


@pytest.mark.parametrize(
    ("text", "block", "done"),
    [
        (f"i = {GRID}\ny[i] = _k_Gx", (3, 1, 1), f"i = {GRID}\ny[i] = _k_Gx"),
        ("b = _k_bx\ny[b] = _k_tx + _k_Bx", (1, 1, 1), f"y[{GRID}] = 0 + 1"),
        (
            "y[_k_bx] = _k_tx * _k_Bx",
            (3, 1, 1),
            f"y[_k_nonneg({GRID}) // 3] = _k_nonneg({GRID}) % 3 * 3",
        ),
        ("y[_k_bz] = _k_lin", (1, 1, 1), "y[_k_bz * _k_Bz + _k_tz] = 0 + 1 * (0 + 1 * 0)"),
    ],
)
def test_places_in_blocks_of_another_size(
    text: str, block: tuple[int, int, int], done: str
) -> None:
    before = body(text)
    assert unparse(regroup(before, block)) == done
    assert unparse(before) == text


@pytest.mark.parametrize(
    ("text", "waits"),
    [
        ("while x[0] < 1:\n    pass", True),
        ("for i in range(9):\n    if n:\n        break", True),
        ("if n:\n    for i in range(9):\n        if x[i] > 0:\n            return", True),
        ("for i in range(9):\n    if n:\n        continue\n    y[i] = 1", False),
        ("if n:\n    return", False),
    ],
)
def test_which_loops_may_wait_for_other_threads(text: str, waits: bool) -> None:
    assert may_wait(body(text)) == waits


def test_flat_kernels_have_no_loops_over_blocks() -> None:
    def kernel(x, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = x[i]

    assert shape(program(kernel, F8, F8)) == (("if", "return"), ("threads", "i", "y[]"))


def test_kernels_with_slots_are_not_flat() -> None:
    def kernel(x, y):
        acc = 0.0
        for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
            acc += x[i]
        y[cuda.grid(1)] = acc

    assert shape(program(kernel, F8, F8))[-1] == (
        "blocks",
        ("threads", "acc"),
        ("for", ("threads", "i", "acc", "acc")),
        ("threads", "acc", "y[]"),
    )


# ---- emission


def test_guarded_statement() -> None:
    text = f"i = {GRID}\nif i < x.shape[0]:\n    y[i] = a * x[i]"
    assert emitted(text) == (("if", "continue"), ("threads", "i", "y[]"))


@pytest.mark.parametrize("go", ["n", "x[0]", "x[n % x.size] + 1.0"])
@pytest.mark.parametrize(("threads", "turned"), [(1, False), (8, False), (16, True), (256, True)])
def test_strided_loop_behind_a_condition_of_the_block(go: str, threads: int, turned: bool) -> None:
    text = (
        f"go = {go}\nif go > 0:\n    for i in range({GRID}, x.size, _k_Bx * "
        f"_k_Gx):\n        y[i] = x[i]"
    )
    strided = ("for", ("threads", "i", "y[]"))
    assert (strided in emitted(text, threads)[-1]) == turned


ALIKE = "w = x[0]\nfor i in range(x.size):\n    y[i] = w * y[i]{}"


@pytest.mark.parametrize(
    ("more", "threads", "turned"),
    [
        (" + z[i, _k_tx]", 256, True),
        (" + z[i, _k_tx]", 8, False),
        (" + z[i, _k_tx]", 1, False),
        ("", 256, False),
    ],
)
def test_a_loop_that_one_thread_runs_stays_its_own(more: str, threads: int, turned: bool) -> None:
    """Where nothing depends on the thread, or blocks have few, one loop of neighbouring elements
    is best.
    """
    found = emitted(ALIKE.format(more), threads, z=F8_2)
    assert any(entry[0] == "for" for entry in found) == turned


ROW_BY_ROW = ROWS + "m = j + n\n    for i in range(_k_tx, x.size, _k_Bx):\n        y[i] += z[m, i]"


def test_strided_loop_in_a_loop_of_the_block() -> None:
    assert emitted(ROW_BY_ROW, z=F8_2) == (("for", "m", ("for", ("threads", "i", "m", "y[]"))),)


@pytest.mark.parametrize(("threads", "turned"), [(1, False), (8, False), (16, True), (128, True)])
def test_narrow_blocks_keep_a_loop_around_a_strided_one(threads: int, turned: bool) -> None:
    assert (emitted(ROW_BY_ROW, threads, z=F8_2)[0][0] == "for") == turned


def adds_rows(z, y):
    for j in range(cuda.blockIdx.x, z.shape[0], cuda.gridDim.x):
        for i in range(cuda.threadIdx.x, z.shape[1], cuda.blockDim.x):
            y[i] += z[j, i]


@pytest.mark.parametrize(("threads", "turned"), [(8, False), (16, True)])
def test_narrow_blocks_of_a_kernel_with_flat_axes(threads: int, turned: bool) -> None:
    program = KernelProgram(adds_rows, Options())
    ((word, *inner),) = shape(program.launch_body({"z": F8_2, "y": F8}, (threads, 1, 1)))
    assert word == "blocks"
    assert (inner[0][0] == "for") == turned


def test_a_start_that_may_be_negative_is_not_called_nonnegative() -> None:
    known = analysis(f"for i in range({GRID} - 5, n, _k_Bx):\n    y[i] = 1")
    assert "_k_nonneg" not in unparse(launch(known))


def test_uniform_values_run_once_a_block() -> None:
    text = f"m = x.shape[0] // n\ni = {GRID}\ny[i] = m\n"
    assert emitted(text) == ("m", ("threads", "i", "m", "y[]"))


def test_uniform_loop_inside_out() -> None:
    text = "v = x[_k_tx]\nfor j in range(n):\n    v = v * a + j\ny[_k_tx] = v"
    inner = ("for", ("threads", "j", "v", "v"))
    assert emitted(text) == (("threads", "v"), inner, ("threads", "v", "y[]"))


def test_code_behind_a_possible_return_stays_together() -> None:
    text = "if x[_k_tx] > 0:\n    return\nfor j in range(n):\n    y[_k_tx] += x[j]"
    assert emitted(text) == (("threads", ("if", ("for", "y[]"))),)


def test_the_inner_loop_runs_along_the_last_axis() -> None:
    text = f"i = {GRID}\nj = _k_by * _k_By + _k_ty\nz[i, j] = 1"
    assert inner_axis(analysis(text, z=F8_2)) == "y"
    assert inner_axis(analysis(text.replace("z[i, j]", "z[j, i]"), z=F8_2)) == "x"
    loops = [
        ast.unparse(node.target)
        for node in walk(launch(analysis(text, z=F8_2)))
        if isinstance(node, ast.For)
    ]
    assert loops == ["_k_bz", "_k_bx", "_k_by", "_k_tz", "_k_tx", "_k_ty"]


def program(function: Any, *kinds: types.Type) -> str:
    made = KernelProgram(function, Options())
    return made.text(made.launch_body(dict(zip(made.params, kinds, strict=True))))


def test_atomic_sums_are_kept_in_registers() -> None:
    def kernel(x, total):
        i = cuda.grid(1)
        if i < x.size:
            cuda.atomic.add(total, 0, x[i])

    text = program(kernel, F8, F8)
    assert "_k_sum_any_order(" in text
    assert text.splitlines()[-1].strip().startswith("_k_atomic_add(total, 0, _k_sum")


def test_atomic_sums_that_someone_could_see_are_not() -> None:
    def uses_old(x, total):
        x[cuda.grid(1)] = cuda.atomic.add(total, 0, 1.0)

    def reads_behind(x, total):
        cuda.atomic.add(total, 0, 1.0)
        x[0] = x[1]

    def reads_before(x, total):
        if total[0] < 5:
            cuda.atomic.add(total, 0, 1.0)

    def other_elements(x, total):
        cuda.atomic.add(total, cuda.grid(1), 1.0)

    def in_a_loop(x, total):
        for k in range(3):
            cuda.atomic.add(total, 0, x[k])

    for kernel in (uses_old, reads_behind, reads_before, other_elements, in_a_loop):
        assert "any_order" not in program(kernel, F8, F8), kernel.__name__


def test_reassigned_parameters_are_copied() -> None:
    def kernel(x, n):
        n = n + 1
        x[0] = n

    assert program(kernel, F8, types.int64).startswith(
        "def kernel(_k_Gx, _k_Gy, _k_Gz, _k_Bx, _k_By, _k_Bz, _k_smem, x, n__arg):"
    )


def test_slots_are_arrays_of_the_right_type() -> None:
    def kernel(x, n):
        i = cuda.grid(1)
        v = 0
        flag = False
        for j in range(n):
            v += x[j] * i
            flag = flag or v > 3
        x[i] = v if flag else 0

    made = KernelProgram(kernel, Options())
    made.launch_body({"x": F8, "n": types.int64})
    assert made.namespace["_k_dtype_v"] == np.float64
    assert made.namespace["_k_dtype_flag"] == np.bool_


def test_a_last_guard_leaves_the_other_threads_in_step() -> None:
    known = analysis(
        f"i = {GRID}\nif i < n:\n    for j in range(n):\n        x[i] = j\n    if "
        f"i > 2:\n        y[i] = 1"
    )
    rewritten = return_early(body(unparse(known.body)), known, Guards(known, ast.unparse))
    assert unparse(rewritten).splitlines() == [
        "if not i < n:",
        "    return",
        "for j in range(n):",
        "    x[i] = j",
        "if not i > 2:",
        "    return",
        "y[i] = 1",
    ]


def test_a_last_guard_that_is_no_bound_stays() -> None:
    known = analysis("if x[0] < n:\n    y[0] = 1")
    assert return_early(known.body, known, Guards(known, ast.unparse)) is known.body


def test_a_loop_over_an_index_range_is_turned_inside_out() -> None:
    """The bounds of a range are integers, whether they are read in the loop or before it."""

    def directly(rows, total):
        acc = 0.0
        for i in range(rows.start + cuda.grid(1), rows.stop, cuda.gridsize(1)):
            acc += i * 0.5
        cuda.atomic.add(total, 0, acc)

    def named(rows, total):
        start, stop = rows.start, rows.stop
        acc = 0.0
        for i in range(start + cuda.grid(1), stop, cuda.gridsize(1)):
            acc += i * 0.5
        cuda.atomic.add(total, 0, acc)

    rows = typeof(Span(0, 10))
    loops = [
        [line.split() for line in program(kernel, rows, F8).splitlines() if "for " in line]
        for kernel in (directly, named)
    ]
    assert len(loops[0]) == len(loops[1]) > 1


def test_a_loop_under_a_last_guard_is_turned_inside_out() -> None:
    def kernel(x, n):
        i = cuda.grid(1)
        if i < x.size:
            acc = 0.0
            for k in range(n):
                acc += k * x[i]
            x[i] = acc

    assert "for k__u in range(n):" in program(kernel, F8, types.int64)


def test_trees_are_walked_and_copied_as_by_python() -> None:
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    assert [*walk(tree)] == [*ast.walk(tree)]
    assert [*walk(tree.body)] == [node for statement in tree.body for node in ast.walk(statement)]
    copy = copied(tree)
    assert ast.dump(copy, include_attributes=True) == ast.dump(tree, include_attributes=True)
    changeable = (ast.expr, ast.stmt, ast.arg, ast.keyword)
    assert not {id(node) for node in walk(copy) if isinstance(node, changeable)} & {
        id(node) for node in walk(tree)
    }
