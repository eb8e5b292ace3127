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

The standard error of a weighted mean needs sums with squared weights, S_j = Σ w² (v − mean)^j for j
= 0, 1, 2. They depend on the mean: about a mean larger by d they are S_0, S_1 − d S_0, S_2 − 2 d
S_1 + d² S_0.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, TypeAlias, final

import numpy as np

from synknumba._types import Array

FAR = 700  # values whose squares or differences overflow are in units of 2^FAR
_FEW = 8  # NumPy sums fewer numbers than this in order, as Python does
_LARGE = 400  # binary exponent up to which squares of values can be summed, however many there are

Powers: TypeAlias = Array
"""Integers, shape (k,): for each value the power of two that it is in units of."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Moments of P parts of the rows, with k values per row; float64 arrays."""

    count: Array  # shape (P, 1): number of rows
    weight: Array  # shape (P, 1): Σ w; the number of rows if there are no weights
    # shape (P, k): Σ w v / Σ w, rounded; if the weight is 0, any number, or NaN if some v is not
    # finite
    mean: Array
    rest: Array  # shape (P, k): Σ w v / Σ w − `mean`
    # shape (P, k): Σ w (v − mean)²; or shape (P, k, k): Σ (v − mean)(v' − mean') for each pair of
    # values
    products: Array
    # shape (P, 3, k): Σ w² (v − mean)^j for j = 0, 1, 2; None if there are no weights
    squares: Array | None = None
    power: int = 0  # weights are in units of 2^power

    @property
    def width(self) -> int:
        """Number of values per row, k."""
        return int(self.mean.shape[1])

    @property
    def has_covariance(self) -> bool:
        """Whether the products are those of all pairs of values."""
        return self.products.ndim == 3

    @property
    def own_products(self) -> Array:
        """Shape (P, k): Σ w (v − mean)²."""
        if self.has_covariance:
            return np.diagonal(self.products, axis1=1, axis2=2)
        return self.products


def merge(parts: Moments) -> Moments:
    """Merges all parts into one, shape (1, …). A part of weight 0 leaves the mean unchanged unless
    its own mean is NaN.

    Infinities and NaN propagate as in a sum: the mean of ∞ and 1 is ∞, of ∞ and −∞ NaN; M is NaN.
    """
    if len(parts.count) == 1:
        return parts
    if (few := _merged_few(parts)) is not None:
        return few
    total = _merged(parts)
    far = _overflown(parts, total)
    if not far.any():
        return total
    powers = np.where(far, FAR, 0)
    return in_units(_merged(in_units(parts, powers)), -powers)


def _overflown(parts: Moments, total: Moments) -> Array:
    """Returns a mask, shape (k,): values finite in all parts that overflowed in the total."""
    lost = np.isfinite(parts.own_products).all(axis=0) & ~np.isfinite(total.own_products[0])
    return (lost | ~np.isfinite(total.mean[0])) & np.isfinite(parts.mean).all(axis=0)  # type: ignore[no-any-return]


def in_units(parts: Moments, powers: Powers) -> Moments:
    """Rescales each value to units of its own power of two. What overflows becomes infinite."""
    twice, squares = 2 * powers, parts.squares
    if parts.has_covariance:
        twice = powers[:, None] + powers
    with np.errstate(over="ignore", under="ignore"):
        if squares is not None:
            squares = np.ldexp(squares, -np.arange(3)[:, None] * powers)
        return replace(
            parts,
            mean=np.ldexp(parts.mean, -powers),
            rest=np.ldexp(parts.rest, -powers),
            products=np.ldexp(parts.products, -twice),
            squares=squares,
        )


def shifted(parts: Moments, shift: Array) -> Moments:
    """Returns the moments of the values plus `shift`, shape (k,)."""
    with np.errstate(invalid="ignore", over="ignore"):
        mean, rest = _rounded(parts.mean, shift)
        mean, rest = _rounded(mean, rest + parts.rest)
    return replace(parts, mean=mean, rest=rest)


