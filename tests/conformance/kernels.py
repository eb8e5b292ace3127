"""The kernels and functions of the suite: few, since each is compiled on every rank of every
world.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import cuda

import synknumba as synk

# ---- kernels -------------------------------------------------------------------------------------


@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def energy(x, beta, total):
    """Σ exp(−β x²), in a grid-stride loop."""
    acc = 0.0
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        acc += math.exp(-beta * x[i] * x[i])
    cuda.atomic.add(total, 0, acc)


@synk.parallel(grid=1, block=1, outputs={"d": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def dot(a, b, d):
    for i in range(a.shape[0]):
        d[0] += a[i] * b[i]


@synk.parallel(outputs={"total": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit
def add_up(x, total):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(total, 0, x[i])


@synk.parallel(
    outputs={
        "total": synk.output("sum", shape=(), like="x"),
        "product": synk.output("prod", shape=(), like="x"),
        "low": synk.output("min", shape=(), like="x"),
        "high": synk.output("max", shape=(), like="x"),
        "mean": synk.output("mean", shape=()),
        "rows": synk.output("gather", like="x"),
        "each": synk.output(None, shape=(), like="x"),
    },
    block=1,
    grid=1,
)
def reductions(x, total, product, low, high, mean, rows, each):
    """Every op at once, by one thread, so that it is defined for every dtype without atomics."""
    for i in range(x.shape[0]):
        total[0] += x[i]
        product[0] *= x[i]
        low[0] = min(low[0], x[i])
        high[0] = max(high[0], x[i])
        # numba-cuda-mlir 0.6 does not convert lengths to complex numbers
        mean[0] += x[i] / float(x.shape[0])
        rows[i] = x[i]
        each[0] += x[i]


@synk.parallel(outputs={"out": synk.output("gather", like="x")})
@cuda.jit
def axpy(a, x, y, out):
    """A·x + y, its parameters and its output out of the usual order of x first."""
    i = cuda.grid(1)
    if i >= x.shape[0]:
        return
    out[i] = a * x[i] + y[i]


@synk.parallel(
    outputs={
        "low": synk.output("min", shape=(), dtype="float64"),
        "sums": synk.output("sum", shape=2, dtype="float64"),
        "out": synk.output("gather", like="x"),
        "means": synk.output("mean", shape=(2,), dtype="float64"),
    }
)
@cuda.jit
def mixed(x, y, low, sums, out, means):
    """Four outputs of different ops and shapes."""
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.min(low, 0, x[i])
        cuda.atomic.add(sums, 0, x[i])
        cuda.atomic.add(sums, 1, y[i])
        out[i] = x[i] * y[i]
        cuda.atomic.add(means, 0, x[i] / x.shape[0])
        cuda.atomic.add(means, 1, y[i] / x.shape[0])


@synk.parallel(inout=("x",))
@cuda.jit
def add_rows(x, by):
    i = cuda.grid(1)
    if i < x.shape[0]:
        x[i] += by


@synk.parallel(inout=("y",))
@cuda.jit
def scale(y, factor):
    """Y ← factor·y."""
    i = cuda.grid(1)
    if i < y.shape[0]:
        y[i] *= factor


@synk.parallel(
    outputs={
        "table": synk.output(
            "sum", shape=lambda given: (given["k"], given["x"].shape[0]), dtype="float64"
        )
    },
    grid=2,
)
def multiples(x, k, start, table):
    """table[j, start + i] = (j + 1)·x[i]: each rank fills its own columns."""
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        for j in range(k):
            table[j, start + i] = (j + 1) * x[i]


@synk.parallel(outputs={"mean": synk.output("mean", like="y")}, broadcast=("y",), block=32, grid=1)
def weighted_mean(x, y, mean):
    """Mean over rows of x·y: chapter 2 of the Synkhronos manual. One thread a column."""
    j = cuda.grid(1)
    if j < x.shape[1]:
        acc = 0.0
        for i in range(x.shape[0]):
            acc += x[i, j] * y[j]
        mean[j] = acc / x.shape[0]


@synk.parallel(
    outputs={
        "squares": synk.output("sum", shape=(), dtype="int64"),
        "spans": synk.output(None, shape=(2,), dtype="int64"),
        "filled": synk.output(None, shape=(3,), dtype="int64"),
        "weights": synk.output(None, shape=(), dtype="float64"),
    },
    block=32,
    grid=1,
)
def indices(span, rank, world_size, offset, weight, squares, spans, filled, weights):
    """What an index range and the constants of a rank are."""
    for i in range(span.start + cuda.grid(1), span.stop, cuda.gridsize(1)):
        cuda.atomic.add(squares, 0, i * i)
    if cuda.grid(1) == 0:
        spans[0] = span.start
        spans[1] = span.stop
        filled[0] = rank
        filled[1] = world_size
        filled[2] = offset
        weights[0] = weight


@synk.parallel(outputs={"out": synk.output(None, shape=(), dtype="complex128")}, block=1, grid=1)
def squared(number, out):
    """number², in the arithmetic of its own type."""
    if cuda.grid(1) == 0:
        out[0] = number * number


@synk.parallel(
    outputs={"threads": synk.output("sum", shape=(), dtype="int64")},
    block=(4, 2, 2),
    grid=(3, 2, 1),
)
def count_threads(threads):
    """Counts the threads of a grid that no array gives."""
    x, y, z = cuda.grid(3)
    if x < 12 and y < 4 and z < 2:
        cuda.atomic.add(threads, 0, 1)


@synk.parallel(
    outputs={"out": synk.output("gather", shape=(3, 2), dtype="float64")},
    block=(8, 4, 2),
    grid=lambda rows: (-(-rows // 8), 1, 1),
)
@cuda.jit
def volume(x, out):
    """A 3-D grid, whose size is a function of the rows."""
    i, j, k = cuda.grid(3)
    if i < x.shape[0] and j < x.shape[1] and k < x.shape[2]:
        out[i, j, k] = 2.0 * x[i, j, k]


@synk.parallel(
    outputs={"out": synk.output("gather", shape=lambda given: given["x"].shape[1:], like="x")},
    block=(8, 8),
    grid=lambda rows: (-(-rows // 8), 1),
)
def plane(x, out):
    """A 2-D grid spelled out of threadIdx, blockIdx and blockDim."""
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    j = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    if i < x.shape[0] and j < x.shape[1]:
        out[i, j] = x[i, j] + 10 * j


@cuda.jit(device=True)
def horner(x, a, b):
    return a * x + b


def make_polynomial(slope):
    """A kernel that closes over a number and calls a device function."""

    @synk.parallel(outputs={"out": synk.output("gather", like="x")})
    @cuda.jit
    def polynomial(x, out):
        i = cuda.grid(1)
        if i < x.shape[0]:
            out[i] = horner(x[i], slope, 1.0)

    return polynomial


# "given" is bound by the decorator, so that callers do not pass it.
@synk.parallel(outputs={"out": synk.output("gather", like="x")}, givens={"factor": 3.0})
def tripled(x, factor, out):
    i = cuda.grid(1)
    if i < x.shape[0]:
        out[i] = factor * x[i]


RECORD = np.dtype([("a", "i4"), ("b", "f8")], align=True)  # CUDA reads aligned fields only


@synk.parallel(outputs={"out": synk.output("gather", like="x")})
def swap_signs(x, out):
    """Rows of a structured dtype in and out."""
    i = cuda.grid(1)
    if i < x.shape[0]:
        out[i]["a"] = -x[i]["a"]
        out[i]["b"] = -x[i]["b"]


@synk.parallel(
    outputs={
        "every": synk.output("min", shape=(), dtype="bool"),
        "some": synk.output("max", shape=(), dtype="bool"),
    },
    block=1,
    grid=1,
)
def all_any(x, every, some):
    for i in range(x.shape[0]):
        every[0] = every[0] and x[i] > 0
        some[0] = some[0] or x[i] > 0


@synk.parallel(
    outputs={
        "total": synk.output("sum", shape=(), like="x"),
        "product": synk.output("prod", shape=(), like="x"),
        "mean": synk.output("mean", shape=(), like="x"),
        "rows": synk.output("gather", like="x"),
    },
    block=1,
    grid=1,
    name="sums of z",
)
def complex_sums(x, unit, total, product, mean, rows):
    """The ops that complex numbers have; `unit` is 0-d."""
    for i in range(x.shape[0]):
        total[0] += x[i]
        product[0] *= x[i]
        mean[0] += x[i] / x.shape[0]
        rows[i] = x[i] * unit[()]


@synk.parallel(
    outputs={
        "low": synk.output("min", shape=(), dtype="float64"),
        "high": synk.output("max", shape=(), dtype="float64"),
        "many": synk.output("sum", shape=lambda given: (given["x"].shape[1],), dtype="float64"),
    },
    block=64,
    grid=1,
)
def column_sums(x, low, high, many):
    """A large reduced output: one number a column; and extremes by the way, where NaN must win."""
    for j in range(cuda.grid(1), x.shape[1], cuda.gridsize(1)):
        for i in range(x.shape[0]):
            many[j] += x[i, j]
    if cuda.grid(1) == 0:
        for i in range(x.shape[0]):
            if x[i, 0] != x[i, 0] or x[i, 0] < low[0]:
                low[0] = x[i, 0]
            if x[i, 0] != x[i, 0] or x[i, 0] > high[0]:
                high[0] = x[i, 0]


@synk.parallel(outputs={"first": synk.output("sum", shape=(), dtype="float64")})
@cuda.jit(debug=True, opt=False)  # without debug=True a GPU drops exceptions
def refuses_negative(x, first):
    i = cuda.grid(1)
    if i < x.shape[0]:
        if x[i] < 0:
            raise ValueError("negative")
        cuda.atomic.add(first, 0, x[i])


# ---- Python functions ----------------------------------------------------------------------------


class Moments(NamedTuple):
    """A named tuple of the user's."""

    total: object
    square: object


