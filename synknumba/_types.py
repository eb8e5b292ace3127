"""The words shared by all layers: small values without behaviour."""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

DeviceKind: TypeAlias = Literal["cuda", "cpu"]
Op: TypeAlias = Literal["sum", "prod", "min", "max", "mean", "gather"] | None
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
