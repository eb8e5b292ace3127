"""Shifts, and `cuda.popc`, `brev`, `clz`, `ffs`, `fma`, `cbrt` and `selp`, typed as in CUDA."""

import operator
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from synknumba.simt._library.typed import Code, c_function, llvm, with_arity

# Types on which CUDA computes in float32, which represents all their values.
_SINGLE = frozenset(
    {types.float32, types.int8, types.int16, types.uint8, types.uint16, types.boolean}
)


def _real(*kinds: types.Type) -> types.Type:
    """Returns the float type in which CUDA computes on numbers of these types."""
    if _SINGLE.issuperset(map(types.unliteral, kinds)):
        return types.float32
    return types.float64


def lowest_bit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Emits the position of the lowest set bit of an integer, counted from 1; 0 if no bit is
    set.
    """
    zero, one = ir.Constant(args[0].type, 0), ir.Constant(args[0].type, 1)
    place = builder.add(builder.cttz(args[0], ir.Constant(ir.IntType(1), 0)), one)
    place = builder.select(builder.icmp_unsigned("==", args[0], zero), zero, place)
    return context.cast(builder, place, signature.args[0], signature.return_type)


def _shift_left(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Emits `value << amount`: 0 where the amount is not less than the width, as on a GPU.

    LLVM's result for such an amount is undefined. A negative amount counts as a large one.
    """
    value, amount, width = _operands(context, builder, signature, args)
    is_less = builder.icmp_unsigned("<", amount, width)
    return builder.select(is_less, builder.shl(value, amount), ir.Constant(value.type, 0))


def _shift_right(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Emits `value >> amount`: 0, or -1 of a negative value, where the amount is not less than
    the width.
    """
    value, amount, width = _operands(context, builder, signature, args)
    is_less = builder.icmp_unsigned("<", amount, width)
    if signature.return_type.signed:
        last = ir.Constant(value.type, value.type.width - 1)
        return builder.ashr(value, builder.select(is_less, amount, last))
    return builder.select(is_less, builder.lshr(value, amount), ir.Constant(value.type, 0))


def _operands(context: Any, builder: Any, signature: Any, args: Any) -> tuple[Any, Any, Any]:
    """Returns value and amount in the type of the result, and its width."""
    result = signature.return_type
    value, amount = (
        context.cast(builder, arg, kind, result)
        for arg, kind in zip(args, signature.args, strict=True)
    )
    return value, amount, ir.Constant(value.type, value.type.width)


# Emitters by operator or function of NumPy.
SHIFTS: Final[dict[Any, Code]] = {
    operator.lshift: _shift_left,
    operator.ilshift: _shift_left,
    operator.rshift: _shift_right,
    operator.irshift: _shift_right,
    np.left_shift: _shift_left,
    np.right_shift: _shift_right,
}


def _of_integer(name: str, signature: Callable[[Any], Any], code: Code) -> Any:
    """Returns an intrinsic on one integer; `signature` makes its signature from the integer's
    type.
    """

    def resolve(value: types.Type) -> Any:
        value = types.unliteral(value)
        if not isinstance(value, types.Integer):
            return None
        return signature(value), code

    return with_arity(name, 1, resolve)


def _reversed(value: types.Integer) -> Any:
    """Returns the signature of `brev`: all 64 bits of a uint64, the low 32 of any other integer,
    CUDA's result for an int64.
    """
    if value == types.uint64:
        return types.uint64(types.uint64)
    return types.uint32(types.uint32)


popc = _of_integer("popc", lambda value: value(value), llvm("ctpop"))
clz = _of_integer("clz", lambda value: value(value), llvm("ctlz", False))
ffs = _of_integer("ffs", types.uint32, lowest_bit)
brev = _of_integer("brev", _reversed, llvm("bitreverse"))


@intrinsic  # type: ignore[untyped-decorator]
def fma(_context: Any, a: types.Type, b: types.Type, c: types.Type) -> Any:
    """Returns `a * b + c`, rounded once."""
    kind = _real(a, b, c)
    return kind(kind, kind, kind), llvm("fma")


@intrinsic  # type: ignore[untyped-decorator]
def cbrt(_context: Any, value: types.Type) -> Any:
    """Returns the cube root, computed by the C library."""
    kind = _real(value)
    name = {types.float32: "cbrtf", types.float64: "cbrt"}[kind]
    return kind(kind), c_function(name)


@intrinsic  # type: ignore[untyped-decorator]
def selp(context: Any, condition: types.Type, a: types.Type, b: types.Type) -> Any:
    """Returns `a` if the condition holds, else `b`, without a branch."""
    kind = context.unify_types(types.unliteral(a), types.unliteral(b))
    if kind is None:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        is_true = context.cast(builder, args[0], signature.args[0], types.boolean)
        return builder.select(is_true, args[1], args[2])

    return kind(types.unliteral(condition), kind, kind), codegen
