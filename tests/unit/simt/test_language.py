"""What kernels may say beyond the plainest Python, against the same text run by Python."""

import io
import pickle
import subprocess
import sys
from fractions import Fraction
from types import ModuleType
from typing import Any

import cloudpickle
import numba
import numpy as np
import pytest
from numba import cuda, float64

from synknumba import simt
from synknumba._errors import KernelError
from tests.quick import whole
from tests.unit.simt.written import alone, defined

# ---- round


def round_both(x, y, digits, outs, outd):
    i = cuda.grid(1)
    if i < x.size:
        outs[i] = round(x[i], digits)
        outd[i] = round(y[i], digits)


def scaled_and_rounded(x: float, digits: int) -> float:
    """CUDA's rule for a few digits: scale, round half to even, scale back; each step of it once,
    in exact fractions.
    """
    ten = Fraction(10) ** abs(digits)
    y = float(Fraction(x) * ten if digits >= 0 else Fraction(x) / ten)
    whole = Fraction(round(y))  # exact, half to even
    return float(whole / ten if digits >= 0 else whole * ten)


@pytest.mark.parametrize("digits", [-2, 0, 1, 2, 3, 6])
def test_round_scales_in_float64(digits):
    rng = np.random.default_rng(0)
    x = np.concatenate([[0.3425, 0.125, 2.5, -2.5, 0.45, 1234.5, -0.001], rng.normal(0, 100, 100)])
    x32 = x.astype(np.float32)
    outs, outd = np.zeros_like(x32), np.zeros_like(x)
    simt.jit(round_both)[4, 32](x32, x, digits, outs, outd)
    np.testing.assert_array_equal(
        outs, np.array([scaled_and_rounded(float(v), digits) for v in x32], np.float32)
    )
    np.testing.assert_array_equal(outd, np.array([scaled_and_rounded(float(v), digits) for v in x]))


def test_round_gives_what_cuda_gives_at_the_ends():
    x = np.array([np.inf, -np.inf, np.nan, np.finfo(np.float64).max, 1e200, -0.2])
    outs, outd = np.zeros(x.size, np.float32), np.zeros_like(x)
    with np.errstate(over="ignore"):
        x32 = x.astype(np.float32)
    simt.jit(round_both)[1, 8](x32, x, 12, outs, outd)
    np.testing.assert_array_equal(
        outd[:5], [np.inf, -np.inf, np.nan, np.finfo(np.float64).max, 2.0**63 / 1e12]
    )
    simt.jit(round_both)[1, 8](x32, x, 0, outs, outd)
    assert outd[5] == 0
    assert not np.signbit(outd[5])  # an int64 on the way


def test_the_debugger_rounds_as_the_kernel_does():
    x = np.random.default_rng(1).normal(0, 1, 16)
    compiled = [np.zeros(16, np.float32), np.zeros(16)]
    python = [np.zeros(16, np.float32), np.zeros(16)]
    simt.jit(round_both)[1, 16](x.astype(np.float32), x, 3, *compiled)
    simt.debug(round_both)[1, 16](x.astype(np.float32), x, 3, *python)
    for got, expected in zip(python, compiled, strict=True):
        np.testing.assert_array_equal(got, expected)


# ---- the same text by Python

