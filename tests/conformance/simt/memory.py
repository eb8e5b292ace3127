"""Shared and local arrays, and variables of every kind that live across barriers."""

import enum
from collections import namedtuple

import numba
import numpy as np
from numba import boolean, complex128, cuda, float32, float64, int32, int64, uint8

from tests.conformance.simt.cases import again, case, real, rows, values, whole

B = 16
SHAPE = (B, 3)
HALF = B // 2
PADDED = B + 2
BIASES = np.array([0.5, -1.0, 2.0])
PARTICLE = np.dtype([("place", np.float64), ("charge", np.int32)], align=True)
PARTICLE_TYPE = numba.from_dtype(PARTICLE)
Range = namedtuple("Range", ["low", "high"])


class Kind(enum.IntEnum):
    FIRST = 3
    SECOND = 5


def _reversed(x, out):
    return {1: rows(x, B)[:, ::-1].ravel()[: x.size]}


# ---- shared arrays of each type


def make_mirror(kind):
    def mirror(x, out):
        """Through shared memory and across a barrier, as a value of one type."""
        s = cuda.shared.array(B, kind)
        t = cuda.threadIdx.x
        i = cuda.grid(1)
        mine = x[i]
        s[t] = mine
        cuda.syncthreads()
        out[0, i] = s[B - 1 - t]
        out[1, i] = mine

    return mirror


for _kind in (
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float32",
    "float64",
    "complex64",
    "complex128",
):
    case(
        2,
        B,
        lambda kind=_kind: (values(kind, 32), np.zeros((2, 32), kind)),
        lambda x, out: {1: np.stack([rows(x, B)[:, ::-1].ravel(), x])},
        name=f"mirror_{_kind}",
    )(make_mirror(getattr(numba, _kind)))


@case(2, B, lambda: (values(bool, 32), np.zeros(32, bool)), lambda x, out: {1: ~_reversed(x, out)[1] & x})
def mirror_bool(x, out):
    s = cuda.shared.array(B, boolean)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    mine = x[i]
    s[t] = mine
    cuda.syncthreads()
    other = not s[B - 1 - t]
    cuda.syncthreads()
    out[i] = other and mine


@case(
    3,
    B,
    lambda: (real(40), whole(40, low=0, high=9, dtype=np.uint8), np.zeros(40)),
    lambda x, k, out: {2: _reversed(x, 0)[1] * (_reversed(k, 0)[1] + 1.0)},
)
def two_shared_arrays(x, k, out):
    s = cuda.shared.array(B, float64)
    factors = cuda.shared.array(shape=B, dtype=uint8)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = 0.0
    factors[t] = 0
    if i < x.size:
        s[t] = x[i]
        factors[t] = k[i]
    cuda.syncthreads()
    if i < x.size:
        out[i] = s[B - 1 - t] * (factors[B - 1 - t] + 1)


@case(
    2,
    B,
    lambda: (real(32, 3), np.zeros((32, 3))),
    lambda a, out: {1: np.concatenate([p[::-1, ::-1] for p in a.reshape(2, B, 3)])},
)
def shared_array_of_global_shape(a, out):
    s = cuda.shared.array(SHAPE, float64)
    t = cuda.threadIdx.x
    for k in range(SHAPE[1]):
        s[t, k] = a[cuda.grid(1), k]
    cuda.syncthreads()
    for k in range(3):
        out[cuda.grid(1), k] = s[B - 1 - t, 2 - k]


@case(
    2,
    B,
    lambda: (real(32), np.zeros(32)),
    lambda x, out: {1: np.roll(np.c_[np.zeros(2), rows(x, B), np.ones(2)], 2, 1)[:, :B].ravel()},
)
def shared_array_larger_than_block(x, out):
    s = cuda.shared.array(PADDED, float64)
    t = cuda.threadIdx.x
    s[t + 1] = x[cuda.grid(1)]
    if t == 0:
        s[0] = 0.0
        s[B + 1] = 1.0
    cuda.syncthreads()
    out[cuda.grid(1)] = s[(t - 2) % PADDED]


