"""Arguments of a vectorized function: the type and shape of one row of each, and the shape of a
row of the result.
"""

import math
from collections.abc import Collection, Mapping
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
from synknumba._host.foreign import adopted
from synknumba._rowwise.map_kernels import OUT, Kind, Operand
from synknumba._types import RankConstant, Shape
from synknumba._variables.state import VariableState
from synknumba._variables.variable import Branch, Variable, layout_of, state_of

DType: TypeAlias = "np.dtype[Any]"

_ARRAYS = frozenset({"rows", "whole"})


@final
@dataclass(frozen=True, slots=True)
class Given:
    """One argument of a call."""

    kind: Kind  # of the kernel's parameter
    element: Any  # Numba's type of one element
    shape: Shape = ()  # of an array; of rows, without the number of rows
    python: type | None = (
        None  # class of a Python number, whose width does not affect the choice of a signature
    )

    @property
    def text(self) -> str:
        """The shape as error messages show it."""
        rows = ("rows",) if self.kind == "rows" else ()
        return f"({', '.join(map(str, (*rows, *self.shape)))})"


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


def describe(
    function: str, name: str, value: Any, *, broadcast: Collection[str], sliceable: Collection[str]
) -> Given:
    """The argument as the kernel gets it.

    Raises:
        ArgumentError: a function of numbers cannot take it.
    """
    if type(value) is int and not -(1 << 63) <= value < 1 << 64:
        raise ArgumentError(
            f"{name} of {function} is {value}, which does not fit in 64 bits; pass a float"
        )
    if isinstance(value, bool | int | float | complex | np.generic):
        return Given(
            "scalar",
            _typeof(function, name, value),
            python=None if isinstance(value, np.generic) else type(value),
        )
    if isinstance(value, IndexRange):
        return Given("indices", types.int64)
    if isinstance(value, Variable):
        return _describe_variable(function, name, state_of(value), rows=name in sliceable)
    if isinstance(value, RankConstant):
        refuse_span(function, name, value)
        return Given("scalar", types.int64)
    if isinstance(value, PerRankValues):
        return _describe_per_rank(function, name, value)
    if isinstance(value, Branch):
        raise ArgumentError(
            f"{name} of {function} is {value.label}, a part of a tree of arrays; "
            f"make one variable per array"
        )
    if not hasattr(value, "__array__"):
        raise ArgumentError(
            f"{name} of {function} is a {type(value).__name__}; {array_hint(value)}"
        )
    array = (
        value if isinstance(value, Data | np.ndarray) else adopted(value, f"{name} of {function}")
    )
    kind = _number(function, name, numba_type(array.dtype), array.dtype)
    if array.ndim == 0:
        # a 0-d NumPy array is passed as a number
        return Given("number" if isinstance(array, Data) else "scalar", kind)
    return (
        Given("whole", kind, array.shape)
        if name in broadcast
        else Given("rows", kind, array.shape[1:])
    )


def refuse_span(function: str, name: str, constant: Any) -> None:
    """Raises `ArgumentError` for a constant that is no number."""
    if constant is RankConstant.OWN:
        raise ArgumentError(
            f"{name} of {function} is synk.OWN, the span of a variable's own rows, which kernels "
            "and functions of arrays take; pass numbers, or name the variable in sliceable= to get "
            "its own rows"
        )


def _describe_variable(function: str, name: str, variable: VariableState, *, rows: bool) -> Given:
    if variable.is_tree:
        raise ArgumentError(
            f"{name} of {function} is a tree of arrays; make one variable per array"
        )
    shape = variable_shape(function, name, variable, rows=rows)
    kind = _number(function, name, numba_type(variable.dtypes()[0]), variable.dtypes()[0])
    if not shape and not rows:
        return Given("whole", kind, (1,))  # its shape in a kernel
    return Given("rows" if rows else "whole", kind, shape)


def variable_shape(function: str, name: str, variable: VariableState, *, rows: bool) -> Shape:
    """The shape of a variable's array, or of one row of it, which must be the same on every
    rank.
    """
    shapes = variable.shapes()[0] if variable._layout[1] >= 0 else tuple(variable.root_shapes())  # noqa: SLF001  # as in a call
    row_shapes = {shape[1:] if rows else shape for shape in shapes}
    if len(row_shapes) > 1:
        hint = "" if rows else f'; if they are rows, name it in sliceable=("{name}",)'
        raise DataError(
            f"{name} of {function} is {variable.label}, whose shape differs between "
            f"ranks: {sorted(row_shapes)}{hint}"
        )
    return row_shapes.pop()


def _describe_per_rank(function: str, name: str, value: PerRankValues) -> Given:
    kinds = {_typeof(function, name, rank_value) for rank_value in value.values}
    if len(kinds) != 1:
        type_names = ", ".join(sorted(map(str, kinds)))
        raise ArgumentError(
            f"{name}=per_rank(...) of {function} has values of several types "
            f"({type_names}); pass values of one type"
        )
    return Given("scalar", kinds.pop())


