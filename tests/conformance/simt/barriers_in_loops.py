"""Barriers in loops of every kind."""

import numpy as np
from numba import cuda, float64

from tests.conformance.simt.cases import again, case, flat, real, rows, whole

B = 16  # threads of most blocks


def _rotations(x, steps, out):
    made = rows(x, B)
    for k in range(steps):
        made = np.roll(made, -1, axis=1) + k
    return {2: made.ravel()}


@case(2, B, lambda: (real(32), 5, np.zeros(32)), _rotations)
def barrier_in_for(x, steps, out):
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    for k in range(steps):
        v = s[(t + 1) % B]
        cuda.syncthreads()
        s[t] = v + k
        cuda.syncthreads()
    out[cuda.grid(1)] = s[t]


again("barrier_in_for_never_run", "barrier_in_for", 2, B, lambda: (real(32), 0, np.zeros(32)))
again("barrier_in_for_once", "barrier_in_for", 2, B, lambda: (real(32), np.int32(1), np.zeros(32)))


@case(
    2,
    B,
    lambda: (real(32), 4, np.zeros(32)),
    lambda x, n, out: {2: _rotations(x, n, out)[2] + 100 * (n - 1) + n},
)
def counts_and_values_after_loop(x, steps, out):
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    done = 0
    for k in range(steps):
        cuda.syncthreads()
        v = s[(t + 1) % B] + k
        cuda.syncthreads()
        s[t] = v
        done += 1
    out[cuda.grid(1)] = v + 100 * k + done


@case(2, B, lambda: (real(32), np.zeros(2)), lambda x, out: {1: rows(x, B).sum(1)})
def halving_while(x, out):
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    step = cuda.blockDim.x // 2
    while step > 0:
        if t < step:
            s[t] += s[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        out[cuda.blockIdx.x] = s[0]


@case(
    2,
    B,
    lambda: (real(32), np.zeros(32)),
    lambda x, out: {1: np.cumsum(rows(x, B)[:, ::-1], 1)[:, ::-1].ravel()},
)
def downward_range(x, out):
    """Sums from the right, with a step that doubles while the range counts down."""
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    for k in range(3, -1, -1):
        reach = 1 << (3 - k)
        cuda.syncthreads()
        v = s[t + reach] if t + reach < B else 0.0
        cuda.syncthreads()
        s[t] += v
    out[cuda.grid(1)] = s[t]


def _stops(x, last, skipped, out):
    made = rows(x, B)
    for k in range(8):
        if k == skipped:
            continue
        if k == last:
            break
        made = np.roll(made, 1, axis=1) * 0.5
    return {3: made.ravel()}


@case(2, B, lambda: (real(32), 5, 2, np.zeros(32)), _stops)
def uniform_break_and_continue(x, last, skipped, out):
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    for k in range(8):
        cuda.syncthreads()
        if k == skipped:
            continue
        if k == last:
            break
        v = s[t - 1]  # Python's wraparound: thread 0 reads the last
        cuda.syncthreads()
        s[t] = v * 0.5
    out[cuda.grid(1)] = s[t]


again(
    "uniform_break_at_once",
    "uniform_break_and_continue",
    2,
    B,
    lambda: (real(32), 0, 3, np.zeros(32)),
)
again(
    "uniform_break_never",
    "uniform_break_and_continue",
    2,
    B,
    lambda: (real(32), 99, -1, np.zeros(32)),
)


def _returns(x, last, out):
    made = rows(x, B)
    for _ in range(last):
        made = np.roll(made, -1, axis=1) + 1
    return {2: made.ravel() if last < 6 else np.full(x.size, -1.0)}


@case(2, B, lambda: (real(32), 3, np.zeros(32)), _returns)
def uniform_return_in_nested_loops(x, last, out):
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i]
    done = 0
    for _ in range(2):
        for _ in range(3):
            cuda.syncthreads()
            if done == last:
                out[i] = s[t]
                return
            v = s[(t + 1) % B] + 1
            cuda.syncthreads()
            s[t] = v
            done += 1
    out[i] = -1.0


again(
    "uniform_return_never",
    "uniform_return_in_nested_loops",
    2,
    B,
    lambda: (real(32), 6, np.zeros(32)),
)


def _leaving(x, out):
    made = rows(x, B)
    result = np.zeros_like(made)
    for k in range(B):
        result[:, k] = made[:, k:].sum(1)
    return {1: result.ravel()}


@case(2, B, lambda: (real(32), np.zeros(32)), _leaving)
def threads_leave_one_by_one(x, out):
    """Thread k returns in round k; the others wait for each other alone."""
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i]
    for k in range(B):
        cuda.syncthreads()
        if t == k:
            total = 0.0
            for j in range(k, B):
                total += s[j]
            out[i] = total
            return
        cuda.syncthreads()
    out[i] = -1.0


