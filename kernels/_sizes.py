"""Checks of the sizes, dtypes and ops of device functions, before anything is compiled."""

import operator

import numpy as np
from numba import cuda

_THREADS = 1024  # of a block, on every GPU
_SHARED = 48 * 1024  # bytes of a block that no GPU must be asked for


def checked_dtype(dtype):
    """Returns the NumPy scalar type of a real dtype; refuses others with a TypeError."""
    found = np.dtype(dtype)
    if found.kind not in "iuf" or found.itemsize < 4:
        raise TypeError(
            f"dtype must be an int or a float of 32 or 64 bits, got {found}; "
            "convert the values, as in np.float32(value)"
        )
    return found.type


def checked_threads(threads):
    """Returns the number of threads; refuses with a ValueError what fits no block."""
    count = operator.index(threads)
    if not 1 <= count <= _THREADS:
        raise ValueError(
            f"threads must be 1 to {_THREADS}, got {count}; "
            "write the block size of the launch, as in 256"
        )
    return count


def checked_items(items):
    """Returns the number of items a thread has, None for a scalar."""
    if items is None:
        return None
    count = operator.index(items)
    if count < 1:
        raise ValueError(f"items must be at least 1, got {count}; leave it out for one value")
    return count


@cuda.jit(device=True)
def add(a, b):
    """Returns the sum."""
    return a + b


def checked_op(op):
    """Returns a device function of two values; refuses others with a TypeError."""
    if not callable(op):
        raise TypeError(f"op must be a device function of two values, got {op!r}")
    return op


def checked_bins(bins):
    """Returns the number of bins; refuses with a ValueError what fits no shared memory."""
    count = operator.index(bins)
    if count < 1:
        raise ValueError(f"bins must be at least 1, got {count}; write the number of values")
    return checked_shared(
        np.int32, count, f"bins={count}", "count in global memory: cuda.atomic.add(counts, bin, 1)"
    )


def checked_shared(dtype, count, argument, instead):
    """Returns the number of elements; refuses with a ValueError what fits no shared memory."""
    size = count * np.dtype(dtype).itemsize
    if size > _SHARED:
        raise ValueError(
            f"{argument} must fit the {_SHARED} bytes of a block's shared memory, "
            f"got {size} bytes; {instead}"
        )
    return count
