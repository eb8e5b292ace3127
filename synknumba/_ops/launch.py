"""Launch configurations: grid, block and shared memory of a kernel, checked against CUDA's limits
before anything is sent.

The limits are those of every GPU since compute capability 3.0 ("Technical Specifications per
Compute Capability" in the CUDA C++ Programming Guide). They apply on the CPU device too, so that a
script that runs there also runs on a GPU.
"""

import inspect
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, final

from synknumba._errors import LaunchError
from synknumba._types import MAX_GRID, MAX_SMEM_BYTES, Block, Grid, Shape

Dim3: TypeAlias = tuple[int, int, int]

MAX_BLOCK: Dim3 = (1024, 1024, 64)
MAX_THREADS = 1024  # threads per block, over all dimensions
WARP = 32  # lanes of a GPU's vector unit, all of one block
FEW_THREADS = 16  # of a launch; the CPU compiler does not run fewer as lanes
# Blocks by number of axes. A warp is 32 elements of the last axis, which a GPU reads together;
# further axes share rows in its cache. On a core, five- and seven-point stencils take the same
# time, within 5 %, in all blocks of 128 to 1024 threads.
BLOCKS: Mapping[int, tuple[int, ...]] = MappingProxyType({1: (256,), 2: (32, 8), 3: (32, 4, 2)})
ELEMENTS = "elements"
_NOTHING = "no argument is sharded, and none is a variable with rows, so there are no"


