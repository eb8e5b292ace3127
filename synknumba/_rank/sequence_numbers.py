"""Numbers of a sequence on a rank: the steps of its loops, the scalars of a call, and results that ranks share.

They are kept in cells, words of 8 bytes that compiled code can read, too.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np

from synknumba._types import Array
from synknumba._wire.sequence import Formula

OPERATORS: Mapping[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "neg": operator.neg,
    "abs": operator.abs,
}


@final
class Numbers:
    """What the formulas of a sequence refer to.

    Args:
        depth: number of loops inside each other.
        scalars: `struct` letters of the scalars, "q" or "d" each.
        slots: number of results that ranks share.

    Attributes:
        steps, scalars, results: the cells.
    """

    def __init__(self, depth: int, scalars: str, slots: int) -> None:
        self.steps: Array = np.zeros(depth, np.int64)
        self.scalars: Array = np.zeros(len(scalars), np.int64)
        self.results: Array = np.zeros(slots, np.int64)
        self._letters = scalars
        self._values: list[Any] = [0] * slots  # of results as Python has them
        self._is_float: dict[int, bool] = {}  # of results whose cells are valid

    def letter(self, slot: int) -> str | None:
        """Returns the `struct` letter of a result's cell; None if the result is not in its cell."""
        is_float = self._is_float.get(slot)
        return None if is_float is None else "qd"[is_float]

    def has_cell(self, slot: int, dtype: Any) -> bool:
        """Returns whether a result of some dtype is kept in its cell, from now on if it can be."""
        kind = np.dtype(dtype)
        if kind.char in "fd" or (kind.kind in "iu" and kind.char not in "QL"):
            self._is_float[slot] = kind.kind == "f"
        return slot in self._is_float

    def set_result(self, slot: int, value: Any) -> None:
        """Notes a result."""
        self._values[slot] = value
        if slot in self._is_float:
            cell = self.results[slot : slot + 1]
            cell.view(np.float64 if self._is_float[slot] else np.int64)[0] = value

    def _cell(self, cells: Array, index: int, *, is_float: bool) -> Any:
        return cells[index : index + 1].view(np.float64)[0].item() if is_float else int(cells[index])

    def evaluate(self, formula: Formula) -> Any:
        """Returns the value of a formula."""
        kind, *operands = formula
        match kind:
            case "value":
                return operands[0]
            case "step":
                return int(self.steps[operands[0]])
            case "scalar":
                return self._cell(self.scalars, operands[0], is_float=self._letters[operands[0]] == "d")
            case "result":
                slot = operands[0]
                is_float = self._is_float.get(slot)
                return self._values[slot] if is_float is None else self._cell(self.results, slot, is_float=is_float)
        return OPERATORS[kind](*map(self.evaluate, operands))
