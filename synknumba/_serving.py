"""Rounds that a rank serves in compiled code: the same recorded steps, with the same values, again and again.

    doorbell ──> the same program? ──yes──> the same values? ──yes──> launch ──> take the results ──> arrive ─┐
       ▲               └──no──────────────────────┴──no──> back to Python                                     │
       └──────────────────────────────────────────────────────────────────────────────────────────────────────┘

What is launched ends by writing its small results to a mailbox, page-locked words of 8 bytes: 4 of a result, and 4 that say
that these are there. A word arrives whole, so the device needs no fence between a result and a flag, which takes it more than a
microsecond; NCCL's protocol LL is the same. The host takes the words apart and puts the results where they belong.

Compiled code hears of no signal and looks after nobody, so it goes back to Python every 50 ms, as soon as a result is late or a
launch fails, and with every other command.
"""

import ctypes
from collections.abc import Sequence
from typing import final

import numpy as np

from synknumba import _spin
from synknumba._types import Array


@final
class Relaunch:
    """What is launched, and where its results go: 4 bytes to each target.

    Args:
        function: address of a C function that takes an executable and a stream and returns 0, or an error.
        executable: the first argument.
        stream: the second one.
        box: address of the mailbox, of as many words as there are targets.
        targets: addresses.
    """

    def __init__(self, function: int, executable: int, stream: int, box: int, targets: Sequence[int]) -> None:
        self._words = np.array([function, executable, stream, box, len(targets), *targets], np.int64)
        self.address: int = self._words.ctypes.data


@final
class Again:
    """A program's last call, to be told from others.

    Args:
        number: of the program.
        values: where a call's values are, in shared memory.
        packed: what these were.
        relaunch: address of the `Relaunch` that does the same again.
    """

    def __init__(self, number: int, values: Array, packed: bytes, relaunch: int) -> None:
        self._packed = ctypes.create_string_buffer(packed)
        self._words = np.zeros(_spin.AGAIN_WORDS, np.int64)
        self._words[: _spin.SERVED] = number, values.ctypes.data, len(packed), ctypes.addressof(self._packed), relaunch
        self.address: int = self._words.ctypes.data

    @property
    def served(self) -> int:
        """The rounds of the last `serve`."""
        return int(self._words[_spin.SERVED])
