"""Poisson's equation by conjugate gradients: the iterations, with their scalar products, run on the
ranks.

    python examples/conjugate_gradients.py
    python examples/conjugate_gradients.py --cells 1024 --picture poisson.png

−∂²u/∂x² − ∂²u/∂y² = f on the unit square, u = 0 on its boundary, with f such that u = (x − x³)(y −
y²). With n cells along each side, the five-point scheme 4 u_ij − u_{i−1,j} − u_{i+1,j} − u_{i,j−1}
− u_{i,j+1} = f_ij/n², in short A u = b, has this solution, too: fourth derivatives of u are 0. From
x = 0 and p = r = b, an iteration is

    s = r·r / p·Ap,  x += s p,  r' = r − s A p,  t = r'·r' / r·r,  p = r' + t p

and the error e_k = u − x after k of them is, in the norm ‖e‖² = e·Ae = e·r, at most

    ‖e_k‖ ≤ 2 q^k ‖e_0‖,  q = (√κ − 1)/(√κ + 1),  κ = cot²(π/2n)

where κ is the ratio of A's largest to its smallest eigenvalue. Sources: M. Hestenes and E. Stiefel,
Journal of Research of the National Bureau of Standards 49 (1952), the method; Y. Saad, "Iterative
Methods for Sparse Linear Systems" (SIAM, 2003), section 6.11.3, the bound.

Each rank has its own rows, and a halo. The scalar products, s and t stay on the ranks, which judge
r·r by `until=` every few iterations; those r·r and e·r come to the script in the end.

The picture needs matplotlib: pip install 'synknumba[examples]'.
"""

import argparse
import math
import time

import numpy as np
from numba import cuda

import synknumba as synk

ROWS = 32  # that a thread adds up, so that a GPU has few atomic additions
MARGIN = 1.01  # of the bound, which is one of exact arithmetic


def on_points(function):
    """Makes a kernel with a thread for each element of its first array."""
    return synk.parallel(grid="elements")(cuda.jit(function))


