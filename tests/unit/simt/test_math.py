"""The functions of `math` in kernels: the types that CUDA gives them, and the values that Python
gives.
"""

import importlib.util
import math
from typing import Any

import numpy as np
import pytest
from numba import cuda
from numba.core import types
from numba.extending import overload

from synknumba import simt

X = (0.3, -0.3, 1.0, 2.5, -2.5, 0.75, 3.25, 1e-5)
POSITIVE = (0.25, 1.0, 2.5, 7.0, 1e-3, 20.0, 1.5, 3.0)
ABOVE_ONE = tuple(x + 1 for x in POSITIVE)
UNIT = (-0.9, -0.25, 0.0, 0.5, 0.99, -0.5, 0.125, 0.75)

UNARY: dict[str, tuple[float, ...]] = {
    **dict.fromkeys(("acos", "asin", "atanh"), UNIT),
    **dict.fromkeys(("gamma", "lgamma", "log", "log10", "log1p", "log2", "sqrt"), POSITIVE),
    **dict.fromkeys(
        (
            "asinh",
            "atan",
            "ceil",
            "cos",
            "cosh",
            "degrees",
            "erf",
            "erfc",
            "exp",
            "expm1",
            "fabs",
            "floor",
        ),
        X,
    ),
    **dict.fromkeys(("radians", "sin", "sinh", "tan", "tanh", "trunc"), X),
    "acosh": ABOVE_ONE,
}
BINARY = ("atan2", "copysign", "fmod", "hypot", "pow", "remainder")
TESTS = ("isinf", "isnan", "isfinite")


def bits(_value: Any) -> int:
    """The width of a float in a kernel; 0 of anything else."""
    raise NotImplementedError


