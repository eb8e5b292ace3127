"""The text of the kernel that takes an expectation value: the user's function of every row, and its moments.

    row ── function ──> value ── less the thread's first value ──> sums and sums of squares, by thread       in the loop
    sums ── smem ──> mean of the block ──> sums of squares about it ── smem ──> one line of the partial results

Sums about one of the values are as good as those about the mean, but for the square of its distance from the mean in units of
the spread. They take no division a row, and so on a core a 30th of the time of a running mean (Welford's method). From
thread to block they are moved to the mean of the block, after which they add up. The kernel is in Numba's CUDA dialect, with
the parameters of the function and two of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

THREADS = 256  # of a block
MOST_ROOMS = 23  # of 2 KiB each: with the centres, within the 48 KiB of smem that every GPU gives a block

# Of the names in the kernel, beside the parameters of the function.
OWN_PREFIX = "synk_"
OWN_NAMES = frozenset({"cuda", "float32", "float64", "nan", "range"})

Kind: TypeAlias = Literal["rows", "indices", "number", "whole"]
"""What of an argument the function gets: its row; the row's global index; a 0-d array's number; the argument itself."""


@final
@dataclass(frozen=True, slots=True)
class Recipe:
    """What a kernel is generated from.

    Attributes:
        name: of the kernel.
        parameters: of the function, and what of each argument it gets.
        size: of the tuple that it returns; None where it returns a number.
        weight: the parameter that is the row's weight; "" if the last of the values returned is; None without weights.
        covariance: whether the products of each two values are summed.
        real: the type of a thread's sums, "float64" or "float32".
    """

    name: str
    parameters: Mapping[str, Kind]
    size: int | None
    weight: str | None
    covariance: bool
    real: str

    @property
    def values(self) -> int:
        """How many values of a row there are."""
        return (self.size or 1) - (self.weight == "")

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The values whose products are summed."""
        values = range(self.values)
        return tuple((i, j) for i in values for j in values if i == j or (i < j and self.covariance))

    @property
    def columns(self) -> int:
        """Numbers of a partial result: rows, weight, means, what rounding left of them, products, sums with w²."""
        return 2 + 2 * self.values + len(self.pairs) + (0 if self.weight is None else 1 + 2 * self.values)

    @property
    def rooms(self) -> int:
        """Numbers that each thread puts into smem at once."""
        return max(2 + self.values, len(self.pairs) + (0 if self.weight is None else 1 + 2 * self.values))


def kernel_source(recipe: Recipe) -> str:
    """The kernel, a function of partial results, the slice's number, and the function's parameters."""
    body = [*_head(recipe), *_loop(recipe), *_means(recipe), *_squares(recipe)]
    lines = [f"def {recipe.name}(synk_partials, synk_slice, {', '.join(recipe.parameters)}):", *_indented(body)]
    return "\n".join(lines) + "\n"


def _indented(lines: Sequence[str]) -> Iterator[str]:
    return (f"    {line}" for line in lines)


def _head(recipe: Recipe) -> list[str]:
    name, kind = next((name, kind) for name, kind in recipe.parameters.items() if kind in {"rows", "indices"})
    count = f"{name}.shape[0]" if kind == "rows" else f"{name}.stop - {name}.start"
    sums = [f"synk_p{i}" for i in range(recipe.values)] + [f"synk_s{i}" for i in range(recipe.values)]
    sums += [f"synk_q{i}_{j}" for i, j in recipe.pairs]
    if recipe.weight is not None:
        sums += ["synk_w", "synk_z", *(f"synk_{letter}{i}" for letter in "ab" for i in range(recipe.values))]
    return [
        f"synk_sums = cuda.shared.array(({recipe.rooms}, {THREADS}), float64)",
        f"synk_centre = cuda.shared.array({recipe.values}, float64)",
        "synk_t = cuda.threadIdx.x",
        f"synk_n = {count}",
        "synk_start = cuda.grid(1)",
        "synk_stride = cuda.gridsize(1)",
        *(f"{name} = {recipe.real}(0.0)" for name in sums),
    ]


def _argument(name: str, kind: Kind) -> str:
    told = {"rows": f"{name}[synk_j]", "indices": f"{name}.start + synk_j", "number": f"{name}[()]", "whole": name}
    return told[kind]


