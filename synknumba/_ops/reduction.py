"""Reduction ops of outputs: identity, accumulation of slices on a rank, combination of ranks.

With w the number of rows of a slice (or of a rank) and v the kernel's result for it:

    op          identity        accumulate (slices of a rank)     combine (ranks)
    sum         0               acc + v                           Σ v
    prod        1               acc · v                           Π v
    min, max    +∞, −∞          min(acc, v), max(acc, v)          min v, max v
    mean        0               acc + w·v; then acc / Σ w         Σ w·v / Σ w
    argmin      +∞, no row      the better, with its row          the better, with its row
    argmax      −∞, no row      the better, with its row          the better, with its row

So a mean is weighted by rows throughout, and exact however uneven shards and slices are. `None`
accumulates like "sum" and is never combined; "gather" concatenates rows and needs neither step.
"argmin" and "argmax" keep the row together with the value; of equal values the first wins. An op
defined by the user has its own identity, and is evaluated by a kernel generated from its function
(`_device/fold_kernel.py`).
"""

import inspect
from collections.abc import Iterable
from itertools import count as counter
from itertools import pairwise
from typing import Any, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

from synknumba._errors import ReductionError
from synknumba._types import Array, NamedOp, Op, Shape, UserOp, nearest

_OPS: tuple[str | None, ...] = (*get_args(NamedOp), None)
_OTHER_NAMES = {
    "add": "sum", "+": "sum", "mul": "prod", "multiply": "prod", "average": "mean"
}  # fmt: skip
_op_numbers = counter()

UFUNCS: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}

# NumPy adds fewer numbers than this in order, along any axis
SEQUENTIAL_SUM = 8

# bytes of a result combined at a time: several such pieces fit in an L2 cache
PIECE_BYTES = 256 << 10

# ops that return a value and its row, and whether one value is better than another
_BETTER: dict[Op, np.ufunc] = {"argmin": np.less, "argmax": np.greater}
LOCATING = frozenset(_BETTER)
BY_ROWS = LOCATING | {"gather"}  # ops for which the kernel writes one or more values for each row

_NO_ORDER = "complex numbers have no order: {} the real part or the absolute value"
_REFUSED = {  # (op, dtype kind): alternative; kinds as in numpy.dtype.kind
    ("sum", "b"): "declare an integer dtype to count, or use 'max' for any",
    ("prod", "b"): "declare an integer dtype, or use 'min' for all",
    **{(op, "c"): _NO_ORDER.format("reduce") for op in ("min", "max")},
    **{(op, "c"): _NO_ORDER.format("locate") for op in ("argmin", "argmax")},
}


def checked_shape(what: str, shape: Any) -> Shape:
    """Returns a shape as a tuple; raises `ReductionError` where it is none."""
    several = shape
    if hasattr(shape, "__index__"):
        several = (shape,)
    try:
        lengths = tuple(int(length.__index__()) for length in several)
    except (AttributeError, TypeError):
        lengths = (-1,)
    if min(lengths, default=0) < 0:
        raise ReductionError(
            f"the shape of {what} must be a tuple of non-negative integers, got {shape!r}"
        )
    return lengths


def nearest_op(op: object, ops: Iterable[str | None]) -> str:
    """Returns the question whether an op was meant, by another name or a misspelt one."""
    meant = repr(_OTHER_NAMES.get(str(op), op))
    return nearest(meant, map(repr, ops))


def as_op(op: Any, name: str, identity: Any = None) -> Op:
    """Converts a user's argument to an op: a name, None, or a function of two numbers, possibly
    decorated, with an identity.

    "avg" becomes "mean". Raises ReductionError if it is none of these, its function does not take
    two numbers, or a named op has an identity.
    """
    if isinstance(op, str) and op == "avg":
        op = "mean"
    if isinstance(op, UserOp | str | None) and (isinstance(op, UserOp) or op in _OPS):
        if identity is not None:
            raise ReductionError(
                f"{name}: op {op!r} has a built-in identity; pass identity= with functions only"
            )
        return op  # type: ignore[return-value]
    function = getattr(op, "py_func", op)
    if not inspect.isfunction(function):
        raise ReductionError(
            f"{name}: op must be one of {', '.join(map(repr, _OPS))}, or a Python function of two "
            f"numbers; got {op!r}{nearest_op(op, _OPS)}"
        )
    parameters = inspect.signature(function).parameters.values()
    plain = inspect.Parameter.POSITIONAL_OR_KEYWORD
    if [param.kind for param in parameters] != [plain, plain]:
        raise ReductionError(
            f"{name}: op {function.__name__}{inspect.signature(function)} must be a function "
            f"of two numbers, as f(a, b)"
        )
    return UserOp(function, identity, next(_op_numbers))


