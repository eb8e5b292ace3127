"""Whether a function of one row gets arguments that it can have, and returns real numbers: told before ranks are asked.

arguments ── types of what the function gets ──> Numba's inference, nothing compiled ──> type of what it returns
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from synknumba import simt
from synknumba._call.arguments import IndexRange, PerRankValues
from synknumba._call.distribute import InnerFunction
from synknumba._errors import ArgumentError, KernelError
from synknumba._host.data import Data
from synknumba._rowwise.generate import define_kernel, kernel_name
from synknumba._rowwise.map_kernels import probe_source
from synknumba._rowwise.moment_kernels import ARRAYS_OF_ROWS, Kind
from synknumba._types import DeviceKind, RankConstant
from synknumba._variables.variable import Variable


def type_key(value: Any) -> Any:
    """What of an argument decides on its type, and on what of it the function gets."""
    if isinstance(value, Data | np.ndarray):
        return value.__class__, value.dtype, value.ndim
    if isinstance(value, Variable):
        return Variable, *value.dtypes(), *map(len, value.root_shapes())
    if isinstance(value, PerRankValues):
        return PerRankValues, *map(type, value.values)
    return type(value), getattr(value, "dtype", None), getattr(value, "ndim", None)


def check_types(
    inner: InnerFunction,
    parameters: Mapping[str, Kind],
    values: Mapping[str, Any],
    *,
    size: int | None,
    weight: str | None,
    device: DeviceKind,
) -> None:
    """Refuses arguments that no kernel can have, and functions that do not return what they must.

    What Numba finds wrong inside the function is left to the ranks, which tell it with its place in the source.

    Args:
        inner: the function.
        parameters: what of each argument it gets.
        values: the arguments.
        size: of the tuple that it returns; None for a number.
        weight: the parameter that is the row's weight, if one is.
        device: that computes.

    Raises:
        ArgumentError: with the names that the user gave.
    """
    found = {name: _type_of(inner.name, name, value, parameters[name], device) for name, value in values.items()}
    if weight and not _is_real(found[weight]):
        message = f"weights={weight!r} of {inner.name} must be an array with a real number for each row, got {found[weight]}"
        raise ArgumentError(message)
    if any(kind is None for kind in found.values()):
        return
    kind = _returned(inner, tuple(found.values()))
    if kind is not None and not _fits(kind, size):
        wanted = "a real number" if size is None else f"a tuple of {size} real numbers"
        told = ", ".join(f"{name}: {kind}" for name, kind in found.items())
        message = f"{inner.name}({told}) returns {kind}; an expectation needs {wanted} for each row. {_way_out(kind)}"
        raise ArgumentError(message)


def _type_of(function: str, name: str, value: Any, told: Kind, device: DeviceKind) -> Any:
    """What the function gets, as Numba's type; None where only the ranks can tell."""
    from numba import typeof  # noqa: PLC0415  # not when synknumba is imported
    from numba.core import types  # noqa: PLC0415
    from numba.core.errors import NumbaError  # noqa: PLC0415

    if isinstance(value, Variable):
        if value.is_tree:
            return None
        dtype, ndim = value.dtype, len(next(iter(value.root_shapes())))
    elif isinstance(value, IndexRange | RankConstant):
        return types.int64
    elif hasattr(value, "__array__"):
        array = value if isinstance(value, Data | np.ndarray) else np.asarray(value)
        dtype, ndim = array.dtype, array.ndim
    elif isinstance(value, list | set):
        return None  # refused by the call; Numba warns of them
    else:
        try:
            return typeof(value.values[0] if isinstance(value, PerRankValues) else value)
        except (ValueError, IndexError, NotImplementedError, NumbaError):
            return None
    element = _element(function, name, dtype, device)
    axes = ndim - 1 if told in ARRAYS_OF_ROWS else ndim
    return types.Array(element, axes, "C") if axes > 0 else element


def _element(function: str, name: str, dtype: "np.dtype[Any]", device: DeviceKind) -> Any:
    from numba.core.errors import NumbaError  # noqa: PLC0415
    from numba.np.numpy_support import from_dtype  # noqa: PLC0415

    try:
        kind = None if dtype.hasobject else from_dtype(dtype.newbyteorder("="))
    except (NumbaError, NotImplementedError):
        kind = None
    if kind is None:
        message = f"{name} of {function} has dtype {dtype}, which Numba does not compute with; convert it to one of numbers"
        raise ArgumentError(message)
    if dtype == np.float16 and device == "cpu":
        message = f"{name} of {function} has dtype float16, which cores do not compute with; convert it, for example to float32"
        raise ArgumentError(message)
    return kind


def _returned(inner: InnerFunction, kinds: tuple[Any, ...]) -> Any:
    """The type of what the function returns; None if Numba does not find it."""
    from numba.core import types  # noqa: PLC0415
    from numba.core.errors import NumbaError  # noqa: PLC0415

    name = kernel_name("type_of", inner.py_func.__name__)
    text = probe_source(name, [f"synk_{position}" for position in range(len(kinds))])
    probe = simt.jit(define_kernel(text, name, "expectation", inner.device_function, {}), cache=False)
    try:
        found = probe.type_of("synk_value", *kinds)
    except (NumbaError, KernelError, NotImplementedError):
        return None
    return None if found is types.unknown else found


def _fits(kind: Any, size: int | None) -> bool:
    from numba.core import types  # noqa: PLC0415

    if size is None:
        return _is_real(kind)
    return isinstance(kind, types.BaseTuple) and len(kind) == size and all(_is_real(one) for one in kind)


def _is_real(kind: Any) -> bool:
    from numba.core import types  # noqa: PLC0415

    return isinstance(kind, types.Integer | types.Float | types.Boolean)


def _way_out(kind: Any) -> str:
    from numba.core import types  # noqa: PLC0415

    if isinstance(kind, types.Optional):
        return "On some path it returns None, or nothing; return numbers on every path"
    parts = [*kind] if isinstance(kind, types.BaseTuple) else [kind]
    if any(isinstance(one, types.Complex) for one in parts):
        return "Return the real and the imaginary part as two values"
    if any(isinstance(one, types.Array) for one in parts):
        return (
            "Of rows with more dimensions the function gets an array; return its elements as a tuple, or a number made of them"
        )
    if isinstance(kind, types.BaseTuple) and all(_is_real(one) for one in parts):
        return "Give size=: the length of the tuple, or 0 for a number"
    return "Return numbers"
