"""float16 in kernels: the values of NumPy, the types of numba.cuda.

No sum here has a product as an operand: some processors would fuse the two.
"""

import itertools
import math
import operator
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numba import cuda
from numba.core import types
from numba.core.registry import cpu_target

from synknumba import KernelError, simt
from synknumba.simt._entries import Entries
from synknumba.simt._maths import float16
from synknumba.simt._maths.operations import FUNCTIONS

H = np.float16
HALVES = np.arange(1 << 16).astype(np.uint16).view(H)
CORNERS = np.array(
    [
        0,
        -0.0,
        1,
        -1,
        65504,
        np.inf,
        -np.inf,
        np.nan,
        6e-8,
        -6e-8,
        6.1e-5,
        6.104e-5,
        1 / 3,
        2049,
        2.5,
        -3.5,
    ],
    H,
)

# NumPy's, of the expected values
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

halves = st.lists(
    st.tuples(st.integers(0, (1 << 16) - 1), st.integers(0, (1 << 16) - 1)),
    min_size=1,
    max_size=300,
)


def run(kernel: simt.Kernel, *args: Any) -> None:
    """Launches one thread for each element of the first argument."""
    kernel.forall(len(args[0]))(*args)


def assert_bits(got: np.ndarray, wanted: np.ndarray) -> None:
    """The same numbers, zeros of the same sign, and NaNs at the same places."""
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)
    number = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(wanted)[number])


@simt.jit
def operators(x, y, out, truth):
    i = cuda.grid(1)
    if i < x.size:
        a, b = x[i], y[i]
        out[0, i] = a + b
        out[1, i] = a - b
        out[2, i] = a * b
        out[3, i] = a / b
        out[4, i] = -a
        out[5, i] = abs(a)
        out[6, i] = +a
        c = a
        c += b
        c *= a
        c /= b
        c -= a
        out[7, i] = c
        truth[0, i] = a == b
        truth[1, i] = a != b
        truth[2, i] = a < b
        truth[3, i] = a <= b
        truth[4, i] = a > b
        truth[5, i] = a >= b
        truth[6, i] = bool(a)
        truth[7, i] = math.isnan(a)


def check_operators(x: np.ndarray, y: np.ndarray) -> None:
    out, truth = np.zeros((8, x.size), H), np.zeros((8, x.size), bool)
    run(operators, x, y, out, truth)
    wanted = [x + y, x - y, x * y, x / y, -x, abs(x), x, (x + y) * x / y - x]
    assert_bits(out, np.array(wanted))
    np.testing.assert_array_equal(
        truth, [x == y, x != y, x < y, x <= y, x > y, x >= y, x != 0, np.isnan(x)]
    )


# Without shrinking, which compiled a kernel that failed again for minutes, and hid why. The quick
# suite has the corners below.
@pytest.mark.whole
@given(halves)
@settings(max_examples=40, phases=[Phase.explicit, Phase.generate])
def test_operators_equal_numpys(pairs):
    bits = np.array(pairs, np.uint16)
    check_operators(*np.ascontiguousarray(bits.T).view(H))


def test_operators_equal_numpys_at_corners():
    pairs = np.array(list(itertools.product(CORNERS, CORNERS)))
    check_operators(*np.ascontiguousarray(pairs.T))


KINDS = (
    np.bool_,
    np.int8,
    np.uint8,
    np.int16,
    np.uint16,
    np.int32,
    np.uint32,
    np.int64,
    np.uint64,
    np.float32,
    np.float64,
)


@simt.jit
def to_half(b, i1, u1, i2, u2, i4, u4, i8, u8, f4, f8, out):
    i = cuda.grid(1)
    if i < b.size:
        out[0, i] = b[i]
        out[1, i] = i1[i]
        out[2, i] = u1[i]
        out[3, i] = i2[i]
        out[4, i] = u2[i]
        out[5, i] = i4[i]
        out[6, i] = u4[i]
        out[7, i] = i8[i]
        out[8, i] = u8[i]
        out[9, i] = f4[i]
        out[10, i] = np.float16(f8[i])