def _until_small(x, limit, out):
    made, rounds = rows(x, B), []
    for row in made:
        count = 0
        while np.abs(row).max() > limit:
            row[:] = (row + np.roll(row, -1)) / 4
            count += 1
        rounds.append(count)
    return {2: made.ravel() + np.repeat(rounds, B)}


@case(3, B, lambda: (real(48) * np.repeat([1, 30, 0.01], B), 0.1, np.zeros(48)), _until_small)
def break_on_shared_value(x, limit, out):
    """How often the loop runs is read from memory: it looks different in each thread, and is the
    same in a block.
    """
    s = cuda.shared.array(B, float64)
    most = cuda.shared.array(1, float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i]
    count = 0
    while True:
        cuda.syncthreads()
        if t == 0:
            most[0] = 0.0
            for k in range(B):
                most[0] = max(most[0], abs(s[k]))
        cuda.syncthreads()
        if most[0] <= limit:
            break
        v = (s[t] + s[(t + 1) % B]) / 4
        cuda.syncthreads()
        s[t] = v
        count += 1
    out[i] = s[t] + count


@case(2, B, lambda: (real(70), np.zeros(70)), lambda x, out: {1: flat(rows(x, B)[:, ::-1], x)})
def grid_stride_with_barriers(x, out):
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    for base in range(cuda.blockIdx.x * B, x.size, cuda.gridsize(1)):
        s[t] = x[base + t] if base + t < x.size else 0.0
        cuda.syncthreads()
        if base + t < x.size:
            out[base + t] = s[B - 1 - t]
        cuda.syncthreads()


@case(2, B, lambda: (real(64), np.zeros(64)), lambda x, out: {1: rows(x, B)[:, ::-1].ravel()})
def grid_stride_while_with_barriers(x, out):
    """Each thread counts for itself, and all count equally far."""
    s = cuda.shared.array(B, float64)
    i = cuda.grid(1)
    while i < x.size:
        s[cuda.threadIdx.x] = x[i]
        cuda.syncthreads()
        out[i] = s[B - 1 - cuda.threadIdx.x]
        cuda.syncthreads()
        i += cuda.gridsize(1)


def _shifted_sums(x, out):
    made = rows(x, B)
    t = np.arange(B)
    return {1: sum(made[:, (t + k) % B] * (t + k) for k in range(0, 6, 2)).ravel()}


@case(2, B, lambda: (real(32), np.zeros(32)), _shifted_sums)
def range_from_thread(x, out):
    """The range starts elsewhere in each thread, and is equally long."""
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    v = 0.0
    for j in range(t, t + 6, 2):
        s[t] = x[cuda.grid(1)]
        cuda.syncthreads()
        v += s[j % B] * j
        cuda.syncthreads()
    out[cuda.grid(1)] = v


@case(
    2,
    B,
    lambda: (real(32), np.zeros(32)),
    lambda x, out: {1: np.repeat(np.maximum(rows(x, B), 0).sum(1), B) * 3},
)
def varying_continue_inside(x, out):
    """An inner loop without barriers, of which each thread skips parts, in a loop with barriers."""
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    v = 0.0
    for _ in range(3):
        s[t] = x[cuda.grid(1)]
        cuda.syncthreads()
        for k in range(B):
            if s[(k + t) % B] < 0:
                continue
            v += s[(k + t) % B]
        cuda.syncthreads()
    out[cuda.grid(1)] = v


# ---- threads that leave the loop at different turns, and have nothing to do after it


def _running_sums(x, length, out):
    """Each thread adds up the elements of its neighbours in the loop, as long as it runs."""
    made, lengths = rows(x, B), rows(length, B)
    result = np.zeros_like(made)
    for k in range(lengths.max()):
        result += np.where(lengths > k, made * (k + 1), 0)
    return {2: result.ravel()}


LENGTHS = (2, B, lambda: (real(32), whole(32, low=0, high=7), np.zeros(32)))


@case(*LENGTHS, _running_sums)
def while_of_each_thread(x, length, out):
    s = cuda.shared.array(B, float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    k = 0
    while k < length[i]:
        s[t] = x[i]
        k += 1
        cuda.syncthreads()
        out[i] += s[t] * k


@case(*LENGTHS, _running_sums)
def break_of_each_thread(x, length, out):
    s = cuda.shared.array(B, float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    for k in range(100):
        if k == length[i]:
            break
        s[t] = x[i]
        cuda.syncthreads()
        out[i] += s[t] * (k + 1)
