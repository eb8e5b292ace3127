"""Kernels written for numba-cuda-mlir: with the package where it is installed, and with modules
shaped like its own.
"""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from numba import cuda as numbas
from numba import types

from synknumba import KernelError, simt
from synknumba.simt._source import mlir

HAS_PACKAGE = importlib.util.find_spec("numba_cuda_mlir") is not None

KERNELS = """
from numba_cuda_mlir import cuda, types
from numba_cuda_mlir.cuda import atomic, grid, inline_ptx, shared, syncthreads
from numba_cuda_mlir.types import float32

def block_sums(x, sums, scale):
    part = shared.array(64, float32)
    t = cuda.threadIdx.x
    part[t] = x[grid(1)] * types.float32(scale)
    syncthreads()
    if t == 0:
        total = float32(0)
        for i in range(64):
            total += part[i]
        atomic.add(sums, 0, total)

def without_a_barrier(x):
    part = cuda.shared.array(32, dtype=types.float32)
    part[cuda.threadIdx.x] = x[cuda.threadIdx.x]
    x[cuda.threadIdx.x] = part[31 - cuda.threadIdx.x]

def of_a_gpu(x):
    cuda.inline_ptx("nop;")

def of_a_gpu_by_name(x):
    inline_ptx("nop;")
"""


def module(name: str, **members):
    made = ModuleType(name)
    vars(made).update(members)
    for value in members.values():
        if not isinstance(value, ModuleType):
            value.__module__ = name
    return made


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch):
    """Modules with the names and kinds of members of numba-cuda-mlir 0.6."""

    class Type:
        def __init__(self, name: str):
            self.name = name

        def __str__(self):
            return self.name

    Type.__module__ = "numba_cuda_mlir.numba_cuda.types.abstract"
    # A class of its own, as each kind of type has, and as a value's `__module__` is that of its
    # class.
    kinds = {
        name: type("Float", (Type,), {"__module__": Type.__module__})(name)
        for name in ("float32", "float64")
    }

    def stub(name: str, **members):
        return type(name, (), members)

    def named(name: str):
        return lambda *_args, _name=name: None

    base = module(
        "numba_cuda_mlir.numba_cuda",
        threadIdx=stub("threadIdx"),
        atomic=stub("atomic", add=stub("add")),
        grid=named("grid"),
        syncthreads=named("syncthreads"),
    )
    shared = module("numba_cuda_mlir.cuda.shared", array=named("array"))
    cuda = module("numba_cuda_mlir.cuda", inline_ptx=named("inline_ptx"))
    vars(cuda).update(
        {**{name: value for name, value in vars(base).items() if name[0] != "_"}, "shared": shared}
    )
    known = module("numba_cuda_mlir.types")
    vars(known).update(kinds)
    made = module("numba_cuda_mlir", cuda=cuda, types=known, numba_cuda=base)
    for one in (made, cuda, base, shared, known):
        monkeypatch.setitem(sys.modules, one.__name__, one)
    monkeypatch.setattr(mlir, "_members", mlir._members.__wrapped__)
    return made


@pytest.fixture(
    params=[
        "as_shaped",
        pytest.param(
            "installed", marks=pytest.mark.skipif(not HAS_PACKAGE, reason="not installed")
        ),
    ]
)
def kernels(request: pytest.FixtureRequest, tmp_path, monkeypatch: pytest.MonkeyPatch):
    """The module of the kernels."""
    if request.param == "as_shaped":
        request.getfixturevalue("package")
    file = tmp_path / "written_for_mlir.py"
    file.write_text(KERNELS)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, file.stem, made)
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize("way", [simt.jit, simt.check])
def test_agrees_with_numpy(kernels: SimpleNamespace, way):
    x, sums = np.arange(128, dtype=np.float32), np.zeros(1, np.float32)
    way(kernels.block_sums)[2, 64](x, sums, 2.0)
    assert sums[0] == 2 * x.sum()


