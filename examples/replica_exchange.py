"""Replica exchange between ranks: a density with two peaks, between which a Markov chain at one
temperature hardly moves.

    python examples/replica_exchange.py
    python examples/replica_exchange.py --levels 16 --ladders 4096 --steps 20000 --picture
    replicas.png

The density at the inverse temperature β is proportional to exp(−β V(x)), V(x) = 10 (x² − 1)² + 0.3
x. At β = 1 there are two peaks with a barrier of 10 between them, which a chain of small steps
hardly ever crosses; at β = 0.1 it does easily. Replicas at several β run side by side, each by N.
Metropolis's rule, and after some moves those at neighbouring β exchange their temperatures with
probability

    min(1, exp((β_a − β_b) (V(x_a) − V(x_b))))

which leaves the product of the densities as it is. Sources: R. Swendsen and J.-S. Wang, Physical
Review Letters 57 (1986); K. Hukushima and K. Nemoto, Journal of the Physical Society of Japan 65
(1996). Means and variances are compared with integrals.

Replicas are divided over the ranks, one or several on each, and stay there; only temperatures move.
An `all_reduce` of energies tells every rank all of them, and each decides on the exchanges with the
same random numbers: their tables of temperatures stay equal without a message. All of it is one
sequence. There are many independent ladders of temperatures, a column each. Random numbers are
keyed by replica, ladder and step, so the samples are the same for any number of ranks. Successive
steps resemble each other, so error bars are those of blocks of steps.

The picture needs matplotlib: pip install 'synknumba[examples]'.
"""

import argparse
import math
import time

import numpy as np
from numba import cuda

import synknumba as synk

HOTTEST = 0.1  # the least β; the greatest is 1
BARRIER, TILT = 10.0, 0.3  # of V
WIDTH = 0.5  # of a move at β = 1; at others, divided by √β
ALONE = 200  # steps of the run without exchanges


@cuda.jit(device=True)
def potential(x):
    """Returns V(x)."""
    return BARRIER * (x * x - 1) ** 2 + TILT * x


@synk.parallel(grid="elements")  # a thread for each element of energy
@cuda.jit
def clear(energy):
    """Sets energies to 0."""
    j, i = cuda.grid(2)
    if i < energy.shape[0] and j < energy.shape[1]:
        energy[i, j] = 0.0


@synk.parallel(grid="elements")  # a thread for each element of x
@cuda.jit
def move(x, level, energy, betas, first, seed, step, moves):
    """Moves this rank's replicas, and writes their energies.

    Args:
        x: float64, shape (rows, ladders), positions of this rank's replicas; written.
        level: int64, shape (levels, ladders), index of the β of each replica; the same on all
            ranks.
        energy: float64, shape (levels, ladders), V of each replica; rows of this rank's replicas
            are written.
        betas: float64, shape (levels,), from the greatest to the least.
        first: `synk.OFFSET`, the number of this rank's first replica.
        seed: int; the random stream.
        step: int; the number of steps already made with this seed.
        moves: int; how many moves to make.
    """
    j, i = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        replica = first + i
        beta = betas[level[replica, j]]
        here = x[i, j]
        height = potential(here)
        for k in range(moves):
            to, accept = synk.random.uniform2(seed, replica * x.shape[1] + j, step * moves + k)
            there = here + WIDTH / math.sqrt(beta) * (2 * to - 1)
            there_height = potential(there)
            if accept < math.exp(-beta * (there_height - height)):
                here = there
                height = there_height
        x[i, j] = here
        energy[replica, j] = height


