"""Functions of `math` that Numba types differently for CUDA and for the CPU.

On CUDA, `ceil`, `floor` and `trunc` of a float return a float of the same type. The difference is
visible: `x - math.floor(x)` in float32 stays in float32, and values too large for an int64 are not
cut. Numba lacks `fmod`, `modf` and `remainder` on the CPU. All other functions have the same types
on both targets (checked by comparing the two typing contexts for all functions and number types).

`round(x, n)` converts a float32 to float64 before rounding, and clamps the scaled value to ±2**63.
"""

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numba.core import types
from numba.extending import intrinsic

from synknumba.simt._library.typed import body, c_function, like, llvm, typed
from synknumba.simt._maths.float16 import FLOAT16
from synknumba.simt._maths.libdevice_special import SPECIAL
from synknumba.simt._maths.small_floats import in_float32


def _of_c(name: str, signature: str) -> Any:
    """Returns a C library function for float32 and float64; `d` in the signature is replaced by
    `f` for float32.
    """
    return typed(
        f"math.{name}",
        {signature.replace("d", "f"): c_function(f"{name}f"), signature: c_function(name)},
    )


# Exponent of the largest power of ten that is exact in float64.
_EXACT_TENS: Final = 22

# CUDA's conversion to int64 saturates here.
_MOST: Final = 2.0**63


def round_decimal(x: Any, ndigits: Any) -> Any:
    """Returns `round(x, ndigits)` of a float64 as CUDA computes it: by scaling, without
    CPython's correct rounding.
    """
    if math.isinf(x) or math.isnan(x):
        return x
    power = np.power(10.0, float(min(abs(ndigits), _EXACT_TENS) if ndigits >= 0 else -ndigits))
    more = np.power(10.0, float(max(ndigits - _EXACT_TENS, 0)))
    scaled = (x * more) * power if ndigits >= 0 else x / power
    if math.isinf(scaled):
        return x
    # an integer on a GPU, so without negative zero
    integer = min(max(np.rint(scaled), -_MOST), _MOST) + 0.0
    return (integer / power) / more if ndigits >= 0 else integer * power


@intrinsic  # type: ignore[untyped-decorator]
def round_to(context: Any, x: types.Type, ndigits: types.Type) -> Any:
    """Returns `round_decimal(x, ndigits)`, in the type that Numba gives to `round(x, ndigits)`."""
    signature = context.resolve_function_type(
        round, (types.unliteral(x), types.unliteral(ndigits)), {}
    )
    if signature is None:
        return None
    wide = types.float64(types.float64, types.int64)

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x = context.cast(builder, args[0], signature.args[0], types.float64)
        rounded = _round_decimal(context, builder, wide, (x, args[1]))
        return context.cast(builder, rounded, types.float64, signature.return_type)

    return signature.return_type(signature.args[0], types.int64), code


_round_decimal = body(round_decimal)

# Function called by kernels -> its replacement.
MATH: Final[dict[Callable[..., Any], Any]] = {
    **{
        getattr(math, name): typed(
            f"math.{name}",
            {"e(e)": in_float32(FLOAT16, llvm(name)), "f(f)": llvm(name), "d(d)": llvm(name)},
        )
        for name in ("ceil", "floor", "trunc")
    },
    math.fmod: _of_c("fmod", "d(d,d)"),
    math.remainder: _of_c("remainder", "d(d,d)"),
    math.modf: _of_c("modf", "dd(d)"),
    math.pow: typed(
        "math.pow",
        {
            "f(f,f)": like(math.pow),
            "f(f,i)": SPECIAL["powif"][1],
            "d(d,i)": SPECIAL["powi"][1],
            "d(d,d)": like(math.pow),
        },
    ),
}
