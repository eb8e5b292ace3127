"""Option prices by Monte Carlo: estimate ± standard error, compared with closed forms.

    python examples/option_pricing.py
    python examples/option_pricing.py --paths 100000000 --picture convergence.png

The price of a European call has a closed form (Black and Scholes), to which the estimate must
converge with an error that falls as 1/√n. An Asian call, which pays on the mean of twelve monthly
prices, has none. It is simulated twice: without variance reduction, and with the geometric-mean
call as a control variate (see kernels/montecarlo.py), which reduces the error a few dozen times.

Path i uses the random numbers of (seed, i), so the same paths are simulated on any number of ranks,
on GPUs and CPU cores. The picture, of price and error against the number of paths, needs
matplotlib: pip install 'synknumba[examples]'.
"""

import argparse
import math
import time

import numpy as np

import synknumba as synk
from synknumba.kernels import montecarlo

SPOT, STRIKE, RATE, VOLATILITY, YEARS = OPTION = 100.0, 105.0, 0.03, 0.25, 1.0
MONTHS = 12
CHECKED = 100_003  # paths also simulated with NumPy


def converge(paths: int, seed: int) -> np.ndarray:
    """Returns estimates for increasing numbers of paths: rows (paths, price, standard error), shape
    (k, 3).

    Each estimate has its own seed, so they are independent.
    """
    counts = np.unique(np.geomspace(min(1000, paths), paths, 13).astype(int))
    return np.array(
        [
            (n, *montecarlo.european_call(int(n), seed + 1 + k, *OPTION))
            for k, n in enumerate(counts)
        ]
    )


def draw(runs: np.ndarray, exact: float, file: str) -> None:
    """Plots the prices, and below them their errors."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    n, price, error = runs.T
    figure, (above, below) = plt.subplots(2, sharex=True, figsize=(7, 7), layout="constrained")
    above.axhline(exact, color="black", label=f"Black and Scholes: {exact:.4f}")
    above.errorbar(n, price, error, fmt="o", capsize=3, label="simulated, ± standard error")
    above.set(
        xscale="log", ylabel="price of the European call", title="Convergence of a simulated price"
    )
    above.legend()
    below.loglog(n, abs(price - exact), "o", label="distance from the closed form")
    below.loglog(n, error, "x", label="standard error")
    below.loglog(n, error[-1] * np.sqrt(n[-1] / n), color="black", label="1/√n")
    below.set(xlabel="paths", ylabel="error")
    below.legend()
    figure.savefig(file, dpi=150)
    plt.close(figure)


def main() -> None:
    """Prices the options and compares with the closed forms."""
    parser = argparse.ArgumentParser(description="Option prices by simulation.")
    parser.add_argument("--paths", type=int, default=4_000_000, help="default: 4,000,000")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--ranks", type=int, help="number of ranks (default: one per GPU, else one per CPU core)"
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument(
        "--picture", metavar="FILE", help="where to save a picture, such as convergence.png"
    )
    args = parser.parse_args()
    n, seed = args.paths, args.seed
    if n < 1000:
        parser.error("--paths must be at least 1000")

    with synk.fork(args.ranks, device=args.device) as world:
        checked = min(n, CHECKED)
        sums = montecarlo.european_payoffs(synk.arange(checked), seed, *OPTION)
        np.testing.assert_allclose(
            sums, montecarlo.european_payoffs_reference(checked, seed, *OPTION), rtol=1e-10
        )

        start = time.perf_counter()
        price, error = montecarlo.european_call(n, seed, *OPTION)
        seconds = time.perf_counter() - start
        exact = montecarlo.european_price(*OPTION)
        plural = "" if world.world_size == 1 else "s"
        print(
            f"{n:,} paths on {world.world_size} {world.device} rank{plural} in {seconds:.3f} s: "
            f"{n / seconds:.2e} a second"
        )
        print(
            f"  European call   {price:.5f} ± {error:.5f}   closed form {exact:.5f}, "
            f"{(price - exact) / error:+.2f} errors off"
        )

        months = max(1000, n // MONTHS)  # keeps the number of random draws
        a, g, aa, _, _ = (
            montecarlo.asian_payoffs(synk.arange(months), seed, *OPTION, MONTHS) / months
        )
        plain = math.sqrt(max(aa - a * a, 0.0) / months)
        asian, asian_error = montecarlo.asian_call(months, seed, *OPTION, MONTHS)
        known = montecarlo.geometric_asian_price(*OPTION, MONTHS)
        print(f"  Asian call      {a:.5f} ± {plain:.5f}   plainly, from {months:,} paths")
        print(
            f"                  {asian:.5f} ± {asian_error:.5f}   with a control variate that "
            f"costs {known:.5f}, here {g:.5f}"
        )

        runs = converge(n, seed)

    counts, prices, errors = runs.T
    print("\n       paths       price   standard error   error · √n")
    for count, value, spread in runs:
        print(f"{int(count):12,}  {value:10.5f}  {spread:15.5f}  {spread * math.sqrt(count):11.4f}")
    assert abs(price - exact) < 5 * error, "the European call is more than five standard errors off"
    assert abs(asian - a) < 5 * plain, (
        "the two prices of the Asian call are more than five standard errors apart"
    )
    assert asian_error < plain / 10, "the control variate does not help"
    assert (abs(prices - exact) < 5 * errors).all(), "a price is more than five standard errors off"
    constant = errors * np.sqrt(counts)
    assert (abs(constant / constant[-1] - 1) < 0.25).all(), (
        "the standard error does not fall as 1/√n"
    )
    print("\nthe standard error falls as 1/√n, and the prices are right within it")
    if args.picture:
        draw(runs, exact, args.picture)
        print(f"saved {args.picture}")


if __name__ == "__main__":
    main()
