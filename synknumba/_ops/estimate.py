"""`Estimate`: the sample mean of rows with its standard error. `Measurement`: a value computed from
such means.

    Estimate + Estimate      the rows of both                    → Estimate
    Estimate and a number    +, −, *, / of each row              → Estimate; exact
    Estimate and Estimate    −, *, / of the means                → Measurement; errors propagated to first order
    Measurement and any      +, −, *, / of the values            → Measurement; likewise
    powers, |a|, NumPy's exp, log, sqrt, sin, … of the mean      → Measurement; likewise

Rows have an identity, which multiples of an estimate keep and sums collect. Errors of the same rows
are not independent, so an operation on the means of two operands that share an identity is refused;
so is a / (a + b), where `+` might be meant as that of the means.

Comparisons are left out: whether two means "are equal" or one is greater is a statistical test, at
a level that only the user can choose; `==` compares identities of objects.
"""  # noqa: E501

import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from numbers import Real
from operator import is_, is_not, mul, neg, pos, truediv
from typing import Any, Self, final

import numpy as np

from synknumba import _html
from synknumba._errors import ArgumentError, ReductionError
from synknumba._ops import moments as moments_module
from synknumba._ops.derivatives import DERIVATIVES
from synknumba._ops.moments import Moments, Powers
from synknumba._types import Array, as_flag

# Threshold of the effective number of rows: if one row has all the weight, rounding may give
# slightly more than 1.
_ONE_ROW = 1 + 1e-12

_MOST_ROWS = 16  # identities of rows that a sum keeps, the last ones, as a sum may have 10^6 terms

# Step of numerical derivatives, in standard errors: small against the region where the function is
# taken for linear, and large against rounding: for a mean of 1 ± 10^-8 the error bar is still
# accurate to 10^-5.
_STEP = 0.01

# How NumPy's arrays and scalars come to Python's operators of what is on their other side.
_OPERATORS: dict[np.ufunc, str] = {
    np.add: "add",
    np.subtract: "sub",
    np.multiply: "mul",
    np.true_divide: "truediv",
    np.power: "pow",
}
_OF_ONE: dict[np.ufunc, Callable[[Any], Any]] = {np.negative: neg, np.positive: pos}
_IDENTITY: dict[np.ufunc, Callable[[Any, Any], bool]] = {np.equal: is_, np.not_equal: is_not}


class _Quantity(ABC):
    """A mean with its standard error: powers, and NumPy's functions of it, to first order."""

    __slots__ = ()

    @abstractmethod
    def _measured(self) -> "Measurement":
        """Returns mean and standard error."""

    @abstractmethod
    def _function_of_means(self, function: str, operands: tuple[Any, ...]) -> str:
        """Returns the expression that propagates errors through a NumPy function of
        `operands`, which include this one.
        """

    def _repr_html_(self) -> str | None:
        """Shows means and errors in a notebook."""
        return _html.of_quantity(self)

    def __pos__(self) -> Self:
        return self

    def __abs__(self) -> "Measurement":
        return _through(np.absolute, self._measured())

    def __pow__(self, other: Any) -> "Measurement":
        """Raises the mean to a power: `a**2` is the square of the mean, not the mean of squares."""
        return _combined(self._measured(), other, _power)

    def __rpow__(self, other: Any) -> "Measurement":
        return _combined(self._measured(), other, lambda a, s, b, t: _power(b, t, a, s))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Propagates errors through NumPy's functions of one number, and leaves operations of
        arrays to this object.
        """
        plain = method == "__call__" and not options
        if plain and len(inputs) == 1 and ufunc in DERIVATIVES:
            return _through(ufunc, self._measured())
        if plain and ufunc in _OF_ONE:
            return _OF_ONE[ufunc](*inputs)
        if plain and ufunc in _IDENTITY:
            return _IDENTITY[ufunc](*inputs)
        if plain and ufunc in _OPERATORS:
            left, right = inputs
            name = _OPERATORS[ufunc]  # by name, since `left * right` would come here again
            result = (
                getattr(left, f"__{name}__")(right)
                if isinstance(left, _Quantity)
                else getattr(right, f"__r{name}__")(left)
            )
            if result is not NotImplemented:
                return result
        first = next(operand for operand in inputs if isinstance(operand, _Quantity))
        if method != "__call__":  # as np.sum(a) ends in np.add.reduce
            raise ArgumentError(_no_array(f"np.{ufunc.__name__}.{method}", first))
        second = ", x" if len(inputs) > 1 else ""
        way_out = f"pass its mean, as in np.{ufunc.__name__}(a.mean{second})"
        if plain and any(signature[-1] not in "?O" for signature in ufunc.types):
            line = first._function_of_means(f"np.{ufunc.__name__}", inputs)  # noqa: SLF001  # same class
            way_out = f"write {line}, which propagates the error to first order, or {way_out}"
        raise ArgumentError(f"np.{ufunc.__name__} takes no {type(first).__name__}: {way_out}")

    def __array_function__(self, function: Callable[..., Any], *_: Any) -> Any:
        """Refuses NumPy's functions of arrays, some of which call methods that estimates lack."""
        raise ArgumentError(_no_array(f"np.{function.__name__}", self))


