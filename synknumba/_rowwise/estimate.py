"""`Estimate`: the sample mean of rows with its standard error.

    Estimate + Estimate      the rows of both            → Estimate
    Estimate and a number    +, −, *, / of each row      → Estimate; exact
    Estimate and Estimate    −, *, / of the means        → Measurement (`measurement.py`)

Rows have an identity, which multiples of an estimate keep and sums collect, so that means of the
same rows are not combined as if they were independent.
"""

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from operator import add, mul, truediv
from typing import Any, SupportsIndex, final

import numpy as np

from synknumba._errors import ArgumentError, ReductionError
from synknumba._host.casting import as_index
from synknumba._ops.measurement import (
    Measurement,
    Quantity,
    as_value,
    named_operands,
    real_array,
    real_number,
    shared_rows,
)
from synknumba._rowwise import moments as moments_module
from synknumba._rowwise.controls import controlled
from synknumba._rowwise.moments import Columns, Moments, Powers
from synknumba._types import Array, as_flag

# Threshold of the effective number of rows: if one row has all the weight, rounding may give
# slightly more than 1.
_ONE_ROW = 1 + 1e-12

_MOST_ROWS = 16  # identities of rows that a sum keeps, the last ones, as a sum may have 10^6 terms

# Step of numerical derivatives, in standard errors: small against the region where the function is
# taken for linear, and large against rounding: for a mean of 1 ± 10^-8 the error bar is still
# accurate to 10^-5.
_STEP = 0.01


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Estimate(Quantity):
    """Mean, variance and standard error of rows.

    Returned by `expectation`, or made from values in memory by `from_values`. Estimates of
    different rows can be added: `a + b` is the estimate of all their rows. `2 * a`, `a / 2`, `-a`,
    `a + 1`, `1 - a` are estimates of the rows so transformed; with k values per row, the number may
    be an array of shape (k,). `a - b`, `a * b`, `a / b` and `1 / a` combine means of different
    rows, and give a `Measurement`; so do `a**2`, `abs(a)` and NumPy's `np.exp(a)`, `np.log(a)`,
    `np.sqrt(a)`, … of the mean, and `propagate`, for any function of the means.

    `str()` gives the mean, with the standard error in parentheses, in units of the last digits. A
    format for floats is applied to mean and standard error, any other to the text. Estimates have
    no order, and `==` is identity.

    Standard errors hold for independent rows. For those of a Markov chain see `blocked`.

    A NaN makes mean and variance NaN; an infinite value makes the mean infinite, as in a sum, and
    the variance NaN. If rows have several values, only the column that contains it is affected.

    >>> import synknumba as synk
    >>> synk.Estimate.from_values([1.0, 2.0, 6.0, 7.0])
    Estimate(mean=4.0, variance=8.666666666666666, stderr=1.4719601443879744, count=4)
    >>> a, b = synk.Estimate.from_values([1.0, 2.0, 4.0]), synk.Estimate.from_values([2.5, 3.5])
    >>> print(a + b, 10 * a, a / b, f"{a:.3f}")
    2.60(53) 23.3(8.8) 0.78(32) 2.333 ± 0.882
    """

    _moments: Moments
    _scalar: bool
    _rows: tuple[bytes, ...] = field(default_factory=lambda: (os.urandom(16),))
    _block: int = 1

    @classmethod
    def from_values(
        cls, values: Any, weights: Any = None, *, covariance: bool = False, block: SupportsIndex = 1
    ) -> "Estimate":
        """Computes the estimate of values in memory.

        With `block`, the estimate is that of the means of n // block blocks of consecutive rows:
        `count`, `variance` and `covariance` are those of the blocks, and `stderr` is right for
        correlated rows if blocks are much longer than the correlation. The n mod `block` rows after
        the last whole block are in the mean, but not in the error bar.

        Args:
            values: real numbers, shape (n,), or (n, k) for k values per row.
            weights: non-negative real numbers, shape (n,).
            covariance: whether to compute the covariance of the k values.
            block: rows per block, from 1 to n.

        Raises:
            ReductionError: invalid shapes or dtypes, no rows, a negative weight, or an invalid
                block.
        """
        array = _numbers("values", values)
        if array.ndim not in {1, 2} or not array.size:
            raise ReductionError(
                f"values must have shape (n,) or (n, k) with at least one row, got {array.shape}"
            )
        if weights is not None:
            weights = _weights(weights, len(array))
        check_covariance(covariance=covariance, weighted=weights is not None)
        size = block_size(block, len(array))
        rows = array.reshape(len(array), -1).astype(np.float64)
        moments = moments_module.of_values(rows, weights, covariance=covariance, block=size)
        return cls(moments, array.ndim == 1, _block=size)

    @classmethod
    def blocked(cls, values: Any, *, covariance: bool = False) -> "Estimate":
        """Computes the estimate of correlated rows in order, such as those of a Markov chain.

        The blocking method: H. Flyvbjerg, H. G. Petersen, J. Chem. Phys. 91, 461 (1989). The
        standard error of means of blocks of B = 1, 2, 4, … rows grows with B, up to a plateau where
        blocks are longer than the correlation. The block taken is the first with B³ > 2 n (stderr_B
        / stderr_1)⁴, which balances bias and statistical error: U. Wolff, Comput. Phys. Commun.
        156, 143 (2004), in the form of R. M. Lee et al., Phys. Rev. E 83, 066706 (2011). With k
        values per row, all have to satisfy it.

        Without a plateau, in a chain that is too short, the standard error is NaN. `stderr_error`
        is the uncertainty of the standard error; `from_values(values, block=B)` gives the estimate
        for one B.

        Args:
            values: real numbers, shape (n,), or (n, k) for k values per row.
            covariance: whether to compute the covariance of the k values, that is, of the means of
                blocks.

        Returns:
            The estimate of the means of blocks; `count` is the number of blocks.

        Raises:
            ReductionError: invalid shapes or dtypes, or no rows.
        """
        check_covariance(covariance=covariance, weighted=False)
        plain = cls.from_values(values)
        n, block = plain.count, 1
        with np.errstate(invalid="ignore", divide="ignore"):
            while 2 * block <= n:
                growth = np.divide(cls.from_values(values, block=block).stderr, plain.stderr)
                # NaN if the value is constant or not finite
                if not (block**3 <= 2 * n * growth**4).any():
                    return cls.from_values(values, covariance=covariance, block=block)
                block *= 2
        return cls.from_values(values, covariance=covariance, block=n)

    @property
    def count(self) -> int:
        """Number of rows, including those of weight 0."""
        return int(self._moments.lines[0, 0])

    @property
    def mean(self) -> Any:
        """Mean of the rows, float or shape (k,); with weights self-normalised: Σ w v / Σ w."""
        means = self._moments.means[0].copy()
        if self._weight == 0:
            means[:] = np.nan
        return self._by_value(means)

    @property
    def variance(self) -> Any:
        """Unbiased variance of the rows, a float or shape (k,): Σ (v − mean)² / (n − 1). NaN for
        one row.

        With weights: Σ w (v − mean)² / (Σ w − Σ w² / Σ w), which equals the former if all weights
        are equal.
        """
        return self._by_value(self._per_freedom(self._moments.own_products[0]))

    @property
    def stderr(self) -> Any:
        """Standard error of the mean, a float or shape (k,): √(variance / n). NaN for one row.

        With weights, by the delta method: √(n / (n − 1) · Σ w² (v − mean)²) / Σ w, which equals the
        former if all weights are equal. Valid for many rows, none of which dominates the weight;
        see `effective_size`.
        """
        if not self._columns.weighted:
            variance = self._per_freedom(self._moments.own_products[0])
            return self._by_value(np.sqrt(variance / self.count))
        if not self.effective_size > _ONE_ROW:
            return self._by_value(np.full(self._columns.values, np.nan))
        spread = np.maximum(self._moments.lines[0, -self._columns.values :], 0.0)  # rounding
        return self._by_value(np.sqrt(spread * self.count / (self.count - 1)) / self._weight)

    @property
    def stderr_error(self) -> Any:
        """Standard deviation of `stderr`, stderr / √(2 (n − 1)), for rows (or means of blocks) that
        are normally distributed.

        H. Flyvbjerg, H. G. Petersen, J. Chem. Phys. 91, 461 (1989). With weights, n is
        `effective_size`.
        """
        freedom = self.effective_size - 1
        if freedom <= 0:
            return self.stderr
        return self.stderr / math.sqrt(2 * freedom)

    @property
    def covariance(self) -> Array:
        """Unbiased covariance of the k values of a row, shape (k, k); divide by `count` for the
        covariance of their means.

        Raises:
            ReductionError: the estimate was made without covariance=True.
        """
        columns = self._columns
        if not columns.covariance:
            raise ReductionError("this estimate has no covariance; request it with covariance=True")
        products = np.empty((columns.values, columns.values))
        i, j = np.array(columns.pairs).T
        products[i, j] = products[j, i] = self._moments.lines[0, columns.products]
        return self._per_freedom(products)

    @property
    def effective_size(self) -> float:
        """Effective sample size (Σ w)² / Σ w² (L. Kish): the equivalent number of unweighted
        rows; `count` without weights.
        """
        if not self._columns.weighted:
            return float(self.count)
        weight, square = self._weight, float(self._moments.lines[0, self._columns.products.stop])
        if square == 0:
            return 0.0
        return weight * weight / square

    @property
    def _columns(self) -> Columns:
        return self._moments.columns

    @property
    def _weight(self) -> float:
        return float(self._moments.lines[0, 1])

    def _per_freedom(self, sums: Array) -> Any:
        """Returns sums of squared deviations over the degrees of freedom; NaN if there are none."""
        if not self.effective_size > _ONE_ROW:
            return np.full(sums.shape, np.nan)
        weight = self._weight
        return sums / (weight - weight / self.effective_size)

    def _by_value(self, values: Array) -> Any:
        if self._scalar:
            return float(values[0])
        return values

    def propagate(
        self,
        function: Callable[..., Any],
        *others: "Estimate",
        gradient: Callable[..., Any] | None = None,
    ) -> "Measurement":
        """Computes a function of the means, with its standard error by the delta method.

        stderr² = Σ gᵀ C g over the estimates, with g the derivatives by the means of an estimate,
        and C the covariance of these means, `covariance` / `count`: JCGM 100:2008 (GUM), equations
        10 and 13. Values of one row may be correlated; the rows of different estimates must be
        independent. Valid if the function is nearly linear within the standard errors.

        >>> rows = Estimate.from_values([[1.0, 2.0], [2.0, 4.1], [3.0, 5.9]], covariance=True)
        >>> print(rows.propagate(lambda mean: mean[0] / mean[1]))
        0.5000(72)

        Args:
            function: gets the mean of each estimate, a float or an array of shape (k,); returns a
                real number.
            others: further estimates, of different rows.
            gradient: gets what `function` gets; returns the derivatives, a float or shape (k,), for
                several estimates a tuple of these. Default: central differences, a hundredth of a
                standard error to both sides.

        Raises:
            ReductionError: an estimate of several values has no covariance, estimates share their
                rows, or the function returns something other than a real number.
        """
        estimates = (self, *others)
        for estimate in estimates:
            if not isinstance(estimate, Estimate):
                raise ArgumentError(
                    f"propagate takes estimates after the function, got {type(estimate).__name__}"
                )
        rows = [row for estimate in map(Estimate._measured, estimates) for row in estimate.rows]
        if len(rows) != len(set(rows)):
            raise shared_rows()
        means = [estimate.mean for estimate in estimates]
        value = real_number(function(*means))
        if gradient is None:
            slopes = [_slopes(function, means, *item) for item in enumerate(estimates)]
        else:
            slopes = _by_gradient(gradient, means)
        stderr = math.hypot(*map(Estimate._error_along, estimates, slopes))
        return Measurement(value, stderr, frozenset(rows))

    def control(self, exact: Any) -> "Estimate":
        """Returns the estimate with less variance by control variates: of k values of a row, the
        last m have known means.

        The others, v, become v − B (c − exact), with the B of least variance, C_vc C_cc⁻¹, of the
        covariances of the same rows. For one control of correlation ρ, the variance is 1 − ρ² of
        that before. As B is estimated from these rows, the mean has a bias of the order of 1 / n,
        smaller than the standard error by a factor of the order of √n; `jackknife` removes it.

        >>> rows = [[1.0, 1.1], [2.0, 1.9], [4.0, 4.2], [5.0, 4.8]]
        >>> estimate = Estimate.from_values(rows, covariance=True)
        >>> print(estimate, estimate.control(3.5))
        [3.00(91), 3.00(89)] 3.51(11)

        Args:
            exact: means of the last m values, a number or shape (m,), with m < k.

        Returns:
            The estimate of the first k − m values, for one of a single value.

        Raises:
            ReductionError: the estimate has no covariance, `exact` does not fit, or the mean of a
                control is more than 8 standard errors from the exact one.
        """
        covariance, values = self.covariance, self._columns.values
        means = np.atleast_1d(_numbers("exact", exact)).astype(np.float64)
        fits = means.ndim == 1 and 0 < means.size < values
        if not fits or not np.isfinite(means).all():
            raise ReductionError(
                "control takes the exact means of the last values of a row, finite numbers, and "
                f"fewer than the {values} values of a row, got {exact!r}"
            )
        moments = controlled(self._moments, covariance, means)
        return Estimate(moments, moments.columns.values == 1, self._rows, self._block)

    @staticmethod
    def jackknife(
        function: Callable[["Estimate"], Any], parts: "Iterable[Estimate]"
    ) -> Measurement:
        """Computes a function of the estimate of all rows without its bias of the order of 1 / n,
        and its standard error.

        With θ the function of all G parts, θ_g that of all but part g, and θ̄ = Σ θ_g / G, the value
        is G θ − (G − 1) θ̄, and its standard error √((G − 1) / G · Σ (θ_g − θ̄)²): B. Efron,
        C. Stein, Ann. Statist. 9, 586 (1981). It may be any smooth function of the estimate, also
        of its covariance, where `propagate` takes functions of means. An interval of 95 % is value
        ± t stderr, with Student's t of G − 1 degrees of freedom: 2.09 for 20 parts.

        >>> parts = [Estimate.from_values([x, x + 1.0, x + 3.0]) for x in (1.0, 2.0, 4.0, 5.0)]
        >>> print(Estimate.jackknife(lambda e: 1 / e.mean, parts))
        0.220(50)

        Args:
            function: gets an estimate; returns a real number, or an array of them.
            parts: two or more estimates, of different rows, and of equally many.

        Raises:
            ReductionError: the parts do not fit together, or the function returns something else.
        """
        parts = list(parts)
        counts = [part.count for part in parts if isinstance(part, Estimate)]
        if len(counts) < max(len(parts), 2) or len({*counts}) > 1:
            raise ReductionError(
                "jackknife takes two or more estimates, of equally many rows, got "
                f"{len(parts)} parts, of which estimates have {counts} rows"
            )

        def result(estimate: Estimate) -> Array:
            value = function(estimate)
            numbers = real_array(value)
            if numbers is None:
                raise ReductionError(
                    "the function that jackknife gets must return real numbers, as e.mean, got "
                    f"{value!r}"
                )
            return numbers

        before = [*accumulate(parts)]
        after = [*accumulate(reversed(parts))][::-1]
        rests = [after[1], *map(add, before[:-2], after[2:]), before[-2]]
        total, left_out, more = before[-1], np.stack([*map(result, rests)]), len(parts) - 1
        value = len(parts) * result(total) - more * left_out.mean(axis=0)
        stderr = left_out.std(axis=0) * math.sqrt(more)
        rows = frozenset(total._rows)  # noqa: SLF001  # same class
        return Measurement(as_value(value), as_value(stderr), rows)

    def _error_along(self, slope: Any) -> float:
        """Returns √(gᵀ C g) for derivatives g by the means and the covariance C of the means."""
        g, shape = np.asarray(slope, np.float64), np.shape(self.mean)
        if g.shape != shape:
            raise ReductionError(f"gradient must have the shape {shape} of the mean, got {g.shape}")
        g = g.reshape(-1)
        if g.size == 1:
            return float(g[0]) * float(np.ravel(self.stderr)[0])
        if self._columns.weighted:
            raise ReductionError(
                "propagate of several values needs their covariance, which is not implemented for "
                "weights; make an estimate of each value, from different rows, and pass them all "
                "to propagate"
            )
        with np.errstate(invalid="ignore", over="ignore"):
            return math.sqrt(max(float(g @ self.covariance @ g) / self.count, 0.0))  # rounding

    def _constant(self, operand: Any) -> Array | None:
        """Returns a number, or an array of numbers, as shape (k,); None for other types."""
        array = real_array(operand)
        if array is None:
            return None
        shape = (self._columns.values,)
        allowed: list[tuple[int, ...]] = [()]
        if not self._scalar:
            allowed.append(shape)
        if array.shape not in allowed or not np.isfinite(array).all():
            raise ReductionError(
                f"an estimate of {self._words()} is combined with finite numbers, of shape "
                f"{' or '.join(map(str, allowed))}, got {operand!r}"
            )
        return np.broadcast_to(array, shape)

    def _each_row(self, transform: Callable[[Moments, Array], Moments], operand: Any) -> Any:
        """Transforms the rows by a number, or by numbers of shape (k,); returns NotImplemented
        for other types.
        """
        numbers = self._constant(operand)
        if numbers is None:
            return NotImplemented
        return replace(self, _moments=transform(self._moments, numbers))

    def _measured(self) -> "Measurement":
        return Measurement(self.mean, self.stderr, frozenset(self._rows))

    def _function_of_means(self, function: str, operands: tuple[Any, ...]) -> str:
        if self._scalar and all(isinstance(operand, Estimate) for operand in operands):
            second = ", b" * (len(operands) - 1)
            return f"a.propagate({function}{second})"
        mean = "mean[0]"
        if self._scalar:
            mean = "mean"
        arguments = named_operands(operands, self, mean, "x")
        return f"a.propagate(lambda mean: {function}({arguments}))"

    def __neg__(self) -> "Estimate":
        negative: Estimate = self * -1.0
        return negative

    def __mul__(self, operand: Any) -> Any:
        """Multiplies each row by a number; multiplies the means of two estimates."""
        if isinstance(operand, Estimate):
            return self._measured() * operand
        return self._each_row(partial(moments_module.scaled, op=mul), operand)

    __rmul__ = __mul__

    def __truediv__(self, operand: Any) -> Any:
        """Divides each row by a number; divides the means of two estimates."""
        if isinstance(operand, Estimate):
            return self._measured() / operand
        divisor = self._constant(operand)
        if divisor is not None and not divisor.all():
            raise ReductionError(f"an estimate cannot be divided by 0, got {operand!r}")
        return self._each_row(partial(moments_module.scaled, op=truediv), operand)

    def __rtruediv__(self, operand: Any) -> Any:
        """Divides a number by the mean: a `Measurement`, as 1 / mean is not the mean of 1 / v."""
        if self._constant(operand) is None:
            return NotImplemented
        return operand / self._measured()

    def __sub__(self, operand: Any) -> Any:
        """Subtracts a number from each row; subtracts the means of two estimates."""
        if isinstance(operand, Estimate):
            return self._measured() - operand
        return self._each_row(
            lambda moments, shift: moments_module.shifted(moments, -shift), operand
        )

    def __add__(self, operand: Any) -> "Estimate":
        """Returns the estimate of the rows of both, which must be different ones; adds a number
        to each row.
        """
        if not isinstance(operand, Estimate):
            return self._each_row(moments_module.shifted, operand)  # type: ignore[no-any-return]
        if self._kind() != operand._kind():
            raise ReductionError(
                f"cannot add an estimate of {operand._words()} to one of {self._words()}: they "
                f"must be of the same kind"
            )
        if not {*self._rows}.isdisjoint(operand._rows):
            raise ReductionError(
                "estimates of different rows can be added, but the same rows occur in both, so "
                "that the error bar would be too small; add each estimate once; for a multiple "
                "write 2 * a, and for a sum of means a function of them, as in a.propagate(lambda "
                "x: x + x)"
            )
        moments = moments_module.merge(moments_module.joined(self._moments, operand._moments))
        return replace(self, _moments=moments, _rows=(*self._rows, *operand._rows)[-_MOST_ROWS:])

    def __radd__(self, operand: Any) -> "Estimate":
        """Adds a number to each row; `sum(estimates)` starts from 0."""
        if isinstance(operand, int) and operand == 0:
            return self
        return self + operand

    def _kind(self) -> tuple[Any, ...]:
        return self._scalar, self._columns, self._block

    def _words(self) -> str:
        columns = self._columns
        words = f"{columns.values} values"
        if self._scalar:
            words = "one value"
        if not columns.weighted:
            words += " without weights"
        else:
            words += " with weights"
        if columns.covariance:
            words += " and covariance"
        if self._block > 1:
            words += f", of means of {self._block} rows"
        return words

    def __repr__(self) -> str:
        """Shows all statistics at full precision."""
        names = ["mean", "variance", "stderr", "count"]
        if self._columns.weighted:
            names.append("effective_size")
        texts = [f"{name}={np.asarray(getattr(self, name)).tolist()!r}" for name in names]
        return f"Estimate({', '.join(texts)})"


