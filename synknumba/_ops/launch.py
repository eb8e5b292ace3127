"""Launch configurations: grid, block and shared memory of a kernel, checked against CUDA's limits before anything is sent.

The limits are those of every GPU since compute capability 3.0 ("Technical Specifications per Compute Capability" in the CUDA
C++ Programming Guide). They apply on the CPU device too, so that a script that runs there also runs on a GPU.
"""

import math
import operator
from dataclasses import dataclass
from typing import TypeAlias, final

from synknumba._errors import LaunchError
from synknumba._types import Block, Grid

Dim3: TypeAlias = tuple[int, int, int]

MAX_BLOCK: Dim3 = (1024, 1024, 64)
MAX_SMEM_BYTES = 227 << 10  # of one block, on GPUs of compute capability 9.0 (CUDA C++ Programming Guide, table of limits)
MAX_THREADS = 1024  # threads per block, over all dimensions
MAX_GRID: Dim3 = (2**31 - 1, 65535, 65535)


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """Launch configuration of a kernel on each rank; raises LaunchError if CUDA would refuse it.

    >>> LaunchConfig().resolve(1000)
    ((4, 1, 1), (256, 1, 1))
    >>> LaunchConfig(block=(16, 16), grid=lambda rows: (rows, 2)).resolve(10)
    ((10, 2, 1), (16, 16, 1))
    """

    block: Block = 256  # threads per block, 1 to 3 dimensions
    grid: Grid = None  # blocks, 1 to 3 dimensions, or a function of the number of rows in the launch; None: one thread per row
    smem_bytes: int = 0  # dynamic shared memory of a block

    def __post_init__(self) -> None:
        """Checks everything that does not depend on the number of rows."""
        block = _dim3("block", self.block, MAX_BLOCK)
        if math.prod(block) > MAX_THREADS:
            raise LaunchError(f"block={self.block!r} has {math.prod(block)} threads; a block has at most {MAX_THREADS}")
        if self.grid is None and block[1:] != (1, 1):
            raise LaunchError(
                f"grid= is required with the {len(_dimensions(self.block))}-D block={self.block!r}: the default, one thread "
                "per row, is for 1-D blocks. Pass a number of blocks per axis, or a function of the number of rows."
            )
        if self.grid is not None and not callable(self.grid):
            _dim3("grid", self.grid, MAX_GRID)
        if _integer(self.smem_bytes) is None or self.smem_bytes < 0:
            raise LaunchError(f"smem_bytes must be a non-negative int; got {self.smem_bytes!r}")
        if self.smem_bytes > MAX_SMEM_BYTES:
            raise LaunchError(
                f"smem_bytes={self.smem_bytes} is more than a block can have on any GPU, {MAX_SMEM_BYTES} bytes; use smaller "
                "blocks, or global memory"
            )

    @property
    def axes(self) -> int:
        """Number of axes for which block or grid give a size; 3 if the grid is a function, which may give any."""
        return len(MAX_GRID) if callable(self.grid) else max(len(_dimensions(self.block)), len(_dimensions(self.grid)))

    def resolve(self, rows: int | None) -> tuple[Dim3, Dim3]:
        """Returns grid and block of one launch with so many rows, None if no argument is sharded.

        Raises LaunchError if the grid depends on the rows but no argument is sharded, or CUDA would refuse the grid.
        """
        block = _dim3("block", self.block, MAX_BLOCK)
        if self.grid is not None and not callable(self.grid):
            return _dim3("grid", self.grid, MAX_GRID), block
        if rows is None:
            raise LaunchError(
                "no argument is sharded, so there are no rows to derive the grid from; pass grid= as a number of blocks"
            )
        if callable(self.grid):
            try:
                size = self.grid(rows)
            except Exception as error:  # the function is the user's
                raise LaunchError(
                    f"grid({rows}) raised {type(error).__name__}: {error}; grid= takes the rows of a launch"
                ) from error
            return _dim3(f"grid({rows})", size, MAX_GRID), block
        blocks = max(1, -(-rows // block[0]))
        if blocks > MAX_GRID[0]:
            raise LaunchError(
                f"one thread per row needs {blocks} blocks of {block[0]} for {rows} rows; a grid has at most {MAX_GRID[0]}. "
                "Pass grid= and loop over the rows with a stride of cuda.gridsize(1)."
            )
        return (blocks, 1, 1), block


def named_launch(name: str, block: Block, grid: Grid, smem_bytes: int) -> LaunchConfig:
    """Returns the launch configuration of a kernel, whose name an error begins with."""
    try:
        return LaunchConfig(block, grid, smem_bytes)
    except LaunchError as error:
        raise LaunchError(f"{name}: {error}") from None


def _dimensions(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


def _integer(value: object) -> int | None:
    """Returns a Python or NumPy integer as an int; None for anything else, including bools."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]  # raises TypeError for non-integers
    except TypeError:
        return None


def _dim3(what: str, value: object, limits: Dim3) -> Dim3:
    dimensions = _dimensions(value)
    sizes = [size for size in map(_integer, dimensions) if size is not None]
    if not 1 <= len(dimensions) <= len(limits) or len(sizes) != len(dimensions):
        raise LaunchError(f"{what} must be an int or a tuple of 1 to 3 ints; got {value!r}")
    for axis, size, limit in zip("xyz", sizes, limits, strict=False):
        if not 1 <= size <= limit:
            raise LaunchError(f"{what} must be 1 to {limit} along {axis}; got {value!r}")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


@final
@dataclass(frozen=True, slots=True)
class RowGrid:
    """Grid size from the number of rows, limited to one wave of blocks or, for many rows, to several waves.

    A GPU reads memory faster with several waves of short-lived blocks than with one wave of long-lived ones, by 5 % on an H200,
    but a block with little work costs more than that. So beyond one wave, each block gets the work of four blocks or more.
    """

    rows: int  # per block
    most: int  # blocks of one wave
    waves: int = 1  # maximum number of waves

    def __call__(self, rows: int) -> int:
        """Returns the number of blocks for `rows` rows."""
        blocks = -(-rows // self.rows)
        return max(1, min(blocks, max(self.most, min(blocks // 4, self.waves * self.most))))
