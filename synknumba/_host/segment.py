"""Shared memory segments: create, grow, map and release.

    coordinator                                        rank
    Segment(nbytes)    open, reserve, map
      fd, id, size  ────────── socketpair ───────────→ Segment.attach(id, fd, size)
    grow(nbytes)       reserve more, map all of it again
      fd, id, size  ────────── socketpair ───────────→ Segment.attach(id, fd, larger size)
    last reference     noted; then close fd, call listeners ─→ close()

A segment is a file in memory, opened in one of two ways, and the same after that:

    posix    shm_open and unlink, by posix_ipc: in `/dev/shm`, whose size is a limit of its own
    memfd    memfd_create, without a file system: where posix_ipc cannot be imported or `/dev/shm` is too small

1 GiB of `/dev/shm`, or half of a smaller one, is left to others, such as NCCL, who have no other
place; containers have 64 MB. `SYNKNUMBA_SEGMENTS=posix` or `=memfd` allows one way only.

`Segment.of_file` makes a segment of a file of the script's instead, mapped for reading. Ranks map
it through its descriptor, as they do others, so that no path is looked up a second time, and
nothing is copied.

A POSIX segment has a name for a few microseconds only, a memory file has none: whichever process is
killed, nothing stays in `/dev/shm`, and no other process can open the segment. Pages are reserved
at creation, so a lack of memory raises an error here and never causes a SIGBUS later. The memory is
freed when no process has a descriptor or a mapping any more. A NumPy view keeps alive the mapping
it was made on, and nothing else.
"""  # noqa: E501

import ctypes
import errno
import fcntl
import itertools
import mmap
import os
import re
import resource
import secrets
import stat
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Self, TypeVar, final

import numpy as np
from numpy.typing import DTypeLike

from synknumba._errors import SharedMemoryError, named_by_base
from synknumba._host import memory
from synknumba._host.deaths import noted, settle, when_gone
from synknumba._host.inherited import replace_descriptors, take_standard_descriptors
from synknumba._host.log import log
from synknumba._host.signals import held_signals
from synknumba._types import Array, Shape, WeakTable

try:  # there are no wheels for Python 3.14
    import posix_ipc
except ImportError as error:
    posix_ipc, _missing = None, str(error)

_REFUSALS = {errno.EPERM, errno.EACCES, errno.ENOSYS}  # of system calls, by sandboxes

# tmpfs undoes an interrupted reservation: a large one in a single step would restart at every tick
# of a profiling timer. 16 MiB take 2 to 4 ms.
_RESERVE_STEP = 16 << 20

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of <sys/mman.h>; not in the mmap module

# Free memory is looked up, in 0.1 ms, for segments of at least this size, which take 1 ms to clear.
_LARGE = 4 << 20

# how /proc shows the descriptors of segments
_DELETED = re.compile(r"/synk-[0-9a-f]{24} \(deleted\)$")

SWITCH = "SYNKNUMBA_SEGMENTS"
_SHM = "/dev/shm"  # where Linux keeps POSIX shared memory
_LEFT = 1 << 30  # bytes of it that are left to others, or half of a smaller one
_PREFIX = "/synk-"  # of memory files too, so that /proc shows all segments alike
# 8 digits are the process that creates the segment, 16 are random.
_NAME = re.compile(_PREFIX[1:] + "([0-9a-f]{8})[0-9a-f]{16}")
_STALE_SECONDS = 10.0  # names exist for microseconds

_T = TypeVar("_T")
_C = TypeVar("_C")

_ids = itertools.count(1)
_listeners: dict[object, Callable[[int], None]] = {}
_preparers: dict[object, Callable[[], None]] = {}
# segment id: descriptor, process and thread that created it
_descriptors: dict[int, tuple[int, int, int]] = {}
_alive: "WeakTable[Segment, None]" = WeakTable()
_maps: WeakTable[mmap.mmap, int] = WeakTable()  # segment ids; views may outlive a Segment


