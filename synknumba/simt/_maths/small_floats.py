"""Floats of 16 bits on a CPU: computed in float32 and rounded once, and the functions of
`cuda.fp16` and `cuda.bf16`.

For `+ - * /` and the square root the result is correctly rounded, as float32's 24 bits are at least
2 * 11 + 2 (Figueroa, "When is double rounding innocuous?", 1995).
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

from llvmlite import ir
from numba.core import types

from synknumba.simt._library.intrinsics import call_llvm
from synknumba.simt._library.typed import Code, c_function, like, llvm, plain
from synknumba.simt._maths.libdevice_special import SPECIAL
from synknumba.simt._maths.rounding import DOUBLE, MODES, Format, to_integer, to_odd


def in_float32(half: Format, code: Code) -> Code:
    """Returns code for operands and results of 16 bits, by code for float32."""

    def converted(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = {half.kind: types.float32}
        values = list(args)
        for position, kind in enumerate(signature.args):
            if kind == half.kind:
                values[position] = half.widen(builder, args[position])
        result = wide.get(signature.return_type, signature.return_type)
        kinds = [wide.get(kind, kind) for kind in signature.args]
        value = code(context, builder, result(*kinds), values)
        if signature.return_type == half.kind:
            return half.narrow(builder, value)
        return value

    return converted


def _of_builder(name: str) -> Code:
    """Returns code that is one instruction, a method of the builder."""
    return plain(lambda builder, *args: getattr(builder, name)(*args))


def _comparison(sign: str, *, unordered: bool = False) -> Code:
    @plain
    def code(builder: Any, *args: Any) -> Any:
        if unordered:
            return builder.fcmp_unordered(sign, *args)
        return builder.fcmp_ordered(sign, *args)

    return code


# Code for float32. As in Python, only `!=` holds for a NaN.
ARITHMETIC: Final = {name: _of_builder(f"f{name}") for name in ("add", "sub", "mul", "div")}
_SIGNS: Final = {"eq": "==", "ne": "!=", "ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
COMPARISONS: Final = {
    name: _comparison(sign, unordered=sign == "!=") for name, sign in _SIGNS.items()
}
NEGATED: Final = _of_builder("fneg")
ABSOLUTE: Final = llvm("fabs")
MATH: Final[dict[str, Code]] = {
    **{name: like(getattr(math, name)) for name in ("sin", "cos", "log", "log10", "exp", "tanh")},
    **{name: llvm(name) for name in ("sqrt", "log2", "ceil", "floor", "trunc")},
    "exp2": c_function("exp2f"),
}


# ---- the functions of cuda.fp16 and cuda.bf16


def _clamped(code: Code) -> Code:
    """Returns code whose result is saturated to [0, 1], and 0 for a NaN."""
    return lambda context, builder, signature, args: _saturate(
        builder, code(context, builder, signature, args)
    )


def _saturate(builder: Any, value: Any) -> Any:
    zero, one = ir.Constant(value.type, 0.0), ir.Constant(value.type, 1.0)
    value = builder.select(builder.fcmp_ordered(">", value, zero), value, zero)
    return builder.select(builder.fcmp_ordered("<", value, one), value, one)


def _relu(builder: Any, value: Any) -> Any:
    """Emits the value, or 0 if it is negative; keeps a NaN, as CUDA's."""
    zero = ir.Constant(value.type, 0.0)
    return builder.select(builder.fcmp_ordered("<", value, zero), zero, value)


def _reciprocal(root: bool) -> Code:
    @plain
    def code(builder: Any, value: Any) -> Any:
        if root:
            value = call_llvm(builder, "sqrt", value)
        return builder.fdiv(ir.Constant(value.type, 1.0), value)

    return code


@plain
def _is_nan(builder: Any, value: Any) -> Any:
    return builder.fcmp_unordered("uno", value, value)


@plain
def _infinite(builder: Any, value: Any) -> Any:
    """Emits 1 for infinity, -1 for minus infinity, else 0."""
    infinity, minus = (
        builder.fcmp_ordered("==", value, ir.Constant(value.type, sign * math.inf))
        for sign in (1, -1)
    )
    return builder.sub(builder.zext(infinity, ir.IntType(32)), builder.zext(minus, ir.IntType(32)))


