"""Moments of rows: counts, means and sums of squared deviations of parts of the rows, and their
numerically stable merge.

Parts p with weights A_p (numbers of rows, if there are no weights), means a_p and M_p = Σ w (v −
a_p)² merge to

    mean = a_0 + Σ A_p (a_p − a_0) / Σ A_p        M = Σ M_p + Σ A_p (a_p − mean)²

which for two parts is M_0 + M_1 + (a_1 − a_0)² A_0 A_1 / (A_0 + A_1), the formula of T. Chan, G.
Golub, R. LeVeque, *Updating formulae and a pairwise algorithm for computing sample variances*
(1979). A mean is stored as an unevaluated sum of two numbers, `mean` + `rest`, where `rest` is the
rounding error of `mean`: near 10^9 a float64 is accurate to 10^-7, and so would be a_p − a_0, and
the variance of values that differ by 1.

If a_p − a_0 or (a_p − mean)² exceeds the float64 range, the parts are merged in units of 2^700, in
which means are at most 2^324; M overflows only if the true value does. Weights are in units of a
power of two close to the largest weight, so that products of squared weights and squared values
neither overflow nor underflow unless the squared values do.

Parts are lines of float64, as the kernels of an expectation write them, of columns

    rows | Σ w | a for each value | the mean's rest for each value | products | with weights: S

where products are Σ w (v − a)² of each value or, for the covariance, of each pair of values. The
lines are merged by compiled code: 0.4 µs for the lines of 2 ranks, 0.6 µs for those of 31.

The standard error of a weighted mean needs sums with squared weights, S_j = Σ w² (v − mean)^j for j
= 0, 1, 2. They depend on the mean: about a mean larger by d they are S_0, S_1 − d S_0, S_2 − 2 d
S_1 + d² S_0.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property
from itertools import combinations_with_replacement
from typing import Any, TypeAlias, final

import numpy as np

from synknumba._types import Array

FAR = 700  # values whose squares or differences overflow are in units of 2^FAR
# numbers of lines in memory at once: they stay in a cache, and sums of sums lose fewer bits
_TABLE = 1 << 16

Powers: TypeAlias = Array
"""Integers, shape (k,): for each value the power of two that it is in units of."""


@final
@dataclass(frozen=True)
class Columns:
    """The columns of a line of moments.

    Attributes:
        values: number of values per row, k.
        covariance: whether there are products of all pairs of values.
        weighted: whether rows have weights.
    """

    values: int
    covariance: bool
    weighted: bool

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Pairs of values whose products are summed."""
        values = range(self.values)
        if not self.covariance:
            return tuple((i, i) for i in values)
        return tuple(combinations_with_replacement(values, 2))

    @cached_property
    def count(self) -> int:
        """Number of columns."""
        count = self.products.stop
        if self.weighted:
            count += 1 + 2 * self.values
        return count

    @cached_property
    def means(self) -> slice:
        """Columns of the means; their rounding errors follow."""
        return slice(2, 2 + self.values)

    @cached_property
    def centres(self) -> slice:
        """Columns of the means and of their rounding errors."""
        return slice(2, 2 + 2 * self.values)

    @cached_property
    def products(self) -> slice:
        """Columns of the products, which those of S_0, S_1 and S_2 follow."""
        return slice(self.centres.stop, self.centres.stop + len(self.pairs))

    @cached_property
    def own_products(self) -> Array:
        """Columns of the products of each value with itself."""
        products = enumerate(self.pairs, self.products.start)
        return np.array([column for column, (i, j) in products if i == j])

    def factors(self, factor: Array, neutral: float) -> Array:
        """Returns the two factors of each column, shape (2, …, columns), of values with factors of
        shape (…, k): S_2 and products have two of them, means and S_1 one and `neutral`.
        """
        both = np.full((2, *factor.shape[:-1], self.count), neutral, factor.dtype)
        i, j = np.array(self.pairs).T
        both[0, ..., self.centres] = np.concatenate([factor, factor], axis=-1)
        both[0, ..., self.products], both[1, ..., self.products] = factor[..., i], factor[..., j]
        if self.weighted:
            k = self.values
            both[0, ..., -2 * k : -k] = both[0, ..., -k:] = both[1, ..., -k:] = factor
        return both


