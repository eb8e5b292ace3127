"""Carries what the ranks write, and remembers the last lines of each: one small process beside them.

    rank r ── fd 2, a pipe ──> scribe ── as it comes ──> the script's stderr
           ── fd 1, likewise, where lines get a prefix ──> the script's stdout
    coordinator ── lifeline (closed: finish) ──> scribe ── memory that both have ──> coordinator: the last lines of each rank

What C libraries and the dying interpreter write ("free(): invalid pointer") comes by the descriptor alone, so it can only be
kept by whoever stands behind that. This is not a rank, so it outlives one that crashes, with every byte that was in the
pipe. It is not a thread of the coordinator, so it goes on while the script computes, and a fork finds no thread. It ends by
itself when all that could write have ended, or when the coordinator lets go of it or dies. If it is killed, the coordinator
starts another: it keeps the pipes open itself, so that a rank which writes gets no error meanwhile.

Without a prefix stdout stays the script's own descriptor: nothing is between a `print` on a rank and the terminal.
"""

import contextlib
import os
import select
import threading
from typing import final

from synknumba._host.children import end_child, has_ended
from synknumba._host.inherited import fork
from synknumba._host.signals import held_signals
from synknumba._world.output_pump import LONGEST_SECONDS, STDERR, STDOUT, Carried, scribe_main

_END_SECONDS = LONGEST_SECONDS + 0.5  # it gives up by itself before that, unless it is stopped


@final
class Scribe:
    """The coordinator's side. Pipes are made before the fork of each rank, the process is started after the last.

    Args:
        prefix: whether lines of both streams get the rank's number; else only stderr comes by here.
    """

    def __init__(self, *, prefix: bool) -> None:
        self._prefix = prefix
        self._carried: list[Carried] = []
        self._pid = 0
        self._lifeline = self._alive = -1
        self._lock = threading.RLock()  # a call looks after it while another thread, or a signal handler, ends the world
        self._told: dict[int, str] = {}
        self._dropped = 0

    @property
    def streams(self) -> tuple[int, ...]:
        """The streams of a rank that come by here."""
        return (STDOUT, STDERR) if self._prefix else (STDERR,)

    @property
    def dropped(self) -> int:
        """Bytes that could not be passed on."""
        with self._lock:
            return self._dropped + sum(one.dropped for one in self._carried)

    def pipe(self, rank: int, stream: int) -> int:
        """A pipe for one stream of a rank: the end that takes the stream's place."""
        reader, writer = os.pipe()
        try:
            self._carried.append(Carried(rank, stream, reader, prefix=self._prefix))
        except OSError:  # no memory
            os.close(reader)
            os.close(writer)
            raise
        return writer

    def start(self) -> None:
        """Starts the process."""
        with self._lock, held_signals():
            self._close_ends()
            coordinator = os.getpid()
            with contextlib.ExitStack() as child_ends:
                end, self._lifeline = os.pipe()
                child_ends.callback(os.close, end)
                self._alive, alive = os.pipe()
                child_ends.callback(os.close, alive)
                self._pid = fork()
                if self._pid == 0:
                    scribe_main(self._carried, end, alive, coordinator)

    def look_after(self) -> None:
        """Starts another process if it has been killed."""
        with self._lock:
            if self._pid and self._carried and has_ended(self._pid):
                with contextlib.suppress(OSError):  # no process is to be had: later, perhaps
                    self.start()

    def finish(self) -> dict[int, str]:
        """Waits until everything is carried, and ends it; the last lines on stderr, by rank. Idempotent."""
        with self._lock:
            if self._carried:
                self._finish()
            return self._told

    def _finish(self) -> None:
        if any(one.unread or one.waiting for one in self._carried):
            self.look_after()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        self._end_process()
        self._close_ends()
        while self._carried:
            one = self._carried.pop()
            one.give_up()
            self._dropped += one.dropped
            if one.stream == STDERR:
                self._told[one.rank] = one.last.decode(errors="backslashreplace")
            one.close()

    def _end_process(self) -> None:
        if not self._pid:
            return
        if self._alive >= 0:  # there is none where no descriptors were to be had for another process
            poll = select.poll()
            poll.register(self._alive, 0)  # its other end is the process's alone
            poll.poll(_END_SECONDS * 1000)
        end_child(self._pid)
        self._pid = 0

    def _close_ends(self) -> None:
        for fd in (self._lifeline, self._alive):
            if fd >= 0:
                os.close(fd)
        self._lifeline = self._alive = -1
