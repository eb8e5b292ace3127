"""Random kernels without barriers, against the same source run thread by thread in plain Python.

The kernels are full of what the passes act on: uniform and varying loops and conditions, guards,
early returns, variables that live across loops, and names used in several loops.
"""

import linecache
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numba import cuda

from synknumba import simt
from tests.quick import whole

# the last two once read a uniform variable that Numba called undefined
SEEDS = [
    *range(3),
    *whole(*range(3, 14)),
    604,
    1048,
]
GRID, BLOCK = 3, 16  # strided loops of fewer threads are not interchanged
VARIABLES = ["v0", "v1", "v2"]
UNIFORM = ["u0", "u1"]


class Writer:
    """Writes one kernel."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines = [
            "def kernel(x, y, m, total, out):",
            "    t = cuda.threadIdx.x",
            "    i = cuda.grid(1)",
        ]
        self.loops = 0

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def pick(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def put(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def uniform(self) -> str:
        return self.pick(
            *UNIFORM,
            "m",
            "x.size",
            "3",
            "cuda.blockIdx.x",
            f"{self.pick(*UNIFORM)} + {self.random.randint(0, 2)}",
        )

    def value(self) -> str:
        a = self.pick(*VARIABLES, "x[i % x.size]", "t", "i", *UNIFORM)
        b = self.pick(*VARIABLES, "0.25", "t", "w")
        return f"{a} {self.pick('+', '-', '*')} {b}"

    def condition(self) -> str:
        kind = self.random.random()
        if kind < 0.3:
            return (
                f"i {self.pick('<', '<=', '>', '>=')} "
                f"{self.pick('x.size', 'm', 'x.size - 2', 'u0', '4.5')}"
            )
        if kind < 0.5:
            return self.pick(f"{self.uniform()} > {self.random.randint(0, 4)}", "w > 0.5")
        if kind < 0.7:
            return f"{self.pick(*VARIABLES)} > 0.5"
        left, right = self.condition(), self.condition()
        return self.pick(
            f"{left} and {right}", f"{left} or {right}", f"not ({left})", f"{left} and t > 2"
        )

    def loop_head(self) -> str:
        name = self.pick("j", "k", f"j{self.loops}")
        self.loops += 1
        return self.pick(
            f"for {name} in range({self.uniform()} % 4):",
            f"for {name} in range(m):",
            f"for {name} in range(m, 0, -1):",
            f"for {name} in range(t % 3):",
            f"for {name} in range(i, x.size, cuda.gridsize(1)):",
            f"for {name} in range(t + 1, m + 9, cuda.blockDim.x):",
        )

    def statement(self, depth: int, left: int, *, loop: bool) -> None:
        kind = self.random.random()
        if kind < 0.3:
            self.put(depth, f"{self.pick(*VARIABLES)} = ({self.value()}) * 0.5")
        elif kind < 0.45:
            self.put(depth, f"{self.pick(*VARIABLES)} += {self.pick(*VARIABLES)} * 0.25")
        elif kind < 0.55:
            self.put(depth, f"{self.pick(*UNIFORM)} = ({self.uniform()} + {self.uniform()}) % 5")
        elif kind < 0.6:
            self.put(
                depth,
                f"cuda.atomic.add(total, {self.pick('0', '1', 't % 3', 'm % 3')}, "
                f"{self.pick('1', 't', 'i')})",
            )
        elif kind < 0.65:
            self.put(depth, f"y[i] += {self.pick(*VARIABLES)}")
        elif kind < 0.68 and loop:
            self.put(depth, f"if {self.condition()}:")
            self.put(depth + 1, self.pick("break", "continue"))
        elif kind < 0.71:
            self.put(depth, f"if {self.condition()}:")
            self.put(depth + 1, "return")
        elif kind < 0.85 and left:
            self.put(depth, f"if {self.condition()}:")
            self.block(depth + 1, left - 1, loop=loop)
            if self.chance(0.4):
                self.put(depth, "else:")
                self.block(depth + 1, left - 1, loop=loop)
        elif left:
            head = self.loop_head()
            self.put(depth, head)
            self.block(depth + 1, left - 1, loop=True)
            if self.chance(0.5):
                self.put(depth + 1, f"{self.pick(*VARIABLES)} += {head.split()[1]} * 0.125")
        else:
            self.put(depth, f"{self.pick(*VARIABLES)} -= 0.5")

    def block(self, depth: int, left: int, *, loop: bool) -> None:
        for _ in range(self.random.randint(1, 3)):
            self.statement(depth, left, loop=loop)

    def text(self) -> str:
        self.put(
            1, f"w = {self.pick('x[m % x.size]', 'x[0] + x[m % 5]', 'x[i % x.size]', '1.0 - x[2]')}"
        )
        for name in VARIABLES:
            self.put(1, f"{name} = {self.pick('x[i % x.size] * 2.0', 't * 0.5', '1.5', '0')}")
        for name in UNIFORM:
            self.put(1, f"{name} = {self.pick('m', 'm + 1', 'x.size // 4', '2')}")
        if self.chance(0.4):
            self.put(
                1,
                self.pick("if i >= x.size:", "if not (i < x.size - 1):", "if i >= m + 9 or t > 6:"),
            )
            self.put(2, "return")
        for _ in range(4):
            self.statement(1, 2, loop=False)
        self.put(1, "out[i] = v0 + 2.0 * v1 + 3.0 * v2 + u0 + u1")
        return "\n".join(self.lines) + "\n"


class Thread:
    """`cuda` as one thread sees it."""

    def __init__(self, block: int, thread: int) -> None:
        self.threadIdx = SimpleNamespace(x=thread, y=0, z=0)
        self.blockIdx = SimpleNamespace(x=block, y=0, z=0)
        self.blockDim = SimpleNamespace(x=BLOCK, y=1, z=1)
        self.atomic = SimpleNamespace(add=self._add)

    def grid(self, _ndim: int) -> int:
        return self.blockIdx.x * BLOCK + self.threadIdx.x

    def gridsize(self, _ndim: int) -> int:
        return GRID * BLOCK

    @staticmethod
    def _add(array: Any, index: int, value: Any) -> None:
        array[index] += value


def load(text: str, name: str, scope: dict[str, Any]) -> Any:
    """The function, with its source where `inspect` looks for that of a notebook cell."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), scope)
    return scope["kernel"]


def arguments(m: int) -> tuple[Any, ...]:
    x = np.random.default_rng(4).random(21)
    return x, np.zeros(GRID * BLOCK), m, np.zeros(3, np.int64), np.zeros(GRID * BLOCK)


def check(seed: int) -> None:
    text = Writer(seed).text()
    compiled = simt.jit(load(text, f"<kernel {seed}>", {"cuda": cuda}), fastmath=["nsz"])
    for m in (0, 3, 14):
        got, expected = arguments(m), arguments(m)
        compiled[GRID, BLOCK](*got)
        scope: dict[str, Any] = {}
        plain = load(text, f"<kernel {seed}>", scope)
        with np.errstate(all="ignore"):
            for block in range(GRID):
                for thread in range(BLOCK):
                    scope["cuda"] = Thread(block, thread)
                    plain(*expected)
        for place in (1, 3, 4):
            np.testing.assert_allclose(
                got[place], expected[place], rtol=1e-9, atol=1e-12, err_msg=f"m = {m}\n{text}"
            )


@pytest.mark.parametrize("seed", SEEDS)
def test_random_kernel(seed: int) -> None:
    check(seed)
