"""Slot arrays of the generated code: one element per thread, of any Numba type.

Numbers are stored in ordinary arrays. Tuples, records and array views are stored in Numba's value
representation and accessed through a typed pointer; the value of a record is its address, so
assignments to its fields are kept. Indices are not checked: they are thread numbers, neither
negative nor out of range.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.imputils import impl_ret_borrowed
from numba.core.registry import cpu_target
from numba.core.typing.npydecl import parse_dtype
from numba.extending import intrinsic
from numba.np.arrayobj import load_item, make_array, store_item

from synknumba.simt._library.intrinsics import borrowed_array, view

# A shuffle reads at most 31 elements beyond either end.
MARGIN = 32


def is_number(kind: types.Type | None) -> bool:
    """Returns whether the type is a number or boolean, which an ordinary array can hold.

    NumPy has no bfloat16, which is a number to numba-cuda.
    """
    return isinstance(kind, (types.Number, types.Boolean)) and "bfloat16" not in kind.name


def itemsize(kind: types.Type) -> int:
    """Returns the size in bytes of a value of the type in Numba's value representation."""
    context = cpu_target.target_context
    return int(context.get_abi_sizeof(context.get_value_type(kind)))


def _pointer(context: Any, builder: Any, kind: types.Type, slots: Any, index: Any) -> Any:
    """Emits the address of a thread's slot, in an array or behind a typed pointer."""
    if isinstance(kind, types.Array):
        data = make_array(kind)(context, builder, slots).data
    else:
        data = builder.bitcast(slots, context.get_value_type(kind.dtype).as_pointer())
    return builder.gep(data, [index], inbounds=True)


@intrinsic  # type: ignore[untyped-decorator]
def slot_get(_context: Any, slots: types.Type, index: types.Type) -> Any:
    """Returns a thread's value, or a view of its row if the slot array has several dimensions."""
    if not isinstance(index, types.Integer):
        return None
    if isinstance(slots, types.CPointer):

        def load(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.load(_pointer(context, builder, slots, *args))
            return impl_ret_borrowed(context, builder, signature.return_type, value)

        return slots.dtype(slots, types.intp), load
    if not isinstance(slots, types.Array):
        return None
    if slots.ndim > 1:

        def row(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            struct = make_array(slots)(context, builder, args[0])
            _, *shape = cgutils.unpack_tuple(builder, struct.shape)
            first, *strides = cgutils.unpack_tuple(builder, struct.strides)
            data = cgutils.pointer_add(
                builder, struct.data, builder.mul(args[1], first), struct.data.type
            )
            return view(
                context, builder, signature.return_type, data, shape, strides, struct.itemsize
            )

        return slots.copy(ndim=slots.ndim - 1)(slots, types.intp), row

    def item(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return load_item(context, builder, slots, _pointer(context, builder, slots, *args))

    return slots.dtype(slots, types.intp), item


@intrinsic  # type: ignore[untyped-decorator]
def slot_set(_context: Any, slots: types.Type, index: types.Type, value: types.Type) -> Any:
    """Stores a thread's value."""
    del value
    if not isinstance(index, types.Integer):
        return None
    if isinstance(slots, types.CPointer):

        def keep(context: Any, builder: Any, _signature: Any, args: Any) -> None:
            builder.store(args[2], _pointer(context, builder, slots, args[0], args[1]))

        return types.void(slots, types.intp, slots.dtype), keep
    if not isinstance(slots, types.Array) or slots.ndim != 1:
        return None

    def store(context: Any, builder: Any, _signature: Any, args: Any) -> None:
        store_item(
            context, builder, slots, args[2], _pointer(context, builder, slots, args[0], args[1])
        )

    return types.void(slots, types.intp, slots.dtype), store


def slots_of(kind: types.Type) -> Any:
    """Returns an intrinsic that reinterprets a byte array as a pointer to slots of the type."""

    @intrinsic  # type: ignore[untyped-decorator]
    def slots(_context: Any, memory: types.Type) -> Any:
        if not isinstance(memory, types.Array):
            return None

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            data = make_array(signature.args[0])(context, builder, args[0]).data
            return builder.bitcast(data, context.get_data_type(kind).as_pointer())

        return types.CPointer(kind)(memory), codegen

    return slots


def no_value_of(kind: types.Type) -> Any:
    """Returns an intrinsic whose value is a null of the type: the initial value of a variable."""

    @intrinsic  # type: ignore[untyped-decorator]
    def no_value(_context: Any) -> Any:
        def codegen(context: Any, _builder: Any, _signature: Any, _args: Any) -> Any:
            return cgutils.get_null_value(context.get_value_type(kind))

        return kind(), codegen

    return no_value


@intrinsic  # type: ignore[untyped-decorator]
def inner(_context: Any, padded: types.Type) -> Any:
    """Returns a view of a padded array without the `MARGIN` elements at either end, which
    shuffles read and discard.
    """
    if not isinstance(padded, types.Array) or padded.ndim != 1:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = make_array(signature.args[0])(context, builder, args[0])
        size = cgutils.unpack_tuple(builder, struct.shape)[0]
        data = builder.gep(struct.data, [ir.Constant(ir.IntType(64), MARGIN)], inbounds=True)
        shape = [builder.sub(size, ir.Constant(size.type, 2 * MARGIN))]
        return view(
            context, builder, signature.return_type, data, shape, struct.strides, struct.itemsize
        )

    return padded(padded), codegen


@intrinsic  # type: ignore[untyped-decorator]
def borrowed(_context: Any, array: types.Type) -> Any:
    """Returns the array without reference counting, which costs an atomic operation per use;
    `keep` must follow the last.
    """
    if not isinstance(array, types.Array):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return borrowed_array(context, builder, signature.args[0], args[0])

    return array(array), codegen


@intrinsic  # type: ignore[untyped-decorator]
def keep(_context: Any, array: types.Type) -> Any:
    """Does nothing; a reference that keeps the array alive up to this point."""
    return types.void(array), lambda *_: None


@intrinsic  # type: ignore[untyped-decorator]
def shared_view(_context: Any, memory: types.Type, dtype: types.Type) -> Any:
    """Returns a view of the bytes of dynamic shared memory as an array of a dtype."""
    element = parse_dtype(dtype)
    if not isinstance(memory, types.Array) or element is None:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = make_array(signature.args[0])(context, builder, args[0])
        kind = context.get_data_type(element)
        size = ir.Constant(ir.IntType(64), context.get_abi_sizeof(kind))
        shape = [builder.udiv(cgutils.unpack_tuple(builder, struct.shape)[0], size)]
        data = builder.bitcast(struct.data, kind.as_pointer())
        return view(context, builder, signature.return_type, data, shape, [size], size)

    return types.Array(element, 1, "C")(memory, dtype), codegen