PLAIN = {
    "for/else": """
        def kernel(x, out):
            for k in range(x.size):
                if x[k] > 3:
                    out[0] = k
                    break
            else:
                out[0] = -1
            for k in range(3):
                if x[k] > 100:
                    break
            else:
                out[1] = 7
            for k in range(3):
                out[2] += k
            else:
                out[3] = 8
        """,
    "for/else, left by a break in an else": """
        def kernel(x, out):
            for k in range(x.size):
                if x[k] <= 3:
                    out[0] += 1
                elif x[k] > 8:
                    out[1] += 1
                else:
                    break
            else:
                out[2] = 7
        """,
    "while/else": """
        def kernel(x, out):
            k = 0
            while k < x.size:
                if x[k] > 3:
                    break
                k += 1
                if k == 2:
                    continue
            else:
                out[0] = -1
            out[1] = k
            while k > 0:
                k -= 1
            else:
                out[2] = 5
        """,
    "a loop left from the else of another": """
        def kernel(x, out):
            for i in range(4):
                for j in range(4):
                    if x[i] > x[j] + 1:
                        out[0] += 1
                        break
                else:
                    out[1] += 10
                    if i > 1:
                        break
            else:
                out[2] = 1
        """,
    "a return in a loop with else": """
        def kernel(x, out):
            for k in range(4):
                if x[k] > 2:
                    out[0] = k
                    return
            else:
                out[1] = 1
            out[2] = 1
        """,
    "an inner function": """
        def kernel(x, out):
            bias = x[0]
            def add(v, more=2):
                return v + bias + more
            out[0] = add(x[1])
            bias += 1
            out[1] = add(x[2], 5) + add(more=1, v=x[3])
        """,
    "inner functions that call each other": """
        def kernel(x, out):
            a = x[1]
            n = 3
            def first(v):
                return v * a + n
            def second(v):
                def third(w):
                    return w + first(v) + a
                total = 0.0
                for k in range(n):
                    total += third(v + k)
                return total
            out[0] = second(x[2])
            a = x[3]
            out[1] = second(x[0])
        """,
    "an inner function that calls itself": """
        def kernel(x, out):
            top = x[3]
            def power(n):
                if n == 0:
                    return 1.0
                return top * power(n - 1)
            out[0] = power(3)
        """,
    "an inner function that writes": """
        def kernel(x, out):
            def put(k, v):
                if v < 0:
                    return
                out[k] = v + x[k]
            for k in range(3):
                put(k, k - 1)
        """,
    "lambdas": """
        def kernel(x, out):
            square = lambda v: v * v
            scale = x[1]
            out[0] = square(x[2]) + (lambda v, w=2: v * scale + w)(x[3])
            pick = lambda: square(scale)
            out[1] = pick()
        """,
    "an inner function with the name of a global": """
        def kernel(x, out):
            def float64(v):
                return v + 1
            out[0] = float64(x[0])
        """,
    "a tuple unpacked into another": """
        def kernel(x, out):
            a = (x[0], x[1])
            b = (*a, x[2])
            c = *b, 3, *a
            out[0], out[1] = b[2], len(c)
            out[2] = max(*a) + c[3]
            d, e = *a,
            out[3] = d - e
        """,
    "a tuple unpacked into arguments": """
        @cuda.jit(device=True)
        def weighted(a, b, c, d=1):
            return a + 10 * b + 100 * c + 1000 * d

        @cuda.jit(device=True)
        def three(a, b, c):
            return a - b * c

        def kernel(x, out):
            pair = (x[1], x[2])
            out[0] = weighted(x[0], *pair)
            out[1] = weighted(*pair, x[3], d=2) + three(x.size, *pair)
            triple = (*pair, x[0])
            out[2] = three(*triple)
        """,
    "bits": """
        def kernel(x, out):
            n = x.size * 7
            out[0] = n.bit_count() + (x.size + 3).bit_count()
        """,
}


FURTHER = (
    "inner functions that call each other",
    "an inner function that calls itself",
    "an inner function that writes",
    "an inner function with the name of a global",
    "a tuple unpacked into another",
)


@pytest.mark.parametrize(
    "case", [*whole(*FURTHER), *(case for case in PLAIN if case not in FURTHER)]
)
def test_a_thread_does_what_python_does(case):
    text = PLAIN[case]
    for x in (
        np.array([1.0, 2, 0.5, 3]),
        np.array([1.0, 7, 2, 9]),
        np.zeros(4),
        np.array([5.0, 1, 1, 1]),
    ):
        expected, got, shown = np.zeros(4), np.zeros(4), np.zeros(4)
        alone(text)(x, expected)
        simt.jit(defined(text))[1, 1](x, got)
        np.testing.assert_array_equal(got, expected)
        simt.debug(defined(text))[1, 1](x, shown)
        np.testing.assert_array_equal(shown, expected)


