"""CUDA's vector types, such as `cuda.float32x4`: named tuples with the fields x, y, z and w."""

from collections import namedtuple
from collections.abc import Callable
from typing import Any, Final

from numba.core import cgutils, errors, types
from numba.extending import intrinsic, overload

# Names of the base types in CUDA C, by Numba's name.
_ALIASES: Final = {
    "int8": ("char",),
    "int16": ("short",),
    "int32": ("int",),
    "int64": ("long", "longlong"),
    "uint8": ("uchar",),
    "uint16": ("ushort",),
    "uint32": ("uint",),
    "uint64": ("ulong", "ulonglong"),
    "float32": ("float",),
    "float64": ("double",),
}
FIELDS: Final = ("x", "y", "z", "w")


def _make(base: types.Type, count: int) -> Callable[..., Any]:
    """Returns the constructor of a vector type, which takes numbers and shorter vectors of the
    same base type.
    """
    name = f"{base}x{count}"
    fields = namedtuple(name, FIELDS[:count])  # type: ignore[misc]  # one type per base and length
    result = types.NamedUniTuple(base, count, fields)

    def length(part: types.Type) -> int:
        """Returns the number of elements of an argument."""
        if isinstance(part, types.NamedUniTuple) and part.dtype == base:
            return int(part.count)
        if isinstance(types.unliteral(part), (types.Integer, types.Float, types.Boolean)):
            return 1
        raise errors.NumbaTypeError(
            f"cuda.{name} is made of numbers and of vectors of {base}, not of {part}"
        )

    @intrinsic  # type: ignore[untyped-decorator]
    def build(_context: Any, parts: types.Type) -> Any:
        kinds = tuple(parts)
        elements = sum(map(length, kinds))
        if elements != count:
            raise errors.NumbaTypeError(f"cuda.{name} needs {count} elements, got {elements}")

        def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            values = []
            unpacked = cgutils.unpack_tuple(builder, args[0], len(kinds))
            for kind, part in zip(kinds, unpacked, strict=True):
                if isinstance(kind, types.BaseTuple):
                    values += cgutils.unpack_tuple(builder, part, kind.count)
                else:
                    values.append(context.cast(builder, part, kind, base))
            return context.make_tuple(builder, result, values)

        return result(parts), codegen

    def construct(*parts):  # type: ignore[no-untyped-def]  # noqa: ANN002, ANN202
        return fields(*parts)

    construct.__name__ = construct.__qualname__ = name

    @overload(construct, jit_options={"forceinline": True})
    def _construct(*parts):  # type: ignore[no-untyped-def]  # noqa: ANN002, ANN202  # must match the lambda
        del parts
        return lambda *parts: build(parts)

    return construct


def _vectors() -> dict[str, Any]:
    vectors = {}
    for base, aliases in _ALIASES.items():
        for count in range(1, len(FIELDS) + 1):
            constructor = _make(getattr(types, base), count)
            for name in (f"{base}x", *aliases):
                vectors[f"{name}{count}"] = constructor
    return vectors


# Path below `numba.cuda` -> constructor.
VECTORS: Final = _vectors()
