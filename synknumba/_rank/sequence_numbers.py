"""Numbers of a sequence on a rank: the steps of its loops, the scalars of a call, and results that
ranks share.

They are kept in cells, words of 8 bytes that compiled code can read, too.
"""

import math
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, final

import numpy as np

from synknumba._formulas import Formula, as_float, computed, fold
from synknumba._types import Array, shown
from synknumba._wire.sequence import Formulas


@final
class Numbers:
    """What the formulas of a sequence refer to.

    Args:
        depth: number of loops inside each other.
        scalars: `struct` letters of the scalars, "q" or "d" each.
        slots: number of results that ranks share.
        lines: file and line of the body that computes a number, by the part's name and the formula.

    Attributes:
        steps, scalars, results: the cells.
    """

    def __init__(
        self,
        depth: int,
        scalars: str,
        slots: int,
        lines: Mapping[tuple[str, Formula], str] = MappingProxyType({}),
    ) -> None:
        self.steps: Array = np.zeros(depth, np.int64)
        self.scalars: Array = np.zeros(len(scalars), np.int64)
        self.results: Array = np.zeros(slots, np.int64)
        self._letters = scalars
        self._lines = lines
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

    def all_but(self, depth: int) -> Any:
        """Returns a key of all numbers but the step of one loop."""
        steps = self.steps.tolist()
        del steps[depth]
        return self.scalars.tobytes(), self.results.tobytes(), *self._values, *steps

    def set_result(self, slot: int, value: Any) -> None:
        """Notes a result."""
        self._values[slot] = value
        if slot in self._is_float:
            cell = self.results[slot : slot + 1]
            cell.view(np.float64 if self._is_float[slot] else np.int64)[0] = value

    def _cell(self, cells: Array, index: int, *, is_float: bool) -> Any:
        return (
            cells[index : index + 1].view(np.float64)[0].item() if is_float else int(cells[index])
        )

    def evaluate(self, formula: Formula) -> Any:
        """Returns the value of a formula."""
        return fold(formula, self._leaf, computed)

    def _leaf(self, kind: str, operand: Any) -> Any:
        if kind == "value":
            return operand
        if kind == "step":
            return int(self.steps[operand])
        if kind == "scalar":
            return self._cell(self.scalars, operand, is_float=self._letters[operand] == "d")
        is_float = self._is_float.get(operand)
        if is_float is None:
            return self._values[operand]
        return self._cell(self.results, operand, is_float=is_float)

    def count(self, formula: Formula) -> int:
        """Returns the value of a formula for the number of iterations of an inner sequence;
        raises as `packed` does.
        """
        return int.from_bytes(
            self.packed("q", formula, "times= of an inner sequence"), "little", signed=True
        )

    def fill(self, values: bytearray, name: str, formulas: Formulas) -> None:
        """Writes what formulas give into the packed values of a part; raises as `packed` does."""
        for offset, letter, formula in formulas:
            packed = self.packed(letter, formula, name)
            values[offset : offset + len(packed)] = packed

    def packed(self, letter: str, formula: Formula, part: str) -> bytes:
        """Returns the value of a formula for an argument of a call, packed by a `struct` letter.

        Raises:
            OverflowError: it does not fit.
        """
        value = self.evaluate(formula)
        try:
            return struct.pack("<" + letter, value)
        except (struct.error, OverflowError):
            if letter == "d":  # of an int beyond its range
                return struct.pack("<d", as_float(value))
            what = "does not fit in 64 bits"
            if isinstance(value, float):  # of a division by 0, or a negative exponent
                what = (
                    "has a negative exponent, and is no int"
                    if math.isfinite(value)
                    else "is no finite int"
                )
            line = self._lines.get((part, formula))
            where = f"{line}: " if line else ""
            raise OverflowError(
                f"{where}a number that the sequence computes for {part} "
                f"{what}: {shown(value)}; compute with floats, as in 1.0 * n"
            ) from None
