"""Flow by the lattice Boltzmann method: vortices against their decay, and the wake of a sphere.

    python examples/lattice_boltzmann.py --size 256 --steps 60000 --picture sphere.png

A cell has populations f_q of fluid with 19 velocities c_q. In a step each moves to the next cell
and relaxes there, at a rate ω, to w_q ρ (1 + 3 c_q·u + 9/2 (c_q·u)² − 3/2 u²), ρ = Σ f_q and
ρu = Σ c_q f_q: the Navier-Stokes equations of viscosity (1/ω − 1/2)/3 (T. Krüger et al., 2017).

Ranks have planes of equal x. 10 populations pass between these: `moving` has two rows for a plane,
of 5 to each side, so its halo of one row is what neighbours send, while inner planes are computed.
A step moves 152 bytes a cell; streaming in place, as in FluidX3D, as many, in half the memory.
"""

import argparse

import numpy as np
from numba import cuda

import synknumba as synk

RIGHT = [(1, 0, 0), (1, 1, 0), (1, -1, 0), (1, 0, 1), (1, 0, -1)]
AXES = np.array([(0, 1, 0), (0, 0, 1), (0, 1, 1), (0, 1, -1)])
C = np.array([(0, 0, 0), *np.hstack([AXES, -AXES]).reshape(8, 3), *np.negative(RIGHT), *RIGHT])
W0, W1, W2 = np.float32([1 / 3, 1 / 18, 1 / 36])  # of c with 0, 1 and 2 components
W = np.array([W0, W1, W2])[abs(C).sum(1)]
ZERO, SIXTH, HALF, ONE, TWO, THREE = np.float32([0, 1 / 6, 1 / 2, 1, 2, 3])


@cuda.jit(device=True)
def relax(f, g, w, along, rho, common, even, odd):
    """Returns populations of opposite velocities after the collision; `along` is 3 c·u."""
    mean, half = HALF * (f + g), HALF * (f - g)
    mean += even * (w * (common + HALF * rho * along * along) - mean)
    half += odd * (w * rho * along - half)
    return mean + half, mean - half


@synk.parallel
@cuda.jit(fastmath=True)
def stream(f, moving, new, new_moving, first, apart, rank, viscosity, radius, speed):
    """Makes a step of planes, n threads a row; f, new: (planes, 9, n, n), moving: (2 planes + 2, 5,
    n, n). A sphere is around (n, n/2, n/2); at x = 0 fluid enters with a speed, if that is not 0.
    """
    even = odd = ONE / (THREE * np.float32(viscosity) + HALF)  # ω
    z, y, n = np.uint32(cuda.threadIdx.x), np.uint32(cuda.blockIdx.x), np.uint32(f.shape[3])
    x = np.uint32(first + apart * cuda.blockIdx.y)
    north, south = np.uint32(y + 1 if y + 1 < n else 0), np.uint32(y - 1 if y > 0 else n - 1)
    front, back = np.uint32(z + 1 if z + 1 < n else 0), np.uint32(z - 1 if z > 0 else n - 1)
    left, right, still = moving[np.uint32(2 * x)], moving[np.uint32(2 * x + 3)], f[x]
    rest, p0, m0 = still[0, y, z], left[0, y, z], right[0, y, z]
    p1, m1, p2, m2 = left[1, south, z], right[1, north, z], left[2, north, z], right[2, south, z]
    p3, m3, p4, m4 = left[3, y, back], right[3, y, front], left[4, y, front], right[4, y, back]
    p5, m5, p6, m6 = still[1, south, z], still[2, north, z], still[3, y, back], still[4, y, front]
    p7, m7 = still[5, south, back], still[6, north, front]
    p8, m8 = still[7, south, front], still[8, north, back]
    excess = rest + p0 + p1 + p2 + p3 + p4 + p5 + p6 + p7 + p8  # ρ − 1
    excess += m0 + m1 + m2 + m3 + m4 + m5 + m6 + m7 + m8
    rho = ONE + excess
    ux = THREE / rho * (p0 - m0 + p1 - m1 + p2 - m2 + p3 - m3 + p4 - m4)  # 3 u_x
    uy = THREE / rho * (p1 - m1 - p2 + m2 + p5 - m5 + p7 - m7 + p8 - m8)
    uz = THREE / rho * (p3 - m3 - p4 + m4 + p6 - m6 + p7 - m7 - p8 + m8)
    dx = np.float32(rank * f.shape[0] + x) - np.float32(n)
    dy, dz = np.float32(y) - HALF * np.float32(n), np.float32(z) - HALF * np.float32(n)
    if dx * dx + dy * dy + dz * dz < np.float32(radius * radius):  # in the sphere
        even, odd, ux, uy, uz = ZERO, TWO, ZERO, ZERO, ZERO
    if speed > 0 and rank == 0 and x == 0:
        even, odd, excess, rho = ONE, ONE, ZERO, ONE
        ux, uy, uz = THREE * np.float32(speed), ZERO, ZERO
    common = excess - SIXTH * rho * (ux * ux + uy * uy + uz * uz)
    left, right, still = new_moving[np.uint32(2 * x + 1)], new_moving[np.uint32(2 * x + 2)], new[x]
    right[0, y, z], left[0, y, z] = relax(p0, m0, W1, ux, rho, common, even, odd)
    right[1, y, z], left[1, y, z] = relax(p1, m1, W2, ux + uy, rho, common, even, odd)
    right[2, y, z], left[2, y, z] = relax(p2, m2, W2, ux - uy, rho, common, even, odd)
    right[3, y, z], left[3, y, z] = relax(p3, m3, W2, ux + uz, rho, common, even, odd)
    right[4, y, z], left[4, y, z] = relax(p4, m4, W2, ux - uz, rho, common, even, odd)
    still[0, y, z] = rest + even * (W0 * common - rest)
    still[1, y, z], still[2, y, z] = relax(p5, m5, W1, uy, rho, common, even, odd)
    still[3, y, z], still[4, y, z] = relax(p6, m6, W1, uz, rho, common, even, odd)
    still[5, y, z], still[6, y, z] = relax(p7, m7, W2, uy + uz, rho, common, even, odd)
    still[7, y, z], still[8, y, z] = relax(p8, m8, W2, uy - uz, rho, common, even, odd)


