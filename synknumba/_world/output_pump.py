"""Main loop of the output process: reads the ranks' pipes, forwards the bytes, and keeps the last of them for the coordinator.

    a rank's pipe ── while the reader accepts bytes ──> waiting ── whole lines if prefixed ──> stdout or stderr
                                                  └──> last bytes

Bytes are read from a pipe only while the target accepts bytes. So a slow reader, such as a pager, lets the pipe fill, and the
ranks block in their writes as with any pipe. Bytes read but not yet written are in memory shared with the coordinator, together
with the number already written. So nothing is lost if the output process is killed: the next one continues at the same byte.
"""

import ctypes
import fcntl
import gc
import mmap
import os
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn, final

from synknumba._host.inherited import close_inherited
from synknumba._host.segment import release_inherited

KEPT_BYTES = 8192  # last bytes kept of each stream of a rank
LONGEST_LINE = 1 << 20  # bytes, with prefixes; longer lines are forwarded in parts
# At the end of a world: the wait for other writers, such as a process that a rank started and that outlives it; the limits of
# forwarding if the reader makes no progress, and if it makes some.
FINISH_SECONDS = 0.2
GIVE_UP_SECONDS = 1.0
LONGEST_SECONDS = 5.0
_IDLE_SECONDS = 1.0  # how often to check that the coordinator lives, should the lifeline not close
_LOOK_SECONDS = 0.1  # the same during a write, or while ending
_PART_BYTES = select.PIPE_BUF  # a pipe that polls as writable accepts this many bytes at once, atomically
_TAKEN_BYTES = 65536  # capacity of a pipe; smaller reads would split lines, and lines of other ranks would come between
_HEAD_BYTES = 40
_WAITING = _HEAD_BYTES + KEPT_BYTES  # offset of the waiting bytes
_UNTOUCHED = 0xFF  # not a byte of UTF-8
_PR_SET_NAME = 15  # prctl.h

# Signals that may be sent to the whole process group. The output process ignores them: it ends after the ranks.
_IGNORED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGPIPE,
)

STDOUT, STDERR = 1, 2


class _GiveUpError(Exception):
    """The world has ended, and the reader does not accept the rest."""


