"""Derivatives of the functions of one to three numbers that kernels call, as text.

    exp(x)        r            r is the function's value; x, y, z are its arguments
    x ** y        y x^(y-1)    with respect to x; the second with respect to y

Numbers in the text take the type of r (`number`), so that float32 stays float32.
"""

import ast
import builtins
import math
import re
from functools import cache
from typing import Any, Final

import numpy as np
from numba.core import types
from numba.extending import overload

from synknumba.simt.internals import cuda_module

_SIGN = ("1 if x >= 0 else -1",)
_POWER = "0 if y == 0 else y * x ** (y - 1)", "0 if x == 0 else r * log(x)"
# slopes by the function's name
SLOPES: Final[dict[str, tuple[str, ...]]] = {
    "abs": _SIGN,
    "absolute": _SIGN,
    "acos": ("-1 / sqrt((1 - x) * (1 + x))",),
    "acosh": ("1 / sqrt((x - 1) * (x + 1))",),
    "asin": ("1 / sqrt((1 - x) * (1 + x))",),
    "asinh": ("1 / sqrt(1 + x * x)",),
    "atan": ("1 / (1 + x * x)",),
    "atan2": ("y / (x * x + y * y)", "-x / (x * x + y * y)"),
    "atanh": ("1 / ((1 - x) * (1 + x))",),
    "cos": ("-sin(x)",),
    "cosh": ("sinh(x)",),
    "degrees": (f"{180 / math.pi}",),
    "erf": (f"{2 / math.sqrt(math.pi)} * exp(-x * x)",),
    "erfc": (f"{-2 / math.sqrt(math.pi)} * exp(-x * x)",),
    "exp": ("r",),
    "exp2": (f"{math.log(2)} * r",),
    "expm1": ("1 + r",),
    "fabs": _SIGN,
    "fma": ("y", "x", "1"),
    "hypot": ("x / r", "y / r"),
    "log": ("1 / x",),
    "log10": (f"{1 / math.log(10)} / x",),
    "log1p": ("1 / (1 + x)",),
    "log2": (f"{1 / math.log(2)} / x",),
    "power": _POWER,
    "square": ("x + x",),
    "pow": _POWER,
    "radians": (f"{math.pi / 180}",),
    "sin": ("cos(x)",),
    "sinh": ("cosh(x)",),
    "sqrt": ("1 / (r + r)",),
    "tan": ("1 + r * r",),
    "tanh": ("(1 - r) * (1 + r)",),
}
OPERATORS: Final[dict[type[ast.AST], tuple[str, tuple[str, ...]]]] = {
    ast.Add: ("{} + {}", ("1", "1")),
    ast.Sub: ("{} - {}", ("1", "-1")),
    ast.Mult: ("{} * {}", ("y", "x")),
    ast.Div: ("{} / {}", ("1 / y", "-r * (1 / y)")),
    ast.Pow: ("{} ** {}", _POWER),
    ast.UAdd: ("+{}", ("1",)),
    ast.USub: ("-{}", ("-1",)),
}
# constant almost everywhere: where they jump, no slope tells it
STEPS: Final = frozenset({"ceil", "floor", "rint", "round", "sign", "trunc"})

# names, and numbers but for exponents: compilers multiply for those that are literals
_WORD = re.compile(r"[a-z]\w*|(?<!\*\* )(?<!\*\* -)(?<![\w.])\d[\d.]*(?:e[-+]?\d+)?")


def number(like: Any, value: float) -> Any:
    """Returns a value in the floating-point type of another number; of an integer as float64.

    >>> number(np.float32(2), 0.5).dtype
    dtype('float32')
    """
    return type(like)(value) if isinstance(like, np.floating) else float(value)


@overload(number, inline="always", strict=False)
def _compiled_number(like: Any, value: Any) -> Any:
    kind = like if isinstance(like, types.Float) else types.float64
    return lambda like, value: kind(value)


@cache
def rules() -> dict[Any, tuple[str, ...]]:
    """Slopes of the functions of Python, `math`, NumPy and CUDA that have them."""
    slopes = {}
    for module in (builtins, math, np, cuda_module()):
        for name, slope in SLOPES.items():
            for spelling in (name, name.replace("a", "arc", 1)):  # math.atan2, np.arctan2
                slopes[getattr(module, spelling, name)] = slope
    return slopes


def power(exponent: float) -> tuple[str, ...]:
    """Slope of x to a power that is a constant."""
    if exponent == 2:
        return ("x + x",)
    return (f"{exponent} * x ** {exponent - 1}",)


def slope_text(slope: str, names: tuple[str, ...], result: str) -> str:
    """Returns a slope as an expression of the names of arguments and of the result."""
    words = {"if": "if", "else": "else", "r": result, **dict(zip("xyz", names, strict=False))}

    def word(match: re.Match[str]) -> str:
        text = match[0]
        if text[0].isdigit():
            return f"synk_number({result}, {float(text)})"
        return words.get(text, f"synk_math.{text}")

    return _WORD.sub(word, slope)
