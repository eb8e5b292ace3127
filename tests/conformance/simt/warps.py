"""Operations of a warp: shuffles, votes, matches and masks.

The simulator lacks them, so that what they should give is computed with NumPy.
"""

import numpy as np
from numba import cuda, float32, float64, int32, int64, uint32

from tests.conformance.simt.cases import NO_WARPS, again, case, real, rows, values, whole

FULL = 0xFFFFFFFF
LANES = np.arange(32)


def warps(x):
    """Rows of what a warp sees; `x` must fill all of them."""
    return x.reshape(-1, 32)


# ---- shuffles


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
    again(f"four_shuffles_{_kind}", "four_shuffles", 1, 64, lambda kind=_kind: (values(kind, 64), np.zeros((4, 64), kind)))


def _gathered(x, places, out):
    return {2: np.take_along_axis(warps(x), warps(places) % 32, 1).ravel()}


@case(1, 64, lambda: (real(64), whole(64, low=0, high=32, dtype=np.int32), np.zeros(64)), _gathered, differs=NO_WARPS)
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


@case(2, 64, lambda: (real(128), np.zeros(4)), lambda x, out: {1: warps(x).sum(1)}, differs=NO_WARPS)
def warp_sum(x, out):
    i = cuda.grid(1)
    v = x[i]
    offset = 16
    while offset > 0:
        v += cuda.shfl_down_sync(FULL, v, offset)
        offset //= 2
    if cuda.laneid == 0:
        out[i // 32] = v


@case(2, 64, lambda: (real(128), np.zeros(128)), lambda x, out: {1: np.repeat(warps(x).max(1), 32)}, differs=NO_WARPS)
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


@case(1, 96, lambda: (whole(96), np.zeros(96, np.int64)), lambda x, out: {1: warps(x).cumsum(1).ravel()}, differs=NO_WARPS)
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


@case(3, 96, lambda: (real(250), np.zeros(3)), lambda x, out: {1: rows(x, 96).sum(1)}, differs=NO_WARPS)
def two_level_sum(x, out):
    i = cuda.grid(1)
    v = x[i] if i < x.size else 0.0
    v = block_total(v)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = v


def _per_warp(x, flags, out):
    w = warps(x)
    return {2: np.where(flags[:, None] > 0, np.roll(w, -1, 1), -w).ravel()}


@case(1, 128, lambda: (real(128), np.array([1, 0, 0, 1]), np.zeros(128)), _per_warp, differs=NO_WARPS)
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


@case(1, 64, lambda: (real(64), np.zeros(64)), lambda x, out: {1: np.r_[x[31::-1], 2 * x[32:]]}, differs=NO_WARPS)
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


@case(1, 64, lambda: (whole(64, low=0, high=5, dtype=np.int32), np.zeros(64, np.uint32)), _matches, differs=NO_WARPS)
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


@case(2, 64, lambda: (real(128), np.zeros(2)), lambda x, out: {1: x.reshape(2, 64).sum(1)}, differs=NO_WARPS)
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
