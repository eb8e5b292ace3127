"""Regions run as several loops: where they are parted, and that nothing else changes."""

import ast
import random
from dataclasses import replace

import numpy as np
import pytest
from numba.core import types

from synknumba.simt._analysis.bounds import Guards
from synknumba.simt._analysis.split_regions import free_cut, guard_cut, scatter_cut
from synknumba.simt._analysis.types import VariableTypes
from synknumba.simt._analysis.uniformity import Analysis
from synknumba.simt._emit import build
from tests.quick import whole
from tests.unit.simt.written import defined, launch, parsed, program_text

F8 = types.Array(types.float64, 1, "C")


def known_of(text: str) -> tuple[Analysis, Guards]:
    kinds = {"x": F8, "y": F8, "n": types.int64, "a": types.float64}
    names = {"math": __import__("math"), "_k_atomic_add": object()}
    known = Analysis(parsed("t = _k_tx\n" + text), kinds, names, VariableTypes(kinds))
    return known, Guards(known, ast.unparse)


@pytest.mark.parametrize(
    ("text", "position", "span"),
    [
        ("y[t] = 1\nif t < n:\n    x[t] = 2", 1, "0, min(_k_ceil_bound(n, -1), E)"),
        ("if t == 0:\n    y[0] = 1\ny[t] = 2", 0, "max(0, 0), min(0 + 1, E)"),
        ("if t < n:\n    x[t] = 2\nelse:\n    y[t] = 2", 0, "0, min(_k_ceil_bound(n, -1), E)"),
        ("if x[t] > 0:\n    y[0] = 1\nif t >= 3:\n    y[t] = 2", 1, "max(0, 3), E"),
        ("if t < n:\n    x[t] = 2", None, ""),
        ("y[t] = 1\nif x[t] > 0:\n    x[t] = 2", None, ""),
        ("y[t] = 1\nif t < n and x[t] > 0:\n    x[t] = 2", None, ""),
        ("y[t] = 1\nif t < n and _k_ty < n:\n    x[t] = 2", None, ""),
        ("m = n\nif t < 4:\n    m = 3\ny[t] = m\nif t < m:\n    x[t] = 2", 1, "0, min(4, E)"),
    ],
)
def test_threads_are_parted_at_a_condition_on_their_index(
    text: str, position: int | None, span: str
) -> None:
    known, guards = known_of(text)
    found = guard_cut(known.body, guards, set(), known)
    assert (found.position if found else None) == position
    if found:
        found.bounds.high["x"].append("E")
        assert f"{found.bounds.low_text('x')}, {found.bounds.high_text('x')}" == span


def test_large_regions_are_not_written_several_times() -> None:
    text = "\n".join(f"y[t + {k}] = x[t] * {k}" for k in range(20)) + "\nif t < n:\n    x[t] = 2"
    known, guards = known_of(text)
    assert guard_cut(known.body, guards, set(), known) is None
    known, guards = known_of(text[text.index("y[t + 17]") :])
    assert guard_cut(known.body, guards, set(), known) is not None


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("y[t] = 1\nif t < n:\n    x[t] = 2", 1),
        ("if t < n:\n    x[t] = 2\ny[t] = 1", 1),
        ("v = x[t]\ny[t] = v\nif t < n:\n    x[t] = 2", 2),
        ("v = x[t]\nif t < n:\n    x[t] = v", 0),
        ("v = x[t]\nif t < n:\n    x[t] = v\ny[t] = 1", 2),
        ("v = x[t]\nif t < n:\n    x[t] = v\ny[t] = v", 0),
        ("if t < n:\n    x[t] = 2\nelse:\n    y[t] = 1\ny[t] = 2", 0),
        ("if x[t] > 1:\n    x[t] = 2\ny[t] = 1", 0),
        ("if t < n:\n    v = 2\nv = 3\ny[t] = v", 0),
    ],
)
def test_statements_are_parted_where_nothing_need_be_stored(text: str, cut: int) -> None:
    known, guards = known_of(text)
    assert free_cut(known.body, known, guards) == cut


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("b = int(x[t] / a)\ny[b] += 1", 1),
        ("v = x[t]\nb = int(math.exp(v))\n_k_atomic_add(y, b, 1)", 2),
        ("b = int(x[t] + a)\ny[b] += 1", 0),  # an addition is not worth it
        # each thread writes beside its neighbour: that vectorizes
        (
            "b = int(x[t] / a)\ny[t + n] += b",
            0,
        ),
        ("b = int(x[t] / a)\n_k_atomic_add(y, 0, b)", 0),
        ("b = int(x[t] / a)", 0),
        ("y[0] = 1\nb = int(x[t] / a)\ny[b] += 1", 0),
        ("b = unknown(x[t] / a)\ny[b] += 1", 0),
        ("b = int(x[t] / a)\nif b > 0:\n    y[b] += 1", 1),
    ],
)
def test_costly_arithmetic_is_parted_from_scattered_writes(text: str, cut: int) -> None:
    known, guards = known_of(text)
    assert scatter_cut(known.body, known, guards) == cut