def check_dtype(op: Op, dtype: DTypeLike, name: str) -> None:
    """Refuses a dtype of values for which the op is not defined; the ReductionError names the
    output and an alternative.
    """
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        raise ReductionError(
            f"{name}: dtype {dtype} holds Python objects, which ranks cannot "
            f"share; declare a numeric dtype"
        )
    if op == "gather":
        return
    way_out = None
    if isinstance(op, str):
        way_out = _REFUSED.get((op, dtype.kind))
    if dtype.kind not in "biufc":
        way_out = "use 'gather' and reduce it yourself, or reduce numeric fields one by one"
    if way_out is not None:
        raise ReductionError(f"{name}: op {op!r} is not defined for dtype {dtype}; {way_out}")
    if not isinstance(op, UserOp) or op.identity is None:
        return
    if not _is_exact(op.identity, dtype):
        raise ReductionError(
            f"{name}: identity={op.identity!r} of op {op!r} is not exactly representable in dtype "
            f"{dtype}; pass one that is"
        )


def _is_exact(value: Any, dtype: np.dtype[Any]) -> bool:
    number = np.asarray(value)
    kind = number.dtype.kind
    if number.ndim or kind not in "biufc" or (kind == "c" and dtype.kind != "c"):
        return False
    if kind == "f" and dtype.kind in "biu" and not np.isfinite(number):
        return False
    with np.errstate(all="ignore"):
        # Python compares ints with floats exactly
        rounded, exact = number.astype(dtype).item(), number.item()
    return rounded == exact or (rounded != rounded and exact != exact)  # noqa: PLR0124  # NaN


def identity(op: Op, dtype: DTypeLike) -> np.generic:
    """Returns the identity element: the initial value of an output, with no effect on results.

    >>> int(identity("min", "int16")), float(identity("max", "float32")), bool(identity("min", "bool"))
    (32767, -inf, True)
    """  # noqa: E501
    dtype = np.dtype(dtype)
    match op:
        case UserOp():
            value: Any = op.identity
        case "prod":
            value = 1
        case "min" | "argmin":
            value = _extremes(dtype)[1]
        case "max" | "argmax":
            value = _extremes(dtype)[0]
        case _:
            return np.zeros(1, dtype)[0]
    return dtype.type(value)


def result_dtype(op: Op, dtype: DTypeLike) -> np.dtype[Any]:
    """Returns the dtype of the result, in which slices are accumulated too.

    It is the output's dtype, except for means: those of integers and booleans are float64, as in
    NumPy, and those of float16 are float32, unlike in NumPy, because Σ w·v exceeds float16's
    largest number, 65504, beyond 65504 rows of ones.

    >>> result_dtype("mean", "int32"), result_dtype("sum", "int32")
    (dtype('float64'), dtype('int32'))
    """
    dtype = np.dtype(dtype)
    if op != "mean":
        return dtype
    if dtype.kind in "biu":
        return np.dtype(np.float64)
    if dtype == np.float16:
        return np.dtype(np.float32)
    return dtype


def summed_dtype(op: Op, dtype: DTypeLike) -> np.dtype[Any]:
    """Returns the dtype in which results of Python functions are combined, which declare none.

    As in NumPy, sums and products of integers of fewer bits than int64 are int64, and uint64 if
    they are unsigned.

    >>> summed_dtype("sum", "int32"), summed_dtype("prod", "uint8"), summed_dtype("max", "int32")
    (dtype('int64'), dtype('uint64'), dtype('int32'))
    """
    dtype = np.dtype(dtype)
    if op not in ("sum", "prod"):
        return dtype
    match dtype.kind:
        case "i":
            return np.promote_types(dtype, np.int64)
        case "u":
            return np.promote_types(dtype, np.uint64)
    return dtype


def accumulate(op: Op, acc: Any, value: Any, weight: int) -> None:
    """Accumulates the result of one slice into `acc`, in place.

    The ufuncs dispatch on their arguments, so both arrays may be CuPy arrays.

    Args:
        op: a named op other than "gather", "argmin" and "argmax", or None, which accumulates like
            "sum".
        acc: array of the op's result dtype, initially zeros for "mean" and the identity otherwise.
            For "mean" it holds Σ weight · value, to be divided by Σ weight after the last slice.
        value: array with the shape of `acc`.
        weight: number of rows of the slice.
    """
    if op == "mean":
        value = value.astype(acc.dtype, copy=False) * acc.dtype.type(weight)
    ufunc: np.ufunc = UFUNCS.get(op, np.add)  # type: ignore[arg-type]  # None and "mean" are sums
    ufunc(acc, value, out=acc)