@simt.jit
def of_half(x, b, i1, u1, i2, u2, i4, u4, i8, u8, f4, f8):
    i = cuda.grid(1)
    if i < x.size:
        b[i] = x[i]
        i1[i] = x[i]
        u1[i] = x[i]
        i2[i] = x[i]
        u2[i] = x[i]
        i4[i] = np.int32(x[i])
        u4[i] = x[i]
        i8[i] = x[i]
        u8[i] = x[i]
        f4[i] = x[i]
        f8[i] = x[i]


def samples(kind: Any, count: int) -> np.ndarray:
    """Numbers of a type: all that are near the ends of its range or of float16's, midpoints of
    float16, and random ones.
    """
    rng = np.random.default_rng(0)
    if np.issubdtype(kind, np.floating):
        finite = np.sort(HALVES[np.isfinite(HALVES)].astype(kind))
        middle = (finite[1:] + finite[:-1]) / 2
        ends = [
            65519.99,
            65520,
            65520.01,
            -65520,
            1e38,
            -1e38,
            1e-30,
            -1e-30,
            np.inf,
            -np.inf,
            np.nan,
            2.0**-25,
            0.0,
            -0.0,
        ]
        ends += [1e300, -1e300, 5e-324, -1e-310] if kind is np.float64 else []
        around = [np.nextafter(middle, kind(side)) for side in (np.inf, -np.inf)]
        return rng.permutation(
            np.concatenate(
                [np.array(ends, kind), *(rng.choice(part, count) for part in (middle, *around))]
            )
        )
    if kind is np.bool_:
        return rng.integers(0, 2, count).astype(bool)
    info = np.iinfo(kind)
    small = rng.integers(0, min(info.max, 70000), count, dtype=kind)
    some = [
        info.min,
        info.max,
        0,
        *(n for n in (2049, 65519, 65520, 65521, -65520, 1 << 24) if info.min <= n <= info.max),
    ]
    return np.concatenate(
        [np.array(some, kind), small, rng.integers(info.min, info.max, count, dtype=kind)]
    )


def test_conversions_to_float16_round_as_numpys():
    values = [samples(kind, 3000) for kind in KINDS]
    values = [np.resize(value, max(map(len, values))) for value in values]
    out = np.zeros((len(KINDS), len(values[0])), H)
    run(to_half, *values, out)
    for got, value in zip(out, values, strict=True):
        assert_bits(got, value.astype(H))


def test_conversions_of_float16_equal_numpys():
    got = [np.zeros(HALVES.size, kind) for kind in KINDS]
    run(of_half, HALVES, *got)
    for kind, found in zip(KINDS, got, strict=True):
        fits = np.ones(HALVES.size, bool)
        if np.issubdtype(kind, np.integer):  # else the result is undefined
            info = np.iinfo(kind)
            fits = (HALVES.astype(float) > float(info.min) - 1) & (
                HALVES.astype(float) < float(info.max) + 1
            )
        np.testing.assert_array_equal(found[fits], HALVES[fits].astype(kind))


OPERATORS = [
    *(
        getattr(operator, name)
        for name in ("add", "sub", "mul", "truediv", "pow", "mod", "floordiv")
    ),
    operator.iadd,
]
OPERATORS += [operator.lt, operator.eq, operator.ne]
OTHERS = [
    types.boolean,
    *types.number_domain,
    types.float16,
    types.IntegerLiteral(2),
    types.complex64,
]


def result_of(context: Any, function: Any, *kinds: types.Type) -> types.Type | None:
    """The type that a target gives to a call; None if it refuses it."""
    try:
        return context.resolve_function_type(
            context.resolve_value_type(function), kinds, {}
        ).return_type
    except Exception:  # several kinds
        return None


def test_types_are_those_of_a_gpu():
    from numba.cuda.descriptor import cuda_target

    float16.register_types()
    ours, gpus = cpu_target.typing_context, cuda_target.typing_context
    gpus.refresh()
    half = types.float16
    calls = [
        (function, pair)
        for function in OPERATORS
        for other in OTHERS
        for pair in ((half, other), (other, half))
    ]
    calls += [(function, (half,)) for function in (operator.neg, abs, float)]
    names = ("sin", "cos", "log", "log2", "log10", "exp", "sqrt", "fabs", "tan", "acos", "expm1")
    calls += [(getattr(math, name), (half,)) for name in names]
    found = {
        f"{function.__name__}{kinds}": result_of(ours, function, *kinds)
        for function, kinds in calls
    }
    assert found == {
        f"{function.__name__}{kinds}": result_of(gpus, function, *kinds)
        for function, kinds in calls
    }
    assert len({*found.values()}) > 4


