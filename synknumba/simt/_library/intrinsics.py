"""Intrinsics of the generated code: stack arrays, assumptions for the optimiser, loop bounds.

They are intrinsics rather than njit functions: they add no compile time, and LLVM sees their code
in place.
"""

import enum
import math
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, errors, types
from numba.core.typing.npydecl import parse_dtype
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from synknumba._errors import KernelError

# One cache line, and the width of the widest vector registers (AVX-512), so that no vector access
# crosses a line.
STACK_ALIGNMENT = 64

# Infinity for loop bounds: far from both ends of int64, so that adding an index cannot overflow.
FAR = 1 << 62


class Group(enum.Enum):
    """A group of threads, in a variable, an argument, a result or a tuple."""

    GRID = 1


def check_number(name: str, *values: types.Type) -> None:
    """Rejects values that are not numbers: Numba would convert an array to its first element,
    which CUDA does not.
    """
    for value in values:
        if not isinstance(types.unliteral(value), (types.Number, types.Boolean)):
            raise errors.NumbaTypeError(f"{name} needs a number, not {value}")


def check_real(name: str, element: types.Type, *values: types.Type) -> None:
    """Rejects complex values for an array of other numbers, to which Numba has no conversion."""
    for value in values:
        if isinstance(value, types.Complex):
            raise errors.NumbaTypeError(
                f"{name} gets a value of {value} for an array of {element}; pass "
                f"its real or imaginary part"
            )


@intrinsic  # type: ignore[untyped-decorator]
def must_be_group(_context: Any, group: types.Type) -> Any:
    """Does nothing; typing fails for a value that is no group of threads."""
    if getattr(types.unliteral(group), "instance_class", None) is not Group:
        raise errors.NumbaTypeError(f"sync() of {group}, which is no group of cuda.cg.this_grid()")
    return types.void(group), lambda *_: None


def parts_of(kind: types.Type) -> list[types.Type]:
    """Returns the types of a tuple's elements; any other type alone."""
    if isinstance(kind, types.BaseTuple):
        return list(kind)
    return [kind]


def literal_shape(shape: types.Type) -> list[int] | None:
    """Returns the sizes of a shape of constants; None for any other."""
    parts = parts_of(shape)
    if not all(isinstance(part, types.IntegerLiteral) for part in parts):
        return None
    return [part.literal_value for part in parts]


def view(
    context: Any,
    builder: Any,
    kind: types.Array,
    data: Any,
    shape: Sequence[Any],
    strides: Any,
    itemsize: Any,
) -> Any:
    """Emits an array over memory that it does not keep alive."""
    array = make_array(kind)(context, builder)
    populate_array(array, data=data, shape=shape, strides=strides, itemsize=itemsize, meminfo=None)
    return array._getvalue()  # noqa: SLF001  # Numba's way to get the struct as a value


def c_array(
    context: Any, builder: Any, kind: types.Array, address: Any, sizes: Sequence[Any]
) -> Any:
    """Emits a C-ordered array over memory that it does not keep alive; `address` is a pointer or an
    integer.
    """
    data_type = context.get_data_type(kind.dtype)
    itemsize = context.get_constant(types.intp, context.get_abi_sizeof(data_type))
    strides: list[Any] = []
    step = itemsize
    for size in reversed(sizes):
        strides.insert(0, step)
        step = builder.mul(step, size)
    convert = builder.inttoptr
    if isinstance(address.type, ir.PointerType):
        convert = builder.bitcast
    data = convert(address, data_type.as_pointer())
    return view(context, builder, kind, data, sizes, strides, itemsize)


def borrowed_array(context: Any, builder: Any, kind: types.Array, array: Any) -> Any:
    """Emits the array without its reference count."""
    struct = make_array(kind)(context, builder, array)
    struct.meminfo = cgutils.get_null_value(struct.meminfo.type)
    return struct._getvalue()  # noqa: SLF001  # Numba's way to get the struct as a value


