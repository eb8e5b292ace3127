"""Formulas of numbers in sequences: what they are made of, and how each operation computes.

A formula is a tuple that pickles: a leaf, which is one of `LEAVES` with a number or an index, or an
operation with its operands, which are formulas. `_tracing` builds them, ranks evaluate them or
make rows of native code of them, and the coordinator evaluates what it knows; all by `fold`.

    ("+", ("scalar", 0), ("*", ("step", 0), ("value", 2)))    the first scalar, plus twice the iteration
"""  # noqa: E501

import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np

from synknumba._types import shown

_T = TypeVar("_T")
Formula: TypeAlias = tuple[Any, ...]
"""("value", number), ("step", depth of the loop), ("scalar", index), ("result", slot),
("cell", index), or (operation, operand, …).
"""

LEAVES = ("value", "step", "scalar", "result", "cell")
FUNCTIONS: dict[str, np.ufunc] = {  # of one float64 or two; the last two give ints for ints
    ufunc.__name__: ufunc
    for ufunc in (
        *(np.sqrt, np.cbrt, np.exp, np.exp2, np.expm1, np.log, np.log2, np.log10, np.log1p),
        *(np.sin, np.cos, np.tan, np.arcsin, np.arccos, np.arctan, np.arctan2, np.hypot),
        *(np.sinh, np.cosh, np.tanh, np.arcsinh, np.arccosh, np.arctanh),
        *(np.minimum, np.maximum),
    )
}
_OF_INTS = {"minimum": min, "maximum": max}
# of a power of ints, which formulas compute exactly: such ints take milliseconds
_MOST_BITS = 1 << 20


def fold(
    formula: Formula, leaf: Callable[[str, Any], _T], combine: Callable[[str, list[_T]], _T]
) -> _T:
    """Returns what `combine` makes of an operation and its operands, from the leaves up.

    It recurses, two frames for each operation inside another.
    """
    kind, *operands = formula
    if kind in LEAVES:
        return leaf(kind, operands[0])
    return combine(kind, [fold(operand, leaf, combine) for operand in operands])


def computed(sign: str, operands: list[Any]) -> Any:
    """Returns what an operation gives for numbers: for floats as NumPy does, for ints exactly."""
    return OPERATORS[sign](*operands)


def _power(base: Any, exponent: Any) -> Any:
    """Returns a power, as Python computes; raises `OverflowError` for ints where that would take
    all memory and time.
    """
    are_int = isinstance(base, int) and isinstance(exponent, int)
    if are_int and (abs(base).bit_length() - 1) * exponent > _MOST_BITS:
        raise OverflowError(
            f"{shown(base)} ** {shown(exponent)} has more than {_MOST_BITS:,} bits; compute "
            f"with floats, as in 2.0 ** n"
        )
    return operator.pow(base, exponent)


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
            return numpy(as_float(left), as_float(right)).item()

    return compute


def as_float(value: Any) -> np.float64:
    """Returns a number as float64; infinity for an int beyond its range."""
    try:
        return np.float64(value)
    except OverflowError:
        return np.float64(np.inf if value > 0 else -np.inf)


def _of_floats(ufunc: np.ufunc, of_ints: Callable[..., Any] | None) -> Callable[..., Any]:
    """Returns a function of NumPy as one of float64; of ints that a formula keeps ints, as
    `of_ints` computes.
    """

    def compute(*operands: Any) -> Any:
        if of_ints is not None and all(isinstance(operand, int) for operand in operands):
            return of_ints(*operands)
        with np.errstate(all="ignore"):
            return ufunc(*map(as_float, operands)).item()

    return compute


def _comparing(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], int]:
    """Returns a comparison, 1 if it is true and else 0: of ints exactly, of others as float64."""

    def verdict(left: Any, right: Any) -> int:
        if not (isinstance(left, int) and isinstance(right, int)):
            left, right = as_float(left), as_float(right)
        return int(compare(left, right))

    return verdict


def _as_single(value: Any) -> float:
    """Returns the nearest float32, as NumPy converts what it compares with one."""
    with np.errstate(over="ignore"):
        return float(np.float32(as_float(value)))


# Python raises where NumPy has inf: for a division by 0, and a float beside an int beyond its
# range.
OPERATORS: Mapping[str, Callable[..., Any]] = {
    "+": _as_numpy(operator.add, np.add),
    "-": _as_numpy(operator.sub, np.subtract),
    "*": _as_numpy(operator.mul, np.multiply),
    "/": _as_numpy(operator.truediv, np.true_divide),
    "//": _as_numpy(operator.floordiv, np.floor_divide),
    "%": _as_numpy(operator.mod, np.remainder),
    "**": _as_numpy(_power, np.power),
    "neg": operator.neg,
    "abs": operator.abs,
    "<": _comparing(operator.lt),
    "<=": _comparing(operator.le),
    "==": _comparing(operator.eq),
    "float32": _as_single,
    **{name: _of_floats(ufunc, _OF_INTS.get(name)) for name, ufunc in FUNCTIONS.items()},
}
