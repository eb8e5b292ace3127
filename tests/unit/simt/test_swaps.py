"""Updates of a whole shared array: two arrays that change places, where that is the same, and
nothing where it is not.
"""

import ast
import textwrap
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from numba import types

from synknumba import simt
from synknumba.simt._analysis.buffer_swaps import SwapFinder
from synknumba.simt._analysis.types import VariableTypes
from synknumba.simt._analysis.uniformity import Analysis
from synknumba.simt._lower.arrays import SharedArray
from synknumba.simt._source.syntax import load, unparse
from tests.conformance.simt import model, python_mode
from tests.unit.simt.written import defined, parsed, program_text

F8 = types.Array(types.float64, 1, "C")
F8_2 = types.Array(types.float64, 2, "C")
PAIR = np.dtype([("a", np.float64), ("b", np.float64)])

# ---- the pass


def update(
    first: str, second: str, block: Any = (8, 1, 1), elsewhere: str = "", **more: types.Type
) -> tuple[str, int] | None:
    """The statements of the update, and how many it takes of those behind the barrier. s and q
    are shared arrays of 8.
    """
    kinds: dict[str, types.Type] = {
        "x": F8,
        "n": types.int64,
        "s": F8,
        "q": F8,
        "tile": F8_2,
        **more,
    }
    sizes = {"s": (8,), "q": (8,), "tile": (2, 4)}
    first, second, elsewhere = map(textwrap.dedent, (first, second, elsewhere))
    known = Analysis(
        parsed(f"t = _k_tx\nty = _k_ty\n{first}\n{second}\n{elsewhere}"),
        kinds,
        {"f": object()},
        VariableTypes(kinds),
    )
    shared = {
        name: SharedArray(shape, load("float64"), ast.Pass()) for name, shape in sizes.items()
    }
    shared["d"] = SharedArray((0,), load("float64"), ast.Pass())
    found = SwapFinder(known, shared, block).find(parsed(first), parsed(second))
    return found and (unparse(found.body), found.count)


@pytest.mark.parametrize(
    ("first", "second", "made"),
    [
        ("v = s[t] + s[t - 1]", "s[t] = v", "v = s[t] + s[t - 1]\ns__o[t] = v"),
        ("v = s[t - 1]", "s[t] += v", "v = s[t - 1]\ns__o[t] = s[t]\ns__o[t] += v"),
        ("v = s[t - 1]", "s[t] = s[t] + v", "v = s[t - 1]\ns__o[t] = s[t]\ns__o[t] = s__o[t] + v"),
        (
            "v = s[n ^ 1]",
            "w = v\ns[t] = w\nv = s[t]",
            "v = s[n ^ 1]\nw = v\ns__o[t] = w\nv = s__o[t]",
        ),
        (
            "v = s[n]",
            "if v > 0:\n    s[t] = v",
            "v = s[n]\nif v > 0:\n    s__o[t] = v\nelse:\n    s__o[t] = s[t]",
        ),
        (
            "v = s[n]",
            "if s[t] > 0:\n    s[t] = v",
            "v = s[n]\ns__o[t] = s[t]\nif s__o[t] > 0:\n    s__o[t] = v",
        ),
        (
            "if t >= n:\n    v = s[t - n]",
            "if t >= n:\n    s[t] += v",
            "if t >= n:\n    v = s[t - n]\n    s__o[t] = s[t]\n    s__o[t] += "
            "v\nelse:\n    s__o[t] = s[t]",
        ),
        (  # the condition may not be the same any more
            "v = s[n]\nif v > 0:\n    v = s[t - n]",
            "if v > 0:\n    s[t] = v",
            "v = s[n]\nif v > 0:\n    v = s[t - n]\nif v > 0:\n    s__o[t] = "
            "v\nelse:\n    s__o[t] = s[t]",
        ),
        (
            "v = s[7 - t]\nw = q[t]",
            "s[t] = w\nq[t] = v",
            "v = s[7 - t]\nw = q[t]\ns__o[t] = w\nq__o[t] = v",
        ),
        ("v = 1.0", "s[t] = q[7 - t] + v", "v = 1.0\ns__o[t] = q[7 - t] + v"),
        (
            "v = 1.0\nfor k in range(3):\n    v += s[n]",
            "s[t] = v",
            "v = 1.0\nfor k in range(3):\n    v += s[n]\ns__o[t] = v",
        ),
    ],
)
def test_the_two_parts_become_one(first: str, second: str, made: str) -> None:
    count = len(parsed(second))
    assert update(first, second) == (made, count)


