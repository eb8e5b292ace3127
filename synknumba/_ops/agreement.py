"""Whether results on several numbers of ranks agree, and the usual cause where they do not.

Another number of ranks sums in another order, so floats agree within a bound, and everything else
by equality:

    |a − b| ≤ min(64 ε √n t, 0.01) (max |a|, |b| of the array + s M) + 1000 d max |a|, |b|

n is the number of elements that the call reads, t its iterations, ε that of the coarsest float
among its arrays, and M the greatest magnitude that it reads, or, of a call that reads no floats,
that of the array. s is √n for results, in which sums over rows may cancel, and 1 for arrays that
are written; d is the relative difference of the inputs. √n is how the error of a sum grows, unless
all roundings point the same way: Higham, "Accuracy and Stability of Numerical Algorithms", 2nd
edition, chapter 4.
"""

from argparse import ArgumentTypeError
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from synknumba._ops.rows import Partition
from synknumba._types import Array

MOST = 0.01  # relative: half precision and long sequences must not make the bound meaningless
SAME = 1e-4  # relative difference of inputs which another order of sums explains
# of the rows of all ranks but the first, where an index is wrong; some may be equal by chance
MOST_OF = 0.9
# The usual cause of an index out of bounds on several ranks.
BEYOND = (
    "an index beyond the rank's rows: a guard by a length that is not the rank's, which synk.ROWS "
    "passes (or x.shape[0]); the index of a row in the whole, where arrays have the rank's rows; "
    "or other ranks' rows, which broadcast= passes, and a variable with halo= those of neighbours"
)
# That of shapes which do not fit on several ranks.
DIVIDED = (
    "an array argument of which every rank needs all, as of coefficients: it is divided into rows, "
    "unless broadcast= names it"
)
BORDER = 2  # rows on each side of a border between ranks, as halos mostly have


