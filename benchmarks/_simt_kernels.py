"""Kernels as one writes them for a GPU, and the same work as one writes it in a serial `@njit`
loop.

The loops get `error_model="numpy"`, as the kernels do: without the check for a division by zero
LLVM makes faster code of them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda, float32, float64, int32, njit
from numba.cuda.random import xoroshiro128p_dtype, xoroshiro128p_uniform_float32

BLOCK = 256
TILE = 16
SQUARE = 32  # of a transposition, read by 8 rows of threads
ROWS = 8
BINS = 64
TERMS = 8

loop = njit(error_model="numpy")


def saxpy(a, x, y, out):
    i = cuda.grid(1)
    if i < x.shape[0]:
        out[i] = a * x[i] + y[i]


@loop
def saxpy_loop(a, x, y, out):
    for i in range(x.shape[0]):
        out[i] = a * x[i] + y[i]


def grid_sum(x, out):
    acc = 0.0
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        acc += x[i]
    cuda.atomic.add(out, 0, acc)


@loop
def sum_loop(x, out):
    acc = 0.0
    for i in range(x.size):
        acc += x[i]
    out[0] += acc


def _cnd(d):
    k = 1.0 / (1.0 + 0.2316419 * math.fabs(d))
    poly = k * (
        0.31938153 + k * (-0.356563782 + k * (1.781477937 + k * (-1.821255978 + k * 1.330274429)))
    )
    tail = 0.39894228040143267793994605993438 * math.exp(-0.5 * d * d) * poly
    if d > 0:
        tail = 1.0 - tail
    return tail


device_cnd = cuda.jit(device=True)(_cnd)
loop_cnd = loop(_cnd)


def black_scholes(call, put, price, strike, years, rate, volatility):
    i = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x
    if i >= price.shape[0]:
        return
    root = math.sqrt(years[i])
    d1 = (math.log(price[i] / strike[i]) + (rate + 0.5 * volatility * volatility) * years[i]) / (
        volatility * root
    )
    d2 = d1 - volatility * root
    n1 = device_cnd(d1)
    n2 = device_cnd(d2)
    discount = math.exp((-1.0 * rate) * years[i])
    call[i] = price[i] * n1 - strike[i] * discount * n2
    put[i] = strike[i] * discount * (1.0 - n2) - price[i] * (1.0 - n1)


@loop
def black_scholes_loop(call, put, price, strike, years, rate, volatility):
    for i in range(price.shape[0]):
        root = math.sqrt(years[i])
        d1 = (
            math.log(price[i] / strike[i]) + (rate + 0.5 * volatility * volatility) * years[i]
        ) / (volatility * root)
        d2 = d1 - volatility * root
        n1 = loop_cnd(d1)
        n2 = loop_cnd(d2)
        discount = math.exp((-1.0 * rate) * years[i])
        call[i] = price[i] * n1 - strike[i] * discount * n2
        put[i] = strike[i] * discount * (1.0 - n2) - price[i] * (1.0 - n1)


def monte_carlo_pi(states, iterations, out):
    thread = cuda.grid(1)
    if thread < out.size:
        inside = 0
        for _ in range(iterations):
            x = xoroshiro128p_uniform_float32(states, thread)
            y = xoroshiro128p_uniform_float32(states, thread)
            if x**2 + y**2 <= 1.0:
                inside += 1
        out[thread] = 4.0 * inside / iterations


@loop
def monte_carlo_pi_loop(states, iterations, out):
    for thread in range(out.size):
        inside = 0
        for _ in range(iterations):
            x = xoroshiro128p_uniform_float32(states, thread)
            y = xoroshiro128p_uniform_float32(states, thread)
            if x**2 + y**2 <= 1.0:
                inside += 1
        out[thread] = 4.0 * inside / iterations


def block_reduce(x, partial):
    shared = cuda.shared.array(BLOCK, float64)
    tid = cuda.threadIdx.x
    i = cuda.grid(1)
    if i < x.size:
        shared[tid] = x[i]
    else:
        shared[tid] = 0.0
    cuda.syncthreads()
    s = cuda.blockDim.x // 2
    while s > 0:
        if tid < s:
            shared[tid] += shared[tid + s]
        cuda.syncthreads()
        s //= 2
    if tid == 0:
        partial[cuda.blockIdx.x] = shared[0]


@loop
def block_reduce_loop(x, partial):
    for block in range(partial.size):
        acc = 0.0
        for i in range(block * BLOCK, min((block + 1) * BLOCK, x.size)):
            acc += x[i]
        partial[block] = acc


def block_scan(x, out, sums):
    """Hillis and Steele's inclusive scan of each block."""
    shared = cuda.shared.array(BLOCK, float64)
    tid = cuda.threadIdx.x
    i = cuda.grid(1)
    shared[tid] = x[i] if i < x.size else 0.0
    cuda.syncthreads()
    offset = 1
    while offset < cuda.blockDim.x:
        v = shared[tid]
        if tid >= offset:
            v += shared[tid - offset]
        cuda.syncthreads()
        shared[tid] = v
        cuda.syncthreads()
        offset *= 2
    if i < out.size:
        out[i] = shared[tid]
    if tid == cuda.blockDim.x - 1:
        sums[cuda.blockIdx.x] = shared[tid]


