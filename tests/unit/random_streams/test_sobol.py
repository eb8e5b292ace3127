"""Sobol points: SciPy's sequence, the published direction numbers, and what scrambles keep and
change.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
from numba import cuda, njit
from numba.core.errors import TypingError
from numpy.testing import assert_array_equal
from scipy.stats import qmc

import synknumba as synk
from synknumba import random, simt

DIMENSIONS = 1024
WORD = 2**32
EDGES = (0, 1, 2, 3, 1000, 2**24 - 1, 2**31, 2**32 - 1)
PUBLISHED = Path(scipy.stats.__file__).with_name("_sobol_direction_numbers.npz")


def columns(dimension: int) -> list[int]:
    """The direction numbers of a dimension, by the recurrence of Bratley and Fox in Python's
    integers.
    """
    with np.load(PUBLISHED) as table:
        polynomial, numbers = int(table["poly"][dimension]), table["vinit"][dimension].tolist()
    degree = polynomial.bit_length() - 1
    if degree == 0:
        return [1 << (31 - k) for k in range(32)]
    numbers = numbers[:degree]
    for k in range(degree, 32):
        number = numbers[k - degree]
        for lag in range(1, degree + 1):
            if polynomial >> (degree - lag) & 1:
                number ^= numbers[k - lag] << lag
        numbers.append(number)
    return [number << (31 - k) for k, number in enumerate(numbers)]


def sequence(row: int, dimension: int) -> int:
    """A coordinate of the sequence, in units of 2^-32."""
    point = 0
    for k, number in enumerate(columns(dimension)):
        if (row ^ row >> 1) >> k & 1:
            point ^= number
    return point


def mixed(word: int) -> int:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word = (word ^ word >> shift) * factor % 2**64
    return word ^ word >> 31


def scrambled(seed: int, row: int, dimension: int) -> float:
    """A coordinate of the points of a seed: Vegdahl's hash of the reversed bits."""
    key = mixed((mixed(seed % 2**64) + 0x9E3779B97F4A7C15 * (dimension + 1)) % 2**64)
    x = int(f"{sequence(row, dimension):032b}"[::-1], 2)
    x ^= x * 0x3D20ADEA % WORD
    x = (x + key) * (key >> 32 | 1) % WORD
    for factor in (0x05526C56, 0x53A22864):
        x ^= x * factor % WORD
    return (int(f"{x:032b}"[::-1], 2) + 0.5) / WORD


def test_the_sequence_is_scipys() -> None:
    for rows in (256, 1):
        points = qmc.Sobol(DIMENSIONS, scramble=False, bits=32).random(rows)
        assert_array_equal(
            random.sobol(None, np.arange(rows)[:, None], np.arange(DIMENSIONS)), points
        )


def test_the_numbers_kept_are_the_published_ones() -> None:
    kept = Path(synk.__file__).with_name("sobol_directions.npz")
    with np.load(kept) as ours, np.load(PUBLISHED) as published:
        assert_array_equal(ours["polynomials"], published["poly"][:DIMENSIONS])
        initial = published["vinit"][:DIMENSIONS]
        assert_array_equal(ours["initial"], initial[:, : ours["initial"].shape[1]])
        assert not initial[:, ours["initial"].shape[1] :].any()


@pytest.mark.parametrize("dimension", [0, 1, 511, 1023])
def test_rows_to_the_last_and_scrambles(dimension: int) -> None:
    @simt.jit
    def write(seed, row, place, out):
        i = cuda.grid(1)
        if i < row.size:
            out[i, 0] = random.sobol(None, row[i], dimension)
            out[i, 1] = random.sobol(seed, row[i], dimension)
            out[i, 2] = synk.random.sobol(None, row[i], place)
            out[i, 3] = synk.random.sobol(seed, row[i], place)

    @njit
    def compiled(seed, row):
        return random.sobol(seed, row, dimension)

    rows, out = np.array(EDGES), np.zeros((len(EDGES), 4))
    for seed in (0, 7, -1, 2**40):
        plain = [sequence(row, dimension) / WORD for row in EDGES]
        permuted = [scrambled(seed, row, dimension) for row in EDGES]
        assert_array_equal(random.sobol(None, rows, dimension), plain)
        assert_array_equal(random.sobol(seed, rows, dimension), permuted)
        assert [random.sobol(seed, row, dimension) for row in EDGES] == permuted
        assert [compiled(seed, row) for row in EDGES] == permuted
        write[1, 32](seed, rows, dimension, out)
        assert_array_equal(out, np.transpose([plain, permuted, plain, permuted]))


# ---- what a scramble keeps


