"""The kernels of the library that share memory or write side by side: no races, no index out of
bounds.
"""

import numpy as np
import pytest

from synknumba import simt
from synknumba.kernels import ising, matmul, nbody, reduce, statistics, stencil

RNG = np.random.default_rng(0)
ROWS = RNG.random(70)
SPINS = np.ones((3, 4, 4), np.int8)
BODIES = (150, 3), (513, 3), 513  # two tiles, and threads with one and two targets

# kernel, grid, block (as it is declared; smaller where it may be), arguments with the outputs
LAUNCHES = [
    (reduce.block_sums, 2, 256, (ROWS, np.zeros(512))),
    (reduce.block_products, 2, 256, (ROWS, ROWS, np.zeros(512))),
    (reduce.block_extremes, 2, 256, (ROWS, np.zeros(512), np.zeros(512))),
    (reduce.column_sums, 2, (32, 8), (ROWS.reshape(14, 5), np.zeros(5))),
    (statistics.histogram, 2, 8, (ROWS, np.linspace(0.2, 0.9, 12), np.zeros(11, np.int64))),
    (
        statistics.centered_products,
        2,
        (16, 16),
        (RNG.random((35, 18)), np.zeros(18), np.zeros(18), np.zeros((18, 18))),
    ),
    (
        nbody.accelerations_float64,
        1,
        256,
        (RNG.random((3, 3)), RNG.random((260, 3)), RNG.random(260), 0.1, np.zeros((3, 3))),
    ),
    (
        nbody.accelerations_float32,
        1,
        128,
        (*(RNG.random(shape, np.float32) for shape in BODIES), 0.1, np.zeros((150, 3))),
    ),
    (ising.sweep, 2, (2, 2), (SPINS.copy(), np.full(3, 0.3), 0, 1, 0, 2)),
    (ising.observe, 2, 8, (SPINS, np.zeros(3), np.zeros(3))),
    (stencil.heat_step, 3, 8, (RNG.random((5, 11)), np.zeros((5, 11)), 0, 0.2)),
    (stencil.life_step, 3, 8, (np.ones((5, 11), np.uint8), np.zeros((5, 11), np.uint8), 0)),
    (
        matmul.matmul,
        (2, 64),
        (16, 16),
        (RNG.random((18, 20)), RNG.random((20, 5)), np.zeros((18, 5))),
    ),
]


def param(kernel, *launch):
    """A race checker's threads are slow: those of n-body are left to the whole suite."""
    return pytest.param(
        kernel,
        *launch,
        id=kernel.name,
        marks=pytest.mark.whole if kernel.name.startswith("accelerations") else (),
    )


@pytest.mark.parametrize(
    ("kernel", "grid", "block", "args"), [param(*launch) for launch in LAUNCHES]
)
def test_no_races(kernel, grid, block, args):
    simt.check(kernel.py_func)[grid, block](*args)
