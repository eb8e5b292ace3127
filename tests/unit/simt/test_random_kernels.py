"""Random kernels without barriers, against the same source run thread by thread in plain Python.

The kernels are full of what the passes act on: uniform and varying loops and conditions, guards,
early returns, variables that live across loops, and names used in several loops.
"""

import itertools
import linecache
import math
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numba import cuda

from synknumba import simt
from tests.conformance.simt import python_mode
from tests.quick import examples, whole

# the last two once read a uniform variable that Numba called undefined
SEEDS = [
    *range(3),
    *whole(*range(3, 14)),
    604,
    1048,
]
Size = tuple[int, ...]
# Strided loops of fewer threads are not interchanged, unless threads of many blocks are gathered.
LARGE_BLOCKS = (3,), (16,)
SMALL_BLOCKS = [
    ((40,), (1,)),
    ((300,), (1,)),
    ((11,), (2,)),
    ((90,), (3,)),
    ((3,), (1,)),  # too few to be gathered
    ((17, 3), (1,)),
    ((2, 20), (1,)),
    ((5, 6), (2, 3)),
    ((3, 16, 2), (1,)),
]
# The number of a thread in a grid of one axis, in two ways, and of several.
NUMBERS = [
    "cuda.grid(1)",
    "cuda.blockIdx.x * cuda.blockDim.x + t",
    "cuda.grid(2)[0] + cuda.gridsize(2)[0] * cuda.grid(2)[1]",
    "cuda.grid(3)[0] + cuda.gridsize(3)[0] * (cuda.grid(3)[1] + cuda.gridsize(3)[1] * "
    "cuda.grid(3)[2])",
]
VARIABLES = ["v0", "v1", "v2"]
UNIFORM = ["u0", "u1"]


class Writer:
    """Writes one kernel, in which a thread has this number in the grid."""

    def __init__(self, seed: int, number: str = NUMBERS[0]) -> None:
        self.random = random.Random(seed)
        self.lines = [
            "def kernel(x, y, m, total, out):",
            "    t = cuda.threadIdx.x",
            f"    i = {number}",
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

    def __init__(self, grid: Size, block: Size, index: Size, thread: Size) -> None:
        self.gridDim, self.blockDim, self.blockIdx, self.threadIdx = (
            SimpleNamespace(**dict(zip("xyz", sizes, strict=True)))
            for sizes in (grid, block, index, thread)
        )
        self._sizes = [blocks * threads for blocks, threads in zip(grid, block, strict=True)]
        self._place = [
            at * threads + t for at, threads, t in zip(index, block, thread, strict=True)
        ]
        self.atomic = SimpleNamespace(add=self._add)

    def grid(self, ndim: int) -> Any:
        return self._place[0] if ndim == 1 else tuple(self._place[:ndim])

    def gridsize(self, ndim: int) -> Any:
        return self._sizes[0] if ndim == 1 else tuple(self._sizes[:ndim])

    @staticmethod
    def _add(array: Any, index: int, value: Any) -> None:
        array[index] += value


def load(text: str, name: str, scope: dict[str, Any]) -> Any:
    """The function, with its source where `inspect` looks for that of a notebook cell."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), scope)
    return scope["kernel"]


def arguments(m: int, threads: int) -> tuple[Any, ...]:
    x = np.random.default_rng(4).random(21)
    return x, np.zeros(threads), m, np.zeros(3, np.int64), np.zeros(threads)


def indices(sizes: Size) -> list[Size]:
    """Those of blocks or threads, x fastest."""
    return [at[::-1] for at in itertools.product(*map(range, sizes[::-1]))]


def three(sizes: Size) -> Size:
    return (*sizes, 1, 1)[:3]


def check(writer: Writer, grid: Size, block: Size, *, compiled: bool) -> None:
    """Compares launches of the compiled kernel, or of the generated code in plain Python, with
    its source run thread by thread.
    """
    text, threads = writer.text(), math.prod(grid + block)
    kernel = simt.jit(load(text, f"<kernel {hash(text)}>", {"cuda": cuda}), fastmath=["nsz"])
    if compiled:
        launches = {"compiled": kernel[grid, block]}
    else:
        launches = python_mode.launches(kernel, grid, block, arguments(0, threads))
    for m in (0, 3, 14):
        expected = arguments(m, threads)
        scope: dict[str, Any] = {}
        plain = load(text, f"<kernel {hash(text)}>", scope)
        with np.errstate(all="ignore"):
            for index, thread in itertools.product(indices(three(grid)), indices(three(block))):
                scope["cuda"] = Thread(three(grid), three(block), index, thread)
                plain(*expected)
        for how, launch in launches.items():
            got = arguments(m, threads)
            launch(*got)
            for place in (1, 3, 4):
                np.testing.assert_allclose(
                    got[place],
                    expected[place],
                    rtol=1e-9,
                    atol=1e-12,
                    err_msg=f"{how}, grid {grid}, block {block}, m = {m}\n{text}",
                )


@pytest.mark.parametrize("seed", SEEDS)
def test_random_kernel(seed: int) -> None:
    check(Writer(seed), *LARGE_BLOCKS, compiled=True)


def number(grid: Size, form: int) -> str:
    """How a kernel for a grid of so many axes computes its number, in one of two forms for one."""
    return NUMBERS[len(grid) if len(grid) > 1 else form]


# seeds, and shapes among those of small blocks
@pytest.mark.parametrize("case", [(20, 0), *whole((21, 1), (22, 2), (23, 3), (24, 5), (26, 8))])
def test_random_kernel_in_small_blocks(case: tuple[int, int]) -> None:
    seed, shape = case
    grid, block = SMALL_BLOCKS[shape]
    check(Writer(seed, number(grid, 1)), grid, block, compiled=True)


@settings(max_examples=examples(40, quick=8), suppress_health_check=list(HealthCheck))
@given(st.integers(100, 10_000), st.sampled_from(SMALL_BLOCKS), st.integers(0, 1))
def test_generated_code_for_small_blocks(seed: int, shape: tuple[Size, Size], form: int) -> None:
    grid, block = shape
    check(Writer(seed, number(grid, form)), grid, block, compiled=False)
