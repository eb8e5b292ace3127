"""Deals with the state that a forked child inherits but must not share: descriptors, streams,
random states, threads, trackers.

The coordinator calls `tell_of_threads()`, `before_fork()` and `fork()`. The child calls
`replace()`, `close_inherited()`, `settle_streams()`, `settle_trackers()`, `seed()` and, at its end,
`flush()`.
"""

import ctypes
import fcntl
import multiprocessing.util
import os
import random
import re
import resource
import select
import stat
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from glob import glob
from itertools import filterfalse
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from synknumba._errors import depth_of_script

# how /proc shows the descriptors of memory files, such as those of `_host/stacks.py`
_OURS = "/memfd:synk-"
_LINE_BUFFERED, _BUFFER_BYTES = 1, 8192  # stdio.h, _IOLBF and BUFSIZ

_POLLED = 256  # descriptors in one poll(2); it refuses more than the soft limit of open files
_MOST_DESCRIPTORS = 1 << 20  # the kernel's own limit, fs.nr_open, unless it is raised

_TRACKER = ".resource_tracker"  # end of the names of multiprocessing's module, and of loky's

COMPILE_SECONDS = 30.0  # a longer compilation in another thread is not waited for

_trackers: list[subprocess.Popen[bytes]] = []
# modules by the end of their names, with the number of all modules at the time of the search
_searched: dict[str, tuple[int, list[Any]]] = {}

_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p


def take_standard_descriptors() -> None:
    """Opens /dev/null in place of closed standard descriptors, as after `python script.py <&-`, or
    `os.close(0)` in the script.

    Otherwise the next file opened, such as a segment of Data or the socket of a rank, would get the
    free number, and receive all printed output.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number


def before_fork() -> None:
    """Flushes the standard streams of Python and C, or a child would write its copy of the
    buffers too; searches for the modules that `settle_trackers` needs.
    """
    take_standard_descriptors()
    _modules_ending(_TRACKER)
    for stream in {
        id(stream): stream for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    }.values():
        with suppress(OSError, ValueError, AttributeError):  # closed, or None
            stream.flush()  # type: ignore[union-attr]
    _libc.fflush(None)


def fork(child: Callable[[], Any]) -> int:
    """Forks a process that runs `child` and ends; returns its number.

    It calls `os.fork` while no other thread compiles: the child would wait for the compiler's locks
    for ever. Python 3.12's warning about threads is left out; `tell_of_threads` warns instead, with
    their names.

    No exception of the child propagates into its copy of the script, which would run on there.
    `child` tells of its own; what is raised before it runs, as where memory is short, is printed to
    stderr.
    """
    parent = os.getpid()
    try:
        with _compilers_at_rest(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            child()
            os._exit(0)
    except BaseException as error:
        if os.getpid() != parent:
            _end_here(error)
        raise
    return pid


def _end_here(error: BaseException) -> NoReturn:
    try:
        os.write(
            2, f"synknumba: a process could not start: {type(error).__name__}: {error}\n".encode()
        )
    finally:
        os._exit(1)


@contextmanager
def _compilers_at_rest() -> Iterator[None]:
    """Holds the locks of Numba's compilers, each in a module of that name, and of llvmlite,
    which compilations take last.
    """
    places = _modules_ending(".compiler_lock")
    wrappers: list[Any] = [getattr(place, "global_compiler_lock", None) for place in places]
    wrappers.append(
        getattr(getattr(sys.modules.get("llvmlite.binding.ffi"), "lib", None), "_lock", None)
    )
    locks = {id(wrapper._lock): wrapper._lock for wrapper in wrappers if hasattr(wrapper, "_lock")}  # noqa: SLF001  # numba-cuda may use Numba's
    with ExitStack() as held:
        for lock in locks.values():
            if lock.acquire(timeout=COMPILE_SECONDS):
                held.callback(lock.release)
        yield


def _modules_ending(ending: str) -> list[Any]:
    """Returns the loaded modules whose names end so; searches again only after imports.

    A search touches each module, and after a fork the first touch of a page copies it, also in the
    parent: 1,000 pages for each rank, and 1,700 on it.
    """
    count, modules = _searched.get(ending, (0, []))
    if count != len(sys.modules):
        modules = [module for name, module in list(sys.modules.items()) if name.endswith(ending)]
        _searched[ending] = len(sys.modules), modules
    return modules


# 0: epoll, eventfd, inotify
_SPOKEN = {stat.S_IFSOCK, stat.S_IFIFO, 0}


def close_inherited(keep: Collection[int], replaced: Collection[int] = ()) -> None:
    """Replaces inherited sockets, pipes and the like by /dev/null, and also stdin, which the script
    reads.

    If a pipe stayed open here, the script would wait for its end of file for ever; a listening
    socket would keep its port. Files and terminals stay open, so that ranks can write to a log file
    of the script; so does any descriptor of the same file as stdout or stderr.

    The memory files of other ranks are replaced too, or this process would keep their contents
    alive. Descriptors in `keep` are left open; those in `replaced` are not looked at, see
    `replace`.
    """
    spared, kept = {_file(fd) for fd in (1, 2)}, {1, 2, *keep}

    def is_unwanted(fd: int, path: str) -> bool:
        if fd == 0:
            return True
        if fd in kept:
            return False
        if not path.startswith(_OURS) and stat.S_IFMT(os.fstat(fd).st_mode) not in _SPOKEN:
            return False
        return _file(fd) not in spared

    replace_descriptors(is_unwanted, replaced)


def replace_descriptors(
    is_unwanted: Callable[[int, str], bool], replaced: Collection[int] = ()
) -> None:
    """Replaces descriptors of this process, selected by number and path ("" without /proc), as
    `replace` does.

    Those in `replaced` are not looked at.
    """
    replace(_unwanted(is_unwanted, replaced))


def replace(descriptors: Iterable[int]) -> None:
    """Replaces descriptors of this process by /dev/null.

    They are not closed, so that their numbers stay in use: a stale owner, such as a socket object
    of the script that is collected here, then closes no other file.

    The last of W ranks inherits about 4 W descriptors of the others, and gets their numbers:
    inspecting a descriptor costs ten times as much as replacing it.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in descriptors:
        try:
            os.dup2(null, fd, inheritable=fd == 0)
        # not below the limit of open files, which was lowered; the number is not given out again
        except OSError:
            os.close(fd)
    os.close(null)