class Extent(NamedTuple):
    """What one launch works on.

    Attributes:
        rows: number of rows; None if no argument has rows.
        shapes: shapes of the array arguments in this launch, by name.
        source: the argument whose rows, and elements, these are; None if they are those of an index
            range, or there are none.
    """

    rows: int | None
    shapes: Mapping[str, Shape] = MappingProxyType({})
    source: str | None = None

    @classmethod
    def of(cls, count: int | None, shapes: Mapping[str, Shape], source: str | None) -> "Extent":
        """Returns the extent of a launch on so many rows of the call; on those of the source if
        the call has none.
        """
        if count is None and source is not None:
            count = shapes[source][0]
        return cls(count, shapes, source)

    @property
    def elements(self) -> Shape | None:
        """Shape of the array whose elements get threads; None if no argument has rows."""
        if self.source is not None:
            return self.shapes[self.source]
        if self.rows is None:
            return None
        return (self.rows,)


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """Launch configuration of a kernel on each rank; raises LaunchError if CUDA would refuse it.

    >>> LaunchConfig().resolve(1000)
    ((4, 1, 1), (256, 1, 1))
    >>> LaunchConfig(block=(16, 16), grid=lambda rows: (rows, 2)).resolve(10)
    ((10, 2, 1), (16, 16, 1))
    >>> LaunchConfig(grid="elements").resolve(10, {"u": (10, 100)}, "u")
    ((4, 2, 1), (32, 8, 1))
    """

    block: Block | None = None  # threads per block, 1 to 3 dimensions; None: those of `BLOCKS`
    # blocks, 1 to 3 dimensions, "elements", or a function of rows and shapes; None: one thread per
    # row
    grid: Grid = None
    smem_bytes: int = 0  # dynamic shared memory of a block

    def __post_init__(self) -> None:
        """Checks everything that does not depend on the number of rows."""
        block = _dim3("block", self.threads, MAX_BLOCK)
        if math.prod(block) > MAX_THREADS:
            raise LaunchError(
                f"block={self.block!r} has {math.prod(block)} threads; a block "
                f"has at most {MAX_THREADS}"
            )
        if self.grid is None and block[1:] != (1, 1):
            raise LaunchError(
                f"grid= is required with the {len(_dimensions(self.block))}-D "
                f"block={self.block!r}: the default, one thread "
                'per row, is for 1-D blocks. Pass grid="elements" for one thread per element, a '
                "number of blocks per axis, or "
                "a function of the number of rows."
            )
        if isinstance(self.grid, str) and self.grid != ELEMENTS:
            raise LaunchError(
                f"grid must be a number of blocks per axis, a function, None for one thread per "
                f'row, or "{ELEMENTS}" for one '
                f"per element; got {self.grid!r}"
            )
        if not self.is_derived:
            _dim3("grid", self.grid, MAX_GRID)
        if _integer(self.smem_bytes) is None or self.smem_bytes < 0:
            raise LaunchError(f"smem_bytes must be a non-negative int; got {self.smem_bytes!r}")
        if self.smem_bytes > MAX_SMEM_BYTES:
            raise LaunchError(
                f"smem_bytes={self.smem_bytes} is more than a block can have on any GPU, "
                f"{MAX_SMEM_BYTES} bytes; use smaller blocks, or global memory"
            )

    @property
    def threads(self) -> Block:
        """Threads per block, of a launch that is not by elements."""
        if self.block is None:
            return BLOCKS[1]
        return self.block

    @property
    def is_derived(self) -> bool:
        """Whether the grid depends on the arguments."""
        return self.grid is None or isinstance(self.grid, str) or callable(self.grid)

    @property
    def axes(self) -> int:
        """Number of axes with a size of block or grid; 3 if that depends on the arguments."""
        if callable(self.grid) or (self.grid == ELEMENTS and self.block is None):
            return len(MAX_GRID)
        dimensions = len(_dimensions(self.threads))
        if isinstance(self.grid, str):
            return dimensions
        return max(dimensions, len(_dimensions(self.grid)))

    def launches_nothing(self, extent: Extent) -> bool:
        """Returns whether there is not one row, or element, from which to derive a grid: CUDA
        has no empty grids.
        """
        if isinstance(self.grid, str):
            return extent.elements is not None and 0 in extent.elements
        return self.is_derived and extent.rows == 0

    def resolve(
        self,
        rows: int | None,
        shapes: Mapping[str, Shape] = MappingProxyType({}),
        source: str | None = None,
    ) -> tuple[Dim3, Dim3]:
        """Returns grid and block of one launch; arguments as for `Extent`.

        Raises LaunchError if the grid depends on rows or elements but no argument has any, or CUDA
        would refuse the grid.
        """
        if isinstance(self.grid, str):
            return self._by_elements(Extent(rows, shapes, source))
        block = _dim3("block", self.threads, MAX_BLOCK)
        if callable(self.grid):
            return self._by_function(self.grid, rows, shapes), block
        if self.grid is not None:
            return _dim3("grid", self.grid, MAX_GRID), block
        if rows is None:
            raise LaunchError(
                f"{_NOTHING} rows to derive the grid from; pass grid= as a number of blocks"
            )
        blocks = max(1, -(-rows // block[0]))
        if blocks > MAX_GRID[0]:
            raise LaunchError(
                f"one thread per row needs {blocks} blocks of {block[0]} for {rows} rows; a grid "
                f"has at most {MAX_GRID[0]}. Pass grid= and loop over the rows with a stride of "
                "cuda.gridsize(1)."
            )
        return (blocks, 1, 1), block

    @staticmethod
    def _by_function(
        function: Callable[..., Any], rows: int | None, shapes: Mapping[str, Shape]
    ) -> Dim3:
        """Returns the grid by the user's function of the rows, of the shapes by name, or both."""
        call, text, needs_rows = _bound(function, rows, shapes)
        if needs_rows and rows is None:
            raise LaunchError(
                f"{_NOTHING} rows to derive the grid from; pass grid= as a number of blocks, "
                f"or as a function of shapes"
            )
        try:
            size = call()
        except Exception as error:  # the function is the user's
            raise LaunchError(
                f"{text} raised {type(error).__name__}: {error}; grid= takes the rows of a launch, "
                "or in a parameter named shapes the shapes of its arrays by name, or both"
            ) from error
        return _dim3(text, size, MAX_GRID)

    def _by_elements(self, extent: Extent) -> tuple[Dim3, Dim3]:
        """Returns the grid and block of a thread for each element, the last axis along x."""
        shape, name = extent.elements, extent.source
        if name is None:
            name = "the index range"
        if shape is None:
            raise LaunchError(
                f"{_NOTHING} elements to derive the grid from; pass grid= as a number of blocks"
            )
        if len(shape) not in BLOCKS:
            raise LaunchError(
                f'grid="{ELEMENTS}" is for arrays of 1 to 3 axes, as grids have; {name} has '
                f"{len(shape)}: {shape}. Merge axes "
                f'of {name}, or pass grid=lambda shapes: math.prod(shapes["{name}"]) // 256 + 1 '
                f"and work out the indices from "
                "cuda.grid(1)."
            )
        block: tuple[object, ...] = BLOCKS[len(shape)]
        if self.block is not None:
            block = _dimensions(self.block)
        if len(block) != len(shape):
            raise LaunchError(
                f"block={self.block!r} has {_axes(len(block))}, but {name} has "
                f"{_axes(len(shape))}, {shape}; with "
                f'grid="{ELEMENTS}", write block={size_text(BLOCKS[len(shape)])}, or leave it out'
            )
        sizes = _dim3("block", block, MAX_BLOCK)
        lengths = (*reversed(shape), 1, 1)[: len(sizes)]
        blocks = [max(1, -(-length // size)) for length, size in zip(lengths, sizes, strict=True)]
        for axis, along in enumerate("xyz"):
            needed, limit = blocks[axis], MAX_GRID[axis]
            if needed > limit:
                raise LaunchError(
                    f'grid="{ELEMENTS}" needs {needed} blocks of {sizes[axis]} along {along} for '
                    f"{name} of shape {shape}, "
                    f"but a grid has at most {limit}. "
                    f"{_larger_block(len(shape), axis, lengths[axis])}"
                )
        x, y, z = blocks
        return (x, y, z), sizes


def _bound(
    function: Callable[..., Any], rows: int | None, shapes: Mapping[str, Shape]
) -> tuple[Callable[[], Any], str, bool]:
    """Returns the call of a user's function for the grid, the call as text, and whether it takes
    the rows.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a function in C
        parameters = MappingProxyType({})
    if "shapes" not in parameters:
        return partial(function, rows), f"grid({rows})", True
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    required = [
        name
        for name, param in parameters.items()
        if name != "shapes" and param.kind in plain and param.default is param.empty
    ]
    by_name = {**dict.fromkeys(required[:1], rows), "shapes": dict(shapes)}
    text = ", ".join(f"{name}={value}" for name, value in by_name.items())
    return partial(function, **by_name), f"grid({text})", bool(required)


def _larger_block(axes: int, axis: int, length: int) -> str:
    """Returns the advice for an array that is too long along an axis for the blocks of a launch."""
    size = 1 << (-(-length // MAX_GRID[axis]) - 1).bit_length()
    if size > MAX_BLOCK[axis]:
        return (
            "Pass grid= as a function of shapes, and loop over the elements with a "
            "stride of cuda.gridsize."
        )
    block = [1] * axes
    block[0] = max(1, min(32, 256 // size))
    block[axis] = size
    return f"Pass a block with more threads there, such as block={size_text(tuple(block))}."


def _axes(count: int) -> str:
    if count == 1:
        return "1 axis"
    return f"{count} axes"


def size_text(sizes: tuple[int, ...]) -> str:
    """Returns sizes as a user would write them: without axes of 1 at the end, and one size
    without parentheses.
    """
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes = sizes[:-1]
    if len(sizes) == 1:
        return str(sizes[0])
    return str(sizes)


def named_launch(name: str, block: Block | None, grid: Grid, smem_bytes: int) -> LaunchConfig:
    """Returns the launch configuration of a kernel, whose name an error begins with."""
    try:
        return LaunchConfig(block, grid, smem_bytes)
    except LaunchError as error:
        raise LaunchError(f"{name}: {error}") from None


def _dimensions(value: object) -> tuple[object, ...]:
    if isinstance(value, tuple):
        return value
    return (value,)


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
        raise LaunchError(
            f"{what} must be an int or a tuple of 1 to 3 ints; got {value!r} "
            "(n / 128 is a float; -(-n // 128) rounds it up)"
        )
    for axis, size, limit in zip("xyz", sizes, limits, strict=False):
        if not 1 <= size <= limit:
            raise LaunchError(f"{what} must be 1 to {limit} along {axis}; got {value!r}")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


@final
@dataclass(frozen=True, slots=True)
class RowGrid:
    """Grid size from the number of rows, limited to one wave of blocks or, for many rows, to
    several waves.

    A GPU reads memory faster with several waves of short-lived blocks than with one wave of
    long-lived ones, by 5 % on an H200, but a block with little work costs more than that. So beyond
    one wave, each block gets the work of four blocks or more.
    """

    rows: int  # per block
    most: int  # blocks of one wave
    waves: int = 1  # maximum number of waves

    def __call__(self, rows: int) -> int:
        """Returns the number of blocks for `rows` rows."""
        blocks = -(-rows // self.rows)
        return max(1, min(blocks, max(self.most, min(blocks // 4, self.waves * self.most))))
