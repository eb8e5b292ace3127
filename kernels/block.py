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


_SEGMENT = 8  # values; on GPUs fewer bank conflicts than 16, and on cores no more time


def _scan(dtype, threads, op):
    """Returns a device function: op over the threads before (none: any value), and over all."""
    num_segments = -(-threads // _SEGMENT)

    @cuda.jit(device=True)
    def scan_values(value):
        shared = cuda.shared.array(threads, dtype)
        heads = cuda.shared.array(num_segments, dtype)
        t = cuda.threadIdx.x
        shared[t] = value
        cuda.syncthreads()
        if t < num_segments:
            start = t * _SEGMENT
            result = shared[start]
            for k in range(start + 1, min(start + _SEGMENT, threads)):
                value_k = shared[k]
                shared[k] = result
                result = dtype(op(result, value_k))
            heads[t] = result
        cuda.syncthreads()
        if t == 0:
            result = heads[0]
            for k in range(1, num_segments):
                result = dtype(op(result, heads[k]))
                heads[k] = result
        cuda.syncthreads()
        # No barrier at the end: a thread writes its own element next, and heads behind a barrier.
        before = shared[t]
        if t >= _SEGMENT:
            head = heads[t // _SEGMENT - 1]
            before = head if t % _SEGMENT == 0 else dtype(op(head, before))
        return before, heads[num_segments - 1]

    return scan_values


def inclusive_scan(dtype, threads, op=add, items=None):
    """Returns a device function: the block's values up to the thread's own, combined by `op`.

    With `items` it replaces the elements of the thread's array, and returns nothing; thread t has
    values t·items to (t + 1)·items − 1 of the block. A thread scans the sums of 8 threads, and one
    those of all eights, behind three barriers; so a float's error grows with items + threads / 8.

    Args:
        dtype: int or float of 32 or 64 bits, of the values and the result.
        threads: size of the block, 1 to 1024.
        op: device function of two values; associative. The sum, if left out.
        items: elements of the array that each thread passes; None for a scalar.

    Raises:
        TypeError: For another dtype, or an `op` that is not a function.
        ValueError: For sizes that fit no block.
    """
    dtype = checked_dtype(dtype)
    threads = checked_threads(threads)
    items = checked_items(items)
    op = checked_op(op)
    scan_values = _scan(dtype, threads, op)

    if items is None:

        @cuda.jit(device=True)
        def scan_value(value):
            before, _ = scan_values(value)
            return dtype(op(before, dtype(value))) if cuda.threadIdx.x > 0 else dtype(value)

        return scan_value

    @cuda.jit(device=True)
    def scan_items(values):
        result = values[0]
        for k in range(1, items):
            result = dtype(op(result, values[k]))
        before, _ = scan_values(result)
        if cuda.threadIdx.x > 0:
            values[0] = op(before, values[0])
        for k in range(1, items):
            values[k] = op(values[k - 1], values[k])

    return scan_items


def exclusive_scan(dtype, threads, items=None):
    """Returns a device function: the sum of the block's values before the thread's own.

    It is 0 for the first value. Arguments, arrays and errors are those of `inclusive_scan`.
    """
    scan_total = exclusive_scan_total(dtype, threads, items)
    if items is None:

        @cuda.jit(device=True)
        def scan_value(value):
            return scan_total(value)[0]

        return scan_value

    @cuda.jit(device=True)
    def scan_items(values):
        scan_total(values)

    return scan_items


def exclusive_scan_total(dtype, threads, items=None):
    """Returns a device function: what `exclusive_scan` gives, and the block's sum.

    With `items` it returns the sum alone. Arguments and errors are those of `inclusive_scan`.
    """
    dtype = checked_dtype(dtype)
    items = checked_items(items)
    scan_values = _scan(dtype, checked_threads(threads), add)

    @cuda.jit(device=True)
    def scan_value(value):
        before, total = scan_values(value)
        return before if cuda.threadIdx.x > 0 else dtype(0), total

    if items is None:
        return scan_value

    @cuda.jit(device=True)
    def scan_items(values):
        result = dtype(0)
        for k in range(items):
            result = dtype(result + values[k])
        result, total = scan_value(result)
        for k in range(items):
            value = values[k]
            values[k] = result
            result = dtype(result + value)
        return total

    return scan_items
