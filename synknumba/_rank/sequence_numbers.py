"""Numbers of a sequence on a rank: the steps of its loops, the scalars of a call, and results that
ranks share.

They are kept in cells, words of 8 bytes that compiled code can read, too.
"""

import math
import struct
from typing import Any, final

import numpy as np

from synknumba._device import fold_kernel
from synknumba._errors import at_line
from synknumba._formulas import Formula, as_float, computed, fold
from synknumba._types import Array, shown
from synknumba._wire.sequence import (
    CARRIED,
    INNER_TIMES,
    Formulas,
    Loop,
    Moves,
    SequenceProgram,
    Shared,
    depth,
    without_iterations,
)


@final
class Numbers:
    """What the formulas of a sequence refer to.

    Args:
        program: the sequence.

    Attributes:
        steps, scalars, results: the cells; `cells` are those of inner loops' own numbers.
        carried: indices of the scalars that have other values after an iteration.
    """

    def __init__(self, program: SequenceProgram) -> None:
        self.steps: Array = np.zeros(depth(program.parts), np.int64)
        self.scalars: Array = np.zeros(len(program.scalars), np.int64)
        self.results: Array = np.zeros(program.slots, np.int64)
        self.cells: Array = np.zeros(len(program.cells), np.int64)
        self.carried = sorted({index for turn in program.carried for (_, index), _ in turn})
        self._program, self._lines = program, program.lines.numbers
        self._values: list[Any] = [0] * program.slots  # of results as Python has them
        self._result_letters: dict[int, str] = {}  # of results whose cells are valid

    def take_scalars(self, scalars: Array, first: int) -> None:
        """Takes the scalars of a round, given its first iteration; those that are carried keep
        what they have got in the round before.
        """
        if not self._program.scalars:
            return
        if self.carried and first:
            scalars = scalars.copy()
            scalars[self.carried] = self.scalars[self.carried]
        self.scalars[:] = scalars

    def place(self, kind: str, operand: int) -> tuple[Array, int, str]:
        """Returns where a leaf of a formula is: cells, an index, and the `struct` letter, which is
        "" for a result that is not in its cell.
        """
        match kind:
            case "step":
                return self.steps, operand, "q"
            case "scalar":
                return self.scalars, operand, self._program.scalars[operand]
            case "cell":
                return self.cells, operand, self._program.cells[operand]
        return self.results, operand, self._result_letters.get(operand, "")

    def keep(self, shared: Shared) -> None:
        """Keeps a result in its cell, from now on, if its dtype allows."""
        kind = np.dtype(shared.dtype)
        if kind.char in "fd" or (kind.kind in "iu" and kind.char not in "QL"):
            self._result_letters[shared.slot] = "d" if kind.kind == "f" else "q"

    def all_but(self, depth: int) -> Any:
        """Returns a key of all numbers but the step of one loop."""
        steps = self.steps.tolist()
        del steps[depth]
        cells = self.scalars, self.cells, self.results
        return *(memory.tobytes() for memory in cells), *self._values, *steps

    def combine(self, shared: Shared, parts: Array) -> None:
        """Combines the ranks' parts of a result."""
        slot = shared.slot
        value = fold_kernel.combined(shared.op, parts, shared.weights).item()
        self._values[slot] = value
        if letter := self._result_letters.get(slot):
            self.results[slot : slot + 1].view(letter)[0] = value

    def move(self, moves: Moves) -> None:
        """Gives numbers other values: all are computed before the first is replaced; raises as
        `packed` does.
        """
        values = list[bytes]()
        places = [self.place(*target) for target, _ in moves]
        for (_, _, letter), (_, formula) in zip(places, moves, strict=True):
            values.append(self.packed(letter, formula, CARRIED))
        for (cells, index, _), value in zip(places, values, strict=True):
            cells[index] = int.from_bytes(value, "little", signed=True)

    def evaluate(self, formula: Formula) -> Any:
        """Returns the value of a formula."""
        return fold(formula, self._leaf, computed)

    def _leaf(self, kind: str, operand: Any) -> Any:
        if kind == "value":
            return operand
        cells, index, letter = self.place(kind, operand)
        if letter == "d":
            return cells.view(np.float64)[index].item()
        return int(cells[index]) if letter else self._values[operand]

    def count(self, loop: Loop) -> int:
        """Returns the number of iterations of an inner sequence; raises as `packed` does, or
        `ValueError` if it has none, and so no results.
        """
        packed = self.packed("q", loop.times, INNER_TIMES)
        count = int.from_bytes(packed, "little", signed=True)
        if count < 1 and loop.returns:
            raise self._error(
                ValueError,
                f"times= of {loop.name} must be at least 1, and is {count}: "
                f"{without_iterations(loop.name)}",
                (INNER_TIMES, loop.times),
            )
        return count

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
            message = (
                f"a number that the sequence computes for {part} {_misfit(value)}: {shown(value)}; "
                "compute with floats, as in 1.0 * n"
            )
            raise self._error(OverflowError, message, (part, formula)) from None

    def _error(self, kind: type[Exception], message: str, key: tuple[str, Formula]) -> Exception:
        """Returns an error about a number, with the line of the body that computes it."""
        line = self._lines.get(key, "")
        if not line:
            return kind(message)
        file, _, number = line.rpartition(":")
        return at_line(kind(f"{line}: {message}"), file, int(number), "<sequence>")


def _misfit(value: Any) -> str:
    """Returns why a value is no int of 64 bits."""
    if not isinstance(value, float):
        return "does not fit in 64 bits"
    if math.isfinite(value):
        return "has a negative exponent, and is no int"
    return "is no finite int"  # of a division by 0
