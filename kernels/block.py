"""Reductions of the values that the threads of a block have, as device functions.

Each function here returns a device function for any kernel of one-dimensional blocks of `threads`
threads; its shared memory is inside. Every thread of the block must call it.

The values are combined by a tree in shared memory in ⌈log2 threads⌉ steps, n = threads, ⌈n/2⌉, … 2:

    v[t] ← op(v[t], v[t + ⌈n/2⌉]),  t < ⌊n/2⌋

Source: M. Harris, "Optimizing parallel reduction in CUDA" (NVIDIA, 2007), for any n. With `items`,
a thread first combines its items from the first to the last. So the order is fixed: a float's
result is the same in every run and on every device with the same rounding, and its error grows
with log2 threads + items. Integers wrap at the width of their dtype. Each value is written to
shared memory once and read about twice.
"""

from numba import cuda

from synknumba.kernels._sizes import add, checked_dtype, checked_items, checked_op, checked_threads


def sum(dtype, threads, items=None):  # noqa: A001  # NumPy's name
    """Returns a device function: the sum of the block's values, for every thread.

    Args:
        dtype: int or float of 32 or 64 bits, of the values and the sum.
        threads: size of the block, 1 to 1024.
        items: elements of the array that each thread passes; None for a scalar.

    Raises:
        TypeError: For another dtype.
        ValueError: For sizes that fit no block.

    >>> import numpy as np
    >>> from synknumba import simt
    >>> block_sum = sum(np.float32, 64)
    >>> @simt.jit
    ... def totals(x, out):
    ...     total = block_sum(x[cuda.grid(1)])
    ...     if cuda.threadIdx.x == 0:
    ...         out[cuda.blockIdx.x] = total
    >>> x, out = np.arange(128, dtype=np.float32), np.zeros(2, np.float32)
    >>> totals[2, 64](x, out)
    >>> out
    array([2016., 6112.], dtype=float32)
    """
    return reduce(dtype, threads, add, items)


def reduce(dtype, threads, op, items=None):
    """Returns a device function: the block's values combined by `op`, for every thread.

    Args:
        dtype: int or float of 32 or 64 bits, of the values and the result.
        threads: size of the block, 1 to 1024.
        op: device function of two values; associative and commutative.
        items: elements of the array that each thread passes; None for a scalar.

    Raises:
        TypeError: For another dtype, or an `op` that is not a function.
        ValueError: For sizes that fit no block.
    """
    dtype = checked_dtype(dtype)
    threads = checked_threads(threads)
    items = checked_items(items)
    op = checked_op(op)

    @cuda.jit(device=True)
    def reduce_values(value):
        shared = cuda.shared.array(threads, dtype)
        t = cuda.threadIdx.x
        shared[t] = value
        cuda.syncthreads()
        n = threads
        while n > 1:
            half = (n + 1) // 2
            if t < n - half:
                shared[t] = op(shared[t], shared[t + half])
            cuda.syncthreads()
            n = half
        result = shared[0]
        cuda.syncthreads()
        return result

    if items is None:
        return reduce_values

    @cuda.jit(device=True)
    def reduce_items(values):
        value = values[0]
        for k in range(1, items):
            value = op(value, values[k])
        return reduce_values(value)

    return reduce_items
