"""The heat equation on a square plate, its rows divided over the ranks, compared with the closed
form.

    python examples/heat.py
    python examples/heat.py --cells 1024 --steps 20000 --picture heat.png

∂u/∂t = ∂²u/∂x² + ∂²u/∂y² on the unit square with u = 0 on its boundary. The temperature begins as a
sum of modes sin(kπx) sin(lπy), of which each keeps its form and decays as exp(−π² (k² + l²) t).
Explicit finite differences with n cells along each side, of length h = 1/n, and the time step μ h²:

    u'_ij = u_ij + μ (u_{i−1,j} + u_{i+1,j} + u_{i,j−1} + u_{i,j+1} − 4 u_ij)

keep the modes too, and multiply each by 1 − 4 μ (sin²(kπ/2n) + sin²(lπ/2n)) at a step, but for
rounding. Source: K. Morton and D. Mayers, "Numerical Solution of Partial Differential Equations"
(Cambridge, 2005), chapter 3.

Each rank has its own rows of the plate and a halo, one row of each neighbour, which `synk.exchange`
renews before each step. A step writes the new temperature to a second variable, and `synk.swap`
exchanges the two. The steps are a sequence: the ranks repeat them by themselves, and the script
waits once.

The picture needs matplotlib: pip install 'synknumba[examples]'.
"""

import argparse
import time

import numpy as np
from numba import cuda

import synknumba as synk

MODES = {(1, 1): 1.0, (3, 2): 0.5}  # (k, l): amplitude
RATIO = 0.2  # μ; the scheme is stable up to 1/4


@synk.parallel(grid="elements")  # a thread for each element of u
@cuda.jit
def diffuse(u, v, ratio):
    """Advances the temperature from u to v by one time step, one thread per point.

    Args:
        u: float64, shape (rows, n + 1), temperature on this rank's rows and its halos.
        v: same shape; its own rows are written. The first and last row are halos, or the boundary
            of the plate.
        ratio: μ; float, dimensionless, in (0, 1/4].
    """
    j, i = cuda.grid(2)
    if 0 < i < u.shape[0] - 1 and 0 < j < u.shape[1] - 1:
        v[i, j] = u[i, j] + ratio * (
            u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1] - 4 * u[i, j]
        )


@synk.sequence
def step(u, v, ratio):
    """Advances u by one time step; v is memory for the new temperature."""
    synk.exchange(u)
    diffuse(u, v, ratio)
    synk.swap(u, v)


def mode(cells: int, k: int, m: int) -> np.ndarray:
    """Returns sin(kπx) sin(mπy) on the points of the grid, and exactly 0 on the boundary."""
    x = np.arange(cells + 1) / cells
    values = np.sin(k * np.pi * x)[:, None] * np.sin(m * np.pi * x)
    values[[0, -1]] = values[:, [0, -1]] = 0
    return values


def plate(cells: int, steps: int) -> np.ndarray:
    """Returns the temperature after so many steps of the scheme, in exact arithmetic."""
    half = np.pi / (2 * cells)
    factors = {
        (k, m): 1 - 4 * RATIO * (np.sin(k * half) ** 2 + np.sin(m * half) ** 2) for k, m in MODES
    }
    return sum(
        amplitude * factors[one] ** steps * mode(cells, *one) for one, amplitude in MODES.items()
    )


def continuum(cells: int, steps: int) -> np.ndarray:
    """Returns the temperature at the same time by the differential equation."""
    at = steps * RATIO / cells**2
    decay = {(k, m): np.exp(-(np.pi**2) * (k**2 + m**2) * at) for k, m in MODES}
    return sum(amplitude * decay[one] * mode(cells, *one) for one, amplitude in MODES.items())


def simulate(start: np.ndarray, steps: int) -> tuple[np.ndarray, float]:
    """Returns the temperature after so many steps, and the seconds that they took."""
    u, v = (synk.scatter(synk.variable(start), halo=1) for _ in range(2))
    step(u, v, 0.0)  # compiles, and changes nothing: v has the values of u
    began = time.perf_counter()
    step(u, v, RATIO, times=steps)
    seconds = time.perf_counter() - began
    return synk.gather(u), seconds


def draw(before: np.ndarray, after: np.ndarray, at: float, file: str) -> None:
    """Draws the temperature at the start and at the end."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
    for axes, values, title in zip(
        panels, (before, after), ("t = 0", f"t = {at:.3g}"), strict=True
    ):
        image = axes.imshow(values, origin="lower", extent=(0, 1, 0, 1), cmap="inferno")
        axes.set(xlabel="y", ylabel="x", title=title)
        figure.colorbar(image, ax=axes, label="temperature")
    figure.savefig(file, dpi=150)
    plt.close(figure)


def main() -> None:
    """Simulates, and compares with the closed form."""
    parser = argparse.ArgumentParser(
        description="The heat equation, in time steps that the ranks repeat."
    )
    parser.add_argument(
        "--cells", type=int, default=128, help="cells along each side (default: 128)"
    )
    parser.add_argument("--steps", type=int, default=2000, help="time steps (default: 2000)")
    parser.add_argument(
        "--ranks", type=int, help="number of ranks (default: one per GPU, else one per CPU core)"
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument(
        "--picture", metavar="FILE", help="where to save a picture, such as heat.png"
    )
    args = parser.parse_args()
    if args.cells < 8 or args.steps < 1:
        parser.error("--cells must be at least 8, and --steps at least 1")

    start = plate(args.cells, 0)
    with synk.fork(args.ranks, device=args.device) as world:
        found, seconds = simulate(start, args.steps)
        where = f"{world.world_size} {world.device} rank{'' if world.world_size == 1 else 's'}"

    at = args.steps * RATIO / args.cells**2
    points = (args.cells - 1) ** 2 * args.steps
    print(f"{args.cells} × {args.cells} cells, {args.steps} steps to t = {at:.4g} on {where}")
    print(f"{seconds / args.steps * 1e6:.1f} µs a step, {points / seconds:.2e} points a second")
    rounding = abs(found - plate(args.cells, args.steps)).max()
    exact = continuum(args.cells, args.steps)
    error = abs(found - exact).max() / abs(exact).max()
    print(f"largest difference from the scheme's closed form: {rounding:.1e}")
    print(f"largest difference from the equation's, relative to its maximum: {error:.1e}")
    assert rounding < 1e-15 * (args.steps + 10), "the result is not that of the scheme"
    print("the result agrees with the closed form")
    if args.picture:
        draw(start, found, at, args.picture)
        print(f"saved {args.picture}")


if __name__ == "__main__":
    main()