def test_an_update_ends_where_something_else_begins() -> None:
    for behind in ("x[t] = v", "u = n + 1", "f(v)", "for k in range(3):\n    v += k", "return"):
        assert update("v = s[t - 1]", f"s[t] = v\n{behind}\ns[t] += 1") == (
            "v = s[t - 1]\ns__o[t] = v",
            1,
        )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("", "s[t] = 1.0"),
        ("x[t] = s[t - 1]", "s[t] = 1.0"),  # another thread may read what is written
        ("q[t] = s[t - 1]", "s[t] = q[t - 1]"),
        ("v = f(s[t - 1])", "s[t] = v"),  # an atomic, perhaps
        ("v = s[n]", "s[t] = v + f(v)"),
        ("v = s[n]", "s[t + 1] = v"),
        ("v = s[n]", "s[n] = v"),
        ("v = s[n]", "s[t] = v + s[t - 1]"),  # which may be new already
        ("v = s[n]", "s[t] = v + q[t - 1]\nq[t] = v"),
        ("v = s[n]", "x[t] = v\ns[t] = v"),
        ("v = s[n]", "while v > 0:\n    s[t] = v\n    v -= 1"),
        ("v = s[n]\nif v > 0:\n    return", "s[t] = v"),
        ("v = s[n]", "if v > 0:\n    s[t] = v\n    return"),
        ("v = s[n]\nassert v > 0", "s[t] = v"),
        ("v = d[n]", "d[t] = v"),  # all dynamic arrays lie at the same place
    ],
)
def test_other_statements_are_left_alone(first: str, second: str) -> None:
    assert update(first, second, d=F8) is None


@pytest.mark.parametrize("block", [None, (4, 1, 1), (16, 1, 1), (8, 2, 1), (8, 1, 2), (1, 8, 1)])
def test_every_element_has_a_thread(block: Any) -> None:
    assert update("v = s[7 - t]", "s[t] = v", block) is None
    assert update("v = s[7 - t]", "s[t] = v") is not None


def test_dimensions() -> None:
    assert update("v = tile[0, t]", "tile[ty, t] = v", (4, 2, 1)) == (
        "v = tile[0, t]\ntile__o[ty, t] = v",
        1,
    )
    for block, second in [
        ((2, 4, 1), "tile[ty, t] = v"),
        ((4, 2, 1), "tile[t, ty] = v"),
        ((4, 2, 2), "tile[ty, t] = v"),
        ((4, 2, 1), "tile[0, t] = v"),
        ((4, 2, 1), "tile[t, t] = v"),
    ]:
        assert update("v = tile[0, t]", second, block) is None
    assert update("v = s[0]", "s[ty] = v", (1, 8, 1)) is not None


@pytest.mark.parametrize(
    "elsewhere", ["f(s)", "w = s", "w = s[2:6]", "w = s[f]", "w = (s, n)", "w = s.T"]
)
def test_arrays_with_another_name_stay_where_they_are(elsewhere: str) -> None:
    assert update("v = s[7 - t]", "s[t] = v", elsewhere=elsewhere) is None


@pytest.mark.parametrize(
    "elsewhere",
    ["x[t] = s[0]", "s[n] = s[~n & 7]", "w = s.shape[0]", "s[1 if n > 2 else 0] += s.size", ""],
)
def test_elements_and_sizes_are_found_in_either(elsewhere: str) -> None:
    assert update("v = s[7 - t]", "s[t] = v", elsewhere=elsewhere) is not None


def test_elements_that_are_no_numbers_lie_in_the_array() -> None:
    record = types.Array(types.Record.make_c_struct([("a", types.float64)]), 1, "C")
    assert update("v = s[7 - t]", "s[t] = v", s=record) is None


# ---- kernels

HEAD = """
def kernel(x, out, n):
    s = cuda.shared.array(8, float64)
    q = cuda.shared.array(8, float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    s[t] = x[i]
    q[t] = 2 * x[i]
    w = 0.5
    cuda.syncthreads()
"""
TAIL = "cuda.syncthreads()\nout[i] += 16 * s[t] + 8 * q[t] + w + s[7 - t]"
SCAN = """
k = 1
while k < 8:
    v = s[t]
    if t >= k:
        v += s[t - k]
    cuda.syncthreads()
    s[t] = v
    cuda.syncthreads()
    k *= 2
"""
PHASE = "v = s[(t + 1) % 8]\ncuda.syncthreads()\ns[t] = v"


