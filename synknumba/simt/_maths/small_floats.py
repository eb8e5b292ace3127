"""Floats of 16 bits on a CPU: computed in float32 and rounded once, and the functions of
`cuda.fp16` and `cuda.bf16`.

For `+ - * /` and the square root the result is correctly rounded, as float32's 24 bits are at least
2 * 11 + 2 (Figueroa, "When is double rounding innocuous?", 1995). A float64 is first rounded to
odd, after which the next rounding is correct (Boldo and Melquiond, "When double rounding is odd",
2005).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from llvmlite import ir
from numba.core import types

from synknumba.simt._library.intrinsics import call_llvm, saturated
from synknumba.simt._library.typed import Code, c_function, like, llvm
from synknumba.simt._maths.libdevice_special import SPECIAL

SINGLE: Final = ir.FloatType()
DOUBLE: Final = ir.DoubleType()


@dataclass(frozen=True, slots=True)
class Format:
    """A float of 16 bits.

    Attributes:
        kind: its Numba type.
        widen: emits the conversion to float32, which is exact: `(builder, value) -> value`.
        round: emits the conversion from float32, to the nearest, ties to even.
        from_bits: emits the value of 16 bits.
        bits: emits the bits of a value, as an integer.
    """

    kind: types.Type
    widen: Callable[[Any, Any], Any]
    round: Callable[[Any, Any], Any]
    from_bits: Callable[[Any, Any], Any]
    bits: Callable[[Any, Any], Any]

    def narrow(self, builder: Any, value: Any) -> Any:
        """Emits the conversion from float32 or float64, rounded once."""
        return self.round(builder, _to_odd(builder, value) if value.type == DOUBLE else value)


def _moved(builder: Any, bits: Any, moves: Any, *, outwards: Any) -> Any:
    """Emits the bits of a float's neighbour, away from zero or towards it, if `moves` holds;
    else its own.
    """
    one = ir.Constant(bits.type, 1)
    other = builder.select(outwards, builder.add(bits, one), builder.sub(bits, one))
    return builder.select(moves, other, bits)


def _is_even(builder: Any, bits: Any) -> Any:
    return builder.icmp_unsigned(
        "==", builder.and_(bits, ir.Constant(bits.type, 1)), ir.Constant(bits.type, 0)
    )


def _to_odd(builder: Any, value: Any) -> Any:
    """Emits the conversion of a float64 to float32 by rounding to odd: of two neighbours, the
    one whose last bit is 1.
    """
    nearest = builder.fptrunc(value, SINGLE)
    back = builder.fpext(nearest, DOUBLE)
    bits = builder.bitcast(nearest, ir.IntType(32))
    moves = builder.and_(builder.fcmp_ordered("!=", back, value), _is_even(builder, bits))
    outwards = builder.fcmp_ordered(
        "<", call_llvm(builder, "fabs", back), call_llvm(builder, "fabs", value)
    )
    return builder.bitcast(_moved(builder, bits, moves, outwards=outwards), SINGLE)


def in_float32(half: Format, code: Code) -> Code:
    """Returns code for operands and results of 16 bits, by code for float32."""

    def converted(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kinds = [
            types.float32 if kind == half.kind else kind
            for kind in (signature.return_type, *signature.args)
        ]
        wide = [
            half.widen(builder, arg) if kind == half.kind else arg
            for arg, kind in zip(args, signature.args, strict=True)
        ]
        result = code(context, builder, kinds[0](*kinds[1:]), wide)
        return half.round(builder, result) if signature.return_type == half.kind else result

    return converted


def _of_builder(name: str) -> Code:
    """Returns code that is one instruction, a method of the builder."""
    return lambda _context, builder, _signature, args: getattr(builder, name)(*args)


def _comparison(sign: str, *, unordered: bool = False) -> Code:
    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return (builder.fcmp_unordered if unordered else builder.fcmp_ordered)(sign, *args)

    return code


# Code for float32. As in Python, only `!=` holds for a NaN.
ARITHMETIC: Final = {name: _of_builder(f"f{name}") for name in ("add", "sub", "mul", "div")}
COMPARISONS: Final = {
    name: _comparison(sign, unordered=sign == "!=")
    for name, sign in {"eq": "==", "ne": "!=", "ge": ">=", "gt": ">", "le": "<=", "lt": "<"}.items()
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

    def clamped(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = code(context, builder, signature, args)
        zero, one = ir.Constant(value.type, 0.0), ir.Constant(value.type, 1.0)
        value = builder.select(builder.fcmp_ordered(">", value, zero), value, zero)
        return builder.select(builder.fcmp_ordered("<", value, one), value, one)

    return clamped


def _reciprocal(root: bool) -> Code:
    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        value = call_llvm(builder, "sqrt", args[0]) if root else args[0]
        return builder.fdiv(ir.Constant(value.type, 1.0), value)

    return code


def _extreme(name: str) -> Code:
    return lambda _context, builder, _signature, args: call_llvm(builder, name, *args)


def _is_nan(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
    return builder.fcmp_unordered("uno", args[0], args[0])


def _infinite(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
    """Emits 1 for infinity, -1 for minus infinity, else 0."""
    (value,) = args
    infinity, minus = (
        builder.fcmp_ordered("==", value, ir.Constant(value.type, sign * math.inf))
        for sign in (1, -1)
    )
    return builder.sub(builder.zext(infinity, ir.IntType(32)), builder.zext(minus, ir.IntType(32)))


def _fma(half: Format, *, least: float | None = None, most: float | None = None) -> Code:
    """Returns code for `a * b + c`, rounded once and then clamped.

    The product is exact in float64. The sum is rounded to odd: its rounding error is exact, too
    (Knuth's two-sum).
    """

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        a, b, c = (builder.fpext(half.widen(builder, arg), DOUBLE) for arg in args)
        product = builder.fmul(a, b)
        total = builder.fadd(product, c)
        of_c = builder.fsub(total, product)
        error = builder.fadd(
            builder.fsub(product, builder.fsub(total, of_c)), builder.fsub(c, of_c)
        )
        zero = ir.Constant(DOUBLE, 0.0)
        bits = builder.bitcast(total, ir.IntType(64))
        moves = builder.and_(builder.fcmp_ordered("one", error, zero), _is_even(builder, bits))
        outwards = builder.fcmp_ordered(
            ">",
            builder.fmul(error, call_llvm(builder, "copysign", ir.Constant(DOUBLE, 1.0), total)),
            zero,
        )
        total = builder.bitcast(_moved(builder, bits, moves, outwards=outwards), DOUBLE)
        if least is not None:  # keeps a NaN, as CUDA's
            total = builder.select(
                builder.fcmp_ordered("<", total, ir.Constant(DOUBLE, least)),
                ir.Constant(DOUBLE, least),
                total,
            )
        if most is not None:
            total = builder.select(
                builder.fcmp_ordered(">", total, ir.Constant(DOUBLE, most)),
                ir.Constant(DOUBLE, most),
                total,
            )
            total = builder.select(builder.fcmp_unordered("uno", total, total), zero, total)
        return half.narrow(builder, total)

    return code


# Rounding modes of conversions: to the nearest, towards zero, down, up; and LLVM's functions that
# round so to an integer.
_MODES: Final = {"rn": "roundeven", "rz": "trunc", "rd": "floor", "ru": "ceil"}

# CUDA's names of the integers, and the letters of their types in signatures.
_INTEGERS: Final = {"short": "h", "ushort": "H", "int": "i", "uint": "I", "ll": "l", "ull": "L"}
_CHARACTERS: Final = {"char": "c", "uchar": "C"}

# the bits of an integer of 64 bits that the 53 of a float64 may not hold
_LOST: Final = (1 << 11) - 1


def from_integer(context: Any, builder: Any, kind: types.Integer, value: Any) -> Any:
    """Emits the conversion of an integer to float64, exact or rounded to odd: its low bits are
    merged into one.
    """
    if kind.bitwidth == 64:
        low = ir.Constant(value.type, _LOST)
        has_low = builder.icmp_unsigned("!=", builder.and_(value, low), ir.Constant(value.type, 0))
        sticky = builder.select(
            has_low, ir.Constant(value.type, _LOST + 1), ir.Constant(value.type, 0)
        )
        merged = builder.and_(builder.or_(value, sticky), builder.not_(low))
        exact = ir.Constant(value.type, 1 << 53)
        if kind.signed:
            shifted, limit = builder.add(value, exact), ir.Constant(value.type, 1 << 54)
        else:
            shifted, limit = value, exact
        value = builder.select(builder.icmp_unsigned(">", shifted, limit), merged, value)
    return context.cast(builder, value, kind, types.float64)


def _rounded(half: Format, mode: str) -> Code:
    """Returns code that converts a number to 16 bits."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (kind,), (value,) = signature.args, args
        if isinstance(kind, types.Integer):
            value = from_integer(context, builder, kind, value)
        nearest = half.narrow(builder, value)
        if mode == "rn":
            return nearest
        back = half.widen(builder, nearest)
        back = builder.fpext(back, DOUBLE) if value.type == DOUBLE else back
        bits = half.bits(builder, nearest)
        is_negative = builder.icmp_signed("<", bits, ir.Constant(bits.type, 0))
        if mode == "rz":
            moves = builder.fcmp_ordered(
                ">", call_llvm(builder, "fabs", back), call_llvm(builder, "fabs", value)
            )
            outwards = ir.Constant(ir.IntType(1), 0)
        else:
            moves = builder.fcmp_ordered("<" if mode == "ru" else ">", back, value)
            outwards = is_negative if mode == "rd" else builder.not_(is_negative)
        return half.from_bits(builder, _moved(builder, bits, moves, outwards=outwards))

    return code


def _whole(half: Format, mode: str) -> Code:
    """Returns code that converts to an integer: saturated, and 0 for a NaN, as on a GPU."""

    def code(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        result = ir.IntType(signature.return_type.bitwidth)
        whole = call_llvm(builder, _MODES[mode], half.widen(builder, args[0]))
        return saturated(builder, whole, result, signed=signature.return_type.signed)

    return code


def functions(half: Format, name: str) -> dict[str, tuple[str, Code]]:
    """Returns the signature and code of the functions of a format, by CUDA's names without leading
    underscores.

    Args:
        half: the format, `e` in the signatures.
        name: its name in the names of conversions, "half" or "bfloat16".
    """
    table: dict[str, tuple[str, Code]] = dict(_computed(half))
    table |= dict(_converted(half, name))
    return table


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
    for name, sign in {
        "eq": "==",
        "ne": "!=",
        "ge": ">=",
        "gt": ">",
        "le": "<=",
        "lt": "<",
    }.items():
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
        yield entry(f"h{name}", "e(e,e)", _extreme(f"{name}num"))
        yield entry(f"h{name}_nan", "e(e,e)", _extreme(f"{name}imum"))
    yield entry("hisnan", "b(e)", _is_nan)
    yield entry("hisinf", "i(e)", _infinite)
    yield "hfma", ("e(e,e,e)", _fma(half))
    yield "hfma_sat", ("e(e,e,e)", _fma(half, least=0.0, most=1.0))
    yield "hfma_relu", ("e(e,e,e)", _fma(half, least=0.0))


def _converted(half: Format, name: str) -> Iterator[tuple[str, tuple[str, Code]]]:
    yield (
        f"{name}2float",
        ("f(e)", lambda _context, builder, _signature, args: half.widen(builder, args[0])),
    )
    for kind, letter in {"float": "f", "double": "d"}.items():
        yield f"{kind}2{name}", (f"e({letter})", _rounded(half, "rn"))
    for mode in _MODES:
        yield f"float2{name}_{mode}", ("e(f)", _rounded(half, mode))
        for kind, letter in _INTEGERS.items():
            yield f"{kind}2{name}_{mode}", (f"e({letter})", _rounded(half, mode))
            yield f"{name}2{kind}_{mode}", (f"{letter}(e)", _whole(half, mode))
    for kind, letter in _CHARACTERS.items():
        yield f"{name}2{kind}_rz", (f"{letter}(e)", _whole(half, "rz"))
    for kind in ("short", "ushort"):
        letter = _INTEGERS[kind]
        yield (
            f"{name}_as_{kind}",
            (
                f"{letter}(e)",
                lambda _context, builder, _signature, args: half.bits(builder, args[0]),
            ),
        )
        yield (
            f"{kind}_as_{name}",
            (
                f"e({letter})",
                lambda _context, builder, _signature, args: half.from_bits(builder, args[0]),
            ),
        )
