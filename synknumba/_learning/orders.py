"""Row numbers of the steps of an epoch: those that a script gives, and their buffers."""

from collections.abc import Iterator
from typing import Any, final

import numpy as np

from synknumba._errors import ArgumentError, BatchError
from synknumba._host.data import Data
from synknumba._learning.batches import Batches
from synknumba._types import Array, Cache, with_article

BUFFERS_KEPT = 8  # shapes of row numbers: batches, the last of an epoch, epochs
_REQUIRED = "order needs row numbers, int64 of shape (steps, size)"


@final
class RowNumbers:
    """Buffers of row numbers, one for each shape: with another `Data`, a step would be planned
    anew.

    Attributes:
        in_flight: buffers that ranks may still be reading, of submitted steps.
    """

    def __init__(self) -> None:
        self._buffers: Cache[tuple[int, ...], Data] = Cache(BUFFERS_KEPT)
        self.in_flight: tuple[Data, ...] = ()

    def fill(self, lines: Array) -> Data:
        """Returns row numbers in a buffer that is not in flight."""
        turn = 0
        while any(self._buffers.get((*lines.shape, turn)) is buffer for buffer in self.in_flight):
            turn += 1
        key = *lines.shape, turn
        buffer = self._buffers.use(key)
        if buffer is None:
            buffer = self._buffers[key] = Data(np.zeros(lines.shape, np.int64))
        buffer.set_value(lines.astype(np.int64))
        return buffer


def read_order(order: Any) -> Any:
    """Returns the row numbers of an epoch as an array or `Data`; raises `BatchError` for anything
    else.
    """
    if order is None:
        raise ArgumentError(
            f"an epoch is missing order=: {_REQUIRED[6:]}, as order=synk.batches(x, 100, "
            "seed=0).order(0)"
        )
    kind = type(order).__name__
    if isinstance(order, Batches):
        raise BatchError(f"{_REQUIRED}; got a {kind}: write batches.order(0), those of one epoch")
    if isinstance(order, Iterator):
        raise BatchError(f"{_REQUIRED}; got {with_article(kind)}: write np.array(list(…)) of it")
    try:
        lines = order if isinstance(order, Data) else np.asarray(order)
    except ValueError:
        raise BatchError(f"{_REQUIRED}; its lines have other lengths") from None
    if not lines.size:
        raise BatchError(f"{_REQUIRED}; got none, in an array of shape {lines.shape}")
    if lines.dtype.kind in "iu" and lines.ndim == 2:
        return lines
    instead = ""
    if lines.dtype.kind in "iu" and lines.ndim == 1:
        instead = "; write order.reshape(-1, size) for steps of that many rows"
    raise BatchError(f"{_REQUIRED}; got {lines.dtype} {lines.shape}{instead}")


def check_order(order: Any, rows: int) -> None:
    """Raises `BatchError` for row numbers beyond the rows."""
    low, high = int(order.min()), int(order.max())
    if low < 0 or high >= rows:
        raise BatchError(
            f"order has row {low if low < 0 else high}, but there are rows 0 to {rows - 1}"
        )
