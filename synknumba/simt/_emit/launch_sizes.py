"""The grid, the block and the bytes of dynamic shared memory that a kernel is launched with."""

from typing import Any, cast

import numpy as np

from synknumba._errors import LaunchError
from synknumba.simt._emit.storage import MAX_BLOCK

Dim3 = tuple[int, int, int]

# CUDA's limits on a block, for each axis.
MAX_BLOCK_AXES: Dim3 = (1024, 1024, 64)


def three_axes(size: Any, name: str) -> Dim3:
    """A grid or block size with all three axes.

    Raises:
        LaunchError: it is neither an integer nor a tuple of one to three.
    """
    parts = tuple(size) if isinstance(size, (tuple, list)) else (size,)
    if not 1 <= len(parts) <= 3 or not all(isinstance(part, (int, np.integer)) for part in parts):
        message = f"{name} must be an integer or a tuple of one to three integers, got {size!r}"
        raise LaunchError(message)
    return cast("Dim3", (*(int(part) for part in parts), 1, 1)[:3])


def dynamic_bytes(size: Any) -> int:
    """The bytes of dynamic shared memory of a launch.

    Raises:
        LaunchError: it is no integer, or negative.
    """
    if not isinstance(size, (int, np.integer)) or size < 0:
        message = f"the bytes of dynamic shared memory must be an integer not below 0, got {size!r}"
        raise LaunchError(message)
    return int(size)


def check_sizes(grid: Dim3, block: Dim3) -> None:
    """Refuses a grid or a block that CUDA does not accept.

    Raises:
        LaunchError: a size is below one, or the block is too large.
    """
    if min(grid) < 1 or min(block) < 1:
        message = f"grid and block must be at least 1 along each axis, got grid={grid} and block={block}"
        raise LaunchError(message)
    if any(size > most for size, most in zip(block, MAX_BLOCK_AXES, strict=True)) or block[0] * block[1] * block[2] > MAX_BLOCK:
        message = f"a block has at most {MAX_BLOCK} threads, and at most {MAX_BLOCK_AXES} along its axes; got block={block}"
        raise LaunchError(message)
