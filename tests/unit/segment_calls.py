"""Calls whose arguments and results lie in segments, compared with NumPy's; run in processes of
several kinds.
"""

import os

import numpy as np
from numba import cuda

import synknumba as synk


@synk.function(outputs="sum")
def total(x):
    return x.sum()


@synk.function(inout=("y",))
def add_one(y):
    y += 1


@synk.function(outputs="gather")
def double(x):
    return 2 * x


@synk.parallel(outputs={"out": synk.output("gather", like="x")})
def scaled(x, w, out):
    i = cuda.grid(1)
    if i < x.shape[0]:
        out[i] = x[i] * w


def kind(one):
    return "memfd" if os.readlink(f"/proc/self/fd/{one.fd}").startswith("/memfd:") else "posix"


def check(world_size):
    """Calls whose arguments and results are in segments of the coordinator and of ranks,
    compared with NumPy's.
    """
    rows = np.random.default_rng(0).random(200_000)
    d = synk.data(rows)
    with synk.fork(world_size, device="cpu"):
        np.testing.assert_allclose(total(d), rows.sum())
        kept = [scaled(d, 3.0) for _ in range(4)]  # in places, which are lent
        for one in kept:
            np.testing.assert_array_equal(one, 3 * rows)
        np.testing.assert_array_equal(double(rows), 2 * rows)  # in segments of the ranks
        for n in (1_000, 50_000):  # lists of rows, which grow
            picked = np.random.default_rng(n).permutation(len(rows))[:n]
            np.testing.assert_allclose(total(d, batch=picked), rows[picked].sum())
        d.set_length(300_000)  # mapped again
        add_one(d)
        np.testing.assert_array_equal(d, np.concatenate([rows, np.zeros(100_000)]) + 1)
        v = synk.variable(rows)
        np.testing.assert_allclose(synk.all_reduce(v, "sum").get_value(0), world_size * rows)
        yield kind(d._segment)
    np.testing.assert_array_equal(kept[0], 3 * rows)
    yield kind(synk.data(rows)._segment)


@synk.function(outputs="gather")
def numbered(x, n):
    return np.arange(n) + x[0]
