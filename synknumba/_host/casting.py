"""Casting rules: checks a value against the dtype and number of dimensions of an array before anything is stored."""

from typing import Any, TypeAlias

import numpy as np

from synknumba._errors import DataError
from synknumba._host.copying import copy_into
from synknumba._types import Array

_DType: TypeAlias = np.dtype[Any]

_NUMBERS = "biufc"
# The dtype kinds that accept a Python number: its own kind and those above, of any width, as in NEP 50.
_WEAK_KINDS: dict[type, str] = {bool: "biufc", int: "iufc", float: "fc", complex: "c"}


def accept(value: Any, dtype: _DType, ndim: int | None, label: str, *, force_cast: bool | None = False) -> Array:
    """Returns `value` as an array that `fill` can store without failing.

    Args:
        value: array, number or nested list.
        dtype: dtype of the target; casts must be safe in NumPy's sense.
        ndim: required number of dimensions; None for any.
        label: name of the target in error messages.
        force_cast: allow casts that change values; None if the caller has no such option.

    Raises:
        DataError: the value does not fit.
    """
    try:
        array = _as_array(value, dtype, force_cast=bool(force_cast))
    except (OverflowError, FloatingPointError) as error:
        msg = f"{label} holds {dtype}, but the value does not fit: {error}"
        raise DataError(msg) from error
    except (TypeError, ValueError) as error:
        msg = f"{label}: a {type(value).__name__} cannot be read as an array: {error}"
        raise DataError(msg) from error
    if ndim is not None and array.ndim != ndim:
        msg = f"{label} has {ndim} dimensions, but the value has {array.ndim} (shape {array.shape})"
        raise DataError(msg)
    return _castable(array, dtype, label, force_cast=force_cast)


def fill(view: Array, source: Array) -> None:
    """Copies an accepted value into `view`."""
    with np.errstate(all="ignore"):  # `accept` has checked the value, or the cast was forced
        copy_into(view, source, "unsafe")


def _castable(array: Array, dtype: _DType, label: str, *, force_cast: bool | None) -> Array:
    if array.dtype.hasobject:
        msg = f"{label}: the value has dtype {array.dtype}; give a fixed-size dtype: value.astype({dtype})"
        raise DataError(msg)
    if not np.can_cast(array.dtype, dtype, "unsafe" if force_cast else "safe"):
        out = "convert it first" + (", or pass force_cast=True to let values change" if force_cast is False else "")
        msg = f"{label} holds {dtype}, but the value has dtype {array.dtype}, which does not cast safely; {out}"
        raise DataError(msg)
    if array.dtype == dtype:
        return array
    if array.dtype.kind in _NUMBERS and dtype.kind in _NUMBERS:
        return array.real if array.dtype.kind == "c" and dtype.kind in "iuf" else array
    try:  # casts of text, times and records can fail at any item, so they are done before anything is stored
        return array.astype(dtype)
    except (TypeError, ValueError, OverflowError) as error:
        msg = f"{label}: dtype {array.dtype} does not cast to {dtype}: {error}"
        raise DataError(msg) from error


def _as_array(value: Any, dtype: _DType, *, force_cast: bool) -> Array:
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        msg = "it has masked items, but shared memory has no mask; fill them first with value.filled(...)"
        raise ValueError(msg)
    if not isinstance(value, np.ndarray | np.generic) and _is_weak(value, dtype):
        try:
            with np.errstate(over="raise"):
                return np.asarray(value, dtype)
        except (OverflowError, FloatingPointError):
            if not force_cast:
                raise
    return np.asarray(value)


def _is_weak(value: Any, dtype: _DType) -> bool:
    """Returns whether `value` consists of Python numbers, strings and tuples only, each of a kind that its field accepts."""
    if dtype.subdtype is not None:
        dtype = dtype.subdtype[0]
    if isinstance(value, list | range) or (isinstance(value, tuple) and dtype.names is None):
        return all(_is_weak(item, dtype) for item in value)
    if dtype.names is not None:
        fits = isinstance(value, tuple) and len(value) == len(dtype.names)
        return fits and all(_is_weak(item, dtype[name]) for item, name in zip(value, dtype.names, strict=True))
    if dtype.kind == "U":
        return type(value) is str and len(value) * 4 <= dtype.itemsize
    if dtype.kind == "S":
        return type(value) is bytes and len(value) <= dtype.itemsize
    return dtype.kind in _WEAK_KINDS.get(type(value), ())
