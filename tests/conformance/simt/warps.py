"""Votes and matches of a warp, its masks and barriers.

The simulator lacks them, so that what they should give is computed with NumPy.
"""

import numpy as np
from numba import cuda, float32, float64, int32, int64, uint32

from tests.conformance.simt.cases import NO_WARPS, again, case, real, warps, whole

FULL = 0xFFFFFFFF
LANES = np.arange(32)


# ---- votes


def _counts(x, out):
    w = warps(x)
    n = (w > 0).sum(1)
    flags = (n == 32) * 1 + (n > 0) * 10 + ((n == 0) | (n == 32)) * 100
    return {1: np.repeat(n * 1000 + flags, 32)}


def _three_kinds():
    return real(96) + np.repeat([0.0, 3.0, -3.0], 32), np.zeros(96, np.int64)


@case(1, 96, _three_kinds, _counts, differs=NO_WARPS)
def votes(x, out):
    i = cuda.grid(1)
    flag = x[i] > 0
    n = cuda.popc(cuda.ballot_sync(FULL, flag))
    v = n * 1000
    if cuda.all_sync(FULL, flag):
        v += 1
    if cuda.any_sync(FULL, flag):
        v += 10
    if cuda.eq_sync(FULL, flag):
        v += 100
    out[i] = v


def _ballot(x, out):
    bits = ((warps(x) > 0).astype(np.int64) << LANES).sum(1)
    return {1: np.repeat(bits, 32).astype(np.uint32)}


@case(1, 96, lambda: (_three_kinds()[0], np.zeros(96, np.uint32)), _ballot, differs=NO_WARPS)
def ballot(x, out):
    i = cuda.grid(1)
    out[i] = uint32(cuda.ballot_sync(FULL, x[i] > 0))


def _signed(x, out):
    return {1: _ballot(x, out)[1].astype(np.int32).astype(np.int64)}


@case(1, 96, _three_kinds, _signed, differs=NO_WARPS)
def ballot_is_signed(x, out):
    """Numba types a ballot as int32: with the last lane in it, it is negative."""
    i = cuda.grid(1)
    out[i] = cuda.ballot_sync(FULL, x[i] > 0)


@case(
    1,
    64,
    lambda: (whole(64, low=0, high=9), np.zeros(64, np.int64)),
    lambda x, out: {1: np.repeat([9 - (r == 0).any() for r in warps(x)], 32)},
    differs=NO_WARPS,
)
def vote_ends_loop(x, out):
    """How often a warp loops depends on its votes."""
    i = cuda.grid(1)
    rounds = 0
    while not cuda.any_sync(FULL, x[i] == rounds - 8) and rounds < 9:
        rounds += 1
    out[i] = rounds


