"""The mean of a function of random points, with its error bar.

    python expectation.py

Here the points lie in the unit cube, and the function is exp(−β r²), so the mean is an integral.
Put your own function of one sample in its place.
"""

import math

import synknumba as synk

SAMPLES = 10_000_000
BETA = 1.5
SEED = 7  # another seed is another run; the same seed gives the same numbers anywhere


@synk.expectation
def integrand(i, seed, beta):
    """Returns the function at sample number i: plain Python, which is compiled for each device."""
    # A random number is a function of the seed, the sample and the draw: 0, 1, 2 are three numbers.
    x = synk.random.uniform(seed, i, 0)
    y = synk.random.uniform(seed, i, 1)
    z = synk.random.uniform(seed, i, 2)
    return math.exp(-beta * (x * x + y * y + z * z))


def estimate(samples, beta, seed=SEED):
    """Returns the estimate: its mean, its stderr, and more."""
    # The rows are numbers 0 … samples − 1. Of an array in their place, the function gets its rows.
    return integrand(synk.arange(samples), seed, beta)


def main():
    """Runs on every GPU or, without one, on every core."""
    with synk.fork():
        print(estimate(SAMPLES, BETA))
        # With until=lambda e: e.stderr < 1e-5, a call stops as soon as that is reached.


if __name__ == "__main__":
    main()
