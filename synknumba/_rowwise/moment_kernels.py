"""Text of the kernel that takes an expectation value: the user's function of every row, and its
moments.

    row → function → value, less the thread's first value → sums and sums of squares of each thread,
    in the loop sums → smem → mean of the block → sums of squares about it → smem → one line
    lines of all blocks → the block that ends last, in their order → one line of the partial results

Sums about one of the values are as exact as those about the mean, but for the square of its
distance from the mean in units of the spread. They take no division per row, and so on a core a
30th of the time of a running mean (Welford's method). From thread to block they are moved to the
mean of the block, where they add up; so are those of the blocks to the mean of all, by the formula
of `synknumba._ops.moments`. The kernel is in Numba's CUDA dialect, with the parameters of the
function and some of its own.

Correlated rows are summed in blocks of k, counted from the first row of the call: a thread adds up
the rows of a block, and the mean of the block is its value. What a launch has of a block that began
before it, or ends after it, is stored as a part, beside its line.

    rows of the call   0      k      2k     3k     4k            two launches, of blocks of k rows: three of their means, and
    launches           ├───────────────┼──────────────┤          two parts, which are put together from the lines
                         mean   mean  part part  mean

Where rows are numbers and the function is light, a thread of a GPU reads those of several rows
before it uses one: waiting for each row would take longer than the function.

It is text as the loop has variables for each value. With the parts after the loop as Python
functions with closure constants, which saves 24 lines, a core is as fast, but takes 2.2 s instead
of 1.75 s to compile the kernel of one value.
"""  # noqa: E501

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

from synknumba._rowwise.generate import SIGNED, UNSIGNED, indented, kernel_text

THREADS = 256  # of a block
MAX_ROOMS = (
    23  # of 2 KiB each: with the centres, within the 48 KiB of smem that a block has on every GPU
)
# of a row: with the numbers of rows and weights, their sums are in smem at once
MAX_VALUES = MAX_ROOMS - 2

# Global names that the kernel uses, which no parameter may have.
OWN_NAMES = frozenset({"cuda", "float32", "float64", "int32", "nan", "range"})

# The lines that a block stores to, up to the column.
_RESULT = "synk_partials[synk_slice"
_LINE = "synk_lines[cuda.blockIdx.x + 1"
_PART = f"{_RESULT}, synk_at"

Kind: TypeAlias = Literal["numbers", "rows", "indices", "number", "whole"]
"""What the function gets of an argument: its row, which is a number or an array; the row's global
index; the number of a 0-d array; the argument itself."""

ARRAYS_OF_ROWS: frozenset[Kind] = frozenset({"numbers", "rows"})
DIVIDED: frozenset[Kind] = ARRAYS_OF_ROWS | {"indices"}  # over the ranks


@final
@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that a kernel depends on."""

    name: str
    parameters: Mapping[str, Kind]  # of the function, and what it gets for each
    # length of the tuple that the function returns; None where it returns a number
    size: int | None
    weight: (
        str | None
        # the parameter that is the row's weight; "" if the last of the values returned is; None
        # without weights
    )
    covariance: bool  # whether products of different values are summed
    real: str  # type of a thread's sums, "float64" or "float32"
    one_block: bool  # whether there is only one block, whose line is the partial result
    scaled: bool = (
        False  # whether each value, and the weight, is multiplied by a number passed with the call
    )
    together: int = 1  # rows whose numbers a thread reads before it uses any
    blocked: bool = False  # whether the moments are those of means of blocks of rows

    @property
    def values(self) -> int:
        """Values of a row."""
        return (self.size or 1) - (self.weight == "")

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Pairs of values whose products are summed."""
        values = range(self.values)
        return tuple(
            (i, j) for i in values for j in values if i == j or (i < j and self.covariance)
        )

    @property
    def scales(self) -> list[str]:
        """Parameters that the values, and the weight, are multiplied by."""
        names = [f"synk_by{i}" for i in range(self.values)] + (
            [] if self.weight is None else ["synk_by_w"]
        )
        return names if self.scaled else []

    @property
    def columns(self) -> int:
        """Numbers of a line: rows, weight, means, their rounding errors, products, sums with w²."""
        return 2 + 2 * self.values + self.late_rooms

    @property
    def part_columns(self) -> int:
        """Numbers of each of the two parts of blocks after a line: rows, weight, number of the
        block, mean, rounding error.
        """
        return 3 + 2 * self.values if self.blocked else 0

    @property
    def rooms(self) -> int:
        """Numbers of each thread in smem at once. Those for the means are there together, the
        sums about these in groups.
        """
        return max(2 + self.values, min(self.late_rooms, MAX_ROOMS))

    @property
    def late_rooms(self) -> int:
        """Numbers of a line after the means."""
        return len(self.pairs) + (0 if self.weight is None else 1 + 2 * self.values)


