"""The libraries of CUDA's that fbpic calls: one-dimensional transforms, a product of matrices,
sorting by keys.
"""

import ctypes
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np


def _at(pointer: int, shape: tuple[int, ...], dtype: Any = np.float64):
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.ndarray(shape, dtype, (ctypes.c_char * size).from_address(pointer), order="F")


class Plan1d:
    def __init__(self, nx: int, fft_type: int, batch: int):
        del fft_type
        self._shape = (batch, nx)

    def fft(self, given: Any, made: Any, direction: int):
        values = given.simt_values.reshape(self._shape)
        # cuFFT does not divide by the number of points.
        result = np.fft.fft(values) if direction == -1 else np.fft.ifft(values, norm="forward")
        made.simt_values.reshape(self._shape)[...] = result


def dgemm(
    _handle: Any, transa: int, transb: int, m: int, n: int, k: int,
    alpha: int, a: int, lda: int, b: int, ldb: int, beta: int, c: int, ldc: int,
):  # fmt: skip
    assert (transa, transb, lda, ldb, ldc) == (0, 0, m, k, m)
    made = _at(c, (m, n))
    scale, before = _at(alpha, ())[()], _at(beta, ())[()]
    made[...] = scale * (_at(a, (m, k)) @ _at(b, (k, n))) + (before * made if before else 0.0)


def argsort(dtype: Any, idx_start: int, data_start: int, keys_start: int, shape: Any):
    """Sorts data of one axis in place, and writes the order to the index."""
    del keys_start
    keys, order = _at(data_start, tuple(shape), dtype), _at(idx_start, tuple(shape), np.intp)
    order[...] = np.argsort(keys, kind="stable")
    keys.sort(kind="stable")


class OutOfMemoryError(MemoryError):
    pass


def _module(name: str, **members: Any):
    made = ModuleType(f"{__name__}.{name}")
    vars(made).update(members)
    sys.modules[made.__name__] = made
    return made


cublas = _module("cublas", dgemm=dgemm)
cufft = _module("cufft", Plan1d=Plan1d, CUFFT_Z2Z=0x69, CUFFT_FORWARD=-1, CUFFT_INVERSE=1)
device = _module("device", get_cublas_handle=lambda: 0)
memory = _module("memory", OutOfMemoryError=OutOfMemoryError)
runtime = SimpleNamespace(
    getDeviceProperties=lambda _device: {"name": b"CPU", "uuid": bytes(16)},
    getDeviceCount=lambda: 1,
)
thrust = _module("thrust", argsort=argsort)
