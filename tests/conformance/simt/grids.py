"""Blocks that work together: through atomic operations and fences, and by waiting for each
other.
"""

import numpy as np
from numba import cuda, float64, int32, int64

from tests.conformance.simt.cases import again, case, real, rows, whole

B = 16
ONE_BLOCK = "the simulator runs one block that waits for the grid, and no more"


@case(
    4,
    B,
    lambda: (real(64), np.zeros(4), np.zeros(1, np.uint32), np.zeros(1)),
    lambda x, partial, done, out: {1: rows(x, B).sum(1), 2: [0], 3: [x.sum()]},
)
def last_block_adds_up(x, partial, done, out):
    """The threadFenceReduction of the CUDA samples; the counter is zero again in the end."""
    s = cuda.shared.array(B, float64)
    last = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    step = B // 2
    while step > 0:
        cuda.syncthreads()
        if t < step:
            s[t] += s[t + step]
        step //= 2
    if t == 0:
        partial[cuda.blockIdx.x] = s[0]
        cuda.threadfence()
        place = cuda.atomic.inc(done, 0, cuda.gridDim.x - 1)
        last[0] = 1 if place == cuda.gridDim.x - 1 else 0
    cuda.syncthreads()
    if last[0] == 1 and t == 0:
        total = 0.0
        for k in range(cuda.gridDim.x):
            total += partial[k]
        out[0] = total


again(
    "last_block_of_one",
    "last_block_adds_up",
    1,
    B,
    lambda: (real(16), np.zeros(1), np.zeros(1, np.uint32), np.zeros(1)),
)


@case(
    (2, 3),
    (4, 2),
    lambda: (np.zeros(1, np.int32), np.zeros(48, np.int64)),
    lambda tickets, out: {0: [6], 1: np.repeat(np.arange(6), 8)},
    unordered=(1,),
)
def tickets(tickets, out):
    """Each block draws a number; which one depends on the order of blocks."""
    mine = cuda.shared.array(1, int32)
    t = cuda.threadIdx.y * 4 + cuda.threadIdx.x
    if t == 0:
        mine[0] = cuda.atomic.add(tickets, 0, 1)
    cuda.syncthreads()
    b = cuda.blockIdx.y * 2 + cuda.blockIdx.x
    out[b * 8 + t] = mine[0]


@case(1, 32, lambda: (real(32), np.zeros(32)), lambda x, out: {1: x[::-1]}, cooperative=True)
def grid_of_one_block(x, out):
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    out[i] = x[i]
    grid.sync()
    v = out[31 - i]
    grid.sync()
    out[i] = v


@case(
    4,
    B,
    lambda: (real(60), np.zeros(64)),
    lambda x, out: {1: np.r_[np.zeros(4), x[::-1]]},
    cooperative=True,
    differs=ONE_BLOCK,
)
def reverse_grid(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i]
    cuda.cg.this_grid().sync()
    v = out[63 - i]
    cuda.cg.this_grid().sync()
    out[i] = v


@case(
    4,
    B,
    lambda: (whole(60), np.zeros(4, np.int64), np.zeros(60, np.int64)),
    lambda x, sums, out: {2: x.cumsum()},
    cooperative=True,
    differs=ONE_BLOCK,
)
def prefix_sum_of_grid(x, sums, out):
    """A scan of each block; then each block adds the sums of those before."""
    s = cuda.shared.array(B, int64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i] if i < x.size else 0
    reach = 1
    while reach < B:
        cuda.syncthreads()
        v = s[t - reach] if t >= reach else 0
        cuda.syncthreads()
        s[t] += v
        reach *= 2
    if t == B - 1:
        sums[cuda.blockIdx.x] = s[t]
    cuda.cg.this_grid().sync()
    before = 0
    for k in range(cuda.blockIdx.x):
        before += sums[k]
    if i < x.size:
        out[i] = before + s[t]


def _relaxed(u, other, steps):
    made = u.copy()
    for _ in range(steps):
        made[1:-1] = (made[:-2] + made[2:]) / 2
    return {0 if steps % 2 == 0 else 1: made}


@case(3, B, lambda: (real(48), np.zeros(48), 5), _relaxed, cooperative=True, differs=ONE_BLOCK)
def grid_sync_in_loop(u, other, steps):
    """Two arrays that change places in each step."""
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    for k in range(steps):
        if k % 2 == 0:
            other[i] = (u[i - 1] + u[i + 1]) / 2 if 0 < i < u.size - 1 else u[i]
        else:
            u[i] = (other[i - 1] + other[i + 1]) / 2 if 0 < i < u.size - 1 else other[i]
        grid.sync()


again("grid_sync_in_even_loop", "grid_sync_in_loop", 3, B, lambda: (real(48), np.zeros(48), 4))


