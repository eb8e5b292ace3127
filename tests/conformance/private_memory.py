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

    def memory(self, nbytes: int) -> Any:
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
