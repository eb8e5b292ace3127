"""Local arrays, and variables of every kind that live across barriers."""

import enum
from collections import namedtuple

import numpy as np
from numba import complex128, cuda, float32, float64, int32, int64

from tests.conformance.simt.cases import case, real, rows, values, whole
from tests.conformance.simt.shared_arrays import mirrored, particles

B = 16
BIASES = np.array([0.5, -1.0, 2.0])
Range = namedtuple("Range", ["low", "high"])


class Kind(enum.IntEnum):
    FIRST = 3
    SECOND = 5


# ---- local arrays


@case(
    2,
    B,
    lambda: (real(32), np.zeros(32)),
    lambda x, out: {1: sum(mirrored(x, 0)[1] ** k * (4 - k) for k in range(4)) + x},
)
def local_array_across_barriers(x, out):
    s = cuda.shared.array(B, float64)
    powers = cuda.local.array(4, float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    powers[0] = x[i]
    for k in range(1, 4):
        s[t] = x[i] ** k
        cuda.syncthreads()
        powers[k] = s[B - 1 - t]
        cuda.syncthreads()
    v = 4.0 + powers[0]
    for k in range(1, 4):
        v += powers[k] * (4 - k)
    out[i] = v


def _window(x, out):
    made = rows(x, B)
    window = np.stack([np.roll(made, -k, axis=1) for k in range(3)], 2)
    return {1: (np.sort(window, 2)[..., 1] + np.where(np.arange(B) % 2, 10, 0)).ravel()}


@case(2, B, lambda: (whole(32), np.zeros(32, np.int64)), _window)
def local_array_filled_in_loop(x, out):
    """A median of three, sorted in local memory between barriers; one thread in two writes a
    second local array.
    """
    s = cuda.shared.array(B, int64)
    window = cuda.local.array(shape=3, dtype=int64)
    more = cuda.local.array((2, 2), int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i]
    more[1, 1] = 0
    for k in range(3):
        cuda.syncthreads()
        window[k] = s[(t + k) % B]
        if t % 2 == 1 and k == 2:
            more[1, 1] = 10
    cuda.syncthreads()
    for k in range(2):
        for j in range(2 - k):
            if window[j] > window[j + 1]:
                window[j], window[j + 1] = window[j + 1], window[j]
    out[i] = window[1] + more[1, 1]


# ---- variables of other kinds


def _single(x, out):
    a = x * np.float32(1.1)
    b = a * a + rows(x, B)[:, ::-1].ravel()
    return {1: b / np.float32(3)}


@case(2, B, lambda: (real(32, dtype=np.float32), np.zeros(32, np.float32)), _single, rtol=1e-6)
def single_precision_across_barriers(x, out):
    s = cuda.shared.array(B, float32)
    t = cuda.threadIdx.x
    a = x[cuda.grid(1)] * float32(1.1)
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    b = a * a + s[B - 1 - t]
    cuda.syncthreads()
    out[cuda.grid(1)] = b / float32(3)


def _widths(a, b, c, out):
    sums = a.astype(np.int64) + b.astype(np.int64) * 3 - c.astype(np.int64)
    return {3: sums + np.arange(32) % B}


@case(
    2,
    B,
    lambda: (
        whole(32, dtype=np.int8, high=127),
        whole(32, low=0, dtype=np.uint16),
        whole(32, dtype=np.int32),
        np.zeros(32, np.int64),
    ),
    _widths,
    differs="NumPy scalars of 8 and 16 bits wrap around; Numba computes in int64, on GPUs too",
)
def widths_across_barriers(a, b, c, out):
    i = cuda.grid(1)
    p, q, r = a[i], b[i], c[i]
    t = cuda.threadIdx.x
    cuda.syncthreads()
    v = p + q * 3
    cuda.syncthreads()
    out[i] = v - r + t


@case(
    2,
    B,
    lambda: (values(complex, 32), np.zeros(32, complex)),
    lambda z, out: {1: z * z + mirrored(z, 0)[1].conj() * 1j},
)
def complex_across_barriers(z, out):
    s = cuda.shared.array(B, complex128)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    v = z[i]
    s[t] = v
    w = v * v
    cuda.syncthreads()
    other = s[B - 1 - t]
    out[i] = w + complex(other.real, -other.imag) * 1j


def _tuples(x, limits, out):
    swapped = mirrored(x, 0)[1]
    return {
        2: np.where((x > limits.low) & (x < limits.high), swapped, x) + 2.5 * (np.arange(32) % B)
    }


@case(2, B, lambda: (real(32), Range(-1.0, 1.25), np.zeros(32)), _tuples)
def tuples_across_barriers(x, limits, out):
    s = cuda.shared.array(B, float64)
    i = cuda.grid(1)
    mine = (cuda.threadIdx.x, x[i], limits.low < x[i] < limits.high)
    scale = (2, 0.5)
    s[mine[0]] = mine[1]
    cuda.syncthreads()
    place, value, inside = mine
    if inside:
        value = s[B - 1 - place]
    cuda.syncthreads()
    out[i] = value + (scale[0] + scale[1]) * mine[0]


@case(
    2,
    B,
    lambda: (real(32), np.zeros(32)),
    lambda x, out: {1: np.where(mirrored(x, 0)[1] > x, mirrored(x, 0)[1] - x, 0.0)},
)
def named_tuple_made_in_kernel(x, out):
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i]
    cuda.syncthreads()
    reach = Range(x[i], s[B - 1 - t])
    cuda.syncthreads()
    s[t] = 0.0
    out[i] = reach.high - reach.low if reach.high > reach.low else s[t]


