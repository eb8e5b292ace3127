"""Messages between the coordinator and one rank: pickles and descriptors over a private socketpair.

A message is a length (8 bytes) followed by a pickle; descriptors are attached to the length. A repeated call sends no messages,
so nothing here is on the hot path.
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

from synknumba.simt.internals import dumps

_LENGTH = struct.Struct("<Q")
MAX_DESCRIPTORS = 128  # Linux passes at most 253 in one message (SCM_MAX_FD)
_POLL_SECONDS = 0.05  # how often a blocked transfer checks that the peer is alive


def _wait(sock: socket.socket, event: int, watch: Callable[[], None]) -> None:
    poll = select.poll()
    poll.register(sock, event)
    while not poll.poll(_POLL_SECONDS * 1000):
        watch()


def wait_for(sock: socket.socket, watch: Callable[[], None]) -> None:
    """Waits until a message has come, or the peer has closed its end; calls `watch` meanwhile, which raises to abort."""
    _wait(sock, select.POLLIN, watch)


def pack(message: object) -> bytes:
    """Pickles a message. Classes of the script are pickled by value, and map back to the same class in their own process."""
    return dumps(message)


# Creating one of their exceptions queries the driver for a text; with CUDA initialised, the coordinator could not fork again.
_GPU_LIBRARIES = {"cupy", "cupy_backends", "cuda"}


class _KnownReader(pickle.Unpickler):
    """Finds classes of imported modules only; the script cannot name a class of a module it has not imported."""

    def find_class(self, module: str, name: str) -> Any:
        if module not in sys.modules or module.partition(".")[0] in _GPU_LIBRARIES:
            raise pickle.UnpicklingError(f"{module}.{name} is not loaded outside the rank")
        return super().find_class(module, name)


def unpack_known(packed: bytes) -> Any:
    """Unpickles a value packed inside a message; refuses classes of GPU libraries and of modules not imported here."""
    return _KnownReader(io.BytesIO(packed)).load()


def send(sock: socket.socket, payload: bytes, descriptors: Sequence[int], watch: Callable[[], None]) -> None:
    """Sends a packed message. While the peer does not read, calls `watch`, which raises to abort."""
    _wait(sock, select.POLLOUT, watch)
    passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))] if descriptors else []
    sock.sendmsg([_LENGTH.pack(len(payload))], passed, socket.MSG_NOSIGNAL)  # socket.send_fds takes no flags
    view = memoryview(payload)
    while view:
        _wait(sock, select.POLLOUT, watch)
        view = view[sock.send(view, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]


def receive(sock: socket.socket, watch: Callable[[], None]) -> tuple[Any, list[int]]:
    """Receives the next message and its descriptors; raises EOFError if the peer has closed its end."""
    _wait(sock, select.POLLIN, watch)
    header, descriptors, _, _ = socket.recv_fds(sock, _LENGTH.size, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    if len(header) < _LENGTH.size:
        raise EOFError
    try:
        payload = _receive_payload(sock, _LENGTH.unpack(header)[0], watch)
        return pickle.loads(payload), descriptors  # noqa: S301  # the peer is a fork of this process, or its parent
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
    """Closes descriptors that are not going to be used."""
    for descriptor in descriptors:
        os.close(descriptor)