def search(x, limit, found, sums):
    tile = cuda.shared.array(32, float64)
    t = cuda.threadIdx.x
    row = cuda.blockIdx.x
    for k in range(x.shape[1]):
        tile[t] = x[row, (t + k) % x.shape[1]]
        cuda.syncthreads()
        if tile[0] > limit:
            found[row, t] = k
            break
        cuda.syncthreads()
    else:
        found[row, t] = -1
    cuda.syncthreads()

    def neighbour(step, scale=2.0):
        tile[t] = x[row, t]
        cuda.syncthreads()
        value = tile[(t + step) % 32] * scale
        cuda.syncthreads()
        return value

    sums[row, t] = neighbour(1) + neighbour(3, 0.5)


@pytest.mark.parametrize("order", ["forward", *whole("reverse")])
def test_else_and_inner_functions_around_barriers(order):
    x = np.random.default_rng(2).random((8, 32))
    found, sums = np.zeros((8, 32), np.int64), np.zeros((8, 32))
    simt.jit(search, thread_order=order)[8, 32](x, 0.97, found, sums)
    above = x > 0.97
    expected = np.where(above.any(axis=1), above.argmax(axis=1), -1)
    assert -1 in expected
    np.testing.assert_array_equal(found, np.repeat(expected[:, None], 32, axis=1))
    np.testing.assert_array_equal(sums, np.roll(x, -1, axis=1) * 2.0 + np.roll(x, -3, axis=1) * 0.5)


def test_a_lambda_is_passed_to_a_device_function():
    text = """
        @cuda.jit(device=True)
        def twice(f, v):
            return f(f(v))

        def kernel(x, out):
            n = 3
            def more(v):
                return v * n
            out[0] = twice(more, x[1])
        """
    x, out = np.array([1.0, 2.0]), np.zeros(1)
    simt.jit(defined(text))[1, 1](x, out)
    assert out[0] == 18


REFUSED = {
    "a function inside a kernel that reads": """
        def kernel(x, f):
            b = x[0]
            def inner(v):
                return v + b
            g = inner
            x[0] = g(1)
        """,
    "for two functions inside a kernel": """
        def kernel(x):
            if x[0] > 0:
                def inner(v):
                    return v
            else:
                def inner(v):
                    return -v
            x[0] = inner(1)
        """,
    "the name of a variable": """
        def kernel(x):
            inner = 3
            def inner(v):
                return v
            x[0] = inner(1)
        """,
    "nonlocal": """
        def kernel(x):
            n = 0
            def inner():
                nonlocal n
                n = 3
            inner()
            x[0] = n
        """,
    "a default value that is not a constant": """
        def kernel(x):
            n = x[1]
            def inner(v=n):
                return v
            x[0] = inner()
        """,
    "* in the target of an assignment": """
        def kernel(x):
            a, *b = x.shape, 1, 2
            x[0] = a[0]
        """,
    "hides one that a function it calls reads": """
        def kernel(x):
            y = x[0]
            def inner():
                return y
            def outer(y):
                return y + inner()
            x[0] = outer(2)
        """,
}


@pytest.mark.parametrize("words", REFUSED)
def test_refused(words):
    with pytest.raises(KernelError, match=r"<written \d+>:\d+") as caught:
        simt.jit(defined(REFUSED[words])).check()
    assert words in str(caught.value)


def test_a_tuple_of_another_length_is_no_list_of_arguments():
    text = """
        @cuda.jit(device=True)
        def three(a, b, c):
            return a + b + c

        def kernel(x, pair):
            x[0] = three(*pair)
        """
    kernel, x = simt.jit(defined(text)), np.zeros(1)
    kernel[1, 1](x, (1, 2.5, 3))
    assert x[0] == 6.5
    with pytest.raises(numba.TypingError, match=r"\* of a tuple of 2 for 3 parameters"):
        kernel[1, 1](x, (1, 2))


