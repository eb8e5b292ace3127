"""Laplace's equation by Jacobi's method, until the ranks judge that nothing changes any more.

    python examples/jacobi.py --cells 256 --picture laplace.png

∂²u/∂x² + ∂²u/∂y² = 0 on a square of n × n cells, with u = sin(πx) at y = 0, and 0 at the other
sides. Each sweep replaces a value by the mean of its four neighbours', from one array to another.
The five-point scheme has the solution sin(πi/n) sinh(κ(n − j)) / sinh(κn), where cosh κ = 2 − cos
(π/n), and a sweep shrinks the slowest part of the error by cos(π/n): about n² sweeps (W. Hackbusch,
"Iterative Solution of Large Sparse Systems of Equations", Springer 1994, chapter 4).
"""

import argparse

import numpy as np
from numba import cuda

import synknumba as synk


@synk.parallel(grid="elements")
@cuda.jit
def sweep(u, new):
    """Makes a sweep, one thread per point; arrays are float64, shape (rows, n + 1)."""
    j, i = cuda.grid(2)
    if 0 < i < u.shape[0] - 1 and 0 < j < u.shape[1] - 1:
        new[i, j] = 0.25 * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1])


@synk.function(outputs="max", record=True)
def change(u, new):
    """Returns the largest change by a sweep."""
    return abs(new - u).max()


@synk.sequence
def relax(u, new):
    """Makes a sweep, and returns its largest change."""
    sweep(u, new)
    synk.exchange(new)
    synk.swap(u, new)
    return change(u, new)


def solve(cells: int, every: int, tolerance: float) -> tuple[np.ndarray, int]:
    """Returns u, whose first axis is y, and the number of sweeps."""
    start = np.zeros((cells + 1, cells + 1))
    start[0] = np.sin(np.pi * np.arange(cells + 1) / cells)
    start[0, -1] = 0
    u, new = (synk.scatter(synk.variable(start), halo=1) for _ in range(2))
    until = {"every": every, "until": lambda most: most < tolerance}
    changes = relax(u, new, times=20 * cells**2, **until)
    return synk.gather(u), every * len(changes)


def main() -> None:
    """Solves, and compares with the solution of the scheme, and with the theory of sweeps."""
    parser = argparse.ArgumentParser(description="Laplace's equation by Jacobi's method.")
    parser.add_argument("--cells", type=int, default=64, help="along a side (default: 64)")
    parser.add_argument("--every", type=int, default=20, help="sweeps between judgements")
    parser.add_argument("--ranks", type=int, help="default: one per GPU, else one per CPU core")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--picture", metavar="FILE", help="of u")
    args = parser.parse_args()
    n, tolerance = args.cells, 1e-10
    with synk.fork(args.ranks, device=args.device):
        u, sweeps = solve(n, args.every, tolerance)
    j, i = np.mgrid[: n + 1, : n + 1]
    shrink, kappa = np.cos(np.pi / n), np.arccosh(2 - np.cos(np.pi / n))
    error = abs(u - np.sin(np.pi * i / n) * np.sinh(kappa * (n - j)) / np.sinh(kappa * n)).max()
    most = np.log(tolerance / (1 - shrink)) / np.log(shrink)
    print(f"{sweeps} sweeps, of at most {most:.0f} by theory; largest error {error:.1e}")
    assert sweeps < most + args.every, "more sweeps than the theory allows"
    assert error < 2 * tolerance / (1 - shrink), "u is not the solution of the scheme"
    print("solution and number of sweeps agree with theory")
    if args.picture:
        from matplotlib import image

        image.imsave(args.picture, u, cmap="inferno", origin="lower")
        print(f"saved {args.picture}")


if __name__ == "__main__":
    main()
