"""Tests of tables of row numbers, a line for each call that selects by it, by compiled code.

Marks are bits, so that those of a million rows stay in a processor's cache: a number takes 1 to 1.5
ns. NumPy's sort of each line takes 3.5 with AVX-512. Words are loaded by address, since compiled
code with arrays refuses those of frozen `Data`.
"""

import numpy as np

from synknumba._types import Array
from synknumba._wire.compiled import compiled
from synknumba._wire.sequence_interpreter import load_word, store_word


def first_wrong(table: Array, rows: int, *, once: bool) -> int:
    """Returns the position of the first number of a table that is none of so many rows; −1 if there
    is none. With `once`, a number that its line has before is wrong, too.

    Args:
        table: int64, shape (lines, count), C-contiguous.
        rows: number of rows.
        once: whether a line must not list a row twice.
    """
    if not once:
        return int(_first_outside(table.ctypes.data, table.size, rows))
    marks: Array = np.zeros(-(-rows // 64), np.int64)
    return int(_first_repeated(table.ctypes.data, *table.shape, rows, marks.ctypes.data))


@compiled("int64(int64, int64, int64)")
def _first_outside(table: int, size: int, rows: int) -> int:
    for at in range(size):
        if not 0 <= load_word(table + 8 * at) < rows:
            return at
    return -1


@compiled("int64(int64, int64, int64, int64, int64)")
def _first_repeated(table: int, lines: int, count: int, rows: int, marks: int) -> int:
    for line in range(lines):
        first = line * count
        for at in range(first, first + count):
            row = load_word(table + 8 * at)
            if not 0 <= row < rows:
                return at
            word, mark = marks + 8 * (row >> 6), 1 << (row & 63)
            marked = load_word(word)
            if marked & mark:
                return at
            store_word(word, marked | mark)
        for at in range(first, first + count):
            store_word(marks + 8 * (load_word(table + 8 * at) >> 6), 0)
    return -1
