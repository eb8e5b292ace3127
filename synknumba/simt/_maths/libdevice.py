"""`cuda.libdevice`, NVIDIA's mathematical library for kernels, implemented by the C library and
LLVM.

The signatures are those of Numba's declarations (`numba.cuda.libdevicefuncs`). The `fast_…`
functions are computed like the accurate ones: on a GPU they are approximations, and no program
relies on their errors.
"""

import math
import operator
from typing import Final

from synknumba.simt._library.typed import Code, Library, c_function, like, llvm
from synknumba.simt._maths.libdevice_bits import BITS
from synknumba.simt._maths.libdevice_rounding import ROUNDED
from synknumba.simt._maths.libdevice_special import SPECIAL

# Functions that Numba supports on both targets, under CUDA's names.
_ANGLES: Final = (
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cos",
    "cosh",
    "sin",
    "sinh",
    "tan",
    "tanh",
)
_POWERS: Final = (
    "erf",
    "erfc",
    "exp",
    "expm1",
    "fabs",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "sqrt",
)
_UNARY_MATH: Final = {name: getattr(math, name) for name in (*_ANGLES, *_POWERS)}
_BINARY_MATH: Final = {name: getattr(math, name) for name in ("atan2", "copysign", "hypot", "pow")}

# Functions of the C library. Its float32 names end in f, like CUDA's.
_UNARY_C: Final = ("cbrt", "exp2", "j0", "j1", "tgamma", "y0", "y1")
_BINARY_C: Final = ("fmod", "nextafter", "remainder")

# Functions of LLVM that round to an integer, under CUDA's names.
_WHOLE: Final = ("ceil", "floor", "nearbyint", "rint", "round", "trunc")

# Approximations on a GPU; all in float32.
_FAST: Final = (
    "cosf",
    "exp10f",
    "expf",
    "log10f",
    "log2f",
    "logf",
    "powf",
    "sincosf",
    "sinf",
    "tanf",
)


def _entries() -> dict[str, tuple[str, Code]]:
    """Returns the signature and code emitter of every function, by name."""
    table: dict[str, tuple[str, Code]] = {**BITS, **ROUNDED, **SPECIAL}
    for kind, suffix in (("d", ""), ("f", "f")):
        one, two = f"{kind}({kind})", f"{kind}({kind},{kind})"
        table |= {name + suffix: (one, like(function)) for name, function in _UNARY_MATH.items()}
        table |= {name + suffix: (two, like(function)) for name, function in _BINARY_MATH.items()}
        table |= {name + suffix: (one, c_function(name + suffix)) for name in _UNARY_C}
        table |= {name + suffix: (two, c_function(name + suffix)) for name in _BINARY_C}
        table |= {name + suffix: (one, llvm(name)) for name in _WHOLE}
        table |= {
            name + suffix: (f"{kind}(i,{kind})", c_function(name + suffix)) for name in ("jn", "yn")
        }
        table |= {
            name + suffix: (f"{kind}({kind},i)", c_function("ldexp" + suffix))
            for name in ("ldexp", "scalbn")
        }
        table["fma" + suffix] = f"{kind}({kind},{kind},{kind})", llvm("fma")
        table["frexp" + suffix] = f"{kind}i({kind})", c_function("frexp" + suffix)
        table["modf" + suffix] = f"{kind}{kind}({kind})", c_function("modf" + suffix)
    table |= {f"fast_{name}": table[name] for name in _FAST}
    table["fast_fdividef"] = "f(f,f)", like(operator.truediv)
    return table


LIBDEVICE: Final = Library("libdevice", _entries)
