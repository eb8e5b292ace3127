"""Members of `numba.cuda` imported by name, which Numba's simulator does not offer."""

import numpy as np
from numba import cuda, int64
from numba.cuda import (
    atomic,
    blockDim,
    blockIdx,
    const,
    grid,
    gridDim,
    gridsize,
    local,
    shared,
    syncthreads,
    threadIdx,
)
from numba.cuda import grid as where
from numba.cuda import threadIdx as tid
from numba.cuda.libdevice import rsqrt, sinf
from numba.cuda.random import create_xoroshiro128p_states as create_xoroshiro128p_states
from numba.cuda.random import xoroshiro128p_normal_float64, xoroshiro128p_uniform_float32

from tests.conformance.simt.spellings.entry import N, X, spelling, zeros

REASON = "the simulator does not offer members by import"


@spelling(simulator=REASON)
def imported_grid(jit):
    @jit
    def kernel(x, out):
        i = grid(1)
        if i < x.size:
            out[i] = x[i] + gridsize(1)

    kernel[4, 16](X, out := zeros())
    yield out, X + 64


@spelling(simulator=REASON)
def imported_under_other_names(jit):
    @jit
    def kernel(x, out):
        i = where(1)
        if i < x.size:
            out[i] = tid.x

    kernel[4, 16](X, out := zeros())
    yield out, np.arange(N) % 16


@spelling(simulator=REASON)
def imported_triples(jit):
    @jit
    def kernel(out):
        i = blockIdx.x * blockDim.x + threadIdx.x
        for j in range(i, out.size, blockDim.x * gridDim.x):
            out[j] = j

    kernel[2, 8](out := zeros())
    yield out, np.arange(N)


CONSTANTS = np.arange(4.0)


@spelling(simulator=REASON)
def imported_memory(jit):
    @jit
    def kernel(x, out):
        tile = shared.array(shape=16, dtype=int64)
        mine = local.array(shape=(2,), dtype=np.float32)
        table = const.array_like(CONSTANTS)
        tile[threadIdx.x] = threadIdx.x
        syncthreads()
        i = grid(1)
        if i < x.size:
            mine[0] = tile[15 - threadIdx.x]
            atomic.add(out, i % 4, mine[0] * table[i % 4])

    kernel[4, 16](X, out := zeros(n=4))
    i = np.arange(N)
    yield out, np.bincount(i % 4, (15 - i % 16) * CONSTANTS[i % 4])


@spelling(simulator="the simulator has no libdevice")
def imported_libdevice(jit):
    @jit
    def kernel(x, out):
        i = grid(1)
        if i < x.size:
            out[i] = rsqrt(x[i] * x[i] + 1.0) + sinf(1.0)

    kernel[4, 16](X, out := zeros())
    yield out, 1 / np.sqrt(X * X + 1) + np.sin(np.float32(1))


@spelling(simulator="the simulator's states are its own device arrays")
def imported_random(jit):
    from numba.cuda.random import init_xoroshiro128p_states_cpu, xoroshiro128p_dtype

    def draws(states, out, more):
        i = grid(1)
        if i < out.size:
            out[i] = xoroshiro128p_uniform_float32(states, i)
            more[i] = xoroshiro128p_normal_float64(states, i)

    states = np.empty(N, xoroshiro128p_dtype)
    init_xoroshiro128p_states_cpu(states, 3, 0)
    again = states.copy()
    jit(draws)[4, 16](states, out := zeros(np.float32), more := zeros())
    yield out, [xoroshiro128p_uniform_float32(again, i) for i in range(N)]
    yield more, [xoroshiro128p_normal_float64(again, i) for i in range(N)]


where_am_i = cuda.grid
synchronise = cuda.syncthreads


@spelling(simulator=REASON)
def global_aliases(jit):
    @jit
    def kernel(x, out):
        i = where_am_i(1)
        synchronise()
        if i < x.size:
            out[i] = x[i]

    kernel[4, 16](X, out := zeros())
    yield out, X
