"""Inner loops of NumPy's functions of numbers, which compiled code calls by address, for NumPy's
bits without Python.

A loop of a ufunc is a C function, loop(args, count, steps, data): the addresses of operands and
result, the number of elements, and the bytes from one to the next. `PyUFuncObject`, public in
NumPy's C API, lists a ufunc's loops in the order of `types`:

    object | nin, nout, nargs, identity (int) | loops | data of each | number of loops, reserved
    (int) | name | …
"""

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import final

import numpy as np

from synknumba._types import Array

# Words of a call: addresses of the operands and the result, the number of elements, steps. Unary
# functions use two of three.
COUNT, STEPS, _WORDS = 3, 4, 7


@final
@dataclass(frozen=True, slots=True)
class NumPyLoop:
    """The loop of one ufunc for float64: address, and address of its data."""

    address: int
    data: int


@cache
def loop_of(ufunc: np.ufunc) -> NumPyLoop | None:
    """Returns the loop of a ufunc for float64; None if the object's layout is another."""
    at = id(ufunc) + object.__basicsize__
    numbers = (ctypes.c_int * 4).from_address(at)
    loops, data = (ctypes.c_void_p * 2).from_address(at + 16)
    count, _ = (ctypes.c_int * 2).from_address(at + 32)
    signature = f"{'d' * ufunc.nin}->d"
    if [*numbers[:3], count] != [
        ufunc.nin,
        ufunc.nout,
        ufunc.nargs,
        ufunc.ntypes,
    ] or signature not in ufunc.types:
        return None
    if ctypes.c_char_p.from_address(at + 40).value != ufunc.__name__.encode():
        return None
    index = ufunc.types.index(signature)
    pointers = [
        (ctypes.c_void_p * count).from_address(start)[index] for start in (loops, data) if start
    ]
    return NumPyLoop(pointers[0], pointers[1] or 0) if len(pointers) == 2 and pointers[0] else None


def words_of_call(operands: list[int], target: int) -> Array:
    """Returns the words of a call of a loop for one element, by addresses of float64 numbers."""
    words = np.zeros(_WORDS, np.int64)
    words[: len(operands) + 1] = *operands, target
    words[COUNT], words[STEPS:] = 1, 8
    return words
