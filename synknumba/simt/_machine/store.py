"""On-disk store of compiled kernels.

    <directory>/<key>       one kernel for one set of argument types: a header line, a checksum, a pickle; or nothing after the
                            checksum: a kernel that the front end has accepted
    <directory>/package/    the package's own compiled functions (`_wire/compiled.py`), in a store of their own
    <directory>/.lock-00    ... .lock-ff: by the key's first two digits; the lock's holder compiles, others wait for the file

Files are written under a temporary name and then renamed, so a reader sees a complete file or none.
A damaged file (truncated, written by another program, owned by another user) counts as absent and
is replaced. No operation raises on I/O errors: if the directory is not writable, kernels are
compiled again, and the script is warned once.

Unpickling runs code, and the kernel in the pickle is code. Only files are read that this user owns
and no other user can write to, in a directory of which the same holds.
"""  # noqa: E501

import contextlib
import fcntl
import hashlib
import os
import re
import stat
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from synknumba._errors import ArgumentError, depth_of_script

# Environment variable that disables reading and writing, and its values.
SWITCH = "SYNKNUMBA_CACHE"
_OFF = frozenset({"0", "off", "false", "no"})
_ON = frozenset({"", "1", "on", "true", "yes"})

LARGEST_TOTAL = 512 << 20  # bytes; about 20,000 kernels
# bytes of one; a larger file, perhaps a sparse one beyond the memory, is not read
LARGEST = 64 << 20

# The lock is held while one kernel compiles, seconds at most. A process that waits longer compiles
# the kernel itself.
LOCK_SECONDS = 60.0
_POLL_SECONDS = 0.005

# Resolution of the last-use time, kept as the file's mtime, so that a hit seldom writes.
_USE_SECONDS = 3600.0

_MAGIC = b"synknumba kernel 1\n"
_HEADER = len(_MAGIC) + 32  # bytes before the payload
# names of kernels, which are SHA-256 digests, and of temporary files
_OURS = re.compile(r"[0-9a-f]{64}|\.new-\d+-\d+")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def directory() -> Path | None:
    """Returns the cache directory; None if the cache is disabled or there is no home directory.

    The first that is set: `$SYNKNUMBA_CACHE_DIR`, `$NUMBA_CACHE_DIR/synknumba`,
    `$XDG_CACHE_HOME/synknumba`, else `~/.cache/synknumba`.

    Raises:
        ArgumentError: `$SYNKNUMBA_CACHE` is no value that it may have.
    """
    switch = os.environ.get(SWITCH, "")
    if switch.strip().lower() in _OFF:
        return None
    if switch.strip().lower() not in _ON:
        raise ArgumentError(f"{SWITCH} must be 0 or off, or 1 or on, got {switch!r}")
    if own := os.environ.get("SYNKNUMBA_CACHE_DIR"):
        return Path(os.path.expanduser(own))  # Path.expanduser raises for unknown users
    for variable in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        if base := os.environ.get(variable):
            return Path(base) / "synknumba"
    try:
        return Path.home() / ".cache" / "synknumba"
    except RuntimeError:
        return None


class Usage(NamedTuple):
    """Number of kernels in a directory, and their total size in bytes."""

    kernels: int
    nbytes: int


