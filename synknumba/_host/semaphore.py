"""An unnamed POSIX semaphore in shared memory: no file can be left behind, and no other process can open it.

It is initialised with `sem_init(3)` as shared between processes, in memory that they inherit. Named semaphores, which Python
packages offer, appear in `/dev/shm` for a moment, and stay there if their creator is killed in that moment.
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

# In glibc since 2.30. Without it, waits follow the wall clock, and last longer when that is set back.
_clockwait: Any = getattr(_libc, "sem_clockwait", None)
_CLOCK = time.CLOCK_MONOTONIC if _clockwait else time.CLOCK_REALTIME


@final
class Semaphore:
    """A semaphore shared between processes, with an initial count of 0.

    Its address is that of NBYTES bytes of zeroed shared memory, aligned to 8 bytes, which must outlive the semaphore.
    """

    def __init__(self, address: int) -> None:
        self._pointer = ctypes.c_void_p(address)
        if _libc.sem_init(self._pointer, 1, 0) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def post(self) -> None:
        """Increments the semaphore and wakes a waiting process."""
        _libc.sem_post(self._pointer)

    def wait(self, seconds: float) -> bool:
        """Waits to decrement the semaphore; false on timeout or after a signal, whose Python handlers run next."""
        until = time.clock_gettime_ns(_CLOCK) + int(seconds * 1e9)
        when = ctypes.byref(_Timespec(until // 10**9, until % 10**9))
        if (_clockwait(self._pointer, _CLOCK, when) if _clockwait else _libc.sem_timedwait(self._pointer, when)) == 0:
            return True
        code = ctypes.get_errno()
        if code in {errno.ETIMEDOUT, errno.EINTR}:
            return False
        raise OSError(code, os.strerror(code))