def kernel_source(recipe: Recipe) -> str:
    """The kernel: a function of partial results, the slice's number, the function's parameters, and
    the scales.

    Where it sums blocks, the position of the slice's first row comes before the parameters, and the
    rows of a block at the end. With several blocks, their lines are the second parameter: zeros,
    shape (blocks + 1, columns). The first line counts the blocks that have written theirs.
    """
    body = [*_head(recipe), *(_loop_over_blocks(recipe) if recipe.blocked else _loop(recipe))]
    parameters = ["synk_partials", "synk_slice", *(["synk_position"] if recipe.blocked else [])]
    if recipe.one_block:
        body += [*_means(recipe, _RESULT), *_squares(recipe, _RESULT)]
    else:
        parameters.insert(1, "synk_lines")
        body += [*_means(recipe, _LINE), *_squares(recipe, _LINE), *_last_block(recipe)]
    last = ["synk_block"] if recipe.blocked else []
    return kernel_text(recipe.name, [*parameters, *recipe.parameters, *recipe.scales, *last], body)


def _head(recipe: Recipe) -> list[str]:
    """Declarations, and a thread's sums at 0.

    p: first value; s: Σ w (v − p); q: Σ w (v − p) (v' − p'); w: Σ w; z: Σ w²; a: Σ w² (v − p); b: Σ
        w² (v − p)².
    """
    name, kind = next((name, kind) for name, kind in recipe.parameters.items() if kind in DIVIDED)
    count = f"{name}.stop - {name}.start" if kind == "indices" else f"{name}.shape[0]"
    sums = [f"synk_p{i}" for i in range(recipe.values)] + [
        f"synk_s{i}" for i in range(recipe.values)
    ]
    sums += [f"synk_q{i}_{j}" for i, j in recipe.pairs]
    if recipe.weight is not None:
        sums += [
            "synk_w",
            "synk_z",
            *(f"synk_{letter}{i}" for letter in "ab" for i in range(recipe.values)),
        ]
    return [
        f"synk_sums = cuda.shared.array(({recipe.rooms}, {THREADS}), float64)",
        f"synk_centre = cuda.shared.array({recipe.values}, float64)",
        "synk_t = cuda.threadIdx.x",
        f"synk_n = {count}",
        "synk_start = cuda.grid(1)",
        "synk_stride = cuda.gridsize(1)",
        *(f"{name} = {recipe.real}(0.0)" for name in sums),
    ]


def _loop(recipe: Recipe) -> list[str]:
    """Loop over a thread's rows, one after another, or several at a time as long as there are so
    many.

    The latter is for light functions on GPUs. Indices are unsigned there: a signed one is tested
    for counting from the end at each access, which takes as long as such a function.
    """
    rest = [*_read(recipe, 0), *_added_row(recipe, 0)]
    if recipe.together == 1:
        return [
            "synk_first = synk_start",
            "for synk_j in range(synk_start, synk_n, synk_stride):",
            *indented(rest),
        ]
    rows = range(recipe.together)
    body = [line for k in rows for line in _read(recipe, k)] + [
        line for k in rows for line in _added_row(recipe, k)
    ]
    return [
        f"synk_first = {UNSIGNED}(synk_start)",
        f"synk_end = {UNSIGNED}(synk_n)",
        *(f"synk_step{k} = {UNSIGNED}({k} * synk_stride)" for k in range(1, recipe.together + 1)),
        "synk_j = synk_first",
        f"while synk_j + synk_step{recipe.together - 1} < synk_end:",
        *indented([*body, f"synk_j += synk_step{recipe.together}"]),
        "while synk_j < synk_end:",
        *indented([*rest, "synk_j += synk_step1"]),
    ]


