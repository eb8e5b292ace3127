"""Monte Carlo estimates: π, and the prices of a European and an Asian option.

Row i of `synk.arange(n)` is one random point, or one path of a share price. Its random numbers are
those of `synk.random` for (seed, i), so any number of ranks, on CPU cores and on GPUs, simulates
the same points and paths. The kernels return sums over all rows; the functions at the end turn
these into an estimate and its standard error, s/√n.

π. A point of the unit square lies in the unit circle with probability π/4.

Options. The share price follows geometric Brownian motion, dS/S = r dt + σ dW, with interest rate r
and volatility σ per year:

    S(t + h) = S(t) exp((r − σ²/2) h + σ √h z),  z standard normal

A European call pays max(S(T) − K, 0) at time T; its price is the expected payoff times exp(−rT).
Source: F. Black and M. Scholes, "The pricing of options and corporate liabilities", Journal of
Political Economy 81 (1973).

An Asian call pays on the arithmetic mean of the prices at T/m, 2T/m, … T, and its price has no
closed form. For the geometric mean, which is log-normal, it has one. Both payoffs are computed on
the same paths and are nearly proportional, so the geometric payoff, whose expectation is known,
serves as a control variate. Source: A. Kemna and A. Vorst, "A pricing method for options based on
average asset values", Journal of Banking and Finance 14 (1990).
"""

import math

import numpy as np
from numba import cuda

import synknumba as synk


