"""Device functions: declared types, parameters that are constants, dtypes or functions, lambdas,
vectors.
"""

import math
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numba import complex64, cuda, float32, float64, int8, int16, int32, njit, uint8
from numba.core.errors import TypingError

from synknumba import KernelError, simt
from synknumba.simt._lower.thread_code import ThreadCode
from synknumba.simt._machine.fingerprint import Fingerprint
from tests.quick import whole
from tests.unit.simt.written import defined, thread_code

RUNS = [pytest.param(simt.jit, id="jit"), pytest.param(simt.check, id="check")]
Run = Callable[[Any], Any]


# ---- declared types

PAIRS = [(2.875, np.int8(-3)), (2**40 + 3, np.float32(1.75))]  # products with 1.75 are exact


def scaled(v, w):
    return v * 1.75 + w


ONE = [
    "int32(int32, int32)",
    "float32(float32, int8)",
    "int8(float64, float64)",
    "(int64, uint8)",
    "boolean(float64, int16)",
]
SEVERAL = [
    ["int64(int64, int64)", "float64(float64, float64)"],
    ["float32(float32, float32)", "float64(float64, float64)", "int16(int16, int16)"],
    ["(float32, float64)", "(float64, float32)", "(int64, int64)"],
    [int32(int32, float32), float64(int32, float64), int8(uint8, int16)],
]


@pytest.mark.parametrize(
    "signatures", [*whole(*ONE[:3]), *ONE[3:], *whole(*SEVERAL[:2]), *SEVERAL[2:]], ids=str
)
def test_arguments_and_result_have_the_declared_types(signatures: Any) -> None:
    """As in a call of a function that Numba has compiled for these signatures only."""
    called = simt.jit(signatures, device=True)(scaled)

    @simt.jit(signatures, device=True)
    def pasted(v, w):
        cuda.syncthreads()
        return v * 1.75 + w

    compiled = njit(signatures)(scaled)

    @njit
    def expected(v, w, out):
        out[0], out[1], out[2], out[3] = (
            compiled(v, w),
            compiled(v, w),
            compiled(3, v),
            compiled(w, True),
        )

    @simt.jit
    def kernel(v, w, out):
        out[0], out[1], out[2], out[3] = called(v, w), pasted(v, w), called(3, v), called(w, True)

    for v, w in PAIRS:
        of_numba = np.zeros(4)
        expected(v, w, of_numba)
        for run in (simt.jit, simt.check):
            out = np.zeros(4)
            run(kernel)[1, 1](v, w, out)
            assert np.array_equal(out, of_numba), (v, w, run)


def test_the_declared_type_of_the_result_counts_in_what_follows() -> None:
    @simt.jit("int8(int8)", device=True)
    def wrapped(v):
        return v * 2

    @simt.jit("complex64(float64)", device=True)
    def turned(v):
        return v * 1j

    @simt.jit
    def kernel(out):
        out[0] = wrapped(100) + turned(0.1).imag

    out = np.zeros(1)
    kernel[1, 1](out)
    assert out[0] == (200 - 256) + np.float32(0.1)


def test_arrays_stay_what_they_are() -> None:
    @simt.jit("float32(float32[:], int32, float32[:, :])", device=True)
    def first(s, k, table):
        cuda.syncthreads()
        s[k] += 1
        return s[k] + table[0, 0]

    @simt.jit([(float32[:], int32), (float32[:], float32)], device=True)
    def stored(s, v):
        s[0] = v
        cuda.syncthreads()
        return s[0] * 2

    @simt.jit
    def kernel(table, out):
        s = cuda.shared.array(4, float32)
        s[1] = 5
        out[0] = first(s, 1.9, table)
        out[1] = stored(s, np.float32(1.5))
        out[2] = stored(s, np.int16(3))

    out = np.zeros(3)
    kernel[1, 1](np.ones((2, 2), np.float32), out)
    assert out.tolist() == [7, 3, 6]


