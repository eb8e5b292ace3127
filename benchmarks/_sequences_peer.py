"""What sequences.py runs under mpiexec: the same iterations by compiled functions and mpi4py. Prints JSON on the root."""

import dataclasses
import json
import sys
from collections.abc import Callable

import numpy as np
from _common import Timing, summarise
from mpi4py import MPI
from numba import njit

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
    timing = summarise(taken[1:])  # the first compiles
    return Timing(timing.median / times, timing.p99 / times, timing.minimum / times, timing.calls)


def main() -> None:
    seconds, count, times = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    x, t, whole = np.zeros(count), np.zeros(1), np.zeros(1)

    def step() -> None:
        halve(x)
        WORLD.Allreduce(MPI.IN_PLACE, x)
        np.divide(x, WORLD.size, out=x)
        total(x, t)
        WORLD.Allreduce(t, whole)

    rows = {"empty kernel": lambda: empty(x), "kernel, all_reduce, kernel, sum": step}
    results = {what: time_iterations(iterate, times, seconds) for what, iterate in rows.items()}
    if WORLD.rank == 0:
        print(json.dumps({what: dataclasses.asdict(timing) for what, timing in results.items()}))


main()