def _unwanted(is_unwanted: Callable[[int, str], bool], replaced: Collection[int]) -> Iterator[int]:
    for fd in _open_descriptors():
        with suppress(OSError):  # the descriptor of listdir itself
            if fd not in replaced and is_unwanted(fd, _path(fd)):
                yield fd


def _open_descriptors() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:  # /proc is not mounted
        return [fd for start in range(0, _most_descriptors(), _POLLED) for fd in _open_from(start)]


def _open_from(start: int) -> list[int]:
    """Returns the open ones of `_POLLED` descriptors, by poll(2), which refuses none and waits
    for none.
    """
    polled = np.zeros(_POLLED, [("fd", np.int32), ("events", np.int16), ("revents", np.int16)])
    polled["fd"] = range(start, start + _POLLED)
    _libc.poll(ctypes.c_void_p(polled.ctypes.data), ctypes.c_ulong(_POLLED), 0)
    return [int(fd) for fd in polled["fd"][polled["revents"] & select.POLLNVAL == 0]]


def _most_descriptors() -> int:
    with suppress(OSError):  # a sandbox may refuse prlimit
        return min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _MOST_DESCRIPTORS)
    return _MOST_DESCRIPTORS


def _path(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return ""


def _file(fd: int) -> tuple[int, int, int] | None:
    """Returns (device, inode, access mode) of a descriptor; the ends of a pipe differ in mode."""
    with suppress(OSError):
        status = os.fstat(fd)
        return status.st_dev, status.st_ino, fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
    return None


def settle_streams() -> None:
    """Connects stdout and stderr to descriptors 1 and 2, line-buffered, for both Python and C
    libraries.

    A rank may be killed at any moment, and its printed lines must not be lost. They must not go to
    an object in memory either, as where the script captures its prints at the fork: the object
    would be the rank's copy. Nor can they go through the threads and sockets of a notebook, which a
    fork does not copy; the notebook's kernel also reads the descriptors, and shows their output in
    the cell.
    """
    for name, fd in (("stdout", 1), ("stderr", 2)):
        setattr(sys, name, _by_line(getattr(sys, name), fd))
    # a new object: the old one may hold input that the script has read ahead
    sys.stdin = os.fdopen(0, closefd=False)
    with suppress(ValueError):  # a C library without the symbol
        stdout = ctypes.c_void_p.in_dll(_libc, "stdout")
        # Under python -u, C's buffer holds one byte, and lines of ranks would mix. The new one is
        # used until the process ends.
        buffer = ctypes.c_void_p(_libc.malloc(ctypes.c_size_t(_BUFFER_BYTES)))
        _libc.setvbuf(stdout, buffer, _LINE_BUFFERED, ctypes.c_size_t(_BUFFER_BYTES))


def settle_trackers() -> None:
    """Starts resource trackers of this process in their own sessions, and forgets the script's.

    multiprocessing and loky (joblib) start a process that removes the names and folders of
    processes that end without doing so, as ranks do. It ends once its pipe is closed, and has to
    outlive the group of a rank, which is killed. The pipe to a tracker of the script is /dev/null
    here.
    """
    for module in _modules_ending(_TRACKER):
        tracker: Any = getattr(module, "_resource_tracker", None)
        if hasattr(tracker, "_fd"):
            tracker._fd = tracker._pid = None  # noqa: SLF001  # no public way, as in _compilers_at_rest
    spawn = multiprocessing.util.spawnv_passfds

    def spawn_apart(path: Any, args: Sequence[Any], passfds: Sequence[int]) -> int:
        if "resource_tracker import main" not in args[-1]:
            return spawn(path, args, passfds)
        process = subprocess.Popen(  # noqa: S603  # what multiprocessing starts
            # What is left here is no mistake of the function's.
            [*args[:-2], "-Wignore:resource_tracker", *args[-2:]],
            executable=path,
            pass_fds=passfds,
            restore_signals=False,
            start_new_session=True,
        )
        _trackers.append(process)  # else it warns that the process still runs
        return process.pid

    multiprocessing.util.spawnv_passfds = spawn_apart


def leave_deleted_directory() -> None:
    """Goes to the root directory if the working directory was deleted, where Numba could not
    format its messages.
    """
    try:
        os.getcwd()
    except OSError:
        os.chdir("/")


def _by_line(stream: Any, fd: int) -> Any:
    """Returns the stream, made line-buffered, if it writes to `fd`; else a new stream on `fd`."""
    with suppress(AttributeError, OSError, ValueError):  # sys.stdout may be any object
        if stream.fileno() == fd:
            # also under python -u, or lines of ranks would mix
            stream.reconfigure(line_buffering=True, write_through=False)
            return stream
    return os.fdopen(
        fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
    )


def flush() -> None:
    """Flushes the streams of Python and C, before a process ends by `os._exit`."""
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    _libc.fflush(None)


def seed(rank: int, state: Any) -> None:
    """Seeds this rank's global random generators, derived from the script's states at the fork and
    the rank.

    With a common state, all ranks would draw the same "random" numbers. `state` is
    `random.getstate()` of the script, needed because Python has reseeded the child's generator from
    the system.
    """
    np.random.seed([rank, *np.random.randint(0, 2**32, 4, np.uint32)])  # noqa: NPY002  # users may draw from the global one
    random.setstate(state)
    random.seed((rank << 128) + random.getrandbits(128))


take_standard_descriptors()


# Threads of these packages are idle while a cell runs, or hold only locks that ranks do not use, as
# that of a future.
_SPARED = (
    "synknumba",
    "ipykernel",
    "IPython",
    "prompt_toolkit",
    "debugpy",
    "pydevd",
    "_pydevd_bundle",
    "_pydev_bundle",
)

# Libraries whose threads neither survive a fork nor can be started again, by the names that the
# threads have.
_LOST_POOLS = {"polars": re.compile(r"polars-\d+")}

_told: set[str] = set()  # what was warned of: "threads", libraries


def tell_of_threads() -> None:
    """Warns, once per process, of threads other than the main thread and the one that forks, and of
    lost thread pools.

    A child has only the thread that forked. Work of other threads stays half done in it, and a lock
    that one of them held is never released: a rank that needs the lock waits for ever. BLAS and
    OpenMP handle forks, or `thread_pools` does; but `os.fork` itself may hang where another thread
    is in a product of OpenBLAS (docs/limits.md).
    """
    _tell_of_lost_pools()
    spared = {threading.main_thread(), threading.current_thread()}
    others = [thread for thread in threading.enumerate() if thread not in spared]
    threads = list(filterfalse(_is_harmless, others))
    if not threads or "threads" in _told:
        return
    _told.add("threads")
    names = ", ".join(f"{thread.name!r}" for thread in threads)
    if len(threads) > 1:
        run, them, holder = "threads run", "them", "one of them"
    else:
        run, them, holder = "thread runs", "it", "it"
    message = (
        f"fork() called while {len(threads)} other {run}: {names}. Ranks do not inherit {them}, "
        f"and a lock that {holder} holds now stays locked on the ranks forever. Call fork() "
        "before starting threads."
    )
    warnings.warn(message, RuntimeWarning, stacklevel=depth_of_script())


def _tell_of_lost_pools() -> None:
    threads: list[str] = []
    for path in glob("/proc/self/task/*/comm"):
        with suppress(OSError):  # the thread has ended
            threads.append(Path(path).read_text().strip())
    for library, pattern in _LOST_POOLS.items():
        if library not in _told and any(map(pattern.fullmatch, threads)):
            _told.add(library)
            warnings.warn(
                f"fork() called after {library} has started its threads, which ranks do not "
                f"inherit: {library} on a rank would wait for them forever. If ranks use "
                f"{library}, move the line with fork() above its first use.",
                RuntimeWarning,
                stacklevel=depth_of_script(),
            )


def _is_harmless(thread: threading.Thread) -> bool:
    target = getattr(thread, "_target", None)
    modules = type(thread).__module__, str(getattr(target, "__module__", None))
    return any(module.partition(".")[0] in _SPARED for module in modules)
