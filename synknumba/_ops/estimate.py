"""`Estimate`: the sample mean of rows with its standard error; estimates of different rows can be added."""

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, final

import numpy as np

from synknumba._errors import ReductionError
from synknumba._ops import moments as moments_module
from synknumba._ops.moments import Moments, Powers
from synknumba._types import Array

# Threshold of the effective number of rows: if one row has all the weight, rounding may give slightly more than 1.
_ONE_ROW = 1 + 1e-12


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Estimate:
    """Mean, variance and standard error of rows.

    Returned by `expectation`, or made from values in memory by `from_values`. Estimates of different rows can be added: `a + b`
    is the estimate of all their rows. `str()` gives the mean, with the standard error in parentheses, in units of the last
    digits.

    A NaN makes mean and variance NaN; an infinite value makes the mean infinite, as in a sum, and the variance NaN. If rows
    have several values, only the column that contains it is affected.

    >>> Estimate.from_values([1.0, 2.0, 6.0, 7.0])
    Estimate(mean=4.0, variance=8.666666666666666, stderr=1.4719601443879744, count=4)
    >>> print(Estimate.from_values([1.0, 2.0, 4.0]) + Estimate.from_values([2.5, 3.5]))
    2.60(53)
    """

    _moments: Moments
    _scalar: bool

    @classmethod
    def from_values(cls, values: Any, weights: Any = None, *, covariance: bool = False) -> "Estimate":
        """Computes the estimate of values in memory.

        Args:
            values: real numbers, shape (n,), or (n, k) for k values per row.
            weights: non-negative real numbers, shape (n,).
            covariance: whether to compute the covariance of the k values.

        Raises:
            ReductionError: invalid shapes or dtypes, no rows, or a negative weight.
        """
        array, w = np.asarray(values), None if weights is None else np.asarray(weights)
        for name, one in (("values", array), ("weights", w)):
            if one is not None and one.dtype.kind not in "biuf":
                raise ReductionError(f"{name} must be real numbers, got dtype {one.dtype}")
        if array.ndim not in {1, 2} or not array.size:
            raise ReductionError(f"values must have shape (n,) or (n, k) with at least one row, got {array.shape}")
        if w is not None and (w.shape != array.shape[:1] or (w < 0).any()):
            raise ReductionError(
                f"weights must be one non-negative number for each of the {len(array)} rows, got shape {w.shape}"
            )
        check_covariance(covariance=covariance, weighted=w is not None)
        rows = array.reshape(len(array), -1).astype(np.float64)
        moments = moments_module.of_values(rows, None if w is None else w.astype(np.float64), covariance=covariance)
        return cls(moments, array.ndim == 1)

    @property
    def count(self) -> int:
        """Number of rows, including those of weight 0."""
        return int(self._moments.count[0, 0])

    @property
    def mean(self) -> Any:
        """Mean of the rows, a float or shape (k,). With weights, the self-normalised mean Σ w v / Σ w."""
        return self._told(np.where(self._moments.weight != 0, self._moments.mean, np.nan)[0])

    @property
    def variance(self) -> Any:
        """Unbiased variance of the rows, a float or shape (k,): Σ (v − mean)² / (n − 1). NaN for one row.

        With weights: Σ w (v − mean)² / (Σ w − Σ w² / Σ w), which equals the former if all weights are equal.
        """
        return self._told(self._per_freedom(self._squares()))

    @property
    def stderr(self) -> Any:
        """Standard error of the mean, a float or shape (k,): √(variance / n). NaN for one row.

        With weights, by the delta method: √(n / (n − 1) · Σ w² (v − mean)²) / Σ w, which equals the former if all weights are
        equal. Valid for many rows, none of which dominates the weight; see `effective_size`.
        """
        moments = self._moments
        if moments.squares is None:
            return self._told(np.sqrt(self._per_freedom(self._squares()) / self.count))
        if not self.effective_size > _ONE_ROW:
            return self._told(np.full(moments.mean.shape[1], np.nan))
        spread = np.maximum(moments.squares[0, 2], 0.0)  # rounding
        return self._told(np.sqrt(spread * self.count / (self.count - 1)) / moments.weight[0])

    @property
    def covariance(self) -> Array:
        """Unbiased covariance of the k values of a row, shape (k, k); divide by `count` for the covariance of their means.

        Raises:
            ReductionError: the estimate was made without covariance=True.
        """
        if self._moments.products.ndim == 2:
            raise ReductionError("this estimate has no covariance; request it with covariance=True")
        return self._per_freedom(self._moments.products[0])

    @property
    def effective_size(self) -> float:
        """Effective sample size (Σ w)² / Σ w² (L. Kish): the equivalent number of unweighted rows; `count` without weights."""
        if self._moments.squares is None:
            return float(self.count)
        weight, square = float(self._moments.weight[0, 0]), float(self._moments.squares[0, 0, 0])
        return weight * weight / square if square != 0 else 0.0

    def _squares(self) -> Array:
        products = self._moments.products[0]
        return products if products.ndim == 1 else np.diagonal(products)

    def _per_freedom(self, sums: Array) -> Any:
        """Returns sums of squared deviations divided by the degrees of freedom; NaN if there are none."""
        if not self.effective_size > _ONE_ROW:
            return np.full(sums.shape, np.nan)
        weight = float(self._moments.weight[0, 0])
        return sums / (weight - weight / self.effective_size)

    def _told(self, values: Array) -> Any:
        return float(values[0]) if self._scalar else values

    def __add__(self, other: object) -> "Estimate":
        """Returns the estimate of the rows of both, which should be disjoint."""
        if not isinstance(other, Estimate):
            return NotImplemented
        if self._kind() != other._kind():
            raise ReductionError(
                f"cannot add an estimate of {other._words()} to one of {self._words()}: they must be of the same kind"
            )
        return Estimate(moments_module.merge(moments_module.joined(self._moments, other._moments)), self._scalar)

    def __radd__(self, other: object) -> "Estimate":
        """Lets `sum(estimates)` start from 0."""
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def _kind(self) -> tuple[Any, ...]:
        return self._scalar, self._moments.products.shape, self._moments.squares is None

    def _words(self) -> str:
        values = "one value" if self._scalar else f"{self._moments.mean.shape[1]} values"
        covariance = " and covariance" if self._moments.products.ndim == 3 else ""
        return f"{values} with{'out' if self._moments.squares is None else ''} weights{covariance}"

    def __str__(self) -> str:
        """Concise notation: 0.19877(12) for 0.19877 ± 0.00012; several values in brackets."""
        if self._scalar:
            return concise(self.mean, self.stderr)
        return f"[{', '.join(map(concise, self.mean.tolist(), self.stderr.tolist()))}]"

    def __repr__(self) -> str:
        """Shows all statistics at full precision."""
        size = "" if self._moments.squares is None else f", effective_size={self.effective_size!r}"
        told = (f"{name}={np.asarray(getattr(self, name)).tolist()!r}" for name in ("mean", "variance", "stderr", "count"))
        return f"Estimate({', '.join(told)}{size})"