@synk.function(outputs="sum")
def total_of(x):
    return x.sum(0)


@synk.function(outputs="prod")
def product_of(x):
    return x.prod(0)


@synk.function(outputs="min")
def low_of(x):
    return x.min(0)


@synk.function(outputs="max")
def high_of(x):
    return x.max(0)


@synk.function(outputs="mean")
def mean_of(x):
    return x.mean(0)


@synk.function(outputs="gather")
def rows_of(x):
    return x


@synk.function(outputs=None)
def count_of(x):
    return x.shape[0]


BY_OP = {
    "sum": total_of,
    "prod": product_of,
    "min": low_of,
    "max": high_of,
    "mean": mean_of,
    "gather": rows_of,
    None: count_of,
}


@synk.function(
    outputs={
        "sum": "sum",
        "rows": "gather",
        "pair": ("min", "max"),
        "count": None,
        "moments": "sum",
        "nothing": None,
    },
    broadcast=("w",),
)
def nested(tree, w, power=1):
    """Nested arguments, nested results."""
    a, b = tree["a"] * w, tree["b"][0]
    return {
        "sum": (a**power).sum(0),
        "rows": [b * 2, (b + 1,)],
        "pair": (a.min(), a.max()),
        "count": b.shape[0],
        "moments": Moments(a.sum(), (a * a).sum()),
        "nothing": None,
    }


@synk.function(outputs=("sum", "max", "gather"))
def three(x):
    return x.sum(0), x.max(0), x * 2


@synk.function(outputs={"total": "sum", "high": "max", "rows": "gather"})
def three_named(x):
    return {"total": x.sum(0), "high": x.max(0), "rows": x * 2}


@synk.function(outputs=None)
def type_of(value):
    """The type in which an argument arrives, as text."""
    return type(value).__name__


@synk.function(outputs=None)
def value_of(value):
    return value


@synk.function(outputs="gather")
def positives(x):
    """Results whose number of rows depends on the data."""
    return x[x > 0]


@synk.function(outputs="gather")
def repeated(x, times):
    """Results of a width that changes from call to call."""
    return x[:, None] * (x[:1] * 0 + 1).repeat(times)[None, :]


@synk.function(inout=("y",))
def add_to(y, x):
    y += x


@synk.function(outputs="gather")
def paired(x, m):
    """A data row beside its minibatch row."""
    return x * 1000 + m


@synk.function(outputs=("gather", None, None, None, None))
def constants(span, rank, world_size, offset, own):
    return np.arange(span.start, span.stop), rank, world_size, offset, own
