"""Kernels as Numba launches them: numbers are packed as parameters; and the part of the driver
that reads and writes these.
"""

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.unit.cuda.machine import Machine

WRONG = 1  # CUDA_ERROR_INVALID_VALUE


class Dispatcher:
    """What `cuda.jit` makes of a function, as far as launches go.

    Args:
        machine: it runs on.
        function: gets what was packed.
        twice: whether numbers are passed twice, as no compiler does.
        together: whether the parts of a complex number are one parameter, as numba-cuda-mlir has
            them.
        baked: the position of an argument for each of whose values there is a kernel of its own;
            None for none.
        calls: a function that it calls, as its LLVM code names it.
    """

    def __init__(
        self,
        machine: Machine,
        function: Callable[..., object],
        *,
        twice: bool = False,
        together: bool = False,
        baked: int | None = None,
        calls: str = "__nv_exp",
    ) -> None:
        self._machine, self.function, self._twice, self._together, self._baked = (
            machine,
            function,
            twice,
            together,
            baked,
        )
        self._calls = calls
        self.launches: list[tuple[Any, ...]] = []

    def inspect_llvm(self) -> dict[tuple[()], str]:
        return {(): f'declare i32 @"{self._calls}"(i8* %".1", i8* %".2")'}

    def __getitem__(self, launch: tuple[Any, ...]) -> Callable[..., None]:
        stream = launch[2]

        def launcher(*args: Any) -> None:
            self.launches.append(launch)
            kernel = (id(self), None if self._baked is None else args[self._baked])
            packed = Packed(self.function, args, kernel, twice=self._twice, together=self._together)
            self._machine.put(stream.ptr if stream else 0, packed)

        return launcher


class Packed:
    """One launch: the function, what tells its kernel from others, and its parameters as bytes."""

    def __init__(
        self,
        function: Callable[..., object],
        args: tuple[Any, ...],
        kernel: Any,
        *,
        twice: bool,
        together: bool,
    ) -> None:
        self._function, self._args, self.kernel, self._twice, self._together = (
            function,
            args,
            kernel,
            twice,
            together,
        )
        self.parameters = [part for arg in args for part in self._packed(arg) * (1 + twice)]

    def _packed(self, arg: Any) -> list[bytes]:
        parts = _packed(arg)
        is_number = not hasattr(arg, "__cuda_array_interface__")
        return [b"".join(parts)] if self._together and is_number else parts

    def __call__(self) -> None:
        left = list(self.parameters)
        args = []
        for arg in self._args:
            count = len(self._packed(arg))
            args.append(_unpacked(arg, left[:count]))
            del left[: count * (1 + self._twice)]
        self._function(*args)

    def copy(self) -> "Packed":
        made = Packed(
            self._function, self._args, self.kernel, twice=self._twice, together=self._together
        )
        made.parameters = list(self.parameters)
        return made


def _packed(arg: Any) -> list[bytes]:
    if hasattr(arg, "__cuda_array_interface__"):
        return [struct.pack("<Q", arg.data.ptr), struct.pack("<Q", arg.nbytes)]
    number = np.asarray(arg)
    parts = [number.real, number.imag] if number.dtype.kind == "c" else [number]
    return [part.tobytes() for part in parts]


def _unpacked(arg: Any, parts: list[bytes]) -> Any:
    if hasattr(arg, "__cuda_array_interface__"):
        return arg
    dtype = np.asarray(arg).dtype
    return np.frombuffer(b"".join(parts), dtype)[0]


class Driver:
    """libcuda, for graphs of launches of the kernels above.

    Args:
        machine: whose graphs are meant.
        by_library: whether nodes name their kernel in place of a function, as launches of newer
            compilers do.
    """

    def __init__(self, machine: Machine, *, by_library: bool = False) -> None:
        self._machine, self._by_library = machine, by_library
        self._kept: list[Any] = []  # what pointers point to
        # by handle, counted from 1: what tells each from others, and a launch
        self._kernels: list[tuple[Any, Packed]] = []
        self.refuses = False
        self.cuGraphExecKernelNodeSetParams_v2 = self._set

    def _node(self, handle: int) -> Packed:
        graphs = [
            *self._machine.graphs.values(),
            *(graph for graph, _ in self._machine.captures.values()),
        ]
        return next(node.work for graph in graphs for node in graph.nodes if node.handle == handle)

    def cuStreamGetCaptureInfo_v2(  # noqa: N802
        self, stream: Any, status: Any, number: Any, graph: Any, nodes: Any, count: Any
    ) -> int:
        behind = [node.handle for node in self._machine.captures[stream.value][1]]
        array = (ctypes.c_void_p * len(behind))(*behind)
        self._kept.append(array)
        nodes._obj.contents = array
        ctypes.memmove(nodes, ctypes.byref(ctypes.pointer(array)), 8)
        count._obj.value = len(behind)
        return 0

    def cuGraphKernelNodeGetParams_v2(self, node: Any, told: Any) -> int:  # noqa: N802
        buffers = [
            ctypes.create_string_buffer(one, len(one)) for one in self._node(node.value).parameters
        ]
        pointers = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
        self._kept.append((buffers, pointers))
        told._obj.params = ctypes.cast(pointers, ctypes.POINTER(ctypes.c_void_p))
        work = self._node(node.value)
        known = [kernel for kernel, _ in self._kernels]
        if work.kernel not in known:
            self._kernels.append((work.kernel, work))
            known.append(work.kernel)
        handle = known.index(work.kernel) + 1
        told._obj.func, told._obj.kern = (None, handle) if self._by_library else (handle, None)
        return 0

    def cuKernelGetFunction(self, function: Any, kernel: Any) -> int:  # noqa: N802
        function._obj.value = kernel.value
        return 0

    def cuFuncGetParamInfo(self, function: Any, index: Any, offset: Any, nbytes: Any) -> int:  # noqa: N802
        parameters = self._kernels[function.value - 1][1].parameters
        if index.value >= len(parameters):
            return WRONG
        nbytes._obj.value = len(parameters[index.value])
        return 0

    def _set(self, executable: int, handle: int, address: int) -> int:
        if self.refuses:
            return WRONG
        nodes = self._machine.executables[executable]
        node = next(one for one in nodes if one.handle == handle)
        node.work = node.work.copy()
        params = ctypes.cast(address + PARAMS, ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p)))[0]
        node.work.parameters = [
            ctypes.string_at(params[i], len(one)) for i, one in enumerate(node.work.parameters)
        ]
        return 0


PARAMS = 8 + 7 * 4 + 4  # of CUDA_KERNEL_NODE_PARAMS: behind a pointer, seven ints, and padding
