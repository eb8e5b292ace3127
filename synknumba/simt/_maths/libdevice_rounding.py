"""Directed rounding of `cuda.libdevice`: `_rn` to nearest, `_rd` down, `_ru` up, `_rz` to zero.

A result is rounded to nearest first. The sign of the rounding error then decides whether to step to
the adjacent float in the requested direction. Each `_lost_*` returns a number of exactly that sign:
it computes in float64, on mantissas scaled into [0.5, 1), so that nothing under- or overflows. By
Sterbenz' and Dekker's results (Muller et al., Handbook of Floating-Point Arithmetic, 2nd ed. 2018,
sections 4.2 and 4.4) the differences are exact or at least have the right sign.
"""

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from synknumba.simt._library.typed import Code, body, strict, typed
from synknumba.simt._maths.bits import fma
from synknumba.simt._maths.rounding import FLOAT32, LOW_BITS, MODES, next_up

# Differences of binary exponents from which on the smaller term affects the result only if the
# larger one is exact.
_FAR_BELOW = 200
_FAR_ABOVE = 120


# ---- sign of the rounding error: exact result minus result rounded to nearest; an infinite result
# of finite numbers overflowed


@strict
def _lost_add(x: float, y: float, result: float) -> float:
    if not math.isfinite(result):
        return -result if math.isfinite(x) and math.isfinite(y) else 0.0
    total = x + y
    rest = y - (total - x) if abs(x) >= abs(y) else x - (total - y)
    return (total - result) or rest


@strict
def _lost_mul(x: float, y: float, result: float) -> float:
    if not math.isfinite(result):
        return -result if math.isfinite(x) and math.isfinite(y) else 0.0
    if x == 0.0 or y == 0.0:
        return 0.0
    x, x_exponent = math.frexp(x)
    y, y_exponent = math.frexp(y)
    return fma(x, y, -math.ldexp(result, -(x_exponent + y_exponent)))  # type: ignore[no-any-return]


@strict
def _lost_div(x: float, y: float, result: float) -> float:
    if x == 0.0 or y == 0.0 or not math.isfinite(x) or not math.isfinite(y):
        return 0.0
    if not math.isfinite(result):
        return -result
    x, x_exponent = math.frexp(x)
    y, y_exponent = math.frexp(y)
    lost = fma(-math.ldexp(result, y_exponent - x_exponent), y, x)
    return lost if y > 0.0 else -lost