def _loop(recipe: Recipe) -> list[str]:
    arguments = ", ".join(_argument(*parameter) for parameter in recipe.parameters.items())
    lines = [f"synk_r = synk_function({arguments})"]
    if recipe.weight is not None:
        weight = f"{recipe.weight}[synk_j]" if recipe.weight else f"synk_r[{recipe.values}]"
        lines += [
            f"synk_x = {recipe.real}({weight})",
            "if synk_x < 0.0:",
            f"    synk_x = {recipe.real}(nan)",
            "synk_w += synk_x",
            "synk_z += synk_x * synk_x",
        ]
    for i in range(recipe.values):
        value = "synk_r" if recipe.size is None else f"synk_r[{i}]"
        lines += [
            f"synk_v{i} = {recipe.real}({value})",
            f"if synk_j == synk_start and synk_v{i} - synk_v{i} == 0.0:",  # a sum about ∞ would be NaN
            f"    synk_p{i} = synk_v{i}",
            f"synk_d{i} = synk_v{i} - synk_p{i}",
        ]
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
    return ["for synk_j in range(synk_start, synk_n, synk_stride):", *_indented(lines)]


def _means(recipe: Recipe) -> list[str]:
    """The block's rows, weight and means, the latter from the first value of its first thread."""
    values, weighted = range(recipe.values), recipe.weight is not None
    return [
        "synk_c = 0.0",
        "if synk_start < synk_n:",
        "    synk_c = float64((synk_n - synk_start - 1) // synk_stride + 1)",
        f"synk_u = {'float64(synk_w)' if weighted else 'synk_c'}",
        "if synk_t == 0:",
        *(f"    synk_centre[{i}] = float64(synk_p{i})" for i in values),
        "cuda.syncthreads()",
        "synk_sums[0, synk_t] = synk_c",
        "synk_sums[1, synk_t] = synk_u",
        *(f"synk_x{i} = float64(synk_p{i}) - synk_centre[{i}]" for i in values),
        *(f"synk_sums[{2 + i}, synk_t] = float64(synk_s{i}) + synk_x{i} * synk_u" for i in values),
        *_added(2 + recipe.values),
        "synk_total = synk_sums[1, 0]",
        *(f"synk_e{i} = 0.0" for i in values),
        "if synk_total != 0.0:",
        *(f"    synk_e{i} = synk_sums[{2 + i}, 0] / synk_total" for i in values),
        "if synk_t == 0:",
        *_indented([*_stored(0, ("synk_sums[0, 0]", "synk_total")), *_stored_means(recipe)]),
        "cuda.syncthreads()",
    ]


def _stored_means(recipe: Recipe) -> list[str]:
    """Each mean, and what rounding leaves of it: D. Knuth, TAOCP volume 2, section 4.2.2, theorem B."""
    lines: list[str] = []
    for i in range(recipe.values):
        lines += [
            f"synk_m = synk_centre[{i}] + synk_e{i}",
            f"synk_k = synk_m - synk_centre[{i}]",
            f"synk_l = (synk_centre[{i}] - (synk_m - synk_k)) + (synk_e{i} - synk_k)",
            "if synk_l - synk_l != 0.0:",  # the mean is infinite
            "    synk_l = 0.0",
            *_stored(2 + i, ("synk_m",)),
            *_stored(2 + recipe.values + i, ("synk_l",)),
        ]
    return lines


def _squares(recipe: Recipe) -> list[str]:
    """The block's sums of squares and products about its means."""
    lines = [f"synk_x{i} -= synk_e{i}" for i in range(recipe.values)]  # from the mean to the thread's first value
    rooms = []
    for i, j in recipe.pairs:
        parts = f"float64(synk_q{i}_{j})", f"float64(synk_s{i})", f"float64(synk_s{j})"
        name = f"synk_o{i}_{j}"
        lines += [f"{name} = {parts[0]} + synk_x{j} * {parts[1]} + synk_x{i} * ({parts[2]} + synk_x{j} * synk_u)"]
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
    return [
        *lines,
        *(f"synk_sums[{room}, synk_t] = {value}" for room, value in enumerate(rooms)),
        *_added(len(rooms)),
        "if synk_t == 0:",
        *_indented(_stored(2 + 2 * recipe.values, [f"synk_sums[{room}, 0]" for room in range(len(rooms))])),
    ]


def _added(rooms: int) -> list[str]:
    """The sums over all threads of the block, always in one order."""
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


def _stored(first: int, values: Sequence[str]) -> list[str]:
    return [f"synk_partials[synk_slice, cuda.blockIdx.x, {first + k}] = {value}" for k, value in enumerate(values)]
