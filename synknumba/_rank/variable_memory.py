"""Allocates the memory of variables on a rank: `Holding`, one variable's memory, with its
arrays.
"""

import math
from typing import Any, final

import numpy as np

from synknumba._device import Device, Step
from synknumba._ops.variable_layout import StorageLayout, line_type
from synknumba._types import Array


@final
class Holding:
    """The rank's memory of one variable.

    Args:
        layout: layout of the variable's arrays on all ranks.
        rank: rank of this process.
        shared: a uint8 array in a segment; None to allocate memory on the device.
        device: device of the rank.
    """

    def __init__(
        self, layout: StorageLayout, rank: int, shared: Array | None, device: Device
    ) -> None:
        self.layout = layout
        # by leaf; the last is that of `VECTOR`, index −1
        self._offsets = [
            *layout.place(rank)[0],
            0,
        ]
        self._rank = rank
        self._memory: Any = device.memory(layout.place(rank)[1]) if shared is None else shared
        self._device = device

    def array(self, leaf: int) -> Any:
        """Returns one array, writable, for kernels and Python functions; `leaf` may be `VECTOR`
        for a flat layout.
        """
        of = self.layout.leaf(leaf)
        return self._device.view(self._memory, self._offsets[leaf], of.dtype, of.shapes[self._rank])

    def rows(self, leaf: int, first: int, count: int) -> Any:
        """Returns consecutive rows of one array, of at least one dimension."""
        of = self.layout.leaf(leaf)
        row = of.shapes[self._rank][1:]
        nbytes = math.prod(row) * int(np.dtype(of.dtype).itemsize)
        return self._device.view(
            self._memory, self._offsets[leaf] + first * nbytes, of.dtype, (count, *row)
        )

    def own(self, leaf: int) -> Any:
        """Returns the rank's own rows, without halos, of one array of at least one dimension."""
        start, stop = self.layout.own(leaf, self._rank)
        return self.rows(leaf, start, stop - start)

    def line(self, leaf: int) -> Any:
        """Returns one array as 1-D for collectives; of bytes if its dtype is not numeric."""
        of = self.layout.leaf(leaf)
        dtype, count = line_type(of.dtype, of.size(self._rank))
        return self._device.view(self._memory, self._offsets[leaf], dtype, (count,))

    def carry_over(self, old: "Holding") -> list[Step]:
        """Returns steps that copy arrays of unchanged shape from earlier memory."""
        pairs = list(enumerate(zip(self.layout.leaves, old.layout.leaves, strict=True)))
        same = [i for i, (new, was) in pairs if new.shapes[self._rank] == was.shapes[self._rank]]
        return [self._device.copy(self.array(i), old.array(i)) for i in same]
