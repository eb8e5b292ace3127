"""Results of Python functions: layout in shared memory, and the coordinator's reader.

    RESULT[r]:  spec number (8 bytes) | … | leaf 0 | leaf 1 | …          from byte 64, each leaf aligned to 16 bytes

A rank packs results with `_rank/result_writer.py`. Structure, dtypes and shapes are sent once, as a
`Returned` message with a spec number; from then on the number alone describes how to read the
bytes. Number 0 means that the rank had no rows and did not run. Results too large for the control
block go into a segment that the rank creates and keeps for the program.
"""  # noqa: E501

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from synknumba._host.segment import Segment
from synknumba._ops.tree import Structure, count_leaves
from synknumba._types import Array, Cache, Shape
from synknumba._wire.messages import Returned

FIRST_LEAF = 64
LEAF_ALIGNMENT = 16
SPECS_KEPT = 1024  # limit, since shapes that differ from call to call make a new spec each

LeafType: TypeAlias = tuple[Any, Shape]


def place_leaves(leaves: Sequence[LeafType]) -> tuple[list[int], int]:
    """Returns the byte offset of each leaf from the first, and the total bytes."""
    offsets, at = [], 0
    for dtype, shape in leaves:
        offsets.append(at)
        at += -(-math.prod(shape) * np.dtype(dtype).itemsize // LEAF_ALIGNMENT) * LEAF_ALIGNMENT
    return offsets, at


def view_leaves(memory: Array, leaves: Sequence[LeafType]) -> list[Array]:
    """Returns views of the leaves in packed memory."""
    offsets, _ = place_leaves(leaves)
    views = []
    for (dtype, shape), offset in zip(leaves, offsets, strict=True):
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        views.append(memory[offset : offset + nbytes].view(dtype).reshape(shape))
    return views


@dataclass(frozen=True, slots=True)
class RankReturn:
    """One rank's result: its structure, and views of its leaves, valid until the next call."""

    structure: Structure
    leaves: tuple[Array, ...]

    def apart(self) -> "list[RankReturn]":
        """Splits a tuple of results into its items."""
        out, at = [], 0
        for structure in self.structure[1]:
            size = count_leaves(structure)
            out.append(RankReturn(structure, self.leaves[at : at + size]))
            at += size
        return out


class ResultReader:
    """Reads one rank's results of one program, in the coordinator.

    Args:
        memory: the rank's results in the control block, as bytes.
    """

    def __init__(self, memory: Array) -> None:
        self._memory: Array = memory[FIRST_LEAF:]
        # more than the rank keeps
        self._specs: Cache[int, RankReturn] = Cache(2 * SPECS_KEPT)
        self._segment: Segment | None = None  # the rank's segment, mapped with its last known size
        # whether all results so far were in the control block; None before the first
        self.are_small: bool | None = None

    def learn(self, news: Returned, descriptors: Sequence[int]) -> None:
        """Adds a new spec, and maps the segment that comes with it."""
        memory = self._memory
        if news.segment is not None:
            memory = self._mapped(*news.segment, descriptors[0]).array(np.uint8, (news.nbytes,))
        elif news.packed is not None:
            memory = np.frombuffer(news.packed, np.uint8)
        is_small = news.segment is None and news.packed is None
        self.are_small = is_small and self.are_small is not False
        self._specs[news.spec] = RankReturn(news.structure, tuple(view_leaves(memory, news.leaves)))

    def _mapped(self, segment_id: int, size: int, descriptor: int) -> Segment:
        if self._segment is not None and self._segment.size == size:
            os.close(descriptor)
        else:
            self._segment = Segment.attach(segment_id, descriptor, size)
        return self._segment

    @property
    def nbytes(self) -> int:
        """Bytes of the rank's result segment."""
        return 0 if self._segment is None else self._segment.size

    def read(self, number: int) -> RankReturn:
        """Returns the result for a spec number other than 0."""
        return self._specs[number]