@loop
def block_scan_loop(x, out, sums):
    for block in range(sums.size):
        acc = 0.0
        for i in range(block * BLOCK, min((block + 1) * BLOCK, x.size)):
            acc += x[i]
            out[i] = acc
        sums[block] = acc


def matmul(a, b, c):
    tile_a = cuda.shared.array(shape=(TILE, TILE), dtype=float32)
    tile_b = cuda.shared.array(shape=(TILE, TILE), dtype=float32)
    x, y = cuda.grid(2)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    acc = float32(0.0)
    for i in range((a.shape[1] + TILE - 1) // TILE):
        tile_a[ty, tx] = 0
        tile_b[ty, tx] = 0
        if y < a.shape[0] and (tx + i * TILE) < a.shape[1]:
            tile_a[ty, tx] = a[y, tx + i * TILE]
        if x < b.shape[1] and (ty + i * TILE) < b.shape[0]:
            tile_b[ty, tx] = b[ty + i * TILE, x]
        cuda.syncthreads()
        for j in range(TILE):
            acc += tile_a[ty, j] * tile_b[j, tx]
        cuda.syncthreads()
    if y < c.shape[0] and x < c.shape[1]:
        c[y, x] = acc


@loop
def matmul_loop(a, b, c):
    """In the order in which the innermost loop runs along rows."""
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            c[i, j] = 0
        for k in range(a.shape[1]):
            factor = a[i, k]
            for j in range(b.shape[1]):
                c[i, j] += factor * b[k, j]


def stencil(x, out):
    i = cuda.grid(1)
    n = x.shape[0]
    if i > 0 and i < n - 1:
        out[i] = 0.25 * x[i - 1] + 0.5 * x[i] + 0.25 * x[i + 1]


@loop
def stencil_loop(x, out):
    for i in range(1, x.shape[0] - 1):
        out[i] = 0.25 * x[i - 1] + 0.5 * x[i] + 0.25 * x[i + 1]


def histogram(x, low, high, counts):
    shared = cuda.shared.array(BINS, int32)
    tid = cuda.threadIdx.x
    bins = counts.shape[0]
    if tid < BINS:
        shared[tid] = 0
    cuda.syncthreads()
    width = (high - low) / bins
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        b = int32((x[i] - low) / width)
        if b >= 0 and b < bins:
            cuda.atomic.add(shared, b, 1)
    cuda.syncthreads()
    if tid < bins:
        cuda.atomic.add(counts, tid, shared[tid])


@loop
def histogram_loop(x, low, high, counts):
    bins = counts.shape[0]
    width = (high - low) / bins
    for i in range(x.shape[0]):
        b = int32((x[i] - low) / width)
        if b >= 0 and b < bins:
            counts[b] += 1


def n_body(bodies, pull, softening):
    """Bodies are rows of x, y, z and mass."""
    i = cuda.grid(1)
    n = bodies.shape[0]
    if i >= n:
        return
    px = bodies[i, 0]
    py = bodies[i, 1]
    pz = bodies[i, 2]
    ax = float32(0.0)
    ay = float32(0.0)
    az = float32(0.0)
    for j in range(n):
        dx = bodies[j, 0] - px
        dy = bodies[j, 1] - py
        dz = bodies[j, 2] - pz
        inverse = float32(1.0) / math.sqrt(dx * dx + dy * dy + dz * dz + softening)
        cubed = bodies[j, 3] * inverse * inverse * inverse
        ax += dx * cubed
        ay += dy * cubed
        az += dz * cubed
    pull[i, 0] = ax
    pull[i, 1] = ay
    pull[i, 2] = az


@loop
def n_body_loop(bodies, pull, softening):
    n = bodies.shape[0]
    for i in range(n):
        px = bodies[i, 0]
        py = bodies[i, 1]
        pz = bodies[i, 2]
        ax = float32(0.0)
        ay = float32(0.0)
        az = float32(0.0)
        for j in range(n):
            dx = bodies[j, 0] - px
            dy = bodies[j, 1] - py
            dz = bodies[j, 2] - pz
            inverse = float32(1.0) / math.sqrt(dx * dx + dy * dy + dz * dz + softening)
            cubed = bodies[j, 3] * inverse * inverse * inverse
            ax += dx * cubed
            ay += dy * cubed
            az += dz * cubed
        pull[i, 0] = ax
        pull[i, 1] = ay
        pull[i, 2] = az


def transpose(a, out):
    """Through a tile in shared memory, so that a GPU reads and writes whole rows."""
    tile = cuda.shared.array((SQUARE, SQUARE + 1), float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    x = cuda.blockIdx.x * SQUARE + tx
    y = cuda.blockIdx.y * SQUARE + ty
    for j in range(0, SQUARE, ROWS):
        if y + j < a.shape[0] and x < a.shape[1]:
            tile[ty + j, tx] = a[y + j, x]
    cuda.syncthreads()
    x = cuda.blockIdx.y * SQUARE + tx
    y = cuda.blockIdx.x * SQUARE + ty
    for j in range(0, SQUARE, ROWS):
        if y + j < out.shape[0] and x < out.shape[1]:
            out[y + j, x] = tile[tx, ty + j]


@loop
def transpose_loop(a, out):
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            out[j, i] = a[i, j]


def warp_sum(x, out):
    i = cuda.grid(1)
    v = x[i] if i < x.size else 0.0
    offset = 16
    while offset > 0:
        v += cuda.shfl_down_sync(0xFFFFFFFF, v, offset)
        offset //= 2
    if cuda.laneid == 0:
        cuda.atomic.add(out, 0, v)


def local_terms(x, out):
    """The sum of the first terms of exp(x), kept in an array of each thread."""
    i = cuda.grid(1)
    if i >= x.size:
        return
    terms = cuda.local.array(TERMS, float64)
    terms[0] = 1.0
    for k in range(1, TERMS):
        terms[k] = terms[k - 1] * x[i] / k
    acc = 0.0
    for k in range(TERMS):
        acc += terms[k]
    out[i] = acc


@loop
def local_terms_loop(x, out):
    terms = np.empty(TERMS)
    for i in range(x.size):
        terms[0] = 1.0
        for k in range(1, TERMS):
            terms[k] = terms[k - 1] * x[i] / k
        acc = 0.0
        for k in range(TERMS):
            acc += terms[k]
        out[i] = acc


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel, its rival, and what both are given.

    Attributes:
        make: from whether the case is small, the grid, the block and the arguments. Small cases are
            those of the simulator.
        tolerance: the relative difference that sums in another order make.
        target: the most that the kernel may take, in times of the loop.
    """

    name: str
    kernel: Callable[..., None]
    loop: Callable[..., None]
    make: Callable[[bool], tuple[Any, Any, tuple[Any, ...]]]
    tolerance: float = 0.0
    target: float = 1.2


def random_states(n: int) -> np.ndarray:
    """Makes n states of xoroshiro128+; numba's own function for them needs a GPU."""
    words = np.random.default_rng(3).integers(1, 2**63, (n, 2), np.uint64)
    states = np.empty(n, xoroshiro128p_dtype)
    states["s0"], states["s1"] = words.T
    return states


def _of_rows(
    *arrays: Callable[[int], Any], n: int = 1 << 20, small: int = 1000
) -> Callable[[bool], Any]:
    """One thread a row."""

    def make(is_small: bool) -> tuple[Any, Any, tuple[Any, ...]]:
        rows = small if is_small else n
        return blocks(rows), BLOCK, tuple(array(rows) for array in arrays)

    return make


def blocks(n: int, size: int = BLOCK) -> int:
    return -(-n // size)


def _random(dtype: Any, low: float = 0.0, high: float = 1.0) -> Callable[[int], np.ndarray]:
    return lambda n: np.random.default_rng(7).uniform(low, high, n).astype(dtype)


def _zeros(dtype: Any) -> Callable[[int], np.ndarray]:
    return lambda n: np.zeros(n, dtype)


def _make_grid_sum(small: bool) -> Any:
    return (2 if small else 64), BLOCK, (_random("f8")(1000 if small else 1 << 20), np.zeros(1))


def _make_monte_carlo(small: bool) -> Any:
    n, steps = (64, 20) if small else (4096, 1000)
    return blocks(n, 64), 64, (random_states(n), steps, np.zeros(n))


def _make_matmul(small: bool) -> Any:
    n = 40 if small else 512
    a, b = np.random.default_rng(7).random((2, n, n), np.float32)
    return (blocks(n, TILE), blocks(n, TILE)), (TILE, TILE), (a, b, np.zeros((n, n), np.float32))


def _make_histogram(small: bool) -> Any:
    return (
        (2 if small else 64),
        BLOCK,
        (_random("f8")(1000 if small else 1 << 20), 0.0, 1.0, np.zeros(BINS, np.int32)),
    )


def _make_bodies(small: bool) -> Any:
    n = 100 if small else 2048
    bodies = np.random.default_rng(7).random((n, 4), np.float32)
    return blocks(n, 128), 128, (bodies, np.zeros((n, 4), np.float32), np.float32(0.01))


def _make_transpose(small: bool) -> Any:
    n, m = (40, 50) if small else (1024, 1024)
    a = np.random.default_rng(7).random((n, m), np.float32)
    return (blocks(m, SQUARE), blocks(n, SQUARE)), (SQUARE, ROWS), (a, np.zeros((m, n), np.float32))


F8, F4 = _random("f8"), _random("f4")
OPTIONS = (
    _zeros("f8"),
    _zeros("f8"),
    _random("f8", 5, 30),
    _random("f8", 1, 100),
    _random("f8", 0.25, 10),
)
SCAN_TARGET, WARP_TARGET = 2.0, 3.0

CASES = (
    Case(
        "saxpy", saxpy, saxpy_loop, _of_rows(lambda _: np.float32(2.5), F4, F4, _zeros("f4")), 1e-6
    ),
    Case("grid-stride sum, one atomic", grid_sum, sum_loop, _make_grid_sum, 1e-12),
    Case(
        "Black-Scholes",
        black_scholes,
        black_scholes_loop,
        _of_rows(*OPTIONS, lambda _: 0.02, lambda _: 0.3, n=1 << 18, small=300),
        1e-9,
    ),
    Case("Monte-Carlo pi, xoroshiro128p", monte_carlo_pi, monte_carlo_pi_loop, _make_monte_carlo),
    Case(
        "block reduction",
        block_reduce,
        block_reduce_loop,
        _of_rows(F8, lambda n: np.zeros(blocks(n))),
        1e-12,
    ),
    Case(
        "block scan",
        block_scan,
        block_scan_loop,
        _of_rows(F8, _zeros("f8"), lambda n: np.zeros(blocks(n))),
        1e-12,
        SCAN_TARGET,
    ),
    Case("matmul, tiles of 16x16", matmul, matmul_loop, _make_matmul, 1e-4),
    Case("3-point stencil", stencil, stencil_loop, _of_rows(F8, _zeros("f8")), 1e-12),
    Case("shared-memory histogram", histogram, histogram_loop, _make_histogram),
    Case("n-body", n_body, n_body_loop, _make_bodies, 2e-3),
    Case("transposition through tiles", transpose, transpose_loop, _make_transpose),
    Case(
        "warp-shuffle sum",
        warp_sum,
        sum_loop,
        _of_rows(F8, lambda _: np.zeros(1)),
        1e-12,
        WARP_TARGET,
    ),
    Case("local array", local_terms, local_terms_loop, _of_rows(F8, _zeros("f8")), 1e-12),
)
