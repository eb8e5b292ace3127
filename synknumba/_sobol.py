"""Sobol points, behind `synknumba.random.sobol`.

    row → Gray code → exclusive or of the direction numbers of its bits → scramble → float64

The direction numbers are those of S. Joe and F. Kuo, *Constructing Sobol sequences with better
two-dimensional projections*, SIAM J. Sci. Comput. 30, 2635 (2008). `sobol_directions.npz` has the
primitive polynomial and the initial numbers of the first 1,024 dimensions of their table
new-joe-kuo-6.21201; `sobol_directions.txt` is its licence.

Owen's scramble flips each bit of a coordinate by a random bit that depends on the bits above it
(A. Owen, *Randomly permuted (t,m,s)-nets and (t,s)-sequences*, 1995). In reversed order these are
the bits below, on which alone a bit of a sum or product of words depends: S. Laine and T. Karras,
*Stratified sampling for stochastic transparency* (2011); B. Burley, *Practical hash-based Owen
scrambling*, JCGT 9(4), 1 (2020). The multipliers are those of N. Vegdahl, *Building a better LK
hash* (psychopath.io, 2021), found by a search for random bits. His key of 32 bits is two keys
here, of seed and dimension by the finaliser of SplitMix64 (G. Steele, D. Lea and C. Flood, OOPSLA
2014).
"""

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.errors import NumbaTypeError
from numba.extending import intrinsic, overload

P = ParamSpec("P")
R = TypeVar("R")

DIMENSIONS: Final = 1024
BITS: Final = 32  # of a row and of a coordinate

# An address space of global memory on GPUs, and of all memory on cores. The table is larger than
# the 64 KiB of constant memory, where Numba puts arrays.
_GLOBAL_MEMORY: Final = 1

# Numba promotes int64 with uint64 to float64, so every constant combined with a word is a uint64.
_ONE, _TWO, _FOUR, _EIGHT, _SIXTEEN, _HALF = (np.uint64(1 << power) for power in range(6))
_LOW: Final = np.uint64(0xFFFFFFFF)
_BYTES: Final = np.uint64(0x00FF00FF)
_NIBBLES: Final = np.uint64(0x0F0F0F0F)
_PAIRS: Final = np.uint64(0x33333333)
_SINGLES: Final = np.uint64(0x55555555)

_SCRAMBLE_0, _SCRAMBLE_1, _SCRAMBLE_2 = map(np.uint64, (0x3D20ADEA, 0x05526C56, 0x53A22864))
_MIX_0, _MIX_1 = map(np.uint64, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_SHIFT_0, _SHIFT_1, _SHIFT_2 = map(np.uint64, (30, 27, 31))
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)  # the increment of SplitMix64

_DIMENSIONS: Final = np.uint64(DIMENSIONS)
_STEP: Final = 2.0**-BITS
_HALF_STEP: Final = 0.5 * _STEP

_NO_INTEGER: Final = (
    "seed, row and dimension must be integers, but one is {}. Convert it with int()"
)

_INLINED: Final = {"forceinline": True}  # so that LLVM vectorises loops over rows


@functools.cache
def direction_numbers() -> Any:
    """Returns the direction numbers in reversed order of bits, uint32, shape (1024, 32).

    P. Bratley and B. Fox, *Algorithm 659*, ACM Trans. Math. Softw. 14, 88 (1988): with the bits a
    of a polynomial of degree s, m_k = 2 a_1 m_(k-1) ^ … ^ 2^s a_s m_(k-s) ^ m_(k-s), and the
    direction number is m_k, of k bits, at the top of a word.
    """
    with np.load(Path(__file__).with_name("sobol_directions.npz")) as table:
        polynomials = table["polynomials"].astype(np.uint64)
        initial = table["initial"].astype(np.uint64)
    degrees = np.frexp(polynomials.astype(float))[1] - 1
    each = np.arange(DIMENSIONS)
    numbers = np.ones((DIMENSIONS, BITS), np.uint64)
    numbers[:, : initial.shape[1]] = initial
    for k in range(1, BITS):
        by_recurrence = numbers[each, np.maximum(k - degrees, 0)].copy()
        for lag in range(1, min(k, degrees.max()) + 1):
            bits = (polynomials >> np.maximum(degrees - lag, 0).astype(np.uint64)) & _ONE
            bits *= (lag <= degrees).astype(np.uint64)
            by_recurrence ^= bits * numbers[:, k - lag] << np.uint64(lag)
        is_late = (k >= degrees) & (degrees > 0)
        numbers[is_late, k] = by_recurrence[is_late]
    numbers[0] = _ONE
    return _reversed(numbers << np.arange(BITS, dtype=np.uint64)[::-1]).astype(np.uint32)


