"""Runs the function that simt generates for a kernel in plain Python, without compiling it.

That takes a twentieth of a second where njit takes one or more, and checks what compiled code takes
for granted: that indices are not negative and assumptions hold. Memory that starts undefined is
filled with a pattern.
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import FunctionType
from typing import Any

import numpy as np
from numba import typeof, types
from numba.core.dispatcher import Dispatcher
from numba.cuda.simulator.kernelapi import FakeCUDAAtomic
from numba.np.numpy_support import as_dtype

from synknumba.simt import Kernel
from synknumba.simt._emit.build import KernelProgram
from synknumba.simt._emit.storage import SMEM
from synknumba.simt._library.atomics import ATOMICS
from synknumba.simt._library.intrinsics import FAR
from synknumba.simt._library.slots import MARGIN
from synknumba.simt._library.words import SIZES
from synknumba.simt._maths.math import MATH
from tests.conformance.simt.model import Module, with_fields

PATTERN = 0xAB
MODULE = Module((1, 1, 1), (1, 1, 1))  # for popc, fma and such


Launch = Callable[..., None]


def launches(
    kernel: Kernel,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    args: tuple[Any, ...],
    shared: int = 0,
) -> dict[str, Launch]:
    """What launches the generated function, threads forward and in reverse, with arguments of
    the types of those given.
    """
    program = KernelProgram(kernel.py_func, kernel._options)
    program._infer = _remembered(program._infer)  # inferring types takes longer than anything else
    kinds = dict(zip(program.params, map(typeof, args), strict=True))
    own_block = kernel.own_block((*grid, 1, 1)[:3], (*block, 1, 1)[:3])
    made = {}
    for reverse in (False, True):
        program.options = replace(program.options, reverse=reverse)
        body = program.launch_body(kinds, own_block)
        made["reverse" if reverse else "forward"] = launch_function(
            program, [*_unset(body), *body], grid, block, shared
        )
    return made


def _remembered(infer: Any) -> Any:
    found: list[Any] = []

    def remember(*args: Any) -> Any:
        if not found:
            found.append(infer(*args))
        return found[0]

    return remember


def _unset(body: list[ast.stmt]) -> list[ast.stmt]:
    """Sets the uniform variables to None. Numba lets code load one that has no value yet, if it
    does not use it then.
    """
    names = {
        node.id for statement in body for node in ast.walk(statement) if isinstance(node, ast.Name)
    }
    return ast.parse(
        "\n".join(f"{name} = None" for name in sorted(names) if name.endswith("__u"))
    ).body


def launch_function(
    program: KernelProgram,
    body: list[ast.stmt],
    grid: tuple[int, ...],
    block: tuple[int, ...],
    shared: int = 0,
) -> Launch:
    """What launches a function of this body, which the program has made, with arguments of the
    types that it is made for.
    """
    function = program.define(program.code.source.tree.name, [*SIZES, SMEM, *program.params], body)
    function = _in_python(function, {})
    sizes = (*(*grid, 1, 1)[:3], *(*block, 1, 1)[:3], shared)

    def launch(*args: Any) -> None:
        with np.errstate(all="ignore"):
            function(*sizes, *(with_fields(arg) for arg in args))

    return launch


def _in_python(function: FunctionType, made: dict[FunctionType, FunctionType]) -> FunctionType:
    """The function with stand-ins for everything that only compiled code can call.

    Args:
        function: made for Numba, or one of the user's own.
        made: the functions that have been done already, which may lead back to themselves.
    """
    if function not in made:
        scope: dict[str, Any] = {}
        made[function] = FunctionType(
            function.__code__, scope, function.__name__, function.__defaults__, function.__closure__
        )
        scope.update(
            {name: _stand_in(name, value, made) for name, value in function.__globals__.items()}
        )
    return made[function]


def _stand_in(name: str, value: Any, made: dict[FunctionType, FunctionType]) -> Any:
    """What a global name of the generated code stands for in Python."""
    if name in STAND_INS:
        return STAND_INS[name]
    if name.startswith("_k_slots_"):
        return lambda memory: [None] * len(memory)  # no fewer than there are threads
    if name.startswith("_k_no_value_"):
        return lambda: None
    for word, function in ATOMICS.items():
        if value is function:
            return getattr(FakeCUDAAtomic(), word)
    for function, replacement in MATH.items():
        if value is replacement:
            return function
    if type(value).__name__ == "_Intrinsic" and hasattr(MODULE, name.removeprefix("_k_")):
        return getattr(MODULE, name.removeprefix("_k_"))
    if isinstance(value, Dispatcher):
        compiled = name.startswith("_k_all_") or str(value.py_func.__module__).startswith("numba.")
        return value if compiled else _in_python(value.py_func, made)
    return as_dtype(value).type if isinstance(value, (types.Number, types.Boolean)) else value


def _undefined(shape: Any, dtype: Any) -> np.ndarray:
    made = np.empty(shape, as_dtype(dtype) if isinstance(dtype, types.Type) else dtype)
    made.view(np.uint8)[...] = PATTERN
    return with_fields(made)


def _nonneg(value: int) -> int:
    assert value >= 0, f"a value that cannot be negative is {value}"
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


def _shared_view(memory: np.ndarray, dtype: Any) -> np.ndarray:
    dtype = np.dtype(as_dtype(dtype) if isinstance(dtype, types.Type) else dtype)
    return memory[: len(memory) // dtype.itemsize * dtype.itemsize].view(dtype)


STAND_INS: Mapping[str, Any] = {
    "_k_nonneg": _nonneg,
    "_k_assume": _assume,
    "_k_ceil_bound": _bound(math.ceil),
    "_k_floor_bound": _bound(math.floor),
    "_k_stack_array": _undefined,
    "_k_empty": _undefined,
    "_k_sum_any_order": lambda total, value: total + type(total)(value),
    "_k_zero_like_element": lambda array: array.dtype.type(0),
    "_k_slot_get": operator.getitem,
    "_k_slot_set": _set,
    "_k_shared_view": _shared_view,
    "_k_inner": lambda padded: padded[MARGIN:-MARGIN],
    "_k_borrowed": lambda array: array,
    "_k_keep": lambda _: None,
    "_k_must_be_group": lambda _: None,
    "_k_stack_begins": lambda: None,
    "_k_stack_ends": lambda: False,
}
