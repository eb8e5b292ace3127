"""Operations of an instrumented thread: barriers and collectives, arithmetic that ends it, arrays
of its own and of its block, and the launch that runs it.
"""

import operator
from typing import Any, Final

from llvmlite import ir
from numba.core import cgutils, errors, types
from numba.core.imputils import impl_ret_borrowed
from numba.core.typing.npydecl import parse_dtype
from numba.extending import intrinsic

from synknumba.simt._checker import layout
from synknumba.simt._checker.emitting import (
    INDEX,
    apply,
    constant,
    fails,
    get_word,
    parts_of,
    put_word,
    resolved,
    running,
    state_word,
)
from synknumba.simt._checker.integer_code import I64, word
from synknumba.simt._checker.runtime import call
from synknumba.simt._library.intrinsics import borrowed_array, c_array, float_bits, literal_shape
from synknumba.simt._library.synchronisation import COLLECTIVES
from synknumba.simt._library.typed import emitted, with_arity

_I1: Final = ir.IntType(1)
_I8: Final = ir.IntType(8)


# ---- waiting


@emitted("void(int64)")
def note(builder: Any, site: Any) -> None:
    """Records where the thread is."""
    put_word(builder, running(builder), layout.SITE, site)


@emitted("void()")
def fence(builder: Any) -> None:
    """Counts a call of `threadfence`."""
    place = word(builder, running(builder), layout.STAMP)
    stamp = builder.load(place)
    low = builder.and_(builder.add(stamp, constant(1)), constant(0xFFFF))
    builder.store(builder.or_(builder.and_(stamp, constant(~0xFFFF)), low), place)


@emitted("void(int64)")
def set_mask(builder: Any, mask: Any) -> None:
    """Sets the lane mask of the next warp barrier."""
    put_word(builder, running(builder), layout.MASK, mask)


@emitted("void(int64, int64)")
def barrier(builder: Any, kind: Any, place: Any) -> None:
    """Waits for other threads; `kind` is the position in `KINDS`, `place` the number of the
    operation in the code.
    """
    call(builder, "wait", layout.WAITING, kind, place)


def _bits(context: Any, builder: Any, kind: types.Type, value: Any) -> Any:
    """Emits the bits of a number as an int64."""
    if isinstance(kind, types.Boolean):
        return builder.zext(value, I64)
    if isinstance(kind, types.Float):
        bits = float_bits(builder, value)
        if kind.bitwidth < 64:
            bits = builder.zext(bits, I64)
        return bits
    return context.cast(builder, value, kind, types.int64)


def _number(context: Any, builder: Any, kind: types.Type, bits: Any) -> Any:
    """Emits the number of a type with these bits."""
    if isinstance(kind, types.Boolean):
        return builder.trunc(bits, _I1)
    if isinstance(kind, types.Float):
        if kind.bitwidth < 64:
            bits = builder.trunc(bits, ir.IntType(kind.bitwidth))
        return builder.bitcast(bits, context.get_value_type(kind))
    return context.cast(builder, bits, types.int64, kind)


# Types of an operand that other threads read, by the number that a thread stores.
OPERAND_TYPES: Final = (
    types.boolean, types.int8, types.int16, types.int32, types.int64, types.uint8, types.uint16,
    types.uint32, types.uint64,
    types.float32, types.float64,
)  # fmt: skip


def collective(kind: int, path: str) -> Any:
    """Returns the intrinsic of a collective: its parameters, then the number of the operation in
    the code.
    """
    operation = COLLECTIVES[path]

    def resolve(*params: types.Type) -> Any:
        *kinds, place = map(types.unliteral, params)
        if not all(isinstance(part, (types.Integer, types.Boolean, types.Float)) for part in kinds):
            return None
        exchanged = types.int64
        if operation.exchanged:
            exchanged = kinds[operation.params.index(operation.exchanged)]
        if exchanged not in OPERAND_TYPES:
            return None
        result = operation.result_type(kinds)
        types_of = {"predicate": types.boolean, "value": exchanged}
        passed = [types_of.get(name, types.int64) for name in operation.params]

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            me = running(builder)
            number = OPERAND_TYPES.index(types_of.get(operation.exchanged, exchanged))
            put_word(builder, me, layout.TYPE, constant(number))
            operand = layout.OPERANDS
            for name, part, value in zip(operation.params, passed, args[:-1], strict=True):
                bits = _bits(context, builder, part, value)
                if name == "mask":
                    put_word(builder, me, layout.MASK, bits)
                else:
                    put_word(builder, me, operand, bits)
                    operand += 1
            call(builder, "wait", layout.WAITING, kind, args[-1])
            answers = []
            for position, part in enumerate(parts_of(result)):
                bits = get_word(builder, me, layout.ANSWERS + position)
                answers.append(_number(context, builder, part, bits))
            if isinstance(result, types.BaseTuple):
                return context.make_tuple(builder, result, answers)
            return answers[0]

        return result(*passed, place), codegen

    return with_arity(path, len(operation.params) + 1, resolve)