def test_njit_code_of_other_types_keeps_its_types():
    float16.register_types()
    context = cpu_target.typing_context
    for left, right in itertools.product(
        (types.boolean, types.int8, types.uint8, types.float32), repeat=2
    ):
        assert result_of(context, operator.add, left, right) not in {types.float16, None}


# ---- cuda.fp16


@simt.jit
def fp16(x, y, z, out, truth):
    i = cuda.grid(1)
    if i < x.size:
        a, b, c = x[i], y[i], z[i]
        out[0, i] = cuda.fp16.hadd(a, b)
        out[1, i] = cuda.fp16.hsub(a, b)
        out[2, i] = cuda.fp16.hmul(a, b)
        out[3, i] = cuda.fp16.hdiv(a, b)
        out[4, i] = cuda.fp16.hfma(a, b, c)
        out[5, i] = cuda.fp16.hneg(a)
        out[6, i] = cuda.fp16.habs(a)
        out[7, i] = cuda.fp16.hceil(a)
        out[8, i] = cuda.fp16.hfloor(a)
        out[9, i] = cuda.fp16.htrunc(a)
        out[10, i] = cuda.fp16.hrint(a)
        out[11, i] = cuda.fp16.hsqrt(a)
        out[12, i] = cuda.fp16.hrcp(a)
        out[13, i] = math.floor(a)
        out[14, i] = math.ceil(a)
        out[15, i] = math.trunc(a)
        out[16, i] = cuda.fp16.hmul(a, 2)
        truth[0, i] = cuda.fp16.heq(a, b)
        truth[1, i] = cuda.fp16.hne(a, b)
        truth[2, i] = cuda.fp16.hge(a, b)
        truth[3, i] = cuda.fp16.hgt(a, b)
        truth[4, i] = cuda.fp16.hle(a, b)
        truth[5, i] = cuda.fp16.hlt(a, b)


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """`a * b + c`, rounded once: float64 holds the product, and a sum that it rounds is near no
    midpoint of float16.
    """
    return (a.astype(np.float64) * b + c).astype(H)


@given(st.lists(st.tuples(*[st.integers(0, (1 << 16) - 1)] * 3), min_size=1, max_size=300))
@settings(max_examples=25)
def test_fp16_equals_numpy(triples):
    x, y, z = np.ascontiguousarray(np.array(triples, np.uint16).T).view(H)
    out, truth = np.zeros((17, x.size), H), np.zeros((6, x.size), bool)
    run(fp16, x, y, z, out, truth)
    wanted = [
        x + y,
        x - y,
        x * y,
        x / y,
        fma(x, y, z),
        -x,
        abs(x),
        np.ceil(x),
        np.floor(x),
        np.trunc(x),
        np.rint(x),
    ]
    wanted += [np.sqrt(x), H(1) / x, np.floor(x), np.ceil(x), np.trunc(x), x * H(2)]
    assert_bits(out, np.array(wanted))
    np.testing.assert_array_equal(truth, [x == y, x != y, x >= y, x > y, x <= y, x < y])


@simt.jit
def functions(x, out):
    i = cuda.grid(1)
    if i < x.size:
        a = x[i]
        out[0, i] = cuda.fp16.hsin(a)
        out[1, i] = cuda.fp16.hcos(a)
        out[2, i] = cuda.fp16.hexp(a)
        out[3, i] = cuda.fp16.hexp2(a)
        out[4, i] = cuda.fp16.hexp10(a)
        out[5, i] = math.sin(a)
        out[6, i] = math.cos(a)
        out[7, i] = math.exp(a)
        out[8, i] = math.tan(a)
        a = abs(a)
        out[9, i] = cuda.fp16.hlog(a)
        out[10, i] = cuda.fp16.hlog2(a)
        out[11, i] = cuda.fp16.hlog10(a)
        out[12, i] = cuda.fp16.hrsqrt(a)
        out[13, i] = math.log(a)
        out[14, i] = math.log2(a)
        out[15, i] = math.log10(a)
        out[16, i] = math.sqrt(a)
        out[17, i] = math.fabs(a)


