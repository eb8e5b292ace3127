"""The output process: forwards the ranks' output, and keeps the last lines of each rank.

    rank r ── fd 2, a pipe ──> output process ── unchanged or prefixed ──> the script's stderr
           ── fd 1, a pipe, only with prefixes ──> output process ──> the script's stdout
    coordinator ── lifeline (closed: finish) ──> output process ── shared memory ──> coordinator: last lines of each rank

Messages of C libraries and of the dying interpreter ("free(): invalid pointer") are written to the
descriptor directly, so only a reader of a pipe in its place can keep them. The output process is
not a rank, so it outlives a rank that crashes, and still reads every byte left in the pipe. It is
not a thread of the coordinator, so it works while the script computes, and a fork finds no thread.
It ends when all writers have ended, when the coordinator closes the lifeline, or when the
coordinator dies.

Bytes are read from a pipe only while the target accepts bytes. So a slow reader, such as a pager,
lets the pipe fill, and the ranks block in their writes as with any pipe. If the process is killed,
the coordinator starts another one, which continues with the bytes in the pipes; those that were
read and not yet written are lost, and counted as dropped. The coordinator keeps the pipes open, so
a rank's writes do not fail meanwhile.

Without prefixes, stdout of a rank is the script's own descriptor: nothing is between a `print` on a
rank and the terminal.
"""  # noqa: E501

import contextlib
import gc
import mmap
import os
import select
import signal
import struct
import termios
import threading
import time
from collections.abc import Collection, Sequence
from fcntl import ioctl
from functools import partial
from typing import NoReturn, final

from synknumba._host import this_process
from synknumba._host.children import end_child, has_ended, reap
from synknumba._host.inherited import close_inherited, fork
from synknumba._host.segment import release_inherited
from synknumba._host.signals import held_signals, leave_to_script

KEPT_BYTES = 8192  # last bytes kept of each stream of a rank
LONGEST_LINE = 1 << 20  # bytes, with prefixes; longer lines are forwarded in parts
# At the end of a world: the wait for other writers, such as a process that a rank started and that
# outlives it; the limits of forwarding if the reader makes no progress, and if it makes some.
FINISH_SECONDS = 0.2
GIVE_UP_SECONDS = 1.0
LONGEST_SECONDS = 5.0
# the output process gives up before that, unless it is stopped
_END_SECONDS = LONGEST_SECONDS + 0.5
_IDLE_SECONDS = 1.0  # how often to check that the coordinator lives, should the lifeline not close
_LOOK_SECONDS = 0.1  # the same during a write, or while ending
# a pipe that polls as writable accepts this many bytes at once, atomically
_PART_BYTES = select.PIPE_BUF
# capacity of a pipe; smaller reads would split lines, and lines of other ranks would come between
_TAKEN_BYTES = 65536

STDOUT, STDERR = 1, 2
_KEPT, _HELD, _DROPPED = range(3)  # words of a stream's shared memory: numbers of bytes
_HEAD_BYTES = 24


