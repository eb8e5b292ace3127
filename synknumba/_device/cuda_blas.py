"""Matrix products by cuBLAS that can be recorded into CUDA graphs; CuPy's own refuse to be.

cuBLAS allocates memory in the middle of a capture unless it has been given a workspace, so it gets
one here. Matrices are stored by rows here and by columns there, so the product is computed as Bᵀ Aᵀ
= (A B)ᵀ, without copies.
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import cupy
import numpy as np
from cupy.cuda import cublas

from synknumba._errors import DeviceError

_WORKSPACE_BYTES = 32 << 20  # as NVIDIA recommends for its newest GPUs
_TYPES = {"float16": 2, "float32": 0, "float64": 1, "complex64": 4, "complex128": 5}  # cudaDataType
# cublasComputeType_t
_COMPUTE = {
    "float16": 68,
    "float32": 68,
    "float64": 70,
    "complex64": 68,
    "complex128": 70,
}
_FACTORS = {
    "float16": "f4",
    "float32": "f4",
    "float64": "f8",
    "complex64": "c8",
    "complex128": "c16",
}
_AS_IT_IS, _TRANSPOSED = 0, 1  # cublasOperation_t
_DEFAULT_ALGORITHM = -1


@cache
def _library() -> ctypes.CDLL:
    """Returns the cuBLAS that CuPy has loaded."""
    cupy.cuda.Device().cublas_handle  # noqa: B018  # loads it
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/libcublas.so" in line:
            return ctypes.CDLL(line.split(maxsplit=5)[5])
    raise DeviceError("CuPy has loaded no cuBLAS")


@cache
def _handle() -> tuple[int, Any]:
    """Returns a handle of cuBLAS, and its workspace."""
    handle, workspace = cublas.create(), cupy.cuda.alloc(_WORKSPACE_BYTES)
    return handle, workspace


def _check(code: int) -> None:
    if code != 0:
        raise DeviceError(f"cuBLAS failed with status {code}")


def matmul(a: Any, b: Any) -> Any:
    """Returns a @ b of CuPy arrays."""
    dtype = cupy.result_type(a, b)
    if (
        dtype.name not in _TYPES
        or not (1 <= a.ndim <= 2 and 1 <= b.ndim <= 2)
        or not (a.size and b.size)
    ):
        return a @ b  # not by cuBLAS, or in batches
    first, second = a.astype(dtype, copy=False), b.astype(dtype, copy=False)
    if a.ndim == 1:
        first = first.reshape(1, -1)
    if b.ndim == 1:
        second = second.reshape(-1, 1)
    if first.shape[1] != second.shape[0]:
        raise ValueError(
            f"matmul: shapes {a.shape} and {b.shape} do not fit: "
            f"{first.shape[1]} is not {second.shape[0]}"
        )
    out = cupy.empty((first.shape[0], second.shape[1]), dtype)
    _multiply(first, second, out)
    return out.reshape(*a.shape[:-1], *b.shape[1:])


def _multiply(first: Any, second: Any, out: Any) -> None:
    first, first_turned, first_stride = _stored(first)
    second, second_turned, second_stride = _stored(second)
    name = out.dtype.name
    unit, zero = (np.array(value, _FACTORS[name]) for value in (1, 0))
    code, (handle, workspace) = _TYPES[name], _handle()
    library, stream = _library(), cupy.cuda.get_current_stream().ptr
    address = ctypes.c_void_p
    _check(library.cublasSetStream_v2(address(handle), address(stream)))  # takes the workspace away
    _check(
        library.cublasSetWorkspace_v2(
            address(handle), address(workspace.ptr), ctypes.c_size_t(_WORKSPACE_BYTES)
        )
    )
    _check(
        library.cublasGemmEx(
            *(address(handle), second_turned, first_turned),
            *(out.shape[1], out.shape[0], first.shape[1]),
            *(address(unit.ctypes.data), address(second.data.ptr), code, second_stride),
            *(address(first.data.ptr), code, first_stride),
            *(address(zero.ctypes.data), address(out.data.ptr), code, out.shape[1]),
            *(_COMPUTE[name], _DEFAULT_ALGORITHM),
        )
    )


def _stored(matrix: Any) -> tuple[Any, int, int]:
    """Returns a matrix, copied if need be, whether it lies there by columns, and the elements
    between two rows, or columns.
    """
    rows, columns = matrix.shape
    by_rows, by_columns = (stride // matrix.itemsize for stride in matrix.strides)
    if (columns == 1 or by_columns == 1) and (rows == 1 or by_rows >= columns):
        return matrix, _AS_IT_IS, max(by_rows if rows > 1 else columns, 1)
    if (rows == 1 or by_rows == 1) and (columns == 1 or by_columns >= rows):
        return matrix, _TRANSPOSED, max(by_columns if columns > 1 else rows, 1)
    return cupy.ascontiguousarray(matrix), _AS_IT_IS, columns