def check_covariance(*, covariance: bool, weighted: bool) -> None:
    """Refuses covariance together with weights, which is not implemented."""
    if covariance and weighted:
        raise ReductionError(
            "covariance=True cannot be combined with weights; estimate the products of the values as further values"
        )


def merged(parts: Moments, *, scalar: bool, powers: Powers | None = None) -> Estimate:
    """Merges parts, in order, into one estimate; raises ReductionError if there are no rows.

    `scalar` if the function returned a single number instead of a tuple. Values are in units of the `powers` of two, if given.
    """
    total = moments_module.merge(parts)
    if not total.count[0, 0]:
        raise ReductionError("expectation of no rows; pass at least one row")
    return Estimate(total if powers is None else moments_module.in_units(total, -powers), scalar)


def concise(mean: float, stderr: float) -> str:
    """Formats mean and standard error with two digits of the error, as in CODATA's tables.

    >>> concise(0.198773, 0.000123), concise(12.345, 1.26), concise(123456.0, 2340.0), concise(1.5, math.nan)
    ('0.19877(12)', '12.3(1.3)', '1.235(23)e+05', '1.5(nan)')
    """
    if not (math.isfinite(mean) and math.isfinite(stderr) and stderr > 0):
        return f"{mean:.12g}({stderr:.2g})"
    last = int(f"{stderr:.1e}".split("e")[1]) - 1  # the power of ten of the error's second digit
    first = max(math.floor(math.log10(abs(mean))) if mean else last, last)
    if last <= 0 and first >= -4:
        error = f"{stderr:.{-last}f}"
        return f"{mean:.{-last}f}({error if last < 0 and stderr >= 1 else error.replace('.', '').lstrip('0')})"
    power = max(first, last + 1)
    digits = f"{Decimal(stderr).scaleb(-power):.1f}" if power == last + 1 else f"{Decimal(stderr).scaleb(-last):.0f}"
    return f"{Decimal(mean).scaleb(-power):.{power - last}f}({digits})e{power:+03d}"