@dataclass(frozen=True, slots=True)
class Bound:
    """What another order of sums explains; exact for results that promise equal bits.

    Attributes:
        elements: number of elements that the call reads.
        times: number of its iterations.
        epsilon: machine epsilon of its coarsest float.
        magnitude: greatest magnitude among the floats that it reads; 0 without any.
        drift: relative difference of its inputs.
        exact: whether the same bits are required; only where the inputs have the same bits.
    """

    elements: int = 1
    times: int = 1
    epsilon: float = 0.0
    magnitude: float = 0.0
    drift: float = 0.0
    exact: bool = False

    def of(self, first: Array, second: Array, *, is_result: bool) -> float:
        """Returns the largest difference of two elements that counts as rounding."""
        if self.exact and not self.drift:
            return 0.0
        root = max(self.elements, first.size, 1) ** 0.5
        epsilon = max(self.epsilon, coarsest((first, second)))
        scale = max(greatest(first), greatest(second))
        terms = self.magnitude or scale
        if is_result:
            terms *= root
        rounding = min(64 * epsilon * root * self.times, MOST) * (scale + terms)
        return rounding + 1000 * self.drift * scale


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two arrays differ by more than rounding; without rows if their shapes or types differ.

    Attributes:
        what: "shape" or "dtype", or "value" of anything but arrays, if that differs; "" for
            elements.
        index: of the first element that differs.
        values: what the two have there, or their shapes or dtypes.
        rows: those that differ, along axis 0; none of a number.
        count: number of rows, 0 of a number.
        ratio: second to first, if that is the same for all elements.
    """

    what: str = ""
    index: tuple[int, ...] = ()
    values: tuple[Any, Any] = (None, None)
    rows: tuple[int, ...] = ()
    count: int = 0
    ratio: float | None = None


def rank_numbers(text: str) -> list[int]:
    """Returns the numbers of ranks that an option lists.

    Raises ArgumentTypeError for anything else, or a number that is listed twice.

    >>> rank_numbers("1,2,3")
    [1, 2, 3]
    """
    with suppress(ValueError):
        numbers = [int(number) for number in text.split(",")]
        if are_sizes(numbers):
            return numbers
    raise ArgumentTypeError(
        f"must be at least 1, or a list of different numbers to compare, as 1,2,3; got {text!r}"
    )


def are_sizes(numbers: Sequence[Any]) -> bool:
    """Returns whether all of several are numbers of ranks, and different."""
    are_whole = all(type(number) is int and number > 0 for number in numbers)
    return are_whole and len(set(numbers)) == len(numbers)


def greatest(array: Array) -> float:
    """Returns the greatest finite magnitude of floats or complex numbers; 0 of other arrays."""
    if array.dtype.kind not in "fc" or not array.size:
        return 0.0
    magnitudes = np.abs(array)
    return float(np.max(magnitudes, initial=0, where=np.isfinite(magnitudes)))


def difference(
    first: Any, second: Any, bound: Bound, *, is_result: bool = False
) -> Difference | None:
    """Returns where two arrays, or anything else, differ beyond a bound; None if they agree.

    NaN equals NaN, and infinities equal themselves.

    >>> difference(np.array([1.0, 2.0]), np.array([1.0, 4.0]), Bound())
    Difference(what='', index=(1,), values=(2.0, 4.0), rows=(1,), count=2, ratio=None)
    """
    if first is second:
        return None
    if not (isinstance(first, np.ndarray) and isinstance(second, np.ndarray)):
        return Difference("value", values=(first, second))
    if first.shape != second.shape:
        return Difference("shape", values=(first.shape, second.shape))
    if first.dtype != second.dtype:
        return Difference("dtype", values=(first.dtype, second.dtype))
    differs = _unequal(first, second)
    if first.dtype.kind in "fc" and differs.any():
        are_finite = np.isfinite(first) & np.isfinite(second)
        limit = bound.of(first, second, is_result=is_result)
        with np.errstate(invalid="ignore", over="ignore"):  # of infinities, which are left out
            differs &= ~are_finite | (np.abs(first - second) > limit)
    if not differs.any():
        return None
    index = tuple(int(i) for i in np.argwhere(differs)[0])
    values, ratio = (first[index].item(), second[index].item()), _ratio(first, second)
    if not first.ndim:
        return Difference("", index, values, ratio=ratio)
    rows = tuple(np.flatnonzero(differs.reshape(len(first), -1).any(1)).tolist())
    return Difference("", index, values, rows, len(first), ratio)


def drift(first: Any, second: Any) -> float:
    """Returns the relative difference of two inputs: infinite if they do not agree within `SAME`.

    >>> drift(np.float32([1, 2]), np.float32([1, 2])), drift(np.ones(2), np.zeros(2))
    (0.0, inf)
    """
    if difference(first, second, Bound()) is None:
        return 0.0
    are_comparable = isinstance(first, np.ndarray) and first.shape == np.shape(second)
    if not are_comparable or first.dtype.kind not in "fc":
        return np.inf
    scale = np.float64(max(greatest(first), greatest(second)))
    with np.errstate(all="ignore"):  # of infinities, and of zeros beside NaN
        relative = np.max(np.abs(first - second), where=_unequal(first, second), initial=0) / scale
    if not relative <= SAME:
        return np.inf
    return float(relative)


def is_by_rank(difference: Difference, ranks: tuple[int, int]) -> bool:
    """Returns whether shapes differ in axes alone that have an entry for each rank, in both.

    >>> is_by_rank(Difference("shape", values=((10, 2), (10, 3))), (2, 3))
    True
    """
    if difference.what != "shape":
        return False
    first, second = difference.values
    lengths = {pair for pair in zip(first, second, strict=False) if pair[0] != pair[1]}
    return len(first) == len(second) and lengths == {ranks}


def cause(
    difference: Difference,
    ranks: tuple[int, int],
    *,
    has_few_threads: bool = False,
    summed_by: str = "",
) -> str:
    """Returns the usual cause of a difference, and the remedy.

    Args:
        difference: where the two runs differ.
        ranks: number of ranks of the two runs.
        has_few_threads: whether the launch has a number of blocks of its own, too small for the
            rows.
        summed_by: op of the output, other than "sum", to which atomics may add; "" without.
    """
    if difference.what:
        return ""
    if summed_by:
        return (
            f'atomics that add into an output of op "{summed_by}": ranks\' sums are combined by '
            f'{summed_by}; declare op "sum", and divide by the number of rows for a mean'
        )
    rows, count, factor = difference.rows, difference.count, ranks[1] / ranks[0]
    if difference.ratio and np.isclose([factor, 1 / factor], difference.ratio, 1e-3).any():
        return (
            "a factor of the number of ranks: every rank adds what is there once, as of a replica "
            "or a broadcast argument; or "
            'ranks\' sums are averaged, as atomics into an output of op "mean", which takes "sum" '
            "and a division by the rows"
        )
    if has_few_threads:
        return (
            "grid= launches as many blocks on each rank, for as many rows: go on by strides, for i "
            "in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)), or leave grid= out"
        )
    if rows and _are_at_borders(rows, ranks, count):
        return (
            "rows at the borders between ranks: a guard by a length that is not the rank's, which "
            "synk.ROWS passes (or x.shape[0]); neighbours that are other ranks' rows, which a "
            "variable with halo= has, and synk.exchange renews; or an array argument of which "
            "every rank needs all, as of coefficients, and which broadcast= passes whole"
        )
    # rows of the first of several ranks
    firsts = (Partition.even(size).edges(count)[1] for size in ranks if size > 1)
    start = max(firsts, default=0)
    if rows and rows[0] >= start and len(rows) > MOST_OF * (count - start):
        return (
            "rows of all ranks but the first: an index in the whole where arrays have the rank's "
            "rows, which begin at 0; the rank's row where that of the whole is meant, as of random "
            "numbers, which is synk.OFFSET more; or a guard by a length that is not the rank's, "
            "which synk.ROWS passes, so that rows are written twice"
        )
    return (
        "rows that are counted twice, left out, or another rank's: a guard by a length that is not "
        "the rank's, which synk.ROWS passes (or x.shape[0]); a loop over halo rows, which are "
        "other ranks' (synk.OWN passes its own); or reads of rows beside its own, which take a "
        "variable with halo= and synk.exchange, or broadcast= for all rows of an array argument"
    )


def _are_at_borders(rows: Sequence[int], ranks: tuple[int, int], count: int) -> bool:
    """Returns whether all rows are at the borders between ranks, in one of the two runs."""
    near: set[int] = set()
    for size in ranks:
        for edge in Partition.even(size).edges(count)[1:-1]:
            near.update(range(edge - BORDER, edge + BORDER))
    return near.issuperset(rows)


def _unequal(first: Array, second: Array) -> Array:
    unequal: Array = np.asarray(first != second)
    if first.dtype.kind in "fc":
        unequal &= ~(np.isnan(first) & np.isnan(second))
    return unequal


def _ratio(first: Array, second: Array) -> float | None:
    """Returns the ratio of all elements of two arrays of numbers; None if there is no such."""
    if first.dtype.kind not in "iuf":
        return None
    with np.errstate(all="ignore"):  # infinities and zeros have no ratio
        ratio = np.nansum(np.abs(second), dtype=float) / np.nansum(np.abs(first), dtype=float)
        is_common = np.allclose(second, ratio * first, rtol=1e-3, atol=0, equal_nan=True)
    if not is_common:
        return None
    return float(ratio)


def coarsest(arrays: Sequence[Array]) -> float:
    """Returns the machine epsilon of the coarsest float among arrays; 0 without any."""
    dtypes = [array.dtype for array in arrays if array.dtype.kind in "fc"]
    return max((float(np.finfo(dtype).eps) for dtype in dtypes), default=0.0)
