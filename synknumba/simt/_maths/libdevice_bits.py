"""Functions of `cuda.libdevice` on integers and on the bits of floats.

Unsigned numbers are passed in signed types, bit for bit, as in Numba's signatures of libdevice. The
Python bodies compute in int64; their results are truncated to the width of the result type.
"""

from typing import Any, Final

from llvmlite import ir

from synknumba.simt._library.intrinsics import float_bits
from synknumba.simt._library.typed import Code, body, llvm, plain
from synknumba.simt._maths.bits import lowest_bit
from synknumba.simt._maths.rounding import MODES, to_integer

_LOW32 = 0xFFFFFFFF
_LOW24 = 0xFFFFFF
_INFINITIES = {32: 0xFF << 23, 64: 0x7FF << 52}  # bits of infinity, by width


def _byte_perm(x: int, y: int, selector: int) -> int:
    words = (x & _LOW32) | (y << 32)
    result = 0
    for place in range(4):
        byte = (selector >> (4 * place)) & 7
        result |= ((words >> (8 * byte)) & 0xFF) << (8 * place)
    return result


def _high_half(*, signed: bool) -> Code:
    """Returns code for the upper half of the double-width product of two integers."""

    @plain
    def code(builder: Any, x: Any, y: Any) -> Any:
        wide, extend = ir.IntType(2 * x.type.width), builder.zext
        if signed:
            extend = builder.sext
        product = builder.mul(extend(x, wide), extend(y, wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, x.type.width)), x.type)

    return code


def _choose(sign: str, *, signed: bool) -> Code:
    """Returns code that selects the first argument if the comparison holds, else the second."""

    @plain
    def code(builder: Any, *args: Any) -> Any:
        compare = builder.icmp_unsigned
        if signed:
            compare = builder.icmp_signed
        return builder.select(compare(sign, *args), *args)

    return code


