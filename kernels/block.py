"""Reductions, scans, sorts, counts and tiles of the values of a block, as device functions.

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

import math
import operator

import numpy as np
from numba import cuda
from numba.cuda import libdevice

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


_RUN = 16  # counters; each run is padded by one, so that on GPUs it has banks of its own


def sort(dtype, threads, items=1):
    """Returns a device function that sorts the block's threads·items values, as np.sort.

    Called with the thread's array, it replaces the elements; thread t gets those of places t·items
    to (t + 1)·items − 1. NaN are last. Equal values, as 0.0 and -0.0, stay in their order.

    It is a radix sort from the last digit, of 4 bits, to the first: each thread counts its digits,
    the counts are scanned, and the values go to their places through shared memory. Source: D.
    Merrill and A. Grimshaw, "High performance and scalable radix sorting", Parallel Processing
    Letters 21 (2011), 245. On a core 256 · 8 float32 take 0.8 times the time of Numba's np.sort in
    a loop, float64, which have twice the digits, 1.7 times, and with fewer items more.

    Args:
        dtype: int or float of 32 or 64 bits.
        threads: size of the block, 1 to 1024.
        items: elements of the array that each thread passes.

    Raises:
        TypeError: For another dtype.
        ValueError: For sizes that fit no block, or not its shared memory.
    """
    sort_arrays = _sort(dtype, None, threads, items)

    @cuda.jit(device=True)
    def sort_keys(keys):
        sort_arrays(keys, keys)

    return sort_keys


def sort_pairs(dtype, value_dtype, threads, items=1):
    """Returns a device function that sorts as `sort`, and moves a second array's values along.

    It is called with the thread's keys and its values, of int or float of 32 or 64 bits. Arguments
    and errors are those of `sort`.
    """
    return _sort(dtype, value_dtype, threads, items)


def _ordered(dtype):
    """Returns a device function of a key: unsigned bits that have the order of the keys."""
    word, to_int = np.uint32, libdevice.float_as_int
    if np.dtype(dtype).itemsize == 8:
        word, to_int = np.uint64, libdevice.double_as_longlong
    last = word(np.iinfo(word).max)
    sign = word(last // 2 + 1)
    sign_bit = np.iinfo(word).bits - 1

    @cuda.jit(device=True)
    def of_unsigned(key):
        return word(key)

    @cuda.jit(device=True)
    def of_signed(key):
        return word(word(key) ^ sign)

    @cuda.jit(device=True)
    def of_float(key):
        bits = to_int(dtype(key + dtype(0)))  # -0.0 + 0.0 is 0.0
        flipped = word(bits >> sign_bit) | sign  # without a branch, which is taken at random
        return word(last if math.isnan(key) else word(bits) ^ flipped)

    return {"u": of_unsigned, "i": of_signed, "f": of_float}[np.dtype(dtype).kind]


def _sort(dtype, value_dtype, threads, items):
    """Returns a device function of keys and values; without a `value_dtype`, it leaves values."""
    pairs = value_dtype is not None
    dtype = checked_dtype(dtype)
    value_dtype = checked_dtype(value_dtype) if pairs else dtype
    threads = checked_threads(threads)
    items = checked_items(operator.index(items))
    ordered = _ordered(dtype)
    word = np.uint64
    num_bits = 8 * dtype().itemsize
    num_runs = -(-4 * threads // _RUN)
    places = threads * items + threads * items // 32  # padded, as runs are
    value_places = places if pairs else 1
    num_counters = 4 * threads + num_runs
    num_totals = num_runs + 1
    num_bytes = (
        8 * (num_counters + num_totals)
        + places * dtype().itemsize
        + value_places * value_dtype().itemsize
    )
    what = f"{threads} threads with {items} items"
    checked_shared(np.uint8, num_bytes, what, "write fewer, as in threads=256, items=8")

    @cuda.jit(device=True)
    def sort_arrays(keys, values):
        counters = cuda.shared.array(num_counters, word)  # four counts of 16 bits in each
        runs = cuda.shared.array(num_totals, word)
        moved_keys = cuda.shared.array(places, dtype)
        moved_values = cuda.shared.array(value_places, value_dtype)
        ranks = cuda.local.array(items, np.int32)
        t = cuda.threadIdx.x
        for shift in range(0, num_bits, 4):
            for lane in range(4):
                i = lane * threads + t
                counters[i + (i >> 4)] = word(0)
            for k in range(items):
                digit = int(ordered(keys[k]) >> shift) & 15
                i = (digit & 3) * threads + t
                field = 16 * (digit >> 2)
                counter = counters[i + (i >> 4)]
                ranks[k] = (int(counter >> word(field)) & 0xFFFF) * 16 + digit
                counters[i + (i >> 4)] = counter + (word(1) << word(field))
            cuda.syncthreads()
            if t < num_runs:
                total = word(0)
                start = t * (_RUN + 1)
                for i in range(start, start + min(_RUN, 4 * threads - t * _RUN)):
                    counter = counters[i]
                    counters[i] = total
                    total += counter
                runs[t] = total
            cuda.syncthreads()
            if t == 0:
                total = word(0)
                for i in range(num_runs):
                    counter = runs[i]
                    runs[i] = total
                    total += counter
                runs[num_runs] = total * word(0x1_0001_0001_0000)
            cuda.syncthreads()
            for k in range(items):
                digit = ranks[k] & 15
                i = (digit & 3) * threads + t
                field = 16 * (digit >> 2)
                before = counters[i + (i >> 4)] + runs[i >> 4] + runs[num_runs]
                place = (int(before >> word(field)) & 0xFFFF) + (ranks[k] >> 4)
                moved_keys[place + (place >> 5)] = keys[k]
                if pairs:
                    moved_values[place + (place >> 5)] = values[k]
            cuda.syncthreads()
            for k in range(items):
                place = t * items + k
                keys[k] = moved_keys[place + (place >> 5)]
                if pairs:
                    values[k] = moved_values[place + (place >> 5)]

    return sort_arrays


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
