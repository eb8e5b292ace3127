"""Shuffles within a warp.

The simulator lacks them, so that what they should give is computed with NumPy.
"""

import numpy as np
from numba import cuda, float64

from tests.conformance.simt.cases import NO_WARPS, again, case, real, rows, values, warps, whole

FULL = 0xFFFFFFFF
LANES = np.arange(32)


def _shuffles(x, out):
    w = warps(x)
    up = np.where(LANES >= 3, np.roll(w, 3, 1), w)
    down = np.where(LANES < 27, np.roll(w, -5, 1), w)
    parts = [np.broadcast_to(w[:, 7:8], w.shape), up, down, w[:, LANES ^ 5]]
    return {1: np.stack([part.ravel() for part in parts])}


@case(2, 64, lambda: (real(128), np.zeros((4, 128))), _shuffles, differs=NO_WARPS)
def four_shuffles(x, out):
    i = cuda.grid(1)
    v = x[i]
    out[0, i] = cuda.shfl_sync(FULL, v, 7)
    out[1, i] = cuda.shfl_up_sync(FULL, v, 3)
    out[2, i] = cuda.shfl_down_sync(FULL, v, 5)
    out[3, i] = cuda.shfl_xor_sync(FULL, v, 5)


for _kind in ("int32", "int64", "float32"):
    again(
        f"four_shuffles_{_kind}",
        "four_shuffles",
        1,
        64,
        lambda kind=_kind: (values(kind, 64), np.zeros((4, 64), kind)),
    )


def _gathered(x, places, out):
    return {2: np.take_along_axis(warps(x), warps(places) % 32, 1).ravel()}


@case(
    1,
    64,
    lambda: (real(64), whole(64, low=0, high=32, dtype=np.int32), np.zeros(64)),
    _gathered,
    differs=NO_WARPS,
)
def shuffle_from_varying_lane(x, places, out):
    i = cuda.grid(1)
    out[i] = cuda.shfl_sync(FULL, x[i], places[i])


def _varying(x, out):
    w = warps(x)
    delta = LANES % 4
    up = np.where(LANES >= delta, w[:, (LANES - delta) % 32], w)
    down = np.where(LANES + delta < 32, w[:, (LANES + delta) % 32], w)
    return {1: (up + 10 * down).ravel()}


@case(1, 64, lambda: (whole(64), np.zeros(64, np.int64)), _varying, differs=NO_WARPS)
def shuffle_by_varying_delta(x, out):
    i = cuda.grid(1)
    delta = cuda.laneid % 4
    out[i] = cuda.shfl_up_sync(FULL, x[i], delta) + 10 * cuda.shfl_down_sync(FULL, x[i], delta)


def _partial(x, out):
    first, second = x[:32], x[32:]
    return {
        1: np.r_[np.full(32, first[5]), np.full(8, second[5])]
        + np.r_[np.roll(first, 1), np.roll(second, 1)] * (np.arange(40) % 32 > 0)
    }


@case(1, 40, lambda: (real(40), np.zeros(40)), _partial, differs=NO_WARPS)
def partial_warp(x, out):
    """A block of 40 threads: eight in the second warp, the lanes that they ask for among them."""
    i = cuda.grid(1)
    lane = cuda.laneid
    v = cuda.shfl_sync(FULL if i < 32 else 0xFF, x[i], 5)
    w = cuda.shfl_up_sync(FULL if i < 32 else 0xFF, x[i], 1)
    out[i] = v + (w if lane > 0 else 0.0)


