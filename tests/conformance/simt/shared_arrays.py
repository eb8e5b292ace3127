"""Shared arrays of every type, static and dynamic."""

import numba
import numpy as np
from numba import boolean, cuda, float32, float64, int32, int64, uint8

from tests.conformance.simt.cases import again, case, real, rows, values, whole

B = 16
SHAPE = (B, 3)
HALF = B // 2
PADDED = B + 2
PARTICLE = np.dtype([("place", np.float64), ("charge", np.int32)], align=True)
PARTICLE_TYPE = numba.from_dtype(PARTICLE)


def mirrored(x, out):
    """What a block writes that turns its part of `x` around."""
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


@case(
    2,
    B,
    lambda: (values(bool, 32), np.zeros(32, bool)),
    lambda x, out: {1: ~mirrored(x, out)[1] & x},
)
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
    lambda x, k, out: {2: mirrored(x, 0)[1] * (mirrored(k, 0)[1] + 1.0)},
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


def particles():
    made = np.zeros(32, PARTICLE)
    made["place"], made["charge"] = real(32), whole(32)
    return made, np.zeros(32), np.zeros(32, PARTICLE)


def _moved(p, out, moved):
    swapped = rows(p, B)[:, ::-1].ravel()
    result = np.zeros(32, PARTICLE)
    result["place"], result["charge"] = swapped["place"] + 1, swapped["charge"]
    return {1: swapped["place"] * p["charge"], 2: result}


@case(2, B, particles, _moved, differs="its records in shared memory have no attributes")
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


# ---- shared arrays in other ways


def make_shared_of_closure(size, kind):
    def shared_of_closure(x, out):
        s = cuda.shared.array(size, kind)
        t = cuda.threadIdx.x
        s[t] = x[cuda.grid(1)]
        cuda.syncthreads()
        out[cuda.grid(1)] = s[size - 1 - t]

    return shared_of_closure


case(2, B, lambda: (real(32), np.zeros(32)), mirrored)(make_shared_of_closure(B, float64))


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
        1: np.stack(
            [
                made.sum(1),
                made.max(1),
                made.min(1),
                np.bitwise_or.reduce(made, 1),
                np.bitwise_xor.reduce(made, 1),
            ],
            1,
        )
    }


@case(
    2,
    B,
    lambda: (whole(32, low=0, high=1000, dtype=np.int32), np.zeros((2, 5), np.int32)),
    _atomics,
)
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


# ---- dynamic shared memory


@case(3, B, lambda: (real(40), np.zeros(40)), mirrored, shared=B * 8)
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
    return {2: mirrored(x, 0)[1].astype(np.float64) + mirrored(k, 0)[1]}


@case(
    2,
    B,
    lambda: (real(32, dtype=np.float32), whole(32, dtype=np.int32), np.zeros(32)),
    _two_views,
    shared=B * 8,
)
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


@case(
    1,
    B,
    lambda: (whole(16, dtype=np.int32), np.zeros(64, np.uint8)),
    lambda x, out: {1: x.view(np.uint8)},
    shared=B * 4,
)
def dynamic_array_as_bytes(x, out):
    words = cuda.shared.array(0, dtype=int32)
    t = cuda.threadIdx.x
    words[t] = x[t]
    cuda.syncthreads()
    octets = cuda.shared.array(0, dtype=uint8)
    for k in range(4):
        out[t + k * B] = octets[t + k * B]


@case(
    2, B, lambda: (real(32), np.zeros(32)), lambda x, out: {1: 3 * mirrored(x, 0)[1]}, shared=B * 8
)
def dynamic_beside_static(x, out):
    s = cuda.shared.array(0, float64)
    fixed = cuda.shared.array(B, float64)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    fixed[t] = 2 * x[cuda.grid(1)]
    cuda.syncthreads()
    out[cuda.grid(1)] = s[B - 1 - t] + fixed[B - 1 - t]