def scaled(parts: Moments, factor: Array, op: Callable[[Any, Any], Any]) -> Moments:
    """Returns the moments of op(values, factor), `op` being `operator.mul` or `truediv`;
    `factor` finite, shape (k,).
    """
    rows = zip(parts.mean.tolist(), parts.rest.tolist(), strict=True)
    pairs = [
        [_scaled_mean(*numbers, op) for numbers in zip(*row, factor.tolist(), strict=True)]
        for row in rows
    ]
    mean, rest = np.moveaxis(np.array(pairs), 2, 0)
    # twice by the factor, whose square might overflow
    with np.errstate(invalid="ignore", over="ignore"):
        row_factor = factor
        if parts.has_covariance:
            row_factor = factor[:, None]
        products = op(op(parts.products, row_factor), factor)
        squares = parts.squares
        if squares is not None:
            zeroth, first, second = np.moveaxis(squares, 1, 0)
            squares = np.stack([zeroth, op(first, factor), op(op(second, factor), factor)], axis=1)
    return replace(parts, mean=mean, rest=rest, products=products, squares=squares)


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


def _merged(parts: Moments) -> Moments:
    """Merges all parts into one without rescaling, so results may overflow."""
    with np.errstate(invalid="ignore", over="ignore"):
        has_weight = parts.weight != 0
        used = has_weight | np.isnan(parts.mean)
        total = _summed(parts.weight)
        means, first = np.where(used, parts.mean, 0.0), int(has_weight.argmax())
        infinite = _summed(means)
        finite = np.isfinite(means).all(axis=0, keepdims=True)
        delta = np.where(used & finite, (means - means[first]) + parts.rest, 0.0)
        shift = _summed(parts.weight * delta) / np.where(total != 0, total, 1.0)
        mean, rest = _rounded(means[first : first + 1], shift)
        mean = np.where(finite, mean, infinite)
        delta -= shift
        weight, square = parts.weight, delta * delta
        if parts.has_covariance:
            weight, square = weight[:, :, None], delta[:, :, None] * delta[:, None, :]
        products = _summed(parts.products + square * weight)
        squares = parts.squares
        if squares is not None:
            squares = _summed(_moved(squares, -delta))
    return Moments(_summed(parts.count), total, mean, rest, products, squares, parts.power)


def _summed(parts: Array) -> Array:
    """Returns the sum over the parts, as one part."""
    return parts.sum(axis=0, keepdims=True)  # type: ignore[no-any-return]


def _merged_few(parts: Moments) -> Moments | None:
    """Merges a few parts of one value without weights, with Python's numbers: 5 µs in place of 40,
    and the same bits.

    None if there are more of them, a part has no rows, or a number is not finite.
    """
    if parts.width > 1 or parts.squares is not None:
        return None
    columns = (parts.count, parts.weight, parts.mean, parts.rest, parts.products.reshape(-1, 1))
    merged = of_few_lines([*zip(*(column[:, 0].tolist() for column in columns), strict=True)])
    if merged is None:
        return None
    return replace(
        merged, products=merged.products.reshape(1, *parts.products.shape[1:]), power=parts.power
    )


def of_few_lines(lines: Sequence[Sequence[float]]) -> Moments | None:
    """Merges a few parts of one value without weights.

    Args:
        lines: of each part its rows, weight, mean, the mean's rounding error, and Σ (v − mean)².

    Returns:
        The moments of all; None if there are too many parts, one has no rows, or a number is not
        finite.
    """
    if len(lines) >= _FEW:
        return None
    if len(lines) == 1:
        ((_, weight, _, _, product),) = lines
        if not weight or not math.isfinite(product):
            return None
        return _of_line(lines[0])
    rows = total = moved = product = 0.0
    first, deltas = lines[0][2], []
    for count, weight, mean, rest, _ in lines:
        if not weight:
            return None
        rows, total, delta = rows + count, total + weight, (mean - first) + rest
        moved += weight * delta
        deltas.append(delta)
    shift = moved / total
    for delta, (_, weight, _, _, within) in zip(deltas, lines, strict=True):
        away = delta - shift
        product += within + away * away * weight
    if not math.isfinite(product):  # nor is it if a mean is not
        return None
    mean, rest = _two_sum(first, shift)
    return _of_line((rows, total, mean, rest, product))


