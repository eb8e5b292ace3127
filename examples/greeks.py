"""The Greeks of options: derivatives of prices, with error bars.

    python examples/greeks.py
    python examples/greeks.py --paths 100000000 --device cuda

A price is a mean over paths, so its derivatives by spot and volatility, delta and vega, are means,
too. Of a call, whose payoff is continuous, they are those of each path. A call that is knocked out
above a barrier jumps there: the derivative of each path misses the jump, and its error bar does not
tell. There, the density of the final price is differentiated in place of the payoff: its log
density, ln q, is the `score`. The mean of payoff · ∂ln q/∂spot is the delta, whatever the payoff.

Closed forms: F. Black, M. Scholes, The Pricing of Options and Corporate Liabilities (1973). The
methods: P. Glasserman, Monte Carlo Methods in Financial Engineering (2004), chapter 7.
"""

import argparse
import math

from numba import cuda

import synknumba as synk

SPOT, STRIKE, BARRIER, RATE, VOLATILITY, YEARS = 100.0, 105.0, 130.0, 0.03, 0.25, 1.0
DISCOUNT, ROOT = math.exp(-RATE * YEARS), math.sqrt(YEARS)


@cuda.jit(device=True)
def final_price(i, seed, spot, volatility):
    """Returns the price at the end of path i."""
    z = synk.random.normal(seed, i, 0)
    return spot * math.exp((RATE - 0.5 * volatility**2) * YEARS + volatility * ROOT * z)


@synk.expectation
def call(i, seed, spot, volatility):
    """Value of a call on path i."""
    return DISCOUNT * max(final_price(i, seed, spot, volatility) - STRIKE, 0.0)


@synk.expectation
def knocked_out(i, seed, spot, volatility):
    """Value of a call that pays only below the barrier."""
    price = final_price(i, seed, spot, volatility)
    return DISCOUNT * (price - STRIKE) if STRIKE < price < BARRIER else 0.0


@synk.expectation
def drawn(i, seed, start, spot, volatility):
    """The same for a price that is drawn with the spot `start`; `spot` is that of its density."""
    price = final_price(i, seed, start, volatility)
    return DISCOUNT * (price - STRIKE) if STRIKE < price < BARRIER else 0.0


@cuda.jit(device=True)
def log_density(i, seed, start, spot, volatility):
    """Returns ln q of the final price but for terms that do not depend on the spot."""
    price = final_price(i, seed, start, volatility)
    deviation = volatility * ROOT
    z = (math.log(price / spot) - (RATE - 0.5 * volatility**2) * YEARS) / deviation
    return -0.5 * z * z


def normal(x: float) -> float:
    """Returns the distribution function of the normal distribution."""
    return 0.5 * math.erfc(-x / math.sqrt(2))


def density(x: float) -> float:
    """Returns the density of the normal distribution."""
    return math.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def closed_forms(strike: float) -> tuple[float, float, float, float]:
    """Returns delta and vega of a call, and of what pays 1 above its strike the price and delta."""
    deviation = VOLATILITY * ROOT
    d1 = (math.log(SPOT / strike) + RATE * YEARS) / deviation + 0.5 * deviation
    d2 = d1 - deviation
    digital_delta = DISCOUNT * density(d2) / (SPOT * deviation)
    return normal(d1), SPOT * density(d1) * ROOT, DISCOUNT * normal(d2), digital_delta


def main() -> None:
    """Compares the derivatives with the closed forms."""
    parser = argparse.ArgumentParser(description="Derivatives of option prices by simulation.")
    parser.add_argument("--paths", type=int, default=4_000_000, help="default: 4,000,000")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--ranks", type=int, help="number of ranks (default: one per GPU, else one per CPU core)"
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    args = parser.parse_args()
    paths, seed = synk.arange(args.paths), args.seed

    delta, vega, _, _ = closed_forms(STRIKE)
    above, _, _, jump = closed_forms(BARRIER)
    # below the barrier: a call, less a call and a jump at the barrier
    barrier_delta = delta - above - (BARRIER - STRIKE) * jump

    with synk.fork(args.ranks, device=args.device):
        greeks = call.gradient("spot", "volatility")(paths, seed, SPOT, VOLATILITY)
        pathwise = knocked_out.derivative("spot")(paths, seed, SPOT, VOLATILITY)
        by_score = drawn.derivative("spot", score=log_density)
        scored = by_score(paths, seed, SPOT, SPOT, VOLATILITY)

    rows = (
        ("delta of the call", greeks.mean[1], greeks.stderr[1], delta),
        ("vega of the call", greeks.mean[2], greeks.stderr[2], vega),
        ("delta with a barrier, by paths", pathwise.mean, pathwise.stderr, barrier_delta),
        ("delta with a barrier, by its score", scored.mean, scored.stderr, barrier_delta),
    )
    print(f"{'':36}simulated              closed form   errors off")
    distances = []
    for name, mean, stderr, exact in rows:
        distances.append((mean - exact) / stderr)
        print(f"{name:36}{mean:9.5f} ± {stderr:.5f}   {exact:10.5f}   {distances[-1]:+10.2f}")
    correlation = greeks.covariance[0, 1] / math.sqrt(greeks.variance[0] * greeks.variance[1])
    print(f"price and delta of a path are correlated: {correlation:.3f}")

    call_delta, call_vega, missed, found = map(abs, distances)
    assert max(call_delta, call_vega, found) < 5, "more than five standard errors off"
    assert missed > 10, "the derivatives of paths have seen the jump"
    print("\nthe Greeks are right within their errors; paths alone miss the jump at the barrier")


if __name__ == "__main__":
    main()