@final
class Carried:
    """One stream of one rank. Created by the coordinator; used by the output process and, after its end, by the coordinator.

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
        self._prefix = f"[rank {rank}] ".encode() if prefix else b""
        self._memory = mmap.mmap(-1, _WAITING + LONGEST_LINE + _TAKEN_BYTES)
        # Numbers of bytes: 0 kept in `last`; 1 waiting; 2 written of those waiting, including prefixes; 3 dropped; 4 waiting
        # once the read in progress is complete, 0 if there is none.
        self._head = memoryview(self._memory)[:_HEAD_BYTES].cast("Q")

    @property
    def last(self) -> bytes:
        """The last bytes that the rank wrote."""
        return self._memory[_HEAD_BYTES : _HEAD_BYTES + self._head[0]]

    @property
    def waiting(self) -> bytes:
        """Bytes read from the pipe and not yet forwarded."""
        start = _WAITING
        return self._memory[start : start + self._head[1]]

    @property
    def dropped(self) -> int:
        """Number of bytes that could not be forwarded."""
        return self._head[3]

    @property
    def unread(self) -> int:
        """Number of bytes in the pipe."""
        return int(struct.unpack("i", fcntl.ioctl(self.reader, termios.FIONREAD, bytes(4)))[0])

    def take(self) -> int:
        """Reads the bytes in the pipe; returns their number, 0 at the end of file.

        The bytes are read directly into the waiting area, and the read is announced before: as soon as the pipe has room, its
        writer continues, and this process may be killed before the read is recorded.
        """
        count = min(self.unread, _TAKEN_BYTES)
        if not count:
            return 0
        start = _WAITING + self._head[1]
        self._memory[start] = _UNTOUCHED
        self._head[4] = self._head[1] + count
        with memoryview(self._memory)[start : start + count] as place:
            os.readv(self.reader, [place])
            self._head[1] = self._head[4]
            self._head[4] = 0
            self._remember(bytes(place))
        return count

    def recover(self) -> None:
        """After an output process was killed: completes its announced read, if that had taken place."""
        start = _WAITING + self._head[1]
        if self._head[4] and self._memory[start] != _UNTOUCHED:
            taken = self._memory[start : _WAITING + self._head[4]]
            self._head[1] = max(self._head[1], self._head[4])
            self._remember(taken)
        self._head[4] = 0

    def keep(self, data: bytes) -> None:
        """Appends `data` to the waiting bytes."""
        start = _WAITING + self._head[1]
        self._memory[start : start + len(data)] = data
        self._head[1] += len(data)
        self._remember(data)

    def pass_on(self, *, all_of_it: bool = False) -> None:
        """Writes the waiting bytes; with prefixes only whole lines, unless `all_of_it`."""
        waiting = self.waiting
        if self._prefix and not all_of_it and len(waiting) < LONGEST_LINE:
            waiting = waiting[: waiting.rfind(b"\n") + 1]
        if waiting:
            self._write(self._marked(waiting))
            self._drop_waiting(len(waiting))

    def _marked(self, text: bytes) -> bytes:
        if not self._prefix:
            return text
        return b"".join(self._prefix + line + b"\n" for line in text.removesuffix(b"\n").split(b"\n"))

    def _write(self, text: bytes) -> None:
        """Writes the part of `text` not yet written."""
        while left := text[self._head[2] :]:
            has_room(self.stream, None)
            try:
                self._head[2] += os.write(self.stream, _part(left))  # all or nothing, so the count is exact
            except BlockingIOError:  # non-blocking stream, and another process has taken the room
                continue
            except OSError:  # the reader has closed, the disk is full
                self._head[3] += len(left)
                return

    def _drop_waiting(self, count: int) -> None:
        start = _WAITING
        rest = self.waiting[count:]
        self._memory[start : start + len(rest)] = rest
        self._head[1] = len(rest)
        self._head[2] = 0

    def _remember(self, data: bytes) -> None:
        last = (self.last + data)[-KEPT_BYTES:]
        self._memory[_HEAD_BYTES : _HEAD_BYTES + len(last)] = last
        self._head[0] = len(last)

    def give_up(self) -> None:
        """In the coordinator, after the output process has ended: drops what is left, but keeps the last bytes."""
        self.recover()
        self._head[3] += len(self._marked(self.waiting)) - self._head[2] if self._head[1] else 0
        self._drop_waiting(self._head[1])
        left = self.unread
        while left > 0:
            data = os.read(self.reader, left)
            self._remember(data)
            self._head[3] += len(data)
            left -= len(data)

    def close(self) -> None:
        """Closes the pipe and frees the memory."""
        os.close(self.reader)
        self._head.release()
        self._memory.close()


def _part(text: bytes) -> bytes:
    """Returns the part of `text` to write at once: whole lines if possible, since another process may write next."""
    return text[: text.rfind(b"\n", 0, _PART_BYTES) + 1] or text[:_PART_BYTES]


def has_room(fd: int, seconds: float | None = 0.0) -> bool:
    """Returns whether a write to a descriptor would not block (it may fail), waiting at most `seconds`."""
    return bool(_ready([(fd, select.POLLOUT)], seconds))


def _ready(descriptors: Collection[tuple[int, int]], seconds: float | None) -> set[int]:
    poll = select.poll()
    for fd, events in descriptors:
        poll.register(fd, events)
    return {fd for fd, _ in poll.poll(None if seconds is None else seconds * 1000)}


@final
class _Watch:
    """Watches for the end of the world, and enforces the time limits after it.

    Args:
        carried: the streams to forward.
        lifeline: read end of a pipe whose other end the coordinator closes at the end of the world.
        coordinator: process id of the coordinator.
    """

    def __init__(self, carried: Sequence[Carried], lifeline: int, coordinator: int) -> None:
        self._carried = carried
        self._lifeline = lifeline
        self._coordinator = coordinator
        self._let_go = 0.0
        self._passed_on = 0.0
        self._left: dict[int, int] = {}  # of the bytes in each pipe at the world's end, those not yet read

    def look(self) -> None:
        """Raises `_GiveUpError` when a time limit has passed."""
        now = time.monotonic()
        if not self._let_go and (_ready([(self._lifeline, 0)], 0.0) or os.getppid() != self._coordinator):
            self._left = {one.reader: one.unread for one in self._carried}
            self._let_go = now
        if self._let_go and now > min(max(self._let_go, self._passed_on) + GIVE_UP_SECONDS, self._let_go + LONGEST_SECONDS):
            raise _GiveUpError

    def pass_on(self, write: Callable[[], None]) -> None:
        """Calls `write`, and `look` every _LOOK_SECONDS meanwhile, since a write may block for as long as the reader does."""
        signal.setitimer(signal.ITIMER_REAL, _LOOK_SECONDS, _LOOK_SECONDS)
        try:
            write()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        self._passed_on = time.monotonic()

    def note(self, reader: int, count: int) -> None:
        """Records that `count` bytes were read from a pipe."""
        if reader in self._left:
            self._left[reader] -= count

    def is_over(self, reader: int) -> bool:
        """Returns whether the world ended FINISH_SECONDS ago, and the bytes then in this pipe have been read."""
        return bool(self._let_go) and self._left[reader] <= 0 and time.monotonic() > self._let_go + FINISH_SECONDS

    def waits_for(self) -> tuple[list[tuple[int, int]], float]:
        """Returns (descriptor, events) to poll besides the pipes, and the timeout in seconds."""
        if self._let_go:
            return [], _LOOK_SECONDS
        return [(self._lifeline, select.POLLIN)], _IDLE_SECONDS


def scribe_main(carried: Sequence[Carried], lifeline: int, alive: int, coordinator: int) -> NoReturn:
    """Runs the output process; called in the child right after the fork.

    Args:
        carried: the streams to forward.
        lifeline: see `_Watch`.
        alive: write end of a pipe that stays open while the process lives.
        coordinator: process id of the coordinator.
    """
    try:
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        watch = _Watch(carried, lifeline, coordinator)
        signal.signal(signal.SIGALRM, lambda *_: watch.look())
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        ctypes.CDLL(None).prctl(_PR_SET_NAME, b"synk-scribe", 0, 0, 0)
        gc.disable()
        release_inherited()
        close_inherited({lifeline, alive, *(one.reader for one in carried)})
        try:
            _carry(carried, watch)
        except _GiveUpError:
            _say_given_up(carried)
    finally:
        os._exit(0)


def _carry(carried: Sequence[Carried], watch: _Watch) -> None:
    """Forwards until every pipe is closed, or the world has ended and nothing is left."""
    for one in carried:  # left by an output process that was killed
        one.recover()
        watch.pass_on(one.pass_on)
    streams = {one.reader: one for one in carried}
    while streams:
        for reader in _await(streams, watch):
            if not has_room(streams[reader].stream):
                continue
            count = streams[reader].take()
            if count:
                watch.note(reader, count)
                watch.pass_on(streams[reader].pass_on)
            else:
                del streams[reader]
        streams = {reader: one for reader, one in streams.items() if not watch.is_over(reader)}
        watch.look()
    for one in carried:
        watch.pass_on(lambda one=one: one.pass_on(all_of_it=True))  # type: ignore[misc]


def _await(streams: dict[int, Carried], watch: _Watch) -> set[int]:
    """Waits for bytes whose target accepts them, for room in a target, or for the timeout; returns the readable pipes."""
    room = {stream: has_room(stream) for stream in {one.stream for one in streams.values()}}
    wanted = [(reader, select.POLLIN) for reader, one in streams.items() if room[one.stream]]
    wanted += [(stream, select.POLLOUT) for stream, has in room.items() if not has]
    others, seconds = watch.waits_for()
    return _ready([*wanted, *others], seconds) & streams.keys()


def _say_given_up(carried: Sequence[Carried]) -> None:
    """Writes a last line with the number of bytes dropped, if stderr accepts it."""
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    count = sum(len(one.waiting) + one.unread for one in carried)
    if has_room(STDERR):
        told = f"synknumba: dropped {count} more bytes of rank output, as the reader is too slow"
        os.write(STDERR, f"\n{told}\n".encode())