# ---- names below numba.cuda


def test_only_operations_of_numba_cuda_are_special():
    def plain(v):
        return v + 1

    plain.__module__ = "numba.cuda.somewhere"  # as if its package were installed there
    text = """
        def kernel(x):
            x[0] = plain(x[0])
        """
    x = np.ones(1)
    simt.jit(defined(text, plain=numba.extending.register_jitable(plain)))[1, 1](x)
    assert x[0] == 2


def test_an_overload_for_cuda_is_called_as_on_a_gpu():
    def both(v):
        raise NotImplementedError

    def outer(v):
        raise NotImplementedError

    numba.extending.overload(both, target="generic")(lambda v: lambda v: v + 1)
    numba.extending.overload(outer)(lambda v: lambda v: both(v))  # noqa: PLW0108  # Numba wants one that calls
    for expected in (2, 3):
        for name in ("both", "outer"):
            text = f"def kernel(x):\n    x[0] = {name}(x[0])"
            x = np.ones(1)
            simt.jit(defined(text, both=both, outer=outer))[1, 1](x)
            assert x[0] == expected
        numba.extending.overload(both, target="cuda")(lambda v: lambda v: v + 2)
    assert numba.njit(lambda v: outer(v))(1) == 2  # noqa: PLW0108  # code for the CPU has its own


def test_an_overload_for_cuda_knows_its_thread():
    def place(scale, shift=1):
        raise NotImplementedError

    @numba.extending.overload(place, target="cuda")
    def place_of(scale, shift=1):
        if isinstance(scale, numba.types.Float):
            return lambda scale, shift=1: scale
        return lambda scale, shift=1: cuda.threadIdx.x * scale + cuda.blockDim.x + shift

    text = "def kernel(x):\n    x[cuda.grid(1)] = place(10) + place(0.5) + place(2, shift=100)"
    simt.jit(defined(text, place=place))[1, 3](x := np.zeros(3))
    np.testing.assert_array_equal(x, 12 * np.arange(3) + 4 + 0.5 + 103)
    text = (
        "@cuda.jit(device=True)\ndef apply(f):\n    return f(2)\ndef kernel(x):\n    f = "
        "place\n    x[0] = apply(f)"
    )
    with pytest.raises(
        KernelError,
        match="place, which is overloaded for the target 'cuda' only, as a value is not supported",
    ):
        simt.jit(defined(text, place=place)).check()


def test_numbers_of_8_bits_are_refused():
    # numba-cuda's, which may not be installed
    made = type("fp8_e4m3", (), {"__module__": "numba.cuda._internal.cuda_fp8"})()
    module = ModuleType("fp8")
    module.fp8_e4m3 = made
    for text in (
        "x[0] = fp8_e4m3(x[1])",
        "tile = cuda.shared.array(4, fp8_e4m3)",
        "x[0] = fp8.fp8_e4m3(x[1])",
    ):
        names = {"fp8_e4m3": made, "fp8": module}
        with pytest.raises(
            KernelError, match="fp8_e4m3, of fp8, is not supported on the CPU; compute in float32"
        ):
            simt.jit(defined(f"def kernel(x):\n    {text}", **names)).check()


def test_an_overload_for_cuda_that_waits_is_refused():
    def waits():
        raise NotImplementedError

    @numba.extending.overload(waits, target="cuda")
    def waits_():
        def implementation():
            cuda.syncthreads()

        return implementation

    refused = (
        r"waits\(\), whose overload for GPUs waits or has shared memory, is not "
        r".* a def below @cuda.jit"
    )
    with pytest.raises(KernelError, match=refused):
        simt.jit(defined("def kernel(x):\n    waits()", waits=waits))[1, 1](np.zeros(1))