def _fma(half: Format, finish: Callable[[Any, Any], Any] = lambda _builder, value: value) -> Code:
    """Returns code for `a * b + c`, rounded once after `finish`.

    The product is exact in float64. The sum is rounded to odd: its rounding error is exact, too
    (Knuth's two-sum).
    """

    @plain
    def code(builder: Any, *args: Any) -> Any:
        a, b, c = (builder.fpext(half.widen(builder, arg), DOUBLE) for arg in args)
        product = builder.fmul(a, b)
        total = builder.fadd(product, c)
        of_c = builder.fsub(total, product)
        error = builder.fadd(
            builder.fsub(product, builder.fsub(total, of_c)), builder.fsub(c, of_c)
        )
        zero, one = ir.Constant(DOUBLE, 0.0), ir.Constant(DOUBLE, 1.0)
        signed_error = builder.fmul(error, call_llvm(builder, "copysign", one, total))
        outwards = builder.fcmp_ordered(">", signed_error, zero)
        inexact = builder.fcmp_ordered("one", error, zero)
        total = to_odd(builder, total, inexact, outwards=outwards)
        return half.narrow(builder, finish(builder, total))

    return code


# CUDA's names of the integers, and the letters of their types in signatures.
_INTEGERS: Final = {"short": "h", "ushort": "H", "int": "i", "uint": "I", "ll": "l", "ull": "L"}
_CHARACTERS: Final = {"char": "c", "uchar": "C"}


def _whole(half: Format, mode: str) -> Code:
    """Returns code that converts to an integer: saturated, and 0 for a NaN, as on a GPU."""

    def code(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind, value = signature.return_type, half.widen(builder, args[0])
        integer = ir.IntType(kind.bitwidth)
        return to_integer(builder, value, integer, MODES[mode], signed=kind.signed)

    return code


def functions(half: Format, name: str) -> dict[str, tuple[str, Code]]:
    """Returns the signature and code of the functions of a format, by CUDA's names without leading
    underscores.

    Args:
        half: the format, `e` in the signatures.
        name: its name in the names of conversions, "half" or "bfloat16".
    """
    return dict([*_computed(half), *_converted(half, name)])


def _computed(half: Format) -> Iterator[tuple[str, tuple[str, Code]]]:
    def entry(name: str, signature: str, code: Code) -> tuple[str, tuple[str, Code]]:
        return name, (signature, in_float32(half, code))

    for name, code in ARITHMETIC.items():
        yield entry(f"h{name}", "e(e,e)", code)
        if name != "div":
            yield entry(f"h{name}_rn", "e(e,e)", code)
            yield entry(f"h{name}_sat", "e(e,e)", _clamped(code))
    for name, code in COMPARISONS.items():
        yield entry(f"h{name}", "b(e,e)", code)
    for name, sign in _SIGNS.items():
        yield entry(f"h{name}u", "b(e,e)", _comparison(sign, unordered=True))
    for name, code in MATH.items():
        yield entry(f"h{name}", "e(e)", code)
    yield entry("htanh_approx", "e(e)", MATH["tanh"])
    yield entry("hneg", "e(e)", NEGATED)
    yield entry("habs", "e(e)", ABSOLUTE)
    yield entry("hrint", "e(e)", llvm("rint"))
    yield entry("hexp10", "e(e)", SPECIAL["exp10f"][1])
    yield entry("hrcp", "e(e)", _reciprocal(root=False))
    yield entry("hrsqrt", "e(e)", _reciprocal(root=True))
    for name in ("max", "min"):  # the number of a number and a NaN; with `_nan`, the NaN
        yield entry(f"h{name}", "e(e,e)", llvm(f"{name}num"))
        yield entry(f"h{name}_nan", "e(e,e)", llvm(f"{name}imum"))
    yield entry("hisnan", "b(e)", _is_nan)
    yield entry("hisinf", "i(e)", _infinite)
    yield "hfma", ("e(e,e,e)", _fma(half))
    yield "hfma_sat", ("e(e,e,e)", _fma(half, _saturate))
    yield "hfma_relu", ("e(e,e,e)", _fma(half, _relu))


def _converted(half: Format, name: str) -> Iterator[tuple[str, tuple[str, Code]]]:
    yield f"{name}2float", ("f(e)", plain(half.widen))
    for kind, letter in {"float": "f", "double": "d"}.items():
        yield f"{kind}2{name}", (f"e({letter})", half.rounded("rn"))
    for mode in MODES:
        yield f"float2{name}_{mode}", ("e(f)", half.rounded(mode))
        for kind, letter in _INTEGERS.items():
            yield f"{kind}2{name}_{mode}", (f"e({letter})", half.rounded(mode))
            yield f"{name}2{kind}_{mode}", (f"{letter}(e)", _whole(half, mode))
    for kind, letter in _CHARACTERS.items():
        yield f"{name}2{kind}_rz", (f"{letter}(e)", _whole(half, "rz"))
    for kind in ("short", "ushort"):
        letter = _INTEGERS[kind]
        yield f"{name}_as_{kind}", (f"{letter}(e)", plain(half.bits))
        yield f"{kind}_as_{name}", (f"e({letter})", plain(half.from_bits))
