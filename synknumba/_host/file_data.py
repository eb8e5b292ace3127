"""`FileData`: an array over a file that the script has mapped, such as
`np.load(..., mmap_mode="r")`, without a copy.

    array ──address──> /proc/self/maps ──device, inode──> descriptor of the same file ──Segment.of_file──> ranks map it too

The file is identified by the mapping that the array lies in, not by its path, which may lead to
another file by now: what is opened is mapped, and used only if `/proc/self/maps` shows both
mappings to be of one file. So ranks see what the script sees, also of a file that was renamed,
replaced or deleted since. An array that cannot be shared in this way, as one that the script may
change, is copied into shared memory like any other, and the logger "synknumba" gets the reason.

Reading a mapped file beyond its end would kill the reader (SIGBUS), so its size is looked up before
each call, also where the array is copied, which the script would not survive. Its time of
modification is the version of its contents, by which GPUs know whether they hold its rows already.
"""  # noqa: E501

import mmap
import os
import stat
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, final

import numpy as np

from synknumba._errors import DataError, SharedMemoryError
from synknumba._host.data import Data, dtype_key, next_version
from synknumba._host.log import log
from synknumba._host.segment import Segment, is_writable
from synknumba._types import Array, Shape, WeakTable

# of an array of Arrow; to search 800 mappings takes 1 ms, and to copy so many bytes 5 ms
SEARCHED_BYTES = 16 << 20

_MAPS, _DESCRIPTORS = "/proc/self/maps", "/proc/self/fd"


class NotShareableError(Exception):
    """An array cannot be shared with the ranks without a copy; the text says why."""


@final
class MappedFile:
    """A file that the ranks can map.

    Attributes:
        path: where the file was when it was mapped, for messages.
        segment: the mapping of all of it.
        is_fixed: whether the script has mapped it for reading only, and cannot change it.
    """

    __slots__ = ("__weakref__", "_seen", "_version", "is_fixed", "path", "segment")

    def __init__(self, path: str, segment: Segment, *, is_fixed: bool) -> None:
        self.path, self.segment, self.is_fixed = path, segment, is_fixed
        self._seen: tuple[int, int] | None = None
        self._version = 0

    def version(self, stop: int) -> int:
        """Returns the version of the contents, 0 if the script may change them; raises `DataError`
        if the file has fewer than `stop` bytes.
        """
        status = os.fstat(self.segment.fd)
        if status.st_size < stop:
            raise _truncated(self.path, status.st_size, stop)
        if not self.is_fixed:
            return 0
        state = (status.st_mtime_ns, status.st_size)
        if state != self._seen:
            self._seen, self._version = state, next_version()
        return self._version


def _truncated(path: str, size: int, stop: int) -> DataError:
    return DataError(
        f"the file {path} has been truncated to {size:,} bytes since it was opened, and the array "
        f"ends at byte {stop:,}; open it again"
    )


@final
class FileData(Data):
    """A `Data` over a mapped file: read-only, and frozen if the script's mapping is read-only."""

    __slots__ = ("_file", "_place", "_stop")

    def __init__(
        self,
        file: MappedFile,
        like: Array,
        offset: int,
        *,
        minibatch: bool = False,
        name: str | None = None,
    ) -> None:
        """Makes the `Data` of `like`, an array whose first byte is `offset` bytes into the file."""
        self.name = name
        self._minibatch = minibatch
        self._dtype = like.dtype.newbyteorder("=")
        self._file, self._segment = file, file.segment
        self._stop = offset + like.nbytes
        self._alloc_size = self._used = like.size
        self._view = self._segment.array(self._dtype, like.shape, offset)
        self._version = 0
        key = dtype_key(self._dtype)
        self._place: tuple[int, int, Shape, Any] = (self._segment.id, offset, like.shape, key)

    @property
    def _offset(self) -> int:  # type: ignore[override]  # of the file
        return self._place[1]

    @property
    def path(self) -> str:
        """Where the file was when it was mapped."""
        return self._file.path

    def renew_version(self) -> bool:
        """Looks at the file; returns whether its contents have the same version as before."""
        before = self._version
        self._version = self._file.version(self._stop)
        return self._version == before

    @property
    def _layout(self) -> tuple[Any, ...]:  # type: ignore[override]  # looks at the file, each time
        self._version = self._file.version(self._stop)
        return (*self._place, self._version, self._minibatch)

    def _set_layout(self) -> None:
        pass  # see above

    @property
    def frozen(self) -> bool:
        """Whether the script has mapped the file for reading only."""
        return self._file.is_fixed

    def freeze(self) -> None:
        """Does nothing if the file is mapped for reading only; refused otherwise, since the
        script may write to it.
        """
        if not self._file.is_fixed:
            raise DataError(
                f"{self._label()} is over {self.path}, which the script may write to; map it "
                f'with mode "r" to freeze it'
            )

    def thaw(self) -> NoReturn:
        """Refused: ranks only read the file."""
        self._check_thawed()

    def _check_thawed(self) -> NoReturn:
        raise DataError(
            f"{self._label()} is over the file {self.path}, and is only read; take a copy, "
            f"as synk.data(np.array(d))"
        )


