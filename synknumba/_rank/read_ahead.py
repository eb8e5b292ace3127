"""Reading ahead: a thread of a rank asks the kernel for the rows of the next slice while the present one is worked on.

    slice k:   ask for the rows of slice k + 1 ─→ thread: madvise(WILLNEED), which reads the file into the page cache
               work on the rows of slice k

The thread is started by the first request. It executes no Python while it reads, and `madvise` waits where the disk's queue is
full, which would hold up the rank itself.
"""

import ctypes
import mmap
import queue
import threading
from functools import cache, partial

import numpy as np

from synknumba._device import Step
from synknumba._types import Array


def read_ahead(rows: Array) -> Step:
    """Returns a step that asks for rows of a mapped file."""
    low, high = np.lib.array_utils.byte_bounds(rows)
    start = low & -mmap.PAGESIZE
    return partial(_ask, start, high - start, rows)


def _ask(start: int, nbytes: int, rows: Array) -> None:
    _requests().put((start, nbytes, rows))


@cache
def _requests() -> "queue.SimpleQueue[tuple[int, int, Array]]":
    """Returns the queue of requests, after starting the thread that serves them."""
    requests: queue.SimpleQueue[tuple[int, int, Array]] = queue.SimpleQueue()
    threading.Thread(target=_serve, args=(requests,), name="synknumba read ahead", daemon=True).start()
    return requests


def _serve(requests: "queue.SimpleQueue[tuple[int, int, Array]]") -> None:
    madvise = ctypes.CDLL(None).madvise  # without the GIL, unlike that of `mmap`
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    while True:
        start, nbytes, rows = requests.get()
        madvise(start, nbytes, mmap.MADV_WILLNEED)  # advice: if it fails, the rows are read when they are used
        del rows  # whose memory had to stay mapped
