"""Moments, histograms and covariances of sharded rows.

Moments and covariances take two passes: the mean first, then sums of powers of the deviations from
it,

    M_k = Σ (x − c)^k,  c the mean of the first pass

A single pass with Σx² loses all digits where the mean is large and the deviations are small. The
computed mean is rounded, so M_1 is not exactly zero, and the second moment is corrected to M_2 −
M_1²/n. Source: T. Chan, G. Golub and R. LeVeque, "Algorithms for computing the sample variance",
The American Statistician 37 (1983), equation 1.7. Skewness and kurtosis are the population
estimators without bias correction, g1 = m_3/m_2^(3/2) and g2 = m_4/m_2² − 3 with m_k = M_k/n.

Histograms are counted in shared memory, where atomic additions are fast, and added to the result
once per block.
Source: V. Podlozhnyuk, "Histogram calculation in CUDA" (NVIDIA, 2007).
"""

from typing import NamedTuple

import numpy as np
from numba import cuda, float64, int32

import synknumba as synk
from synknumba.kernels.reduce import column_sums

_BINS = 2048  # at most, in 8 KiB of shared memory; with more bins, atomics go to global memory
_TILE = 16


def _grid(rows):
    """Returns the number of 256-thread blocks: one thread per row, up to 1024 blocks; beyond that,
    threads stride over rows.

    The cost is then one atomic addition per thread, not per row.
    """
    return max(1, min(1024, -(-rows // 256)))


@synk.parallel(grid=_grid, outputs={"sums": synk.output("sum", shape=4, dtype="float64")})
@cuda.jit
def power_sums(x, center, sums):
    """Computes Σ (x − c)^k for k = 1 … 4.

    Args:
        x: real, shape (n,); sharded.
        center: c; float, in the unit of x.
        sums: float64, shape (4,), element k − 1 for power k.
    """
    s1 = 0.0
    s2 = 0.0
    s3 = 0.0
    s4 = 0.0
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        d = x[i] - center
        s1 += d
        s2 += d * d
        s3 += d * d * d
        s4 += d * d * d * d
    cuda.atomic.add(sums, 0, s1)
    cuda.atomic.add(sums, 1, s2)
    cuda.atomic.add(sums, 2, s3)
    cuda.atomic.add(sums, 3, s4)


def power_sums_reference(x, center):
    """NumPy reference."""
    d = x.astype(np.float64) - center
    return np.array([(d**k).sum() for k in (1, 2, 3, 4)])


@synk.parallel(
    grid=_grid,
    broadcast=("edges",),
    outputs={
        "counts": synk.output("sum", shape=lambda args: (len(args["edges"]) - 1,), dtype="int64")
    },
)
@cuda.jit
def histogram(x, edges, counts):
    """Counts the values in each bin: edges[k] ≤ x < edges[k + 1], and in the last bin also x =
    edges[-1].

    The bin is guessed as if all bins had equal width, then corrected by a search through
    neighbouring bins. Counts are right for any increasing edges, and fast for evenly spaced ones.
    Values outside the edges and NaN are not counted.

    Args:
        x: real, shape (n,); sharded.
        edges: float64, shape (bins + 1,), increasing, in the unit of x; broadcast.
        counts: int64, shape (bins,).
    """
    # a block has fewer than 2^31 rows: no memory holds 2^40 rows
    own = cuda.shared.array(_BINS, int32)
    bins = counts.shape[0]
    low = edges[0]
    high = edges[bins]
    scale = bins / (high - low)
    shared = bins <= _BINS
    if shared:
        for k in range(cuda.threadIdx.x, bins, cuda.blockDim.x):
            own[k] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        value = float64(x[i])
        if low <= value <= high:
            guess = (value - low) * scale
            k = int(guess) if guess < bins else bins - 1
            while value < edges[k]:
                k -= 1
            while k < bins - 1 and value >= edges[k + 1]:
                k += 1
            if shared:
                cuda.atomic.add(own, k, 1)
            else:
                cuda.atomic.add(counts, k, 1)
    cuda.syncthreads()
    if shared:
        for k in range(cuda.threadIdx.x, bins, cuda.blockDim.x):
            if own[k] > 0:
                cuda.atomic.add(counts, k, own[k])


def histogram_reference(x, edges):
    """NumPy reference."""
    return np.histogram(x.astype(np.float64), edges)[0]


@synk.parallel(
    block=(_TILE, _TILE),
    grid=_grid,
    broadcast=("center",),
    outputs={
        "sums": synk.output("sum", shape=lambda args: (args["x"].shape[1],), dtype="float64"),
        "products": synk.output(
            "sum", shape=lambda args: (args["x"].shape[1],) * 2, dtype="float64"
        ),
    },
)
@cuda.jit
def centered_products(x, center, sums, products):
    """Computes Σ (x_j − c_j), and Σ (x_j − c_j)(x_k − c_k) for all pairs of columns j, k.

    A block loads tiles of 16 rows and 16 + 16 columns into shared memory, where each element is
    used 16 times.

    Args:
        x: real, shape (n, d), C-contiguous; sharded.
        center: c; float64, shape (d,); broadcast.
        sums: float64, shape (d,).
        products: float64, shape (d, d), symmetric.
    """
    left = cuda.shared.array((_TILE, _TILE), float64)
    right = cuda.shared.array((_TILE, _TILE), float64)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    n, d = x.shape
    for j0 in range(0, d, _TILE):
        for k0 in range(0, j0 + 1, _TILE):  # the upper triangle follows by symmetry
            total = 0.0
            acc = 0.0
            for i0 in range(cuda.blockIdx.x * _TILE, n, cuda.gridDim.x * _TILE):
                i = i0 + ty
                left[ty, tx] = x[i, j0 + tx] - center[j0 + tx] if i < n and j0 + tx < d else 0.0
                right[ty, tx] = x[i, k0 + tx] - center[k0 + tx] if i < n and k0 + tx < d else 0.0
                cuda.syncthreads()
                for row in range(_TILE):
                    total += left[row, ty]
                    acc += left[row, ty] * right[row, tx]
                cuda.syncthreads()
            j = j0 + ty
            k = k0 + tx
            if j < d and k == 0:
                cuda.atomic.add(sums, j, total)
            if j < d and k < d:
                cuda.atomic.add(products, (j, k), acc)
                if k0 != j0:
                    cuda.atomic.add(products, (k, j), acc)


def centered_products_reference(x, center):
    """NumPy reference; returns (sums, products)."""
    d = x.astype(np.float64) - center
    return d.sum(axis=0), d.T @ d


class Moments(NamedTuple):
    """Result of `moments`. The variance is unbiased, and NaN for a single row; the kurtosis is
    excess kurtosis.
    """

    rows: int
    mean: float
    variance: float
    skewness: float
    kurtosis: float


def moments(x):
    """Returns mean, unbiased variance, skewness and excess kurtosis of an array or `Data` of shape
    (n,) with n ≥ 1.

    Skewness and kurtosis are NaN if all x are equal.
    """
    n = len(x)
    first = float(x[0])  # a rough centre: any row is closer to the rest than zero is
    mean = first + power_sums(x, first)[0] / n
    s1, s2, s3, s4 = power_sums(x, mean) / n
    # Moments about the true mean, which differs from the rounded one by s1.
    m2 = s2 - s1**2
    m3 = s3 - 3.0 * s1 * s2 + 2.0 * s1**3
    m4 = s4 - 4.0 * s1 * s3 + 6.0 * s1**2 * s2 - 3.0 * s1**4
    nan = float("nan")
    return Moments(
        rows=n,
        mean=float(mean + s1),
        variance=float(m2 * n / (n - 1)) if n > 1 else nan,
        skewness=float(m3 / m2**1.5) if m2 > 0.0 else nan,
        kurtosis=float(m4 / m2**2 - 3.0) if m2 > 0.0 else nan,
    )


def covariance(x):
    """Returns the unbiased covariance of the columns, shape (d, d), for an array or `Data` of
    shape (n, d) with n ≥ 2.
    """
    n = len(x)
    sums, products = centered_products(x, column_sums(x) / n)
    return (products - np.outer(sums, sums) / n) / (n - 1)
