"""Bratu's equation by Newton's iterations with conjugate gradients inside, until both converge.

    python examples/newton_krylov.py --cells 512 --picture bratu.png

−∇²u = λ e^u, a reaction that heats itself against diffusion, on a square of side 1 around 0. With
λ = 8β it has Liouville's solution u = −2 ln(1 + β (x² + y²)), whose values the boundary gets. With
n cells along each side, the five-point scheme A u = λ e^u/n² is solved by Newton's iterations

    F = λ e^u/n² − A u,  (A − λ e^u/n²) d = F,  u += d

and their matrix is positive definite, as λ e^u ≤ 8β is below 2π², the least eigenvalue of −∇².
Conjugate gradients find d from p = r = F:

    q = A p − λ e^u p/n²,  s = r·r / p·q,  d += s p,  r' = r − s q,  p = r' + (r'·r' / r·r) p

until ‖r‖² < min(0.01, ‖F‖²) ‖F‖²: few while u is far away, enough to square ‖F‖ near the solution.
Sources: M. Hestenes and E. Stiefel, Journal of Research of the National Bureau of Standards 49
(1952); S. Eisenstat and H. Walker, SIAM Journal on Scientific Computing 17 (1996), the tolerance.
"""

import argparse

import numpy as np
from numba import cuda

import synknumba as synk

BETA = 1.5
ROWS = 32  # that a thread adds up, so that a GPU has few atomic additions


def on_points(function):
    """Makes a kernel with a thread for each element of its first array."""
    return synk.parallel(grid="elements")(cuda.jit(function))


@on_points
def residual(r, p, d, u, reaction):
    """Computes r = p = F and d = 0; `reaction` is λ/n²."""
    j, i = cuda.grid(2)
    if 0 < i < u.shape[0] - 1 and 0 < j < u.shape[1] - 1:
        around = u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1]
        r[i, j] = reaction * np.exp(u[i, j]) + around - 4 * u[i, j]
        p[i, j] = r[i, j]
        d[i, j] = 0


@on_points
def apply(q, p, u, reaction):
    """Computes q = A p − λ e^u p/n²."""
    j, i = cuda.grid(2)
    if 0 < i < u.shape[0] - 1 and 0 < j < u.shape[1] - 1:
        around = p[i - 1, j] + p[i + 1, j] + p[i, j - 1] + p[i, j + 1]
        q[i, j] = (4 - reaction * np.exp(u[i, j])) * p[i, j] - around


@on_points
def combine(x, a, y, b):
    """Computes x = a x + b y."""
    j, i = cuda.grid(2)
    if 0 < i < x.shape[0] - 1 and 0 < j < x.shape[1] - 1:
        x[i, j] = a * x[i, j] + b * y[i, j]


@synk.parallel(
    block=128,
    grid=lambda rows, shapes: (-(-shapes["a"][1] // 128), -(-rows // ROWS)),
    outputs={"ab": synk.output("sum", shape=(), dtype="float64")},
)
@cuda.jit
def product(a, b, ab):
    """Computes a·b, with a thread per column and ROWS rows."""
    j = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    first = 1 + cuda.blockIdx.y * ROWS
    if j < a.shape[1]:
        part = 0.0
        for i in range(first, min(first + ROWS, a.shape[0] - 1)):
            part += a[i, j] * b[i, j]
        cuda.atomic.add(ab, 0, part)


@synk.sequence
def gradients(d, r, p, q, u, reaction, old):
    """Makes an iteration of conjugate gradients, and returns ‖r'‖²; `old` is ‖r‖²."""
    synk.exchange(p)
    apply(q, p, u, reaction)
    step = old / product(p, q)
    combine(d, 1.0, p, step)
    combine(r, 1.0, q, -step)
    rest = product(r, r)
    combine(p, rest / old, r, 1.0)
    synk.carry(old, rest)
    return rest


@synk.sequence
def newton(u, d, r, p, q, reaction, most):
    """Makes one of Newton's iterations, and returns ‖F‖² before it."""
    synk.exchange(u)
    residual(r, p, d, u, reaction)
    norm = product(r, r)
    goal = norm * np.minimum(0.01, norm)
    gradients(d, r, p, q, u, reaction, norm, times=most, until=lambda rest: rest < goal)
    combine(u, 1.0, d, 1.0)
    return norm


def solution(cells: int) -> np.ndarray:
    """Returns the closed form on the points of the grid, shape (n + 1, n + 1)."""
    x = np.arange(cells + 1) / cells - 0.5
    return -2 * np.log1p(BETA * (x[:, None] ** 2 + x**2))


def solve(cells: int, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns u, and ‖F‖² before each of Newton's iterations until it is below a tolerance."""
    start = solution(cells)
    start[1:-1, 1:-1] = 0
    u, *others = (synk.scatter(synk.variable(x), halo=1) for x in (start, *4 * [0 * start]))
    options = {"times": 50, "every": 1, "until": lambda norm: norm < tolerance}
    norms = newton(u, *others, 8 * BETA / cells**2, 10 * cells, **options)
    return synk.gather(u), norms


def main() -> None:
    """Solves, and compares with the closed form."""
    parser = argparse.ArgumentParser(description="Bratu's equation by a Newton–Krylov method.")
    parser.add_argument("--cells", type=int, default=128, help="along each side (default: 128)")
    parser.add_argument("--ranks", type=int, help="default: one per GPU, else one per CPU core")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--picture", metavar="FILE", help="of u")
    args = parser.parse_args()
    with synk.fork(args.ranks, device=args.device):
        u, norms = solve(args.cells, 1e-22)
    print("‖F‖ before each of Newton's iterations:", *(f"{norm:.1e}" for norm in np.sqrt(norms)))
    error = abs(u - solution(args.cells)).max()
    print(f"largest difference from the closed form: {error:.1e}, {error * args.cells**2:.2f}/n²")
    assert norms[-1] < 1e-22, "Newton's iterations do not converge"
    assert error < 1 / args.cells**2, "the solution is not Liouville's"
    print("the solution agrees with the closed form")
    if args.picture:
        from matplotlib import image

        image.imsave(args.picture, u, cmap="inferno", origin="lower")
        print(f"saved {args.picture}")


if __name__ == "__main__":
    main()
