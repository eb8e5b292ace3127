"""`cuda.popc`, `brev`, `clz`, `ffs`, `fma`, `cbrt` and `selp`, with the types that CUDA gives them."""

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic


@intrinsic  # type: ignore[untyped-decorator]
def popc(_context: Any, value: types.Type) -> Any:
    """The number of set bits."""
    value = types.unliteral(value)
    if not isinstance(value, types.Integer):
        return None

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return value(value), codegen


@intrinsic  # type: ignore[untyped-decorator]
def brev(_context: Any, value: types.Type) -> Any:
    """The bits in reverse order, as an unsigned integer of 32 or 64 bits."""
    value = types.unliteral(value)
    if not isinstance(value, types.Integer):
        return None
    wide = types.uint64 if value.bitwidth == 64 else types.uint32

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitreverse(args[0])

    return wide(wide), codegen


@intrinsic  # type: ignore[untyped-decorator]
def clz(_context: Any, value: types.Type) -> Any:
    """The number of zero bits above the highest set bit."""
    value = types.unliteral(value)
    if not isinstance(value, types.Integer):
        return None

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))

    return value(value), codegen


@intrinsic  # type: ignore[untyped-decorator]
def ffs(_context: Any, value: types.Type) -> Any:
    """The place of the lowest set bit, counted from 1; 0 if there is none."""
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
    """`a * b + c`, rounded once."""
    single = all(types.unliteral(kind) == types.float32 for kind in (a, b, c))
    kind = types.float32 if single else types.float64

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return kind(kind, kind, kind), codegen


@intrinsic  # type: ignore[untyped-decorator]
def cbrt(_context: Any, value: types.Type) -> Any:
    """The cube root, by the C library."""
    kind = types.float32 if types.unliteral(value) == types.float32 else types.float64
    name = "cbrtf" if kind == types.float32 else "cbrt"

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        real = args[0].type
        function = builder.module.globals.get(name) or ir.Function(builder.module, ir.FunctionType(real, [real]), name)
        return builder.call(function, args)

    return kind(kind), codegen


@intrinsic  # type: ignore[untyped-decorator]
def selp(context: Any, condition: types.Type, a: types.Type, b: types.Type) -> Any:
    """`a` where the condition holds, else `b`, without a branch."""
    kind = context.unify_types(types.unliteral(a), types.unliteral(b))
    if kind is None:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        chosen = context.cast(builder, args[0], signature.args[0], types.boolean)
        return builder.select(chosen, args[1], args[2])

    return kind(types.unliteral(condition), kind, kind), codegen