def on_release(callback: Callable[[int], None]) -> Callable[[], None]:
    """Calls `callback(segment_id)` whenever a segment created by this process is released.

    The callback may run in any thread. It must not block, take a lock that is held for long
    elsewhere, or raise. Returns a function that unsubscribes; idempotent.
    """
    return _subscribed(_listeners, callback)


def before_making(callback: Callable[[], None]) -> Callable[[], None]:
    """Calls `callback()` before this process makes a segment. Returns a function that
    unsubscribes; idempotent.
    """
    return _subscribed(_preparers, callback)


def _subscribed(callbacks: dict[object, _C], callback: _C) -> Callable[[], None]:
    token = object()
    callbacks[token] = callback

    def unsubscribe() -> None:
        callbacks.pop(token, None)

    return unsubscribe


@final
class Segment:
    """Unnamed shared memory, reserved and mapped into this process.

    Attributes:
        id: number, unique within the creating process and never reused.
        size: bytes reserved: the requested size rounded up to pages; at least one page. Of a file,
            the bytes mapped.
        generation: how often the segment has grown; earlier mappings are too short.
        fd: descriptor to pass to other processes, close-on-exec; -1 if there is none (closed, or
            attached).
        is_file: whether it is a file of the script's, which is only read.

    Example:
        >>> from synknumba._host.segment import Segment
        >>> segment = Segment(100)
        >>> segment.array("float32", (2, 3)).tolist()
        [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
        >>> segment.close()
    """

    def __init__(self, nbytes: int) -> None:
        """Reserves `nbytes` bytes of zeros; SharedMemoryError without memory or descriptors."""
        if noted:
            settle()
        for prepare in tuple(_preparers.values()):
            prepare()
        take_standard_descriptors()  # a rank replaces what has such a number
        size = _round_to_pages(nbytes)
        segment_id = next(_ids)
        fd, mapping = _with_descriptors(partial(_make, segment_id, size, nbytes))
        self._adopt(segment_id, size, mapping, fd)

    @classmethod
    def of_file(cls, fd: int, size: int) -> Self:
        """Maps the first `size` bytes of a file for reading, or raises SharedMemoryError.

        The descriptor, which is opened for reading only, belongs to the segment from then on; it is
        closed if mapping fails.
        """
        segment_id = next(_ids)
        with held_signals():
            _descriptors[segment_id] = fd, os.getpid(), threading.get_ident()
        try:
            mapping = _map(fd, size, populate=False, writable=False)
        except BaseException:
            with held_signals():
                del _descriptors[segment_id]
                os.close(fd)
            raise
        segment = cls.__new__(cls)
        segment._adopt(segment_id, size, mapping, fd, is_file=True)  # noqa: SLF001  # same class
        return segment

    @classmethod
    def attach(cls, segment_id: int, fd: int, size: int) -> Self:
        """Maps a segment created by another process, or raises SharedMemoryError.

        It cannot grow, and its release calls no listeners. Id and size are those in its creating
        process. The descriptor, as received, is always closed here.
        """
        try:
            is_file = not is_writable(fd)
            # a rank touches its own rows only
            mapping = _map(fd, size, populate=False, writable=not is_file)
        finally:
            os.close(fd)
        segment = cls.__new__(cls)
        segment._adopt(segment_id, size, mapping, -1, is_file=is_file)  # noqa: SLF001  # same class
        return segment

    def _adopt(
        self, segment_id: int, size: int, mapping: mmap.mmap, fd: int, *, is_file: bool = False
    ) -> None:
        self.id, self.size, self.generation, self.fd, self.is_file = (
            segment_id,
            size,
            0,
            fd,
            is_file,
        )
        self._mapping: mmap.mmap | None = mapping
        self._mappings = [weakref.ref(mapping)]  # with those from before it grew that views keep
        self._ranges = [_address_range(mapping)]
        if not is_file:
            _maps[mapping] = segment_id
        if fd >= 0:
            when_gone(self, partial(_release, segment_id))
        _alive[self] = None

    @property
    def closed(self) -> bool:
        """Whether `close()` was called, or this forked child has released its parent's segments."""
        return self._mapping is None

    @property
    def takes_memory(self) -> bool:
        """Whether its memory is there for it, and is this process's to free."""
        return self.fd >= 0 and not self.is_file

    def _has_no_room(self, size: int) -> bool:
        """Returns whether it cannot grow to a size where it is, but as a memory file."""
        free = _free_bytes(self.fd)
        if free is None or size - self.size <= free:
            return False
        return _opener(size) is _open_memfd

    def grow(self, nbytes: int, *, may_move: bool = True) -> None:
        """Grows the segment in place to at least `nbytes` bytes; contents stay, new bytes are 0.

        Earlier views stay valid: they show the same memory through the old, shorter mapping. Raises
        SharedMemoryError, and leaves the segment unchanged, if there is no space, or it is closed
        or attached.

        Where `/dev/shm` has no room for the growth, the segment and its earlier views move to a
        memory file, under the same id and descriptor, unless `may_move` is false. Views in other
        processes keep the old memory, which is not shared any more.
        """
        if not self.takes_memory:
            raise SharedMemoryError(
                f"{self!r} cannot grow: it is a file or closed, or another process created it. "
                "Grow it there and attach it again."
            )
        size = _round_to_pages(nbytes)
        if size <= self.size:
            return
        if noted:
            settle()
        if may_move and self._has_no_room(size):
            self._move(size, nbytes)
            return
        try:
            _reserve(self.fd, self.size, size, nbytes)
            mapping = _with_descriptors(partial(_map, self.fd, size, populate=True))
        except BaseException:
            os.ftruncate(self.fd, self.size)  # frees the partial reservation
            raise
        self._grown(mapping, size)

    def _move(self, size: int, nbytes: int) -> None:
        """Grows by continuing in another file of `size` bytes."""
        new_id = next(_ids)  # of that file, until it is this segment's
        fd, mapping = _with_descriptors(partial(_make, new_id, size, nbytes))
        try:
            np.frombuffer(mapping, np.uint8)[: self.size] = self.array(np.uint8, (self.size,))
            with held_signals():
                for old in filter(None, [mapped() for mapped in self._mappings]):
                    _map_over(old, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd)
                    old.madvise(mmap.MADV_DONTDUMP)
                os.dup2(fd, self.fd, inheritable=False)
                self._grown(mapping, size)
        finally:
            with held_signals():
                del _descriptors[new_id]
                os.close(fd)

    def _grown(self, mapping: mmap.mmap, size: int) -> None:
        self._mapping = mapping
        self._mappings.append(weakref.ref(mapping))
        self._ranges.append(_address_range(mapping))
        _maps[mapping] = self.id
        self.size = size
        self.generation += 1

    def array(self, dtype: DTypeLike, shape: Shape, offset: int = 0) -> Array:
        """Returns a C-contiguous view from byte `offset` on; the view keeps the mapping alive.

        It is writable, unless the segment is a file.

        Raises SharedMemoryError if the segment is closed or too small.
        """
        if self._mapping is None:
            raise SharedMemoryError(f"{self!r} has no memory to view.")
        try:
            # NumPy accepts both, and reads outside the buffer
            if offset < 0 or min(shape, default=0) < 0:
                raise ValueError("offset and shape must not be negative")  # noqa: TRY301
            return np.ndarray(shape, dtype, buffer=self._mapping, offset=offset)
        except (TypeError, ValueError) as error:
            raise SharedMemoryError(
                f"{self!r} does not hold an array of dtype {dtype} and shape {shape} "
                f"at byte {offset}: {error}."
            ) from error

    def populate(self, offset: int, nbytes: int) -> None:
        """Takes the memory of some bytes now, from the start of a page, as a mirror of another
        machine's segment has none.

        A lack of it is a SharedMemoryError, and not the end of the process at its first touch.
        Linux before 5.14 does nothing.
        """
        assert self._mapping is not None  # not closed
        if nbytes == 0:
            return
        try:
            self._mapping.madvise(_POPULATE_WRITE, offset, nbytes)
        except OSError as error:
            if error.errno not in {errno.EINVAL, *_REFUSALS}:
                raise _no_space(nbytes, None) from error

    def overlaps(self, array: Array) -> bool:
        """Returns whether `array` may share memory with this segment, also through a mapping from
        before it grew.

        NumPy compares addresses, so it sees two mappings of the same memory as disjoint. May return
        a false positive, if an old mapping is gone and its addresses were reused.
        """
        low, high = np.lib.array_utils.byte_bounds(array)
        return any(low < stop and start < high for start, stop in self._ranges)

    def close(self) -> None:
        """Releases the segment; idempotent. Existing views stay valid until they die."""
        self._mapping = None  # not mmap.close(), which fails while views exist
        if self.fd >= 0:
            _release(self.id)
        self.fd = -1

    def abandon(self) -> None:
        """In a forked child: releases a segment of the parent, without calling listeners."""
        self._mapping = None
        if self.fd >= 0 and _descriptors.pop(self.id, None) is not None:
            os.close(self.fd)
        self.fd = -1

    def make_private(self) -> None:
        """Replaces the mapping by a private, copy-on-write one, and releases the segment; existing
        views stay valid.

        Memory is copied only when it is written to. No other process may write to the segment
        afterwards. If the kernel refuses, for instance where memory overcommit is disabled, raises
        OSError and leaves the segment unchanged.
        """
        assert self._mapping is not None  # not closed
        assert self.fd >= 0  # created by this process
        _map_over(self._mapping, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, self.fd)
        _maps.pop(self._mapping)
        self.close()

    def __repr__(self) -> str:
        """Shows id, size and state."""
        return f"<Segment id={self.id} size={self.size} {'closed' if self.closed else 'open'}>"


