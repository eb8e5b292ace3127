"""Numbers of a sequence on a rank: the steps of its loops, the scalars of a call, and results that
ranks share.

They are kept in cells, words of 8 bytes that compiled code can read, too.
"""

import math
import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, final

import numpy as np

from synknumba import _tracing as tracing
from synknumba._types import Array, shown
from synknumba._wire.sequence import Formula, Formulas


def _as_numpy(
    python: Callable[[Any, Any], Any], numpy: Callable[[Any, Any], Any]
) -> Callable[[Any, Any], Any]:
    """Returns an operation like Python's that gives what NumPy gives for floats, where Python
    raises or gets complex.
    """

    def compute(left: Any, right: Any) -> Any:
        try:
            value = python(left, right)
        except (ZeroDivisionError, OverflowError):
            value = None
        if value is not None and not isinstance(value, complex):
            return value
        with np.errstate(all="ignore"):
            return numpy(_as_float(left), _as_float(right)).item()

    return compute


def _as_float(value: Any) -> np.float64:
    """Returns a number as float64; infinity for an int beyond its range."""
    try:
        return np.float64(value)
    except OverflowError:
        return np.float64(np.inf if value > 0 else -np.inf)


def _of_floats(ufunc: np.ufunc, of_ints: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Returns a function of NumPy as one of float64; of ints that a formula keeps ints, as
    `of_ints` computes.
    """

    def compute(*operands: Any) -> Any:
        if of_ints is not None and all(isinstance(operand, int) for operand in operands):
            return of_ints(*operands)
        with np.errstate(all="ignore"):
            return ufunc(*map(_as_float, operands)).item()

    return compute


# Python raises where NumPy has inf: for a division by 0, and a float beside an int beyond its
# range.
_RAISING: Mapping[str, np.ufunc] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.true_divide,
    "//": np.floor_divide,
    "%": np.remainder,
    "**": np.power,
}
_OF_INTS = {"minimum": min, "maximum": max}
OPERATORS = {
    **tracing.OPERATORS,
    **{sign: _as_numpy(tracing.OPERATORS[sign], ufunc) for sign, ufunc in _RAISING.items()},
    **{name: _of_floats(ufunc, _OF_INTS.get(name)) for name, ufunc in tracing.FUNCTIONS.items()},
}


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
        kind, *operands = formula
        match kind:
            case "value":
                return operands[0]
            case "step":
                return int(self.steps[operands[0]])
            case "scalar":
                return self._cell(
                    self.scalars, operands[0], is_float=self._letters[operands[0]] == "d"
                )
            case "result":
                slot = operands[0]
                is_float = self._is_float.get(slot)
                return (
                    self._values[slot]
                    if is_float is None
                    else self._cell(self.results, slot, is_float=is_float)
                )
        return OPERATORS[kind](*map(self.evaluate, operands))

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
                return struct.pack("<d", _as_float(value))
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