def test_functions_are_within_a_unit_in_the_last_place():
    x = HALVES[::7].copy()
    out = np.zeros((18, x.size), H)
    run(functions, x, out)
    d = x.astype(np.float64)
    a = abs(d)
    wanted = [
        np.sin(d),
        np.cos(d),
        np.exp(d),
        np.exp2(d),
        10.0**d,
        np.sin(d),
        np.cos(d),
        np.exp(d),
        np.tan(d),
    ]
    wanted += [
        np.log(a),
        np.log2(a),
        np.log10(a),
        1 / np.sqrt(a),
        np.log(a),
        np.log2(a),
        np.log10(a),
        np.sqrt(a),
        a,
    ]
    right = np.array(wanted).astype(H)
    finite = np.isfinite(right)
    np.testing.assert_array_equal(
        out[~finite & ~np.isnan(right)], right[~finite & ~np.isnan(right)]
    )
    assert np.isnan(out[np.isnan(right)]).all()
    off = out[finite].astype(float) - np.array(wanted)[finite]
    assert (abs(off) <= np.spacing(abs(right[finite])).astype(float)).all()


@simt.jit
def extremes(x, y, out):
    i = cuda.grid(1)
    if i < x.size:
        out[0, i] = cuda.fp16.hmax(x[i], y[i])
        out[1, i] = cuda.fp16.hmin(x[i], y[i])


def test_the_extreme_of_a_number_and_a_nan_is_the_number():
    x, y = np.ascontiguousarray(np.array(list(itertools.product(CORNERS, CORNERS))).T)
    out = np.zeros((2, x.size), H)
    run(extremes, x, y, out)
    # whichever the sign of a zero
    np.testing.assert_array_equal(out, [np.fmax(x, y), np.fmin(x, y)])


def test_every_function_of_numba_is_there():
    from numba.cuda.simulator.kernelapi import FakeCUDAFp16

    names = {name for name in vars(FakeCUDAFp16) if name.startswith("h")}
    assert len(names) > 20
    assert {f"fp16.{name}" for name in names} <= {*FUNCTIONS}


# ---- CUDA's names, which numba-cuda has


@simt.jit
def directed(f, i8, out):
    i = cuda.grid(1)
    if i < f.size:
        out[0, i] = cuda.fp16.__float2half_rz(f[i])
        out[1, i] = cuda.fp16.__float2half_rd(f[i])
        out[2, i] = cuda.fp16.__float2half_ru(f[i])
        out[3, i] = cuda.fp16.__ll2half_rd(i8[i])
        out[4, i] = cuda.fp16.__ll2half_ru(i8[i])
        out[5, i] = cuda.fp16.__ll2half_rz(i8[i])


def toward(value: np.ndarray, side: np.ndarray) -> np.ndarray:
    """Numbers rounded to float16 towards a side, an infinity or zero, exactly."""
    nearest = value.astype(H)
    wide = nearest.astype(np.longdouble)
    beyond = np.where(side == 0, abs(wide) > abs(value), (wide - value) * np.sign(side) < 0)
    return np.where(beyond, np.nextafter(nearest, side.astype(H)), nearest)


@pytest.mark.whole
def test_directed_conversions():
    f = samples(np.float32, 900)
    i8 = np.resize(samples(np.int64, 300), f.size)
    out = np.zeros((6, f.size), H)
    run(directed, f, i8, out)
    sides = [np.full(f.size, side) for side in (0.0, -np.inf, np.inf)]
    wanted = [toward(f.astype(np.longdouble), side) for side in sides]
    wanted += [toward(i8.astype(np.longdouble), sides[k]) for k in (1, 2, 0)]
    assert_bits(out, np.array(wanted))