@case(
    2,
    B,
    lambda: (real(32, 5), np.zeros((32, 5)), np.zeros(32)),
    lambda a, b, out: {1: a[:, ::-1], 2: np.repeat(a.reshape(2, -1).sum(1), B)},
)
def views_across_barriers(a, b, out):
    """Each thread keeps its own rows of two arrays, one of them sliced."""
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    source = a[i]
    target = b[i, ::-1]
    total = 0.0
    for k in range(source.size):
        s[t] = source[k]
        cuda.syncthreads()
        for j in range(B):
            total += s[j]
        target[k] = source[k]
        cuda.syncthreads()
    out[i] = total


@case(2, B, particles, lambda p, out, moved: {1: p["place"] * mirrored(p["charge"], 0)[1]})
def record_across_barriers(p, out, moved):
    s = cuda.shared.array(B, int32)
    t = cuda.threadIdx.x
    mine = p[cuda.grid(1)]
    s[t] = mine.charge
    cuda.syncthreads()
    other = s[B - 1 - t]
    cuda.syncthreads()
    out[cuda.grid(1)] = mine.place * other


@case(
    2,
    B,
    lambda: (real(32), np.zeros(32)),
    lambda x, out: {
        1: mirrored(x, 0)[1] * np.where(np.arange(32) % 2, 3, 5) + BIASES[np.arange(32) % 3]
    },
)
def enums_and_constants(x, out):
    s = cuda.shared.array(B, float64)
    biases = cuda.const.array_like(BIASES)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i]
    kind = Kind.FIRST if t % 2 else Kind.SECOND
    cuda.syncthreads()
    factor = 3
    if kind == Kind.SECOND:
        factor = 5
    out[i] = s[B - 1 - t] * factor + biases[i % 3]


def _late(x, out):
    made = rows(x, B)
    best = np.zeros_like(made)
    for k in range(1, 4):
        other = np.roll(made, -k, axis=1)
        best = np.where(other > made, other, best)
    return {1: best.ravel()}


@case(2, B, lambda: (real(32), np.zeros(32)), _late)
def variable_set_now_and_then(x, out):
    """A variable that some threads set in some rounds, read after the loop."""
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i]
    best = 0.0
    found = False
    for k in range(1, 4):
        cuda.syncthreads()
        if s[(t + k) % B] > x[i]:
            best = s[(t + k) % B]
            found = True
    cuda.syncthreads()
    if found:
        out[i] = best


@case(
    2, B, lambda: (whole(32), 3, np.zeros(32, np.int64)), lambda x, n, out: {2: x * 8 + 7 + 2 * n}
)
def parameters_reassigned(x, n, out):
    i = cuda.grid(1)
    v = x[i]
    for _ in range(3):
        cuda.syncthreads()
        v = 2 * v + 1
        n = n + 1
        x = out
        cuda.syncthreads()
        x[i] = v
    out[i] = x[i] + 2 * (n - 3)
