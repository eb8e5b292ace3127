"""The arithmetic of kernels that run in Python against Numba's compiled arithmetic."""

import math
import operator
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from numba import njit, typeof

from synknumba.simt._python import arithmetic

VALUES: dict[Any, tuple[Any, ...]] = {
    "i": (3, -7, 100),
    "u": (3, 250),
    "f": (1.1, -2.5),
}
BINARY = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):  # as every launch does
        yield


@cache
def compiled(text: str) -> Any:
    return njit(eval(f"lambda a, b: {text}"), error_model="numpy")


def equal(got: Any, expected: Any) -> None:
    if isinstance(expected, (int, bool)):
        assert int(got) == expected
    else:
        np.testing.assert_allclose(
            got, expected, rtol=1e-6 if np.result_type(got).char in "fF" else 1e-15
        )


@pytest.mark.parametrize("sign", BINARY)
def test_operators_agree_with_numba(sign: str) -> None:
    sample = [
        (np.uint8, np.uint8),
        (np.uint8, np.int32),
        (np.int32, np.int32),
        (np.uint64, np.int64),
        (np.uint32, np.uint64),
    ]
    if sign in {"+", "-", "*", "/", "//", "%"}:
        sample += [
            (np.float32, np.int32),
            (np.float32, np.uint8),
            (np.float32, np.float64),
            (np.int8, np.float32),
        ]
    for left, right in sample:
        for a in VALUES[np.dtype(left).kind]:
            for b in VALUES[np.dtype(right).kind]:
                x, y = left(a), right(b)
                got = arithmetic.binary(BINARY[sign], x, y)
                expected = compiled(f"a {sign} b")(x, y)
                equal(got, expected)
                assert (
                    str(
                        compiled(f"a {sign} b")
                        .overloads[typeof(x), typeof(y)]
                        .signature.return_type
                    )
                    == got.dtype.name
                )


@pytest.mark.parametrize("sign", ["<<", ">>"])
def test_the_left_operand_of_a_shift_gives_the_sign(sign: str) -> None:
    shift = {"<<": operator.lshift, ">>": operator.rshift}[sign]
    for x in (np.uint64(1 << 63), np.int8(-5), np.uint32(4_000_000_000), -3):
        for y in (np.uint32(2), 3):
            equal(arithmetic.binary(shift, x, y), compiled(f"a {sign} b")(x, y))


def test_python_numbers_are_64_bits_wide() -> None:
    assert arithmetic.binary(operator.add, 2, 3) == 5
    assert type(arithmetic.binary(operator.add, 2, 3)) is int
    assert arithmetic.binary(operator.mul, 1 << 62, 6) == -(1 << 63)
    assert type(arithmetic.binary(operator.mul, np.float32(1.5), 2.0)) is np.float64
    assert math.isinf(arithmetic.binary(operator.truediv, 1.0, 0.0))


def test_an_integer_divided_by_zero_is_an_error() -> None:
    for zero in (0, np.int32(0), np.uint64(0)):
        with pytest.raises(ZeroDivisionError):
            arithmetic.binary(operator.floordiv, 3, zero)


def test_what_is_no_number_keeps_pythons_operators() -> None:
    assert arithmetic.binary(operator.add, (1, 2), (3,)) == (1, 2, 3)


@pytest.mark.parametrize("sign", ["-", "~", "+"])
def test_signs_agree_with_numba(sign: str) -> None:
    operation = {"-": operator.neg, "~": operator.invert, "+": operator.pos}[sign]
    for kind in (
        np.bool_,
        np.int8,
        np.int64,
        np.uint8,
        np.uint64,
        *((np.float32,) if sign != "~" else ()),
    ):
        for value in VALUES[np.dtype(kind).kind] if kind is not np.bool_ else (True,):
            x = kind(value)
            equal(arithmetic.unary(operation, x), njit(eval(f"lambda a: {sign}a"))(x))
    assert arithmetic.unary(operator.neg, -2.5) == 2.5


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (-1, np.uint8, 255),
        ((1 << 40) + 5, np.int32, 5),
        (3.9, np.int32, 3),
        (-3.9, np.int64, -3),
        (1 << 63, np.int64, -(1 << 63)),
    ],
)
def test_conversions_wrap_around_as_in_c(value: Any, kind: Any, expected: int) -> None:
    got = arithmetic.convert(value, kind)
    assert type(got) is kind
    assert int(got) == expected


def test_functions_of_math_have_no_errors_and_keep_float32() -> None:
    sqrt, exp, log = (
        arithmetic.CALLS[id(function)] for function in (math.sqrt, math.exp, math.log)
    )
    assert type(sqrt(np.float32(2))) is np.float32
    assert sqrt(np.float32(2)) == np.sqrt(np.float32(2))
    assert math.isnan(sqrt(-1.0))
    assert exp(1e4) == math.inf
    assert log(0.0) == -math.inf
    assert math.isinf(arithmetic.CALLS[id(math.pow)](0.0, -1.0))
    assert arithmetic.CALLS[id(math.floor)](np.float32(-1.5)) == -2
    assert arithmetic.CALLS[id(math.trunc)](np.float32(-1.5)) == -1
    assert arithmetic.CALLS[id(math.trunc)](np.int64(7)) == 7


def test_rounding_keeps_the_type_and_is_exact() -> None:
    rounded = arithmetic.CALLS[id(round)]
    assert rounded(np.float32(2.5)) == 2
    assert rounded(np.float32(0.3425), 3) == np.float32(round(float(np.float32(0.3425)), 3))
    assert type(rounded(np.float32(0.3425), 3)) is np.float32
    assert rounded(np.finfo(np.float64).max, 300) == np.finfo(np.float64).max
    assert rounded(7) == 7


def test_extremes_have_the_type_that_holds_all() -> None:
    top = arithmetic.CALLS[id(max)](np.float32(1.5), 0.5)
    assert (top, type(top)) == (1.5, np.float64)
    assert arithmetic.CALLS[id(min)](3, 2) == 2
    assert arithmetic.CALLS[id(max)]((4, 9, 2)) == 9


def test_bits_agree_with_python() -> None:
    assert arithmetic.popc(np.int32(-1)) == 32
    assert arithmetic.popc(-1) == 64
    assert arithmetic.clz(np.uint32(1)) == 31
    assert arithmetic.clz(1) == 63
    assert arithmetic.ffs(np.int32(0)) == 0
    assert arithmetic.ffs(np.int32(-8)) == 4
    assert arithmetic.brev(np.uint32(1)) == 1 << 31
    assert arithmetic.brev(1) == 1 << 31
    assert arithmetic.brev(np.uint64(1)) == 1 << 63
    assert arithmetic.selp(np.bool_(False), 1.5, 2) == 2.0


def test_fma_rounds_once() -> None:
    a = 1.0 + 2.0**-30
    assert arithmetic.fma(a, a, -1.0 - 2.0**-29) == 2.0**-60
    assert a * a - 1.0 - 2.0**-29 == 0.0
    assert type(arithmetic.fma(np.float32(2), np.float32(3), np.float32(1))) is np.float32
    assert arithmetic.cbrt(-8.0) == -2.0
