"""Carries what the ranks write, and remembers the last lines of each: one small process beside them.

    rank r ── fd 2, a pipe ──> scribe ── as it comes ──> the script's stderr
           ── fd 1, likewise, where lines get a prefix ──> the script's stdout
    coordinator ── lifeline (closed: finish) ──> scribe ── the last lines of each rank, as JSON ──> coordinator

What C libraries and the dying interpreter write ("free(): invalid pointer") comes by the descriptor alone, so it can only be
kept by whoever stands behind that. This is not a rank, so it outlives one that crashes, with every byte that was in the
pipe. It is not a thread of the coordinator, so it goes on while the script computes, and a fork finds no thread. It ends by
itself when all that could write have ended, or when the coordinator lets go of it or dies.

Without a prefix stdout stays the script's own descriptor: nothing is between a `print` on a rank and the terminal.
"""

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import time
from collections.abc import Sequence
from typing import NoReturn, final

from synknumba._inherited import close_inherited, fork
from synknumba._reaping import reap
from synknumba._shm import release_inherited

KEPT_BYTES = 8192  # of each rank's stderr
FINISH_SECONDS = 0.2  # for what somebody else may still write: a process that a rank started, and that outlives it
GIVE_UP_SECONDS = 0.5  # where the script's own stderr takes nothing, as a terminal that is held
_PR_SET_NAME = 15  # prctl.h

# What may be sent to the whole process group: the scribe ends with those whose words it carries.
_IGNORED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGPIPE,
)
_LONGEST_LINE = 65536

STDOUT, STDERR = 1, 2


@final
class Scribe:
    """The coordinator's side. Pipes are made before the fork of each rank, the process is started after the last.

    Args:
        prefix: whether lines of both streams get the rank's number; else only stderr comes by here.
    """

    def __init__(self, *, prefix: bool) -> None:
        self._prefix = prefix
        self._readers: list[tuple[int, int, int]] = []  # rank, stream, descriptor
        self._pid = 0
        self._lifeline = self._report = -1

    @property
    def streams(self) -> tuple[int, ...]:
        """The streams of a rank that come by here."""
        return (STDOUT, STDERR) if self._prefix else (STDERR,)

    def pipe(self, rank: int, stream: int) -> int:
        """A pipe for one stream of a rank: the end that takes the stream's place."""
        reader, writer = os.pipe()
        self._readers.append((rank, stream, reader))
        return writer

    def start(self) -> None:
        """Starts the process. Called with all signals blocked."""
        end, self._lifeline = os.pipe()
        self._report, report = os.pipe()
        coordinator = os.getpid()
        try:
            self._pid = fork()
            if self._pid == 0:
                _scribe_main(self._readers, end, report, coordinator, prefix=self._prefix)
        finally:
            os.close(end)
            os.close(report)
            self._let_go_of_pipes()

    def finish(self) -> dict[int, str]:
        """Waits until everything is carried, and ends it; the last lines on stderr, by rank. Idempotent."""
        self._let_go_of_pipes()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        told = self._read_report()
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            reap([self._pid])
            self._pid = 0
        return told

    def _read_report(self) -> dict[int, str]:
        if self._report < 0:
            return {}
        deadline = time.monotonic() + GIVE_UP_SECONDS
        text = b""
        poll = select.poll()
        poll.register(self._report, select.POLLIN)
        while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            more = os.read(self._report, 65536)
            if not more:
                break
            text += more
        os.close(self._report)
        self._report = -1
        with contextlib.suppress(ValueError):  # it was killed, or had to be given up
            return {int(rank): lines for rank, lines in json.loads(text).items()}
        return {}

    def _let_go_of_pipes(self) -> None:
        while self._readers:
            os.close(self._readers.pop()[2])


class _Carried:
    """One stream of one rank, in the scribe."""

    def __init__(self, rank: int, stream: int, *, prefix: bool) -> None:
        self.rank = rank
        self.stream = stream
        self.last = b""
        self._prefix = f"[rank {rank}] ".encode() if prefix else b""
        self._begun = b""  # a line whose end has not come

    def take(self, data: bytes) -> None:
        """Passes on what the rank wrote; whole lines only, where they get a prefix."""
        self.last = (self.last + data)[-KEPT_BYTES:]
        if not self._prefix:
            _write(self.stream, data)
            return
        *lines, self._begun = (self._begun + data).split(b"\n")
        if lines:
            _write(self.stream, b"".join(self._prefix + line + b"\n" for line in lines))
        if len(self._begun) > _LONGEST_LINE:
            self.end()

    def end(self) -> None:
        """Passes on a last line without an end."""
        if self._begun:
            _write(self.stream, self._prefix + self._begun + b"\n")
            self._begun = b""


def _write(fd: int, data: bytes) -> None:
    with contextlib.suppress(OSError):  # closed, or nobody reads: the last lines are kept all the same
        while data:
            data = data[os.write(fd, data) :]


def _scribe_main(
    readers: Sequence[tuple[int, int, int]], lifeline: int, report: int, coordinator: int, *, prefix: bool
) -> NoReturn:
    """The scribe's life; in the child right after the fork."""
    try:
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        ctypes.CDLL(None).prctl(_PR_SET_NAME, b"synk-scribe", 0, 0, 0)
        gc.disable()
        release_inherited()
        close_inherited({lifeline, report, *(fd for _, _, fd in readers)})
        carried = {fd: _Carried(rank, stream, prefix=prefix) for rank, stream, fd in readers}
        _carry(dict(carried), lifeline, coordinator)
        for one in carried.values():
            one.end()
        told = {one.rank: one.last.decode(errors="backslashreplace") for one in carried.values() if one.stream == STDERR}
        _write(report, json.dumps(told).encode())
    finally:
        os._exit(0)


def _carry(streams: dict[int, _Carried], lifeline: int, coordinator: int) -> None:
    """Until every pipe is closed; once the coordinator has let go, for FINISH_SECONDS at most."""
    poll = select.poll()
    for fd in (lifeline, *streams):
        poll.register(fd, select.POLLIN)
    deadline: float | None = None
    while streams:
        left = 1.0 if deadline is None else deadline - time.monotonic()
        if left <= 0:
            return
        for fd, _ in poll.poll(left * 1000):
            if fd == lifeline:
                poll.unregister(fd)
                deadline = time.monotonic() + FINISH_SECONDS
            elif data := os.read(fd, 65536):
                streams[fd].take(data)
            else:
                poll.unregister(fd)
                del streams[fd]
        if deadline is None and os.getppid() != coordinator:  # a child of the script may hold the other end
            deadline = time.monotonic() + FINISH_SECONDS
