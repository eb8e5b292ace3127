"""`cuda.atomic.*` on one CPU core.

A process runs a kernel on one thread, so an atomic is a plain read-modify-write. Typing follows
CUDA: the value is converted to the array's dtype first, and the old element is returned.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, errors, types
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic
from numba.np.arrayobj import basic_indexing, load_item, normalize_indices, store_item

from synknumba.simt._library.intrinsics import check_number, check_real, parts_of

# (builder, element type, old, *values) -> new
Change = Callable[..., Any]


def _element_type(name: str, array: types.Type, index: types.Type) -> types.Type:
    if not isinstance(array, types.Array):
        raise errors.NumbaTypeError(f"cuda.atomic.{name} needs an array, not {array}")
    if not array.mutable:
        raise errors.NumbaTypeError(f"Cannot modify readonly array of type: {array}")
    # CUDA truncates float indices; they arise where a uint64 meets an int64.
    kinds = parts_of(index)
    are_numbers = all(isinstance(kind, (types.Integer, types.Float)) for kind in kinds)
    if not are_numbers or len(kinds) != array.ndim:
        raise errors.NumbaTypeError(
            f"cuda.atomic.{name} needs {array.ndim} integer indices for {array}, not {index}"
        )
    return array.dtype


def _pointer(context: Any, builder: Any, signature: Any, array: Any, index: Any) -> Any:
    array_type, index_type = signature.args[:2]
    values = [index]
    if isinstance(index_type, types.BaseTuple):
        values = cgutils.unpack_tuple(builder, index, len(index_type))
    kinds, parts = [], []
    for value, kind in zip(values, parts_of(index_type), strict=True):
        integer = kind
        if not isinstance(kind, types.Integer):
            integer = types.intp
        kinds.append(integer)
        parts.append(context.cast(builder, value, kind, integer))
    kinds, parts = normalize_indices(context, builder, kinds, parts)
    fields = _Fields(context, builder, array_type, array)
    return basic_indexing(
        context, builder, array_type, fields, kinds, parts, context.enable_boundscheck
    )[0]


class _Fields:
    """The fields of an array's structure, such as `shape`, as values.

    `make_array` of Numba stores the structure in memory first; a kernel has one copy for each use,
    and LLVM needs more than twice the time to take twice the copies apart.
    """

    def __init__(self, context: Any, builder: Any, kind: types.Type, value: Any) -> None:
        self._model, self._builder, self._value = context.data_model_manager[kind], builder, value

    def __getattr__(self, name: str) -> Any:
        return self._model.get(self._builder, self._value, name)


def _read_change_write(
    name: str, array: types.Type, index: types.Type, change: Change, values: int = 1
) -> Any:
    element = _element_type(name, array, index)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, signature, args[0], args[1])
        old = load_item(context, builder, array, pointer)
        store_item(context, builder, array, change(builder, element, old, *args[2:]), pointer)
        return impl_ret_borrowed(context, builder, element, old)

    return element(array, types.unliteral(index), *[element] * values), codegen


def _compare(
    builder: Any, element: types.Type, sign: str, left: Any, right: Any, *, nan: bool = False
) -> Any:
    """Emits a comparison; its result is `nan` if an operand is NaN."""
    if isinstance(element, types.Float):
        if nan:
            return builder.fcmp_unordered(sign, left, right)
        return builder.fcmp_ordered(sign, left, right)
    if isinstance(element, types.Integer) and not element.signed:
        return builder.icmp_unsigned(sign, left, right)
    return builder.icmp_signed(sign, left, right)


def _instruction(of_integers: str, of_floats: str = "") -> Change:
    """Returns the change by a single instruction, a method of the builder."""

    def change(builder: Any, element: types.Type, old: Any, value: Any) -> Any:
        name = of_integers
        if isinstance(element, types.Float):
            name = of_floats
        return getattr(builder, name)(old, value)

    return change


def _extreme(sign: str, *, nan: bool = False) -> Change:
    """Returns the change to the value if `old sign value`; if `nan`, a number replaces NaN, else
    nothing does.
    """

    def change(builder: Any, element: types.Type, old: Any, value: Any) -> Any:
        extreme = builder.select(_compare(builder, element, sign, old, value, nan=nan), value, old)
        if not nan or not isinstance(element, types.Float):
            return extreme
        return builder.select(builder.fcmp_unordered("uno", value, value), old, extreme)

    return change


def _inc(builder: Any, _element: types.Type, old: Any, value: Any) -> Any:
    zero, one = ir.Constant(old.type, 0), ir.Constant(old.type, 1)
    return builder.select(builder.icmp_unsigned(">=", old, value), zero, builder.add(old, one))


def _dec(builder: Any, _element: types.Type, old: Any, value: Any) -> Any:
    zero, one = ir.Constant(old.type, 0), ir.Constant(old.type, 1)
    wraps = builder.or_(
        builder.icmp_unsigned("==", old, zero), builder.icmp_unsigned(">", old, value)
    )
    return builder.select(wraps, value, builder.sub(old, one))


def _exch(_builder: Any, _element: types.Type, _old: Any, value: Any) -> Any:
    return value


def _cas(builder: Any, element: types.Type, current: Any, old: Any, value: Any) -> Any:
    return builder.select(_compare(builder, element, "==", current, old), value, current)


_NUMBERS = (types.Integer, types.Float)
_INTEGERS = (types.Integer,)


def _make(name: str, change: Change, elements: tuple[type[types.Type], ...]) -> Any:
    def atomic(_context: Any, array: types.Type, index: types.Type, value: types.Type) -> Any:
        check_number(f"cuda.atomic.{name}", value)
        if isinstance(array, types.Array):
            if not isinstance(array.dtype, elements):
                raise errors.NumbaTypeError(
                    f"cuda.atomic.{name} does not work on arrays of {array.dtype}"
                )
            check_real(f"cuda.atomic.{name}", array.dtype, value)
        return _read_change_write(name, array, index, change)

    atomic.__name__ = atomic.__qualname__ = f"atomic_{name}"
    return intrinsic(atomic)


@intrinsic  # type: ignore[untyped-decorator]
def atomic_cas(
    _context: Any, array: types.Type, index: types.Type, old: types.Type, value: types.Type
) -> Any:
    """Stores the value if the element equals `old`; returns the previous element."""
    check_number("cuda.atomic.cas", old, value)
    return _read_change_write("cas", array, index, _cas, values=2)


@intrinsic  # type: ignore[untyped-decorator]
def atomic_compare_and_swap(
    _context: Any, array: types.Type, old: types.Type, value: types.Type
) -> Any:
    """Applies `atomic_cas` to the array's first element."""
    check_number("cuda.atomic.compare_and_swap", old, value)
    signature, emit = _read_change_write("compare_and_swap", array, types.intp, _cas, values=2)

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        first = context.get_constant(types.intp, 0)
        return emit(context, builder, signature, (args[0], first, *args[1:]))

    return signature.return_type(array, *signature.args[2:]), codegen


ATOMICS: dict[str, Any] = {
    "add": _make("add", _instruction("add", "fadd"), _NUMBERS),
    "sub": _make("sub", _instruction("sub", "fsub"), _NUMBERS),
    "max": _make("max", _extreme("<"), _NUMBERS),
    "min": _make("min", _extreme(">"), _NUMBERS),
    "nanmax": _make("nanmax", _extreme("<", nan=True), _NUMBERS),
    "nanmin": _make("nanmin", _extreme(">", nan=True), _NUMBERS),
    "and_": _make("and_", _instruction("and_"), _INTEGERS),
    "or_": _make("or_", _instruction("or_"), _INTEGERS),
    "xor": _make("xor", _instruction("xor"), _INTEGERS),
    "inc": _make("inc", _inc, _INTEGERS),
    "dec": _make("dec", _dec, _INTEGERS),
    "exch": _make("exch", _exch, _NUMBERS),
    "cas": atomic_cas,
    "compare_and_swap": atomic_compare_and_swap,
}