def _reinterpret(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return builder.bitcast(args[0], context.get_value_type(signature.return_type))


def _word(shift: int) -> Code:
    """Returns code that extracts 32 bits of a float64, starting at bit `shift`."""

    @plain
    def code(builder: Any, value: Any) -> Any:
        bits = builder.bitcast(value, ir.IntType(64))
        return builder.trunc(builder.lshr(bits, ir.Constant(bits.type, shift)), ir.IntType(32))

    return code


@plain
def _join(builder: Any, high: Any, low: Any) -> Any:
    wide = ir.IntType(64)
    shifted = builder.shl(builder.zext(high, wide), ir.Constant(wide, 32))
    return builder.bitcast(builder.or_(shifted, builder.zext(low, wide)), ir.DoubleType())


def _class(sign: str) -> Code:
    """Returns code that compares a float's magnitude with infinity, on its bits, which fast-math
    does not affect.
    """

    @plain
    def code(builder: Any, value: Any) -> Any:
        bits = float_bits(builder, value)
        infinity = ir.Constant(bits.type, _INFINITIES[bits.type.width])
        magnitude = builder.and_(bits, ir.Constant(bits.type, (1 << (bits.type.width - 1)) - 1))
        return builder.zext(builder.icmp_unsigned(sign, magnitude, infinity), ir.IntType(32))

    return code


@plain
def _signbit(builder: Any, value: Any) -> Any:
    bits = float_bits(builder, value)
    sign = builder.lshr(bits, ir.Constant(bits.type, bits.type.width - 1))
    if bits.type.width == 32:
        return sign
    return builder.trunc(sign, ir.IntType(32))


def _whole(rounding: str, *, signed: bool) -> Code:
    """Returns code that rounds a float to an integer; values out of range saturate.

    NaN becomes 0 if both types have 32 bits, else the integer with only its highest bit set (PTX
    ISA, instruction `cvt`).
    """

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (value,), integer = args, context.get_value_type(signature.return_type)
        number = to_integer(builder, value, integer, rounding, signed=signed)
        if value.type == ir.FloatType() and integer.width == 32:
            return number
        highest = ir.Constant(integer, 1 << (integer.width - 1))
        is_nan = _class(">")(context, builder, signature, args)
        return builder.select(builder.trunc(is_nan, ir.IntType(1)), highest, number)

    return code


def _conversions() -> dict[str, tuple[str, Code]]:
    """Returns the conversions of floats to integers, in all modes."""
    table = {}
    for mode, rounding in MODES.items():
        for real in ("float", "double"):
            for integer in ("int", "ll"):
                signature = f"{integer[0]}({real[0]})"
                table[f"{real}2{integer}_{mode}"] = signature, _whole(rounding, signed=True)
                table[f"{real}2u{integer}_{mode}"] = signature, _whole(rounding, signed=False)
    return table


# Name -> signature, code.
BITS: Final[dict[str, tuple[str, Code]]] = {
    "abs": ("i(i)", body(lambda x: x if x >= 0 else -x)),
    "llabs": ("l(l)", body(lambda x: x if x >= 0 else -x)),
    "brev": ("i(i)", llvm("bitreverse")),
    "brevll": ("l(l)", llvm("bitreverse")),
    "clz": ("i(i)", llvm("ctlz", False)),
    "clzll": ("i(l)", llvm("ctlz", False)),
    "popc": ("i(i)", llvm("ctpop")),
    "popcll": ("i(l)", llvm("ctpop")),
    "ffs": ("i(i)", lowest_bit),
    "ffsll": ("i(l)", lowest_bit),
    "byte_perm": ("i(i,i,i)", body(_byte_perm)),
    "hadd": ("i(i,i)", body(lambda x, y: (x + y) >> 1)),
    "rhadd": ("i(i,i)", body(lambda x, y: (x + y + 1) >> 1)),
    "uhadd": ("i(i,i)", body(lambda x, y: ((x & _LOW32) + (y & _LOW32)) >> 1)),
    "urhadd": ("i(i,i)", body(lambda x, y: ((x & _LOW32) + (y & _LOW32) + 1) >> 1)),
    "mul24": (
        "i(i,i)",
        body(
            lambda x, y: (
                (((x & _LOW24) ^ 0x800000) - 0x800000) * (((y & _LOW24) ^ 0x800000) - 0x800000)
            )
        ),
    ),
    "umul24": ("i(i,i)", body(lambda x, y: (x & _LOW24) * (y & _LOW24))),
    "sad": ("i(i,i,i)", body(lambda x, y, z: abs(x - y) + z)),
    "usad": ("i(i,i,i)", body(lambda x, y, z: abs((x & _LOW32) - (y & _LOW32)) + z)),
    "mulhi": ("i(i,i)", _high_half(signed=True)),
    "mul64hi": ("l(l,l)", _high_half(signed=True)),
    "umulhi": ("i(i,i)", _high_half(signed=False)),
    "umul64hi": ("l(l,l)", _high_half(signed=False)),
    "max": ("i(i,i)", _choose(">", signed=True)),
    "min": ("i(i,i)", _choose("<", signed=True)),
    "llmax": ("l(l,l)", _choose(">", signed=True)),
    "llmin": ("l(l,l)", _choose("<", signed=True)),
    "umax": ("i(i,i)", _choose(">", signed=False)),
    "umin": ("i(i,i)", _choose("<", signed=False)),
    "ullmax": ("l(l,l)", _choose(">", signed=False)),
    "ullmin": ("l(l,l)", _choose("<", signed=False)),
    "float_as_int": ("i(f)", _reinterpret),
    "int_as_float": ("f(i)", _reinterpret),
    "double_as_longlong": ("l(d)", _reinterpret),
    "longlong_as_double": ("d(l)", _reinterpret),
    "double2hiint": ("i(d)", _word(32)),
    "double2loint": ("i(d)", _word(0)),
    "hiloint2double": ("d(i,i)", _join),
    "isnanf": ("i(f)", _class(">")),
    "isnand": ("i(d)", _class(">")),
    "isinff": ("i(f)", _class("==")),
    "isinfd": ("i(d)", _class("==")),
    "finitef": ("i(f)", _class("<")),
    "isfinited": ("i(d)", _class("<")),
    "signbitf": ("i(f)", _signbit),
    "signbitd": ("i(d)", _signbit),
    "llrint": ("l(d)", _whole("rint", signed=True)),
    "llrintf": ("l(f)", _whole("rint", signed=True)),
    "llround": ("l(d)", _whole("round", signed=True)),
    "llroundf": ("l(f)", _whole("round", signed=True)),
    **_conversions(),
}