def over_file(array: Array, name: str) -> FileData | None:
    """Returns an array in a file that is mapped for reading only as `Data` without a copy; None if
    it is to be copied.

    Raises:
        DataError: the file is shorter than the array; `name` is that of the array.
    """
    refuse_truncated(array, name)
    if not is_in_file(array):
        return None
    try:
        return file_data(array)
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    except NotShareableError as reason:
        log.debug(
            "%s, %s %s in a mapped file, is copied into shared memory: %s",
            name,
            array.dtype,
            array.shape,
            reason,
        )
        return None


def refuse_truncated(array: Array, name: str) -> None:
    """Raises `DataError` for an array in a mapped file that is shorter than the array by now:
    reading would end the process.

    For those that are copied, too; of the mappings of Arrow, only files that ranks would map are
    looked at, by `file_data`.
    """
    root = _root(array)
    if not isinstance(root, mmap.mmap) or not array.size:
        return
    area = _areas.get(root)
    if area is None:
        with suppress(OSError, ValueError, BufferError):  # no /proc, or closed
            (area,) = _areas_at(np.frombuffer(root, np.uint8).ctypes.data)
        if area is None:
            return
        _areas[root] = area
    stop = np.lib.array_utils.byte_bounds(array)[1] - area.origin
    size = stop
    with suppress(OSError, ValueError):  # it keeps no descriptor
        size = root.size()
    if size < stop:
        raise DataError(f"{name}: {_truncated(area.path.removesuffix(' (deleted)'), size, stop)}")


def file_data(array: Array, *, minibatch: bool = False, name: str | None = None) -> FileData:
    """Returns an array in a mapped file as `Data` without a copy.

    Raises:
        NotShareableError: it is in no such file, or not in a form that ranks can use.
        DataError: the file is shorter than the array.
    """
    reason = _unfit(array)
    if reason:
        raise NotShareableError(reason)
    root = _root(array)
    address = array.ctypes.data
    location = None
    if isinstance(root, mmap.mmap):
        location = _roots.get(root)
    if location is None:
        location = _find(address, address + array.nbytes)
        if isinstance(root, mmap.mmap):
            _roots[root] = location
    file, start = location
    # the file has grown since another array of it was shared
    if address - start + array.nbytes > file.segment.size:
        file, start = _find(address, address + array.nbytes)
    data = FileData(file, array, address - start, minibatch=minibatch, name=name)
    file.version(address - start + array.nbytes)
    return data


_areas: "WeakTable[mmap.mmap, _Area]" = WeakTable()
_roots: WeakTable[mmap.mmap, tuple[MappedFile, int]] = WeakTable()
# by device, inode and whether it is mapped for reading only; callbacks in C remove those that have
# gone
_files: dict[tuple[str, str, bool], weakref.ref[MappedFile]] = {}


