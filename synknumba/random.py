"""Counter-based random numbers, pure functions of (seed, index, draw): equal for any number of
ranks, on CPUs and GPUs.

    @synk.parallel(outputs={"inside": synk.output("sum", shape=(), dtype="int64")})
    @cuda.jit
    def count(rows, seed, inside):
        n = 0
        for i in range(rows.start + cuda.grid(1), rows.stop, cuda.gridsize(1)):
            x = synk.random.uniform(seed, i, 0)
            y = synk.random.uniform(seed, i, 1)
            if x * x + y * y < 1.0:
                n += 1
        cuda.atomic.add(inside, 0, n)

The generators are stateless. Each call encrypts a counter made of its arguments, with the seed as
the key, using Philox-4x32 of J. Salmon, M. Moraes, R. Dror and D. Shaw, "Parallel random
numbers: as easy as 1, 2, 3" (SC11), with ten rounds, or `rounds=7`, which the paper found to pass
BigCrush too:

    key        seed, low half | seed, high half
    counter    index, low | index, high | draw, low | draw, bits 32 to 55, below the purpose's 8 bits

`index` is the global row (not the row within a shard or slice), `draw` counts the numbers that a
row uses. Each function has its own purpose number, so two calls return unrelated numbers if they
differ in function, seed, index or draw. Seed and index are taken modulo 2^64, draw modulo 2^56.
Purpose numbers never change: the stream of a seed depends on them, and on the number of rounds.

The functions work in kernels for both devices, in njit functions, and in plain Python, where they
also accept NumPy arrays and broadcast them. Integers and uniform numbers are bitwise identical
everywhere. Numbers computed with a logarithm or cosine may differ in the last digits, as these
functions do between processors.
"""  # noqa: E501

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.errors import NumbaTypeError
from numba.core.target_extension import current_target
from numba.extending import intrinsic, overload

from synknumba._sobol import sobol as sobol

__all__ = [
    "bits4",
    "exponential",
    "normal",
    "normal2",
    "normal4",
    "normal32",
    "philox4x32",
    "randint",
    "sobol",
    "threefry2x64",
    "uniform",
    "uniform2",
    "uniform4",
    "uniform32",
]

P = ParamSpec("P")
R = TypeVar("R")

Integers = Any  # an int, a NumPy integer, or an array of integers

# Numba promotes int64 with uint64 to float64, so every constant combined with a word is a uint64.
_HALF: Final = np.uint64(32)
_LOW: Final = np.uint64(0xFFFFFFFF)
_DRAW_HIGH: Final = np.uint64(0xFFFFFF)

# Multipliers and key increments, from the paper's table 2 and its reference implementation.
_MULTIPLY_0: Final = np.uint64(0xD2511F53)
_MULTIPLY_2: Final = np.uint64(0xCD9E8D57)
_STEP_0: Final = np.uint64(0x9E3779B9)  # the golden ratio
_STEP_1: Final = np.uint64(0xBB67AE85)  # sqrt(3) - 1
_MIN_ROUNDS, _MAX_ROUNDS = 6, 16  # fewer fail tests of randomness; more gain nothing

_DEFAULT_ROUNDS: Final = 10

# key-schedule parity of Threefish, which prevents an all-zero key
_PARITY: Final = np.uint64(0x1BD11BDAA9FC1A22)
_ONE, _TWO, _THREE, _FOUR, _FIVE = (np.uint64(n) for n in range(1, 6))
_WORD: Final = np.uint64(64)

_FRACTION: Final = np.uint64(11)  # 64 bits minus the 53 of a float64 significand
_FRACTION32: Final = np.uint64(8)  # 32 bits minus the 24 of a float32 significand
_ANGLE: Final = np.uint64(2**32 - 2**11)  # of the low word: the 53 highest of 64 bits
_ANGLE32: Final = np.uint64(2**32 - 2**8)  # the 24 highest of 32 bits
_ULP: Final = 2.0**-53
_ULP32: Final = np.float32(2.0**-24)
_STEP32: Final = np.float32(2.0**-32)
_HALF_STEP32: Final = np.float32(2.0**-33)
_STEP64: Final = 2.0**-64
_EIGHTH, _EIGHTH32 = np.uint64(2**61), np.uint64(2**29)  # of a turn, in bits of an angle
_QUARTER, _QUARTER32 = np.uint64(62), np.uint64(30)  # shifts to the number of the quarter turn
_MINUS_TWO32: Final = np.float32(-2.0)

