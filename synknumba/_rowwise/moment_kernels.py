"""Text of the kernel that takes an expectation value: the user's function of every row, and its
moments.

    row → function → value, less the thread's centre → sums and sums of squares of each thread, in
    the loop sums → smem → mean of the block → sums of squares about it → smem → one line
    lines of all blocks → the block that ends last, in their order → one line of the partial results

The centre is one of the values: the first. Sums about it are as exact as those about the mean, but
for the square of its distance from the mean in units of the spread. They take no division per row,
and so on a core a 30th of the time of a running mean (Welford's method). With weights, sums about a
large value of a light row would lose those of heavy rows, so a row of more than twice the weight of
the centre becomes the centre, and the sums are moved there. In units of its weight, all n rows then
weigh 2 n at most. From thread to block they are moved to the mean of the block, where they add up;
so are those of the blocks to the mean of all, by the formula of `synknumba._rowwise.moments`. The
kernel is in Numba's CUDA dialect, with the parameters of the function and some of its own.

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
from typing import final

from synknumba._rowwise.generate import (
    DIVIDED,
    SIGNED,
    THREADS,
    UNSIGNED,
    Kind,
    indented,
    kernel_text,
    numbered,
    row_count,
)
from synknumba._rowwise.moments import Columns

# Of 2 KiB each: with the centres, within the 48 KiB of smem that a block has on every GPU.
MAX_ROOMS = 23
# of a row: with the numbers of rows and weights, their sums are in smem at once
MAX_VALUES = MAX_ROOMS - 2

# Global names that the kernel uses, which no parameter may have.
OWN_NAMES = frozenset({"cuda", "float32", "float64", "int32", "nan", "range"})

# normal numbers: what a weight is at least where it is not 0
_LEAST = {"float64": 2.0**-1022, "float32": 2.0**-126}

# Sums with weights about a centre that was larger by `move`; twice in sums, to keep float32.
_MOVED = (
    "synk_q#_# += synk_move * (synk_s# + synk_s# + synk_move * synk_w)",
    "synk_s# += synk_move * synk_w",
    "synk_b# += synk_move * (synk_a# + synk_a# + synk_move * synk_z)",
    "synk_a# += synk_move * synk_z",
)

# The lines that a block stores to, up to the column.
_RESULT = "synk_partials[synk_slice"
_LINE = "synk_lines[cuda.blockIdx.x"
_PART = f"{_RESULT}, synk_at"


@final
@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that a kernel depends on."""

    name: str
    parameters: Mapping[str, Kind]  # of the function, and what it gets for each
    # length of the tuple that the function returns; None where it returns a number
    size: int | None
    # the parameter that is the row's weight; "" if the last of the values returned is; None without
    # weights
    weight: str | None
    covariance: bool  # whether products of different values are summed
    real: str  # type of a thread's sums, "float64" or "float32"
    one_block: bool  # whether there is only one block, whose line is the partial result
    scaled: bool = False  # whether values and weights are multiplied by numbers of the call
    together: int = 1  # rows whose numbers a thread reads before it uses any
    blocked: bool = False  # whether the moments are those of means of blocks of rows

    @property
    def values(self) -> int:
        """Values of a row."""
        return (self.size or 1) - (self.weight == "")

    @property
    def weighted(self) -> bool:
        """Whether rows have weights."""
        return self.weight is not None

    @property
    def scales(self) -> list[str]:
        """Parameters that the values, and the weight, are multiplied by."""
        if not self.scaled:
            return []
        scales = self.per_value("synk_by#")
        if self.weighted:
            scales.append("synk_by_w")
        return scales

    def per_value(self, *lines: str) -> list[str]:
        """Lines for each value, whose number is # in them."""
        return numbered(self.values, *lines)

    def per_pair(self, line: str) -> list[str]:
        """A line for each pair of values, whose numbers are # and @ in it."""
        return [line.replace("#", str(i)).replace("@", str(j)) for i, j in self.columns.pairs]

    @property
    def columns(self) -> Columns:
        """The columns of a line."""
        return Columns(self.values, self.covariance, self.weighted)

    @property
    def part_columns(self) -> int:
        """Numbers of each of the two parts of blocks after a line: rows, weight, number of the
        block, mean, rounding error.
        """
        return 3 + 2 * self.values if self.blocked else 0

    @property
    def recentred(self) -> bool:
        """Whether centres have weights: those of rows, or the numbers of blocks of rows."""
        return self.weighted or self.blocked

    @property
    def counter(self) -> int:
        """Column of a partial result, after all others, in which a launch of several blocks counts
        those that have written their lines. It is 0 at the start, as all of them are.
        """
        return self.columns.count + 2 * self.part_columns

    @property
    def width(self) -> int:
        """Numbers of a partial result."""
        return self.counter + (not self.one_block)

    @property
    def rooms(self) -> int:
        """Numbers of each thread in smem at once. Those for the means are there together, the
        sums about these in groups.
        """
        return max(2 + self.values, min(self.late_rooms, MAX_ROOMS))

    @property
    def late_rooms(self) -> int:
        """Numbers of a line after the means."""
        return self.columns.count - self.columns.products.start


