"""The functions of `math` that Numba types otherwise for CUDA than for the CPU.

For CUDA `ceil`, `floor` and `trunc` of a float stay floats (of float32 a float32), and that matters: `x - math.floor(x)` in
float32 stays there, and what is too large for an int64 is not cut. `fmod`, `modf` and `remainder` Numba lacks on the CPU. All
others have the same types on both (found by comparing the two typing contexts for all functions and number types).

`round(x, n)` rounds a float32 as the float64 that it is, and whole numbers are at most 2**63.
"""

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numba.core import types
from numba.extending import intrinsic

from synknumba.simt._library.libdevice_special import SPECIAL
from synknumba.simt._library.typed import body, c_function, chosen, like, llvm


def _whole(name: str) -> Any:
    return chosen(f"math.{name}", {"f(f)": llvm(name), "d(d)": llvm(name)})


def _of_c(name: str, signature: str) -> Any:
    """Of the C library; `d` in the signature is float32 where all arguments are."""
    return chosen(f"math.{name}", {signature.replace("d", "f"): c_function(f"{name}f"), signature: c_function(name)})


# The largest power of ten that a float64 holds exactly.
_EXACT_TENS: Final = 22

# Where CUDA's conversion to int64 ends.
_MOST: Final = 2.0**63


def round_decimal(x: Any, ndigits: Any) -> Any:
    """`round(x, ndigits)` of a float64, as CUDA computes it: not with CPython's exactness."""
    if math.isinf(x) or math.isnan(x):
        return x
    power = np.power(10.0, float(min(abs(ndigits), _EXACT_TENS) if ndigits >= 0 else -ndigits))
    more = np.power(10.0, float(max(ndigits - _EXACT_TENS, 0)))
    scaled = (x * more) * power if ndigits >= 0 else x / power
    if math.isinf(scaled):
        return x
    whole = min(max(np.rint(scaled), -_MOST), _MOST) + 0.0  # an integer on a GPU: it has no negative zero
    return (whole / power) / more if ndigits >= 0 else whole * power


@intrinsic  # type: ignore[untyped-decorator]
def round_to(context: Any, x: types.Type, ndigits: types.Type) -> Any:
    """`round_decimal`, in the type that Numba gives to `round(x, ndigits)`."""
    signature = context.resolve_function_type(round, (types.unliteral(x), types.unliteral(ndigits)), {})
    if signature is None:
        return None
    wide = types.float64(types.float64, types.int64)

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x = context.cast(builder, args[0], signature.args[0], types.float64)
        rounded = _round_decimal(context, builder, wide, (x, args[1]))
        return context.cast(builder, rounded, types.float64, signature.return_type)

    return signature.return_type(signature.args[0], types.int64), code


_round_decimal = body(round_decimal)

# What kernels call -> what is called instead.
MATH: Final[dict[Callable[..., Any], Any]] = {
    math.ceil: _whole("ceil"),
    math.floor: _whole("floor"),
    math.trunc: _whole("trunc"),
    math.fmod: _of_c("fmod", "d(d,d)"),
    math.remainder: _of_c("remainder", "d(d,d)"),
    math.modf: _of_c("modf", "dd(d)"),
    math.pow: chosen(
        "math.pow",
        {
            "f(f,f)": like(math.pow),
            "f(f,i)": SPECIAL["powif"][1],
            "d(d,i)": SPECIAL["powi"][1],
            "d(d,d)": like(math.pow),
        },
    ),
}
