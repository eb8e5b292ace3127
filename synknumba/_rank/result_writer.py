"""Packs results of Python functions on a rank; for the layout and the coordinator's reader, see
`_wire/results.py`.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from synknumba._device import Device, Step
from synknumba._errors import ReductionError, SharedMemoryError
from synknumba._host.segment import Segment
from synknumba._ops.tree import Structure, flatten
from synknumba._types import Array, shown
from synknumba._wire.messages import Returned
from synknumba._wire.results import FIRST_LEAF, SPECS_KEPT, LeafType, place_leaves, view_leaves

_Spec: TypeAlias = tuple[int, list[Array]]  # number, views of the leaves


class ResultWriter:
    """Packs the results of one program on a rank.

    Attributes:
        keeps: whether results of a round are kept, so that one in a segment may not replace
            another: such results are sent.

    Args:
        memory: the rank's small results in the control block: uint8, 1-D.
        capacity: number of bytes of `memory` that may be used.
        device: device of the rank, whose arrays functions return.
        name: of the function, for messages.
    """

    def __init__(
        self, memory: Array, capacity: int, device: Device, name: str = "a function"
    ) -> None:
        self.keeps = False
        self._name = name
        self._device = device
        self._number: Array = memory[:8].view(np.int64)
        self._memory: Array = memory[FIRST_LEAF:]
        self._capacity = capacity - FIRST_LEAF
        self._specs: dict[Any, _Spec] = {}
        # specs of a single scalar or None, by Python type: fast path
        self._plain: dict[type, _Spec] = {}
        self._made = 0
        self._segment: Segment | None = None
        self._in_segment: set[int] = set()  # numbers of specs

    def write_nothing(self) -> None:
        """Records that this rank did not run."""
        self._number[0] = 0

    def write(self, result: Any) -> Returned | None:
        """Packs one result; complete after `Device.synchronize`. Returns its spec if that is
        new, else None.
        """
        spec = self._plain.get(type(result))
        if spec is not None:
            number, views = spec
            try:
                if result is not None:
                    views[0][()] = result
                self._number[0] = number
            except OverflowError:  # the int needs a wider dtype than earlier ones
                pass
            else:
                return None
        leaves, structure = flatten(result)
        arrays = [_checked(self._device.leaf(leaf), self._name) for leaf in leaves]
        types = tuple((array.dtype, array.shape) for array in arrays)
        spec = self._specs.get((structure, types))
        news = None
        if self.keeps and (spec is None or spec[0] in self._in_segment):
            news = self._sent(structure, types, arrays)
            if news is not None:
                return news
        if spec is None:
            spec, news = self._new_spec(structure, types)
            if result is None or isinstance(result, float | int | np.number | np.bool_):
                self._plain[type(result)] = spec
        number, views = spec
        for view, array in zip(views, arrays, strict=True):
            self._device.put(view, array)
        self._number[0] = number
        return news

    def copies(self, result: Any) -> list[Step] | None:
        """Returns steps that pack a result whose arrays stay where they are; None if that takes
        more than copies of the device.

        A result of this structure has been packed before.
        """
        leaves, structure = flatten(result)
        spec = self._specs.get((structure, tuple((leaf.dtype, leaf.shape) for leaf in leaves)))
        if spec is None or any(not np.may_share_memory(view, self._memory) for view in spec[1]):
            return None
        number = self._device.view(self._device.memory(8), 0, np.int64, (1,))
        self._device.upload(number, np.array([spec[0]]))()
        self._device.synchronize()
        pairs = [*zip(spec[1], leaves, strict=True), (self._number, number)]
        return [self._device.download(view, leaf) for view, leaf in pairs if view.size]

    def _sent(
        self, structure: Structure, types: tuple[LeafType, ...], arrays: Sequence[Array]
    ) -> Returned | None:
        """Returns the news of a result that is too large for the control block; None if it is
        not.
        """
        _, nbytes = place_leaves(types)
        if nbytes <= self._capacity:
            return None
        memory = np.zeros(nbytes, np.uint8)
        for view, array in zip(view_leaves(memory, types), arrays, strict=True):
            view[...] = self._device.to_host(array)
        self._made += 1
        self._number[0] = self._made
        return Returned(self._made, structure, types, nbytes, packed=memory.tobytes())

    def _new_spec(
        self, structure: Structure, types: tuple[LeafType, ...]
    ) -> tuple[_Spec, Returned]:
        if len(self._specs) >= SPECS_KEPT:
            self._specs.clear()
            self._plain.clear()
            self._in_segment.clear()
        _, nbytes = place_leaves(types)
        self._made += 1
        memory, segment = self._memory, None
        if nbytes > self._capacity:
            memory, segment = self._own_memory(nbytes)
            self._in_segment.add(self._made)
        spec = self._specs[structure, types] = self._made, view_leaves(memory, types)
        return spec, Returned(self._made, structure, types, nbytes, segment)

    def _own_memory(self, nbytes: int) -> tuple[Array, tuple[int, int]]:
        if self._segment is None:
            self._segment = Segment(nbytes)
            self._device.attach(self._segment, whole=True)
        elif self._segment.size < nbytes:
            self._device.detach(self._segment)
            # By at least half: each mapping in the coordinator keeps a descriptor, and results that
            # grow a little at each call would exhaust them.
            size = max(nbytes, self._segment.size * 3 // 2)
            try:
                # the coordinator reads results of earlier specs where they were
                self._segment.grow(size, may_move=False)
            except SharedMemoryError:  # /dev/shm is full; those specs keep the old segment
                self._segment = Segment(size)
            self._device.attach(self._segment, whole=True)
        return self._segment.array(np.uint8, (nbytes,)), (self._segment.id, self._segment.size)

    @property
    def descriptors(self) -> list[int]:
        """Descriptors to send with a spec that names a segment."""
        return [] if self._segment is None else [self._segment.fd]

    def close(self) -> None:
        """Frees the program's result segment."""
        if self._segment is not None:
            self._device.detach(self._segment)
            self._segment.close()


def _checked(array: Any, name: str) -> Any:
    if array.dtype.hasobject:
        if array.ndim == 0 and isinstance(array.item(), int):
            raise ReductionError(
                f"{name} returned an int that does not fit in 64 bits: "
                f"{shown(array.item())}; return a float"
            )
        kind = f"array of dtype {array.dtype}"
        if array.ndim == 0:
            kind = f"object of type {type(array.item()).__name__}"
        raise ReductionError(
            f"{name} returned an {kind}; only numbers and arrays of a fixed-size dtype can be "
            "combined. Return arrays, numbers, or dicts, lists and tuples of them."
        )
    return array