def _numbers(name: str, values: Any) -> Array:
    """Returns an argument as an array of real numbers."""
    if np.ma.is_masked(values):
        raise ReductionError(
            f"{name} has masked items; pass {name}.compressed(), or {name}.filled(…)"
        )
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise ReductionError(f"{name} must be real numbers, got dtype {array.dtype}")
    return array


def _weights(values: Any, rows: int) -> Array:
    weights = _numbers("weights", values)
    if weights.shape != (rows,) or (weights < 0).any():
        raise ReductionError(
            f"weights must be one non-negative number for each of the {rows} rows, got shape "
            f"{weights.shape}"
        )
    return weights.astype(np.float64)


def _by_gradient(gradient: Callable[..., Any], means: list[Any]) -> Any:
    """Returns the derivatives by the means of each estimate, as the user's function has them."""
    slopes = gradient(*means)
    if len(means) == 1:
        return (slopes,)
    if not isinstance(slopes, tuple | list) or len(slopes) != len(means):
        raise ReductionError(
            f"gradient must return a tuple of {len(means)}, one for each estimate, got {slopes!r}"
        )
    return slopes


def _slopes(
    function: Callable[..., Any], means: list[Any], position: int, estimate: Estimate
) -> Array:
    """Returns the derivatives of `function` by one estimate's means, by central differences."""
    mean = np.asarray(estimate.mean, np.float64)
    steps, slopes = np.ravel(estimate.stderr) * _STEP, np.zeros(mean.size)

    def end(index: int, step: float) -> tuple[float, float]:
        """Returns one mean, moved by a step, and the function's value there."""
        moved = mean.copy()
        moved.reshape(-1)[index] += step
        arguments = list(means)
        arguments[position] = as_value(moved)
        return moved.reshape(-1)[index], real_number(function(*arguments))

    for i, step in enumerate(steps.tolist()):
        if step == 0:
            continue  # a mean without error adds none
        (upper, value_above), (lower, value_below) = end(i, step), end(i, -step)
        slopes[i] = math.nan
        if upper != lower:
            slopes[i] = (value_above - value_below) / (upper - lower)
    return slopes.reshape(mean.shape)