def call_llvm(builder: Any, name: str, *args: Any, result: Any = None) -> Any:
    """Emits a call of an LLVM intrinsic overloaded on its first argument, and on its result where
    that has another type.
    """
    kinds = [arg.type for arg in args]
    overloads = [kinds[0]]
    if result is not None:
        overloads.insert(0, result)
    full_name = ".".join(["llvm", name, *(kind.intrinsic_name for kind in overloads)])
    function = ir.FunctionType(overloads[0], kinds)
    return builder.call(builder.module.declare_intrinsic(full_name, (), function), args)


def float_bits(builder: Any, value: Any) -> Any:
    """Emits a bitcast of a float to an integer of the same width."""
    widths = {ir.HalfType(): 16, ir.FloatType(): 32, ir.DoubleType(): 64}
    return builder.bitcast(value, ir.IntType(widths[value.type]))


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def stack_array(_context: Any, shape: types.Type, dtype: types.Type) -> Any:
    """Returns an uninitialised C-ordered array in the caller's stack frame: no heap, no reference
    count, no aliases.
    """
    dims, element = literal_shape(shape), parse_dtype(dtype)
    if dims is None or element is None:
        return None
    array_type = types.Array(element, len(dims), "C")

    def codegen(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        data_type = context.get_data_type(element)
        with builder.goto_entry_block():
            memory = builder.alloca(ir.ArrayType(data_type, math.prod(dims)))
            memory.align = STACK_ALIGNMENT
        return c_array(
            context,
            builder,
            array_type,
            memory,
            [context.get_constant(types.intp, dim) for dim in dims],
        )

    return array_type(shape, dtype), codegen


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def exactly(_context: Any, parts: types.Type, count: types.Type) -> Any:
    """Returns the tuple; typing fails unless it has `count` elements."""
    if not isinstance(parts, types.BaseTuple) or not isinstance(count, types.IntegerLiteral):
        raise errors.NumbaTypeError(f"* needs a tuple, not {parts}")
    if len(parts) != count.literal_value:
        raise errors.NumbaTypeError(
            f"* of a tuple of {len(parts)} for {count.literal_value} parameters"
        )
    return parts(parts, count), lambda _context, _builder, _signature, args: args[0]


@intrinsic  # type: ignore[untyped-decorator]
def no_result(_context: Any, value: types.Type) -> Any:
    """Does nothing; raises KernelError unless the value, which a kernel returns, is None."""
    if value != types.none:
        raise KernelError(
            f"CUDA kernel must have void return type: it returns a {value}; "
            f"write it to an array argument"
        )
    return types.void(value), lambda *_: None


def _emit_assume(builder: Any, condition: Any) -> None:
    signature = ir.FunctionType(ir.VoidType(), [ir.IntType(1)])
    builder.call(builder.module.declare_intrinsic("llvm.assume", (), signature), [condition])


@intrinsic  # type: ignore[untyped-decorator]
def nonneg(_context: Any, value: types.Type) -> Any:
    """Returns the value, and lets LLVM assume that it is not negative.

    Without this, every `a[i]` carries Python's wraparound (`i < 0 ? i + n : i`), and a vector load
    becomes a gather.
    """
    value = types.unliteral(value)

    def codegen(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if isinstance(signature.args[0], types.Integer) and signature.args[0].signed:
            _emit_assume(builder, builder.icmp_signed(">=", args[0], ir.Constant(args[0].type, 0)))
        return args[0]

    return value(value), codegen


@intrinsic  # type: ignore[untyped-decorator]
def assume(_context: Any, condition: types.Type) -> Any:
    """Lets LLVM assume that the condition holds here."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> None:
        _emit_assume(builder, context.cast(builder, args[0], signature.args[0], types.boolean))

    return types.void(condition), codegen


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def note_index(
    _context: Any, noted: types.Type, array: types.Type, index: types.Type, axis: types.Type
) -> Any:
    """Records axis + 1, index and size in `noted`, shape (3,), if the index is out of bounds and
    nothing is recorded yet.

    Only integer indices of arrays are looked at: an index may also be a slice, and what is indexed
    a tuple.
    """
    if not isinstance(axis, types.IntegerLiteral):
        return None
    array, index, number = types.unliteral(array), types.unliteral(index), axis.literal_value
    has_axis = isinstance(array, types.Array) and number < array.ndim
    is_element = has_axis and isinstance(index, types.Integer)

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> None:
        if is_element:
            size = builder.extract_value(make_array(array)(context, builder, args[1]).shape, number)
            at = context.cast(builder, args[2], index, types.int64)
            data = make_array(noted)(context, builder, args[0]).data
            places = [builder.gep(data, [ir.Constant(ir.IntType(64), place)]) for place in range(3)]
            is_first = builder.icmp_signed("==", builder.load(places[0]), ir.Constant(size.type, 0))
            is_high = builder.icmp_signed(">=", at, size)
            is_low = builder.icmp_signed("<", at, builder.neg(size))
            with builder.if_then(
                builder.and_(is_first, builder.or_(is_high, is_low)), likely=False
            ):
                for place, value in zip(
                    places, (ir.Constant(size.type, number + 1), at, size), strict=True
                ):
                    builder.store(value, place)

    return types.void(noted, array, index, axis), codegen


def _rounded_bound(rounding: str, value: types.Type) -> Any:
    """Returns the signature and code of `ceil_bound` or `floor_bound`."""
    value = types.unliteral(value)
    if not isinstance(value, (types.Integer, types.Float, types.Boolean)):
        return None
    far, near = ir.Constant(ir.IntType(64), FAR), ir.Constant(ir.IntType(64), -FAR)

    def from_float(context: Any, builder: Any, number: Any, if_nan: Any) -> Any:
        """Emits a float as an integer: the nearest in range."""
        rounded = call_llvm(builder, rounding, context.cast(builder, number, value, types.float64))
        bound = call_llvm(builder, "fptosi.sat", rounded, result=far.type)
        is_positive = builder.icmp_signed(">=", if_nan, ir.Constant(if_nan.type, 0))
        unordered = builder.select(is_positive, far, near)
        return builder.select(builder.fcmp_unordered("uno", rounded, rounded), unordered, bound)

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        number, if_nan = args
        if isinstance(value, types.Float):
            bound = from_float(context, builder, number, if_nan)
        elif value == types.uint64:
            return builder.select(builder.icmp_unsigned(">", number, far), far, number)
        else:
            bound = context.cast(builder, number, value, types.int64)
        bound = builder.select(builder.icmp_signed(">", bound, far), far, bound)
        return builder.select(builder.icmp_signed("<", bound, near), near, bound)

    return types.int64(value, types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def ceil_bound(_context: Any, value: types.Type, if_nan: types.Type) -> Any:
    """Returns the smallest integer not below the value, clamped to ±2**62; NaN gives +2**62 if
    `if_nan >= 0`, else -2**62.
    """
    del if_nan
    return _rounded_bound("ceil", value)


@intrinsic  # type: ignore[untyped-decorator]
def floor_bound(_context: Any, value: types.Type, if_nan: types.Type) -> Any:
    """Returns the largest integer not above the value, clamped to ±2**62; NaN gives +2**62 if
    `if_nan >= 0`, else -2**62.
    """
    del if_nan
    return _rounded_bound("floor", value)


@intrinsic  # type: ignore[untyped-decorator]
def zero_like_element(_context: Any, array: types.Type) -> Any:
    """Returns a zero of the array's element type: the initial value of a sum of atomic additions
    to one element.
    """
    if not isinstance(array, types.Array) or not isinstance(
        array.dtype, (types.Integer, types.Float)
    ):
        raise errors.NumbaTypeError(
            f"cuda.atomic.add and sub need an array of integers or floats, not {array}"
        )

    def codegen(context: Any, _builder: Any, signature: Any, _args: Any) -> Any:
        return context.get_constant_null(signature.return_type)

    return array.dtype(array), codegen


@intrinsic  # type: ignore[untyped-decorator]
def sum_any_order(_context: Any, total: types.Type, value: types.Type) -> Any:
    """Returns `total + value` with reassociation allowed, as the order of atomics is free; the
    loop around it vectorizes.
    """
    total = types.unliteral(total)
    if not isinstance(total, (types.Integer, types.Float)):
        return None
    check_number("cuda.atomic.add", value)
    check_real("cuda.atomic.add", total, value)

    def codegen(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if isinstance(signature.return_type, types.Float):
            return builder.fadd(args[0], args[1], flags=("reassoc", "contract"))
        return builder.add(args[0], args[1])

    return total(total, total), codegen
