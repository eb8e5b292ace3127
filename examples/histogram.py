"""Histogram and moments of random numbers, compared with NumPy and with their exact distribution.

    python examples/histogram.py
    python examples/histogram.py --rows 50000000 --bins 400 --picture histogram.png

Every rank counts its own rows, in its GPU's shared memory or on its CPU core, and the counts are
summed. The numbers are energies of gas particles in units of the temperature: half the square of a
speed with three normal components. The fraction of them below E is F(E) = erf(√E) − 2 √(E/π)
exp(−E) (J. Maxwell, 1860), with mean 3/2, variance 3/2, skewness √(8/3) and excess kurtosis 4.

The picture needs matplotlib: pip install 'synknumba[examples]'.
"""

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import synknumba as synk
from synknumba.kernels import statistics

END = 10.0  # upper edge of the histogram; one energy in 6,000 lies beyond


def below(energy: float) -> float:
    """Returns the fraction of particles below this energy."""
    return math.erf(math.sqrt(energy)) - 2.0 * math.sqrt(energy / math.pi) * math.exp(-energy)


def timed(compute: Callable[[], Any]) -> tuple[Any, float]:
    """Returns the computed value and the wall time in seconds."""
    start = time.perf_counter()
    value = compute()
    return value, time.perf_counter() - start


def draw(edges: np.ndarray, counts: np.ndarray, expected: np.ndarray, file: str) -> None:
    """Plots counted and expected numbers per bin."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    axes.stairs(counts, edges, fill=True, alpha=0.5, label="counted")
    axes.plot((edges[1:] + edges[:-1]) / 2, expected, color="black", label="Maxwell")
    axes.set(
        xlabel="energy / temperature",
        ylabel="particles in a bin",
        title=f"{counts.sum():,} particles of a gas",
    )
    axes.legend()
    figure.savefig(file, dpi=150)
    plt.close(figure)


def main() -> None:
    """Computes histogram and moments, and checks them."""
    parser = argparse.ArgumentParser(description="A histogram and moments.")
    parser.add_argument("--rows", type=int, default=5_000_000, help="default: 5,000,000")
    parser.add_argument("--bins", type=int, default=100, help="default: 100")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--ranks", type=int, help="number of ranks (default: one per GPU, else one per CPU core)"
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument(
        "--picture", metavar="FILE", help="where to save a picture, such as histogram.png"
    )
    args = parser.parse_args()
    if args.rows < 1000 or args.bins < 2:
        parser.error("--rows must be at least 1000, and --bins at least 2")

    energies = synk.data(np.random.default_rng(args.seed).gamma(1.5, 1.0, args.rows))
    edges = np.linspace(0.0, END, args.bins + 1)
    with synk.fork(args.ranks, device=args.device) as world:
        statistics.histogram(energies, edges)  # compiles
        counts, seconds = timed(lambda: statistics.histogram(energies, edges))
        found = statistics.moments(energies)
        plural = "" if world.world_size == 1 else "s"
        where = f"{world.world_size} {world.device} rank{plural}"

    with_numpy, numpy_seconds = timed(lambda: np.histogram(energies.data, edges)[0])
    np.testing.assert_array_equal(counts, with_numpy)
    np.testing.assert_allclose(
        found[1:3], [energies.data.mean(), energies.data.var(ddof=1)], rtol=1e-10
    )
    print(
        f"{args.rows:,} rows in {args.bins} bins: {where} {seconds * 1e3:.2f} ms, NumPy "
        f"{numpy_seconds * 1e3:.2f} ms"
    )
    print("every count is NumPy's")

    expected = args.rows * np.diff([below(edge) for edge in edges])
    enough = expected >= 10.0  # below that, a count is far from normally distributed
    deviations = (counts - expected)[enough] / np.sqrt(expected[enough])
    chi_square, freedom = float((deviations**2).sum()), int(enough.sum())
    print(f"chi-square {chi_square:.1f} for {freedom} bins")
    assert abs(chi_square - freedom) < 6.0 * math.sqrt(2.0 * freedom), (
        "the energies are not distributed as Maxwell says"
    )

    print(f"mean {found.mean:.5f} (1.5), variance {found.variance:.5f} (1.5), ", end="")
    print(
        f"skewness {found.skewness:.4f} ({math.sqrt(8 / 3):.4f}), excess kurtosis "
        f"{found.kurtosis:.3f} (4)"
    )
    assert abs(found.mean - 1.5) < 5.0 * math.sqrt(1.5 / args.rows), (
        "the mean is more than five standard errors off"
    )
    if args.picture:
        draw(edges, counts, expected, args.picture)
        print(f"saved {args.picture}")


if __name__ == "__main__":
    main()
