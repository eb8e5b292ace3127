"""What machines.py runs under mpiexec: messages of mpi4py that correspond to a call and its
parts. Prints JSON on the root.
"""

import dataclasses
import json
import mmap
import os
import sys
from collections.abc import Callable

import numpy as np
from _common import summarise
from mpi4py import MPI

WORLD = MPI.COMM_WORLD


def timed(call: Callable[[], object], seconds: float, at_least: int = 5) -> dict[str, float]:
    """Times rounds of a collective, of which all processes make as many."""

    def some(rounds: int) -> list[int]:
        times = []
        for _ in range(rounds):
            WORLD.Barrier()
            start = MPI.Wtime()
            call()
            times.append(int((MPI.Wtime() - start) * 1e9))
        return times

    estimate = sorted(some(at_least))[at_least // 2]
    return dataclasses.asdict(
        summarise(some(int(WORLD.bcast(max(at_least, min(20_000, seconds * 1e9 / estimate)), 0))))
    )


def shared(count: int, dtype: type) -> np.ndarray:
    """An array of ones in memory that processes could share, as `Data` is: its pages are small,
    unlike those of NumPy's.
    """
    nbytes = count * np.dtype(dtype).itemsize
    fd = os.memfd_create("rows")
    os.ftruncate(fd, nbytes)
    array = np.frombuffer(mmap.mmap(fd, nbytes), dtype)
    os.close(fd)
    array[:] = 1
    return array


def main() -> None:
    """Measures; the arguments are the seconds for each row, and the bytes of large arrays."""
    seconds, nbytes = float(sys.argv[1]), int(sys.argv[2])
    command, answer = np.zeros(8), np.zeros((WORLD.size, 1))

    def bcast_gather() -> None:
        WORLD.Bcast(command, 0)
        WORLD.Gather(command[:1], answer if WORLD.rank == 0 else None, 0)

    each = nbytes // 8 // WORLD.size
    count = each * WORLD.size if WORLD.rank == 0 else each

    def scatter(rows: np.ndarray) -> None:
        if WORLD.rank == 0:
            WORLD.Scatter(rows, MPI.IN_PLACE, 0)
        else:
            WORLD.Scatter(None, rows, 0)

    def all_reduce(array: np.ndarray) -> None:
        WORLD.Allreduce(MPI.IN_PLACE, array)

    found = {
        "bcast and gather": timed(bcast_gather, seconds),
    }
    for suffix, made in (("", shared), (", not shared", np.ones)):
        rows, small, large = (
            made(count, np.float64),
            made(10**5, np.float32),
            made(nbytes // 4, np.float32),
        )
        found["large rows" + suffix] = timed(lambda rows=rows: scatter(rows), seconds)
        found["all_reduce of 10^5" + suffix] = timed(lambda small=small: all_reduce(small), seconds)
        found["large all_reduce" + suffix] = timed(lambda large=large: all_reduce(large), seconds)
    if WORLD.rank == 0:
        print(json.dumps(found))


main()
