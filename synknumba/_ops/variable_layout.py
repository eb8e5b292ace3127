"""Where the arrays of a variable lie in the memory that each rank has for it (pure).

    rank r:  | leaf 0 | pad | leaf 1 | pad | leaf 2 |        one piece of memory, every leaf on 256 bytes
    flat:    | leaf 0 | leaf 1 | leaf 2 |                    one dtype, nothing between: the leaves are one vector

Shapes may differ between ranks, and are never changed: a variable of other shapes has other memory.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from synknumba._types import Shape

ALIGNMENT = 256  # what a CUDA allocation has, and more than a cache line
VECTOR = -1  # instead of the number of a leaf: all leaves of a flat layout as one vector


@dataclass(frozen=True, slots=True)
class LeafLayout:
    """One array: its dtype, and its shape on each rank."""

    dtype: Any
    shapes: tuple[Shape, ...]

    def size(self, rank: int) -> int:
        """Elements on a rank."""
        return math.prod(self.shapes[rank])

    def nbytes(self, rank: int) -> int:
        """Bytes on a rank."""
        return self.size(rank) * int(np.dtype(self.dtype).itemsize)

    @property
    def uniform(self) -> bool:
        """Whether every rank has the same shape."""
        return len(set(self.shapes)) == 1


@dataclass(frozen=True, slots=True)
class StorageLayout:
    """The arrays of one variable.

    Attributes:
        leaves: the arrays of its tree, in order.
        flat: they follow each other without gaps, and all have one dtype.
    """

    leaves: tuple[LeafLayout, ...]
    flat: bool = False

    def place(self, rank: int) -> tuple[list[int], int]:
        """The offset of each leaf in the rank's memory, and the bytes of all.

        >>> layout = StorageLayout((LeafLayout("f4", ((3,),)), LeafLayout("f4", ((2, 2),))))
        >>> layout.place(0), StorageLayout(layout.leaves, flat=True).place(0)
        (([0, 256], 512), ([0, 12], 28))
        """
        offsets, at = [], 0
        for leaf in self.leaves:
            offsets.append(at)
            nbytes = leaf.nbytes(rank)
            at += nbytes if self.flat else -(-nbytes // ALIGNMENT) * ALIGNMENT
        return offsets, at

    def pieces(self) -> Sequence[int]:
        """What is moved as one: each array, or the vector that they are."""
        return (VECTOR,) if self.flat else range(len(self.leaves))

    def leaf(self, index: int) -> LeafLayout:
        """One array; for `VECTOR` all of them as one."""
        if index != VECTOR:
            return self.leaves[index]
        ranks = range(len(self.leaves[0].shapes))
        return LeafLayout(self.leaves[0].dtype, tuple((sum(leaf.size(rank) for leaf in self.leaves),) for rank in ranks))


def line_type(dtype: Any, count: int) -> tuple[Any, int]:
    """Dtype and length of an array of `count` items as collectives see it.

    >>> line_type(np.dtype("f4"), 3), line_type(np.dtype([("a", "f4"), ("b", "u1")]), 3)
    ((dtype('float32'), 3), (dtype('uint8'), 15))
    """
    dtype = np.dtype(dtype)
    if dtype.kind in "biufc":
        return dtype, count
    return np.dtype(np.uint8), count * dtype.itemsize
