"""Types of records that kernels only read: those of read-only arrays, and read-only records
themselves.

Numba refuses to write to a read-only array, but a record of one is a pointer into it, to whose
fields it writes. Such records have types of their own here, down to nested records and arrays, so
that Numba refuses these writes too.
"""

from functools import cache
from typing import Any, Final

import numpy as np
from numba.core import errors, types
from numba.core.datamodel import default_manager, models
from numba.core.imputils import Registry, impl_ret_borrowed
from numba.core.registry import cpu_target
from numba.core.typeconv import Conversion
from numba.extending import intrinsic

REFUSAL: Final = "Cannot modify readonly array"  # how Numba's own error for arrays begins


class ReadonlyRecord(types.Record):  # type: ignore[misc]
    """A record of which nothing may be written.

    Args:
        plain: the same record without the restriction.
    """

    mutable = False

    def __init__(self, plain: types.Record) -> None:
        fields = [
            (name, field._replace(type=_readonly_field(field.type))._asdict())
            for name, field in plain.fields.items()
        ]
        super().__init__(fields, plain.size, plain.aligned)
        self.name: str = f"readonly {self.name}"
        self.plain = plain

    def can_convert_to(self, typingctx: Any, other: types.Type) -> Conversion | None:
        """Allows a copy of the record to be writable; a variable that holds either kind has this
        type.
        """
        del typingctx
        if other == self.plain:
            return Conversion.unsafe
        return None

    def can_convert_from(self, typingctx: Any, other: types.Type) -> Conversion | None:
        """Allows a variable of this type to hold a writable record, too."""
        del typingctx
        if other == self.plain:
            return Conversion.safe
        return None


class ReadonlyNestedArray(types.NestedArray):  # type: ignore[misc]
    """An array in a record of which nothing may be written."""

    def __init__(self, dtype: types.Type, shape: tuple[int, ...]) -> None:
        super().__init__(dtype, shape)
        self.name: str = f"readonly {self.name}"
        self.mutable = False


def _readonly_field(kind: types.Type) -> types.Type:
    """Returns the type of a read-only field."""
    if isinstance(kind, types.Record):
        return readonly(kind)
    if isinstance(kind, types.NestedArray):
        return ReadonlyNestedArray(_readonly_field(kind.dtype), kind.shape)
    return kind


def readonly(kind: types.Record) -> types.Record:
    """Returns the type of a record of which nothing may be written."""
    _register()
    if isinstance(kind, ReadonlyRecord):
        return kind
    return ReadonlyRecord(kind)


def protected(kind: types.Type, arg: Any) -> types.Type:
    """Returns the type of an argument, with that of its records if these may only be read.

    Args:
        kind: Numba's type of it.
        arg: the argument.
    """
    if isinstance(kind, types.Array) and not kind.mutable:
        if isinstance(kind.dtype, (types.Record, types.NestedArray)):
            return kind.copy(dtype=_readonly_field(kind.dtype))
        return kind
    if isinstance(kind, types.Record) and isinstance(arg, np.void):
        if arg.flags.writeable:
            return kind
        return readonly(kind)
    if isinstance(kind, types.BaseTuple) and isinstance(arg, tuple):
        parts = tuple(map(protected, kind.types, arg))
        if parts != tuple(kind.types):
            return types.BaseTuple.from_types(parts, getattr(kind, "instance_class", None))
    return kind


@intrinsic  # type: ignore[untyped-decorator]
def as_protected(_context: Any, value: types.Type) -> tuple[Any, Any]:
    """Gives an array of the kernel's the type that `protected` gives to an argument: a global
    array, or a view as records.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return impl_ret_borrowed(context, builder, signature.return_type, args[0])

    return protected(value, None)(value), codegen


@cache
def _register() -> None:
    """Registers the types with Numba, once."""
    default_manager.register(ReadonlyRecord, models.RecordModel)
    default_manager.register(ReadonlyNestedArray, models.NestedArrayModel)
    code = Registry("synknumba: read-only records")

    @code.lower_setattr_generic(ReadonlyRecord)
    def refuse(_context: Any, _builder: Any, signature: Any, _args: Any, attr: str) -> None:
        raise errors.TypingError(
            f"{REFUSAL}: field {attr!r} of a record of type {signature.args[0]}"
        )

    @code.lower_cast(ReadonlyRecord, types.Record)
    @code.lower_cast(types.Record, ReadonlyRecord)
    def cast(
        _context: Any, _builder: Any, _fromty: types.Type, _toty: types.Type, value: Any
    ) -> Any:
        return value  # both are pointers; what is stored is copied

    import numba.core.boxing  # noqa: F401  # registers how records are passed

    # the first registry must be Numba's: it puts the code of intrinsics there
    cpu_target.target_context.refresh()
    cpu_target.target_context.install_registry(code)