def test_compiled_kernels_are_kept(kernels: SimpleNamespace):
    kernel = simt.jit(kernels.block_sums)
    kernel[2, 64](np.zeros(128, np.float32), np.zeros(1, np.float32), 1.0)
    assert kernel.cache_info.not_kept is None


def test_the_checker_finds_a_missing_barrier(kernels: SimpleNamespace):
    with pytest.raises(simt.KernelCheckError, match="race at index"):
        simt.check(kernels.without_a_barrier)[1, 32](np.zeros(32, np.float32))


@pytest.mark.parametrize("name", ["of_a_gpu", "of_a_gpu_by_name"])
def test_what_only_a_gpu_has_is_refused_by_name(kernels: SimpleNamespace, name: str):
    for way in (simt.jit, simt.check):
        with pytest.raises(KernelError, match=r"cuda\.inline_ptx is not supported on the CPU"):
            way(getattr(kernels, name))[1, 1](np.zeros(1))


def test_counterparts(package: ModuleType):
    assert mlir.counterpart(package) is sys.modules["numba"]
    assert mlir.counterpart(package.cuda) is mlir.counterpart(package.numba_cuda) is numbas
    assert mlir.counterpart(package.types) is types
    assert mlir.counterpart(package.types.float32) is types.float32
    assert mlir.counterpart(package.cuda.atomic) is numbas.atomic
    assert mlir.counterpart(np) is np
    assert mlir.counterpart(3) == 3


@pytest.mark.skipif(not HAS_PACKAGE, reason="numba-cuda-mlir is not installed")
class TestPackage:
    def test_types(self):
        from numba_cuda_mlir import types as given

        pairs = {
            given.float32[:, ::1]: types.float32[:, ::1],
            given.Tuple((given.int8, given.boolean)): types.Tuple((types.int8, types.boolean)),
            given.complex128: types.complex128,
            given.void: types.void,
        }
        for kind, expected in pairs.items():
            assert mlir.counterpart(kind) == expected

    def test_signatures(self):
        from numba_cuda_mlir import cuda
        from numba_cuda_mlir import types as given

        for signature in (
            given.void(given.float32[:], given.float32),
            [(given.float32[:], given.float32)],
        ):

            @simt.jit(signature)
            def fill(x, value):
                x[cuda.grid(1)] = value

            assert fill.signatures == [(types.float32[:], types.float32)]
            x = np.zeros(32, np.float32)
            fill[1, 32](x, 3)
            assert (x == 3).all()

    def test_overloads_by_its_types(self):
        from numba_cuda_mlir import cuda
        from numba_cuda_mlir import types as given

        kinds = (given.int32[:, ::1],)
        with simt.as_cuda():
            kernel = cuda.jit(kinds)(lambda x: None)
            assert kernel.overloads[kinds].max_threads_per_block == 1024
            assert kernel.compile(kinds).signature == kernel.signatures[0]
            assert kernel.get_shared_mem_per_block(given.void(*kinds)) == 0
            with pytest.raises(KeyError):
                _ = kernel.overloads[given.float32,]

    def test_its_own_modules_declare_device_functions(self):
        from numba_cuda_mlir import cuda

        @cuda.jit
        def fused(x):
            x[0] = cuda.fp16.hfma(x[0], x[1], x[2])

        x = np.array([2, 3, 4], np.float16)
        with simt.as_cuda():
            fused[1, 1](x)
        assert x[0] == 10

    def test_its_programs_run(self):
        from numba_cuda_mlir import cuda
        from numba_cuda_mlir.cuda.random import (
            create_xoroshiro128p_states,
            xoroshiro128p_uniform_float32,
        )

        @cuda.jit(device=True)
        def twice(x):
            return 2 * x

        @cuda.jit
        def draw(states, out):
            i = cuda.grid(1)
            out[i] = twice(xoroshiro128p_uniform_float32(states, i))

        # it seeds generators in Python, by uint64 that wrap
        with (
            simt.as_cuda(),
            np.errstate(over="ignore"),
        ):
            states, out = create_xoroshiro128p_states(64, 1), cuda.device_array(64)
            draw[1, 64](states, out)
            assert 0.5 < out.copy_to_host().mean() < 1.5