def total_bytes() -> int:
    """Returns the bytes of all open segments created by this process, without files."""
    settle()
    return sum(segment.size for segment in _alive if segment.takes_memory)


def is_writable(fd: int) -> bool:
    """Returns whether a descriptor is open for writing, as those of segments are that are no
    files of the script's.
    """
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY


def release_inherited(keep: Collection[Segment] = (), replaced: Collection[int] = ()) -> None:
    """In a forked child: releases all segments inherited from the parent, except those in `keep`.

    A child inherits descriptors and mappings, which would keep the memory allocated after the
    parent has released it. The segments are closed in this process. Their mappings are replaced by
    inaccessible pages, so that a view kept in a global variable of the script faults instead of
    showing other memory. Descriptors in `replaced` are not looked at, see `inherited.replace`.
    Files of the script's take no memory: their mappings stay, and so do the script's own
    descriptors.
    """
    ids = {segment.id for segment in keep}
    files = {_file(segment.fd) for segment in keep if segment.fd >= 0}
    unwanted = {_file(segment.fd) for segment in _alive if segment.takes_memory} - files
    for segment in _alive:
        if segment.id not in ids:
            segment.abandon()
    for mapping, segment_id in _maps.items():
        if segment_id not in ids:
            _map_over(mapping, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)  # access 0: PROT_NONE

    # Before Python 3.13, a mapping owns a duplicate descriptor and closes that number when it dies,
    # so it must stay in use. The path is empty without /proc; what is alive is found then all the
    # same.
    def is_unwanted(fd: int, path: str) -> bool:
        file = _file(fd)
        if _DELETED.search(path):
            return file not in files
        return file in unwanted

    replace_descriptors(is_unwanted, replaced)


