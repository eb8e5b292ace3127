"""The functions of `math` that Numba types otherwise for CUDA than for the CPU.

For CUDA `ceil`, `floor` and `trunc` of a float stay floats (of float32 a float32), and that matters: `x - math.floor(x)` in
float32 stays there, and what is too large for an int64 is not cut. `fmod`, `modf` and `remainder` Numba lacks on the CPU. All
others have the same types on both (found by comparing the two typing contexts for all functions and number types).
"""

import math
from collections.abc import Callable
from typing import Any, Final

from synknumba.simt._libdevice_special import SPECIAL
from synknumba.simt._typed import c_function, chosen, like, llvm


def _whole(name: str) -> Any:
    return chosen(f"math.{name}", {"f(f)": llvm(name), "d(d)": llvm(name)})


def _of_c(name: str, signature: str) -> Any:
    """Of the C library; `d` in the signature is float32 where all arguments are."""
    return chosen(f"math.{name}", {signature.replace("d", "f"): c_function(f"{name}f"), signature: c_function(name)})


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
