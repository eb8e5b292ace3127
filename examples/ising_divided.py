"""One Ising lattice divided over the ranks: magnetisation and energy, compared with the exact
results.

    python examples/ising_divided.py
    python examples/ising_divided.py --side 512 --measurements 20000 --picture ising.png

Spins s = ±1 on an L × L lattice with periodic boundaries and E = −Σ_<ij> s_i s_j. A sweep updates
first the black and then the white sites of a checkerboard by N. Metropolis's rule (Journal of
Chemical Physics 21, 1953). The infinite lattice at T = 1/β has per site, with κ = 2 sinh 2β / cosh²
2β and the complete elliptic integral K of the first kind of modulus κ,

    |m| = (1 − sinh⁻⁴ 2β)^(1/8) below T_c = 2/ln(1 + √2), else 0
    E   = −coth 2β [1 + (2/π) (2 tanh² 2β − 1) K(κ)]

Sources: L. Onsager, Physical Review 65 (1944), the energy; C. Yang, Physical Review 85 (1952), the
magnetisation.

Each rank has some rows of the lattice, and a halo. After each half sweep `synk.exchange` brings the
neighbours' new spins. The ranks sweep by themselves: one round makes all measurements of a
temperature. Random numbers are keyed by seed, row of the lattice, sweep and column, so the spins
are the same for any number of ranks. Successive measurements resemble each other, so error bars are
those of blocks of them. See examples/ising.py for many lattices, each on one rank.

Near T_c, a finite lattice differs from the infinite one, and decorrelates slowly; results there are
shown but not compared. The picture needs matplotlib: pip install 'synknumba[examples]'.
"""

import argparse
import math
import time

import numpy as np
from numba import cuda

import synknumba as synk

CRITICAL_TEMPERATURE = 2 / math.log(1 + math.sqrt(2))
TEMPERATURES = (1.6, 1.8, 2.0, 2.3, 2.6, 3.0)
BELOW, ABOVE = 0.25, 0.6  # no comparison within these distances of T_c
ROWS = 32  # that a thread adds up, so that a GPU has few atomic additions


@synk.parallel(grid="elements")  # a thread for each element of spins
@cuda.jit
def update(spins, first, own, beta, seed, sweep, colour):
    """Updates the spins of one colour.

    Args:
        spins: int8, shape (rows, L), values ±1; this rank's rows between the halos; its own rows
            are written.
        first: `synk.OFFSET`, the row of the lattice of `spins[0]`, modulo L.
        own: `synk.OWN`, this rank's own rows.
        beta: β; float, 1/energy.
        seed: int; the random stream.
        sweep: int; the number of sweeps already performed with this seed.
        colour: int, 0 or 1, the parity of row + column.
    """
    j, i = cuda.grid(2)
    side = spins.shape[1]
    if own.start <= i < own.stop and j < side:
        row = (first + i) % side
        if (row + j) % 2 == colour:
            near = (
                spins[i - 1, j]
                + spins[i + 1, j]
                + spins[i, (j - 1) % side]
                + spins[i, (j + 1) % side]
            )
            if synk.random.uniform(seed, row, sweep * side + j) < math.exp(
                -2 * beta * spins[i, j] * near
            ):
                spins[i, j] = -spins[i, j]


