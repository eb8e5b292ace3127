"""What ranks run for a gradient: loss, slopes and count go into one vector of sums."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from synknumba._api import parallel
from synknumba._errors import DataError
from synknumba._ops.tree import LEAF, describe, parts_like, paths, unflatten
from synknumba._ops.tree import flatten as take_apart
from synknumba._types import shown, with_article
from synknumba.simt.internals import cuda_module


@cache
def clear() -> Any:
    """Returns the kernel that sets a vector to zero."""
    cuda = cuda_module()  # not when synknumba is imported

    @parallel
    def clear(v: Any) -> None:
        i = cuda.grid(1)
        if i < v.shape[0]:
            v[i] = 0

    return clear


@parallel(grid=1, block=1)
def count_rows(x: Any, count: Any) -> None:
    """Adds the number of a rank's rows."""
    count[0] += x.shape[0]


@parallel(grid=1, block=1, rows=("x",))
def count_sliceable(x: Any, count: Any) -> None:
    """Adds the number of a rank's rows of a variable."""
    count[0] += x.shape[0]


@parallel(grid=1, block=1)
def count_indices(x: Any, count: Any) -> None:
    """Adds the number of a rank's indices."""
    count[0] += x.stop - x.start


# ---- on ranks


def add_sums(
    gradient: Callable[..., Any],
    batch: tuple[Any, ...],
    params: Any,
    sums: Any,
    first: int,
    weights: int | None,
    spreads: bool,
    adds: bool,
) -> None:
    """Calls the gradient with a rank's rows, and puts what it returns into the vector of sums.

    Args:
        gradient: the script's.
        batch: its inputs.
        params: the rank's parameters.
        sums: arrays by name: gradient, loss, count.
        first: position of the input whose rows count.
        weights: position of the input with their weights; None without.
        spreads: whether the parameters are several arguments.
        adds: whether the sums begin as zeros, for several slices.
    """
    targets, structure = take_apart(sums["gradient"])
    targets += [sums["loss"], sums["count"]]
    rows = len(take_apart(batch[first])[0][0])
    if not rows:
        if not adds:
            for target in targets:
                target[...] = 0
        return
    arguments = _read_only(params)
    if not spreads:
        arguments = (arguments,)
    try:
        returned = gradient(*batch, *arguments)
    except ValueError as error:
        if "read-only" in str(error):
            error.add_note(
                "Inputs and parameters of a gradient are read-only; write to a copy. The "
                "step changes the parameters."
            )
        raise
    count = None
    if weights is not None:
        count = sum_of_weights(batch[weights])
    values = checked(returned, structure, targets, rows, count)
    _check_range(values[-2], targets[-2].dtype)
    for target, value in zip(targets, values, strict=True):
        target[...] = target + value if adds else value


def add_weights(x: Any, count: Any) -> None:
    """Adds the sum of a rank's weights."""
    count[...] = count + sum_of_weights(x)


def sum_of_weights(weights: Any) -> Any:
    """Returns the sum of weights of any shape, float64; raises `DataError` if they are no real
    numbers.
    """
    if weights.dtype.kind not in "fiub":
        raise DataError(f"weights must be real numbers, got an array of {weights.dtype}")
    return weights.sum(dtype=np.float64)


def _read_only(params: Any) -> Any:
    """Returns the parameters as arrays that cannot be written, where NumPy can see to that:
    replicas must stay equal.
    """
    leaves, structure = take_apart(params)
    views = []
    for leaf in leaves:
        view = leaf
        if isinstance(leaf, np.ndarray):
            view = leaf.view()
            view.flags.writeable = False
        views.append(view)
    return unflatten(structure, views)