def combine(op: Op, parts: Array, weights: Array) -> Array | np.generic:
    """Combines the results of all ranks (or shards), in order.

    Returns shape (…) in the op's result dtype, or a NumPy scalar if `parts` is 1-D; ReductionError
    for a mean of no rows.

    Args:
        op: a named op other than "gather", "argmin" and "argmax".
        parts: shape (W, …): result of each rank. For a rank without rows, the identity, or for
            "mean" any value.
        weights: shape (W,): number of rows of each rank; used by "mean" only.

    >>> combine("mean", np.array([[1.0, 2.0], [6.0, 7.0]]), np.array([2, 3]))
    array([4., 5.])
    """
    if op == "mean":
        return _weighted_mean(parts, weights)
    if not isinstance(op, str) or op in BY_ROWS:
        raise ReductionError(
            f"op {op!r} keeps the results of ranks apart: there is nothing to combine"
        )
    return UFUNCS[op].reduce(parts, axis=0, dtype=parts.dtype)


def combine_into(op: Op, parts: Array, weights: Array, out: Array) -> None:
    """Like `combine`, but into `out`, piece by piece so that each piece stays in a cache. Bitwise
    equal to `combine`.

    The op is in `UFUNCS`, or "mean"; `parts` has shape (W, n), and `out` shape (n,) and the op's
    result dtype.
    """
    pieces = max(out.nbytes // PIECE_BYTES, 1)
    with np.errstate(all="ignore"):  # other transports do not warn either
        for start, stop in pairwise(len(out) * k // pieces for k in range(pieces + 1)):
            if op == "mean":
                out[start:stop] = _weighted_mean(parts[:, start:stop], weights)
            else:
                assert isinstance(op, str)  # guaranteed by the caller
                UFUNCS[op].reduce(parts[:, start:stop], 0, parts.dtype, out[start:stop])


def locate(op: Op, values: Array, rows: Array, scores: Array, first: int) -> None:
    """Updates the best value of each column, and its row, with further rows, in place.

    Args:
        op: "argmin" or "argmax".
        values: shape (m,): best value of each column so far.
        rows: int64, shape (m,): rows of these values; −1 if there are none yet.
        scores: shape (n, m), n ≥ 1: values of the further rows.
        first: row number of scores[0]; greater than all earlier rows.
    """
    index = _best_index(op, scores)
    # for a few columns, a tenth of the time of take_along_axis
    extreme = scores[index, np.arange(len(index))]
    with np.errstate(invalid="ignore"):  # from comparisons with NaN
        better = _BETTER[op](extreme, values)
    better |= (rows < 0) | ((extreme != extreme) & (values == values))  # noqa: PLR0124  # NaN wins, as in NumPy
    np.copyto(values, extreme, where=better)
    np.copyto(rows, index + first, where=better)


def best(op: Op, values: Array, rows: Array) -> tuple[Any, Any]:
    """Returns the best value over all ranks (or shards), and its row: two arrays of shape (…), or
    two NumPy scalars.

    Args:
        op: "argmin" or "argmax".
        values: shape (W, …): best value of each rank.
        rows: int64, shape (W, …): rows of these values, increasing with the rank; −1 on ranks
            without rows.

    >>> [int(number) for number in best("argmax", np.array([3, 9, 5, 5]), np.array([2, -1, 7, 8]))]
    [5, 7]
    """
    present = (rows >= 0).reshape(len(rows), -1).all(axis=1)
    values, rows = values[present], rows[present]
    index = _best_index(op, values)
    if values.ndim == 1:
        return values[index], rows[index]
    # a tenth of the time of take_along_axis, as in `locate`
    places = index.reshape(-1), np.arange(index.size)
    columns = (array.reshape(len(array), -1) for array in (values, rows))
    best_values, best_rows = (array[places].reshape(index.shape) for array in columns)
    return best_values, best_rows


def _best_index(op: Op, values: Array) -> Array:
    """Returns the index of the best value of each column."""
    if op == "argmin":
        return values.argmin(axis=0)  # type: ignore[no-any-return]
    return values.argmax(axis=0)  # type: ignore[no-any-return]


def check_weights(weights: Array) -> None:
    """Refuses a mean over no rows."""
    if not weights.any():
        raise ReductionError("mean of no rows; pass at least one row")


def _weighted_mean(parts: Array, weights: Array) -> Array | np.generic:
    final = result_dtype("mean", parts.dtype)
    present = np.flatnonzero(weights)
    check_weights(weights)
    if len(present) == 1:
        return parts[present[0]].astype(final)  # w·v / w may differ from v in the last bit
    wide = np.result_type(final, np.float64)
    factors = weights[present].astype(np.float64)
    by_part = factors.reshape(-1, *[1] * (parts.ndim - 1))
    weighted: NDArray[Any] = parts[present].astype(wide) * by_part
    return (weighted.sum(axis=0) / factors.sum()).astype(final)


def _extremes(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    if dtype.kind == "b":
        return False, True
    if dtype.kind in "iu":
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    return -np.inf, np.inf
