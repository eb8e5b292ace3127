"""The states of xoroshiro128p, against the published algorithms in Python's integers."""

import numpy as np
import pytest
from numba import cuda
from numba.cuda.random import xoroshiro128p_uniform_float32, xoroshiro128p_uniform_float64

from synknumba import simt
from synknumba._errors import ArgumentError

MASK = (1 << 64) - 1


def rotated(x, k):
    return ((x << k) | (x >> (64 - k))) & MASK


class Xoroshiro:
    """xoroshiro128+ of Blackman and Vigna, 2016, with the constants 55, 14, 36."""

    def __init__(self, s0, s1):
        self.s0, self.s1 = s0, s1

    def next(self):
        result, mixed = (self.s0 + self.s1) & MASK, self.s0 ^ self.s1
        self.s0 = rotated(self.s0, 55) ^ mixed ^ ((mixed << 14) & MASK)
        self.s1 = rotated(mixed, 36)
        return result

    def jump(self):
        """Skips 2**64 numbers."""
        t0 = t1 = 0
        for word in (0xBEAC0467EBA5FACB, 0xD86B048B86AA9922):
            for bit in range(64):
                if word >> bit & 1:
                    t0, t1 = t0 ^ self.s0, t1 ^ self.s1
                self.next()
        self.s0, self.s1 = t0, t1


def published(n, seed, start=0):
    """The states of n generators, 2**64 numbers apart; the first is SplitMix64's of the seed,
    twice, as numba-cuda's is.
    """
    z = ((seed & MASK) + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    generator = Xoroshiro(z ^ (z >> 31), z ^ (z >> 31))
    for _ in range(start):
        generator.jump()
    states = []
    for _ in range(n):
        states.append((generator.s0, generator.s1))
        generator.jump()
    return states


@pytest.mark.parametrize(
    ("n", "seed", "start"), [(5, 1, 0), (3, 42, 2), (2, -7, 1), (1, 2**64 - 1, 0), (0, 3, 0)]
)
def test_states(n, seed, start):
    states = simt.random_states(n, seed, start)
    assert [tuple(state.tolist()) for state in states] == published(n, seed, start)


def test_kernels_draw_from_them():
    @simt.jit
    def draw(states, single, double):
        i = cuda.grid(1)
        if i < single.shape[0]:
            for k in range(single.shape[1]):
                single[i, k] = xoroshiro128p_uniform_float32(states, i)
                double[i, k] = xoroshiro128p_uniform_float64(states, i)

    single, double = np.zeros((5, 3), np.float32), np.zeros((5, 3))
    draw[1, 8](simt.random_states(5, seed=9), single, double)
    for i, state in enumerate(published(5, 9)):
        numbers = Xoroshiro(*state)
        for k in range(3):
            assert single[i, k] == np.float32((numbers.next() >> 11) * 2.0**-53)
            assert double[i, k] == (numbers.next() >> 11) * 2.0**-53


@pytest.mark.parametrize(("n", "seed"), [(-1, 0), (2.5, 0), (4, 0.5), (4, 1 << 64)])
def test_arguments(n, seed):
    with pytest.raises(ArgumentError, match="of simt.random_states must be a"):
        simt.random_states(n, seed)
