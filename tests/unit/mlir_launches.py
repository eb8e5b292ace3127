"""Launches of kernels of numba-cuda-mlir on a driver without a GPU; run by test_cuda_mlir.py in a
process of its own.

Prints, as JSON, what the driver got and what the cache did.
"""

import ctypes
import json
import re
import sys
import warnings
from typing import Any

import numba
import numpy as np
from numba import cuda as numba_cuda
from numba import float64, njit
from numba.core.errors import NumbaError
from numba_cuda_mlir import cuda

import synknumba as synk
from synknumba._device.compilers import Compilers, numba_cuda_mlir, plain_kernel
from synknumba._device.compilers.base import RecordArray
from synknumba.simt.internals import explain

RECORD = np.dtype([("a", "f8"), ("b", "i8")])
SCALARS = (
    np.float32(1.5),
    1.5,
    np.float16(1.5),
    3,
    np.int32(3),
    np.uint8(3),
    True,
    2**63,
    1 + 2j,
    np.complex64(1 + 2j),
)
STREAM = 0x77
FIRST = (
    5  # parameters of an array of one axis: its address twice, an offset, its length, its stride
)


@cuda.jit(device=True)
def twice(value: Any) -> Any:
    return 2 * value


@cuda.jit
def scaled(x: Any, a: float) -> None:  # the annotation must not count
    x[0] = twice(a)


@cuda.jit
def from_field(x: Any, y: Any) -> None:
    x[0] = y[1].b


@cuda.jit
def of_a_tuple(x: Any, both: Any) -> None:
    x[0] = both[0][1] + both[1]


@cuda.jit
def printing(x: Any) -> None:
    print(x[0])


@numba_cuda.jit(device=True)
def thrice(value: Any) -> Any:
    return 3 * value


@njit
def squared(value: Any) -> Any:
    return thrice(value) ** 2


def for_numba(x: Any) -> None:
    """All that is translated: fences, members, types, device functions, `njit`, and overloads,
    as those of synknumba.random.
    """
    shared = numba_cuda.shared.array(32, float64)
    i = numba_cuda.grid(1)
    shared[i % 32] = squared(synk.random.normal(7, i, 0, rounds=7)) + numba.float32(i)
    numba_cuda.syncthreads()
    numba_cuda.threadfence()
    numba_cuda.atomic.add(x, 0, shared[0])


def fenced(x: Any) -> None:
    x[0] = 1
    numba_cuda.threadfence_block()
    x[0] = 2
    numba_cuda.threadfence()
    x[0] = 3
    numba_cuda.threadfence_system()
    x[0] = numba_cuda.shfl_xor_sync(0xFFFFFFFF, x[1], 1)  # of 64 bits
    if x[0] != x[1]:  # also where one is NaN
        x[0] = 5


def unsigned(octets: Any, words: Any, longs: Any, signed: Any, reals: Any) -> None:
    """Operations that differ for unsigned integers, and conversions of integers to wider types."""
    words[0] = max(words[0], words[1])
    longs[0] = min(longs[0], longs[1])
    octets[0] = max(octets[0], octets[1])
    numba_cuda.atomic.max(longs, octets[0], words[0])
    numba_cuda.atomic.min(words, 0, octets[1])
    numba_cuda.atomic.add(signed, 0, numba.int32(reals[0]))
    numba_cuda.atomic.inc(words, octets[0], octets[1])
    numba_cuda.atomic.dec(longs, 0, words[1])
    numba_cuda.atomic.cas(signed, octets[0], numba.int32(signed[1]), numba.int32(signed[2]))
    reals[1] = max(longs[1], reals[0])
    if longs[0] < reals[1]:
        signed[0] = 1
    for i in range(octets[1]):
        signed[i] += numba.int32(signed[1]) ** 3


def halves(x: Any, y: Any) -> None:
    """Operations that are rounded one by one."""
    x[0] = (x[0] + y[0]) * (x[1] / y[1])


def refused(x: Any) -> None:
    x[0] = 1
    x[1] = numba_cuda.lanemask_lt()  # which the package types, but has no code for