def _no_array(called: str, quantity: _Quantity) -> str:
    return (
        f"{called} is for arrays, and this is one {type(quantity).__name__}, a mean with its "
        "standard error; write a.mean, a.stderr or a.variance for its numbers, a + b for the "
        "estimate of the rows of both, and 2 * a or np.exp(a) for functions of it"
    )


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Estimate(_Quantity):
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

    >>> Estimate.from_values([1.0, 2.0, 6.0, 7.0])
    Estimate(mean=4.0, variance=8.666666666666666, stderr=1.4719601443879744, count=4)
    >>> a, b = Estimate.from_values([1.0, 2.0, 4.0]), Estimate.from_values([2.5, 3.5])
    >>> print(a + b, 10 * a, a / b, f"{a:.3f}")
    2.60(53) 23.3(8.8) 0.78(32) 2.333 ± 0.882
    """

    _moments: Moments
    _scalar: bool
    _rows: tuple[bytes, ...] = field(default_factory=lambda: (os.urandom(16),))

    @classmethod
    def from_values(
        cls, values: Any, weights: Any = None, *, covariance: bool = False, block: int = 1
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
        for name, argument in (("values", values), ("weights", weights)):
            if np.ma.is_masked(argument):
                raise ReductionError(
                    f"{name} has masked items; pass {name}.compressed(), or {name}.filled(…)"
                )
        array = np.asarray(values)
        w = None if weights is None else np.asarray(weights)
        for name, argument in (("values", array), ("weights", w)):
            if argument is not None and argument.dtype.kind not in "biuf":
                raise ReductionError(f"{name} must be real numbers, got dtype {argument.dtype}")
        if array.ndim not in {1, 2} or not array.size:
            raise ReductionError(
                f"values must have shape (n,) or (n, k) with at least one row, got {array.shape}"
            )
        if w is not None and (w.shape != array.shape[:1] or (w < 0).any()):
            raise ReductionError(
                f"weights must be one non-negative number for each of the {len(array)} "
                f"rows, got shape {w.shape}"
            )
        check_covariance(covariance=covariance, weighted=w is not None)
        check_block(block, len(array))
        rows = array.reshape(len(array), -1).astype(np.float64)
        if w is not None:
            w = w.astype(np.float64)
        moments = moments_module.of_values(rows, w, covariance=covariance, block=int(block))
        return cls(moments, array.ndim == 1)

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
        return int(self._moments.count[0, 0])

    @property
    def mean(self) -> Any:
        """Mean of the rows, float or shape (k,); with weights self-normalised: Σ w v / Σ w."""
        return self._told(np.where(self._moments.weight != 0, self._moments.mean, np.nan)[0])

    @property
    def variance(self) -> Any:
        """Unbiased variance of the rows, a float or shape (k,): Σ (v − mean)² / (n − 1). NaN for
        one row.

        With weights: Σ w (v − mean)² / (Σ w − Σ w² / Σ w), which equals the former if all weights
        are equal.
        """
        return self._told(self._per_freedom(self._squares()))

    @property
    def stderr(self) -> Any:
        """Standard error of the mean, a float or shape (k,): √(variance / n). NaN for one row.

        With weights, by the delta method: √(n / (n − 1) · Σ w² (v − mean)²) / Σ w, which equals the
        former if all weights are equal. Valid for many rows, none of which dominates the weight;
        see `effective_size`.
        """
        moments = self._moments
        if moments.squares is None:
            return self._told(np.sqrt(self._per_freedom(self._squares()) / self.count))
        if not self.effective_size > _ONE_ROW:
            return self._told(np.full(moments.mean.shape[1], np.nan))
        spread = np.maximum(moments.squares[0, 2], 0.0)  # rounding
        return self._told(np.sqrt(spread * self.count / (self.count - 1)) / moments.weight[0])

    @property
    def stderr_error(self) -> Any:
        """Standard deviation of `stderr`, stderr / √(2 (n − 1)), for rows (or means of blocks) that
        are normally distributed.

        H. Flyvbjerg, H. G. Petersen, J. Chem. Phys. 91, 461 (1989). With weights, n is
        `effective_size`.
        """
        freedom = self.effective_size - 1
        return self.stderr / math.sqrt(2 * freedom) if freedom > 0 else self.stderr

    @property
    def covariance(self) -> Array:
        """Unbiased covariance of the k values of a row, shape (k, k); divide by `count` for the
        covariance of their means.

        Raises:
            ReductionError: the estimate was made without covariance=True.
        """
        if self._moments.products.ndim == 2:
            raise ReductionError("this estimate has no covariance; request it with covariance=True")
        return self._per_freedom(self._moments.products[0])

    @property
    def effective_size(self) -> float:
        """Effective sample size (Σ w)² / Σ w² (L. Kish): the equivalent number of unweighted
        rows; `count` without weights.
        """
        if self._moments.squares is None:
            return float(self.count)
        weight, square = float(self._moments.weight[0, 0]), float(self._moments.squares[0, 0, 0])
        return weight * weight / square if square != 0 else 0.0

    def _squares(self) -> Array:
        products = self._moments.products[0]
        return products if products.ndim == 1 else np.diagonal(products)

    def _per_freedom(self, sums: Array) -> Any:
        """Returns sums of squared deviations over the degrees of freedom; NaN if there are none."""
        if not self.effective_size > _ONE_ROW:
            return np.full(sums.shape, np.nan)
        weight = float(self._moments.weight[0, 0])
        return sums / (weight - weight / self.effective_size)

    def _told(self, values: Array) -> Any:
        return float(values[0]) if self._scalar else values

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
            raise _shared()
        means = [estimate.mean for estimate in estimates]
        value = _real_number(function(*means))
        if gradient is None:
            slopes: Any = [
                _slopes(function, means, position, estimate)
                for position, estimate in enumerate(estimates)
            ]
        else:
            slopes = gradient(*means) if others else (gradient(*means),)
            if not isinstance(slopes, tuple | list) or len(slopes) != len(estimates):
                raise ReductionError(
                    f"gradient must return a tuple of {len(estimates)}, one for each "
                    f"estimate, got {slopes!r}"
                )
        stderr = math.hypot(*map(Estimate._error_along, estimates, slopes))
        return Measurement(value, stderr, frozenset(rows))

    def _error_along(self, slope: Any) -> float:
        """Returns √(gᵀ C g) for derivatives g by the means and the covariance C of the means."""
        g, shape = np.asarray(slope, np.float64), np.shape(self.mean)
        if g.shape != shape:
            raise ReductionError(f"gradient must have the shape {shape} of the mean, got {g.shape}")
        g = g.reshape(-1)
        if g.size == 1:
            return float(g[0]) * float(np.ravel(self.stderr)[0])
        if self._moments.squares is not None:
            raise ReductionError(
                "propagate of several values needs their covariance, which is not implemented for "
                "weights; make an estimate of each value, from different rows, and pass them all "
                "to propagate"
            )
        with np.errstate(invalid="ignore", over="ignore"):
            return math.sqrt(max(float(g @ self.covariance @ g) / self.count, 0.0))  # rounding

    def _constant(self, operand: Any) -> Array | None:
        """Returns a number, or an array of numbers, as shape (k,); None for other types."""
        array = _real_array(operand)
        if array is None:
            return None
        allowed = {()} if self._scalar else {(), self._moments.mean.shape[1:]}
        if array.shape not in allowed or not np.isfinite(array).all():
            raise ReductionError(
                f"an estimate of {self._words()} is combined with finite numbers, of shape "
                f"{' or '.join(map(str, sorted(allowed)))}, got {operand!r}"
            )
        return np.broadcast_to(array, self._moments.mean.shape[1:])

    def _shifted(self, shift: Array) -> "Estimate":
        return replace(self, _moments=moments_module.shifted(self._moments, shift))

    def _scaled(self, op: Callable[[Any, Any], Any], factor: Array) -> "Estimate":
        return replace(self, _moments=moments_module.scaled(self._moments, op, factor))

    def _measured(self) -> "Measurement":
        return Measurement(self.mean, self.stderr, frozenset(self._rows))

    def _function_of_means(self, function: str, operands: tuple[Any, ...]) -> str:
        if self._scalar and all(isinstance(operand, Estimate) for operand in operands):
            second = ", b" if len(operands) > 1 else ""
            return f"a.propagate({function}{second})"
        mean = "mean" if self._scalar else "mean[0]"
        arguments = ", ".join(mean if operand is self else "x" for operand in operands)
        return f"a.propagate(lambda mean: {function}({arguments}))"

    def __neg__(self) -> "Estimate":
        return self._scaled(mul, np.full(self._moments.mean.shape[1], -1.0))

    def __mul__(self, other: Any) -> Any:
        """Multiplies each row by a number; multiplies the means of two estimates."""
        if isinstance(other, Estimate):
            return self._measured() * other
        factor = self._constant(other)
        return NotImplemented if factor is None else self._scaled(mul, factor)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        """Divides each row by a number; divides the means of two estimates."""
        if isinstance(other, Estimate):
            return self._measured() / other
        divisor = self._constant(other)
        if divisor is None:
            return NotImplemented
        if not divisor.all():
            raise ReductionError(f"an estimate cannot be divided by 0, got {other!r}")
        return self._scaled(truediv, divisor)

    def __rtruediv__(self, other: Any) -> Any:
        """Divides a number by the mean: a `Measurement`, as 1 / mean is not the mean of 1 / v."""
        return NotImplemented if self._constant(other) is None else other / self._measured()

    def __sub__(self, other: Any) -> Any:
        """Subtracts a number from each row; subtracts the means of two estimates."""
        if isinstance(other, Estimate):
            return self._measured() - other
        shift = self._constant(other)
        return NotImplemented if shift is None else self._shifted(-shift)

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __float__(self) -> float:
        """Returns the mean of a single value."""
        return _single(self.mean)

    def __add__(self, other: Any) -> "Estimate":
        """Returns the estimate of the rows of both, which must be different ones; adds a number
        to each row.
        """
        if not isinstance(other, Estimate):
            shift = self._constant(other)
            return NotImplemented if shift is None else self._shifted(shift)
        if self._kind() != other._kind():
            raise ReductionError(
                f"cannot add an estimate of {other._words()} to one of {self._words()}: they "
                f"must be of the same kind"
            )
        if not {*self._rows}.isdisjoint(other._rows):
            raise ReductionError(
                "estimates of different rows can be added, but the same rows occur in both, so "
                "that the error bar would be too small; add each estimate once; for a multiple "
                "write 2 * a, and for a sum of means a function of them, as in a.propagate(lambda "
                "x: x + x)"
            )
        moments = moments_module.merge(moments_module.joined(self._moments, other._moments))
        return Estimate(moments, self._scalar, (*self._rows, *other._rows)[-_MOST_ROWS:])

    def __radd__(self, other: Any) -> "Estimate":
        """Adds a number to each row; `sum(estimates)` starts from 0."""
        return self if isinstance(other, int) and other == 0 else self + other

    def _kind(self) -> tuple[Any, ...]:
        return self._scalar, self._moments.products.shape, self._moments.squares is None

    def _words(self) -> str:
        values = "one value" if self._scalar else f"{self._moments.mean.shape[1]} values"
        covariance = " and covariance" if self._moments.products.ndim == 3 else ""
        return f"{values} with{'out' if self._moments.squares is None else ''} weights{covariance}"

    def __str__(self) -> str:
        """Concise notation: 0.19877(12) for 0.19877 ± 0.00012; several values in brackets."""
        return _text(self.mean, self.stderr, concise)

    def __format__(self, spec: str) -> str:
        """Applies a format of floats (".3f", "10.2e") to mean and standard error; any other, as
        ">20", to the text.
        """
        return _formatted(self, spec)

    def __repr__(self) -> str:
        """Shows all statistics at full precision."""
        size = "" if self._moments.squares is None else f", effective_size={self.effective_size!r}"
        texts = (
            f"{name}={np.asarray(getattr(self, name)).tolist()!r}"
            for name in ("mean", "variance", "stderr", "count")
        )
        return f"Estimate({', '.join(texts)}{size})"


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Measurement(_Quantity):
    """A value with its standard error, computed from the means of estimates.

    Returned by `a - b`, `a * b`, `a / b` of estimates, and by `Estimate.propagate`. It has no
    `count`, and `+`, `-`, `*`, `/` all combine values, with numbers, measurements and estimates.
    Errors are propagated to first order for independent
    operands: JCGM 100:2008 (GUM), equation 10; so they are by `**`, `abs` and NumPy's functions of
        one number. If both operands
    contain the same rows, as in `a / (a - b)`, they are refused; `propagate` takes such functions.
    With several values, operations are elementwise.

    >>> a, b = Estimate.from_values([9.0, 10.0, 11.0]), Estimate.from_values([4.9, 5.1])
    >>> print(a / b, 2 * (a - b), f"{a * b:.1f}")
    2.00(12) 10.0(1.2) 50.0 ± 3.1

    Attributes:
        mean: the value, a float or shape (k,).
        stderr: its standard error, a float or shape (k,).
        rows: identities of the rows that it was computed from.
    """

    mean: Any
    stderr: Any
    rows: frozenset[bytes] = frozenset()

    def __neg__(self) -> "Measurement":
        return Measurement(-self.mean, self.stderr, self.rows)

    def __add__(self, other: Any) -> "Measurement":
        return _combined(self, other, lambda a, s, b, t: (a + b, np.hypot(s, t)))

    __radd__ = __add__

    def __sub__(self, other: Any) -> "Measurement":
        return _combined(self, other, lambda a, s, b, t: (a - b, np.hypot(s, t)))

    def __rsub__(self, other: Any) -> "Measurement":
        return -self + other

    def __mul__(self, other: Any) -> "Measurement":
        return _combined(self, other, lambda a, s, b, t: (a * b, np.hypot(b * s, a * t)))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> "Measurement":
        return _combined(self, other, lambda a, s, b, t: (a / b, np.hypot(s / b, a / b * (t / b))))

    def __rtruediv__(self, other: Any) -> "Measurement":
        return _combined(self, other, lambda a, s, b, t: (b / a, np.hypot(t / a, b / a * (s / a))))

    def _measured(self) -> "Measurement":
        return self

    def _function_of_means(self, function: str, operands: tuple[Any, ...]) -> str:
        arguments = ", ".join("x / y" if operand is self else "z" for operand in operands)
        return (
            f"one function of the means of estimates, as in a.propagate(lambda x, y: "
            f"{function}({arguments}), b)"
        )

    def __float__(self) -> float:
        """Returns a single value."""
        return _single(self.mean)

    def __str__(self) -> str:
        """Concise notation, as of an `Estimate`."""
        return _text(self.mean, self.stderr, concise)

    def __format__(self, spec: str) -> str:
        """Formats as an `Estimate` does."""
        return _formatted(self, spec)

    def __repr__(self) -> str:
        """Shows value and standard error at full precision."""
        return (
            f"Measurement(mean={np.asarray(self.mean).tolist()!r}, "
            f"stderr={np.asarray(self.stderr).tolist()!r})"
        )


def _combined(
    measurement: Measurement, operand: Any, combine: Callable[..., tuple[Any, Any]]
) -> Measurement:
    """Returns combine(mean, stderr, other mean, other stderr), for independent errors."""
    if isinstance(operand, Estimate):
        operand = operand._measured()  # noqa: SLF001  # same module
    elif not isinstance(operand, Measurement):
        array = _real_array(operand)
        if array is None:
            return NotImplemented
        operand = Measurement(array, np.zeros(array.shape))
    if measurement.rows & operand.rows:
        raise _shared()
    numbers = [
        np.asarray(number)
        for number in (measurement.mean, measurement.stderr, operand.mean, operand.stderr)
    ]
    shapes = numbers[0].shape, numbers[2].shape
    if len(shapes[1]) > 1 or (all(shapes) and shapes[0] != shapes[1]):
        raise ReductionError(
            f"operands must be single values or have one shape (k,), got "
            f"{shapes[0]} and {shapes[1]}"
        )
    # division by a mean of 0 and overflow give infinity or NaN, as in arrays
    with np.errstate(all="ignore"):
        mean, stderr = (array if array.ndim else float(array) for array in combine(*numbers))
    return Measurement(mean, stderr, measurement.rows | operand.rows)


def _through(function: np.ufunc, measurement: Measurement) -> Measurement:
    """Returns a function of a value, elementwise, with its error to first order."""
    with np.errstate(all="ignore"):
        mean, stderr = np.asarray(measurement.mean), np.asarray(measurement.stderr)
        results = np.asarray(function(mean)), _part(DERIVATIVES[function](mean), stderr)
    value, error = (array if array.ndim else float(array) for array in results)
    return Measurement(value, error, measurement.rows)


def _power(a: Array, s: Array, b: Array, t: Array) -> tuple[Array, Array]:
    """Returns aᵇ and its error, of a ± s and b ± t."""
    value = a**b
    return value, np.hypot(
        _part(np.where(b == 0, 0.0, b * a ** (b - 1)), s), _part(np.log(a) * value, t)
    )


def _part(slope: Array, stderr: Array) -> Array:
    """Returns the error that an operand with this error brings; 0 if it has none, also where
    there is no slope.
    """
    return np.where(stderr == 0, 0.0, np.absolute(slope) * stderr)


def _slopes(
    function: Callable[..., Any], means: list[Any], position: int, estimate: Estimate
) -> Array:
    """Returns the derivatives of `function` by one estimate's means, by central differences."""
    mean = np.asarray(estimate.mean, np.float64)
    steps, slopes = np.ravel(estimate.stderr) * _STEP, np.zeros(mean.size)
    for i, step in enumerate(steps.tolist()):
        if step == 0:
            continue  # a mean without error adds none
        ends, values = [], []
        for sign in (1, -1):
            moved = mean.copy()
            moved.reshape(-1)[i] += sign * step
            arguments = [
                *means[:position],
                moved if mean.ndim else float(moved),
                *means[position + 1 :],
            ]
            ends.append(moved.reshape(-1)[i])
            values.append(_real_number(function(*arguments)))
        slopes[i] = (
            (values[0] - values[1]) / (ends[0] - ends[1]) if ends[0] != ends[1] else math.nan
        )
    return slopes.reshape(mean.shape)


