"""Copies of large host arrays: by several threads, in pieces.

    copy_into(target, source)     memory in use  ──pieces of 256 MiB──> memory in use
    private_copy(source)          memory in use  ──pieces of 16 MiB───> new memory

One thread moves 5 to 12 GB/s, a fraction of what the memory of a machine with GPUs gives. The threads have ended when a copy
returns: ranks must not be forked beside threads that may hold a lock.
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

MOST_THREADS = 8  # with more, the memory is what limits
SHARE = 16 << 20  # bytes that are worth a thread: 1.5 ms, against 0.1 ms to start and end one

# glibc writes past the caches where one memcpy is larger than most of the last-level cache, which is a third faster. The kernel
# clears memory page by page at its first touch; pieces that fit the cache find it there: 7 to 9 instead of 5 GB/s.
PIECE = 256 << 20
NEW_PIECE = 16 << 20

_RAISING = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)  # what has handlers that raise; holding all back takes 0.14 ms


def copy_into(target: Array, source: Array, casting: Casting = "same_kind") -> None:
    """`np.copyto`, in less time where the arrays are large. An interrupt leaves the target with a part of the source.

    Args:
        target: any layout and dtype; its memory should have been touched before.
        source: of a shape that broadcasts to the target's.
        casting: what dtypes may be cast, as NumPy calls it.
    """
    if target.nbytes < 2 * SHARE or np.may_share_memory(target, source):
        np.copyto(target, source, casting=casting)
    else:
        _copy(target, np.broadcast_to(source, target.shape), casting, PIECE)


def private_copy(source: Array) -> Array:
    """A C-contiguous copy in memory of its own."""
    if source.nbytes < 2 * SHARE:
        return source.copy()
    target = np.empty(source.shape, source.dtype)
    _copy(target, source, "same_kind", NEW_PIECE)
    return target


def _copy(target: Array, source: Array, casting: Casting, piece: int) -> None:
    threads = max(1, min(_cores(), MOST_THREADS, target.nbytes // SHARE))
    work = deque(_pieces(target.shape, max(threads, math.ceil(target.nbytes / piece))))
    failures: list[BaseException] = []

    def copy_pieces() -> None:
        with suppress(IndexError):  # of popleft, when none is left
            while True:
                part = work.popleft()
                np.copyto(target[part], source[part], casting=casting)

    def help_out() -> None:
        try:
            copy_pieces()
        except BaseException as error:  # noqa: BLE001  # raised again in the thread that asked for the copy
            failures.append(error)
            work.clear()

    # In a thread's own context NumPy would not know the np.errstate around this.
    helpers = [threading.Thread(target=contextvars.copy_context().run, args=(help_out,)) for _ in range(threads - 1)]
    try:
        if helpers:
            _start(helpers)
        copy_pieces()
    finally:
        work.clear()  # an interrupt waits for the pieces under way, and no others
        for helper in helpers:
            if helper.is_alive():
                helper.join()
    if failures:
        raise failures.pop()


def _start(threads: list[threading.Thread]) -> None:
    """Starts threads, with signals held back: `start()` that is interrupted halfway would keep the arrays for good."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, _RAISING)  # and in the threads, so that signals come to this one
        for thread in threads:
            with suppress(RuntimeError):  # where the process may have no more threads, those there do it all
                thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _pieces(shape: Shape, count: int) -> list[Any]:
    """Indices that cut an array into about `count` parts: along the first axis that is long enough, else the longest."""
    axis = next((i for i, length in enumerate(shape) if length >= count), int(np.argmax(shape)))
    length = shape[axis]
    count = min(count, length)
    cuts = [length * i // count for i in range(count + 1)]
    return [(slice(None),) * axis + (slice(a, b),) for a, b in pairwise(cuts)]


def _cores() -> int:
    # A cgroup's quota is not looked at: threads beyond it take turns, and the copy takes as long as with fewer.
    return len(os.sched_getaffinity(0))