def test_operations_are_found_under_any_name():
    from numba.cuda import grid as where
    from numba.cuda import libdevice as device_library
    from numba.cuda.libdevice import sqrt as root

    text = """
        def kernel(x):
            i = where(1)
            x[i] = root(x[i]) + library.sqrt(x[i])
        """
    x = np.array([4.0, 9.0])
    simt.jit(defined(text, where=where, root=root, library=device_library))[1, 2](x)
    assert x.tolist() == [4, 6]


def test_literal_unroll():
    parts = (np.arange(3.0), np.arange(4), np.float32(3) * np.ones(2, np.float32))

    def other(container: Any) -> Any:
        return container

    other.__name__ = "literal_unroll"  # as numba-cuda's own of that name
    other.__module__ = "numba.cuda.misc.special"
    text = """
        def kernel(out):
            i = cuda.grid(1)
            total = 0.0
            for part in unroll(parts):
                total += part.sum()
            out[i] = total + i
        """
    for unroll in (numba.literal_unroll, other):
        out = np.zeros(3)
        simt.jit(defined(text, parts=parts, unroll=unroll))[1, 3](out)
        assert out.tolist() == [15, 16, 17]


# ---- operations


def hinted(x, out):
    i, j = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        cuda.stcs(out, (i, j), cuda.ldcg(x, (i, j)) + cuda.ldca(x[i], j) * cuda.ldcs(x, (0, 0)))
        cuda.stwt(out[i], j, cuda.ldcv(out, (i, j)) + cuda.ldlu(x, (i, j)))


@pytest.mark.parametrize("make", [simt.jit, simt.debug, simt.check])
def test_cache_hints_are_plain_accesses(make):
    x = np.arange(6.0).reshape(2, 3) + 1
    out = np.zeros_like(x)
    make(hinted)[(1, 1), (4, 4)](x, out)
    np.testing.assert_array_equal(out, 2 * x + x * x[0, 0])


def test_a_cache_hint_without_an_index_is_refused():
    with pytest.raises(KernelError, match=r"cuda\.ldcg\(\) without exactly 2 arguments"):
        simt.jit(defined("def kernel(x):\n    x[0] = cuda.ldcg(x)")).check()


def test_bits_are_counted_in_the_type():
    kernel = simt.jit(defined("def kernel(out, n):\n    out[0] = n.bit_count()"))
    for n in (
        np.uint8(0xFF),
        np.uint16(0xFFFF),
        np.uint32(0xFFFFFFFF),
        np.uint64(0xFFFFFFFFFFFFFFFF),
        np.int32(12),
    ):
        out = np.zeros(1, np.int64)
        kernel[1, 1](out, n)
        assert out[0] == int(n).bit_count()


def test_printing_the_three_indices(tmp_path):
    path = tmp_path / "printing.py"
    path.write_text(
        "from numba import cuda\nfrom synknumba import "
        "simt\n\n\n@simt.jit(cache=False)\ndef kernel():\n"
        "    print(cuda.threadIdx, cuda.gridDim)\n\n\nkernel[(1, 3), (2, 2, 1)]()\n"
    )
    told = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
    expected = [f"({x}, {y}, 0) (1, 3, 1)" for x in range(2) for y in range(2)] * 3
    assert sorted(told.stdout.splitlines()) == sorted(expected)


def test_an_atomic_cuts_a_float_index_off():
    text = """
        def kernel(x, shift):
            i, j = cuda.threadIdx.x, cuda.threadIdx.y
            cuda.atomic.add(x, (i, j + shift), 1)
        """
    x = np.zeros((4, 8))
    simt.jit(defined(text))[1, (4, 8)](x, np.float64(0.75))
    np.testing.assert_array_equal(x, 1)


@pytest.mark.parametrize(
    "name",
    ["inner", "tx", "mask", "uint8", *whole("left", "exit", "t", "lin", "keep", "Bx", "first_i")],
)
def test_a_device_function_may_have_any_name(name):
    text = f"""
        @cuda.jit(device=True)
        def {name}(v):
            return v + 1

        def kernel(x, out):
            t1 = cuda.threadIdx.x
            if x[t1] < 0:
                return
            for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
                out[i] = {name}(x[i])
                if out[i] > 100:
                    return
            cuda.syncthreads()
            out[t1] = {name}(out[t1])
        """
    x, out = np.arange(8.0), np.zeros(8)
    simt.jit(defined(text))[1, 4](x, out)
    np.testing.assert_array_equal(out, x + 1 + (x < 4))


