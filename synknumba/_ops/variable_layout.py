"""Memory layout of a variable: the offsets of its arrays in each rank's memory (pure).

    rank r:  | leaf 0 | pad | leaf 1 | pad | leaf 2 |        one allocation, every leaf aligned to 256 bytes
    flat:    | leaf 0 | leaf 1 | leaf 2 |                    one dtype, no padding: the leaves form one vector

Shapes may differ between ranks. A layout never changes: a variable with other shapes, or another
halo, gets other memory.
"""  # noqa: E501

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from synknumba._ops.halo import Copy, Halo
from synknumba._types import Shape, Span

ALIGNMENT = 256  # bytes: that of a CUDA allocation, and more than a cache line
VECTOR = -1  # pseudo leaf index: all leaves of a flat layout as one vector


@dataclass(frozen=True, slots=True)
class LeafLayout:
    """Dtype of one array, and its shape on each rank."""

    dtype: Any
    shapes: tuple[Shape, ...]

    def size(self, rank: int) -> int:
        """Returns the number of elements on a rank."""
        return math.prod(self.shapes[rank])

    def nbytes(self, rank: int) -> int:
        """Returns the bytes on a rank."""
        return self.size(rank) * np.dtype(self.dtype).itemsize

    @property
    def uniform(self) -> bool:
        """Whether every rank has the same shape."""
        return len(set(self.shapes)) == 1


@dataclass(frozen=True, slots=True)
class StorageLayout:
    """Layout of the arrays of one variable."""

    leaves: tuple[LeafLayout, ...]  # the arrays of its tree, in order
    flat: bool = False  # whether the arrays have one dtype and are stored without gaps
    halo: Halo | None = None  # rows of neighbours in the arrays, which their shapes include

    def place(self, rank: int) -> tuple[list[int], int]:
        """Returns the byte offset of each leaf in a rank's memory, and the total bytes.

        >>> layout = StorageLayout((LeafLayout("f4", ((3,),)), LeafLayout("f4", ((2, 2),))))
        >>> layout.place(0), StorageLayout(layout.leaves, flat=True).place(0)
        (([0, 256], 512), ([0, 12], 28))
        """
        unit = ALIGNMENT
        if self.flat:
            unit = 1
        sizes = [-(-leaf.nbytes(rank) // unit) * unit for leaf in self.leaves]
        *offsets, total = accumulate(sizes, initial=0)
        return offsets, total

    def own(self, index: int, rank: int) -> Span:
        """Returns the indices of a rank's own rows in one array, of at least one dimension."""
        shapes = self.leaves[index].shapes
        length = shapes[rank][0]
        if self.halo is None:
            return Span(0, length)
        return self.halo.own(length, rank, len(shapes))

    def own_counts(self, index: int) -> tuple[int, ...]:
        """Returns the number of own rows of each rank in one array, of at least one dimension."""
        spans = (self.own(index, rank) for rank in range(len(self.leaves[index].shapes)))
        return tuple(stop - start for start, stop in spans)

    def own_shapes(self, index: int) -> tuple[Shape, ...]:
        """Returns the shapes of one array by rank, without the rows of halos."""
        shapes = self.leaves[index].shapes
        if self.halo is None:
            return shapes
        return tuple(
            (count, *shape[1:]) for count, shape in zip(self.own_counts(index), shapes, strict=True)
        )

    def copies(self, index: int) -> list[Copy]:
        """Returns the copies, in rows, that renew the halos of one array."""
        if self.halo is None:
            return []
        return self.halo.copies(self.own_counts(index))

    def pieces(self) -> Sequence[int]:
        """Returns the units of transfer: the index of each leaf, or `VECTOR` for a flat layout."""
        if self.flat:
            return (VECTOR,)
        return range(len(self.leaves))

    def leaf(self, index: int) -> LeafLayout:
        """Returns the layout of one leaf; for `VECTOR`, of all leaves as one vector."""
        if index != VECTOR:
            return self.leaves[index]
        first = self.leaves[0]
        totals = [0] * len(first.shapes)
        for leaf in self.leaves:
            for rank in range(len(totals)):
                totals[rank] += leaf.size(rank)
        return LeafLayout(first.dtype, tuple((total,) for total in totals))


def line_type(dtype: Any, count: int) -> tuple[Any, int]:
    """Returns dtype and length under which collectives transfer `count` items: records go as bytes.

    >>> line_type(np.dtype("f4"), 3), line_type(np.dtype([("a", "f4"), ("b", "u1")]), 3)
    ((dtype('float32'), 3), (dtype('uint8'), 15))
    """
    dtype = np.dtype(dtype)
    if dtype.kind in "biufc":
        return dtype, count
    return np.dtype(np.uint8), count * dtype.itemsize