def checked(
    result: Any, structure: Any, targets: Sequence[Any], rows: int, count: Any
) -> list[Any]:
    """Returns the slopes, loss and count of rows; raises `DataError` for another structure or
    shape.

    Args:
        result: what the gradient has returned.
        structure: of the parameters.
        targets: arrays for slopes, loss and count.
        rows: their number, the count where the gradient returns none.
        count: sum of the weights; None without `weights=`.
    """
    lengths, instead = [2], ", of which weights= give the count"
    if count is None:
        lengths, instead = [2, 3], " or (loss, slopes, count)"
    if not isinstance(result, tuple) or len(result) not in lengths:
        kind = type(result).__name__
        if isinstance(result, tuple):
            kind = f"tuple of {len(result)}"
        raise DataError(
            f"the gradient must return the sum of the loss and that of its gradient, (loss, "
            f"slopes){instead}; got {with_article(kind)}"
        )
    if count is None:
        count = result[2] if len(result) == 3 else rows
    leaves = parts_like(structure, result[1])
    match result[1]:
        case tuple((slope,)) if leaves is None and structure == LEAF:
            leaves = [slope]
    if leaves is None:
        raise DataError(
            f"the gradient returned slopes {describe(take_apart(result[1])[1])}, but the "
            f"parameters are {describe(structure)}; return the loss first, then one "
            f"slope for each parameter"
        )
    returned = [*leaves, result[0], count]
    names = [f"the slope of params{path}" for path in paths(structure)]
    names += ["the loss, a sum over rows,", "the count, a sum over rows,"]
    values = []
    for name, target, raw in zip(names, targets, returned, strict=True):
        value = _like(target, raw)
        dtype = value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype
        if dtype.kind not in "fiub":
            raise DataError(f"{name} must be of real numbers, got {shown(raw)}")
        if np.shape(value) != target.shape:
            way_out = _way_out(result, structure, targets[:-1], np.shape(value), rows)
            raise DataError(
                f"{name} must have shape {target.shape}, got {np.shape(value)}{way_out}"
            )
        values.append(value)
    return values


def _way_out(
    returned: tuple[Any, ...],
    structure: Any,
    targets: Sequence[Any],
    shape: tuple[int, ...],
    rows: int,
) -> str:
    """Returns what may be the reason for a shape in what a gradient has returned; "" if nothing
    is likely.
    """
    slopes = parts_like(structure, returned[0])
    if slopes is not None:
        swapped = [np.shape(leaf) for leaf in (*slopes, returned[1])]
        if swapped == [target.shape for target in targets]:
            return "; return the loss first, then slopes"
    if rows > 1 and shape.count(rows) > 1:
        return (
            f"; arrays of shapes ({rows},) and ({rows}, 1) broadcast to ({rows}, {rows}): "
            f"write y.ravel() of a column"
        )
    if shape[:1] != (rows,):
        return ""
    return f"; add up the {rows} rows, as by .sum(0)"


def _check_range(loss: Any, dtype: Any) -> None:
    """Raises `DataError` for a finite loss that is an infinity in the dtype of the sums; on
    cores, where asking is no wait.
    """
    largest = np.finfo(dtype).max
    if isinstance(loss, np.ndarray | np.generic) and largest < np.abs(loss) < np.inf:
        raise DataError(
            f"the loss, a sum over rows, is {loss:.3g}, beyond what {dtype}, the dtype of the "
            "parameters and of sums, can be; pass parameters of float64, or divide loss and slopes "
            "by a number"
        )


def _like(target: Any, value: Any) -> Any:
    """Returns an array of another library as one of the target's; raises `DataError` for masked
    items.
    """
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise DataError(
            "the gradient returned a masked array, whose mask would be lost; return one.filled(0)"
        )
    if hasattr(value, "detach"):  # torch's
        value = value.detach()
    if isinstance(target, np.ndarray):
        return np.asarray(value)
    if hasattr(value, "__dlpack__") and not hasattr(value, "__cuda_array_interface__"):
        return _cupy().from_dlpack(value)
    if isinstance(value, type(target) | int | float | np.generic):
        return value
    return _cupy().asarray(value)


def _cupy() -> Any:
    import cupy

    return cupy
