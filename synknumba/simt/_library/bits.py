"""`cuda.popc`, `brev`, `clz`, `ffs`, `fma`, `cbrt` and `selp`, typed as in CUDA."""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

# Types on which CUDA computes in float32, which represents all their values.
_SINGLE = frozenset({types.float32, types.int8, types.int16, types.uint8, types.uint16, types.boolean})


def _real(*kinds: types.Type) -> types.Type:
    """Returns the float type in which CUDA computes on numbers of these types."""
    return types.float32 if all(types.unliteral(kind) in _SINGLE for kind in kinds) else types.float64


@intrinsic  # type: ignore[untyped-decorator]
def popc(_context: Any, value: types.Type) -> Any:
    """Returns the number of set bits."""
    value = types.unliteral(value)
    if not isinstance(value, types.Integer):
        return None

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return value(value), codegen


@intrinsic  # type: ignore[untyped-decorator]
def brev(_context: Any, value: types.Type) -> Any:
    """Reverses the bits: all 64 of a uint64, the low 32 of any other integer, which is CUDA's result for an int64."""
    value = types.unliteral(value)
    if not isinstance(value, types.Integer):
        return None
    wide = types.uint64 if value == types.uint64 else types.uint32

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitreverse(args[0])

    return wide(wide), codegen


@intrinsic  # type: ignore[untyped-decorator]
def clz(_context: Any, value: types.Type) -> Any:
    """Returns the number of zero bits above the highest set bit."""
    value = types.unliteral(value)
    if not isinstance(value, types.Integer):
        return None

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))

    return value(value), codegen


@intrinsic  # type: ignore[untyped-decorator]
def ffs(_context: Any, value: types.Type) -> Any:
    """Returns the position of the lowest set bit, counted from 1; 0 if no bit is set."""
    value = types.unliteral(value)
    if not isinstance(value, types.Integer):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero, one = ir.Constant(args[0].type, 0), ir.Constant(args[0].type, 1)
        place = builder.add(builder.cttz(args[0], ir.Constant(ir.IntType(1), 0)), one)
        place = builder.select(builder.icmp_unsigned("==", args[0], zero), zero, place)
        return context.cast(builder, place, signature.args[0], signature.return_type)

    return types.uint32(value), codegen


@intrinsic  # type: ignore[untyped-decorator]
def fma(_context: Any, a: types.Type, b: types.Type, c: types.Type) -> Any:
    """Returns `a * b + c`, rounded once."""
    kind = _real(a, b, c)

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return kind(kind, kind, kind), codegen


@intrinsic  # type: ignore[untyped-decorator]
def cbrt(_context: Any, value: types.Type) -> Any:
    """Returns the cube root, computed by the C library."""
    kind = _real(value)
    name = "cbrtf" if kind == types.float32 else "cbrt"

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        real = args[0].type
        return builder.call(cgutils.insert_pure_function(builder.module, ir.FunctionType(real, [real]), name), args)

    return kind(kind), codegen


@intrinsic  # type: ignore[untyped-decorator]
def selp(context: Any, condition: types.Type, a: types.Type, b: types.Type) -> Any:
    """Returns `a` if the condition holds, else `b`, without a branch."""
    kind = context.unify_types(types.unliteral(a), types.unliteral(b))
    if kind is None:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        chosen = context.cast(builder, args[0], signature.args[0], types.boolean)
        return builder.select(chosen, args[1], args[2])

    return kind(types.unliteral(condition), kind, kind), codegen