def kernel_of(body: str, head: str = HEAD) -> FunctionType:
    return defined(head + textwrap.indent(body.strip() + "\n" + TAIL, "    "), PAIR=PAIR)


def in_loop(body: str, count: str = "n") -> str:
    return f"for j in range({count}):\n" + textwrap.indent(body + "\ncuda.syncthreads()", "    ")


def check(function: FunctionType, *, swaps: bool, block: tuple[int, ...] = (8,)) -> None:
    """Both orders of threads agree with the model of threads, for several numbers of steps."""
    count = 2 * int(np.prod(block))
    x = np.random.default_rng(5).random(count)
    launches = python_mode.launches(simt.jit(function), (2,), block, (x, x, 0))
    for n in (0, 1, 3):
        wanted = np.zeros(count)
        model.run(function, 2, block, (x, wanted, n))
        for launch in launches.values():
            out = np.zeros(count)
            launch(x, out, n)
            np.testing.assert_allclose(out, wanted, rtol=1e-12)
    assert (
        "s__o" in program_text(function, F8, F8, types.int64, block=(*block, 1, 1)[:3])
    ) is swaps


@pytest.mark.parametrize(
    "body",
    [
        SCAN,
        SCAN.replace("v = s[t]", "v = 0.0").replace("s[t] = v", "s[t] += v"),
        SCAN.replace("v = s[t]", "pass")
        .replace("v +=", "v =")
        .replace("s[t] = v", "if t >= k:\n        s[t] += v"),
        PHASE,
        f"if n > 0:\n{textwrap.indent(PHASE, '    ')}",
        in_loop(PHASE, "cuda.blockIdx.x + n"),  # blocks leave different arrays in front
        in_loop(f"if j == 2:\n    break\n{PHASE}", "5"),
        in_loop(f"cuda.syncthreads()\n{PHASE}"),
        in_loop(PHASE + "\nout[i] += s[t]"),  # the thread's own, without a barrier
        in_loop(PHASE + "\ncuda.syncthreads()\nw += v * s[(t + 3) % 8]"),  # v lives on
        "v = 0.0\n" + in_loop("v += s[7 - t]\ncuda.syncthreads()\nif t != j:\n    s[t] = v"),
        in_loop("v, z = s[7 - t], q[(t + 1) % 8]\ncuda.syncthreads()\ns[t] = z\nq[t] = v"),
        in_loop("v = s[7 - t]\ncuda.syncthreads()\ns[t] = v + q[(t + 1) % 8]"),
        in_loop("u = j * 2 + 1\nv = s[(t + u) % 8]\ncuda.syncthreads()\ns[t] = v * u"),
        in_loop(
            "v = s[7 - t]\ncuda.syncthreads()\nif x[i] > 0.5:\n    s[t] = v\nelse:\n    w += s[t]"
        ),
        in_loop(
            "v = s[t] if t == 0 else s[t - 1]\ncuda.syncthreads()\nif t % 2:\n    if v "
            "> 0.5:\n        s[t] = v"
        ),
        f"if t == 9:\n    return\n{PHASE}".replace("return", "w = 1.0"),
    ],
)
def test_kernels_that_swap(body: str) -> None:
    check(kernel_of(body), swaps=True)


@pytest.mark.parametrize(
    "body",
    [
        f"if t > 5:\n    return\n{PHASE}",  # those that have left keep their elements
        f"if x[i] > 0.5:\n    return\n{PHASE}",
        in_loop(f"if x[i] > 0.5 and j == 1:\n    return\n{PHASE}"),
        in_loop("v = s[(t + 1) % 8]\nq[t] = v\ncuda.syncthreads()\ns[t] = v + q[7 - t]"),
        in_loop("v = s[7 - t]\ncuda.syncthreads()\ncuda.atomic.add(s, t, v)"),
        f"{PHASE}\ncuda.syncthreads()\ncuda.atomic.add(s, t // 2, 1.0)",
        f"row = s[2:6]\n{PHASE}\ncuda.syncthreads()\nw = row[t // 2]",
        in_loop("v = s[(t + 1) % 8]\ncuda.syncthreads()\ns[(t + 1) % 8] = v"),
        in_loop("v = s[(t + 1) % 8]\ncuda.syncwarp()\ns[t] = v"),
    ],
)
def test_kernels_that_do_not(body: str) -> None:
    check(kernel_of(body), swaps=False)


