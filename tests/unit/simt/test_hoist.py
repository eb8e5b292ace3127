"""What must be a statement of its own is taken out of expressions, and everything happens in the
order that Python gives it.
"""

import random

import numpy as np
import pytest

from synknumba._errors import KernelError
from tests import quick
from tests.unit.simt.written import alone, defined, one_thread, thread_lines

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


def lines(text: str) -> list[str]:
    return thread_lines(defined(FUNCTIONS + "\n" + text))


def test_a_value_is_read_before_what_follows_changes_it() -> None:
    assert lines("def kernel(x, i):\n    x[i] = x[1] + i + note(x, 2)") == [
        "_k_early1 = x[1] + i",
        "_k_barrier_block()",
        "x[0] = (x[0] * 3 + 2) % 101",
        "x[i] = _k_early1 + x[0]",
    ]


def test_an_element_is_read_before_the_value_added_to_it() -> None:
    assert lines("def kernel(x, i):\n    x[i] += note(x, 2)") == [
        "_k_element1 = x[i]",
        "_k_barrier_block()",
        "x[0] = (x[0] * 3 + 2) % 101",
        "_k_element1 += x[0]",
        "x[i] = _k_element1",
    ]


def test_a_value_is_computed_before_the_place_for_it() -> None:
    assert lines("def kernel(x):\n    x[note(x, 2)] = x[3]") == [
        "_k_early1 = x[3]",
        "_k_barrier_block()",
        "x[0] = (x[0] * 3 + 2) % 101",
        "x[x[0]] = _k_early1",
    ]


def test_bounds_of_slices_are_kept_one_by_one() -> None:
    assert lines("def kernel(x):\n    x[x[1]:x[2], note(x, 3)] += note(x, 4)") == [
        "_k_early1 = x[1]",
        "_k_early2 = x[2]",
        "_k_barrier_block()",
        "x[0] = (x[0] * 3 + 3) % 101",
        "_k_early3 = x[0]",
        "_k_element4 = x[_k_early1:_k_early2, _k_early3]",
        "_k_barrier_block()",
        "x[0] = (x[0] * 3 + 4) % 101",
        "_k_element4 += x[0]",
        "x[_k_early1:_k_early2, _k_early3] = _k_element4",
    ]


def test_the_condition_of_a_while_is_computed_again_in_each_iteration() -> None:
    assert lines("def kernel(x):\n    while note(x, 1) > 5:\n        x[3] += 1") == [
        "while True:",
        "    _k_barrier_block()",
        "    x[0] = (x[0] * 3 + 1) % 101",
        "    if not x[0] > 5:",
        "        break",
        "    x[3] += 1",
    ]


def test_operands_of_a_collective_are_computed_in_order() -> None:
    assert lines(
        "def kernel(x, i):\n    x[i] = cuda.shfl_down_sync(x[1], value=note(x, 1), delta=x[2])"
    ) == [
        "_k_early1 = x[1]",
        "_k_barrier_block()",
        "x[0] = (x[0] * 3 + 1) % 101",
        "_k_operand2 = _k_early1",
        "_k_given3 = x[0]",
        "_k_operand4 = x[2]",
        "_k_got5 = _k_collective_shfl_down_sync(_k_operand2, _k_given3, _k_operand4)",
        "x[i] = _k_got5",
    ]


def test_a_part_that_may_not_be_evaluated_is_under_a_condition() -> None:
    assert lines("def kernel(x):\n    x[1] = x[2] and x[3] and note(x, 2) and x[4]") == [
        "_k_so_far1 = x[2] and x[3]",
        "if _k_so_far1:",
        "    _k_barrier_block()",
        "    x[0] = (x[0] * 3 + 2) % 101",
        "    _k_so_far1 = x[0]",
        "x[1] = _k_so_far1 and x[4]",
    ]
    assert lines("def kernel(x):\n    x[1] = x[2] or note(x, 2)")[:2] == [
        "_k_so_far1 = x[2]",
        "if not _k_so_far1:",
    ]
    assert lines("def kernel(x):\n    x[1] = 3 if x[2] else note(x, 2)") == [
        "if x[2]:",
        "    _k_chosen1 = 3",
        "else:",
        "    _k_barrier_block()",
        "    x[0] = (x[0] * 3 + 2) % 101",
        "    _k_chosen1 = x[0]",
        "x[1] = _k_chosen1",
    ]


def test_a_variable_is_read_before_an_expression_assigns_it() -> None:
    assert lines("def kernel(x, n):\n    x[1] = n + (n := x[2]) * n") == [
        "_k_early1 = n",
        "n = x[2]",
        "x[1] = _k_early1 + n * n",
    ]


def test_the_rest_of_a_comparison_may_not_be_evaluated_and_is_refused() -> None:
    with pytest.raises(
        KernelError,
        match="in a conditionally evaluated part of an expression .* assign its value to a "
        "variable",
    ):
        lines("def kernel(x):\n    x[1] = x[1] < x[2] < note(x, 3)")


@pytest.mark.parametrize(
    "targets", ["x[0], x[note(x, 1)]", "x[0] = x[note(x, 1)]", "x[note(x, 1)], v"]
)
def test_several_targets_are_refused(targets: str) -> None:
    with pytest.raises(
        KernelError,
        match="in one of several targets of an assignment .* assign its value to a variable",
    ):
        lines(f"def kernel(x, y):\n    {targets} = y")
