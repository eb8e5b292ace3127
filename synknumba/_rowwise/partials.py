"""Reads the partial results of an expectation's kernels, called lines, into an `Estimate`; finds
sums that overflowed.

    parts of ranks and slices ──merge──> estimate
                                └──────> lines, if sums may be wrong ──units──> the kernel again
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from synknumba._rowwise.estimate import Estimate, merged
from synknumba._rowwise.moment_kernels import Recipe
from synknumba._rowwise.moments import (
    FAR,
    Moments,
    Powers,
    are_finite,
    as_rows,
    joined,
    merge,
    merge_lines,
)
from synknumba._types import Array

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
    """Reads lines: moments, and in calls with blocks the parts of two blocks beside them."""

    __slots__ = ("_columns", "_is_whole", "_part_columns", "_range", "_scalar")

    def __init__(self, recipe: Recipe) -> None:
        self._columns = recipe.columns
        self._part_columns = recipe.part_columns
        self._is_whole = not (recipe.blocked or recipe.scaled)
        self._scalar = recipe.size is None or (recipe.weight == "" and recipe.size == 2)
        self._range = _RANGES[recipe.real]

    def merge(self, parts: Array) -> Estimate | Array:
        """Merges the lines of ranks (or shards) and their slices, shape (W, slices, width), in
        memory that the ranks will write again; for `FunctionOptions.merge`.

        Returns the estimate; or a copy of all lines, if there are no rows, if sums may have
        overflowed or vanished, and in calls with units or blocks.
        """
        lines, columns = parts.reshape(-1, parts.shape[-1]), self._columns
        if self._is_whole:
            merged, is_finite = merge_lines(lines, columns)
            if columns.weighted and is_finite:
                is_finite = self._weight_power(merged) is None
            if is_finite and merged[0, 0]:
                return Estimate(Moments(merged, columns), self._scalar)
        return lines.copy()

    def estimate(self, lines: Array, units: Units | None, block: int) -> Estimate:
        """Makes an estimate of lines, from `merge`. The kernels' sums are in `units`; None for 1.

        Raises:
            ReductionError: there are no rows, or fewer than a block's.
        """
        columns, power, powers, rest = self._columns, 0, None, None
        if units is not None:
            power, powers = units.weight, units.values
        moments = Moments(lines[:, : columns.count], columns, power)
        if self._part_columns:
            rows, rest = as_rows(self._put_together(lines, power), block)
            moments = joined(moments, rows)
        return merged(moments, scalar=self._scalar, powers=powers, rest=rest, block=block)

    def _parts(self, lines: Array) -> Array:
        """The parts of blocks that are beside the lines, in the order of their rows."""
        first = self._columns.count
        parts = lines[:, first : first + 2 * self._part_columns].reshape(-1, self._part_columns)
        return parts[parts[:, 0] > 0]

    def _put_together(self, lines: Array, power: int) -> Moments:
        """Merges the parts of each block that no launch has as a whole; their sums of squares
        are of no use.
        """
        parts, columns = self._parts(lines), self._columns
        pieces = np.zeros((len(parts), columns.count))
        pieces[:, :2], pieces[:, columns.centres] = parts[:, :2], parts[:, 3:]
        edges = np.flatnonzero(np.diff(parts[:, 2], prepend=-1.0, append=-2.0))
        return merge(Moments(pieces, columns, power), edges)

    def _total(self, lines: Array, column: int) -> float:
        # Python's sum gives no warning of overflow, and takes a quarter of NumPy's time for few
        # lines.
        return sum(lines[:, column].tolist())

    def _weight(self, lines: Array) -> float:
        """The sum of all weights, with those of parts of blocks."""
        weight = self._total(lines, 1)
        if self._part_columns:
            weight += self._total(self._parts(lines), 1)
        return weight

    def _weight_power(self, lines: Array, *, has_overflown: bool = False) -> int | None:
        """The power of two in units of which sums with weights lose no bits; None if they lose
        none as they are.
        """
        limits, columns = self._range, self._columns
        weight, square = self._weight(lines), self._total(lines, columns.products.stop)
        if self._part_columns:
            square += sum(part * part for part in self._parts(lines)[:, 1].tolist())
        power = limits.heavy
        if math.isfinite(weight):
            power = max(math.frexp(weight)[1], _LIGHTEST)
        if weight == 0:
            return None
        if not 2.0**-limits.squares < square < 2.0**limits.squares:
            return power
        if has_overflown and abs(power) > limits.even:
            return power
        if power >= 0:
            return None
        # No spread may come of light weights, or of equal values; only sums in other units can
        # tell.
        spread = lines[:, columns.count - columns.values : columns.count].sum(axis=0)
        if (spread < 2.0**-limits.spread).any():
            return power
        return None

    def units(self, lines: Array, used: Units | None) -> Units | None:
        """The units in which to repeat the sums: if some overflowed, or those with squares of
        weights vanished; None if not.

        Infinite and NaN values look the same as overflow, and remain. Weights are rescaled first,
        as they may be the cause.
        """
        columns, k = self._columns, self._columns.values
        is_finite = are_finite(lines)
        has_overflown = not is_finite.all()
        if columns.weighted and used is None:
            if math.isnan(self._weight(lines)):
                return None  # a weight is negative or NaN, so all results are NaN
            power = self._weight_power(lines, has_overflown=has_overflown)
            if power is not None:
                return Units(np.zeros(k, np.int64), power)
        if not has_overflown or (used is not None and used.values.any()):
            return None
        sums = [is_finite[columns.means], is_finite[columns.own_products]]
        if columns.weighted:
            sums += np.split(is_finite[columns.products.stop + 1 : columns.count], 2)
        if self._part_columns:
            sums.append(are_finite(self._parts(lines)[:, 3 : 3 + k]))
        # 0 for values with finite sums in all lines
        powers = np.where(np.logical_and.reduce(sums), 0, self._range.far)
        if not powers.any():
            return None
        weight = 0
        if used is not None:
            weight = used.weight
        return Units(powers, weight)
