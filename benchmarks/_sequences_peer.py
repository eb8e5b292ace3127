"""What sequences.py runs under mpiexec: the same iterations by compiled functions and mpi4py.
Prints JSON on the root.
"""

import sys
from collections.abc import Callable, Iterator

import numpy as np
from _common import Timing, print_timing, summarise
from mpi4py import MPI
from numba import njit
from sequences import COUNT, TIMES, per_iteration, relaxed, start_of, steps_of

WORLD = MPI.COMM_WORLD


@njit
def empty(x):
    pass


@njit
def halve(x):
    for i in range(x.shape[0]):
        x[i] = 0.5 * x[i] + 1.0


@njit
def total(x, t):
    t[0] = 0.0
    for i in range(x.shape[0]):
        t[0] += x[i]


@njit
def relax(u, v):
    for i in range(1, u.shape[0] - 1):
        for j in range(1, u.shape[1] - 1):
            v[i, j] = 0.25 * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1])


def time_iterations(iterate: Callable[[], None], times: int, seconds: float) -> Timing:
    """Times of one iteration, of `times` in a row; everybody makes the same number of them."""
    taken: list[int] = []
    while True:
        WORLD.Barrier()
        start = MPI.Wtime()
        for _ in range(times):
            iterate()
        taken.append(int((MPI.Wtime() - start) * 1e9))
        if WORLD.bcast(len(taken) > 3 and sum(taken) > seconds * 1e9, 0):
            break
    return per_iteration(summarise(taken[1:]), times)  # the first compiles


class Jacobi:
    """This rank's rows of n × n points, and one of each neighbour."""

    def __init__(self, side: int) -> None:
        edges = [rank * side // WORLD.size for rank in range(WORLD.size + 1)]
        self.begin, self.end = edges[WORLD.rank], edges[WORLD.rank + 1]
        self.above = WORLD.rank - 1 if WORLD.rank > 0 else MPI.PROC_NULL
        self.below = WORLD.rank + 1 if WORLD.rank < WORLD.size - 1 else MPI.PROC_NULL
        # Rows that no neighbour has are not there, so that the first and the last row of the whole
        # are edges.
        first = self.begin - (self.above != MPI.PROC_NULL)
        last = self.end + (self.below != MPI.PROC_NULL)
        self.u = start_of(side)[first:last].copy()
        self.v = self.u.copy()

    def step(self) -> None:
        u = self.u
        WORLD.Sendrecv(
            u[1],
            self.above,
            recvbuf=u[-1] if self.below != MPI.PROC_NULL else None,
            source=self.below,
        )
        WORLD.Sendrecv(
            u[-2],
            self.below,
            recvbuf=u[0] if self.above != MPI.PROC_NULL else None,
            source=self.above,
        )
        relax(u, self.v)
        self.u, self.v = self.v, u

    def own(self) -> np.ndarray:
        """The rank's rows, without those of neighbours."""
        above = int(self.above != MPI.PROC_NULL)
        return self.u[above : above + self.end - self.begin]


def lattices(seconds: float, sides: list[int]) -> Iterator[tuple[str, Timing]]:
    for side in sides:
        problem = Jacobi(side)
        for _ in range(10):
            problem.step()
        assert np.allclose(
            problem.own(), relaxed(start_of(side), 10)[problem.begin : problem.end], rtol=1e-12
        )
        yield f"Jacobi {side}²", time_iterations(problem.step, steps_of(side), seconds)


def main() -> None:
    seconds, sides = float(sys.argv[2]), [int(one) for one in sys.argv[3:]]
    x, t, whole = np.zeros(COUNT), np.zeros(1), np.zeros(1)

    def step() -> None:
        halve(x)
        WORLD.Allreduce(MPI.IN_PLACE, x)
        np.divide(x, WORLD.size, out=x)
        total(x, t)
        WORLD.Allreduce(t, whole)

    rows = {"empty kernel": lambda: empty(x), "kernel, all_reduce, kernel, sum": step}
    results = {what: time_iterations(iterate, TIMES, seconds) for what, iterate in rows.items()}
    results |= dict(lattices(seconds, sides))
    if WORLD.rank == 0:
        for what, timing in results.items():
            print_timing("", what, timing)


main()