def _loop_over_blocks(recipe: Recipe) -> list[str]:
    """Loop over a thread's blocks of rows. Those of which the launch has all rows are added like
    rows.

    f: Σ w (v − p) of the block; g: Σ w of the block; e: the mean of the block, less p.
    """
    values, real, weighted = range(recipe.values), recipe.real, recipe.weight is not None
    sums = [f"synk_f{i}" for i in values] + (["synk_g"] if weighted else [])
    by = "synk_x * " if weighted else ""
    row = [
        *_read(recipe, 0),
        *_value_of_row(recipe, 0),
        *(f"synk_f{i} += {by}synk_d{i}" for i in values),
    ]
    if weighted:
        row += ["synk_g += synk_x"]
        mean = [f"synk_e{i} = synk_f{i} / synk_g if synk_g != 0.0 else synk_f{i}" for i in values]
        added = ["synk_w += synk_g", "synk_z += synk_g * synk_g"]
        added += [f"synk_s{i} += synk_f{i}" for i in values]
        added += [f"synk_q{i}_{j} += synk_f{i} * synk_e{j}" for i, j in recipe.pairs]
        for i in values:
            added += [f"synk_a{i} += synk_g * synk_f{i}", f"synk_b{i} += synk_f{i} * synk_f{i}"]
    else:
        mean = [f"synk_e{i} = synk_f{i} / {real}(synk_stop - synk_from)" for i in values]
        added = [f"synk_s{i} += synk_e{i}" for i in values]
        added += [f"synk_q{i}_{j} += synk_e{i} * synk_e{j}" for i, j in recipe.pairs]
    return [
        "synk_low = synk_position // synk_block",
        "synk_high = (synk_position + synk_n + synk_block - 1) // synk_block",
        "synk_first = (synk_low + synk_start) * synk_block - synk_position",
        "if synk_first < 0:",
        "    synk_first = 0",
        "synk_c = 0.0",
        "for synk_number in range(synk_low + synk_start, synk_high, synk_stride):",
        "    synk_from = synk_number * synk_block - synk_position",
        "    synk_stop = synk_from + synk_block",
        "    if synk_from < 0:",
        "        synk_from = 0",
        "    if synk_stop > synk_n:",
        "        synk_stop = synk_n",
        *(f"    {name} = {real}(0.0)" for name in sums),
        "    for synk_j in range(synk_from, synk_stop):",
        *indented(indented(row)),
        *indented(mean),
        "    if synk_stop - synk_from == synk_block:",
        "        synk_c += 1.0",
        *indented(indented(added)),
        "    else:",
        *indented(indented(_stored_part(recipe))),
    ]


def _stored_part(recipe: Recipe) -> list[str]:
    """Stores what the launch has of a block that it does not have as a whole; its first block,
    or its last.
    """
    rows = "float64(synk_stop - synk_from)"
    weight = rows if recipe.weight is None else "float64(synk_g)"
    return [
        (
            f"synk_at = {recipe.columns} if synk_number == synk_low else "
            f"{recipe.columns + recipe.part_columns}"
        ),
        *_stored(_PART, 0, (rows, weight, "float64(synk_number)")),
        *_stored_means(recipe, _PART, "float64(synk_p{i})", 3),
    ]


def _index(k: int) -> str:
    """Index of the k-th of the rows that are read together."""
    return f"synk_j + synk_step{k}" if k else "synk_j"


def _read(recipe: Recipe, k: int) -> list[str]:
    names = (name for name, kind in recipe.parameters.items() if kind == "numbers")
    return [f"synk_{k}_{name} = {name}[{_index(k)}]" for name in names]


