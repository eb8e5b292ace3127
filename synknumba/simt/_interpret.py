"""The generated code as plain Python: what Numba would compile, run by the interpreter instead.

It shows whether the translation is right without waiting for a compiler; assumptions that are made for LLVM are checked here.
"""

import math
import operator
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import numpy as np
from numba.core import types
from numba.np.numpy_support import as_dtype

from synknumba.simt._atomics import ATOMICS
from synknumba.simt._build import Program
from synknumba.simt._operations import SIZES
from synknumba.simt._scope import is_njit_function
from synknumba.simt._slots import MARGIN
from synknumba.simt._storage import MAX_BLOCK, SMEM

TypeMap = Mapping[str, types.Type]


def interpreted(program: Program, argtypes: TypeMap) -> Callable[..., None]:
    """The launch function for arguments of these types: sizes of grid and block, dynamic bytes, then the arguments."""
    body = program.launch_body(argtypes)
    name = program.code.source.tree.name
    return program.define(name, [*SIZES, SMEM, *program.params], body, _namespace(program.namespace))


def _namespace(compiled: Mapping[str, Any]) -> dict[str, Any]:
    """The same names, standing for Python functions."""
    found: dict[str, Any] = {}
    for name, value in compiled.items():
        if name in _HELPERS:
            found[name] = _HELPERS[name]
        elif name.startswith("_k_slots_"):
            found[name] = lambda _memory: np.empty(MAX_BLOCK, object)
        elif name.startswith("_k_no_value_"):
            found[name] = lambda: None
        elif any(value is function for function in _ATOMICS):
            found[name] = _ATOMICS[value]
        elif is_njit_function(value) and not name.startswith("_k_all_"):
            found[name] = _python(value.py_func)
        elif isinstance(value, (types.Number, types.Boolean)):
            found[name] = np.dtype(as_dtype(value)).type
        else:
            found[name] = value
    return found


def _python(function: FunctionType) -> FunctionType:
    """A device function that was made for Numba; one of the user's own is left as it is."""
    if not any(name.startswith("_k_") for name in function.__globals__):
        return function
    scope: dict[str, Any] = {}
    made = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    own = {name: value for name, value in function.__globals__.items() if getattr(value, "py_func", None) is not function}
    scope.update(_namespace(own), **dict.fromkeys(set(function.__globals__) - set(own), made))
    return made


def _nonneg(value: Any) -> Any:
    if isinstance(value, (int, np.integer)) and value < 0:
        message = f"a value that cannot be negative is {value}"
        raise AssertionError(message)
    return value


def _assume(condition: Any) -> None:
    if not condition:
        message = "an assumption does not hold"
        raise AssertionError(message)


def _rounded(rounding: Callable[[Any], int]) -> Callable[[Any, int], int]:
    def bound(value: Any, if_nan: int) -> int:
        far = 1 << 62
        if math.isnan(value):
            return far if if_nan >= 0 else -far
        return far if value >= far else -far if value <= -far else int(rounding(value))

    return bound


def _atomic(change: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    def atomic(array: Any, index: Any, value: Any) -> Any:
        old = array[index]
        array[index] = change(old, array.dtype.type(value))
        return old

    return atomic


def _cas(array: Any, index: Any, old: Any, value: Any) -> Any:
    found = array[index]
    if found == old:
        array[index] = value
    return found


def _dtype(dtype: Any) -> np.dtype[Any]:
    return np.dtype(as_dtype(dtype) if isinstance(dtype, types.Type) else dtype)


def _slot_set(slots: Any, index: int, value: Any) -> None:
    slots[index] = value


_HELPERS: dict[str, Any] = {
    "_k_nonneg": _nonneg,
    "_k_assume": _assume,
    "_k_ceil_bound": _rounded(math.ceil),
    "_k_floor_bound": _rounded(math.floor),
    "_k_stack_array": lambda shape, dtype: np.empty(shape, _dtype(dtype)),
    "_k_sum_any_order": lambda total, value: total + type(total)(value),
    "_k_zero_like_element": lambda array: array.dtype.type(0),
    "_k_slot_get": operator.getitem,
    "_k_slot_set": _slot_set,
    "_k_shared_view": lambda memory, dtype: memory[: len(memory) // _dtype(dtype).itemsize * _dtype(dtype).itemsize].view(
        _dtype(dtype)
    ),
    "_k_empty": lambda shape, dtype: np.empty(shape, _dtype(dtype)),
    "_k_inner": lambda array: array[MARGIN:-MARGIN],
    "_k_borrowed": lambda array: array,
    "_k_keep": lambda _array: None,
}

_ATOMICS: dict[Any, Any] = {
    ATOMICS["add"]: _atomic(operator.add),
    ATOMICS["sub"]: _atomic(operator.sub),
    ATOMICS["max"]: _atomic(max),
    ATOMICS["min"]: _atomic(min),
    ATOMICS["and_"]: _atomic(operator.and_),
    ATOMICS["or_"]: _atomic(operator.or_),
    ATOMICS["xor"]: _atomic(operator.xor),
    ATOMICS["exch"]: _atomic(lambda _old, value: value),
    ATOMICS["cas"]: _cas,
}
