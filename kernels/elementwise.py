"""Row-wise functions: a·x + y, closed-form option prices, softmax.

Each rank computes its own rows, without communication. Results are gathered in row order, or
written in place (`inout=`).

Black and Scholes. The price of the right to buy (call) or to sell (put) a share at strike price K
in T years, for spot price S, interest rate r and volatility σ per year:

    call = S N(d₁) − K exp(−rT) N(d₂),    put = K exp(−rT) N(−d₂) − S N(−d₁)
    d₁ = (ln(S/K) + (r + σ²/2) T) / σ√T,  d₂ = d₁ − σ√T,  N the normal distribution function

Source: F. Black and M. Scholes, "The pricing of options and corporate liabilities", Journal of
Political Economy 81 (1973), equation 13; the put price follows from put-call parity, call − put = S
− K exp(−rT).

Softmax. exp(x_j − m) / Σ_k exp(x_k − m), where m is the maximum of the row. Subtracting m leaves
the quotient unchanged and keeps exp from overflowing. Source: N. Higham, P. Blanchard and D.
Higham, "Accurately computing the log-sum-exp and softmax functions", IMA Journal of Numerical
Analysis 41 (2021).
"""

import math

import numpy as np
from numba import cuda

import synknumba as synk


@synk.parallel(outputs={"out": synk.output("gather", like="x")})
@cuda.jit
def axpy(a, x, y, out):
    """Computes a·x + y.

    Args:
        a: number.
        x: float32 or float64, shape (n,); sharded.
        y: shape and dtype of x; sharded.
        out: shape and dtype of x; gathered.
    """
    i = cuda.grid(1)
    if i < x.shape[0]:
        out[i] = a * x[i] + y[i]


def axpy_reference(a, x, y):
    """NumPy reference."""
    return a * x + y


@synk.parallel(inout=("y",))
@cuda.jit
def axpy_in_place(a, x, y):
    """Adds a·x to y.

    Args:
        a: number.
        x: float32 or float64, shape (n,); sharded.
        y: shape and dtype of x; sharded, written.
    """
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] += a * x[i]


def axpy_in_place_reference(a, x, y):
    """NumPy reference."""
    y += a * x


@cuda.jit(device=True)
def _normal_cdf(x):
    """Returns N(x) from erfc, which stays accurate far below zero, where 1 + erf cancels."""
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


@synk.parallel(
    outputs={
        "call": synk.output("gather", dtype="float64"),
        "put": synk.output("gather", dtype="float64"),
    }
)
@cuda.jit
def black_scholes(spot, strike, years, rate, volatility, call, put):
    """Computes the prices of European options.

    Args:
        spot: spot price S > 0; float, shape (n,), money; sharded.
        strike: strike price K > 0; float, shape (n,), money; sharded.
        years: time to expiry T > 0; float, shape (n,); sharded.
        rate: interest rate r; float, per year.
        volatility: σ > 0; float, per square root of a year.
        call: call prices; float64, shape (n,), money; gathered.
        put: put prices; float64, shape (n,), money; gathered.
    """
    i = cuda.grid(1)
    if i < spot.shape[0]:
        spread = volatility * math.sqrt(years[i])
        d1 = (
            math.log(spot[i] / strike[i]) + (rate + 0.5 * volatility * volatility) * years[i]
        ) / spread
        d2 = d1 - spread
        later = strike[i] * math.exp(-rate * years[i])
        call[i] = spot[i] * _normal_cdf(d1) - later * _normal_cdf(d2)
        put[i] = later * _normal_cdf(-d2) - spot[i] * _normal_cdf(-d1)


def black_scholes_reference(spot, strike, years, rate, volatility):
    """NumPy reference; returns (call, put)."""
    cdf = np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2.0)), otypes=["float64"])
    spread = volatility * np.sqrt(years)
    d1 = (np.log(spot / strike) + (rate + 0.5 * volatility**2) * years) / spread
    d2 = d1 - spread
    later = strike * np.exp(-rate * years)
    return spot * cdf(d1) - later * cdf(d2), later * cdf(-d2) - spot * cdf(-d1)


@synk.parallel(outputs={"out": synk.output("gather", like="x")})
@cuda.jit
def softmax(x, out):
    """Computes exp(x_j) / Σ_k exp(x_k) for each row.

    Args:
        x: float32 or float64, shape (n, d) with d ≥ 1, C-contiguous; sharded.
        out: shape and dtype of x, each row with sum 1; gathered.
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
    """NumPy reference."""
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)
