"""What the processes of one case share: whether the fault is due, when it struck, which processes
want a signal from outside.

server ──fork──> coordinator ──fork──> ranks
   └──────────── board ───────────────┘           anonymous shared memory, inherited
"""

import mmap
import time

import numpy as np

RANKS = 8  # at most
_ARMED, _STRUCK_NS, _WAITING = 0, 1, 8


class Board:
    """Words of int64 that all processes of a case see."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._words = np.frombuffer(self._memory, np.int64)

    def clear(self) -> None:
        self._words[:] = 0

    @property
    def armed(self) -> int:
        """0, or the number of the fault that is due: 1 for the case's first, 2 for its second."""
        return int(self._words[_ARMED])

    @armed.setter
    def armed(self, number: int) -> None:
        self._words[_ARMED] = number

    def strike(self) -> None:
        """Notes when the last fault struck; the clock is one for all processes."""
        self._words[_STRUCK_NS] = time.monotonic_ns()

    @property
    def struck(self) -> float:
        """When that was, in seconds of `time.monotonic()`; 0.0 if nothing has struck."""
        return float(self._words[_STRUCK_NS]) / 1e9

    def ask_for_signal(self, rank: int, pid: int) -> None:
        """A rank that goes into compiled code now, where it cannot do anything to itself."""
        self._words[_WAITING + rank] = pid

    def waiting(self) -> list[int]:
        """The processes that have asked."""
        return [int(pid) for pid in self._words[_WAITING : _WAITING + RANKS] if pid]

    def forget_waiting(self) -> None:
        self._words[_WAITING : _WAITING + RANKS] = 0
