"""Every operator and function of numbers over small values, in the four engines that run a kernel.

The engines are compiled code, `simt.debug`, and `simt.check` in Python and in compiled code.
Numba's compiler and NumPy's numbers are independent of each other. A kernel stores all results as
float64, where they are exact.
"""

import itertools

import numpy as np
import pytest

from synknumba import simt
from tests.conformance.simt.fuzz import load
from tests.quick import whole

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float32", "float64")
TYPES = ("bool", *INTEGERS, *FLOATS)

# Expressions of x and y, two numbers.
ARITHMETIC = ("x + y", "x - y", "x * y", "+x", "-x", "abs(x)")
COMPARISONS = (
    "x == y",
    "x != y",
    "x < y",
    "x <= y",
    "x > y",
    "x >= y",
    "x and y",
    "x or y",
    "not x",
    "x < y < 2",
)
CHOICES = ("min(x, y)", "max(x, y)", "x if x < y else y", "cuda.selp(x < y, x, y)", "min(x, y, 1)")
CONVERSIONS = (
    "int(x)",
    "float(x)",
    "bool(x)",
    "round(x)",
    "np.int8(x)",
    "np.uint16(x)",
    "np.int64(x)",
    "np.float32(x)",
)
BITS = ("x & y", "x | y", "x ^ y", "~x", "x << (y & 7)", "x >> (y & 7)")
OF_INTEGERS = ("cuda.popc(x)", "cuda.clz(x)", "cuda.ffs(x)")
# Undefined for integers if y is zero.
DIVISIONS = ("x / y", "x // y", "x % y")
POWERS = ("x ** 2", "2 ** int(x)", "x ** -1", "x ** int(y)")
# Rounded by each engine's library.
ROUNDED = ("x ** y", "pow(x, y)", "math.hypot(x, y)", "math.atan2(x, y)")
MATHS = (
    *(
        f"math.{name}(x)"
        for name in ("ceil", "floor", "trunc", "fabs", "isnan", "isinf", "isfinite")
    ),
    *(f"math.{name}(x, y)" for name in ("copysign", "fmod", "remainder")),
    *(
        "math.ceil(x) / y",
        "x - math.floor(x)",
        "math.trunc(x) * y",
        "math.modf(x)[0]",
        "math.modf(x)[1]",
        "round(x, 1)",
    ),
)
# Of one thread's value and another lane's.
LANES = (
    *(f"cuda.shfl{way}_sync(0xFFFFFFFF, x, 1)" for way in ("", "_up", "_down", "_xor")),
    *(f"cuda.{vote}_sync(0xFFFFFFFF, x)" for vote in ("all", "any", "eq", "ballot")),
    *(f"cuda.syncthreads_{vote}(x)" for vote in ("count", "and", "or")),
    *(
        "cuda.match_any_sync(0xFFFFFFFF, x)",
        "cuda.match_all_sync(0xFFFFFFFF, x)[0]",
        "cuda.match_all_sync(0xFFFFFFFF, x)[1]",
    ),
    *(
        "cuda.shfl_xor_sync(0xFFFFFFFF, x, 1) + cuda.shfl_up_sync(0xFFFFFFFF, y, 1)",
        "-cuda.shfl_sync(0xFFFFFFFF, x, 1)",
    ),
)


def values(kind):
    """Small values of a type: around zero, and halves and signed zeros of floats."""
    if kind == "bool":
        return np.array([False, True])
    if kind in FLOATS:
        return np.array([-2.5, -1, -0.5, -0.0, 0.0, 0.5, 1, 2.5, 3], kind)
    least = 0 if kind.startswith("u") else -3
    return np.arange(least, 5, dtype=kind)


def kernel_of(expressions):
    """Makes a kernel that stores the expressions, by the element of two arrays."""
    lines = [
        "import math",
        "import numpy as np",
        "from numba import cuda",
        "def kernel(a, b, out):",
        "    i = cuda.grid(1)",
        "    x, y = a[i], b[i]",
    ]
    lines += [f"    out[{place}, i] = {expression}" for place, expression in enumerate(expressions)]
    text = "\n".join(lines) + "\n"
    name = f"<{text}>"
    return load(text, name)


ENGINES = {
    "compiled": simt.jit,
    "debug": simt.debug,
    "check in Python": lambda kernel: simt.check(kernel, compiled=False),
    "compiled check": lambda kernel: simt.check(kernel, compiled=True),
}


