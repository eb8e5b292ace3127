"""Atomics, warps, cooperative groups, bits and the rest of `numba.cuda`."""

import numpy as np
from numba import cuda, float64, int32, int64, uint32

from tests.conformance.simt.spellings.entry import N, X, spelling, zeros

NO_WARPS = "the simulator has no warp operations"
NO_LIBDEVICE = "the simulator has no libdevice"


@spelling
def atomics(jit):
    @jit
    def kernel(x, whole, out, counts):
        i = cuda.grid(1)
        if i < x.size:
            cuda.atomic.add(out, 0, x[i])
            cuda.atomic.add(out, (1,), x[i])
            cuda.atomic.sub(out, 2, x[i])
            cuda.atomic.max(out, 3, x[i])
            cuda.atomic.min(out, 4, x[i])
            cuda.atomic.nanmax(out, 5, x[i])
            cuda.atomic.add(counts, (i % 2, whole[i] % 3), 1)
            cuda.atomic.or_(counts, (1, 3), 1 << (i % 5))
            old = cuda.atomic.add(out, 6, 1.0)
            cuda.atomic.max(out, 7, old)

    counts = np.zeros((2, 4), np.int64)
    whole = np.arange(N)
    kernel[4, 16](X, whole, out := zeros(n=8), counts)
    yield out, [X.sum(), X.sum(), -X.sum(), X.max(), X.min(), X.max(), N, N - 1]
    expected = np.zeros((2, 4), np.int64)
    np.add.at(expected, (whole % 2, whole % 3), 1)
    expected[1, 3] = 31
    yield counts, expected


@spelling
def atomics_that_swap(jit):
    @jit
    def kernel(lock, out):
        i = cuda.grid(1)
        if i < 40:
            while cuda.atomic.cas(lock, 0, 0, 1) != 0:
                pass
            out[0] += 1
            cuda.threadfence()
            cuda.atomic.exch(lock, 0, 0)

    kernel[4, 16](np.zeros(1, np.int32), out := zeros(np.int64, 1))
    yield out, [40]


@spelling
def atomics_by_name_and_place(jit):
    @jit
    def kernel(bins, out):
        t = cuda.threadIdx.x
        local = cuda.shared.array(4, int32)
        if t < 4:
            local[t] = 0
        cuda.syncthreads()
        i = cuda.grid(1)
        if i < bins.size:
            cuda.atomic.add(local, bins[i], 1)
        cuda.syncthreads()
        if t < 4:
            cuda.atomic.add(out, t, local[t])

    bins = (np.arange(N) % 4).astype(np.uint8)
    kernel[4, 16](bins, out := zeros(np.int32, 4))
    yield out, np.bincount(bins)


@spelling(simulator="the simulator compares with Python's integers")
def atomic_counters(jit):
    @jit
    def kernel(out):
        cuda.atomic.inc(out, 0, 9)
        cuda.atomic.dec(out, 1, 9)
        cuda.atomic.and_(out, 2, 6)
        cuda.atomic.xor(out, 3, 1)

    out = np.array([0, 0, 15, 0], np.uint32)
    kernel[1, 25](out)
    yield out, [5, 5, 6, 1]