def _converged(u, change, out, limit):
    made, rounds = u.copy(), 0
    while np.abs(np.diff(made)).max() > limit:
        made = (made + np.roll(made, -1)) / 2
        rounds += 1
    return {2: np.r_[made, rounds]}


@case(
    2,
    B,
    lambda: (real(32), np.zeros(2), np.zeros(33), 0.5),
    _converged,
    cooperative=True,
    differs=ONE_BLOCK,
)
def grid_loops_until_converged(u, change, out, limit):
    """How often the grid meets is decided by what all blocks have computed."""
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    rounds = 0
    out[i] = u[i]
    while True:
        grid.sync()
        if i < 31:
            cuda.atomic.max(change, 0, abs(out[i + 1] - out[i]))
        grid.sync()
        if change[0] <= limit:
            break
        v = (out[i] + out[(i + 1) % 32]) / 2
        grid.sync()
        out[i] = v
        if i == 0:
            change[0] = 0.0
        rounds += 1
    if i == 0:
        out[32] = rounds


def _shared_over_grid(x, out):
    made = rows(x, B)
    return {1: (made[::-1, ::-1] + made * 100).ravel()}


@case(
    2,
    B,
    lambda: (whole(32), np.zeros(32, np.int64)),
    _shared_over_grid,
    cooperative=True,
    differs=ONE_BLOCK,
)
def shared_and_local_memory_over_grid_sync(x, out):
    """What a block, and what a thread, keeps while the whole grid meets."""
    s = cuda.shared.array(B, int64)
    kept = cuda.local.array(2, int64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    kept[0] = x[i]
    kept[1] = 100
    s[t] = x[i]
    row = out[cuda.blockIdx.x * B : (cuda.blockIdx.x + 1) * B]
    row[t] = -1
    cuda.cg.this_grid().sync()
    out[31 - i] = s[t]
    cuda.cg.this_grid().sync()
    row[t] += kept[0] * kept[1]


@case(
    3,
    B,
    lambda: (real(48), np.zeros(48)),
    lambda x, out: {1: 2 * x[::-1]},
    cooperative=True,
    differs=ONE_BLOCK,
)
def grid_group_assigned_in_a_tuple(x, out):
    g, i = cuda.cg.this_grid(), cuda.grid(1)
    out[i] = x[i]
    g.sync()
    (j, h), v = (out.size - 1 - i, cuda.cg.this_grid()), 2.0
    v *= out[j]
    h.sync()
    out[i] = v


# ---- groups as values


@cuda.jit(device=True)
def _waits(group):
    group.sync()


@cuda.jit(device=True)
def _smoothed(a, b, i, grid):
    b[i] = a[i] + a[(i + 1) % a.size]
    grid.sync()


@cuda.jit(device=True)
def _smoothed_twice(a, b, i, grid):
    _smoothed(a, b, i, grid=grid)
    _smoothed(b, a, i, grid)


@cuda.jit(device=True)
def _group_and_place():
    return cuda.cg.this_grid(), cuda.grid(1)


@cuda.jit(device=True)
def _same_group(group):
    return group


def _smooth(turns):
    def expect(a, b):
        for _ in range(turns):
            a = a + np.roll(a, -1)
        return {0: a}

    return expect


SMOOTH = (3, B, lambda: (real(48), np.zeros(48)))
WAITING = {"cooperative": True, "differs": ONE_BLOCK}


@case(*SMOOTH, _smooth(2), **WAITING)
def group_as_an_argument(a, b):
    i = cuda.grid(1)
    grid = cuda.cg.this_grid()
    _smoothed(a, b, i, grid)
    _smoothed(b, a, i, grid)


@case(*SMOOTH, _smooth(6), **WAITING)
def group_handed_on_in_a_loop(a, b):
    for _ in range(3):
        _smoothed_twice(a, b, cuda.grid(1), cuda.cg.this_grid())


@case(*SMOOTH, _smooth(1), **WAITING)
def group_as_a_result(a, b):
    group, i = _group_and_place()
    b[i] = a[i] + a[(i + 1) % a.size]
    group.sync()
    a[i] = b[i]
    _same_group(group).sync()


@case(*SMOOTH, _smooth(1), **WAITING)
def group_in_a_tuple(a, b):
    i, pair = cuda.grid(1), (1, cuda.cg.this_grid())
    b[i] = a[i] + a[(i + pair[0]) % a.size]
    pair[1].sync()
    _, group = pair
    a[i] = b[i]
    _waits(group)


@case(*SMOOTH, _smooth(1), **WAITING)
def group_among_variables(a, b):
    i, grid = cuda.grid(1), cuda.cg.this_grid()
    same = grid
    b[i] = a[i] + a[(i + 1) % a.size]
    if b.size > 1:
        _waits(same)
    a[i] = b[i]
