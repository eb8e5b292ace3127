"""What may be passed to a `Function` besides arrays, `Data` and scalars, and what its outputs are declared with."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from synknumba._errors import ArgumentError, ReductionError
from synknumba._ops import reduction
from synknumba._types import NamedOp, Op, Shape, UserOp


@dataclass(frozen=True, slots=True)
class IndexRange:
    """The indices 0 … length − 1, sharded like rows but without memory. Made by `arange`."""

    length: int

    def __len__(self) -> int:
        """How many indices."""
        return self.length


def arange(n: int) -> IndexRange:
    """An index range that is sharded over the ranks and takes no memory.

    A kernel or a Python function gets a `Span` for it: `span.start` and `span.stop`, the rank's part of the range.

    Args:
        n: number of indices, at least 0.

    Raises:
        ArgumentError: `n` is not an integer of at least 0.
    """
    if isinstance(n, bool) or not hasattr(n, "__index__") or n < 0:
        raise ArgumentError(f"arange needs an integer of at least 0, got {n!r}")
    return IndexRange(int(n))


@dataclass(frozen=True, slots=True)
class PerRankValues:
    """One scalar for each rank. Made by `per_rank`."""

    values: tuple[Any, ...]


def per_rank(values: Iterable[Any]) -> PerRankValues:
    """Gives each rank a scalar of its own.

    Args:
        values: one Python or NumPy scalar for each rank, in rank order.

    Raises:
        ArgumentError: a value is not a scalar.
    """
    told = tuple(values)
    for rank, value in enumerate(told):
        if not isinstance(value, bool | int | float | complex | np.generic):
            raise ArgumentError(f"per_rank takes one scalar for each rank; entry {rank} is a {type(value).__name__}")
    return PerRankValues(told)


ShapeRule = Shape | int | Callable[[Mapping[str, Any]], Shape | int] | None


@dataclass(frozen=True, slots=True)
class Output:
    """How a kernel's output parameter is made and put together. Made by `output`.

    Attributes:
        op, shape, dtype, like: as `output` takes them.
        scratch: it is memory that no caller gets.
        filled: it starts at the identity of the op. Of one that is not, with the op None, slices write different elements.
    """

    op: Op
    shape: ShapeRule = None
    dtype: Any = None
    like: str | None = None
    scratch: bool = False
    filled: bool = True


def output(
    op: NamedOp | Callable[[Any, Any], Any] | None,
    *,
    shape: ShapeRule = None,
    dtype: Any = None,
    like: str | None = None,
    identity: Any = None,
) -> Output:
    """Declares an output parameter of a kernel.

    The array is allocated on each rank and set to the identity of `op` before each launch; the kernel combines into it or
    writes it. Slices and ranks are then put together with the same op.

    Args:
        op: "sum", "prod", "min", "max"; "mean", weighted by rows; "gather", rows in order; None, a list of each rank's value;
            "argmin", "argmax": the kernel writes a value for each row, as for "gather", and the best one is returned with the
            index of its row, as an `Extremum`. Of equals it is the first, and NaN is better than any number, as in NumPy. Rows
            that the kernel does not write are at +∞, or −∞.
            Or a function of two numbers that is associative; it is called with results in the order of their rows, by
            kernels, so it is written as what they call.
        shape: of the array on one rank, () for a number (the kernel then sees shape (1,)); for "gather", "argmin" and
            "argmax" the shape of one row.
            It may be a function of the call's arguments: a dict of name → array or scalar, whose arrays have their full shape.
        dtype: of the array; by default float64, or that of `like`.
        like: name of a parameter whose dtype, and where `shape` is not given whose shape, is taken; of the ops by rows
            its row shape.
        identity: of a function: the number e with op(e, a) = op(a, e) = a, which the array is set to.

    Raises:
        ReductionError: the op is unknown, or does not suit the dtype, or is a function without an identity.
        ArgumentError: neither `shape` nor `like` is given.
    """
    known = reduction.as_op(op, "output", identity)
    if isinstance(known, UserOp) and known.identity is None:
        raise ReductionError(f"output: op {known!r} is a function, so it needs identity=…: what changes nothing, as 0 in a sum")
    if shape is None and like is None and known not in reduction.BY_ROWS:
        raise ArgumentError("output needs shape=… (() for one number) or like=… (the name of a parameter)")
    if dtype is not None:
        try:
            dtype = np.dtype(dtype)
        except TypeError as error:
            raise ReductionError(f"dtype must be a NumPy dtype, got {dtype!r}") from error
        reduction.check_dtype(known, dtype, "dtype")
    return Output(known, shape, dtype, like)