@case(
    2, 64, lambda: (real(128), np.zeros(4)), lambda x, out: {1: warps(x).sum(1)}, differs=NO_WARPS
)
def warp_sum(x, out):
    i = cuda.grid(1)
    v = x[i]
    offset = 16
    while offset > 0:
        v += cuda.shfl_down_sync(FULL, v, offset)
        offset //= 2
    if cuda.laneid == 0:
        out[i // 32] = v


@case(
    2,
    64,
    lambda: (real(128), np.zeros(128)),
    lambda x, out: {1: np.repeat(warps(x).max(1), 32)},
    differs=NO_WARPS,
)
def warp_largest_by_xor(x, out):
    i = cuda.grid(1)
    v = x[i]
    for k in range(5):
        v = max(v, cuda.shfl_xor_sync(FULL, v, 1 << k))
    out[i] = v


@cuda.jit(device=True)
def warp_scan(v):
    lane = cuda.laneid
    reach = 1
    while reach < 32:
        w = cuda.shfl_up_sync(FULL, v, reach)
        if lane >= reach:
            v += w
        reach *= 2
    return v


@case(
    1,
    96,
    lambda: (whole(96), np.zeros(96, np.int64)),
    lambda x, out: {1: warps(x).cumsum(1).ravel()},
    differs=NO_WARPS,
)
def scan_in_function(x, out):
    i = cuda.grid(1)
    out[i] = warp_scan(x[i])


@cuda.jit(device=True)
def block_total(v):
    """The sum over the block, right in its first warp: sums of warps, and the sum of those."""
    sums = cuda.shared.array(32, float64)
    warp = cuda.threadIdx.x // 32
    for k in range(5):
        v += cuda.shfl_xor_sync(FULL, v, 16 >> k)
    if cuda.laneid == 0:
        sums[warp] = v
    cuda.syncthreads()
    n = (cuda.blockDim.x + 31) // 32
    v = sums[cuda.laneid] if cuda.laneid < n else 0.0
    if warp == 0:
        for k in range(5):
            v += cuda.shfl_xor_sync(FULL, v, 16 >> k)
    return v


@case(
    3,
    96,
    lambda: (real(250), np.zeros(3)),
    lambda x, out: {1: rows(x, 96).sum(1)},
    differs=NO_WARPS,
)
def two_level_sum(x, out):
    i = cuda.grid(1)
    v = x[i] if i < x.size else 0.0
    v = block_total(v)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = v


def _per_warp(x, flags, out):
    w = warps(x)
    return {2: np.where(flags[:, None] > 0, np.roll(w, -1, 1), -w).ravel()}


@case(
    1, 128, lambda: (real(128), np.array([1, 0, 0, 1]), np.zeros(128)), _per_warp, differs=NO_WARPS
)
def shuffle_in_some_warps(x, flags, out):
    """A branch that warps take together, some of a block and others not."""
    i = cuda.grid(1)
    v = x[i]
    if flags[i // 32] > 0:
        v = cuda.shfl_sync(FULL, v, (cuda.laneid + 1) % 32)
    else:
        v = -v
    out[i] = v


def _rounds(x, out):
    w = warps(x).copy()
    for k, row in enumerate(w):
        for _ in range(k + 1):
            row[:] = np.roll(row, -1) * 0.5
    return {1: w.ravel()}


@case(1, 128, lambda: (real(128), np.zeros(128)), _rounds, differs=NO_WARPS)
def warps_loop_unequally(x, out):
    i = cuda.grid(1)
    v = x[i]
    for _ in range(i // 32 + 1):
        v = cuda.shfl_sync(FULL, v, (cuda.laneid + 1) % 32) * 0.5
    out[i] = v


@case(
    1,
    64,
    lambda: (real(64), np.zeros(64)),
    lambda x, out: {1: np.r_[x[31::-1], 2 * x[32:]]},
    differs=NO_WARPS,
)
def warps_return_apart(x, out):
    """The second warp returns; the first goes on with shuffles."""
    i = cuda.grid(1)
    if i >= 32:
        out[i] = 2 * x[i]
        return
    out[i] = cuda.shfl_xor_sync(FULL, x[i], 31)


@case(
    1,
    64,
    lambda: (real(64), np.zeros(64)),
    lambda x, out: {1: np.where(np.arange(64) % 32 < 16, warps(x)[:, LANES ^ 3].ravel(), -x)},
    differs=NO_WARPS,
)
def half_a_warp(x, out):
    i = cuda.grid(1)
    v = -x[i]
    if cuda.laneid < 16:
        v = cuda.shfl_xor_sync(0xFFFF, x[i], 3)
    out[i] = v


@case(
    2,
    (8, 8),
    lambda: (whole(128), np.zeros(128, np.int64)),
    lambda x, out: {1: np.repeat(warps(x).sum(1), 32)},
    differs=NO_WARPS,
)
def warps_of_2d_block(x, out):
    i = cuda.blockIdx.x * 64 + cuda.threadIdx.y * 8 + cuda.threadIdx.x
    v = x[i]
    for k in range(5):
        v += cuda.shfl_xor_sync(FULL, v, 1 << k)
    out[i] = v


@case(
    1,
    64,
    lambda: (whole(64, low=0, high=1000, dtype=np.int32), np.zeros(64, np.int32)),
    lambda x, out: {1: np.sort(warps(x), 1).ravel()},
    differs=NO_WARPS,
)
def bitonic_sort_in_warp(x, out):
    i = cuda.grid(1)
    lane = cuda.laneid
    v = x[i]
    size = 2
    while size <= 32:
        step = size // 2
        while step > 0:
            other = cuda.shfl_xor_sync(FULL, v, step)
            upward = (lane & size) == 0
            lower = (lane & step) == 0
            if lower == upward:
                v = min(v, other)
            else:
                v = max(v, other)
            step //= 2
        size *= 2
    out[i] = v


def _expressions(x, out):
    w = warps(x)
    total = 2 * (w[:, :1] + w[:, LANES ^ 1]) - w[:, 31:] * w[:, LANES ^ 2]
    return {1: np.where(total > 0, total, w[:, 3:4]).ravel()}


@case(1, 64, lambda: (real(64), np.zeros(64)), _expressions, differs=NO_WARPS)
def shuffles_in_expressions(x, out):
    i = cuda.grid(1)
    v = x[i]
    total = 2 * (cuda.shfl_sync(FULL, v, 0) + cuda.shfl_xor_sync(FULL, v, 1)) - cuda.shfl_sync(
        FULL, v, 31
    ) * cuda.shfl_xor_sync(FULL, v, 2)
    fallback = cuda.shfl_sync(FULL, v, 3)
    out[i] = total if total > 0 else fallback
