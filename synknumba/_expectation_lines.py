"""From the lines that the kernels of an expectation leave to an `Estimate`."""

from collections.abc import Sequence
from itertools import accumulate
from typing import final

import numpy as np

from synknumba import _estimate
from synknumba._estimate import Estimate
from synknumba._expectation_source import Recipe
from synknumba._moments import Moments
from synknumba._types import Array


@final
class LineReader:
    """Reads the lines of a recipe: rows, weight, means, what rounding left of them, products, with weights sums with w²."""

    __slots__ = ("_columns", "_cuts", "_pairs", "_scalar")

    def __init__(self, recipe: Recipe) -> None:
        k = recipe.values
        widths = [1, 1, k, k, len(recipe.pairs), *([] if recipe.weight is None else [1, k, k])]
        self._columns = recipe.columns
        self._cuts = [slice(end - width, end) for end, width in zip(accumulate(widths), widths, strict=True)]
        self._pairs = recipe.pairs if recipe.covariance else ()
        self._scalar = recipe.size is None or (recipe.weight == "" and recipe.size == 2)

    def estimate(self, parts: Sequence[Array]) -> Estimate:
        """The lines of all ranks and slices, in their order, as one estimate.

        Raises:
            ReductionError: there are no rows.
        """
        lines = np.concatenate([part.reshape(-1, self._columns) for part in parts])
        count, weight, mean, rest, products, *squares = [lines[:, cut] for cut in self._cuts]
        if self._pairs:
            products = self._matrices(products, mean.shape[1])
        stacked = np.stack([np.broadcast_to(one, mean.shape) for one in squares], axis=1) if squares else None
        return _estimate.merged(Moments(count, weight, mean, rest, products, stacked), scalar=self._scalar)

    def _matrices(self, products: Array, k: int) -> Array:
        matrices = np.empty((len(products), k, k))
        for column, (i, j) in enumerate(self._pairs):
            matrices[:, i, j] = matrices[:, j, i] = products[:, column]
        return matrices
