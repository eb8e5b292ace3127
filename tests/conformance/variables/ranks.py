"""What the ranks hold, put there and read one by one, and the numbers that tests use."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.testing import assert_array_equal

import synknumba as synk

RECORD = np.dtype([("a", "i4"), ("b", "f8")], align=True)  # CUDA reads aligned fields only
NUMBERS = [
    "int8",
    "uint8",
    "int16",
    "int32",
    "int64",
    "uint64",
    "float32",
    "float64",
    "complex64",
    "complex128",
]


def held(variable: synk.Variable, world: synk.World) -> list[Any]:
    """What each rank has."""
    return [synk.get_value(rank, variable) for rank in range(world.world_size)]


def put(variable: synk.Variable, arrays: Sequence[Any]) -> synk.Variable:
    """Gives each rank its own."""
    for rank, array in enumerate(arrays):
        synk.set_value(rank, variable, array)
    return variable


def assert_held(
    variable: synk.Variable, world: synk.World, expected: Callable[[int], Any] | Any
) -> None:
    """Each rank has what is expected: a function of the rank, or the same on all."""
    for rank, array in enumerate(held(variable, world)):
        wanted = np.asarray(expected(rank) if callable(expected) else expected)
        assert array.shape == wanted.shape
        assert_array_equal(array, wanted, err_msg=f"rank {rank}")


def shard_of(array: Any, world: synk.World, rank: int) -> Any:
    """The rows that a rank gets of an array: NumPy's own cutting of a line, cut off to whole
    numbers.
    """
    edges = np.trunc(np.linspace(0, len(array), world.world_size + 1)).astype(int)
    return array[edges[rank] : edges[rank + 1]]


def shards(array: Any, world: synk.World) -> list[Any]:
    """The rows of each rank."""
    return [shard_of(array, world, rank) for rank in range(world.world_size)]