def _argument(name: str, kind: Kind, k: int) -> str:
    values = {
        "numbers": f"synk_{k}_{name}",
        "rows": f"{name}[{_index(k)}]",
        "indices": f"{name}.start + {SIGNED}({_index(k)})",
        "number": f"{name}[()]",
        "whole": name,
    }
    return values[kind]


def _added_row(recipe: Recipe, k: int) -> list[str]:
    """Adds a row to the thread's sums; k is its place among the rows read together. The thread's
    first row has k = 0.
    """
    lines = _value_of_row(recipe, k)
    if recipe.weight is not None:
        lines += ["synk_w += synk_x", "synk_z += synk_x * synk_x"]
    by = "" if recipe.weight is None else "synk_x * "
    lines += [f"synk_s{i} += {by}synk_d{i}" for i in range(recipe.values)]
    lines += [f"synk_q{i}_{j} += {by}synk_d{i} * synk_d{j}" for i, j in recipe.pairs]
    if recipe.weight is not None:
        for i in range(recipe.values):
            lines += [
                f"synk_y{i} = synk_x * synk_d{i}",
                f"synk_a{i} += synk_x * synk_y{i}",
                f"synk_b{i} += synk_y{i} * synk_y{i}",
            ]
    return lines


def _value_of_row(recipe: Recipe, k: int) -> list[str]:
    """Computes the weight x of a row, and the distances d of its values from the thread's first
    ones.
    """
    arguments = ", ".join(_argument(name, kind, k) for name, kind in recipe.parameters.items())
    lines = [f"synk_r = synk_function({arguments})"]
    if recipe.weight is not None:
        name = recipe.weight
        weight = _argument(name, recipe.parameters[name], k) if name else f"synk_r[{recipe.values}]"
        lines += [
            f"synk_x = {recipe.real}({_scaled(recipe, weight, 'synk_by_w')})",
            "if synk_x < 0.0:",
            f"    synk_x = {recipe.real}(nan)",
        ]
    for i in range(recipe.values):
        value = "synk_r" if recipe.size is None else f"synk_r[{i}]"
        lines += [f"synk_v{i} = {recipe.real}({_scaled(recipe, value, f'synk_by{i}')})"]
        if k == 0:
            lines += [
                # sums about ∞ would be NaN
                f"if synk_j == synk_first and synk_v{i} - synk_v{i} == 0.0:",
                f"    synk_p{i} = synk_v{i}",
            ]
        lines += [f"synk_d{i} = synk_v{i} - synk_p{i}"]
    return lines


def _scaled(recipe: Recipe, value: str, scale: str) -> str:
    return f"float64({value}) * {scale}" if recipe.scaled else value


def _means(recipe: Recipe, target: str) -> list[str]:
    """The block's rows, weight and means. The centre of its sums is the first value of its first
    thread.
    """
    values, weighted = range(recipe.values), recipe.weight is not None
    counted = [
        "synk_c = 0.0",
        "if synk_start < synk_n:",
        "    synk_c = float64((synk_n - synk_start - 1) // synk_stride + 1)",
    ]
    return [
        *([] if recipe.blocked else counted),
        f"synk_u = {'float64(synk_w)' if weighted else 'synk_c'}",
        "if synk_t == 0:",
        *(f"    synk_centre[{i}] = float64(synk_p{i})" for i in values),
        "cuda.syncthreads()",
        "synk_sums[0, synk_t] = synk_c",
        "synk_sums[1, synk_t] = synk_u",
        *(f"synk_x{i} = float64(synk_p{i}) - synk_centre[{i}]" for i in values),
        *(f"synk_sums[{2 + i}, synk_t] = float64(synk_s{i}) + synk_x{i} * synk_u" for i in values),
        *_divided(recipe, target),
    ]


