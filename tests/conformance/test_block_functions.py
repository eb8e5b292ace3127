"""Device functions of blocks in a kernel of the user's, on the ranks."""

import numpy as np
from numba import cuda
from numpy.testing import assert_array_equal

import synknumba as synk
from synknumba.kernels import block

THREADS, ITEMS = 32, 3
sort_pairs = block.sort_pairs(np.float32, np.int32, THREADS, ITEMS)
inclusive = block.inclusive_scan(np.int32, THREADS, items=ITEMS)
exclusive_total = block.exclusive_scan_total(np.int32, THREADS)
SHAPE = (THREADS * ITEMS,)


def sort_and_scan(x, keys, order, sums, before):
    """Sorts each row, and sums up what it was sorted by; a row is of one block."""
    own_keys = cuda.local.array(ITEMS, np.float32)
    own_order = cuda.local.array(ITEMS, np.int32)
    start = cuda.threadIdx.x * ITEMS
    for row in range(cuda.blockIdx.x, x.shape[0], cuda.gridDim.x):
        for k in range(ITEMS):
            own_keys[k] = x[row, start + k]
            own_order[k] = start + k
        sort_pairs(own_keys, own_order)
        place, total = exclusive_total(own_order[0])
        for k in range(ITEMS):
            keys[row, start + k] = own_keys[k]
            order[row, start + k] = own_order[k]
            before[row, start + k] = place + 10_000 * total
        inclusive(own_order)
        for k in range(ITEMS):
            sums[row, start + k] = own_order[k]


sorted_rows = synk.parallel(
    outputs={
        "keys": synk.output("gather", shape=SHAPE, dtype="float32"),
        "order": synk.output("gather", shape=SHAPE, dtype="int32"),
        "sums": synk.output("gather", shape=SHAPE, dtype="int32"),
        "before": synk.output("gather", shape=SHAPE, dtype="int32"),
    },
    block=THREADS,
    grid=2,
)(cuda.jit(sort_and_scan))


def test_sorts_and_scans(world):
    x = np.random.default_rng(0).integers(-9, 9, (11, *SHAPE)).astype(np.float32)
    got = sorted_rows(x)
    order = x.argsort(1, kind="stable")
    assert_array_equal(got.keys, np.sort(x, 1))
    assert_array_equal(got.order, order)
    assert_array_equal(got.sums, order.cumsum(1))
    first = order[:, ::ITEMS]
    before = first.cumsum(1) - first + 10_000 * first.sum(1, keepdims=True)
    assert_array_equal(got.before, before.repeat(ITEMS, 1))
