"""What the scribe does: takes what the ranks write, passes it on, and keeps the end of it where the coordinator can see it.

    a rank's pipe ── while the reader takes something ──> waiting ── whole lines, where they get a prefix ──> stdout or stderr
                                                    └──> the last of it

Nothing is taken from a pipe for which there is no room. So a reader that takes nothing, such as a pager, fills the pipe, and
then ranks wait in their writes as they would with any pipe. What has been taken is kept in memory that the coordinator has as
well, with how much of it is written. So a scribe that is killed loses nothing either: the next goes on at the same byte.
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

KEPT_BYTES = 8192  # of each stream of a rank
LONGEST_LINE = 1 << 20  # with a prefix; a longer one comes in parts
FINISH_SECONDS = 0.2  # for what somebody else may still write: a process that a rank started, and that outlives it
GIVE_UP_SECONDS = 1.0  # at the end of a world, where the reader takes nothing
LONGEST_SECONDS = 5.0  # at the end of a world, where it takes little
_IDLE_SECONDS = 1.0  # how often it is looked whether the coordinator lives, where its end is not seen to close
_LOOK_SECONDS = 0.1  # how often during a write, or while ending
_PART_BYTES = select.PIPE_BUF  # a pipe that is ready takes as much at once, and whole
_TAKEN_BYTES = 65536  # all that a pipe holds: less would cut lines, with those of another rank between the parts
_HEAD_BYTES = 40
_WAITING = _HEAD_BYTES + KEPT_BYTES  # where what waits begins
_UNTOUCHED = 0xFF  # no byte of UTF-8
_PR_SET_NAME = 15  # prctl.h

# What may be sent to the whole process group: the scribe ends with those whose words it carries.
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
    """The world has ended, and the reader takes nothing."""


@final
class Carried:
    """One stream of one rank. Made by the coordinator; worked on by the scribe, and by the coordinator when that has ended.

    Args:
        rank: whose it is.
        stream: the descriptor that it is passed on to.
        reader: the end of the pipe that it comes from.
        prefix: whether lines get the rank's number.
    """

    def __init__(self, rank: int, stream: int, reader: int, *, prefix: bool) -> None:
        self.rank = rank
        self.stream = stream
        self.reader = reader
        self._prefix = f"[rank {rank}] ".encode() if prefix else b""
        self._memory = mmap.mmap(-1, _WAITING + LONGEST_LINE + _TAKEN_BYTES)
        # Bytes kept of the last; that wait; that are written of what waits, with prefixes; that were dropped; that will wait
        # when what is being taken has been.
        self._head = memoryview(self._memory)[:_HEAD_BYTES].cast("Q")

    @property
    def last(self) -> bytes:
        """The end of what the rank wrote."""
        return self._memory[_HEAD_BYTES : _HEAD_BYTES + self._head[0]]

    @property
    def waiting(self) -> bytes:
        """What has been taken and not passed on."""
        start = _WAITING
        return self._memory[start : start + self._head[1]]

    @property
    def dropped(self) -> int:
        """Bytes that could not be passed on."""
        return self._head[3]

    @property
    def unread(self) -> int:
        """Bytes that are in the pipe."""
        return int(struct.unpack("i", fcntl.ioctl(self.reader, termios.FIONREAD, bytes(4)))[0])

    def take(self) -> int:
        """Reads what has come; how much, 0 at the end.

        It goes where it is to wait, and is announced before: whoever waits for room in the pipe goes on at once, and so may
        whoever kills this process.
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
        """After a scribe that was killed: what it was taking waits, if it came to that."""
        start = _WAITING + self._head[1]
        if self._head[4] and self._memory[start] != _UNTOUCHED:
            taken = self._memory[start : _WAITING + self._head[4]]
            self._head[1] = max(self._head[1], self._head[4])
            self._remember(taken)
        self._head[4] = 0

    def keep(self, data: bytes) -> None:
        """Has this wait to be passed on."""
        start = _WAITING + self._head[1]
        self._memory[start : start + len(data)] = data
        self._head[1] += len(data)
        self._remember(data)

    def pass_on(self, *, all_of_it: bool = False) -> None:
        """Writes what waits; whole lines only where they get a prefix, unless it is to be all."""
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
        """Writes what is not yet written of this."""
        while left := text[self._head[2] :]:
            has_room(self.stream, None)
            try:
                self._head[2] += os.write(self.stream, _part(left))  # all or nothing, so that it is known how much
            except BlockingIOError:  # somebody else was faster, and the stream is one that does not wait
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
        """In the coordinator, when the scribe has ended: what is left is not passed on, but remembered."""
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
        """Lets go of the pipe and the memory."""
        os.close(self.reader)
        self._head.release()
        self._memory.close()


