"""Control variates: values of known mean take their part out of the error of other means.

Of the k values of a row, the last m, c, have the known means μ; the others are v. The rows

    v − B (c − μ)        B = C_vc C_cc⁻¹

have the same mean, and of all B the least variance, C_vv − B C_cv, with n − 1 − m degrees of
freedom. The covariances C are those of the same rows. S. Lavenberg, P. Welch, Management Science
27, 322 (1981).
"""

import math

import numpy as np

from synknumba._errors import ReductionError
from synknumba._rowwise.moments import Columns, Moments, shifted
from synknumba._types import Array

# variance, as a part of that of the controls, below which a combination of them is constant but for
# rounding
_CONSTANT = 1e-10

# Means of so many rows are as far, in standard errors, from the exact ones once in 10^10 calls.
_MANY = 64
_FAR = 8


def controlled(moments: Moments, covariance: Array, exact: Array) -> Moments:
    """Returns the moments of v − B (c − μ).

    Args:
        moments: of v and c, without weights, in one part.
        covariance: of v and c, shape (k, k).
        exact: μ, shape (m,), with m < k.

    Raises:
        ReductionError: a mean of c is many standard errors from μ.
    """
    line, values = moments.lines[0], len(covariance) - len(exact)
    rows = line[0]
    means, rests = np.split(line[moments.columns.centres], 2)
    offsets = (means[values:] - exact) + rests[values:]
    _check_offsets(offsets, covariance, rows, exact)
    slopes = _slopes(covariance, values)
    with np.errstate(invalid="ignore", over="ignore"):
        residual = covariance[:values, :values] - slopes @ covariance[values:, :values]
        shift = -(slopes @ offsets)
    diagonal = np.diag_indices(values)
    residual[diagonal] = np.maximum(residual[diagonal], 0.0)  # rounding
    freedom = rows - 1 - len(exact)
    scale = math.nan
    if freedom > 0:
        scale = (rows - 1) ** 2 / freedom
    columns = Columns(values, covariance=values > 1, weighted=False)
    i, j = np.array(columns.pairs).T
    parts = [line[:2], means[:values], rests[:values], scale * residual[i, j]]
    return shifted(Moments(np.concatenate(parts)[None], columns), shift)


def _slopes(covariance: Array, values: int) -> Array:
    """Returns B; 0 for controls that are constant, NaN where values are not finite."""
    deviations = np.sqrt(np.diag(covariance)[values:])
    deviations[deviations == 0] = 1.0
    correlation = covariance[values:, values:] / np.outer(deviations, deviations)
    inverse = np.full(correlation.shape, np.nan)
    if np.isfinite(correlation).all():
        inverse = np.linalg.pinv(correlation, _CONSTANT, hermitian=True)
    return covariance[:values, values:] / deviations @ inverse / deviations  # type: ignore[no-any-return]


def _check_offsets(offsets: Array, covariance: Array, rows: float, exact: Array) -> None:
    if rows < _MANY:
        return
    errors = np.sqrt(np.diag(covariance)[-len(exact) :] / rows)
    for offset, error, mean in zip(offsets, errors, exact, strict=True):
        if abs(offset) > _FAR * error + abs(mean) * 1e-12:  # rounding
            raise ReductionError(
                f"control got {mean:g} as an exact mean, but that of the rows is {mean + offset:g} "
                f"with a standard error of {error:.2g}; the mean would be wrong. Pass the exact "
                "means of the last values of a row, in their order"
            )