@final
@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Moments of P parts of the rows."""

    lines: Array  # float64, shape (P, columns)
    columns: Columns
    power: int = 0  # weights are in units of 2^power

    @property
    def means(self) -> Array:
        """Σ w v / Σ w, rounded, shape (P, k); if the weight is 0, any number, or NaN if some v is
        not finite.
        """
        return self.lines[:, self.columns.means]

    @property
    def own_products(self) -> Array:
        """Σ w (v − mean)², shape (P, k)."""
        return self.lines[:, self.columns.own_products]


def merge(parts: Moments, edges: Array | None = None) -> Moments:
    """Merges all parts into one; or groups of them, those from edges[g] to edges[g + 1].

    A part of weight 0 leaves the mean unchanged unless its own mean is NaN. Infinities and NaN
    propagate as in a sum: the mean of ∞ and 1 is ∞, of ∞ and −∞ NaN; M is NaN.
    """
    lines, is_finite = merge_lines(parts.lines, parts.columns, edges)
    total = Moments(lines, parts.columns, parts.power)
    if is_finite:
        return total
    far = _overflown(parts, total)
    if not far.any():
        return total
    powers = np.where(far, FAR, 0)
    lines, _ = merge_lines(in_units(parts, powers).lines, parts.columns, edges)
    return in_units(replace(total, lines=lines), -powers)


def merge_lines(lines: Array, columns: Columns, edges: Array | None = None) -> tuple[Array, bool]:
    """Merges the lines of parts as `merge` does, but results may overflow; returns whether all
    are finite, too.
    """
    kernels, k, pairs = _kernels(), columns.values, len(columns.pairs)
    if edges is None:
        merged = np.empty((1, columns.count))
        return merged, kernels.merge(lines, k, pairs, merged[0])
    merged = np.empty((len(edges) - 1, columns.count))
    return merged, kernels.merge_groups(lines, edges, k, pairs, merged)


@cache
def _kernels() -> Any:
    """Returns the module of the compiled functions, loaded only by scripts that make estimates."""
    from synknumba._rowwise import line_merge

    return line_merge


def _overflown(parts: Moments, total: Moments) -> Array:
    """Returns a mask, shape (k,): values finite in all parts that overflowed in the total."""
    lost = are_finite(parts.own_products) & ~are_finite(total.own_products)
    return (lost | ~are_finite(total.means)) & are_finite(parts.means)


def are_finite(values: Array) -> Array:
    """Returns a mask: columns whose numbers are all finite."""
    return np.logical_and.reduce(np.isfinite(values))  # type: ignore[no-any-return]


def in_units(parts: Moments, powers: Powers) -> Moments:
    """Rescales each value to units of its own power of two. What overflows becomes infinite."""
    first, second = parts.columns.factors(powers, 0)
    with np.errstate(over="ignore", under="ignore"):
        return replace(parts, lines=np.ldexp(parts.lines, -(first + second)))


def shifted(parts: Moments, shift: Array) -> Moments:
    """Returns the moments of the values plus `shift`, shape (k,)."""
    lines, centres = parts.lines.copy(), parts.columns.centres
    means, rests = np.split(lines[:, centres], 2, axis=1)
    with np.errstate(invalid="ignore", over="ignore"):
        means, added = _rounded(means, shift)
        means, rests = _rounded(means, added + rests)
    lines[:, centres] = np.concatenate([means, rests], axis=1)
    return replace(parts, lines=lines)


def scaled(parts: Moments, factor: Array, op: Callable[[Any, Any], Any]) -> Moments:
    """Returns the moments of op(values, factor), `op` being `operator.mul` or `truediv`;
    `factor` finite, shape (k,).
    """
    columns = parts.columns
    first, second = columns.factors(factor, 1.0)
    # one after the other: their product might overflow
    with np.errstate(invalid="ignore", over="ignore"):
        lines = op(op(parts.lines, first), second)
    for line, old in zip(lines, parts.lines[:, columns.centres].tolist(), strict=True):
        numbers = zip(old[: columns.values], old[columns.values :], factor.tolist(), strict=True)
        pairs = [_scaled_mean(mean, rest, by, op) for mean, rest, by in numbers]
        line[columns.centres] = np.ravel(pairs, order="F")
    return replace(parts, lines=lines)


def _scaled_mean(
    mean: float, rest: float, factor: float, op: Callable[[Any, Any], Any]
) -> tuple[float, float]:
    """Returns op(mean + rest, factor) as an unevaluated sum; in fractions, to keep `rest`."""
    if not math.isfinite(mean):
        return op(mean, factor), 0.0
    exact = op(Fraction(mean) + Fraction(rest), Fraction(factor))
    try:
        rounded = float(exact)
    except OverflowError:
        if exact < 0:
            return -math.inf, 0.0
        return math.inf, 0.0
    return rounded, float(exact - Fraction(rounded))


def joined(a: Moments, b: Moments) -> Moments:
    """Concatenates the parts of `a` and `b`, with weights in common units."""
    power = 0
    if a.columns.weighted:
        power = max((_power(part) for part in (a, b) if part.lines[:, 1].any()), default=0)
        a, b = _weighed(a, power), _weighed(b, power)
    return Moments(np.concatenate([a.lines, b.lines]), a.columns, power)


def normalised(parts: Moments) -> Moments:
    """Rescales weights to units of about the largest."""
    return _weighed(parts, _power(parts))


def _power(parts: Moments) -> int:
    """Returns the binary exponent of the largest weight."""
    return parts.power + int(np.frexp(parts.lines[:, 1].max())[1])


def _weighed(parts: Moments, power: int) -> Moments:
    """Rescales weights to units of 2^power."""
    more, columns = parts.power - power, parts.columns
    if more == 0:
        return parts
    powers = np.full(columns.count, 2 * more)
    powers[: columns.products.stop] = 0
    powers[1] = powers[columns.products] = more
    with np.errstate(over="ignore", under="ignore"):
        return Moments(np.ldexp(parts.lines, powers), columns, power)


def with_rest(blocks: Moments, rest: Moments, block: int) -> Moments:
    """Returns the moments of means of blocks, with the mean of their rows and of the rows of
    `rest`, which make no block.

    Without weights, those of `blocks` are numbers of blocks of `block` rows, and that of `rest` is
    its number of rows.
    """
    columns, lines = blocks.columns, blocks.lines.copy()
    if not columns.weighted:
        lines[:, 1] *= block
    both = merge(joined(replace(blocks, lines=lines), rest))
    late = slice(columns.products.start, None)
    lines[:, columns.centres] = both.lines[:, columns.centres]
    first, second = columns.factors(np.where(np.isfinite(both.means), 0.0, np.nan), 0.0)
    lines[:, late] += (first + second)[:, late]
    lines[:, 1] = blocks.lines[:, 1]
    return replace(blocks, lines=lines)


def as_rows(groups: Moments, block: int) -> tuple[Moments, Moments | None]:
    """Returns the moments of rows whose values are the means of groups of `block` rows, and the
    group of fewer rows, if there is one. Without weights, each counts once.
    """
    columns, is_whole = groups.columns, groups.lines[:, 0] == block
    lines, rest = groups.lines[is_whole], None
    if not is_whole.all():
        rest = replace(groups, lines=groups.lines[~is_whole])
    lines[:, columns.products.start :] = 0.0
    lines[:, 0] = 1.0
    if columns.weighted:
        lines[:, columns.products.stop] = lines[:, 1] ** 2
    else:
        lines[:, 1] = 1.0
    return replace(groups, lines=lines), rest


def of_values(values: Array, weights: Array | None, *, covariance: bool, block: int = 1) -> Moments:
    """Computes the moments of rows in memory, as one part; with `covariance`, the products of all
    pairs of values.

    Values are float64, shape (n, k), n ≥ 1; weights float64, shape (n,). With `block` > 1, at most
    n, the moments are those of the means of blocks of consecutive rows; rows after the last whole
    block are in the mean only.
    """
    columns, power = Columns(values.shape[1], covariance, weights is not None), 0
    if weights is None:
        weights = np.ones(len(values))
    else:
        power = int(np.frexp(np.where(np.isfinite(weights), weights, 0.0).max())[1])
        weights = np.ldexp(weights, -power)
    step = max(_TABLE // columns.count // block, 1) * block
    parts, rest = [], None
    for start in range(0, len(values), step):
        piece = slice(start, start + step)
        rows = _lines_of_rows(values[piece], weights[piece], columns)
        if block > 1:
            edges = np.append(np.arange(0, len(rows.lines), block), len(rows.lines))
            rows, rest = as_rows(merge(rows, edges), block)
        parts.append(merge(rows).lines)
    total = merge(Moments(np.concatenate(parts), columns))
    if rest is not None:
        total = with_rest(total, rest, block)
    return replace(total, power=power)


def _lines_of_rows(values: Array, weights: Array, columns: Columns) -> Moments:
    lines = np.zeros((len(values), columns.count))
    lines[:, 0], lines[:, 1], lines[:, columns.means] = 1.0, weights, values
    if columns.weighted:
        lines[:, columns.products.stop] = weights**2
        lost = (weights == 0)[:, None] & ~np.isfinite(values)  # 0 · ∞
        lines[:, columns.means][lost] = np.nan
    return Moments(lines, columns)


def _rounded(mean: Array, rest: Array) -> tuple[Array, Array]:
    """Returns a sum rounded to float64, and its exact rounding error, or 0 where that is not finite
    (TwoSum: D. Knuth, TAOCP volume 2, 4.2.2, theorem B).
    """
    total = mean + rest
    part = total - mean
    error = (mean - (total - part)) + (rest - part)
    return total, np.where(np.isfinite(error), error, 0.0)
