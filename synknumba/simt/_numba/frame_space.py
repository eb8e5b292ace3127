"""Space for the frames of deep calls, since CPython allocates it piece by piece.

CPython keeps the frames of a thread in chunks of 16 KiB, some fifty frames each. A loop that calls
functions just at the end of a chunk maps and unmaps the next chunk for each call
(https://github.com/python/cpython/issues/142183; late releases of 3.13 keep one chunk). Numba's
compiler calls hundreds of frames deep: the first calls of thirty small kernels mapped 900,000
chunks.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

SLOTS = (
    1 << 15
    # of 8 bytes; the chunk that holds such a frame is twice as large, and the rest is for the
    # frames above it
)


def with_frame_space(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function that calls deeply: all frames above it share one chunk of 256 KiB."""

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_stacksize=SLOTS)
    return wraps(function)(call)
