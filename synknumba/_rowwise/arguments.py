"""Arguments of functions of one row: what a kernel gets of each, its type and shape, and the shape
of a row of the result.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

import numpy as np
from numba import typeof
from numba.core import types
from numba.core.errors import NumbaError
from numba.np.numpy_support import from_dtype

from synknumba._call.arguments import IndexRange, PerRankValues, array_hint
from synknumba._errors import ArgumentError, DataError
from synknumba._host.data import Data
from synknumba._host.foreign import adopted, has_array
from synknumba._rowwise.generate import Kind
from synknumba._rowwise.map_kernels import OUT, Operand
from synknumba._types import RankConstant, Shape, class_text
from synknumba._variables.state import VariableState
from synknumba._variables.variable import Branch, Variable, layout_of, state_of

DType: TypeAlias = "np.dtype[Any]"

ARRAYS = frozenset({"rows", "whole"})

_PYTHON_NUMBERS = (bool, int, float, complex)  # a bool is an int, too

_MAX_AXES = 32  # that np.broadcast takes, though arrays of NumPy 2 may have 64


@final
@dataclass(frozen=True, slots=True)
class Description:
    """One argument of a call."""

    kind: Kind  # of the kernel's parameter
    element: Any  # Numba's type of one element
    shape: Shape = ()  # of an array; of rows, without the number of rows
    # class of a Python number, whose width does not affect the choice of a signature
    python: type | None = None

    @property
    def text(self) -> str:
        """The shape as error messages show it."""
        lengths = [*map(str, self.shape)]
        if self.kind == "rows":
            lengths.insert(0, "rows")
        return f"({', '.join(lengths)})"


# ---- one argument


def quick_key(value: Any, first: int = 1) -> Any:
    """The part of an array that decides on the kernel, where it is quick to compute; None
    otherwise.

    `first` is the first axis whose length matters: 1 where axis 0 is rows.
    """
    kind = type(value)
    if kind is Data or kind is np.ndarray:
        return kind, value.dtype, value.ndim, value.shape[first:]
    # its memory never changes dtype or shape
    if kind is Variable and (layout := layout_of(value))[1] >= 0:
        return layout
    return None


def type_key(value: Any) -> Any:
    """The part of an argument that decides on its type and kind, but not on its shape."""
    kind = value.__class__
    if kind is float or kind is int:
        return kind
    if kind is Data:
        return kind, value.dtype, value.ndim
    if isinstance(value, Variable):
        state = state_of(value)
        return Variable, *state.dtypes(), *map(len, state.root_shapes())
    if isinstance(value, PerRankValues):
        return PerRankValues, *map(type, value.values)
    return kind, getattr(value, "dtype", None), getattr(value, "ndim", None)


def kind_of(value: Any, is_broadcast: bool, is_sliceable: bool) -> Kind:
    """What a kernel gets of an argument; of rows that are numbers "rows"."""
    if isinstance(value, IndexRange):
        return "indices"
    has_rows = not is_broadcast
    if isinstance(value, Variable):
        has_rows = is_sliceable
    elif isinstance(value, np.generic) or not has_array(value):
        return "scalar"
    elif not np.ndim(value) and isinstance(value, Data):
        return "number"
    elif not np.ndim(value):  # a 0-d NumPy array is passed as a number
        return "scalar"
    return "rows" if has_rows else "whole"


def ndim_of(value: Any) -> int | None:
    """Number of axes of an array; None of a tree of several."""
    if not isinstance(value, Variable):
        return np.ndim(value)
    state = state_of(value)
    return None if state.is_tree else len(state.root_shapes()[0])


def describe(
    function: str, name: str, value: Any, *, broadcast: Collection[str], sliceable: Collection[str]
) -> Description:
    """The argument as the kernel gets it.

    Raises:
        ArgumentError: a function of numbers cannot take it.
    """
    if type(value) is int and not -(1 << 63) <= value < 1 << 64:
        raise ArgumentError(
            f"{name} of {function} is {value}, which does not fit in 64 bits; pass a float"
        )
    match value:
        case np.generic():
            return Description("scalar", _typeof(function, name, value))
        case bool() | int() | float() | complex():
            python = next(kind for kind in _PYTHON_NUMBERS if isinstance(value, kind))
            return Description("scalar", _typeof(function, name, value), python=python)
        case IndexRange():
            return Description("indices", types.int64)
        case Variable():
            return _describe_variable(function, name, state_of(value), rows=name in sliceable)
        case RankConstant():
            refuse_span(function, name, value)
            return Description("scalar", types.int64)
        case PerRankValues():
            return _describe_per_rank(function, name, value)
        case Branch():
            raise branch_error(function, name, value)
    if not has_array(value):
        raise ArgumentError(f"{name} of {function} is {class_text(value)}; {array_hint(value)}")
    array = as_array(function, name, value)
    element = _number(function, name, numba_type(array.dtype), array.dtype)
    kind, shape = kind_of(array, name in broadcast, name in sliceable), array.shape
    if kind == "rows":
        shape = shape[1:]
    return Description(kind, element, shape)


def as_array(function: str, name: str, value: Any) -> Any:
    """An argument as an array with a dtype of NumPy's."""
    if isinstance(value, Data | np.ndarray):
        return value
    return adopted(value, f"{name} of {function}")


