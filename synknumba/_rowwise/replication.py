"""Calls of an expectation with other seeds, as randomised quasi-Monte Carlo needs: rows that fill
space evenly are not independent, so that their spread says nothing about the error, but the spread
of repetitions does.

Each repetition is an independent and unbiased estimate, so the mean of R of them has the standard
error √(Σ (mean_r − mean)² / (R (R − 1))): A. Owen, *Monte Carlo theory, methods and examples*,
chapter 17.
"""

import warnings
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from synknumba._call.arguments import IndexRange
from synknumba._errors import ArgumentError, depth_of_script
from synknumba._host.casting import as_index
from synknumba.random import randint

SEED = "seed"  # the parameter whose values differ

# fewer give a standard error with an uncertainty of more than 40 %
_FEWEST = 4


def check_call(
    function: str, parameters: Collection[str], options: Collection[str], repeats: Any
) -> None:
    """Raises `ArgumentError` if a function cannot be called with several seeds, or if the call has
    options that select rows or say what the error bar is that of.
    """
    if SEED not in parameters:
        raise ArgumentError(
            f"{function}.replicated calls the function with several seeds, but it has no parameter "
            f"{SEED!r}; it has {', '.join(parameters)}"
        )
    for option in ("batch", "local_batch", "block", "until", "min_rows", "max_rows"):
        if option in options:
            raise ArgumentError(
                f"{function}.replicated takes no {option}=, since it takes all rows, and its error "
                "bar is that of the repeats; for fewer rows pass synk.arange of a smaller number"
            )
    if as_index(repeats) < _FEWEST:
        raise ArgumentError(
            f"repeats of {function}.replicated must be an integer of at least {_FEWEST}, got "
            f"{repeats!r}"
        )


def repeated_seeds(function: str, values: Mapping[str, Any], repeats: int) -> list[int]:
    """Returns random seeds, as functions of the seed of a call; warns of a number of rows that is
    no power of two.

    Raises:
        ArgumentError: the seed is no integer, or the rows are not those of an index range.
    """
    seed = values[SEED]
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool):
        raise ArgumentError(f"{SEED} of {function}.replicated must be an integer, got {seed!r}")
    lengths = {len(value) for value in values.values() if isinstance(value, IndexRange)}
    if not lengths:
        raise ArgumentError(
            f"{function}.replicated averages over rows of synknumba.arange(n), but none of its "
            "arguments is one; the error of rows of data is not that of the repeats"
        )
    _warn_of_uneven(function, min(lengths))
    drawn = randint(seed, np.arange(repeats), 0, -(2**63), 2**63 - 1)
    return drawn.tolist()  # type: ignore[no-any-return]


def _warn_of_uneven(function: str, rows: int) -> None:
    power = 1 << max(rows.bit_length() - 1, 0)
    if rows in {0, power}:
        return
    warnings.warn(
        f"{function}.replicated got {rows} rows, which is no power of two: Sobol points are "
        "balanced in blocks of 2^m rows only, so that the error of a smooth function falls as "
        f"1 / n in place of n^-1.5; mean and error bar are right. Take {power} or {2 * power} rows",
        RuntimeWarning,
        stacklevel=depth_of_script(),
    )
