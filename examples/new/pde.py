"""The heat equation ∂u/∂t = ∂²u/∂x² on a rod of length 1 whose ends are kept at 0.

    python pde.py

Each rank has a part of the points, and a copy of one point of each neighbour, its halo. The ranks
repeat the time steps by themselves, and the script waits once.
"""

import numpy as np
from numba import cuda

import synknumba as synk

RATIO = 0.25  # of the time step to h², with the distance h of points; stable up to 1/2


@synk.parallel(grid="elements")  # a thread for each element of u
@cuda.jit
def advance(u, v, ratio):
    """Writes the next time step of u into v. u, v: float64, shape (points of a rank and halos,)."""
    i = cuda.grid(1)
    if 0 < i < u.shape[0] - 1:  # not the halos, nor the ends of the rod
        v[i] = u[i] + ratio * (u[i - 1] - 2.0 * u[i] + u[i + 1])


@synk.sequence
def step(u, v, ratio):
    """Advances u by one time step; v is memory for it."""
    synk.exchange(u)  # renews the halos
    advance(u, v, ratio)
    synk.swap(u, v)


def simulate(start, steps):
    """Returns u after so many steps. start: shape (points,), 0 at both ends."""
    u, v = (synk.scatter(synk.variable(start), halo=1) for _ in range(2))
    step(u, v, RATIO, times=steps)
    return synk.gather(u)


def main():
    """Runs on every GPU or, without one, on every core."""
    x = np.linspace(0.0, 1.0, 1001)
    with synk.fork():
        for steps in (0, 10_000, 100_000):
            u = simulate(x * (1 - x), steps)
            print(f"t = {steps * RATIO / 1000**2:.4f}   u(1/2) = {u[500]:.6f}")


if __name__ == "__main__":
    main()
