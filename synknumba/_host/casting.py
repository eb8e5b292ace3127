"""Casting rules: checks a value against an array's dtype and dimensions before it is stored."""

import operator
from typing import Any, Literal, TypeAlias

import numpy as np

from synknumba._errors import DataError
from synknumba._host.copying import copy_into
from synknumba._types import Array, class_text

_DType: TypeAlias = np.dtype[Any]

_NUMBERS = "biufc"
# The dtype kinds that accept a Python number: its own kind and those above, of any width, as in NEP
# 50.
_WEAK_KINDS: dict[type, str] = {bool: "biufc", int: "iufc", float: "fc", complex: "c"}


def accept(
    value: Any, dtype: _DType, ndim: int | None, label: str, *, force_cast: bool | None = False
) -> Array:
    """Returns `value` as an array that `fill` can store in `dtype` without failing; raises
    DataError if it does not fit.

    Casts must be safe in NumPy's sense unless `force_cast` allows those that change values; it is
    None if the caller has no such option. With `ndim` None, any number of dimensions is accepted.
    `label` names the target in messages.
    """
    try:
        array = _as_array(value, dtype, force_cast=bool(force_cast))
    except (OverflowError, FloatingPointError) as error:
        raise DataError(f"{label} holds {dtype}, but the value does not fit: {error}") from error
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{label}: {class_text(value)} cannot be read as an array: {error}"
        ) from error
    if ndim is not None and array.ndim != ndim:
        raise DataError(
            f"{label} has {ndim} dimensions, but the value has {array.ndim} (shape {array.shape})"
        )
    if array.dtype.hasobject:
        raise DataError(
            f"{label}: the value has dtype {array.dtype}; give a fixed-size "
            f"dtype: value.astype({dtype})"
        )
    rule: Literal["unsafe", "safe"] = "unsafe" if force_cast else "safe"
    if not np.can_cast(array.dtype, dtype, rule):
        out = "convert it first"
        if force_cast is False:
            out += ", or pass force_cast=True to let values change"
        raise DataError(
            f"{label} holds {dtype}, but the value has dtype {array.dtype}, which "
            f"does not cast safely; {out}"
        )
    if array.dtype == dtype:
        return array
    if array.dtype.kind in _NUMBERS and dtype.kind in _NUMBERS:
        return array.real if array.dtype.kind == "c" and dtype.kind in "iuf" else array
    # casts of text, times and records can fail at any item, so they are done before anything is
    # stored
    try:
        return array.astype(dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(
            f"{label}: dtype {array.dtype} does not cast to {dtype}: {error}"
        ) from error


def as_index(value: Any) -> int:
    """Returns an integer that a script gives as an int; −1 for what is none, booleans too."""
    if isinstance(value, bool | np.bool):  # before NumPy 2.4 np.bool is an index, too
        return -1
    try:
        return operator.index(value)
    except TypeError:
        return -1


def fill(view: Array, source: Array) -> None:
    """Copies an accepted value into `view`."""
    with np.errstate(all="ignore"):  # `accept` has checked the value, or the cast was forced
        copy_into(view, source, "unsafe")


def _as_array(value: Any, dtype: _DType, *, force_cast: bool) -> Array:
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ValueError(
            "it has masked items, but shared memory has no mask; fill them "
            "first with value.filled(...)"
        )
    if not isinstance(value, np.ndarray | np.generic) and _is_weak(value, dtype):
        try:
            with np.errstate(over="raise"):
                return np.asarray(value, dtype)
        except (OverflowError, FloatingPointError):
            if not force_cast:
                raise
    return np.asarray(value)


def _is_weak(value: Any, dtype: _DType) -> bool:
    """Returns whether `value` consists of Python numbers, strings and tuples only, each of a
    kind that its field accepts.
    """
    if dtype.subdtype is not None:
        dtype = dtype.subdtype[0]
    if isinstance(value, list | range) or (isinstance(value, tuple) and dtype.names is None):
        return all(_is_weak(item, dtype) for item in value)
    if dtype.names is not None:
        if not isinstance(value, tuple) or len(value) != len(dtype.names):
            return False
        fields = [dtype[name] for name in dtype.names]
        return all(map(_is_weak, value, fields))
    if dtype.kind == "U":
        return type(value) is str and len(value) * 4 <= dtype.itemsize
    if dtype.kind == "S":
        return type(value) is bytes and len(value) <= dtype.itemsize
    return dtype.kind in _WEAK_KINDS.get(type(value), ())