def _divided(recipe: Recipe, target: str) -> list[str]:
    """Divides the threads' sums in smem into the means, less the centre, and stores the means to a
    line.

    Sums without weight are 0, so that the mean is the centre, or NaN, as 0 · NaN and 0 · ∞ are.
    """
    values = range(recipe.values)
    return [
        *_added(2 + recipe.values),
        "synk_total = synk_sums[1, 0]",
        *(f"synk_e{i} = synk_sums[{2 + i}, 0]" for i in values),
        "if synk_total != 0.0:",
        *(f"    synk_e{i} /= synk_total" for i in values),
        "if synk_t == 0:",
        *indented(
            [*_stored(target, 0, ("synk_sums[0, 0]", "synk_total")), *_stored_means(recipe, target)]
        ),
        "cuda.syncthreads()",
    ]


def _stored_means(
    recipe: Recipe, target: str, centre: str = "synk_centre[{i}]", first: int = 2
) -> list[str]:
    """Stores each mean and its rounding error: D. Knuth, TAOCP volume 2, section 4.2.2, theorem
    B.
    """
    lines: list[str] = []
    for i in range(recipe.values):
        lines += [
            f"synk_o = {centre.format(i=i)}",
            f"synk_m = synk_o + synk_e{i}",
            "synk_k = synk_m - synk_o",
            f"synk_l = (synk_o - (synk_m - synk_k)) + (synk_e{i} - synk_k)",
            "if synk_l - synk_l != 0.0:",  # the mean is infinite
            "    synk_l = 0.0",
            *_stored(target, first + i, ("synk_m",)),
            *_stored(target, first + recipe.values + i, ("synk_l",)),
        ]
    return lines


def _squares(recipe: Recipe, target: str) -> list[str]:
    """The block's sums of squares and products about its means."""
    # from the mean to the thread's first value
    lines = [f"synk_x{i} -= synk_e{i}" for i in range(recipe.values)]
    rooms = []
    for i, j in recipe.pairs:
        parts = f"float64(synk_q{i}_{j})", f"float64(synk_s{i})", f"float64(synk_s{j})"
        name = f"synk_o{i}_{j}"
        lines += [
            (
                f"{name} = {parts[0]} + synk_x{j} * {parts[1]} + synk_x{i} * "
                f"({parts[2]} + synk_x{j} * synk_u)"
            )
        ]
        lines += [f"if {name} < 0.0:", f"    {name} = 0.0"] if i == j else []  # rounding
        rooms.append(name)
    if recipe.weight is not None:
        rooms.append("float64(synk_z)")
        for letter in "ab":
            rooms += [f"synk_{letter}_moved{i}" for i in range(recipe.values)]
        for i in range(recipe.values):
            a, b, z = f"float64(synk_a{i})", f"float64(synk_b{i})", "float64(synk_z)"
            lines += [
                f"synk_a_moved{i} = {a} + synk_x{i} * {z}",
                f"synk_b_moved{i} = {b} + synk_x{i} * (2.0 * {a} + synk_x{i} * {z})",
            ]
    return [*lines, *_summed(recipe, rooms, target)]


def _summed(recipe: Recipe, rooms: Sequence[str], target: str) -> list[str]:
    """Adds up the threads' sums about the mean, as many at once as smem holds, and stores them
    after the means of a line.
    """
    lines: list[str] = []
    for start in range(0, len(rooms), MAX_ROOMS):
        group = rooms[start : start + MAX_ROOMS]
        column = 2 + 2 * recipe.values + start
        lines += [
            # thread 0 has read the sums of the group before
            *(["cuda.syncthreads()"] if start else []),
            *(f"synk_sums[{room}, synk_t] = {value}" for room, value in enumerate(group)),
            *_added(len(group)),
            "if synk_t == 0:",
            *indented(
                _stored(target, column, [f"synk_sums[{room}, 0]" for room in range(len(group))])
            ),
        ]
    return lines


