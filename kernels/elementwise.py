"""Functions of one row at a time: a·x + y, option prices in closed form, softmax.

A row is computed by the rank that has it, and nobody waits for another; the results come back in the order of the rows, or are
written where the rows lie (`inout=`).

Black and Scholes. The price of the right to buy (call) or to sell (put) a share, now at S, at the price K in T years, where
interest is r and the share's volatility σ a year:

    call = S N(d₁) − K exp(−rT) N(d₂),    put = K exp(−rT) N(−d₂) − S N(−d₁)
    d₁ = (ln(S/K) + (r + σ²/2) T) / σ√T,  d₂ = d₁ − σ√T,  N the normal distribution function

Source: F. Black and M. Scholes, "The pricing of options and corporate liabilities", Journal of Political Economy 81 (1973),
equation 13; the put follows from the call's by call − put = S − K exp(−rT).

Softmax. exp(x_j − m) / Σ_k exp(x_k − m) with the row's maximum m, which does not change the quotient and keeps exp from
overflowing. Source: N. Higham, P. Blanchard and D. Higham, "Accurately computing the log-sum-exp and softmax functions", IMA
Journal of Numerical Analysis 41 (2021).
"""

import math

import numpy as np
from numba import cuda

import synknumba as synk


@synk.parallel(outputs={"out": synk.output("gather", like="x")})
@cuda.jit
def axpy(a, x, y, out):
    """a·x + y.

    Args:
        a: number.
        x: float32 or float64, shape (n,); sharded.
        y: of the same shape and dtype; sharded.
        out: of the same shape and dtype; gathered.
    """
    i = cuda.grid(1)
    if i < x.shape[0]:
        out[i] = a * x[i] + y[i]


def axpy_reference(a, x, y):
    """The same with NumPy."""
    return a * x + y


@synk.parallel(inout=("y",))
@cuda.jit
def axpy_in_place(a, x, y):
    """Adds a·x to y.

    Args:
        a: number.
        x: float32 or float64, shape (n,); sharded.
        y: of the same shape and dtype; sharded, written.
    """
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] += a * x[i]


def axpy_in_place_reference(a, x, y):
    """The same with NumPy."""
    y += a * x


@cuda.jit(device=True)
def _normal_cdf(x):
    """N(x), by erfc, which keeps its digits far below zero, where 1 + erf loses them."""
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


@synk.parallel(
    outputs={
        "call": synk.output("gather", dtype="float64"),
        "put": synk.output("gather", dtype="float64"),
    }
)
@cuda.jit
def black_scholes(spot, strike, years, rate, volatility, call, put):
    """The prices of European options.

    Args:
        spot: float, shape (n,), money, above 0; S, sharded.
        strike: float, shape (n,), money, above 0; K, sharded.
        years: float, shape (n,), above 0; T, sharded.
        rate: float, per year; r.
        volatility: float, per square root of a year, above 0; σ.
        call: float64, shape (n,), money; gathered.
        put: float64, shape (n,), money; gathered.
    """
    i = cuda.grid(1)
    if i < spot.shape[0]:
        spread = volatility * math.sqrt(years[i])
        d1 = (math.log(spot[i] / strike[i]) + (rate + 0.5 * volatility * volatility) * years[i]) / spread
        d2 = d1 - spread
        later = strike[i] * math.exp(-rate * years[i])
        call[i] = spot[i] * _normal_cdf(d1) - later * _normal_cdf(d2)
        put[i] = later * _normal_cdf(-d2) - spot[i] * _normal_cdf(-d1)


def black_scholes_reference(spot, strike, years, rate, volatility):
    """The same with NumPy: call and put."""
    cdf = np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2.0)), otypes=["float64"])
    spread = volatility * np.sqrt(years)
    d1 = (np.log(spot / strike) + (rate + 0.5 * volatility**2) * years) / spread
    d2 = d1 - spread
    later = strike * np.exp(-rate * years)
    return spot * cdf(d1) - later * cdf(d2), later * cdf(-d2) - spot * cdf(-d1)


@synk.parallel(outputs={"out": synk.output("gather", like="x")})
@cuda.jit
def softmax(x, out):
    """exp(x_j) / Σ_k exp(x_k) of each row.

    Args:
        x: float32 or float64, shape (n, d) with d ≥ 1, C-contiguous; sharded.
        out: of the same shape and dtype, each row with the sum 1; gathered.
    """
    i = cuda.grid(1)
    if i < x.shape[0]:
        top = x[i, 0]
        for j in range(1, x.shape[1]):
            top = max(top, x[i, j])
        total = 0.0
        for j in range(x.shape[1]):
            out[i, j] = math.exp(x[i, j] - top)
            total += out[i, j]
        for j in range(x.shape[1]):
            out[i, j] /= total


def softmax_reference(x):
    """The same with NumPy."""
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)
