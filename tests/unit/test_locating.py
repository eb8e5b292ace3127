"""The best row, by NumPy and by kernels: as NumPy's argmin and argmax of all rows at once."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from synknumba._device.argmin_kernel import THREADS, locating_kernels, search_grid
from synknumba._ops.reduction import best, identity, locate
from synknumba._ops.rows import Partition
from synknumba.simt import jit
from tests.quick import whole

VALUES = {
    "float64": st.sampled_from([-np.inf, -1.0, -0.0, 0.0, 1.0, np.inf, np.nan]),
    "int64": st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 1]),
    "uint8": st.sampled_from([0, 1, 255]),
}
CASES = [("argmin", "float64"), ("argmax", "float64"), ("argmax", "uint8"), ("argmin", "int64")]
# the others are run by the simulator, which compiles nothing
COMPILED = [
    ("argmin", "float64"),
    ("argmax", "uint8"),
]
KERNELS = {
    (op, dtype): tuple(map(jit, locating_kernels(op, np.dtype(dtype)))) for op, dtype in COMPILED
}


def by_kernels(op: str, values: Any, rows: Any, scores: Any, first: int) -> None:
    search, settle = KERNELS[op, scores.dtype.name]
    grid = search_grid(*scores.shape)
    found = (
        np.empty((grid[0], scores.shape[1]), scores.dtype),
        np.empty((grid[0], scores.shape[1]), np.int64),
    )
    search[grid, THREADS](scores, first, *found)
    settle[(1, *grid[1:]), THREADS](*found, values, rows)


def check(op: str, got_values: Any, got_rows: Any, scores: Any) -> None:
    wanted = getattr(scores, op)(axis=0)
    np.testing.assert_array_equal(got_rows, wanted)
    np.testing.assert_array_equal(got_values, np.take_along_axis(scores, wanted[None], 0)[0])


@pytest.mark.parametrize("way", [locate, *whole(by_kernels)])
@settings(max_examples=60)  # compiles
@given(data=st.data())
def test_ranks_and_slices(way: Any, data: st.DataObject) -> None:
    op: Any
    op, dtype = data.draw(st.sampled_from(CASES if way is locate else list(KERNELS)))
    n, columns, world_size, num_slices = (data.draw(st.integers(1, most)) for most in (40, 3, 5, 3))
    scores = data.draw(arrays(dtype, (n, columns), elements=VALUES[dtype]))
    values = np.full((world_size, columns), identity(op, dtype))
    rows = np.full((world_size, columns), -1)
    for rank in range(world_size):
        start, stop = Partition.even(world_size).part(n, rank)
        for k in range(num_slices):
            low, high = Partition.even(num_slices).part(stop - start, k)
            if high > low:
                way(
                    op,
                    values[rank],
                    rows[rank],
                    np.ascontiguousarray(scores[start + low : start + high]),
                    start + low,
                )
    check(op, *best(op, values, rows), scores)


@pytest.mark.parametrize(("op", "dtype"), KERNELS)
def test_kernels_over_many_blocks(op: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    for n in (255, 256, 257, 70_001):
        scores = rng.integers(0, 200, (n, 2)).astype(dtype)
        values, rows = np.zeros(2, dtype), np.full(2, -1)
        by_kernels(op, values, rows, scores, 0)
        check(op, values, rows, scores)


@pytest.mark.whole
def test_kernels_in_the_simulator() -> None:
    """Numba's own idea of what these kernels do on a GPU."""
    env = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    script = Path(__file__).with_name("reductions_in_simulator.py")
    done = subprocess.run(
        [sys.executable, str(script)], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout == "as NumPy\n", done.stderr
