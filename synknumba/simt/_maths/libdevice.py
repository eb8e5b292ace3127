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
_UNARY_MATH: Final = (*_ANGLES, *_POWERS)
_BINARY_MATH: Final = ("atan2", "copysign", "hypot", "pow")

# Functions of the C library, whose float32 names end in f, like CUDA's; parameters and result, of
# which {0} is the float.
_OF_C: Final[tuple[tuple[tuple[str, ...], str, str], ...]] = (
    (("cbrt", "exp2", "j0", "j1", "tgamma", "y0", "y1"), "{0}", "{0}"),
    (("fmod", "nextafter", "remainder"), "{0},{0}", "{0}"),
    (("jn", "yn"), "i,{0}", "{0}"),
    (("ldexp",), "{0},i", "{0}"),
    (("frexp",), "{0}", "{0}i"),
    (("modf",), "{0}", "{0}{0}"),
)

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


def _signature(kind: str, params: str, result: str = "{0}") -> str:
    return f"{result}({params})".format(kind)


def _entries() -> dict[str, tuple[str, Code]]:
    """Returns the signature and code emitter of every function, by name."""
    table: dict[str, tuple[str, Code]] = {**BITS, **ROUNDED, **SPECIAL}
    for kind, suffix in (("d", ""), ("f", "f")):
        for name in _UNARY_MATH:
            table[name + suffix] = _signature(kind, "{0}"), like(getattr(math, name))
        for name in _BINARY_MATH:
            table[name + suffix] = _signature(kind, "{0},{0}"), like(getattr(math, name))
        for names, params, result in _OF_C:
            for name in names:
                signature = _signature(kind, params, result)
                table[name + suffix] = signature, c_function(name + suffix)
        for name in _WHOLE:
            table[name + suffix] = _signature(kind, "{0}"), llvm(name)
        table["scalbn" + suffix] = table["ldexp" + suffix]
        table["fma" + suffix] = _signature(kind, "{0},{0},{0}"), llvm("fma")
    table |= {f"fast_{name}": table[name] for name in _FAST}
    table["fast_fdividef"] = "f(f,f)", like(operator.truediv)
    return table


LIBDEVICE: Final = Library("libdevice", _entries)
