"""Messages between the coordinator and one rank: pickles and descriptors over a private socketpair.

A message is a length (8 bytes) followed by a pickle; descriptors are attached to the length. A
repeated call sends no messages, so nothing here is on the hot path.
"""

import errno
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
NO_DESCRIPTOR = (
    "the process has no file descriptor left. Every Data and every Variable uses one or two: free "
    "some, or raise the limit with ulimit -Hn"
)
LOOK_SECONDS = 0.05  # how often a blocked transfer checks that the peer is alive


def wait(sock: socket.socket, event: int, watch: Callable[[], None]) -> None:
    """Waits for POLLIN or POLLOUT; calls `watch` meanwhile, which raises to abort."""
    poll = select.poll()
    poll.register(sock, event)
    while not poll.poll(LOOK_SECONDS * 1000):
        watch()


def wait_for(sock: socket.socket, watch: Callable[[], None]) -> None:
    """Waits until a message has come, or the peer has closed its end; calls `watch` meanwhile,
    which raises to abort.
    """
    wait(sock, select.POLLIN, watch)


def pack(message: object) -> bytes:
    """Pickles a message. Classes of the script are pickled by value, and map back to the same
    class in their own process.
    """
    return dumps(message)


# Creating one of their exceptions queries the driver for a text; with CUDA initialised, the
# coordinator could not fork again.
_GPU_LIBRARIES = {"cupy", "cupy_backends", "cuda"}


class _KnownReader(pickle.Unpickler):
    """Finds classes of imported modules only; the script cannot name a class of a module it has
    not imported.
    """

    def find_class(self, module: str, name: str) -> Any:
        if module not in sys.modules or module.partition(".")[0] in _GPU_LIBRARIES:
            raise pickle.UnpicklingError(f"{module}.{name} is not loaded outside the rank")
        return super().find_class(module, name)


def unpack_known(packed: bytes) -> Any:
    """Unpickles a value packed inside a message; refuses classes of GPU libraries and of modules
    not imported here.
    """
    return _KnownReader(io.BytesIO(packed)).load()


def wait_on() -> None:
    """Waits on, however long it takes: the `watch` by default."""


def send(
    sock: socket.socket,
    payload: bytes,
    descriptors: Sequence[int] = (),
    watch: Callable[[], None] = wait_on,
) -> None:
    """Sends a packed message. While the peer does not read, calls `watch`, which raises to
    abort.
    """
    wait(sock, select.POLLOUT, watch)
    begin(sock, len(payload), descriptors)
    view = memoryview(payload)
    while view:
        wait(sock, select.POLLOUT, watch)
        view = view[sock.send(view, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]


def begin(sock: socket.socket, length: int, descriptors: Sequence[int]) -> None:
    """Sends the beginning of a message: the length of its payload, and descriptors. A socket
    takes it whole.
    """
    passed = (
        [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))] if descriptors else []
    )
    # socket.send_fds takes no flags
    sock.sendmsg([_LENGTH.pack(length)], passed, socket.MSG_NOSIGNAL)


def begun(sock: socket.socket, flags: int = 0) -> tuple[int, list[int], bool]:
    """Receives the beginning of a message: the length of its payload, descriptors, and whether
    these are all that were sent.
    """
    header, descriptors, msg_flags, _ = socket.recv_fds(
        sock, _LENGTH.size, MAX_DESCRIPTORS, flags | socket.MSG_CMSG_CLOEXEC
    )
    if len(header) < _LENGTH.size:
        raise EOFError
    return _LENGTH.unpack(header)[0], descriptors, not msg_flags & socket.MSG_CTRUNC


def no_descriptor() -> OSError:
    """Returns the error for a message whose descriptors the process has no room for."""
    return OSError(errno.EMFILE, NO_DESCRIPTOR)


def receive(sock: socket.socket, watch: Callable[[], None] = wait_on) -> tuple[Any, list[int]]:
    """Receives the next message and its descriptors.

    Raises:
        EOFError: the peer has closed its end.
        OSError: there is no room for the descriptors; the message has been read.
    """
    wait(sock, select.POLLIN, watch)
    length, descriptors, complete = begun(sock)
    try:
        payload = _receive_payload(sock, length, watch)
        if not complete:
            raise no_descriptor()  # noqa: TRY301  # the descriptors that have come are closed
        return pickle.loads(payload), descriptors  # noqa: S301  # the peer is a fork of this process, or its parent
    except BaseException:
        close_all(descriptors)
        raise


def _receive_payload(sock: socket.socket, length: int, watch: Callable[[], None]) -> bytearray:
    payload = bytearray(length)
    view = memoryview(payload)
    while view:
        wait(sock, select.POLLIN, watch)
        received = sock.recv_into(view)
        if received == 0:
            raise EOFError
        view = view[received:]
    return payload


def close_all(descriptors: Sequence[int]) -> None:
    """Closes descriptors that are not going to be used."""
    for descriptor in descriptors:
        os.close(descriptor)
