"""Ranks that record what they repeat, as on GPUs, so that compiled code serves it: without a GPU.

What is recorded is run by a function that compiled code calls, as it calls the driver's, and that then writes to a mailbox. By
and by it does so late, after the rank has gone back to Python.
"""

import ctypes
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import synknumba as synk
from synknumba import _rank, _spin
from synknumba._serving import Relaunch
from synknumba.device import Replay, Step
from tests.conformance.private_memory import PrivateDevice

LATE_EVERY = 11
LATE_SECONDS = 0.05  # longer than compiled code waits


class CountedSpin:
    """`_spin`, as ranks use it, and how many rounds it has served."""

    def __init__(self) -> None:
        self.served = self.under_way = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(_spin, name)

    def serve(self, *args: int) -> int:
        number: int = _spin.serve(*args)
        self.served += ctypes.c_int64.from_address(args[-1] + 8 * _spin.SERVED).value
        self.under_way += number == _spin.UNDER_WAY
        return number


class CalledReplay(Replay):
    """Steps that are run where a graph would be launched.

    Attributes:
        fails_in: launches from now that one of them fails; 0 if none does.
        broken: whether one has failed, and not been told yet.
    """

    fails_in = 0
    broken = False

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._words = np.zeros(2, np.int64)  # the mailbox, and where its word belongs
        box = self._words.ctypes.data
        self._launches = 0
        self._function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_int64)(self._launch)
        address = ctypes.cast(self._function, ctypes.c_void_p).value
        assert address is not None
        self._kept = Relaunch(address, 11, 22, box, [box + 8])
        self.relaunch = self._kept.address

    def _launch(self, executable: int, stream: int) -> int:
        assert (executable, stream) == (11, 22)
        self._launches += 1
        kind = type(self)
        if kind.fails_in:
            kind.fails_in -= 1
            kind.broken = kind.fails_in == 0
            if kind.broken:
                return 1
        if self._launches % LATE_EVERY == 0:
            threading.Thread(target=self._run_late, daemon=True).start()
            return 0
        self._run()
        return 0

    def _run_late(self) -> None:
        time.sleep(LATE_SECONDS)
        self._run()

    def _run(self) -> None:
        for step in self._steps:
            step()
        self._words[0] = 1 << 32

    def __call__(self) -> None:
        if self.broken:
            type(self).broken = False
            message = "no launch"
            raise RuntimeError(message)
        for step in self._steps:
            step()

    def wait(self) -> None:
        while not _spin.take(self.relaunch):
            pass

    def renew(self) -> bool:
        return True  # steps read the scalars when they are run

    def close(self) -> None:
        self.relaunch = 0


class ReplayedDevice(PrivateDevice):
    def record(self, steps: Sequence[Step]) -> Replay | None:
        return CalledReplay(steps)


@contextmanager
def _opened_by_ranks() -> Iterator[None]:
    usual = _rank.open_device, _rank._spin
    _rank.open_device, _rank._spin = lambda kind, index: ReplayedDevice(), CountedSpin()  # type: ignore[assignment]
    try:
        yield
    finally:
        _rank.open_device, _rank._spin = usual  # type: ignore[misc]


def fork_replayed(world_size: int, timeout: float | None = None) -> synk.World:
    """A world of such ranks."""
    with _opened_by_ranks():
        return synk.World(world_size, "cuda", (0,) * world_size, profile=False, timeout=timeout, transport="host")


@synk.function(outputs=None)
def count_served() -> tuple[int, int]:
    """Of each rank, how many rounds compiled code has served, and how many it has begun, since it was asked last."""
    spin: Any = _rank._spin
    told = spin.served, spin.under_way
    spin.served = spin.under_way = 0
    return told
