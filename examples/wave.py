"""The wave equation on a square membrane: a standing mode, its energy, and the order of
convergence.

    python examples/wave.py
    python examples/wave.py --cells 256 --picture wave.png

∂²u/∂t² = c² (∂²u/∂x² + ∂²u/∂y²) on the unit square with u = 0 on its boundary, here with c = 1. The
membrane is released at rest in the mode sin(kπx) sin(lπy), which stands, and swings as cos(ωt) with
ω = cπ √(k² + l²). Leapfrog with n cells along each side, of length h = 1/n, and time steps Δt =
rh/c:

    u'_ij = 2 u_ij − u_ij(t − Δt) + r² (Δu)_ij,    (Δu)_ij = u_{i−1,j} + u_{i+1,j} + u_{i,j−1} + u_{i,j+1} − 4 u_ij

keeps the mode too, but with the frequency Ω of sin²(ΩΔt/2) = r² (sin²(kπ/2n) + sin²(lπ/2n)), which
differs from ω by O(h²): the error at a time falls to a quarter when n doubles. It is stable for r ≤
1/√2, and conserves

    E = h²/2 Σ_ij [ (u_ij − u_ij(t − Δt))² / Δt² − c² u_ij(t − Δt) (Δu)_ij / h² ]

but for rounding, the sum of kinetic and potential energy between two steps. Sources: R. Courant, K.
Friedrichs and H. Lewy, Mathematische Annalen 100 (1928); E. Hairer, C. Lubich and G. Wanner, Acta
Numerica 12 (2003).

Each rank has its own rows of the membrane, and a halo. The ranks repeat the time steps by
themselves, and return the energy of every few; two steps, which overwrite the older of u and w in
turns, are an inner sequence.

The picture needs matplotlib: pip install 'synknumba[examples]'.
"""  # noqa: E501

import argparse
import math
import time

import numpy as np
from numba import cuda

import synknumba as synk

MODE = (3, 2)  # k, l
COURANT = 0.6  # r
PERIODS = 2.25  # of the mode, about; near a quarter of one, an error of the frequency shows most
ENERGIES = 10  # values of the energy, at equal times
ROWS = 32  # that a thread adds up, so that a GPU has few atomic additions


@synk.parallel(grid="elements")  # a thread for each element of u
@cuda.jit
def leap(u, w, square):
    """Advances the membrane by one time step, from u to w.

    Args:
        u: float64, shape (rows, n + 1), displacement on this rank's rows and its halos.
        w: same shape; that of one time step before, which the next one replaces in the rank's own
            rows.
        square: r²; float, dimensionless, in (0, 1/2].
    """
    j, i = cuda.grid(2)
    if 0 < i < u.shape[0] - 1 and 0 < j < u.shape[1] - 1:
        bend = u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1] - 4 * u[i, j]
        w[i, j] = 2 * u[i, j] - w[i, j] + square * bend


