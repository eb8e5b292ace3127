"""Reads the partial results of an expectation's kernels, called lines, into an `Estimate`; finds
sums that overflowed.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import final

import numpy as np

from synknumba._ops import estimate as estimate_module
from synknumba._ops.estimate import Estimate
from synknumba._ops.moments import FAR, Moments, Powers, as_rows, joined, merge, of_few_lines
from synknumba._rowwise.moment_kernels import Recipe
from synknumba._types import Array

_WEIGHT, _SQUARES, _SPREAD = 1, 5, 7  # fields of a line: Σ w, Σ w² and Σ w² (v − mean)²
_LIGHTEST = -1000  # the least unit of weights, as a power of two: its inverse must be a float64


@final
@dataclass(frozen=True, slots=True)
class _Range:
    """Ranges of the type of a thread's sums, in powers of two."""

    # unit of values whose sums or squares overflow; in this unit those of any number of rows do not
    far: int
    squares: int  # sums of squares of weights between 2^−squares and 2^squares have lost no bits
    spread: (
        int  # sums of squares of weights times squares of values have lost no bits above 2^−spread
    )
    heavy: int  # unit of weights whose sum overflows
    even: int  # weights whose sum is within 2^±even cause no overflow that values alone do not


_RANGES: Mapping[str, _Range] = {
    "float64": _Range(FAR, 600, 980, 960, 60),
    "float32": _Range(80, 60, 100, 100, 10),
}


@final
@dataclass(frozen=True, slots=True)
class Units:
    """Units of each value and of the weights, as powers of two, in which sums neither overflow
    nor vanish.
    """

    values: Powers
    weight: int


