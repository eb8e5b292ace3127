"""Derivatives of the functions of one to three numbers that kernels call, as text.

    exp(x)        r            r is the function's value; x, y, z are its arguments
    x ** y        y x^(y-1)    with respect to x; the second with respect to y

Numbers in the text take the type of r (`number`), so that float32 stays float32.
"""

import ast
import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numba.core import types
from numba.extending import overload

from synknumba.simt.internals import cuda_module

# slopes by the function's name in `math`
SLOPES: Final[dict[str, tuple[str, ...]]] = {
    "acos": ("-1 / sqrt((1 - x) * (1 + x))",),
    "acosh": ("1 / sqrt((x - 1) * (x + 1))",),
    "asin": ("1 / sqrt((1 - x) * (1 + x))",),
    "asinh": ("1 / sqrt(1 + x * x)",),
    "atan": ("1 / (1 + x * x)",),
    "atan2": ("y / (x * x + y * y)", "-x / (x * x + y * y)"),
    "atanh": ("1 / ((1 - x) * (1 + x))",),
    "cos": ("-sin(x)",),
    "cosh": ("sinh(x)",),
    "erf": (f"{2 / math.sqrt(math.pi)} * exp(-x * x)",),
    "erfc": (f"{-2 / math.sqrt(math.pi)} * exp(-x * x)",),
    "exp": ("r",),
    "exp2": (f"{math.log(2)} * r",),
    "expm1": ("1 + r",),
    "fabs": ("1 if x >= 0 else -1",),
    "fma": ("y", "x", "1"),
    "hypot": ("x / r", "y / r"),
    "log": ("1 / x",),
    "log10": (f"{1 / math.log(10)} / x",),
    "log1p": ("1 / (1 + x)",),
    "log2": (f"{1 / math.log(2)} / x",),
    "pow": ("0 if y == 0 else y * x ** (y - 1)", "0 if x == 0 else r * log(x)"),
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
    ast.Pow: ("{} ** {}", SLOPES["pow"]),
    ast.UAdd: ("+{}", ("1",)),
    ast.USub: ("-{}", ("-1",)),
}
# constant almost everywhere: where they jump, no slope tells it
STEPS: Final = frozenset(
    {"ceil", "fix", "floor", "heaviside", "int", "rint", "round", "sign", "trunc"}
)


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


@lru_cache(maxsize=1)
def rules() -> dict[Any, tuple[str, ...]]:
    """Slopes of the functions of Python, `math`, NumPy and CUDA that have them."""
    slopes: dict[Any, tuple[str, ...]] = {abs: SLOPES["fabs"], np.abs: SLOPES["fabs"]}
    slopes |= {pow: SLOPES["pow"], np.power: SLOPES["pow"], np.square: ("x + x",)}
    for name, slope in SLOPES.items():
        slopes.update(dict.fromkeys(_named(name), slope))
    return slopes


def _named(name: str) -> Iterator[Callable[..., Any]]:
    spellings = {name, name.replace("a", "arc", 1)}  # math.atan2, np.arctan2
    for module in (math, np, cuda_module()):
        for spelling in spellings & vars(module).keys():
            yield vars(module)[spelling]


def power(exponent: float) -> tuple[str, ...]:
    """Slope of x to a power that is a constant."""
    if exponent == 2:  # noqa: PLR2004
        return ("x + x",)
    return (f"{exponent} * x ** {exponent - 1}",)


@lru_cache(maxsize=256)
def slope_text(slope: str, names: tuple[str, ...], result: str) -> str:
    """Returns a slope as an expression of the names of arguments and of the result."""
    values = dict(zip("xyz", names, strict=False)) | {"r": result}
    return ast.unparse(_Typed(values).visit(ast.parse(slope, mode="eval")))


class _Typed(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.parse(self._names.get(node.id, f"synk_math.{node.id}"), mode="eval").body

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        text = f"synk_number({self._names['r']}, {float(node.value)})"  # type: ignore[arg-type]
        return ast.parse(text, mode="eval").body

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        if isinstance(node.op, ast.Pow) and isinstance(node.right, ast.Constant):
            node.left = self.visit(node.left)
            return node  # compilers multiply for a literal
        return self.generic_visit(node)  # type: ignore[return-value]