def mixed(x: Any) -> None:
    """A kernel of the package, and functions of Numba in modules with the names of some of its
    own.
    """
    x[cuda.grid(1)] = synk.random.uniform(7, cuda.grid(1), 0)


class OnDevice:
    """An array that names a stream, as CuPy's do."""

    def __init__(self, dtype: Any, *strides: int) -> None:
        self.memory = np.zeros((2,) * max(len(strides), 1), dtype)
        self.ptr = self.memory.ctypes.data
        shape, kind = self.memory.shape, self.memory.dtype.str
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": kind,
            "data": (self.ptr, False),
            "version": 3,
            "stream": 1,
        }
        self.__cuda_array_interface__["strides"] = strides or None


def main() -> None:
    warnings.simplefilter("error")
    driver: Any = ctypes.CDLL("libcuda.so.1")
    for name in ("word", "launched_kernel", "launched_stream"):
        getattr(driver, name).restype = ctypes.c_uint64
    caches: list[Any] = []
    attach = numba_cuda_mlir.attach
    numba_cuda_mlir.attach = lambda *parts: caches.append(attach(*parts))
    compilers = Compilers(0, STREAM, "numba-cuda-mlir")

    def made(decorated: Any, **options: Any) -> Any:
        plain = plain_kernel(decorated)
        assert plain is not None
        return compilers.kernel(plain[0], {**plain[1], **options})

    def launched(kernel: Any, *args: Any) -> None:
        kernel.launcher((2, 1, 1), (32, 1, 1), 64)(*map(kernel.convert, args))

    kernel, x, told = made(scaled), OnDevice("f8"), []
    driver.note_parameters(FIRST + 1)
    for _ in range(2):  # the second time each finds its own kernel
        for scalar in SCALARS:
            launched(kernel, x, scalar)
            told.append(
                [str(driver.word(FIRST)), driver.launched_kernel(), driver.launched_stream()]
            )
    layouts = []
    for strides in ((16, 8), (8, 16)):
        launched(kernel, OnDevice("f8", *strides), 1.5)
        layouts.append(driver.launched_kernel())
    records, talking, debugged = (
        made(from_field),
        made(printing),
        made(scaled, debug=True, opt=False),
    )
    launched(records, x, RecordArray(OnDevice(RECORD), RECORD, (2,)))
    launched(made(of_a_tuple), x, (x, 2))
    launched(talking, x)
    launched(compilers.kernel(for_numba, {"debug": 0}), x)
    launched(compilers.kernel(mixed, {}), x)

    def instructions(function: Any, pattern: str, *args: Any) -> list[str]:
        kernel = compilers.kernel(function, {})
        launched(kernel, *args)
        (ptx,) = [
            one.metadata["ptx"]
            for dispatcher in kernel._dispatchers.values()
            for one in dispatcher.overloads.values()
        ]
        return re.findall(rf"\t({pattern})", ptx)

    fences = instructions(fenced, r"st|membar\.\w+|shfl|setp\.\w+", x)
    integers = instructions(
        unsigned,
        r"(?:max|min|atom|cvt|ld\.global)\.\S+",
        *map(OnDevice, ("u1", "u4", "u8", "i8", "f8")),
    )
    rounded = instructions(halves, r"(?:add|mul|div|cvt)\.\S+", OnDevice("f2"), OnDevice("f2"))
    try:
        launched(compilers.kernel(refused, {}), x)
    except NumbaError as error:
        caches.pop()
        said = str(explain(error, refused))
    launched(debugged, x, 1.5)
    array = kernel.convert(x)
    capturable = [
        kernel.is_capturable([array, (1, array)]),
        kernel.is_capturable([np.zeros(1)]),
        debugged.is_capturable([array]),
    ]
    outcomes = [[one.info.hits, one.info.misses, one.info.not_kept] for one in caches]
    prints = [kernel.prints(), talking.prints()]
    kept = {
        "told": told,
        "layouts": layouts,
        "capturable": capturable,
        "cache": outcomes,
        "prints": prints,
    }
    print(
        json.dumps(
            {**kept, "fences": fences, "integers": integers, "halves": rounded, "refused": said}
        )
    )


if __name__ == "__main__":
    sys.exit(main())
