"""Reductions, counts and tiles of the values that the threads of a block have, as device functions.

Each function here returns a device function for any kernel of one-dimensional blocks of `threads`
threads; its shared memory is inside. Every thread of the block must call it.

The values are combined by a tree in shared memory in ⌈log2 threads⌉ steps, n = threads, ⌈n/2⌉, … 2:

    v[t] ← op(v[t], v[t + ⌈n/2⌉]),  t < ⌊n/2⌋

Source: M. Harris, "Optimizing parallel reduction in CUDA" (NVIDIA, 2007), for any n. With `items`,
a thread first combines its items from the first to the last. So the order is fixed: a float's
result is the same in every run and on every device with the same rounding, and its error grows
with log2 threads + items. Integers wrap at the width of their dtype. Each value is written to
shared memory once and read about twice.

A tile is the threads · items neighbouring elements of an array that a block works on. It is striped
if item k of thread t is element k · threads + t, so that neighbouring threads access neighbouring
elements, and blocked if it is element t · items + k, so that a thread has neighbouring elements.
The shared memory of all functions that a kernel calls adds up, to at most 48 KiB.
"""

import numpy as np
from numba import cuda

from synknumba.kernels._sizes import (
    add,
    checked_bins,
    checked_dtype,
    checked_items,
    checked_op,
    checked_shared,
    checked_threads,
)


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


@cuda.jit(device=True)
def _less(a, b):
    """Returns whether a is less than b."""
    return a < b


@cuda.jit(device=True)
def _greater(a, b):
    """Returns whether a is greater than b."""
    return a > b


def argmin(dtype, threads):
    """Returns a device function: the least of the block's values and its index, for every thread.

    The function takes a value and its index, an integer. As in `np.argmin`, NaN comes before all
    numbers, and the smallest index before those of equal values.

    Args:
        dtype: int or float of 32 or 64 bits, of the values.
        threads: size of the block, 1 to 1024.

    Raises:
        TypeError: For another dtype.
        ValueError: For sizes that fit no block.

    >>> import numpy as np
    >>> from synknumba import simt
    >>> block_argmin = argmin(np.float32, 64)
    >>> @simt.jit
    ... def minima(x, out):
    ...     i = cuda.grid(1)
    ...     value, index = block_argmin(x[i], i)
    ...     if cuda.threadIdx.x == 0:
    ...         out[cuda.blockIdx.x] = index
    >>> x, out = np.cos(np.arange(128, dtype=np.float32)), np.zeros(2, np.int64)
    >>> minima[2, 64](x, out)
    >>> out
    array([22, 66])
    """
    return _extremum(dtype, threads, _less)


def argmax(dtype, threads):
    """Returns a device function: the greatest of the block's values and its index.

    The arguments, errors and rules are those of `argmin`.
    """
    return _extremum(dtype, threads, _greater)


def _extremum(dtype, threads, better):
    dtype = checked_dtype(dtype)
    threads = checked_threads(threads)

    @cuda.jit(device=True)
    def precedes(a, i, b, j):
        if a != a or b != b:  # noqa: PLR0124  # only NaN differs from itself
            return a != a and (b == b or i < j)  # noqa: PLR0124
        return better(a, b) or (a == b and i < j)

    @cuda.jit(device=True)
    def extremum(value, index):
        values = cuda.shared.array(threads, dtype)
        indices = cuda.shared.array(threads, np.int64)
        t = cuda.threadIdx.x
        values[t] = value
        indices[t] = index
        cuda.syncthreads()
        n = threads
        while n > 1:
            half = (n + 1) // 2
            if t < n - half:
                u = t + half
                if precedes(values[u], indices[u], values[t], indices[t]):
                    values[t] = values[u]
                    indices[t] = indices[u]
            cuda.syncthreads()
            n = half
        result = values[0], indices[0]
        cuda.syncthreads()
        return result

    return extremum


def histogram(threads, bins, items=None):
    """Returns a device function that counts the block's values and adds the counts to an array.

    The function takes a value, an integer, and the counts: ints, shape (bins,), which are added to
    by atomics, so blocks may share them. The block counts in shared memory first. Values outside
    0 to bins − 1 are not counted; pass −1 at the end of an array.

    Args:
        threads: size of the block, 1 to 1024.
        bins: number of counts, 1 to 12288.
        items: elements of the array that each thread passes; None for a scalar.

    Raises:
        ValueError: For sizes that fit no block or its shared memory.

    >>> import numpy as np
    >>> from synknumba import simt
    >>> block_histogram = histogram(64, bins=4)
    >>> @simt.jit
    ... def count(x, counts):
    ...     i = cuda.grid(1)
    ...     block_histogram(x[i] if i < x.size else -1, counts)
    >>> x, counts = np.arange(90) % 3, np.zeros(4, np.int64)
    >>> count[2, 64](x, counts)
    >>> counts
    array([30, 30, 30,  0])
    """
    threads = checked_threads(threads)
    bins = checked_bins(bins)
    count = checked_items(items) or 1

    @cuda.jit(device=True)
    def count_items(values, counts):
        shared = cuda.shared.array(bins, np.int32)
        for b in range(cuda.threadIdx.x, bins, threads):
            shared[b] = 0
        cuda.syncthreads()
        for k in range(count):
            if 0 <= values[k] < bins:
                cuda.atomic.add(shared, values[k], 1)
        cuda.syncthreads()
        for b in range(cuda.threadIdx.x, bins, threads):
            if shared[b] > 0:
                cuda.atomic.add(counts, b, shared[b])
        cuda.syncthreads()

    if items is not None:
        return count_items

    @cuda.jit(device=True)
    def count_value(value, counts):
        values = cuda.local.array(1, np.int64)
        values[0] = value
        count_items(values, counts)

    return count_value


