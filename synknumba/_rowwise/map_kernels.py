"""Text of the kernels of a vectorized function: one that maps it over elements, one that reduces
rows with it.

    map         out[j, k] = function(x[j, k], y[j, 0], table[k], a)           a CUDA thread for each element
    reduction   partials[c, k] = function(… function(x[a, k], x[a + 1, k]) …, x[b − 1, k])
                                                                             a CUDA thread for each
                                                                             chunk c of rows a … b −
                                                                             1

j is the row, k the indices in it. Neighbouring threads have neighbouring columns of the last axis,
or rows where these are numbers. The next axis is on the rows' threads (y), the first of the others
on z; the rest are loops. For rows that are numbers a GPU's chunks have blocks in place of threads,
so that neighbouring threads read neighbouring rows.

The kernels are text, with the rows read in the kernel itself: its source then shows that it only
reads them, so that frozen inputs need no copy on a GPU.
"""  # noqa: E501

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from synknumba._ops.launch import LaunchConfig, RowGrid
from synknumba._rowwise.generate import (
    SIGNED,
    THREADS,
    UNSIGNED,
    Kind,
    indented,
    kernel_text,
    numbered,
    row_count,
)

WARP = 32  # threads of a warp
_WARPS = THREADS // WARP
# Most that a thread reduces at a time, where blocks reduce rows of one number: 38 KiB of a block's
# smem.
TILE_BYTES = 128
MAX_TILE = 16  # rows that a thread reduces at a time
# groups of rows that a core reduces side by side, where rows are numbers: in one, each sum waits 4
# cycles
CHAINS = 8
_MAX_BLOCKS = 65535  # along y and z, by CUDA's limits

OUT = "out"  # parameter of the result
OWN_NAMES = frozenset({OUT, "cuda", "range"})


@final
@dataclass(frozen=True, slots=True)
class Operand:
    """One argument as the kernel reads it."""

    kind: Kind
    # of an array, without that of rows: whether it has the result's length along each, or length 1
    axes: tuple[bool, ...] = ()
    # name of the type that an element is converted to; None to pass it unconverted
    cast: str | None = None


@final
@dataclass(frozen=True, slots=True)
class MapRecipe:
    """Everything that a kernel that maps depends on."""

    name: str
    operands: Mapping[str, Operand]  # by parameter of the function
    axes: int  # number of the result's axes, without that of rows
    # name of the type that a value is converted to; None to store it unconverted
    cast: str | None = None
    place: str = OUT  # parameter that the result is written to: `OUT`, or one of the function's own
    aliases: tuple[str, ...] = ()  # operands that are the same array as `place`
    # Whether loops over rows and elements compute their number of steps first: compilers for cores
    # need it, and on GPUs it is a 64-bit division per loop, as much as a dozen elements. Otherwise
    # indices are unsigned, which saves the test at each access whether they count from the end.
    counted: bool = True


@final
@dataclass(frozen=True, slots=True)
class ReductionRecipe:
    """Everything that a kernel that reduces depends on."""

    name: str
    parameter: str  # of the rows
    is_indices: bool  # whether the rows are an index range
    axes: int  # of a row
    cast: str  # name of the result's type, to which every element is converted
    is_divided: bool  # whether there are several chunks of rows
    # rows that a thread reduces at a time, where blocks reduce rows of one number: 8 or 16
    tile: int = MAX_TILE