def _shared() -> ReductionError:
    return ReductionError(
        "errors are propagated for independent rows, but the same rows occur in more than one "
        "operand; write one function of the means, as in a.propagate(lambda x, y: x / (x + y), b)"
    )


def _real_array(value: Any) -> Array | None:
    """Returns a real number or an array of real numbers as float64; None for other types."""
    if isinstance(value, Real) or (
        isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf"
    ):
        return np.asarray(value, np.float64)
    return None


def _real_number(value: Any) -> float:
    array = _real_array(value)
    if array is None or array.size != 1:
        raise ReductionError(
            f"the function that propagate gets must return one real number, got {value!r}"
        )
    return float(array.reshape(-1)[0])


def _single(mean: Any) -> float:
    if np.ndim(mean):
        raise ArgumentError(
            f"float() takes an estimate of one value, got {len(mean)} values; use its mean"
        )
    return float(mean)


def _text(mean: Any, stderr: Any, write: Callable[[float, float], str]) -> str:
    """Writes one value, or several in brackets."""
    if not np.ndim(mean):
        return write(float(mean), float(stderr))
    return f"[{', '.join(map(write, mean.tolist(), stderr.tolist()))}]"


def _formatted(value: Estimate | Measurement, spec: str) -> str:
    if re.search(r"\.\d|[eEfFgGn%]$", spec):
        return _text(
            value.mean, value.stderr, lambda mean, stderr: f"{mean:{spec}} ± {stderr:{spec}}"
        )
    return format(str(value), spec)