def kernel_source(recipe: Recipe) -> str:
    """The kernel: a function of partial results, the slice's number, the function's parameters, and
    the scales.

    Where it sums blocks, the position of the slice's first row comes before the parameters, and the
    rows of a block at the end. With several blocks, their lines are the second parameter, shape
    (blocks, columns).
    """
    parameters = ["synk_partials"]
    target = _RESULT
    if not recipe.one_block:
        parameters.append("synk_lines")
        target = _LINE
    parameters.append("synk_slice")
    last, loop = [], _loop
    if recipe.blocked:
        parameters.append("synk_position")
        last, loop = ["synk_block"], _loop_over_blocks
    body = [*_head(recipe), *loop(recipe), *_means(recipe, target), *_squares(recipe, target)]
    if not recipe.one_block:
        body += _last_block(recipe)
    return kernel_text(recipe.name, [*parameters, *recipe.parameters, *recipe.scales, *last], body)


def _head(recipe: Recipe) -> list[str]:
    """Declarations, and a thread's sums at 0.

    p: centre; s: Σ w (v − p); q: Σ w (v − p) (v' − p'); w: Σ w; z: Σ w²; a: Σ w² (v − p); b: Σ
        w² (v − p)²; heavy: twice the weight of the centre.
    """
    name = next(name for name, kind in recipe.parameters.items() if kind in DIVIDED)
    count = row_count(name, is_range=recipe.parameters[name] == "indices")
    sums = [*recipe.per_value("synk_p#"), *recipe.per_value("synk_s#")]
    sums += recipe.per_pair("synk_q#_@")
    if recipe.weighted:
        sums += ["synk_w", "synk_z", *recipe.per_value("synk_a#"), *recipe.per_value("synk_b#")]
        sums.append("synk_heavy")
    return [
        f"synk_sums = cuda.shared.array(({recipe.rooms}, {THREADS}), float64)",
        f"synk_centre = cuda.shared.array({recipe.values}, float64)",
        "synk_t = cuda.threadIdx.x",
        f"synk_n = {count}",
        "synk_start = cuda.grid(1)",
        "synk_stride = cuda.gridsize(1)",
        *_zeros(recipe, sums),
    ]


def _zeros(recipe: Recipe, sums: Sequence[str]) -> list[str]:
    return [f"{name} = {recipe.real}(0.0)" for name in sums]


def _loop(recipe: Recipe) -> list[str]:
    """Loop over a thread's rows, one after another, or several at a time as long as there are so
    many.

    The latter is for light functions on GPUs. Indices are unsigned there: a signed one is tested
    for counting from the end at each access, which takes as long as such a function.
    """
    rest = [*_read(recipe, 0), *_added_row(recipe, 0)]
    if recipe.one_block:
        return [
            "synk_first = synk_start",
            "for synk_j in range(synk_start, synk_n, synk_stride):",
            *indented(rest),
        ]
    several: list[str] = []
    if recipe.together > 1:
        reads, sums = [], []
        for k in range(recipe.together):
            reads += _read(recipe, k)
            sums += _added_row(recipe, k)
        several = [
            f"while synk_j + synk_step{recipe.together - 1} < synk_end:",
            *indented([*reads, *sums, f"synk_j += synk_step{recipe.together}"]),
        ]
    return [
        f"synk_first = {UNSIGNED}(synk_start)",
        f"synk_end = {UNSIGNED}(synk_n)",
        *(f"synk_step{k} = {UNSIGNED}({k} * synk_stride)" for k in range(1, recipe.together + 1)),
        "synk_j = synk_first",
        *several,
        "while synk_j < synk_end:",
        *indented([*rest, "synk_j += synk_step1"]),
    ]