def _file(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _release(segment_id: int) -> None:
    # A forked child may have closed the descriptor and reused its number; release_inherited()
    # releases the parent's segments.
    fd, owner, _ = _descriptors.get(segment_id, (-1, -1, 0))
    if owner != os.getpid():
        return
    try:
        for callback in tuple(_listeners.values()):
            callback(segment_id)
    finally:
        with held_signals():
            # another thread may have been faster
            if _descriptors.pop(segment_id, None) is not None:
                os.close(fd)


def close_orphans() -> None:
    """Closes the descriptors of segments that have died or whose making was interrupted, except
    by another thread.
    """
    settle()
    # before the living: one that is finished meanwhile is among these
    entries = tuple(_descriptors.items())
    alive = {segment.id for segment in _alive}
    other_threads = sys._current_frames().keys() - {threading.get_ident()}  # noqa: SLF001
    for segment_id, (_, _, thread) in entries:
        if segment_id not in alive and thread not in other_threads:
            _release(segment_id)


def _round_to_pages(nbytes: int) -> int:
    return max(-(-nbytes // mmap.PAGESIZE), 1) * mmap.PAGESIZE


def left_names(folder: str) -> list[tuple[str, os.stat_result]]:
    """Returns names of segments whose creators are gone, with the state of each file.

    Creators that were killed in the microseconds between creating and unlinking a name leave it, of
    an empty file.
    """
    names = []
    with suppress(OSError):  # no such folder
        for entry in os.scandir(folder):
            with suppress(OSError):  # unlinked meanwhile
                match = _NAME.fullmatch(entry.name)
                if match is not None and not _runs(int(match[1], 16)):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode) and status.st_size == 0:
                        names.append((entry.name, status))
    return names


def sweep_names() -> None:
    """Removes the names that killed processes of this user have left; see `left_names`.

    Process ids of another container, with the same `/dev/shm`, mean nothing here, but a name of its
    processes is not as old.
    """
    for name, status in left_names(_SHM):
        if status.st_uid == os.geteuid() and time.time() - status.st_mtime > _STALE_SECONDS:
            with suppress(OSError):
                os.unlink(f"{_SHM}/{name}")


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # of another user
        return True
    return True


def has_room(nbytes: int) -> bool:
    """Returns whether `nbytes` of shared memory may be used for optional purposes: half of what
    is there must stay free.
    """
    if _opener(nbytes) is _open_posix:
        return _fits_shm(nbytes, leaving=sys.maxsize)
    return nbytes <= memory.available().nbytes // 2


def describe() -> str:
    """Returns in words where segments come from, and how much memory is left for them."""
    try:
        _opener(0)
    except SharedMemoryError as error:
        return f"none: {error}"
    files = f"memory files (memfd), {memory.available().nbytes / 2**30:.2f} GiB available"
    match os.environ.get(SWITCH, ""):
        case "posix" | "memfd" as asked:
            return (
                f"{files if asked == 'memfd' else f'POSIX shared memory in {_SHM}'}; by "
                f"{SWITCH}={asked}"
            )
        case _ if posix_ipc is None:
            return f"{files}; posix_ipc cannot be imported ({_missing})"
        case _:
            return f"POSIX shared memory; where {_SHM} is too small, {files}"


def allow_descriptors() -> bool:
    """Raises the soft limit of open files to the hard limit; returns whether that raised it."""
    try:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == hard:
            return False
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # the kernel's own limit is lower, or a sandbox refuses prlimit
        return False
    return True


@named_by_base
class _NoDescriptorError(SharedMemoryError):
    """The process has reached its limit of open files."""


def _with_descriptors(make: Callable[[], _T]) -> _T:
    """Calls `make`; if it runs out of descriptors, closes those left over, raises the limit and
    calls it again.
    """
    try:
        return make()
    except _NoDescriptorError:
        before = len(_descriptors)
        close_orphans()
        if not allow_descriptors() and len(_descriptors) == before:
            raise
        return make()


def _make(segment_id: int, size: int, nbytes: int) -> tuple[int, mmap.mmap]:
    # registered at once, so that `close_orphans` finds it if an exception follows
    with held_signals():
        opener = _opener(size)
        fd = opener(nbytes)
        _descriptors[segment_id] = fd, os.getpid(), threading.get_ident()
    try:
        if opener is _open_memfd and posix_ipc is not None and not os.environ.get(SWITCH):
            log.debug(
                "%d bytes of shared memory are a memory file, since %s has too little room",
                nbytes,
                _SHM,
            )
        _reserve(fd, 0, size, nbytes)
        return fd, _map(fd, size, populate=True)
    except BaseException:
        with held_signals():
            del _descriptors[segment_id]
            os.close(fd)
        raise


def _opener(size: int) -> Callable[[int], int]:
    match os.environ.get(SWITCH, ""):
        case "memfd":
            return _open_memfd
        case "posix":
            if posix_ipc is None:
                raise SharedMemoryError(
                    f"{SWITCH}=posix needs posix_ipc, which cannot be imported ({_missing}); "
                    "unset it."
                )
            return _open_posix
        case "":
            if posix_ipc is not None and _fits_shm(size, leaving=_LEFT):
                return _open_posix
            return _open_memfd
        case choice:
            raise SharedMemoryError(
                f'{SWITCH} must be "posix" or "memfd", or not be set; got {choice!r}.'
            )


def _fits_shm(nbytes: int, *, leaving: int) -> bool:
    """Returns whether /dev/shm is writable, with `nbytes` above `leaving` or half of its size."""
    try:
        status = os.statvfs(_SHM)
    except OSError:
        return False
    free, total = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
    if total > 0 and free - nbytes < min(total // 2, leaving):
        return False
    return os.access(_SHM, os.W_OK)


def _new_name() -> str:
    return f"{_PREFIX}{os.getpid():08x}{secrets.token_hex(8)}"


def _open_posix(nbytes: int) -> int:
    # 64 random bits make the name unique, so it may be unlinked even if Ctrl-C leaves open whether
    # it was created.
    name = _new_name()
    try:
        opened = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600, size=0)
    except (OSError, posix_ipc.Error) as error:
        raise _cannot_have(nbytes, error) from error
    finally:
        with suppress(posix_ipc.ExistentialError, OSError):  # the segment was not created
            posix_ipc.unlink_shared_memory(name)
    return int(opened.fd)


def _open_memfd(nbytes: int) -> int:
    try:
        fd = os.memfd_create(_new_name(), os.MFD_CLOEXEC)
    except OSError as error:
        if error.errno in _REFUSALS:
            raise _refused("memfd_create", nbytes, error) from error
        raise _cannot_have(nbytes, error) from error
    os.fchmod(fd, 0o600)  # it has 0o777
    return fd


def _reserve(fd: int, start: int, stop: int, nbytes: int) -> None:
    free, needed = _free_bytes(fd), stop - start
    if free is not None and needed > free:  # else it would fill /dev/shm before it fails
        raise _no_space(nbytes, free)
    if needed >= _LARGE:
        _check_available(needed, nbytes, machine=free is None)
    try:
        for offset in range(start, stop, _RESERVE_STEP):
            length = min(_RESERVE_STEP, stop - offset)
            os.posix_fallocate(fd, offset, length)
            # the second call makes tmpfs clear the pages now, not at first touch
            os.posix_fallocate(fd, offset, length)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.ENOMEM}:
            os.ftruncate(fd, start)  # frees the pages before free bytes are counted for the message
            raise _no_space(nbytes, _free_bytes(fd)) from error
        if error.errno in _REFUSALS:
            raise _refused("posix_fallocate", nbytes, error) from error
        raise _cannot_have(nbytes, error) from error


def _check_available(needed: int, nbytes: int, *, machine: bool) -> None:
    """Raises an error for more memory than is available: the kernel would kill processes.

    What the machine has available is a low estimate, for want of a limit.
    """
    room = memory.available(machine=machine)
    if needed > room.nbytes:
        raise SharedMemoryError(
            f"{nbytes:,} bytes of shared memory were requested, but {room.limit} has "
            f"{room.nbytes:,} bytes left. Free Data that is no longer needed (free_memory()), or "
            f"{room.remedy}."
        )


def _free_bytes(fd: int) -> int | None:
    """Returns the free bytes of the file system of `fd`; None if it has no limit of its own."""
    status = os.fstatvfs(fd)
    return status.f_bavail * status.f_frsize if status.f_blocks else None


def _map(fd: int, size: int, *, populate: bool, writable: bool = True) -> mmap.mmap:
    # Filling the page table at once takes 0.1 s per GiB of cleared pages; page faults at the first
    # write take 0.3 to 2.5 s.
    flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if populate else 0)
    # without it, a duplicate of fd is kept open
    options = {"trackfd": False} if sys.version_info >= (3, 13) else {}
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    try:
        mapping = mmap.mmap(fd, size, flags=flags, prot=access, **options)
    except (OSError, ValueError) as error:
        raise _cannot_have(size, error) from error
    with suppress(OSError):
        # a rank that crashes would write all Data into its core file
        mapping.madvise(mmap.MADV_DONTDUMP)
    return mapping


