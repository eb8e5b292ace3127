"""Fisher's equation by adaptive Runge–Kutta steps, whose lengths the ranks choose.

    python examples/runge_kutta.py --points 2000 --picture front.png

∂u/∂t = ∂²u/∂x² + u (1 − u), growth against diffusion, has a front that moves and keeps its form,
u = (1 + e^{(x − 5t/√6)/√6})⁻². The second derivative is (u_{i−1} − 2 u_i + u_{i+1})/Δx², with fixed
values at both ends of the line, which are far from the front. A step of length h is

    k₂ = f(u + h k₁/2),  k₃ = f(u + 3h k₂/4),  v = u + h (2 k₁ + 3 k₂ + 4 k₃)/9,  k₄ = f(v)

and e the root of the mean of (h (−5 k₁ + 6 k₂ + 8 k₃ − 9 k₄)/72)²/(ε (1 + max(|u|, |v|)))². If
e ≤ 1, v and k₄ are the next u and k₁, else the step is refused, and the next not longer than this.
The next has length h min(10, max(0.2, 0.9 e^{−1/3})): the steps find by themselves the limit up to
which diffusion leaves the method stable, 2.51 Δx²/4. Sources: M. Ablowitz and A. Zeppetella,
Bulletin of Mathematical Biology 41 (1979), the front; P. Bogacki and L. Shampine, Applied
Mathematics Letters 2 (1989), the method; SciPy's RK23, the lengths, which are the same here.
"""

import argparse

import numpy as np
from numba import cuda

import synknumba as synk

LENGTH, FRONT = 150.0, 50.0  # of the line; where the front begins
ROOT = np.sqrt(6)


def on_points(function):
    """Makes a kernel with a thread for each element of its first array."""
    return synk.parallel(grid="elements")(cuda.jit(function))


@on_points
def slope(k, u, inverse):
    """Computes k = f(u); `inverse` is 1/Δx²."""
    i = cuda.grid(1)
    if 0 < i < u.shape[0] - 1:
        k[i] = inverse * (u[i - 1] - 2 * u[i] + u[i + 1]) + u[i] * (1 - u[i])


@on_points
def advance(v, u, k1, k2, k3, a, b, c):
    """Computes v = u + a k₁ + b k₂ + c k₃."""
    i = cuda.grid(1)
    if 0 < i < u.shape[0] - 1:
        v[i] = u[i] + a * k1[i] + b * k2[i] + c * k3[i]


@synk.parallel(outputs={"squares": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def error(u, v, k1, k2, k3, k4, h, tolerance, squares):
    """Computes the sum of squares of which e is the root of the mean."""
    part = 0.0
    for i in range(cuda.grid(1) + 1, u.shape[0] - 1, cuda.gridsize(1)):
        difference = h * (-5 * k1[i] + 6 * k2[i] + 8 * k3[i] - 9 * k4[i]) / 72
        part += (difference / (tolerance + tolerance * max(abs(u[i]), abs(v[i])))) ** 2
    cuda.atomic.add(squares, 0, part)


@synk.parallel(grid="elements", outputs={"left": synk.output("min", shape=(), dtype="float64")})
@cuda.jit
def accept(u, v, k1, k4, accepted, rest, left):
    """Copies v to u and k₄ to k₁ if a step is accepted; returns `rest`."""
    i = cuda.grid(1)
    if accepted and 0 < i < u.shape[0] - 1:
        u[i] = v[i]
        k1[i] = k4[i]
    if i == 0:
        cuda.atomic.min(left, 0, rest)


@synk.sequence
def step(u, v, k1, k2, k3, k4, inverse, points, tolerance, rest, length, longer):
    """Makes a step, where `rest` is the time that is left, which it returns, and `longer` how many
    times as long the next may be.
    """
    h = np.minimum(length, rest)
    advance(v, u, k1, k2, k3, h / 2, 0.0, 0.0)
    synk.exchange(v)
    slope(k2, v, inverse)
    advance(v, u, k1, k2, k3, 0.0, 3 * h / 4, 0.0)
    synk.exchange(v)
    slope(k3, v, inverse)
    advance(v, u, k1, k2, k3, 2 * h / 9, h / 3, 4 * h / 9)
    synk.exchange(v)
    slope(k4, v, inverse)
    e = np.sqrt(error(u, v, k1, k2, k3, k4, h, tolerance) / points)
    accepted = np.minimum(1, 1 // e)  # 1 or 0
    left = rest - accepted * h
    synk.carry(rest, left)
    synk.carry(length, h * np.minimum(longer, np.maximum(0.2, 0.9 * e ** (-1 / 3))))
    synk.carry(longer, 1 + 9 * accepted)
    return accept(u, v, k1, k4, accepted, left)


def front(points: int, t: float) -> np.ndarray:
    """Returns the closed form."""
    x = np.linspace(0, LENGTH, points) - FRONT
    return (1 + np.exp((x - 5 * t / ROOT) / ROOT)) ** -2


def solve(points: int, end: float, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns u at the end, and the time that is left after each step, also after refused ones."""
    start, inverse = front(points, 0), ((points - 1) / LENGTH) ** 2
    u, v = (synk.scatter(synk.variable(start), halo=1) for _ in range(2))
    k1, *others = (synk.scatter(synk.variable(0 * start), halo=1) for _ in range(4))
    slope(k1, u, inverse)
    numbers = inverse, points, tolerance, end, 1e-3, 10.0
    options = {"times": 10**6, "every": 1, "until": lambda left: left <= 0}
    left = step(u, v, k1, *others, *numbers, **options)
    return synk.gather(u), left


def main() -> None:
    """Solves, and compares with the closed form."""
    parser = argparse.ArgumentParser(description="Fisher's equation by adaptive Runge–Kutta.")
    parser.add_argument("--points", type=int, default=601, help="of the line (default: 601)")
    parser.add_argument("--ranks", type=int, help="default: one per GPU, else one per CPU core")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--picture", metavar="FILE", help="of the lengths of the steps")
    args = parser.parse_args()
    if args.points < 151:
        parser.error("--points must be at least 151")
    end, tolerance = 20.0, 1e-5
    with synk.fork(args.ranks, device=args.device):
        u, left = solve(args.points, end, tolerance)
    lengths = -np.diff(left, prepend=end)
    spacing = LENGTH / (args.points - 1)
    taken = lengths[lengths > 0]
    print(f"{len(taken)} steps, and {len(lengths) - len(taken)} refused", end="; ")
    print(f"median length {np.median(taken):.2e}, stable up to {2.51 * spacing**2 / 4:.2e}")
    difference = abs(u - front(args.points, end)).max()
    print(f"largest difference from the closed form {difference:.1e}")
    assert left[-1] == 0, "the end has not been reached"
    assert difference < 0.06 * spacing**2 + 10 * tolerance, "the front is not the closed form's"
    print("the front agrees with the closed form")
    if args.picture:
        from matplotlib.figure import Figure

        figure = Figure(layout="constrained")
        axes = figure.subplots(subplot_kw={"xlabel": "t", "ylabel": "length of the step"})
        axes.semilogy(end - left[lengths > 0], taken, ".")
        figure.savefig(args.picture, dpi=150)
        print(f"saved {args.picture}")


if __name__ == "__main__":
    main()