# a thread for each ladder
@synk.parallel(block=128, grid=lambda rows, shapes: -(-shapes["holder"][1] // 128))
@cuda.jit
def trade(holder, level, energy, betas, traded, seed, step):
    """Exchanges temperatures of neighbouring levels, of even and odd pairs in turns. Every rank
    does this for all replicas.

    Args:
        holder: int64, shape (levels, ladders), the replica at each level; written.
        level: as for `move`; written.
        energy: as for `move`, of all replicas.
        betas: as for `move`.
        traded: int64, shape (levels − 1,), number of exchanges between level k and k + 1 so far;
            written.
        seed: as for `move`.
        step: as for `move`.
    """
    j = cuda.grid(1)
    if j < holder.shape[1]:
        for k in range(step % 2, holder.shape[0] - 1, 2):
            a, b = holder[k, j], holder[k + 1, j]
            chance = math.exp(min(0.0, (betas[k] - betas[k + 1]) * (energy[a, j] - energy[b, j])))
            if synk.random.uniform(seed, j, step * holder.shape[0] + k) < chance:
                holder[k, j], holder[k + 1, j] = b, a
                level[a, j], level[b, j] = k + 1, k
                cuda.atomic.add(traded, k, 1)


@synk.parallel(
    grid="elements",
    outputs={
        "sums": synk.output("sum", shape=lambda given: (*given["betas"].shape, 2), dtype="float64")
    },
)
@cuda.jit
def observe(x, level, betas, first, sums):
    """Adds up x and x² at each level, of this rank's replicas.

    Args:
        x: as for `move`.
        level: as for `move`.
        betas: as for `move`.
        first: as for `move`.
        sums: float64, shape (levels, 2); summed.
    """
    j, i = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        k = level[first + i, j]
        cuda.atomic.add(sums, (k, 0), x[i, j])
        cuda.atomic.add(sums, (k, 1), x[i, j] ** 2)


@synk.sequence
def advance(x, tables, betas, seed, moves, exchanges):
    """Makes a step: moves, and exchanges if these are wanted; returns sums of x and x² at each
    level.
    """
    clear(tables["energy"])
    move(x, tables["level"], tables["energy"], betas, synk.OFFSET, seed, synk.STEP, moves)
    # each energy and zeros: the same everywhere, and for any number of ranks
    synk.all_reduce(tables["energy"], "sum")
    if exchanges:
        trade(
            tables["holder"],
            tables["level"],
            tables["energy"],
            betas,
            tables["traded"],
            seed,
            synk.STEP,
        )
    return observe(x, tables["level"], betas, synk.OFFSET)


def advance_reference(
    x: np.ndarray, level: np.ndarray, betas: np.ndarray, seed: int, moves: int, step: int
) -> None:
    """Makes a step with NumPy."""
    levels, ladders = x.shape
    number = np.arange(levels * ladders).reshape(levels, ladders)
    beta = betas[level]
    for k in range(moves):
        to, accept = synk.random.uniform2(seed, number, step * moves + k)
        there = x + WIDTH / np.sqrt(beta) * (2 * to - 1)
        taken = accept < np.exp(-beta * (potential.py_func(there) - potential.py_func(x)))
        x[taken] = there[taken]
    holder, column = np.argsort(level, axis=0), np.arange(ladders)
    energy = potential.py_func(x)
    for k in range(step % 2, levels - 1, 2):
        a, b = holder[k], holder[k + 1]
        chance = np.exp(
            np.minimum(0, (betas[k] - betas[k + 1]) * (energy[a, column] - energy[b, column]))
        )
        swaps = synk.random.uniform(seed, column, step * levels + k) < chance
        level[a[swaps], column[swaps]], level[b[swaps], column[swaps]] = k + 1, k


class Ladders:
    """Replicas and their temperatures, on the ranks.

    Args:
        betas: shape (levels,), from the greatest to the least.
        ladders: number of independent ladders.
    """

    def __init__(self, betas: np.ndarray, ladders: int) -> None:
        order = np.repeat(np.arange(len(betas))[:, None], ladders, axis=1)
        self.betas = synk.variable(betas)
        # all in the peak that is less likely
        self.x = synk.scatter(synk.variable(np.ones(order.shape)))
        self.tables = {
            "level": synk.variable(order),
            "holder": synk.variable(order),
            "energy": synk.variable(np.zeros(order.shape)),
            "traded": synk.variable(np.zeros(len(betas) - 1, np.int64)),
        }

    def run(self, seed: int, moves: int, steps: int, *, exchanges: bool = True) -> np.ndarray:
        """Makes steps; returns sums of x and x² at each, shape (steps, levels, 2)."""
        return advance(
            self.x, self.tables, self.betas, seed, moves, exchanges, times=steps, every=1
        )


def check_steps(betas: np.ndarray, seed: int) -> None:
    """Checks some steps against NumPy's."""
    ladders = Ladders(betas, 5)
    sums = ladders.run(seed, 3, 20)
    x = np.ones((len(betas), 5))
    level = np.repeat(np.arange(len(betas))[:, None], 5, axis=1)
    for step in range(20):
        advance_reference(x, level, betas, seed, 3, step)
    np.testing.assert_allclose(synk.gather(ladders.x), x, rtol=1e-9)
    np.testing.assert_array_equal(ladders.tables["level"], level)
    ordered = np.take_along_axis(x, np.argsort(level, axis=0), axis=0)
    np.testing.assert_allclose(
        sums[-1], np.stack([ordered.sum(1), (ordered**2).sum(1)], axis=1), rtol=1e-9
    )


def exact(beta: float) -> tuple[float, float]:
    """Returns mean and variance of x by the trapezoidal rule, which converges exponentially for
    such integrals.
    """
    x = np.linspace(-4, 4, 4001)
    weights = np.exp(-beta * (potential.py_func(x) + TILT))
    mean = (weights * x).sum() / weights.sum()
    return mean, (weights * (x - mean) ** 2).sum() / weights.sum()


def draw(betas: np.ndarray, means: np.ndarray, alone: np.ndarray, found: list, file: str) -> None:
    """Plots the mean at β = 1 by step with and without exchanges, and means by β with the exact
    curve.
    """
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    left.plot(means, label="with exchanges")
    left.plot(alone, label="without")
    left.axhline(exact(1.0)[0], color="black", label="exact")
    left.set(xlabel="step", ylabel="mean of x over the ladders", title="β = 1")
    left.legend()
    fine = np.geomspace(betas[-1], 1, 200)
    for which, label in enumerate(("mean of x", "variance of x")):
        line = right.plot(fine, [exact(beta)[which] for beta in fine], label=label)[0]
        values, errors = (
            [getattr(one[which], name) for one in found] for name in ("mean", "stderr")
        )
        right.errorbar(betas, values, errors, fmt="o", capsize=3, color=line.get_color())
    right.set(xlabel="β", xscale="log", title="sampled, ± standard error, and exact")
    right.legend()
    figure.savefig(file, dpi=150)
    plt.close(figure)


def main() -> None:
    """Samples, and compares with the integrals."""
    parser = argparse.ArgumentParser(description="Replica exchange between ranks.")
    parser.add_argument(
        "--levels", type=int, default=6, help="number of temperatures, at least 2 (default: 6)"
    )
    parser.add_argument("--ladders", type=int, default=64, help="independent ladders (default: 64)")
    parser.add_argument(
        "--steps",
        type=int,
        default=2000,
        help="default: 2000, of which the first tenth is not counted",
    )
    parser.add_argument("--moves", type=int, default=5, help="moves between exchanges (default: 5)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--ranks", type=int, help="number of ranks (default: one per GPU, else one per CPU core)"
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument(
        "--picture", metavar="FILE", help="where to save a picture, such as replicas.png"
    )
    args = parser.parse_args()
    if args.levels < 2 or args.ladders < 1 or args.steps < 200 or args.moves < 1:
        parser.error(
            "--levels must be at least 2, --steps at least 200, --ladders and --moves at least 1"
        )
    betas = np.geomspace(1, HOTTEST, args.levels)

    with synk.fork(args.ranks, device=args.device) as world:
        check_steps(betas, args.seed)
        ladders = Ladders(betas, args.ladders)
        began = time.perf_counter()
        sums = ladders.run(args.seed, args.moves, args.steps)
        seconds = time.perf_counter() - began
        rates = ladders.tables["traded"].get_value() / (args.steps / 2 * args.ladders)
        alone = Ladders(betas, args.ladders).run(args.seed, args.moves, ALONE, exchanges=False)
        where = f"{world.world_size} {world.device} rank{'' if world.world_size == 1 else 's'}"

    print(
        f"{args.levels} temperatures, {args.ladders} ladders, {args.steps} steps of "
        f"{args.moves} moves on {where} ",
        end="",
    )
    print(f"in {seconds:.2f} s: {seconds / args.steps * 1e6:.1f} µs a step")
    print(f"{rates.min():.2f} to {rates.max():.2f} of the exchanges are accepted")
    print("\n    β       mean of x     exact            variance     exact")
    found = []
    for k, beta in enumerate(betas):
        moments = synk.Estimate.blocked(sums[args.steps // 10 :, k] / args.ladders, covariance=True)
        pair = moments.propagate(lambda m: m[0]), moments.propagate(lambda m: m[1] - m[0] ** 2)
        found.append(pair)
        text = f"{beta:5.3f}"
        for one, value in zip(pair, exact(beta), strict=True):
            assert one.stderr == one.stderr, (
                "the chain is too short for an error bar; take more --steps"
            )
            deviation = (one.mean - value) / one.stderr
            text += f"  {one!s:>14} {value:9.5f} {deviation:+5.1f} σ"
            assert abs(deviation) < 5, (
                f"at β = {beta:.3f}, {one} is {deviation:.1f} standard errors from {value:.6f}"
            )
        print(text)
    stuck = alone[-1, 0, 0] / args.ladders
    print(
        f"\nwithout exchanges, the mean at β = 1 is {stuck:.3f} after {ALONE} steps: chains stay "
        f"in the peak where they began"
    )
    assert stuck > 0.5, "chains leave their peak without exchanges"
    print("means and variances agree with the integrals")
    if args.picture:
        draw(
            betas, sums[:, 0, 0] / args.ladders, alone[:, 0, 0] / args.ladders, found, args.picture
        )
        print(f"saved {args.picture}")


if __name__ == "__main__":
    main()
