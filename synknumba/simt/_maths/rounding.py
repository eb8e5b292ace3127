"""Rounding of floats and integers, in CUDA's modes: to the nearest with ties to even (`rn`), to
zero (`rz`), down (`rd`), up (`ru`).

A number is rounded to the nearest float first; comparing that with the number tells whether to step
to its neighbour. A float64 that goes to 16 bits is first rounded to odd, to a float32, after which
the next rounding is correct (Boldo and Melquiond, "When double rounding is odd", 2005).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from synknumba.simt._library.intrinsics import call_llvm, float_bits
from synknumba.simt._library.typed import Code

SINGLE: Final = ir.FloatType()
DOUBLE: Final = ir.DoubleType()

# LLVM's functions that round to a whole number.
MODES: Final = {"rn": "rint", "rz": "trunc", "rd": "floor", "ru": "ceil"}


@dataclass(frozen=True, slots=True)
class Format:
    """A float of at most 32 bits.

    Attributes:
        kind: its Numba type.
        widen: emits the conversion to float32, which is exact: `(builder, value) -> value`.
        narrow: emits the conversion from float32 or float64, rounded once, to the nearest.
        from_bits: emits the value of an integer's bits.
        bits: emits the bits of a value, as an integer.
    """

    kind: types.Type
    widen: Callable[[Any, Any], Any]
    narrow: Callable[[Any, Any], Any]
    from_bits: Callable[[Any, Any], Any]
    bits: Callable[[Any, Any], Any]

    def rounded(self, mode: str) -> Code:
        """Returns code that converts a float or an integer to this format."""

        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            (kind,), (value,) = signature.args, args
            if isinstance(kind, types.Integer):
                value = from_integer(context, builder, kind, value)
            nearest = self.narrow(builder, value)
            if mode == "rn":
                return nearest
            back = self.widen(builder, nearest)
            if value.type == DOUBLE:
                back = builder.fpext(back, DOUBLE)
            bits = self.bits(builder, nearest)
            is_negative = builder.icmp_signed("<", bits, ir.Constant(bits.type, 0))
            if mode == "rz":
                outwards = ir.Constant(ir.IntType(1), 0)
                moves = _is_nearer_to_zero(builder, value, back)
            elif mode == "ru":
                outwards = builder.not_(is_negative)
                moves = builder.fcmp_ordered("<", back, value)
            else:
                outwards = is_negative
                moves = builder.fcmp_ordered(">", back, value)
            return self.from_bits(builder, _neighbour(builder, bits, moves, outwards=outwards))

        return code


FLOAT32: Final = Format(
    types.float32,
    widen=lambda _builder, value: value,
    narrow=lambda builder, value: builder.fptrunc(value, SINGLE),
    from_bits=lambda builder, bits: builder.bitcast(bits, SINGLE),
    bits=float_bits,
)


def to_integer(builder: Any, value: Any, integer: Any, rounding: str, *, signed: bool) -> Any:
    """Emits the conversion of a float to an integer type: the nearest in range, 0 for a NaN.

    `rounding` is LLVM's function that rounds to a whole number.
    """
    name = "fptoui.sat"
    if signed:
        name = "fptosi.sat"
    return call_llvm(builder, name, call_llvm(builder, rounding, value), result=integer)


# the bits of an integer of 64 bits that the 53 of a float64 may not hold
LOW_BITS: Final = (1 << 11) - 1


def from_integer(context: Any, builder: Any, kind: types.Integer, value: Any) -> Any:
    """Emits the conversion of an integer to float64, exact or rounded to odd: its low bits are
    merged into one.
    """
    if kind.bitwidth == 64:
        zero, low = ir.Constant(value.type, 0), ir.Constant(value.type, LOW_BITS)
        has_low = builder.icmp_unsigned("!=", builder.and_(value, low), zero)
        sticky = builder.select(has_low, ir.Constant(value.type, LOW_BITS + 1), zero)
        merged = builder.and_(builder.or_(value, sticky), builder.not_(low))
        exact = ir.Constant(value.type, 1 << 53)
        if kind.signed:
            shifted, limit = builder.add(value, exact), ir.Constant(value.type, 1 << 54)
        else:
            shifted, limit = value, exact
        value = builder.select(builder.icmp_unsigned(">", shifted, limit), merged, value)
    return context.cast(builder, value, kind, types.float64)


def to_single(builder: Any, value: Any) -> Any:
    """Emits the conversion of a float64 to float32 by rounding to odd; a float32 is left."""
    if value.type == SINGLE:
        return value
    nearest = builder.fptrunc(value, SINGLE)
    back = builder.fpext(nearest, DOUBLE)
    inexact = builder.fcmp_ordered("!=", back, value)
    return to_odd(builder, nearest, inexact, outwards=_is_nearer_to_zero(builder, back, value))


def to_odd(builder: Any, nearest: Any, inexact: Any, *, outwards: Any) -> Any:
    """Emits a result rounded to odd: of two neighbours, the one whose last bit is 1.

    `outwards`: whether the exact result is farther from zero than the nearest float.
    """
    bits = float_bits(builder, nearest)
    last = builder.and_(bits, ir.Constant(bits.type, 1))
    is_even = builder.icmp_unsigned("==", last, ir.Constant(bits.type, 0))
    moved = _neighbour(builder, bits, builder.and_(inexact, is_even), outwards=outwards)
    return builder.bitcast(moved, nearest.type)


def _is_nearer_to_zero(builder: Any, a: Any, b: Any) -> Any:
    return builder.fcmp_ordered("<", call_llvm(builder, "fabs", a), call_llvm(builder, "fabs", b))


def _neighbour(builder: Any, bits: Any, moves: Any, *, outwards: Any) -> Any:
    """Emits the bits of a float's neighbour, away from zero or towards it, if `moves` holds;
    else its own.
    """
    step = builder.select(outwards, ir.Constant(bits.type, 1), ir.Constant(bits.type, -1))
    return builder.select(moves, builder.add(bits, step), bits)


@intrinsic  # type: ignore[untyped-decorator]
def next_up(_context: Any, value: types.Type) -> Any:
    """Returns the next larger float."""
    if not isinstance(value, types.Float):
        return None

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        bits = float_bits(builder, args[0])
        one, zero = ir.Constant(bits.type, 1), ir.Constant(bits.type, 0)
        is_positive = builder.icmp_signed(">=", bits, zero)
        always = ir.Constant(ir.IntType(1), 1)
        moved = _neighbour(builder, bits, always, outwards=is_positive)
        is_zero = builder.icmp_unsigned("==", builder.shl(bits, one), zero)
        return builder.bitcast(builder.select(is_zero, one, moved), args[0].type)

    return value(value), codegen