# ---- the object


def kernel_with_a_helper() -> Any:
    offset = 3

    @simt.jit(device=True)
    def factorial(n):
        if n < 2:
            return 1
        return n * factorial(n - 1)

    @simt.jit
    def kernel(x):
        x[0] = factorial(x[0]) + offset

    return kernel


def test_a_kernel_inside_a_function_can_be_pickled():
    kernel = kernel_with_a_helper()
    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(kernel))))
    for made in (kernel, again, cloudpickle.loads(cloudpickle.dumps(kernel))):
        x = np.array([5])
        made[1, 1](x)
        assert x[0] == 123
    launcher = pickle.loads(pickle.dumps(kernel[(2, 3), 4]))
    assert (launcher.griddim, launcher.blockdim) == ((2, 3, 1), (4, 1, 1))


def test_a_kernel_that_asks_for_the_grid_is_cooperative():
    kinds = (numba.types.float64[::1],)
    for text, cooperative in (
        ("def kernel(x):\n    g = cuda.cg.this_grid()\n    x[0] = 1", True),
        ("def kernel(x):\n    cuda.cg.this_grid().sync()", True),
        ("def kernel(x):\n    x[0] = 1", False),
    ):
        assert simt.jit(defined(text)).compile(kinds).cooperative is cooperative


def test_inspect_types_prints_what_was_generated():
    kernel = simt.jit(defined("def kernel(x, n):\n    x[0] = n"))
    kernel[1, 1](np.zeros(1), 2)
    kernel[1, 1](np.zeros(1, np.float32), 2)
    told = io.StringIO()
    kernel.inspect_types(file=told)
    assert told.getvalue().count("x[0] = n") == 2
    for kinds in kernel.signatures:
        assert f"kernel {kinds}" in told.getvalue()
    told = io.StringIO()
    simt.jit("void(float32[::1], int32)")(kernel.py_func).inspect_types(file=told)
    assert "int32)" in told.getvalue()


def test_endless_recursion_is_a_typing_error():
    text = """
        @cuda.jit(device=True)
        def away(v):
            return away(v)

        def kernel(x):
            x[0] = away(x[0])
        """
    with pytest.raises(numba.TypingError, match="cannot type infer runaway recursion"):
        simt.jit(defined(text))[1, 1](np.zeros(1))


# ---- names for members of numba.cuda


def named_barrier(x, out):
    wait, t, add = cuda.syncthreads, cuda.threadIdx, cuda.atomic.add
    shared = cuda.shared
    s = shared.array(32, float64)
    s[t.x] = x[t.x]
    wait()
    add(out, t.x, s[31 - t.x])


@pytest.mark.parametrize("runs", [simt.jit, simt.debug, simt.check])
def test_a_barrier_may_be_called_through_a_variable(runs):
    x, out = np.arange(32.0), np.ones(32)
    runs(named_barrier)[1, 32](x, out)
    np.testing.assert_array_equal(out, 1 + x[::-1])


def test_a_name_for_several_members_is_refused():
    def either(out):
        place = cuda.threadIdx if out.size > 8 else cuda.blockIdx
        out[0] = place.x

    def changes(out):
        place = cuda.threadIdx
        place = cuda.blockIdx
        out[0] = place.x

    def names_nothing(out):
        unused = cuda.no_such_member  # noqa: F841
        out[0] = 1

    for kernel in (either, changes):
        with pytest.raises(
            KernelError, match=r"cuda.threadIdx is not supported on the CPU; use its .x, .y or .z"
        ):
            simt.jit(kernel).check()
    with pytest.raises(KernelError, match=r"numba.cuda has no no_such_member"):
        simt.jit(names_nothing).check()