@final
class LineReader:
    """Reads lines: rows, weight, means, their rounding errors, products; with weights also the
    sums with w².
    """

    __slots__ = (
        "_columns",
        "_cuts",
        "_is_plain",
        "_pairs",
        "_part_columns",
        "_range",
        "_scalar",
        "_values",
    )

    def __init__(self, recipe: Recipe) -> None:
        k = recipe.values
        widths = [1, 1, k, k, len(recipe.pairs)]
        if recipe.weighted:
            widths += [1, k, k]
        self._columns = recipe.columns
        self._part_columns = recipe.part_columns
        self._cuts = [slice(*edges) for edges in pairwise(accumulate(widths, initial=0))]
        self._pairs = recipe.pairs
        self._scalar = recipe.size is None or (recipe.weight == "" and recipe.size == 2)
        self._values = k
        self._range = _RANGES[recipe.real]
        self._is_plain = k == 1 and not recipe.weighted and not recipe.part_columns

    def read(self, parts: Sequence[Array]) -> Array:
        """The lines of all ranks and slices, in order."""
        width = self._columns + 2 * self._part_columns
        return np.concatenate([part.reshape(-1, width) for part in parts])

    def quick(self, parts: Sequence[Array]) -> Estimate | None:
        """Returns what `estimate` does, of the parts of `read`, if they are few and simple: in a
        tenth of the time.
        """
        if not self._is_plain:
            return None
        lines: list[list[float]] = []
        for part in parts:
            lines += part.reshape(-1, self._columns).tolist()
        moments = of_few_lines(lines)
        return None if moments is None else Estimate(moments, self._scalar)

    def estimate(self, lines: Array, units: Units | None = None, block: int = 1) -> Estimate:
        """Merges lines, from `read`, into one estimate. The kernels' sums are in `units`; None for
        1.

        Raises:
            ReductionError: there are no rows, or fewer than a block's.
        """
        count, weight, mean, rest, products, *squares = [lines[:, cut] for cut in self._cuts]
        if len(self._pairs) > self._values:
            matrices = np.empty((len(lines), self._values, self._values))
            for column, (i, j) in enumerate(self._pairs):
                matrices[:, i, j] = matrices[:, j, i] = products[:, column]
            products = matrices
        stacked, power, powers = None, 0, None
        if squares:
            stacked = np.stack([np.broadcast_to(square, mean.shape) for square in squares], axis=1)
        if units is not None:
            power, powers = units.weight, units.values
        moments = Moments(count, weight, mean, rest, products, stacked, power)
        if not self._part_columns:
            return estimate_module.merged(moments, scalar=self._scalar, powers=powers)
        remainder = None
        for estimate in self._put_together(lines, moments):
            if estimate.count[0, 0] == block:
                moments = joined(moments, as_rows(estimate, weighted=stacked is not None))
            else:
                remainder = estimate  # after the last whole block
        return estimate_module.merged(
            moments, scalar=self._scalar, powers=powers, rest=remainder, block=block
        )

    def _total(self, lines: Array, field: int) -> float:
        # Python's sum gives no warning of overflow, and takes a quarter of NumPy's time for few
        # lines.
        return sum(lines[:, self._cuts[field].start].tolist())

    def _lose_bits(self, lines: Array, square: float, power: int, has_overflown: bool) -> bool:
        """Whether weights whose sum is about 2^power are to be in another unit."""
        limits = self._range
        if not 2.0**-limits.squares < square < 2.0**limits.squares:
            return True
        if has_overflown and abs(power) > limits.even:
            return True
        if power >= 0:
            return False
        # No spread may come of light weights, or of equal values; only sums in other units can
        # tell.
        spread = lines[:, self._cuts[_SPREAD]].sum(axis=0)
        return bool((spread < 2.0**-limits.spread).any())

    def _parts(self, lines: Array) -> Array:
        """The parts of blocks that are beside the lines, in the order of their rows."""
        parts = lines[:, self._columns :].reshape(-1, self._part_columns)
        return parts[parts[:, 0] > 0]

    def _put_together(self, lines: Array, like: Moments) -> Iterator[Moments]:
        """Merges the parts of each block that no launch has as a whole; their sums of squares
        are of no use.
        """
        parts, k = self._parts(lines), self._values
        for number in np.unique(parts[:, 2]):
            block, squares = parts[parts[:, 2] == number], None
            if like.squares is not None:
                squares = np.zeros((len(block), 3, k))
            products = np.zeros((len(block), *like.products.shape[1:]))
            mean, rest = block[:, 3 : 3 + k], block[:, 3 + k :]
            yield merge(
                Moments(block[:, :1], block[:, 1:2], mean, rest, products, squares, like.power)
            )

    def units(self, lines: Array, used: Units | None) -> Units | None:
        """The units in which to repeat the sums: if some overflowed, or those with squares of
        weights vanished; None if not.

        Infinite and NaN values look the same as overflow, and remain. Weights are rescaled first,
        as they may be the cause.
        """
        is_finite = np.isfinite(lines)
        has_overflown = not np.logical_and.reduce(is_finite, axis=None)
        if len(self._cuts) > _SQUARES and used is None:
            weight, square = (self._total(lines, field) for field in (_WEIGHT, _SQUARES))
            if math.isnan(weight):
                return None  # a weight is negative or NaN, so all results are NaN
            power = self._range.heavy
            if math.isfinite(weight):
                power = max(math.frexp(weight)[1], _LIGHTEST)
            if weight != 0 and self._lose_bits(lines, square, power, has_overflown):
                return Units(np.zeros(self._values, np.int64), power)
        if not has_overflown or (used is not None and used.values.any()):
            return None
        _, _, means, _, products, *squares = [
            np.all(is_finite[:, cut], axis=0) for cut in self._cuts
        ]
        parts = [means, products[[i == j for i, j in self._pairs]], *squares[1:]]
        if self._part_columns:
            parts.append(np.all(np.isfinite(self._parts(lines)[:, 3 : 3 + self._values]), axis=0))
        # 0 for values with finite sums in all lines
        powers = np.where(np.logical_and.reduce(parts), 0, self._range.far)
        if not powers.any():
            return None
        weight = 0
        if used is not None:
            weight = used.weight
        return Units(powers, weight)