def _typeof(function: str, name: str, value: Any) -> Any:
    try:
        kind = typeof(value)
    except (ValueError, NotImplementedError):
        kind = None
    return _number(function, name, kind, np.asarray(value).dtype)


def numba_type(dtype: DType) -> Any:
    """Numba's type of a dtype, in native byte order; None where it has none."""
    try:
        return from_dtype(dtype.newbyteorder("="))
    # TypeError: a dtype without byte order, as NumPy's StringDType
    except (
        NumbaError,
        NotImplementedError,
        TypeError,
    ):
        return None


def _number(function: str, name: str, kind: Any, dtype: DType) -> Any:
    if not isinstance(kind, types.Number | types.Boolean):
        raise ArgumentError(
            f"{name} of {function} has dtype {dtype}, which Numba cannot compute with; "
            f"convert it to a numeric one"
        )
    return kind


# ---- shapes


def rows_hint(values: Mapping[str, Any], sliceable: Collection[str]) -> str:
    """How to pass variables by rows, for a message about arguments without; "" if there is none
    to pass so.
    """
    held = [
        name
        for name, value in values.items()
        if isinstance(value, Variable)
        and name not in sliceable
        and not state_of(value).is_tree
        and state_of(value).root_shapes()[0]
    ]
    if not held:
        return ""
    named = ", ".join(f'"{name}"' for name in held)
    return (
        f"; for the rows of {' and '.join(held)}, which a call passes whole, write "
        f"sliceable=({named},) in the decorator"
    )


def result_row(
    function: str, descriptions: Mapping[str, Given], out: Shape | None, hint: str = ""
) -> Shape:
    """The shape of a row of the result, by NumPy's rules of broadcasting; `out` is that of a row of
    `out=`, if there is one.

    `hint` ends the messages about arguments without rows.

    Raises:
        ArgumentError: no argument has rows.
        DataError: the shapes do not broadcast.
    """
    ndims = {
        name: len(description.shape)
        for name, description in descriptions.items()
        if description.kind == "rows"
    }
    ndims |= {} if out is None else {OUT: len(out)}
    if not ndims and not any(
        description.kind == "indices" for description in descriptions.values()
    ):
        raise ArgumentError(
            f"{function} gets one element of each row, but none of its arguments has rows; pass "
            f"Data, an array, synknumba.arange(n) for the indices 0 … n − 1, or out={hint}"
        )
    axes = max(ndims.values(), default=0)
    for name, ndim in ndims.items():
        if ndim != axes:
            most = next(neighbour for neighbour, ndim in ndims.items() if ndim == axes)
            way_out = (
                f"reshape it to (n, {', '.join('1' * (axes - ndim))}, …), or name it in broadcast="
            )
            way_out = "out needs as many as the arguments" if name == OUT else way_out
            raise DataError(
                f"{name} of {function} has {ndim + 1} dimensions and {most} "
                f"has {axes + 1}; {way_out}"
            )
    shapes = [
        description.shape for description in descriptions.values() if description.kind in _ARRAYS
    ] + ([] if out is None else [out])
    try:
        result = np.broadcast_shapes(*shapes, (1,) * axes)
    except ValueError:
        result = None
    if result is not None and len(result) == axes + 1 and result[0] == 1:
        result = result[1:]  # a whole array has the rows' axis too, with length 1
    if result is None or len(result) != axes or (out is not None and result != out):
        arrays = [
            f"{name} {description.text}"
            for name, description in descriptions.items()
            if description.kind in _ARRAYS
        ]
        arrays += [] if out is None else [f"{OUT} {Given('rows', None, out).text}"]
        raise DataError(
            f"{function}: the shapes {', '.join(arrays)} do not broadcast. As in NumPy, trailing "
            f"axes are aligned; only sharded arguments have an axis for the rows{hint}"
        )
    return result


def merged(descriptions: Mapping[str, Given], row: Shape) -> dict[str, Given] | None:
    """The arguments with the axes of a row merged into one; None where an array has only some of
    the result's axes.
    """
    flat = {}
    for name, description in descriptions.items():
        size = math.prod(description.shape)
        if description.kind in _ARRAYS and description.shape != row and size != 1:
            return None
        flat[name] = (
            replace(description, shape=(size,)) if description.kind in _ARRAYS else description
        )
    return flat


def operand(description: Given, row: Shape, cast: str | None) -> Operand:
    """The argument as the kernel reads it, for rows of the result of shape `row`."""
    if description.kind not in _ARRAYS:
        return Operand(description.kind, (), cast)
    lengths = (0, *row)[len(row) + 1 - len(description.shape) :] if description.shape else ()
    return Operand(
        description.kind,
        tuple(mine == length for mine, length in zip(description.shape, lengths, strict=True)),
        cast,
    )