def branch_error(function: str, name: str, branch: Branch) -> ArgumentError:
    """The error for a part of a tree of arrays."""
    return ArgumentError(
        f"{name} of {function} is {branch.label}, a part of a tree of arrays; "
        f"make one variable per array"
    )


def refuse_span(function: str, name: str, constant: Any) -> None:
    """Raises `ArgumentError` for a constant that is no number."""
    if constant is RankConstant.OWN:
        raise ArgumentError(
            f"{name} of {function} is synk.OWN, the span of a variable's own rows, which kernels "
            "and functions of arrays take; pass numbers, or name the variable in rows= to get "
            "its own rows"
        )


def _describe_variable(
    function: str, name: str, variable: VariableState, *, rows: bool
) -> Description:
    if variable.is_tree:
        raise ArgumentError(
            f"{name} of {function} is a tree of arrays; make one variable per array"
        )
    dtype = variable.dtypes()[0]
    shape = variable_shape(function, name, variable, rows=rows)
    element = _number(function, name, numba_type(dtype), dtype)
    if rows:
        return Description("rows", element, shape)
    return Description("whole", element, shape or (1,))  # a kernel gets one element


def variable_shape(function: str, name: str, variable: VariableState, rows: bool) -> Shape:
    """The shape of a variable's array, or of one row of it, which must be the same on every
    rank.
    """
    shapes: Sequence[Shape] = variable.root_shapes()
    if variable._layout[1] >= 0:  # noqa: SLF001  # as in a call
        shapes = variable.shapes()[0]
    hint = f'; if they are rows, name it in rows=("{name}",)'
    if rows:
        shapes, hint = [shape[1:] for shape in shapes], ""
    different = {*shapes}
    if len(different) > 1:
        raise DataError(
            f"{name} of {function} is {variable.label}, whose shape differs between "
            f"ranks: {sorted(different)}{hint}"
        )
    return different.pop()


def _describe_per_rank(function: str, name: str, value: PerRankValues) -> Description:
    kinds = {_typeof(function, name, rank_value) for rank_value in value.values}
    if len(kinds) != 1:
        type_names = ", ".join(sorted(map(str, kinds)))
        raise ArgumentError(
            f"{name}=per_rank(...) of {function} has values of several types "
            f"({type_names}); pass values of one type"
        )
    return Description("scalar", kinds.pop())


def _typeof(function: str, name: str, value: Any) -> Any:
    try:
        kind = typeof(value)
    except (ValueError, NotImplementedError):
        kind = None
    if isinstance(kind, types.IntEnumMember):
        raise ArgumentError(
            f"{name} of {function} is {value!r}, a member of an IntEnum; pass int({name})"
        )
    return _number(function, name, kind, np.asarray(value).dtype)


def numba_type(dtype: DType) -> Any:
    """Numba's type of a dtype, in native byte order; None where it has none."""
    try:
        return from_dtype(dtype.newbyteorder("="))
    # TypeError: a dtype without byte order, as NumPy's StringDType
    except (NumbaError, NotImplementedError, TypeError):
        return None


def _number(function: str, name: str, kind: Any, dtype: DType) -> Any:
    if not isinstance(kind, types.Number | types.Boolean):
        raise dtype_error(function, name, dtype)
    return kind


def dtype_error(function: str, name: str, dtype: DType) -> ArgumentError:
    """The error for an argument of a dtype without a type in Numba."""
    return ArgumentError(
        f"{name} of {function} has dtype {dtype}, which Numba cannot compute with; "
        f"convert it to a numeric one"
    )


# ---- shapes