def results_of(expressions, a, b, block):
    """Returns the results of the expressions, by the name of the engine."""
    kernel, results = kernel_of(expressions), {}
    for name, made in ENGINES.items():
        results[name] = np.full((len(expressions), a.size), 7777.0)
        made(kernel)[a.size // block, block](a, b, results[name])
    return results


def assert_agree(expressions, a, b, block=1):
    results = results_of(expressions, a, b, block)
    compiled = results.pop("compiled")
    differing = [
        (
            f"{expression} of {a[k]!r}, {b[k]!r}: {compiled[place, k]} compiled, "
            f"{got[place, k]} in {name}"
        )
        for name, got in results.items()
        for place, expression in enumerate(expressions)
        for k in range(a.size)
        if got[place, k].tobytes() != compiled[place, k].tobytes()
        and not (
            expression in ROUNDED
            and np.isclose(got[place, k], compiled[place, k], rtol=3e-7, atol=0)
        )
        and not (np.isnan(got[place, k]) and np.isnan(compiled[place, k]))
    ]
    assert not differing, "\n".join(differing)


def pairs(left, right, *, without_zero=False):
    """Returns all pairs of two types' values, as two arrays."""
    rights = values(right)
    both = list(itertools.product(values(left), rights[rights != 0] if without_zero else rights))
    return tuple(
        np.array(column, kind)
        for column, kind in zip(zip(*both, strict=True), (left, right), strict=True)
    )


# What the quick suite runs: kinds of numbers that promote differently.
QUICK = [("bool", "bool"), ("int64", "uint64"), ("int64", "float32")]
OTHERS = [pair for pair in itertools.product(TYPES, TYPES) if pair not in QUICK]

KINDS = pytest.mark.parametrize("kinds", [*QUICK, *whole(*OTHERS)], ids="-".join)


@KINDS
def test_operators(kinds):
    left, right = kinds
    of_integers = not {left, right} & set(FLOATS)
    expressions = [*ARITHMETIC, *COMPARISONS, *CHOICES, *CONVERSIONS]
    if left == "bool":
        expressions.remove("float(x)")  # Numba has no such conversion
    if of_integers:
        expressions += BITS + (OF_INTEGERS if "bool" not in {left, right} else ())
    assert_agree(expressions, *pairs(left, right))


# By amounts of the width and more, negative ones among them.
SHIFTS = ("x << y", "x >> y", "np.left_shift(x, y)", "np.right_shift(x, y)")
AMOUNTS = (0, 1, 7, 8, 31, 32, 33, 63, 64, 65, 72, 128, 255, -1, -8)


@pytest.mark.parametrize("kind", INTEGERS)
def test_shifts(kind):
    signed = np.dtype(kind).kind == "i"
    numbers = [-5, 0, 3, np.iinfo(kind).max] if signed else [0, 3, np.iinfo(kind).max]
    wide = "int64" if signed else "uint64"
    amounts = [amount for amount in AMOUNTS if np.iinfo(kind).min <= amount <= np.iinfo(kind).max]
    columns = zip(*itertools.product(numbers, amounts), strict=True)
    a, b = (np.array(column, kind) for column in columns)
    # NumPy's shifts are those measured on an H200 with numba-cuda; an operator computes in 64 bits.
    results = {"out": np.zeros((4, a.size), wide)}
    expected = np.array(
        [
            *(shift(a.astype(wide), b.astype(wide)) for shift in (np.left_shift, np.right_shift)),
            *(shift(a, b).astype(wide) for shift in (np.left_shift, np.right_shift)),
        ]
    )
    kernel = kernel_of(SHIFTS)
    for engine, decorate in ENGINES.items():
        results[engine] = np.zeros((len(SHIFTS), a.size), wide)
        decorate(kernel)[a.size, 1](a, b, results[engine])
        np.testing.assert_array_equal(results[engine], expected, engine)


def test_shifts_by_constants():
    amounts = (0, 1, 31, 33, 63, 64, 72, 255)
    expressions = [
        f"{x} {sign} np.{y.dtype}({y})"
        for x in "xy"
        for sign in ("<<", ">>")
        for y in map(np.uint64, amounts)
    ]
    a, b = np.array([0, 1, 2**63 + 5], np.uint64), np.array([-5, 7, -(2**63)], np.int64)
    assert_agree(expressions, a, b)


@KINDS
def test_divisions_and_powers(kinds):
    left, right = kinds
    a, b = pairs(left, right, without_zero=right not in FLOATS)
    expressions = [*DIVISIONS, *POWERS, *ROUNDED, *MATHS]
    if kinds == ("bool", "int32"):
        # Numba computes it in float32, that of all other integers in int64
        expressions.remove("x ** int(y)")
    assert_agree(expressions, a, b)


@pytest.mark.parametrize("kind", ["bool", *whole(*INTEGERS, *FLOATS)])
def test_lanes(kind):
    a = np.resize(values(kind), 32)
    assert_agree(LANES, a, a[::-1].copy(), block=32)
