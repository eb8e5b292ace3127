"""What must be a statement of its own is taken out of expressions, and everything happens in the
order that Python gives it.
"""

import random

import numpy as np
import pytest

from synknumba._errors import KernelError
from synknumba.simt._lower.thread_code import ThreadCode
from tests import quick
from tests.unit.simt.written import alone, defined, one_thread, shape, thread_code, thread_lines

# Both change memory and wait; one has a plain value, the other returns from several places.
FUNCTIONS = """
@cuda.jit(device=True)
def note(x, k):
    cuda.syncthreads()
    x[0] = (x[0] * 3 + k) % 101
    return x[0]

@cuda.jit(device=True)
def pick(x, k):
    cuda.syncthreads()
    for j in range(4):
        if x[j] > 60:
            x[j] -= 40
            return j
    x[1] += 1 + k % 3
    return x[1] % 7
"""


class Writer:
    """Writes statements whose parts change what other parts read."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def value(self, depth: int, *, calls: bool = True) -> str:
        kinds = ["number", "element", "variable"]
        if depth:
            kinds += ["sum", "index", "min", "tuple", "minus", "compare", "choice"] + [
                "note",
                "pick",
            ] * (2 * calls)
        a, b = ("", "") if not depth else (self.value(depth - 1, calls=calls) for _ in range(2))
        match self.random.choice(kinds):
            case "number":
                return str(self.random.randint(0, 9))
            case "element":
                return f"x[{self.random.randint(0, 7)}]"
            case "variable":
                return self.random.choice("vw")
            case "sum":
                return f"({a} {self.random.choice('+-*')} {b}) % 97"
            case "index":
                return f"x[({a}) % 8]"
            case "min":
                return f"min({a}, {b})"
            case "tuple":
                return f"({a}, {b})[{self.random.randint(0, 1)}]"
            case "minus":
                return f"(-({a})) % 89"
            case "compare":
                return f"int({a} < {b})"
            case "choice":  # only the condition may call
                c, d = (self.value(depth - 1, calls=False) for _ in range(2))
                return f"({c} if {a} > 20 else {d})"
            case called:
                return f"{called}(x, ({a}) % 50)"

    def statement(self) -> str:
        a, b = self.value(2), self.value(2)
        return self.random.choice(
            [
                f"v = {a}",
                f"v += {a}",
                f"x[({a}) % 8] = {b}",
                f"x[({a}) % 8] += {b}",
                f"x[({a}) % 3:({b}) % 8] = 5",
                f"v, w = {a}, {b}",
                f"if {a} > {b}:\n    v = {self.value(1)}\nelse:\n    x[2] = {self.value(1)}",
                f"if v > 5 and {self.value(1, calls=False)} > 3:\n    w = {b}",
                (
                    f"n = 0\nwhile n + {a} % 2 < 3:\n    n += 1\n    if n == 2:\n        "
                    f"continue\n    x[n] = {b}"
                ),
                f"for k in range({a} % 3):\n    v = v + k + {b}",
            ]
        )

    def text(self) -> str:
        lines = [line for _ in range(4) for line in self.statement().splitlines()]
        return (
            f"{FUNCTIONS}\ndef kernel(x):\n    v, w = 1, 2\n"
            + "".join(f"    {line}\n" for line in lines)
            + "    x[7] = v + w\n"
        )


@pytest.mark.parametrize(
    "seeds",
    [range(start, start + 25) for start in range(0, 200, 25)[: 1 if quick.asked else 8]],
    ids=str,
)
def test_the_order_is_that_of_python(seeds: range) -> None:
    for seed in seeds:
        text = Writer(seed).text()
        expected, found = np.arange(8) * 11 % 8, np.arange(8) * 11 % 8
        alone(text)(expected)
        one_thread(defined(text))(found)
        assert np.array_equal(found, expected), text


@pytest.mark.parametrize(
    "statement",
    [
        "x[i] = x[1] + i + note(x, 2)",
        "x[i] += note(x, 2)",
        "x[note(x, 2) % 8] = x[3]",
        "x[note(x, 1) % 3:note(x, 2) % 8] = note(x, 3)",
        "while note(x, 1) > 5:\n    x[3] += 1",
        "x[1] = x[2] and x[3] and note(x, 2) and x[4]",
        "x[1] = x[2] or note(x, 2)",
        "x[1] = 3 if x[2] else note(x, 2)",
        "x[1] = i + (i := x[2]) * i + note(x, 1)",
    ],
)
@pytest.mark.parametrize("zero", [0, 2])
def test_every_part_is_evaluated_in_its_turn(statement: str, zero: int) -> None:
    """What changes memory in the middle changes nothing that comes before it."""
    body = "".join(f"    {line}\n" for line in statement.splitlines())
    text = f"{FUNCTIONS}\ndef kernel(x, i):\n{body}"
    expected = np.arange(8) * 11 % 8 + 1
    expected[zero] = 0
    found = expected.copy()
    alone(text)(expected, 5)
    one_thread(defined(text))(found, 5)
    assert np.array_equal(found, expected), text


def written(text: str) -> ThreadCode:
    return thread_code(defined(f"{FUNCTIONS}\n{text}"))


def test_what_is_not_evaluated_is_under_a_condition() -> None:
    code = written("def kernel(x):\n    x[1] = x[2] or note(x, 2)")
    assert shape(code.body) == (("if", "x[]"), "x[]")


def test_operands_of_a_collective_are_computed_in_order() -> None:
    text = "def kernel(x, i):\n    x[i] = cuda.shfl_down_sync(x[1], value=note(x, 1), delta=x[2])"
    assert thread_lines(defined(f"{FUNCTIONS}\n{text}")) == [
        "_k_early1 = x[1]",
        "_k_barrier_block()",
        "x[0] = (x[0] * 3 + 1) % 101",
        "_k_operand2 = _k_early1",
        "_k_given3 = x[0]",
        "_k_operand4 = x[2]",
        "_k_got5 = _k_collective_shfl_down_sync(_k_operand2, _k_given3, _k_operand4)",
        "x[i] = _k_got5",
    ]


def test_the_rest_of_a_comparison_may_not_be_evaluated_and_is_refused() -> None:
    with pytest.raises(
        KernelError,
        match="in a conditionally evaluated part of an expression .* assign its value to a "
        "variable",
    ):
        written("def kernel(x):\n    x[1] = x[1] < x[2] < note(x, 3)")


@pytest.mark.parametrize(
    "targets", ["x[0], x[note(x, 1)]", "x[0] = x[note(x, 1)]", "x[note(x, 1)], v"]
)
def test_several_targets_are_refused(targets: str) -> None:
    with pytest.raises(
        KernelError,
        match="in one of several targets of an assignment .* assign its value to a variable",
    ):
        written(f"def kernel(x, y):\n    {targets} = y")
