"""Error against points: a price and its delta by pseudo-random and Sobol points, antithetic rows, a
control variate, a smooth mean, and the delta of a jump by its score.

    python benchmarks/convergence.py
    python benchmarks/convergence.py --ranks 1 --json benchmarks/results/cpu-2core-convergence.json

A row is a path of eight normal numbers. The call pays on the geometric mean of the eight prices,
so price and delta have closed forms: Black's formula for a lognormal number (F. Black, M. Scholes,
1973). A point is one evaluation of the payoff: an antithetic row is two points, and 16 repeats of n
Sobol points are 16 n. Errors are relative to the closed form: the root mean square over several
seeds of the distance from it, and of the error bar that the calls return.

"ratio": of the measured error to the error bar. It must be near 1.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Any

import numpy as np
from _common import Timing, arguments, print_table, save, time_calls
from numba import cuda

import synknumba as synk

SPOT, STRIKE, RATE, VOLATILITY, DATES = 100.0, 100.0, 0.05, 0.2, 8
STEP = 1.0 / DATES  # years
DRIFT, SPREAD = (RATE - 0.5 * VOLATILITY**2) * STEP, VOLATILITY * math.sqrt(STEP)
DISCOUNT = math.exp(-RATE)
REPEATS = 16
DOUBLINGS = 4  # over which a slope is taken
ERRORS_OFF = 7  # of an error bar of 15 degrees of freedom, by chance once in 10^5


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table; errors are relative to the closed form.

    Attributes:
        error: the root mean square of the distances from the closed form.
        stderr: that of the error bars.
        ratio: error / stderr.
        gain: how many times as many pseudo-random points give `stderr`, for the same mean.
        slope: the exponent of `stderr` over the last four doublings; None for fewer points.
        timing: of a call.
    """

    library: str
    what: str
    points: int
    error: float
    stderr: float
    ratio: float
    gain: float
    slope: float | None
    timing: Timing


@dataclass(frozen=True, slots=True)
class Method:
    """How a mean is estimated.

    Attributes:
        estimate: of a number of points and a seed.
        exact: the mean.
        plain: the method of pseudo-random points for the same mean.
    """

    estimate: Callable[[int, int], Any]
    exact: float
    plain: str


@cuda.jit(device=True)
def pseudorandom(seed, i, date):
    """Normal number of a path and date."""
    return synk.random.normal(seed, i, date)


@cuda.jit(device=True)
def even(seed, i, date):
    """The same by a coordinate of a Sobol point."""
    return cuda.libdevice.normcdfinv(synk.random.sobol(seed, i, date))


def average_of(normal: Any) -> Any:
    """Returns the function of a path that gives the geometric mean of its prices.

    Args:
        normal: of a seed, path and date.
    """

    @cuda.jit(device=True)
    def path_average(i, seed, spot, sign):
        level, total = math.log(spot), 0.0
        for date in range(DATES):
            level += DRIFT + sign * SPREAD * normal(seed, i, date)
            total += level
        return math.exp(total / DATES)

    return path_average


random_average, even_average = average_of(pseudorandom), average_of(even)


@synk.expectation
def price(i, seed, spot):
    """Value of a call on the average."""
    return DISCOUNT * max(random_average(i, seed, spot, 1.0) - STRIKE, 0.0)


@synk.expectation
def even_price(i, seed, spot):
    """The same by Sobol points."""
    return DISCOUNT * max(even_average(i, seed, spot, 1.0) - STRIKE, 0.0)


@synk.expectation
def antithetic_price(i, seed, spot):
    """Mean of a path and its mirror image."""
    up = max(random_average(i, seed, spot, 1.0) - STRIKE, 0.0)
    down = max(random_average(i, seed, spot, -1.0) - STRIKE, 0.0)
    return DISCOUNT * 0.5 * (up + down)


@synk.expectation(covariance=True)
def price_and_average(i, seed, spot):
    """The price with its control, the average, whose mean is known."""
    mean = random_average(i, seed, spot, 1.0)
    return DISCOUNT * max(mean - STRIKE, 0.0), mean


@synk.expectation
def average(i, seed, spot):
    """A smooth function of eight numbers: without the kink at the strike."""
    return random_average(i, seed, spot, 1.0)


@synk.expectation
def even_mean(i, seed, spot):
    """The same by Sobol points."""
    return even_average(i, seed, spot, 1.0)


@synk.expectation
def jump(i, seed, start, spot):
    """Pays 1 where the average is above the strike; drawn with the spot `start`."""
    return DISCOUNT if random_average(i, seed, start, 1.0) > STRIKE else 0.0


@cuda.jit(device=True)
def log_density(i, seed, start, spot):
    """Returns ln q of the first price, the only one whose density has the spot."""
    z = pseudorandom(seed, i, 0) + math.log(start / spot) / SPREAD
    return -0.5 * z * z


@dataclass(frozen=True, slots=True)
class ClosedForms:
    """Means that are known."""

    average: float
    price: float
    delta: float
    jump_delta: float


