"""What montecarlo.py and its peers compute, and what must come out. Imports nothing but NumPy and
the standard library.

pi: a point of the unit square lies in the unit circle with probability π/4; a sample is 4 or 0.

option: a sample is what a European call pays, max(S − K, 0), discounted, where log S is normal. Its
mean is in F. Black and M. Scholes, "The pricing of options and corporate liabilities" (1973); the
mean of its square follows in the same way, from

    E[S² 1(S > K)] = S₀² exp((2r + σ²) T) N(d₁ + σ√T)
"""

import math
import time
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

Work: TypeAlias = Literal["pi", "option"]

SPOT, STRIKE, RATE, VOLATILITY, YEARS = 100.0, 105.0, 0.03, 0.25, 1.0
DRIFT = (RATE - 0.5 * VOLATILITY**2) * YEARS
SPREAD = VOLATILITY * math.sqrt(YEARS)
DISCOUNT = math.exp(-RATE * YEARS)

ERRORS = 5  # standard errors that a mean may be off: beyond lies one of 1.7 million
SHARE = 8  # a peer's call takes about 1/8 of the time that it is measured


def _normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def _option() -> tuple[float, float]:
    d2 = (math.log(SPOT / STRIKE) + DRIFT) / SPREAD
    d1 = d2 + SPREAD
    forward = SPOT / DISCOUNT
    mean = forward * _normal_cdf(d1) - STRIKE * _normal_cdf(d2)
    square = forward**2 * math.exp(SPREAD**2) * _normal_cdf(d1 + SPREAD)
    square += STRIKE**2 * _normal_cdf(d2) - 2 * STRIKE * forward * _normal_cdf(d1)
    return DISCOUNT * mean, DISCOUNT * math.sqrt(square - mean * mean)


# Mean and standard deviation of a sample.
EXACT: Mapping[Work, tuple[float, float]] = {
    "pi": (math.pi, math.sqrt(math.pi * (4.0 - math.pi))),
    "option": _option(),
}


def check(work: Work, mean: float, samples: int) -> None:
    """Ends the run where the mean of so many samples cannot be right."""
    exact, deviation = EXACT[work]
    error = deviation / math.sqrt(samples)
    assert abs(mean - exact) < ERRORS * error, (
        f"{work}: {mean} from {samples} samples instead of {exact} ± {error}"
    )


def affordable(mean: Callable[[int], object], least: int, most: int, seconds: float) -> int:
    """How many samples a peer takes in a call: `least` times a power of two, as many as it can in a
    part of its time.

    Args:
        mean: works on that many samples.
        least: that it can work on.
        most: after which more would not be faster.
        seconds: that it is measured.
    """
    mean(least)  # compiles
    samples = least
    while samples < most:
        start = time.perf_counter()
        mean(samples)
        if time.perf_counter() - start > seconds / SHARE / 2:
            break
        samples *= 2
    return samples