def check_covariance(*, covariance: bool, weighted: bool) -> None:
    """Refuses covariance together with weights, which is not implemented."""
    if as_flag(covariance, "covariance") and weighted:
        raise ReductionError(
            "covariance=True cannot be combined with weights; estimate the products of the "
            "values as further values"
        )


# more than there are rows anywhere; kernels add it to the position of a row, in 64 bits
MAX_BLOCK = 1 << 62


def block_size(block: Any, rows: int | None = None) -> int:
    """Returns the rows of a block; raises `ReductionError` if `block` is no number of rows, or more
    than there are.
    """
    limit, most = MAX_BLOCK, ""
    if rows is not None:
        limit, most = rows, f", {rows}"
    size = as_index(block)
    if not 1 <= size <= limit:
        raise ReductionError(
            f"block must be an integer from 1 to the number of rows{most}, got {block!r}"
        )
    return size


def merged(
    parts: Moments,
    *,
    scalar: bool,
    powers: Powers | None = None,
    rest: Moments | None = None,
    block: int = 1,
) -> Estimate:
    """Merges parts, in order, into one estimate; raises ReductionError if there are no rows.

    `scalar` if the function returned a single number instead of a tuple. Values are in units of the
    `powers` of two, if given. With `block`, the parts are of means of blocks of rows, and `rest` is
    the part of the rows after the last whole block.
    """
    total = parts
    if parts.columns.weighted:
        total = moments_module.normalised(parts)
    if len(parts.lines) > 1:
        total = moments_module.merge(total)
    rows = int(total.lines[0, 0]) * block
    if rest is not None:
        rows += int(rest.lines[0, 0])
    if not rows:
        raise ReductionError("expectation of no rows; pass at least one row")
    if block > 1:
        block_size(block, rows)
    if rest is not None:
        total = moments_module.with_rest(total, rest, block)
    if powers is not None:
        total = moments_module.in_units(total, -powers)
    return Estimate(total, scalar, _block=block)
