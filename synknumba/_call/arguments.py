"""Special arguments of calls (`arange`, `per_rank`), and the declaration of kernel outputs
(`output`).
"""

import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from synknumba._errors import ArgumentError, ReductionError, shortened
from synknumba._ops import reduction
from synknumba._types import (
    NamedOp,
    Op,
    Shape,
    UserOp,
    class_text,
    known_options,
    shown,
)

MAX_INDICES = 2**62


@dataclass(frozen=True, slots=True)
class IndexRange:
    """The indices 0 … length − 1, sharded like rows but without memory. Created by `arange`."""

    length: int

    def __len__(self) -> int:
        """Returns the number of indices."""
        return self.length


def array_hint(value: object) -> str:
    """Returns what to pass in place of a value that is no argument of a kernel."""
    if isinstance(value, range):
        return (
            "pass synk.arange(n) for the indices 0 … n − 1, each rank its own, "
            "or np.asarray(...) of it"
        )
    if isinstance(value, list | array.array | bytearray | memoryview):
        return "pass np.asarray(...) of it"
    if type(value).__module__.startswith("scipy.sparse"):
        return "pass its arrays, as m.data, m.indices and m.indptr of m = matrix.tocsr()"
    return "pass an array, Data, a Variable, or a number"


def arange(n: int) -> IndexRange:
    """Returns an index range that is sharded over the ranks and takes no memory.

    A kernel receives a `Span`, and a Python function a `range`: the rank's part is `rows.start` …
    `rows.stop` − 1.

    Args:
        n: number of indices, 0 to 2^62; ranks count in int64.

    Raises:
        ArgumentError: `n` is not such an integer.

    Example:
        >>> import synknumba as synk
        >>> @synk.function(outputs="sum")
        ... def sum_of_squares(rows):
        ...     return sum(i * i for i in rows)
        >>> with synk.fork(2, device="cpu"):
        ...     print(sum_of_squares(synk.arange(10)))
        285
    """
    if isinstance(n, bool) or not hasattr(n, "__index__") or n < 0:
        raise ArgumentError(f"arange needs a non-negative integer, got {shown(n)}")
    if int(n) > MAX_INDICES:
        raise ArgumentError(
            f"arange takes at most 2**62 indices, since ranks count in int64; got {shown(n)}"
        )
    return IndexRange(int(n))


@dataclass(frozen=True, slots=True)
class PerRankValues:
    """One scalar for each rank. Created by `per_rank`."""

    values: tuple[Any, ...]


@shortened
def per_rank(values: Iterable[Any]) -> PerRankValues:
    """Returns an argument that has a different scalar value on each rank.

    Args:
        values: a Python or NumPy scalar for each rank, in rank order.

    Raises:
        ArgumentError: a value is not a scalar.

    Example:
        >>> import synknumba as synk
        >>> @synk.function(outputs=None)
        ... def shifted(value, rank):
        ...     return int(value + rank)
        >>> with synk.fork(2, device="cpu"):
        ...     shifted(synk.per_rank([10, 20]), synk.RANK)
        [np.int64(10), np.int64(21)]
    """
    scalars = tuple(values)
    for rank, value in enumerate(scalars):
        if not isinstance(value, bool | int | float | complex | np.generic):
            raise ArgumentError(
                f"per_rank takes one scalar per rank; entry {rank} is {class_text(value)}"
            )
    return PerRankValues(scalars)


ShapeRule = Shape | int | Callable[[Mapping[str, Any]], Shape | int] | None


@dataclass(frozen=True, slots=True)
class Output:
    """Declaration of a kernel's output parameter. Created by `output`."""

    op: Op
    shape: ShapeRule = None
    dtype: Any = None
    like: str | None = None
    scratch: bool = False  # working memory that no caller receives
    # with the op's identity at the start; if not, and the op is None, slices write different
    # elements
    filled: bool = True


@known_options
def output(
    op: NamedOp | Literal["avg"] | Callable[[Any, Any], Any] | None,
    *,
    shape: ShapeRule = None,
    dtype: Any = None,
    like: str | None = None,
    identity: Any = None,
) -> Output:
    """Declares an output parameter of a kernel.

    The array is allocated on each rank and set to the identity of `op` before each launch; the
    kernel combines values into it, or writes it. The arrays of slices and ranks are then combined
    with the same op.

    Args:
        op: "sum", "prod", "min", "max": element by element. "mean" or "avg": element by element,
            weighted by numbers of rows. "gather": the kernel writes its rows, which are
            concatenated in order. None: a list with each rank's value. "argmin", "argmax": the
            kernel writes a value for each row, as for "gather", and the best value and the index of
            its row are returned as an `Extremum`. Of equal values the first wins, and NaN is better
            than any number, as in NumPy. Rows that the kernel does not write are +∞ for "argmin",
            −∞ for "argmax". A function: an associative function of two numbers. It is called with
            results in the order of their rows, inside kernels, so it must be written like a device
            function.
        shape: shape of the array on one rank; () for a single number, which the kernel sees with
            shape (1,). For "gather", "argmin" and "argmax", the shape of one row. It may be a
            function of the call's arguments: of a dict from names to arrays and scalars, in which
            arrays have their full shape.
        dtype: dtype of the array; default: that of `like`, or float64.
        like: name of a parameter whose dtype is used, and, unless `shape` is given, its shape; for
            "gather", "argmin" and "argmax", the shape of its rows.
        identity: for an op that is a function, the number e with op(e, a) = op(a, e) = a, to which
            the array is set.

    Returns:
        The declaration, for `outputs=` of a decorator.

    Raises:
        ReductionError: the op is unknown, is not defined for the dtype, or is a function without an
            identity; or the shape is none.
        ArgumentError: neither `shape` nor `like` is given, and the op is not "gather", "argmin" or
            "argmax".

    Example:
        >>> import numpy as np
        >>> from numba import cuda
        >>> import synknumba as synk
        >>> @synk.parallel(
        ...     outputs={
        ...         "largest": synk.output("max", shape=(), dtype="float64"),
        ...         "squares": synk.output("gather", like="x"),
        ...     }
        ... )
        ... def kernel(x, largest, squares):
        ...     i = cuda.grid(1)
        ...     if i < x.shape[0]:
        ...         squares[i] = x[i] * x[i]
        ...         cuda.atomic.max(largest, 0, x[i])
        >>> with synk.fork(2, device="cpu"):
        ...     kernel(np.array([1.0, 3.0, 2.0]))
        kernel_result(largest=np.float64(3.0), squares=array([1., 9., 4.]))
    """
    checked = reduction.as_op(op, "output", identity)
    if isinstance(checked, UserOp) and checked.identity is None:
        raise ReductionError(
            f"output: op {checked!r} is a function and needs identity=…: its "
            f"neutral element, as 0 in a sum"
        )
    if shape is None and like is None and checked not in reduction.BY_ROWS:
        raise ArgumentError(
            "output needs shape=… (() for one number) or like=… (the name of a parameter)"
        )
    if shape is not None and not callable(shape):
        reduction.checked_shape("an output", shape)
    if dtype is not None:
        try:
            dtype = np.dtype(dtype)
        except TypeError as error:
            raise ReductionError(f"dtype must be a NumPy dtype, got {dtype!r}") from error
        reduction.check_dtype(checked, dtype, "dtype")
    return Output(checked, shape, dtype, like)
