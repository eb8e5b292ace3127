"""Kernels with declared signatures, and other options of `simt.jit`, on ranks; the oracle is
NumPy's conversion.
"""

import numpy as np
import pytest
from numba import cuda, types
from numpy.testing import assert_array_equal

import synknumba as synk
from synknumba import simt
from synknumba._device.compilers import CompiledKernel
from synknumba._device.compilers.declared import DeclaredKernel

NUMBERS = (2.7, -3.2, 5, 2**33 + 1, True, np.float32(0.1), np.int8(-4))
LARGE = (1e300, -1e39, np.nan, np.float64(1e39), 2**62)


@pytest.fixture(
    scope="module", autouse=True, params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)
def world(request):
    where = {"devices": [0, 0]} if request.param == "cuda" else {"world_size": 2, "device": "cpu"}
    with synk.fork(**where) as world:
        yield world


def halves(n, x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = n / 2


@pytest.mark.parametrize("dtype", ["int32", "float32", "float64"])
def test_numbers_are_converted_to_the_declared_types(dtype):
    kernel = synk.parallel(simt.jit(f"void({dtype}, float64[:])")(halves), inout=("x",))
    for number in NUMBERS:
        for again in range(3):  # from the second on, compiled code replaces the number
            x = np.zeros(6)
            kernel(number + again, x)
            assert_array_equal(x, np.full(6, np.asarray(number + again).astype(dtype) / 2))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_too_large_for_their_type_are_infinite(dtype):
    kernel = synk.parallel(simt.jit(f"void({dtype}, float64[:])")(halves), inout=("x",))
    for number in (*LARGE, *LARGE):
        x = np.zeros(6)
        kernel(number, x)
        with np.errstate(over="ignore"):
            assert_array_equal(x, np.full(6, np.asarray(number).astype(dtype) / 2))


def test_what_is_no_number_of_the_declared_type_is_refused():
    for dtype, values in {"int32": (None, np.nan, -np.inf, 1j), "float64": (None, 1j)}.items():
        kernel = synk.parallel(simt.jit(f"void({dtype}, float64[:])")(halves), inout=("x",))
        for value in values:
            with pytest.raises(
                synk.ArgumentError,
                match=rf"halves\(\): n is declared {dtype}, got .*; pass a number",
            ):
                kernel(value, np.zeros(6))


def test_launches_alone_convert_as_ranks_do():
    """With C's rules: floats are cut, integers keep their low bits."""
    for value, wanted in {
        1.9: 1,
        -1.9: 255,
        300: 44,
        300.5: 44,
        2**64 + 5: 5,
        True: 1,
        np.float32(-1.9): 255,
    }.items():
        out = np.zeros(1, np.uint8)

        @simt.jit("void(uint8, uint8[:])")
        def store(a, out):
            out[0] = a

        store[1, 1](value, out)
        assert out[0] == wanted
    with pytest.raises(synk.ArgumentError, match="b is declared float64, got an int of 1329 bits"):
        simt.jit("void(float64[:], float64)")(lambda out, b: None)[1, 1](np.zeros(1), 10**400)


def test_a_sequence_converts_its_numbers():
    kernel = synk.parallel(simt.jit("void(int32, float64[:])")(halves), inout=("x",))
    x = synk.data(np.zeros(6))

    @synk.sequence
    def steps(first):
        for step in range(4):
            kernel(first + 0.75 * step, x)

    for first in (1.5, 2.5):
        steps(first)
        assert_array_equal(x, np.full(6, int(first + 0.75 * 3) / 2))


def test_arrays_of_another_type_are_refused():
    kernel = synk.parallel(simt.jit("void(int32, float64[:])")(halves), inout=("x",))
    with pytest.raises(
        synk.ArgumentError,
        match=r"halves \(.*No matching definition .*float32.*; declared: \(int32, array\(float64",
    ):
        kernel(1, np.zeros(6, np.float32))


def test_integers_are_read_with_the_declared_sign():
    kernel = synk.parallel(simt.jit("void(int32, int32[:])")(halves), inout=("x",))
    x = np.zeros(6, np.uint32)
    kernel(-7, x)
    assert_array_equal(x, np.full(6, np.int32(-3)).view(np.uint32))


def test_the_best_of_several_signatures_counts():
    kernel = synk.parallel(
        simt.jit(["void(int32, float32[:])", "void(float64, float64[:])"])(halves), inout=("x",)
    )
    for dtype, expected in (("float32", 1.0), ("float64", 1.25)):
        x = np.zeros(6, dtype)
        kernel(2.5, x)
        assert_array_equal(x, np.full(6, expected, dtype))


def test_a_check_converts_too():
    @synk.parallel(inout=("x",))
    @simt.jit("void(int32, float64[:])")
    def is_whole(n, x):
        if n > 2:
            x[cuda.grid(1) + 100] = n

    is_whole.check(2.7, np.zeros(4))
    with pytest.raises(simt.BoundsError):
        is_whole.check(3.2, np.zeros(4))


class Launched(CompiledKernel):
    """Keeps the arguments of its launches."""

    def launcher(self, grid, block, smem_bytes):
        return lambda *args: setattr(self, "args", args)

    def is_capturable(self, args):
        return True

    def convert(self, arg):
        return arg

    def prints(self):
        return False


def test_kernels_for_gpus_get_what_is_declared():
    kernel, x = Launched(), np.zeros(6, np.uint32)
    one = DeclaredKernel(kernel, halves, [(types.int32, types.int32[:])])
    one.launcher((1, 1, 1), (1, 1, 1), 0)(2.7, x)
    assert type(kernel.args[0]) is np.int32
    assert kernel.args[0] == 2
    assert kernel.args[1].dtype == np.int32
    assert np.shares_memory(kernel.args[1], x)
    assert not one.is_capturable(kernel.args)
    with pytest.raises(synk.ArgumentError, match="No matching definition"):
        one.launcher((1, 1, 1), (1, 1, 1), 0)(2.7, np.zeros(6))
    several = DeclaredKernel(
        kernel, halves, [(types.int32, types.float32[:]), (types.float64, types.float64[:])]
    )
    for dtype, number in (("float32", np.int32(2)), ("float64", np.float64(2.5))):
        several.launcher((1, 1, 1), (1, 1, 1), 0)(2.5, np.zeros(6, dtype))
        assert type(kernel.args[0]) is type(number)
        assert kernel.args[0] == number


@pytest.mark.parametrize("world", ["cpu"], indirect=True)  # numba-cuda checks no index
def test_options_of_a_simt_kernel_are_kept():
    @synk.parallel(inout=("x",))
    @simt.jit(debug=True)
    def shifted(x):
        i = cuda.grid(1)
        x[i + 1] = 1.0

    with pytest.raises(
        synk.RankError,
        match=r"IndexError: In function 'shifted'.*tid=\[2, 0, 0\] ctaid=\[0, 0, 0\]: index",
    ):
        shifted(np.zeros(6))
    assert simt.jit(halves).targetoptions == {}
    assert simt.jit(fastmath=True, device=True)(halves).targetoptions == {
        "fastmath": True,
        "device": True,
    }