def _of_line(line: Sequence[float]) -> Moments:
    row = np.array([line])
    return Moments(row[:, 0:1], row[:, 1:2], row[:, 2:3], row[:, 3:4], row[:, 4:5])


def joined(a: Moments, b: Moments) -> Moments:
    """Concatenates the parts of `a` and `b`, with weights in common units."""
    is_weighted, power = a.squares is not None, 0
    if is_weighted:
        power = max((_power(part) for part in (a, b) if part.weight.any()), default=0)
        a, b = _weighed(a, power), _weighed(b, power)
    names = ["count", "weight", "mean", "rest", "products"]
    if is_weighted:
        names.append("squares")
    arrays = {name: np.concatenate([getattr(a, name), getattr(b, name)]) for name in names}
    return Moments(**arrays, power=power)


def _power(parts: Moments) -> int:
    """Returns the binary exponent of the largest weight."""
    return parts.power + int(np.frexp(parts.weight.max())[1])


def _weighed(parts: Moments, power: int) -> Moments:
    """Rescales weights to units of 2^power."""
    more = parts.power - power
    if more == 0:
        return parts
    assert parts.squares is not None  # there are weights
    with np.errstate(over="ignore", under="ignore"):
        weight, products = np.ldexp(parts.weight, more), np.ldexp(parts.products, more)
        return replace(
            parts,
            weight=weight,
            products=products,
            squares=np.ldexp(parts.squares, 2 * more),
            power=power,
        )


def with_rest(blocks: Moments, rest: Moments, block: int) -> Moments:
    """Returns the moments of means of blocks, with the mean of their rows and of the rows of
    `rest`, which make no block.

    Without weights, those of `blocks` are numbers of blocks of `block` rows, and that of `rest` is
    its number of rows.
    """
    rows = blocks
    if blocks.squares is None:
        rows = replace(blocks, weight=blocks.weight * block)
    both = merge(joined(rows, rest))
    undefined = np.where(np.isfinite(both.mean), 0.0, np.nan)
    products = blocks.products + _for_products(undefined, blocks.products)
    squares = blocks.squares
    if squares is not None:
        squares = squares + np.stack([np.zeros_like(undefined), undefined, undefined], axis=1)
    return replace(blocks, mean=both.mean, rest=both.rest, products=products, squares=squares)


def as_rows(parts: Moments, *, weighted: bool) -> Moments:
    """Returns the moments of single rows whose values are the means of the parts; without
    weights, each counts once.
    """
    undefined = np.where(np.isfinite(parts.mean), 0.0, np.nan)
    products = _for_products(undefined, parts.products)
    ones = np.ones_like(parts.weight)
    if not weighted:
        return Moments(ones, ones, parts.mean, parts.rest, products)
    squares = np.stack(
        [np.broadcast_to(parts.weight**2, undefined.shape), undefined, undefined], axis=1
    )
    return replace(parts, count=ones, products=products, squares=squares)


def _for_products(values: Array, products: Array) -> Array:
    """Returns values, or their sums by pairs, in the shape of products."""
    if products.ndim == 2:
        return values
    sums: Array = values[:, :, None] + values[:, None, :]
    return sums


def of_values(values: Array, weights: Array | None, *, covariance: bool, block: int = 1) -> Moments:
    """Computes the moments of rows in memory, as one part; with `covariance`, the products of all
    pairs of values.

    Values are float64, shape (n, k), n ≥ 1; weights float64, shape (n,). With `block` > 1, at most
    n, the moments are those of the means of blocks of consecutive rows; rows after the last whole
    block are in the mean only.
    """
    powers, power = np.where(_exponents(values) > _LARGE, FAR, 0), 0
    values = np.ldexp(values, -powers)
    if weights is not None:
        power = int(_exponents(weights))
        weights = np.ldexp(weights, -power)
    if block == 1:
        moments = _of_values(values, weights, covariance=covariance)
    else:
        moments = _of_blocks(values, weights, block, covariance=covariance)
    if powers.any():
        moments = in_units(moments, -powers)
    return replace(moments, power=power)


