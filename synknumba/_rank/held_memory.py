"""The memory of one variable on one rank."""

from typing import Any, final

from synknumba._device import Device, Step
from synknumba._ops.variable_layout import StorageLayout, line_type


@final
class Holding:
    """The arrays of a variable as this rank holds them.

    Attributes:
        layout: of the arrays, on all ranks.
    """

    def __init__(self, layout: StorageLayout, rank: int, memory: Any, device: Device) -> None:
        self.layout = layout
        self._offsets = [*layout.place(rank)[0], 0]  # the last is that of `VECTOR`, which is −1
        self._rank = rank
        self._memory = memory
        self._device = device

    def array(self, leaf: int) -> Any:
        """One array, writable, as kernels and Python functions take it; of a flat variable also `VECTOR`."""
        of = self.layout.leaf(leaf)
        return self._device.view(self._memory, self._offsets[leaf], of.dtype, of.shapes[self._rank])

    def line(self, leaf: int) -> Any:
        """One array as a one-dimensional one of numbers; of bytes where its dtype is not a number's."""
        of = self.layout.leaf(leaf)
        dtype, count = line_type(of.dtype, of.size(self._rank))
        return self._device.view(self._memory, self._offsets[leaf], dtype, (count,))

    def carry_over(self, old: "Holding") -> list[Step]:
        """Steps that copy the arrays of older memory which have the same shape here."""
        pairs = list(enumerate(zip(self.layout.leaves, old.layout.leaves, strict=True)))
        same = [i for i, (new, was) in pairs if new.shapes[self._rank] == was.shapes[self._rank]]
        return [self._device.copy(self.array(i), old.array(i)) for i in same]
