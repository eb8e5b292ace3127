"""Ising model: magnetisation against temperature, compared with Onsager's exact curve.

    python examples/ising.py
    python examples/ising.py --side 128 --lattices 64 --picture ising.png

One call simulates several independent lattices per temperature, sharded over the ranks: the
temperature argument has one row per lattice. Standard errors come from the spread between lattices,
so they need no estimate of the autocorrelation time. The spins are the same for any number of
ranks.

Near the critical temperature a finite lattice differs from an infinite one and decorrelates slowly,
so results there are shown but not compared. The picture needs matplotlib: pip install
'synknumba[examples]'.
"""

import argparse
import math
import time

import numpy as np

import synknumba as synk
from synknumba.kernels import ising

CRITICAL = 0.25  # no comparison within this distance of the critical temperature


def simulate(temperatures: np.ndarray, args: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Returns the mean |m| at each temperature and its standard error."""
    lattices = np.repeat(temperatures, args.lattices)
    magnetisation, _ = ising.simulate(
        lattices, args.side, args.seed, args.warm_up, args.measurements
    )
    each = magnetisation.reshape(len(temperatures), args.lattices)
    return each.mean(axis=1), each.std(axis=1, ddof=1) / math.sqrt(args.lattices)


def check_spins(seed: int) -> None:
    """Checks sweeps over small lattices against the NumPy reference."""
    betas = np.linspace(0.3, 0.6, 5)
    spins = np.ones((5, 8, 8), np.int8)
    expected = spins.copy()
    ising.sweep(spins, betas, synk.OFFSET, seed, 0, 5)
    ising.sweep_reference(expected, betas, seed, 0, 5)
    np.testing.assert_array_equal(spins, expected)


def draw(
    temperatures: np.ndarray, mean: np.ndarray, error: np.ndarray, side: int, file: str
) -> None:
    """Plots the simulated points with error bars and the exact curve."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    fine = np.union1d(
        np.linspace(temperatures[0], temperatures[-1], 1000), [ising.CRITICAL_TEMPERATURE]
    )
    axes.plot(
        fine,
        [ising.onsager_magnetisation(t) for t in fine],
        color="black",
        label="Onsager, infinite lattice",
    )
    axes.errorbar(
        temperatures,
        mean,
        error,
        fmt="o",
        capsize=3,
        label=f"simulated, {side} × {side} spins, ± standard error",
    )
    axes.set(
        xlabel="temperature",
        ylabel="|magnetisation| a spin",
        title="The Ising model on a square lattice",
    )
    axes.legend()
    figure.savefig(file, dpi=150)
    plt.close(figure)


def main() -> None:
    """Simulates and compares with the exact curve."""
    parser = argparse.ArgumentParser(description="The Ising model's magnetisation.")
    parser.add_argument(
        "--side", type=int, default=48, help="spins along an edge, even (default: 48)"
    )
    parser.add_argument(
        "--lattices",
        type=int,
        default=16,
        help="lattices for each temperature, at least 8 (default: 16)",
    )
    parser.add_argument(
        "--warm-up",
        type=int,
        default=200,
        help="sweeps before the first measurement (default: 200)",
    )
    parser.add_argument(
        "--measurements", type=int, default=50, help="default: 50, two sweeps between them"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--ranks", type=int, help="number of ranks (default: one per GPU, else one per CPU core)"
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument(
        "--picture", metavar="FILE", help="where to save a picture, such as ising.png"
    )
    args = parser.parse_args()
    if args.side % 2 or args.side < 2 or args.lattices < 8:
        parser.error("--side must be even, and --lattices at least 8")
    temperatures = np.arange(1.5, 3.51, 0.125)

    with synk.fork(args.ranks, device=args.device) as world:
        check_spins(args.seed)
        start = time.perf_counter()
        mean, error = simulate(temperatures, args)
        seconds = time.perf_counter() - start
        plural = "" if world.world_size == 1 else "s"
        where = f"{world.world_size} {world.device} rank{plural}"

    steps = (
        len(temperatures) * args.lattices * args.side**2 * (args.warm_up + 2 * args.measurements)
    )
    print(
        f"{steps:.2e} steps of a spin on {where} in {seconds:.2f} s: {steps / seconds:.2e} a second"
    )
    print("\ntemperature     |magnetisation|   Onsager")
    for t, m, e in zip(temperatures, mean, error, strict=True):
        exact = ising.onsager_magnetisation(t)
        compared = t < ising.CRITICAL_TEMPERATURE - CRITICAL
        print(
            f"{t:11.3f}  {m:9.5f} ± {e:.5f}  {exact:8.5f}"
            + (f"   {(m - exact) / e:+.2f} errors off" if compared else "")
        )
        # Above the critical temperature, mean |m| is of order 1/L, with a constant that grows
        # towards the transition.
        assert not compared or abs(m - exact) < 5 * e, (
            f"at {t} the magnetisation is more than five standard errors off"
        )
    assert (np.diff(mean) < 5 * np.hypot(error[1:], error[:-1])).all(), (
        "the magnetisation grows with the temperature"
    )
    print(
        f"\ncritical temperature {ising.CRITICAL_TEMPERATURE:.5f}; well below it, "
        f"the results are Onsager's"
    )
    if args.picture:
        draw(temperatures, mean, error, args.side, args.picture)
        print(f"saved {args.picture}")


if __name__ == "__main__":
    main()