@simt.jit
def to_whole(x, i4, u8, i1):
    i = cuda.grid(1)
    if i < x.size:
        i4[0, i] = cuda.fp16.__half2int_rn(x[i])
        i4[1, i] = cuda.fp16.__half2int_rz(x[i])
        i4[2, i] = cuda.fp16.__half2int_rd(x[i])
        i4[3, i] = cuda.fp16.__half2int_ru(x[i])
        i4[4, i] = cuda.fp16.__hisinf(x[i])
        i4[5, i] = cuda.fp16.__half_as_ushort(x[i])
        u8[i] = cuda.fp16.__half2ull_rz(x[i])
        i1[i] = cuda.fp16.__half2char_rz(x[i])


@pytest.mark.whole
def test_conversions_to_integers_saturate():
    """Infinities become the ends of the range, and a NaN 0, as in CUDA."""
    x = HALVES
    i4, u8, i1 = (
        np.zeros((6, x.size), np.int32),
        np.zeros(x.size, np.uint64),
        np.zeros(x.size, np.int8),
    )
    run(to_whole, x, i4, u8, i1)
    number = np.where(np.isnan(x), 0, x.astype(float))
    ends = [float(np.iinfo(np.int32).min), float(np.iinfo(np.int32).max)]
    wanted = [np.clip(way(number), *ends) for way in (np.rint, np.trunc, np.floor, np.ceil)]
    np.testing.assert_array_equal(i4[:4], np.array(wanted).astype(np.int32))
    np.testing.assert_array_equal(i4[4], np.where(np.isinf(x), np.sign(number), 0))
    np.testing.assert_array_equal(i4[5], x.view(np.uint16))
    finite = np.isfinite(x)
    np.testing.assert_array_equal(
        u8[finite], np.maximum(np.trunc(number[finite]), 0).astype(np.uint64)
    )
    assert set(u8[np.isposinf(x)]) == {np.iinfo(np.uint64).max}
    np.testing.assert_array_equal(i1, np.clip(np.trunc(number), -128, 127).astype(np.int8))


@simt.jit
def clamped(x, y, out, truth):
    i = cuda.grid(1)
    if i < x.size:
        a, b = x[i], y[i]
        out[0, i] = cuda.fp16.__hadd_sat(a, b)
        out[1, i] = cuda.fp16.__hmul_sat(a, b)
        out[2, i] = cuda.fp16.__hfma_sat(a, b, a)
        out[3, i] = cuda.fp16.__hfma_relu(a, b, a)
        out[4, i] = cuda.fp16.__hmax_nan(a, b)
        out[5, i] = cuda.fp16.__hmin_nan(a, b)
        out[6, i] = cuda.fp16.__ushort_as_half(np.uint16(i))
        truth[0, i] = cuda.fp16.__hequ(a, b)
        truth[1, i] = cuda.fp16.__hltu(a, b)
        truth[2, i] = cuda.fp16.__hisnan(a)


@pytest.mark.whole
def test_clamped_and_unordered_functions():
    x, y = np.ascontiguousarray(np.array(list(itertools.product(CORNERS, CORNERS))).T)
    out, truth = np.zeros((7, x.size), H), np.zeros((3, x.size), bool)
    run(clamped, x, y, out, truth)
    total = fma(x, y, x)
    wanted = [np.clip(np.where(np.isnan(value), 0, value), 0, 1) for value in (x + y, x * y, total)]
    wanted += [
        np.maximum(total, 0),
        np.maximum(x, y),
        np.minimum(x, y),
        np.arange(x.size).astype(np.uint16).view(H),
    ]
    np.testing.assert_array_equal(out, np.array(wanted))
    np.testing.assert_array_equal(truth, [~((x < y) | (x > y)), ~(x >= y), np.isnan(x)])


# ---- places where a float16 may be

FIXED = np.array([1.5, -0.1, np.inf], H)
FACTOR = H(0.1)