def rows_hint(values: Mapping[str, Any], sliceable: Collection[str]) -> str:
    """How to pass a list or variables by rows, for a message about arguments without; "" if there
    is none to pass so.
    """
    held = []
    for name, value in values.items():
        if isinstance(value, list):
            return f"; {name} is a list: {array_hint(value)}"
        if isinstance(value, Variable) and name not in sliceable and ndim_of(value):
            held.append(name)
    if not held:
        return ""
    named = ", ".join(f'"{name}"' for name in held)
    return (
        f"; for the rows of {' and '.join(held)}, which a call passes whole, write "
        f"rows=({named},) in the decorator"
    )


def result_row(
    function: str, descriptions: Mapping[str, Description], out: Shape | None, hint: str = ""
) -> Shape:
    """The shape of a row of the result, by NumPy's rules of broadcasting; `out` is that of a row of
    `out=`, if there is one.

    `hint` ends the messages about arguments without rows.

    Raises:
        ArgumentError: no argument has rows.
        DataError: the shapes do not broadcast.
    """
    arrays, ndims, has_indices = {}, {}, False
    for name, description in descriptions.items():
        if description.kind in ARRAYS:
            arrays[name] = description
        has_indices |= description.kind == "indices"
    if out is not None:
        arrays[OUT] = Description("rows", None, out)
    for name, description in arrays.items():
        if description.kind == "rows":
            ndims[name] = len(description.shape)
    if not (ndims or has_indices):
        raise ArgumentError(
            f"{function} gets one element of each row, but none of its arguments has rows; pass "
            f"Data, an array, synknumba.arange(n) for the indices 0 … n − 1, or out={hint}"
        )
    for name, description in arrays.items():
        if len(description.shape) > _MAX_AXES:
            rows = int(description.kind == "rows")
            raise DataError(
                f"{name} of {function} has {len(description.shape) + rows} dimensions; at most "
                f"{_MAX_AXES + rows} can be broadcast. Pass it with fewer, as by "
                f"{name}.reshape(len({name}), -1), and reshape the result"
            )
    axes = _common_axes(function, ndims)
    row = _broadcast([description.shape for description in arrays.values()], axes)
    if row is not None and out in {None, row}:
        return row
    texts = ", ".join(f"{name} {description.text}" for name, description in arrays.items())
    raise DataError(
        f"{function}: the shapes {texts} do not broadcast. As in NumPy, trailing "
        f"axes are aligned; only sharded arguments have an axis for the rows{hint}"
    )


def _common_axes(function: str, ndims: Mapping[str, int]) -> int:
    """The axes of a row, from those of each array of rows; raises `DataError` if they differ."""
    axes = max(ndims.values(), default=0)
    for name, ndim in ndims.items():
        if ndim == axes:
            continue
        most = max(ndims, key=ndims.__getitem__)
        ones = ", ".join("1" * (axes - ndim))
        way_out = f"reshape it to (n, {ones}, …), or name it in broadcast="
        if name == OUT:
            way_out = "out needs as many as the arguments"
        raise DataError(
            f"{name} of {function} has {ndim + 1} dimensions and {most} has {axes + 1}; {way_out}"
        )
    return axes


def _broadcast(shapes: Sequence[Shape], axes: int) -> Shape | None:
    """The shape that others broadcast to, with `axes` axes; None if they do not.

    A whole array may have the rows' axis too, with length 1.
    """
    try:
        shape = np.broadcast_shapes(*shapes, (1,) * axes)
    except ValueError:
        return None
    if len(shape) == axes + 1 and shape[0] == 1:
        return shape[1:]
    return shape if len(shape) == axes else None


def merged(descriptions: Mapping[str, Description], row: Shape) -> dict[str, Description] | None:
    """The arguments with the axes of a row merged into one; None where an array has only some of
    the result's axes.
    """
    flat = {}
    for name, description in descriptions.items():
        flat[name] = description
        if description.kind in ARRAYS:
            size = math.prod(description.shape)
            if size != 1 and description.shape != row:
                return None
            flat[name] = replace(description, shape=(size,))
    return flat


def operand(description: Description, row: Shape, cast: str | None) -> Operand:
    """The argument as the kernel reads it, for rows of the result of shape `row`."""
    shape = description.shape
    if description.kind not in ARRAYS or not shape:
        return Operand(description.kind, (), cast)
    lengths = (0, *row)[len(row) + 1 - len(shape) :]
    is_full = tuple(mine == length for mine, length in zip(shape, lengths, strict=True))
    return Operand(description.kind, is_full, cast)
