"""Grids and blocks: the default, the limits, and what is refused."""

import math
import pickle
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import synknumba as synk
from synknumba._errors import LaunchError
from synknumba._ops.launch import Extent, LaunchConfig


@given(rows=st.integers(0, 10**9), block=st.integers(1, 1024))
def test_the_default_grid_has_a_thread_for_each_row_and_no_idle_block(
    rows: int, block: int
) -> None:
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
def test_resolved(
    config: LaunchConfig, rows: int | None, grid: tuple[int, ...], block: tuple[int, ...]
) -> None:
    assert config.resolve(rows) == (grid, block)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"block": 0}, "block must be 1 to 1024 along x; got 0"),
        ({"block": -1}, "block must be 1 to 1024 along x"),
        ({"block": 1025}, "block must be 1 to 1024 along x"),
        (
            {"block": (32, 33), "grid": 1},
            r"block=\(32, 33\) has 1056 threads; a block has at most 1024",
        ),
        ({"block": (1, 1, 65), "grid": 1}, "1 to 64 along z"),
        ({"block": ()}, r"int or a tuple of 1 to 3 ints; got \(\)"),
        ({"block": (1, 1, 1, 1)}, "tuple of 1 to 3 ints"),
        ({"block": 256.0}, "got 256.0"),
        ({"block": True}, "got True"),
        ({"block": "256"}, "got '256'"),
        ({"block": [256]}, r"got \[256\]"),
        ({"block": None, "grid": 0}, "grid must be 1 to"),
        ({"block": (16, 16)}, r"grid= is required with the 2-D block=\(16, 16\)"),
        ({"block": (8, 8, 8)}, "grid= is required with the 3-D"),
        ({"grid": 0}, "grid must be 1 to 2147483647 along x; got 0"),
        ({"grid": 2**31}, "along x"),
        ({"grid": (1, 65536)}, "1 to 65535 along y"),
        ({"grid": (1, 1, 65536)}, "1 to 65535 along z"),
        ({"grid": 1.5}, "got 1.5"),
        (
            {"grid": "element"},
            "grid must be a number of blocks.*or \"elements\" for one per element; got 'element'",
        ),
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
        (
            LaunchConfig(grid=lambda rows: rows / 2),
            3,
            r"grid\(3\) must be an int or a tuple of 1 to 3 ints; got 1.5 .* -\(-n // 128\)",
        ),
        (LaunchConfig(grid=lambda rows: rows - 3), 3, r"grid\(3\) must be 1 to"),
        (LaunchConfig(1), 2**31, "a grid has at most 2147483647.*stride of cuda.gridsize"),
    ],
)
def test_refused_when_resolved(config: LaunchConfig, rows: int | None, says: str) -> None:
    with pytest.raises(LaunchError, match=says):
        config.resolve(rows)


FIELD = {
    "u": (70, 100),
    "w": (9,),
    "cube": (5, 6, 40),
    "deep": (2, 3, 4, 5),
    "tall": (10**6, 3),
    "none": (0, 7),
}


@pytest.mark.parametrize(
    ("config", "source", "grid", "block"),
    [
        (LaunchConfig(grid="elements"), "w", (1, 1, 1), (256, 1, 1)),
        (LaunchConfig(grid="elements"), "u", (4, 9, 1), (32, 8, 1)),
        (LaunchConfig(grid="elements"), "cube", (2, 2, 3), (32, 4, 2)),
        (LaunchConfig((16, 16), "elements"), "u", (7, 5, 1), (16, 16, 1)),
        (LaunchConfig(4, "elements"), "w", (3, 1, 1), (4, 1, 1)),
        (LaunchConfig((4, 4, 4), "elements"), "cube", (10, 2, 2), (4, 4, 4)),
        (LaunchConfig((4, 256), "elements"), "tall", (1, 3907, 1), (4, 256, 1)),
        (LaunchConfig(grid="elements"), None, (8, 1, 1), (256, 1, 1)),
        (LaunchConfig(grid=lambda shapes: shapes["cube"]), "u", (5, 6, 40), (256, 1, 1)),
        (
            LaunchConfig(grid=lambda rows, shapes: (rows, len(shapes["u"]))),
            "u",
            (2000, 2, 1),
            (256, 1, 1),
        ),
        (
            LaunchConfig(grid=lambda shapes, rows: (rows, len(shapes["u"]))),
            "u",
            (2000, 2, 1),
            (256, 1, 1),
        ),
        (
            LaunchConfig(grid=lambda shapes, step=3: step * shapes["w"][0]),
            "w",
            (27, 1, 1),
            (256, 1, 1),
        ),
        (LaunchConfig(grid=lambda n, *, shapes: n), "u", (2000, 1, 1), (256, 1, 1)),
        (LaunchConfig(grid=math.isqrt), "u", (44, 1, 1), (256, 1, 1)),
    ],
)
def test_resolved_by_shapes(
    config: LaunchConfig, source: str | None, grid: tuple[int, ...], block: tuple[int, ...]
) -> None:
    assert config.resolve(2000, FIELD, source) == (grid, block)