def _root(array: Array) -> Any:
    """Returns the object that owns the memory of an array, if it is not NumPy."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        return base.obj
    return base


def is_in_file(array: Array) -> bool:
    """Returns whether an array may lie in a file that the script has mapped for reading only."""
    root = _root(array)
    if isinstance(array, np.ma.MaskedArray):
        return False
    # Arrow's memory may be of a file, pyarrow.memory_map
    if type(root).__module__ == "pyarrow.lib":
        return array.nbytes >= SEARCHED_BYTES and not array.flags.writeable
    if isinstance(root, mmap.mmap):
        with suppress(BufferError, TypeError, ValueError):  # closed, or no buffer
            return memoryview(root).readonly
    return False


def _unfit(array: Array) -> str:
    """Returns why ranks cannot use the memory of an array as it is; empty if they can."""
    if isinstance(array, np.ma.MaskedArray):
        return "it has a mask"
    if not array.flags.c_contiguous:
        return "its rows are not C-contiguous"
    if not array.flags.aligned:
        return f"it does not start at a multiple of {array.dtype.alignment} bytes"
    if not array.dtype.isnative:
        return f"its byte order is that of another machine ({array.dtype})"
    if array.dtype.hasobject or array.size == 0 or array.ndim == 0:
        return "it has no rows with items of a fixed size"
    return ""


@dataclass(frozen=True, slots=True)
class _Area:
    """A line of /proc/self/maps."""

    start: int
    access: str
    offset: int  # in the file, of `start`
    file: tuple[str, str]  # device, inode
    path: str

    @property
    def is_fixed(self) -> bool:
        """Whether the memory is only read."""
        return "w" not in self.access

    @property
    def origin(self) -> int:
        """The address that byte 0 of the file would have."""
        return self.start - self.offset


def _areas_at(*addresses: int) -> list[_Area | None]:
    """Returns the mappings of files that have these addresses; None where there is none."""
    areas: list[_Area | None] = [None] * len(addresses)
    with open(_MAPS, encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            low, high = (int(edge, 16) for edge in line[: line.index(" ")].split("-"))
            for index, address in enumerate(addresses):
                if low <= address < high:
                    _, access, offset, device, inode, *path = line.rstrip("\n").split(maxsplit=5)
                    if inode == "0":  # not of a file
                        continue
                    file = device, inode
                    areas[index] = _Area(low, access, int(offset, 16), file, "".join(path))
    return areas


def _find(start: int, stop: int) -> tuple[MappedFile, int]:
    """Returns the file that memory is mapped from, and the address of its byte 0."""
    try:
        area, last = _areas_at(start, stop - 1)
    except OSError as error:
        raise NotShareableError(f"{_MAPS} cannot be read: {error}") from None
    if area is None or last is None:
        raise NotShareableError("its memory is not that of a file")
    if (last.file, last.origin) != (area.file, area.origin):
        raise NotShareableError("it lies in several mappings")
    if not area.is_fixed and area.access.endswith("p"):
        raise NotShareableError('its mapping is private to this process (mode "c")')
    nbytes = stop - area.origin
    key = (*area.file, area.is_fixed)
    file = _files.get(key, _gone)()
    if file is None or file.segment.size < nbytes:
        file = _opened(area, nbytes)
        _files[key] = weakref.ref(file, partial(_files.pop, key))
    return file, area.origin


def _gone() -> None:
    """Stands for a reference to a file that is not known."""


def _opened(area: _Area, nbytes: int) -> MappedFile:
    """Opens the file of a mapping again: by its path, or by another descriptor of it that this
    process has.

    Raises:
        NotShareableError: it is not there.
        DataError: it has fewer than `nbytes` bytes.
    """
    path = area.path.removesuffix(" (deleted)")
    for fd in _candidates(path, int(area.file[1])):
        try:
            status = os.fstat(fd)
            if status.st_ino == int(area.file[1]) and status.st_size < nbytes:
                raise _truncated(path, status.st_size, nbytes)
            if not stat.S_ISREG(status.st_mode) or status.st_size < nbytes:
                continue
            segment = Segment.of_file(os.dup(fd), status.st_size)
        except (OSError, SharedMemoryError):
            continue
        finally:
            os.close(fd)
        (mine,) = _areas_at(np.lib.array_utils.byte_bounds(segment.array(np.uint8, (1,)))[0])
        if mine is not None and mine.file == area.file:
            return MappedFile(path, segment, is_fixed=area.is_fixed)
        segment.close()
    raise NotShareableError(f"its file, {area.path}, was replaced, or cannot be opened again")


def _candidates(path: str, inode: int) -> Iterator[int]:
    """Yields descriptors, for reading, that may be of a file; the caller closes them."""
    with suppress(OSError):
        yield os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    for name in os.listdir(_DESCRIPTORS):
        link = f"{_DESCRIPTORS}/{name}"
        with suppress(OSError):  # closed since
            if os.stat(link).st_ino == inode:
                if is_writable(int(name)):
                    yield os.open(link, os.O_RDONLY | os.O_CLOEXEC)
                else:
                    yield os.dup(int(name))
