"""What the functions return, in Python, in njit functions and in kernels, against published
blocks and Python's integers.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import cuda, njit
from numba.core.errors import TypingError
from numpy.testing import assert_allclose, assert_array_equal

import synknumba as synk
from synknumba import random, simt
from tests.unit.random_streams import reference

EDGES = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 + 1, 2**56 - 1, 2**63 - 1, -1, -(2**63))
BOUNDS = (
    (0, 1),
    (0, 2),
    (-3, 4),
    (0, 10**6),
    (5, 2**32),
    (0, 2**32 + 1),
    (-(2**40), 3),
    (-(2**63), 2**63 - 1),
)

numbers = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize(
    ("rounds", "line"),
    [(rounds, line) for rounds, lines in reference.PHILOX_KNOWN.items() for line in lines],
)
def test_philox_gives_the_published_blocks(rounds: int, line: str) -> None:
    *given_words, w0, w1, w2, w3 = reference.words(line)
    known = [w0, w1, w2, w3]
    assert reference.philox(given_words[:4], given_words[4:], rounds) == known
    assert list(random.philox4x32(*given_words, rounds=rounds)) == known
    assert all(word.dtype == np.uint32 for word in random.philox4x32(*given_words))
    compiled, kernel = COMPILED_PHILOX[rounds]
    assert list(compiled(*given_words)) == known
    arrays = (np.full(3, word, np.uint32) for word in given_words)
    assert_array_equal(random.philox4x32(*arrays, rounds), np.tile(np.array(known)[:, None], 3))
    out = np.zeros((5, 4), np.uint32)
    kernel[1, 8](np.array(given_words, np.uint32), out)
    assert_array_equal(out, np.tile(known, (5, 1)))


@pytest.mark.parametrize("line", reference.THREEFRY_KNOWN)
def test_threefry_gives_the_published_blocks(line: str) -> None:
    *given_words, x, y = reference.words(line)
    assert reference.threefry(given_words[:2], given_words[2:]) == [x, y]
    assert list(random.threefry2x64(*given_words)) == [x, y]
    assert list(_threefry_compiled(*(np.uint64(word) for word in given_words))) == [x, y]
    blocks = random.threefry2x64(*(np.full(3, word, np.uint64) for word in given_words))
    assert_array_equal(blocks, np.tile(np.array([[x], [y]], np.uint64), 3))
    out = np.zeros((5, 2), np.uint64)
    threefry_kernel[1, 8](np.array(given_words, np.uint64), out)
    assert_array_equal(out, np.tile(np.array([x, y], np.uint64), (5, 1)))


@njit
def _threefry_compiled(c0, c1, k0, k1):
    return random.threefry2x64(c0, c1, k0, k1)


def _compiled_philox(rounds: int) -> tuple[Callable[..., Any], Any]:
    """An njit function and a kernel with a number of rounds from outside, by position and name."""

    @njit
    def compiled(c0, c1, c2, c3, k0, k1):
        return random.philox4x32(c0, c1, c2, c3, k0, k1, rounds)

    @simt.jit
    def kernel(given, out):
        i = cuda.grid(1)
        if i < out.shape[0]:
            w0, w1, w2, w3 = synk.random.philox4x32(
                given[0], given[1], given[2], given[3], given[4], given[5], rounds=rounds
            )
            out[i, 0] = w0
            out[i, 1] = w1
            out[i, 2] = w2
            out[i, 3] = w3

    return compiled, kernel


COMPILED_PHILOX = {rounds: _compiled_philox(rounds) for rounds in (7, 10)}


@simt.jit
def threefry_kernel(given, out):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i, 0], out[i, 1] = synk.random.threefry2x64(given[0], given[1], given[2], given[3])


@given(st.lists(st.integers(0, 2**64 - 1), min_size=6, max_size=6))
def test_blocks_of_any_counter(given_words: list[int]) -> None:
    in_32_bits = [word % 2**32 for word in given_words]
    assert list(random.philox4x32(*given_words)) == reference.philox(in_32_bits[:4], in_32_bits[4:])
    assert list(random.threefry2x64(*given_words[:4])) == reference.threefry(
        given_words[:2], given_words[2:4]
    )


# ---- where numbers come from


def _kernel(name: str, rounds: int = 10) -> Callable[..., None]:
    """A kernel that writes the number, or the numbers, of each row."""
    function = getattr(random, name)
    if isinstance(function(0, 0, 0), tuple):

        @simt.jit
        def write(seed, index, draw, out):
            i = cuda.grid(1)
            if i < index.size:
                for place, number in enumerate(function(seed, index[i], draw, rounds)):
                    out[i, place] = number
    else:

        @simt.jit
        def write(seed, index, draw, out):
            i = cuda.grid(1)
            if i < index.size:
                out[i, 0] = function(seed, index[i], draw, rounds=rounds)

    return write


def _compiled(name: str) -> Callable[..., Any]:
    function = getattr(random, name)

    @njit
    def call(seed, index, draw):
        return function(seed, index, draw)

    return call


@pytest.mark.parametrize("name", reference.MEANINGS)
def test_a_number_is_what_the_layout_says(name: str) -> None:
    """In Python on numbers and on arrays, in an njit function, and in a kernel."""
    function, compiled, kernel = getattr(random, name), _compiled(name), _kernel(name)
    near = reference.tolerance(name)
    for seed, draw in [
        (0, 0),
        (1, 0),
        (0, 1),
        (2**64 - 1, 2**32 + 3),
        (-7, 2**56 - 1),
        (2**33 + 5, -1),
    ]:
        expected = np.array(
            [np.atleast_1d(reference.sample(name, seed, index, draw)) for index in EDGES]
        )
        inside = np.array(EDGES), np.int64(draw)
        as_int64 = np.uint64(seed % 2**64).astype(np.int64)
        for_each = np.array([np.atleast_1d(function(seed, index, draw)) for index in EDGES])
        assert_allclose(for_each, expected, **near)
        assert_allclose(
            np.array([np.atleast_1d(compiled(as_int64, index, draw)) for index in EDGES]),
            expected,
            **near,
        )
        assert_allclose(np.stack(np.atleast_2d(function(seed, *inside)), axis=-1), expected, **near)
        out = np.zeros(expected.shape, for_each.dtype)
        kernel[1, 32](as_int64, *inside, out)
        assert_allclose(out, expected, **near)


@pytest.mark.parametrize("name", reference.MEANINGS)
def test_seven_rounds(name: str) -> None:
    """In Python, in an njit function, and in a kernel for a row of each thread."""
    function, near = getattr(random, name), reference.tolerance(name)
    expected = [np.atleast_1d(reference.sample(name, 5, index, 2, 7)) for index in range(40)]
    numbers = function(5, np.arange(40), 2, rounds=7)
    assert_allclose(np.stack(np.atleast_2d(numbers), axis=-1), expected, **near)

    @njit
    def compiled(seed, index, draw):
        return function(seed, index, draw, 7)

    in_turn = [np.atleast_1d(compiled(5, index, 2)) for index in range(40)]
    assert_allclose(in_turn, expected, **near)
    out = np.zeros((40, len(expected[0])), numbers[0].dtype)
    _kernel(name, rounds=7)[1, 64](5, np.arange(40), 2, out)
    assert_allclose(out, expected, **near)


def test_seven_rounds_of_integers() -> None:
    expected = [reference.randint(3, index, 9, -5, 8, 7) for index in range(40)]
    assert_array_equal(random.randint(3, np.arange(40), 9, -5, 8, 7), expected)

    @synk.vectorize
    def integer(index):
        return random.randint(3, index, 9, -5, 8, rounds=7)

    with synk.fork(2, device="cpu"):
        assert_array_equal(integer(np.arange(40)), expected)


@pytest.mark.parametrize(("low", "high"), BOUNDS)
def test_integers_are_what_the_layout_says(low: int, high: int) -> None:
    expected = [reference.randint(3, index, 9, low, high) for index in range(200)]
    assert [random.randint(3, index, 9, low, high) for index in range(200)] == expected
    assert_array_equal(random.randint(3, np.arange(200), 9, low, high), expected)
    out = np.zeros(200, np.int64)
    integers[1, 256](3, 9, low, high, out)
    assert_array_equal(out, expected)


@simt.jit
def integers(seed, draw, low, high, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = synk.random.randint(seed, i, draw, low, high)


@given(numbers, numbers, numbers, numbers)
def test_integers_of_any_range(seed: int, index: int, one: int, other: int) -> None:
    low, high = min(one, other), max(one, other)
    if low < high:
        assert random.randint(seed, index, 0, low, high) == reference.randint(
            seed, index, 0, low, high
        )


@given(numbers, numbers, numbers)
def test_any_seed_row_and_draw(seed: int, index: int, draw: int) -> None:
    assert random.uniform(seed, index, draw) == reference.sample("uniform", seed, index, draw)
    assert random.uniform4(seed, index, draw) == reference.sample("uniform4", seed, index, draw)


def test_normal_numbers_are_right_to_the_last_digits() -> None:
    """Relative to the radius, at angles near the ends of quarter turns and far out, too."""
    turn = 2 * np.longdouble("3.14159265358979323846264338327950288")
    low, high = random.bits4(3, np.arange(50_000), 0)[:2]
    high[:8] = [0, 1, 2**29 - 1, 2**29, 2**30, 2**31, 3 * 2**30 - 1, 2**32 - 1]
    low[:9] = [0, 1, 2**31, 2**32 - 1, 0, 0, 0, 0, 0]
    low, high = low.astype(np.uint64), high.astype(np.uint64)
    u = low.astype(np.float32) / np.float32(2**32) + np.float32(0.5 / 2**32)
    turns = (high >> np.uint64(8)).astype(np.longdouble) / 2**24
    _check_pair(random._normal_pair32(low, high), np.longdouble(u), turn * turns, 4 * 2.0**-24)
    v = np.uint64(2**32 - 1) - low
    u = 1 - ((v << np.uint64(32) | high) >> np.uint64(11)).astype(np.longdouble) / 2**53
    turns = ((high << np.uint64(32) | low) >> np.uint64(11)).astype(np.longdouble) / 2**53
    _check_pair(random._normal_pair(high, v, low, high), u, turn * turns, 4 * 2.0**-53)


def _check_pair(pair: Any, u: Any, angle: Any, limit: float) -> None:
    radius = np.sqrt(-2 * np.log(u))
    assert radius.max() > 6.7
    for numbers, exact in zip(pair, (radius * np.cos(angle), radius * np.sin(angle)), strict=True):
        assert np.all(np.abs(numbers - exact) <= limit * radius)


def test_types_of_the_results() -> None:
    for name in reference.MEANINGS:
        kind = (
            np.uint32
            if name == "bits4"
            else np.float32
            if name.endswith(("32", "4"))
            else np.float64
        )
        results = np.atleast_1d(getattr(random, name)(1, 2, 3))
        compiled = _compiled(name)
        compiled(1, 2, 3)
        (signature,) = compiled.nopython_signatures
        returned = getattr(signature.return_type, "dtype", signature.return_type)
        assert results.dtype == kind
        assert str(returned) == np.dtype(kind).name
    assert random.randint(1, 2, 3, 4, 5).dtype == np.int64


def test_arrays_are_broadcast() -> None:
    grid = random.uniform(np.arange(2)[:, None, None], np.arange(3)[:, None], np.arange(4))
    assert grid.shape == (2, 3, 4)
    assert grid[1, 2, 3] == random.uniform(1, 2, 3)
    assert random.randint(0, np.arange(5), 0, np.arange(5), np.arange(5) + 1).tolist() == [
        0,
        1,
        2,
        3,
        4,
    ]


@pytest.mark.parametrize("name", ["uniform", "uniform32", "normal", "normal32", "exponential"])
@pytest.mark.parametrize("shape", [(1,), (1, 1), (0,), (2,)])
def test_arrays_of_one_element_stay_arrays(name: str, shape: tuple[int, ...]) -> None:
    sample = getattr(random, name)
    numbers = sample(7, np.zeros(shape, int), 3)
    assert numbers.shape == shape
    assert numbers.dtype == np.dtype(sample(7, 0, 3))
    assert (numbers == sample(7, 0, 3)).all()


def test_pairs_of_one_row_are_arrays() -> None:
    for sample in (random.uniform2, random.uniform4, random.normal2, random.normal4, random.bits4):
        assert {numbers.shape for numbers in sample(7, np.arange(1), 3)} == {(1,)}
    assert random.randint(7, np.arange(1), 3, 0, 5).shape == (1,)


def test_integers_of_all_types_count() -> None:
    for kind in "bhilqBHILQ":
        assert random.uniform(np.array(7, kind), np.array([5], kind), np.array(3, kind))[
            0
        ] == random.uniform(7, 5, 3)
    compiled = _compiled("uniform")
    assert compiled(np.uint8(7), np.int32(5), np.uint64(3)) == random.uniform(7, 5, 3)


def test_arguments_go_by_name_too() -> None:
    @njit
    def named(seed, row):
        return random.uniform(draw=4, index=row, seed=seed)

    assert named(1, 2) == random.uniform(draw=4, index=2, seed=1) == random.uniform(1, 2, 4)


# ---- what is refused


@pytest.mark.parametrize(
    "arguments", [(1.0, 2, 3), (1, 2.5, 3), (1, 2, True), (1, np.zeros(3), 3), ("1", 2, 3)]
)
def test_only_integers_make_a_counter(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="must be integers, but one is .*Convert it with int"):
        random.uniform(*arguments)
    with pytest.raises(TypingError, match="must be integers, but one is .*Convert it with int"):
        _compiled("uniform")(*arguments)


@pytest.mark.parametrize("rounds", [5, 17, 0, -7, 7.0, "7", None])
def test_rounds_that_are_refused(rounds: Any) -> None:
    with pytest.raises(ValueError, match=r"rounds must be an integer from 6 to 16, but is"):
        random.uniform(1, 2, 3, rounds)
    with pytest.raises(ValueError, match=r"rounds must be an integer from 6 to 16, but is"):
        random.philox4x32(0, 0, 0, 0, 0, 0, rounds=rounds)

    @njit
    def compiled(seed):
        return random.uniform(seed, 0, 0, rounds)

    with pytest.raises(TypingError, match=r"rounds must be"):
        compiled(1)


def test_rounds_are_constant_in_kernels() -> None:
    @njit
    def compiled(seed, rounds):
        return random.uniform(seed, 0, 0, rounds=rounds)

    with pytest.raises(TypingError, match=r"rounds must be a constant .* Write the number itself"):
        compiled(1, 7)

    @simt.jit
    def kernel(rounds, out):
        out[0] = random.uniform(1, 0, 0, rounds=rounds)

    with pytest.raises(synk.KernelError, match=r"rounds must be a constant"):
        kernel[1, 1](7, np.zeros(1))


@pytest.mark.parametrize(("low", "high"), [(1, 1), (3, -3)])
def test_an_empty_range(low: int, high: int) -> None:
    with pytest.raises(
        ValueError, match=f"high must be larger than low, but low is {low} and high is {high}"
    ):
        random.randint(0, 0, 0, low, high)
    out = np.zeros(3, np.int64)
    # a kernel cannot say it, and does not invent numbers outside of the bounds
    integers[1, 4](0, 0, low, high, out)
    assert_array_equal(out, low)


@pytest.mark.parametrize(("low", "high"), [(0, 2**63), (2**63, 2**63 + 9), (-(2**63) - 1, 0)])
def test_bounds_that_are_no_int64(low: int, high: int) -> None:
    with pytest.raises(ValueError, match=f"must be int64, but low is {low} and high is {high}"):
        random.randint(0, np.arange(3), 0, low, high)


def test_a_kernel_that_draws_is_kept_on_disk() -> None:
    integers[1, 4](1, 1, 1, 7, np.zeros(3, np.int64))
    assert integers.cache_info.not_kept is None