def exchange(dtype, threads, items, to):
    """Returns a device function that orders the block's items anew, through shared memory.

    The function takes each thread's array of items, and changes it in place.

    Args:
        dtype: int or float of 32 or 64 bits, of the items.
        threads: size of the block, 1 to 1024.
        items: elements of the array that each thread passes.
        to: "blocked", from a striped tile, or "striped", from a blocked one.

    Raises:
        TypeError: For another dtype.
        ValueError: For another `to`, or sizes that fit no block or its shared memory.
    """
    dtype = checked_dtype(dtype)
    threads = checked_threads(threads)
    items = checked_items(items)
    striped, blocked = (1, threads), (items, 1)  # steps of a thread and of an item
    orders = {"blocked": (striped, blocked), "striped": (blocked, striped)}
    if to not in orders:
        raise ValueError(f'to must be "blocked" or "striped", got {to!r}; write to="blocked"')
    (from_thread, from_item), (to_thread, to_item) = orders[to]
    count = threads * items
    size = checked_shared(
        dtype, count + (count - 1) // 32, f"items={items} of threads={threads}", "take fewer items"
    )

    @cuda.jit(device=True)
    def exchange_items(values):
        shared = cuda.shared.array(size, dtype)  # a gap after 32 elements, against bank conflicts
        t = cuda.threadIdx.x
        for k in range(items):
            i = t * from_thread + k * from_item
            shared[i + i // 32] = values[k]
        cuda.syncthreads()
        for k in range(items):
            i = t * to_thread + k * to_item
            values[k] = shared[i + i // 32]
        cuda.syncthreads()

    return exchange_items


def load(dtype, threads, items, fill=0):
    """Returns a device function that reads a tile of an array, blocked.

    The function takes the array, of one dimension, the index of the tile's first element, and each
    thread's array of items, which it writes. Memory is read striped.

    Args:
        dtype: int or float of 32 or 64 bits, of the items.
        threads: size of the block, 1 to 1024.
        items: elements of each thread's array.
        fill: value of the items behind the end of the array.

    Raises:
        TypeError: For another dtype.
        ValueError: For sizes that fit no block or its shared memory.

    >>> import numpy as np
    >>> from synknumba import simt
    >>> block_load, block_store = load(np.float32, 64, 4), store(np.float32, 64, 4)
    >>> @simt.jit
    ... def differences(x, out):  # of neighbours, within groups of four
    ...     values = cuda.local.array(4, np.float32)
    ...     first = cuda.blockIdx.x * 64 * 4
    ...     block_load(x, first, values)
    ...     for k in range(3, 0, -1):
    ...         values[k] -= values[k - 1]
    ...     block_store(out, first, values)
    >>> x, out = np.arange(10, dtype=np.float32) ** 2, np.zeros(10, np.float32)
    >>> differences[1, 64](x, out)
    >>> out
    array([ 0.,  1.,  3.,  5., 16.,  9., 11., 13., 64., 17.], dtype=float32)
    """
    dtype = checked_dtype(dtype)
    exchange_items = exchange(dtype, threads, items, "blocked")
    fill = dtype(fill)

    @cuda.jit(device=True)
    def load_tile(x, first, values):
        for k in range(items):
            i = first + k * threads + cuda.threadIdx.x
            values[k] = x[i] if i < x.shape[0] else fill
        exchange_items(values)

    return load_tile


def store(dtype, threads, items):
    """Returns a device function that writes a blocked tile to an array.

    The function takes what that of `load` takes, and leaves each thread's array striped. Memory is
    written striped, and not behind the end of the array.

    Args:
        dtype: int or float of 32 or 64 bits, of the items.
        threads: size of the block, 1 to 1024.
        items: elements of each thread's array.

    Raises:
        TypeError: For another dtype.
        ValueError: For sizes that fit no block or its shared memory.
    """
    exchange_items = exchange(dtype, threads, items, "striped")

    @cuda.jit(device=True)
    def store_tile(x, first, values):
        exchange_items(values)
        for k in range(items):
            i = first + k * threads + cuda.threadIdx.x
            if i < x.shape[0]:
                x[i] = values[k]

    return store_tile