@case(
    2,
    (4, 4),
    lambda: (whole(2, 4, 4, 2), np.zeros((2, 4, 4, 2), np.int64)),
    lambda a, out: {1: a.transpose(0, 2, 1, 3)[..., ::-1]},
)
def shared_array_3d(a, out):
    s = cuda.shared.array((4, 4, 2), int64)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    b = cuda.blockIdx.x
    for k in range(2):
        s[y, x, k] = a[b, y, x, k]
    cuda.syncthreads()
    for k in range(2):
        out[b, y, x, k] = s[x, y, 1 - k]


@case(
    2,
    B,
    lambda: (real(32, 3), np.zeros(32)),
    lambda a, out: {1: np.concatenate([p[::-1] for p in a.reshape(2, B, 3)]) @ [1, 2, 3]},
)
def row_of_shared_array(a, out):
    s = cuda.shared.array((B, 3), float64)
    t = cuda.threadIdx.x
    mine = s[t]
    for k in range(3):
        mine[k] = a[cuda.grid(1), k]
    cuda.syncthreads()
    other = s[B - 1 - t, :]
    out[cuda.grid(1)] = other[0] + 2 * other[1] + 3 * other[2]


@case(1, B, lambda: (real(16), np.zeros(16)), lambda x, out: {1: np.r_[x[8:], x[:8] * 2]})
def slices_of_shared_array(x, out):
    s = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    low = s[:HALF]
    high = s[HALF:]
    s[t] = x[t]
    cuda.syncthreads()
    if t < HALF:
        v = high[t]
    else:
        v = 2 * low[t - HALF]
    cuda.syncthreads()
    s[t] = v
    cuda.syncthreads()
    out[t] = low[t] if t < low.size else high[t - HALF]


def _particles():
    made = np.zeros(32, PARTICLE)
    made["place"], made["charge"] = real(32), whole(32)
    return made, np.zeros(32), np.zeros(32, PARTICLE)


def _moved(p, out, moved):
    swapped = rows(p, B)[:, ::-1].ravel()
    result = np.zeros(32, PARTICLE)
    result["place"], result["charge"] = swapped["place"] + 1, swapped["charge"]
    return {1: swapped["place"] * p["charge"], 2: result}


@case(2, B, _particles, _moved, differs="its records in shared memory have no attributes")
def shared_records(p, out, moved):
    s = cuda.shared.array(B, PARTICLE_TYPE)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t].place = p[i].place
    s[t]["charge"] = p[i]["charge"]
    cuda.syncthreads()
    other = s[B - 1 - t]
    out[i] = other.place * p[i].charge
    moved[i].place = other.place + 1
    moved[i].charge = other["charge"]


# ---- dynamic shared memory