@simt.jit
def places(x, s, pair, out):
    t = cuda.threadIdx.x
    shared = cuda.shared.array(64, types.float16)
    mine = cuda.local.array(2, np.float16)
    shared[t] = x[t]
    mine[0], mine[1] = s, pair[1]
    cuda.syncthreads()
    n = 32
    while n > 0:
        if t < n:
            shared[t] += shared[t + n]
        cuda.syncthreads()
        n //= 2
    out[0, t] = shared[0]
    out[1, t] = (mine[0] + mine[1]) * pair[0]
    out[2, t] = FIXED[t % 3] * FACTOR
    out[3, t] = cuda.shfl_xor_sync(0xFFFFFFFF, x[t], 3)
    out[4, t] = cuda.shfl_down_sync(0xFFFFFFFF, x[t], t % 2)
    out[5, t] = cuda.selp(t > 3, x[t], s)
    out[6, t] = max(x[t], s) + min(x[t], s)
    out[7, t] = np.complex64(x[t]).real
    out[8, t] = float(x[t])
    out[9, t] = 2.1 if t else 3


def test_values_may_be_anywhere():
    x = np.random.default_rng(3).standard_normal(64).astype(H)
    s, pair, out = H(1.3), (H(0.7), H(-2.2)), np.zeros((10, 64), H)
    places[1, 64](x, s, pair, out)
    total, n, lane = x.copy(), 32, np.arange(64)
    while n:
        total[:n] += total[n : 2 * n]
        n //= 2
    down = np.where(lane % 32 == 31, lane, lane + lane % 2)
    wanted = [
        np.full(64, total[0]),
        np.full(64, (s + pair[1]) * pair[0]),
        FIXED[lane % 3] * FACTOR,
        x[lane ^ 3],
        x[down],
    ]
    wanted += [np.where(lane > 3, x, s), x + s, x, x, np.where(lane, H(2.1), H(3))]
    assert_bits(out, np.array(wanted))


@simt.jit
def atomics(x, out):
    i = cuda.grid(1)
    cuda.atomic.add(out, (0, i % 2), x[i])
    cuda.atomic.max(out, (1, 0), x[i])
    cuda.atomic.min(out, (1, 1), x[i])
    if i == 0:
        out[2, 0] = cuda.atomic.exch(out, (2, 1), x[0])
        out[3, 0] = cuda.atomic.cas(out, (3, 1), 0, x[1])
        cuda.atomic.sub(out, (4, 0), x[2])
        cuda.atomic.add(out, (4, 1), 2)
        cuda.atomic.nanmax(out, (5, 0), x[3])


def test_atomics_change_float16_arrays():
    # whole numbers: their sums are exact in any order
    x = np.random.default_rng(4).integers(-8, 8, 64).astype(H)
    out = np.zeros((6, 2), H)
    out[5] = np.nan
    atomics[2, 32](x, out)
    wanted = [
        [x[::2].sum(), x[1::2].sum()],
        [x.max(), x.min()],
        [0, x[0]],
        [0, x[1]],
        [-x[2], 2],
        [x[3], np.nan],
    ]
    assert_bits(out, np.array(wanted, H))