@final
@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop over start, start + step, … below stop."""

    name: str
    stop: str
    start: str = "0"
    step: str = "1"

    def around(self, body: Sequence[str], *, counted: bool) -> list[str]:
        """The lines of the loop with a body."""
        if counted:
            steps = f"{self.start}, {self.stop}, {self.step}"
            if (self.start, self.step) == ("0", "1"):
                steps = self.stop
            return [f"for {self.name} in range({steps}):", *indented(body)]
        return [
            f"{self.name} = {UNSIGNED}({self.start})",
            f"while {self.name} < {UNSIGNED}({self.stop}):",
            *indented([*body, f"{self.name} += {UNSIGNED}({self.step})"]),
        ]


@final
@dataclass(frozen=True, slots=True)
class ElementGrid:
    """Grid rule with a thread per element of rows that have axes; threads loop beyond `most`
    blocks along y.
    """

    columns: int
    rows: int
    layers: int
    most: int

    def __call__(self, rows: int) -> tuple[int, int, int]:
        """The grid for `rows` rows."""
        return self.columns, max(1, min(self.most, -(-rows // self.rows))), self.layers


def element_launch(shape: Sequence[int], most: int | None = None, waves: int = 1) -> LaunchConfig:
    """The launch configuration for rows of a shape, with threads for all of the last axis.

    Threads loop beyond about `most` blocks of a wave, None for a thread per element within CUDA's
    limits; and beyond `waves` waves where rows are numbers, as in `RowGrid`.

    >>> element_launch((3, 5)).resolve(1000)
    ((1, 32, 3), (8, 32, 1))
    >>> element_launch((3, 5), most=12).resolve(1000)
    ((1, 4, 3), (8, 32, 1))
    """
    if not shape:
        return LaunchConfig(THREADS, None if most is None else RowGrid(THREADS, most, waves))
    columns = min(THREADS, 1 << max(0, shape[-1] - 1).bit_length())
    rows = THREADS // columns
    layers, most_rows = 1, _MAX_BLOCKS
    if len(shape) > 1:
        layers = max(1, min(_MAX_BLOCKS, shape[0]))
    across = max(1, -(-shape[-1] // columns))
    if most is not None:
        most_rows = min(_MAX_BLOCKS, max(1, most // (across * layers)))
    return LaunchConfig((columns, rows), ElementGrid(across, rows, layers, most_rows))


def map_source(recipe: MapRecipe) -> str:
    """The kernel: a function of the function's parameters, and of the result where that is none
    of them.
    """
    row = "synk_j" if recipe.counted else f"{SIGNED}(synk_j)"
    arrays = dict.fromkeys(recipe.aliases, recipe.place)
    arguments = []
    for name, operand in recipe.operands.items():
        arguments.append(_argument(arrays.get(name, name), operand, recipe.axes, row))
    value = _cast(recipe.cast, f"synk_function({', '.join(arguments)})")
    indices = ", ".join(["synk_j", *numbered(recipe.axes, "synk_k#")])
    body = [f"{recipe.place}[{indices}] = {value}"]
    loops = [
        _row_loop(recipe.axes, f"{recipe.place}.shape[0]"),
        *_axis_loops(recipe.axes, recipe.place),
    ]
    parameters = [name for name in recipe.operands if name not in recipe.aliases]
    if recipe.place not in parameters:
        parameters.append(recipe.place)
    lines = [*_threads(recipe.axes), *_nested(loops, body, counted=recipe.counted)]
    return kernel_text(recipe.name, parameters, lines)


def reduction_source(recipe: ReductionRecipe) -> str:
    """The kernel: a function of partial results, flags of the chunks that have one, the slice's
    number, and the rows.
    """
    x = recipe.parameter
    count = row_count(x, is_range=recipe.is_indices)
    if not recipe.axes and recipe.is_divided:
        body = _by_blocks(recipe)
    elif not recipe.axes:
        body = _by_chains(recipe)
    elif recipe.is_divided:
        chunk = [
            "synk_start = synk_j * synk_n // synk_chunks",
            "synk_stop = (synk_j + 1) * synk_n // synk_chunks",
            "if synk_start < synk_stop:",
            "    synk_there[synk_slice, synk_j] = 1",
            *indented(_reduced(recipe, "synk_j", "synk_start", "synk_start + 1, synk_stop")),
        ]
        body = [*_threads(recipe.axes), "synk_chunks = synk_partials.shape[1]"]
        body += _nested([_row_loop(recipe.axes, "synk_chunks")], chunk)
    else:
        # With plain lengths as bounds, the loop over rows goes around that over threads: an eighth
        # of the time.
        body = [
            *_threads(recipe.axes),
            "synk_there[synk_slice, 0] = 1",
            *_reduced(recipe, "0", "0", "1, synk_n"),
        ]
    parameters = ["synk_partials", "synk_there", "synk_slice", x]
    return kernel_text(recipe.name, parameters, [f"synk_n = {count}", *body])


def _by_blocks(recipe: ReductionRecipe) -> list[str]:
    """Block b of B reduces rows b n / B to (b + 1) n / B, each of its warps a part of them, tile
    after tile.

    Neighbouring threads read neighbouring rows of a tile, the next while this one is reduced, then
    take a few neighbours each from shared memory. Threads are combined in pairs of neighbours, then
    pairs of these, which keeps the order of rows; then warps, in order. Warps do not wait for each
    other before they have reduced all of their rows.

    Row r of a tile is at r + r // 2T of shared memory, T a thread's rows: neighbouring threads then
    read from different banks.
    """
    tile, rows, zero = recipe.tile, WARP * recipe.tile, _cast(recipe.cast, "0")
    row_room = rows + WARP // 2
    each_tile = [
        "synk_left = synk_last - synk_tile",
        f"if synk_left >= {rows}:",
        *indented(_full_tile(recipe, rows)),
        "else:",
        *indented(_last_tile(recipe)),
        "cuda.syncwarp()",
        *_by_pairs(recipe),
    ]
    return [
        f"synk_rows = cuda.shared.array({_WARPS * row_room}, {recipe.cast})",
        f"synk_threads = cuda.shared.array({THREADS}, {recipe.cast})",
        f"synk_lane = cuda.threadIdx.x % {WARP}",
        f"synk_warp = cuda.threadIdx.x // {WARP}",
        f"synk_room = synk_warp * {row_room}",
        f"synk_into = synk_room + synk_lane + (synk_lane >> {tile.bit_length()})",
        f"synk_start = synk_room + synk_lane * {tile} + (synk_lane >> 1)",
        f"synk_place = synk_warp * {WARP}",
        "synk_b = cuda.blockIdx.x",
        "synk_begin = synk_b * synk_n // cuda.gridDim.x",
        "synk_rest = (synk_b + 1) * synk_n // cuda.gridDim.x - synk_begin",
        f"synk_first = synk_begin + synk_warp * synk_rest // {_WARPS}",
        f"synk_last = synk_begin + (synk_warp + 1) * synk_rest // {_WARPS}",
        f"synk_total = {zero}",
        *numbered(tile, f"synk_# = {zero}"),
        f"if synk_last - synk_first >= {rows}:",
        *indented(_loads(recipe, "synk_first")),
        f"for synk_tile in range(synk_first, synk_last, {rows}):",
        *indented(each_tile),
        *_by_first_thread(recipe),
    ]


def _loads(recipe: ReductionRecipe, first: str) -> list[str]:
    """Reads a lane's rows of a full tile."""
    rows = [f"{first} + {k * WARP} + synk_lane" for k in range(recipe.tile)]
    return [f"synk_{k} = {_row(recipe, row)}" for k, row in enumerate(rows)]


