"""What a `Data` is declared to be: dtype, shape, and how many items to reserve; refused in words that name it."""

import operator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from synknumba._errors import DataError
from synknumba._types import Shape

_DType: TypeAlias = np.dtype[Any]


def declared(label: str, dtype: DTypeLike | None, shape: int | Shape | None, ndim: int | None) -> tuple[_DType, Shape]:
    """The dtype and the first shape where no value is given: of zeros where only `ndim` is."""
    if dtype is None or (shape is None and ndim is None):
        given = {"dtype": dtype, "shape": shape, "ndim": ndim}
        got = ", ".join(f"{key}={item!r}" for key, item in given.items() if item is not None) or "nothing"
        msg = f"{label} needs value, or dtype with shape or ndim; got {got}"
        raise DataError(msg)
    dims = (0,) * checked_size(label, "ndim", ndim or 0) if shape is None else checked_shape(label, shape)
    if ndim is not None and len(dims) != ndim:
        msg = f"{label}: shape {dims} has {len(dims)} dimensions but ndim is {ndim}; give one of them"
        raise DataError(msg)
    return checked_dtype(label, dtype), dims


def checked_dtype(label: str, dtype: DTypeLike) -> _DType:
    """The dtype in native byte order, where its items have one size and lie in place."""
    try:
        checked: _DType = np.dtype(dtype)
    except TypeError as error:
        msg = f"{label}: {dtype!r} is not a dtype: {error}"
        raise DataError(msg) from error
    if checked.hasobject or checked.itemsize == 0 or checked.subdtype is not None:
        hint = " such as float64, U16 or a structured dtype of those; put the dimensions of a subarray into shape"
        msg = f"{label}: dtype {checked} cannot be shared between processes; give a fixed-size dtype{hint}"
        raise DataError(msg)
    return checked.newbyteorder("=")


def checked_shape(label: str, shape: int | Shape) -> Shape:
    """The shape as a tuple, of one dimension where it is a number."""
    sizes = shape if isinstance(shape, tuple | list) else (shape,)
    return tuple(checked_size(label, "shape", size) for size in sizes)


def checked_size(label: str, argument: str, size: Any) -> int:
    """A number of rows, items or dimensions."""
    try:
        checked = operator.index(size)
    except TypeError:
        checked = -1
    if checked < 0:
        msg = f"{label}: {argument} must be of integers of at least 0, got {size!r}"
        raise DataError(msg)
    return checked


def check_oversize(oversize: float) -> None:
    """Refuses what is no factor from 1 to 2."""
    if not isinstance(oversize, int | float | np.integer | np.floating) or not 1 <= oversize <= 2:
        msg = f"oversize must be a number from 1 to 2, got {oversize!r}"
        raise DataError(msg)


def oversized(size: int, oversize: float) -> int:
    """How many items to reserve for so many."""
    return size if oversize == 1 else max(size, round(size * float(oversize)))  # 20000 × 1.1 is 22000.000000000004