def closed_forms() -> ClosedForms:
    """Returns the exact means, by Black's formula for the lognormal average."""
    mean = math.log(SPOT) + DRIFT * (DATES + 1) / 2
    deviation = SPREAD * math.sqrt(sum(k * k for k in range(1, DATES + 1))) / DATES
    forward = math.exp(mean + 0.5 * deviation**2)
    lower = (mean - math.log(STRIKE)) / deviation
    upper = lower + deviation
    normal = NormalDist()
    return ClosedForms(
        forward,
        DISCOUNT * (forward * normal.cdf(upper) - STRIKE * normal.cdf(lower)),
        DISCOUNT * forward / SPOT * normal.cdf(upper),
        DISCOUNT * normal.pdf(lower) / (SPOT * deviation),
    )


def methods() -> dict[str, Method]:
    """Returns the methods by name, those of pseudo-random points before others of their mean."""
    exact = closed_forms()
    delta, even_delta = price.derivative("spot"), even_price.derivative("spot")
    jump_delta = jump.derivative("spot", score=log_density)

    def rows(points: int) -> Any:
        return synk.arange(points)

    def repeated(expectation: Any, points: int, seed: int) -> Any:
        return expectation.replicated(rows(points // REPEATS), seed, SPOT, repeats=REPEATS)

    def controlled(points: int, seed: int) -> Any:
        return price_and_average(rows(points), seed, SPOT).control(exact.average)

    return {
        "pseudo-random": Method(
            lambda points, seed: price(rows(points), seed, SPOT), exact.price, "pseudo-random"
        ),
        "antithetic": Method(
            lambda points, seed: antithetic_price(rows(points // 2), seed, SPOT),
            exact.price,
            "pseudo-random",
        ),
        "control variate": Method(controlled, exact.price, "pseudo-random"),
        "Sobol": Method(
            lambda points, seed: repeated(even_price, points, seed), exact.price, "pseudo-random"
        ),
        "delta by paths": Method(
            lambda points, seed: delta(rows(points), seed, SPOT), exact.delta, "delta by paths"
        ),
        "delta by Sobol paths": Method(
            lambda points, seed: repeated(even_delta, points, seed), exact.delta, "delta by paths"
        ),
        "average": Method(
            lambda points, seed: average(rows(points), seed, SPOT), exact.average, "average"
        ),
        "average by Sobol points": Method(
            lambda points, seed: repeated(even_mean, points, seed), exact.average, "average"
        ),
        "delta of a jump by its score": Method(
            lambda points, seed: jump_delta(rows(points), seed, SPOT, SPOT),
            exact.jump_delta,
            "delta of a jump by its score",
        ),
    }


def errors_of(method: Method, points: int, seeds: Sequence[int]) -> tuple[float, float]:
    """Returns the root mean squares of distances and of error bars, relative to the mean."""
    estimates = [method.estimate(points, seed) for seed in seeds]
    distances = np.array([np.ravel(one.mean)[0] - method.exact for one in estimates])
    bars = np.array([np.ravel(one.stderr)[0] for one in estimates])
    assert (abs(distances) < ERRORS_OFF * bars).all(), f"far from the closed form: {distances}"
    error, stderr = np.sqrt([np.mean(distances**2), np.mean(bars**2)]) / method.exact
    return float(error), float(stderr)


def measured(counts: Sequence[int], runs: int, seconds: float) -> list[Result]:
    """Returns the results of all methods.

    Args:
        counts: numbers of points, each twice the one before.
        runs: seeds for each.
        seconds: to time a call.
    """
    results: list[Result] = []
    bars: dict[tuple[str, int], float] = {}
    for name, method in methods().items():
        for points in counts:
            error, stderr = errors_of(method, points, range(1, runs + 1))
            bars[name, points] = stderr
            before = bars.get((name, points >> DOUBLINGS))
            slope = math.log2(stderr / before) / DOUBLINGS if before else None
            gain = (bars[method.plain, points] / stderr) ** 2
            timing = time_calls(partial(method.estimate, points, 1), seconds, at_least=5)
            results.append(
                Result(
                    "synknumba",
                    name,
                    points,
                    error,
                    stderr,
                    error / stderr,
                    gain,
                    slope,
                    timing,
                )
            )
    return results


def main() -> None:
    """Measures and prints."""
    parser = arguments(__doc__)
    parser.add_argument("--least", type=int, default=8, help="log2 of the fewest points (8)")
    parser.add_argument("--most", type=int, default=20, help="log2 of the most points (20)")
    parser.add_argument("--runs", type=int, default=64, help="seeds for each error (64)")
    given = parser.parse_args()
    counts = [1 << power for power in range(given.least, given.most + 1)]
    (ranks,) = given.ranks or [1]
    with synk.fork(ranks, device=given.device):
        results = measured(counts, given.runs, given.seconds)
    print_table(
        ("", "points", "error", "error bar", "ratio", "gain", "slope", "ms"),
        [
            (
                one.what,
                f"2^{one.points.bit_length() - 1}",
                f"{one.error:.2e}",
                f"{one.stderr:.2e}",
                f"{one.ratio:.2f}",
                f"{one.gain:.1f}",
                "" if one.slope is None else f"{one.slope:.2f}",
                f"{one.timing.median / 1e3:.2f}",
            )
            for one in results
        ],
    )
    save(
        given.json,
        "convergence",
        results,
        {"seconds": given.seconds, "runs": given.runs, "ranks": ranks},
    )


if __name__ == "__main__":
    main()