@synk.parallel(
    block=128,
    grid=lambda rows, shapes: (-(-shapes["spins"][1] // 128), -(-rows // ROWS)),
    outputs={
        "up": synk.output("sum", shape=(), dtype="int64"),
        "bonds": synk.output("sum", shape=(), dtype="int64"),
    },
)
@cuda.jit
def measure(spins, own, up, bonds):
    """Adds up spins, and products of neighbours. One thread per column and ROWS rows.

    Args:
        spins: as for `update`.
        own: as for `update`.
        up: int64, shape (), sum of the spins; summed.
        bonds: int64, shape (), sum of the products; summed.
    """
    j = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    start = own.start + cuda.blockIdx.y * ROWS
    side = spins.shape[1]
    if j < side:
        spin_sum = 0
        bond_sum = 0
        for i in range(start, min(start + ROWS, own.stop)):
            spin_sum += spins[i, j]
            bond_sum += spins[i, j] * (spins[i + 1, j] + spins[i, (j + 1) % side])
        cuda.atomic.add(up, 0, spin_sum)
        cuda.atomic.add(bonds, 0, bond_sum)


@synk.sequence
def sweep(spins, beta, seed, made):
    """Sweeps over the lattice once; `made` sweeps were made with this seed before the first."""
    for colour in (0, 1):
        update(spins, synk.OFFSET, synk.OWN, beta, seed, made + synk.STEP, colour)
        synk.exchange(spins)


@synk.sequence
def observe(spins, beta, seed, made, between):
    """Makes some sweeps, and a measurement."""
    sweep(spins, beta, seed, made + synk.STEP * between, times=between)
    return measure(spins, synk.OWN)


def sweep_reference(spins: np.ndarray, beta: float, seed: int, made: int) -> None:
    """Sweeps once over the whole lattice, with NumPy."""
    side = len(spins)
    i, j = np.indices(spins.shape)
    numbers = synk.random.uniform(seed, i, made * side + j)
    for colour in (0, 1):
        near = sum(np.roll(spins, shift, axis) for axis in (0, 1) for shift in (-1, 1))
        turns = numbers < np.exp(-2 * beta * spins * near)
        spins[turns & ((i + j) % 2 == colour)] *= -1


def exact_magnetisation(temperature: float) -> float:
    """Returns |m| per site of the infinite lattice."""
    return (
        0.0
        if temperature >= CRITICAL_TEMPERATURE
        else (1 - math.sinh(2 / temperature) ** -4) ** 0.125
    )


def exact_energy(temperature: float) -> float:
    """Returns E per site of the infinite lattice. K(κ) is π / 2 divided by the
    arithmetic-geometric mean of 1 and √(1 − κ²).
    """
    tanh = math.tanh(2 / temperature)
    a, b = 1.0, abs(2 * tanh**2 - 1)  # √(1 − κ²), which is 0 at T_c
    while b and abs(a - b) > 1e-15 * a:
        a, b = (a + b) / 2, math.sqrt(a * b)
    return -(1 + (2 * tanh**2 - 1) / a) / tanh


def check_spins(side: int, seed: int) -> None:
    """Checks sweeps over a lattice against NumPy's."""
    start = np.where(np.random.default_rng(seed).random((side, side)) < 0.5, -1, 1).astype(np.int8)
    spins = synk.scatter(synk.variable(start), halo=1, periodic=True)
    found = observe(spins, 0.44, seed, 5, 3, times=2)
    for made in range(5, 11):
        sweep_reference(start, 0.44, seed, made)
    np.testing.assert_array_equal(synk.gather(spins), start)
    wide = start.astype(int)
    assert found == (wide.sum(), (wide * (np.roll(wide, -1, 0) + np.roll(wide, -1, 1))).sum())


def simulate(
    temperature: float, args: argparse.Namespace, seed: int
) -> tuple[synk.Estimate, synk.Estimate, np.ndarray]:
    """Returns |m| and E per site at this temperature, and the spins at the end."""
    beta, sites = 1 / temperature, args.side**2
    spins = synk.scatter(
        synk.variable(np.ones((args.side, args.side), np.int8)), halo=1, periodic=True
    )
    sweep(spins, beta, seed, 0, times=args.warm_up)
    seen = observe(spins, beta, seed, args.warm_up, args.between, times=args.measurements, every=1)
    magnetisation, energy = (
        synk.Estimate.blocked(abs(seen.up) / sites),
        synk.Estimate.blocked(-seen.bonds / sites),
    )
    return magnetisation, energy, synk.gather(spins)


def draw(
    temperatures: list[float],
    found: list[tuple[synk.Estimate, synk.Estimate, np.ndarray]],
    file: str,
) -> None:
    """Plots magnetisation and energy with error bars and the exact curves, and the spins at the
    temperature next to T_c.
    """
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
    fine = np.union1d(
        np.linspace(min(temperatures), max(temperatures), 1000), [CRITICAL_TEMPERATURE]
    )
    for axes, index, exact, label, place in (
        (left, 0, exact_magnetisation, "|magnetisation| a spin", "upper right"),
        (middle, 1, exact_energy, "energy a spin", "lower right"),
    ):
        axes.plot(fine, [exact(t) for t in fine], color="black", label="exact, infinite lattice")
        means, errors = (
            [getattr(one[index], name) for one in found] for name in ("mean", "stderr")
        )
        axes.errorbar(
            temperatures, means, errors, fmt="o", capsize=3, label="simulated, ± standard error"
        )
        axes.set(xlabel="temperature", ylabel=label)
        axes.legend(loc=place)
    nearest = int(np.argmin([abs(t - CRITICAL_TEMPERATURE) for t in temperatures]))
    right.imshow(found[nearest][2], cmap="gray", interpolation="nearest")
    right.set(title=f"spins at T = {temperatures[nearest]}", xticks=[], yticks=[])
    figure.savefig(file, dpi=150)
    plt.close(figure)


def compared(name: str, found: synk.Estimate, exact: float, *, comparable: bool) -> str:
    """Returns a text with the deviation from the exact value; raises `AssertionError` if that is
    too large.
    """
    text = f"{found.mean:9.5f} ± {found.stderr:.5f} {exact:9.5f}"
    if not comparable:
        return f"{text}       "
    assert found.stderr == found.stderr, (
        f"{name}: the chain is too short for an error bar; take more --measurements"
    )
    deviation = (found.mean - exact) / found.stderr
    assert abs(deviation) < 5, f"{name} {found} is {deviation:.1f} standard errors from {exact:.6f}"
    return f"{text} {deviation:+5.1f} σ"


def main() -> None:
    """Simulates, and compares with the exact results."""
    parser = argparse.ArgumentParser(
        description="The Ising model on one lattice, divided over the ranks."
    )
    parser.add_argument(
        "--side", type=int, default=64, help="spins along an edge, even (default: 64)"
    )
    parser.add_argument(
        "--warm-up",
        type=int,
        default=200,
        help="sweeps before the first measurement (default: 200)",
    )
    parser.add_argument(
        "--measurements", type=int, default=500, help="at each temperature (default: 500)"
    )
    parser.add_argument(
        "--between", type=int, default=2, help="sweeps before each measurement (default: 2)"
    )
    parser.add_argument("--temperatures", type=float, nargs="+", default=TEMPERATURES, metavar="T")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--ranks", type=int, help="number of ranks (default: one per GPU, else one per CPU core)"
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument(
        "--picture", metavar="FILE", help="where to save a picture, such as ising.png"
    )
    args = parser.parse_args()
    if (
        args.side % 2
        or args.side < 16
        or args.warm_up < 1
        or args.between < 1
        or args.measurements < 100
    ):
        parser.error(
            "--side must be even and at least 16, --measurements at least 100, --warm-up "
            "and --between at least 1"
        )

    found = []
    with synk.fork(args.ranks, device=args.device) as world:
        check_spins(16, args.seed)
        began = time.perf_counter()
        for index, temperature in enumerate(args.temperatures):
            found.append(simulate(temperature, args, args.seed + index))
        seconds = time.perf_counter() - began
        where = f"{world.world_size} {world.device} rank{'' if world.world_size == 1 else 's'}"

    sweeps = len(found) * (args.warm_up + args.between * args.measurements)
    print(
        f"{sweeps} sweeps of {args.side} × {args.side} spins on {where} in {seconds:.2f} s: ",
        end="",
    )
    print(f"{seconds / sweeps * 1e6:.1f} µs a sweep")
    print("\nT       |magnetisation|     exact               energy              exact")
    for temperature, (magnetisation, energy, _) in zip(args.temperatures, found, strict=True):
        cold, hot = (
            CRITICAL_TEMPERATURE - temperature > BELOW,
            temperature - CRITICAL_TEMPERATURE > ABOVE,
        )
        # Above T_c, mean |m| is of order 1/L.
        left = compared(
            "magnetisation", magnetisation, exact_magnetisation(temperature), comparable=cold
        )
        right = compared("energy", energy, exact_energy(temperature), comparable=cold or hot)
        print(f"{temperature:5.3f} {left}  {right}")
    print(
        f"\ncritical temperature {CRITICAL_TEMPERATURE:.5f}; away from it, the results "
        f"are Onsager's and Yang's"
    )
    if args.picture:
        draw(list(args.temperatures), found, args.picture)
        print(f"saved {args.picture}")


if __name__ == "__main__":
    main()