def _part(text: bytes) -> bytes:
    """What is written at once: whole lines if possible, as somebody else may write next."""
    return text[: text.rfind(b"\n", 0, _PART_BYTES) + 1] or text[:_PART_BYTES]


def has_room(fd: int, seconds: float | None = 0.0) -> bool:
    """Whether a descriptor takes something within so many seconds, or refuses it at once."""
    return bool(_ready([(fd, select.POLLOUT)], seconds))


def _ready(descriptors: Collection[tuple[int, int]], seconds: float | None) -> set[int]:
    poll = select.poll()
    for fd, events in descriptors:
        poll.register(fd, events)
    return {fd for fd, _ in poll.poll(None if seconds is None else seconds * 1000)}


@final
class _Watch:
    """Looks whether the coordinator has let go, or has gone, and gives up in time.

    Args:
        carried: what is to be passed on till then.
        lifeline: whose other end the coordinator has.
        coordinator: its process id.
    """

    def __init__(self, carried: Sequence[Carried], lifeline: int, coordinator: int) -> None:
        self._carried = carried
        self._lifeline = lifeline
        self._coordinator = coordinator
        self._let_go = 0.0
        self._passed_on = 0.0
        self._left: dict[int, int] = {}  # of what ranks have written, by the descriptor of the pipe

    def look(self) -> None:
        """Raises when what is left has to be given up."""
        now = time.monotonic()
        if not self._let_go and (_ready([(self._lifeline, 0)], 0.0) or os.getppid() != self._coordinator):
            self._left = {one.reader: one.unread for one in self._carried}
            self._let_go = now
        if self._let_go and now > min(max(self._let_go, self._passed_on) + GIVE_UP_SECONDS, self._let_go + LONGEST_SECONDS):
            raise _GiveUpError

    def pass_on(self, write: Callable[[], None]) -> None:
        """Looks now and then while something is written, which may take as long as the reader likes."""
        signal.setitimer(signal.ITIMER_REAL, _LOOK_SECONDS, _LOOK_SECONDS)
        try:
            write()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        self._passed_on = time.monotonic()

    def note(self, reader: int, count: int) -> None:
        """So much was taken from a pipe."""
        if reader in self._left:
            self._left[reader] -= count

    def is_over(self, reader: int) -> bool:
        """Whether all that a rank wrote was taken, and nobody else has to be waited for."""
        return bool(self._let_go) and self._left[reader] <= 0 and time.monotonic() > self._let_go + FINISH_SECONDS

    def waits_for(self) -> tuple[list[tuple[int, int]], float]:
        """What else than the pipes there is to wait for, and how long."""
        if self._let_go:
            return [], _LOOK_SECONDS
        return [(self._lifeline, select.POLLIN)], _IDLE_SECONDS


def scribe_main(carried: Sequence[Carried], lifeline: int, alive: int, coordinator: int) -> NoReturn:
    """The scribe's life; in the child right after the fork.

    Args:
        carried: by the coordinator's order.
        lifeline: see `_Watch`.
        alive: a descriptor that stays open as long as the process lives.
        coordinator: its process id.
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
    """Until every pipe is closed, or the coordinator has let go and nothing is left."""
    for one in carried:  # what a scribe that was killed has left
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
    """Waits until something has come for which there is room, or there is room, or it is time to look; what has come."""
    room = {stream: has_room(stream) for stream in {one.stream for one in streams.values()}}
    wanted = [(reader, select.POLLIN) for reader, one in streams.items() if room[one.stream]]
    wanted += [(stream, select.POLLOUT) for stream, has in room.items() if not has]
    others, seconds = watch.waits_for()
    return _ready([*wanted, *others], seconds) & streams.keys()


def _say_given_up(carried: Sequence[Carried]) -> None:
    """A last line, where there is room for it."""
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    count = sum(len(one.waiting) + one.unread for one in carried)
    if has_room(STDERR):
        told = f"synknumba: {count} bytes more that ranks wrote are dropped, as the reader takes too long"
        os.write(STDERR, f"\n{told}\n".encode())
