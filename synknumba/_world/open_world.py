"""Which world is open in this process, or why there is none, and which call has it.

    none ── fork() ──> open ── a failure ──> ended ── the next call, with respawn=True ──> open
                        └───── close() ────> none

A process has at most one open world. These references are set by the thread that starts or ends a
world; any thread may read them, so each changes in one assignment. Only starts exclude each other
(`starting`).

One call at a time has a world, from `Engine.begin` to `Engine.end` (`WorldLock`):

    a call           begin ── take ─────────── give_back ── end
    a drop           drops += 1 ── take, if free ── give_back ── drops −= 1
    a future's wait  awaiting.add ── take ── land ── give_back ── awaiting.discard

An exception from outside, such as that of Ctrl-C, may strike between taking the world and the
`try` that gives it back, or just before it is given back. So the lock notes the frame of the call
that has the world: if that is no longer on the stack, the world is free for the thread that has
it. A signal handler, too, may call within any of these steps.
"""

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, final

from synknumba._errors import SynkError, WorldError
from synknumba._host import this_process
from synknumba._host.deaths import settle

if TYPE_CHECKING:
    from synknumba._world.engine import Engine


DROP_SECONDS = 5.0  # wait of a call for a drop in another thread; a drop takes some 50 µs

current_frame: Callable[..., FrameType] = sys._getframe  # noqa: SLF001


@final
class OpenWorld:
    """Reference to this process's open world, and the reason why the last one ended.

    Attributes:
        world: the open world.
        ended: a world that a failure has ended, and that the next call starts again.
        pending_error: what ended the last world outside any call, until a call has raised it.
        reason: why the last world ended; None if the script closed it.
        closed: how and where the script closed it.
        is_parents: whether the world that this process had when it was forked is its parent's.
        snapshots: number of snapshots taken in this process.
        when_started: called with each world that has started.
    """

    __slots__ = (
        "_starters",
        "closed",
        "ended",
        "is_parents",
        "pending_error",
        "reason",
        "snapshots",
        "when_started",
        "world",
    )

    def __init__(self) -> None:
        self.world: Engine | None = None
        self.ended: Engine | None = None
        self.pending_error: SynkError | None = None
        self.reason: str | None = None
        self.closed = ""
        self.is_parents = False
        self.snapshots = 0
        self.when_started: Callable[[Engine], None] | None = None
        # "one": the thread that starts a world, in a list of its own
        self._starters: dict[str, list[int]] = {}

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Refuses a second start of a world meanwhile; a dict can be taken and given back in one
        step, unlike a lock.

        Raises:
            WorldError: another thread, or a call around this one, starts a world.
        """
        mine = [threading.get_ident()]
        try:
            if self._starters.setdefault("one", mine) is not mine:
                raise WorldError(
                    "a world is being started, by another thread or by the call around this one; "
                    "call again when it has started"
                )
            yield
        finally:
            if self._starters.get("one") is mine:
                del self._starters["one"]

    @property
    def is_starting(self) -> bool:
        """Whether a world is being started, so that no other thread can use it."""
        return bool(self._starters)

    def await_start(self) -> None:
        """Waits until another thread has started a world."""
        mine = [threading.get_ident()]
        while self._starters.get("one", mine) != mine:
            time.sleep(0.001)

    def raise_pending_error(self) -> None:
        """Raises the error that ended the last world outside any call, once."""
        if self.pending_error is not None:
            error, self.pending_error = self.pending_error, None
            raise error

    def current(self) -> "Engine":
        """Returns the open world; first starts one again that a failure has ended.

        Raises:
            WorldError: no world is open, or this process is a rank.
        """
        if self.world is not None:
            return self.world
        rank = this_process.current_rank()
        if rank is not None:
            raise WorldError(
                f"this is rank {rank}, and only the coordinator makes calls. Call the plain "
                f"function here (f.py_func)."
            )
        self.raise_pending_error()
        if self.ended is None:
            raise WorldError(self._why_none())
        with self.starting():
            if self.world is None and self.ended is not None:
                self.ended.start_again()
        return self.current()

    def _why_none(self) -> str:
        """Returns why no world is open, and what to do."""
        if self.reason is not None:
            return f"the world has ended: {self.reason}. Call synknumba.fork() to start a new one."
        if self.is_parents or _is_of_multiprocessing():
            return (
                "no world is open in this process: a world belongs to the process that has called "
                "synknumba.fork(), and this is the child of another. Make the calls in the parent "
                "process, or call synknumba.fork() here for another world"
            )
        if self.closed:
            return (
                f"no world is open: the world was closed {self.closed}. Make the call "
                f"before, or call synknumba.fork() again"
            )
        return (
            "no world is open: call synknumba.fork() first (it starts one process "
            "per GPU, or per CPU core)"
        )

    def opens(self, world: "Engine") -> None:
        """Makes a world whose ranks have started the open one."""
        self.pending_error, self.world, self.ended, self.is_parents = None, world, None, False

    def ends(self, world: "Engine", reason: str | None, closed: str, *, starts_again: bool) -> None:
        """Notes the end of a world, if it is the open one."""
        if self.world is world:
            self.world, self.reason, self.closed = None, reason, closed
            if starts_again:
                self.ended = world

    def disown(self) -> None:
        """Forgets all in a child of the script, where the world is its parent's."""
        self._starters.clear()  # the thread is not in this process
        world, ended, self.world, self.ended = self.world, self.ended, None, None
        if world is not None or ended is not None:
            self.is_parents, self.reason = True, None
        if world is not None:
            world.disown()


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


CURRENT: Final = OpenWorld()
current_world = CURRENT.current
raise_pending_error = CURRENT.raise_pending_error
starting = CURRENT.starting


def when_started(call: "Callable[[Engine], None] | None") -> None:
    """Sets what is called with each world that has started."""
    CURRENT.when_started = call


def open_world() -> "Engine | None":
    """Returns the engine of the open world, or None."""
    world = CURRENT.world
    if world is not None:
        world.settle()
    return CURRENT.world


def snapshots_taken() -> int:
    """Returns the number of snapshots of worlds that this process has taken."""
    return CURRENT.snapshots


def world_to_start_again() -> "Engine | None":
    """Returns the world that the next call would start again, or None."""
    return CURRENT.ended


def world_to_close() -> "Engine | None":
    """Returns the engine that `close()` ends: that of the open world, or the one that the next
    call would start again.
    """
    return CURRENT.world or CURRENT.ended


def close_at_exit() -> None:
    """Closes the open world without fetching values that nothing will read; after Ctrl-C also
    without the call in flight.
    """
    settle()  # a future that has gone may have a warning
    world = CURRENT.world
    if world is not None:
        interrupted = isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)
        world.close(at_exit=True, patient=not interrupted)


def _is_of_multiprocessing() -> bool:
    """Returns whether this is a child that multiprocessing has started, also without a copy of
    its parent's memory.
    """
    process: Any = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


atexit.register(close_at_exit)
os.register_at_fork(after_in_child=CURRENT.disown)
