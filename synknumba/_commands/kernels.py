"""The kernels and functions that `doctor` runs and `bench` times. Imported by these alone, since
it imports numba.cuda.
"""

import math

import synknumba as synk
from synknumba.simt.internals import cuda_module

cuda = cuda_module()


@synk.parallel(
    outputs={
        "total": synk.output("sum", shape=(), dtype="int64"),
        "each": synk.output(None, shape=(), dtype="int64"),
    }
)
@cuda.jit
def count(x, total, each):
    """Adds up integers: of all rows, and of each rank."""
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(total, 0, x[i])
        cuda.atomic.add(each, 0, x[i])


def _few_blocks(rows):
    """Returns the number of blocks of threads that stride over rows: enough to fill the largest
    GPU.
    """
    return max(1, min(2048, -(-rows // 256)))


@synk.function
def nothing():
    """Does nothing: the time of a call."""


@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def energy(x, beta, total):
    """Adds up exp(−beta x²) over the rows."""
    acc = 0.0
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        acc += math.exp(-beta * x[i] * x[i])
    cuda.atomic.add(total, 0, acc)


@synk.function
def copy(x, y):
    """Copies rows, by NumPy or CuPy."""
    y[...] = x


@synk.parallel(
    outputs={"total": synk.output("sum", shape=(), dtype="float64")}, grid=_few_blocks, block=256
)
@cuda.jit
def integral(steps, width, total):
    """Adds up 4/(1 + x²) at the middles of the steps of [0, 1]: π by the midpoint rule, once
    divided by their number.
    """
    acc = 0.0
    for i in range(steps.start + cuda.grid(1), steps.stop, cuda.gridsize(1)):
        x = (i + 0.5) * width
        acc += 4.0 / (1.0 + x * x)
    cuda.atomic.add(total, 0, acc)


@synk.parallel
@cuda.jit
def scale(x, y, factor):
    """Writes factor · x to y: 16 bytes an element of float64."""
    i = cuda.grid(1)
    if i < y.shape[0]:
        y[i] = factor * x[i]


@synk.parallel(outputs={"first": synk.output("max", shape=(), dtype="float64")}, grid=1, block=1)
@cuda.jit
def look(x, first):
    """Reads one row, so that the time of a call is that of sending them all."""
    if x.shape[0] > 0:
        cuda.atomic.max(first, 0, x[0])