# Coefficients of the float32 sine and cosine, by the power of the angle in quarter turns.
_SINE32_1, _SINE32_3, _SINE32_5, _SINE32_7 = (
    np.float32(number)
    for number in (
        1.5707963217083447,
        -0.645963460233428,
        0.07968003277042188,
        -0.00460165789118086,
    )
)
_COSINE32_0, _COSINE32_2, _COSINE32_4, _COSINE32_6, _COSINE32_8 = (
    np.float32(number)
    for number in (
        1.0,
        -1.2337005395647531,
        0.2536691825959931,
        -0.020859936027821775,
        0.0009033629762163813,
    )
)

# Purpose numbers, the counter's 8 high bits. `bits4` has 0: it is plain Philox with a 64-bit draw
# below 2^56.
(
    _BITS4,
    _UNIFORM,
    _UNIFORM32,
    _UNIFORM2,
    _UNIFORM4,
    _NORMAL,
    _NORMAL32,
    _NORMAL2,
    _NORMAL4,
    _EXPONENTIAL,
    _RANDINT,
) = (np.uint64(purpose << 24) for purpose in range(11))


def _for_kernels(body: Callable[P, R]) -> Callable[P, R]:
    """Makes a function of integers callable from compiled code for any device and from Python.

    numba.njit, numba.cuda and numba-cuda all look up overloads for Numba's target "generic", and
    registering one imports nothing of CUDA. The body must be valid in both Numba and NumPy. A
    parameter `rounds` must be a constant where it is compiled, so that the loop is unrolled.
    Numba's own numba.cuda knows no defaults of overloads, so it gets a function without `rounds`.
    """

    @functools.wraps(body)
    def function(*args: P.args, **kwargs: P.kwargs) -> R:
        with np.errstate(over="ignore"):  # 64-bit words wrap around
            return body(*args, **kwargs)

    signature = inspect.signature(body)
    names = [name for name in signature.parameters if name != "rounds"]
    scope = {"function": function, "rounds": _DEFAULT_ROUNDS}
    text = ", ".join(names)
    exec(f"def with_default({text}):\n    return function({text}, rounds)", scope)  # noqa: S102

    def implementation(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        if "rounds" in arguments:
            for name in names:  # first: Numba tries again without constants, and shows that error
                _check_integer(arguments.get(name, types.int64))
            _check_constant(arguments["rounds"])
        elif "rounds" in signature.parameters and current_target() == "cuda":
            return scope["with_default"]
        return body

    # Inlining lets LLVM vectorise a loop over rows; by default it considers ten rounds too long to
    # inline.
    overload(function, jit_options={"forceinline": True}, strict=False)(implementation)
    return function


def _check_integer(kind: Any) -> None:
    """Checks an argument of a call that is compiled, by its type."""
    if not isinstance(kind, types.Integer):
        raise NumbaTypeError(
            f"seed, index, draw and bounds must be integers, but one is "
            f"{kind}. Convert it with int()"
        )


def _check_constant(kind: Any) -> None:
    """Checks the number of rounds of a call that is compiled, by its type."""
    if not isinstance(kind, types.IntegerLiteral):
        raise NumbaTypeError(
            f"rounds must be a constant in a kernel, but is a variable, of type {kind}. Write the "
            "number itself, as in uniform(seed, i, 0, rounds=7), or the name of a global variable"
        )
    try:
        _check_rounds(kind.literal_value)
    except ValueError as error:
        raise NumbaTypeError(str(error)) from None


def _check_rounds(rounds: Any) -> None:
    if not isinstance(rounds, int | np.integer) or not _MIN_ROUNDS <= rounds <= _MAX_ROUNDS:
        raise ValueError(
            f"rounds must be an integer from {_MIN_ROUNDS} to {_MAX_ROUNDS}, but is {rounds!r}. "
            "Pass 7, which is the least that passes all tests, or leave it out for 10"
        )


def _word64(value: Integers) -> Any:
    """Returns an integer or integer array modulo 2^64, as uint64."""
    if isinstance(value, int) and not isinstance(value, bool):
        return np.uint64(value & 0xFFFFFFFFFFFFFFFF)
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"seed, index, draw and bounds must be integers, but one is "
            f"{array.dtype.name}. Convert it with int()"
        )
    return array.astype(np.uint64)[()]