@spelling(simulator=NO_WARPS)
def warps(jit):
    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        v = x[i]
        for offset in (16, 8, 4, 2, 1):
            v += cuda.shfl_down_sync(0xFFFFFFFF, v, offset)
        if cuda.laneid == 0:
            out[i // cuda.warpsize] = v
        w = cuda.shfl_sync(0xFFFFFFFF, v, 0)
        w += cuda.shfl_xor_sync(-1, x[i], 1) * 0
        up = cuda.shfl_up_sync(mask=0xFFFFFFFF, value=i, delta=1)
        cuda.syncwarp()
        cuda.syncwarp(0xFFFFFFFF)
        if cuda.all_sync(0xFFFFFFFF, up >= 0) and cuda.any_sync(0xFFFFFFFF, w == v):
            out[2] = 1

    x = np.arange(64.0)
    kernel[1, 64](x, out := zeros(n=3))
    yield out, [x[:32].sum(), x[32:].sum(), 1]


@spelling(simulator=NO_WARPS)
def votes(jit):
    @jit
    def kernel(out):
        t = cuda.threadIdx.x
        mask = cuda.activemask()
        ballot = cuda.ballot_sync(mask, t % 2 == 0)
        same = cuda.match_any_sync(0xFFFFFFFF, t // 16)
        every, flag = cuda.match_all_sync(0xFFFFFFFF, 5)
        below = cuda.popc(cuda.lanemask_lt())
        out[t] = (
            cuda.popc(ballot) * 1000
            + cuda.popc(same) * 100
            + below
            + flag
            + cuda.eq_sync(mask, True)
        )

    kernel[1, 32](out := zeros(n=32))
    yield out, 16000 + 1600 + np.arange(32) + 2


@spelling
def votes_of_a_block(jit):
    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        v = x[i] if i < x.size else -1.0
        n = cuda.syncthreads_count(v > 0)
        every = cuda.syncthreads_and(v > -5)
        some = cuda.syncthreads_or(v > 2.9)
        if cuda.threadIdx.x == 0:
            out[cuda.blockIdx.x] = n + 100 * (every != 0) + 1000 * (some != 0)

    kernel[4, 16](X, out := zeros(n=4))
    padded = np.append(X, np.full(14, -1.0)).reshape(4, 16)
    yield out, (padded > 0).sum(1) + 100 + 1000 * (padded > 2.9).any(1)


@spelling(simulator="the simulator has no grid groups")
def groups_of_the_grid(jit):
    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        g = cuda.cg.this_grid()
        if i < x.size:
            out[i] = x[i]
        g.sync()
        if i < x.size:
            v = out[x.size - 1 - i]
        cuda.cg.this_grid().sync()
        if i < x.size:
            out[i] = v

    kernel[4, 16](X, out := zeros())
    yield out, X[::-1]


@spelling(simulator="the simulator counts the bits of Python's integers")
def bits(jit):
    @jit
    def kernel(whole, out):
        i = cuda.grid(1)
        if i < whole.size:
            n = whole[i]
            out[i, 0] = cuda.popc(n)
            out[i, 1] = cuda.clz(n)
            out[i, 2] = cuda.ffs(n)
            out[i, 3] = cuda.brev(n)
            out[i, 4] = cuda.selp(n > 3, 7, 8)

    whole = np.arange(1, 9, dtype=np.uint32)
    kernel[1, 8](whole, out := np.zeros((8, 5), np.int64))
    for n, row in zip(whole.tolist(), out, strict=True):
        reverse = int(f"{n:032b}"[::-1], 2)
        yield (
            row,
            [n.bit_count(), 32 - n.bit_length(), (n & -n).bit_length(), reverse, 7 if n > 3 else 8],
        )


@spelling(simulator="the simulator has no nanosleep")
def fused_and_roots(jit):
    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = cuda.fma(x[i], 2.0, 1.0) + cuda.cbrt(x[i])
            cuda.threadfence_block()
            cuda.threadfence_system()
            cuda.nanosleep(uint32(10))

    kernel[4, 16](X, out := zeros())
    yield out, 2 * X + 1 + np.cbrt(X)


@spelling(simulator=NO_LIBDEVICE)
def libdevice(jit):
    from numba.cuda import libdevice as ld

    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            s, c = cuda.libdevice.sincos(x[i])
            out[i] = (
                s
                + c
                + ld.exp(x[i])
                + ld.fast_cosf(x[i]) * 0
                + ld.max(3, 4)
                + cuda.libdevice.rsqrt(4.0)
            )
            out[i] += ld.saturatef(2.0) + ld.double2int_rz(3.7) + ld.fmax(x[i], 0.0)

    kernel[4, 16](X, out := zeros())
    yield out, np.sin(X) + np.cos(X) + np.exp(X) + 4 + 0.5 + 1 + 3 + np.maximum(X, 0)


@spelling(simulator="the simulator has no loads with hints")
def hints(jit):
    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            cuda.stcs(out, i, cuda.ldcg(x, i) + cuda.ldca(x, (i,)) * 0)

    kernel[4, 16](X, out := zeros())
    yield out, X


@spelling
def vector_types(jit):
    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            v = cuda.float64x3(x[i], 1.0, 2.0)
            w = cuda.float32x4(cuda.float32x2(1.0, 2.0), 3.0, 4.0)
            u = cuda.double2(v.x, v.y)
            out[i] = v.x + v.y + v.z + w.x + w.w + u.x

    kernel[4, 16](X, out := zeros())
    yield out, 2 * X + 3 + 5


@spelling(simulator="the simulator reads fields of numbers in Python")
def numbers_of_threads(jit):
    @jit
    def kernel(out):
        tid = cuda.threadIdx.x + cuda.threadIdx.y * cuda.blockDim.x
        bid = cuda.blockIdx.x + cuda.blockIdx.y * cuda.gridDim.x
        out[bid, tid] = cuda.laneid + cuda.warpsize + bid + (tid // cuda.warpsize)

    kernel[(2, 2), (16, 4)](out := np.zeros((4, 64)))
    t = np.arange(64)
    yield out, t % 32 + 32 + np.arange(4)[:, None] + t // 32


@spelling
def barriers_of_all_kinds(jit):
    @jit
    def kernel(x, out):
        tile = cuda.shared.array(16, float64)
        t, i = cuda.threadIdx.x, cuda.grid(1)
        tile[t] = x[i] if i < x.size else 0.0
        cuda.syncthreads()
        s = 8
        while s > 0:
            if t < s:
                tile[t] += tile[t + s]
            cuda.syncthreads()
            s >>= 1
        if t == 0:
            cuda.atomic.add(out, 0, tile[0])

    kernel[4, 16](X, out := zeros(n=1))
    yield out, [X.sum()]


@spelling
def last_block(jit):
    """The last block to arrive, told by an atomic counter, sums the others' results."""

    @jit
    def kernel(x, partial, counter, out):
        flag = cuda.shared.array(1, int64)
        t, b = cuda.threadIdx.x, cuda.blockIdx.x
        if t == 0:
            s = 0.0
            for k in range(b * 16, min((b + 1) * 16, x.size)):
                s += x[k]
            partial[b] = s
            cuda.threadfence()
            flag[0] = cuda.atomic.add(counter, 0, 1)
        cuda.syncthreads()
        if flag[0] == cuda.gridDim.x - 1 and t == 0:
            for k in range(cuda.gridDim.x):
                out[0] += partial[k]

    kernel[4, 16](X, zeros(n=4), np.zeros(1, np.int64), out := zeros(n=1))
    yield out, [X.sum()]


@spelling(simulator=NO_WARPS)
def votes_in_conditions(jit):
    """Operations of a warp in the parts of an expression that only some threads evaluate."""

    @jit
    def kernel(x, out):
        t = cuda.threadIdx.x
        v = x[t]
        if cuda.any_sync(0xFFFFFFFF, v > 30) and cuda.all_sync(0xFFFFFFFF, v < 100):
            out[t] = 1
        w = cuda.shfl_sync(0xFFFFFFFF, v, 3) if x.size > 10 else v
        out[t] += w if v < 0 or cuda.all_sync(0xFFFFFFFF, v >= 0) else 0.0
        while t < 32 and not cuda.all_sync(0xFFFFFFFF, v < 0):
            v -= 20
        out[t] += v

    x = np.arange(32.0)
    kernel[1, 32](x, out := zeros(n=32))
    yield out, 1 + 3 + x - 40