def _in_both(function: Callable[P, R]) -> Callable[P, R]:
    """Lets compiled code call a function that is valid in NumPy and in Numba."""
    overload(function, jit_options=_INLINED, strict=False)(lambda *args: function)
    return function


@_in_both
def _reversed(word: Any) -> Any:
    """Reverses the order of 32 bits, in a word of 64."""
    word = (word >> _SIXTEEN) | (word << _SIXTEEN) & _LOW
    word = (word >> _EIGHT) & _BYTES | (word & _BYTES) << _EIGHT
    word = (word >> _FOUR) & _NIBBLES | (word & _NIBBLES) << _FOUR
    word = (word >> _TWO) & _PAIRS | (word & _PAIRS) << _TWO
    return (word >> _ONE) & _SINGLES | (word & _SINGLES) << _ONE


@_in_both
def _mixed(word: Any) -> Any:
    """Returns the finaliser of SplitMix64."""
    word = (word ^ (word >> _SHIFT_0)) * _MIX_0
    word = (word ^ (word >> _SHIFT_1)) * _MIX_1
    return word ^ (word >> _SHIFT_2)


@_in_both
def _permuted(x: Any, seed: Any, dimension: Any) -> Any:
    """Returns a word scrambled by seed and dimension, both in reversed order."""
    key = _mixed(_mixed(seed) + _GOLDEN * (dimension + _ONE))
    addend, factor = np.uint32(key), np.uint32(key >> _HALF | _ONE)
    # as 32-bit words again after each product, which GPUs and vectors multiply faster
    x = np.uint32(x ^ x * _SCRAMBLE_0)
    x = np.uint32(np.uint32(x + addend) * factor)
    x = np.uint32(x ^ x * _SCRAMBLE_1)
    return np.uint32(x ^ x * _SCRAMBLE_2)


@_in_both
def _fraction(x: Any) -> Any:
    """Returns a float64 in [0, 1) from a word in reversed order."""
    return np.uint32(_reversed(np.uint64(x))) * _STEP


@_in_both
def _unscrambled(x: Any, seed: Any, dimension: Any) -> Any:
    return _fraction(x)


@_in_both
def _scrambled(x: Any, seed: Any, dimension: Any) -> Any:
    """Returns the middle of a cell of 2^-32, which is never 0, so that logarithms are finite."""
    return _fraction(_permuted(x, _word(seed), dimension)) + _HALF_STEP


# ---- in Python


def sobol(seed: Any, row: Any, dimension: Any) -> Any:
    """Returns a coordinate of a Sobol point: a float64 in [0, 1).

    The points of a seed are those of the Sobol sequence with the bits of each coordinate permuted
    at random, by Owen's scramble: each is uniformly distributed, and 2^m of them, from a multiple
    of 2^m on, are as evenly distributed as those of the sequence. Other seeds give independent
    permutations. The average over 2^m rows is an unbiased estimate of an integral; its error
    follows from repetitions with other seeds (`Expectation.replicated`).

    Args:
        seed: the permutation; None for the sequence itself, in the order of
            `scipy.stats.qmc.Sobol`, whose first point is 0.
        row: the global row, from 0 to 2^32 - 1.
        dimension: the coordinate, from 0 to 1023. A kernel is fastest where it is a constant.

    Returns:
        A multiple of 2^-32; with a seed, plus 2^-33. In a kernel NaN for a row or a dimension that
        is out of range.

    Raises:
        ValueError: a row or a dimension is out of range, in Python.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> synk.random.sobol(None, np.arange(4), 1)
        array([0.  , 0.5 , 0.25, 0.75])
        >>> synk.random.sobol(7, np.arange(4), 1).round(3)
        array([0.549, 0.001, 0.871, 0.373])
    """
    index, place = _word(row), _word(dimension)
    _check_range("row", row, 1 << BITS)
    _check_range("dimension", dimension, DIMENSIONS)
    numbers, bits = direction_numbers()[place], index ^ (index >> _ONE)
    x = np.uint32(0)
    for k in range(BITS):
        x = x ^ numbers[..., k] * np.uint32(bits >> np.uint64(k) & _ONE)
    if seed is None:
        return _fraction(x)
    with np.errstate(over="ignore"):  # words wrap around
        return _scrambled(x, seed, place)