@synk.parallel(
    block=128,
    grid=lambda rows, shapes: (-(-shapes["u"][1] // 128), -(-rows // ROWS)),
    outputs={"energy": synk.output("sum", shape=(), dtype="float64")},
)
@cuda.jit
def measure(u, w, square, energy):
    """Computes 2EΔt²/h². One thread per column and ROWS rows.

    Args:
        u: as for `leap`.
        w: as for `leap`, one step older than u.
        square: as for `leap`.
        energy: float64, shape (), squared displacement; summed.
    """
    j = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    first = 1 + cuda.blockIdx.y * ROWS
    if 0 < j < u.shape[1] - 1:
        part = 0.0
        for i in range(first, min(first + ROWS, u.shape[0] - 1)):
            bend = u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1] - 4 * u[i, j]
            part += (u[i, j] - w[i, j]) ** 2 - square * w[i, j] * bend
        cuda.atomic.add(energy, 0, part)


@synk.sequence
def two_steps(u, w, square):
    """Advances both, which then are two time steps later."""
    synk.exchange(u)
    leap(u, w, square)
    synk.exchange(w)
    leap(w, u, square)


@synk.sequence
def swing(u, w, square, pairs):
    """Advances both by so many pairs of time steps; returns the energy."""
    two_steps(u, w, square, times=pairs)
    synk.exchange(u)
    return measure(u, w, square)


def mode(cells: int) -> np.ndarray:
    """Returns the mode on the points of the grid, and exactly 0 on the boundary."""
    along = np.arange(cells + 1) / cells * np.pi
    values = np.sin(MODE[0] * along)[:, None] * np.sin(MODE[1] * along)
    values[[0, -1]] = values[:, [0, -1]] = 0
    return values


def angles(cells: int) -> tuple[float, float]:
    """Returns the angles ωΔt and ΩΔt of the equation and of the scheme."""
    half = np.pi / (2 * cells)
    sine = COURANT * math.hypot(math.sin(MODE[0] * half), math.sin(MODE[1] * half))
    return COURANT * 2 * half * math.hypot(*MODE), 2 * math.asin(sine)


def simulate(cells: int, pairs: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Returns the displacement at the end, the energies in units of h²/2Δt², and the seconds that
    it took.

    Args:
        cells: n.
        pairs: pairs of time steps before each energy.
    """
    start, square = mode(cells), COURANT**2
    # one time step before the start: that of a membrane at rest at 0
    before = start * math.cos(angles(cells)[1])
    u, w = (synk.scatter(synk.variable(one), halo=1) for one in (start, before))
    began = time.perf_counter()
    energies = swing(u, w, square, pairs, times=ENERGIES, every=1)
    seconds = time.perf_counter() - began
    return synk.gather(u), energies, seconds


def draw(
    found: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]], periods: float, file: str
) -> None:
    """Draws the membrane, the change of its energy, and the errors by number of cells."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    cells = max(found)
    displacement, _, energies = found[cells]
    image = left.imshow(displacement, origin="lower", extent=(0, 1, 0, 1), cmap="RdBu")
    left.set(xlabel="y", ylabel="x", title=f"displacement after {periods:.2f} periods")
    figure.colorbar(image, ax=left)
    middle.plot(np.arange(1, ENERGIES + 1) * periods / ENERGIES, energies / energies[0] - 1, "o-")
    middle.set(xlabel="periods", title="relative change of the energy")
    sizes = np.array(sorted(found))
    errors = np.array([abs(found[n][1]).max() for n in sizes])
    right.loglog(sizes, errors, "o", label="largest error")
    right.loglog(sizes, errors[-1] * (cells / sizes) ** 2, color="black", label="∝ h²")
    right.minorticks_off()
    right.set(xlabel="cells along each side", xticks=sizes, xticklabels=sizes, title="convergence")
    right.legend()
    figure.savefig(file, dpi=150)
    plt.close(figure)


def main() -> None:
    """Simulates on three grids, and compares with the closed forms."""
    parser = argparse.ArgumentParser(
        description="The wave equation by leapfrog, with halo exchange."
    )
    parser.add_argument(
        "--cells",
        type=int,
        default=64,
        help="cells along each side of the finest grid (default: 64)",
    )
    parser.add_argument(
        "--ranks", type=int, help="number of ranks (default: one per GPU, else one per CPU core)"
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument(
        "--picture", metavar="FILE", help="where to save a picture, such as wave.png"
    )
    args = parser.parse_args()
    if args.cells < 32 or args.cells % 4:
        parser.error("--cells must be a multiple of 4, and at least 32")
    sizes = [args.cells // 4, args.cells // 2, args.cells]

    # As many pairs of steps on the coarsest grid as are nearest to the periods, and on the finer
    # ones as reach the same time.
    coarse = max(1, round(PERIODS * math.pi / angles(sizes[0])[0] / ENERGIES))
    periods = coarse * ENERGIES * angles(sizes[0])[0] / math.pi
    found, errors = {}, []
    with synk.fork(args.ranks, device=args.device) as world:
        where = f"{world.world_size} {world.device} rank{'' if world.world_size == 1 else 's'}"
        print(f"mode {MODE} for {periods:.2f} periods on {where}")
        simulate(sizes[0], 1)  # compiles
        for cells in sizes:
            pairs = coarse * (cells // sizes[0])
            steps = 2 * pairs * ENERGIES
            displacement, energies, seconds = simulate(cells, pairs)
            angle, kept = angles(cells)
            rounding = abs(displacement - math.cos(kept * steps) * mode(cells)).max()
            error = displacement - math.cos(angle * steps) * mode(cells)
            drift = abs(energies / energies[0] - 1).max()
            found[cells] = displacement, error, energies
            errors.append(abs(error).max())
            print(
                f"{cells:5} × {cells} cells, {steps} steps in {seconds:.3f} s: "
                f"{seconds / steps * 1e6:.1f} µs a step"
            )
            print(
                f"      largest difference from the scheme's closed form {rounding:.1e}, from the "
                f"equation's {errors[-1]:.2e}"
            )
            print(f"      the energy changes by {drift:.1e}")
            # 2EΔt²/h² of the mode, whose squares add up to (n/2)²
            exact = (cells / 2) ** 2 * math.sin(kept) ** 2
            assert rounding < 1e-15 * (steps + 10), "the result is not that of the scheme"
            assert drift < 1e-15 * (steps + 10), "the energy is not conserved"
            np.testing.assert_allclose(energies, exact, rtol=1e-14 * cells * steps)
    orders = np.log2(np.divide(errors[:-1], errors[1:]))
    print(f"order of convergence {' '.join(f'{one:.3f}' for one in orders)}")
    assert abs(orders[-1] - 2) < 0.1, "the error does not fall as h²"
    print("mode, energy and order agree with the closed forms")
    if args.picture:
        draw(found, periods, args.picture)
        print(f"saved {args.picture}")


if __name__ == "__main__":
    main()
