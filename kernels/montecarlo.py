"""Expected values by simulation: π, and the prices of a European and of an Asian option.

Row i of `synk.arange(n)` is one random point, or one path of a share's price. Its random numbers are those of `synk.random` for
(seed, i), so that every number of ranks, on cores and on GPUs, simulates the same points and paths. What comes back are sums
over all rows, from which the functions at the end make a value and its standard error, s/√n.

π. A point of the unit square lies in the unit circle with probability π/4.

Options. The share follows geometric Brownian motion, dS/S = r dt + σ dW, with interest r and volatility σ a year:

    S(t + h) = S(t) exp((r − σ²/2) h + σ √h z),  z standard normal

A European call pays max(S(T) − K, 0) at time T, and its price is the expected value of that, times exp(−rT). Source: F. Black
and M. Scholes, "The pricing of options and corporate liabilities", Journal of Political Economy 81 (1973).

An Asian call pays by the mean of the prices at T/m, 2T/m, … T, which has no closed form. With the geometric mean in the place
of the arithmetic one it has: the geometric mean is log-normal. Both payments are computed on the same paths; they are nearly
proportional, so what is known of the one corrects the other (a control variate). Source: A. Kemna and A. Vorst, "A pricing
method for options based on average asset values", Journal of Banking and Finance 14 (1990).
"""

import math

import numpy as np
from numba import cuda

import synknumba as synk


