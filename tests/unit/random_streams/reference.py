"""Philox and Threefry in Python's own integers, after the paper (Salmon et al., SC11), and what
`synk.random` makes of them.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

WORD32, WORD64 = 2**32, 2**64

# From the file `kat_vectors` of the Random123 distribution: counter and key, then the block. The
# third line of each is made of the digits of π. Those of Philox are by the number of rounds.
PHILOX_KNOWN = {
    7: (
        "00000000 00000000 00000000 00000000 00000000 00000000 5f6fb709 0d893f64 4f121f81 4f730a48",
        "ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 5207ddc2 45165e59 4d8ee751 8c52f662",
        "243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0 4dfccaba 190a87f0 c47362ba b6b5242a",
    ),
    10: (
        "00000000 00000000 00000000 00000000 00000000 00000000 6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        "ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 408f276d 41c83b0e a20bc7c6 6d5451fd",
        "243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0 d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
}
THREEFRY_KNOWN = (
    "0000000000000000 0000000000000000 0000000000000000 0000000000000000 "
    "c2b6e3a8c2c69865 6f81ed42f350084d",
    "ffffffffffffffff ffffffffffffffff ffffffffffffffff ffffffffffffffff "
    "e02cb7c4d95d277a d06633d0893b8b68",
    "243f6a8885a308d3 13198a2e03707344 a4093822299f31d0 082efa98ec4e6c89 "
    "263c7d30bb0f0af1 56be8361d3311526",
)

PURPOSES = (
    "bits4",
    "uniform",
    "uniform32",
    "uniform2",
    "uniform4",
    "normal",
    "normal32",
    "normal2",
    "normal4",
    "exponential",
    "randint",
)


def words(line: str) -> list[int]:
    return [int(word, 16) for word in line.split()]


def philox(counter: list[int], key: list[int], rounds: int = 10) -> list[int]:
    left, right = key
    for turn in range(rounds):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        keys = (left + turn * 0x9E3779B9) % WORD32, (right + turn * 0xBB67AE85) % WORD32
        counter = [
            second // WORD32 ^ counter[1] ^ keys[0],
            second % WORD32,
            first // WORD32 ^ counter[3] ^ keys[1],
            first % WORD32,
        ]
    return counter


def threefry(counter: list[int], key: list[int]) -> list[int]:
    keys = [*key, 0x1BD11BDAA9FC1A22 ^ key[0] ^ key[1]]
    rotations = (16, 42, 12, 31, 16, 32, 24, 21)
    x, y = (counter[0] + keys[0]) % WORD64, (counter[1] + keys[1]) % WORD64
    for turn in range(20):
        x = (x + y) % WORD64
        by = rotations[turn % 8]
        y = (y << by | y >> (64 - by)) % WORD64 ^ x
        if turn % 4 == 3:
            injection = turn // 4 + 1
            x = (x + keys[injection % 3]) % WORD64
            y = (y + keys[(injection + 1) % 3] + injection) % WORD64
    return [x, y]


def block(name: str, seed: int, index: int, draw: int, rounds: int = 10) -> list[int]:
    """The words of a call: seed and index modulo 2^64, draw modulo 2^56, and the function's
    number above that.
    """
    seed, index, draw = seed % WORD64, index % WORD64, draw % 2**56 + PURPOSES.index(name) * 2**56
    counter = [index % WORD32, index // WORD32, draw % WORD32, draw // WORD32]
    return philox(counter, [seed % WORD32, seed // WORD32], rounds)


def fraction(low: int, high: int) -> float:
    return (high * WORD32 + low >> 11) / 2**53


def _normals(w: list[int]) -> tuple[float, float]:
    radius, angle = (
        math.sqrt(-2 * math.log(1 - fraction(w[0], w[1]))),
        2 * math.pi * fraction(w[2], w[3]),
    )
    return radius * math.cos(angle), radius * math.sin(angle)


def _normals32(first: int, second: int) -> tuple[float, float]:
    # near 1 its rounding shows in the radius
    u = float(np.float32(np.float32(first) / WORD32) + np.float32(0.5 / WORD32))
    radius, angle = math.sqrt(-2 * math.log(u)), 2 * math.pi * ((second >> 8) / 2**24)
    return radius * math.cos(angle), radius * math.sin(angle)


# What a function returns, from the words of its block.
MEANINGS: dict[str, Callable[[list[int]], Any]] = {
    "bits4": tuple,
    "uniform": lambda w: fraction(w[0], w[1]),
    "uniform32": lambda w: (w[0] >> 8) / 2**24,
    "uniform2": lambda w: (fraction(w[0], w[1]), fraction(w[2], w[3])),
    "uniform4": lambda w: tuple((word >> 8) / 2**24 for word in w),
    "normal": lambda w: _normals(w)[0],
    "normal32": lambda w: _normals32(w[0], w[1])[0],
    "normal2": _normals,
    "normal4": lambda w: (*_normals32(w[0], w[1]), *_normals32(w[2], w[3])),
    "exponential": lambda w: -math.log(1 - fraction(w[0], w[1])),
}
EXACT = ("bits4", "uniform", "uniform32", "uniform2", "uniform4")


def sample(name: str, seed: int, index: int, draw: int, rounds: int = 10) -> Any:
    """What the function of this name returns."""
    return MEANINGS[name](block(name, seed, index, draw, rounds))


def randint(seed: int, index: int, draw: int, low: int, high: int, rounds: int = 10) -> int:
    w = block("randint", seed, index, draw, rounds)
    return low + ((high - low) * sum(word * WORD32**place for place, word in enumerate(w)) >> 128)


def tolerance(name: str) -> dict[str, float]:
    """How closely a function agrees: some units in the last place of a logarithm and a cosine,
    which may be near zero.
    """
    if name in EXACT:
        return {"rtol": 0.0, "atol": 0.0}
    return (
        {"rtol": 5e-6, "atol": 5e-6}
        if name.endswith(("32", "4"))
        else {"rtol": 1e-13, "atol": 1e-14}
    )