@overload(bits)
def _bits(value):
    width = value.bitwidth if isinstance(value, types.Float) else 0
    return lambda value: width


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs every function on `x[k]` (and `y[k]`), `k` being its number, and stores the result
    and its width.
    """
    calls = [f"math.{name}(x[{k}, i])" for k, name in enumerate(UNARY)]
    calls += [f"math.{name}(x[{k}, i], y[{k}, i])" for k, name in enumerate(BINARY, len(calls))]
    lines = [
        f"    v{k} = {call}\n    out[{k}, i] = v{k}\n    width[{k}] = bits(v{k})"
        for k, call in enumerate(calls)
    ]
    text = (
        "import math\nfrom numba import cuda\n\n\ndef kernel(x, y, out, "
        "width):\n    i = cuda.grid(1)\n" + "\n".join(lines)
    )
    path = tmp_path_factory.mktemp("math") / "math_kernel.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    module.bits = bits  # type: ignore[attr-defined]
    spec.loader.exec_module(module)
    return simt.jit(module.kernel)


@pytest.mark.parametrize(
    ("dtype", "width", "rtol"),
    [
        (np.float32, 32, 3e-6),
        pytest.param(np.float64, 64, 1e-14, marks=pytest.mark.whole),
        pytest.param(np.int32, 64, 1e-14, marks=pytest.mark.whole),
        (np.int64, 64, 1e-14),
    ],
)
def test_types_are_those_of_cuda_and_values_those_of_python(
    kernel: Any, dtype: Any, width: int, rtol: float
) -> None:
    whole = np.issubdtype(dtype, np.integer)
    rows = [[round(value * 2) if whole else value for value in values] for values in UNARY.values()]
    names = [*UNARY, *BINARY]
    for k, name in enumerate(UNARY):
        if whole and name in {"acos", "asin", "atanh"}:
            rows[k] = [0] * 8
        elif whole and UNARY[name] is POSITIVE:
            rows[k] = [max(value, 1) for value in rows[k]]
    x = np.array([*rows, *([[5, 2, 9, 4, 3, 7, 11, 2]] * len(BINARY))]).astype(dtype)
    y = np.full(x.shape, 3).astype(dtype)
    out, widths = np.zeros(x.shape), np.zeros(len(x), np.int64)
    kernel[1, 8](x, y, out, widths)
    assert dict(zip(names, widths, strict=True)) == dict.fromkeys(names, width)
    for k, name in enumerate(names):
        args = (x[k],) if name in UNARY else (x[k], y[k])
        expected = [getattr(math, name)(*map(float, values)) for values in zip(*args, strict=True)]
        np.testing.assert_allclose(out[k], expected, rtol=rtol, err_msg=name)


def test_whole_numbers_too_large_for_an_integer() -> None:
    @simt.jit
    def kernel(x, out):
        i = cuda.grid(1)
        out[i] = math.floor(x[i]) + math.ceil(x[i]) + math.trunc(x[i])

    x = np.array([1e30, -1e30, 2.5, -2.5])
    out = np.zeros(4)
    kernel[1, 4](x, out)
    np.testing.assert_allclose(out, [3e30, -3e30, 7, -7], rtol=1e-15)


def test_names_imported_by_themselves() -> None:
    from math import floor as down

    @simt.jit
    def kernel(x, out):
        i = cuda.grid(1)
        out[i] = x[i] - down(x[i])

    x = np.array([1.75, -0.25, 3e18], np.float32)
    out = np.zeros(3, np.float32)
    kernel[1, 3](x, out)
    assert (out == x - np.floor(x)).all()


def test_tuples_and_powers() -> None:
    @simt.jit
    def kernel(x, n, out, width):
        fraction, whole = math.modf(x[0])
        mantissa, exponent = math.frexp(x[0])
        out[0], out[1], out[2], out[3] = fraction, whole, mantissa, exponent
        out[4] = math.ldexp(x[0], n[0])
        out[5] = math.pow(x[0], n[0])
        width[0], width[1], width[2] = bits(whole), bits(mantissa), bits(math.pow(x[0], n[0]))

    for dtype, bit in ((np.float32, 32), (np.float64, 64)):
        out, width = np.zeros(6), np.zeros(3, np.int64)
        kernel[1, 1](np.array([-3.75], dtype), np.array([3], np.int32), out, width)
        assert (
            out == [*math.modf(-3.75), *math.frexp(-3.75), math.ldexp(-3.75, 3), (-3.75) ** 3]
        ).all()
        assert (width == bit).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint64])
def test_classes_of_numbers(dtype: Any) -> None:
    @simt.jit
    def kernel(x, out):
        i = cuda.grid(1)
        out[i] = math.isinf(x[i]) + 2 * math.isnan(x[i]) + 4 * math.isfinite(x[i])

    special = [np.inf, np.nan, 1] if np.issubdtype(dtype, np.floating) else [0, 5, 1]
    out = np.zeros(3, np.int64)
    kernel[1, 3](np.array(special, dtype), out)
    assert (out == ([1, 2, 4] if np.issubdtype(dtype, np.floating) else 4)).all()


def reversed_bits(value: int, width: int) -> int:
    return int(f"{value % (1 << width):0{width}b}"[::-1], 2)


@pytest.mark.parametrize(
    ("dtype", "width"),
    [(np.int8, 32), (np.int32, 32), (np.uint32, 32), (np.int64, 32), (np.uint64, 64)],
)
def test_reversed_bits_are_those_that_cuda_takes(dtype: Any, width: int) -> None:
    @simt.jit
    def kernel(x, out):
        i = cuda.grid(1)
        out[i] = cuda.brev(x[i])

    x = np.array([1, 5, 100]).astype(dtype)
    out = np.zeros(3, np.uint64)
    kernel[1, 3](x, out)
    assert [int(value) for value in out] == [reversed_bits(int(value), width) for value in x]


@pytest.mark.parametrize(
    ("dtype", "width"),
    [(np.int8, 32), (np.int16, 32), (np.int32, 64), (np.float32, 32), (np.float64, 64)],
)
def test_floats_that_cuda_makes_of_other_numbers(dtype: Any, width: int) -> None:
    @simt.jit
    def kernel(x, out, widths):
        out[0], out[1] = cuda.cbrt(x[0]), cuda.fma(x[0], x[0], x[0])
        widths[0], widths[1] = bits(cuda.cbrt(x[0])), bits(cuda.fma(x[0], x[0], x[0]))

    out, widths = np.zeros(2), np.zeros(2, np.int64)
    kernel[1, 1](np.array([27], dtype), out, widths)
    np.testing.assert_allclose(out, [3, 27 * 28], rtol=1e-6)
    assert (widths == width).all()