def check_covariance(*, covariance: bool, weighted: bool) -> None:
    """Refuses covariance together with weights, which is not implemented."""
    if as_flag(covariance, "covariance") and weighted:
        raise ReductionError(
            "covariance=True cannot be combined with weights; estimate the products of the "
            "values as further values"
        )


# more than there are rows anywhere; kernels add it to the position of a row, in 64 bits
MAX_BLOCK = 1 << 62


def check_block(block: Any, rows: int | None = None) -> None:
    """Raises `ReductionError` if `block` is no number of rows, or more than there are."""
    is_integer = hasattr(block, "__index__") and not isinstance(block, bool)
    if not is_integer or not 1 <= block <= MAX_BLOCK or (rows is not None and block > rows):
        most = "" if rows is None else f", {rows}"
        raise ReductionError(
            f"block must be an integer from 1 to the number of rows{most}, got {block!r}"
        )


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
    total = moments_module.merge(parts)
    rows = int(total.count[0, 0]) * block + (0 if rest is None else int(rest.count[0, 0]))
    if not rows:
        raise ReductionError("expectation of no rows; pass at least one row")
    check_block(block, rows)
    if rest is not None:
        total = moments_module.with_rest(total, rest, block)
    return Estimate(total if powers is None else moments_module.in_units(total, -powers), scalar)


