"""CUDA's vector types."""

from typing import Any

import numpy as np
import pytest
from numba import cuda
from numba.core.errors import TypingError
from numba.cuda import float32x3, uchar2

from synknumba import simt
from synknumba.simt._library.vectors import VECTORS


def test_all_names_of_cuda() -> None:
    from numba.cuda import stubs

    names = {name for stub in stubs._vector_type_stubs for name in (stub.__name__, *stub.aliases)}
    assert len(names) > 80
    assert set(VECTORS) == names


@cuda.jit(device=True)
def dot(a, b):
    return a.x * b.x + a.y * b.y + a.z * b.z


def test_elements_in_variables_branches_and_device_functions() -> None:
    @simt.jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.shape[0]:
            a = cuda.float32x3(x[i, 0], x[i, 1], x[i, 2])
            b = float32x3(1, 2.0, True)
            if i % 2:
                b = float32x3(a.z, a.y, a.x)
            total = cuda.float64x2(0, 0)
            for k in range(3):
                total = cuda.float64x2(total.x + k, total.y + 1)
            out[i] = dot(a, b) + total.x + total.y

    x = np.arange(30, dtype=np.float64).reshape(10, 3) / 4
    out = np.zeros(10)
    kernel[2, 8](x, out)
    other = np.where((np.arange(10) % 2)[:, None] == 1, x[:, ::-1], [1.0, 2.0, 1.0])
    np.testing.assert_array_equal(out, (x * other).sum(1) + 6)


def test_made_of_shorter_vectors() -> None:
    @simt.jit
    def kernel(out):
        one = cuda.int1(7)
        two = cuda.int2(1, one)
        four = cuda.int32x4(two, cuda.int1(3), 4.9)
        same = cuda.int4(four)
        out[0], out[1], out[2], out[3] = same.x, same.y, same.z, same.w

    out = np.zeros(4, np.int64)
    kernel[1, 1](out)
    assert (out == [1, 7, 3, 4]).all()


def test_numbers_are_converted() -> None:
    @simt.jit
    def kernel(x, out):
        i = cuda.grid(1)
        small = uchar2(x[i], x[i] + 1)
        out[i] = small.x * 1000 + small.y

    x = np.array([5, 255, 256, -1])
    out = np.zeros(4, np.int64)
    kernel[1, 4](x, out)
    assert (out == x.astype(np.uint8).astype(int) * 1000 + (x + 1).astype(np.uint8)).all()


@pytest.mark.parametrize("make", ["too_few", "too_many", "other_base", "complex"])
def test_wrong_elements(make: Any) -> None:
    def too_few(out):
        out[0] = cuda.float4(1, 2, 3).x

    def too_many(out):
        out[0] = cuda.float2(cuda.float2(1, 2), 3).x

    def other_base(out):
        out[0] = cuda.float2(cuda.int2(1, 2)).x

    def complex_(out):
        out[0] = cuda.float2(1j, 2).x

    kernels = {
        "too_few": too_few,
        "too_many": too_many,
        "other_base": other_base,
        "complex": complex_,
    }
    with pytest.raises(TypingError):
        simt.jit(kernels[make])[1, 1](np.zeros(1))