def _loop_over_blocks(recipe: Recipe) -> list[str]:
    """Loop over a thread's blocks of rows. The means of those of which the launch has all rows are
    added like values of rows.

    o: centre of the block's rows; f: Σ w (v − o); g: Σ w; top: twice the weight of o; e: the
    block's mean, less o.
    """
    sums = recipe.per_value("synk_o#", "synk_f#")
    row = [*_read(recipe, 0), *_value_of_row(recipe, 0)]
    mean = f"synk_e# = synk_f# / {recipe.real}(synk_stop - synk_from)"
    if recipe.weighted:
        sums += ["synk_g", "synk_top"]
        row += _heaviest(
            recipe, "synk_top", "synk_o#", "synk_v#", ["synk_f# += synk_move * synk_g"]
        )
        row += ["synk_g += synk_x", *recipe.per_value("synk_f# += synk_x * (synk_v# - synk_o#)")]
        mean = "synk_e# = synk_f# / synk_g if synk_g != 0.0 else synk_f#"
        added = ["synk_x = synk_g"]
        added += _heaviest(recipe, "synk_heavy", "synk_p#", "synk_o# + synk_e#", _MOVED)
    else:
        row += ["if synk_j == synk_from:", *indented(_centred(recipe, "synk_o#", "synk_v#"))]
        row += recipe.per_value("synk_f# += synk_v# - synk_o#")
        added = ["if synk_c == 0.0:", *indented(_centred(recipe, "synk_p#", "synk_o# + synk_e#"))]
    added += recipe.per_value("synk_d# = (synk_o# - synk_p#) + synk_e#")
    return [
        "synk_low = synk_position // synk_block",
        "synk_high = (synk_position + synk_n + synk_block - 1) // synk_block",
        "synk_c = 0.0",
        "for synk_number in range(synk_low + synk_start, synk_high, synk_stride):",
        "    synk_from = synk_number * synk_block - synk_position",
        "    synk_stop = synk_from + synk_block",
        "    if synk_from < 0:",
        "        synk_from = 0",
        "    if synk_stop > synk_n:",
        "        synk_stop = synk_n",
        *indented(_zeros(recipe, sums)),
        "    for synk_j in range(synk_from, synk_stop):",
        *indented(indented(row)),
        *indented(recipe.per_value(mean)),
        "    if synk_stop - synk_from == synk_block:",
        *indented(indented([*added, *_added_to_sums(recipe)])),
        "        synk_c += 1.0",
        "    else:",
        *indented(indented(_stored_part(recipe))),
    ]


def _stored_part(recipe: Recipe) -> list[str]:
    """Stores what the launch has of a block that it does not have as a whole; its first block,
    or its last.
    """
    rows = weight = "float64(synk_stop - synk_from)"
    if recipe.weighted:
        weight = "float64(synk_g)"
    first = recipe.columns.count
    second = first + recipe.part_columns
    return [
        f"synk_at = {first} if synk_number == synk_low else {second}",
        *_stored(_PART, 0, (rows, weight, "float64(synk_number)")),
        *_stored_means(recipe, _PART, "float64(synk_o#)", 3),
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
        "scalar": name,
    }
    return values[kind]


def _added_row(recipe: Recipe, k: int) -> list[str]:
    """Adds a row to the thread's sums; k is its place among the rows read together. The thread's
    first row has k = 0.
    """
    lines = _value_of_row(recipe, k)
    if recipe.weighted:
        lines += _heaviest(recipe, "synk_heavy", "synk_p#", "synk_v#", _MOVED)
    elif k == 0:
        lines += ["if synk_j == synk_first:", *indented(_centred(recipe, "synk_p#", "synk_v#"))]
    return [*lines, *recipe.per_value("synk_d# = synk_v# - synk_p#"), *_added_to_sums(recipe)]


def _heaviest(
    recipe: Recipe, heavy: str, centre: str, value: str, moved: Sequence[str]
) -> list[str]:
    """Makes values of weight x the centre if that is heavier than twice the centre's weight."""
    moves = [f"{heavy} = synk_x + synk_x", *_centred(recipe, centre, value, moved)]
    return [f"if synk_x > {heavy}:", *indented(moves)]


def _centred(recipe: Recipe, centre: str, value: str, moved: Sequence[str] = ()) -> list[str]:
    """Makes each value the centre, and moves sums there; unless it is ∞, about which they would be
    NaN.
    """
    if moved:
        moved = [f"synk_move = {centre} - synk_next", *moved]
    return recipe.per_value(
        f"synk_next = {value}",
        "if synk_next - synk_next == 0.0:",
        *indented(moved),
        f"    {centre} = synk_next",
    )