@overload(_word64, strict=False)
def _compiled_word64(value: Any) -> Any:
    _check_integer(value)
    return lambda value: np.uint64(value)  # noqa: PLW0108  # an overload must return a Python function


def _elementwise(
    of_arrays: Callable[[Any], Any], of_numbers: Callable[[float], float]
) -> Callable[[Any], Any]:
    """Returns a function that is NumPy's in Python and `math`'s in kernels, which support only
    part of NumPy.
    """

    def function(x: Any) -> Any:
        return of_arrays(x)

    overload(function, jit_options={"forceinline": True}, strict=False)(
        lambda x: lambda x: of_numbers(x)  # noqa: PLW0108
    )
    return function


_sqrt = _elementwise(np.sqrt, math.sqrt)
_log = _elementwise(np.log, math.log)


def _where(condition: Any, yes: Any, no: Any) -> Any:
    """Returns the number for a condition of 1 or 0."""
    return np.where(condition, yes, no)[()]


overload(_where, jit_options={"forceinline": True}, strict=False)(
    lambda condition, yes, no: lambda condition, yes, no: yes if condition else no
)


def _product(factor: Any, word: Any) -> Any:
    """Returns the product of two 32-bit words, as uint64."""
    return factor * word


@intrinsic  # type: ignore[untyped-decorator]
def _wide_product(typing: Any, factor: Any, word: Any) -> Any:  # Numba's interface
    """Multiplies 32-bit words on a GPU in one instruction.

    Its compilers do not see that the upper halves are zero, or add the products with them, which
    takes a third instruction for each product.
    """

    def generate(context: Any, builder: Any, signature: Any, factors: Any) -> Any:
        if not builder.module.triple.startswith("nvptx"):
            return builder.mul(*factors)
        half, whole = ir.IntType(32), ir.IntType(64)
        code = "mul.wide.u32 $0, $1, $2;"
        multiply = ir.InlineAsm(ir.FunctionType(whole, [half, half]), code, "=l,r,r")
        return builder.call(multiply, [builder.trunc(number, half) for number in factors])

    return types.uint64(types.uint64, types.uint64), generate


_wide_product.formula = _product  # for numba-cuda-mlir, which has no LLVM code

overload(_product, jit_options={"forceinline": True}, strict=False)(
    lambda factor, word: lambda factor, word: _wide_product(factor, word)  # noqa: PLW0108
)


# ---- blocks of random bits


def _rounds(count: int) -> Callable[..., Any]:
    """Returns a function that applies so many rounds. LLVM unrolls the loop early enough for its
    vectoriser only if the function itself has the number.
    """

    def philox(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any, rounds: Any) -> Any:
        for _ in range(count):
            p0 = _product(_MULTIPLY_0, c0)
            p2 = _product(_MULTIPLY_2, c2)
            c0, c1, c2, c3 = (p2 >> _HALF) ^ c1 ^ k0, p2 & _LOW, (p0 >> _HALF) ^ c3 ^ k1, p0 & _LOW
            k0 = (k0 + _STEP_0) & _LOW
            k1 = (k1 + _STEP_1) & _LOW
        return c0, c1, c2, c3

    return philox


def _philox(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any, rounds: Any) -> Any:
    """Encrypts a counter. Words are uint64 with a zero upper half, so products of 32-bit words do
    not overflow.
    """
    _check_rounds(rounds)
    return _rounds(rounds)(c0, c1, c2, c3, k0, k1, rounds)


@overload(_philox, jit_options={"forceinline": True}, strict=False)
def _compiled_philox(
    c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any, rounds: Any
) -> Callable[..., Any]:
    _check_constant(rounds)
    return _rounds(rounds.literal_value)


