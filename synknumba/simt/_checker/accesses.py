"""Operations of instrumented code: accesses to arrays and records that are checked, and requests of
a thread.

They are intrinsics, so that each adds only a few instructions to a kernel and nothing to compile.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

from llvmlite import ir
from numba.core import cgutils, errors, types
from numba.core.imputils import impl_ret_borrowed
from numba.core.typing.npydecl import parse_dtype
from numba.extending import intrinsic
from numba.np.arrayobj import load_item, make_array, store_item

from synknumba.simt._checker import layout
from synknumba.simt._checker.integer_code import I64, word
from synknumba.simt._checker.runtime import call
from synknumba.simt._library.intrinsics import (
    borrowed_array,
    c_array,
    float_bits,
    literal_shape,
    view,
)
from synknumba.simt._library.synchronisation import COLLECTIVES
from synknumba.simt._library.typed import with_arity
from synknumba.simt._maths.bfloat16 import as_dtype
from synknumba.simt._python.arrays import leaves

_I1: Final = ir.IntType(1)
_I8: Final = ir.IntType(8)
_INDEX: Final = (types.Integer, types.Boolean)


def _constant(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


def _parts(index: types.Type) -> list[types.Type]:
    return list(index) if isinstance(index, types.BaseTuple) else [index]


def _values(builder: Any, index: types.Type, value: Any) -> list[Any]:
    return (
        cgutils.unpack_tuple(builder, value, len(index))
        if isinstance(index, types.BaseTuple)
        else [value]
    )


def _is_element(array: types.Type, index: types.Type) -> bool:
    parts = _parts(index)
    return (
        isinstance(array, types.Array)
        and len(parts) == array.ndim
        and all(isinstance(part, _INDEX) for part in parts)
    )


def _axes(array: types.Array, index: types.Type) -> list[int | None]:
    """Returns the axis that each integer of an index selects from; None for other parts."""
    axis, axes = 0, list[int | None]()
    parts = _parts(index)
    for place, part in enumerate(parts):
        if isinstance(part, types.EllipsisType):
            axis = array.ndim - sum(
                not isinstance(later, types.NoneType) for later in parts[place + 1 :]
            )
            axes.append(None)
            continue
        axes.append(axis if isinstance(part, _INDEX) and axis < array.ndim else None)
        axis += not isinstance(part, types.NoneType)
    return axes


class _Indexed:
    """An index of an array, with its integers wrapped and compared with the sizes.

    Attributes:
        inside: i1, whether all integers are inside.
        places: the wrapped integers.
    """

    def __init__(
        self,
        context: Any,
        builder: Any,
        array_type: types.Array,
        array: Any,
        index_type: types.Type,
        index: Any,
    ) -> None:
        self.builder, self.struct = builder, make_array(array_type)(context, builder, array)
        self.sizes = cgutils.unpack_tuple(builder, self.struct.shape, array_type.ndim)
        self.strides = cgutils.unpack_tuple(builder, self.struct.strides, array_type.ndim)
        self.inside: Any = ir.Constant(_I1, 1)
        self.places: list[Any] = []
        values = _values(builder, index_type, index)
        for kind, value, axis in zip(
            _parts(index_type), values, _axes(array_type, index_type), strict=True
        ):
            if axis is None:
                continue
            size = self.sizes[axis]
            given = context.cast(builder, value, kind, types.intp)
            place = builder.select(
                builder.icmp_signed("<", given, _constant(0)), builder.add(given, size), given
            )
            self.inside = builder.and_(self.inside, builder.icmp_unsigned("<", place, size))
            self.places.append((axis, place, given))

    @property
    def data(self) -> Any:
        return self.builder.ptrtoint(self.struct.data, I64)

    def address(self) -> Any:
        """Emits the address of the element."""
        address = self.data
        for axis, place, _ in self.places:
            address = self.builder.add(address, self.builder.mul(place, self.strides[axis]))
        return address

    def report(self, what: int, site: Any) -> None:
        """Emits the report of an index that is outside."""
        builder = self.builder
        detail = cgutils.alloca_once(builder, I64, size=layout.DETAIL_WORDS)
        start = builder.ptrtoint(detail, I64)
        given = {axis: value for axis, _, value in self.places}
        ndim = min(len(self.sizes), layout.MOST_AXES)
        words = [self.data, _constant(ndim | (sum(1 << axis for axis in given) << 8))]
        words += [given.get(axis, _constant(0)) for axis in range(ndim)] + [_constant(0)] * (
            layout.MOST_AXES - ndim
        )
        words += self.sizes[:ndim]
        for number, value in enumerate(words):
            builder.store(value, word(builder, start, number))
        call(builder, "outside", start, _constant(what), site)


def _access(builder: Any, kind: types.Type, address: Any, what: Any, site: Any) -> None:
    """Emits the record of an access to an element: to each of its fields if it is a record."""
    what = _constant(what) if isinstance(what, int) else what
    for offset, size in leaves(as_dtype(kind)):
        call(
            builder, "access", builder.add(address, _constant(offset)), _constant(size), what, site
        )


def _access_view(builder: Any, viewed: "_View", what: int, site: Any) -> None:
    """Emits the record of an access to each element of a view."""
    for offset, size in leaves(viewed.dtype):
        first = builder.add(viewed.data, _constant(offset))
        call(
            builder,
            "view",
            first,
            viewed.axes,
            viewed.sizes,
            _constant(size),
            _constant(what),
            site,
            _constant(0),
        )


class _View:
    """Elements in memory: address of the first, number of axes, address of the sizes followed by
    the strides.
    """

    def __init__(
        self,
        builder: Any,
        dtype: types.Type,
        data: Any,
        sizes: Sequence[Any],
        strides: Sequence[Any],
    ) -> None:
        self.dtype, self.data, self.axes = as_dtype(dtype), data, _constant(len(sizes))
        self.sizes = builder.ptrtoint(
            cgutils.alloca_once(builder, I64, size=max(1, 2 * len(sizes))), I64
        )
        for number, value in enumerate([*sizes, *strides]):
            builder.store(value, word(builder, self.sizes, number))

    @classmethod
    def of(cls, context: Any, builder: Any, kind: types.Array, array: Any) -> "_View":
        """Returns the view of all elements of an array."""
        struct = make_array(kind)(context, builder, array)
        sizes, strides = (
            cgutils.unpack_tuple(builder, part, kind.ndim)
            for part in (struct.shape, struct.strides)
        )
        return cls(builder, kind.dtype, builder.ptrtoint(struct.data, I64), sizes, strides)

    def keep(self, builder: Any) -> list[Any]:
        """Emits copies of the elements, and returns their addresses, one for each field."""
        kept, place = [], _constant(0)
        for offset, size in leaves(self.dtype):
            kept.append(place)
            first = builder.add(self.data, _constant(offset))
            place = call(builder, "keep", first, self.axes, self.sizes, _constant(size), place)
        return [*kept, place]

    def written(self, builder: Any, kept: list[Any], site: Any) -> None:
        """Emits the record of a write to each element, given the copies from before the write."""
        for (offset, size), place, behind in zip(
            leaves(self.dtype), kept[:-1], kept[1:], strict=True
        ):
            buffer = builder.load(word(builder, call(builder, "state"), layout.KEPT))
            is_kept = builder.icmp_signed(">=", behind, _constant(0))
            old = builder.select(is_kept, builder.add(buffer, place), _constant(0))
            first = builder.add(self.data, _constant(offset))
            call(
                builder,
                "view",
                first,
                self.axes,
                self.sizes,
                _constant(size),
                _constant(layout.WRITE),
                site,
                old,
            )


def _resolved(context: Any, function: Any, *kinds: types.Type) -> Any:
    """Returns Numba's signature of an operator."""
    signature = context.resolve_function_type(context.resolve_value_type(function), kinds, {})
    if signature is None:
        raise errors.NumbaTypeError(f"{function.__name__} of {kinds}")
    return signature


