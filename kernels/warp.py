"""Reductions, scans and sorts of the values that the lanes of a warp have, as device functions.

Each function here returns a device function that all 32 lanes of a warp must call together, so the
block's size must be a multiple of 32. Values go from lane to lane by shuffles, in 5 steps and
without shared memory:

    reduce  v[l] ← op(v[l], v[l xor s]),  s = 16, 8, … 1
    scan    v[l] ← op(v[l − s], v[l]),  l ≥ s,  s = 1, 2, … 16

A sort has 15 such steps, those of a bitonic network.

Sources: M. Harris, "Faster parallel reductions on Kepler" (NVIDIA, 2014); W. D. Hillis and
G. L. Steele, "Data parallel algorithms", Commun. ACM 29 (1986), 1170; K. E. Batcher, "Sorting
networks and their applications" (AFIPS, 1968). The order is fixed: a float's result is the same in
every run. Integers wrap at the width of their dtype.
"""

import numpy as np
from numba import cuda

from synknumba.kernels._sizes import add, checked_dtype, checked_op

_ALL = 0xFFFFFFFF  # lanes


def _checked(dtype):
    """Returns the NumPy scalar type of a dtype, and that of as many bits which shuffles have."""
    dtype = checked_dtype(dtype)
    bits = np.dtype(dtype).str.replace("u", "i")
    return dtype, np.dtype(bits).type


def sum(dtype):  # noqa: A001  # NumPy's name
    """Returns a device function: the sum of the warp's values, for every lane.

    Args:
        dtype: int or float of 32 or 64 bits.

    Raises:
        TypeError: For another dtype.
    """
    return reduce(dtype, add)


def reduce(dtype, op):
    """Returns a device function: the warp's values combined by `op`, for every lane.

    Args:
        dtype: int or float of 32 or 64 bits.
        op: device function of two values; associative and commutative.

    Raises:
        TypeError: For another dtype, or an `op` that is not a function.

    >>> import numpy as np
    >>> from synknumba import simt
    >>> @cuda.jit(device=True)
    ... def larger(a, b):
    ...     return max(a, b)
    >>> warp_max = reduce(np.int32, larger)
    >>> @simt.jit
    ... def maxima(x, out):
    ...     largest = warp_max(x[cuda.grid(1)])
    ...     if cuda.laneid == 0:
    ...         out[cuda.grid(1) // 32] = largest
    >>> x, out = np.arange(64, dtype=np.int32), np.zeros(2, np.int32)
    >>> maxima[1, 64](x, out)
    >>> out
    array([31, 63], dtype=int32)
    """
    dtype, bits = _checked(dtype)
    op = checked_op(op)

    @cuda.jit(device=True)
    def reduce_lanes(value):
        result = dtype(value)
        step = 16
        while step > 0:
            result = dtype(op(result, dtype(cuda.shfl_xor_sync(_ALL, bits(result), step))))
            step //= 2
        return result

    return reduce_lanes


def scan(dtype, op=add):
    """Returns a device function: the values of the lanes up to one's own, combined by `op`.

    Args:
        dtype: int or float of 32 or 64 bits.
        op: device function of two values; associative. The sum, if left out.

    Raises:
        TypeError: For another dtype, or an `op` that is not a function.
    """
    dtype, bits = _checked(dtype)
    op = checked_op(op)

    @cuda.jit(device=True)
    def scan_lanes(value):
        result = dtype(value)
        step = 1
        while step < 32:
            before = dtype(cuda.shfl_up_sync(_ALL, bits(result), step))
            if cuda.laneid >= step:
                result = dtype(op(before, result))
            step *= 2
        return result

    return scan_lanes


def broadcast_from(dtype):
    """Returns a device function: the value that one lane has, for every lane.

    The function takes each lane's value, and the number of the lane, 0 to 31, the same in all.

    Args:
        dtype: int or float of 32 or 64 bits.

    Raises:
        TypeError: For another dtype.
    """
    dtype, bits = _checked(dtype)

    @cuda.jit(device=True)
    def broadcast_lane(value, lane):
        return dtype(cuda.shfl_sync(_ALL, bits(dtype(value)), lane))

    return broadcast_lane


@cuda.jit(device=True)
def _precedes(a, b):
    """Returns whether a is sorted before b, NaN last."""
    return a < b or (a == a and b != b)  # noqa: PLR0124  # only NaN differs from itself


def sort(dtype):
    """Returns a device function: the values of the warp in ascending order, one for each lane.

    NaN is last, as in `np.sort`.

    Args:
        dtype: int or float of 32 or 64 bits.

    Raises:
        TypeError: For another dtype.

    >>> import numpy as np
    >>> from synknumba import simt
    >>> warp_sort = sort(np.int32)
    >>> @simt.jit
    ... def medians(x, out):
    ...     value = warp_sort(x[cuda.grid(1)])
    ...     if cuda.laneid == 15:
    ...         out[cuda.grid(1) // 32] = value
    >>> x, out = np.arange(64, 0, -1, dtype=np.int32), np.zeros(2, np.int32)
    >>> medians[1, 64](x, out)
    >>> out
    array([48, 16], dtype=int32)
    """
    dtype, bits = _checked(dtype)

    @cuda.jit(device=True)
    def sort_lanes(value):
        result = dtype(value)
        length = 2
        while length <= 32:
            step = length // 2
            while step > 0:
                other = dtype(cuda.shfl_xor_sync(_ALL, bits(result), step))
                ascending = (cuda.laneid & length) == 0
                lower = (cuda.laneid & step) == 0
                if lower == ascending:
                    replaced = _precedes(other, result)
                else:
                    replaced = _precedes(result, other)
                if replaced:
                    result = other
                step //= 2
            length *= 2
        return result

    return sort_lanes
