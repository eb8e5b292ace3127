"""What call_overhead.py runs under mpiexec: the rounds of mpi4py that correspond to a call. Prints
JSON on the root.

The root takes part in every round, as a worker or in place of the script.
"""

import dataclasses
import json
import sys
from collections.abc import Callable

import numpy as np
from _common import Timing, summarise
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
COMMAND, RESULT, TOTAL = np.zeros(1), np.ones(1), np.zeros(1)


def barrier() -> None:
    WORLD.Barrier()


def bcast_gather() -> None:
    """Python objects: a command to everybody, an answer from everybody."""
    WORLD.bcast(7, 0)
    WORLD.gather(1.0, 0)


def bcast_reduce() -> None:
    """The same with arrays, which are not pickled."""
    WORLD.Bcast(COMMAND, 0)
    WORLD.Reduce(RESULT, TOTAL, MPI.SUM, 0)


def time_rounds(call: Callable[[], None], seconds: float) -> Timing:
    """As `time_calls`, but everybody must make the same number of rounds."""
    estimate = time_calls_fixed(call, 50)
    rounds = int(WORLD.bcast(max(20, seconds * 1e6 / estimate.median), 0))
    return time_calls_fixed(call, rounds)


def time_calls_fixed(call: Callable[[], None], rounds: int) -> Timing:
    times = []
    for _ in range(rounds):
        start = MPI.Wtime()
        call()
        times.append(int((MPI.Wtime() - start) * 1e9))
    return summarise(times)


def main() -> None:
    seconds = float(sys.argv[1])
    results = {
        call.__name__: time_rounds(call, seconds) for call in (barrier, bcast_gather, bcast_reduce)
    }
    if WORLD.rank == 0:
        print(json.dumps({name: dataclasses.asdict(timing) for name, timing in results.items()}))


main()
