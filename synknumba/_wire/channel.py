"""Messages between the coordinator and one rank: pickles and descriptors over a private socketpair.

A message is a length (8 bytes), then a pickle; descriptors ride on the length. Only calls that are not a repeated call send
messages, so nothing here is on the hot path.
"""

import io
import os
import pickle
import select
import socket
import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

_LENGTH = struct.Struct("<Q")
MAX_DESCRIPTORS = 128  # Linux passes at most 253 in one message (SCM_MAX_FD)
_POLL_SECONDS = 0.05  # how often a blocked transfer looks whether the peer still lives


def _wait(sock: socket.socket, event: int, watch: Callable[[], None]) -> None:
    poll = select.poll()
    poll.register(sock, event)
    while not poll.poll(_POLL_SECONDS * 1000):
        watch()


def pack(message: object) -> bytes:
    """A message as bytes. Classes of the script travel whole, and are the same class again where they came from."""
    packed: bytes = cloudpickle.dumps(message)
    return packed


# Their errors ask the driver for a text when they are made; with CUDA initialised the coordinator could not fork again.
_GPU_LIBRARIES = {"cupy", "cupy_backends", "cuda"}


class _KnownReader(pickle.Unpickler):
    """Knows the classes of what is imported already: a script that names another class has not imported it either."""

    def find_class(self, module: str, name: str) -> Any:
        if module not in sys.modules or module.partition(".")[0] in _GPU_LIBRARIES:
            raise pickle.UnpicklingError(f"{module}.{name} stays on the rank")
        return super().find_class(module, name)


def unpack_known(packed: bytes) -> Any:
    """What was packed inside a message, if its classes are those of modules that this process has, and not of a GPU's."""
    return _KnownReader(io.BytesIO(packed)).load()


def send(sock: socket.socket, payload: bytes, descriptors: Sequence[int], watch: Callable[[], None]) -> None:
    """Sends a packed message, calling `watch` while the peer does not read; `watch` raises to give up."""
    _wait(sock, select.POLLOUT, watch)
    passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))] if descriptors else []
    sock.sendmsg([_LENGTH.pack(len(payload))], passed, socket.MSG_NOSIGNAL)  # socket.send_fds takes no flags
    view = memoryview(payload)
    while view:
        _wait(sock, select.POLLOUT, watch)
        view = view[sock.send(view, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]


def receive(sock: socket.socket, watch: Callable[[], None]) -> tuple[Any, list[int]]:
    """The next message and its descriptors; EOFError when the peer is gone."""
    _wait(sock, select.POLLIN, watch)
    header, descriptors, _, _ = socket.recv_fds(sock, _LENGTH.size, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    if len(header) < _LENGTH.size:
        raise EOFError
    try:
        payload = _receive_payload(sock, _LENGTH.unpack(header)[0], watch)
        return pickle.loads(payload), descriptors  # noqa: S301  # the peer is this process's own fork
    except BaseException:
        close_all(descriptors)
        raise


def _receive_payload(sock: socket.socket, length: int, watch: Callable[[], None]) -> bytearray:
    payload = bytearray(length)
    view = memoryview(payload)
    while view:
        _wait(sock, select.POLLIN, watch)
        received = sock.recv_into(view)
        if received == 0:
            raise EOFError
        view = view[received:]
    return payload


def close_all(descriptors: Sequence[int]) -> None:
    """Closes descriptors that nobody will use."""
    for descriptor in descriptors:
        os.close(descriptor)
