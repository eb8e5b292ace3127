"""The output process: forwards the ranks' output, and keeps the last lines of each rank.

    rank r ── fd 2, a pipe ──> output process ── unchanged or prefixed ──> the script's stderr
           ── fd 1, a pipe, only with prefixes ──> output process ──> the script's stdout
    coordinator ── lifeline (closed: finish) ──> output process ── shared memory ──> coordinator: last lines of each rank

Messages of C libraries and of the dying interpreter ("free(): invalid pointer") are written to the descriptor directly, so only
a reader of a pipe in its place can keep them. The output process is not a rank, so it outlives a rank that crashes, and still
reads every byte left in the pipe. It is not a thread of the coordinator, so it works while the script computes, and a fork
finds no thread. It ends when all writers have ended, when the coordinator closes the lifeline, or when the coordinator dies. If
it is killed, the coordinator starts another one; the coordinator keeps the pipes open, so a rank's writes do not fail
meanwhile.

Without prefixes, stdout of a rank is the script's own descriptor: nothing is between a `print` on a rank and the terminal.
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

_END_SECONDS = LONGEST_SECONDS + 0.5  # the output process gives up before that, unless it is stopped


@final
class Scribe:
    """The coordinator's handle of the output process, which is started after all ranks have been forked.

    Args:
        prefix: whether to forward both streams with the rank's number before each line; otherwise only stderr is forwarded.
    """

    def __init__(self, *, prefix: bool) -> None:
        self._prefix = prefix
        self._carried: list[Carried] = []
        self._pid = 0
        self._lifeline = self._alive = -1
        self._lock = threading.RLock()  # another thread or a signal handler may end the world during `look_after`
        self._told: dict[int, str] = {}
        self._dropped = 0

    @property
    def streams(self) -> tuple[int, ...]:
        """The streams of a rank that are forwarded."""
        return (STDOUT, STDERR) if self._prefix else (STDERR,)

    @property
    def dropped(self) -> int:
        """Number of bytes that could not be forwarded."""
        with self._lock:
            return self._dropped + sum(one.dropped for one in self._carried)

    def pipe(self, rank: int, stream: int) -> int:
        """Creates the pipe of one stream of a rank, before its fork; returns the end that replaces the stream."""
        reader, writer = os.pipe()
        try:
            self._carried.append(Carried(rank, stream, reader, prefix=self._prefix))
        except OSError:  # no memory
            os.close(reader)
            os.close(writer)
            raise
        return writer

    def start(self) -> None:
        """Starts the output process."""
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
        """Restarts the output process if it has been killed."""
        with self._lock:
            if self._pid and self._carried and has_ended(self._pid):
                with contextlib.suppress(OSError):  # the fork failed; the next call tries again
                    self.start()

    def finish(self) -> dict[int, str]:
        """Waits until all output is forwarded, and ends the process. Returns the last lines on stderr by rank; idempotent."""
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
        if self._alive >= 0:  # -1 if a restart has failed
            poll = select.poll()
            poll.register(self._alive, 0)  # only the output process has the other end
            poll.poll(_END_SECONDS * 1000)
        end_child(self._pid)
        self._pid = 0

    def _close_ends(self) -> None:
        for fd in (self._lifeline, self._alive):
            if fd >= 0:
                os.close(fd)
        self._lifeline = self._alive = -1
