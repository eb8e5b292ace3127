"""Multithreaded copies of large host arrays, in pieces.

    copy_into(target, source)     memory in use  ──pieces of 256 MiB──> memory in use
    private_copy(source)          memory in use  ──pieces of 16 MiB───> new memory

One thread copies 5 to 12 GB/s, a fraction of the memory bandwidth of a machine with GPUs. The
threads are joined before a copy
returns: ranks must not be forked while other threads may hold a lock.
"""

import contextvars
import math
import os
import signal
import threading
from collections import deque
from contextlib import suppress
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np

from synknumba._types import Array, Shape

Casting: TypeAlias = Literal["same_kind", "unsafe"]

MOST_THREADS = 8  # with more, memory bandwidth is the limit
# bytes that justify a thread: 1.5 ms of copying, against 0.1 ms to start and join it
SHARE = 16 << 20

# glibc uses non-temporal stores for a memcpy larger than most of the last-level cache, which is a
# third faster. In new memory the kernel clears each page at its first touch; if a piece fits the
# cache, the copy finds the cleared pages there: 7 to 9 instead of 5 GB/s.
PIECE = 256 << 20
NEW_PIECE = 16 << 20

# their handlers may raise; blocking all signals takes 0.14 ms
_RAISING = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGALRM,
)


def copy_into(target: Array, source: Array, casting: Casting = "same_kind") -> None:
    """Copies like `np.copyto`, with several threads for large arrays. An interrupt leaves the
    target partly written.

    The target's pages should have been touched before.
    """
    if target.nbytes < 2 * SHARE or np.may_share_memory(target, source):
        np.copyto(target, source, casting=casting)
    else:
        _copy(target, np.broadcast_to(source, target.shape), casting, PIECE)


def private_copy(source: Array) -> Array:
    """Returns a C-contiguous copy in newly allocated memory."""
    if source.nbytes < 2 * SHARE:
        return source.copy()
    target = np.empty(source.shape, source.dtype)
    _copy(target, source, "same_kind", NEW_PIECE)
    return target


def _copy(target: Array, source: Array, casting: Casting, piece: int) -> None:
    # A quota of a control group is ignored: threads beyond it share the cores, and take as long as
    # fewer would.
    threads = max(1, min(allowed_cores(), MOST_THREADS, target.nbytes // SHARE))
    work = deque(_pieces(target.shape, max(threads, math.ceil(target.nbytes / piece))))
    failures: list[BaseException] = []

    def copy_pieces() -> None:
        with suppress(IndexError):  # from popleft, when no piece is left
            while True:
                part = work.popleft()
                np.copyto(target[part], source[part], casting=casting)

    def help_out() -> None:
        try:
            copy_pieces()
        except BaseException as error:  # noqa: BLE001  # raised again in the calling thread
            failures.append(error)
            work.clear()

    # np.errstate is a context variable: without the caller's context, the threads would not see it.
    helpers = [
        threading.Thread(target=contextvars.copy_context().run, args=(help_out,))
        for _ in range(threads - 1)
    ]
    try:
        if helpers:
            _start(helpers)
        copy_pieces()
    finally:
        work.clear()  # after an interrupt, only the pieces being copied are waited for
        for helper in helpers:
            if helper.is_alive():
                helper.join()
    if failures:
        raise failures.pop()


def _start(threads: list[threading.Thread]) -> None:
    """Starts threads with signals blocked: a `start()` interrupted halfway would keep the arrays
    alive for ever.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # inherited by the threads, so that this thread gets the signals
        signal.pthread_sigmask(signal.SIG_BLOCK, _RAISING)
        for thread in threads:
            # thread limit reached: the running threads copy everything
            with suppress(RuntimeError):
                thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _pieces(shape: Shape, count: int) -> list[Any]:
    """Returns indices that cut an array into about `count` parts, along the first axis long
    enough, else the longest.
    """
    axis = next((i for i, length in enumerate(shape) if length >= count), int(np.argmax(shape)))
    length = shape[axis]
    count = min(count, length)
    cuts = [length * i // count for i in range(count + 1)]
    return [(slice(None),) * axis + (slice(a, b),) for a, b in pairwise(cuts)]


def allowed_cores() -> int:
    """Returns how many cores the affinity of this process allows; a sandbox may refuse to tell,
    and then all are.
    """
    try:
        return len(os.sched_getaffinity(0))
    except OSError:
        return os.cpu_count() or 1
