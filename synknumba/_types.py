"""Type aliases and small value types shared by all layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal, NamedTuple, TypeAlias, final
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from synknumba._errors import ArgumentError

DeviceKind: TypeAlias = Literal["cuda", "cpu"]
NamedOp: TypeAlias = Literal["sum", "prod", "min", "max", "mean", "gather", "argmin", "argmax"]
CollectiveKind: TypeAlias = Literal["broadcast", "all_gather", "reduce", "all_reduce", "reduce_scatter"]
CollectiveOp: TypeAlias = Literal["sum", "prod", "min", "max", "avg"]
Transport: TypeAlias = Literal["nccl", "host"]
Batch: TypeAlias = int | slice | Sequence[int] | NDArray[Any] | None
Array: TypeAlias = NDArray[Any]
Shape: TypeAlias = tuple[int, ...]
Grid: TypeAlias = int | tuple[int, ...] | Callable[[int], int | tuple[int, ...]] | None
Block: TypeAlias = int | tuple[int, ...]


class Span(NamedTuple):
    """One launch's part of an index range: the indices start, start + 1, …, stop − 1."""

    start: int
    stop: int


@final
@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class UserOp:
    """A user-defined reduction op.

    Attributes:
        function: an associative plain function of two numbers, callable from kernels.
        identity: the identity element; None if no reduction starts from one.
        number: unique id, by which ranks recognise the op.
    """

    function: Callable[[Any, Any], Any]
    identity: Any
    number: int

    def __repr__(self) -> str:
        """Returns the function's name."""
        return self.function.__name__

    def __reduce__(self) -> tuple[Any, ...]:
        """Unpickles to the same object each time, so that a rank compiles the op's kernel once."""
        return _known_op, (self.function, self.identity, self.number)


_known_ops: "WeakValueDictionary[int, UserOp]" = WeakValueDictionary()


def _known_op(function: Callable[[Any, Any], Any], identity: Any, number: int) -> UserOp:
    op = _known_ops.get(number)
    if op is None:
        op = _known_ops[number] = UserOp(function, identity, number)
    return op


Op: TypeAlias = NamedOp | UserOp | None


def as_flag(value: object, what: str) -> bool:
    """Returns True or False; raises `ArgumentError` for anything else, such as a list, which would count as True."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise ArgumentError(f"{what} must be True or False, got {value!r}")


class Extremum(NamedTuple):
    """The best value and the index of its row in the data; two arrays of equal shape if a row has several values."""

    value: Any
    row: Any


class RankConstant(Enum):
    """Placeholder for a value that each rank fills in for itself or for a slice."""

    RANK = "rank"
    WORLD_SIZE = "world_size"
    OFFSET = "offset"
    SLICE = "slice"
    POSITION = "position"  # of the slice's first row among the rows of the call

    def __repr__(self) -> str:
        """Returns the user's spelling."""
        return f"synk.{self.name}"


RANK: Final = RankConstant.RANK
WORLD_SIZE: Final = RankConstant.WORLD_SIZE
OFFSET: Final = RankConstant.OFFSET

Scalar: TypeAlias = bool | int | float | complex | np.generic