@_for_kernels
def philox4x32(
    counter0: Integers,
    counter1: Integers,
    counter2: Integers,
    counter3: Integers,
    key0: Integers,
    key1: Integers,
    rounds: int = _DEFAULT_ROUNDS,
) -> Any:
    """Returns one block of Philox-4x32, as defined by Random123, for streams with a custom
    counter layout.

    Args:
        counter0: word 0 of the counter, the lowest, modulo 2^32.
        counter1: word 1 of the counter.
        counter2: word 2 of the counter.
        counter3: word 3 of the counter, the highest.
        key0: low word of the key, modulo 2^32.
        key1: high word of the key.
        rounds: as of `uniform`.

    Returns:
        Four uint32.

    Example:
        >>> import synknumba as synk
        >>> [hex(word) for word in synk.random.philox4x32(0, 0, 0, 0, 0, 0)]
        ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    c0, c1, c2, c3 = (
        _word64(counter0) & _LOW,
        _word64(counter1) & _LOW,
        _word64(counter2) & _LOW,
        _word64(counter3) & _LOW,
    )
    k0, k1 = _word64(key0) & _LOW, _word64(key1) & _LOW
    w0, w1, w2, w3 = _philox(c0, c1, c2, c3, k0, k1, rounds)
    return np.uint32(w0), np.uint32(w1), np.uint32(w2), np.uint32(w3)


@_for_kernels
def _four_rounds(x0: Any, x1: Any, by0: Any, by1: Any, by2: Any, by3: Any) -> Any:
    x0 = x0 + x1
    x1 = ((x1 << by0) | (x1 >> (_WORD - by0))) ^ x0
    x0 = x0 + x1
    x1 = ((x1 << by1) | (x1 >> (_WORD - by1))) ^ x0
    x0 = x0 + x1
    x1 = ((x1 << by2) | (x1 >> (_WORD - by2))) ^ x0
    x0 = x0 + x1
    x1 = ((x1 << by3) | (x1 >> (_WORD - by3))) ^ x0
    return x0, x1


# Rotation distances of Threefry-2x64 in rounds 0 to 3 and 4 to 7, then alternating; the paper's
# table 4.
_EVEN_0, _EVEN_1, _EVEN_2, _EVEN_3 = (np.uint64(bits) for bits in (16, 42, 12, 31))
_ODD_0, _ODD_1, _ODD_2, _ODD_3 = (np.uint64(bits) for bits in (16, 32, 24, 21))


@_for_kernels
def threefry2x64(counter0: Integers, counter1: Integers, key0: Integers, key1: Integers) -> Any:
    """Returns one block of Threefry-2x64-20, as defined by Random123: additions and rotations in
    place of multiplications.

    Args:
        counter0: low word of the counter, modulo 2^64.
        counter1: high word of the counter.
        key0: low word of the key, modulo 2^64.
        key1: high word of the key.

    Returns:
        Two uint64.

    Example:
        >>> import synknumba as synk
        >>> [hex(word) for word in synk.random.threefry2x64(0, 0, 0, 0)]
        ['0xc2b6e3a8c2c69865', '0x6f81ed42f350084d']
    """
    k0, k1 = _word64(key0), _word64(key1)
    k2 = _PARITY ^ k0 ^ k1
    x0, x1 = _four_rounds(
        _word64(counter0) + k0, _word64(counter1) + k1, _EVEN_0, _EVEN_1, _EVEN_2, _EVEN_3
    )
    x0, x1 = _four_rounds(x0 + k1, x1 + k2 + _ONE, _ODD_0, _ODD_1, _ODD_2, _ODD_3)
    x0, x1 = _four_rounds(x0 + k2, x1 + k0 + _TWO, _EVEN_0, _EVEN_1, _EVEN_2, _EVEN_3)
    x0, x1 = _four_rounds(x0 + k0, x1 + k1 + _THREE, _ODD_0, _ODD_1, _ODD_2, _ODD_3)
    x0, x1 = _four_rounds(x0 + k1, x1 + k2 + _FOUR, _EVEN_0, _EVEN_1, _EVEN_2, _EVEN_3)
    return x0 + k2, x1 + k0 + _FIVE


@_for_kernels
def _block(seed: Integers, index: Integers, draw: Integers, purpose: Any, rounds: Any) -> Any:
    """Returns the four random words of a call; the module docstring shows the layout of key and
    counter.
    """
    s, i, d = _word64(seed), _word64(index), _word64(draw)
    last = ((d >> _HALF) & _DRAW_HIGH) | purpose
    return _philox(i & _LOW, i >> _HALF, d & _LOW, last, s & _LOW, s >> _HALF, rounds)


@_for_kernels
def bits4(seed: Integers, index: Integers, draw: Integers, rounds: int = _DEFAULT_ROUNDS) -> Any:
    """Returns four random uint32: Philox of the plain counter (index, draw).

    Example:
        >>> import synknumba as synk
        >>> [int(word) for word in synk.random.bits4(7, 0, 0)]
        [4099963437, 3221879260, 490388034, 367897730]
    """
    w0, w1, w2, w3 = _block(seed, index, draw, _BITS4, rounds)
    return np.uint32(w0), np.uint32(w1), np.uint32(w2), np.uint32(w3)


# ---- uniform numbers


@_for_kernels
def _fraction(low: Any, high: Any) -> Any:
    """Returns a float64 in [0, 1) from the 53 highest of 64 bits."""
    # not np.float64(…): before NumPy 2.4 it makes a number of one element
    return (((high << _HALF) | low) >> _FRACTION) * _ULP


@_for_kernels
def _fraction32(word: Any) -> Any:
    """Returns a float32 in [0, 1) from the 24 highest of 32 bits."""
    return np.float32(np.int32(word >> _FRACTION32)) * _ULP32


@_for_kernels
def uniform(seed: Integers, index: Integers, draw: Integers, rounds: int = _DEFAULT_ROUNDS) -> Any:
    """Returns a float64 in [0, 1): one of the 2^53 multiples of 2^-53, with equal probability.

    Args:
        seed: the stream; usually one seed per simulation.
        index: the global row.
        draw: the number of previous draws of this row from this function.
        rounds: of Philox, 6 to 16; in a kernel a constant. 7 are faster, and give other numbers.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> synk.random.uniform(7, np.arange(3), 0).round(4)
        array([0.1988, 0.6585, 0.5938])
    """
    w0, w1, _, _ = _block(seed, index, draw, _UNIFORM, rounds)
    return _fraction(w0, w1)


@_for_kernels
def uniform32(
    seed: Integers, index: Integers, draw: Integers, rounds: int = _DEFAULT_ROUNDS
) -> Any:
    """Returns a float32 in [0, 1): one of the 2^24 multiples of 2^-24, with equal probability.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> synk.random.uniform32(7, np.arange(3), 0).round(3)
        array([0.446, 0.125, 0.161], dtype=float32)
    """
    w0, _, _, _ = _block(seed, index, draw, _UNIFORM32, rounds)
    return _fraction32(w0)


@_for_kernels
def uniform2(seed: Integers, index: Integers, draw: Integers, rounds: int = _DEFAULT_ROUNDS) -> Any:
    """Returns two float64 distributed as in `uniform`, at the cost of one.

    Example:
        >>> import synknumba as synk
        >>> [round(float(number), 3) for number in synk.random.uniform2(7, 0, 0)]
        [0.376, 0.333]
    """
    w0, w1, w2, w3 = _block(seed, index, draw, _UNIFORM2, rounds)
    return _fraction(w0, w1), _fraction(w2, w3)


@_for_kernels
def uniform4(seed: Integers, index: Integers, draw: Integers, rounds: int = _DEFAULT_ROUNDS) -> Any:
    """Returns four float32 distributed as in `uniform32`, at the cost of one.

    Example:
        >>> import synknumba as synk
        >>> [round(float(number), 3) for number in synk.random.uniform4(7, 0, 0)]
        [0.566, 0.812, 0.292, 0.346]
    """
    w0, w1, w2, w3 = _block(seed, index, draw, _UNIFORM4, rounds)
    return _fraction32(w0), _fraction32(w1), _fraction32(w2), _fraction32(w3)


# ---- other distributions


@_for_kernels
def _on_circle(radius: Any, quarter: Any, cosine: Any, sine: Any) -> Any:
    """Returns the coordinates of the point at the angle of cosine and sine, plus so many quarter
    turns.
    """
    is_odd = quarter & _ONE
    radius = _where(quarter & _TWO, -radius, radius)
    return radius * _where(is_odd, -sine, cosine), radius * _where(is_odd, cosine, sine)


@_for_kernels
def _normal_pair(w0: Any, w1: Any, w2: Any, w3: Any) -> Any:
    """Returns two normal float64, by the Box-Muller transform (G. Box and M. Muller, 1958).

    It needs two uniform numbers, which is what one block yields, and is branch-free, so loops
    vectorise. Inversion of the distribution function has separate branches for centre and tails,
    and most warps would execute both.

    The angle is the nearest quarter turn and a rest x of at most half a quarter, which is exact.
    The polynomials are minimax approximations of sin(π x/2) / x and cos(π x/2) in x², with relative
    errors of 2^-58 and 2^-65.
    """
    radius = _sqrt(-2.0 * _log(1.0 - _fraction(w0, w1)))  # 1 - u is exact and in (0, 1]
    angle = (w3 << _HALF) | (w2 & _ANGLE)
    x = np.int64(angle << _TWO) * _STEP64
    square = x * x
    sine = square * 5.633721005314096e-08 - 3.5986417543868745e-06
    sine = square * sine + 0.00016044115029163048
    sine = square * sine - 0.004681754132282415
    sine = square * sine + 0.07969262624603957
    sine = square * sine - 0.6459640975062443
    sine = square * sine + 1.5707963267948966
    cosine = square * -6.320557308810856e-09 + 4.710603581027675e-07
    cosine = square * cosine - 2.5202036558199326e-05
    cosine = square * cosine + 0.0009192602741467693
    cosine = square * cosine - 0.020863480763308004
    cosine = square * cosine + 0.2536695079010466
    cosine = square * cosine - 1.2337005501361697
    return _on_circle(radius, (angle + _EIGHTH) >> _QUARTER, square * cosine + 1.0, x * sine)


@_for_kernels
def _normal_pair32(w0: Any, w1: Any) -> Any:
    """Returns two normal float32. The radius uses all 32 bits: its maximum is 6.8, against 5.8
    with 24 bits. The polynomials' relative errors are 2^-28 and 2^-34.
    """
    uniform = np.float32(np.uint32(w0)) * _STEP32 + _HALF_STEP32
    radius = _sqrt(_MINUS_TWO32 * _log(uniform))
    angle = w1 & _ANGLE32
    x = np.float32(np.int32(angle << _TWO)) * _STEP32
    square = x * x
    sine = square * _SINE32_7 + _SINE32_5
    sine = square * sine + _SINE32_3
    sine = square * sine + _SINE32_1
    cosine = square * _COSINE32_8 + _COSINE32_6
    cosine = square * cosine + _COSINE32_4
    cosine = square * cosine + _COSINE32_2
    cosine = square * cosine + _COSINE32_0
    return _on_circle(radius, (angle + _EIGHTH32) >> _QUARTER32, cosine, x * sine)


@_for_kernels
def normal(seed: Integers, index: Integers, draw: Integers, rounds: int = _DEFAULT_ROUNDS) -> Any:
    """Returns a standard normal float64 with magnitude at most 8.6 (exact tail probability
    10^-17).

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> synk.random.normal(7, np.arange(3), 0).round(3)
        array([-0.791,  1.122,  0.333])
    """
    w0, w1, w2, w3 = _block(seed, index, draw, _NORMAL, rounds)
    return _normal_pair(w0, w1, w2, w3)[0]


@_for_kernels
def normal32(seed: Integers, index: Integers, draw: Integers, rounds: int = _DEFAULT_ROUNDS) -> Any:
    """Returns a standard normal float32 with magnitude at most 6.8 (exact tail probability
    10^-11).

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> synk.random.normal32(7, np.arange(3), 0).round(3)
        array([ 1.63 , -0.166,  0.888], dtype=float32)
    """
    w0, w1, _, _ = _block(seed, index, draw, _NORMAL32, rounds)
    return _normal_pair32(w0, w1)[0]


@_for_kernels
def normal2(seed: Integers, index: Integers, draw: Integers, rounds: int = _DEFAULT_ROUNDS) -> Any:
    """Returns two float64 distributed as in `normal`, at little more than the cost of one.

    Example:
        >>> import synknumba as synk
        >>> [round(float(number), 3) for number in synk.random.normal2(7, 0, 0)]
        [1.844, -2.046]
    """
    w0, w1, w2, w3 = _block(seed, index, draw, _NORMAL2, rounds)
    return _normal_pair(w0, w1, w2, w3)


@_for_kernels
def normal4(seed: Integers, index: Integers, draw: Integers, rounds: int = _DEFAULT_ROUNDS) -> Any:
    """Returns four float32 distributed as in `normal32`, at little more than the cost of two.

    Example:
        >>> import synknumba as synk
        >>> [round(float(number), 3) for number in synk.random.normal4(7, 0, 0)]
        [1.602, 3.135, -0.132, -1.31]
    """
    w0, w1, w2, w3 = _block(seed, index, draw, _NORMAL4, rounds)
    z0, z1 = _normal_pair32(w0, w1)
    z2, z3 = _normal_pair32(w2, w3)
    return z0, z1, z2, z3


@_for_kernels
def exponential(
    seed: Integers, index: Integers, draw: Integers, rounds: int = _DEFAULT_ROUNDS
) -> Any:
    """Returns a float64 from the exponential distribution with mean 1, in [0, 36.8].

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> synk.random.exponential(7, np.arange(3), 0).round(3)
        array([0.295, 0.734, 1.586])
    """
    w0, w1, _, _ = _block(seed, index, draw, _EXPONENTIAL, rounds)
    return 0.0 - _log(1.0 - _fraction(w0, w1))  # 0 - x, as -x of 0 is -0


@_for_kernels
def _carried(product: Any, addend: Any, carry: Any) -> Any:
    """Returns the carry out of a column of a long multiplication: two products of 32-bit digits
    plus the carry in.

    No sum overflows: a product is at most (2^32 - 1)^2, which leaves room for another 32-bit digit.
    """
    low = product + (carry & _LOW)
    both = addend + (low & _LOW)
    return (carry >> _HALF) + (low >> _HALF) + (both >> _HALF)


@_for_kernels
def _scaled(count: Any, w0: Any, w1: Any, w2: Any, w3: Any) -> Any:
    """Returns floor(count w / 2^128) for the 128-bit number w of these words. Wider products
    would not vectorise.
    """
    n0, n1 = count & _LOW, count >> _HALF
    carry = n0 * w0 >> _HALF
    carry = _carried(n1 * w0, n0 * w1, carry)
    carry = _carried(n1 * w1, n0 * w2, carry)
    carry = _carried(n1 * w2, n0 * w3, carry)
    return n1 * w3 + carry


def _check_bounds(low: Integers, high: Integers) -> None:
    """Checks int64 bounds, low < high, in Python; does nothing in kernels, which do not raise."""
    lows, highs = np.asarray(low), np.asarray(high)
    if np.any(lows < -(2**63)) or np.any(highs >= 2**63):
        raise ValueError(f"low and high must be int64, but low is {low} and high is {high}")
    if np.any(lows >= highs):
        raise ValueError(f"high must be larger than low, but low is {low} and high is {high}")


@overload(_check_bounds, strict=False)
def _compiled_check_bounds(low: Any, high: Any) -> Any:
    return lambda low, high: None


@_for_kernels
def randint(
    seed: Integers,
    index: Integers,
    draw: Integers,
    low: Integers,
    high: Integers,
    rounds: int = _DEFAULT_ROUNDS,
) -> Any:
    """Returns an int64 in [low, high), for any range of int64.

    The result is low + floor((high - low) b / 2^128) with 128 random bits b: values are equally
    likely to 1 part in 2^64.

    Args:
        seed: the stream, as in `uniform`.
        index: the global row.
        draw: the number of previous draws of this row from this function.
        low: the smallest value.
        high: one more than the largest value. If `high` ≤ `low`, a kernel returns `low`.
        rounds: as in `uniform`.

    Raises:
        ValueError: `high` ≤ `low`, or they are no int64, in Python.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> synk.random.randint(7, np.arange(5), 0, 1, 7)
        array([3, 3, 2, 2, 3])
    """
    _check_bounds(low, high)
    start, count = _word64(low), (_word64(high) - _word64(low)) * np.uint64(low < high)
    w0, w1, w2, w3 = _block(seed, index, draw, _RANDINT, rounds)
    return np.int64(start + _scaled(count, w0, w1, w2, w3))