def _grid(rows):
    """Returns the number of 256-thread blocks: one thread per row, up to 1024 blocks; beyond that,
    threads stride over rows.

    The cost is then one atomic addition per thread, not per row.
    """
    return max(1, min(1024, -(-rows // 256)))


@synk.parallel(grid=_grid, outputs={"inside": synk.output("sum", shape=(), dtype="int64")})
@cuda.jit
def count_inside(rows, seed, inside):
    """Counts the random points inside the quarter circle.

    Args:
        rows: index range, one point per row; sharded.
        seed: int; the random stream.
        inside: int64, a number; exactly equal for any number of ranks.
    """
    start, stop = rows.start, rows.stop
    hits = 0
    for i in range(start + cuda.grid(1), stop, cuda.gridsize(1)):
        x, y = synk.random.uniform2(seed, i, 0)
        if x * x + y * y < 1.0:
            hits += 1
    cuda.atomic.add(inside, 0, hits)


def count_inside_reference(n, seed):
    """NumPy reference for n points."""
    x, y = synk.random.uniform2(seed, np.arange(n), 0)
    return np.count_nonzero(x * x + y * y < 1.0)


@synk.parallel(grid=_grid, outputs={"sums": synk.output("sum", shape=2, dtype="float64")})
@cuda.jit
def european_payoffs(rows, seed, spot, strike, rate, volatility, years, sums):
    """Sums the discounted payoffs of a European call, and their squares.

    Args:
        rows: index range, one path per row; sharded.
        seed: int; the random stream.
        spot: float, money; the present share price.
        strike: float, money; the strike price K.
        rate: float, per year; the interest rate r, compounded continuously.
        volatility: float, per square root of a year; σ.
        years: float; the time to expiry T.
        sums: float64, shape (2,): Σp in money, Σp² in money².
    """
    start, stop = rows.start, rows.stop
    drift = (rate - 0.5 * volatility * volatility) * years
    spread = volatility * math.sqrt(years)
    discount = math.exp(-rate * years)
    total = 0.0
    squares = 0.0
    for i in range(start + cuda.grid(1), stop, cuda.gridsize(1)):
        price = spot * math.exp(drift + spread * synk.random.normal(seed, i, 0))
        payoff = discount * max(price - strike, 0.0)
        total += payoff
        squares += payoff * payoff
    cuda.atomic.add(sums, 0, total)
    cuda.atomic.add(sums, 1, squares)


def european_payoffs_reference(n, seed, spot, strike, rate, volatility, years):
    """NumPy reference for n paths."""
    z = synk.random.normal(seed, np.arange(n), 0)
    price = spot * np.exp((rate - 0.5 * volatility**2) * years + volatility * math.sqrt(years) * z)
    payoff = math.exp(-rate * years) * np.maximum(price - strike, 0.0)
    return np.array([payoff.sum(), (payoff**2).sum()])


@synk.parallel(grid=_grid, outputs={"sums": synk.output("sum", shape=5, dtype="float64")})
@cuda.jit
def asian_payoffs(rows, seed, spot, strike, rate, volatility, years, steps, sums):
    """Sums the discounted payoffs of two Asian calls, on the arithmetic and on the geometric mean
    price, and their products.

    Args:
        rows: index range, one path per row; sharded.
        seed: int; the random stream.
        spot: float, money; the present share price.
        strike: float, money; the strike price K.
        rate: float, per year; the interest rate r.
        volatility: float, per square root of a year; σ.
        years: float; the time T of the last averaged price.
        steps: int, at least 1; the number m of averaged prices, evenly spaced.
        sums: float64, shape (5,): Σa, Σg in money, Σa², Σg², Σag in money², for arithmetic payoffs
            a and geometric payoffs g.
    """
    start, stop = rows.start, rows.stop
    step = years / steps
    drift = (rate - 0.5 * volatility * volatility) * step
    spread = volatility * math.sqrt(step)
    discount = math.exp(-rate * years)
    a_sum = 0.0
    g_sum = 0.0
    aa_sum = 0.0
    gg_sum = 0.0
    ag_sum = 0.0
    for i in range(start + cuda.grid(1), stop, cuda.gridsize(1)):
        growth = 0.0  # ln(S(t)/S(0))
        growths = 0.0
        prices = 0.0
        z = 0.0
        other = 0.0
        for k in range(steps):
            if k % 2 == 0:  # two normals cost little more than one
                z, other = synk.random.normal2(seed, i, k // 2)
            else:
                z = other
            growth += drift + spread * z
            growths += growth
            prices += math.exp(growth)
        a = discount * max(spot * prices / steps - strike, 0.0)
        g = discount * max(spot * math.exp(growths / steps) - strike, 0.0)
        a_sum += a
        g_sum += g
        aa_sum += a * a
        gg_sum += g * g
        ag_sum += a * g
    cuda.atomic.add(sums, 0, a_sum)
    cuda.atomic.add(sums, 1, g_sum)
    cuda.atomic.add(sums, 2, aa_sum)
    cuda.atomic.add(sums, 3, gg_sum)
    cuda.atomic.add(sums, 4, ag_sum)


def asian_payoffs_reference(n, seed, spot, strike, rate, volatility, years, steps):
    """NumPy reference for n paths."""
    pairs = synk.random.normal2(seed, np.arange(n)[:, None], np.arange((steps + 1) // 2))
    z = np.stack(pairs, axis=2).reshape(n, -1)[:, :steps]
    step = years / steps
    growth = np.cumsum(
        (rate - 0.5 * volatility**2) * step + volatility * math.sqrt(step) * z, axis=1
    )
    discount = math.exp(-rate * years)
    a = discount * np.maximum(spot * np.exp(growth).mean(axis=1) - strike, 0.0)
    g = discount * np.maximum(spot * np.exp(growth.mean(axis=1)) - strike, 0.0)
    return np.array([a.sum(), g.sum(), (a * a).sum(), (g * g).sum(), (a * g).sum()])


def pi(n, seed):
    """Returns an estimate of π and its standard error, from n random points."""
    share = count_inside(synk.arange(n), seed) / n
    return 4.0 * share, 4.0 * math.sqrt(share * (1.0 - share) / n)


def european_call(n, seed, spot, strike, rate, volatility, years):
    """Returns a European call's simulated price and standard error, from n ≥ 2 paths; arguments
    as for `european_payoffs`.
    """
    total, squares = european_payoffs(synk.arange(n), seed, spot, strike, rate, volatility, years)
    variance = (squares - total * total / n) / (n - 1)
    return total / n, math.sqrt(max(variance, 0.0) / n)


def asian_call(n, seed, spot, strike, rate, volatility, years, steps):
    """Returns the simulated price of an arithmetic-mean Asian call and its standard error, from n ≥
    3 paths.

    The estimate is the mean of a − β (g − E[g]), with the variance-minimising β = cov(a, g)/var(g)
    estimated from the same paths. The resulting bias is of order 1/n, far below the standard error.
    Arguments as for `asian_payoffs`.
    """
    a, g, aa, gg, ag = asian_payoffs(
        synk.arange(n), seed, spot, strike, rate, volatility, years, steps
    )
    var_a, var_g, cov = aa - a * a / n, gg - g * g / n, ag - a * g / n
    beta = cov / var_g if var_g > 0.0 else 0.0
    known = geometric_asian_price(spot, strike, rate, volatility, years, steps)
    variance = max(var_a - beta * cov, 0.0) / (n - 2)
    return a / n - beta * (g / n - known), math.sqrt(variance / n)


def european_price(spot, strike, rate, volatility, years):
    """Returns the closed-form price of a European call (Black and Scholes 1973, equation 13)."""
    return _log_normal_call(
        spot * math.exp(rate * years), strike, volatility * math.sqrt(years), rate * years
    )


def geometric_asian_price(spot, strike, rate, volatility, years, steps):
    """Returns the closed-form price of a geometric-mean Asian call on m prices (Kemna and Vorst
    1990, for discrete times).

    The logarithm of mean price over spot is normal with mean (r − σ²/2) T (m + 1)/2m and variance
    σ² T (m + 1)(2m + 1)/6m².
    """
    mean = (rate - 0.5 * volatility**2) * years * (steps + 1) / (2 * steps)
    deviation = volatility * math.sqrt(years * (steps + 1) * (2 * steps + 1) / 6) / steps
    return _log_normal_call(
        spot * math.exp(mean + 0.5 * deviation**2), strike, deviation, rate * years
    )


def _log_normal_call(forward, strike, deviation, interest):
    """Returns exp(−interest) E[max(X − strike, 0)] for log-normal X with mean `forward`;
    `deviation` is that of ln X.
    """
    d1 = math.log(forward / strike) / deviation + 0.5 * deviation
    d2 = d1 - deviation
    return math.exp(-interest) * (forward * _normal_cdf(d1) - strike * _normal_cdf(d2))


def _normal_cdf(x):
    return 0.5 * math.erfc(-x / math.sqrt(2.0))
