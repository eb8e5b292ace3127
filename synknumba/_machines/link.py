"""The script's end of the socket of its relay: messages stay whole, whatever the script's handlers
of signals raise.

Ctrl-C may raise between any two instructions of the main thread. What has been sent of a message,
and what has been received of one, is noted in the same critical section as the system call, and the
next transfer goes on from there.
"""

import pickle
import select
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, final

from synknumba._host.signals import held_signals
from synknumba._wire import channel

Message = tuple[Any, list[int] | None]  # with descriptors; None if the process had no room for them


@final
class Link:
    """Sends messages to the relay, and receives its messages, each with descriptors.

    Args:
        sock: socket of the relay.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._sending, self._receiving = threading.RLock(), threading.RLock()
        self._unsent = memoryview(b"")  # of a message that has begun
        self._coming: tuple[bytearray, int, list[int], bool] | None = (
            None  # payload, bytes that came, descriptors, all of them
        )
        self._inbox: list[Message] = []  # messages that came before the one waited for

    def send(self, message: object, descriptors: Sequence[int], watch: Callable[[], None]) -> None:
        """Sends a message, after the rest of one whose sending was interrupted; calls `watch`
        meanwhile, which may raise.
        """
        payload = channel.pack(message)
        with self._sending:
            self._send_rest(watch)
            self._await(select.POLLOUT, watch)
            with held_signals():
                channel.begin(self._socket, len(payload), descriptors)
                self._unsent = memoryview(payload)
                # all of a short message: nothing may follow that would send the rest
                self._send_part()
            self._send_rest(watch)

    def _send_rest(self, watch: Callable[[], None]) -> None:
        while self._unsent:
            self._await(select.POLLOUT, watch)
            with held_signals():
                self._send_part()

    def _send_part(self) -> None:
        with suppress(BlockingIOError):
            sent = self._socket.send(self._unsent, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            self._unsent = self._unsent[sent:]

    def _await(self, event: int, watch: Callable[[], None]) -> None:
        def look() -> None:
            self.read_some()  # the relay may itself wait to send
            watch()

        channel.wait(self._socket, event, look)

    def receive(
        self, is_wanted: Callable[[Any], bool], watch: Callable[[], None]
    ) -> tuple[Any, list[int]]:
        """Receives the next message that is wanted; others that come before are kept for those who
        wait for them.

        Raises:
            EOFError: the relay has ended.
            OSError: the process had no room for the descriptors of the message, which is dropped.
        """
        while True:
            with self._receiving:
                for place, (message, descriptors) in enumerate(self._inbox):
                    if is_wanted(message):
                        del self._inbox[place]
                        if descriptors is None:
                            raise channel.no_descriptor()
                        return message, descriptors
                if self.read_some(channel.LOOK_SECONDS):
                    continue
            watch()

    def read_some(self, seconds: float = 0.0) -> bool:
        """Reads a part of a message if one comes within a time; returns whether one has come."""
        with self._receiving:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            if not poll.poll(seconds * 1000):
                return False
            with held_signals():
                self._read_part()
            return True

    def _read_part(self) -> None:
        if self._coming is None:
            length, descriptors, complete = channel.begun(self._socket, socket.MSG_DONTWAIT)
            self._coming = bytearray(length), 0, descriptors, complete
            return
        payload, came, descriptors, complete = self._coming
        received = self._socket.recv_into(memoryview(payload)[came:], 0, socket.MSG_DONTWAIT)
        if received == 0:
            raise EOFError
        came += received
        if came < len(payload):
            self._coming = payload, came, descriptors, complete
            return
        self._coming = None
        if not complete:
            channel.close_all(descriptors)
        self._inbox.append((pickle.loads(payload), descriptors if complete else None))  # noqa: S301  # of the relay

    def drop_messages(self) -> None:
        """Drops messages that nobody has waited for."""
        with self._receiving:
            while self._inbox:
                channel.close_all(self._inbox.pop()[1] or ())

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()
