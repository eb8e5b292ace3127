"""`Estimate`: an expectation value with its error bar, from some rows; and of more rows, when two are added."""

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, final

import numpy as np

from synknumba._errors import ReductionError
from synknumba._ops import moments as moments_module
from synknumba._ops.moments import Moments, Powers
from synknumba._types import Array

# Of an effective number of rows. Where one row has all the weight, rounding may still leave it a little more than 1.
_ONE_ROW = 1 + 1e-12


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Estimate:
    """The mean of some rows, and how far it may be from the expectation value.

    Made by `expectation`, or of values in memory by `from_values`. Estimates of different rows add up: `a + b` is the estimate
    of all of them. Printed, it is the mean and in parentheses the standard error in units of the last digits.

    A value that is NaN makes mean and variance NaN; one that is infinite makes the mean infinite, as in a sum, and the variance
    NaN. They concern only the value of a row that they are in: of several, the others stay as they are.

    >>> Estimate.from_values([1.0, 2.0, 6.0, 7.0])
    Estimate(mean=4.0, variance=8.666666666666666, stderr=1.4719601443879744, count=4)
    >>> print(Estimate.from_values([1.0, 2.0, 4.0]) + Estimate.from_values([2.5, 3.5]))
    2.60(53)
    """

    _moments: Moments
    _scalar: bool

    @classmethod
    def from_values(cls, values: Any, weights: Any = None, *, covariance: bool = False) -> "Estimate":
        """The estimate of values in memory.

        Args:
            values: real numbers, shape (n,), or (n, k) for k values a row.
            weights: real numbers of at least 0, shape (n,).
            covariance: whether to keep the products of each two of the values.

        Raises:
            ReductionError: shapes or dtypes that do not fit, no rows, a negative weight.
        """
        array, w = np.asarray(values), None if weights is None else np.asarray(weights)
        for name, one in (("values", array), ("weights", w)):
            if one is not None and one.dtype.kind not in "biuf":
                raise ReductionError(f"{name} must be real numbers, got dtype {one.dtype}")
        if array.ndim not in {1, 2} or not array.size:
            raise ReductionError(f"values must have shape (n,) or (n, k) with at least one row, got {array.shape}")
        if w is not None and (w.shape != array.shape[:1] or (w < 0).any()):
            raise ReductionError(
                f"weights must be one number of at least 0 for each of the {len(array)} rows, got shape {w.shape}"
            )
        check_covariance(covariance=covariance, weighted=w is not None)
        rows = array.reshape(len(array), -1).astype(np.float64)
        moments = moments_module.of_values(rows, None if w is None else w.astype(np.float64), covariance=covariance)
        return cls(moments, array.ndim == 1)

    # ---- what it says

    @property
    def count(self) -> int:
        """Rows, those of weight 0 too."""
        return int(self._moments.count[0, 0])

    @property
    def mean(self) -> Any:
        """Mean of the rows, a float or shape (k,). With weights the self-normalised one, Σ w v / Σ w."""
        return self._told(np.where(self._moments.weight != 0, self._moments.mean, np.nan)[0])

    @property
    def variance(self) -> Any:
        """Variance of a row, a float or shape (k,), unbiased: Σ (v − mean)² / (n − 1). NaN for one row.

        With weights: Σ w (v − mean)² / (Σ w − Σ w² / Σ w), which is the same where all are equal.
        """
        return self._told(self._per_freedom(self._squares()))

    @property
    def stderr(self) -> Any:
        """Standard error of the mean, a float or shape (k,): √(variance / n). NaN for one row.

        With weights, by the delta method: √(n / (n − 1) · Σ w² (v − mean)²) / Σ w, which is the same where all are equal. It
        holds for many rows, none of which has much of the weight; see `effective_size`.
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
        """Covariance of the values of a row, shape (k, k), unbiased; that of their means is the same divided by `count`.

        Raises:
            ReductionError: it was not asked for.
        """
        if self._moments.products.ndim == 2:
            raise ReductionError("this estimate has no covariance; ask for it with covariance=True")
        covariance: Array = self._per_freedom(self._moments.products[0])
        return covariance

    @property
    def effective_size(self) -> float:
        """Rows of equal weight that would say as much: (Σ w)² / Σ w², L. Kish; `count` where there are no weights."""
        if self._moments.squares is None:
            return float(self.count)
        weight, square = float(self._moments.weight[0, 0]), float(self._moments.squares[0, 0, 0])
        return weight * weight / square if square != 0 else 0.0

    def _squares(self) -> Array:
        products = self._moments.products[0]
        found: Array = products if products.ndim == 1 else np.diagonal(products)
        return found

    def _per_freedom(self, sums: Array) -> Any:
        """Sums of squared deviations, divided by the degrees of freedom; NaN where there are none."""
        if not self.effective_size > _ONE_ROW:
            return np.full(sums.shape, np.nan)
        weight = float(self._moments.weight[0, 0])
        return sums / (weight - weight / self.effective_size)

    def _told(self, values: Array) -> Any:
        return float(values[0]) if self._scalar else values

    # ---- what can be done with it

    def __add__(self, other: object) -> "Estimate":
        """The estimate of the rows of both, which should be different rows."""
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

    # ---- how it is written

    def __str__(self) -> str:
        """As in 0.19877(12), which is 0.19877 ± 0.00012; several in brackets."""
        if self._scalar:
            return concise(self.mean, self.stderr)
        return f"[{', '.join(map(concise, self.mean.tolist(), self.stderr.tolist()))}]"

    def __repr__(self) -> str:
        """All numbers, with all digits."""
        size = "" if self._moments.squares is None else f", effective_size={self.effective_size!r}"
        told = (f"{name}={_plain(getattr(self, name))!r}" for name in ("mean", "variance", "stderr", "count"))
        return f"Estimate({', '.join(told)}{size})"


def check_covariance(*, covariance: bool, weighted: bool) -> None:
    """Refuses what is not there."""
    if covariance and weighted:
        raise ReductionError("covariance=True does not go with weights; estimate the products of the values as further values")


def merged(parts: Moments, *, scalar: bool, powers: Powers | None = None) -> Estimate:
    """The estimate of all the parts, put together in their order.

    Args:
        parts: with values in units of powers of two.
        scalar: whether there is one value, and no tuple.
        powers: which; None where values are what they are.

    Raises:
        ReductionError: there are no rows.
    """
    total = moments_module.merge(parts)
    if not total.count[0, 0]:
        raise ReductionError("an expectation value of rows with none at all; give at least one row")
    return Estimate(total if powers is None else moments_module.in_units(total, -powers), scalar)


def concise(mean: float, stderr: float) -> str:
    """Mean and standard error with two digits of the error, as in CODATA's tables.

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


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
