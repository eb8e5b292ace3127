"""From the lines that the kernels of an expectation leave to an `Estimate`; and whether sums in them have overflowed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import final

import numpy as np

from synknumba._ops import estimate as estimate_module
from synknumba._ops.estimate import Estimate
from synknumba._ops.moments import FAR, Moments, Powers
from synknumba._rowwise.moment_kernels import Recipe
from synknumba._types import Array

_WEIGHT, _SQUARES, _SPREAD = 1, 5, 7  # which of the numbers of a line are Σ w, Σ w² and Σ w² (v − mean)²
_LIGHTEST = -1000  # the least power of two that weights are in units of: its inverse has to be a float64


@final
@dataclass(frozen=True, slots=True)
class _Room:
    """What the type of a thread's sums has room for, in powers of two.

    Attributes:
        far: the unit of values whose sums or squares overflow; in it, those of any number of rows do not.
        squares: of weights: sums between 2^−squares and 2^squares have lost nothing.
        spread: sums of squares of weights with squares of values have lost nothing above 2^−spread.
        heavy: the unit of weights whose sum overflows.
        even: weights whose sum is within 2^±even overflow nothing that values alone do not.
    """

    far: int
    squares: int
    spread: int
    heavy: int
    even: int


_ROOM: Mapping[str, _Room] = {"float64": _Room(FAR, 600, 980, 960, 60), "float32": _Room(80, 60, 100, 100, 10)}


@final
@dataclass(frozen=True, slots=True)
class Units:
    """Powers of two that values and weights are in units of, for sums that neither overflow nor vanish.

    Attributes:
        values: of each value.
        weight: of the weights.
    """

    values: Powers
    weight: int


@final
class LineReader:
    """Reads the lines of a recipe: rows, weight, means, what rounding left of them, products, with weights sums with w²."""

    __slots__ = ("_columns", "_cuts", "_pairs", "_room", "_scalar", "_values")

    def __init__(self, recipe: Recipe) -> None:
        k = recipe.values
        widths = [1, 1, k, k, len(recipe.pairs), *([] if recipe.weight is None else [1, k, k])]
        self._columns = recipe.columns
        self._cuts = [slice(end - width, end) for end, width in zip(accumulate(widths), widths, strict=True)]
        self._pairs = recipe.pairs
        self._scalar = recipe.size is None or (recipe.weight == "" and recipe.size == 2)
        self._values = k
        self._room = _ROOM[recipe.real]

    def read(self, parts: Sequence[Array]) -> Array:
        """The lines of all ranks and slices, in their order."""
        return np.concatenate([part.reshape(-1, self._columns) for part in parts])

    def estimate(self, lines: Array, units: Units | None = None) -> Estimate:
        """The lines as one estimate.

        Args:
            lines: as `read` gives them.
            units: that the kernels have been told.

        Raises:
            ReductionError: there are no rows.
        """
        count, weight, mean, rest, products, *squares = [lines[:, cut] for cut in self._cuts]
        if len(self._pairs) > mean.shape[1]:
            products = self._matrices(products, mean.shape[1])
        stacked = np.stack([np.broadcast_to(one, mean.shape) for one in squares], axis=1) if squares else None
        power, powers = (0, None) if units is None else (units.weight, units.values)
        return estimate_module.merged(
            Moments(count, weight, mean, rest, products, stacked, power), scalar=self._scalar, powers=powers
        )

    def units(self, lines: Array, used: Units | None) -> Units | None:
        """In which units sums are to be taken again: if they have overflowed, or those with squares of weights have vanished.

        Values that are infinite or NaN look the same, and stay so. Weights come first, as they may be the reason.
        """
        is_finite = np.isfinite(lines)
        has_overflown = not np.logical_and.reduce(is_finite, axis=None)
        if len(self._cuts) > _SQUARES and used is None:
            # Python's sums, which overflow without a word and take a quarter of the time for few lines.
            total, square = (sum(lines[:, self._cuts[room].start].tolist()) for room in (_WEIGHT, _SQUARES))
            if math.isnan(total):
                return None  # a weight is negative or NaN, and so are all results
            power = max(math.frexp(total)[1], _LIGHTEST) if math.isfinite(total) else self._room.heavy
            is_odd = not 2.0**-self._room.squares < square < 2.0**self._room.squares
            # Light weights may be why there is no spread; that values are all the same is seen to be so in other units alone.
            has_vanished = power < 0 and bool((lines[:, self._cuts[_SPREAD]].sum(axis=0) < 2.0**-self._room.spread).any())
            if total != 0 and (is_odd or has_vanished or (has_overflown and abs(power) > self._room.even)):
                return Units(np.zeros(self._values, np.int64), power)
        if not has_overflown or (used is not None and used.values.any()):
            return None
        powers = np.where(self._is_finite(is_finite), 0, self._room.far)
        return Units(powers, 0 if used is None else used.weight) if powers.any() else None

    def _is_finite(self, is_finite: Array) -> Array:
        """Of which values everything is finite, from which numbers of all lines are."""
        told: list[Array] = [np.all(is_finite[:, cut], axis=0) for cut in self._cuts]
        means, products, squares = told[2], told[4], told[5:]
        found = means & products[[i == j for i, j in self._pairs]]
        for one in squares[1:]:
            found &= one
        return found  # type: ignore[no-any-return]

    def _matrices(self, products: Array, k: int) -> Array:
        matrices = np.empty((len(products), k, k))
        for column, (i, j) in enumerate(self._pairs):
            matrices[:, i, j] = matrices[:, j, i] = products[:, column]
        return matrices