@synk.sequence
def step(f, moving, new, new_moving, viscosity, radius, speed):
    """Makes a time step."""
    planes, n, numbers = f.shape[0], f.shape[3], (synk.RANK, viscosity, radius, speed)
    edges, interior = stream[(n, 2), n], stream[(n, planes - 2), n]
    edges(f, moving, new, new_moving, 0, planes - 1, *numbers)
    synk.exchange(new_moving, during=lambda: interior(f, moving, new, new_moving, 1, 1, *numbers))
    synk.swap(f, new)
    synk.swap(moving, new_moving)


@synk.function(outputs="gather")
def velocity(f, moving):
    """Returns u_x and u_y in the plane z = n/2; float32, shape (planes, n, 2)."""
    cells = np.concatenate([f, moving[1:-1:2], moving[2:-1:2]], 1)[..., f.shape[3] // 2]
    flow = [sum(c[k] * cells[:, q] for q, c in enumerate(C.tolist())) for k in (0, 1)]
    return np.stack(flow, -1) / (1 + cells.sum(1))[..., None]


def place(u: np.ndarray) -> tuple[synk.Variable, ...]:
    """Returns the arrays of `step` for a velocity that is equal along z; shape (planes, n, 2)."""
    along = 3 * (u @ C[:, :2].T)
    part = W * (along + along**2 / 2 - 1.5 * (u * u).sum(-1, keepdims=True))
    cells = np.repeat(np.float32(part).swapaxes(1, 2)[..., None], u.shape[1], 3)
    sides = cells[:, 9:].reshape(-1, 5, *cells.shape[2:])
    f, new = (synk.scatter(synk.variable(cells[:, :9])) for _ in range(2))
    a, b = (synk.scatter(synk.variable(sides), halo=1, periodic=True) for _ in range(2))
    return f, a, new, b


def check_decay(planes: int, n: int) -> None:
    """Compares vortices, three along x, with those of Taylor and Green when they are halved."""
    k, m, viscosity = 6 * np.pi / planes, 2 * np.pi / n, n / 1600
    x, y = k * np.arange(planes)[:, None], m * np.arange(n)
    vortices = np.stack([np.cos(x) * np.sin(y), -k / m * np.sin(x) * np.cos(y)], -1)
    f, steps = place(0.02 * vortices), round(np.log(2) / (viscosity * (k * k + m * m)))
    step(*f, viscosity, 0.0, 0.0, times=steps)
    error = abs(velocity(*f[:2]) / 0.02 - vortices / 2).max()
    print(f"after {steps} steps vortices are halved, but for {error:.1e}")
    assert error < 4 / n**2 + 0.003, "the decay is not that of the Navier-Stokes equations"


def main() -> None:
    """Compares the decay of vortices with that of the equations, and draws the wake of a sphere."""
    parser = argparse.ArgumentParser(description="Flow by the lattice Boltzmann method.")
    parser.add_argument("--size", type=int, default=32, help="cells along y and z (default: 32)")
    parser.add_argument("--steps", type=int, default=600, help="around the sphere (default: 600)")
    parser.add_argument("--ranks", type=int, help="default: one per GPU, else one per CPU core")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--picture", metavar="FILE", help="of the wake")
    args = parser.parse_args()
    with synk.fork(args.ranks, device=args.device) as world:
        n, planes = args.size, max(3, -(-3 * args.size // world.world_size)) * world.world_size
        check_decay(planes, n)
        f = place(np.full((planes, n, 2), (0.1, 0.01)))  # not straight, so that the wake swings
        step(*f, 0.005, n / 8, 0.1, times=args.steps)
        ux, uy = velocity(*f[:2]).T
    if args.picture:
        from matplotlib import image

        vorticity = np.kron(np.gradient(uy, axis=1) - np.gradient(ux, axis=0), np.ones((4, 4)))
        image.imsave(args.picture, vorticity, cmap="RdBu", vmin=-0.06, vmax=0.06, origin="lower")
        print(f"saved {args.picture}")


if __name__ == "__main__":
    main()
