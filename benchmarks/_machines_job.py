"""What machines.py runs on all machines of a job, by `synknumba run`: calls and their parts.
Prints JSON.
"""

import dataclasses
import json
import sys

import numpy as np
from _common import time_calls
from numba import cuda

import synknumba as synk


@synk.parallel(grid=1, block=1)
@cuda.jit
def empty(number):
    """Does nothing."""


@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def weigh(x, factor, total):
    """Adds up factor · x."""
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(total, 0, factor * x[i])


@synk.function(outputs="max")
def touch(x):
    """Reads one number of the rows."""
    return x[0]


def main() -> None:
    """Measures; the arguments are the number of ranks, the seconds for each row, and the bytes
    of large arrays.
    """
    ranks, seconds, nbytes = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    few = synk.data(np.arange(1000.0))
    frozen = synk.data(np.arange(1000.0))
    frozen.freeze()
    many = synk.data(np.ones(nbytes // 8))
    found = {}
    with synk.fork(ranks, device="cpu"):
        found["empty call"] = time_calls(lambda: empty(1), seconds)
        found["kernel and sum, frozen rows"] = time_calls(lambda: weigh(frozen, 2.0), seconds)
        assert weigh(frozen, 2.0) == 999_000.0
        found["kernel and sum, 8 KB of rows"] = time_calls(lambda: weigh(few, 2.0), seconds)
        found["large rows"] = time_calls(lambda: touch(many), seconds, at_least=5)
        for name, count in (("all_reduce of 10^5", 10**5), ("large all_reduce", nbytes // 4)):
            variable = synk.variable(np.zeros(count, np.float32))
            found[name] = time_calls(
                lambda one=variable: synk.all_reduce(one, "sum"), seconds, at_least=5
            )
    print(json.dumps({name: dataclasses.asdict(timing) for name, timing in found.items()}))


if __name__ == "__main__":
    main()
