"""Declared signatures, and the members of a kernel that programs written for numba.cuda use."""

import numpy as np
import pytest
from numba import cuda, float32, float64, int32, int64

from synknumba import KernelError, simt


def store(out, x):
    out[0] = x


class TestDeclaredSignatures:
    def test_of_several_the_one_that_fits_is_taken(self) -> None:
        kernel = simt.jit(["void(float64[:], float32)", "void(float64[:], float64)"])(store)
        out = np.zeros(1)
        kernel[1, 1](out, np.float32(0.1))
        assert out[0] == float(np.float32(0.1))
        kernel[1, 1](out, 0.1)
        assert out[0] == 0.1

    def test_of_one_integers_of_the_same_width_fit(self) -> None:
        kernel = simt.jit("void(int64[:], int64)")(store)
        out = np.zeros(1, np.uint64)
        kernel[1, 1](out, 3)
        assert out[0] == 3
        with pytest.raises(TypeError, match="No matching definition"):
            kernel[1, 1](np.zeros(1, np.uint32), 3)

    def test_of_several_none_fits(self) -> None:
        kernel = simt.jit([(int64[:], int64), (float64[:], float64)])(store)
        with pytest.raises(TypeError, match="store .*No matching definition for argument"):
            kernel[1, 1](np.zeros(1, np.complex128), 1j)

    def test_of_several_two_fit_equally_well(self) -> None:
        def add(out, x, y):
            out[0] = x + y

        kernel = simt.jit([(float64[:], float32, float64), (float64[:], float64, float32)])(add)
        with pytest.raises(TypeError, match="Ambiguous overloading"):
            kernel[1, 1](np.zeros(1), 1.0, 2.0)

    @pytest.mark.parametrize(
        ("dtype", "given"), [("int32", 2**32 - 1), ("int8", 300), ("uint16", -1), ("int64", 2**63)]
    )
    def test_an_int_that_does_not_fit_keeps_its_low_bits(self, dtype: str, given: int) -> None:
        out = np.zeros(1, dtype)
        simt.jit(f"void({dtype}[:], {dtype})")(store)[1, 1](out, given)
        size = out.itemsize
        assert out.tobytes() == (given % 2 ** (8 * size)).to_bytes(size, "little")


class TestMembersOfNumbaCuda:
    def test_overloads_are_what_was_launched(self) -> None:
        kernel = simt.jit(store)
        assert kernel.overloads == {}
        kernel[1, 1](np.zeros(1, np.float32), 1.0)
        kernel[1, 1](np.zeros(1, np.int32), np.int32(1))
        assert kernel.signatures == [(float32[::1], float64), (int32[::1], int32)]
        assert list(kernel.overloads) == kernel.signatures

    def test_overloads_of_declared_signatures_are_compiled(self) -> None:
        kernel = simt.jit((float32[:], float32))(store)
        overload = kernel.overloads[float32[:], float32]
        assert not overload.cooperative
        assert overload.max_cooperative_grid_blocks(256) >= 1

    def test_specialize(self) -> None:
        kernel = simt.jit(store)
        special = kernel.specialize(float64[::1], int32)
        assert special is kernel.specialize(np.zeros(3), np.int32(1))
        assert special is not kernel.specialize(float64[::1], float64)
        assert len(kernel.specializations) == 2
        out = np.zeros(1)
        special[1, 1](out, 2.7)
        assert out[0] == 2  # the declared type is that of an integer
        with pytest.raises(RuntimeError, match="already specialized"):
            special.specialize(float64[::1], int32)

    def test_in_does_not_come_back_and_inout_does(self) -> None:
        kernel = simt.jit(store)
        there, back, out = np.zeros(1), np.zeros(1), np.zeros(1)
        for hint in (cuda.In(there), cuda.InOut(back), cuda.Out(out)):
            kernel[1, 1](hint, 3.0)
        assert (there[0], back[0], out[0]) == (0, 3, 3)

    def test_extensions_replace_arguments(self) -> None:
        class Doubled:
            def prepare_args(self, ty, val, **_more):
                return ty, val * 2 if isinstance(val, float) else val

        out = np.zeros(1)
        simt.jit(store, extensions=[Doubled()])[1, 1](out, 1.5)
        assert out[0] == 3

    def test_forall_of_a_negative_number(self) -> None:
        with pytest.raises(ValueError, match="negative"):
            simt.jit(store).forall(-1)


def test_a_device_function_is_not_launched() -> None:
    function = simt.jit(device=True)(store)
    for launch in (lambda: function[1, 1], lambda: function.forall(3)):
        with pytest.raises(KernelError, match="device=True"):
            launch()
