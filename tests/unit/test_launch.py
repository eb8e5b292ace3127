"""Grids and blocks: the default, the limits, and what is refused."""

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synknumba._errors import LaunchError
from synknumba._ops.launch import LaunchConfig


@given(rows=st.integers(0, 10**9), block=st.integers(1, 1024))
def test_the_default_grid_has_a_thread_for_each_row_and_no_idle_block(rows: int, block: int) -> None:
    (x, y, z), threads = LaunchConfig(block).resolve(rows)
    assert (y, z) == (1, 1)
    assert threads == (block, 1, 1)
    assert x * block >= rows
    assert x == 1 or (x - 1) * block < rows


@pytest.mark.parametrize(
    ("config", "rows", "grid", "block"),
    [
        (LaunchConfig(), 0, (1, 1, 1), (256, 1, 1)),
        (LaunchConfig(), 257, (2, 1, 1), (256, 1, 1)),
        (LaunchConfig((64,)), 65, (2, 1, 1), (64, 1, 1)),
        (LaunchConfig((64, 1, 1)), 65, (2, 1, 1), (64, 1, 1)),
        (LaunchConfig(np.int64(64), np.int32(7)), None, (7, 1, 1), (64, 1, 1)),  # type: ignore[arg-type]
        (LaunchConfig((16, 16), (3, 4)), 10**6, (3, 4, 1), (16, 16, 1)),
        (LaunchConfig((4, 4, 64), (1, 65535, 65535)), 1, (1, 65535, 65535), (4, 4, 64)),
        (LaunchConfig(1, 2**31 - 1), 1, (2**31 - 1, 1, 1), (1, 1, 1)),
        (LaunchConfig((8, 8), lambda rows: (rows // 8, 2)), 80, (10, 2, 1), (8, 8, 1)),
        (LaunchConfig(32, lambda rows: rows), 5, (5, 1, 1), (32, 1, 1)),
    ],
)
def test_resolved(config: LaunchConfig, rows: int | None, grid: tuple[int, ...], block: tuple[int, ...]) -> None:
    assert config.resolve(rows) == (grid, block)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"block": 0}, "block must be 1 to 1024 along x; got 0"),
        ({"block": -1}, "block must be 1 to 1024 along x"),
        ({"block": 1025}, "block must be 1 to 1024 along x"),
        ({"block": (32, 33), "grid": 1}, r"block=\(32, 33\) has 1056 threads; a block has at most 1024"),
        ({"block": (1, 1, 65), "grid": 1}, "1 to 64 along z"),
        ({"block": ()}, r"int or a tuple of 1 to 3 ints; got \(\)"),
        ({"block": (1, 1, 1, 1)}, "tuple of 1 to 3 ints"),
        ({"block": 256.0}, "got 256.0"),
        ({"block": True}, "got True"),
        ({"block": "256"}, "got '256'"),
        ({"block": [256]}, r"got \[256\]"),
        ({"block": None}, "got None"),
        ({"block": (16, 16)}, r"grid= is required with the 2-D block=\(16, 16\)"),
        ({"block": (8, 8, 8)}, "grid= is required with the 3-D"),
        ({"grid": 0}, "grid must be 1 to 2147483647 along x; got 0"),
        ({"grid": 2**31}, "along x"),
        ({"grid": (1, 65536)}, "1 to 65535 along y"),
        ({"grid": (1, 1, 65536)}, "1 to 65535 along z"),
        ({"grid": 1.5}, "got 1.5"),
        ({"grid": (1, None)}, "got"),
        ({"smem_bytes": -1}, "smem_bytes must be a non-negative int; got -1"),
        ({"smem_bytes": 1.0}, "smem_bytes"),
        ({"smem_bytes": None}, "smem_bytes"),
    ],
)
def test_refused_when_made(options: dict[str, Any], says: str) -> None:
    with pytest.raises(LaunchError, match=says):
        LaunchConfig(**options)


@pytest.mark.parametrize(
    ("config", "rows", "says"),
    [
        (LaunchConfig(), None, "no argument is sharded.*pass grid="),
        (LaunchConfig(grid=lambda rows: rows), None, "no argument is sharded"),
        (LaunchConfig(grid=lambda rows: rows / 2), 3, r"grid\(3\) must be an int or a tuple of 1 to 3 ints; got 1.5"),
        (LaunchConfig(grid=lambda rows: rows - 3), 3, r"grid\(3\) must be 1 to"),
        (LaunchConfig(1), 2**31, "a grid has at most 2147483647.*stride of cuda.gridsize"),
    ],
)
def test_refused_when_resolved(config: LaunchConfig, rows: int | None, says: str) -> None:
    with pytest.raises(LaunchError, match=says):
        config.resolve(rows)


def test_pickles() -> None:
    config = LaunchConfig((16, 16), (2, 2), smem_bytes=64)
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize("nbytes", [228 << 10, 2**40, 2**64])
def test_more_shared_memory_than_any_gpu_has(nbytes):
    with pytest.raises(LaunchError, match=f"smem_bytes={nbytes} is more than a block can have"):
        LaunchConfig(32, 1, nbytes)
    assert LaunchConfig(32, 1, 227 << 10).smem_bytes == 227 << 10
