"""Ranks whose variables are in memory of their own, as on GPUs: what a GPU's world does with values, without a GPU.

What runs is a core, and memory starts as garbage; staging memory, transfers and the host transport are those of GPUs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import synknumba as synk
from synknumba import _rank
from synknumba.device._cpu import CpuDevice


class PrivateDevice(CpuDevice):
    kind = "cuda"
    most = 1 << 40  # bytes of one piece of memory; ranks have what it is at the fork

    def memory(self, nbytes: int) -> Any:
        if nbytes > self.most:
            message = f"out of memory, asked for {nbytes} bytes"
            raise MemoryError(message)
        return np.full(max(nbytes, 1), 0xA5, np.uint8)


@contextmanager
def _opened_by_ranks() -> Iterator[None]:
    """Ranks that are forked meanwhile open a private device."""
    opened = _rank.open_device
    _rank.open_device = lambda kind, index: PrivateDevice()
    try:
        yield
    finally:
        _rank.open_device = opened


def fork_private(world_size: int) -> synk.World:
    """A world of such ranks."""
    with _opened_by_ranks():
        return synk.World(world_size, "cuda", (0,) * world_size, profile=False, timeout=None)