def spans(text: str) -> list[str]:
    """The loops along x."""
    function = defined(
        "def kernel(x, y, n):\n    t = cuda.threadIdx.x\n"
        + "".join(f"    {line}\n" for line in text.splitlines())
    )
    lines = [line.strip() for line in program_text(function, F8, F8, types.int64).splitlines()]
    return [
        line.removeprefix("for _k_tx in ")
        for line in lines
        if line.startswith(("for _k_tx in ", "_k_first", "_k_end"))
    ]


def test_loops_of_a_parted_region() -> None:
    text = "cuda.syncthreads()\nv = x[t]\nif 2 <= t < n:\n    v += 1\ny[t] = v"
    assert spans(text) == [
        "_k_first1 = min(max(0, 2), _k_Bx)",
        "_k_end1 = max(_k_first1, min(_k_ceil_bound(n, -1), _k_Bx))",
        "range(_k_first1):",
        "range(max(0, _k_first1), _k_end1):",
        "range(max(0, _k_end1), _k_Bx):",
    ]
    # LLVM does it as well there
    assert spans(text.replace("cuda.syncthreads()\n", "")) == ["range(_k_Bx):"]


# ---- random regions


class Writer:
    """Writes regions of a block of 8 threads, full of what is cut."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.places = 0

    def place(self) -> int:
        """Where nothing else writes: that would be a race."""
        self.places += 16
        return self.places

    def statement(self) -> str:
        a, b, k = (self.random.randint(0, 9) for _ in range(3))
        return self.random.choice(
            [
                f"v = x[i] / {a + 1} + w",
                f"w = v * {b}",
                f"k = int(v / {a + 1}) % 8",
                "s[t] = v",
                f"v += s[t] + {k}",
                f"if t < {a}:\n    s[t] += {b}",
                f"if t == {a}:\n    v = {b}",
                f"if {min(a, b)} < t <= {max(a, b)}:\n    v += {k}\nelse:\n    w = {a}",
                f"if i >= n + {a}:\n    y[i] += v",
                f"if n > {a}:\n    w += 1",
                "cuda.atomic.add(total, k, v)",
                f"z[(t * 3 + {a}) % 8 + 8 * cuda.blockIdx.x + {self.place()}] = v",
                f"if t > {a}:\n    v = s[t] / 3\n    s[t] = w",
                f"for j in range({a} % 3):\n    v += j",
                "cuda.syncthreads()",
            ]
        )

    def text(self) -> str:
        first = ["s = cuda.shared.array(8, float64)", "t, i = cuda.threadIdx.x, cuda.grid(1)"]
        first += ["v, w, k = 0.5, 1.5, t", "s[t] = x[i]", "cuda.syncthreads()"]
        lines = [line for _ in range(12) for line in self.statement().splitlines()]
        last = ["y[i] += v + w + k", "s[t] += 1", "y[i] += s[t]"]
        body = "".join(f"    {line}\n" for line in [*first, *lines, "cuda.syncthreads()", *last])
        return f"def kernel(x, y, z, total, n):\n{body}"


@pytest.mark.parametrize("seed", [*range(12), *whole(*range(12, 30))])
def test_parting_changes_no_result(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Writer(seed).text()
    found = []
    emit = build.emit_blocks
    for cuts in (True, False):
        style = {"cuts": cuts}
        monkeypatch.setattr(
            build,
            "emit_blocks",
            lambda *args, style=style: emit(*args[:-1], replace(args[-1], **style)),
        )
        arrays = np.arange(16.0) % 7, np.zeros(16), np.zeros(256), np.zeros(8)
        launch(defined(text), 2, 8, *arrays, 5)
        found.append(arrays)
    for parted, plain in zip(*found, strict=True):
        np.testing.assert_allclose(parted, plain, rtol=1e-12)  # sums in another order