def test_a_function_of_shapes_alone_needs_no_rows() -> None:
    assert LaunchConfig(grid=lambda shapes: shapes["w"]).resolve(None, FIELD) == (
        (9, 1, 1),
        (256, 1, 1),
    )


@pytest.mark.parametrize(
    ("config", "source", "says"),
    [
        (
            LaunchConfig(grid="elements"),
            None,
            "no argument is sharded.*no elements to derive the grid from; pass grid=",
        ),
        (
            LaunchConfig(grid=lambda rows, shapes: 1),
            None,
            "no argument is sharded.*or as a function of shapes",
        ),
        (
            LaunchConfig(grid="elements"),
            "deep",
            r"arrays of 1 to 3 axes.*deep has 4: \(2, 3, 4, 5\).*math.prod",
        ),
        (
            LaunchConfig(64, "elements"),
            "u",
            r"block=64 has 1 axis, but u has 2 axes, \(70, 100\).*block=\(32, 8\)",
        ),
        (
            LaunchConfig((8, 8), "elements"),
            "w",
            r"block=\(8, 8\) has 2 axes, but w has 1 axis, \(9,\).*write block=256",
        ),
        (LaunchConfig((8, 8), "elements"), "cube", r"block=\(32, 4, 2\), or leave it out"),
        (
            LaunchConfig(grid="elements"),
            "tall",
            r"125000 blocks of 8 along y.*at most 65535.*such as block=\(16, 16\)",
        ),
        (
            LaunchConfig(grid=lambda shapes: shapes["v"]),
            "w",
            r"grid\(shapes=\{'u': .* raised KeyError: 'v'; grid= takes",
        ),
        (LaunchConfig(grid=lambda rows, shapes: 0), "w", r"grid\(rows=9, shapes=.*\) must be 1 to"),
        (LaunchConfig(grid=lambda a, b, shapes: 1), "w", "raised TypeError: .*'b'"),
    ],
)
def test_refused_by_shapes(config: LaunchConfig, source: str | None, says: str) -> None:
    with pytest.raises(LaunchError, match=says):
        config.resolve(*Extent.of(None, FIELD, source))


@given(length=st.integers(1, 2**30), axis=st.integers(1, 2))
def test_the_block_advised_for_a_long_axis_is_right(length: int, axis: int) -> None:
    """Along y and z, where CUDA's grids have 65535 blocks."""
    shapes = {"u": (length, *[5] * axis)}
    refused = ""
    try:
        LaunchConfig(grid="elements").resolve(1, shapes, "u")
    except LaunchError as error:
        refused = str(error)
    assert bool(refused) == (length > 65535 * (8, 2)[axis - 1])
    if refused and (found := re.search(r"such as block=\((.*)\)\.", refused)):
        LaunchConfig(tuple(map(int, found[1].split(","))), "elements").resolve(1, shapes, "u")
    elif refused:
        assert "loop over the elements" in refused
        assert length > 65535 * (1024, 64)[axis - 1]


@pytest.mark.parametrize(
    ("config", "rows", "source", "nothing"),
    [
        (LaunchConfig(), 0, None, True),
        (LaunchConfig(), 1, None, False),
        (LaunchConfig(grid=2), 0, None, False),
        (LaunchConfig(grid=lambda rows: rows), 0, None, True),
        (LaunchConfig(grid="elements"), 0, "none", True),
        (LaunchConfig(grid="elements"), 70, "u", False),
        (LaunchConfig(grid="elements"), 0, None, True),
        (LaunchConfig(grid="elements"), None, None, False),  # an error, to be raised by `resolve`
    ],
)
def test_launches_of_nothing(
    config: LaunchConfig, rows: int | None, source: str | None, nothing: bool
) -> None:
    assert config.launches_nothing(Extent(rows, FIELD, source)) is nothing


def test_pickles() -> None:
    config = LaunchConfig((16, 16), (2, 2), smem_bytes=64)
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize("nbytes", [228 << 10, 2**40, 2**64])
def test_more_shared_memory_than_any_gpu_has(nbytes):
    with pytest.raises(LaunchError, match=f"smem_bytes={nbytes} is more than a block can have"):
        LaunchConfig(32, 1, nbytes)
    assert LaunchConfig(32, 1, 227 << 10).smem_bytes == 227 << 10


@pytest.mark.parametrize(
    ("grid", "block", "notes"),
    [
        (None, 1, ["blocks of 1: a GPU runs 32 lanes for each"]),
        (
            1,
            1,
            [
                "blocks of 1: a GPU runs 32 lanes for each",
                "launches of fewer than 16 threads: lanes of cores are empty",
            ],
        ),
        (4, 32, []),
    ],
)
def test_plans_name_launches_that_leave_lanes_empty(
    grid: Any, block: int, notes: list[str]
) -> None:
    function = synk.parallel(inout=("x",), name="f", grid=grid, block=block)(lambda x: None)
    lines = str(function.plan(np.zeros(80), world_size=2)).splitlines()
    assert [line.strip() for line in lines if "lanes" in line] == notes