@strict
def _lost_sqrt(x: float, result: float) -> float:
    if not (x > 0.0 and math.isfinite(x)):
        return 0.0
    x, exponent = math.frexp(x)
    if exponent % 2 != 0:
        x, exponent = 2.0 * x, exponent - 1
    result = math.ldexp(result, -(exponent // 2))
    return fma(-result, result, x)  # type: ignore[no-any-return]


@strict
def _two_sum(x: float, y: float) -> tuple[float, float]:
    """Returns the rounded sum and its rounding error (Knuth)."""
    total = x + y
    y_part = total - x
    return total, (x - (total - y_part)) + (y - y_part)


@strict
def _lost_fma(x: float, y: float, z: float, result: float) -> float:
    if not math.isfinite(result):
        return -result if math.isfinite(x) and math.isfinite(y) and math.isfinite(z) else 0.0
    if x == 0.0 or y == 0.0:
        return 0.0
    if z == 0.0:
        return _lost_mul(x, y, result)
    x, x_exponent = math.frexp(x)
    y, y_exponent = math.frexp(y)
    exponent = x_exponent + y_exponent
    distance = math.frexp(z)[1] - exponent
    if distance > _FAR_ABOVE:  # the result is z
        return x * y
    if distance < -_FAR_BELOW:
        return fma(x, y, -math.ldexp(result, -exponent)) or z
    # x * y + z - result, exactly, as a sum of four nonoverlapping terms (Shewchuk 1997,
    # "Grow-Expansion"); the largest nonzero term has its sign.
    product = x * y
    terms = fma(x, y, -product), product
    total, term0 = _two_sum(math.ldexp(z, -exponent), terms[0])
    term2, term1 = _two_sum(total, terms[1])
    total, term0 = _two_sum(-math.ldexp(result, -exponent), term0)
    total, term1 = _two_sum(total, term1)
    term3, term2 = _two_sum(total, term2)
    return term3 or term2 or term1 or term0


# ---- step to the adjacent float


@strict
def _down(result: float, lost: float) -> float:
    return -next_up(-result) if lost < 0.0 else result  # type: ignore[no-any-return]


@strict
def _up(result: float, lost: float) -> float:
    return next_up(result) if lost > 0.0 else result  # type: ignore[no-any-return]


@strict
def _to_zero(result: float, lost: float) -> float:
    if result > 0.0 and lost < 0.0:
        return -next_up(-result)  # type: ignore[no-any-return]
    return next_up(result) if result < 0.0 and lost > 0.0 else result  # type: ignore[no-any-return]


_DIRECTIONS: Final[dict[str, Any]] = {"rd": _down, "ru": _up, "rz": _to_zero}

# ---- operations rounded to nearest


def _sqrt(x: float) -> float:
    return math.sqrt(x)


def _fma(x: float, y: float, z: float) -> float:
    return fma(x, y, z)  # type: ignore[no-any-return]


def _rsqrt(x: float) -> float:
    # In float64: for every float32, rounding twice equals rounding once; a test checks all
    # mantissas near a tie.
    return 1.0 / math.sqrt(np.float64(x))


# ---- operations with directed rounding


@strict
def _is_negative(x: float) -> bool:
    return math.copysign(1.0, x) < 0.0


def _directed_add(step: Any) -> Callable[..., Any]:
    down = step is _down

    def rounded(x: float, y: float) -> Any:
        result = x + y
        if down and result == 0.0 and (_is_negative(x) or _is_negative(y)):
            return -abs(result)  # IEEE 754: x - x is -0 when rounding down
        return step(result, _lost_add(np.float64(x), np.float64(y), np.float64(result)))

    return rounded


def _directed_sub(step: Any) -> Callable[..., Any]:
    add = strict(_directed_add(step))

    def rounded(x: float, y: float) -> Any:
        return add(x, -y)

    return rounded


def _directed_mul(step: Any) -> Callable[..., Any]:
    def rounded(x: float, y: float) -> Any:
        result = x * y
        return step(result, _lost_mul(np.float64(x), np.float64(y), np.float64(result)))

    return rounded


def _directed_div(step: Any) -> Callable[..., Any]:
    def rounded(x: float, y: float) -> Any:
        result = x / y
        return step(result, _lost_div(np.float64(x), np.float64(y), np.float64(result)))

    return rounded


def _directed_rcp(step: Any) -> Callable[..., Any]:
    divide = strict(_directed_div(step))

    def rounded(x: float) -> Any:
        return divide(np.float32(1.0), x)

    return rounded


def _directed_sqrt(step: Any) -> Callable[..., Any]:
    def rounded(x: float) -> Any:
        result = math.sqrt(x)
        return step(result, _lost_sqrt(np.float64(x), np.float64(result)))

    return rounded


def _directed_fma(step: Any) -> Callable[..., Any]:
    down = step is _down

    def rounded(x: float, y: float, z: float) -> Any:
        result = fma(x, y, z)
        lost = _lost_fma(np.float64(x), np.float64(y), np.float64(z), np.float64(result))
        if (
            down
            and result == 0.0
            and lost == 0.0
            and (_is_negative(x) != _is_negative(y) or _is_negative(z))
        ):
            return -abs(result)
        return step(result, lost)

    return rounded


# ---- conversions


def _to_single(number: Any, letter: str, mode: str) -> Code:
    """Returns code that converts to float32; `number` makes the operand one of the type of
    `letter`.
    """
    if mode == "rn":
        return _nearest(np.float32, number)
    narrow = typed(f"to_float_{mode}", {f"f({letter})": FLOAT32.rounded(mode)})

    def converted(x: Any) -> Any:
        return narrow(number(x))

    return body(converted)


def _nearest(real: Any, number: Any) -> Code:
    return body(lambda x: real(number(x)))


def _long_to_double(integer: Any, mode: str) -> Code:
    """Returns code that converts an integer of 64 bits: its high and low bits are exact, and
    their sum is rounded.
    """
    if mode == "rn":
        return _nearest(np.float64, integer)
    add, low_bits = strict(_directed_add(_DIRECTIONS[mode])), integer(LOW_BITS)

    def converted(x: int) -> Any:
        low = integer(x) & low_bits
        return add(np.float64(integer(x) - low), np.float64(low))

    return body(converted)


def _arithmetic() -> dict[str, tuple[str, Code]]:
    table: dict[str, tuple[str, Code]] = {"frsqrt_rn": ("f(f)", body(_rsqrt))}
    for name, args, nearest, directed in (
        ("add", "{0},{0}", lambda x, y: x + y, _directed_add),
        ("sub", "{0},{0}", lambda x, y: x - y, _directed_sub),
        ("mul", "{0},{0}", lambda x, y: x * y, _directed_mul),
        ("div", "{0},{0}", lambda x, y: x / y, _directed_div),
        ("rcp", "{0}", lambda x: np.float32(1.0) / x, _directed_rcp),
        ("sqrt", "{0}", _sqrt, _directed_sqrt),
        ("fma", "{0},{0},{0}", _fma, _directed_fma),
    ):
        for kind in "fd":
            if kind + name == "dsub":  # Numba does not declare it
                continue
            base = {"fma": "fma" if kind == "d" else "fmaf"}.get(name, kind + name)
            signature = f"{kind}({args.format(kind)})"
            table[f"{base}_rn"] = signature, body(nearest)
            for suffix, step in _DIRECTIONS.items():
                table[f"{base}_{suffix}"] = signature, body(directed(step))
    return table


# Prefix of the name -> type of NumPy, letters of that type and of the type in the signature.
_SOURCES: Final = {
    "double": (np.float64, "d", "d"),
    "int": (np.int32, "i", "i"),
    "uint": (np.uint32, "I", "i"),
    "ll": (np.int64, "l", "l"),
    "ull": (np.uint64, "L", "l"),
}


def _conversions() -> dict[str, tuple[str, Code]]:
    table: dict[str, tuple[str, Code]] = {
        "int2double_rn": ("d(i)", _nearest(np.float64, np.int32)),
        "uint2double_rn": ("d(i)", _nearest(np.float64, np.uint32)),
    }
    for mode in MODES:
        for source, (number, letter, declared) in _SOURCES.items():
            name = f"{source}2float_{mode}"
            table[name] = f"f({declared})", _to_single(number, letter, mode)
        table[f"ll2double_{mode}"] = "d(l)", _long_to_double(np.int64, mode)
        table[f"ull2double_{mode}"] = "d(l)", _long_to_double(np.uint64, mode)
    return table


# Name -> signature, code.
ROUNDED: Final[dict[str, tuple[str, Code]]] = {**_arithmetic(), **_conversions()}
