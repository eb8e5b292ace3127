"""Integers of all types in kernels: signs, widths and conversions, against NumPy's integers of
64 bits.
"""

import numpy as np
import pytest
from numba import cuda
from numpy.testing import assert_array_equal

import synknumba as synk
from tests.conformance import expected

QUICK = {"uint8", "int16", "uint64"}


def named(name):
    return pytest.param(np.dtype(name), id=name, marks=() if name in QUICK else pytest.mark.whole)


def mixed(kind, n, seed):
    """Returns numbers of all sizes, the least and the largest among them."""
    limits = np.iinfo(kind)
    x = np.random.default_rng(seed).integers(limits.min, limits.max, n, kind, endpoint=True)
    x[:2] = [limits.min, limits.max][: x[:2].size]
    return x


RESULTS = (
    "most",
    "least",
    "minus",
    "inverse",
    "square",
    "twice",
    "quotient",
    "remainder",
    "below",
    "found",
    "count",
)


@synk.parallel(broadcast=("table",), inout=RESULTS)
def operations(
    a,
    b,
    real,
    small,
    divisor,
    table,
    most,
    least,
    minus,
    inverse,
    square,
    twice,
    quotient,
    remainder,
    below,
    found,
    count,
):
    i = cuda.grid(1)
    if i < a.size:
        most[i], least[i] = max(a[i], b[i]), min(a[i], b[i])
        minus[i], inverse[i], square[i], twice[i] = -a[i], ~a[i], a[i] ** 2, a[i] << 1
        quotient[i], remainder[i] = a[i] // divisor[i], a[i] % divisor[i]
        below[i] = (a[i] < real[i]) + 2 * (real[i] <= b[i]) + 4 * (a[i] != real[i])
        found[i] = table[small[i]]
        for k in range(small[i]):
            count[i] += k


@pytest.mark.parametrize(
    "kind", [named(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
def test_operations(world, kind):
    """What Numba computes in 64 bits is compared in these, and what it computes in the type of
    `a` in that.
    """
    n = 5 * world.world_size + 1
    a, b = mixed(kind, n, 1), mixed(kind, n, 2)[::-1].copy()
    if kind.kind == "i":
        a = np.maximum(a, -np.iinfo(kind).max)  # the negative of the least is undefined
    real = np.where(np.arange(n) % 3 == 0, a, b).astype(float)
    small = np.linspace(-100 if kind.kind == "i" else 0, 100 if kind == "int8" else 200, n).astype(
        kind
    )
    divisor = np.where((small == 0) | (small == np.array(-1).astype(kind)), kind.type(7), small)
    table = np.arange(256.0) ** 2
    found = {name: np.zeros(n, kind if name in ("most", "least") else np.int64) for name in RESULTS}
    operations(a, b, real, small, divisor, table, *found.values())
    wide = a.astype(np.int64)  # what is left of 64 bits is the same with and without a sign
    position = small.astype(np.int64)
    wanted = {
        "most": np.maximum(a, b),
        "least": np.minimum(a, b),
        "minus": -a,
        "inverse": ~a,
        "square": wide * wide,
        "twice": wide << 1,
        "quotient": a // divisor,
        "remainder": a % divisor,
        "below": (a.astype(float) < real)
        + 2 * (real <= b.astype(float))
        + 4 * (a.astype(float) != real),
        "found": table[position],
        "count": np.where(position > 0, position * (position - 1) // 2, 0),
    }
    wrong = {
        name: (found[name], values)
        for name, values in wanted.items()
        if np.any(found[name] != values.astype(found[name].dtype))
    }
    assert not wrong


@synk.parallel(inout=("total", "most", "least", "bits", "swapped"))
def updates(a, b, at, total, most, least, bits, swapped):
    i = cuda.grid(1)
    if i < a.size:
        cuda.atomic.add(total, at[i], b[i])
        cuda.atomic.max(most, at[i], b[i])
        cuda.atomic.min(least, at[i], b[i])
        cuda.atomic.xor(bits, at[i], b[i])
        cuda.atomic.cas(swapped, at[i], a[i], b[i])


def reversed_rows(world, rows):
    """Returns the rows of each rank in reverse order: counted from its first, as it counts them,
    and from the first of all.
    """
    parts = [part[::-1] for part in expected.shards(np.arange(rows), world.world_size)]
    return np.concatenate([part - part.min() for part in parts]).astype(np.uint8), np.concatenate(
        parts
    )


@pytest.mark.parametrize(
    ("kind", "narrow"),
    [
        ("uint32", "uint8"),
        pytest.param("int64", "int8", marks=pytest.mark.whole),
        pytest.param("uint64", "uint32", marks=pytest.mark.whole),
        pytest.param("int32", "int32", marks=pytest.mark.whole),
    ],
)
def test_updates_by_narrower_numbers(world, kind, narrow):
    rows = 200
    at, order = reversed_rows(world, rows)
    a, b = mixed(np.dtype(narrow), rows, 3), mixed(np.dtype(narrow), rows, 4)
    start = np.where(np.arange(rows) % 2 == 0, a[order], mixed(np.dtype(kind), rows, 5)).astype(
        kind
    )
    total, most, least, bits, swapped = (start.copy() for _ in range(5))
    updates(a, b, at, total, most, least, bits, swapped)
    number = b[order].astype(kind)
    assert_array_equal(total, start + number)
    assert_array_equal(most, np.maximum(start, number))
    assert_array_equal(least, np.minimum(start, number))
    assert_array_equal(bits, start ^ number)
    assert_array_equal(swapped, np.where(start == a[order].astype(kind), number, start))


@synk.parallel(inout=("up", "down"))
def counted(bound, up, down):
    i = cuda.grid(1)
    if i < bound.size:
        cuda.atomic.inc(up, i, bound[i])
        cuda.atomic.dec(down, i, bound[i])


@pytest.mark.parametrize("kind", [named("uint32"), named("uint64")])
def test_counts(world, kind):
    bound, start = mixed(kind, 120, 6), mixed(kind, 120, 7)
    bound[2:8], start[2:8] = [0, 0, 5, 5, 5, 5], [0, 5, 0, 4, 5, 6]
    up, down = start.copy(), start.copy()
    counted(bound, up, down)
    assert_array_equal(up, np.where(start >= bound, 0, start + kind.type(1)))
    assert_array_equal(down, np.where((start == 0) | (start > bound), bound, start - kind.type(1)))