def test_a_declared_function_that_calls_itself() -> None:
    @simt.jit("int32(float64)", device=True)
    def halvings(v):
        if v < 1:
            return 0.9
        return halvings(v / 2) + 1.9

    @simt.jit
    def kernel(x, out):
        out[cuda.grid(1)] = halvings(x[cuda.grid(1)]) + cuda.threadIdx.x * 0

    def expected(v: float) -> int:
        return 0 if v < 1 else int(expected(v / 2) + 1.9)

    x, out = np.array([0.5, 3, 100, 7.0]), np.zeros(4)
    kernel[1, 4](x, out)
    assert out.tolist() == [expected(v) for v in x]


@pytest.mark.parametrize("made", [njit, simt.jit(device=True)], ids=["njit", "device"])
@pytest.mark.parametrize("run", RUNS)
def test_a_function_of_no_module(run: Run, made: Run) -> None:
    """As `exec` makes one in a scope without a `__name__`."""
    plain = defined("def half(v):\n    return v * 0.5", "half", __name__=None)
    assert plain.__module__ is None
    half = made(plain)

    def kernel(x):
        x[cuda.grid(1)] = half(x[cuda.grid(1)])

    x = np.arange(2.0)
    run(kernel)[1, 2](x)
    assert x.tolist() == [0, 0.5]


def test_an_njit_function_with_a_signature() -> None:
    f = njit("int32(int32)")(lambda v: v * 1.5)

    @simt.jit
    def kernel(out):
        out[0] = f(3.9)

    for run in (simt.jit, simt.check):
        out = np.zeros(1)
        run(kernel)[1, 1](out)
        assert out[0] == f(3.9) == 4


def test_the_same_function_with_other_signatures() -> None:
    small, large = (
        simt.jit("int8(int8)", device=True)(doubled),
        simt.jit("int16(int16)", device=True)(doubled),
    )
    free = simt.jit(device=True)(doubled)

    @simt.jit
    def kernel(out):
        out[0], out[1], out[2] = small(100.5), large(100.5), free(100.5)

    out = np.zeros(3)
    kernel[1, 1](out)
    assert out.tolist() == [200 - 256, 200, 201]


def doubled(v):
    return v + v


def test_no_signature_fits() -> None:
    f = simt.jit(["(int64, int64)", "(float64, float64)"], device=True)(scaled)

    @simt.jit
    def kernel(v, out):
        out[0] = f(v, v)

    with pytest.raises(
        TypingError, match=r"Invalid use of type(.|\n)*with parameters \(complex128, complex128\)"
    ):
        kernel[1, 1](1j, np.zeros(1, np.complex128))


def test_a_signature_of_another_length() -> None:
    f = simt.jit("int32(int32)", device=True)(scaled)

    @simt.jit
    def kernel(out):
        out[0] = f(1, 2)

    with pytest.raises(KernelError, match=r"a signature of 1 arguments for scaled\(v, w\)"):
        kernel.check()


def test_signatures_count_in_the_key_of_the_cache() -> None:
    given = [
        None,
        "int8(int8)",
        "int16(int8)",
        "(int8,)",
        ["int8(int8)", "int16(int16)"],
        ["int16(int16)", "int8(int8)"],
    ]
    digests = {Fingerprint(simt.jit(one, device=True)(doubled)).hexdigest() for one in given}
    assert len(digests) == len(given)
    again = simt.jit("int8(int8)", device=True)(doubled)
    assert Fingerprint(again).hexdigest() in digests


def test_signatures_are_pickled() -> None:
    f = pickle.loads(pickle.dumps(simt.jit(["int8(int8)", "(int16,)"], device=True)(doubled)))
    assert [(one.args, one.result) for one in f.signatures_given] == [
        ((int8,), int8),
        ((int16,), None),
    ]


# ---- constants, dtypes and functions as arguments


@simt.jit(device=True)
def reversed_through(x, n, dtype, op=max):
    s = cuda.shared.array(n, dtype)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncthreads()
    found = op(s[n - 1 - t], s[t])
    cuda.syncthreads()
    return found


@njit
def minus(a, b):
    return a - b


@simt.jit(device=True)
def both(x, n, op):
    """Passes its parameters on."""
    half = n // 2
    return reversed_through(x, half * 2, float64, op) + reversed_through(
        x=x, n=n, dtype=np.int32, op=minus
    )


