"""bfloat16 in kernels, where numba-cuda is installed: the values of ml_dtypes."""

import itertools
import math
import sys
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

from synknumba import ArgumentError, KernelError, simt
from synknumba.simt._maths import bfloat16

B = ml_dtypes.bfloat16
CORNERS = np.array(
    [
        0,
        -0.0,
        1,
        -1,
        3.39e38,
        np.inf,
        -np.inf,
        np.nan,
        1e-40,
        -9.2e-41,
        1.2e-38,
        1 / 3,
        257,
        2.5,
        -3.5,
    ],
    B,
)

needs_type = pytest.mark.skipif(
    bfloat16.kind() is None, reason="numba.cuda has no bfloat16 without numba-cuda"
)
# NumPy's, of the expected values
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")


@simt.jit
def double(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = x[i] + x[i]


@pytest.mark.skipif(bfloat16.kind() is not None, reason="kernels take it")
def test_without_numba_cuda_arrays_are_refused_by_name():
    with pytest.raises(
        ArgumentError,
        match=r"double\(\): x is an ndarray of bfloat16, .*numba-cuda.*astype\(np.float32\)",
    ):
        double[1, 4](np.ones(4, B))


def test_arrays_of_fewer_bits_are_refused_by_name():
    with pytest.raises(
        ArgumentError,
        match=r"double\(\): x is an ndarray of dtype float8_e4m3fn, .*pass x.astype\(np.float32\)",
    ):
        double[1, 4](np.ones(4, ml_dtypes.float8_e4m3fn))


def pairs() -> tuple[np.ndarray, np.ndarray]:
    bits = np.random.default_rng(0).integers(0, 1 << 16, (2, 3000)).astype(np.uint16).view(B)
    corners = np.array(list(itertools.product(CORNERS, CORNERS)), B).T
    x, y = np.concatenate([corners, bits], axis=1)
    return x.copy(), y.copy()


def assert_bits(got: np.ndarray, wanted: np.ndarray) -> None:
    """The same numbers, zeros of the same sign, and NaNs at the same places."""
    assert got.dtype == wanted.dtype
    number = ~np.isnan(wanted.astype(float))
    np.testing.assert_array_equal(got.view(np.uint16)[number], wanted.view(np.uint16)[number])
    assert np.isnan(got[~number].astype(float)).all()


@simt.jit
def operators(x, y, out, truth, single):
    i = cuda.grid(1)
    if i < x.size:
        a, b = x[i], y[i]
        out[0, i] = a + b
        out[1, i] = a - b
        out[2, i] = a * b
        out[3, i] = a / b
        out[4, i] = -a
        c = a
        c += b
        c *= a
        out[5, i] = c
        truth[0, i] = a == b
        truth[1, i] = a != b
        truth[2, i] = a < b
        truth[3, i] = a >= b
        single[0, i] = a
        single[1, i] = a + np.float32(1)


# In Python of fewer numbers, and with a check of accesses in compiled code.
RUNS = [
    pytest.param(simt.jit, 1, id="jit"),
    pytest.param(simt.debug, 20, id="debug"),
    pytest.param(simt.check, 20, id="check"),
    pytest.param(lambda kernel: simt.check(kernel, compiled=True), 1, id="compiled"),
]


@needs_type
@pytest.mark.parametrize(("run", "step"), RUNS)
def test_operators_equal_those_of_ml_dtypes(run, step):
    x, y = (one[::step].copy() for one in pairs())
    out, truth, single = (
        np.zeros((6, x.size), B),
        np.zeros((4, x.size), bool),
        np.zeros((2, x.size), np.float32),
    )
    run(operators).forall(x.size)(x, y, out, truth, single)
    assert_bits(out, np.array([x + y, x - y, x * y, x / y, -x, (x + y) * x]))
    np.testing.assert_array_equal(truth, [x == y, x != y, x < y, x >= y])
    np.testing.assert_array_equal(
        single, [x.astype(np.float32), x.astype(np.float32) + np.float32(1)]
    )


@simt.jit
def rounded(f4, f8, i4, i8, u8, out):
    i = cuda.grid(1)
    if i < f4.size:
        out[0, i] = f4[i]
        out[1, i] = f8[i]
        out[2, i] = i4[i]
        out[3, i] = cuda.bf16.int64_to_bfloat16_rd(i8[i])
        out[4, i] = cuda.bf16.uint64_to_bfloat16_ru(u8[i])
        out[5, i] = cuda.bf16.float32_to_bfloat16_rz(f4[i])
        out[6, i] = cuda.bf16.hfma(out[0, i], out[1, i], out[2, i])


def nearest(value: Fraction, side: int) -> Any:
    """The bfloat16 nearest to a number, or the next one on a side, in exact arithmetic; not near
    the largest.
    """
    got = B(float(value))
    around = [
        got,
        *np.array([int(got.view(np.uint16)) + step for step in (-1, 1)], np.uint16).view(B),
    ]
    fits = [one for one in around if side == 0 or side * (Fraction(float(one)) - value) >= 0]
    distance = min(abs(Fraction(float(one)) - value) for one in fits)
    ties = [one for one in fits if abs(Fraction(float(one)) - value) == distance]
    return min(ties, key=lambda one: int(one.view(np.uint16)) & 1)


@needs_type
@pytest.mark.parametrize(("run", "step"), RUNS)
def test_conversions_round_once(run, step):
    rng = np.random.default_rng(1)
    n = 600 // step
    tie = np.float32(1) + np.float32(2) ** -8  # between two bfloat16
    f4 = (rng.choice([1, tie, 3.3, -tie, 0.1], n) * 2.0 ** rng.integers(-20, 20, n)).astype(
        np.float32
    )
    f8 = f4.astype(float) * (1 + rng.choice([0, 2.0**-40, -(2.0**-40)], n))
    i4 = rng.integers(1, 1 << 31, n, dtype=np.int32) * rng.choice(np.array([-1, 1], np.int32), n)
    i8 = (rng.integers(129, 256, n) << rng.integers(20, 54, n)) + rng.integers(-1, 2, n)
    i8 *= rng.choice([-1, 1], n)
    u8 = abs(i8).astype(np.uint64) * np.uint64(2) + np.uint64(1)
    out = np.zeros((7, n), B)
    run(rounded).forall(n)(f4, f8, i4, i8, u8, out)
    exact = [*map(list, (f4, f8, i4, i8, u8))]
    for row, (values, side) in enumerate(zip(exact, (0, 0, 0, -1, 1), strict=True)):
        wanted = np.array([nearest(Fraction(value.item()), side) for value in values], B)
        assert_bits(out[row], wanted)
    assert_bits(out[5], (f4.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).astype(B))
    a, b, c = (out[row].astype(float) for row in range(3))
    wanted = [
        nearest(Fraction(p) * Fraction(q) + Fraction(r), 0) for p, q, r in zip(a, b, c, strict=True)
    ]
    assert_bits(out[6], np.array(wanted, B))


@simt.jit
def places(x, s, out):
    t = cuda.threadIdx.x
    shared = cuda.shared.array(32, cuda.bfloat16)
    mine = cuda.local.array(1, cuda.bfloat16)
    shared[t] = x[t]
    mine[0] = s
    kept = x[t] * s
    cuda.syncthreads()
    out[0, t] = shared[31 - t] * mine[0]
    out[1, t] = kept
    out[2, t] = max(x[t], mine[0])
    out[3, t] = cuda.bfloat16(0.1) if t % 2 else cuda.bfloat16(3)
    out[4, t] = math.sqrt(cuda.bf16.habs(x[t]))
    out[5, t] = cuda.bf16.hexp(x[t])


@needs_type
@pytest.mark.parametrize(("run", "step"), RUNS)
def test_values_may_be_anywhere(run, step):
    x, s = np.random.default_rng(2).standard_normal(32).astype(B), B(1.3)
    out = np.zeros((6, 32), B)
    run(places)[1, 32](x, s, out)
    wanted = [
        x[::-1] * s,
        x * s,
        np.maximum(x, s),
        np.where(np.arange(32) % 2, B(0.1), B(3)),
        np.sqrt(abs(x)),
        np.exp(x),
    ]
    assert_bits(out, np.array(wanted, B))


@simt.jit
def to_bfloat16(out, value):
    out[0] = value


@needs_type
@pytest.mark.parametrize(
    "value", [(1 << 54) + (1 << 46) + 1, -(1 << 60) - (1 << 52) - 1, 1e300, -1e300, np.nan, 1e-44]
)
def test_python_rounds_numbers_once(value):
    for run in (simt.jit, simt.debug):
        run(to_bfloat16)[1, 1](out := np.zeros(1, B), value)
        assert_bits(
            out, np.array([nearest(Fraction(value), 0) if isinstance(value, int) else B(value)])
        )


@needs_type
def test_in_python_it_needs_ml_dtypes(monkeypatch):
    @simt.jit
    def halved(x):
        x[0] = cuda.bfloat16(x[0]) * cuda.bfloat16(0.5)

    simt.debug(halved)[1, 1](x := np.ones(1, np.float32))
    assert x[0] == 0.5
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    for run in (simt.debug, simt.check):
        with pytest.raises(
            KernelError,
            match="bfloat16 runs in Python, .*: pip install ml_dtypes, or compute in float32",
        ):
            run(halved)[1, 1](np.ones(1, np.float32))
