"""What Python functions return: packed by a rank, unpacked by the coordinator.

    RESULT[r]:  spec number (8 bytes) | … | leaf 0 | leaf 1 | …          from byte 64, each leaf on 16 bytes

A result's structure, dtypes and shapes are told once, as a `Returned` message with a number of its own; from then on the
number alone says how to read the bytes. Number 0 says that the rank had no rows and did not run. Results that are too large
for the control block go into a segment that the rank makes and keeps for the program.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from synknumba._errors import ReductionError
from synknumba._messages import Returned
from synknumba._shm import Segment
from synknumba._tree import Structure, count_leaves, flatten
from synknumba._types import Array, Shape
from synknumba.device import Device

FIRST_LEAF = 64
LEAF_ALIGNMENT = 16
SPECS_KEPT = 1024  # shapes that differ from call to call make a new spec each; more than these are forgotten

LeafType: TypeAlias = tuple[Any, Shape]


def place_leaves(leaves: Sequence[LeafType]) -> tuple[list[int], int]:
    """The offset of each leaf from the first, and the bytes of all."""
    offsets, at = [], 0
    for dtype, shape in leaves:
        offsets.append(at)
        at += -(-int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize // LEAF_ALIGNMENT) * LEAF_ALIGNMENT
    return offsets, at


def view_leaves(memory: Array, leaves: Sequence[LeafType]) -> list[Array]:
    """The leaves in packed memory."""
    offsets, _ = place_leaves(leaves)
    views = []
    for (dtype, shape), offset in zip(leaves, offsets, strict=True):
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        views.append(memory[offset : offset + nbytes].view(dtype).reshape(shape))
    return views


@dataclass(frozen=True, slots=True)
class _Spec:
    number: int
    views: list[Array]


class ResultWriter:
    """Packs the results of one program on a rank.

    Args:
        memory: of the rank's small results.
        capacity: bytes of it that may be used.
        device: that functions return arrays of.
    """

    def __init__(self, memory: Array, capacity: int, device: Device) -> None:
        self._device = device
        self._number: Array = memory[:8].view(np.int64)
        self._memory: Array = memory[FIRST_LEAF:]
        self._capacity = capacity - FIRST_LEAF
        self._specs: dict[Any, _Spec] = {}
        self._plain: dict[type, _Spec] = {}  # specs of a lone scalar, or of None, by its Python type: the common case
        self._made = 0
        self._segment: Segment | None = None

    def write_nothing(self) -> None:
        """Says that this rank did not run."""
        self._number[0] = 0

    def write(self, result: Any) -> Returned | None:
        """Packs one result; returns its spec when it is new. It is there when the device has been waited for."""
        spec = self._plain.get(type(result))
        if spec is not None:
            with suppress(OverflowError):  # an int that needs another dtype than those before
                if result is not None:
                    spec.views[0][()] = result
                self._number[0] = spec.number
                return None
        leaves, structure = flatten(result)
        arrays = [_checked(self._device.leaf(leaf)) for leaf in leaves]
        types = tuple((array.dtype, array.shape) for array in arrays)
        spec = self._specs.get((structure, types))
        news = None
        if spec is None:
            spec, news = self._new_spec(structure, types)
            if result is None or isinstance(result, float | int | np.number | np.bool_):
                self._plain[type(result)] = spec
        for view, array in zip(spec.views, arrays, strict=True):
            self._device.put(view, array)
        self._number[0] = spec.number
        return news

    def _new_spec(self, structure: Structure, types: tuple[LeafType, ...]) -> tuple[_Spec, Returned]:
        if len(self._specs) >= SPECS_KEPT:
            self._specs.clear()
            self._plain.clear()
        _, nbytes = place_leaves(types)
        self._made += 1
        memory, segment = self._memory, None
        if nbytes > self._capacity:
            memory, segment = self._own_memory(nbytes)
        spec = self._specs[structure, types] = _Spec(self._made, view_leaves(memory, types))
        return spec, Returned(self._made, structure, types, nbytes, segment)

    def _own_memory(self, nbytes: int) -> tuple[Array, tuple[int, int]]:
        if self._segment is None:
            self._segment = Segment(nbytes)
            self._device.attach(self._segment, whole=True)
        elif self._segment.size < nbytes:
            self._device.detach(self._segment)
            # By half at least: a mapping for each of ever larger results would take the coordinator's descriptors.
            self._segment.grow(max(nbytes, self._segment.size * 3 // 2))
            self._device.attach(self._segment, whole=True)
        return self._segment.array(np.uint8, (nbytes,)), (self._segment.id, self._segment.size)

    @property
    def descriptors(self) -> list[int]:
        """What must be sent along with a spec that names a segment."""
        return [] if self._segment is None else [self._segment.fd]

    def close(self) -> None:
        """Frees the program's own segment."""
        if self._segment is not None:
            self._device.detach(self._segment)
            self._segment.close()


def _checked(array: Any) -> Any:
    if array.dtype.hasobject:
        kind = type(array.item() if array.ndim == 0 else array).__name__
        message = (
            f"a function returned an object of type {kind}; only numbers and arrays of a fixed-size dtype can be put together. "
            "Return arrays, numbers, or dicts, lists and tuples of them."
        )
        raise ReductionError(message)
    return array


@dataclass(frozen=True, slots=True)
class RankReturn:
    """How to read one rank's result: the structure and views of its leaves, valid until the next call."""

    structure: Structure
    leaves: tuple[Array, ...]

    def apart(self) -> "list[RankReturn]":
        """The results in a tuple of them."""
        out, at = [], 0
        for structure in self.structure[1]:
            size = count_leaves(structure)
            out.append(RankReturn(structure, self.leaves[at : at + size]))
            at += size
        return out


class ResultReader:
    """Unpacks one rank's results of one program in the coordinator."""

    def __init__(self, memory: Array) -> None:
        self._memory: Array = memory[FIRST_LEAF:]
        self._specs: dict[int, RankReturn] = {}
        self._segment: Segment | None = None  # the rank's, as large as it was last told

    def learn(self, news: Returned, descriptors: Sequence[int]) -> None:
        """Takes in a new spec, and the segment that comes with it."""
        if len(self._specs) > 2 * SPECS_KEPT:
            for old in sorted(self._specs)[:SPECS_KEPT]:
                del self._specs[old]
        memory = self._memory
        if news.segment is not None:
            memory = self._mapped(*news.segment, descriptors[0]).array(np.uint8, (news.nbytes,))
        self._specs[news.spec] = RankReturn(news.structure, tuple(view_leaves(memory, news.leaves)))

    def _mapped(self, segment_id: int, size: int, descriptor: int) -> Segment:
        if self._segment is not None and self._segment.size == size:
            os.close(descriptor)
        else:
            self._segment = Segment.attach(segment_id, descriptor, size)
        return self._segment

    @property
    def nbytes(self) -> int:
        """Shared memory that the rank keeps for its results."""
        return 0 if self._segment is None else self._segment.size

    def read(self, number: int) -> RankReturn:
        """The result under a spec number other than 0."""
        return self._specs[number]