@pytest.mark.parametrize("run", RUNS)
def test_shapes_dtypes_and_functions_are_passed_on(run: Run) -> None:
    size = 6

    @simt.jit
    def kernel(x, out):
        t, n = cuda.threadIdx.x, 6
        out[0, t] = reversed_through(x, n, float32)
        out[1, t] = reversed_through(x, size, "int16", minus)
        out[2, t] = reversed_through(op=math.pow, x=x, n=2 * 3, dtype=np.dtype("f4"))
        out[3, t] = both(x, size, min)

    x, out = np.arange(1.0, 7), np.zeros((4, 6))
    run(kernel)[1, 6](x, out)
    np.testing.assert_allclose(out[0], np.maximum(x, x[::-1]))
    np.testing.assert_allclose(out[1], x[::-1] - x)
    np.testing.assert_allclose(out[2], x[::-1] ** x, rtol=1e-6)
    np.testing.assert_allclose(out[3], np.minimum(x, x[::-1]) + (x[::-1] - x))


@simt.jit(device=True)
def applied(op, v):
    return op(v)


@simt.jit(device=True)
def applied_twice(op, v):
    return applied(op, applied(op, v))


@simt.jit("int32(float64)", device=True)
def cut(v):
    return v


@simt.jit(device=True)
def of_the_block(v):
    return cuda.syncthreads_count(v > 2) + cuda.blockDim.x


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (cut, lambda v: v.astype(np.int32)),
        (simt.jit(device=True)(lambda v: v * v), lambda v: v**4),
        (njit(lambda v: v + 1), lambda v: v + 2),
        (math.floor, np.floor),
        (abs, np.abs),
        (int16, lambda v: v.astype(np.int16)),
        (np.float32, lambda v: v.astype(np.float32)),
        (of_the_block, lambda _: np.full(4, 4 + 4)),
        (cuda.cbrt, lambda v: np.cbrt(np.cbrt(v))),
    ],
    ids=["declared", "lambda", "njit", "math", "builtin", "type", "numpy type", "barrier", "cuda"],
)
def test_a_function_gets_a_function(op: Any, expected: Callable[[Any], Any]) -> None:
    @simt.jit
    def kernel(x, out):
        out[cuda.grid(1)] = applied_twice(op, x[cuda.grid(1)])

    x, out = np.array([0.3, 1.9, 3.7, 9.2]), np.zeros(4)
    kernel[1, 4](x, out)
    np.testing.assert_allclose(out, expected(x), rtol=1e-6)


def test_other_constants_make_another_function_and_the_same_do_not() -> None:
    code: ThreadCode = thread_code(
        defined(
            """
            @cuda.jit(device=True)
            def total(v, n, dtype):
                a = cuda.local.array(n, dtype)
                a[n - 1] = v
                return a[n - 1] + n

            def kernel(x, m):
                k = 4
                x[0] = total(x[1], 4, float32) + total(x[2], k, float32) + total(x[3], 2 + 2, np.float32)
                x[4] = total(x[1], 5, float32) + total(x[1], 4, int32)
            """  # noqa: E501
        )
    )
    assert sorted(name for name in code.namespace if "total" in name) == [
        f"_k_total{end}" for end in ("_", "__1", "__2", "__3")
    ]


def test_a_recursion_over_a_constant_ends_or_is_refused() -> None:
    @simt.jit(device=True)
    def endless(v, n):
        a = cuda.local.array(n, float32)
        a[0] = v
        return a[0] if v < 0 else endless(v - 1, n + 1)

    @simt.jit
    def kernel(x):
        x[0] = endless(x[0], 1)

    with pytest.raises(
        KernelError, match="called with more than 32 different shapes, dtypes or functions"
    ):
        kernel.check()


def test_a_shape_that_is_not_known_is_refused_where_it_is_used() -> None:
    @simt.jit
    def kernel(x, n):
        x[cuda.threadIdx.x] = reversed_through(x, n, float32)

    with pytest.raises(
        KernelError, match=r"reversed_through \(.*shape not made of positive integer constants"
    ):
        kernel.check()


