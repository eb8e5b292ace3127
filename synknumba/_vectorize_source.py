"""The text of the kernels of a vectorized function: one that maps it over elements, one that reduces rows with it.

    map         out[j, k] = function(x[j, k], y[j, 0], table[k], a)           a CUDA thread for each element
    reduction   partials[c, k] = function(… function(x[a, k], x[a + 1, k]) …, x[b − 1, k])
                                                                             a CUDA thread for each chunk c of rows a … b − 1

j is the row, k the indices in it. Neighbouring threads have neighbouring columns of the last axis, or rows where these are
numbers. The next axis is on the rows' threads (y), the first of the others on z; what remains are loops. Of rows that are
numbers a GPU's chunks have blocks and not threads, so that neighbouring threads read neighbouring rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

from synknumba._launch import LaunchConfig, RowGrid

THREADS = 256  # of a block
TILE = 8  # rows that a thread reduces at a time, where blocks reduce rows of one number
CHAINS = 8  # groups of rows that a core reduces side by side, where rows are numbers: one waits 4 cycles for each sum
_MOST_BLOCKS = 65535  # along y and z, by CUDA's limits

OUT = "out"  # the parameter with the result
OWN_NAMES = frozenset({OUT, "cuda", "range"})

Kind: TypeAlias = Literal["rows", "indices", "whole", "scalar", "number"]
"""An array of rows; the rows' global indices; an array that is not divided; a number; a 0-d array."""


@final
@dataclass(frozen=True, slots=True)
class Operand:
    """What the function gets of one argument.

    Attributes:
        kind: of the argument.
        axes: of an array, without the rows': whether it has the result's length along each, or one element for all.
        cast: the name of the type that an element is converted to; None where it is passed as it is.
    """

    kind: Kind
    axes: tuple[bool, ...] = ()
    cast: str | None = None