def _grid(rows):
    """Blocks of 256 threads, a row for each; beyond 1024 blocks, threads walk over the rows in strides.

    So a thread, not a row, costs an atomic addition.
    """
    return max(1, min(1024, -(-rows // 256)))


@synk.parallel(grid=_grid, outputs={"inside": synk.output("sum", shape=(), dtype="int64")})
@cuda.jit
def count_inside(rows, seed, inside):
    """Counts the random points that lie in the quarter of the unit circle.

    Args:
        rows: index range, sharded; one row is one point.
        seed: int; which random numbers.
        inside: int64, a number; exactly the same for every number of ranks.
    """
    start, stop = rows.start, rows.stop
    hits = 0
    for i in range(start + cuda.grid(1), stop, cuda.gridsize(1)):
        x, y = synk.random.uniform2(seed, i, 0)
        if x * x + y * y < 1.0:
            hits += 1
    cuda.atomic.add(inside, 0, hits)


def count_inside_reference(n, seed):
    """The same with NumPy, for n points."""
    x, y = synk.random.uniform2(seed, np.arange(n), 0)
    return np.count_nonzero(x * x + y * y < 1.0)


@synk.parallel(grid=_grid, outputs={"sums": synk.output("sum", shape=2, dtype="float64")})
@cuda.jit
def european_payoffs(rows, seed, spot, strike, rate, volatility, years, sums):
    """Adds up the discounted payments of a European call, and their squares.

    Args:
        rows: index range, sharded; one row is one path.
        seed: int; which random numbers.
        spot: float, money; the share's price now.
        strike: float, money; the price K at which it may be bought.
        rate: float, per year; the interest r, compounded continuously.
        volatility: float, per square root of a year; σ.
        years: float; the time T until then.
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
    """The same with NumPy, for n paths."""
    z = synk.random.normal(seed, np.arange(n), 0)
    price = spot * np.exp((rate - 0.5 * volatility**2) * years + volatility * math.sqrt(years) * z)
    payoff = math.exp(-rate * years) * np.maximum(price - strike, 0.0)
    return np.array([payoff.sum(), (payoff**2).sum()])


@synk.parallel(grid=_grid, outputs={"sums": synk.output("sum", shape=5, dtype="float64")})
@cuda.jit
def asian_payoffs(rows, seed, spot, strike, rate, volatility, years, steps, sums):
    """Adds up the discounted payments of two Asian calls, by the arithmetic and by the geometric mean of the prices.

    Args:
        rows: index range, sharded; one row is one path.
        seed: int; which random numbers.
        spot: float, money; the share's price now.
        strike: float, money; the price K.
        rate: float, per year; the interest r.
        volatility: float, per square root of a year; σ.
        years: float; the time T of the last price that counts.
        steps: int, at least 1; the number m of prices that count, evenly spaced.
        sums: float64, shape (5,): Σa, Σg in money, Σa², Σg², Σag in money², of the arithmetic a and the geometric g.
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
        growth = 0.0  # the logarithm of S(t)/S(0)
        growths = 0.0
        prices = 0.0
        z = 0.0
        other = 0.0
        for k in range(steps):
            if k % 2 == 0:  # two normal numbers cost little more than one
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
    """The same with NumPy, for n paths."""
    pairs = synk.random.normal2(seed, np.arange(n)[:, None], np.arange((steps + 1) // 2))
    z = np.stack(pairs, axis=2).reshape(n, -1)[:, :steps]
    step = years / steps
    growth = np.cumsum((rate - 0.5 * volatility**2) * step + volatility * math.sqrt(step) * z, axis=1)
    discount = math.exp(-rate * years)
    a = discount * np.maximum(spot * np.exp(growth).mean(axis=1) - strike, 0.0)
    g = discount * np.maximum(spot * np.exp(growth.mean(axis=1)) - strike, 0.0)
    return np.array([a.sum(), g.sum(), (a * a).sum(), (g * g).sum(), (a * g).sum()])


def pi(n, seed):
    """π and its standard error, from n random points."""
    share = count_inside(synk.arange(n), seed) / n
    return 4.0 * share, 4.0 * math.sqrt(share * (1.0 - share) / n)


def european_call(n, seed, spot, strike, rate, volatility, years):
    """The price of a European call and its standard error, from n ≥ 2 paths; arguments as of `european_payoffs`."""
    total, squares = european_payoffs(synk.arange(n), seed, spot, strike, rate, volatility, years)
    variance = (squares - total * total / n) / (n - 1)
    return total / n, math.sqrt(max(variance, 0.0) / n)


def asian_call(n, seed, spot, strike, rate, volatility, years, steps):
    """The price of an Asian call by the arithmetic mean, and its standard error, from n ≥ 3 paths.

    The mean of a − β (g − E[g]), with the β for which it varies least, cov(a, g)/var(g), from the same paths. The bias that
    this brings is of order 1/n, far below the standard error. Arguments as of `asian_payoffs`.
    """
    a, g, aa, gg, ag = asian_payoffs(synk.arange(n), seed, spot, strike, rate, volatility, years, steps)
    var_a, var_g, cov = aa - a * a / n, gg - g * g / n, ag - a * g / n
    beta = cov / var_g if var_g > 0.0 else 0.0
    known = geometric_asian_price(spot, strike, rate, volatility, years, steps)
    variance = max(var_a - beta * cov, 0.0) / (n - 2)
    return a / n - beta * (g / n - known), math.sqrt(variance / n)


def european_price(spot, strike, rate, volatility, years):
    """The price of a European call in closed form (Black and Scholes 1973, equation 13)."""
    return _log_normal_call(spot * math.exp(rate * years), strike, volatility * math.sqrt(years), rate * years)


def geometric_asian_price(spot, strike, rate, volatility, years, steps):
    """The price of an Asian call by the geometric mean of m prices, in closed form (Kemna and Vorst 1990, for discrete times).

    The logarithm of the mean is normal: (r − σ²/2) T (m + 1)/2m on average, variance σ² T (m + 1)(2m + 1)/6m².
    """
    mean = (rate - 0.5 * volatility**2) * years * (steps + 1) / (2 * steps)
    deviation = volatility * math.sqrt(years * (steps + 1) * (2 * steps + 1) / 6) / steps
    return _log_normal_call(spot * math.exp(mean + 0.5 * deviation**2), strike, deviation, rate * years)


def _log_normal_call(forward, strike, deviation, interest):
    """exp(−interest) E[max(X − strike, 0)] of a log-normal X with the mean `forward`, whose logarithm has this deviation."""
    d1 = math.log(forward / strike) / deviation + 0.5 * deviation
    d2 = d1 - deviation
    return math.exp(-interest) * (forward * _normal_cdf(d1) - strike * _normal_cdf(d2))


def _normal_cdf(x):
    return 0.5 * math.erfc(-x / math.sqrt(2.0))