def test_a_dtype_that_is_known_too_late_is_refused() -> None:
    @simt.jit
    def kernel(x, y):
        dtype = y.dtype
        if x[0] > 0:
            dtype = x.dtype
        x[cuda.threadIdx.x] = reversed_through(x, 4, dtype)

    @simt.jit
    def of_an_argument(x, y):
        x[cuda.threadIdx.x] = reversed_through(x, 4, y.dtype)

    with pytest.raises(
        KernelError, match=r"kernel \(.*a shared array whose dtype is in the variable 'dtype'"
    ):
        kernel.check()
    x = np.arange(4.0)
    of_an_argument[1, 4](x, np.zeros(1, np.int8))
    assert x.tolist() == [3, 2, 2, 3]


def test_a_parameter_with_a_declared_type_and_a_constant() -> None:
    @simt.jit("float64(float64, int32)", device=True)
    def stored(v, n):
        a = cuda.local.array(n, float32)
        a[n - 1] = v
        return a[n - 1] * cuda.clz(n)

    @simt.jit
    def kernel(out):
        out[0] = stored(1.5, 4)

    out = np.zeros(1)
    kernel[1, 1](out)
    assert out[0] == 1.5 * 29


# ---- lambdas

BIAS = 3
PAIR = [
    simt.jit(device=True)(f)
    for f in ((lambda a, b: a + b), (lambda a, b: a * b + BIAS), (lambda a, b: 7), (lambda c: -c))
]


def made_for(factor: float) -> tuple[Any, Any, Any]:
    return (
        simt.jit(lambda a: (
            a
            * factor
        ), device=True),
        simt.jit(device=True)(
            lambda a:
                a - factor if a > factor else factor),
        simt.jit(device=True)(
            (lambda f: lambda a, b=2: (lambda c: f * b)(0) if a is None else a * b)(factor)),
    )  # fmt: skip


def test_lambdas_are_found_in_their_statements() -> None:
    plus, times, seven, minus_ = PAIR
    scaled_, beyond, twice = made_for(2.5)

    @simt.jit
    def kernel(out):
        out[0], out[1], out[2], out[3] = plus(2, 5), times(2, 5), seven(2, 5), minus_(4)
        out[4], out[5], out[6], out[7], out[8] = (
            scaled_(3),
            beyond(3),
            beyond(-1),
            twice(4),
            twice(4, 0.5),
        )

    expected = [7, 13, 7, -4, 7.5, 0.5, 2.5, 8, 2]
    for run in (simt.jit, simt.check):
        out = np.zeros(9)
        run(kernel)[1, 1](out)
        assert out.tolist() == expected


def test_lambdas_that_cannot_be_told_apart_are_refused() -> None:
    first, second = (lambda a: a + 1), (lambda a: a + 2)
    # as with `python -X no_debug_ranges`, which leaves no columns
    code = first.__code__.replace(co_linetable=b"")
    first.__code__ = code.replace(co_firstlineno=second.__code__.co_firstlineno)
    f = simt.jit(device=True)(first)

    @simt.jit
    def kernel(out):
        out[0] = f(1)

    with pytest.raises(KernelError, match="several lambdas on this line match"):
        kernel.check()


# ---- the types of indices


@pytest.mark.parametrize("run", RUNS)
def test_indices_have_32_bits_and_positions_64(run: Run) -> None:
    @simt.jit(["int32(int32)", "int64(int64)"], device=True)
    def zeros(v):
        return cuda.clz(v)

    @simt.jit
    def kernel(out):
        t, i = cuda.threadIdx.x, cuda.grid(1)
        same = t
        out[i, 0], out[i, 1] = cuda.clz(same), cuda.clz(i)
        out[i, 2], out[i, 3] = cuda.clz(cuda.laneid), cuda.clz(cuda.blockDim.x)
        out[i, 4], out[i, 5] = zeros(t), zeros(i)
        out[i, 6], out[i, 7] = cuda.brev(t), cuda.ffs(t)
        out[i, 8], out[i, 9] = cuda.popc(cuda.threadIdx.x), cuda.clz(t + i)

    out = np.zeros((12, 10), np.int64)
    run(kernel)[2, 6](out)
    for i in range(12):
        t = i % 6
        first = (t & -t).bit_length()
        bits = [
            32 - t.bit_length(),
            64 - i.bit_length(),
            32 - t.bit_length(),
            29,
            32 - t.bit_length(),
            64 - i.bit_length(),
        ]
        assert out[i].tolist() == [
            *bits,
            int(f"{t:032b}"[::-1], 2),
            first,
            t.bit_count(),
            64 - (t + i).bit_length(),
        ]


