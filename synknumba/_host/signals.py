"""Signals held back for a moment: what must be done whole is not broken off by Ctrl-C, or by what a script's handlers raise.

    a signal comes to     the kernel         Python, in the main thread
    -----------------     ----------         --------------------------
    the main thread       keeps it (mask)
    another thread        delivers it   →    runs the handler: a stand-in, which notes the number
                       ── the block ends ──
                          delivers it   →    runs the handlers, which are back in place, for what was kept and noted

Python runs handlers between two instructions of the main thread, wherever the kernel delivers the signal. So with a second
thread in the script, as in a notebook or with NumPy's linear algebra, a mask alone holds back nothing. In other threads no
handler ever runs, and the mask is there so that signals are delivered elsewhere.
"""

# The public module makes an enum of each number in a set: 168 µs for a block instead of 13.
import _signal  # type: ignore[import-not-found]  # of every CPython
import os
import threading
from _thread import interrupt_main
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, final

_ALL = tuple(_signal.valid_signals())


@contextmanager
def held_signals() -> Iterator[None]:
    """Signals that come meanwhile are dealt with right after; blocks may be in one another.

    What a handler raises for a signal that came before comes out of here before the block begins, or after it has ended.
    """
    global _now  # noqa: PLW0603  # an assignment, as no handler runs at it
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
    outermost = _now is None and threading.current_thread() is threading.main_thread()
    stand_in = _StandIn() if outermost else None
    try:
        _signal.pthread_sigmask(_signal.SIG_BLOCK, _ALL)
        if stand_in is not None:
            _now = stand_in
            stand_in.enter()
        yield
    finally:
        # Handlers run when a call has returned or a Python function is entered, and never at an assignment. So what one raises
        # leaves none of this out.
        try:
            if stand_in is not None:
                stand_in.leave()
        finally:
            if stand_in is not None:
                stand_in.over = True
                _now = None
            try:
                _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
            finally:
                if stand_in is not None:
                    list(stand_in.again)


@final
class _StandIn:
    """Takes the place of all handlers that are Python's.

    Attributes:
        replaced: signal numbers and handlers, until they are back in place.
        again: has each signal that came dealt with, when it is gone through. A `map`, so that no handler runs in the middle.
        over: whether the block has ended. Where handlers that are back already raise one after the other, one of these may
            be left in its place; from then on it does what the handler would.
    """

    def __init__(self) -> None:
        get = _signal.getsignal
        self._handlers = {number: handler for number in _ALL if callable(handler := get(number))}
        for number, handler in self._handlers.items():
            if type(handler) is _StandIn:  # left over
                self._handlers[number] = handler._handlers[number]  # noqa: SLF001  # of this very class
        self.replaced = list(self._handlers.items())
        self.over = False
        self._came: list[int] = []
        self._wakeup = -1
        self.again: Iterator[None] = map(interrupt_main, self._came)  # type: ignore[arg-type]  # any number will do

    def enter(self) -> None:
        """Takes the place of the handlers."""
        for number in self._handlers:
            _signal.signal(number, self)
        self._wakeup = _signal.set_wakeup_fd(-1)  # an event loop, such as asyncio's, reads there what came: once is enough

    def leave(self) -> None:
        """Gives it back."""
        try:
            if self._wakeup >= 0:
                _signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        finally:
            _put_back(self.replaced)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Notes a signal."""
        if self.over:
            self._handlers[number](number, frame)
        else:
            self._came.append(number)

    def leave_child(self) -> None:
        """In a process forked in the block: the handlers are back, and what came is its parent's."""
        self.over = True
        self._came.clear()
        self.leave()


_now: _StandIn | None = None  # of the block that the main thread is in


def _put_back(replaced: list[tuple[int, Any]]) -> None:
    """All of them, whatever those raise that are back already."""
    try:
        while replaced:
            _signal.signal(*replaced[-1])
            replaced.pop()
    finally:
        if replaced:
            _put_back(replaced)


def _leave_child() -> None:
    global _now
    if _now is not None:
        stand_in, _now = _now, None
        stand_in.leave_child()


os.register_at_fork(after_in_child=_leave_child)
