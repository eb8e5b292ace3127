"""What NumPy says that calls with slices, selections and updates give."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

UFUNCS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
# kinds of dtype that an op is not defined for
REFUSED = {
    "sum": "b",
    "prod": "b",
    "min": "c",
    "max": "c",
}


def identity(op: str, dtype: Any) -> Any:
    """What changes nothing."""
    dtype = np.dtype(dtype)
    if op in {"sum", "prod"}:
        return dtype.type(op == "prod")
    if dtype.kind == "b":
        return dtype.type(op == "min")
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return dtype.type(info.max if op == "min" else info.min)
    return dtype.type(np.inf if op == "min" else -np.inf)


def cut(array: Any, parts: int) -> list[Any]:
    """The parts of an array, by NumPy's own cutting of a line, cut off to whole numbers."""
    edges = np.trunc(np.linspace(0, len(array), parts + 1)).astype(int)
    return [array[low:high] for low, high in itertools.pairwise(edges)]


def updated(
    op: str, first: Any, rows: Any, num_slices: int, term: Callable[[Any, Any], Any]
) -> Any:
    """A rank's variable after a call on its rows: slices put together, each of them with the old
    variable.

    Args:
        op: that puts together.
        first: the old variable.
        rows: of the rank.
        num_slices: that it cuts them into.
        term: a slice and the old variable to what is reduced along axis 0.
    """
    result = np.full(np.shape(first), identity(op, np.asarray(first).dtype))
    with np.errstate(all="ignore"):
        for part in cut(rows, num_slices):
            if len(part):
                values = term(part, first)
                result = UFUNCS[op](result, UFUNCS[op].reduce(values, axis=0, dtype=values.dtype))
    return np.asarray(result, np.asarray(first).dtype)


def select(selection: Any, array: Any) -> Any:
    """What a batch, or one rank's local_batch, selects of an array; an int is the first rows."""
    if selection is None:
        return array
    if isinstance(selection, int | np.integer):
        return array[: int(selection)]
    if isinstance(selection, slice):
        return array[selection]
    return array[np.asarray(selection, np.int64 if len(selection) == 0 else None)]


def mean(parts: Sequence[Any], weights: Sequence[int]) -> Any:
    """The mean of the parts that have weight."""
    kept = [(part, weight) for part, weight in zip(parts, weights, strict=True) if weight]
    return np.average([part for part, _ in kept], axis=0, weights=[weight for _, weight in kept])