# ---- vector types


def test_vectors_live_across_barriers() -> None:
    @simt.jit(device=True)
    def with_first(v, s):
        cuda.syncthreads()
        return cuda.float32x3(v, s[0])

    @simt.jit
    def kernel(x, out):
        s = cuda.shared.array(64, float32)
        t = cuda.threadIdx.x
        v = cuda.float32x4(t, t + 1, x[t], 2 * t)
        s[t] = v.x + 1
        if t < 32:
            w = cuda.float32x2(t, x[t])
        else:
            w = cuda.float32x2(x[t], t)
        cuda.syncthreads()
        u = cuda.float32x2(s[63 - t], v.w)
        cuda.syncthreads()
        for _ in range(3):
            u = cuda.float32x2(u.y, u.x)
            cuda.syncthreads()
        r = with_first(w, s)
        out[0, t], out[1, t], out[2, t] = v.z, u.x, u.y
        out[3, t], out[4, t], out[5, t] = r.x, r.y, r.z

    t, x, out = np.arange(64), np.arange(64) * 0.5, np.zeros((6, 64))
    kernel[1, 64](x, out)
    expected = [x, 2 * t, 64 - t, np.where(t < 32, t, x), np.where(t < 32, x, t), np.ones(64)]
    assert np.array_equal(out, expected)


def test_vectors_are_not_shuffled() -> None:
    @simt.jit
    def kernel(out):
        v = cuda.float32x2(1, 2)
        out[0] = cuda.shfl_down_sync(0xFFFFFFFF, v, 1).x

    with pytest.raises(TypingError, match="shfl_down_sync needs numbers"):
        kernel[1, 32](np.zeros(1))


def test_complex_results_are_not_made_real() -> None:
    f = simt.jit(int32(complex64), device=True)(lambda v: v)

    @simt.jit
    def kernel(out):
        out[0] = f(1.5)

    with pytest.raises(Exception, match="complex64 to int32"):
        kernel[1, 1](np.zeros(1))


@simt.jit(device=True)
def is_even(n):
    return True if n == 0 else is_odd(n - 1)


@simt.jit(device=True)
def is_odd(n):
    return False if n == 0 else is_even(n - 1)


@simt.jit
def parities(n, out):
    i = cuda.grid(1)
    out[i] = is_even(n[i])


def test_a_recursion_that_is_too_deep_for_the_stack_is_an_error() -> None:
    def launches() -> None:
        for _ in range(2):
            parities[1, 4](n, out := np.zeros(4))
            np.testing.assert_array_equal(out, n % 2 == 0)
            with pytest.raises(
                RecursionError,
                match=r"is_(even|odd) \(.*test_device_functions.py:\d+\) calls itself",
            ) as caught:
                parities[1, 1](np.array([10**8]), np.zeros(1))
            assert caught.value.__notes__[0].startswith("in a launch of <simt kernel parities (")

    n = np.arange(1000, 1004)
    launches()
    # a thread's stack is elsewhere, and may be smaller than the process's
    for nbytes in (
        0,
        512 << 10,
    ):
        before = threading.stack_size(nbytes)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(launches).result()
        threading.stack_size(before)
        launches()


def test_a_recursion_over_ever_other_types_is_refused() -> None:
    @simt.jit(device=True)
    def grow(x, n):
        return grow((x, x), n - 1) if n > 0 else 1.0

    @simt.jit
    def kernel(x):
        x[0] = grow(x[0], 3)

    with pytest.raises(
        KernelError,
        match=r"kernel \(.*\): a recursion with other types .* of grow\(\) \(.*write a loop",
    ):
        kernel[1, 1](np.zeros(1))