@case(3, B, lambda: (real(40), np.zeros(40)), _reversed, shared=B * 8)
def dynamic_array(x, out):
    s = cuda.shared.array(0, float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = 0.0
    if i < x.size:
        s[t] = x[i]
    cuda.syncthreads()
    if i < x.size:
        out[i] = s[cuda.blockDim.x - 1 - t]


def _two_views(x, k, out):
    return {2: _reversed(x, 0)[1].astype(np.float64) + _reversed(k, 0)[1]}


@case(2, B, lambda: (real(32, dtype=np.float32), whole(32, dtype=np.int32), np.zeros(32)), _two_views, shared=B * 8)
def dynamic_array_as_two(x, k, out):
    """The same memory as two arrays: the first half holds reals, the second integers."""
    n = cuda.blockDim.x
    both = cuda.shared.array(0, dtype=float32)
    reals = both[:n]
    integers = cuda.shared.array(0, dtype=int32)[n : 2 * n]
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    reals[t] = x[i]
    integers[t] = k[i]
    cuda.syncthreads()
    out[i] = reals[n - 1 - t] + float64(integers[n - 1 - t])


@case(1, B, lambda: (whole(16, dtype=np.int32), np.zeros(64, np.uint8)), lambda x, out: {1: x.view(np.uint8)}, shared=B * 4)
def dynamic_array_as_bytes(x, out):
    words = cuda.shared.array(0, dtype=int32)
    t = cuda.threadIdx.x
    words[t] = x[t]
    cuda.syncthreads()
    octets = cuda.shared.array(0, dtype=uint8)
    for k in range(4):
        out[t + k * B] = octets[t + k * B]


@case(2, B, lambda: (real(32), np.zeros(32)), lambda x, out: {1: 3 * _reversed(x, 0)[1]}, shared=B * 8)
def dynamic_beside_static(x, out):
    s = cuda.shared.array(0, float64)
    fixed = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    fixed[t] = 2 * x[cuda.grid(1)]
    cuda.syncthreads()
    out[cuda.grid(1)] = s[B - 1 - t] + fixed[B - 1 - t]


# ---- local arrays


@case(2, B, lambda: (real(32), np.zeros(32)), lambda x, out: {1: sum(_reversed(x, 0)[1] ** k * (4 - k) for k in range(4)) + x})
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
    """A median of three, sorted in local memory between barriers; one thread in two writes a second local array."""
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


@case(2, B, lambda: (values(complex, 32), np.zeros(32, complex)), lambda z, out: {1: z * z + _reversed(z, 0)[1].conj() * 1j})
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
    swapped = _reversed(x, 0)[1]
    return {2: np.where((x > limits.low) & (x < limits.high), swapped, x) + 2.5 * (np.arange(32) % B)}


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


@case(2, B, lambda: (real(32), np.zeros(32)), lambda x, out: {1: np.where(_reversed(x, 0)[1] > x, _reversed(x, 0)[1] - x, 0.0)})
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


@case(2, B, _particles, lambda p, out, moved: {1: p["place"] * _reversed(p["charge"], 0)[1]})
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
    lambda x, out: {1: _reversed(x, 0)[1] * np.where(np.arange(32) % 2, 3, 5) + BIASES[np.arange(32) % 3]},
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


@case(2, B, lambda: (whole(32), 3, np.zeros(32, np.int64)), lambda x, n, out: {2: x * 8 + 7 + 2 * n})
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


def make_shared_of_closure(size, kind):
    def shared_of_closure(x, out):
        s = cuda.shared.array(size, kind)
        t = cuda.threadIdx.x
        s[t] = x[cuda.grid(1)]
        cuda.syncthreads()
        out[cuda.grid(1)] = s[size - 1 - t]

    return shared_of_closure


case(2, B, lambda: (real(32), np.zeros(32)), _reversed)(make_shared_of_closure(B, float64))


@case(
    2,
    B,
    lambda: (whole(32, low=0, high=10), np.zeros((2, 10), np.int64)),
    lambda x, out: {1: [np.bincount(r, minlength=10) for r in rows(x, B)]},
)
def shared_counters(x, out):
    """Fewer counters than threads: cleared, counted and copied by loops over the block."""
    counts = cuda.shared.array(10, int64)
    t = cuda.threadIdx.x
    for k in range(t, 10, cuda.blockDim.x):
        counts[k] = 0
    cuda.syncthreads()
    cuda.atomic.add(counts, x[cuda.grid(1)], 1)
    cuda.syncthreads()
    for k in range(t, 10, cuda.blockDim.x):
        out[cuda.blockIdx.x, k] = counts[k]


again(
    "shared_counters_wide_block",
    "shared_counters",
    1,
    50,
    lambda: (whole(50, low=0, high=10), np.zeros((1, 10), np.int64)),
    lambda x, out: {1: [np.bincount(x, minlength=10)]},
)


def _atomics(x, out):
    made = rows(x, B)
    return {
        1: np.stack([made.sum(1), made.max(1), made.min(1), np.bitwise_or.reduce(made, 1), np.bitwise_xor.reduce(made, 1)], 1)
    }


@case(2, B, lambda: (whole(32, low=0, high=1000, dtype=np.int32), np.zeros((2, 5), np.int32)), _atomics)
def atomics_on_shared_memory(x, out):
    s = cuda.shared.array(5, int32)
    t = cuda.threadIdx.x
    if t < 5:
        s[t] = 0
    if t == 2:
        s[t] = 1 << 30
    cuda.syncthreads()
    v = x[cuda.grid(1)]
    cuda.atomic.add(s, 0, v)
    cuda.atomic.max(s, 1, v)
    cuda.atomic.min(s, 2, v)
    cuda.atomic.or_(s, 3, v)
    cuda.atomic.xor(s, 4, v)
    cuda.syncthreads()
    if t < 5:
        out[cuda.blockIdx.x, t] = s[t]
