"""Kernels and functions of variables: few, since each is compiled on every rank of every world."""

from numba import cuda

import synknumba as synk

# ---- kernels that write to the rank's own array; they have no rows, so their grid is given -------


@synk.parallel(block=4, grid=2)
@cuda.jit
def add_1d(v, amount):
    """Adds amount to v."""
    for i in range(cuda.grid(1), v.shape[0], cuda.gridsize(1)):
        v[i] += amount


@synk.parallel(block=4, grid=1)
def add_2d(v, amount):
    for i in range(cuda.grid(1), v.shape[0], cuda.gridsize(1)):
        for j in range(v.shape[1]):
            v[i, j] += amount


@synk.parallel(block=4, grid=1)
def add_3d(v, amount):
    for i in range(cuda.grid(1), v.shape[0], cuda.gridsize(1)):
        for j in range(v.shape[1]):
            for k in range(v.shape[2]):
                v[i, j, k] += amount


@synk.parallel(block=4, grid=1)
def negate_records(v):
    for i in range(cuda.grid(1), v.shape[0], cuda.gridsize(1)):
        v[i]["a"] = -v[i]["a"]
        v[i]["b"] = -v[i]["b"]


@synk.parallel(outputs={"out": synk.output("gather", like="x")})
@cuda.jit
def scaled(x, w, out):
    """x·w[0]: rows beside a variable."""
    i = cuda.grid(1)
    if i < x.shape[0]:
        out[i] = x[i] * w[0]


@synk.parallel(inout=("v",), rows=("v",))
def double_rows(v):
    """The rank's own rows, those that are selected."""
    i = cuda.grid(1)
    if i < v.shape[0]:
        v[i] *= 2


@synk.parallel(
    outputs={
        "total": synk.output("sum", shape=(), dtype="float64"),
        "mean": synk.output("mean", shape=(), dtype="float64"),
        "rows": synk.output("gather", like="v"),
        "each": synk.output(None, shape=(), dtype="float64"),
        "count": synk.output("sum", shape=(), dtype="int64"),
    },
    rows=("v",),
    block=1,
    grid=1,
)
def of_own_rows(v, total, mean, rows, each, count):
    """Every op over rows of a variable."""
    for i in range(v.shape[0]):
        total[0] += v[i]
        mean[0] += v[i] / v.shape[0]
        rows[i] = v[i]
        each[0] += v[i]
        count[0] += 1


@synk.parallel(
    outputs={
        "total": synk.output("sum", shape=(), dtype="float64"),
        "mean": synk.output("mean", shape=(), dtype="float64"),
        "rows": synk.output("gather", like="x"),
        "each": synk.output(None, shape=(), dtype="float64"),
    },
    broadcast=("c",),
    rows=("v",),
    block=1,
    grid=1,
)
def of_rows_and_own_rows(x, m, c, v, total, mean, rows, each):
    """Rows of an input, of a minibatch input and of a variable beside each other, and something
    that all have.
    """
    for i in range(x.shape[0]):
        value = x[i] * m[i] + c[0] * v[i]
        total[0] += value
        mean[0] += value / x.shape[0]
        rows[i] = value
        each[0] += value


# ---- Python functions ----------------------------------------------------------------------------


@synk.function
def add(v, amount):
    """Adds amount to v, of any shape."""
    v += amount


@synk.function(outputs=None)
def shape_of(v):
    return v.shape[0] if v.ndim else -1


@synk.function(outputs=None)
def total_of_own(v):
    return v.sum()


@synk.function
def add_to_tree(tree, amount):
    tree["w"] += amount
    for one in tree["rest"]:
        one[...] = one * amount


@synk.function(outputs={"sum": "sum", "mean": "mean", "rows": "gather", "each": None}, rows=("v",))
def python_of_own_rows(v):
    return {"sum": v.sum(0), "mean": v.mean(0), "rows": v, "each": v.sum(0)}


@synk.function(outputs=(None, None, "gather"), rows=("v",))
def lengths_of(x, v):
    """Rows of an input and of a variable, which may be of different number."""
    return x.shape[0], v.shape[0], v


@synk.function(
    outputs={"sum": "sum", "mean": "mean", "rows": "gather", "each": None},
    broadcast=("c",),
    rows=("v",),
)
def python_of_rows_and_own_rows(x, m, c, v):
    value = x * m + c[0] * v
    return {"sum": value.sum(), "mean": value.mean(), "rows": value, "each": value.sum()}


@synk.function(inout=("v",), rows=("v",))
def square_rows(v):
    v *= v
