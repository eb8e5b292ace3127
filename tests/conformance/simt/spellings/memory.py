"""Shared, local and constant arrays: shapes and dtypes in all their spellings."""

import numpy as np
from numba import complex64, cuda, float32, float64, int16, int32, types, uint8
from numba.np.numpy_support import from_dtype

from tests.conformance.simt.spellings.entry import N, X, spelling, zeros

TPB = 16
SHAPE = (4, 4)
DTYPE = np.float64
HALF = TPB // 2


@spelling
def shared_dtypes(jit):
    for dtype in (
        float64,
        types.float64,
        np.float64,
        np.dtype("f8"),
        np.dtype(np.float64),
        "float64",
        types.double,
        float,
    ):

        @jit
        def kernel(x, out):
            tile = cuda.shared.array(16, dtype)
            t, i = cuda.threadIdx.x, cuda.grid(1)
            if i < x.size:
                tile[t] = x[i]
            cuda.syncthreads()
            if i < x.size:
                out[i] = tile[t // 2]

        kernel[4, 16](X, out := zeros())
        yield out, X[np.arange(N) // 16 * 16 + np.arange(N) % 16 // 2]


@spelling
def dtypes_of_arguments(jit):
    @jit
    def kernel(x, out):
        tile = cuda.shared.array(TPB, x.dtype)
        mine = cuda.local.array(1, out.dtype)
        i = cuda.grid(1)
        if i < x.size:
            tile[cuda.threadIdx.x] = x[i]
            mine[0] = tile[cuda.threadIdx.x]
            out[i] = mine[0]

    kernel[4, 16](X.astype(np.float32), out := zeros())
    yield out, X.astype(np.float32)


@spelling
def shared_shapes(jit):
    n = 16
    block = (4, 4)
    number = np.int64(16)

    @jit
    def kernel(out):
        a = cuda.shared.array(n, float32)
        b = cuda.shared.array(shape=(TPB,), dtype=float32)
        c = cuda.shared.array((4, TPB // 4), float32)
        d = cuda.shared.array(SHAPE, dtype=DTYPE)
        e = cuda.shared.array(block, "int32")
        f = cuda.shared.array(shape=(n + 1, 2 * HALF), dtype="f4")
        g = cuda.shared.array(number, uint8)
        size: int = 4
        h = cuda.shared.array((size, size), int16)
        k = cuda.shared.array(TPB * 2 + 1, float64)
        t = cuda.threadIdx.x
        row, col = t // 4, t % 4
        a[t] = b[t] = c[row, col] = d[row, col] = e[row, col] = f[t, t] = g[t] = h[row][col] = k[
            2 * t
        ] = t
        cuda.syncthreads()
        s = 15 - t
        row, col = s // 4, s % 4
        out[t] = (
            a[s]
            + b[s]
            + c[row, col]
            + d[row, col]
            + e[row, col]
            + f[s, s]
            + g[s]
            + h[row, col]
            + k[2 * s]
        )

    kernel[1, 16](out := zeros(n=16))
    yield out, 9.0 * np.arange(16)[::-1]


@spelling
def local_shapes(jit):
    @jit
    def kernel(x, out):
        a = cuda.local.array(3, float64)
        b = cuda.local.array((2, 2), dtype=np.float32)
        c = cuda.local.array(shape=(TPB // 8,), dtype="int32")
        d = cuda.local.array(len(SHAPE), complex64)
        i = cuda.grid(1)
        if i >= x.size:
            return
        for k in range(a.size):
            a[k] = k
        a[:] = x[i]
        b[0, 0] = b[1][1] = 2
        c[0], c[1] = 3, 4
        d[0] = 1j
        out[i] = a[0] + a[2] + b[1, 1] + c[1] + d[0].imag

    kernel[4, 16](X, out := zeros())
    yield out, 2 * X + 7


CENTRES = np.array([[0.0, 1.0], [2.0, 3.0]])


@spelling
def constant_arrays(jit):
    table = np.array([1, 2, 3], np.int32)

    @jit
    def kernel(out):
        a = cuda.const.array_like(table)
        b = cuda.const.array_like(CENTRES)
        i = cuda.grid(1)
        if i < out.size:
            out[i] = a[i % 3] + b[i % 2, 1]

    kernel[4, 16](out := zeros())
    i = np.arange(N)
    yield out, table[i % 3] + CENTRES[i % 2, 1]


CELL = np.dtype([("x", np.float64), ("n", np.int32)], align=True)
CELL_TYPE = from_dtype(CELL)


@spelling(simulator="the simulator's arrays are NumPy's")
def arrays_of_records(jit):
    @jit
    def kernel(x, out):
        tile = cuda.shared.array(16, CELL_TYPE)
        mine = cuda.local.array(2, dtype=CELL)
        t, i = cuda.threadIdx.x, cuda.grid(1)
        tile[t].x = x[i] if i < x.size else 0.0
        tile[t]["n"] = t
        cuda.syncthreads()
        mine[0].x = tile[15 - t].x
        mine[1].n = tile[15 - t].n
        if i < x.size:
            out[i] = mine[0].x + mine[1]["n"]

    kernel[4, 16](X, out := zeros())
    padded = np.append(X, np.zeros(14)).reshape(4, 16)[:, ::-1] + np.arange(16)[::-1]
    yield out, padded.ravel()[:N]


@spelling
def views_of_shared_arrays(jit):
    @jit
    def kernel(x, out):
        tile = cuda.shared.array((2, 16), float64)
        row = tile[0]
        other = tile[1, :]
        t, i = cuda.threadIdx.x, cuda.grid(1)
        row[t] = x[i] if i < x.size else 0.0
        other[t] = 1.0
        cuda.syncthreads()
        if i < x.size:
            half = row[:8] if t < 8 else row[8:]
            out[i] = half[t % 8] + other[t] + tile.shape[1]

    kernel[4, 16](X, out := zeros())
    yield out, X + 17


@spelling
def dynamic_memory_in_parts(jit):
    @jit
    def kernel(x, out):
        floats = cuda.shared.array(0, dtype=float64)
        whole = cuda.shared.array(shape=0, dtype=int32)
        numbers = whole[32:]
        t, i = cuda.threadIdx.x, cuda.grid(1)
        floats[t] = x[i] if i < x.size else 0.0
        numbers[t] = t
        cuda.syncthreads()
        if i < x.size:
            out[i] = floats[15 - t] + numbers[15 - t]

    kernel[4, 16, 0, 16 * 8 + 16 * 4](X, out := zeros())
    padded = np.append(X, np.zeros(14)).reshape(4, 16)[:, ::-1] + np.arange(16)[::-1]
    yield out, padded.ravel()[:N]


@spelling
def shared_arrays_where_they_are_needed(jit):
    """In a branch, in a loop, and under one name for two arrays."""

    @jit
    def kernel(x, out):
        t, i = cuda.threadIdx.x, cuda.grid(1)
        if x.size > 10:
            tile = cuda.shared.array(16, float64)
            tile[t] = 1.0
            cuda.syncthreads()
            if i < x.size:
                out[i] += tile[15 - t]
        for k in range(2):
            more = cuda.shared.array(16, int32)
            more[t] = k
            cuda.syncthreads()
            if i < x.size:
                out[i] += more[15 - t]
            cuda.syncthreads()

    kernel[4, 16](X, out := zeros())
    yield out, np.full(N, 2.0)


@spelling
def two_arrays_of_one_name(jit):
    @jit
    def kernel(x, out):
        t, i = cuda.threadIdx.x, cuda.grid(1)
        buf = cuda.local.array(2, float64)
        buf[0] = 1.0
        first = buf[0]
        buf = cuda.local.array(4, float64)
        buf[3] = 2.0
        if i < x.size:
            out[i] = first + buf[3] + t * 0

    kernel[4, 16](X, out := zeros())
    yield out, np.full(N, 3.0)


@spelling
def chained_local_arrays(jit):
    """Arrays in tuples, and an array that two names share."""

    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        pair = (cuda.local.array(2, float64), cuda.local.array(2, float64))
        a, b = pair
        c = a
        a[0], b[0] = 1.0, 2.0
        c[1] = 3.0
        a, b = b, a
        if i < x.size:
            out[i] = a[0] * 10 + b[0] + b[1] + pair[0][1]

    kernel[4, 16](X, out := zeros())
    yield out, np.full(N, 27.0)


@spelling
def tiled_product(jit):
    tpb = 4

    @jit
    def matmul(A, B, C):
        sA = cuda.shared.array(shape=(tpb, tpb), dtype=float32)
        sB = cuda.shared.array(shape=(tpb, tpb), dtype=float32)
        x, y = cuda.grid(2)
        tx = cuda.threadIdx.x
        ty = cuda.threadIdx.y
        bpg = cuda.gridDim.x
        tmp = float32(0.0)
        for i in range(bpg):
            sA[ty, tx] = 0
            sB[ty, tx] = 0
            if y < A.shape[0] and (tx + i * tpb) < A.shape[1]:
                sA[ty, tx] = A[y, tx + i * tpb]
            if x < B.shape[1] and (ty + i * tpb) < B.shape[0]:
                sB[ty, tx] = B[ty + i * tpb, x]
            cuda.syncthreads()
            for j in range(tpb):
                tmp += sA[ty, j] * sB[j, tx]
            cuda.syncthreads()
        if y < C.shape[0] and x < C.shape[1]:
            C[y, x] = tmp

    a = np.arange(70, dtype=np.float32).reshape(7, 10) / 10
    b = np.arange(50, dtype=np.float32).reshape(10, 5) / 10
    c = np.zeros((7, 5), np.float32)
    matmul[(3, 3), (4, 4)](a, b, c)
    yield c, a @ b
