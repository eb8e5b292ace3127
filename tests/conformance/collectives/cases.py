"""What the ranks hold before a collective, and what NumPy says that they hold afterwards.

Numbers are such that every op is exact in every dtype and in every order: integers of all sizes,
which wrap, and small whole numbers as floats. Values are put on the ranks one by one and read from
them one by one.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

import synknumba as synk

INTEGERS = ["uint8", "int32", "int64"]
FLOATS = ["float16", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]
RECORD = np.dtype([("a", "f4"), ("b", "i8"), ("c", "u1")])  # 13 bytes: nothing in it is aligned
DTYPES = ["bool", *INTEGERS, *FLOATS, *COMPLEX, RECORD]
OPS = {  # op: the dtypes that have it, and how NumPy does it; "avg" is divided afterwards
    "sum": ([*INTEGERS, *FLOATS, *COMPLEX], np.add),
    "prod": ([*INTEGERS, *FLOATS, *COMPLEX], np.multiply),
    "min": (["bool", *INTEGERS, *FLOATS], np.minimum),
    "max": (["bool", *INTEGERS, *FLOATS], np.maximum),
    "avg": ([*FLOATS, *COMPLEX], np.add),
}
OPS_AND_DTYPES = [(op, dtype) for op, (dtypes, _) in OPS.items() for dtype in dtypes]
SHAPES = [(), (1,), (0,), (7,), (3, 2), (2, 0), (2, 3, 2)]
LARGE = (20_011, 2)  # more than the coordinator does itself, in every dtype, on two ranks


def numbers(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...]) -> Any:
    """An array of a dtype, of numbers as said above."""
    dtype = np.dtype(dtype)
    if dtype.names is not None:
        made = np.empty(shape, dtype)
        for name in dtype.names:
            made[name] = numbers(rng, dtype[name], shape)
        return made
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.asarray(rng.integers(info.min, info.max, shape, dtype, endpoint=True))
    if dtype.kind == "c":
        return np.asarray(rng.integers(-4, 5, shape) + 1j * rng.integers(-4, 5, shape), dtype)
    return np.asarray(rng.integers(-8, 9, shape), dtype)


def rows_of(total: int, world_size: int, rank: int) -> slice:
    """The rows that a rank gets of all: numpy's own cutting of a line, cut off to whole numbers."""
    edges = np.trunc(np.linspace(0, total, world_size + 1)).astype(int)
    return slice(edges[rank], edges[rank + 1])


def combined(op: str, arrays: Sequence[Any]) -> Any:
    """What NumPy makes of the arrays of all ranks; complex numbers are multiplied, and an
    average is divided, part by part.
    """
    dtype = arrays[0].dtype
    combine = complex_product if (op, dtype.kind) == ("prod", "c") else OPS[op][1]
    with np.errstate(all="ignore"):
        total = np.asarray(reduce(combine, arrays), dtype)
    if op != "avg":
        return total
    real = dtype.type(0).real.dtype.type
    parts = np.ascontiguousarray(total).reshape(-1).view(real) / real(len(arrays))
    return parts.astype(real).view(dtype).reshape(total.shape)


def complex_product(a: Any, b: Any) -> Any:
    """Each part rounded after each step; in NumPy's own product that depends on the processor,
    and on where the numbers lie.
    """
    made = np.empty_like(a)
    made.real = a.real * b.real - a.imag * b.imag
    made.imag = a.real * b.imag + a.imag * b.real
    return made


def held(variable: synk.Variable, world: synk.World) -> list[Any]:
    """What each rank has."""
    return [synk.get_value(rank, variable) for rank in range(world.world_size)]


def put(variable: synk.Variable, arrays: Sequence[Any]) -> None:
    """Gives each rank its own."""
    for rank, array in enumerate(arrays):
        synk.set_value(rank, variable, array)


def differing(
    rng: np.random.Generator, world: synk.World, dtype: Any, shape: tuple[int, ...]
) -> tuple[Any, list[Any]]:
    """A variable, and what each rank has in it: each something else."""
    arrays = [numbers(rng, dtype, shape) for _ in range(world.world_size)]
    variable = synk.variable(arrays[0])
    put(variable, arrays)
    return variable, arrays


def assert_held(variable: synk.Variable, world: synk.World, expected: Sequence[Any]) -> None:
    """Every rank has what it should have, to the bit, in dtype and shape too, and the
    coordinator knows the shapes.
    """
    found = held(variable, world)
    assert len(expected) == len(found)
    for rank, (mine, wanted) in enumerate(zip(found, expected, strict=True)):
        assert_same(mine, wanted, f"on rank {rank}")
    assert synk.get_shapes(variable) == [np.shape(one) for one in expected]


def assert_same(found: Any, wanted: Any, where: str = "") -> None:
    """Equal to the bit, but for the sign of zero; a NaN is a NaN."""
    np.testing.assert_array_equal(found, wanted, err_msg=where, strict=True)