def _full_tile(recipe: ReductionRecipe, rows: int) -> list[str]:
    """Stores the rows that were read, reads those of the next tile, and reduces a lane's
    neighbours.
    """
    tile = recipe.tile
    distance = WARP + WARP // (2 * tile)
    return [
        *(f"synk_rows[synk_into + {k * distance}] = synk_{k}" for k in range(tile)),
        f"if synk_left >= {2 * rows}:",
        f"    synk_next = synk_tile + {rows}",
        *indented(_loads(recipe, "synk_next")),
        "cuda.syncwarp()",
        *_by_lane(recipe, str(tile)),
        f"synk_used = {WARP}",
    ]


def _last_tile(recipe: ReductionRecipe) -> list[str]:
    tile = recipe.tile
    row = _row(recipe, "synk_tile + synk_i")
    return [
        f"for synk_i in range(synk_lane, synk_left, {WARP}):",
        f"    synk_rows[synk_room + synk_i + (synk_i >> {tile.bit_length()})] = {row}",
        "cuda.syncwarp()",
        f"synk_stop = synk_left - synk_lane * {tile}",
        "if synk_stop > 0:",
        # without min(), which may be the name of a parameter
        f"    if synk_stop > {tile}:",
        f"        synk_stop = {tile}",
        *indented(_by_lane(recipe, "synk_stop")),
        f"synk_used = (synk_left + {tile - 1}) // {tile}",
    ]


