"""Rings of records, written by compiled code (`doorbell.record`), which keep the last ones."""

from typing import final

import numpy as np

from synknumba._types import Array
from synknumba._wire import doorbell


@final
class Ring:
    """A ring with room for some records.

    Attributes:
        address: for compiled code.
    """

    def __init__(self, records: int) -> None:
        self._words: Array = np.zeros(doorbell.RECORDS + records * doorbell.RECORD_WORDS, np.int64)
        self._words[doorbell.ROOM] = records
        self.address: int = self._words.ctypes.data

    def read(self) -> tuple[Array, int]:
        """Returns the records, int64 of shape (n, 4), oldest first, and how many were lost.

        >>> ring = Ring(2)
        >>> for number in range(3):
        ...     _ = doorbell.record(ring.address, number, 0, 0, 0)
        >>> ring.read()[0][:, 0].tolist(), ring.read()[1]
        ([1, 2], 1)
        """
        written, room = (int(self._words[word]) for word in (doorbell.WRITTEN, doorbell.ROOM))
        records = self._words[doorbell.RECORDS :].reshape(room, doorbell.RECORD_WORDS)
        if written <= room:
            return records[:written], 0
        return np.roll(records, -(written % room), 0), written - room
