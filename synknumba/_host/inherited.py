"""What a process that is forked from the script inherits and must not use as its own: descriptors, buffers, random states.

The coordinator calls `before_fork()` and `fork()`; the child calls the rest.

Threads of the script that a fork leaves behind.
"""

import ctypes
import fcntl
import os
import random
import stat
import sys
import threading
import warnings
from collections.abc import Collection
from contextlib import suppress
from typing import Any

import numpy as np

_OURS = "/memfd:synk-"  # how /proc shows the descriptor of a memory file, as of `_stacks`
_LINE_BUFFERED, _BUFFER_BYTES = 1, 8192  # stdio.h, _IOLBF and BUFSIZ

_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p


def take_standard_descriptors() -> None:
    """Opens /dev/null in place of standard descriptors that are closed, as by `python script.py <&-`.

    The next file that is opened would get such a number, and with it all that is printed: a segment of Data, or the socket of
    a rank.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free


def before_fork() -> None:
    """Empties the buffers of the standard streams, of Python's and of C's: a child would write out its copy of them too."""
    take_standard_descriptors()
    for stream in {id(one): one for one in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)}.values():
        with suppress(OSError, ValueError, AttributeError):  # closed, or not there at all
            stream.flush()  # type: ignore[union-attr]
    _libc.fflush(None)


def fork() -> int:
    """As `os.fork`, without Python 3.12's warning of threads: `synknumba.fork` says itself which there are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def close_inherited(keep: Collection[int]) -> None:
    """Takes sockets, pipes and the like away, as they are somebody's conversation; and stdin, which is the script's to read.

    A pipe that stays open here is one whose end the script waits for in vain; a listening socket keeps its port. Files and
    terminals stay, so that a log file of the script's can be written to on the ranks; and what is the same as stdout or stderr.

    What is taken away becomes /dev/null, and its number stays taken: whoever has it noted down, such as a socket object of the
    script's that is collected here, closes nothing else.

    The memory files of other ranks go too: what they wrote at their end would be kept here.

    Args:
        keep: descriptors that stay as they are.
    """
    spared = {_file(fd) for fd in (1, 2)}
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        with suppress(OSError):  # listdir's own
            mode = os.fstat(fd).st_mode
            spoken = stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode) or stat.S_IFMT(mode) == 0  # 0: epoll, eventfd, inotify
            others = os.readlink(f"/proc/self/fd/{fd}").startswith(_OURS)
            if (spoken or others) and fd > 2 and fd not in keep and _file(fd) not in spared:
                os.dup2(null, fd, inheritable=False)
    os.close(null)


def _file(fd: int) -> tuple[int, int, int] | None:
    """What a descriptor is of, and whether for reading or writing: the two ends of a pipe are one file."""
    with suppress(OSError):
        status = os.fstat(fd)
        return status.st_dev, status.st_ino, fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
    return None


def settle_streams() -> None:
    """Has stdout and stderr go to their descriptors, line by line, whether Python or a C library writes, and whereto.

    A rank may be ended at any moment, and what it has printed is not to go with it. Nor is it to go to an object in memory, as
    where the script's prints are captured at the fork: it would be the rank's copy. Nor through the threads and sockets of a
    notebook, which are not here; its kernel reads the descriptors too, and shows in the cell what comes.
    """
    for name, fd in (("stdout", 1), ("stderr", 2)):
        setattr(sys, name, _by_line(getattr(sys, name), fd))
    sys.stdin = os.fdopen(0, closefd=False)  # what the script has read ahead is not the rank's
    with suppress(ValueError):  # a C library without the symbol
        stdout = ctypes.c_void_p.in_dll(_libc, "stdout")
        # What C has under python -u holds one byte, and lines of ranks would mix. It writes here until the process ends.
        buffer = ctypes.c_void_p(_libc.malloc(ctypes.c_size_t(_BUFFER_BYTES)))
        _libc.setvbuf(stdout, buffer, _LINE_BUFFERED, ctypes.c_size_t(_BUFFER_BYTES))


def _by_line(stream: Any, fd: int) -> Any:
    """The stream, if that is what it writes to; else a new one."""
    with suppress(AttributeError, OSError, ValueError):  # whatever stands in its place
        if stream.fileno() == fd:
            stream.reconfigure(line_buffering=True, write_through=False)  # also under python -u, or lines of ranks would mix
            return stream
    return os.fdopen(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def flush() -> None:
    """Writes out what is left, of Python's streams and of C's; before a process ends without Python's own end."""
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    _libc.fflush(None)


def seed(rank: int, state: Any) -> None:
    """Gives a rank random states of its own, which follow from those that the script had at the fork.

    Ranks that shared one state would draw the same "random" numbers.

    Args:
        rank: of this process.
        state: `random.getstate()` of the script; Python has seeded the child's anew already, from the system.
    """
    np.random.seed([rank, *np.random.randint(0, 2**32, 4, np.uint32)])  # noqa: NPY002  # the global generator is what users' code may use
    random.setstate(state)
    random.seed((rank << 128) + random.getrandbits(128))


take_standard_descriptors()


# Their threads are idle while a cell runs, or hold locks of their own that a rank does not use.
_NOTEBOOK = ("ipykernel", "IPython", "debugpy", "pydevd", "_pydevd_bundle", "_pydev_bundle")

_told: list[bool] = []  # once is enough


def tell_of_threads() -> None:
    """Warns, once in the life of the process, that it has other threads than the main one and the one that forks.

    A child has only the thread that forked. What another one was doing stays half done in it, and a lock that it held is never
    given back: a rank that needs it waits for ever. Threads of C libraries are not seen here: BLAS and OpenMP mind forks.
    """
    spared = {threading.main_thread(), threading.current_thread()}
    others = [thread for thread in threading.enumerate() if thread not in spared and not _is_of_notebook(thread)]
    if not others or _told:
        return
    _told.append(True)
    names = ", ".join(f"{thread.name!r}" for thread in others)
    many = len(others) > 1
    message = (
        f"fork() while {len(others)} other thread{'s run' if many else ' runs'}: {names}. Ranks do not have "
        f"{'them' if many else 'it'}, and a lock that {'one of them' if many else 'it'} holds at this moment stays "
        f"locked on the ranks for ever. Call fork() before threads are started."
    )
    warnings.warn(message, RuntimeWarning, stacklevel=3)


def _is_of_notebook(thread: threading.Thread) -> bool:
    if "ipykernel" not in sys.modules and "pydevd" not in sys.modules:
        return False
    target = getattr(thread, "_target", None)
    modules = type(thread).__module__, getattr(target, "__module__", None) or ""
    return any(module.partition(".")[0] in _NOTEBOOK for module in modules)
