"""Formulas of a sequence as rows that compiled code runs (`_wire/sequence_interpreter.py`)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from synknumba._formulas import FUNCTIONS, Formula, fold
from synknumba._rank.sequence_numbers import Numbers
from synknumba._wire import sequence_interpreter as table
from synknumba._wire.numpy_loops import loop_of, words_of_call

_FLOAT_OPERATIONS = {
    "+": table.ADD,
    "-": table.SUB,
    "*": table.MUL,
    "/": table.DIV,
    "**": table.POW,
    "neg": table.NEG,
    "abs": table.ABS,
    "float32": table.ROUND,
    "<": table.LESS,
    "<=": table.AT_MOST,
    "==": table.EQUAL,
}
_INT_OPERATIONS = {
    "+": table.INT_ADD,
    "-": table.INT_SUB,
    "*": table.INT_MUL,
    "/": table.INT_DIV,
    "//": table.INT_FLOORDIV,
    "%": table.INT_MOD,
    "neg": table.INT_NEG,
    "abs": table.INT_ABS,
    "minimum": table.INT_MIN,
    "maximum": table.INT_MAX,
    "<": table.INT_LESS,
    "<=": table.INT_AT_MOST,
    "==": table.INT_EQUAL,
}
_COMPARISONS = {"<", "<=", "=="}  # give ints


class PythonOnlyError(Exception):
    """Raised for a formula that compiled code cannot compute."""


class FormulaRows:
    """Rows under construction.

    Args:
        numbers: what formulas refer to.
    """

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self._rows: list[list[int]] = []
        self._kept: list[Any] = []  # memory and code that rows refer to

    def _row(self, *words: int) -> None:
        self._rows.append([*words, *[0] * (table.ROW_WORDS - len(words))])

    def _cell(self, value: float) -> int:
        """Returns the address of a new cell with a number."""
        cell = np.array([value], np.int64 if isinstance(value, int) else np.float64)
        self._kept.append(cell)
        return int(cell.ctypes.data)

    def _store_number(
        self, kinds: tuple[str, str], target: int, source: int, is_float: bool
    ) -> None:
        """Adds a row that stores a value; `kinds` are the `struct` letters of the number that it
        is and of the place.
        """
        match kinds, is_float:
            case (("q", "q"), False) | (("d", "d"), True):
                self._row(table.MOVE, target, source)
            case ("d", "d"), False:
                self._row(table.OPERATE, target, source, source, table.TO_FLOAT)
            case ("d", "f"), True:
                self._row(table.TO_SINGLE, target, source)
            case _:
                raise PythonOnlyError

    def _number(self, formula: Formula) -> tuple[int, bool]:
        """Adds rows that compute a formula; returns the address of its value, and whether that
        is a float.
        """
        return fold(formula, self._leaf, self._computed)

    def _leaf(self, kind: str, operand: Any) -> tuple[int, bool]:
        if kind == "value":
            if isinstance(operand, int) and not -(2**63) <= operand < 2**63:
                raise PythonOnlyError
            return self._cell(operand), isinstance(operand, float)
        cells, index, letter = self._numbers.place(kind, operand)
        if not letter:
            raise PythonOnlyError
        return cells[index:].ctypes.data, letter == "d"

    def _computed(self, sign: str, operands: Sequence[tuple[int, bool]]) -> tuple[int, bool]:
        has_float = sign == "float32" or any(is_float for _, is_float in operands)
        operation = (_FLOAT_OPERATIONS if has_float else _INT_OPERATIONS).get(sign)
        if operation is None:
            return self._of_function(sign, operands)
        addresses = [self._as_float(*operand) if has_float else operand[0] for operand in operands]
        target = self._cell(0)
        self._row(table.OPERATE, target, addresses[0], addresses[-1], operation)
        return target, sign not in _COMPARISONS and (has_float or sign == "/")

    def _of_function(self, name: str, operands: Sequence[tuple[int, bool]]) -> tuple[int, bool]:
        """Adds a row that computes a function of NumPy."""
        ufunc = FUNCTIONS.get(name)
        loop = None if ufunc is None else loop_of(ufunc)
        if loop is None:
            raise PythonOnlyError
        target = self._cell(0.0)
        words = words_of_call([self._as_float(*operand) for operand in operands], target)
        self._kept.append(words)
        self._row(table.FUNCTION, loop.address, loop.data, words.ctypes.data)
        return target, True

    def _as_float(self, address: int, is_float: bool) -> int:
        if is_float:
            return address
        target = self._cell(0.0)
        self._row(table.OPERATE, target, address, address, table.TO_FLOAT)
        return target
