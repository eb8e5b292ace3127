"""Which kernels may print is seen in their LLVM code. That numba-cuda writes it so is seen
without a GPU: `make ptx`.
"""

import contextlib
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from llvmlite import ir
from numba import cuda, float64, typeof, types

from synknumba._device.compilers.numba_cuda import may_print
from tests.unit.without_gpu import compiling_without_gpu

CALLS = {
    "nothing": ([], False),
    "intrinsics and mathematics": (
        ["llvm.nvvm.barrier0", "__nv_exp", "___numba_atomic_double_max"],
        False,
    ),
    "a grid that waits": (["cudaCGGetIntrinsicHandle", "cudaCGSynchronize"], False),
    "printf": (["__nv_exp", "vprintf"], True),
    "a linked function": (["foreign"], True),
    "a name with odd letters": (['_ZN3cal8__main__9foreign$247B2v1"{}'], True),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("parts", [1, 2])
def test_what_is_called_tells(name: str, parts: int) -> None:
    called, expected = CALLS[name]
    double = ir.DoubleType()
    modules = [ir.Module("kernel")]
    kernel = ir.IRBuilder(
        ir.Function(modules[0], ir.FunctionType(ir.VoidType(), []), "kernel").append_basic_block()
    )
    for function in [*called, "helper"]:
        kernel.call(
            ir.Function(modules[0], ir.FunctionType(double, [double]), function), [double(1)]
        )
    kernel.ret_void()
    # in modules of their own, as Numba has them
    for helper in ("helper", "prints_nothing")[:parts]:
        modules.append(ir.Module(helper))
        body = ir.Function(modules[-1], ir.FunctionType(double, [double]), helper)
        body.linkage = "linkonce_odr"
        ir.IRBuilder(body.append_basic_block()).ret(double(2))
    assert may_print("\n\n".join(map(str, modules))) == expected


@pytest.fixture
def numba_cuda() -> Iterator[None]:
    """Numba's compiler for GPUs, up to what is linked."""
    if getattr(cuda, "implementation", None) != "NVIDIA":
        pytest.skip("numba-cuda is not installed; make ptx installs it beside the other packages")
    from numba.cuda import codegen

    placed = SimpleNamespace(
        module=SimpleNamespace(initialized=True), set_shared_memory_carveout=lambda _: None
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(compiling_without_gpu())
        stack.enter_context(
            mock.patch.object(codegen.CUDACodeLibrary, "get_cufunc", return_value=placed)
        )
        yield


@pytest.mark.usefixtures("numba_cuda")
@pytest.mark.parametrize(
    "name", ["silent", "waiting", "printing", "by a function", "linked", "linked by a function"]
)
def test_numbas_code_tells(name: str) -> None:
    foreign = cuda.declare_device("foreign", types.int32(types.int32))

    @cuda.jit(device=True)
    def helper(x: Any) -> Any:
        return math.exp(x) + math.sqrt(x)

    @cuda.jit(device=True)
    def printing_helper(x: Any) -> Any:
        print("x", x)
        return x

    @cuda.jit(device=True)
    def linked_helper(x: Any) -> Any:
        return foreign(x)

    def silent(x: Any) -> None:
        shared = cuda.shared.array(32, float64)
        i = cuda.grid(1)
        shared[i % 32] = helper(x[i]) ** 2.5 % 3.0
        cuda.syncthreads()
        cuda.atomic.add(x, 0, shared[0])
        cuda.atomic.max(x, 1, cuda.shfl_down_sync(0xFFFFFFFF, shared[i], 1))

    def waiting(x: Any) -> None:
        cuda.cg.this_grid().sync()
        x[0] = 1

    def printing(x: Any) -> None:
        print(x[0])

    def by_a_function(x: Any) -> None:
        x[0] = printing_helper(x[0])

    def linked(x: Any) -> None:
        x[0] = foreign(x.shape[0])

    def linked_by_a_function(x: Any) -> None:
        x[0] = linked_helper(x.shape[0])

    kernels = (silent, waiting, printing, by_a_function, linked, linked_by_a_function)
    kernel = cuda.jit({one.__name__.replace("_", " "): one for one in kernels}[name])
    kernel.compile((typeof(np.ones(64)),))
    (code,) = kernel.inspect_llvm().values()
    assert may_print(code) == (name not in {"silent", "waiting"})