def concise(mean: float, stderr: float) -> str:
    """Formats mean and standard error with two digits of the error, as in CODATA's tables.

    >>> concise(0.198773, 0.000123), concise(12.345, 1.26), concise(123456.0, 2340.0), concise(1 / 3, math.nan)
    ('0.19877(12)', '12.3(1.3)', '1.235(23)e+05', '0.333333(nan)')
    """  # noqa: E501
    if math.isnan(stderr):
        return f"{mean:.6g}(nan)"  # nothing says how many digits are significant
    if not (math.isfinite(mean) and math.isfinite(stderr) and stderr > 0):
        return f"{mean:.12g}({stderr:.2g})"
    last = int(f"{stderr:.1e}".split("e")[1]) - 1  # the power of ten of the error's second digit
    first = max(math.floor(math.log10(abs(mean))) if mean else last, last)
    if last <= 0 and first >= -4:
        error = f"{stderr:.{-last}f}"
        if last >= 0 or stderr < 1:
            error = error.replace(".", "").lstrip("0")
        return f"{mean:.{-last}f}({error})"
    power = max(first, last + 1)
    digits = (
        f"{Decimal(stderr).scaleb(-power):.1f}"
        if power == last + 1
        else f"{Decimal(stderr).scaleb(-last):.0f}"
    )
    return f"{Decimal(mean).scaleb(-power):.{power - last}f}({digits})e{power:+03d}"