class KernelStore:
    """A directory of compiled kernels, created when the first kernel is written."""

    _pruned: set[Path] = set()  # noqa: RUF012  # per process: each directory is pruned once
    # process that warns if nothing can be written, not the ranks that it forks; 0 once it has
    _warning_process = os.getpid()

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, key: str) -> bytes | None:
        """Returns the payload of the key; None if absent, damaged, or writable by another user."""
        try:
            if not is_ours(self.path.stat()):
                return None
            descriptor = os.open(
                self.path / key, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            )
            try:  # `open` does not close the descriptor of a directory, which it refuses
                status = os.fstat(descriptor)
                if (
                    not stat.S_ISREG(status.st_mode)
                    or not is_ours(status)
                    or status.st_size > LARGEST
                ):
                    return None
                with open(descriptor, "rb", closefd=False) as file:
                    content = file.read()
            finally:
                os.close(descriptor)
            if time.time() - status.st_mtime > _USE_SECONDS:
                os.utime(self.path / key)
        except OSError:
            return None
        head, payload = content[:_HEADER], content[_HEADER:]
        return payload if head == _MAGIC + hashlib.sha256(payload).digest() else None

    def write(self, key: str, payload: bytes) -> bool:
        """Writes the payload under the key. Returns whether it succeeded."""
        if len(payload) > LARGEST - _HEADER:
            return False
        temporary = self.path / f".new-{os.getpid()}-{time.monotonic_ns()}"
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not is_ours(self.path.stat()):
                self._warn("others can write to it")
                return False
            descriptor = os.open(
                temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            self._warn(error)
            return False
        try:
            with open(descriptor, "wb") as file:
                file.write(_MAGIC + hashlib.sha256(payload).digest() + payload)
            temporary.replace(self.path / key)
        except OSError as error:  # such as a full disk
            with contextlib.suppress(OSError):
                temporary.unlink()
            self._warn(error)
            return False
        if self.path not in KernelStore._pruned:
            KernelStore._pruned.add(self.path)
            self.prune(LARGEST_TOTAL)
        return True

    def _warn(self, reason: str | OSError) -> None:
        """Warns that kernels are not kept, once in a script; not of a directory that was deleted
        meanwhile, as it may be.
        """
        is_deleted = isinstance(reason, FileNotFoundError)
        if is_deleted or KernelStore._warning_process != os.getpid():
            return
        KernelStore._warning_process = 0
        warnings.warn(
            f"compiled kernels are not kept, and every process compiles its own: {self.path} "
            f"cannot be used ({getattr(reason, 'strerror', reason)}); set SYNKNUMBA_CACHE_DIR to a "
            f"directory of yours, or {SWITCH}=0 to keep none",
            RuntimeWarning,
            stacklevel=depth_of_script(),
        )

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Waits up to `LOCK_SECONDS` until no other process compiles the kernel, then holds the
        lock.

        Does not wait where file locks are unsupported, nor in a directory that other users can
        write to: nothing is read from it, and its locks may be held for ever. The operating system
        releases the lock of a process that ends.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if is_ours(self.path.stat()):
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptor = os.open(self.path / f".lock-{key[:2]}", flags, 0o600)
            else:
                descriptor = -1
        except OSError:
            descriptor = -1
        if descriptor < 0:
            yield
            return
        try:
            _wait_for(descriptor)
            yield
        finally:
            os.close(descriptor)

    def usage(self) -> Usage:
        """Returns the number of kernels and their total size."""
        sizes = [
            status.st_size
            for name, status in self._files()
            if not name.startswith(".") and status.st_size > _HEADER and self._has_header(name)
        ]
        return Usage(len(sizes), sum(sizes))

    def prune(self, largest_total: int) -> None:
        """Removes the least recently used kernels until at most `largest_total` bytes remain,
        and stale temporary files.
        """
        files = sorted(self._files(), key=lambda file: file[1].st_mtime)
        kernels = [(name, status) for name, status in files if not name.startswith(".")]
        excess = sum(status.st_size for _, status in kernels) - largest_total
        doomed: list[tuple[str, int]] = []
        for name, status in kernels:
            if excess <= 0:
                break
            excess -= status.st_size  # also of a file that is no kernel, which was counted
            if self._has_header(name):
                doomed.append((name, status.st_size))
        while doomed and excess + doomed[-1][1] <= 0:
            excess += doomed.pop()[1]
        old = time.time() - _USE_SECONDS
        for name, status in files:
            if name.startswith(".new-") and status.st_mtime < old and self._has_header(name):
                doomed.append((name, status.st_size))
        for name, _ in doomed:
            with contextlib.suppress(OSError):
                (self.path / name).unlink()

    def clear(self) -> Usage:
        """Removes all kernels, and stale temporary files; returns what was removed. Other files
        in the directory stay.
        """
        before = self.usage()
        self.prune(0)
        after = self.usage()
        return Usage(before.kernels - after.kernels, before.nbytes - after.nbytes)

    def _files(self) -> list[tuple[str, os.stat_result]]:
        """Returns the files that have names of the store.

        The directory may have others, if the user has named one of theirs, also such: see
        `_has_header`.
        """
        found: list[tuple[str, os.stat_result]] = []
        with contextlib.suppress(OSError), os.scandir(self.path) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode) and _OURS.fullmatch(entry.name):
                        found.append((entry.name, status))
        return found

    def _has_header(self, name: str) -> bool:
        """Returns whether a file begins as kernels do; a temporary file may have a part of the
        header only.
        """
        try:
            with open(self.path / name, "rb", opener=_opened_file) as file:
                head = file.read(len(_MAGIC))
        except OSError:
            return False
        return head == _MAGIC or (name.startswith(".new-") and _MAGIC.startswith(head))


def is_ours(status: os.stat_result) -> bool:
    """Returns whether only this user can have written the file or directory."""
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_WRITE


def _opened_file(path: str, flags: int) -> int:
    """Opens no link, and waits for no writer of a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _wait_for(descriptor: int) -> None:
    end = time.monotonic() + LOCK_SECONDS
    while time.monotonic() < end:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_POLL_SECONDS)
        except OSError:  # file system without locks
            return
        else:
            return
