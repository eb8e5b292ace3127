"""Accesses of instrumented code to arrays and records, which are checked.

They are intrinsics, so that each adds only a few instructions to a kernel and nothing to compile.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from llvmlite import ir
from numba.core import cgutils, errors, types
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic
from numba.np.arrayobj import load_item, make_array, store_item

from synknumba.simt._checker import layout
from synknumba.simt._checker.emitting import (
    INDEX,
    apply,
    constant,
    fails,
    parts_of,
    put_word,
    resolved,
    scratch,
    state_word,
)
from synknumba.simt._checker.integer_code import I64
from synknumba.simt._checker.runtime import call
from synknumba.simt._library.intrinsics import c_array, view
from synknumba.simt._maths.bfloat16 import as_dtype
from synknumba.simt._python.arrays import leaves

_I1: Final = ir.IntType(1)


def _values(builder: Any, index: types.Type, value: Any) -> list[Any]:
    if isinstance(index, types.BaseTuple):
        return cgutils.unpack_tuple(builder, value, len(index))  # type: ignore[no-any-return]
    return [value]


def _is_element(array: types.Type, index: types.Type) -> bool:
    parts = parts_of(index)
    if not isinstance(array, types.Array) or len(parts) != array.ndim:
        return False
    return all(isinstance(part, INDEX) for part in parts)


def _axes(array: types.Array, index: types.Type) -> list[int | None]:
    """Returns the axis that each integer of an index selects from; None for other parts."""
    axis, axes = 0, list[int | None]()
    parts = parts_of(index)
    for place, part in enumerate(parts):
        if isinstance(part, types.EllipsisType):
            axis = array.ndim - sum(
                not isinstance(later, types.NoneType) for later in parts[place + 1 :]
            )
            axes.append(None)
            continue
        selected = None
        if isinstance(part, INDEX) and axis < array.ndim:
            selected = axis
        axes.append(selected)
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
            parts_of(index_type), values, _axes(array_type, index_type), strict=True
        ):
            if axis is None:
                continue
            size = self.sizes[axis]
            number = context.cast(builder, value, kind, types.intp)
            place = builder.select(
                builder.icmp_signed("<", number, constant(0)), builder.add(number, size), number
            )
            self.inside = builder.and_(self.inside, builder.icmp_unsigned("<", place, size))
            self.places.append((axis, place, number))

    @property
    def data(self) -> Any:
        return self.builder.ptrtoint(self.struct.data, I64)

    def address(self) -> Any:
        """Emits the address of the element."""
        address = self.data
        for axis, place, _ in self.places:
            address = self.builder.add(address, self.builder.mul(place, self.strides[axis]))
        return address

    @contextmanager
    def checked(
        self, what: int, site: Any, outside: Callable[[], object] | None = None
    ) -> Iterator[None]:
        """Emits code under the condition that the index is inside; elsewhere its report, and what
        `outside` emits.
        """
        with self.builder.if_else(self.inside, likely=True) as (then, otherwise):
            with then:
                yield
            with otherwise:
                self.report(what, site)
                if outside is not None:
                    outside()

    @contextmanager
    def element(self, what: int, site: Any) -> Iterator[tuple[Any, Any]]:
        """Emits code under the same condition, with the address of the element and where it is
        kept; elsewhere that of a zero is kept.
        """
        builder = self.builder
        place = cgutils.alloca_once(builder, I64)
        with self.checked(what, site, lambda: builder.store(scratch(builder), place)):
            address = self.address()
            yield address, place
            builder.store(address, place)

    def report(self, what: int, site: Any) -> None:
        """Emits the report of an index that is outside."""
        builder = self.builder
        detail = cgutils.alloca_once(builder, I64, size=layout.DETAIL_WORDS)
        start = builder.ptrtoint(detail, I64)
        indices = {axis: value for axis, _, value in self.places}
        ndim = min(len(self.sizes), layout.MOST_AXES)
        words = [self.data, constant(ndim | (sum(1 << axis for axis in indices) << 8))]
        words += [indices.get(axis, constant(0)) for axis in range(layout.MOST_AXES)]
        words += self.sizes[:ndim]
        for number, value in enumerate(words):
            put_word(builder, start, number, value)
        call(builder, "outside", start, what, site)


def _access(builder: Any, kind: types.Type, address: Any, what: Any, site: Any) -> None:
    """Emits the record of an access to an element: to each of its fields if it is a record."""
    for offset, size in leaves(as_dtype(kind)):
        call(builder, "access", builder.add(address, constant(offset)), size, what, site)


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
        self.dtype, self.data, self.axes = as_dtype(dtype), data, constant(len(sizes))
        self.sizes = builder.ptrtoint(
            cgutils.alloca_once(builder, I64, size=max(1, 2 * len(sizes))), I64
        )
        for number, value in enumerate([*sizes, *strides]):
            put_word(builder, self.sizes, number, value)

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
        copies, place = [], constant(0)
        for offset, size in leaves(self.dtype):
            copies.append(place)
            first = builder.add(self.data, constant(offset))
            place = call(builder, "keep", first, self.axes, self.sizes, size, place)
        return [*copies, place]

    def written(self, builder: Any, copies: list[Any], site: Any) -> None:
        """Emits the record of a write to each element, given the copies from before the write."""
        for (offset, size), place, behind in zip(
            leaves(self.dtype), copies[:-1], copies[1:], strict=True
        ):
            buffer = state_word(builder, layout.KEPT)
            is_kept = builder.icmp_signed(">=", behind, constant(0))
            old = builder.select(is_kept, builder.add(buffer, place), constant(0))
            self._access(builder, offset, size, layout.WRITE, site, old)

    def read(self, builder: Any, site: Any) -> None:
        """Emits the record of a read of each element."""
        for offset, size in leaves(self.dtype):
            self._access(builder, offset, size, layout.READ, site, 0)

    def _access(self, builder: Any, offset: int, size: int, what: int, site: Any, old: Any) -> None:
        view = builder.add(self.data, constant(offset)), self.axes, self.sizes, constant(size)
        call(builder, "view", *view, what, site, old)


def _zero_view(context: Any, builder: Any, kind: types.Array, array: Any) -> Any:
    """Emits a view of the same shape of one zero, which belongs to no array."""
    struct = make_array(kind)(context, builder, array)
    struct.data = builder.inttoptr(scratch(builder), struct.data.type)
    struct.strides = cgutils.get_null_value(struct.strides.type)
    return struct._getvalue()  # noqa: SLF001


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
        signature = resolved(context, operator.getitem, array, index)
        code = _plain(operator.getitem, signature, 2)
        return signature.return_type(array, index, site), code
    if _is_element(array, index) and not isinstance(array.dtype, types.NestedArray):
        return array.dtype(array, index, site), _load_element(array, index)
    signature = resolved(context, operator.getitem, array, index)
    result = signature.return_type
    has_integers = any(axis is not None for axis in _axes(array, index))

    def part(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        if not has_integers or not isinstance(result, types.Array):
            return apply(context, builder, operator.getitem, signature, (array, index), args[:2])
        # Numba's own code only adds up addresses, and reads nothing.
        selected = apply(context, builder, operator.getitem, signature, (array, index), args[:2])
        indexed = _Indexed(context, builder, array, args[0], index, args[1])
        place = cgutils.alloca_once_value(builder, selected)
        with builder.if_then(builder.not_(indexed.inside), likely=False):
            indexed.report(layout.READ, args[2])
            builder.store(_zero_view(context, builder, result, selected), place)
        return builder.load(place)

    return result(array, index, site), part


def _load_fields(
    context: Any, array: types.Array, index: types.StringLiteral, site: types.Type
) -> Any:
    """Returns a field of all records of an array, of which nothing is read."""
    signature = context.resolve_static_getitem(array, index.literal_value)
    if signature is None:
        raise errors.NumbaTypeError(f"the field {index.literal_value!r} of {array}")
    field = signature.return_type(array, index)

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return context.get_function("static_getitem", field)(
            builder, (args[0], index.literal_value)
        )

    return signature.return_type(array, index, site), codegen


def _plain(function: Any, signature: Any, count: int) -> Callable[..., Any]:
    def codegen(context: Any, builder: Any, call_signature: Any, args: Any) -> Any:
        return apply(
            context, builder, function, signature, call_signature.args[:count], args[:count]
        )

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
    signature = resolved(context, operator.getitem, array, types.unliteral(index))
    return signature.return_type(array, types.unliteral(index), site), _plain(
        operator.getitem, signature, 2
    )


def _load_element(array: types.Array, index: types.Type) -> Callable[..., Any]:
    is_record = isinstance(array.dtype, types.Record)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        indexed = _Indexed(context, builder, array, args[0], index, args[1])
        with indexed.element(layout.READ, args[2]) as (address, place):
            if not is_record:  # a record is a reference, whose fields are read later
                _access(builder, array.dtype, address, layout.READ, args[2])
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
        is_frozen = builder.icmp_signed("!=", call(builder, "frozen", address), constant(0))
        fails(builder, is_frozen, layout.FROZEN, site)


def _store_element(array: types.Array, index: types.Type) -> Callable[..., Any]:
    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> None:
        indexed = _Indexed(context, builder, array, args[0], index, args[1])
        with indexed.checked(layout.WRITE, args[3]):
            address = indexed.address()
            _check_writeable(builder, array, address, args[3])
            pointer = builder.inttoptr(address, context.get_data_type(array.dtype).as_pointer())
            old = load_item(context, builder, array, pointer)
            _access_by_write(builder, array.dtype, address, (old, args[2]), args[3])
            store_item(context, builder, array, args[2], pointer)

    return codegen


def _access_by_write(
    builder: Any, kind: types.Type, address: Any, values: tuple[Any, Any], site: Any
) -> None:
    """Emits the record of a write, of the same value or another one; `values`: old and new."""
    same, write = constant(layout.SAME), constant(layout.WRITE)
    what = builder.select(_same(builder, kind, *values), same, write)
    _access(builder, kind, address, what, site)


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
    put = resolved(context, operator.setitem, array, index, value)
    selection = None
    if not _is_element(array, index):
        selection = resolved(context, operator.getitem, array, index)
        if not isinstance(selection.return_type, types.Array):
            raise errors.NumbaTypeError(f"an assignment to the part {index} of {array}")

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> None:
        site = args[3]
        indexed = _Indexed(context, builder, array, args[0], index, args[1])
        with indexed.checked(layout.WRITE, site):
            _check_writeable(builder, array, indexed.data, site)
            if isinstance(value, types.Array):
                _View.of(context, builder, value, args[2]).read(builder, site)
            elif isinstance(value, types.Record):
                _access(builder, value, builder.ptrtoint(args[2], I64), layout.READ, site)
            if selection is None:
                viewed = _View(builder, array.dtype, indexed.address(), (), ())
            else:
                part = apply(
                    context, builder, operator.getitem, selection, (array, index), args[:2]
                )
                viewed = _View.of(context, builder, selection.return_type, part)
            copies = viewed.keep(builder)
            apply(context, builder, operator.setitem, put, (array, index, value), args[:3])
            viewed.written(builder, copies, site)

    return codegen


# ---- fields of records


def _field(record: types.Record, name: str) -> Any:
    if name not in record.fields:
        raise errors.NumbaTypeError(f"a record without the field {name!r}")
    return record.fields[name]


def _field_address(builder: Any, record: Any, field: Any) -> Any:
    return builder.add(builder.ptrtoint(record, I64), constant(field.offset))


def _load_field(record: types.Record, name: str, key: types.Type, site: types.Type) -> Any:
    field = _field(record, name)
    if isinstance(field.type, types.NestedArray):
        result = types.Array(field.type.dtype, field.type.ndim, "C", aligned=False)
        sizes = [constant(size) for size in field.type.shape]

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

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> None:
        address = _field_address(builder, args[0], field)
        _check_writeable(builder, record, address, args[3])
        pointer = builder.inttoptr(address, context.get_data_type(field.type).as_pointer())
        old = context.unpack_value(builder, field.type, pointer, align=1)
        _access_by_write(builder, field.type, address, (old, args[2]), args[3])
        context.pack_value(builder, field.type, args[2], pointer, align=1)

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
    index_type = _with_integers(index)
    if not _is_element(array, index_type):
        raise errors.NumbaTypeError(f"an atomic operation with the index {index} on {array}")
    result = array.copy(ndim=1, layout="C")

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        cast = context.cast(builder, args[1], index, index_type)
        indexed = _Indexed(context, builder, array, args[0], index_type, cast)
        with indexed.element(layout.ATOMIC, args[2]) as (address, place):
            _check_writeable(builder, array, address, args[2])
            _access(builder, array.dtype, address, layout.ATOMIC, args[2])
        data = builder.inttoptr(builder.load(place), indexed.struct.data.type)
        size = indexed.struct.itemsize
        return view(context, builder, result, data, [constant(1)], [size], size)

    return result(array, index, site), codegen


def _with_integers(index: types.Type) -> types.Type:
    """Returns the type of an index with integers in the place of floats."""
    if isinstance(index, types.BaseTuple):
        return types.Tuple([_with_integers(part) for part in index])
    if isinstance(index, types.Float):
        return types.intp
    return index


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

        def end_thread() -> None:
            call(builder, "wait", layout.FAILED, 0, 0)

        with indexed.checked(layout.READ, args[2], end_thread):
            for what in (layout.READ, layout.WRITE):
                _access(builder, array.dtype, indexed.address(), what, args[2])
        return impl_ret_borrowed(context, builder, signature.return_type, args[0])

    return array(array, index, types.int64), codegen
