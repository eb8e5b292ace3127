"""A light, soft ball that rises in a viscous fluid, by the accelerated pseudo-transient method.

    python examples/stokes.py --cells 64 --picture stokes.png

Flow so slow that inertia plays no part obeys Stokes' equations, with the edge of a cell as unit

    ∇·τ − ∇p + b = 0,  ∇·v = 0,  τ = μ (∇v + ∇vᵀ − ⅔ ∇·v)

The method adds inertia and compressibility that last until the flow is steady: for n cells along
an edge of the box, each iteration is

    p' = p − 3 μ ∇·v / 4n,  a' = (1 − 4/n) a + ∇·τ − ∇p' + b,  v' = v + a' / 12 μ

and their number grows with n, not n². Source: L. Räss, I. Utkin, T. Duretz, S. Omlin and Y.
Podladchikov, Geoscientific Model Development 15 (2022). Pressure, viscosity and buoyancy b are in
the middle of cells, velocities on their near faces; cells of viscosity 0 are walls, along which the
fluid slips. The ranks judge by what each fiftieth iteration changes whether it was the last.
"""

import argparse

import numpy as np
from numba import cuda

import synknumba as synk

X, Y, Z = (1, 0, 0), (0, 1, 0), (0, 0, 1)
THREADS, ROUNDS = 128, 50  # of a block, along z; iterations between judgements


@cuda.jit(device=True)
def at(i, d, distance):
    """Returns the place at a distance from another along an axis."""
    return i[0] + distance * d[0], i[1] + distance * d[1], i[2] + distance * d[2]


@cuda.jit(device=True)
def divergence(u, v, w, i, d, e, f):
    """Returns ∂u + ∂v + ∂w, along these axes, in a cell."""
    return u[at(i, d, 1)] - u[i] + v[at(i, e, 1)] - v[i] + w[at(i, f, 1)] - w[i]


@cuda.jit(device=True)
def shear(u, v, mu, i, d, e):
    """Returns the stress of u along d and v along e, at the edge at which four cells meet."""
    here, there, corner = at(i, d, -1), at(i, e, -1), at(at(i, d, -1), e, -1)
    is_free = mu[i] and mu[here] and mu[there] and mu[corner]
    mean = 0.25 * (mu[i] + mu[here] + mu[there] + mu[corner]) if is_free else 0.0
    return mean * (u[i] - u[there] + v[i] - v[here])


@cuda.jit(device=True)
def pull(p, u, v, w, mu, i, d, e, f, rigid):
    """Returns the stress along d in a cell, less its new pressure."""
    rate = divergence(u, v, w, i, d, e, f)
    return mu[i] * (2 * (u[at(i, d, 1)] - u[i]) + (rigid - 2 / 3) * rate) - p[i]


@cuda.jit(device=True)
def accelerate(p, u, v, w, a, b, mu, new, i, d, e, f, rigid, kept):
    """Advances the velocity u along d, on the near face of a cell; b is its buoyancy, or 0."""
    near = at(i, d, -1)
    if mu[i] and mu[near]:
        force = pull(p, u, v, w, mu, i, d, e, f, rigid)
        force -= pull(p, u, v, w, mu, near, d, e, f, rigid)
        force += shear(u, v, mu, at(i, e, 1), d, e) - shear(u, v, mu, i, d, e)
        force += shear(u, w, mu, at(i, f, 1), d, f) - shear(u, w, mu, i, d, f)
        a[i] = kept * a[i] + force + b
        new[i] = u[i] + a[i] / (6 * (mu[i] + mu[near]))