def _by_lane(recipe: ReductionRecipe, stop: str) -> list[str]:
    """Reduces a lane's rows in shared memory."""
    return [
        "synk_value = synk_rows[synk_start + 0]",
        f"for synk_i in range(1, {stop}):",
        f"    synk_value = {_both(recipe, 'synk_value', 'synk_rows[synk_start + synk_i]')}",
        "synk_threads[synk_place + synk_lane] = synk_value",
    ]


def _by_pairs(recipe: ReductionRecipe) -> list[str]:
    """Combines the results of a warp's lanes, and adds them to those of the tiles before."""
    both = _both(recipe, "synk_threads[synk_i]", "synk_threads[synk_i + synk_step]")
    return [
        "synk_step = 1",
        "while synk_step < synk_used:",
        "    synk_i = 2 * synk_lane * synk_step",
        "    if synk_i + synk_step < synk_used:",
        "        synk_i += synk_place",
        f"        synk_threads[synk_i] = {both}",
        "    cuda.syncwarp()",
        "    synk_step *= 2",
        "if synk_lane == 0 and synk_tile == synk_first:",
        "    synk_total = synk_threads[synk_place]",
        "elif synk_lane == 0:",
        f"    synk_total = {_both(recipe, 'synk_total', 'synk_threads[synk_place]')}",
        "cuda.syncwarp()",
    ]


def _by_first_thread(recipe: ReductionRecipe) -> list[str]:
    """Combines the results of the warps that had rows into the block's."""
    return [
        "if synk_lane == 0:",
        "    synk_threads[synk_place] = synk_total",
        "cuda.syncthreads()",
        "if cuda.threadIdx.x == 0 and synk_rest > 0:",
        "    synk_used = 0",
        f"    for synk_i in range({_WARPS}):",
        f"        if synk_i * synk_rest // {_WARPS} < (synk_i + 1) * synk_rest // {_WARPS}:",
        f"            synk_value = synk_threads[synk_i * {WARP}]",
        (
            f"            synk_total = synk_value if synk_used == 0 else "
            f"{_both(recipe, 'synk_total', 'synk_value')}"
        ),
        "            synk_used += 1",
        "    synk_there[synk_slice, synk_b] = 1",
        "    synk_partials[synk_slice, synk_b] = synk_total",
    ]


def _by_chains(recipe: ReductionRecipe) -> list[str]:
    """One thread reduces rows that are numbers: `CHAINS` groups of neighbours side by side, then
    their results.
    """
    values = numbered(CHAINS, "synk_#")
    both = _both(recipe, "synk_#", _row(recipe, "synk_#_start + synk_i"))
    return [
        "synk_there[synk_slice, 0] = 1",
        "if cuda.grid(1) == 0:",
        f"    synk_part = synk_n // {CHAINS}",
        f"    synk_value = {_row(recipe, '0')}",
        "    synk_first = 1",
        "    if synk_part > 1:",
        *numbered(CHAINS, "        synk_#_start = # * synk_part"),
        *numbered(CHAINS, f"        synk_# = {_row(recipe, 'synk_#_start')}"),
        "        for synk_i in range(1, synk_part):",
        *numbered(CHAINS, f"            synk_# = {both}"),
        "        synk_value = synk_0",
        *(f"        synk_value = {_both(recipe, 'synk_value', value)}" for value in values[1:]),
        f"        synk_first = {CHAINS} * synk_part",
        "    for synk_i in range(synk_first, synk_n):",
        f"        synk_value = {_both(recipe, 'synk_value', _row(recipe, 'synk_i'))}",
        "    synk_partials[synk_slice, 0] = synk_value",
    ]


