"""What each call of a recorded sequence must satisfy, since its numbers and arrays may have
changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from synknumba._errors import ArgumentError, BatchError
from synknumba._formulas import Formula, computed, fold
from synknumba._tracing import Line, Number


@final
@dataclass(frozen=True, slots=True)
class Lines:
    """Row numbers of a call, a line for each iteration."""

    line: Line
    function: str
    rows: int  # number of rows of the call's arrays

    def check(self, name: str, times: int, scalars: Sequence[Any]) -> None:
        """Raises `BatchError` if there are too few lines for a call of the sequence `name`, or a
        row does not exist.
        """
        array, label = self.line.data.data, self.line.data_label
        if self.line.number.formula_of_step and times > len(array):
            raise BatchError(
                f"{name}: {label}, batch= of {self.function}, needs a line of row numbers for each "
                f"iteration, but has {len(array)} lines for times={times}; pass times={len(array)} "
                "or fewer, or more lines"
            )
        if array.min() < 0 or array.max() >= self.rows:
            at = np.argwhere((array < 0) | (array >= self.rows))[0]
            row, instead = array[tuple(at)], ""
            if row < 0:
                instead = f"; in a line, -1 is not the last row: write {label} % {self.rows}"
            raise BatchError(
                f"{name}: {label}, batch= of {self.function}, has row {row} in line {at[0]}, but "
                f"its rows are 0 to {self.rows - 1}{instead}"
            )


@final
@dataclass(frozen=True, slots=True)
class InnerTimes:
    """A number of iterations of an inner sequence that calls of the outer one pass, or from
    which it is computed.
    """

    times: Number
    inner: str  # name of the inner sequence
    line: str

    def check(self, name: str, times: int, scalars: Sequence[Any]) -> None:
        """Raises `ArgumentError` if it is negative."""
        count = known_value(self.times.formula, scalars)
        if count is not None and count < 0:
            raise ArgumentError(
                f"{self.line}: times of {self.inner} must be an int of at least 0, but "
                f"{self.times.label} is {count} in this call of {name}"
            )


def known_value(formula: Formula, scalars: Sequence[Any], step: int | None = None) -> Any:
    """Returns the value of a formula of numbers that a call passes; None if it has others, or
    cannot be computed here.

    `step` is the number of the iteration, in all loops, if that is known.
    """

    def leaf(kind: str, operand: Any) -> Any:
        match kind:
            case "value":
                return operand
            case "scalar":
                return scalars[operand]
            case "step":
                return step
            case _:
                return None

    def combine(sign: str, operands: list[Any]) -> Any:
        return None if None in operands else computed(sign, operands)

    try:
        return fold(formula, leaf, combine)
    except ArithmeticError:
        return None