@synk.parallel(
    block=THREADS, grid=lambda shapes: (-(-shapes["p"][2] // THREADS), *shapes["p"][1::-1])
)
@cuda.jit
def relax(p, vx, vy, vz, new, new_x, new_y, new_z, ax, ay, az, mu, b):
    """Makes an iteration, one thread per cell; arrays are float64, shape (rows, n + 2, n + 2)."""
    z, y, x = cuda.grid(1), cuda.blockIdx.y, cuda.blockIdx.z
    n = p.shape[1] - 2
    if 0 < x < p.shape[0] - 1 and 0 < y < n + 1 and 0 < z < n + 1:
        i, buoyancy = (x, y, z), 0.5 * (b[x, y, z] + b[x, y, z - 1])
        rigid, kept = 0.75 / n, 1 - 4 / n
        new[i] = p[i] - rigid * mu[i] * divergence(vx, vy, vz, i, X, Y, Z)
        accelerate(p, vx, vy, vz, ax, 0.0, mu, new_x, i, X, Y, Z, rigid, kept)
        accelerate(p, vy, vz, vx, ay, 0.0, mu, new_y, i, Y, Z, X, rigid, kept)
        accelerate(p, vz, vx, vy, az, buoyancy, mu, new_z, i, Z, X, Y, rigid, kept)


@synk.function(outputs="max", record=True)
def change(p, new, vz, new_z):
    """Returns the largest change of pressure, or velocity, by an iteration."""
    return np.maximum(abs(new - p).max(), abs(new_z - vz).max())


@synk.sequence
def relax_twice(old, new, memory, mu, b):
    """Makes two iterations, the second of which leaves the fields where they were."""
    relax(*old, *new, *memory, mu, b)
    synk.exchange(new)
    relax(*new, *old, *memory, mu, b)
    synk.exchange(old)


@synk.sequence
def settle(old, new, memory, mu, b):
    """Makes ROUNDS iterations, and returns the largest change of the last one."""
    relax_twice(old, new, memory, mu, b, times=ROUNDS // 2)
    return change(old[0], new[0], old[3], new[3])


def ball(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns viscosity and buoyancy of a ball, shape (n + 2, n + 2, n + 2), walls included."""
    x = (np.arange(n + 2) - (n + 1) / 2) / n
    is_ball = x[:, None, None] ** 2 + x[:, None] ** 2 + x**2 < 0.01
    mu = np.pad(np.ones((n, n, n)), 1)
    mu[is_ball] = 0.1
    return mu, 1.0 * is_ball


def solve(mu: np.ndarray, b: np.ndarray, tolerance: float) -> tuple[list[np.ndarray], np.ndarray]:
    """Returns pressure and velocities, and the largest change of each ROUNDS-th iteration."""
    fields = [synk.scatter(synk.variable(start), halo=1) for start in (mu, b, *11 * [0 * mu])]
    options = {"times": 20 * len(mu), "every": 1, "until": lambda most: most < tolerance}
    changes = settle(fields[2:6], fields[6:10], fields[10:], *fields[:2], **options)
    return [synk.gather(field, nd_up=0) for field in fields[2:6]], changes


def main() -> None:
    """Solves, and checks that as much sinks through each plane as rises."""
    parser = argparse.ArgumentParser(description="A rising ball, by a pseudo-transient method.")
    parser.add_argument("--cells", type=int, default=32, help="along an edge (default: 32)")
    parser.add_argument("--ranks", type=int, help="default: one per GPU, else one per CPU core")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--picture", metavar="FILE", help="of the speed, in the middle of the box")
    args = parser.parse_args()
    with synk.fork(args.ranks, device=args.device):
        (_, vx, _, vz), changes = solve(*ball(args.cells), 1e-8)
    balance = abs(vz.sum((0, 1))).max() / abs(vz).sum((0, 1)).max()
    assert changes[-1] < 1e-8, "the flow does not become steady"
    assert balance < 1e-4, f"net flow through planes: {balance:.1e}"
    print(f"after {ROUNDS * len(changes)} iterations the flow is steady and conserves volume")
    if args.picture:
        from matplotlib import image

        speed = np.hypot(vx, vz)[:, args.cells // 2].T
        image.imsave(args.picture, speed, cmap="inferno", origin="lower")
        print(f"saved {args.picture}")


if __name__ == "__main__":
    main()