def _of_blocks(values: Array, weights: Array | None, block: int, *, covariance: bool) -> Moments:
    """Computes the moments of means of blocks, about the mean of all rows."""
    centre = _of_values(values, weights, covariance=False).mean[0]
    centre = np.where(np.isfinite(centre), centre, 0.0)
    away, in_blocks = values - centre, len(values) // block * block
    block_weights, tail_weights = weights, weights
    if weights is not None:
        block_weights, tail_weights = weights[:in_blocks], weights[in_blocks:]
    moments = _of_values(*_blocks(away[:in_blocks], block_weights, block), covariance=covariance)
    if in_blocks < len(values):
        tail = _of_values(away[in_blocks:], tail_weights, covariance=covariance)
        moments = with_rest(moments, tail, block)
    return shifted(moments, centre)


def _blocks(away: Array, weights: Array | None, block: int) -> tuple[Array, Array | None]:
    """Returns the means of blocks of rows, whose number `block` divides, and their weights."""
    by_block = away.reshape(-1, block, away.shape[1])
    with np.errstate(invalid="ignore", over="ignore"):
        if weights is None:
            return by_block.mean(axis=1), None
        by = weights.reshape(-1, block, 1)
        sums, totals = (by * by_block).sum(axis=1), by.sum(axis=1)[:, 0]
        return np.divide(sums, totals[:, None], out=sums, where=totals[:, None] != 0), totals


def _exponents(values: Array) -> Array:
    """Returns the binary exponent of the largest finite magnitude along axis 0."""
    return np.frexp(np.where(np.isfinite(values), np.abs(values), 0.0).max(axis=0))[1]


def _of_values(values: Array, weights: Array | None, *, covariance: bool) -> Moments:
    """Computes the moments of values and weights whose squares do not overflow."""
    count = np.full((1, 1), float(len(values)))
    with np.errstate(invalid="ignore", over="ignore"):
        w = np.ones((len(values), 1))
        if weights is not None:
            w = weights[:, None]
        total = _summed(w)
        # a row of weight 0 adds 0, or NaN if not finite
        weighted = _summed(w * values)
        mean = np.divide(weighted, total, out=values[:1] + weighted, where=total != 0)
        away = np.where(np.isfinite(mean), values - mean, np.nan)
        correction = np.divide(_summed(w * away), total, out=np.zeros_like(mean), where=total != 0)
        mean, rest = _rounded(mean, np.where(np.isfinite(mean), correction, 0.0))
        away -= correction
        products = (away.T @ away)[None] if covariance else _summed(w * away * away)
        squares = None
        if weights is not None:
            squares = np.stack([(w * w * away**j).sum(axis=0) for j in range(3)])[None]
    return Moments(count, total, mean, rest, products, squares)


def _rounded(mean: Array, rest: Array) -> tuple[Array, Array]:
    """Returns a sum rounded to float64, and its rounding error; 0 where that is not finite."""
    total, error = _two_sum(mean, rest)
    return total, np.where(np.isfinite(error), error, 0.0)


def _two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """Returns a sum rounded to float64, and its exact rounding error (TwoSum: D. Knuth, TAOCP
    volume 2, 4.2.2, theorem B).
    """
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _moved(squares: Array, shift: Array) -> Array:
    """Returns the sums of w² (v − mean)^j about a mean larger by `shift`."""
    zeroth, first, second = squares[:, 0], squares[:, 1], squares[:, 2]
    square = np.where(np.isinf(second), second, second - 2 * shift * first + shift * shift * zeroth)
    return np.stack([zeroth, first - shift * zeroth, square], axis=1)