@pytest.mark.parametrize("size", [4, 16])
def test_arrays_with_more_or_fewer_elements_than_threads(size: int) -> None:
    """Of a larger array the rest stays; of a smaller one some threads have no element."""
    phase = (
        f"v = s[(t + 1) % {size} if n > 0 else 0]\ncuda.syncthreads()\nif t < {size}:\n    s[t] = v"
    )
    head = HEAD.replace("array(8", f"array({size}", 1).replace(
        "s[t] = x[i]", f"for k in range(t, {size}, 8):\n        s[k] = x[k]"
    )
    text = head + textwrap.indent(in_loop(phase) + f"\nout[i] = s[{size} - 1 - t % {size}]", "    ")
    check(defined(text), swaps=False)


def test_an_array_of_rows_and_columns() -> None:
    text = """
    def kernel(x, out, n):
        s = cuda.shared.array((2, 4), float64)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        i = cuda.blockIdx.x * 8 + ty * 4 + tx
        s[ty, tx] = x[i]
        cuda.syncthreads()
        for j in range(n):
            v = s[1 - ty, (tx + 1) % 4] + s[ty, 0]
            cuda.syncthreads()
            if tx != 2:
                s[ty, tx] = v
            cuda.syncthreads()
        out[i] = s[ty, 3 - tx]
    """
    check(defined(text), swaps=True, block=(4, 2))


def test_dynamic_arrays_stay() -> None:
    text = HEAD.replace("array(8", "array(0") + textwrap.indent(PHASE + "\n" + TAIL, "    ")
    assert "__o" not in program_text(defined(text), F8, F8, types.int64, block=(8, 1, 1))


def test_threads_of_the_whole_grid_stay() -> None:
    text = HEAD + textwrap.indent(PHASE + "\ncuda.cg.this_grid().sync()\n" + TAIL, "    ")
    assert "__o" not in program_text(defined(text), F8, F8, types.int64, block=(8, 1, 1))


def test_a_record_that_is_read_lies_in_the_array() -> None:
    text = """
    def kernel(x, out, n):
        s = cuda.shared.array(8, PAIR)
        t = cuda.threadIdx.x
        s[t].a = x[t]
        cuda.syncthreads()
        r = s[7 - t]
        cuda.syncthreads()
        s[t].a = x[t] + 1
        cuda.syncthreads()
        out[t] = r.a
    """
    kernel = simt.jit(defined(text, PAIR=PAIR))
    x, out = np.arange(8.0), np.zeros(8)
    kernel[1, 8](x, out, 1)
    np.testing.assert_array_equal(out, x[::-1] + 1)


# ---- compiled


def compiled(body: str) -> Callable[..., Any]:
    return simt.jit(kernel_of(body), cache=False)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_compiled_scan(reverse: bool) -> None:
    function = kernel_of(SCAN)
    kernel = simt.jit(function, cache=False, thread_order="reverse" if reverse else "forward")
    x = np.random.default_rng(8).random(24)
    out = np.zeros(24)
    kernel[3, 8](x, out, 0)
    sums = np.cumsum(x.reshape(3, 8), axis=1)
    np.testing.assert_allclose(
        out, (16 * sums + 16 * x.reshape(3, 8) + 0.5 + sums[:, ::-1]).ravel(), rtol=1e-12
    )
    assert "s__o" in kernel.source


@pytest.mark.parametrize("dtype", ["int32", "float32", "complex128", "bool_"])
def test_elements_are_converted_as_before(dtype: str) -> None:
    text = f"""
    def kernel(x, out, n):
        s = cuda.shared.array(8, {dtype})
        t = cuda.threadIdx.x
        s[t] = x[t]
        cuda.syncthreads()
        for j in range(n):
            v = s[7 - t] * 1.3 if x[t] > 1 else s[t] * 0.7
            cuda.syncthreads()
            if t != 3:
                s[t] = v
            cuda.syncthreads()
        out[t] = s[t]
    """
    types_of = {"complex128": np.complex128, "bool_": np.bool_}
    x = np.random.default_rng(9).random(8) * 9
    wanted = x.astype(dtype.strip("_"))
    for _ in range(3):
        v = np.where(x > 1, wanted[::-1] * 1.3, wanted * 0.7)
        v[3] = wanted[3]
        wanted = v.astype(wanted.dtype)
    out = np.zeros(8, types_of.get(dtype, dtype))
    kernel = simt.jit(defined(text, complex128=types.complex128, bool_=types.boolean), cache=False)
    kernel[1, 8](x, out, 3)
    np.testing.assert_allclose(out, wanted, rtol=1e-6)
    assert "s__o" in kernel.source