@intrinsic  # type: ignore[untyped-decorator]
def here(_context: Any, value: types.Type, site: types.Type) -> Any:
    """Returns the value, and records where the thread is."""
    value = types.unliteral(value)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        put_word(builder, running(builder), layout.SITE, args[1])
        return impl_ret_borrowed(context, builder, signature.return_type, args[0])

    return value(value, types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def no_array(_context: Any, value: types.Type) -> Any:
    """Returns the value; typing fails for an array or a record, whose elements would be accessed
    unseen.
    """
    value = types.unliteral(value)
    if isinstance(value, (types.Array, types.Record)):
        raise errors.NumbaTypeError(f"{value} in an operation that accesses its elements unseen")
    return value(value), lambda context, builder, signature, args: impl_ret_borrowed(
        context, builder, signature.return_type, args[0]
    )


@intrinsic  # type: ignore[untyped-decorator]
def assigned(_context: Any, value: types.Type, is_assigned: types.Type, site: types.Type) -> Any:
    """Returns the value of a variable; if it is not assigned a stand-in, or if it is no number,
    the thread ends.
    """
    value = types.unliteral(value)
    is_number = isinstance(value, (types.Number, types.Boolean))
    is_number &= not isinstance(value, types.Complex)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = cgutils.alloca_once_value(builder, args[0])
        with builder.if_then(builder.not_(args[1]), likely=False):
            key = builder.or_(get_word(builder, running(builder), layout.KEY), args[2])
            call(builder, "report", layout.UNSET, 0, 0, 0, key, layout.READ, 0)
            if is_number:
                stand_in = state_word(builder, layout.STAND_IN)
                builder.store(context.cast(builder, stand_in, types.int64, value), place)
            else:
                call(builder, "wait", layout.FAILED, 0, 0)
        return impl_ret_borrowed(context, builder, signature.return_type, builder.load(place))

    return value(value, types.boolean, types.int64), codegen


def _division(function: Any) -> Any:
    def divide(context: Any, left: types.Type, right: types.Type, site: types.Type) -> Any:
        left, right = types.unliteral(left), types.unliteral(right)
        signature = resolved(context, function, left, right)

        def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            if isinstance(signature.return_type, types.Integer) and isinstance(right, INDEX):
                zero = ir.Constant(args[1].type, 0)
                fails(builder, builder.icmp_signed("==", args[1], zero), layout.DIVISION, args[2])
            return apply(context, builder, function, signature, (left, right), args[:2])

        return signature.return_type(left, right, site), codegen

    divide.__name__ = divide.__qualname__ = function.__name__
    return intrinsic(divide)


floordiv, mod = _division(operator.floordiv), _division(operator.mod)


@intrinsic  # type: ignore[untyped-decorator]
def to_int(context: Any, value: types.Type, site: types.Type) -> Any:
    """Returns `int(value)`; the thread ends if the value is NaN or infinite."""
    value = types.unliteral(value)
    signature = resolved(context, int, value)

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        if isinstance(value, types.Float):
            fails(builder, builder.fcmp_unordered("uno", args[0], args[0]), layout.NAN, args[1])
            difference = builder.fsub(args[0], args[0])
            is_infinite = builder.fcmp_unordered("uno", difference, difference)
            fails(builder, is_infinite, layout.INFINITY, args[1])
        return apply(context, builder, int, signature, (value,), args[:1])

    return signature.return_type(value, site), codegen


# ---- memory


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def shared_array(_context: Any, number: types.Type, shape: types.Type, dtype: types.Type) -> Any:
    """Returns the block's shared array with this number; of shape 0, all dynamic shared memory."""
    dims, element = literal_shape(shape), parse_dtype(dtype)
    if dims is None or element is None:
        return None
    kind = types.Array(element, len(dims), "C")

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        state = call(builder, "state")
        offsets = get_word(builder, state, layout.SHARED_OFFSETS)
        address = builder.add(
            get_word(builder, state, layout.SHARED),
            get_word(builder, offsets, args[0]),
        )
        sizes = [constant(dim) for dim in dims]
        if dims == [0]:
            itemsize = context.get_abi_sizeof(context.get_data_type(element))
            sizes = [
                builder.sdiv(get_word(builder, state, layout.DYNAMIC_BYTES), constant(itemsize))
            ]
        return c_array(context, builder, kind, address, sizes)

    return kind(number, shape, dtype), codegen


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def local_array(_context: Any, offset: types.Type, shape: types.Type, dtype: types.Type) -> Any:
    """Returns a new local array of the thread, at an offset into its local memory."""
    dims, element = literal_shape(shape), parse_dtype(dtype)
    if dims is None or element is None:
        return None
    kind = types.Array(element, len(dims), "C")
    fill = layout.BYTE
    if isinstance(element, (types.Float, types.Complex)):
        fill = layout.FLOAT_BYTE

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        me = running(builder)
        count = 1
        for dim in dims:
            count *= dim
        nbytes = constant(count * context.get_abi_sizeof(context.get_data_type(element)))
        address = builder.add(get_word(builder, me, layout.LOCALS), args[0])
        written = builder.add(get_word(builder, me, layout.LOCALS_WRITTEN), args[0])
        byte = builder.trunc(state_word(builder, fill), _I8)
        for start, value in ((address, byte), (written, ir.Constant(_I8, 0))):
            cgutils.memset(builder, builder.inttoptr(start, _I8.as_pointer()), nbytes, value)
        return c_array(context, builder, kind, address, [constant(dim) for dim in dims])

    return kind(types.int64, shape, dtype), codegen


# ---- the launch


def _without_owner(context: Any, builder: Any, kind: types.Type, value: Any) -> Any:
    """Emits an argument without reference counts: a thread that ends early would never give its
    references back.
    """
    if isinstance(kind, types.Array):
        return borrowed_array(context, builder, kind, value)
    if isinstance(kind, types.BaseTuple):
        for number, part in enumerate(kind.types):
            new = _without_owner(context, builder, part, builder.extract_value(value, number))
            value = builder.insert_value(value, new, number)
    return value


@intrinsic  # type: ignore[untyped-decorator]
def run(context: Any, thread: types.Type, args: types.Type) -> Any:
    """Runs the threads of blocks until Python is needed; returns why. `thread` is the code of
    one thread.
    """
    if not isinstance(thread, types.Dispatcher) or not isinstance(args, types.BaseTuple):
        return None
    kinds = (*[types.int64] * 13, *args.types)
    signature = thread.get_call_type(context, kinds, {})

    def codegen(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        packed = cgutils.alloca_once_value(
            builder, _without_owner(context, builder, args, values[1])
        )
        state = call(builder, "state")
        put_word(builder, state, layout.ARGUMENTS, builder.ptrtoint(packed, I64))
        entry = _coroutine(context, builder, thread, signature, args)
        why = call(builder, "advance", builder.ptrtoint(entry, I64))
        with builder.if_then(
            builder.icmp_signed("==", why, constant(layout.HAS_RAISED)), likely=False
        ):
            me = running(builder)
            convention = context.call_conv
            code = builder.trunc(get_word(builder, me, layout.CODE), ir.IntType(32))
            place = convention._get_excinfo_argument(builder.function)  # noqa: SLF001
            information = builder.inttoptr(
                get_word(builder, me, layout.CODE + 1), place.type.pointee
            )
            convention.return_status_propagate(
                builder,
                convention._get_return_status(builder, code, information),  # noqa: SLF001
            )
        return why

    return types.int64(thread, args), codegen


def _coroutine(
    context: Any, builder: Any, thread: Any, signature: Any, args: types.BaseTuple
) -> Any:
    """Returns the C function that runs threads one after another on a stack of its own."""
    compiled = thread.dispatcher.overloads[tuple(signature.args)]
    context.add_linking_libs([compiled.library])
    half = ir.IntType(32)
    module = builder.module
    entry = ir.Function(
        module, ir.FunctionType(ir.VoidType(), [half, half]), module.get_unique_name("coroutine")
    )
    entry.linkage = "internal"
    inside = ir.IRBuilder(entry.append_basic_block("entry"))
    loop = entry.append_basic_block("loop")
    high, low = (inside.zext(part, I64) for part in entry.args)
    me = inside.or_(inside.shl(high, constant(32)), low)
    inside.branch(loop)
    inside.position_at_end(loop)
    state = call(inside, "state")
    x, y, z = (get_word(inside, me, layout.INDEX + axis) for axis in range(3))
    sizes = [get_word(inside, state, layout.SIZES + number) for number in range(6)]
    bx, by, _, gx, gy, _ = sizes
    block = get_word(inside, state, layout.BLOCK)
    rows, column = inside.udiv(block, gx), inside.urem(block, gx)
    indices = [column, inside.urem(rows, gy), inside.udiv(rows, gy)]
    linear = inside.add(x, inside.mul(bx, inside.add(y, inside.mul(by, z))))
    where = inside.inttoptr(
        get_word(inside, state, layout.ARGUMENTS),
        context.get_value_type(args).as_pointer(),
    )
    packed = inside.load(where)
    arguments = [inside.extract_value(packed, number) for number in range(len(args))]
    values = [x, y, z, *indices, *sizes, linear, *arguments]
    status, _ = context.call_internal_no_propagate(inside, compiled.fndesc, signature, values)
    put_word(inside, me, layout.CODE, inside.zext(status.code, I64))
    put_word(inside, me, layout.CODE + 1, inside.ptrtoint(status.excinfoptr, I64))
    ended = inside.select(status.is_error, constant(layout.RAISED), constant(layout.ENDED))
    put_word(inside, me, layout.PARKED, constant(1))
    call(inside, "wait", ended, 0, 0)
    inside.branch(loop)
    return entry
