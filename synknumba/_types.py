"""The words shared by all layers: small values without behaviour."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal, NamedTuple, TypeAlias, final
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

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
    """The part of an index range that one launch gets: the indices start, start + 1, …, stop − 1."""

    start: int
    stop: int


@final
@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class UserOp:
    """An op that is a function of the user's.

    Attributes:
        function: of two numbers, associative; a plain function, which kernels can call.
        identity: what changes nothing; None where nothing starts from it.
        number: of no other op; ranks know it by this.
    """

    function: Callable[[Any, Any], Any]
    identity: Any
    number: int

    def __repr__(self) -> str:
        """The function's name."""
        return self.function.__name__

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent twice, it is one op there as well, whose kernel is compiled once."""
        return _known_op, (self.function, self.identity, self.number)


_known_ops: "WeakValueDictionary[int, UserOp]" = WeakValueDictionary()


def _known_op(function: Callable[[Any, Any], Any], identity: Any, number: int) -> UserOp:
    op = _known_ops.get(number)
    if op is None:
        op = _known_ops[number] = UserOp(function, identity, number)
    return op


Op: TypeAlias = NamedOp | UserOp | None


class Extremum(NamedTuple):
    """The best value, and the row that has it: its index in the data. Arrays of one shape where a row has several values."""

    value: Any
    row: Any


class RankConstant(Enum):
    """A value that differs between ranks or slices and is filled in there."""

    RANK = "rank"
    WORLD_SIZE = "world_size"
    OFFSET = "offset"
    SLICE = "slice"

    def __repr__(self) -> str:
        """Reads as the user writes it."""
        return f"synk.{self.name}"


RANK: Final = RankConstant.RANK
WORLD_SIZE: Final = RankConstant.WORLD_SIZE
OFFSET: Final = RankConstant.OFFSET

Scalar: TypeAlias = bool | int | float | complex | np.generic