@pytest.mark.parametrize("first", [0, 3 * 256])
def test_each_elementary_interval_has_one_point(first: int) -> None:
    """The first two dimensions are a (0,2)-sequence: of 2^m rows, one is in each box of area 2^-m,
    whatever its shape.
    """
    rows = np.arange(first, first + 256)
    for seed in (None, 0, 1, 2**50):
        x, y = random.sobol(seed, rows, 0), random.sobol(seed, rows, 1)
        for bits in range(9):
            boxes = np.floor(x * 2**bits) * 2 ** (8 - bits) + np.floor(y * 2 ** (8 - bits))
            assert_array_equal(np.sort(boxes), np.arange(256))


@pytest.mark.parametrize("dimension", [0, 5, 63, 1023])
def test_each_dimension_has_one_point_in_each_part(dimension: int) -> None:
    for first in (0, 2**31):
        points = random.sobol(3, np.arange(first, first + 4096), dimension)
        assert_array_equal(np.sort(np.floor(points * 4096)), np.arange(4096))


# ---- what a scramble changes

SEEDS = np.arange(50_000)
LIMIT = 4.5 / np.sqrt(len(SEEDS))


@pytest.mark.parametrize(("point", "dimension"), [(0, 0), (5, 0), (77, 3), (2**32 - 1, 1023)])
def test_a_point_is_uniform_over_the_seeds(point: int, dimension: int) -> None:
    points = random.sobol(SEEDS, point, dimension)
    assert abs(points.mean() - 0.5) < LIMIT / np.sqrt(12)
    assert scipy.stats.kstest(points, "uniform").pvalue > 1e-4
    assert 0 < points.min() < points.max() < 1


def test_flips_of_bits_are_pairwise_independent() -> None:
    """Which bits of a scramble depend on which: of the first 6, all 63 flips, in two dimensions
    and for neighbouring seeds. The variance of a mean over a net depends on pairs of flips only.
    """
    flips = []
    for seeds, dimension in ((SEEDS, 0), (SEEDS, 1), (SEEDS + 1, 0)):
        for bit in range(6):
            rows = np.arange(2 ** (bit + 1)) if bit else np.arange(2)
            plain = np.floor(random.sobol(None, rows, dimension) * 2 ** (bit + 1)).astype(int)
            for prefix in range(2**bit):
                row = rows[plain == 2 * prefix][0]
                point = random.sobol(seeds, row, dimension)
                flips.append(1 - 2 * (np.floor(point * 2 ** (bit + 1)) % 2))
    flips = np.array(flips)
    assert flips.shape == (3 * 63, len(SEEDS))
    assert abs(flips.mean(axis=1)).max() < LIMIT
    correlations = flips @ flips.T / len(SEEDS)
    np.fill_diagonal(correlations, 0)
    assert abs(correlations).max() < 1.2 * LIMIT  # of 17,766 pairs


# ---- what is refused


@pytest.mark.parametrize(
    ("point", "dimension", "message"),
    [
        (-1, 0, "row must be from 0 to 4294967295, got -1"),
        (2**32, 0, "row must be from 0 to 4294967295, got 4294967296"),
        (2**64, 0, "row must be from 0 to 4294967295, got 18446744073709551616"),
        (np.array([0, -5]), 0, "row must be from 0 to 4294967295, got array"),
        (0, 1024, "dimension must be from 0 to 1023, got 1024"),
        (0, -1, "dimension must be from 0 to 1023, got -1"),
    ],
)
def test_out_of_range(point: Any, dimension: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        random.sobol(7, point, dimension)


def test_out_of_range_in_a_kernel() -> None:
    @njit
    def dynamic(seed, row, dimension):
        return random.sobol(seed, row, dimension), random.sobol(None, row, dimension)

    assert np.isfinite(dynamic(7, 2**32 - 1, 1023)).all()
    for row, dimension in ((-1, 0), (2**32, 0), (0, 1024), (0, -1), (0, 2**62)):  # cannot raise
        assert np.isnan(dynamic(7, row, dimension)).all()

    @njit
    def constant(seed, row):
        return random.sobol(seed, row, 1024)

    with pytest.raises(ValueError, match="dimension must be from 0 to 1023, got 1024"):
        constant(7, 0)


@pytest.mark.parametrize("arguments", [(1.0, 2, 3), (1, 2.5, 3), (1, 2, True), (1, 2, "3")])
def test_only_integers_make_a_point(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="must be integers, but one is .*Convert it with int"):
        random.sobol(*arguments)

    @njit
    def compiled(seed, row, dimension):
        return random.sobol(seed, row, dimension)

    with pytest.raises(TypingError, match="must be integers, but one is .*Convert it with int"):
        compiled(*arguments)
