"""Poisson's equation by conjugate gradients, until the ranks judge the residual small enough.

    python examples/conjugate_gradients.py --cells 1024 --picture poisson.png

−∂²u/∂x² − ∂²u/∂y² = f on the unit square, u = 0 on its boundary, with f such that u = (x − x³)(y −
y²). With n cells along each side, the five-point scheme 4 u_ij − u_{i−1,j} − u_{i+1,j} − u_{i,j−1}
− u_{i,j+1} = f_ij/n², in short A u = b, has this solution, too: fourth derivatives of u are 0. From
x = 0 and p = r = b, an iteration is

    s = r·r / p·Ap,  x += s p,  r' = r − s A p,  p = r' + (r'·r' / r·r) p

and after k of them, with κ the ratio of A's largest to its smallest eigenvalue,

    ‖r‖ ≤ 2 √κ q^k ‖b‖,  q = (√κ − 1)/(√κ + 1),  √κ = cot(π/2n)

Sources: M. Hestenes and E. Stiefel, Journal of Research of the National Bureau of Standards 49
(1952), the method; Y. Saad, "Iterative Methods for Sparse Linear Systems" (SIAM, 2003), section
6.11.3, the bound. An iteration moves 112 bytes a point for 15 operations: memory limits it.
"""

import argparse
import math
import time

import numpy as np
from numba import cuda

import synknumba as synk

COLUMNS, ROWS = 128, 32  # that a block of threads adds up


def on_points(function):
    """Makes a kernel with a thread for each element of its first array."""
    return synk.parallel(grid="elements")(cuda.jit(function))


@on_points
def apply(q, p):
    """Computes q = A p; first and last rows are halos, or the boundary."""
    j, i = cuda.grid(2)
    if 0 < i < p.shape[0] - 1 and 0 < j < p.shape[1] - 1:
        q[i, j] = 4 * p[i, j] - p[i - 1, j] - p[i + 1, j] - p[i, j - 1] - p[i, j + 1]


@on_points
def advance(x, r, p, q, s):
    """Computes x += s p and r −= s q."""
    j, i = cuda.grid(2)
    if 0 < i < p.shape[0] - 1 and 0 < j < p.shape[1] - 1:
        x[i, j] += s * p[i, j]
        r[i, j] -= s * q[i, j]


@on_points
def turn(p, r, t):
    """Computes p = r + t p."""
    j, i = cuda.grid(2)
    if 0 < i < p.shape[0] - 1 and 0 < j < p.shape[1] - 1:
        p[i, j] = r[i, j] + t * p[i, j]


@synk.parallel(
    block=COLUMNS,
    grid=lambda rows, shapes: (-(-shapes["a"][1] // COLUMNS), -(-rows // ROWS)),
    outputs={"out": synk.output("sum", shape=(), dtype="float64")},
)
@cuda.jit
def dot(a, b, out):
    """Computes a·b: a thread adds up rows of a column, the first of a block all of its sums."""
    parts = cuda.shared.array(COLUMNS, np.float64)
    j, first = cuda.grid(1), 1 + cuda.blockIdx.y * ROWS
    part = 0.0
    for i in range(first, min(first + ROWS, a.shape[0] - 1)):
        if j < a.shape[1]:
            part += a[i, j] * b[i, j]
    parts[cuda.threadIdx.x] = part
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        for thread in range(1, COLUMNS):
            part += parts[thread]
        cuda.atomic.add(out, 0, part)


@synk.sequence
def iterate(x, r, p, q, old):
    """Makes one iteration, where `old` is r·r, and returns r'·r'."""
    synk.exchange(p)
    apply(q, p)
    advance(x, r, p, q, old / dot(p, q))
    new = dot(r, r)
    turn(p, r, new / old)
    synk.carry(old, new)
    return new


def problem(cells: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the solution and b, shape (n + 1, n + 1), both exactly 0 on the boundary."""
    x, y = np.ogrid[: 1 : (cells + 1) * 1j, : 1 : (cells + 1) * 1j]
    solution = (x - x**3) * (y - y**2)
    b = (6 * x * (y - y**2) + 2 * (x - x**3)) / cells**2
    b[[0, -1]] = b[:, [0, -1]] = 0
    return solution, b


def solve(cells: int, every: int, tolerance: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Returns the solution found, ‖r‖/‖b‖ each `every` iterations, and seconds."""
    b = problem(cells)[1]
    x, r, p, q = (synk.scatter(synk.variable(start), halo=1) for start in (0 * b, b, b, 0 * b))
    square = (b**2).sum()
    options = {"every": every, "until": lambda new: new < tolerance**2 * square}
    began = time.perf_counter()
    squares = iterate(x, r, p, q, square, times=100 * cells, **options)
    seconds = time.perf_counter() - began
    return synk.gather(x), np.sqrt(squares / square), seconds


def main() -> None:
    """Solves, and compares with the closed form and the bound."""
    parser = argparse.ArgumentParser(description="Poisson's equation by conjugate gradients.")
    parser.add_argument("--cells", type=int, default=128, help="along each side (default: 128)")
    parser.add_argument("--tolerance", type=float, default=1e-10, help="of ‖r‖/‖b‖")
    parser.add_argument("--every", type=int, default=10, help="iterations between judgements")
    parser.add_argument("--ranks", type=int, help="default: one per GPU, else one per CPU core")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--picture", metavar="FILE", help="of the solution")
    args = parser.parse_args()
    with synk.fork(args.ranks, device=args.device):
        solve(8, 1, 0.1)  # compiles
        found, norms, seconds = solve(args.cells, args.every, args.tolerance)
    count = args.every * len(norms)
    print(f"{count} iterations, {seconds / count * 1e6:.1f} µs each, residual {norms[-1]:.1e}")
    root = 1 / math.tan(math.pi / (2 * args.cells))  # √κ
    most = math.log(2 * root / args.tolerance) / math.log((root + 1) / (root - 1))
    error = abs(found - problem(args.cells)[0]).max()
    print(f"largest difference from the closed form: {error:.1e}")
    assert count < most + args.every, "more iterations than the bound allows"
    assert error < 10 * args.tolerance * args.cells, "the solution is not the closed form"
    print(f"solution and number of iterations, at most {most:.0f}, agree with theory")
    if args.picture:
        from matplotlib import image

        image.imsave(args.picture, found, cmap="inferno", origin="lower")
        print(f"saved {args.picture}")


if __name__ == "__main__":
    main()
