"""Replacing a file as a whole: readers, and whoever comes after a crash, find the old contents or
the new ones.

folder/.synk-save-8f3k/       made, and locked as long as the process lives
folder/.synk-save-8f3k/new    written, with the permissions of the old file; on the disk
folder/file                   replaced by it, at once; on the disk
"""

import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = ".synk-save-"


@contextmanager
def replacing(path: str) -> Iterator[str]:
    """Yields the path of a file to write, which replaces the one at `path` at the end of the block;
    not after an error.

    A symbolic link stays one: the file that it leads to is replaced. Owner and permissions are
    those of the old file.

    Raises:
        OSError: the file cannot be written, as by `open(path, "w")`; or `path` is something other
            than a file.
    """
    target = Path(os.path.realpath(path))
    old = _writable(target, path)
    _remove_abandoned(target.parent)
    folder, lock = _make_folder(target.parent)
    try:
        new = folder / "new"
        yield str(new)
        _settle(new, old)
        new.replace(target)
        _sync_folder(target.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def check_writable(path: str) -> None:
    """Raises what `replacing` raises before its block, where that can be known."""
    _writable(Path(os.path.realpath(path)), path)


def _writable(target: Path, path: str) -> os.stat_result | None:
    """Returns the status of the file to be replaced; None if there is none."""
    if path.endswith(os.sep):  # `realpath` leaves it out
        raise IsADirectoryError(errno.EISDIR, "Is a folder; give the path of a file in it", path)
    try:
        old = target.stat()
    except FileNotFoundError:
        if not target.parent.exists():
            raise FileNotFoundError(
                errno.ENOENT, "No such folder; make it first", str(target.parent)
            ) from None
        return None
    if stat.S_ISDIR(old.st_mode):
        raise IsADirectoryError(errno.EISDIR, "Is a folder; give the path of a file in it", path)
    if not stat.S_ISREG(old.st_mode):
        raise OSError(errno.EINVAL, "Is not a regular file, and cannot be replaced", path)
    if not os.access(target, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise PermissionError(errno.EACCES, "Is not writable", path)
    return old


def _make_folder(parent: Path) -> tuple[Path, int]:
    """Makes a folder that this process has locked; returns its path, and the descriptor that
    holds the lock.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        # before it was locked, another process has taken it for abandoned
        with suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            # a file system without locks: what a killed process leaves is not removed then
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():
                return folder, lock
            os.close(lock)


def _settle(new: Path, old: os.stat_result | None) -> None:
    """Gives a new file its permissions, and waits until it is on the disk."""
    # what open() gives is known by a file that it makes: the mask of a process cannot be read
    if old is None:
        probe = os.open(new.with_name("mode"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        mode = os.fstat(probe).st_mode
        os.close(probe)
    else:
        mode = old.st_mode
    file = os.open(new, os.O_RDONLY)
    try:
        if old is not None and (old.st_uid, old.st_gid) != (
            os.fstat(file).st_uid,
            os.fstat(file).st_gid,
        ):
            with suppress(PermissionError):  # only root gives files away
                os.fchown(file, old.st_uid, old.st_gid)
        os.fchmod(file, stat.S_IMODE(mode))
        os.fsync(file)
    finally:
        os.close(file)


def _sync_folder(folder: Path) -> None:
    """Waits until the new entry of a folder is on the disk, where that can be asked for."""
    with suppress(PermissionError):  # one may write to a folder without reading it
        entry = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(entry)
        except OSError as error:
            if error.errno != errno.EINVAL:  # of file systems that do not have it
                raise
        finally:
            os.close(entry)


def _remove_abandoned(folder: Path) -> None:
    """Removes what processes left that were killed while they wrote: a folder that is not
    locked.
    """
    for abandoned in folder.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            lock = os.open(abandoned, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(abandoned, ignore_errors=True)
            finally:
                os.close(lock)
