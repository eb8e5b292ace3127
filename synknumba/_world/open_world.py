"""Which world is open in this process, why there is none, and which one the next call starts again.

    none ── fork() ──> open ── a failure ──> ended ── the next call, with respawn=True ──> open
                        └───── close() ────> none

A process has at most one open world. These references are set by the thread that starts or ends a
world; any thread may read them, so each changes in one assignment. Only starts exclude each other
(`starting`).
"""

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, final

from synknumba._errors import SynkError, WorldError
from synknumba._host import this_process
from synknumba._host.deaths import settle

if TYPE_CHECKING:
    from synknumba._world.engine import Engine


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