def _address_range(mapping: mmap.mmap) -> tuple[int, int]:
    return np.lib.array_utils.byte_bounds(np.frombuffer(mapping, np.uint8))


def _map_over(mapping: mmap.mmap, access: int, flags: int, fd: int) -> None:
    """Replaces a mapping atomically: other threads see either the old mapping or the new one."""
    start, stop = _address_range(mapping)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    map_fixed = 0x10  # <sys/mman.h>; not in the mmap module
    if libc.mmap(start, stop - start, access, map_fixed | flags, fd, 0) != start:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _no_space(nbytes: int, free: int | None) -> SharedMemoryError:
    if free is None:
        shortage, remedy = "the machine is out of memory", memory.available().remedy
    else:
        shortage = f"/dev/shm has {free:,} bytes free"
        remedy = (
            "enlarge /dev/shm: mount -o remount,size=<bytes> /dev/shm as root, or docker run "
            "--shm-size=<bytes> for a container"
        )
    return SharedMemoryError(
        f"{nbytes:,} bytes of shared memory were requested, but {shortage}. Free Data that is no "
        f"longer needed (free_memory()), or {remedy}."
    )


def _refused(call: str, nbytes: int, error: OSError) -> SharedMemoryError:
    """Returns the error for a call that a sandbox refuses, without another way to shared memory."""
    return SharedMemoryError(
        f"{nbytes:,} bytes of shared memory were requested, but the system refuses {call}: "
        f"{error}. Let the sandbox (seccomp) allow it, or let {_SHM} be writable and larger, with "
        "posix_ipc installed."
    )


def _cannot_have(nbytes: int, error: Exception) -> SharedMemoryError:
    # posix_ipc raises an OSError without an errno when descriptors run out.
    if getattr(error, "errno", None) in {errno.EMFILE, errno.ENFILE} or "files" in str(error):
        return _NoDescriptorError(
            f"{nbytes:,} bytes of shared memory were requested, but the process has no file "
            "descriptor left. Every Data and every Variable uses one or two: free some, or raise "
            "the limit with ulimit -Hn."
        )
    limit = ""
    if getattr(error, "errno", None) == errno.EFBIG:
        limit = (
            " The limit of file sizes (`ulimit -f`) holds for shared memory too: raise "
            "it, or pass less at once."
        )
    return SharedMemoryError(f"cannot allocate {nbytes:,} bytes of shared memory: {error}.{limit}")
