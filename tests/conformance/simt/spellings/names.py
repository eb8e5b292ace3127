"""Names: how kernels reach `numba.cuda`, and what they call its members."""

import math
import math as m

import numba
import numba as nb
import numba.cuda
import numba.cuda as nc
import numpy
import numpy as np
from numba import cuda, float32, int32, types
from numba import cuda as gpu

from tests.conformance.simt.spellings import entry
from tests.conformance.simt.spellings.entry import N, X, spelling, zeros


@spelling(simulator="the simulator replaces the name `cuda` only")
def whole_path(jit):
    @jit
    def kernel(x, out):
        i = numba.cuda.grid(1)
        if i < x.size:
            out[i] = x[i] + numba.cuda.blockDim.x

    kernel[4, 16](X, out := zeros())
    yield out, X + 16


@spelling
def module_alias(jit):
    @jit
    def kernel(x, out):
        i = nc.threadIdx.x + nc.blockIdx.x * nc.blockDim.x
        if i < len(x):
            out[i] = x[i] * 2

    kernel[4, 16](X, out := zeros())
    yield out, X * 2


@spelling
def member_alias(jit):
    @jit
    def kernel(x, out):
        i = gpu.grid(1)
        if i >= out.shape[0]:
            return
        out[i] = m.sqrt(m.fabs(x[i]))

    kernel[4, 16](X, out := zeros())
    yield out, np.sqrt(np.abs(X))


@spelling(simulator="the simulator replaces the name `cuda` only")
def member_of_the_package(jit):
    @jit
    def kernel(x, out):
        i = nb.cuda.grid(1)
        if i < nb.int64(x.size):
            out[i] = nb.float32(x[i])

    kernel[4, 16](X, out := zeros())
    yield out, X.astype(np.float32)


@spelling(simulator="the simulator replaces globals only")
def import_in_the_factory(jit):
    from numba import cuda as local

    @jit
    def kernel(out):
        i = local.grid(1)
        if i < out.size:
            out[i] = i

    kernel[4, 16](out := zeros())
    yield out, np.arange(N)


@spelling
def triple_in_a_variable(jit):
    @jit
    def kernel(out):
        tid, bid, size = cuda.threadIdx, cuda.blockIdx, cuda.blockDim
        i = bid.x * size.x + tid.x
        if i < out.size:
            out[i] = i

    kernel[4, 16](out := zeros())
    yield out, np.arange(N)


@spelling
def axes_in_variables(jit):
    @jit
    def kernel(out):
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        bx, by = cuda.blockIdx.x, cuda.blockIdx.y
        bw, bh = cuda.blockDim.x, cuda.blockDim.y
        row, col = ty + by * bh, tx + bx * bw
        if row < out.shape[0] and col < out.shape[1]:
            out[row, col] = row * 100 + col

    kernel[(3, 2), (4, 4)](out := np.zeros((7, 11)))
    yield out, np.arange(7)[:, None] * 100 + np.arange(11)


@spelling
def functions_in_variables(jit):
    @jit
    def kernel(x, out):
        barrier = cuda.syncthreads
        add = cuda.atomic.add
        where = cuda.grid
        i = where(1)
        if i < x.size:
            add(out, 0, x[i])
        barrier()

    kernel[4, 16](X, out := zeros(n=1))
    yield out, [X.sum()]


@spelling(simulator="the simulator has no cuda.shared outside kernels")
def arrays_through_aliases(jit):
    shared, local = cuda.shared, cuda.local

    @jit
    def kernel(x, out):
        tile = shared.array(16, float32)
        mine = local.array(2, types.float64)
        i = cuda.grid(1)
        tile[cuda.threadIdx.x] = 1
        cuda.syncthreads()
        if i < x.size:
            mine[0], mine[1] = x[i], tile[15 - cuda.threadIdx.x]
            out[i] = mine[0] + mine[1]

    kernel[4, 16](X, out := zeros())
    yield out, X + 1


@spelling
def atomics_through_a_variable(jit):
    @jit
    def kernel(x, out):
        atomic = cuda.atomic
        i = cuda.grid(1)
        if i < x.size:
            atomic.add(out, 0, x[i])
            atomic.max(out, 1, x[i])

    kernel[4, 16](X, out := zeros(n=2))
    yield out, [X.sum(), X.max()]


@spelling
def constants_of_modules(jit):
    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = x[i] * entry.SCALE + entry.OFFSETS[1] + entry.N

    kernel[4, 16](X, out := zeros())
    yield out, X * 2.5 + 2 + N


@spelling
def functions_of_modules(jit):
    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = (
                np.sin(x[i])
                + numpy.exp(x[i])
                + math.pi * np.pi
                + abs(np.float32(x[i]))
                + math.floor(x[i])
            )

    kernel[4, 16](X, out := zeros())
    yield out, np.sin(X) + np.exp(X) + np.pi**2 + np.abs(X.astype(np.float32)) + np.floor(X)


@spelling
def a_name_of_the_compiler(jit):
    """Variables called like functions and modules that the kernel does not use."""

    @jit
    def kernel(x, out, range_):
        int_, len_, min, max, sum = 1, 2, 3, 4, 5
        i = cuda.grid(1)
        if i < x.size:
            out[i] = min + max + sum + int_ + len_ + range_

    kernel[4, 16](X, out := zeros(), 6)
    yield out, np.full(N, 21)


@spelling
def names_with_underscores(jit):
    @jit
    def kernel(_x, __out, _):
        i__ = cuda.grid(1)
        _n = _x.size
        if i__ < _n:
            __out[i__] = _x[i__] + _

    kernel[4, 16](X, out := zeros(), 1)
    yield out, X + 1


@spelling
def names_with_suffixes(jit):
    """Names that end like those of generated code."""

    @jit
    def kernel(x__s, out__arg, n__u):
        i__b = cuda.grid(1)
        if i__b < n__u:
            tmp__h = x__s[i__b]
            out__arg[i__b] = tmp__h * 2

    kernel[4, 16](X, out := zeros(), N)
    yield out, X * 2


@spelling
def types_as_casts(jit):
    @jit
    def kernel(x, out):
        i = int32(cuda.grid(1))
        if i < x.size:
            v = types.float32(x[i])
            out[i] = (
                float32(v * v) + np.int32(x[i]) + int(x[i]) + float(i) + bool(i) + np.float64(1)
            )

    kernel[4, 16](X, out := zeros())
    x32, i = X.astype(np.float32), np.arange(N)
    yield out, (x32 * x32) + 2.0 * np.trunc(X) + i + (i > 0) + 1


G = 9.81


@spelling
def globals_and_closures(jit):
    shift = np.float32(0.5)

    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = x[i] * G + shift

    kernel[4, 16](X, out := zeros())
    yield out, X * G + 0.5


TABLE = np.arange(5.0) ** 2
MATRIX = np.arange(6, dtype=np.int32).reshape(2, 3)


@spelling
def global_arrays(jit):
    weights = np.array([1.0, 2.0])

    @jit
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = TABLE[i % 5] + MATRIX[i % 2, i % 3] + weights[i % 2]

    kernel[4, 16](out := zeros())
    i = np.arange(N)
    yield out, TABLE[i % 5] + MATRIX[i % 2, i % 3] + np.array([1.0, 2.0])[i % 2]


DIRECTIONS = ((0, 1), (1, 0), (0, -1), (-1, 0))


@spelling
def global_tuples_of_tuples(jit):
    @jit
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            for dx, dy in DIRECTIONS:
                out[i] += 10 * dx + dy + i

    kernel[4, 16](out := zeros())
    yield out, 4.0 * np.arange(N)
