"""`Kept`: values of a variable in the coordinator's own memory, to be put on the ranks of the next world."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from synknumba._errors import PartitionError
from synknumba._ops.rows import Partition
from synknumba._types import Array

GIVEN_BYTES = 1 << 20  # of a value for GPUs: it is copied in some 0.1 ms, the least time that sending it takes
CLOSE_BYTES = 1 << 30  # of a variable on GPUs: fetched in about a second when its world is closed


@final
@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """The values of a variable on the ranks of one world.

    Attributes:
        parts: the arrays, by rank; the same list for ranks with equal replicas.
        sharded: whether each rank has its own rows.
        differs: whether replicas may differ.
    """

    parts: Sequence[list[Array]]
    sharded: bool = False
    differs: bool = False

    def fit(self, partition: Partition, label: str) -> "Kept":
        """Returns the values for a world of another size: replicas on every rank, rows divided anew.

        Raises:
            PartitionError: each rank had an array of its own that is not a part of a whole.
        """
        size = partition.parts
        if len(self.parts) == size:
            return self
        first, *others = self.parts
        if not self.sharded and all(_same(first, other) for other in others):
            return Kept((first,) * size)
        joinable = all(len({array.shape[1:] for array in leaf}) == 1 for leaf in zip(*self.parts, strict=True))
        if not self.sharded or not joinable:
            raise PartitionError(
                f"{label} has an array of its own on each of {len(self.parts)} ranks, which have no place on {size}; call "
                f"fork({len(self.parts)}), or set it: synk.broadcast(v, value) for replicas, synk.scatter(v, value) for rows"
            )
        wholes = [np.concatenate(leaf) for leaf in zip(*self.parts, strict=True)]
        bounds = [[partition.part(len(whole), rank) for whole in wholes] for rank in range(size)]
        parts = [[whole[start:stop] for whole, (start, stop) in zip(wholes, of, strict=True)] for of in bounds]
        return Kept(parts, sharded=True, differs=size > 1)

    def whole(self, label: str) -> list[Array]:
        """Returns copies of the arrays of a replica, or of the rows of all ranks, joined.

        Raises:
            PartitionError: the shapes on the ranks do not allow it.
        """
        by_leaf = list(zip(*self.parts, strict=True))
        fits = all(len({array.shape[self.sharded :] for array in leaf}) == 1 for leaf in by_leaf)
        if not fits or (self.sharded and not all(leaf[0].ndim for leaf in by_leaf)):
            raise PartitionError(f"the arrays of {label} differ in shape between the ranks; use get_value(rank=…) for each")
        return [np.concatenate(leaf) if self.sharded else leaf[0].copy() for leaf in by_leaf]


def _same(some: Sequence[Array], others: Sequence[Array]) -> bool:
    """Returns whether two ranks hold the same bits."""
    pairs = list(zip(some, others, strict=True))
    return some is others or all(a.shape == b.shape and np.array_equal(_bytes(a), _bytes(b)) for a, b in pairs)


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
