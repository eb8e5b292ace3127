"""`cuda.atomic.*` in a kernel that runs in Python.

One thread runs at a time, so an atomic is a read, a change and a write. As on a GPU the value is converted to the array's dtype
first, and the old element is returned.
"""

import math
import operator
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from synknumba.simt._debugger.arithmetic import convert
from synknumba.simt._debugger.arrays import Array, is_outside, nothing


def _inc(old: Any, most: Any) -> Any:
    return old * 0 if old >= most else old + old.dtype.type(1)


def _dec(old: Any, most: Any) -> Any:
    return most if old == 0 or old > most else old - old.dtype.type(1)


def _isnan(value: Any) -> bool:
    return isinstance(value, np.floating) and math.isnan(value)


def _nanmax(old: Any, value: Any) -> Any:
    return old if _isnan(value) else value if _isnan(old) or old < value else old


def _nanmin(old: Any, value: Any) -> Any:
    return old if _isnan(value) else value if _isnan(old) or old > value else old


# (old element, value) -> new element
_CHANGES: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "max": lambda old, value: value if old < value else old,
    "min": lambda old, value: value if old > value else old,
    "nanmax": _nanmax,
    "nanmin": _nanmin,
    "and_": operator.and_,
    "or_": operator.or_,
    "xor": operator.xor,
    "inc": _inc,
    "dec": _dec,
    "exch": lambda _old, value: value,
}


def _element(array: Any, index: Any, change: Callable[[Any], Any]) -> Any:
    """Changes an element and returns what it was."""
    if not isinstance(array, Array):
        message = f"cuda.atomic needs an array, not a {type(array).__name__}"
        raise TypeError(message)
    if is_outside(array, index):
        array.memory.watch.outside(array, index, "atomic")
        return nothing(array.dtype)
    old = np.ndarray.__getitem__(array, index)
    if isinstance(old, np.ndarray):
        message = f"cuda.atomic needs {array.ndim} integer indices for {array.memory.name}, got {index!r}"
        raise TypeError(message)
    array.memory.watch.atomic(array, index)
    np.ndarray.__setitem__(array, index, change(old))
    return old


def _make(name: str) -> Callable[[Any, Any, Any], Any]:
    change = _CHANGES[name]

    def atomic(ary: Any, idx: Any, val: Any) -> Any:
        return _element(ary, idx, lambda old: change(old, convert(val, type(old))))

    return atomic


def _swap(array: Any, index: Any, expected: Any, value: Any) -> Any:
    return _element(array, index, lambda old: convert(value, type(old)) if old == convert(expected, type(old)) else old)


class Atomics:
    """Stands for `cuda.atomic`."""

    def __init__(self) -> None:
        for name in _CHANGES:
            setattr(self, name, _make(name))

    def cas(self, ary: Any, idx: Any, old: Any, val: Any) -> Any:
        """Stores the value where the element equals `old`."""
        return _swap(ary, idx, old, val)

    def compare_and_swap(self, ary: Any, old: Any, val: Any) -> Any:
        """`cas` on the array's first element."""
        return _swap(ary, (0,) * ary.ndim, old, val)


ATOMIC_NAMES: Final = (*_CHANGES, "cas", "compare_and_swap")