def _apply(
    context: Any,
    builder: Any,
    function: Any,
    signature: Any,
    kinds: Sequence[types.Type],
    values: Sequence[Any],
) -> Any:
    """Emits Numba's implementation of an operator."""
    callee = context.typing_context.resolve_value_type(function)
    callee.get_call_type(context.typing_context, signature.args, {})
    implementation = context.get_function(callee, signature)
    cast = [
        context.cast(builder, *both) for both in zip(values, kinds, signature.args, strict=True)
    ]
    context.add_linking_libs(getattr(implementation, "libs", ()))
    return implementation(builder, cast)


def _zero_view(context: Any, builder: Any, kind: types.Array, array: Any) -> Any:
    """Emits a view of the same shape of one zero, which belongs to no array."""
    struct = make_array(kind)(context, builder, array)
    struct.data = builder.inttoptr(_scratch(builder), struct.data.type)
    struct.strides = cgutils.get_null_value(struct.strides.type)
    return struct._getvalue()  # noqa: SLF001


def _scratch(builder: Any) -> Any:
    """Emits the address of zeros that belong to no array."""
    return builder.load(word(builder, call(builder, "state"), layout.SCRATCH))


# ---- arrays


@intrinsic  # type: ignore[untyped-decorator]
def load(context: Any, array: types.Type, index: types.Type, site: types.Type) -> Any:
    """Returns `array[index]`; zero if the index is out of bounds."""
    if isinstance(array, types.BaseTuple):
        return _load_tuple(context, array, index, site)
    if isinstance(array, types.Record) and isinstance(index, types.StringLiteral):
        return _load_field(array, index.literal_value, index, site)
    if isinstance(array, types.Array) and isinstance(index, types.StringLiteral):
        return _load_fields(context, array, index, site)
    array, index = types.unliteral(array), types.unliteral(index)
    if not isinstance(array, types.Array):
        signature = _resolved(context, operator.getitem, array, index)
        code = _plain(operator.getitem, signature, 2)
        return signature.return_type(array, index, site), code
    if _is_element(array, index) and not isinstance(array.dtype, types.NestedArray):
        return array.dtype(array, index, site), _load_element(array, index)
    signature = _resolved(context, operator.getitem, array, index)
    result = signature.return_type
    has_integers = any(axis is not None for axis in _axes(array, index))

    def part(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        if not has_integers or not isinstance(result, types.Array):
            return _apply(context, builder, operator.getitem, signature, (array, index), args[:2])
        # Numba's own code only adds up addresses, and reads nothing.
        found = _apply(context, builder, operator.getitem, signature, (array, index), args[:2])
        indexed = _Indexed(context, builder, array, args[0], index, args[1])
        place = cgutils.alloca_once_value(builder, found)
        with builder.if_then(builder.not_(indexed.inside), likely=False):
            indexed.report(layout.READ, args[2])
            builder.store(_zero_view(context, builder, result, found), place)
        return builder.load(place)

    return result(array, index, site), part


def _load_fields(
    context: Any, array: types.Array, index: types.StringLiteral, site: types.Type
) -> Any:
    """Returns a field of all records of an array, of which nothing is read."""
    found = context.resolve_static_getitem(array, index.literal_value)
    if found is None:
        raise errors.NumbaTypeError(f"the field {index.literal_value!r} of {array}")
    field = found.return_type(array, index)

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return context.get_function("static_getitem", field)(
            builder, (args[0], index.literal_value)
        )

    return found.return_type(array, index, site), codegen


def _plain(function: Any, signature: Any, count: int) -> Callable[..., Any]:
    def codegen(context: Any, builder: Any, given: Any, args: Any) -> Any:
        return _apply(context, builder, function, signature, given.args[:count], args[:count])

    return codegen


def _load_tuple(context: Any, array: types.BaseTuple, index: types.Type, site: types.Type) -> Any:
    if isinstance(index, types.IntegerLiteral) and -len(array) <= index.literal_value < len(array):
        number = index.literal_value % len(array)

        def item(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return impl_ret_borrowed(
                _context, builder, signature.return_type, builder.extract_value(args[0], number)
            )

        return array.types[number](array, index, site), item
    if isinstance(index, types.SliceLiteral):
        raise errors.NumbaTypeError("a slice of a tuple")
    signature = _resolved(context, operator.getitem, array, types.unliteral(index))
    return signature.return_type(array, types.unliteral(index), site), _plain(
        operator.getitem, signature, 2
    )


def _load_element(array: types.Array, index: types.Type) -> Callable[..., Any]:
    is_record = isinstance(array.dtype, types.Record)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        indexed = _Indexed(context, builder, array, args[0], index, args[1])
        place = cgutils.alloca_once(builder, I64)
        with builder.if_else(indexed.inside, likely=True) as (inside, outside):
            with inside:
                address = indexed.address()
                if not is_record:  # a record is a reference, whose fields are read later
                    _access(builder, array.dtype, address, layout.READ, args[2])
                builder.store(address, place)
            with outside:
                indexed.report(layout.READ, args[2])
                builder.store(_scratch(builder), place)
        pointer = builder.inttoptr(
            builder.load(place), context.get_data_type(array.dtype).as_pointer()
        )
        return impl_ret_borrowed(
            context, builder, signature.return_type, load_item(context, builder, array, pointer)
        )

    return codegen


@intrinsic  # type: ignore[untyped-decorator]
def store(
    context: Any, array: types.Type, index: types.Type, value: types.Type, site: types.Type
) -> Any:
    """Does `array[index] = value`; nothing if the index is out of bounds."""
    if isinstance(array, types.Record) and isinstance(index, types.StringLiteral):
        return _store_field(array, index.literal_value, index, value, site)
    array, index, value = map(types.unliteral, (array, index, value))
    if not isinstance(array, types.Array):
        raise errors.NumbaTypeError(f"an assignment to an element of {array}")
    _must_be_mutable(array)
    if _is_element(array, index) and isinstance(array.dtype, (types.Number, types.Boolean)):
        if not isinstance(value, (types.Number, types.Boolean)):
            raise errors.NumbaTypeError(f"an assignment of {value} to {array.dtype}")
        return types.void(array, index, array.dtype, site), _store_element(array, index)
    return types.void(array, index, value, site), _store_part(context, array, index, value)


def _must_be_mutable(array: types.Array) -> None:
    if not array.mutable:
        raise errors.NumbaTypeError(f"Cannot modify readonly array of type: {array}")


def _check_writeable(builder: Any, kind: types.Type, address: Any, site: Any) -> None:
    """Emits the end of the thread if memory of a record is read-only, which the types of records do
    not tell.

    Arrays that may be parts of records are those whose types are not aligned.
    """
    if isinstance(kind, types.Record) or not kind.aligned:
        _fails(
            builder,
            builder.icmp_signed("!=", call(builder, "frozen", address), _constant(0)),
            layout.FROZEN,
            site,
        )


def _store_element(array: types.Array, index: types.Type) -> Callable[..., Any]:
    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        indexed = _Indexed(context, builder, array, args[0], index, args[1])
        with builder.if_else(indexed.inside, likely=True) as (inside, outside):
            with inside:
                address = indexed.address()
                _check_writeable(builder, array, address, args[3])
                pointer = builder.inttoptr(address, context.get_data_type(array.dtype).as_pointer())
                old = load_item(context, builder, array, pointer)
                what = builder.select(
                    _same(builder, array.dtype, old, args[2]),
                    _constant(layout.SAME),
                    _constant(layout.WRITE),
                )
                _access(builder, array.dtype, address, what, args[3])
                store_item(context, builder, array, args[2], pointer)
            with outside:
                indexed.report(layout.WRITE, args[3])
        return context.get_dummy_value()

    return codegen


def _same(builder: Any, kind: types.Type, old: Any, new: Any) -> Any:
    """Emits whether two numbers are equal, or both NaN, which makes the order of two writes
    immaterial.
    """
    if isinstance(kind, types.Complex):
        pairs = [
            (builder.extract_value(old, part), builder.extract_value(new, part)) for part in (0, 1)
        ]
        return builder.and_(*(_same(builder, kind.underlying_float, *pair) for pair in pairs))
    if isinstance(kind, types.Float):
        nan = builder.and_(
            builder.fcmp_unordered("uno", old, old), builder.fcmp_unordered("uno", new, new)
        )
        return builder.or_(builder.fcmp_ordered("==", old, new), nan)
    return builder.icmp_signed("==", old, new)


def _store_part(
    context: Any, array: types.Array, index: types.Type, value: types.Type
) -> Callable[..., Any]:
    """Returns the code of an assignment to a part of an array, or to a record."""
    put = _resolved(context, operator.setitem, array, index, value)
    is_element = _is_element(array, index)
    whole = None if is_element else _resolved(context, operator.getitem, array, index)
    if whole is not None and not isinstance(whole.return_type, types.Array):
        raise errors.NumbaTypeError(f"an assignment to the part {index} of {array}")

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        site = args[3]
        indexed = _Indexed(context, builder, array, args[0], index, args[1])
        with builder.if_else(indexed.inside, likely=True) as (inside, outside):
            with inside:
                _check_writeable(builder, array, indexed.data, site)
                if isinstance(value, types.Array):
                    _access_view(
                        builder, _View.of(context, builder, value, args[2]), layout.READ, site
                    )
                elif isinstance(value, types.Record):
                    _access(builder, value, builder.ptrtoint(args[2], I64), layout.READ, site)
                if whole is None:
                    viewed = _View(builder, array.dtype, indexed.address(), (), ())
                else:
                    part = _apply(
                        context, builder, operator.getitem, whole, (array, index), args[:2]
                    )
                    viewed = _View.of(context, builder, whole.return_type, part)
                kept = viewed.keep(builder)
                _apply(context, builder, operator.setitem, put, (array, index, value), args[:3])
                viewed.written(builder, kept, site)
            with outside:
                indexed.report(layout.WRITE, site)
        return context.get_dummy_value()

    return codegen


# ---- fields of records


def _field(record: types.Record, name: str) -> Any:
    if name not in record.fields:
        raise errors.NumbaTypeError(f"a record without the field {name!r}")
    return record.fields[name]


def _field_address(builder: Any, record: Any, field: Any) -> Any:
    return builder.add(builder.ptrtoint(record, I64), _constant(field.offset))


def _load_field(record: types.Record, name: str, key: types.Type, site: types.Type) -> Any:
    field = _field(record, name)
    if isinstance(field.type, types.NestedArray):
        result = types.Array(field.type.dtype, field.type.ndim, "C", aligned=False)
        sizes = [_constant(size) for size in field.type.shape]

        def part(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            return c_array(context, builder, result, _field_address(builder, args[0], field), sizes)

        return result(record, key, site), part
    if isinstance(field.type, types.Record):

        def inner(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            return builder.inttoptr(
                _field_address(builder, args[0], field), context.get_value_type(field.type)
            )

        return field.type(record, key, site), inner

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _field_address(builder, args[0], field)
        _access(builder, field.type, address, layout.READ, args[2])
        pointer = builder.inttoptr(address, context.get_data_type(field.type).as_pointer())
        value = context.unpack_value(builder, field.type, pointer, align=1)
        return impl_ret_borrowed(context, builder, signature.return_type, value)

    return field.type(record, key, site), codegen


def _store_field(
    record: types.Record, name: str, key: types.Type, value: types.Type, site: types.Type
) -> Any:
    field = _field(record, name)
    if not isinstance(field.type, (types.Number, types.Boolean)) or not isinstance(
        types.unliteral(value), (types.Number, types.Boolean)
    ):
        raise errors.NumbaTypeError(f"an assignment of {value} to the field {name!r}")

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        address = _field_address(builder, args[0], field)
        _check_writeable(builder, record, address, args[3])
        pointer = builder.inttoptr(address, context.get_data_type(field.type).as_pointer())
        old = context.unpack_value(builder, field.type, pointer, align=1)
        what = builder.select(
            _same(builder, field.type, old, args[2]),
            _constant(layout.SAME),
            _constant(layout.WRITE),
        )
        _access(builder, field.type, address, what, args[3])
        context.pack_value(builder, field.type, args[2], pointer, align=1)
        return context.get_dummy_value()

    return types.void(record, key, field.type, site), codegen


@intrinsic  # type: ignore[untyped-decorator]
def attribute(context: Any, value: types.Type, name: types.Type, site: types.Type) -> Any:
    """Returns an attribute; of a record, a field."""
    if not isinstance(name, types.StringLiteral):
        return None
    value = types.unliteral(value)
    if isinstance(value, types.Record):
        return _load_field(value, name.literal_value, name, site)
    result = context.resolve_getattr(value, name.literal_value)
    if result is None or isinstance(result, (types.Callable, types.Module)):
        raise errors.NumbaTypeError(f"the attribute {name.literal_value} of {value}")

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        implementation = context.get_getattr(value, name.literal_value)
        return implementation(context, builder, value, args[0], name.literal_value)

    return result(value, name, site), codegen


@intrinsic  # type: ignore[untyped-decorator]
def set_attribute(
    _context: Any, record: types.Type, name: types.Type, value: types.Type, site: types.Type
) -> Any:
    """Sets a field of a record."""
    if not isinstance(record, types.Record) or not isinstance(name, types.StringLiteral):
        raise errors.NumbaTypeError(f"an assignment to an attribute of {record}")
    return _store_field(record, name.literal_value, name, value, site)


# ---- atomics


@intrinsic  # type: ignore[untyped-decorator]
def cell(_context: Any, array: types.Type, index: types.Type, site: types.Type) -> Any:
    """Returns an element as an array of shape (1,), for an atomic operation; of a zero if the
    index is out of bounds.
    """
    if not isinstance(array, types.Array):
        raise errors.NumbaTypeError(f"an atomic operation on {array}")
    _must_be_mutable(array)
    kinds = [part if isinstance(part, _INDEX) else types.intp for part in _parts(index)]
    if len(kinds) != array.ndim or not all(
        isinstance(part, (*_INDEX, types.Float)) for part in _parts(index)
    ):
        raise errors.NumbaTypeError(f"an atomic operation with the index {index} on {array}")
    whole = types.Tuple(kinds) if isinstance(index, types.BaseTuple) else kinds[0]
    result = array.copy(ndim=1, layout="C")

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        indexed = _Indexed(
            context, builder, array, args[0], whole, context.cast(builder, args[1], index, whole)
        )
        place = cgutils.alloca_once(builder, I64)
        with builder.if_else(indexed.inside, likely=True) as (inside, outside):
            with inside:
                address = indexed.address()
                _check_writeable(builder, array, address, args[2])
                _access(builder, array.dtype, address, layout.ATOMIC, args[2])
                builder.store(address, place)
            with outside:
                indexed.report(layout.ATOMIC, args[2])
                builder.store(_scratch(builder), place)
        data = builder.inttoptr(builder.load(place), indexed.struct.data.type)
        size = indexed.struct.itemsize
        return view(context, builder, result, data, [_constant(1)], [size], size)

    return result(array, index, site), codegen


@intrinsic  # type: ignore[untyped-decorator]
def first_cell(context: Any, array: types.Type, site: types.Type) -> Any:
    """Returns the first element as `cell` does."""
    if not isinstance(array, types.Array):
        raise errors.NumbaTypeError(f"an atomic operation on {array}")
    index = types.UniTuple(types.intp, array.ndim)
    signature, code = cell._defn(context, array, index, site)  # noqa: SLF001

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        zeros = context.get_constant_null(index)
        return code(context, builder, signature, (args[0], zeros, args[1]))

    return signature.return_type(array, site), codegen


@intrinsic  # type: ignore[untyped-decorator]
def whole(_context: Any, array: types.Type, index: types.Type, site: types.Type) -> Any:
    """Returns an array after the record of a read and a write of an element; out of bounds, the
    thread ends.
    """
    array, index = types.unliteral(array), types.unliteral(index)
    if not isinstance(array, types.Array) or not _is_element(array, index):
        raise errors.NumbaTypeError(f"a state of random numbers in {array}")
    _must_be_mutable(array)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        indexed = _Indexed(context, builder, array, args[0], index, args[1])
        with builder.if_else(indexed.inside, likely=True) as (inside, outside):
            with inside:
                for what in (layout.READ, layout.WRITE):
                    _access(builder, array.dtype, indexed.address(), what, args[2])
            with outside:
                indexed.report(layout.READ, args[2])
                call(builder, "wait", _constant(layout.FAILED), _constant(0), _constant(0))
        return impl_ret_borrowed(context, builder, signature.return_type, args[0])

    return array(array, index, types.int64), codegen


# ---- threads


def _me(builder: Any) -> Any:
    return builder.load(word(builder, call(builder, "state"), layout.CURRENT))


@intrinsic  # type: ignore[untyped-decorator]
def note(_context: Any, site: types.Type) -> Any:
    """Records where the thread is."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        builder.store(args[0], word(builder, _me(builder), layout.SITE))
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def fence(_context: Any) -> Any:
    """Counts a call of `threadfence`."""

    def codegen(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        place = word(builder, _me(builder), layout.STAMP)
        stamp = builder.load(place)
        low = builder.and_(builder.add(stamp, _constant(1)), _constant(0xFFFF))
        builder.store(builder.or_(builder.and_(stamp, _constant(~0xFFFF)), low), place)
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic  # type: ignore[untyped-decorator]
def set_mask(_context: Any, mask: types.Type) -> Any:
    """Sets the lane mask of the next warp barrier."""
    mask = types.unliteral(mask)

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        builder.store(args[0], word(builder, _me(builder), layout.MASK))
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def barrier(_context: Any, kind: types.Type, place: types.Type) -> Any:
    """Waits for other threads; `kind` is the position in `KINDS`, `place` the number of the
    operation in the code.
    """
    del kind, place

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        call(builder, "wait", _constant(layout.WAITING), args[0], args[1])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


def _bits(context: Any, builder: Any, kind: types.Type, value: Any) -> Any:
    """Emits the bits of a number as an int64."""
    if isinstance(kind, types.Boolean):
        return builder.zext(value, I64)
    if isinstance(kind, types.Float):
        bits = float_bits(builder, value)
        return bits if kind.bitwidth == 64 else builder.zext(bits, I64)
    return context.cast(builder, value, kind, types.int64)


def _number(context: Any, builder: Any, kind: types.Type, bits: Any) -> Any:
    """Emits the number of a type with these bits."""
    if isinstance(kind, types.Boolean):
        return builder.trunc(bits, _I1)
    if isinstance(kind, types.Float):
        whole = bits if kind.bitwidth == 64 else builder.trunc(bits, ir.IntType(kind.bitwidth))
        return builder.bitcast(whole, context.get_value_type(kind))
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
    is_predicate = operation.exchanged == "predicate"

    def resolve(*given: types.Type) -> Any:
        *kinds, place = map(types.unliteral, given)
        if not all(isinstance(one, (types.Integer, types.Boolean, types.Float)) for one in kinds):
            return None
        at_value = operation.params.index(operation.exchanged) if operation.exchanged else -1
        exchanged = kinds[at_value] if operation.exchanged else types.int64
        if exchanged not in OPERAND_TYPES:
            return None
        result = operation.result_type(kinds)
        passed = [
            types.boolean if name == "predicate" else one if name == "value" else types.int64
            for name, one in zip(operation.params, kinds, strict=True)
        ]

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            me = _me(builder)
            number = OPERAND_TYPES.index(types.boolean if is_predicate else exchanged)
            builder.store(_constant(number), word(builder, me, layout.TYPE))
            operands = iter(range(layout.OPERANDS, layout.OPERANDS + 2))
            for name, one, value in zip(operation.params, passed, args[:-1], strict=True):
                where = layout.MASK if name == "mask" else next(operands)
                builder.store(_bits(context, builder, one, value), word(builder, me, where))
            call(builder, "wait", _constant(layout.WAITING), _constant(kind), args[-1])
            kinds = list(result) if isinstance(result, types.BaseTuple) else [result]
            answers = [
                _number(
                    context,
                    builder,
                    one,
                    builder.load(word(builder, me, layout.ANSWERS + position)),
                )
                for position, one in enumerate(kinds)
            ]
            return context.make_tuple(builder, result, answers) if len(answers) > 1 else answers[0]

        return result(*passed, place), codegen

    return with_arity(path, len(operation.params) + 1, resolve)


@intrinsic  # type: ignore[untyped-decorator]
def here(_context: Any, value: types.Type, site: types.Type) -> Any:
    """Returns the value, and records where the thread is."""
    value = types.unliteral(value)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], word(builder, _me(builder), layout.SITE))
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


def _fails(builder: Any, condition: Any, fault: int, site: Any) -> None:
    """Emits the end of the thread under a condition."""
    with builder.if_then(condition, likely=False):
        me = _me(builder)
        builder.store(site, word(builder, me, layout.SITE))
        key = builder.or_(builder.load(word(builder, me, layout.KEY)), site)
        zero = _constant(0)
        call(
            builder,
            "report",
            _constant(layout.FAULT),
            zero,
            zero,
            _constant(fault),
            key,
            _constant(layout.RAISES),
            zero,
        )
        call(builder, "wait", _constant(layout.FAILED), zero, zero)


@intrinsic  # type: ignore[untyped-decorator]
def assigned(_context: Any, value: types.Type, is_assigned: types.Type, site: types.Type) -> Any:
    """Returns the value of a variable; if it is not assigned a stand-in, or if it is no number,
    the thread ends.
    """
    value = types.unliteral(value)
    is_number = isinstance(value, (types.Number, types.Boolean)) and not isinstance(
        value, types.Complex
    )

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = cgutils.alloca_once_value(builder, args[0])
        with builder.if_then(builder.not_(args[1]), likely=False):
            me, zero = _me(builder), _constant(0)
            key = builder.or_(builder.load(word(builder, me, layout.KEY)), args[2])
            call(
                builder,
                "report",
                _constant(layout.UNSET),
                zero,
                zero,
                zero,
                key,
                _constant(layout.READ),
                zero,
            )
            if is_number:
                stand_in = builder.load(word(builder, call(builder, "state"), layout.STAND_IN))
                builder.store(context.cast(builder, stand_in, types.int64, value), place)
            else:
                call(builder, "wait", _constant(layout.FAILED), zero, zero)
        return impl_ret_borrowed(context, builder, signature.return_type, builder.load(place))

    return value(value, types.boolean, types.int64), codegen


def _division(function: Any) -> Any:
    def divide(context: Any, left: types.Type, right: types.Type, site: types.Type) -> Any:
        left, right = types.unliteral(left), types.unliteral(right)
        signature = _resolved(context, function, left, right)

        def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            if isinstance(signature.return_type, types.Integer) and isinstance(right, _INDEX):
                zero = ir.Constant(args[1].type, 0)
                _fails(builder, builder.icmp_signed("==", args[1], zero), layout.DIVISION, args[2])
            return _apply(context, builder, function, signature, (left, right), args[:2])

        return signature.return_type(left, right, site), codegen

    divide.__name__ = divide.__qualname__ = function.__name__
    return intrinsic(divide)


floordiv, mod = _division(operator.floordiv), _division(operator.mod)


@intrinsic  # type: ignore[untyped-decorator]
def to_int(context: Any, value: types.Type, site: types.Type) -> Any:
    """Returns `int(value)`; the thread ends if the value is NaN or infinite."""
    value = types.unliteral(value)
    signature = _resolved(context, int, value)

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        if isinstance(value, types.Float):
            _fails(builder, builder.fcmp_unordered("uno", args[0], args[0]), layout.NAN, args[1])
            difference = builder.fsub(args[0], args[0])
            _fails(
                builder,
                builder.fcmp_unordered("uno", difference, difference),
                layout.INFINITY,
                args[1],
            )
        return _apply(context, builder, int, signature, (value,), args[:1])

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
        offsets = builder.load(word(builder, state, layout.SHARED_OFFSETS))
        address = builder.add(
            builder.load(word(builder, state, layout.SHARED)),
            builder.load(word(builder, offsets, args[0])),
        )
        sizes = [_constant(dim) for dim in dims]
        if dims == [0]:
            itemsize = context.get_abi_sizeof(context.get_data_type(element))
            sizes = [
                builder.sdiv(
                    builder.load(word(builder, state, layout.DYNAMIC_BYTES)), _constant(itemsize)
                )
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
    fill = layout.FLOAT_BYTE if isinstance(element, (types.Float, types.Complex)) else layout.BYTE

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        me = _me(builder)
        count = 1
        for dim in dims:
            count *= dim
        nbytes = _constant(count * context.get_abi_sizeof(context.get_data_type(element)))
        address = builder.add(builder.load(word(builder, me, layout.LOCALS)), args[0])
        written = builder.add(builder.load(word(builder, me, layout.LOCALS_WRITTEN)), args[0])
        byte = builder.trunc(builder.load(word(builder, call(builder, "state"), fill)), _I8)
        for start, value in ((address, byte), (written, ir.Constant(_I8, 0))):
            cgutils.memset(builder, builder.inttoptr(start, _I8.as_pointer()), nbytes, value)
        return c_array(context, builder, kind, address, [_constant(dim) for dim in dims])

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
        whole = cgutils.alloca_once_value(
            builder, _without_owner(context, builder, args, values[1])
        )
        state = call(builder, "state")
        builder.store(builder.ptrtoint(whole, I64), word(builder, state, layout.ARGUMENTS))
        entry = _coroutine(context, builder, thread, signature, args)
        why = call(builder, "advance", builder.ptrtoint(entry, I64))
        with builder.if_then(
            builder.icmp_signed("==", why, _constant(layout.HAS_RAISED)), likely=False
        ):
            me = _me(builder)
            convention = context.call_conv
            code = builder.trunc(builder.load(word(builder, me, layout.CODE)), ir.IntType(32))
            place = convention._get_excinfo_argument(builder.function)  # noqa: SLF001
            information = builder.inttoptr(
                builder.load(word(builder, me, layout.CODE + 1)), place.type.pointee
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
    me = inside.or_(inside.shl(high, _constant(32)), low)
    inside.branch(loop)
    inside.position_at_end(loop)
    state = call(inside, "state")
    x, y, z = (inside.load(word(inside, me, layout.INDEX + axis)) for axis in range(3))
    bx, by, bz, gx, gy, gz = (
        inside.load(word(inside, state, layout.SIZES + number)) for number in range(6)
    )
    block = inside.load(word(inside, state, layout.BLOCK))
    rows, column = inside.udiv(block, gx), inside.urem(block, gx)
    indices = [column, inside.urem(rows, gy), inside.udiv(rows, gy)]
    linear = inside.add(x, inside.mul(bx, inside.add(y, inside.mul(by, z))))
    where = inside.inttoptr(
        inside.load(word(inside, state, layout.ARGUMENTS)),
        context.get_value_type(args).as_pointer(),
    )
    whole = inside.load(where)
    given = [inside.extract_value(whole, number) for number in range(len(args))]
    values = [x, y, z, *indices, bx, by, bz, gx, gy, gz, linear, *given]
    status, _ = context.call_internal_no_propagate(inside, compiled.fndesc, signature, values)
    inside.store(inside.zext(status.code, I64), word(inside, me, layout.CODE))
    inside.store(inside.ptrtoint(status.excinfoptr, I64), word(inside, me, layout.CODE + 1))
    ended = inside.select(status.is_error, _constant(layout.RAISED), _constant(layout.ENDED))
    inside.store(_constant(1), word(inside, me, layout.PARKED))
    call(inside, "wait", ended, _constant(0), _constant(0))
    inside.branch(loop)
    del z
    return entry
