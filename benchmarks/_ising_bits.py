"""The Ising model of headline.py, with a bit for each spin and 64 spins in a word.

Spins of one colour of the checkerboard lie side by side: bit b of word w of row i of the black ones
is the site j = 2 (64 w + b) + i % 2, of the white ones its neighbour on the other side. So three of
the four neighbours of a site are at the same place of the other colour's rows i − 1, i and i + 1,
and the fourth is a bit away.

A spin that at least two of its neighbours oppose turns. Otherwise it turns with the probability
exp(−4β) if one does, and exp(−8β) if none does: where a random number is below. The numbers of 64
spins are compared at once, from their first bit on: 64 random bits decide half of the spins that
are undecided, so some ten words are drawn where there would be 32. The random numbers are
Philox-4x32-10's, as those of the published code.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

import synknumba as synk

WORD = 64  # spins
BITS = 32  # of a random number at most, as in the published code
ALL, NONE = np.uint64(2**WORD - 1), np.uint64(0)
FIRST, LAST, HALF = np.uint64(1), np.uint64(WORD - 1), np.uint64(WORD // 2)
EVERY_CALL = 16  # calls of the generator at most, which give two words each


def thresholds(beta: float) -> tuple[int, int]:
    """exp(−4β) and exp(−8β), as integers of `BITS` bits."""
    return tuple(min(int(math.exp(-k * beta) * 2**BITS), 2**BITS - 1) for k in (4, 8))


@cuda.jit(device=True)
def decide(turns, undecided, by_one, by_none, bits, at_one, at_none, level):
    """Compares one more bit of the random numbers with those of the thresholds."""
    below = NONE
    if (at_one >> level) & 1:
        below |= by_one
    if (at_none >> level) & 1:
        below |= by_none
    return turns | (undecided & below & ~bits), undecided & ~(bits ^ below)


# rows along x, of which a grid may have more than 65,535
@synk.parallel(block=128, grid=lambda shapes: (shapes["spins"][0], -(-shapes["spins"][1] // 128)))
@cuda.jit
def update(spins, others, own, first, rows, at_one, at_none, seed, sweep, colour):
    """Updates the spins of a colour, one thread per word.

    Args:
        spins: uint64, shape (rows, words), those of the colour; own rows are written.
        others: the same of the other colour, with halos.
        own: `synk.OWN`.
        first: `synk.OFFSET`.
        rows: of the whole lattice, even.
        at_one: exp(−4β), as `thresholds` has it.
        at_none: exp(−8β).
        seed: of the random numbers.
        sweep: number of the sweep.
        colour: 0 for black, 1 for white.
    """
    w = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    i, words = cuda.blockIdx.x, spins.shape[1]
    if own.start <= i < own.stop and w < words:
        row = (first + i) % rows
        here = others[i, w]
        if (row + colour) % 2 == 0:
            beside = (here << FIRST) | (others[i, w - 1 if w > 0 else words - 1] >> LAST)
        else:
            beside = (here >> FIRST) | (others[i, w + 1 if w + 1 < words else 0] << LAST)
        spin = spins[i, w]
        a, b = spin ^ others[i - 1, w], spin ^ others[i + 1, w]
        c, d = spin ^ here, spin ^ beside
        either, other = a | b, c | d
        turns = (a & b) | (c & d) | (either & other)  # two neighbours or more oppose it
        by_one, by_none = (either | other) & ~turns, ~(either | other)
        undecided, level = ~turns, BITS
        draw = ((2 * sweep + colour) * words + w) * EVERY_CALL
        while undecided != NONE and level > 0:
            r0, r1, r2, r3 = synk.random.bits4(seed, row, draw)
            bits = (np.uint64(r0) << HALF) | np.uint64(r1)
            turns, undecided = decide(
                turns, undecided, by_one, by_none, bits, at_one, at_none, level - 1
            )
            bits = (np.uint64(r2) << HALF) | np.uint64(r3)
            turns, undecided = decide(
                turns, undecided, by_one, by_none, bits, at_one, at_none, level - 2
            )
            level -= 2
            draw += 1
        spins[i, w] = spin ^ turns


@synk.sequence
def sweeps(black, white, rows, at_one, at_none, seed):
    """Sweeps over the lattice once."""
    update(black, white, synk.OWN, synk.OFFSET, rows, at_one, at_none, seed, synk.STEP, 0)
    synk.exchange(black)
    update(white, black, synk.OWN, synk.OFFSET, rows, at_one, at_none, seed, synk.STEP, 1)
    synk.exchange(white)


def start(spins: np.ndarray) -> list[synk.Variable]:
    """Black and white spins; `spins`: uint64, shape (2, rows, words)."""
    return [synk.scatter(synk.variable(colour), halo=1, periodic=True) for colour in spins]


def unpacked(black: synk.Variable, white: synk.Variable) -> np.ndarray:
    """The lattice, of numbers 0 and 1; int8, shape (rows, columns)."""
    packed = [synk.gather(spins, nd_up=0).view(np.uint8) for spins in (black, white)]
    colours = [np.unpackbits(part, axis=1, bitorder="little") for part in packed]
    rows = len(colours[0])
    lattice = np.empty((rows, 2 * colours[0].shape[1]), np.int8)
    for row in range(rows):
        for colour, spins in enumerate(colours):
            lattice[row, (row + colour) % 2 :: 2] = spins[row]
    return lattice


def sweep_by_numpy(lattice: np.ndarray, at_one: int, at_none: int, seed: int, sweep: int) -> None:
    """Sweeps over a lattice of 0 and 1, with whole random numbers in place of their bits."""
    rows, columns = lattice.shape
    words = columns // (2 * WORD)
    numbers = _random_numbers(rows, words, seed)
    i, j = np.indices(lattice.shape)
    for colour in (0, 1):
        near = sum(np.roll(lattice, shift, axis) for axis in (0, 1) for shift in (-1, 1))
        opposed = np.where(lattice == 1, 4 - near, near)
        threshold = np.select([opposed >= 2, opposed == 1], [2**BITS, at_one], at_none)
        drawn = np.empty(lattice.shape, np.int64)
        packed = numbers(2 * sweep + colour)
        for row in range(rows):
            drawn[row, (row + colour) % 2 :: 2] = packed[row]
        turns = (drawn < threshold) & ((i + j) % 2 == colour)
        lattice[turns] ^= 1


def _random_numbers(rows: int, words: int, seed: int) -> Callable[[int], np.ndarray]:
    """The numbers of `BITS` bits that the sites of a colour compare; int64, shape (rows, sites)."""
    row, word = np.indices((rows, words))

    def numbers(half_sweep: int) -> np.ndarray:
        drawn: Any = np.zeros((rows, words * WORD), np.int64)
        for call in range(BITS // 2):
            draw = (half_sweep * words + word) * EVERY_CALL + call
            r = [part.astype(np.uint64) for part in synk.random.bits4(seed, row, draw)]
            for high, low in ((r[0], r[1]), (r[2], r[3])):
                bits = ((high << HALF) | low).view(np.uint8)
                drawn = 2 * drawn + np.unpackbits(bits, axis=1, bitorder="little")
        return drawn

    return numbers


def check() -> None:
    """Compares sweeps over a small lattice with NumPy's, spin by spin."""
    rows, words = 12, 2
    at_one, at_none = thresholds(0.4)
    black, white = start(np.full((2, rows, words), ALL))
    sweeps(black, white, rows, at_one, at_none, 7, times=3)
    lattice = np.ones((rows, 2 * words * WORD), np.int8)
    for sweep in range(3):
        sweep_by_numpy(lattice, at_one, at_none, 7, sweep)
    assert 0.02 < 1 - lattice.mean() < 0.5
    np.testing.assert_array_equal(unpacked(black, white), lattice)


