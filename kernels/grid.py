"""Sums of the values that all threads of a grid have, as device functions, in one launch.

Each block writes its sum to an array of partial sums, and counts itself with an atomic operation.
The last block to arrive adds the partial sums, in their order, so a float's result is the same in
every run with the same grid. The count wraps to 0 with it, so the kernel can be launched again.

Source: the `threadFenceReduction` of NVIDIA's CUDA samples. Fences make a partial sum visible
before it is counted.
"""

import numpy as np
from numba import cuda

from synknumba.kernels import block
from synknumba.kernels._sizes import checked_dtype


def sum(dtype, threads):  # noqa: A001  # NumPy's name
    """Returns a device function that writes the sum of the grid's values to an array.

    The function takes

    - a value;
    - the partial sums: of `dtype`, shape (k,) with k at least the number of blocks, any contents;
    - the counter: uint32, shape (1,), 0 before the first launch, and after each one;
    - the result: shape (1,), element 0 of which the last block writes.

    Launches that run at the same time, as those of ranks, need partial sums and a counter each.
    Every thread of the grid must call it, once in a launch.

    Args:
        dtype: int or float of 32 or 64 bits, of the values and the sum.
        threads: size of the blocks, 1 to 1024.

    Raises:
        TypeError: For another dtype.
        ValueError: For sizes that fit no block.

    >>> import numpy as np
    >>> from synknumba import simt
    >>> grid_sum = sum(np.float64, 64)
    >>> @simt.jit
    ... def total(x, partials, counter, out):
    ...     i = cuda.grid(1)
    ...     grid_sum(x[i] if i < x.size else 0.0, partials, counter, out)
    >>> x, out = np.arange(100.0), np.zeros(1)
    >>> total[2, 64](x, np.zeros(2), np.zeros(1, np.uint32), out)
    >>> out
    array([4950.])
    """
    dtype = checked_dtype(dtype)
    block_sum = block.sum(dtype, threads)

    @cuda.jit(device=True)
    def sum_values(value, partials, counter, out):
        last = cuda.shared.array(1, np.int32)
        t = cuda.threadIdx.x
        blocks = cuda.gridDim.x
        total = block_sum(value)
        if t == 0:
            partials[cuda.blockIdx.x] = total
            cuda.threadfence()
            arrived = cuda.atomic.inc(counter, 0, blocks - 1)
            cuda.threadfence()
            last[0] = 1 if arrived == blocks - 1 else 0
        cuda.syncthreads()
        if last[0] == 1:
            total = dtype(0)
            for b in range(t, blocks, threads):
                total = dtype(total + partials[b])
            total = block_sum(total)
            if t == 0:
                out[0] = total

    return sum_values