def _added_to_sums(recipe: Recipe) -> list[str]:
    """Adds weight x at the distances d to the thread's sums."""
    lines, by = [], ""
    if recipe.weighted:
        lines += ["synk_w += synk_x", "synk_z += synk_x * synk_x"]
        by = "synk_x * "
    lines += recipe.per_value(f"synk_s# += {by}synk_d#")
    lines += recipe.per_pair(f"synk_q#_@ += {by}synk_d# * synk_d@")
    if recipe.weighted:
        lines += recipe.per_value(
            "synk_y# = synk_x * synk_d#",
            "synk_a# += synk_x * synk_y#",
            "synk_b# += synk_y# * synk_y#",
        )
    return lines


def _value_of_row(recipe: Recipe, k: int) -> list[str]:
    """Computes the weight x and the values v of a row."""
    arguments = ", ".join(_argument(name, kind, k) for name, kind in recipe.parameters.items())
    lines = [f"synk_r = synk_function({arguments})"]
    if recipe.weight is not None:
        weight = f"synk_r[{recipe.values}]"
        if recipe.weight:
            weight = _argument(recipe.weight, recipe.parameters[recipe.weight], k)
        lines += [
            f"synk_x = {recipe.real}({_scaled(recipe, weight, 'synk_by_w')})",
            "if synk_x < 0.0:",
            f"    synk_x = {recipe.real}(nan)",
        ]
        if recipe.scaled:  # 0 · ∞ would be NaN, where a light weight is not 0
            lines += [
                f"if synk_x == 0.0 and {weight} > 0.0:",
                f"    synk_x = {recipe.real}({_LEAST[recipe.real]})",
            ]
    value = "synk_r[#]"
    if recipe.size is None:
        value = "synk_r"
    value = f"synk_v# = {recipe.real}({_scaled(recipe, value, 'synk_by#')})"
    return [*lines, *recipe.per_value(value)]


def _scaled(recipe: Recipe, value: str, scale: str) -> str:
    return f"float64({value}) * {scale}" if recipe.scaled else value


def _means(recipe: Recipe, target: str) -> list[str]:
    """The block's rows, weight and means. The centre of its sums is that of its first thread, or of
    the heaviest.
    """
    lines = []
    if not recipe.blocked:
        lines += [
            "synk_c = 0.0",
            "if synk_start < synk_n:",
            "    synk_c = float64((synk_n - synk_start - 1) // synk_stride + 1)",
        ]
    weight = "synk_c"
    if recipe.weighted:
        weight = "float64(synk_w)"
    if recipe.recentred:
        centre = _heaviest_thread(recipe, recipe.per_value("float64(synk_p#)"))
    else:
        centre = ["if synk_t == 0:", *recipe.per_value("    synk_centre[#] = float64(synk_p#)")]
    return [
        *lines,
        f"synk_u = {weight}",
        *centre,
        "cuda.syncthreads()",
        "synk_sums[0, synk_t] = synk_c",
        "synk_sums[1, synk_t] = synk_u",
        *recipe.per_value("synk_x# = float64(synk_p#) - synk_centre[#]"),
        *_own_sums(recipe.per_value("float64(synk_s#) + synk_x# * synk_u"), first=2),
        *_divided(recipe, target),
    ]


def _heaviest_thread(recipe: Recipe, values: Sequence[str]) -> list[str]:
    """Makes the values of the thread of the largest weight u the centre of the block: 16 threads
    compare 16 weights each, then thread 0 those of the 16.
    """
    places = recipe.values + 1
    return [
        *_own_sums(["synk_u", *values]),
        "cuda.syncthreads()",
        "if synk_t < 16:",
        "    synk_best = synk_t",
        f"    for synk_i in range(synk_t, {THREADS}, 16):",
        "        if synk_sums[0, synk_i] > synk_sums[0, synk_best]:",
        "            synk_best = synk_i",
        f"    synk_sums[{places}, synk_t] = float64(synk_best)",
        "cuda.syncthreads()",
        "if synk_t == 0:",
        "    synk_best = 0",
        "    for synk_row in range(16):",
        f"        synk_i = int32(synk_sums[{places}, synk_row])",
        "        if synk_sums[0, synk_i] > synk_sums[0, synk_best]:",
        "            synk_best = synk_i",
        *(f"    synk_centre[{i}] = synk_sums[{1 + i}, synk_best]" for i in range(recipe.values)),
    ]