@final
class OutputForwarder:
    """The coordinator's handle of the output process, which starts after all ranks were forked.

    Args:
        prefix: whether to forward both streams with the rank's number before each line; otherwise
            only stderr is forwarded.
    """

    def __init__(self, *, prefix: bool) -> None:
        self._prefix = prefix
        self.streams = (STDOUT, STDERR) if prefix else (STDERR,)  # of a rank, to forward
        self._carried: list[Carried] = []
        self._owner = os.getpid()
        self._pid = 0
        self._lifeline = -1
        # another thread or a signal handler may end the world during `look_after`
        self._lock = threading.RLock()
        self._told: dict[int, str] = {}
        self._dropped = 0

    @property
    def dropped(self) -> int:
        """Number of bytes that could not be forwarded."""
        with self._lock:
            return self._dropped + sum(pipe.dropped for pipe in self._carried)

    @property
    def readers(self) -> list[int]:
        """The read ends of the ranks' pipes."""
        return [pipe.reader for pipe in self._carried]

    def pipe(self, rank: int, stream: int) -> int:
        """Creates the pipe of one stream of a rank, before its fork; returns the end that
        replaces the stream.
        """
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
            self._let_go()
            for pipe in self._carried:
                pipe.lose()  # what an output process that was killed had read
            end, self._lifeline = os.pipe()
            try:
                self._pid = fork(partial(_scribe_main, self._carried, end, self._owner))
            finally:
                os.close(end)

    def look_after(self) -> None:
        """Restarts the output process if it was killed; does nothing in a child of the script."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            if self._pid and self._carried and has_ended(self._pid):
                with contextlib.suppress(OSError):  # the fork failed; the next call tries again
                    self.start()

    def finish(self) -> dict[int, str]:
        """Waits until all output is forwarded, and ends the process. Returns the last lines on
        stderr by rank; idempotent.

        Does nothing in a child forked by the script, which does not own the process.
        """
        if os.getpid() != self._owner:
            return {}
        with self._lock:
            if any(pipe.unread for pipe in self._carried):
                self.look_after()
            self._let_go()
            if self._pid:
                reap([self._pid], _END_SECONDS)
                end_child(self._pid)
                self._pid = 0
            while self._carried:
                pipe = self._carried.pop()
                pipe.give_up()
                self._dropped += pipe.dropped
                if pipe.stream == STDERR:
                    self._told[pipe.rank] = pipe.last.decode(errors="backslashreplace")
                pipe.close()
            return self._told

    def _let_go(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


@final
class Carried:
    """One stream of one rank. Created by the coordinator; used by the output process and, after its
    end, by the coordinator.

    Args:
        rank: rank that writes the stream.
        stream: descriptor to which the bytes are forwarded.
        reader: read end of the rank's pipe.
        prefix: whether lines are prefixed with the rank's number.
    """

    def __init__(self, rank: int, stream: int, reader: int, *, prefix: bool) -> None:
        self.rank = rank
        self.stream = stream
        self.reader = reader
        self.waiting = b""  # in the output process: bytes of the pipe, not yet forwarded
        self._prefix = f"[rank {rank}] ".encode() if prefix else b""
        # shared: the words, and the last bytes
        self._memory = mmap.mmap(-1, _HEAD_BYTES + KEPT_BYTES)
        self._head = memoryview(self._memory)[:_HEAD_BYTES].cast("Q")

    @property
    def last(self) -> bytes:
        """The last bytes that the rank wrote."""
        return self._memory[_HEAD_BYTES : _HEAD_BYTES + self._head[_KEPT]]

    @property
    def held(self) -> int:
        """Number of bytes that the output process has read or prefixed, and not yet written."""
        return self._head[_HELD]

    @property
    def dropped(self) -> int:
        """Number of bytes that could not be forwarded."""
        return self._head[_DROPPED]

    @property
    def unread(self) -> int:
        """Number of bytes in the pipe."""
        return int(struct.unpack("i", ioctl(self.reader, termios.FIONREAD, bytes(4)))[0])

    def keep(self, data: bytes) -> None:
        """Appends `data` to the waiting bytes and to the last bytes."""
        self._head[_HELD] += len(data)
        self.waiting += data
        last = (self.last + data)[-KEPT_BYTES:]
        self._memory[_HEAD_BYTES : _HEAD_BYTES + len(last)] = last
        self._head[_KEPT] = len(last)

    def pass_on(self, *, all_of_it: bool = False) -> None:
        """Writes the waiting bytes; with prefixes only whole lines, unless `all_of_it`."""
        text, self.waiting = self.waiting, b""
        if self._prefix:
            text = self._prefixed(text, all_of_it=all_of_it)
        self._head[_HELD] = len(text) + len(self.waiting)
        while text:
            has_room(self.stream, None)
            try:
                count = os.write(self.stream, _part(text))
            except BlockingIOError:  # non-blocking stream, and another process has taken the room
                continue
            except OSError:  # the reader has closed, the disk is full
                count = len(text)
                self._head[_DROPPED] += count
            text = text[count:]
            self._head[_HELD] -= count

    def _prefixed(self, text: bytes, *, all_of_it: bool) -> bytes:
        """Returns the lines of a text with the prefix; an unfinished line goes on waiting."""
        *lines, unfinished = text.split(b"\n")
        if unfinished and (all_of_it or len(text) >= LONGEST_LINE):
            lines.append(unfinished)
            unfinished = b""
        self.waiting = unfinished
        return b"".join(self._prefix + line + b"\n" for line in lines)

    def lose(self) -> None:
        """In the coordinator, after the output process: counts the bytes it held as dropped."""
        self._head[_DROPPED] += self.held
        self._head[_HELD] = 0

    def give_up(self) -> None:
        """In the coordinator, after the output process has ended: drops what is left, but keeps
        the last bytes.
        """
        remaining = self.unread
        while remaining > 0:
            data = os.read(self.reader, remaining)
            self.keep(data)
            remaining -= len(data)
        self.lose()

    def close(self) -> None:
        """Closes the pipe and frees the memory."""
        os.close(self.reader)
        self._head.release()
        self._memory.close()


def _part(text: bytes) -> bytes:
    """Returns the part of `text` to write at once: whole lines if possible, since another
    process may write next.
    """
    return text[: text.rfind(b"\n", 0, _PART_BYTES) + 1] or text[:_PART_BYTES]


def has_room(fd: int, seconds: float | None = 0.0) -> bool:
    """Returns whether a write would not block (it may fail), after at most `seconds`."""
    return bool(_ready([(fd, select.POLLOUT)], seconds))


def _ready(descriptors: Collection[tuple[int, int]], seconds: float | None) -> set[int]:
    poll = select.poll()
    for fd, events in descriptors:
        poll.register(fd, events)
    milliseconds = None if seconds is None else seconds * 1000
    return {fd for fd, _ in poll.poll(milliseconds)}


class _GiveUpError(Exception):
    """The world has ended, and the reader does not accept the rest."""


@final
class _Pump:
    """The loop of the output process.

    Args:
        carried: the streams to forward.
        lifeline: read end of a pipe whose other end the coordinator closes at the end of the world.
        coordinator: process id of the coordinator.
    """

    def __init__(self, carried: Sequence[Carried], lifeline: int, coordinator: int) -> None:
        self._open = {pipe.reader: pipe for pipe in carried}
        # of the bytes in each pipe at the world's end, those not yet read
        self._left = dict.fromkeys(self._open, 0)
        self._lifeline = lifeline
        self._coordinator = coordinator
        self._ended = 0.0  # when the world ended; 0 before
        self._passed_on = 0.0  # when bytes were last written

    def look(self, *_: object) -> None:
        """Looks for the end of the world; raises `_GiveUpError` past a time limit after it."""
        now = time.monotonic()
        if self._ended:
            patience = max(self._ended, self._passed_on) + GIVE_UP_SECONDS
            if now > min(patience, self._ended + LONGEST_SECONDS):
                raise _GiveUpError
        elif self._world_has_ended():
            self._left = {reader: pipe.unread for reader, pipe in self._open.items()}
            self._ended = now

    def _world_has_ended(self) -> bool:
        closed = _ready([(self._lifeline, 0)], 0.0)
        return bool(closed) or os.getppid() != self._coordinator

    def run(self) -> None:
        """Forwards until every pipe is closed, or the world has ended and nothing is left."""
        carried = list(self._open.values())
        while self._open:
            for reader in self._await():
                pipe = self._open[reader]
                if not has_room(pipe.stream):
                    continue
                data = os.read(reader, _TAKEN_BYTES)
                if data:
                    self._left[reader] -= len(data)
                    pipe.keep(data)
                    self._pass_on(pipe)
                else:
                    del self._open[reader]
            if self._ended and time.monotonic() > self._ended + FINISH_SECONDS:
                for reader in list(self._open):
                    if self._left[reader] <= 0:
                        del self._open[reader]
            self.look()
        for pipe in carried:
            self._pass_on(pipe, all_of_it=True)

    def _await(self) -> set[int]:
        """Waits for bytes whose target accepts them, for room in a target, or for the timeout;
        returns the readable pipes.
        """
        streams = {pipe.stream for pipe in self._open.values()}
        accepting = set(filter(has_room, streams))
        polled = [(stream, select.POLLOUT) for stream in streams - accepting]
        for reader, pipe in self._open.items():
            if pipe.stream in accepting:
                polled.append((reader, select.POLLIN))
        if not self._ended:
            polled.append((self._lifeline, select.POLLIN))
        return _ready(polled, _LOOK_SECONDS if self._ended else _IDLE_SECONDS) & self._open.keys()

    def _pass_on(self, pipe: Carried, *, all_of_it: bool = False) -> None:
        """Writes; calls `look` every _LOOK_SECONDS meanwhile, since a write may block for as
        long as the reader does.
        """
        signal.setitimer(signal.ITIMER_REAL, _LOOK_SECONDS, _LOOK_SECONDS)
        try:
            pipe.pass_on(all_of_it=all_of_it)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        self._passed_on = time.monotonic()


def _scribe_main(carried: Sequence[Carried], lifeline: int, coordinator: int) -> NoReturn:
    """Runs the output process, in the child right after the fork; arguments as for `_Pump`."""
    try:
        leave_to_script()  # this process ends after the ranks
        signal.signal(signal.SIGQUIT, signal.SIG_IGN)  # of a terminal, for the whole process group
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        pump = _Pump(carried, lifeline, coordinator)
        signal.signal(signal.SIGALRM, pump.look)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        this_process.set_name(b"synk-scribe")
        gc.disable()
        release_inherited()
        close_inherited({lifeline, *(pipe.reader for pipe in carried)})
        try:
            pump.run()
        except _GiveUpError:  # the last line says how many bytes were dropped, if stderr accepts it
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            count = sum(pipe.held + pipe.unread for pipe in carried)
            if count and has_room(STDERR):
                message = (
                    f"synknumba: dropped {count} more bytes of rank output, "
                    f"as the reader is too slow"
                )
                os.write(STDERR, f"\n{message}\n".encode())
    finally:
        os._exit(0)