def product(function):
    """Makes a kernel with one result, a float64 number that is summed, and a thread per column
    and ROWS rows of array `a`.
    """
    return synk.parallel(
        block=128,
        grid=lambda rows, shapes: (-(-shapes["a"][1] // 128), -(-rows // ROWS)),
        outputs={"out": synk.output("sum", shape=(), dtype="float64")},
    )(cuda.jit(function))


# Arrays are float64, shape (rows, n + 1). The first and last row are halos, or the boundary, where
# all of them are 0.


@on_points
def apply(q, p):
    """Computes q = A p."""
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


@product
def dot(a, b, out):
    """Computes a·b."""
    j = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    first = 1 + cuda.blockIdx.y * ROWS
    if j < a.shape[1]:
        part = 0.0
        for i in range(first, min(first + ROWS, a.shape[0] - 1)):
            part += a[i, j] * b[i, j]
        cuda.atomic.add(out, 0, part)


@product
def error_norm(a, x, r, out):
    """Computes (a − x)·r, the squared norm of the error where a is the solution."""
    j = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    first = 1 + cuda.blockIdx.y * ROWS
    if j < a.shape[1]:
        part = 0.0
        for i in range(first, min(first + ROWS, a.shape[0] - 1)):
            part += (a[i, j] - x[i, j]) * r[i, j]
        cuda.atomic.add(out, 0, part)


@synk.sequence
def iterate(x, r, p, q, solution, old):
    """Makes one iteration, where `old` is r·r; returns r'·r' and the squared norm of the error."""
    synk.exchange(p)
    apply(q, p)
    advance(x, r, p, q, old / dot(p, q))
    new = dot(r, r)
    turn(p, r, new / old)
    synk.carry(old, new)
    return new, error_norm(solution, x, r)


def problem(cells: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the solution and b, shape (n + 1, n + 1), both exactly 0 on the boundary."""
    x = np.arange(cells + 1)[:, None] / cells
    y = x.T
    solution = (x - x**3) * (y - y**2)
    b = (6 * x * (y - y**2) + 2 * (x - x**3)) / cells**2
    b[[0, -1]] = b[:, [0, -1]] = 0
    return solution, b


def solve(cells: int, every: int, tolerance: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Returns the solution found, the norms of residual and error at the start and after every few
    iterations, and seconds.

    Args:
        cells: n.
        every: iterations between two judgements.
        tolerance: norm of the residual, relative to that of b, at which to stop.
    """
    exact, b = problem(cells)
    x, r, p, q, solution = (
        synk.scatter(synk.variable(one), halo=1) for one in (0 * b, b, b, 0 * b, exact)
    )
    start = (b**2).sum(), (exact * b).sum()
    goal = tolerance**2 * start[0]
    began = time.perf_counter()
    options = {"times": 100 * cells, "every": every, "until": lambda kept: kept[0] < goal}
    residuals, errors = iterate(x, r, p, q, solution, dot(r, r), **options)
    seconds = time.perf_counter() - began
    squares = np.array([np.append(*pair) for pair in zip(start, (residuals, errors), strict=True)])
    # rounding may leave −10⁻³⁰ of an error
    return (
        synk.gather(x),
        np.sqrt(squares.clip(0)),
        seconds,
    )


def draw(
    found: np.ndarray, iterations: np.ndarray, norms: np.ndarray, bound: np.ndarray, file: str
) -> None:
    """Draws the solution, and the norms of residual and error with the bound."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    image = left.imshow(found, origin="lower", extent=(0, 1, 0, 1))
    left.set(xlabel="y", ylabel="x", title="solution")
    figure.colorbar(image, ax=left)
    right.semilogy(iterations, norms[0] / norms[0, 0], label="residual ‖b − Ax‖₂")
    right.semilogy(iterations, norms[1] / norms[1, 0], label="error ‖u − x‖")
    right.semilogy(iterations, bound, "k--", label="bound of the error")
    right.set(
        xlabel="iterations",
        title="relative to the start",
        ylim=(norms[0, -1] / norms[0, 0] / 10, 10),
    )
    right.legend()
    figure.savefig(file, dpi=150)
    plt.close(figure)


def main() -> None:
    """Solves, and compares with the closed form and the bound."""
    parser = argparse.ArgumentParser(
        description="Poisson's equation by conjugate gradients, run on the ranks."
    )
    parser.add_argument(
        "--cells", type=int, default=128, help="cells along each side (default: 128)"
    )
    parser.add_argument(
        "--tolerance", type=float, default=1e-10, help="of the residual, relative (default: 1e-10)"
    )
    parser.add_argument(
        "--every", type=int, default=10, help="iterations between two judgements (default: 10)"
    )
    parser.add_argument(
        "--ranks", type=int, help="number of ranks (default: one per GPU, else one per CPU core)"
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument(
        "--picture", metavar="FILE", help="where to save a picture, such as poisson.png"
    )
    args = parser.parse_args()
    if args.cells < 8 or args.every < 1 or not 1e-13 <= args.tolerance < 1:
        parser.error(
            "--cells must be at least 8, --every at least 1, and --tolerance between 1e-13 and 1"
        )

    with synk.fork(args.ranks, device=args.device) as world:
        solve(8, 1, 0.1)  # compiles
        found, norms, seconds = solve(args.cells, args.every, args.tolerance)
        where = f"{world.world_size} {world.device} rank{'' if world.world_size == 1 else 's'}"

    iterations = args.every * np.arange(norms.shape[1])
    root = 1 / math.tan(math.pi / (2 * args.cells))  # √κ
    factor = (root - 1) / (root + 1)
    bound = 2 * factor**iterations
    residual, error = norms[:, -1] / norms[:, 0]
    most = math.ceil(math.log(2 / error) / -math.log(factor))
    print(
        f"{args.cells} × {args.cells} cells on {where}: {iterations[-1]} "
        f"iterations in {seconds:.3f} s, ",
        end="",
    )
    print(f"{seconds / iterations[-1] * 1e6:.1f} µs each")
    print(f"relative norm of the residual {residual:.1e}, of the error {error:.1e}")
    print(f"the bound allows {most} iterations for this error")
    assert residual < args.tolerance, "the iterations do not converge"
    assert (norms[1] <= norms[1, 0] * np.maximum(MARGIN * bound, 1e-13)).all(), (
        "the error is above its bound"
    )
    assert iterations[-1] < most + args.every, "more iterations than the bound allows"
    difference = abs(found - problem(args.cells)[0]).max()
    print(f"largest difference from the closed form {difference:.1e}, of at most {found.max():.3f}")
    assert difference < 10 * args.tolerance * args.cells, "the solution is not the closed form"
    print("solution and number of iterations agree with theory")
    if args.picture:
        draw(found, iterations, norms, bound, args.picture)
        print(f"saved {args.picture}")


if __name__ == "__main__":
    main()