sobol.__module__ = "synknumba.random"  # where scripts find it, as do pickles and compilers


def _check_range(name: str, value: Any, limit: int) -> None:
    numbers = np.asarray(value)
    if np.any((numbers < 0) | (numbers >= limit)):
        raise ValueError(f"{name} must be from 0 to {limit - 1}, got {value!r}")


def _word(value: Any) -> Any:
    """Returns an integer or integer array modulo 2^64, as uint64."""
    if isinstance(value, int) and not isinstance(value, bool):
        return np.uint64(value & 0xFFFFFFFFFFFFFFFF)
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        raise TypeError(_NO_INTEGER.format(array.dtype.name))
    return array.astype(np.uint64)[()]


# ---- in compiled code


@overload(_word, jit_options=_INLINED, strict=False)
def _compiled_word(value: Any) -> Any:
    if not isinstance(value, types.Integer):
        raise NumbaTypeError(_NO_INTEGER.format(value))
    return lambda value: np.uint64(value)  # noqa: PLW0108  # an overload must return a Python function


@overload(sobol, jit_options=_INLINED, strict=False, prefer_literal=True)
def _compiled_sobol(seed: Any, row: Any, dimension: Any) -> Any:
    if isinstance(dimension, types.IntegerLiteral):
        # after an error of its own, Numba would try the dimension as a variable
        _check_range("dimension", dimension.literal_value, DIMENSIONS)
    finish = _scrambled
    if isinstance(seed, types.NoneType):
        finish = _unscrambled

    def point(seed: Any, row: Any, dimension: Any) -> Any:
        index, place = _word(row), _word(dimension)
        x = _combined(np.uint32(index ^ (index >> _ONE)), dimension)
        coordinate = finish(x, seed, place)
        if index > _LOW or place >= _DIMENSIONS:
            return math.nan
        return coordinate

    return point


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _combined(typing_context: Any, bits: Any, dimension: Any) -> Any:
    """Returns the exclusive or of the direction numbers whose bits are set: of constants where the
    dimension is one, else of a row of the table.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word, coordinate = args[0].type, args[0].type(0)
        if isinstance(dimension, types.IntegerLiteral):
            row = direction_numbers()[dimension.literal_value].tolist()
            numbers = [word(number) for number in row]
        else:
            place = context.cast(builder, args[1], dimension, types.uint64)
            numbers = _loaded(builder, place)
        for k, number in enumerate(numbers):
            bit = builder.and_(args[0], word(1 << k))
            is_set = builder.icmp_unsigned("!=", bit, word(0))
            coordinate = builder.xor(coordinate, builder.select(is_set, number, word(0)))
        return coordinate

    return types.uint32(types.uint32, dimension), generate


def _loaded(builder: Any, place: Any) -> list[Any]:
    """Returns the direction numbers of a dimension, or of the first where there is no such one."""
    is_inside = builder.icmp_unsigned("<", place, place.type(DIMENSIONS))
    place = builder.select(is_inside, place, place.type(0))
    zero, table = place.type(0), _table(builder.module)
    numbers = []
    for k in range(BITS):
        address = builder.gep(table, [zero, place, zero.type(k)])
        numbers.append(builder.load(address))
    return numbers


def _table(module: Any) -> Any:
    """Returns the global variable of a module that holds the direction numbers."""
    name = "synknumba_sobol"
    if name not in module.globals:
        kind = ir.ArrayType(ir.ArrayType(ir.IntType(32), BITS), DIMENSIONS)
        table = ir.GlobalVariable(module, kind, name, _GLOBAL_MEMORY)
        table.initializer = ir.Constant(kind, direction_numbers().tolist())
        table.global_constant, table.linkage = True, "internal"
    return module.globals[name]
