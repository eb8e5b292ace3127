"""What each call of a recorded sequence must satisfy, since its numbers and arrays may have
changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from synknumba._call.row_numbers import first_wrong
from synknumba._errors import ArgumentError, BatchError
from synknumba._formulas import Formula, computed, fold
from synknumba._host.data import segment_of
from synknumba._tracing import Line, Number
from synknumba._wire.sequence import without_iterations


@final
@dataclass(frozen=True, slots=True)
class Lines:
    """Row numbers of a call, a line for each iteration."""

    line: Line
    function: str
    call: str  # its number and its line of the body
    rows: int  # number of rows of the call's arrays
    written: Sequence[str]  # arguments whose rows it writes

    def refuse_writer(self, name: str, writers: Mapping[int, str]) -> None:
        """Raises `ArgumentError` if a call of the sequence `name` writes the row numbers, which are
        tested before; `writers` are arguments, by the segments that they write.
        """
        writer = writers.get(segment_of(self.line.data).id)
        if writer is not None:
            raise ArgumentError(
                f"{name}: {writer} writes to {self.line.data_label}, by which batch= of "
                f"{self.function} ({self.call}) selects rows: row numbers are tested before the "
                f"ranks begin. Write to a second array, and pass that to the next call of {name}; "
                "or make single calls"
            )

    def check(self, name: str, times: int, scalars: Sequence[Any]) -> None:
        """Raises `BatchError` if there are too few lines for a call of the sequence `name`, or a
        row does not exist, or is written and listed twice in a line.
        """
        array, label = self.line.data.data, self.line.data_label
        if self.line.number.formula_of_step:
            if times > len(array):
                raise BatchError(
                    f"{name}: {label}, batch= of {self.function}, needs a line of row numbers for "
                    f"each iteration, but has {len(array)} lines for times={times}; pass "
                    f"times={len(array)} or fewer, or more lines"
                )
            if self.written:  # rows that are only read may be gathered one iteration ahead
                array = array[:times]
        at = first_wrong(array, self.rows, once=bool(self.written))
        if at < 0:
            return
        row, place, instead = array.flat[at], f"in line {at // array.shape[1]}", ""
        if 0 <= row < self.rows:
            problem = (
                f"lists row {row} twice {place}, and {self.written[0]} is in inout=, so its rows "
                "are written; list each row once in a line"
            )
        else:
            problem = f"has row {row} {place}, but its rows are 0 to {self.rows - 1}"
        if row < 0:
            instead = f"; in a line, -1 is not the last row: write {label} % {self.rows}"
        raise BatchError(f"{name}: {label}, batch= of {self.function}, {problem}{instead}")


@final
@dataclass(frozen=True, slots=True)
class InnerTimes:
    """A number of iterations of an inner sequence that calls of the outer one pass, or from
    which it is computed.
    """

    times: Number
    inner: str  # name of the inner sequence
    line: str
    returns: bool  # whether it has results

    def check(self, name: str, times: int, scalars: Sequence[Any]) -> None:
        """Raises `ArgumentError` if it is negative, or 0 in the first iteration where the inner
        sequence has results.
        """
        least, step, why = 0, None, ""
        if self.returns:
            least, step, why = 1, 0, f": {without_iterations(self.inner)}"
        count = known_value(self.times.formula, scalars, step)
        if count is not None and count < least:
            raise ArgumentError(
                f"{self.line}: times of {self.inner} must be an int of at least {least}, but "
                f"{self.times.label} is {count} in this call of {name}{why}"
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