def _own_sums(values: Sequence[str], first: int = 0) -> list[str]:
    """Puts a thread's values into its places in smem."""
    return [f"synk_sums[{room}, synk_t] = {value}" for room, value in enumerate(values, first)]


def _divided(recipe: Recipe, target: str) -> list[str]:
    """Divides the threads' sums in smem into the means, less the centre, and stores the means to a
    line.

    Sums without weight are 0, so that the mean is the centre, or NaN, as 0 · NaN and 0 · ∞ are.
    """
    return [
        *_added(2 + recipe.values),
        "synk_total = synk_sums[1, 0]",
        *(f"synk_e{i} = synk_sums[{2 + i}, 0]" for i in range(recipe.values)),
        "if synk_total != 0.0:",
        *recipe.per_value("    synk_e# /= synk_total"),
        "if synk_t == 0:",
        *indented(
            [*_stored(target, 0, ("synk_sums[0, 0]", "synk_total")), *_stored_means(recipe, target)]
        ),
        "cuda.syncthreads()",
    ]


def _stored_means(
    recipe: Recipe, target: str, centre: str = "synk_centre[#]", first: int = 2
) -> list[str]:
    """Stores each mean and its rounding error: D. Knuth, TAOCP volume 2, section 4.2.2, theorem
    B.
    """
    lines: list[str] = []
    for i in range(recipe.values):
        lines += [
            f"synk_o = {centre.replace('#', str(i))}",
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
    lines = recipe.per_value("synk_x# -= synk_e#")
    for i, j in recipe.columns.pairs:
        q, s, t = f"float64(synk_q{i}_{j})", f"float64(synk_s{i})", f"float64(synk_s{j})"
        moved = f"{q} + synk_x{j} * {s} + synk_x{i} * ({t} + synk_x{j} * synk_u)"
        lines.append(f"synk_o{i}_{j} = {moved}")
        if i == j:  # rounding
            lines += [f"if synk_o{i}_{j} < 0.0:", f"    synk_o{i}_{j} = 0.0"]
    rooms = recipe.per_pair("synk_o#_@")
    if recipe.weighted:
        z, a = "float64(synk_z)", "float64(synk_a#)"
        rooms += [z, *recipe.per_value("synk_a_moved#"), *recipe.per_value("synk_b_moved#")]
        lines += recipe.per_value(
            f"synk_a_moved# = {a} + synk_x# * {z}",
            f"synk_b_moved# = float64(synk_b#) + synk_x# * (2.0 * {a} + synk_x# * {z})",
        )
    return [*lines, *_summed(recipe, rooms, target)]


def _summed(recipe: Recipe, rooms: Sequence[str], target: str) -> list[str]:
    """Adds up the threads' sums about the mean, as many at once as smem holds, and stores them
    after the means of a line.
    """
    lines: list[str] = []
    for start in range(0, len(rooms), MAX_ROOMS):
        group = rooms[start : start + MAX_ROOMS]
        column = 2 + 2 * recipe.values + start
        totals = [f"synk_sums[{room}, 0]" for room in range(len(group))]
        if start:  # thread 0 has read the sums of the group before
            lines.append("cuda.syncthreads()")
        lines += [
            *_own_sums(group),
            *_added(len(group)),
            "if synk_t == 0:",
            *indented(_stored(target, column, totals)),
        ]
    return lines


def _last_block(recipe: Recipe) -> list[str]:
    """The block that ends last, whichever it is, merges the lines of all in their order.

    A thread takes every 256th line. The centre is the mean of the first block, which always has
    rows, or of the heaviest.
    """
    rooms = numbered(recipe.late_rooms, "synk_g#")
    every_line = f"for synk_j in range(synk_t, cuda.gridDim.x, {THREADS}):"
    distances = ["synk_h = synk_lines[synk_j, 1]"]
    for i in range(recipe.values):
        mean, rest = f"synk_lines[synk_j, {2 + i}]", f"synk_lines[synk_j, {2 + recipe.values + i}]"
        distances.append(f"synk_x{i} = ({mean} - synk_centre{i}) + {rest}")
    added = ["synk_c += synk_lines[synk_j, 0]", *distances, "synk_u += synk_h"]
    added += recipe.per_value("synk_f# += synk_h * synk_x#")
    squares = [*distances, *recipe.per_value("synk_x# -= synk_e#"), *_moved_line(recipe)]
    totals = ["synk_c", "synk_u", *recipe.per_value("synk_f#")]
    return [
        *_ended_last(recipe),
        *_centre_of_lines(recipe, every_line),
        *(f"{name} = 0.0" for name in (*totals, *rooms)),
        every_line,
        *indented(added),
        *_own_sums(totals),
        *_divided(recipe, _RESULT),
        every_line,
        *indented(squares),
        *_summed(recipe, rooms, _RESULT),
    ]


def _ended_last(recipe: Recipe) -> list[str]:
    """Returns from the other blocks: the `threadFenceReduction` of NVIDIA's CUDA samples."""
    counted = f"cuda.atomic.add(synk_partials, (synk_slice, {recipe.counter}), 1.0)"
    return [
        "synk_last = cuda.shared.array(1, int32)",
        "if synk_t == 0:",
        "    cuda.threadfence()",  # the line is visible before it is counted
        f"    synk_last[0] = 1 if {counted} == cuda.gridDim.x - 1 else 0",
        "    cuda.threadfence()",
        "cuda.syncthreads()",
        "if synk_last[0] == 0:",
        "    return",
    ]


def _centre_of_lines(recipe: Recipe, every_line: str) -> list[str]:
    """Reads the centre of the lines' sums, and puts it into smem."""
    lines, line = [], "0"
    if recipe.recentred:
        line = "synk_line"
        lines = [
            "synk_line = 0",
            "synk_u = -1.0",
            every_line,
            "    if synk_lines[synk_j, 1] > synk_u:",
            "        synk_line = synk_j",
            "        synk_u = synk_lines[synk_j, 1]",
        ]
    for i in range(recipe.values):
        lines += [
            f"synk_centre{i} = synk_lines[{line}, {2 + i}]",
            f"if synk_centre{i} - synk_centre{i} != 0.0:",  # a distance from ∞ would be NaN
            f"    synk_centre{i} = 0.0",
        ]
    if recipe.recentred:
        lines += _heaviest_thread(recipe, recipe.per_value("synk_centre#"))
        return [*lines, "cuda.syncthreads()", *recipe.per_value("synk_centre# = synk_centre[#]")]
    return [*lines, "if synk_t == 0:", *recipe.per_value("    synk_centre[#] = synk_centre#")]


def _moved_line(recipe: Recipe) -> list[str]:
    """Adds a line's sums of squares, moved to the mean of all."""
    first, z_room = 2 + 2 * recipe.values, len(recipe.columns.pairs)

    def stored(room: int) -> str:
        return f"synk_lines[synk_j, {first + room}]"

    lines: list[str] = []
    for room, (i, j) in enumerate(recipe.columns.pairs):
        lines.append(f"synk_g{room} += {stored(room)} + synk_h * synk_x{i} * synk_x{j}")
    if not recipe.weighted:
        return lines
    z = stored(z_room)
    lines.append(f"synk_g{z_room} += {z}")
    for i in range(recipe.values):
        a_room, x = z_room + 1 + i, f"synk_x{i}"
        b_room = a_room + recipe.values
        a, b = stored(a_room), stored(b_room)
        lines += [
            f"synk_g{a_room} += {a} + {x} * {z}",
            f"synk_g{b_room} += {b} + {x} * (2.0 * {a} + {x} * {z})",
        ]
    return lines


def _added(rooms: int) -> list[str]:
    """Adds up all threads of the block, always in one order: 16 threads for a room take every
    16th sum, then one takes those of the 16.
    """
    return [
        "cuda.syncthreads()",
        f"for synk_i in range(synk_t, {16 * rooms}, {THREADS}):",
        "    synk_part = 0.0",
        # of known length, so that compilers unroll it
        f"    for synk_row in range({THREADS // 16}):",
        "        synk_part += synk_sums[synk_i // 16, synk_i % 16 + 16 * synk_row]",
        "    synk_sums[synk_i // 16, synk_i % 16] = synk_part",
        "cuda.syncthreads()",
        f"if synk_t < {rooms}:",
        "    synk_part = 0.0",
        "    for synk_row in range(16):",
        "        synk_part += synk_sums[synk_t, synk_row]",
        "    synk_sums[synk_t, 0] = synk_part",
        "cuda.syncthreads()",
    ]


def _stored(target: str, first: int, values: Sequence[str]) -> list[str]:
    separator = " + " if target == _PART else ", "
    return [f"{target}{separator}{column}] = {value}" for column, value in enumerate(values, first)]