def _both(recipe: ReductionRecipe, first: str, right: str) -> str:
    return _cast(recipe.cast, f"synk_function({first}, {right})")


def _row(recipe: ReductionRecipe, index: str) -> str:
    """A row that is a number."""
    x = recipe.parameter
    row = f"{x}[{index}]"
    if recipe.is_indices:
        row = f"{x}.start + {index}"
    return _cast(recipe.cast, row)


def _reduced(recipe: ReductionRecipe, chunk: str, first: str, count: str) -> list[str]:
    """Reduces the rows of one chunk, which have axes, with a thread for each column: its first
    row, and a range of others.
    """
    x, last = recipe.parameter, recipe.axes - 1
    index = "".join(numbered(recipe.axes, ", synk_k#"))
    loops = _axis_loops(recipe.axes, "synk_partials", first=2)[:-1]
    row = _cast(recipe.cast, f"{x}[synk_i{index}]")
    element = [
        f"if synk_k{last} < synk_partials.shape[{2 + last}]:",
        f"    synk_value = {_cast(recipe.cast, f'{x}[{first}{index}]')}",
        f"    for synk_i in range({count}):",
        f"        synk_value = {_both(recipe, 'synk_value', row)}",
        f"    synk_partials[synk_slice, {chunk}{index}] = synk_value",
    ]
    return [f"synk_k{last} = synk_x", *_nested(loops, element)]


def _nested(loops: Sequence[_Loop], body: Sequence[str], *, counted: bool = True) -> list[str]:
    """The lines of loops, each inside the one before."""
    for loop in reversed(loops):
        body = loop.around(body, counted=counted)
    return list(body)


def _threads(axes: int) -> list[str]:
    """The thread's place in the grid, and the number of threads, along x, y and z."""
    lines: list[str] = []
    if not axes:
        return lines
    for axis in "xyz"[: axes + 1]:
        lines.append(
            f"synk_{axis} = cuda.blockIdx.{axis} * cuda.blockDim.{axis} + cuda.threadIdx.{axis}"
        )
        lines.append(f"synk_{axis}_step = cuda.gridDim.{axis} * cuda.blockDim.{axis}")
    return lines


def _row_loop(axes: int, count: str) -> _Loop:
    if not axes:
        return _Loop("synk_j", count, "cuda.grid(1)", "cuda.gridsize(1)")
    return _Loop("synk_j", count, "synk_y", "synk_y_step")


def _axis_loops(axes: int, array: str, first: int = 1) -> list[_Loop]:
    loops = []
    threads = {0: "z", axes - 1: "x"}  # x is the last, which may be the first, too
    for axis in range(axes):
        name, length = f"synk_k{axis}", f"{array}.shape[{first + axis}]"
        thread = threads.get(axis)
        if thread is None:
            loops.append(_Loop(name, length))
        else:
            loops.append(_Loop(name, length, f"synk_{thread}", f"synk_{thread}_step"))
    return loops


def _argument(name: str, operand: Operand, axes: int, row: str) -> str:
    """An operand's value for the current element; an array's axes are the last of the result's."""
    index = []
    for axis, is_full in enumerate(operand.axes, axes - len(operand.axes)):
        index.append(f"synk_k{axis}" if is_full else "0")
    values = {
        "rows": f"{name}[{', '.join(['synk_j', *index])}]",
        "whole": f"{name}[{', '.join(index)}]",
        "indices": f"{name}.start + {row}",
        "number": f"{name}[()]",
        "scalar": name,
    }
    return _cast(operand.cast, values[operand.kind])


def _cast(cast: str | None, value: str) -> str:
    return value if cast is None else f"{cast}({value})"