@case(
    1,
    64,
    lambda: (real(64), np.zeros(64)),
    lambda x, out: {1: np.concatenate([np.r_[r[r > 0], r[r <= 0]] for r in warps(x)])},
    differs=NO_WARPS,
)
def partition_by_ballot(x, out):
    """Each lane finds its place from the lanes before it."""
    i = cuda.grid(1)
    flag = x[i] > 0
    chosen = cuda.ballot_sync(FULL, flag)
    before = cuda.popc(chosen & cuda.lanemask_lt())
    place = before if flag else cuda.popc(chosen) + cuda.laneid - before
    out[i // 32 * 32 + place] = x[i]


@case(
    2,
    64,
    lambda: (whole(100), np.zeros(1, np.int32), np.zeros(100, np.int64)),
    lambda x, n, out: {1: [(x > 0).sum()]},
    differs=NO_WARPS,
)
def aggregated_atomics(x, count, out):
    """One atomic operation a warp, and a shuffle to tell the others its result."""
    i = cuda.grid(1)
    flag = i < x.size and x[i] > 0
    chosen = cuda.ballot_sync(FULL, flag)
    start = 0
    if cuda.laneid == 0:
        start = cuda.atomic.add(count, 0, cuda.popc(chosen))
    start = cuda.shfl_sync(FULL, start, 0)
    if flag:
        out[start + cuda.popc(chosen & cuda.lanemask_lt())] = x[i]


def _compacted(x, count, out):
    kept = x[x > 0]
    return {1: [kept.size], 2: np.r_[kept, np.zeros(x.size - kept.size)]}


again(
    "aggregated_atomics_kept",
    "aggregated_atomics",
    2,
    64,
    lambda: (whole(100), np.zeros(1, np.int32), np.zeros(100, np.int64)),
    _compacted,
    unordered=(2,),
)


# ---- matches and masks


def _matches(x, out):
    same = np.array([((row[None, :] == row[:, None]) << LANES).sum(1) for row in warps(x)])
    return {1: same.ravel().astype(np.uint32)}


@case(
    1,
    64,
    lambda: (whole(64, low=0, high=5, dtype=np.int32), np.zeros(64, np.uint32)),
    _matches,
    differs=NO_WARPS,
)
def match_any(x, out):
    i = cuda.grid(1)
    out[i] = uint32(cuda.match_any_sync(FULL, x[i]))


for _kind in ("int64", "float32", "float64"):
    again(
        f"match_any_{_kind}",
        "match_any",
        1,
        64,
        lambda kind=_kind: (whole(64, low=0, high=3).astype(kind), np.zeros(64, np.uint32)),
    )


def _match_all(x, out):
    same = (warps(x) == warps(x)[:, :1]).all(1)
    return {1: np.repeat(np.where(same, FULL * 2 + 1, 0), 32)}


@case(
    1,
    96,
    lambda: (np.where(np.arange(96) == 70, 8, np.repeat([4, 5, 6], 32)), np.zeros(96, np.int64)),
    _match_all,
    differs=NO_WARPS,
)
def match_all(x, out):
    i = cuda.grid(1)
    mask, same = cuda.match_all_sync(FULL, x[i])
    out[i] = int64(uint32(mask)) * 2 + (1 if same else 0)


def _masks(out):
    lanes = np.arange(40) % 32
    return {0: np.stack([np.where(np.arange(40) < 32, FULL, 0xFF), (1 << lanes) - 1, lanes])}


@case(1, 40, lambda: (np.zeros((3, 40), np.int64),), _masks, differs=NO_WARPS)
def masks(out):
    i = cuda.grid(1)
    out[0, i] = cuda.activemask()
    out[1, i] = cuda.lanemask_lt()
    out[2, i] = cuda.laneid


# ---- syncwarp


@case(
    2,
    64,
    lambda: (real(128), np.zeros(128)),
    lambda x, out: {1: (np.roll(warps(x), -1, 1) + warps(x)[:, ::-1]).ravel()},
    differs=NO_WARPS,
)
def exchange_through_shared_memory(x, out):
    s = cuda.shared.array(64, float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    first = t // 32 * 32
    s[t] = x[i]
    cuda.syncwarp()
    v = s[first + (t + 1) % 32]
    cuda.syncwarp()
    s[t] = v + x[first + cuda.blockIdx.x * 64 + 31 - t % 32]
    cuda.syncwarp()
    out[i] = s[t]


@case(1, 64, lambda: (real(64), np.zeros(2)), lambda x, out: {1: warps(x).sum(1)}, differs=NO_WARPS)
def warp_halving_with_syncwarp(x, out):
    s = cuda.shared.array(64, float64)
    t = cuda.threadIdx.x
    lane = t % 32
    s[t] = x[t]
    cuda.syncwarp()
    for step in (16, 8, 4, 2, 1):
        if lane < step:
            s[t] += s[t + step]
        cuda.syncwarp()
    if lane == 0:
        out[t // 32] = s[t]


@case(
    2,
    64,
    lambda: (real(128), np.zeros(2)),
    lambda x, out: {1: x.reshape(2, 64).sum(1)},
    differs=NO_WARPS,
)
def last_warp_sums(x, out):
    """A block reduction whose last steps are left to one warp, which synchronises alone."""
    s = cuda.shared.array(64, float64)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    if t < 32:
        s[t] += s[t + 32]
        step = 16
        while step:
            cuda.syncwarp(FULL)
            if t < step:
                s[t] += s[t + step]
            step //= 2
        if t == 0:
            out[cuda.blockIdx.x] = s[0]


@case(
    1,
    70,
    lambda: (whole(70), whole(70, low=0, high=7, seed=2), np.zeros(70, np.int64)),
    lambda x, k, out: {2: x * 10 + k},
    differs=NO_WARPS,
)
def warps_and_blocks_mixed(x, k, out):
    """Votes, shuffles and block barriers in turn, in a block that is no multiple of a warp."""
    s = cuda.shared.array(70, int64)
    t = cuda.threadIdx.x
    s[69 - t] = x[69 - t]
    cuda.syncthreads()
    mask = FULL if t < 64 else 0x3F
    v = s[t] * 10
    if cuda.any_sync(mask, k[t] > 6):
        v = 0
    v += cuda.shfl_xor_sync(mask, k[t], 1)
    v = v - cuda.shfl_xor_sync(mask, k[t], 1) + k[t]
    cuda.syncthreads()
    s[t] = v
    cuda.syncthreads()
    out[t] = s[t]


@case(
    1,
    64,
    lambda: (real(64, dtype=np.float32), np.zeros(64, np.float32)),
    lambda x, out: {1: np.repeat(np.sqrt((warps(x).astype(float) ** 2).sum(1)), 32)},
    differs=NO_WARPS,
    rtol=1e-5,
)
def single_precision_norm(x, out):
    i = cuda.grid(1)
    v = x[i] * x[i]
    for k in range(5):
        v = float32(v + cuda.shfl_xor_sync(FULL, v, 1 << k))
    out[i] = v ** float32(0.5)


@case(
    1,
    64,
    lambda: (whole(64, dtype=np.int32), np.zeros(64, np.int32)),
    lambda x, out: {1: np.concatenate([np.maximum.accumulate(r) for r in warps(x)])},
    differs=NO_WARPS,
)
def running_maximum(x, out):
    i = cuda.grid(1)
    v = x[i]
    for k in range(5):
        other = cuda.shfl_up_sync(FULL, v, 1 << k)
        v = int32(max(v, other))
    out[i] = v
