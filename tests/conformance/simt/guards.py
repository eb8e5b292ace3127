"""Conditions on the index of a thread, where no thread waits for another."""

import numpy as np
from numba import cuda

from tests.conformance.simt.cases import again, case, real


@case(
    7,
    16,
    lambda: (2.5, real(100), real(100, seed=2), np.zeros(100)),
    lambda a, x, y, out: {3: a * x + y},
)
def saxpy(a, x, y, out):
    i = cuda.grid(1)
    if i < x.shape[0]:
        out[i] = a * x[i] + y[i]


@case(7, 16, lambda: (real(100), np.zeros(100)), lambda x, out: {1: x * x})
def early_return(x, out):
    i = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x
    if i >= x.size:
        return
    out[i] = x[i] * x[i]


def _stencil(x, out):
    out = out.copy()
    out[1:-1] = 0.25 * x[:-2] + 0.5 * x[1:-1] + 0.25 * x[2:]
    return {1: out}


@case(7, 16, lambda: (real(100), np.zeros(100)), _stencil)
def stencil_and(x, out):
    i = cuda.grid(1)
    n = x.shape[0]
    if i > 0 and i < n - 1:
        out[i] = 0.25 * x[i - 1] + 0.5 * x[i] + 0.25 * x[i + 1]


@case(3, 64, lambda: (real(100), np.zeros(100)), _stencil)
def stencil_chain(x, out):
    i = cuda.grid(1)
    if 0 < i < x.shape[0] - 1:
        out[i] = 0.25 * x[i - 1] + 0.5 * x[i] + 0.25 * x[i + 1]


@case(9, 13, lambda: (real(100), np.zeros(100)), _stencil)
def stencil_return(x, out):
    i = cuda.grid(1)
    if i <= 0 or i >= x.shape[0] - 1:
        return
    out[i] = 0.25 * x[i - 1] + 0.5 * x[i] + 0.25 * x[i + 1]


@case(9, 13, lambda: (real(100), np.zeros(100)), _stencil)
def stencil_not(x, out):
    i = cuda.grid(1)
    if not (1 <= i and x.shape[0] - 1 > i):
        return
    left = x[i - 1]
    out[i] = 0.25 * left + 0.5 * x[i] + 0.25 * x[i + 1]


def _float_guard(x, limit, out):
    i = np.arange(x.size)
    return {2: np.where(i < limit, x, 0.0) + np.where(i < limit, 0, 10.0)}


@case(7, 16, lambda: (real(100), 41.5, np.zeros(100)), _float_guard)
def float_guard(x, limit, out):
    i = cuda.grid(1)
    if i >= x.size:
        return
    if i < limit:
        out[i] = x[i]
    else:
        out[i] = 10.0


@case(
    7,
    16,
    lambda: (real(100), 41.5, np.zeros(100)),
    lambda x, limit, out: {2: np.where(np.arange(100) < limit, x, 0)},
)
def float_guard_alone(x, limit, out):
    i = cuda.grid(1)
    if i < limit and i < x.size:
        out[i] = x[i]


@case(
    7,
    16,
    lambda: (real(100), 41.5, np.zeros(100)),
    lambda x, limit, out: {2: np.where(np.arange(100) >= limit, 0, x)},
)
def float_return(x, limit, out):
    i = cuda.grid(1)
    if i >= limit or i >= x.size:
        return
    out[i] = x[i]


for _name, _limit in {
    "nan": np.nan,
    "inf": np.inf,
    "minus_inf": -np.inf,
    "negative": -3.25,
    "exact": 41.0,
}.items():
    for _of in ("float_guard", "float_guard_alone", "float_return"):
        again(f"{_of}_{_name}", _of, 7, 16, lambda limit=_limit: (real(100), limit, np.zeros(100)))


@case(
    5,
    16,
    lambda: (np.uint64(50), np.int32(7), np.zeros(80)),
    lambda n, low, out: {2: np.r_[[0] * 7, [1] * 43, [0] * 30]},
)
def typed_limits(n, low, out):
    i = cuda.grid(1)
    if i < n and i >= low:
        out[i] = 1.0


@case(
    5, 16, lambda: (30, np.zeros(80)), lambda k, out: {1: np.where(np.arange(80) == 30, 7.0, 0.0)}
)
def one_thread(k, out):
    i = cuda.grid(1)
    if i == k:
        out[i] = 7.0


@case(
    5,
    16,
    lambda: (np.zeros(80), real(80) > 0),
    lambda out, mask: {0: np.where(mask, np.arange(80.0), 0.0)},
)
def guard_with_rest(out, mask):
    i = cuda.grid(1)
    if i < out.size and mask[i]:
        out[i] = i


@case(
    5,
    16,
    lambda: (np.zeros(72), real(72)),
    lambda out, x: {0: np.where(x > 0, np.cumsum(np.ones(72)) * 2, -1.0)},
)
def code_before_guard(out, x):
    i = cuda.grid(1)
    n = x.size
    twice = (i + 1) * 2.0
    if i >= n:
        return
    if x[i] <= 0:
        out[i] = -1.0
        return
    out[i] = twice


@case(
    4,
    16,
    lambda: (np.zeros(60), np.zeros(64)),
    lambda out, seen: {0: np.arange(60.0), 1: np.ones(64)},
)
def effect_before_guard(out, seen):
    i = cuda.grid(1)
    seen[i] += 1.0
    if i >= out.size:
        return
    out[i] = i


@case(4, 16, lambda: (np.zeros(60),), lambda out: {0: np.where(np.arange(60) < 40, 40.0, 0.0)})
def limit_changes(out):
    i = cuda.grid(1)
    n = 40
    if i >= n:
        return
    m = n
    n = 5
    out[i] = m + n - 5