def _last_block(recipe: Recipe) -> list[str]:
    """The block that ends last, whichever it is, merges the lines of all in their order.

    A thread takes every 256th line. The centre is the mean of the first block, which always has
    rows.
    """
    values = range(recipe.values)
    rooms = [f"synk_g{room}" for room in range(recipe.late_rooms)]
    every_line = f"for synk_j in range(1 + synk_t, cuda.gridDim.x + 1, {THREADS}):"
    distances = ["synk_h = synk_lines[synk_j, 1]"]
    for i in values:
        mean, rest = f"synk_lines[synk_j, {2 + i}]", f"synk_lines[synk_j, {2 + recipe.values + i}]"
        distances.append(f"synk_x{i} = ({mean} - synk_centre[{i}]) + {rest}")
    sums = ["synk_c += synk_lines[synk_j, 0]", *distances, "synk_u += synk_h"]
    sums += [f"synk_f{i} += synk_h * synk_x{i}" for i in values]
    squares = [*distances, *(f"synk_x{i} -= synk_e{i}" for i in values), *_moved_line(recipe)]
    return [
        *_ended_last(recipe),
        *(
            f"{name} = 0.0"
            for name in ("synk_c", "synk_u", *(f"synk_f{i}" for i in values), *rooms)
        ),
        every_line,
        *indented(sums),
        "synk_sums[0, synk_t] = synk_c",
        "synk_sums[1, synk_t] = synk_u",
        *(f"synk_sums[{2 + i}, synk_t] = synk_f{i}" for i in values),
        *_divided(recipe, _RESULT),
        every_line,
        *indented(squares),
        *_summed(recipe, rooms, _RESULT),
    ]


def _ended_last(recipe: Recipe) -> list[str]:
    """Returns from the other blocks, and reads the centre: the `threadFenceReduction` of
    NVIDIA's CUDA samples.
    """
    centres: list[str] = []
    for i in range(recipe.values):
        centres += [
            f"synk_m = synk_lines[1, {2 + i}]",
            # a distance from ∞ would be NaN
            f"synk_centre[{i}] = synk_m if synk_m - synk_m == 0.0 else 0.0",
        ]
    return [
        "synk_last = cuda.shared.array(1, int32)",
        "if synk_t == 0:",
        "    cuda.threadfence()",  # the line is visible before it is counted
        (
            "    synk_last[0] = 1 if cuda.atomic.add(synk_lines, (0, 0), 1.0) == "
            "cuda.gridDim.x - 1 else 0"
        ),
        "    cuda.threadfence()",
        *indented(centres),
        "cuda.syncthreads()",
        "if synk_last[0] == 0:",
        "    return",
    ]


def _moved_line(recipe: Recipe) -> list[str]:
    """Adds a line's sums of squares, moved to the mean of all."""
    first, room = 2 + 2 * recipe.values, 0
    lines = []
    for i, j in recipe.pairs:
        lines.append(
            f"synk_g{room} += synk_lines[synk_j, {first + room}] + synk_h * synk_x{i} * synk_x{j}"
        )
        room += 1
    if recipe.weight is None:
        return lines
    z = f"synk_lines[synk_j, {first + room}]"
    lines.append(f"synk_g{room} += {z}")
    for i in range(recipe.values):
        a, b = room + 1 + i, room + 1 + recipe.values + i
        line = f"synk_lines[synk_j, {first + a}]"
        lines += [
            f"synk_g{a} += {line} + synk_x{i} * {z}",
            (
                f"synk_g{b} += synk_lines[synk_j, {first + b}] + synk_x{i} * (2.0 * "
                f"{line} + synk_x{i} * {z})"
            ),
        ]
    return lines


def _added(rooms: int) -> list[str]:
    """Adds up all threads of the block, always in one order."""
    return [
        "cuda.syncthreads()",
        f"synk_half = {THREADS // 2}",
        "while synk_half > 0:",
        "    if synk_t < synk_half:",
        f"        for synk_i in range({rooms}):",
        "            synk_sums[synk_i, synk_t] += synk_sums[synk_i, synk_t + synk_half]",
        "    cuda.syncthreads()",
        "    synk_half //= 2",
    ]


def _stored(target: str, first: int, values: Sequence[str]) -> list[str]:
    column = " + " if target == _PART else ", "
    return [f"{target}{column}{first + k}] = {value}" for k, value in enumerate(values)]
