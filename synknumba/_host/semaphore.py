"""A POSIX semaphore inside shared memory: it has no name, so nothing can be left behind and nobody else can open it.

It is made with `sem_init(3)`, shared between processes, in memory that they inherit. A named one, which Python's packages
offer, stands in `/dev/shm` for a moment, and stays there if its maker is killed in that moment.
"""

import ctypes
import errno
import os
import time
from typing import Any, final

NBYTES = 32  # sizeof(sem_t) on 64-bit Linux (glibc's and musl's bits/semaphore.h)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_libc = ctypes.CDLL(None, use_errno=True)
_CLOCK_MONOTONIC = ctypes.c_int(time.CLOCK_MONOTONIC)


@final
class Semaphore:
    """A counter that processes post and wait for.

    Args:
        address: of NBYTES bytes of zeroed shared memory, aligned to 8, which must outlive the semaphore.
    """

    def __init__(self, address: int) -> None:
        self._pointer = ctypes.c_void_p(address)
        if _libc.sem_init(self._pointer, 1, 0) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def post(self) -> None:
        """Adds one, and wakes a process that waits."""
        _libc.sem_post(self._pointer)

    def wait(self, seconds: float) -> bool:
        """Waits until it can take one; false when the time is up, or a signal came. Python's signal handlers then run."""
        if _wait_until is None:
            return self._wait_by_wall_clock(seconds)
        until = time.clock_gettime_ns(time.CLOCK_MONOTONIC) + int(seconds * 1e9)
        taken = _wait_until(self._pointer, _CLOCK_MONOTONIC, ctypes.byref(_Timespec(until // 10**9, until % 10**9)))
        return _was_taken(taken)

    def _wait_by_wall_clock(self, seconds: float) -> bool:
        until = time.time_ns() + int(seconds * 1e9)
        return _was_taken(_libc.sem_timedwait(self._pointer, ctypes.byref(_Timespec(until // 10**9, until % 10**9))))


# glibc has it since 2.30. Without it a wait follows the wall clock, and lasts longer when that is set back.
_wait_until: Any = getattr(_libc, "sem_clockwait", None)


def _was_taken(result: int) -> bool:
    if result == 0:
        return True
    code = ctypes.get_errno()
    if code in {errno.ETIMEDOUT, errno.EINTR}:
        return False
    raise OSError(code, os.strerror(code))