@simt.jit("void(float16[:], float16, float16[:])")
def declared(x, s, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = scaled(x[i], s)


@simt.jit("float16(float16, float16)", device=True)
def scaled(x, s):
    return (x + np.float16(1)) * s


def test_declared_signatures_convert_to_float16():
    x = np.arange(8).astype(H)
    for scalar in (3, 2.1, H(0.3)):
        out = np.zeros(8, H)
        run(declared, x, scalar, out)
        assert_bits(out, (x + H(1)) * H(scalar))


@simt.jit(debug=True)
def checked(x, out):
    i = cuda.grid(1)
    out[i] = x[i] / x[0]


@pytest.mark.whole
def test_debug_mode_checks_divisions_of_float16():
    x, out = np.array([2, 3], H), np.zeros(2, H)
    checked[1, 2](x, out)
    assert_bits(out, x / x[0])


@simt.jit
def named_in_the_body(x, out):
    i = cuda.grid(1)
    if i < x.size:
        half = np.float16(x[i])
        out[i] = half * half


@simt.jit
def fields(records):
    i = cuda.grid(1)
    records[i].half = i + 0.1
    records[i].single = records[i].half * records[i].half


def test_float16_in_the_body_only():
    x = np.random.default_rng(5).standard_normal(50)
    out = np.zeros(50)
    run(named_in_the_body, x, out)
    assert_bits(out, (x.astype(H) * x.astype(H)).astype(float))
    records = np.zeros(3, [("half", H), ("single", np.float32)])
    fields[1, 3](records)
    half = (np.arange(3) + 0.1).astype(H)
    np.testing.assert_array_equal(records["half"], half)
    np.testing.assert_array_equal(records["single"], (half * half).astype(np.float32))


@pytest.mark.parametrize("kernel", [operators, named_in_the_body], ids=["argument", "body"])
def test_processors_without_conversions_refuse_by_name(
    kernel: simt.Kernel, monkeypatch: pytest.MonkeyPatch
):
    fresh = simt.jit(kernel.py_func, cache=False)
    monkeypatch.setattr(float16, "problem", lambda: "the processor has no F16C instructions")
    monkeypatch.setattr(float16, "is_represented", lambda: False)
    args: tuple[Any, ...] = (np.zeros(4), np.zeros(4))
    if kernel is operators:
        args = (np.zeros(4, H), np.zeros(4, H), np.zeros((8, 4), H), np.zeros((8, 4), bool))
    else:
        error = NotImplementedError("float16")
        monkeypatch.setattr(Entries, "_build", Raises(error))
    with pytest.raises(
        KernelError,
        match=r"float16 \(the processor has no F16C instructions\) is not supported on the CPU",
    ):
        run(fresh, *args)


class Raises:
    """A method that raises an error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __call__(self, *_args: Any) -> Any:
        raise self._error


SCRIPT = """
import sys
import numpy as np
from numba import cuda
from synknumba import simt

@simt.jit
def kernel(x, s, out):
    i = cuda.grid(1)
    out[i] = x[i] * s

out = np.zeros(3, np.float16)
kernel[1, 3](np.array([1, 2.5, np.inf], np.float16), np.float16(0.1), out)
print(out.view(np.uint16).tolist(), kernel.cache_info.hits, "numba.core.boxing" in sys.modules)
"""


@pytest.mark.whole
def test_loaded_kernels_take_float16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SYNKNUMBA_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    told = [
        subprocess.run(
            [sys.executable, path], capture_output=True, text=True, check=True
        ).stdout.strip()
        for _ in "ab"
    ]
    bits = (np.array([1, 2.5, np.inf], H) * H(0.1)).view(np.uint16).tolist()
    assert told == [f"{bits} 0 True", f"{bits} 1 False"]


AFTER_NUMBA_CUDA = """
import numpy as np
from numba import cuda
from synknumba import simt


def scaled(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = float(x[i]) * 2.0


x, out = np.arange(3, dtype=np.float16), np.zeros(3)
simt.jit(scaled)[1, 4](x, out)
import numba.cuda.cudaimpl
simt.jit("void(float16[:], float64[:])")(scaled)[1, 4](x, out)
print(out.tolist())
"""


@pytest.mark.whole
def test_numba_cuda_that_compiles_afterwards_changes_nothing(tmp_path: Path):
    """Its conversions of float16 are registered for all targets, when it first compiles."""
    path = tmp_path / "script.py"
    path.write_text(AFTER_NUMBA_CUDA)
    env = {**os.environ, "SYNKNUMBA_CACHE": "0"}
    shown = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, check=True, env=env
    ).stdout
    assert shown == "[0.0, 2.0, 4.0]\n"


@pytest.mark.parametrize("make", [simt.debug, simt.check], ids=["debug", "check"])
def test_kernels_in_python_compute_the_same(make: Callable[[Any], Any]):
    x, y, z = np.random.default_rng(6).choice(CORNERS, (3, 32))
    cases = [(operators, (x, y, np.zeros((8, 32), H), np.zeros((8, 32), bool)))]
    cases += [(fp16, (x, y, z, np.zeros((17, 32), H), np.zeros((6, 32), bool)))]
    cases += [
        (extremes, (x, y, np.zeros((2, 32), H))),
        (named_in_the_body, (x.astype(float), np.zeros(32))),
    ]
    for kernel, args in cases:
        ours, pythons = ([arg.copy() for arg in args] for _ in "ab")
        run(kernel, *ours)
        make(kernel)[1, 32](*pythons)
        for got, wanted in zip(pythons, ours, strict=True):
            np.testing.assert_array_equal(got, wanted)