@final
@dataclass(frozen=True, slots=True)
class MapRecipe:
    """What a kernel that maps is generated from.

    Attributes:
        name: of the kernel.
        operands: by parameter of the function.
        axes: how many the result has beside the rows'.
        cast: the name of the type that a value is converted to; None where it is stored as it is.
        place: the parameter with the result: `OUT`, or one of the function's own.
        aliases: operands that are the one at that place.
    """

    name: str
    operands: Mapping[str, Operand]
    axes: int
    cast: str | None = None
    place: str = OUT
    aliases: tuple[str, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class ReductionRecipe:
    """What a kernel that reduces is generated from.

    Attributes:
        name: of the kernel.
        parameter: with the rows.
        is_indices: whether the rows are an index range.
        axes: how many a row has.
        cast: the name of the type of the result, to which every element is converted.
        is_divided: whether the rows are divided into chunks, and not one.
    """

    name: str
    parameter: str
    is_indices: bool
    axes: int
    cast: str
    is_divided: bool


@final
@dataclass(frozen=True, slots=True)
class ElementGrid:
    """The grid for a thread an element, where rows have elements; threads step on where CUDA has no room for so many."""

    columns: int
    rows: int
    layers: int
    most: int

    def __call__(self, rows: int) -> tuple[int, int, int]:
        """Blocks for so many rows."""
        return self.columns, max(1, min(self.most, -(-rows // self.rows))), self.layers


def element_launch(shape: Sequence[int], most: int | None = None) -> LaunchConfig:
    """The launch for rows of this shape, with threads for all of the last axis.

    Args:
        shape: of a row.
        most: blocks, about, over which threads step on; None for a thread an element, as far as there is room.

    >>> element_launch((3, 5)).resolve(1000)
    ((1, 32, 3), (8, 32, 1))
    >>> element_launch((3, 5), most=12).resolve(1000)
    ((1, 4, 3), (8, 32, 1))
    """
    if not shape:
        return LaunchConfig(THREADS, None if most is None else RowGrid(THREADS, most))
    columns = min(THREADS, 1 << max(0, shape[-1] - 1).bit_length())
    rows = THREADS // columns
    layers = max(1, min(_MOST_BLOCKS, shape[0])) if len(shape) > 1 else 1
    across = max(1, -(-shape[-1] // columns))
    most_rows = _MOST_BLOCKS if most is None else min(_MOST_BLOCKS, max(1, most // (across * layers)))
    return LaunchConfig((columns, rows), ElementGrid(across, rows, layers, most_rows))


def map_source(recipe: MapRecipe) -> str:
    """The kernel, a function of the function's parameters and the result."""
    arguments = ", ".join(
        _argument(recipe.place if name in recipe.aliases else name, operand, recipe.axes)
        for name, operand in recipe.operands.items()
    )
    value = _cast(recipe.cast, f"synk_function({arguments})")
    body = [f"{recipe.place}[{_index(recipe.axes)}] = {value}"]
    loops = [_row_loop(recipe.axes, f"{recipe.place}.shape[0]"), *_axis_loops(recipe.axes, recipe.place)]
    parameters = [name for name in recipe.operands if name not in recipe.aliases]
    parameters += [name for name in (recipe.place,) if name not in recipe.operands]
    return _kernel(recipe.name, parameters, [*_threads(recipe.axes), *_nested(loops, body)])


def reduction_source(recipe: ReductionRecipe) -> str:
    """The kernel, a function of partial results, of which chunks have one, of the slice's number, and of the rows."""
    x = recipe.parameter
    head = [f"synk_n = {f'{x}.stop - {x}.start' if recipe.is_indices else f'{x}.shape[0]'}"]
    if not recipe.axes:
        body = _by_blocks(recipe) if recipe.is_divided else _by_chains(recipe)
    elif recipe.is_divided:
        chunk = [
            "synk_start = synk_j * synk_n // synk_chunks",
            "synk_stop = (synk_j + 1) * synk_n // synk_chunks",
            "if synk_start < synk_stop:",
            "    synk_there[synk_slice, synk_j] = 1",
            *_indented(_reduced(recipe, "synk_j", "synk_start", "synk_start + 1, synk_stop")),
        ]
        body = [*_threads(recipe.axes), "synk_chunks = synk_partials.shape[1]"]
        body += _nested([_row_loop(recipe.axes, "synk_chunks")], chunk)
    else:  # bounds that are plain lengths let the loop over rows go around that over threads: an eighth of the time
        body = [*_threads(recipe.axes), "synk_there[synk_slice, 0] = 1", *_reduced(recipe, "0", "0", "1, synk_n")]
    return _kernel(recipe.name, ["synk_partials", "synk_there", "synk_slice", x], [*head, *body])


def _by_blocks(recipe: ReductionRecipe) -> list[str]:
    """Block b reduces rows b n / B to (b + 1) n / B, tile after tile: each thread a few neighbouring rows, then all threads.

    Neighbouring threads read neighbouring rows of a tile, and then find their own in shared memory. Threads are put together in
    pairs of neighbours, then in pairs of these, so that the order of rows is kept.
    """

    def staged(row: str) -> str:  # neighbouring threads then read from different banks of shared memory
        return f"synk_rows[{row} + ({row} >> {TILE.bit_length()})]"

    loads = [f"synk_{k} = {_row(recipe, f'synk_tile + {k * THREADS} + synk_t')}" for k in range(TILE)]
    stores = [f"{staged(f'{k * THREADS} + synk_t')} = synk_{k}" for k in range(TILE)]
    return [
        f"synk_rows = cuda.shared.array({THREADS * TILE + THREADS // 2}, {recipe.cast})",
        f"synk_threads = cuda.shared.array({THREADS}, {recipe.cast})",
        "synk_t = cuda.threadIdx.x",
        "synk_b = cuda.blockIdx.x",
        "synk_first = synk_b * synk_n // cuda.gridDim.x",
        "synk_last = (synk_b + 1) * synk_n // cuda.gridDim.x",
        f"synk_total = {_cast(recipe.cast, '0')}",
        f"for synk_tile in range(synk_first, synk_last, {THREADS * TILE}):",
        "    synk_left = synk_last - synk_tile",
        f"    if synk_left >= {THREADS * TILE}:",  # all loads at once, and only then what waits for them
        *(f"        {line}" for line in (*loads, *stores)),
        "    else:",
        f"        for synk_i in range(synk_t, synk_left, {THREADS}):",
        f"            {staged('synk_i')} = {_row(recipe, 'synk_tile + synk_i')}",
        "    cuda.syncthreads()",
        f"    synk_start = synk_t * {TILE}",
        "    if synk_start < synk_left:",
        f"        synk_value = {staged('synk_start')}",
        f"        synk_stop = synk_start + {TILE}",
        "        if synk_stop > synk_left:",  # not by min(), which a parameter may be named
        "            synk_stop = synk_left",
        "        for synk_i in range(synk_start + 1, synk_stop):",
        f"            synk_value = {_both(recipe, 'synk_value', staged('synk_i'))}",
        "        synk_threads[synk_t] = synk_value",
        f"    synk_used = (synk_left + {TILE - 1}) // {TILE}",
        f"    if synk_used > {THREADS}:",
        f"        synk_used = {THREADS}",
        "    cuda.syncthreads()",
        "    synk_step = 1",
        "    while synk_step < synk_used:",
        "        synk_i = 2 * synk_t * synk_step",  # neighbouring threads, so that most of a block's warps are soon idle
        "        if synk_i + synk_step < synk_used:",
        f"            synk_threads[synk_i] = {_both(recipe, 'synk_threads[synk_i]', 'synk_threads[synk_i + synk_step]')}",
        "        cuda.syncthreads()",
        "        synk_step *= 2",
        "    if synk_t == 0 and synk_tile == synk_first:",
        "        synk_total = synk_threads[0]",
        "    elif synk_t == 0:",
        f"        synk_total = {_both(recipe, 'synk_total', 'synk_threads[0]')}",
        "    cuda.syncthreads()",
        "if synk_t == 0 and synk_first < synk_last:",
        "    synk_there[synk_slice, synk_b] = 1",
        "    synk_partials[synk_slice, synk_b] = synk_total",
    ]


def _by_chains(recipe: ReductionRecipe) -> list[str]:
    """One thread reduces rows that are numbers: as many groups of neighbours at once as a core has work for, then these."""
    values = [f"synk_{k}" for k in range(CHAINS)]
    starts = [f"synk_{k}_start" for k in range(CHAINS)]
    both = [_both(recipe, value, _row(recipe, f"{start} + synk_i")) for value, start in zip(values, starts, strict=True)]
    return [
        "synk_there[synk_slice, 0] = 1",
        "if cuda.grid(1) == 0:",
        f"    synk_part = synk_n // {CHAINS}",
        f"    synk_value = {_row(recipe, '0')}",
        "    synk_first = 1",
        "    if synk_part > 1:",
        *(f"        {start} = {k} * synk_part" for k, start in enumerate(starts)),
        *(f"        {value} = {_row(recipe, start)}" for value, start in zip(values, starts, strict=True)),
        "        for synk_i in range(1, synk_part):",
        *(f"            {value} = {one}" for value, one in zip(values, both, strict=True)),
        "        synk_value = synk_0",
        *(f"        synk_value = {_both(recipe, 'synk_value', value)}" for value in values[1:]),
        f"        synk_first = {CHAINS} * synk_part",
        "    for synk_i in range(synk_first, synk_n):",
        f"        synk_value = {_both(recipe, 'synk_value', _row(recipe, 'synk_i'))}",
        "    synk_partials[synk_slice, 0] = synk_value",
    ]


def _both(recipe: ReductionRecipe, left: str, right: str) -> str:
    return _cast(recipe.cast, f"synk_function({left}, {right})")


def _row(recipe: ReductionRecipe, index: str) -> str:
    """A row that is a number."""
    x = recipe.parameter
    return _cast(recipe.cast, f"{x}.start + {index}" if recipe.is_indices else f"{x}[{index}]")


def _reduced(recipe: ReductionRecipe, chunk: str, first: str, others: str) -> list[str]:
    """The rows of one chunk, which have axes, by a thread for each column: the first row, and the range of the others."""
    x, last = recipe.parameter, recipe.axes - 1
    index = "".join(f", synk_k{axis}" for axis in range(recipe.axes))
    loops = [*_axis_loops(recipe.axes, "synk_partials", first=2)[:-1], f"if synk_k{last} < synk_partials.shape[{2 + last}]:"]
    element = [
        f"synk_value = {_cast(recipe.cast, f'{x}[{first}{index}]')}",
        f"for synk_i in range({others}):",
        f"    synk_value = {_both(recipe, 'synk_value', _cast(recipe.cast, f'{x}[synk_i{index}]'))}",
        f"synk_partials[synk_slice, {chunk}{index}] = synk_value",
    ]
    return [f"synk_k{last} = synk_x", *_nested(loops, element)]


def probe_source(name: str, parameters: Sequence[str]) -> str:
    """A kernel that does nothing but call the function with numbers, to see what it returns."""
    return _kernel(name, parameters, [f"synk_value = synk_function({', '.join(parameters)})"])


def _kernel(name: str, parameters: Sequence[str], body: Sequence[str]) -> str:
    return "\n".join([f"def {name}({', '.join(parameters)}):", *_indented(body)]) + "\n"


def _nested(loops: Sequence[str], body: Sequence[str]) -> list[str]:
    """Loops, one inside the other."""
    for loop in reversed(loops):
        body = [loop, *_indented(body)]
    return list(body)


def _indented(lines: Sequence[str]) -> Iterator[str]:
    return (f"    {line}" for line in lines)


def _threads(axes: int) -> list[str]:
    """Where the thread is among all, and how many there are, along x, y and z."""
    used = "xyz"[: axes + 1] if axes else ""
    return [
        line
        for axis in used[:3]
        for line in (
            f"synk_{axis} = cuda.blockIdx.{axis} * cuda.blockDim.{axis} + cuda.threadIdx.{axis}",
            f"synk_{axis}_step = cuda.gridDim.{axis} * cuda.blockDim.{axis}",
        )
    ]


def _row_loop(axes: int, count: str) -> str:
    step = ("synk_y", count, "synk_y_step") if axes else ("cuda.grid(1)", count, "cuda.gridsize(1)")
    return f"for synk_j in range({', '.join(step)}):"


def _axis_loops(axes: int, array: str, first: int = 1) -> list[str]:
    loops = []
    for axis in range(axes):
        length = f"{array}.shape[{first + axis}]"
        thread = "x" if axis == axes - 1 else "z" if axis == 0 else ""
        steps = f"synk_{thread}, {length}, synk_{thread}_step" if thread else length
        loops.append(f"for synk_k{axis} in range({steps}):")
    return loops


def _index(axes: int) -> str:
    return ", ".join(["synk_j", *(f"synk_k{axis}" for axis in range(axes))])


def _argument(name: str, operand: Operand, axes: int) -> str:
    """The element of an array, whose axes are the last of the result's."""
    first = axes - len(operand.axes)
    index = [f"synk_k{first + axis}" if full else "0" for axis, full in enumerate(operand.axes)]
    told = {
        "rows": f"{name}[{', '.join(['synk_j', *index])}]",
        "whole": f"{name}[{', '.join(index)}]",
        "indices": f"{name}.start + synk_j",
        "number": f"{name}[()]",
        "scalar": name,
    }
    return _cast(operand.cast, told[operand.kind])


def _cast(cast: str | None, value: str) -> str:
    return value if cast is None else f"{cast}({value})"
