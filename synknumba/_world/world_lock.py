"""Who has a world: one call at a time, from `Engine.begin` to `Engine.end`.

    a call           begin ── take ─────────── give_back ── end
    a drop           drops += 1 ── take, if free ── give_back ── drops −= 1
    a future's wait  awaiting.add ── take ── land ── give_back ── awaiting.discard

An exception from outside, such as that of Ctrl-C, may strike between taking the world and the
`try` that gives it back, or just before it is given back. So the lock notes the frame of the call
that has the world: if that is no longer on the stack, the world is free for the thread that has
it. A signal handler, too, may call within any of these steps.
"""

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import final

DROP_SECONDS = 5.0  # wait of a call for a drop in another thread; a drop takes some 50 µs

current_frame: Callable[..., FrameType] = sys._getframe  # noqa: SLF001


@final
class WorldLock:
    """The lock of one world.

    Attributes:
        is_mine: whether the calling thread has the world; also true after an exception from
            outside has struck before it could be given back.
        call: frame of the call that has the world; None if it is free.
        drops: drops in progress, or about to begin. Counted before the world is taken, so that
            `take_late` does not mistake a drop for a call.
        awaiting: threads that wait for a call in flight, or are about to; noted likewise.
    """

    __slots__ = ("_acquire", "_release", "awaiting", "call", "drops", "is_mine")

    def __init__(self) -> None:
        # never taken twice; an RLock can tell whether this thread holds it
        lock = threading.RLock()
        self._acquire, self._release = lock.acquire, lock.release
        self.is_mine: Callable[[], bool] = lock._is_owned  # type: ignore[attr-defined]  # noqa: SLF001  # as `Condition` uses it
        self.call: FrameType | None = None
        self.drops = 0
        self.awaiting: set[int] = set()

    def take(self, call: FrameType, seconds: float = 0.0) -> bool:
        """Takes the world, unchecked, for the call with this frame; returns whether it could."""
        while True:
            if self.is_mine():
                if self._is_in_call():
                    return False
            elif not self._acquire(False) and not (seconds and self._acquire(timeout=seconds)):
                return False
            self.call = call
            # else a signal handler's call took the world and gave it back before the line above
            if self.is_mine():
                return True

    def take_late(self, call: FrameType) -> bool:
        """Takes the world from what is no call of the user; returns whether it could.

        A drop in another thread, which makes a segment, is soon over. The wait for a call in flight
        has ended if the world is free at the second try.
        """
        if self.take(call, DROP_SECONDS if self.drops else 0.0):
            return True
        return self.take(call, threading.TIMEOUT_MAX if self.awaiting else 0.0)

    def give_back(self) -> None:
        """Gives the world back."""
        self.call = None
        try:
            self._release()
        # a signal handler's call took the world and gave it back after the line above
        except RuntimeError:
            return

    def _is_in_call(self) -> bool:
        frame: FrameType | None = current_frame()
        while frame is not None and frame is not self.call:
            frame = frame.f_back
        return frame is not None
