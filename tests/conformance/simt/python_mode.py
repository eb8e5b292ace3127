"""Runs the function that simt generates for a kernel in plain Python, without compiling it.

That takes a twentieth of a second where njit takes one or more, and checks what compiled code takes for granted: that indices
are not negative and assumptions hold. Memory that starts undefined is filled with a pattern.
"""

import ast
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from types import FunctionType
from typing import Any

import numpy as np
from numba import typeof, types
from numba.core.dispatcher import Dispatcher
from numba.cuda.simulator.kernelapi import FakeCUDAAtomic
from numba.np.numpy_support import as_dtype

from synknumba.simt import Kernel
from synknumba.simt._build import Program
from synknumba.simt._intrinsics import FAR
from synknumba.simt._operations import SIZES
from synknumba.simt._slots import MARGIN
from synknumba.simt._storage import SMEM
from tests.conformance.simt.model import Module, with_fields

PATTERN = 0xAB
MODULE = Module((1, 1, 1), (1, 1, 1))  # for popc, fma and such


Launch = Callable[..., None]


def launches(
    kernel: Kernel, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared: int = 0
) -> dict[str, Launch]:
    """What launches the generated function, threads forward and in reverse, with arguments of the types of those given."""
    program = Program(kernel.py_func, kernel._options)
    program._infer = _remembered(program._infer)  # inferring types takes longer than anything else
    sizes = (*(*grid, 1, 1)[:3], *(*block, 1, 1)[:3], shared)
    return {"reverse" if reverse else "forward": _launch(program, sizes, args, reverse=reverse) for reverse in (False, True)}


def _remembered(infer: Any) -> Any:
    found: list[Any] = []

    def remember(*args: Any) -> Any:
        if not found:
            found.append(infer(*args))
        return found[0]

    return remember


def _launch(program: Program, sizes: tuple[int, ...], args: tuple[Any, ...], *, reverse: bool) -> Launch:
    program.options = replace(program.options, reverse=reverse)
    kinds = dict(zip(program.params, (typeof(arg) for arg in args), strict=True))
    body = program.launch_body(kinds)
    body = [*_unset(body), *body]
    function = _in_python(program.define(program.code.source.function.__name__, [*SIZES, SMEM, *program.params], body))

    def launch(*given: Any) -> None:
        with np.errstate(all="ignore"):
            function(*sizes, *(with_fields(arg) for arg in given))

    return launch


def _unset(body: list[ast.stmt]) -> list[ast.stmt]:
    """Sets the uniform variables to None. Numba lets code load one that has no value yet, if it does not use it then."""
    names = {node.id for statement in body for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return ast.parse("\n".join(f"{name} = None" for name in sorted(names) if name.endswith("__u"))).body


def _in_python(function: FunctionType) -> FunctionType:
    """The function with stand-ins for everything that only compiled code can call."""
    scope = dict(function.__globals__)
    plain = FunctionType(function.__code__, scope, function.__name__, function.__defaults__)
    for name, value in function.__globals__.items():
        if name in STAND_INS:
            scope[name] = STAND_INS[name]
        elif name.startswith("_k_atomic_"):
            scope[name] = getattr(FakeCUDAAtomic(), name.removeprefix("_k_atomic_"))
        elif name.startswith("_k_slots_"):
            scope[name] = lambda _: defaultdict(lambda: None)
        elif name.startswith("_k_no_value_"):
            scope[name] = lambda: None
        elif type(value).__name__ == "_Intrinsic" and hasattr(MODULE, name.removeprefix("_k_")):
            scope[name] = getattr(MODULE, name.removeprefix("_k_"))
        elif isinstance(value, Dispatcher) and not (
            name.startswith("_k_all_") or value.py_func.__module__.startswith("numba.")
        ):
            scope[name] = plain if value.py_func is function else _in_python(value.py_func)
        elif isinstance(value, types.Number):
            scope[name] = as_dtype(value).type
    return plain


def _undefined(shape: Any, dtype: Any) -> np.ndarray:
    made = np.empty(shape, as_dtype(dtype) if isinstance(dtype, types.Type) else dtype)
    made.view(np.uint8)[...] = PATTERN
    return with_fields(made)


def _nonneg(value: int) -> int:
    assert value >= 0, f"an index is {value}"
    return value


def _assume(condition: Any) -> None:
    assert condition, "an assumption does not hold"


def _bound(rounded: Any) -> Any:
    def bound(value: Any, if_nan: int) -> int:
        if math.isnan(value):
            return FAR if if_nan >= 0 else -FAR
        return int(max(-FAR, min(FAR, rounded(value) if math.isfinite(value) else value)))

    return bound


def _set(slots: Any, index: int, value: Any) -> None:
    slots[index] = value


STAND_INS = {
    "_k_nonneg": _nonneg,
    "_k_assume": _assume,
    "_k_ceil_bound": _bound(math.ceil),
    "_k_floor_bound": _bound(math.floor),
    "_k_stack_array": _undefined,
    "_k_empty": _undefined,
    "_k_sum_any_order": lambda total, value: total + value,
    "_k_zero_like_element": lambda array: array.dtype.type(0),
    "_k_slot_get": lambda slots, index: slots[index],
    "_k_slot_set": _set,
    "_k_shared_view": lambda memory, dtype: memory.view(as_dtype(dtype) if isinstance(dtype, types.Type) else dtype),
    "_k_inner": lambda padded: padded[MARGIN:-MARGIN],
    "_k_borrowed": lambda array: array,
    "_k_keep": lambda _: None,
}