def onsager_energy(beta: float) -> float:
    """Energy per site of an infinite lattice, where neighbours have −1 if they agree.

    L. Onsager, Phys. Rev. 65, 117 (1944); the elliptic integral by the arithmetic-geometric mean.
    """
    modulus = 2 * math.tanh(2 * beta) ** 2 - 1  # complementary
    a, b = 1.0, abs(modulus)
    for _ in range(10):
        a, b = (a + b) / 2, math.sqrt(a * b)
    return -(1 + modulus / a) / math.tanh(2 * beta)


def check_energy() -> None:
    """Compares the energy at a temperature of 2 with Onsager's, within five standard errors."""
    rows, words, beta, count = 256, 4, 0.5, 40
    spins = start(np.full((2, rows, words), ALL))
    energies = []
    for seed in range(count + 10):  # ten that do not count
        sweeps(*spins, rows, *thresholds(beta), seed, times=8)
        up = 2 * unpacked(*spins) - 1
        energies.append(-(up * (np.roll(up, 1, 0) + np.roll(up, 1, 1))).mean())
    mean, deviation = np.mean(energies[10:]), np.std(energies[10:], ddof=1)
    error = deviation / math.sqrt(count)
    exact = onsager_energy(beta)
    assert error < 0.002, f"the energies differ by {deviation}"
    assert abs(mean - exact) < 5 * error, f"an energy of {mean} ± {error}, where {exact} is right"
