"""Launch configurations: grid, block, stream and dynamic shared memory, as `kernel[...]` takes
them.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import numpy as np

from synknumba._errors import ArgumentError, LaunchError
from synknumba._types import MAX_GRID, MAX_SMEM_BYTES
from synknumba.simt._library.words import MAX_BLOCK

Dim3 = tuple[int, int, int]


# Threads per block along each axis, CUDA's limits.
MAX_BLOCK_AXES: Dim3 = (1024, 1024, 64)


# Threads per block; what numba-cuda's `forall` chooses on most GPUs.
FORALL_BLOCK = 256


class Configuration(NamedTuple):
    """Grid, block, and bytes of dynamic shared memory of a launch."""

    grid: Dim3
    block: Dim3
    smem: int

    @classmethod
    def of(cls, config: Any, function: Callable[..., Any], launched: str) -> "Configuration":
        """Returns the configuration of `kernel[grid, block, stream, smem]`, where the stream is
        ignored.

        Args:
            config: what stands between the brackets.
            function: the kernel's function.
            launched: how the kernel is launched, for the error.
        """
        if not isinstance(config, tuple) or not 2 <= len(config) <= 4:
            raise LaunchError(
                f"{function.__qualname__}: launch as {launched}[grid, block](...), got [{config!r}]"
            )
        grid, block, stream, smem = (*config, 0, 0)[:4]
        sizes = cls(_three_axes(grid, "grid"), _three_axes(block, "block"), _dynamic_bytes(smem))
        _check_stream(stream)
        check_sizes(sizes.grid, sizes.block)
        return sizes

    @classmethod
    def forall(cls, ntasks: int, tpb: int, stream: Any, smem: int) -> "Configuration":
        """Returns that of `kernel.forall(ntasks, tpb, stream, smem)`; without tasks, a grid of no
        blocks.
        """
        _check_stream(stream)
        if ntasks < 0:  # numba-cuda's message
            raise LaunchError(f"Can't create ForAll with negative task count: {ntasks}")
        block = tpb or FORALL_BLOCK
        blocks = -(-ntasks // block)
        check_sizes((max(1, blocks), 1, 1), (block, 1, 1))
        return cls((blocks, 1, 1), (block, 1, 1), _dynamic_bytes(smem))


def _three_axes(size: Any, name: str) -> Dim3:
    """Returns a grid or block size as a triple, padded with ones; raises LaunchError for anything
    but one to three integers.
    """
    parts = size
    if not isinstance(size, (tuple, list)):
        parts = (size,)
    if not 1 <= len(parts) <= 3 or not all(isinstance(part, (int, np.integer)) for part in parts):
        text = f"{name} must be an integer or a tuple of one to three integers, got {size!r}"
        if any(isinstance(part, (float, np.floating)) for part in parts):
            text += "; divide by //, or round by math.ceil"
        raise LaunchError(text)
    return cast("Dim3", (*(int(part) for part in parts), 1, 1)[:3])


def _dynamic_bytes(size: Any) -> int:
    """Returns the bytes of dynamic shared memory of a launch; raises LaunchError unless they are a
    non-negative integer that a GPU has.
    """
    if not isinstance(size, (int, np.integer)) or size < 0:
        raise LaunchError(
            f"dynamic shared memory must be a non-negative integer (bytes), got {size!r}"
        )
    if size > MAX_SMEM_BYTES:
        raise LaunchError(
            f"{size} bytes of dynamic shared memory are more than a block can have on any GPU, "
            f"{MAX_SMEM_BYTES}; use smaller blocks, or global memory"
        )
    return int(size)


# What streams have: those of any library by a protocol, of numba.cuda, of CuPy, and of torch.
_STREAM_MEMBERS = ("__cuda_stream__", "handle", "ptr", "cuda_stream")


def _check_stream(stream: Any) -> None:
    """Raises LaunchError for what is no stream, and so perhaps an argument in the wrong place."""
    is_number = stream is None or isinstance(stream, (int, np.integer))
    if not is_number and not any(hasattr(stream, name) for name in _STREAM_MEMBERS):
        raise LaunchError(
            f"the 3rd launch argument is a stream, as cuda.stream() makes one, or 0; got {stream!r}"
        )


def refuse_names(kernel: str, named: Mapping[str, Any]) -> None:
    """Raises ArgumentError for arguments of a launch that are given by name."""
    if named:
        raise ArgumentError(
            f"{kernel} is a kernel, which takes its arguments by position, as those of numba.cuda "
            f"do; got {', '.join(f'{name}=' for name in named)}: write the values alone, in the "
            "order of its parameters"
        )


def check_sizes(grid: Dim3, block: Dim3) -> None:
    """Raises LaunchError if a grid or a block exceeds CUDA's limits, or a size is below 1."""
    if min(grid) < 1 or min(block) < 1:
        raise LaunchError(
            f"grid and block must be at least 1 along each axis, got grid={grid} and block={block}"
        )
    if (
        any(size > most for size, most in zip(block, MAX_BLOCK_AXES, strict=True))
        or block[0] * block[1] * block[2] > MAX_BLOCK
    ):
        raise LaunchError(
            f"a block has at most {MAX_BLOCK} threads, and at most {MAX_BLOCK_AXES} along its axes;"
            f" got block={block}"
        )
    if (
        grid[0] > MAX_GRID[0] or grid[1] > MAX_GRID[1] or grid[2] > MAX_GRID[2]
    ):  # without a generator, which costs 0.7 µs
        raise LaunchError(f"a grid has at most {MAX_GRID} blocks along its axes; got grid={grid}")
